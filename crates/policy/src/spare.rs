//! Hot spares: keeping as many as are wanted, shedding those that are not, and changing what the
//! wanted ones are for (SPARE).
//!
//! One pass brings every pool towards its target and may run at any time; it takes no hint of what
//! changed. Spares are found by their tags, so that those of a predecessor count at once.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_placement::Spare;
use greenroom_types::call::Call;
use greenroom_types::pool::CandidateInstanceType;
use greenroom_types::{Mono, NodeId, PoolName, Tags, TemplateName, TierName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::calls::Purpose;
use crate::effect::{Callback, Effects, MirrorState};
use crate::event::{ApiAnswer, ApiError, ApiId, ApiResult};
use crate::node::NodeRecord;
use crate::policy::Policy;
use crate::provision::{Asked, Wanted};
use crate::settings::{
    HotSpare, SPARE_PROVISION_RETRY_BACKOFF, SPARE_TERMINATE_RETRY_BACKOFF, SPARE_UNFIT_WAIT,
    hot_spares,
};
use crate::timer::{Due, Timer};

/// What the reconciler keeps besides the nodes themselves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spares {
    /// A pass runs at the end of this input (SPARE-06).
    pub(crate) due: bool,
    /// Nodes of the mirror that are tagged as spares, consumed ones included, and what each is to be
    /// kept warm for.
    tagged: BTreeMap<NodeId, Vec<TemplateName>>,
    /// Pools whose last provision failed, and until when they ask for none (SPARE-11).
    waits: BTreeMap<PoolName, Mono>,
}

impl Spares {
    /// Nodes that are filed as spares, by id.
    pub(crate) fn filed(&self) -> impl Iterator<Item = &NodeId> {
        self.tagged.keys()
    }
}

/// What is to change on one spare (SPARE-16); absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct HotSpareChanges {
    /// Templates whose images it is to hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_for: Option<Vec<TemplateName>>,
    /// Templates whose jobs it attracts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_for: Option<Vec<TemplateName>>,
    /// Jobs of other templates are kept off it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<bool>,
}

/// What a new list changes, by pool; pools that stay as they are are absent (SPARE-23).
pub type HotSpareSpecsDiff = BTreeMap<PoolName, HotSpareDiff>;

/// What a new list changes for one pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HotSpareDiff {
    /// It had no entry.
    Added,
    /// It has none any more.
    Removed,
    /// Fields by name, with their values before and after.
    Changed(BTreeMap<String, Change>),
}

/// A value before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Before.
    pub before: Value,
    /// After.
    pub after: Value,
}

/// How many spares a pool has (SPARE-05).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpareCount {
    /// Ready to take a job.
    pub live: usize,
    /// Asked for and not started.
    pub pending: usize,
}

// === impl Policy: the pass ===

impl Policy {
    /// Files a node by its `spare` tag, whenever its tags may have changed.
    pub(crate) fn note_spare_tag(&mut self, node_id: &NodeId) {
        let spare = self
            .fleet
            .facts(node_id)
            .and_then(|facts| facts.spare.as_ref());
        if let Some(spare) = spare {
            let warm_for = spare.warm_for.clone();
            let before = self.spares.tagged.insert(node_id.clone(), warm_for.clone());
            if before.is_none_or(|before| before != warm_for) {
                self.prefetch.look_at(node_id);
            }
            self.spares.due = true;
        } else if self.spares.tagged.remove(node_id).is_some() {
            self.prefetch.leave_alone(node_id);
            self.spares.due = true;
        }
    }

    /// A node changed its standing: a pass is due, whichever node it is (SPARE-06).
    pub(crate) fn touch_spare(&mut self, node_id: &NodeId) {
        self.spares.due = true;
        self.prefetch.touch(node_id);
    }

    /// What a node carries changed: a pass is due if it is a spare.
    pub(crate) fn touch_if_spare(&mut self, node_id: &NodeId) {
        self.spares.due |= self.spares.tagged.contains_key(node_id);
        self.prefetch.touch(node_id);
    }

    pub(crate) fn forget_spare(&mut self, node_id: &NodeId) {
        self.spares.due |= self.spares.tagged.remove(node_id).is_some();
        self.prefetch.forget(node_id);
    }

    /// Spares that are kept warm for a template.
    pub(crate) fn spares_warm_for(&self, template: &TemplateName) -> Vec<NodeId> {
        let tagged = self.spares.tagged.iter();
        tagged
            .filter(|(_, warm_for)| warm_for.contains(template))
            .map(|(node_id, _)| node_id.clone())
            .collect()
    }

