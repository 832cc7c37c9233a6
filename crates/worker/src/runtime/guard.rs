//! Keeps the cloud's metadata service out of reach of containers (WORK-51).
//!
//! The service hands out the rights of the machine itself to whoever asks from it. One rule of the
//! host's firewall refuses what comes from a bridge of ours and goes there; bridges of others are not
//! meant by it. It stands in the chain that the engine leaves to the host's owner, so that it
//! outlives restarts of the engine.

use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::spec::RuntimeKind;

/// The engine passes what its containers send through it before anything else.
const CHAIN: &str = "DOCKER-USER";
/// All bridges that [`super::docker`] makes.
const BRIDGES: &str = "gr-+";
/// Another who changes the firewall is waited for so many seconds.
const WAIT_S: &str = "5";
/// Whoever loads a firewall anew takes the rule away; it is looked for this often.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The rule for one address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    address: Ipv4Addr,
}

// === impl Guard ===

impl Guard {
    pub(crate) const fn new(address: Ipv4Addr) -> Self {
        Self { address }
    }

    /// Makes sure that the rule is there, or says why a job could reach the service.
    pub(crate) async fn ensure(&self) -> Result<(), String> {
        if self.iptables("--check").await.is_ok() {
            return Ok(());
        }
        self.iptables("--insert").await.map_err(|why| {
            let address = self.address;
            format!(
                "jobs could reach the metadata service at {address}: {why}; run the worker as root \
                 on a host with iptables, or let them with --allow-metadata"
            )
        })
    }

    /// Puts the rule back when it is gone.
    pub(crate) async fn keep(self, runtime: RuntimeKind) {
        if runtime == RuntimeKind::Process {
            let address = self.address;
            tracing::warn!(
                %address,
                "jobs run as processes on this machine's own network and can reach the metadata \
                 service; run them with Docker to keep them from it"
            );
            return;
        }
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failed = false;
        loop {
            ticks.tick().await;
            match self.ensure().await {
                Ok(()) => failed = false,
                Err(why) if !failed => {
                    failed = true;
                    tracing::warn!(why, "starts are rejected");
                }
                Err(_) => {}
            }
        }
    }

    async fn iptables(&self, what: &str) -> Result<(), String> {
        let address = format!("{}/32", self.address);
        let rule = ["--in-interface", BRIDGES, "--destination", &address];
        let output = Command::new("iptables")
            .args(["--wait", WAIT_S, what, CHAIN])
            .args(rule)
            .args(["--jump", "REJECT"])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| format!("iptables cannot be run: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or("it said nothing");
        Err(format!("iptables refused: {first}"))
    }
}
