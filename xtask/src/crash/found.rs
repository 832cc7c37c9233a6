//! What stands in the Manager, by object.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use greenroom_sdk::types::bundle::BundleState;
use greenroom_sdk::types::node::InstanceState;
use greenroom_sdk::{AuditQuery, Client, JobSearch};

use super::client::Object;
use super::fleet;

/// Bundle leases last for longer than any run.
pub(super) const LEASE_MS: u64 = 40_000_000;
/// Stop times that are never reached: in the year 2096.
pub(super) const FAR_MS: u64 = 4_000_000_000_000;
/// A stop time that is over, as milliseconds since 1970 and as a content.
pub(super) const DUE: u64 = 1;
/// Namespace of all keys.
pub(super) const KV_NAMESPACE: &str = "crash";
/// Kind of all entries of the audit log that are made here.
pub(super) const MARK: &str = "crash-mark";

/// Everything that is there, with its content.
pub(super) async fn look(client: &Client) -> Result<BTreeMap<Object, u64>> {
    let mut found = BTreeMap::new();
    for one in client.job_search(JobSearch::default()).await? {
        let is_live = |state| !matches!(state, InstanceState::Stopping);
        let runs = one.instances.iter().any(|it| is_live(it.state));
        let job = one.job.job;
        if let Some(content) = content_of(&job.description) {
            found.insert(Object::Job(job.job_id), content);
        } else if runs && job.job_id != fleet::drained_job() {
            found.insert(Object::Run(job.job_id), 0);
        }
    }
    for status in client.list_bundles().await? {
        let bundle = status.bundle;
        if bundle.state == BundleState::Live {
            let content = content_of(&bundle.description).unwrap_or_default();
            let whole = status.jobs.len() == bundle.jobs.len();
            ensure!(whole, "bundle {} is there in part", bundle.bundle_id);
            if let Some(at) = bundle.stop_at {
                let at = u64::try_from(at.0)?;
                let content = at.checked_sub(FAR_MS).unwrap_or(at);
                found.insert(Object::StopTime(bundle.bundle_id.clone()), content);
            }
            found.insert(Object::Bundle(bundle.bundle_id), content);
        }
    }
    let leases = client.get_lease_status().await?;
    for lease in leases.bundle_leases {
        let content = lease.ttl_ms.saturating_sub(LEASE_MS);
        found.insert(Object::BundleLease(lease.bundle_id), content);
    }
    if let Some(pause) = leases.paused {
        let content = content_of(&pause.reason).unwrap_or_default();
        found.insert(Object::Pause, content);
    }
    for slot in client.list_cluster_nodes().await? {
        match fleet::number_of(&slot.node_id) {
            Some(content) => {
                let other = found.insert(Object::Worker, content);
                ensure!(other.is_none(), "a slot that was drained is there again");
            }
            None if fleet::stays(&slot.node_id) => {}
            None => {
                found.insert(Object::Slot(slot.node_id), 0);
            }
        }
    }
    keys(client, &mut found).await?;
    marks(client, &mut found).await?;
    Ok(found)
}

/// Two keys each, written together and therefore equal.
async fn keys(client: &Client, found: &mut BTreeMap<Object, u64>) -> Result<()> {
    let mut values: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for entry in client.kv_list(KV_NAMESPACE, "").await?.entries {
        let (name, _) = entry.key.rsplit_once('-').unwrap_or((&entry.key, ""));
        let value = std::str::from_utf8(&entry.value)?.parse()?;
        values.entry(name.to_owned()).or_default().push(value);
    }
    for (name, values) in values {
        let [one, other] = values[..] else {
            bail!("the keys {name} are there in part: {values:?}");
        };
        ensure!(
            one == other,
            "the keys {name} were written in part: {values:?}"
        );
        found.insert(Object::Keys(name), one);
    }
    Ok(())
}

/// The newest entry of each source, in a chain that is whole.
async fn marks(client: &Client, found: &mut BTreeMap<Object, u64>) -> Result<()> {
    let mut query = AuditQuery {
        kind: MARK.to_owned(),
        limit: 1_000,
        verify: true,
        ..AuditQuery::default()
    };
    loop {
        let page = client.get_audit_log(query.clone()).await?;
        if query.verify {
            ensure!(
                page.chain_verified,
                "the audit log is broken at entry {:?}",
                page.broken_at_seq
            );
        }
        let Some(last) = page.entries.last() else {
            return Ok(());
        };
        query.verify = false;
        query.before_seq = last.seq;
        for entry in page.entries {
            let content = entry.payload.parse()?;
            found.entry(Object::Audit(entry.source)).or_insert(content);
        }
    }
}

fn content_of(description: &str) -> Option<u64> {
    description.strip_prefix("content ")?.parse().ok()
}
