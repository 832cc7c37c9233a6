//! Node services: one instance of each configured service on every node that is fit for it (NSVC).
//!
//! A pass compares where a service runs with where it should, and starts and ends instances. It looks
//! at the nodes about which something changed, and at all of them at the tick. An instance has a job
//! of its own that is created with it and deleted after it: it is no bundle's, so that nothing here
//! counts, judges or recovers, and placement sees of a service no more than its host ports (RESV-06).

use std::collections::{BTreeMap, BTreeSet};

use greenroom_placement::Needs;
use greenroom_types::call::{Call, StartJob};
use greenroom_types::id::ServiceId;
use greenroom_types::inventory::Capability;
use greenroom_types::job::{Job, JobWithHistory, TAG_TEMPLATE};
use greenroom_types::node::InstanceKey;
use greenroom_types::{JobId, Mono, NodeId, Role};

use crate::calls::Purpose;
use crate::effect::{Effects, ErrorInfo};
use crate::event::CallFailure;
use crate::history::{self, End};
use crate::launch::is_started;
use crate::policy::Policy;
use crate::settings::{NodeService, SERVICE_RETRY};
use crate::timer::{Due, Timer};

/// Tag naming the service of an instance's job (NSVC-04).
const TAG_NODE_SERVICE: &str = "nodeService";

/// True for a job that runs a node service.
pub(crate) fn is_service(job: &Job) -> bool {
    job.tags.contains_key(TAG_NODE_SERVICE)
}

/// Where services are, and what a pass is to look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Services {
    /// The next pass looks at every node.
    all: bool,
    looks: BTreeSet<NodeId>,
    placed: BTreeMap<ServiceId, BTreeMap<NodeId, Placed>>,
    /// The instance of each job.
    jobs: BTreeMap<JobId, (ServiceId, NodeId)>,
    /// Not to be started there again before (NSVC-10).
    waits: BTreeMap<(ServiceId, NodeId), Mono>,
}

/// One instance.
#[derive(Clone, Debug)]
struct Placed {
    job_id: JobId,
    /// Its job is there: a start was sent.
    created: bool,
}

/// A step of a start, for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceStep {
    Create,
    Start,
}

// === impl Services ===

impl Services {
    /// Something about a node changed that may make it fit or unfit (NSVC-07).
    pub(crate) fn look_at(&mut self, node_id: &NodeId) {
        self.looks.insert(node_id.clone());
    }

    fn record(&mut self, service_id: &ServiceId, node_id: &NodeId, placed: Placed) {
        let place = (service_id.clone(), node_id.clone());
        self.jobs.insert(placed.job_id.clone(), place);
        self.placed
            .entry(service_id.clone())
            .or_default()
            .insert(node_id.clone(), placed);
    }

    fn remove(&mut self, service_id: &ServiceId, node_id: &NodeId) -> Option<Placed> {
        let nodes = self.placed.get_mut(service_id)?;
        let placed = nodes.remove(node_id)?;
        self.jobs.remove(&placed.job_id);
        if nodes.is_empty() {
            self.placed.remove(service_id);
        }
        Some(placed)
    }

    fn at(&self, service_id: &ServiceId, node_id: &NodeId) -> Option<&Placed> {
        self.placed.get(service_id)?.get(node_id)
    }
}

// === impl Policy: reading ===

impl Policy {
    /// The configured node services, in the order of the settings (NSVC-01).
    pub fn node_services(&self) -> &[NodeService] {
        &self.settings.node_services
    }

    /// Nodes that have an instance of the service, or are getting one, with its job (NSVC-01).
    pub fn node_service_placements_for(&self, service_id: &ServiceId) -> BTreeMap<NodeId, JobId> {
        self.services
            .placed
            .get(service_id)
            .into_iter()
            .flatten()
            .map(|(node_id, placed)| (node_id.clone(), placed.job_id.clone()))
            .collect()
    }
}

// === impl Policy: the pass ===

impl Policy {
    /// The tick of the reconciler (CONF-08).
    pub(crate) fn service_tick(&mut self) {
        if self.settings.node_services.is_empty() {
            return;
        }
        self.services.all = true;
        let due = Due::Mono(self.now.mono + self.settings.node_service_reconcile_interval);
        self.timers.set(Timer::ServiceTick, due);
    }

