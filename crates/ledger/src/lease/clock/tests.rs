use greenroom_types::call::{Call, StartJob, Status};
use greenroom_types::job::{Job, LeasePolicy, Service};
use greenroom_types::node::InstanceKey;

use super::*;
use crate::command::{Called, Fresh, Link, Register};
use crate::report::{Hello, Report};

/// A protected job that runs on a node, and the clock of its lease: ttl 10 s, grace 5 s.
struct Bench {
    ledger: Ledger,
    clock: LeaseClock,
    mono: u64,
    drawn: u32,
}

const START: i64 = 1_000_000;
/// Ttl, a tenth of it, and grace.
const GUARDED: u64 = 16_000;

impl Bench {
    fn new() -> Self {
        let ledger = Ledger::default();
        let clock = LeaseClock::new(Millis(60_000), Now::default(), &ledger);
        let mut bench = Self {
            ledger,
            clock,
            mono: 0,
            drawn: 0,
        };
        for node in ["n1", "n2"] {
            let slot = Call::RegisterClusterNode {
                node_name: node.to_owned(),
                pool: "p".into(),
            };
            bench.call(slot).unwrap();
            let register = Command::Register(Register {
                token: format!("t{}", bench.drawn),
                address: "h:1".to_owned(),
                machine_id: node.to_owned(),
                public_key: "k".to_owned(),
                key: "k".to_owned(),
                hardware: None,
            });
            bench.apply(register).unwrap();
            let hello = Hello {
                protocol_minor: 10,
                ..Hello::default()
            };
            let hello = Command::Report {
                node_id: node.into(),
                report_id: 0,
                report: Box::new(Report::Hello(Box::new(hello))),
            };
            bench.apply(hello).unwrap();
        }
        let job = Job {
            job_id: "a".into(),
            lease: Some(LeasePolicy::default()),
            services: vec![Service {
                name: "main".to_owned(),
                command: "run".to_owned(),
                ..Service::default()
            }],
            ..Job::default()
        };
        bench.call(Call::CreateJob(Box::new(job))).unwrap();
        bench.start("n1").unwrap();
        bench
    }

    fn now(&self) -> Now {
        Now {
            mono: Mono(self.mono),
            wall: Wall(START).plus(i64::try_from(self.mono).unwrap()),
        }
    }

    fn apply(&mut self, command: Command) -> greenroom_types::call::CallResult {
        let now = self.now();
        let applied = self.ledger.apply(now.wall, command);
        self.clock.observe(now, &self.ledger, &applied.touched);
        applied.outcome
    }

    fn call(&mut self, call: Call) -> greenroom_types::call::CallResult {
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
    }

    fn start(&mut self, node: &str) -> greenroom_types::call::CallResult {
        self.call(Call::StartJob(StartJob {
            job_id: "a".into(),
            role: "primary".into(),
            node_id: node.into(),
            defer_start: false,
            runtime_role: String::new(),
            gpu_index: None,
            migration_id: None,
            migration_state: None,
        }))
    }

    fn lease(&self) -> Lease {
        let key = InstanceKey::new("a".into(), "primary".into());
        self.ledger.lease(&key).unwrap().clone()
    }

    fn refresh(&mut self) -> Refreshed {
        let lease = self.lease();
        let held = InstanceRef {
            key: lease.key,
            start_id: lease.start_id,
        };
        let now = self.now();
        self.clock
            .refresh(now, &self.ledger, &lease.node_id, &held, lease.fence)
    }

    fn cut_off(&mut self) {
        for link in [Link::Dropped, Link::GraceOver] {
            let node_id = "n1".into();
            self.apply(Command::Link { node_id, link }).unwrap();
        }
    }

    /// Lets time pass in steps, as a driver that comes by each second, and carries out what is due.
    fn pass(&mut self, ms: u64) {
        let until = self.mono + ms;
        while self.mono < until {
            self.mono = until.min(self.mono + 1_000);
            let wakeup = self.clock.due(self.now(), &self.ledger);
            for command in wakeup.commands {
                self.apply(command).unwrap();
            }
        }
    }

    fn retry_after(&mut self) -> u64 {
        let refusal = self.start("n2").unwrap_err();
        let refusal = self.clock.complete(self.now(), refusal);
        match refusal.details["retry_after_ms"] {
            Detail::Int(ms) => u64::try_from(ms).unwrap(),
            ref other => panic!("{other:?}"),
        }
    }

