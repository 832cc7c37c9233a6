//! Goal: what the loop promises whatever the policy decides. Method: the real policy, a line that
//! answers when the test says so, a clock that stands until it is moved. No test waits for time.

use std::pin::Pin;
use std::sync::Mutex;

use greenroom_policy::acts::Acts;
use greenroom_policy::event::ApiAnswer;
use greenroom_policy::{ApiError, IdSource, Settings as PolicySettings};
use greenroom_types::bundle::{Bundle, BundleJob, BundleStatus, Requirements};
use greenroom_types::call::Call;
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{AutoPlacement, Job, JobState, JobWithHistory};
use greenroom_types::node::{NodeMetadata, RunningNodeMetadata};
use greenroom_types::{BundleId, JobId, NodeId, Wall};

use super::*;
use crate::acts::Write;
use crate::error::CallError;

mod absent;

// === the surroundings ===

struct StandingClock(watch::Sender<Now>);

impl StandingClock {
    fn new() -> Self {
        Self(watch::Sender::new(Now {
            mono: Mono(1_000),
            wall: Wall(1_767_225_600_000),
        }))
    }

    fn advance(&self, ms: u64) {
        self.0.send_modify(|now| {
            now.mono = Mono(now.mono.0 + ms);
            now.wall = now.wall.plus(ms as i64);
        });
    }
}

impl Clock for StandingClock {
    fn now(&self) -> Now {
        *self.0.borrow()
    }

    fn sleep_until(&self, at: Mono) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut now = self.0.subscribe();
        Box::pin(async move {
            if now.wait_for(|now| now.mono >= at).await.is_err() {
                std::future::pending().await
            }
        })
    }
}

/// Records calls; answers them with "done" while its gate is open.
struct FakeLine {
    sent: mpsc::UnboundedSender<Call>,
    kept: mpsc::UnboundedSender<Acts>,
    gate: watch::Receiver<bool>,
    /// The same for what is kept.
    keeps: watch::Receiver<bool>,
    slots: Arc<Mutex<Slots>>,
    closed: mpsc::UnboundedSender<()>,
}

/// What the Manager has a place for.
type Slots = Result<BTreeSet<NodeId>, CallFailure>;

impl Line for FakeLine {
    fn call(
        &self,
        call: Call,
    ) -> impl Future<Output = Result<Reply, CallFailure>> + Send + 'static {
        let _ = self.sent.send(call);
        let mut gate = self.gate.clone();
        async move {
            let is_open = gate.wait_for(|open| *open).await.is_ok();
            if !is_open {
                std::future::pending::<()>().await;
            }
            Ok(Reply::Done)
        }
    }

    fn keep(
        &self,
        write: Write,
    ) -> impl Future<Output = Result<u64, CallFailure>> + Send + 'static {
        let _ = self.kept.send(crate::acts::read(&write.value).unwrap());
        let mut gate = self.keeps.clone();
        async move {
            let is_open = gate.wait_for(|open| *open).await.is_ok();
            if !is_open {
                std::future::pending::<()>().await;
            }
            Ok(write.expected + 1)
        }
    }

    fn slots(&self) -> impl Future<Output = Slots> + Send + 'static {
        std::future::ready(self.slots.lock().unwrap().clone())
    }

    fn close(&mut self) {
        let _ = self.closed.send(());
    }
}

type Hook = Box<dyn Fn(&Callback, &AutoManager) -> CallbackResult + Send + Sync>;

struct Recorder {
    names: mpsc::UnboundedSender<&'static str>,
    instance: Mutex<Option<AutoManager>>,
    hook: Hook,
}

impl Callbacks for Recorder {
    fn begin(&self, instance: &AutoManager) -> CallbackResult {
        *self.instance.lock().unwrap() = Some(instance.clone());
        Ok(())
    }

    fn on_callback(&self, callback: &Callback) -> CallbackResult {
        let _ = self.names.send(callback_name(callback));
        let instance = self.instance.lock().unwrap().clone().unwrap();
        (self.hook)(callback, &instance)
    }
}

