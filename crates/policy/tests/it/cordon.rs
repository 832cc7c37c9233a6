//! Cordons of several nodes at once, and of servers that are not there (CORDON-06, CORDON-07).

use std::collections::BTreeSet;

use greenroom_policy::acts::{Acts, NodeAct};
use greenroom_policy::drain::DrainOptions;
use greenroom_policy::migration::Strategy;
use greenroom_policy::{ApiAnswer, ApiCall, ApiError, ApiResult, Event};
use greenroom_types::{JobId, NodeId};
use serde_json::json;

use crate::world::{World, bundle, fixed, settings, sized};

fn ids(names: &[&str]) -> Vec<NodeId> {
    names.iter().map(|name| NodeId::new(*name)).collect()
}

fn cordon(w: &mut World, names: &[&str], registered: &[&str]) -> ApiResult {
    let id = w.api(ApiCall::CordonNodes {
        node_ids: ids(names),
        registered: ids(registered).into_iter().collect(),
    });
    w.results[&id].clone()
}

fn uncordon(w: &mut World, names: &[&str], registered: &[&str]) -> ApiResult {
    let id = w.api(ApiCall::UncordonNodes {
        node_ids: ids(names),
        registered: ids(registered).into_iter().collect(),
    });
    w.results[&id].clone()
}

fn cordoned(w: &World) -> Vec<NodeId> {
    w.policy.acts().nodes.into_keys().collect()
}

// spec: CORDON-06
#[test]
fn several_nodes_are_cordoned_and_uncordoned_all_or_none() {
    let mut w = World::with(fixed(), &[("a", 4.0), ("b", 4.0), ("c", 4.0)]);
    let refused = cordon(&mut w, &["a", "nix", "c", "nox"], &[]).unwrap_err();
    assert_eq!(refused.code(), "unknownNode");
    assert!(
        refused
            .to_string()
            .contains("nix, nox, so nothing was done"),
        "{refused}"
    );
    assert!(cordoned(&w).is_empty());
    let done = cordon(&mut w, &["c", "a"], &[]).unwrap();
    assert_eq!(done, ApiAnswer::Waiting(Vec::new()));
    assert_eq!(cordoned(&w), ids(&["a", "c"]));
    w.submit(bundle("x", json!([sized("e", 4.0)])));
    w.submit(bundle("y", json!([sized("e", 4.0)])));
    assert_eq!(w.node_of("x.0.e").unwrap(), "b");
    assert_eq!(w.node_of("y.0.e"), None);
    uncordon(&mut w, &["a", "nix"], &[]).unwrap_err();
    assert_eq!(cordoned(&w), ids(&["a", "c"]));
    uncordon(&mut w, &["a", "c"], &[]).unwrap();
    assert!(cordoned(&w).is_empty());
    assert_eq!(w.node_of("y.0.e").unwrap(), "a");
}

/// A fleet of which so many strategies of a drain are kept, and how many bytes all that is kept takes.
fn keeping(strategies: usize) -> (World, usize) {
    let nodes = ["a", "b", "c", "d", "e"].map(|name| (name, 4.0));
    let mut w = World::with(fixed(), &nodes);
    w.submit(bundle("x", json!([sized("e", 4.0)])));
    w.runs("x.0.e");
    assert_eq!(w.node_of("x.0.e").unwrap(), "a");
    let name = |at: usize| JobId::new(format!("job-{at:0>6}"));
    let id = w.api(ApiCall::DrainNode {
        node_id: "a".into(),
        options: DrainOptions {
            strategies: (0..strategies)
                .map(|at| (name(at), Strategy::Overlap))
                .collect(),
            ..DrainOptions::default()
        },
    });
    assert!(w.results[&id].is_ok(), "{:?}", w.results[&id]);
    let bytes = serde_json::to_vec(&w.policy.acts()).unwrap().len();
    (w, bytes)
}

// spec: CORDON-06, ACTS-06
#[test]
fn what_is_too_much_to_keep_cordons_none_of_them() {
    // Room for one or two cordons more, and not for four.
    let (room, most) = (60, 1024 * 1024 - 1024);
    let ((_, one), (_, two)) = (keeping(1), keeping(2));
    let (mut w, bytes) = keeping(1 + (most - room - one) / (two - one));
    assert!(most - bytes >= room, "{bytes}");
    let refused = cordon(&mut w, &["b", "c", "d", "e"], &[]).unwrap_err();
    assert!(
        matches!(refused, ApiError::TooMuchKept { .. }),
        "{refused:?}"
    );
    assert_eq!(cordoned(&w), ids(&["a"]));
    cordon(&mut w, &["b"], &[]).unwrap();
    assert_eq!(cordoned(&w), ids(&["a", "b"]));
}

// spec: CORDON-07, ACTS-05
#[test]
fn a_cordon_of_a_registered_server_that_is_off_waits_for_it() {
    let mut w = World::with(fixed(), &[("a", 4.0)]);
    let told = cordon(&mut w, &["a", "off"], &["off", "other"]).unwrap();
    assert_eq!(told, ApiAnswer::Waiting(ids(&["off"])));
    assert!(w.policy.acts_to_keep().is_some());
    assert!(w.policy.is_cordon_waiting(&"off".into()));
    assert!(
        !w.policy.is_cordon_waiting(&"other".into()),
        "only what was named"
    );
    // A name that nobody knows is a slip, whatever else is named.
    cordon(&mut w, &["off", "nix"], &["off"]).unwrap_err();
    w.joins("off", 4.0);
    assert!(w.policy.is_cordoned(&"off".into()));
    assert!(!w.policy.is_cordon_waiting(&"off".into()));

    // The next instance waits for it as well, and it can be taken back without its being there.
    let mut next = World::cold(settings(fixed(), json!({})));
    let act = NodeAct {
        cordoned: true,
        ..NodeAct::default()
    };
    let acts = Acts {
        nodes: [(NodeId::new("off"), act)].into(),
        ..Acts::default()
    };
    next.handle(Event::Acts(Box::new(acts)));
    next.complete();
    let waiting: Vec<_> = next.policy.waiting_cordons().cloned().collect();
    assert_eq!(waiting, ids(&["off"]));
    let told = uncordon(&mut next, &["off"], &[]).unwrap();
    assert_eq!(told, ApiAnswer::Waiting(ids(&["off"])));
    assert!(cordoned(&next).is_empty());
    // A repeat is no fault, as for one that is there.
    uncordon(&mut next, &["off"], &["off"]).unwrap();
    uncordon(&mut next, &["off"], &[]).unwrap_err();
    next.joins("off", 4.0);
    assert!(!next.policy.is_cordoned(&"off".into()));
}

// spec: CORDON-07, ACTS-05
#[test]
fn cordons_that_wait_are_refused_beyond_their_number_and_none_is_forgotten_for_it() {
    let mut w = World::with(fixed(), &[("a", 4.0)]);
    let names: Vec<String> = (0..1_001).map(|at| format!("off-{at:0>4}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let refused = cordon(&mut w, &names, &names).unwrap_err();
    assert_eq!(refused.code(), "tooMuchKept");
    assert!(refused.to_string().contains("1001"), "{refused}");
    assert!(cordoned(&w).is_empty());
    cordon(&mut w, &names[..1_000], &names).unwrap();
    cordon(&mut w, &[names[1_000]], &names).unwrap_err();
    let kept: BTreeSet<NodeId> = cordoned(&w).into_iter().collect();
    assert_eq!(kept, ids(&names[..1_000]).into_iter().collect());
    // What waits already takes no further place, and what is there none at all.
    cordon(&mut w, &["a", names[0]], &names).unwrap();
}
