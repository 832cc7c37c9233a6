//! Calls of the migration relay.

use greenroom_types::call::{Call, Reply};
use greenroom_types::node::InstanceKey;
use greenroom_types::{MigrationId, Payload};

use super::{AbortMigration, other_answer};
use crate::client::Client;
use crate::error::Error;

impl Client {
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
        payload: impl Into<Payload>,
    ) -> Result<(), Error> {
        match self
            .call(Call::NotifyMigrationCutoverReady {
                key: source,
                migration_id: migration_id.into(),
                payload: payload.into(),
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
        payload: impl Into<Payload>,
    ) -> Result<(), Error> {
        match self
            .call(Call::NotifyMigrationCutoverApply {
                key: target,
                migration_id: migration_id.into(),
                payload: payload.into(),
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
