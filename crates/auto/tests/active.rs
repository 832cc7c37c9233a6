//! Goal: of several control planes one acts. Method: each on a runtime of its own, so that it can be
//! killed or held up as a process is, against a real Manager with a worker that runs nothing.
//! What an operator told the one that acts holds for the next (ACTS).

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use greenroom_auto::policy::drain::{DrainOptions, DrainPhase};
use greenroom_auto::{
    AutoManager, Clock, Current, EndError, Holder, Seat, SeatSettings, Settings, Supervisor,
    SystemClock, supervise_seated,
};
use greenroom_sdk::types::inventory::NodeInventory;
use greenroom_sdk::types::kv::{KvCommit, KvWrite};
use greenroom_sdk::types::node::NodeState;
use greenroom_sdk::types::{Millis, Mono, NodeId, Now};
use greenroom_testkit::{BOUND, FakeWorker, TestManager, bundle, within};
use tokio::runtime::Runtime;

/// A control plane as a process of its own.
struct Plane {
    runtime: Runtime,
    /// None once it was told to end.
    supervisor: Option<Supervisor>,
    current: Current,
}

impl Plane {
    fn start(manager: &TestManager, name: &str) -> Self {
        Self::with(manager, name, |_| {})
    }

    /// The same with other settings.
    fn with(
        manager: &TestManager,
        name: &str,
        change: impl FnOnce(&mut serde_json::Value),
    ) -> Self {
        Self::on(Arc::new(SystemClock::new()), manager, name, change)
    }

    /// The same on another clock.
    fn on(
        clock: Arc<dyn Clock>,
        manager: &TestManager,
        name: &str,
        change: impl FnOnce(&mut serde_json::Value),
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut tree = serde_json::json!({
            "url": manager.address().to_string(),
            "placementPools": [{
                "name": "own",
                "tiers": [{"name": "own", "kind": "local-servers", "scaleOut": "fixed"}],
            }],
        });
        change(&mut tree);
        let seat = SeatSettings {
            name: name.to_owned(),
            url: format!("http://{name}"),
        };
        let entered = runtime.enter();
        let mut settings = Settings::new(tree);
        settings.clock = clock;
        let supervisor = supervise_seated(settings, seat).unwrap();
        drop(entered);
        Self {
            current: supervisor.current(),
            runtime,
            supervisor: Some(supervisor),
        }
    }

    async fn until_active(&mut self) -> u64 {
        self.until(|seat| matches!(seat, Seat::Active { .. })).await;
        match self.current.seat() {
            Seat::Active { turn } => turn,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until it stands by and knows that the one of this name is active.
    async fn until_behind(&mut self, name: &str) -> Holder {
        self.until(|seat| matches!(seat, Seat::Standby(Some(holder)) if holder.name == name))
            .await;
        match self.current.seat() {
            Seat::Standby(Some(holder)) => holder,
            other => panic!("{other:?}"),
        }
    }

    async fn until(&mut self, wanted: impl Fn(&Seat) -> bool) {
        let there = within("the seat as wanted", self.current.until_seat(wanted)).await;
        assert!(there, "the control plane is over");
    }

    async fn live(&mut self) -> AutoManager {
        let live = self.current.next_live(None);
        within("an instance in service", live).await.expect("one")
    }

    /// As kill -9: nothing of it runs any more, and nothing is given back.
    async fn kill(self) {
        let Self {
            runtime,
            supervisor,
            ..
        } = self;
        // A runtime that is told to end takes up to some dozen turns more. The supervisor's end is an
        // order to give the seat back, so it comes only when nobody is left who could follow it.
        let ending = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(BOUND));
        within("the end of a runtime", ending).await.unwrap();
        drop(supervisor);
    }

    /// As SIGSTOP: nothing of it runs until the answer is dropped.
    fn hold_up(&self) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel::<()>();
        let (held, holds) = mpsc::channel();
        self.runtime.spawn(async move {
            held.send(()).unwrap();
            // Blocks the only thread there is.
            let _ = released.recv();
        });
        holds.recv().unwrap();
        release
    }

