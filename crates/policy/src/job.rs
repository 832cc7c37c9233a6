//! What the policy remembers of one job: what the Manager shows of it, where it belongs, and what
//! keeps it from being placed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use greenroom_placement::{JobRef, Needs};
use greenroom_types::job::{JobInfo, JobState, JobWithHistory};
use greenroom_types::node::ServiceRestarts;
use greenroom_types::{JobId, MigrationId, Mono, NodeId, Role, StartId, Wall};
use serde::{Deserialize, Serialize};

use crate::effect::PlacementInfo;
use crate::event::CallId;
use crate::lease_wait::HeldBack;
use crate::pending::Entry;

/// One job. What few jobs have, or only for a while, is boxed (PERF-03).
#[derive(Clone, Debug)]
pub(crate) struct JobRecord {
    /// The last the stream said of it. Written by the stream alone.
    pub(crate) seen: Arc<JobWithHistory>,
    /// When it was first announced, as a place in line (PEND-04).
    pub(crate) order: u64,
    /// Its place in its bundle; none: not placed by the policy (BUNDLE-07).
    pub(crate) spot: Option<JobRef>,
    /// Where it belongs; none: unbound.
    pub(crate) binding: Option<Binding>,
    /// Where its migration will take it, once that is placed.
    pub(crate) target: Option<Box<Binding>>,
    /// The migration that claims it.
    pub(crate) migration: Option<MigrationId>,
    /// The last decision that found a place (BIND-05).
    pub(crate) record: Option<Box<PlacementInfo>>,
    /// What the worker said last of the start of its binding.
    pub(crate) news: Option<Box<JobInfo>>,
    /// Restarts of its services by the worker of its binding, as far as they were heard.
    pub(crate) service_restarts: ServiceRestarts,
    /// How it is placed next (PEND-05).
    pub(crate) cause: Cause,
    /// Its own timer that it waits for, besides its schedule (PEND-06).
    pub(crate) wait: Option<Wait>,
    /// End of the in-flight gate (LAUNCH-03).
    pub(crate) gate: Option<Mono>,
    /// Last recovery attempt that sent something (RECOV-09).
    pub(crate) recovered_at: Option<Mono>,
    /// Until when each counted trigger counts, oldest first (CEIL-01).
    pub(crate) restarts: VecDeque<Mono>,
    /// Verdict of this instance (CEIL-12).
    pub(crate) verdict: Option<Box<Verdict>>,
    /// Nodes excluded for this job alone, and until when (HEALTH-10).
    pub(crate) excluded: BTreeMap<NodeId, Mono>,
    /// Nodes on which an instance of it is still ending (RECOV-08). Follows from `seen` and `strays`.
    pub(crate) remains: BTreeSet<NodeId>,
    /// With what its sides were bound that have left a node in service: what is left of them there holds
    /// that, whatever the job is defined with by now (BUNDLE-11).
    pub(crate) left: Vec<Left>,
    /// Node of one of them that holds the key which a fresh instance would wear: no start is taken
    /// before it is gone.
    pub(crate) key_holder: Option<NodeId>,
    /// Since when a purchase is put off because its remains are about to go (RECOV-17).
    pub(crate) awaits_remains: Option<Mono>,
    /// The last instance that its worker refused, and how far the history went then: the refusal is
    /// told before the history shows it.
    pub(crate) refused: Option<Box<(Role, NodeId, u64)>>,
    /// Start of an instance that a restored record does not know, once that was told (BIND-09).
    pub(crate) unrecorded: Option<Box<StartId>>,
    /// Somebody stopped its instance; it stays stopped until it is defined or started anew.
    pub(crate) resting: bool,
    /// Instances that were told to stop, strays and sides of lost migrations, and when (BIND-08).
    pub(crate) strays: BTreeMap<(Role, NodeId), Mono>,
    /// Its entry among the pending jobs.
    pub(crate) pending: Option<Box<Entry>>,
}

/// Where a job belongs, from the decision on (BIND-01, BIND-02).
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    /// Tells this binding from those before and after it (TIME-02).
    pub(crate) seq: u64,
    pub(crate) node_id: NodeId,
    pub(crate) role: Role,
    pub(crate) state: BindingState,
    /// How it was placed, so that it can be placed again in the same way.
    pub(crate) cause: Cause,
    pub(crate) decided_at: Mono,
    /// Newest entry of the history when it was made: only later ones are about it (RECOV-03).
    pub(crate) since: u64,
    /// Its first call was answered and counted (LAUNCH-07).
    pub(crate) counted: bool,
    /// The start that is under way.
    pub(crate) start: Option<CallId>,
    /// An older instance of the key is still ending there: start again when it has (LAUNCH-05).
    pub(crate) start_after_stop: bool,
    /// The Manager holds its start back for the lease of an earlier instance (LAUNCH-13).
    pub(crate) held_back: Option<Box<HeldBack>>,
    /// Its instance is being stopped by request; no failure from here on (DEC-17).
    pub(crate) ending: bool,
    /// Its node is ended after it (BUNDLE-13).
    pub(crate) single_use: bool,
    pub(crate) gpu_index: Option<u32>,
}

