//! Migrations between the Manager and a job, over starts, restarts and repeats.

use greenroom_types::job::HostPort;
use greenroom_types::node::RejectionCode;

use super::*;
use crate::agent::tests::{Play, key, short, spec};
use crate::agent::{Event, FoundState, Order, RuntimeEvent};
use crate::handover::Alarm;
use crate::order::StartSpec;

const AT: At = At {
    connection: 1,
    id: 2,
};

fn cooperative(start_id: &str) -> StartSpec {
    StartSpec {
        job_socket: true,
        ..spec("j", start_id)
    }
}

fn target(start_id: &str) -> StartSpec {
    StartSpec {
        migration_id: Some("m".into()),
        migration_state: Some(b"state".into()),
        ..cooperative(start_id)
    }
}

fn step(play: &mut Play, migration_id: &str, step: Step) -> Vec<String> {
    short(&play.tell(Event::Order(Order::Migration {
        key: key("j"),
        start_id: None,
        migration_id: migration_id.into(),
        step,
    })))
}

fn job(play: &mut Play, said: JobSaid) -> Vec<String> {
    short(&play.runtime("s1", RuntimeEvent::Job(said)))
}

fn speaks(play: &mut Play, named: Option<&str>) -> Vec<String> {
    job(play, JobSaid::Speaker(named.map(Into::into)))
}

fn ready(migration_id: &str) -> JobSaid {
    JobSaid::Ready {
        at: AT,
        migration_id: migration_id.into(),
        payload: b"r".into(),
    }
}

fn answer(to: u64, answer: Answer) -> JobSaid {
    JobSaid::Answer {
        at: AT,
        to: Some(to),
        answer,
    }
}

fn stopped() -> Answer {
    Answer::StoppedOutput(b"n".into())
}

// spec: MGR-10
#[test]
fn what_a_target_says_before_it_is_told_running_waits_for_that() {
    let mut play = Play::new();
    play.provision(&target("s1"));
    play.runtime("s1", RuntimeEvent::Prepared);
    speaks(&mut play, None);
    assert_eq!(job(&mut play, ready("m")), Vec::<String>::new());
    // It waits over a restart of the worker, too.
    let (mut play, acts) = play.restart("boot-1", &[("s1", FoundState::Running)]);
    let told = short(&acts);
    let started = told
        .iter()
        .position(|act| act.starts_with("say s1 started"));
    let ready_at = told.iter().position(|act| act == "say s1 m ready");
    assert!(started < ready_at && started.is_some(), "{told:?}");
    // Told again by the job, it is not told again to the Manager.
    speaks(&mut play, Some("m"));
    assert_eq!(job(&mut play, ready("m")), Vec::<String>::new());
}

// spec: SOCK-08
#[test]
fn who_is_no_target_of_a_migration_cannot_be_ready_for_it() {
    let mut play = Play::new();
    play.run(&cooperative("s1"));
    let refused = ["job s1 refuse wrong_migration"];
    assert_eq!(job(&mut play, ready("m")), refused);
    let failed = JobSaid::Failed {
        at: AT,
        migration_id: "m".into(),
        reason: String::new(),
    };
    assert_eq!(job(&mut play, failed), refused);
    let mut other = Play::new();
    other.run(&target("s1"));
    assert_eq!(job(&mut other, ready("other")), refused);
    // A target by another strategy than handover has nothing to be ready for (JOB-17).
    let plain = StartSpec {
        migration_state: None,
        ..target("s1")
    };
    let mut plainly = Play::new();
    plainly.run(&plain);
    assert_eq!(job(&mut plainly, ready("m")), refused);
}

// spec: HARDM-43, SOCK-12, SOCK-19
#[test]
fn a_worker_that_restarts_asks_the_open_step_again_and_passes_its_answer_on_once() {
    let mut play = Play::new();
    play.run(&cooperative("s1"));
    speaks(&mut play, None);
    let asked = step(&mut play, "m", Step::StopOutput(b"k".into()));
    assert!(asked.contains(&"job s1 ask 1 m".to_owned()), "{asked:?}");
    let (mut play, acts) = play.restart("boot-1", &[("s1", FoundState::Running)]);
    assert!(short(&acts).contains(&"remind 5000".to_owned()), "{acts:?}");
    assert_eq!(play.agent.migration_of(&"s1".into()), Some("m".into()));
    let asked = speaks(&mut play, Some("m"));
    assert_eq!(asked[0], "job s1 ask 1 m");
    let told = job(&mut play, answer(1, stopped()));
    assert!(told.contains(&"say s1 m stopped".to_owned()), "{told:?}");
    assert_eq!(job(&mut play, answer(1, stopped())), Vec::<String>::new());
    // And what was answered is not forgotten by another restart.
    let (mut play, _) = play.restart("boot-1", &[("s1", FoundState::Running)]);
    let again = step(&mut play, "m", Step::StopOutput(b"k".into()));
    assert_eq!(again, Vec::<String>::new());
}

