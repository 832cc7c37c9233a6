//! Rules about jobs: their definition, their starts, their end, and repeatable calls.

use crate::common::*;
use greenroom_ledger::{Config, Limits, Link, Provider};
use greenroom_types::Millis;
use greenroom_types::call::{Call, Detail, Reply, Status};
use greenroom_types::job::{
    HistoryKind, HostPort, Job, JobState, LeasePolicy, MediaVersion, PortMapping, Protocol,
    Service, StopReason, VolumeMount,
};
use greenroom_types::node::InstanceState;

// spec: JOB-01
#[test]
fn a_new_job_is_stored_as_pre_and_told() {
    let mut w = World::new();
    let reply = w.call(Call::CreateJob(Box::new(job("a")))).unwrap();
    assert!(matches!(reply, Reply::JobHash(hash) if hash > 0));
    assert_eq!(w.state("a"), Some(JobState::Pre));
    assert_eq!(w.history("a"), ["created"]);
    assert_eq!(w.last_words(), ["job a"]);
    assert!(w.last.orders.is_empty());
}

// spec: JOB-02, API-15
#[test]
fn ids_and_roles_are_checked_and_missing_ones_come_first() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let refused = |w: &mut World, id: &str| w.refused(Call::CreateJob(Box::new(job(id)))).reason;
    assert_eq!(refused(&mut w, ""), "missing_field");
    for bad in [".a", "/a", "a b", &"x".repeat(201)] {
        assert_eq!(refused(&mut w, bad), "bad_job_id", "{bad}");
    }
    assert_eq!(
        w.start_as("a", "", "n1").unwrap_err().reason,
        "missing_field"
    );
    assert_eq!(w.start_as("a", "x/y", "n1").unwrap_err().reason, "bad_role");
    let missing = w.start_as("a", "primary", "").unwrap_err();
    assert_eq!(missing.reason, "missing_field");
    assert_eq!(missing.details["path"], Detail::from("node_id"));
}

// spec: JOB-03
#[test]
fn a_known_id_is_refused_with_its_hash_also_for_equal_content() {
    let mut w = World::new();
    w.create("a");
    let refusal = w.refused(Call::CreateJob(Box::new(job("a"))));
    assert_eq!(
        (refusal.status, refusal.reason.as_str()),
        (Status::AlreadyExists, "job_exists")
    );
    let hash = w.ledger.job(&"a".into()).unwrap().view.current_hash;
    assert_eq!(refusal.details["hash"], Detail::Int(hash));
}

// spec: JOB-05
#[test]
fn every_problem_of_a_definition_is_named_with_its_path() {
    let mut w = World::new();
    let mut bad = job("a");
    let port = |host_port| PortMapping {
        container_port: 70_000,
        host_port,
        protocol: Protocol::Any,
        ..PortMapping::default()
    };
    bad.services = vec![
        Service {
            name: "A".into(),
            command: "x".into(),
            ..Service::default()
        },
        Service {
            name: "b".into(),
            depends_on: vec!["c".into(), "nobody".into()],
            ..Service::default()
        },
        Service {
            name: "c".into(),
            command: "x".into(),
            depends_on: vec!["b".into()],
            ..Service::default()
        },
    ];
    bad.services[0].parameters.port_mappings = vec![
        port(HostPort::Range { min: 9, max: 8 }),
        port(HostPort::Specific(5000)),
    ];
    bad.services[2].parameters.port_mappings = vec![PortMapping {
        container_port: 1,
        host_port: HostPort::Specific(5000),
        protocol: Protocol::Udp,
        ..PortMapping::default()
    }];
    let refusal = w.refused(Call::CreateJob(Box::new(bad)));
    assert_eq!(refusal.reason, "bad_job");
    let Detail::List(problems) = &refusal.details["problems"] else {
        panic!("{refusal:?}");
    };
    let all = format!("{problems:?}");
    for part in [
        "services[0].name",
        "container_port: port 70000",
        "min_port 9 is above max_port 8",
        "names no container and has no command",
        "\\\"nobody\\\" is not in this job",
        "depends on itself",
        "host port 5000 is taken by services[0]",
    ] {
        assert!(all.contains(part), "{part} in {all}");
    }
    let mut twice = job("a");
    twice.services.push(twice.services[0].clone());
    assert_eq!(
        w.refused(Call::CreateJob(Box::new(twice))).reason,
        "bad_job"
    );
}

