//! The wire against its two written sources: the facts about the published package and the specification's map.
//!
//! Goal: nothing published is missing or different, everything added is what the map says and out of the way of
//! published clients. Method: the descriptor set of the built crate is compared with both texts, read by program.

mod descriptors;
mod facts;
mod wire_map;

use std::collections::{BTreeMap, BTreeSet};

use descriptors::{Field, Surface, ours};
use facts::published;
use wire_map::{Answer, Item, Kind, full_name};

/// The first number of what Greenroom adds to something published.
const FIRST_ADDED: i32 = 100;

// spec: API-02
#[test]
fn every_published_message_has_exactly_its_fields() {
    let (ours, published) = (ours(), published());
    assert!(
        published.messages.len() > 100,
        "only {} messages read",
        published.messages.len()
    );
    for (name, fields) in &published.messages {
        let served = ours
            .messages
            .get(name)
            .unwrap_or_else(|| panic!("{name} is missing"));
        let served: BTreeSet<&Field> = served
            .iter()
            .filter(|field| field.number < FIRST_ADDED)
            .collect();
        assert_eq!(served, fields.iter().collect(), "fields of {name}");
    }
}

// spec: API-02
#[test]
fn every_published_enum_has_exactly_its_values() {
    let (ours, published) = (ours(), published());
    assert!(
        published.enums.len() > 10,
        "only {} enums read",
        published.enums.len()
    );
    for (name, values) in &published.enums {
        let served = ours
            .enums
            .get(name)
            .unwrap_or_else(|| panic!("{name} is missing"));
        let served: BTreeSet<_> = served
            .iter()
            .filter(|(number, _)| *number < FIRST_ADDED)
            .collect();
        assert_eq!(served, values.iter().collect(), "values of {name}");
    }
}

// spec: API-02
#[test]
fn every_published_call_has_its_types_and_streams() {
    let (ours, published) = (ours(), published());
    assert_eq!(published.methods.len(), 14);
    for (method, types) in &published.methods {
        assert_eq!(ours.methods.get(method), Some(types), "{method}");
    }
    let health = "grpc.health.v1.HealthCheckRequest ->";
    let answer = "grpc.health.v1.HealthCheckResponse";
    assert_eq!(
        ours.methods["/grpc.health.v1.Health/Check"],
        format!("{health} {answer}")
    );
    assert_eq!(
        ours.methods["/grpc.health.v1.Health/Watch"],
        format!("{health} stream {answer}")
    );
}

// spec: API-03
#[test]
fn additions_to_what_is_published_begin_at_100() {
    let (ours, published) = (ours(), published());
    let mut added = 0;
    for (name, fields) in &published.messages {
        let known: BTreeSet<i32> = fields.iter().map(|field| field.number).collect();
        for field in ours.messages[name]
            .iter()
            .filter(|field| !known.contains(&field.number))
        {
            assert!(
                field.number >= FIRST_ADDED,
                "{name}.{} has number {}",
                field.name,
                field.number
            );
            added += 1;
        }
    }
    for (name, values) in &published.enums {
        let known: BTreeSet<i32> = values.iter().map(|(number, _)| *number).collect();
        for (number, value) in ours.enums[name]
            .iter()
            .filter(|(number, _)| !known.contains(number))
        {
            assert!(*number >= FIRST_ADDED, "{name}.{value} has number {number}");
            added += 1;
        }
    }
    assert!(added > 100, "only {added} additions seen");
}

#[test]
fn added_fields_are_those_of_the_wire_map() {
    let (ours, published) = (ours(), published());
    let mut mapped: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
    for (short, items) in wire_map::added_fields() {
        let name = full_name(&ours, &short);
        assert!(
            published.messages.contains_key(&name),
            "{name} is not a published message"
        );
        for item in &items {
            let number = item
                .number
                .unwrap_or_else(|| panic!("{name}.{} has no number", item.name));
            compare(&ours, &name, number, item);
            mapped.entry(name.clone()).or_default().insert(number);
        }
    }
    for name in published.messages.keys() {
        let served: BTreeSet<i32> = ours.messages[name]
            .iter()
            .map(|field| field.number)
            .filter(|number| *number >= FIRST_ADDED)
            .collect();
        assert_eq!(
            served,
            mapped.remove(name).unwrap_or_default(),
            "added fields of {name}"
        );
    }
}

