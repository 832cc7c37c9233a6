//! The process runtime: instances as supervised processes, without an engine and without root.
//!
//! Each instance has a directory and a supervisor ([`crate::supervise`]) that outlives this worker.
//! Isolation is not its business: ports are the host's, files are the user's; memory limits are kept
//! where control groups can be made, and elsewhere told as not enforced (DECM-01).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use greenroom_types::inventory::HeldImage;
use greenroom_types::node::RejectionCode;
use greenroom_types::{Millis, Mono, StartId};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{News, Runtime, RuntimeError, Trouble};
use crate::agent::{Found, FoundState, RuntimeEvent};
use crate::helper;
use crate::launch::{Launch, instance_dir};
use crate::lifecycle::{Failure, Outcome, Phase};
use crate::logs::LogStore;
use crate::order::Refusal;
use crate::ports::{BindProbe, PortProbe};
use crate::prefetch::ImageSource;
use crate::procs::{SERVICE_MARK, SUPERVISOR_MARK, boot_id, kill_marked};
use crate::spec::RuntimeKind;
use crate::supervise::{
    Command, READY, SOCKET, Status, Supervised, Word, cgroup, read_status, read_supervised,
    with_short_path, write_supervised,
};

/// A supervisor told to end at once gets this long before it is killed.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(30);
/// Time between two looks for processes that do not die.
const LEFTOVER_PAUSE: Duration = Duration::from_millis(20);

/// A supervisor that does not take what it is told within this has others who hold its instance.
const TELL_MAX: Duration = Duration::from_millis(200);
/// Orders on their way to one supervisor.
const ORDERS: usize = 64;

/// Runs instances under supervisors.
pub(crate) struct ProcessRuntime {
    state_dir: PathBuf,
    logs: LogStore,
    /// Program and first arguments of a supervisor; `--dir DIR` is added.
    supervisor: Vec<OsString>,
    news: News,
    attached: Arc<Mutex<Attached>>,
}

/// The supervisors that this worker talks to.
#[derive(Default)]
struct Attached {
    lines: BTreeMap<StartId, mpsc::Sender<Order>>,
    /// Until when each leased instance may run, for a supervisor that is not talked to yet.
    until: BTreeMap<StartId, Mono>,
}

/// A command on its way to a supervisor.
struct Order {
    command: Command,
    /// Told once it is written.
    written: oneshot::Sender<()>,
}

// === impl ProcessRuntime ===

impl ProcessRuntime {
    pub(crate) fn new(
        state_dir: PathBuf,
        logs: LogStore,
        supervisor: Vec<OsString>,
        news: News,
    ) -> Self {
        Self {
            state_dir,
            logs,
            supervisor,
            news,
            attached: Arc::default(),
        }
    }

    fn dir(&self, start_id: &StartId) -> PathBuf {
        instance_dir(&self.state_dir, start_id)
    }

    /// Makes the directory and the supervisor; returns when it listens.
    async fn make(&self, launch: Launch) -> std::io::Result<()> {
        let start_id = launch.start_id.clone();
        let dir = self.dir(&start_id);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)?;
        let log_dir = self.logs.begin(&launch.key, &start_id)?;
        write_supervised(&dir, &Supervised { launch, log_dir })?;
        let (program, arguments) = self
            .supervisor
            .split_first()
            .ok_or_else(|| std::io::Error::other("no program is set for supervisors"))?;
        let mut command = helper::command(program, arguments, &dir);
        command.env(SUPERVISOR_MARK, start_id.as_str());
        let line = helper::start(command).await?;
        if line.trim_end() != READY {
            let why = fs::read_to_string(dir.join("supervisor.error")).unwrap_or_default();
            let why = format!("the supervisor did not come up: {}", why.trim_end());
            return Err(std::io::Error::other(why));
        }
        self.connect(&start_id).await
    }

    /// Connects to a supervisor and passes on what it says from now on.
    async fn connect(&self, start_id: &StartId) -> std::io::Result<()> {
        let stream = connect(&self.dir(start_id))?;
        let (sender, receiver) = mpsc::channel(ORDERS);
        {
            let mut attached = self.attached();
            // Whatever it is told later comes after what it should know already.
            if let Some(until) = attached.until.get(start_id) {
                let _ = order(&sender, Command::Hold { until: *until });
            }
            attached.lines.insert(start_id.clone(), sender);
        }
        let watch = Watch {
            start_id: start_id.clone(),
            dir: self.dir(start_id),
            news: self.news.clone(),
            told_running: false,
            told_ready: false,
            told_failing: false,
        };
        let attached = self.attached.clone();
        tokio::spawn(async move {
            let start_id = watch.start_id.clone();
            watch.run(stream, receiver).await;
            lock(&attached).lines.remove(&start_id);
        });
        Ok(())
    }

    async fn command(&self, start_id: &StartId, command: Command) -> bool {
        let sender = self.attached().lines.get(start_id).cloned();
        let Some(sender) = sender else { return false };
        let (written, _) = oneshot::channel();
        sender.send(Order { command, written }).await.is_ok()
    }

    fn attached(&self) -> std::sync::MutexGuard<'_, Attached> {
        lock(&self.attached)
    }
}

