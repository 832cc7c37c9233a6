//! The worker's gRPC server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use greenroom_auth::{NodeKey, PROOF_METADATA};
use greenroom_proto::convert::call::{PROTOCOL_MAJOR, PROTOCOL_MINOR};
use greenroom_proto::convert::worker::WorkerInstance;
use greenroom_proto::worker::node_controller_message::Message as Order;
use greenroom_proto::worker::worker_message::Message;
use greenroom_proto::worker::worker_server::{Worker, WorkerServer};
use greenroom_proto::worker::{
    Health, LeasesPauseAck, NodeControllerMessage, WorkerHello, WorkerJobPrepared,
    WorkerJobStarted, WorkerMessage,
};
use greenroom_tls::mint::from_seed;
use greenroom_tls::{Binding, Door, Identity, Peer, ServerTls, fingerprint};
use greenroom_types::node::{InstanceState, NodeMetadata};
use greenroom_types::{StartId, Wall};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codegen::BoxStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::{Held, Honesty, Line, State};
use crate::order::Received;

/// Time between two signs of life.
const HEALTH: Duration = Duration::from_millis(200);

struct Api {
    state: Arc<watch::Sender<State>>,
    machine_id: String,
}

/// Serves on a free port.
pub(super) async fn begin(
    state: Arc<watch::Sender<State>>,
    machine_id: String,
    listener: TcpListener,
) -> (SocketAddr, JoinHandle<()>) {
    let address = listener.local_addr().expect("the port's number");
    let tls = ServerTls::new(&identity(&machine_id), &[]).expect("its certificate can be used");
    let door = Door {
        listener,
        tls: Some(watch::Sender::new(tls).subscribe()),
        connections_max: 64,
    };
    let incoming = greenroom_tls::incoming(vec![door]);
    let server = WorkerServer::new(Api { state, machine_id });
    let serving = tokio::spawn(async move {
        Server::builder()
            .add_service(server)
            .serve_with_incoming(incoming)
            .await
            .expect("the worker serves");
    });
    (address, serving)
}

/// The machine's identity: the same machine has the same key.
pub(super) fn identity(machine_id: &str) -> Identity {
    let seed = fingerprint(machine_id.as_bytes());
    from_seed("worker", &seed, SystemTime::now()).expect("a seed makes a key")
}

#[tonic::async_trait]
impl Worker for Api {
    async fn node_controller_stream(
        &self,
        request: Request<Streaming<NodeControllerMessage>>,
    ) -> Result<Response<BoxStream<WorkerMessage>>, Status> {
        let proof = request
            .metadata()
            .get(PROOF_METADATA)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let peer = request.extensions().get::<Peer>();
        let tls = peer.and_then(|peer| peer.tls.as_deref());
        let binding = tls.expect("the line is in TLS").binding;
        // The dial may come before the answer to the call that caused it was read.
        let mut changes = self.state.subscribe();
        let knows = |state: &State| {
            state.closed || state.key.is_some() || state.honesty == Honesty::WrongKey
        };
        changes
            .wait_for(knows)
            .await
            .map_err(|_| Status::unavailable("the worker is gone"))?;
        let (out, said) = mpsc::unbounded_channel();
        let mut opened = Err(Status::internal("the stream was not opened"));
        self.state.send_modify(|state| {
            if !state.forgets {
                state.heard.push(format!("{:?}", request.metadata()));
            }
            opened = open(state, &binding, &proof, &self.machine_id, out.clone());
        });
        let number = opened?;
        let state = Arc::clone(&self.state);
        tokio::spawn(listen(state, number, request.into_inner(), out));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(said))))
    }
}

