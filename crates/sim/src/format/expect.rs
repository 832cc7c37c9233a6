//! What must hold at a step (SCEN-10). One field per key of the format; the matchers are in
//! [`crate::expect`].

use std::collections::BTreeMap;

use greenroom_placement::{Code, Outcome, Reason};
use greenroom_policy::drain::{DrainPhase, DrainStatus};
use greenroom_policy::effect::{MirrorState, PlacementKind};
use greenroom_policy::migration::MigrationPhase;
use greenroom_types::tree::Fault;
use greenroom_types::{BundleId, PoolName, TierName, tree};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

use super::action::Action;
use super::names::{JobPath, NodeRef};
use super::nothing;
use super::span::Instant;

/// Everything that one step expects.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Expect {
    /// Jobs as the policy sees them.
    pub jobs: BTreeMap<JobPath, JobExpect>,
    /// Pairs on one node.
    pub same_node: Vec<(JobPath, JobPath)>,
    /// Pairs on two nodes.
    pub different_node: Vec<(JobPath, JobPath)>,
    /// Pairs in two known zones.
    pub different_az: Vec<(JobPath, JobPath)>,
    /// Pairs in two clouds.
    pub different_cloud: Vec<(JobPath, JobPath)>,
    /// Nodes as the policy sees them.
    pub nodes: BTreeMap<NodeRef, NodeExpect>,
    /// How many nodes there are of a kind.
    #[serde(deserialize_with = "one_or_many")]
    pub node_count: Vec<NodeCount>,
    /// They are written as a list.
    #[serde(skip)]
    pub is_list_of_counts: bool,
    /// Calls on the Manager since the last step that looked at calls.
    pub calls: Option<Happened>,
    /// Callbacks since the last step that looked at callbacks.
    pub callbacks: Option<Happened>,
    /// Counters of the policy.
    pub metrics: BTreeMap<String, Value>,
    /// A drain.
    pub drain: Option<DrainExpect>,
    /// The latest migration of a job.
    pub migration: Option<MigrationExpect>,
    /// The last decision about a job.
    pub trace: Option<TraceExpect>,
    /// Answer of the last dry run.
    pub dry_run: Option<DryRunExpect>,
    /// Answer of the last admission.
    pub admission: Option<AdmissionExpect>,
    /// Jobs that wait for their schedule, and until when.
    pub pending: BTreeMap<JobPath, Instant>,
    /// Spares of a pool.
    pub spares: Option<SparesExpect>,
    /// A bundle.
    pub bundle: Option<BundleExpect>,
    /// Nothing impossible was seen so far.
    pub invariants: Option<Holds>,
}

/// One job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JobExpect {
    /// Where it stands.
    pub state: Option<JobStanding>,
    /// The node of its binding.
    pub node: Option<NodeRef>,
    /// The tier of that node.
    pub tier: Option<TierName>,
    /// The pool of that node.
    pub pool: Option<PoolName>,
    /// The device of its share.
    pub gpu: Option<u32>,
    /// Counted restarts within the hour.
    pub restarts: Option<u32>,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JobStanding {
    /// To be placed, and not bound.
    Unplaced,
    /// Bound, not running yet.
    Placed,
    /// Bound and running.
    Running,
    /// Waits to be started by hand.
    Dormant,
    /// It has a verdict of its own.
    Dropped,
    /// No verdict of its own, its bundle is broken.
    Broken,
    /// Not in the mirror.
    Gone,
}

/// One node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeExpect {
    /// Where it stands.
    pub state: Option<NodeStanding>,
    /// Kept free by the policy or by its own inventory.
    pub cordoned: Option<bool>,
    /// An unconsumed spare.
    pub spare: Option<bool>,
    /// Jobs bound to it, in any order.
    pub jobs: Option<Vec<JobPath>>,
    /// Tags that it must have; null: must not have.
    pub tags: BTreeMap<String, Option<String>>,
}

/// Where a node stands in the policy's mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeStanding {
    /// Asked for, or booting.
    Starting,
    /// Its worker said hello.
    Running,
    /// Given up, ending or being ended.
    Stopping,
    /// Gone, still shown.
    Stopped,
    /// Not in the mirror.
    Gone,
}

/// A number of nodes; prospective ones count, stopped ones do not.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeCount {
    /// Only those with this pool in their tag.
    #[serde(default)]
    pub pool: Option<PoolName>,
    /// Only those of this tier.
    #[serde(default)]
    pub tier: Option<TierName>,
    /// Only unconsumed spares, or only others.
    #[serde(default)]
    pub spare: Option<bool>,
    /// How many.
    pub n: usize,
}

