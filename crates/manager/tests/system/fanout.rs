//! Many events, slow readers, many changes to one thing: everybody sees one order (EVT, JOB-33).

use greenroom_sdk::proto::convert::refusal::read_refusal;
use greenroom_sdk::proto::manager::EventStreamRequest;
use greenroom_sdk::types::call::Detail;
use greenroom_sdk::types::job::{Job, JobWithHistory};
use greenroom_sdk::types::stream::StreamEvent;
use greenroom_testkit::{Received, TestManager, bundle, job, key, kinds, start};
use tonic::Code;

use super::events::{Raw, asked, gapless, is_heartbeat, resumed};
use super::history;
use super::metrics::{anywhere, samples};

/// Changes of many jobs in few commits: each bundle comes and goes with all of its own.
async fn flood(client: &greenroom_sdk::Client, rounds: usize) {
    let names: Vec<String> = (0..64).map(|number| format!("j{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for round in 0..rounds {
        let id = format!("b{round}");
        let mut big = bundle(&id, &names);
        for job in &mut big.jobs {
            // More than the buffers on the way can take in part of the time.
            job.launch.services[0].configuration = "x".repeat(2_000);
        }
        client.create_bundle(big).await.unwrap();
        client.delete_bundle(id.as_str()).await.unwrap();
    }
}

// spec: HARDM-16, EVT-11, EVT-13
#[tokio::test]
async fn of_twenty_thousand_events_who_reads_has_all_and_who_stalls_goes_on_where_it_was() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut slow = Raw::open(&manager.client().await, asked(10)).await;
    slow.snapshot().await;
    let begun_at = slow.seq;
    let mut quick = manager.watch().await;
    flood(&client, 190).await;
    client.create_job(job("last")).await.unwrap();
    quick.until_job("last", "seen", |_| true).await;
    let told = quick.seen().iter().filter(|it| !is_heartbeat(it)).count();
    assert!(told > 20_000, "{told}");
    gapless(begun_at, quick.seen());

    let mut seen = Vec::new();
    let mut beats = 0;
    let refused = loop {
        match slow.try_next().await {
            Ok(stamped) if is_heartbeat(&stamped) => {
                beats += 1;
                assert!(beats < 5, "it is not cut off");
            }
            Ok(stamped) => seen.push(stamped.seq),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let refusal = read_refusal(&refused).unwrap();
    assert_eq!(refusal.reason, "subscriber_too_slow");
    let last = i64::try_from(slow.seq).unwrap();
    assert_eq!(refusal.details["seq"], Detail::Int(last));

    let request = slow.resume(asked(10));
    let mut again = Raw::open(&client, request).await;
    assert!(resumed(&mut again).await.0);
    again.mirror = slow.mirror;
    seen.extend(again.until_job("last").await);
    let expected: Vec<u64> = (begun_at + 1..).take(told).collect();
    assert!(
        seen == expected,
        "{} of {told}, from {:?}",
        seen.len(),
        seen.first()
    );
}

// spec: PERF-11
#[tokio::test]
async fn of_thirty_two_streams_beside_one_that_reads_nothing_one_encodes_for_all() {
    let manager = TestManager::start_with(anywhere).await;
    let client = manager.client().await;
    client
        .create_bundle(bundle("before", &["j"]))
        .await
        .unwrap();
    let mut silent = Raw::open(&manager.client().await, asked(10)).await;
    silent.snapshot().await;
    let mut streams = Vec::new();
    for _ in 0..32 {
        let mut stream = Raw::open(&manager.client().await, asked(10)).await;
        stream.snapshot().await;
        streams.push(stream);
    }
    let before = samples(&manager).await;
    let begun_at = silent.seq;
    flood(&client, 2).await;
    client.create_job(job("last")).await.unwrap();
    let mut told = 0;
    for stream in &mut streams {
        let seqs = stream.until_job("last").await;
        told += seqs.len();
        assert_eq!(seqs, (begun_at + 1..=stream.seq).collect::<Vec<_>>());
    }
    let after = samples(&manager).await;
    let more = |name: &str| after[name] - before[name];
    let changes = more("greenroom_event_seq");
    assert_eq!(told as f64, 32.0 * changes);
    assert!(more("greenroom_events_sent_total") >= 32.0 * changes);
    assert_eq!(more("greenroom_events_encoded_total"), changes);

    // A client of the published package and one with a limit of history add what they show otherwise.
    let published = Raw::open(&manager.client().await, asked(0)).await;
    let limited = EventStreamRequest {
        history_limit: Some(1),
        ..asked(10)
    };
    let limited = Raw::open(&manager.client().await, limited).await;
    let mut others = [published, limited];
    for other in &mut others {
        other.snapshot().await;
    }
    let described = Job {
        description: "told".to_owned(),
        ..job("last")
    };
    client.update_job(described, 0).await.unwrap();
    for stream in streams.iter_mut().chain(&mut others) {
        while stream.mirror.jobs["last"].job.description != "told" {
            stream.next().await;
        }
    }
    let last = samples(&manager).await;
    let more = |name: &str| last[name] - after[name];
    assert_eq!(
        more("greenroom_events_encoded_total"),
        3.0 * more("greenroom_event_seq")
    );
    drop(silent);
}

// spec: EVT-19
#[tokio::test]
async fn a_snapshot_that_nobody_reads_holds_no_commit_up() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let names: Vec<String> = (0..64).map(|number| format!("j{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for round in 0..32 {
        let mut big = bundle(&format!("b{round}"), &names);
        for job in &mut big.jobs {
            // So much that the buffers on the way cannot hold the snapshot.
            job.launch.services[0].configuration = "x".repeat(2_000);
        }
        client.create_bundle(big).await.unwrap();
    }
    let mut stalled = Raw::open(&manager.client().await, asked(10)).await;
    // Begun, as its first message is there; the rest waits for the reader.
    stalled.next().await;
    for number in 0..50 {
        client
            .create_job(job(&format!("later-{number}")))
            .await
            .unwrap();
    }
    stalled.snapshot().await;
    let jobs = stalled.mirror.jobs.len();
    assert!((2_048..=2_098).contains(&jobs), "{jobs}");
    // What was committed meanwhile follows, each once.
    let at = stalled.seq;
    let seqs = stalled.until_job("later-49").await;
    assert_eq!(seqs, (at + 1..=at + seqs.len() as u64).collect::<Vec<_>>());
    assert_eq!(stalled.mirror.jobs.len(), 2_098);
}

fn described(number: usize, caller: usize) -> Job {
    Job {
        description: format!("{caller}-{number}"),
        ..job("on-air")
    }
}

/// How many entries of a kind a history has.
fn count(job: &JobWithHistory, kind: &str) -> usize {
    kinds(job).iter().filter(|it| **it == kind).count()
}

/// Whether these stand in the other list in the same order.
fn is_in_order(part: &[String], whole: &[String]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|wanted| rest.any(|it| it == wanted))
}

// spec: JOB-33
#[tokio::test]
async fn changes_to_one_job_have_one_order_for_store_history_events_and_worker() {
    let mut manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    client.create_job(job("on-air")).await.unwrap();
    client.start_job(start("on-air", "n1")).await.unwrap();
    watch.until_last("on-air", "running").await;

    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..4 {
        let client = manager.client().await;
        let mut own = manager.watch().await;
        callers.spawn(async move {
            for number in 0..15 {
                client
                    .update_job(described(number, caller), 0)
                    .await
                    .unwrap();
                if caller == 0 && number % 5 == 2 {
                    let times = number / 5 + 1;
                    client.stop_job(key("on-air"), "n1", None).await.unwrap();
                    let stopped = |it: &JobWithHistory| count(it, "stopped") == times;
                    own.until_job("on-air", "its end", stopped).await;
                    client.start_job(start("on-air", "n1")).await.unwrap();
                    let runs = |it: &JobWithHistory| count(it, "running") == times + 1;
                    own.until_job("on-air", "its next run", runs).await;
                }
            }
        });
    }
    callers.join_all().await;
    client.update_job(described(0, 9), 0).await.unwrap();
    watch
        .until_job("on-air", "the last description", |shown| {
            shown.job.description == "9-0"
        })
        .await;

    // Events: each view goes on from the one before.
    let views: Vec<_> = watch
        .seen()
        .iter()
        .filter_map(|stamped| match &stamped.event {
            StreamEvent::JobUpdated(view) => Some(view),
            _ => None,
        })
        .collect();
    let mut told: Vec<String> = Vec::new();
    for pair in views.windows(2) {
        let (before, after) = (&pair[0].history, &pair[1].history);
        assert!(after.starts_with(before), "the history only grows");
    }
    for view in &views {
        if told.last() != Some(&view.job.description) {
            told.push(view.job.description.clone());
        }
    }
    assert_eq!(told.len(), 1 + 4 * 15 + 1, "every change was told");

    // Each caller's own changes in the order in which it made them.
    for caller in 0..4 {
        let made: Vec<String> = (0..15).map(|number| format!("{caller}-{number}")).collect();
        assert!(is_in_order(&made, &told), "{caller}: {told:?}");
    }

    // The worker, as far as it was told.
    worker
        .wait_order("the last description", |order| match order {
            Received::Update(it) | Received::Provision(it) => {
                (it.description == "9-0").then_some(())
            }
            _ => None,
        })
        .await;
    let mut heard: Vec<String> = worker
        .orders()
        .iter()
        .filter_map(|order| match order {
            Received::Update(it) | Received::Provision(it) => Some(it.description.clone()),
            _ => None,
        })
        .collect();
    // A start brings what an update may have brought before.
    heard.dedup();
    assert!(is_in_order(&heard, &told), "{heard:?} of {told:?}");

    // History and store.
    worker.wait_acknowledged().await;
    let shown = history(&client, "on-air").await;
    assert!(shown.history.starts_with(&views.last().unwrap().history));
    manager.crash().await;
    let stored = history(&manager.client().await, "on-air").await;
    assert!(stored.history.starts_with(&shown.history));
    assert_eq!(stored.job, shown.job);
}
