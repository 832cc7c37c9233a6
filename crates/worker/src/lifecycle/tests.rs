//! Rules of the life of an instance, each played on a chain of services in virtual time.

use greenroom_types::job::ServiceRestart;

use super::*;

/// `name` or `name>on,on`, with `!` at the end of a name that has a health check.
fn rule(text: &str) -> ServiceRule {
    let (name, on) = text.split_once('>').unwrap_or((text, ""));
    ServiceRule {
        name: name.trim_end_matches('!').to_owned(),
        depends_on: on
            .split(',')
            .filter(|on| !on.is_empty())
            .map(str::to_owned)
            .collect(),
        restart: RestartRule::default(),
        has_health: name.ends_with('!'),
    }
}

struct Play {
    machine: Lifecycle,
    now: Mono,
}

impl Play {
    fn of(rules: &[&str]) -> Self {
        Self {
            machine: Lifecycle::new(rules.iter().map(|text| rule(text))),
            now: Mono(0),
        }
    }
    fn restart(mut self, name: &str, when: ServiceRestart) -> Self {
        self.machine
            .services
            .get_mut(name)
            .unwrap()
            .rule
            .restart
            .when = when;
        self
    }
    /// Without what is told of readiness, which has a test of its own.
    fn tell(&mut self, input: Input<'_>) -> Vec<Step> {
        let mut out = self.tell_all(input);
        out.retain(|step| !matches!(step, Step::Ready(_)));
        out
    }
    fn tell_all(&mut self, input: Input<'_>) -> Vec<Step> {
        let mut out = Vec::new();
        self.machine.handle(self.now, input, &mut out);
        out
    }
    fn at(&mut self, ms: u64) -> Vec<Step> {
        self.now = Mono(ms);
        self.tell(Input::Tick)
    }
    fn exit(&mut self, name: &str, code: i32) -> Vec<Step> {
        self.tell(Input::Exited(name, Exit::Code(code)))
    }
    /// Starts everything at once, whatever the order.
    fn running(mut self) -> Self {
        let mut due = self.tell(Input::Start);
        while !due.is_empty() {
            due = due
                .iter()
                .filter_map(|step| match step {
                    Step::Launch(name) => Some(name.clone()),
                    _ => None,
                })
                .flat_map(|name| {
                    let mut more = self.tell(Input::Launched(&name));
                    more.extend(self.tell(Input::Healthy(&name)));
                    more
                })
                .collect();
        }
        assert_eq!(self.machine.phase(), Phase::Running);
        self
    }
}

fn launch(name: &str) -> Step {
    Step::Launch(name.to_owned())
}
fn terminate(name: &str) -> Step {
    Step::Terminate(name.to_owned())
}
fn kill(name: &str) -> Step {
    Step::Kill(name.to_owned())
}
fn started(name: &str) -> Step {
    Step::ServiceStarted(name.to_owned())
}
fn failed(service: &str, why: &str) -> Failure {
    Failure {
        service: service.to_owned(),
        why: why.to_owned(),
    }
}

// spec: WORK-10, WORK-19
#[test]
fn services_start_after_what_they_depend_on() {
    let mut play = Play::of(&["web>db,cache", "cache", "db"]);
    assert_eq!(play.tell(Input::Start), [launch("cache"), launch("db")]);
    assert_eq!(play.tell(Input::Launched("db")), [started("db")]);
    assert_eq!(
        play.tell(Input::Launched("cache")),
        [started("cache"), launch("web")]
    );
    assert_eq!(play.machine.phase(), Phase::Starting);
    assert_eq!(
        play.tell(Input::Launched("web")),
        [started("web"), Step::Running]
    );
}

