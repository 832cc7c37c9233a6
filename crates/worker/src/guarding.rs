//! The worker's end of the lease guard: finds or starts one, tells it what is to be held, and notices
//! when it is gone (WORK-42). What an instance's supervisor is to know goes the same way, so that an
//! instance counts as held once both know until when.
//!
//! What is wanted stands in a table; the task here brings it to the guard, and begins anew with a new
//! guard when the old one ends or does not answer. It decides nothing about instances: what it hears
//! goes to the core.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use greenroom_types::StartId;
use rustix::net::sockopt::socket_peercred;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::agent::GuardNews;
use crate::helper;
use crate::lease::Until;
use crate::lease_guard::frame::{REPLY, Reply, Request, Taken};
use crate::lease_guard::{DIR, READY, SOCKET};
use crate::node::Input;
use crate::procs::Process;
use crate::runtime::SharedRuntime;
use crate::supervise::with_short_path;

/// The guard answers a request within this, or is taken for gone.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Time between two questions whether it is there.
const PING_EVERY: Duration = Duration::from_millis(500);
/// A new one is there within this.
const START_MAX: Duration = Duration::from_secs(10);
/// Pauses between two attempts to have one; the shortest again once one has lived for a minute.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(5);
const LIVED: Duration = Duration::from_secs(60);

/// What is wanted of the guard, for those who want it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guarding {
    wanted: Arc<Mutex<Wanted>>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Wanted {
    leases: BTreeMap<StartId, Want>,
    /// Leases that the guard has not heard the newest of.
    changed: BTreeSet<StartId>,
}

#[derive(Clone, Debug, Default)]
struct Want {
    until: Option<Until>,
    containers: BTreeSet<String>,
}

/// The task that talks to the guard.
pub(crate) struct Keeper {
    pub(crate) state_dir: PathBuf,
    /// Program and first arguments of a guard; `--dir DIR` is added.
    pub(crate) program: Vec<OsString>,
    /// Why there can be no guard for what this worker runs.
    pub(crate) refuses: Option<String>,
    pub(crate) guarding: Guarding,
    /// Whose supervisors are told as well.
    pub(crate) runtime: SharedRuntime,
    pub(crate) inputs: mpsc::Sender<Input>,
    /// Told once it is known whether there is a guard.
    pub(crate) settled: watch::Sender<bool>,
    /// The worker ends.
    pub(crate) closing: CancellationToken,
}

/// A guard that answers.
struct Link {
    stream: UnixStream,
    process: Option<Process>,
    last_number: u64,
    killed: u64,
    stays: bool,
}

// === impl Guarding ===

impl Guarding {
    pub(crate) fn hold(&self, start_id: StartId, until: Until) {
        self.change(start_id, |want| want.until = Some(until));
    }

    pub(crate) fn contain(&self, start_id: StartId, containers: Vec<String>) {
        self.change(start_id, |want| want.containers.extend(containers));
    }

    pub(crate) fn release(&self, start_id: &StartId) {
        let mut wanted = self.wanted();
        if wanted.leases.remove(start_id).is_some() {
            wanted.changed.insert(start_id.clone());
            self.changed.notify_one();
        }
    }

    fn change(&self, start_id: StartId, change: impl FnOnce(&mut Want)) {
        let mut wanted = self.wanted();
        change(wanted.leases.entry(start_id.clone()).or_default());
        wanted.changed.insert(start_id);
        self.changed.notify_one();
    }

    fn want_all(&self) {
        let mut wanted = self.wanted();
        wanted.changed = wanted.leases.keys().cloned().collect();
    }

