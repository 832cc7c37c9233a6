//! The rules of CONF, one by one: what is refused, with which code, at which path.

use super::*;
use greenroom_types::pool::TierKind;
use serde_json::{Value, json};

fn parse(mut tree: Value) -> Result<Settings, AutoSettingsValidationError> {
    tree.as_object_mut()
        .unwrap()
        .entry("url")
        .or_insert(json!("127.0.0.1:7000"));
    Settings::parse(&tree)
}

/// Faults as `code@path`.
fn faults(tree: Value) -> Vec<String> {
    parse(tree)
        .expect_err("these settings must be refused")
        .faults
        .iter()
        .map(|fault| {
            let code = serde_json::to_value(fault.code).unwrap();
            format!("{}@{}", code.as_str().unwrap(), fault.path)
        })
        .collect()
}

fn fixed(name: &str) -> Value {
    json!({"name": name, "kind": "local-servers", "scaleOut": "fixed"})
}

fn elastic(name: &str) -> Value {
    json!({"name": name, "kind": "aws", "scaleOut": "elastic", "region": "r", "candidateInstanceTypes": [
        {"instanceType": "c5.xlarge", "totalCapacity": 4, "totalCores": 4}]})
}

// spec: CONF-02, CONF-15
#[test]
fn the_address_is_required_and_nothing_else_is() {
    let error = Settings::parse(&json!({})).unwrap_err();
    assert_eq!(error.faults.len(), 1);
    assert_eq!(error.faults[0].code, FaultCode::MissingUrl);
    assert!(parse(json!({})).is_ok());
}

// spec: CONF-04, CONF-05, CONF-06, CONF-08, CONF-09, CONF-11
#[test]
fn absent_settings_take_their_defaults() {
    let s = parse(json!({})).unwrap();
    assert_eq!(s.pending_window, Millis(60_000));
    assert_eq!(s.remove_stopped_nodes_after, Millis(3_600_000));
    assert_eq!(s.rejection_backoff, Millis(5_000));
    assert_eq!(s.rejection_escalation_count, 3);
    assert_eq!(s.failure_backoff, Millis(30_000));
    assert_eq!(s.job_startup_grace, Millis(120_000));
    assert_eq!(s.unhealthy_cooldown, Millis(600_000));
    assert_eq!((s.ceilings.prefer_spare, s.ceilings.avoid_spare), (6, 6));
    assert_eq!(s.hot_spare_reconcile_interval, Millis(60_000));
    assert_eq!(s.node_service_reconcile_interval, Millis(60_000));
    assert_eq!(s.prefetch_parallel_nodes, 8);
    let m = s.migration;
    let deadlines = [
        m.launching,
        m.awaiting_target_ready,
        m.awaiting_source_stop,
        m.applying,
        m.proposing,
        m.starting_target,
        m.stopping_source,
    ];
    assert_eq!(
        deadlines.map(|d| d.0),
        [120_000, 120_000, 30_000, 10_000, 30_000, 120_000, 30_000]
    );
    assert!(s.placement_pools.is_empty() && s.hot_spares.is_empty());
    assert!(s.template_images.is_empty() && s.node_services.is_empty());
}

// spec: CONF-03
#[test]
fn the_window_sent_is_never_shorter_than_a_lead_and_a_minute() {
    let sent = |tree| parse(tree).unwrap().pending_window_sent_s();
    assert_eq!(sent(json!({})), 60);
    assert_eq!(sent(json!({"pendingWindow": 90.5})), 91);
    let pools = json!([{"name": "p", "tiers": [elastic("t")]}]);
    assert_eq!(
        sent(json!({"pendingWindow": 0, "placementPools": pools})),
        360
    );
    assert_eq!(
        sent(json!({"pendingWindow": 900, "placementPools": pools})),
        900
    );
}

// spec: CONF-05
#[test]
fn the_nested_value_wins_and_an_explicit_zero_counts_as_set() {
    let s = parse(json!({
        "placement": {"failureBackoffMs": 0, "rejectionEscalationCount": 5},
        "failureBackoffMs": 7000, "rejectionEscalationCount": 2, "rejectionBackoffMs": 1000,
    }))
    .unwrap();
    assert_eq!(s.failure_backoff, Millis(0));
    assert_eq!(s.rejection_escalation_count, 5);
    assert_eq!(s.rejection_backoff, Millis(1000));
}