fn open(
    state: &mut State,
    binding: &Binding,
    proof: &str,
    machine_id: &str,
    out: mpsc::UnboundedSender<Result<WorkerMessage, Status>>,
) -> Result<u64, Status> {
    state.dialled += 1;
    if state.closed {
        return Err(Status::unavailable("the worker takes no stream now"));
    }
    let rogue = state.honesty == Honesty::WrongKey;
    let (Some(key), false) = (state.key.clone(), rogue) else {
        let stranger = NodeKey::generate();
        let secret = stranger.prove_worker(&state.node_id, binding, "0");
        return greet(state, secret, machine_id, out);
    };
    let node_id = state.node_id.clone();
    let nonce = key
        .check_manager(&node_id, binding, proof, wall(), &mut state.nonces)
        .map_err(|error| Status::unauthenticated(error.to_string()))?;
    greet(
        state,
        key.prove_worker(&node_id, binding, &nonce),
        machine_id,
        out,
    )
}

/// Says hello and makes this stream the one that counts.
fn greet(
    state: &mut State,
    shared_secret: String,
    machine_id: &str,
    out: mpsc::UnboundedSender<Result<WorkerMessage, Status>>,
) -> Result<u64, Status> {
    let other = |text: &str, honesty| match state.honesty == honesty {
        true => "another".to_owned(),
        false => text.to_owned(),
    };
    let metadata = NodeMetadata {
        node_id: other(state.node_id.as_str(), Honesty::WrongNode).into(),
        ..NodeMetadata::default()
    };
    let hello = WorkerHello {
        node_metadata: Some((&metadata).into()),
        shared_secret,
        protocol_major: PROTOCOL_MAJOR + u32::from(state.honesty == Honesty::OtherMajor),
        protocol_minor: PROTOCOL_MINOR,
        build: "fake".to_owned(),
        boot_id: format!("boot {}", state.boots),
        machine_id: other(machine_id, Honesty::WrongMachine),
        inventory: Some((&state.inventory).into()),
        instances: state
            .instances
            .iter()
            .map(|(start_id, held)| {
                let instance = WorkerInstance {
                    key: held.key.clone(),
                    start_id: start_id.clone(),
                    state: held.state,
                    fence: held.fence,
                    ports: Default::default(),
                };
                (&instance).into()
            })
            .collect(),
        last_report_id: state.last_report,
        replica_version: state.replica_version,
        control_plane_version: state.planes_version,
        leases_paused: state.paused,
        ..WorkerHello::default()
    };
    if state.honesty != Honesty::Mute {
        // The stream is being opened, so somebody takes it.
        let _ = out.send(Ok(WorkerMessage {
            message: Some(Message::Hello(hello)),
            ..WorkerMessage::default()
        }));
    }
    state.streams += 1;
    state.stream = Some(Line {
        number: state.streams,
        greeted: false,
        out,
    });
    Ok(state.streams)
}

/// Takes orders until the stream ends or is no longer the one that counts.
async fn listen(
    state: Arc<watch::Sender<State>>,
    number: u64,
    mut orders: Streaming<NodeControllerMessage>,
    out: mpsc::UnboundedSender<Result<WorkerMessage, Status>>,
) {
    let mut changes = state.subscribe();
    let counts = |state: &State| state.stream.as_ref().is_some_and(|it| it.number == number);
    let every = state.borrow().lives_every.unwrap_or(HEALTH);
    let mut health = tokio::time::interval(every);
    loop {
        tokio::select! {
            order = orders.message() => match order {
                Ok(Some(order)) => state.send_modify(|state| {
                    if counts(state) {
                        state.take(order);
                    }
                }),
                Ok(None) | Err(_) => break,
            },
            _ = health.tick() => {
                let still = state.borrow().still;
                if !still {
                    // A stream that just broke needs no sign of life.
                    let _ = out.send(Ok(WorkerMessage {
                        message: Some(Message::Health(Health::default())),
                        ..WorkerMessage::default()
                    }));
                }
            }
            _ = changes.changed() => {
                let over = !counts(&changes.borrow_and_update());
                if over {
                    break;
                }
            }
        }
    }
    state.send_if_modified(|state| {
        let counted = counts(state);
        if counted {
            state.stream = None;
        }
        counted
    });
}

