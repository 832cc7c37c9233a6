use std::sync::Arc;

use greenroom_types::{
    Wall,
    job::{At, HistoryEntry, HistoryKind, Job, JobInfo, JobInfoKind, JobState, StopReason},
    node::{InstanceKey, NodeMetadata, RejectionCode},
    stream::Health,
};

use super::*;

const FULL: Form = Form {
    minor: PROTOCOL_MINOR,
    history_limit: 0,
};
const PUBLISHED: Form = Form {
    minor: 0,
    history_limit: 0,
};

fn stamped(event: StreamEvent) -> Stamped {
    Stamped {
        seq: 41,
        at: Wall(1_000),
        event,
    }
}

fn at() -> At {
    At {
        role: "primary".into(),
        node: Arc::new(NodeMetadata {
            node_id: "n1".into(),
            ..NodeMetadata::default()
        }),
        running: None,
    }
}

fn stopping(reason: StopReason) -> HistoryKind {
    HistoryKind::Stopping {
        at: at(),
        reason,
        detail: String::new(),
    }
}

fn job(kinds: Vec<HistoryKind>) -> Arc<JobWithHistory> {
    let history = kinds.into_iter().zip(1..).map(|(kind, seq)| HistoryEntry {
        at: Wall(1_000),
        seq,
        start_id: None,
        kind,
    });
    Arc::new(JobWithHistory {
        job: Job {
            job_id: "j".into(),
            ..Job::default()
        },
        state: JobState::Active,
        history: history.collect(),
        ..JobWithHistory::default()
    })
}

fn history_of(bytes: &[u8]) -> Vec<HistoryKind> {
    match decode(bytes).unwrap().stamped.event {
        StreamEvent::JobUpdated(job) => job.history.iter().map(|it| it.kind.clone()).collect(),
        other => panic!("{other:?}"),
    }
}

// spec: HIST-01
#[test]
fn a_published_client_gets_the_published_kinds_of_history() {
    let kinds = vec![
        HistoryKind::Created,
        HistoryKind::Provisioned(at()),
        HistoryKind::Prepared(at()),
        HistoryKind::Rejected {
            at: at(),
            code: RejectionCode::Gpu,
            detail: String::new(),
        },
        stopping(StopReason::LeaseLost),
        stopping(StopReason::Migration),
        stopping(StopReason::BundleChanged),
        stopping(StopReason::JobFailed),
        HistoryKind::Stopped(at()),
        HistoryKind::Failed {
            reason: "r".to_owned(),
            by: "b".to_owned(),
        },
        HistoryKind::Completed,
    ];
    let event = stamped(StreamEvent::JobUpdated(job(kinds.clone())));
    assert_eq!(history_of(&encode("e", &event, FULL).unwrap()), kinds);
    assert_eq!(
        history_of(&encode("e", &event, PUBLISHED).unwrap()),
        vec![
            HistoryKind::Created,
            HistoryKind::Provisioned(at()),
            stopping(StopReason::NodeStopped),
            stopping(StopReason::UserRequested),
            stopping(StopReason::UserRequested),
            stopping(StopReason::JobFailed),
            HistoryKind::Stopped(at()),
            HistoryKind::Completed,
        ]
    );
}

#[test]
fn the_newest_entries_of_a_history_are_sent() {
    let kinds: Vec<_> = (0..150).map(|_| HistoryKind::Created).collect();
    let event = stamped(StreamEvent::JobUpdated(job(kinds)));
    let sent = |history_limit| {
        let request = manager::EventStreamRequest {
            client_protocol: 1,
            history_limit,
            ..Default::default()
        };
        let message = write("e", &event, Form::asked(&request)).unwrap();
        let Some(Event::JobUpdated(updated)) = message.event else {
            panic!("{message:?}");
        };
        let entries = updated.job_with_history.unwrap().history_entry;
        (entries.len(), entries.last().unwrap().seq)
    };
    assert_eq!(sent(None), (100, 150));
    assert_eq!(sent(Some(3)), (3, 150));
    assert_eq!(sent(Some(0)), (150, 150));
}

// spec: EVT-06, EVT-07
#[test]
fn kinds_are_sent_from_their_minor_on() {
    let paused = StreamEvent::LeasesPaused {
        paused: true,
        reason: String::new(),
        by: String::new(),
        since: None,
    };
    let prefetched = StreamEvent::ImagesPrefetched {
        node_id: "n".into(),
        batch_id: String::new(),
        results: Vec::new(),
    };
    let heartbeat = StreamEvent::Heartbeat {
        server_time: Wall(0),
    };
    for (event, minor) in [
        (StreamEvent::JobDeleted("j".into()), 0),
        (StreamEvent::BundleDeleted("b".into()), 1),
        (heartbeat, 1),
        (paused, 6),
        (prefetched, 9),
    ] {
        for announced in 0..=PROTOCOL_MINOR {
            let form = Form {
                minor: announced,
                history_limit: 0,
            };
            assert_eq!(form.takes(&event), announced >= minor, "{event:?}");
            assert_eq!(
                encode("e", &stamped(event.clone()), form).is_ok(),
                announced >= minor
            );
        }
    }
}

