//! Callbacks that fail, close, the end of the stream, and that a run repeats itself (CALLB, LIFE, TIME).

use greenroom_policy::event::ConnectionState;
use greenroom_policy::{ApiCall, ApiError, Event};
use greenroom_types::stream::StreamEvent;
use serde_json::json;

use crate::world::{World, bundle, cloud, fixed, job, sized, tiers};

// spec: HARD-97, LIFE-02, LIFE-06
#[test]
fn after_the_close_nothing_is_called_or_told() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.tag("boot", "own", "auto-manager", "true");
    w.starting("boot", None);
    w.hold = true;
    w.submit(bundle("b", json!([job("e")])));
    let (late, _) = w.next_call();
    let caller = w.api(ApiCall::DeleteBundle {
        bundle_id: "a".into(),
    });
    w.took();
    let close = w.api(ApiCall::Close);
    let took = w.took();
    assert_eq!(took.last().unwrap(), "close in order");
    assert_eq!(w.results[&close], Ok(greenroom_policy::ApiAnswer::Done));
    assert_eq!(w.results[&caller], Err(ApiError::Closed));
    assert!(w.policy.is_closed());
    assert!(w.policy.next_deadline().is_none());
    w.stopping("n");
    w.at(600_000);
    w.handle(Event::Wake);
    w.answer_one(late, Ok(greenroom_types::call::Reply::Done));
    assert!(w.took().is_empty());
    let refused = w.api(ApiCall::CordonNode {
        node_id: "n".into(),
    });
    assert_eq!(w.results[&refused], Err(ApiError::Closed));
    assert_eq!(w.node_of("a.0.e").unwrap(), "n", "getters go on");
    let again = w.api(ApiCall::Close);
    assert!(w.results[&again].is_ok());
    assert!(!w.took().iter().any(|line| line.starts_with("close")));
    w.connected(ConnectionState::Shutdown);
    w.connected(ConnectionState::Ready);
    assert_eq!(w.took(), ["onConnectionStateChange shutdown"]);
}

// spec: LIFE-07
#[test]
fn a_stream_that_ends_by_itself_ends_the_instance() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.handle(Event::Closed {
        error: Some("connection reset".into()),
    });
    assert_eq!(w.took(), ["close connection reset"]);
    w.handle(Event::Closed { error: None });
    assert!(w.took().is_empty());
    assert!(w.policy.next_deadline().is_none());
}

// spec: HARD-108, CALLB-01
#[test]
fn a_failed_callback_is_told_and_nothing_depends_on_it() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.hold = true;
    w.submit(bundle("a", json!([job("e")])));
    // The decision and the start are one batch: the start is out before the driver can report.
    assert_eq!(
        w.took()[2..],
        ["decide a.0.e place n", "call start a.0.e primary on n"]
    );
    w.handle(Event::CallbackFailed {
        callback: "onPlacementDecision".into(),
        error: "panicked".into(),
    });
    assert_eq!(w.took(), ["onError callbackFailed"]);
    w.submit(bundle("b", json!([job("e")])));
    assert_eq!(w.calls(), ["start b.0.e primary on n"]);
}

// spec: CALLB-03, CALLB-06, CALLB-16
#[test]
fn what_has_no_role_here_is_passed_on_or_logged() {
    let mut w = World::with(fixed(), &[]);
    w.connected(ConnectionState::Connecting);
    w.connected(ConnectionState::Ready);
    w.send(StreamEvent::Unknown { number: 999 });
    w.send(StreamEvent::ProviderHealthChange(
        greenroom_types::stream::ProviderHealth::Local(Default::default()),
    ));
    w.handle(Event::Unreadable {
        error: "no kind".into(),
    });
    w.send(StreamEvent::AuditAppended(
        greenroom_types::call::AuditEntry {
            seq: 1,
            at: w.now.wall,
            source: String::new(),
            kind: String::new(),
            actor: String::new(),
            payload: String::new(),
            prev_hash: String::new(),
            hash: String::new(),
        },
    ));
    assert_eq!(
        w.took(),
        [
            "onConnectionStateChange connecting",
            "onConnectionStateChange ready",
            "log",
            "log",
            "onError unreadableEvent",
            "onAuditAppended",
        ]
    );
}

// spec: CALLB-05, CALLB-09
#[test]
fn what_is_gone_is_told_once_and_only_if_it_was_known() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.took();
    w.send(StreamEvent::JobDeleted("a.0.e".into()));
    w.send(StreamEvent::JobDeleted("a.0.e".into()));
    w.send(StreamEvent::BundleDeleted("a".into()));
    assert_eq!(w.took(), ["onJobDeleted a.0.e", "onBundleDeleted a"]);
    assert!(w.policy.jobs_for_bundle(&"a".into()).is_empty());
}

