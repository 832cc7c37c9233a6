//! Generated gRPC code and the conversions between the wire and greenroom-types.
//!
//! The `.proto` files stand in `proto/` at the root of the workspace; one module here holds what is generated
//! from one package. Published names and numbers are kept exactly, additions are numbered from 100 (API-02,
//! API-03), and `tests/wire` holds both against `docs/wire` and the wire map of the specification.
//!
//! [`status`] builds and reads refusals, [`convert`] turns messages into domain types and back. This crate opens
//! no connection and decides nothing: it does not know what a valid job is, only what a well-formed message is.

pub mod convert;
pub mod status;

/// `norsk.api.common`: nouns that the Manager's and the worker's surface share.
#[allow(missing_docs, clippy::all, clippy::nursery, clippy::pedantic)]
pub mod common {
    tonic::include_proto!("norsk.api.common");
}

/// `norsk.api.error`: what stands in the details of a refusal.
#[allow(missing_docs, clippy::all, clippy::nursery, clippy::pedantic)]
pub mod error {
    tonic::include_proto!("norsk.api.error");
}

/// `grpc.health.v1`: the standard health protocol.
#[allow(missing_docs, clippy::all, clippy::nursery, clippy::pedantic)]
pub mod health {
    tonic::include_proto!("grpc.health.v1");
}

/// `greenroom.logs`: what a job's services wrote.
#[allow(missing_docs, clippy::all, clippy::nursery, clippy::pedantic)]
pub mod logs {
    tonic::include_proto!("greenroom.logs");
}

/// `norsk.api.manager`: the Manager's service and its messages.
#[allow(missing_docs, clippy::all, clippy::nursery, clippy::pedantic)]
pub mod manager {
    tonic::include_proto!("norsk.api.manager");
}

/// `norsk.api.worker`: the stream between Manager and worker.
#[allow(missing_docs, clippy::all, clippy::nursery, clippy::pedantic)]
pub mod worker {
    tonic::include_proto!("norsk.api.worker");
}

/// The encoded `FileDescriptorSet` of every package above with its imports, for reflection (API-22).
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("descriptors");
