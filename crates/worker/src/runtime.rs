//! One face for both engines.
//!
//! A runtime makes, starts, stops, removes and finds instances; what happens to them in between it
//! tells as [`RuntimeEvent`]s. It is asked per instance, not per service: the life of an instance's
//! services ([`crate::lifecycle`]) is played where it must survive, in the supervisor of the process
//! runtime and beside the engine of the Docker runtime.

pub(crate) mod choose;
pub(crate) mod docker;
pub(crate) mod guard;
pub(crate) mod process;

use std::sync::Arc;

use async_trait::async_trait;
use greenroom_types::inventory::HeldImage;
use greenroom_types::{Millis, Mono, StartId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::agent::{Found, RuntimeEvent};
use crate::launch::Launch;
use crate::order::Refusal;
use crate::prefetch::ImageSource;
use crate::spec::RuntimeKind;

/// Where a runtime tells its news.
#[derive(Clone, Debug)]
pub(crate) struct News(mpsc::Sender<(StartId, RuntimeEvent)>);

/// Why an instance could not be made or started.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Trouble {
    /// It was given up.
    Cancelled,
    /// This node cannot run it (WORK-34, WORK-35).
    Refused(Refusal),
    /// It went wrong.
    Broken(String),
}

/// Why the engine did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RuntimeError {
    /// Nobody answers.
    #[error("the container engine does not answer: {0}")]
    Away(String),
    /// It answered, and not as it should.
    #[error("{0}")]
    Failed(String),
    /// The file system did not let us.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// An engine that runs instances.
#[async_trait]
pub(crate) trait Runtime: Send + Sync {
    fn kind(&self) -> RuntimeKind;
    /// Name and version while it answers.
    async fn engine(&self) -> Option<String>;
    /// Images that are complete on disk (WORK-55).
    async fn held_images(&self) -> Vec<HeldImage>;
    /// Where images are pulled from, on a runtime that has images.
    fn images(&self) -> Option<Arc<dyn ImageSource>>;
    /// Every instance that carries this worker's marks.
    async fn find(&self) -> Result<Vec<Found>, RuntimeError>;
    /// Makes everything an instance needs and runs nothing.
    async fn prepare(&self, launch: Launch, cancel: CancellationToken) -> Result<(), Trouble>;
    /// Starts what was made. That it runs comes as news.
    async fn start(&self, start_id: &StartId) -> Result<(), Trouble>;
    /// Watches an instance that was found.
    async fn attach(&self, start_id: &StartId);
    /// Stops it, politely for so long; a shorter time than one given before counts. Its end comes as
    /// news.
    async fn stop(&self, start_id: &StartId, grace: Millis);
    /// Tells what stands beside an instance until when it may run, and returns when that knows it;
    /// nothing where nothing does (WORK-42).
    async fn hold(&self, _start_id: &StartId, _until: Mono) {}
    /// Why no guard of this machine can kill what it runs, if so (WORK-42).
    fn unguardable(&self) -> Option<String> {
        None
    }
    /// Removes whatever is left of it, running or not.
    async fn remove(&self, start_id: &StartId) -> Result<(), RuntimeError>;
}

/// A runtime that several tasks use.
pub(crate) type SharedRuntime = Arc<dyn Runtime>;

// === impl News ===

impl News {
    /// A line for news, and its other end.
    pub(crate) fn channel() -> (Self, mpsc::Receiver<(StartId, RuntimeEvent)>) {
        let (sender, receiver) = mpsc::channel(1_024);
        (Self(sender), receiver)
    }

    pub(crate) async fn tell(&self, start_id: &StartId, event: RuntimeEvent) {
        // Nobody listens once the worker ends; then nobody needs to know.
        let _ = self.0.send((start_id.clone(), event)).await;
    }
}
