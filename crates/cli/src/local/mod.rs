//! A whole installation on one machine: Manager and control plane in this process, workers as
//! children. What `greenroom up` runs and what demonstrations are staged on.

mod claim;
mod processes;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use greenroom_auto::{AutoManager, SeatSettings, Supervisor, supervise, supervise_seated};
use greenroom_manager::{Running, StatusLog};
use greenroom_sdk::types::node::{NodeState, RunningJob};
use greenroom_sdk::types::{NodeId, PoolName};
use greenroom_sdk::{Access, Client, EventSettings, StreamItem};
use greenroom_store::FatalError;

pub(crate) use worker::{LocalWorker, WORKERS_MAX};

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::claim::Claim;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::say;
use crate::verbs::manager;
use crate::verbs::worker::Runtime;

/// Pool of the workers that are started here.
pub(crate) const POOL: &str = "local";

/// Kind of a tier of servers of one's own.
const LOCAL_SERVERS: &str = "local-servers";

/// Jobs have 10 s between signal and kill; this is a little more.
const STOP_LIMIT: Duration = Duration::from_secs(12);

/// Workers and the control plane are in service within this, or something is wrong.
const SERVICE_LIMIT: Duration = Duration::from_secs(60);

/// Pause before a worker that ended by itself is started again, so that one that ends at once does
/// not keep the machine busy.
const RESTART_PAUSE: Duration = Duration::from_millis(500);

/// Pause before a worker that a full disk kept from starting is tried again.
const FULL_PAUSE: Duration = Duration::from_secs(5);

/// What goes on is told again after this.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Folder of everything.
    pub(crate) data: PathBuf,
    /// Where the Manager is served.
    pub(crate) listen: SocketAddr,
    /// Where the control plane's HTTP API is served.
    pub(crate) control: SocketAddr,
    /// Number of workers.
    pub(crate) workers: u32,
    /// What runs jobs.
    pub(crate) runtime: Runtime,
    /// Leave jobs running at the end.
    pub(crate) keep: bool,
    /// Settings of the control plane; none for one pool with the workers.
    pub(crate) settings: Option<serde_json::Value>,
}

// === impl Plan ===

impl Plan {
    /// Pools of the settings in which servers of one's own serve.
    fn pools(&self) -> Vec<PoolName> {
        let default = default_settings();
        let settings = self.settings.as_ref().unwrap_or(&default);
        let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
        list(&settings["placementPools"])
            .into_iter()
            .filter(|pool| {
                list(&pool["tiers"])
                    .iter()
                    .any(|it| it["kind"] == LOCAL_SERVERS)
            })
            .filter_map(|pool| Some(PoolName::new(pool["name"].as_str()?)))
            .collect()
    }

    /// The pool in which new workers serve: `local` where there is one, else the first.
    pub(crate) fn pool(&self) -> Result<PoolName, Failure> {
        let mut pools = self.pools();
        let at = pools.iter().position(|pool| pool.as_str() == POOL);
        if pools.is_empty() {
            let text = "the settings have no pool with a tier of kind local-servers, so nothing could run on \
                        the workers that are started here";
            return Err(Failure::bad_input(text).hint(
                "add such a tier, or run `greenroom manager` and `greenroom control -c FILE`",
            ));
        }
        Ok(pools.swap_remove(at.unwrap_or_default()))
    }
}

/// A running installation.
pub(crate) struct System {
    pub(crate) client: Client,
    pub(crate) workers: Vec<LocalWorker>,
    plan: Plan,
    url: String,
    manager: Running,
    /// None while it is being started or ended.
    control: Option<Control>,
    /// Held to the end: as long as this runs, no second one starts on the folder.
    _claim: Claim,
}

/// The control plane with its HTTP API.
pub(crate) struct Control {
    supervisor: Supervisor,
    address: SocketAddr,
    close: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), greenroom_console::ServeError>>,
}

// === impl Control ===

impl Control {
    /// Takes the address, so that nothing is started when it is not to be had. Whoever connects
    /// before [`Control::start`] waits.
    /// `flag` is what changes the address.
    pub(crate) async fn bind(listen: SocketAddr, flag: &str) -> Result<TcpListener, Failure> {
        if !listen.ip().is_loopback() {
            let text = format!(
                "{listen} is no loopback address, and the control plane's API has no credentials: \
                 listen on 127.0.0.1 or [::1]"
            );
            return Err(Failure::bad_input(text));
        }
        TcpListener::bind(listen)
            .await
            .map_err(|error| cannot_serve("control plane", listen, &error, flag))
    }

