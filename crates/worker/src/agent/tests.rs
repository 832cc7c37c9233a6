//! Rules of the core: given these orders and this news, exactly these acts and reports.

use greenroom_types::inventory::Disk;
use greenroom_types::job::{Container, HostPort, PortMapping, Service};
use greenroom_types::stream::MigrationSignal;

use super::*;
use crate::lifecycle::Failure;
use crate::ports::tests::FakeProbe;

fn machine() -> NodeInventory {
    NodeInventory {
        total_capacity: 4.0,
        disks: vec![Disk {
            path: "/".to_owned(),
            total: 100 << 30,
            free: 50 << 30,
        }],
        ..NodeInventory::default()
    }
}

fn settings() -> Settings {
    Settings {
        runtime: RuntimeKind::Process,
        host_paths: Vec::new(),
        migration_step: Millis(30_000),
        guards_metadata: false,
    }
}

pub(super) fn key(job: &str) -> InstanceKey {
    InstanceKey::new(job.into(), "primary".into())
}

pub(super) fn spec(job: &str, start_id: &str) -> StartSpec {
    let container = Container::Process {
        command: vec!["run".to_owned()],
        directory: String::new(),
    };
    let mut service = Service {
        name: "a".to_owned(),
        container,
        ..Service::default()
    };
    let mapping = PortMapping {
        container_port: 80,
        host_port: HostPort::Ephemeral,
        ..PortMapping::default()
    };
    service.parameters.port_mappings = vec![mapping];
    StartSpec {
        key: key(job),
        start_id: start_id.into(),
        services: vec![service],
        ..StartSpec::default()
    }
}

/// Plays the journal as well: what is persisted can be recovered from at any moment.
pub(super) struct Play {
    pub(super) agent: Agent,
    journal: Vec<Record>,
}

impl Play {
    pub(super) fn new() -> Self {
        Self::recovered(Vec::new(), "boot-1").0
    }
    fn recovered(journal: Vec<Record>, boot: &str) -> (Self, Effects) {
        let mut out = Effects::default();
        let probe = Box::new(FakeProbe::default());
        let agent = Agent::recover(
            settings(),
            journal.clone(),
            boot,
            machine(),
            probe,
            &mut out,
        );
        let mut play = Self { agent, journal };
        play.journal.extend(out.persist.clone());
        play.tell(Event::Engine(Some("process".to_owned())));
        (play, out)
    }
    /// Ends as by kill -9 and comes back.
    pub(super) fn restart(self, boot: &str, found: &[(&str, FoundState)]) -> (Self, Vec<Act>) {
        let (mut play, mut out) = Self::recovered(self.journal, boot);
        let found = found.iter().map(|(start_id, state)| Found {
            start_id: (*start_id).into(),
            state: state.clone(),
        });
        play.agent.reconcile(found.collect(), &mut out);
        play.journal.extend(out.persist);
        (play, out.act)
    }
    pub(super) fn tell(&mut self, event: Event) -> Vec<Act> {
        let mut out = Effects::default();
        self.agent.handle(event, &mut out);
        self.journal.extend(out.persist);
        out.act
    }
    /// Time passes.
    pub(super) fn at(&mut self, now: u64) -> Vec<Act> {
        let mut out = Effects::default();
        self.agent.pass_time(Mono(now), &mut out);
        self.journal.extend(out.persist);
        out.act
    }
    /// As [`Play::restart`], with leases that run since then.
    pub(super) fn restart_at(
        self,
        now: u64,
        times: &crate::lease_times::Times,
        found: &[(&str, FoundState)],
    ) -> (Self, Vec<Act>) {
        let (mut play, mut out) = Self::recovered(self.journal, "boot-1");
        play.agent.restore_leases(times, Mono(now), &mut out);
        play.agent.pass_time(Mono(now), &mut out);
        let found = found.iter().map(|(start_id, state)| Found {
            start_id: (*start_id).into(),
            state: state.clone(),
        });
        play.agent.reconcile(found.collect(), &mut out);
        play.journal.extend(out.persist);
        (play, out.act)
    }
    pub(super) fn provision(&mut self, spec: &StartSpec) -> Vec<Act> {
        self.tell(Event::Order(Order::Provision(Box::new(spec.clone()))))
    }
    pub(super) fn runtime(&mut self, start_id: &str, event: RuntimeEvent) -> Vec<Act> {
        self.tell(Event::Runtime(start_id.into(), event))
    }
    pub(super) fn stop(&mut self, job: &str, start_id: &str, grace: u64) -> Vec<Act> {
        let start_id = Some(start_id.into()).filter(|id: &StartId| !id.is_empty());
        self.tell(Event::Order(Order::Stop {
            key: key(job),
            start_id,
            grace: Millis(grace),
            cause: StopCause::User,
        }))
    }
    pub(super) fn run(&mut self, spec: &StartSpec) {
        let id = spec.start_id.as_str();
        self.provision(spec);
        self.runtime(id, RuntimeEvent::Prepared);
        self.runtime(id, RuntimeEvent::Running);
        assert_eq!(self.state(id), Some(InstanceState::Running));
    }
    pub(super) fn state(&self, start_id: &str) -> Option<InstanceState> {
        let start_id: StartId = start_id.into();
        self.agent
            .instances()
            .find(|view| view.start_id == start_id)
            .map(|view| view.state)
    }
}