/// One driver with all its ends in the test's hand.
struct Bench {
    instance: AutoManager,
    inputs: mpsc::Sender<Input>,
    clock: Arc<StandingClock>,
    gate: watch::Sender<bool>,
    keeps: watch::Sender<bool>,
    slots: Arc<Mutex<Slots>>,
    sent: mpsc::UnboundedReceiver<Call>,
    kept: mpsc::UnboundedReceiver<Acts>,
    names: mpsc::UnboundedReceiver<&'static str>,
    closed: mpsc::UnboundedReceiver<()>,
    signal: CancellationToken,
    driver: Option<Driver<FakeLine>>,
}

impl Bench {
    fn new(hook: Hook) -> Self {
        let clock = Arc::new(StandingClock::new());
        let tree = serde_json::json!({
            "url": "127.0.0.1:1",
            "placementPools": [{
                "name": "studio",
                "tiers": [{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}],
            }],
        });
        let settings = PolicySettings::parse(&tree).unwrap();
        let (sent_in, sent) = mpsc::unbounded_channel();
        let (kept_in, kept) = mpsc::unbounded_channel();
        let (names_in, names) = mpsc::unbounded_channel();
        let (closed_in, closed) = mpsc::unbounded_channel();
        let (gate, gate_out) = watch::channel(true);
        let (keeps, keeps_out) = watch::channel(true);
        let slots = Arc::new(Mutex::new(Ok(BTreeSet::new())));
        let signal = CancellationToken::new();
        let (mut driver, instance, _) = Driver::new(Parts {
            settings: tree,
            policy: Policy::new(settings, clock.now(), IdSource::seeded(1)),
            line: FakeLine {
                sent: sent_in,
                kept: kept_in,
                gate: gate_out,
                keeps: keeps_out,
                slots: Arc::clone(&slots),
                closed: closed_in,
            },
            callbacks: Arc::new(Recorder {
                names: names_in,
                instance: Mutex::default(),
                hook,
            }),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            signal: signal.clone(),
        });
        driver.begin(&instance);
        Self {
            inputs: driver.sender(),
            instance,
            clock,
            gate,
            keeps,
            slots,
            sent,
            kept,
            names,
            closed,
            signal,
            driver: Some(driver),
        }
    }

    fn silent() -> Self {
        Self::new(Box::new(|_, _| Ok(())))
    }

    fn start(&mut self) {
        tokio::spawn(self.driver.take().unwrap().run());
    }

    async fn stream(&self, event: StreamEvent) {
        self.inputs.send(Input::Stream(event)).await.unwrap();
    }

    /// A node with 4 vCPUs, and the end of the snapshot.
    async fn hydrate(&self) {
        let node_id = NodeId::new("n1");
        self.stream(StreamEvent::NodeRunning {
            metadata: Arc::new(NodeMetadata {
                node_id: node_id.clone(),
                tags: [("pool".to_owned(), "studio".to_owned())].into(),
                ..NodeMetadata::default()
            }),
            running: Arc::new(RunningNodeMetadata::default()),
            instances: Vec::new(),
            reachable: true,
        })
        .await;
        self.stream(StreamEvent::NodeInventorySnapshot {
            node_id,
            inventory: Arc::new(NodeInventory {
                total_capacity: 4.0,
                total_cores: 4,
                ..NodeInventory::default()
            }),
        })
        .await;
        self.stream(StreamEvent::InitialDataComplete(Vec::new()))
            .await;
    }

    /// A bundle of one job of 1 vCPU, and that job.
    async fn announce(&self, bundle_id: &str) {
        let needs = Requirements {
            required_capacity: 1.0,
            ..Requirements::default()
        };
        let bundle = Bundle {
            bundle_id: bundle_id.into(),
            pool: "studio".into(),
            jobs: vec![BundleJob {
                job_name: "e".into(),
                requirements: needs.clone(),
                ..BundleJob::default()
            }],
            ..Bundle::default()
        };
        let tags = [
            ("bundleId", bundle_id),
            ("replicaIndex", "0"),
            ("jobName", "e"),
        ];
        let job = JobWithHistory {
            job: Job {
                job_id: job_of(bundle_id),
                tags: tags.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
                auto_placement: Some(AutoPlacement {
                    bundle_id: bundle_id.into(),
                    replica_index: 0,
                    job_name: "e".into(),
                    requirements: needs,
                }),
                ..Job::default()
            },
            state: JobState::Pre,
            ..JobWithHistory::default()
        };
        self.stream(StreamEvent::BundleUpdated(Arc::new(BundleStatus {
            bundle,
            ..BundleStatus::default()
        })))
        .await;
        self.stream(StreamEvent::JobPending(Arc::new(job))).await;
    }

