//! Random commands on a small world: whatever is asked and reported in whatever order, the
//! invariants hold. A failing case is shrunk to few commands.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_ledger::{
    Called, Command, Config, Due, Finding, Fresh, Hello, HelloInstance, Ledger, Link, Open,
    Provider, Register, Report, Row, Standing, Subscriber, Wish,
};
use greenroom_types::bundle::{Bundle, BundleJob, Launch, Resilience, StartMode};
use greenroom_types::call::{Call, CreateAwsNode, InstanceRef, StartJob};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{HistoryKind, Job, Service};
use greenroom_types::node::{InstanceKey, InstanceState, RejectionCode};
use greenroom_types::stream::Stamped;
use greenroom_types::{JobId, Millis, NodeId, Now, Role, StartId, Wall};
use proptest::prelude::*;

const JOBS: [&str; 4] = ["a", "b.0.e", "b.0.p", "b.1.e"];
const NODES: [&str; 3] = ["n1", "n2", "c1"];
const ROLES: [&str; 2] = ["primary", "primary@01234567"];

/// A command in small numbers; what does not exist is asked for too.
#[derive(Clone, Debug)]
enum Act {
    CreateJob,
    UpdateJob(u8),
    DeleteJob(usize),
    Complete(usize),
    Fail(usize),
    Start(usize, usize, usize, bool),
    StartPrepared(usize, usize, usize),
    Stop(usize, usize, usize, u64),
    CreateBundle,
    UpdateBundle(u8),
    DeleteBundle,
    Single(bool),
    Slot(usize),
    CallIn(usize),
    Deregister(usize),
    CreateNode,
    Terminate(usize),
    Tag(usize, u8),
    Hello(usize, u8, bool),
    Link(usize, u8),
    Report(usize, u8, usize),
    Finding(u8),
    Due(u8, usize),
    Pass(i64),
}

fn act() -> impl Strategy<Value = Act> {
    let (job, node, role) = (0..JOBS.len(), 0..NODES.len(), 0..ROLES.len());
    prop_oneof![
        2 => Just(Act::CreateJob),
        1 => (0u8..4).prop_map(Act::UpdateJob),
        1 => job.clone().prop_map(Act::DeleteJob),
        1 => job.clone().prop_map(Act::Complete),
        1 => job.clone().prop_map(Act::Fail),
        8 => (job.clone(), role.clone(), node.clone(), any::<bool>())
            .prop_map(|(j, r, n, d)| Act::Start(j, r, n, d)),
        1 => (job.clone(), role.clone(), node.clone()).prop_map(|(j, r, n)| Act::StartPrepared(j, r, n)),
        3 => (job, role, node.clone(), 0u64..20_000).prop_map(|(j, r, n, g)| Act::Stop(j, r, n, g)),
        2 => Just(Act::CreateBundle),
        2 => (0u8..4).prop_map(Act::UpdateBundle),
        1 => Just(Act::DeleteBundle),
        2 => any::<bool>().prop_map(Act::Single),
        2 => (0usize..2).prop_map(Act::Slot),
        3 => (0usize..2).prop_map(Act::CallIn),
        1 => (0usize..2).prop_map(Act::Deregister),
        1 => Just(Act::CreateNode),
        1 => node.clone().prop_map(Act::Terminate),
        1 => (node.clone(), any::<u8>()).prop_map(|(n, t)| Act::Tag(n, t)),
        8 => (node.clone(), any::<u8>(), any::<bool>()).prop_map(|(n, m, o)| Act::Hello(n, m, o)),
        5 => (node.clone(), 0u8..6).prop_map(|(n, l)| Act::Link(n, l)),
        12 => (node.clone(), 0u8..8, 0usize..8).prop_map(|(n, k, i)| Act::Report(n, k, i)),
        2 => (0u8..7).prop_map(Act::Finding),
        2 => (0u8..4, 0usize..8).prop_map(|(k, i)| Act::Due(k, i)),
        1 => (-100_000i64..100_000).prop_map(Act::Pass),
    ]
}

