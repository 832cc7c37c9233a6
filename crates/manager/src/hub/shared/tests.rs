//! Streams that show news alike share its encoding; those that do not have one of their own.

use std::sync::Barrier;

use greenroom_ledger::Wish;
use greenroom_proto::convert::call::PROTOCOL_MINOR;
use greenroom_types::Wall;
use greenroom_types::job::{HistoryEntry, HistoryKind, Job, JobState, JobWithHistory};
use greenroom_types::stream::JobLeaseInfo;

use super::super::tests::info;
use super::super::{End, News, Queue};
use super::*;
use crate::settings::EventSettings;

/// What one stream knows, and what it was told so far.
struct Stream {
    queue: Arc<Queue>,
    view: Subscriber,
    form: Form,
    told: Vec<Bytes>,
}

fn hub() -> Hub {
    Hub::new(EventSettings {
        queue_events: 150,
        ..EventSettings::default()
    })
}

fn wish(minor: u32, history_limit: Option<u32>) -> Wish {
    Wish {
        client_protocol: minor,
        history_limit,
        ..Wish::default()
    }
}

impl Stream {
    fn open(hub: &Hub, wish: Wish) -> Self {
        let form = Form {
            minor: wish.client_protocol,
            history_limit: wish.history_limit.unwrap_or(100),
        };
        Self {
            queue: hub.subscribe().unwrap(),
            view: Subscriber::new(wish).unwrap(),
            form,
            told: Vec::new(),
        }
    }

    fn usual(hub: &Hub) -> Self {
        Self::open(hub, wish(PROTOCOL_MINOR, None))
    }

    /// Reads what waits.
    fn read(&mut self, hub: &Hub) {
        while let Some(news) = self.queue.try_next() {
            let (News::Change(news) | News::Info(news) | News::Audit(news)) = news.unwrap() else {
                panic!("nothing is lost");
            };
            let now = Now::default();
            self.told
                .extend(news.tell(&mut self.view, now, self.form, hub));
        }
    }
}

fn job(description: u64, state: JobState, entries: u64) -> What {
    let history = (1..=entries).map(|seq| HistoryEntry {
        at: Wall(0),
        seq,
        start_id: None,
        kind: HistoryKind::Created,
    });
    What::Job(Arc::new(JobWithHistory {
        job: Job {
            job_id: "j".into(),
            description: description.to_string(),
            ..Job::default()
        },
        state,
        history: history.collect(),
        ..JobWithHistory::default()
    }))
}

fn change(seq: u64, what: What) -> Change {
    Change {
        seq,
        at: Wall(0),
        what,
    }
}

/// A change of each sort in turn, a job with a history of three among them.
fn mixed(seq: u64) -> Change {
    let what = match seq % 4 {
        0 => What::Event(StreamEvent::NodeStopped {
            node_id: format!("n{seq}").into(),
        }),
        1 => What::Event(StreamEvent::BundleDeleted("b".into())),
        _ => job(seq, JobState::Active, 3),
    };
    change(seq, what)
}

fn expected(wish: Wish, changes: impl Iterator<Item = Change>) -> Vec<Bytes> {
    let form = Form {
        minor: wish.client_protocol,
        history_limit: wish.history_limit.unwrap_or(100),
    };
    let mut view = Subscriber::new(wish).unwrap();
    let seen = changes.filter_map(|change| view.on_change(Now::default(), &change));
    seen.map(|stamped| encode_body(&stamped.event, stamped.seq, form).unwrap())
        .collect()
}

// spec: PERF-11
#[test]
fn a_change_is_encoded_once_for_all_streams_that_show_it_alike() {
    let hub = hub();
    let mut streams: Vec<Stream> = (0..32).map(|_| Stream::usual(&hub)).collect();
    let silent = Stream::usual(&hub);
    let expected = expected(wish(PROTOCOL_MINOR, None), (1..=200).map(mixed));
    for half in [1..=100, 101..=200] {
        hub.publish(half.map(mixed).collect());
        for stream in &mut streams {
            stream.read(&hub);
        }
    }
    assert_eq!(hub.encoded(), 200);
    for stream in &streams {
        assert!(stream.told == expected);
    }
    // The one that reads nothing was cut off meanwhile, which nobody else noticed.
    assert!(matches!(silent.queue.try_next(), Some(Err(End::TooSlow))));
}

// spec: PERF-11, EVT-08
#[test]
fn what_is_shown_otherwise_is_encoded_once_more_and_only_that() {
    let hub = hub();
    let wishes = [
        wish(PROTOCOL_MINOR, None),
        // Takes nothing of three entries away.
        wish(PROTOCOL_MINOR, Some(3)),
        wish(1, Some(0)),
        // A job with other bytes.
        wish(PROTOCOL_MINOR, Some(2)),
        wish(PROTOCOL_MINOR, Some(2)),
        // A job with other bytes, and no bundles.
        wish(0, None),
        wish(0, Some(50)),
    ];
    let mut streams: Vec<Stream> = wishes
        .iter()
        .flat_map(|wish| [wish, wish])
        .map(|wish| Stream::open(&hub, wish.clone()))
        .collect();
    hub.publish((1..=100).map(mixed).collect());
    for stream in &mut streams {
        stream.read(&hub);
    }
    let jobs = (1..=100).filter(|seq| seq % 4 > 1).count() as u64;
    assert_eq!(hub.encoded(), 100 + 2 * jobs);
    for (wish, streams) in wishes.iter().zip(streams.chunks(2)) {
        let expected = expected(wish.clone(), (1..=100).map(mixed));
        assert!(streams.iter().all(|it| it.told == expected), "{wish:?}");
    }
}