    /// The names of the callbacks up to and with that one.
    async fn until(&mut self, last: &str) -> Vec<&'static str> {
        let mut names = Vec::new();
        loop {
            let name = self.names.recv().await.expect("the loop runs");
            names.push(name);
            if name == last {
                return names;
            }
        }
    }

    fn rest(&mut self) -> Vec<&'static str> {
        std::iter::from_fn(|| self.names.try_recv().ok()).collect()
    }
}

fn job_of(bundle_id: &str) -> JobId {
    JobId::new(format!("{bundle_id}.0.e"))
}

fn is_start(call: &Call, bundle_id: &str) -> bool {
    matches!(call, Call::StartJob(start) if start.job_id == job_of(bundle_id))
}

// === tests ===

// spec: TIME-02
#[tokio::test]
async fn a_call_without_an_answer_holds_nothing_up() {
    let mut bench = Bench::silent();
    bench.gate.send_replace(false);
    bench.start();
    bench.hydrate().await;
    bench.announce("b1").await;
    bench.announce("b2").await;
    assert!(is_start(&bench.sent.recv().await.unwrap(), "b1"));
    assert!(is_start(&bench.sent.recv().await.unwrap(), "b2"));
    bench.instance.cordon_node("n1").await.unwrap();
    assert!(bench.instance.is_cordoned(&"n1".into()));
    assert_eq!(bench.instance.metrics().placements_succeeded, 0);

    // The replies are inputs: both are counted when they come.
    bench.gate.send_replace(true);
    bench.instance.uncordon_node("n1").await.unwrap();
    while bench.instance.metrics().placements_succeeded < 2 {
        tokio::task::yield_now().await;
    }
}

// spec: TIME-06
#[tokio::test]
async fn what_arrived_before_a_due_timer_is_handled_before_it() {
    let mut bench = Bench::silent();
    let mut driver = bench.driver.take().unwrap();
    driver.step(Event::Stream(StreamEvent::InitialDataComplete(Vec::new())));
    let due = driver.lock_read(|policy| policy.next_deadline().unwrap().at);
    bench.clock.advance(due.0);
    let event = || Input::State(ConnectionState::Ready);
    bench.inputs.send(event()).await.unwrap();
    bench.inputs.send(event()).await.unwrap();
    assert!(matches!(driver.next().await, Next::Input(_)));
    // One that comes after the timer was seen to be due does not put it off.
    bench.inputs.send(event()).await.unwrap();
    assert!(matches!(driver.next().await, Next::Input(_)));
    assert!(matches!(driver.next().await, Next::Wake));
    driver.step(Event::Wake);
    assert!(matches!(driver.next().await, Next::Input(_)));
}

// spec: CALLB-01, HARD-108
#[tokio::test]
async fn a_callback_that_panics_or_fails_is_told_and_changes_nothing_else() {
    let mut bench = Bench::new(Box::new(|callback, _| match callback {
        Callback::OnPlacementDecision(_) => panic!("no"),
        Callback::OnError(error) => panic!("not this either: {}", error.message),
        Callback::OnBundleUpdated { .. } => Err("a failure".into()),
        _ => Ok(()),
    }));
    bench.start();
    bench.hydrate().await;
    bench.announce("b1").await;
    assert!(is_start(&bench.sent.recv().await.unwrap(), "b1"));
    let names = bench.until("onPlacementDecision").await;
    assert_eq!(
        names,
        [
            "onNodeStarted",
            "onBundleUpdated",
            "onError",
            "onJobUpdated",
            "onPlacementDecision"
        ]
    );
    assert_eq!(bench.until("onError").await, ["onError"]);
    bench.announce("b2").await;
    assert!(is_start(&bench.sent.recv().await.unwrap(), "b2"));
}

