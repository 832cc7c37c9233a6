//! The placement engine: filters, ranking key, trace. Pure