    async fn end(mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            let ending = self.runtime.spawn(supervisor.stop());
            within("the end of a control plane", ending).await.unwrap();
        }
        self.runtime.shutdown_background();
    }
}

/// A clock that breaks, and with it whoever reads it.
struct Brittle {
    clock: SystemClock,
    is_broken: AtomicBool,
}

impl Clock for Brittle {
    fn now(&self) -> Now {
        assert!(!self.is_broken.load(Ordering::Relaxed), "the clock broke");
        self.clock.now()
    }

    fn sleep_until(&self, at: Mono) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.clock.sleep_until(at)
    }
}

async fn worker(manager: &TestManager) -> FakeWorker {
    worker_named(manager, "studio").await.1
}

async fn worker_named(manager: &TestManager, name: &str) -> (NodeId, FakeWorker) {
    let client = manager.client().await;
    let slot = client.register_cluster_node(name, "own").await.unwrap();
    let node_id = slot.node_id.clone();
    let worker = FakeWorker::with_token(slot.token, "studio's machine").await;
    worker.show(NodeInventory {
        total_capacity: 8.0,
        ..NodeInventory::default()
    });
    worker.call_in(&client).await.unwrap();
    worker.wait_greeted(1).await;
    (node_id, worker)
}

// spec: ACTIVE-01, ACTIVE-02, ACTIVE-03, ACTIVE-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_acts_after_the_active_ones_death() {
    let manager = TestManager::start().await;
    let worker = worker(&manager).await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    let mut one = Plane::start(&manager, "one");
    assert_eq!(one.until_active().await, 1);
    let mut two = Plane::start(&manager, "two");
    let holder = two.until_behind("one").await;
    assert_eq!((holder.url.as_str(), holder.turn), ("http://one", 1));
    assert!(two.current.instance().is_none());
    let why = two.current.problem().unwrap();
    assert!(why.contains("\"one\" at http://one is active"), "{why}");

    client.create_bundle(bundle("early", &["a"])).await.unwrap();
    watch.until_last("early.0.a", "running").await;

    one.kill().await;
    assert_eq!(two.until_active().await, 2);
    client.create_bundle(bundle("late", &["a"])).await.unwrap();
    watch.until_last("late.0.a", "running").await;
    // What ran was left alone.
    let starts = |job_id: &str| {
        let orders = worker.orders();
        orders
            .iter()
            .filter(|order| order.provision_of(job_id).is_some())
            .count()
    };
    assert_eq!((starts("early.0.a"), starts("late.0.a")), (1, 1));
    two.end().await;
}

// spec: ACTIVE-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_broke_says_so_and_another_takes_the_seat() {
    let manager = TestManager::start().await;
    let clock = Arc::new(Brittle {
        clock: SystemClock::new(),
        is_broken: AtomicBool::new(false),
    });
    let mut one = Plane::on(
        Arc::clone(&clock) as Arc<dyn Clock>,
        &manager,
        "one",
        |_| {},
    );
    one.until_active().await;
    let mut two = Plane::start(&manager, "two");
    two.until_behind("one").await;

    clock.is_broken.store(true, Ordering::Relaxed);
    let mut supervisor = one.supervisor.take().unwrap();
    let ended = one.runtime.spawn(async move { supervisor.stopped().await });
    let ended = within("the end of the loop", ended).await.unwrap();
    assert_eq!(ended, Err(EndError::Broken));
    assert_eq!(two.until_active().await, 2);
    one.end().await;
    two.end().await;
}

// spec: ACTIVE-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_active_one_that_was_held_up_sends_nothing_when_it_goes_on() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut one = Plane::start(&manager, "one");
    one.until_active().await;
    let held = one.live().await;
    let mut two = Plane::start(&manager, "two");
    two.until_behind("one").await;

    let release = one.hold_up();
    assert_eq!(two.until_active().await, 2);
    // What waits for it when it goes on is decided and not sent.
    let late = held.create_bundle(bundle("late", &["a"]));
    drop(release);
    let refused = within("an answer", late).await.unwrap_err();
    assert!(
        matches!(refused.code(), "unavailable" | "closed"),
        "{refused:?}"
    );
    assert_eq!(one.until_behind("two").await.turn, 2);
    assert!(client.list_bundles().await.unwrap().is_empty());
    assert!(held.ended().await.is_ok(), "it was closed");
    assert!(one.current.instance().is_none());
    one.end().await;
    two.end().await;
}

