//! What one apply collects on its way: changes in order, orders, and which records to write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_types::call::{AuditEntry, CallResult};
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::StreamEvent;
use greenroom_types::{BundleId, JobId, NodeId, StartId, Wall};

use crate::change::{Applied, Change, Subject, What};
use crate::command::Registered;
use crate::ledger::Ledger;
use crate::order::{Order, WorkerOrder};

/// The collector of one apply.
pub(crate) struct Out {
    pub(crate) at: Wall,
    pub(crate) meta: bool,
    pub(crate) config: bool,
    pub(crate) discovery: bool,
    pub(crate) replica: bool,
    pub(crate) replica_snapshot: bool,
    pub(crate) overrides: bool,
    pub(crate) registered: Option<Registered>,
    pub(crate) orders: Vec<Order>,
    pub(crate) nodes: BTreeSet<NodeId>,
    pub(crate) inventories: BTreeSet<NodeId>,
    pub(crate) instances: BTreeSet<StartId>,
    pub(crate) slots: BTreeSet<NodeId>,
    pub(crate) bundles: BTreeSet<BundleId>,
    pub(crate) tombstones: BTreeSet<StartId>,
    pub(crate) requests: BTreeSet<String>,
    pub(crate) kv_heads: BTreeSet<String>,
    /// Who acts, for the audit log.
    pub(crate) actor: String,
    /// Seqs of audit entries written or removed.
    pub(crate) audit: BTreeSet<u64>,
    pub(crate) appended: Vec<Arc<AuditEntry>>,
    /// Namespace and key.
    pub(crate) kv: BTreeSet<(String, String)>,
    pub(crate) leases: BTreeSet<InstanceKey>,
    pub(crate) bundle_leases: BTreeSet<BundleId>,
    pub(crate) lease_pause: bool,
    /// What deadlines are to be looked at for besides, though no row of its own changed.
    touched: BTreeSet<Subject>,
    /// History rows written or removed.
    pub(crate) entries: BTreeSet<(JobId, u64)>,
    pub(crate) jobs: BTreeSet<JobId>,
    announced: Vec<Announced>,
    announced_jobs: BTreeMap<JobId, usize>,
}

enum Announced {
    Job(JobId),
    Deleted(JobId),
    Event(StreamEvent),
    Withdrawn,
}

// === impl Out ===

impl Out {
    pub(crate) fn new(at: Wall) -> Self {
        Self {
            at,
            meta: false,
            config: false,
            discovery: false,
            replica: false,
            replica_snapshot: false,
            overrides: false,
            registered: None,
            orders: Vec::new(),
            nodes: BTreeSet::new(),
            inventories: BTreeSet::new(),
            instances: BTreeSet::new(),
            slots: BTreeSet::new(),
            bundles: BTreeSet::new(),
            tombstones: BTreeSet::new(),
            requests: BTreeSet::new(),
            kv_heads: BTreeSet::new(),
            actor: crate::audit::ITSELF.to_owned(),
            audit: BTreeSet::new(),
            appended: Vec::new(),
            kv: BTreeSet::new(),
            leases: BTreeSet::new(),
            bundle_leases: BTreeSet::new(),
            lease_pause: false,
            touched: BTreeSet::new(),
            entries: BTreeSet::new(),
            jobs: BTreeSet::new(),
            announced: Vec::new(),
            announced_jobs: BTreeMap::new(),
        }
    }

    /// An event that is the same for every subscriber.
    pub(crate) fn event(&mut self, event: StreamEvent) {
        self.announced.push(Announced::Event(event));
    }

    /// Whether anything follows so far.
    pub(crate) fn changes_something(&self) -> bool {
        let records = self.meta
            || self.config
            || !(self.nodes.is_empty() && self.inventories.is_empty() && self.slots.is_empty());
        let jobs = !(self.jobs.is_empty()
            && self.entries.is_empty()
            && self.instances.is_empty()
            && self.bundles.is_empty()
            && self.tombstones.is_empty());
        let fleet = self.discovery || self.replica || self.overrides;
        let leases = self.lease_pause || !(self.leases.is_empty() && self.bundle_leases.is_empty());
        let rest = !(self.kv.is_empty() && self.kv_heads.is_empty() && self.orders.is_empty());
        records || jobs || fleet || leases || rest || !self.announced.is_empty()
    }

    /// Deadlines of this are to be looked at again.
    pub(crate) fn look_at(&mut self, subject: Subject) {
        self.touched.insert(subject);
    }

    /// Deadlines of these instances are to be looked at again.
    pub(crate) fn look_at_all(&mut self, starts: &BTreeSet<StartId>) {
        self.touched
            .extend(starts.iter().cloned().map(Subject::Instance));
    }

    /// Keeps a place for an event that is to be told before what follows.
    pub(crate) fn reserve(&mut self) -> usize {
        self.announced.push(Announced::Withdrawn);
        self.announced.len() - 1
    }

    /// Fills a place that was kept.
    pub(crate) fn fill(&mut self, place: usize, event: StreamEvent) {
        self.announced[place] = Announced::Event(event);
    }

    /// A job changed. However often in one commit, it is told once, at the place of the first time,
    /// as it stands in the end (EVT-08).
    pub(crate) fn job(&mut self, job_id: &JobId) {
        self.jobs.insert(job_id.clone());
        if !self.announced_jobs.contains_key(job_id) {
            self.announced_jobs
                .insert(job_id.clone(), self.announced.len());
            self.announced.push(Announced::Job(job_id.clone()));
        }
    }

    /// A job is gone; what was to be told of it in this commit is not told.
    pub(crate) fn job_deleted(&mut self, job_id: &JobId) {
        self.jobs.insert(job_id.clone());
        if let Some(at) = self.announced_jobs.remove(job_id) {
            self.announced[at] = Announced::Withdrawn;
        }
        self.announced.push(Announced::Deleted(job_id.clone()));
    }

    /// A message for a worker.
    pub(crate) fn order(&mut self, node_id: &NodeId, message: WorkerOrder) {
        self.orders.push(Order::Worker {
            node_id: node_id.clone(),
            message,
        });
    }
}

impl Ledger {
    /// Numbers the changes, writes the rows, and gives everything back.
    pub(crate) fn finish(&mut self, mut out: Out, outcome: CallResult) -> Applied {
        let announced = std::mem::take(&mut out.announced);
        let mut changes = Vec::with_capacity(announced.len());
        for item in announced {
            let what = match item {
                Announced::Job(id) => match self.jobs.get(&id) {
                    Some(record) => What::Job(record.view.clone()),
                    None => continue,
                },
                Announced::Deleted(id) => What::JobDeleted(id),
                Announced::Event(event) => What::Event(event),
                Announced::Withdrawn => continue,
            };
            self.seq += 1;
            out.meta = true;
            changes.push(Change {
                seq: self.seq,
                at: out.at,
                what,
            });
        }
        let rows = self.rows_of(&out);
        let mut touched = out.touched;
        touched.extend(out.nodes.into_iter().map(Subject::Node));
        touched.extend(out.instances.into_iter().map(Subject::Instance));
        touched.extend(out.bundles.into_iter().map(Subject::Bundle));
        let touched = touched.into_iter().collect();
        Applied {
            outcome,
            registered: out.registered,
            changes,
            audit: out.appended,
            orders: out.orders,
            rows,
            touched,
        }
    }
}
