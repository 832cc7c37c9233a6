//! HTTP API of the control plane, and the client that the tools use.
//!
//! JSON over HTTP/1.1 on loopback, without credentials: whoever may run programs on the machine may
//! use it, and nobody else can reach it. It is one more embedder of the AutoManager and decides
//! nothing. Errors are `{"error": {"code", "message"}}`; codes are stable, messages are for people.
//!
//! | call | answer |
//! |---|---|
//! | `GET /healthz` | [`api::Health`], also while there is no instance |
//! | `GET /v1/why/{job_id}` | [`api::Why`]: where a job is and why, or what it waits for |
//! | `POST /v1/place` | [`api::Placed`]: a dry run of [`api::PlaceRequest`] with its trace |
//! | `POST /v1/validate` | faults of an [`api::BundleRequest`] |
//! | `POST /v1/admit` | whether an [`api::BundleRequest`] would find room now |
//! | `POST /v1/call` | an acting call ([`greenroom_policy::ApiCall`]) and its answer |
//! | `GET /v1/metrics` | counters and gauges |
//! | `GET /v1/pending` | [`api::Pending`]: jobs without a node |
//! | `GET /v1/placements` | placements of record, newest first, without traces |
//! | `GET /v1/nodes` | [`api::Node`]s |
//! | `GET /v1/bundles` | [`api::BundleRow`]s |
//! | `GET /v1/callbacks` | server-sent events, one per callback, named after it |

pub mod api;
pub mod client;
mod failure;
mod feed;
mod prometheus;
mod routes;
mod server;
pub mod words;

pub use client::Client;
pub use server::{Provider, ServeError, serve};