// spec: JOB-05, JOB-30
#[test]
fn the_media_image_is_chosen_at_acceptance_and_kept() {
    let mut w = World::new();
    w.node("n1");
    let mut media = job("m");
    media.services.clear();
    w.call(Call::CreateJob(Box::new(media))).unwrap();
    assert_eq!(
        w.start_as("m", "primary", "n1").unwrap_err().reason,
        "no_media_image"
    );
    // A job with services runs them alone.
    w.create("a");
    let start = w.start("a", "n1");
    assert_eq!(w.ledger.instance(&start).unwrap().media_image, "");

    let table = [(MediaVersion::Recommended, "media:1".to_owned())].into();
    let mut w = World::with(Config {
        media_images: [("local".to_owned(), table)].into(),
        ..Config::default()
    });
    w.node("n1");
    w.create("a");
    let start = w.start("a", "n1");
    assert_eq!(w.ledger.instance(&start).unwrap().media_image, "media:1");
}

// spec: JOB-06
#[test]
fn an_update_replaces_the_definition_unless_the_hash_is_stale() {
    let mut w = World::new();
    w.create("a");
    let hash = w.ledger.job(&"a".into()).unwrap().view.current_hash;
    let mut new = job("a");
    new.description = "new".into();
    let stale = w.refused(Call::UpdateJob(Box::new(new.clone()), hash + 1));
    assert_eq!(stale.reason, "hash_mismatch");
    assert_eq!(stale.details["hash"], Detail::Int(hash));
    let reply = w
        .call(Call::UpdateJob(Box::new(new.clone()), hash))
        .unwrap();
    assert_ne!(reply, Reply::JobHash(hash));
    let view = w.ledger.job(&"a".into()).unwrap().view.clone();
    let HistoryKind::Updated { previous } = &view.history[1].kind else {
        panic!("{view:?}");
    };
    assert_eq!(**previous, job("a"));
    // Equal content writes nothing.
    assert_eq!(w.call(Call::UpdateJob(Box::new(new), 0)).unwrap(), reply);
    assert!(w.last.rows.is_empty() && w.last.changes.is_empty());
    assert_eq!(
        w.refused(Call::UpdateJob(Box::new(job("b")), 0)).reason,
        "unknown_job"
    );
}

// spec: JOB-07
#[test]
fn an_update_of_a_running_job_restarts_nothing_and_lists_what_waits() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.running("a", "n1");
    let mut new = job("a");
    new.services[0].command = "other".into();
    new.description = "d".into();
    w.call(Call::UpdateJob(Box::new(new), 0)).unwrap();
    assert_eq!(w.last_orders(), ["n1: update a/primary"]);
    let view = w.ledger.job(&"a".into()).unwrap().view.clone();
    assert_eq!(view.pending_restart, ["services"]);
    assert_eq!(w.instance_state(&start), Some(InstanceState::Running));
    // The definition it runs under again: nothing waits any more.
    let mut back = job("a");
    back.services[0].configuration = "told by the socket".into();
    w.call(Call::UpdateJob(Box::new(back), 0)).unwrap();
    let view = w.ledger.job(&"a".into()).unwrap().view.clone();
    assert!(
        view.pending_restart.is_empty(),
        "{:?}",
        view.pending_restart
    );
}

// spec: JOB-08, JOB-27
#[test]
fn an_update_revives_a_failed_job_and_keeps_its_history() {
    let mut w = World::new();
    w.create("a");
    w.call(Call::MarkJobFailed {
        job_id: "a".into(),
        reason: "broken".into(),
    })
    .unwrap();
    assert_eq!(w.state("a"), Some(JobState::Post));
    let mut new = job("a");
    new.description = "again".into();
    w.call(Call::UpdateJob(Box::new(new), 0)).unwrap();
    let view = w.ledger.job(&"a".into()).unwrap().view.clone();
    assert_eq!(
        (view.state, view.terminal_state.as_ref()),
        (JobState::Pre, None)
    );
    assert_eq!(w.history("a"), ["created", "failed", "updated"]);
}

