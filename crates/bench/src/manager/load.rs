//! What a Manager is loaded with: callers that commit, jobs, subscribers that read all or nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use greenroom_sdk::types::JobId;
use greenroom_sdk::types::kv::{KvCommit, KvWrite};
use greenroom_sdk::types::stream::{Stamped, StreamEvent};
use greenroom_sdk::{Client, EventSettings, StreamItem};
use greenroom_testkit::{bundle, start};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::daemon::Daemon;
use super::workers;
use crate::measure::Samples;

/// Jobs of one bundle; the most there may be.
pub(super) const BUNDLE: usize = 64;
/// Callers at once, as PERF-10 has it.
pub(super) const CALLERS: usize = 64;
/// So many jobs may be made before the slowest reader has seen them: half of what waits for one, so that none is
/// cut off and the rate is what all of them take.
const AHEAD_MAX: usize = 8_192;

/// Without news for so long readers have read all there is. Heartbeats come after ten seconds.
const QUIET: Duration = Duration::from_secs(2);

/// Subscribers that read all they are told.
pub(super) struct Readers {
    /// How many jobs each was told of.
    seen: Vec<watch::Receiver<usize>>,
    shared: Arc<Shared>,
    _reading: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    /// Milliseconds from commit to reader, of the first one.
    lags: Mutex<Samples>,
    jobs: Mutex<Vec<JobId>>,
    events: AtomicUsize,
    /// How often one of them had to begin anew.
    begun_anew: AtomicUsize,
}

// === impl Readers ===

impl Readers {
    pub(super) fn new() -> Self {
        Self {
            seen: Vec::new(),
            shared: Arc::default(),
            _reading: JoinSet::new(),
        }
    }

    /// Adds readers until there are so many.
    pub(super) async fn grow(&mut self, daemon: &Daemon, count: usize) -> Result<()> {
        while self.seen.len() < count {
            let client = daemon.client().await?;
            let (state, mut events) = client.event_stream(EventSettings::default()).await?;
            let (told, seen) = watch::channel(state.active_jobs.len());
            let is_first = self.seen.is_empty();
            self.seen.push(seen);
            let shared = Arc::clone(&self.shared);
            self._reading.spawn(async move {
                // The connection is the client's.
                let _client = client;
                while let Some(item) = events.next().await {
                    shared.events.fetch_add(1, Ordering::Relaxed);
                    match item {
                        StreamItem::Event(stamped) => {
                            if let StreamEvent::JobActive(job) | StreamEvent::JobPending(job) =
                                &stamped.event
                            {
                                if is_first {
                                    shared.note(&stamped, job.job.job_id.clone());
                                }
                                told.send_modify(|count| *count += 1);
                            }
                        }
                        StreamItem::Resnapshot(state) => {
                            shared.begun_anew.fetch_add(1, Ordering::Relaxed);
                            told.send_replace(state.active_jobs.len());
                        }
                        StreamItem::Closed(_) => return,
                    }
                }
            });
        }
        Ok(())
    }

    /// Waits until each has seen so many jobs.
    async fn until(&self, jobs: usize) -> Result<()> {
        for seen in &self.seen {
            let all = seen.clone().wait_for(|seen| *seen >= jobs).await.map(drop);
            all.context("a subscriber's stream ended")?;
        }
        Ok(())
    }

    /// Waits until nothing was told for a while.
    pub(super) async fn until_quiet(&self) {
        let mut before = None;
        while before != Some(self.events()) {
            before = Some(self.events());
            tokio::time::sleep(QUIET).await;
        }
    }

    /// Events read so far, by all together.
    pub(super) fn events(&self) -> usize {
        self.shared.events.load(Ordering::Relaxed)
    }

    pub(super) fn begun_anew(&self) -> usize {
        self.shared.begun_anew.load(Ordering::Relaxed)
    }

    /// From commit to the first of them, in milliseconds, since this was asked last.
    pub(super) fn take_lags(&self) -> Samples {
        std::mem::take(&mut *lock(&self.shared.lags))
    }

    /// Every job that was made.
    pub(super) fn jobs(&self) -> Vec<JobId> {
        lock(&self.shared.jobs).clone()
    }
}

impl Shared {
    fn note(&self, stamped: &Stamped, job_id: JobId) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0.0, |now| now.as_secs_f64() * 1e3);
        lock(&self.lags).push((now - stamped.at.0 as f64).max(0.0));
        lock(&self.jobs).push(job_id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes bundles of jobs, `from` of which are there, until there are `upto`, and waits until all readers have
/// seen them. Both count jobs, and are multiples of [`BUNDLE`].
pub(super) async fn fill(
    client: &Client,
    readers: &Readers,
    from: usize,
    upto: usize,
) -> Result<()> {
    let names: Vec<String> = (0..BUNDLE).map(|number| format!("j{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut filling = JoinSet::new();
    for made in (from..upto).step_by(BUNDLE) {
        while filling.len() >= CALLERS {
            filling.join_next().await.context("one of them")???;
        }
        readers.until(made.saturating_sub(AHEAD_MAX)).await?;
        let number = made / BUNDLE;
        let (client, bundle) = (client.clone(), bundle(&format!("b{number}"), &names));
        filling.spawn(async move { client.create_bundle(bundle).await });
    }
    while let Some(done) = filling.join_next().await {
        done??;
    }
    readers.until(upto).await
}

/// Starts jobs on the nodes in turn for so long at most; gives how many were started.
pub(super) async fn start_all(
    client: &Client,
    jobs: Vec<JobId>,
    nodes: usize,
    lasts: Duration,
) -> Result<usize> {
    let until = Instant::now() + lasts;
    let mut starting = JoinSet::new();
    let mut started = 0;
    for (number, job_id) in jobs.into_iter().enumerate() {
        if Instant::now() >= until {
            break;
        }
        while starting.len() >= CALLERS {
            starting.join_next().await.context("one of them")???;
        }
        let client = client.clone();
        let order = start(job_id.as_str(), &workers::node(number % nodes));
        starting.spawn(async move { client.start_job(order).await });
        started += 1;
    }
    while let Some(done) = starting.join_next().await {
        done??;
    }
    Ok(started)
}

/// Callers that commit one small change after the other.
pub(super) struct Committers {
    stop: Arc<AtomicBool>,
    callers: JoinSet<Result<Vec<Duration>, greenroom_sdk::Error>>,
}

// === impl Committers ===

impl Committers {
    /// Each has a connection of its own.
    pub(super) async fn begin(daemon: &Daemon, count: usize, namespace: &str) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(daemon.client().await?);
        }
        let mut callers = JoinSet::new();
        for (caller, client) in clients.into_iter().enumerate() {
            let (stop, namespace) = (Arc::clone(&stop), namespace.to_owned());
            callers.spawn(async move {
                let mut took = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let value = took.len().to_string();
                    let commit = KvCommit {
                        namespace: namespace.clone(),
                        writes: vec![KvWrite::set(format!("k{caller}"), value.as_bytes())],
                        expected_schema_version: None,
                        set_schema_version: None,
                    };
                    let begun = Instant::now();
                    client.kv_commit(commit).await?;
                    took.push(begun.elapsed());
                }
                Ok(took)
            });
        }
        Ok(Self { stop, callers })
    }

    /// How long each commit took, in nanoseconds.
    pub(super) async fn end(mut self) -> Result<Samples> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Samples::default();
        while let Some(done) = self.callers.join_next().await {
            for took in done?? {
                all.push(took.as_nanos() as f64);
            }
        }
        Ok(all)
    }
}
