//! What operators decided and what is to outlive the instance (ACTS): cordons, drains under way, and
//! the lists that were changed while it ran.
//!
//! The policy keeps nothing itself. It tells the driver when there is something new to keep, and takes
//! at its beginning what the driver kept of the instance before.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::{Millis, NodeId, TemplateName, Wall};
use serde::{Deserialize, Serialize};

use crate::drain::{Drain, DrainOptions};
use crate::effect::{Effects, ErrorInfo, MirrorState};
use crate::event::{ApiCall, ApiError};
use crate::node::NodeRecord;
use crate::policy::{Phase, Policy};
use crate::settings::{HotSpare, Settings, hot_spares};

/// A drain that is taken up again has at least this long: while no control plane acted, nothing used the
/// time that it was given, and its end may cut off what is on the air.
const RESUMED_DRAIN_MIN: Millis = Millis(60_000);

/// A cordon waits so long for a server that is not there: long enough for a repair.
pub const ABSENT_MAX_AGE: Millis = Millis(7 * 24 * 3_600_000);

/// Cordons that wait for servers; the oldest are forgotten beyond it.
const ABSENT_MAX: usize = 1_000;

/// Most bytes that all of it may take, as JSON: what the Manager takes as one value (KV-06), less room for
/// what stands around it.
const BYTES_MAX: usize = 1024 * 1024 - 1024;

/// Most bytes that a list may bring it to. The rest is left to cordons and drains, which are urgent.
const LISTS_MAX: usize = BYTES_MAX / 2;

/// Everything that is kept, as a whole (ACTS-01).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Acts {
    /// Nodes that are cordoned or being drained.
    pub nodes: BTreeMap<NodeId, NodeAct>,
    /// The list of hot spares, where it is not the one of the settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot_spares: Option<Vec<HotSpare>>,
    /// Templates whose images are not those of the settings; without images it was taken away.
    pub templates: BTreeMap<TemplateName, Vec<String>>,
}

/// What was decided about a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeAct {
    /// New jobs are kept off it.
    pub cordoned: bool,
    /// It is being emptied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<KeptDrain>,
    /// Since when it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent_since: Option<Wall>,
}

/// A drain under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeptDrain {
    /// When it ends.
    pub ends: Wall,
    /// What was asked for.
    pub options: DrainOptions,
}

/// What the policy remembers for this.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActsRecord {
    /// Something may have to be kept anew.
    pub(crate) changed: bool,
    /// Handed in, to be taken up at the end of the snapshot.
    handed_in: Acts,
    /// Cordons of nodes that are not in the mirror, and since when they are not.
    absent: BTreeMap<NodeId, Wall>,
    /// As the settings have them.
    hot_spares: Vec<HotSpare>,
    templates: BTreeMap<TemplateName, Vec<String>>,
}

// === impl ActsRecord ===

impl ActsRecord {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            hot_spares: settings.hot_spares.clone(),
            templates: settings.template_images.clone(),
            ..Self::default()
        }
    }
}

// === impl Acts ===

impl Acts {
    /// True when nothing stands in it.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

// === impl ApiCall ===

impl ApiCall {
    /// True where what it does is to outlive the instance, so that it is kept before it is answered.
    pub const fn is_kept(&self) -> bool {
        matches!(
            self,
            Self::CordonNode { .. }
                | Self::UncordonNode { .. }
                | Self::CordonNodes { .. }
                | Self::UncordonNodes { .. }
                | Self::EvictNode { .. }
                | Self::DrainNode { .. }
                | Self::HandleNodeInterruption { .. }
                | Self::UpdateHotSpareSpecs { .. }
                | Self::SetTemplateImages { .. }
        )
    }
}

// === impl Policy: what is to be kept ===

impl Policy {
    /// What is to be kept from now on, if that may be news (ACTS-02). Before and after service nothing
    /// is: an instance that ends leaves what it decided to the next.
    pub fn acts_to_keep(&mut self) -> Option<Acts> {
        let news = self.is_live() && std::mem::take(&mut self.acts.changed);
        news.then(|| self.acts())
    }