// spec: JOB-09
#[test]
fn a_delete_waits_for_what_runs() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    w.create("idle");
    w.call(Call::DeleteJob("idle".into())).unwrap();
    assert_eq!(w.last_words(), ["job gone idle"]);
    assert_eq!(
        w.refused(Call::DeleteJob("idle".into())).reason,
        "unknown_job"
    );

    let start = w.running("a", "n1");
    w.call(Call::DeleteJob("a".into())).unwrap();
    assert_eq!(w.last_orders(), ["n1: stop a/primary 10000 UserRequested"]);
    assert_eq!(
        w.start_as("a", "backup", "n1").unwrap_err().reason,
        "deleting"
    );
    assert_eq!(
        w.refused(Call::UpdateJob(Box::new(job("a")), 0)).reason,
        "deleting"
    );
    w.call(Call::DeleteJob("a".into())).unwrap();
    assert!(w.last.changes.is_empty());
    w.stopped("n1", "a", &start);
    assert_eq!(w.last_words(), ["job gone a"]);
    assert_eq!(w.state("a"), None);
}

// spec: JOB-10, JOB-32
#[test]
fn jobs_of_bundles_are_changed_through_their_bundle_only() {
    let mut w = World::new();
    w.call(Call::CreateBundle(Box::new(bundle("b", &["e"], 1))))
        .unwrap();
    for call in [
        Call::CreateJob(Box::new(job("b.0.e"))),
        Call::UpdateJob(Box::new(job("b.0.e")), 0),
        Call::DeleteJob("b.0.e".into()),
    ] {
        assert_eq!(w.refused(call).reason, "job_of_bundle");
    }
    for key in ["bundleId", "replicaIndex", "jobName"] {
        let mut forged = job("c");
        forged.tags.insert(key.into(), "b".into());
        assert_eq!(
            w.refused(Call::CreateJob(Box::new(forged))).reason,
            "reserved_tag"
        );
    }
    let mut dormant = job("c");
    dormant.tags.insert("startMode".into(), "manual".into());
    w.call(Call::CreateJob(Box::new(dormant.clone()))).unwrap();
    let mut long = job("d");
    long.tags.insert("k".into(), "v".repeat(4097));
    assert_eq!(w.refused(Call::CreateJob(Box::new(long))).reason, "bad_tag");
    let mut many = job("d");
    many.tags = (0..129).map(|n| (n.to_string(), String::new())).collect();
    assert_eq!(w.refused(Call::CreateJob(Box::new(many))).reason, "bad_tag");
    w.create("e");
    let mut sneaked = job("e");
    sneaked.tags = dormant.tags;
    assert_eq!(
        w.refused(Call::UpdateJob(Box::new(sneaked), 0)).reason,
        "reserved_tag"
    );
}

// spec: JOB-11, JOB-27
#[test]
fn completing_stops_first_and_then_ends_the_job() {
    let mut w = World::new();
    w.node("n1");
    w.create("idle");
    w.call(Call::CompleteJob("idle".into())).unwrap();
    assert_eq!(w.state("idle"), Some(JobState::Post));

    w.create("a");
    let start = w.running("a", "n1");
    w.call(Call::CompleteJob("a".into())).unwrap();
    assert_eq!(w.last_orders(), ["n1: stop a/primary 10000 UserRequested"]);
    assert_eq!(w.state("a"), Some(JobState::Active));
    assert_eq!(
        w.start_as("a", "backup", "n1").unwrap_err().reason,
        "job_terminal"
    );
    w.stopped("n1", "a", &start);
    assert_eq!(w.state("a"), Some(JobState::Post));
    assert_eq!(
        w.history("a"),
        [
            "created",
            "provisioned",
            "running",
            "stopping",
            "stopped",
            "completed"
        ]
    );
    w.call(Call::CompleteJob("a".into())).unwrap();
    assert!(w.last.changes.is_empty());
    assert_eq!(
        w.start_as("a", "primary", "n1").unwrap_err().reason,
        "job_terminal"
    );
}

