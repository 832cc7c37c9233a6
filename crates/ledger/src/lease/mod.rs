//! Leases of protected jobs: at no moment do two nodes run one with the right to (LEASE).
//!
//! What is recorded is who holds a lease, and that a holder was lost; when it was last refreshed is
//! not. That is known to the [`LeaseClock`] of whoever serves this state, which tells the state by
//! [`Due::LeaseLost`] and [`Due::LeaseOver`] that a time has passed. Each lease carries a mark that
//! grows with every turn, so that news of an older turn does nothing.
//!
//! Protected is not one key but the slot of a job: an instance that came by a migration has another
//! key than the one that a recovery starts, and the two must not run together either. Beside a holder
//! may only be made what does not run, or is handed the output by the holder itself.

mod bundle;
mod clock;
mod pause;

use greenroom_types::call::{CallResult, InstanceRef, Refusal, Reply};
use greenroom_types::job::{LeasePolicy, StopReason};
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::{JobLeaseInfo, StreamEvent};
use greenroom_types::{JobId, Millis, NodeId, Role, StartId};
use serde::{Deserialize, Serialize};

use crate::change::Subject;
use crate::instance::Fate;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::failed;
use crate::state::Instance;

pub use bundle::BundleLease;
pub use clock::{LeaseClock, LeaseWakeup, PauseWarning, Refreshed};

/// The lease of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// Job and role.
    pub key: InstanceKey,
    /// The start that it was granted to.
    pub start_id: StartId,
    /// Its node.
    pub node_id: NodeId,
    /// Fencing number: greater than that of every earlier grant (LEASE-02).
    pub fence: u64,
    /// For how long one refresh holds, as the job had it at the grant.
    pub ttl_ms: Millis,
    /// Extra wait before another holder, likewise.
    pub grace_ms: Millis,
    /// Where it stands.
    pub state: LeaseState,
    /// Grows with each turn of the state.
    pub mark: u64,
}

/// Where a lease stands. One that was released has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeaseState {
    /// Its holder may run.
    Held,
    /// Its holder was lost and may still run for a while: nobody else may (LEASE-08).
    Lost,
    /// By all that clocks can tell its holder runs no more.
    Over,
}

// === impl Lease ===

impl Lease {
    /// How long after its last refresh nobody else may hold it, with a tenth for clocks that differ
    /// (LEASE-08).
    pub const fn guarded_for(&self) -> Millis {
        let ttl = self.ttl_ms.0;
        Millis(
            ttl.saturating_add(ttl.div_ceil(10))
                .saturating_add(self.grace_ms.0),
        )
    }

    /// As it is told in a pause or out of one; what only a clock knows is left open.
    pub(crate) fn info(&self, paused: bool) -> JobLeaseInfo {
        let state = match self.state {
            LeaseState::Over => "released",
            _ if paused => "paused_kept",
            LeaseState::Held => "held",
            LeaseState::Lost => "lost_waiting",
        };
        JobLeaseInfo {
            key: self.key.clone(),
            start_id: self.start_id.clone(),
            node_id: self.node_id.clone(),
            fence: self.fence,
            ttl_ms: self.ttl_ms.0,
            state: state.to_owned(),
            remaining_ms: 0,
            refreshed_at: None,
        }
    }

    const fn policy(&self) -> LeasePolicy {
        LeasePolicy {
            ttl_ms: self.ttl_ms,
            grace_ms: self.grace_ms,
        }
    }
}

// === impl Ledger: looking ===

