//! The order in which calls go to the Manager.
//!
//! The policy's order is a promise: a stop decided after a start must not overtake it. One HTTP/2
//! connection does not keep it, for the Manager serves each request on its own; only an answer shows
//! that a call has taken effect. So of two calls about the same thing the second is sent when the
//! first is answered, and calls about different things go out at once, side by side: a recovery of a
//! thousand jobs is a thousand calls under way, not a thousand round trips.
//!
//! What a call is about:
//! - an instance, a job or a bundle: alone;
//! - the node it goes to: together with other calls that only use the node (starts and stops on it),
//!   but alone when the call is about the node itself (create, terminate, tags, images). So a
//!   terminate follows the stops decided before it, and twenty starts on one node go together.
//!
//! Calls wait only for calls decided earlier, so none can wait for itself. Nothing here sends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use greenroom_policy::CallId;
use greenroom_types::call::Call;
use greenroom_types::id::{BundleId, JobId, NodeId};

/// Calls under way at most. Far above what a Manager works on at once; it bounds memory, and the
/// deadline of a call begins when it is sent, so waiting here costs it nothing.
const UNDER_WAY_MAX: usize = 1024;

/// What a call is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Job(JobId),
    Bundle(BundleId),
    Node(NodeId),
    /// A slot that has no node id yet.
    Slot(String),
    /// The audit log.
    Audit,
    /// What concerns the fleet as a whole.
    Fleet,
    /// The pause of all leases.
    Leases,
    /// A namespace of the key/value store.
    Namespace(String),
}

/// Whether other calls about the same thing may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Alone,
    Together,
}

/// Calls of one thing, each by its place in the policy's order.
#[derive(Debug, Default)]
struct Line {
    alone: BTreeSet<u64>,
    together: BTreeSet<u64>,
}

#[derive(Debug)]
struct Waiting {
    call_id: CallId,
    call: Call,
}

/// Calls that wait, and which are under way.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    next: u64,
    lines: BTreeMap<Key, Line>,
    /// Not yet ready or not yet taken.
    waiting: BTreeMap<u64, Waiting>,
    /// Ready, in the order in which they became so.
    ready: VecDeque<u64>,
    under_way: BTreeMap<CallId, (u64, Vec<(Key, Mode)>)>,
    sent: usize,
}

// === impl Outbox ===

impl Outbox {
    /// Takes a call in the policy's order.
    pub(crate) fn push(&mut self, call_id: CallId, call: Call) {
        let seq = self.next;
        self.next += 1;
        let keys = keys(&call);
        for (key, mode) in &keys {
            let line = self.lines.entry(key.clone()).or_default();
            match mode {
                Mode::Alone => line.alone.insert(seq),
                Mode::Together => line.together.insert(seq),
            };
        }
        if self.is_ready(seq, &keys) {
            self.ready.push_back(seq);
        }
        self.waiting.insert(seq, Waiting { call_id, call });
        self.under_way.insert(call_id, (seq, keys));
    }

    /// The next call that may be sent now.
    pub(crate) fn pop(&mut self) -> Option<(CallId, Call)> {
        if self.sent >= UNDER_WAY_MAX {
            return None;
        }
        let waiting = self.waiting.remove(&self.ready.pop_front()?)?;
        self.sent += 1;
        Some((waiting.call_id, waiting.call))
    }

    /// A call was answered, or failed for good.
    pub(crate) fn done(&mut self, call_id: CallId) {
        let Some((seq, keys)) = self.under_way.remove(&call_id) else {
            return;
        };
        self.sent -= 1;
        let mut candidates = BTreeSet::new();
        for (key, _) in &keys {
            let Some(line) = self.lines.get_mut(key) else {
                continue;
            };
            line.alone.remove(&seq);
            line.together.remove(&seq);
            if line.alone.is_empty() && line.together.is_empty() {
                self.lines.remove(key);
            } else {
                candidates.extend(line.heads());
            }
        }
        for seq in candidates {
            let Some(waiting) = self.waiting.get(&seq) else {
                continue;
            };
            let Some((_, keys)) = self.under_way.get(&waiting.call_id) else {
                continue;
            };
            // Those that were ready before stand in the queue already.
            if self.is_ready(seq, keys) && !self.ready.contains(&seq) {
                self.ready.push_back(seq);
            }
        }
    }