    /// One pass over all pools, if something asked for one (SPARE-06).
    pub(crate) fn run_spares(&mut self, out: &mut Effects) {
        if !std::mem::take(&mut self.spares.due) {
            return;
        }
        self.reap_orphans(out);
        for entry in self.settings.hot_spares.clone() {
            let count = self.spare_count(&entry.pool);
            let target = entry.target_count as usize;
            let effective = count.live + count.pending;
            if effective < target {
                out.callback(Callback::OnSpareUnderflow {
                    pool: entry.pool.clone(),
                    current: effective,
                    target,
                });
                self.fill(&entry, target - effective, out);
            } else if count.live > target {
                self.shed(&entry, count.live - target, out);
            }
            self.end_replaced(&entry, out);
        }
        // What the pass did itself is no reason for another one.
        self.spares.due = false;
    }

    /// Spares of a pool (SPARE-05).
    pub fn spare_count(&self, pool: &PoolName) -> SpareCount {
        let mut count = SpareCount::default();
        for node_id in self.spares_of(pool) {
            count.live += usize::from(self.is_live_spare(node_id));
            count.pending += usize::from(self.is_pending_spare(node_id));
        }
        count
    }

    fn spares_of<'a>(&'a self, pool: &'a PoolName) -> impl Iterator<Item = &'a NodeId> {
        self.spares.tagged.keys().filter(move |node_id| {
            let facts = self.fleet.facts(node_id);
            facts.is_some_and(|facts| facts.pool.as_ref() == Some(pool))
        })
    }

    /// Asked for as a spare, by this policy or a predecessor, and still to start.
    fn is_pending_spare(&self, node_id: &NodeId) -> bool {
        let record = self.nodes.get(node_id);
        let ending = self
            .fleet
            .condition(node_id)
            .is_some_and(|condition| condition.terminating);
        record.is_some_and(|record| record.state == MirrorState::Starting && record.is_auto())
            && self.fleet.unconsumed_spare(node_id).is_some()
            && !ending
    }

    /// Asks for the missing ones in the pool's first elastic tier, as far as cap and back-offs allow
    /// (SPARE-07 to SPARE-11).
    fn fill(&mut self, entry: &HotSpare, missing: usize, out: &mut Effects) {
        let now = self.now.mono;
        let pool = self.settings.pool(entry.pool.as_str());
        let Some(tier) = pool.and_then(|pool| pool.tiers.iter().find(|tier| tier.is_elastic()))
        else {
            return;
        };
        let tier = tier.clone();
        if self
            .spares
            .waits
            .get(&entry.pool)
            .is_some_and(|until| *until > now)
        {
            return;
        }
        for _ in 0..missing {
            if !self.may_provision(&entry.pool, &tier.name) {
                return;
            }
            let size = self.fleet.tier_size(&entry.pool, tier.name.as_str());
            let full = tier.max_nodes.is_some_and(|max| size >= max as usize);
            let dead = self.dead_spares(&entry.pool);
            if full || dead.len() > entry.target_count as usize {
                self.end_long_dead(dead, out);
                return;
            }
            let node_id = NodeId::new(format!(
                "{}.spare.{}",
                self.ids.node_uuid(),
                node_part(&entry.pool)
            ));
            let shape = tier
                .candidate_instance_types
                .iter()
                .find(|shape| shape.instance_type == entry.spec.instance_type);
            let asked = Asked {
                pool: entry.pool.clone(),
                tier: tier.name.clone(),
                wanted: Wanted::Spare,
                accepted: false,
            };
            let tags = spare_tags(entry, &tier.name, tier.reliability().as_tag());
            self.request_node(&node_id, asked, tags, shape);
            let bare = CandidateInstanceType {
                instance_type: entry.spec.instance_type.clone(),
                ..CandidateInstanceType::default()
            };
            let shape = shape.cloned().unwrap_or(bare);
            self.send_create(&node_id, &tier, &shape, &region_of(entry, &tier), out);
        }
    }

    /// Terminates the coldest of the live ones that were bought (SPARE-12).
    fn shed(&mut self, entry: &HotSpare, excess: usize, out: &mut Effects) {
        let images: Vec<String> = entry
            .warm_for
            .iter()
            .flat_map(|template| self.fleet.template_images(template))
            .cloned()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let mut victims: Vec<_> = self
            .spares_of(&entry.pool)
            .filter(|node_id| self.is_live_spare(node_id) && self.is_bought(node_id))
            .map(|node_id| {
                let warmth = self.fleet.held_count(node_id, &images);
                let activity = self.nodes.get(node_id).map(|record| record.last_activity);
                (warmth, activity, node_id.clone())
            })
            .collect();
        victims.sort();
        for (_, _, node_id) in victims.into_iter().take(excess) {
            self.end_spare(&node_id, out);
        }
    }

