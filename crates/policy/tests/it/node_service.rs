//! Node services (NSVC).

use greenroom_policy::{ApiCall, CallFailure, Effect};
use greenroom_types::NodeId;
use greenroom_types::call::{Call, Reply, Status};
use greenroom_types::inventory::{AssignedJob, Capability, NodeInventory};
use greenroom_types::job::{Job, JobState, StopReason};
use greenroom_types::stream::StreamEvent;
use serde_json::{Value, json};

use crate::world::{World, bundle, fixed, inventory, job, needing, refused, settings};

const SECOND: u64 = 1_000;

fn service(more: Value) -> Value {
    let mut service = json!({"serviceId": "s", "pools": ["p"],
        "jobSpec": {"launch": {"services": [{"name": "svc"}]}}});
    for (key, value) in more.as_object().unwrap() {
        service[key] = value.clone();
    }
    service
}

fn on(services: Value) -> Value {
    json!({"experimental": {"nodeServices": true}, "nodeServices": services})
}

/// In service with these nodes; what the first pass did is still to be looked at.
fn with(more: Value, nodes: &[&str]) -> World {
    let mut w = World::cold(settings(fixed(), on(json!([service(more)]))));
    for id in nodes {
        w.snapshot_node(id, "own", inventory(4.0));
    }
    w.complete();
    w
}

/// The job of the service on a node.
fn job_on(w: &World, node: &str) -> Option<String> {
    let placed = w.policy.node_service_placements_for(&"s".into());
    placed.get(&NodeId::new(node)).map(ToString::to_string)
}

/// Calls, with the jobs of services by the order of their creation.
fn calls(w: &mut World) -> Vec<String> {
    numbered(w, World::calls)
}

fn acts(w: &mut World) -> Vec<String> {
    numbered(w, World::acts)
}

fn numbered(w: &mut World, take: fn(&mut World) -> Vec<String>) -> Vec<String> {
    let lines = take(w);
    let names: Vec<String> = created(w)
        .iter()
        .map(|job| job.job_id.to_string())
        .collect();
    lines
        .into_iter()
        .map(|line| {
            let numbered = |line: String, (at, name): (usize, &String)| {
                line.replace(name, &format!("s#{}", at + 1))
            };
            names.iter().enumerate().fold(line, numbered)
        })
        .collect()
}

fn created(w: &World) -> Vec<Job> {
    w.all
        .iter()
        .filter_map(|effect| match effect {
            Effect::Call {
                call: Call::CreateJob(job),
                ..
            } => Some(job.as_ref().clone()),
            _ => None,
        })
        .collect()
}

fn picture(w: &mut World, id: &str, picture: NodeInventory) {
    w.send(StreamEvent::NodeInventoryUpdated {
        node_id: NodeId::new(id),
        inventory: picture.into(),
    });
}

fn able(count: u32, taken: u32) -> NodeInventory {
    let cards = |count| Capability {
        name: "card".into(),
        count,
        attributes: [("kind".to_owned(), "sdi".to_owned())].into(),
    };
    NodeInventory {
        capabilities: vec![cards(count)],
        reserved_capabilities: vec![cards(taken)],
        ..inventory(4.0)
    }
}

// spec: NSVC-01, NSVC-03, NSVC-07
#[test]
fn every_node_of_its_pools_gets_one_and_getters_tell() {
    let mut w = with(json!({}), &["n1", "n2"]);
    assert_eq!(
        calls(&mut w),
        [
            "createJob s#1",
            "createJob s#2",
            "start s#1 nodeService on n1",
            "start s#2 nodeService on n2",
        ]
    );
    let services = w.policy.node_services();
    assert_eq!(services.len(), 1);
    assert_eq!(services[0].service_id.as_str(), "s");
    let placed = w.policy.node_service_placements_for(&"s".into());
    assert_eq!(placed.len(), 2);
    assert!(w.policy.node_service_placements_for(&"t".into()).is_empty());
    w.at(600 * SECOND);
    assert!(calls(&mut w).is_empty(), "passes find nothing to do");
    w.joins("n3", 4.0);
    assert_eq!(
        calls(&mut w),
        ["createJob s#3", "start s#3 nodeService on n3"]
    );
}

