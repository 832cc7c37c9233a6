//! The audit log (AUDIT): a chain of entries, each in the same commit as what it tells.
//!
//! The hash of an entry is SHA-256 over the hash before it and a canonical encoding of the rest:
//! `seq` and `at` (milliseconds) as 8 bytes each, big end first; then `source`, `kind`, `actor` and
//! `payload`, each as its length in 4 bytes, big end first, and its UTF-8 bytes. Anybody can compute
//! it anew from an export.

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom_types::Wall;
use greenroom_types::call::{AuditCheckpoint, AuditEntry, CallResult, Reply};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::config::Limits;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{cut, invalid};

/// Longest source and kind, and longest payload, in bytes (AUDIT-01, AUDIT-04).
const NAME_BYTES: usize = 64;
const PAYLOAD_BYTES: usize = 64 * 1024;
/// Source of the Manager's own entries.
pub(crate) const MANAGER: &str = "manager";
/// Who acts where nobody called.
pub(crate) const ITSELF: &str = "manager";
/// What stands before entry 1.
const ZEROS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Rows of pruned entries that an append removes from the store. A prune itself writes one row,
/// however much it takes, so that none holds up the commits behind it.
const SWEPT_AT_ONCE: u64 = 256;

/// The entries that are kept, and where their chain begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditLog {
    entries: VecDeque<Arc<AuditEntry>>,
    head: Head,
    /// What the entries weigh; derived.
    bytes: usize,
}

/// What of the log is in a row of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head {
    /// Seq and hash of the newest entry, also of one that is pruned.
    seq: u64,
    hash: String,
    checkpoint: Option<AuditCheckpoint>,
    /// Rows up to this one are gone from the store; those after it, up to the checkpoint, are still
    /// there and count for nothing.
    swept: u64,
}

/// Where a chain is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chain of the audit log is broken at entry {seq}")]
pub struct Broken {
    /// The first entry that does not follow from the one before it.
    pub seq: u64,
}

/// A chain as far as it was followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditChain {
    seq: u64,
    hash: String,
}

/// Rough size of an entry in memory, in bytes.
pub fn audit_weight(entry: &AuditEntry) -> usize {
    300 + entry.source.len() + entry.kind.len() + entry.actor.len() + entry.payload.len()
}

/// The hash of an entry, as it must be.
pub fn audit_hash(entry: &AuditEntry) -> String {
    let mut hash = Sha256::new();
    // A previous hash that is no hex cannot be of any chain; its text stands for itself.
    match unhex(&entry.prev_hash) {
        Some(bytes) => hash.update(bytes),
        None => hash.update(&entry.prev_hash),
    }
    hash.update(entry.seq.to_be_bytes());
    hash.update(entry.at.0.to_be_bytes());
    for text in [&entry.source, &entry.kind, &entry.actor, &entry.payload] {
        hash.update(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(text);
    }
    hex(&hash.finalize())
}

/// Verifies entries in the order of their seqs, after a checkpoint or from the beginning.
///
/// # Errors
/// The first entry whose seq, previous hash or hash is wrong.
pub fn verify_audit<'a>(
    checkpoint: Option<&AuditCheckpoint>,
    entries: impl IntoIterator<Item = &'a AuditEntry>,
) -> Result<(), Broken> {
    let mut chain = AuditChain::after(checkpoint);
    entries
        .into_iter()
        .try_for_each(|entry| chain.follow(entry))
}

// === impl AuditChain ===

impl AuditChain {
    /// A chain that begins after a checkpoint, or at entry 1.
    pub fn after(checkpoint: Option<&AuditCheckpoint>) -> Self {
        match checkpoint {
            Some(checkpoint) => Self {
                seq: checkpoint.seq,
                hash: checkpoint.hash.clone(),
            },
            None => Self {
                seq: 0,
                hash: ZEROS.to_owned(),
            },
        }
    }

    /// Seq of the last entry that was followed.
    pub const fn seq(&self) -> u64 {
        self.seq
    }

    /// Goes on with the next entry.
    ///
    /// # Errors
    /// It does not follow from the one before it, or is not what was hashed.
    pub fn follow(&mut self, entry: &AuditEntry) -> Result<(), Broken> {
        let follows = entry.seq == self.seq + 1 && entry.prev_hash == self.hash;
        if !follows || entry.hash != audit_hash(entry) {
            return Err(Broken { seq: entry.seq });
        }
        self.seq = entry.seq;
        self.hash.clone_from(&entry.hash);
        Ok(())
    }
}