    /// Terminates bought spares that would take no start, once as many as are wanted are there and have
    /// said that they would (SPARE-25).
    fn end_replaced(&mut self, entry: &HotSpare, out: &mut Effects) {
        let ready = |node_id: &&NodeId| {
            self.is_live_spare(node_id) && self.fleet.inventory(node_id).is_some()
        };
        if self.spares_of(&entry.pool).filter(ready).count() < entry.target_count as usize {
            return;
        }
        for node_id in self.dead_spares(&entry.pool) {
            self.end_spare(&node_id, out);
        }
    }

    /// Terminates it, unless that failed a moment ago (SPARE-27).
    fn end_spare(&mut self, node_id: &NodeId, out: &mut Effects) {
        let now = self.now.mono;
        let record = self.nodes.get(node_id);
        let failed_at = record.and_then(|record| record.terminate_failed_at);
        if failed_at.is_none_or(|at| now - at >= SPARE_TERMINATE_RETRY_BACKOFF) {
            self.terminate(node_id, None, out);
        }
    }

    /// Terminates those that have taken no start for a while: they hold the places of those that are to
    /// replace them (SPARE-26).
    fn end_long_dead(&mut self, dead: Vec<NodeId>, out: &mut Effects) {
        let now = self.now.mono;
        for node_id in dead {
            let since = self
                .nodes
                .get(&node_id)
                .and_then(|record| record.unfit_since);
            if since.is_some_and(|since| now - since >= SPARE_UNFIT_WAIT) {
                self.end_spare(&node_id, out);
            }
        }
    }

    fn dead_spares(&self, pool: &PoolName) -> Vec<NodeId> {
        self.spares_of(pool)
            .filter(|node_id| self.is_dead_spare(node_id))
            .cloned()
            .collect()
    }

    /// A spare that was bought and takes no start: its disk is nearly full or its engine does not answer.
    /// Its worker is heard and names no instance, no job is bound to it, and none of its own is ending.
    fn is_dead_spare(&self, node_id: &NodeId) -> bool {
        let Some(picture) = self.fleet.inventory(node_id) else {
            return false;
        };
        let record = self.nodes.get(node_id);
        let drained = self.drains.get(node_id);
        (picture.disk_low || picture.is_runtime_down())
            && picture.assigned_jobs.is_empty()
            && self.fleet.jobs_on(node_id).is_empty()
            && !self.remains_at.contains_key(node_id)
            && self.is_standing_spare(node_id)
            && self.fleet.is_reachable(node_id)
            && record.is_some_and(NodeRecord::is_auto)
            && self.is_bought(node_id)
            && drained.is_none_or(|drain| !drain.state.phase.is_open())
    }

    /// Terminates bought spares of pools that want none (SPARE-14).
    fn reap_orphans(&mut self, out: &mut Effects) {
        let wanted: BTreeSet<&PoolName> = self
            .settings
            .hot_spares
            .iter()
            .map(|entry| &entry.pool)
            .collect();
        let orphans: Vec<NodeId> = self
            .spares
            .tagged
            .keys()
            .filter(|node_id| {
                let pool = self
                    .fleet
                    .facts(node_id)
                    .and_then(|facts| facts.pool.as_ref());
                pool.is_none_or(|pool| !wanted.contains(pool))
            })
            .filter(|node_id| {
                let record = self.nodes.get(*node_id);
                let auto = record.is_some_and(NodeRecord::is_auto);
                let ending = self.fleet.condition(node_id).is_some_and(|c| c.terminating);
                auto && self.is_running(node_id)
                    && !ending
                    && !self.is_registered(node_id)
                    && self.fleet.unconsumed_spare(node_id).is_some()
            })
            .cloned()
            .collect();
        for node_id in orphans {
            self.end_spare(&node_id, out);
        }
    }

    pub(crate) fn is_bought(&self, node_id: &NodeId) -> bool {
        self.fleet
            .tier_of(node_id)
            .is_some_and(|(_, tier)| tier.is_elastic())
    }

    fn is_registered(&self, node_id: &NodeId) -> bool {
        self.fleet
            .tier_of(node_id)
            .is_some_and(|(_, tier)| !tier.is_elastic())
    }

