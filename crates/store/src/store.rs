//! The store itself: open, propose, read, back up, shut down.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openraft::errors::{ClientWriteError, RaftError};
use openraft::{Config, Raft, ServerState, SnapshotPolicy};
use tokio::sync::{Mutex, Semaphore};

use crate::apply::{Applier, Engine};
use crate::backup::{self, BackupInfo};
use crate::boot::{self, BootReport, Booted};
use crate::checks::Note;
use crate::config::StoreConfig;
use crate::directory::{Directory, Identity};
use crate::error::{BackupError, OpenError, ProposeError};
use crate::fatal::{FatalCell, FatalError};
use crate::log::{Durable, LogStore, Order};
use crate::machine::Machine;
use crate::network::NoPeers;
use crate::output::{self, OutputReceiver};
use crate::raft::{Peer, Proposal, Types};
use crate::room::{Reserve, Room, RoomGauge};
use crate::{schema, sqlite, state};

/// Milliseconds between heartbeats of a primary (CLUST-06).
const HEARTBEAT_MS: u64 = 300;

/// Bounds of the random time after which a member stands for election (CLUST-06).
const ELECTION_MS: (u64, u64) = (1_500, 3_000);

/// The most proposals that can be on their way at once; shutting down counts them in 32 bits.
const INFLIGHT_MAX: usize = 1 << 20;

/// How often the disk is looked at.
const ROOM_EVERY: Duration = Duration::from_secs(1);

/// How many entries stay in the log behind a snapshot, for members that are a little late.
const KEEP_BEHIND_SNAPSHOT: u64 = 1_000;

/// A running store. Cloning gives another handle to the same store.
///
/// Call [`Store::shutdown`] before the process ends: it flushes the state, which makes
/// the next start shorter. Without it nothing acknowledged is lost.
pub struct Store<M: Machine> {
    inner: Arc<Inner<M>>,
}

struct Inner<M: Machine> {
    raft: Raft<Types, Applier<M>>,
    engine: Arc<Engine<M>>,
    log: LogStore,
    config: StoreConfig,
    directory: Directory,
    identity: Identity,
    fatal: FatalCell,
    gauge: RoomGauge,
    reserve: Arc<Reserve>,
    next_ticket: AtomicU64,
    inflight: Semaphore,
    stopping: AtomicBool,
    backing_up: Mutex<()>,
}

/// How a store stands (STORE-07).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreInfo {
    /// Which store this is; with term and revision it names the newest commit (CLUST-07).
    pub identity: Identity,
    /// The term of the newest applied entry, 0 for none.
    pub term: u64,
    /// The revision of the state.
    pub revision: u64,
    /// The newest entry in the log, 0 for none.
    pub last_index: u64,
    /// The last entry that the log let go, because a snapshot and the state hold it.
    pub purged_index: Option<u64>,
    /// How many flushed transactions the log wrote since the start; one carries many commands.
    pub log_flushes: u64,
    /// The databases.
    pub files: Vec<FileInfo>,
    /// The newest regular backup.
    pub last_backup: Option<BackupInfo>,
}

/// One database file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// File name within the data folder.
    pub name: String,
    /// Schema version, 0 where it cannot be told.
    pub schema: u32,
    /// Bytes on disk, with its write-ahead file.
    pub bytes: u64,
}

// === impl Store ===