// spec: EVT-03
#[test]
fn added_providers_and_news_are_not_sent_to_published_clients() {
    let health = vec![
        ProviderHealth::Aws(vec![("eu-west-1".to_owned(), Health::Failed)]),
        ProviderHealth::Local(Health::Healthy),
        ProviderHealth::CloudHypervisor(Vec::new()),
    ];
    let event = stamped(StreamEvent::InitialDataComplete(health.clone()));
    let sent = |form| {
        decode(&encode("e", &event, form).unwrap())
            .unwrap()
            .stamped
            .event
    };
    assert_eq!(sent(FULL), StreamEvent::InitialDataComplete(health.clone()));
    assert_eq!(
        sent(PUBLISHED),
        StreamEvent::InitialDataComplete(health[..1].to_vec())
    );
    assert!(!PUBLISHED.takes(&StreamEvent::ProviderHealthChange(health[1].clone())));
    assert!(PUBLISHED.takes(&StreamEvent::ProviderHealthChange(health[0].clone())));

    let info = |kind| {
        StreamEvent::JobInfo(JobInfo {
            key: InstanceKey::new("j".into(), "primary".into()),
            start_id: "s".into(),
            at: Wall(0),
            kind,
        })
    };
    let status = JobInfoKind::Status {
        text: String::new(),
        progress: None,
    };
    assert!(!PUBLISHED.takes(&info(status)));
    assert!(PUBLISHED.takes(&info(JobInfoKind::ServiceStarted("s".to_owned()))));
}

#[test]
fn forms_that_share_an_encoding_have_equal_bytes_and_others_do_not() {
    let forms: Vec<Form> = [0, 1, 9, 10]
        .into_iter()
        .flat_map(|minor| {
            // The last takes nothing of three entries away.
            [0, 1, 2, 3].map(|history_limit| Form {
                minor,
                history_limit,
            })
        })
        .collect();
    let events = [
        StreamEvent::JobUpdated(job(vec![
            HistoryKind::Created,
            stopping(StopReason::Migration),
            stopping(StopReason::LeaseLost),
        ])),
        StreamEvent::InitialDataComplete(vec![ProviderHealth::Local(Health::Healthy)]),
        StreamEvent::JobDeleted("j".into()),
    ];
    for event in events.map(stamped) {
        for one in &forms {
            let own = encode("e", &event, *one).unwrap();
            let shared = encode("e", &event, one.shared(&event.event)).unwrap();
            assert_eq!(own, shared, "{one:?}");
            for other in &forms {
                let same = one.shared(&event.event) == other.shared(&event.event);
                assert_eq!(
                    own == encode("e", &event, *other).unwrap(),
                    same,
                    "{one:?} {other:?}"
                );
            }
        }
    }
}

#[test]
fn every_event_carries_epoch_seq_and_time() {
    let event = stamped(StreamEvent::JobDeleted("j".into()));
    let read = decode(&encode("epoch-1", &event, FULL).unwrap()).unwrap();
    assert_eq!(read.epoch, "epoch-1");
    assert_eq!(read.stamped, event);
}

// spec: SDK-08
#[test]
fn a_kind_that_nobody_knows_yet_is_known_by_its_number() {
    let event = manager::EventStreamEvent {
        epoch: "e".to_owned(),
        seq: 9,
        ..Default::default()
    };
    let mut bytes = event.encode_to_vec();
    // Field 300, length-delimited, two bytes of a message.
    prost::encoding::encode_varint((300 << 3) | 2, &mut bytes);
    bytes.extend_from_slice(&[2, 8, 1]);
    let read = decode(&bytes).unwrap();
    assert_eq!(read.stamped.event, StreamEvent::Unknown { number: 300 });
    assert_eq!((read.epoch.as_str(), read.stamped.seq), ("e", 9));
}

// spec: SDK-12
#[test]
fn an_event_without_what_it_needs_is_refused_by_path() {
    let empty = manager::EventStreamEvent::default().encode_to_vec();
    let error = decode(&empty).unwrap_err();
    assert_eq!(
        (error.reason, error.path.as_str()),
        ("missing_field", "event")
    );

    let no_job = manager::EventStreamEvent {
        event: Some(Event::JobUpdated(manager::JobUpdated::default())),
        ..Default::default()
    };
    let error = decode(&no_job.encode_to_vec()).unwrap_err();
    assert_eq!(error.path, "job_updated.jobWithHistory");
    assert!(decode(&[0xff]).is_err());
}
