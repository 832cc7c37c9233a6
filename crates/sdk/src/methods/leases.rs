//! Calls on leases.

use std::time::Duration;

use greenroom_proto::manager;
use greenroom_types::call::{Call, Reply};
use greenroom_types::stream::LeaseStatus;
use greenroom_types::{BundleId, Millis, NodeId, Wall};

use super::other_answer;
use crate::client::Client;
use crate::error::Error;
use crate::read::bad_answer;

/// A pause of all leases (LEASE-10).
///
/// ```no_run
/// # fn example(paused: greenroom_sdk::PausedLeases) {
/// for node_id in &paused.not_acknowledged {
///     println!("what is leased on {node_id} ends when it loses its line");
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PausedLeases {
    /// Since when leases stand still.
    pub since: Wall,
    /// Nodes that did not confirm within 5 s: a worker that does not know of the pause ends what it
    /// runs under a lease once it is not heard.
    pub not_acknowledged: Vec<NodeId>,
}

/// The end of a pause (LEASE-12).
///
/// ```no_run
/// # fn example(resumed: greenroom_sdk::ResumedLeases) {
/// for node_id in &resumed.not_acknowledged {
///     println!("what is leased on {node_id} may run on until that node is heard");
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumedLeases {
    /// How many are held.
    pub leases: u32,
    /// Nodes that did not confirm within 5 s: what is leased there runs on until they hear of it, and
    /// may meanwhile be started elsewhere.
    pub not_acknowledged: Vec<NodeId>,
}

impl Client {
    /// Lets no lease run out until they are resumed, and waits up to 5 s for the workers to confirm
    /// (LEASE-10). Paused already is fine: reason and name of the first pause stay.
    ///
    /// # Errors
    /// As for any call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let paused = client.pause_leases("switch is replaced", "ana").await?;
    /// assert!(paused.not_acknowledged.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pause_leases(
        &self,
        reason: impl Into<String>,
        by: impl Into<String>,
    ) -> Result<PausedLeases, Error> {
        let call = Call::PauseLeases {
            reason: reason.into(),
            by: by.into(),
        };
        match self.call(call).await? {
            Reply::LeasesPaused {
                since,
                not_acknowledged,
            } => Ok(PausedLeases {
                since,
                not_acknowledged,
            }),
            other => Err(other_answer("PauseLeases", &other)),
        }
    }

    /// Ends a pause: every lease begins anew (LEASE-12), and waits up to 5 s for the workers to confirm.
    ///
    /// # Errors
    /// As for any call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// println!("{} leases run again", client.resume_leases("ana").await?.leases);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resume_leases(&self, by: impl Into<String>) -> Result<ResumedLeases, Error> {
        match self.call(Call::ResumeLeases { by: by.into() }).await? {
            Reply::LeasesResumed {
                leases,
                not_acknowledged,
            } => Ok(ResumedLeases {
                leases,
                not_acknowledged,
            }),
            other => Err(other_answer("ResumeLeases", &other)),
        }
    }

    /// Who holds which lease, and whether leases are paused (LEASE-14).
    ///
    /// # Errors
    /// As for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// for lease in client.get_lease_status().await?.leases {
    ///     println!("{} on {}: {}, {} ms left", lease.key, lease.node_id, lease.state, lease.remaining_ms);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_lease_status(&self) -> Result<LeaseStatus, Error> {
        const METHOD: &str = "GetLeaseStatus";
        let answer = self
            .read(
                METHOD,
                manager::GetLeaseStatusRequest {},
                |mut raw, request| async move { raw.get_lease_status(request).await },
            )
            .await?;
        answer.try_into().map_err(|error| bad_answer(METHOD, error))
    }

    /// Puts a bundle under a lease of its creator's, or renews it: not renewed for `ttl`, the bundle is
    /// deleted (LEASE-15). None takes the lease away. Answers when it ends.
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_bundle`, [`Error::FailedPrecondition`] `deleting`,
    /// [`Error::InvalidArgument`] `bad_lease`.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// client.renew_bundle_lease("rehearsal-7", Some(Duration::from_secs(60))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn renew_bundle_lease(
        &self,
        bundle_id: impl Into<BundleId>,
        ttl: Option<Duration>,
    ) -> Result<Option<Wall>, Error> {
        let ttl = ttl.unwrap_or_default().as_millis();
        let call = Call::RenewBundleLease {
            bundle_id: bundle_id.into(),
            ttl_ms: Millis(u64::try_from(ttl).unwrap_or(u64::MAX)),
        };
        match self.call(call).await? {
            Reply::BundleLease(expires_at) => Ok(expires_at),
            other => Err(other_answer("RenewBundleLease", &other)),
        }
    }
}
