//! Hashes of definitions: the JobHash (JOB-04), and marks of single fields for `pending_restart`.
//!
//! The canonical encoding is JSON with keys in order and without members that hold their type's
//! empty value, so that a field added later does not change the hash of a job that does not use it.

use std::collections::BTreeMap;

use greenroom_types::job::Job;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Hash of a job's definition: positive, 63 bits.
pub fn job_hash(job: &Job) -> i64 {
    let first = first_eight(&canonical(job));
    i64::from_be_bytes((first & 0x7fff_ffff_ffff_ffff).max(1).to_be_bytes())
}

/// Hash of each field that takes effect at a start only (JOB-07), by its name on the wire.
/// Description, tags and the services' configuration are adopted at once and are left out.
pub(crate) fn start_marks(job: &Job) -> BTreeMap<String, u64> {
    let mut services = job.services.clone();
    for service in &mut services {
        service.configuration.clear();
    }
    let marks = [
        ("services", mark(&services)),
        ("norsk_media_version", mark(&job.media_version)),
        ("norsk_service_parameters", mark(&job.media_parameters)),
        ("volumes", mark(&job.volumes)),
        ("auto_placement", mark(&job.auto_placement)),
        ("lease", mark(&job.lease)),
        ("handover", mark(&job.handover)),
        ("job_socket", mark(&job.job_socket)),
        ("provides", mark(&job.provides)),
        ("secret_env", mark(&job.secret_env)),
        ("export_tags", mark(&job.export_tags)),
    ];
    marks
        .into_iter()
        .map(|(name, mark)| (name.to_owned(), mark))
        .collect()
}

/// SHA-256 of the canonical encoding, in hex.
pub(crate) fn digest<T: Serialize>(value: &T) -> String {
    use std::fmt::Write;
    Sha256::digest(canonical(value))
        .iter()
        .fold(String::with_capacity(64), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

fn mark<T: Serialize>(value: &T) -> u64 {
    first_eight(&canonical(value))
}

fn first_eight(bytes: &[u8]) -> u64 {
    let digest = Sha256::digest(bytes);
    digest
        .iter()
        .take(8)
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn canonical<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    let value = serde_json::to_value(value).expect("definitions are made of what JSON can hold");
    write(&value, &mut bytes);
    bytes
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

fn write(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Object(members) => {
            // Sorted here, because the map's own order depends on how the library was built.
            let sorted: BTreeMap<_, _> = members.iter().filter(|(_, v)| !is_empty(v)).collect();
            bytes.push(b'{');
            for (key, value) in sorted {
                write(&Value::String(key.clone()), bytes);
                bytes.push(b':');
                write(value, bytes);
                bytes.push(b',');
            }
            bytes.push(b'}');
        }
        Value::Array(items) => {
            bytes.push(b'[');
            for item in items {
                write(item, bytes);
                bytes.push(b',');
            }
            bytes.push(b']');
        }
        plain => bytes.extend_from_slice(plain.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_types::job::Service;

    // spec: JOB-04
    #[test]
    fn equal_content_has_an_equal_positive_hash_and_other_content_another() {
        let job = Job {
            job_id: "a".into(),
            tags: [("b".into(), "2".into()), ("a".into(), "1".into())].into(),
            services: vec![Service {
                name: "s".into(),
                command: "run".into(),
                ..Service::default()
            }],
            ..Job::default()
        };
        let again: Job = serde_json::from_str(&serde_json::to_string(&job).unwrap()).unwrap();
        assert_eq!(job_hash(&job), job_hash(&again));
        assert!(job_hash(&job) > 0);
        let mut other = job.clone();
        other.description = "x".into();
        assert_ne!(job_hash(&job), job_hash(&other));
        // A fixed value: it must be the same on every member and after every restart.
        assert_eq!(job_hash(&Job::default()), job_hash(&Job::default()));
        assert_eq!(
            digest(&Job {
                job_id: "a".into(),
                ..Job::default()
            }),
            "6738a72a51ee01a31a87b2da57cc0ec8bc207a92c3f50ceaf219a1dd9f315126"
        );
    }
}
