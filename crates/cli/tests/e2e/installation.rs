//! `greenroom up` with the tools of every day, and what a second start finds.

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Daemon, Up, example, processes_on, sleeping, temp};

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_goes_on_air_is_looked_at_and_is_found_again() {
    let folder = temp();
    let up = Up::start(&folder, &[]);
    assert_eq!(
        up.told["workers"],
        json!(["worker-1", "worker-2", "worker-3"])
    );
    assert_eq!(up.told["keep"], false);
    for name in ["one-channel.yaml", "primary-backup.yaml", "chain.yaml"] {
        up.file(name, example(name));
    }

    // What is offered can be checked before anything is there.
    let files = [
        "-f",
        "one-channel.yaml",
        "-f",
        "primary-backup.yaml",
        "-f",
        "chain.yaml",
    ];
    let with = |verb: &[&'static str], more: &[&'static str]| [verb, &files, more].concat();
    let valid = up.run(&with(&["validate"], &["--json"])).ok().json();
    assert_eq!(valid["ok"], true);
    assert_eq!(valid["bundles"], 3);
    let admitted = up.run(&with(&["admit"], &["--json"])).ok().json_lines();
    assert_eq!(admitted.len(), 3);
    assert_eq!(admitted[0]["admission"]["kind"], "ok");
    let placed = up
        .run(&with(&["place", "--dry-run"], &["--json"]))
        .ok()
        .json_lines();
    assert_eq!(placed.len(), 5, "one line for each job of each copy");
    assert_eq!(placed[0]["decision"]["kind"], "place");
    assert_eq!(up.run(&["get", "bundles", "--json"]).ok().json(), json!([]));

    // On air.
    let applied = up.run(&with(&["apply", "--wait"], &["--json"])).ok();
    assert!(applied.stderr.contains("2/5 running"), "{applied:#?}");
    let lines = applied.json_lines();
    assert_eq!(lines[1]["bundleId"], "news");
    assert_eq!(lines[1]["action"], "created");
    assert_eq!(lines[1]["jobs"], json!(["news.0.encode", "news.1.encode"]));

    // Looking at it.
    let bundles = up.run(&["get", "bundles"]).ok().stdout;
    assert!(bundles.starts_with("BUNDLE"), "{bundles}");
    let primary = up.job("news.0.encode");
    assert_eq!(primary["instance"], "running");
    assert_ne!(primary["node"], up.job("news.1.encode")["node"]);
    assert_eq!(
        up.job("chain.0.encode")["node"],
        up.job("chain.0.meter")["node"]
    );
    let nodes = up.run(&["get", "nodes", "-o", "json"]).ok().json();
    assert_eq!(nodes.as_array().map(Vec::len), Some(3));
    let wide = up.run(&["get", "nodes", "-o", "wide"]).ok().stdout;
    assert!(wide.contains("RUNTIME"), "{wide}");
    let bundle = up
        .run(&["describe", "bundle", "news", "--json"])
        .ok()
        .json();
    assert_eq!(bundle["bundle"]["bundleId"], "news");
    let job = up.run(&["describe", "job", "news.0.encode"]).ok().stdout;
    assert!(job.contains("running primary on worker-"), "{job}");
    let node = up
        .run(&["describe", "node", "worker-1", "--json"])
        .ok()
        .json();
    assert_eq!(node["metadata"]["nodeId"], "worker-1");
    let why = up.run(&["why", "news.0.encode", "--json"]).ok().json();
    let text = why["text"].as_str().expect("words");
    assert!(text.contains(primary["node"].as_str().unwrap()), "{text}");
    let events = up.run(&["events", "--json"]).ok().json_lines();
    assert!(
        events
            .iter()
            .any(|event| event.get("bundleActive").is_some()),
        "{events:#?}"
    );
    // The meter says something once it has seen the signal.
    let mut logs = up.tool(&["logs", "chain.0.meter", "--follow", "--json"]);
    let mut logs = Daemon::spawn(&mut logs);
    assert_eq!(logs.line()["service"], "probe");
    drop(logs);

    // Taking one away.
    let gone = up.run(&["delete", "chain", "--wait", "--json"]).ok();
    assert_eq!(
        gone.json(),
        json!({"bundleId": "chain", "action": "deleting"})
    );
    let left = up.run(&["get", "bundles", "--json"]).ok().json();
    assert_eq!(left.as_array().map(Vec::len), Some(2));

    // At Ctrl-C everything is stopped, and a second start has it again.
    up.end();
    assert_eq!(processes_on(folder.path()), []);
    let up = Up::start(&folder, &[]);
    let mut watch = up.watch().await;
    for job_id in ["one-channel.0.encode", "news.0.encode", "news.1.encode"] {
        watch.until_last(job_id, "running").await;
    }
    let again = up.job("news.0.encode");
    assert_ne!(again["startId"], primary["startId"]);
    assert_eq!(again["starts"], 2);
    up.end();
    assert_eq!(processes_on(folder.path()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_keep_jobs_run_on_without_anybody_and_are_taken_over() {
    let folder = temp();
    let up = Up::start(&folder, &["--keep", "--workers", "1"]);
    assert_eq!(up.told["keep"], true);
    up.file("tale.yaml", sleeping("tale", &["a"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    let before = up.job("tale.0.a");
    up.end();
    let left = processes_on(folder.path());
    assert!(
        left.iter().any(|(_, line)| line.starts_with("sleep")),
        "{left:?}"
    );
    assert!(
        !left.iter().any(|(_, line)| line.contains(" worker ")),
        "{left:?}"
    );

    // Started again, without the wish to keep anything.
    let up = Up::start(&folder, &["--workers", "1"]);
    let mut watch = up.watch().await;
    watch.until_last("tale.0.a", "running").await;
    let after = up.job("tale.0.a");
    assert_eq!(after["startId"], before["startId"]);
    assert_eq!(after["starts"], 1);
    up.end();
    assert_eq!(processes_on(folder.path()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_watched_and_events_that_are_followed_tell_what_happens() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let mut list = Daemon::spawn(&mut up.tool(&["get", "bundles", "--watch", "--json"]));
    assert_eq!(list.line(), json!([]));
    let mut events = Daemon::spawn(&mut up.tool(&["events", "--follow", "--json"]));
    events.until_said("following");
    up.file("tale.yaml", sleeping("tale", &["a"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    loop {
        let seen = list.line();
        if seen[0]["bundle"]["bundleId"] == "tale" {
            break;
        }
    }
    up.run(&["delete", "tale", "--wait"]).ok();
    loop {
        let stamped = events.line();
        if stamped["event"].get("bundleDeleted").is_some() {
            break;
        }
    }
    events.signal(Signal::INT);
    list.signal(Signal::INT);
    up.end();
}

#[test]
fn an_update_is_waited_for() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let text = sleeping("tale", &["a", "b"]);
    up.file("tale.yaml", &text);
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    let before = ["tale.0.a", "tale.0.b"].map(|job_id| up.job(job_id));
    up.file("tale.yaml", text.replacen("sleep 1000", "sleep 2000", 1));
    let applied = up
        .run(&["apply", "-f", "tale.yaml", "--wait", "--json"])
        .ok()
        .json();
    assert_eq!(applied["action"], "updated");
    assert_eq!(applied["revision"], 2);
    let after = ["tale.0.a", "tale.0.b"].map(|job_id| up.job(job_id));
    assert_eq!(after[0]["instance"], "running");
    assert_eq!(after[0]["starts"], 2);
    assert_ne!(after[0]["startId"], before[0]["startId"]);
    assert_eq!(after[1], before[1], "what did not change runs on");
    up.end();
}
