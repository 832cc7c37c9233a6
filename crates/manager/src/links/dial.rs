//! The task of one line: attempts to dial, one session after another.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use greenroom_ledger::{Command, Line, Link};
use greenroom_types::NodeId;
use tokio::sync::{mpsc, oneshot};
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
    /// Resolves when the line to the worker's former address has ended.
    pub(super) former: Option<oneshot::Receiver<()>>,
    /// The protocol for which the worker was last refused; that is told once, not at each attempt.
    pub(super) refused: Option<(u32, u32)>,
    /// Dropped when this line has ended.
    pub(super) _ends: oneshot::Sender<()>,
}

/// A wait before the next attempt.
#[derive(Clone, Copy, Debug)]
struct Rest {
    wait: Duration,
    /// A worker that calls in ends it (LOCAL-09).
    can_be_cut: bool,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    InTime,
    /// The worker called in.
    Called,
    /// The node is no longer wanted.
    Unwanted,
}

// === impl Rest ===

impl Rest {
    const fn upto(wait: Duration) -> Self {
        Self {
            wait,
            can_be_cut: true,
        }
    }

    const fn full(wait: Duration) -> Self {
        Self {
            wait,
            can_be_cut: false,
        }
    }
}

// === impl Dialler ===

impl Dialler {
    /// Dials until it is told that the node is no longer wanted.
    pub(super) async fn run(mut self) {
        if let Some(former) = self.former.take() {
            // What ends there is recorded before anything begins here.
            let _ = former.await;
        }
        let mut backoff = Backoff::new();
        let mut failures: Vec<Instant> = Vec::new();
        loop {
            let ended = session::run(&mut self).await;
            tracing::debug!(node_id = %self.node_id, ?ended, "a session with a worker ended");
            let rest = match ended {
                Ended::Unwanted => return self.engine.acks().forget(&self.node_id),
                Ended::Redial | Ended::Dropped => {
                    backoff.reset();
                    Rest::upto(Duration::ZERO)
                }
                Ended::NotReached => Rest::upto(backoff.next(greenroom_auth::random::<1>()[0])),
                Ended::NotProven => {
                    let payload =
                        serde_json::json!({"node": self.node_id, "address": self.address});
                    self.engine.note("worker_auth_failed", payload).await;
                    failures.retain(|at| at.elapsed() < PROOF_WINDOW);
                    failures.push(Instant::now());
                    if failures.len() >= PROOF_FAILURES {
                        failures.clear();
                        tracing::warn!(node_id = %self.node_id, "dialling pauses: nobody at the worker's address can prove that it is this node");
                        Rest::full(PROOF_PAUSE)
                    } else {
                        Rest::upto(backoff.next(greenroom_auth::random::<1>()[0]))
                    }
                }
            };
            match self.rest(rest).await {
                Woken::InTime => {}
                Woken::Called => backoff.reset(),
                Woken::Unwanted => return self.engine.acks().forget(&self.node_id),
            }
        }
    }

    /// Waits before the next attempt. Orders that come meanwhile are left out: the next hello brings
    /// both sides level.
    async fn rest(&mut self, rest: Rest) -> Woken {
        let until = Instant::now() + rest.wait;
        loop {
            tokio::select! {
                biased;
                mail = self.mail.recv() => match mail {
                    None | Some(Mail::Close { redial: false }) => return Woken::Unwanted,
                    Some(Mail::Called) if rest.can_be_cut => return Woken::Called,
                    Some(Mail::Called | Mail::Close { .. } | Mail::Order { .. }) => {}
                },
                () = tokio::time::sleep_until(until) => return Woken::InTime,
            }
        }
    }

    /// Records that a stream with a hello has ended (MNODE-10).
    pub(super) async fn report_drop(&self) {
        let command = Command::Link {
            node_id: self.node_id.clone(),
            link: Link::Dropped,
        };
        if let Err(error) = self.engine.propose(command).await {
            tracing::warn!(node_id = %self.node_id, %error, "a dropped stream could not be recorded");
        }
    }
}