#[async_trait]
impl Runtime for ProcessRuntime {
    fn kind(&self) -> RuntimeKind {
        RuntimeKind::Process
    }

    async fn engine(&self) -> Option<String> {
        Some("process".to_owned())
    }

    async fn held_images(&self) -> Vec<HeldImage> {
        Vec::new()
    }

    fn images(&self) -> Option<Arc<dyn ImageSource>> {
        None
    }

    async fn find(&self) -> Result<Vec<Found>, RuntimeError> {
        let entries = match fs::read_dir(self.state_dir.join("instances")) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        for entry in entries {
            let dir = entry?.path();
            // Without its file it was never more than a directory.
            let Ok(supervised) = read_supervised(&dir) else {
                fs::remove_dir_all(&dir)?;
                continue;
            };
            let state = read_status(&dir).map_or(FoundState::HalfMade, |status| state_of(&status));
            found.push(Found {
                start_id: supervised.launch.start_id,
                state,
            });
        }
        Ok(found)
    }

    async fn prepare(&self, launch: Launch, _cancel: CancellationToken) -> Result<(), Trouble> {
        self.make(launch)
            .await
            .map_err(|error| Trouble::Broken(error.to_string()))
    }

    async fn start(&self, start_id: &StartId) -> Result<(), Trouble> {
        let broken = |error: std::io::Error| Trouble::Broken(error.to_string());
        let supervised = read_supervised(&self.dir(start_id)).map_err(broken)?;
        // Ports were free when the start was accepted; images and preparation took time (WORK-35).
        for mapped in supervised
            .launch
            .services
            .iter()
            .flat_map(|service| &service.ports)
        {
            let claim = &mapped.claim;
            if !BindProbe.is_free(claim.address, claim.port, claim.protocol) {
                let detail = format!("host port {claim} was taken before the job could bind it");
                return Err(Trouble::Refused(Refusal::new(
                    RejectionCode::HostPort,
                    detail,
                )));
            }
        }
        self.command(start_id, Command::Start).await;
        Ok(())
    }

    async fn attach(&self, start_id: &StartId) {
        if self.connect(start_id).await.is_err() {
            let outcome = outcome_of(&self.dir(start_id));
            self.news.tell(start_id, RuntimeEvent::Ended(outcome)).await;
        }
    }

    async fn hold(&self, start_id: &StartId, until: Mono) {
        let told = {
            let mut attached = self.attached();
            attached.until.insert(start_id.clone(), until);
            let line = attached.lines.get(start_id);
            line.map(|line| order(line, Command::Hold { until }))
        };
        let Some(told) = told else { return };
        let is_told = match told {
            Ok(written) => tokio::time::timeout(TELL_MAX, written)
                .await
                .is_ok_and(|written| written.is_ok()),
            Err(_) => false,
        };
        if !is_told {
            tracing::warn!(%start_id, "a supervisor does not take until when its instance may run");
        }
    }

    async fn stop(&self, start_id: &StartId, grace: Millis) {
        self.command(start_id, Command::Stop { grace }).await;
    }

