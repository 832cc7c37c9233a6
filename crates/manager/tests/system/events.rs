//! The event stream: nothing missing, nothing twice, whoever comes, goes and comes back (EVT).

use std::collections::BTreeSet;
use std::time::Duration;

use greenroom_sdk::proto::convert::stream::decode;
use greenroom_sdk::proto::manager::{EventStreamEvent, EventStreamRequest, EventStreamResume};
use greenroom_sdk::types::call::Detail;
use greenroom_sdk::types::job::{JobInfo, JobInfoKind, Stage};
use greenroom_sdk::types::node::NodeState;
use greenroom_sdk::types::stream::{Stamped, StreamEvent};
use greenroom_sdk::types::{StartId, Wall};
use greenroom_sdk::{Client, Error, EventSettings, JobSearch, StreamItem};
use greenroom_testkit::{Mirror, TestManager, Watch, job, key, start, within};
use tonic::{Code, Status, Streaming};

/// A subscriber without the SDK's help, so that the test sees every message and breaks it off
/// where it likes.
pub(crate) struct Raw {
    stream: Streaming<EventStreamEvent>,
    pub(crate) mirror: Mirror,
    epoch: String,
    pub(crate) seq: u64,
}

pub(crate) fn asked(protocol: u32) -> EventStreamRequest {
    EventStreamRequest {
        client_protocol: protocol,
        ..EventStreamRequest::default()
    }
}

impl Raw {
    pub(crate) async fn open(client: &Client, request: EventStreamRequest) -> Self {
        let mut raw = client
            .raw()
            .expect("a connection")
            .max_decoding_message_size(64 << 20);
        let answer = within("an event stream", raw.event_stream(request)).await;
        Self {
            stream: answer.expect("subscribers are taken").into_inner(),
            mirror: Mirror::default(),
            epoch: String::new(),
            seq: 0,
        }
    }

    pub(crate) async fn try_next(&mut self) -> Result<Stamped, Status> {
        use prost::Message as _;
        let message = within("an event", self.stream.message()).await?;
        let message = message.expect("the stream does not end in silence");
        let decoded = decode(&message.encode_to_vec()).expect("an event that can be read");
        self.epoch = decoded.epoch;
        self.seq = decoded.stamped.seq;
        self.mirror.take(&decoded.stamped.event);
        Ok(decoded.stamped)
    }

    pub(crate) async fn next(&mut self) -> Stamped {
        self.try_next().await.expect("an event")
    }

    /// Reads the snapshot to its end.
    pub(crate) async fn snapshot(&mut self) {
        while !matches!(self.next().await.event, StreamEvent::InitialDataComplete(_)) {}
    }

    /// Reads until a job of that id is shown, and gives the seqs on the way.
    pub(crate) async fn until_job(&mut self, job_id: &str) -> Vec<u64> {
        let mut seqs = Vec::new();
        while !self.mirror.jobs.contains_key(job_id) {
            let stamped = self.next().await;
            if !is_heartbeat(&stamped) {
                seqs.push(stamped.seq);
            }
        }
        seqs
    }

    pub(crate) fn resume(&self, request: EventStreamRequest) -> EventStreamRequest {
        EventStreamRequest {
            resume: Some(EventStreamResume {
                epoch: self.epoch.clone(),
                after_seq: self.seq,
            }),
            ..request
        }
    }
}

/// The answer to a resume: whether it goes on, and why not.
pub(crate) async fn resumed(raw: &mut Raw) -> (bool, String) {
    match raw.next().await.event {
        StreamEvent::StreamResumed {
            complete, reason, ..
        } => (complete, reason),
        other => panic!("stream_resumed comes first, not {other:?}"),
    }
}

/// Jobs that come, change, end and go, from several callers at once.
async fn bustle(manager: &TestManager, callers: u32, rounds: u32) {
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let client = manager.client().await;
        tasks.spawn(async move {
            for round in 0..rounds {
                let job_id = format!("job-{caller}-{round}");
                let mut it = job(&job_id);
                client.create_job(it.clone()).await.expect("created");
                it.description = "changed".to_owned();
                client.update_job(it, 0).await.expect("updated");
                match round % 3 {
                    0 => client.delete_job(job_id.as_str()).await.expect("deleted"),
                    1 => client
                        .complete_job(job_id.as_str())
                        .await
                        .expect("completed"),
                    _ => {}
                }
            }
        });
    }
    tasks.join_all().await;
}

