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
use crate::offline::PutBack;
use crate::raft::{Leader, Members, Peer, StoredMembers, Vote};
use crate::schema::{self, Kind};
use crate::sqlite::{self, Peek};
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

    /// A greater generation wins over any place of a lesser one (CLUST-07).
    fn rank(&self) -> (u64, Option<u64>) {
        (
            self.standing
                .identity
                .as_ref()
                .map_or(0, |identity| identity.generation),
            self.index(),
        )
    }
}

/// One recovery: where, when, and what is wrong.
struct Recovery<'a> {
    config: &'a StoreConfig,
    directory: &'a Directory,
    /// What the folder says it holds.
    named: Option<&'a Identity>,
    now_ms: i64,
    /// The file that made this necessary, and why.
    file: PathBuf,
    cause: String,
}

pub(crate) fn recover<M: Machine>(
    config: &StoreConfig,
    directory: &Directory,
    named: Option<&Identity>,
    found: Found<M>,
) -> Result<Recovered<M>, OpenError> {
    let (file, cause) = describe(directory, &found);
    tracing::error!(file = %file.display(), %cause, "the store is damaged");
    let now_ms = config.clock.wall_ms();
    let recovery = Recovery {
        config,
        directory,
        named,
        now_ms,
        file,
        cause,
    };
    let mut rejected = Vec::new();
    let mut candidates = copies::<M>(directory, &mut rejected)?;
    if let Ok((state, _)) = &found.state {
        candidates.push(Candidate {
            path: Some(state.path().to_owned()),
            standing: state.standing().clone(),
        });
    }
    // The database must be closed before its file is moved.
    drop(found.state);

    let mut generation = None;
    match found.log {
        Err(cause) => rejected.push(format!("{}: {cause}", directory.log().display())),
        Ok(log) => {
            generation = Some(log.identity.generation);
            if log.purged().is_none() {
                candidates.push(Candidate {
                    path: None,
                    standing: Standing::default(),
                });
            }
            let mut complete: Option<&Candidate> = None;
            for candidate in &candidates {
                let joins = log.continues(&candidate.standing);
                let joins = joins.map_err(|cause| recovery.failed(&cause))?;
                if joins && complete.is_none_or(|best| best.rank() < candidate.rank()) {
                    complete = Some(candidate);
                }
            }
            if let Some(complete) = complete {
                return recovery.keep_log(log, complete);
            }
        }
    }

    let furthest = candidates
        .into_iter()
        .filter(|c| c.path.is_some())
        .max_by_key(Candidate::rank);
    let Some(furthest) = furthest else {
        rejected.push("there is no usable backup".to_owned());
        return Err(recovery.failed(&rejected.join("; ")));
    };
    recovery.new_log(generation, &furthest)
}