/// What must have happened.
#[derive(Clone, Debug, Default)]
pub struct Happened {
    /// In this order; others may stand between.
    pub in_order: bool,
    /// The items.
    pub list: Vec<Happening>,
    /// The items stand below the key `list`.
    pub below_list: bool,
}

/// One call or callback, as a subset of its fields, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Happening {
    /// Name.
    pub name: String,
    /// Fields.
    pub fields: Map<String, Value>,
    /// How many match.
    pub times: usize,
}

/// A drain.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DrainExpect {
    /// The node.
    pub node: NodeRef,
    /// Its phase.
    #[serde(default)]
    pub phase: Option<DrainPhase>,
    /// Status by job; empty: it has none to move.
    #[serde(default)]
    pub jobs: Option<BTreeMap<JobPath, DrainStatus>>,
}

/// A migration.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigrationExpect {
    /// The job.
    pub job: JobPath,
    /// Its phase.
    #[serde(default)]
    pub phase: Option<MigrationPhase>,
    /// Its target node.
    #[serde(default)]
    pub target: Option<NodeRef>,
    /// Part of the reason.
    #[serde(default)]
    pub abort_reason: Option<String>,
}

/// A decision.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TraceExpect {
    /// The job.
    pub job: JobPath,
    /// `place`, `provision` or `failure`.
    #[serde(default)]
    pub kind: Option<PlacementKind>,
    /// Reason code of a failure.
    #[serde(default)]
    pub reason: Option<String>,
    /// The node that was taken.
    #[serde(default)]
    pub chosen: Option<NodeRef>,
    /// Attempts by tier, in order.
    #[serde(default)]
    pub attempts: Option<Vec<AttemptExpect>>,
}

/// One attempt of a decision.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AttemptExpect {
    /// The tier.
    pub tier: Option<TierName>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Some of the nodes left out, with the reason; empty: none was.
    pub filtered: Option<BTreeMap<NodeRef, Reason>>,
    /// The first of the nodes that would do, best first; empty: none would.
    pub survivors: Option<Vec<NodeRef>>,
}

/// Answer of a dry run.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DryRunExpect {
    /// `place`, `provision` or `failure`.
    pub kind: PlacementKind,
    /// The node.
    #[serde(default)]
    pub node: Option<NodeRef>,
    /// The tier.
    #[serde(default)]
    pub tier: Option<TierName>,
    /// The shape to be bought.
    #[serde(default)]
    pub instance_type: Option<String>,
}

/// Answer of an admission.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdmissionExpect {
    /// How it was answered.
    pub kind: AdmissionKind,
    /// Jobs without a place, in any order.
    #[serde(default)]
    pub unplaceable: Option<Vec<JobPath>>,
    /// Codes of the errors, in any order.
    #[serde(default)]
    pub errors: Option<Vec<Code>>,
    /// Codes of the warnings, in any order.
    #[serde(default)]
    pub warnings: Option<Vec<Code>>,
}

/// How an admission is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AdmissionKind {
    /// It would be admitted.
    Ok,
    /// There is no room for a job.
    NoCapacity,
    /// The bundle is faulty.
    ValidationErrors,
}

/// Spares of a pool.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SparesExpect {
    /// The pool.
    pub pool: PoolName,
    /// Ready ones.
    #[serde(default)]
    pub live: Option<usize>,
    /// Asked for.
    #[serde(default)]
    pub pending: Option<usize>,
    /// Wanted.
    #[serde(default)]
    pub target: Option<usize>,
}

/// A bundle.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleExpect {
    /// The bundle.
    pub id: BundleId,
    /// Whether it is broken.
    pub broken: bool,
}

/// The word `ok`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Holds {
    /// It holds.
    Ok,
}

/// Reads what one step expects. What stands in lists is read one by one, so that a fault is at its own
/// place; and what would hold whatever happens is a fault.
///
/// # Errors
/// The first fault.
pub(crate) fn read(tree: &Value) -> Result<Expect, Fault> {
    if let Value::Object(keys) = tree {
        for (key, value) in keys {
            let told = match key.as_str() {
                "calls" | "callbacks" => happenings(value),
                "nodeCount" => counts(value),
                _ => Ok(()),
            };
            told.map_err(|fault| below(key, fault))?;
        }
    }
    let mut expect: Expect = tree::read(tree)?;
    nothing::in_expect(tree)?;
    expect.is_list_of_counts = tree["nodeCount"].is_array();
    Ok(expect)
}

