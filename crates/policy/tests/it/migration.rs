//! Moving running jobs (MIGR). Job `a.0.e` (essential, preferSpare) runs on `n`; `m` is free.

use greenroom_policy::drain::DrainOptions;
use greenroom_policy::migration::{MigrateOptions, MigrationPhase, Strategy};
use greenroom_policy::{ApiAnswer, ApiCall, ApiId, Effect, Event};
use greenroom_types::call::{Call, Status};
use greenroom_types::job::{HistoryKind, StopReason};
use greenroom_types::node::{InstanceKey, InterruptionKind, RejectionCode};
use greenroom_types::stream::{MigrationSignal, StreamEvent};
use greenroom_types::{JobId, MigrationId, Payload, Role, StartId};
use serde_json::json;

use crate::world::{World, bundle, cloud, fixed, job, needing, refused, sized};

const SECOND: u64 = 1_000;

/// The world with a migration in it.
pub(crate) struct Move {
    pub(crate) w: World,
    pub(crate) id: MigrationId,
    pub(crate) caller: ApiId,
    pub(crate) source: StartId,
    pub(crate) target: Option<StartId>,
}

pub(crate) fn running_on_n(policy: &str) -> World {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let spec = json!({"jobName": "e", "handover": true,
        "requirements": {"requiredCapacity": 1, "onRuntimeFailure": policy}});
    w.submit(bundle("a", json!([spec])));
    w.runs("a.0.e");
    w.joins("m", 4.0);
    w.at(10_000);
    w.took();
    w
}

impl Move {
    pub(crate) fn begin(mut w: World, strategy: Strategy) -> Self {
        let (_, source) = w.last_start("a.0.e");
        let options = MigrateOptions {
            strategy,
            ..MigrateOptions::default()
        };
        let caller = w.api(ApiCall::MigrateJob {
            job_id: "a.0.e".into(),
            options,
        });
        let id = w
            .policy
            .migrations()
            .last()
            .expect("a migration")
            .migration_id
            .clone();
        let mut this = Self {
            w,
            id,
            caller,
            source,
            target: None,
        };
        this.note_target();
        this
    }

    pub(crate) fn of(strategy: Strategy) -> Self {
        Self::begin(running_on_n("preferSpare"), strategy)
    }

    pub(crate) fn note_target(&mut self) {
        let (at, start) = self.w.last_start("a.0.e");
        if at.role.is_migration_target() {
            self.target = Some(start);
        }
    }

    pub(crate) fn state(&self) -> MigrationPhase {
        self.w.policy.migration_by_id(&self.id).unwrap().phase
    }

    pub(crate) fn target_role(&self) -> Role {
        self.w
            .policy
            .migration_by_id(&self.id)
            .unwrap()
            .target_role
            .clone()
    }

    pub(crate) fn prepared(&mut self) {
        let role = self.target_role();
        let at = self.w.place_of(role.as_str(), "m");
        self.w
            .enter("a.0.e", HistoryKind::Prepared(at), self.target.clone());
        self.w.send(StreamEvent::JobPrepared {
            key: InstanceKey::new("a.0.e".into(), role),
            node_id: "m".into(),
            start_id: self.target.clone().unwrap(),
        });
        self.w.tell("a.0.e");
    }

    pub(crate) fn target_runs(&mut self) {
        let role = self.target_role();
        let start = self.target.clone().unwrap();
        self.w.run_of("a.0.e", role.as_str(), "m", &start);
        self.w.tell("a.0.e");
    }

    pub(crate) fn source_stopped(&mut self) {
        let at = self.w.place_of("primary", "n");
        let kind = HistoryKind::Stopping {
            at: at.clone(),
            reason: StopReason::UserRequested,
            detail: String::new(),
        };
        self.w.enter("a.0.e", kind, Some(self.source.clone()));
        self.w.tell("a.0.e");
        self.w
            .enter("a.0.e", HistoryKind::Stopped(at), Some(self.source.clone()));
        self.w.tell("a.0.e");
    }

