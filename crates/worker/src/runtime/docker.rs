//! The Docker runtime: instances as containers on a private network.
//!
//! What is ours is known by labels alone (WORK-13); nothing else is ever touched. The life of an
//! instance's services is played by a task beside the engine ([`play`]); it ends with the worker and
//! is taken up again from the labels and from what the containers say. While the engine does not
//! answer, nothing is reported of any instance (WORK-63).

mod create;
mod image;
mod keep;
mod labels;
mod play;
mod pulls;
mod reach;
mod removal;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bollard::errors::Error as Engine;
use bollard::models::{ContainerStateStatusEnum, NetworkCreateRequest};
use bollard::query_parameters::{
    InspectContainerOptions, ListContainersOptions, ListImagesOptions, ListNetworksOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use greenroom_types::inventory::HeldImage;
use greenroom_types::job::{JobInfoKind, Stage};
use greenroom_types::node::RejectionCode;
use greenroom_types::{Millis, StartId};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::create::{bridge, container, network_name, volumes};
use self::image::make_local;
use self::labels::{Marks, of_instance, rule_of, services_of, start_of};
use self::play::{Command, Player};
use self::pulls::Pulls;
pub(crate) use self::reach::Unreachable;
use super::guard::Guard;
use super::{News, Runtime, RuntimeError, Trouble};
use crate::agent::{Found, FoundState, RuntimeEvent};
use crate::capacity::check_disk;
use crate::inventory::disk;
use crate::launch::{Identity, Launch, LogLimits};
use crate::lifecycle::ServiceRule;
use crate::logs::LogStore;
use crate::order::Refusal;
use crate::prefetch::ImageSource;
use crate::spec::RuntimeKind;

const SOCKET_DEFAULT: &str = "unix:///var/run/docker.sock";
/// The engine answers a request within this many seconds, or counts as away.
const ANSWER_MAX_S: u64 = 120;
/// Time between two questions to an engine that does not answer.
const ENGINE_AGAIN: Duration = Duration::from_secs(1);
/// Asked whether it is there, it answers within this.
const PING_MAX: Duration = Duration::from_secs(5);

/// Runs instances on a Docker Engine.
pub(crate) struct DockerRuntime {
    docker: Docker,
    pulls: Arc<Pulls>,
    /// Rung when images may have come.
    arrived: Arc<Notify>,
    state_dir: PathBuf,
    logs: LogStore,
    limits: LogLimits,
    news: News,
    identity: watch::Receiver<Option<Arc<Identity>>>,
    guard: Option<Guard>,
    /// Network trouble of a pull is met with new tries for so long (WORK-34).
    pull_tries: Duration,
    players: Arc<Mutex<BTreeMap<StartId, mpsc::Sender<Command>>>>,
    /// The engine is on this machine.
    is_local: bool,
    begun: Instant,
}

/// One container of an instance, as found.
struct Part {
    id: String,
    rule: ServiceRule,
    status: Option<ContainerStateStatusEnum>,
    /// How many services the instance has.
    services: usize,
}

// === impl DockerRuntime ===

impl DockerRuntime {
    /// Connects; fails where no engine answers at the host.
    pub(crate) async fn connect(
        host: Option<String>,
        state_dir: PathBuf,
        logs: LogStore,
        limits: LogLimits,
        news: News,
        identity: watch::Receiver<Option<Arc<Identity>>>,
        arrived: Arc<Notify>,
    ) -> Result<Self, Unreachable> {
        let host = host
            .or_else(|| {
                std::env::var("DOCKER_HOST")
                    .ok()
                    .filter(|host| !host.is_empty())
            })
            .unwrap_or_else(|| SOCKET_DEFAULT.to_owned());
        let failed = |error: Engine| Unreachable::of(&host, &error);
        let docker = match host.strip_prefix("unix://") {
            Some(path) => Docker::connect_with_unix(path, ANSWER_MAX_S, API_DEFAULT_VERSION),
            None => Docker::connect_with_http(&host, ANSWER_MAX_S, API_DEFAULT_VERSION),
        };
        let docker = docker
            .map_err(failed)?
            .negotiate_version()
            .await
            .map_err(failed)?;
        let pulls = Arc::new(Pulls::new(docker.clone(), state_dir.clone()));
        Ok(Self {
            docker,
            pulls,
            arrived,
            state_dir,
            logs,
            limits,
            news,
            identity,
            guard: None,
            pull_tries: Duration::ZERO,
            players: Arc::default(),
            is_local: host.starts_with("unix://"),
            begun: Instant::now(),
        })
    }

    /// Makes no container that could reach the cloud's metadata service (WORK-51).
    pub(crate) fn guarded(mut self, guard: Option<Guard>) -> Self {
        self.guard = guard;
        self
    }

    /// How long an image is tried for.
    pub(crate) const fn trying_for(mut self, pull_tries: Duration) -> Self {
        self.pull_tries = pull_tries;
        self
    }

    fn marks(&self) -> Result<Marks, RuntimeError> {
        let marks = self.identity.borrow().as_deref().map(Marks::of);
        marks.ok_or_else(|| RuntimeError::Failed("the worker has not registered yet".to_owned()))
    }

    /// The containers of one instance, or of all of ours.
    async fn parts(
        &self,
        start_id: Option<&StartId>,
    ) -> Result<BTreeMap<StartId, Vec<Part>>, RuntimeError> {
        let options = ListContainersOptions {
            all: true,
            filters: Some(self.marks()?.filter(start_id)),
            ..ListContainersOptions::default()
        };
        let mut parts: BTreeMap<StartId, Vec<Part>> = BTreeMap::new();
        for summary in self
            .docker
            .list_containers(Some(options))
            .await
            .map_err(error)?
        {
            let labels = summary.labels.unwrap_or_default();
            let (Some(id), Some(start_id), Some(rule)) =
                (summary.id, start_of(&labels), rule_of(&labels))
            else {
                continue;
            };
            let inspect = self
                .docker
                .inspect_container(&id, None::<InspectContainerOptions>);
            let state = match inspect.await {
                // Removed since it was listed.
                Err(Engine::DockerResponseServerError {
                    status_code: 404, ..
                }) => continue,
                inspected => inspected.map_err(error)?.state,
            };
            let status = state.and_then(|state| state.status);
            let part = Part {
                id,
                rule,
                status,
                services: services_of(&labels),
            };
            parts.entry(start_id).or_default().push(part);
        }
        Ok(parts)
    }

    fn play(&self, launch_rules: Vec<(ServiceRule, String)>, start_id: &StartId, resumed: bool) {
        let (sender, receiver) = mpsc::channel(16);
        lock(&self.players).insert(start_id.clone(), sender);
        let log_dir = self.logs.dir(start_id);
        let player = Player::new(
            self.docker.clone(),
            start_id.clone(),
            launch_rules,
            log_dir,
            self.limits,
            self.news.clone(),
            resumed,
        );
        let (players, start_id) = (self.players.clone(), start_id.clone());
        tokio::spawn(async move {
            player.run(receiver).await;
            lock(&players).remove(&start_id);
        });
    }

    async fn command(&self, start_id: &StartId, command: Command) {
        let sender = lock(&self.players).get(start_id).cloned();
        if let Some(sender) = sender {
            let _ = sender.send(command).await;
        }
    }

    async fn make(&self, mut launch: Launch, cancel: &CancellationToken) -> Result<(), Trouble> {
        let marks = self.marks().map_err(broken)?;
        self.pulls.settled().await;
        self.logs
            .begin(&launch.key, &launch.start_id)
            .map_err(broken)?;
        for service in &mut launch.services {
            let stage = JobInfoKind::Stage {
                stage: Stage::Build,
                text: service.image.clone(),
            };
            let begun = RuntimeEvent::Info(stage);
            self.news.tell(&launch.start_id, begun).await;
            let teller = (&self.news, &launch.start_id);
            let (docker, pulls) = (&self.docker, &*self.pulls);
            let (image, tries) = (&service.image, self.pull_tries);
            let local = make_local(docker, pulls, image, teller, tries, cancel).await?;
            let stage = JobInfoKind::Stage {
                stage: Stage::Build,
                text: format!("{image} is {}", local.digest),
            };
            self.news
                .tell(&launch.start_id, RuntimeEvent::Info(stage))
                .await;
            service.rule.has_health |= local.has_check;
            service.pinned = Some(local.into());
        }
        self.arrived.notify_one();
        // Images may have taken what was free when the start was accepted (WORK-30).
        if let Ok(disk) = disk(&self.state_dir) {
            check_disk(&disk, false).map_err(Trouble::Refused)?;
        }
        if cancel.is_cancelled() {
            return Err(Trouble::Cancelled);
        }
        if let Some(guard) = &self.guard {
            let refused = |why| Trouble::Refused(Refusal::new(RejectionCode::Runtime, why));
            guard.ensure().await.map_err(refused)?;
        }
        let own = of_instance(&marks, &launch);
        let mut network_id = String::new();
        if launch.services.iter().any(|service| !service.host_network) {
            let network = NetworkCreateRequest {
                name: network_name(&launch),
                driver: Some("bridge".to_owned()),
                options: self.guard.map(|_| bridge(&launch)),
                labels: Some(own.clone()),
                ..NetworkCreateRequest::default()
            };
            network_id = self
                .docker
                .create_network(network)
                .await
                .map_err(broken)?
                .id;
        }
        for volume in volumes(&marks, &launch)? {
            self.docker.create_volume(volume).await.map_err(broken)?;
        }
        let mut made = Vec::new();
        for service in &launch.services {
            let (options, body) = container(&marks, &launch, service, &network_id)?;
            let created = self.docker.create_container(Some(options), body).await;
            made.push((service.rule.clone(), created.map_err(refused_or_broken)?.id));
        }
        let ids = made.iter().map(|(_, id)| id.clone()).collect();
        let made_news = RuntimeEvent::Made(ids);
        self.news.tell(&launch.start_id, made_news).await;
        self.play(made, &launch.start_id, false);
        Ok(())
    }
}

#[async_trait]
impl Runtime for DockerRuntime {
    fn kind(&self) -> RuntimeKind {
        RuntimeKind::Docker
    }

    async fn engine(&self) -> Option<String> {
        let version = tokio::time::timeout(PING_MAX, self.docker.version())
            .await
            .ok()?
            .ok()?;
        Some(format!("docker {}", version.version.unwrap_or_default()))
    }

    async fn held_images(&self) -> Vec<HeldImage> {
        let listed = self.docker.list_images(None::<ListImagesOptions>).await;
        let mut held: Vec<HeldImage> = listed
            .unwrap_or_default()
            .into_iter()
            .flat_map(|image| {
                let digest = image
                    .repo_digests
                    .first()
                    .and_then(|text| text.split_once('@'));
                let digest =
                    digest.map_or_else(|| image.id.clone(), |(_, digest)| digest.to_owned());
                // One that was pulled by its digest has no tag.
                let named = |names: Vec<String>| -> Vec<String> {
                    let all = names.into_iter();
                    all.filter(|name| !name.contains("<none>")).collect()
                };
                let tags = named(image.repo_tags);
                let names = if tags.is_empty() {
                    named(image.repo_digests)
                } else {
                    tags
                };
                names.into_iter().map(move |reference| HeldImage {
                    reference,
                    digest: digest.clone(),
                })
            })
            .collect();
        held.sort();
        held
    }

    fn images(&self) -> Option<Arc<dyn ImageSource>> {
        Some(self.pulls.clone())
    }

    async fn find(&self) -> Result<Vec<Found>, RuntimeError> {
        // Before its first registration a worker has made nothing.
        let Ok(marks) = self.marks() else {
            return Ok(Vec::new());
        };
        let parts = self.parts(None).await?;
        let options = ListNetworksOptions {
            filters: Some(marks.filter(None)),
        };
        let networks = self
            .docker
            .list_networks(Some(options))
            .await
            .map_err(error)?;
        let mut found: BTreeMap<StartId, FoundState> = networks
            .iter()
            .filter_map(|network| start_of(network.labels.as_ref()?))
            .map(|start_id| (start_id, FoundState::HalfMade))
            .collect();
        for (start_id, parts) in parts {
            found.insert(start_id, state_of(&parts));
        }
        Ok(found
            .into_iter()
            .map(|(start_id, state)| Found { start_id, state })
            .collect())
    }

    async fn prepare(&self, launch: Launch, cancel: CancellationToken) -> Result<(), Trouble> {
        self.make(launch, &cancel).await
    }

    async fn start(&self, start_id: &StartId) -> Result<(), Trouble> {
        self.command(start_id, Command::Start).await;
        Ok(())
    }

    async fn attach(&self, start_id: &StartId) {
        let mut found = loop {
            match self.parts(Some(start_id)).await {
                Ok(found) => break found,
                // An engine that is away ends nothing (WORK-63).
                Err(RuntimeError::Away(_)) => tokio::time::sleep(ENGINE_AGAIN).await,
                Err(error) => {
                    let broken = RuntimeEvent::Broken(error.to_string());
                    return self.news.tell(start_id, broken).await;
                }
            }
        };
        let parts = found.remove(start_id).unwrap_or_default();
        let resumed = state_of(&parts) == FoundState::Running;
        let ids = parts.iter().map(|part| part.id.clone()).collect();
        self.news.tell(start_id, RuntimeEvent::Made(ids)).await;
        let made = parts.into_iter().map(|part| (part.rule, part.id)).collect();
        self.play(made, start_id, resumed);
    }

    async fn stop(&self, start_id: &StartId, grace: Millis) {
        self.command(start_id, Command::Stop(grace)).await;
    }

    fn unguardable(&self) -> Option<String> {
        if !self.is_local {
            return Some("the Docker Engine is not reached by a socket of this machine".to_owned());
        }
        let is_root = rustix::process::geteuid().is_root();
        (!is_root).then(|| "only a worker that runs as root can guard containers".to_owned())
    }

    async fn remove(&self, start_id: &StartId) -> Result<(), RuntimeError> {
        let filter = self.marks()?.filter(Some(start_id));
        // Whoever still plays it must not take the removal for an end to be judged.
        lock(&self.players).remove(start_id);
        removal::remove(&self.docker, &filter).await?;
        if self.begun.elapsed() < removal::EARLY {
            let docker = self.docker.clone();
            tokio::spawn(removal::remove_again(docker, filter, start_id.clone()));
        }
        self.logs.end(start_id);
        Ok(())
    }
}

fn state_of(parts: &[Part]) -> FoundState {
    let complete = parts
        .first()
        .is_some_and(|part| parts.len() == part.services);
    let created = |part: &Part| part.status == Some(ContainerStateStatusEnum::CREATED);
    match (complete, parts.iter().filter(|part| created(part)).count()) {
        (true, 0) => FoundState::Running,
        (true, n) if n == parts.len() => FoundState::Prepared,
        _ => FoundState::HalfMade,
    }
}

/// An engine that does not answer, or one that says no.
fn error(error: Engine) -> RuntimeError {
    match error {
        Engine::DockerResponseServerError { message, .. } => RuntimeError::Failed(message),
        other => RuntimeError::Away(other.to_string()),
    }
}

fn broken(error: impl std::fmt::Display) -> Trouble {
    Trouble::Broken(error.to_string())
}

/// An engine's no to a creation: what the job asks for cannot be, or something went wrong.
fn refused_or_broken(error: Engine) -> Trouble {
    match error {
        Engine::DockerResponseServerError {
            status_code: 400,
            message,
        } => Trouble::Refused(Refusal::new(RejectionCode::InvalidSpec, message)),
        other => broken(other),
    }
}

/// Removing what is gone already is no failure.
fn gone(result: Result<(), Engine>) -> Result<(), RuntimeError> {
    match result {
        Err(Engine::DockerResponseServerError {
            status_code: 404, ..
        })
        | Ok(()) => Ok(()),
        Err(other) => Err(error(other)),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
