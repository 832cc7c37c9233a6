//! `greenroom start` and `stop`: jobs that somebody starts and stops by hand.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use greenroom_sdk::types::bundle::{Bundle, BundleStatus};
use greenroom_sdk::types::{JobId, JobName, Millis, Wall};
use greenroom_sdk::{Client, Error};

use super::apply::wait_for;
use super::awaited::{Awaited, now};
use super::connect::Manager;
use super::media::duration;
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
#[derive(Debug, PartialEq)]
struct Spot {
    bundle: Bundle,
    copy: u32,
    job_name: JobName,
}

// === impl Start, Stop ===

impl Start {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let spot = spot(&client, &self.job).await?;
        let later = spot.starts_after(now());
        client
            .start_bundle_job(
                spot.bundle.bundle_id.clone(),
                spot.copy,
                spot.job_name.clone(),
            )
            .await?;
        let mut told = serde_json::json!({"jobId": self.job, "action": "started"});
        let words = match later {
            None => "is started".to_owned(),
            Some(time) => {
                told["startsAt"] = serde_json::json!(time);
                format!("is started at its time, {time}, and waits for that")
            }
        };
        let job_id = &self.job;
        self.manager
            .output()
            .either(&told, || format!("job {job_id} {words}"))?;
        if !self.wait {
            return Ok(());
        }
        let mut awaited = Awaited::default();
        let awake = BTreeSet::new();
        awaited.add(&spot.bundle, &[self.job], &awake, now(), self.timeout);
        wait_for(&client, awaited, self.timeout).await
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
            .stop_bundle_job(spot.bundle.bundle_id, spot.copy, spot.job_name, grace)
            .await?;
        let job_id = &self.job;
        let told = serde_json::json!({"jobId": job_id, "action": "stopped"});
        self.manager.output().either(&told, || {
            format!("job {job_id} stops, and is started again with `greenroom start`")
        })
    }
}

// === impl Spot ===

impl Spot {
    /// The job's start time, where that is still to come.
    fn starts_after(&self, now: Wall) -> Option<Wall> {
        let mut jobs = self.bundle.jobs.iter();
        let job = jobs.find(|job| job.job_name == self.job_name)?;
        let start = job.start_date_time.or(self.bundle.start_date_time);
        start.filter(|start| *start > now)
    }
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
            bundle: status.bundle.clone(),
            copy: job.replica_index,
            job_name: job.job_name.clone(),
        })
    })
}

#[cfg(test)]
mod tests {
    use greenroom_sdk::types::bundle::{BundleJob, BundleJobStatus};

    use super::*;

    #[test]
    fn a_job_has_its_own_start_time_or_that_of_its_bundle() {
        let mut spot = Spot {
            bundle: Bundle {
                start_date_time: Some(Wall(10)),
                jobs: vec![BundleJob {
                    job_name: "e".into(),
                    ..BundleJob::default()
                }],
                ..Bundle::default()
            },
            copy: 0,
            job_name: "e".into(),
        };
        assert_eq!(spot.starts_after(Wall(9)), Some(Wall(10)));
        assert_eq!(spot.starts_after(Wall(10)), None);
        spot.bundle.jobs[0].start_date_time = Some(Wall(20));
        assert_eq!(spot.starts_after(Wall(10)), Some(Wall(20)));
    }

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
        let found = find(&[status], &"a.b.1.c.d".into()).unwrap();
        assert_eq!((found.bundle.bundle_id.as_str(), found.copy), ("a.b", 1));
        assert_eq!(found.job_name.as_str(), "c.d");
        assert_eq!(found.starts_after(Wall(5)), None);
        assert_eq!(find(&[], &"a.0.b".into()), None);
    }
}
