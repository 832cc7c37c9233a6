//! Why a decision came out as it did (PLACE-31): one attempt per tier walked, a reason for every node
//! that was left out, the full key of every node that was not. The words for people are made here
//! from the typed values, so that all tools say the same.

use std::fmt;

use greenroom_types::inventory::DiskRoom;
use greenroom_types::{NodeId, PoolName, TierName, tree};
use serde::{Deserialize, Serialize};

use crate::decision::Domain;
use crate::key::Key;
use crate::port::Port;

/// Everything that was looked at for one decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// Tier by tier; with two walks (PLACE-29) those of the first come first.
    pub attempts: Vec<Attempt>,
}

/// One tier of one walk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// The pool.
    pub pool: PoolName,
    /// The tier; none when the pool is not configured.
    pub tier: Option<TierName>,
    /// True in the first of two walks, which admits nothing in a forbidden domain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compliant_only: bool,
    /// Nodes considered (PLACE-03).
    pub candidates: usize,
    /// Nodes left out, by id.
    pub filtered: Vec<Filtered>,
    /// Nodes that would do, best first.
    pub survivors: Vec<Survivor>,
    /// How it ended.
    pub outcome: Outcome,
    /// The outcome in more words, where the name alone does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How one attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// A node was taken.
    Placed,
    /// A node is bought.
    Provisioned,
    /// No node will do, and the tier buys none, or none that would help.
    Exhausted,
    /// No shape of the tier is large enough.
    NoInstanceTypeFits,
    /// The tier has as many nodes as it may.
    AtMaxNodes,
    /// The tier waits after a failed create, or for its probe.
    ProvisionBackoff,
    /// A new node's zone is not known beforehand, or is the wrong one (INTRA-08).
    AzUnknown,
    /// The placement is pinned to a node.
    PinnedNoProvision,
    /// No such pool.
    PoolNotConfigured,
}

/// Why a node was left out, in the order in which it is looked at (PLACE-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// Another node is the target.
    NotTargetNode,
    /// It is in another pool.
    WrongPool,
    /// It is in another tier.
    WrongTier,
    /// It is excluded at the moment.
    RecoveryExcluded,
    /// It cannot be reached.
    Unreachable,
    /// It takes no new work.
    Cordoned,
    /// Its disk has too little free for new work.
    DiskNearlyFull,
    /// What runs services there does not answer.
    RuntimeUnavailable,
    /// It runs containers and the job is processes, or the other way round.
    WrongRuntime,
    /// It is kept for other templates.
    ReservedExclusively,
    /// It lacks a capability.
    InsufficientCapabilities,
    /// It has too few vCPUs free.
    InsufficientCapacity,
    /// It has too few cores free.
    InsufficientCores,
    /// A host port is taken.
    HostPortConflict,
    /// No device has the share.
    NoGpuFit,
    /// This job, or one there, wants the node for itself.
    Exclusivity,
    /// A rule among the jobs of the copy.
    IntraReplicaRule,
    /// It is not in the zone of the copy.
    IntraReplicaAz,
    /// It shares a forbidden domain with the other copy.
    ForbiddenDomain,
}

/// Why a node is excluded for now (PLACE-06).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Exclusion {
    /// It rejected several jobs.
    Unhealthy,
    /// It ended or was lost a moment ago.
    RecentlyFailed,
    /// It failed this job a moment ago.
    ForThisJob,
    /// The job is being moved away from it.
    MigrationSource,
}

