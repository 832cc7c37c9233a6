//! What the policy keeps of a job, and what makes a job one to be placed (BIND, BUNDLE, PEND, RECOV).

use greenroom_policy::job::{BindingState, Standing};
use greenroom_policy::migration::{MigrateOptions, Strategy};
use greenroom_policy::{ApiCall, Effect};
use greenroom_types::bundle::BundleState;
use greenroom_types::call::{Call, Status};
use greenroom_types::job::{JobInfo, JobInfoKind, JobState, MANUAL, Stage, TAG_START_MODE};
use greenroom_types::node::{InstanceKey, RejectionCode};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{JobId, StartId, Wall};
use serde_json::json;

use crate::world::{World, bundle, fixed, job, needing, refused};

fn standing(w: &World, id: &str) -> Standing {
    w.policy.explain(&JobId::new(id)).standing.unwrap()
}

fn binding(w: &World, id: &str) -> Option<BindingState> {
    w.policy.explain(&JobId::new(id)).binding
}

fn overlap(w: &mut World, id: &str) {
    w.api(ApiCall::MigrateJob {
        job_id: id.into(),
        options: MigrateOptions {
            strategy: Strategy::Overlap,
            ..MigrateOptions::default()
        },
    });
}

// spec: BIND-01, BIND-02
#[test]
fn one_record_holds_all_that_is_known_of_a_jobs_place() {
    let mut w = World::with(fixed(), &[("n", 4.0), ("m", 4.0)]);
    let id = JobId::new("a.0.e");
    w.hold = true;
    w.submit(bundle("a", json!([job("e")])));
    // Bound by the decision; the start is not answered yet.
    let why = w.policy.explain(&id);
    assert_eq!(why.binding, Some(BindingState::Placing));
    let node = why.node_id.unwrap();
    assert_eq!(w.policy.node_for_job(&id), Some(&node));
    assert_eq!(why.record.unwrap().node_id, Some(node.clone()));
    w.hold = false;
    w.answer();
    assert_eq!(binding(&w, "a.0.e"), Some(BindingState::Placed));
    w.runs("a.0.e");
    assert_eq!(binding(&w, "a.0.e"), Some(BindingState::Running));
    // The migration that claims it, and its active key until that is done.
    overlap(&mut w, "a.0.e");
    let migration = w.policy.migration_for_job(&id).unwrap();
    assert_eq!(migration.source_role.as_str(), "primary");
    assert_eq!(w.policy.node_for_job(&id), Some(&node));
    // The gate of a launch that came to nothing, and the retry of a start that failed.
    w.refuse("StartJob", 1, refused(Status::Internal, "no"));
    w.submit(bundle("b", json!([job("e")])));
    let why = w.policy.explain(&JobId::new("b.0.e"));
    assert_eq!(why.standing, Some(Standing::StartRetry));
    assert_eq!(why.waits_for.unwrap().0, 5_000);
    assert_eq!(why.binding, None);
    assert!(why.record.is_some(), "the last decision stays on record");
}

