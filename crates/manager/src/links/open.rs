//! A stream to a worker: whom it is opened to, and what the worker must prove on it (SEC-05, WORK-04).

use greenroom_auth::{ManagerProof, NodeKey, PROOF_METADATA, ProofError};
use greenroom_proto::worker::worker_client::WorkerClient;
use greenroom_proto::worker::{NodeControllerMessage, WorkerMessage};
use greenroom_tls::{Binding, open_channel, pinned_channel};
use greenroom_types::NodeId;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::clock::wall;
use crate::engine::Engine;
use crate::settings::LinkSettings;

/// Orders in flight to the stream.
const OUTBOX: usize = 64;
/// A message of a worker is at most this long; a hello with thousands of instances fits.
const MESSAGE_MAX: usize = 16 * 1024 * 1024;

pub(super) type Opened = (
    mpsc::Sender<NodeControllerMessage>,
    Streaming<WorkerMessage>,
    Proven,
);

/// What the worker's own proof must fit (SEC-05).
pub(super) struct Proven {
    key: NodeKey,
    binding: Binding,
    proof: ManagerProof,
    /// It says the key itself (WORK-04).
    pub(super) is_published: bool,
}

/// Opens a stream to a worker, with the Manager's proof; none where it is not reached.
pub(super) async fn open(
    engine: Engine,
    settings: LinkSettings,
    node_id: &NodeId,
    address: &str,
) -> Option<Opened> {
    let vault = engine.vault();
    let keys = engine.read(|ledger| vault.worker_keys(ledger.slot(node_id)?));
    let (key, pin) = keys?;
    let is_published = pin.is_none();
    if is_published && !settings.allow_published {
        tracing::warn!(
            %node_id,
            "the slot's worker speaks the published protocol, and workers.allowPublished is off: it is not dialled"
        );
        return None;
    }
    let dialled = match pin {
        Some(pin) => pinned_channel(address, pin, settings.connect).await,
        None => open_channel(address, settings.connect)
            .await
            .map(|channel| (channel, Binding::default())),
    };
    let (channel, binding) = match dialled {
        Ok(dialled) => dialled,
        Err(error) => {
            tracing::debug!(%node_id, address, %error, "a worker is not reached");
            return None;
        }
    };
    let (outbox, orders) = mpsc::channel(OUTBOX);
    let proof = key.prove_manager(node_id, &binding, wall());
    let mut request = tonic::Request::new(ReceiverStream::new(orders));
    let text = proof.as_str().parse().ok()?;
    request.metadata_mut().insert(PROOF_METADATA, text);
    let mut client = WorkerClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
    let answered = timeout(settings.silence, client.node_controller_stream(request))
        .await
        .ok()?;
    match answered {
        Ok(answer) => {
            let proven = Proven {
                key,
                binding,
                proof,
                is_published,
            };
            Some((outbox, answer.into_inner(), proven))
        }
        Err(status) => {
            tracing::debug!(%node_id, address, code = ?status.code(), text = status.message(), "a worker refused the stream");
            None
        }
    }
}

// === impl Proven ===

impl Proven {
    /// Whether what a hello says proves that it comes from the node's worker.
    pub(super) fn check(&self, node_id: &NodeId, secret: &str) -> Result<(), ProofError> {
        if self.is_published {
            return self.key.check_published(secret);
        }
        self.key
            .check_worker(node_id, &self.binding, &self.proof, secret)
    }
}
