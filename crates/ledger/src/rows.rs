//! Records as rows, and rows as records.
//!
//! A value is `{"v": VERSION, "d": RECORD}`. What is derived is not in a row and is rebuilt at
//! loading; a job's history has one row an entry, so that a commit writes what it added.

use std::sync::Arc;

use greenroom_types::bundle::Bundle;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{HistoryEntry, Job, JobState, JobWithHistory, TerminalState};
use greenroom_types::kv::KvEntry;
use greenroom_types::node::InstanceKey;
use greenroom_types::{BundleId, JobId, NodeId, StartId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::change::{Row, RowChange};
use crate::kv::KvHead;
use crate::lease::{BundleLease, Lease};
use crate::ledger::Ledger;
use crate::out::Out;
use crate::state::{BundleRecord, Instance, JobRecord, Node, Recorded, Slot, Tombstone};

/// Version of every row's form.
const VERSION: u32 = 1;

const META: &str = "meta";
const CONFIG: &str = "config";
const JOB: &str = "job";
const HISTORY: &str = "history";
const INSTANCE: &str = "instance";
const NODE: &str = "node";
const INVENTORY: &str = "inventory";
const SLOT: &str = "slot";
const BUNDLE: &str = "bundle";
const TOMBSTONE: &str = "tombstone";
const REQUEST: &str = "request";
const KV_HEAD: &str = "kv_head";
const KV: &str = "kv";
const AUDIT_HEAD: &str = "audit_head";
const AUDIT: &str = "audit";
const DISCOVERY: &str = "discovery";
const REPLICA: &str = "access_replica";
const REPLICA_SNAPSHOT: &str = "access_snapshot";
const OVERRIDES: &str = "overrides";
const LEASE: &str = "lease";
const BUNDLE_LEASE: &str = "bundle_lease";
const LEASE_PAUSE: &str = "lease_pause";

/// A row that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The value is not what its table holds.
    #[error("row {key:?} of table {table:?} cannot be read")]
    Row {
        /// Table.
        table: String,
        /// Key.
        key: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The row is of a version that this program does not know.
    #[error("row {key:?} of table {table:?} has version {version}, this program knows up to 1")]
    Version {
        /// Table.
        table: String,
        /// Key.
        key: String,
        /// Its version.
        version: u32,
    },
    /// The row belongs to something that is not there.
    #[error("row {key:?} of table {table:?} belongs to nothing that is stored")]
    Orphan {
        /// Table.
        table: String,
        /// Key.
        key: String,
    },
    /// The table is not one of the ledger's.
    #[error("table {table:?} is not known to this program")]
    Table {
        /// Table.
        table: String,
    },
}

#[derive(Serialize)]
struct Write<'a, T> {
    v: u32,
    d: &'a T,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Deserialize)]
struct Read<T> {
    d: T,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    epoch: String,
    seq: u64,
    next_request: u64,
    #[serde(default)]
    fence: u64,
    #[serde(default)]
    generation: u64,
    #[serde(default)]
    restoring: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JobRow {
    job: Job,
    state: JobState,
    current_hash: i64,
    terminal_state: Option<TerminalState>,
    pending_restart: Vec<String>,
    dropped_entries: u32,
    next_entry: u64,
    bundle_id: Option<BundleId>,
    deleting: bool,
    completing: bool,
    pre_when_stopped: bool,
}

fn json<T: Serialize>(record: &T) -> String {
    // Records hold nothing that JSON cannot: string keys, finite numbers (checked on the way in).
    serde_json::to_string(&Write {
        v: VERSION,
        d: record,
    })
    .expect("records are made of what JSON can hold")
}

fn entry_key(job_id: &JobId, seq: u64) -> String {
    // `|` stands in no job id, and the number sorts as it counts.
    format!("{job_id}|{seq:016x}")
}

fn lease_key(key: &InstanceKey) -> String {
    // `|` stands in no job id.
    format!("{}|{}", key.job_id, key.role)
}

fn kv_key(namespace: &str, key: &str) -> String {
    // `|` stands in no namespace.
    format!("{namespace}|{key}")
}

// === impl Ledger ===

impl Ledger {
    pub(crate) fn rows_of(&self, out: &Out) -> Vec<RowChange> {
        let mut rows = Vec::new();
        let mut put = |table: &'static str, key: String, value: Option<String>| {
            rows.push(RowChange { table, key, value });
        };
        if out.meta {
            let meta = Meta {
                epoch: self.epoch.clone(),
                seq: self.seq,
                next_request: self.next_request,
                fence: self.fence,
                generation: self.generation,
                restoring: self.restoring,
            };
            put(META, "ledger".to_owned(), Some(json(&meta)));
        }
        if out.config {
            put(CONFIG, "ledger".to_owned(), Some(json(&self.config)));
        }
        if out.discovery {
            let fleet = self.discovery.as_ref().map(json);
            put(DISCOVERY, "ledger".to_owned(), fleet);
        }
        if out.replica {
            let head = self.replica.as_ref().map(|it| json(&it.head));
            put(REPLICA, "ledger".to_owned(), head);
        }
        if out.replica_snapshot {
            let snapshot = self.replica.as_ref().map(|it| json(&*it.snapshot));
            put(REPLICA_SNAPSHOT, "ledger".to_owned(), snapshot);
        }
        if out.overrides {
            put(OVERRIDES, "ledger".to_owned(), Some(json(&self.overrides)));
        }
        for id in &out.jobs {
            put(JOB, id.to_string(), self.jobs.get(id).map(job_row));
        }
        for (id, seq) in &out.entries {
            let entry = self.jobs.get(id).and_then(|record| {
                let history = &record.view.history;
                let at = history.binary_search_by_key(seq, |entry| entry.seq).ok()?;
                Some(json(&history[at]))
            });
            put(HISTORY, entry_key(id, *seq), entry);
        }
        for id in &out.instances {
            put(INSTANCE, id.to_string(), self.instances.get(id).map(json));
        }
        for id in &out.nodes {
            put(NODE, id.to_string(), self.nodes.get(id).map(json));
        }
        for id in &out.inventories {
            let inventory = self
                .nodes
                .get(id)
                .and_then(|node| node.inventory.as_deref());
            put(INVENTORY, id.to_string(), inventory.map(json));
        }
        for id in &out.slots {
            put(SLOT, id.to_string(), self.slots.get(id).map(json));
        }
        for id in &out.bundles {
            let bundle = self.bundles.get(id).map(|record| json(&*record.bundle));
            put(BUNDLE, id.to_string(), bundle);
        }
        for id in &out.tombstones {
            put(TOMBSTONE, id.to_string(), self.tombstones.get(id).map(json));
        }
        for id in &out.requests {
            put(REQUEST, id.clone(), self.requests.get(id).map(json));
        }
        for namespace in &out.kv_heads {
            let head = self.kv.get(namespace).map(|space| json(space.head()));
            put(KV_HEAD, namespace.clone(), head);
        }
        for (namespace, key) in &out.kv {
            let entry = self.kv.get(namespace).and_then(|space| space.get(key));
            put(KV, kv_key(namespace, key), entry.as_ref().map(json));
        }
        for key in &out.leases {
            put(LEASE, lease_key(key), self.leases.get(key).map(json));
        }
        for id in &out.bundle_leases {
            let lease = self.bundle_leases.get(id).map(json);
            put(BUNDLE_LEASE, id.to_string(), lease);
        }
        if out.lease_pause {
            let pause = self.lease_pause.as_ref().map(json);
            put(LEASE_PAUSE, "ledger".to_owned(), pause);
        }
        if !out.audit.is_empty() {
            let head = json(self.audit.head());
            put(AUDIT_HEAD, "ledger".to_owned(), Some(head));
        }
        for seq in &out.audit {
            put(AUDIT, format!("{seq:016x}"), self.audit.get(*seq).map(json));
        }
        rows
    }
}

fn job_row(record: &JobRecord) -> String {
    let view = &record.view;
    json(&JobRow {
        job: view.job.clone(),
        state: view.state,
        current_hash: view.current_hash,
        terminal_state: view.terminal_state.clone(),
        pending_restart: view.pending_restart.clone(),
        dropped_entries: view.dropped_entries,
        next_entry: record.next_entry,
        bundle_id: record.bundle_id.clone(),
        deleting: record.deleting,
        completing: record.completing,
        pre_when_stopped: record.pre_when_stopped,
    })
}

fn read<T: DeserializeOwned>(row: &Row) -> Result<T, LoadError> {
    let failed = |source| LoadError::Row {
        table: row.table.clone(),
        key: row.key.clone(),
        source,
    };
    let version: Version = serde_json::from_str(&row.value).map_err(failed)?;
    if version.v != VERSION {
        return Err(LoadError::Version {
            table: row.table.clone(),
            key: row.key.clone(),
            version: version.v,
        });
    }
    let read: Read<T> = serde_json::from_str(&row.value).map_err(failed)?;
    Ok(read.d)
}

fn orphan(row: &Row) -> LoadError {
    LoadError::Orphan {
        table: row.table.clone(),
        key: row.key.clone(),
    }
}

/// Rebuilds a ledger; rows may come in any order.
pub(crate) fn load(rows: impl IntoIterator<Item = Row>) -> Result<Ledger, LoadError> {
    let mut ledger = Ledger::default();
    let mut later = Vec::new();
    for row in rows {
        match row.table.as_str() {
            META => {
                let meta: Meta = read(&row)?;
                ledger.epoch = meta.epoch;
                ledger.seq = meta.seq;
                ledger.next_request = meta.next_request;
                ledger.fence = meta.fence;
                ledger.generation = meta.generation;
                ledger.restoring = meta.restoring;
            }
            CONFIG => ledger.config = read(&row)?,
            JOB => {
                let job: JobRow = read(&row)?;
                ledger.jobs.insert(JobId::new(&row.key), job_record(job));
            }
            NODE => {
                let mut node: Node = read(&row)?;
                if let Some(known) = ledger.nodes.get_mut(row.key.as_str()) {
                    node.inventory = known.inventory.take();
                }
                for (start_id, stray) in &node.strays {
                    ledger.index_stray(&NodeId::new(&row.key), &stray.key, start_id);
                }
                ledger.nodes.insert(NodeId::new(&row.key), node);
            }
            SLOT => {
                let slot: Slot = read(&row)?;
                ledger
                    .slot_names
                    .insert(slot.node_name.clone(), slot.node_id.clone());
                ledger
                    .tokens
                    .insert(slot.token.clone(), slot.node_id.clone());
                ledger.slots.insert(NodeId::new(&row.key), slot);
            }
            BUNDLE => {
                let bundle: Bundle = read(&row)?;
                ledger.bundles.insert(
                    BundleId::new(&row.key),
                    BundleRecord {
                        bundle: Arc::new(bundle),
                        jobs: Default::default(),
                    },
                );
            }
            TOMBSTONE => {
                let tombstone: Tombstone = read(&row)?;
                let start_id = StartId::new(&row.key);
                ledger
                    .tombstone_order
                    .insert((tombstone.at, start_id.clone()));
                ledger.tombstones.insert(start_id, tombstone);
            }
            REQUEST => {
                let recorded: Recorded = read(&row)?;
                ledger
                    .request_order
                    .insert(recorded.number, row.key.clone());
                ledger.requests.insert(row.key, recorded);
            }
            KV_HEAD => {
                let head: KvHead = read(&row)?;
                ledger.kv.entry(row.key).or_default().set_head(head);
            }
            KV => {
                let entry: KvEntry = read(&row)?;
                let (namespace, _) = row.key.split_once('|').ok_or_else(|| orphan(&row))?;
                let space = ledger.kv.entry(namespace.to_owned()).or_default();
                space.put(entry.key, Some(entry.value), entry.revision);
            }
            LEASE => {
                let lease: Lease = read(&row)?;
                ledger.leases.insert(lease.key.clone(), lease);
            }
            BUNDLE_LEASE => {
                let lease: BundleLease = read(&row)?;
                ledger.bundle_leases.insert(BundleId::new(&row.key), lease);
            }
            LEASE_PAUSE => ledger.lease_pause = Some(read(&row)?),
            AUDIT_HEAD => ledger.audit.set_head(read(&row)?),
            AUDIT => ledger.audit.take(read(&row)?),
            DISCOVERY => ledger.discovery = Some(read(&row)?),
            REPLICA => ledger.replica.get_or_insert_default().head = read(&row)?,
            REPLICA_SNAPSHOT => {
                ledger.replica.get_or_insert_default().snapshot = Arc::new(read(&row)?);
            }
            OVERRIDES => ledger.overrides = read(&row)?,
            HISTORY | INSTANCE | INVENTORY => later.push(row),
            _ => return Err(LoadError::Table { table: row.table }),
        }
    }
    ledger.audit.settle();
    for row in later {
        load_dependent(&mut ledger, &row)?;
    }
    for record in ledger.jobs.values_mut() {
        Arc::make_mut(&mut record.view)
            .history
            .sort_by_key(|entry| entry.seq);
    }
    for (id, record) in ledger.jobs.iter() {
        if let Some(bundle_id) = &record.bundle_id
            && let Some(bundle) = ledger.bundles.get_mut(bundle_id)
        {
            bundle.jobs.insert(id.clone());
        }
    }
    Ok(ledger)
}

fn load_dependent(ledger: &mut Ledger, row: &Row) -> Result<(), LoadError> {
    match row.table.as_str() {
        HISTORY => {
            let entry: HistoryEntry = read(row)?;
            let job_id = row.key.split('|').next().unwrap_or_default();
            let record = ledger.jobs.get_mut(job_id).ok_or_else(|| orphan(row))?;
            Arc::make_mut(&mut record.view).history.push(entry);
        }
        INSTANCE => {
            let instance: Instance = read(row)?;
            let record = ledger
                .jobs
                .get_mut(&instance.key.job_id)
                .ok_or_else(|| orphan(row))?;
            record.instances.insert(instance.start_id.clone());
            ledger.index_instance(&instance);
            ledger.instances.insert(instance.start_id.clone(), instance);
        }
        _ => {
            let inventory: NodeInventory = read(row)?;
            let node = ledger
                .nodes
                .get_mut(row.key.as_str())
                .ok_or_else(|| orphan(row))?;
            node.inventory = Some(Arc::new(inventory));
        }
    }
    Ok(())
}

fn job_record(row: JobRow) -> JobRecord {
    JobRecord {
        view: Arc::new(JobWithHistory {
            job: row.job,
            state: row.state,
            current_hash: row.current_hash,
            terminal_state: row.terminal_state,
            pending_restart: row.pending_restart,
            history: Vec::new(),
            dropped_entries: row.dropped_entries,
        }),
        next_entry: row.next_entry,
        bundle_id: row.bundle_id,
        deleting: row.deleting,
        completing: row.completing,
        pre_when_stopped: row.pre_when_stopped,
        instances: Default::default(),
    }
}

impl Ledger {
    /// Enters an instance into the indexes by key and by node.
    pub(crate) fn index_instance(&mut self, instance: &Instance) {
        if instance.is_live() {
            self.live
                .insert(instance.key.clone(), instance.start_id.clone());
        }
        self.on_node
            .get_or_default(instance.node_id.clone())
            .insert(instance.start_id.clone());
    }
}