    /// Starts what is missing and ends what is out of place, on the nodes to be looked at (NSVC-03).
    pub(crate) fn run_services(&mut self, out: &mut Effects) {
        let all = std::mem::take(&mut self.services.all);
        let looks = std::mem::take(&mut self.services.looks);
        if self.settings.node_services.is_empty() || !all && looks.is_empty() {
            return;
        }
        let nodes: Vec<NodeId> = if all {
            self.nodes.keys().cloned().collect()
        } else {
            looks.into_iter().collect()
        };
        for service in self.settings.node_services.clone() {
            for node_id in &nodes {
                let placed = self.services.at(&service.service_id, node_id).is_some();
                let fit = self.is_fit_for(&service, node_id, placed);
                if fit && !placed && self.takes_starts_of(&service, node_id) {
                    self.start_service(&service, node_id, out);
                } else if placed && !fit {
                    self.tear_down(&service.service_id, node_id, out);
                }
            }
        }
    }

    /// NSVC-02. What the service itself takes does not stand in its own way (NSVC-08).
    fn is_fit_for(&self, service: &NodeService, node_id: &NodeId, placed: bool) -> bool {
        let in_pool = self
            .fleet
            .facts(node_id)
            .and_then(|facts| facts.pool.as_ref())
            .is_some_and(|pool| service.pools.contains(pool));
        in_pool
            && self.is_running(node_id)
            && self.fleet.inventory(node_id).is_some()
            && self.fleet.is_reachable(node_id)
            && !self.fleet.is_cordoned(node_id)
            && if placed {
                self.still_offers(node_id, &service.consumes)
            } else {
                self.fleet.offers(node_id, &service.consumes)
            }
    }

    /// Its worker would not refuse it out of hand (PLACE-34 to PLACE-36). What runs there is not ended
    /// for that.
    fn takes_starts_of(&self, service: &NodeService, node_id: &NodeId) -> bool {
        self.fleet.inventory(node_id).is_some_and(|inventory| {
            let needs = Needs::of_job(&service.job_spec);
            !inventory.disk_low
                && !inventory.is_runtime_down()
                && needs.run_on(inventory.runtime_kind())
        })
    }

    /// As [`greenroom_placement::Fleet::offers`], for a node whose worker may count these very needs
    /// among what it reports as taken. What bundle jobs take counts in full.
    fn still_offers(&self, node_id: &NodeId, needs: &[Capability]) -> bool {
        let Some(inventory) = self.fleet.inventory(node_id) else {
            return false;
        };
        let derived = self.fleet.derived(node_id).unwrap_or_default();
        needs.iter().all(|need| {
            let same = |entry: &&Capability| entry.name == need.name;
            let asked = sum(needs.iter().filter(same));
            let reported = sum(inventory.reserved_capabilities.iter().filter(same));
            let bundles = derived.capabilities.get(&need.name).copied().unwrap_or(0);
            let taken = reported.saturating_sub(asked).max(bundles);
            let offered = inventory.capabilities.iter().filter(same);
            let matching = sum(offered.clone().filter(|entry| entry.meets(need)));
            let of_any = needs.iter().filter(same);
            let usable = sum(offered.filter(|entry| of_any.clone().any(|need| entry.meets(need))));
            matching >= u64::from(need.count) && usable >= asked + taken
        })
    }

    /// Records the instance, then creates its job; the start follows the answer (NSVC-04).
    fn start_service(&mut self, service: &NodeService, node_id: &NodeId, out: &mut Effects) {
        let place = (service.service_id.clone(), node_id.clone());
        if let Some(until) = self.services.waits.get(&place) {
            if *until > self.now.mono {
                return;
            }
            self.services.waits.remove(&place);
        }
        let job_id = loop {
            let text = format!("{}.{:08x}", service.service_id, self.ids.service_suffix());
            let job_id = JobId::new(text);
            if !self.jobs.contains_key(&job_id) && !self.services.jobs.contains_key(&job_id) {
                break job_id;
            }
        };
        let placed = Placed {
            job_id: job_id.clone(),
            created: false,
        };
        self.services.record(&service.service_id, node_id, placed);
        let call = Call::CreateJob(Box::new(job_of(service, job_id.clone())));
        let purpose = Purpose::Service {
            job_id,
            step: ServiceStep::Create,
        };
        self.send(call, purpose, out);
    }

