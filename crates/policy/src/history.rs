//! Reading a job's history as runs: one run is one start of an instance, from its acceptance to its
//! end. Entries of one start are told by their start id; a Manager that gives none is read by order.

use std::sync::Arc;

use greenroom_types::job::{HistoryKind, JobWithHistory, StopReason};
use greenroom_types::node::{NodeMetadata, RejectionCode};
use greenroom_types::{NodeId, Role, StartId, Wall};

/// Longest part of a worker's words that is passed on.
const WORDS_MAX: usize = 300;

/// What the newest failure or rejection said, with the node where it was; none without one that said
/// anything.
pub(crate) fn last_failure(job: &JobWithHistory) -> Option<String> {
    let entries = job.history.iter().enumerate().rev();
    entries.into_iter().find_map(|(index, entry)| {
        let (at, what, detail) = match &entry.kind {
            HistoryKind::Rejected { at, detail, .. } => (at, "rejected by", detail),
            HistoryKind::Stopping { at, reason, detail } if reason.is_failure() => {
                (at, "failed on", detail)
            }
            _ => return None,
        };
        if let HistoryKind::Stopping {
            reason: StopReason::NodeStopped,
            ..
        } = &entry.kind
            && detail.is_empty()
        {
            let node_id = &at.node.node_id;
            let newest_run = job.history[index + 1..]
                .iter()
                .rfind(|later| matches!(&later.kind, HistoryKind::Running { .. }));
            let came_back = newest_run.map(|run| run.start_id == entry.start_id);
            let fate = match (&job.job.lease, came_back) {
                (_, Some(true)) => "it came back since",
                (None, _) => "what ran there may still run",
                // A start is accepted only when the lease of the lost one is over (LEASE-08).
                (Some(_), Some(false)) => "its lease is over, so what ran there may run no more",
                (Some(_), None) => "what ran there may run on only until its lease ends",
            };
            return Some(format!(
                "given up on {node_id}: its worker was not heard; {fate}"
            ));
        }
        if detail.is_empty() {
            return None;
        }
        let end = detail.floor_char_boundary(WORDS_MAX);
        Some(format!("{what} {}: {}", at.node.node_id, &detail[..end]))
    })
}

/// One start of an instance.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) role: Role,
    pub(crate) node_id: NodeId,
    pub(crate) start_id: Option<StartId>,
    /// Its node as known at its newest entry.
    pub(crate) node: Arc<NodeMetadata>,
    /// Ordinal of its first entry.
    pub(crate) first: u64,
    /// Ordinal of its newest entry.
    pub(crate) last: u64,
    /// When it was accepted, as far as known.
    pub(crate) accepted_at: Wall,
    /// When it last came to run.
    pub(crate) running_since: Option<Wall>,
    /// Ordinal and time of the entry with which it began to end.
    pub(crate) ended: Option<(u64, Wall)>,
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

    /// True for one that is ending and not over, so that its remains are on its node. What a lost node
    /// still carries, nobody knows; once it is `back` in service, it carries what is not shown as over.
    pub(crate) const fn leaves_remains(&self, back: bool) -> bool {
        match self.state {
            RunState::Ending(StopReason::NodeStopped | StopReason::NodeTerminated) => back,
            RunState::Ending(_) => true,
            _ => false,
        }
    }

    /// True for one that ends by request: it holds its key to the end (JOB-35).
    pub(crate) const fn holds_its_key(&self) -> bool {
        matches!(self.state, RunState::Ending(reason) if !reason.is_failure())
    }

    /// True for an instance of this key.
    pub(crate) fn is_at(&self, role: &Role, node_id: &NodeId) -> bool {
        self.role == *role && self.node_id == *node_id
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

/// Number of the newest entry about that start.
pub(crate) fn newest_of(job: &JobWithHistory, start_id: &StartId) -> Option<u64> {
    let mut entries = job.history.iter().enumerate().rev();
    let found = entries.find(|(_, entry)| entry.start_id.as_ref() == Some(start_id))?;
    Some(ordinal(job, found.0))
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
            // A lost instance that is taken back goes on under its own start id (HIST-04).
            RunState::Provisioned | RunState::Prepared | RunState::Running
                if start_id.is_some() =>
            {
                find(&runs, &|run| run.is_there())
            }
            RunState::Provisioned => None,
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
                    ended: None,
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
        run.node = Arc::clone(&at.node);
        if run.is_live() {
            run.ended = None;
        } else {
            run.ended.get_or_insert((run.last, entry.at));
        }
        if state == RunState::Running {
            run.running_since = Some(entry.at);
        }
    }
    runs
}

