//! The fleet as it stands before the policy connects: nodes that run, bundles that were submitted,
//! jobs that run already (SCEN-04, SCEN-05). It is built through the same calls and reports by which
//! a real fleet comes about.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_ledger::{Command, Config, Finding, Open, Provider};
use greenroom_types::call::{Call, CreateAwsNode, CreateOciNode, Reply, StartJob};
use greenroom_types::node::RunningNodeMetadata;
use greenroom_types::pool::{Tier, TierKind};
use greenroom_types::{NodeId, SHARE_TOLERANCE, Tags};

use super::machine::Machine;
use super::worker::{RunPhase, Worker};
use super::{Stuck, Unbuilt, World};
use crate::format::Scenario;
use crate::format::fleet::{JobStands, NodeSpec};
use crate::format::names::JobPath;

/// Region of a node whose tier names none.
const NO_REGION: &str = "simulated";

/// Settings of the Manager: both clouds, any region.
pub(super) fn config() -> Config {
    Config {
        providers: BTreeMap::from([
            (Provider::Aws, BTreeSet::new()),
            (Provider::Oci, BTreeSet::new()),
        ]),
        ..Config::default()
    }
}

// === impl World ===

impl World {
    pub(super) fn set_up(&mut self, scenario: &Scenario) -> Result<(), Unbuilt> {
        let open = Open {
            epoch: self.seed.hex(),
            renew: false,
            config: Some(Box::new(config())),
            generation: 1,
        };
        let _ = self.commit(Command::Open(open));
        for (index, bundle) in scenario.bundles.iter().enumerate() {
            self.call_aside(Call::CreateBundle(Box::new(bundle.clone())))
                .map_err(|refusal| {
                    let id = &bundle.bundle_id;
                    let stuck = Stuck(format!("bundle {id:?} was refused: {refusal}"));
                    stuck.at(format!("bundles[{index}]"))
                })?;
        }
        for (job, stands) in &scenario.jobs {
            self.stands(job, stands)
                .map_err(|stuck| stuck.at(format!("jobs.{job}")))?;
        }
        for (index, node) in scenario.nodes.iter().enumerate() {
            self.join(node, &scenario.jobs)
                .map_err(|stuck| stuck.at(format!("nodes[{index}]")))?;
        }
        self.settle().map_err(|stuck| stuck.at(String::new()))
    }

    /// A job was started or stopped by hand, or has failed for good.
    fn stands(&mut self, job: &JobPath, stands: &JobStands) -> Result<(), Stuck> {
        let JobPath {
            bundle_id,
            replica_index,
            job_name,
        } = job.clone();
        let by_hand = stands.dormant.map(|dormant| match dormant {
            true => Call::StopBundleJob {
                bundle_id,
                replica_index,
                job_name,
                grace_ms: None,
            },
            false => Call::StartBundleJob {
                bundle_id,
                replica_index,
                job_name,
            },
        });
        let verdict = stands.verdict.clone().map(|reason| Call::MarkJobFailed {
            job_id: job.job_id(),
            reason,
        });
        for call in by_hand.into_iter().chain(verdict) {
            self.call_aside(call)
                .map_err(|refusal| Stuck(format!("{job} cannot stand so: {refusal}")))?;
        }
        Ok(())
    }

    /// A node appears and runs, with everything that its specification says, and with its jobs as they stand.
    pub(super) fn join(
        &mut self,
        node: &NodeSpec,
        jobs: &BTreeMap<JobPath, JobStands>,
    ) -> Result<(), Stuck> {
        let wrong = |what: &str, refusal: greenroom_types::call::Refusal| {
            Stuck(format!("node {:?}: {what}: {refusal}", node.id))
        };
        if self.workers.contains_key(&node.id) {
            return Err(Stuck(format!("node {:?} is there already", node.id)));
        }
        let step = match node.created_at {
            Some(instant) => instant.resolve(self.spec.start).since(self.wall()),
            None => 0,
        };
        self.workers
            .insert(node.id.clone(), Worker::of(machine(node)));
        // The record is dated by the clock, which is set back for as long as it takes to write it.
        self.wall_step += step;
        let made = match self.elastic_tier(node) {
            Some(tier) => self.make_elastic(node, &tier),
            None => self.make_slot(node),
        };
        self.wall_step -= step;
        made.map_err(|refusal| wrong("it cannot be made", refusal))?;
        self.settle()?;
        self.runs_all_along(&node.id, true);
        let started = node.jobs.iter().try_for_each(|job| {
            let device = jobs.get(job).and_then(|stands| stands.gpu);
            self.start_there(&node.id, job, device)
        });
        self.runs_all_along(&node.id, false);
        started
    }

    /// Whether what is started on a node counts as found there: a node that is closed to new work by
    /// now lets run what runs.
    fn runs_all_along(&mut self, node_id: &NodeId, found_running: bool) {
        if let Some(worker) = self.workers.get_mut(node_id) {
            worker.found_running = found_running;
        }
    }

    /// The tier of a node that a provider makes; none for a registered server.
    fn elastic_tier(&self, node: &NodeSpec) -> Option<Tier> {
        let pool = self.settings.pool(node.pool.as_ref()?.as_str())?;
        let tier = pool.tier(node.tier.as_ref()?.as_str())?;
        tier.is_elastic().then(|| tier.clone())
    }

    fn tags(node: &NodeSpec) -> Tags {
        let mut tags = node.spare.tags();
        if let Some(tier) = &node.tier {
            tags.insert("tier".into(), tier.to_string());
        }
        tags.extend(node.tags.clone());
        tags
    }

