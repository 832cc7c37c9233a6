//! Calls on nodes and slots.

use std::time::Duration;

use greenroom_proto::manager;
use greenroom_types::call::{Call, CreateAwsNode, CreateOciNode, Reply};
use greenroom_types::node::InstanceKey;
use greenroom_types::{JobId, Millis, NodeId, PoolName, StartId};

use super::{EditTags, IdleExpiry, NodeTags, Slot, Token, other_answer};
use crate::client::Client;
use crate::error::Error;

impl Client {
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

    /// Takes an instance that was found after a restore into the record, as it runs (STORE-11). The
    /// start may be left out where the node has one unrecorded instance of that key.
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_node`, `unknown_job` or `no_instance`;
    /// [`Error::FailedPrecondition`] `live_elsewhere`, `job_terminal`, `not_leased` and as for a start.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// for node in client.list_nodes().await? {
    ///     for key in node.unrecorded {
    ///         client.adopt_instance(node.metadata.node_id.clone(), key, None).await?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn adopt_instance(
        &self,
        node_id: impl Into<NodeId>,
        key: InstanceKey,
        start_id: Option<StartId>,
    ) -> Result<(), Error> {
        let call = Call::AdoptInstance {
            node_id: node_id.into(),
            key,
            start_id,
        };
        match self.call(call).await? {
            Reply::Done => Ok(()),
            other => Err(other_answer("AdoptInstance", &other)),
        }
    }

    /// Sets how long an elastic node may be empty before the Manager ends it; none clears it (IDLE-02).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_node`, [`Error::FailedPrecondition`] `not_elastic`,
    /// [`Error::InvalidArgument`] `bad_idle_expiry`.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// client.set_node_idle_expiry("spot-7", Some(Duration::from_secs(600))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_node_idle_expiry(
        &self,
        node_id: impl Into<NodeId>,
        expiry: Option<Duration>,
    ) -> Result<(), Error> {
        let expiry = expiry.unwrap_or_default().as_millis();
        match self
            .call(Call::SetNodeIdleExpiry {
                node_id: node_id.into(),
                idle_expiry_ms: Millis(u64::try_from(expiry).unwrap_or(u64::MAX)),
            })
            .await?
        {
            Reply::Done => Ok(()),
            other => Err(other_answer("SetNodeIdleExpiry", &other)),
        }
    }

    /// How long a node may be empty (IDLE-03).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_node`, and as for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// match client.get_node_idle_expiry("spot-7").await?.effective {
    ///     Some(expiry) => println!("ends after {} s without a job", expiry.as_secs()),
    ///     None => println!("stays"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_node_idle_expiry(
        &self,
        node_id: impl Into<NodeId>,
    ) -> Result<IdleExpiry, Error> {
        const METHOD: &str = "GetNodeIdleExpiry";
        let request = manager::GetNodeIdleExpiryRequest {
            node_id: Some((&node_id.into()).into()),
        };
        let answer = self
            .read(METHOD, request, |mut raw, request| async move {
                raw.get_node_idle_expiry(request).await
            })
            .await?;
        let set = |ms: u64| (ms != 0).then(|| Duration::from_millis(ms));
        Ok(IdleExpiry {
            own: set(answer.idle_expiry_ms),
            effective: set(answer.effective_idle_expiry_ms),
        })
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

    /// Moves a slot to another pool, and answers the jobs that run on it (LOCAL-14). An active node
    /// leaves and comes again with its new tag; its containers run on.
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_slot`, [`Error::FailedPrecondition`] `node_busy`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let running = client.set_cluster_node_pool("studio-1", "live").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_cluster_node_pool(
        &self,
        node_id: impl Into<NodeId>,
        pool: impl Into<PoolName>,
    ) -> Result<Vec<JobId>, Error> {
        match self
            .call(Call::SetClusterNodePool {
                node_id: node_id.into(),
                pool: pool.into(),
            })
            .await?
        {
            Reply::RunningJobs(job_ids) => Ok(job_ids),
            other => Err(other_answer("SetClusterNodePool", &other)),
        }
    }

    /// Gives a slot a new one-shot token, so that another machine can take it; the one that has it now
    /// loses its credential at its next hello (LOCAL-18).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_slot`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let token = client.rotate_cluster_node_token("studio-1").await?;
    /// println!("run the worker of the new machine with this token: {}", token.reveal());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn rotate_cluster_node_token(
        &self,
        node_id: impl Into<NodeId>,
    ) -> Result<Token, Error> {
        match self
            .call(Call::RotateClusterNodeToken(node_id.into()))
            .await?
        {
            Reply::Token(token) => Ok(Token(token)),
            other => Err(other_answer("RotateClusterNodeToken", &other)),
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
}