    async fn remove(&self, start_id: &StartId) -> Result<(), RuntimeError> {
        let dir = self.dir(start_id);
        self.attached().until.remove(start_id);
        if let Ok(status) = read_status(&dir)
            && status.boot_id == boot_id()
            && status.supervisor.is_alive()
        {
            let stop = Command::Stop { grace: Millis(0) };
            if self.command(start_id, stop).await || self.connect(start_id).await.is_ok() {
                self.command(start_id, stop).await;
                status
                    .supervisor
                    .wait_gone(false, SUPERVISOR_PATIENCE)
                    .await;
            }
            status.supervisor.wait_gone(true, SUPERVISOR_PATIENCE).await;
        }
        while kill_marked(SUPERVISOR_MARK, start_id) + kill_marked(SERVICE_MARK, start_id) > 0 {
            tokio::time::sleep(LEFTOVER_PAUSE).await;
        }
        cgroup::remove_listed(&dir);
        self.logs.end(start_id);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// What a supervisor says of one instance, turned into news.
struct Watch {
    start_id: StartId,
    dir: PathBuf,
    news: News,
    told_running: bool,
    told_ready: bool,
    told_failing: bool,
}

// === impl Watch ===

impl Watch {
    async fn run(mut self, stream: UnixStream, mut orders: mpsc::Receiver<Order>) {
        let (reader, mut writer) = stream.into_split();
        let mut lines = BufReader::new(reader).lines();
        loop {
            tokio::select! {
                line = lines.next_line() => {
                    let Ok(Some(line)) = line else { break };
                    match serde_json::from_str(&line) {
                        Ok(Word::Info(kind)) => self.tell(RuntimeEvent::Info(kind)).await,
                        Ok(Word::Status(status)) => {
                            if self.take(*status).await {
                                return;
                            }
                        }
                        Err(_) => {}
                    }
                }
                Some(Order { command, written }) = orders.recv() => {
                    let Ok(mut line) = serde_json::to_vec(&command) else { continue };
                    line.push(b'\n');
                    if writer.write_all(&line).await.is_err() {
                        break;
                    }
                    // Most do not wait for it.
                    let _ = written.send(());
                }
            }
        }
        // The supervisor is gone, with a last word in its file or without.
        self.tell(RuntimeEvent::Ended(outcome_of(&self.dir))).await;
    }

    /// True when the instance has ended.
    async fn take(&mut self, status: Status) -> bool {
        if let Some(reason) = status.failing
            && !std::mem::replace(&mut self.told_failing, true)
        {
            self.tell(RuntimeEvent::Failing(reason)).await;
        }
        if status.phase == Phase::Running && !std::mem::replace(&mut self.told_running, true) {
            self.tell(RuntimeEvent::Running).await;
        }
        if std::mem::replace(&mut self.told_ready, status.ready) != status.ready {
            self.tell(RuntimeEvent::Ready(status.ready)).await;
        }
        let Some(outcome) = status.outcome else {
            return false;
        };
        self.tell(RuntimeEvent::Ended(outcome)).await;
        true
    }

    async fn tell(&self, event: RuntimeEvent) {
        self.news.tell(&self.start_id, event).await;
    }
}

/// Puts a command on its way; what is given says when it is written.
fn order(
    line: &mpsc::Sender<Order>,
    command: Command,
) -> Result<oneshot::Receiver<()>, mpsc::error::TrySendError<Order>> {
    let (written, is_written) = oneshot::channel();
    line.try_send(Order { command, written })?;
    Ok(is_written)
}

fn connect(dir: &std::path::Path) -> std::io::Result<UnixStream> {
    // A local connection is made at once or not at all.
    let stream = with_short_path(dir, SOCKET, std::os::unix::net::UnixStream::connect)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

fn state_of(status: &Status) -> FoundState {
    if let Some(outcome) = &status.outcome {
        return FoundState::Ended(outcome.clone());
    }
    let alive = status.boot_id == boot_id() && status.supervisor.is_alive();
    match status.phase {
        _ if !alive => FoundState::Ended(killed_supervisor()),
        Phase::Created => FoundState::Prepared,
        Phase::Starting => FoundState::Starting,
        Phase::Running | Phase::Stopping | Phase::Ended => FoundState::Running,
    }
}

/// How an instance ended whose supervisor is gone.
fn outcome_of(dir: &std::path::Path) -> Outcome {
    let status = read_status(dir).ok();
    status
        .and_then(|status| status.outcome)
        .unwrap_or_else(killed_supervisor)
}

fn killed_supervisor() -> Outcome {
    let why = "the supervisor of the instance was killed".to_owned();
    Outcome::Failed(Failure {
        service: "supervisor".to_owned(),
        why,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