struct Run {
    ledger: Ledger,
    rows: BTreeMap<(String, String), String>,
    now: Wall,
    drawn: u64,
    reports: BTreeMap<usize, u64>,
    tokens: BTreeMap<usize, String>,
    /// Every start id ever given out, with its key.
    starts: Vec<InstanceRef>,
    stopped: BTreeSet<StartId>,
}

fn job(id: &str, variant: u8) -> Job {
    Job {
        job_id: id.into(),
        description: format!("{}", variant / 2),
        services: vec![Service {
            name: "s".into(),
            command: format!("run {}", variant % 2),
            ..Service::default()
        }],
        ..Job::default()
    }
}

fn bundle(variant: u8) -> Bundle {
    let part = |name: &str, variant| BundleJob {
        job_name: name.into(),
        start_mode: if variant == 3 {
            StartMode::Manual
        } else {
            StartMode::Auto
        },
        launch: Launch {
            services: job("x", variant).services,
            ..Launch::default()
        },
        ..BundleJob::default()
    };
    Bundle {
        bundle_id: "b".into(),
        pool: "own".into(),
        jobs: match variant {
            2 => vec![part("e", variant)],
            _ => vec![part("e", variant), part("p", 0)],
        },
        resilience_policy: (variant != 1).then(Resilience::default),
        ..Bundle::default()
    }
}

impl Run {
    fn new() -> Self {
        let mut run = Self {
            ledger: Ledger::new(Config::default()),
            rows: BTreeMap::new(),
            now: Wall(1_767_225_600_000),
            drawn: 0,
            reports: BTreeMap::new(),
            tokens: BTreeMap::new(),
            starts: Vec::new(),
            stopped: BTreeSet::new(),
        };
        run.apply(Command::Open(Open {
            epoch: "e".into(),
            renew: false,
            config: Some(Box::new(Config {
                providers: [(Provider::Aws, BTreeSet::new())].into(),
                history_max_entries: 100,
                ..Config::default()
            })),
            generation: 1,
        }));
        run
    }

    fn apply(&mut self, command: Command) {
        let before = self.ledger.clone();
        let applied = self.ledger.apply(self.now, command);
        if applied.outcome.is_err() {
            assert_eq!(before, self.ledger, "a refusal changed the state");
            assert!(applied.changes.is_empty(), "a refusal told of something");
            assert!(applied.orders.is_empty(), "a refusal ordered something");
            assert!(applied.rows.is_empty(), "a refusal wrote something");
        }
        let mut seq = before.seq();
        let mut told = BTreeSet::new();
        for change in &applied.changes {
            assert!(change.seq > seq, "seq grows");
            seq = change.seq;
            if let greenroom_ledger::What::Job(view) = &change.what {
                assert!(
                    told.insert(view.job.job_id.clone()),
                    "one event a job and commit"
                );
            }
        }
        for row in applied.rows {
            let key = (row.table.to_owned(), row.key);
            match row.value {
                Some(value) => self.rows.insert(key, value),
                None => self.rows.remove(&key),
            };
        }
        for instance in self.ledger.instances() {
            if !self
                .starts
                .iter()
                .any(|known| known.start_id == instance.start_id)
            {
                self.starts.push(instance.instance_ref());
            }
        }
        self.invariant_rows_rebuild_the_state();
        self.invariant_a_key_is_live_once();
        self.invariant_what_is_stopped_stays_stopped();
        self.invariant_histories_are_in_order();
        self.invariant_deleting_ends();
    }

    fn invariant_rows_rebuild_the_state(&self) {
        let rows = self.rows.iter().map(|((table, key), value)| Row {
            table: table.clone(),
            key: key.clone(),
            value: value.clone(),
        });
        assert_eq!(Ledger::load(rows).unwrap(), self.ledger);
    }

    fn invariant_a_key_is_live_once(&self) {
        let mut live: BTreeMap<&InstanceKey, &StartId> = BTreeMap::new();
        for instance in self.ledger.instances().filter(|i| i.is_live()) {
            let old = live.insert(&instance.key, &instance.start_id);
            assert_eq!(old, None, "{} is live twice", instance.key);
            let found = self.ledger.live_instance(&instance.key);
            assert_eq!(found.map(|i| &i.start_id), Some(&instance.start_id));
        }
    }