// spec: JOB-12, HIST-08
#[test]
fn an_accepted_start_is_one_commit_and_one_order() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.start("a", "n1");
    assert_eq!(w.state("a"), Some(JobState::Active));
    assert_eq!(w.history("a"), ["created", "provisioned"]);
    assert_eq!(w.last_words(), ["job a"]);
    assert_eq!(w.last_orders(), ["n1: provision a/primary"]);
    assert_eq!(w.instance_state(&start), Some(InstanceState::Provisioned));
}

// spec: JOB-13
#[test]
fn a_start_is_refused_for_what_cannot_run() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.create("a");
    let mut dormant = job("d");
    dormant.tags.insert("startMode".into(), "manual".into());
    w.call(Call::CreateJob(Box::new(dormant))).unwrap();
    w.call(Call::TerminateNode("n2".into())).unwrap();
    for (id, node, reason) in [
        ("x", "n1", "unknown_job"),
        ("a", "nx", "unknown_node"),
        ("a", "n2", "node_not_running"),
        ("d", "n1", "job_dormant"),
    ] {
        assert_eq!(w.start_as(id, "primary", node).unwrap_err().reason, reason);
    }
}

// spec: JOB-14, JOB-15, HARDM-05
#[test]
fn a_key_is_live_once() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.create("a");
    let start = w.start("a", "n1");
    let here = w.start_as("a", "primary", "n1").unwrap_err();
    assert_eq!(
        (here.status, here.reason.as_str()),
        (Status::AlreadyExists, "already_on_node")
    );
    assert_eq!(here.details["start_id"], Detail::from(start.as_str()));
    assert_eq!(here.details["state"], Detail::from("provisioned"));
    let there = w.start_as("a", "primary", "n2").unwrap_err();
    assert_eq!(
        (there.status, there.reason.as_str()),
        (Status::FailedPrecondition, "live_elsewhere")
    );
    assert_eq!(there.details["node"], Detail::from("n1"));
    w.start_as("a", "primary@01234567", "n2").unwrap();
    assert_eq!(w.last_orders(), ["n2: provision a/primary@01234567"]);
}

// spec: JOB-16
#[test]
fn a_start_on_a_starting_node_is_held_until_its_first_hello() {
    let mut w = World::new();
    w.slot("n1");
    w.dial_in("n1", "m").unwrap();
    w.create("a");
    w.start("a", "n1");
    assert!(w.last.orders.is_empty());
    w.hello("n1", Vec::new());
    assert!(
        w.last_orders()
            .contains(&"n1: provision a/primary".to_owned())
    );

    let mut w = World::new();
    w.slot("n1");
    w.dial_in("n1", "m").unwrap();
    w.create("a");
    w.start("a", "n1");
    w.link("n1", Link::StartupOver);
    assert_eq!(
        w.history("a"),
        ["created", "provisioned", "stopping", "stopped"]
    );
    assert_eq!(reason(&w, "a"), Some(StopReason::NodeStopped));
    assert_eq!(w.state("a"), Some(JobState::Active));
}

pub(crate) fn reason(w: &World, id: &str) -> Option<StopReason> {
    w.ledger
        .job(&id.into())?
        .view
        .history
        .iter()
        .rev()
        .find_map(|entry| match &entry.kind {
            HistoryKind::Stopping { reason, .. } => Some(*reason),
            _ => None,
        })
}

// spec: JOB-17, JOB-18
#[test]
fn an_unknown_gpu_is_refused_only_where_devices_are_known() {
    let mut w = World::new();
    w.node("n1");
    w.slot("n2");
    w.dial_in("n2", "m").unwrap();
    w.create("a");
    let mut start = start_of("a", "primary", "n1");
    start.gpu_index = Some(3);
    assert_eq!(
        w.refused(Call::StartJob(start.clone())).reason,
        "unknown_gpu"
    );
    start.node_id = "n2".into();
    start.role = "primary@01234567".into();
    w.call(Call::StartJob(start)).unwrap();
    let live = w.live("a", "primary@01234567").unwrap();
    assert_eq!(w.ledger.instance(&live).unwrap().runtime_role, "primary");
}