/// Values behind a reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "kind"
)]
pub enum Detail {
    /// Which exclusion.
    Excluded {
        /// Why.
        why: Exclusion,
    },
    /// Its disk.
    Disk {
        /// What is free of it, and what must be.
        room: DiskRoom,
    },
    /// Runtimes.
    Runtime {
        /// What the job is made of.
        needed: String,
        /// What the node runs.
        runs: String,
    },
    /// vCPUs.
    Capacity {
        /// Asked for.
        needed: f64,
        /// Free.
        free: f64,
    },
    /// Cores.
    Cores {
        /// Asked for.
        needed: u64,
        /// Free.
        free: u64,
    },
    /// A capability.
    Capability {
        /// Its name.
        name: String,
        /// Asked for under that name.
        needed: u64,
        /// Free, whatever its attributes.
        free: u64,
        /// Attributes it must have.
        attributes: Vec<String>,
    },
    /// A host port.
    Port {
        /// The port.
        port: Port,
        /// Who has it.
        holder: String,
    },
    /// A GPU share.
    Gpu {
        /// Asked for.
        needed: f64,
        /// Model asked for, empty for any.
        model: String,
        /// Largest free share of such a device.
        free: f64,
    },
    /// A job that stands in the way.
    Job {
        /// Its name, or its id when it is of another bundle.
        job: String,
    },
    /// Templates it is kept for.
    Templates {
        /// Their names.
        names: Vec<String>,
    },
    /// Its zone and those of the copy.
    Az {
        /// The node's, empty when unknown.
        az: String,
        /// The copy's.
        wanted: Vec<String>,
    },
    /// Domains that are shared.
    Domains {
        /// Which.
        violated: Vec<Domain>,
    },
}

/// A node that was left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Filtered {
    /// The node.
    pub node: NodeId,
    /// Why.
    pub reason: Reason,
    /// Values behind it, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
}

/// A node that would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Survivor {
    /// Its key; the node is in it.
    pub key: Key,
    /// Device it would give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_index: Option<u32>,
}

// === impl Reason ===

impl Reason {
    /// The name in a trace (PLACE-05).
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotTargetNode => "notTargetNode",
            Self::WrongPool => "wrongPool",
            Self::WrongTier => "wrongTier",
            Self::RecoveryExcluded => "recoveryExcluded",
            Self::Unreachable => "unreachable",
            Self::Cordoned => "cordoned",
            Self::DiskNearlyFull => "diskNearlyFull",
            Self::RuntimeUnavailable => "runtimeUnavailable",
            Self::WrongRuntime => "wrongRuntime",
            Self::ReservedExclusively => "reservedExclusively",
            Self::InsufficientCapabilities => "insufficientCapabilities",
            Self::InsufficientCapacity => "insufficientCapacity",
            Self::InsufficientCores => "insufficientCores",
            Self::HostPortConflict => "hostPortConflict",
            Self::NoGpuFit => "noGpuFit",
            Self::Exclusivity => "exclusivity",
            Self::IntraReplicaRule => "intraReplicaRule",
            Self::IntraReplicaAz => "intraReplicaAz",
            Self::ForbiddenDomain => "forbiddenDomain",
        }
    }

    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::NotTargetNode => "not the node asked for",
            Self::WrongPool => "in another pool",
            Self::WrongTier => "in another tier",
            Self::RecoveryExcluded => "left out for now",
            Self::Unreachable => "cannot be reached",
            Self::Cordoned => "cordoned",
            Self::DiskNearlyFull => "disk nearly full",
            Self::RuntimeUnavailable => "its container engine does not answer",
            Self::WrongRuntime => "another runtime",
            Self::ReservedExclusively => "kept for other templates",
            Self::InsufficientCapabilities => "lacks a capability",
            Self::InsufficientCapacity => "not enough free capacity",
            Self::InsufficientCores => "not enough free cores",
            Self::HostPortConflict => "a host port is taken",
            Self::NoGpuFit => "no GPU has the share free",
            Self::Exclusivity => "not to be shared",
            Self::IntraReplicaRule => "against a rule of the bundle",
            Self::IntraReplicaAz => "not in the zone of this copy",
            Self::ForbiddenDomain => "too close to the other copy",
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// The outcome in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Placed => "taken from this tier",
            Self::Provisioned => "a new node is bought in this tier",
            Self::Exhausted => "nothing more to try in this tier",
            Self::NoInstanceTypeFits => "no instance type of this tier is large enough",
            Self::AtMaxNodes => "the tier has as many nodes as it may",
            Self::ProvisionBackoff => "the tier waits after a failed purchase",
            Self::AzUnknown => "the zone of a new node is not known to be the right one",
            Self::PinnedNoProvision => "pinned to a node, nothing is bought",
            Self::PoolNotConfigured => "no such pool is configured",
        }
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Excluded { why } => f.write_str(match why {
                Exclusion::Unhealthy => "it rejected several jobs",
                Exclusion::RecentlyFailed => "it ended or was lost a moment ago",
                Exclusion::ForThisJob => "it failed this job a moment ago",
                Exclusion::MigrationSource => "the job is moving away from it",
            }),
            Self::Disk { room } => write!(f, "{room}"),
            Self::Runtime { needed, runs } => write!(f, "needs {needed}, runs {runs}"),
            Self::Capacity { needed, free } => {
                write!(f, "needs {} vCPU, {} free", Plain(*needed), Plain(*free))
            }
            Self::Cores { needed, free } => write!(f, "needs {needed} cores, {free} free"),
            Self::Capability {
                name,
                needed,
                free,
                attributes,
            } => {
                write!(f, "needs {needed} x {name}")?;
                if !attributes.is_empty() {
                    write!(f, " with {}", attributes.join(", "))?;
                }
                write!(f, ", {free} free")
            }
            Self::Port { port, holder } => write!(f, "{port} is held by {holder}"),
            Self::Gpu {
                needed,
                model,
                free,
            } => {
                write!(f, "needs {} of ", Plain(*needed))?;
                if model.is_empty() {
                    f.write_str("a device")?;
                } else {
                    write!(f, "a {model}")?;
                }
                write!(f, ", {} free", Plain(*free))
            }
            Self::Job { job } => write!(f, "because of {job}"),
            Self::Templates { names } => write!(f, "kept for {}", names.join(", ")),
            Self::Az { az, wanted } => {
                let az = if az.is_empty() { "unknown" } else { az };
                write!(f, "zone {az}, the copy is in {}", wanted.join(", "))
            }
            Self::Domains { violated } => {
                for (at, domain) in violated.iter().enumerate() {
                    f.write_str(if at == 0 { "same " } else { ", same " })?;
                    f.write_str(domain.word())?;
                }
                Ok(())
            }
        }
    }
}

