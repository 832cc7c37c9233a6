//! Values go to the wire, through bytes, and come back the same; what the domain cannot hold is refused by path.

mod samples;

use std::collections::BTreeSet;
use std::fmt::Debug;

use greenroom_types::{
    Wall,
    bundle::{Bundle, BundleStatus},
    call::{self, Call},
    job::{Job, JobInfo, JobWithHistory, LeasePolicy},
    node::{InstanceKey, NodeInfo, RejectionCode},
    stream::{Stamped, StreamEvent},
};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use prost::Message;
use prost_types::Timestamp;
use tonic::Code;

use super::{
    WireError,
    call::{PROTOCOL_MINOR, Request},
    common::{read_time, write_time},
    event::{kind_name, write_event},
    refusal::{read_code, read_refusal, write_code, write_refusal},
    stream::{Form, Places, encode, encode_body},
    worker::{
        InterruptionNotice, MigrationMessage, MigrationNews, Rejection, StartOrder, WorkerInstance,
    },
};
use crate::{
    common,
    manager::{self, event_stream_event::Event},
    status::Refusal,
    worker,
};

/// Writes `value` as `W`, encodes, decodes and reads it again.
fn there_and_back<W, T>(value: &T) -> T
where
    W: Message + Default + for<'a> From<&'a T>,
    T: TryFrom<W, Error: Debug> + Debug,
{
    let bytes = W::from(value).encode_to_vec();
    let decoded = W::decode(bytes.as_slice()).expect("what was encoded");
    T::try_from(decoded).expect("what was written can be read")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn jobs_come_back_the_same(shown in samples::job_with_history()) {
        prop_assert_eq!(&there_and_back::<manager::JobWithHistory, JobWithHistory>(&shown), &shown);
        prop_assert_eq!(&there_and_back::<manager::Job, Job>(&shown.job), &shown.job);
    }

    #[test]
    fn bundles_come_back_the_same(status in samples::bundle_status()) {
        prop_assert_eq!(&there_and_back::<manager::BundleStatus, BundleStatus>(&status), &status);
    }

    #[test]
    fn nodes_come_back_the_same(node in samples::node_info()) {
        prop_assert_eq!(&there_and_back::<manager::NodeInfo, NodeInfo>(&node), &node);
    }

    #[test]
    fn job_info_comes_back_the_same(info in samples::job_info()) {
        prop_assert_eq!(&there_and_back::<common::JobInfoMessage, JobInfo>(&info), &info);
    }

    #[test]
    fn orders_come_back_the_same(order in samples::start_order()) {
        prop_assert_eq!(&there_and_back::<worker::WorkerJob, StartOrder>(&order), &order);
    }

    #[test]
    fn what_workers_say_comes_back_the_same(
        instance in samples::worker_instance(),
        rejection in samples::rejection(),
        notice in samples::interruption(),
        news in samples::migration_news(),
    ) {
        prop_assert_eq!(&there_and_back::<worker::WorkerInstance, WorkerInstance>(&instance), &instance);
        prop_assert_eq!(&there_and_back::<worker::WorkerJobRejected, Rejection>(&rejection), &rejection);
        prop_assert_eq!(
            there_and_back::<worker::WorkerInterruptionNotice, InterruptionNotice>(&notice), notice
        );
        prop_assert_eq!(MigrationNews::try_from(MigrationMessage::from(&news)), Ok(news));
    }

    #[test]
    fn events_come_back_the_same(stamped in samples::stamped()) {
        let event = write_event(&stamped, "epoch").expect("every sample can be written");
        prop_assert_eq!(&event.epoch, "epoch");
        let bytes = event.encode_to_vec();
        let decoded = manager::EventStreamEvent::decode(bytes.as_slice()).expect("what was encoded");
        prop_assert_eq!(Stamped::try_from(decoded), Ok(stamped));
    }

    #[test]
    fn calls_come_back_the_same(call in samples::call()) {
        let request = Request::from(&call);
        // The variant's name is the name of the RPC.
        let shown = format!("{request:?}");
        prop_assert_eq!(shown.split('(').next(), Some(call.name()));
        prop_assert_eq!(Call::try_from(request), Ok(call));
    }

    #[test]
    fn equal_values_have_equal_bytes(job in samples::job()) {
        let bytes = manager::Job::from(&job).encode_to_vec();
        let decoded = manager::Job::decode(bytes.as_slice()).expect("what was encoded");
        prop_assert_eq!(decoded.encode_to_vec(), bytes);
    }

    #[test]
    fn instants_come_back_the_same(ms in 0..=Wall::MAX.0) {
        prop_assert_eq!(read_time(write_time(Wall(ms)), "at"), Ok(Wall(ms)));
    }
}

