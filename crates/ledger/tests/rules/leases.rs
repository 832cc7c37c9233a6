//! Leases of protected jobs and of bundles (LEASE).

use greenroom_ledger::{
    Command, Due, Hello, HelloInstance, LeaseState, Link, Open, Report, Subscriber, Wish,
    WorkerOrder,
};
use greenroom_types::call::{Call, Reply, StartJob};
use greenroom_types::job::{HistoryKind, Job, LeasePolicy, StopReason};
use greenroom_types::node::{InstanceState, RejectionCode};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{Millis, Now, StartId};

use crate::common::{World, bundle, instance, job, key, order_word, start_of, there};

fn leased(id: &str) -> Job {
    Job {
        lease: Some(LeasePolicy::default()),
        ..job(id)
    }
}

/// Two nodes, and a protected job that runs on the first.
fn two_nodes() -> (World, StartId) {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.call(Call::CreateJob(Box::new(leased("a")))).unwrap();
    let start = w.running("a", "n1");
    (w, start)
}

impl World {
    fn fence(&self, role: &str) -> u64 {
        self.ledger.lease(&key("a", role)).unwrap().fence
    }

    fn mark(&self, role: &str) -> u64 {
        self.ledger.lease(&key("a", role)).unwrap().mark
    }

    fn lease_state(&self, role: &str) -> Option<LeaseState> {
        Some(self.ledger.lease(&key("a", role))?.state)
    }

    fn tick(&mut self, due: Due) {
        self.apply(Command::Tick(due)).unwrap();
    }

    fn lose(&mut self, role: &str, start: &StartId) {
        let mark = self.mark(role);
        self.tick(Due::LeaseLost {
            key: key("a", role),
            start_id: start.clone(),
            mark,
        });
    }

    fn over(&mut self, role: &str, start: &StartId) {
        let mark = self.mark(role);
        self.tick(Due::LeaseOver {
            key: key("a", role),
            start_id: start.clone(),
            mark,
        });
    }

    fn cut_off(&mut self, node: &str) {
        self.link(node, Link::Dropped);
        self.link(node, Link::GraceOver);
    }

    fn start_refused(&mut self, role: &str, node: &str) -> String {
        self.start_as("a", role, node).unwrap_err().reason
    }

    /// The lease that the last order to create an instance carries, and its fencing number.
    fn provisioned(&self) -> (Option<LeasePolicy>, u64) {
        let orders = self.orders.iter().rev();
        let mut jobs = orders.filter_map(|order| match order {
            greenroom_ledger::Order::Worker {
                message: WorkerOrder::Provision(job),
                ..
            } => Some((job.lease, job.fence)),
            _ => None,
        });
        jobs.next().unwrap()
    }

    fn leases_told(&self) -> Vec<String> {
        let events = self.last_words();
        let mut told: Vec<_> = events.into_iter().collect();
        told.retain(|word| word.starts_with("lease "));
        told
    }

    fn stopping_reason(&self) -> StopReason {
        let history = &self.ledger.job(&"a".into()).unwrap().view.history;
        let reasons = history.iter().rev();
        let mut reasons = reasons.filter_map(|entry| match &entry.kind {
            HistoryKind::Stopping { reason, .. } => Some(*reason),
            _ => None,
        });
        reasons.next().unwrap()
    }

    fn pause(&mut self) {
        let call = Call::PauseLeases {
            reason: "works".into(),
            by: "ana".into(),
        };
        self.call(call).unwrap();
    }

    fn resume(&mut self) {
        self.call(Call::ResumeLeases { by: "bo".into() }).unwrap();
    }
}

/// What a worker says at its hello of a protected instance that runs there.
fn held(start: &StartId, fence: u64) -> HelloInstance {
    HelloInstance {
        fence,
        ..there("a", start, InstanceState::Running)
    }
}

// spec: LEASE-02
#[test]
fn an_accepted_start_gets_a_fencing_number_above_all_before() {
    let (mut w, first) = two_nodes();
    assert_eq!(w.fence("primary"), 1);
    assert_eq!(w.provisioned(), (Some(LeasePolicy::default()), 1));
    w.stop("a", "n1").unwrap();
    w.stopped("n1", "a", &first);
    let second = w.running("a", "n2");
    assert_eq!(w.fence("primary"), 2);
    // Also when the job was deleted meanwhile, and after a restart.
    w.stop("a", "n2").unwrap();
    w.stopped("n2", "a", &second);
    w.call(Call::DeleteJob("a".into())).unwrap();
    w.ledger = w.reload();
    w.call(Call::CreateJob(Box::new(leased("a")))).unwrap();
    let third = w.running("a", "n1");
    assert_eq!(w.fence("primary"), 3);
    w.stop("a", "n1").unwrap();
    w.stopped("n1", "a", &third);
    // A store that was restored may lack grants: its generation is another.
    w.apply(Command::Open(Open {
        epoch: "e2".into(),
        renew: false,
        config: None,
        generation: 2,
    }))
    .unwrap();
    w.start("a", "n1");
    assert_eq!(w.provisioned().1, (2 << 32) + 1);
}