/// A number without the noise of binary fractions.
struct Plain(f64);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = (self.0 * 1e6).round() / 1e6;
        // Takes the sign off a negative zero.
        f.write_str(&tree::number(rounded + 0.0))
    }
}

impl fmt::Display for Filtered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.reason.words())?;
        match &self.detail {
            Some(detail) => write!(f, " ({detail})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Trace {
    /// One line per tier and per node, except nodes of other pools and tiers, which are only counted
    /// in the tier's line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for attempt in &self.attempts {
            write!(f, "{}", attempt.pool)?;
            if let Some(tier) = &attempt.tier {
                write!(f, " / {tier}")?;
            }
            if attempt.compliant_only {
                f.write_str(", apart from the other copy")?;
            }
            let elsewhere = attempt.filtered.iter().filter(|node| node.is_elsewhere());
            write!(
                f,
                ": {}; {} nodes looked at, {} of them elsewhere",
                attempt.outcome.words(),
                attempt.candidates,
                elsewhere.count()
            )?;
            if let Some(note) = &attempt.note {
                write!(f, " ({note})")?;
            }
            writeln!(f)?;
            for (at, survivor) in attempt.survivors.iter().enumerate() {
                let node = &survivor.key.node;
                let taken = at == 0 && attempt.outcome == Outcome::Placed;
                writeln!(f, "  {node}: {}", if taken { "chosen" } else { "would do" })?;
            }
            for node in attempt.filtered.iter().filter(|node| !node.is_elsewhere()) {
                writeln!(f, "  {node}")?;
            }
        }
        Ok(())
    }
}

impl Filtered {
    const fn is_elsewhere(&self) -> bool {
        matches!(self.reason, Reason::WrongPool | Reason::WrongTier)
    }
}
