//! Carries out the core's acts on the runtime, each instance in a lane of its own.
//!
//! Lanes run side by side. Within one, acts are done one after the other, in the order given: a stop
//! never overtakes the start it follows. A removal gives up a preparation that is under way, and
//! waits for it, so that nothing is made behind its back.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_types::job::{JobInfoKind, Stage};
use greenroom_types::{Millis, StartId};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::RuntimeEvent;
use crate::launch::Launch;
use crate::runtime::{News, SharedRuntime, Trouble};

/// A removal that failed is tried again after this (WORK-23).
const REMOVE_AGAIN: Duration = Duration::from_secs(5);

pub(crate) struct Lanes {
    runtime: SharedRuntime,
    news: News,
    lanes: BTreeMap<StartId, Lane>,
}

#[derive(Default)]
struct Lane {
    cancel: CancellationToken,
    last: Option<JoinHandle<()>>,
}

// === impl Lanes ===

impl Lanes {
    pub(crate) fn new(runtime: SharedRuntime, news: News) -> Self {
        Self {
            runtime,
            news,
            lanes: BTreeMap::new(),
        }
    }

    pub(crate) fn prepare(&mut self, launch: Launch) {
        let start_id = launch.start_id.clone();
        let cancel = self.lane(&start_id).cancel.clone();
        self.queue(start_id, async move |start_id, runtime, news| {
            let text = format!("{} services", launch.services.len());
            news.tell(&start_id, stage(Stage::Create, text)).await;
            match runtime.prepare(launch, cancel).await {
                Ok(()) => news.tell(&start_id, RuntimeEvent::Prepared).await,
                Err(trouble) => tell_trouble(&news, &start_id, trouble).await,
            }
        });
    }

    pub(crate) fn start(&mut self, start_id: StartId) {
        self.queue(start_id, async |start_id, runtime, news| {
            let begun = stage(Stage::Start, String::new());
            news.tell(&start_id, begun).await;
            if let Err(trouble) = runtime.start(&start_id).await {
                tell_trouble(&news, &start_id, trouble).await;
            }
        });
    }

    pub(crate) fn attach(&mut self, start_id: StartId) {
        self.queue(start_id, async |start_id, runtime, _| {
            runtime.attach(&start_id).await;
        });
    }

    /// Stops it once `told` is done, which is what its job hears before any signal.
    pub(crate) fn stop(
        &mut self,
        start_id: StartId,
        grace: Millis,
        told: impl Future<Output = ()> + Send + 'static,
    ) {
        self.queue(start_id, async move |start_id, runtime, news| {
            told.await;
            let begun = stage(Stage::Stop, format!("grace {grace}"));
            news.tell(&start_id, begun).await;
            runtime.stop(&start_id, grace).await;
        });
    }

    pub(crate) fn remove(&mut self, start_id: StartId) {
        self.lane(&start_id).cancel.cancel();
        self.queue(start_id.clone(), async |start_id, runtime, news| {
            let begun = stage(Stage::Down, String::new());
            news.tell(&start_id, begun).await;
            while let Err(error) = runtime.remove(&start_id).await {
                tracing::warn!(%start_id, %error, "an instance cannot be removed yet");
                let stuck = stage(Stage::Down, format!("stuck: {error}"));
                news.tell(&start_id, stuck).await;
                tokio::time::sleep(REMOVE_AGAIN).await;
            }
            news.tell(&start_id, RuntimeEvent::Removed).await;
        });
        // Nothing comes after it.
        self.lanes.remove(&start_id);
    }

    /// Brings news of an instance without doing anything.
    pub(crate) fn tell(&mut self, start_id: StartId, event: RuntimeEvent) {
        self.queue(start_id, async move |start_id, _, news| {
            news.tell(&start_id, event).await;
        });
    }

    fn lane(&mut self, start_id: &StartId) -> &mut Lane {
        self.lanes.entry(start_id.clone()).or_default()
    }

    /// Does something when everything before it in the lane is done.
    fn queue<F>(
        &mut self,
        start_id: StartId,
        act: impl FnOnce(StartId, SharedRuntime, News) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        let (runtime, news) = (self.runtime.clone(), self.news.clone());
        let lane = self.lane(&start_id);
        let before = lane.last.take();
        lane.last = Some(tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            act(start_id, runtime, news).await;
        }));
    }
}

fn stage(stage: Stage, text: String) -> RuntimeEvent {
    RuntimeEvent::Info(JobInfoKind::Stage { stage, text })
}

async fn tell_trouble(news: &News, start_id: &StartId, trouble: Trouble) {
    match trouble {
        // Whoever gave it up is removing it.
        Trouble::Cancelled => {}
        Trouble::Refused(refusal) => news.tell(start_id, RuntimeEvent::Refused(refusal)).await,
        Trouble::Broken(reason) => news.tell(start_id, RuntimeEvent::Broken(reason)).await,
    }
}
