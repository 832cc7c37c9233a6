//! The AutoManager core: events in, effects out. Pure
