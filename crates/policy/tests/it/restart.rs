//! What one instance leaves to the next (LIFE, CORDON, HYDR).

use greenroom_policy::drain::{DrainOptions, DrainPhase};
use greenroom_policy::migration::Strategy;
use greenroom_policy::{ApiCall, Event};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{Millis, NodeId};
use serde_json::{Value, json};

use crate::world::{World, bundle, cloud, fixed, inventory, job, settings, sized};

/// A new instance over what the Manager knows: its jobs, its bundles, and these nodes as running.
fn restarted(w: &World, pools: Value, nodes: &[&str]) -> World {
    let mut next = World::cold(settings(pools, json!({})));
    next.now = w.now;
    next.jobs.clone_from(&w.jobs);
    next.bundles.clone_from(&w.bundles);
    next.nodes.clone_from(&w.nodes);
    for id in nodes {
        let node_id = w.long(id);
        next.snapshot_node(node_id.as_str(), "own", inventory(4.0));
    }
    for job in w.jobs.values() {
        next.send(StreamEvent::JobActive(job.clone().into()));
    }
    for status in w.bundles.values() {
        next.send(StreamEvent::BundleActive(status.clone().into()));
    }
    next
}

fn drain(w: &mut World, node: &str) {
    let node_id = w.long(node);
    w.api(ApiCall::DrainNode {
        node_id,
        options: DrainOptions::default(),
    });
}

/// The same, told what was kept.
fn told(w: &World, pools: Value, nodes: &[&str]) -> World {
    let mut next = restarted(w, pools, nodes);
    next.handle(Event::Acts(Box::new(w.policy.acts())));
    next
}

// spec: CORDON-04, ACTS-03
#[test]
fn a_cordon_outlives_the_instance_ahead_of_the_first_decision() {
    let mut w = World::with(fixed(), &[("n", 4.0), ("m", 4.0)]);
    w.api(ApiCall::CordonNode {
        node_id: "n".into(),
    });
    assert!(w.policy.acts_to_keep().is_some());
    assert!(w.policy.acts_to_keep().is_none(), "told once");
    w.at(24 * 3_600_000);
    assert!(w.policy.is_cordoned(&"n".into()), "as long as it lives");
    w.submit(bundle("a", json!([sized("e", 4.0)])));
    w.submit(bundle("b", json!([sized("e", 4.0)])));
    assert_eq!(w.node_of("a.0.e").unwrap(), "m");
    let mut next = told(&w, fixed(), &["n", "m"]);
    next.complete();
    assert!(next.policy.is_cordoned(&NodeId::new("n")));
    assert_eq!(
        next.node_of("b.0.e"),
        None,
        "placed as ever, on what is open"
    );
    next.api(ApiCall::UncordonNode {
        node_id: "n".into(),
    });
    assert_eq!(next.node_of("b.0.e").unwrap(), "n");
    assert!(next.policy.acts().is_empty());
    // Without what was kept there is none, but where the provider takes the node (INTR-14).
    w.tag("m", "own", "interruption", "spotInterruption");
    let mut untold = restarted(&w, fixed(), &["n", "m"]);
    untold.complete();
    assert!(!untold.policy.is_cordoned(&NodeId::new("n")));
    assert!(untold.policy.is_cordoned(&NodeId::new("m")));
}

// spec: ACTS-05
#[test]
fn a_cordon_waits_a_week_for_its_server() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let node_id = NodeId::new("n");
    w.api(ApiCall::CordonNode {
        node_id: node_id.clone(),
    });
    // It is not there when the next instance begins, and comes back.
    let mut next = told(&w, fixed(), &[]);
    next.complete();
    assert!(next.policy.acts().nodes.contains_key(&node_id));
    next.at(6 * 24 * 3_600_000);
    next.joins("n", 4.0);
    assert!(next.policy.is_cordoned(&node_id));
    // Or it never does.
    let mut next = told(&w, fixed(), &[]);
    next.complete();
    next.at(7 * 24 * 3_600_000 + 300_000);
    assert!(next.policy.acts().is_empty());
    // Nobody waits for one whose cordon was lifted meanwhile.
    let mut next = told(&w, fixed(), &[]);
    next.complete();
    next.api(ApiCall::UncordonNode { node_id });
    assert!(next.policy.acts().is_empty());
}

