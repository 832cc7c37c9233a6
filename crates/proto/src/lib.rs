//! Generated gRPC code and the conversions between the wire and greenroom-types
