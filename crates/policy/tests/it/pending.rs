//! Many pending jobs: what a pass costs, and that its short cuts change no answer (PEND).

use greenroom_types::bundle::{Bundle, OnLaunch};
use greenroom_types::stream::StreamEvent;
use serde_json::json;

use crate::world::{World, bundle, fixed, inventory, needing, settings, sized, tiers};

/// So many bundles of one job of that size, named by number from `from`.
fn many(w: &mut World, from: usize, count: usize, size: f64) {
    for n in from..from + count {
        w.submit(bundle(&format!("b{n:05}"), json!([sized("e", size)])));
    }
}

fn attempts(w: &World) -> u64 {
    w.metrics().placements_attempted
}

/// A node that nobody knows is told as stopped: something may have changed anywhere.
fn stir(w: &mut World) {
    w.send(StreamEvent::NodeStopped {
        node_id: "nobody".into(),
    });
}

fn failures(took: &[String]) -> usize {
    let failed = took
        .iter()
        .filter(|line| line.starts_with("onPlacementFailed"));
    failed.count()
}

// spec: PEND-08, LAUNCH-07
#[test]
fn a_pass_runs_the_engine_once_for_each_kind_of_job_that_fits_nowhere() {
    let mut w = World::with(fixed(), &[("n", 1.0)]);
    many(&mut w, 0, 100, 2.0);
    many(&mut w, 100, 100, 3.0);
    many(&mut w, 200, 100, 2.0);
    let took = w.took();
    // Each bundle that is announced is a reason to look again, at one job of each kind.
    let each = (0..300).all(|n| took.contains(&format!("onPlacementFailed b{n:05}.0.e")));
    assert!(each, "each is told");
    let before = attempts(&w);
    assert!(
        before < 300 * 3 + 2,
        "{before} tries for 300 jobs of 2 kinds"
    );
    for pass in 1..=5 {
        stir(&mut w);
        assert_eq!(attempts(&w), before + 2 * pass, "one try for each size");
        let took = w.took();
        let told: Vec<&str> = took[1..].iter().map(String::as_str).collect();
        assert_eq!(
            told,
            [
                "decide b00000.0.e failure",
                "onPlacementFailed b00000.0.e",
                "onError noCapacityInAnyPool",
                "decide b00100.0.e failure",
                "onPlacementFailed b00100.0.e",
                "onError noCapacityInAnyPool",
            ],
            "each try is told anew and counted anew"
        );
    }
    let metrics = w.metrics();
    assert_eq!(metrics.placements_failed, metrics.placements_attempted);
    // Pictures of a node on which nothing fits cost no try at all.
    for n in 0..50 {
        w.picture("n", 1.0 + f64::from(n % 2) / 2.0);
    }
    assert_eq!(w.metrics(), metrics);
    assert!(w.took().is_empty());
}

// spec: PEND-08, PEND-04
#[test]
fn room_for_three_goes_to_the_first_three() {
    let mut w = World::with(fixed(), &[("n", 1.0)]);
    many(&mut w, 0, 50, 2.0);
    let before = attempts(&w);
    w.took();
    w.picture("n", 6.5);
    assert_eq!(
        w.calls(),
        [
            "start b00000.0.e primary on n",
            "start b00001.0.e primary on n",
            "start b00002.0.e primary on n"
        ]
    );
    assert_eq!(attempts(&w), before + 4, "and one that finds it full");
}

// spec: PEND-08
#[test]
fn a_job_that_has_just_become_pending_is_told_though_its_kind_fits_nowhere() {
    let mut w = World::with(fixed(), &[("n", 4.0), ("m", 1.0)]);
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    w.runs("a.0.e");
    many(&mut w, 0, 10, 4.0);
    w.took();
    w.stopping("n");
    let took = w.took();
    assert!(
        took.contains(&"onPlacementFailed a.0.e".to_owned()),
        "{took:?}"
    );
    stir(&mut w);
    // From now on it is one of its kind.
    assert_eq!(failures(&w.took()), 1);
}

// spec: PEND-08
#[test]
fn what_is_bought_for_one_kind_may_hold_another() {
    // The only shape is too small for the large one; of the small ones two share a node.
    let pools = tiers(&[("t1", &[("c4", 4.0)], Some(1))]);
    let mut w = World::with(pools, &[]);
    w.joins("x", 4.0);
    w.tag("x", "t1", "pool", "p");
    w.tag("x", "t1", "tier", "t1");
    let metadata = w.metadata("x", "t1");
    w.send(StreamEvent::NodeTagsUpdated {
        metadata,
        revision: 1,
    });
    w.submit(bundle("full", json!([sized("e", 4.0)])));
    many(&mut w, 0, 3, 2.0);
    assert_eq!(w.node_of("b00000.0.e"), None, "at the cap");
    w.took();
    // The cap is free again: the first buys, the second joins it, the third finds no room.
    w.send(StreamEvent::JobDeleted("full.0.e".into()));
    w.took();
    assert_eq!(w.node_of("b00000.0.e"), w.node_of("b00001.0.e"));
    assert!(w.node_of("b00000.0.e").is_some());
    assert_eq!(w.node_of("b00002.0.e"), None);
}

