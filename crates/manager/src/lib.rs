//! The Manager daemon: gRPC services, event fan-out, worker dialler