/// Makes a copy that verified the truth of a folder, whatever it holds.
pub(crate) fn put_back<M: Machine>(
    config: &StoreConfig,
    directory: &Directory,
    named: Option<&Identity>,
    copy: &Path,
    standing: Standing,
) -> Result<PutBack, OpenError> {
    let recovery = Recovery {
        config,
        directory,
        named,
        now_ms: config.clock.wall_ms(),
        file: copy.to_owned(),
        cause: "it cannot be put back".to_owned(),
    };
    // One that is no longer whole says so with the other files that are kept.
    let path = directory.log();
    let log = match sqlite::peek(&path) {
        Ok(Peek::Schema(_)) => LogFile::open(&path).ok(),
        _ => None,
    };
    let generation = log.map(|log| log.identity.generation);
    let candidate = Candidate {
        path: Some(copy.to_owned()),
        standing,
    };
    let (log, _, _, outcome) = recovery.new_log::<M>(generation, &candidate)?;
    let BootOutcome::Restored {
        damaged_kept_as: kept_as,
        loss,
        ..
    } = outcome
    else {
        return Err(recovery.failed("nothing was put back"));
    };
    Ok(PutBack {
        identity: log.identity,
        loss,
        kept_as,
    })
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

// === impl Recovery ===

impl Recovery<'_> {
    /// The log is whole and goes on where the candidate ends: only the state is replaced.
    fn keep_log<M: Machine>(
        &self,
        log: LogFile,
        candidate: &Candidate,
    ) -> Result<Recovered<M>, OpenError> {
        let path = self.directory.state();
        let kept = match &candidate.path {
            Some(copy) => self.replace_state(copy)?,
            None => {
                let kept = self.keep(&path)?;
                StateFile::create(&path, &log.identity).map_err(|cause| self.failed(&cause))?;
                kept
            }
        };
        let mut state = StateFile::open(&path).map_err(|cause| self.failed(&cause))?;
        let members = state.standing().members.clone();
        state
            .adopt(&log.identity, members)
            .map_err(|cause| self.failed(&cause))?;
        let machine = self.load(&state)?;
        let outcome = BootOutcome::Restored {
            from: candidate.path.clone(),
            damaged_kept_as: kept,
            loss: Loss::Nothing,
        };
        Ok((log, state, machine, outcome))
    }

    /// No copy meets the log: the furthest one becomes the truth, in a new generation.
    fn new_log<M: Machine>(
        &self,
        log_generation: Option<u64>,
        furthest: &Candidate,
    ) -> Result<Recovered<M>, OpenError> {
        let standing = &furthest.standing;
        if standing.members.voter_ids().count() > 1 {
            return Err(self.failed("this member has others: it must get the state from them"));
        }
        let source = standing.identity.as_ref();
        let Some(cluster) = self
            .named
            .or(source)
            .map(|identity| identity.cluster.clone())
        else {
            return Err(self.failed("the copy does not say which store it is"));
        };
        let known = [
            self.named.map(|identity| identity.generation),
            source.map(|identity| identity.generation),
            log_generation,
        ];
        let generation = known.into_iter().flatten().max().unwrap_or(0) + 1;
        let member = self
            .named
            .map_or(self.config.member, |identity| identity.member);
        let identity = Identity {
            cluster,
            generation,
            member,
        };

        let kept_state = match &furthest.path {
            Some(copy) => self.replace_state(copy)?,
            None => None,
        };
        let mut state =
            StateFile::open(&self.directory.state()).map_err(|cause| self.failed(&cause))?;
        let members = match standing.applied {
            Some(applied) => StoredMembers::new(Some(applied), self.alone(member)?),
            None => StoredMembers::default(),
        };
        state
            .adopt(&identity, members)
            .map_err(|cause| self.failed(&cause))?;
        // It may belong to what is given up; the next snapshot is made when it is needed.
        self.keep(&self.directory.snapshot())?;
        let (log, kept_log) = self.begin_log(&identity, standing)?;
        // Last: until it is written, the next start recovers again.
        self.directory.write_identity(&identity)?;

        let machine = self.load(&state)?;
        let loss = Loss::After {
            revision: furthest.index().unwrap_or(0),
            wall_ms: standing.wall_ms,
        };
        tracing::error!(?loss, generation, "history after this point is given up");
        let outcome = BootOutcome::Restored {
            from: furthest.path.clone(),
            damaged_kept_as: kept_log.or(kept_state),
            loss,
        };
        Ok((log, state, machine, outcome))
    }

    /// Puts an empty log in place that goes on behind a state.
    fn begin_log(
        &self,
        identity: &Identity,
        standing: &Standing,
    ) -> Result<(LogFile, Option<PathBuf>), OpenError> {
        let path = self.directory.log();
        let beside = path.with_extension("new");
        for stale in with_side_files(&beside) {
            remove_if_there(&stale)?;
        }
        // A higher term than any entry kept, so that nothing of the old log can outrank it.
        let vote = standing.applied.map(|id| Vote {
            leader_id: Leader {
                term: id.leader_id.term + 1,
                node_id: identity.member,
            },
            committed: false,
        });
        let created = LogFile::create(&beside, identity, standing.applied, vote)
            .map_err(|cause| self.failed(&cause))?;
        drop(created);
        let kept = self.keep(&path)?;
        state::publish(&beside, &path)
            .map_err(|error| OpenError::io("cannot rename to", &path, error))?;
        let log = LogFile::open(&path).map_err(|cause| self.failed(&cause))?;
        Ok((log, kept))
    }

    fn alone(&self, member: u64) -> Result<Members, OpenError> {
        let peer = Peer {
            name: self.config.member_name.clone(),
            address: String::new(),
        };
        Members::new(vec![[member].into()], BTreeMap::from([(member, peer)]))
            .map_err(|error| self.failed(&error.to_string()))
    }

    fn load<M: Machine>(&self, state: &StateFile) -> Result<M, OpenError> {
        state
            .load()
            .and_then(|loaded| loaded)
            .map_err(|cause| self.failed(&cause))
    }

    /// Copies `copy` beside the state, moves the state aside, and renames the copy into place.
    fn replace_state(&self, copy: &Path) -> Result<Option<PathBuf>, OpenError> {
        let path = self.directory.state();
        if copy == path {
            return Ok(None);
        }
        let beside = path.with_extension("new");
        state::copy(copy, &beside)
            .and_then(|_| schema::upgrade_copy(&beside, Kind::State))
            .map_err(|cause| self.failed(&cause))?;
        let kept = self.keep(&path)?;
        state::publish(&beside, &path)
            .map_err(|error| OpenError::io("cannot rename to", &path, error))?;
        Ok(kept)
    }

    /// Moves a database aside, if there is anything of it.
    fn keep(&self, path: &Path) -> Result<Option<PathBuf>, OpenError> {
        if !with_side_files(path).iter().any(|file| file.exists()) {
            return Ok(None);
        }
        self.directory.move_aside(path, self.now_ms).map(Some)
    }

    fn failed(&self, cause: &str) -> OpenError {
        OpenError::unreadable(&self.file, format!("{}; {cause}", self.cause))
    }
}
