//! Nodes come, fall silent, are given up and come back.

use std::time::Duration;

use greenroom_sdk::IdleExpiry;
use greenroom_sdk::types::call::CreateAwsNode;
use greenroom_sdk::types::job::StopReason;
use greenroom_sdk::types::node::{NodeState, NodeStoppingReason};
use greenroom_sdk::types::stream::StreamEvent;
use greenroom_sdk::types::{Millis, StartId};
use greenroom_testkit::{
    FakeWorker, Honesty, Received, TestManager, Watch, job, key, kinds, start,
};

use super::{history, running, start_of, stopping_of, stops, until_audited};

/// Where in what a subscriber saw an event stands first.
fn place(watch: &Watch, look: impl Fn(&StreamEvent) -> bool) -> usize {
    let found = watch.seen().iter().position(|stamped| look(&stamped.event));
    found.unwrap_or_else(|| panic!("no such event among {:#?}", watch.seen()))
}

fn is_node_started(event: &StreamEvent) -> bool {
    matches!(event, StreamEvent::NodeStarted { .. })
}

fn is_inventory(event: &StreamEvent) -> bool {
    matches!(event, StreamEvent::NodeInventoryUpdated { .. })
}

async fn until_inventory(watch: &mut Watch) {
    watch
        .until("an inventory", |event| is_inventory(event).then_some(()))
        .await;
}

// spec: MNODE-07, LOCAL-05
#[tokio::test]
async fn a_worker_calls_in_is_dialled_says_hello_and_its_node_runs() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    let worker = FakeWorker::register(&client, "n1").await;
    assert_eq!(watch.mirror().nodes.len(), 0, "a slot is no node yet");
    assert_eq!(worker.call_in(&client).await.unwrap().as_str(), "n1");
    until_inventory(&mut watch).await;
    worker.wait_greeted(1).await;

    let starting = place(&watch, |event| {
        matches!(event, StreamEvent::NodeStarting { .. })
    });
    let started = place(&watch, is_node_started);
    assert!(starting < started && started < place(&watch, is_inventory));
    let StreamEvent::NodeStarted { running, .. } = &watch.seen()[started].event else {
        unreachable!("it was found as such");
    };
    assert_eq!(running.provider_id, "machine of n1");
    let nodes = client.list_nodes().await.unwrap();
    assert_eq!(nodes[0].state, NodeState::Running);
    assert!(nodes[0].last_seen.is_some() && nodes[0].inventory.is_some());
}

// spec: MNODE-10, MNODE-11, HARDM-06, FIELD-21
#[tokio::test]
async fn a_stream_that_drops_and_comes_back_in_time_touches_no_job() {
    let manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let start_id = running(&client, &mut watch, &worker, "on-air").await;
    let before = history(&client, "on-air").await;
    worker.wait_acknowledged().await;

    worker.cut();
    watch.until_node("n1", NodeState::Unreachable).await;
    let node = client.list_nodes().await.unwrap().remove(0);
    assert!(!node.inventory.unwrap().reachable);
    worker.mend();
    watch.until_node("n1", NodeState::Running).await;
    until_inventory(&mut watch).await;
    worker.wait_greeted(2).await;

    assert_eq!(history(&client, "on-air").await, before);
    assert!(worker.instances().contains_key(&start_id));
    assert_eq!(stops(&worker, "on-air"), 0);
    assert_eq!(super::provisions(&worker, "on-air"), 1);
    let told_of_more = watch.seen().iter().any(|stamped| {
        matches!(
            stamped.event,
            StreamEvent::NodeStopping { .. } | StreamEvent::NodeStarted { .. }
        )
    });
    assert!(!told_of_more);
}

// spec: MNODE-09
#[tokio::test]
async fn a_worker_that_says_nothing_is_taken_as_dropped_though_its_stream_is_open() {
    let manager = TestManager::start_with(|settings| {
        TestManager::patient(settings);
        settings.links.silence = Duration::from_millis(1_500);
    })
    .await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    watch.until_node("n1", NodeState::Running).await;
    worker.fall_silent();
    watch.until_node("n1", NodeState::Unreachable).await;
    worker.wake();
    watch.until_node("n1", NodeState::Running).await;
    worker.wait_greeted(2).await;
}

