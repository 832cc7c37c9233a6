//! The engine's answers (PLACE-28, PLACE-30, RESIL-05).

use greenroom_types::pool::{CandidateInstanceType, LaunchMode};
use greenroom_types::{NodeId, PoolName, TierName};
use serde::{Deserialize, Serialize};

/// A failure domain that the copies are to keep apart (RESIL-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Domain {
    /// The node.
    #[serde(rename = "sameNode")]
    Node,
    /// The availability zone.
    #[serde(rename = "sameAz")]
    Az,
    /// The cloud.
    #[serde(rename = "sameCloud")]
    Cloud,
}

impl Domain {
    /// The word for it in a sentence.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Az => "zone",
            Self::Cloud => "cloud",
        }
    }
}

/// The two copies are less independent than asked for (RESIL-05).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Degraded {
    /// Forbidden domains that are shared all the same, in the order of [`Domain`].
    pub violated: Vec<Domain>,
    /// Both copies would sit on interruptible nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interruptible_primary: bool,
}

/// Why nothing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureReason {
    /// Every tier of every pool walked is exhausted (PLACE-28).
    NoCapacityInAnyPool,
}

impl FailureReason {
    /// The code as callers see it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoCapacityInAnyPool => "noCapacityInAnyPool",
        }
    }
}

/// Where a job goes (PLACE-30).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "kind"
)]
pub enum Decision {
    /// Onto a node that is there, or was already asked for.
    Place {
        /// The node.
        node: NodeId,
        /// Its pool.
        pool: PoolName,
        /// Its tier.
        tier: TierName,
        /// Device for the GPU share, if one was asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        gpu_index: Option<u32>,
        /// Set when the copies come closer than asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        degraded: Option<Degraded>,
    },
    /// Onto a node that is to be bought.
    Provision {
        /// The pool.
        pool: PoolName,
        /// The tier that buys.
        tier: TierName,
        /// The shape, as the tier declares it.
        shape: Box<CandidateInstanceType>,
        /// How it is paid for.
        launch_mode: LaunchMode,
        /// Device for the GPU share, if one was asked for (GPU-08).
        #[serde(skip_serializing_if = "Option::is_none")]
        gpu_index: Option<u32>,
        /// Set when the copies come closer than asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        degraded: Option<Degraded>,
    },
    /// Nowhere.
    Failure {
        /// Why.
        reason: FailureReason,
        /// Names of the pools walked.
        tried_pools: Vec<PoolName>,
    },
}

// === impl Decision ===

impl Decision {
    /// What the decision costs in independence, if anything.
    pub const fn degraded(&self) -> Option<&Degraded> {
        match self {
            Self::Place { degraded, .. } | Self::Provision { degraded, .. } => degraded.as_ref(),
            Self::Failure { .. } => None,
        }
    }

    /// Device chosen for the GPU share.
    pub const fn gpu_index(&self) -> Option<u32> {
        match self {
            Self::Place { gpu_index, .. } | Self::Provision { gpu_index, .. } => *gpu_index,
            Self::Failure { .. } => None,
        }
    }
}