impl Ledger {
    /// All leases that are held, or whose holder was lost and may still run, by key.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases
            .values()
            .filter(|lease| lease.state != LeaseState::Over)
    }

    /// The lease of a key, also one that is over.
    pub fn lease(&self, key: &InstanceKey) -> Option<&Lease> {
        self.leases.get(key)
    }

    /// The lease of a start.
    pub(crate) fn lease_of(&self, instance: &Instance) -> Option<&Lease> {
        self.leases
            .get(&instance.key)
            .filter(|lease| lease.start_id == instance.start_id)
    }

    /// Policy and fencing number of a start that is leased, as its worker is to know them.
    pub(crate) fn fencing(&self, instance: &Instance) -> (Option<LeasePolicy>, u64) {
        match self.lease_of(instance) {
            Some(lease) => (Some(lease.policy()), lease.fence),
            None => (None, instance.fence),
        }
    }

    fn leases_of(&self, job_id: &JobId) -> impl Iterator<Item = &Lease> {
        let first = InstanceKey::new(job_id.clone(), Role::new(""));
        self.leases
            .iter_from(&first)
            .take_while(move |(key, _)| key.job_id == *job_id)
            .map(|(_, lease)| lease)
    }

    /// Whether a holder of any of the job's keys may still run.
    pub(crate) fn is_leased(&self, job_id: &JobId) -> bool {
        self.leases_of(job_id)
            .any(|lease| lease.state != LeaseState::Over)
    }

    /// LEASE-08, LEASE-11: whether a start in this role may be accepted. `beside`: it does not run, or
    /// takes over from a holder that hands over.
    pub(crate) fn check_lease_free(
        &self,
        job_id: &JobId,
        role: &Role,
        beside: bool,
    ) -> Result<(), Refusal> {
        let paused = self.lease_pause.is_some();
        let in_the_way = self.leases_of(job_id).find(|lease| {
            let same_slot = lease.key.role.slot() == role.slot();
            let allowed = match lease.state {
                LeaseState::Held => beside && lease.key.role != *role,
                LeaseState::Lost => false,
                LeaseState::Over => !paused,
            };
            same_slot && !allowed
        });
        in_the_way.map_or(Ok(()), |lease| Err(refuse_for(lease, paused)))
    }

    /// Whether nobody but this key may run in its slot any more, so that what is prepared may.
    pub(crate) fn check_others_gone(&self, key: &InstanceKey) -> Result<(), Refusal> {
        let paused = self.lease_pause.is_some();
        let other = self.leases_of(&key.job_id).find(|lease| {
            lease.key != *key
                && lease.key.role.slot() == key.role.slot()
                && (lease.state != LeaseState::Over || paused)
        });
        other.map_or(Ok(()), |lease| Err(refuse_for(lease, paused)))
    }

    /// Whether a start that returns with its worker has no right to run any more: its lease is gone,
    /// or a later start of its slot has one (LEASE-12).
    pub(crate) fn is_superseded(&self, instance: &Instance) -> bool {
        if instance.fence == 0 {
            return false;
        }
        let later = |lease: &Lease| {
            lease.fence > instance.fence
                && lease.state != LeaseState::Over
                && lease.key.role.slot() == instance.key.role.slot()
        };
        self.lease_of(instance).is_none() || self.leases_of(&instance.key.job_id).any(later)
    }
}

/// Why nobody else may run while this lease stands as it does.
fn refuse_for(lease: &Lease, paused: bool) -> Refusal {
    let (reason, why) = match lease.state {
        LeaseState::Held => ("lease_held", "holds its lease"),
        _ if paused => (
            "leases_paused",
            "was lost, and leases are paused: it may run on. Resume leases, or get its node back",
        ),
        _ => ("lease_held", "was lost and may still run for a while"),
    };
    failed(
        reason,
        format!(
            "job {:?} is lease-protected, and its instance on node {:?} {why}",
            lease.key.job_id, lease.node_id
        ),
    )
    .with("node", lease.node_id.as_str())
    .with("start_id", lease.start_id.as_str())
    .with("fence", lease.fence)
}

// === impl Ledger: turns of a lease ===

impl Ledger {
    /// Grants a lease for a start that is being accepted, and gives its fencing number. Leases of the
    /// slot that are over go.
    pub(crate) fn grant_lease(
        &mut self,
        out: &mut Out,
        key: &InstanceKey,
        start_id: &StartId,
        node_id: &NodeId,
        policy: LeasePolicy,
    ) -> u64 {
        self.drop_over_leases(out, key);
        self.fence += 1;
        out.meta = true;
        let fence = self.fence;
        let lease = Lease {
            key: key.clone(),
            start_id: start_id.clone(),
            node_id: node_id.clone(),
            fence,
            ttl_ms: policy.ttl_ms,
            grace_ms: policy.grace_ms,
            state: LeaseState::Held,
            mark: 0,
        };
        self.put_lease(out, lease);
        fence
    }

    /// Records a lease and tells of it.
    pub(crate) fn put_lease(&mut self, out: &mut Out, lease: Lease) {
        let key = lease.key.clone();
        self.leases.insert(key.clone(), lease);
        self.tell_lease(out, &key);
    }

    /// Leases of the slot that are over go as soon as somebody else may run: whoever had one has no
    /// right to run any more, should it ever come back.
    pub(crate) fn drop_over_leases(&mut self, out: &mut Out, key: &InstanceKey) {
        let over: Vec<InstanceKey> = self
            .leases_of(&key.job_id)
            .filter(|lease| lease.state == LeaseState::Over)
            .filter(|lease| lease.key.role.slot() == key.role.slot())
            .map(|lease| lease.key.clone())
            .collect();
        for key in over {
            self.leases.remove(&key);
            out.lease(&key);
        }
    }

    /// The holder was lost with its node (LEASE-07).
    pub(crate) fn lose_lease(&mut self, out: &mut Out, start_id: &StartId) {
        self.turn_lease(out, start_id, |state| {
            (state == LeaseState::Held).then_some(LeaseState::Lost)
        });
    }