#[test]
fn added_calls_are_those_of_the_wire_map() {
    let (ours, published) = (ours(), published());
    let calls = wire_map::calls();
    let mut methods: BTreeSet<String> = published.methods.keys().cloned().collect();
    for call in &calls {
        let method = format!("/norsk.api.manager.Manager/{}", call.rpc);
        let request = format!("norsk.api.manager.{}Request", call.rpc);
        let response = match &call.response {
            Answer::Empty => "google.protobuf.Empty".to_owned(),
            Answer::Message(name) => full_name(&ours, name),
            Answer::Fields(_) => format!("norsk.api.manager.{}Response", call.rpc),
        };
        assert_eq!(
            ours.methods.get(&method),
            Some(&format!("{request} -> {response}")),
            "{method}"
        );
        compare_in_order(&ours, &request, &call.request);
        if let Answer::Fields(fields) = &call.response {
            compare_in_order(&ours, &response, fields);
        }
        methods.insert(method);
    }
    let served: BTreeSet<String> = ours
        .methods
        .keys()
        .filter(|name| name.starts_with("/norsk.api."))
        .cloned()
        .collect();
    assert_eq!(served, methods);
}

#[test]
fn new_messages_are_numbered_from_1_in_the_order_of_the_wire_map() {
    let ours = ours();
    let messages = wire_map::messages();
    assert_eq!(messages.len(), 35);
    for (short, items) in messages {
        compare_in_order(&ours, &full_name(&ours, &short), &items);
    }
}

#[test]
fn new_enums_are_those_of_the_wire_map() {
    let ours = ours();
    let numbered = |values: Vec<String>| -> Vec<(i32, String)> { (0..).zip(values).collect() };
    let enums = wire_map::enums();
    assert_eq!(enums.len(), 12);
    for (short, values) in enums {
        let prefix = screaming(&short);
        let values = values
            .into_iter()
            .map(|value| format!("{prefix}_{value}"))
            .collect();
        assert_eq!(
            ours.enums[&full_name(&ours, &short)],
            numbered(values),
            "{short}"
        );
    }
    // Its values stand in A.2, where the field is.
    let phases = ["UNSPECIFIED", "REQUESTED", "BOOTING"]
        .map(|value| format!("START_PHASE_{value}"))
        .to_vec();
    assert_eq!(ours.enums["norsk.api.manager.StartPhase"], numbered(phases));

    let (codes, reasons) = wire_map::numbered_values();
    assert_eq!((codes.len(), reasons.len()), (13, 3));
    let served = &ours.enums["norsk.api.manager.RejectionCode"];
    assert_eq!(served[0], (0, "JOB_REJECTED_UNSPECIFIED".to_owned()));
    assert_eq!(served[1..], codes);
    let served = &ours.enums["norsk.api.manager.JobHistoryJobStopping.Reason"];
    let served: Vec<_> = served
        .iter()
        .filter(|(number, _)| *number >= FIRST_ADDED)
        .cloned()
        .collect();
    assert_eq!(served, reasons);
}

#[test]
fn the_four_migration_orders_are_alike() {
    // The wire map writes their fields once, as a remark.
    let ours = ours();
    let fields = wire_map::items("job_key, migration_id s, payload by, reason s");
    compare_in_order(&ours, "norsk.api.worker.MigrationOrder", &fields);
    let orders: Vec<i32> = ours.messages["norsk.api.worker.NodeControllerMessage"]
        .iter()
        .filter(|field| field.kind == "norsk.api.worker.MigrationOrder")
        .map(|field| field.number)
        .collect();
    assert_eq!(orders, [112, 113, 114, 115]);
}

// === comparing with the wire map ===