// spec: CALLB-02, LIFE-09
#[tokio::test]
async fn calls_from_a_callback_come_after_the_present_input() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut bench = Bench::new(Box::new(move |callback, instance| {
        if let Callback::OnJobUpdated { job_id, .. } = callback {
            // The mirror holds the job, and the node still takes work.
            let known = instance.explain(job_id).is_some();
            drop(instance.cordon_node("n1"));
            drop(instance.close());
            let _ = tell.send((known, instance.is_cordoned(&"n1".into())));
        }
        Ok(())
    }));
    bench.start();
    bench.hydrate().await;
    bench.announce("b1").await;
    assert_eq!(told.recv().await, Some((true, false)));
    // The start of the same input was decided, and is sent.
    assert!(is_start(&bench.sent.recv().await.unwrap(), "b1"));
    assert_eq!(bench.instance.ended().await, Ok(()));
    assert!(bench.instance.is_cordoned(&"n1".into()));
}

// spec: LIFE-02, LIFE-05, LIFE-06
#[tokio::test]
async fn a_close_waits_for_the_answers_and_then_settles() {
    let mut bench = Bench::silent();
    bench.gate.send_replace(false);
    bench.start();
    bench.hydrate().await;
    bench.announce("b1").await;
    bench.sent.recv().await.unwrap();
    let mut listener = bench.instance.callbacks();
    let mut closing = Box::pin(bench.instance.close());
    // Answered in order of arrival: the close was handled, the call is refused.
    let refused = bench.instance.cordon_node("n1").await;
    assert_eq!(refused, Err(CallError::Api(ApiError::Closed)));
    assert!(futures::poll!(&mut closing).is_pending());
    assert!(
        bench.closed.try_recv().is_err(),
        "the channel is still open"
    );
    bench.rest();
    bench
        .stream(StreamEvent::NodeStopped {
            node_id: "n1".into(),
        })
        .await;

    bench.gate.send_replace(true);
    closing.await;
    assert_eq!(bench.closed.recv().await, Some(()));
    assert_eq!(bench.rest(), ["onConnectionStateChange"]);
    let last = Callback::OnConnectionStateChange {
        state: ConnectionState::Shutdown,
    };
    assert_eq!(
        listener.next().await,
        Some(crate::listen::Heard::Callback(Arc::new(last)))
    );
    assert_eq!(listener.next().await, None);

    bench.instance.close().await;
    assert_eq!(bench.instance.ended().await, Ok(()));
    assert_eq!(bench.instance.nodes().len(), 1);
    let refused = bench.instance.delete_bundle("b1").await;
    assert_eq!(refused, Err(CallError::Api(ApiError::Closed)));
}

// spec: LIFE-05, HARD-97
#[tokio::test]
async fn with_nothing_in_flight_a_close_is_at_once_and_the_last_word() {
    let mut bench = Bench::silent();
    bench.start();
    bench.hydrate().await;
    assert!(bench.instance.live().await);
    bench.rest();
    let closing = bench.instance.close();
    bench
        .stream(StreamEvent::NodeStopped {
            node_id: "n1".into(),
        })
        .await;
    let late = Input::Reply {
        call_id: CallId(7),
        result: Ok(Reply::Done),
    };
    bench.inputs.send(late).await.unwrap();
    bench.clock.advance(3_600_000);
    closing.await;
    assert_eq!(bench.closed.recv().await, Some(()));
    assert_eq!(bench.rest(), ["onConnectionStateChange"]);
    assert!(bench.sent.try_recv().is_err());
}

// spec: LIFE-05
#[tokio::test]
async fn a_close_waits_no_longer_than_its_grace() {
    let mut bench = Bench::silent();
    bench.gate.send_replace(false);
    bench.start();
    bench.hydrate().await;
    bench.announce("b1").await;
    bench.sent.recv().await.unwrap();
    let mut closing = Box::pin(bench.instance.close());
    let closed = bench.instance.call(ApiCall::Close).await;
    assert_eq!(closed, Ok(ApiAnswer::Done));
    bench.clock.advance(4_999);
    bench.instance.call(ApiCall::Close).await.unwrap();
    assert!(futures::poll!(&mut closing).is_pending());
    bench.clock.advance(1);
    closing.await;
    assert_eq!(bench.closed.recv().await, Some(()));
}

