//! The fan-out as subscribers and those who come back see it.

use greenroom_types::inventory::NodeInventory;
use greenroom_types::{NodeId, Wall};

use greenroom_types::job::{Job, JobInfo, JobState};
use greenroom_types::stream::StreamEvent;

use super::*;

fn settings() -> EventSettings {
    EventSettings {
        queue_events: 8,
        held: 4,
        held_for: std::time::Duration::ZERO,
        subscribers: 2,
        ..EventSettings::default()
    }
}

fn change(seq: u64, event: StreamEvent) -> Change {
    Change {
        seq,
        at: Wall(0),
        what: What::Event(event),
    }
}

fn stopped(seq: u64) -> Change {
    change(
        seq,
        StreamEvent::NodeStopped {
            node_id: NodeId::new(format!("n{seq}")),
        },
    )
}

fn picture(seq: u64) -> Change {
    let inventory = Arc::new(NodeInventory::default());
    change(
        seq,
        StreamEvent::NodeInventoryUpdated {
            node_id: NodeId::new("n"),
            inventory,
        },
    )
}

fn waiting(queue: &Queue) -> Vec<u64> {
    std::iter::from_fn(|| queue.try_next())
        .map_while(Result::ok)
        .filter_map(|news| match news {
            News::Change(news) => Some(news.change().seq),
            _ => None,
        })
        .collect()
}

// spec: EVT-11, EVT-13
#[test]
fn a_subscriber_that_stops_reading_is_cut_off_and_others_are_not() {
    let hub = Hub::new(settings());
    let (slow, quick) = (hub.subscribe().unwrap(), hub.subscribe().unwrap());
    for seq in 1..=8 {
        hub.publish(vec![stopped(seq)]);
    }
    assert_eq!(waiting(&quick), (1..=8).collect::<Vec<_>>());
    hub.publish(vec![stopped(9)]);
    assert!(matches!(slow.try_next(), Some(Err(End::TooSlow))));
    assert_eq!(waiting(&quick), [9]);
}

// spec: EVT-11, EVT-13
#[test]
fn at_the_usual_limit_a_flood_cuts_off_who_does_not_read_and_nobody_else() {
    let hub = Hub::new(EventSettings::default());
    let (slow, quick) = (hub.subscribe().unwrap(), hub.subscribe().unwrap());
    let mut read = Vec::new();
    for seq in 1..=20_000 {
        hub.publish(vec![if seq % 2 == 0 {
            picture(seq)
        } else {
            stopped(seq)
        }]);
        read.extend(waiting(&quick));
    }
    assert_eq!(read, (1..=20_000).collect::<Vec<_>>());
    let kept = std::iter::from_fn(|| slow.try_next()).take_while(Result::is_ok);
    assert!(kept.count() <= 16_384);
    hub.publish((20_001..=40_000).map(stopped).collect());
    assert!(matches!(slow.try_next(), Some(Err(End::TooSlow))));
    assert_eq!(
        hub.past(20_000).unwrap().changes.len(),
        20_000,
        "and can be resumed"
    );
}

// spec: EVT-12
#[test]
fn past_half_only_pictures_are_merged_and_only_job_info_is_dropped() {
    let hub = Hub::new(settings());
    let queue = hub.subscribe().unwrap();
    for _ in 0..3 {
        hub.inform(info(), false);
    }
    hub.publish(vec![picture(1), stopped(2), stopped(3), stopped(4)]);
    hub.publish(vec![picture(5)]);
    assert_eq!(
        waiting(&queue),
        [2, 3, 4, 5],
        "the older picture and the info gave way"
    );
    for seq in 6..10 {
        hub.publish(vec![stopped(seq)]);
    }
    hub.inform(info(), false);
    assert_eq!(waiting(&queue), (6..10).collect::<Vec<_>>());
}