/// The acts in short: what is told about whom, and what is done to whom.
pub(super) fn short(acts: &[Act]) -> Vec<String> {
    acts.iter()
        .map(|act| match act {
            Act::Prepare(id) => format!("prepare {id}"),
            Act::Start(id) => format!("start {id}"),
            Act::Stop(id, grace, _) => format!("stop {id} {grace}"),
            Act::Configure(id) => format!("configure {id}"),
            Act::Remove(id) => format!("remove {id}"),
            Act::Attach(id) => format!("attach {id}"),
            Act::Job(
                id,
                ToJob::Ask {
                    number,
                    migration_id,
                    ..
                },
            ) => {
                format!("job {id} ask {number} {migration_id}")
            }
            Act::Job(id, ToJob::Refuse { code, .. }) => format!("job {id} refuse {code}"),
            Act::Job(id, ToJob::In(migration)) => format!("job {id} in {migration:?}"),
            Act::Remind(_, after) => format!("remind {}", after.0),
            Act::Info(info) => format!("info {}", info.start_id),
            Act::Prefetch { batch_id, .. } => format!("prefetch {batch_id}"),
            Act::Refresh { nonce, leases } => {
                let held = leases
                    .iter()
                    .map(|held| format!(" {}#{}", held.start_id, held.fence));
                format!("refresh {nonce}:{}", held.collect::<String>())
            }
            Act::AckPause(paused) => format!("ack paused={paused}"),
            Act::Hold(id, until) if until.guard == crate::lease::NEVER => format!("hold {id} on"),
            Act::Hold(id, until) => format!("hold {id} {}", until.guard.0),
            Act::Contain(id, containers) => format!("contain {id} {}", containers.join(" ")),
            Act::Unhold(id) => format!("unhold {id}"),
            Act::WarnLease(id, remaining) => format!("warn {id} {}", remaining.0),
            Act::Fence(id) => format!("fence {id}"),
            Act::SaveLeases => "save".to_owned(),
            Act::Leave { park } => format!("leave park={park}"),
            Act::Report(Report { start_id, said, .. }) => match said {
                Said::Accepted => format!("say {start_id} accepted"),
                Said::Prepared { .. } => format!("say {start_id} prepared"),
                Said::Started { ports } => format!("say {start_id} started {}", ports.len()),
                Said::Stopped { completed: true } => format!("say {start_id} completed"),
                Said::Stopped { completed: false } => format!("say {start_id} stopped"),
                Said::Failed { reason } => format!("say {start_id} failed {reason}"),
                Said::Migration {
                    migration_id,
                    signal,
                } => format!("say {start_id} {migration_id} {}", signal_word(signal)),
                Said::Prefetched { batch_id, .. } => format!("say prefetched {batch_id}"),
                Said::Rejected { code, .. } => format!("say {start_id} rejected {code:?}"),
                Said::Interrupted { what, .. } => format!("say {what:?}"),
            },
        })
        .collect()
}