// spec: LEASE-02
#[test]
fn a_repeated_order_carries_the_lease_as_it_was_granted() {
    let mut w = World::new();
    w.node("n1");
    w.call(Call::CreateJob(Box::new(leased("a")))).unwrap();
    let start = w.start("a", "n1");
    let mut changed = leased("a");
    changed.lease = Some(LeasePolicy {
        ttl_ms: Millis(60_000),
        grace_ms: Millis(1_000),
    });
    w.call(Call::UpdateJob(Box::new(changed), 0)).unwrap();
    w.hello("n1", Vec::new());
    assert_eq!(w.live("a", "primary"), Some(start));
    assert_eq!(w.provisioned(), (Some(LeasePolicy::default()), 1));
}

// spec: LEASE-07, LEASE-08, EVT-07
#[test]
fn a_lost_holders_key_is_free_only_when_its_lease_is_over() {
    let (mut w, start) = two_nodes();
    w.cut_off("n1");
    assert_eq!(w.leases_told(), ["lease a/primary lost_waiting"]);
    let refusal = w.start_as("a", "primary", "n2").unwrap_err();
    assert_eq!(refusal.reason, "lease_held");
    assert_eq!(refusal.details["start_id"], start.as_str().into());
    assert_eq!(refusal.details["node"], "n1".into());
    w.over("primary", &start);
    assert_eq!(w.leases_told(), ["lease a/primary released"]);
    w.start("a", "n2");
    assert_eq!(w.leases_told(), ["lease a/primary held"]);
    assert_eq!(w.fence("primary"), 2);
}

// spec: LEASE-08, JOB-35
#[test]
fn an_ending_instance_holds_its_key_until_it_is_reported_gone() {
    let (mut w, start) = two_nodes();
    w.failed("n1", "a", &start);
    assert_eq!(w.start_refused("primary", "n2"), "lease_held");
    w.stopped("n1", "a", &start);
    assert_eq!(w.leases_told(), ["lease a/primary released"]);
    w.start_as("a", "primary", "n2").unwrap();
}

// spec: LEASE-08
#[test]
fn a_rejected_start_frees_its_key() {
    let mut w = World::new();
    w.node("n1");
    w.call(Call::CreateJob(Box::new(leased("a")))).unwrap();
    let start = w.start("a", "n1");
    w.report(
        "n1",
        Report::Rejected {
            instance: instance("a", "primary", &start),
            code: RejectionCode::Lease,
            detail: "no guard".into(),
            inventory: None,
        },
    )
    .unwrap();
    assert_eq!(w.lease_state("primary"), None);
    w.start_as("a", "primary", "n1").unwrap();
}

// spec: LEASE-07, HIST-07
#[test]
fn a_lease_that_is_not_refreshed_ends_its_instance_and_says_why() {
    let (mut w, start) = two_nodes();
    w.lose("primary", &start);
    assert_eq!(w.last_orders(), ["n1: stop a/primary 0 LeaseLost"]);
    assert_eq!(w.stopping_reason(), StopReason::LeaseLost);
    assert_eq!(w.lease_state("primary"), Some(LeaseState::Lost));
    assert_eq!(w.start_refused("primary", "n2"), "lease_held");
    w.stopped("n1", "a", &start);
    w.start_as("a", "primary", "n2").unwrap();
}

// spec: HIST-07, LEASE-04
#[test]
fn a_worker_that_gave_a_lease_up_is_told_as_that() {
    let (mut w, start) = two_nodes();
    w.report(
        "n1",
        Report::Failed {
            instance: instance("a", "primary", &start),
            reason: "LEASE_LOST: no answer for 8 s".into(),
        },
    )
    .unwrap();
    assert_eq!(w.stopping_reason(), StopReason::LeaseLost);
}

