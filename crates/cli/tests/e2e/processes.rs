//! Processes that end when nobody expects it, and ends that come early.

use greenroom_sdk::types::NodeId;
use greenroom_sdk::types::stream::StreamEvent;
use rustix::process::{Signal, kill_process};

use crate::harness::{Daemon, Up, pid, processes_on, sleeping, temp};

/// The process whose arguments hold a word.
fn process(folder: &std::path::Path, word: &str) -> u32 {
    let all = processes_on(folder);
    let found: Vec<u32> = all
        .iter()
        .filter(|(_, line)| line.contains(word))
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(found.len(), 1, "{word:?} in {all:?}");
    found[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_is_started_again_and_its_job_runs_on() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    up.file("tale.yaml", sleeping("tale", &["a"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    let (before, sleeper) = (up.job("tale.0.a"), process(&up.folder, "sleep 1000"));
    let mut watch = up.watch().await;
    let node = NodeId::new("worker-1");
    kill_process(pid(process(&up.folder, " worker ")), Signal::KILL).unwrap();
    for wanted in [false, true] {
        watch
            .until("a change of reachability", |event| match event {
                StreamEvent::NodeReachabilityChanged { node_id, reachable } => {
                    (*node_id == node && *reachable == wanted).then_some(())
                }
                _ => None,
            })
            .await;
    }
    up.daemon
        .until_said("worker-1 ended (signal: 9 (SIGKILL)); it is started again");
    let after = up.job("tale.0.a");
    assert_eq!(after["startId"], before["startId"]);
    assert_eq!(after["starts"], 1);
    assert_eq!(process(&up.folder, "sleep 1000"), sleeper);
    up.end();
    assert_eq!(processes_on(folder.path()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_of_everything_but_jobs_and_workers_the_next_start_takes_them_over() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "2"]);
    up.file("tale.yaml", sleeping("tale", &["a", "b"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    let before = ["tale.0.a", "tale.0.b"].map(|job_id| up.job(job_id));
    up.kill();
    let workers = |folder: &std::path::Path| -> Vec<u32> {
        let all = processes_on(folder).into_iter();
        all.filter(|(_, line)| line.contains(" worker "))
            .map(|(number, _)| number)
            .collect()
    };
    let orphans = workers(folder.path());
    assert_eq!(orphans.len(), 2);

    // They were started to stop their jobs at the end; they hand them over all the same. One that
    // is not wanted any more is started for the sake of its job.
    let up = Up::start(&folder, &["--workers", "1"]);
    up.daemon
        .until_said("worker-2 has jobs from before and is started as well");
    up.daemon.until_said("worker-1 still runs from before");
    up.daemon.until_said("worker-2 still runs from before");
    let mut watch = up.watch().await;
    for old in &before {
        let job_id = old["jobId"].as_str().unwrap();
        watch.until_last(job_id, "running").await;
        let new = up.job(job_id);
        assert_eq!(new["startId"], old["startId"]);
        assert_eq!(new["node"], old["node"]);
        assert_eq!(new["starts"], 1);
    }
    for number in workers(folder.path()) {
        assert!(!orphans.contains(&number), "worker {number} is new");
    }
    up.end();
    assert_eq!(processes_on(folder.path()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_while_it_starts_leaves_nothing() {
    let folder = temp();
    let start = || Daemon::spawn(&mut Up::command(folder.path(), &["--workers", "2"]));
    // At its very beginning.
    let mut early = start();
    early.until_said("starting");
    early.signal(Signal::INT);
    let ran = early.ended().says(&[]);
    assert!(ran.code == 1 || ran.stdout.contains("\"up\""), "{ran:#?}");
    assert_eq!(processes_on(folder.path()), []);

    // While its workers start.
    let mut later = start();
    greenroom_testkit::within("a worker process", async {
        while !processes_on(folder.path())
            .iter()
            .any(|(_, line)| line.contains(" worker "))
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    later.signal(Signal::TERM);
    let ran = later.ended().says(&[]);
    assert!(ran.code == 1 || ran.stdout.contains("\"up\""), "{ran:#?}");
    assert_eq!(processes_on(folder.path()), []);

    // Neither is in the way of a start that is let be.
    Up::start(&folder, &["--workers", "2"]).end();
    assert_eq!(processes_on(folder.path()), []);
}
