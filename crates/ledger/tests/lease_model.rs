//! The Manager's side of leases against workers that do the least that is asked of them: each ends what
//! it runs when the ttl has passed on its own clock since it sent the last refresh that was answered,
//! and not a moment earlier. Clocks run up to a twentieth apart, messages are delayed, lines break,
//! machines die, the Manager stops and starts again. Whatever comes, at no moment do two nodes run the
//! job; and once all is well again, it can be started.
//!
//! Left out is what LEASE-12 accepts: a worker that keeps its job through a pause and does not hear of
//! its end.

use std::collections::{BTreeMap, VecDeque};

use greenroom_ledger::{
    Called, Command, Fresh, Hello, HelloInstance, LeaseClock, Ledger, Link, Order, Refreshed,
    Register, Report, WorkerOrder,
};
use greenroom_types::call::{Call, InstanceRef, StartJob};
use greenroom_types::job::{Job, LeasePolicy, Service};
use greenroom_types::node::InstanceState;
use greenroom_types::{Millis, Mono, NodeId, Now, StartId, Wall};
use proptest::prelude::*;

const NODES: [&str; 3] = ["n0", "n1", "n2"];
const TTL: u64 = 4_000;
const GRACE: u64 = 1_000;
/// The Manager gives a silent node up after this.
const DROP_GRACE: u64 = 1_500;
const STEP: u64 = 50;

#[derive(Clone, Debug)]
enum Deed {
    Pass(u64),
    Start(usize),
    Stop,
    Cut(usize),
    Mend(usize),
    /// Messages to and from the node take so long from now on.
    Delay(usize, u64),
    /// The machine dies and is there again, empty.
    Reboot(usize),
    RestartManager,
    /// The Manager's process does not run for so long.
    Freeze(u64),
    Pause,
    Resume,
}

#[derive(Debug)]
enum Up {
    Refresh {
        number: u64,
        held: Vec<(InstanceRef, u64)>,
    },
    Report(Report),
}

#[derive(Debug)]
enum Down {
    Order(WorkerOrder),
    Answer {
        number: u64,
        items: Vec<(StartId, Refreshed)>,
    },
}

#[derive(Debug)]
struct Run {
    instance: InstanceRef,
    fence: u64,
    /// When the last refresh that was answered had been sent, on the worker's clock.
    since: Option<u64>,
    runs: bool,
}

#[derive(Debug)]
struct Node {
    /// How fast its clock goes, in thousandths.
    rate: u64,
    linked: bool,
    /// The line broke then, and the node is not given up yet.
    cut_at: Option<u64>,
    delay: u64,
    up: VecDeque<(u64, Up)>,
    down: VecDeque<(u64, Down)>,
    runs: BTreeMap<StartId, Run>,
    paused: bool,
    refresh_at: u64,
    sent: BTreeMap<u64, u64>,
    numbers: u64,
    boots: u64,
}

struct World {
    ledger: Ledger,
    clock: LeaseClock,
    at: u64,
    frozen_until: u64,
    nodes: Vec<Node>,
    drawn: u64,
    /// Starts that ran at any time.
    ran: usize,
}

impl Node {
    fn local(&self, at: u64) -> u64 {
        at * self.rate / 1_000
    }

    fn say(&mut self, at: u64, up: Up) {
        if self.linked {
            let earliest = self.up.back().map_or(0, |(at, _)| *at);
            self.up.push_back((earliest.max(at + self.delay), up));
        }
    }

    fn tell(&mut self, at: u64, down: Down) {
        if self.linked {
            let earliest = self.down.back().map_or(0, |(at, _)| *at);
            self.down.push_back((earliest.max(at + self.delay), down));
        }
    }

    fn refresh(&mut self, at: u64) {
        self.refresh_at = self.local(at) + TTL / 3;
        if self.runs.is_empty() {
            return;
        }
        self.numbers += 1;
        let number = self.numbers;
        self.sent.insert(number, self.local(at));
        let held = self.runs.values();
        let held = held.map(|run| (run.instance.clone(), run.fence)).collect();
        self.say(at, Up::Refresh { number, held });
    }

