//! Recomputes what is derived and lists what does not agree. Run after every event in simulations,
//! and from time to time in service; it changes nothing.

use greenroom_placement::Side;

use crate::job::{JobRecord, Standing};
use crate::policy::Policy;
use crate::timer::Timer;

/// A statement that ought to hold and does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {detail}")]
pub struct Violation {
    /// Name of the invariant.
    pub invariant: &'static str,
    /// Which object, and how.
    pub detail: String,
}

// === impl Policy ===

impl Policy {
    /// Every invariant that is violated.
    pub fn check(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        self.invariant_fleet_follows_its_bindings(&mut found);
        self.invariant_bindings_agree(&mut found);
        self.invariant_pending_is_what_stands_pending(&mut found);
        self.invariant_waits_have_timers(&mut found);
        self.invariant_bundles_know_their_jobs(&mut found);
        self.invariant_spares_are_filed(&mut found);
        found
    }

    /// What the fleet derives is what its bindings say (RESV-01).
    fn invariant_fleet_follows_its_bindings(&self, found: &mut Vec<Violation>) {
        found.extend(self.fleet.recompute().into_iter().map(|drift| Violation {
            invariant: "fleet_follows_its_bindings",
            detail: drift.to_string(),
        }));
    }

    /// A job's record and the fleet name the same node (BIND-02).
    fn invariant_bindings_agree(&self, found: &mut Vec<Violation>) {
        for (job_id, job) in &self.jobs {
            let target = job.target.as_ref().map(|target| &target.node_id);
            let fleet = self.fleet.side_of(job_id, Side::MigrationTarget);
            if target != fleet || job.target.is_some() && job.migration.is_none() {
                found.push(Violation {
                    invariant: "bindings_agree",
                    detail: format!(
                        "target of {job_id}: the record says {target:?}, the fleet {fleet:?}"
                    ),
                });
            }
            let here = job.binding.as_ref().map(|binding| &binding.node_id);
            let there = self.fleet.side_of(job_id, Side::Binding);
            if here != there {
                found.push(Violation {
                    invariant: "bindings_agree",
                    detail: format!("job {job_id}: the record says {here:?}, the fleet {there:?}"),
                });
            }
        }
        for node_id in self.nodes.keys() {
            for bound in self.fleet.jobs_on(node_id) {
                if !self.jobs.contains_key(&bound.job_id) {
                    found.push(Violation {
                        invariant: "bindings_agree",
                        detail: format!("node {node_id} carries {}, which is gone", bound.job_id),
                    });
                }
            }
        }
    }

    /// The pending set holds exactly the jobs that stand pending (PEND-01).
    fn invariant_pending_is_what_stands_pending(&self, found: &mut Vec<Violation>) {
        if !self.is_live() {
            return;
        }
        let mut count = 0;
        for (job_id, job) in &self.jobs {
            let stands = self.standing(job) == Standing::Pending;
            // A step of the wall clock is noticed within seconds, not at once (TIME-04).
            let waits = Timer::ScheduledStart(job_id.clone());
            let scheduled = self.start_of(job).is_some()
                && (job.pending.is_some() || self.timers.due(&waits).is_some());
            count += usize::from(if scheduled {
                job.pending.is_some()
            } else {
                stands
            });
            let class = job.pending.as_ref().map(|entry| &entry.class);
            if class.is_some_and(|class| *class != self.class_of(job)) {
                found.push(Violation {
                    invariant: "pending_is_what_stands_pending",
                    detail: format!("job {job_id} is filed under an old class"),
                });
            }
            if stands != job.pending.is_some() && !scheduled {
                found.push(Violation {
                    invariant: "pending_is_what_stands_pending",
                    detail: format!("job {job_id} stands pending: {stands}"),
                });
            }
        }
        if count != self.pending.len() {
            found.push(Violation {
                invariant: "pending_is_what_stands_pending",
                detail: format!(
                    "{count} jobs stand pending, {} are kept",
                    self.pending.len()
                ),
            });
        }
    }

    /// Its bundle is known and has it; one that it has no more is on its way out.
    fn is_of_its_bundle(&self, job: &JobRecord) -> bool {
        job.spot.as_ref().is_some_and(|spot| {
            let plan = self.fleet.plan(&spot.bundle_id);
            plan.is_some_and(|plan| spot.is_of(plan.bundle()))
        })
    }

    /// Whoever waits has a timer that ends the wait, so nothing waits for ever (PEND-06).
    fn invariant_waits_have_timers(&self, found: &mut Vec<Violation>) {
        if !self.is_live() {
            return;
        }
        for (job_id, job) in &self.jobs {
            let timer = match self.standing(job) {
                // One that lacks more than its time is looked at when that comes.
                Standing::Scheduled { .. }
                    if job.pending.is_none()
                        && job.wait.is_none()
                        && !job.resting
                        && self.is_of_its_bundle(job) =>
                {
                    Timer::ScheduledStart(job_id.clone())
                }
                Standing::StartRetry => Timer::StartRetry(job_id.clone()),
                Standing::RecoverySpacing => Timer::RecoverySpacing(job_id.clone()),
                _ => continue,
            };
            if self.timers.due(&timer).is_none() {
                found.push(Violation {
                    invariant: "waits_have_timers",
                    detail: format!("job {job_id} waits without {timer:?}"),
                });
            }
        }
        for (node_id, record) in &self.nodes {
            let timer = Timer::ProvisionTimeout(node_id.clone());
            if record.asked.is_some() && self.timers.due(&timer).is_none() {
                found.push(Violation {
                    invariant: "waits_have_timers",
                    detail: format!("node {node_id} is awaited without a timeout"),
                });
            }
        }
    }

    /// Jobs and bundles name each other (BUNDLE-07).
    fn invariant_bundles_know_their_jobs(&self, found: &mut Vec<Violation>) {
        for (bundle_id, bundle) in &self.bundles {
            for job_id in &bundle.jobs {
                let spot = self.jobs.get(job_id).and_then(|job| job.spot.as_ref());
                if spot.map(|spot| &spot.bundle_id) != Some(bundle_id) {
                    found.push(Violation {
                        invariant: "bundles_know_their_jobs",
                        detail: format!("bundle {bundle_id} lists {job_id}"),
                    });
                }
            }
        }
        for (job_id, job) in &self.jobs {
            let Some(spot) = &job.spot else { continue };
            let filed = self
                .bundles
                .get(&spot.bundle_id)
                .is_some_and(|bundle| bundle.jobs.contains(job_id));
            if !filed {
                found.push(Violation {
                    invariant: "bundles_know_their_jobs",
                    detail: format!("job {job_id} is not listed in its bundle"),
                });
            }
        }
    }

    /// Exactly the nodes tagged as spares are filed as such (SPARE-03).
    fn invariant_spares_are_filed(&self, found: &mut Vec<Violation>) {
        let tagged = self.nodes.keys().filter(|node_id| {
            let facts = self.fleet.facts(node_id);
            facts.is_some_and(|facts| facts.spare.is_some())
        });
        if !tagged.eq(self.spares.filed()) {
            let filed: Vec<_> = self.spares.filed().collect();
            found.push(Violation {
                invariant: "spares_are_filed",
                detail: format!("filed are {filed:?}"),
            });
        }
    }
}