// spec: PERF-11
#[test]
fn a_change_that_is_news_to_one_and_an_update_to_another_has_an_encoding_for_each() {
    let hub = hub();
    let pending = |seq| change(seq, job(seq, JobState::Pre, 1));
    let mut knowing = [Stream::usual(&hub), Stream::usual(&hub)];
    hub.publish(vec![pending(1)]);
    knowing.iter_mut().for_each(|it| it.read(&hub));
    assert_eq!(hub.encoded(), 1);
    let mut new = [Stream::usual(&hub), Stream::usual(&hub)];
    hub.publish(vec![pending(2)]);
    for stream in knowing.iter_mut().chain(&mut new) {
        stream.read(&hub);
    }
    assert_eq!(hub.encoded(), 3);
    assert_eq!(new[0].told, new[1].told);
    assert_ne!(knowing[0].told[1], new[0].told[0]);
}

// spec: PERF-11
#[test]
fn news_of_instances_and_audit_entries_are_encoded_once_as_well() {
    let hub = hub();
    let asking = Wish {
        include: vec!["jobs".to_owned(), "audit".to_owned()],
        ..wish(PROTOCOL_MINOR, None)
    };
    let mut streams: Vec<Stream> = (0..32)
        .map(|_| Stream::open(&hub, asking.clone()))
        .collect();
    let text = String::new;
    let entry = AuditEntry {
        seq: 1,
        at: Wall(0),
        source: text(),
        kind: text(),
        actor: text(),
        payload: text(),
        prev_hash: text(),
        hash: text(),
    };
    hub.inform(info(), false);
    hub.audit(&Arc::new(entry));
    for stream in &mut streams {
        stream.read(&hub);
        assert_eq!(stream.told.len(), 2);
    }
    assert_eq!(hub.encoded(), 2);
}

// spec: PERF-11
#[test]
fn streams_that_come_at_the_same_time_wait_for_the_one_that_encodes() {
    let hub = hub();
    let news = Shared::of_change(change(1, job(1, JobState::Active, 3)));
    let together = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut stream = Stream::usual(&hub);
                together.wait();
                let told = news.tell(&mut stream.view, Now::default(), stream.form, &hub);
                assert!(told.is_some());
            });
        }
    });
    assert_eq!(hub.encoded(), 1);
}

// spec: PERF-11
#[test]
fn limits_of_their_own_make_no_change_heavier_than_so_many_times_itself() {
    let hub = hub();
    let news = Shared::of_change(change(1, job(1, JobState::Active, 100)));
    let mut lengths = Vec::new();
    for limit in 1..=30 {
        let mut stream = Stream::open(&hub, wish(PROTOCOL_MINOR, Some(limit)));
        let told = news.tell(&mut stream.view, Now::default(), stream.form, &hub);
        lengths.push(told.unwrap().len());
    }
    assert!(lengths.is_sorted_by(|one, next| one < next), "{lengths:?}");
    assert_eq!(news.bodies.lock().unwrap().len(), BODIES_MAX);
}

// spec: PERF-11
#[test]
fn an_encoding_is_gone_when_the_last_queue_is_past_it_though_the_change_is_held() {
    let hub = hub();
    let mut streams = [Stream::usual(&hub), Stream::usual(&hub)];
    hub.publish(vec![mixed(1)]);
    let mut waiting = Vec::new();
    for stream in &mut streams {
        let Some(Ok(News::Change(news))) = stream.queue.try_next() else {
            panic!("a change waits");
        };
        news.tell(&mut stream.view, Now::default(), stream.form, &hub);
        waiting.push(Arc::downgrade(&news));
    }
    assert!(waiting.iter().all(|it| it.upgrade().is_none()));
    assert_eq!(hub.past(0).unwrap().changes.len(), 1);
}

#[test]
fn what_the_wire_has_no_place_for_is_tried_once_and_left_out_for_all() {
    let hub = hub();
    let lease = JobLeaseInfo {
        key: info().key,
        start_id: info().start_id,
        node_id: "n".into(),
        fence: 1,
        ttl_ms: 1,
        state: "unheard of".to_owned(),
        remaining_ms: 1,
        refreshed_at: None,
    };
    let what = What::Event(StreamEvent::LeaseChanged(lease));
    let mut streams = [Stream::usual(&hub), Stream::usual(&hub)];
    hub.publish(vec![change(1, what)]);
    for stream in &mut streams {
        stream.read(&hub);
        assert!(stream.told.is_empty());
    }
    assert_eq!(hub.encoded(), 1);
}
