//! Emptying a node for an upgrade: nothing goes off the air by choice (DRAIN-19 to DRAIN-21).

use greenroom_policy::drain::{DrainJob, DrainOptions, DrainPhase, DrainStatus};
use greenroom_policy::event::OnAirJob;
use greenroom_policy::migration::{MigrateOptions, MigrationRefusal, Strategy};
use greenroom_policy::{ApiAnswer, ApiCall, ApiError};
use greenroom_types::JobId;
use greenroom_types::bundle::Bundle;
use greenroom_types::stream::StreamEvent;
use serde_json::{Value, json};

use crate::world::{World, bundle, fixed};

fn upgrade(w: &mut World, node: &str, force: bool) -> Result<ApiAnswer, ApiError> {
    let options = DrainOptions {
        for_upgrade: true,
        force,
        strategy: Some(Strategy::Overlap),
        ..DrainOptions::default()
    };
    let node_id = w.long(node);
    let id = w.api(ApiCall::DrainNode { node_id, options });
    w.results[&id].clone()
}

fn listed(w: &World, node: &str, job: &str) -> DrainJob {
    let state = w.policy.drain_status(&w.long(node)).unwrap();
    let found = state.jobs.iter().find(|it| it.job_id.as_str() == job);
    found.unwrap().clone()
}

fn strategy_of(w: &World, job: &str) -> Option<Strategy> {
    let migration = w.policy.migration_for_job(&JobId::new(job))?;
    Some(migration.strategy)
}

fn encoder(handover: bool) -> Value {
    json!({"jobName": "e", "handover": handover, "requirements": {"requiredCapacity": 1}})
}

/// Primary and backup, not on one node.
fn pair(handover: bool) -> Bundle {
    let mut pair = bundle("a", json!([encoder(handover)]));
    pair.resilience_policy = serde_json::from_value(json!({"sameNode": "forbid"})).unwrap();
    pair
}

/// The copies of `a` run on different nodes, named in their order; `spare` has room for either.
fn both_run(handover: bool) -> (World, [String; 2]) {
    let mut w = World::with(fixed(), &[("n", 1.0), ("m", 1.0)]);
    w.submit(pair(handover));
    let nodes = ["a.0.e", "a.1.e"].map(|id| {
        w.runs(id);
        w.policy.node_for_job(&id.into()).unwrap().to_string()
    });
    w.joins("spare", 4.0);
    w.at(10_000);
    w.took();
    (w, nodes)
}

// spec: DRAIN-19, FIELD-11
#[test]
fn a_primary_that_cannot_hand_over_keeps_its_node_from_being_emptied_by_choice() {
    let (mut w, [primary, backup]) = both_run(false);
    let refused = upgrade(&mut w, &primary, false).unwrap_err();
    assert_eq!(refused.code(), "onAir");
    assert_eq!(
        refused,
        ApiError::OnAir {
            node_id: w.long(&primary),
            jobs: vec![OnAirJob {
                job_id: "a.0.e".into(),
                reason: MigrationRefusal::NotCooperative,
            }],
            more: 0,
        }
    );
    let told = refused.to_string();
    assert!(
        told.contains("\"a.0.e\" (the job is not declared with `handover`"),
        "{told}"
    );
    assert!(
        !told.contains("stopThenStart"),
        "no way out of this: {told}"
    );
    assert!(!w.policy.is_cordoned(&w.long(&primary)));
    assert!(w.policy.drain_status(&w.long(&primary)).is_none());
    assert_eq!(w.calls(), [""; 0]);

    // Its backup is not on the air, and moves as asked.
    upgrade(&mut w, &backup, false).unwrap();
    assert_eq!(strategy_of(&w, "a.1.e"), Some(Strategy::Overlap));

    // By force the primary moves as asked too.
    upgrade(&mut w, &primary, true).unwrap();
    assert_eq!(strategy_of(&w, "a.0.e"), Some(Strategy::Overlap));
}