    /// The holder is there again, and nobody else was granted its lease.
    pub(crate) fn take_lease_back(&mut self, out: &mut Out, start_id: &StartId) {
        self.turn_lease(out, start_id, |state| {
            (state != LeaseState::Held).then_some(LeaseState::Held)
        });
    }

    /// The instance is known to be gone: its lease is free at once (LEASE-08).
    pub(crate) fn release_lease(&mut self, out: &mut Out, start_id: &StartId) {
        let instance = self.instances.get(start_id);
        if let Some(lease) = instance.and_then(|it| self.lease_of(it)).cloned() {
            self.end_lease(out, &lease);
        }
    }

    /// A worker says that a start of which there is no record any more is gone: so is its lease.
    pub(crate) fn release_unrecorded(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        instance: &InstanceRef,
    ) {
        let lease = self.leases.get(&instance.key).filter(|lease| {
            lease.start_id == instance.start_id
                && lease.node_id == *node_id
                && !self.instances.contains_key(&instance.start_id)
        });
        if let Some(lease) = lease.cloned() {
            self.end_lease(out, &lease);
            self.remove_job_if_free(out, &instance.key.job_id);
        }
    }

    fn end_lease(&mut self, out: &mut Out, lease: &Lease) {
        self.leases.remove(&lease.key);
        out.lease(&lease.key);
        if lease.state != LeaseState::Over {
            let mut info = lease.info(false);
            "released".clone_into(&mut info.state);
            out.event(StreamEvent::LeaseChanged(info));
        }
    }

    /// A lease was not refreshed for its time (LEASE-07): whoever holds it has ended what runs, or is
    /// told to.
    pub(crate) fn lease_lost(
        &mut self,
        out: &mut Out,
        key: &InstanceKey,
        start_id: &StartId,
        mark: u64,
    ) -> CallResult {
        if !self.is_due(key, start_id, mark, LeaseState::Held) {
            return Ok(Reply::Done);
        }
        self.turn_key(out, key, LeaseState::Lost);
        if self.instances.contains_key(start_id) {
            let fate = Fate::Ending { tell: true };
            let (reason, grace) = (StopReason::LeaseLost, Millis(0));
            self.stop_instance(out, start_id, reason, "", grace, fate);
        }
        Ok(Reply::Done)
    }

    /// The holder that was lost runs no more, by all that clocks can tell (LEASE-08).
    pub(crate) fn lease_over(
        &mut self,
        out: &mut Out,
        key: &InstanceKey,
        start_id: &StartId,
        mark: u64,
    ) -> CallResult {
        if self.is_due(key, start_id, mark, LeaseState::Lost) {
            self.turn_key(out, key, LeaseState::Over);
            // A delete may have waited for it (BDL-19).
            self.remove_job_if_free(out, &key.job_id);
            self.forget_leases_of_nobody(out, &key.job_id);
        }
        Ok(Reply::Done)
    }

    fn is_due(&self, key: &InstanceKey, start_id: &StartId, mark: u64, state: LeaseState) -> bool {
        self.lease_pause.is_none()
            && self.leases.get(key).is_some_and(|lease| {
                lease.start_id == *start_id && lease.mark == mark && lease.state == state
            })
    }

    /// Leases that are over go with their job.
    pub(crate) fn forget_leases_of_nobody(&mut self, out: &mut Out, job_id: &JobId) {
        if self.jobs.contains_key(job_id) {
            return;
        }
        let keys: Vec<InstanceKey> = self
            .leases_of(job_id)
            .filter(|lease| lease.state == LeaseState::Over)
            .map(|lease| lease.key.clone())
            .collect();
        for key in keys {
            self.leases.remove(&key);
            out.lease(&key);
        }
    }

    fn turn_lease(
        &mut self,
        out: &mut Out,
        start_id: &StartId,
        next: impl FnOnce(LeaseState) -> Option<LeaseState>,
    ) {
        let Some(instance) = self.instances.get(start_id) else {
            return;
        };
        let Some(lease) = self.lease_of(instance) else {
            return;
        };
        if let Some(state) = next(lease.state) {
            let key = lease.key.clone();
            self.turn_key(out, &key, state);
        }
    }

    fn turn_key(&mut self, out: &mut Out, key: &InstanceKey, state: LeaseState) {
        if let Some(lease) = self.leases.get_mut(key) {
            lease.state = state;
            lease.mark += 1;
            self.tell_lease(out, key);
        }
    }

    fn tell_lease(&self, out: &mut Out, key: &InstanceKey) {
        out.lease(key);
        if let Some(lease) = self.leases.get(key) {
            let info = lease.info(self.lease_pause.is_some());
            out.event(StreamEvent::LeaseChanged(info));
        }
    }
}

// === impl Out ===

impl Out {
    /// A lease was written or removed.
    pub(crate) fn lease(&mut self, key: &InstanceKey) {
        self.leases.insert(key.clone());
        self.look_at(Subject::Lease(key.clone()));
    }
}
