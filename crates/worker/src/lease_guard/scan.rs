//! Finds what belongs to expired leases among the processes of the machine, and kills it.
//!
//! A process belongs to a start if it carries the start's mark in its environment, if the control
//! group it is in bears the name of one of its containers, or if it is a child, or of the session, of
//! the start's supervisor. No process is known by its number alone: it is taken hold of first, then
//! looked at, and the signal goes to what is held, so that a stranger who got the number of one that
//! ended is never hit. Everything here works in memory that was made at the beginning.

use std::ffi::CStr;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::frame::CONTAINER_ID;
use super::table::Table;
use crate::procs::{SERVICE_MARK, SUPERVISOR_MARK};

/// Bytes of the list of processes that are read at once.
const LIST: usize = 32 << 10;
/// Bytes of one process's files that are read at once.
const TEXT: usize = 16 << 10;
/// A variable that is longer than this is none of ours.
const VARIABLE_MAX: usize = 512;

/// What the scan works with.
pub(super) struct Scan {
    root: OwnedFd,
    list: Box<[MaybeUninit<u8>]>,
    text: Box<[u8]>,
    own: i32,
    /// Kills sent so far; a process that is slow to go gets one in each pass.
    pub(super) killed: u64,
}

// === impl Scan ===

impl Scan {
    pub(super) fn new() -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            root: rustix::fs::open("/proc", flags, Mode::empty())?,
            list: vec![MaybeUninit::uninit(); LIST].into_boxed_slice(),
            text: vec![0; TEXT].into_boxed_slice(),
            own: getpid().as_raw_nonzero().get(),
            killed: 0,
        })
    }

    /// Looks at every process once: kills the parts of what has expired, stops their supervisors, and
    /// kills a supervisor once nothing else of its start is left. True when anything was there.
    pub(super) fn pass(&mut self, table: &mut Table) -> bool {
        let mut any = false;
        table.expired().for_each(|entry| entry.found = 0);
        if rustix::fs::seek(&self.root, SeekFrom::Start(0)).is_err() {
            return true;
        }
        let mut look = Look {
            root: self.root.as_fd(),
            text: &mut self.text,
        };
        let mut processes = RawDir::new(self.root.as_fd(), &mut self.list);
        while let Some(Ok(process)) = processes.next() {
            let Some(number) = number(process.file_name().to_bytes()) else {
                continue;
            };
            if number != self.own
                && let Some(pid) = Pid::from_raw(number)
                && let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
                && look.is_part(number, &handle, table)
            {
                any = true;
                if pidfd_send_signal(&handle, Signal::KILL).is_ok() {
                    self.killed += 1;
                }
            }
        }
        for entry in table.expired() {
            any |= entry.found > 0;
            if entry.found == 0
                && let Some((_, supervisor)) = entry.supervisor.take()
            {
                any = true;
                if pidfd_send_signal(&supervisor, Signal::KILL).is_ok() {
                    self.killed += 1;
                }
            }
        }
        any
    }
}

/// A look at one process at a time.
struct Look<'a> {
    root: BorrowedFd<'a>,
    text: &'a mut [u8],
}

// === impl Look ===