impl<M: Machine> Store<M> {
    /// Opens or creates the store in a folder, replays the log's tail, and, when this
    /// member is the only voter, waits until it can commit.
    pub async fn open(
        config: StoreConfig,
    ) -> Result<(Self, OutputReceiver<M>, BootReport), OpenError> {
        let mut config = config;
        config.inflight_limit = config.inflight_limit.clamp(1, INFLIGHT_MAX);
        let booting = config.clone();
        let booted = tokio::task::spawn_blocking(move || boot::boot::<M>(&booting))
            .await
            .map_err(|error| {
                OpenError::io("cannot open", &config.dir, io::Error::other(error))
            })??;
        let Booted {
            directory,
            lock,
            identity,
            mut log,
            state,
            machine,
            outcome,
            reserve,
        } = booted;
        let applied_before = state.standing().applied;
        let empty = log.last().is_none() && log.vote().is_none() && applied_before.is_none();

        let fatal = FatalCell::new();
        let lock = Arc::new(lock);
        let (sender, receiver) = output::channel::<M>(config.output_limit);
        let engine = Engine::new(
            state,
            machine,
            sender,
            fatal.clone(),
            directory.clone(),
            Order::Strict,
            Some(Arc::clone(&lock)),
        );
        let engine = Arc::new(engine.with_reserve(Arc::clone(&reserve)));
        let durable: Arc<dyn Durable> = Arc::clone(&engine) as _;
        let log_path = directory.log();
        log.reserve = Arc::clone(&reserve);
        let log = log
            .start(Order::Strict, durable, fatal.clone(), Some(lock))
            .map_err(|cause| OpenError::unreadable(log_path, cause))?;

        let raft = Raft::new(
            identity.member,
            Arc::new(raft_config(&config, &identity)),
            NoPeers,
            log.clone(),
            Applier {
                engine: Arc::clone(&engine),
            },
        )
        .await
        .map_err(|error| OpenError::Stopped(fatal.raise("cannot replay the log", error)))?;

        let inner = Arc::new(Inner {
            raft,
            engine,
            log,
            directory,
            identity,
            fatal,
            gauge: RoomGauge::new(config.min_free_bytes),
            reserve,
            next_ticket: AtomicU64::new(1),
            inflight: Semaphore::new(config.inflight_limit),
            stopping: AtomicBool::new(false),
            backing_up: Mutex::new(()),
            config,
        });
        inner.watch_for_an_end();
        Inner::propose_checks(&inner);
        Inner::watch_room(&inner);
        inner.take_office(empty).await.map_err(OpenError::Stopped)?;
        let revision = inner.engine.read(|_, revision| revision);
        let report = BootReport {
            outcome,
            identity: inner.identity.clone(),
            revision,
            replayed: inner.replayed(applied_before.map(|id| id.index)),
        };
        tracing::info!(
            outcome = ?report.outcome, revision, replayed = report.replayed,
            generation = report.identity.generation, "store opened"
        );
        Ok((Self { inner }, receiver, report))
    }

    /// Proposes a command and waits until it is flushed in the log and applied (API-05).
    ///
    /// Answers the revision, which is the command's place in the log, and the outcome.
    /// Dropping the future before the command was handed over has no effect; dropping it
    /// later does not undo the command (API-06).
    pub async fn propose(&self, command: M::Command) -> Result<(u64, M::Outcome), ProposeError> {
        let inner = &*self.inner;
        let text = serde_json::to_string(&command)
            .map_err(|error| ProposeError::Encode(error.to_string()))?;
        let _place = inner
            .inflight
            .acquire()
            .await
            .map_err(|_| ProposeError::Stopped)?;
        inner.engine.outputs().room().await;
        if inner.stopping.load(Ordering::Relaxed) {
            return Err(ProposeError::Stopped);
        }
        let ticket = inner.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (mut outcome, _ticket) = inner.engine.expect(ticket);
        let wall_ms = inner.config.clock.wall_ms();
        let proposal = Proposal::Command {
            ticket,
            wall_ms,
            command: text.into(),
        };
        let written = inner
            .raft
            .client_write(proposal)
            .await
            .map_err(|error| inner.refusal(error))?;
        let outcome = outcome.try_recv().map_err(|error| {
            ProposeError::Fatal(
                inner
                    .fatal
                    .raise("the outcome of a command got lost", error),
            )
        })?;
        Ok((written.log_id.index, outcome))
    }

    /// Looks at a consistent state.
    ///
    /// `look` runs under a read lock that holds up applies: it must be short and must not
    /// wait for anything.
    pub fn read<R>(&self, look: impl FnOnce(&M) -> R) -> R {
        self.inner.engine.read(|machine, _| look(machine))
    }

    /// Like [`Store::read`], with the revision that the state stands at. Outputs of later
    /// revisions, and only those, belong after what was read.
    pub fn read_at<R>(&self, look: impl FnOnce(&M, u64) -> R) -> R {
        self.inner.engine.read(look)
    }

    /// Whether the disk has room (STORE-09); one system call. A file system that cannot
    /// be asked counts as low.
    pub fn room(&self) -> Room {
        self.inner.room()
    }

    /// On a full disk gives a piece of the reserve up for workers on the same disk, which carry out
    /// what is recorded; half of it stays for the store (STORE-09). True when there was a piece.
    pub fn lend_room(&self) -> bool {
        self.inner.reserve.lend(&self.inner.directory.root)
    }

    /// Why the store cannot go on, where that is so.
    pub fn failure(&self) -> Option<FatalError> {
        self.inner.fatal.get()
    }