    /// What was decided and still holds.
    pub fn acts(&self) -> Acts {
        let standing = self.nodes.iter().filter_map(|(node_id, record)| {
            let act = NodeAct {
                cordoned: self.is_cordoned(node_id),
                drain: self
                    .drains
                    .get(node_id)
                    .filter(|drain| !drain.state.phase.is_over())
                    .map(KeptDrain::of),
                absent_since: None,
            };
            let any = act.cordoned || act.drain.is_some();
            (any && !is_gone_for_good(record)).then(|| (node_id.clone(), act))
        });
        let absent = self.acts.absent.iter().map(|(node_id, since)| {
            let act = NodeAct {
                cordoned: true,
                drain: None,
                absent_since: Some(*since),
            };
            (node_id.clone(), act)
        });
        let (now, base) = (&self.settings.template_images, &self.acts.templates);
        let changed = now
            .iter()
            .filter(|(name, refs)| base.get(*name) != Some(refs));
        let taken_away = base.keys().filter(|name| !now.contains_key(*name));
        Acts {
            nodes: absent.chain(standing).collect(),
            hot_spares: (self.settings.hot_spares != self.acts.hot_spares)
                .then(|| self.settings.hot_spares.clone()),
            templates: changed
                .map(|(name, refs)| (name.clone(), refs.clone()))
                .chain(taken_away.map(|name| (name.clone(), Vec::new())))
                .collect(),
        }
    }
}

// === impl Policy: room for it ===

impl Policy {
    /// Refuses a call that would make too much of what is kept, before it does anything (ACTS-06). A
    /// provider's notice is never refused: it is true whether it can be kept or not.
    pub(crate) fn check_room(&self, call: &ApiCall) -> Result<(), ApiError> {
        let most = match call {
            ApiCall::UpdateHotSpareSpecs { .. } | ApiCall::SetTemplateImages { .. } => LISTS_MAX,
            ApiCall::CordonNode { .. }
            | ApiCall::CordonNodes { .. }
            | ApiCall::EvictNode { .. }
            | ApiCall::DrainNode { .. } => BYTES_MAX,
            _ => return Ok(()),
        };
        let before = self.acts();
        let after = size(&self.acts_with(before.clone(), call));
        if after > most && after > size(&before) {
            return Err(ApiError::TooMuchKept { bytes: after, most });
        }
        Ok(())
    }

    /// What would be kept after this call.
    fn acts_with(&self, mut acts: Acts, call: &ApiCall) -> Acts {
        match call {
            ApiCall::UpdateHotSpareSpecs { hot_spares: list } => {
                // A list with faults is refused with these.
                if let Ok(list) = hot_spares(list, &self.settings.placement_pools) {
                    acts.hot_spares = (list != self.acts.hot_spares).then_some(list);
                }
            }
            ApiCall::SetTemplateImages { template, refs } => {
                let base = self.acts.templates.get(template);
                if base.map_or(refs.is_empty(), |base| base == refs) {
                    acts.templates.remove(template);
                } else {
                    acts.templates.insert(template.clone(), refs.clone());
                }
            }
            ApiCall::CordonNodes {
                node_ids,
                registered,
            } => {
                for node_id in node_ids {
                    let there = self.nodes.contains_key(node_id);
                    if there || registered.contains(node_id) {
                        let act = acts.nodes.entry(node_id.clone()).or_default();
                        act.cordoned = true;
                        act.absent_since = act.absent_since.or((!there).then_some(self.now.wall));
                    }
                }
            }
            ApiCall::CordonNode { node_id }
            | ApiCall::EvictNode { node_id }
            | ApiCall::DrainNode { node_id, .. }
                if self.nodes.contains_key(node_id) =>
            {
                let act = acts.nodes.entry(node_id.clone()).or_default();
                act.cordoned = true;
                if let ApiCall::DrainNode { options, .. } = call {
                    let mut options = options.clone();
                    if let Some(drain) = act.drain.take() {
                        let kept = drain.options.strategies.into_iter();
                        options.strategies = kept.chain(options.strategies).collect();
                    }
                    let ends = self.now.wall;
                    act.drain = Some(KeptDrain { ends, options });
                }
            }
            _ => {}
        }
        acts
    }
}

/// Bytes of it as they are kept.
fn size(acts: &Acts) -> usize {
    serde_json::to_vec(acts).map_or(usize::MAX, |bytes| bytes.len())
}

/// A bought machine never comes back under its name.
fn is_gone_for_good(record: &NodeRecord) -> bool {
    record.is_auto() && matches!(record.state, MirrorState::Stopping | MirrorState::Stopped)
}

impl KeptDrain {
    fn of(drain: &Drain) -> Self {
        Self {
            ends: drain.state.started + Millis(drain.state.timeout_ms),
            options: DrainOptions {
                timeout_ms: None,
                force: drain.state.force,
                ..drain.options.clone()
            },
        }
    }
}

// === impl Policy: what was kept ===

impl Policy {
    /// Takes what was kept of the instance before; only ahead of the snapshot's end (ACTS-03).
    pub(crate) fn take_acts(&mut self, acts: Acts) {
        if matches!(self.phase, Phase::Snapshot { .. }) {
            self.acts.handed_in = acts;
        }
    }