// spec: CONF-06, CONF-07
#[test]
fn a_ceiling_is_the_jobs_own_then_its_policys_then_the_flat_one() {
    let s = parse(json!({
        "failurePolicies": {"preferSpare": {"maxRestartsPerHour": 0}}, "maxRestartsPerHour": 9,
    }))
    .unwrap();
    let limit = |policy, own| {
        s.ceilings.limit(&Requirements {
            on_runtime_failure: policy,
            max_restarts_per_hour: own,
            ..Requirements::default()
        })
    };
    assert_eq!(limit(OnRuntimeFailure::PreferSpare, None), Some(0));
    assert_eq!(limit(OnRuntimeFailure::AvoidSpare, None), Some(9));
    assert_eq!(limit(OnRuntimeFailure::AvoidSpare, Some(0)), Some(0));
    assert_eq!(limit(OnRuntimeFailure::Drop, Some(3)), None);
    assert_eq!(
        faults(json!({"failurePolicies": {
            "drop": {"maxRestartsPerHour": 1},
            "preferSpare": {"spares": "first"},
        }})),
        [
            "unknownKey@failurePolicies.preferSpare.spares",
            "unknownKey@failurePolicies.drop"
        ]
    );
}

// spec: CONF-12
#[test]
fn each_fault_of_a_pool_has_its_code_and_path() {
    let mut volume = fixed("own");
    volume["rootVolume"] = json!({"sizeGb": 100});
    let mut bare = elastic("bare");
    bare["candidateInstanceTypes"] = json!([]);
    let mut local = elastic("local");
    local["kind"] = json!("local-servers");
    let mut shapes = elastic("shapes");
    shapes["candidateInstanceTypes"] = json!([
        {"instanceType": "", "totalCapacity": 0, "totalCores": -1},
        {"instanceType": "x", "totalCapacity": 4, "totalCores": 1.5},
    ]);
    let found = faults(json!({"placementPools": [
        {"name": "p", "tiers": [volume, bare, local, shapes, fixed("own"), fixed("")]},
        {"name": "p", "tiers": []},
        {"tiers": [fixed("t")]},
        null,
    ]}));
    let tiers = "placementPools[0].tiers";
    let wanted = [
        format!("rootVolumeNotAws@{tiers}[0].rootVolume"),
        format!("noCandidateInstanceTypes@{tiers}[1].candidateInstanceTypes"),
        format!("elasticNeedsCloud@{tiers}[2].scaleOut"),
        format!("invalidCandidate@{tiers}[3].candidateInstanceTypes[0].instanceType"),
        format!("invalidCandidate@{tiers}[3].candidateInstanceTypes[0].totalCapacity"),
        format!("invalidCandidate@{tiers}[3].candidateInstanceTypes[0].totalCores"),
        format!("invalidCandidate@{tiers}[3].candidateInstanceTypes[1].totalCores"),
        format!("duplicateTier@{tiers}[4].name"),
        format!("multipleFixedTiers@{tiers}[4].scaleOut"),
        format!("emptyTierName@{tiers}[5].name"),
        format!("multipleFixedTiers@{tiers}[5].scaleOut"),
        "duplicatePoolName@placementPools[1].name".to_owned(),
        "emptyTierList@placementPools[1].tiers".to_owned(),
        "emptyPoolName@placementPools[2].name".to_owned(),
        "emptyPoolName@placementPools[3].name".to_owned(),
        "emptyTierList@placementPools[3].tiers".to_owned(),
    ];
    assert_eq!(found, wanted);
}

// spec: CONF-13
#[test]
fn each_fault_of_a_spare_entry_has_its_code_and_path() {
    let pools = json!([
        {"name": "own", "tiers": [fixed("t")]}, {"name": "cloud", "tiers": [elastic("t")]},
    ]);
    assert_eq!(
        faults(json!({"placementPools": pools, "hotSpares": [
            {"pool": "own", "targetCount": 2},
            {"pool": "own", "targetCount": -1},
            {"pool": "cloud", "targetCount": 1.5},
            {"pool": "nowhere", "exclusive": true},
        ]})),
        [
            "duplicateHotSpare@hotSpares[1].pool",
            "invalidTargetCount@hotSpares[1].targetCount",
            "invalidTargetCount@hotSpares[2].targetCount",
            "unknownHotSparePool@hotSpares[3].pool",
            "exclusiveWithoutReservedFor@hotSpares[3].exclusive",
        ]
    );
    assert_eq!(
        faults(
            json!({"placementPools": pools, "hotSpares": [{"pool": "cloud", "targetCount": 1}]})
        ),
        ["spareInstanceTypeMissing@hotSpares[0].spec.instanceType"]
    );
    let tree = json!({"placementPools": pools, "hotSpares": [{"pool": "cloud", "targetCount": 0}]});
    assert_eq!(parse(tree).unwrap().hot_spares[0].target_count, 0);
}

