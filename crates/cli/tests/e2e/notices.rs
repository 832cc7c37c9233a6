//! A cloud takes a machine: from its metadata service to a job that runs elsewhere.

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../../../worker/tests/common/metadata.rs"]
mod metadata;

use std::time::SystemTime;

use greenroom_console::Client;
use greenroom_policy::Callback;
use greenroom_policy::drain::{DrainPhase, DrainStatus};
use greenroom_sdk::types::Wall;
use greenroom_sdk::types::node::InterruptionKind;
use serde_json::json;

use crate::harness::{Daemon, Up, greenroom, sleeping, temp};
use metadata::Metadata;

// spec: WORK-50, MNODE-19
#[tokio::test(flavor = "multi_thread")]
async fn a_notice_of_the_cloud_ends_in_a_drain_by_its_deadline() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let cloud = Metadata::start();
    let register = [
        "node", "register", "spot-1", "--pool", "local", "--out", "token",
    ];
    up.run(&register).ok();
    let manager = up.told["manager"].as_str().unwrap();
    let mut command = greenroom();
    command
        .current_dir(folder.path())
        .args([
            "worker",
            "--json",
            "--manager-url",
            manager,
            "--token-file",
            "token",
        ])
        .args([
            "--listen",
            "127.0.0.1:0",
            "--state-dir",
            "spot",
            "--runtime",
            "process",
        ])
        .args(["--vcpus", "2", "--metadata-url", &cloud.url, "--leave"]);
    let mut spot = Daemon::spawn(&mut command);
    assert_eq!(spot.line()["event"], "listening");

    up.run(&["cordon", "worker-1"]).ok();
    up.file("tale.yaml", sleeping("tale", &["a"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    assert_eq!(up.job("tale.0.a")["node"], "spot-1");
    up.run(&["uncordon", "worker-1"]).ok();

    let control = up.told["control"].as_str().unwrap();
    let control = control.trim_start_matches("http://");
    let mut feed = Client::new(control).callbacks().await.unwrap();
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let in_two_minutes = Wall((since.as_secs() as i64 + 120) * 1_000);
    let notice = json!({"action": "terminate", "time": in_two_minutes.to_string()});
    cloud.set("spot/instance-action", &notice);
    let mut next = async || {
        let event = feed.next().await.expect("the control plane lives");
        let event = event.expect("the control plane lives");
        assert_ne!(event.name, "ended");
        serde_json::from_value::<Callback>(event.data).ok()
    };
    let told = loop {
        if let Some(Callback::OnNodeInterrupted(told)) = next().await {
            break told;
        }
    };
    assert_eq!(told.node_id.as_str(), "spot-1");
    assert_eq!(told.kind, InterruptionKind::SpotInterruption);
    let deadline = told.deadline.expect("the notice names one");
    assert_eq!(deadline.0, in_two_minutes.0);
    // The policy drains by force, and ends before the provider does.
    assert!(told.drain.force);
    assert!(told.drain.timeout_ms <= 90_000, "{}", told.drain.timeout_ms);
    let over = loop {
        if let Some(Callback::OnDrainProgress(state)) = next().await
            && state.node_id.as_str() == "spot-1"
            && matches!(state.phase, DrainPhase::Terminating | DrainPhase::Done)
        {
            break state;
        }
    };
    assert_eq!(over.jobs.len(), 1);
    assert_eq!(over.jobs[0].status, DrainStatus::Migrated);
    let mut watch = up.watch().await;
    watch.until_last("tale.0.a", "running").await;
    assert_eq!(up.job("tale.0.a")["node"], "worker-1");
    up.end();
}