// spec: DRAIN-19
#[test]
fn all_that_stands_in_the_way_is_named_up_to_twenty() {
    let mut w = World::with(fixed(), &[("n", 60.0)]);
    for at in 0..23 {
        let id = format!("c{at:02}");
        w.submit(bundle(&id, json!([encoder(at % 2 == 1)])));
        w.runs(&format!("{id}.0.e"));
    }
    let refused = upgrade(&mut w, "n", false).unwrap_err();
    let ApiError::OnAir { jobs, more, .. } = &refused else {
        panic!("{refused}")
    };
    let named: Vec<&str> = jobs.iter().map(|job| job.job_id.as_str()).collect();
    assert_eq!((named.len(), *more), (12, 0));
    assert_eq!(
        named[..2],
        ["c00.0.e", "c02.0.e"],
        "all that cannot, in order"
    );

    for at in 23..43 {
        let id = format!("c{at:02}");
        w.submit(bundle(&id, json!([encoder(false)])));
        w.runs(&format!("{id}.0.e"));
    }
    let refused = upgrade(&mut w, "n", false).unwrap_err();
    let ApiError::OnAir { jobs, more, .. } = &refused else {
        panic!("{refused}")
    };
    assert_eq!((jobs.len(), *more), (20, 12));
    assert!(refused.to_string().contains("; and 12 more;"), "{refused}");
}

// spec: DRAIN-19
#[test]
fn a_backup_is_on_the_air_while_its_primary_is_not_there() {
    let (mut w, [primary, backup]) = both_run(false);
    w.send(StreamEvent::JobDeleted("a.0.e".into()));
    let refused = upgrade(&mut w, &backup, false).unwrap_err();
    assert!(
        matches!(&refused, ApiError::OnAir { jobs, .. } if jobs[0].job_id.as_str() == "a.1.e"),
        "{refused}"
    );

    let (mut w, [again, backup]) = both_run(false);
    assert_eq!(again, primary);
    w.api(ApiCall::MigrateJob {
        job_id: "a.0.e".into(),
        options: MigrateOptions::default(),
    });
    let refused = upgrade(&mut w, &backup, false).unwrap_err();
    assert_eq!(refused.code(), "onAir", "its primary is on the move");
    // That move was asked for by somebody who answers for it.
    upgrade(&mut w, &primary, false).unwrap();
    assert_eq!(listed(&w, &primary, "a.0.e").status, DrainStatus::Migrating);
}

// spec: DRAIN-20
#[test]
fn a_primary_waits_while_its_backup_is_on_the_move() {
    let (mut w, [primary, backup]) = both_run(true);
    let (_, source) = w.last_start("a.1.e");
    upgrade(&mut w, &backup, false).unwrap();
    assert_eq!(strategy_of(&w, "a.1.e"), Some(Strategy::Overlap));
    w.joins("other", 4.0);
    upgrade(&mut w, &primary, false).unwrap();
    let waits = listed(&w, &primary, "a.0.e");
    assert_eq!(waits.status, DrainStatus::Stuck);
    assert_eq!(waits.reason.as_deref(), Some("backupFirst"));
    w.moves_over("a.1.e", &source, &backup);
    assert_eq!(listed(&w, &primary, "a.0.e").status, DrainStatus::Migrating);
    assert_eq!(strategy_of(&w, "a.0.e"), Some(Strategy::Handover));
}

// spec: DRAIN-20
#[test]
fn a_backup_without_a_place_holds_up_nobody() {
    let mut w = World::with(fixed(), &[("n", 1.0)]);
    w.submit(pair(true));
    w.runs("a.0.e");
    assert_eq!(w.policy.node_for_job(&"a.1.e".into()), None);
    upgrade(&mut w, "n", false).unwrap();
    assert_eq!(strategy_of(&w, "a.0.e"), Some(Strategy::Handover));
}

// spec: DRAIN-21
#[test]
fn a_job_that_comes_on_the_air_during_the_drain_stays() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([encoder(false)])));
    w.joins("m", 4.0);
    upgrade(&mut w, "n", false).unwrap();
    assert_eq!(
        listed(&w, "n", "a.0.e").reason.as_deref(),
        Some("notRunning")
    );
    w.runs("a.0.e");
    w.at(60_000);
    let stuck = listed(&w, "n", "a.0.e");
    assert_eq!(stuck.reason.as_deref(), Some("notCooperative"));
    w.at(600_000);
    let state = w.policy.drain_status(&"n".into()).unwrap();
    assert_eq!(state.phase, DrainPhase::Partial);
    assert!(!w.calls().iter().any(|call| call.starts_with("terminate")));
}