// spec: LEASE-01
#[test]
fn a_lease_out_of_range_is_refused() {
    let mut w = World::new();
    w.node("n1");
    let mut leased = job("a");
    for (ttl, grace) in [(1_999, 5_000), (300_001, 5_000), (10_000, 999)] {
        leased.lease = Some(LeasePolicy {
            ttl_ms: Millis(ttl),
            grace_ms: Millis(grace),
        });
        let call = Call::CreateJob(Box::new(leased.clone()));
        assert_eq!(w.refused(call).reason, "bad_lease");
    }
    leased.lease = Some(LeasePolicy::default());
    w.call(Call::CreateJob(Box::new(leased))).unwrap();
    w.start_as("a", "primary", "n1").unwrap();
}

// spec: JOB-31
#[test]
fn fields_that_nothing_uses_are_kept() {
    let mut w = World::new();
    let mut odd = job("a");
    odd.shape = "s".into();
    odd.architecture = "z80".into();
    odd.subnet = "n".into();
    odd.availability_domain = "d".into();
    w.call(Call::CreateJob(Box::new(odd.clone()))).unwrap();
    assert_eq!(w.reload().job(&"a".into()).unwrap().view.job, odd);
}

// spec: FAIL-01, FAIL-02
#[test]
fn a_verdict_ends_the_job_and_the_first_reason_stays() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let start = w.running("a", "n1");
    let fail = |reason: &str| Call::MarkJobFailed {
        job_id: "a".into(),
        reason: reason.into(),
    };
    assert_eq!(w.refused(fail("")).reason, "missing_field");
    w.call(fail(&"ä".repeat(4000))).unwrap();
    assert_eq!(w.last_orders(), ["n1: stop a/primary 10000 JobFailed"]);
    let verdict = |w: &World| {
        let view = &w.ledger.job(&"a".into()).unwrap().view;
        view.terminal_state.clone().unwrap()
    };
    assert_eq!(verdict(&w).reason.len(), 4096);
    assert_eq!(verdict(&w).by, "tester");
    w.call(fail("second")).unwrap();
    assert_eq!(verdict(&w).reason.len(), 4096);
    assert_eq!(
        w.start_as("a", "primary", "n1").unwrap_err().reason,
        "job_terminal"
    );
    w.stopped("n1", "a", &start);
    assert_eq!(w.state("a"), Some(JobState::Post));
    assert_eq!(
        w.reload().job(&"a".into()).unwrap().view.state,
        JobState::Post
    );

    w.create("done");
    w.call(Call::CompleteJob("done".into())).unwrap();
    let late = Call::MarkJobFailed {
        job_id: "done".into(),
        reason: "x".into(),
    };
    assert_eq!(w.refused(late).reason, "job_completed");
    let unknown = Call::MarkJobFailed {
        job_id: "nobody".into(),
        reason: "x".into(),
    };
    assert_eq!(w.refused(unknown).reason, "unknown_job");
}

// spec: API-07, HARDM-04
#[test]
fn a_repeated_request_id_answers_from_the_record() {
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    let call = Call::StartJob(start_of("a", "primary", "n1"));
    w.repeatable(call.clone(), "r1").unwrap();
    let start = w.live("a", "primary").unwrap();
    w.repeatable(call.clone(), "r1").unwrap();
    assert!(w.last.orders.is_empty() && w.last.changes.is_empty());
    assert_eq!(w.live("a", "primary"), Some(start));
    let other = w.repeatable(Call::DeleteJob("a".into()), "r1").unwrap_err();
    assert_eq!(other.reason, "request_id_reused");
    w.pass(600_000);
    let late = w.repeatable(call.clone(), "r1").unwrap_err();
    assert_eq!(
        late.reason, "already_on_node",
        "forgotten after ten minutes"
    );
    // A refusal is no durable outcome: the same id may succeed later.
    let missing = Call::StartJob(start_of("b", "primary", "n1"));
    assert!(w.repeatable(missing.clone(), "r2").is_err());
    w.create("b");
    w.repeatable(missing, "r2").unwrap();
    for bad in ["", "with space", &"x".repeat(65)] {
        assert!(w.repeatable(call.clone(), bad).is_err());
    }
}

