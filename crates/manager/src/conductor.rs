//! The loop that takes everything the store applied, in commit order, and hands it on: changes to
//! the hub, orders to the lines, what was touched to the keeper of deadlines.
//!
//! It never waits for a commit (that could lock it up with the store, which holds proposals back
//! while this loop is behind), for a subscriber, or for a worker. What the keeper finds due is
//! proposed by a task of its own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use greenroom_ledger::{Command, Keeper, Line, PauseWarning};
use greenroom_store::OutputReceiver;
use greenroom_types::{Mono, NodeId, StartId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::engine::Engine;
use crate::links::Links;
use crate::machine::{Committed, Recorded};

/// The keeper is asked at least this often: a wall clock that was set announces itself by nothing.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Commands of deadlines on their way at once; one drop of a switch can make a thousand.
const PROPOSED_MAX: usize = 256;

pub(crate) struct Conductor {
    pub(crate) engine: Engine,
    pub(crate) outputs: OutputReceiver<Recorded>,
    /// Outputs up to this revision are of an earlier run, applied again at the start: what follows
    /// from them is in the state that everything here began with.
    pub(crate) begun_at: u64,
    pub(crate) keeper: Keeper,
    pub(crate) links: Arc<Links>,
    /// News of lines to workers.
    pub(crate) notes: mpsc::UnboundedReceiver<(NodeId, Line)>,
    /// Overdue stops that were logged.
    pub(crate) stuck: BTreeSet<StartId>,
}

// === impl Conductor ===

impl Conductor {
    /// Runs until the store is shut down.
    pub(crate) async fn run(mut self) {
        let (due, proposer) = mpsc::unbounded_channel();
        let proposing = tokio::spawn(propose_due(self.engine.clone(), proposer));
        loop {
            let look_at = self.next_look();
            tokio::select! {
                output = self.outputs.recv() => match output {
                    Some((revision, committed)) if revision > self.begun_at => {
                        self.hand_on(revision, committed);
                    }
                    Some(_) => {}
                    None => break,
                },
                Some((node_id, line)) = self.notes.recv() => {
                    let now = self.engine.clock().now();
                    let keeper = &mut self.keeper;
                    self.engine.read(|ledger| keeper.line(now, ledger, &node_id, line));
                }
                () = tokio::time::sleep_until(look_at) => {
                    if !*self.engine.stopping().borrow() {
                        self.look(&due);
                    }
                }
            }
        }
        drop(due);
        // It ends by itself once nothing more can be due; a panic in it was logged.
        let _ = proposing.await;
    }

    fn next_look(&self) -> tokio::time::Instant {
        let latest = tokio::time::Instant::now() + LOOK_MAX;
        let leases = self.engine.leases().clock().next_deadline();
        let deadlines = self.keeper.next_deadline().into_iter().chain(leases);
        match deadlines.min() {
            Some(Mono(at)) => latest.min(self.engine.clock().instant(Mono(at))),
            None => latest,
        }
    }

    fn hand_on(&mut self, revision: u64, committed: Committed) {
        let Committed {
            mut changes,
            audit,
            orders,
            touched,
        } = committed;
        for change in &mut changes {
            self.engine.payloads().redeem_change(change);
        }
        self.engine.hub().publish(changes);
        for entry in audit {
            self.engine.hub().audit(&entry);
        }
        for order in orders {
            self.links.order(revision, order);
        }
        if !touched.is_empty() {
            let now = self.engine.clock().now();
            let keeper = &mut self.keeper;
            let leases = self.engine.leases();
            self.engine.read(|ledger| {
                keeper.observe(now, ledger, &touched);
                leases.clock().observe(now, ledger, &touched);
            });
        }
    }

    fn look(&mut self, due: &mpsc::UnboundedSender<Command>) {
        let now = self.engine.clock().now();
        let keeper = &mut self.keeper;
        let leases = self.engine.leases();
        let (wakeup, leases, revision) = self.engine.read_at(|ledger, revision| {
            let leases = leases.clock().due(now, ledger);
            (keeper.due(now, ledger), leases, revision)
        });
        for order in wakeup.orders {
            self.links.order(revision, order);
        }
        if let Some(PauseWarning { pause, lasts }) = leases.warning {
            tracing::warn!(
                reason = pause.reason, by = pause.by, since = %pause.since, %lasts,
                "leases are paused for long: no lease-protected job is recovered until they are resumed"
            );
        }
        for command in wakeup.commands.into_iter().chain(leases.commands) {
            // Every deadline is proposed once until it is set again, so what waits here is bounded
            // by the number of deadlines.
            if due.send(command).is_err() {
                return;
            }
        }
        self.tell_stuck();
    }

    /// JOB-26: a stop that did not help even when repeated is for people to look at.
    fn tell_stuck(&mut self) {
        let stuck: BTreeSet<StartId> = self.keeper.stuck_stops().cloned().collect();
        for start_id in stuck.difference(&self.stuck) {
            let at = self.engine.read(|ledger| {
                let instance = ledger.instance(start_id)?;
                Some((instance.key.clone(), instance.node_id.clone()))
            });
            if let Some((key, node_id)) = at {
                tracing::error!(%key, %node_id, %start_id, "a stop was repeated and is still not reported");
            }
        }
        self.stuck = stuck;
    }
}

/// Proposes what is due, many at once: each command looks for itself whether it still holds, and
/// deadlines of different things do not wait for each other.
async fn propose_due(engine: Engine, mut due: mpsc::UnboundedReceiver<Command>) {
    let mut stopping = engine.stopping();
    let mut proposed = JoinSet::new();
    loop {
        let command = tokio::select! {
            command = due.recv() => command,
            _ = stopping.wait_for(|stopping| *stopping) => None,
        };
        let Some(command) = command else { break };
        if proposed.len() >= PROPOSED_MAX {
            proposed.join_next().await;
        }
        while proposed.try_join_next().is_some() {}
        proposed.spawn(propose(engine.clone(), command));
    }
    proposed.join_all().await;
}

/// Proposes the command of a deadline and waits for its commit.
pub(crate) async fn propose(engine: Engine, command: Command) {
    match engine.propose(command).await {
        Ok((_, answer)) => {
            if let Err(refusal) = answer.result {
                tracing::debug!(%refusal, "a deadline had nothing left to do");
            }
        }
        Err(error) => tracing::warn!(%error, "a deadline's command could not be recorded"),
    }
}