    /// Runs the control plane against the Manager that its settings name, with a seat as one of several
    /// (ACTIVE).
    pub(crate) fn start(
        settings: serde_json::Value,
        access: Access,
        listener: TcpListener,
        seat: Option<SeatSettings>,
    ) -> Result<Self, Failure> {
        let address = address_of(&listener)?;
        let mut settings = greenroom_auto::Settings::new(settings);
        settings.access = access;
        let supervisor = match seat {
            Some(seat) => supervise_seated(settings, seat).map_err(|error| error.to_string()),
            None => supervise(settings).map_err(|error| error.to_string()),
        }
        .map_err(|error| {
            Failure::bad_input(format!("the control plane's settings are wrong:\n{error}"))
        })?;
        let (close, closed) = oneshot::channel();
        let closed = async {
            // An error means that the handle was dropped, which ends the API as well.
            let _ = closed.await;
        };
        let serving = tokio::spawn(greenroom_console::serve(
            listener,
            supervisor.current(),
            closed,
        ));
        Ok(Self {
            supervisor,
            address,
            close,
            serving,
        })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The instance once it has seen the Manager's state.
    async fn live(&self) -> Option<AutoManager> {
        self.supervisor.current().next_live(None).await
    }

    /// Resolves when it decides no more without having been told to stop: a failure, as what runs and
    /// does not act would keep its supervisor from starting another.
    pub(crate) async fn ended(&mut self) -> Failure {
        let why = match self.supervisor.stopped().await {
            Ok(()) => "somebody closed it".to_owned(),
            Err(error) => error.to_string(),
        };
        Failure::failed(format!("the control plane ended: {why}"))
    }

    /// Why no instance is in service, where that is known.
    fn problem(&self) -> Option<String> {
        self.supervisor.current().problem()
    }

    pub(crate) async fn stop(self) {
        self.supervisor.stop().await;
        let _ = self.close.send(());
        if let Ok(Err(error)) = self.serving.await {
            say(&format!(
                "the control plane's API did not end cleanly: {error}"
            ));
        }
    }
}

/// The address of a listener that is bound.
pub(crate) fn address_of(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener
        .local_addr()
        .map_err(|error| Failure::failed(format!("the control plane has no address: {error}")))
}

fn cannot_serve(what: &str, listen: SocketAddr, error: &std::io::Error, flag: &str) -> Failure {
    let text = format!(
        "cannot serve the {what} at {listen}: {error}; stop what listens there, or choose another \
         address with {flag}"
    );
    Failure::new(Exit::AddressTaken, text)
}

/// Takes the control plane's address. Where it is not to be had, the Manager's is looked at as well,
/// so that whoever starts a second installation is told both flags at once.
async fn bind_control(plan: &Plan) -> Result<TcpListener, Failure> {
    let mut failure = match Control::bind(plan.control, "--control-listen").await {
        Ok(listener) => return Ok(listener),
        Err(failure) => failure,
    };
    if failure.exit == Exit::AddressTaken
        && let Err(error) = TcpListener::bind(plan.listen).await
    {
        let manager = cannot_serve("Manager", plan.listen, &error, "--listen");
        failure.message = format!("{}\n{}", manager.message, failure.message);
    }
    Err(failure)
}

// === impl System ===

impl System {
    /// Starts everything and resolves when all is in service. When `stop` resolves before, or
    /// something fails, what was started is ended again.
    pub(crate) async fn start(
        plan: Plan,
        status_log: StatusLog,
        stop: impl Future<Output = ()>,
    ) -> Result<Self, Failure> {
        plan.pool()?;
        let mut claim = Claim::take(&plan.data)?;
        let listener = bind_control(&plan).await?;
        let mut settings = greenroom_manager::Settings::new(plan.data.join("manager"), plan.listen);
        settings.member_name = "local".to_owned();
        let manager = manager::start(settings, status_log).await?;
        let address = manager.address().to_string();
        claim.tell(Some((manager.address(), address_of(&listener)?)))?;
        let url = format!("http://{address}");
        let client = Client::connect(greenroom_sdk::Settings::new([url.as_str()])).await?;
        let mut system = Self {
            client,
            workers: Vec::new(),
            plan,
            url,
            manager,
            control: None,
            _claim: claim,
        };
        let fatal = system.fatal();
        let populated = tokio::select! {
            populated = system.populate(&address, listener) => populated,
            error = fatal => Err(manager::store_failed(&error)),
            () = stop => Err(Failure::failed("interrupted before everything had started")),
        };
        if let Err(failure) = populated {
            // Jobs from before run on: a full disk is no reason to stop one (STORE-09).
            if failure.exit == Exit::DiskFailed {
                system.workers.iter().for_each(LocalWorker::hang_up);
                return Err(failure);
            }
            say("ending what was started");
            system.stop().await?;
            return Err(failure);
        }
        Ok(system)
    }

