//! The surface: settings that change and that do not, what callbacks and getters promise (CONF, CALLB,
//! METR, VALID, BUNDLE).

use std::collections::BTreeSet;

use greenroom_policy::drain::DrainOptions;
use greenroom_policy::migration::{MigrateOptions, Strategy};
use greenroom_policy::settings::{
    CLOSE_ABORT_GRACE, DEFAULT_DRAIN_TIMEOUT, DEFAULT_REBALANCE_DRAIN,
    DEFAULT_SPOT_INTERRUPTION_DRAIN, MIN_PLACEMENT_INTERVAL, MIN_RECOVERY_INTERVAL, ORPHAN_WAIT,
    RESTART_WINDOW, SPARE_PROVISION_RETRY_BACKOFF, SPARE_TERMINATE_RETRY_BACKOFF, SPARE_UNFIT_WAIT,
    SPOT_INTERRUPTION_DRAIN_MARGIN,
};
use greenroom_policy::spare::HotSpareChanges;
use greenroom_policy::{ApiCall, Callback, Effect, Event, Settings};
use greenroom_types::bundle::{Bundle, BundleJob, OnLaunch, Resilience, SameAz, StartMode};
use greenroom_types::call::Call;
use greenroom_types::node::{InstanceKey, InterruptionKind, RejectionCode};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{JobName, NodeId};
use serde_json::{Value, json};

use crate::world::{World, bundle, cloud, fixed, job, needing, settings, sized};

fn callbacks(w: &World) -> Vec<&Callback> {
    w.all
        .iter()
        .filter_map(|effect| match effect {
            Effect::Callback(callback) => Some(callback),
            _ => None,
        })
        .collect()
}

// spec: CONF-10
#[test]
fn constants_are_constant() {
    let seconds = [
        (MIN_PLACEMENT_INTERVAL, 1),
        (MIN_RECOVERY_INTERVAL, 5),
        (RESTART_WINDOW, 3_600),
        (SPARE_PROVISION_RETRY_BACKOFF, 60),
        (SPARE_UNFIT_WAIT, 60),
        (SPARE_TERMINATE_RETRY_BACKOFF, 60),
        (ORPHAN_WAIT, 60),
        (DEFAULT_DRAIN_TIMEOUT, 600),
        (SPOT_INTERRUPTION_DRAIN_MARGIN, 30),
        (DEFAULT_SPOT_INTERRUPTION_DRAIN, 90),
        (DEFAULT_REBALANCE_DRAIN, 300),
        (CLOSE_ABORT_GRACE, 5),
    ];
    for (constant, expected) in seconds {
        assert_eq!(constant.0, expected * 1_000);
    }
    for key in [
        "minPlacementIntervalMs",
        "minRecoveryIntervalMs",
        "restartWindowMs",
        "spareProvisionRetryBackoffMs",
        "spareUnfitWaitMs",
        "defaultDrainTimeoutMs",
        "spotInterruptionDrainMarginMs",
        "defaultSpotInterruptionDrainMs",
        "defaultRebalanceDrainMs",
        "closeAbortGraceMs",
    ] {
        let tree = json!({"url": "h:1", key: 7});
        let faults = Settings::parse(&tree).unwrap_err().faults;
        assert_eq!(faults[0].code.name(), "unknownKey", "{key}");
    }
}