// === impl AuditLog ===

impl AuditLog {
    /// The entries that are kept, oldest first.
    pub const fn entries(&self) -> &VecDeque<Arc<AuditEntry>> {
        &self.entries
    }

    /// What stands for the entries that were pruned.
    pub const fn checkpoint(&self) -> Option<&AuditCheckpoint> {
        self.head.checkpoint.as_ref()
    }

    /// Seq and hash of the newest entry; 0 and an empty text before the first.
    pub const fn newest(&self) -> (u64, &str) {
        (self.head.seq, self.head.hash.as_str())
    }

    /// So many entries after a seq, oldest first.
    pub fn after(&self, seq: u64, count: usize) -> Vec<Arc<AuditEntry>> {
        let from = self.entries.partition_point(|it| it.seq <= seq);
        self.entries.range(from..).take(count).cloned().collect()
    }

    /// So many entries before a seq, or of all, newest first.
    pub fn before(&self, seq: Option<u64>, count: usize) -> Vec<Arc<AuditEntry>> {
        let to = match seq {
            Some(seq) => self.entries.partition_point(|it| it.seq < seq),
            None => self.entries.len(),
        };
        let wanted = self.entries.range(..to).rev();
        wanted.take(count).cloned().collect()
    }

    pub(crate) const fn head(&self) -> &Head {
        &self.head
    }

    pub(crate) fn set_head(&mut self, head: Head) {
        self.head = head;
    }

    /// Takes an entry of the store, in any order; [`AuditLog::settle`] follows.
    pub(crate) fn take(&mut self, entry: AuditEntry) {
        self.push(Arc::new(entry));
    }

    /// Puts what was taken in order, without what was pruned and is not yet swept.
    pub(crate) fn settle(&mut self) {
        self.entries.make_contiguous().sort_by_key(|it| it.seq);
        let pruned = self.head.checkpoint.as_ref().map_or(0, |it| it.seq);
        let gone = self.entries.partition_point(|it| it.seq <= pruned);
        self.take_front(gone);
    }

    fn push(&mut self, entry: Arc<AuditEntry>) {
        self.bytes += audit_weight(&entry);
        self.entries.push_back(entry);
    }

    /// The last of so many entries that are taken from the front.
    fn take_front(&mut self, count: usize) -> Option<Arc<AuditEntry>> {
        let mut last = None;
        for entry in self.entries.drain(..count) {
            self.bytes -= audit_weight(&entry);
            last = Some(entry);
        }
        last
    }

    /// How many entries have to go for a log that is too long or too heavy: the oldest tenth, and as
    /// many more as bring its weight to nine tenths.
    fn excess(&self, limits: &Limits) -> usize {
        let all = self.entries.len();
        if all <= limits.audit_entries.max(10) && self.bytes <= limits.audit_bytes {
            return 0;
        }
        let mut bytes = self.bytes;
        let mut count = 0;
        for entry in &self.entries {
            if count >= all / 10 && bytes <= limits.audit_bytes / 10 * 9 {
                break;
            }
            bytes -= audit_weight(entry);
            count += 1;
        }
        count
    }

    /// An entry by its seq.
    pub(crate) fn get(&self, seq: u64) -> Option<&AuditEntry> {
        let at = self.entries.binary_search_by_key(&seq, |it| it.seq).ok()?;
        Some(&self.entries[at])
    }

    fn next(&self, at: Wall, source: &str, kind: &str, actor: &str, payload: String) -> AuditEntry {
        let mut entry = AuditEntry {
            seq: self.head.seq + 1,
            at,
            source: source.to_owned(),
            kind: kind.to_owned(),
            actor: actor.to_owned(),
            payload,
            prev_hash: match self.head.seq {
                0 => ZEROS.to_owned(),
                _ => self.head.hash.clone(),
            },
            hash: String::new(),
        };
        entry.hash = audit_hash(&entry);
        entry
    }
}

// === impl Ledger ===

impl Ledger {
    /// The audit log.
    pub const fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// Appends an entry of the Manager's own, and prunes a log that is full (AUDIT-11).
    pub(crate) fn note(&mut self, out: &mut Out, kind: &str, payload: &Value) {
        let actor = out.actor.clone();
        self.append_audit(out, MANAGER, kind, &actor, bounded(payload));
        self.retain_audit(out);
    }

