//! The lease guard: a small process of its own that kills leased instances at their deadlines, whatever
//! has become of the worker (LEASE-05, WORK-42).
//!
//! It is the same program, run again as `lease-guard --dir STATE_DIR`. The worker tells it over a
//! socket until when each leased instance may run, and again after every answered refresh. It asks
//! nobody when a deadline comes: it kills what it finds of the instance ([`scan`]) and goes on looking
//! until a worker says that nothing is left, or nothing was seen for a minute. Its memory is made at
//! the beginning and locked if the system lets it; afterwards it opens nothing but `/proc` and writes
//! to nothing but its socket, so that neither a full memory nor a dead disk holds it up.
//!
//! It ends with its worker when it holds nothing, and outlives it otherwise; with `--stay`, as a
//! service of its own, it does not end by itself.

pub(crate) mod frame;
mod scan;
mod table;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use greenroom_types::{Millis, Mono};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

use self::frame::{REQUEST, Reply, Request, Taken};
use self::scan::Scan;
use self::table::Table;
use crate::clock;
use crate::supervise::with_short_path;

/// Directory of the guard within the state directory.
pub(crate) const DIR: &str = "guard";
/// Its socket there.
pub(crate) const SOCKET: &str = "sock";
/// Locked by the one guard of a state directory, whose number it holds.
const LOCK: &str = "lock";
/// Line on standard output that says that the socket is there.
pub(crate) const READY: &str = "ready";
/// Exit code of one that finds another on the same state directory.
const TAKEN: u8 = 4;

/// Time between two looks while something of an expired lease is there.
const LOOK_AGAIN: Millis = Millis(5);
/// Time between two looks for what may come late, as from an engine that was slow.
const LOOK_FOR_LATE: Millis = Millis(250);
/// Nothing comes any more after so long.
const LATE_MAX: Millis = Millis(60_000);

/// Runs a guard; the arguments are those after `lease-guard`.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (mut dir, mut stay) = (None, false);
    let mut args = args.into_iter();
    while let Some(word) = args.next() {
        match word.to_str() {
            Some("--dir") => dir = args.next().map(PathBuf::from),
            Some("--stay") => stay = true,
            _ => dir = None,
        }
    }
    let Some(dir) = dir else {
        return ExitCode::from(2);
    };
    match Guard::open(&dir, stay) {
        Ok(Some(mut guard)) => {
            guard.run();
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::from(TAKEN),
        Err(error) => {
            let text = format!("the lease guard cannot start in {}: {error}", dir.display());
            let _ = writeln!(io::stdout(), "{text}");
            ExitCode::FAILURE
        }
    }
}

struct Guard {
    table: Table,
    scan: Scan,
    timer: OwnedFd,
    listener: OwnedFd,
    worker: Option<Line>,
    stay: bool,
    /// When something of an expired lease was last there.
    seen_at: Mono,
    /// Held as long as the process lives.
    _lock: std::fs::File,
}

/// The connection of a worker.
struct Line {
    socket: OwnedFd,
    /// What came of the next request.
    frame: [u8; REQUEST],
    len: usize,
}

/// What a wait ended for.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    caller: bool,
    worker: bool,
}

// === impl Guard ===

impl Guard {
    /// Takes the place of the guard on a state directory; none if it is taken.
    fn open(state_dir: &Path, stay: bool) -> io::Result<Option<Self>> {
        // Out of the worker's session, so that no signal meant for it comes here. One that is the
        // head of a group already, as a service of its own, is out of it.
        let _ = rustix::process::setsid();
        let dir = state_dir.join(DIR);
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&dir)?;
        let mut options = std::fs::File::options();
        options.create(true).truncate(false).write(true);
        let mut lock = options.open(dir.join(LOCK))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        // For people who look for it.
        lock.set_len(0)?;
        writeln!(lock, "{}", std::process::id())?;
        let _ = std::fs::remove_file(dir.join(SOCKET));
        let listener = with_short_path(&dir, SOCKET, UnixListener::bind)?;
        std::fs::set_permissions(dir.join(SOCKET), std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let mut guard = Self {
            table: Table::new(),
            scan: Scan::new()?,
            timer: clock::timer()?,
            listener: listener.into(),
            worker: None,
            stay,
            seen_at: Mono(0),
            _lock: lock,
        };
        // One look before it counts, so that what the looking needs is there.
        guard.scan.pass(&mut guard.table);
        // What it never touches, which is nearly all of this program, is neither loaded nor locked.
        let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
        let is_locked = mlockall(all).is_ok();
        // Where the system lets it, it is not the one to go when memory runs out.
        let spared = std::fs::write("/proc/self/oom_score_adj", "-1000").is_ok();
        let mut out = io::stdout().lock();
        let told = writeln!(out, "{READY} locked={is_locked} spared={spared}");
        // As a service of its own it has nobody who waits for this line.
        told.and_then(|()| out.flush()).or(if stay {
            Ok(())
        } else {
            Err(io::Error::other("nobody waits for the guard"))
        })?;
        Ok(Some(guard))
    }

