//! The worker's side of the controlling stream: proof, hello, then orders in and reports out.
//!
//! The Manager dials. Until it has proven that it holds the node's key it is told nothing (WORK-02).
//! Which stream controls is decided by the core's task; this file only carries messages.

use std::sync::Arc;
use std::time::Duration;

use greenroom_proto::status::Refusal;
use greenroom_proto::worker as wire;
use greenroom_proto::worker::node_controller_message::Message as Controller;
use greenroom_proto::worker::worker_server::Worker;
use greenroom_tls::Peer;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::gate::Gate;
use crate::node::{Input, OUTGOING_MAX, Outgoing};

/// The Manager answers a hello within this, or the worker closes (WORK-03).
const HELLO_ANSWER: Duration = Duration::from_secs(10);

/// The service that the Manager dials.
pub(crate) struct WorkerService {
    gate: Arc<Gate>,
    inputs: mpsc::Sender<Input>,
    ending: CancellationToken,
}

// === impl WorkerService ===

impl WorkerService {
    pub(crate) const fn new(
        gate: Arc<Gate>,
        inputs: mpsc::Sender<Input>,
        ending: CancellationToken,
    ) -> Self {
        Self {
            gate,
            inputs,
            ending,
        }
    }
}

#[tonic::async_trait]
impl Worker for WorkerService {
    async fn node_controller_stream(
        &self,
        request: Request<Streaming<wire::NodeControllerMessage>>,
    ) -> Result<Response<BoxStream<wire::WorkerMessage>>, Status> {
        let shared_secret = self
            .gate
            .check(request.metadata(), request.extensions())
            .await?;
        let in_use = request.extensions().get().and_then(Peer::begin_use);
        let (outgoing, receiver) = mpsc::channel(OUTGOING_MAX);
        let talk = Talk {
            inputs: self.inputs.clone(),
            incoming: request.into_inner(),
            outgoing,
        };
        let ending = self.ending.clone();
        tokio::spawn(async move {
            let _in_use = in_use;
            tokio::select! {
                () = talk.run(shared_secret) => {}
                () = ending.cancelled() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// One stream, from its hello to its end.
struct Talk {
    inputs: mpsc::Sender<Input>,
    incoming: Streaming<wire::NodeControllerMessage>,
    outgoing: Outgoing,
}

// === impl Talk ===

impl Talk {
    async fn run(mut self, shared_secret: String) {
        let session = match self.greet(shared_secret).await {
            Ok(Some(session)) => session,
            Ok(None) => return,
            Err(status) => {
                let _ = self.outgoing.send(Err(status)).await;
                return;
            }
        };
        // From here on only the core holds the way out, so that a stream it replaces ends.
        drop(self.outgoing);
        while let Ok(Some(message)) = self.incoming.message().await {
            let message = Box::new(message);
            if self
                .inputs
                .send(Input::Said { session, message })
                .await
                .is_err()
            {
                break;
            }
        }
        let _ = self.inputs.send(Input::Gone { session }).await;
    }

    /// Says hello and takes its answer; none when the Manager has gone.
    async fn greet(&mut self, shared_secret: String) -> Result<Option<u64>, Status> {
        let (answer, hello) = oneshot::channel();
        self.ask(Input::Hello {
            answer,
            shared_secret,
        })
        .await?;
        let hello = hello.await.map_err(|_| ending())?;
        if self.outgoing.send(Ok(*hello)).await.is_err() {
            return Ok(None);
        }
        let answered = tokio::time::timeout(HELLO_ANSWER, self.incoming.message()).await;
        let message = answered
            .map_err(|_| Status::deadline_exceeded("the hello was not answered within 10 s"))??;
        let response = match message.and_then(|message| message.message) {
            Some(Controller::HelloResponse(response)) => response,
            Some(_) => return Err(Status::failed_precondition("hello_response comes first")),
            None => return Ok(None),
        };
        let (answer, control) = oneshot::channel();
        let outgoing = self.outgoing.clone();
        self.ask(Input::Control {
            response,
            outgoing,
            answer,
        })
        .await?;
        control.await.map_err(|_| ending())?.map(Some)
    }

    async fn ask(&self, input: Input) -> Result<(), Status> {
        self.inputs.send(input).await.map_err(|_| ending())
    }
}

fn ending() -> Status {
    Refusal::new(Code::Unavailable, "shutting_down", "the worker is ending").into()
}
