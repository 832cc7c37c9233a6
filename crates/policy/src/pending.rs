//! Jobs to be placed: who is one, in which order, and when they are tried.
//!
//! A job is looked at again whenever something about it changes ([`Policy::refresh`]); it is tried
//! when it has just become placeable, and with all other pending ones when something happened that
//! may have made room (PEND-02). Nothing is tried by polling, and an input after which nothing is
//! pending costs nothing (PEND-07). A pass over many jobs of few kinds costs a try for each kind and
//! each placement, not for each job (PEND-08).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use greenroom_placement::{Decision, Request, place};
use greenroom_types::job::JobState;
use greenroom_types::{BundleId, JobId, NodeId, Wall};

use crate::class::Class;
use crate::effect::Effects;
use crate::job::{Cause, JobRecord, Standing, Wait};
use crate::policy::Policy;
use crate::timer::{Due, Timer};

/// Place in line: by first announcement of the bundle, primary before backup, order of the
/// specification (PEND-04).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingKey {
    bundle: u64,
    replica_index: u32,
    spec: usize,
    job_id: JobId,
}

/// A job's entry among the pending ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: PendingKey,
    pub(crate) class: Class,
}

/// The jobs to be placed, and which of them this input tries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    all: BTreeMap<PendingKey, Class>,
    by_class: BTreeMap<Class, BTreeSet<PendingKey>>,
    /// Jobs that were not told yet that there is no place for them.
    untold: BTreeSet<PendingKey>,
    /// To be tried at the end of this input.
    now: BTreeSet<JobId>,
    /// Something may have made room: try them all (PEND-03).
    everything: bool,
    /// Something may have made room on these nodes, and nowhere else.
    nodes: BTreeSet<NodeId>,
    /// Already tried within this input.
    tried: BTreeSet<JobId>,
}

/// What came of one try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// It has a place.
    Placed,
    /// There is none.
    Failed,
    /// It was not tried: something else holds it.
    Held,
}

// === impl Pending ===

impl Pending {
    /// Something happened that may have made room (PEND-02).
    pub(crate) const fn wake(&mut self) {
        self.everything = true;
    }

    /// Something about one node changed, and nothing else did.
    pub(crate) fn wake_for(&mut self, node_id: &NodeId) {
        self.nodes.insert(node_id.clone());
    }

    /// True when there may be room, at the end of this input, that was not there before.
    pub(crate) fn is_woken(&self) -> bool {
        self.everything || !self.nodes.is_empty()
    }

    /// Tries this job at the end of the input, if it is pending then.
    pub(crate) fn try_now(&mut self, job_id: &JobId) {
        self.now.insert(job_id.clone());
    }

    /// This input has tried it: the pass at its end does not try it again.
    pub(crate) fn note_tried(&mut self, job_id: &JobId) {
        self.tried.insert(job_id.clone());
    }

    /// The job was told that there is no place for it.
    pub(crate) fn note_told(&mut self, entry: &Entry) {
        self.untold.remove(&entry.key);
    }

    /// Takes a job in. A new question makes it one that was told nothing.
    fn insert(&mut self, entry: &Entry, told: bool) {
        let Entry { key, class } = entry.clone();
        self.all.insert(key.clone(), class.clone());
        if !told {
            self.untold.insert(key.clone());
        }
        self.by_class.entry(class).or_default().insert(key);
    }

    /// True if the job had been told.
    pub(crate) fn remove(&mut self, entry: &Entry) -> bool {
        self.all.remove(&entry.key);
        if let Some(keys) = self.by_class.get_mut(&entry.class) {
            keys.remove(&entry.key);
            if keys.is_empty() {
                self.by_class.remove(&entry.class);
            }
        }
        !self.untold.remove(&entry.key)
    }

    /// All pending jobs in the order in which they are tried.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &JobId> {
        self.all.keys().map(|key| &key.job_id)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The first job of a class behind that place in line.
    fn next_of(&self, class: &Class, behind: Option<&PendingKey>) -> Option<PendingKey> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.by_class.get(class)?;
        keys.range((from, Bound::Unbounded)).next().cloned()
    }
}