    /// The pool's next spare is asked for 60 s later (SPARE-11).
    pub(crate) fn spare_failed(&mut self, pool: &PoolName) {
        let until = self.now.mono + SPARE_PROVISION_RETRY_BACKOFF;
        self.spares.waits.insert(pool.clone(), until);
        self.timers
            .set(Timer::SpareRetry(pool.clone()), Due::Mono(until));
        self.spares.due = true;
    }

    pub(crate) fn end_spare_wait(&mut self, pool: &PoolName) {
        self.spares.due |= self.spares.waits.remove(pool).is_some();
    }

    /// The tick of the reconciler (CONF-08).
    pub(crate) fn spare_tick(&mut self) {
        self.spares.due = true;
        let due = Due::Mono(self.now.mono + self.settings.hot_spare_reconcile_interval);
        self.timers.set(Timer::SpareTick, due);
    }
}

/// Tags of a node bought as a spare (NODE-02).
fn spare_tags(entry: &HotSpare, tier: &TierName, reliability: &str) -> Tags {
    let mut tags = Tags::new();
    let mut tag = |key: &str, value: String| tags.insert(key.to_owned(), value);
    tag("auto-manager", "true".to_owned());
    tag("spare", "true".to_owned());
    tag("pool", entry.pool.to_string());
    tag("tier", tier.to_string());
    tag("reliability", reliability.to_owned());
    if !entry.warm_for.is_empty() {
        tag("warmFor", joined(&entry.warm_for));
    }
    if !entry.reserved_for.is_empty() {
        tag("reservedFor", joined(&entry.reserved_for));
    }
    if entry.exclusive {
        tag("exclusive", "true".to_owned());
    }
    tags
}

fn joined(names: &[TemplateName]) -> String {
    let names: Vec<&str> = names.iter().map(TemplateName::as_str).collect();
    names.join(",")
}

/// Where it is bought: the entry's word, else the tier's (SPARE-10).
fn region_of(entry: &HotSpare, tier: &greenroom_types::pool::Tier) -> String {
    let own = [&entry.spec.az, &entry.spec.region];
    let own: &[&String] = match tier.kind {
        greenroom_types::pool::TierKind::Oci => &own,
        _ => &own[1..],
    };
    own.iter()
        .find(|text| !text.is_empty())
        .map(|text| (*text).clone())
        .or_else(|| tier.region.clone())
        .unwrap_or_default()
}

/// The pool's name as far as a node id can hold it (NODE-04, MNODE-02).
fn node_part(pool: &PoolName) -> String {
    pool.as_str()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "._@-".contains(*c))
        .collect()
}

// === impl Policy: changing spares ===

impl Policy {
    /// Changes what one spare is for, through its tags (SPARE-16, SPARE-17).
    pub(crate) fn update_hot_spare_node(
        &mut self,
        id: ApiId,
        node_id: &NodeId,
        changes: &HotSpareChanges,
        out: &mut Effects,
    ) -> Option<ApiResult> {
        if !self.nodes.contains_key(node_id) {
            let node_id = node_id.clone();
            return Some(Err(ApiError::UnknownNode { node_id }));
        }
        let Some(spare) = self.fleet.unconsumed_spare(node_id) else {
            let node_id = node_id.clone();
            return Some(Err(ApiError::NotASpare { node_id }));
        };
        let reserved = changes.reserved_for.as_ref().unwrap_or(&spare.reserved_for);
        if changes.exclusive.unwrap_or(spare.exclusive) && reserved.is_empty() {
            let node_id = node_id.clone();
            return Some(Err(ApiError::ExclusiveWithoutReservedFor { node_id }));
        }
        let tags = changed_tags(spare, changes);
        if tags.is_empty() {
            return Some(Ok(ApiAnswer::Done));
        }
        let call = set_tags(node_id, tags);
        self.send(call, Purpose::PassThrough { api: id }, out);
        None
    }

    /// Replaces the whole list in force (SPARE-20 to SPARE-24).
    pub(crate) fn update_hot_spare_specs(&mut self, list: &Value, out: &mut Effects) -> ApiResult {
        let new = hot_spares(list, &self.settings.placement_pools).map_err(ApiError::Settings)?;
        let old = std::mem::take(&mut self.settings.hot_spares);
        let diff = diff(&old, &new);
        self.settings.hot_spares = new;
        for (pool, change) in &diff {
            if *change == HotSpareDiff::Removed {
                self.spares.waits.remove(pool);
                self.timers.stop(&Timer::SpareRetry(pool.clone()));
            }
        }
        if !diff.is_empty() {
            self.write_changed_fields(&old, &diff, out);
            self.spares.due = true;
            self.acts.changed = true;
        }
        Ok(ApiAnswer::HotSpareSpecs(diff))
    }