// spec: MNODE-12
#[tokio::test]
async fn a_worker_that_stays_away_is_given_up_and_then_stopped() {
    let manager = TestManager::start_with(TestManager::impatient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    running(&client, &mut watch, &worker, "on-air").await;
    worker.cut();
    let reason = watch
        .until("node_stopping", |event| match event {
            StreamEvent::NodeStopping { reason, .. } => Some(*reason),
            _ => None,
        })
        .await;
    assert_eq!(reason, NodeStoppingReason::HealthPingTimeExceeded);
    let shown = watch.until_last("on-air", "stopping").await;
    assert_eq!(stopping_of(&shown).0, StopReason::NodeStopped);
    watch
        .until_mirror("node n1 stopped", |mirror| mirror.nodes.is_empty())
        .await;
    assert_eq!(
        kinds(&history(&client, "on-air").await),
        ["created", "provisioned", "running", "stopping"],
        "nobody knows that it is over"
    );
}

/// Gives a node up but keeps its record stopping.
fn given_up_and_kept(settings: &mut greenroom_manager::Settings) {
    TestManager::impatient(settings);
    settings.waits.keepalive_ms = Millis(3_600_000);
}

// spec: HARDM-08, MNODE-07, MNODE-13
#[tokio::test]
async fn an_instance_on_a_node_that_comes_back_is_taken_back_as_it_is() {
    let manager = TestManager::start_with(given_up_and_kept).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let start_id = running(&client, &mut watch, &worker, "on-air").await;
    worker.cut();
    watch.until_node("n1", NodeState::Stopping).await;
    watch.until_last("on-air", "stopping").await;
    let lost_at = watch.seen().len();
    worker.mend();
    until_inventory(&mut watch).await;

    let shown = watch.until_last("on-air", "running").await;
    assert_eq!(
        kinds(&shown),
        ["created", "provisioned", "running", "stopping", "running"]
    );
    assert_eq!(start_of(&shown), start_id);
    assert_eq!(
        (
            stops(&worker, "on-air"),
            super::provisions(&worker, "on-air")
        ),
        (0, 1)
    );
    // Started, then jobs, then the inventory.
    let order: Vec<&str> = watch.seen()[lost_at..]
        .iter()
        .filter_map(|stamped| match &stamped.event {
            StreamEvent::NodeStarted { .. } => Some("started"),
            StreamEvent::JobUpdated(_) => Some("job"),
            StreamEvent::NodeInventoryUpdated { .. } => Some("inventory"),
            _ => None,
        })
        .collect();
    assert_eq!(order, ["started", "job", "inventory"]);
}

// spec: HARDM-07, MNODE-13
#[tokio::test]
async fn an_instance_that_runs_elsewhere_by_now_is_stopped_when_its_node_comes_back() {
    let manager = TestManager::start_with(given_up_and_kept).await;
    let client = manager.client().await;
    let (n1, n2) = (manager.worker("n1").await, manager.worker("n2").await);
    let mut watch = manager.watch().await;
    let old = running(&client, &mut watch, &n1, "on-air").await;
    n1.cut();
    watch.until_node("n1", NodeState::Stopping).await;
    watch.until_last("on-air", "stopping").await;
    client.start_job(start("on-air", "n2")).await.unwrap();
    let shown = watch.until_last("on-air", "running").await;
    let new = start_of(&shown);
    assert_ne!(old, new);

    n1.mend();
    let (start_id, reason) = n1
        .wait_order("a stop", |order| match order {
            Received::Stop {
                start_id, reason, ..
            } => Some((start_id.clone(), reason.clone())),
            _ => None,
        })
        .await;
    assert_eq!((start_id, reason.as_str()), (old.clone(), "UNKNOWN"));
    n1.wait_acknowledged().await;
    assert_eq!(stops(&n2, "on-air"), 0);
    let shown = history(&client, "on-air").await;
    let of = |start: &StartId| {
        let mut own = shown.clone();
        own.history
            .retain(|entry| entry.start_id.as_ref() == Some(start));
        kinds(&own)
    };
    assert_eq!(of(&old), ["provisioned", "running", "stopping", "stopped"]);
    assert_eq!(of(&new), ["provisioned", "running"]);
}

// spec: JOB-25, HARDM-09
#[tokio::test]
async fn a_stop_for_a_node_out_of_reach_is_delivered_once_when_it_is_back() {
    let manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let old = running(&client, &mut watch, &worker, "on-air").await;
    worker.cut();
    watch.until_node("n1", NodeState::Unreachable).await;
    client
        .stop_job(key("on-air"), "n1", Some(Millis(2_500)))
        .await
        .unwrap();
    watch.until_last("on-air", "stopping").await;
    let refused = client.start_job(start("on-air", "n1")).await.unwrap_err();
    assert_eq!(
        refused.reason(),
        "already_on_node",
        "it holds its key to the end"
    );

    worker.mend();
    watch.until_last("on-air", "stopped").await;
    client.start_job(start("on-air", "n1")).await.unwrap();
    let shown = watch.until_last("on-air", "running").await;
    assert_ne!(start_of(&shown), old);
    let told: Vec<_> = worker
        .orders()
        .into_iter()
        .filter_map(|order| match order {
            Received::Stop {
                start_id, grace_ms, ..
            } => Some((start_id, grace_ms)),
            _ => None,
        })
        .collect();
    assert_eq!(told, [(old, 2_500)]);
}

// spec: API-14, MNODE-14, LOCAL-16
#[tokio::test]
async fn a_terminated_slot_stops_its_jobs_parks_its_worker_and_stays_registered() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    running(&client, &mut watch, &worker, "on-air").await;
    client.terminate_node("n1").await.unwrap();
    client.terminate_node("n1").await.expect("repeated: OK");
    let parks = worker
        .wait_order("a shutdown", |order| match order {
            Received::Shutdown { park, .. } => Some(*park),
            _ => None,
        })
        .await;
    assert!(parks);
    let shown = watch.until_last("on-air", "stopped").await;
    assert_eq!(stopping_of(&shown).0, StopReason::NodeTerminated);
    worker.cut();
    watch
        .until_mirror("node n1 stopped", |mirror| mirror.nodes.is_empty())
        .await;
    let slots = client.list_cluster_nodes().await.unwrap();
    assert_eq!((slots.len(), slots[0].active), (1, false));
    let refused = client.terminate_node("nowhere").await.unwrap_err();
    assert_eq!(refused.reason(), "unknown_node");
}

