//! What holds for every migration: how it is shown, where its target may go, what workers say, what
//! changes nothing (MIGR, HEALTH).

use greenroom_policy::ApiCall;
use greenroom_policy::effect::PlacementContext;
use greenroom_policy::migration::{MigrateOptions, MigrationPhase, Strategy};
use greenroom_types::job::{HistoryKind, StopReason};
use greenroom_types::node::{InstanceKey, RejectionCode};
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{NodeId, StartId};
use serde_json::{Value, json};

use crate::migration::Move;
use crate::world::{World, bundle, fixed, job, needing};

fn migrate(w: &mut World, job_id: &str, options: MigrateOptions) -> greenroom_policy::ApiId {
    w.api(ApiCall::MigrateJob {
        job_id: job_id.into(),
        options,
    })
}

fn overlap_to(node: &str) -> MigrateOptions {
    MigrateOptions {
        strategy: Strategy::Overlap,
        target_node_id: Some(node.into()),
        override_reservation: false,
    }
}

// spec: MIGR-03
#[test]
fn a_migration_as_it_is_shown() {
    let mut m = Move::handover(MigrationPhase::StoppingSource);
    m.source_stopped();
    let shown = serde_json::to_value(m.w.policy.migration_by_id(&m.id).unwrap()).unwrap();
    let field = |key: &str| shown[key].as_str().unwrap_or_default().to_owned();
    assert_eq!(field("migrationId"), m.id.as_str());
    assert_eq!(field("sourceJobId"), "a.0.e");
    assert_eq!(field("strategy"), "handover");
    assert_eq!(field("sourceRole"), "primary");
    assert_eq!(
        field("targetRole"),
        format!("primary@{}", &m.id.as_str()[..8])
    );
    assert_eq!(
        (field("sourceNodeId"), field("targetNodeId")),
        ("n".into(), "m".into())
    );
    assert!(shown.get("startedAt").is_some());
    assert_eq!(field("phase"), "done");
    let phases: Vec<&str> = shown["phaseHistory"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            assert!(entry.get("at").is_some());
            entry["phase"].as_str().unwrap()
        })
        .collect();
    assert_eq!(
        phases,
        [
            "proposing",
            "launching",
            "awaitingTargetReady",
            "awaitingSourceStop",
            "applying",
            "stoppingSource",
            "done"
        ]
    );
    assert!(shown.get("abortReason").is_none());
    // The remaining two phases, and the reason of an abort.
    let mut m = Move::of(Strategy::StopThenStart);
    let before = serde_json::to_value(m.w.policy.migration_by_id(&m.id).unwrap()).unwrap();
    assert_eq!(before["phase"], "launching");
    m.prepared();
    m.source_stopped();
    assert_eq!(serde_json::to_value(m.state()).unwrap(), "startingTarget");
    let mut m = Move::of(Strategy::Overlap);
    m.w.stopping("m");
    assert_eq!(serde_json::to_value(m.state()).unwrap(), "aborted");
    assert!(!m.reason().is_empty());
}

// spec: MIGR-05, LAUNCH-07
#[test]
fn the_target_is_placed_as_any_job_is() {
    let world = |needs: Value| {
        let mut w = World::with(fixed(), &[("n", 16.0)]);
        w.submit(bundle("a", json!([needing("e", needs)])));
        w.runs("a.0.e");
        w
    };
    let port = json!({"requiredCapacity": 2, "requiredHostPorts": ["80/tcp"]});
    let mut w = world(port.clone());
    // `c` has the port taken, `d` is too small, `m` fits; the source would fit best of all.
    w.joins("c", 4.0);
    w.submit(bundle("x", json!([needing("e", port)])));
    assert_eq!(w.node_of("x.0.e").unwrap(), "c");
    w.joins("d", 1.0);
    w.joins("m", 4.0);
    let attempted = w.metrics().placements_attempted;
    w.took();
    migrate(&mut w, "a.0.e", MigrateOptions::default());
    let filtered = w.filtered();
    assert_eq!(filtered["c"], "hostPortConflict");
    assert_eq!(filtered["d"], "insufficientCapacity");
    assert_eq!(filtered["n"], "recoveryExcluded");
    let info = w.infos.last().unwrap();
    assert_eq!(info.context, PlacementContext::Migration);
    assert_eq!(info.node_id, Some(NodeId::new("m")));
    assert_eq!(w.metrics().placements_attempted, attempted + 1);
    assert!(
        w.took()
            .iter()
            .any(|line| line.starts_with("decide a.0.e place m"))
    );

    // A pin, and a reservation that is overridden.
    let mut w = world(json!({"requiredCapacity": 1}));
    w.joins("m", 4.0);
    w.tag("z", "own", "spare", "true");
    w.tag("z", "own", "reservedFor", "other");
    w.tag("z", "own", "exclusive", "true");
    w.joins("z", 4.0);
    let refused = migrate(&mut w, "a.0.e", overlap_to("z"));
    assert!(w.results[&refused].is_err());
    assert_eq!(w.filtered()["z"], "reservedExclusively");
    assert_eq!(w.filtered()["m"], "notTargetNode");
    let options = MigrateOptions {
        override_reservation: true,
        ..overlap_to("z")
    };
    let accepted = migrate(&mut w, "a.0.e", options);
    assert!(w.results[&accepted].is_ok());
}

