use std::time::Duration;

use greenroom_proto::convert::call::FoundJob;
use greenroom_proto::{common, manager};
use greenroom_sdk::types::bundle::{Bundle, BundleStatus};
use greenroom_sdk::types::call::{Call, Detail, StartJob, Status as RefusalStatus};
use greenroom_sdk::types::job::{Job, JobInfo, JobInfoKind, JobState, JobWithHistory, Stage};
use greenroom_sdk::types::node::{
    InstanceKey, InstanceState, NodeInfo, NodeState, RunningJob, ServiceRestarts,
};
use greenroom_sdk::{CallOptions, Client, Error};
use tonic::Status;

use crate::fake::{Fake, lost, quick, refusal};

fn start() -> StartJob {
    StartJob {
        job_id: "j".into(),
        role: "primary".into(),
        node_id: "n".into(),
        defer_start: false,
        runtime_role: String::new(),
        gpu_index: None,
        migration_id: None,
        migration_state: None,
    }
}

fn node(id: &str) -> manager::NodeInfo {
    (&NodeInfo {
        metadata: greenroom_sdk::types::node::NodeMetadata {
            node_id: id.into(),
            ..Default::default()
        },
        running: Default::default(),
        state: NodeState::Running,
        reason: String::new(),
        instances: Vec::new(),
        inventory: None,
        idle_expiry_ms: 0,
        last_seen: None,
        terminate_attempts: 0,
        last_error: String::new(),
        unrecorded: Vec::new(),
    })
        .into()
}

// spec: SDK-05, HELLO-02
#[tokio::test]
async fn a_changing_call_is_repeated_under_one_request_id() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.refuse("CreateJob", lost());
    fake.refuse(
        "CreateJob",
        refusal(RefusalStatus::Unavailable, "no_primary"),
    );
    fake.give("CreateJob", manager::JobHash { hash: 77 });
    fake.give("CreateJob", manager::JobHash { hash: 78 });

    let job = Job {
        job_id: "j".into(),
        ..Job::default()
    };
    assert_eq!(client.create_job(job.clone()).await, Ok(77));
    assert_eq!(client.create_job(job).await, Ok(78));

    let seen = fake.seen();
    assert_eq!(seen.len(), 4);
    assert!(seen[0].request_id.is_some());
    assert_eq!(seen[0].request_id, seen[1].request_id);
    assert_eq!(seen[0].request_id, seen[2].request_id);
    assert_ne!(seen[0].request_id, seen[3].request_id);
    assert!(seen.iter().all(|call| call.body == seen[0].body));
    assert!(
        seen.iter()
            .all(|call| call.protocol.as_deref() == Some("1.10"))
    );
}

// spec: SDK-05
#[tokio::test]
async fn a_reading_call_is_given_up_after_five_repeats_and_carries_no_request_id() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    for _ in 0..7 {
        fake.refuse("ListNodes", lost());
    }
    let error = client.list_nodes().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::ConnectionLost {
                method: "ListNodes",
                outcome_unknown: false,
                ..
            }
        ),
        "{error:?}"
    );
    let seen = fake.seen();
    // A try that found no connection, while it was dialled anew, counts without arriving.
    assert!((1..=6).contains(&seen.len()), "{} tries", seen.len());
    assert!(seen.iter().all(|call| call.request_id.is_none()));
}

// spec: SDK-05
#[tokio::test]
async fn a_manager_that_says_unavailable_is_asked_six_times() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    for _ in 0..7 {
        fake.refuse(
            "ListNodes",
            refusal(RefusalStatus::Unavailable, "no_primary"),
        );
    }
    let error = client.list_nodes().await.unwrap_err();
    assert_eq!(error.reason(), "no_primary");
    assert!(matches!(error, Error::Unavailable(_)));
    assert_eq!(fake.seen().len(), 6);
}

// spec: SDK-05
#[tokio::test]
async fn nothing_but_unavailable_is_repeated() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    for status in [
        refusal(RefusalStatus::Internal, "internal"),
        refusal(RefusalStatus::ResourceExhausted, "slow_down"),
        refusal(RefusalStatus::FailedPrecondition, "job_terminal"),
        refusal(RefusalStatus::Unavailable, "node_unreachable"),
        Status::aborted("odd"),
    ] {
        fake.refuse("StartJob", status);
    }
    for tries in 1..=5 {
        client.start_job(start()).await.unwrap_err();
        assert_eq!(fake.seen().len(), tries);
    }
}