// spec: LIFE-07
#[tokio::test]
async fn the_end_of_the_stream_is_the_end_of_the_instance() {
    let mut bench = Bench::silent();
    bench.start();
    bench.hydrate().await;
    assert!(bench.instance.live().await);
    let end = Input::StreamEnded("the Manager went away".to_owned());
    bench.inputs.send(end).await.unwrap();
    let error = EndError::Stream("the Manager went away".to_owned());
    assert_eq!(bench.instance.ended().await, Err(error));
    assert_eq!(bench.closed.recv().await, Some(()));
    assert_eq!(bench.instance.phase(), InstancePhase::Closed);
    assert!(!bench.instance.live().await);
}

// spec: HARD-98
#[tokio::test]
async fn a_close_before_the_snapshot_is_complete_mirrors_nothing() {
    let mut bench = Bench::silent();
    let closing = bench.instance.close();
    bench.hydrate().await;
    bench.announce("b1").await;
    bench.start();
    closing.await;
    assert_eq!(bench.rest(), ["onConnectionStateChange"]);
    assert_eq!(bench.instance.jobs(), []);
    assert!(bench.instance.placements().is_empty());
    assert_eq!(bench.instance.ended().await, Ok(()));
}

// spec: LIFE-01
#[tokio::test]
async fn the_signal_closes() {
    let mut bench = Bench::silent();
    bench.start();
    bench.hydrate().await;
    assert!(bench.instance.live().await);
    bench.signal.cancel();
    assert_eq!(bench.instance.ended().await, Ok(()));
}

// spec: TIME-05
#[tokio::test]
async fn the_same_inputs_give_the_same_calls_and_callbacks() {
    async fn once() -> (Vec<Call>, Vec<&'static str>) {
        let mut bench = Bench::silent();
        bench.start();
        bench.hydrate().await;
        for bundle_id in ["b3", "b1", "b2"] {
            bench.announce(bundle_id).await;
        }
        bench
            .stream(StreamEvent::BundleDeleted(BundleId::new("b1")))
            .await;
        let names = bench.until("onBundleDeleted").await;
        let calls = std::iter::from_fn(|| bench.sent.try_recv().ok()).collect();
        (calls, names)
    }
    let (calls, names) = once().await;
    assert_eq!(calls.len(), 3);
    assert_eq!(once().await, (calls, names));
}

#[tokio::test]
async fn a_full_channel_refuses_calls_and_not_the_close() {
    let mut bench = Bench::silent();
    let input = || Input::State(ConnectionState::Ready);
    while bench.inputs.try_send(input()).is_ok() {}
    let refused = bench.instance.cordon_node("n1").await;
    assert_eq!(refused, Err(CallError::Busy(INPUTS)));
    let closing = bench.instance.close();
    bench.start();
    closing.await;
    assert_eq!(bench.instance.ended().await, Ok(()));
}

#[tokio::test]
async fn a_policy_that_breaks_settles_the_handle() {
    let mut bench = Bench::silent();
    let driver = bench.driver.take().unwrap();
    drop(driver);
    assert_eq!(bench.instance.ended().await, Err(EndError::Broken));
}

// spec: METR-08
#[tokio::test]
async fn the_policy_is_checked_from_time_to_time() {
    let mut bench = Bench::silent();
    bench.start();
    bench.hydrate().await;
    bench.announce("b1").await;
    assert!(bench.instance.live().await);
    for _ in 0..10_000 {
        if bench.instance.checks().made >= 2 {
            break;
        }
        bench.clock.advance(60_000);
        tokio::task::yield_now().await;
    }
    let checks = bench.instance.checks();
    assert!(checks.made >= 2, "{checks:?}");
    assert_eq!((checks.found, checks.standing), (0, 0), "{checks:?}");
}

