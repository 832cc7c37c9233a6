//! What a step does: operator actions (SCEN-07), world events (SCEN-08), and holding back what the
//! world would answer (SCEN-09). One variant per key of the format.

use std::collections::BTreeMap;

use greenroom_policy::migration::Strategy;
use greenroom_types::bundle::Bundle;
use greenroom_types::node::{InterruptionKind, NodeStoppingReason, RejectionCode};
use greenroom_types::{BundleId, JobName, Role, TemplateName, TierName, tree};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

use super::fleet::{InventoryChange, NodeSpec};
use super::names::{InstanceRef, JobPath, NodeRef};
use super::span::{Instant, Signed, Span};

/// What one step does.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Action {
    /// Operator: submit a bundle.
    CreateBundle(Box<Bundle>),
    /// Operator: replace a bundle.
    UpdateBundle(Box<Bundle>),
    /// Operator: delete a bundle.
    DeleteBundle(BundleId),
    /// Operator: wake a dormant job.
    StartBundleJob(JobPath),
    /// Operator: make a job dormant.
    StopBundleJob(JobPath),
    /// Operator: set a stop time, or without `stopAt` clear it.
    SetBundleStopTime {
        /// The bundle.
        bundle: BundleId,
        /// The time.
        #[serde(default)]
        stop_at: Option<Instant>,
    },
    /// Operator: keep work off a node.
    Cordon(NodeRef),
    /// Operator: allow work again.
    Uncordon(NodeRef),
    /// Operator: empty a node.
    Drain {
        /// The node.
        node: NodeRef,
        /// Time for it.
        #[serde(default)]
        timeout: Option<Span>,
        /// Terminate at the end whatever is left.
        #[serde(default)]
        force: bool,
        /// For all, or by job.
        #[serde(default)]
        strategy: Strategies,
        /// What is on the air leaves by a handover or not at all.
        #[serde(default)]
        for_upgrade: bool,
    },
    /// Operator: cordon and terminate.
    Evict(NodeRef),
    /// Operator: terminate.
    Terminate(NodeRef),
    /// Operator: act on an interruption.
    Interrupt {
        /// The node.
        node: NodeRef,
        /// Kind.
        kind: InterruptionKind,
        /// When it goes.
        #[serde(default)]
        deadline: Option<Instant>,
        /// How its jobs change over: for all, or by job.
        #[serde(default)]
        strategy: Strategies,
    },
    /// Operator: move a running job.
    Migrate {
        /// The job.
        job: JobPath,
        /// How.
        #[serde(default)]
        strategy: Option<Strategy>,
        /// Where to.
        #[serde(default)]
        target: Option<NodeRef>,
        /// Admits reserved spares.
        #[serde(default)]
        override_reservation: bool,
    },
    /// Operator: give a migration up.
    AbortMigration {
        /// The job.
        job: JobPath,
        /// Why.
        #[serde(default)]
        reason: String,
    },
    /// Operator: replace the list of spares.
    UpdateHotSpares(Vec<Value>),
    /// Operator: change one spare; what is not given stays.
    UpdateHotSpareNode {
        /// The spare.
        node: NodeRef,
        /// Templates whose images it is to hold.
        #[serde(default)]
        warm_for: Option<Vec<TemplateName>>,
        /// Templates that it attracts.
        #[serde(default)]
        reserved_for: Option<Vec<TemplateName>>,
        /// Refuses all others.
        #[serde(default)]
        exclusive: Option<bool>,
    },
    /// Operator: replace image lists.
    SetTemplateImages(BTreeMap<TemplateName, Vec<String>>),
    /// Operator: ask where a job would go.
    DryRun(DryRun),
    /// Operator: ask whether a bundle would be admitted.
    Admit(Box<Bundle>),
    /// Operator: close the policy.
    Close(Yes),
    /// Operator: close it and run a fresh one.
    Restart(Yes),

    /// World: a node appears and starts.
    NodeJoins(Box<NodeSpec>),
    /// World: a stopped node starts again under its id.
    NodeReturns {
        /// The node.
        node: NodeRef,
        /// What it still runs.
        #[serde(default)]
        jobs: Vec<JobPath>,
    },
    /// World: a node begins to stop.
    NodeStopping {
        /// The node.
        node: NodeRef,
        /// Why; absent: its worker fell silent.
        #[serde(default)]
        reason: Option<NodeStoppingReason>,
    },
    /// World: a node is gone.
    NodeStopped(NodeRef),
    /// World: a node dies: stopping at once, instances lost at once, stopped after the keepalive.
    NodeDies(NodeRef),
    /// World: a node's picture of itself changes.
    Inventory(Box<InventoryChange>),
    /// World: somebody edits a node's tags.
    SetTags {
        /// The node.
        node: NodeRef,
        /// Values; null takes a tag away.
        tags: BTreeMap<String, Option<String>>,
    },
    /// World: the provider announces an interruption.
    Notice {
        /// The node.
        node: NodeRef,
        /// Kind.
        kind: InterruptionKind,
        /// When it goes.
        #[serde(default)]
        deadline: Option<Instant>,
    },
    /// World: a job's instance fails.
    JobFails {
        /// The job.
        job: JobPath,
        /// Why.
        #[serde(default)]
        reason: String,
    },
    /// World: a worker refuses a start.
    JobRejected {
        /// The job.
        job: JobPath,
        /// The node, if it is not that of the binding.
        #[serde(default)]
        node: Option<NodeRef>,
        /// The role, if it is not that of the binding.
        #[serde(default)]
        role: Option<Role>,
        /// The worker's words.
        #[serde(default)]
        reason: String,
        /// No node could run it.
        #[serde(default)]
        invalid_spec: bool,
        /// Another code than CAPACITY.
        #[serde(default)]
        code: Option<RejectionCode>,
    },
    /// World: an instance that is being made is there, and does not run yet.
    JobPrepared(InstanceRef),
    /// World: a starting instance runs now.
    JobRunning(InstanceRef),
    /// World: an instance that was told to stop, or what is left of one that failed, is gone.
    JobStopped(InstanceRef),
    /// World: somebody else than the policy stops an instance.
    StopJob(InstanceRef),
    /// World: somebody else than the policy gives a job its verdict.
    MarkJobFailed {
        /// The job.
        job: JobPath,
        /// Why.
        #[serde(default)]
        reason: String,
    },
    /// World: an instance ends by itself.
    JobCompletes(JobPath),
    /// World: the Manager repeats its last JobUpdated.
    Duplicate(JobPath),
    /// World: a pull settles.
    ImagePulled {
        /// The node.
        node: NodeRef,
        /// The image.
        #[serde(rename = "ref")]
        reference: String,
        /// Whether it is held now.
        #[serde(default = "yes")]
        ok: bool,
    },
    /// World: a side of a migration speaks.
    Signal {
        /// The job.
        job: JobPath,
        /// `source` or `target`.
        side: Side,
        /// What it says.
        kind: SignalKind,
        /// Payload as text.
        #[serde(default)]
        payload: String,
    },
    /// World: the next creates in a tier fail.
    CreateFails {
        /// The tier.
        tier: TierName,
        /// How many.
        next: u32,
        /// Only that of this node.
        #[serde(default)]
        node: Option<NodeRef>,
        /// The provider's code.
        #[serde(default = "no_stock")]
        error: String,
        /// Whether the call or its outcome fails.
        #[serde(default)]
        when: When,
        /// How long the refusal of a call takes.
        #[serde(default)]
        after: Span,
    },
    /// World: the next starts on a node are refused.
    StartFails {
        /// The node.
        node: NodeRef,
        /// How many.
        next: u32,
        /// Only those of this job.
        #[serde(default)]
        job: Option<JobPath>,
        /// How long the refusal takes.
        #[serde(default)]
        after: Span,
    },
    /// World: the wall clock is set.
    Clock {
        /// By how much.
        wall_jump: Signed,
    },
    /// World: the policy's stream breaks.
    Disconnect(Yes),
    /// World: a fresh policy connects.
    Connect(Yes),
    /// World: a worker is cut off from the Manager.
    Partition(NodeRef),
    /// World: it is no longer.
    Heal(NodeRef),

    /// Answers of these kinds are kept back.
    Hold(Vec<HoldKind>),
    /// What was kept back is delivered.
    Release(Vec<HoldKind>),
}