    pub(crate) fn signal(&mut self, from: &str, signal: MigrationSignal) {
        let role = if from == "target" {
            self.target_role()
        } else {
            Role::new("primary")
        };
        self.w.send(StreamEvent::Migration {
            key: InstanceKey::new("a.0.e".into(), role),
            migration_id: self.id.clone(),
            signal,
        });
    }

    /// A handover up to this phase.
    pub(crate) fn handover(to: MigrationPhase) -> Self {
        let mut m = Self::of(Strategy::Handover);
        if to == MigrationPhase::Proposing {
            return m;
        }
        m.signal("source", MigrationSignal::State(vec![1].into()));
        m.note_target();
        if to == MigrationPhase::Launching {
            return m;
        }
        m.target_runs();
        if to == MigrationPhase::AwaitingTargetReady {
            return m;
        }
        m.signal("target", MigrationSignal::TargetReady(vec![2].into()));
        if to == MigrationPhase::AwaitingSourceStop {
            return m;
        }
        m.signal(
            "source",
            MigrationSignal::SourceStoppedOutput(vec![3].into()),
        );
        if to == MigrationPhase::Applying {
            return m;
        }
        m.signal("target", MigrationSignal::TargetApplied(Payload::default()));
        m
    }

    pub(crate) fn ready(mut self) -> Self {
        self.w.took();
        self
    }

    pub(crate) fn restarts(&self) -> usize {
        self.w.restarts("a.0.e")
    }

    pub(crate) fn reason(&self) -> String {
        let state = self.w.policy.migration_by_id(&self.id).unwrap();
        state.abort_reason.clone().unwrap_or_default()
    }
}

// spec: MIGR-01, MIGR-04, MIGR-09, MIGR-10, MIGR-15, MIGR-16, MIGR-34, CALLB-15
#[test]
fn stop_then_start_never_orders_two_running_instances() {
    let mut m = Move::of(Strategy::StopThenStart);
    assert_eq!(
        m.w.moves(),
        [
            "onMigrationPhase launching",
            "call start a.0.e primary@ on m"
        ]
    );
    assert_eq!(
        m.w.results[&m.caller],
        Ok(ApiAnswer::Migration(m.id.clone()))
    );
    m.prepared();
    assert_eq!(
        m.w.moves(),
        [
            "call stop a.0.e/primary on n",
            "onMigrationPhase awaitingSourceStop"
        ]
    );
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "n");
    m.source_stopped();
    assert_eq!(
        m.w.moves(),
        [
            "call startPrepared a.0.e/primary@ on m",
            "onMigrationPhase startingTarget"
        ]
    );
    m.target_runs();
    assert_eq!(
        m.w.moves(),
        ["onMigrationPhase done", "onMigrationCompleted"]
    );
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "m");
    assert_eq!(m.restarts(), 0);
    let record = m.w.policy.placement_for_job(&"a.0.e".into()).unwrap();
    assert_eq!(record.node_id.as_ref().unwrap().as_str(), "m");
    let metrics = m.w.metrics();
    assert_eq!(metrics.placements_attempted, metrics.placements_succeeded);
}

// spec: MIGR-04, MIGR-11, HARD-88
#[test]
fn overlap_starts_before_it_stops() {
    let mut m = Move::of(Strategy::Overlap).ready();
    m.target_runs();
    assert_eq!(
        m.w.moves(),
        [
            "call stop a.0.e/primary on n",
            "onMigrationPhase stoppingSource"
        ]
    );
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "n", "until it is done");
    m.source_stopped();
    assert_eq!(
        m.w.moves(),
        ["onMigrationPhase done", "onMigrationCompleted"]
    );
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "m");
}

