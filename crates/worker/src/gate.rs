//! Who may talk to this worker: a Manager that proves that it holds the node's key.
//!
//! Every call the worker serves comes through here before anything is told (WORK-02, SEC-05).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use greenroom_auth::{NodeKey, NonceMemory, PROOF_METADATA};
use greenroom_proto::status::Refusal;
use greenroom_tls::Peer;
use greenroom_types::NodeId;
use tokio::sync::watch;
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Status};

use crate::node::now;

/// A dial may come this long before the answer to a registration.
const REGISTERED_WITHIN: Duration = Duration::from_secs(5);

/// What a proof is checked against.
#[derive(Clone, Debug)]
pub(crate) struct NodeProof {
    pub(crate) node_id: NodeId,
    pub(crate) key: NodeKey,
}

/// Checks proofs; none is taken twice, whichever call it comes with.
#[derive(Debug)]
pub(crate) struct Gate {
    proof: watch::Receiver<Option<Arc<NodeProof>>>,
    nonces: Mutex<NonceMemory>,
}

// === impl Gate ===

impl Gate {
    pub(crate) fn new(proof: watch::Receiver<Option<Arc<NodeProof>>>) -> Self {
        Self {
            proof,
            nonces: Mutex::default(),
        }
    }

    /// The worker's answer to a Manager that proved itself. Every other caller gets one and the same
    /// refusal; the reason stays here.
    pub(crate) async fn check(
        &self,
        metadata: &MetadataMap,
        extensions: &Extensions,
    ) -> Result<String, Status> {
        let refused = || Refusal::new(Code::Unauthenticated, "bad_proof", "not the Manager").into();
        // The Manager may dial before its own answer to the registration has arrived here.
        let mut proofs = self.proof.clone();
        let known = proofs.wait_for(Option::is_some);
        let known = tokio::time::timeout(REGISTERED_WITHIN, known).await;
        let proof = known.ok().and_then(|known| known.ok()?.clone());
        let Some(proof) = proof else {
            return Err(refused());
        };
        let peer = extensions.get::<Peer>();
        let Some(tls) = peer.and_then(|peer| peer.tls.as_deref()) else {
            return Err(refused());
        };
        let text = metadata
            .get(PROOF_METADATA)
            .and_then(|text| text.to_str().ok());
        let Some(text) = text else {
            tracing::warn!("a caller without proof was turned away");
            return Err(refused());
        };
        let mut nonces = self.nonces.lock().unwrap_or_else(PoisonError::into_inner);
        let (node_id, binding) = (&proof.node_id, &tls.binding);
        match proof
            .key
            .check_manager(node_id, binding, text, now(), &mut nonces)
        {
            Ok(nonce) => Ok(proof.key.prove_worker(node_id, binding, &nonce)),
            Err(error) => {
                tracing::warn!(%error, "a caller's proof does not hold");
                Err(refused())
            }
        }
    }
}
