//! What of LIM-07 can be held without a clock: the bytes that a Manager has allocated, counted for a small house and
//! reckoned for the whole one. What SQLite takes for itself is not counted; it has a bound of its own.

use greenroom_sdk::{Client, EventSettings};
use greenroom_testkit::{FakeWorker, TestManager, bundle, start, within};
use stats_alloc::Region;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::load::BUNDLE;
use crate::ALLOCATOR;

const SUBSCRIBERS: usize = 32;
const MIB: f64 = 1024.0 * 1024.0;

/// Readers that keep nothing; each tells the seq it has come to.
async fn read_all(manager: &TestManager, reading: &mut JoinSet<()>) -> Vec<watch::Receiver<u64>> {
    let mut all = Vec::new();
    for _ in 0..SUBSCRIBERS {
        let client = manager.client().await;
        let (state, mut events) = client.event_stream(EventSettings::default()).await.unwrap();
        let (told, seen) = watch::channel(state.seq);
        all.push(seen);
        reading.spawn(async move {
            let _client = client;
            while let Some(item) = events.next().await {
                if let greenroom_sdk::StreamItem::Event(stamped) = item {
                    told.send_replace(stamped.seq);
                }
            }
        });
    }
    all
}

/// Waits until every reader has seen what there is.
async fn caught_up(client: &Client, seen: &[watch::Receiver<u64>]) {
    let (state, _) = client.event_stream(EventSettings::default()).await.unwrap();
    for seen in seen {
        let mut seen = seen.clone();
        within("the readers", seen.wait_for(|seen| *seen >= state.seq))
            .await
            .unwrap();
    }
}

async fn make(client: &Client, bundles: std::ops::Range<usize>) {
    let names: Vec<String> = (0..BUNDLE).map(|number| format!("j{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for number in bundles {
        let bundle = bundle(&format!("b{number}"), &names);
        client.create_bundle(bundle).await.unwrap();
    }
}

async fn connect(client: &Client, nodes: std::ops::Range<usize>) -> Vec<FakeWorker> {
    let mut workers = Vec::new();
    for number in nodes {
        let worker = FakeWorker::register(client, &format!("n{number}")).await;
        worker.forget();
        worker.call_in(client).await.unwrap();
        worker.wait_greeted(1).await;
        workers.push(worker);
    }
    workers
}

// spec: LIM-07
pub(crate) fn a_manager_takes_so_much_memory_for_a_job_and_a_node_that_a_full_house_fits() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let region = Region::new(ALLOCATOR);
    let allocated = || {
        let change = region.change();
        change.bytes_allocated as f64 - change.bytes_deallocated as f64
    };
    runtime.block_on(async {
        let manager = TestManager::start().await;
        let client = manager.client().await;
        let mut reading = JoinSet::new();
        let seen = read_all(&manager, &mut reading).await;
        // What is made once, however much comes, is made by the first of everything.
        make(&client, 0..4).await;
        let mut workers = connect(&client, 0..4).await;
        caught_up(&client, &seen).await;
        let empty = allocated();

        make(&client, 4..14).await;
        caught_up(&client, &seen).await;
        let of_job = (allocated() - empty) / (10 * BUNDLE) as f64;
        let before = allocated();
        workers.extend(connect(&client, 4..20).await);
        caught_up(&client, &seen).await;
        // Both ends of the line are in this process: it is too much rather than too little.
        let of_node = (allocated() - before) / 16.0;
        let before = allocated();
        for number in 0..BUNDLE {
            let job_id = format!("b0.0.j{number}");
            let order = start(&job_id, &format!("n{}", number % 20));
            client.start_job(order).await.unwrap();
        }
        for worker in &workers {
            worker.wait_acknowledged().await;
        }
        caught_up(&client, &seen).await;
        let of_start = (allocated() - before) / BUNDLE as f64;

        let house = (empty + 1_000.0 * of_node + 20_000.0 * (of_job + of_start)) / MIB;
        let told = format!(
            "{empty:.0} bytes, {of_job:.0} a job, {of_start:.0} a start, {of_node:.0} a node: \
             {house:.0} MiB"
        );
        assert!(of_job > 500.0 && of_node > 5_000.0, "it is counted: {told}");
        assert!(house < 1_024.0, "{told}");
        reading.shutdown().await;
    });
}
