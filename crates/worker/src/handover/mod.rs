//! One side of a cooperative migration, between the Manager's orders and the job on its socket
//! (SOCK-07 to SOCK-13, MGR-06 to MGR-09). Pure: inputs in, outputs out.
//!
//! ```text
//!   source:  (getState -> state | refuse)?  stopOutput -> stoppedOutput   then abort, or it is stopped
//!   target:  ready                          begin -> applied              then abort, or it is done
//! ```
//!
//! One file a step. At most one request waits for its answer; what answers an earlier one is late and
//! dropped. Time comes as alarms that were ordered: the side knows no clock. What it must remember over
//! a restart of the worker is in its serialised form, so that the open step is asked again with the
//! same content (SOCK-12, SOCK-19); who is connected is not.

mod abort;
mod begin;
mod get_state;
mod link;
mod ready;
mod stop_output;

use greenroom_types::stream::MigrationSignal;
use greenroom_types::{MigrationId, Millis, Payload};
use serde::{Deserialize, Serialize};

/// A job that is not connected may come (back) within this (SOCK-12, MGR-07).
pub(crate) const AWAY_MAX: Millis = Millis(5_000);

/// Which side of the migration the instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Side {
    Source,
    Target,
}

/// How far a side has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Stage {
    /// Source: nothing was asked yet, or its state was.
    Begun,
    /// Source: it told its state, which binds nobody.
    Proposed,
    /// Source: it is to end its output.
    Stopping,
    /// Source: its output has ended.
    Stopped,
    /// Target: it gets ready.
    Waiting,
    /// Target: it can take over.
    Ready,
    /// Target: it is to begin its output.
    Beginning,
    /// Target: it has taken over.
    Applied,
    /// It is over for the worker; the job may still have to be told.
    GivenUp,
}

/// What the job is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Request {
    GetState,
    StopOutput(Payload),
    Begin(Payload),
    Abort(String),
}

/// What the Manager orders.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    GetState,
    StopOutput(Payload),
    Begin(Payload),
    Abort(String),
}

/// What the job answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    State(Payload),
    Refuse(String),
    StoppedOutput(Payload),
    Applied(Payload),
    Resumed,
    Dropped,
    /// It is at it and asks for more time (SOCK-10).
    Working,
}

/// Where something was said, so that it can be answered: a connection, and an id on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) connection: u64,
    pub(crate) id: u64,
}

/// Something that happens to a side.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Input {
    /// The Manager wants this of it.
    Step(Step),
    /// A connection speaks for the job now, and says which migration it knows of.
    Speaker(Option<MigrationId>),
    /// Nobody speaks for the job any more.
    Silent,
    /// The job answers the request of this number; none when it answers nothing that was asked.
    Answer {
        at: At,
        to: Option<u64>,
        answer: Answer,
    },
    /// The target says that it can take over.
    Ready { at: At, payload: Payload },
    /// The job gives up.
    Failed(String),
    /// An alarm that was ordered.
    Alarm(Alarm),
    /// The instance ended by itself.
    Died,
}

/// An alarm; one that was replaced meanwhile means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// The open request is not answered.
    Step(u64),
    /// Nobody speaks for the job.
    Away(u64),
}

/// Something that follows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Output {
    /// Ask the speaker; its answer names this number.
    Ask { number: u64, request: Request },
    /// Tell the Manager.
    Tell(MigrationSignal),
    /// Tell the job that what it said is out of order.
    Refuse {
        at: At,
        code: &'static str,
        expected: &'static str,
    },
    /// Bring this alarm after so long.
    Alarm(Alarm, Millis),
}

/// One side of one migration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Handover {
    pub(crate) migration_id: MigrationId,
    pub(crate) side: Side,
    stage: Stage,
    /// What waits for its answer.
    open: Option<Request>,
    /// The job has heard of the migration: one that does not name it at its return has lost it.
    known_to_job: bool,
    /// What the Manager is told once it knows that the instance runs (MGR-10).
    #[serde(default)]
    pub(crate) held: Vec<MigrationSignal>,
    #[serde(skip)]
    live: Live,
}