    /// True when nothing waits and nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    fn is_ready(&self, seq: u64, keys: &[(Key, Mode)]) -> bool {
        keys.iter().all(|(key, mode)| {
            self.lines
                .get(key)
                .is_none_or(|line| line.admits(seq, *mode))
        })
    }
}

// === impl Line ===

impl Line {
    fn admits(&self, seq: u64, mode: Mode) -> bool {
        let none_before = |set: &BTreeSet<u64>| set.first().is_none_or(|first| *first >= seq);
        match mode {
            Mode::Alone => none_before(&self.alone) && none_before(&self.together),
            Mode::Together => none_before(&self.alone),
        }
    }

    /// Calls that may have become ready: those before the first that wants to be alone, and it.
    fn heads(&self) -> Vec<u64> {
        let first_alone = self.alone.first().copied();
        let end = first_alone.unwrap_or(u64::MAX);
        self.together
            .range(..end)
            .copied()
            .chain(first_alone)
            .collect()
    }
}

// === helpers ===

fn keys(call: &Call) -> Vec<(Key, Mode)> {
    use Mode::{Alone, Together};
    let job = |job_id: &JobId| (Key::Job(job_id.clone()), Alone);
    let bundle = |bundle_id: &BundleId| (Key::Bundle(bundle_id.clone()), Alone);
    let on = |node_id: &NodeId| (Key::Node(node_id.clone()), Together);
    let node = |node_id: &NodeId| (Key::Node(node_id.clone()), Alone);
    match call {
        Call::CreateJob(it) | Call::UpdateJob(it, _) => vec![job(&it.job_id)],
        Call::DeleteJob(job_id) | Call::CompleteJob(job_id) => vec![job(job_id)],
        Call::StartJob(start) => vec![job(&start.job_id), on(&start.node_id)],
        Call::StartPreparedJob { key, node_id } | Call::StopJob { key, node_id, .. } => {
            vec![job(&key.job_id), on(node_id)]
        }
        Call::MarkJobFailed { job_id, .. } | Call::AbortMigration { job_id, .. } => {
            vec![job(job_id)]
        }
        Call::NotifyMigrationGetState { key, .. }
        | Call::NotifyMigrationCutoverReady { key, .. }
        | Call::NotifyMigrationCutoverApply { key, .. } => vec![job(&key.job_id)],
        // Without an id it is a new bundle each time.
        Call::CreateBundle(it) if it.bundle_id.is_empty() => Vec::new(),
        Call::CreateBundle(it) | Call::UpdateBundle { bundle: it, .. } => {
            vec![bundle(&it.bundle_id)]
        }
        Call::DeleteBundle(bundle_id)
        | Call::SetBundleStopTime { bundle_id, .. }
        | Call::StartBundleJob { bundle_id, .. }
        | Call::StopBundleJob { bundle_id, .. } => vec![bundle(bundle_id)],
        Call::CreateAwsNode(create) => vec![node(&create.node_id)],
        Call::CreateOciNode(create) => vec![node(&create.node_id)],
        Call::TerminateNode(node_id)
        | Call::DeregisterClusterNode(node_id)
        | Call::UpdatePhysicalNode { node_id, .. }
        | Call::SetNodeTags { node_id, .. }
        | Call::PrefetchImages { node_id, .. } => vec![node(node_id)],
        Call::KvCommit(commit) => vec![(Key::Namespace(commit.namespace.clone()), Alone)],
        Call::SetNodeIdleExpiry { node_id, .. } | Call::AdoptInstance { node_id, .. } => {
            vec![node(node_id)]
        }
        Call::SetClusterNodePool { node_id, .. } => vec![node(node_id)],
        Call::RotateClusterNodeToken(node_id) => vec![node(node_id)],
        Call::RenewBundleLease { bundle_id, .. } => vec![bundle(bundle_id)],
        Call::PauseLeases { .. } | Call::ResumeLeases { .. } => vec![(Key::Leases, Alone)],
        Call::AppendAuditEntry { .. } | Call::PruneAuditLog { .. } => vec![(Key::Audit, Alone)],
        Call::PublishDiscoveryFleet { .. }
        | Call::RotateDiscoveryTierSecret { .. }
        | Call::PublishAccessReplica(_)
        | Call::ReloadExternalConfig => vec![(Key::Fleet, Alone)],
        Call::RegisterClusterNode { node_name, .. } => {
            vec![(Key::Slot(node_name.clone()), Alone)]
        }
    }
}

#[cfg(test)]
mod tests;
