//! Given these inputs, exactly these outputs.

use super::*;

const TERM: Millis = Millis(30_000);
const AT: At = At {
    connection: 1,
    id: 9,
};

/// A side and what it said last, in short words.
struct Play(Handover);

impl Play {
    fn source() -> Self {
        Self(Handover::source("m".into(), 0, true))
    }

    fn target() -> Self {
        let mut play = Self(Handover::target("m".into()));
        play.speaker("");
        play
    }

    fn take(&mut self, input: Input) -> Vec<String> {
        let mut out = Vec::new();
        self.0.handle(TERM, input, &mut out);
        out.iter().map(word).collect()
    }

    fn step(&mut self, step: Step) -> Vec<String> {
        self.take(Input::Step(step))
    }

    fn answer(&mut self, to: u64, answer: Answer) -> Vec<String> {
        let to = Some(to);
        self.take(Input::Answer { at: AT, to, answer })
    }

    fn ready(&mut self) -> Vec<String> {
        let payload = b"r".into();
        self.take(Input::Ready { at: AT, payload })
    }

    fn speaker(&mut self, named: &str) -> Vec<String> {
        let named = Some(MigrationId::from(named)).filter(|id| !id.is_empty());
        self.take(Input::Speaker(named))
    }

    fn alarm(&mut self, alarm: Alarm) -> Vec<String> {
        self.take(Input::Alarm(alarm))
    }

    /// Ends as by kill -9 of the worker and comes back.
    fn restart(self) -> (Self, Vec<String>) {
        let text = serde_json::to_string(&self.0).unwrap();
        let mut side: Handover = serde_json::from_str(&text).unwrap();
        let mut out = Vec::new();
        side.resume(&mut out);
        (Self(side), out.iter().map(word).collect())
    }
}

fn text(payload: &Payload) -> String {
    String::from_utf8_lossy(payload.bytes()).into_owned()
}

fn word(output: &Output) -> String {
    match output {
        Output::Ask { number, request } => match request {
            Request::GetState => format!("{number} getState"),
            Request::StopOutput(at) => format!("{number} stopOutput {}", text(at)),
            Request::Begin(at) => format!("{number} begin {}", text(at)),
            Request::Abort(reason) => format!("{number} abort {reason}"),
        },
        Output::Tell(signal) => match signal {
            MigrationSignal::State(it) => format!("tell state {}", text(it)),
            MigrationSignal::Refused(reason) => format!("tell refused {reason}"),
            MigrationSignal::TargetReady(it) => format!("tell ready {}", text(it)),
            MigrationSignal::SourceStoppedOutput(it) => format!("tell stopped {}", text(it)),
            MigrationSignal::TargetApplied(it) => format!("tell applied {}", text(it)),
            MigrationSignal::Aborted { side, reason } => format!("tell aborted {side} {reason}"),
        },
        Output::Refuse { code, expected, .. } => format!("refuse {code}, expected {expected}"),
        Output::Alarm(Alarm::Step(number), after) => format!("step alarm {number} in {}", after.0),
        Output::Alarm(Alarm::Away(number), after) => format!("away alarm {number} in {}", after.0),
    }
}

fn stop_output() -> Step {
    Step::StopOutput(b"k".into())
}

fn begin() -> Step {
    Step::Begin(b"n".into())
}

fn abort() -> Step {
    Step::Abort("why".to_owned())
}

const NOTHING: [&str; 0] = [];

// spec: SOCK-07, MGR-01, MGR-02
#[test]
fn a_source_tells_its_state_and_ends_its_output() {
    let mut play = Play::source();
    let asked = play.step(Step::GetState);
    assert_eq!(asked, ["1 getState", "step alarm 1 in 30000"]);
    let told = play.answer(1, Answer::State(b"s".into()));
    assert_eq!(told, ["tell state s"]);
    let asked = play.step(stop_output());
    assert_eq!(asked, ["2 stopOutput k", "step alarm 2 in 30000"]);
    let told = play.answer(2, Answer::StoppedOutput(b"n".into()));
    assert_eq!(told, ["tell stopped n"]);
    // Nothing more is waited for; the alarms of answered steps mean nothing.
    assert_eq!(play.alarm(Alarm::Step(2)), NOTHING);
    assert_eq!(play.take(Input::Silent), NOTHING);
}

// spec: SOCK-07, SOCK-11
#[test]
fn the_state_need_not_be_asked_for_and_may_be_refused() {
    let mut play = Play::source();
    assert_eq!(play.step(stop_output())[0], "1 stopOutput k");
    let mut play = Play::source();
    play.step(Step::GetState);
    let told = play.answer(1, Answer::Refuse("busy".to_owned()));
    assert_eq!(told, ["tell refused busy"]);
    assert!(!play.0.is_binding() && !play.0.is_under_way());
}

