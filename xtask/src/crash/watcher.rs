//! One subscriber over all kills: every seq of the epoch once, in order.

use anyhow::{Result, bail, ensure};
use greenroom_sdk::types::stream::StreamEvent;
use greenroom_sdk::{Client, EventSettings, StreamItem};
use tokio::task::JoinHandle;

#[derive(Clone, Debug, Default)]
pub(crate) struct Watcher {
    epoch: String,
    seq: u64,
}

// === impl Watcher ===

impl Watcher {
    pub(crate) const fn seq(&self) -> u64 {
        self.seq
    }

    /// Follows the stream until it breaks. The snapshot may be ahead of what was seen, since events
    /// may have been committed that nobody was told of before the kill; it is never behind.
    pub(crate) async fn follow(&mut self, client: &Client) -> Result<JoinHandle<Result<Self>>> {
        let settings = EventSettings {
            auto_resume: false,
            ..EventSettings::default()
        };
        let (state, mut events) = client.event_stream(settings).await?;
        ensure!(
            self.epoch.is_empty() || self.epoch == state.epoch,
            "the epoch changed from {} to {} although the store is whole",
            self.epoch,
            state.epoch
        );
        ensure!(
            state.seq >= self.seq,
            "event {} was seen, and after the restart the state is at {}",
            self.seq,
            state.seq
        );
        let mut seen = Self {
            epoch: state.epoch,
            seq: state.seq,
        };
        Ok(tokio::spawn(async move {
            loop {
                match events.next().await {
                    Some(StreamItem::Event(stamped)) => {
                        let beside = matches!(
                            stamped.event,
                            StreamEvent::Heartbeat { .. } | StreamEvent::JobInfo(_)
                        );
                        ensure!(
                            beside || stamped.seq > seen.seq,
                            "event {} came after event {}",
                            stamped.seq,
                            seen.seq
                        );
                        seen.seq = seen.seq.max(stamped.seq);
                    }
                    Some(StreamItem::Resnapshot(_)) => {
                        bail!("a snapshot came without being asked for")
                    }
                    Some(StreamItem::Closed(_)) | None => return Ok(seen),
                }
            }
        }))
    }
}