// spec: NSVC-01, NSVC-02
#[test]
fn a_node_of_another_pool_or_without_a_picture_gets_none() {
    let mut w = with(json!({}), &[]);
    w.tag("n1", "own", "pool", "q");
    w.joins("n1", 4.0);
    w.hello("n2");
    assert!(calls(&mut w).is_empty());
    picture(
        &mut w,
        "n2",
        NodeInventory {
            reachable: false,
            ..inventory(4.0)
        },
    );
    assert!(calls(&mut w).is_empty(), "nobody hears it");
    w.picture("n2", 4.0);
    assert_eq!(calls(&mut w).len(), 2);
    // Another pool by its tags is the end of it there, and the beginning on the other.
    w.tag("n2", "own", "pool", "q");
    let metadata = w.metadata("n2", "own");
    w.send(StreamEvent::NodeTagsUpdated {
        metadata,
        revision: 1,
    });
    assert_eq!(
        calls(&mut w),
        ["stop s#1/nodeService on n2", "deleteJob s#1"]
    );
}

// spec: NSVC-02, NSVC-08
#[test]
fn what_it_consumes_must_be_free_and_its_own_use_counts_not() {
    let needs = json!([{"name": "card", "count": 2, "attributeMatches": {"kind": "sdi"}}]);
    let mut w = with(json!({"consumes": needs}), &["n1"]);
    assert!(calls(&mut w).is_empty(), "no card at all");
    picture(&mut w, "n1", able(2, 1));
    assert!(calls(&mut w).is_empty(), "one is taken");
    let mut wrong = able(2, 0);
    wrong.capabilities[0].attributes = [("kind".to_owned(), "ip".to_owned())].into();
    picture(&mut w, "n1", wrong);
    assert!(calls(&mut w).is_empty(), "of another kind");
    picture(&mut w, "n1", able(2, 0));
    assert_eq!(calls(&mut w).len(), 2);
    picture(&mut w, "n1", able(2, 2));
    assert!(calls(&mut w).is_empty(), "those are its own");
    picture(&mut w, "n1", able(2, 3));
    assert_eq!(
        calls(&mut w),
        ["stop s#1/nodeService on n1", "deleteJob s#1"],
        "more than its own is taken"
    );
}

// spec: NSVC-02, NSVC-08
#[test]
fn a_bundle_job_with_the_same_capability_stands_in_its_way() {
    let needs = json!([{"name": "card", "count": 2}]);
    let mut w = with(json!({"consumes": needs}), &["n1"]);
    w.hold = true;
    picture(&mut w, "n1", able(2, 0));
    w.hold = false;
    w.answer();
    assert!(job_on(&w, "n1").is_some());
    // The worker has not reported its use: placement sees the cards as free.
    let card = needing(
        "e",
        json!({"requiredCapabilities": [{"name": "card", "count": 2}]}),
    );
    w.submit(bundle("a", json!([card])));
    assert_eq!(w.node_of("a.0.e").unwrap(), "n1");
    w.took();
    picture(&mut w, "n1", able(2, 2));
    assert_eq!(
        calls(&mut w),
        ["stop s#1/nodeService on n1", "deleteJob s#1"]
    );
}

// spec: NSVC-04, NSVC-11, BIND-03
#[test]
fn the_job_is_the_template_with_two_tags_and_an_id_of_its_own() {
    let more = json!({
        "provides": [{"name": "ndi", "count": 3}],
        "jobSpec": {"tags": {"team": "x"}, "launch": {"services": [{"name": "svc"}]}},
    });
    let mut w = with(more, &[]);
    w.hold = true;
    w.joins("n1", 4.0);
    // Recorded before the calls are answered.
    let job_id = job_on(&w, "n1").unwrap();
    assert_eq!(calls(&mut w), ["createJob s#1"]);
    let suffix = job_id.strip_prefix("s.").unwrap();
    assert_eq!(suffix.len(), 8);
    assert!(suffix.bytes().all(|b| b.is_ascii_hexdigit()));
    let job = created(&w).remove(0);
    let tags: Vec<(&str, &str)> = job
        .tags
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        tags,
        [
            ("auto-manager", "true"),
            ("nodeService", "s"),
            ("team", "x")
        ]
    );
    assert_eq!(job.services[0].name, "svc");
    // The worker is told what it provides; placement is not.
    assert_eq!(job.provides[0].name, "ndi");
    let wants = needing(
        "e",
        json!({"requiredCapabilities": [{"name": "ndi", "count": 1}]}),
    );
    w.submit(bundle("a", json!([wants])));
    assert_eq!(w.filtered()["n1"], "insufficientCapabilities");
    w.took();
    w.hold = false;
    w.answer();
    assert_eq!(calls(&mut w), ["start s#1 nodeService on n1"]);
    w.tell(&job_id);
    w.runs(&job_id);
    assert!(w.policy.node_for_job(&job_id.as_str().into()).is_none());
    let view = w.policy.nodes().remove(0);
    assert!(view.jobs.is_empty(), "no job of the node's");
}

