//! The objects that histories are made of: a namespace of keys, the tags of a node, the start of a job.
//! Each says what it does, and asks the Manager for it.

use std::collections::BTreeMap;

use greenroom_sdk::types::call::{Call, Reply};
use greenroom_sdk::types::kv::{KvCommit, KvWrite};
use greenroom_sdk::{Client, Error};
use greenroom_testkit::start;
use rand::Rng;
use rand::rngs::StdRng;

use super::check::{Model, Seen};

/// Keys of a namespace, and of a node's tags.
const KEYS: [&str; 2] = ["a", "b"];

/// A namespace of the key/value store.
pub(super) struct Space;

/// Its revision, and each key's value and revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct SpaceState {
    revision: u64,
    keys: BTreeMap<&'static str, (u32, u64)>,
}

#[derive(Clone, Debug)]
pub(super) enum SpaceAsked {
    /// Each key with its new value, none for a delete, and the revision that is expected.
    Commit(Vec<(&'static str, Option<u32>, Option<u64>)>),
    Get(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SpaceAnswer {
    Committed(u64),
    Mismatch,
    Entry(Option<(u32, u64)>),
}

/// The tags of a node.
pub(super) struct NodeTags;

/// Tags of this history, and the revision of all.
pub(super) type TagState = (BTreeMap<String, String>, u64);

#[derive(Clone, Debug)]
pub(super) struct TagAsked {
    /// Key and new value, none to take it away; nothing to read.
    edit: Option<(&'static str, Option<u32>)>,
    expected: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TagAnswer {
    Now(TagState),
    Mismatch,
}

/// Starts of one job, whose worker keeps what it was given.
pub(super) struct Start;

/// Whether a start was accepted or one stands already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StartAnswer {
    Accepted,
    Already,
}

// === impl Space ===

impl Model for Space {
    type State = SpaceState;
    type Asked = SpaceAsked;
    type Answer = SpaceAnswer;

    fn step(state: &SpaceState, asked: &SpaceAsked) -> (SpaceState, SpaceAnswer) {
        let writes = match asked {
            SpaceAsked::Get(key) => {
                let entry = state.keys.get(key).copied();
                return (state.clone(), SpaceAnswer::Entry(entry));
            }
            SpaceAsked::Commit(writes) => writes,
        };
        let stands = |key: &str| state.keys.get(key).map_or(0, |(_, revision)| *revision);
        let fits = |(key, _, expected): &(&'static str, Option<u32>, Option<u64>)| {
            expected.is_none_or(|expected| expected == stands(key))
        };
        if !writes.iter().all(fits) {
            return (state.clone(), SpaceAnswer::Mismatch);
        }
        let changes = writes
            .iter()
            .any(|(key, value, _)| value.is_some() || state.keys.contains_key(key));
        let mut next = state.clone();
        next.revision += u64::from(changes);
        for (key, value, _) in writes {
            match value {
                Some(value) => next.keys.insert(key, (*value, next.revision)),
                None => next.keys.remove(key),
            };
        }
        let revision = next.revision;
        (next, SpaceAnswer::Committed(revision))
    }
}

impl Space {
    pub(super) fn invent(random: &mut StdRng, content: u32) -> SpaceAsked {
        if random.random_bool(0.4) {
            return SpaceAsked::Get(KEYS[random.random_range(0..KEYS.len())]);
        }
        let both = random.random_bool(0.3);
        let from = random.random_range(0..KEYS.len());
        let chosen = KEYS
            .iter()
            .enumerate()
            .filter(|(at, _)| both || *at == from);
        let write = |(_, key): (usize, &&'static str)| {
            let value = random.random_bool(0.8).then_some(content);
            let expected = random
                .random_bool(0.4)
                .then(|| random.random_range(0..6_u64));
            (*key, value, expected)
        };
        SpaceAsked::Commit(chosen.map(write).collect())
    }

    pub(super) async fn ask(client: &Client, name: &str, asked: &SpaceAsked) -> Seen<SpaceAnswer> {
        match asked {
            SpaceAsked::Get(key) => match client.kv_get(name, *key).await {
                Ok(entry) => {
                    let read = |value: &[u8]| {
                        let bytes = value.try_into().unwrap_or([0xff; 4]);
                        u32::from_le_bytes(bytes)
                    };
                    let entry = entry.map(|entry| (read(&entry.value), entry.revision));
                    Seen::Answered(SpaceAnswer::Entry(entry))
                }
                Err(_) => Seen::Refused,
            },
            SpaceAsked::Commit(writes) => {
                let write = |(key, value, expected): &(&str, Option<u32>, Option<u64>)| {
                    let write = match value {
                        Some(value) => KvWrite::set(*key, value.to_le_bytes()),
                        None => KvWrite::delete(*key),
                    };
                    KvWrite {
                        expected_revision: *expected,
                        ..write
                    }
                };
                let commit = KvCommit {
                    namespace: name.to_owned(),
                    writes: writes.iter().map(write).collect(),
                    ..KvCommit::default()
                };
                match client.kv_commit(commit).await {
                    Ok(revision) => Seen::Answered(SpaceAnswer::Committed(revision)),
                    Err(error) => refusal(&error, "revision_mismatch", SpaceAnswer::Mismatch),
                }
            }
        }
    }
}

// === impl NodeTags ===

impl Model for NodeTags {
    type State = TagState;
    type Asked = TagAsked;
    type Answer = TagAnswer;

    fn step(state: &TagState, asked: &TagAsked) -> (TagState, TagAnswer) {
        if asked.expected.is_some_and(|expected| expected != state.1) {
            return (state.clone(), TagAnswer::Mismatch);
        }
        let mut next = state.clone();
        match asked.edit {
            Some((key, Some(value))) => next.0.insert(key.to_owned(), value.to_string()),
            Some((key, None)) => next.0.remove(key),
            None => None,
        };
        next.1 += u64::from(next.0 != state.0);
        (next.clone(), TagAnswer::Now(next))
    }
}

impl NodeTags {
    /// `near` is a revision that the node had a while ago.
    pub(super) fn invent(random: &mut StdRng, content: u32, near: u64) -> TagAsked {
        let key = KEYS[random.random_range(0..KEYS.len())];
        let value = random.random_bool(0.8).then_some(content);
        TagAsked {
            edit: random.random_bool(0.7).then_some((key, value)),
            expected: random
                .random_bool(0.4)
                .then(|| near + random.random_range(0..6_u64)),
        }
    }

    /// Reads.
    pub(super) const fn look() -> TagAsked {
        TagAsked {
            edit: None,
            expected: None,
        }
    }

    pub(super) async fn ask(client: &Client, node: &str, asked: &TagAsked) -> Seen<TagAnswer> {
        let mut set = BTreeMap::new();
        let mut remove = Vec::new();
        match asked.edit {
            Some((key, Some(value))) => drop(set.insert(key.to_owned(), value.to_string())),
            Some((key, None)) => remove.push(key.to_owned()),
            None => {}
        }
        let call = Call::SetNodeTags {
            node_id: node.into(),
            tags: set,
            remove,
            expected_revision: asked.expected,
        };
        match client.call(call).await {
            Ok(Reply::Tags { tags, revision }) => {
                let ours = tags.into_iter();
                let ours = ours.filter(|(key, _)| KEYS.contains(&key.as_str()));
                Seen::Answered(TagAnswer::Now((ours.collect(), revision)))
            }
            Ok(_) => Seen::Refused,
            Err(error) => refusal(&error, "revision_mismatch", TagAnswer::Mismatch),
        }
    }
}

// === impl Start ===

impl Model for Start {
    type State = bool;
    type Asked = ();
    type Answer = StartAnswer;

    fn step(state: &bool, (): &()) -> (bool, StartAnswer) {
        let answer = if *state {
            StartAnswer::Already
        } else {
            StartAnswer::Accepted
        };
        (true, answer)
    }
}

impl Start {
    pub(super) async fn ask(client: &Client, job_id: &str, node: &str) -> Seen<StartAnswer> {
        match client.start_job(start(job_id, node)).await {
            Ok(()) => Seen::Answered(StartAnswer::Accepted),
            Err(error) => refusal(&error, "already_on_node", StartAnswer::Already),
        }
    }
}

/// What an error says: the refusal that the model knows, another one, or nothing at all.
fn refusal<A>(error: &Error, known: &str, answer: A) -> Seen<A> {
    match error {
        Error::FailedPrecondition(refused) | Error::AlreadyExists(refused)
            if refused.reason == known =>
        {
            Seen::Answered(answer)
        }
        Error::InvalidArgument(_)
        | Error::NotFound(_)
        | Error::AlreadyExists(_)
        | Error::FailedPrecondition(_)
        | Error::ResourceExhausted(_)
        | Error::Unavailable(_) => Seen::Refused,
        Error::ConnectionLost {
            outcome_unknown: false,
            ..
        } => Seen::Refused,
        _ => Seen::Unknown,
    }
}