/// What is known while the worker runs.
#[derive(Clone, Debug, Default, PartialEq)]
struct Live {
    /// Number of the last request, growing over all migrations of the instance.
    asked: u64,
    /// The open request was given to a speaker.
    delivered: bool,
    /// Somebody speaks for the job in this migration.
    speaker: bool,
    /// The deadline of the open request was extended already, or is to be.
    extension: Extension,
    alarms: u64,
    step_alarm: Option<u64>,
    away_alarm: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Extension {
    #[default]
    None,
    /// The next alarm of the step begins a second term.
    Asked,
    Used,
}

// === impl Handover ===

impl Handover {
    /// The side of an instance that runs and may be the source. Requests are numbered from `asked`
    /// on; `speaker` tells whether somebody speaks for the job.
    pub(crate) fn source(migration_id: MigrationId, asked: u64, speaker: bool) -> Self {
        let mut side = Self::new(migration_id, Side::Source, Stage::Begun);
        side.live.asked = asked;
        side.live.speaker = speaker;
        side
    }

    /// The side of an instance that is started as the target.
    pub(crate) fn target(migration_id: MigrationId) -> Self {
        Self::new(migration_id, Side::Target, Stage::Waiting)
    }

    fn new(migration_id: MigrationId, side: Side, stage: Stage) -> Self {
        Self {
            migration_id,
            side,
            stage,
            open: None,
            known_to_job: false,
            held: Vec::new(),
            live: Live::default(),
        }
    }

    /// Takes one input and adds what follows to `out`. `term` is how long a step may take (SOCK-10).
    pub(crate) fn handle(&mut self, term: Millis, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Step(Step::GetState) => self.apply_get_state(out),
            Input::Step(Step::StopOutput(at)) => self.apply_stop_output(at, out),
            Input::Step(Step::Begin(at)) => self.apply_begin(at, out),
            Input::Step(Step::Abort(reason)) => self.apply_abort(reason, out),
            Input::Speaker(named) => self.apply_speaker(named.as_ref(), out),
            Input::Silent => self.apply_silent(out),
            Input::Answer { at, to, answer } => self.apply_answer(at, to, answer, out),
            Input::Ready { at, payload } => self.apply_ready(at, payload, out),
            Input::Failed(reason) => self.give_up(&reason, out),
            Input::Alarm(Alarm::Step(number)) => self.apply_late(number, term, out),
            Input::Alarm(Alarm::Away(number)) => self.apply_away(number, out),
            Input::Died => self.apply_death(out),
        }
        // Whatever was opened has its deadline from here on.
        if self.open.is_some() && self.live.delivered && self.live.step_alarm.is_none() {
            let number = self.next_alarm();
            self.live.step_alarm = Some(number);
            out.push(Output::Alarm(Alarm::Step(number), term));
        }
    }

    /// Another migration may not begin while this one is under way (MGR-08). A source that has only
    /// told its state is bound to nothing: whoever asked may be gone.
    pub(crate) const fn is_binding(&self) -> bool {
        match self.stage {
            Stage::Begun | Stage::Proposed | Stage::Applied => false,
            Stage::GivenUp => self.open.is_some() && !self.live.delivered,
            Stage::Stopping | Stage::Stopped | Stage::Waiting | Stage::Ready | Stage::Beginning => {
                true
            }
        }
    }

    /// As it is after a restart of the worker.
    pub(crate) fn remembered(self) -> Self {
        let live = Live::default();
        Self { live, ..self }
    }

    /// What is to be remembered of both is the same.
    pub(crate) fn remembers(&self, other: &Self) -> bool {
        self.stage == other.stage
            && self.open == other.open
            && self.known_to_job == other.known_to_job
            && self.held == other.held
            && self.migration_id == other.migration_id
    }

