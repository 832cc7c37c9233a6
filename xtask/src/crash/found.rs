//! What stands in the Manager, by object.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use greenroom_sdk::types::JobId;
use greenroom_sdk::types::bundle::BundleState;
use greenroom_sdk::types::job::JobState;
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
/// Tag of a node that one client sets, followed by its number.
pub(super) const TAG: &str = "crash-tag-";
/// How the reason of a verdict begins.
pub(super) const FAILED: &str = "failed ";
/// A job that ends goes through three states: their numbers, added to three times the content.
pub(super) const STAGES: u64 = 3;

/// What stands in the Manager.
pub(super) struct Found {
    /// Everything that is there, with its content.
    pub(super) objects: BTreeMap<Object, u64>,
    /// The fencing numbers of the leased jobs that run.
    pub(super) fences: BTreeMap<JobId, u64>,
}

/// Looks at all of it.
pub(super) async fn look(client: &Client) -> Result<Found> {
    let mut found = BTreeMap::new();
    let mut fences = BTreeMap::new();
    let leases = client.get_lease_status().await?;
    for one in client.job_search(JobSearch::default()).await? {
        let is_live = |state| !matches!(state, InstanceState::Stopping);
        let runs = one.instances.iter().any(|it| is_live(it.state));
        let job = one.job.job;
        if runs && fleet::is_leased(&job.job_id) && fleet::is_run(&job.job_id) {
            let lease = leases.leases.iter().find(|it| it.key.job_id == job.job_id);
            let fence = lease.map(|it| it.fence);
            ensure!(fence.is_some(), "job {} runs without its lease", job.job_id);
            fences.insert(job.job_id.clone(), fence.unwrap_or_default());
        }
        if job.job_id.as_str().starts_with("ends-") {
            let content = content_of(&job.description).unwrap_or_default();
            let stage = match (one.job.state, &one.job.terminal_state) {
                (JobState::Post, Some(_)) => 2,
                (JobState::Post, None) => 1,
                (_, None) => 0,
                (state, Some(_)) => bail!("job {} is {state:?} and has a verdict", job.job_id),
            };
            found.insert(Object::Ends(job.job_id), content * STAGES + stage);
        } else if let Some(content) = content_of(&job.description) {
            found.insert(Object::Job(job.job_id), content);
        } else if runs && job.job_id != fleet::drained_job() {
            found.insert(Object::Run(job.job_id), 0);
        }
    }
    for status in client.list_bundles().await? {
        let bundle = status.bundle;
        if let Some(number) = fleet::sleeper_of(&bundle.bundle_id) {
            let is_awake = status.jobs.iter().any(|it| !it.dormant);
            if is_awake {
                found.insert(Object::Awake(number), 0);
            }
            continue;
        }
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
    for lease in leases.bundle_leases {
        let content = lease.ttl_ms.saturating_sub(LEASE_MS);
        found.insert(Object::BundleLease(lease.bundle_id), content);
    }
    if let Some(pause) = leases.paused {
        let content = content_of(&pause.reason).unwrap_or_default();
        found.insert(Object::Pause, content);
    }
    for slot in client.list_cluster_nodes().await? {
        if let Some(content) = fleet::pool_content(&slot.pool) {
            found.insert(Object::Pool(slot.node_id.clone()), content);
        }
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
    nodes(client, &mut found).await?;
    if let Some(fleet) = client.get_discovery_fleet().await? {
        let address = fleet.addresses.first().cloned().unwrap_or_default();
        let content = address.trim_start_matches('d').trim_end_matches(":1");
        found.insert(Object::Fleet, content.parse()?);
    }
    Ok(Found {
        objects: found,
        fences,
    })
}

/// What clients wrote on the nodes that stay.
async fn nodes(client: &Client, found: &mut BTreeMap<Object, u64>) -> Result<()> {
    for node in client.list_nodes().await? {
        for (name, value) in &node.metadata.tags {
            if let Some(number) = name.strip_prefix(TAG) {
                found.insert(Object::Tag(number.parse()?), value.parse()?);
            } else if name == "wantedDaemonVersion" {
                let node_id = node.metadata.node_id.clone();
                found.insert(Object::Wanted(node_id), value.parse()?);
            }
        }
    }
    Ok(())
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