// spec: PERF-11
#[test]
fn an_event_in_two_parts_is_the_same_bytes_as_in_one_whatever_its_kind() {
    // All kinds of the wire but the two that no Manager sends.
    const KINDS: usize = 35;
    let forms =
        [(PROTOCOL_MINOR, 0), (PROTOCOL_MINOR, 1), (0, 0), (0, 2)].map(|(minor, history_limit)| {
            Form {
                minor,
                history_limit,
            }
        });
    let mut runner = TestRunner::deterministic();
    let mut places = Places::new("epoch".to_owned());
    let mut seen = BTreeSet::new();
    for _ in 0..10_000 {
        let sample = samples::stamped().new_tree(&mut runner);
        let stamped = sample.expect("a sample").current();
        let whole = write_event(&stamped, "epoch").expect("every sample can be written");
        seen.insert(whole.event.as_ref().map(kind_name));
        for form in forms {
            let body = encode_body(&stamped.event, stamped.seq, form);
            let Ok(whole) = encode("epoch", &stamped, form) else {
                assert!(body.is_err() && !form.takes(&stamped.event), "{stamped:?}");
                continue;
            };
            let place = places.encode(stamped.seq, stamped.at);
            assert_eq!([body.unwrap(), place].concat(), whole, "{stamped:?}");
        }
        if seen.len() == KINDS {
            return;
        }
    }
    panic!("of {KINDS} kinds only these were among the samples: {seen:?}");
}

// spec: API-24
#[test]
fn times_outside_the_years_of_the_wire_are_refused() {
    let first_of_10000 = 253_402_300_800;
    for (seconds, nanos) in [
        (-1, 0),
        (-1, 999_999_999),
        (first_of_10000, 0),
        (i64::MAX, 0),
        (i64::MIN, 0),
        (0, -1),
        (0, 1_000_000_000),
    ] {
        let time = Timestamp { seconds, nanos };
        let job = manager::Job {
            start_date_time: Some(time),
            ..request_job()
        };
        let refused = Job::try_from(job).expect_err("a bad time");
        assert_eq!(
            (refused.reason, refused.path.as_str()),
            ("bad_timestamp", "start_date_time")
        );
        assert_eq!(tonic::Status::from(refused).code(), Code::InvalidArgument);
    }
    // The ends themselves are good, and are UTC: 1970-01-01T00:00:00Z is 0.
    let first = Timestamp {
        seconds: 0,
        nanos: 0,
    };
    let last = Timestamp {
        seconds: first_of_10000 - 1,
        nanos: 999_999_999,
    };
    assert_eq!(
        read_time(first, "at").map(|at| at.to_string()).as_deref(),
        Ok("1970-01-01T00:00:00Z")
    );
    assert_eq!(read_time(last, "at"), Ok(Wall::MAX));
}

#[test]
fn instants_that_the_wire_cannot_hold_are_written_as_the_nearest() {
    assert_eq!(
        write_time(Wall(-5)),
        Timestamp {
            seconds: 0,
            nanos: 0
        }
    );
    assert_eq!(read_time(write_time(Wall(i64::MAX)), "at"), Ok(Wall::MAX));
}

// spec: API-04
#[test]
fn unknown_fields_are_ignored_and_unknown_enum_values_are_refused_by_path() {
    // Field 9999 with a varint, which no message has.
    let mut bytes = request_job().encode_to_vec();
    prost::encoding::uint32::encode(9_999, &7, &mut bytes);
    let decoded = manager::Job::decode(bytes.as_slice()).expect("unknown fields are no error");
    assert_eq!(decoded, request_job());

    let port = common::PortMapping {
        protocol: 9,
        ..Default::default()
    };
    let parameters = common::ServiceParameters {
        port_mappings: vec![Default::default(), port],
        ..Default::default()
    };
    let service = common::Service {
        parameters: Some(parameters),
        ..Default::default()
    };
    let job = manager::Job {
        services: vec![service.clone()],
        ..request_job()
    };
    refused_enum(
        Job::try_from(job.clone()),
        "services[0].parameters.port_mappings[1].protocol",
    );

    let template = manager::BundleJob {
        template: Some(job),
        ..Default::default()
    };
    let bundle = manager::Bundle {
        jobs: vec![Default::default(), template],
        ..Default::default()
    };
    refused_enum(
        Bundle::try_from(bundle),
        "jobs[1].template.services[0].parameters.port_mappings[1].protocol",
    );

    let version = manager::Job {
        norsk_media_version: 4,
        ..request_job()
    };
    refused_enum(Job::try_from(version), "norsk_media_version");
    let restart = common::Service {
        restart: -1,
        ..Default::default()
    };
    refused_enum(
        Job::try_from(manager::Job {
            services: vec![restart],
            ..request_job()
        }),
        "services[0].restart",
    );
    let resilience = manager::Resilience {
        same_az: 2,
        ..Default::default()
    };
    refused_enum(
        Bundle::try_from(manager::Bundle {
            resilience_policy: Some(resilience),
            ..Default::default()
        }),
        "resilience_policy.same_az",
    );

    // From a worker the number is kept and passed on.
    let said = worker::WorkerJobRejected {
        job_key: Some(key()),
        code: 77,
        detail: "too hot".into(),
        inventory: None,
    };
    let rejection = Rejection::try_from(said.clone()).expect("a worker may be newer");
    assert_eq!(rejection.code, RejectionCode::Unspecified);
    assert_eq!(worker::WorkerJobRejected::from(&rejection), said);
}

