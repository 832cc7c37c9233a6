//! Reading the audit log, and verifying its chain (AUDIT-05, AUDIT-06).
//!
//! Both look at the state in parts, each for a moment, so that appends go on meanwhile however long
//! the log is.

use std::sync::{Arc, Mutex, PoisonError};

use greenroom_ledger::{AuditChain, Broken, audit_weight};
use greenroom_proto::convert::common::{read_time_optional, write_time};
use greenroom_proto::convert::event::{write_audit, write_checkpoint};
use greenroom_proto::manager::{GetAuditLogRequest, GetAuditLogResponse};
use greenroom_types::Wall;
use greenroom_types::call::AuditEntry;

use super::ManagerApi;
use super::pages::BYTES_MAX;
use crate::clock::wall;
use crate::engine::Engine;

/// Entries of an answer where none are asked for, and most (AUDIT-05).
const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1_000;
/// Entries that are looked at in one go.
const PART: usize = 4_096;

/// What is known of the chain of the kept entries.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    of_the_start: Mutex<Option<Verified>>,
    /// One verification at a time: each keeps a processor busy.
    verifying: tokio::sync::Mutex<()>,
}

/// A verification.
#[derive(Clone, Copy, Debug)]
struct Verified {
    at: Wall,
    broken: Option<Broken>,
}

// === impl Chain ===

impl Chain {
    /// Verifies what was there at the start, in the background (AUDIT-06).
    pub(crate) fn verify_in_background(engine: &Engine) -> Arc<Self> {
        let chain = Arc::new(Self::default());
        let (told, engine) = (Arc::clone(&chain), engine.clone());
        tokio::spawn(async move {
            let Some(verified) = told.verify(&engine).await else {
                return;
            };
            *told.lock() = Some(verified);
            if let Some(Broken { seq }) = verified.broken {
                tracing::error!(seq, "the chain of the audit log is broken");
                let payload = serde_json::json!({ "seq": seq });
                engine.note("chain_broken", payload).await;
            }
        });
        chain
    }

    /// None when the Manager ends meanwhile.
    async fn verify(&self, engine: &Engine) -> Option<Verified> {
        let _alone = self.verifying.lock().await;
        let engine = engine.clone();
        let checked = tokio::task::spawn_blocking(move || follow_all(&engine).err());
        let broken = checked.await.ok()?;
        Some(Verified { at: wall(), broken })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Verified>> {
        self.of_the_start
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows the chain from the checkpoint to what is the newest entry now, also if that is missing.
fn follow_all(engine: &Engine) -> Result<(), Broken> {
    let (mut chain, until, hash) = engine.read(|ledger| {
        let log = ledger.audit();
        let (until, hash) = log.newest();
        let chain = AuditChain::after(log.checkpoint());
        (chain, until, hash.to_owned())
    });
    while chain.seq() < until {
        let (checkpoint, part) = engine.read(|ledger| {
            let log = ledger.audit();
            let part = log.after(chain.seq(), PART);
            (log.checkpoint().cloned(), part)
        });
        if let Some(checkpoint) = checkpoint
            && checkpoint.seq > chain.seq()
        {
            // Pruned meanwhile: what is gone needs no verifying.
            chain = AuditChain::after(Some(&checkpoint));
            continue;
        }
        if part.is_empty() {
            let seq = chain.seq() + 1;
            return Err(Broken { seq });
        }
        for entry in part {
            chain.follow(&entry)?;
            if entry.seq == until && entry.hash != hash {
                return Err(Broken { seq: until });
            }
        }
    }
    Ok(())
}

// === impl ManagerApi ===

impl ManagerApi {
    pub(super) async fn audit_log(
        &self,
        request: GetAuditLogRequest,
    ) -> Result<GetAuditLogResponse, tonic::Status> {
        let since = read_time_optional(request.since, "since")?;
        let until = read_time_optional(request.until, "until")?;
        let verified = match request.verify {
            true => self.0.chain.verify(self.engine()).await,
            false => *self.0.chain.lock(),
        };
        let is_wanted = |entry: &AuditEntry| {
            (request.kind.is_empty() || entry.kind == request.kind)
                && (request.source.is_empty() || entry.source == request.source)
                && since.is_none_or(|since| entry.at >= since)
                && until.is_none_or(|until| entry.at < until)
        };
        let limit = match request.limit as usize {
            0 => LIMIT_DEFAULT,
            limit => limit.min(LIMIT_MAX),
        };
        let before = (request.before_seq != 0).then_some(request.before_seq);
        let entries = self.newest(before, limit, is_wanted).await;
        let (first_seq, checkpoint) = self.engine().read(|ledger| {
            let log = ledger.audit();
            let first_seq = log.entries().front().map_or(0, |first| first.seq);
            (first_seq, log.checkpoint().cloned())
        });
        let entries = entries.iter().map(|entry| write_audit(entry));
        Ok(GetAuditLogResponse {
            entries: entries.collect::<Result<_, _>>()?,
            // Not yet verified is not verified.
            chain_verified: verified.is_some_and(|it| it.broken.is_none()),
            verified_at: verified.map(|it| write_time(it.at)),
            first_seq,
            broken_at_seq: verified
                .and_then(|it| it.broken)
                .map_or(0, |broken| broken.seq),
            checkpoint: checkpoint.as_ref().map(write_checkpoint).transpose()?,
        })
    }

    /// The newest entries that are wanted, as many as are asked for and fit into an answer, at least
    /// one.
    async fn newest(
        &self,
        mut before: Option<u64>,
        limit: usize,
        is_wanted: impl Fn(&AuditEntry) -> bool,
    ) -> Vec<Arc<AuditEntry>> {
        let mut found = Vec::new();
        let mut bytes = 0;
        loop {
            let part = self
                .engine()
                .read(|ledger| ledger.audit().before(before, LIMIT_MAX));
            let Some(last) = part.last() else {
                return found;
            };
            before = Some(last.seq);
            for entry in part.into_iter().filter(|entry| is_wanted(entry)) {
                bytes += audit_weight(&entry);
                if !found.is_empty() && bytes > BYTES_MAX {
                    return found;
                }
                found.push(entry);
                if found.len() == limit {
                    return found;
                }
            }
            // Others are to be served as well while a long log is searched.
            tokio::task::yield_now().await;
        }
    }
}
