//! A hand-driven Manager for tests: it feeds the policy events, answers its calls, keeps histories as
//! the Manager would, and tells in short lines what the policy did. After every input all invariants
//! are checked, so every test tests them too.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use greenroom_policy::event::ConnectionState;
use greenroom_policy::{
    ApiCall, ApiId, ApiResult, CallFailure, CallId, Callback, Effect, Effects, Event, IdSource,
    Policy, Settings,
};
use greenroom_types::bundle::{Bundle, BundleJobStatus, BundleState, BundleStatus};
use greenroom_types::call::{Call, Refusal, Reply, StartJob, Status};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{
    At, AutoPlacement, HistoryEntry, HistoryKind, Job, JobState, JobWithHistory, MANUAL,
    StopReason, TAG_START_MODE, TerminalState,
};
use greenroom_types::node::{
    InstanceKey, NodeMetadata, NodeStoppingReason, RejectionCode, RunningNodeMetadata, StartPhase,
};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{BundleId, JobId, Mono, NodeId, Now, Role, StartId, Wall};
use serde_json::{Value, json};

/// 2026-01-01T00:00:00Z.
pub(crate) const START: i64 = 1_767_225_600_000;

pub(crate) struct World {
    pub(crate) policy: Policy,
    pub(crate) now: Now,
    /// Calls are not answered by themselves while this is set.
    pub(crate) hold: bool,
    pub(crate) jobs: BTreeMap<JobId, JobWithHistory>,
    pub(crate) bundles: BTreeMap<BundleId, BundleStatus>,
    pub(crate) nodes: BTreeMap<NodeId, Arc<NodeMetadata>>,
    pub(crate) results: BTreeMap<ApiId, ApiResult>,
    pub(crate) infos: Vec<greenroom_policy::effect::PlacementInfo>,
    /// Effects since the last look, as short lines.
    lines: Vec<String>,
    counters: [u64; 8],
    /// Every effect ever, for comparing runs.
    pub(crate) all: Vec<Effect>,
    unanswered: VecDeque<(CallId, Call)>,
    refusals: Vec<(String, usize, CallFailure)>,
    bought: Vec<NodeId>,
    starts: BTreeMap<JobId, (StartJob, StartId)>,
    next_start: u128,
    next_api: u64,
}

/// One fixed tier.
pub(crate) fn fixed() -> Value {
    json!([{"name": "p", "tiers": [{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}]}])
}

fn elastic(name: &str, shapes: &[(&str, f64)], max: Option<u32>) -> Value {
    let shapes: Vec<Value> = shapes
        .iter()
        .map(|(name, size)| json!({"instanceType": name, "totalCapacity": size, "totalCores": 4}))
        .collect();
    let mut tier = json!({"name": name, "kind": "aws", "scaleOut": "elastic", "region": "r",
        "placementLeadMs": 0, "candidateInstanceTypes": shapes});
    if let Some(max) = max {
        tier["maxNodes"] = json!(max);
    }
    tier
}

/// One elastic tier with one shape of 4 vCPU.
pub(crate) fn cloud() -> Value {
    json!([{"name": "p", "tiers": [elastic("t1", &[("c4", 4.0)], None)]}])
}

/// Name, shapes, cap.
pub(crate) type Declared<'a> = (&'a str, &'a [(&'a str, f64)], Option<u32>);

