//! One method per call that changes something (SDK-02).
//!
//! Each is [`Client::call`] with its arguments and its answer spelled out. Errors named at a method are
//! those of its own; any of them may end with a lost connection, a deadline or missing rights as well.

use std::fmt;

use greenroom_types::bundle::Bundle;
use greenroom_types::call::{Call, CreateAwsNode, CreateOciNode, Reply, StartJob};
use greenroom_types::job::Job;
use greenroom_types::node::InstanceKey;
use greenroom_types::{
    BundleId, JobId, JobName, MigrationId, Millis, NodeId, PoolName, Role, Tags, Wall,
};

use crate::client::Client;
use crate::error::Error;

/// What creating a bundle gave (BDL-01).
///
/// ```no_run
/// # fn example(created: greenroom_sdk::BundleCreated) {
/// println!("{} at revision {}", created.bundle_id, created.revision);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleCreated {
    /// Its id, given or made.
    pub bundle_id: BundleId,
    /// Its revision, 1.
    pub revision: u64,
    /// Its runtime jobs.
    pub job_ids: Vec<JobId>,
}

/// How a bundle is updated.
///
/// ```
/// assert!(!greenroom_sdk::UpdateBundle::default().dry_run);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateBundle {
    /// Only tell what would change.
    pub dry_run: bool,
    /// Take the stop time away (BSTOP-05).
    pub clear_stop_time: bool,
}

/// What an update did, or would do, to a bundle's jobs (BDL-11).
///
/// ```no_run
/// # fn example(changes: greenroom_sdk::BundleChanges) {
/// println!("{} jobs go on undisturbed", changes.untouched.len());
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BundleChanges {
    /// The bundle's revision.
    pub revision: u64,
    /// Jobs made.
    pub created: Vec<JobId>,
    /// Jobs stopped, as their launch content changed.
    pub changed: Vec<JobId>,
    /// Jobs updated in place.
    pub updated: Vec<JobId>,
    /// Jobs stopped and deleted.
    pub removed: Vec<JobId>,
    /// Jobs not touched.
    pub untouched: Vec<JobId>,
}

/// An edit of a node's tags (TAG-01, TAG-06).
///
/// ```
/// let edit = greenroom_sdk::EditTags { remove: vec!["rack".to_owned()], ..Default::default() };
/// assert!(edit.set.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EditTags {
    /// Keys to set.
    pub set: Tags,
    /// Keys to take away.
    pub remove: Vec<String>,
    /// Refuse unless the tags stand at this revision.
    pub expected_revision: Option<u64>,
}

/// A node's tags after an edit.
///
/// ```no_run
/// # fn example(tags: greenroom_sdk::NodeTags) {
/// println!("{:?} at revision {}", tags.tags.get("rack"), tags.revision);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTags {
    /// All of them.
    pub tags: Tags,
    /// Their revision.
    pub revision: u64,
}

/// A new slot for an owned server.
///
/// ```no_run
/// # fn example(slot: greenroom_sdk::Slot) {
/// println!("{}", slot.node_id);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Id of its node.
    pub node_id: NodeId,
    /// Opens the slot once.
    pub token: Token,
}

/// A secret, which prints as `***` (SEC-12).
///
/// ```
/// let token = greenroom_sdk::Token::new("grt_x");
/// assert_eq!(format!("{token:?}"), "***");
/// assert_eq!(token.reveal(), "grt_x");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A migration to be forgotten by both of its sides (MGR-06).
///
/// ```
/// let abort = greenroom_sdk::AbortMigration { job_id: "clock".into(), ..Default::default() };
/// assert!(abort.migration_id.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbortMigration {
    /// The job.
    pub job_id: JobId,
    /// Role of the source.
    pub source_role: Role,
    /// Role of the target.
    pub target_role: Role,
    /// Why.
    pub reason: String,
    /// The migration; empty: whatever is in progress.
    pub migration_id: MigrationId,
}

// === impl Token ===

impl Token {
    /// Takes a secret.
    ///
    /// ```
    /// assert_eq!(greenroom_sdk::Token::new("a").reveal(), "a");
    /// ```
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself.
    ///
    /// ```
    /// assert_eq!(greenroom_sdk::Token::new("a").reveal(), "a");
    /// ```
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

// === impl Client ===

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

