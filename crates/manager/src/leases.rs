//! The clock of leases, shared by those who need it: sessions refresh, the conductor looks what is due,
//! calls ask how long a key stays taken; and who confirmed a pause.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use greenroom_ledger::{LeaseClock, Ledger, Refreshed};
use greenroom_types::call::InstanceRef;
use greenroom_types::stream::LeaseStatus;
use greenroom_types::{Millis, NodeId};
use tokio::sync::watch;

use crate::engine::Engine;

/// Workers have this long to confirm a pause or its end before the caller is answered (LEASE-10).
const ACK_PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(crate) struct Leases {
    clock: Mutex<LeaseClock>,
    /// What each worker confirmed last on its stream: that leases are paused, or that they are not.
    confirmed: watch::Sender<BTreeMap<NodeId, bool>>,
}

/// One lease of a refresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) instance: InstanceRef,
    pub(crate) fence: u64,
}

// === impl Leases ===

impl Leases {
    pub(crate) fn new(clock: LeaseClock) -> Self {
        Self {
            clock: Mutex::new(clock),
            confirmed: watch::Sender::default(),
        }
    }

    /// The clock. Whoever looks at the ledger too does that first, and takes this inside: so no commit
    /// comes between both.
    pub(crate) fn clock(&self) -> MutexGuard<'_, LeaseClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker says whether it takes leases for paused.
    pub(crate) fn confirm(&self, node_id: &NodeId, paused: bool) {
        self.confirmed.send_modify(|confirmed| {
            confirmed.insert(node_id.clone(), paused);
        });
    }

    /// A new stream begins: what the worker said on the last one is no longer known.
    pub(crate) fn forget(&self, node_id: &NodeId) {
        self.confirmed
            .send_if_modified(|confirmed| confirmed.remove(node_id).is_some());
    }

    /// Nobody has confirmed what is asked now.
    pub(crate) fn forget_all(&self) {
        self.confirmed.send_modify(BTreeMap::clear);
    }

    /// Those of these nodes whose workers have not confirmed that leases are paused, or are not.
    pub(crate) fn unconfirmed(&self, nodes: &BTreeSet<NodeId>, paused: bool) -> Vec<NodeId> {
        let confirmed = self.confirmed.borrow();
        let open = nodes
            .iter()
            .filter(|id| confirmed.get(*id) != Some(&paused));
        open.cloned().collect()
    }

    /// Waits for the confirmations of these nodes, and tells whose did not come.
    pub(crate) async fn await_confirmed(
        &self,
        nodes: &BTreeSet<NodeId>,
        paused: bool,
    ) -> Vec<NodeId> {
        let mut confirmed = self.confirmed.subscribe();
        let all = confirmed.wait_for(|confirmed| {
            nodes
                .iter()
                .all(|node_id| confirmed.get(node_id) == Some(&paused))
        });
        // Late or not: what is missing is looked up below.
        let _ = tokio::time::timeout(ACK_PATIENCE, all).await;
        self.unconfirmed(nodes, paused)
    }
}

// === impl Engine ===

impl Engine {
    /// Answers a worker's refresh; nothing is committed for it (LEASE-03).
    pub(crate) fn refresh_lease(&self, node_id: &NodeId, held: &Held) -> Refreshed {
        self.read(|ledger| {
            let mut clock = self.leases().clock();
            let now = self.clock().now();
            clock.refresh(now, ledger, node_id, &held.instance, held.fence)
        })
    }

    /// All leases, for GetLeaseStatus (LEASE-14).
    pub(crate) fn lease_status(&self) -> LeaseStatus {
        self.read(|ledger| {
            let clock = self.leases().clock();
            clock.status(self.clock().now(), ledger)
        })
    }

    /// Nodes that are to know of a pause: those whose workers are heard, and those that hold a lease.
    pub(crate) fn pause_audience(&self) -> BTreeSet<NodeId> {
        self.read(|ledger| {
            let holders = ledger.leases().map(|lease| &lease.node_id);
            ledger.pause_hearers().chain(holders).cloned().collect()
        })
    }
}

/// A clock that takes every lease of this state for just refreshed (LEASE-09).
pub(crate) fn begin(max_pause: Duration, now: greenroom_types::Now, ledger: &Ledger) -> LeaseClock {
    let max_pause = u64::try_from(max_pause.as_millis()).unwrap_or(u64::MAX);
    LeaseClock::new(Millis(max_pause), now, ledger)
}