/// A question where a job would go.
#[derive(Clone, Debug, PartialEq)]
pub struct DryRun {
    /// The bundle.
    pub bundle: BundleId,
    /// The copy.
    pub replica: u32,
    /// The job; absent: the first.
    pub job: Option<JobName>,
}

/// How the jobs of a node change over: all alike, or each in its way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strategies {
    /// For those that have none of their own.
    pub all: Option<Strategy>,
    /// For single jobs.
    pub by_job: BTreeMap<JobPath, Strategy>,
    /// It stands in the file.
    pub written: bool,
}

/// The word `true`.
#[derive(Clone, Copy, Debug)]
pub struct Yes;

/// When a create fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum When {
    /// The call is answered with the error.
    Call,
    /// CREATE_FAILED follows 2 s after the answer.
    #[default]
    Later,
}

/// A side of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Side {
    /// Where the job was.
    Source,
    /// Where it goes.
    Target,
}

/// What a side of a migration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SignalKind {
    /// The source's state.
    State,
    /// The source refuses.
    Refuse,
    /// The target is ready.
    Ready,
    /// The source ended its output.
    StoppedOutput,
    /// The target took over.
    Applied,
    /// A side gave up.
    Aborted,
}

/// What the world can be kept from answering by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum HoldKind {
    /// The provider's word that a machine runs.
    NodeBooting,
    /// The hello of a worker that comes up.
    NodeStarted,
    /// The end of a node that was told to end.
    NodeStopped,
    /// Pictures of nodes.
    Inventory,
    /// Reports that an instance runs.
    JobRunning,
    /// Reports that an instance is gone.
    JobStopped,
    /// Reports that an instance is prepared.
    Prepared,
    /// Signals of migrations.
    MigrationSignals,
    /// Outcomes of pulls.
    ImagePulls,
    /// The provider's word that a create failed.
    CreateOutcome,
}

