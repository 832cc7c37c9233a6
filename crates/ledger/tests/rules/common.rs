//! A ledger with hands: makes commands, numbers reports, and checks after every apply what must
//! always hold: a refusal changes nothing, and the rows rebuild the state.

use std::collections::BTreeMap;

use greenroom_ledger::{
    Applied, Called, Command, Config, Finding, Fresh, Hello, HelloInstance, Ledger, Link, Open,
    Order, Register, Report, Row, What, WorkerOrder,
};
use greenroom_types::bundle::{Bundle, BundleJob, Launch, Resilience};
use greenroom_types::call::{Call, CallResult, InstanceRef, Refusal, Reply, StartJob};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{HistoryKind, Job, JobState, Service};
use greenroom_types::node::{InstanceKey, InstanceState};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{JobId, Millis, NodeId, Role, StartId, Wall};

pub(crate) const ZERO: Wall = Wall(1_767_225_600_000);

pub(crate) struct World {
    pub(crate) ledger: Ledger,
    pub(crate) now: Wall,
    pub(crate) rows: BTreeMap<(String, String), String>,
    pub(crate) last: Applied,
    /// All events so far.
    pub(crate) events: Vec<StreamEvent>,
    /// All orders so far.
    pub(crate) orders: Vec<Order>,
    drawn: u64,
    reports: BTreeMap<NodeId, u64>,
    tokens: BTreeMap<NodeId, String>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Config {
            providers: [(greenroom_ledger::Provider::Aws, ["eu".to_owned()].into())].into(),
            ..Config::default()
        })
    }

    pub(crate) fn with(config: Config) -> Self {
        let mut world = Self {
            ledger: Ledger::new(Config::default()),
            now: ZERO,
            rows: BTreeMap::new(),
            last: Applied {
                outcome: Ok(Reply::Done),
                registered: None,
                changes: Vec::new(),
                audit: Vec::new(),
                orders: Vec::new(),
                rows: Vec::new(),
                touched: Vec::new(),
            },
            events: Vec::new(),
            orders: Vec::new(),
            drawn: 0,
            reports: BTreeMap::new(),
            tokens: BTreeMap::new(),
        };
        world
            .apply(Command::Open(Open {
                epoch: "e1".into(),
                renew: false,
                config: Some(Box::new(config)),
                generation: 0,
            }))
            .unwrap();
        world
    }

    /// Applies, and checks what holds for every apply.
    pub(crate) fn apply(&mut self, command: Command) -> CallResult {
        let before = self.ledger.clone();
        let command: Command = through_json(&command.checked()?);
        let applied = self.ledger.apply(self.now, command);
        if applied.outcome.is_err() {
            assert_eq!(before, self.ledger, "a refusal changed the state");
            assert!(applied.changes.is_empty() && applied.orders.is_empty());
            assert!(applied.rows.is_empty() && applied.touched.is_empty());
            assert!(applied.audit.is_empty());
        }
        // A new epoch counts anew.
        let is_same = before.epoch() == self.ledger.epoch();
        let mut seq = if is_same { before.seq() } else { 0 };
        for change in &applied.changes {
            assert_eq!(change.seq, seq + 1, "seq grows by one");
            seq = change.seq;
            self.events.push(event_of(&change.what));
        }
        assert_eq!(self.ledger.seq(), seq);
        for row in &applied.rows {
            let key = (row.table.to_owned(), row.key.clone());
            match &row.value {
                Some(value) => self.rows.insert(key, value.clone()),
                None => self.rows.remove(&key),
            };
        }
        assert_eq!(self.reload(), self.ledger, "the rows rebuild the state");
        self.orders.extend(applied.orders.clone());
        self.last = applied;
        self.last.outcome.clone()
    }

    /// The ledger that a restarted process would have.
    pub(crate) fn reload(&self) -> Ledger {
        Ledger::load(self.rows.iter().map(|((table, key), value)| Row {
            table: table.clone(),
            key: key.clone(),
            value: value.clone(),
        }))
        .unwrap()
    }

    pub(crate) fn pass(&mut self, ms: i64) {
        self.now = self.now.plus(ms);
    }

    pub(crate) fn fresh(&mut self) -> Fresh {
        self.drawn += 1;
        Fresh {
            id: format!("{:032x}", self.drawn),
            token: format!("grt_{}", self.drawn),
            ..Fresh::default()
        }
    }

    pub(crate) fn call(&mut self, call: Call) -> CallResult {
        let fresh = self.fresh();
        self.apply(Command::Call(Box::new(Called {
            call,
            actor: "tester".into(),
            request_id: None,
            fresh,
        })))
    }

    pub(crate) fn repeatable(&mut self, call: Call, id: &str) -> CallResult {
        let fresh = self.fresh();
        self.apply(Command::Call(Box::new(Called {
            call,
            actor: "tester".into(),
            request_id: Some(id.into()),
            fresh,
        })))
    }

    pub(crate) fn refused(&mut self, call: Call) -> Refusal {
        self.call(call).unwrap_err()
    }

    // --- jobs ---

    pub(crate) fn create(&mut self, id: &str) {
        self.call(Call::CreateJob(Box::new(job(id)))).unwrap();
    }

    pub(crate) fn start(&mut self, id: &str, node: &str) -> StartId {
        self.start_as(id, "primary", node).unwrap();
        self.live(id, "primary").unwrap()
    }

    /// A start that is made and not begun (JOB-24).
    pub(crate) fn start_deferred(&mut self, id: &str, node: &str) -> StartId {
        let mut deferred = start_of(id, "primary", node);
        deferred.defer_start = true;
        self.call(Call::StartJob(deferred)).unwrap();
        self.live(id, "primary").unwrap()
    }

    pub(crate) fn start_as(&mut self, id: &str, role: &str, node: &str) -> CallResult {
        self.call(Call::StartJob(start_of(id, role, node)))
    }

    pub(crate) fn running(&mut self, id: &str, node: &str) -> StartId {
        let start = self.start(id, node);
        self.started(node, id, &start);
        start
    }

    pub(crate) fn stop(&mut self, id: &str, node: &str) -> CallResult {
        self.call(Call::StopJob {
            key: key(id, "primary"),
            node_id: node.into(),
            grace_ms: None,
        })
    }

    pub(crate) fn live(&self, id: &str, role: &str) -> Option<StartId> {
        Some(self.ledger.live_instance(&key(id, role))?.start_id.clone())
    }

    pub(crate) fn state(&self, id: &str) -> Option<JobState> {
        Some(self.ledger.job(&id.into())?.view.state)
    }

    /// The history in short words.
    pub(crate) fn history(&self, id: &str) -> Vec<&'static str> {
        self.ledger
            .job(&id.into())
            .unwrap()
            .view
            .history
            .iter()
            .map(|entry| word(&entry.kind))
            .collect()
    }

    pub(crate) fn instance_state(&self, start: &StartId) -> Option<InstanceState> {
        self.ledger.instance(start).map(|i| i.state)
    }

    // --- nodes ---

    /// A slot whose worker has said hello.
    pub(crate) fn node(&mut self, name: &str) {
        self.slot(name);
        self.dial_in(name, "m").unwrap();
        self.hello(name, Vec::new());
    }

    pub(crate) fn slot(&mut self, name: &str) -> String {
        let reply = self.call(Call::RegisterClusterNode {
            node_name: name.into(),
            pool: "own".into(),
        });
        let Ok(Reply::Slot { token, node_id }) = reply else {
            panic!("{reply:?}");
        };
        self.tokens.insert(node_id, token.clone());
        token
    }

    pub(crate) fn dial_in(&mut self, name: &str, machine: &str) -> CallResult {
        let token = self.tokens[name].clone();
        self.register(&token, machine)
    }

    pub(crate) fn register(&mut self, token: &str, machine: &str) -> CallResult {
        self.apply(Command::Register(Register {
            token: token.into(),
            address: format!("10.0.0.1:{machine}"),
            machine_id: machine.into(),
            public_key: format!("pk-{machine}"),
            key: format!("key-{machine}"),
            hardware: None,
        }))
    }

    /// The same for a worker of the published protocol, which has no key of its own.
    pub(crate) fn register_published(&mut self, token: &str, machine: &str) -> CallResult {
        self.apply(Command::Register(Register {
            token: token.into(),
            address: format!("10.0.0.1:{machine}"),
            machine_id: machine.into(),
            public_key: String::new(),
            key: format!("key-{machine}"),
            hardware: None,
        }))
    }

    pub(crate) fn hello(&mut self, node: &str, instances: Vec<HelloInstance>) {
        let last_report_id = self.reports.get(node).copied().unwrap_or(0);
        self.hello_as(
            node,
            Hello {
                instances,
                last_report_id,
                protocol_minor: 10,
                inventory: Some(Box::new(NodeInventory {
                    total_capacity: 8.0,
                    ..NodeInventory::default()
                })),
                ..Hello::default()
            },
        )
        .unwrap();
    }

    pub(crate) fn hello_as(&mut self, node: &str, hello: Hello) -> CallResult {
        self.apply(Command::Report {
            node_id: node.into(),
            report_id: 0,
            report: Box::new(Report::Hello(Box::new(hello))),
        })
    }

    pub(crate) fn link(&mut self, node: &str, link: Link) {
        self.apply(Command::Link {
            node_id: node.into(),
            link,
        })
        .unwrap();
    }

    pub(crate) fn report(&mut self, node: &str, report: Report) -> CallResult {
        let number = self.reports.entry(node.into()).or_default();
        *number += 1;
        let report_id = *number;
        self.report_as(node, report_id, report)
    }

    pub(crate) fn report_as(&mut self, node: &str, report_id: u64, report: Report) -> CallResult {
        self.apply(Command::Report {
            node_id: node.into(),
            report_id,
            report: Box::new(report),
        })
    }

    pub(crate) fn started(&mut self, node: &str, id: &str, start: &StartId) {
        let instance = instance(id, "primary", start);
        self.report(node, Report::Accepted(instance.clone()))
            .unwrap();
        self.report(
            node,
            Report::Started {
                instance,
                ports: BTreeMap::new(),
            },
        )
        .unwrap();
    }

    pub(crate) fn stopped(&mut self, node: &str, id: &str, start: &StartId) {
        self.report(
            node,
            Report::Stopped {
                instance: instance(id, "primary", start),
                completed: false,
            },
        )
        .unwrap();
    }

    pub(crate) fn failed(&mut self, node: &str, id: &str, start: &StartId) {
        self.report(
            node,
            Report::Failed {
                instance: instance(id, "primary", start),
                reason: "exit 1".into(),
            },
        )
        .unwrap();
    }

    pub(crate) fn finding(&mut self, node: &str, finding: Finding) {
        self.apply(Command::Provider {
            node_id: node.into(),
            finding,
        })
        .unwrap();
    }

    // --- what came out of the last apply ---

    pub(crate) fn last_events(&self) -> Vec<StreamEvent> {
        self.last
            .changes
            .iter()
            .map(|c| event_of(&c.what))
            .collect()
    }

    pub(crate) fn last_words(&self) -> Vec<String> {
        self.last_events().iter().map(event_word).collect()
    }

    pub(crate) fn last_orders(&self) -> Vec<String> {
        self.last.orders.iter().map(order_word).collect()
    }
}