    fn make_elastic(
        &mut self,
        node: &NodeSpec,
        tier: &Tier,
    ) -> Result<(), greenroom_types::call::Refusal> {
        let mut tags = Tags::from([
            ("auto-manager".to_owned(), "true".to_owned()),
            (
                "reliability".to_owned(),
                tier.reliability().as_tag().to_owned(),
            ),
        ]);
        if let Some(pool) = &node.pool {
            tags.insert("pool".into(), pool.to_string());
        }
        tags.extend(Self::tags(node));
        let region = tier.region.clone().unwrap_or_else(|| NO_REGION.to_owned());
        let shape = tier.candidate_instance_types.first().map_or_else(
            || "simulated".to_owned(),
            |shape| shape.instance_type.clone(),
        );
        let call = match tier.kind {
            TierKind::Oci => Call::CreateOciNode(Box::new(CreateOciNode {
                node_id: node.id.clone(),
                tags,
                availability_domain: region,
                architecture: "x86_64".to_owned(),
                shape,
                launch_mode: tier.launch_mode,
                ..CreateOciNode::default()
            })),
            TierKind::Aws | TierKind::LocalServers => {
                Call::CreateAwsNode(Box::new(CreateAwsNode {
                    node_id: node.id.clone(),
                    tags,
                    region,
                    instance_type: shape,
                    launch_mode: tier.launch_mode,
                    root_volume: None,
                }))
            }
        };
        self.call_aside(call)?;
        let running = RunningNodeMetadata {
            provider_id: format!("sim-{}", node.id),
            ..RunningNodeMetadata::default()
        };
        let zone = node.az.clone().unwrap_or_default();
        let tags = Tags::new();
        self.finding(
            &node.id,
            Finding::Running {
                running,
                zone,
                tags,
            },
        );
        self.worker_comes_up(&node.id);
        Ok(())
    }

    fn make_slot(&mut self, node: &NodeSpec) -> Result<(), greenroom_types::call::Refusal> {
        let pool = node.pool.clone().unwrap_or_default();
        let reply = self.call_aside(Call::RegisterClusterNode {
            node_name: node.id.to_string(),
            pool,
        })?;
        if let Reply::Slot { token, .. } = reply
            && let Some(worker) = self.workers.get_mut(&node.id)
        {
            worker.token = Some(token);
        }
        self.call_in(&node.id);
        let tags = Self::tags(node);
        if !tags.is_empty() {
            self.call_aside(Call::SetNodeTags {
                node_id: node.id.clone(),
                tags,
                remove: Vec::new(),
                expected_revision: None,
            })?;
        }
        Ok(())
    }

    /// The first device of a node with room for a job's share; none for a job without one.
    fn device_for(&self, node_id: &NodeId, job: &JobPath) -> Option<u32> {
        let record = self.ledger.job(&job.job_id())?;
        let needs = &record.view.job.auto_placement.as_ref()?.requirements;
        let share = needs.required_gpu_capacity;
        let model = needs.required_gpu_model.as_str();
        let worker = self.workers.get(node_id).filter(|_| share > 0.0)?;
        let inventory = worker.inventory();
        let fits = |gpu: &&greenroom_types::inventory::Gpu| {
            (model.is_empty() || gpu.model.eq_ignore_ascii_case(model))
                && gpu.reserved_capacity + share <= gpu.capacity + SHARE_TOLERANCE
        };
        inventory.gpus.iter().find(fits).map(|gpu| gpu.index)
    }

    /// A job runs on a node without the policy having put it there.
    fn start_there(
        &mut self,
        node_id: &NodeId,
        job: &JobPath,
        device: Option<u32>,
    ) -> Result<(), Stuck> {
        let record = self.ledger.job(&job.job_id());
        if record.is_some_and(|record| record.view.job.is_dormant()) {
            // It runs, so somebody has started it by hand.
            self.call_aside(Call::StartBundleJob {
                bundle_id: job.bundle_id.clone(),
                replica_index: job.replica_index,
                job_name: job.job_name.clone(),
            })
            .map_err(|refusal| Stuck(format!("{job} cannot be started: {refusal}")))?;
        }
        let call = Call::StartJob(StartJob {
            job_id: job.job_id(),
            role: job.role(),
            node_id: node_id.clone(),
            defer_start: false,
            runtime_role: String::new(),
            gpu_index: device.or_else(|| self.device_for(node_id, job)),
            migration_id: None,
            migration_state: None,
        });
        self.call_aside(call)
            .map_err(|refusal| Stuck(format!("{job} on node {node_id:?}: {refusal}")))?;
        self.settle()?;
        let start_id = self.workers.get(node_id).and_then(|worker| {
            worker
                .runs
                .iter()
                .find(|(_, run)| {
                    run.phase == RunPhase::Creating && run.order.instance.key.job_id == job.job_id()
                })
                .map(|(start_id, _)| start_id.clone())
        });
        let Some(start_id) = start_id else {
            return Err(Stuck(format!(
                "{job} cannot run on node {node_id:?}: its worker refused it"
            )));
        };
        self.runs(node_id, &start_id);
        self.settle()
    }
}

fn machine(node: &NodeSpec) -> Machine {
    let mut machine = Machine {
        capacity: node.capacity,
        cores: node.cores,
        utilization_cap: node.utilization_cap,
        capabilities: node.capabilities.clone(),
        gpus: node.gpus.clone(),
        held_images: node.held_images.iter().cloned().collect(),
        az: node.az.clone().unwrap_or_default(),
        cordoned: node.cordoned,
        disks: node.disks.clone(),
        disk_low: false,
        runtime: node.runtime.clone(),
    };
    machine.judge_disk();
    machine
}