// spec: CONF-14
#[test]
fn node_services_need_the_switch_a_pool_and_ids_of_their_own() {
    let service = |id: &str| json!({"serviceId": id, "pools": ["p"], "lifecycle": "eager"});
    let pools = json!([{"name": "p", "tiers": [fixed("t")]}]);
    assert_eq!(
        faults(json!({"placementPools": pools, "nodeServices": [
            service("a"), service("a"),
            {"serviceId": "b", "pools": ["q"], "lifecycle": "lazy", "jobSpec": {"wrong": 1}},
        ]})),
        [
            "experimentalNotEnabled@nodeServices",
            "duplicateNodeService@nodeServices[1].serviceId",
            "unsupportedLifecycle@nodeServices[2].lifecycle",
            "unknownNodeServicePool@nodeServices[2].pools[0]",
            "unknownKey@nodeServices[2].jobSpec.wrong",
        ]
    );
    let s = parse(
        json!({"placementPools": pools, "experimental": {"nodeServices": true},
        "nodeServices": [service("a")]}),
    )
    .unwrap();
    assert_eq!(s.node_services[0].service_id.as_str(), "a");
}

// spec: CONF-15
#[test]
fn numbers_that_cannot_be_and_values_outside_their_list_are_faults() {
    let mut tier = fixed("t");
    tier["packingStrategy"] = json!("tight");
    tier["launchMode"] = json!(3);
    assert_eq!(
        faults(json!({
            "pendingWindow": -1, "removeStoppedNodesAfter": 0, "rejectionBackoffMs": 1.5,
            "rejectionEscalationCount": 0, "hotSpareReconcileIntervalMs": 0,
            "unhealthyCooldownMs": null, "migration": {"applyingDeadlineMs": 0},
            "placementPools": [{"name": "p", "tiers": [tier]}],
        })),
        [
            "invalidNumber@pendingWindow",
            "invalidNumber@removeStoppedNodesAfter",
            "invalidNumber@rejectionBackoffMs",
            "invalidNumber@unhealthyCooldownMs",
            "invalidNumber@rejectionEscalationCount",
            "invalidNumber@hotSpareReconcileIntervalMs",
            "invalidNumber@migration.applyingDeadlineMs",
            "unknownValue@placementPools[0].tiers[0].packingStrategy",
            "unknownValue@placementPools[0].tiers[0].launchMode",
        ]
    );
}

// spec: CALLB-17, CONF-15
#[test]
fn retired_names_and_slips_are_unknown_keys() {
    for key in ["gold", "bands", "spareBand", "replicaOverrides", "hotSpare"] {
        assert_eq!(faults(json!({ key: {} })), [format!("unknownKey@{key}")]);
    }
    let mut tier = fixed("t");
    tier["maxNode"] = json!(3);
    assert_eq!(
        faults(json!({"placementPools": [{"name": "p", "tiers": [tier], "forBand": 1}]})),
        [
            "unknownKey@placementPools[0].tiers[0].maxNode",
            "unknownKey@placementPools[0].forBand"
        ]
    );
}

// spec: CONF-01, CONF-14, HARD-113
#[test]
fn all_faults_come_in_one_error() {
    let found = faults(json!({
        "placementPools": [{"name": "p", "tiers": [elastic("t"), elastic("t")]}],
        "hotSpares": [{"pool": "q"}],
        "nodeServices": [{"serviceId": "s", "pools": ["p"], "lifecycle": "lazy"}],
        "maxRestartPerHour": 3,
    }));
    assert_eq!(
        found,
        [
            "duplicateTier@placementPools[0].tiers[1].name",
            "unknownHotSparePool@hotSpares[0].pool",
            "experimentalNotEnabled@nodeServices",
            "unsupportedLifecycle@nodeServices[0].lifecycle",
            "unknownKey@maxRestartPerHour",
        ]
    );
}

