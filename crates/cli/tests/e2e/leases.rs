//! A leased job, its worker's refreshes and the guard, all real.

use greenroom_sdk::types::job::HistoryKind;
use rustix::process::{Signal, kill_process};

use crate::air::{self, lease};
use crate::harness::{Up, pid, processes_on, sleeping, temp};

/// A bundle of one leased job.
fn leased() -> String {
    let lease = "    lease: {ttlMs: 2000, graceMs: 1000}\n    launch:\n";
    sleeping("guarded", &["a"]).replace("    launch:\n", lease)
}

/// Processes of the job that were started under this number.
fn under(up: &Up, fence: u64) -> Vec<u32> {
    air::under(&up.folder, "sleep 1000", fence)
}

// spec: LEASE-02, LEASE-04, LEASE-05, LEASE-06, LEASE-08, WORK-42
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_has_lost_its_job_before_another_node_runs_it() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "2"]);
    let mut watch = up.watch().await;
    up.file("guarded.yaml", leased());
    up.run(&["apply", "-f", "guarded.yaml", "--wait"]).ok();
    let first = lease(&up);
    assert_eq!(first["state"], "held", "{first}");
    let (node, fence) = (
        first["nodeId"].as_str().unwrap(),
        first["fence"].as_u64().unwrap(),
    );
    assert_eq!(under(&up, fence).len(), 1, "the job knows its number");

    let workers = processes_on(folder.path());
    let of_node = |line: &str| line.contains(" worker ") && line.contains(node);
    let (hung, _) = workers
        .iter()
        .find(|(_, line)| of_node(line))
        .expect("its worker");
    kill_process(pid(*hung), Signal::STOP).unwrap();

    watch
        .until_job("guarded.0.a", "on the other node", |job| {
            job.history.iter().any(|entry| {
                matches!(&entry.kind, HistoryKind::Running { at, .. } if at.node.node_id.as_str() != node)
            })
        })
        .await;
    assert_eq!(under(&up, fence), [0_u32; 0], "the old holder is dead");
    let second = lease(&up);
    assert_ne!(second["nodeId"], first["nodeId"]);
    let newer = second["fence"].as_u64().unwrap();
    assert!(newer > fence, "{first} {second}");
    assert_eq!(under(&up, newer).len(), 1);

    // Awake again, the worker finds that its job is over.
    kill_process(pid(*hung), Signal::CONT).unwrap();
    watch
        .until_node(node, greenroom_sdk::types::node::NodeState::Running)
        .await;
    assert_eq!((under(&up, fence).len(), under(&up, newer).len()), (0, 1));
    up.end();
}

// spec: LEASE-10, LEASE-12
#[tokio::test(flavor = "multi_thread")]
async fn in_a_pause_a_job_outlives_its_lease_and_goes_on_after_it() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    up.file("guarded.yaml", leased());
    up.run(&["apply", "-f", "guarded.yaml", "--wait"]).ok();
    let held = lease(&up);
    let fence = held["fence"].as_u64().unwrap();
    let before = under(&up, fence);
    up.run(&["leases", "pause", "--reason", "works", "--by", "ana"])
        .ok();
    assert_eq!(lease(&up)["state"], "paused_kept");
    up.run(&["leases", "resume", "--by", "ana"]).ok();
    assert_eq!(lease(&up)["state"], "held");
    assert_eq!(under(&up, fence), before);
    up.end();
}
