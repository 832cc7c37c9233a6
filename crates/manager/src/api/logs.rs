//! What a job's services wrote, relayed from the worker that keeps it (LOG-01, LOG-02).

use std::time::Duration;

use greenroom_auth::{NodeKey, PROOF_METADATA};
use greenroom_ledger::Ledger;
use greenroom_proto::convert::WireError;
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::logs::logs_client::LogsClient;
use greenroom_proto::logs::logs_server::Logs;
use greenroom_proto::logs::{ReadRequest, ReadResponse};
use greenroom_tls::{Pin, pinned_channel};
use greenroom_types::call::{Refusal, Status};
use greenroom_types::node::NodeState;
use greenroom_types::{JobId, NodeId, StartId};
use tokio::sync::watch;
use tonic::codegen::BoxStream;
use tonic::{Request, Response};

use super::caller;
use crate::clock::wall;
use crate::engine::{Engine, shutting_down};
use crate::vault::Vault;

/// A worker must answer the call within this.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct LogsApi {
    engine: Engine,
}

/// Where the lines are.
struct Place {
    node_id: NodeId,
    start_id: StartId,
    address: String,
    key: NodeKey,
    pin: Pin,
}

// === impl LogsApi ===

impl LogsApi {
    pub(crate) const fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

#[tonic::async_trait]
impl Logs for LogsApi {
    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<BoxStream<ReadResponse>>, tonic::Status> {
        self.engine
            .refuse_stopping()
            .map_err(|refusal| write_refusal(&refusal))?;
        caller::read(request.metadata(), request.extensions())?;
        let mut request = request.into_inner();
        if request.job_id.is_empty() {
            return Err(WireError::missing("job_id").into());
        }
        let job_id = JobId::new(&request.job_id);
        let vault = self.engine.vault();
        let place = self
            .engine
            .read(|ledger| find(ledger, vault, &job_id, &request.role, &request.start_id))
            .map_err(|refusal| write_refusal(&refusal))?;
        request.start_id = place.start_id.to_string();
        relay(place, request, self.engine.stopping()).await
    }
}

/// The node and start whose lines are asked for: the live instance, else the newest in the history.
fn find(
    ledger: &Ledger,
    vault: &Vault,
    job_id: &JobId,
    role: &str,
    start_id: &str,
) -> Result<Place, Refusal> {
    let record = ledger.job(job_id).ok_or_else(|| {
        let message = format!("there is no job {job_id:?}");
        Refusal::new(Status::NotFound, "unknown_job", message)
    })?;
    let wanted = |at: &greenroom_types::job::At, start: &StartId| {
        (role.is_empty() || at.role.as_str() == role)
            && (start_id.is_empty() || start.as_str() == start_id)
    };
    let (node_id, start_id) = record
        .view
        .history
        .iter()
        .rev()
        .filter_map(|entry| Some((entry.kind.at()?, entry.start_id.as_ref()?)))
        .find(|(at, start)| wanted(at, start))
        .map(|(at, start)| (at.node.node_id.clone(), start.clone()))
        .ok_or_else(|| {
            let message = format!("job {job_id:?} has not been started in that role");
            Refusal::new(Status::NotFound, "no_instance", message)
        })?;
    ledger.check_knows_more(&node_id, "the lines of jobs")?;
    let address = ledger
        .node(&node_id)
        .filter(|node| node.state == NodeState::Running)
        .map(|node| node.address.clone());
    let keys = ledger
        .slot(&node_id)
        .and_then(|slot| vault.worker_keys(slot));
    match (address, keys) {
        (Some(address), Some((key, Some(pin)))) => Ok(Place {
            node_id,
            start_id,
            address,
            key,
            pin,
        }),
        _ => Err(out_of_reach(&node_id, job_id.as_str())),
    }
}

fn out_of_reach(node_id: &NodeId, job_id: &str) -> Refusal {
    Refusal::new(
        Status::Unavailable,
        "node_unreachable",
        format!("the lines of {job_id:?} are on node {node_id:?}, which is not reached now"),
    )
    .with("node", node_id.as_str())
}

async fn relay(
    place: Place,
    request: ReadRequest,
    mut stopping: watch::Receiver<bool>,
) -> Result<Response<BoxStream<ReadResponse>>, tonic::Status> {
    let Place {
        node_id,
        address,
        key,
        pin,
        ..
    } = place;
    let unreached = || write_refusal(&out_of_reach(&node_id, &request.job_id));
    let (channel, binding) = pinned_channel(&address, pin, ANSWER_LIMIT)
        .await
        .map_err(|_| unreached())?;
    let proof = key.prove_manager(&node_id, &binding, wall());
    let mut call = Request::new(request.clone());
    let text = proof.as_str().parse().map_err(|_| unreached())?;
    call.metadata_mut().insert(PROOF_METADATA, text);
    let mut client = LogsClient::new(channel);
    let answered = tokio::time::timeout(ANSWER_LIMIT, client.read(call)).await;
    let mut lines = answered.map_err(|_| unreached())??.into_inner();
    let node_id = node_id.to_string();
    Ok(Response::new(Box::pin(async_stream::stream! {
        loop {
            let line = tokio::select! {
                line = lines.message() => line,
                () = async { let _ = stopping.wait_for(|stopping| *stopping).await; } => {
                    Err(write_refusal(&shutting_down()))
                }
            };
            match line {
                Ok(Some(mut some)) => {
                    some.node_id.clone_from(&node_id);
                    yield Ok(some);
                }
                Ok(None) => return,
                Err(status) => {
                    yield Err(status);
                    return;
                }
            }
        }
    })))
}