// spec: TIER-02, TIER-03
#[test]
fn a_full_tier_is_read_as_written() {
    let s = parse(json!({"placementPools": [{"name": "p", "tiers": [{
        "name": "cloud", "kind": "oci", "region": "AD-1", "packingStrategy": "spread",
        "scaleOut": "elastic", "launchMode": "spot", "reliability": "durable", "maxNodes": 0,
        "placementLeadMs": 1, "provisionTimeoutMs": 2,
        "candidateInstanceTypes": [{"instanceType": "E4", "totalCapacity": 8, "totalCores": 4,
            "ocpus": 4, "memoryGb": 32, "gpus": [{"model": "A10", "capacity": 1}],
            "capabilities": [{"name": "sdi", "count": 2, "attributes": {"v": "1"}}]}],
    }]}]}))
    .unwrap();
    let tier = &s.placement_pools[0].tiers[0];
    assert_eq!(tier.kind, TierKind::Oci);
    assert_eq!(tier.max_nodes, Some(0));
    assert_eq!(tier.provision_timeout(), Millis(2));
    let shape = &tier.candidate_instance_types[0];
    assert_eq!((shape.ocpus, shape.memory_gb), (Some(4.0), Some(32.0)));
    assert_eq!(shape.gpus[0].model, "A10");
    assert_eq!(shape.capabilities[0].attributes["v"], "1");
}

// spec: CONF-12
#[test]
fn a_tier_that_could_never_buy_is_refused() {
    let pool = |tier: Value| json!({"placementPools": [{"name": "p", "tiers": [tier]}]});
    for kind in ["aws", "oci"] {
        for region in [Value::Null, json!(""), json!(" ")] {
            let mut tier = elastic("t");
            (tier["kind"], tier["region"]) = (json!(kind), region);
            assert_eq!(
                faults(pool(tier.clone())),
                ["regionMissing@placementPools[0].tiers[0].region"]
            );
            // One that only takes what is there buys nothing.
            tier["scaleOut"] = json!("fixed");
            assert!(parse(pool(tier)).is_ok());
        }
    }
    let mut tier = elastic("t");
    tier["kind"] = json!("azure");
    assert_eq!(
        faults(pool(tier)),
        ["unknownValue@placementPools[0].tiers[0].kind"]
    );
}

// spec: CONF-13
#[test]
fn a_spare_of_a_shape_that_its_tier_does_not_list_is_refused() {
    let with = |instance_type: &str, count: u32| {
        json!({
            "placementPools": [{"name": "p", "tiers": [fixed("own"), elastic("t")]}],
            "hotSpares": [{"pool": "p", "targetCount": count, "spec": {"instanceType": instance_type}}],
        })
    };
    assert!(parse(with("c5.xlarge", 1)).is_ok());
    assert!(parse(with("c5.xlrage", 0)).is_ok(), "none is bought");
    assert_eq!(
        faults(with("c5.xlrage", 1)),
        ["spareInstanceTypeNotListed@hotSpares[0].spec.instanceType"]
    );
}

// spec: CONF-18
#[test]
fn words_that_others_are_shown_are_of_one_line_and_of_a_length() {
    let long = "x".repeat(200);
    let mut cloud = elastic("c");
    cloud["region"] = json!("r\n");
    cloud["candidateInstanceTypes"][0]["instanceType"] = json!(long);
    let tree = json!({
        "placementPools": [
            {"name": "a\nb", "tiers": [fixed("x\u{1b}[31m"), cloud]}, {"name": "p", "tiers": [fixed("t")]},
        ],
        "hotSpares": [{"pool": "p", "targetCount": 1, "spec": {"region": "x\ny", "az": "\u{7}"},
            "warmFor": ["a\u{1b}[31mRED"], "reservedFor": ["b", ""]}],
        "templateImages": {"": ["a"], "b": ["", "i:1"], "c": ["x\ny"], "d": ["x y"], "t u": ["i:1"],
            "e": vec!["i:1"; 257], "f": ["i".repeat(513)]},
    });
    let error = parse(tree.clone()).unwrap_err();
    assert!(!error.to_string().contains(char::is_control), "{error}");
    let mut found = faults(tree);
    found.sort();
    let mut wanted = vec![
        "unknownValue@placementPools[0].name".to_owned(),
        "unknownValue@placementPools[0].tiers[0].name".to_owned(),
        "unknownValue@placementPools[0].tiers[1].region".to_owned(),
        "unknownValue@placementPools[0].tiers[1].candidateInstanceTypes[0].instanceType".to_owned(),
        "unknownValue@hotSpares[0].spec.region".to_owned(),
        "unknownValue@hotSpares[0].spec.az".to_owned(),
        "unknownValue@hotSpares[0].warmFor".to_owned(),
        "unknownValue@hotSpares[0].reservedFor".to_owned(),
    ];
    for template in ["", "b", "c", "d", "t u", "e", "f"] {
        wanted.push(format!("unknownValue@templateImages.{template}"));
    }
    wanted.sort();
    assert_eq!(found, wanted);
    let many: Vec<String> = (0..6_000).map(|at| format!("t{at}")).collect();
    let pools = json!([{"name": "p", "tiers": [fixed("t")]}]);
    assert_eq!(
        faults(json!({"placementPools": pools, "hotSpares": [{"pool": "p", "warmFor": many}]})),
        ["unknownValue@hotSpares[0].warmFor"]
    );
}