pub(crate) const fn is_heartbeat(stamped: &Stamped) -> bool {
    matches!(stamped.event, StreamEvent::Heartbeat { .. })
}

pub(crate) fn gapless(from: u64, stamped: &[Stamped]) {
    let seqs: Vec<u64> = stamped
        .iter()
        .filter(|it| !is_heartbeat(it))
        .map(|it| it.seq)
        .collect();
    let expected: Vec<u64> = (from + 1..).take(seqs.len()).collect();
    assert_eq!(seqs, expected, "every change once and in order");
}

// spec: EVT-01, EVT-05
#[tokio::test]
async fn subscribers_who_come_in_the_middle_of_changes_miss_nothing_and_see_nothing_twice() {
    let manager = TestManager::start().await;
    let mut first = manager.watch().await;
    let working = bustle(&manager, 4, 30);
    let joining = async {
        first.until_job("job-0-5", "seen", |_| true).await;
        let second = manager.watch().await;
        first.until_job("job-1-20", "seen", |_| true).await;
        (second, manager.watch().await)
    };
    let ((), (mut second, mut third)) = tokio::join!(working, joining);
    let client = manager.client().await;
    client.create_job(job("sentinel")).await.unwrap();
    for watch in [&mut first, &mut second, &mut third] {
        watch.until_job("sentinel", "seen", |_| true).await;
        gapless(watch.initial().seq, watch.seen());
        assert_eq!(watch.snapshots(), 1);
    }
    assert!(second.initial().seq > 0 && third.initial().seq > second.initial().seq);
    // Those who came later know the same, but for jobs that had ended before.
    for (job_id, known) in &second.mirror().jobs {
        assert_eq!(first.mirror().jobs.get(job_id), Some(known));
    }
    let stored = client.job_search(JobSearch::default()).await.unwrap();
    let stored: BTreeSet<_> = stored
        .into_iter()
        .map(|found| found.job.job.job_id)
        .collect();
    let shown: BTreeSet<_> = first.mirror().jobs.keys().cloned().collect();
    assert_eq!(shown, stored);
}

// spec: EVT-14
#[tokio::test]
async fn a_resume_brings_what_was_missed_and_nothing_else() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    for job_id in ["goes", "ends", "changes", "stays"] {
        client.create_job(job(job_id)).await.unwrap();
    }
    let mut whole = Raw::open(&client, asked(10)).await;
    whole.snapshot().await;
    let mut broken = Raw::open(&client, asked(10)).await;
    broken.snapshot().await;
    client.complete_job("stays").await.unwrap();
    assert!(matches!(
        broken.next().await.event,
        StreamEvent::JobUpdated(_)
    ));
    let left_off = (broken.seq, broken.mirror.clone());
    let request = broken.resume(asked(10));
    drop(broken);

    client.delete_job("goes").await.unwrap();
    client.complete_job("ends").await.unwrap();
    let mut changed = job("changes");
    changed.description = "changed".to_owned();
    client.update_job(changed, 0).await.unwrap();
    client.create_job(job("comes and goes")).await.unwrap_err();
    client.create_job(job("comes-and-goes")).await.unwrap();
    client.delete_job("comes-and-goes").await.unwrap();
    client.delete_job("stays").await.unwrap();

    // At once, without waiting for the fan-out to have come so far.
    let mut again = Raw::open(&client, request).await;
    assert_eq!(resumed(&mut again).await, (true, String::new()));
    again.mirror = left_off.1;
    client.create_job(job("sentinel")).await.unwrap();
    let seqs = again.until_job("sentinel").await;
    let expected: Vec<u64> = (left_off.0 + 1..=left_off.0 + 7).collect();
    assert_eq!(seqs, expected);
    whole.until_job("sentinel").await;
    assert_eq!(again.mirror, whole.mirror);
    assert_eq!(again.seq, whole.seq);
}

