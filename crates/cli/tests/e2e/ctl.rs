//! `greenroom ctl` against a Manager.

use rustix::process::Signal;

use crate::harness::{Daemon, greenroom, run, temp};

// spec: SDK-15, KV-01, KV-02
#[test]
fn any_call_is_made_by_its_name_with_json() {
    let folder = temp();
    let mut manager = greenroom();
    manager.args(["manager", "--json", "--listen", "127.0.0.1:0", "--data-dir"]);
    manager.arg(folder.path().join("store"));
    let mut manager = Daemon::spawn(&mut manager);
    let url = format!("http://{}", manager.line()["address"].as_str().unwrap());
    let ctl = |call: &str, json: &str| run(&["ctl", call, "--json", json, "--manager", &url]);

    let commit =
        r#"{"namespace":"rota","writes":[{"key":"a","value":"aGk=","expectedRevision":0}]}"#;
    let done = ctl("KvCommit", commit).ok().json();
    assert_eq!(done["revision"], "1");
    let got = ctl("KvGet", r#"{"namespace":"rota","key":"a"}"#)
        .ok()
        .json();
    assert_eq!(
        (&got["entry"]["value"], &got["entry"]["revision"]),
        (&"aGk=".into(), &"1".into())
    );
    ctl("KvCommit", commit).refused(1, &["FailedPrecondition revision_mismatch"]);
    ctl("KvGet", r#"{"namespase":"rota"}"#)
        .refused(2, &["namespase", "KvGet takes namespace, key"]);
    ctl("KvGte", "{}").refused(2, &["no call \"KvGte\"", "greenroom ctl list"]);

    let id = ["--request-id", "once", "--manager", &url];
    let second =
        r#"{"namespace":"rota","writes":[{"key":"b","value":"aGk=","expectedRevision":0}]}"#;
    for _ in 0..2 {
        let done = run(&[&["ctl", "KvCommit", "--json", second][..], &id].concat()).ok();
        assert_eq!(done.json()["revision"], "2");
    }
    let job = r#"{"jobId":{"jobId":"j"},"services":[{"name":"main","command":"true"}]}"#;
    ctl("CreateJob", job).ok();
    let found = ctl("JobSearch", "{}").ok().json_lines();
    assert_eq!(found.len(), 1);
    assert!(
        run(&["ctl", "list"])
            .ok()
            .stdout
            .contains("SetClusterNodePool")
    );

    manager.signal(Signal::INT);
    manager.ended().ok();
    run(&["ctl", "ListNodes", "--manager", &url]).refused(1, &["cannot reach the Manager"]);
}
