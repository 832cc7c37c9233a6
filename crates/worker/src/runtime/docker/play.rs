//! The life of one instance, played with containers.
//!
//! Containers are watched by waiting for their end at the engine. An engine that goes away ends
//! nothing: the question is asked again until it answers (WORK-63).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error as Engine;
use bollard::models::{ContainerStateStatusEnum, HealthStatusEnum};
use bollard::query_parameters::{
    InspectContainerOptions, KillContainerOptions, LogsOptions, StartContainerOptions,
    WaitContainerOptions,
};
use futures::StreamExt;
use greenroom_types::job::JobInfoKind;
use greenroom_types::node::RejectionCode;
use greenroom_types::{Millis, Mono, StartId};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::agent::RuntimeEvent;
use crate::deadline;
use crate::launch::LogLimits;
use crate::lifecycle::{Input, Lifecycle, ServiceRule, Step};
use crate::logs::line::{Framer, Output};
use crate::logs::{LogFile, last_lines, log_path, with_last_lines};
use crate::order::Refusal;
use crate::restart::Exit;
use crate::runtime::News;

/// Time between two questions to an engine that does not answer.
const ENGINE_AGAIN: Duration = Duration::from_secs(1);
/// Time between two looks at a health that is awaited.
const HEALTH_EVERY: Duration = Duration::from_millis(500);
/// The last lines of an ended container are waited for this long.
const LAST_LINES_MAX: Duration = Duration::from_secs(2);
/// Exit code that stands for a container that somebody else removed.
const REMOVED: Exit = Exit::Signal(9);

/// What a player is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    Start,
    Stop(Millis),
}

/// What a player is told by the tasks that watch its containers.
enum Seen {
    Exited(String, Exit),
    Healthy(String),
}

pub(super) struct Player {
    docker: Docker,
    start_id: StartId,
    machine: Lifecycle,
    /// Container of each service, and whether its health is awaited.
    containers: BTreeMap<String, (String, bool)>,
    log_dir: PathBuf,
    limits: LogLimits,
    news: News,
    began: Instant,
    seen: mpsc::Sender<Seen>,
    sights: mpsc::Receiver<Seen>,
    logs: BTreeMap<String, JoinHandle<()>>,
    resumed: bool,
    over: bool,
}

// === impl Player ===

impl Player {
    pub(super) fn new(
        docker: Docker,
        start_id: StartId,
        made: Vec<(ServiceRule, String)>,
        log_dir: PathBuf,
        limits: LogLimits,
        news: News,
        resumed: bool,
    ) -> Self {
        let rules = made.iter().map(|(rule, _)| rule.clone());
        let machine = if resumed {
            Lifecycle::resume(rules)
        } else {
            Lifecycle::new(rules)
        };
        let (seen, sights) = mpsc::channel(64);
        Self {
            docker,
            start_id,
            machine,
            containers: made
                .into_iter()
                .map(|(rule, id)| (rule.name, (id, rule.has_health)))
                .collect(),
            log_dir,
            limits,
            news,
            began: Instant::now(),
            seen,
            sights,
            logs: BTreeMap::new(),
            resumed,
            over: false,
        }
    }

