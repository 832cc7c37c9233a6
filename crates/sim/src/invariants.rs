//! What must never be, looked at after every input of a run (SCEN-10 `invariants`).
//!
//! What a step costs here does not grow with the fleet: after each input only what it touched is
//! looked at, and the policy's own check of everything it derives runs as often as its size allows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_ledger::{Instance, WorkerJob};
use greenroom_types::bundle::Bundle;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::{JobId, JobName, NodeId, Role, SHARE_TOLERANCE, StartId};

use crate::log;
use crate::world::World;

/// Violations that are kept; the first ones tell most.
const KEPT: usize = 20;

/// Objects of a mirror for which one full check is made per input; a mirror twice as large is checked
/// at every second input, and so on.
const CHECKED_EACH_TIME: usize = 24;

/// What was found so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    found: Vec<String>,
    inputs: usize,
}

// === impl Watch ===

impl Watch {
    /// Everything that was found, in order.
    pub(crate) fn found(&self) -> &[String] {
        &self.found
    }

    fn add(&mut self, text: String) {
        if self.found.len() < KEPT && !self.found.contains(&text) {
            self.found.push(text);
        }
    }
}

// === impl World ===

impl World {
    /// Runs after every input, on the jobs that it touched.
    pub(crate) fn look_after_input(&mut self) {
        for job_id in std::mem::take(&mut self.touched_jobs) {
            self.invariant_one_live_instance_per_key(&job_id);
            self.invariant_a_job_runs_once(&job_id);
        }
        let size = self.ledger.jobs().size_hint().0 + self.workers.len();
        let every = 1 + size / CHECKED_EACH_TIME;
        self.watch.inputs += 1;
        if self.watch.inputs.is_multiple_of(every) {
            self.check_policy();
        }
    }

    /// Looks at everything now, whatever was touched: the ledger, and what the policy derives.
    pub(crate) fn look_at_everything(&mut self) {
        let mut jobs: BTreeSet<JobId> = std::mem::take(&mut self.touched_jobs);
        jobs.extend(
            self.ledger
                .jobs()
                .map(|record| record.view.job.job_id.clone()),
        );
        for job_id in jobs {
            self.invariant_one_live_instance_per_key(&job_id);
            self.invariant_a_job_runs_once(&job_id);
        }
        self.invariant_what_lives_is_found();
        self.check_policy();
    }

    /// The policy's own check of everything that it derives.
    fn check_policy(&mut self) {
        let violations = match &self.policy {
            Some(policy) if policy.is_live() => policy.check(),
            _ => return,
        };
        for violation in violations {
            self.violated(violation.to_string());
        }
    }

    pub(crate) fn violated(&mut self, text: String) {
        let text = format!("{}: {text}", log::time(self.mono()));
        self.log.line("broken", || text.clone());
        self.watch.add(text);
    }

    /// In the ledger at most one instance per key is live.
    fn invariant_one_live_instance_per_key(&mut self, job_id: &JobId) {
        let mut live: BTreeMap<Role, Vec<StartId>> = BTreeMap::new();
        for instance in self.instances_of(job_id).filter(|it| it.is_live()) {
            let starts = live.entry(instance.key.role.clone()).or_default();
            starts.push(instance.start_id.clone());
        }
        for (role, starts) in live {
            if starts.len() > 1 {
                let text = format!(
                    "{} has {} live instances as {role}",
                    log::job(job_id),
                    starts.len()
                );
                self.violated(text);
            }
        }
    }

    /// The ledger finds each live instance under its key, and its job has it.
    fn invariant_what_lives_is_found(&mut self) {
        let lost: Vec<String> = self
            .ledger
            .instances()
            .filter(|instance| instance.is_live())
            .filter(|instance| {
                let found = self.ledger.live_instance(&instance.key);
                let job = self.ledger.job(&instance.key.job_id);
                found.map(|found| &found.start_id) != Some(&instance.start_id)
                    || job.is_none_or(|job| !job.instances.contains(&instance.start_id))
            })
            .map(|instance| {
                let who = log::job(&instance.key.job_id);
                let node = self.purchases.name(&instance.node_id);
                let role = &instance.key.role;
                format!("{who} lives on {node} as {role}, and is not found there")
            })
            .collect();
        for text in lost {
            self.violated(text);
        }
    }