// spec: EVT-12
#[test]
fn what_was_dropped_is_told() {
    let hub = Hub::new(settings());
    let queue = hub.subscribe().unwrap();
    hub.publish((1..=4).map(stopped).collect());
    hub.inform(info(), false);
    hub.inform(info(), false);
    let mut told = Vec::new();
    while let Some(Ok(news)) = queue.try_next() {
        told.push(news);
    }
    let lost = |news: &News| {
        matches!(
            news,
            News::Lost {
                kind: "job_info",
                count: 2
            }
        )
    };
    assert_eq!(told.iter().filter(|news| lost(news)).count(), 1);
    assert_eq!(told.len(), 5);
}

// spec: EVT-18
#[test]
fn the_number_of_subscribers_is_bounded_and_leavers_make_room() {
    let hub = Hub::new(settings());
    let first = hub.subscribe().unwrap();
    let _second = hub.subscribe().unwrap();
    assert_eq!(hub.subscribe().unwrap_err(), Full);
    drop(first);
    assert!(hub.subscribe().is_ok());
}

// spec: EVT-14
#[test]
fn the_newest_changes_are_held_for_a_resume() {
    let hub = Hub::new(settings());
    hub.publish((1..=6).map(stopped).collect());
    let seqs = |after| {
        let past = hub.past(after)?;
        Ok::<Vec<u64>, &str>(past.changes.iter().map(|change| change.seq).collect())
    };
    assert_eq!(seqs(2), Ok(vec![3, 4, 5, 6]));
    assert_eq!(seqs(6), Ok(vec![]));
    assert_eq!(seqs(1), Err("too long ago"), "2 is held no longer");
    assert_eq!(seqs(7), Err("a seq from the future"));
}

// spec: EVT-14
#[test]
fn changes_of_the_last_minutes_are_held_beyond_the_number_but_not_beyond_the_bytes() {
    let hub = Hub::new(EventSettings {
        held_for: std::time::Duration::from_secs(600),
        held_bytes: 5_000,
        ..settings()
    });
    hub.publish((1..=10).map(stopped).collect());
    assert!(hub.past(0).is_ok(), "all ten are young");
    let mut late = stopped(11);
    late.at = Wall(600_000);
    hub.publish(vec![late]);
    assert!(hub.past(6).is_err());
    assert!(hub.past(7).is_ok(), "four are held however old");
    let late = |seq| Change {
        at: Wall(600_001),
        ..stopped(seq)
    };
    hub.publish((12..=30).map(late).collect());
    assert!(hub.past(19).is_err());
    assert!(hub.past(20).is_ok(), "ten weigh 5 000 bytes");
}

// spec: EVT-14
#[test]
fn the_jobs_of_a_resume_are_those_of_the_seq_at_which_the_client_left_off() {
    let job = |id: &str, description: &str| {
        Arc::new(JobWithHistory {
            job: Job {
                job_id: id.into(),
                description: description.to_owned(),
                ..Job::default()
            },
            state: JobState::Pre,
            current_hash: 0,
            terminal_state: None,
            pending_restart: Vec::new(),
            history: Vec::new(),
            dropped_entries: 0,
        })
    };
    let hub = Hub::new(settings());
    hub.seed(10, [job("a", "old"), job("b", "old")].into_iter());
    let changed = |seq, what| Change {
        seq,
        at: Wall(i64::try_from(seq).unwrap()),
        what,
    };
    hub.publish(vec![
        changed(11, What::Job(job("a", "new"))),
        changed(12, What::Job(job("c", "new"))),
        changed(13, What::JobDeleted("b".into())),
        changed(14, What::Job(job("a", "newer"))),
    ]);
    let jobs = |seq| {
        let jobs = hub.past(seq).unwrap().jobs;
        let mut texts = jobs
            .values()
            .map(|it| format!("{} {}", it.job.job_id, it.job.description));
        std::iter::from_fn(move || texts.next())
            .collect::<Vec<_>>()
            .join(", ")
    };
    assert_eq!(jobs(10), "a old, b old");
    assert_eq!(jobs(11), "a new, b old");
    assert_eq!(jobs(12), "a new, b old, c new");
    assert_eq!(jobs(14), "a newer, c new");
    assert_eq!(hub.past(10).unwrap().at, None);
    assert_eq!(hub.past(12).unwrap().at, Some(Wall(12)));
    assert_eq!(hub.past(12).unwrap().upto, 14);

    // What goes on meanwhile is not in it.
    let past = hub.past(13).unwrap();
    hub.publish(vec![changed(15, What::JobDeleted("a".into()))]);
    assert_eq!((past.jobs.len(), past.upto), (2, 14));
    assert_eq!(past.changes.len(), 1);
    assert_eq!(jobs(15), "c new");
}

