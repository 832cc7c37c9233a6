//! A Manager for tests: takes a worker's call, dials it over loopback, and says what the test says.
//! And a worker as a real process that can be killed and started again.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod kills;
pub(crate) mod metadata;
pub(crate) mod registry;
pub(crate) mod scene;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use greenroom_auth::{ManagerProof, NodeKey, PROOF_METADATA};
use greenroom_proto::common::job_info_message::Message as Info;
use greenroom_proto::common::{ActiveJobKey, JobId, ProcessContainer, Service, service::Container};
use greenroom_proto::logs::logs_client::LogsClient;
use greenroom_proto::logs::{ReadRequest, ReadResponse};
use greenroom_proto::manager::manager_server::{Manager, ManagerServer};
use greenroom_proto::manager::{ClusterMemberRegisterRequest, ClusterMemberRegisterResponse};
use greenroom_proto::worker::node_controller_message::Message as Order;
use greenroom_proto::worker::worker_client::WorkerClient;
use greenroom_proto::worker::worker_message::Message as Said;
use greenroom_proto::worker::{
    HeldLease, LeaseAnswer, LeaseAnswerItem, LeaseRefresh, NodeControllerMessage, ReportAck,
    WorkerHello, WorkerHelloResponse, WorkerJob, WorkerMessage,
};
use greenroom_tls::{Binding, Pin, pinned_channel};
use greenroom_types::{NodeId, Wall};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// A test that waits longer than this for a message is broken.
const PATIENCE: Duration = Duration::from_secs(120);

/// The node of a test and its key.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) key: NodeKey,
}

pub(crate) struct FakeManager {
    pub(crate) url: String,
    pub(crate) node: Node,
    calls: mpsc::Receiver<ClusterMemberRegisterRequest>,
}

struct Registrar {
    node: Node,
    calls: mpsc::Sender<ClusterMemberRegisterRequest>,
}

#[tonic::async_trait]
impl Manager for Registrar {
    async fn cluster_member_register(
        &self,
        request: Request<ClusterMemberRegisterRequest>,
    ) -> Result<Response<ClusterMemberRegisterResponse>, Status> {
        let _ = self.calls.send(request.into_inner()).await;
        Ok(Response::new(ClusterMemberRegisterResponse {
            node_id: self.node.id.to_string(),
            deployment_id: "test".to_owned(),
            key_share: self.node.key.expose().to_vec(),
            manager_urls: Vec::new(),
        }))
    }
}

impl FakeManager {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        // Tests run side by side on one machine: each has a node of its own.
        let id = format!(
            "node-{}",
            greenroom_auth::hex(&greenroom_auth::random::<4>())
        );
        let node = Node {
            id: id.into(),
            key: NodeKey::generate(),
        };
        let (sender, calls) = mpsc::channel(16);
        let registrar = Registrar {
            node: node.clone(),
            calls: sender,
        };
        let server = tonic::transport::Server::builder()
            .add_service(ManagerServer::new(registrar))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        Self { url, node, calls }
    }

    /// Waits for a worker's call.
    pub(crate) async fn called(&mut self) -> ClusterMemberRegisterRequest {
        within(self.calls.recv())
            .await
            .expect("the registrar lives")
    }

    /// Waits for a worker's call, dials it, and lets it say hello.
    pub(crate) async fn meet(&mut self, term: u64, report_acked: u64) -> Stream {
        let call = self.called().await;
        let address = Line {
            address: format!("{}:{}", call.listen_address, call.listen_port),
            pin: Pin::of(&call.public_key),
        };
        Stream::dial(&address, &self.node, term, report_acked)
            .await
            .expect("the worker talks")
    }
}

/// Where a worker listens, and the key of its certificate.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) address: String,
    pub(crate) pin: Pin,
}

/// A controlling stream, seen from the Manager.
pub(crate) struct Stream {
    pub(crate) hello: WorkerHello,
    pub(crate) address: Line,
    orders: mpsc::Sender<NodeControllerMessage>,
    said: Streaming<WorkerMessage>,
    acked: bool,
}

impl Stream {
    pub(crate) async fn dial(
        address: &Line,
        node: &Node,
        term: u64,
        report_acked: u64,
    ) -> Result<Self, Status> {
        let (channel, binding) = connect(address).await;
        let proof = node.key.prove_manager(&node.id, &binding, wall());
        let (orders, mut said) = open_on(channel, Some(&proof)).await?;
        let Some(Said::Hello(hello)) = within(said.message()).await?.and_then(|m| m.message) else {
            panic!("a hello comes first");
        };
        node.key
            .check_worker(&node.id, &binding, &proof, &hello.shared_secret)
            .unwrap();
        let report_acked = report_acked.min(hello.last_report_id);
        let response = WorkerHelloResponse {
            term,
            report_acked,
            ..Default::default()
        };
        let message = Some(Order::HelloResponse(response));
        orders
            .send(NodeControllerMessage {
                message,
                ..Default::default()
            })
            .await
            .unwrap();
        let address = address.to_owned();
        Ok(Self {
            hello,
            address,
            orders,
            said,
            acked: true,
        })
    }