// spec: EVT-14
#[tokio::test]
async fn resumes_again_and_again_while_changes_come_in_leave_no_gap() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut whole = manager.watch().await;
    let working = bustle(&manager, 4, 30);
    let breaking = async {
        let mut raw = Raw::open(&client, asked(10)).await;
        raw.snapshot().await;
        let begun = raw.seq;
        let mut seen = Vec::new();
        while seen.len() < 200 {
            let request = raw.resume(asked(10));
            let mirror = raw.mirror.clone();
            raw = Raw::open(&client, request).await;
            assert_eq!(resumed(&mut raw).await, (true, String::new()));
            raw.mirror = mirror;
            for _ in 0..7 {
                seen.push(raw.next().await);
            }
        }
        (begun, seen, raw)
    };
    let ((), (begun, seen, mut raw)) = tokio::join!(working, breaking);
    gapless(begun, &seen);
    client.create_job(job("sentinel")).await.unwrap();
    raw.until_job("sentinel").await;
    whole.until_job("sentinel", "seen", |_| true).await;
    assert_eq!(&raw.mirror, whole.mirror());
}

// spec: EVT-15
#[tokio::test]
async fn a_resume_that_cannot_be_met_gets_a_whole_snapshot_and_the_reason() {
    let manager = TestManager::start_with(|settings| {
        settings.events.held = 2;
        settings.events.held_for = Duration::ZERO;
    })
    .await;
    let client = manager.client().await;
    let mut raw = Raw::open(&client, asked(10)).await;
    raw.snapshot().await;
    let old = raw.resume(asked(10));
    for job_id in ["a", "b", "c"] {
        client.create_job(job(job_id)).await.unwrap();
    }
    raw.until_job("c").await;
    let good = raw.resume(asked(10));
    let changed = |change: fn(&mut EventStreamRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    for (request, reason) in [
        (old, "too long ago"),
        (
            changed(|it| it.resume.as_mut().unwrap().after_seq += 9),
            "a seq from the future",
        ),
        (
            changed(|it| it.resume.as_mut().unwrap().epoch = "e".to_owned()),
            "another epoch, or another window or choice of kinds",
        ),
        (
            changed(|it| it.pending_window_s = 60),
            "another epoch, or another window or choice of kinds",
        ),
        (
            changed(|it| it.include = vec!["jobs".to_owned()]),
            "another epoch, or another window or choice of kinds",
        ),
    ] {
        let mut again = Raw::open(&client, request).await;
        assert_eq!(resumed(&mut again).await, (false, reason.to_owned()));
        again.snapshot().await;
        assert_eq!(again.mirror.jobs.len(), 3);
    }
    let mut again = Raw::open(&client, good).await;
    assert!(resumed(&mut again).await.0);
}

// spec: EVT-14, EVT-16
#[tokio::test]
async fn subscribers_go_on_over_a_restart_and_a_crash_of_the_manager() {
    let mut manager = TestManager::start().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let client = manager.client().await;
    super::running(&client, &mut watch, &worker, "before").await;
    worker.wait_acknowledged().await;
    let epoch = watch.initial().epoch.clone();
    for round in ["one", "two", "three", "four"] {
        let client = manager.client().await;
        client.create_job(job(round)).await.unwrap();
        if round == "one" || round == "three" {
            // Whoever ends in order sees to it that everybody has everything.
            manager.restart().await;
        } else {
            watch.until_job(round, "seen", |_| true).await;
            manager.crash().await;
        }
        watch.until_node("n1", NodeState::Unreachable).await;
        watch.until_node("n1", NodeState::Running).await;
    }
    let client = manager.client().await;
    client.create_job(job("sentinel")).await.unwrap();
    watch.until_job("sentinel", "seen", |_| true).await;
    assert_eq!(watch.snapshots(), 1, "no snapshot was needed");
    gapless(watch.initial().seq, watch.seen());
    assert_eq!(manager.watch().await.initial().epoch, epoch);
}

// spec: EVT-16
#[tokio::test]
async fn a_restored_store_begins_a_new_epoch_with_a_whole_snapshot() {
    let mut manager = TestManager::start().await;
    let client = manager.client().await;
    client.create_job(job("kept")).await.unwrap();
    let mut watch = manager.watch().await;
    let epoch = watch.initial().epoch.clone();
    manager.end().await;
    std::fs::write(manager.data_dir().join("state.db"), "no database at all").unwrap();
    manager.run().await;
    watch.until_snapshot().await;
    assert_ne!(watch.initial().epoch, epoch);
    assert!(watch.mirror().jobs.contains_key("kept"), "the log had it");
    manager.client().await.create_job(job("new")).await.unwrap();
    watch.until_job("new", "seen", |_| true).await;
}

// spec: EVT-11, EVT-13
#[tokio::test]
async fn a_subscriber_that_stops_reading_is_cut_off_and_told_where_to_go_on() {
    let manager = TestManager::start_with(|settings| settings.events.queue_events = 64).await;
    let client = manager.client().await;
    let mut slow = Raw::open(&manager.client().await, asked(10)).await;
    slow.snapshot().await;
    let mut quick = manager.watch().await;
    // More than all the buffers on the way can take.
    for number in 0..400 {
        let mut big = job(&format!("job-{number}"));
        big.services[0].configuration = "x".repeat(60_000);
        client.create_job(big).await.unwrap();
        quick
            .until_job(&format!("job-{number}"), "seen", |_| true)
            .await;
    }
    gapless(quick.initial().seq, quick.seen());

    let mut seen = Vec::new();
    let refused = loop {
        match slow.try_next().await {
            Ok(stamped) if is_heartbeat(&stamped) => {}
            Ok(stamped) => seen.push(stamped.seq),
            Err(refused) => break refused,
        }
    };
    assert!(seen.len() < 400);
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let refusal = greenroom_sdk::proto::convert::refusal::read_refusal(&refused).unwrap();
    assert_eq!(refusal.reason, "subscriber_too_slow");
    let last = i64::try_from(*seen.last().unwrap()).unwrap();
    assert_eq!(refusal.details["seq"], Detail::Int(last));
    assert_eq!(refusal.details["epoch"], Detail::Text(slow.epoch.clone()));

    let request = slow.resume(asked(10));
    let mut again = Raw::open(&client, request).await;
    assert!(resumed(&mut again).await.0);
    again.mirror = slow.mirror;
    seen.extend(again.until_job("job-399").await);
    let expected: Vec<u64> = (seen[0]..).take(400).collect();
    assert_eq!(seen, expected);
}

// spec: EVT-06, EVT-10
#[tokio::test]
async fn heartbeats_and_added_kinds_go_only_to_those_who_announce_a_protocol() {
    let manager =
        TestManager::start_with(|settings| settings.events.heartbeat = Duration::from_millis(20))
            .await;
    let client = manager.client().await;
    let mut published = Raw::open(&client, asked(0)).await;
    published.snapshot().await;
    let mut watch = manager.watch().await;
    let worker = manager.worker("n1").await;
    watch
        .until("an inventory", |event| {
            matches!(event, StreamEvent::NodeInventoryUpdated { .. }).then_some(())
        })
        .await;
    let beat = loop {
        let stamped = watch.next().await;
        if is_heartbeat(&stamped) {
            break stamped;
        }
    };
    let latest = watch.seen().iter().map(|it| it.seq).max().unwrap();
    assert_eq!(beat.seq, latest);

    client.create_job(job("sentinel")).await.unwrap();
    while !published.mirror.jobs.contains_key("sentinel") {
        let event = published.next().await.event;
        let is_published = matches!(
            event,
            StreamEvent::NodeStarting { .. }
                | StreamEvent::NodeStarted { .. }
                | StreamEvent::JobPending(_)
        );
        assert!(is_published, "{event:?}");
    }
    drop(worker);
}

// spec: EVT-09, EVT-12
#[tokio::test]
async fn news_of_an_instance_is_passed_on_up_to_a_number_and_the_rest_is_counted() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let (n1, n2) = (manager.worker("n1").await, manager.worker("n2").await);
    let mut watch = manager.watch().await;
    let start_id = super::running(&client, &mut watch, &n1, "on-air").await;
    let latest = watch.seen().iter().map(|it| it.seq).max().unwrap();
    let news = |start_id: &StartId, text: String| JobInfo {
        key: key("on-air"),
        start_id: start_id.clone(),
        at: Wall(1_000),
        kind: JobInfoKind::ServiceStarted(text),
    };
    n2.inform(&news(&start_id, "another worker's word".to_owned()));
    for number in 0..400 {
        n1.inform(&news(&start_id, number.to_string()));
    }
    let (mut told, mut lost) = (0, 0);
    while told + lost < 400 {
        let stamped = watch.next().await;
        match stamped.event {
            StreamEvent::JobInfo(info) => {
                assert_eq!(stamped.seq, latest, "it has no number of its own");
                assert_ne!(
                    info.kind,
                    JobInfoKind::ServiceStarted("another worker's word".into())
                );
                told += 1;
            }
            StreamEvent::EventsLost { kind, count } => {
                assert_eq!(kind, "job_info");
                lost += count;
            }
            StreamEvent::Heartbeat { .. } => {}
            other => panic!("nothing else happens: {other:?}"),
        }
    }
    assert!(told >= 50 && lost > 0, "{told} told, {lost} lost");
    let request = EventStreamRequest {
        resume: Some(EventStreamResume {
            epoch: watch.initial().epoch.clone(),
            after_seq: latest - 1,
        }),
        ..asked(10)
    };
    let mut again = Raw::open(&client, request).await;
    assert!(resumed(&mut again).await.0);
    client.create_job(job("sentinel")).await.unwrap();
    assert_eq!(
        again.until_job("sentinel").await,
        [latest, latest + 1],
        "news is not replayed"
    );
}

