//! The applying side: committed entries go through the machine into `state.db`.
//!
//! A batch is checked as a whole before any of it is applied, then applied in
//! memory, written in one transaction, and only then answered and published. An
//! entry that is not exactly the next one is refused.
//!
//! Readers may see a command between its apply and its row commit. That is not ahead
//! of the disk: an entry is only ever applied after the log holds it durably.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use futures::{Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use tokio::sync::{oneshot, watch};

use crate::checks::{Note, Notes};
use crate::directory::{Directory, DirectoryLock};
use crate::fatal::FatalCell;
use crate::log::{Durable, Order};
use crate::machine::{Machine, Stamp};
use crate::output::OutputSender;
use crate::raft::{LogId, Proposal, Snapshot, SnapshotMeta, StoredMembers, Types};
use crate::room::Reserve;
use crate::state::{self, SnapshotFile, Standing, StateFile};

/// How many entries one transaction takes. Also how long a reader waits at most.
const BATCH: usize = 512;

/// The machine and everything an apply touches.
pub(crate) struct Engine<M: Machine> {
    live: RwLock<Live<M>>,
    file: Mutex<OpenState>,
    outputs: OutputSender<M::Output>,
    waiting: Waiting<M::Outcome>,
    fatal: FatalCell,
    directory: Directory,
    order: Order,
    noted: watch::Sender<Option<Note>>,
    reserve: Arc<Reserve>,
}

struct Live<M> {
    machine: M,
    revision: u64,
}

struct OpenState {
    /// `None` after the store was shut down.
    file: Option<StateFile>,
    standing: Standing,
    notes: Notes,
    _lock: Option<Arc<DirectoryLock>>,
}

/// Proposers that wait for the outcome of their command.
struct Waiting<O> {
    by_ticket: Mutex<HashMap<u64, oneshot::Sender<O>>>,
}

/// The consensus library's view of the state.
pub(crate) struct Applier<M: Machine> {
    pub(crate) engine: Arc<Engine<M>>,
}

pub(crate) struct SnapshotMaker {
    state: PathBuf,
    target: PathBuf,
}

type Item = (crate::raft::Entry, Option<ApplyResponder<Types>>);

// === impl Engine ===

impl<M: Machine> Engine<M> {
    pub(crate) fn new(
        file: StateFile,
        machine: M,
        outputs: OutputSender<M::Output>,
        fatal: FatalCell,
        directory: Directory,
        order: Order,
        lock: Option<Arc<DirectoryLock>>,
    ) -> Self {
        let standing = file.standing().clone();
        let revision = standing.applied.map_or(0, |id| id.index);
        Self {
            live: RwLock::new(Live { machine, revision }),
            file: Mutex::new(OpenState {
                file: Some(file),
                standing,
                notes: Notes::default(),
                _lock: lock,
            }),
            outputs,
            waiting: Waiting {
                by_ticket: Mutex::new(HashMap::new()),
            },
            fatal,
            directory,
            order,
            noted: watch::Sender::new(None),
            reserve: Arc::new(Reserve::none()),
        }
    }

    /// Says what writes on a full disk may take.
    pub(crate) fn with_reserve(mut self, reserve: Arc<Reserve>) -> Self {
        self.reserve = reserve;
        self
    }

    pub(crate) fn outputs(&self) -> &OutputSender<M::Output> {
        &self.outputs
    }

    pub(crate) fn read<R>(&self, look: impl FnOnce(&M, u64) -> R) -> R {
        // A poisoned lock means that a reader's closure panicked while it read; an apply's
        // panic is caught inside. The state itself is whole.
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        look(&live.machine, live.revision)
    }

    /// Tells of every note that is taken; the newest replaces the one before.
    pub(crate) fn noted(&self) -> watch::Receiver<Option<Note>> {
        self.noted.subscribe()
    }

    pub(crate) fn standing(&self) -> Standing {
        self.lock_file().standing.clone()
    }

    /// Registers a proposer; the entry goes away with the guard.
    pub(crate) fn expect(&self, ticket: u64) -> (oneshot::Receiver<M::Outcome>, Ticket<'_, M>) {
        let (answer, outcome) = oneshot::channel();
        self.waiting.lock().insert(ticket, answer);
        (
            outcome,
            Ticket {
                engine: self,
                ticket,
            },
        )
    }

    /// Flushes and closes the state.
    pub(crate) fn close(&self) -> Result<(), String> {
        self.outputs.close();
        let mut open = self.lock_file();
        open._lock = None;
        let reserve = &self.reserve;
        open.file.take().map_or(Ok(()), |file| file.close(reserve))
    }