const fn yes() -> bool {
    true
}

fn no_stock() -> String {
    "InsufficientInstanceCapacity".to_owned()
}

// === impl Action ===

impl Action {
    /// Every key that names an action, in the order of the specification.
    pub const KEYS: [&'static str; 49] = [
        "createBundle",
        "updateBundle",
        "deleteBundle",
        "startBundleJob",
        "stopBundleJob",
        "setBundleStopTime",
        "cordon",
        "uncordon",
        "drain",
        "evict",
        "terminate",
        "interrupt",
        "migrate",
        "abortMigration",
        "updateHotSpares",
        "updateHotSpareNode",
        "setTemplateImages",
        "dryRun",
        "admit",
        "close",
        "restart",
        "nodeJoins",
        "nodeReturns",
        "nodeStopping",
        "nodeStopped",
        "nodeDies",
        "inventory",
        "setTags",
        "notice",
        "jobFails",
        "jobRejected",
        "jobPrepared",
        "jobRunning",
        "jobStopped",
        "stopJob",
        "markJobFailed",
        "jobCompletes",
        "duplicate",
        "imagePulled",
        "signal",
        "createFails",
        "startFails",
        "clock",
        "disconnect",
        "connect",
        "partition",
        "heal",
        "hold",
        "release",
    ];