// spec: SOCK-07, SOCK-11, MGR-03, MGR-04
#[test]
fn a_target_says_that_it_is_ready_once_and_takes_over() {
    let mut play = Play::target();
    assert_eq!(play.ready(), ["tell ready r"]);
    assert_eq!(play.ready(), NOTHING, "at most once");
    let asked = play.step(begin());
    assert_eq!(asked, ["1 begin n", "step alarm 1 in 30000"]);
    assert!(play.0.is_binding());
    let told = play.answer(1, Answer::Applied(Payload::default()));
    assert_eq!(told, ["tell applied "]);
    assert!(!play.0.is_binding() && !play.0.is_under_way());
}

// spec: SOCK-11
#[test]
fn what_is_out_of_order_is_refused_and_not_passed_on() {
    let mut play = Play::source();
    play.step(Step::GetState);
    let refused = play.answer(1, Answer::StoppedOutput(Payload::default()));
    assert_eq!(refused, ["refuse wrong_step, expected state"]);
    let never_asked = Input::Answer {
        at: AT,
        to: None,
        answer: Answer::State(Payload::default()),
    };
    let refused = play.take(never_asked);
    assert_eq!(refused, ["refuse wrong_step, expected state"]);
    assert_eq!(play.ready(), ["refuse wrong_migration, expected state"]);
    // The right answer is still good.
    let told = play.answer(1, Answer::State(b"s".into()));
    assert_eq!(told, ["tell state s"]);
    // The Manager's side is held to the order as well.
    assert_eq!(play.step(begin()), ["tell aborted source wrong_step"]);
    let mut target = Play::target();
    assert_eq!(target.step(begin()), ["tell aborted target wrong_step"]);
    assert_eq!(
        target.step(Step::GetState),
        ["tell aborted target wrong_step"]
    );
}

// spec: SOCK-10, MGR-09, HARDM-41
#[test]
fn a_step_that_is_not_answered_is_given_up_and_its_late_answer_dropped() {
    let mut play = Play::source();
    assert_eq!(play.step(stop_output())[1], "step alarm 1 in 30000");
    assert_eq!(
        play.alarm(Alarm::Step(1)),
        [
            "tell aborted source step_timeout",
            "2 abort step_timeout",
            "step alarm 2 in 30000"
        ]
    );
    let late = Answer::StoppedOutput(b"n".into());
    assert_eq!(play.answer(1, late), NOTHING);
    assert_eq!(play.answer(2, Answer::Resumed), NOTHING);
    assert!(!play.0.is_under_way());
    // Then the Manager's own abort has nothing left to do.
    assert_eq!(play.step(abort()), NOTHING);
}

// spec: SOCK-10
#[test]
fn working_extends_a_step_once_by_its_length() {
    let mut play = Play::target();
    play.ready();
    play.step(begin());
    assert_eq!(play.answer(1, Answer::Working), NOTHING);
    assert_eq!(play.answer(1, Answer::Working), NOTHING);
    assert_eq!(play.alarm(Alarm::Step(1)), ["step alarm 2 in 30000"]);
    assert_eq!(play.answer(1, Answer::Working), NOTHING);
    assert_eq!(
        play.alarm(Alarm::Step(2))[0],
        "tell aborted target step_timeout"
    );
}

// spec: SOCK-13, MGR-06, HARDM-42
#[test]
fn an_abort_wins_over_an_answer_under_way() {
    let mut play = Play::source();
    play.step(stop_output());
    assert_eq!(play.step(abort()), ["2 abort why", "step alarm 2 in 30000"]);
    let crossed = Answer::StoppedOutput(b"n".into());
    assert_eq!(play.answer(1, crossed), NOTHING);
    assert_eq!(play.answer(2, Answer::Resumed), NOTHING);
    let mut target = Play::target();
    target.ready();
    target.step(begin());
    target.answer(1, Answer::Applied(Payload::default()));
    // Also after it has taken over.
    assert_eq!(target.step(abort())[0], "2 abort why");
    assert_eq!(target.answer(2, Answer::Dropped), NOTHING);
}

// spec: SOCK-13
#[test]
fn a_source_that_stopped_hears_the_abort_however_late_it_comes_back() {
    let mut play = Play::source();
    play.step(stop_output());
    play.answer(1, Answer::StoppedOutput(b"n".into()));
    assert_eq!(play.take(Input::Silent), NOTHING, "nothing is awaited");
    assert_eq!(play.step(abort()), NOTHING);
    assert!(play.0.is_binding(), "no other migration before it is told");
    let (mut play, out) = play.restart();
    assert_eq!(out, NOTHING);
    assert_eq!(play.speaker("")[0], "1 abort why");
    assert!(!play.0.is_binding());
}

