//! Calls on the key/value store.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use greenroom_proto::manager;
use greenroom_types::call::{Call, Reply};
use greenroom_types::kv::{KvCommit, KvEntry};

use super::other_answer;
use crate::client::Client;
use crate::error::Error;
use crate::read::{bad_answer, pages, read_all};

/// What a namespace holds below a prefix (KV-01).
///
/// ```no_run
/// # fn example(list: greenroom_sdk::KvList) {
/// println!("{} keys of schema {}", list.entries.len(), list.schema_version);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvList {
    /// In byte order of the key.
    pub entries: Vec<KvEntry>,
    /// The schema version that was last set, 0 before.
    pub schema_version: u64,
}

impl Client {
    /// One key of a namespace, or none (KV-01).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] `bad_kv`, [`Error::PermissionDenied`] `reserved_namespace`, and as for
    /// any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// if let Some(entry) = client.kv_get("rota", "tonight").await? {
    ///     println!("{} bytes at revision {}", entry.value.len(), entry.revision);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn kv_get(
        &self,
        namespace: impl Into<String>,
        key: impl Into<String>,
    ) -> Result<Option<KvEntry>, Error> {
        const METHOD: &str = "KvGet";
        let request = manager::KvGetRequest {
            namespace: namespace.into(),
            key: key.into(),
            stale_ok: false,
        };
        let answer = self
            .read(METHOD, request, |mut raw, request| async move {
                raw.kv_get(request).await
            })
            .await?;
        let entry = answer.entry.map(KvEntry::try_from).transpose();
        entry.map_err(|error| bad_answer(METHOD, error.under("entry")))
    }

    /// All keys of a namespace that begin so, from one state (KV-01).
    ///
    /// # Errors
    /// As for [`Client::kv_get`].
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// for entry in client.kv_list("rota", "2026-").await?.entries {
    ///     println!("{}", entry.key);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn kv_list(
        &self,
        namespace: impl Into<String>,
        key_prefix: impl Into<String>,
    ) -> Result<KvList, Error> {
        const METHOD: &str = "KvList";
        let (namespace, key_prefix) = (&namespace.into(), &key_prefix.into());
        let schema_version = &AtomicU64::new(0);
        let page = |page_token: String| async move {
            let request = manager::KvListRequest {
                namespace: namespace.clone(),
                key_prefix: key_prefix.clone(),
                stale_ok: false,
                page_size: 0,
                page_token,
            };
            let answer = self
                .read(METHOD, request, |mut raw, request| async move {
                    raw.kv_list(request).await
                })
                .await?;
            schema_version.store(answer.schema_version, Relaxed);
            Ok((answer.entries, answer.next_page_token))
        };
        Ok(KvList {
            entries: read_all(METHOD, "entries", pages(page).await?)?,
            schema_version: schema_version.load(Relaxed),
        })
    }

    /// Writes keys of one namespace, all or none, and answers the namespace's new revision (KV-02).
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] `revision_mismatch` or `schema_mismatch`,
    /// [`Error::InvalidArgument`] `bad_kv`, [`Error::ResourceExhausted`] `kv_full`,
    /// [`Error::PermissionDenied`] `reserved_namespace`.
    ///
    /// ```no_run
    /// use greenroom_sdk::types::kv::{KvCommit, KvWrite};
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let commit = KvCommit {
    ///     namespace: "rota".to_owned(),
    ///     writes: vec![KvWrite::set("tonight", *b"anna").expecting(0)],
    ///     ..KvCommit::default()
    /// };
    /// let revision = client.kv_commit(commit).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn kv_commit(&self, commit: KvCommit) -> Result<u64, Error> {
        match self.call(Call::KvCommit(commit)).await? {
            Reply::KvRevision(revision) => Ok(revision),
            other => Err(other_answer("KvCommit", &other)),
        }
    }
}