// spec: WINDOW-03, WINDOW-05, EVT-15
#[tokio::test]
async fn time_brings_jobs_into_the_window_and_whoever_was_away_gets_a_snapshot() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let request = EventStreamRequest {
        pending_window_s: 3_600,
        ..asked(10)
    };
    let mut away = Raw::open(&client, request.clone()).await;
    away.snapshot().await;
    let mut here = Raw::open(&client, request.clone()).await;
    here.snapshot().await;
    let mut ahead = job("ahead");
    ahead.start_date_time = Some(now().plus(3_600_000 + 5_000));
    client.create_job(ahead).await.unwrap();
    client.create_job(job("sentinel")).await.unwrap();
    let before = away.seq;
    assert_eq!(
        away.until_job("sentinel").await,
        [before + 2],
        "the other lies beyond"
    );
    let request = away.resume(request);
    drop(away);

    here.until_job("ahead").await;
    assert_eq!(here.seq, before + 2, "time alone raises no number");
    let mut again = Raw::open(&client, request).await;
    let doubt = "jobs came into the window meanwhile".to_owned();
    assert_eq!(resumed(&mut again).await, (false, doubt));
    again.snapshot().await;
    assert_eq!(again.mirror, here.mirror);
}

fn now() -> Wall {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Wall(i64::try_from(since.unwrap().as_millis()).unwrap())
}

