//! The supervisor's children: services and their health checks, spawned, signalled and reaped.
//!
//! Each service is the head of a process group of its own, so that a signal reaches its children
//! too. All children are reaped here and nowhere else, those that a service left behind included.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use super::cgroup::Group;
use crate::launch::{LaunchService, LogLimits};
use crate::logs::LogFile;
use crate::logs::line::{self, Framer, Output};
use crate::procs::Process;
use crate::restart::Exit;

/// A health check that takes longer than this is ended.
const CHECK_MAX: Duration = Duration::from_secs(30);
/// Its pipes may be held open by a process that left the service's group; then its log is read no
/// longer than this after its end.
const PUMPS_MAX: Duration = Duration::from_millis(500);
/// What services inherit of the worker's environment; its own settings and tokens are not theirs.
pub(crate) const INHERITED: [&str; 6] = ["HOME", "LANG", "PATH", "TMPDIR", "TZ", "USER"];

pub(super) struct Children {
    /// The instance's own.
    dir: PathBuf,
    log_dir: PathBuf,
    services: BTreeMap<String, Service>,
    checks: BTreeMap<String, Check>,
}

struct Service {
    pid: Pid,
    group: Option<Group>,
    pumps: Pumps,
}

struct Check {
    next: Instant,
    running: Option<Pid>,
    failures: u32,
    retries: u32,
    interval: Duration,
}

/// What reads a service's output.
pub(super) struct Pumps(Vec<JoinHandle<()>>);

/// A child that ended.
pub(super) enum Ended {
    Service {
        name: String,
        exit: Exit,
        pumps: Pumps,
    },
    Check {
        name: String,
        healthy: bool,
    },
    /// Something that a service left behind.
    Other,
}

// === impl Children ===

impl Children {
    pub(super) fn new(dir: PathBuf, log_dir: PathBuf) -> Self {
        Self {
            dir,
            log_dir,
            services: BTreeMap::new(),
            checks: BTreeMap::new(),
        }
    }

    /// Starts a service; also says what of its limits cannot be kept here.
    pub(super) fn spawn(
        &mut self,
        service: &LaunchService,
        logs: LogLimits,
    ) -> io::Result<(Process, Option<String>)> {
        let name = &service.rule.name;
        let mut command = self.command(service, &service.command)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let made = service
            .memory_limit
            .map(|limit| Group::make(&self.dir, name, limit));
        let (group, note) = match made {
            Some(Ok(group)) => (Some(group), None),
            Some(Err(error)) => {
                let note = format!("its memory limit is not enforced here: {error}");
                (None, Some(note))
            }
            None => (None, None),
        };
        let mut start = || pinned(&service.cpus, || command.spawn());
        let mut child = match &group {
            Some(group) => group.inside(start)?,
            None => start()?,
        };
        let pid = pid_of(&child)?;
        let log = Arc::new(Mutex::new(LogFile::open(&self.log_dir, name, logs)?));
        let outputs = [
            (Output::Stdout, child.stdout.take().map(OwnedFd::from)),
            (Output::Stderr, child.stderr.take().map(OwnedFd::from)),
        ];
        let pumps = outputs
            .into_iter()
            .filter_map(|(output, pipe)| Some((output, pipe?)))
            .map(|(output, pipe)| {
                let pipe = pipe::Receiver::from_owned_fd(pipe)?;
                Ok(pump(output, pipe, log.clone()))
            })
            .collect::<io::Result<Vec<_>>>()?;
        self.services.insert(
            name.clone(),
            Service {
                pid,
                group,
                pumps: Pumps(pumps),
            },
        );
        if let Some(health) = &service.health {
            let interval = Duration::from_millis(health.interval_ms);
            let check = Check {
                next: Instant::now(),
                running: None,
                failures: 0,
                retries: health.retries.max(1),
                interval,
            };
            self.checks.insert(name.clone(), check);
        }
        Ok((Process::of(pid.as_raw_nonzero().get())?, note))
    }

    /// Signals a service and its children.
    pub(super) fn signal(&self, name: &str, signal: Signal) {
        if let Some(service) = self.services.get(name) {
            // It may have ended a moment ago; its end is then on its way here.
            let _ = kill_process_group(service.pid, signal);
        }
    }

