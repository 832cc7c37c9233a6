//! Replacing a damaged or missing database (STORE-10).
//!
//! First choice is a copy that the log can carry on from: then nothing is lost. Only
//! when there is none is history given up: the furthest copy becomes the state, a new
//! log begins behind it, and the generation rises. Damaged files are moved aside and
//! kept; nothing is moved before a replacement was read from end to end.
//!
//! This is for a member that is alone. One of several must not bring back an older
//! state; it has to get the state from the others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::backup;
use crate::boot::{BootOutcome, Found, Loss, remove_if_there};
use crate::config::StoreConfig;
use crate::directory::{Directory, Identity, with_side_files};
use crate::error::OpenError;
use crate::log::LogFile;
use crate::machine::Machine;
use crate::raft::{Leader, Members, Peer, StoredMembers, Vote};
use crate::state::{self, Standing, StateFile};

type Recovered<M> = (LogFile, StateFile, M, BootOutcome);

/// A state that could be gone on from.
struct Candidate {
    /// `None` is the empty state.
    path: Option<PathBuf>,
    standing: Standing,
}

impl Candidate {
    fn index(&self) -> Option<u64> {
        self.standing.applied.map(|id| id.index)
    }
}

pub(crate) fn recover<M: Machine>(
    config: &StoreConfig,
    directory: &Directory,
    named: Option<&Identity>,
    found: Found<M>,
) -> Result<Recovered<M>, OpenError> {
    let trouble = describe(directory, &found);
    tracing::error!(file = %trouble.0.display(), cause = %trouble.1, "the store is damaged");
    let mut rejected = Vec::new();
    let mut candidates = copies::<M>(directory, &mut rejected)?;
    let state_is_whole = found.state.is_ok();
    if let Ok((state, _)) = &found.state {
        candidates.push(Candidate {
            path: Some(state.path().to_owned()),
            standing: state.standing().clone(),
        });
    }
    // The database must be closed before its file is moved.
    drop(found.state);

    if let Ok(log) = &found.log {
        if log.purged().is_none() {
            candidates.push(Candidate {
                path: None,
                standing: Standing::default(),
            });
        }
        let range = log.purged().map(|id| id.index)..=log.last().map(|id| id.index);
        let complete = candidates
            .iter()
            .filter(|candidate| range.contains(&candidate.index()))
            .max_by_key(|candidate| candidate.index());
        if let Some(complete) = complete {
            return keep_log(config, directory, found.log, complete, &trouble);
        }
    }

    let furthest = candidates
        .into_iter()
        .filter(|c| c.path.is_some())
        .max_by_key(Candidate::index);
    let Some(furthest) = furthest else {
        let (file, cause) = trouble;
        let tried = if rejected.is_empty() {
            "there is no backup".to_owned()
        } else {
            rejected.join("; ")
        };
        return Err(OpenError::unreadable(file, format!("{cause}; {tried}")));
    };
    new_log(
        config,
        directory,
        named,
        found.log,
        &furthest,
        state_is_whole,
        &trouble,
    )
}

fn describe<M>(directory: &Directory, found: &Found<M>) -> (PathBuf, String) {
    match found {
        Found {
            state: Err(cause), ..
        } => (directory.state(), cause.clone()),
        Found {
            log: Err(cause), ..
        } => (directory.log(), cause.clone()),
        Found {
            log: Ok(log),
            state: Ok((state, _)),
        } => (
            directory.state(),
            format!(
                "it ends at {:?}, the log begins after {:?}",
                state.standing().applied.map(|id| id.index),
                log.purged().map(|id| id.index),
            ),
        ),
    }
}

/// Every copy of the state that verifies and that the machine accepts.
fn copies<M: Machine>(
    directory: &Directory,
    rejected: &mut Vec<String>,
) -> Result<Vec<Candidate>, OpenError> {
    let mut paths = backup::list(directory)
        .map_err(|error| OpenError::io("cannot list", directory.backups(), error))?;
    let snapshot = directory.snapshot();
    if snapshot.exists() {
        paths.push(snapshot);
    }
    let mut candidates = Vec::new();
    for path in paths {
        let verified = state::verify(&path)
            .and_then(|standing| state::load_copy::<M>(&path)?.map(|_| standing));
        match verified {
            Ok(standing) => candidates.push(Candidate {
                path: Some(path),
                standing,
            }),
            Err(cause) => rejected.push(format!("{}: {cause}", path.display())),
        }
    }
    Ok(candidates)
}