// spec: MIGR-04, MIGR-08, MIGR-12, MIGR-13
#[test]
fn a_handover_relays_what_the_two_tell_each_other() {
    let mut m = Move::of(Strategy::Handover);
    assert_eq!(
        m.w.moves(),
        ["onMigrationPhase proposing", "call NotifyMigrationGetState"]
    );
    assert!(!m.w.results.contains_key(&m.caller));
    m.signal("source", MigrationSignal::State(vec![1].into()));
    m.note_target();
    assert_eq!(
        m.w.moves(),
        [
            "onMigrationPhase launching",
            "call start a.0.e primary@ on m"
        ]
    );
    assert!(m.w.results[&m.caller].is_ok());
    m.target_runs();
    m.signal("target", MigrationSignal::TargetReady(vec![2, 0].into()));
    assert_eq!(
        m.w.moves(),
        [
            "onMigrationPhase awaitingTargetReady",
            "call NotifyMigrationCutoverReady",
            "onMigrationPhase awaitingSourceStop"
        ]
    );
    m.signal(
        "source",
        MigrationSignal::SourceStoppedOutput(vec![3].into()),
    );
    assert_eq!(
        m.w.moves(),
        [
            "call NotifyMigrationCutoverApply",
            "onMigrationPhase applying"
        ]
    );
    let payloads: Vec<Payload> =
        m.w.all
            .iter()
            .filter_map(|effect| match effect {
                Effect::Call {
                    call: Call::StartJob(start),
                    ..
                } => start.migration_state.clone(),
                Effect::Call {
                    call:
                        Call::NotifyMigrationCutoverReady { payload, .. }
                        | Call::NotifyMigrationCutoverApply { payload, .. },
                    ..
                } => Some(payload.clone()),
                _ => None,
            })
            .collect();
    let told: [Payload; 3] = [vec![1].into(), vec![2, 0].into(), vec![3].into()];
    assert_eq!(payloads, told);
    m.signal("target", MigrationSignal::TargetApplied(Payload::default()));
    assert_eq!(
        m.w.moves(),
        [
            "call stop a.0.e/primary on n",
            "onMigrationPhase stoppingSource"
        ]
    );
    m.source_stopped();
    assert_eq!(
        m.w.moves(),
        ["onMigrationPhase done", "onMigrationCompleted"]
    );
    let phases: Vec<MigrationPhase> =
        m.w.policy
            .migration_by_id(&m.id)
            .unwrap()
            .phase_history
            .iter()
            .map(|entry| entry.phase)
            .collect();
    assert_eq!(phases.len(), 7);
}

// spec: MIGR-02, HARD-89
#[test]
fn what_cannot_be_moved_is_refused_without_a_trace() {
    let mut w = running_on_n("preferSpare");
    w.submit(bundle("b", json!([job("idle"), sized("stuck", 99.0)])));
    w.took();
    let ask = |w: &mut World, job_id: &str, strategy, target: Option<&str>| {
        let options = MigrateOptions {
            strategy,
            target_node_id: target.map(Into::into),
            override_reservation: false,
        };
        let id = w.api(ApiCall::MigrateJob {
            job_id: job_id.into(),
            options,
        });
        w.results[&id].as_ref().unwrap_err().code().to_owned()
    };
    let stop = Strategy::StopThenStart;
    assert_eq!(ask(&mut w, "x", stop, None), "unknownJob");
    assert_eq!(ask(&mut w, "b.0.idle", stop, None), "notRunning");
    assert_eq!(ask(&mut w, "b.0.stuck", stop, None), "notRunning");
    assert_eq!(ask(&mut w, "a.0.e", stop, Some("n")), "targetIsSource");
    w.runs("b.0.idle");
    assert_eq!(
        ask(&mut w, "b.0.idle", Strategy::Handover, None),
        "notCooperative"
    );
    assert!(w.policy.migrations().is_empty());
    w.took();
    let mut m = Move::begin(w, stop);
    assert_eq!(ask(&mut m.w, "a.0.e", stop, None), "migrationInFlight");
    m.prepared();
    m.source_stopped();
    m.target_runs();
    m.w.took();
    // The next one starts from the active key and stacks no suffixes.
    m.w.joins("p", 4.0);
    let options = MigrateOptions {
        target_node_id: Some("p".into()),
        ..Default::default()
    };
    m.w.api(ApiCall::MigrateJob {
        job_id: "a.0.e".into(),
        options,
    });
    let state = m.w.policy.migration_for_job(&"a.0.e".into()).unwrap();
    assert!(state.source_role.is_migration_target());
    assert_eq!(state.target_role.as_str().matches('@').count(), 1);
    assert_ne!(state.source_role, state.target_role);
}