// spec: MGR-08
#[test]
fn another_migration_is_told_off_unless_the_first_binds_nobody() {
    let mut play = Play::new();
    play.run(&cooperative("s1"));
    speaks(&mut play, None);
    step(&mut play, "a", Step::GetState);
    job(&mut play, answer(1, Answer::State(b"s".into())));
    // Whoever asked for the state may be gone: the job is told, and the new one goes on.
    let acts = step(&mut play, "b", Step::StopOutput(b"k".into()));
    let asks: Vec<&String> = acts.iter().filter(|act| act.contains(" ask ")).collect();
    assert_eq!(asks, ["job s1 ask 2 a", "job s1 ask 3 b"]);
    let told = step(&mut play, "c", Step::GetState);
    assert_eq!(told[0], "say s1 c aborted source other_migration");
    let told = step(&mut play, "a", Step::StopOutput(b"k".into()));
    assert_eq!(told[0], "say s1 a aborted source other_migration");
    let told = job(&mut play, answer(3, stopped()));
    assert!(told.contains(&"say s1 b stopped".to_owned()), "{told:?}");
}

// spec: MGR-06
#[test]
fn an_abort_counts_for_its_own_migration_or_for_any() {
    let abort = || Step::Abort("why".to_owned());
    for (id, heeded) in [("other", false), ("m", true), ("", true)] {
        let mut play = Play::new();
        play.run(&cooperative("s1"));
        speaks(&mut play, None);
        step(&mut play, "m", Step::StopOutput(b"k".into()));
        let acts = step(&mut play, id, abort());
        assert_eq!(acts.contains(&"job s1 ask 2 m".to_owned()), heeded, "{id}");
    }
    let mut idle = Play::new();
    idle.run(&cooperative("s1"));
    assert_eq!(step(&mut idle, "", abort()), Vec::<String>::new());
}

// spec: MGR-07, MGR-09
#[test]
fn what_is_not_here_or_no_target_says_so() {
    let mut play = Play::new();
    let told = step(&mut play, "m", Step::GetState);
    assert_eq!(told[0], "say  m aborted source no_instance");
    play.run(&cooperative("s1"));
    let told = step(&mut play, "m", Step::Begin(b"n".into()));
    assert_eq!(told[0], "say s1 m aborted target wrong_migration");
}

// spec: MGR-09
#[test]
fn an_instance_that_dies_gives_its_migration_up() {
    let mut play = Play::new();
    play.run(&target("s1"));
    let told = short(&play.runtime("s1", RuntimeEvent::Failing("broke".to_owned())));
    assert!(
        told.contains(&"say s1 m aborted target instance_died".to_owned()),
        "{told:?}"
    );
    // One that is stopped by somebody's will is in no migration any more.
    let mut play = Play::new();
    play.run(&target("s1"));
    play.stop("j", "s1", 1_000);
    assert_eq!(play.agent.migration_of(&"s1".into()), None);
}

// spec: MGR-11
#[test]
fn signals_are_few_and_are_given_up_when_they_are_old() {
    let mut play = Play::new();
    play.run(&cooperative("s1"));
    speaks(&mut play, None);
    step(&mut play, "m", Step::StopOutput(b"k".into()));
    let waiting = |play: &Play| -> usize {
        let reports = play.agent.outbox().waiting();
        reports
            .filter(|report| matches!(report.said, Said::Migration { .. }))
            .count()
    };
    for _ in 0..20 {
        step(&mut play, "b", Step::GetState);
    }
    assert_eq!(waiting(&play), 16);
    let newest = play.agent.outbox().next_id() - 1;
    play.tell(Event::Reminder(Reminder::Forget { report: newest }));
    assert_eq!(waiting(&play), 15);
    let (play, _) = play.restart("boot-1", &[("s1", FoundState::Running)]);
    assert_eq!(waiting(&play), 15);
}