// spec: NSVC-05
#[test]
fn a_failed_call_leaves_nothing_behind() {
    let mut w = with(json!({}), &[]);
    w.refuse(
        "CreateJob",
        1,
        refused(Status::ResourceExhausted, "too_many_jobs"),
    );
    w.joins("n1", 4.0);
    assert_eq!(
        acts(&mut w),
        [
            "onNodeStarted n1",
            "call createJob s#1",
            "onError nodeServiceFailed"
        ]
    );
    assert!(job_on(&w, "n1").is_none());
    w.picture("n1", 4.0);
    assert!(calls(&mut w).is_empty(), "not at once again");
    w.refuse("StartJob", 1, refused(Status::FailedPrecondition, "no"));
    w.at(6 * SECOND);
    assert_eq!(
        acts(&mut w),
        [
            "call createJob s#2",
            "call start s#2 nodeService on n1",
            "onError nodeServiceFailed",
            "call deleteJob s#2"
        ]
    );
    assert!(job_on(&w, "n1").is_none());
    // Whether it was created is not known: deleted to be sure.
    w.refuse("CreateJob", 1, CallFailure::TimedOut);
    w.at(12 * SECOND);
    assert_eq!(
        acts(&mut w),
        [
            "call createJob s#3",
            "onError nodeServiceFailed",
            "call deleteJob s#3"
        ]
    );
}

// spec: NSVC-03
#[test]
fn it_is_not_started_where_its_worker_would_refuse_it_nor_ended_for_that() {
    let unable: [fn(&mut NodeInventory); 3] = [
        |it| it.disk_low = true,
        |it| it.runtime = "unavailable".to_owned(),
        |it| it.runtime = "docker 29.0".to_owned(),
    ];
    for change in unable {
        let mut w = with(json!({}), &[]);
        let mut low = inventory(4.0);
        change(&mut low);
        w.hello("n1");
        picture(&mut w, "n1", low.clone());
        assert_eq!(calls(&mut w), [""; 0]);
        picture(&mut w, "n1", inventory(4.0));
        assert_eq!(
            calls(&mut w),
            ["createJob s#1", "start s#1 nodeService on n1"]
        );
        picture(&mut w, "n1", low);
        assert_eq!(calls(&mut w), [""; 0], "what runs there goes on");
        assert!(job_on(&w, "n1").is_some());
    }
}

// spec: NSVC-03, NSVC-06, NSVC-07, CORDON-02
#[test]
fn a_cordoned_node_loses_it_and_gets_it_back() {
    let mut w = with(json!({}), &["n1"]);
    w.took();
    w.refuse("StopJob", 1, refused(Status::NotFound, "unknown_instance"));
    w.refuse("DeleteJob", 1, refused(Status::Unavailable, "later"));
    let node_id = NodeId::new("n1");
    w.api(ApiCall::CordonNode {
        node_id: node_id.clone(),
    });
    assert_eq!(
        acts(&mut w),
        ["call stop s#1/nodeService on n1", "call deleteJob s#1"],
        "failures are tolerated"
    );
    assert!(job_on(&w, "n1").is_none());
    w.api(ApiCall::UncordonNode { node_id });
    assert_eq!(
        calls(&mut w),
        ["createJob s#2", "start s#2 nodeService on n1"]
    );
    // The other cordon does the same.
    picture(
        &mut w,
        "n1",
        NodeInventory {
            cordoned: true,
            ..inventory(4.0)
        },
    );
    assert_eq!(
        calls(&mut w),
        ["stop s#2/nodeService on n1", "deleteJob s#2"]
    );
}

