//! Validation of bundles.

use greenroom_placement::{Code, Finding, Findings, ServicePorts, validate};
use greenroom_types::bundle::{Bundle, BundleJob, Rule};
use greenroom_types::inventory::{Disk, NodeInventory};
use greenroom_types::job::{Container, Service};
use greenroom_types::node::NodeState;
use greenroom_types::pool::TierKind;

use crate::build::*;

fn cloud() -> World {
    let mut gpu = shape("gpu", 4.0);
    gpu.gpus = vec![device(0, 1.0)];
    let mut sdi = shape("sdi", 8.0);
    sdi.capabilities = vec![capability("sdi", 2, &[("card", "duo")])];
    World::new(vec![aws("cloud", &[gpu, sdi])])
}

fn codes(findings: &[Finding]) -> Vec<(Code, &str)> {
    findings
        .iter()
        .map(|it| (it.code, it.path.as_str()))
        .collect()
}

fn check(world: &World, bundle: &Bundle) -> Findings {
    validate(bundle, &world.fleet)
}

#[track_caller]
fn errors(world: &World, bundle: &Bundle, expected: &[(Code, &str)]) {
    let findings = check(world, bundle);
    assert_eq!(codes(&findings.errors), expected, "{findings:#?}");
}

fn of(jobs: Vec<BundleJob>) -> Bundle {
    bundle("a", jobs)
}

// spec: VALID-01, VALID-02
#[test]
fn all_faults_of_shape_are_reported_at_once() {
    let mut b = bundle("", vec![job("e", -1.0), job("e", 1.0), job("", 1.0)]);
    b.jobs[1].requirements.required_gpu_capacity = f64::NAN;
    b.pool = "nowhere".into();
    let b = doubled(b, |policy| policy.pool = Some("neither".into()));
    let world = cloud();
    let before = format!("{:?}", world.fleet);
    errors(
        &world,
        &b,
        &[
            (Code::EmptyBundleId, "bundleId"),
            (Code::InvalidNumber, "jobs[0].requirements.requiredCapacity"),
            (Code::DuplicateJobName, "jobs[1].jobName"),
            (
                Code::InvalidNumber,
                "jobs[1].requirements.requiredGpuCapacity",
            ),
            (Code::EmptyJobName, "jobs[2].jobName"),
            (Code::UnknownPool, "pool"),
            (Code::UnknownPool, "resiliencePolicy.pool"),
        ],
    );
    assert_eq!(format!("{:?}", world.fleet), before);
    errors(&world, &of(vec![]), &[(Code::NoJobs, "jobs")]);
    let good = check(&world, &of(vec![job("e", 1.0)]));
    assert_eq!(good, Findings::default());
    assert!(good.is_ok());
}

// spec: VALID-03
#[test]
fn rules_that_cannot_hold_are_errors() {
    let world = cloud();
    let rule = |name: &str, together: &[&str], apart: &[&str]| {
        with(job(name, 1.0), |job| {
            job.co_locate_with = together.iter().map(|&name| name.into()).collect();
            job.separate_from = apart.iter().map(|&name| name.into()).collect();
        })
    };
    errors(
        &world,
        &of(vec![rule("a", &["ghost"], &["a"])]),
        &[
            (Code::UnknownPlacementPeer, "jobs[0].coLocateWith[0]"),
            (Code::SelfReference, "jobs[0].separateFrom[0]"),
        ],
    );
    let contradiction = [(Code::ContradictoryPlacement, "jobs[2].separateFrom[0]")];
    errors(
        &world,
        &of(vec![
            rule("a", &["b"], &[]),
            rule("b", &["c"], &[]),
            rule("c", &[], &["a"]),
        ]),
        &contradiction,
    );
    let mut defaults = of(vec![
        job("a", 1.0),
        job("b", 1.0),
        rule("c", &["b"], &["a"]),
    ]);
    errors(&world, &defaults, &[]);
    defaults.intra_replica_placement.same_node_default = true;
    errors(&world, &defaults, &contradiction);

    let lone = with(job("a", 1.0), |job| job.single_use = true);
    errors(
        &world,
        &of(vec![lone]),
        &[(Code::SingleUseNeedsExclusive, "jobs[0].singleUse")],
    );
    let mut mixed = of(vec![rule("a", &["b"], &[]), job("b", 1.0)]);
    mixed.jobs[0].exclusive = true;
    errors(
        &world,
        &mixed,
        &[(Code::MixedExclusiveGroup, "jobs[1].exclusive")],
    );
    mixed.jobs[1].exclusive = true;
    errors(&world, &mixed, &[]);
    mixed.jobs[1].single_use = true;
    errors(
        &world,
        &mixed,
        &[(Code::MixedExclusiveGroup, "jobs[1].singleUse")],
    );
}