    /// The lists, and the cordons of the nodes that are there, ahead of the first decision.
    pub(crate) fn restore_acts(&mut self) -> Restored {
        self.acts.changed = true;
        let acts = std::mem::take(&mut self.acts.handed_in);
        let mut restored = Restored::default();
        if let Some(list) = acts.hot_spares {
            // The pools of the settings may be others by now.
            let tree = serde_json::to_value(&list).unwrap_or_default();
            match hot_spares(&tree, &self.settings.placement_pools) {
                Ok(list) => self.settings.hot_spares = list,
                Err(error) => restored.fault = Some(error.to_string()),
            }
        }
        for (template, refs) in acts.templates {
            self.replace_template_images(template, refs);
        }
        for (node_id, act) in acts.nodes {
            match self.nodes.get(&node_id).map(|record| record.state) {
                None if act.cordoned => {
                    let since = act.absent_since.unwrap_or(self.now.wall);
                    self.acts.absent.insert(node_id, since);
                }
                None => {}
                Some(state) => {
                    if act.cordoned {
                        self.change_condition(&node_id, |condition| condition.cordoned = true);
                    }
                    let there = matches!(state, MirrorState::Starting | MirrorState::Running);
                    let drain = act.drain.filter(|_| there);
                    restored.drains.extend(drain.map(|drain| (node_id, drain)));
                }
            }
        }
        self.forget_absent();
        restored
    }

    /// The drains that were under way, with the time that is left to them (ACTS-04); told is what could
    /// not be taken over.
    pub(crate) fn resume_acts(&mut self, restored: Restored, out: &mut Effects) {
        if let Some(fault) = restored.fault {
            let message = format!(
                "the list of hot spares that was set before does not fit the settings any more, which \
                 count now: {fault}"
            );
            self.report(ErrorInfo::new("actForgotten", message), out);
        }
        for (node_id, drain) in restored.drains {
            let left = u64::try_from(drain.ends.since(self.now.wall)).unwrap_or(0);
            let timeout = Millis(left).max(RESUMED_DRAIN_MIN);
            self.begin_drain(&node_id, timeout, drain.options, out);
        }
    }

    /// A node leaves the mirror: the cordon of a server waits for it to come back.
    pub(crate) fn note_absent(&mut self, node_id: &NodeId) {
        let bought = self.nodes.get(node_id).is_none_or(NodeRecord::is_auto);
        if self.is_cordoned(node_id) {
            self.acts.changed = true;
            if !bought {
                self.acts.absent.insert(node_id.clone(), self.now.wall);
                self.forget_absent();
            }
        }
    }

    /// A node came into the mirror: true where its cordon waited for it.
    pub(crate) fn note_present(&mut self, node_id: &NodeId) -> bool {
        self.acts.absent.remove(node_id).is_some()
    }

    /// True where a cordon waits for a node that is not in the mirror (ACTS-05).
    pub fn is_cordon_waiting(&self, node_id: &NodeId) -> bool {
        self.acts.absent.contains_key(node_id)
    }

    /// Nodes that are not in the mirror and for which a cordon waits, by id (ACTS-05).
    pub fn waiting_cordons(&self) -> impl Iterator<Item = &NodeId> {
        self.acts.absent.keys()
    }

    /// Refuses cordons of more servers that are not there than are kept: the oldest would be forgotten,
    /// and nobody told.
    pub(crate) fn check_room_for_absent(&self, absent: &BTreeSet<NodeId>) -> Result<(), ApiError> {
        let before = self.acts.absent.len();
        let new = absent.iter().filter(|id| !self.is_cordon_waiting(id));
        let count = before + new.count();
        if count > ABSENT_MAX && count > before {
            return Err(ApiError::TooManyWaiting {
                count,
                most: ABSENT_MAX,
            });
        }
        Ok(())
    }

    /// Has a cordon wait for a server that is not there; one that waits already waits its whole time
    /// anew.
    pub(crate) fn cordon_absent(&mut self, node_id: &NodeId) {
        self.acts.absent.insert(node_id.clone(), self.now.wall);
        self.acts.changed = true;
    }

    /// Lifts a cordon that waits for a node.
    pub(crate) fn uncordon_absent(&mut self, node_id: &NodeId) -> bool {
        let waited = self.acts.absent.remove(node_id).is_some();
        self.acts.changed |= waited;
        waited
    }

    /// Nodes that do not come back are forgotten (ACTS-05).
    pub(crate) fn forget_absent(&mut self) {
        let now = self.now.wall;
        let limit = i64::try_from(ABSENT_MAX_AGE.0).unwrap_or(i64::MAX);
        let before = self.acts.absent.len();
        self.acts
            .absent
            .retain(|_, since| now.since(*since) < limit);
        while self.acts.absent.len() > ABSENT_MAX {
            let oldest = self.acts.absent.iter().min_by_key(|(_, since)| **since);
            let Some(oldest) = oldest.map(|(node_id, _)| node_id.clone()) else {
                break;
            };
            self.acts.absent.remove(&oldest);
        }
        self.acts.changed |= before != self.acts.absent.len();
    }
}

/// What is taken up once the replay is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Restored {
    drains: Vec<(NodeId, KeptDrain)>,
    /// Why the kept list of hot spares holds no more.
    fault: Option<String>,
}