// spec: ACTIVE-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_ends_in_order_gives_the_seat_back() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut one = Plane::start(&manager, "one");
    one.until_active().await;
    one.live().await;
    let seat = client.kv_get("control-plane", "active").await.unwrap();
    assert!(seat.is_some());
    one.end().await;
    // Nobody waits for a key that is not there.
    let seat = client.kv_get("control-plane", "active").await.unwrap();
    assert_eq!(seat, None);
    let mut two = Plane::start(&manager, "two");
    assert_eq!(two.until_active().await, 1);
    two.end().await;
}

// spec: ACTIVE-04, ACTIVE-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_manager_nobody_is_active_and_the_last_one_goes_on_with_it() {
    let mut manager = TestManager::start().await;
    let mut one = Plane::start(&manager, "one");
    assert_eq!(one.until_active().await, 1);
    let before = one.live().await;
    manager.end().await;
    one.until(|seat| matches!(seat, Seat::Standby(_))).await;
    assert!(one.current.instance().is_none());
    manager.run().await;
    assert_eq!(one.until_active().await, 2);
    let after = one.live().await;
    assert!(!after.is_same(&before), "it hydrated anew");
    one.end().await;
}

async fn kept(manager: &TestManager) -> serde_json::Value {
    let client = manager.client().await;
    let entry = client.kv_get("control-plane", "acts").await.unwrap();
    serde_json::from_slice(&entry.expect("the key").value).unwrap()
}

// spec: ACTS-01, ACTS-02, ACTS-03, CORDON-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_cordoned_takes_no_work_after_a_takeover() {
    let manager = TestManager::start().await;
    let (first, worker) = worker_named(&manager, "first").await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    let mut one = Plane::start(&manager, "one");
    one.until_active().await;
    let told = one.live().await;
    let mut two = Plane::start(&manager, "two");
    two.until_behind("one").await;
    within("a cordon", told.cordon_node(first.clone()))
        .await
        .unwrap();
    // It was written before it was acknowledged.
    assert_eq!(
        kept(&manager).await["acts"]["nodes"][first.as_str()]["cordoned"],
        true
    );

    one.kill().await;
    two.until_active().await;
    let next = two.live().await;
    assert!(next.is_cordoned(&first));
    client.create_bundle(bundle("late", &["a"])).await.unwrap();
    let (second, other) = worker_named(&manager, "second").await;
    watch.until_last("late.0.a", "running").await;
    assert_eq!(next.node_for_job(&"late.0.a".into()), Some(second));
    assert!(
        worker
            .orders()
            .iter()
            .all(|it| it.provision_of("late.0.a").is_none())
    );
    assert!(
        other
            .orders()
            .iter()
            .any(|it| it.provision_of("late.0.a").is_some())
    );

    // Taken back, it is forgotten.
    within("the end of a cordon", next.uncordon_node(first.clone()))
        .await
        .unwrap();
    assert_eq!(kept(&manager).await["acts"]["nodes"], serde_json::json!({}));
    two.end().await;
    let mut three = Plane::start(&manager, "three");
    three.until_active().await;
    assert!(!three.live().await.is_cordoned(&first));
    three.end().await;
}