    /// AUDIT-11.
    fn retain_audit(&mut self, out: &mut Out) {
        let excess = self.audit.excess(&self.config.limits);
        self.prune(out, excess, "retention", ITSELF);
    }

    fn append_audit(
        &mut self,
        out: &mut Out,
        source: &str,
        kind: &str,
        actor: &str,
        payload: String,
    ) {
        let entry = self.audit.next(out.at, source, kind, actor, payload);
        self.audit.head.seq = entry.seq;
        self.audit.head.hash.clone_from(&entry.hash);
        out.audit.insert(entry.seq);
        let entry = Arc::new(entry);
        out.appended.push(Arc::clone(&entry));
        self.audit.push(entry);
        self.sweep_audit(out);
    }

    /// Removes some rows of pruned entries from the store.
    fn sweep_audit(&mut self, out: &mut Out) {
        let head = &mut self.audit.head;
        let pruned = head.checkpoint.as_ref().map_or(0, |it| it.seq);
        let to = pruned.min(head.swept + SWEPT_AT_ONCE);
        out.audit.extend(head.swept + 1..=to);
        head.swept = head.swept.max(to);
    }

    /// AUDIT-04.
    pub(crate) fn append_audit_entry(
        &mut self,
        out: &mut Out,
        source: &str,
        kind: &str,
        payload: String,
        actor: &str,
    ) -> CallResult {
        let bad = |path: &str, rule: &str| {
            Err(invalid("bad_audit_entry", format!("{path} must be {rule}")).with("path", path))
        };
        let name = format!("1 to {NAME_BYTES} of a-z 0-9 . _ -");
        for (path, text) in [("source", source), ("kind", kind)] {
            let formed = (1..=NAME_BYTES).contains(&text.len())
                && text
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b));
            if !formed {
                return bad(path, &name);
            }
        }
        if source == MANAGER {
            return bad("source", "another than the Manager's own");
        }
        if payload.len() > PAYLOAD_BYTES {
            return bad("payload", &format!("at most {PAYLOAD_BYTES} bytes"));
        }
        if serde_json::from_str::<serde::de::IgnoredAny>(&payload).is_err() {
            return bad("payload", "JSON");
        }
        self.append_audit(out, source, kind, actor, payload);
        let seq = self.audit.head.seq;
        self.retain_audit(out);
        Ok(Reply::AuditSeq(seq))
    }

    /// AUDIT-07, AUDIT-08: the longest run from the front that is strictly older.
    pub(crate) fn prune_audit_log(
        &mut self,
        out: &mut Out,
        before: Wall,
        actor: &str,
    ) -> CallResult {
        if before > out.at {
            return Err(invalid(
                "bad_timestamp",
                format!("before_timestamp_ms is {}: it lies in the future", before.0),
            )
            .with("path", "before_timestamp_ms"));
        }
        let all = self.audit.entries.len();
        let count = match before.0 {
            0 => all,
            _ => {
                let newer = self.audit.entries.iter().position(|it| it.at >= before);
                newer.unwrap_or(all)
            }
        };
        self.prune(out, count, actor, actor);
        let checkpoint_seq = self.audit.checkpoint().map_or(0, |it| it.seq);
        Ok(Reply::AuditPruned {
            removed: count as u64,
            checkpoint_seq,
        })
    }

    fn prune(&mut self, out: &mut Out, count: usize, by: &str, actor: &str) {
        let Some(last) = self.audit.take_front(count) else {
            return;
        };
        self.audit.head.checkpoint = Some(AuditCheckpoint {
            seq: last.seq,
            hash: last.hash.clone(),
            count: count as u64,
            by: by.to_owned(),
            at: out.at,
        });
        let payload = json!({"removed": count, "through": last.seq, "by": by});
        self.append_audit(out, MANAGER, "audit-pruned", actor, payload.to_string());
    }
}

// === helpers ===

/// A payload within its limit: what is too long is told by its beginning.
fn bounded(payload: &Value) -> String {
    let text = payload.to_string();
    if text.len() <= PAYLOAD_BYTES {
        return text;
    }
    // Escaping makes a text at most six times as long.
    json!({"cut": cut(&text, PAYLOAD_BYTES / 8)}).to_string()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|it| it.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    let byte = |pair: &[u32]| u8::try_from(pair[0] * 16 + pair[1]).ok();
    digits.chunks(2).map(byte).collect()
}