/// As the log would give it back.
fn through_json(command: &Command) -> Command {
    let text = serde_json::to_string(command).unwrap();
    let back: Command = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), text);
    back
}

pub(crate) fn job(id: &str) -> Job {
    Job {
        job_id: id.into(),
        services: vec![Service {
            name: "main".into(),
            command: "run".into(),
            ..Service::default()
        }],
        ..Job::default()
    }
}

pub(crate) fn key(id: &str, role: &str) -> InstanceKey {
    InstanceKey::new(JobId::new(id), Role::new(role))
}

pub(crate) fn instance(id: &str, role: &str, start: &StartId) -> InstanceRef {
    InstanceRef {
        key: key(id, role),
        start_id: start.clone(),
    }
}

pub(crate) fn there(id: &str, start: &StartId, state: InstanceState) -> HelloInstance {
    HelloInstance {
        instance: instance(id, "primary", start),
        state,
        ports: BTreeMap::new(),
        fence: 0,
    }
}

pub(crate) fn start_of(id: &str, role: &str, node: &str) -> StartJob {
    StartJob {
        job_id: id.into(),
        role: role.into(),
        node_id: node.into(),
        defer_start: false,
        runtime_role: String::new(),
        gpu_index: None,
        migration_id: None,
        migration_state: None,
    }
}

