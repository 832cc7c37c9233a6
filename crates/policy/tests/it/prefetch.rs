//! Warm images (PREFETCH).

use greenroom_policy::spare::HotSpareChanges;
use greenroom_policy::{ApiCall, CallFailure};
use greenroom_types::call::{Reply, Status};
use greenroom_types::inventory::HeldImage;
use greenroom_types::stream::{PrefetchResult, StreamEvent};
use greenroom_types::{NodeId, TemplateName};
use serde_json::{Value, json};

use crate::world::{World, bundle, cloud, fixed, inventory, job, refused, settings};

/// Registered spares of one pool, kept warm for these templates.
fn spares(more: Value, nodes: &[(&str, &str)]) -> World {
    let mut w = World::cold(settings(fixed(), more));
    for (id, warm_for) in nodes {
        w.tag(id, "own", "spare", "true");
        w.tag(id, "own", "warmFor", warm_for);
        w.snapshot_node(id, "own", inventory(4.0));
    }
    w.complete();
    w
}

fn images() -> Value {
    json!({"templateImages": {"enc": ["a", "b"], "mux": ["b", "c"]}})
}

/// The node reports these images.
fn holds(w: &mut World, id: &str, images: &[&str]) {
    let node_id = w.long(id);
    let mut picture = inventory(4.0);
    picture.held_images = images
        .iter()
        .map(|image| HeldImage {
            reference: (*image).to_owned(),
            digest: String::new(),
        })
        .collect();
    w.send(StreamEvent::NodeInventoryUpdated {
        node_id,
        inventory: picture.into(),
    });
}

/// The batch of that number is over; an error stands behind a colon.
fn settled_as(w: &mut World, id: &str, batch: &str, results: &[&str]) {
    let node_id = w.long(id);
    let results = results
        .iter()
        .map(|text| {
            let (image, error) = text.split_once('!').unwrap_or((text, ""));
            PrefetchResult {
                image_ref: image.to_owned(),
                ok: error.is_empty(),
                error: error.to_owned(),
                text: String::new(),
            }
        })
        .collect();
    w.send(StreamEvent::ImagesPrefetched {
        node_id,
        batch_id: batch.to_owned(),
        results,
    });
}

fn settled(w: &mut World, id: &str, results: &[&str]) {
    settled_as(w, id, "", results);
}

fn retag(w: &mut World, id: &str, key: &str, value: &str) {
    w.tag(id, "own", key, value);
    let metadata = w.metadata(id, "own");
    w.send(StreamEvent::NodeTagsUpdated {
        metadata,
        revision: 1,
    });
}

fn set_images(w: &mut World, template: &str, refs: &[&str]) {
    w.api(ApiCall::SetTemplateImages {
        template: TemplateName::from(template),
        refs: refs.iter().map(|image| (*image).to_owned()).collect(),
    });
}

// spec: PREFETCH-01, PREFETCH-02
#[test]
fn a_new_spare_pulls_what_it_lacks_when_it_shows_what_it_holds() {
    let mut more = images();
    more["hotSpares"] = json!([{"pool": "p", "targetCount": 1,
        "spec": {"instanceType": "c4"}, "warmFor": ["mux", "enc"]}]);
    let mut w = World::cold(settings(cloud(), more));
    w.complete();
    w.hello("@1");
    assert!(!w.calls().iter().any(|call| call.starts_with("prefetch")));
    holds(&mut w, "@1", &["a"]);
    assert_eq!(
        w.calls(),
        ["prefetch @1 b c"],
        "template by template, each once"
    );
    holds(&mut w, "@1", &["a"]);
    assert!(w.calls().is_empty(), "a later picture is no reason to look");
}

// spec: PREFETCH-01, PREFETCH-02, SPARE-02
#[test]
fn after_hydration_spares_are_looked_at_and_nobody_else() {
    let mut w = World::cold(settings(fixed(), images()));
    w.tag("n1", "own", "spare", "true");
    w.tag("n1", "own", "warmFor", "enc");
    // Reserved for a template is not warm for it, and a node that is no spare is kept warm for none.
    w.tag("n2", "own", "spare", "true");
    w.tag("n2", "own", "reservedFor", "enc");
    w.tag("n3", "own", "warmFor", "enc");
    for id in ["n1", "n2", "n3"] {
        w.snapshot_node(id, "own", inventory(4.0));
    }
    assert!(w.calls().is_empty());
    w.complete();
    assert_eq!(w.calls(), ["prefetch n1 a b"]);
    let spec = w.policy.spare_spec(&NodeId::new("n1")).unwrap();
    assert!(spec.reserved_for.is_empty(), "nor the other way round");
}

