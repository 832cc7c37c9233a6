use std::sync::Arc;

use greenroom_proto::manager;
use greenroom_sdk::types::bundle::BundleStatus;
use greenroom_sdk::types::call::Status as RefusalStatus;
use greenroom_sdk::types::inventory::NodeInventory;
use greenroom_sdk::types::job::{Job, JobWithHistory};
use greenroom_sdk::types::node::{NodeMetadata, NodeStoppingReason, StartPhase};
use greenroom_sdk::types::stream::{Health, ProviderHealth, Stamped, StreamEvent};
use greenroom_sdk::{
    Client, Error, EventGroup, EventSettings, EventStream, InitialState, StreamItem,
};
use tonic::codegen::Bytes;

use crate::fake::{Fake, Step, event, lost, refusal};

fn deleted(id: &str) -> StreamEvent {
    StreamEvent::JobDeleted(id.into())
}

fn job(id: &str) -> Arc<JobWithHistory> {
    Arc::new(JobWithHistory {
        job: Job {
            job_id: id.into(),
            ..Job::default()
        },
        ..JobWithHistory::default()
    })
}

fn node(id: &str) -> Arc<NodeMetadata> {
    Arc::new(NodeMetadata {
        node_id: id.into(),
        ..NodeMetadata::default()
    })
}

fn complete() -> StreamEvent {
    StreamEvent::InitialDataComplete(vec![ProviderHealth::Local(Health::Healthy)])
}

fn resumed(complete: bool) -> StreamEvent {
    StreamEvent::StreamResumed {
        complete,
        reason: if complete { "" } else { "too_old" }.to_owned(),
        from_seq: 0,
    }
}

/// A snapshot of one active job at a seq.
fn snapshot(epoch: &str, seq: u64, id: &str) -> Vec<Step> {
    vec![
        event(epoch, seq, StreamEvent::JobActive(job(id))),
        event(epoch, seq, complete()),
    ]
}

fn then(mut steps: Vec<Step>, more: impl IntoIterator<Item = Step>) -> Vec<Step> {
    steps.extend(more);
    steps
}

async fn subscribe(client: &Client) -> (InitialState, EventStream) {
    client.event_stream(EventSettings::default()).await.unwrap()
}

fn change(item: Option<StreamItem>) -> Stamped {
    match item {
        Some(StreamItem::Event(stamped)) => stamped,
        other => panic!("{other:?}"),
    }
}

fn jobs_of(state: &InitialState) -> Vec<&str> {
    state
        .active_jobs
        .iter()
        .map(|job| job.job.job.job_id.as_str())
        .collect()
}

// spec: SDK-06
#[tokio::test]
async fn the_initial_state_is_complete_and_gives_its_events_back_in_order() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let bundle = Arc::new(BundleStatus::default());
    let inventory = Arc::new(NodeInventory::default());
    let paused = StreamEvent::LeasesPaused {
        paused: true,
        reason: "show".to_owned(),
        by: "ann".to_owned(),
        since: None,
    };
    let events = vec![
        StreamEvent::NodeRunning {
            metadata: node("n1"),
            running: Arc::default(),
            instances: Vec::new(),
            reachable: false,
        },
        StreamEvent::NodeRunning {
            metadata: node("n2"),
            running: Arc::default(),
            instances: Vec::new(),
            reachable: true,
        },
        StreamEvent::NodeStopping {
            node_id: "n2".into(),
            reason: NodeStoppingReason::UserRequested,
            detail: "d".to_owned(),
            provider_code: String::new(),
        },
        StreamEvent::NodeStarting {
            metadata: node("n3"),
            phase: Some(StartPhase::Booting),
        },
        StreamEvent::JobActive(job("a")),
        StreamEvent::JobPending(job("p")),
        StreamEvent::BundleActive(Arc::clone(&bundle)),
        StreamEvent::NodeInventorySnapshot {
            node_id: "n1".into(),
            inventory,
        },
        paused,
        complete(),
    ];
    let steps = events.iter().cloned().map(|it| event("e", 7, it));
    fake.stream(then(steps.collect(), [Step::Hold]));
    let (state, _events) = subscribe(&client).await;
    assert_eq!((state.epoch.as_str(), state.seq), ("e", 7));
    assert_eq!(state.nodes_running.len(), 2);
    assert!(!state.nodes_running[0].reachable);
    assert_eq!(state.nodes_starting[0].metadata.node_id.as_str(), "n3");
    assert_eq!(jobs_of(&state), ["a", "p"]);
    assert_eq!(
        state
            .active_jobs
            .iter()
            .map(|job| job.pending)
            .collect::<Vec<_>>(),
        [false, true]
    );
    assert_eq!(state.bundles, [bundle]);
    assert_eq!(state.health, [ProviderHealth::Local(Health::Healthy)]);
    assert_eq!(state.events(), events);
}