    /// The job is told of it in its welcome.
    pub(crate) const fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Applied | Stage::GivenUp) || self.open.is_some()
    }

    /// Number of the last request.
    pub(crate) const fn asked(&self) -> u64 {
        self.live.asked
    }

    /// The worker waits for the job to do or to say something.
    const fn awaits_job(&self) -> bool {
        matches!(
            self.stage,
            Stage::Begun
                | Stage::Proposed
                | Stage::Stopping
                | Stage::Waiting
                | Stage::Ready
                | Stage::Beginning
        )
    }

    /// Opens a request: it is asked now, or of the speaker that comes.
    fn ask(&mut self, request: Request, out: &mut Vec<Output>) {
        self.close();
        self.open = Some(request);
        if self.live.speaker {
            self.deliver(out);
        } else {
            self.ensure_away_alarm(out);
        }
    }

    fn deliver(&mut self, out: &mut Vec<Output>) {
        if let Some(request) = self.open.clone() {
            self.live.asked += 1;
            self.live.delivered = true;
            self.known_to_job = true;
            out.push(Output::Ask {
                number: self.live.asked,
                request,
            });
        }
    }

    /// Nothing is asked any more.
    fn close(&mut self) {
        self.open = None;
        self.live.delivered = false;
        self.live.extension = Extension::None;
        self.live.step_alarm = None;
    }

    fn ensure_away_alarm(&mut self, out: &mut Vec<Output>) {
        if self.live.away_alarm.is_none() {
            let number = self.next_alarm();
            self.live.away_alarm = Some(number);
            out.push(Output::Alarm(Alarm::Away(number), AWAY_MAX));
        }
    }

    const fn next_alarm(&mut self) -> u64 {
        self.live.alarms += 1;
        self.live.alarms
    }

    fn apply_answer(&mut self, at: At, to: Option<u64>, answer: Answer, out: &mut Vec<Output>) {
        let expected = self.expected();
        let Some(to) = to else {
            return out.push(Output::Refuse {
                at,
                code: "wrong_step",
                expected,
            });
        };
        // Late: of a request that was given up, or of a connection that was replaced (SOCK-13).
        let Some(request) = self.open.as_ref().filter(|_| to == self.live.asked) else {
            return;
        };
        match (request, answer) {
            (_, Answer::Working) => {
                if self.live.extension == Extension::None {
                    self.live.extension = Extension::Asked;
                }
            }
            (Request::GetState, Answer::State(payload)) => self.state_told(payload, out),
            (Request::GetState, Answer::Refuse(reason)) => self.state_refused(reason, out),
            (Request::StopOutput(_), Answer::StoppedOutput(payload)) => {
                self.output_stopped(payload, out);
            }
            (Request::Begin(_), Answer::Applied(payload)) => self.output_begun(payload, out),
            (Request::Abort(_), Answer::Resumed | Answer::Dropped) => self.close(),
            _ => out.push(Output::Refuse {
                at,
                code: "wrong_step",
                expected,
            }),
        }
    }

    /// What the worker waits for, in the words of the socket.
    const fn expected(&self) -> &'static str {
        match (&self.open, self.side, self.stage) {
            (Some(Request::GetState), ..) => "state",
            (Some(Request::StopOutput(_)), ..) => "stoppedOutput",
            (Some(Request::Begin(_)), ..) => "applied",
            (Some(Request::Abort(_)), Side::Source, _) => "resumed",
            (Some(Request::Abort(_)), Side::Target, _) => "dropped",
            (None, _, Stage::Waiting) => "ready",
            (None, ..) => "nothing",
        }
    }

    /// The Manager ordered a step that this side is not at (SOCK-11).
    fn out_of_order(&mut self, out: &mut Vec<Output>) {
        if self.stage != Stage::GivenUp {
            out.push(self.aborted("wrong_step"));
        }
    }

    fn aborted(&self, reason: &str) -> Output {
        let side = match self.side {
            Side::Source => "source",
            Side::Target => "target",
        };
        Output::Tell(MigrationSignal::Aborted {
            side: side.to_owned(),
            reason: reason.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
