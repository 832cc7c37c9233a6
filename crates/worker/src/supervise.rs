//! The process that stands between a worker and the services of one instance.
//!
//! On the process runtime every instance has a supervisor of its own, in a session of its own: it
//! outlives the worker, restarts services while no worker is there, and tells a new worker how things
//! stand (WORK-61). It is the same program, run again as `supervise --dir DIR`. The directory holds
//! `instance.json`, what to run; `status.json`, how it stands, replaced at each change; and `sock`,
//! over which a worker starts and stops it. It plays [`crate::lifecycle`] with real processes and
//! decides nothing else.
//!
//! It is the last to end a leased instance whose time is over (WORK-42): it knows until when that may
//! run, asks nobody, and ends it should worker and guard both be unable to.
//!
//! Killed itself, it can take nobody along: the worker finds its services by the mark in their
//! environment ([`crate::procs`]) and kills them.

pub(crate) mod cgroup;
mod children;
mod link;

pub(crate) use self::children::INHERITED;
pub(crate) use self::link::with_short_path;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use greenroom_types::job::JobInfoKind;
use greenroom_types::{Millis, Mono};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use self::children::{Children, Ended};
use self::link::Link;
use crate::clock;
use crate::credential::replace;
use crate::deadline;
use crate::launch::Launch;
use crate::lease::NEVER;
use crate::lifecycle::{Failure, Input, Lifecycle, Outcome, Phase, Step};
use crate::logs::with_last_lines;
use crate::procs::{Process, SERVICE_MARK, boot_id, kill_children, kill_marked};

const INSTANCE_FILE: &str = "instance.json";
const STATUS_FILE: &str = "status.json";
/// Name of the socket within the instance's directory.
pub(crate) const SOCKET: &str = "sock";
/// Line on standard output that says that the socket is there.
pub(crate) const READY: &str = "ready";
/// Time between two looks for processes that do not die, once the services are over.
const LEFTOVER_PAUSE: Duration = Duration::from_millis(20);

/// How often what has no right to run is killed at once before it is left to the next kill.
const KILLS_MAX: usize = 200;
/// Time between two of them.
const KILL_PAUSE: Duration = Duration::from_millis(5);

/// `instance.json`: what a supervisor runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Supervised {
    pub(crate) launch: Launch,
    pub(crate) log_dir: PathBuf,
}

/// `status.json`, and what a worker is told: how an instance stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    pub(crate) boot_id: String,
    pub(crate) supervisor: Process,
    pub(crate) phase: Phase,
    /// Every service runs and is healthy where it has a check.
    #[serde(default)]
    pub(crate) ready: bool,
    /// Running services.
    pub(crate) services: BTreeMap<String, Process>,
    /// Why the instance is failing.
    pub(crate) failing: Option<String>,
    /// How it ended.
    pub(crate) outcome: Option<Outcome>,
}

/// A line from the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Command {
    Start,
    Stop {
        grace: Millis,
    },
    /// Its lease ends then, unless told otherwise.
    Hold {
        until: Mono,
    },
}

/// A line to the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Word {
    Status(Box<Status>),
    Info(JobInfoKind),
}