// spec: PREFETCH-02, PREFETCH-06, SPARE-16
#[test]
fn changed_templates_and_changed_spares_are_looked_at() {
    let mut w = spares(images(), &[("n1", "enc"), ("n2", "mux")]);
    assert_eq!(w.calls(), ["prefetch n1 a b", "prefetch n2 b c"]);
    settled(&mut w, "n1", &["a", "b"]);
    settled(&mut w, "n2", &["b", "c"]);
    holds(&mut w, "n1", &["a", "b"]);
    holds(&mut w, "n2", &["b", "c"]);
    w.took();
    set_images(&mut w, "enc", &["a", "d"]);
    assert_eq!(w.calls(), ["prefetch n1 d"]);
    settled(&mut w, "n1", &["d"]);
    holds(&mut w, "n1", &["a", "b", "d"]);
    // An edit of one spare takes effect with its tags.
    let changes = HotSpareChanges {
        warm_for: Some(vec!["mux".into(), "enc".into()]),
        ..HotSpareChanges::default()
    };
    w.took();
    w.api(ApiCall::UpdateHotSpareNode {
        node_id: NodeId::new("n1"),
        changes,
    });
    assert_eq!(w.calls(), ["setTags n1 warmFor=mux,enc"]);
    retag(&mut w, "n1", "warmFor", "mux,enc");
    assert_eq!(w.calls(), ["prefetch n1 c"]);
    retag(&mut w, "n1", "note", "1");
    set_images(&mut w, "other", &["z"]);
    assert!(w.calls().is_empty(), "neither concerns an image of a spare");
}

// spec: PREFETCH-03
#[test]
fn one_batch_at_a_time_and_the_rest_is_the_next_one() {
    let mut w = spares(images(), &[("n1", "enc")]);
    assert_eq!(w.calls(), ["prefetch n1 a b"]);
    set_images(&mut w, "enc", &["a", "b", "d"]);
    set_images(&mut w, "enc", &["a", "b", "d", "e"]);
    assert!(w.calls().is_empty());
    settled(&mut w, "n1", &["a", "b"]);
    assert_eq!(w.calls(), ["prefetch n1 d e"]);
    settled(&mut w, "n1", &["d", "e"]);
    assert!(w.calls().is_empty());
}

// spec: PREFETCH-03
#[test]
fn a_list_longer_than_one_call_takes_is_pulled_in_turns() {
    let refs: Vec<String> = (0..70).map(|n| format!("i{n}")).collect();
    let mut w = spares(json!({"templateImages": {"enc": refs}}), &[("n1", "enc")]);
    let calls = w.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].split(' ').count(), 2 + 64);
    let first: Vec<&str> = refs[..64].iter().map(String::as_str).collect();
    settled(&mut w, "n1", &first);
    let calls = w.calls();
    assert_eq!(calls, ["prefetch n1 i64 i65 i66 i67 i68 i69"]);
}

// spec: PREFETCH-04, PREFETCH-05, PREFETCH-07, CALLB-11
#[test]
fn results_are_told_once_and_a_failed_image_waits_for_the_next_look() {
    let mut w = spares(images(), &[("n1", "enc")]);
    w.took();
    settled(&mut w, "n1", &["a!pull_failed", "b"]);
    assert_eq!(w.took(), ["onImagesPrefetched n1 a:pull_failed b:ok"]);
    // Warm is what the node says it holds, not what was asked for.
    let images = ["a".to_owned(), "b".to_owned()];
    let held = |w: &World| {
        w.policy
            .inventory(&NodeId::new("n1"))
            .unwrap()
            .held_images
            .len()
    };
    assert_eq!((held(&w), images.len()), (0, 2));
    holds(&mut w, "n1", &["b"]);
    assert_eq!(held(&w), 1);
    w.at(600_000);
    assert!(!w.calls().iter().any(|call| call.starts_with("prefetch")));
    set_images(&mut w, "enc", &["a", "b"]);
    assert_eq!(w.calls(), ["prefetch n1 a"]);
}

// spec: PREFETCH-04
#[test]
fn an_answer_before_or_after_the_results_and_the_batch_of_somebody_else() {
    let mut w = spares(images(), &[]);
    w.hold = true;
    w.tag("n1", "own", "spare", "true");
    w.tag("n1", "own", "warmFor", "enc");
    w.joins("n1", 4.0);
    set_images(&mut w, "enc", &["a", "b", "c"]);
    w.took();
    // Somebody pulls something else: told, and this policy's batch goes on.
    let (call_id, _) = w.next_call();
    w.answer_one(call_id, Ok(Reply::Batch("b1".to_owned())));
    settled_as(&mut w, "n1", "b0", &["a", "b"]);
    assert_eq!(w.took(), ["onImagesPrefetched n1 a:ok b:ok"]);
    settled_as(&mut w, "n1", "b1", &["a", "b"]);
    assert_eq!(
        w.took(),
        ["onImagesPrefetched n1 a:ok b:ok", "call prefetch n1 c"]
    );
    // The results overtake the answer, which then says nothing of the next batch.
    let (call_id, _) = w.next_call();
    settled_as(&mut w, "n1", "b2", &["c"]);
    set_images(&mut w, "enc", &["d"]);
    w.answer_one(call_id, Err(CallFailure::TimedOut));
    w.took();
    set_images(&mut w, "enc", &["d", "e"]);
    assert!(w.calls().is_empty(), "the batch of d is still under way");
}