fn signal_word(signal: &MigrationSignal) -> String {
    match signal {
        MigrationSignal::State(_) => "state".to_owned(),
        MigrationSignal::Refused(reason) => format!("refused {reason}"),
        MigrationSignal::TargetReady(_) => "ready".to_owned(),
        MigrationSignal::SourceStoppedOutput(_) => "stopped".to_owned(),
        MigrationSignal::TargetApplied(_) => "applied".to_owned(),
        MigrationSignal::Aborted { side, reason } => format!("aborted {side} {reason}"),
    }
}

// spec: WORK-10
#[test]
fn a_start_is_accepted_prepared_started_and_reported_with_its_ports() {
    let mut play = Play::new();
    assert_eq!(
        short(&play.provision(&spec("j", "s1"))),
        ["say s1 accepted", "prepare s1"]
    );
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Prepared)),
        ["start s1"]
    );
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Running)),
        ["say s1 started 1"]
    );
}

// spec: WORK-10, WORK-21
#[test]
fn a_deferred_start_waits_prepared_until_it_is_told_to_run() {
    let mut play = Play::new();
    let deferred = StartSpec {
        defer_start: true,
        ..spec("j", "s1")
    };
    let start = |play: &mut Play, id: &str| {
        let order = Order::StartPrepared {
            key: key("j"),
            start_id: Some(id.into()),
        };
        short(&play.tell(Event::Order(order)))
    };
    play.provision(&deferred);
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Prepared)),
        ["say s1 prepared"]
    );
    assert_eq!(play.state("s1"), Some(InstanceState::Prepared));
    assert_eq!(start(&mut play, "s1"), ["start s1"]);
    play.runtime("s1", RuntimeEvent::Running);
    assert_eq!(start(&mut play, "s1"), ["say s1 started 1"]);
    assert_eq!(start(&mut play, "s9"), ["say s9 failed not_prepared"]);
}

// spec: WORK-20
#[test]
fn a_repeated_provision_answers_with_what_is_so_and_creates_nothing() {
    let mut play = Play::new();
    let s1 = spec("j", "s1");
    play.provision(&s1);
    assert_eq!(short(&play.provision(&s1)), ["say s1 accepted"]);
    play.runtime("s1", RuntimeEvent::Prepared);
    play.runtime("s1", RuntimeEvent::Running);
    assert_eq!(short(&play.provision(&s1)), ["say s1 started 1"]);
    play.runtime("s1", RuntimeEvent::Failing("broke".to_owned()));
    assert_eq!(short(&play.provision(&s1)), ["say s1 failed broke"]);
    play.runtime("s1", RuntimeEvent::Ended(Outcome::Stopped));
    play.runtime("s1", RuntimeEvent::Removed);
    assert_eq!(short(&play.provision(&s1)), ["say s1 stopped"]);
    // The same after a restart.
    let (mut play, _) = play.restart("boot-1", &[]);
    assert_eq!(short(&play.provision(&s1)), ["say s1 stopped"]);
}

// spec: WORK-20
#[test]
fn another_start_of_a_live_key_is_a_duplicate() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    assert_eq!(
        short(&play.provision(&spec("j", "s2"))),
        ["say s2 rejected Duplicate"]
    );
    assert_eq!(play.state("s1"), Some(InstanceState::Running));
}

// spec: WORK-20, JOB-35, HARDM-09
#[test]
fn a_start_of_an_ending_key_waits_for_the_remains() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    play.runtime("s1", RuntimeEvent::Failing("broke".to_owned()));
    assert_eq!(
        short(&play.provision(&spec("j", "s2"))),
        ["say s2 accepted"]
    );
    let ended = RuntimeEvent::Ended(Outcome::Stopped);
    assert_eq!(short(&play.runtime("s1", ended)), ["remove s1"]);
    let acts = play.runtime("s1", RuntimeEvent::Removed);
    assert_eq!(short(&acts), ["say s1 stopped", "prepare s2"]);
}