// spec: NSVC-04, NSVC-06
#[test]
fn a_start_that_is_no_longer_wanted_ends_with_its_job() {
    let mut w = with(json!({}), &[]);
    w.hold = true;
    w.joins("n1", 4.0);
    w.api(ApiCall::CordonNode {
        node_id: NodeId::new("n1"),
    });
    assert_eq!(calls(&mut w), ["createJob s#1"], "nothing to stop so far");
    let (call_id, _) = w.next_call();
    w.answer_one(call_id, Ok(Reply::JobHash(1)));
    assert_eq!(calls(&mut w), ["deleteJob s#1"]);
}

// spec: NSVC-07
#[test]
fn what_was_on_a_lost_node_is_forgotten_and_started_anew_on_its_return() {
    let mut w = with(json!({}), &["n1"]);
    let job_id = job_on(&w, "n1").unwrap();
    w.runs(&job_id);
    w.took();
    w.stopping("n1");
    assert!(job_on(&w, "n1").is_none());
    // Its job goes with it, so that its instance does not come back beside a second one.
    assert_eq!(calls(&mut w), ["deleteJob s#1"]);
    w.stopped("n1");
    assert!(calls(&mut w).is_empty());
    w.joins("n1", 4.0);
    assert_eq!(
        calls(&mut w),
        ["createJob s#2", "start s#2 nodeService on n1"]
    );
    w.stopped("n1");
    assert!(job_on(&w, "n1").is_none(), "without a stopping before it");
}

// spec: NSVC-07, CONF-08
#[test]
fn the_tick_finds_what_no_event_told() {
    let tick = json!({"nodeServiceReconcileIntervalMs": 20_000});
    let mut more = on(json!([service(json!({}))]));
    more["nodeServiceReconcileIntervalMs"] = tick["nodeServiceReconcileIntervalMs"].clone();
    let mut w = World::cold(settings(fixed(), more));
    w.snapshot_node("n1", "own", inventory(4.0));
    w.complete();
    w.took();
    w.send(StreamEvent::NodeReachabilityChanged {
        node_id: NodeId::new("n1"),
        reachable: false,
    });
    w.at(19_999);
    assert!(calls(&mut w).is_empty());
    w.at(20_000);
    assert_eq!(
        calls(&mut w),
        ["stop s#1/nodeService on n1", "deleteJob s#1"]
    );
}

/// An instance of an earlier policy: its job, running on that node since then.
fn predecessor(w: &mut World, job_id: &str, service: &str, node: &str) {
    let mut job = Job {
        job_id: job_id.into(),
        ..Job::default()
    };
    for (key, value) in [("auto-manager", "true"), ("nodeService", service)] {
        job.tags.insert(key.to_owned(), value.to_owned());
    }
    w.accept_job(&job);
    let start_id = w.started_before(job_id, "nodeService", node);
    w.run_of(job_id, "nodeService", node, &start_id);
}

// spec: NSVC-09
#[test]
fn a_restart_takes_over_what_runs() {
    let mut w = World::cold(settings(fixed(), on(json!([service(json!({}))]))));
    for id in ["n1", "n2"] {
        w.snapshot_node(id, "own", inventory(4.0));
    }
    predecessor(&mut w, "s.00000001", "s", "n1");
    // A second one on the same node, one of a service that is gone, and one that never ran.
    w.now.wall = w.now.wall.plus(1_000);
    predecessor(&mut w, "s.00000000", "s", "n1");
    predecessor(&mut w, "old.00000002", "old", "n2");
    let mut idle = w.jobs["s.00000001"].clone();
    idle.job.job_id = "s.00000003".into();
    idle.state = JobState::Pre;
    idle.history.truncate(1);
    w.jobs.insert("s.00000003".into(), idle);
    for id in ["s.00000000", "s.00000001", "old.00000002", "s.00000003"] {
        let job = w.jobs[id].clone().into();
        w.send(StreamEvent::JobActive(job));
    }
    w.took();
    w.complete();
    assert_eq!(
        calls(&mut w),
        [
            "stop old.00000002/nodeService on n2",
            "deleteJob old.00000002",
            "stop s.00000000/nodeService on n1",
            "deleteJob s.00000000",
            "deleteJob s.00000003",
            "createJob s#1",
            "start s#1 nodeService on n2",
        ]
    );
    assert_eq!(job_on(&w, "n1").unwrap(), "s.00000001");
}

