//! Servers that are registered and switched off, waits for what does not come, and copies that come
//! together.

use serde_json::json;

use crate::harness::{Daemon, Up, sleeping, temp};

// spec: CORDON-07
#[test]
fn a_registered_server_that_is_off_is_cordoned_shown_and_uncordoned() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    up.run(&[
        "node", "register", "srv2", "--pool", "local", "--out", "token",
    ])
    .ok();
    let rows = up.run(&["get", "nodes"]).ok().stdout;
    assert!(rows.contains("srv2      absent   local"), "{rows}");

    let told = up.run(&["cordon", "worker-1", "srv2"]).ok().stdout;
    assert_eq!(
        told,
        "node worker-1 is cordoned\n\
         node srv2 is not there; its cordon waits for it, for 7 days\n"
    );
    let rows = up.run(&["get", "nodes"]).ok().stdout;
    assert!(rows.contains("srv2      absent, cordoned"), "{rows}");
    let words = up.run(&["describe", "node", "srv2"]).ok().stdout;
    for part in [
        "state     absent",
        "until `greenroom uncordon`",
        "tag       pool=local",
    ] {
        assert!(words.contains(part), "{words}");
    }
    let nodes = up.run(&["get", "nodes", "--json"]).ok().json();
    assert_eq!(
        (&nodes[0]["absent"], &nodes[0]["cordoned"]),
        (&json!(true), &json!(true)),
        "{nodes}"
    );

    // A slip in one name, and nothing is done.
    up.run(&["uncordon", "srv2", "srv3"])
        .refused(1, &["there is no node srv3, so nothing was done"]);
    let rows = up.run(&["get", "nodes"]).ok().stdout;
    assert!(rows.contains("srv2      absent, cordoned"), "{rows}");
    let told = up.run(&["uncordon", "srv2", "worker-1"]).ok().stdout;
    assert!(
        told.starts_with("node srv2 is not cordoned any more, but does not run"),
        "{told}"
    );
    let rows = up.run(&["get", "nodes"]).ok().stdout;
    assert!(!rows.contains("cordoned"), "{rows}");
    up.end();
}

#[test]
fn a_wait_for_a_job_that_is_stopped_by_hand_ends_at_once() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    // Nothing of it can start, so that the waits are still under way when it is stopped.
    up.run(&["cordon", "worker-1"]).ok();
    up.file("tale.yaml", sleeping("tale", &["a"]));
    let apply = [
        "apply",
        "-f",
        "tale.yaml",
        "--wait",
        "--timeout",
        "1h",
        "--json",
    ];
    for (args, words) in [
        (
            &apply[..],
            "tale.0.a was stopped by hand meanwhile; `greenroom start tale.0.a`",
        ),
        (
            &["start", "tale.0.a", "--wait", "--timeout", "1h", "--json"],
            "tale.0.a was stopped by hand meanwhile",
        ),
    ] {
        let mut waits = Daemon::spawn(&mut up.tool(args));
        waits.line();
        up.run(&["stop", "tale.0.a"]).ok();
        let ran = waits.ended();
        assert_eq!(ran.json()["error"]["reason"], "job_stopped", "{ran:#?}");
        ran.refused(1, &[words]);
    }
    // What is deleted or moved out of the time of the wait does not come either.
    let start = ["start", "tale.0.a", "--wait", "--timeout", "1h", "--json"];
    let mut waits = Daemon::spawn(&mut up.tool(&start));
    waits.line();
    let later = format!(
        "startDateTime: 2999-01-01T00:00:00Z\n{}",
        sleeping("tale", &["a"])
    );
    up.file("tale.yaml", later);
    up.run(&["apply", "-f", "tale.yaml"]).ok();
    waits
        .ended()
        .refused(1, &["tale.0.a", "2999-01-01", "beyond this wait"]);
    up.end();
}

/// Runs both copies of a job, `pair.0.a` and `pair.1.a`, apart; gives their nodes.
fn pair_apart(up: &Up) -> (String, String) {
    let pair = format!(
        "resiliencePolicy: {{sameNode: forbid}}\n{}",
        sleeping("pair", &["a"])
    );
    up.file("pair.yaml", pair);
    up.run(&["apply", "-f", "pair.yaml", "--wait"]).ok();
    let node = |job: &str| up.job(job)["node"].as_str().unwrap().to_owned();
    (node("pair.0.a"), node("pair.1.a"))
}

// spec: DRAIN-25, DRAIN-26
#[test]
fn a_drain_tells_which_copies_it_brought_together_and_why_tells_of_the_drain() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "2"]);
    let (from, to) = pair_apart(&up);
    assert_ne!(from, to);
    let drained = up.run(&["drain", &from]).ok();
    drained.says(&[
        "pair.0.a has moved, to the node of its other copy, which was to be avoided",
        "warning: pair.0.a went, to the node of its other copy",
    ]);
    let why = up.run(&["why", "pair.0.a"]).ok().stdout;
    let told = [
        format!("Job pair.0.a runs on {to}."),
        format!("its node {from} began to be drained."),
        format!("it had moved from {from} to {to}."),
        "It shares the node with the other copy now".to_owned(),
    ];
    let mut rest = why.as_str();
    for part in &told {
        let at = rest.find(part.as_str());
        let at = at.unwrap_or_else(|| panic!("{part:?} is not there, in order: {why}"));
        rest = &rest[at..];
    }
    up.end();
}

// spec: MIGR-38
#[test]
fn a_migration_to_the_node_of_the_other_copy_is_warned_of() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "2"]);
    let (from, to) = pair_apart(&up);
    let warning = "warning: pair.0.a goes to the node of its other copy, which was to be avoided";
    let moved = up.run(&["migrate", "pair.0.a", "--to", &to, "--wait"]).ok();
    assert_eq!(moved.stderr.matches(warning).count(), 1, "{moved:#?}");
    let listed = up.run(&["migrations"]).ok().stdout;
    assert!(listed.contains("to the node of its other copy"), "{listed}");

    let back = ["migrate", "pair.0.a", "--to", &from, "--wait"];
    let moved = up.run(&back).ok();
    assert!(!moved.stderr.contains("warning"), "{moved:#?}");
    let again = ["migrate", "pair.0.a", "--to", &to, "--wait", "--json"];
    let moved = up.run(&again).ok();
    let lines = moved.json_lines();
    for line in [lines.first(), lines.last()] {
        assert_eq!(line.unwrap()["shares"], json!(["sameNode"]), "{lines:#?}");
    }
    assert!(!moved.stderr.contains("warning"), "{moved:#?}");
    up.end();
}
