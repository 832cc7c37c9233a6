//! Any call of the domain as its RPC, with a request id that makes it repeatable (SDK-05, API-07).

use std::time::Duration;

use greenroom_proto::convert::call::{Answer, Request};
use greenroom_types::call::{Call, Reply};
use tokio::time::Instant;
use tonic::metadata::MetadataValue;

use crate::client::{Client, Tries};
use crate::error::Error;
use crate::read::bad_answer;

/// How one call is made.
///
/// ```
/// use std::time::Duration;
/// let options = greenroom_sdk::CallOptions {
///     timeout: Some(Duration::from_secs(3)),
///     ..greenroom_sdk::CallOptions::default()
/// };
/// assert_eq!(options.request_id, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// Deadline with all repeats; none: [`crate::Settings::call_timeout`].
    pub timeout: Option<Duration>,
    /// 1 to 64 visible ASCII characters under which the call takes effect once, however often it
    /// arrives (API-07); none: a new one. A caller that may be restarted in the middle keeps its own.
    pub request_id: Option<String>,
}

/// One arm per call: the generated method takes the request, and the type of its response reads the
/// reply.
macro_rules! dispatch {
    ($inner:expr, $tries:expr, $request:expr; $($variant:ident => $method:ident),+ $(,)?) => {{
        let method = $tries.method;
        match $request {
            $(Request::$variant(message) => {
                let answer = $inner
                    .perform($tries, message, |mut raw, request| async move {
                        raw.$method(request).await
                    })
                    .await?;
                Answer::read(answer).map_err(|error| bad_answer(method, error))
            })+
        }
    }};
}

impl Client {
    /// Makes a call. The methods of the calls' names do the same with answers of their own types.
    ///
    /// # Errors
    /// What the Manager refuses; [`Error::ConnectionLost`] and [`Error::DeadlineExceeded`] say whether the
    /// call may have taken effect.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::call::Call;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let reply = client.call(Call::DeleteJob("clock".into())).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn call(&self, call: Call) -> Result<Reply, Error> {
        self.call_with(call, CallOptions::default()).await
    }

    /// Makes a call with a deadline or a request id of the caller's.
    ///
    /// # Errors
    /// As [`Client::call`], and [`Error::Settings`] for a request id of another form.
    ///
    /// ```no_run
    /// use greenroom_sdk::{CallOptions, types::call::Call};
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let options = CallOptions {
    ///     request_id: Some("nightly-2026-11-29".to_owned()),
    ///     ..CallOptions::default()
    /// };
    /// client.call_with(Call::TerminateNode("node-1".into()), options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn call_with(&self, call: Call, options: CallOptions) -> Result<Reply, Error> {
        let request = Request::from(&call);
        let timeout = options.timeout.unwrap_or(self.inner.settings.call_timeout);
        let tries = Tries {
            method: request.name(),
            request_id: Some(self.request_id(options.request_id)?),
            deadline: Instant::now() + timeout,
            stop: self.stop.clone(),
        };
        dispatch! { self.inner, tries, request;
            CreateJob => create_job,
            UpdateJob => update_job,
            DeleteJob => delete_job,
            CompleteJob => complete_job,
            StartJob => start_job,
            StartPreparedJob => start_prepared_job,
            StopJob => stop_job,
            MarkJobFailed => mark_job_failed,
            CreateBundle => create_bundle,
            UpdateBundle => update_bundle,
            DeleteBundle => delete_bundle,
            StartBundleJob => start_bundle_job,
            StopBundleJob => stop_bundle_job,
            SetBundleStopTime => set_bundle_stop_time,
            CreateAwsNode => create_aws_node,
            CreateOciNode => create_oci_node,
            TerminateNode => terminate_node,
            UpdatePhysicalNode => update_physical_node,
            SetNodeTags => set_node_tags,
            RegisterClusterNode => register_cluster_node,
            DeregisterClusterNode => deregister_cluster_node,
            PrefetchImages => prefetch_images,
            NotifyMigrationGetState => notify_migration_get_state,
            NotifyMigrationCutoverReady => notify_migration_cutover_ready,
            NotifyMigrationCutoverApply => notify_migration_cutover_apply,
            KvCommit => kv_commit,
            SetNodeIdleExpiry => set_node_idle_expiry,
            SetClusterNodePool => set_cluster_node_pool,
            RotateClusterNodeToken => rotate_cluster_node_token,
            AppendAuditEntry => append_audit_entry,
            PruneAuditLog => prune_audit_log,
            PublishDiscoveryFleet => publish_discovery_fleet,
            RotateDiscoveryTierSecret => rotate_discovery_tier_secret,
            PublishAccessReplica => publish_access_replica,
            ReloadExternalConfig => reload_external_config,
            AdoptInstance => adopt_instance,
            RenewBundleLease => renew_bundle_lease,
            PauseLeases => pause_leases,
            ResumeLeases => resume_leases,
            AbortMigration => abort_migration,
        }
    }

    fn request_id(
        &self,
        given: Option<String>,
    ) -> Result<MetadataValue<tonic::metadata::Ascii>, Error> {
        let id = given.unwrap_or_else(|| self.inner.dice.request_id());
        let has_form =
            (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        has_form
            .then(|| MetadataValue::try_from(id.as_str()).ok())
            .flatten()
            .ok_or_else(|| Error::Settings {
                key: "request_id",
                problem: format!("{id:?} must be 1 to 64 visible ASCII characters"),
            })
    }
}