pub(crate) fn bundle(id: &str, jobs: &[&str], copies: u32) -> Bundle {
    Bundle {
        bundle_id: id.into(),
        pool: "own".into(),
        jobs: jobs.iter().map(|name| bundle_job(name)).collect(),
        resilience_policy: (copies == 2).then(Resilience::default),
        ..Bundle::default()
    }
}

pub(crate) fn bundle_job(name: &str) -> BundleJob {
    BundleJob {
        job_name: name.into(),
        launch: Launch {
            services: job("x").services,
            ..Launch::default()
        },
        ..BundleJob::default()
    }
}

pub(crate) fn event_of(what: &What) -> StreamEvent {
    match what {
        What::Job(view) => StreamEvent::JobUpdated(view.clone()),
        What::JobDeleted(id) => StreamEvent::JobDeleted(id.clone()),
        What::Event(event) => event.clone(),
    }
}

pub(crate) fn word(kind: &HistoryKind) -> &'static str {
    match kind {
        HistoryKind::Created => "created",
        HistoryKind::Updated { .. } => "updated",
        HistoryKind::Provisioned(_) => "provisioned",
        HistoryKind::Prepared(_) => "prepared",
        HistoryKind::Running { .. } => "running",
        HistoryKind::Stopping { .. } => "stopping",
        HistoryKind::Stopped(_) => "stopped",
        HistoryKind::Completed => "completed",
        HistoryKind::Failed { .. } => "failed",
        HistoryKind::Rejected { .. } => "rejected",
    }
}

