//! Goal: an instance and a real Manager in one process. Method: no workers, so a job stays without
//! a place; waiting is on callbacks and on the handle, never on time.

use std::net::SocketAddr;

use greenroom_auto::policy::Callback;
use greenroom_auto::policy::event::ConnectionState;
use greenroom_auto::policy::job::Standing;
use greenroom_auto::policy::settings::FaultCode;
use greenroom_auto::types::bundle::{Bundle, BundleJob, Launch, Requirements};
use greenroom_auto::types::job::{Container, Service};
use greenroom_auto::{
    AutoManager, CallError, CallbackResult, Callbacks, EndError, RunError, Settings, supervise,
};
use greenroom_manager::{Running, StatusLog};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Passes every callback on to the test.
struct Tell(mpsc::UnboundedSender<Callback>);

impl Callbacks for Tell {
    fn on_callback(&self, callback: &Callback) -> CallbackResult {
        let _ = self.0.send(callback.clone());
        if matches!(callback, Callback::OnBundleUpdated { .. }) {
            panic!("a fault of the embedder");
        }
        Ok(())
    }
}

async fn manager(dir: &TempDir, listen: SocketAddr) -> Running {
    let mut settings = greenroom_manager::Settings::new(dir.path().join("store"), listen);
    settings.min_free_bytes = 0;
    greenroom_manager::start(settings, StatusLog::default())
        .await
        .unwrap()
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn tree(address: SocketAddr) -> serde_json::Value {
    serde_json::json!({
        "url": address.to_string(),
        "placementPools": [{
            "name": "studio",
            "tiers": [{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}],
        }],
    })
}

fn bundle() -> Bundle {
    Bundle {
        bundle_id: "news".into(),
        pool: "studio".into(),
        jobs: vec![BundleJob {
            job_name: "enc".into(),
            requirements: Requirements {
                required_capacity: 2.0,
                ..Requirements::default()
            },
            launch: Launch {
                services: vec![Service {
                    name: "main".to_owned(),
                    container: Container::Process {
                        command: vec!["true".to_owned()],
                        directory: String::new(),
                    },
                    ..Service::default()
                }],
                ..Launch::default()
            },
            ..BundleJob::default()
        }],
        ..Bundle::default()
    }
}

/// The next callback for which `find` gives something.
async fn heard<T>(
    told: &mut mpsc::UnboundedReceiver<Callback>,
    find: impl Fn(&Callback) -> Option<T>,
) -> T {
    loop {
        let callback = told.recv().await.expect("the instance runs");
        if let Some(found) = find(&callback) {
            return found;
        }
    }
}

// spec: LIFE-01, LIFE-02, CALLB-03, BUNDLE-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_is_created_and_its_job_says_what_it_waits_for() {
    let dir = TempDir::new().unwrap();
    let manager = manager(&dir, any_port()).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let settings = Settings::new(tree(manager.address())).with_callbacks(Tell(tell));
    let (instance, ended) = AutoManager::run(settings).await.unwrap();
    let connecting = Callback::OnConnectionStateChange {
        state: ConnectionState::Connecting,
    };
    assert_eq!(told.try_recv(), Ok(connecting), "told before run returned");
    let mut listener = instance.callbacks();
    assert!(instance.live().await);

    let created = instance.create_bundle(bundle()).await.unwrap();
    assert_eq!(created.bundle_id.as_str(), "news");
    let job_id = created.job_ids[0].clone();

    // The callback of this bundle panics; that is told, and what follows goes on.
    let error = heard(&mut told, |callback| match callback {
        Callback::OnError(error) => Some(error.clone()),
        _ => None,
    });
    let error = error.await;
    assert_eq!(error.code, "callbackFailed");
    assert!(
        error.message.contains("a fault of the embedder"),
        "{error:?}"
    );
    let failed = heard(&mut told, |callback| match callback {
        Callback::OnPlacementFailed { job_id, .. } => Some(job_id.clone()),
        _ => None,
    });
    assert_eq!(failed.await, job_id);

    let report = instance.explain(&job_id).unwrap();
    assert_eq!(report.standing, Some(Standing::Pending));
    let trial = report.trial.unwrap();
    assert_eq!(trial.trace.attempts.len(), 1);
    assert_eq!(trial.trace.attempts[0].pool.as_str(), "studio");
    assert_eq!(instance.node_for_job(&job_id), None);
    assert_eq!(
        instance.jobs_for_bundle(&"news".into()),
        std::slice::from_ref(&job_id)
    );
    assert!(instance.explain(&"news.0.other".into()).is_none());
    assert_eq!(instance.metrics().placements_failed, 1);

    // What the Manager refuses is the caller's.
    let again = instance.create_bundle(bundle()).await.unwrap_err();
    assert!(matches!(again, CallError::Api(_)));
    assert_eq!(again.code(), "bundle_exists");

    instance.close().await;
    assert_eq!(ended.await, Ok(()));
    assert_eq!(instance.jobs().len(), 1);
    let mut last = None;
    while let Some(item) = listener.next().await {
        last = Some(item);
    }
    let shutdown = Callback::OnConnectionStateChange {
        state: ConnectionState::Shutdown,
    };
    assert_eq!(
        last,
        Some(greenroom_auto::Heard::Callback(shutdown.into())),
        "the last word"
    );
    manager.shutdown().await.unwrap();
}

