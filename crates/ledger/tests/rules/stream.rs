//! Rules about what one subscriber is sent.

use std::sync::Arc;

use crate::common::*;
use greenroom_ledger::{Link, Subscriber, Wish};
use greenroom_types::call::Call;
use greenroom_types::stream::{Health, ProviderHealth, Stamped, StreamEvent};
use greenroom_types::{Mono, Now, Wall};

fn now(ms: i64) -> Now {
    Now {
        mono: Mono(u64::try_from(ms).unwrap()),
        wall: ZERO.plus(ms),
    }
}

fn wish(window: i64, minor: u32) -> Wish {
    Wish {
        pending_window_s: window,
        client_protocol: minor,
        ..Wish::default()
    }
}

fn name(event: &StreamEvent) -> String {
    let debug = format!("{event:?}");
    let kind = debug.split(['(', ' ', '{']).next().unwrap().to_owned();
    match event {
        StreamEvent::JobActive(view)
        | StreamEvent::JobPending(view)
        | StreamEvent::JobUpdated(view)
        | StreamEvent::JobOutOfWindow(view) => format!("{kind} {}", view.job.job_id),
        StreamEvent::JobDeleted(id) => format!("{kind} {id}"),
        _ => kind,
    }
}

fn names(events: &[Stamped]) -> Vec<String> {
    events.iter().map(|stamped| name(&stamped.event)).collect()
}

fn subscribe(w: &World, wish: Wish, at: Now) -> (Subscriber, Vec<Stamped>) {
    let mut subscriber = Subscriber::new(wish).unwrap();
    let events = subscriber.snapshot(at, &w.ledger.standing(), aws_and_local());
    (subscriber, events)
}

fn aws_and_local() -> Vec<ProviderHealth> {
    vec![
        ProviderHealth::Aws(vec![("eu".into(), Health::Healthy)]),
        ProviderHealth::Local(Health::Healthy),
    ]
}

/// What the subscriber is sent for the last apply.
fn sent(w: &World, subscriber: &mut Subscriber, at: Now) -> Vec<String> {
    w.last
        .changes
        .iter()
        .filter_map(|change| subscriber.on_change(at, change))
        .map(|stamped| name(&stamped.event))
        .collect()
}

fn timed(w: &mut World, id: &str, start: Option<Wall>, create: bool) {
    let mut new = job(id);
    new.start_date_time = start;
    let call = if create {
        Call::CreateJob(Box::new(new))
    } else {
        Call::UpdateJob(Box::new(new), 0)
    };
    w.call(call).unwrap();
}

// spec: EVT-01, EVT-02, EVT-03, EVT-04, WINDOW-01, WINDOW-02
#[test]
fn a_snapshot_has_its_order_and_one_seq() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.slot("n3");
    w.dial_in("n3", "m").unwrap();
    w.call(Call::CreateBundle(Box::new(bundle("b", &["e"], 1))))
        .unwrap();
    w.running("b.0.e", "n1");
    w.create("pending");
    w.create("done");
    w.call(Call::CompleteJob("done".into())).unwrap();
    timed(&mut w, "far", Some(ZERO.plus(60_001)), true);
    w.link("n2", Link::Dropped);
    w.link("n2", Link::GraceOver);
    let (_, events) = subscribe(&w, wish(60, 10), now(0));
    assert_eq!(
        names(&events),
        [
            "NodeRunning",
            "NodeRunning",
            "NodeStopping",
            "NodeStarting",
            "JobActive b.0.e",
            "JobPending pending",
            "BundleActive",
            "NodeInventorySnapshot",
            "NodeInventorySnapshot",
            "InitialDataComplete",
        ]
    );
    assert!(events.iter().all(|event| event.seq == w.ledger.seq()));
    let StreamEvent::NodeRunning { instances, .. } = &events[0].event else {
        panic!();
    };
    assert_eq!(instances.len(), 1);
}

// spec: EVT-19, PERF-12
#[test]
fn a_snapshot_takes_the_jobs_as_they_stand_and_copies_none() {
    let mut w = World::new();
    w.node("n1");
    w.call(Call::CreateBundle(Box::new(bundle("b", &["e", "f"], 2))))
        .unwrap();
    w.running("b.0.e", "n1");
    let (_, events) = subscribe(&w, wish(60, 10), now(0));
    let shown = events.iter().filter_map(|stamped| match &stamped.event {
        StreamEvent::JobActive(view) | StreamEvent::JobPending(view) => Some(view),
        _ => None,
    });
    let mut count = 0;
    for view in shown {
        let held = &w.ledger.job(&view.job.job_id).unwrap().view;
        assert!(Arc::ptr_eq(view, held), "{}", view.job.job_id);
        count += 1;
    }
    assert_eq!(count, w.ledger.jobs().count());
}

