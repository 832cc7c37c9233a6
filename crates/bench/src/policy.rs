//! The whole policy: events in, effects out, as many as a large installation has at its worst moments.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_policy::{CallId, Effect, Effects, Event, IdSource, Policy, Settings};
use greenroom_types::bundle::{Bundle, BundleJob, BundleJobStatus, BundleStatus};
use greenroom_types::call::{Call, Reply};
use greenroom_types::inventory::NodeInventory;
use greenroom_types::job::{
    At, AutoPlacement, HistoryEntry, HistoryKind, Job, JobState, JobWithHistory,
};
use greenroom_types::node::{NodeMetadata, NodeStoppingReason, RunningNodeMetadata};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{Mono, Now, Role, StartId, Wall};
use serde_json::json;

use crate::fleets::node_id;
use crate::measure::{Samples, allocated, timed};
use crate::table::{Table, micros, whole};

const START: Wall = Wall(1_767_225_600_000);
/// vCPUs of every node.
pub(crate) const SIZE: f64 = 12.0;
pub(crate) const JOBS: usize = 10;

/// A policy, and what it did.
pub(crate) struct World {
    pub(crate) policy: Policy,
    pub(crate) now: Now,
    pub(crate) calls: Vec<(CallId, Call)>,
}

impl World {
    pub(crate) fn new(tier: serde_json::Value) -> Self {
        let now = Now {
            mono: Mono(0),
            wall: START,
        };
        let tree =
            json!({"url": "127.0.0.1:1", "placementPools": [{"name": "p", "tiers": [tier]}]});
        let settings = Settings::parse(&tree).expect("the settings are valid");
        Self {
            policy: Policy::new(settings, now, IdSource::seeded(1)).without_traces(),
            now,
            calls: Vec::new(),
        }
    }

    fn handle(&mut self, event: Event) {
        let mut out = Effects::new();
        self.policy.handle(self.now, event, &mut out);
        for effect in out.drain() {
            if let Effect::Call { call_id, call } = effect {
                self.calls.push((call_id, call));
            }
        }
    }

    pub(crate) fn send(&mut self, event: StreamEvent) {
        self.handle(Event::Stream(event));
    }

    pub(crate) fn later(&mut self, ms: u64) {
        self.now.mono = Mono(self.now.mono.0 + ms);
        self.now.wall = self.now.wall.plus(ms as i64);
    }

    pub(crate) fn starts(&self) -> usize {
        let start = |call: &&(CallId, Call)| matches!(call.1, Call::StartJob(_));
        self.calls.iter().filter(start).count()
    }

    pub(crate) fn purchases(&self) -> usize {
        let buys = |call: &&(CallId, Call)| matches!(call.1, Call::CreateAwsNode(_));
        self.calls.iter().filter(buys).count()
    }

    /// The Manager accepts everything.
    pub(crate) fn accept_all(&mut self) {
        for (call_id, _) in std::mem::take(&mut self.calls) {
            let result = Ok(Reply::Done);
            self.handle(Event::Reply { call_id, result });
        }
    }
}

pub(crate) fn own() -> serde_json::Value {
    json!({"name": "t", "kind": "local-servers", "scaleOut": "fixed"})
}

pub(crate) fn cloud() -> serde_json::Value {
    json!({"name": "t", "kind": "aws", "scaleOut": "elastic", "region": "r", "placementLeadMs": 0,
        "candidateInstanceTypes": [{"instanceType": "c", "totalCapacity": SIZE, "totalCores": 12}]})
}

pub(crate) fn inventory() -> Arc<NodeInventory> {
    Arc::new(NodeInventory {
        total_capacity: SIZE,
        total_cores: 12,
        ..NodeInventory::default()
    })
}