// spec: PREFETCH-08
#[test]
fn a_call_that_fails_is_a_batch_that_failed() {
    let mut w = spares(images(), &[]);
    w.refuse(
        "PrefetchImages",
        1,
        refused(Status::Unavailable, "node_unreachable"),
    );
    w.tag("n1", "own", "spare", "true");
    w.tag("n1", "own", "warmFor", "enc");
    w.joins("n1", 4.0);
    let took = w.acts();
    assert_eq!(
        took[1..],
        ["call prefetch n1 a b", "onError prefetchFailed"]
    );
    w.picture("n1", 4.0);
    assert!(w.calls().is_empty(), "not again by itself");
    set_images(&mut w, "mux", &["c"]);
    retag(&mut w, "n1", "warmFor", "enc,mux");
    assert_eq!(w.calls(), ["prefetch n1 a b c"]);
}

// spec: PREFETCH-08
#[test]
fn nothing_is_pulled_where_something_else_is_going_on() {
    let mut w = spares(images(), &[("n1", "enc"), ("n2", "enc"), ("n3", "enc")]);
    for id in ["n1", "n2", "n3"] {
        settled(&mut w, id, &["a", "b"]);
    }
    w.submit(bundle("a", json!([job("e")])));
    let carries = w.node_of("a.0.e").unwrap();
    let free: Vec<&str> = ["n1", "n2", "n3"]
        .into_iter()
        .filter(|id| **id != carries)
        .collect();
    w.api(ApiCall::CordonNode {
        node_id: NodeId::new(free[0]),
    });
    w.api(ApiCall::TerminateNode {
        node_id: NodeId::new(free[1]),
    });
    w.took();
    set_images(&mut w, "enc", &["d"]);
    assert!(w.calls().is_empty());
    // What is lifted is made up for.
    w.api(ApiCall::UncordonNode {
        node_id: NodeId::new(free[0]),
    });
    assert_eq!(w.calls(), [format!("prefetch {} d", free[0])]);
}

// spec: PREFETCH-09, CONF-08
#[test]
fn a_registry_serves_a_few_nodes_at_a_time() {
    let more = json!({"prefetchParallelNodes": 2,
        "templateImages": {"enc": ["r1.io/a"], "both": ["r1.io/a", "r2.io/b"], "mux": ["r2.io/c"]}});
    let nodes = [
        ("n1", "enc"),
        ("n2", "enc"),
        ("n3", "both"),
        ("n4", "enc"),
        ("n5", "mux"),
    ];
    let mut w = spares(more, &nodes);
    // n3 waits for r1 and keeps its place at r2, which has one left.
    assert_eq!(
        w.calls(),
        [
            "prefetch n1 r1.io/a",
            "prefetch n2 r1.io/a",
            "prefetch n5 r2.io/c"
        ]
    );
    // The next batch of n1 goes behind all that wait.
    set_images(&mut w, "enc", &["r1.io/a", "r1.io/d"]);
    settled(&mut w, "n1", &["r1.io/a"]);
    assert_eq!(w.calls(), ["prefetch n3 r1.io/a r2.io/b"]);
    settled(&mut w, "n2", &["r1.io/a"]);
    assert_eq!(w.calls(), ["prefetch n4 r1.io/a r1.io/d"]);
    settled(&mut w, "n3", &["r1.io/a", "r2.io/b"]);
    assert_eq!(w.calls(), ["prefetch n1 r1.io/d"]);
    // A node that goes frees its place.
    w.stopping("n4");
    assert_eq!(w.calls(), ["prefetch n2 r1.io/d"]);
}

// spec: PREFETCH-09
#[test]
fn eight_nodes_at_a_time_unless_said_otherwise() {
    let ids: Vec<String> = (10..20).map(|n| format!("n{n}")).collect();
    let nodes: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), "enc")).collect();
    let mut w = spares(json!({"templateImages": {"enc": ["a"]}}), &nodes);
    assert_eq!(w.calls().len(), 8);
    settled(&mut w, "n13", &["a"]);
    assert_eq!(w.calls(), ["prefetch n18 a"]);
}

// spec: PREFETCH-02
#[test]
fn a_node_that_comes_back_is_looked_at_with_its_new_picture() {
    let mut w = spares(images(), &[("n1", "enc")]);
    settled(&mut w, "n1", &["a", "b"]);
    holds(&mut w, "n1", &["a", "b"]);
    w.stopping("n1");
    w.stopped("n1");
    w.took();
    w.hello("n1");
    assert!(w.calls().is_empty(), "the old picture says nothing");
    holds(&mut w, "n1", &["a"]);
    assert_eq!(w.calls(), ["prefetch n1 b"]);
}