// spec: SCEN-12
#[tokio::test]
async fn what_happened_is_kept_as_steps_and_decisions() {
    let mut bench = Bench::silent();
    bench.start();
    bench.hydrate().await;
    assert!(bench.instance.live().await);
    bench.instance.cordon_node("n1").await.unwrap();
    bench.instance.uncordon_node("n1").await.unwrap();
    assert!(bench.instance.cordon_node("nowhere").await.is_err());
    bench.clock.advance(90_000);
    bench.announce("b1").await;
    assert!(is_start(&bench.sent.recv().await.unwrap(), "b1"));

    let recording = bench.instance.recording(60).expect("a calm moment");
    assert_eq!(recording.nodes[0]["id"], "n1");
    assert!(recording.settings.get("url").is_none());
    let (held, steps) = recording.steps.split_first().expect("steps");
    assert!(held["hold"].is_array(), "{held:#?}");
    assert_eq!(steps[0]["cordon"], "n1", "{steps:#?}");
    assert_eq!(steps[1]["uncordon"], "n1", "{steps:#?}");
    let create = &steps[2]["createBundle"];
    assert_eq!(create["bundleId"], "b1", "{steps:#?}");
    let decided = steps.last().expect("steps");
    assert_eq!(decided["expect"]["trace"]["chosen"], "n1", "{steps:#?}");
    assert_eq!(decided["at"], 90_000, "{steps:#?}");
    assert_eq!(steps.len(), 4, "what was refused is not kept: {steps:#?}");
}

// spec: ACTS-02, CORDON-04
#[tokio::test]
async fn an_operator_is_answered_when_what_he_did_is_kept() {
    let mut bench = Bench::silent();
    bench.start();
    bench.hydrate().await;
    assert!(bench.instance.live().await);
    bench.keeps.send_replace(false);
    let cordoned = bench.instance.cordon_node("n1");
    let written = bench.kept.recv().await.unwrap();
    assert!(written.nodes[&NodeId::new("n1")].cordoned);
    // Said again, it waits for the same write, and writes nothing of its own.
    let again = bench.instance.cordon_node("n1");
    let mut both = std::pin::pin!(futures::future::join(cordoned, again));
    // It has nothing to do with what is kept, so it is answered, after both were handled.
    assert!(bench.instance.evict_node("nowhere").await.is_err());
    assert!(futures::poll!(&mut both).is_pending());
    bench.keeps.send_replace(true);
    assert_eq!(both.await, (Ok(()), Ok(())));
    assert!(bench.kept.try_recv().is_err());
    bench.instance.uncordon_node("n1").await.unwrap();
    assert!(bench.kept.try_recv().unwrap().nodes.is_empty());
    // What ends with the instance is not taken back.
    bench.instance.cordon_node("n1").await.unwrap();
    bench.kept.try_recv().unwrap();
    bench.instance.close().await;
    assert!(bench.kept.try_recv().is_err());
}

// spec: ACTS-07
#[tokio::test]
async fn what_was_not_kept_when_the_manager_died_is_left_to_the_next_instance() {
    let mut bench = Bench::silent();
    let left = Arc::clone(&bench.driver.as_ref().unwrap().unkept);
    bench.start();
    bench.hydrate().await;
    assert!(bench.instance.live().await);
    bench.keeps.send_replace(false);
    let cordoned = bench.instance.cordon_node("n1");
    bench.kept.recv().await.unwrap();
    let end = Input::StreamEnded("the Manager went away".to_owned());
    bench.inputs.send(end).await.unwrap();
    let broken = Input::Kept(Err(CallFailure::Unavailable("gone".to_owned())));
    bench.inputs.send(broken).await.unwrap();
    let Err(CallError::Api(refused)) = cordoned.await else {
        panic!("it is not kept");
    };
    assert_eq!(refused.code(), "notKept");
    assert!(bench.instance.ended().await.is_err());
    let unkept = lock(&left).take().expect("it is handed on");
    let acts = unkept.over(Acts::default(), 0, "");
    assert!(acts.nodes[&NodeId::new("n1")].cordoned);
}