#[tokio::test]
async fn the_settings_are_what_is_asked_for() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.stream(then(snapshot("e", 1, "a"), [Step::Hold]));
    let settings = EventSettings {
        pending_window_s: 60,
        include: vec![EventGroup::Jobs, EventGroup::Nodes],
        history_limit: Some(0),
        max_lag_ms: Some(9),
        client_label: "policy".to_owned(),
        auto_resume: true,
    };
    client.event_stream(settings).await.unwrap();
    let asked = manager::EventStreamRequest {
        pending_window_s: 60,
        client_protocol: 10,
        resume: None,
        include: vec!["jobs".to_owned(), "nodes".to_owned()],
        history_limit: Some(0),
        max_lag_ms: Some(9),
        client_label: "policy".to_owned(),
    };
    assert_eq!(fake.subscribed(), [asked]);
    assert_eq!(fake.seen()[0].protocol.as_deref(), Some("1.10"));
}

// spec: SDK-07
#[tokio::test]
async fn a_dropped_stream_goes_on_where_it_ended() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.stream(then(
        snapshot("e", 5, "a"),
        [event("e", 6, deleted("x")), Step::Fail(lost())],
    ));
    // Two tries fail before one holds.
    fake.stream(vec![Step::Fail(lost())]);
    fake.stream(vec![Step::Fail(refusal(
        RefusalStatus::ResourceExhausted,
        "too_many_subscribers",
    ))]);
    fake.stream(vec![
        event("e", 6, resumed(true)),
        event("e", 7, deleted("y")),
        event("e", 9, deleted("z")),
        Step::Hold,
    ]);
    let (state, mut events) = subscribe(&client).await;
    assert_eq!(jobs_of(&state), ["a"]);
    let got = [
        change(events.next().await),
        change(events.next().await),
        change(events.next().await),
    ];
    assert_eq!(
        got.map(|it| (it.seq, it.event)),
        [(6, deleted("x")), (7, deleted("y")), (9, deleted("z")),]
    );
    let resumes: Vec<_> = fake
        .subscribed()
        .into_iter()
        .map(|request| {
            request
                .resume
                .map(|resume| (resume.epoch, resume.after_seq))
        })
        .collect();
    let from_6 = Some(("e".to_owned(), 6));
    assert_eq!(resumes, [None, from_6.clone(), from_6.clone(), from_6]);
}

// spec: SDK-07
#[tokio::test]
async fn a_resume_that_cannot_be_met_yields_one_whole_new_state() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.stream(then(snapshot("e", 5, "a"), [Step::Fail(lost())]));
    // The new snapshot breaks in the middle, and nothing of it may be seen.
    fake.stream(vec![
        event("f", 1, resumed(false)),
        event("f", 1, StreamEvent::JobActive(job("half"))),
        Step::Fail(lost()),
    ]);
    fake.stream(then(
        vec![event("f", 2, resumed(false))],
        then(
            snapshot("f", 2, "b"),
            [event("f", 3, deleted("b")), Step::Fail(lost())],
        ),
    ));
    fake.stream(vec![
        event("f", 3, resumed(true)),
        event("f", 4, deleted("c")),
        Step::Hold,
    ]);

    let (_, mut events) = subscribe(&client).await;
    let Some(StreamItem::Resnapshot(state)) = events.next().await else {
        panic!("no new state");
    };
    assert_eq!(
        (jobs_of(&state), state.epoch.as_str(), state.seq),
        (vec!["b"], "f", 2)
    );
    assert!(state.other.is_empty());
    assert_eq!(change(events.next().await).seq, 3);
    assert_eq!(change(events.next().await).event, deleted("c"));
    let last = fake.subscribed().pop().unwrap().resume.unwrap();
    assert_eq!((last.epoch.as_str(), last.after_seq), ("f", 3));
}

// spec: SDK-07
#[tokio::test]
async fn an_epoch_that_changes_under_way_is_never_mixed_in() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.stream(then(
        snapshot("e", 5, "a"),
        [event("f", 6, deleted("of another history")), Step::Hold],
    ));
    fake.stream(then(snapshot("f", 8, "b"), [Step::Hold]));
    let (_, mut events) = subscribe(&client).await;
    let Some(StreamItem::Resnapshot(state)) = events.next().await else {
        panic!("no new state");
    };
    assert_eq!((jobs_of(&state), state.seq), (vec!["b"], 8));
    assert_eq!(fake.subscribed()[1].resume, None);
}