// spec: WORK-30, WORK-33
#[test]
fn a_rejection_reserves_nothing_and_is_remembered() {
    let mut play = Play::new();
    let mut big = spec("j", "s1");
    big.requirements.required_capacity = 5.0;
    assert_eq!(short(&play.provision(&big)), ["say s1 rejected Capacity"]);
    assert_eq!(play.agent.picture().assigned_jobs, []);
    assert_eq!(short(&play.provision(&big)), ["say s1 rejected Capacity"]);
    big.start_id = "s2".into();
    big.requirements.required_capacity = 4.0;
    assert_eq!(
        short(&play.provision(&big)),
        ["say s2 accepted", "prepare s2"]
    );
    let picture = play.agent.picture();
    assert_eq!(picture.reserved_capacity, 4.0);
    assert_eq!(picture.assigned_jobs[0].start_id, "s2".into());
    assert_eq!(
        picture.assigned_jobs[0].host_ports,
        ["40000/tcp", "40000/udp"]
    );
}

// spec: WORK-35
#[test]
fn a_refusal_of_the_runtime_removes_everything_and_then_rejects() {
    let mut play = Play::new();
    play.provision(&spec("j", "s1"));
    play.runtime("s1", RuntimeEvent::Prepared);
    let refusal = Refusal::new(RejectionCode::HostPort, "port 8080 is taken");
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Refused(refusal))),
        ["remove s1"]
    );
    assert_eq!(play.agent.picture().assigned_jobs.len(), 1);
    let acts = play.runtime("s1", RuntimeEvent::Removed);
    assert_eq!(short(&acts), ["say s1 rejected HostPort"]);
    assert_eq!(play.agent.picture().assigned_jobs, []);
}

// spec: JOB-21, WORK-18
#[test]
fn a_failure_is_told_at_once_and_stopped_when_nothing_is_left() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    let failing = RuntimeEvent::Failing("service a: exit code 1".to_owned());
    assert_eq!(
        short(&play.runtime("s1", failing)),
        ["say s1 failed service a: exit code 1"]
    );
    let failure = Failure {
        service: "a".to_owned(),
        why: "exit code 1".to_owned(),
    };
    let acts = play.runtime("s1", RuntimeEvent::Ended(Outcome::Failed(failure)));
    assert_eq!(short(&acts), ["remove s1"]);
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Removed)),
        ["say s1 stopped"]
    );
}

// spec: WORK-18, JOB-34
#[test]
fn an_instance_that_finishes_by_itself_is_completed() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    play.runtime("s1", RuntimeEvent::Ended(Outcome::Completed));
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Removed)),
        ["say s1 completed"]
    );
}

// spec: WORK-23
#[test]
fn a_stop_is_carried_out_removed_and_reported() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    assert_eq!(short(&play.stop("j", "s1", 3_000)), ["stop s1 3s"]);
    assert_eq!(short(&play.stop("j", "s1", 1_000)), ["stop s1 1s"]);
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Ended(Outcome::Stopped))),
        ["remove s1"]
    );
    assert_eq!(play.agent.picture().assigned_jobs.len(), 1);
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Removed)),
        ["say s1 stopped"]
    );
    assert_eq!(play.agent.picture().assigned_jobs, []);
}

