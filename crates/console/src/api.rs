//! What goes over the wire: requests and answers as types, for the server and the client alike.
//! What the policy already has a type for is sent as it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_placement::{Decision, Trace};
use greenroom_policy::Report;
use greenroom_policy::effect::{MirrorState, NodeView};
use greenroom_policy::getters::PendingPlacement;
use greenroom_policy::purchases::TierTrouble;
use greenroom_policy::settings::Fault;
use greenroom_types::bundle::{Bundle, BundleStatus};
use greenroom_types::id::{JobId, JobName};
use greenroom_types::inventory::NodeInventory;
use serde::{Deserialize, Serialize};

/// Code of the refusal while no instance has run yet and nothing is known to be wrong.
pub const STARTING: &str = "starting";
/// Code of the refusal while the Manager's snapshot is being received.
pub const HYDRATING: &str = "hydrating";

/// How the control plane stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Whether questions are answered and calls are taken.
    pub phase: Phase,
    /// Why there is no instance, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether it is the one that acts (ACTIVE).
    #[serde(default)]
    pub seat: SeatState,
}

/// Whether a control plane acts, where there may be several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "role")]
pub enum SeatState {
    /// No other is expected.
    #[default]
    Alone,
    /// It waits while another acts.
    Standby {
        /// Name of the active one, empty while there is none or none is known.
        active: String,
        /// Where its API is.
        url: String,
    },
    /// It acts.
    Active {
        /// How often the seat was taken so far, by whomever.
        turn: u64,
    },
}

/// Phase of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// No instance runs; the Manager may be away.
    Waiting,
    /// The Manager's snapshot is being received.
    Hydrating,
    /// In service.
    Live,
    /// The instance is over and the next one has not begun.
    Closed,
}

/// Where a job is and why, or what it waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// As data.
    pub report: Report,
    /// In plain words, several lines.
    pub text: String,
}

/// A question to the engine: where would this job go now? The bundle is given, or named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PlaceRequest {
    /// A bundle that need not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<Bundle>,
    /// A bundle that exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle_id: Option<String>,
    /// The copy, from 0.
    pub replica: u32,
    /// The job; absent: the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobName>,
}

/// What the engine said; nothing was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placed {
    /// Where the job would go.
    pub decision: Decision,
    /// Everything that was looked at.
    pub trace: Trace,
    /// In plain words, several lines.
    pub text: String,
}

/// A bundle to be looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleRequest {
    /// The bundle; it need not exist.
    pub bundle: Bundle,
}

/// Jobs without a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pending {
    /// Those that wait for their time, earliest first.
    pub scheduled: Vec<PendingPlacement>,
    /// Those that wait to be started by hand, by id (BUNDLE-09).
    pub dormant: Vec<JobId>,
    /// The others that are not over, by id; `why` tells what each waits for.
    pub unplaced: Vec<JobId>,
    /// Of those, the ones for which a node could not be bought, and why (PROV-15).
    pub not_bought: BTreeMap<JobId, Vec<TierTrouble>>,
}

/// A node of the mirror.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// What the mirror holds of it.
    pub node: NodeView,
    /// Cordoned by the policy.
    pub cordoned: bool,
    /// Its last picture of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<Arc<NodeInventory>>,
    /// Of a node that is tagged as a spare: why it does not count as one that is ready, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare_hindrance: Option<String>,
}

/// What an operator's acts make of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// Its state; none of a server that is not there and whose cordon waits for it (ACTS-05).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<MirrorState>,
    /// Cordoned by the policy.
    pub cordoned: bool,
    /// Its worker's own settings keep jobs off it.
    pub kept_off_by_itself: bool,
}

/// A bundle of the mirror.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleRow {
    /// As the Manager shows it.
    pub status: Arc<BundleStatus>,
    /// Nothing of it is placed any more.
    pub broken: bool,
}

/// Every error's body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorInfo,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// Stable name.
    pub code: String,
    /// For people.
    pub message: String,
    /// Each fault of a list or of settings that were sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
}

/// Longest request body that is read, in bytes; as at the Manager (LIM-01).
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
