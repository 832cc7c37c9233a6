//! Proposals, outputs, reads and what cancelling does.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Command, Counters, Ticks, add, config, fill, open};
use futures::poll;
use greenroom_store::{ProposeError, Store};

const PROPOSERS: usize = 64;
const EACH: usize = 20;

// spec: API-05, STORE-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_proposers_get_their_own_outcomes_and_share_flushes() {
    let dir = tempfile::tempdir().expect("folder");
    let (store, mut outputs, _) = open(dir.path()).await;
    let flushes_before = store.info().expect("info").log_flushes;
    let proposers: Vec<_> = (0..PROPOSERS)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                for round in 1..=EACH {
                    let answer = store
                        .propose(add(&format!("p{number}"), 1))
                        .await
                        .expect("propose");
                    assert_eq!(
                        answer.1,
                        i64::try_from(round).ok(),
                        "the outcome of another command"
                    );
                    seen.push(answer.0);
                }
                seen
            })
        })
        .collect();
    let mut revisions = Vec::new();
    for proposer in proposers {
        revisions.extend(proposer.await.expect("proposer"));
    }
    revisions.sort_unstable();

    let mut delivered = Vec::new();
    let mut counted: BTreeMap<String, i64> = BTreeMap::new();
    while let Some((revision, (name, _))) = outputs.try_recv() {
        delivered.push(revision);
        *counted.entry(name).or_default() += 1;
    }
    assert_eq!(
        delivered, revisions,
        "outputs come in commit order, none missing, none twice"
    );
    assert_eq!(counted, store.read(|machine| machine.values.clone()));

    let flushes = store.info().expect("info").log_flushes - flushes_before;
    let commands = u64::try_from(PROPOSERS * EACH).expect("small");
    assert!(
        flushes < commands,
        "{flushes} flushes for {commands} commands: none was shared"
    );
    store.shutdown().await.expect("shutdown");
    assert_eq!(
        outputs.recv().await,
        None,
        "a store shut down has no more outputs"
    );
}

