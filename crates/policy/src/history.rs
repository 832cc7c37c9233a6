//! Reading a job's history as runs: one run is one start of an instance, from its acceptance to its
//! end. Entries of one start are told by their start id; a Manager that gives none is read by order.

use std::sync::Arc;

use greenroom_types::job::{HistoryKind, JobWithHistory, StopReason};
use greenroom_types::node::NodeMetadata;
use greenroom_types::{NodeId, Role, StartId, Wall};

/// One start of an instance.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) role: Role,
    pub(crate) node_id: NodeId,
    pub(crate) start_id: Option<StartId>,
    /// Its node as known then.
    pub(crate) node: Arc<NodeMetadata>,
    /// Ordinal of its first entry.
    pub(crate) first: u64,
    /// Ordinal of its newest entry.
    pub(crate) last: u64,
    /// When it was accepted, as far as known.
    pub(crate) accepted_at: Wall,
    /// When it last came to run.
    pub(crate) running_since: Option<Wall>,
    pub(crate) state: RunState,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunState {
    Provisioned,
    Prepared,
    Running,
    /// Being stopped, or failed with remains still there.
    Ending(StopReason),
    /// Over, with the reason told before, if any.
    Ended(Option<StopReason>),
}

/// What an ending means for a policy (RECOV-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Not over.
    Not,
    /// Being stopped by request: still there, and no failure when it goes.
    Requested,
    /// It failed; recover.
    Failed,
    /// Over without a failure; the flag says that somebody wants it to stay stopped.
    Plain { rest: bool },
}

impl Run {
    /// True for an instance that is accepted and neither over nor ending.
    pub(crate) const fn is_live(&self) -> bool {
        matches!(
            self.state,
            RunState::Provisioned | RunState::Prepared | RunState::Running
        )
    }

    /// True while anything of it is on its node.
    pub(crate) const fn is_there(&self) -> bool {
        !matches!(self.state, RunState::Ended(_))
    }

    pub(crate) fn end(&self, job: &JobWithHistory) -> End {
        match self.state {
            RunState::Provisioned | RunState::Prepared | RunState::Running => End::Not,
            RunState::Ending(reason) if reason.is_failure() => End::Failed,
            RunState::Ending(_) => End::Requested,
            RunState::Ended(Some(reason)) if reason.is_failure() => End::Failed,
            RunState::Ended(None) if !completed(job) => End::Failed,
            RunState::Ended(reason) => End::Plain {
                rest: reason == Some(StopReason::UserRequested),
            },
        }
    }

    fn is_of(&self, role: &Role, node: &NodeId, start_id: Option<&StartId>) -> bool {
        let same_start = match (&self.start_id, start_id) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => true,
        };
        same_start && self.role == *role && self.node_id == *node
    }
}

fn completed(job: &JobWithHistory) -> bool {
    job.history
        .iter()
        .rev()
        .take_while(|entry| {
            entry.kind.at().is_none() || matches!(entry.kind, HistoryKind::Stopped(_))
        })
        .any(|entry| matches!(entry.kind, HistoryKind::Completed))
}

/// Number of the entry at `index`, growing within the job: its own, or its position for a Manager
/// that gives none.
fn ordinal(job: &JobWithHistory, index: usize) -> u64 {
    match job.history[index].seq {
        0 => u64::from(job.dropped_entries) + index as u64 + 1,
        seq => seq,
    }
}

/// Number of the newest entry; 0 without any.
pub(crate) fn newest(job: &JobWithHistory) -> u64 {
    match job.history.len() {
        0 => 0,
        len => ordinal(job, len - 1),
    }
}

/// All runs, in the order of their first entries.
pub(crate) fn runs(job: &JobWithHistory) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, entry) in job.history.iter().enumerate() {
        let Some(at) = entry.kind.at() else { continue };
        let (role, node, start_id) = (&at.role, &at.node.node_id, entry.start_id.as_ref());
        let find = |runs: &[Run], wanted: &dyn Fn(&Run) -> bool| {
            let mine = |run: &&Run| run.is_of(role, node, start_id) && wanted(run);
            runs.iter().rposition(|run| mine(&run))
        };
        let state = match &entry.kind {
            HistoryKind::Provisioned(_) => RunState::Provisioned,
            HistoryKind::Prepared(_) => RunState::Prepared,
            HistoryKind::Running { .. } => RunState::Running,
            HistoryKind::Stopping { reason, .. } => RunState::Ending(*reason),
            HistoryKind::Stopped(_) => RunState::Ended(None),
            _ => continue,
        };
        let found = match state {
            RunState::Provisioned => None,
            // A lost instance that is taken back runs again under its own start id (HIST-04).
            RunState::Running if start_id.is_some() => find(&runs, &|run| run.is_there()),
            RunState::Prepared | RunState::Running => find(&runs, &Run::is_live),
            RunState::Ending(_) => find(&runs, &Run::is_live),
            // Without start ids the oldest one that was ending is the one that is over.
            RunState::Ended(_) => runs
                .iter()
                .position(|run| {
                    run.is_of(role, node, start_id) && matches!(run.state, RunState::Ending(_))
                })
                .or_else(|| find(&runs, &Run::is_live)),
        };
        let found = match found {
            Some(found) => found,
            // The end of something whose beginning is no longer held says nothing new.
            None if matches!(state, RunState::Ended(_)) && job.dropped_entries > 0 => continue,
            None => {
                runs.push(Run {
                    role: role.clone(),
                    node_id: node.clone(),
                    start_id: start_id.cloned(),
                    node: Arc::clone(&at.node),
                    first: ordinal(job, index),
                    last: 0,
                    accepted_at: entry.at,
                    running_since: None,
                    state,
                });
                runs.len() - 1
            }
        };
        let run = &mut runs[found];
        run.last = ordinal(job, index);
        run.state = match (run.state, state) {
            (RunState::Ending(reason), RunState::Ended(None)) => RunState::Ended(Some(reason)),
            (_, state) => state,
        };
        if state == RunState::Running {
            run.running_since = Some(entry.at);
        }
    }
    runs
}
