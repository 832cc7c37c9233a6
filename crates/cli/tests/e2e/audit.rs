//! `greenroom audit` against a Manager, and on files.

use rustix::process::Signal;

use crate::harness::{Daemon, greenroom, run, temp};

// spec: AUDIT-10
#[test]
fn an_export_is_verified_without_a_manager() {
    let folder = temp();
    let mut manager = greenroom();
    manager.args(["manager", "--json", "--listen", "127.0.0.1:0", "--data-dir"]);
    manager.arg(folder.path().join("store"));
    let mut manager = Daemon::spawn(&mut manager);
    let url = format!("http://{}", manager.line()["address"].as_str().unwrap());
    let ctl = |call: &str, json: &str| run(&["ctl", call, "--json", json, "--manager", &url]).ok();
    for name in ["a", "b", "c"] {
        ctl(
            "RegisterClusterNode",
            &format!(r#"{{"nodeName":"{name}"}}"#),
        );
    }
    let export = || run(&["audit", "export", "--manager", &url]).ok().stdout;
    let write = |text: &str| {
        let path = folder.path().join("audit.jsonl");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let whole = export();
    assert!(whole.lines().count() >= 3, "{whole}");
    let file = write(&whole);
    let told = run(&["audit", "verify", "--json", &file]).ok().json();
    assert_eq!(told["entries"], whole.lines().count());
    let file = write(&whole.replace(r#"\"name\":\"b\""#, r#"\"name\":\"x\""#));
    run(&["audit", "verify", &file]).refused(1, &["broken at entry"]);
    run(&["audit", "verify", "--from-checkpoint", &file]).refused(2, &["no checkpoint"]);

    ctl("PruneAuditLog", "{}");
    let pruned = export();
    let file = write(&pruned);
    run(&["audit", "verify", "--from-checkpoint", &file]).ok();
    run(&["audit", "verify", &file]).refused(1, &["broken at entry"]);
    let file = write("nonsense\n");
    run(&["audit", "verify", &file]).refused(2, &["audit.jsonl:1:"]);
    manager.signal(Signal::INT);
    manager.ended().ok();
}