/// Runs a supervisor until its instance has ended; the arguments are those after `supervise`.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let dir = match (args.next(), args.next(), args.next()) {
        (Some(flag), Some(dir), None) if flag == "--dir" => PathBuf::from(dir),
        _ => return ExitCode::from(2),
    };
    match run(&dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = fs::write(dir.join("supervisor.error"), format!("{error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(dir: &Path) -> io::Result<()> {
    // Out of the worker's session and group, so that no signal meant for it comes here.
    rustix::process::setsid()?;
    // Whatever a service leaves behind comes to us and is reaped.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async { Supervisor::open(dir)?.run().await })
}

/// `instance.json` of a directory.
pub(crate) fn read_supervised(dir: &Path) -> io::Result<Supervised> {
    Ok(serde_json::from_slice(&fs::read(dir.join(INSTANCE_FILE))?)?)
}

/// Writes `instance.json`; its environment may hold secrets, so it is the worker's alone.
pub(crate) fn write_supervised(dir: &Path, supervised: &Supervised) -> io::Result<()> {
    replace(&dir.join(INSTANCE_FILE), &serde_json::to_vec(supervised)?)
}

/// `status.json` of a directory.
pub(crate) fn read_status(dir: &Path) -> io::Result<Status> {
    Ok(serde_json::from_slice(&fs::read(dir.join(STATUS_FILE))?)?)
}

struct Supervisor {
    dir: PathBuf,
    supervised: Supervised,
    machine: Lifecycle,
    status: Status,
    /// What the status file says.
    saved: Option<Status>,
    children: Children,
    link: Link,
    began: Instant,
    /// The end of its lease, if it has one, on the clock of leases.
    until: Option<Mono>,
    /// It was over.
    expired: bool,
}

enum Woken {
    Child,
    Command(Command),
    Connected,
    LeaseOver,
    Deadline,
}

// === impl Supervisor ===

impl Supervisor {
    fn open(dir: &Path) -> io::Result<Self> {
        let supervised = read_supervised(dir)?;
        fs::create_dir_all(&supervised.log_dir)?;
        let machine = Lifecycle::new(supervised.launch.rules());
        let status = Status {
            boot_id: boot_id(),
            supervisor: Process::own()?,
            phase: machine.phase(),
            ready: false,
            services: BTreeMap::new(),
            failing: None,
            outcome: None,
        };
        Ok(Self {
            dir: dir.to_owned(),
            machine,
            status,
            saved: None,
            children: Children::new(dir.to_owned(), supervised.log_dir.clone()),
            link: Link::default(),
            supervised,
            began: Instant::now(),
            until: None,
            expired: false,
        })
    }

    async fn run(mut self) -> io::Result<()> {
        let mut child_signal = signal(SignalKind::child())?;
        // Signals meant to end programs are for the worker, which tells us over the socket.
        let _interrupt = signal(SignalKind::interrupt())?;
        let _terminate = signal(SignalKind::terminate())?;
        let _hangup = signal(SignalKind::hangup())?;
        self.link.listen(&self.dir)?;
        self.save();
        announce()?;
        while self.status.outcome.is_none() {
            let woken = {
                let deadline = self.next_deadline();
                let lease_end = self.lease_end();
                tokio::select! {
                    biased;
                    // After a time in which this process did not run, what was said meanwhile counts
                    // before a deadline that it may have moved.
                    command = self.link.next() => command.map_or(Woken::Connected, Woken::Command),
                    () = clock::reached(lease_end) => Woken::LeaseOver,
                    _ = child_signal.recv() => Woken::Child,
                    () = deadline::reached(deadline) => Woken::Deadline,
                }
            };
            match woken {
                Woken::Child => self.reap().await,
                Woken::Command(Command::Start) => {
                    self.feed(Input::Start);
                    self.check_lease();
                }
                Woken::Command(Command::Hold { until }) => self.hold(until),
                Woken::LeaseOver => self.check_lease(),
                Woken::Command(Command::Stop { grace }) => self.feed(Input::Stop(grace)),
                Woken::Connected => self.tell(),
                Woken::Deadline => self.pass_time(),
            }
        }
        self.link.flush().await;
        Ok(())
    }

    fn hold(&mut self, until: Mono) {
        self.until = Some(until);
        self.check_lease();
    }

    /// When to look at the lease; what does not run has none to look at.
    fn lease_end(&self) -> Option<Mono> {
        let looks = self.runs() && !self.expired;
        self.until.filter(|until| looks && *until < NEVER)
    }

    fn runs(&self) -> bool {
        !matches!(self.machine.phase(), Phase::Created | Phase::Ended)
    }

    /// Ends what runs without a right to. What is only prepared has nothing to be ended, and is not
    /// started under a lease that is over.
    fn check_lease(&mut self) {
        let over = self.until.is_some_and(|until| clock::boot_time() >= until);
        if !over || !self.runs() || std::mem::replace(&mut self.expired, true) {
            return;
        }
        // First the processes, whatever group and session they are in; then the record.
        let mut steps = Vec::new();
        let now = self.now();
        self.machine.handle(now, Input::Stop(Millis(0)), &mut steps);
        for _ in 0..KILLS_MAX {
            let start_id = &self.supervised.launch.start_id;
            if kill_marked(SERVICE_MARK, start_id) + kill_children() == 0 {
                break;
            }
            std::thread::sleep(KILL_PAUSE);
        }
        self.work_off(steps);
    }

    /// Takes in every child that ended, services and checks and what they left to us.
    async fn reap(&mut self) {
        while let Some(ended) = self.children.reap() {
            match ended {
                Ended::Service { name, exit, pumps } => {
                    // Its last words are in the log before its end is judged.
                    pumps.finish().await;
                    self.status.services.remove(&name);
                    self.feed(Input::Exited(&name, exit));
                }
                Ended::Check {
                    name,
                    healthy: true,
                } => self.feed(Input::Healthy(&name)),
                Ended::Check {
                    name,
                    healthy: false,
                } => {
                    if let Some(text) = self.children.note_failed_check(&name) {
                        self.link.say(&Word::Info(JobInfoKind::ContainerEvent {
                            service: name,
                            text,
                        }));
                    }
                }
                Ended::Other => {}
            }
        }
    }

    fn pass_time(&mut self) {
        let now = Instant::now();
        for service in &self.supervised.launch.services {
            self.children.check_health(now, service);
        }
        self.feed(Input::Tick);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let machine = self
            .machine
            .next_deadline()
            .map(|at| self.began + Duration::from_millis(at.0));
        machine.into_iter().chain(self.children.next_check()).min()
    }

    /// Gives one input to the machine and carries out what follows, to the end.
    fn feed(&mut self, input: Input<'_>) {
        let mut steps = Vec::new();
        self.machine.handle(self.now(), input, &mut steps);
        self.work_off(steps);
    }

    fn work_off(&mut self, mut steps: Vec<Step>) {
        let mut at = 0;
        while at < steps.len() {
            let step = steps[at].clone();
            at += 1;
            self.carry_out(step, &mut steps);
        }
        self.status.phase = self.machine.phase();
        if self.saved.as_ref() != Some(&self.status) {
            self.save();
            self.tell();
        }
    }

    fn carry_out(&mut self, step: Step, steps: &mut Vec<Step>) {
        match step {
            Step::Launch(name) => {
                let now = self.now();
                let launch = &self.supervised.launch;
                let Some(service) = launch.services.iter().find(|s| s.rule.name == name) else {
                    return;
                };
                match self.children.spawn(service, launch.logs) {
                    Ok((process, note)) => {
                        if let Some(text) = note {
                            self.link.say(&Word::Info(JobInfoKind::ContainerEvent {
                                service: name.clone(),
                                text,
                            }));
                        }
                        self.status.services.insert(name.clone(), process);
                        self.machine.handle(now, Input::Launched(&name), steps);
                    }
                    Err(error) => {
                        let why = format!("{:?} cannot be started: {error}", service.command[0]);
                        self.machine
                            .handle(now, Input::NotLaunched(&name, why), steps);
                    }
                }
            }
            Step::Terminate(name) => self.children.signal(&name, rustix::process::Signal::TERM),
            Step::Kill(name) => self.children.signal(&name, rustix::process::Signal::KILL),
            Step::ServiceStarted(name) => {
                self.link
                    .say(&Word::Info(JobInfoKind::ServiceStarted(name)));
            }
            Step::ServiceRestarting(name, exit) => {
                let text = format!("ended with {exit}");
                let event = JobInfoKind::ContainerEvent {
                    service: name.clone(),
                    text,
                };
                self.link.say(&Word::Info(event));
                self.link
                    .say(&Word::Info(JobInfoKind::ServiceRestarting(name)));
            }
            Step::Stuck(service) => {
                let text = "stuck: it does not end when killed".to_owned();
                self.link
                    .say(&Word::Info(JobInfoKind::ContainerEvent { service, text }));
            }
            Step::Running => {}
            Step::Ready(ready) => self.status.ready = ready,
            Step::Failing(failure) => {
                let why = with_last_lines(&failure.why, &self.supervised.log_dir, &failure.service);
                self.status.failing = Some(format!("service {}: {why}", failure.service));
            }
            Step::Ended(outcome) => {
                // Nothing of the instance runs when its end is told.
                let start_id = &self.supervised.launch.start_id;
                while kill_marked(SERVICE_MARK, start_id) + kill_children() > 0 {
                    while self.children.reap().is_some() {}
                    std::thread::sleep(LEFTOVER_PAUSE);
                }
                cgroup::remove_listed(&self.dir);
                self.status.outcome = Some(match self.expired {
                    true => Outcome::Failed(Failure {
                        service: "supervisor".to_owned(),
                        why: "its lease was over and nobody had ended it".to_owned(),
                    }),
                    false => outcome,
                });
            }
        }
    }

    /// The status file is how a worker finds us after both were apart; a full disk must not end us.
    fn save(&mut self) {
        if let Ok(bytes) = serde_json::to_vec(&self.status) {
            let _ = replace(&self.dir.join(STATUS_FILE), &bytes);
        }
        self.saved = Some(self.status.clone());
    }

    fn tell(&mut self) {
        self.link.say(&Word::Status(Box::new(self.status.clone())));
    }

    fn now(&self) -> Mono {
        Mono(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Says on standard output that the socket is there. Standard output is a pipe to the worker.
fn announce() -> io::Result<()> {
    use std::io::Write;
    let mut out = io::stdout().lock();
    writeln!(out, "{READY}")?;
    out.flush()
}
