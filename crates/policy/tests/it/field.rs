//! What operators of comparable systems ran into, as far as the core alone can show it
//! (docs/spec/field-cases.md): drains, notices, migrations, sites that come back.

use std::collections::BTreeMap;

use greenroom_policy::drain::{DrainOptions, DrainPhase, DrainStatus};
use greenroom_policy::job::Standing;
use greenroom_policy::migration::{MigrationPhase, Strategy};
use greenroom_policy::{ApiCall, Callback, Effect};
use greenroom_types::JobId;
use greenroom_types::call::Call;
use greenroom_types::job::HistoryKind;
use greenroom_types::node::{InterruptionKind, NodeStoppingReason};
use greenroom_types::stream::StreamEvent;
use serde_json::json;

use crate::migration::Move;
use crate::world::{World, bundle, cloud, fixed, job, needing, sized};

const SECOND: u64 = 1_000;

fn drain(w: &mut World, node: &str, strategy: Strategy) {
    let node_id = w.long(node);
    let options = DrainOptions {
        strategy: Some(strategy),
        ..DrainOptions::default()
    };
    w.api(ApiCall::DrainNode { node_id, options });
}

fn notice(w: &mut World, node: &str, kind: InterruptionKind, in_s: Option<i64>) {
    let deadline = in_s.map(|s| w.now.wall.plus(s * 1_000));
    let node_id = w.long(node);
    w.send(StreamEvent::NodeInterruptionNotice {
        node_id,
        kind,
        deadline,
        noticed_at: w.now.wall,
    });
}

fn standing(w: &World, id: &str) -> Standing {
    w.policy.explain(&JobId::new(id)).standing.unwrap()
}

// spec: FIELD-03
#[test]
fn after_a_drain_that_was_taken_back_every_job_runs_or_says_why_not() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    for id in ["a", "b", "c"] {
        w.submit(bundle(id, json!([sized("e", 1.0)])));
        w.runs(&format!("{id}.0.e"));
    }
    w.joins("m", 2.0);
    w.at(10 * SECOND);
    drain(&mut w, "n", Strategy::Overlap);
    w.runs("a.0.e");
    w.api(ApiCall::UncordonNode {
        node_id: "n".into(),
    });
    // Its worker starts again: gone, and back a moment later.
    w.stopping("n");
    w.stopped("n");
    w.joins("n", 4.0);
    w.at(w.now.mono.0 + 60 * SECOND);
    w.picture("n", 4.0);
    for id in ["a.0.e", "b.0.e", "c.0.e"] {
        assert_eq!(standing(&w, id), Standing::Bound, "{id}");
        w.runs(id);
        assert!(w.policy.migration_for_job(&id.into()).is_none(), "{id}");
    }
    assert!(!w.policy.is_cordoned(&"n".into()));
    let open = w.policy.drain_status(&"n".into()).map(|state| state.phase);
    assert!(open.is_none_or(|phase| phase > DrainPhase::Terminating));
}

// spec: FIELD-05, PORT-04, MIGR-10
#[test]
fn the_second_instance_of_a_port_job_starts_after_the_first_has_stopped() {
    let mut w = World::with(fixed(), &[("n", 8.0)]);
    let port = json!({"requiredCapacity": 1, "requiredHostPorts": ["80/tcp"]});
    w.submit(bundle("a", json!([needing("e", port.clone())])));
    w.runs("a.0.e");
    w.joins("m", 8.0);
    w.took();
    let mut m = Move::begin(w, Strategy::StopThenStart);
    let deferred = |w: &World| {
        let starts = w.all.iter().filter_map(|effect| match effect {
            Effect::Call {
                call: Call::StartJob(start),
                ..
            } if start.job_id.as_str() == "a.0.e" => Some(start.defer_start),
            _ => None,
        });
        starts.collect::<Vec<_>>()
    };
    assert_eq!(deferred(&m.w), [false, true], "the second is prepared only");
    // Claimed on both until it is over, so that nobody else gets the port in between.
    m.w.submit(bundle("x", json!([needing("e", port)])));
    assert_eq!(m.w.node_of("x.0.e"), None);
    m.w.took();
    m.prepared();
    let moves = m.w.moves();
    assert!(
        !moves
            .iter()
            .any(|line| line.starts_with("call startPrepared"))
    );
    m.source_stopped();
    assert!(
        m.w.moves()
            .contains(&"call startPrepared a.0.e/primary@ on m".to_owned())
    );
    m.target_runs();
    assert_eq!(m.w.node_of("x.0.e").unwrap(), "n", "free there now");
}

