//! One subscriber's view of the changes: its pending window, its protocol, its choice of kinds.
//!
//! Pure: it holds what the subscriber was shown and what waits to come into its window; queues,
//! sockets and heartbeats are the driver's.

use greenroom_types::call::Refusal;
use greenroom_types::stream::{ProviderHealth, Stamped};
use greenroom_types::{Mono, Now};
use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::ledger::Ledger;

/// What a subscriber asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wish {
    /// How many seconds ahead a pending job is shown (WINDOW-01).
    pub pending_window_s: i64,
    /// Minor number of its protocol; 0 for a published client (EVT-06).
    pub client_protocol: u32,
    /// Kinds it wants; empty for all (EVT-20).
    pub include: Vec<String>,
    /// Newest entries of a history that it wants; none for 100, 0 for all held (EVT-08).
    pub history_limit: Option<u32>,
}

/// One subscriber.
#[derive(Clone, Debug)]
pub struct Subscriber {
    wish: Wish,
}

// === impl Subscriber ===

impl Subscriber {
    /// Checks the wish.
    pub fn new(wish: Wish) -> Result<Self, Refusal> {
        Ok(Self { wish })
    }

    /// The whole state in the order of EVT-02, ending with InitialDataComplete; every event carries
    /// the state's seq. Changes after it go through [`Subscriber::on_change`].
    pub fn snapshot(
        &mut self,
        now: Now,
        ledger: &Ledger,
        health: Vec<ProviderHealth>,
    ) -> Vec<Stamped> {
        let _ = (now, ledger, health, &self.wish);
        Vec::new()
    }

    /// What this subscriber is sent for a change: nothing or one event.
    pub fn on_change(&mut self, now: Now, change: &Change) -> Option<Stamped> {
        let _ = (now, change);
        None
    }

    /// When the passing of time alone next shows it a job.
    pub fn next_due(&self, now: Now) -> Option<Mono> {
        let _ = now;
        None
    }

    /// What the passing of time, or a step of the wall clock, shows it; `seq` is that of the latest
    /// commit (WINDOW-03).
    pub fn on_time(&mut self, now: Now, seq: u64) -> Vec<Stamped> {
        let _ = (now, seq);
        Vec::new()
    }
}