    /// Outside a migration a job runs on one reachable worker at most.
    fn invariant_a_job_runs_once(&mut self, job_id: &JobId) {
        let running: Vec<NodeId> = self
            .instances_of(job_id)
            .filter(|instance| !instance.key.role.is_migration_target())
            .filter(|instance| self.lives_on_reachable(instance))
            .map(|instance| instance.node_id.clone())
            .collect();
        if running.len() > 1 {
            let nodes: Vec<String> = running.iter().map(|id| self.purchases.name(id)).collect();
            let text = format!("{} runs on {}", log::job(job_id), nodes.join(" and "));
            self.violated(text);
        }
    }

    fn instances_of(&self, job_id: &JobId) -> impl Iterator<Item = &Instance> {
        self.ledger
            .job(job_id)
            .into_iter()
            .flat_map(|record| &record.instances)
            .filter_map(|start_id| self.ledger.instance(start_id))
    }

    fn lives_on_reachable(&self, instance: &Instance) -> bool {
        self.workers.get(&instance.node_id).is_some_and(|worker| {
            worker.is_reachable()
                && worker
                    .runs
                    .get(&instance.start_id)
                    .is_some_and(|run| run.phase.is_live())
        })
    }

    /// A start arrives at a worker: it must not overfill what the node said it has, nor share a node
    /// that is not to be shared.
    ///
    /// There are moments when the policy cannot know better, and the worker decides; see
    /// [`Self::is_excused`].
    pub(crate) fn look_at_start(&mut self, node_id: &NodeId, job: &WorkerJob) {
        if self.is_excused(node_id, job) {
            return;
        }
        self.invariant_no_node_is_overfilled(node_id, job);
        self.invariant_exclusive_jobs_are_alone(node_id, job);
    }

    /// A start for which the policy could not know better:
    ///
    /// - it was under way before its line was mended, and arrives after other things have happened;
    /// - the node has told what it carries, and the policy has not heard it yet;
    /// - the bundle of the start or of something on the node was changed, and the start crosses with
    ///   the change on its way to the policy;
    /// - something on the node was started before its bundle was changed, the policy began after the
    ///   change, and the node has not listed yet with what that was started;
    /// - something is left there of a job that the Manager knows no more, or that was over before the policy
    ///   began and so is told to it no more, and the node has not listed it;
    /// - it was decided before the bundle of the start or of something on the node was changed: what is bound
    ///   already stays, also where the machine was still booting (BUNDLE-11).
    fn is_excused(&self, node_id: &NodeId, job: &WorkerJob) -> bool {
        let Some(worker) = self.workers.get(node_id) else {
            return true;
        };
        let Some(policy) = &self.policy else {
            return false;
        };
        let now = self.mono();
        let asked = self.asked.get(&job.instance.start_id);
        let late = worker.mended_at == Some(now) && asked.is_some_and(|asked| *asked < now);
        let node = self.ledger.node(node_id);
        let picture = node.and_then(|node| node.inventory.as_ref());
        let carries = |picture: &Arc<NodeInventory>| picture.assigned_jobs.clone();
        if late || policy.inventory(node_id).map(carries) != picture.map(carries) {
            return true;
        }
        let bundle_of = |it: &WorkerJob| it.job.bundle_place().map(|(bundle_id, ..)| bundle_id);
        let crosses = |it: &WorkerJob| {
            bundle_of(it).is_some_and(|id| {
                let known = policy.bundle_by_id(&id).map(|status| &status.bundle);
                known != self.ledger.bundle(&id).map(|status| status.bundle).as_ref()
            })
        };
        let untold = |it: &WorkerJob| {
            let changed = bundle_of(it).and_then(|id| self.changed.get(&id));
            let job_id = &it.instance.key.job_id;
            let gone = self.ledger.job(job_id).is_none() || policy.job_by_id(job_id).is_none();
            (gone || changed.is_some_and(|at| *at <= self.connected_at))
                && picture.is_none_or(|picture| {
                    let mut listed = picture.assigned_jobs.iter();
                    listed.all(|listed| listed.start_id != it.instance.start_id)
                })
        };
        let job_id = &job.instance.key.job_id;
        let decided = self.decided.get(job_id);
        let overtaken = |it: &WorkerJob| {
            let changed = bundle_of(it).and_then(|id| self.changed.get(&id));
            // In one moment either may have been first.
            changed.is_some_and(|at| decided.is_some_and(|decided| decided <= at))
        };
        if crosses(job) || overtaken(job) {
            return true;
        }
        let mut here = worker.held_against(job);
        here.any(|it| crosses(it) || untold(it) || overtaken(it))
    }

