//! Instances that run and that a restored record does not know (BIND-09).

use greenroom_policy::CallFailure;
use greenroom_types::call::{Refusal, Status};
use serde_json::json;

use crate::world::{World, bundle, fixed, job};

const SECOND: u64 = 1_000;

fn unrecorded_on(node: &str) -> CallFailure {
    let refusal = Refusal::new(
        Status::FailedPrecondition,
        "unrecorded_instance",
        "it runs there",
    );
    let start = "0123456789abcdef0123456789abcdef";
    CallFailure::Refused(refusal.with("node", node).with("start_id", start))
}

/// A job is placed on `n`, and refused because of what is found on that node.
fn refused_for(node: &str, times: usize) -> World {
    let mut w = World::with(fixed(), &[("n", 4.0), ("o", 4.0)]);
    w.took();
    w.refuse("StartJob", times, unrecorded_on(node));
    w.submit(bundle("a", json!([job("e")])));
    w
}

fn told(w: &mut World) -> usize {
    let acts = w.acts();
    let told = acts
        .iter()
        .filter(|line| line.contains("unrecordedInstance"));
    told.count()
}

// spec: BIND-09, STORE-11
#[test]
fn what_runs_unknown_to_the_record_is_taken_over() {
    let mut w = refused_for("o", 1);
    assert_eq!(
        w.calls(),
        ["start a.0.e primary on n", "adopt a.0.e/primary on o"]
    );
    assert_eq!(w.node_of("a.0.e"), None, "until the stream shows it");
    let start_id = w.started_before("a.0.e", "primary", "o");
    w.run_of("a.0.e", "primary", "o", &start_id);
    w.tell("a.0.e");
    assert_eq!(w.node_of("a.0.e").unwrap(), "o");
    w.at(10 * SECOND);
    assert!(w.calls().is_empty(), "nothing is started beside it");
    assert_eq!(w.restarts("a.0.e"), 0);
}

// spec: BIND-09
#[test]
fn what_stands_in_the_way_of_taking_it_over_is_told_once() {
    let mut w = refused_for("gone", 2);
    assert_eq!(told(&mut w), 1);
    w.at(4_999);
    assert!(w.calls().is_empty());
    w.at(5 * SECOND);
    assert_eq!(
        w.calls(),
        ["start a.0.e primary on n"],
        "no node is excluded for it"
    );
    w.at(10 * SECOND);
    let acts = w.acts();
    assert!(
        !acts.iter().any(|line| line.contains("unrecordedInstance")),
        "{acts:?}"
    );
    assert!(
        acts.contains(&"call start a.0.e primary on n".to_owned()),
        "{acts:?}"
    );
    assert_eq!(w.node_of("a.0.e").unwrap(), "n");
}
