//! A real Manager process.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use greenroom_sdk::{Client, Settings};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

/// However busy the machine is, a Manager that works has started, answered, acted or ended within this. One
/// that has not hangs, which is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Daemon {
    pub(crate) address: String,
    child: Child,
}

// === impl Daemon ===

impl Daemon {
    pub(crate) async fn start(binary: &Path, data_dir: &Path) -> Result<Self> {
        Self::start_at(binary, data_dir, "127.0.0.1:0").await
    }

    /// At the address where it was before, so that its clients find it again.
    pub(crate) async fn start_at(binary: &Path, data_dir: &Path, address: &str) -> Result<Self> {
        let listen = address.strip_prefix("http://").unwrap_or(address);
        let mut command = Command::new(binary);
        command
            .args(["manager", "--json", "--listen", listen, "--data-dir"])
            .arg(data_dir);
        Self::spawn(command).await
    }

    /// From a command line of one's own.
    pub(super) async fn spawn(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("the binary cannot be run")?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line())
            .await
            .context("the Manager does not say that it serves")??;
        let Some(line) = line else {
            let mut words = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                stderr.read_to_string(&mut words).await?;
            }
            bail!("the Manager ended at its start: {words}");
        };
        let told: serde_json::Value = serde_json::from_str(&line)?;
        let address = told["address"]
            .as_str()
            .context("the Manager tells its address")?;
        Ok(Self {
            address: format!("http://{address}"),
            child,
        })
    }

    /// A client that waits for its answers.
    pub(crate) async fn connect(&self) -> Result<Client> {
        connect(&self.address, PATIENCE).await
    }

    /// Waits until it ends by itself; its exit code and what it said.
    pub(super) async fn ended(mut self) -> Result<(Option<i32>, String)> {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = ended.context("the Manager does not end")??;
        let mut words = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut words).await?;
        }
        Ok((status.code(), words))
    }

    /// kill -9.
    pub(crate) async fn kill(mut self) -> Result<()> {
        self.child.start_kill()?;
        self.child.wait().await?;
        Ok(())
    }
}

/// A client whose calls are given up after `limit`, with all repeats.
pub(crate) async fn connect(address: &str, limit: Duration) -> Result<Client> {
    let settings = Settings {
        connect_timeout: PATIENCE,
        call_timeout: limit,
        ..Settings::new([address])
    };
    Client::connect(settings)
        .await
        .context("the Manager takes a client")
}
