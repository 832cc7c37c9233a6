//! What a drain or a migration says of the jobs that it moved or took down (DRAIN-25, DRAIN-26, MIGR-38).

use greenroom_placement::Domain;
use greenroom_policy::drain::{DrainJob, DrainOptions, DrainStatus};
use greenroom_policy::migration::{MigrateOptions, MigrationPhase, Strategy};
use greenroom_policy::{ApiAnswer, ApiCall};
use greenroom_types::job::StopReason;
use greenroom_types::{MigrationId, Millis, NodeId, StartId};
use serde_json::json;

use crate::world::{World, bundle, fixed, job};

/// A channel with a backup: `a.0.e` on `n`, `a.1.e` on `m`.
fn apart() -> World {
    let mut w = World::with(fixed(), &[("n", 4.0), ("m", 4.0)]);
    let mut a = bundle("a", json!([job("e")]));
    a.resilience_policy = Some(Default::default());
    w.submit(a);
    for (id, node) in [("a.0.e", "m"), ("a.1.e", "n")] {
        w.runs(id);
        assert_eq!(w.node_of(id).unwrap(), node);
    }
    w
}

fn drain(w: &mut World, node: &str, options: DrainOptions) {
    let node_id = w.long(node);
    let id = w.api(ApiCall::DrainNode { node_id, options });
    assert!(w.results[&id].is_ok(), "{:?}", w.results[&id]);
}

fn entry(w: &World, node: &str, job: &str) -> DrainJob {
    let state = w.policy.drain_status(&w.long(node)).unwrap();
    let mut jobs = state.jobs.iter();
    jobs.find(|it| it.job_id.as_str() == job).unwrap().clone()
}

fn words(w: &World, job: &str) -> Vec<String> {
    let report = w.policy.explain(&job.into());
    report
        .happened
        .into_iter()
        .map(|(_, words)| words)
        .collect()
}

/// Drains `m` by overlap; gives the start that moves away.
fn drain_by_overlap(w: &mut World) -> StartId {
    let (_, source) = w.last_start("a.0.e");
    let overlap = DrainOptions {
        strategy: Some(Strategy::Overlap),
        ..DrainOptions::default()
    };
    drain(w, "m", overlap);
    source
}

// spec: DRAIN-25
#[test]
fn a_drain_says_which_copies_it_brings_together() {
    let mut w = apart();
    let source = drain_by_overlap(&mut w);
    let moving = entry(&w, "m", "a.0.e");
    assert_eq!(moving.status, DrainStatus::Migrating);
    assert_eq!(moving.shares, [Domain::Node], "there is no other node");
    assert_eq!(
        w.policy.explain(&"a.0.e".into()).drain.unwrap().shares,
        [Domain::Node]
    );
    w.moves_over("a.0.e", &source, "m");
    let moved = entry(&w, "m", "a.0.e");
    assert_eq!(moved.status, DrainStatus::Migrated);
    assert_eq!(moved.shares, [Domain::Node]);

    // With a third node they stay apart, and nothing is said.
    let mut w = apart();
    w.joins("o", 4.0);
    drain(&mut w, "m", DrainOptions::default());
    assert!(entry(&w, "m", "a.0.e").shares.is_empty());
}

fn begin(w: &mut World, target: Option<&str>) -> MigrationId {
    let target_node_id = target.map(|target| w.long(target));
    let id = w.api(ApiCall::MigrateJob {
        job_id: "a.0.e".into(),
        options: MigrateOptions {
            strategy: Strategy::Overlap,
            target_node_id,
            ..MigrateOptions::default()
        },
    });
    match &w.results[&id] {
        Ok(ApiAnswer::Migration(id)) => id.clone(),
        other => panic!("{other:?}"),
    }
}

// spec: MIGR-38
#[test]
fn a_migration_says_which_copies_it_brings_together() {
    let mut w = apart();
    w.joins("o", 4.0);
    let (_, source) = w.last_start("a.0.e");
    let shares = |w: &World, id| w.policy.migration_by_id(id).unwrap().shares.clone();
    let why = |w: &World| w.policy.explain(&"a.0.e".into());

    // Left to the policy they stay apart, and nothing is said.
    let id = begin(&mut w, None);
    assert_eq!(shares(&w, &id), []);
    take_back(&mut w, &id);

    // The node that is asked for is obeyed, and what that means is told.
    let id = begin(&mut w, Some("n"));
    assert_eq!(shares(&w, &id), [Domain::Node]);
    assert_eq!(why(&w).migration.unwrap().shares, [Domain::Node]);
    w.moves_over("a.0.e", &source, "m");
    let done = w.policy.migration_by_id(&id).unwrap();
    assert_eq!(done.phase, MigrationPhase::Done);
    assert_eq!(shares(&w, &id), [Domain::Node]);
    assert_eq!(why(&w).shares, [Domain::Node]);

    let mut w = apart();
    let id = begin(&mut w, None);
    assert_eq!(shares(&w, &id), [Domain::Node], "there is no other node");
    take_back(&mut w, &id);
    assert_eq!(shares(&w, &id), []);
}

fn take_back(w: &mut World, id: &MigrationId) {
    let call = w.api(ApiCall::AbortMigration {
        migration_id: id.clone(),
        reason: "not now".to_owned(),
    });
    assert!(w.results[&call].is_ok());
}

// spec: DRAIN-26
#[test]
fn what_a_drain_did_to_a_job_is_told_in_order() {
    let mut w = apart();
    let source = drain_by_overlap(&mut w);
    assert_eq!(
        words(&w, "a.0.e"),
        [""; 0],
        "its entry tells of one under way"
    );
    w.at(5_000);
    w.moves_over("a.0.e", &source, "m");
    let m = w.long("m");
    let told = [
        format!("its node {m} began to be drained"),
        format!("it had moved from {m} to {}", w.long("n")),
    ];
    assert_eq!(words(&w, "a.0.e"), told);
    w.stopping("m");
    w.stopped("m");
    assert_eq!(words(&w, "a.0.e"), told, "the node is gone");
    assert_eq!(words(&w, "a.1.e"), [""; 0], "it is none of its business");

    // By force, with nowhere to go.
    let force = DrainOptions {
        timeout_ms: Some(Millis(10_000)),
        force: true,
        ..DrainOptions::default()
    };
    drain(&mut w, "n", force);
    w.at(20_000);
    w.ends("a.1.e", StopReason::NodeTerminated);
    w.stopping("n");
    assert_eq!(w.node_of("a.1.e"), None);
    let n: NodeId = w.long("n");
    let told = [
        format!("its node {n} began to be drained, with force"),
        format!("its node {n} was ended by the drain with it still there"),
    ];
    assert_eq!(words(&w, "a.1.e"), told);
    // Recovered, it is told all the same: that is why it is where it is.
    w.joins("p", 4.0);
    w.at(60_000);
    w.runs("a.1.e");
    assert_eq!(w.node_of("a.1.e").unwrap(), "p");
    assert_eq!(words(&w, "a.1.e"), told);
}

// spec: DRAIN-26
#[test]
fn a_drain_that_left_a_job_behind_is_told() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    let short = DrainOptions {
        timeout_ms: Some(Millis(10_000)),
        ..DrainOptions::default()
    };
    drain(&mut w, "n", short);
    w.at(60_000);
    let told = words(&w, "a.0.e");
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[1].contains("the drain's time was over and it stayed: noCapacityInAnyPool"),
        "{told:?}"
    );
}
