//! A job moves while a viewer watches, and what helps to write such jobs.

use std::path::Path;

use crate::harness::{Ran, finish, greenroom, processes_on, run, temp};

fn demo(strategy: &str, times: &str) -> serde_json::Value {
    let folder = temp();
    let ran = finish(
        greenroom()
            .args(["demo", strategy, "--times", times, "--json"])
            .env("TMPDIR", folder.path()),
    )
    .ok();
    assert_eq!(processes_on(folder.path()), []);
    let lines = ran.json_lines();
    lines.last().expect("a summary")["summary"].clone()
}

// spec: PERF-09, MEDIA-03, MEDIA-06, MIGR-12
#[test]
fn a_channel_hands_over_without_a_packet_lost_or_repeated() {
    let summary = demo("handover", "4");
    assert_eq!(summary["aborted"], serde_json::json!([]), "{summary}");
    assert_eq!(summary["missing"], 0, "{summary}");
    assert_eq!(summary["repeated"], 0, "{summary}");
    assert_eq!(summary["kept"], true);
}

// spec: MEDIA-06, MIGR-11
#[test]
fn an_overlap_loses_nothing() {
    let summary = demo("overlap", "2");
    assert_eq!(
        (&summary["missing"], &summary["kept"]),
        (&0.into(), &true.into()),
        "{summary}"
    );
}

// spec: MEDIA-06, MIGR-10
#[test]
fn stop_then_start_repeats_nothing_and_tells_its_gap() {
    let summary = demo("stop-then-start", "2");
    assert_eq!(
        (&summary["repeated"], &summary["kept"]),
        (&0.into(), &true.into()),
        "{summary}"
    );
    assert!(
        summary["gapMs"]["max"].as_u64().expect("a gap") > 0,
        "{summary}"
    );
}

fn check(command: &[&str]) -> Ran {
    let mut args = vec!["job-socket", "check", "--json", "--step-limit", "5", "--"];
    args.extend(command);
    run(&args)
}

/// The rules that a run departs from.
fn departures(ran: &Ran) -> Vec<String> {
    let lines = ran.json_lines();
    let departs = lines.iter().filter(|line| !line["departure"].is_null());
    departs
        .map(|line| {
            format!(
                "{} {}",
                line["spec"].as_str().unwrap(),
                line["side"].as_str().unwrap()
            )
        })
        .collect()
}

// spec: SOCK-20, MEDIA-03
#[test]
fn the_test_card_keeps_to_the_job_socket_and_its_faults_are_found() {
    let card = ["testcard", "--to", "127.0.0.1:9", "--channel", "check"];
    let mut command = vec![env!("CARGO_BIN_EXE_greenroom")];
    command.extend(card);
    let ran = check(&command).ok();
    let lines = ran.json_lines();
    assert!(lines.len() > 14, "{lines:?}");
    assert_eq!(departures(&ran), Vec::<String>::new());
    command.extend(["--fault", "slow-handover:12s"]);
    let slow = check(&command);
    assert_eq!(
        (slow.code, departures(&slow)),
        (1, vec!["SOCK-07 source".to_owned()])
    );
    let silent = check(&["sleep", "1000"]);
    let expected = ["SOCK-05 source"].map(str::to_owned).to_vec();
    assert_eq!((silent.code, departures(&silent)), (1, expected));
}

// spec: SOCK-20
#[test]
fn a_python_job_keeps_to_the_job_socket() {
    let folder = temp();
    let script = folder.path().join("job.py");
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../job/python");
    std::fs::write(
        &script,
        format!(
            r#"
import sys, time
sys.path.insert(0, {client:?})
import greenroom_job
job = greenroom_job.connect("a", wants=["handover"])
target = bool(job.migration_id)
if target:
    job.ready(b"here")
while True:
    for message in job:
        kind = message["type"]
        if kind == "getState":
            job.state(message, b"state")
        elif kind == "stopOutput":
            job.stopped_output(message, b"%f" % time.time())
        elif kind == "begin":
            job.applied(message, b"%f" % time.time())
        elif kind == "abort":
            (job.dropped if target else job.resumed)(message)
        elif kind == "stopping":
            sys.exit(0)
    job.reconnect()
"#
        ),
    )
    .unwrap();
    let ran = check(&["python3", script.to_str().unwrap()]).ok();
    assert_eq!(departures(&ran), Vec::<String>::new());
    // The same answers, to the microsecond, came from the client's memory.
    let repeats = |side: &str| {
        let lines = ran.json_lines();
        let of = |line: &&serde_json::Value| line["side"] == side && line["spec"] == "SOCK-12";
        lines.iter().filter(of).count()
    };
    assert_eq!((repeats("source"), repeats("target")), (2, 2));
}