// spec: SDK-04
#[tokio::test]
async fn a_refusal_arrives_with_reason_details_and_method() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.refuse("StartJob", refusal(RefusalStatus::NotFound, "unknown_job"));
    let error = client.start_job(start()).await.unwrap_err();
    let Error::NotFound(refused) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(
        (refused.method, refused.reason.as_str()),
        ("StartJob", "unknown_job")
    );
    assert_eq!(refused.details["path"], Detail::Text("job.role".to_owned()));
    assert_eq!(error.to_string(), "StartJob: no (unknown_job)");

    fake.refuse(
        "StartJob",
        refusal(RefusalStatus::Unauthenticated, "bad_credentials"),
    );
    let error = client.start_job(start()).await.unwrap_err();
    assert!(matches!(error, Error::Unauthenticated(_)));
}

// spec: SDK-04
#[tokio::test]
async fn a_lost_answer_says_whether_the_call_may_have_taken_effect() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.hang("StartJob");
    let soon = CallOptions {
        timeout: Some(Duration::from_millis(50)),
        ..CallOptions::default()
    };
    let call = Call::StartJob(start());
    let error = client
        .call_with(call.clone(), soon.clone())
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::DeadlineExceeded {
                method: "StartJob",
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.outcome_unknown());

    // Lost first, then "nothing changed": the first try may still have arrived.
    fake.refuse("StartJob", lost());
    fake.refuse_always(
        "StartJob",
        refusal(RefusalStatus::Unavailable, "no_primary"),
    );
    let error = client.call_with(call, soon).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");
}

// spec: HELLO-04
#[tokio::test]
async fn a_call_that_an_older_server_lacks_is_named() {
    let fake = Fake::start().await;
    fake.hello(|hello| hello.protocol_minor = 1);
    let client = fake.client().await;
    fake.refuse("RegisterClusterNode", Status::unimplemented(""));
    let error = client.register_cluster_node("a", "").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "RegisterClusterNode needs protocol 1.2, and the server speaks 1.1"
    );
}

// spec: SDK-12
#[tokio::test]
async fn an_answer_without_what_it_needs_is_an_error_with_the_field() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let field = |error: Error| match error {
        Error::Protocol { field, .. } => field,
        other => panic!("{other:?}"),
    };

    fake.give("GetBundle", manager::GetBundleResponse { status: None });
    assert_eq!(field(client.get_bundle("b").await.unwrap_err()), "status");
    let empty = manager::GetBundleResponse {
        status: Some(Default::default()),
    };
    fake.give("GetBundle", empty);
    assert_eq!(
        field(client.get_bundle("b").await.unwrap_err()),
        "status.bundle"
    );

    fake.give("CreateBundle", manager::CreateBundleResponse::default());
    let error = client.create_bundle(Bundle::default()).await.unwrap_err();
    assert_eq!(field(error), "bundle_id");

    let nameless = manager::ListNodesResponse {
        nodes: vec![node("a"), manager::NodeInfo::default()],
        ..Default::default()
    };
    fake.give("ListNodes", nameless);
    assert_eq!(
        field(client.list_nodes().await.unwrap_err()),
        "nodes[1].metadata"
    );

    fake.give("JobSearch", vec![manager::CurrentJob::default()]);
    let error = client.job_by_id("j").await.unwrap_err();
    assert_eq!(field(error), "jobs[0].job");

    let strange = manager::CurrentJob {
        job: Some(manager::Job {
            job_id: Some(common::JobId { job_id: "j".into() }),
            state: 9,
            ..Default::default()
        }),
        ..Default::default()
    };
    fake.give("JobSearch", vec![strange]);
    let error = client.job_by_id("j").await.unwrap_err();
    assert_eq!(field(error), "jobs[0].job.state");
}

#[tokio::test]
async fn pages_are_joined_and_begun_anew_when_their_revision_is_gone() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let page = |ids: &[&str], next: &str| manager::ListNodesResponse {
        nodes: ids.iter().map(|id| node(id)).collect(),
        next_page_token: next.to_owned(),
    };
    fake.give("ListNodes", page(&["a", "b"], "t1"));
    fake.refuse(
        "ListNodes",
        refusal(RefusalStatus::FailedPrecondition, "page_expired"),
    );
    fake.give("ListNodes", page(&["b", "c"], "t2"));
    fake.give("ListNodes", page(&["d"], ""));
    let nodes = client.list_nodes().await.unwrap();
    let ids: Vec<_> = nodes
        .iter()
        .map(|node| node.metadata.node_id.as_str())
        .collect();
    assert_eq!(ids, ["b", "c", "d"]);
    assert!(fake.seen()[3].body.contains("t2"));
}

