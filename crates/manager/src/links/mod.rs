//! Lines to workers. The Manager dials; each node that is wanted has one task that connects, proves
//! itself, hears the hello, and then carries orders out and reports in until the stream ends.
//!
//! Orders are given to a line with the revision of the commit they came from. What came before the
//! hello's own commit is left out: the hello brings both sides level (MNODE-13).

mod access;
mod backoff;
mod dial;
mod open;
mod pace;
mod published;
mod session;
mod wire;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use greenroom_ledger::{Line as LineNews, Order, WorkerOrder};
use greenroom_types::NodeId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::engine::Engine;
use crate::settings::LinkSettings;

/// All lines.
pub(crate) struct Links {
    engine: Engine,
    settings: LinkSettings,
    notes: mpsc::UnboundedSender<(NodeId, LineNews)>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    lines: BTreeMap<NodeId, Line>,
    tasks: JoinSet<()>,
}

struct Line {
    address: String,
    mail: mpsc::Sender<Mail>,
    /// An order did not fit into the box: the session ends, and the next hello brings both sides
    /// level again.
    overflow: Arc<AtomicBool>,
    /// Resolves when the line has ended.
    ended: oneshot::Receiver<()>,
}

/// What the conductor puts in a line's box.
#[derive(Debug)]
enum Mail {
    Order {
        revision: u64,
        order: Box<WorkerOrder>,
    },
    Close {
        redial: bool,
    },
    /// The worker called in: it listens now.
    Called,
}

// === impl Links ===

impl Links {
    /// `notes` tells the keeper when a stream opens, so that it can bound the wait for a hello. It
    /// is drained by the conductor alone and carries at most one note per attempt to dial.
    pub(crate) fn new(
        engine: Engine,
        settings: LinkSettings,
        notes: mpsc::UnboundedSender<(NodeId, LineNews)>,
    ) -> Self {
        Self {
            engine,
            settings,
            notes,
            inner: Mutex::default(),
        }
    }

    /// Carries one order of a commit. Never waits.
    pub(crate) fn order(&self, revision: u64, order: Order) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        while inner.tasks.try_join_next().is_some() {}
        match order {
            Order::Dial { node_id, address } => self.dial(&mut inner, node_id, address),
            Order::Worker { node_id, message } => {
                let order = Box::new(message);
                inner.post(&node_id, Mail::Order { revision, order });
            }
            Order::Close { node_id, redial } => {
                inner.post(&node_id, Mail::Close { redial });
                if !redial {
                    inner.lines.remove(&node_id);
                }
            }
            // No elastic provider runs in this version, so the ledger accepts no call that would
            // order a machine (API-16).
            Order::Provider { node_id, task } => {
                tracing::error!(%node_id, ?task, "an order for a provider that does not run");
            }
        }
    }

    fn dial(&self, inner: &mut Inner, node_id: NodeId, address: String) {
        if let Some(line) = inner.lines.get(&node_id)
            && line.address == address
            && !line.mail.is_closed()
        {
            // A box that is full has other news, which end the session.
            let _ = line.mail.try_send(Mail::Called);
            return;
        }
        let former = inner.lines.remove(&node_id).map(|line| line.ended);
        let (ends, ended) = oneshot::channel();
        let (mail, boxed) = mpsc::channel(self.settings.queue);
        let overflow = Arc::new(AtomicBool::new(false));
        let line = Line {
            address: address.clone(),
            mail,
            overflow: Arc::clone(&overflow),
            ended,
        };
        inner.lines.insert(node_id.clone(), line);
        let line = dial::Dialler {
            engine: self.engine.clone(),
            settings: self.settings,
            notes: self.notes.clone(),
            node_id,
            address,
            mail: boxed,
            overflow,
            former,
            refused: None,
            _ends: ends,
        };
        inner.tasks.spawn(line.run());
    }

    /// Ends all lines; what runs on the nodes is not touched (API-19).
    pub(crate) async fn shutdown(&self) {
        let mut tasks = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut inner.tasks)
        };
        // Cut off and not told to end: an end would be recorded as a drop of the stream.
        tasks.shutdown().await;
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.lines.clear();
    }
}

// === impl Inner ===

impl Inner {
    fn post(&self, node_id: &NodeId, mail: Mail) {
        let Some(line) = self.lines.get(node_id) else {
            return;
        };
        if let Err(mpsc::error::TrySendError::Full(_)) = line.mail.try_send(mail) {
            tracing::warn!(%node_id, "too many orders wait for the worker; its stream is reset");
            line.overflow.store(true, Ordering::Relaxed);
        }
    }
}