// spec: EVT-01, EVT-19, PERF-12
#[test]
fn commits_go_on_while_a_snapshot_is_made_and_none_of_them_is_in_it() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.call(Call::CreateBundle(Box::new(bundle("b", &["e"], 1))))
        .unwrap();
    let start = w.running("b.0.e", "n1");
    w.create("pending");
    let at_once = subscribe(&w, wish(60, 10), now(0)).1;

    let standing = w.ledger.standing();
    let seq = w.ledger.seq();
    let commits: [&dyn Fn(&mut World); 5] = [
        &|w| w.stop("b.0.e", "n1").map(drop).unwrap(),
        &|w| w.stopped("n1", "b.0.e", &start),
        &|w| w.call(Call::DeleteJob("pending".into())).map(drop).unwrap(),
        &|w| w.create("new"),
        &|w| w.link("n2", Link::Dropped),
    ];
    let mut later = Vec::new();
    for commit in commits {
        commit(&mut w);
        later.extend(w.last.changes.clone());
    }

    let mut subscriber = Subscriber::new(wish(60, 10)).unwrap();
    let events = subscriber.snapshot(now(0), &standing, aws_and_local());
    assert_eq!(events, at_once, "it is what stood when it was taken");
    assert!(events.iter().all(|event| event.seq == seq));
    assert!(later.iter().all(|change| change.seq > seq));
    let told = later
        .iter()
        .filter_map(|change| subscriber.on_change(now(0), change))
        .map(|stamped| name(&stamped.event));
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            "JobUpdated b.0.e",
            "JobUpdated b.0.e",
            "JobDeleted pending",
            "JobPending new",
            "NodeReachabilityChanged",
        ]
    );
}

// spec: EVT-06, EVT-03
#[test]
fn a_published_client_gets_published_kinds_only() {
    let mut w = World::new();
    w.node("n1");
    w.call(Call::CreateBundle(Box::new(bundle("b", &["e"], 1))))
        .unwrap();
    let (mut subscriber, events) = subscribe(&w, wish(0, 0), now(0));
    assert_eq!(
        names(&events),
        ["NodeRunning", "JobPending b.0.e", "InitialDataComplete"]
    );
    let StreamEvent::InitialDataComplete(health) = &events[2].event else {
        panic!();
    };
    assert_eq!(health.len(), 1, "only AWS and OCI are published");
    w.link("n1", Link::Dropped);
    assert!(sent(&w, &mut subscriber, now(0)).is_empty());
    w.link("n1", Link::GraceOver);
    assert_eq!(sent(&w, &mut subscriber, now(0)), ["NodeStopping"]);
}

// spec: HIST-01, EVT-08
#[test]
fn a_history_is_cut_to_what_was_asked_for() {
    let mut w = World::new();
    w.create("a");
    for n in 0..150 {
        let mut new = job("a");
        new.description = n.to_string();
        w.call(Call::UpdateJob(Box::new(new), 0)).unwrap();
    }
    w.call(Call::MarkJobFailed {
        job_id: "a".into(),
        reason: "r".into(),
    })
    .unwrap();
    let mut again = job("a");
    again.description = "again".into();
    w.call(Call::UpdateJob(Box::new(again), 0)).unwrap();
    let held = |wish: Wish| {
        let (_, events) = subscribe(&w, wish, now(0));
        let StreamEvent::JobPending(view) = &events[0].event else {
            panic!("{events:?}");
        };
        assert_eq!(view.history.len() as u32 + view.dropped_entries, 153);
        view.history.len()
    };
    let limit = |history_limit, minor| Wish {
        history_limit,
        ..wish(0, minor)
    };
    assert_eq!(held(limit(None, 10)), 100);
    assert_eq!(held(limit(Some(0), 10)), 153);
    assert_eq!(held(limit(Some(7), 10)), 7);
    assert_eq!(
        held(limit(Some(0), 0)),
        152,
        "the verdict is no published kind"
    );
}

// spec: WINDOW-02, EVT-08
#[test]
fn the_end_of_a_job_is_told_to_those_who_were_shown_it() {
    let mut w = World::new();
    timed(&mut w, "far", Some(ZERO.plus(100_000)), true);
    w.create("near");
    let (mut subscriber, _) = subscribe(&w, wish(60, 10), now(0));
    for (id, told) in [
        ("far", vec![]),
        ("near", vec!["JobUpdated near".to_owned()]),
    ] {
        w.call(Call::CompleteJob(id.into())).unwrap();
        assert_eq!(sent(&w, &mut subscriber, now(0)), told);
    }
    timed(&mut w, "near", Some(ZERO.plus(1)), false);
    assert_eq!(sent(&w, &mut subscriber, now(0)), ["JobPending near"]);
}

