//! Calls on the audit log.

use greenroom_proto::convert::WireError;
use greenroom_proto::convert::common::{read_time_optional, write_time};
use greenroom_proto::manager;
use greenroom_types::Wall;
use greenroom_types::call::{AuditCheckpoint, AuditEntry, Call, Reply};

use super::other_answer;
use crate::client::Client;
use crate::error::Error;
use crate::read::{bad_answer, read_all};

/// Which entries of the audit log are wanted (AUDIT-05).
///
/// ```
/// let starts = greenroom_sdk::AuditQuery { kind: "start_job".to_owned(), ..Default::default() };
/// assert_eq!(starts.limit, 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// How many at most; 0 for the Manager's default, 100.
    pub limit: u32,
    /// Only those before this entry; 0 for all.
    pub before_seq: u64,
    /// Only those of this kind; empty for all.
    pub kind: String,
    /// Only those of this source; empty for all.
    pub source: String,
    /// Only those at or after this time.
    pub since: Option<Wall>,
    /// Only those before this time.
    pub until: Option<Wall>,
    /// Verify the chain now, instead of telling what the last start found.
    pub verify: bool,
}

/// Entries of the audit log, newest first, and what is known of their chain.
///
/// ```no_run
/// # fn example(page: greenroom_sdk::AuditPage) {
/// assert!(page.chain_verified, "broken at {:?}", page.broken_at_seq);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// The entries.
    pub entries: Vec<AuditEntry>,
    /// The chain of all kept entries was verified and is whole.
    pub chain_verified: bool,
    /// When it was verified.
    pub verified_at: Option<Wall>,
    /// Seq of the first entry that is kept, 0 for none.
    pub first_seq: u64,
    /// The first entry that does not follow from the one before it.
    pub broken_at_seq: Option<u64>,
    /// What stands for the entries that were pruned.
    pub checkpoint: Option<AuditCheckpoint>,
}

/// What pruning did.
///
/// ```no_run
/// # fn example(pruned: greenroom_sdk::AuditPruned) {
/// println!("{} entries went", pruned.removed);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditPruned {
    /// How many entries went.
    pub removed: u64,
    /// The last one that ever went, 0 for none.
    pub checkpoint_seq: u64,
}

impl Client {
    /// Entries of the audit log, newest first (AUDIT-05).
    ///
    /// # Errors
    /// As for any reading call.
    ///
    /// ```no_run
    /// use greenroom_sdk::AuditQuery;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// for entry in client.get_audit_log(AuditQuery::default()).await?.entries {
    ///     println!("{} {} {} {}", entry.seq, entry.at, entry.kind, entry.payload);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_audit_log(&self, query: AuditQuery) -> Result<AuditPage, Error> {
        const METHOD: &str = "GetAuditLog";
        let request = manager::GetAuditLogRequest {
            limit: query.limit,
            before_seq: query.before_seq,
            kind: query.kind,
            source: query.source,
            since: query.since.map(write_time),
            until: query.until.map(write_time),
            verify: query.verify,
        };
        let answer = self
            .read(METHOD, request, |mut raw, request| async move {
                raw.get_audit_log(request).await
            })
            .await?;
        let bad = |error: WireError| bad_answer(METHOD, error);
        let checkpoint = answer.checkpoint.map(AuditCheckpoint::try_from);
        Ok(AuditPage {
            entries: read_all(METHOD, "entries", answer.entries)?,
            chain_verified: answer.chain_verified,
            verified_at: read_time_optional(answer.verified_at, "verified_at").map_err(bad)?,
            first_seq: answer.first_seq,
            broken_at_seq: (answer.broken_at_seq != 0).then_some(answer.broken_at_seq),
            checkpoint: checkpoint
                .transpose()
                .map_err(|error| bad(error.under("checkpoint")))?,
        })
    }

    /// Appends an entry, whose payload is JSON, and answers its seq (AUDIT-04).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] `bad_audit_entry`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let seq = client.append_audit_entry("rota", "handed-over", r#"{"to":"anna"}"#).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn append_audit_entry(
        &self,
        source: impl Into<String>,
        kind: impl Into<String>,
        payload: impl Into<String>,
    ) -> Result<u64, Error> {
        match self
            .call(Call::AppendAuditEntry {
                source: source.into(),
                kind: kind.into(),
                payload: payload.into(),
            })
            .await?
        {
            Reply::AuditSeq(seq) => Ok(seq),
            other => Err(other_answer("AppendAuditEntry", &other)),
        }
    }

    /// Removes the longest run of entries from the front that are strictly older; none for all
    /// (AUDIT-07).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] `bad_timestamp` for a time in the future.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let pruned = client.prune_audit_log(None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn prune_audit_log(&self, before: Option<Wall>) -> Result<AuditPruned, Error> {
        let before = before.unwrap_or(Wall(0));
        match self.call(Call::PruneAuditLog { before }).await? {
            Reply::AuditPruned {
                removed,
                checkpoint_seq,
            } => Ok(AuditPruned {
                removed,
                checkpoint_seq,
            }),
            other => Err(other_answer("PruneAuditLog", &other)),
        }
    }
}
