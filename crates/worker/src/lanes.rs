//! Carries out the core's acts on the runtime, each instance in a lane of its own.
//!
//! Acts of different instances run side by side. Within one, a removal gives up a preparation that is
//! under way and waits for it, so that nothing is made behind its back.

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
    making: Option<JoinHandle<()>>,
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
        let lane = self.lanes.entry(start_id.clone()).or_default();
        let (runtime, news, cancel) =
            (self.runtime.clone(), self.news.clone(), lane.cancel.clone());
        lane.making = Some(tokio::spawn(async move {
            let text = format!("{} services", launch.services.len());
            news.tell(&start_id, stage(Stage::Create, text)).await;
            match runtime.prepare(launch, cancel).await {
                Ok(()) => news.tell(&start_id, RuntimeEvent::Prepared).await,
                Err(trouble) => tell_trouble(&news, &start_id, trouble).await,
            }
        }));
    }

    pub(crate) fn start(&mut self, start_id: StartId) {
        let (runtime, news) = (self.runtime.clone(), self.news.clone());
        let lane = self.lanes.entry(start_id.clone()).or_default();
        lane.making = Some(tokio::spawn(async move {
            news.tell(&start_id, stage(Stage::Start, String::new()))
                .await;
            if let Err(trouble) = runtime.start(&start_id).await {
                tell_trouble(&news, &start_id, trouble).await;
            }
        }));
    }

    pub(crate) fn attach(&self, start_id: StartId) {
        let runtime = self.runtime.clone();
        tokio::spawn(async move { runtime.attach(&start_id).await });
    }

    pub(crate) fn stop(&self, start_id: StartId, grace: Millis) {
        let (runtime, news) = (self.runtime.clone(), self.news.clone());
        tokio::spawn(async move {
            news.tell(&start_id, stage(Stage::Stop, format!("grace {grace}")))
                .await;
            runtime.stop(&start_id, grace).await;
        });
    }

    pub(crate) fn remove(&mut self, start_id: StartId) {
        let lane = self.lanes.remove(&start_id).unwrap_or_default();
        lane.cancel.cancel();
        let (runtime, news) = (self.runtime.clone(), self.news.clone());
        tokio::spawn(async move {
            if let Some(making) = lane.making {
                let _ = making.await;
            }
            news.tell(&start_id, stage(Stage::Down, String::new()))
                .await;
            while let Err(error) = runtime.remove(&start_id).await {
                tracing::warn!(%start_id, %error, "an instance cannot be removed yet");
                let text = format!("stuck: {error}");
                news.tell(&start_id, stage(Stage::Down, text)).await;
                tokio::time::sleep(REMOVE_AGAIN).await;
            }
            news.tell(&start_id, RuntimeEvent::Removed).await;
        });
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