// spec: CALLB-14, CALLB-15
#[test]
fn getters_show_the_whole_mirror() {
    let mut w = World::with(fixed(), &[("z", 4.0), ("a", 4.0)]);
    w.submit(bundle("b", json!([job("e"), sized("f", 99.0)])));
    let arrived: Vec<String> = w
        .policy
        .inventories()
        .iter()
        .map(|(node, _)| node.to_string())
        .collect();
    assert_eq!(arrived, ["z", "a"]);
    assert_eq!(w.policy.nodes().len(), 2);
    assert_eq!(w.policy.bundles().count(), 1);
    assert_eq!(w.policy.jobs_for_bundle(&"b".into()).len(), 2);
    assert!(w.policy.bundle_by_id(&"b".into()).is_some());
    assert!(w.policy.inventory(&"z".into()).is_some());
    assert_eq!(w.policy.placements().len(), 1, "failures are no placement");
    assert!(w.policy.placement_for_job(&"b.0.f".into()).is_none());
    let why = w.policy.explain(&"b.0.f".into());
    assert_eq!(why.standing, Some(greenroom_policy::job::Standing::Pending));
    assert!(why.to_string().contains("needs 99 vCPU"), "{why}");
    let bound = w.policy.explain(&"b.0.e".into());
    assert_eq!(bound.node_id.unwrap().as_str(), "a");
}

/// A run with everything in it that could be decided by chance.
fn eventful(seed: u64) -> World {
    let pools = tiers(&[
        ("t1", &[("c4", 4.0)], Some(3)),
        ("t2", &[("d4", 4.0)], None),
    ]);
    let mut w = World::with(pools, &[]);
    let mut x = seed;
    let mut dice = move |sides: u64| {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % sides
    };
    for n in 0..6 {
        let mut a = bundle(&format!("b{n}"), json!([sized("e", 1.0), sized("f", 2.0)]));
        if n % 2 == 0 {
            a.resilience_policy = Some(Default::default());
        }
        w.submit(a);
    }
    let jobs: Vec<String> = w.jobs.keys().map(ToString::to_string).collect();
    for _ in 0..200 {
        let ms = w.now.mono.0 + dice(4_000);
        w.at(ms);
        let starting = |w: &World| -> Vec<String> {
            let nodes = w.policy.nodes();
            nodes.iter().map(|node| w.short(&node.node_id)).collect()
        };
        let nodes = starting(&w);
        let job = &jobs[usize::try_from(dice(jobs.len() as u64)).unwrap()];
        match dice(9) {
            0 | 1 if !nodes.is_empty() => {
                let node = nodes[usize::try_from(dice(nodes.len() as u64)).unwrap()].clone();
                w.joins(&node, 4.0);
            }
            2 if !nodes.is_empty() => {
                let node = nodes[usize::try_from(dice(nodes.len() as u64)).unwrap()].clone();
                w.stopping(&node);
                w.stopped(&node);
            }
            3 | 5 if w.node_of(job).is_some() && w.has_started(job) => w.runs(job),
            6 => {
                let strategy = if dice(2) == 0 {
                    greenroom_policy::migration::Strategy::Overlap
                } else {
                    greenroom_policy::migration::Strategy::StopThenStart
                };
                let options = greenroom_policy::migration::MigrateOptions {
                    strategy,
                    ..Default::default()
                };
                w.api(ApiCall::MigrateJob {
                    job_id: job.as_str().into(),
                    options,
                });
            }
            7 if !nodes.is_empty() && dice(3) == 0 => {
                let node = nodes[usize::try_from(dice(nodes.len() as u64)).unwrap()].clone();
                let node_id = w.long(&node);
                let options = greenroom_policy::drain::DrainOptions {
                    timeout_ms: Some(greenroom_types::Millis(20_000)),
                    force: dice(2) == 0,
                    ..Default::default()
                };
                w.api(ApiCall::DrainNode { node_id, options });
            }
            4 if w.has_started(job) => w.fails(job),
            _ => w.tell(job),
        }
    }
    w
}

// spec: TIME-05, TIME-06
#[test]
fn the_same_inputs_give_the_same_effects_byte_for_byte() {
    for seed in 1..6 {
        let (one, other) = (eventful(seed), eventful(seed));
        let bytes = |w: &World| serde_json::to_vec(&w.all).unwrap();
        assert_eq!(bytes(&one), bytes(&other), "seed {seed}");
        assert!(one.all.len() > 100, "seed {seed} is eventful");
        let m = one.metrics();
        assert!(m.placements_attempted >= m.placements_failed + m.placements_dispatch_failed);
    }
}

// spec: TIME-06
#[test]
fn timers_due_at_one_instant_fire_in_the_order_of_arming() {
    let mut w = World::with(cloud(), &[]);
    for id in ["z", "y", "x"] {
        w.tag(id, "t1", "auto-manager", "true");
        w.starting(id, None);
    }
    w.took();
    w.at(120_000);
    assert_eq!(w.calls(), ["terminate z", "terminate y", "terminate x"]);
}

// spec: TIME-07
#[test]
fn a_timer_whose_reason_is_gone_does_nothing() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    w.starting("@1", None);
    w.joins("@1", 4.0);
    w.took();
    w.at(1_200_000);
    assert!(w.calls().is_empty());
    w.handle(Event::Wake);
    assert!(w.took().is_empty());
}