/// What an instance holds that is no longer the job's: what it was bound with, or where it never was bound
/// by this policy, what the job was defined with when it was seen, and a share of every device.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    pub(crate) node_id: NodeId,
    pub(crate) needs: Arc<Needs>,
    pub(crate) gpu_index: Option<u32>,
}

/// How far a binding has come (BIND-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BindingState {
    /// Decided; the Manager has not accepted a start yet.
    Placing,
    /// The Manager accepted the start.
    Placed,
    /// Reported as running.
    Running,
}

/// Why a job is placed; a pending recovery stays one (DEC-43).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// Not after a failure.
    #[default]
    Launch,
    /// After the loss or failure of a runtime.
    Recovery,
}

/// A timer that alone decides when the job is tried again (PEND-06).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// LAUNCH-08.
    StartRetry,
    /// RECOV-09.
    Spacing,
}

/// A verdict on its way to the Manager, or there (CEIL-12, CEIL-13).
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) reason: String,
    pub(crate) accepted: bool,
    /// The Manager has shown it with the job, so it is the Manager's to clear from here on.
    pub(crate) echoed: bool,
    pub(crate) sent_at: Mono,
}

/// Where a job stands with regard to placement: what it waits for, or why it is not placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "kind"
)]
pub enum Standing {
    /// It has a node.
    Bound,
    /// It lacks requirements or tags: not placed by the policy (BUNDLE-07).
    NotPlacedByPolicy,
    /// It is completed or failed for good.
    Over,
    /// It has a verdict.
    Terminal {
        /// The reason in it.
        reason: String,
    },
    /// It waits to be started by hand (BUNDLE-09).
    Dormant,
    /// Somebody stopped it; it stays stopped until it is defined or started anew.
    StoppedByRequest,
    /// Its bundle is not known yet (LAUNCH-11).
    BundleUnknown,
    /// Its bundle has no job of that name.
    SpecUnknown,
    /// Its bundle is being deleted (BUNDLE-10).
    BundleNotLive,
    /// Its bundle is broken (CEIL-07).
    BundleBroken {
        /// Why.
        reason: String,
    },
    /// Its start lies ahead (SCHED-01).
    Scheduled {
        /// Start less lead.
        at: Wall,
    },
    /// A start failed; it is tried again in a moment (LAUNCH-08).
    StartRetry,
    /// Recoveries keep their distance (RECOV-09).
    RecoverySpacing,
    /// To be placed; if it is not, nothing had room (LAUNCH-09).
    Pending,
}

// === impl JobRecord ===

impl JobRecord {
    pub(crate) fn new(seen: Arc<JobWithHistory>, order: u64) -> Self {
        Self {
            spot: spot_of(&seen),
            seen,
            order,
            binding: None,
            target: None,
            migration: None,
            record: None,
            news: None,
            service_restarts: ServiceRestarts::default(),
            cause: Cause::Launch,
            wait: None,
            gate: None,
            recovered_at: None,
            restarts: VecDeque::new(),
            verdict: None,
            excluded: BTreeMap::new(),
            remains: BTreeSet::new(),
            left: Vec::new(),
            key_holder: None,
            awaits_remains: None,
            refused: None,
            unrecorded: None,
            resting: false,
            strays: BTreeMap::new(),
            pending: None,
        }
    }

    pub(crate) fn job_id(&self) -> &JobId {
        &self.seen.job.job_id
    }

    /// The verdict in force, the Manager's or this instance's own.
    pub(crate) fn terminal(&self) -> Option<&str> {
        let own = self.verdict.as_ref().map(|verdict| &verdict.reason);
        let theirs = self.seen.terminal_state.as_ref().map(|state| &state.reason);
        own.or(theirs).map(String::as_str)
    }

    /// True while it may have a runtime (RECOV-04).
    pub(crate) fn may_run(&self) -> bool {
        matches!(self.seen.state, JobState::Pre | JobState::Active) && self.terminal().is_none()
    }

    /// True for the key of its binding or of its migration's target.
    pub(crate) fn is_side(&self, key: &(Role, NodeId)) -> bool {
        let mut sides = self.binding.iter().chain(self.target.as_deref());
        sides.any(|side| side.role == key.0 && side.node_id == key.1)
    }

    /// The slot of its copy, which fresh instances wear as role (BIND-03).
    pub(crate) fn slot(&self) -> Role {
        Role::of_replica(self.spot.as_ref().map_or(0, |spot| spot.replica_index))
    }
}

/// The job's place in its bundle: all three tags, and requirements (BUNDLE-07, BUNDLE-08).
pub(crate) fn spot_of(job: &JobWithHistory) -> Option<JobRef> {
    job.job.auto_placement.as_ref()?;
    let (bundle_id, replica_index, job_name) = job.job.bundle_place()?;
    Some(JobRef::new(bundle_id, replica_index, job_name))
}