// spec: MIGR-06, HARD-91, PLACE-27
#[test]
fn a_target_without_a_place_leaves_the_source_alone() {
    let mut w = running_on_n("preferSpare");
    w.api(ApiCall::CordonNode {
        node_id: "m".into(),
    });
    w.took();
    let options = MigrateOptions {
        target_node_id: Some("m".into()),
        ..Default::default()
    };
    let caller = w.api(ApiCall::MigrateJob {
        job_id: "a.0.e".into(),
        options,
    });
    assert_eq!(
        w.moves(),
        [
            "onMigrationPhase launching",
            "onPlacementFailed a.0.e",
            "onError noCapacityInAnyPool",
            "onMigrationPhase aborted",
            "onMigrationAborted noCapacityInAnyPool"
        ]
    );
    assert_eq!(
        w.results[&caller].as_ref().unwrap_err().code(),
        "noCapacityInAnyPool"
    );
    assert_eq!(w.filtered()["m"], "cordoned");
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    w.picture("m", 4.0);
    assert!(w.calls().is_empty(), "no pending job is left");
}

// spec: MIGR-06, METR-05
#[test]
fn a_first_call_that_is_refused_leaves_the_source_alone() {
    let mut w = running_on_n("preferSpare");
    w.refuse("StartJob", 1, refused(Status::Internal, "boom"));
    let m = Move::begin(w, Strategy::Overlap);
    assert!(m.w.results[&m.caller].is_err());
    assert_eq!(m.state(), MigrationPhase::Aborted);
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "n");
    assert_eq!(m.w.metrics().placements_dispatch_failed, 1);
}

// spec: HARD-84, MIGR-20, MIGR-30
#[test]
fn there_is_no_way_back_once_the_source_was_told_to_stop() {
    let mut past = Vec::new();
    let mut m = Move::of(Strategy::StopThenStart);
    m.prepared();
    past.push(m);
    let mut m = Move::of(Strategy::Overlap);
    m.target_runs();
    past.push(m);
    past.push(Move::handover(MigrationPhase::StoppingSource));
    for m in past {
        let mut m = m.ready();
        let phase = m.state();
        let call = ApiCall::AbortMigration {
            migration_id: m.id.clone(),
            reason: "no".into(),
        };
        let id = m.w.api(call);
        assert_eq!(
            m.w.results[&id].as_ref().unwrap_err().code(),
            "pastPointOfNoReturn"
        );
        assert_eq!(m.state(), phase);
        assert!(m.w.calls().is_empty());
    }
    let mut m = Move::handover(MigrationPhase::Applying);
    let call = ApiCall::AbortMigration {
        migration_id: m.id.clone(),
        reason: "no".into(),
    };
    let id = m.w.api(call.clone());
    assert!(m.w.results[&id].is_ok());
    assert_eq!(m.reason(), "no");
    let again = m.w.api(call);
    assert!(m.w.results[&again].is_ok(), "an ended one: nothing to do");
}

// spec: HARD-85, MIGR-27
#[test]
fn both_sides_lost_is_one_loss() {
    let mut m = Move::of(Strategy::StopThenStart);
    m.w.joins("o", 4.0);
    m.w.took();
    m.w.stopping("n");
    m.w.stopping("m");
    assert_eq!(m.w.calls(), ["start a.0.e primary on o"]);
    assert_eq!(m.restarts(), 1);
    // Counted against nobody when either was reclaimed.
    for reclaimed in ["n", "m"] {
        let mut m = Move::of(Strategy::StopThenStart);
        m.prepared();
        m.w.api(ApiCall::HandleNodeInterruption {
            node_id: reclaimed.into(),
            kind: InterruptionKind::SpotInterruption,
            deadline: None,
            options: DrainOptions::default(),
        });
        m.w.stopping("n");
        m.w.stopping("m");
        assert_eq!(m.state(), MigrationPhase::Aborted, "{reclaimed}");
        assert_eq!(m.restarts(), 0, "{reclaimed}");
    }
}