    fn pause(&mut self) {
        self.call(Call::PauseLeases {
            reason: "works".to_owned(),
            by: "ana".to_owned(),
        })
        .unwrap();
    }

    fn resume(&mut self) {
        let by = "ana".to_owned();
        self.call(Call::ResumeLeases { by }).unwrap();
    }
}

// spec: LEASE-03, LEASE-07
#[test]
fn a_refresh_commits_nothing_and_moves_the_end() {
    let mut bench = Bench::new();
    let before = bench.ledger.clone();
    for _ in 0..20 {
        bench.pass(9_000);
        assert_eq!(bench.refresh(), Refreshed::For(Millis(10_000)));
    }
    assert_eq!(bench.ledger, before);
    bench.pass(9_999);
    assert_eq!(bench.lease().state, LeaseState::Held);
    bench.pass(1);
    assert_eq!(bench.lease().state, LeaseState::Lost);
}

// spec: LEASE-08
#[test]
fn a_new_start_waits_for_the_ttl_a_tenth_and_the_grace_since_the_last_refresh() {
    let mut bench = Bench::new();
    bench.pass(4_000);
    bench.refresh();
    bench.cut_off();
    assert_eq!(bench.retry_after(), GUARDED);
    bench.pass(7_000);
    assert_eq!(bench.retry_after(), GUARDED - 7_000);
    bench.pass(GUARDED - 7_001);
    assert_eq!(bench.retry_after(), 1);
    bench.pass(1);
    assert_eq!(bench.lease().state, LeaseState::Over);
    bench.start("n2").unwrap();
    assert_eq!(bench.lease().fence, 2);
}

// spec: LEASE-08, LEASE-09
#[test]
fn a_new_clock_takes_every_lease_for_just_refreshed() {
    let mut bench = Bench::new();
    bench.cut_off();
    bench.pass(GUARDED - 1);
    bench.clock = LeaseClock::new(Millis(60_000), bench.now(), &bench.ledger);
    assert_eq!(bench.retry_after(), GUARDED);
    bench.pass(GUARDED - 1);
    assert_eq!(bench.lease().state, LeaseState::Lost);
    bench.pass(1);
    bench.start("n2").unwrap();
}

// spec: LEASE-17, HARDM-55
#[test]
fn what_is_lost_or_replaced_is_answered_superseded() {
    let mut bench = Bench::new();
    let first = bench.lease();
    let held = InstanceRef {
        key: first.key.clone(),
        start_id: first.start_id.clone(),
    };
    let ask = |bench: &mut Bench, node: &str, fence| {
        let now = bench.now();
        let ledger = &bench.ledger;
        bench
            .clock
            .refresh(now, ledger, &NodeId::new(node), &held, fence)
    };
    assert_eq!(ask(&mut bench, "n1", 1), Refreshed::For(Millis(10_000)));
    assert_eq!(ask(&mut bench, "n2", 1), Refreshed::Superseded);
    assert_eq!(ask(&mut bench, "n1", 2), Refreshed::Superseded);
    // The order to run it was under way for so long that the lease is lost, and then another's.
    bench.pass(20_000);
    assert_eq!(ask(&mut bench, "n1", 1), Refreshed::Superseded);
    bench.start("n2").unwrap();
    assert_eq!(ask(&mut bench, "n1", 1), Refreshed::Superseded);
    assert_eq!(bench.refresh(), Refreshed::For(Millis(10_000)));
}

// spec: LEASE-12, HARDM-27
#[test]
fn a_pause_stops_all_times_and_after_it_they_begin_anew() {
    let mut bench = Bench::new();
    bench.pass(9_000);
    bench.pause();
    bench.pass(3_600_000);
    assert_eq!(bench.lease().state, LeaseState::Held);
    let shown = bench.clock.status(bench.now(), &bench.ledger);
    assert_eq!(shown.leases[0].state, "paused_kept");
    // Its holder goes in the pause.
    bench.cut_off();
    bench.pass(3_600_000);
    assert_eq!(bench.start("n2").unwrap_err().reason, "leases_paused");
    bench.resume();
    assert_eq!(bench.retry_after(), GUARDED);
    bench.pass(GUARDED - 1);
    assert_eq!(bench.retry_after(), 1);
    bench.pass(1);
    bench.start("n2").unwrap();
}