// spec: EVT-18
#[tokio::test]
async fn the_number_of_subscribers_is_bounded() {
    let manager = TestManager::start_with(|settings| settings.events.subscribers = 1).await;
    let first = manager.watch().await;
    let refused = manager
        .client()
        .await
        .event_stream(EventSettings::default())
        .await;
    assert_eq!(refused.unwrap_err().reason(), "too_many_subscribers");
    drop(first);
}

// spec: EVT-20, WINDOW-01
#[tokio::test]
async fn a_subscriber_gets_the_kinds_it_asked_for_and_bad_wishes_are_refused() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let settings = EventSettings {
        include: vec![greenroom_sdk::EventGroup::Nodes],
        ..EventSettings::default()
    };
    let mut nodes = Watch::begin(manager.client().await, settings).await;
    client.create_job(job("unseen")).await.unwrap();
    let worker = manager.worker("n1").await;
    let first = nodes.next().await.event;
    assert!(
        matches!(first, StreamEvent::NodeStarting { .. }),
        "{first:?}"
    );
    drop(worker);

    let refused = |change: fn(&mut EventStreamRequest)| {
        let mut request = asked(10);
        change(&mut request);
        let mut raw = client.raw().unwrap();
        async move { raw.event_stream(request).await.unwrap_err() }
    };
    let reason = |status: &Status| {
        greenroom_sdk::proto::convert::refusal::read_refusal(status)
            .unwrap()
            .reason
    };
    let unknown = refused(|it| it.include = vec!["songs".to_owned()]).await;
    assert_eq!(reason(&unknown), "unknown_kind");
    let negative = refused(|it| it.pending_window_s = -1).await;
    assert_eq!(reason(&negative), "bad_window");
}