// spec: CORDON-07, ACTS-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registered_server_that_is_off_is_cordoned_until_it_comes() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let slot = client.register_cluster_node("later", "own").await.unwrap();
    let mut one = Plane::start(&manager, "one");
    one.until_active().await;
    let told = one.live().await;
    let slip = within("a slip", told.cordon_node("latter")).await;
    assert_eq!(slip.unwrap_err().code(), "unknownNode");
    let both = vec![slot.node_id.clone(), "latter".into()];
    let slip = within("a slip", told.cordon_nodes(both)).await;
    assert_eq!(slip.unwrap_err().code(), "unknownNode");
    let order = told.cordon_nodes(vec![slot.node_id.clone()]);
    let waiting = within("a cordon", order).await.unwrap();
    assert_eq!(waiting, std::slice::from_ref(&slot.node_id));
    one.kill().await;

    let mut two = Plane::start(&manager, "two");
    two.until_active().await;
    let next = two.live().await;
    let mut watch = manager.watch().await;
    let worker = FakeWorker::with_token(slot.token, "machine-later").await;
    worker.show(NodeInventory {
        total_capacity: 8.0,
        ..NodeInventory::default()
    });
    within("a call", worker.call_in(&client)).await.unwrap();
    watch.until_node("later", NodeState::Running).await;
    client.create_bundle(bundle("b", &["a"])).await.unwrap();
    let (other, _worker) = worker_named(&manager, "other").await;
    watch.until_last("b.0.a", "running").await;
    assert_eq!(next.node_for_job(&"b.0.a".into()), Some(other));
    assert!(next.is_cordoned(&slot.node_id));
    two.end().await;
}

// spec: ACTS-04, LIFE-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_goes_on_under_the_next_control_plane() {
    let manager = TestManager::start().await;
    let (first, _worker) = worker_named(&manager, "first").await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    let mut one = Plane::start(&manager, "one");
    one.until_active().await;
    client.create_bundle(bundle("stays", &["a"])).await.unwrap();
    watch.until_last("stays.0.a", "running").await;
    let options = DrainOptions {
        timeout_ms: Some(Millis(3_600_000)),
        ..DrainOptions::default()
    };
    let drain = one.live().await.drain_node(first.clone(), options);
    let drain = within("a drain", drain).await.unwrap();
    // There is nowhere to go.
    assert_eq!(drain.phase, DrainPhase::Waiting);
    one.end().await;

    let mut two = Plane::start(&manager, "two");
    two.until_active().await;
    let next = two.live().await;
    let drain = next.drain_status(&first).expect("the drain goes on");
    assert_eq!((drain.phase, drain.force), (DrainPhase::Waiting, false));
    assert!(drain.timeout_ms > 3_500_000 && drain.timeout_ms <= 3_600_000);
    assert!(next.is_cordoned(&first));
    // Cancelled, it is forgotten.
    within("the end of a drain", next.uncordon_node(first.clone()))
        .await
        .unwrap();
    assert_eq!(kept(&manager).await["acts"]["nodes"], serde_json::json!({}));
    two.end().await;
}

// spec: ACTS-01, ACTS-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_that_were_set_hold_until_they_are_set_back() {
    let manager = TestManager::start().await;
    let begin = |name: &str| {
        Plane::with(&manager, name, |tree| {
            tree["hotSpares"] = serde_json::json!([{"pool": "own", "targetCount": 1}]);
            tree["templateImages"] = serde_json::json!({"enc": ["enc:1"], "dec": ["dec:1"]});
        })
    };
    let list = |count: u32| serde_json::json!([{"pool": "own", "targetCount": count}]);
    let mut one = begin("one");
    one.until_active().await;
    let told = one.live().await;
    within("a list", told.update_hot_spare_specs(list(3)))
        .await
        .unwrap();
    let enc = told.set_template_images("enc", vec!["enc:2".to_owned()]);
    within("images", enc).await.unwrap();
    within("no images", told.set_template_images("dec", Vec::new()))
        .await
        .unwrap();
    one.kill().await;

    let mut two = begin("two");
    two.until_active().await;
    let next = two.live().await;
    let (count, images) = next.read(|policy| {
        let settings = policy.settings();
        (
            settings.hot_spares[0].target_count,
            settings.template_images.clone(),
        )
    });
    assert_eq!(count, 3);
    assert_eq!(images, [("enc".into(), vec!["enc:2".to_owned()])].into());
    within("the list", next.update_hot_spare_specs(list(1)))
        .await
        .unwrap();
    for (name, image) in [("enc", "enc:1"), ("dec", "dec:1")] {
        let back = next.set_template_images(name, vec![image.to_owned()]);
        within("images", back).await.unwrap();
    }
    assert_eq!(
        kept(&manager).await["acts"],
        serde_json::json!({"nodes": {}, "templates": {}})
    );
    two.end().await;
}

