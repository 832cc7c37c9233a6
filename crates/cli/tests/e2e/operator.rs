//! What an operator does to nodes, jobs and spares of a running installation.

use greenroom_sdk::types::NodeId;
use greenroom_testkit::Watch;
use serde_json::json;

use crate::harness::{Up, sleeping, temp};

async fn until_gone(watch: &mut Watch, node_id: &str) {
    let node_id = NodeId::new(node_id);
    let what = format!("the end of {node_id}");
    watch
        .until_mirror(&what, |mirror| !mirror.nodes.contains_key(&node_id))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_cordoned_and_jobs_moved() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "2"]);
    let told = up.run(&["cordon", "worker-1", "--json"]).ok().json();
    assert_eq!(told, json!({"nodeId": "worker-1", "action": "cordoned"}));
    let rows = up.run(&["get", "nodes"]).ok().stdout;
    assert!(rows.contains("worker-1  running, cordoned"), "{rows}");
    assert!(!rows.contains("worker-2  running, cordoned"), "{rows}");
    let nodes = up.run(&["get", "nodes", "--json"]).ok().json();
    assert_eq!(
        (&nodes[0]["cordoned"], &nodes[1]["cordoned"]),
        (&json!(true), &json!(false))
    );
    let words = up.run(&["describe", "node", "worker-1"]).ok().stdout;
    assert!(words.contains("until `greenroom uncordon`"), "{words}");
    up.file("tale.yaml", sleeping("tale", &["a"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    assert_eq!(up.job("tale.0.a")["node"], "worker-2");
    let told = up.run(&["uncordon", "worker-1", "worker-2"]).ok().stdout;
    assert_eq!(
        told,
        "node worker-1 takes jobs again\nnode worker-2 takes jobs again\n"
    );

    // One name that is not known, and nothing is done.
    up.run(&["cordon", "worker-1", "nix", "worker-2"]).refused(
        1,
        &["there is no node nix, so nothing was done", "get nodes"],
    );
    up.run(&["uncordon", "worker-1", "nox", "nix"])
        .refused(1, &["there is no node nix, nox, so nothing was done"]);
    let rows = up.run(&["get", "nodes"]).ok().stdout;
    assert!(!rows.contains("cordoned"), "{rows}");

    // Moving it, in both ways that need nothing of the job.
    let moved = up
        .run(&["migrate", "tale.0.a", "--to", "worker-1", "--wait"])
        .ok();
    assert!(
        moved.stdout.ends_with("job tale.0.a runs on worker-1\n"),
        "{moved:#?}"
    );
    assert_eq!(up.job("tale.0.a")["node"], "worker-1");
    let steps = up
        .run(&[
            "migrate",
            "tale.0.a",
            "--strategy",
            "overlap",
            "--wait",
            "--json",
        ])
        .ok()
        .json_lines();
    assert_eq!(steps[0]["jobId"], "tale.0.a");
    let last = steps.last().expect("steps");
    assert_eq!(last["phase"], "done");
    assert_eq!(last["migrationId"], steps[0]["migrationId"]);
    assert_eq!(last["targetNodeId"], "worker-2");
    assert_eq!(up.job("tale.0.a")["node"], "worker-2");
    up.run(&["migrate", "tale.0.a", "--to", "worker-2"])
        .refused(1, &["targetIsSource"]);
    up.run(&["migrate", "tale.0.a", "--strategy", "handover"])
        .refused(1, &["notCooperative"]);
    up.run(&["migrate", "tale.0.a", "--to", "nix", "--wait"])
        .says(&["nix"]);

    // Taking back one that is over changes nothing.
    let id = last["migrationId"].as_str().expect("an id");
    let told = up.run(&["abort-migration", id, "--json"]).ok().json();
    let expected = json!({"migrationId": id, "jobId": "tale.0.a", "phase": "done"});
    assert_eq!(told, expected);
    up.run(&["abort-migration", "nix"])
        .refused(1, &["nix is not known", "hint: "]);
    assert_eq!(up.job("tale.0.a")["node"], "worker-2");

    let list = up.run(&["migrations", "--json"]).ok().json();
    let phases: Vec<&str> = list
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|it| it["phase"].as_str())
        .collect();
    assert_eq!(phases, ["done", "done", "aborted"], "{list}");
    let words = up.run(&["migrations"]).ok().stdout;
    assert!(words.contains(id) && words.contains("worker-2"), "{words}");

    let placements = up.run(&["placements", "--json"]).ok().json();
    assert_eq!(placements[0]["jobId"], "tale.0.a");
    assert_eq!(placements[0]["context"], "migration");
    assert_eq!(placements[0]["nodeId"], "worker-2");
    let metrics = up.run(&["metrics", "--json"]).ok().json();
    assert_eq!(metrics["pools"][0]["poolName"], "local");
    assert_eq!(metrics["pools"][0]["nodeCount"], 2);
    let words = up.run(&["metrics"]).ok().stdout;
    assert!(words.contains("placements attempted"), "{words}");
    up.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_drained_and_comes_back_with_the_next_start() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "2"]);
    up.file("tale.yaml", sleeping("tale", &["a", "b"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    let node = up.job("tale.0.a")["node"]
        .as_str()
        .expect("a node")
        .to_owned();
    let other = if node == "worker-1" {
        "worker-2"
    } else {
        "worker-1"
    };
    let mut watch = up.watch().await;
    let drained = up.run(&["drain", &node, "--timeout", "60s"]).ok();
    assert_eq!(drained.stdout, format!("node {node} is drained and ends\n"));
    let drained = drained.says(&["tale.0.a is moving", "tale.0.a has moved", "uncordon"]);
    assert!(!drained.stderr.contains("stuck"), "{drained:#?}");
    until_gone(&mut watch, &node).await;
    assert_eq!(up.job("tale.0.a")["node"], other);
    assert_eq!(up.job("tale.0.a")["starts"], 2);
    // What has ended takes no jobs, cordoned or not.
    let words = up.run(&["uncordon", &node]).ok().stdout;
    let ended = format!("node {node} is not cordoned any more, but does not run");
    assert!(words.starts_with(&ended), "{words}");
    let told = up.run(&["uncordon", other, "--json"]).ok().json();
    let expected = json!({"nodeId": other, "action": "uncordoned", "takesJobs": true});
    assert_eq!(told, expected);

    // The last node: its jobs have nowhere to go, and the time runs out.
    let ran = up.run(&["drain", other, "--timeout", "1s"]);
    let words = [
        "tale.0.a is stuck",
        "was not emptied in time",
        "tale.0.b",
        "hint: ",
    ];
    ran.refused(1, &words);
    assert_eq!(up.job("tale.0.a")["instance"], "running");
    up.run(&["uncordon", other]).ok();

    // As data, and by force.
    let ran = up.run(&["drain", other, "--timeout", "1s", "--force", "--json"]);
    assert_eq!(ran.code, 1, "what was on it is off the air: {ran:#?}");
    let steps = ran.json_lines();
    let [.., last, told] = &steps[..] else {
        panic!("{steps:?}")
    };
    let words = told["error"]["message"].as_str().unwrap_or_default();
    assert!(
        words.contains("tale.0.a") && words.contains("tale.0.b"),
        "{told}"
    );
    assert_eq!(last["phase"], "done");
    assert_eq!(last["nodeId"], other);
    assert!(
        last["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|job| job["status"] == "terminated"),
        "{last}"
    );
    until_gone(&mut watch, other).await;
    let pending = up.run(&["pending", "--json"]).ok().json();
    assert_eq!(pending["unplaced"], json!(["tale.0.a", "tale.0.b"]));
    let words = up.run(&["pending"]).ok().stdout;
    assert!(words.contains("greenroom why tale.0.a"), "{words}");
    up.run(&["drain", other]).refused(1, &["nothing to drain"]);

    // An owned server comes back with its worker.
    up.end();
    let up = Up::start(&folder, &["--workers", "2"]);
    let mut watch = up.watch().await;
    for job_id in ["tale.0.a", "tale.0.b"] {
        watch.until_last(job_id, "running").await;
    }
    up.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_ended_and_their_jobs_go_elsewhere() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "3"]);
    up.file("tale.yaml", sleeping("tale", &["a"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    let mut watch = up.watch().await;
    for (verb, action, starts) in [("evict", "evicted", 2), ("terminate", "terminated", 3)] {
        let node = up.job("tale.0.a")["node"]
            .as_str()
            .expect("a node")
            .to_owned();
        let told = up.run(&[verb, &node, "--json"]).ok().json();
        assert_eq!(told, json!({"nodeId": node, "action": action}));
        until_gone(&mut watch, &node).await;
        watch
            .until_job("tale.0.a", "elsewhere", |job| {
                let kinds = greenroom_testkit::kinds(job);
                kinds.iter().filter(|kind| **kind == "running").count() == starts
            })
            .await;
        assert_ne!(up.job("tale.0.a")["node"], node.as_str());
    }
    // No room for more than the one node that is left has.
    up.file("wide.yaml", sleeping("wide", &["a"]).replace("0.1", "0.5"));
    up.file(
        "wider.yaml",
        sleeping("wider", &["a", "b"]).replace("0.1", "64"),
    );
    up.run(&["admit", "-f", "wider.yaml"]).says(&["wider"]);
    up.end();
}

#[test]
fn what_waits_for_its_time_or_for_a_hand_is_told_as_such() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let by_hand =
        sleeping("hand", &["a"]).replace("  - jobName: a", "  - jobName: a\n    startMode: manual");
    up.file("hand.yaml", by_hand);
    let later = format!(
        "startDateTime: 2999-01-01T00:00:00Z\n{}",
        sleeping("later", &["a"])
    );
    up.file("later.yaml", later);
    up.run(&["apply", "-f", "hand.yaml", "-f", "later.yaml"])
        .ok();
    // What is placed now was announced after them.
    up.file("now.yaml", sleeping("now", &["a"]));
    up.run(&["apply", "-f", "now.yaml", "--wait"]).ok();
    up.run(&["why", "hand.0.a"]).ok();
    let pending = up.run(&["pending", "--json"]).ok().json();
    assert_eq!(pending["dormant"], json!(["hand.0.a"]));
    assert_eq!(pending["unplaced"], json!([]));
    let words = up.run(&["pending"]).ok().stdout;
    assert!(words.contains("somebody who starts it"), "{words}");
    assert_eq!(up.job("hand.0.a")["state"], "dormant");
    up.run(&["why", "later.0.a"])
        .refused(1, &["starts at 2999-01-01T00:00:00Z", "looked at from"]);
    up.end();
}

#[test]
fn spares_and_templates_are_changed_while_it_runs() {
    let folder = temp();
    std::fs::write(
        folder.path().join("settings.yaml"),
        "placementPools:\n  - name: local\n    tiers:\n      - {name: own, kind: local-servers, scaleOut: fixed}\n",
    )
    .unwrap();
    let settings = folder.path().join("settings.yaml");
    let up = Up::start(
        &folder,
        &["--workers", "1", "--settings", settings.to_str().unwrap()],
    );
    let listed = up.run(&["spares", "list", "--json"]).ok().json();
    assert_eq!(listed["pools"][0]["spareTarget"], 0);
    assert_eq!(listed["nodes"], json!([]));
    up.file(
        "spares.yaml",
        "- {pool: local, targetCount: 0, spec: {instanceType: any}}\n",
    );
    let told = up
        .run(&["spares", "set", "-f", "spares.yaml", "--json"])
        .ok()
        .json();
    assert_eq!(told, json!({"local": "added"}));
    up.file(
        "more.yaml",
        "hotSpares:\n  - {pool: local, targetCount: 0, reservedFor: [news], spec: {instanceType: any}}\n",
    );
    let told = up.run(&["spares", "set", "-f", "more.yaml"]).ok().stdout;
    assert!(told.contains("pool local: reservedFor"), "{told}");
    let told = up.run(&["spares", "set", "-f", "more.yaml"]).ok().stdout;
    assert_eq!(told, "nothing changed\n");
    up.file(
        "bad.yaml",
        "- {pool: nix, targetCount: 0, spec: {instanceType: any}}\n",
    );
    up.run(&["spares", "set", "-f", "bad.yaml"])
        .refused(2, &["bad.yaml:1:4: hotSpares[0].pool: ", "nix"]);
    up.file(
        "bad.yaml",
        "hotSpares:\n  - pool: local\n    targetCount: -1\n",
    );
    up.run(&["spares", "set", "-f", "bad.yaml"])
        .refused(2, &["bad.yaml:3:5: hotSpares[0].targetCount: "]);
    up.run(&["templates", "set", &"x".repeat(2_000), "img:1"])
        .refused(2, &["1 to 128 bytes"]);
    for (template, image, words) in [
        ("enc", "", "image reference is empty"),
        ("t u", "img:1", "template name"),
        ("enc", "x y", "has a space"),
        ("enc", "x\u{1b}[31m", "one line"),
    ] {
        let ran = up.run(&["templates", "set", template, image]);
        ran.refused(2, &[words]);
    }
    up.run(&["templates", "set", "nosuch"])
        .refused(1, &["no template nosuch", "templates list"]);
    let many: Vec<String> = (0..6_000).map(|at| format!("t{at:0>120}")).collect();
    for (fault, at) in [
        ("warmFor: [\"a\\e[31mRED\\a\"]", "warmFor"),
        ("warmFor: [\"a\\nb\", \"\"]", "warmFor"),
        ("spec: {region: \"x\\ny\"}", "spec.region"),
        (&format!("warmFor: [{}]", many.join(", ")), "warmFor"),
    ] {
        let at = format!("hotSpares[0].{at}");
        up.file("bad.yaml", format!("- pool: local\n  {fault}\n"));
        up.run(&["spares", "set", "-f", "bad.yaml"])
            .refused(2, &["bad.yaml:2:", &at]);
    }
    up.file("none.yaml", "pools: []\n");
    up.run(&["spares", "set", "-f", "none.yaml"])
        .refused(2, &["none.yaml", "hotSpares"]);
    up.run(&["spares", "edit", "worker-1"])
        .refused(2, &["--warm-for"]);
    up.run(&["spares", "edit", "worker-1", "--warm-for", "news"])
        .refused(1, &["worker-1", "spares list"]);
    let told = up
        .run(&["templates", "set", "news", "img:1", "img:2", "--json"])
        .ok()
        .json();
    assert_eq!(
        told,
        json!({"template": "news", "images": ["img:1", "img:2"]})
    );
    let listed = up.run(&["templates", "list", "--json"]).ok().json();
    assert_eq!(listed, json!({"news": ["img:1", "img:2"]}));
    let words = up.run(&["templates", "list"]).ok().stdout;
    assert!(words.contains("img:2"), "{words}");
    let told = up.run(&["templates", "set", "news"]).ok().stdout;
    assert_eq!(told, "template news is taken away\n");
    let words = up.run(&["templates", "list"]).ok().stdout;
    assert_eq!(words, "there is no template with images\n");

    // A slot in a pool that is not there would never get a job.
    let nodes = up.run(&["get", "nodes", "--json"]).ok().stdout;
    up.run(&["node", "register", "spare-1", "--pool", "lokal"])
        .refused(
            2,
            &["\"lokal\"", "its pools are local", "nothing was registered"],
        );
    assert_eq!(up.run(&["get", "nodes", "--json"]).ok().stdout, nodes);
    up.run(&["node", "register", "spare-1", "--pool", "local"])
        .ok();
    // Without a control plane nobody knows the pools, and that is said.
    let nowhere = ["--control", "http://127.0.0.1:1"];
    let unchecked = ["node", "register", "spare-2", "--pool", "lokal"];
    up.run(&[&unchecked[..], &nowhere].concat())
        .ok()
        .says(&["pool \"lokal\" was not checked"]);
    up.end();
}

// spec: SCEN-12
#[test]
fn what_happened_is_recorded_as_a_scenario_that_plays() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "2"]);
    up.run(&["cordon", "worker-1"]).ok();
    up.file("tale.yaml", sleeping("tale", &["a"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    up.run(&["uncordon", "worker-1"]).ok();
    up.run(&["migrate", "tale.0.a", "--to", "worker-1", "--wait"])
        .ok();
    let told = up
        .run(&["scenario", "record", "--minutes", "60", "-o", "rec.yaml"])
        .ok()
        .says(&["decisions"]);
    let text = std::fs::read_to_string(folder.path().join("rec.yaml")).unwrap();
    for words in [
        "cordon: worker-1",
        "createBundle: {",
        "chosen: worker-2",
        "migrate: {",
    ] {
        assert!(
            text.contains(words),
            "{words:?} is not in {text}\n{told:#?}"
        );
    }
    assert!(
        !text.contains("sleep"),
        "what runs is nobody's business: {text}"
    );
    up.run(&["scenario", "run", "rec.yaml"]).ok();
    up.run(&["scenario", "check", "rec.yaml"]).ok();
    let on_stdout = up.run(&["scenario", "record"]).ok().stdout;
    assert!(on_stdout.contains("scenario: 1"), "{on_stdout}");
    up.end();
}

#[test]
fn a_job_is_started_and_stopped_by_hand() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let text = sleeping("tale", &["a"]);
    let manual = text.replace(
        "  - jobName: a\n",
        "  - jobName: a\n    startMode: manual\n",
    );
    assert_ne!(text, manual);
    up.file("tale.yaml", manual);
    let applied = up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    applied.says(&["not waited for: tale.0.a: it is started by hand"]);
    let words = up.run(&["pending"]).ok().stdout;
    assert!(words.contains("`greenroom start tale.0.a`"), "{words}");
    let started = up.run(&["start", "tale.0.a", "--wait"]).ok();
    assert_eq!(started.stdout, "job tale.0.a is started\n");
    assert_eq!(up.job("tale.0.a")["instance"], "running");
    let stopped = up.run(&["stop", "tale.0.a", "--json"]).ok().json();
    assert_eq!(stopped, json!({"jobId": "tale.0.a", "action": "stopped"}));
    assert_eq!(up.job("tale.0.a")["state"], "dormant");
    up.file("auto.yaml", sleeping("auto", &["a"]));
    up.run(&["apply", "-f", "auto.yaml", "--wait"]).ok();
    up.run(&["stop", "auto.0.a"]).ok();
    up.run(&["apply", "-f", "auto.yaml", "--wait"])
        .ok()
        .says(&["not waited for: auto.0.a: it was stopped by hand"]);
    // One whose time is to come is not started by the call, which says so.
    let later = format!(
        "startDateTime: 2999-01-01T00:00:00Z\n{}",
        sleeping("late", &["a"])
    );
    up.file("late.yaml", later);
    up.run(&["apply", "-f", "late.yaml"]).ok();
    up.run(&["stop", "late.0.a"]).ok();
    let started = up.run(&["start", "late.0.a", "--wait"]).ok();
    assert!(
        started.stdout.contains("2999-01-01T00:00:00"),
        "{}",
        started.stdout
    );
    started.says(&["not waited for: late.0.a: it starts at 2999-01-01"]);
    for name in ["w1\u{1b}[31m", "w1\nw2"] {
        for verb in ["cordon", "start"] {
            let ran = up.run(&[verb, name]);
            let lines = ran.stderr.lines().filter(|line| line.contains("w1"));
            assert_eq!(lines.count(), 1, "{}", ran.stderr);
            assert!(!ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
            ran.refused(1, &["w1\\"]);
        }
    }
    let ran = up.run(&["get", "w1\u{1b}[31m"]);
    assert!(!ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
    ran.refused(2, &["w1"]);
    for verb in ["start", "stop"] {
        up.run(&[verb, "nix"])
            .refused(1, &["no bundle has a job nix", "get jobs"]);
    }
    up.run(&["abort-migration", "m", "--reason", "a\nb"])
        .refused(2, &["one line"]);
    up.end();
}
