//! Reading the policy's view (CALLB-14). Everything returned is a snapshot (CALLB-13); nothing here
//! changes, counts or fires anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_placement::{
    Decision, Findings, Port, Request, ServicePorts, Spare, Trace, place, place_traced, validate,
};
use greenroom_types::Wall;
use greenroom_types::bundle::{Bundle, BundleStatus};
use greenroom_types::id::{BundleId, JobId, JobName, NodeId};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::JobWithHistory;
use serde::{Deserialize, Serialize};

use crate::effect::{MirrorState, NodeView, PlacementInfo};
use crate::job::Standing;
use crate::policy::Policy;
use crate::settings::Settings;

/// A job that waits for its scheduled start (SCHED-06).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingPlacement {
    /// The job.
    pub job_id: JobId,
    /// Its start less its lead.
    pub scheduled_for: Wall,
}

/// A bundle that ends by itself (STOP-05).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleStopTime {
    /// The bundle.
    pub bundle_id: BundleId,
    /// When.
    pub stop_at: Wall,
}

/// What a dry run found (PLACE-33).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// Where the job would go.
    pub decision: Decision,
    /// Why.
    pub trace: Trace,
}

/// Whether a bundle could be placed now (VALID-10).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Admission {
    /// Every job by itself finds a place.
    Ok {
        /// What may not turn out as meant.
        findings: Findings,
    },
    /// The bundle must not be submitted.
    ValidationErrors {
        /// What is wrong with it.
        findings: Findings,
    },
    /// Some jobs would find no place.
    NoCapacity {
        /// Each of them.
        unplaceable: Vec<Unplaceable>,
        /// What may not turn out as meant.
        findings: Findings,
    },
}

/// A job that would find no place (VALID-10).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unplaceable {
    /// Its copy.
    pub replica_index: u32,
    /// Its name.
    pub job_name: JobName,
    /// Reason code of the failure.
    pub reason: String,
}

/// Host ports that the configured node services claim (PORT-06).
pub(crate) fn service_ports(settings: &Settings) -> Vec<ServicePorts> {
    settings
        .node_services
        .iter()
        .map(|service| ServicePorts {
            service_id: service.service_id.clone(),
            pools: service.pools.clone(),
            consumes: service.consumes.clone(),
            ports: service
                .job_spec
                .requirements
                .required_host_ports
                .iter()
                .filter_map(|token| token.parse::<Port>().ok())
                .collect(),
        })
        .collect()
}

// === impl Policy: mirrors ===

impl Policy {
    /// Every job of the mirror, by id.
    pub fn jobs(&self) -> impl Iterator<Item = &Arc<JobWithHistory>> {
        self.jobs.values().map(|job| &job.seen)
    }

    /// A job of the mirror.
    pub fn job_by_id(&self, job_id: &JobId) -> Option<&Arc<JobWithHistory>> {
        Some(&self.jobs.get(job_id)?.seen)
    }

    /// Every node of the mirror, by id, prospective ones included.
    pub fn nodes(&self) -> Vec<NodeView> {
        self.nodes
            .keys()
            .filter_map(|node_id| self.view(node_id))
            .collect()
    }

    /// Every known bundle, by id.
    pub fn bundles(&self) -> impl Iterator<Item = &Arc<BundleStatus>> {
        self.bundles
            .values()
            .filter_map(|bundle| bundle.status.as_ref())
    }

    /// A bundle.
    pub fn bundle_by_id(&self, bundle_id: &BundleId) -> Option<&Arc<BundleStatus>> {
        self.bundles.get(bundle_id)?.status.as_ref()
    }

    /// Jobs of a bundle by their tags; none for an unknown one.
    pub fn jobs_for_bundle(&self, bundle_id: &BundleId) -> Vec<JobId> {
        self.jobs_of(bundle_id)
    }

    /// Node that a job is bound to, if it is in the mirror (CALLB-15).
    pub fn node_for_job(&self, job_id: &JobId) -> Option<&NodeId> {
        let binding = self.jobs.get(job_id)?.binding.as_ref()?;
        let (node_id, _) = self.nodes.get_key_value(&binding.node_id)?;
        Some(node_id)
    }

    /// Where a job stands; none for one that is not known.
    pub fn standing_of(&self, job_id: &JobId) -> Option<Standing> {
        self.jobs.get(job_id).map(|job| self.standing(job))
    }