// spec: WORK-23
#[test]
fn a_stop_reaches_every_phase() {
    let mut play = Play::new();
    play.provision(&spec("j", "s1"));
    assert_eq!(short(&play.stop("j", "s1", 1_000)), ["remove s1"]);
    // What the preparation still says counts no longer, and nothing is removed twice.
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Ended(Outcome::Stopped))),
        Vec::<String>::new()
    );
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Prepared)),
        Vec::<String>::new()
    );
    play.provision(&spec("j", "s2"));
    assert_eq!(short(&play.stop("j", "s2", 1_000)), ["say s2 stopped"]);
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Removed)),
        ["say s1 stopped"]
    );
    // A stop of what is not here says so, and touches nothing else of the key.
    play.run(&spec("j", "s3"));
    assert_eq!(short(&play.stop("j", "s9", 1_000)), ["say s9 stopped"]);
    assert_eq!(play.state("s3"), Some(InstanceState::Running));
    assert_eq!(short(&play.stop("j", "", 1_000)), ["stop s3 1s"]);
}

// spec: WORK-22, JOB-07
#[test]
fn an_update_restarts_nothing_and_is_remembered() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    let tags = Tags::from([("show".to_owned(), "evening".to_owned())]);
    let order = Order::Update {
        key: key("j"),
        start_id: None,
        description: "new".to_owned(),
        tags: tags.clone(),
        configurations: BTreeMap::from([("a".to_owned(), "new".to_owned())]),
    };
    // It has no socket over which it could be told.
    assert_eq!(play.tell(Event::Order(order)), []);
    let (play, _) = play.restart("boot-1", &[("s1", FoundState::Running)]);
    let (spec, _) = play.agent.order_of(&"s1".into()).unwrap();
    assert_eq!((spec.description.as_str(), &spec.tags), ("new", &tags));
    assert_eq!(spec.services[0].configuration, "new");
}

// spec: WORK-25, WORK-61
#[test]
fn after_a_restart_running_instances_are_taken_on_with_everything_they_hold() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    play.provision(&StartSpec {
        defer_start: true,
        ..spec("k", "s2")
    });
    play.runtime("s2", RuntimeEvent::Prepared);
    let before = play.agent.picture();
    let found = [("s1", FoundState::Running), ("s2", FoundState::Prepared)];
    let (play, acts) = play.restart("boot-1", &found);
    assert_eq!(short(&acts), ["attach s1", "attach s2"]);
    assert_eq!(play.agent.picture(), before);
    assert_eq!(play.state("s1"), Some(InstanceState::Running));
    assert_eq!(play.state("s2"), Some(InstanceState::Prepared));
}

// spec: WORK-25
#[test]
fn after_a_restart_half_made_instances_are_removed_and_fail() {
    let fails = ["say s1 failed worker_restarted", "remove s1"];
    let mut play = Play::new();
    play.provision(&spec("j", "s1"));
    let (play, acts) = play.restart("boot-1", &[("s1", FoundState::HalfMade)]);
    assert_eq!(short(&acts), fails);
    // A second crash before the removal is done ends the same way, without a second failure.
    let (mut play, acts) = play.restart("boot-1", &[]);
    assert_eq!(short(&acts), ["remove s1"]);
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Removed)),
        ["say s1 stopped"]
    );

    let mut play = Play::new();
    play.provision(&spec("j", "s1"));
    play.runtime("s1", RuntimeEvent::Prepared);
    let (_, acts) = play.restart("boot-1", &[("s1", FoundState::HalfMade)]);
    assert_eq!(short(&acts), fails);

    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    let (_, acts) = play.restart("boot-1", &[]);
    assert_eq!(short(&acts), fails);
}

// spec: WORK-25, HARDM-02
#[test]
fn what_came_up_or_ended_while_the_worker_was_away_is_told() {
    let mut play = Play::new();
    play.provision(&spec("j", "s1"));
    play.runtime("s1", RuntimeEvent::Prepared);
    let (play, acts) = play.restart("boot-1", &[("s1", FoundState::Running)]);
    assert_eq!(short(&acts), ["attach s1", "say s1 started 1"]);
    let ended = FoundState::Ended(Outcome::Completed);
    let (mut play, acts) = play.restart("boot-1", &[("s1", ended)]);
    assert_eq!(short(&acts), ["remove s1"]);
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Removed)),
        ["say s1 completed"]
    );
}