    fn lock_file(&self) -> MutexGuard<'_, OpenState> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, batch: Vec<Item>) -> io::Result<()> {
        let mut open = self.lock_file();
        let OpenState {
            file: Some(file),
            standing,
            notes,
            ..
        } = &mut *open
        else {
            return Err(io::Error::other("the state is closed"));
        };
        let prepared = self.prepare(standing.applied, batch)?;
        let mut next = standing.clone();
        let mut rows = Vec::new();
        let mut outputs = Vec::new();
        let mut answers = Vec::new();
        {
            let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
            for Prepared {
                at,
                work,
                responder,
            } in prepared
            {
                let mut answer = None;
                match work {
                    Work::Nothing => {}
                    Work::Check(primary) => notes.compare(primary).map_err(|cause| {
                        io::Error::other(self.fatal.raise("this member has diverged", cause))
                    })?,
                    Work::Members(members) => next.members = StoredMembers::new(Some(at), members),
                    Work::Command {
                        ticket,
                        wall_ms,
                        command,
                    } => {
                        let stamp = Stamp {
                            index: at.index,
                            wall_ms,
                        };
                        let machine = &mut live.machine;
                        let applied =
                            catch_unwind(AssertUnwindSafe(|| machine.apply(stamp, command)))
                                .map_err(|panic| self.machine_panicked(at.index, &*panic))?;
                        next.wall_ms = Some(wall_ms);
                        rows.extend(applied.rows);
                        outputs.push((at.index, applied.output));
                        answer = Some((ticket, applied.outcome));
                    }
                }
                next.applied = Some(at);
                live.revision = at.index;
                if Notes::due(at.index)
                    && let Some(digest) = live.machine.digest()
                {
                    let note = Note {
                        index: at.index,
                        digest,
                    };
                    notes.take(note);
                    self.noted.send_replace(Some(note));
                }
                answers.push((answer, responder));
            }
            next.digest = live.machine.digest();
        }
        let commit = || file.commit(&rows, next.clone());
        self.reserve.with_room(commit).map_err(|cause| {
            let attempt = format!("cannot write {}", file.path().display());
            io::Error::other(self.fatal.raise(attempt, cause))
        })?;
        *standing = next;
        self.outputs.push(outputs);
        for (answer, responder) in answers {
            if let Some((ticket, outcome)) = answer {
                self.waiting.answer(ticket, outcome);
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    /// Checks order and reads every command, before anything is applied.
    fn prepare(
        &self,
        applied: Option<LogId>,
        batch: Vec<Item>,
    ) -> io::Result<Vec<Prepared<M::Command>>> {
        let mut last = applied;
        let mut prepared = Vec::with_capacity(batch.len());
        for (entry, responder) in batch {
            let at = entry.log_id();
            let expected = last.map_or(0, |id| id.index + 1);
            if at.index != expected && self.order == Order::Strict {
                let cause = format!("entry {} came where {expected} is next", at.index);
                return Err(io::Error::other(self.fatal.raise("cannot apply", cause)));
            }
            last = Some(at);
            let work = match entry.payload {
                EntryPayload::Blank => Work::Nothing,
                EntryPayload::Membership(members) => Work::Members(members),
                EntryPayload::Normal(Proposal::Check { index, digest }) => {
                    Work::Check(Note { index, digest })
                }
                EntryPayload::Normal(Proposal::Command {
                    ticket,
                    wall_ms,
                    command,
                }) => {
                    let command = serde_json::from_str(&command).map_err(|error| {
                        let attempt = format!("cannot read the command of entry {}", at.index);
                        io::Error::other(self.fatal.raise(attempt, error))
                    })?;
                    Work::Command {
                        ticket,
                        wall_ms,
                        command,
                    }
                }
            };
            prepared.push(Prepared {
                at,
                work,
                responder,
            });
        }
        Ok(prepared)
    }

    fn machine_panicked(&self, index: u64, panic: &(dyn std::any::Any + Send)) -> io::Error {
        let said = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        io::Error::other(
            self.fatal
                .raise(format!("applying entry {index} panicked"), said),
        )
    }

    fn install(&self, snapshot: &SnapshotFile) -> Result<(), String> {
        let mut open = self.lock_file();
        let file = open.file.as_mut().ok_or("the state is closed")?;
        file.replace(&snapshot.path)?;
        let machine: M = file.load()??;
        let standing = file.standing().clone();
        let target = self.directory.snapshot();
        if snapshot.path != target {
            let beside = target.with_extension("new");
            state::copy(file.path(), &beside)?;
            state::publish(&beside, &target).map_err(|error| error.to_string())?;
        }
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        live.revision = standing.applied.map_or(0, |id| id.index);
        live.machine = machine;
        drop(live);
        open.standing = standing;
        open.notes.clear();
        Ok(())
    }
}

impl<M: Machine> Durable for Engine<M> {
    fn make_durable(&self, index: u64) -> io::Result<()> {
        let mut open = self.lock_file();
        let applied = open.standing.applied.map(|id| id.index);
        if applied < Some(index) && self.order == Order::Strict {
            return Err(io::Error::other(format!(
                "the log may not be purged to {index}: the state stands at {applied:?}"
            )));
        }
        let Some(file) = open.file.as_mut() else {
            return Err(io::Error::other("the state is closed"));
        };
        let flush = || file.make_durable();
        self.reserve.with_room(flush).map_err(|cause| {
            let attempt = format!("cannot flush {}", file.path().display());
            io::Error::other(self.fatal.raise(attempt, cause))
        })
    }
}

struct Prepared<C> {
    at: LogId,
    work: Work<C>,
    responder: Option<ApplyResponder<Types>>,
}

enum Work<C> {
    Nothing,
    Check(Note),
    Members(crate::raft::Members),
    Command {
        ticket: u64,
        wall_ms: i64,
        command: C,
    },
}

/// A proposer's place in the waiting list; dropping it gives the place up.
pub(crate) struct Ticket<'a, M: Machine> {
    engine: &'a Engine<M>,
    ticket: u64,
}

impl<M: Machine> Drop for Ticket<'_, M> {
    fn drop(&mut self) {
        self.engine.waiting.lock().remove(&self.ticket);
    }
}

