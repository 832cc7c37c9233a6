//! A whole installation on one machine: Manager and control plane in this process, workers as
//! children. What `greenroom up` runs and what demonstrations are staged on.

mod processes;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use greenroom_auto::{AutoManager, Supervisor, supervise};
use greenroom_manager::{Running, StatusLog};
use greenroom_sdk::types::node::NodeState;
use greenroom_sdk::{Client, EventSettings, StreamItem};

pub(crate) use worker::LocalWorker;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::failure::{Exit, Failure, Outcome};
use crate::output::say;
use crate::verbs::manager;
use crate::verbs::worker::Runtime;

/// Pool of the workers that are started here.
pub(crate) const POOL: &str = "local";

/// Pause before a worker that ended by itself is started again, so that one that ends at once does
/// not keep the machine busy.
const RESTART_PAUSE: Duration = Duration::from_millis(500);

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

/// A running installation.
pub(crate) struct System {
    pub(crate) client: Client,
    pub(crate) workers: Vec<LocalWorker>,
    plan: Plan,
    url: String,
    manager: Running,
    /// None while it is being started or ended.
    control: Option<Control>,
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
    /// Runs the control plane against a Manager.
    pub(crate) async fn start(
        mut settings: serde_json::Value,
        manager: &str,
        listen: SocketAddr,
    ) -> Result<Self, Failure> {
        settings["url"] = manager.into();
        if !listen.ip().is_loopback() {
            let text = format!(
                "{listen} is no loopback address, and the control plane's API has no credentials"
            );
            return Err(Failure::bad_input(text));
        }
        let taken = |error: std::io::Error| {
            let text = format!("cannot serve the control plane at {listen}: {error}");
            Failure::new(Exit::AddressTaken, text)
        };
        let listener = tokio::net::TcpListener::bind(listen).await.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        let supervisor = supervise(greenroom_auto::Settings::new(settings)).map_err(|error| {
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

// === impl System ===

impl System {
    /// Starts everything and resolves when all workers are nodes.
    pub(crate) async fn start(plan: Plan, status_log: StatusLog) -> Result<Self, Failure> {
        let mut settings = greenroom_manager::Settings::new(plan.data.join("manager"), plan.listen);
        settings.member_name = "local".to_owned();
        let manager = manager::start(settings, status_log).await?;
        let address = manager.address().to_string();
        let url = format!("http://{address}");
        let client = Client::connect(greenroom_sdk::Settings::new([url.as_str()])).await?;
        let mut system = Self {
            client,
            workers: Vec::new(),
            plan,
            url,
            manager,
            control: None,
        };
        match system.populate(&address).await {
            Ok(()) => Ok(system),
            Err(failure) => {
                system.stop().await?;
                Err(failure)
            }
        }
    }

    /// Workers first: jobs that are there already are then placed with the whole fleet in view.
    async fn populate(&mut self, address: &str) -> Outcome {
        for number in 1..=self.plan.workers {
            let worker = worker::start(&self.plan, &self.url, &self.client, number).await?;
            self.workers.push(worker);
        }
        self.wait_for_nodes().await?;
        let settings = self.plan.settings.clone().unwrap_or_else(default_settings);
        self.control = Some(Control::start(settings, address, self.plan.control).await?);
        Ok(())
    }

    pub(crate) const fn manager_address(&self) -> SocketAddr {
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
    pub(crate) fn fatal(&self) -> impl Future<Output = String> + Send + 'static {
        let fatal = self.manager.fatal();
        async move { fatal.await.to_string() }
    }

    async fn wait_for_nodes(&self) -> Outcome {
        let (_, mut events) = self.client.event_stream(EventSettings::default()).await?;
        loop {
            let nodes = self.client.list_nodes().await?;
            let running = |worker: &LocalWorker| {
                nodes.iter().any(|node| {
                    node.metadata.node_id == worker.node_id && node.state == NodeState::Running
                })
            };
            if self.workers.iter().all(running) {
                return Ok(());
            }
            match events.next().await {
                Some(StreamItem::Event(_) | StreamItem::Resnapshot(_)) => {}
                Some(StreamItem::Closed(error)) => return Err(error.into()),
                None => return Err(Failure::failed("the event stream ended")),
            }
        }
    }

    /// Starts workers again that end by themselves, as a machine's service manager would. Its jobs
    /// run on meanwhile, and the new worker takes them on. Resolves when one cannot be started.
    pub(crate) async fn keep_workers(&mut self) -> Failure {
        loop {
            let waits = self
                .workers
                .iter_mut()
                .enumerate()
                .map(|(at, worker)| Box::pin(async move { (at, worker.wait().await) }));
            let ((at, how), _, _) = futures::future::select_all(waits).await;
            let number = self.workers[at].number;
            say(&format!(
                "worker-{number} ended ({how}); it is started again"
            ));
            tokio::time::sleep(RESTART_PAUSE).await;
            match worker::start(&self.plan, &self.url, &self.client, number).await {
                Ok(worker) => self.workers[at] = worker,
                Err(failure) => return failure,
            }
        }
    }

    /// Ends everything in order: the control plane first, so that nothing is placed again, then the
    /// workers, then the Manager, which hears their goodbye.
    pub(crate) async fn stop(self) -> Outcome {
        if let Some(control) = self.control {
            control.stop().await;
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

/// One pool of owned servers, emptiest node first.
fn default_settings() -> serde_json::Value {
    serde_json::json!({
        "placementPools": [{
            "name": POOL,
            "tiers": [{
                "name": "local",
                "kind": "local-servers",
                "scaleOut": "fixed",
                "packingStrategy": "spread",
            }],
        }],
    })
}