// spec: PEND-08, SPARE-18
#[test]
fn a_spare_that_is_taken_is_reserved_no_more_for_the_kind_that_failed_before() {
    let mut w = World::cold(settings(fixed(), json!({})));
    w.tag("s", "own", "spare", "true");
    w.tag("s", "own", "reservedFor", "enc");
    w.tag("s", "own", "exclusive", "true");
    w.snapshot_node("s", "own", inventory(1.0));
    w.complete();
    // Two that the reservation keeps out, one that it admits, two more that it keeps out.
    let of_template = |id: &str| {
        let spec = json!({"jobName": "e", "requirements": {"requiredCapacity": 2},
            "launch": {"template": "enc"}});
        let mut a = bundle(id, json!([spec]));
        a.on_launch = OnLaunch::AllowSpare;
        a
    };
    many(&mut w, 0, 2, 2.0);
    w.submit(of_template("enc"));
    many(&mut w, 2, 2, 2.0);
    w.took();
    w.picture("s", 8.0);
    assert_eq!(
        w.calls(),
        [
            "start enc.0.e primary on s",
            "start b00002.0.e primary on s",
            "start b00003.0.e primary on s"
        ],
        "those before it had their try"
    );
}

/// Bundles of every sort, so that classes of their own are among them.
fn sorts(n: u64) -> Bundle {
    let id = format!("b{n:03}");
    let size = 1.0 + (n % 3) as f64;
    match n % 7 {
        0 => {
            let mut a = bundle(&id, json!([sized("e", size)]));
            a.resilience_policy = Some(Default::default());
            a
        }
        1 => {
            let with = json!({"jobName": "f", "coLocateWith": ["e"],
                "requirements": {"requiredCapacity": size}});
            bundle(&id, json!([sized("e", size), with]))
        }
        2 => {
            let alone = json!({"jobName": "e", "exclusive": true,
                "requirements": {"requiredCapacity": size}});
            bundle(&id, json!([alone]))
        }
        3 => {
            let port = json!({"requiredCapacity": 1, "requiredHostPorts": ["80/tcp"]});
            bundle(&id, json!([needing("e", port)]))
        }
        _ => bundle(&id, json!([sized("e", size)])),
    }
}

/// Where each job is after each of many random events; with `each_alone` no two jobs are of a kind,
/// so that every pass tries every job.
fn eventful(seed: u64, each_alone: bool) -> Vec<Option<String>> {
    let mut w = World::with(fixed(), &[("n0", 2.0), ("n1", 3.0)]);
    let mut x = seed;
    let mut dice = move |sides: u64| {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % sides
    };
    for n in 0..40 {
        let mut a = sorts(n);
        if each_alone {
            // A template of its own makes every job a class of its own.
            for spec in &mut a.jobs {
                spec.launch.template = Some(format!("t{n}-{}", spec.job_name).as_str().into());
            }
        }
        w.submit(a);
    }
    let jobs: Vec<String> = w.jobs.keys().map(ToString::to_string).collect();
    let mut places = Vec::new();
    for _ in 0..60 {
        let ms = w.now.mono.0 + 1_000 + dice(9_000);
        w.at(ms);
        let node = format!("n{}", dice(6));
        let job = &jobs[usize::try_from(dice(jobs.len() as u64)).unwrap()];
        match dice(5) {
            0 => w.joins(&node, 1.0 + dice(8) as f64),
            1 | 2 => w.picture(&node, 1.0 + dice(8) as f64),
            3 => w.stopping(&node),
            _ if w.jobs[job.as_str()].terminal_state.is_none() && w.node_of(job).is_some() => {
                w.runs(job);
                w.fails(job);
            }
            _ => w.hello(&node),
        }
        places.extend(jobs.iter().map(|job| w.node_of(job)));
    }
    places
}

// spec: PEND-08, PEND-04
#[test]
fn passing_over_changes_no_placement() {
    let mut placed = 0;
    for seed in 1..6 {
        let (short, full) = (eventful(seed, false), eventful(seed, true));
        placed += short.iter().flatten().count();
        assert_eq!(short, full, "seed {seed}");
    }
    assert!(placed > 300, "something was placed: {placed}");
}

// spec: PEND-02, INTRA-08
#[test]
fn an_inventory_that_changes_a_zone_is_heard_by_jobs_that_it_binds_elsewhere() {
    let pools = json!([{"name": "p", "tiers": [
        {"name": "oci", "kind": "oci", "scaleOut": "elastic", "region": "ad-1", "maxNodes": 1,
         "placementLeadMs": 0,
         "candidateInstanceTypes": [{"instanceType": "s", "totalCapacity": 1, "totalCores": 1}]},
        {"name": "own", "kind": "local-servers", "scaleOut": "fixed"},
    ]}]);
    let mut w = World::with(pools, &[]);
    w.tag("x", "own", "az", "hall-9");
    let mut hard = bundle("a", json!([sized("e", 1.0), sized("f", 1.0)]));
    hard.intra_replica_placement.same_az = greenroom_types::bundle::SameAz::Hard;
    w.submit(hard);
    w.joins("x", 1.0);
    assert_eq!(w.node_of("a.0.e").unwrap(), "@1");
    w.hello("@1");
    assert_eq!(w.filtered()["x"], "intraReplicaAz");
    w.took();
    // The zone that was asked for is not in its tags: from its own picture on, none is known.
    w.picture("@1", 1.0);
    assert_eq!(w.calls(), ["start a.0.f primary on x"]);
}