// spec: NSVC-10
#[test]
fn one_that_ends_by_itself_comes_back_after_five_seconds() {
    let mut w = with(json!({}), &["n1"]);
    for round in 1_u64..10 {
        let job_id = job_on(&w, "n1").unwrap();
        w.runs(&job_id);
        w.took();
        w.ends(&job_id, StopReason::JobFailed);
        assert!(job_on(&w, "n1").is_none());
        assert_eq!(calls(&mut w), [format!("deleteJob s#{round}")]);
        w.over(&job_id);
        w.picture("n1", 4.0);
        let since = w.now.mono.0;
        w.at(since + 4_999);
        assert!(calls(&mut w).is_empty(), "round {round}");
        w.at(since + 5_000);
        let next = round + 1;
        assert_eq!(
            calls(&mut w),
            [
                format!("createJob s#{next}"),
                format!("start s#{next} nodeService on n1")
            ],
            "no ceiling, no verdict"
        );
    }
    let job_id = job_on(&w, "n1").unwrap();
    w.runs(&job_id);
    // Somebody stops it, and somebody deletes the next one.
    w.ends(&job_id, StopReason::UserRequested);
    assert!(job_on(&w, "n1").is_some(), "it is there until it is over");
    w.over(&job_id);
    assert!(job_on(&w, "n1").is_none());
    let since = w.now.mono.0;
    w.at(since + 5_000);
    let job_id = job_on(&w, "n1").unwrap();
    w.took();
    w.send(StreamEvent::JobDeleted(job_id.as_str().into()));
    assert!(job_on(&w, "n1").is_none());
    assert!(calls(&mut w).is_empty());
    assert_eq!(w.metrics().jobs_dropped, 0);
}

// spec: PORT-06
#[test]
fn its_ports_are_taken_before_it_runs() {
    let spec = json!({"requirements": {"requiredHostPorts": ["8080/tcp"]}});
    let mut w = with(json!({"jobSpec": spec}), &[]);
    w.hold = true;
    w.joins("n1", 4.0);
    w.submit(bundle(
        "a",
        json!([needing("e", json!({"requiredHostPorts": ["8080/TCP"]}))]),
    ));
    assert_eq!(w.filtered()["n1"], "hostPortConflict");
}

// spec: HARD-111, RESV-06
#[test]
fn a_spare_with_a_node_service_is_a_spare_still() {
    let mut more = on(json!([service(json!({}))]));
    more["hotSpares"] = json!([{"pool": "p", "targetCount": 1}]);
    let mut w = World::cold(settings(fixed(), more));
    w.tag("n1", "own", "spare", "true");
    w.snapshot_node("n1", "own", inventory(4.0));
    w.complete();
    let job_id = job_on(&w, "n1").unwrap();
    w.runs(&job_id);
    let assigned = AssignedJob {
        job_id: job_id.as_str().into(),
        role: "nodeService".into(),
        ..AssignedJob::default()
    };
    picture(
        &mut w,
        "n1",
        NodeInventory {
            assigned_jobs: vec![assigned],
            ..inventory(4.0)
        },
    );
    let node_id = NodeId::new("n1");
    assert!(w.policy.is_unconsumed_spare(&node_id));
    assert_eq!(w.policy.spare_count(&"p".into()).live, 1);
    let reserved = w.metrics().pools[0].used_capacity_fraction;
    assert_eq!(reserved, 0.0);
    w.took();
    w.api(ApiCall::DrainNode {
        node_id,
        options: Default::default(),
    });
    let took = calls(&mut w);
    assert!(took.contains(&"terminate n1".to_owned()), "{took:?}");
    assert!(!took.iter().any(|call| call.starts_with("start ")));
}

// spec: NSVC-01
#[test]
fn without_the_switch_there_are_none() {
    let mut w = World::with(fixed(), &[("n1", 4.0)]);
    assert!(w.policy.node_services().is_empty());
    w.submit(bundle("a", json!([job("e")])));
    let ticks = w.policy.next_deadline().map(|deadline| deadline.timer);
    assert!(ticks != Some(greenroom_policy::Timer::ServiceTick));
    assert!(w.calls().iter().all(|call| !call.contains("nodeService")));
}