// spec: LEASE-07, LEASE-08
#[test]
fn news_of_an_older_turn_does_nothing() {
    let (mut w, start) = two_nodes();
    w.cut_off("n1");
    let late = w.mark("primary");
    w.hello("n1", vec![held(&start, 1)]);
    assert_eq!(w.leases_told(), ["lease a/primary held"]);
    for mark in [0, late] {
        w.tick(Due::LeaseOver {
            key: key("a", "primary"),
            start_id: start.clone(),
            mark,
        });
    }
    w.tick(Due::LeaseLost {
        key: key("a", "primary"),
        start_id: start.clone(),
        mark: 0,
    });
    assert_eq!(w.lease_state("primary"), Some(LeaseState::Held));
    assert_eq!(w.live("a", "primary"), Some(start));
}

// spec: LEASE-12, MNODE-13
#[test]
fn a_worker_that_returns_superseded_is_stopped_at_once() {
    let (mut w, start) = two_nodes();
    w.cut_off("n1");
    w.over("primary", &start);
    let second = w.running("a", "n2");
    w.hello("n1", vec![held(&start, 1)]);
    let told = w.last_orders();
    assert!(
        told.contains(&"n1: stop a/primary 0 LeaseLost".into()),
        "{told:?}"
    );
    assert_eq!(w.live("a", "primary"), Some(second));
    assert_eq!(w.fence("primary"), 2);
}

// spec: LEASE-01, LEASE-08, RECOV-08
#[test]
fn what_came_by_a_migration_is_guarded_against_a_start_under_the_plain_role() {
    let (mut w, source) = two_nodes();
    let target = StartJob {
        defer_start: true,
        migration_id: Some("0123456789".into()),
        ..start_of("a", "primary@01234567", "n2")
    };
    w.call(Call::StartJob(target)).unwrap();
    let moved = w.live("a", "primary@01234567").unwrap();
    assert_eq!(w.fence("primary@01234567"), 2);
    w.report(
        "n2",
        Report::Prepared {
            instance: instance("a", "primary@01234567", &moved),
            ports: Default::default(),
        },
    )
    .unwrap();
    // The prepared one may not run beside the source.
    let prepared = Call::StartPreparedJob {
        key: key("a", "primary@01234567"),
        node_id: "n2".into(),
    };
    assert_eq!(w.refused(prepared.clone()).reason, "lease_held");
    w.stop("a", "n1").unwrap();
    w.stopped("n1", "a", &source);
    w.call(prepared).unwrap();
    // Now it alone holds; its node is lost, and the recovery wears the plain role.
    w.node("n3");
    w.cut_off("n2");
    assert_eq!(w.start_refused("primary", "n3"), "lease_held");
    w.over("primary@01234567", &moved);
    w.start_as("a", "primary", "n3").unwrap();
    assert_eq!(w.lease_state("primary@01234567"), None, "superseded");
}

// spec: LEASE-01
#[test]
fn beside_a_holder_only_what_is_handed_the_output_may_be_made_to_run() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    let mut live = leased("a");
    live.handover = true;
    w.call(Call::CreateJob(Box::new(live))).unwrap();
    w.running("a", "n1");
    let overlap = StartJob {
        migration_id: Some("0123456789".into()),
        ..start_of("a", "primary@01234567", "n2")
    };
    assert_eq!(
        w.refused(Call::StartJob(overlap.clone())).reason,
        "lease_held"
    );
    let handover = StartJob {
        migration_state: Some(b"frame 9".into()),
        ..overlap
    };
    w.call(Call::StartJob(handover)).unwrap();
    assert_eq!((w.fence("primary"), w.fence("primary@01234567")), (1, 2));
}

