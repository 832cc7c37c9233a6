//! The discovery fleet and its rotation, the access replica, the overrides.

use greenroom_ledger::{
    Called, Command, Config, Found, Fresh, Link, Order, Provider, ReplicaFacts, WorkerOrder,
    key_mark,
};
use greenroom_types::call::{Call, CallResult, CreateAwsNode, Detail, Refusal, Reply, Status};
use greenroom_types::discovery::{DiscoveryFleet, Hidden, RotationPhase, RotationStep};
use greenroom_types::job::MediaVersion;
use greenroom_types::overrides::Overrides;
use greenroom_types::replica::AccessReplica;
use greenroom_types::{NodeId, Payload, Wall};

use crate::common::*;

// === discovery ===

fn fleet(addresses: &[&str], leaf: &str, tier: &str) -> DiscoveryFleet {
    DiscoveryFleet {
        addresses: addresses.iter().map(|it| (*it).to_owned()).collect(),
        leaf_token: leaf.to_owned(),
        tier_secret: tier.to_owned(),
        ..DiscoveryFleet::default()
    }
}

fn publish(fleet: DiscoveryFleet) -> Call {
    Call::PublishDiscoveryFleet {
        replace_leaf_token: false,
        fleet,
        by: "anna".to_owned(),
    }
}

fn rotate(step: RotationStep, secret: &str) -> Call {
    Call::RotateDiscoveryTierSecret {
        step,
        new_tier_secret: Hidden(secret.to_owned()),
        by: "anna".to_owned(),
    }
}

/// The fleet's secrets and phase: in force, other, phase.
fn stands(w: &World) -> (String, String, RotationPhase) {
    let fleet = w.ledger.discovery_fleet().expect("one was published");
    (
        fleet.tier_secret,
        fleet.tier_secret_alt,
        fleet.rotation_phase,
    )
}

/// Nodes that the last command had discovery access sent to, with the version and tier secret.
fn sent(w: &World) -> Vec<(String, u64, String)> {
    let orders = w.last.orders.iter();
    orders
        .filter_map(|order| match order {
            Order::Worker {
                node_id,
                message: WorkerOrder::Discovery(order),
            } => Some((
                node_id.to_string(),
                order.version,
                order.tier_secret.clone(),
            )),
            _ => None,
        })
        .collect()
}

fn is_refused(w: &mut World, call: Call, status: Status, reason: &str) -> Refusal {
    let refusal = w.refused(call);
    assert_eq!((refusal.status, refusal.reason.as_str()), (status, reason));
    refusal
}