    /// What runs out is killed, in the last moment in which it may run.
    fn expire(&mut self, at: u64) {
        if self.paused {
            return;
        }
        let local = self.local(at);
        let over = |run: &Run| run.runs && run.since.is_none_or(|since| local >= since + TTL);
        let over: Vec<StartId> = self
            .runs
            .iter()
            .filter(|(_, run)| over(run))
            .map(|(start_id, _)| start_id.clone())
            .collect();
        for start_id in over {
            self.end(at, &start_id);
        }
    }

    fn end(&mut self, at: u64, start_id: &StartId) {
        if let Some(run) = self.runs.remove(start_id) {
            let instance = run.instance;
            self.say(
                at,
                Up::Report(Report::Stopped {
                    instance,
                    completed: false,
                }),
            );
        }
    }

    fn hear(&mut self, at: u64, down: Down) {
        match down {
            Down::Order(WorkerOrder::Provision(job)) => {
                let start_id = job.instance.start_id.clone();
                let run = Run {
                    instance: job.instance.clone(),
                    fence: job.fence,
                    since: None,
                    runs: false,
                };
                self.runs.entry(start_id).or_insert(run);
                self.say(at, Up::Report(Report::Accepted(job.instance)));
                self.refresh(at);
            }
            Down::Order(WorkerOrder::Stop { instance, .. }) => self.end(at, &instance.start_id),
            Down::Order(WorkerOrder::LeasesPaused { paused, .. }) => {
                if self.paused && !paused {
                    // Every lease begins anew at this moment.
                    let local = self.local(at);
                    for run in self.runs.values_mut().filter(|run| run.since.is_some()) {
                        run.since = Some(local);
                    }
                }
                self.paused = paused;
                self.refresh(at);
            }
            Down::Order(_) => {}
            Down::Answer { number, items } => {
                let Some(sent) = self.sent.remove(&number) else {
                    return;
                };
                for (start_id, answer) in items {
                    match answer {
                        Refreshed::Superseded => self.end(at, &start_id),
                        Refreshed::For(ttl) => {
                            let local = self.local(at);
                            let Some(run) = self.runs.get_mut(&start_id) else {
                                continue;
                            };
                            run.since = run.since.max(Some(sent));
                            let holds = self.paused || local < sent + ttl.0;
                            if !run.runs && holds {
                                run.runs = true;
                                let instance = run.instance.clone();
                                let ports = BTreeMap::new();
                                self.say(at, Up::Report(Report::Started { instance, ports }));
                            }
                        }
                    }
                }
            }
        }
    }
}

impl World {
    fn new(rates: [u64; 3]) -> Self {
        let ledger = Ledger::default();
        let clock = LeaseClock::new(Millis(0), Now::default(), &ledger);
        let nodes = rates.map(|rate| Node {
            rate,
            linked: false,
            cut_at: None,
            delay: 0,
            up: VecDeque::new(),
            down: VecDeque::new(),
            runs: BTreeMap::new(),
            paused: false,
            refresh_at: 0,
            sent: BTreeMap::new(),
            numbers: 0,
            boots: 0,
        });
        let mut world = Self {
            ledger,
            clock,
            at: 1_000,
            frozen_until: 0,
            nodes: nodes.into(),
            drawn: 0,
            ran: 0,
        };
        for (index, name) in NODES.iter().enumerate() {
            world.call(Call::RegisterClusterNode {
                node_name: (*name).to_owned(),
                pool: "p".into(),
            });
            let register = Command::Register(Register {
                token: format!("t{}", world.drawn),
                address: "h:1".to_owned(),
                machine_id: (*name).to_owned(),
                public_key: "k".to_owned(),
                key: "k".to_owned(),
                hardware: None,
            });
            world.apply(register).unwrap();
            world.mend(index);
        }
        world.call(Call::CreateJob(Box::new(Job {
            job_id: "a".into(),
            lease: Some(LeasePolicy {
                ttl_ms: Millis(TTL),
                grace_ms: Millis(GRACE),
            }),
            services: vec![Service {
                name: "main".to_owned(),
                command: "run".to_owned(),
                ..Service::default()
            }],
            ..Job::default()
        })));
        world
    }

    fn now(&self) -> Now {
        Now {
            mono: Mono(self.at),
            wall: Wall(i64::try_from(self.at).unwrap()),
        }
    }

