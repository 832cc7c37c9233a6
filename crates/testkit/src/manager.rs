//! The real Manager in this process, on a free port and a folder of its own.
//!
//! Each start runs in a runtime of its own. [`TestManager::kill`] drops that runtime with everything
//! in it at whatever point it stands, as the death of a process would: connections break, nothing is
//! flushed that was not flushed before.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use greenroom_manager::{Running, Settings, StartError, StatusLog};
use greenroom_sdk::Client;
use greenroom_types::Millis;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::watch::Watch;
use crate::within;
use crate::worker::FakeWorker;

/// How long the tasks of a killed Manager may take to let go of their files.
const LET_GO: Duration = Duration::from_secs(30);

/// A Manager under test. It ends when it is dropped.
pub struct TestManager {
    folder: TempDir,
    settings: Settings,
    process: Option<Process>,
}

struct Process {
    runtime: Runtime,
    running: Running,
}

// === impl TestManager ===

impl TestManager {
    /// A new one with default settings.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// A new one with settings of the test's choice.
    pub async fn start_with(adjust: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut settings = Settings::new(folder.path().join("store"), listen);
        settings.min_free_bytes = 0;
        settings.overrides_file = folder.path().join("overrides.json");
        adjust(&mut settings);
        let mut manager = Self {
            folder,
            settings,
            process: None,
        };
        manager.run().await;
        // Started again, it is to be found at the same address.
        let address = manager.address();
        if let Some(first) = manager.settings.listen.first_mut() {
            first.address = address;
        }
        manager
    }

    /// Settings with waits so short that a test need not wait: a lost node is given up at once.
    pub fn impatient(settings: &mut Settings) {
        settings.waits.drop_grace_ms = Millis(50);
        settings.waits.keepalive_ms = Millis(50);
    }

    /// Settings under which a node that is out of reach is never given up.
    pub fn patient(settings: &mut Settings) {
        settings.waits.drop_grace_ms = Millis(3_600_000);
    }

    /// Starts the Manager that was ended or killed before.
    pub async fn run(&mut self) {
        self.try_run().await.expect("the Manager starts");
    }

    /// The same, for a start that may be refused.
    pub async fn try_run(&mut self) -> Result<(), StartError> {
        assert!(self.process.is_none(), "the Manager runs already");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("manager")
            .enable_all()
            .build()
            .expect("a runtime");
        let starting = runtime.spawn(greenroom_manager::start(
            self.settings.clone(),
            StatusLog::new(),
        ));
        let started = within("an answer of the Manager's start", starting)
            .await
            .expect("the start does not panic");
        match started {
            Ok(running) => {
                self.process = Some(Process { runtime, running });
                Ok(())
            }
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Ends it in order (API-19).
    pub async fn end(&mut self) {
        let Process { runtime, running } = self.process.take().expect("a running Manager");
        let ending = runtime.spawn(running.shutdown());
        within("the Manager's end", ending)
            .await
            .expect("the end does not panic")
            .expect("the store is closed cleanly");
        bury(runtime).await;
    }

    /// Ends it as kill -9 would.
    pub async fn kill(&mut self) {
        let Process { runtime, running } = self.process.take().expect("a running Manager");
        // Not dropped before the runtime: that alone would begin an end in order.
        bury(runtime).await;
        drop(running);
        self.wait_for_lock().await;
    }

    /// Ends it in order and starts it again at the same address.
    pub async fn restart(&mut self) {
        self.end().await;
        self.run().await;
    }

    /// Kills it and starts it again at the same address.
    pub async fn crash(&mut self) {
        self.kill().await;
        self.run().await;
    }

    /// Where the API is served.
    pub fn address(&self) -> SocketAddr {
        match &self.process {
            Some(process) => process.running.address(),
            None => self.settings.listen[0].address,
        }
    }

    /// The address as the SDK takes it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The store's folder.
    pub fn data_dir(&self) -> &Path {
        &self.settings.data_dir
    }

    /// A folder for what else a test needs; it goes with the Manager.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The settings of the next start.
    pub const fn settings(&mut self) -> &mut Settings {
        &mut self.settings
    }

    /// The running Manager.
    pub fn running(&self) -> &Running {
        &self.process.as_ref().expect("a running Manager").running
    }

    /// A client of its own connection.
    pub async fn client(&self) -> Client {
        let settings = greenroom_sdk::Settings::new([self.url()]);
        within("a connection to the Manager", Client::connect(settings))
            .await
            .expect("the Manager takes connections")
    }

    /// A subscriber on a connection of its own.
    pub async fn watch(&self) -> Watch {
        Watch::begin(self.client().await, Default::default()).await
    }

    /// A slot with a worker in it that has said hello.
    pub async fn worker(&self, node_name: &str) -> FakeWorker {
        let client = self.client().await;
        let worker = FakeWorker::register(&client, node_name).await;
        worker
            .call_in(&client)
            .await
            .expect("the token opens the slot");
        worker.wait_greeted(1).await;
        worker
    }

    /// Waits until what is left of a killed Manager has let go of the store.
    async fn wait_for_lock(&self) {
        let path = self.settings.data_dir.join("lock");
        let locking = tokio::task::spawn_blocking(move || {
            let file = std::fs::File::open(path)?;
            file.lock()?;
            file.unlock()
        });
        within("the store let go", locking)
            .await
            .expect("the lock does not panic")
            .expect("the store's folder can be locked");
    }
}

/// Drops a runtime, which may not be done where another one runs.
async fn bury(runtime: Runtime) {
    tokio::task::spawn_blocking(move || runtime.shutdown_timeout(LET_GO))
        .await
        .expect("the runtime is dropped");
}

impl Drop for TestManager {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.runtime.shutdown_background();
        }
    }
}