// spec: ACTS-04
#[test]
fn a_drain_is_taken_up_again_with_the_time_that_is_left_to_it() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.api(ApiCall::DrainNode {
        node_id: "n".into(),
        options: DrainOptions {
            timeout_ms: Some(Millis(600_000)),
            force: true,
            ..DrainOptions::default()
        },
    });
    w.at(100_000);
    let mut next = told(&w, fixed(), &["n", "m"]);
    next.complete();
    let state = next.policy.drain_status(&"n".into()).unwrap().clone();
    assert_eq!((state.timeout_ms, state.force), (500_000, true));
    assert_eq!(state.phase, DrainPhase::Migrating, "there is a place now");
    // Its time ran out while no instance acted: what is there has a minute to move.
    w.jump(24 * 3_600_000);
    let mut late = told(&w, fixed(), &["n"]);
    late.now = w.now;
    late.complete();
    assert!(
        !late
            .calls()
            .iter()
            .any(|call| call.starts_with("terminate"))
    );
    let begun = w.now.mono.0;
    late.at(begun + 59_999);
    assert!(
        !late
            .calls()
            .iter()
            .any(|call| call.starts_with("terminate"))
    );
    late.at(begun + 60_000);
    assert!(
        late.calls()
            .iter()
            .any(|call| call.starts_with("terminate n"))
    );
}

// spec: ACTS-06
#[test]
fn what_would_be_too_much_to_keep_is_refused_and_changes_nothing() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    let images: Vec<String> = (0..256).map(|at| format!("{at:0>500}")).collect();
    let mut set = Vec::new();
    let refused = loop {
        let template = format!("t{}", set.len());
        let call = ApiCall::SetTemplateImages {
            template: template.as_str().into(),
            refs: images.clone(),
        };
        let id = w.api(call);
        match w.results[&id].clone() {
            Ok(_) => set.push(template),
            Err(refused) => break refused,
        }
        assert!(set.len() < 100, "there is no limit");
    };
    assert_eq!(refused.code(), "tooMuchKept");
    assert!(refused.to_string().contains("changes nothing"), "{refused}");
    let known = w.policy.settings().template_images.len();
    assert_eq!(known, set.len());
    // A cordon is urgent and has its room; so has what makes the whole smaller.
    let node_id = w.long("n");
    let id = w.api(ApiCall::CordonNode {
        node_id: node_id.clone(),
    });
    assert!(w.results[&id].is_ok(), "{:?}", w.results[&id]);
    let strategies = (0..40_000).map(|at| (format!("job-{at}").as_str().into(), Strategy::Overlap));
    let id = w.api(ApiCall::DrainNode {
        node_id: node_id.clone(),
        options: DrainOptions {
            strategies: strategies.collect(),
            ..DrainOptions::default()
        },
    });
    assert_eq!(w.results[&id].as_ref().unwrap_err().code(), "tooMuchKept");
    assert!(w.policy.acts().nodes[&node_id].drain.is_none());
    let id = w.api(ApiCall::SetTemplateImages {
        template: set[0].as_str().into(),
        refs: Vec::new(),
    });
    assert!(w.results[&id].is_ok());
}

// spec: ACTS-05
#[test]
fn a_list_of_spares_that_fits_no_more_is_told_and_forgotten() {
    let mut w = World::with(fixed(), &[]);
    let list = json!([{"pool": "p", "targetCount": 2}]);
    w.api(ApiCall::UpdateHotSpareSpecs { hot_spares: list });
    let kept = w.policy.acts();
    assert_eq!(kept.hot_spares.as_ref().unwrap()[0].target_count, 2);
    let mut next = told(&w, fixed(), &[]);
    next.complete();
    assert_eq!(next.policy.settings().hot_spares[0].target_count, 2);
    let other = json!([{"name": "q", "tiers": [{"name": "own", "kind": "local-servers",
        "scaleOut": "fixed"}]}]);
    let mut next = told(&w, other, &[]);
    next.took();
    next.complete();
    let took = next.took();
    assert!(
        took.iter().any(|line| line.contains("actForgotten")),
        "{took:?}"
    );
    assert!(next.policy.settings().hot_spares.is_empty());
    assert!(next.policy.acts().is_empty());
}

