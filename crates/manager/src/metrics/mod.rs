//! Counts and gauges of the Manager for a Prometheus scraper, and its health for probes that speak
//! HTTP (API-21).

mod calls;
mod page;
mod serve;

pub(crate) use calls::{CallsLayer, Tally};
pub(crate) use serve::{MetricsServer, open, permit};