// spec: HARD-86, MIGR-14
#[test]
fn a_signal_counts_once_from_its_side_in_its_phase() {
    let mut m = Move::handover(MigrationPhase::Launching).ready();
    m.signal("source", MigrationSignal::TargetReady(vec![9].into()));
    assert!(m.w.moves().is_empty(), "from the wrong side");
    m.signal("target", MigrationSignal::TargetReady(vec![2].into()));
    m.signal("target", MigrationSignal::TargetReady(vec![2].into()));
    assert_eq!(
        m.w.moves(),
        [
            "call NotifyMigrationCutoverReady",
            "onMigrationPhase awaitingSourceStop"
        ]
    );
    m.id = MigrationId::new("another");
    let key = InstanceKey::new("a.0.e".into(), "primary".into());
    m.w.send(StreamEvent::Migration {
        key,
        migration_id: m.id.clone(),
        signal: MigrationSignal::SourceStoppedOutput(Payload::default()),
    });
    assert!(m.w.moves().is_empty(), "of another migration");
}

// spec: HARD-56, MIGR-22
#[test]
fn a_rejected_target_is_no_rejection_of_the_source() {
    for (policy, code) in [
        ("drop", RejectionCode::Capacity),
        ("preferSpare", RejectionCode::InvalidSpec),
    ] {
        let mut m = Move::begin(running_on_n(policy), Strategy::Overlap).ready();
        m.w.rejects("a.0.e", "m", code, "no");
        let moves = m.w.moves();
        assert_eq!(
            moves[..2],
            ["onJobRejected a.0.e", "onMigrationPhase aborted"]
        );
        assert!(!moves.iter().any(|line| line.contains("markJobFailed")));
        assert_eq!(m.w.node_of("a.0.e").unwrap(), "n");
        assert_eq!(m.restarts(), 0);
    }
}

// spec: HARD-92, MIGR-32
#[test]
fn a_job_deleted_on_the_way_ends_it_without_a_call() {
    let mut m = Move::handover(MigrationPhase::Applying).ready();
    m.w.send(StreamEvent::JobDeleted("a.0.e".into()));
    assert_eq!(
        m.w.moves(),
        [
            "onMigrationPhase aborted",
            "onMigrationAborted jobDeleted",
            "onJobDeleted a.0.e"
        ]
    );
    assert!(m.w.policy.nodes().iter().all(|node| node.jobs.is_empty()));
    m.w.at(600 * SECOND);
    assert!(m.w.moves().is_empty());
}

// spec: MIGR-32
#[test]
fn a_job_that_turns_dormant_stops_a_started_target_and_is_not_recovered() {
    let mut m = Move::of(Strategy::Overlap).ready();
    m.w.job_mut("a.0.e")
        .job
        .tags
        .insert("startMode".into(), "manual".into());
    m.w.tell("a.0.e");
    assert_eq!(
        m.w.moves(),
        [
            "onMigrationPhase aborted",
            "call stop a.0.e/primary@ on m",
            "onMigrationAborted the job is dormant"
        ]
    );
    assert_eq!(m.w.node_of("a.0.e").unwrap(), "n");
}

// spec: HARD-93, PLACE-17, RECOV-07
#[test]
fn a_migration_neither_avoids_nor_prefers_spares() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle(
        "a",
        json!([needing(
            "e",
            json!({"requiredCapacity": 1, "onRuntimeFailure": "preferSpare"})
        )]),
    ));
    w.runs("a.0.e");
    w.joins("b", 4.0);
    w.tag("s", "own", "spare", "true");
    w.joins("s", 4.0);
    let m = Move::begin(w, Strategy::Overlap);
    let state = m.w.policy.migration_by_id(&m.id).unwrap();
    assert_eq!(
        state.target_node_id.as_ref().unwrap().as_str(),
        "b",
        "the id decides"
    );
}