    /// Asks for an EC2 node; done means recorded (AWS-01, MNODE-01).
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] `provider_not_configured`, [`Error::AlreadyExists`]
    /// `node_exists`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::call::CreateAwsNode;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let node = CreateAwsNode {
    ///     node_id: "spot-7".into(),
    ///     region: "eu-west-1".to_owned(),
    ///     instance_type: "m7i.large".to_owned(),
    ///     ..CreateAwsNode::default()
    /// };
    /// client.create_aws_node(node).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_aws_node(&self, node: CreateAwsNode) -> Result<(), Error> {
        match self.call(Call::CreateAwsNode(Box::new(node))).await? {
            Reply::Done => Ok(()),
            other => Err(other_answer("CreateAwsNode", &other)),
        }
    }

    /// Asks for an Oracle node; done means recorded (OCI-01, MNODE-01).
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] `provider_not_configured`, [`Error::AlreadyExists`]
    /// `node_exists`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::call::CreateOciNode;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let node = CreateOciNode {
    ///     node_id: "oci-7".into(),
    ///     availability_domain: "AD-1".to_owned(),
    ///     shape: "VM.Standard3.Flex".to_owned(),
    ///     ocpus: Some(4.0),
    ///     memory_gb: Some(32.0),
    ///     ..CreateOciNode::default()
    /// };
    /// client.create_oci_node(node).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_oci_node(&self, node: CreateOciNode) -> Result<(), Error> {
        match self.call(Call::CreateOciNode(Box::new(node))).await? {
            Reply::Done => Ok(()),
            other => Err(other_answer("CreateOciNode", &other)),
        }
    }

    /// Ends a node; done means that the intent is recorded (API-14).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_node`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// client.terminate_node("node-1").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn terminate_node(&self, node_id: impl Into<NodeId>) -> Result<(), Error> {
        match self.call(Call::TerminateNode(node_id.into())).await? {
            Reply::Done => Ok(()),
            other => Err(other_answer("TerminateNode", &other)),
        }
    }

    /// Tells which version a node's daemon should have; the published surface's old call (API-13).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_node`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// client.update_physical_node("node-1", "1.0.384").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn update_physical_node(
        &self,
        node_id: impl Into<NodeId>,
        daemon_version: impl Into<String>,
    ) -> Result<(), Error> {
        match self
            .call(Call::UpdatePhysicalNode {
                node_id: node_id.into(),
                daemon_version: daemon_version.into(),
            })
            .await?
        {
            Reply::Done => Ok(()),
            other => Err(other_answer("UpdatePhysicalNode", &other)),
        }
    }

    /// Sets and removes tags of a node and answers all of them (TAG-01).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_node`, [`Error::FailedPrecondition`] `revision_mismatch`.
    ///
    /// ```no_run
    /// use greenroom_sdk::EditTags;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let edit = EditTags {
    ///     set: [("rack".to_owned(), "b4".to_owned())].into(),
    ///     ..EditTags::default()
    /// };
    /// let tags = client.set_node_tags("node-1", edit).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_node_tags(
        &self,
        node_id: impl Into<NodeId>,
        edit: EditTags,
    ) -> Result<NodeTags, Error> {
        match self
            .call(Call::SetNodeTags {
                node_id: node_id.into(),
                tags: edit.set,
                remove: edit.remove,
                expected_revision: edit.expected_revision,
            })
            .await?
        {
            Reply::Tags { tags, revision } => Ok(NodeTags { tags, revision }),
            other => Err(other_answer("SetNodeTags", &other)),
        }
    }

    /// Makes a slot for an owned server and answers its one-shot token (LOCAL-01).
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] `slot_exists`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let slot = client.register_cluster_node("studio-1", "studio").await?;
    /// println!("run the worker of {} with this token: {}", slot.node_id, slot.token.reveal());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn register_cluster_node(
        &self,
        node_name: impl Into<String>,
        pool: impl Into<PoolName>,
    ) -> Result<Slot, Error> {
        match self
            .call(Call::RegisterClusterNode {
                node_name: node_name.into(),
                pool: pool.into(),
            })
            .await?
        {
            Reply::Slot { node_id, token } => Ok(Slot {
                node_id,
                token: Token(token),
            }),
            other => Err(other_answer("RegisterClusterNode", &other)),
        }
    }

    /// Removes a slot and answers the jobs that were stopped for it (LOCAL-12).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_slot`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let stopped = client.deregister_cluster_node("studio-1").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn deregister_cluster_node(
        &self,
        node_id: impl Into<NodeId>,
    ) -> Result<Vec<JobId>, Error> {
        match self
            .call(Call::DeregisterClusterNode(node_id.into()))
            .await?
        {
            Reply::StoppedJobs(job_ids) => Ok(job_ids),
            other => Err(other_answer("DeregisterClusterNode", &other)),
        }
    }

    /// Lets a node pull images, and answers the id of the batch (PREF-01).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] `bad_image_ref`, [`Error::FailedPrecondition`]
    /// `node_not_running`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let batch = client.prefetch_images("node-1", vec!["registry/encoder:7".to_owned()]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn prefetch_images(
        &self,
        node_id: impl Into<NodeId>,
        image_refs: Vec<String>,
    ) -> Result<String, Error> {
        match self
            .call(Call::PrefetchImages {
                node_id: node_id.into(),
                image_refs,
            })
            .await?
        {
            Reply::Batch(batch_id) => Ok(batch_id),
            other => Err(other_answer("PrefetchImages", &other)),
        }
    }

    /// Asks the source of a migration for its state, which comes as an event (MGR-01).
    ///
    /// # Errors
    /// Those of MGR-07, among them [`Error::Unavailable`] `node_unreachable`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::node::InstanceKey;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let source = InstanceKey::new("clock".into(), "primary".into());
    /// client.notify_migration_get_state(source, "3f9c1e2a-0000-4000-8000-000000000000").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn notify_migration_get_state(
        &self,
        source: InstanceKey,
        migration_id: impl Into<MigrationId>,
    ) -> Result<(), Error> {
        match self
            .call(Call::NotifyMigrationGetState {
                key: source,
                migration_id: migration_id.into(),
            })
            .await?
        {
            Reply::Done => Ok(()),
            other => Err(other_answer("NotifyMigrationGetState", &other)),
        }
    }

    /// Tells the source from which point on the target can carry the output (MGR-02).
    ///
    /// # Errors
    /// Those of MGR-07, and [`Error::InvalidArgument`] `payload_too_large`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::node::InstanceKey;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let source = InstanceKey::new("clock".into(), "primary".into());
    /// let id = "3f9c1e2a-0000-4000-8000-000000000000";
    /// client.notify_migration_cutover_ready(source, id, b"frame 9000".to_vec()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn notify_migration_cutover_ready(
        &self,
        source: InstanceKey,
        migration_id: impl Into<MigrationId>,
        payload: Vec<u8>,
    ) -> Result<(), Error> {
        match self
            .call(Call::NotifyMigrationCutoverReady {
                key: source,
                migration_id: migration_id.into(),
                payload,
            })
            .await?
        {
            Reply::Done => Ok(()),
            other => Err(other_answer("NotifyMigrationCutoverReady", &other)),
        }
    }

    /// Tells the target at which point the source ended (MGR-03).
    ///
    /// # Errors
    /// Those of MGR-07, and [`Error::InvalidArgument`] `payload_too_large`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::node::InstanceKey;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let target = InstanceKey::new("clock".into(), "primary@3f9c1e2a".into());
    /// let id = "3f9c1e2a-0000-4000-8000-000000000000";
    /// client.notify_migration_cutover_apply(target, id, b"frame 9000".to_vec()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn notify_migration_cutover_apply(
        &self,
        target: InstanceKey,
        migration_id: impl Into<MigrationId>,
        payload: Vec<u8>,
    ) -> Result<(), Error> {
        match self
            .call(Call::NotifyMigrationCutoverApply {
                key: target,
                migration_id: migration_id.into(),
                payload,
            })
            .await?
        {
            Reply::Done => Ok(()),
            other => Err(other_answer("NotifyMigrationCutoverApply", &other)),
        }
    }

    /// Lets both sides of a migration forget it, and answers to whom that went (MGR-06).
    ///
    /// # Errors
    /// As for any changing call.
    ///
    /// ```no_run
    /// use greenroom_sdk::AbortMigration;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let abort = AbortMigration {
    ///     job_id: "clock".into(),
    ///     source_role: "primary".into(),
    ///     target_role: "primary@3f9c1e2a".into(),
    ///     reason: "target is late".to_owned(),
    ///     migration_id: Default::default(),
    /// };
    /// let notified = client.abort_migration(abort).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn abort_migration(&self, abort: AbortMigration) -> Result<Vec<String>, Error> {
        match self
            .call(Call::AbortMigration {
                job_id: abort.job_id,
                source_role: abort.source_role,
                target_role: abort.target_role,
                reason: abort.reason,
                migration_id: abort.migration_id,
            })
            .await?
        {
            Reply::Notified(notified) => Ok(notified),
            other => Err(other_answer("AbortMigration", &other)),
        }
    }
}

/// The answer's type names its kind, so another one is a fault of this crate's own tables.
fn other_answer(method: &'static str, reply: &Reply) -> Error {
    let kind = match reply {
        Reply::Done => "nothing",
        Reply::JobHash(_) => "a job hash",
        Reply::BundleCreated { .. } => "a created bundle",
        Reply::BundleUpdated { .. } => "an updated bundle",
        Reply::BundleJob(_) => "a bundle job",
        Reply::Tags { .. } => "tags",
        Reply::Slot { .. } => "a slot",
        Reply::StoppedJobs(_) => "stopped jobs",
        Reply::Batch(_) => "a batch",
        Reply::Notified(_) => "notified sides",
    };
    Error::Protocol {
        method,
        field: String::new(),
        problem: format!("{kind} is no answer of this call"),
    }
}