// === impl State ===

impl State {
    fn take(&mut self, message: NodeControllerMessage) {
        if !self.forgets {
            self.heard.push(format!("{message:?}"));
        }
        match &message.message {
            Some(Order::HelloResponse(response)) => {
                self.journal
                    .retain(|report| report.report_id > response.report_acked);
                self.greeted += 1;
                if let Some(line) = &mut self.stream {
                    line.greeted = true;
                    for report in &self.journal {
                        let _ = line.out.send(Ok(report.clone()));
                    }
                }
            }
            Some(Order::ReportAck(ack)) => {
                self.journal
                    .retain(|report| report.report_id > ack.report_id);
            }
            _ => {}
        }
        let order = Received::read(message).expect("an order that can be read");
        if let Some(order) = order {
            self.obey(&order);
            if !self.forgets {
                self.orders.push(order);
            }
        }
    }

    fn obey(&mut self, order: &Received) {
        match order {
            Received::Planes(planes) => self.planes_version = planes.version,
            Received::Discovery(access) if !self.holds => {
                self.discovery_version = access.version;
                self.acknowledge();
            }
            Received::Replica(replica) if !self.holds => {
                let can_use =
                    replica.delta_jws.is_empty() || replica.base_version == self.replica_version;
                if can_use {
                    self.replica_version = replica.version;
                }
                self.acknowledge();
            }
            Received::Provision(order) if !self.instances.contains_key(&order.start_id) => {
                let key = order.key();
                let held = Held {
                    key: key.clone(),
                    state: InstanceState::Provisioned,
                    fence: order.fence,
                };
                self.instances.insert(order.start_id.clone(), held);
                if self.holds {
                    return;
                }
                self.tell(&order.start_id, Message::JobAccepted((&key).into()));
                match order.defer_start {
                    true => self.turn(&order.start_id, InstanceState::Prepared),
                    false => self.turn(&order.start_id, InstanceState::Running),
                }
            }
            Received::LeasesPaused { paused, .. } if !self.ignores_pauses => {
                self.paused = *paused;
                if let Some(line) = &self.stream {
                    // A stream that just broke takes none.
                    let _ = line.out.send(Ok(WorkerMessage {
                        message: Some(Message::LeasesPauseAck(LeasesPauseAck { paused: *paused })),
                        ..WorkerMessage::default()
                    }));
                }
            }
            Received::StartPrepared { start_id, .. } if !self.holds => {
                self.turn(start_id, InstanceState::Running);
            }
            Received::Stop { key, start_id, .. } if !self.holds => {
                self.instances.remove(start_id);
                self.tell(start_id, Message::JobStopped(key.into()));
            }
            Received::Shutdown { park, .. } if !self.holds => {
                for (start_id, held) in std::mem::take(&mut self.instances) {
                    self.tell(&start_id, Message::JobStopped((&held.key).into()));
                }
                self.closed = *park;
            }
            _ => {}
        }
    }

    fn turn(&mut self, start_id: &StartId, at: InstanceState) {
        let Some(held) = self.instances.get_mut(start_id) else {
            return;
        };
        held.state = at;
        let job_key = Some((&held.key).into());
        let message = match at {
            InstanceState::Prepared => Message::JobPrepared(WorkerJobPrepared {
                job_key,
                ..WorkerJobPrepared::default()
            }),
            _ => Message::JobStarted(WorkerJobStarted {
                job_key,
                ..WorkerJobStarted::default()
            }),
        };
        self.tell(start_id, message);
    }

    fn tell(&mut self, start_id: &StartId, message: Message) {
        self.report(WorkerMessage {
            start_id: start_id.to_string(),
            message: Some(message),
            ..WorkerMessage::default()
        });
    }
}

fn wall() -> Wall {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    Wall(i64::try_from(since.as_millis()).expect("a clock before the year 292 million"))
}