    /// The key that names this action.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::CreateBundle(_) => "createBundle",
            Self::UpdateBundle(_) => "updateBundle",
            Self::DeleteBundle(_) => "deleteBundle",
            Self::StartBundleJob(_) => "startBundleJob",
            Self::StopBundleJob(_) => "stopBundleJob",
            Self::SetBundleStopTime { .. } => "setBundleStopTime",
            Self::Cordon(_) => "cordon",
            Self::Uncordon(_) => "uncordon",
            Self::Drain { .. } => "drain",
            Self::Evict(_) => "evict",
            Self::Terminate(_) => "terminate",
            Self::Interrupt { .. } => "interrupt",
            Self::Migrate { .. } => "migrate",
            Self::AbortMigration { .. } => "abortMigration",
            Self::UpdateHotSpares(_) => "updateHotSpares",
            Self::UpdateHotSpareNode { .. } => "updateHotSpareNode",
            Self::SetTemplateImages(_) => "setTemplateImages",
            Self::DryRun(_) => "dryRun",
            Self::Admit(_) => "admit",
            Self::Close(_) => "close",
            Self::Restart(_) => "restart",
            Self::NodeJoins(_) => "nodeJoins",
            Self::NodeReturns { .. } => "nodeReturns",
            Self::NodeStopping { .. } => "nodeStopping",
            Self::NodeStopped(_) => "nodeStopped",
            Self::NodeDies(_) => "nodeDies",
            Self::Inventory(_) => "inventory",
            Self::SetTags { .. } => "setTags",
            Self::Notice { .. } => "notice",
            Self::JobFails { .. } => "jobFails",
            Self::JobRejected { .. } => "jobRejected",
            Self::JobPrepared(_) => "jobPrepared",
            Self::JobRunning(_) => "jobRunning",
            Self::JobStopped(_) => "jobStopped",
            Self::StopJob(_) => "stopJob",
            Self::MarkJobFailed { .. } => "markJobFailed",
            Self::JobCompletes(_) => "jobCompletes",
            Self::Duplicate(_) => "duplicate",
            Self::ImagePulled { .. } => "imagePulled",
            Self::Signal { .. } => "signal",
            Self::CreateFails { .. } => "createFails",
            Self::StartFails { .. } => "startFails",
            Self::Clock { .. } => "clock",
            Self::Disconnect(_) => "disconnect",
            Self::Connect(_) => "connect",
            Self::Partition(_) => "partition",
            Self::Heal(_) => "heal",
            Self::Hold(_) => "hold",
            Self::Release(_) => "release",
        }
    }

    /// True for what an operator does, which the product may refuse.
    pub const fn is_operator(&self) -> bool {
        matches!(
            self,
            Self::CreateBundle(_)
                | Self::UpdateBundle(_)
                | Self::DeleteBundle(_)
                | Self::StartBundleJob(_)
                | Self::StopBundleJob(_)
                | Self::SetBundleStopTime { .. }
                | Self::Cordon(_)
                | Self::Uncordon(_)
                | Self::Drain { .. }
                | Self::Evict(_)
                | Self::Terminate(_)
                | Self::Interrupt { .. }
                | Self::Migrate { .. }
                | Self::AbortMigration { .. }
                | Self::UpdateHotSpares(_)
                | Self::UpdateHotSpareNode { .. }
                | Self::SetTemplateImages(_)
                | Self::DryRun(_)
                | Self::Admit(_)
                | Self::Close(_)
                | Self::Restart(_)
        )
    }
}

// === impl Yes ===

impl<'de> Deserialize<'de> for Yes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if bool::deserialize(deserializer)? {
            Ok(Self)
        } else {
            Err(de::Error::custom("write true, or leave the step out"))
        }
    }
}

// === impl Strategies ===

impl Strategies {
    /// A mapping by job was written, and names none.
    pub fn is_of_none(&self) -> bool {
        self.by_job.is_empty() && self.all.is_none() && self.written
    }
}

impl<'de> Deserialize<'de> for Strategies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            one @ Value::String(_) => Ok(Self {
                all: Some(tree::nested(&one)?),
                by_job: BTreeMap::new(),
                written: true,
            }),
            other => Ok(Self {
                all: None,
                by_job: tree::nested(&other)?,
                written: true,
            }),
        }
    }
}

// === impl DryRun ===

impl DryRun {
    /// The job, if it is named.
    pub fn path(&self) -> Option<JobPath> {
        Some(JobPath {
            bundle_id: self.bundle.clone(),
            replica_index: self.replica,
            job_name: self.job.clone()?,
        })
    }
}

impl<'de> Deserialize<'de> for DryRun {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Written {
            bundle: BundleId,
            #[serde(default)]
            replica: u32,
            #[serde(default)]
            job: Option<JobName>,
        }
        match Value::deserialize(deserializer)? {
            Value::String(text) => {
                let path: JobPath = text.parse().map_err(de::Error::custom)?;
                Ok(Self {
                    bundle: path.bundle_id,
                    replica: path.replica_index,
                    job: Some(path.job_name),
                })
            }
            other => {
                let written: Written = tree::nested(&other)?;
                Ok(Self {
                    bundle: written.bundle,
                    replica: written.replica,
                    job: written.job,
                })
            }
        }
    }
}