    /// Placements of record, newest first.
    pub fn placements(&self) -> Vec<&PlacementInfo> {
        let mut all: Vec<&PlacementInfo> = self
            .jobs
            .values()
            .filter_map(|job| job.record.as_deref())
            .collect();
        all.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.job_id.cmp(&b.job_id)));
        all
    }

    /// Placement of record of a job (BIND-05).
    pub fn placement_for_job(&self, job_id: &JobId) -> Option<&PlacementInfo> {
        self.jobs.get(job_id)?.record.as_deref()
    }

    /// Jobs that wait for their scheduled start, earliest first (SCHED-06).
    pub fn pending_placements(&self) -> Vec<PendingPlacement> {
        let mut all: Vec<PendingPlacement> = self
            .jobs
            .iter()
            .filter_map(|(job_id, job)| match self.standing(job) {
                Standing::Scheduled { at } => Some(PendingPlacement {
                    job_id: job_id.clone(),
                    scheduled_for: at,
                }),
                _ => None,
            })
            .collect();
        all.sort_by(|a, b| (a.scheduled_for, &a.job_id).cmp(&(b.scheduled_for, &b.job_id)));
        all
    }

    /// Stop times from the Manager and from tags, earliest first (STOP-05).
    pub fn bundle_stop_times(&self) -> Vec<BundleStopTime> {
        let mut all: Vec<BundleStopTime> = self
            .bundles
            .iter()
            .filter_map(|(bundle_id, bundle)| {
                let kept = bundle.status.as_ref()?.bundle.stop_at;
                Some(BundleStopTime {
                    bundle_id: bundle_id.clone(),
                    stop_at: kept.or_else(|| self.tagged_stop(bundle_id))?,
                })
            })
            .collect();
        all.sort_by(|a, b| (a.stop_at, &a.bundle_id).cmp(&(b.stop_at, &b.bundle_id)));
        all
    }

    /// A node's last picture of itself.
    pub fn inventory(&self, node_id: &NodeId) -> Option<&Arc<NodeInventory>> {
        self.fleet.inventory(node_id)
    }

    /// All pictures, in the order in which they first arrived.
    pub fn inventories(&self) -> Vec<(NodeId, Arc<NodeInventory>)> {
        let by_arrival: BTreeMap<u64, &NodeId> = self
            .nodes
            .iter()
            .filter_map(|(node_id, record)| Some((record.inventory_order?, node_id)))
            .collect();
        by_arrival
            .into_values()
            .filter_map(|node_id| Some((node_id.clone(), Arc::clone(self.inventory(node_id)?))))
            .collect()
    }

    /// True for a bundle of which nothing is placed any more (CEIL-07).
    pub fn is_bundle_broken(&self, bundle_id: &BundleId) -> bool {
        self.bundles
            .get(bundle_id)
            .is_some_and(|bundle| bundle.broken.is_some())
    }

    /// Counted restarts of a job within the trailing hour (CEIL-04). `now` is what the clocks say.
    pub fn restart_count(&self, now: greenroom_types::Now, job_id: &JobId) -> usize {
        self.jobs
            .get(job_id)
            .map_or(0, |job| job.restarts_at(now.mono))
    }

    /// Where a node of the mirror stands.
    pub fn node_state(&self, node_id: &NodeId) -> Option<MirrorState> {
        self.nodes.get(node_id).map(|record| record.state)
    }

    /// True when the node is tagged as a spare (SPARE-03).
    pub fn is_hot_spare_node(&self, node_id: &NodeId) -> bool {
        self.spare_spec(node_id).is_some()
    }

    /// What a spare's tags say; none for a node that is no spare (SPARE-03).
    pub fn spare_spec(&self, node_id: &NodeId) -> Option<&Spare> {
        self.fleet.facts(node_id)?.spare.as_ref()
    }

    /// True for a spare that carries no job and was not consumed (SPARE-04).
    pub fn is_unconsumed_spare(&self, node_id: &NodeId) -> bool {
        self.fleet.unconsumed_spare(node_id).is_some()
    }
}

// === impl Policy: questions to the engine ===

impl Policy {
    /// Where a job of a bundle would go now, with the trace; nothing is done (PLACE-33). Without a
    /// name the first job is meant.
    pub fn place_dry_run(
        &self,
        bundle: &Bundle,
        replica_index: u32,
        job_name: Option<&JobName>,
    ) -> Option<DryRun> {
        let job_name = match job_name {
            Some(name) => name,
            None => &bundle.jobs.first()?.job_name,
        };
        let request = Request::new(bundle, replica_index, job_name)?;
        let (decision, trace) = place_traced(&self.fleet, &request);
        Some(DryRun { decision, trace })
    }

    /// What is wrong with a bundle before it is submitted (VALID-01).
    pub fn validate_bundle(&self, bundle: &Bundle) -> Findings {
        validate(bundle, &self.fleet)
    }

    /// Whether each job of a bundle, by itself, would find a place now (VALID-10).
    pub fn validate_bundle_admission(&self, bundle: &Bundle) -> Admission {
        let findings = self.validate_bundle(bundle);
        if !findings.errors.is_empty() {
            return Admission::ValidationErrors { findings };
        }
        let mut unplaceable = Vec::new();
        for replica_index in 0..bundle.copies() {
            for job in &bundle.jobs {
                let Some(request) = Request::new(bundle, replica_index, &job.job_name) else {
                    continue;
                };
                if let Decision::Failure { reason, .. } = place(&self.fleet, &request) {
                    unplaceable.push(Unplaceable {
                        replica_index,
                        job_name: job.job_name.clone(),
                        reason: reason.code().to_owned(),
                    });
                }
            }
        }
        if unplaceable.is_empty() {
            Admission::Ok { findings }
        } else {
            Admission::NoCapacity {
                unplaceable,
                findings,
            }
        }
    }
}
