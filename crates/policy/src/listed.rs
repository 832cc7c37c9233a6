//! What a node carries by its own account: the instances that its picture lists, corrected by what the
//! history has told since and by what the policy has bound there (RESV-07).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use greenroom_placement::{JobRef, Listed, Needs, Side};
use greenroom_types::bundle::Requirements;
use greenroom_types::inventory::AssignedJob;
use greenroom_types::{JobId, NodeId, StartId};

use crate::history;
use crate::job::JobRecord;
use crate::node_service::is_service;
use crate::policy::Policy;
use crate::settings::ORPHAN_WAIT;
use crate::timer::{Due, Timer};

// === impl Policy ===

impl Policy {
    /// An instance is over: what its node's picture lists of it is old (RESV-07), and its room is free (PEND-02).
    pub(crate) fn note_over(&mut self, node_id: &NodeId, start_id: Option<&StartId>) {
        if let Some(record) = self.nodes.get_mut(node_id) {
            record.over.extend(start_id.cloned());
        }
        self.note_listed(node_id);
        self.pending.wake_for(node_id);
    }

    /// A job was bound to a node or left it: what that node lists of it is its instance now, or is
    /// another one. Looked at before the next decision.
    pub(crate) fn relist_if_listed(&mut self, node_id: &NodeId, job_id: &JobId) {
        let picture = self.fleet.inventory(node_id);
        let lists = |assigned: &AssignedJob| assigned.job_id == *job_id;
        if picture.is_some_and(|picture| picture.assigned_jobs.iter().any(lists)) {
            self.relist.insert(node_id.clone());
        }
    }

    /// Brings what nodes list in line with bindings that were made or undone since.
    pub(crate) fn relist(&mut self) {
        while let Some(node_id) = self.relist.pop_first() {
            self.note_listed(&node_id);
        }
    }

    /// What a node's picture lists, less the instances that the Manager has seen end since, and with
    /// those that have begun to end before it listed them: a picture is late by design (RESV-07).
    pub(crate) fn note_listed(&mut self, node_id: &NodeId) {
        if !self.fleet.contains(node_id) {
            return;
        }
        self.relist.remove(node_id);
        let inventory = self.fleet.inventory(node_id).cloned();
        let assigned = inventory.as_ref().map_or(&[][..], |it| &it.assigned_jobs);
        let mut foreign = Vec::new();
        let mut listed: BTreeMap<(JobId, bool), Listed> = BTreeMap::new();
        let mut gone = Vec::new();
        let mut devices = Vec::new();
        let mut seen: BTreeMap<&JobId, BTreeSet<&StartId>> = BTreeMap::new();
        let over = self.nodes.get(node_id).map(|record| &record.over);
        for assigned in assigned {
            let job_id = &assigned.job_id;
            // One that the mirror knows no more, or not yet, takes its room all the same.
            let job = self.jobs.get(job_id).map(Box::as_ref);
            // Services reserve nothing but their ports, which are counted elsewhere (RESV-06).
            if job.is_some_and(|job| is_service(&job.seen.job)) {
                continue;
            }
            let needs = needs_of(assigned, job);
            if over.is_some_and(|over| over.contains(&assigned.start_id)) {
                gone.push(Listed {
                    job_id: job_id.clone(),
                    needs,
                    gpu_index: assigned.gpu_index,
                    beside: false,
                });
                continue;
            }
            seen.entry(job_id).or_default().insert(&assigned.start_id);
            let spot = match job {
                Some(job) => job.spot.clone(),
                None => self.spot_by_bundle(job_id),
            };
            foreign.extend(spot.map(|spot| (job_id.clone(), spot)));
            let beside = job.is_some_and(|job| is_another(job, node_id, assigned));
            if let (Some(job), Some(index), false) = (job, assigned.gpu_index, beside) {
                let side = unknown_device(job, node_id);
                devices.extend(side.map(|side| (job_id.clone(), side, index)));
            }
            let entry = listed
                .entry((job_id.clone(), beside))
                .or_insert_with(|| Listed {
                    job_id: job_id.clone(),
                    needs: Needs::default(),
                    gpu_index: assigned.gpu_index,
                    beside,
                });
            entry.needs.add(&needs);
        }
        for job_id in self.remains_at.get(node_id).into_iter().flatten() {
            let Some(job) = self.jobs.get(job_id) else {
                continue;
            };
            let beside = match seen.get(job_id) {
                Some(starts) if !self.leaves_another(job, node_id, starts) => continue,
                starts => starts.is_some(),
            };
            if let Some(mut kept) = left_on(job, node_id) {
                let spot = job.spot.clone();
                foreign.extend(spot.map(|spot| (job_id.clone(), spot)));
                kept.beside = beside;
                let key = (job_id.clone(), beside);
                match listed.entry(key) {
                    Entry::Vacant(free) => drop(free.insert(kept)),
                    Entry::Occupied(mut more) => more.get_mut().needs.add(&kept.needs),
                }
            }
        }
        let orphans = self.nodes.get(node_id).map(|record| &record.orphans);
        for (_, orphan) in orphans.into_iter().flatten() {
            if !seen.contains_key(&orphan.job_id) {
                let spot = self.spot_by_bundle(&orphan.job_id);
                foreign.extend(spot.map(|spot| (orphan.job_id.clone(), spot)));
                let key = (orphan.job_id.clone(), false);
                listed.entry(key).or_insert_with(|| orphan.clone());
            }
        }
        self.fleet.set_foreign(node_id, foreign);
        self.fleet
            .set_listed(node_id, listed.into_values().collect(), gone);
        for (job_id, side, index) in devices {
            self.learn_device(&job_id, side, index);
        }
    }

