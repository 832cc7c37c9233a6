//! The Manager's process, and what the system tells of it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use greenroom_sdk::{Client, Settings};

/// A call of a benchmark may take as long as the benchmark.
const CALL_MAX: Duration = Duration::from_secs(600);

/// The Manager's process. It ends with its handle.
pub(super) struct Daemon {
    child: Child,
    url: String,
}

// === impl Daemon ===

impl Daemon {
    /// Starts it and waits until it serves; answers how long that took.
    pub(super) fn start(binary: &Path, folder: &Path, listen: &str) -> Result<(Self, Duration)> {
        let begun = Instant::now();
        let mut child = Command::new(binary)
            .args(["manager", "--json", "--listen", listen, "--data-dir"])
            .arg(folder)
            .env("GREENROOM_LOG", "error")
            // This machine's own installation has nothing to do with it.
            .env(
                "GREENROOM_MANAGER_OVERRIDES_FILE",
                folder.with_extension("overrides"),
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .with_context(|| format!("{} cannot be run", binary.display()))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let mut daemon = Self {
            child,
            url: String::new(),
        };
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
        let took = begun.elapsed();
        let told: serde_json::Value = serde_json::from_str(&line)
            .context("the Manager ended at its start; what it said is above")?;
        let address = told["address"].as_str().context("it tells its address")?;
        daemon.url = format!("http://{address}");
        Ok((daemon, took))
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn listen(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    pub(super) async fn client(&self) -> Result<Client> {
        let settings = Settings {
            call_timeout: CALL_MAX,
            ..Settings::new([self.url.clone()])
        };
        Ok(Client::connect(settings).await?)
    }

    /// Resident bytes.
    pub(super) fn memory(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        let kib: f64 = kib.context("the system tells resident memory")?.parse()?;
        Ok(kib * 1024.0)
    }

    /// CPU time so far, in seconds.
    pub(super) fn cpu(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, rest) = stat
            .rsplit_once(')')
            .context("the system tells CPU times")?;
        let ticks = rest.split_whitespace().skip(11).take(2);
        let ticks: Result<Vec<f64>, _> = ticks.map(str::parse).collect();
        Ok(ticks?.iter().sum::<f64>() / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Cores that it takes while something lasts.
    pub(super) async fn cores(&self, lasts: Duration) -> Result<f64> {
        let (begun, before) = (Instant::now(), self.cpu()?);
        tokio::time::sleep(lasts).await;
        Ok((self.cpu()? - before) / begun.elapsed().as_secs_f64())
    }

    pub(super) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Gone already where it was killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