/// A fault with its path below a key or an index.
fn below(outer: &str, mut fault: Fault) -> Fault {
    let separator = match fault.path.as_bytes().first() {
        None | Some(b'[') => "",
        Some(_) => ".",
    };
    fault.path = format!("{outer}{separator}{}", fault.path);
    fault
}

fn fault(path: &str, message: impl Into<String>) -> Fault {
    Fault {
        path: path.to_owned(),
        message: message.into(),
    }
}

fn happenings(value: &Value) -> Result<(), Fault> {
    let (outer, list) = match value {
        Value::Object(keys) => ("list", keys.get("list")),
        other => ("", Some(other)),
    };
    for (index, item) in list
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
    {
        let told = happening(item).map_err(|fault| below(&format!("[{index}]"), fault));
        told.map_err(|fault| below(outer, fault))?;
    }
    Ok(())
}

fn happening(item: &Value) -> Result<(), Fault> {
    if let Some(times) = item.get("times") {
        tree::read::<usize>(times).map_err(|told| below("times", told))?;
    }
    for (name, fields) in item.as_object().into_iter().flatten() {
        if name != "times" && !fields.is_object() && !fields.is_null() {
            let found = tree::found(fields);
            let message = format!("{found} is no mapping of fields; write {{}} for any");
            return Err(fault(name, message));
        }
    }
    tree::read::<Happening>(item).map(|_| ())
}

fn counts(value: &Value) -> Result<(), Fault> {
    match value {
        Value::Array(list) => list.iter().enumerate().try_for_each(|(index, item)| {
            let told = tree::read::<NodeCount>(item);
            told.map(|_| ())
                .map_err(|fault| below(&format!("[{index}]"), fault))
        }),
        one => tree::read::<NodeCount>(one).map(|_| ()),
    }
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<NodeCount>, D::Error> {
    let list = match Value::deserialize(deserializer)? {
        Value::Array(list) => list,
        one => vec![one],
    };
    list.iter().map(tree::nested).collect()
}

// === impl NodeStanding ===

impl NodeStanding {
    /// As a file writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Gone => "gone",
        }
    }
}

impl From<MirrorState> for NodeStanding {
    fn from(state: MirrorState) -> Self {
        match state {
            MirrorState::Starting => Self::Starting,
            MirrorState::Running => Self::Running,
            MirrorState::Stopping => Self::Stopping,
            MirrorState::Stopped => Self::Stopped,
        }
    }
}

// === impl JobStanding ===

impl JobStanding {
    /// As a file writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unplaced => "unplaced",
            Self::Placed => "placed",
            Self::Running => "running",
            Self::Dormant => "dormant",
            Self::Dropped => "dropped",
            Self::Broken => "broken",
            Self::Gone => "gone",
        }
    }
}

// === impl Happened ===

impl<'de> Deserialize<'de> for Happened {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Written {
            in_order: bool,
            list: Vec<Happening>,
        }
        match Value::deserialize(deserializer)? {
            list @ Value::Array(_) => Ok(Self {
                in_order: false,
                list: tree::nested(&list)?,
                below_list: false,
            }),
            other => {
                let written: Written = tree::read(&other).map_err(|error| {
                    de::Error::custom(format_args!(
                        "{error}; write a list, or inOrder: true and list"
                    ))
                })?;
                Ok(Self {
                    in_order: written.in_order,
                    list: written.list,
                    below_list: true,
                })
            }
        }
    }
}

impl<'de> Deserialize<'de> for Happening {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut map: Map<String, Value> = Map::deserialize(deserializer)?;
        let times = match map.remove("times") {
            None => 1,
            Some(value) => tree::read(&value)
                .map_err(|error| de::Error::custom(format_args!("times: {error}")))?,
        };
        let mut entries = map.into_iter();
        let (Some((name, fields)), None) = (entries.next(), entries.next()) else {
            return Err(de::Error::custom(
                "write one name with its fields, and times beside it",
            ));
        };
        let fields = match fields {
            Value::Object(fields) => fields,
            Value::Null => Map::new(),
            other => {
                return Err(de::Error::custom(format_args!(
                    "{name}: {other} is no mapping of fields; write {{}} for any"
                )));
            }
        };
        Ok(Self {
            name,
            fields,
            times,
        })
    }
}

/// Keys that a step may have besides its action.
pub(crate) fn is_action(key: &str) -> bool {
    Action::KEYS.contains(&key)
}