// spec: LIFE-01, LIFE-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_manager_goes_the_handle_settles_with_the_error() {
    let dir = TempDir::new().unwrap();
    let manager = manager(&dir, any_port()).await;
    let address = manager.address();
    let (instance, ended) = AutoManager::run(Settings::new(tree(address)))
        .await
        .unwrap();
    assert!(instance.live().await);
    manager.shutdown().await.unwrap();
    assert!(matches!(ended.await, Err(EndError::Stream(_))));
    let refused = instance.delete_bundle("news").await.unwrap_err();
    assert_eq!(refused.code(), "closed");

    let error = AutoManager::run(Settings::new(tree(address))).await;
    assert!(matches!(error, Err(RunError::Connect { .. })));
}

// spec: CONF-01, LIFE-01
#[tokio::test]
async fn faults_in_the_settings_and_a_fired_signal_stop_before_any_connection() {
    let listener = tokio::net::TcpListener::bind(any_port()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut faulty = tree(address);
    faulty["placementPools"][0]["name"] = "".into();
    faulty["nodeServicse"] = serde_json::json!([]);
    let Err(RunError::Settings(error)) = AutoManager::run(Settings::new(faulty.clone())).await
    else {
        panic!("the settings have faults");
    };
    let codes: Vec<FaultCode> = error.faults.iter().map(|fault| fault.code).collect();
    assert_eq!(codes, [FaultCode::EmptyPoolName, FaultCode::UnknownKey]);
    assert_eq!(supervise(Settings::new(faulty)).unwrap_err(), error);

    let mut settings = Settings::new(tree(address));
    settings.signal = CancellationToken::new();
    settings.signal.cancel();
    let error = AutoManager::run(settings).await;
    assert!(matches!(error, Err(RunError::Aborted)));

    let accepted = std::future::poll_fn(|context| {
        std::task::Poll::Ready(listener.poll_accept(context).is_ready())
    });
    assert!(!accepted.await, "no connection was tried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_instance_follows_one_that_ended_by_itself() {
    let dir = TempDir::new().unwrap();
    let first = manager(&dir, any_port()).await;
    let address = first.address();
    let supervisor = supervise(Settings::new(tree(address))).unwrap();
    let mut current = supervisor.current();
    let one = current.next_live(None).await.unwrap();
    one.create_bundle(bundle()).await.unwrap();
    first.shutdown().await.unwrap();
    assert!(one.ended().await.is_err());

    let second = manager(&dir, address).await;
    let two = current.next_live(Some(&one)).await.unwrap();
    assert!(!two.is_same(&one));
    assert_eq!(two.bundles().len(), 1, "it hydrated anew");
    supervisor.stop().await;
    assert_eq!(two.ended().await, Ok(()));
    assert!(current.instance().is_none());
    second.shutdown().await.unwrap();
}