// spec: WORK-25
#[test]
fn a_stop_under_way_goes_on_after_a_restart() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    play.stop("j", "s1", 5_000);
    let (play, acts) = play.restart("boot-1", &[("s1", FoundState::Running)]);
    assert_eq!(short(&acts), ["attach s1", "stop s1 5s"]);
    assert_eq!(play.state("s1"), Some(InstanceState::Stopping));
}

// spec: WORK-13
#[test]
fn what_carries_our_mark_and_no_record_is_removed() {
    let (_, acts) = Play::new().restart("boot-1", &[("s7", FoundState::Running)]);
    assert_eq!(short(&acts), ["remove s7"]);
}

// spec: WORK-62
#[test]
fn after_a_reboot_nothing_is_told_of_what_ran_before() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    let (play, acts) = play.restart("boot-2", &[]);
    assert_eq!(short(&acts), ["remove s1"]);
    assert_eq!(play.state("s1"), None);
    // Still so after another crash.
    let (mut play, _) = play.restart("boot-2", &[]);
    assert_eq!(play.state("s1"), None);
    assert_eq!(
        short(&play.runtime("s1", RuntimeEvent::Removed)),
        Vec::<String>::new()
    );
    assert_eq!(play.agent.picture().assigned_jobs, []);
}

// spec: WORK-60
#[test]
fn reports_survive_a_restart_and_their_ids_never_repeat() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    play.tell(Event::Acked(1));
    let waiting = |play: &Play| -> Vec<u64> {
        play.agent
            .outbox()
            .waiting()
            .map(|report| report.id)
            .collect()
    };
    assert_eq!(waiting(&play), [2]);
    let (mut play, _) = play.restart("boot-1", &[("s1", FoundState::Running)]);
    assert_eq!(waiting(&play), [2]);
    play.tell(Event::Acked(2));
    let (mut play, _) = play.restart("boot-1", &[("s1", FoundState::Running)]);
    assert_eq!(waiting(&play), Vec::<u64>::new());
    play.stop("j", "s9", 0);
    assert_eq!(waiting(&play), [3]);
}

// spec: WORK-25
#[test]
fn the_snapshot_is_worth_as_much_as_the_journal() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    play.provision(&spec("k", "s2"));
    play.stop("j", "s1", 5_000);
    play.tell(Event::Acked(1));
    play.tell(Event::Order(Order::Tags(Tags::from([(
        "a".to_owned(),
        "b".to_owned(),
    )]))));
    let from = |journal: Vec<Record>| {
        let (play, _) = Play::recovered(journal, "boot-1");
        let agent = play.agent;
        (
            agent.picture(),
            agent.instances().collect::<Vec<_>>(),
            agent.snapshot(),
        )
    };
    assert_eq!(from(play.agent.snapshot()), from(play.journal));
}

// spec: WORK-63
#[test]
fn without_its_engine_a_worker_says_so_and_rejects_starts() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    assert_eq!(play.tell(Event::Engine(None)), []);
    assert_eq!(play.agent.picture().runtime, "unavailable");
    assert_eq!(
        short(&play.provision(&spec("k", "s2"))),
        ["say s2 rejected Runtime"]
    );
    assert_eq!(play.state("s1"), Some(InstanceState::Running));
}

fn with_free(gib: u64) -> Event {
    let mut machine = machine();
    machine.disks[0].free = gib << 30;
    Event::Machine(Box::new(machine))
}

// spec: WORK-30, WORK-36
#[test]
fn a_worker_whose_disk_is_nearly_full_says_so_and_rejects_until_a_fifth_more_is_free() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    let mut next = 1;
    for (free, low) in [
        (10, false),
        (9, true),
        (10, true),
        (11, true),
        (12, false),
        (10, false),
    ] {
        play.tell(with_free(free));
        assert_eq!(play.agent.picture().disk_low, low, "{free} GiB of 100");
        next += 1;
        let start_id = format!("s{next}");
        let acts = short(&play.provision(&spec(&format!("k{next}"), &start_id)));
        let rejected = acts == [format!("say {start_id} rejected Disk")];
        assert_eq!(rejected, low, "{acts:?}");
    }
    assert_eq!(play.state("s1"), Some(InstanceState::Running));
    // It is known before the first hello.
    let mut full = machine();
    full.disks[0].free = 1 << 30;
    let (probe, mut out) = (Box::new(FakeProbe::default()), Effects::default());
    let agent = Agent::recover(settings(), Vec::new(), "boot-1", full, probe, &mut out);
    assert!(agent.picture().disk_low);
}

