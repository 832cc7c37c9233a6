//! Goal: each answer names what decided, with the values. Method: made-up reports, whole texts.

use std::cmp::Reverse;
use std::sync::Arc;

use greenroom_placement::{Detail, FailureReason, Filtered, Packing, Rank, Survivor};
use greenroom_policy::effect::PlacementContext;
use greenroom_policy::getters::DryRun;
use greenroom_policy::lease_wait::LeaseWait;
use greenroom_policy::migration::PhaseEntry;
use greenroom_types::node::ServiceRestarts;
use greenroom_types::stream::LeasePause;
use greenroom_types::{Millis, Wall};

use super::*;

fn rank(used: f64) -> Rank {
    Rank {
        resilience_violations: 0,
        prospective: false,
        avoided_spare: false,
        warmth: Reverse(0),
        reservation_match: Reverse(false),
        preferred_spare: Reverse(false),
        packing: Packing::new(PackingStrategy::Binpack, used, 4.0),
        same_az: Reverse(false),
    }
}

fn survivor(node: &str, rank: Rank) -> Survivor {
    Survivor {
        key: Key {
            rank,
            node: node.into(),
        },
        gpu_index: None,
    }
}

fn attempt(outcome: Outcome) -> Attempt {
    Attempt {
        pool: "studio".into(),
        tier: Some("own".into()),
        compliant_only: false,
        candidates: 4,
        filtered: vec![
            Filtered {
                node: "n8".into(),
                reason: Reason::InsufficientCapacity,
                detail: Some(Detail::Capacity {
                    needed: 2.0,
                    free: 0.5,
                }),
            },
            Filtered {
                node: "n9".into(),
                reason: Reason::WrongPool,
                detail: None,
            },
        ],
        survivors: Vec::new(),
        outcome,
        note: None,
    }
}

fn report() -> Report {
    Report {
        job_id: "news.0.enc".into(),
        standing: None,
        node_id: None,
        binding: None,
        progress: None,
        service_restarts: None,
        cause: Cause::Launch,
        record: None,
        trial: None,
        waits_for: None,
        lease: None,
        drain: None,
        happened: Vec::new(),
        migration: None,
        restarts: 0,
        restart_limit: None,
        purchases: Vec::new(),
        shares: Vec::new(),
        last_failure: None,
        excluded: Vec::new(),
    }
}

#[test]
fn a_migration_is_told_while_it_lasts_and_when_it_came_to_nothing() {
    let mut migration = MigrationState {
        migration_id: "m1".into(),
        source_job_id: "news.0.enc".into(),
        strategy: Strategy::StopThenStart,
        source_role: "primary".into(),
        target_role: "primary@1".into(),
        source_node_id: "n1".into(),
        target_node_id: Some("n2".into()),
        started_at: Wall(0),
        phase: MigrationPhase::AwaitingSourceStop,
        phase_history: vec![PhaseEntry {
            phase: MigrationPhase::AwaitingSourceStop,
            at: Wall(1_000),
        }],
        abort_reason: None,
        shares: Vec::new(),
    };
    let told = |migration: &MigrationState| {
        of_report(&Report {
            migration: Some(migration.clone()),
            ..report()
        })
    };
    let words = told(&migration);
    let moving = "It is moving to node n2 (migration m1): it was told to stop here.";
    assert!(words.contains(moving), "{words}");
    migration.shares = vec![Domain::Az];
    let words = told(&migration);
    let beside = "Where it goes it shares the zone with the other copy, which was to be avoided.";
    assert!(words.contains(beside), "{words}");
    migration.shares.clear();
    migration.phase = MigrationPhase::Aborted;
    migration.abort_reason = Some("the target failed".to_owned());
    let words = told(&migration);
    let over =
        "At 1970-01-01T00:00:01Z its migration m1 to node n2 came to nothing: the target failed.";
    assert!(words.contains(over), "{words}");
    migration.phase = MigrationPhase::Done;
    assert!(!told(&migration).contains("m1"));
}