    /// Resolves when the store cannot go on; the process then ends with exit code 9
    /// (STORE-12). Never resolves otherwise.
    pub fn fatal(&self) -> impl Future<Output = FatalError> + Send + 'static {
        let fatal = self.inner.fatal.clone();
        async move { fatal.raised().await }
    }

    /// Which store this is.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// Writes a verified copy of the state to `target`, replacing what is there.
    pub async fn backup(&self, target: impl Into<PathBuf>) -> Result<BackupInfo, BackupError> {
        let target = target.into();
        self.inner
            .back_up(move |directory| backup::make(&directory.state(), &target))
            .await
    }

    /// Makes a regular backup and removes the oldest beyond the configured number (STORE-05).
    pub async fn backup_now(&self) -> Result<BackupInfo, BackupError> {
        let wall_ms = self.inner.config.clock.wall_ms();
        let keep = self.inner.config.backup_keep;
        self.inner
            .back_up(move |directory| backup::make_regular(directory, wall_ms, keep))
            .await
    }

    /// How the store stands. Reads the folder; not for a hot path.
    pub fn info(&self) -> io::Result<StoreInfo> {
        let inner = &*self.inner;
        let standing = inner.engine.standing();
        let directory = &inner.directory;
        let files = [directory.log(), directory.state()]
            .iter()
            .map(|path| file_info(path))
            .collect::<io::Result<_>>()?;
        Ok(StoreInfo {
            identity: inner.identity.clone(),
            term: standing.applied.map_or(0, |id| id.leader_id.term),
            revision: standing.applied.map_or(0, |id| id.index),
            last_index: inner.log.last().map_or(0, |id| id.index),
            purged_index: inner.log.purged().map(|id| id.index),
            log_flushes: inner.log.groups(),
            files,
            last_backup: newest_backup(directory)?,
        })
    }

    /// Stops taking proposals, lets those on their way end, flushes and closes the files,
    /// and gives up the folder's lock. Outputs not yet received can still be taken.
    pub async fn shutdown(&self) -> Result<(), FatalError> {
        let inner = &*self.inner;
        inner.stopping.store(true, Ordering::Relaxed);
        // Whoever is held back by a full output queue gives up, having changed nothing.
        inner.engine.outputs().release();
        // The queue for places is fair: this comes after everything on its way.
        let all = u32::try_from(inner.config.inflight_limit).unwrap_or(u32::MAX);
        drop(inner.inflight.acquire_many(all).await);
        inner.inflight.close();
        if let Err(error) = inner.raft.shutdown().await {
            tracing::warn!(%error, "the consensus task did not end cleanly");
        }
        inner.log.stop().await;
        let engine = Arc::clone(&inner.engine);
        let closed = tokio::task::spawn_blocking(move || engine.close())
            .await
            .unwrap_or_else(|error| Err(error.to_string()));
        closed.map_err(|cause| inner.fatal.raise("cannot close the state", cause))
    }
}

impl<M: Machine> Clone for Store<M> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

// === impl Inner ===

impl<M: Machine> Inner<M> {
    /// Forms the cluster of one in an empty store; stands for election when alone.
    async fn take_office(&self, empty: bool) -> Result<(), FatalError> {
        let stopped = |error: &dyn ToString| self.fatal.raise("cannot start", error.to_string());
        if empty {
            let peer = Peer {
                name: self.config.member_name.clone(),
                address: String::new(),
            };
            self.raft
                .initialize(BTreeMap::from([(self.identity.member, peer)]))
                .await
                .map_err(|error| stopped(&error))?;
        }
        let member = self.identity.member;
        let known = self
            .raft
            .wait(None)
            .metrics(
                |metrics| {
                    metrics.running_state.is_err()
                        || metrics.membership_config.voter_ids().next().is_some()
                },
                "the membership is known",
            )
            .await
            .map_err(|error| stopped(&error))?;
        if !known.membership_config.voter_ids().eq([member]) {
            return known.running_state.map_err(|error| stopped(&error));
        }
        // Nobody else could win: no need to wait for the election timeout.
        self.raft
            .trigger()
            .elect(false)
            .await
            .map_err(|error| stopped(&error))?;
        let ready = self
            .raft
            .wait(None)
            .metrics(
                |metrics| {
                    // A primary first commits an entry of its own term; with it applied, so is
                    // everything before. Term 0 is the forming, in which nobody can commit.
                    let applied = metrics.last_applied;
                    let settled = metrics.current_term > 0
                        && metrics.state == ServerState::Leader
                        && applied.is_some_and(|id| id.leader_id.term == metrics.current_term);
                    settled || metrics.running_state.is_err()
                },
                "the log's tail is applied",
            )
            .await
            .map_err(|error| stopped(&error))?;
        ready.running_state.map_err(|error| stopped(&error))
    }

    /// Raises the fatal flag when the consensus ends by itself, whatever the cause.
    fn watch_for_an_end(&self) {
        let raft = self.raft.clone();
        let fatal = self.fatal.clone();
        let metrics = raft.wait(None);
        drop(raft);
        tokio::spawn(async move {
            let ended = metrics
                .metrics(|metrics| metrics.running_state.is_err(), "end")
                .await;
            if let Ok(metrics) = ended
                && let Err(error) = metrics.running_state
                && !matches!(error, openraft::errors::Fatal::Stopped)
            {
                fatal.raise("the consensus ended", error);
            }
        });
    }