// spec: API-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answered_command_is_readable_and_its_output_is_delivered() {
    let dir = tempfile::tempdir().expect("folder");
    let (store, mut outputs, _) = open(dir.path()).await;
    for round in 1..=20 {
        let (revision, value) = store.propose(add("a", 1)).await.expect("propose");
        assert_eq!(value, Some(round));
        let (read, at) = store.read_at(|machine, revision| (machine.get("a"), revision));
        assert_eq!((read, at), (Some(round), revision));
        assert_eq!(outputs.try_recv().map(|(at, _)| at), Some(revision));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_and_the_later_outputs_together_are_the_whole_story() {
    let dir = tempfile::tempdir().expect("folder");
    let (store, mut outputs, _) = open(dir.path()).await;
    let writer = {
        let store = store.clone();
        tokio::spawn(async move { fill(&store, "a", 300).await })
    };
    let mut stories = Vec::new();
    while !writer.is_finished() {
        let story = store.read_at(|machine, revision| (machine.get("a").unwrap_or(0), revision));
        if stories.last() != Some(&story) {
            stories.push(story);
        }
        tokio::task::yield_now().await;
    }
    writer.await.expect("writer");
    let mut delivered = Vec::new();
    while let Some((revision, _)) = outputs.try_recv() {
        delivered.push(revision);
    }
    for (value, revision) in stories {
        let later = delivered.iter().filter(|at| **at > revision).count();
        assert_eq!(value + i64::try_from(later).expect("small"), 300);
    }
}

#[tokio::test]
async fn the_stamp_is_read_once_from_the_given_clock() {
    let dir = tempfile::tempdir().expect("folder");
    let clock = Arc::new(Ticks::default());
    let mut config = config(dir.path());
    config.clock = Arc::clone(&clock) as _;
    let (store, mut outputs, _) = Store::<Counters>::open(config).await.expect("open");
    let before = clock.looks();
    store.propose(add("a", 1)).await.expect("propose");
    assert_eq!(clock.looks(), before + 1);
    let (_, (_, wall_ms)) = outputs.recv().await.expect("output");
    assert_eq!(wall_ms, before + 1);
}

#[tokio::test]
async fn a_full_output_queue_holds_proposals_back_until_it_is_drained() {
    let dir = tempfile::tempdir().expect("folder");
    let clock = Arc::new(Ticks::default());
    let mut config = config(dir.path());
    config.clock = Arc::clone(&clock) as _;
    config.output_limit = 2;
    let (store, mut outputs, _) = Store::<Counters>::open(config).await.expect("open");
    fill(&store, "a", 2).await;
    let looks = clock.looks();
    let mut held = Box::pin(store.propose(add("a", 1)));
    assert!(poll!(&mut held).is_pending());
    // A proposal that is let through reads the clock in its first poll.
    assert_eq!(clock.looks(), looks, "the proposal was let through");
    outputs.recv().await.expect("output");
    let (_, value) = held.await.expect("propose");
    assert_eq!(value, Some(3));
}

// spec: API-06
#[tokio::test]
async fn cancelled_before_it_was_handed_over_has_no_effect_and_after_it_is_kept() {
    let dir = tempfile::tempdir().expect("folder");
    let clock = Arc::new(Ticks::default());
    let mut config = config(dir.path());
    config.clock = Arc::clone(&clock) as _;
    config.output_limit = 1;
    let (store, mut outputs, _) = Store::<Counters>::open(config).await.expect("open");
    fill(&store, "a", 1).await;

    let mut early = Box::pin(store.propose(add("early", 1)));
    assert!(poll!(&mut early).is_pending());
    drop(early);

    outputs.recv().await.expect("output");
    let looks = clock.looks();
    let mut late = Box::pin(store.propose(add("late", 1)));
    assert!(poll!(&mut late).is_pending());
    assert_eq!(clock.looks(), looks + 1, "the proposal was handed over");
    drop(late);

    let (_, (name, _)) = outputs.recv().await.expect("output");
    assert_eq!(name, "late");
    assert_eq!(
        store.read(|machine| (machine.get("early"), machine.get("late"))),
        (None, Some(1))
    );
    store.shutdown().await.expect("shutdown");
    drop((store, outputs));
    let (store, _, _) = open(dir.path()).await;
    assert_eq!(
        store.read(|machine| (machine.get("early"), machine.get("late"))),
        (None, Some(1))
    );
}

#[tokio::test]
async fn shutting_down_lets_what_is_on_its_way_end_and_refuses_the_rest() {
    let dir = tempfile::tempdir().expect("folder");
    let mut config = config(dir.path());
    config.output_limit = 1;
    let (store, mut outputs, _) = Store::<Counters>::open(config).await.expect("open");
    fill(&store, "a", 1).await;
    let mut held = Box::pin(store.propose(add("held", 1)));
    assert!(poll!(&mut held).is_pending());
    let (shut, held) = tokio::join!(store.shutdown(), held);
    shut.expect("shutdown");
    assert!(matches!(held, Err(ProposeError::Stopped)), "{held:?}");
    assert!(matches!(
        store.propose(add("a", 1)).await,
        Err(ProposeError::Stopped)
    ));
    assert!(
        outputs.recv().await.is_some(),
        "outputs outlive the shutdown"
    );
    assert!(outputs.recv().await.is_none());
    assert_eq!(
        store.read(|machine| machine.get("a")),
        Some(1),
        "reads go on"
    );
}

#[tokio::test]
async fn removed_rows_stay_removed() {
    let dir = tempfile::tempdir().expect("folder");
    let (store, _, _) = open(dir.path()).await;
    fill(&store, "a", 3).await;
    fill(&store, "b", 2).await;
    store
        .propose(Command::Remove {
            name: "a".to_owned(),
        })
        .await
        .expect("propose");
    store.shutdown().await.expect("shutdown");
    drop(store);
    let (store, _, report) = open(dir.path()).await;
    assert_eq!(
        store.read(|machine| (machine.get("a"), machine.get("b"))),
        (None, Some(2))
    );
    assert_eq!(report.identity.generation, 1);
}