// spec: FIELD-07, DRAIN-11
#[test]
fn a_blocked_drain_names_what_blocks_it_once_for_each_change() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([sized("e", 3.0)])));
    w.runs("a.0.e");
    w.took();
    let told = |w: &World| -> Vec<(DrainPhase, String, String)> {
        w.all
            .iter()
            .filter_map(|effect| match effect {
                Effect::Callback(Callback::OnDrainProgress(state)) => Some(state),
                _ => None,
            })
            .map(|state| {
                let job = &state.jobs[0];
                let reason = job.reason.clone().unwrap_or_default();
                (state.phase, job.job_id.to_string(), reason)
            })
            .collect()
    };
    drain(&mut w, "n", Strategy::StopThenStart);
    let first = told(&w);
    let (phase, blocker, reason) = first.last().unwrap().clone();
    assert_eq!((phase, blocker.as_str()), (DrainPhase::Waiting, "a.0.e"));
    assert!(!reason.is_empty(), "says why");
    // Nothing changes for five minutes: nothing is told.
    for minute in 1..=5 {
        w.at(minute * 60 * SECOND);
        w.picture("n", 4.0);
    }
    assert_eq!(told(&w).len(), first.len());
    w.joins("m", 4.0);
    w.at(w.now.mono.0 + SECOND);
    assert_eq!(told(&w).last().unwrap().0, DrainPhase::Migrating);
}

// spec: FIELD-09, DRAIN-02, DRAIN-07
#[test]
fn a_drain_moves_jobs_and_ends_them_only_by_force_at_its_deadline() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    for id in ["a", "b"] {
        w.submit(bundle(id, json!([sized("e", 2.0)])));
        w.runs(&format!("{id}.0.e"));
    }
    w.joins("m", 2.0);
    w.at(10 * SECOND);
    w.took();
    let (source, start_id) = w.last_start("a.0.e");
    drain(&mut w, "n", Strategy::Overlap);
    // One moves; the other has no place and stays, running, without force for good.
    let calls = w.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert!(calls[0].starts_with("start a.0.e primary@"), "{calls:?}");
    w.runs("a.0.e");
    assert_eq!(w.calls(), ["stop a.0.e/primary on n"]);
    w.enter("a.0.e", HistoryKind::Stopped(source), Some(start_id));
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    w.at(1_200 * SECOND);
    let calls = w.calls();
    let ends = calls
        .iter()
        .any(|call| call.starts_with("terminate") || call.contains("b.0.e"));
    assert!(!ends, "{calls:?}");
    assert_eq!(w.node_of("b.0.e").unwrap(), "n");
}

// spec: FIELD-13, INTR-01
#[test]
fn nothing_is_stopped_before_its_replacement_is_ready() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([sized("e", 3.0)])));
    w.joins("@1", 4.0);
    w.runs("a.0.e");
    w.at(10 * SECOND);
    w.took();
    notice(&mut w, "@1", InterruptionKind::SpotInterruption, Some(120));
    assert_eq!(w.calls(), ["create @2 c4 in t1"], "asked for at once");
    w.at(80 * SECOND);
    assert!(w.calls().is_empty());
    w.joins("@2", 4.0);
    let calls = w.calls();
    assert_eq!(calls.len(), 1);
    assert!(calls[0].starts_with("start a.0.e primary@"), "{calls:?}");
    w.at(85 * SECOND);
    assert!(w.calls().is_empty(), "it is not prepared yet");
    let (at, start_id) = w.last_start("a.0.e");
    let role = at.role.clone();
    w.enter(
        "a.0.e",
        HistoryKind::Prepared(at.clone()),
        Some(start_id.clone()),
    );
    w.send(StreamEvent::JobPrepared {
        key: greenroom_types::node::InstanceKey::new("a.0.e".into(), role),
        node_id: at.node.node_id.clone(),
        start_id,
    });
    assert_eq!(w.calls(), ["stop a.0.e/primary on @1"]);
    // The node is ended 30 s before the provider does it, not sooner.
    w.at(100 * SECOND - 1);
    assert!(!w.calls().iter().any(|call| call.starts_with("terminate")));
    w.at(100 * SECOND);
    assert!(w.calls().contains(&"terminate @1".to_owned()));
}

// spec: FIELD-15, DRAIN-13, PORT-02
#[test]
fn a_machine_that_goes_during_its_drain_is_gone_at_once() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let port = json!({"requiredCapacity": 1, "requiredHostPorts": ["80/tcp"]});
    w.submit(bundle("a", json!([needing("e", port.clone())])));
    w.runs("a.0.e");
    drain(&mut w, "n", Strategy::StopThenStart);
    w.at(60 * SECOND);
    w.took();
    w.stopping_for("n", NodeStoppingReason::ProviderTerminate);
    assert_eq!(
        w.restarts("a.0.e"),
        1,
        "judged at once, nine minutes before the end of the drain"
    );
    w.joins("m", 1.0);
    assert_eq!(w.calls(), ["start a.0.e primary on m"]);
    assert_eq!(
        w.policy.drain_status(&"n".into()).unwrap().phase,
        DrainPhase::Done
    );
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    let status = w.policy.drain_status(&"n".into()).unwrap().jobs[0].status;
    assert_eq!(status, DrainStatus::Terminated);
    // The port is free on the machine that takes its place.
    w.stopped("n");
    w.at(120 * SECOND);
    w.joins("n", 4.0);
    w.api(ApiCall::UncordonNode {
        node_id: "n".into(),
    });
    w.submit(bundle("b", json!([needing("e", port)])));
    assert_eq!(w.node_of("b.0.e").unwrap(), "n");
}