    /// From now on reports are not acknowledged.
    pub(crate) fn without_acks(mut self) -> Self {
        self.acked = false;
        self
    }

    pub(crate) async fn order(&self, start_id: &str, grace_ms: Option<u64>, order: Order) {
        let start_id = if start_id.is_empty() {
            String::new()
        } else {
            id(start_id)
        };
        let message = Some(order);
        let message = NodeControllerMessage {
            message,
            start_id,
            grace_ms,
            ..Default::default()
        };
        self.orders.send(message).await.unwrap();
    }

    pub(crate) async fn send(&self, message: NodeControllerMessage) {
        self.orders.send(message).await.unwrap();
    }

    pub(crate) async fn provision(&self, job: WorkerJob) {
        self.order("", None, Order::ProvisionJob(job)).await;
    }

    pub(crate) async fn stop(&self, job: &str, start_id: &str, grace_ms: u64) {
        self.order(start_id, Some(grace_ms), Order::StopJob(key(job)))
            .await;
    }

    /// Provisions, though the worker may be gone.
    pub(crate) async fn try_provision(&self, job: WorkerJob) {
        let message = Some(Order::ProvisionJob(job));
        let _ = self
            .orders
            .send(NodeControllerMessage {
                message,
                ..Default::default()
            })
            .await;
    }

    /// Stops, though the worker may be gone.
    pub(crate) async fn try_stop(&self, job: &str, start_id: &str) {
        let _ = self
            .orders
            .send(NodeControllerMessage {
                message: Some(Order::StopJob(key(job))),
                start_id: id(start_id),
                grace_ms: Some(500),
                ..Default::default()
            })
            .await;
    }

    pub(crate) async fn next(&mut self) -> Result<WorkerMessage, Status> {
        let message = within(self.said.message()).await?;
        let message = message.ok_or_else(|| Status::unavailable("the stream ended"))?;
        if self.acked && message.report_id > 0 {
            let ack = Order::ReportAck(ReportAck {
                report_id: message.report_id,
            });
            // The worker may have ended with this very message.
            let message = Some(ack);
            let _ = self
                .orders
                .send(NodeControllerMessage {
                    message,
                    ..Default::default()
                })
                .await;
        }
        Ok(message)
    }

    /// The next message that the test looks for; others are passed over.
    pub(crate) async fn until<T>(
        &mut self,
        mut wanted: impl FnMut(&WorkerMessage) -> Option<T>,
    ) -> T {
        within(async {
            loop {
                let message = self.next().await.expect("the stream lives");
                if let Some(found) = wanted(&message) {
                    return found;
                }
            }
        })
        .await
    }