// spec: HELLO-06
#[tokio::test]
async fn a_worker_of_another_major_is_not_served() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    let worker = FakeWorker::register(&client, "n1").await;
    worker.pretend(Honesty::OtherMajor);
    worker.call_in(&client).await.unwrap();
    let reason = watch
        .until("node_stopping", |event| match event {
            StreamEvent::NodeStopping { reason, .. } => Some(*reason),
            _ => None,
        })
        .await;
    assert_eq!(
        reason,
        NodeStoppingReason::InitialisationHealthPingTimeExceeded
    );
    assert_eq!(worker.greeted(), 0);
    until_audited(&client, "worker_protocol", 1).await;
}

// spec: MNODE-08, HARDM-15
#[tokio::test]
async fn who_answers_at_a_workers_address_without_its_key_learns_nothing() {
    let manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let worker = manager.worker("n1").await;
    let mut watch = manager.watch().await;
    let mut secret = job("secret-show");
    secret.services[0].configuration = "the secret line".to_owned();
    client.create_job(secret).await.unwrap();
    worker.cut();
    watch.until_node("n1", NodeState::Unreachable).await;
    client.start_job(start("secret-show", "n1")).await.unwrap();
    let heard_before = worker.heard().len();

    let strangers = [Honesty::WrongKey, Honesty::WrongNode, Honesty::WrongMachine];
    for (told, honesty) in (1..).zip(strangers) {
        worker.pretend(honesty);
        let dialled = worker.dialled();
        worker.mend();
        worker.wait_dialled(dialled + 1).await;
        until_audited(&client, "worker_auth_failed", told).await;
        worker.cut();
    }
    let heard = worker.heard().split_off(heard_before);
    for secret in [
        "secret-show",
        "the secret line",
        worker.token().reveal(),
        &worker.key_hex(),
    ] {
        assert!(!heard.contains(secret), "{secret} was told to a stranger");
    }
    assert_eq!(worker.greeted(), 1);
    assert_eq!(
        watch.mirror().nodes["n1"],
        NodeState::Unreachable,
        "the node is left as it was"
    );

    worker.pretend(Honesty::Honest);
    worker.mend();
    watch.until_last("secret-show", "running").await;
}