    pub(crate) fn service_replied(
        &mut self,
        job_id: &JobId,
        step: ServiceStep,
        result: Result<(), CallFailure>,
        out: &mut Effects,
    ) {
        let place = self.services.jobs.get(job_id).cloned();
        let failure = match (step, result) {
            (ServiceStep::Create, Ok(())) => {
                match place {
                    Some((service_id, node_id)) => {
                        self.send_service_start(&service_id, &node_id, out);
                    }
                    // No longer wanted.
                    None => self.delete_service_job(job_id, out),
                }
                return;
            }
            (ServiceStep::Start, Ok(())) => return,
            (ServiceStep::Start, Err(failure)) if is_started(&failure) => return,
            (_, Err(failure)) => failure,
        };
        let what = match step {
            ServiceStep::Create => "creating the job of a node service",
            ServiceStep::Start => "starting a node service",
        };
        let message = format!("{what} failed, job {job_id:?}: {failure}");
        let mut error = ErrorInfo::new("nodeServiceFailed", message).job(job_id);
        if let Some((_, node_id)) = &place {
            error = error.node(node_id);
        }
        self.report(error, out);
        // Unless the creation was refused the job is there, or may be (NSVC-05).
        let there = step == ServiceStep::Start || failure.refusal().is_none();
        if let Some((service_id, node_id)) = place {
            self.services.remove(&service_id, &node_id);
            self.hold_service(service_id, node_id);
            if there {
                self.delete_service_job(job_id, out);
            }
        }
    }

    fn send_service_start(&mut self, service_id: &ServiceId, node_id: &NodeId, out: &mut Effects) {
        let nodes = self.services.placed.get_mut(service_id);
        let Some(placed) = nodes.and_then(|nodes| nodes.get_mut(node_id)) else {
            return;
        };
        placed.created = true;
        let job_id = placed.job_id.clone();
        let role = Role::new(Role::NODE_SERVICE);
        let call = Call::StartJob(StartJob {
            job_id: job_id.clone(),
            runtime_role: role.slot().to_owned(),
            role,
            node_id: node_id.clone(),
            defer_start: false,
            gpu_index: None,
            migration_id: None,
            migration_state: None,
        });
        let purpose = Purpose::Service {
            job_id,
            step: ServiceStep::Start,
        };
        self.send(call, purpose, out);
    }

    /// Ends an instance; what fails about it is tolerated (NSVC-06).
    fn tear_down(&mut self, service_id: &ServiceId, node_id: &NodeId, out: &mut Effects) {
        let Some(placed) = self.services.remove(service_id, node_id) else {
            return;
        };
        // A job whose creation is not answered yet is deleted with the answer.
        if placed.created {
            self.end_service_job(&placed.job_id, node_id, out);
        }
    }

    fn end_service_job(&mut self, job_id: &JobId, node_id: &NodeId, out: &mut Effects) {
        let call = Call::StopJob {
            key: InstanceKey::new(job_id.clone(), Role::new(Role::NODE_SERVICE)),
            node_id: node_id.clone(),
            grace_ms: None,
        };
        self.send(call, Purpose::Tolerated, out);
        self.delete_service_job(job_id, out);
    }

    fn delete_service_job(&mut self, job_id: &JobId, out: &mut Effects) {
        self.send(Call::DeleteJob(job_id.clone()), Purpose::Tolerated, out);
    }

    /// The service is not started there again before 5 s (NSVC-10).
    fn hold_service(&mut self, service_id: ServiceId, node_id: NodeId) {
        let until = self.now.mono + SERVICE_RETRY;
        let timer = Timer::ServiceRetry(service_id.clone(), node_id.clone());
        self.timers.set(timer, Due::Mono(until));
        self.services.waits.insert((service_id, node_id), until);
    }

    pub(crate) fn end_service_wait(&mut self, service_id: &ServiceId, node_id: &NodeId) {
        let place = (service_id.clone(), node_id.clone());
        if self.services.waits.remove(&place).is_some() {
            self.services.look_at(node_id);
        }
    }
}

// === impl Policy: what the stream says ===

impl Policy {
    /// A node is gone: its services are forgotten (NSVC-07). Their jobs are deleted, so that no
    /// instance is left over should its worker come back.
    pub(crate) fn services_lose_node(&mut self, node_id: &NodeId, out: &mut Effects) {
        let services: Vec<ServiceId> = self.services.placed.keys().cloned().collect();
        for service_id in services {
            if let Some(placed) = self.services.remove(&service_id, node_id)
                && placed.created
            {
                self.delete_service_job(&placed.job_id, out);
            }
        }
        self.services
            .waits
            .retain(|(_, waiting), _| waiting != node_id);
        self.services.look_at(node_id);
    }