    fn invariant_what_is_stopped_stays_stopped(&mut self) {
        for known in &self.starts {
            match self.ledger.instance(&known.start_id) {
                None => {
                    self.stopped.insert(known.start_id.clone());
                }
                Some(_) => assert!(!self.stopped.contains(&known.start_id), "it came back"),
            }
        }
    }

    /// HIST-02, HIST-04: provisioned, prepared?, running?, stopping, and again from what was taken
    /// back on, stopped.
    fn invariant_histories_are_in_order(&self) {
        for record in self.ledger.jobs() {
            let history = &record.view.history;
            let times = history.windows(2).all(|pair| pair[0].at <= pair[1].at);
            let seqs = history.windows(2).all(|pair| pair[0].seq < pair[1].seq);
            assert!(times && seqs, "{history:?}");
            let mut last: BTreeMap<&StartId, &HistoryKind> = BTreeMap::new();
            for entry in history {
                let Some(start) = &entry.start_id else {
                    continue;
                };
                use HistoryKind as K;
                let before = last.insert(start, &entry.kind);
                let fits = match (&entry.kind, before) {
                    // Entries of instances that are over may have been dropped from the front.
                    (_, None) => {
                        matches!(entry.kind, K::Provisioned(_)) || record.view.dropped_entries > 0
                    }
                    (K::Prepared(_) | K::Rejected { .. }, Some(K::Provisioned(_))) => true,
                    (K::Running { .. }, Some(K::Provisioned(_) | K::Prepared(_))) => true,
                    (
                        K::Provisioned(_) | K::Prepared(_) | K::Running { .. },
                        Some(K::Stopping { .. }),
                    ) => true,
                    (K::Provisioned(_), Some(_)) => false,
                    (K::Rejected { .. }, Some(K::Prepared(_) | K::Running { .. })) => true,
                    (K::Rejected { .. }, Some(K::Stopping { .. })) => true,
                    (K::Stopping { .. }, Some(before)) => {
                        !matches!(before, K::Stopping { .. } | K::Stopped(_))
                    }
                    (K::Stopped(_), Some(before)) => !matches!(before, K::Stopped(_)),
                    _ => false,
                };
                assert!(fits, "{:?} after {before:?}", entry.kind);
            }
            for (start, kind) in last {
                let over = matches!(kind, HistoryKind::Stopped(_));
                assert_eq!(over, self.ledger.instance(start).is_none(), "{start}");
            }
        }
    }

    /// A job whose delete is recorded is there only as long as something holds it.
    fn invariant_deleting_ends(&self) {
        for record in self.ledger.jobs().filter(|record| record.deleting) {
            assert!(!record.instances.is_empty(), "{:?}", record.view.job.job_id);
        }
        for bundle in self.ledger.bundles() {
            let deleting = bundle.bundle.state == greenroom_types::bundle::BundleState::Deleting;
            assert!(!deleting || !bundle.jobs.is_empty() || self.has_job_of_b());
        }
    }

    fn has_job_of_b(&self) -> bool {
        self.ledger.jobs().any(|job| job.bundle_id.is_some())
    }

    fn fresh(&mut self) -> Fresh {
        self.drawn += 1;
        Fresh {
            id: format!("{:032x}", self.drawn),
            token: format!("grt_{}", self.drawn),
            ..Fresh::default()
        }
    }

    fn call(&mut self, call: Call) {
        let fresh = self.fresh();
        self.apply(Command::Call(Box::new(Called {
            call,
            actor: "p".into(),
            request_id: None,
            fresh,
        })));
    }