impl Look<'_> {
    /// True for what is to be killed now. A supervisor is stopped and noted instead.
    fn is_part(&mut self, number: i32, handle: &OwnedFd, table: &mut Table) -> bool {
        let Some((parent, session)) = self.family(number) else {
            return false;
        };
        let (service, supervisor) = self.marks(number, table);
        if let Some(entry) = supervisor.and_then(|at| table.at(at)) {
            match &entry.supervisor {
                Some((own, _)) if *own == number => return false,
                // Not the first of its mark: a service on its way into being.
                Some(_) => {}
                None => {
                    let Ok(held) = handle.try_clone() else {
                        return false;
                    };
                    let _ = pidfd_send_signal(handle, Signal::STOP);
                    entry.supervisor = Some((number, held));
                    // What it was starting at this moment is seen by the next pass.
                    (entry.found, entry.touched) = (entry.found + 1, true);
                    return false;
                }
            }
        }
        let found = service
            .or(supervisor)
            .or_else(|| self.container(number, table))
            .or_else(|| {
                table.find_expired(|entry| {
                    entry.supervisor.as_ref().is_some_and(|(own, supervisor)| {
                        (parent == *own || session == *own) && is_alive(supervisor)
                    })
                })
            });
        let Some(entry) = found.and_then(|at| table.at(at)) else {
            return false;
        };
        (entry.found, entry.touched) = (entry.found + 1, true);
        true
    }

    /// Parent and session of a process; none for one that is gone, or dead and not reaped.
    fn family(&mut self, number: i32) -> Option<(i32, i32)> {
        let file = self.open(number, "stat")?;
        let len = rustix::io::read(&file, &mut *self.text).ok()?;
        let text = &self.text[..len];
        // Its name, in parentheses, may itself hold spaces and parentheses.
        let end = text.iter().rposition(|byte| *byte == b')')?;
        let mut fields = text[end + 1..].split(|byte| *byte == b' ').skip(1);
        if matches!(fields.next()?, b"Z" | b"X" | b"x") {
            return None;
        }
        let parent = number_of(fields.next()?)?;
        let session = number_of(fields.nth(1)?)?;
        Some((parent, session))
    }

    /// The expired leases whose marks a process carries: of a service, of a supervisor.
    fn marks(&mut self, number: i32, table: &Table) -> (Option<usize>, Option<usize>) {
        let (mut service, mut supervisor) = (None, None);
        let Some(file) = self.open(number, "environ") else {
            return (None, None);
        };
        let mut judge = |variable: &[u8]| {
            let of = |mark: &str| {
                let value = variable.strip_prefix(mark.as_bytes())?.strip_prefix(b"=")?;
                table.find_expired(|entry| entry.start_id() == value)
            };
            service = service.or_else(|| of(SERVICE_MARK));
            supervisor = supervisor.or_else(|| of(SUPERVISOR_MARK));
        };
        // A beginning of a variable that goes on in what is read next, and whether it is too long.
        let (mut kept, mut too_long) = (0, false);
        while let Ok(len @ 1..) = rustix::io::read(&file, &mut self.text[kept..]) {
            let all = kept + len;
            let mut from = 0;
            while let Some(at) = self.text[from..all].iter().position(|byte| *byte == 0) {
                if !std::mem::take(&mut too_long) {
                    judge(&self.text[from..from + at]);
                }
                from += at + 1;
            }
            too_long |= all - from > VARIABLE_MAX;
            kept = if too_long { 0 } else { all - from };
            self.text.copy_within(from..from + kept, 0);
        }
        if kept > 0 {
            judge(&self.text[..kept]);
        }
        (service, supervisor)
    }

    /// The expired lease in one of whose containers a process is.
    fn container(&mut self, number: i32, table: &Table) -> Option<usize> {
        table.find_expired(|entry| !entry.containers().is_empty())?;
        let file = self.open(number, "cgroup")?;
        let mut all = 0;
        while let Ok(len @ 1..) = rustix::io::read(&file, &mut self.text[all..]) {
            all += len;
        }
        let names = self.text[..all].split(|byte| !byte.is_ascii_hexdigit());
        names
            .filter(|name| name.len() == CONTAINER_ID)
            .find_map(|name| {
                table.find_expired(|entry| entry.containers().iter().any(|own| own == name))
            })
    }

    fn open(&self, number: i32, file: &str) -> Option<OwnedFd> {
        let mut path = [0; 32];
        let mut rest = &mut path[..31];
        write!(rest, "{number}/{file}").ok()?;
        let len = 31 - rest.len();
        let path = CStr::from_bytes_with_nul(&path[..=len]).ok()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(self.root, path, flags, Mode::empty()).ok()
    }
}

/// A process that is held ends readable.
fn is_alive(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut ended, Some(&at_once)) == Ok(0)
}

/// The number of a process, from the name of its directory.
fn number(name: &[u8]) -> Option<i32> {
    name.first()?.is_ascii_digit().then(|| number_of(name))?
}

fn number_of(text: &[u8]) -> Option<i32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use greenroom_types::Mono;

    use super::*;
    use crate::lease_guard::frame::Request;

    fn held(start_id: &str) -> Table {
        let mut table = Table::new();
        let (start_id, until) = (start_id.as_bytes(), Mono(5));
        table.take(&Request::Hold { start_id, until }, Mono(0));
        table
    }

    fn sleeper(variables: &[(&str, &str)]) -> Child {
        let mut command = Command::new("sleep");
        command.arg("600").env_clear().stdout(Stdio::null());
        command.envs(variables.iter().copied()).spawn().unwrap()
    }

    fn all_killed(scan: &mut Scan, table: &mut Table) {
        while scan.pass(table) {
            std::thread::yield_now();
        }
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    // spec: WORK-42
    #[test]
    fn marked_processes_of_what_expired_are_killed_and_no_others() {
        let id = format!(
            "scan-{}",
            greenroom_auth::hex(&greenroom_auth::random::<8>())
        );
        let other = format!("{id}0");
        // The mark stands where one reading ends and the next begins.
        let long = "x".repeat(TEXT - 20);
        let mut marked = sleeper(&[("A", &long), (SERVICE_MARK, &id), ("B", &long)]);
        let mut strangers = [
            sleeper(&[(SERVICE_MARK, &other)]),
            sleeper(&[("OTHER_MARK", &id)]),
            sleeper(&[]),
        ];
        let (mut scan, mut table) = (Scan::new().unwrap(), held(&id));
        assert!(!scan.pass(&mut table), "nothing has run out");
        assert!(marked.try_wait().unwrap().is_none());
        table.expire(Mono(5));
        all_killed(&mut scan, &mut table);
        assert!(!marked.wait().unwrap().success());
        assert!(scan.killed >= 1);
        for stranger in &mut strangers {
            assert!(stranger.try_wait().unwrap().is_none());
        }
        strangers.into_iter().for_each(end);
    }

    // spec: WORK-42
    #[test]
    fn a_supervisor_and_what_it_started_end_with_their_environment_cleared_too() {
        let id = format!(
            "scan-{}",
            greenroom_auth::hex(&greenroom_auth::random::<8>())
        );
        // A shell that starts another sleeper whenever one ends.
        let line = "while :; do env -i sleep 600; done";
        let mut command = Command::new("sh");
        command
            .args(["-c", line])
            .env(SUPERVISOR_MARK, &id)
            .process_group(0);
        let mut supervisor = command.spawn().unwrap();
        let (mut scan, mut table) = (Scan::new().unwrap(), held(&id));
        table.expire(Mono(5));
        all_killed(&mut scan, &mut table);
        assert!(!supervisor.wait().unwrap().success());
        assert!(scan.killed >= 1);
        assert!(!scan.pass(&mut table));
    }
}
