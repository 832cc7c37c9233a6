//! `greenroom start` and `stop`: jobs that somebody starts and stops by hand.

use std::time::Duration;

use clap::Args;
use greenroom_sdk::types::bundle::BundleStatus;
use greenroom_sdk::types::{BundleId, JobId, JobName, Millis};
use greenroom_sdk::{Client, Error};

use super::connect::Manager;
use super::media::duration;
use super::wait::until_running;
use crate::failure::{Failure, Outcome};

/// Start a job that waits to be started by hand (`startMode: manual`), or that was stopped so.
#[derive(Debug, Args)]
pub(crate) struct Start {
    /// The job, by id, e.g. news.0.encode.
    job: JobId,
    /// Wait until it runs, and has stayed up for two seconds.
    #[arg(long)]
    wait: bool,
    /// How long to wait at most, e.g. 90s or 5m.
    #[arg(long, value_parser = duration, default_value = "2m", value_name = "TIME")]
    timeout: Duration,
    #[command(flatten)]
    manager: Manager,
}

/// Stop a job of a bundle until `greenroom start`. The rest of the bundle goes on.
#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// The job, by id, e.g. news.0.encode.
    job: JobId,
    /// Time between the signal and the kill; without it that of the job.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    grace: Option<Duration>,
    #[command(flatten)]
    manager: Manager,
}

/// A job as its bundle names it.
#[derive(Debug, PartialEq, Eq)]
struct Spot {
    bundle_id: BundleId,
    copy: u32,
    job_name: JobName,
}

// === impl Start, Stop ===

impl Start {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let spot = spot(&client, &self.job).await?;
        client
            .start_bundle_job(spot.bundle_id, spot.copy, spot.job_name)
            .await?;
        tell(&self.manager, &self.job, "started", "is started")?;
        if self.wait {
            until_running(&client, vec![self.job], self.timeout).await?;
        }
        Ok(())
    }
}

impl Stop {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let spot = spot(&client, &self.job).await?;
        let grace = self
            .grace
            .map(|it| Millis(u64::try_from(it.as_millis()).unwrap_or(u64::MAX)));
        client
            .stop_bundle_job(spot.bundle_id, spot.copy, spot.job_name, grace)
            .await?;
        let words = "stops, and is started again with `greenroom start`";
        tell(&self.manager, &self.job, "stopped", words)
    }
}

fn tell(manager: &Manager, job_id: &JobId, action: &str, words: &str) -> Outcome {
    let told = serde_json::json!({"jobId": job_id, "action": action});
    manager
        .output()
        .either(&told, || format!("job {job_id} {words}"))
}

/// Where a job stands in a bundle. Ids and names may hold dots, so the bundles are asked.
async fn spot(client: &Client, job_id: &JobId) -> Result<Spot, Failure> {
    let bundles = client
        .list_bundles()
        .await
        .map_err(|error: Error| Failure::from(error))?;
    find(&bundles, job_id).ok_or_else(|| {
        Failure::failed(format!("no bundle has a job {job_id}"))
            .because("unknown_job")
            .hint("`greenroom get jobs` lists them")
    })
}

fn find(bundles: &[BundleStatus], job_id: &JobId) -> Option<Spot> {
    bundles.iter().find_map(|status| {
        let job = status.jobs.iter().find(|job| job.job_id == *job_id)?;
        Some(Spot {
            bundle_id: status.bundle.bundle_id.clone(),
            copy: job.replica_index,
            job_name: job.job_name.clone(),
        })
    })
}

#[cfg(test)]
mod tests {
    use greenroom_sdk::types::bundle::{Bundle, BundleJobStatus};

    use super::*;

    #[test]
    fn a_job_is_found_in_its_bundle_whatever_dots_its_id_has() {
        let status = BundleStatus {
            bundle: Bundle {
                bundle_id: "a.b".into(),
                ..Bundle::default()
            },
            jobs: vec![BundleJobStatus {
                job_id: "a.b.1.c.d".into(),
                replica_index: 1,
                job_name: "c.d".into(),
                dormant: true,
                terminal_state: None,
            }],
            lease_expires_at: None,
        };
        let found = find(&[status], &"a.b.1.c.d".into());
        let wanted = Spot {
            bundle_id: "a.b".into(),
            copy: 1,
            job_name: "c.d".into(),
        };
        assert_eq!(found, Some(wanted));
        assert_eq!(find(&[], &"a.0.b".into()), None);
    }
}
