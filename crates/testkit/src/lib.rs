//! A Manager and workers in one process on free ports, for tests.
//!
//! [`TestManager`] is the real daemon on a folder of its own; it can be ended, killed and started
//! again at the same address. [`FakeWorker`] speaks the worker's side of the controlling stream for
//! real, and runs nothing: the test says what becomes of each start. [`Watch`] follows the event
//! stream, and waits for what the test needs to see.
//!
//! Nothing here sleeps to let something happen. Every wait is for a condition and has a bound, after
//! which it panics with what it saw; the bound is for a hung test alone, and no result depends on it.

#![allow(
    clippy::missing_panics_doc,
    reason = "everything here panics when a test's expectation fails; that is how a test fails"
)]

mod manager;
mod order;
mod server;
mod wait;
mod watch;
mod worker;

pub use manager::TestManager;
pub use order::Received;
pub use server::TestServer;
pub use wait::{BOUND, within};
pub use watch::{Mirror, Watch, kinds};
pub use worker::{FakeWorker, Held, Honesty};

use greenroom_types::bundle::{Bundle, BundleJob, Launch};
use greenroom_types::call::StartJob;
use greenroom_types::job::{Job, Service};
use greenroom_types::node::InstanceKey;

/// A job of one service that a worker of any kind can run.
pub fn job(job_id: &str) -> Job {
    Job {
        job_id: job_id.into(),
        services: vec![Service {
            name: "main".to_owned(),
            command: "sleep 1000".to_owned(),
            ..Service::default()
        }],
        ..Job::default()
    }
}

/// A plain start of a job in role `primary`.
pub fn start(job_id: &str, node_id: &str) -> StartJob {
    StartJob {
        job_id: job_id.into(),
        role: "primary".into(),
        node_id: node_id.into(),
        defer_start: false,
        runtime_role: String::new(),
        gpu_index: None,
        migration_id: None,
        migration_state: None,
    }
}

/// A bundle of one copy, of jobs that a worker of any kind can run.
pub fn bundle(bundle_id: &str, jobs: &[&str]) -> Bundle {
    let job = |name: &&str| BundleJob {
        job_name: (*name).into(),
        launch: Launch {
            services: job("any").services,
            ..Launch::default()
        },
        ..BundleJob::default()
    };
    Bundle {
        bundle_id: bundle_id.into(),
        pool: "own".into(),
        jobs: jobs.iter().map(job).collect(),
        ..Bundle::default()
    }
}

/// The key of a job's instance in role `primary`.
pub fn key(job_id: &str) -> InstanceKey {
    InstanceKey::new(job_id.into(), "primary".into())
}