// spec: API-12, API-23
#[tokio::test]
async fn nodes_are_listed_in_pages_that_are_cuts_of_one_state() {
    use greenroom_sdk::proto::manager::ListNodesRequest;
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    let mut workers = Vec::new();
    for name in ["e", "c", "a", "d", "b"] {
        let worker = FakeWorker::register(&client, name).await;
        worker.cut();
        worker.call_in(&client).await.unwrap();
        workers.push(worker);
    }
    let page = async |page_token: &str| {
        let request = ListNodesRequest {
            page_size: 2,
            page_token: page_token.to_owned(),
        };
        let answer = client
            .raw()
            .unwrap()
            .list_nodes(request)
            .await
            .unwrap()
            .into_inner();
        let names: Vec<_> = answer
            .nodes
            .into_iter()
            .map(|node| node.metadata.unwrap().node_id.unwrap().node_id)
            .collect();
        (names.join(" "), answer.next_page_token)
    };
    let (first, token) = page("").await;
    assert_eq!(first, "a b");
    client.deregister_cluster_node("d").await.unwrap();
    watch
        .until_mirror("node d gone", |mirror| {
            mirror.nodes.contains_key("e") && !mirror.nodes.contains_key("d")
        })
        .await;
    let (second, next) = page(&token).await;
    assert_eq!(second, "c d", "as it was when the list was begun");
    assert_eq!(page(&next).await, ("e".to_owned(), String::new()));
    assert_eq!(page(&token).await.0, "c d", "a lost page can be had again");
    let request = ListNodesRequest {
        page_token: "nodes.zz".to_owned(),
        ..ListNodesRequest::default()
    };
    let refused = client.raw().unwrap().list_nodes(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
}

// spec: IDLE-02, IDLE-03
#[tokio::test]
async fn an_elastic_node_has_an_idle_expiry_and_an_owned_server_has_none() {
    let manager = TestManager::start_with(|settings| {
        let providers = &mut settings.ledger.providers;
        providers.insert(greenroom_ledger::Provider::Aws, Default::default());
        settings.ledger.idle_expiry_ms = Millis(600_000);
    })
    .await;
    let owned = manager.worker("studio").await;
    let client = manager.client().await;
    let node = CreateAwsNode {
        node_id: "spot-7".into(),
        region: "eu-west-1".to_owned(),
        instance_type: "m7i.large".to_owned(),
        ..CreateAwsNode::default()
    };
    client.create_aws_node(node).await.unwrap();
    let all = Duration::from_secs(600);
    let none_of_its_own = IdleExpiry {
        own: None,
        effective: Some(all),
    };
    assert_eq!(
        client.get_node_idle_expiry("spot-7").await,
        Ok(none_of_its_own)
    );
    let own = Duration::from_secs(30);
    client
        .set_node_idle_expiry("spot-7", Some(own))
        .await
        .unwrap();
    let expected = IdleExpiry {
        own: Some(own),
        effective: Some(own),
    };
    assert_eq!(client.get_node_idle_expiry("spot-7").await, Ok(expected));
    let nodes = client.list_nodes().await.unwrap();
    let shown = nodes
        .iter()
        .find(|it| it.metadata.node_id.as_str() == "spot-7");
    assert_eq!(shown.unwrap().idle_expiry_ms, 30_000);
    client.set_node_idle_expiry("spot-7", None).await.unwrap();
    assert_eq!(
        client.get_node_idle_expiry("spot-7").await,
        Ok(none_of_its_own)
    );

    let node_id = owned.node_id();
    let refused = client
        .set_node_idle_expiry(node_id.clone(), Some(own))
        .await;
    assert_eq!(refused.unwrap_err().reason(), "not_elastic");
    let none = client.get_node_idle_expiry(node_id).await;
    assert_eq!(none, Ok(IdleExpiry::default()));
    let refused = client.get_node_idle_expiry("nowhere").await.unwrap_err();
    assert_eq!(refused.reason(), "unknown_node");
}

// spec: FIELD-53
#[tokio::test]
async fn a_new_machine_at_the_address_of_a_dead_one_is_not_taken_for_it() {
    let manager = TestManager::start_with(TestManager::patient).await;
    let client = manager.client().await;
    let mut watch = manager.watch().await;
    let first = manager.worker("n1").await;
    let start_id = running(&client, &mut watch, &first, "on-air").await;
    let first_token = first.token().clone();
    let slot = client.register_cluster_node("n2", "").await.unwrap();
    let second = first.succeed(slot.token, "machine of n2").await;
    watch.until_node("n1", NodeState::Unreachable).await;
    second.call_in(&client).await.unwrap();
    watch.until_node("n2", NodeState::Running).await;
    running(&client, &mut watch, &second, "other").await;
    let nodes = client.list_nodes().await.unwrap();
    let state = |name: &str| {
        nodes
            .iter()
            .find(|it| it.metadata.node_id.as_str() == name)
            .unwrap()
            .state
    };
    assert_eq!(state("n1"), NodeState::Unreachable);
    assert_eq!((second.dialled(), second.greeted()), (1, 1));

    // Ending the dead one touches nothing of the machine that has its address.
    client.terminate_node("n1").await.unwrap();
    watch.until_node("n1", NodeState::Stopping).await;
    client.create_job(job("marker")).await.unwrap();
    client.start_job(start("marker", "n2")).await.unwrap();
    second.wait_provision("marker").await;
    let told = second.heard();
    assert!(!told.contains(start_id.as_str()), "{told}");
    assert!(
        second
            .orders()
            .iter()
            .all(|order| order.stop_of("other").is_none())
    );

    // The first machine, back at another address, is itself.
    let back = FakeWorker::with_token(first_token, "machine of n1").await;
    assert_eq!(back.call_in(&client).await.unwrap().as_str(), "n1");
}