// spec: VALID-04
#[test]
fn one_profile_must_offer_everything_together() {
    let world = cloud();
    let wants = |capacity: f64, change: fn(&mut greenroom_types::bundle::Requirements)| {
        of(vec![with(job("e", capacity), |job| {
            change(&mut job.requirements)
        })])
    };
    let code = |bundle: &Bundle| check(&world, bundle).errors.first().map(|it| it.code);
    assert_eq!(code(&wants(8.0, |_| {})), None);
    assert_eq!(code(&wants(8.5, |_| {})), Some(Code::CapacityUnsatisfiable));
    assert_eq!(
        code(&wants(1.0, |it| it.required_cores = 9)),
        Some(Code::CoresUnsatisfiable)
    );
    let card = |card: &'static str| {
        let mut bundle = wants(1.0, |_| {});
        bundle.jobs[0].requirements.required_capabilities =
            vec![capability("sdi", 2, &[("card", card)])];
        bundle
    };
    assert_eq!(code(&card("duo")), None);
    assert_eq!(code(&card("quad")), Some(Code::CapabilityUnsatisfiable));
    assert_eq!(code(&wants(4.0, |it| it.required_gpu_capacity = 1.0)), None);
    let too_much = wants(4.0, |it| it.required_gpu_capacity = 1.5);
    assert_eq!(code(&too_much), Some(Code::GpuUnsatisfiable));
    let found = check(&world, &too_much);
    assert!(!found.is_ok());
    assert_eq!(
        found.errors[0].message,
        "job e: needs a share of 1.5 on one GPU; no node of pool live that has 4 vCPU free offers that as well"
    );
    let model = wants(4.0, |it| {
        it.required_gpu_capacity = 0.5;
        it.required_gpu_model = "H100".into();
    });
    let message = &check(&world, &model).errors[0].message;
    assert!(message.contains("needs 0.5 of a H100;"), "{message}");
    let apart = wants(5.0, |it| it.required_gpu_capacity = 0.5);
    assert_eq!(
        code(&apart),
        Some(Code::GpuUnsatisfiable),
        "each alone exists, together not"
    );

    let mut group = of(vec![job("a", 5.0), job("b", 5.0)]);
    assert_eq!(code(&group), None);
    group.intra_replica_placement.same_node_default = true;
    assert_eq!(code(&group), Some(Code::GroupUnsatisfiable));
}