// spec: LEASE-11, LEASE-13
#[test]
fn in_a_pause_nobody_takes_the_place_of_one_that_was_lost() {
    let (mut w, start) = two_nodes();
    w.call(Call::CreateJob(Box::new(leased("b")))).unwrap();
    w.pause();
    let told = w.last_words();
    assert_eq!(told, ["paused true by ana"]);
    assert_eq!(w.last_orders(), ["n1: paused true", "n2: paused true"]);
    // Time does nothing.
    w.lose("primary", &start);
    assert_eq!(w.lease_state("primary"), Some(LeaseState::Held));
    w.cut_off("n1");
    assert_eq!(w.leases_told(), ["lease a/primary paused_kept"]);
    w.over("primary", &start);
    assert_eq!(w.start_refused("primary", "n2"), "leases_paused");
    // What never had a holder, or one that released, is started.
    let fresh = w.running("b", "n2");
    w.stop("b", "n2").unwrap();
    w.stopped("n2", "b", &fresh);
    w.start_as("b", "primary", "n2").unwrap();
    // The first pause is kept.
    let again = Call::PauseLeases {
        reason: "other".into(),
        by: "bo".into(),
    };
    w.pass(5_000);
    let since = w.ledger.lease_pause().unwrap().since;
    let kept = Reply::LeasesPaused {
        since,
        not_acknowledged: Vec::new(),
    };
    assert_eq!(w.call(again).unwrap(), kept);
    assert_eq!(w.ledger.lease_pause().unwrap().by, "ana");
    assert!(w.last.changes.is_empty() && w.last.orders.is_empty() && w.last.audit.is_empty());
    w.resume();
    assert_eq!(w.last_words(), ["paused false by bo"]);
    assert_eq!(
        w.last.outcome,
        Ok(Reply::LeasesResumed {
            leases: 1,
            not_acknowledged: Vec::new(),
        })
    );
    let again = w.call(Call::ResumeLeases { by: String::new() });
    assert_eq!(
        again,
        Ok(Reply::LeasesResumed {
            leases: 1,
            not_acknowledged: Vec::new(),
        })
    );
    assert!(w.last.changes.is_empty());
    // After the pause the loss counts, by the clock's word.
    assert_eq!(w.start_refused("primary", "n2"), "lease_held");
    w.over("primary", &start);
    w.start_as("a", "primary", "n2").unwrap();
}

// spec: LEASE-11
#[test]
fn a_holder_that_was_over_before_a_pause_is_not_replaced_in_it() {
    let (mut w, start) = two_nodes();
    w.cut_off("n1");
    w.over("primary", &start);
    w.pause();
    assert_eq!(w.start_refused("primary", "n2"), "leases_paused");
    w.resume();
    w.start_as("a", "primary", "n2").unwrap();
}

// spec: LEASE-10, LEASE-12
#[test]
fn a_hello_is_told_of_a_pause_and_of_its_end() {
    let (mut w, start) = two_nodes();
    w.pause();
    w.cut_off("n1");
    w.hello("n1", vec![held(&start, 1)]);
    let told: Vec<_> = w.last.orders.iter().map(order_word).collect();
    assert!(told.contains(&"n1: paused true".into()), "{told:?}");
    assert_eq!(w.live("a", "primary"), Some(start.clone()));
    assert_eq!(w.lease_state("primary"), Some(LeaseState::Held));
    w.link("n1", Link::Dropped);
    w.resume();
    assert_eq!(w.last_orders(), ["n2: paused false"]);
    let missed = Hello {
        instances: vec![held(&start, 1)],
        leases_paused: true,
        protocol_minor: 10,
        last_report_id: 2,
        ..Hello::default()
    };
    w.hello_as("n1", missed).unwrap();
    let told = w.last_orders();
    assert!(told.contains(&"n1: paused false".into()), "{told:?}");
}

// spec: AUDIT-02, LEASE-10, LEASE-15
#[test]
fn pauses_and_changed_bundle_leases_are_audited_and_renewals_are_not() {
    let mut w = World::new();
    w.call(Call::CreateBundle(Box::new(bundle("b", &["x"], 1))))
        .unwrap();
    let mut kinds = Vec::new();
    let renew = |ttl| Call::RenewBundleLease {
        bundle_id: "b".into(),
        ttl_ms: Millis(ttl),
    };
    let pause = Call::PauseLeases {
        reason: "works".into(),
        by: "ana".into(),
    };
    let calls = [
        renew(60_000),
        renew(60_000),
        renew(30_000),
        pause,
        Call::ResumeLeases { by: "ana".into() },
        renew(0),
        renew(0),
    ];
    for call in calls {
        w.call(call).unwrap();
        kinds.extend(w.last.audit.iter().map(|entry| entry.kind.clone()));
    }
    let told = [
        "renew_bundle_lease",
        "renew_bundle_lease",
        "pause_leases",
        "resume_leases",
        "renew_bundle_lease",
    ];
    assert_eq!(kinds, told);
}