// spec: WINDOW-03, WINDOW-07
#[test]
fn time_alone_brings_a_job_into_the_window_once() {
    let mut w = World::new();
    timed(&mut w, "a", Some(ZERO.plus(90_000)), true);
    timed(&mut w, "past", Some(ZERO.plus(-90_000)), true);
    let (mut subscriber, events) = subscribe(&w, wish(0, 10), now(0));
    assert_eq!(names(&events), ["JobPending past", "InitialDataComplete"]);
    assert_eq!(subscriber.next_due(now(0)), Some(Mono(90_000)));
    assert!(subscriber.on_time(now(89_999), 7).is_empty());
    let events = subscriber.on_time(now(90_000), 7);
    assert_eq!(names(&events), ["JobPending a"]);
    assert_eq!(events[0].seq, 7);
    assert_eq!(subscriber.next_due(now(90_000)), None);
    assert!(subscriber.on_time(now(90_001), 7).is_empty());
}

// spec: WINDOW-04, WINDOW-05
#[test]
fn a_moved_start_takes_a_job_out_of_the_window_and_back() {
    let mut w = World::new();
    timed(&mut w, "a", Some(ZERO.plus(30_000)), true);
    let (mut subscriber, _) = subscribe(&w, wish(60, 10), now(0));
    let mut step = |w: &mut World, start: i64| {
        timed(w, "a", Some(ZERO.plus(start)), false);
        sent(w, &mut subscriber, now(0))
    };
    assert_eq!(step(&mut w, 31_000), ["JobUpdated a"]);
    assert_eq!(step(&mut w, 61_000), ["JobOutOfWindow a"]);
    assert!(step(&mut w, 62_000).is_empty());
    assert_eq!(step(&mut w, 60_000), ["JobPending a"]);
    assert_eq!(step(&mut w, 90_000), ["JobOutOfWindow a"]);
    w.call(Call::DeleteJob("a".into())).unwrap();
    assert!(sent(&w, &mut subscriber, now(0)).is_empty());
    assert_eq!(subscriber.next_due(now(0)), None);
}

// spec: WINDOW-06, HARDM-26
#[test]
fn only_a_long_step_back_takes_shown_jobs_away() {
    let mut w = World::new();
    timed(&mut w, "a", Some(ZERO.plus(30_000)), true);
    let (mut subscriber, _) = subscribe(&w, wish(60, 10), now(0));
    let back = |mono: i64, ms: i64| Now {
        mono: Mono(u64::try_from(mono).unwrap()),
        wall: ZERO.plus(ms),
    };
    assert!(subscriber.on_time(back(1_000, -50_000), 1).is_empty());
    timed(&mut w, "a", Some(ZERO.plus(30_000)), false);
    let mut told = job("a");
    told.start_date_time = Some(ZERO.plus(30_000));
    told.description = "x".into();
    w.call(Call::UpdateJob(Box::new(told), 0)).unwrap();
    assert_eq!(
        sent(&w, &mut subscriber, back(1_000, -50_000)),
        ["JobUpdated a"]
    );
    let events = subscriber.on_time(back(2_000, -200_000), 1);
    assert_eq!(names(&events), ["JobOutOfWindow a"]);
    let events = subscriber.on_time(back(3_000, 1_000), 1);
    assert_eq!(names(&events), ["JobPending a"], "forward again");
}

// spec: EVT-20, WINDOW-01
#[test]
fn a_wish_is_checked_and_narrows_the_kinds() {
    for window in [-1, 31_536_001] {
        assert_eq!(
            Subscriber::new(wish(window, 1)).unwrap_err().reason,
            "bad_window"
        );
    }
    let include = |word: &str| Wish {
        include: vec![word.into()],
        ..wish(0, 10)
    };
    assert_eq!(
        Subscriber::new(include("x")).unwrap_err().reason,
        "unknown_kind"
    );
    let mut w = World::new();
    w.node("n1");
    w.create("a");
    for (word, first) in [
        ("jobs", "JobPending a"),
        ("nodes", "NodeRunning"),
        ("inventory", "NodeInventorySnapshot"),
    ] {
        let (_, events) = subscribe(&w, include(word), now(0));
        assert_eq!(names(&events), [first, "InitialDataComplete"]);
    }
}