    fn apply(&mut self, command: Command) -> greenroom_types::call::CallResult {
        let now = self.now();
        let applied = self.ledger.apply(now.wall, command);
        self.clock.observe(now, &self.ledger, &applied.touched);
        for order in applied.orders {
            if let Order::Worker { node_id, message } = order {
                let at = self.at;
                let index = NODES.iter().position(|name| *name == node_id.as_str());
                self.nodes[index.unwrap()].tell(at, Down::Order(message));
            }
        }
        applied.outcome
    }

    fn call(&mut self, call: Call) -> bool {
        self.drawn += 1;
        let fresh = Fresh {
            id: format!("{:032x}", self.drawn),
            token: format!("t{}", self.drawn),
            ..Fresh::default()
        };
        self.apply(Command::Call(Box::new(Called {
            call,
            actor: "t".to_owned(),
            request_id: None,
            fresh,
        })))
        .is_ok()
    }

    fn start(&mut self, node: usize) -> bool {
        self.call(Call::StartJob(StartJob {
            job_id: "a".into(),
            role: "primary".into(),
            node_id: NODES[node].into(),
            defer_start: false,
            runtime_role: String::new(),
            gpu_index: None,
            migration_id: None,
            migration_state: None,
        }))
    }

    fn cut(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if !node.linked {
            return;
        }
        node.linked = false;
        node.cut_at = Some(self.at);
        node.up.clear();
        node.down.clear();
        node.sent.clear();
        self.link(index, Link::Dropped);
    }

    fn link(&mut self, index: usize, link: Link) {
        let node_id = NodeId::new(NODES[index]);
        self.apply(Command::Link { node_id, link }).unwrap();
    }

    fn mend(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if node.linked {
            return;
        }
        node.linked = true;
        node.cut_at = None;
        let hello = Hello {
            boot_id: node.boots.to_string(),
            protocol_minor: 10,
            leases_paused: node.paused,
            instances: node
                .runs
                .values()
                .map(|run| HelloInstance {
                    instance: run.instance.clone(),
                    state: match run.runs {
                        true => InstanceState::Running,
                        false => InstanceState::Provisioned,
                    },
                    ports: BTreeMap::new(),
                    fence: run.fence,
                })
                .collect(),
            ..Hello::default()
        };
        self.apply(Command::Report {
            node_id: NODES[index].into(),
            report_id: 0,
            report: Box::new(Report::Hello(Box::new(hello))),
        })
        .unwrap();
        let at = self.at;
        self.nodes[index].refresh(at);
    }

    /// The Manager's process ends and another begins with the same state and no memory.
    fn restart(&mut self) {
        for index in 0..NODES.len() {
            self.cut(index);
        }
        self.clock = LeaseClock::new(Millis(0), self.now(), &self.ledger);
        for index in 0..NODES.len() {
            self.mend(index);
        }
    }

