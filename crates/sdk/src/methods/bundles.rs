//! Calls on bundles.

use greenroom_types::bundle::Bundle;
use greenroom_types::call::{Call, Reply};
use greenroom_types::{BundleId, JobId, JobName, Millis, Wall};

use super::{BundleChanges, BundleCreated, UpdateBundle, other_answer};
use crate::client::Client;
use crate::error::Error;

impl Client {
    /// Stores a bundle and expands it into its runtime jobs (BDL-01).
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] `bundle_exists`, [`Error::InvalidArgument`] `bad_bundle`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::bundle::{Bundle, BundleJob};
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let bundle = Bundle {
    ///     pool: "studio".into(),
    ///     jobs: vec![BundleJob { job_name: "encode".into(), ..BundleJob::default() }],
    ///     ..Bundle::default()
    /// };
    /// let created = client.create_bundle(bundle).await?;
    /// println!("{} with {} jobs", created.bundle_id, created.job_ids.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_bundle(&self, bundle: Bundle) -> Result<BundleCreated, Error> {
        match self.call(Call::CreateBundle(Box::new(bundle))).await? {
            Reply::BundleCreated {
                bundle_id,
                revision,
                job_ids,
            } => Ok(BundleCreated {
                bundle_id,
                revision,
                job_ids,
            }),
            other => Err(other_answer("CreateBundle", &other)),
        }
    }

    /// Replaces a bundle and tells what that does to its jobs (BDL-08, BDL-11).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_bundle`, [`Error::FailedPrecondition`] `revision_mismatch`.
    ///
    /// ```no_run
    /// use greenroom_sdk::UpdateBundle;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let bundle = client.get_bundle("chan-1").await?.bundle;
    /// let dry = UpdateBundle { dry_run: true, ..UpdateBundle::default() };
    /// let changes = client.update_bundle(bundle, dry).await?;
    /// println!("{} jobs would be stopped", changes.changed.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn update_bundle(
        &self,
        bundle: Bundle,
        update: UpdateBundle,
    ) -> Result<BundleChanges, Error> {
        match self
            .call(Call::UpdateBundle {
                bundle: Box::new(bundle),
                dry_run: update.dry_run,
                clear_stop_time: update.clear_stop_time,
            })
            .await?
        {
            Reply::BundleUpdated {
                revision,
                created,
                changed,
                updated,
                removed,
                untouched,
            } => Ok(BundleChanges {
                revision,
                created,
                changed,
                updated,
                removed,
                untouched,
            }),
            other => Err(other_answer("UpdateBundle", &other)),
        }
    }

    /// Begins to stop and delete a bundle (BDL-16).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_bundle`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// client.delete_bundle("chan-1").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn delete_bundle(&self, bundle_id: impl Into<BundleId>) -> Result<(), Error> {
        match self.call(Call::DeleteBundle(bundle_id.into())).await? {
            Reply::Done => Ok(()),
            other => Err(other_answer("DeleteBundle", &other)),
        }
    }

    /// Wakes a dormant job and answers its id (BDL-12).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_bundle` or `unknown_bundle_job`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let job_id = client.start_bundle_job("chan-1", 0, "encode").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_bundle_job(
        &self,
        bundle_id: impl Into<BundleId>,
        replica_index: u32,
        job_name: impl Into<JobName>,
    ) -> Result<JobId, Error> {
        match self
            .call(Call::StartBundleJob {
                bundle_id: bundle_id.into(),
                replica_index,
                job_name: job_name.into(),
            })
            .await?
        {
            Reply::BundleJob(job_id) => Ok(job_id),
            other => Err(other_answer("StartBundleJob", &other)),
        }
    }

    /// Makes a job dormant and stops it; answers its id (BDL-13).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_bundle` or `unknown_bundle_job`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let job_id = client.stop_bundle_job("chan-1", 0, "encode", None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stop_bundle_job(
        &self,
        bundle_id: impl Into<BundleId>,
        replica_index: u32,
        job_name: impl Into<JobName>,
        grace_ms: Option<Millis>,
    ) -> Result<JobId, Error> {
        match self
            .call(Call::StopBundleJob {
                bundle_id: bundle_id.into(),
                replica_index,
                job_name: job_name.into(),
                grace_ms,
            })
            .await?
        {
            Reply::BundleJob(job_id) => Ok(job_id),
            other => Err(other_answer("StopBundleJob", &other)),
        }
    }

    /// Sets the time at which a bundle is deleted, or clears it (BSTOP-01).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_bundle`, [`Error::FailedPrecondition`] `deleting`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// client.set_bundle_stop_time("chan-1", "2027-01-01T00:00:00Z".parse().ok()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_bundle_stop_time(
        &self,
        bundle_id: impl Into<BundleId>,
        stop_at: Option<Wall>,
    ) -> Result<(), Error> {
        match self
            .call(Call::SetBundleStopTime {
                bundle_id: bundle_id.into(),
                stop_at,
            })
            .await?
        {
            Reply::Done => Ok(()),
            other => Err(other_answer("SetBundleStopTime", &other)),
        }
    }
}