// spec: WORK-65
#[test]
fn a_full_state_directory_rejects_starts_and_keeps_reports_in_memory() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    play.agent.set_journal(false);
    assert_eq!(
        short(&play.provision(&spec("k", "s2"))),
        ["say s2 rejected Disk"]
    );
    assert_eq!(play.state("s1"), Some(InstanceState::Running));
    assert!(
        play.agent
            .outbox()
            .waiting()
            .any(|report| report.start_id == "s2".into())
    );
    // An acceptance that could not be written is taken back before anything is done.
    play.agent.set_journal(true);
    play.provision(&spec("m", "s3"));
    let mut out = Effects::default();
    play.agent.undo_unwritten(&"s3".into(), &mut out);
    assert_eq!(short(&out.act), ["say s3 rejected Disk"]);
    assert_eq!(play.agent.picture().assigned_jobs.len(), 1);
}

// spec: LOCAL-16, MNODE-14
#[test]
fn a_shutdown_stops_everything_and_leaves_when_nothing_is_left() {
    let mut play = Play::new();
    play.run(&spec("j", "s1"));
    let order = Order::Shutdown {
        grace: Millis(5_000),
        park: true,
    };
    assert_eq!(short(&play.tell(Event::Order(order))), ["stop s1 5s"]);
    assert_eq!(
        short(&play.provision(&spec("k", "s2"))),
        ["say s2 rejected Cordoned"]
    );
    play.runtime("s1", RuntimeEvent::Ended(Outcome::Stopped));
    let acts = play.runtime("s1", RuntimeEvent::Removed);
    assert_eq!(short(&acts), ["say s1 stopped", "leave park=true"]);
}

// spec: PREF-01, PREF-06
#[test]
fn a_batch_is_begun_once_and_answered_once_however_often_it_is_ordered() {
    let mut play = Play::new();
    let order = || {
        Event::Order(Order::Prefetch {
            batch_id: "b1".to_owned(),
            image_refs: vec!["x:1".to_owned()],
        })
    };
    let done = || Event::Prefetched {
        batch_id: "b1".to_owned(),
        results: Vec::new(),
    };
    assert_eq!(short(&play.tell(order())), ["prefetch b1"]);
    // The Manager repeats it after a hello.
    assert!(play.tell(order()).is_empty());
    assert_eq!(short(&play.tell(done())), ["say prefetched b1"]);
    assert!(play.tell(order()).is_empty());
    assert!(play.tell(done()).is_empty());
    // After a restart the answer waits, or the batch begins anew.
    let (mut play, _) = play.restart("boot-1", &[]);
    assert!(play.tell(order()).is_empty());
    let mut forgetful = Play::new();
    forgetful.tell(order());
    let (mut forgetful, _) = forgetful.restart("boot-1", &[]);
    assert_eq!(short(&forgetful.tell(order())), ["prefetch b1"]);
}

// spec: JOB-07
#[test]
fn a_changed_configuration_is_handed_to_a_job_that_has_a_socket() {
    let mut play = Play::new();
    play.run(&StartSpec {
        job_socket: true,
        ..spec("j", "s1")
    });
    let mut update = |text: &str| {
        let order = Order::Update {
            key: key("j"),
            start_id: None,
            description: String::new(),
            tags: Tags::new(),
            configurations: BTreeMap::from([("a".to_owned(), text.to_owned())]),
        };
        short(&play.tell(Event::Order(order)))
    };
    assert_eq!(update("one"), ["configure s1"]);
    assert!(update("one").is_empty());
    assert_eq!(update("two"), ["configure s1"]);
}