// spec: HARD-94, MIGR-21
#[test]
fn answers_to_the_sources_stop() {
    let answered = |status: Option<Status>| {
        let mut m = Move::of(Strategy::Overlap);
        match status {
            Some(status) => m.w.refuse("StopJob", 1, refused(status, "x")),
            None => m.w.hold = true,
        }
        m.target_runs();
        m
    };
    assert_eq!(
        answered(Some(Status::NotFound)).state(),
        MigrationPhase::Done
    );
    let refused = answered(Some(Status::FailedPrecondition));
    assert_eq!(refused.state(), MigrationPhase::Aborted);
    assert_eq!(refused.w.node_of("a.0.e").unwrap(), "n");
    let mut silent = answered(None);
    assert_eq!(silent.state(), MigrationPhase::StoppingSource);
    silent.w.at(40 * SECOND);
    assert_eq!(silent.state(), MigrationPhase::Done);
}

// spec: HARD-95, MIGR-07, RESV-03, PORT-04
#[test]
fn the_room_is_taken_on_both_sides_until_it_is_done() {
    let mut w = World::with(fixed(), &[("n", 1.0)]);
    w.submit(bundle(
        "a",
        json!([needing(
            "e",
            json!({"requiredCapacity": 1, "onRuntimeFailure": "preferSpare"})
        )]),
    ));
    w.runs("a.0.e");
    w.joins("m", 1.0);
    w.at(10_000);
    let mut m = Move::begin(w, Strategy::Overlap);
    m.w.submit(bundle("b", json!([job("e")])));
    assert_eq!(m.w.node_of("b.0.e"), None);
    m.target_runs();
    m.source_stopped();
    assert_eq!(m.w.node_of("b.0.e").unwrap(), "n");
}

// spec: HARD-96, LIFE-03, LIFE-04, LIFE-05
#[test]
fn a_close_rolls_back_what_it_can_and_waits_for_the_answers() {
    let mut m = Move::of(Strategy::StopThenStart).ready();
    m.w.hold = true;
    m.w.api(ApiCall::Close);
    assert_eq!(
        m.w.moves(),
        [
            "onMigrationPhase aborted",
            "call abortMigration a.0.e primary@",
            "call stop a.0.e/primary@ on m",
            "onMigrationAborted closed"
        ],
        "not closed before the calls are answered"
    );
    let (first, _) = m.w.next_call();
    let (second, _) = m.w.next_call();
    m.w.answer_one(first, Ok(greenroom_types::call::Reply::Done));
    assert!(m.w.took().is_empty());
    m.w.answer_one(second, Ok(greenroom_types::call::Reply::Done));
    assert_eq!(m.w.took(), ["close in order"]);

    let mut m = Move::of(Strategy::StopThenStart);
    m.prepared();
    m.w.took();
    m.w.hold = true;
    m.w.api(ApiCall::Close);
    let moves = m.w.moves();
    assert!(
        moves.contains(&"call startPrepared a.0.e/primary@ on m".to_owned()),
        "{moves:?}"
    );
    assert!(moves.contains(&"onError migrationLost".to_owned()));
    m.w.at(m.w.now.mono.0 + 4_999);
    assert!(m.w.took().is_empty());
    m.w.at(m.w.now.mono.0 + 1);
    assert_eq!(m.w.took(), ["close in order"]);
    assert!(m.w.policy.next_deadline().is_none());

    // The source is gone already: the target is all there is.
    let mut m = Move::of(Strategy::StopThenStart).ready();
    m.w.stopping("n");
    m.w.took();
    m.w.api(ApiCall::Close);
    assert_eq!(
        m.w.moves(),
        [
            "onMigrationPhase aborted",
            "onMigrationAborted closed",
            "onError migrationLost",
            "close in order"
        ]
    );

    // Its start was sent already.
    let mut m = Move::of(Strategy::StopThenStart);
    m.prepared();
    m.source_stopped();
    assert_eq!(m.state(), MigrationPhase::StartingTarget);
    m.w.took();
    m.w.api(ApiCall::Close);
    assert!(m.w.calls().is_empty());

    // The target was told to take over: the next instance goes on with that.
    let mut m = Move::handover(MigrationPhase::Applying);
    m.w.took();
    m.w.api(ApiCall::Close);
    assert_eq!(
        m.w.moves(),
        [
            "onMigrationPhase aborted",
            "onMigrationAborted closed",
            "onError migrationLost",
            "close in order"
        ]
    );

    let mut m = Move::handover(MigrationPhase::Proposing);
    m.w.api(ApiCall::Close);
    assert_eq!(
        m.w.results[&m.caller].as_ref().unwrap_err().code(),
        "closed"
    );
}