    fn act(&mut self, act: Act) {
        let key = |job: usize, role: usize| {
            InstanceKey::new(JobId::new(JOBS[job]), Role::new(ROLES[role]))
        };
        match act {
            Act::CreateJob => self.call(Call::CreateJob(Box::new(job("a", 0)))),
            Act::UpdateJob(variant) => self.call(Call::UpdateJob(Box::new(job("a", variant)), 0)),
            Act::DeleteJob(at) => self.call(Call::DeleteJob(JOBS[at].into())),
            Act::Complete(at) => self.call(Call::CompleteJob(JOBS[at].into())),
            Act::Fail(at) => self.call(Call::MarkJobFailed {
                job_id: JOBS[at].into(),
                reason: "r".into(),
            }),
            Act::Start(job, role, node, defer_start) => self.call(Call::StartJob(StartJob {
                job_id: JOBS[job].into(),
                role: ROLES[role].into(),
                node_id: NODES[node].into(),
                defer_start,
                runtime_role: String::new(),
                gpu_index: None,
                migration_id: (role == 1).then(|| "m".into()),
                migration_state: None,
            })),
            Act::StartPrepared(job, role, node) => self.call(Call::StartPreparedJob {
                key: key(job, role),
                node_id: NODES[node].into(),
            }),
            Act::Stop(job, role, node, grace) => self.call(Call::StopJob {
                key: key(job, role),
                node_id: NODES[node].into(),
                grace_ms: Some(Millis(grace)),
            }),
            Act::CreateBundle => self.call(Call::CreateBundle(Box::new(bundle(0)))),
            Act::UpdateBundle(variant) => self.call(Call::UpdateBundle {
                bundle: Box::new(bundle(variant)),
                dry_run: false,
                clear_stop_time: false,
            }),
            Act::DeleteBundle => self.call(Call::DeleteBundle("b".into())),
            Act::Single(start) => self.single(start),
            Act::Slot(at) => {
                let token = format!("grt_{}", self.drawn + 1);
                let known = self.ledger.slot(&NODES[at].into()).is_some();
                self.call(Call::RegisterClusterNode {
                    node_name: NODES[at].into(),
                    pool: "own".into(),
                });
                if !known {
                    self.tokens.insert(at, token);
                }
            }
            Act::CallIn(at) => {
                let token = self.tokens.get(&at).cloned().unwrap_or_default();
                self.apply(Command::Register(Register {
                    token,
                    address: "h:1".into(),
                    machine_id: "m".into(),
                    public_key: "k".into(),
                    key: "s".into(),
                    hardware: None,
                }));
            }
            Act::Deregister(at) => self.call(Call::DeregisterClusterNode(NODES[at].into())),
            Act::CreateNode => self.call(Call::CreateAwsNode(Box::new(CreateAwsNode {
                node_id: "c1".into(),
                region: "eu".into(),
                instance_type: "t".into(),
                ..CreateAwsNode::default()
            }))),
            Act::Terminate(at) => self.call(Call::TerminateNode(NODES[at].into())),
            Act::Tag(at, value) => self.call(Call::SetNodeTags {
                node_id: NODES[at].into(),
                tags: [("spare".to_owned(), (value % 2 == 0).to_string())].into(),
                remove: vec![],
                expected_revision: None,
            }),
            Act::Hello(at, mask, outstanding) => self.hello(at, mask, outstanding),
            Act::Link(at, which) => {
                let links = [
                    Link::Dropped,
                    Link::GraceOver,
                    Link::KeepaliveOver,
                    Link::PendingOver,
                    Link::StartupOver,
                    Link::HelloOver,
                ];
                self.apply(Command::Link {
                    node_id: NODES[at].into(),
                    link: links[usize::from(which)],
                });
            }
            Act::Report(at, kind, which) => self.report(at, kind, which),
            Act::Finding(which) => self.finding(which),
            Act::Due(kind, which) => self.due(kind, which),
            Act::Pass(ms) => self.now = self.now.plus(ms),
        }
    }

    fn single(&mut self, start: bool) {
        let (bundle_id, replica_index, job_name) = ("b".into(), 0, "e".into());
        self.call(if start {
            Call::StartBundleJob {
                bundle_id,
                replica_index,
                job_name,
            }
        } else {
            Call::StopBundleJob {
                bundle_id,
                replica_index,
                job_name,
                grace_ms: None,
            }
        });
    }