    /// Measured against what the policy could know: the picture that the Manager has, or for a bought
    /// node without one the numbers that its tier declares.
    fn invariant_no_node_is_overfilled(&mut self, node_id: &NodeId, job: &WorkerJob) {
        let Some(worker) = self.workers.get(node_id) else {
            return;
        };
        let known = self
            .ledger
            .node(node_id)
            .and_then(|node| node.inventory.clone());
        let Some(known) = known else { return };
        let declared = self.declared_capacity(node_id).unwrap_or(0.0);
        let cap = known.utilization_cap;
        let room = (known.total_capacity * cap).max(declared);
        let here: Vec<&WorkerJob> = worker.held_against(job).collect();
        let taken: f64 = here
            .iter()
            .map(|it| it.requirements.required_capacity)
            .sum();
        let wanted = job.requirements.required_capacity;
        let mut texts = Vec::new();
        if wanted > 0.0 && taken + wanted > room + SHARE_TOLERANCE {
            texts.push(format!("{taken} vCPU taken and {wanted} more of {room}"));
        }
        if let Some(index) = job.gpu_index
            && let Some(device) = known.gpus.iter().find(|gpu| gpu.index == index)
        {
            let taken: f64 = here
                .iter()
                .filter(|it| it.gpu_index == Some(index))
                .map(|it| it.requirements.required_gpu_capacity)
                .sum();
            let wanted = job.requirements.required_gpu_capacity;
            if taken + wanted > device.capacity + SHARE_TOLERANCE {
                texts.push(format!("{taken} of device {index} taken and {wanted} more"));
            }
        }
        for port in &job.requirements.required_host_ports {
            let holder = here.iter().find(|it| {
                let ports = &it.requirements.required_host_ports;
                ports.iter().any(|taken| taken.eq_ignore_ascii_case(port))
                    && it.instance.key.job_id != job.instance.key.job_id
            });
            if let Some(holder) = holder {
                let who = log::job(&holder.instance.key.job_id);
                texts.push(format!("port {port} is held by {who}"));
            }
        }
        for text in texts {
            let who = log::job(&job.instance.key.job_id);
            let text = format!("{who} on {}: {text}", self.purchases.name(node_id));
            self.violated(text);
        }
    }

    /// What is left of a job that the Manager knows no more has no tags to judge by (RESV-07).
    fn invariant_exclusive_jobs_are_alone(&mut self, node_id: &NodeId, job: &WorkerJob) {
        let Some(worker) = self.workers.get(node_id) else {
            return;
        };
        let clash = worker
            .held_against(job)
            .filter(|other| self.ledger.job(&other.instance.key.job_id).is_some())
            .find(|other| !self.may_share(job, other))
            .map(|other| log::job(&other.instance.key.job_id));
        if let Some(other) = clash {
            let who = log::job(&job.instance.key.job_id);
            let node = self.purchases.name(node_id);
            self.violated(format!("{who} on {node} beside {other}: not to be shared"));
        }
    }

    fn may_share(&self, one: &WorkerJob, other: &WorkerJob) -> bool {
        let (Some((a, bundle_a)), Some((b, bundle_b))) = (self.place_of(one), self.place_of(other))
        else {
            return true;
        };
        let exclusive = |bundle: &Bundle, name: &JobName| {
            bundle.job(name.as_str()).is_some_and(|job| job.exclusive)
        };
        if !exclusive(&bundle_a, &a.2) && !exclusive(&bundle_b, &b.2) {
            return true;
        }
        (&a.0, a.1) == (&b.0, b.1) && in_one_group(&bundle_a, &a.2, &b.2)
    }

    #[allow(clippy::type_complexity)]
    fn place_of(
        &self,
        job: &WorkerJob,
    ) -> Option<((greenroom_types::BundleId, u32, JobName), Bundle)> {
        let place = job.job.bundle_place()?;
        let bundle = self.ledger.bundle(&place.0)?.bundle;
        Some((place, bundle))
    }
}

/// True when two jobs of a copy are tied together by rules (INTRA-02, INTRA-07).
fn in_one_group(bundle: &Bundle, from: &JobName, to: &JobName) -> bool {
    let mut seen = vec![from.clone()];
    let mut next = 0;
    while next < seen.len() {
        let name = seen[next].clone();
        next += 1;
        for job in &bundle.jobs {
            let free = |name: &JobName| {
                bundle.job(name.as_str()).is_some_and(|job| {
                    job.co_locate_with.is_empty() && job.separate_from.is_empty()
                })
            };
            let tied = job.co_locate_with.contains(&name)
                || bundle
                    .job(name.as_str())
                    .is_some_and(|here| here.co_locate_with.contains(&job.job_name))
                || (bundle.intra_replica_placement.same_node_default
                    && free(&name)
                    && free(&job.job_name));
            if tied && !seen.contains(&job.job_name) {
                seen.push(job.job_name.clone());
            }
        }
    }
    seen.contains(to)
}