    /// The next child that has ended and was not taken in yet.
    pub(super) fn reap(&mut self) -> Option<Ended> {
        let (pid, status) = wait(WaitOptions::NOHANG).ok().flatten()?;
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => return Some(Ended::Other),
        };
        let named = self.services.iter().find(|(_, service)| service.pid == pid);
        if let Some(name) = named.map(|(name, _)| name.clone()) {
            self.checks.remove(&name);
            let service = self.services.remove(&name)?;
            // What it left in its group would hold its ports against a restart.
            let _ = kill_process_group(pid, Signal::KILL);
            let ran_out = service.group.is_some_and(|group| group.ran_out());
            let exit = match exit.is_success() {
                false if ran_out => Exit::OutOfMemory,
                _ => exit,
            };
            return Some(Ended::Service {
                name,
                exit,
                pumps: service.pumps,
            });
        }
        let named = self
            .checks
            .iter_mut()
            .find(|(_, check)| check.running == Some(pid));
        let Some((name, check)) = named else {
            return Some(Ended::Other);
        };
        let _ = kill_process_group(pid, Signal::KILL);
        check.running = None;
        check.next = Instant::now() + check.interval;
        let healthy = exit.is_success();
        if healthy {
            check.failures = 0;
        }
        Some(Ended::Check {
            name: name.clone(),
            healthy,
        })
    }

    /// Counts a failed check; gives words when it makes the service count as broken.
    pub(super) fn note_failed_check(&mut self, name: &str) -> Option<String> {
        let check = self.checks.get_mut(name)?;
        check.failures += 1;
        (check.failures == check.retries)
            .then(|| format!("unhealthy: its check failed {} times", check.failures))
    }

    /// Starts a check that is due, ends one that takes too long.
    pub(super) fn check_health(&mut self, now: Instant, service: &LaunchService) {
        let name = &service.rule.name;
        let Some(health) = &service.health else {
            return;
        };
        let Some(due) = self
            .checks
            .get(name)
            .map(|check| (check.next <= now, check.running))
        else {
            return;
        };
        let running = match due {
            (false, _) => return,
            (true, Some(pid)) => {
                let _ = kill_process_group(pid, Signal::KILL);
                Some(pid)
            }
            (true, None) => self
                .command(service, &health.command)
                .and_then(|mut command| {
                    command.stdout(Stdio::null()).stderr(Stdio::null());
                    pid_of(&command.spawn()?)
                })
                .ok(),
        };
        if let Some(check) = self.checks.get_mut(name) {
            let again = if running.is_some() {
                CHECK_MAX
            } else {
                check.interval
            };
            (check.running, check.next) = (running, now + again);
        }
    }

    pub(super) fn next_check(&self) -> Option<Instant> {
        self.checks.values().map(|check| check.next).min()
    }

    fn command(&self, service: &LaunchService, words: &[String]) -> io::Result<Command> {
        let missing = || io::Error::new(io::ErrorKind::InvalidInput, "the command is empty");
        let (program, arguments) = words.split_first().ok_or_else(missing)?;
        let directory = match service.directory.as_str() {
            "" => {
                let work = self.dir.join("work");
                std::fs::create_dir_all(&work)?;
                work
            }
            directory => PathBuf::from(directory),
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .process_group(0);
        command.env_clear();
        for name in INHERITED {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.envs(
            service
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        );
        Ok(command)
    }
}

// === impl Pumps ===

impl Pumps {
    /// Waits until everything said is in the log.
    pub(super) async fn finish(self) {
        let all = async {
            for pump in self.0 {
                let _ = pump.await;
            }
        };
        let _ = tokio::time::timeout(PUMPS_MAX, all).await;
    }
}

/// Copies output to the log. A log that cannot be written must not stop the service.
fn pump(output: Output, mut pipe: pipe::Receiver, log: Arc<Mutex<LogFile>>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut framer = Framer::new(output);
        let (mut buffer, mut lines) = (vec![0; 16 << 10], Vec::new());
        let mut open = true;
        while open {
            match pipe.read(&mut buffer).await {
                Ok(n @ 1..) => framer.push(line::now(), &buffer[..n], &mut lines),
                Ok(0) | Err(_) => {
                    framer.finish(&mut lines);
                    open = false;
                }
            }
            if let Ok(mut log) = log.lock() {
                let _ = log.write(&lines);
            }
            lines.clear();
        }
    })
}

fn pid_of(child: &std::process::Child) -> io::Result<Pid> {
    let raw = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    raw.ok_or_else(|| io::Error::other("a process without a number"))
}

/// Does something while this thread is pinned: children inherit it.
fn pinned<T>(cpus: &[u32], act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if cpus.is_empty() {
        return act();
    }
    let before = sched_getaffinity(None)?;
    let mut wanted = CpuSet::new();
    for cpu in cpus {
        let cpu = *cpu as usize;
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::other(format!(
                "CPU {cpu} is beyond what can be pinned to"
            )));
        }
        wanted.set(cpu);
    }
    sched_setaffinity(None, &wanted)?;
    let done = act();
    sched_setaffinity(None, &before)?;
    done
}