#[test]
fn a_refused_message_says_which_field_and_what_would_be_right() {
    let time = Timestamp {
        seconds: -1,
        nanos: 0,
    };
    let job = manager::Job {
        start_date_time: Some(time),
        ..request_job()
    };
    let status = tonic::Status::from(Job::try_from(job).expect_err("a bad time"));
    assert_eq!(status.code(), Code::InvalidArgument);
    let refusal = Refusal::read(&status).expect("a refusal of ours");
    assert_eq!(refusal.reason, "bad_timestamp");
    assert_eq!(
        refusal.detail("path").and_then(|path| path.as_text()),
        Some("start_date_time")
    );
    assert_eq!(
        refusal.message,
        "start_date_time is -1 s and 0 ns since 1970, it must lie in the years 1970 to 9999 with 0 to \
         999999999 ns"
    );
}

#[test]
fn required_identifiers_come_before_everything_else() {
    let missing = |read: Result<Job, WireError>| {
        let error = read.expect_err("an id is missing");
        assert_eq!(
            (error.reason, error.path.as_str()),
            ("missing_field", "job_id.job_id")
        );
    };
    let bad = manager::Job {
        norsk_media_version: 99,
        ..Default::default()
    };
    missing(Job::try_from(bad.clone()));
    missing(Job::try_from(manager::Job {
        job_id: Some(Default::default()),
        ..bad
    }));

    let no_role = common::ActiveJobKey {
        role: String::new(),
        ..key()
    };
    let error = InstanceKey::try_from(no_role).expect_err("a role is missing");
    assert_eq!(
        (error.reason, error.path.as_str()),
        ("missing_field", "role")
    );
}

#[test]
fn what_the_manager_adds_is_not_looked_at_in_a_definition() {
    let job = manager::Job {
        state: 99,
        current_hash: -1,
        terminal_state: Some(manager::TerminalState {
            at: Some(Timestamp {
                seconds: -1,
                nanos: 0,
            }),
            ..Default::default()
        }),
        ..request_job()
    };
    let read = Job::try_from(job).expect("state, hash and verdict are ignored");
    assert_eq!(manager::Job::from(&read), request_job());
}

#[test]
fn what_is_absent_reads_as_its_default() {
    let lease = manager::LeasePolicy {
        ttl_ms: 0,
        grace_ms: 7_000,
    };
    let read = LeasePolicy::from(lease);
    assert_eq!((read.ttl_ms.0, read.grace_ms.0), (10_000, 7_000));

    let bundle = manager::Bundle {
        jobs: vec![Default::default()],
        ..Default::default()
    };
    let read = Bundle::try_from(bundle).expect("an empty job is well formed");
    assert!(read.jobs[0].requirements.essential);
    assert_eq!(read.copies(), 1);
}

#[test]
fn an_order_says_everything_that_the_definition_says() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..16 {
        let job = samples::job()
            .new_tree(&mut runner)
            .expect("a job")
            .current();
        let order = StartOrder::of(&job, "primary".into(), "0123".into());
        assert_eq!(order.key(), InstanceKey::new(job.job_id, "primary".into()));
        assert_eq!(
            order.requirements,
            job.auto_placement.map(|place| place.requirements)
        );
        assert_eq!((order.services, order.volumes), (job.services, job.volumes));
        assert_eq!((order.lease, order.secret_env), (job.lease, job.secret_env));
    }
}