// spec: CONF-16
#[test]
fn spares_and_template_images_are_all_that_changes_while_it_lives() {
    let mut w = World::with(fixed(), &[("n", 4.0), ("m", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    let before = w.policy.settings().clone();
    let node_id = NodeId::new("m");
    let spec = Box::new(bundle("b", json!([job("e")])));
    let calls = [
        ApiCall::CreateBundle {
            bundle: spec.clone(),
        },
        ApiCall::UpdateBundle { bundle: spec },
        ApiCall::StartBundleJob {
            bundle_id: "a".into(),
            replica_index: 0,
            job_name: "e".into(),
        },
        ApiCall::StopBundleJob {
            bundle_id: "a".into(),
            replica_index: 0,
            job_name: "e".into(),
            grace_ms: None,
        },
        ApiCall::SetBundleStopTime {
            bundle_id: "a".into(),
            stop_at: None,
        },
        ApiCall::DeleteBundle {
            bundle_id: "b".into(),
        },
        ApiCall::MigrateJob {
            job_id: "a.0.e".into(),
            options: MigrateOptions::default(),
        },
        ApiCall::AbortMigration {
            migration_id: "x".into(),
            reason: String::new(),
        },
        ApiCall::UpdateHotSpareNode {
            node_id: node_id.clone(),
            changes: HotSpareChanges::default(),
        },
        ApiCall::CordonNode {
            node_id: node_id.clone(),
        },
        ApiCall::UncordonNode {
            node_id: node_id.clone(),
        },
        ApiCall::DrainNode {
            node_id: node_id.clone(),
            options: DrainOptions::default(),
        },
        ApiCall::HandleNodeInterruption {
            node_id: node_id.clone(),
            kind: InterruptionKind::Rebalance,
            deadline: None,
            options: DrainOptions::default(),
        },
        ApiCall::TerminateNode {
            node_id: node_id.clone(),
        },
        ApiCall::EvictNode { node_id },
    ];
    for call in calls {
        w.api(call);
        assert_eq!(*w.policy.settings(), before);
    }
    w.api(ApiCall::UpdateHotSpareSpecs {
        hot_spares: json!([{"pool": "p", "targetCount": 1}]),
    });
    w.api(ApiCall::SetTemplateImages {
        template: "enc".into(),
        refs: vec!["a".to_owned()],
    });
    let mut changed = before;
    let now = w.policy.settings().clone();
    assert_ne!(now.hot_spares, changed.hot_spares);
    assert_ne!(now.template_images, changed.template_images);
    changed.hot_spares.clone_from(&now.hot_spares);
    changed.template_images.clone_from(&now.template_images);
    assert_eq!(now, changed, "nothing else");
}

// spec: CONF-17
#[test]
fn what_a_provider_has_is_for_the_manager_to_know() {
    // Neither the region nor the shape exists anywhere; both are passed on as they stand.
    let tier = json!({"name": "t1", "kind": "aws", "scaleOut": "elastic", "region": "mars-north-9",
        "candidateInstanceTypes":
            [{"instanceType": "z99.mega", "totalCapacity": 4, "totalCores": 4}]});
    let mut w = World::with(json!([{"name": "p", "tiers": [tier]}]), &[]);
    w.submit(bundle("a", json!([job("e")])));
    let (_, call) = {
        let create = w.all.iter().find_map(|effect| match effect {
            Effect::Call { call_id, call } => Some((*call_id, call.clone())),
            _ => None,
        });
        create.unwrap()
    };
    let Call::CreateAwsNode(create) = call else {
        panic!("a node is bought")
    };
    assert_eq!(create.region, "mars-north-9");
    assert_eq!(create.instance_type, "z99.mega");
}

// spec: BUNDLE-01
#[test]
fn a_bundle_as_it_is_written() {
    let short: Bundle =
        serde_json::from_value(json!({"bundleId": "a", "pool": "p", "jobs": [job("e")]})).unwrap();
    assert_eq!(short.copies(), 1);
    assert_eq!(short.on_launch, OnLaunch::AvoidSpare);
    assert!(!short.override_reservation);
    assert_eq!(short.intra_replica_placement.same_az, SameAz::Soft);
    assert!(short.start_date_time.is_none() && short.backup_parameter_overrides.is_empty());
    let long = json!({"bundleId": "a", "pool": "p", "jobs": [job("e")],
        "resiliencePolicy": {"sameAz": "forbid", "pool": "q"},
        "intraReplicaPlacement": {"sameAz": "off"}, "onLaunch": "allowSpare",
        "overrideReservation": true, "backupParameterOverrides": {"HOST": "b"}});
    let long: Bundle = serde_json::from_value(long).unwrap();
    assert_eq!(long.copies(), 2);
    assert_eq!(long.pool_of(1).as_str(), "q");
    let pools = json!({"bundleId": "a", "pool": "p", "pools": ["p"], "jobs": [job("e")]});
    assert!(serde_json::from_value::<Bundle>(pools).is_err());
    let w = World::with(fixed(), &[]);
    let findings = w.policy.validate_bundle(&bundle("a", json!([])));
    let codes: Vec<&str> = findings.errors.iter().map(|f| f.code.name()).collect();
    assert_eq!(codes, ["noJobs"]);
    // The time of the bundle is that of its jobs, unless they have their own.
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let (soon, later) = (w.now.wall.plus(60_000), w.now.wall.plus(120_000));
    let mut timed = bundle("a", json!([job("e"), job("f")]));
    timed.start_date_time = Some(soon);
    timed.jobs[1].start_date_time = Some(later);
    w.submit(timed);
    let waits: Vec<_> = w
        .policy
        .pending_placements()
        .iter()
        .map(|job| (job.job_id.to_string(), job.scheduled_for))
        .collect();
    assert_eq!(
        waits,
        [("a.0.e".to_owned(), soon), ("a.0.f".to_owned(), later)]
    );
}

// spec: BUNDLE-03
#[test]
fn a_job_as_it_is_written() {
    let short: BundleJob = serde_json::from_value(job("e")).unwrap();
    assert!(!short.exclusive && !short.single_use && !short.handover);
    assert_eq!(short.start_mode, StartMode::Auto);
    assert!(short.lease.is_none() && short.start_date_time.is_none());
    assert!(short.co_locate_with.is_empty() && short.separate_from.is_empty());
    let long = json!({"jobName": "e", "coLocateWith": ["f"], "separateFrom": ["g"],
        "exclusive": true, "singleUse": true, "startMode": "manual", "handover": true,
        "lease": {"ttlMs": 9000}, "launch": {"services": [{"name": "svc"}]}});
    let long: BundleJob = serde_json::from_value(long).unwrap();
    assert!(long.exclusive && long.single_use && long.handover);
    assert_eq!(long.start_mode, StartMode::Manual);
    assert_eq!(long.lease.unwrap().ttl_ms.0, 9_000);
    assert_eq!(long.launch.services[0].name, "svc");
    let template = json!({"jobName": "e",
        "launch": {"template": "enc", "parameters": {"RATE": "5"}}});
    let template: BundleJob = serde_json::from_value(template).unwrap();
    assert_eq!(template.launch.template.unwrap().as_str(), "enc");
    assert_eq!(template.launch.parameters["RATE"], "5");
}

// spec: BUNDLE-15
#[test]
fn parameters_of_the_backup_do_not_place_it() {
    let w = World::with(fixed(), &[("n", 4.0), ("m", 2.0)]);
    let mut plain = bundle("a", json!([job("e")]));
    plain.resilience_policy = Some(Resilience::default());
    let mut other = plain.clone();
    other
        .backup_parameter_overrides
        .insert("HOST".to_owned(), "b".to_owned());
    for copy in [0, 1] {
        let name = JobName::new("e");
        assert_eq!(
            w.policy.place_dry_run(&plain, copy, Some(&name)),
            w.policy.place_dry_run(&other, copy, Some(&name))
        );
    }
}

// spec: CALLB-04
#[test]
fn errors_and_failed_placements_go_to_on_error() {
    let mut w = World::with(fixed(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    let took = w.took();
    assert_eq!(
        took[2..],
        [
            "decide a.0.e failure",
            "onPlacementFailed a.0.e",
            "onError noCapacityInAnyPool"
        ]
    );
    w.handle(Event::Unreadable {
        error: "?".to_owned(),
    });
    assert_eq!(w.took(), ["onError unreadableEvent"]);
}

// spec: CALLB-07, HEALTH-01
#[test]
fn every_rejection_is_told_and_every_drop() {
    let mut w = World::with(fixed(), &[("n", 16.0)]);
    let drop = needing(
        "d",
        json!({"requiredCapacity": 1, "essential": false, "onRuntimeFailure": "drop"}),
    );
    let spec = needing("s", json!({"requiredCapacity": 1, "essential": false}));
    let once = json!({"requiredCapacity": 1, "essential": false, "maxRestartsPerHour": 0});
    let ceiling = needing("c", once);
    w.submit(bundle("a", json!([drop, spec, ceiling, job("e")])));
    w.took();
    // Of the bound instance, of a role that is nobody's, and of a job that is not known.
    w.rejects("a.0.e", "n", RejectionCode::Disk, "");
    for (job_id, role) in [("a.0.d", "primary@00000000"), ("x.0.e", "primary")] {
        w.send(StreamEvent::JobRejected {
            node_id: "n".into(),
            key: InstanceKey::new(job_id.into(), role.into()),
            start_id: Default::default(),
            code: RejectionCode::Disk,
            reason: String::new(),
            inventory: None,
        });
    }
    let told = |w: &mut World, name: &str| -> Vec<String> {
        let lines = w.took();
        let mine = lines.into_iter().filter(|line| line.starts_with(name));
        mine.collect()
    };
    assert_eq!(
        told(&mut w, "onJobRejected"),
        [
            "onJobRejected a.0.e",
            "onJobRejected a.0.d",
            "onJobRejected x.0.e"
        ]
    );
    w.fails("a.0.d");
    w.fails("a.0.c");
    w.rejects("a.0.s", "n", RejectionCode::InvalidSpec, "");
    assert_eq!(
        told(&mut w, "onJobDropped"),
        [
            "onJobDropped a.0.d",
            "onJobDropped a.0.c",
            "onJobDropped a.0.s"
        ]
    );
}

// spec: CALLB-12
#[test]
fn migrations_drains_and_notices_are_told() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.joins("m", 4.0);
    w.took();
    let strategy = Strategy::Overlap;
    w.api(ApiCall::DrainNode {
        node_id: "n".into(),
        options: DrainOptions {
            strategy: Some(strategy),
            ..DrainOptions::default()
        },
    });
    w.send(StreamEvent::NodeInterruptionNotice {
        node_id: "n".into(),
        kind: InterruptionKind::Rebalance,
        deadline: None,
        noticed_at: w.now.wall,
    });
    w.stopping("m");
    let names: BTreeSet<String> = w
        .took()
        .iter()
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect();
    for name in [
        "onMigrationPhase",
        "onMigrationAborted",
        "drain",
        "onNodeInterrupted",
    ] {
        assert!(names.contains(name), "{name} is missing in {names:?}");
    }
    w.joins("o", 4.0);
    w.took();
    w.api(ApiCall::MigrateJob {
        job_id: "a.0.e".into(),
        options: MigrateOptions {
            strategy,
            ..MigrateOptions::default()
        },
    });
    w.runs("a.0.e");
    w.stopping("n");
    let completed = callbacks(&w)
        .into_iter()
        .filter(|callback| matches!(callback, Callback::OnMigrationCompleted { .. }));
    assert_eq!(completed.count(), 1);
}

// spec: CALLB-13
#[test]
fn what_is_given_out_is_a_snapshot() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([job("e")])));
    w.joins("@1", 4.0);
    w.runs("a.0.e");
    // Changing what a getter gave changes nothing.
    let mut views = w.policy.nodes();
    views[0].tags.clear();
    views[0].jobs.clear();
    assert_ne!(w.policy.nodes()[0].tags, views[0].tags);
    assert_eq!(w.policy.nodes()[0].jobs.len(), 1);
    let mut metrics = w.metrics();
    metrics.placements_attempted = 99;
    assert_ne!(w.metrics(), metrics);
    // What a callback was given stays as it was.
    let told: Vec<Value> = callbacks(&w)
        .iter()
        .map(|callback| serde_json::to_value(callback).unwrap())
        .collect();
    w.stopping("@1");
    w.stopped("@1");
    w.send(StreamEvent::JobDeleted("a.0.e".into()));
    let after: Vec<Value> = callbacks(&w)
        .iter()
        .take(told.len())
        .map(|callback| serde_json::to_value(callback).unwrap())
        .collect();
    assert_eq!(told, after);
}

// spec: METR-02
#[test]
fn counters_only_grow() {
    // That none goes down is checked after every input of every test here.
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e"), sized("f", 99.0)])));
    let drop = needing(
        "d",
        json!({"requiredCapacity": 1, "onRuntimeFailure": "drop"}),
    );
    w.submit(bundle("b", json!([drop])));
    w.rejects("b.0.d", "n", RejectionCode::Capacity, "");
    let before = w.metrics();
    assert!(before.placements_attempted > 0 && before.placements_failed > 0);
    assert_eq!((before.jobs_rejected, before.jobs_dropped), (1, 1));
    // The end of everything that was counted takes nothing back, nor does time.
    for id in ["a.0.f", "a.0.e", "b.0.d"] {
        w.send(StreamEvent::JobDeleted(id.into()));
    }
    for id in ["a", "b"] {
        w.send(StreamEvent::BundleDeleted(id.into()));
    }
    w.at(24 * 3_600_000);
    let after = w.metrics();
    assert_eq!(after.started_at, before.started_at);
    assert_eq!(after.placements_attempted, before.placements_attempted);
    assert_eq!(after.placements_failed, before.placements_failed);
    assert_eq!((after.jobs_rejected, after.jobs_dropped), (1, 1));
}

// spec: VALID-11, BUNDLE-05
#[test]
fn what_is_submitted_is_not_validated_on_the_way() {
    let mut w = World::cold(settings(fixed(), json!({})));
    w.complete();
    let bad = Box::new(bundle("a", json!([])));
    assert!(!w.policy.validate_bundle(&bad).errors.is_empty());
    w.took();
    let created = w.api(ApiCall::CreateBundle {
        bundle: bad.clone(),
    });
    let updated = w.api(ApiCall::UpdateBundle { bundle: bad });
    assert_eq!(w.calls(), ["CreateBundle", "UpdateBundle"]);
    assert!(w.results[&created].is_ok() && w.results[&updated].is_ok());
}
