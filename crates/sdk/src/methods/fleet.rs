//! Calls on the discovery fleet, the access roles and the overrides file.

use greenroom_proto::convert::WireError;
use greenroom_proto::manager;
use greenroom_types::NodeId;
use greenroom_types::call::{Call, Reply};
use greenroom_types::discovery::{DiscoveryFleet, Hidden, RotationStep};
use greenroom_types::replica::AccessReplica;

use super::{Token, other_answer};
use crate::client::Client;
use crate::error::Error;
use crate::read::bad_answer;

/// The discovery fleet after a publish (DISC-02).
///
/// ```no_run
/// # fn example(published: greenroom_sdk::FleetPublished) {
/// assert!(!published.secrets_kept, "the fleet had other secrets already");
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetPublished {
    /// The fleet with the secrets in force.
    pub fleet: DiscoveryFleet,
    /// Other secrets were brought, and those in force were kept.
    pub secrets_kept: bool,
}

/// The discovery fleet after a step of its rotation (DISC-06).
///
/// ```no_run
/// # fn example(rotated: greenroom_sdk::FleetRotated) {
/// println!("{} nodes have their new token", rotated.acknowledged);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetRotated {
    /// The fleet with the secrets in force.
    pub fleet: DiscoveryFleet,
    /// How many nodes said that they have their new token.
    pub acknowledged: u32,
    /// Nodes that did not, or are out of reach; they get it at their next hello.
    pub not_acknowledged: Vec<NodeId>,
}

impl Client {
    /// The discovery fleet with its secrets, if one was published (DISC-04).
    ///
    /// # Errors
    /// As for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// if let Some(fleet) = client.get_discovery_fleet().await? {
    ///     println!("{:?}", fleet.addresses);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_discovery_fleet(&self) -> Result<Option<DiscoveryFleet>, Error> {
        const METHOD: &str = "GetDiscoveryFleet";
        let request = manager::GetDiscoveryFleetRequest {};
        let answer = self
            .read(METHOD, request, |mut raw, request| async move {
                raw.get_discovery_fleet(request).await
            })
            .await?;
        let fleet = answer.fleet.map(DiscoveryFleet::try_from).transpose();
        fleet.map_err(|error: WireError| bad_answer(METHOD, error.under("fleet")))
    }

    /// Says where the discovery fleet is. Its secrets are fixed by the first publish (DISC-01,
    /// DISC-02).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] `empty_tier_secret`, `tier_secret_equals_leaf_token`, `bad_address`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::discovery::DiscoveryFleet;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let fleet = DiscoveryFleet {
    ///     addresses: vec!["disc-1.example:443".to_owned()],
    ///     leaf_token: "a secret for every node".to_owned(),
    ///     tier_secret: "another for the servers".to_owned(),
    ///     ..DiscoveryFleet::default()
    /// };
    /// client.publish_discovery_fleet(fleet, "anna").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn publish_discovery_fleet(
        &self,
        fleet: DiscoveryFleet,
        by: impl Into<String>,
    ) -> Result<FleetPublished, Error> {
        self.publish_fleet(fleet, by.into(), false).await
    }

    /// The same, and puts its leaf token in force although there is one (DISC-02): every node that is
    /// heard is sent it at once, others at their next hello.
    ///
    /// # Errors
    /// As [`Client::publish_discovery_fleet`].
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// if let Some(mut fleet) = client.get_discovery_fleet().await? {
    ///     fleet.leaf_token = "another secret for every node".to_owned();
    ///     client.replace_discovery_leaf_token(fleet, "anna").await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn replace_discovery_leaf_token(
        &self,
        fleet: DiscoveryFleet,
        by: impl Into<String>,
    ) -> Result<FleetPublished, Error> {
        self.publish_fleet(fleet, by.into(), true).await
    }

    async fn publish_fleet(
        &self,
        fleet: DiscoveryFleet,
        by: String,
        replace_leaf_token: bool,
    ) -> Result<FleetPublished, Error> {
        let call = Call::PublishDiscoveryFleet {
            replace_leaf_token,
            fleet,
            by,
        };
        match self.call(call).await? {
            Reply::Discovery {
                fleet,
                secrets_kept,
            } => Ok(FleetPublished {
                fleet,
                secrets_kept,
            }),
            other => Err(other_answer("PublishDiscoveryFleet", &other)),
        }
    }

    /// Takes a step of the rotation of the fleet's tier secret; without a secret the Manager makes one
    /// (DISC-05 to DISC-07).
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] `no_fleet`, `rotation_out_of_order`; [`Error::InvalidArgument`]
    /// `bad_tier_secret`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::discovery::RotationStep;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// for step in [RotationStep::Stage, RotationStep::Flip, RotationStep::Finish] {
    ///     // Between the steps: wait until every server has taken the last one over.
    ///     let rotated = client.rotate_discovery_tier_secret(step, None, "anna").await?;
    ///     println!("{:?} did not answer", rotated.not_acknowledged);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn rotate_discovery_tier_secret(
        &self,
        step: RotationStep,
        new_tier_secret: Option<Token>,
        by: impl Into<String>,
    ) -> Result<FleetRotated, Error> {
        let secret = new_tier_secret.map_or_else(String::new, |it| it.reveal().to_owned());
        match self
            .call(Call::RotateDiscoveryTierSecret {
                step,
                new_tier_secret: Hidden(secret),
                by: by.into(),
            })
            .await?
        {
            Reply::Rotated {
                fleet,
                acknowledged,
                not_acknowledged,
                ..
            } => Ok(FleetRotated {
                fleet,
                acknowledged,
                not_acknowledged,
            }),
            other => Err(other_answer("RotateDiscoveryTierSecret", &other)),
        }
    }

    /// Brings a version of the access roles, or without a snapshot a fresh attestation of the version
    /// that is stored; answers that version (REPL-01).
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] `replica_not_forward`, [`Error::InvalidArgument`] `bad_replica`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::replica::AccessReplica;
    /// # async fn example(client: greenroom_sdk::Client, jws: String) -> Result<(), greenroom_sdk::Error> {
    /// let fresh = AccessReplica { version: 7, attestation: jws, ..AccessReplica::default() };
    /// assert_eq!(client.publish_access_replica(fresh).await?, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn publish_access_replica(&self, replica: AccessReplica) -> Result<u64, Error> {
        match self
            .call(Call::PublishAccessReplica(Box::new(replica)))
            .await?
        {
            Reply::ReplicaVersion(version) => Ok(version),
            other => Err(other_answer("PublishAccessReplica", &other)),
        }
    }

    /// Has the Manager read its overrides file anew; answers what changed (OVR-02).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] `bad_overrides`, `bad_overrides_file`; [`Error::FailedPrecondition`]
    /// `region_in_use`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// for change in client.reload_external_config().await? {
    ///     println!("{change}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reload_external_config(&self) -> Result<Vec<String>, Error> {
        match self.call(Call::ReloadExternalConfig).await? {
            Reply::Reloaded(changes) => Ok(changes),
            other => Err(other_answer("ReloadExternalConfig", &other)),
        }
    }
}
