//! What GetLeaseStatus answers (LEASE-14).

use greenroom_types::{
    BundleId,
    stream::{BundleLeaseInfo, LeasePause, LeaseStatus},
};

use super::{
    WireError,
    common::{read_time_optional, write_time},
    event::write_lease,
    read_list,
};
use crate::manager;

impl TryFrom<manager::GetLeaseStatusResponse> for LeaseStatus {
    type Error = WireError;
    fn try_from(status: manager::GetLeaseStatusResponse) -> Result<Self, WireError> {
        let paused = match status.paused {
            false => None,
            true => Some(LeasePause {
                reason: status.reason,
                by: status.by,
                since: read_time_optional(status.since, "since")?
                    .ok_or_else(|| WireError::missing("since"))?,
            }),
        };
        Ok(Self {
            paused,
            leases: read_list(status.leases, "leases")?,
            bundle_leases: read_list(status.bundle_leases, "bundle_leases")?,
        })
    }
}

impl TryFrom<manager::BundleLeaseInfo> for BundleLeaseInfo {
    type Error = WireError;
    fn try_from(lease: manager::BundleLeaseInfo) -> Result<Self, WireError> {
        Ok(Self {
            bundle_id: BundleId::new(lease.bundle_id),
            ttl_ms: lease.ttl_ms,
            expires_at: read_time_optional(lease.expires_at, "expires_at")?
                .ok_or_else(|| WireError::missing("expires_at"))?,
        })
    }
}

/// Writes the status; a state of a lease for which the wire has no value is refused `unknown_enum`.
pub fn write_lease_status(
    status: &LeaseStatus,
) -> Result<manager::GetLeaseStatusResponse, WireError> {
    let paused = status.paused.as_ref();
    Ok(manager::GetLeaseStatusResponse {
        paused: paused.is_some(),
        reason: paused.map(|it| it.reason.clone()).unwrap_or_default(),
        by: paused.map(|it| it.by.clone()).unwrap_or_default(),
        since: paused.map(|it| write_time(it.since)),
        leases: status
            .leases
            .iter()
            .map(write_lease)
            .collect::<Result<_, _>>()?,
        bundle_leases: status
            .bundle_leases
            .iter()
            .map(|lease| manager::BundleLeaseInfo {
                bundle_id: lease.bundle_id.to_string(),
                ttl_ms: lease.ttl_ms,
                expires_at: Some(write_time(lease.expires_at)),
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use greenroom_types::Wall;
    use greenroom_types::stream::JobLeaseInfo;

    use super::*;

    #[test]
    fn a_status_comes_back_the_same() {
        let lease = JobLeaseInfo {
            key: greenroom_types::node::InstanceKey::new("j".into(), "primary".into()),
            start_id: "s".into(),
            node_id: "n".into(),
            fence: 1 << 32,
            ttl_ms: 10_000,
            state: "paused_kept".to_owned(),
            remaining_ms: 9_000,
            refreshed_at: Some(Wall(5_000)),
        };
        let running = LeaseStatus {
            leases: vec![lease],
            ..LeaseStatus::default()
        };
        let paused = LeaseStatus {
            paused: Some(LeasePause {
                reason: "works on a switch".to_owned(),
                by: "ana".to_owned(),
                since: Wall(4_000),
            }),
            bundle_leases: vec![BundleLeaseInfo {
                bundle_id: "b".into(),
                ttl_ms: 60_000,
                expires_at: Wall(64_000),
            }],
            ..running.clone()
        };
        for status in [LeaseStatus::default(), running, paused] {
            let wire = write_lease_status(&status).unwrap();
            assert_eq!(LeaseStatus::try_from(wire), Ok(status));
        }
    }
}