    /// The picture tells on which device a bound job has its share, which was not known (GPU-05).
    fn learn_device(&mut self, job_id: &JobId, side: Side, index: u32) {
        let Some(job) = self.jobs.get_mut(job_id) else {
            return;
        };
        match side {
            Side::Binding => {
                if let Some(binding) = &mut job.binding {
                    binding.gpu_index = Some(index);
                }
                if let Some(record) = &mut job.record {
                    record.gpu_index = Some(index);
                }
            }
            Side::MigrationTarget => {
                if let Some(target) = &mut job.target {
                    target.gpu_index = Some(index);
                }
            }
        }
        self.fleet.set_gpu_index(job_id, side, Some(index));
    }

    /// True where something of a job is ending on a node beside the instances of it that the node lists:
    /// it came back with an old one, and the next one there has ended before a picture showed it.
    fn leaves_another(
        &self,
        job: &JobRecord,
        node_id: &NodeId,
        listed: &BTreeSet<&StartId>,
    ) -> bool {
        let back = self.is_running(node_id);
        let runs = history::runs(&job.seen);
        let mut ending = runs
            .iter()
            .filter(|run| run.node_id == *node_id && run.leaves_remains(back));
        ending.any(|run| {
            let start_id = run.start_id.as_ref();
            start_id.is_some_and(|start_id| !listed.contains(start_id))
        })
    }

    /// A job leaves the mirror. What is left of it is there for all that: until a picture says whether it
    /// still is, its room is taken. A picture that is the same as the one before is not told, so there may
    /// be none for ever; after a while that is what no picture says (RESV-07).
    pub(crate) fn orphan_remains(&mut self, job_id: &JobId) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let left: Vec<_> = job
            .remains
            .iter()
            .filter_map(|node_id| Some((node_id.clone(), left_on(job, node_id)?)))
            .collect();
        for (node_id, left) in left {
            if let Some(record) = self.nodes.get_mut(&node_id) {
                record.orphans.push((self.now.mono, left));
                self.wait_for_picture(&node_id);
            }
        }
    }

    /// What no picture has told of for long enough is gone.
    pub(crate) fn end_orphans(&mut self, node_id: &NodeId) {
        let now = self.now.mono;
        let Some(record) = self.nodes.get_mut(node_id) else {
            return;
        };
        record
            .orphans
            .retain(|(since, _)| now - *since < ORPHAN_WAIT);
        self.wait_for_picture(node_id);
        self.note_listed(node_id);
        self.pending.wake();
    }

    fn wait_for_picture(&mut self, node_id: &NodeId) {
        let record = self.nodes.get(node_id);
        if let Some((since, _)) = record.and_then(|record| record.orphans.first()) {
            let timer = Timer::OrphanedRemains(node_id.clone());
            self.timers.set(timer, Due::Mono(*since + ORPHAN_WAIT));
        }
    }

    /// Place in its bundle of a job that is not in the mirror: the stream does not announce one that is
    /// over, but its bundle names it, and what is left of it is there for all that.
    fn spot_by_bundle(&self, job_id: &JobId) -> Option<JobRef> {
        let text = job_id.as_str();
        let ends = text.match_indices('.').map(|(at, _)| at);
        ends.filter_map(|at| self.bundles.get_key_value(&text[..at]))
            .find_map(|(bundle_id, record)| {
                let jobs = &record.status.as_ref()?.jobs;
                let known = jobs.iter().find(|known| known.job_id == *job_id)?;
                Some(JobRef::new(
                    bundle_id.clone(),
                    known.replica_index,
                    known.job_name.clone(),
                ))
            })
    }
}

/// What an instance holds. A picture does not tell capabilities by instance.
fn needs_of(assigned: &AssignedJob, job: Option<&JobRecord>) -> Needs {
    let defined = job.and_then(|job| job.seen.job.auto_placement.as_ref());
    Needs::of(&Requirements {
        required_capacity: assigned.capacity,
        required_cores: assigned.cores,
        required_capabilities: defined
            .map_or_else(Vec::new, |it| it.requirements.required_capabilities.clone()),
        required_host_ports: assigned.host_ports.clone(),
        required_gpu_capacity: assigned.gpu_capacity,
        ..Requirements::default()
    })
}

/// What an instance holds that is ending on a node and not listed by it.
fn left_on(job: &JobRecord, node_id: &NodeId) -> Option<Listed> {
    let left = job.left.iter().find(|left| left.node_id == *node_id)?;
    Some(Listed {
        job_id: job.job_id().clone(),
        needs: Needs::clone(&left.needs),
        gpu_index: left.gpu_index,
        beside: false,
    })
}

/// The side with which a job is bound to a node, where its device is not known.
fn unknown_device(job: &JobRecord, node_id: &NodeId) -> Option<Side> {
    if let Some(binding) = job.binding.as_ref().filter(|it| it.node_id == *node_id) {
        return binding.gpu_index.is_none().then_some(Side::Binding);
    }
    let target = job.target.as_ref().filter(|it| it.node_id == *node_id)?;
    target.gpu_index.is_none().then_some(Side::MigrationTarget)
}

/// True for an instance of a job that is bound there which is not that of the binding: a server came
/// back with what it carried before, and the job was placed there once more. Both take room.
fn is_another(job: &JobRecord, node_id: &NodeId, assigned: &AssignedJob) -> bool {
    let mut sides = job.binding.iter().chain(job.target.as_deref());
    let Some(side) = sides.find(|side| side.node_id == *node_id) else {
        return false;
    };
    // Where there are no start ids none is judged. One of which the history has nothing is of a job of
    // this id that was deleted, or was never recorded: what is bound is told before a picture shows it.
    !assigned.start_id.as_str().is_empty()
        && history::newest_of(&job.seen, &assigned.start_id)
            .is_none_or(|newest| newest <= side.since)
}