    /// Workers first: jobs that are there already are then placed with the whole fleet in view.
    async fn populate(&mut self, address: &str, listener: TcpListener) -> Outcome {
        let numbers = worker::numbers(&self.plan);
        worker::end_earlier(&self.plan, &numbers).await;
        for number in numbers {
            let worker = worker::spawn(&self.plan, &self.url, &self.client, number).await?;
            self.workers.push(worker);
        }
        for worker in &mut self.workers {
            worker.ready().await?;
        }
        let node_ids: Vec<NodeId> = self
            .workers
            .iter()
            .map(|worker| worker.node_id.clone())
            .collect();
        let running = tokio::time::timeout(SERVICE_LIMIT, until_running(&self.client, &node_ids));
        tokio::select! {
            running = running => match running {
                Ok(running) => running?,
                Err(_) => return Err(self.not_running(&node_ids).await),
            },
            (at, how) = first_ended(&mut self.workers) => {
                let number = self.workers[at].number;
                let text = format!("worker-{number} ended before it was a node ({how})");
                let log = self.plan.data.join(format!("worker-{number}/worker.log"));
                return Err(Failure::failed(text).hint(format!("its log is {}", log.display())));
            }
        }
        let mut settings = self.plan.settings.clone().unwrap_or_else(default_settings);
        settings["url"] = address.into();
        self.control = Some(Control::start(settings, Access::default(), listener, None)?);
        // Whoever is told that everything is up may ask at once.
        match tokio::time::timeout(SERVICE_LIMIT, self.auto()).await {
            Ok(live) => live.map(drop),
            Err(_) => {
                let why = self.control.as_ref().and_then(Control::problem);
                let why =
                    why.unwrap_or_else(|| "it is still reading the Manager's state".to_owned());
                Err(Failure::failed(format!(
                    "the control plane is not in service after {SERVICE_LIMIT:?}: {why}"
                )))
            }
        }
    }

    /// Which workers are no nodes in service, and why.
    async fn not_running(&self, node_ids: &[NodeId]) -> Failure {
        let nodes = self.client.list_nodes().await.unwrap_or_default();
        let stands = |node_id: &NodeId| {
            let node = nodes.iter().find(|it| it.metadata.node_id == *node_id);
            match node {
                Some(node) if node.state == NodeState::Running => None,
                Some(node) => Some(format!("{node_id} is {:?} {}", node.state, node.reason)),
                None => Some(format!(
                    "{node_id} is no node: the Manager has not reached it"
                )),
            }
        };
        let stand: Vec<String> = node_ids.iter().filter_map(stands).collect();
        let text = format!(
            "not all workers are in service after {SERVICE_LIMIT:?}: {}",
            stand.join("; ")
        );
        let logs = self.plan.data.join("worker-N/worker.log");
        Failure::failed(text).hint(format!("their logs are {}", logs.display()))
    }

    pub(crate) fn manager_address(&self) -> SocketAddr {
        self.manager.address()
    }

    /// Where the control plane's API is served.
    pub(crate) fn control_address(&self) -> Option<SocketAddr> {
        self.control.as_ref().map(Control::address)
    }

    /// The control plane's instance, once it has seen the Manager's state.
    pub(crate) async fn auto(&self) -> Result<AutoManager, Failure> {
        let ended = || Failure::failed("the control plane ended");
        self.control
            .as_ref()
            .ok_or_else(ended)?
            .live()
            .await
            .ok_or_else(ended)
    }

    /// Resolves when the store fails, after which everything must end.
    pub(crate) fn fatal(&self) -> impl Future<Output = FatalError> + Send + 'static {
        self.manager.fatal()
    }