// spec: SDK-07
#[tokio::test]
async fn without_auto_resume_a_break_is_told_and_ends_the_stream() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let slow = refusal(RefusalStatus::ResourceExhausted, "subscriber_too_slow");
    fake.stream(then(snapshot("e", 5, "a"), [Step::Fail(slow)]));
    let settings = EventSettings {
        auto_resume: false,
        ..EventSettings::default()
    };
    let (_, mut events) = client.event_stream(settings).await.unwrap();
    let Some(StreamItem::Closed(cause)) = events.next().await else {
        panic!("not closed");
    };
    assert_eq!(cause.reason(), "subscriber_too_slow");
    assert_eq!(events.next().await, None);
}

// spec: SDK-08
#[tokio::test]
async fn an_unknown_kind_is_yielded_with_its_number() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    // epoch "e", seq 6, field 300 with an empty message.
    let unknown = [
        &[0xa2, 0x06, 1, b'e'][..],
        &[0xa8, 0x06, 6],
        &[0xe2, 0x12, 0],
    ]
    .concat();
    fake.stream(then(
        snapshot("e", 5, "a"),
        [
            Step::Send(Bytes::from(unknown)),
            event("e", 7, deleted("x")),
            Step::Hold,
        ],
    ));
    let (_, mut events) = subscribe(&client).await;
    let first = change(events.next().await);
    assert_eq!(
        (first.seq, first.event),
        (6, StreamEvent::Unknown { number: 300 })
    );
    assert_eq!(change(events.next().await).seq, 7);
}

// spec: SDK-12
#[tokio::test]
async fn an_event_without_what_it_needs_ends_the_stream_with_the_field() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    // epoch "e", and a job_updated (field 4) without its job.
    let bad = [&[0x22, 0][..], &[0xa2, 0x06, 1, b'e']].concat();
    fake.stream(then(
        snapshot("e", 5, "a"),
        [Step::Send(Bytes::from(bad)), Step::Hold],
    ));
    let (_, mut events) = subscribe(&client).await;
    let Some(StreamItem::Closed(Error::Protocol { field, .. })) = events.next().await else {
        panic!("not closed");
    };
    assert_eq!(field, "job_updated.jobWithHistory");
}

// spec: SDK-06
#[tokio::test]
async fn a_snapshot_that_breaks_is_begun_anew_before_anything_is_returned() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.stream(vec![
        event("e", 5, StreamEvent::JobActive(job("half"))),
        Step::Fail(lost()),
    ]);
    fake.stream(then(snapshot("e", 6, "a"), [Step::Hold]));
    let (state, _events) = subscribe(&client).await;
    assert_eq!((jobs_of(&state), state.seq), (vec!["a"], 6));
    assert_eq!(fake.subscribed()[1].resume, None);
}

#[tokio::test]
async fn a_refused_subscription_is_the_callers_error() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.stream(vec![Step::Fail(refusal(
        RefusalStatus::InvalidArgument,
        "bad_window",
    ))]);
    let error = client
        .event_stream(EventSettings::default())
        .await
        .unwrap_err();
    assert_eq!(
        (error.reason(), error.method()),
        ("bad_window", Some("EventStream"))
    );
    assert_eq!(fake.subscribed().len(), 1);
}

// spec: SDK-07
#[tokio::test]
async fn a_refusal_that_stays_ends_a_stream_instead_of_being_tried_for_ever() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.stream(then(snapshot("e", 5, "a"), [Step::Fail(lost())]));
    fake.stream(vec![Step::Fail(refusal(
        RefusalStatus::PermissionDenied,
        "role_required",
    ))]);
    let (_, mut events) = subscribe(&client).await;
    let Some(StreamItem::Closed(cause)) = events.next().await else {
        panic!("not closed");
    };
    assert!(matches!(cause, Error::PermissionDenied(_)), "{cause:?}");
    assert_eq!(events.next().await, None);
}

// spec: SDK-10
#[tokio::test]
async fn closing_the_client_ends_its_streams() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    fake.stream(then(snapshot("e", 5, "a"), [Step::Hold]));
    let (_, mut events) = subscribe(&client).await;
    drop(client);
    let Some(StreamItem::Closed(Error::Cancelled { .. })) = events.next().await else {
        panic!("not closed");
    };
    assert_eq!(events.next().await, None);
}

// spec: SDK-08
#[tokio::test]
async fn nothing_is_lost_when_the_consumer_is_slower_than_the_buffer() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let many = (6..6 + 10_000).map(|seq| event("e", seq, deleted("x")));
    fake.stream(then(snapshot("e", 5, "a"), many.chain([Step::Hold])));
    let (_, mut events) = subscribe(&client).await;
    for seq in 6..6 + 10_000 {
        assert_eq!(change(events.next().await).seq, seq);
    }
}