    fn hear(&mut self, index: usize, up: Up) {
        let node_id = NodeId::new(NODES[index]);
        match up {
            Up::Refresh { number, held } => {
                let now = self.now();
                let mut items = Vec::new();
                for (instance, fence) in held {
                    let answer = self
                        .clock
                        .refresh(now, &self.ledger, &node_id, &instance, fence);
                    items.push((instance.start_id, answer));
                }
                let at = self.at;
                self.nodes[index].tell(at, Down::Answer { number, items });
            }
            Up::Report(report) => {
                let report = Box::new(report);
                // Refused where the node is not expected to speak; nothing depends on it here.
                let _ = self.apply(Command::Report {
                    node_id,
                    report_id: 0,
                    report,
                });
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        let until = self.at + ms;
        while self.at < until {
            self.at += STEP;
            let at = self.at;
            for node in &mut self.nodes {
                node.expire(at);
                while node.down.front().is_some_and(|(due, _)| *due <= at) {
                    if let Some((_, down)) = node.down.pop_front() {
                        node.hear(at, down);
                    }
                }
                if node.local(at) >= node.refresh_at {
                    node.refresh(at);
                }
            }
            if at >= self.frozen_until {
                self.manage();
            }
            self.check();
        }
    }

    fn manage(&mut self) {
        for index in 0..NODES.len() {
            while self.nodes[index]
                .up
                .front()
                .is_some_and(|(due, _)| *due <= self.at)
            {
                if let Some((_, up)) = self.nodes[index].up.pop_front() {
                    self.hear(index, up);
                }
            }
            let cut = self.nodes[index].cut_at;
            if cut.is_some_and(|cut| self.at >= cut + DROP_GRACE) {
                self.nodes[index].cut_at = None;
                self.link(index, Link::GraceOver);
            }
        }
        let wakeup = self.clock.due(self.now(), &self.ledger);
        for command in wakeup.commands {
            self.apply(command).unwrap();
        }
    }

    fn running(&self) -> Vec<(usize, u64)> {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .flat_map(|(index, node)| {
                let runs = node.runs.values().filter(|run| run.runs);
                runs.map(move |run| (index, run.fence))
            })
            .collect()
    }

    fn check(&mut self) {
        let running = self.running();
        assert!(running.len() <= 1, "at {}: {running:?}", self.at);
        self.ran = self.ran.max(running.first().map_or(0, |_| 1));
    }

    /// No worker that keeps its job through the pause would miss the end of it.
    fn all_would_hear(&self) -> bool {
        self.nodes
            .iter()
            .all(|node| node.linked || !node.paused || node.runs.is_empty())
    }

    fn act(&mut self, deed: &Deed) {
        let at = self.at;
        match *deed {
            Deed::Pass(ms) => self.pass(ms),
            Deed::Start(node) => {
                self.start(node);
            }
            Deed::Stop => {
                let key = greenroom_types::node::InstanceKey::new("a".into(), "primary".into());
                let node_id = self.ledger.live_instance(&key).map(|it| it.node_id.clone());
                if let Some(node_id) = node_id {
                    self.call(Call::StopJob {
                        key,
                        node_id,
                        grace_ms: None,
                    });
                }
            }
            Deed::Cut(node) => self.cut(node),
            Deed::Mend(node) => self.mend(node),
            Deed::Delay(node, ms) => self.nodes[node].delay = ms,
            Deed::Reboot(node) => {
                self.cut(node);
                self.nodes[node].runs.clear();
                self.nodes[node].boots += 1;
                self.mend(node);
            }
            Deed::RestartManager => self.restart(),
            Deed::Freeze(ms) => self.frozen_until = at + ms,
            Deed::Pause => {
                self.call(Call::PauseLeases {
                    reason: "works".to_owned(),
                    by: "ana".to_owned(),
                });
            }
            Deed::Resume => self.resume(),
        }
    }

    fn resume(&mut self) {
        // The word must also arrive in time: it is delayed, and the line may break meanwhile.
        if self.all_would_hear() && self.ledger.lease_pause().is_some() {
            for node in &mut self.nodes {
                node.delay = 0;
            }
            self.call(Call::ResumeLeases {
                by: "ana".to_owned(),
            });
            self.frozen_until = 0;
            self.pass(5_000);
        }
    }
}

fn deed() -> impl Strategy<Value = Deed> {
    let node = || 0..NODES.len();
    prop_oneof![
        6 => (100..6_000_u64).prop_map(Deed::Pass),
        5 => node().prop_map(Deed::Start),
        1 => Just(Deed::Stop),
        3 => node().prop_map(Deed::Cut),
        2 => node().prop_map(Deed::Mend),
        2 => (node(), 0..3_000_u64).prop_map(|(node, ms)| Deed::Delay(node, ms)),
        1 => node().prop_map(Deed::Reboot),
        1 => Just(Deed::RestartManager),
        1 => (500..9_000_u64).prop_map(Deed::Freeze),
        1 => Just(Deed::Pause),
        1 => Just(Deed::Resume),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // spec: LEASE-01, LEASE-07, LEASE-08, LEASE-09, LEASE-12, LEASE-17
    #[test]
    fn at_no_moment_do_two_nodes_run_a_protected_job(
        rates in prop::array::uniform3(950..1_051_u64),
        deeds in prop::collection::vec(deed(), 1..60),
    ) {
        let mut world = World::new(rates);
        for deed in &deeds {
            world.act(deed);
            world.check();
        }
        // All is well again: the job can be started, and runs.
        world.frozen_until = 0;
        for node in 0..NODES.len() {
            world.nodes[node].delay = 0;
            world.mend(node);
        }
        world.pass(1_000);
        world.resume();
        prop_assert!(world.ledger.lease_pause().is_none());
        world.pass(3 * (TTL + TTL / 10 + GRACE));
        if world.running().is_empty() {
            prop_assert!(world.start(0), "its key is free");
            world.pass(1_000);
        }
        prop_assert_eq!(world.running().len(), 1);
    }
}