// spec: LEASE-15
#[test]
fn a_bundle_whose_lease_is_not_renewed_is_deleted() {
    let mut w = World::new();
    w.node("n1");
    w.call(Call::CreateBundle(Box::new(bundle("b", &["x"], 1))))
        .unwrap();
    let start = w.running("b.0.x", "n1");
    let renew = |id: &str, ttl| Call::RenewBundleLease {
        bundle_id: id.into(),
        ttl_ms: Millis(ttl),
    };
    assert_eq!(w.refused(renew("none", 60_000)).reason, "unknown_bundle");
    for ttl in [4_999, 86_400_001] {
        assert_eq!(w.refused(renew("b", ttl)).reason, "bad_lease");
    }
    let expiry = Reply::BundleLease(Some(w.now.plus(60_000)));
    assert_eq!(w.call(renew("b", 60_000)), Ok(expiry));
    let shown = w.ledger.bundle(&"b".into()).unwrap().lease_expires_at;
    assert_eq!(shown, Some(w.now.plus(60_000)));
    w.call(renew("b", 60_000)).unwrap();
    let late = Due::BundleLeaseOver {
        bundle_id: "b".into(),
        mark: 0,
    };
    let due = Due::BundleLeaseOver {
        bundle_id: "b".into(),
        mark: 1,
    };
    w.tick(late);
    w.pause();
    w.tick(due.clone());
    assert!(
        w.ledger
            .bundle(&"b".into())
            .unwrap()
            .lease_expires_at
            .is_none()
    );
    w.resume();
    assert_eq!(
        w.last_words(),
        ["paused false by bo"],
        "nothing was deleted"
    );
    w.tick(due);
    let kinds: Vec<_> = w.last.audit.iter().map(|it| it.kind.clone()).collect();
    assert_eq!(kinds, ["bundle_lease_expired"]);
    assert!(w.last_orders().iter().any(|it| it.contains("stop b.0.x")));
    assert_eq!(w.refused(renew("b", 60_000)).reason, "deleting");
    w.stopped("n1", "b.0.x", &start);
    assert!(w.ledger.bundle(&"b".into()).is_none());
}

// spec: LEASE-15
#[test]
fn a_bundle_without_lease_stays_and_a_cleared_lease_is_none() {
    let mut w = World::new();
    w.call(Call::CreateBundle(Box::new(bundle("b", &["x"], 1))))
        .unwrap();
    let renew = |ttl| Call::RenewBundleLease {
        bundle_id: "b".into(),
        ttl_ms: Millis(ttl),
    };
    w.call(renew(5_000)).unwrap();
    assert_eq!(w.call(renew(0)), Ok(Reply::BundleLease(None)));
    w.tick(Due::BundleLeaseOver {
        bundle_id: "b".into(),
        mark: 0,
    });
    assert!(w.ledger.bundle(&"b".into()).is_some());
}

// spec: LEASE-08, JOB-19
#[test]
fn a_start_that_nobody_answered_frees_nothing_because_it_may_have_begun() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.call(Call::CreateJob(Box::new(leased("a")))).unwrap();
    let start = w.start("a", "n1");
    w.tick(Due::ProvisionUnanswered(start.clone()));
    assert_eq!(w.instance_state(&start), None);
    assert_eq!(w.start_refused("primary", "n2"), "lease_held");
    // It did begin, and is ended at once when its worker is heard again.
    w.hello("n1", vec![held(&start, 1)]);
    let told = w.last_orders();
    assert!(
        told.contains(&"n1: stop a/primary 0 LeaseLost".into()),
        "{told:?}"
    );
    w.stopped("n1", "a", &start);
    assert_eq!(w.leases_told(), ["lease a/primary released"]);
    w.start_as("a", "primary", "n2").unwrap();
}

// spec: BDL-19
#[test]
fn a_delete_waits_for_the_lease_of_what_cannot_be_reached() {
    let (mut w, start) = two_nodes();
    w.cut_off("n1");
    w.call(Call::DeleteJob("a".into())).unwrap();
    w.tick(Due::UnreachableOver(start.clone()));
    assert!(w.ledger.job(&"a".into()).is_some(), "its lease runs");
    w.over("primary", &start);
    w.tick(Due::UnreachableOver(start.clone()));
    assert!(w.ledger.job(&"a".into()).is_none());
    assert_eq!(w.lease_state("primary"), None);
    assert!(w.ledger.is_buried(&start));
}

// spec: FIELD-23
#[test]
fn a_reboot_frees_at_once_and_a_cut_waits_for_the_lease() {
    let (mut w, _) = two_nodes();
    // (a) The machine was booted again and says that it has nothing.
    w.link("n1", Link::Dropped);
    let rebooted = Hello {
        boot_id: "another".into(),
        protocol_minor: 10,
        last_report_id: 2,
        ..Hello::default()
    };
    w.hello_as("n1", rebooted).unwrap();
    assert_eq!(w.leases_told(), ["lease a/primary released"]);
    w.running("a", "n2");
    // (b) It is cut off.
    w.cut_off("n2");
    assert_eq!(w.start_refused("primary", "n1"), "lease_held");
}