/// `message` has these fields, numbered from 1, and no others.
fn compare_in_order(ours: &Surface, message: &str, items: &[Item]) {
    for (number, item) in (1..).zip(items) {
        compare(ours, message, number, item);
    }
    let served = ours
        .messages
        .get(message)
        .unwrap_or_else(|| panic!("{message} is missing"))
        .len();
    assert_eq!(served, items.len(), "number of fields of {message}");
}

/// Field `number` of `message` is what the map says, down into messages without a name.
fn compare(ours: &Surface, message: &str, number: i32, item: &Item) {
    let fields = ours
        .messages
        .get(message)
        .unwrap_or_else(|| panic!("{message} is missing"));
    let field = fields
        .iter()
        .find(|field| field.number == number)
        .unwrap_or_else(|| {
            panic!(
                "{message} has no field {number}, it should be {}",
                item.name
            )
        });
    let at = format!("{message}.{}", field.name);
    assert_eq!(field.name, item.name, "{at} is number {number}");
    assert_eq!(field.oneof.is_some(), item.oneof, "{at} in a oneof");

    let (repeated, kind) = match field.kind.strip_prefix("repeated ") {
        Some(kind) => (true, kind),
        None => (false, field.kind.as_str()),
    };
    let repeated_by_name = item.kind == Kind::Open && item.name == "results";
    assert_eq!(repeated, item.repeated || repeated_by_name, "{at} repeated");
    // A message may always be absent and needs no mark; anything else may be so only by one.
    let is_message = ours.messages.contains_key(kind) || kind.starts_with("google.protobuf.");
    let marked = item.optional && !is_message;
    assert_eq!(ours.optional.contains(&at), marked, "{at} optional");

    match &item.kind {
        Kind::Inline(items) => compare_in_order(ours, kind, items),
        Kind::Named(expected) => assert_eq!(kind, named_type(ours, expected), "type of {at}"),
        Kind::Open => assert_eq!(
            kind,
            type_by_name(ours, message, &item.name),
            "type of {at}"
        ),
    }
}

/// The type a word of the map stands for.
fn named_type(ours: &Surface, word: &str) -> String {
    let scalar = match word {
        "s" => "string",
        "u32" => "uint32",
        "u64" => "uint64",
        "i32" => "int32",
        "b" => "bool",
        "d" => "double",
        "by" => "bytes",
        "ts" => "google.protobuf.Timestamp",
        "E" => "google.protobuf.Empty",
        "map<s,s>" => "map<string, string>",
        name => return full_name(ours, name),
    };
    scalar.to_owned()
}

/// The type of a field for which the map gives a name only.
fn type_by_name(ours: &Surface, message: &str, name: &str) -> String {
    let short = match name {
        "job_key" => "ActiveJobKey",
        "node_id" => "NodeId",
        "inventory" => "NodeInventory",
        "nodeMetadata" => "NodeMetadata",
        "runningNodeMetadata" => "RunningNodeMetadata",
        "code" => "RejectionCode",
        "architecture" => "Architecture",
        "launch_mode" => "LaunchMode",
        "kind" => "InterruptionKind",
        "requirements" => "Requirements",
        "lease" => "LeasePolicy",
        "results" => "ImagePrefetchResult",
        "migration_state" => "MigrationState",
        "migration_target_ready" => "MigrationTargetReady",
        "migration_source_stopped_output" => "MigrationSourceStoppedOutput",
        "migration_target_applied" => "MigrationTargetApplied",
        "migration_aborted" => "MigrationAborted",
        "migration_get_state"
        | "migration_cutover_ready"
        | "migration_cutover_apply"
        | "migration_abort" => "MigrationOrder",
        "protocol_major" | "protocol_minor" => return "uint32".to_owned(),
        "service_port_mappings" => {
            return "map<string, norsk.api.common.ResolvedPortMappings>".to_owned();
        }
        _ => panic!("no type is known for {message}.{name}"),
    };
    full_name(ours, short)
}

/// `NodeState` to `NODE_STATE`.
fn screaming(name: &str) -> String {
    let mut out = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(character.to_ascii_uppercase());
    }
    out
}
