//! The records that stand on disk, and their checksums.
//!
//! None of the consensus library's types is ever written: every one has a twin here
//! with its own version, so that a new version of the library cannot change the
//! files. Reading an unknown version is an error, never a guess.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::vote::RaftLeaderId;
use serde::{Deserialize, Serialize};

use crate::raft::{Entry, Leader, LogId, Members, Payload, Peer, Proposal, StoredMembers, Vote};

/// Version of the records in this file. It is written into each of them.
const VERSION: u8 = 1;

const KIND_BLANK: i64 = 0;
const KIND_COMMAND: i64 = 1;
const KIND_MEMBERS: i64 = 2;
const KIND_CHECK: i64 = 3;

/// One row of the log: the commit's (generation, term, index) and its body (CLUST-07).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogRecord {
    pub(crate) index: u64,
    pub(crate) generation: u64,
    pub(crate) term: u64,
    pub(crate) node: u64,
    pub(crate) kind: i64,
    pub(crate) body: Vec<u8>,
}

impl LogRecord {
    pub(crate) fn new(entry: &Entry, generation: u64) -> Result<Self, String> {
        let id = entry.log_id();
        let (kind, body) = match &entry.payload {
            EntryPayload::Blank => (KIND_BLANK, Vec::new()),
            EntryPayload::Normal(Proposal::Command {
                wall_ms, command, ..
            }) => {
                let mut body = Vec::with_capacity(9 + command.len());
                body.push(VERSION);
                body.extend_from_slice(&wall_ms.to_le_bytes());
                body.extend_from_slice(command.as_bytes());
                (KIND_COMMAND, body)
            }
            EntryPayload::Normal(Proposal::Check { index, digest }) => {
                let mut body = vec![VERSION];
                body.extend_from_slice(&index.to_le_bytes());
                body.extend_from_slice(&digest.to_le_bytes());
                (KIND_CHECK, body)
            }
            EntryPayload::Membership(members) => {
                let mut body = vec![VERSION];
                body.extend(write_json(&MembersRecord::new(members))?.into_bytes());
                (KIND_MEMBERS, body)
            }
        };
        Ok(Self {
            index: id.index,
            generation,
            term: id.leader_id.term,
            node: id.leader_id.node_id,
            kind,
            body,
        })
    }

    pub(crate) fn into_entry(self) -> Result<Entry, String> {
        let id = LogId::new(Leader::new(self.term, self.node), self.index);
        let payload = match self.kind {
            KIND_BLANK => EntryPayload::Blank,
            KIND_COMMAND => {
                let (wall, text) = split_version(&self.body)?
                    .split_first_chunk::<8>()
                    .ok_or_else(|| format!("entry {} is too short for a command", self.index))?;
                let text = std::str::from_utf8(text)
                    .map_err(|error| format!("entry {}: {error}", self.index))?;
                EntryPayload::Normal(Proposal::Command {
                    ticket: 0,
                    wall_ms: i64::from_le_bytes(*wall),
                    command: Arc::from(text),
                })
            }
            KIND_CHECK => {
                let body = split_version(&self.body)?;
                let (Some((index, rest)), 16) = (body.split_first_chunk::<8>(), body.len()) else {
                    return Err(format!("entry {} has not the size of a check", self.index));
                };
                let digest = rest.first_chunk::<8>().copied().unwrap_or_default();
                EntryPayload::Normal(Proposal::Check {
                    index: u64::from_le_bytes(*index),
                    digest: u64::from_le_bytes(digest),
                })
            }
            KIND_MEMBERS => {
                let record: MembersRecord = read_json(split_version(&self.body)?)?;
                EntryPayload::Membership(record.members()?)
            }
            other => return Err(format!("entry {} has the unknown kind {other}", self.index)),
        };
        Ok(<Entry as RaftEntry>::new(id, payload))
    }

    pub(crate) fn checksum(&self) -> i64 {
        checksum(&[
            &self.index.to_le_bytes(),
            &self.generation.to_le_bytes(),
            &self.term.to_le_bytes(),
            &self.node.to_le_bytes(),
            &self.kind.to_le_bytes(),
            &self.body,
        ])
    }
}

/// Roughly what an entry costs in memory.
pub(crate) fn weight(payload: &Payload) -> usize {
    match payload {
        EntryPayload::Normal(Proposal::Command { command, .. }) => 128 + command.len(),
        _ => 128,
    }
}

/// Where an entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlaceRecord {
    term: u64,
    node: u64,
    index: u64,
}

impl From<LogId> for PlaceRecord {
    fn from(id: LogId) -> Self {
        Self {
            term: id.leader_id.term,
            node: id.leader_id.node_id,
            index: id.index,
        }
    }
}

impl From<PlaceRecord> for LogId {
    fn from(place: PlaceRecord) -> Self {
        Self::new(Leader::new(place.term, place.node), place.index)
    }
}

/// The vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoteRecord {
    term: u64,
    node: u64,
    committed: bool,
}

impl From<Vote> for VoteRecord {
    fn from(vote: Vote) -> Self {
        Self {
            term: vote.leader_id.term,
            node: vote.leader_id.node_id,
            committed: vote.committed,
        }
    }
}

impl From<VoteRecord> for Vote {
    fn from(vote: VoteRecord) -> Self {
        Self {
            leader_id: Leader::new(vote.term, vote.node),
            committed: vote.committed,
        }
    }
}

/// A membership: the voter sets (two while it changes) and everybody's name and address.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct MembersRecord {
    voters: Vec<BTreeSet<u64>>,
    members: Vec<MemberRecord>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct MemberRecord {
    id: u64,
    name: String,
    address: String,
}