#[test]
fn a_machine_that_is_known_to_be_gone_frees_at_once() {
    let mut w = World::new();
    w.node("n2");
    let node = greenroom_types::call::CreateAwsNode {
        node_id: "m1".into(),
        region: "eu".into(),
        instance_type: "t".into(),
        ..Default::default()
    };
    w.call(Call::CreateAwsNode(Box::new(node))).unwrap();
    w.hello("m1", Vec::new());
    w.call(Call::CreateJob(Box::new(leased("a")))).unwrap();
    w.running("a", "m1");
    w.cut_off("m1");
    assert_eq!(w.start_refused("primary", "n2"), "lease_held");
    w.finding("m1", greenroom_ledger::Finding::Gone);
    w.start_as("a", "primary", "n2").unwrap();
}

// spec: EVT-02, LEASE-14
#[test]
fn a_snapshot_tells_leases_and_their_pause_before_it_is_complete() {
    let (mut w, _) = two_nodes();
    let snapshot = |w: &World, minor| {
        let wish = Wish {
            client_protocol: minor,
            include: vec!["leases".into()],
            ..Wish::default()
        };
        let now = Now {
            wall: w.now,
            ..Now::default()
        };
        let mut subscriber = Subscriber::new(wish).unwrap();
        let events = subscriber.snapshot(now, &w.ledger.standing(), Vec::new());
        let words = events.iter().map(|it| match &it.event {
            StreamEvent::InitialDataComplete(_) => "complete".to_owned(),
            other => crate::common::event_word(other),
        });
        words.collect::<Vec<_>>()
    };
    assert_eq!(snapshot(&w, 6), ["lease a/primary held", "complete"]);
    assert_eq!(snapshot(&w, 5), ["complete"]);
    w.pause();
    let paused = [
        "lease a/primary paused_kept",
        "paused true by ana",
        "complete",
    ];
    assert_eq!(snapshot(&w, 10), paused);
}

#[test]
fn a_worker_that_knows_no_leases_gets_no_protected_job() {
    let mut w = World::new();
    w.node("n1");
    let old = Hello {
        protocol_minor: 5,
        ..Hello::default()
    };
    w.hello_as("n1", old).unwrap();
    w.call(Call::CreateJob(Box::new(leased("a")))).unwrap();
    assert_eq!(w.start_refused("primary", "n1"), "worker_too_old");
    w.create("b");
    w.start_as("b", "primary", "n1").unwrap();
    w.pause();
    assert!(w.last_orders().is_empty(), "it is not told");
}

#[test]
fn a_bundle_jobs_lease_reaches_the_job_and_its_order() {
    let mut w = World::new();
    w.node("n1");
    let policy = LeasePolicy {
        ttl_ms: Millis(2_000),
        grace_ms: Millis(1_000),
    };
    let mut protected = bundle("b", &["x"], 1);
    protected.jobs[0].lease = Some(policy);
    w.call(Call::CreateBundle(Box::new(protected))).unwrap();
    w.start("b.0.x", "n1");
    assert_eq!(w.provisioned(), (Some(policy), 1));
}

// spec: IDLE-07
#[test]
fn in_a_pause_no_empty_node_is_reaped() {
    let mut w = World::new();
    let node = greenroom_types::call::CreateAwsNode {
        node_id: "m1".into(),
        region: "eu".into(),
        instance_type: "t".into(),
        ..Default::default()
    };
    w.call(Call::CreateAwsNode(Box::new(node))).unwrap();
    w.hello("m1", Vec::new());
    w.call(Call::SetNodeIdleExpiry {
        node_id: "m1".into(),
        idle_expiry_ms: Millis(1_000),
    })
    .unwrap();
    w.pause();
    assert!(
        w.last
            .touched
            .contains(&greenroom_ledger::Subject::Node("m1".into())),
        "its empty time is looked at again"
    );
    let mark = w.ledger.node(&"m1".into()).unwrap().idle_mark;
    let due = Due::Idle {
        node_id: "m1".into(),
        mark,
    };
    w.tick(due.clone());
    assert!(w.ledger.node(&"m1".into()).unwrap().is_running());
    w.resume();
    w.tick(due);
    assert!(!w.ledger.node(&"m1".into()).unwrap().is_running());
}