/// One pass: the next job of each class that may have a place, and jobs to be tried in any case.
struct Pass {
    /// It is over all pending jobs; otherwise only those to be tried in any case are.
    whole: bool,
    heads: BTreeMap<PendingKey, Class>,
    besides: BTreeSet<PendingKey>,
    /// Classes for which there is no place as things stand.
    failed: BTreeSet<Class>,
}

// === impl Policy ===

impl Policy {
    /// Why a job is not placed, or that it is to be.
    pub(crate) fn standing(&self, job: &JobRecord) -> Standing {
        let Some(spot) = &job.spot else {
            return Standing::NotPlacedByPolicy;
        };
        if job.binding.is_some() {
            return Standing::Bound;
        }
        if let Some(reason) = job.terminal() {
            let reason = reason.to_owned();
            return Standing::Terminal { reason };
        }
        if job.seen.state == JobState::Post {
            return Standing::Over;
        }
        if job.seen.job.is_dormant() {
            return Standing::Dormant;
        }
        let bundle = self.bundles.get(&spot.bundle_id);
        if let Some(bundle) = bundle {
            if !bundle.is_live() {
                return Standing::BundleNotLive;
            }
            if let Some(reason) = &bundle.broken {
                let reason = reason.clone();
                return Standing::BundleBroken { reason };
            }
        }
        if let Some(at) = self.scheduled_for(job) {
            return Standing::Scheduled { at };
        }
        let Some(status) = bundle.and_then(|bundle| bundle.status.as_ref()) else {
            return Standing::BundleUnknown;
        };
        if !spot.is_of(&status.bundle) {
            return Standing::SpecUnknown;
        }
        if job.resting {
            return Standing::StoppedByRequest;
        }
        match job.wait {
            Some(Wait::StartRetry) => Standing::StartRetry,
            Some(Wait::Spacing) => Standing::RecoverySpacing,
            None => Standing::Pending,
        }
    }

    /// Brings timers and the set of pending jobs in line with where the job stands now. A job that
    /// has just become placeable is tried at the end of this input (LAUNCH-01).
    pub(crate) fn refresh(&mut self, job_id: &JobId) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        let standing = self.standing(job);
        let new = (standing == Standing::Pending).then(|| Entry {
            key: self.pending_key(job),
            class: self.class_of(job),
        });
        let changed = job.pending.as_deref() != new.as_ref();

