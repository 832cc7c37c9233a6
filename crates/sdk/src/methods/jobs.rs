//! Calls on single jobs and their instances.

use greenroom_types::call::{Call, Reply, StartJob};
use greenroom_types::job::Job;
use greenroom_types::node::InstanceKey;
use greenroom_types::{JobId, Millis, NodeId};

use super::other_answer;
use crate::client::Client;
use crate::error::Error;

impl Client {
    /// Stores a new job and answers its hash (JOB-01).
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] `job_exists`, [`Error::InvalidArgument`] `bad_job`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::job::Job;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let job = Job { job_id: "clock".into(), ..Job::default() };
    /// let hash = client.create_job(job).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_job(&self, job: Job) -> Result<i64, Error> {
        match self.call(Call::CreateJob(Box::new(job))).await? {
            Reply::JobHash(hash) => Ok(hash),
            other => Err(other_answer("CreateJob", &other)),
        }
    }

    /// Replaces a job's definition and answers its new hash; 0 as the expected hash overwrites
    /// whatever is there (JOB-06).
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] `hash_mismatch`, [`Error::NotFound`] `unknown_job`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::job::Job;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let job = Job { job_id: "clock".into(), ..Job::default() };
    /// let hash = client.update_job(job, 0).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn update_job(&self, job: Job, expected_hash: i64) -> Result<i64, Error> {
        match self
            .call(Call::UpdateJob(Box::new(job), expected_hash))
            .await?
        {
            Reply::JobHash(hash) => Ok(hash),
            other => Err(other_answer("UpdateJob", &other)),
        }
    }

    /// Removes a job, stopping it first (JOB-09).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_job`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// client.delete_job("clock").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn delete_job(&self, job_id: impl Into<JobId>) -> Result<(), Error> {
        match self.call(Call::DeleteJob(job_id.into())).await? {
            Reply::Done => Ok(()),
            other => Err(other_answer("DeleteJob", &other)),
        }
    }

    /// Stops a job and ends it for good (JOB-11).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_job`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// client.complete_job("clock").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn complete_job(&self, job_id: impl Into<JobId>) -> Result<(), Error> {
        match self.call(Call::CompleteJob(job_id.into())).await? {
            Reply::Done => Ok(()),
            other => Err(other_answer("CompleteJob", &other)),
        }
    }

    /// Starts an instance; done means accepted and recorded, not running (JOB-12).
    ///
    /// # Errors
    /// Those of JOB-13 and JOB-14, among them [`Error::AlreadyExists`] `already_on_node`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::call::StartJob;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let start = StartJob {
    ///     job_id: "clock".into(),
    ///     role: "primary".into(),
    ///     node_id: "node-1".into(),
    ///     defer_start: false,
    ///     runtime_role: String::new(),
    ///     gpu_index: None,
    ///     migration_id: None,
    ///     migration_state: None,
    /// };
    /// client.start_job(start).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_job(&self, start: StartJob) -> Result<(), Error> {
        match self.call(Call::StartJob(start)).await? {
            Reply::Done => Ok(()),
            other => Err(other_answer("StartJob", &other)),
        }
    }

    /// Runs an instance that was created with `defer_start` (JOB-24).
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] `not_prepared`, [`Error::AlreadyExists`] `already_running`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::node::InstanceKey;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let key = InstanceKey::new("clock".into(), "primary".into());
    /// client.start_prepared_job(key, "node-1").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_prepared_job(
        &self,
        key: InstanceKey,
        node_id: impl Into<NodeId>,
    ) -> Result<(), Error> {
        match self
            .call(Call::StartPreparedJob {
                key,
                node_id: node_id.into(),
            })
            .await?
        {
            Reply::Done => Ok(()),
            other => Err(other_answer("StartPreparedJob", &other)),
        }
    }

    /// Stops an instance, with its grace between signal and kill or the Manager's default (JOB-23).
    ///
    /// # Errors
    /// [`Error::NotFound`] `no_instance`, [`Error::FailedPrecondition`] `wrong_node`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::{Millis, node::InstanceKey};
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let key = InstanceKey::new("clock".into(), "primary".into());
    /// client.stop_job(key, "node-1", Some(Millis(2_000))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stop_job(
        &self,
        key: InstanceKey,
        node_id: impl Into<NodeId>,
        grace_ms: Option<Millis>,
    ) -> Result<(), Error> {
        match self
            .call(Call::StopJob {
                key,
                node_id: node_id.into(),
                grace_ms,
            })
            .await?
        {
            Reply::Done => Ok(()),
            other => Err(other_answer("StopJob", &other)),
        }
    }

    /// Gives a job its verdict: it is stopped and not to be started again (FAIL-01).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_job`, [`Error::FailedPrecondition`] `job_completed`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// client.mark_job_failed("clock", "crashed 3 times in an hour").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn mark_job_failed(
        &self,
        job_id: impl Into<JobId>,
        reason: impl Into<String>,
    ) -> Result<(), Error> {
        match self
            .call(Call::MarkJobFailed {
                job_id: job_id.into(),
                reason: reason.into(),
            })
            .await?
        {
            Reply::Done => Ok(()),
            other => Err(other_answer("MarkJobFailed", &other)),
        }
    }
}