/// When runs of a job failed by themselves, with the ordinal of that entry, oldest first, as far as it
/// counts against its ceiling (CEIL-06): what can be read of what an instance of the policy that
/// watched has counted. Losses of nodes are left out, as the history does not tell the reclaimed ones.
pub(crate) fn failures(job: &JobWithHistory) -> Vec<(u64, Wall)> {
    let runs = runs(job);
    // An update, and the life after a verdict, begin anew; so does a node bought for the job.
    let begun = job.history.iter().enumerate().filter(|(_, entry)| {
        matches!(
            entry.kind,
            HistoryKind::Updated { .. } | HistoryKind::Failed { .. }
        )
    });
    let begun = begun.map(|(index, _)| ordinal(job, index));
    let bought = |run: &&Run| {
        let wanted_by = run.node.tags.get("jobId").map(String::as_str);
        run.running_since.is_some() && wanted_by == Some(job.job.job_id.as_str())
    };
    let bought = runs.iter().filter(bought).map(|run| run.first);
    let from = begun.chain(bought).max().unwrap_or(0);
    let mut failed: Vec<(u64, Wall)> = runs
        .iter()
        .filter(|run| match run.state {
            RunState::Ending(reason) | RunState::Ended(Some(reason)) => {
                reason == StopReason::JobFailed
            }
            _ => false,
        })
        .filter_map(|run| run.ended.map(|ended| (run, ended)))
        // One side of a migration that went on with the other (MIGR-34).
        .filter(|(run, (at, _))| {
            !runs.iter().any(|other| {
                let goes_on = other.ended.is_none_or(|(end, _)| end > *at);
                other.first != run.first && other.first < *at && goes_on
            })
        })
        .map(|(_, ended)| ended)
        .filter(|(at, _)| *at > from)
        .collect();
    failed.retain(|(at, _)| !was_without_disk(job, *at));
    failed.sort_unstable();
    failed
}

/// The entry before that one is a refusal for want of disk, which is no trigger (HEALTH-12).
fn was_without_disk(job: &JobWithHistory, ended: u64) -> bool {
    (0..job.history.len().saturating_sub(1)).any(|index| {
        let refused = &job.history[index].kind;
        ordinal(job, index + 1) == ended
            && matches!(
                refused,
                HistoryKind::Rejected {
                    code: RejectionCode::Disk,
                    ..
                }
            )
    })
}

#[cfg(test)]
mod tests {
    use greenroom_types::job::{At, HistoryEntry};

    use super::*;

    #[test]
    fn the_newest_failure_that_said_anything_is_told_with_its_node() {
        let entry = |node: &str, rejected: bool, detail: &str| {
            let metadata = NodeMetadata {
                node_id: node.into(),
                ..NodeMetadata::default()
            };
            let at = At {
                role: "primary".into(),
                node: Arc::new(metadata),
                running: None,
            };
            let detail = detail.to_owned();
            let kind = if rejected {
                HistoryKind::Rejected {
                    at,
                    code: RejectionCode::Disk,
                    detail,
                }
            } else {
                HistoryKind::Stopping {
                    at,
                    reason: StopReason::JobFailed,
                    detail,
                }
            };
            HistoryEntry {
                at: Wall(0),
                seq: 1,
                start_id: None,
                kind,
            }
        };
        let told = |history| {
            last_failure(&JobWithHistory {
                history,
                ..JobWithHistory::default()
            })
        };
        assert_eq!(told(vec![]), None);
        let failed = entry("n1", false, "no such program");
        assert_eq!(
            told(vec![failed.clone()]).as_deref(),
            Some("failed on n1: no such program")
        );
        let history = vec![failed, entry("n2", true, "disk"), entry("n3", false, "")];
        assert_eq!(told(history).as_deref(), Some("rejected by n2: disk"));
        let mut lost = entry("n3", false, "");
        if let HistoryKind::Stopping { reason, .. } = &mut lost.kind {
            *reason = StopReason::NodeStopped;
        }
        let lost = told(vec![lost]).unwrap();
        assert!(
            lost.starts_with("given up on n3: ") && lost.ends_with("may still run"),
            "{lost}"
        );
        let long = told(vec![entry("n1", false, &"ä".repeat(400))]).unwrap();
        assert!(long.len() < 330, "{}", long.len());
    }
}