pub(crate) fn event_word(event: &StreamEvent) -> String {
    match event {
        StreamEvent::JobUpdated(view) => format!("job {}", view.job.job_id),
        StreamEvent::JobDeleted(id) => format!("job gone {id}"),
        StreamEvent::NodeStarting { metadata, phase } => {
            format!("starting {} {phase:?}", metadata.node_id)
        }
        StreamEvent::NodeStarted { metadata, .. } => format!("started {}", metadata.node_id),
        StreamEvent::NodeStopping {
            node_id, reason, ..
        } => format!("stopping {node_id} {reason:?}"),
        StreamEvent::NodeStopped { node_id } => format!("stopped {node_id}"),
        StreamEvent::BundleUpdated(status) => {
            format!(
                "bundle {} {:?}",
                status.bundle.bundle_id, status.bundle.state
            )
        }
        StreamEvent::BundleDeleted(id) => format!("bundle gone {id}"),
        StreamEvent::NodeInventoryUpdated { node_id, .. } => format!("inventory {node_id}"),
        StreamEvent::NodeReachabilityChanged { node_id, reachable } => {
            format!("reachable {node_id} {reachable}")
        }
        StreamEvent::NodeTagsUpdated { metadata, .. } => format!("tags {}", metadata.node_id),
        StreamEvent::NodeInterruptionNotice { node_id, kind, .. } => {
            format!("notice {node_id} {kind:?}")
        }
        StreamEvent::ImagesPrefetched { node_id, .. } => format!("prefetched {node_id}"),
        StreamEvent::JobRejected { key, code, .. } => format!("rejected {} {code:?}", key.job_id),
        StreamEvent::JobPrepared { key, .. } => format!("prepared {}", key.job_id),
        StreamEvent::Migration { signal, .. } => format!("migration {signal:?}"),
        StreamEvent::LeaseChanged(lease) => format!("lease {} {}", lease.key, lease.state),
        StreamEvent::LeasesPaused { paused, by, .. } => format!("paused {paused} by {by}"),
        other => format!("{other:?}"),
    }
}

pub(crate) fn order_word(order: &Order) -> String {
    match order {
        Order::Worker { node_id, message } => match message {
            WorkerOrder::Provision(job) => format!("{node_id}: provision {}", job.instance.key),
            WorkerOrder::StartPrepared(instance) => {
                format!("{node_id}: start prepared {}", instance.key)
            }
            WorkerOrder::Stop {
                instance,
                grace_ms: Millis(grace),
                reason,
            } => format!("{node_id}: stop {} {grace} {reason:?}", instance.key),
            WorkerOrder::UpdateJob(job) => format!("{node_id}: update {}", job.instance.key),
            WorkerOrder::PrefetchImages { .. } => format!("{node_id}: prefetch"),
            WorkerOrder::Migration { instance, step, .. } => {
                format!("{node_id}: {step:?} {}", instance.key)
            }
            WorkerOrder::ReportAck { report_id } => format!("{node_id}: ack {report_id}"),
            WorkerOrder::Shutdown { park, .. } => format!("{node_id}: shutdown park={park}"),
            WorkerOrder::Tags(_) => format!("{node_id}: tags"),
            WorkerOrder::Discovery(order) => format!("{node_id}: discovery {}", order.version),
            WorkerOrder::AccessReplica(order) => format!("{node_id}: replica {}", order.version),
            WorkerOrder::LeasesPaused { paused, .. } => format!("{node_id}: paused {paused}"),
        },
        Order::Provider { node_id, task } => {
            let task = format!("{task:?}");
            let name = task.split(['(', ' ', '{']).next().unwrap_or_default();
            format!("{node_id}: {name}")
        }
        Order::Dial { node_id, .. } => format!("{node_id}: dial"),
        Order::Close { node_id, redial } => format!("{node_id}: close redial={redial}"),
    }
}