impl<O> Waiting<O> {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<O>>> {
        self.by_ticket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, ticket: u64, outcome: O) {
        if let Some(waiting) = self.lock().remove(&ticket) {
            // Whoever stopped waiting does not undo the command (API-06).
            waiting.send(outcome).ok();
        }
    }
}

// === the library's traits ===

impl<M: Machine> RaftStateMachine<Types> for Applier<M> {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotMaker;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembers), io::Error> {
        let standing = self.engine.standing();
        Ok((standing.applied, standing.members))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut more = true;
        while more {
            let mut batch = Vec::new();
            while batch.len() < BATCH {
                match entries.next().await {
                    Some(item) => batch.push(item?),
                    None => {
                        more = false;
                        break;
                    }
                }
            }
            if !batch.is_empty() {
                let engine = Arc::clone(&self.engine);
                tokio::task::spawn_blocking(move || engine.apply(batch))
                    .await
                    .map_err(io::Error::other)??;
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotMaker {
        SnapshotMaker {
            state: self.engine.directory.state(),
            target: self.engine.directory.snapshot(),
        }
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMeta,
        snapshot: SnapshotFile,
    ) -> Result<(), io::Error> {
        let engine = Arc::clone(&self.engine);
        tokio::task::spawn_blocking(move || {
            engine.install(&snapshot).map_err(|cause| {
                let attempt = format!("cannot install {}", snapshot.path.display());
                io::Error::other(engine.fatal.raise(attempt, cause))
            })
        })
        .await
        .map_err(io::Error::other)?
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let path = self.engine.directory.snapshot();
        if !fs::exists(&path)? {
            return Ok(None);
        }
        tokio::task::spawn_blocking(move || {
            let standing = state::standing_of(&path).map_err(|cause| {
                io::Error::other(format!("snapshot {}: {cause}", path.display()))
            })?;
            Ok(Some(snapshot_of(standing, path)))
        })
        .await
        .map_err(io::Error::other)?
    }
}

impl RaftSnapshotBuilder<Types> for SnapshotMaker {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let (state, target) = (self.state.clone(), self.target.clone());
        tokio::task::spawn_blocking(move || {
            let beside = target.with_extension("new");
            let standing = state::copy(&state, &beside).map_err(io::Error::other)?;
            state::publish(&beside, &target)?;
            Ok(snapshot_of(standing, target))
        })
        .await
        .map_err(io::Error::other)?
    }
}

fn snapshot_of(standing: Standing, path: PathBuf) -> Snapshot {
    Snapshot {
        meta: SnapshotMeta {
            last_log_id: standing.applied,
            last_membership: standing.members,
        },
        snapshot: SnapshotFile { path },
    }
}