/// The log is whole and goes on where the candidate ends: only the state is replaced.
fn keep_log<M: Machine>(
    config: &StoreConfig,
    directory: &Directory,
    log: Result<LogFile, String>,
    candidate: &Candidate,
    trouble: &(PathBuf, String),
) -> Result<Recovered<M>, OpenError> {
    let log = log.map_err(|cause| OpenError::unreadable(directory.log(), cause))?;
    let path = directory.state();
    let damaged =
        |cause: String| OpenError::unreadable(&trouble.0, format!("{}; {cause}", trouble.1));
    let kept = match &candidate.path {
        Some(copy) => replace_state(config, directory, copy).map_err(damaged)?,
        None => {
            let kept = keep(config, directory, &path).map_err(damaged)?;
            StateFile::create(&path, &log.identity).map_err(damaged)?;
            kept
        }
    };
    let mut state = StateFile::open(&path).map_err(damaged)?;
    state
        .adopt(&log.identity, state.standing().members.clone())
        .map_err(damaged)?;
    let machine = state
        .load::<M>()
        .and_then(|loaded| loaded)
        .map_err(damaged)?;
    let outcome = BootOutcome::Restored {
        from: candidate.path.clone(),
        damaged_kept_as: kept,
        loss: Loss::Nothing,
    };
    Ok((log, state, machine, outcome))
}

/// No copy meets the log: the furthest one becomes the truth, in a new generation.
fn new_log<M: Machine>(
    config: &StoreConfig,
    directory: &Directory,
    named: Option<&Identity>,
    old_log: Result<LogFile, String>,
    furthest: &Candidate,
    state_is_whole: bool,
    trouble: &(PathBuf, String),
) -> Result<Recovered<M>, OpenError> {
    let damaged =
        |cause: String| OpenError::unreadable(&trouble.0, format!("{}; {cause}", trouble.1));
    let standing = &furthest.standing;
    if standing.members.voter_ids().count() > 1 {
        return Err(damaged(
            "this member has others: it must get the state from them".to_owned(),
        ));
    }
    let source = standing.identity.as_ref();
    let Some(cluster) = named.or(source).map(|identity| identity.cluster.clone()) else {
        return Err(damaged(
            "the copy does not say which store it is".to_owned(),
        ));
    };
    let known = [
        named.map(|identity| identity.generation),
        source.map(|identity| identity.generation),
        old_log.as_ref().ok().map(|log| log.identity.generation),
    ];
    let generation = known.into_iter().flatten().max().unwrap_or(0) + 1;
    let member = named.map_or(config.member, |identity| identity.member);
    let identity = Identity {
        cluster,
        generation,
        member,
    };
    // Closed before it is moved.
    drop(old_log);

    let own_state = directory.state();
    let mut kept = None;
    if let Some(copy) = &furthest.path
        && *copy != own_state
    {
        kept = replace_state(config, directory, copy).map_err(damaged)?;
    }
    let mut state = StateFile::open(&own_state).map_err(damaged)?;
    let alone = Members::new(
        vec![[member].into()],
        BTreeMap::from([(
            member,
            Peer {
                name: config.member_name.clone(),
                address: String::new(),
            },
        )]),
    )
    .map_err(|error| damaged(error.to_string()))?;
    if let Some(applied) = standing.applied {
        state
            .adopt(&identity, StoredMembers::new(Some(applied), alone))
            .map_err(damaged)?;
    } else {
        state
            .adopt(&identity, StoredMembers::default())
            .map_err(damaged)?;
    }

    let path = directory.log();
    let beside = path.with_extension("new");
    for stale in with_side_files(&beside) {
        remove_if_there(&stale)?;
    }
    // A higher term than any entry kept, so that nothing of the old log can outrank it.
    let vote = standing.applied.map(|id| Vote {
        leader_id: Leader {
            term: id.leader_id.term + 1,
            node_id: member,
        },
        committed: false,
    });
    drop(LogFile::create(&beside, &identity, standing.applied, vote).map_err(damaged)?);
    let kept_log = keep(config, directory, &path).map_err(damaged)?;
    state::publish(&beside, &path).map_err(|error| damaged(error.to_string()))?;
    let log = LogFile::open(&path).map_err(damaged)?;
    directory.write_identity(&identity)?;

    let machine = state
        .load::<M>()
        .and_then(|loaded| loaded)
        .map_err(damaged)?;
    let loss = Loss::After {
        revision: furthest.index().unwrap_or(0),
        wall_ms: standing.wall_ms,
    };
    tracing::error!(
        ?loss,
        generation,
        state_is_whole,
        "history after this point is given up"
    );
    let outcome = BootOutcome::Restored {
        from: furthest.path.clone(),
        damaged_kept_as: kept_log.or(kept),
        loss,
    };
    Ok((log, state, machine, outcome))
}

/// Copies `copy` beside the state, moves the state aside, and renames the copy into place.
fn replace_state(
    config: &StoreConfig,
    directory: &Directory,
    copy: &Path,
) -> Result<Option<PathBuf>, String> {
    let path = directory.state();
    if copy == path {
        return Ok(None);
    }
    let beside = path.with_extension("new");
    state::copy(copy, &beside)?;
    let kept = keep(config, directory, &path)?;
    state::publish(&beside, &path).map_err(|error| error.to_string())?;
    Ok(kept)
}

fn keep(
    config: &StoreConfig,
    directory: &Directory,
    path: &Path,
) -> Result<Option<PathBuf>, String> {
    if !with_side_files(path).iter().any(|file| file.exists()) {
        return Ok(None);
    }
    directory
        .move_aside(path, config.clock.wall_ms())
        .map(Some)
        .map_err(|error| error.to_string())
}