#[test]
fn events_that_the_domain_does_not_have_are_known_by_number() {
    let read = |event| {
        let event = manager::EventStreamEvent {
            event,
            ..Default::default()
        };
        Stamped::try_from(event)
            .expect("a kind without a counterpart")
            .event
    };
    let cluster = Event::ClusterChanged(Default::default());
    assert_eq!(read(Some(cluster)), StreamEvent::Unknown { number: 129 });
    let physical = Event::PhysicalNodeConnected(Default::default());
    assert_eq!(read(Some(physical)), StreamEvent::Unknown { number: 12 });
    assert_eq!(read(None), StreamEvent::Unknown { number: 0 });
}

#[test]
fn what_the_wire_has_no_value_for_is_not_written_as_something_else() {
    let unknown = Stamped {
        seq: 1,
        at: Wall(0),
        event: StreamEvent::Unknown { number: 4_000 },
    };
    assert_eq!(
        write_event(&unknown, "e").map_err(|error| error.reason),
        Err("unknown_event")
    );

    let entry = call::AuditEntry {
        seq: 1,
        at: Wall(0),
        source: String::new(),
        kind: String::new(),
        actor: String::new(),
        payload: String::new(),
        prev_hash: "00ff".into(),
        hash: "xyz".into(),
    };
    let stamped = Stamped {
        seq: 1,
        at: Wall(0),
        event: StreamEvent::AuditAppended(entry),
    };
    let error = write_event(&stamped, "e").expect_err("not a hash");
    assert_eq!(
        (error.reason, error.path.as_str()),
        ("bad_hash", "audit_appended.entry.hash")
    );
}

#[test]
fn calls_without_a_required_identifier_are_refused_by_path() {
    let refused = |request: Request| {
        let error = Call::try_from(request).expect_err("an id is missing");
        assert_eq!(error.reason, "missing_field");
        error.path
    };
    assert_eq!(refused(Request::DeleteJob(Default::default())), "job_id");
    assert_eq!(
        refused(Request::TerminateNode(Default::default())),
        "node_id"
    );
    assert_eq!(
        refused(Request::UpdatePhysicalNode(Default::default())),
        "id"
    );
    assert_eq!(
        refused(Request::DeleteBundle(Default::default())),
        "bundle_id"
    );
    assert_eq!(
        refused(Request::SetNodeTags(Default::default())),
        "node_id.node_id"
    );
    let bundle = Some(manager::Bundle::default());
    let update = manager::UpdateBundleRequest {
        bundle,
        ..Default::default()
    };
    assert_eq!(refused(Request::UpdateBundle(update)), "bundle.bundle_id");

    let stop = manager::StopJobRequest {
        job_id: key().job_id,
        ..Default::default()
    };
    assert_eq!(refused(Request::StopJob(stop.clone())), "role");
    let stop = manager::StopJobRequest {
        role: "primary".into(),
        ..stop
    };
    assert_eq!(refused(Request::StopJob(stop)), "node_id.node_id");
    let ready = manager::NotifyMigrationCutoverReadyRequest {
        source_job_key: Some(key()),
        ..Default::default()
    };
    assert_eq!(
        refused(Request::NotifyMigrationCutoverReady(ready)),
        "migration_id"
    );
}

#[test]
fn refusals_of_the_domain_come_back_the_same() {
    for status in [
        call::Status::Cancelled,
        call::Status::InvalidArgument,
        call::Status::DeadlineExceeded,
        call::Status::NotFound,
        call::Status::AlreadyExists,
        call::Status::PermissionDenied,
        call::Status::Unauthenticated,
        call::Status::ResourceExhausted,
        call::Status::FailedPrecondition,
        call::Status::Internal,
        call::Status::Unimplemented,
        call::Status::Unavailable,
    ] {
        assert_eq!(read_code(write_code(status)), status);
        let mut refusal = call::Refusal::new(status, "job_exists", "job \"a\" exists")
            .with("hash", 5_i64)
            .with("state", "running");
        let list = vec![
            call::Detail::Text("x".into()),
            call::Detail::Bool(true),
            call::Detail::Number(0.5),
        ];
        refusal
            .details
            .insert("problems".into(), call::Detail::List(list));
        assert_eq!(read_refusal(&write_refusal(&refusal)), Some(refusal));
    }
    assert_eq!(read_refusal(&tonic::Status::internal("no reason")), None);
}

// === helpers ===

fn request_job() -> manager::Job {
    manager::Job {
        job_id: Some(common::JobId { job_id: "a".into() }),
        ..Default::default()
    }
}

fn key() -> common::ActiveJobKey {
    common::ActiveJobKey {
        job_id: Some(common::JobId { job_id: "a".into() }),
        role: "primary".into(),
    }
}

fn refused_enum<T: Debug>(read: Result<T, WireError>, path: &str) {
    let error = read.expect_err("an unknown enum value");
    assert_eq!((error.reason, error.path.as_str()), ("unknown_enum", path));
}