    /// A lease that the guard has not heard the newest of, and what that is.
    fn next(&self) -> Option<(StartId, Option<Want>)> {
        let mut wanted = self.wanted();
        let start_id = wanted.changed.pop_first()?;
        let want = wanted.leases.get(&start_id).cloned();
        Some((start_id, want))
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Keeper ===

impl Keeper {
    /// Has a guard as long as the worker lives. A guard that has nothing to do ends with it.
    pub(crate) async fn run(self) {
        if let Some(why) = &self.refuses {
            self.tell(GuardNews::Down(why.clone())).await;
            self.settled.send_replace(true);
            return;
        }
        let mut again = AGAIN_MIN;
        loop {
            let began = Instant::now();
            let why = match self.find_or_start().await {
                Ok(mut link) => {
                    let why = tokio::select! {
                        why = self.keep(&mut link) => why,
                        () = self.closing.cancelled() => return self.part(link).await,
                    };
                    // One that does not answer must not stand in the way of the next.
                    if let Some(process) = link.process {
                        process.wait_gone(true, ANSWER_MAX).await;
                    }
                    why
                }
                Err(error) => error,
            };
            tracing::error!(error = %why, "there is no lease guard");
            let down = GuardNews::Down(why.to_string());
            if !self.tell(down).await {
                return;
            }
            self.settled.send_replace(true);
            if began.elapsed() >= LIVED {
                again = AGAIN_MIN;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(again) => {}
                () = self.closing.cancelled() => return,
            }
            again = (again * 2).min(AGAIN_MAX);
        }
    }

    /// A guard that outlived an earlier worker, or is a service of its own; else a new one.
    async fn find_or_start(&self) -> io::Result<Link> {
        if let Ok(mut link) = self.connect() {
            match link.ask(Request::Begin).await {
                Ok(Taken::Done) => return Ok(link),
                _ => {
                    if let Some(process) = link.process {
                        process.wait_gone(true, ANSWER_MAX).await;
                    }
                }
            }
        }
        self.start().await?;
        let mut link = self.connect()?;
        match link.ask(Request::Begin).await? {
            Taken::Done => Ok(link),
            taken => Err(io::Error::other(format!("it answers {taken:?}"))),
        }
    }

    fn connect(&self) -> io::Result<Link> {
        let dir = self.state_dir.join(DIR);
        // A local connection is made at once or not at all.
        let stream = with_short_path(&dir, SOCKET, std::os::unix::net::UnixStream::connect)?;
        stream.set_nonblocking(true)?;
        let peer = socket_peercred(&stream)?.pid.as_raw_nonzero().get();
        Ok(Link {
            process: Process::of(peer).ok(),
            stream: UnixStream::from_std(stream)?,
            last_number: 0,
            killed: 0,
            stays: false,
        })
    }

    /// Starts a guard; returns when it listens.
    async fn start(&self) -> io::Result<()> {
        let missing = || io::Error::other("no program is set for the lease guard");
        let (program, arguments) = self.program.split_first().ok_or_else(missing)?;
        let mut command = helper::command(program, arguments, &self.state_dir);
        command.current_dir("/");
        let started = tokio::time::timeout(START_MAX, helper::start(command)).await;
        let line = started.map_err(|_| io::Error::other("it does not say that it is there"))??;
        match line.trim_end().strip_prefix(READY) {
            Some(how) => {
                tracing::info!(how = how.trim_start(), "a lease guard was started");
                Ok(())
            }
            None if line.is_empty() => Err(io::Error::other("it ended at its start")),
            None => Err(io::Error::other(line.trim_end().to_owned())),
        }
    }

    /// Brings everything that is wanted to the guard, until it is gone; then says why.
    async fn keep(&self, link: &mut Link) -> io::Error {
        self.guarding.want_all();
        if let Err(error) = self.bring(link).await {
            return error;
        }
        match link.ask(Request::Settle).await {
            Ok(_) => {}
            Err(error) => return error,
        }
        self.tell(GuardNews::Up).await;
        self.settled.send_replace(true);
        let mut pings = tokio::time::interval(PING_EVERY);
        pings.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                () = self.guarding.changed.notified() => self.bring(link).await,
                _ = pings.tick() => link.ask(Request::Ping).await.map(|_| ()),
                error = link.ended() => Err(error),
            };
            if let Err(error) = done {
                return error;
            }
        }
    }

    async fn bring(&self, link: &mut Link) -> io::Result<()> {
        while let Some((start_id, want)) = self.guarding.next() {
            let id = start_id.as_str().as_bytes();
            let Some(want) = want else {
                link.ask(Request::Release { start_id: id }).await?;
                continue;
            };
            for container in &want.containers {
                let container = container.as_bytes();
                let request = Request::Contain {
                    start_id: id,
                    container,
                };
                if link.ask(request).await? != Taken::Done {
                    return Err(io::Error::other("it has no room for a container"));
                }
            }
            let Some(until) = want.until else { continue };
            let request = Request::Hold {
                start_id: id,
                until: until.guard,
            };
            match link.ask(request).await? {
                Taken::Done => {
                    self.runtime.hold(&start_id, until.supervisor).await;
                    let until = until.guard;
                    self.tell(GuardNews::Held { start_id, until }).await;
                }
                // The core stops it for the same reason.
                Taken::Late => tracing::warn!(%start_id, "the lease guard ends an instance"),
                taken => return Err(io::Error::other(format!("it answers {taken:?} to a lease"))),
            }
        }
        Ok(())
    }

    /// Leaves the guard to itself, and sees it end if it holds nothing.
    async fn part(&self, link: Link) {
        let Link {
            stream,
            process,
            stays,
            ..
        } = link;
        drop(stream);
        let holds = !self.guarding.wanted().leases.is_empty();
        if let Some(process) = process.filter(|_| !stays && !holds) {
            process.wait_gone(false, ANSWER_MAX).await;
        }
    }

    /// False when nobody listens any more.
    async fn tell(&self, news: GuardNews) -> bool {
        self.inputs.send(Input::Guard(news)).await.is_ok()
    }
}

// === impl Link ===

impl Link {
    /// Asks for something and waits for the answer.
    async fn ask(&mut self, request: Request<'_>) -> io::Result<Taken> {
        self.last_number += 1;
        let number = self.last_number;
        let frame = request.write(number);
        let stream = &mut self.stream;
        let talk = async {
            stream.write_all(&frame).await?;
            let mut reply = [0; REPLY];
            stream.read_exact(&mut reply).await?;
            io::Result::Ok(reply)
        };
        let late = |_| io::Error::other("it does not answer");
        let reply = tokio::time::timeout(ANSWER_MAX, talk)
            .await
            .map_err(late)??;
        let reply = Reply::read(&reply)
            .filter(|reply| reply.number == number)
            .ok_or_else(|| io::Error::other("it says what cannot be understood"))?;
        if reply.killed > self.killed {
            tracing::warn!(
                killed = reply.killed,
                "the lease guard has killed processes"
            );
            self.killed = reply.killed;
        }
        self.stays = reply.stays;
        Ok(reply.taken)
    }

    /// Returns when the guard has closed the connection.
    async fn ended(&self) -> io::Error {
        loop {
            if let Err(error) = self.stream.ready(Interest::READABLE).await {
                return error;
            }
            match self.stream.try_read(&mut [0]) {
                Ok(0) => return io::Error::other("it has ended"),
                Ok(_) => return io::Error::other("it speaks unasked"),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return error,
            }
        }
    }
}