// spec: HARD-102, LIFE-07
#[test]
fn a_broken_stream_winds_a_migration_down_as_a_close_does() {
    let mut m = Move::of(Strategy::Overlap).ready();
    m.w.handle(Event::Closed {
        error: Some("reset".into()),
    });
    let moves = m.w.moves();
    assert!(moves.contains(&"onMigrationAborted closed".to_owned()));
    assert_eq!(moves.last().unwrap(), "close reset");
    m.w.at(600 * SECOND);
    assert!(m.w.took().is_empty());
}

// spec: MIGR-33
#[test]
fn ended_migrations_are_still_shown() {
    let mut m = Move::of(Strategy::Overlap);
    m.w.stopping("m");
    assert!(m.w.policy.migration_for_job(&JobId::new("a.0.e")).is_none());
    assert_eq!(m.w.policy.migrations().len(), 1);
    assert!(m.w.policy.migration_by_id(&m.id).is_some());
    // Nothing takes the job now, so each ends at once: they push out only each other.
    for _ in 0..1_001 {
        m.w.api(ApiCall::MigrateJob {
            job_id: "a.0.e".into(),
            options: MigrateOptions::default(),
        });
    }
    let shown = m.w.policy.migrations();
    assert_eq!(shown.len(), 2);
    assert!(shown.iter().any(|it| it.migration_id == m.id));
}

// spec: MIGR-33
#[test]
fn a_thousand_that_had_a_target_are_kept() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    w.joins("@1", 4.0);
    w.runs("a.0.e");
    let mut ids = Vec::new();
    for _ in 0..1_002 {
        let id = w.api(ApiCall::MigrateJob {
            job_id: "a.0.e".into(),
            options: MigrateOptions::default(),
        });
        let Ok(ApiAnswer::Migration(id)) = w.results[&id].clone() else {
            panic!("{:?}", w.results[&id])
        };
        ids.push(id.clone());
        w.api(ApiCall::AbortMigration {
            migration_id: id,
            reason: "no".to_owned(),
        });
    }
    assert_eq!(w.policy.migrations().len(), 1_000);
    let kept = |id| w.policy.migration_by_id(id).is_some();
    assert!(!kept(&ids[1]) && kept(&ids[2]), "the oldest go");
}

// spec: BIND-08, MIGR-29
#[test]
fn the_target_of_an_abort_is_stopped_once_whatever_the_stream_still_says_of_it() {
    let mut m = Move::handover(MigrationPhase::AwaitingTargetReady).ready();
    let id = m.id.clone();
    m.w.api(ApiCall::AbortMigration {
        migration_id: id,
        reason: "no".to_owned(),
    });
    m.w.tell("a.0.e");
    let stops = |w: &mut World| {
        let calls = w.calls();
        let stops = calls
            .iter()
            .filter(|call| call.starts_with("call stop") || call.starts_with("stop"));
        stops.count()
    };
    assert_eq!(stops(&mut m.w), 1);
    m.w.at(15_000);
    assert_eq!(stops(&mut m.w), 1, "still shown as running 5 s later");
}