    /// Whether the instance of this job is over: then it is forgotten, and started again by a later
    /// pass (NSVC-10).
    pub(crate) fn follow_service(&mut self, job_id: &JobId, out: &mut Effects) {
        let Some((service_id, node_id)) = self.services.jobs.get(job_id).cloned() else {
            return;
        };
        let over = self.jobs.get(job_id).is_some_and(|job| {
            let runs = history::runs(&job.seen);
            let here = runs.iter().rfind(|run| run.node_id == node_id);
            here.is_some_and(|run| matches!(run.end(&job.seen), End::Failed | End::Plain { .. }))
        });
        if over {
            self.services.remove(&service_id, &node_id);
            self.hold_service(service_id, node_id);
            self.delete_service_job(job_id, out);
        }
    }

    /// Somebody deleted the job of an instance.
    pub(crate) fn service_job_deleted(&mut self, job_id: &JobId) {
        if let Some((service_id, node_id)) = self.services.jobs.get(job_id).cloned() {
            self.services.remove(&service_id, &node_id);
            self.hold_service(service_id, node_id);
        }
    }

    /// Takes over what a predecessor started, one instance per service and node; ends the rest, and
    /// what is no longer configured (NSVC-09, DEC-30).
    pub(crate) fn adopt_services(&mut self, jobs: &[JobId], out: &mut Effects) {
        let mut found = Vec::new();
        for job_id in jobs {
            let Some(job) = self.jobs.get(job_id) else {
                continue;
            };
            if let Some(service_id) = service_of(&job.seen) {
                let run = history::runs(&job.seen)
                    .into_iter()
                    .rfind(|run| run.is_there() && run.role.as_str() == Role::NODE_SERVICE);
                // Of several, the one that has been running longest stays.
                let since = run.as_ref().and_then(|run| run.running_since);
                found.push((since.is_none(), since, job_id.clone(), service_id, run));
            }
        }
        found.sort_by(|a, b| (a.0, a.1, &a.2).cmp(&(b.0, b.1, &b.2)));
        for (_, _, job_id, service_id, run) in found {
            let configured = self
                .settings
                .node_services
                .iter()
                .any(|service| service.service_id == service_id);
            let run = run.filter(|run| self.is_running(&run.node_id));
            match run {
                Some(run)
                    if run.is_live()
                        && configured
                        && self.services.at(&service_id, &run.node_id).is_none() =>
                {
                    let placed = Placed {
                        job_id,
                        created: true,
                    };
                    self.services.record(&service_id, &run.node_id, placed);
                }
                Some(run) => self.end_service_job(&job_id, &run.node_id, out),
                None => self.delete_service_job(&job_id, out),
            }
        }
        self.service_tick();
    }
}

/// The service whose instance a job is, if a policy made it.
fn service_of(job: &JobWithHistory) -> Option<ServiceId> {
    let auto = job.job.tag("auto-manager") == Some("true");
    job.job
        .tag(TAG_NODE_SERVICE)
        .filter(|_| auto && job.job.bundle_place().is_none())
        .map(ServiceId::from)
}

/// The job of a new instance (NSVC-04). What it provides is told to its worker with it (NSVC-11).
fn job_of(service: &NodeService, job_id: JobId) -> Job {
    let spec = &service.job_spec;
    let launch = &spec.launch;
    let mut tags = spec.tags.clone();
    if let Some(template) = &launch.template {
        tags.insert(TAG_TEMPLATE.to_owned(), template.to_string());
    }
    tags.insert("auto-manager".to_owned(), "true".to_owned());
    tags.insert(TAG_NODE_SERVICE.to_owned(), service.service_id.to_string());
    Job {
        job_id,
        description: spec.description.clone(),
        tags,
        manager_configuration: launch.manager_configuration.clone(),
        services: launch.services.clone(),
        media_version: launch.media_version,
        media_parameters: launch.media_parameters.clone(),
        volumes: launch.volumes.clone(),
        lease: spec.lease,
        handover: spec.handover,
        job_socket: spec.job_socket,
        provides: spec
            .provides
            .iter()
            .chain(&service.provides)
            .cloned()
            .collect(),
        secret_env: spec.secret_env.clone(),
        export_tags: spec.export_tags.clone(),
        ..Job::default()
    }
}

fn sum<'a>(entries: impl Iterator<Item = &'a Capability>) -> u64 {
    entries.map(|entry| u64::from(entry.count)).sum()
}