// spec: SDK-09
#[tokio::test]
async fn a_job_is_found_by_id_with_its_instances_or_not_at_all() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let found = FoundJob {
        job: JobWithHistory {
            job: Job {
                job_id: "j".into(),
                ..Job::default()
            },
            state: JobState::Active,
            current_hash: 5,
            ..JobWithHistory::default()
        },
        instances: vec![RunningJob {
            key: InstanceKey::new("j".into(), "primary".into()),
            node_id: "n".into(),
            start_id: "s".into(),
            state: InstanceState::Running,
        }],
        last_info: Some(JobInfo {
            key: InstanceKey::new("j".into(), "primary".into()),
            start_id: "s".into(),
            at: greenroom_sdk::types::Wall(5),
            kind: JobInfoKind::Stage {
                stage: Stage::Build,
                text: "img:1".to_owned(),
            },
        }),
        restarts: Some(ServiceRestarts {
            count: 4,
            service: "main".to_owned(),
            ended: "exit code 3".to_owned(),
            at: greenroom_sdk::types::Wall(6),
            pending: true,
        }),
    };
    fake.give("JobSearch", vec![found.write(10)]);
    fake.give("JobSearch", Vec::<manager::CurrentJob>::new());
    assert_eq!(client.job_by_id("j").await, Ok(Some(found)));
    assert_eq!(client.job_by_id("k").await, Ok(None));
    assert!(
        fake.seen()[0].body.contains("IdFilter"),
        "{}",
        fake.seen()[0].body
    );
}

#[tokio::test]
async fn a_bundle_and_a_slot_come_as_types_and_the_token_does_not_print() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let status = BundleStatus {
        bundle: Bundle {
            bundle_id: "b".into(),
            pool: "p".into(),
            revision: 4,
            ..Bundle::default()
        },
        ..BundleStatus::default()
    };
    let answer = manager::GetBundleResponse {
        status: Some((&status).into()),
    };
    fake.give("GetBundle", answer);
    assert_eq!(client.get_bundle("b").await, Ok(status));

    let answer = manager::RegisterClusterNodeResponse {
        node_id: "n".to_owned(),
        token: "grt_secret".to_owned(),
    };
    fake.give("RegisterClusterNode", answer);
    let slot = client.register_cluster_node("n", "p").await.unwrap();
    assert_eq!(slot.token.reveal(), "grt_secret");
    assert!(!format!("{slot:?}").contains("secret"));
}

#[tokio::test]
async fn a_request_id_of_the_caller_is_sent_as_it_is_or_refused_here() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let with = |id: &str| CallOptions {
        request_id: Some(id.to_owned()),
        ..CallOptions::default()
    };
    let call = || Call::StartJob(start());
    fake.give("StartJob", ());
    client.call_with(call(), with("mine-1")).await.unwrap();
    assert_eq!(fake.seen()[0].request_id.as_deref(), Some("mine-1"));
    for bad in ["", "two words", "ä", &"x".repeat(65)] {
        let error = client.call_with(call(), with(bad)).await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Settings {
                    key: "request_id",
                    ..
                }
            ),
            "{bad}"
        );
    }
    assert_eq!(fake.seen().len(), 1);
}

// spec: SDK-05
#[tokio::test]
async fn the_next_member_is_asked_when_one_cannot_serve() {
    let (one, two) = (Fake::start().await, Fake::start().await);
    two.hello(|hello| hello.member = "m2".to_owned());
    let client = Client::connect(quick([one.url.clone(), two.url.clone()]))
        .await
        .unwrap();
    assert_eq!(client.hello().member, "m1");
    one.refuse_always(
        "StartJob",
        refusal(RefusalStatus::Unavailable, "shutting_down"),
    );
    two.give("StartJob", ());
    client.start_job(start()).await.unwrap();
    assert_eq!(client.hello().member, "m2");
    assert_eq!(two.seen()[0].request_id, one.seen()[0].request_id);
}
