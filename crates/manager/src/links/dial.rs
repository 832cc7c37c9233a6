//! The task of one line: attempts to dial, one session after another.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use greenroom_ledger::{Command, Line, Link};
use greenroom_types::NodeId;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Mail;
use super::backoff::Backoff;
use super::session::{self, Ended};
use crate::engine::Engine;
use crate::settings::LinkSettings;

/// So many failed proofs in [`PROOF_WINDOW`] pause the dialling (MNODE-08).
const PROOF_FAILURES: usize = 5;
const PROOF_WINDOW: Duration = Duration::from_secs(600);
const PROOF_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Dialler {
    pub(super) engine: Engine,
    pub(super) settings: LinkSettings,
    pub(super) notes: mpsc::UnboundedSender<(NodeId, Line)>,
    pub(super) node_id: NodeId,
    pub(super) address: String,
    pub(super) mail: mpsc::Receiver<Mail>,
    pub(super) overflow: Arc<AtomicBool>,
}

// === impl Dialler ===

impl Dialler {
    /// Dials until it is told that the node is no longer wanted.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new();
        let mut failures: Vec<Instant> = Vec::new();
        loop {
            let ended = session::run(&mut self).await;
            tracing::debug!(node_id = %self.node_id, ?ended, "a session with a worker ended");
            let mut wait = Duration::ZERO;
            match ended {
                Ended::Unwanted => return,
                Ended::Redial => backoff.reset(),
                Ended::Dropped => {
                    backoff.reset();
                    self.report_drop().await;
                }
                Ended::NotReached => wait = backoff.next(greenroom_auth::random::<1>()[0]),
                Ended::NotProven => {
                    wait = backoff.next(greenroom_auth::random::<1>()[0]);
                    failures.retain(|at| at.elapsed() < PROOF_WINDOW);
                    failures.push(Instant::now());
                    if failures.len() >= PROOF_FAILURES {
                        failures.clear();
                        wait = PROOF_PAUSE;
                    }
                }
            }
            if !self.rest(wait).await {
                return;
            }
        }
    }

    /// Waits before the next attempt. Orders that come meanwhile are left out: the next hello brings
    /// both sides level. False when the node is no longer wanted.
    async fn rest(&mut self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return true,
                mail = self.mail.recv() => match mail {
                    None | Some(Mail::Close { redial: false }) => return false,
                    Some(Mail::Close { redial: true }) => return true,
                    Some(Mail::Order { .. }) => {}
                },
            }
        }
    }

    async fn report_drop(&self) {
        let command = Command::Link {
            node_id: self.node_id.clone(),
            link: Link::Dropped,
        };
        if let Err(error) = self.engine.propose(command).await {
            tracing::warn!(node_id = %self.node_id, %error, "a dropped stream could not be recorded");
        }
    }
}