// spec: API-19
#[tokio::test]
async fn an_end_in_order_ends_streams_by_name_and_touches_no_job() {
    let mut manager = TestManager::start().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let client = manager.client().await;
    super::running(&client, &mut watch, &worker, "on-air").await;
    let told = worker.orders().len();
    let settings = EventSettings {
        auto_resume: false,
        ..EventSettings::default()
    };
    let other = manager.client().await;
    let (_, mut events) = other.event_stream(settings).await.unwrap();
    manager.end().await;
    let item = within("the stream's end", events.next()).await;
    let Some(StreamItem::Closed(Error::Unavailable(refused))) = item else {
        panic!("the stream ends with a name: {item:?}");
    };
    assert_eq!(refused.reason, "shutting_down");
    assert_eq!(worker.orders().len(), told, "nothing is stopped");
    assert_eq!(worker.instances().len(), 1);
}

// spec: EVT-09, JOB-28
#[tokio::test]
async fn a_search_shows_what_a_start_waits_for_until_it_runs() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    worker.hold();
    client.create_job(job("late")).await.unwrap();
    let order = start("late", worker.node_id().as_str());
    client.start_job(order).await.unwrap();
    let start_id = worker.wait_provision("late").await;
    let told = JobInfo {
        key: key("late"),
        start_id: start_id.clone(),
        at: Wall(1_000),
        kind: JobInfoKind::Stage {
            stage: Stage::Build,
            text: "image x cannot be pulled: connection refused".to_owned(),
        },
    };
    worker.inform(&told);
    watch
        .until("the news", |event| {
            matches!(event, StreamEvent::JobInfo(_)).then_some(())
        })
        .await;
    let last_info = async || {
        let found = client.job_by_id("late").await.unwrap();
        found.unwrap().last_info
    };
    assert_eq!(last_info().await, Some(told));
    worker.started(&start_id);
    watch.until_last("late", "running").await;
    assert_eq!(last_info().await, None);
}

// spec: EVT-01, FIELD-65
#[tokio::test]
async fn the_first_change_after_a_snapshot_is_the_next_one_while_others_write() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let writer = tokio::spawn({
        let client = manager.client().await;
        async move {
            for number in 0..400 {
                client.create_job(job(&format!("j{number}"))).await.unwrap();
            }
        }
    });
    for _ in 0..20 {
        let mut raw = Raw::open(&client, asked(1)).await;
        raw.snapshot().await;
        let snapshot = raw.seq;
        let shown = raw.mirror.jobs.len();
        if writer.is_finished() {
            client
                .create_job(job(&format!("late-{snapshot}")))
                .await
                .unwrap();
        }
        let mut first = raw.next().await;
        while is_heartbeat(&first) {
            first = raw.next().await;
        }
        assert_eq!(first.seq, snapshot + 1);
        assert_eq!(
            raw.mirror.jobs.len(),
            shown + 1,
            "it is not in the snapshot"
        );
    }
    writer.await.unwrap();
}

// spec: EVT-16, HARDM-17
#[tokio::test]
async fn who_resumes_after_a_backup_was_put_back_is_told_all_anew_and_nothing_of_before() {
    let mut manager = TestManager::start().await;
    let client = manager.client().await;
    client.create_job(job("kept")).await.unwrap();
    let copy = manager.folder().join("copy.db");
    greenroom_store::offline::back_up(manager.data_dir(), Some(&copy), 1, 1).unwrap();
    let mut watch = manager.watch().await;
    let epoch = watch.initial().epoch.clone();
    client.create_job(job("given-up")).await.unwrap();
    watch.until_job("given-up", "seen", |_| true).await;
    manager.end().await;
    greenroom_manager::restore(manager.data_dir(), &copy).unwrap();
    manager.run().await;
    watch.until_snapshot().await;
    assert_ne!(watch.initial().epoch, epoch);
    let jobs: Vec<&str> = watch.mirror().jobs.keys().map(|id| id.as_str()).collect();
    assert_eq!(jobs, ["kept"]);
    // From here on it goes on as ever.
    let epoch = watch.initial().epoch.clone();
    manager.restart().await;
    let client = manager.client().await;
    client.create_job(job("after")).await.unwrap();
    watch.until_job("after", "seen", |_| true).await;
    assert_eq!(manager.watch().await.initial().epoch, epoch);
}