impl MembersRecord {
    fn new(members: &Members) -> Self {
        let member = |(id, peer): (&u64, &Peer)| MemberRecord {
            id: *id,
            name: peer.name.clone(),
            address: peer.address.clone(),
        };
        Self {
            voters: members.get_joint_config().clone(),
            members: members.nodes().map(member).collect(),
        }
    }

    fn members(self) -> Result<Members, String> {
        if self.voters.is_empty() && self.members.is_empty() {
            return Ok(Members::default());
        }
        let members: BTreeMap<u64, Peer> = self
            .members
            .into_iter()
            .map(|MemberRecord { id, name, address }| (id, Peer { name, address }))
            .collect();
        Members::new(self.voters, members).map_err(|error| error.to_string())
    }
}

/// The membership that state.db stands at, with the place that set it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StandingMembersRecord {
    at: Option<PlaceRecord>,
    members: MembersRecord,
}

impl StandingMembersRecord {
    pub(crate) fn new(standing: &StoredMembers) -> Self {
        Self {
            at: standing.log_id().map(PlaceRecord::from),
            members: MembersRecord::new(standing.membership()),
        }
    }

    pub(crate) fn standing(self) -> Result<StoredMembers, String> {
        Ok(StoredMembers::new(
            self.at.map(LogId::from),
            self.members.members()?,
        ))
    }
}

/// JSON with the record version around it.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u8,
    record: T,
}

pub(crate) fn write_versioned<T: Serialize>(record: T) -> Result<String, String> {
    write_json(&Versioned { v: VERSION, record })
}

pub(crate) fn read_versioned<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, String> {
    let Versioned { v, record } = read_json(text.as_bytes())?;
    check_version(v)?;
    Ok(record)
}

fn write_json<T: Serialize>(record: &T) -> Result<String, String> {
    serde_json::to_string(record).map_err(|error| error.to_string())
}

fn read_json<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

fn split_version(body: &[u8]) -> Result<&[u8], String> {
    let (version, rest) = body.split_first().ok_or("an empty record")?;
    check_version(*version)?;
    Ok(rest)
}

fn check_version(version: u8) -> Result<(), String> {
    if version == VERSION {
        return Ok(());
    }
    Err(format!(
        "record version {version}, this program reads {VERSION}"
    ))
}

/// FNV-1a over the parts, each preceded by its length.
///
/// Every step is a bijection of the running value, so a single changed byte always
/// changes the sum; it guards against decay, not against an attacker.
pub(crate) fn checksum(parts: &[&[u8]]) -> i64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut sum: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        for byte in (part.len() as u64).to_le_bytes().iter().chain(part.iter()) {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }
    sum.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(payload: Payload) -> Entry {
        <Entry as RaftEntry>::new(LogId::new(Leader::new(7, 2), 41), payload)
    }

    // spec: CLUST-07
    #[test]
    fn every_kind_of_entry_comes_back_with_its_generation_term_and_index() {
        let members = Members::new(
            vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])],
            BTreeMap::from([1, 2, 3].map(|id| {
                let peer = Peer {
                    name: format!("m{id}"),
                    address: String::new(),
                };
                (id, peer)
            })),
        )
        .expect("members");
        let payloads = [
            EntryPayload::Blank,
            EntryPayload::Normal(Proposal::Command {
                ticket: 9,
                wall_ms: -5,
                command: "{\"a\":1}".into(),
            }),
            EntryPayload::Normal(Proposal::Check {
                index: 1 << 40,
                digest: u64::MAX - 1,
            }),
            EntryPayload::Membership(members),
        ];
        for payload in payloads {
            let record = LogRecord::new(&entry(payload.clone()), 3).expect("write");
            assert_eq!((record.generation, record.term, record.index), (3, 7, 41));
            let back = record.into_entry().expect("read");
            assert_eq!(format!("{back}"), format!("{}", entry(payload)));
        }
    }

    #[test]
    fn a_standing_membership_comes_back() {
        let peer = Peer {
            name: "m1".to_owned(),
            address: "h:1".to_owned(),
        };
        let members = Members::new(vec![BTreeSet::from([1])], BTreeMap::from([(1, peer)]));
        let at = LogId::new(Leader::new(7, 2), 41);
        let standing = StoredMembers::new(Some(at), members.expect("members"));
        for standing in [standing, StoredMembers::default()] {
            let text = write_versioned(StandingMembersRecord::new(&standing)).expect("write");
            let back: StandingMembersRecord = read_versioned(&text).expect("read");
            assert_eq!(back.standing().expect("members"), standing);
        }
    }

    // spec: STORE-04
    #[test]
    fn one_flipped_bit_changes_the_checksum() {
        let record = LogRecord::new(
            &entry(EntryPayload::Normal(Proposal::Command {
                ticket: 0,
                wall_ms: 1,
                command: "\"text\"".into(),
            })),
            1,
        )
        .expect("write");
        for byte in 0..record.body.len() {
            for bit in 0..8 {
                let mut flipped = record.clone();
                flipped.body[byte] ^= 1 << bit;
                assert_ne!(
                    flipped.checksum(),
                    record.checksum(),
                    "byte {byte} bit {bit}"
                );
            }
        }
    }

    #[test]
    fn an_unknown_version_is_refused() {
        let mut record = LogRecord::new(
            &entry(EntryPayload::Normal(Proposal::Command {
                ticket: 0,
                wall_ms: 1,
                command: "1".into(),
            })),
            1,
        )
        .expect("write");
        record.body[0] = 2;
        let error = record.into_entry().expect_err("refused");
        assert_eq!(error, "record version 2, this program reads 1");
    }
}