#[test]
fn the_last_failure_and_a_ceiling_that_tripped_are_told_plainly() {
    let told = of_report(&Report {
        restarts: 7,
        restart_limit: Some(6),
        last_failure: Some("failed on n1: no such program".to_owned()),
        ..report()
    });
    assert!(
        told.contains("Last failed on n1: no such program."),
        "{told}"
    );
    assert!(
        told.contains("Restarts within the last hour: 7, and 6 are allowed."),
        "{told}"
    );
}

#[test]
fn what_a_job_wrote_is_indented_and_gets_no_full_stop() {
    let told = of_report(&Report {
        last_failure: Some("failed on n1: service main: exit code 3\nto stdout\noops".to_owned()),
        ..report()
    });
    let expected = "Last failed on n1: service main: exit code 3.\n    | to stdout\n    | oops";
    assert!(told.ends_with(expected), "{told}");
}

// spec: LAUNCH-13
#[test]
fn the_lease_or_the_pause_that_a_start_waits_for_is_named() {
    let wait = LeaseWait {
        node_id: Some("w3".into()),
        fence: Some(7),
        since: Wall(0),
        left: Some(Millis(12_000)),
        paused: None,
    };
    let told = of_report(&Report {
        lease: Some(wait.clone()),
        waits_for: wait.left,
        ..report()
    });
    assert!(
        told.contains(
            "Its start waits for the lease of its instance on w3 (fence 7).\nIt is tried again in 12s."
        ),
        "{told}"
    );
    let pause = LeasePause {
        reason: "switch replaced".to_owned(),
        by: "ann".to_owned(),
        since: Wall(0),
    };
    let told = of_report(&Report {
        lease: Some(LeaseWait {
            left: None,
            paused: Some(pause),
            ..wait
        }),
        ..report()
    });
    assert!(
        told.contains("they are paused since 1970-01-01T00:00:00Z by ann (switch replaced), and its instance on w3 (fence 7) may run on."),
        "{told}"
    );
}

// spec: DRAIN-22
#[test]
fn what_a_drain_makes_of_a_job_is_told() {
    let entry = DrainJob {
        job_id: "news.0.enc".into(),
        status: DrainStatus::Migrating,
        migration_id: None,
        strategy: Some(Strategy::StopThenStart),
        instead_of: Some(Strategy::Overlap),
        reason: None,
        shares: vec![Domain::Node],
    };
    let told = |entry: &DrainJob| {
        of_report(&Report {
            drain: Some(entry.clone()),
            ..report()
        })
    };
    let moving = told(&entry);
    assert!(
        moving.contains(
            "it is on the move: it is stopped here and started there.\nOverlap was asked for, but it is lease-protected"
        ),
        "{moving}"
    );
    assert!(
        moving.contains(
            "Where it goes it shares the node with the other copy, which was to be avoided."
        ),
        "{moving}"
    );
    let stuck = told(&DrainJob {
        status: DrainStatus::Stuck,
        instead_of: None,
        reason: Some("noCapacityInAnyPool".to_owned()),
        shares: Vec::new(),
        ..entry
    });
    assert!(
        stuck.contains("Its node is being drained, and it is stuck: noCapacityInAnyPool."),
        "{stuck}"
    );
}

// spec: EVT-09
#[test]
fn restarts_by_the_worker_are_told() {
    let told = of_report(&Report {
        service_restarts: Some(ServiceRestarts {
            count: 4,
            service: "main".to_owned(),
            ended: "exit code 3".to_owned(),
            at: Wall(0),
            pending: true,
        }),
        ..report()
    });
    assert!(
        told.contains("started its services again 4 times, last main at 1970-01-01T00:00:00Z, which had ended with exit code 3."),
        "{told}"
    );
}