        let scheduled = Timer::ScheduledStart(job_id.clone());
        match standing {
            Standing::Scheduled { at } => {
                // The same time keeps its timer and its place in line (SCHED-04).
                if self.timers.due(&scheduled) != Some(Due::Wall(at)) {
                    self.timers.set(scheduled, Due::Wall(at));
                }
            }
            _ => self.timers.stop(&scheduled),
        }
        let waits = matches!(standing, Standing::StartRetry | Standing::RecoverySpacing);
        if !waits {
            self.stop_wait(job_id);
        }
        if standing != Standing::Pending {
            self.timers.stop(&Timer::LaunchGate(job_id.clone()));
        }
        if changed {
            self.file(job_id, new);
        }
    }

    /// Puts a job among the pending ones, takes it out, or moves it to where it belongs now.
    fn file(&mut self, job_id: &JobId, new: Option<Entry>) {
        let job = self.jobs.get_mut(job_id);
        let old = job.and_then(|job| job.pending.take());
        let told = old.as_ref().is_some_and(|entry| self.pending.remove(entry));
        if let Some(new) = &new {
            let same = old.as_ref().is_some_and(|old| old.class == new.class);
            self.pending.insert(new, told && same);
        }
        if old.is_none() {
            self.pending.try_now(job_id);
        }
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.pending = new.map(Box::new);
        }
    }

    /// What is excluded for a job alone changed, and with it perhaps its class.
    pub(crate) fn reclass(&mut self, job_id: &JobId) {
        let Some(job) = self.jobs.get(job_id) else {
            return;
        };
        if let Some(old) = &job.pending {
            let class = self.class_of(job);
            if class != old.class {
                let key = old.key.clone();
                self.file(job_id, Some(Entry { key, class }));
            }
        }
    }

    /// Looks again at every job of a bundle.
    pub(crate) fn refresh_bundle(&mut self, bundle_id: &BundleId) {
        for job_id in self.jobs_of(bundle_id) {
            self.refresh(&job_id);
        }
    }

    pub(crate) fn jobs_of(&self, bundle_id: &BundleId) -> Vec<JobId> {
        self.bundles
            .get(bundle_id)
            .map(|bundle| bundle.jobs.iter().cloned().collect())
            .unwrap_or_default()
    }

    pub(crate) fn pending_key(&self, job: &JobRecord) -> PendingKey {
        let spot = job.spot.as_ref();
        let bundle = spot.and_then(|spot| self.bundles.get(&spot.bundle_id));
        let spec = spot.and_then(|spot| {
            let jobs = &bundle?.status.as_ref()?.bundle.jobs;
            jobs.iter().position(|spec| spec.job_name == spot.job_name)
        });
        PendingKey {
            bundle: bundle.map_or(job.order, |bundle| bundle.order),
            replica_index: spot.map_or(0, |spot| spot.replica_index),
            spec: spec.unwrap_or(usize::MAX),
            job_id: job.job_id().clone(),
        }
    }

    /// When a job that is launched by its schedule is to be placed; none once that is past
    /// (SCHED-01). Recoveries ignore the schedule (SCHED-08).
    pub(crate) fn scheduled_for(&self, job: &JobRecord) -> Option<Wall> {
        if job.cause == Cause::Recovery {
            return None;
        }
        let start = self.start_of(job)?;
        let spot = job.spot.as_ref()?;
        let lead = self
            .bundle(&spot.bundle_id)
            .and_then(|bundle| {
                self.settings
                    .pool(bundle.pool_of(spot.replica_index).as_str())
            })
            .map(greenroom_types::pool::Pool::placement_lead)
            .unwrap_or_default();
        let at = start.plus(-i64::try_from(lead.0).unwrap_or(i64::MAX));
        (at > self.now.wall).then_some(at)
    }

    /// The start that its bundle gives a job, or else its own message (SCHED-03): a bundle is told
    /// before its jobs.
    pub(crate) fn start_of(&self, job: &JobRecord) -> Option<Wall> {
        let given = job.spot.as_ref().and_then(|spot| {
            let bundle = self.bundle(&spot.bundle_id)?;
            let spec = bundle.job(spot.job_name.as_str())?;
            spec.start_date_time.or(bundle.start_date_time)
        });
        given.or(job.seen.job.start_date_time)
    }

    /// Puts a job off until its own timer (PEND-06).
    pub(crate) fn wait(&mut self, job_id: &JobId, wait: Wait, until: greenroom_types::Mono) {
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.wait = Some(wait);
            let timer = match wait {
                Wait::StartRetry => Timer::StartRetry(job_id.clone()),
                Wait::Spacing => Timer::RecoverySpacing(job_id.clone()),
            };
            self.timers.set(timer, Due::Mono(until));
        }
        self.refresh(job_id);
    }

    fn stop_wait(&mut self, job_id: &JobId) {
        if let Some(job) = self.jobs.get_mut(job_id)
            && job.wait.take().is_some()
        {
            self.timers.stop(&Timer::StartRetry(job_id.clone()));
            self.timers.stop(&Timer::RecoverySpacing(job_id.clone()));
        }
    }

    /// The wait is over: the job is pending like any other, and tried now.
    pub(crate) fn end_wait(&mut self, job_id: &JobId) {
        if let Some(job) = self.jobs.get_mut(job_id)
            && job.wait.take().is_some()
        {
            self.refresh(job_id);
        }
    }

    /// The pass at the end of an input.
    pub(crate) fn run_pending(&mut self, out: &mut Effects) {
        let everything = std::mem::take(&mut self.pending.everything);
        let nodes = std::mem::take(&mut self.pending.nodes);
        let now = std::mem::take(&mut self.pending.now);
        if !self.pending.all.is_empty() {
            let mut besides: BTreeSet<PendingKey> = now
                .iter()
                .filter_map(|job_id| self.jobs.get(job_id)?.pending.as_ref())
                .map(|entry| entry.key.clone())
                .collect();
            let (mut heads, mut failed) = (BTreeMap::new(), BTreeSet::new());
            let whole = everything || !nodes.is_empty();
            if whole {
                besides.extend(self.pending.untold.iter().cloned());
                for (class, keys) in &self.pending.by_class {
                    let Some(first) = keys.first() else { continue };
                    if everything || self.may_fit_on(&first.job_id, &nodes) {
                        heads.insert(first.clone(), class.clone());
                    } else {
                        failed.insert(class.clone());
                    }
                }
            }
            let pass = Pass {
                whole,
                heads,
                besides,
                failed,
            };
            self.try_in_order(pass, out);
        }
        self.pending.tried.clear();
        self.pending.now.clear();
        self.pending.nodes.clear();
        self.pending.everything = false;
    }

    /// Whether one of these nodes would do for a job. Where there was no place, and nothing but these
    /// nodes has changed, there is none now unless one of them will do.
    fn may_fit_on(&self, job_id: &JobId, nodes: &BTreeSet<NodeId>) -> bool {
        let excluded = self.excluded_for(job_id);
        let spot = self.jobs.get(job_id).and_then(|job| job.spot.as_ref());
        let Some((spot, bundle)) =
            spot.and_then(|spot| Some((spot, self.bundle(&spot.bundle_id)?)))
        else {
            return false;
        };
        let request = Request::new(&bundle, spot.replica_index, &spot.job_name);
        let Some(request) = request.map(|request| {
            request
                .of_job(job_id)
                .in_context(self.context_of(job_id, &bundle))
                .without(&excluded)
        }) else {
            return false;
        };
        nodes.iter().any(|node_id| {
            let decision = place(&self.fleet, &request.clone().pinned_to(node_id));
            !matches!(decision, Decision::Failure { .. })
        })
    }

    /// Tries jobs in their order (PEND-04). Once a job of a class finds no place, the rest of it is
    /// passed over until something is placed, which alone can change the answer within a pass: a
    /// bought node has room left, a spare that is taken is reserved no more.
    fn try_in_order(&mut self, mut pass: Pass, out: &mut Effects) {
        loop {
            let (head, besides) = (pass.heads.keys().next(), pass.besides.first());
            let Some(key) = head.into_iter().chain(besides).min().cloned() else {
                return;
            };
            let class = pass.heads.remove(&key);
            pass.besides.remove(&key);
            // A verdict within the pass may have taken it out.
            let Some(class) = class.or_else(|| self.pending.all.get(&key).cloned()) else {
                continue;
            };
            let there = self.pending.all.contains_key(&key);
            let tried = if there && !self.pending.tried.contains(&key.job_id) {
                self.place(&key.job_id, out)
            } else {
                Tried::Held
            };
            match tried {
                Tried::Failed => {
                    pass.failed.insert(class);
                    continue;
                }
                Tried::Placed => {
                    for class in std::mem::take(&mut pass.failed) {
                        self.go_on(&mut pass, class, &key);
                    }
                }
                Tried::Held => {}
            }
            if !pass.failed.contains(&class) {
                self.go_on(&mut pass, class, &key);
            }
        }
    }

    fn go_on(&self, pass: &mut Pass, class: Class, behind: &PendingKey) {
        if pass.whole
            && let Some(next) = self.pending.next_of(&class, Some(behind))
        {
            pass.heads.insert(next, class);
        }
    }
}