// spec: PLACE-35, VALID-05
#[test]
fn a_job_that_no_runtime_of_the_pool_runs_is_told_before_it_is_submitted() {
    let image = Service {
        container: Container::Docker("img:1".to_owned()),
        command: "run".to_owned(),
        ..Service::default()
    };
    let program = Service {
        command: "run".to_owned(),
        ..Service::default()
    };
    let runs = |name: &str, services: &[&Service]| {
        let services = services.iter().map(|&it| it.clone()).collect();
        with(job(name, 1.0), |job| job.launch.services = services)
    };
    let mut world = World::new(vec![fixed("own")]);
    world.node("n", "own", 4.0);
    world.offers("n", |it| it.runtime = "process".to_owned());
    let warnings = |world: &World, jobs: Vec<BundleJob>| {
        let findings = check(world, &of(jobs));
        assert_eq!(codes(&findings.errors), []);
        codes(&findings.warnings)
            .iter()
            .map(|it| it.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(warnings(&world, vec![runs("e", &[&program])]), []);
    let found = check(&world, &of(vec![runs("e", &[&image])]));
    assert_eq!(
        codes(&found.warnings),
        [(Code::RuntimeUnsatisfiable, "jobs[0].launch.services")]
    );
    assert_eq!(
        found.warnings[0].message,
        "job e: needs a node that runs containers; the nodes of pool live that are large enough \
         run processes (no container engine is used there)"
    );
    world.node("m", "own", 4.0);
    world.offers("m", |it| it.runtime = "docker 29.0".to_owned());
    assert_eq!(
        warnings(&world, vec![runs("e", &[&image]), runs("f", &[&program])]),
        []
    );

    // What no node runs is an error, whatever nodes there are, and is told once.
    let mut together = runs("f", &[&program]);
    together.co_locate_with = vec!["e".into()];
    for (jobs, path) in [
        (
            vec![runs("e", &[&image, &program])],
            "jobs[0].launch.services",
        ),
        (
            vec![runs("e", &[&image]), together],
            "jobs[1].launch.services",
        ),
    ] {
        let found = check(&world, &of(jobs));
        assert_eq!(codes(&found.errors), [(Code::MixedRuntimes, path)]);
        assert_eq!(codes(&found.warnings), []);
    }
}

// spec: PLACE-34
#[test]
fn a_pool_in_which_no_disk_has_room_is_a_warning() {
    let mut world = World::new(vec![fixed("own")]);
    let b = of(vec![job("e", 4.0)]);
    for name in ["n", "m"] {
        world.node(name, "own", 4.0);
    }
    let low = |it: &mut NodeInventory| {
        it.disk_low = true;
        it.disks = vec![Disk {
            total: 100 << 30,
            free: 7 << 30,
            ..Disk::default()
        }];
    };
    world.offers("n", low);
    assert_eq!(check(&world, &b), Findings::default(), "m has room");
    world.offers("m", low);
    let findings = check(&world, &b);
    assert!(findings.is_ok());
    assert_eq!(codes(&findings.warnings), [(Code::DiskNearlyFull, "pool")]);
    let said = |world: &World| check(world, &b).warnings[0].message.clone();
    let full = "every node of pool live has its disk nearly full, so nothing starts there:";
    let each = |names: &[&str]| -> String {
        let words = names
            .iter()
            .map(|name| format!("{name} 7 % free, 10 % needed"));
        words.collect::<Vec<_>>().join("; ")
    };
    assert_eq!(said(&world), format!("{full} {}", each(&["n", "m"])));
    for name in ["o", "p", "q", "r", "s"] {
        world.node(name, "own", 4.0);
        world.offers(name, low);
    }
    let five = each(&["n", "m", "o", "p", "q"]);
    assert_eq!(said(&world), format!("{full} {five} and 2 more"));
    let mut mixed = World::new(vec![fixed("own"), aws("cloud", &[shape("s", 4.0)])]);
    mixed.node("n", "own", 4.0);
    mixed.offers("n", low);
    assert_eq!(check(&mixed, &b), Findings::default(), "one can be bought");
}

// spec: VALID-04, VALID-05
#[test]
fn a_miss_is_a_warning_where_a_worker_may_still_join() {
    let mut world = World::new(vec![fixed("own")]);
    let b = of(vec![job("e", 4.0)]);
    let found = |world: &World| {
        let findings = check(world, &b);
        (
            findings.errors.len(),
            codes(&findings.warnings).first().map(|it| it.0),
        )
    };
    assert_eq!(
        found(&world),
        (0, Some(Code::CapacityUnsatisfiable)),
        "no node yet"
    );
    world.node("n", "own", 2.0);
    assert_eq!(found(&world), (0, Some(Code::CapacityUnsatisfiable)));
    assert_eq!(
        check(&world, &b).warnings[0].message,
        "job e: needs 4 vCPU; the largest node of pool live has 2"
    );
    world.node("m", "own", 4.0);
    assert_eq!(found(&world), (0, None), "live inventories are profiles");
    world.condition("m", |it| it.state = NodeState::Stopped);
    assert_eq!(found(&world), (0, Some(Code::CapacityUnsatisfiable)));

    let mut mixed = World::new(vec![fixed("own"), aws("cloud", &[shape("s", 2.0)])]);
    assert_eq!(
        codes(&check(&mixed, &b).errors).len(),
        1,
        "any elastic tier makes it an error"
    );
    mixed.node("big", "own", 4.0);
    assert!(
        check(&mixed, &b).is_ok(),
        "and a node of the fixed tier cures it"
    );
}

// spec: VALID-06
#[test]
fn each_copy_is_checked_against_its_own_pool() {
    let world = World::of_pools(vec![
        pool(POOL, vec![aws("cloud", &[shape("s", 4.0)])]),
        pool("small", vec![aws("cloud", &[shape("s", 1.0)])]),
    ]);
    let b = doubled(of(vec![job("e", 2.0)]), |policy| {
        policy.pool = Some("small".into())
    });
    let findings = check(&world, &b);
    assert_eq!(findings.errors.len(), 1);
    assert!(
        findings.errors[0].message.contains("small"),
        "{}",
        findings.errors[0].message
    );
    let same = doubled(of(vec![job("e", 5.0)]), |_| {});
    assert_eq!(
        check(&world, &same).errors.len(),
        1,
        "one pool, one finding"
    );
}

// spec: VALID-07
#[test]
fn copies_that_cannot_be_kept_apart_are_warned_of() {
    let warned = |world: &World, bundle: &Bundle| {
        codes(&check(world, bundle).warnings)
            .iter()
            .any(|it| it.0 == Code::ResilienceUnsatisfiable)
    };
    let clouds = doubled(of(vec![job("e", 1.0)]), |policy| {
        policy.same_cloud = Rule::Forbid
    });
    let one_cloud = World::new(vec![
        aws("t1", &[shape("s", 4.0)]),
        aws("t2", &[shape("s", 4.0)]),
    ]);
    assert!(warned(&one_cloud, &clouds));
    let oci = elastic("t2", TierKind::Oci, &[shape("s", 4.0)]);
    assert!(!warned(
        &World::new(vec![aws("t1", &[shape("s", 4.0)]), oci]),
        &clouds
    ));

    let nodes = doubled(of(vec![job("e", 1.0)]), |_| {});
    assert!(!warned(&one_cloud, &nodes));
    let mut capped = aws("t1", &[shape("s", 4.0)]);
    capped.max_nodes = Some(1);
    let capped = World::new(vec![capped]);
    assert!(warned(&capped, &nodes));
    for (backup, expected) in [(POOL, true), ("nowhere", false)] {
        let named = doubled(of(vec![job("e", 1.0)]), |policy| {
            policy.pool = Some(backup.into());
        });
        assert_eq!(warned(&capped, &named), expected, "{backup}");
    }
    let mut owned = World::new(vec![fixed("own")]);
    owned.node("n", "own", 4.0);
    assert!(warned(&owned, &nodes));
    owned.node("m", "own", 4.0);
    assert!(!warned(&owned, &nodes));
}

// spec: VALID-08, PORT-05, PORT-06
#[test]
fn ports_are_checked_within_a_group_and_against_node_services() {
    let mut world = cloud();
    let ports = |name: &str, tokens: &[&str]| {
        with(job(name, 1.0), |job| {
            job.requirements.required_host_ports = tokens.iter().map(|&it| it.into()).collect();
        })
    };
    errors(
        &world,
        &of(vec![ports("a", &["80/tcp", "80"])]),
        &[(
            Code::InvalidHostPort,
            "jobs[0].requirements.requiredHostPorts[1]",
        )],
    );
    let mut pair = of(vec![
        ports("a", &["80/tcp"]),
        ports("b", &["81/tcp", "80/TCP"]),
    ]);
    errors(&world, &pair, &[]);
    pair.intra_replica_placement.same_node_default = true;
    errors(
        &world,
        &pair,
        &[(
            Code::HostPortClash,
            "jobs[1].requirements.requiredHostPorts[1]",
        )],
    );

    let service = |consumes: Vec<_>| ServicePorts {
        service_id: "probe".into(),
        pools: vec![POOL.into()],
        consumes,
        ports: vec!["9100/tcp".parse().unwrap()],
    };
    let wants = of(vec![ports("a", &["9100/tcp"])]);
    world.fleet.set_service_ports(vec![service(vec![])]);
    let findings = check(&world, &wants);
    assert_eq!(findings.errors[0].code, Code::HostPortOfService);
    let message = &findings.errors[0].message;
    assert!(
        message.contains("job a") && message.contains("probe"),
        "{message}"
    );
    world
        .fleet
        .set_service_ports(vec![service(vec![capability("sdi", 1, &[])])]);
    errors(&world, &wants, &[]);
    // Only where all nodes would carry it; of a pool without any, nothing is known.
    let clash = [(
        Code::HostPortOfService,
        "jobs[0].requirements.requiredHostPorts[0]",
    )];
    for (cards, expected) in [(&[1, 1][..], &clash[..]), (&[1, 0], &[]), (&[], &[])] {
        let mut owned = World::new(vec![fixed("own")]);
        for (at, &count) in cards.iter().enumerate() {
            let name = format!("n{at}");
            owned.node(&name, "own", 4.0);
            owned.offers(&name, |it| {
                it.capabilities = vec![capability("sdi", count, &[])]
            });
        }
        let consumes = service(vec![capability("sdi", 1, &[])]);
        owned.fleet.set_service_ports(vec![consumes]);
        errors(&owned, &wants, expected);
    }
}

// spec: VALID-09
#[test]
fn overrides_without_a_backup_are_warned_of() {
    let mut b = of(vec![job("e", 1.0)]);
    b.backup_parameter_overrides
        .insert("url".into(), "x".into());
    let findings = check(&cloud(), &b);
    assert!(findings.is_ok());
    assert_eq!(
        codes(&findings.warnings),
        [(Code::OverridesWithoutBackup, "backupParameterOverrides")]
    );
    assert_eq!(check(&cloud(), &doubled(b, |_| {})), Findings::default());
}

// Codes are stable (DEC-02).
#[test]
fn codes_keep_their_names_in_every_form() {
    for code in [
        Code::ContradictoryPlacement,
        Code::HostPortOfService,
        Code::EmptyBundleId,
    ] {
        assert_eq!(serde_json::to_value(code).unwrap(), code.name());
    }
}