// spec: LIFE-08, DRAIN-16
#[test]
fn drains_and_deferred_recoveries_just_end_and_the_next_instance_places() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.submit(bundle("b", json!([job("e")])));
    w.runs("b.0.e");
    // The second failure within 5 s waits for its distance.
    for _ in 0..2 {
        w.runs("a.0.e");
        w.fails("a.0.e");
    }
    assert_eq!(w.node_of("a.0.e"), None);
    drain(&mut w, "n");
    w.took();
    w.api(ApiCall::Close);
    assert_eq!(w.took(), ["reply 2 ok", "close in order"], "without a word");
    assert!(w.policy.next_deadline().is_none());
    w.at(24 * 3_600_000);
    assert!(w.took().is_empty());
    let mut next = restarted(&w, fixed(), &["n"]);
    next.took();
    next.complete();
    assert_eq!(next.calls(), ["start a.0.e primary on n"]);
    assert_eq!(next.node_of("b.0.e").unwrap(), "n", "it ran all the time");
    assert!(next.policy.drain_status(&"n".into()).is_none());
}

// spec: HYDR-10, CEIL-01
#[test]
fn a_crash_loop_does_not_escape_its_ceiling_by_restarts_of_the_policy() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    for minute in 0..7_u64 {
        w.at(minute * 60_000);
        assert!(w.node_of("a.0.e").is_some(), "minute {minute}");
        w.runs("a.0.e");
        w.fails("a.0.e");
        if minute < 6 {
            w.runs("a.0.e");
            let mut next = restarted(&w, fixed(), &["n"]);
            next.complete();
            let counted = usize::try_from(minute).unwrap() + 1;
            assert_eq!(next.restarts("a.0.e"), counted);
            // Old ones run out as they would have.
            next.at(3_600_000);
            assert_eq!(next.restarts("a.0.e"), counted - 1);
        } else {
            // The failure that nobody judged is the seventh.
            let mut next = restarted(&w, fixed(), &["n"]);
            next.complete();
            assert!(next.is_broken("a"));
        }
    }
}

// spec: HYDR-10, INTR-08, CEIL-06
#[test]
fn what_does_not_count_does_not_count_after_a_restart() {
    let mut w = World::with(fixed(), &[("n", 4.0)]);
    w.submit(bundle("a", json!([job("e")])));
    w.runs("a.0.e");
    w.fails("a.0.e");
    w.runs("a.0.e");
    let count = |w: &World| {
        let mut next = restarted(w, fixed(), &["n"]);
        next.complete();
        next.restarts("a.0.e")
    };
    assert_eq!(count(&w), 1);
    // A change of the definition begins anew.
    let previous = Box::new(w.jobs["a.0.e"].job.clone());
    w.enter(
        "a.0.e",
        greenroom_types::job::HistoryKind::Updated { previous },
        None,
    );
    assert_eq!(count(&w), 0);
    // The provider took the node.
    w.tag("n", "own", "interruption", "spotInterruption");
    w.ends("a.0.e", greenroom_types::job::StopReason::NodeStopped);
    let mut next = restarted(&w, fixed(), &["m"]);
    next.complete();
    assert_eq!(next.restarts("a.0.e"), 1, "as a loss that nobody watched");
}

// spec: LIFE-10
#[test]
fn what_was_asked_for_at_the_close_is_not_undone() {
    let mut w = World::with(cloud(), &[]);
    w.submit(bundle("a", json!([sized("e", 3.0)])));
    w.joins("@1", 4.0);
    w.took();
    w.hold = true;
    w.submit(bundle("b", json!([job("e")])));
    w.submit(bundle("c", json!([sized("e", 3.0)])));
    let calls = w.calls();
    assert_eq!(calls.len(), 2, "a start and a create: {calls:?}");
    w.api(ApiCall::Close);
    assert!(w.calls().is_empty());
    // The Manager accepts both calls after all. The create shows as a starting node, the start in
    // the job's history.
    w.answer();
    w.started_before("b.0.e", "primary", "@1");
    let mut next = restarted(&w, cloud(), &["@1"]);
    let metadata = w.nodes[&w.long("@2")].clone();
    next.send(StreamEvent::NodeStarting {
        metadata,
        phase: None,
    });
    next.took();
    next.complete();
    let calls = next.calls();
    assert!(
        !calls.iter().any(|call| call.starts_with("create")),
        "it is not bought twice: {calls:?}"
    );
    assert!(
        !calls.iter().any(|call| call.contains("b.0.e")),
        "{calls:?}"
    );
    let placed = next.policy.node_for_job(&"c.0.e".into()).unwrap();
    assert_eq!(*placed, w.long("@2"));
}