/// Elastic tiers in order.
pub(crate) fn tiers(tiers: &[Declared<'_>]) -> Value {
    let tiers: Vec<Value> = tiers.iter().map(|(n, s, m)| elastic(n, s, *m)).collect();
    json!([{"name": "p", "tiers": tiers}])
}

pub(crate) fn settings(pools: Value, more: Value) -> Settings {
    let mut tree = json!({"url": "127.0.0.1:1", "placementPools": pools});
    for (key, value) in more.as_object().unwrap() {
        tree[key] = value.clone();
    }
    Settings::parse(&tree).unwrap()
}

/// A bundle `id` of one copy with these jobs.
pub(crate) fn bundle(id: &str, jobs: Value) -> Bundle {
    serde_json::from_value(json!({"bundleId": id, "pool": "p", "jobs": jobs})).unwrap()
}

/// A job of one vCPU.
pub(crate) fn job(name: &str) -> Value {
    sized(name, 1.0)
}

pub(crate) fn sized(name: &str, capacity: f64) -> Value {
    json!({"jobName": name, "requirements": {"requiredCapacity": capacity}})
}

/// With these requirements besides.
pub(crate) fn needing(name: &str, needs: Value) -> Value {
    json!({"jobName": name, "requirements": needs})
}

pub(crate) fn refused(status: Status, reason: &str) -> CallFailure {
    CallFailure::Refused(Refusal::new(status, reason, "refused for the test"))
}

pub(crate) fn inventory(capacity: f64) -> NodeInventory {
    NodeInventory {
        total_capacity: capacity,
        total_cores: 64,
        ..NodeInventory::default()
    }
}

impl World {
    /// Not yet hydrated.
    pub(crate) fn cold(settings: Settings) -> Self {
        let now = Now {
            mono: Mono(0),
            wall: Wall(START),
        };
        let policy = Policy::new(settings, now, IdSource::seeded(1));
        Self {
            policy,
            now,
            hold: false,
            jobs: BTreeMap::new(),
            bundles: BTreeMap::new(),
            nodes: BTreeMap::new(),
            results: BTreeMap::new(),
            infos: Vec::new(),
            lines: Vec::new(),
            counters: [0; 8],
            all: Vec::new(),
            unanswered: VecDeque::new(),
            refusals: Vec::new(),
            bought: Vec::new(),
            starts: BTreeMap::new(),
            next_start: 0,
            next_api: 0,
        }
    }

    /// In service, with these nodes of pool `p`.
    pub(crate) fn with(pools: Value, nodes: &[(&str, f64)]) -> Self {
        Self::set(pools, json!({}), nodes)
    }

    /// The same with further settings.
    pub(crate) fn set(pools: Value, more: Value, nodes: &[(&str, f64)]) -> Self {
        let mut world = Self::cold(settings(pools, more));
        for (id, capacity) in nodes {
            world.snapshot_node(id, "own", inventory(*capacity));
        }
        world.complete();
        world.lines.clear();
        world
    }

    // --- time ---

    /// Lets time pass up to `ms` after the start, firing everything that is due on the way.
    pub(crate) fn at(&mut self, ms: u64) {
        while let Some(deadline) = self.policy.next_deadline()
            && deadline.at.0 <= ms
        {
            self.pass_to(deadline.at.0.max(self.now.mono.0));
            self.handle(Event::Wake);
        }
        self.pass_to(ms);
    }

    fn pass_to(&mut self, ms: u64) {
        assert!(ms >= self.now.mono.0, "time goes forward");
        let gone = i64::try_from(ms - self.now.mono.0).unwrap();
        self.now.mono = Mono(ms);
        self.now.wall = self.now.wall.plus(gone);
    }

    /// Steps the wall clock.
    pub(crate) fn jump(&mut self, ms: i64) {
        self.now.wall = self.now.wall.plus(ms);
    }

    // --- inputs ---

    pub(crate) fn handle(&mut self, event: Event) {
        let mut out = Effects::new();
        self.policy.handle(self.now, event, &mut out);
        for effect in out.drain() {
            self.perform(effect);
        }
        let violations = self.policy.check();
        assert!(violations.is_empty(), "{violations:?}");
        self.check_counters();
        if !self.hold {
            self.answer();
        }
    }

    /// No counter ever goes down (METR-02).
    fn check_counters(&mut self) {
        let m = self.metrics();
        let counters = [
            m.placements_attempted,
            m.placements_succeeded,
            m.placements_failed,
            m.placements_dispatch_failed,
            m.provisions_failed,
            m.jobs_rejected,
            m.bundles_broken,
            m.jobs_dropped,
        ];
        let grew = counters
            .iter()
            .zip(&self.counters)
            .all(|(now, before)| now >= before);
        assert!(grew, "{:?} became {counters:?}", self.counters);
        self.counters = counters;
    }

    pub(crate) fn send(&mut self, event: StreamEvent) {
        self.handle(Event::Stream(event));
    }

    pub(crate) fn api(&mut self, call: ApiCall) -> ApiId {
        self.next_api += 1;
        let id = ApiId(self.next_api);
        self.handle(Event::Api { id, call });
        id
    }

    /// Answers every call that waits, refusing those that a test wants refused.
    pub(crate) fn answer(&mut self) {
        while let Some((call_id, call)) = self.unanswered.pop_front() {
            let result = self.result_of(&call);
            match &call {
                Call::StartJob(start) if result.is_ok() => self.accept_start(start),
                Call::CreateJob(job) if result.is_ok() => self.accept_job(job),
                _ => {}
            }
            self.reply(call_id, result);
        }
    }

    /// The next `times` calls of that name fail.
    pub(crate) fn refuse(&mut self, call: &str, times: usize, failure: CallFailure) {
        self.refusals.push((call.to_owned(), times, failure));
    }

    fn result_of(&mut self, call: &Call) -> Result<Reply, CallFailure> {
        for (name, times, failure) in &mut self.refusals {
            if call.name() == name && *times > 0 {
                *times -= 1;
                return Err(failure.clone());
            }
        }
        Ok(Reply::Done)
    }

    fn reply(&mut self, call_id: CallId, result: Result<Reply, CallFailure>) {
        let hold = std::mem::replace(&mut self.hold, true);
        self.handle(Event::Reply { call_id, result });
        self.hold = hold;
    }

    /// Takes the oldest unanswered call, to be answered by hand.
    pub(crate) fn next_call(&mut self) -> (CallId, Call) {
        self.unanswered.pop_front().expect("a call is waiting")
    }

    pub(crate) fn answer_one(&mut self, call_id: CallId, result: Result<Reply, CallFailure>) {
        self.reply(call_id, result);
    }

    // --- what the policy did ---

    fn perform(&mut self, effect: Effect) {
        self.all.push(effect.clone());
        if let Effect::Call { call, .. } = &effect {
            let asked = match call {
                Call::CreateAwsNode(create) => Some((&create.node_id, &create.tags)),
                Call::CreateOciNode(create) => Some((&create.node_id, &create.tags)),
                _ => None,
            };
            if let Some((node_id, tags)) = asked {
                self.bought.push(node_id.clone());
                let metadata = NodeMetadata {
                    node_id: node_id.clone(),
                    tags: tags.clone(),
                    created_at: self.now.wall,
                    ..NodeMetadata::default()
                };
                self.nodes.insert(node_id.clone(), Arc::new(metadata));
            }
        }
        let line = self.brief(&effect);
        self.lines.push(line);
        match effect {
            Effect::Call { call_id, call } => self.unanswered.push_back((call_id, call)),
            Effect::ApiReply { id, result } => {
                self.results.insert(id, result);
            }
            Effect::Callback(Callback::OnPlacementDecision(info)) => self.infos.push(*info),
            _ => {}
        }
    }

    /// Everything since the last look.
    pub(crate) fn took(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// Calls on the Manager since the last look; the rest is passed over.
    pub(crate) fn calls(&mut self) -> Vec<String> {
        let lines = self.took();
        lines
            .into_iter()
            .filter(|line| line.starts_with("call "))
            .map(|line| line["call ".len()..].to_owned())
            .collect()
    }

    /// As `acts`, with the number of a migration taken out of its target's role.
    pub(crate) fn moves(&mut self) -> Vec<String> {
        let acts = self.acts();
        acts.into_iter()
            .map(|line| crate::brief::plain_role(&line))
            .collect()
    }

    /// Everything since the last look but replays and decisions.
    pub(crate) fn acts(&mut self) -> Vec<String> {
        let quiet = [
            "onJobUpdated",
            "decide",
            "onConnectionStateChange",
            "reply",
            "log",
        ];
        let lines = self.took();
        lines
            .into_iter()
            .filter(|line| !quiet.iter().any(|word| line.starts_with(word)))
            .collect()
    }

    /// A node id as tests name it: those that were bought by number.
    pub(crate) fn short(&self, node_id: &NodeId) -> String {
        match self.bought.iter().position(|known| known == node_id) {
            Some(at) => format!("@{}", at + 1),
            None => node_id.to_string(),
        }
    }

    /// The node id behind a name.
    pub(crate) fn long(&self, name: &str) -> NodeId {
        match name.strip_prefix('@') {
            Some(number) => self.bought[number.parse::<usize>().unwrap() - 1].clone(),
            None => NodeId::new(name),
        }
    }

    // --- nodes ---

    pub(crate) fn metadata(&mut self, id: &str, tier: &str) -> Arc<NodeMetadata> {
        let node_id = self.long(id);
        let created_at = self.now.wall;
        let entry = self.nodes.entry(node_id.clone()).or_insert_with(|| {
            let tags = [("pool", "p"), ("tier", tier)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
            Arc::new(NodeMetadata {
                node_id,
                tags,
                created_at,
                ..NodeMetadata::default()
            })
        });
        Arc::clone(entry)
    }

    /// Sets a tag that the node is announced with from now on.
    pub(crate) fn tag(&mut self, id: &str, tier: &str, key: &str, value: &str) {
        let mut metadata = NodeMetadata::clone(&self.metadata(id, tier));
        metadata.tags.insert(key.to_owned(), value.to_owned());
        let node_id = self.long(id);
        self.nodes.insert(node_id, Arc::new(metadata));
    }

    pub(crate) fn snapshot_node(&mut self, id: &str, tier: &str, picture: NodeInventory) {
        let metadata = self.metadata(id, tier);
        let node_id = metadata.node_id.clone();
        self.send(StreamEvent::NodeRunning {
            metadata,
            running: Arc::new(RunningNodeMetadata::default()),
            instances: Vec::new(),
            reachable: true,
        });
        self.send(StreamEvent::NodeInventorySnapshot {
            node_id,
            inventory: Arc::new(picture),
        });
    }

    /// End of the snapshot.
    pub(crate) fn complete(&mut self) {
        self.send(StreamEvent::InitialDataComplete(Vec::new()));
    }

    pub(crate) fn starting(&mut self, id: &str, phase: Option<StartPhase>) {
        let metadata = self.metadata(id, "own");
        self.send(StreamEvent::NodeStarting { metadata, phase });
    }

    /// The node says hello, without an inventory so far.
    pub(crate) fn hello(&mut self, id: &str) {
        let metadata = self.metadata(id, "own");
        self.send(StreamEvent::NodeStarted {
            metadata,
            running: Arc::new(RunningNodeMetadata::default()),
        });
    }

    pub(crate) fn picture(&mut self, id: &str, capacity: f64) {
        self.shows(id, inventory(capacity));
    }

    /// It sends this picture of itself.
    pub(crate) fn shows(&mut self, id: &str, inventory: NodeInventory) {
        let node_id = self.long(id);
        self.send(StreamEvent::NodeInventoryUpdated {
            node_id,
            inventory: Arc::new(inventory),
        });
    }

    /// It says whether its disk is nearly full.
    pub(crate) fn disk(&mut self, id: &str, capacity: f64, low: bool) {
        let mut inventory = inventory(capacity);
        inventory.disk_low = low;
        self.shows(id, inventory);
    }

    /// A node comes up, with an inventory.
    pub(crate) fn joins(&mut self, id: &str, capacity: f64) {
        self.hello(id);
        self.picture(id, capacity);
    }

    pub(crate) fn stopping(&mut self, id: &str) {
        self.stopping_for(id, NodeStoppingReason::HealthPingTimeExceeded);
    }

    pub(crate) fn stopping_for(&mut self, id: &str, reason: NodeStoppingReason) {
        let node_id = self.long(id);
        self.send(StreamEvent::NodeStopping {
            node_id,
            reason,
            detail: String::new(),
            provider_code: String::new(),
        });
    }

    pub(crate) fn stopped(&mut self, id: &str) {
        let node_id = self.long(id);
        self.send(StreamEvent::NodeStopped { node_id });
    }

    // --- bundles and jobs ---

    /// The bundle is stored and its jobs are announced, in the Manager's order (BDL-04).
    pub(crate) fn submit(&mut self, bundle: Bundle) {
        self.store(&bundle);
        self.tell_bundle(bundle.bundle_id.as_str());
        for job_id in self.ids_of(&bundle) {
            self.tell(job_id.as_str());
        }
    }

    pub(crate) fn ids_of(&self, bundle: &Bundle) -> Vec<JobId> {
        (0..bundle.copies())
            .flat_map(|replica| bundle.jobs.iter().map(move |job| (replica, job)))
            .map(|(replica, job)| bundle.job_id(replica, &job.job_name))
            .collect()
    }

    /// The Manager knows the bundle and its jobs; nothing is announced yet.
    pub(crate) fn store(&mut self, bundle: &Bundle) {
        let mut statuses = Vec::new();
        for replica in 0..bundle.copies() {
            for spec in &bundle.jobs {
                let job_id = bundle.job_id(replica, &spec.job_name);
                let mut tags = spec.tags.clone();
                tags.insert("bundleId".into(), bundle.bundle_id.to_string());
                tags.insert("replicaIndex".into(), replica.to_string());
                tags.insert("jobName".into(), spec.job_name.to_string());
                if spec.start_mode == greenroom_types::bundle::StartMode::Manual {
                    tags.insert(TAG_START_MODE.into(), MANUAL.into());
                }
                let job = Job {
                    job_id: job_id.clone(),
                    tags,
                    start_date_time: spec.start_date_time.or(bundle.start_date_time),
                    auto_placement: Some(AutoPlacement {
                        bundle_id: bundle.bundle_id.clone(),
                        replica_index: replica,
                        job_name: spec.job_name.clone(),
                        requirements: spec.requirements.clone(),
                    }),
                    ..Job::default()
                };
                let history = vec![HistoryEntry {
                    at: self.now.wall,
                    seq: 1,
                    start_id: None,
                    kind: HistoryKind::Created,
                }];
                self.jobs.entry(job_id.clone()).or_insert(JobWithHistory {
                    job,
                    current_hash: 1,
                    history,
                    ..JobWithHistory::default()
                });
                statuses.push(BundleJobStatus {
                    job_id,
                    replica_index: replica,
                    job_name: spec.job_name.clone(),
                    dormant: false,
                    terminal_state: None,
                });
            }
        }
        let status = BundleStatus {
            bundle: bundle.clone(),
            jobs: statuses,
            lease_expires_at: None,
        };
        self.bundles.insert(bundle.bundle_id.clone(), status);
    }

    pub(crate) fn tell_bundle(&mut self, id: &str) {
        let status = Arc::new(self.bundles[id].clone());
        self.send(StreamEvent::BundleUpdated(status));
    }

    /// Announces a job as it is now; again and again is a duplicate.
    pub(crate) fn tell(&mut self, id: &str) {
        let job = Arc::new(self.jobs[id].clone());
        self.send(StreamEvent::JobUpdated(job));
    }

    pub(crate) fn job_mut(&mut self, id: &str) -> &mut JobWithHistory {
        self.jobs.get_mut(id).unwrap()
    }

    pub(crate) fn set_bundle_state(&mut self, id: &str, state: BundleState) {
        self.bundles.get_mut(id).unwrap().bundle.state = state;
        self.tell_bundle(id);
    }

    pub(crate) fn verdict(&mut self, id: &str, reason: &str) {
        let at = self.now.wall;
        let job = self.job_mut(id);
        job.state = JobState::Post;
        job.terminal_state = Some(TerminalState {
            reason: reason.to_owned(),
            by: "control".to_owned(),
            at,
        });
    }

    /// Adds an entry about the instance of that start.
    pub(crate) fn enter(&mut self, id: &str, kind: HistoryKind, start_id: Option<StartId>) {
        let at = self.now.wall;
        let job = self.job_mut(id);
        let seq = job.history.last().map_or(0, |entry| entry.seq) + 1;
        job.history.push(HistoryEntry {
            at,
            seq,
            start_id,
            kind,
        });
    }

    pub(crate) fn place_of(&mut self, role: &str, node: &str) -> At {
        At {
            role: Role::new(role),
            node: self.metadata(node, "own"),
            running: None,
        }
    }

    /// A job of no bundle is stored.
    pub(crate) fn accept_job(&mut self, job: &Job) {
        let id = job.job_id.clone();
        let stored = JobWithHistory {
            job: job.clone(),
            current_hash: 1,
            ..JobWithHistory::default()
        };
        self.jobs.insert(id.clone(), stored);
        self.enter(id.as_str(), HistoryKind::Created, None);
    }

    fn accept_start(&mut self, start: &StartJob) {
        self.next_start += 1;
        let start_id = StartId::new(format!("{:032x}", self.next_start));
        let node = self.short(&start.node_id);
        let at = self.place_of(start.role.as_str(), &node);
        self.starts
            .insert(start.job_id.clone(), (start.clone(), start_id.clone()));
        if self.jobs.contains_key(&start.job_id) {
            self.job_mut(start.job_id.as_str()).state = JobState::Active;
            self.enter(
                start.job_id.as_str(),
                HistoryKind::Provisioned(at),
                Some(start_id),
            );
        }
    }

    /// The last accepted start of a job: role and node.
    pub(crate) fn last_start(&mut self, id: &str) -> (At, StartId) {
        let (start, start_id) = self.starts[id].clone();
        let node = self.short(&start.node_id);
        (self.place_of(start.role.as_str(), &node), start_id)
    }

    /// An instance that an earlier policy started.
    pub(crate) fn started_before(&mut self, id: &str, role: &str, node: &str) -> StartId {
        self.next_start += 1;
        let start_id = StartId::new(format!("{:032x}", self.next_start));
        let at = self.place_of(role, node);
        self.job_mut(id).state = JobState::Active;
        self.enter(id, HistoryKind::Provisioned(at), Some(start_id.clone()));
        start_id
    }

    pub(crate) fn run_of(&mut self, id: &str, role: &str, node: &str, start_id: &StartId) {
        let at = self.place_of(role, node);
        let kind = HistoryKind::Running {
            at,
            ports: BTreeMap::new(),
        };
        self.enter(id, kind, Some(start_id.clone()));
    }

    /// The overlap of a job completes: its target runs, its source on `from` stops.
    pub(crate) fn moves_over(&mut self, id: &str, source: &StartId, from: &str) {
        self.runs(id);
        let slot = self.starts[id].0.role.slot().to_string();
        let at = self.place_of(&slot, from);
        let kind = HistoryKind::Stopping {
            at: at.clone(),
            reason: StopReason::UserRequested,
            detail: String::new(),
        };
        self.enter(id, kind, Some(source.clone()));
        self.tell(id);
        self.enter(id, HistoryKind::Stopped(at), Some(source.clone()));
        self.tell(id);
    }

    /// The instance last started runs.
    pub(crate) fn runs(&mut self, id: &str) {
        let (at, start_id) = self.last_start(id);
        let kind = HistoryKind::Running {
            at,
            ports: BTreeMap::new(),
        };
        self.enter(id, kind, Some(start_id));
        self.tell(id);
    }

    /// The instance last started begins to end.
    pub(crate) fn ends(&mut self, id: &str, reason: StopReason) {
        let (at, start_id) = self.last_start(id);
        let kind = HistoryKind::Stopping {
            at,
            reason,
            detail: String::new(),
        };
        self.enter(id, kind, Some(start_id));
        self.tell(id);
    }

    /// It is over.
    pub(crate) fn over(&mut self, id: &str) {
        let (at, start_id) = self.last_start(id);
        self.enter(id, HistoryKind::Stopped(at), Some(start_id));
        self.tell(id);
    }

    /// The instance last started fails, and nothing is left of it.
    pub(crate) fn fails(&mut self, id: &str) {
        let (at, start_id) = self.last_start(id);
        let kind = HistoryKind::Stopping {
            at,
            reason: StopReason::JobFailed,
            detail: String::new(),
        };
        self.enter(id, kind, Some(start_id));
        self.over(id);
    }

    /// The worker refuses the start of that role on that node.
    pub(crate) fn rejects(&mut self, id: &str, node: &str, code: RejectionCode, words: &str) {
        let node_id = self.long(node);
        let role = self
            .starts
            .get(id)
            .map_or_else(|| Role::new("primary"), |(start, _)| start.role.clone());
        self.send(StreamEvent::JobRejected {
            node_id,
            key: InstanceKey::new(JobId::new(id), role),
            start_id: StartId::default(),
            code,
            reason: words.to_owned(),
            inventory: None,
        });
    }

    // --- looks ---

    pub(crate) fn node_of(&self, id: &str) -> Option<String> {
        let node_id = self.policy.node_for_job(&JobId::new(id))?;
        Some(self.short(node_id))
    }

    pub(crate) fn restarts(&self, id: &str) -> usize {
        self.policy.restart_count(self.now, &JobId::new(id))
    }

    pub(crate) fn is_broken(&self, id: &str) -> bool {
        self.policy.is_bundle_broken(&BundleId::new(id))
    }

    pub(crate) fn metrics(&self) -> greenroom_policy::Metrics {
        self.policy.metrics(self.now)
    }

    pub(crate) fn connected(&mut self, state: ConnectionState) {
        self.handle(Event::ConnectionState(state));
    }

    /// The names of filtered nodes with their reasons in the last decision.
    pub(crate) fn filtered(&self) -> BTreeMap<String, String> {
        let info = self.infos.last().expect("a decision was made");
        let trace = info.trace.as_ref().expect("traces are on");
        trace
            .attempts
            .iter()
            .flat_map(|attempt| &attempt.filtered)
            .map(|node| (self.short(&node.node), node.reason.name().to_owned()))
            .collect()
    }
}

impl World {
    pub(crate) fn has_started(&self, id: &str) -> bool {
        self.starts.contains_key(id)
    }
}