// spec: SOCK-10
#[test]
fn an_alarm_of_a_migration_that_is_over_means_nothing() {
    let mut play = Play::new();
    play.run(&cooperative("s1"));
    speaks(&mut play, None);
    step(&mut play, "m", Step::StopOutput(b"k".into()));
    let alarm = |migration_id: &str| {
        Event::Reminder(Reminder::Handover {
            start_id: "s1".into(),
            migration_id: migration_id.into(),
            alarm: Alarm::Step(1),
        })
    };
    assert_eq!(short(&play.tell(alarm("former"))), Vec::<String>::new());
    let told = short(&play.tell(alarm("m")));
    assert!(told.contains(&"say s1 m aborted source step_timeout".to_owned()));
}

// spec: MIGR-08
#[test]
fn a_target_whose_source_told_a_state_that_is_lost_is_not_started() {
    let mut play = Play::new();
    let lost = StartSpec {
        migration_state: None,
        migration_state_lost: true,
        ..target("s1")
    };
    play.provision(&lost);
    let report = play.agent.outbox().waiting().last().cloned().unwrap();
    let Said::Rejected { code, detail } = report.said else {
        panic!("{report:?}");
    };
    assert_eq!(code, RejectionCode::Migration);
    assert!(detail.contains("lost"), "{detail}");
}

// spec: MGR-05
#[test]
fn the_state_of_a_source_is_forgotten_once_its_target_has_taken_over() {
    let mut play = Play::new();
    play.run(&target("s1"));
    speaks(&mut play, None);
    job(&mut play, ready("m"));
    let kept = |play: &Play| {
        let text = serde_json::to_string(&play.agent.snapshot()).unwrap();
        text.contains(&Payload::from(b"state").to_base64())
    };
    assert!(kept(&play));
    step(&mut play, "m", Step::Begin(b"n".into()));
    job(&mut play, answer(1, Answer::Applied(Payload::default())));
    assert!(!kept(&play));
    // The Manager may still take it back, also after a restart of the worker.
    let (mut play, _) = play.restart("boot-1", &[("s1", FoundState::Running)]);
    assert!(!kept(&play));
    speaks(&mut play, Some("m"));
    let asked = step(&mut play, "m", Step::Abort("why".to_owned()));
    assert_eq!(asked[0], "job s1 ask 1 m");
}

// spec: MGR-13
#[test]
fn source_and_prepared_target_are_on_one_node_only_if_both_fit() {
    let needs = |start_id: &str, capacity: f64, role: &str| {
        let mut spec = spec("j", start_id);
        spec.key.role = role.into();
        spec.requirements.required_capacity = capacity;
        spec.services[0].parameters.port_mappings[0].host_port = HostPort::Specific(5_000);
        spec
    };
    let mut play = Play::new();
    play.run(&needs("s1", 3.0, "primary"));
    let mut target = needs("s2", 2.0, "primary@01234567");
    target.defer_start = true;
    let port = |spec: &mut StartSpec, number: u32| {
        spec.services[0].parameters.port_mappings[0].host_port = HostPort::Specific(number);
    };
    // Neither the CPUs nor the port of the source are its own.
    assert_eq!(
        short(&play.provision(&target))[0],
        "say s2 rejected Capacity"
    );
    target.start_id = "s3".into();
    target.requirements.required_capacity = 0.5;
    assert_eq!(
        short(&play.provision(&target))[0],
        "say s3 rejected HostPort"
    );
    target.start_id = "s4".into();
    port(&mut target, 5_001);
    assert_eq!(short(&play.provision(&target))[0], "say s4 accepted");
    play.runtime("s4", RuntimeEvent::Prepared);
    // What is prepared holds as much as what runs.
    let mut other = needs("s5", 0.5, "backup");
    port(&mut other, 5_001);
    assert_eq!(
        short(&play.provision(&other))[0],
        "say s5 rejected HostPort"
    );
    other.start_id = "s6".into();
    port(&mut other, 5_002);
    other.requirements.required_capacity = 1.0;
    assert_eq!(
        short(&play.provision(&other))[0],
        "say s6 rejected Capacity"
    );
}
