//! Test cards as leased jobs, and the viewer of their output.

use std::path::Path;

use greenroom_media::probe::{self, Live, ProbeHandle, Report};
use greenroom_testkit::within;
use serde_json::Value;

use crate::harness::{Up, processes_on};

/// Somebody who watches one port.
pub(crate) struct Viewer {
    probe: ProbeHandle,
}

/// A bundle of one leased test card that sends to a port; `more` are further words of the card.
pub(crate) fn leased_card(bundle_id: &str, port: u16, more: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_greenroom");
    format!(
        "bundleId: {bundle_id}\npool: local\njobs:\n  - jobName: card\n    jobSocket: true\n    lease: {{ttlMs: 2000, \
         graceMs: 1000}}\n    requirements: {{requiredCapacity: 0.1}}\n    launch:\n      services:\n        - name: card\n          \
         command: {binary} testcard --to 127.0.0.1:{port} --channel {bundle_id} --rate 50 {more}\n          restart: onFailure\n"
    )
}

/// The one lease that there is.
#[track_caller]
pub(crate) fn lease(up: &Up) -> Value {
    let status = up.run(&["leases", "status", "--json"]).ok().json();
    let leases = status["leases"].as_array().expect("a list");
    assert_eq!(leases.len(), 1, "{status}");
    leases[0].clone()
}

/// The number of a lease.
#[track_caller]
pub(crate) fn fence(lease: &Value) -> u64 {
    lease["fence"].as_u64().expect("a number")
}

/// Processes of a job, known by a word of its command line, that were started under this number.
pub(crate) fn under(folder: &Path, word: &str, fence: u64) -> Vec<u32> {
    let mark = format!("GREENROOM_FENCE={fence}");
    let all = processes_on(folder).into_iter();
    let jobs = all.filter(|(_, line)| line.contains(word));
    jobs.map(|(number, _)| number)
        .filter(|number| {
            let environ = std::fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
            environ
                .split(|byte| *byte == 0)
                .any(|it| it == mark.as_bytes())
        })
        .collect()
}

/// The numbers of everybody who sent, in the order of their first packets.
pub(crate) fn fences(report: &Report) -> Vec<u64> {
    let senders = report.senders.iter();
    senders
        .map(|it| it.fence.expect("a leased card says it"))
        .collect()
}

/// Waits for what no event tells.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    within(what, async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

// === impl Viewer ===

impl Viewer {
    pub(crate) async fn open() -> Self {
        let probe = probe::start(probe::Config::new("127.0.0.1:0")).await;
        Self {
            probe: probe.expect("a port is free"),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.probe.local_address().port()
    }

    /// Waits until somebody of a greater number than this is on the air.
    pub(crate) async fn until_fence_above(&mut self, fence: u64) {
        let what = format!("a sender of a number above {fence}");
        let greater = |live: &Live| live.on_air.iter().any(|it| it.fence > Some(fence));
        self.until(&what, greater).await;
    }

    pub(crate) async fn until_silent(&mut self) {
        self.until("silence", |live| live.is_silent).await;
    }

    /// Waits for so many more packets.
    pub(crate) async fn until_more(&mut self, packets: u64) {
        let from = self.probe.live().packets;
        self.until("more packets", |live| live.packets >= from + packets)
            .await;
    }

    async fn until(&mut self, what: &str, is_so: impl FnMut(&Live) -> bool) {
        let live = within(what, self.probe.wait_until(is_so)).await;
        live.expect("the probe goes on");
    }

    pub(crate) async fn end(self) -> Report {
        self.probe.finish().await.expect("the probe ends in order")
    }
}