// spec: WORK-19
#[test]
fn a_dependency_with_a_check_must_be_healthy_within_a_minute() {
    let mut play = Play::of(&["web>db", "db!"]);
    play.tell(Input::Start);
    assert_eq!(play.tell(Input::Launched("db")), [started("db")]);
    assert_eq!(play.machine.next_deadline(), Some(Mono(60_000)));
    assert_eq!(play.tell(Input::Healthy("db")), [launch("web")]);

    let mut play = Play::of(&["web>db", "db!"]);
    play.tell(Input::Start);
    play.tell(Input::Launched("db"));
    assert_eq!(play.at(59_999), []);
    let failure = failed("db", "it was not healthy within 60s");
    assert_eq!(
        play.at(60_000),
        [Step::Failing(failure.clone()), terminate("db")]
    );
    assert_eq!(
        play.exit("db", 143),
        [Step::Ended(Outcome::Failed(failure))]
    );
}

// spec: WORK-19
#[test]
fn a_dependency_that_fails_first_fails_the_start() {
    let mut play = Play::of(&["web>db", "db!"]);
    play.tell(Input::Start);
    play.tell(Input::Launched("db"));
    let failure = failed("db", "exit code 3");
    assert_eq!(
        play.exit("db", 3),
        [
            Step::Failing(failure.clone()),
            Step::Ended(Outcome::Failed(failure))
        ]
    );
}

// spec: WORK-18
#[test]
fn a_service_beyond_its_policy_stops_the_rest_and_is_named() {
    let mut play = Play::of(&["a", "b"]).running();
    let failure = failed("a", "exit code 7");
    assert_eq!(
        play.exit("a", 7),
        [Step::Failing(failure.clone()), terminate("b")]
    );
    assert_eq!(play.exit("b", 0), [Step::Ended(Outcome::Failed(failure))]);
}

// spec: WORK-18
#[test]
fn a_restarted_service_waits_its_time_and_leaves_the_others_alone() {
    let mut play = Play::of(&["a", "b>a"])
        .restart("a", ServiceRestart::OnFailure)
        .running();
    play.at(5_000);
    assert_eq!(
        play.exit("a", 1),
        [Step::ServiceRestarting("a".to_owned(), Exit::Code(1))]
    );
    assert_eq!(play.machine.next_deadline(), Some(Mono(6_000)));
    assert_eq!(play.at(5_999), []);
    assert_eq!(play.at(6_000), [launch("a")]);
    assert_eq!(play.tell(Input::Launched("a")), [started("a")]);
    assert_eq!(play.machine.phase(), Phase::Running);
}

// spec: WORK-18, JOB-34
#[test]
fn all_services_at_exit_0_complete_the_instance() {
    let mut play = Play::of(&["a", "b"]).running();
    assert_eq!(play.exit("a", 0), []);
    assert_eq!(play.exit("b", 0), [Step::Ended(Outcome::Completed)]);
}

// spec: WORK-23
#[test]
fn stop_goes_from_dependents_to_dependencies_within_one_grace() {
    let mut play = Play::of(&["web>app", "app>db", "db"]).running();
    assert_eq!(play.tell(Input::Stop(Millis(10_000))), [terminate("web")]);
    play.now = Mono(4_000);
    assert_eq!(play.exit("web", 0), [terminate("app")]);
    // One grace for all: it began with the first signal.
    assert_eq!(play.at(9_999), []);
    assert_eq!(play.at(10_000), [kill("app"), kill("db")]);
    assert_eq!(play.tell(Input::Exited("app", Exit::Signal(9))), []);
    assert_eq!(
        play.tell(Input::Exited("db", Exit::Signal(9))),
        [Step::Ended(Outcome::Stopped)]
    );
}

// spec: WORK-23
#[test]
fn a_middle_service_that_is_over_does_not_let_its_dependency_go_early() {
    let mut play = Play::of(&["web>app", "app>db", "db"]).running();
    play.exit("app", 0);
    assert_eq!(play.tell(Input::Stop(Millis(10_000))), [terminate("web")]);
    assert_eq!(play.exit("web", 0), [terminate("db")]);
}

// spec: WORK-23
#[test]
fn a_kill_that_is_not_carried_out_is_repeated_and_told() {
    let mut play = Play::of(&["a"]).running();
    assert_eq!(play.tell(Input::Stop(Millis(0))), [kill("a")]);
    assert_eq!(play.at(9_999), []);
    let again = [Step::Stuck("a".to_owned()), kill("a")];
    assert_eq!(play.at(10_000), again);
    assert_eq!(play.at(14_999), []);
    assert_eq!(play.at(15_000), again);
}