// spec: ACTS-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_what_was_kept_nothing_is_decided() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let rubbish = KvCommit {
        namespace: "control-plane".to_owned(),
        writes: vec![KvWrite::set("acts", *b"rubbish")],
        ..KvCommit::default()
    };
    client.kv_commit(rubbish).await.unwrap();
    let tree = serde_json::json!({"url": manager.address().to_string()});
    let refused = AutoManager::run(Settings::new(tree))
        .await
        .expect_err("a refusal");
    let text = refused.to_string();
    assert!(
        text.contains("\"acts\"") && text.contains("no JSON"),
        "{text}"
    );
    let entry = client.kv_get("control-plane", "acts").await.unwrap();
    assert_eq!(&*entry.unwrap().value, b"rubbish", "left as it is");
}

/// The Manager dies under a cordon: whoever gave it is told, and it holds when the Manager is back.
async fn an_order_outlives_the_manager(kills: bool) {
    let mut manager = TestManager::start().await;
    let (first, worker) = worker_named(&manager, "first").await;
    let mut one = Plane::start(&manager, "one");
    one.until_active().await;
    let told = one.live().await;

    // The order reaches it ahead of the end of the stream.
    let release = one.hold_up();
    let order = told.cordon_node(first.clone());
    if kills {
        manager.kill().await;
    } else {
        manager.end().await;
    }
    drop(release);
    let refused = within("an answer", order).await.unwrap_err();
    assert_eq!(refused.code(), "notKept", "{refused:?}");
    assert!(told.is_cordoned(&first), "it holds all the same");

    manager.run().await;
    let next = one.current.next_live(Some(&told));
    let next = within("an instance in service", next).await.unwrap();
    assert!(next.is_cordoned(&first));
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    client.create_bundle(bundle("late", &["a"])).await.unwrap();
    let (second, _other) = worker_named(&manager, "second").await;
    watch.until_last("late.0.a", "running").await;
    assert_eq!(next.node_for_job(&"late.0.a".into()), Some(second));
    let of_first = worker.orders();
    assert!(
        of_first
            .iter()
            .all(|it| it.provision_of("late.0.a").is_none())
    );
    // It was written before anything that comes later is answered.
    within("an order", next.cordon_node("second")).await.ok();
    assert_eq!(
        kept(&manager).await["acts"]["nodes"][first.as_str()]["cordoned"],
        true
    );
    one.end().await;
}

// spec: ACTS-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_ordered_outlives_the_death_of_the_manager() {
    an_order_outlives_the_manager(true).await;
}

// spec: ACTS-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_ordered_outlives_the_end_of_the_manager() {
    an_order_outlives_the_manager(false).await;
}

// spec: ACTS-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_kept_gives_way_to_what_another_control_plane_was_told() {
    let manager = TestManager::start().await;
    let (first, _worker) = worker_named(&manager, "first").await;
    let (second, _other) = worker_named(&manager, "second").await;
    let mut one = Plane::start(&manager, "one");
    one.until_active().await;
    let told = one.live().await;
    let mut two = Plane::start(&manager, "two");
    two.until_behind("one").await;

    let release = one.hold_up();
    let late = told.cordon_node(first.clone());
    two.until_active().await;
    let other = two.live().await;
    let order = other.cordon_node(second.clone());
    within("a cordon", order).await.unwrap();
    drop(release);
    let refused = within("an answer", late).await.unwrap_err();
    assert_eq!(refused.code(), "notKept", "{refused:?}");
    one.until_behind("two").await;

    two.end().await;
    one.until_active().await;
    let next = one.live().await;
    assert!(next.is_cordoned(&second) && !next.is_cordoned(&first));
    one.end().await;
}