// spec: API-07
#[test]
fn the_oldest_request_ids_go_first() {
    let mut config = Config::default();
    config.limits.request_ids = 2;
    let mut w = World::with(config);
    for (id, request) in [("a", "r1"), ("b", "r2"), ("c", "r3")] {
        w.repeatable(Call::CreateJob(Box::new(job(id))), request)
            .unwrap();
    }
    let again = |w: &mut World, id: &str, request: &str| {
        w.repeatable(Call::CreateJob(Box::new(job(id))), request)
    };
    assert!(again(&mut w, "b", "r2").is_ok());
    assert_eq!(again(&mut w, "a", "r1").unwrap_err().reason, "job_exists");
}

// spec: LIM-04
#[test]
fn what_is_beyond_a_limit_is_refused_with_the_limit_and_what_is_at_it_is_not() {
    type Grow = fn(&mut Job, usize);
    let grows: [(&str, usize, Grow); 6] = [
        ("services", 64, |job, count| {
            let named = |index| Service {
                name: format!("s{index}"),
                ..job.services[0].clone()
            };
            job.services = (0..count).map(named).collect();
        }),
        ("ports", 256, |job, count| {
            let port = |number| PortMapping {
                container_port: number,
                ..PortMapping::default()
            };
            let ports = (1..).take(count).map(port);
            job.services[0].parameters.port_mappings = ports.collect();
        }),
        ("environment", 512, |job, count| {
            let variables = (0..count).map(|index| (format!("V{index}"), String::new()));
            job.services[0].parameters.environment = variables.collect();
        }),
        ("volumes", 64, |job, count| {
            let mount = |index| VolumeMount {
                volume_name: format!("v{index}"),
                container_path: format!("/v{index}"),
                read_only: false,
            };
            job.services[0].parameters.volume_mounts = (0..count).map(mount).collect();
        }),
        ("configuration_bytes", 128 * 1024, |job, count| {
            job.services[0].configuration = "x".repeat(count);
        }),
        ("configuration_bytes", 128 * 1024, |job, count| {
            job.manager_configuration = "x".repeat(count);
        }),
    ];
    let mut w = World::new();
    for (place, (what, limit, grow)) in grows.into_iter().enumerate() {
        let mut at = job(&format!("at-{place}"));
        grow(&mut at, limit);
        w.call(Call::CreateJob(Box::new(at))).expect(what);
        let mut beyond = job(&format!("beyond-{place}"));
        grow(&mut beyond, limit + 1);
        let refusal = w.refused(Call::CreateJob(Box::new(beyond)));
        assert_eq!(refusal.status, Status::ResourceExhausted, "{what}");
        assert_eq!(refusal.reason, format!("too_many_{what}"));
        assert_eq!(refusal.details["expected"], Detail::Int(limit as i64));
    }
}

// spec: LIM-04
#[test]
fn jobs_bundles_and_nodes_have_their_limits_too() {
    let defaults = Limits::default();
    assert_eq!(
        (defaults.nodes, defaults.jobs, defaults.bundles),
        (20_000, 500_000, 100_000)
    );
    let mut w = World::with(Config {
        limits: Limits {
            nodes: 1,
            jobs: 2,
            bundles: 1,
            ..defaults
        },
        providers: [(Provider::Aws, ["eu".to_owned()].into())].into(),
        ..Config::default()
    });
    w.create("a");
    w.call(Call::CreateBundle(Box::new(bundle("b", &["e"], 1))))
        .unwrap();
    let reason = |w: &mut World, call| w.refused(call).reason;
    assert_eq!(
        reason(&mut w, Call::CreateJob(Box::new(job("c")))),
        "too_many_jobs"
    );
    w.call(Call::DeleteJob("a".into())).unwrap();
    let second = Call::CreateBundle(Box::new(bundle("c", &["e"], 1)));
    assert_eq!(reason(&mut w, second), "too_many_bundles");
    w.call(crate::nodes::aws("n1")).unwrap();
    assert_eq!(reason(&mut w, crate::nodes::aws("n2")), "too_many_nodes");
}