    /// As primary, puts the digests that this member notes into the log.
    fn propose_checks(inner: &Arc<Self>) {
        let mut noted = inner.engine.noted();
        // Weak, so that this task does not keep the store running.
        let inner = Arc::downgrade(inner);
        tokio::spawn(async move {
            while noted.changed().await.is_ok() {
                let Some(Note { index, digest }) = *noted.borrow_and_update() else {
                    continue;
                };
                let Some(inner) = inner.upgrade() else { return };
                if inner.raft.is_leader() {
                    let check = Proposal::Check { index, digest };
                    // A check that does not get through is not missed: the next one is not far.
                    inner.raft.client_write_ff(check, None).await.ok();
                }
            }
        });
    }

    fn room(&self) -> Room {
        self.gauge
            .room(&self.directory.root)
            .unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot ask the file system for free space");
                Room::Low
            })
    }

    /// Looks after the disk: tells of it, and makes the reserve again once there is room (STORE-09).
    fn watch_room(inner: &Arc<Self>) {
        // Weak, so that this task does not keep the store running.
        let inner = Arc::downgrade(inner);
        tokio::spawn(async move {
            let mut look = tokio::time::interval(ROOM_EVERY);
            look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                look.tick().await;
                let Some(inner) = inner.upgrade() else { return };
                if inner.stopping.load(Ordering::Relaxed) || inner.fatal.get().is_some() {
                    return;
                }
                if inner.room() == Room::Plenty {
                    let (reserve, root) =
                        (Arc::clone(&inner.reserve), inner.directory.root.clone());
                    let min_free_bytes = inner.config.min_free_bytes;
                    drop(inner);
                    let top_up = move || reserve.top_up(&root, min_free_bytes);
                    tokio::task::spawn_blocking(top_up).await.ok();
                }
            }
        });
    }

    fn replayed(&self, before: Option<u64>) -> u64 {
        let now = self
            .engine
            .standing()
            .applied
            .map(|id| id.index + 1)
            .unwrap_or(0);
        now.saturating_sub(before.map_or(0, |index| index + 1))
    }

    fn refusal(&self, error: RaftError<Types, ClientWriteError<Types>>) -> ProposeError {
        if let Some(forward) = error.forward_to_leader() {
            return ProposeError::NotPrimary {
                primary: forward.leader_id,
            };
        }
        if let Some(fatal) = self.fatal.get() {
            return ProposeError::Fatal(fatal);
        }
        if self.stopping.load(Ordering::Relaxed) {
            return ProposeError::Stopped;
        }
        ProposeError::Fatal(self.fatal.raise("cannot propose", error))
    }

    async fn back_up(
        &self,
        work: impl FnOnce(&Directory) -> Result<BackupInfo, BackupError> + Send + 'static,
    ) -> Result<BackupInfo, BackupError> {
        let _one_at_a_time = self.backing_up.lock().await;
        if self.stopping.load(Ordering::Relaxed) {
            return Err(BackupError::Stopped);
        }
        let directory = self.directory.clone();
        let made = tokio::task::spawn_blocking(move || work(&directory))
            .await
            .map_err(|_| BackupError::Stopped)??;
        tracing::info!(path = %made.path.display(), revision = made.revision, "backup made");
        Ok(made)
    }
}

fn raft_config(config: &StoreConfig, identity: &Identity) -> Config {
    Config {
        cluster_name: identity.cluster.clone(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS.0,
        election_timeout_max: ELECTION_MS.1,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_every.max(1)),
        max_in_snapshot_log_to_keep: KEEP_BEHIND_SNAPSHOT.min(config.snapshot_every),
        // A start is a new term, so that two processes never commit in the same one.
        enable_leader_restore: Some(false),
        ..Config::default()
    }
}

pub(crate) fn file_info(path: &Path) -> io::Result<FileInfo> {
    let [main, wal, _] = crate::directory::with_side_files(path);
    let wal = std::fs::metadata(wal).map_or(0, |file| file.len());
    let schema = sqlite::open_reader(path).and_then(|reader| schema::version(&reader));
    Ok(FileInfo {
        name: path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        schema: schema.unwrap_or(0),
        bytes: std::fs::metadata(main)?.len() + wal,
    })
}

fn newest_backup(directory: &Directory) -> io::Result<Option<BackupInfo>> {
    let Some(path) = backup::list(directory)?.into_iter().next() else {
        return Ok(None);
    };
    let standing = state::standing_of(&path).map_err(io::Error::other)?;
    let bytes = std::fs::metadata(&path)?.len();
    Ok(Some(backup::info(path, &standing, bytes)))
}
