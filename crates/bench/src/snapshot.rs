//! PERF-12 within one process: how long commits wait for a snapshot, and what they cost beside one that
//! somebody still holds.

use greenroom_ledger::{
    Called, Command, Config, Fresh, Hello, Ledger, Open, Register, Report, Subscriber, Wish,
};
use greenroom_testkit::{bundle, start};
use greenroom_types::call::{Call, InstanceRef};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::node::InstanceKey;
use greenroom_types::{JobId, Now, Wall};

use crate::measure::{Samples, timed};
use crate::table::{Table, whole};

/// Jobs of each bundle, on one node.
const JOBS: usize = 10;
/// Snapshots that are taken, and changes that are made beside one.
const TAKEN: usize = 20;
const CHANGES: usize = 2_000;

/// A ledger that was filled by commands.
struct Filled {
    ledger: Ledger,
    drawn: u64,
    now: Now,
}

// === impl Filled ===

impl Filled {
    /// So many nodes, each with a bundle whose jobs run there.
    fn new(nodes: usize) -> Self {
        let mut filled = Self {
            ledger: Ledger::new(Config::default()),
            drawn: 0,
            now: Now {
                wall: Wall(1_767_225_600_000),
                ..Now::default()
            },
        };
        filled.apply(Command::Open(Open {
            epoch: "e".into(),
            renew: false,
            config: None,
            generation: 1,
        }));
        for node in 0..nodes {
            filled.node(node);
        }
        filled
    }

    fn node(&mut self, number: usize) {
        let name = format!("node-{number:05}");
        self.call(Call::RegisterClusterNode {
            node_name: name.clone(),
            pool: "p".into(),
        });
        self.apply(Command::Register(Register {
            token: self.token(),
            address: "127.0.0.1:1".into(),
            machine_id: name.clone(),
            public_key: format!("pk-{name}"),
            key: format!("key-{name}"),
            hardware: None,
        }));
        self.report(
            &name,
            0,
            Report::Hello(Box::new(Hello {
                protocol_minor: 10,
                inventory: Some(Box::new(NodeInventory::default())),
                ..Hello::default()
            })),
        );
        let names: Vec<String> = (0..JOBS).map(|job| format!("job-{job}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let bundle = bundle(&format!("bundle-{number:05}"), &names);
        let jobs: Vec<JobId> = bundle
            .jobs
            .iter()
            .map(|job| bundle.job_id(0, &job.job_name))
            .collect();
        self.call(Call::CreateBundle(Box::new(bundle)));
        for (at, job_id) in (1..).zip(jobs) {
            self.call(Call::StartJob(start(job_id.as_str(), &name)));
            let key = InstanceKey::new(job_id, "primary".into());
            let live = self.ledger.live_instance(&key);
            let start_id = live.map(|it| it.start_id.clone()).unwrap_or_default();
            let instance = InstanceRef { key, start_id };
            let ports = Default::default();
            self.report(&name, at, Report::Started { instance, ports });
        }
    }

    /// The token that the last call made.
    fn token(&self) -> String {
        format!("grt_{}", self.drawn)
    }

    fn call(&mut self, call: Call) {
        self.drawn += 1;
        self.apply(Command::Call(Box::new(Called {
            call,
            actor: "bench".into(),
            request_id: None,
            fresh: Fresh {
                id: format!("{:032x}", self.drawn),
                token: self.token(),
                ..Fresh::default()
            },
        })));
    }

    fn report(&mut self, node: &str, report_id: u64, report: Report) {
        self.apply(Command::Report {
            node_id: node.into(),
            report_id,
            report: Box::new(report),
        });
    }

    fn apply(&mut self, command: Command) {
        let applied = self.ledger.apply(self.now.wall, command);
        assert!(applied.outcome.is_ok(), "{:?}", applied.outcome);
    }

    /// Has jobs stopped all over the place, one after the other; what each took, by the wall.
    fn stop(&mut self, nodes: usize, first: usize) -> Samples {
        let mut samples = Samples::default();
        for number in 0..CHANGES {
            let at = number * nodes / CHANGES;
            let job_id = JobId::new(format!("bundle-{at:05}.0.job-{}", (first + number) % JOBS));
            let stop = Call::StopJob {
                key: InstanceKey::new(job_id, "primary".into()),
                node_id: format!("node-{at:05}").into(),
                grace_ms: None,
            };
            samples.take(|| self.call(stop));
        }
        samples
    }
}

/// PERF-12, EVT-19.
pub(crate) fn snapshot(scale: usize) -> Table {
    let nodes = 10_000 / scale;
    let title = format!(
        "A snapshot of {nodes} nodes, {nodes} bundles, {} jobs that run",
        nodes * JOBS
    );
    let mut table = Table::new(title, &["what", "value"]);
    let mut filled = Filled::new(nodes);
    let mut subscriber = Subscriber::new(Wish {
        client_protocol: 10,
        ..Wish::default()
    })
    .expect("it asks for nothing in particular");
    let mut taking = Samples::default();
    for _ in 0..TAKEN {
        taking.take(|| filled.ledger.standing());
    }
    let millis = |nanos: f64| format!("{:.3}", nanos / 1e6);
    table.fact(
        "commits wait while it is taken, longest, ms",
        millis(taking.longest()),
    );
    let alone = filled.stop(nodes, 0);
    let standing = filled.ledger.standing();
    let beside = filled.stop(nodes, JOBS / 2);
    let (events, making) = timed(|| subscriber.snapshot(filled.now, &standing, Vec::new()));
    table.fact("making it meanwhile, CPU ms", millis(making));
    table.fact("events in it", whole(events.len() as f64));
    for (name, samples) in [("beside one that is held", beside), ("without", alone)] {
        table.fact(
            &format!("a stop of a job {name}, mean / longest, ms"),
            format!("{} / {}", millis(samples.mean()), millis(samples.longest())),
        );
    }
    table
}