// spec: BIND-04
#[test]
fn placement_starts_one_instance_and_a_second_is_the_target_of_a_migration() {
    let mut w = World::with(fixed(), &[("n", 4.0), ("m", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    let starts = |w: &World| -> Vec<String> {
        w.all
            .iter()
            .filter_map(|effect| match effect {
                Effect::Call {
                    call: Call::StartJob(start),
                    ..
                } => Some(start.role.to_string()),
                _ => None,
            })
            .collect()
    };
    for at in 1..20 {
        w.at(at * 700);
        w.tell("a.0.e");
        w.tell_bundle("a");
        w.picture("n", 4.0);
        w.hello("m");
    }
    w.runs("a.0.e");
    w.picture("m", 4.0);
    assert_eq!(starts(&w), ["primary"]);
    overlap(&mut w, "a.0.e");
    overlap(&mut w, "a.0.e");
    let roles = starts(&w);
    assert_eq!(roles.len(), 2);
    assert!(roles[1].starts_with("primary@"), "{roles:?}");
}

// spec: BIND-06
#[test]
fn only_a_report_of_its_very_key_and_node_makes_it_running() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.joins("m", 4.0);
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    for (role, node) in [("backup", "n"), ("primary", "m"), ("primary@12345678", "n")] {
        let start_id = w.started_before("a.0.e", role, node);
        w.run_of("a.0.e", role, node, &start_id);
        w.tell("a.0.e");
        assert_eq!(
            binding(&w, "a.0.e"),
            Some(BindingState::Placed),
            "{role} {node}"
        );
        assert_eq!(w.node_of("a.0.e").unwrap(), "n");
    }
    w.runs("a.0.e");
    assert_eq!(binding(&w, "a.0.e"), Some(BindingState::Running));
}

// spec: BUNDLE-12, PEND-01
#[test]
fn each_condition_by_itself_keeps_a_job_from_being_placed() {
    // No room, so that a placeable job shows as pending.
    let world = || {
        let mut w = World::with(fixed(), &[]);
        w.submit(bundle("a", json!([job("e"), job("f")])));
        assert_eq!(standing(&w, "a.0.e"), Standing::Pending);
        w
    };
    let mut w = world();
    w.job_mut("a.0.e").job.auto_placement = None;
    w.tell("a.0.e");
    assert_eq!(standing(&w, "a.0.e"), Standing::NotPlacedByPolicy);

    for tag in ["bundleId", "replicaIndex", "jobName"] {
        let mut w = world();
        w.job_mut("a.0.e").job.tags.remove(tag);
        w.tell("a.0.e");
        assert_eq!(standing(&w, "a.0.e"), Standing::NotPlacedByPolicy, "{tag}");
    }

    let mut w = world();
    let dormant = (TAG_START_MODE.to_owned(), MANUAL.to_owned());
    w.job_mut("a.0.e").job.tags.extend([dormant]);
    w.tell("a.0.e");
    assert_eq!(standing(&w, "a.0.e"), Standing::Dormant);

    let mut w = world();
    w.verdict("a.0.e", "bad");
    w.tell("a.0.e");
    let reason = "bad".to_owned();
    assert_eq!(standing(&w, "a.0.e"), Standing::Terminal { reason });

    let mut w = world();
    w.job_mut("a.0.e").state = JobState::Post;
    w.tell("a.0.e");
    assert_eq!(standing(&w, "a.0.e"), Standing::Over);
    w.job_mut("a.0.e").state = JobState::Active;
    w.tell("a.0.e");
    assert_eq!(standing(&w, "a.0.e"), Standing::Pending, "active will do");

    let mut w = World::with(fixed(), &[]);
    w.store(&bundle("a", json!([job("e")])));
    w.tell("a.0.e");
    assert_eq!(standing(&w, "a.0.e"), Standing::BundleUnknown);

    let mut w = world();
    let status = w.bundles.get_mut("a").unwrap();
    status.bundle.jobs.remove(0);
    w.tell_bundle("a");
    assert_eq!(standing(&w, "a.0.e"), Standing::SpecUnknown);

    let mut w = world();
    w.set_bundle_state("a", BundleState::Deleting);
    assert_eq!(standing(&w, "a.0.e"), Standing::BundleNotLive);

    // A verdict of this instance, and with it the bundle: both before the Manager shows anything.
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e"), job("f")])));
    w.hold = true;
    w.rejects("a.0.e", "n", RejectionCode::InvalidSpec, "no such flag");
    assert!(matches!(standing(&w, "a.0.e"), Standing::Terminal { .. }));
    w.fails("a.0.f");
    assert!(matches!(
        standing(&w, "a.0.f"),
        Standing::BundleBroken { .. }
    ));

    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    assert_eq!(standing(&w, "a.0.e"), Standing::Bound);
}

// spec: PEND-01
#[test]
fn who_waits_for_schedule_retry_or_spacing_is_not_pending() {
    let mut w = World::with(fixed(), &[]);
    let mut a = bundle("a", json!([job("e")]));
    a.start_date_time = Some(w.now.wall.plus(60_000));
    w.submit(a);
    assert!(matches!(standing(&w, "a.0.e"), Standing::Scheduled { .. }));
    w.joins("n", 4.0);
    w.refuse("StartJob", 1, refused(Status::Internal, "no"));
    w.submit(bundle("b", json!([job("e")])));
    assert_eq!(standing(&w, "b.0.e"), Standing::StartRetry);
    w.submit(bundle("c", json!([job("e")])));
    w.runs("c.0.e");
    w.fails("c.0.e");
    w.runs("c.0.e");
    w.fails("c.0.e");
    assert_eq!(standing(&w, "c.0.e"), Standing::RecoverySpacing);
    let before = w.metrics().placements_attempted;
    w.picture("n", 5.0);
    assert_eq!(
        w.metrics().placements_attempted,
        before,
        "a pass leaves them"
    );
}

fn failing(policy: &str) -> World {
    let mut w = World::with(fixed(), &[("n", 16.0)]);
    let needs = json!({"requiredCapacity": 1, "onRuntimeFailure": policy, "maxRestartsPerHour": 1});
    w.submit(bundle("a", json!([needing("e", needs), job("f")])));
    w.runs("a.0.e");
    w.runs("a.0.f");
    w.took();
    w
}

// spec: RECOV-05
#[test]
fn a_loss_is_judged_in_one_order() {
    // An invalid specification before drop: the verdict is the worker's reason.
    let mut w = failing("drop");
    w.hold = true;
    w.rejects("a.0.e", "n", RejectionCode::InvalidSpec, "no such flag");
    let (_, call) = w.next_call();
    let Call::MarkJobFailed { reason, .. } = call else {
        panic!("a verdict, not {call:?}")
    };
    assert!(reason.contains("no such flag"), "{reason}");

    // Drop before a broken bundle: the job gets its verdict all the same.
    let mut w = failing("drop");
    w.rejects("a.0.f", "n", RejectionCode::InvalidSpec, "");
    assert!(w.is_broken("a"));
    w.took();
    w.fails("a.0.e");
    assert!(w.calls().contains(&"markJobFailed a.0.e".to_owned()));

    // A broken bundle before the count: nothing is done, nothing counted.
    let mut w = failing("preferSpare");
    w.rejects("a.0.f", "n", RejectionCode::InvalidSpec, "");
    w.took();
    w.fails("a.0.e");
    assert!(w.calls().is_empty());
    assert_eq!(w.restarts("a.0.e"), 0);

    // The ceiling before the spacing: the second failure within 5 s trips at once.
    let mut w = failing("preferSpare");
    w.fails("a.0.e");
    w.runs("a.0.e");
    w.took();
    w.fails("a.0.e");
    assert_eq!(w.calls(), ["markJobFailed a.0.e"]);

    // The spacing before placement: counted now, placed later.
    let mut w = World::with(fixed(), &[("n", 16.0)]);
    w.submit(bundle("a", json!([job("e")])));
    for _ in 0..2 {
        w.runs("a.0.e");
        w.took();
        w.fails("a.0.e");
    }
    assert!(w.calls().is_empty());
    assert_eq!(w.restarts("a.0.e"), 2);
    w.at(5_000);
    assert_eq!(w.calls(), ["start a.0.e primary on n"]);
}

// spec: WORK-37
#[test]
fn the_last_news_of_a_start_is_told_until_it_runs() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    let progress = |w: &World| w.policy.explain(&"a.0.e".into()).progress;
    assert_eq!(progress(&w), None);
    for (role, text) in [
        ("primary", "first"),
        ("primary", "second"),
        ("primary@0", "other"),
    ] {
        w.send(StreamEvent::JobInfo(JobInfo {
            key: InstanceKey::new("a.0.e".into(), role.into()),
            start_id: StartId::default(),
            at: Wall(5),
            kind: JobInfoKind::Stage {
                stage: Stage::Build,
                text: text.to_owned(),
            },
        }));
    }
    assert_eq!(progress(&w), Some((Wall(5), "second".to_owned())));
    w.runs("a.0.e");
    assert_eq!(progress(&w), None);
    w.rejects("a.0.e", "n", RejectionCode::Capacity, "");
    assert_eq!(progress(&w), None, "it was of the start before");
}