    /// The next refresh.
    pub(crate) async fn refresh(&mut self) -> LeaseRefresh {
        self.until(|message| match &message.message {
            Some(Said::LeaseRefresh(refresh)) => Some(refresh.clone()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn answer(&mut self, refresh: &LeaseRefresh, ttl_ms: u64, superseded: bool) {
        let item = |held: &HeldLease| LeaseAnswerItem {
            job_key: held.job_key.clone(),
            start_id: held.start_id.clone(),
            fence: held.fence,
            ttl_ms,
            superseded,
        };
        let answer = LeaseAnswer {
            sent_nonce: refresh.sent_nonce,
            leases: refresh.leases.iter().map(item).collect(),
        };
        self.order("", None, Order::LeaseAnswer(answer)).await;
    }

    /// What is reported of a start until `last` comes: short words, each with its start id.
    pub(crate) async fn reports(&mut self, start_id: &str, last: &str) -> Vec<String> {
        let (mut words, start_id) = (Vec::new(), id(start_id));
        let told = self.until(|message| {
            let word = word(message).filter(|_| message.start_id == start_id)?;
            let first = word.split(' ').next();
            let done = first == Some(last);
            // Nothing comes after it, as on a machine with too little disk.
            assert!(done || first != Some("rejected"), "{start_id}: {word}");
            words.push(word);
            done.then_some(())
        });
        told.await;
        words
    }
}

/// A report in one word, and its detail.
pub(crate) fn word(message: &WorkerMessage) -> Option<String> {
    Some(match message.message.as_ref()? {
        Said::JobAccepted(_) => "accepted".to_owned(),
        Said::JobPrepared(_) => "prepared".to_owned(),
        Said::JobStarted(_) => "started".to_owned(),
        Said::JobStopped(_) if message.completed => "completed".to_owned(),
        Said::JobStopped(_) => "stopped".to_owned(),
        Said::JobFailed(failed) => format!("failed {}", failed.reason),
        Said::JobRejected(rejected) => format!("rejected {}", rejected.code().as_str_name()),
        _ => return None,
    })
}

/// News of a job in a few words.
pub(crate) fn info_word(message: &WorkerMessage) -> Option<String> {
    let Some(Said::JobInfo(info)) = &message.message else {
        return None;
    };
    Some(match info.message.as_ref()? {
        Info::ServiceStarted(service) => format!("started {}", service.service_name),
        Info::ServiceRestarting(service) => format!("restarting {}", service.service_name),
        Info::ContainerEvent(event) => format!("{}: {}", event.service_name, event.text),
        Info::ComposeMessage(stage) => {
            let name = stage.stage().as_str_name();
            let name = name.rsplit('_').next().unwrap_or(name);
            format!("{name} {}", stage.text)
        }
        Info::JobStatus(_) => return None,
    })
}

/// A session with the worker whose certificate has the pinned key.
pub(crate) async fn connect(line: &Line) -> (Channel, Binding) {
    pinned_channel(&line.address, line.pin, PATIENCE)
        .await
        .expect("the worker listens")
}

type Opened = (
    mpsc::Sender<NodeControllerMessage>,
    Streaming<WorkerMessage>,
);

pub(crate) async fn open(line: &Line, proof: Option<&ManagerProof>) -> Result<Opened, Status> {
    let (channel, _) = connect(line).await;
    open_on(channel, proof).await
}

async fn open_on(channel: Channel, proof: Option<&ManagerProof>) -> Result<Opened, Status> {
    let mut client = WorkerClient::new(channel);
    let (orders, receiver) = mpsc::channel(64);
    let mut request = Request::new(ReceiverStream::new(receiver));
    if let Some(proof) = proof {
        request
            .metadata_mut()
            .insert(PROOF_METADATA, proof.as_str().parse().unwrap());
    }
    let said = within(client.node_controller_stream(request))
        .await?
        .into_inner();
    Ok((orders, said))
}

/// Asks a worker for lines, with this proof or none.
pub(crate) async fn read_logs(
    line: &Line,
    node: Option<&Node>,
    request: ReadRequest,
) -> Result<Streaming<ReadResponse>, Status> {
    let (channel, binding) = connect(line).await;
    let mut client = LogsClient::new(channel);
    let mut request = Request::new(request);
    if let Some(node) = node {
        let proof = node.key.prove_manager(&node.id, &binding, wall());
        request
            .metadata_mut()
            .insert(PROOF_METADATA, proof.as_str().parse().unwrap());
    }
    Ok(within(client.read(request)).await?.into_inner())
}

/// Lines as `service stream text`, until so many have come or there are no more.
pub(crate) async fn lines(answers: &mut Streaming<ReadResponse>, max: usize) -> Vec<String> {
    let mut lines = Vec::new();
    while lines.len() < max
        && let Some(answer) = within(answers.message()).await.unwrap()
    {
        let texts = answer.lines.into_iter();
        lines.extend(texts.map(|line| format!("{} {} {}", line.service, line.stream, line.text)));
    }
    lines
}

pub(crate) fn wall() -> Wall {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    Wall(now.as_millis() as i64)
}

thread_local! {
    static SALT: String = greenroom_auth::hex(&greenroom_auth::random::<8>());
}

/// The start id that a test calls by a short name. Start ids are never given twice, so no two tests,
/// each on a thread of its own, may share one.
pub(crate) fn id(name: &str) -> String {
    SALT.with(|salt| format!("{salt}{name}"))
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it happens at all")
}

pub(crate) fn key(job: &str) -> ActiveJobKey {
    let job_id = Some(JobId {
        job_id: job.to_owned(),
    });
    ActiveJobKey {
        job_id,
        role: "primary".to_owned(),
    }
}

pub(crate) fn job(job: &str, start_id: &str, services: Vec<Service>) -> WorkerJob {
    WorkerJob {
        job_id: Some(JobId {
            job_id: job.to_owned(),
        }),
        role: "primary".to_owned(),
        start_id: id(start_id),
        services,
        ..Default::default()
    }
}

/// A service of the process runtime: a line for `sh`.
pub(crate) fn shell(name: &str, line: &str) -> Service {
    let command = ["sh", "-c", line].map(str::to_owned).to_vec();
    let container = Container::Process(ProcessContainer {
        command,
        directory: String::new(),
    });
    Service {
        name: name.to_owned(),
        container: Some(container),
        ..Default::default()
    }
}

/// A worker as a process; it and all it runs end with the test.
pub(crate) struct WorkerProcess {
    child: Child,
    args: Vec<String>,
    env: Vec<(String, String)>,
    pub(crate) state_dir: PathBuf,
}

impl WorkerProcess {
    pub(crate) fn spawn(
        state_dir: &Path,
        manager: &FakeManager,
        runtime: &str,
        vcpus: &str,
    ) -> Self {
        Self::spawn_with(state_dir, manager, runtime, vcpus, &[])
    }

    /// With more settings, from the environment.
    pub(crate) fn spawn_with(
        state_dir: &Path,
        manager: &FakeManager,
        runtime: &str,
        vcpus: &str,
        env: &[(&str, &str)],
    ) -> Self {
        let env: Vec<(String, String)> = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let state = state_dir.display().to_string();
        let args = [&state, &manager.url, "grt_test", runtime, vcpus]
            .map(str::to_owned)
            .to_vec();
        Self {
            child: spawn(&args, &env),
            args,
            env,
            state_dir: state_dir.to_owned(),
        }
    }

    pub(crate) fn spawn_another(&self) -> ExitStatus {
        spawn(&self.args, &self.env).wait().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> ExitStatus {
        kill_process(pid(self.child.id() as i32), signal).unwrap();
        self.child.wait().unwrap()
    }

    /// Sends a signal that does not end it.
    pub(crate) fn send(&self, signal: Signal) {
        kill_process(pid(self.child.id() as i32), signal).unwrap();
    }

    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&self.args, &self.env);
    }

    /// Starts it again with other settings from the environment.
    pub(crate) fn start_again_with(&mut self, env: &[(&str, &str)]) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.env = env.iter().map(owned).collect();
        self.start_again();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Number of the lease guard.
    pub(crate) fn guard(&self) -> i32 {
        let lock = std::fs::read_to_string(self.state_dir.join("guard/lock")).unwrap();
        lock.trim_end().parse().unwrap()
    }

    /// Waits for its end and says which signal ended it.
    pub(crate) fn wait_signal(&mut self) -> Option<i32> {
        std::os::unix::process::ExitStatusExt::signal(&self.wait())
    }

    /// Number of the supervisor of a start.
    pub(crate) fn supervisor(&self, start_id: &str) -> i32 {
        let path = self
            .state_dir
            .join("instances")
            .join(id(start_id))
            .join("status.json");
        let status: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        status["supervisor"]["pid"].as_i64().unwrap() as i32
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let lock = std::fs::read_to_string(self.state_dir.join("guard/lock")).unwrap_or_default();
        if let Ok(number) = lock.trim_end().parse::<i32>() {
            // One that has ended left its number behind.
            let line = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let own = self.state_dir.as_os_str().as_encoded_bytes();
            if line.split(|byte| *byte == 0).any(|word| word == own) {
                let _ = kill_process(pid(number), Signal::KILL);
            }
        }
        for entry in std::fs::read_dir(self.state_dir.join("instances"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let bytes = std::fs::read(entry.path().join("status.json")).unwrap_or_default();
            let status: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let services = status["services"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(_, s)| s);
            for process in services.chain([&status["supervisor"]]) {
                if let Some(number) = process["pid"].as_i64() {
                    let _ = kill_process(pid(number as i32), Signal::KILL);
                }
            }
        }
    }
}

fn spawn(args: &[String], env: &[(String, String)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_greenroom-worker-testbin"))
        .args(args)
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

pub(crate) fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
}

/// A named pipe through which services tell a test that they have come somewhere.
pub(crate) struct Pipe {
    pub(crate) path: PathBuf,
    lines: tokio::io::Lines<tokio::io::BufReader<tokio::net::unix::pipe::Receiver>>,
}

impl Pipe {
    pub(crate) fn new(dir: &Path) -> Self {
        use tokio::io::AsyncBufReadExt;
        let path = dir.join("pipe");
        assert!(
            Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        // Open for writing too, so that it has no end when a writer ends.
        let mut options = tokio::net::unix::pipe::OpenOptions::new();
        let receiver = options.read_write(true).open_receiver(&path).unwrap();
        Self {
            path,
            lines: tokio::io::BufReader::new(receiver).lines(),
        }
    }

    pub(crate) async fn line(&mut self) -> String {
        within(self.lines.next_line())
            .await
            .unwrap()
            .expect("a pipe held open has no end")
    }
}

/// Waits until a process is gone, by its end itself.
pub(crate) fn wait_gone(number: i32) {
    if let Ok(handle) = pidfd_open(pid(number), PidfdFlags::empty()) {
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).unwrap();
    }
}

/// As [`wait_gone`], and the test fails should it not end.
pub(crate) async fn ended(number: i32) {
    let wait = move || {
        let Ok(handle) = pidfd_open(pid(number), PidfdFlags::empty()) else {
            return true;
        };
        let patience = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&patience)) == Ok(1)
    };
    assert!(
        tokio::task::spawn_blocking(wait).await.unwrap(),
        "{number} ends"
    );
}