// spec: CONF-12, CONF-13
#[test]
fn settings_that_could_never_work_are_refused() {
    let with = |tiers: Value, count: u32| {
        json!({
            "placementPools": [{"name": "p", "tiers": tiers}],
            "hotSpares": [{"pool": "p", "targetCount": count, "spec": {"instanceType": "c5.xlarge"}}],
        })
    };
    for (most, count) in [(0, 1), (1, 3)] {
        let mut capped = elastic("t");
        capped["maxNodes"] = json!(most);
        assert_eq!(
            faults(with(json!([capped]), count)),
            ["targetAboveMaxNodes@hotSpares[0].targetCount"]
        );
        assert!(parse(with(json!([capped]), most)).is_ok());
        // Servers of one's own may be marked as spares, as many as there are.
        assert!(parse(with(json!([capped, fixed("own")]), count)).is_ok());
    }
    let mut own = fixed("own");
    own["region"] = json!("r");
    own["launchMode"] = json!("spot");
    own["maxNodes"] = json!(0);
    own["candidateInstanceTypes"] = elastic("t")["candidateInstanceTypes"].clone();
    let tier = "placementPools[0].tiers[0]";
    assert_eq!(
        faults(with(json!([own]), 0)),
        ["region", "launchMode", "maxNodes", "candidateInstanceTypes"]
            .map(|key| format!("notForLocalServers@{tier}.{key}"))
    );
    let mut huge = elastic("t");
    huge["candidateInstanceTypes"][0]["totalCapacity"] = json!(1e300);
    assert_eq!(
        faults(with(json!([huge]), 0)),
        [format!(
            "invalidCandidate@{tier}.candidateInstanceTypes[0].totalCapacity"
        )]
    );
    assert_eq!(faults(json!({"url": "a b:99999"})), ["unknownValue@url"]);
}

// spec: CONF-12
#[test]
fn a_shape_stands_once_in_a_tier() {
    let shape = |name: &str| json!({"instanceType": name, "totalCapacity": 4, "totalCores": 2});
    let mut twice = elastic("t");
    twice["candidateInstanceTypes"] = json!([shape("m5"), shape("m6"), shape("m5")]);
    let mut other = elastic("u");
    other["candidateInstanceTypes"] = json!([shape("m5")]);
    let tree = json!({"placementPools": [{"name": "p", "tiers": [twice, other]}]});
    assert_eq!(
        faults(tree),
        ["duplicateCandidate@placementPools[0].tiers[0].candidateInstanceTypes[2].instanceType"]
    );
}

// spec: CONF-15
#[test]
fn a_slip_in_a_key_is_told_with_what_was_meant_and_each_known_key_once() {
    let message = |tree: Value| {
        let error = parse(tree).unwrap_err();
        let mut faults = error.faults.into_iter();
        let found = faults.find(|fault| fault.code == FaultCode::UnknownKey);
        found.expect("an unknown key").message
    };
    let mut slip = fixed("own");
    slip["maxNode"] = json!(3);
    for (tree, meant) in [
        (json!({"placementPool": []}), "placementPools"),
        (
            json!({"placement": {"failureBackofMs": 1}}),
            "failureBackoffMs",
        ),
        (
            json!({"placementPools": [{"name": "p", "tiers": [slip]}]}),
            "maxNodes",
        ),
    ] {
        let told = message(tree);
        assert!(told.contains(&format!("did you mean {meant}? ")), "{told}");
        let (_, known) = told.split_once("known here: ").expect("the known keys");
        let known: Vec<&str> = known.split(", ").collect();
        let once: std::collections::BTreeSet<&str> = known.iter().copied().collect();
        assert_eq!(once.len(), known.len(), "{told}");
    }
}

// spec: CONF-13
#[test]
fn no_fault_lists_what_there_is_none_of() {
    let mut bare = elastic("t");
    bare["candidateInstanceTypes"] = json!([]);
    let error = parse(json!({
        "placementPools": [{"name": "p", "tiers": [bare]}],
        "hotSpares": [{"pool": "p", "targetCount": 1, "spec": {"instanceType": "m5"}}],
    }))
    .unwrap_err();
    let codes: Vec<FaultCode> = error.faults.iter().map(|fault| fault.code).collect();
    assert_eq!(codes, [FaultCode::NoCandidateInstanceTypes]);
}