pub(super) fn info() -> JobInfo {
    JobInfo {
        key: greenroom_types::node::InstanceKey::default(),
        start_id: greenroom_types::StartId::default(),
        at: Wall(0),
        kind: greenroom_types::job::JobInfoKind::ServiceStarted("main".into()),
    }
}

// spec: EVT-09
#[test]
fn the_last_news_of_a_start_is_kept_until_it_runs_and_of_no_more_than_so_many() {
    let hub = Hub::new(settings());
    let of = |start_id: String, at: i64| JobInfo {
        start_id: start_id.into(),
        at: Wall(at),
        ..info()
    };
    for at in [1, 2] {
        hub.inform(of("s".to_owned(), at), true);
    }
    assert_eq!(hub.last_info(&"s".into()).unwrap().at, Wall(2));
    hub.inform(of("s".to_owned(), 3), false);
    assert_eq!(hub.last_info(&"s".into()), None);
    for at in 0..=4_096 {
        hub.inform(of(format!("s{at}"), at), true);
    }
    assert_eq!(hub.last_info(&"s0".into()), None, "the oldest gives way");
    assert!(hub.last_info(&"s1".into()).is_some());
}

// spec: EVT-09
#[test]
fn restarts_by_a_worker_are_counted_also_of_what_runs_and_of_no_more_than_so_many() {
    use greenroom_types::job::JobInfoKind;
    let hub = Hub::new(settings());
    let tell = |start_id: &str, at: i64, kind: JobInfoKind| {
        let info = JobInfo {
            start_id: start_id.into(),
            at: Wall(at),
            kind,
            ..info()
        };
        hub.inform(info, false);
    };
    let service = || "main".to_owned();
    tell("s", 0, JobInfoKind::ServiceStarted(service()));
    let text = "ended with exit code 3".to_owned();
    tell(
        "s",
        1,
        JobInfoKind::ContainerEvent {
            service: service(),
            text,
        },
    );
    assert_eq!(
        hub.restarts(&"s".into()),
        None,
        "an end alone is no restart"
    );
    tell("s", 2, JobInfoKind::ServiceRestarting(service()));
    let told = hub.restarts(&"s".into()).unwrap();
    assert_eq!(told.words(), "restarted 1x, last exit code 3");
    assert!(told.pending);
    tell("s", 3, JobInfoKind::ServiceStarted(service()));
    assert!(!hub.restarts(&"s".into()).unwrap().pending);
    for at in 0..4_096 {
        let other = format!("s{at}");
        tell(&other, 10 + at, JobInfoKind::ServiceRestarting(service()));
    }
    assert_eq!(hub.restarts(&"s".into()), None, "the oldest gives way");
    assert!(hub.restarts(&"s0".into()).is_some());
}

// spec: PERF-11
#[test]
fn a_change_is_one_for_all_subscribers_and_who_reads_nothing_costs_the_others_none() {
    let hub = Hub::new(EventSettings {
        subscribers: 33,
        ..settings()
    });
    let [stalled, readers @ ..] = std::array::from_fn::<_, 33, _>(|_| hub.subscribe().unwrap());
    for seq in 1..=100 {
        hub.publish(vec![stopped(seq)]);
        let told: Vec<Arc<Shared>> = readers
            .iter()
            .map(|queue| match queue.try_next() {
                Some(Ok(News::Change(change))) => change,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(
            told.iter()
                .all(|it| it.change().seq == seq && Arc::ptr_eq(it, &told[0]))
        );
    }
    assert!(readers.iter().all(|queue| queue.try_next().is_none()));
    assert!(matches!(stalled.try_next(), Some(Err(End::TooSlow))));
}