fn aborted(m: &mut Move, side: &str) {
    let signal = MigrationSignal::Aborted {
        side: side.to_owned(),
        reason: "out of memory".to_owned(),
    };
    m.signal(side, signal);
}

// spec: MIGR-31
#[test]
fn a_workers_abort_counts_by_side_and_phase() {
    for side in ["source", "target"] {
        let mut m = Move::handover(MigrationPhase::AwaitingTargetReady).ready();
        aborted(&mut m, side);
        assert_eq!(m.state(), MigrationPhase::Aborted, "{side}");
        assert!(m.reason().contains("out of memory"), "{}", m.reason());
        assert_eq!(m.w.node_of("a.0.e").unwrap(), "n");
        assert_eq!(m.restarts(), 0);
    }
    // Past the point of no return.
    let mut m = Move::handover(MigrationPhase::StoppingSource).ready();
    aborted(&mut m, "source");
    assert_eq!(m.state(), MigrationPhase::StoppingSource);
    assert!(
        m.w.took().is_empty(),
        "the source has nothing to say any more"
    );
    aborted(&mut m, "target");
    assert_eq!(m.state(), MigrationPhase::Aborted);
    assert_eq!(m.restarts(), 1, "lost, and recovered");
}

// spec: MIGR-37
#[test]
fn marks_on_either_node_change_nothing_in_flight() {
    let mut m = Move::of(Strategy::Overlap).ready();
    for id in ["n", "m"] {
        m.w.api(ApiCall::CordonNode { node_id: id.into() });
        let others = ["x", "y", "z"];
        for other in others {
            let key = InstanceKey::new(format!("{other}.0.e").as_str().into(), "primary".into());
            m.w.send(StreamEvent::JobRejected {
                node_id: id.into(),
                key,
                start_id: StartId::default(),
                code: RejectionCode::Disk,
                reason: String::new(),
                inventory: None,
            });
        }
    }
    assert!(m.w.acts().contains(&"onNodeUnhealthy m".to_owned()));
    assert_eq!(m.state(), MigrationPhase::Launching);
    m.target_runs();
    m.source_stopped();
    assert_eq!(m.state(), MigrationPhase::Done);
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "m");
}

// spec: HARD-87
#[test]
fn the_stop_that_a_migration_asked_for_is_nobodys_stop() {
    let mut m = Move::of(Strategy::Overlap).ready();
    m.target_runs();
    assert_eq!(m.state(), MigrationPhase::StoppingSource);
    m.w.took();
    let at = m.w.place_of("primary", "n");
    let stopping = HistoryKind::Stopping {
        at: at.clone(),
        reason: StopReason::UserRequested,
        detail: String::new(),
    };
    let source = m.source.clone();
    m.w.enter("a.0.e", stopping, Some(source.clone()));
    m.w.enter("a.0.e", HistoryKind::Stopped(at), Some(source));
    m.w.tell("a.0.e");
    assert_eq!(
        m.w.moves(),
        ["onMigrationPhase done", "onMigrationCompleted"]
    );
    assert_eq!(
        (m.w.node_of("a.0.e").unwrap().as_str(), m.restarts()),
        ("m", 0)
    );
    // An operator's stop would keep the job from being placed after the next loss.
    m.w.stopping("m");
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(m.restarts(), 1);
}

// spec: HEALTH-11
#[test]
fn rejected_targets_count_against_their_node() {
    let mut w = World::with(fixed(), &[("n", 16.0)]);
    for id in ["a", "b", "c"] {
        w.submit(bundle(id, json!([job("e")])));
        w.runs(&format!("{id}.0.e"));
    }
    w.joins("m", 16.0);
    w.took();
    for id in ["a.0.e", "b.0.e", "c.0.e"] {
        migrate(&mut w, id, overlap_to("m"));
        assert!(!w.acts().contains(&"onNodeUnhealthy m".to_owned()));
        w.rejects(id, "m", RejectionCode::Disk, "full");
        assert_eq!(w.node_of(id).unwrap(), "n");
        assert_eq!(w.restarts(id), 0);
    }
    assert!(w.acts().contains(&"onNodeUnhealthy m".to_owned()));
}