    /// Writes changed fields, and only those, to the spares that are there; those on their way get
    /// them when they have started (SPARE-21).
    fn write_changed_fields(
        &mut self,
        old: &[HotSpare],
        diff: &HotSpareSpecsDiff,
        out: &mut Effects,
    ) {
        for entry in self.settings.hot_spares.clone() {
            let before = old.iter().find(|old| old.pool == entry.pool);
            let (Some(before), true) = (before, diff.contains_key(&entry.pool)) else {
                continue;
            };
            let was = Spare {
                warm_for: before.warm_for.clone(),
                reserved_for: before.reserved_for.clone(),
                exclusive: before.exclusive,
            };
            let now = HotSpareChanges {
                warm_for: Some(entry.warm_for.clone()),
                reserved_for: Some(entry.reserved_for.clone()),
                exclusive: Some(entry.exclusive),
            };
            let tags = changed_tags(&was, &now);
            if tags.is_empty() {
                continue;
            }
            let nodes: Vec<NodeId> = self.spares_of(&entry.pool).cloned().collect();
            for node_id in nodes {
                if self.is_standing_spare(&node_id) {
                    self.write_spare_tags(&node_id, tags.clone(), out);
                } else if self.is_pending_spare(&node_id)
                    && let Some(record) = self.nodes.get_mut(&node_id)
                {
                    record.tags_due.extend(tags.clone());
                }
            }
        }
    }

    fn write_spare_tags(&mut self, node_id: &NodeId, tags: Tags, out: &mut Effects) {
        let purpose = Purpose::TellNode {
            what: "writing the tags of a spare",
            node_id: node_id.clone(),
        };
        self.send(set_tags(node_id, tags), purpose, out);
    }

    /// A spare that was on its way when its entry changed has started.
    pub(crate) fn write_tags_due(&mut self, node_id: &NodeId, out: &mut Effects) {
        let due = self
            .nodes
            .get_mut(node_id)
            .map(|record| std::mem::take(&mut record.tags_due))
            .unwrap_or_default();
        if !due.is_empty() && self.fleet.unconsumed_spare(node_id).is_some() {
            self.write_spare_tags(node_id, due, out);
        }
    }
}

fn set_tags(node_id: &NodeId, tags: Tags) -> Call {
    Call::SetNodeTags {
        node_id: node_id.clone(),
        tags,
        remove: Vec::new(),
        expected_revision: None,
    }
}

/// The tags of the fields that change; nothing is written as an empty value (SPARE-17).
fn changed_tags(before: &Spare, changes: &HotSpareChanges) -> Tags {
    let mut tags = Tags::new();
    if let Some(warm_for) = &changes.warm_for
        && *warm_for != before.warm_for
    {
        tags.insert("warmFor".to_owned(), joined(warm_for));
    }
    if let Some(reserved_for) = &changes.reserved_for
        && *reserved_for != before.reserved_for
    {
        tags.insert("reservedFor".to_owned(), joined(reserved_for));
    }
    if let Some(exclusive) = changes.exclusive
        && exclusive != before.exclusive
    {
        tags.insert("exclusive".to_owned(), exclusive.to_string());
    }
    tags
}

fn diff(old: &[HotSpare], new: &[HotSpare]) -> HotSpareSpecsDiff {
    let mut diff = HotSpareSpecsDiff::new();
    for entry in new {
        match old.iter().find(|old| old.pool == entry.pool) {
            None => {
                diff.insert(entry.pool.clone(), HotSpareDiff::Added);
            }
            Some(before) if before != entry => {
                diff.insert(
                    entry.pool.clone(),
                    HotSpareDiff::Changed(changes(before, entry)),
                );
            }
            Some(_) => {}
        }
    }
    for entry in old {
        if new.iter().all(|new| new.pool != entry.pool) {
            diff.insert(entry.pool.clone(), HotSpareDiff::Removed);
        }
    }
    diff
}

fn changes(before: &HotSpare, after: &HotSpare) -> BTreeMap<String, Change> {
    let fields = |entry: &HotSpare| match serde_json::to_value(entry) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (before, mut after) = (fields(before), fields(after));
    before
        .into_iter()
        .filter_map(|(name, before)| {
            let after = after.remove(&name)?;
            (before != after).then_some((name, Change { before, after }))
        })
        .collect()
}