// spec: FIELD-17, INTR-04, INTR-13
#[test]
fn notices_in_any_order_are_one_drain_with_an_end_that_only_comes_nearer() {
    use InterruptionKind::{Rebalance, SpotInterruption};
    let orders: [&[(InterruptionKind, Option<i64>)]; 4] = [
        &[(SpotInterruption, Some(120))],
        &[(SpotInterruption, Some(120)), (SpotInterruption, Some(120))],
        &[
            (Rebalance, None),
            (SpotInterruption, Some(120)),
            (Rebalance, None),
        ],
        &[
            (Rebalance, None),
            (Rebalance, None),
            (SpotInterruption, Some(400)),
        ],
    ];
    for notices in orders {
        let mut w = World::with(cloud(), &[]);
        w.submit(bundle("a", json!([sized("e", 3.0)])));
        w.joins("@1", 4.0);
        w.runs("a.0.e");
        w.took();
        let mut end = u64::MAX;
        for (at, (kind, in_s)) in (0_u64..).zip(notices) {
            w.at(at * SECOND);
            notice(&mut w, "@1", *kind, *in_s);
            let state = w.policy.drain_status(&w.long("@1")).unwrap();
            assert!(state.timeout_ms <= end, "{notices:?}");
            end = state.timeout_ms;
        }
        let calls = w.calls();
        assert_eq!(calls, ["create @2 c4 in t1"], "{notices:?}");
        w.at(end);
        let ends: Vec<String> = w
            .calls()
            .into_iter()
            .filter(|call| call.starts_with("terminate @1"))
            .collect();
        assert_eq!(ends, ["terminate @1"], "{notices:?}");
        // The termination itself, eight hours on, is news of a node that is gone.
        w.stopping("@1");
        w.stopped("@1");
        w.at(end + 8 * 3_600 * SECOND);
        w.took();
        notice(&mut w, "@1", SpotInterruption, Some(120));
        assert!(w.calls().is_empty(), "{notices:?}");
    }
}

// spec: FIELD-25, BIND-07, BIND-08
#[test]
fn a_site_that_comes_back_keeps_what_it_carried() {
    let nodes = ["n1", "n2", "n3"];
    let ids = ["a.0.e", "b.0.e", "c.0.e"];
    let mut w = World::with(fixed(), &nodes.map(|id| (id, 1.0)));
    let mut old = BTreeMap::new();
    for id in ["a", "b", "c"] {
        w.submit(bundle(id, json!([job("e")])));
        let job = format!("{id}.0.e");
        w.runs(&job);
        let (_, start_id) = w.last_start(&job);
        old.insert(job.clone(), (w.node_of(&job).unwrap(), start_id));
    }
    for node in nodes {
        w.stopping(node);
    }
    w.took();
    w.at(120 * SECOND);
    // One by one they are heard again, and say what runs on them.
    for node in ["n3", "n1", "n2"] {
        w.hello(node);
        w.picture(node, 1.0);
        let here = old.iter().find(|(_, (on, _))| on == node);
        let (id, (_, start_id)) = here.map(|(id, at)| (id.clone(), at.clone())).unwrap();
        w.run_of(&id, "primary", node, &start_id);
        w.tell(&id);
        let stops: Vec<String> = w
            .calls()
            .into_iter()
            .filter(|call| call.starts_with("stop"))
            .collect();
        assert!(stops.is_empty(), "before anything replaces it: {stops:?}");
    }
    // What was placed elsewhere meanwhile takes over once it runs, and only then is the old one
    // stopped.
    for id in ids {
        let (was, start_id) = old[id].clone();
        let on = w.node_of(id).unwrap();
        if on != was {
            assert_ne!(w.last_start(id).1, start_id);
            w.runs(id);
            assert_eq!(w.calls(), [format!("stop {id}/primary on {was}")]);
        }
    }
}

// spec: FIELD-29, HARD-82
#[test]
fn a_take_over_that_was_not_confirmed_starts_nothing() {
    let mut m = Move::handover(MigrationPhase::Applying).ready();
    // The confirmation is lost.
    m.w.at(m.w.now.mono.0 + 10 * SECOND);
    assert_eq!(m.state(), MigrationPhase::Aborted);
    let moves = m.w.moves();
    assert!(
        moves.contains(&"call abortMigration a.0.e primary@".to_owned()),
        "both are told"
    );
    assert!(
        !moves.iter().any(|line| line.starts_with("call start")),
        "{moves:?}"
    );
    assert_eq!(
        (m.w.node_of("a.0.e").unwrap().as_str(), m.restarts()),
        ("n", 0)
    );
    // Past the point of no return the report that is missing is the source's end.
    let mut m = Move::handover(MigrationPhase::StoppingSource).ready();
    m.w.at(m.w.now.mono.0 + 30 * SECOND);
    assert_eq!(m.state(), MigrationPhase::Done);
    let moves = m.w.moves();
    assert!(
        !moves.iter().any(|line| line.starts_with("call start")),
        "{moves:?}"
    );
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "m");
}