// spec: JOB-23
#[test]
fn a_second_stop_shortens_the_grace_and_never_lengthens_it() {
    let mut play = Play::of(&["a"]).running();
    play.tell(Input::Stop(Millis(10_000)));
    assert_eq!(play.tell(Input::Stop(Millis(60_000))), []);
    assert_eq!(play.machine.next_deadline(), Some(Mono(10_000)));
    play.tell(Input::Stop(Millis(2_000)));
    assert_eq!(play.at(2_000), [kill("a")]);
}

#[test]
fn a_stop_during_the_start_starts_nothing_more() {
    let mut play = Play::of(&["web>db", "db"]);
    play.tell(Input::Start);
    assert_eq!(play.tell(Input::Stop(Millis(1_000))), [terminate("db")]);
    assert_eq!(play.tell(Input::Launched("db")), [started("db")]);
    assert_eq!(play.exit("db", 0), [Step::Ended(Outcome::Stopped)]);
}

#[test]
fn a_service_that_cannot_be_started_fails_the_instance() {
    let mut play = Play::of(&["a"]);
    play.tell(Input::Start);
    let failure = failed("a", "no such program");
    assert_eq!(
        play.tell(Input::NotLaunched("a", "no such program".to_owned())),
        [
            Step::Failing(failure.clone()),
            Step::Ended(Outcome::Failed(failure))
        ]
    );
}

// spec: WORK-63
#[test]
fn services_that_ended_while_nobody_looked_are_judged_by_their_policy() {
    let mut rules = vec![rule("a"), rule("b")];
    rules[0].restart.when = ServiceRestart::Always;
    let mut play = Play {
        machine: Lifecycle::resume(rules),
        now: Mono(100),
    };
    assert_eq!(
        play.exit("a", 0),
        [Step::ServiceRestarting("a".to_owned(), Exit::Code(0))]
    );
    assert_eq!(play.at(1_100), [launch("a")]);
    play.tell(Input::Launched("a"));
    let failing = play.exit("b", 2);
    assert_eq!(failing[0], Step::Failing(failed("b", "exit code 2")));
}

// spec: WORK-43
#[test]
fn it_is_ready_while_all_its_services_run_and_are_healthy_where_they_have_a_check() {
    let readiness = |steps: Vec<Step>| -> Vec<bool> {
        let told = steps.into_iter().filter_map(|step| match step {
            Step::Ready(ready) => Some(ready),
            _ => None,
        });
        told.collect()
    };
    let mut play = Play::of(&["a!", "b"]).restart("b", ServiceRestart::Always);
    let mut steps = play.tell_all(Input::Start);
    for name in ["a", "b"] {
        steps.extend(play.tell_all(Input::Launched(name)));
    }
    assert!(steps.contains(&Step::Running));
    assert_eq!(readiness(steps), [true; 0]);
    assert_eq!(readiness(play.tell_all(Input::Healthy("a"))), [true]);
    assert_eq!(readiness(play.tell_all(Input::Healthy("a"))), [true; 0]);
    assert_eq!(
        readiness(play.tell_all(Input::Exited("b", Exit::Code(1)))),
        [false]
    );
    play.at(60_000);
    assert_eq!(readiness(play.tell_all(Input::Launched("b"))), [true]);
    let steps = play.tell_all(Input::Stop(Millis(1_000)));
    let told = steps.iter().position(|step| *step == Step::Ready(false));
    assert!(told.is_some(), "{steps:?}");

    // Found running, what has a check must show it again.
    let mut machine = Lifecycle::resume(["a!", "b"].map(rule));
    let mut out = Vec::new();
    machine.handle(Mono(0), Input::Tick, &mut out);
    assert_eq!(out, []);
    machine.handle(Mono(0), Input::Healthy("a"), &mut out);
    assert_eq!(out, [Step::Ready(true)]);
}