// spec: DISC-01
#[test]
fn a_fleet_is_published_with_addresses_and_two_secrets() {
    let mut w = World::new();
    let mut bad = |fleet: DiscoveryFleet, reason| {
        is_refused(&mut w, publish(fleet), Status::InvalidArgument, reason);
    };
    bad(fleet(&["a:1"], "leaf", ""), "empty_tier_secret");
    bad(
        fleet(&["a:1"], "same", "same"),
        "tier_secret_equals_leaf_token",
    );
    bad(fleet(&[], "leaf", "tier"), "bad_address");
    bad(fleet(&["a:1", "b"], "leaf", "tier"), "bad_address");
    bad(fleet(&["a:0"], "leaf", "tier"), "bad_address");
    let many: Vec<String> = (1..=17).map(|port| format!("a:{port}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    bad(fleet(&many, "leaf", "tier"), "bad_address");
    bad(fleet(&["a:1"; 2], "leaf", "tier"), "bad_address");
    let mut single = fleet(&[], "leaf", "tier");
    single.address = "::1:80".to_owned();
    bad(single.clone(), "bad_address");
    assert_eq!(w.ledger.discovery_fleet(), None);

    single.address = "[::1]:80".to_owned();
    let published = w.call(publish(single)).unwrap();
    let Reply::Discovery {
        fleet: stored,
        secrets_kept: false,
    } = published
    else {
        panic!("{published:?}");
    };
    assert_eq!(
        stored.addresses,
        ["[::1]:80"],
        "one server, as protocol 1.4 has it"
    );
    assert_eq!(
        (stored.leaf_token.as_str(), stored.tier_secret.as_str()),
        ("leaf", "tier")
    );
    w.call(publish(fleet(&many[..16], "leaf", "tier"))).unwrap();
}

// spec: DISC-02
#[test]
fn the_first_publish_fixes_the_secrets_and_the_newest_the_addresses() {
    let mut w = World::new();
    w.call(publish(fleet(&["a:1"], "leaf", "tier"))).unwrap();
    for (leaf, tier, kept) in [
        ("leaf", "other", true),
        ("other", "tier", true),
        ("leaf", "tier", false),
    ] {
        let again = w.call(publish(fleet(&["b:2", "c:3"], leaf, tier))).unwrap();
        let in_force = DiscoveryFleet {
            address: "b:2".to_owned(),
            ..fleet(&["b:2", "c:3"], "leaf", "tier")
        };
        let told = Reply::Discovery {
            fleet: in_force,
            secrets_kept: kept,
        };
        assert_eq!(again, told);
    }
}

// spec: DISC-02, DISC-01
#[test]
fn a_leaf_token_is_replaced_when_that_is_asked_for_and_every_node_is_told() {
    let mut w = World::new();
    w.node("n1");
    w.call(publish(fleet(&["a:1"], "leaf", "tier"))).unwrap();
    let replace = |leaf: &str| Call::PublishDiscoveryFleet {
        replace_leaf_token: true,
        fleet: fleet(&["a:1"], leaf, "tier"),
        by: "anna".to_owned(),
    };
    let reply = w.call(replace("next")).unwrap();
    let told = Reply::Discovery {
        fleet: DiscoveryFleet {
            address: "a:1".to_owned(),
            ..fleet(&["a:1"], "next", "tier")
        },
        secrets_kept: false,
    };
    assert_eq!(reply, told);
    assert_eq!(w.last_orders(), ["n1: discovery 2"]);
    w.call(replace("next")).unwrap();
    assert!(w.last_orders().is_empty(), "it is in force already");
    w.call(rotate(RotationStep::Stage, "soon")).unwrap();
    for taken in ["tier", "soon"] {
        let refusal = w.call(replace(taken)).unwrap_err();
        assert_eq!(refusal.reason, "tier_secret_equals_leaf_token", "{taken}");
    }
    let twice = w.call(publish(fleet(&["a:1", "b:1", "a:1"], "next", "tier")));
    let refusal = twice.unwrap_err();
    assert_eq!(refusal.reason, "bad_address");
    assert_eq!(refusal.details["path"], "fleet.addresses[2]".into());
}

// spec: DISC-03
#[test]
fn connected_nodes_are_told_at_once_and_others_with_their_hello() {
    let mut w = World::new();
    w.node("n1");
    w.node("n2");
    w.link("n2", Link::Dropped);
    w.call(publish(fleet(&["a:1"], "leaf", "tier"))).unwrap();
    assert_eq!(sent(&w), [("n1".to_owned(), 1, "tier".to_owned())]);
    let Some(Order::Worker {
        message: WorkerOrder::Discovery(order),
        ..
    }) = w.last.orders.first()
    else {
        panic!("{:?}", w.last.orders);
    };
    assert_eq!(
        (order.leaf_token.as_str(), order.issued_at),
        ("leaf", w.now)
    );
    w.hello("n2", Vec::new());
    assert_eq!(sent(&w), [("n2".to_owned(), 1, "tier".to_owned())]);
    // What changes nothing is sent to nobody, and told to nobody.
    w.call(publish(fleet(&["a:1"], "leaf", "tier"))).unwrap();
    assert!(sent(&w).is_empty() && w.last.audit.is_empty());
    w.call(publish(fleet(&["b:1"], "leaf", "other"))).unwrap();
    assert_eq!(sent(&w).len(), 2);
    let told = &w.last.audit[0];
    assert_eq!(told.kind, "publish_discovery_fleet");
    for secret in ["leaf", "tier", "other"] {
        assert!(!told.payload.contains(secret), "{}", told.payload);
    }
}

// spec: DISC-05, DISC-06, DISC-07
#[test]
fn a_rotation_stages_flips_and_finishes_and_nodes_hear_of_the_flip_alone() {
    let mut w = World::new();
    w.node("n1");
    w.call(publish(fleet(&["a:1"], "leaf", "old"))).unwrap();
    w.call(rotate(RotationStep::Stage, "new")).unwrap();
    assert_eq!(
        stands(&w),
        ("old".into(), "new".into(), RotationPhase::Staged)
    );
    assert!(sent(&w).is_empty());
    w.hello("n1", Vec::new());
    assert_eq!(sent(&w), [("n1".to_owned(), 1, "old".to_owned())]);

    let flipped = w.call(rotate(RotationStep::Flip, "")).unwrap();
    assert_eq!(
        stands(&w),
        ("new".into(), "old".into(), RotationPhase::Flipped)
    );
    assert_eq!(sent(&w), [("n1".to_owned(), 2, "new".to_owned())]);
    let Reply::Rotated {
        version: 2,
        acknowledged: 0,
        not_acknowledged,
        ..
    } = flipped
    else {
        panic!("{flipped:?}");
    };
    assert_eq!(not_acknowledged, [NodeId::new("n1")]);
    w.hello("n1", Vec::new());
    assert_eq!(sent(&w)[0].2, "new", "later hellos get the new one");

    w.call(rotate(RotationStep::Finish, "new")).unwrap();
    assert_eq!(
        stands(&w),
        ("new".into(), String::new(), RotationPhase::None)
    );
    assert!(sent(&w).is_empty());
    // With no secret given the Manager's fresh one is staged.
    w.call(rotate(RotationStep::Stage, "")).unwrap();
    assert!(stands(&w).1.starts_with("grt_"));
    assert_eq!(w.last.audit[0].kind, "rotate_discovery_tier_secret");
    assert!(!w.last.audit[0].payload.contains("grt_"));
}

// spec: DISC-05, DISC-07
#[test]
fn a_step_out_of_order_and_a_secret_that_is_known_are_refused() {
    use RotationStep::{Finish, Flip, Stage};
    let mut w = World::new();
    let precondition = Status::FailedPrecondition;
    for step in [Stage, Flip, Finish] {
        is_refused(&mut w, rotate(step, "x"), precondition, "no_fleet");
    }
    w.call(publish(fleet(&["a:1"], "leaf", "old"))).unwrap();
    for secret in ["old", "leaf"] {
        let call = rotate(Stage, secret);
        is_refused(&mut w, call, Status::InvalidArgument, "bad_tier_secret");
    }
    let walk = [
        (Stage, ""),
        (Flip, "staged"),
        (Finish, "flipped"),
        (Stage, ""),
    ];
    for (next, phase) in walk {
        for (step, secret) in [
            (Stage, "new"),
            (Flip, "new"),
            (Finish, ""),
            (Stage, ""),
            (Flip, ""),
        ] {
            if step != next {
                let call = rotate(step, secret);
                let refusal = is_refused(&mut w, call, precondition, "rotation_out_of_order");
                assert_eq!(refusal.details["phase"], Detail::from(phase));
            }
        }
        if next != Stage {
            let call = rotate(next, "another");
            is_refused(&mut w, call, Status::InvalidArgument, "bad_tier_secret");
        }
        let secret = if next == Stage {
            format!("next {phase}{}", w.now.0)
        } else {
            String::new()
        };
        w.call(rotate(next, &secret)).unwrap();
        w.pass(1);
    }
}

// spec: DISC-08, DISC-09
#[test]
fn a_step_repeated_by_its_request_id_is_one_step_and_a_publish_meanwhile_moves_servers_only() {
    let mut w = World::new();
    w.call(publish(fleet(&["a:1"], "leaf", "old"))).unwrap();
    let first = w
        .repeatable(rotate(RotationStep::Stage, "new"), "id")
        .unwrap();
    assert!(w.last.rows.iter().any(|row| row.table == "discovery"));
    assert_eq!(
        w.repeatable(rotate(RotationStep::Stage, "new"), "id"),
        Ok(first)
    );
    for phase in [RotationPhase::Staged, RotationPhase::Flipped] {
        let moved = DiscoveryFleet {
            tier_secret_alt: "mine".to_owned(),
            rotation_phase: RotationPhase::None,
            ..fleet(&["z:9"], "leaf", "mine")
        };
        let before = stands(&w);
        w.call(publish(moved)).unwrap();
        assert_eq!(stands(&w), before);
        assert_eq!(before.2, phase);
        assert_eq!(w.ledger.discovery_fleet().unwrap().addresses, ["z:9"]);
        if phase == RotationPhase::Staged {
            w.call(rotate(RotationStep::Flip, "")).unwrap();
        }
    }
}

// spec: HARDM-52
#[test]
fn after_a_restart_between_a_flip_and_its_sending_a_hello_brings_the_new_token() {
    let mut w = World::new();
    w.node("n1");
    w.call(publish(fleet(&["a:1"], "leaf", "old"))).unwrap();
    w.call(rotate(RotationStep::Stage, "new")).unwrap();
    w.call(rotate(RotationStep::Flip, "")).unwrap();
    // What the flip ordered is lost with the process.
    w.ledger = w.reload();
    w.hello("n1", Vec::new());
    assert_eq!(sent(&w), [("n1".to_owned(), 2, "new".to_owned())]);
    assert_eq!(stands(&w).1, "old", "which is taken until the end");
}

// === access replica ===

struct Published {
    version: u64,
    base_version: u64,
    attested: (u64, i64),
    keys_seen: String,
    new_keys: Vec<Payload>,
    snapshot: bool,
}

impl Published {
    fn of(w: &World, version: u64, iat: i64) -> Self {
        Self {
            version,
            base_version: 0,
            attested: (version, iat),
            keys_seen: key_mark(w.ledger.replica_keys()),
            new_keys: Vec::new(),
            snapshot: true,
        }
    }

    fn apply(self, w: &mut World) -> CallResult {
        let replica = AccessReplica {
            version: self.version,
            snapshot: match self.snapshot {
                true => Payload::from(format!("roles {}", self.version).into_bytes()),
                false => Payload::default(),
            },
            delta: match self.base_version {
                0 => String::new(),
                base => format!("{base} to {}", self.version),
            },
            base_version: self.base_version,
            attestation: format!("{} at {}", self.attested.0, self.attested.1),
            keys: Vec::new(),
        };
        let facts = ReplicaFacts {
            attested_version: self.attested.0,
            attested_at: Wall(self.attested.1),
            keys_seen: self.keys_seen,
            new_keys: self.new_keys,
        };
        found(
            w,
            Call::PublishAccessReplica(Box::new(replica)),
            Found::Replica(facts),
        )
    }
}

fn found(w: &mut World, call: Call, found: Found) -> CallResult {
    w.apply(Command::Call(Box::new(Called {
        call,
        actor: "tester".into(),
        request_id: None,
        fresh: Fresh {
            found,
            ..Fresh::default()
        },
    })))
}

/// The last command's orders to workers about access roles: node, version, delta.
fn replicas(w: &World) -> Vec<(String, u64, String, bool)> {
    let orders = w.last.orders.iter();
    orders
        .filter_map(|order| match order {
            Order::Worker {
                node_id,
                message: WorkerOrder::AccessReplica(it),
            } => Some((
                node_id.to_string(),
                it.version,
                it.delta.clone(),
                it.is_change,
            )),
            _ => None,
        })
        .collect()
}

// spec: REPL-01, REPL-04
#[test]
fn a_version_is_stored_and_sent_and_then_only_its_attestation() {
    let mut w = World::new();
    w.node("n1");
    let keys = vec![Payload::from(b"set 1")];
    let first = Published {
        new_keys: keys.clone(),
        ..Published::of(&w, 3, 100)
    };
    assert_eq!(first.apply(&mut w), Ok(Reply::ReplicaVersion(3)));
    assert_eq!(replicas(&w), [("n1".to_owned(), 3, String::new(), true)]);
    assert_eq!(w.last.audit[0].kind, "publish_access_replica");
    let next = Published {
        base_version: 3,
        ..Published::of(&w, 4, 200)
    };
    next.apply(&mut w).unwrap();
    assert_eq!(
        replicas(&w),
        [("n1".to_owned(), 4, "3 to 4".to_owned(), true)]
    );
    let fresh = Published {
        snapshot: false,
        ..Published::of(&w, 4, 300)
    };
    assert_eq!(fresh.apply(&mut w), Ok(Reply::ReplicaVersion(4)));
    assert_eq!(replicas(&w), [("n1".to_owned(), 4, String::new(), false)]);
    assert!(w.last.audit.is_empty(), "it is renewed all the time");
    assert!(!w.last.rows.iter().any(|row| row.table == "access_snapshot"));

    w.node("n2");
    assert_eq!(replicas(&w), [("n2".to_owned(), 4, String::new(), true)]);
    let order = w.ledger.replica_order().unwrap();
    assert_eq!(order.snapshot.bytes(), b"roles 4");
    assert_eq!(
        (order.attestation.as_str(), &order.keys),
        ("4 at 300", &keys)
    );
}

// spec: REPL-02
#[test]
fn what_does_not_lead_forward_is_refused_with_the_stored_version() {
    let mut w = World::new();
    let refused = |w: &mut World, published: Published| {
        let refusal = published.apply(w).unwrap_err();
        assert_eq!(refusal.status, Status::FailedPrecondition);
        assert_eq!(refusal.reason, "replica_not_forward");
        refusal.details["stored_version"].clone()
    };
    let of_nothing = Published {
        snapshot: false,
        ..Published::of(&w, 1, 1)
    };
    assert_eq!(refused(&mut w, of_nothing), Detail::Int(0));
    Published::of(&w, 5, 100).apply(&mut w).unwrap();
    let cases = [
        Published::of(&w, 5, 200),
        Published::of(&w, 4, 200),
        Published {
            attested: (5, 200),
            ..Published::of(&w, 6, 200)
        },
        Published {
            attested: (6, 100),
            ..Published::of(&w, 6, 200)
        },
        Published {
            attested: (6, 99),
            ..Published::of(&w, 6, 200)
        },
        Published {
            snapshot: false,
            ..Published::of(&w, 6, 200)
        },
        Published {
            snapshot: false,
            ..Published::of(&w, 5, 100)
        },
        Published {
            keys_seen: "others".to_owned(),
            ..Published::of(&w, 6, 200)
        },
    ];
    for published in cases {
        assert_eq!(refused(&mut w, published), Detail::Int(5));
    }
    // Nobody looked at its signatures.
    let unchecked = found(
        &mut w,
        Call::PublishAccessReplica(Box::default()),
        Found::Nothing,
    );
    assert_eq!(unchecked.unwrap_err().reason, "bad_replica");
}

#[test]
fn only_the_newest_key_sets_are_remembered() {
    let mut w = World::new();
    for version in 1..=12_u8 {
        let published = Published {
            new_keys: vec![Payload::from(vec![version])],
            ..Published::of(&w, u64::from(version), i64::from(version))
        };
        published.apply(&mut w).unwrap();
    }
    let kept: Vec<u8> = w
        .ledger
        .replica_keys()
        .iter()
        .map(|set| set.bytes()[0])
        .collect();
    assert_eq!(kept, (5..=12).collect::<Vec<u8>>());
}

// === overrides ===

fn overrides(text: &str) -> Overrides {
    Overrides::read(text).unwrap()
}

fn reload(w: &mut World, text: &str) -> CallResult {
    let read = Found::Overrides(Box::new(overrides(text)));
    found(w, Call::ReloadExternalConfig, read)
}

fn aws_world(regions: &[&str]) -> World {
    let regions = regions.iter().map(|it| (*it).to_owned()).collect();
    World::with(Config {
        providers: [(Provider::Aws, regions)].into(),
        ..Config::default()
    })
}

fn aws_node(node_id: &str, region: &str) -> Call {
    Call::CreateAwsNode(Box::new(CreateAwsNode {
        node_id: node_id.into(),
        region: region.to_owned(),
        instance_type: "c5.large".to_owned(),
        ..CreateAwsNode::default()
    }))
}

const TWO: &str = r#"{"aws": {"regions": {"eu": {}, "us": {"zones": ["us-a"]}}}}"#;

// spec: OVR-02
#[test]
fn a_reload_tells_what_changed_and_puts_regions_in_force() {
    let mut w = aws_world(&["eu"]);
    assert_eq!(
        w.refused(aws_node("n1", "us")).reason,
        "region_not_configured"
    );
    let Ok(Reply::Reloaded(changes)) = reload(&mut w, TWO) else {
        panic!("{:?}", w.last.outcome);
    };
    assert_eq!(
        changes,
        [r#"aws: added {"regions":{"eu":{},"us":{"zones":["us-a"]}}}"#]
    );
    assert_eq!(w.last.audit[0].kind, "reload_external_config");
    assert!(w.last.audit[0].payload.contains("us-a"));
    w.call(aws_node("n1", "us")).unwrap();
    assert_eq!(reload(&mut w, TWO), Ok(Reply::Reloaded(Vec::new())));
    assert!(w.last.audit.is_empty() && w.last.rows.is_empty());
    let unread = found(&mut w, Call::ReloadExternalConfig, Found::Nothing);
    assert_eq!(unread.unwrap_err().reason, "bad_overrides");
}

// spec: OVR-05
#[test]
fn a_region_with_nodes_is_not_taken_away() {
    let mut w = aws_world(&["eu"]);
    reload(&mut w, TWO).unwrap();
    w.call(aws_node("n1", "us")).unwrap();
    w.call(aws_node("n2", "us")).unwrap();
    for text in [r#"{"aws": {"regions": {"eu": {}}}}"#, "{}"] {
        let refusal = reload(&mut w, text).unwrap_err();
        assert_eq!(refusal.status, Status::FailedPrecondition);
        assert_eq!(refusal.reason, "region_in_use");
        let ids = ["n1", "n2"].map(Detail::from).to_vec();
        assert_eq!(refusal.details["nodes"], Detail::List(ids));
        assert_eq!(refusal.details["region"], "us".into());
        assert_eq!(*w.ledger.overrides(), overrides(TWO), "nothing changed");
    }
    // At a start the same holds.
    let booted = w.apply(Command::Overrides(Box::default()));
    assert_eq!(booted.unwrap_err().reason, "region_in_use");
    reload(&mut w, r#"{"aws": {"regions": {"us": {}}}}"#).unwrap();
    assert_eq!(
        w.refused(aws_node("n3", "eu")).reason,
        "region_not_configured"
    );
    w.apply(Command::Overrides(Box::new(overrides(TWO))))
        .unwrap();
    assert_eq!(w.last.audit[0].kind, "reload_external_config");
}

// spec: OVR-04
#[test]
fn a_level_without_an_image_has_none_and_not_that_of_another() {
    let mut w = World::with(Config {
        media_images: [(
            "local".to_owned(),
            [(MediaVersion::Lts, "m:lts".to_owned())].into(),
        )]
        .into(),
        ..Config::default()
    });
    w.node("n1");
    let image = |w: &mut World, id: &str, level| {
        let mut job = job(id);
        job.media_version = level;
        w.call(Call::CreateJob(Box::new(job))).unwrap();
        w.start(id, "n1");
        let orders = w.last.orders.iter();
        let found = orders.filter_map(|order| match order {
            Order::Worker {
                message: WorkerOrder::Provision(job),
                ..
            } => Some(job.media_image.clone()),
            _ => None,
        });
        found.collect::<Vec<_>>().pop().expect("it was provisioned")
    };
    assert_eq!(
        image(&mut w, "a", MediaVersion::Lts),
        "m:lts",
        "the settings' table"
    );
    reload(
        &mut w,
        r#"{"local": {"mediaVersions": {"local": {"RECOMMENDED": "m:9"}}}}"#,
    )
    .unwrap();
    assert_eq!(image(&mut w, "b", MediaVersion::Recommended), "m:9");
    assert_eq!(image(&mut w, "c", MediaVersion::Lts), "");
    assert_eq!(image(&mut w, "d", MediaVersion::Latest), "");
}
