//! Calls and callbacks as a scenario sees them: a name, and fields by the names of the specification.
//!
//! The serialised form is taken as it is, but for what differs between the two: fields of variants are
//! in snake case, an instance key is an object of its own where the specification lists job and role, a
//! call with one argument has no name for it, and payloads are base64.

use greenroom_policy::Callback;
use greenroom_types::Payload;
use greenroom_types::call::Call;
use serde_json::{Map, Value};

/// Name and fields of a call.
pub(crate) fn of_call(call: &Call) -> (String, Value) {
    let (name, value) = variant(serde_json::to_value(call));
    let value = match (call, value) {
        (Call::DeleteBundle(_), id) => named("bundleId", id),
        (Call::TerminateNode(_) | Call::DeregisterClusterNode(_), id) => named("nodeId", id),
        (Call::DeleteJob(_) | Call::CompleteJob(_), id) => named("jobId", id),
        (Call::UpdateBundle { .. }, Value::Object(mut fields)) => {
            match fields.remove("bundle") {
                Some(Value::Object(bundle)) => fields.extend(bundle),
                other => fields.extend(other.map(|bundle| ("bundle".to_owned(), bundle))),
            }
            lower_state(fields)
        }
        (Call::CreateBundle(_), Value::Object(fields)) => lower_state(fields),
        (_, other) => other,
    };
    (name, fields(value))
}

/// Name and fields of a callback.
pub(crate) fn of_callback(callback: &Callback) -> (String, Value) {
    let (name, value) = variant(serde_json::to_value(callback));
    (name, fields(value))
}

/// An enum as `{name: fields}`.
fn variant(value: serde_json::Result<Value>) -> (String, Value) {
    match value {
        Ok(Value::Object(map)) => map.into_iter().next().unwrap_or_default(),
        Ok(Value::String(name)) => (name, Value::Object(Map::new())),
        Ok(other) => (String::new(), other),
        Err(error) => (String::new(), Value::String(error.to_string())),
    }
}

fn named(name: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value)]))
}

/// `updateBundle` sends `state: live` (BUNDLE-06); the wire form of that word is in capitals.
fn lower_state(mut fields: Map<String, Value>) -> Value {
    if let Some(Value::String(state)) = fields.get_mut("state") {
        *state = state.to_ascii_lowercase();
    }
    Value::Object(fields)
}

fn fields(value: Value) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let mut out = Map::new();
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("key", Value::Object(key)) => out.extend(key),
            (name @ ("payload" | "migrationState"), Value::String(base64)) => {
                out.insert(name.to_owned(), text(&base64));
            }
            (key, value) => {
                out.insert(camel(key), value);
            }
        }
    }
    Value::Object(out)
}

/// A payload as the text that a scenario gave for it.
fn text(base64: &str) -> Value {
    let bytes = Payload::from_base64(base64).unwrap_or_default();
    Value::String(String::from_utf8_lossy(bytes.bytes()).into_owned())
}

fn camel(key: &str) -> String {
    let mut words = key.split('_');
    let mut out = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        if let Some(first) = letters.next() {
            out.push(first.to_ascii_uppercase());
            out.push_str(letters.as_str());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_types::node::InstanceKey;
    use serde_json::json;

    // spec: SCEN-10
    #[test]
    fn calls_have_the_fields_of_the_specification() {
        let stop = Call::StopJob {
            key: InstanceKey::new("a.0.e".into(), "primary".into()),
            node_id: "n1".into(),
            grace_ms: None,
        };
        assert_eq!(
            of_call(&stop),
            (
                "stopJob".to_owned(),
                json!({"jobId": "a.0.e", "role": "primary", "nodeId": "n1", "graceMs": null})
            )
        );
        let end = Call::TerminateNode("n1".into());
        assert_eq!(
            of_call(&end),
            ("terminateNode".to_owned(), json!({"nodeId": "n1"}))
        );
        let verdict = Call::MarkJobFailed {
            job_id: "a.0.e".into(),
            reason: "x".into(),
        };
        assert_eq!(
            of_call(&verdict).1,
            json!({"jobId": "a.0.e", "reason": "x"})
        );
        let update = Call::UpdateBundle {
            bundle: Box::default(),
            dry_run: false,
            clear_stop_time: false,
        };
        let (name, fields) = of_call(&update);
        assert_eq!(
            (name.as_str(), &fields["state"]),
            ("updateBundle", &json!("live"))
        );
    }
}