// spec: LEASE-14
#[test]
fn the_status_tells_what_is_left_and_when_it_was_refreshed() {
    let mut bench = Bench::new();
    bench.pass(3_000);
    bench.refresh();
    bench.pass(2_000);
    let status = bench.clock.status(bench.now(), &bench.ledger);
    let [lease] = status.leases.as_slice() else {
        panic!("{status:?}");
    };
    assert_eq!(
        (lease.state.as_str(), lease.fence, lease.ttl_ms),
        ("held", 1, 10_000)
    );
    assert_eq!(lease.remaining_ms, 8_000);
    assert_eq!(lease.refreshed_at, Some(Wall(START + 3_000)));
    assert_eq!(status.paused, None);
    bench.cut_off();
    let lost = bench.clock.status(bench.now(), &bench.ledger);
    assert_eq!(lost.leases[0].state, "lost_waiting");
    assert_eq!(lost.leases[0].remaining_ms, GUARDED - 2_000);
    bench.pass(GUARDED);
    let over = bench.clock.status(bench.now(), &bench.ledger);
    assert!(over.leases.is_empty(), "nobody holds it: {over:?}");
}

// spec: LEASE-15, LEASE-16
#[test]
fn a_bundle_lease_runs_stands_still_and_begins_anew() {
    let mut bench = Bench::new();
    let bundle = greenroom_types::bundle::Bundle {
        bundle_id: "b".into(),
        pool: "p".into(),
        jobs: vec![greenroom_types::bundle::BundleJob {
            job_name: "x".into(),
            launch: greenroom_types::bundle::Launch {
                services: vec![Service {
                    name: "main".to_owned(),
                    command: "run".to_owned(),
                    ..Service::default()
                }],
                ..Default::default()
            },
            ..Default::default()
        }],
        ..Default::default()
    };
    bench.call(Call::CreateBundle(Box::new(bundle))).unwrap();
    let renew = Call::RenewBundleLease {
        bundle_id: "b".into(),
        ttl_ms: Millis(20_000),
    };
    let there = |bench: &Bench| bench.ledger.bundle(&"b".into()).is_some();
    bench.call(renew.clone()).unwrap();
    for _ in 0..3 {
        bench.pass(19_000);
        bench.call(renew.clone()).unwrap();
    }
    bench.pass(19_000);
    bench.pause();
    bench.pass(100_000);
    assert!(there(&bench), "it stands still");
    bench.resume();
    bench.pass(19_999);
    assert!(there(&bench), "it began anew");
    // A restart begins it anew as well.
    bench.clock = LeaseClock::new(Millis(60_000), bench.now(), &bench.ledger);
    let status = bench.clock.status(bench.now(), &bench.ledger);
    assert_eq!(
        status.bundle_leases[0].expires_at,
        bench.now().wall.plus(20_000)
    );
    bench.pass(19_999);
    assert!(there(&bench));
    bench.pass(1);
    assert!(!there(&bench));
}

// spec: LEASE-13
#[test]
fn a_long_pause_is_told_every_ten_minutes_and_never_ends_by_itself() {
    let mut bench = Bench::new();
    bench.pause();
    let mut told = Vec::new();
    for second in 0..1_300 {
        bench.mono = second * 1_000;
        let wakeup = bench.clock.due(bench.now(), &bench.ledger);
        assert!(wakeup.commands.is_empty());
        if let Some(warning) = wakeup.warning {
            assert_eq!(warning.pause.by, "ana");
            assert_eq!(warning.lasts, Millis(second * 1_000));
            told.push(second);
        }
    }
    assert_eq!(told, [60, 660, 1_260]);
    bench.clock = LeaseClock::new(Millis(0), bench.now(), &bench.ledger);
    let silent = bench.clock.due(bench.now(), &bench.ledger);
    assert_eq!(silent, LeaseWakeup::default(), "0 says never");
}

// spec: FIELD-37
#[test]
fn time_in_which_this_process_did_not_run_is_nobodys_death() {
    let mut bench = Bench::new();
    bench.pass(2_000);
    // It is stopped for 41 s; then the refreshes are read that had come meanwhile.
    bench.mono += 41_000;
    let wakeup = bench.clock.due(bench.now(), &bench.ledger);
    assert!(wakeup.commands.is_empty());
    assert_eq!(bench.refresh(), Refreshed::For(Millis(10_000)));
}

#[test]
fn a_refusal_of_another_kind_is_left_as_it_is() {
    let bench = Bench::new();
    let other = Refusal::new(Status::FailedPrecondition, "live_elsewhere", "no");
    assert_eq!(bench.clock.complete(bench.now(), other.clone()), other);
}