    /// Plays until the instance has ended, or nobody has a command for it any more.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        if self.resumed {
            let names: Vec<String> = self.containers.keys().cloned().collect();
            for name in names {
                self.watch(&name);
            }
            self.news.tell(&self.start_id, RuntimeEvent::Running).await;
            self.feed(Input::Tick).await;
        }
        while !self.over {
            let deadline = self.machine.next_deadline();
            let deadline = deadline.map(|at| self.began + Duration::from_millis(at.0));
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Start) => self.feed(Input::Start).await,
                    Some(Command::Stop(grace)) => self.feed(Input::Stop(grace)).await,
                    None => return,
                },
                Some(seen) = self.sights.recv() => match seen {
                    Seen::Exited(name, exit) => {
                        if let Some(log) = self.logs.remove(&name) {
                            let _ = tokio::time::timeout(LAST_LINES_MAX, log).await;
                        }
                        self.feed(Input::Exited(&name, exit)).await;
                    }
                    Seen::Healthy(name) => self.feed(Input::Healthy(&name)).await,
                },
                () = deadline::reached(deadline) => self.feed(Input::Tick).await,
            }
        }
    }

    async fn feed(&mut self, input: Input<'_>) {
        let mut steps = Vec::new();
        self.machine.handle(self.now(), input, &mut steps);
        let mut at = 0;
        while at < steps.len() && !self.over {
            let step = steps[at].clone();
            at += 1;
            self.carry_out(step, &mut steps).await;
        }
    }

    async fn carry_out(&mut self, step: Step, steps: &mut Vec<Step>) {
        let info = |kind| RuntimeEvent::Info(kind);
        let event = match step {
            Step::Launch(name) => return self.launch(&name, steps).await,
            Step::Terminate(name) => {
                let signal = self.stop_signal(&name).await;
                return self.kill(&name, signal).await;
            }
            Step::Kill(name) => return self.kill(&name, "SIGKILL".to_owned()).await,
            Step::ServiceStarted(name) => info(JobInfoKind::ServiceStarted(name)),
            Step::ServiceRestarting(service, exit) => {
                let text = format!("ended with {exit}");
                let event = JobInfoKind::ContainerEvent {
                    service: service.clone(),
                    text,
                };
                self.news.tell(&self.start_id, info(event)).await;
                info(JobInfoKind::ServiceRestarting(service))
            }
            Step::Stuck(service) => {
                let text = "stuck: the engine does not end it when told to kill".to_owned();
                info(JobInfoKind::ContainerEvent { service, text })
            }
            Step::Running => RuntimeEvent::Running,
            Step::Ready(ready) => RuntimeEvent::Ready(ready),
            Step::Failing(failure) => {
                let why = with_last_lines(&failure.why, &self.log_dir, &failure.service);
                RuntimeEvent::Failing(format!("service {}: {why}", failure.service))
            }
            Step::Ended(outcome) => {
                self.over = true;
                RuntimeEvent::Ended(outcome)
            }
        };
        self.news.tell(&self.start_id, event).await;
    }

    async fn launch(&mut self, name: &str, steps: &mut Vec<Step>) {
        let Some((id, _)) = self.containers.get(name).cloned() else {
            return;
        };
        let started = self
            .docker
            .start_container(&id, None::<StartContainerOptions>)
            .await;
        let now = self.now();
        match started {
            Ok(()) => {
                self.watch(name);
                self.machine.handle(now, Input::Launched(name), steps);
            }
            Err(error) if is_port_taken(&error) => {
                // Everything is removed and the start rejected (WORK-35).
                let detail = format!("service {name}: {error}");
                let refusal = Refusal::new(RejectionCode::HostPort, detail);
                self.over = true;
                self.news
                    .tell(&self.start_id, RuntimeEvent::Refused(refusal))
                    .await;
            }
            Err(error) => {
                let why = format!("its container cannot be started: {error}");
                self.machine
                    .handle(now, Input::NotLaunched(name, why), steps);
            }
        }
    }

    /// Watches a container that runs: its end, its health, its output.
    fn watch(&mut self, name: &str) {
        let Some((id, has_health)) = self.containers.get(name).cloned() else {
            return;
        };
        let (docker, seen, service) = (self.docker.clone(), self.seen.clone(), name.to_owned());
        let (own, sender) = (id.clone(), seen.clone());
        tokio::spawn(async move {
            let exit = end_of(&docker, &own).await;
            let _ = sender.send(Seen::Exited(service, exit)).await;
        });
        if has_health {
            let (docker, id, service) = (self.docker.clone(), id.clone(), name.to_owned());
            tokio::spawn(async move {
                if becomes_healthy(&docker, &id).await {
                    let _ = seen.send(Seen::Healthy(service)).await;
                }
            });
        }
        let (docker, dir, limits) = (self.docker.clone(), self.log_dir.clone(), self.limits);
        let service = name.to_owned();
        let log = tokio::spawn(async move { copy_log(&docker, &id, &dir, &service, limits).await });
        self.logs.insert(name.to_owned(), log);
    }

    async fn stop_signal(&self, name: &str) -> String {
        let polite = "SIGTERM".to_owned();
        let Some((id, _)) = self.containers.get(name) else {
            return polite;
        };
        let inspected = self
            .docker
            .inspect_container(id, None::<InspectContainerOptions>)
            .await;
        let config = inspected.ok().and_then(|container| container.config);
        config
            .and_then(|config| config.stop_signal)
            .filter(|s| !s.is_empty())
            .unwrap_or(polite)
    }

    async fn kill(&self, name: &str, signal: String) {
        let Some((id, _)) = self.containers.get(name) else {
            return;
        };
        // It may have ended a moment ago; its end is then on its way here. An engine that does not
        // answer is asked again when the grace or the patience is over.
        if let Err(error) = self
            .docker
            .kill_container(id, Some(KillContainerOptions { signal }))
            .await
        {
            tracing::debug!(start_id = %self.start_id, service = name, %error, "a signal did not arrive");
        }
    }

    fn now(&self) -> Mono {
        Mono(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Waits for the end of a container, however long the engine is away meanwhile.
async fn end_of(docker: &Docker, id: &str) -> Exit {
    loop {
        match docker
            .inspect_container(id, None::<InspectContainerOptions>)
            .await
        {
            Ok(container) => {
                let state = container.state.unwrap_or_default();
                let live = matches!(
                    state.status,
                    Some(
                        ContainerStateStatusEnum::RUNNING
                            | ContainerStateStatusEnum::PAUSED
                            | ContainerStateStatusEnum::RESTARTING
                    )
                );
                if !live {
                    let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
                    return match state.oom_killed {
                        Some(true) => Exit::OutOfMemory,
                        _ => Exit::Code(code.unwrap_or(-1)),
                    };
                }
                let condition = "not-running".to_owned();
                let options = WaitContainerOptions { condition };
                let mut waiting = std::pin::pin!(docker.wait_container(id, Some(options)));
                match waiting.next().await {
                    Some(Ok(_) | Err(Engine::DockerContainerWaitError { .. })) => {}
                    Some(Err(_)) | None => tokio::time::sleep(ENGINE_AGAIN).await,
                }
            }
            Err(Engine::DockerResponseServerError {
                status_code: 404, ..
            }) => return REMOVED,
            Err(_) => tokio::time::sleep(ENGINE_AGAIN).await,
        }
    }
}

/// True once the container is healthy, false when it has ended.
async fn becomes_healthy(docker: &Docker, id: &str) -> bool {
    loop {
        match docker
            .inspect_container(id, None::<InspectContainerOptions>)
            .await
        {
            Ok(container) => {
                let state = container.state.unwrap_or_default();
                if state.status != Some(ContainerStateStatusEnum::RUNNING) {
                    return false;
                }
                if state.health.and_then(|health| health.status) == Some(HealthStatusEnum::HEALTHY)
                {
                    return true;
                }
            }
            Err(Engine::DockerResponseServerError {
                status_code: 404, ..
            }) => return false,
            Err(_) => {}
        }
        tokio::time::sleep(HEALTH_EVERY).await;
    }
}

/// Copies a container's output to the service's log until the container has ended. An engine that
/// goes away, or breaks off, is asked for the rest when it answers again.
async fn copy_log(docker: &Docker, id: &str, dir: &Path, service: &str, limits: LogLimits) {
    let mut is_last = false;
    loop {
        let whole = follow_log(docker, id, dir, service, limits).await;
        match is_live(docker, id).await {
            Ok(false) if whole || is_last => return,
            // Broken off with its end: what it said last is asked for once more.
            Ok(false) => is_last = true,
            Err(Engine::DockerResponseServerError {
                status_code: 404, ..
            }) => return,
            Ok(true) | Err(_) => tokio::time::sleep(ENGINE_AGAIN).await,
        }
    }
}

/// Whether a container runs.
async fn is_live(docker: &Docker, id: &str) -> Result<bool, Engine> {
    let inspected = docker
        .inspect_container(id, None::<InspectContainerOptions>)
        .await?;
    let status = inspected.state.and_then(|state| state.status);
    Ok(matches!(
        status,
        Some(
            ContainerStateStatusEnum::RUNNING
                | ContainerStateStatusEnum::PAUSED
                | ContainerStateStatusEnum::RESTARTING
        )
    ))
}

/// Copies output as long as the engine tells of it; false when it broke off.
///
/// The engine begins at a whole second and tells the time of each line, so what the log has already
/// is passed over, each stream by itself.
async fn follow_log(
    docker: &Docker,
    id: &str,
    dir: &Path,
    service: &str,
    limits: LogLimits,
) -> bool {
    let written = Written::in_log(&log_path(dir, service));
    let Ok(mut log) = LogFile::open(dir, service, limits) else {
        return false;
    };
    let options = LogsOptions {
        follow: true,
        stdout: true,
        stderr: true,
        timestamps: true,
        since: written.since(),
        tail: "all".to_owned(),
        ..LogsOptions::default()
    };
    let mut framers = [Output::Stdout, Output::Stderr].map(|output| (output, Framer::new(output)));
    let mut said = std::pin::pin!(docker.logs(id, Some(options)));
    let mut lines = Vec::new();
    let mut whole = true;
    while let Some(chunk) = said.next().await {
        let Ok(chunk) = chunk else {
            whole = false;
            break;
        };
        let wanted = match chunk {
            LogOutput::StdErr { .. } => Output::Stderr,
            _ => Output::Stdout,
        };
        let bytes = chunk.into_bytes();
        let (at, text) = timed(&bytes);
        if written.has(wanted, at) {
            continue;
        }
        for (_, framer) in framers.iter_mut().filter(|(output, _)| *output == wanted) {
            framer.push(at, text, &mut lines);
        }
        // A log that cannot be written must not stop the service.
        let _ = log.write(&lines);
        lines.clear();
    }
    for (_, framer) in &mut framers {
        framer.finish(&mut lines);
    }
    let _ = log.write(&lines);
    whole
}

/// What a log holds already: the time of the last line of each stream.
struct Written {
    last: BTreeMap<Output, Timestamp>,
    /// A stream that is not among the last lines said nothing after this.
    looked_from: Option<Timestamp>,
}

// === impl Written ===

impl Written {
    fn in_log(path: &Path) -> Self {
        // A full file was followed by one that is empty until something is said.
        let newest = last_lines(path).unwrap_or_default();
        let mut lines = last_lines(&path.with_extension("log.1")).unwrap_or_default();
        lines.extend(newest);
        let mut written = Self {
            last: BTreeMap::new(),
            looked_from: lines.iter().find_map(|line| line.at),
        };
        for line in lines {
            if let (Some(output), Some(at)) = (line.output, line.at) {
                let last = written.last.entry(output).or_insert(at);
                *last = at.max(*last);
            }
        }
        written
    }

    /// The second from which the engine is asked.
    fn since(&self) -> i32 {
        let from = [Output::Stdout, Output::Stderr]
            .into_iter()
            .filter_map(|output| self.until(output))
            .min();
        from.and_then(|at| i32::try_from(at.as_second()).ok())
            .unwrap_or_default()
    }

    fn has(&self, output: Output, at: Timestamp) -> bool {
        self.until(output).is_some_and(|until| at <= until)
    }

    fn until(&self, output: Output) -> Option<Timestamp> {
        self.last.get(&output).copied().or(self.looked_from)
    }
}

/// A line of the engine's: its time, a space, its text.
fn timed(bytes: &[u8]) -> (Timestamp, &[u8]) {
    let at = bytes.iter().position(|byte| *byte == b' ');
    let read = at.and_then(|at| {
        let time = std::str::from_utf8(&bytes[..at]).ok()?.parse().ok()?;
        Some((time, &bytes[at + 1..]))
    });
    read.unwrap_or_else(|| (Timestamp::now(), bytes))
}

fn is_port_taken(error: &Engine) -> bool {
    let text = error.to_string();
    ["port is already allocated", "address already in use"]
        .iter()
        .any(|words| text.contains(words))
}