    /// The worker has some of what was ever started anywhere, in some state.
    fn hello(&mut self, at: usize, mask: u8, outstanding: bool) {
        let states = [
            InstanceState::Provisioned,
            InstanceState::Prepared,
            InstanceState::Running,
            InstanceState::Stopping,
        ];
        let instances = self
            .starts
            .iter()
            .rev()
            .take(8)
            .enumerate()
            .filter(|(bit, _)| mask & (1 << bit) != 0)
            .map(|(bit, instance)| HelloInstance {
                instance: instance.clone(),
                state: states[(bit + usize::from(mask)) % 4],
                ports: BTreeMap::new(),
                fence: 0,
            })
            .collect();
        let last_report_id = self.reports.get(&at).copied().unwrap_or(0) + u64::from(outstanding);
        self.apply(Command::Report {
            node_id: NODES[at].into(),
            report_id: 0,
            report: Box::new(Report::Hello(Box::new(Hello {
                instances,
                last_report_id,
                inventory: Some(Box::new(NodeInventory::default())),
                ..Hello::default()
            }))),
        });
    }

    fn report(&mut self, at: usize, kind: u8, which: usize) {
        let Some(instance) = self.starts.iter().rev().nth(which).cloned() else {
            return;
        };
        let report = match kind {
            0 => Report::Accepted(instance),
            1 => Report::Started {
                instance,
                ports: BTreeMap::new(),
            },
            2 => Report::Prepared {
                instance,
                ports: BTreeMap::new(),
            },
            3 => Report::Stopped {
                instance,
                completed: false,
            },
            4 => Report::Stopped {
                instance,
                completed: true,
            },
            5 => Report::Failed {
                instance,
                reason: "f".into(),
            },
            6 => Report::Rejected {
                instance,
                code: RejectionCode::Capacity,
                detail: "d".into(),
                inventory: None,
            },
            _ => Report::Goodbye { reason: "g".into() },
        };
        let number = self.reports.entry(at).or_default();
        *number += 1;
        let report_id = *number;
        self.apply(Command::Report {
            node_id: NODES[at].into(),
            report_id,
            report: Box::new(report),
        });
    }

    fn finding(&mut self, which: u8) {
        let finding = match which {
            0 | 1 => Finding::Running {
                running: Default::default(),
                zone: "z".into(),
                tags: Default::default(),
            },
            2 => Finding::CreateFailed {
                code: "c".into(),
                text: "t".into(),
            },
            3 => Finding::Stopped,
            4 => Finding::Terminating,
            5 => Finding::Gone,
            _ => Finding::Unknown,
        };
        self.apply(Command::Provider {
            node_id: NodeId::new("c1"),
            finding,
        });
    }

    fn due(&mut self, kind: u8, which: usize) {
        let start = self
            .starts
            .iter()
            .rev()
            .nth(which)
            .map(|i| i.start_id.clone());
        let due = match (kind, start) {
            (0, Some(start)) => Due::ProvisionUnanswered(start),
            (1, Some(start)) => Due::UnreachableOver(start),
            _ => Due::ForgetNode(NODES[which % 3].into()),
        };
        self.apply(Command::Tick(due));
    }
}

/// All that a subscriber is told of a state.
fn told(standing: &Standing) -> Vec<Stamped> {
    let wish = Wish {
        client_protocol: 10,
        ..Wish::default()
    };
    let mut subscriber = Subscriber::new(wish).unwrap();
    subscriber.snapshot(Now::default(), standing, Vec::new())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    // spec: JOB-15, HIST-02, HIST-04, EVT-01, EVT-04, EVT-08
    #[test]
    fn whatever_happens_the_invariants_hold(acts in prop::collection::vec(act(), 1..120)) {
        let mut run = Run::new();
        for at in 0..2 {
            run.act(Act::Slot(at));
            run.act(Act::CallIn(at));
            run.act(Act::Hello(at, 0, false));
        }
        run.act(Act::CreateJob);
        run.act(Act::CreateBundle);
        let mut held = Vec::new();
        for act in acts {
            run.act(act);
            let standing = run.ledger.standing();
            held.push((told(&standing), run.ledger.seq(), standing));
        }
        for (then, seq, standing) in held {
            prop_assert_eq!(told(&standing), then, "commits since then show in it");
            prop_assert_eq!(standing.seq(), seq);
        }
    }
}