// spec: SOCK-12, HARDM-43
#[test]
fn the_open_step_is_repeated_with_a_new_number_to_a_job_that_comes_back() {
    let mut play = Play::source();
    assert_eq!(play.step(stop_output())[1], "step alarm 1 in 30000");
    assert_eq!(play.take(Input::Silent), ["away alarm 2 in 5000"]);
    // Within the deadline of the step, which goes on.
    assert_eq!(play.speaker("m"), ["2 stopOutput k"]);
    assert_eq!(play.alarm(Alarm::Away(2)), NOTHING);
    assert_eq!(
        play.answer(1, Answer::StoppedOutput(b"x".into())),
        NOTHING,
        "of the former connection"
    );
    // The worker ends and comes back: what was asked is asked again.
    let (mut play, out) = play.restart();
    assert_eq!(out, ["away alarm 1 in 5000"]);
    assert!(play.0.is_under_way());
    assert_eq!(
        play.speaker("m"),
        ["1 stopOutput k", "step alarm 2 in 30000"]
    );
    let told = play.answer(1, Answer::StoppedOutput(b"n".into()));
    assert_eq!(told, ["tell stopped n"]);
}

// spec: SOCK-12, MGR-09
#[test]
fn a_job_that_does_not_come_back_or_forgot_has_lost_its_socket() {
    let mut play = Play::source();
    play.step(Step::GetState);
    play.answer(1, Answer::State(b"s".into()));
    play.take(Input::Silent);
    // Another process of the job, which knows of nothing: the time goes on.
    assert_eq!(play.speaker(""), NOTHING);
    assert_eq!(
        play.alarm(Alarm::Away(2)),
        ["tell aborted source socket_lost"],
        "a source that did nothing is left alone"
    );
    let mut play = Play::source();
    play.step(stop_output());
    play.take(Input::Silent);
    let told = play.alarm(Alarm::Away(2));
    assert_eq!(told, ["tell aborted source socket_lost"]);
    // It may have ended its output, so whoever comes is told to output.
    assert_eq!(play.speaker("")[0], "2 abort socket_lost");
}

// spec: MGR-07
#[test]
fn who_never_connects_refuses_or_aborts_after_five_seconds() {
    let source = || Play(Handover::source("m".into(), 0, false));
    let mut play = source();
    assert_eq!(play.step(Step::GetState), ["away alarm 1 in 5000"]);
    assert_eq!(play.alarm(Alarm::Away(1)), ["tell refused not_connected"]);
    let mut play = source();
    play.step(stop_output());
    assert_eq!(
        play.alarm(Alarm::Away(1)),
        ["tell aborted source not_connected"]
    );
    let mut play = source();
    play.step(Step::GetState);
    assert_eq!(
        play.speaker(""),
        ["1 getState", "step alarm 2 in 30000"],
        "in time"
    );
    assert_eq!(play.alarm(Alarm::Away(1)), NOTHING);
}

// spec: MGR-09
#[test]
fn a_job_that_fails_or_dies_gives_up() {
    let mut play = Play::target();
    let told = play.take(Input::Failed("no input".to_owned()));
    assert_eq!(told[0], "tell aborted target no input");
    assert_eq!(play.take(Input::Died), NOTHING, "told once");
    let mut play = Play::source();
    play.step(stop_output());
    assert_eq!(
        play.take(Input::Died),
        ["tell aborted source instance_died"]
    );
    let mut play = Play::source();
    play.step(stop_output());
    play.answer(1, Answer::StoppedOutput(b"n".into()));
    assert_eq!(play.take(Input::Died), NOTHING, "its part is done");
    // One that did its part is not sent back by itself: the other side may be on air.
    let mut play = Play::source();
    play.step(stop_output());
    play.answer(1, Answer::StoppedOutput(b"n".into()));
    let told = play.take(Input::Failed("late".to_owned()));
    assert_eq!(told, ["tell aborted source late"]);
}

// spec: MGR-08
#[test]
fn only_a_source_that_merely_told_its_state_is_free_for_another_migration() {
    let mut play = Play::source();
    assert!(!play.0.is_binding());
    play.step(Step::GetState);
    play.answer(1, Answer::State(b"s".into()));
    assert!(!play.0.is_binding() && play.0.is_under_way());
    play.step(stop_output());
    assert!(play.0.is_binding());
    play.answer(2, Answer::StoppedOutput(b"n".into()));
    assert!(play.0.is_binding());
    assert!(Play::target().0.is_binding());
}
