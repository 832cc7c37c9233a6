//! Host ports.

use greenroom_placement::{Reason, ServicePorts, Side};
use greenroom_types::bundle::{Bundle, Rule};

use crate::build::*;

fn world() -> World {
    let mut world = World::new(vec![fixed("own")]);
    world.node("n", "own", 8.0);
    world
}

fn wants(id: &str, tokens: &[&str]) -> Bundle {
    bundle(
        id,
        vec![with(job("e", 1.0), |job| {
            job.requirements.required_host_ports =
                tokens.iter().map(|&token| token.into()).collect();
        })],
    )
}

// spec: PORT-01, PORT-02
#[test]
fn a_claimed_port_refuses_every_other_job() {
    let mut world = world();
    let owner = doubled(wants("o", &["5000/udp", "80/tcp"]), |policy| {
        policy.same_node = Rule::Allow
    });
    world.bind(&owner, 0, "e", "n");
    for (tokens, clash) in [
        (&["5000/UDP"][..], true),
        (&["5000/tcp"], false),
        (&["81/tcp", "80/TCP"], true),
        (&["81/tcp"], false),
        (&[], false),
    ] {
        let expected = clash.then_some(Reason::HostPortConflict);
        assert_eq!(
            world.reason(&wants("a", tokens), "e", "n"),
            expected,
            "{tokens:?}"
        );
    }
    let backup = world.reasons(&owner, 1, "e", &Ask::default());
    assert_eq!(
        backup["n"],
        Reason::HostPortConflict,
        "the other copy is another job"
    );
    assert_eq!(
        world.goes(&owner, "e"),
        "n",
        "its own old binding is not in its way"
    );
    // Nor is it for the room that is held there for others.
    let mut group = bundle("g", vec![job("a", 1.0), job("b", 1.0)]);
    group.intra_replica_placement.same_node_default = true;
    world.bind(&group, 0, "a", "n");
    assert_eq!(world.goes(&owner, "e"), "n");
}

// spec: PORT-04
#[test]
fn a_moving_job_claims_its_ports_on_both_nodes() {
    let mut world = world();
    world.node("m", "own", 8.0);
    let owner = wants("o", &["80/tcp"]);
    world.bind(&owner, 0, "e", "n");
    world.bind_side(&owner, 0, "e", "m", None, Side::MigrationTarget);
    let a = wants("a", &["80/tcp"]);
    for node in ["m", "n"] {
        assert_eq!(world.reason(&a, "e", node), Some(Reason::HostPortConflict));
    }
    world.fleet.promote(&job_id(&owner, 0, "e"));
    assert_eq!(world.goes(&a, "e"), "n");
}

// spec: PORT-05
#[test]
fn a_group_that_wants_one_port_twice_fits_nowhere() {
    let mut world = World::new(vec![aws("cloud", &[shape("s", 8.0)])]);
    world.node("n", "cloud", 8.0);
    let mut g = wants("g", &["80/tcp"]);
    let mut twin = g.jobs[0].clone();
    twin.job_name = "f".into();
    g.jobs.push(twin);
    assert_eq!(world.goes(&g, "e"), "n");
    g.intra_replica_placement.same_node_default = true;
    assert_eq!(world.reason(&g, "e", "n"), Some(Reason::HostPortConflict));
    assert_eq!(world.goes(&g, "e"), "-");
}

// spec: PORT-06
#[test]
fn a_node_service_has_its_ports_on_every_node_that_would_carry_it() {
    let mut world = World::new(vec![fixed("own"), aws("cloud", &[shape("s", 8.0)])]);
    world.node("n", "own", 8.0);
    world.node("m", "own", 8.0);
    world.offers("m", |it| it.capabilities = vec![capability("sdi", 1, &[])]);
    let service = |pool: &str, consumes: Vec<_>| ServicePorts {
        service_id: "probe".into(),
        pools: vec![pool.into()],
        consumes,
        ports: vec!["9100/tcp".parse().unwrap()],
    };
    let a = wants("a", &["9100/tcp"]);
    assert_eq!(world.goes(&a, "e"), "m");
    world
        .fleet
        .set_service_ports(vec![service(POOL, vec![capability("sdi", 1, &[])])]);
    assert_eq!(world.goes(&a, "e"), "n", "m alone is eligible");
    world.fleet.set_service_ports(vec![service(POOL, vec![])]);
    assert_eq!(
        world.goes(&a, "e"),
        "-",
        "also on a node that is still to be bought"
    );
    assert_eq!(world.goes(&wants("b", &["9101/tcp"]), "e"), "m");
    world
        .fleet
        .set_service_ports(vec![service("elsewhere", vec![])]);
    assert_eq!(world.goes(&a, "e"), "m");
}

// spec: PORT-02, RESV-07
#[test]
fn what_a_job_still_holds_without_a_binding_is_in_its_own_way_too() {
    let mut world = world();
    let bundle = std::sync::Arc::new(wants("a", &["80/tcp"]));
    world.fleet.set_bundle(&bundle);
    let left = greenroom_placement::Listed {
        job_id: job_id(&bundle, 0, "e"),
        needs: greenroom_placement::Needs::of(&bundle.jobs[0].requirements),
        gpu_index: None,
        beside: false,
    };
    world.fleet.set_listed(&id("n"), vec![left], Vec::new());
    assert_eq!(
        world.reason(&bundle, "e", "n"),
        Some(Reason::HostPortConflict)
    );
    assert_eq!(world.goes(&bundle, "e"), "-");
    let pinned = Ask {
        pin: Some(id("n")),
        ..Ask::default()
    };
    assert_eq!(world.goes_when(&bundle, "e", &pinned), "n");
}