    fn run(&mut self) {
        let began = clock::boot_time();
        let (mut had_worker, mut had_expired) = (false, false);
        loop {
            let now = clock::boot_time();
            let expired = self.table.expire(now);
            let left = expired && self.scan.pass(&mut self.table);
            if left || !had_expired {
                self.seen_at = now;
            }
            had_expired = expired;
            let over = match &self.worker {
                Some(_) => false,
                None if expired => now - self.seen_at >= LATE_MAX && self.table.next().is_none(),
                None if had_worker => self.table.is_empty(),
                None => now - began >= LATE_MAX,
            };
            if over && !self.stay {
                return;
            }
            let pause = match (expired, had_worker) {
                (true, _) if left => Some(LOOK_AGAIN),
                (true, _) => Some(LOOK_FOR_LATE),
                (false, false) => Some(LATE_MAX),
                (false, true) => None,
            };
            let woken = self.wait(pause);
            if woken.caller {
                had_worker |= self.accept();
            }
            if woken.worker {
                self.hear();
            }
        }
    }

    /// Waits for a request, the next deadline, or the end of the pause.
    fn wait(&self, pause: Option<Millis>) -> Woken {
        // A timer that cannot be set must not let a deadline pass.
        let next = self.table.next();
        let pause = match clock::set(&self.timer, next) {
            Ok(()) => pause,
            Err(_) => Some(pause.unwrap_or(LOOK_FOR_LATE)),
        };
        let pause = pause.map(|pause| Timespec {
            tv_sec: i64::try_from(pause.0 / 1_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(pause.0 % 1_000).unwrap_or_default() * 1_000_000,
        });
        let mut ready = [
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::new(
                self.worker
                    .as_ref()
                    .map_or(&self.listener, |line| &line.socket),
                PollFlags::IN,
            ),
        ];
        if poll(&mut ready, pause.as_ref()).is_err() {
            return Woken::default();
        }
        let is_ready = |at: usize| !ready[at].revents().is_empty();
        if is_ready(0) {
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        }
        Woken {
            caller: is_ready(1),
            worker: self.worker.is_some() && is_ready(2),
        }
    }

    /// A new worker takes the place of an old one: only one runs on a state directory (WORK-07).
    fn accept(&mut self) -> bool {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else {
            return false;
        };
        self.worker = Some(Line {
            socket,
            frame: [0; REQUEST],
            len: 0,
        });
        true
    }

    /// Takes what the worker asks for, as much as has come.
    fn hear(&mut self) {
        loop {
            let Some(line) = &mut self.worker else {
                return;
            };
            match rustix::net::recv(
                &line.socket,
                &mut line.frame[line.len..],
                RecvFlags::empty(),
            ) {
                Ok((_, len @ 1..)) => line.len += len,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
                Ok(_) | Err(_) => {
                    self.worker = None;
                    return;
                }
            }
            if line.len < REQUEST {
                continue;
            }
            line.len = 0;
            let (number, request) = Request::read(&line.frame);
            let taken = request.map_or(Taken::Unread, |request| {
                self.table.take(&request, clock::boot_time())
            });
            let reply = Reply {
                number,
                taken,
                killed: self.scan.killed,
                stays: self.stay,
            };
            let sent = rustix::net::send(line.socket.as_fd(), &reply.write(), SendFlags::NOSIGNAL);
            // One that does not read, or cannot be read, begins anew.
            if sent.is_err() || taken == Taken::Unread {
                self.worker = None;
                return;
            }
        }
    }
}