#[cfg(test)]
mod tests {
    use greenroom_types::call::{Call, StartJob};

    use super::*;
    use crate::format::{Deed, Scenario, SettingsCase};
    use crate::log::{Keep, Log};
    use crate::world::Memory;

    const FLEET: &str = "
scenario: 1
settings:
  placementPools: [{name: own, tiers: [{name: own, kind: local-servers, scaleOut: fixed}]}]
nodes:
  - {id: n, pool: own, capacity: 2, jobs: [a/0/one]}
  - {id: m, pool: own, capacity: 8, jobs: [b/0/solo]}
bundles:
  - bundleId: a
    pool: own
    jobs:
      - {jobName: one, requirements: {requiredCapacity: 2, requiredHostPorts: [80/tcp]}}
      - {jobName: two, requirements: {requiredCapacity: 2, requiredHostPorts: [80/tcp]}}
  - bundleId: b
    pool: own
    jobs:
      - {jobName: solo, exclusive: true, coLocateWith: [mate]}
      - {jobName: mate, exclusive: true}
steps: [{expect: {invariants: ok}}]
";

    /// The fleet, without a policy.
    fn world() -> World {
        let scenario = Scenario::read("fleet.yaml", FLEET).unwrap();
        let SettingsCase::Valid(settings) = &scenario.settings else {
            panic!("the settings are valid");
        };
        let log = Log::new(Keep::Last);
        let world = World::new(&scenario, settings, Memory::default(), log).unwrap();
        assert_eq!(world.watch.found(), [""; 0]);
        world
    }

    /// Somebody starts a job as he likes.
    fn start(world: &mut World, job_id: &str, role: &str, node_id: &str) {
        let start = StartJob {
            job_id: job_id.into(),
            role: role.into(),
            node_id: node_id.into(),
            defer_start: false,
            runtime_role: String::new(),
            gpu_index: None,
            migration_id: None,
            migration_state: None,
        };
        world.call_aside(Call::StartJob(start)).unwrap();
        world.settle().unwrap();
    }

    fn after_start(job_id: &str, role: &str, node_id: &str) -> Vec<String> {
        let mut world = world();
        start(&mut world, job_id, role, node_id);
        world.watch.found().to_vec()
    }

    // spec: SCEN-10
    #[test]
    fn an_expectation_looks_at_everything_itself() {
        let text = FLEET.replace("steps: []", "steps: [{expect: {invariants: ok}}]");
        let scenario = Scenario::read("fleet.yaml", &text).unwrap();
        let Deed::Expect(wanted) = &scenario.steps[0].deed else {
            panic!("it expects");
        };
        let mut world = world();
        world.connect().unwrap();
        assert_eq!(crate::expect::check(&mut world, wanted, "it"), []);
        start(&mut world, "b.0.solo", "backup", "n");
        world.watch = Watch::default();
        let found = crate::expect::check(&mut world, wanted, "it");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "it.invariants");
        assert!(found[0].found.contains("b/0/solo runs on"), "{found:?}");
    }

    // spec: SCEN-10
    #[test]
    fn an_overfilled_node_is_noticed() {
        let found = after_start("a.0.two", "primary", "n");
        assert_eq!(
            found,
            [
                "0:00:00.000: a/0/two on n: 2 vCPU taken and 2 more of 2",
                "0:00:00.000: a/0/two on n: port 80/tcp is held by a/0/one",
            ]
        );
    }

    // spec: SCEN-10
    #[test]
    fn a_shared_exclusive_node_is_noticed() {
        let found = after_start("a.0.two", "primary", "m");
        assert_eq!(
            found,
            ["0:00:00.000: a/0/two on m beside b/0/solo: not to be shared"]
        );
        assert_eq!(
            after_start("b.0.mate", "primary", "m"),
            [""; 0],
            "they are one group"
        );
    }

    // spec: SCEN-10
    #[test]
    fn a_job_that_runs_twice_is_noticed() {
        let found = after_start("b.0.solo", "backup", "n");
        assert!(
            found.contains(&"0:00:00.000: b/0/solo runs on m and n".to_owned())
                || found.contains(&"0:00:00.000: b/0/solo runs on n and m".to_owned()),
            "{found:?}"
        );
        assert_eq!(
            after_start("b.0.mate", "primary@0123abcd", "m"),
            [""; 0],
            "a migration may"
        );
    }
}
