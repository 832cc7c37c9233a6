//! Processes of the machine: whether one is still the same, and which belong to an instance.
//!
//! A process id alone names nothing for long, so a process is remembered with its start time. The
//! processes of an instance are found by the start id in their environment, which children inherit:
//! that is their label (WORK-13), and it reaches also those that left their process group. A process
//! that clears its environment and leaves its group is beyond it.

use std::fs;
use std::io;
use std::time::Duration;

use greenroom_types::StartId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Variable that marks the processes of an instance.
pub(crate) const SERVICE_MARK: &str = "GREENROOM_START_ID";
/// Variable that marks an instance's supervisor.
pub(crate) const SUPERVISOR_MARK: &str = "GREENROOM_SUPERVISES";

/// A process that cannot be mistaken for a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Clock ticks from the boot to its start.
    pub(crate) started: u64,
}

// === impl Process ===

impl Process {
    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, started) = parse_stat(&stat)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable /proc stat"))?;
        Ok(Self { pid, started })
    }

    /// This very process.
    pub(crate) fn own() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// True while it runs; a zombie does not.
    pub(crate) fn is_alive(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        parse_stat(&stat).is_some_and(|(state, started)| state != 'Z' && started == self.started)
    }

    /// Kills it, where that is asked for, and waits for its end, at most this long.
    pub(crate) async fn wait_gone(self, kill: bool, max: Duration) {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return;
        };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        if !self.is_alive() {
            return;
        }
        if kill {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
        let waiting = tokio::task::spawn_blocking(move || {
            // Readable from the moment of its end.
            let mut ended = [PollFd::new(&handle, PollFlags::IN)];
            let max = Timespec::try_from(max).unwrap_or(Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            });
            let _ = poll(&mut ended, Some(&max));
        });
        let _ = waiting.await;
    }
}

/// State and start time; the name in parentheses may itself hold spaces and parentheses.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

/// Kills every process that carries this mark of a start; gives how many there were.
pub(crate) fn kill_marked(mark: &str, start_id: &StartId) -> usize {
    let mark = format!("{mark}={start_id}").into_bytes();
    let own = rustix::process::getpid();
    let Ok(entries) = fs::read_dir("/proc") else {
        return 0;
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .parse()
                .ok()
                .and_then(Pid::from_raw)
        })
        .filter(|pid| *pid != own);
    let mut killed = 0;
    for pid in pids {
        // Held before its environment is read, so that the signal reaches the same process.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        let environ =
            fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
        if environ
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark)
            && pidfd_send_signal(&handle, Signal::KILL).is_ok()
        {
            killed += 1;
        }
    }
    killed
}

/// Kills every child of this process; gives how many there were. What an instance's processes leave
/// behind comes to its supervisor, whatever its environment and its group are by then.
pub(crate) fn kill_children() -> usize {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(entries) = fs::read_dir("/proc") else {
        return 0;
    };
    let is_child = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?);
        (state != "Z" && parent.parse() == Ok(own)).then_some(pid)
    };
    // A child keeps its number until it is reaped here, so the signal reaches the one looked at.
    entries
        .flatten()
        .filter_map(|entry| is_child(entry.file_name().to_str()?.parse().ok()?))
        .filter_map(Pid::from_raw)
        .filter(|pid| rustix::process::kill_process(*pid, Signal::KILL).is_ok())
        .count()
}

/// Id of this boot of the machine.
pub(crate) fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_itself_only_with_its_start_time() {
        let own = Process::own().unwrap();
        assert!(own.is_alive());
        assert!(
            !Process {
                started: own.started + 1,
                ..own
            }
            .is_alive()
        );
        let line = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 9";
        assert_eq!(parse_stat(line), Some(('S', 4242)));
    }

    #[test]
    fn marked_processes_are_killed_and_others_are_not() {
        let spawn = |mark: &str| {
            Command::new("sleep")
                .arg("600")
                .env("GREENROOM_START_ID", mark)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        let id = format!("procs{}", rustix::process::getpid().as_raw_nonzero());
        let (mut marked, mut other) = (spawn(&id), spawn("other"));
        assert_eq!(kill_marked(SERVICE_MARK, &id.as_str().into()), 1);
        assert!(!marked.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
