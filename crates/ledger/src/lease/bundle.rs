//! Bundle leases: whoever made a bundle renews its lease, and a bundle whose lease runs out is deleted
//! (LEASE-15, LEASE-16).
//!
//! What is recorded is for how long a renewal holds; since when it runs is the [`super::LeaseClock`]'s.

use greenroom_types::call::{CallResult, Reply};
use greenroom_types::{BundleId, Millis, Wall};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::change::Subject;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{invalid, required};

const SHORTEST: Millis = Millis(5_000);
const LONGEST: Millis = Millis(86_400_000);

/// The lease of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleLease {
    /// For how long a renewal holds.
    pub ttl_ms: Millis,
    /// Grows with each renewal.
    pub mark: u64,
    /// When it was last renewed.
    pub renewed_at: Wall,
}

// === impl Ledger ===

impl Ledger {
    /// All bundle leases, by bundle.
    pub fn bundle_leases(&self) -> impl Iterator<Item = (&BundleId, &BundleLease)> {
        self.bundle_leases.iter()
    }

    /// The lease of a bundle.
    pub fn bundle_lease(&self, bundle_id: &BundleId) -> Option<&BundleLease> {
        self.bundle_leases.get(bundle_id)
    }

    pub(crate) fn renew_bundle_lease(
        &mut self,
        out: &mut Out,
        bundle_id: &BundleId,
        ttl_ms: Millis,
    ) -> CallResult {
        required("bundle_id", bundle_id.as_str())?;
        self.refuse_deleting(bundle_id)?;
        if ttl_ms.0 != 0 && !(SHORTEST..=LONGEST).contains(&ttl_ms) {
            return Err(invalid(
                "bad_lease",
                format!(
                    "ttl_ms is {}: it must be {} to {}, or 0 to take the lease away",
                    ttl_ms.0, SHORTEST.0, LONGEST.0
                ),
            )
            .with("path", "ttl_ms"));
        }
        if ttl_ms.0 == 0 {
            self.end_bundle_lease(out, bundle_id);
            return Ok(Reply::BundleLease(None));
        }
        let mark = self
            .bundle_leases
            .get(bundle_id)
            .map_or(0, |it| it.mark + 1);
        let lease = BundleLease {
            ttl_ms,
            mark,
            renewed_at: out.at,
        };
        self.bundle_leases.insert(bundle_id.clone(), lease);
        out.bundle_lease(bundle_id);
        Ok(Reply::BundleLease(Some(out.at + ttl_ms)))
    }

    /// The lease was not renewed for its time; nothing happens if it was meanwhile.
    pub(crate) fn bundle_lease_over(
        &mut self,
        out: &mut Out,
        bundle_id: &BundleId,
        mark: u64,
    ) -> CallResult {
        let lease = self.bundle_leases.get(bundle_id).copied();
        if let Some(lease) = lease.filter(|lease| lease.mark == mark)
            && self.lease_pause.is_none()
        {
            let payload = json!({"bundle": bundle_id, "ttlMs": lease.ttl_ms.0});
            self.note(out, "bundle_lease_expired", &payload);
            self.end_bundle_lease(out, bundle_id);
            self.delete_bundle(out, bundle_id)?;
        }
        Ok(Reply::Done)
    }

    /// A bundle that is being deleted, or whose creator wants no lease any more, has none.
    pub(crate) fn end_bundle_lease(&mut self, out: &mut Out, bundle_id: &BundleId) {
        if self.bundle_leases.remove(bundle_id).is_some() {
            out.bundle_lease(bundle_id);
        }
    }
}

// === impl Out ===

impl Out {
    fn bundle_lease(&mut self, bundle_id: &BundleId) {
        self.bundle_leases.insert(bundle_id.clone());
        self.look_at(Subject::BundleLease(bundle_id.clone()));
    }
}