fn metadata(at: usize) -> Arc<NodeMetadata> {
    Arc::new(NodeMetadata {
        node_id: node_id(at),
        tags: [
            ("pool", "p"),
            ("tier", "t"),
            ("az", ["a", "b", "c"][at % 3]),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
        created_at: START,
        ..NodeMetadata::default()
    })
}

pub(crate) fn node_events(at: usize) -> [StreamEvent; 2] {
    [
        StreamEvent::NodeRunning {
            metadata: metadata(at),
            running: Arc::new(RunningNodeMetadata::default()),
            instances: Vec::new(),
            reachable: true,
        },
        StreamEvent::NodeInventorySnapshot {
            node_id: node_id(at),
            inventory: inventory(),
        },
    ]
}

/// A bundle of plain jobs as the Manager tells it; its jobs run on that node, or nowhere yet.
pub(crate) fn bundle_events(
    at: usize,
    jobs: usize,
    capacity: f64,
    node: Option<usize>,
) -> Vec<StreamEvent> {
    let bundle = Bundle {
        bundle_id: format!("bundle-{at:05}").into(),
        pool: "p".into(),
        jobs: (0..jobs)
            .map(|nth| {
                let mut job = BundleJob {
                    job_name: format!("job-{nth}").into(),
                    ..BundleJob::default()
                };
                job.requirements.required_capacity = capacity;
                job
            })
            .collect(),
        revision: 1,
        ..Bundle::default()
    };
    let mut statuses = Vec::new();
    let mut events = Vec::new();
    let place = node.map(metadata);
    for (nth, spec) in bundle.jobs.iter().enumerate() {
        let job_id = bundle.job_id(0, &spec.job_name);
        let entry = |seq, start_id, kind| HistoryEntry {
            at: START,
            seq,
            start_id,
            kind,
        };
        let mut history = vec![entry(1, None, HistoryKind::Created)];
        if let Some(node) = &place {
            let start = Some(StartId::new(format!("{:032x}", at * JOBS + nth)));
            let there = At {
                role: Role::new("primary"),
                node: Arc::clone(node),
                running: None,
            };
            history.push(entry(
                2,
                start.clone(),
                HistoryKind::Provisioned(there.clone()),
            ));
            let kind = HistoryKind::Running {
                at: there,
                ports: BTreeMap::new(),
            };
            history.push(entry(3, start, kind));
        }
        let job = Arc::new(JobWithHistory {
            job: Job {
                job_id: job_id.clone(),
                tags: [
                    ("bundleId", bundle.bundle_id.as_str()),
                    ("replicaIndex", "0"),
                    ("jobName", spec.job_name.as_str()),
                ]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
                auto_placement: Some(AutoPlacement {
                    bundle_id: bundle.bundle_id.clone(),
                    replica_index: 0,
                    job_name: spec.job_name.clone(),
                    requirements: spec.requirements.clone(),
                }),
                ..Job::default()
            },
            current_hash: 1,
            history,
            state: if place.is_some() {
                JobState::Active
            } else {
                JobState::default()
            },
            ..JobWithHistory::default()
        });
        events.push(if place.is_some() {
            StreamEvent::JobActive(job)
        } else {
            StreamEvent::JobPending(job)
        });
        statuses.push(BundleJobStatus {
            job_id,
            replica_index: 0,
            job_name: spec.job_name.clone(),
            dormant: false,
            terminal_state: None,
        });
    }
    let status = Arc::new(BundleStatus {
        bundle,
        jobs: statuses,
        lease_expires_at: None,
    });
    events.insert(0, StreamEvent::BundleActive(status));
    events
}

pub(crate) fn snapshot(world: &mut World, events: Vec<StreamEvent>) {
    for event in events {
        world.send(event);
    }
}

fn tell(world: &mut World, events: &[StreamEvent]) {
    for event in events {
        world.send(event.clone());
    }
}

pub(crate) fn end_of_snapshot(world: &mut World) {
    world.send(StreamEvent::InitialDataComplete(Vec::new()));
}

fn seconds(nanos: f64) -> String {
    format!("{:.3}", nanos / 1e9)
}

/// PERF-03.
pub(crate) fn mass(scale: usize) -> Table {
    let (nodes, bundles) = (10_000 / scale, 10_000 / scale);
    let title = format!(
        "{} jobs onto {nodes} empty nodes, the whole policy",
        bundles * JOBS
    );
    let mut table = Table::new(title, &["what", "value"]);
    let mut world = World::new(own());
    snapshot(&mut world, (0..nodes).flat_map(node_events).collect());
    let events: Vec<StreamEvent> = (0..bundles)
        .flat_map(|at| bundle_events(at, JOBS, 1.0, None))
        .collect();
    // Somebody else keeps what the stream told: it is not the policy's, and its end no gain.
    let (((), taking), bytes, _) = allocated(|| timed(|| tell(&mut world, &events)));
    let (((), deciding), more, _) = allocated(|| timed(|| end_of_snapshot(&mut world)));
    let jobs = world.starts();
    let (((), answering), back, _) = allocated(|| timed(|| world.accept_all()));
    table.fact("placed", whole(jobs as f64));
    table.fact("taking the snapshot, CPU s", seconds(taking));
    table.fact("deciding, CPU s", seconds(deciding));
    table.fact("us a job", micros(deciding / jobs.max(1) as f64));
    table.fact("taking the replies, CPU s", seconds(answering));
    table.fact(
        "bytes a job before it is placed",
        whole(bytes / (bundles * JOBS) as f64),
    );
    table.fact(
        "bytes a job more once placed and its call answered",
        whole((more + back) / jobs.max(1) as f64),
    );
    table
}

/// PERF-05.
pub(crate) fn pending(scale: usize) -> Table {
    let (nodes, jobs) = (10_000 / scale, 10_000 / scale);
    let title = format!("{jobs} jobs that fit nowhere, {nodes} nodes, inventories coming in");
    let mut table = Table::new(title, &["what", "value"]);
    let mut world = World::new(own());
    snapshot(&mut world, (0..nodes).flat_map(node_events).collect());
    let events = (0..jobs).flat_map(|at| bundle_events(at, 1, SIZE * 2.0, None));
    snapshot(&mut world, events.collect());
    let ((), first) = timed(|| end_of_snapshot(&mut world));
    table.fact("first pass over all, CPU s", seconds(first));
    world.later(60_000);
    let update = |world: &mut World, at: usize, capacity: f64| {
        let mut picture = NodeInventory::clone(&inventory());
        picture.total_capacity = capacity;
        world.send(StreamEvent::NodeInventoryUpdated {
            node_id: node_id(at % nodes),
            inventory: Arc::new(picture),
        });
    };
    let ((), same) = timed(|| (0..1_000).for_each(|at| update(&mut world, at, SIZE)));
    table.fact("1 000 updates that change nothing, CPU s", seconds(same));
    // Costly as it may be: a few, and by ten.
    let ((), grown) = timed(|| (0..20).for_each(|at| update(&mut world, at, SIZE + 0.5)));
    table.fact(
        "1 000 updates that make room, CPU s (20 measured)",
        seconds(grown * 50.0),
    );
    table
}

/// Nodes that carry their jobs for an hour already.
pub(crate) fn all_at_work(nodes: usize) -> World {
    let mut world = World::new(cloud());
    snapshot(&mut world, (0..nodes).flat_map(node_events).collect());
    let events = (0..nodes).flat_map(|at| bundle_events(at, JOBS, 1.0, Some(at)));
    snapshot(&mut world, events.collect());
    end_of_snapshot(&mut world);
    world.later(3_600_000);
    world.calls.clear();
    world
}

/// PERF-06.
pub(crate) fn recovery(scale: usize) -> Table {
    let nodes = 10_000 / scale;
    let lost = nodes / 3;
    let title = format!(
        "{lost} of {nodes} nodes lost at once, {} jobs on them",
        lost * JOBS
    );
    let mut table = Table::new(title, &["what", "value"]);
    let mut world = all_at_work(nodes);
    let mut samples = Samples::default();
    let ((), spent) = timed(|| {
        for at in 0..lost {
            samples.take(|| {
                world.send(StreamEvent::NodeStopping {
                    node_id: node_id(at),
                    reason: NodeStoppingReason::HealthPingTimeExceeded,
                    detail: String::new(),
                    provider_code: String::new(),
                });
            });
        }
    });
    table.fact("deciding everything, CPU s", seconds(spent));
    table.fact("us a job", micros(spent / (lost * JOBS) as f64));
    table.fact(
        "p99 of one node's loss, us",
        micros(samples.percentile(99.0)),
    );
    table.fact("mean of one node's loss, us", micros(samples.mean()));
    table.fact("starts sent", whole(world.starts() as f64));
    table.fact("machines asked for", whole(world.purchases() as f64));
    table
}

/// PERF-07.
pub(crate) fn hydration(scale: usize) -> Table {
    let nodes = 10_000 / scale;
    let title = format!("{nodes} nodes, {} running jobs with history", nodes * JOBS);
    let mut table = Table::new(title, &["what", "value"]);
    let mut world = World::new(own());
    let mut events: Vec<StreamEvent> = (0..nodes).flat_map(node_events).collect();
    events.extend((0..nodes).flat_map(|at| bundle_events(at, JOBS, 1.0, Some(at))));
    events.extend(bundle_events(nodes, 1, 1.0, None));
    let ((), taking) = timed(|| snapshot(&mut world, events));
    let ((), deciding) = timed(|| end_of_snapshot(&mut world));
    table.fact("taking the snapshot, CPU s", seconds(taking));
    table.fact(
        "end of snapshot to the first decision, CPU s",
        seconds(deciding),
    );
    table.fact("together, CPU s", seconds(taking + deciding));
    table.fact(
        "starts sent (1 job was waiting)",
        whole(world.starts() as f64),
    );
    table
}
