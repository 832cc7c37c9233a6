//! Client SDK of the Manager: calls, typed errors, event stream