    /// Starts workers again that end by themselves, as a machine's service manager would. Its jobs
    /// run on meanwhile, and the new worker takes them on. Resolves when one cannot be started, or when
    /// the control plane ends.
    pub(crate) async fn keep_workers(&mut self) -> Failure {
        loop {
            let control = async {
                match &mut self.control {
                    Some(control) => control.ended().await,
                    None => std::future::pending().await,
                }
            };
            let (at, how) = tokio::select! {
                ended = first_ended(&mut self.workers) => ended,
                failure = control => return failure,
            };
            let number = self.workers[at].number;
            say(&format!(
                "worker-{number} ended ({how}); it is started again"
            ));
            tokio::time::sleep(RESTART_PAUSE).await;
            let mut told: Option<Instant> = None;
            while let Err(failure) = self.revive(at, number).await {
                // On a full disk it cannot start, and nothing else is ended for that.
                if failure.exit != Exit::DiskFailed {
                    return failure;
                }
                // Without it nothing on it could be stopped or deleted (STORE-09).
                if self.manager.lend_room() {
                    continue;
                }
                if told.is_none_or(|at| at.elapsed() >= TELL_AGAIN) {
                    told = Some(Instant::now());
                    say(&format!("{failure}\nit is tried again until there is room"));
                }
                tokio::time::sleep(FULL_PAUSE).await;
            }
        }
    }

    async fn revive(&mut self, at: usize, number: u32) -> Outcome {
        self.workers[at] = worker::spawn(&self.plan, &self.url, &self.client, number).await?;
        self.workers[at].ready().await
    }

    /// Ends everything in order: the control plane first, so that nothing is placed again, then the
    /// workers, then the Manager, which hears their goodbye.
    pub(crate) async fn stop(self) -> Outcome {
        if let Some(control) = self.control {
            control.stop().await;
        }
        if !self.plan.keep
            && let Err(failure) = stop_jobs(&self.client, &self.workers).await
        {
            say(&format!(
                "some jobs are ended with their workers: {failure}"
            ));
        }
        for worker in &self.workers {
            worker.terminate();
        }
        for worker in self.workers {
            worker.ended().await;
        }
        self.client.close();
        self.manager
            .shutdown()
            .await
            .map_err(|error| Failure::new(Exit::DiskFailed, crate::verbs::media::chain(&error)))
    }
}

/// Stops every job by request, so that the next start launches it instead of recovering it from a
/// failure. What does not stop within its grace ends with its worker.
async fn stop_jobs(client: &Client, workers: &[LocalWorker]) -> Outcome {
    let ours = |node_id: &NodeId| workers.iter().any(|worker| worker.node_id == *node_id);
    let (_, mut events) = client.event_stream(EventSettings::default()).await?;
    let left = async || -> Result<Vec<RunningJob>, Failure> {
        let nodes = client.list_nodes().await?;
        let reached = nodes
            .into_iter()
            .filter(|node| node.state == NodeState::Running);
        Ok(reached
            .filter(|node| ours(&node.metadata.node_id))
            .flat_map(|node| node.instances)
            .collect())
    };
    for instance in left().await? {
        let RunningJob { key, node_id, .. } = instance;
        match client.stop_job(key, node_id, None).await {
            // It ended by itself meanwhile.
            Ok(()) | Err(greenroom_sdk::Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let stopped = async {
        while !left().await?.is_empty() {
            match events.next().await {
                Some(StreamItem::Closed(error)) => return Err(error.into()),
                Some(_) => {}
                None => return Err(Failure::failed("the event stream ended")),
            }
        }
        Ok(())
    };
    tokio::time::timeout(STOP_LIMIT, stopped)
        .await
        .unwrap_or_else(|_| Err(Failure::failed("they did not stop in time")))
}

/// Resolves when all are nodes in service.
async fn until_running(client: &Client, node_ids: &[NodeId]) -> Outcome {
    let (_, mut events) = client.event_stream(EventSettings::default()).await?;
    loop {
        let nodes = client.list_nodes().await?;
        let is_running = |node_id: &NodeId| {
            nodes
                .iter()
                .any(|node| node.metadata.node_id == *node_id && node.state == NodeState::Running)
        };
        if node_ids.iter().all(is_running) {
            return Ok(());
        }
        match events.next().await {
            Some(StreamItem::Event(_) | StreamItem::Resnapshot(_)) => {}
            Some(StreamItem::Closed(error)) => return Err(error.into()),
            None => return Err(Failure::failed("the event stream ended")),
        }
    }
}

/// Resolves when the first of them has ended, with which and how.
async fn first_ended(workers: &mut [LocalWorker]) -> (usize, String) {
    let waits = workers
        .iter_mut()
        .enumerate()
        .map(|(at, worker)| Box::pin(async move { (at, worker.wait().await) }));
    futures::future::select_all(waits).await.0
}

/// One pool of owned servers, emptiest node first.
fn default_settings() -> serde_json::Value {
    serde_json::json!({
        "placementPools": [{
            "name": POOL,
            "tiers": [{
                "name": "local",
                "kind": LOCAL_SERVERS,
                "scaleOut": "fixed",
                "packingStrategy": "spread",
            }],
        }],
    })
}