// spec: WORK-37
#[test]
fn a_start_that_is_under_way_tells_what_its_worker_said_last() {
    let told = of_report(&Report {
        progress: Some((
            Wall(0),
            "image x cannot be pulled; tried again in 2 s".to_owned(),
        )),
        ..report()
    });
    assert!(
        told.contains("cannot be pulled; tried again in 2 s."),
        "{told}"
    );
}

#[test]
fn a_placed_job_names_its_node_what_decided_and_why_not_the_others() {
    let mut attempt = attempt(Outcome::Placed);
    attempt.survivors = vec![survivor("n1", rank(2.0)), survivor("n2", rank(1.0))];
    let trace = Trace {
        attempts: vec![attempt],
    };
    let report = Report {
        standing: Some(Standing::Bound),
        node_id: Some("n1".into()),
        binding: Some(BindingState::Running),
        record: Some(PlacementInfo {
            job_id: "news.0.enc".into(),
            bundle_id: "news".into(),
            replica_index: 0,
            job_name: "enc".into(),
            context: PlacementContext::Launch,
            kind: PlacementKind::Place,
            node_id: Some("n1".into()),
            pool: "studio".into(),
            tier: "own".into(),
            instance_type: String::new(),
            launch_mode: LaunchMode::OnDemand,
            gpu_index: None,
            reason: String::new(),
            tried_pools: Vec::new(),
            degraded: false,
            at: Wall(1_767_225_600_000),
            trace: Some(Arc::new(trace)),
        }),
        ..report()
    };
    assert_eq!(
        of_report(&report),
        "\
Job news.0.enc runs on n1.
Decided 2026-01-01T00:00:00Z: node n1 was chosen, in pool studio, tier own.
Pool studio, tier own: taken from this tier; 4 node(s) looked at.
  n1: chosen; booted, 50.0% used (fullest first)
  n2: would do; booted, 25.0% used (fullest first)
  Decided by: the fuller node.
  n8: not enough free capacity (needs 2 vCPU, 0.5 free)
  1 node(s) in other pools or tiers"
    );
}

#[test]
fn a_waiting_job_says_what_for() {
    let report = Report {
        standing: Some(Standing::Pending),
        cause: Cause::Recovery,
        waits_for: Some(Millis(4_000)),
        restarts: 2,
        restart_limit: Some(6),
        excluded: vec![("n7".into(), Millis(25_000))],
        trial: Some(DryRun {
            decision: Decision::Failure {
                reason: FailureReason::NoCapacityInAnyPool,
                tried_pools: vec!["studio".into()],
            },
            trace: Trace {
                attempts: vec![attempt(Outcome::Exhausted)],
            },
        }),
        ..report()
    };
    assert_eq!(
        of_report(&report),
        "\
Job news.0.enc: found no place, waits for room.
It is tried again in 4s.
Restarts within the last hour: 2, and 6 are allowed.
Node n7 is left out for this job for another 25s.
What the engine says now:
No place is found (noCapacityInAnyPool); pools tried: studio.
Pool studio, tier own: nothing more to try in this tier; 4 node(s) looked at.
  n8: not enough free capacity (needs 2 vCPU, 0.5 free)
  1 node(s) in other pools or tiers"
    );
}

#[test]
fn every_component_can_be_the_one_that_decides() {
    let base = rank(1.0);
    let key = |rank: Rank| Key {
        rank,
        node: "n1".into(),
    };
    let mut seen = vec![deciding(&key(base), &key(base))];
    let others = [
        Rank {
            resilience_violations: 1,
            ..base
        },
        Rank {
            prospective: true,
            ..base
        },
        Rank {
            avoided_spare: true,
            ..base
        },
        Rank {
            warmth: Reverse(1),
            ..base
        },
        Rank {
            reservation_match: Reverse(true),
            ..base
        },
        Rank {
            preferred_spare: Reverse(true),
            ..base
        },
        rank(2.0),
        Rank {
            same_az: Reverse(true),
            ..base
        },
    ];
    seen.extend(others.map(|other| deciding(&key(base), &key(other))));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 9);
}
