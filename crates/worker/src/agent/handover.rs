//! Cooperative migrations: the Manager's steps, the job's words, and what was ordered for later.
//!
//! What a side does is decided in [`crate::handover`]; here it is found, remembered, and its outputs
//! become records, acts and reports. A signal of an instance that is not reported running yet waits
//! until it is (MGR-10).

use std::sync::Arc;

use greenroom_types::node::InstanceKey;
use greenroom_types::stream::MigrationSignal;
use greenroom_types::{MigrationId, Millis, Payload, StartId};

use super::{Act, Agent, Effects, Phase, Reminder};
use crate::handover::{Answer, At, Handover, Input, Output, Request, Step};
use crate::journal::Record;
use crate::order::Said;

/// A signal that the Manager did not take is given up after this (MGR-11).
const SIGNAL_KEPT: Millis = Millis(600_000);

/// What a job says on its socket about migrations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JobSaid {
    /// A connection speaks for the job now, and names the migration it knows of.
    Speaker(Option<MigrationId>),
    /// Nobody speaks for it any more.
    Silent,
    /// The answer to the request of this number.
    Answer {
        at: At,
        to: Option<u64>,
        answer: Answer,
    },
    /// It can take over.
    Ready {
        at: At,
        migration_id: MigrationId,
        payload: Payload,
    },
    /// It gives up.
    Failed {
        at: At,
        migration_id: MigrationId,
        reason: String,
    },
}

/// What a job is told on its socket about migrations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ToJob {
    /// Ask whoever speaks for it; the answer is to name this number.
    Ask {
        number: u64,
        migration_id: MigrationId,
        request: Request,
    },
    /// What it said is not taken.
    Refuse {
        at: At,
        code: &'static str,
        expected: &'static str,
    },
    /// It is in this migration now.
    In(Option<MigrationId>),
}

// === impl Agent ===

impl Agent {
    /// A step that the Manager orders (MGR-01 to MGR-03, MGR-06, MGR-08).
    pub(super) fn apply_migration(
        &mut self,
        key: &InstanceKey,
        start_id: Option<StartId>,
        migration_id: &MigrationId,
        step: Step,
        out: &mut Effects,
    ) {
        let start_id = start_id.or_else(|| self.live(key)).unwrap_or_default();
        let side = match &step {
            Step::GetState | Step::StopOutput(_) => "source",
            Step::Begin(_) => "target",
            Step::Abort(_) => {
                let this = |id: &MigrationId| migration_id.is_empty() || id == migration_id;
                if self
                    .migration(&start_id)
                    .is_some_and(|it| this(&it.migration_id))
                {
                    self.drive(&start_id, Input::Step(step), out);
                }
                return;
            }
        };
        let lives = self
            .instances
            .get(&start_id)
            .is_some_and(|instance| !matches!(instance.phase, Phase::Stopping { .. }));
        let current = self.migration(&start_id);
        let refusal = match current {
            _ if !lives => Some("no_instance"),
            Some(current) if current.migration_id == *migration_id => None,
            Some(current) if current.is_binding() => Some("other_migration"),
            _ if side == "target" => Some("wrong_migration"),
            _ => {
                self.begin_source(&start_id, migration_id, out);
                None
            }
        };
        let Some(reason) = refusal else {
            return self.drive(&start_id, Input::Step(step), out);
        };
        let aborted = MigrationSignal::Aborted {
            side: side.to_owned(),
            reason: reason.to_owned(),
        };
        self.report_signal(key, &start_id, migration_id, aborted, out);
    }

    /// What a job says (SOCK-07, SOCK-08).
    pub(super) fn apply_job_said(&mut self, start_id: &StartId, said: JobSaid, out: &mut Effects) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        let current = instance.handover.as_ref();
        let current = current.map(|current| current.migration_id.clone());
        let known = |id: &MigrationId| current.as_ref() == Some(id);
        let (at, input) = match said {
            JobSaid::Speaker(named) => {
                instance.speaker = true;
                return self.drive(start_id, Input::Speaker(named), out);
            }
            JobSaid::Silent => {
                instance.speaker = false;
                return self.drive(start_id, Input::Silent, out);
            }
            // Of a migration that is forgotten: late, if it was ever asked.
            JobSaid::Answer { to: Some(_), .. } if instance.handover.is_none() => return,
            JobSaid::Answer { at, to: None, .. } if instance.handover.is_none() => {
                let (code, expected) = ("wrong_step", "nothing");
                let refusal = ToJob::Refuse { at, code, expected };
                return out.act.push(Act::Job(start_id.clone(), refusal));
            }
            JobSaid::Answer { at, to, answer } => (None, Input::Answer { at, to, answer }),
            JobSaid::Ready {
                at,
                migration_id,
                payload,
            } => (
                Some(at).filter(|_| !known(&migration_id)),
                Input::Ready { at, payload },
            ),
            JobSaid::Failed {
                at,
                migration_id,
                reason,
            } => (
                Some(at).filter(|_| !known(&migration_id)),
                Input::Failed(reason),
            ),
        };
        match at {
            None => self.drive(start_id, input, out),
            Some(at) => {
                let (code, expected) = ("wrong_migration", "nothing");
                let refusal = ToJob::Refuse { at, code, expected };
                out.act.push(Act::Job(start_id.clone(), refusal));
            }
        }
    }

    /// Something that was ordered for later.
    pub(super) fn apply_reminder(&mut self, reminder: Reminder, out: &mut Effects) {
        match reminder {
            Reminder::Handover {
                start_id,
                migration_id,
                alarm,
            } => {
                if self
                    .migration(&start_id)
                    .is_some_and(|current| current.migration_id == migration_id)
                {
                    self.drive(&start_id, Input::Alarm(alarm), out);
                }
            }
            Reminder::Forget { report } => self.forget_report(report, out),
        }
    }

    /// What the Manager could not be told in time (MGR-10).
    pub(super) fn release_signals(&mut self, start_id: &StartId, out: &mut Effects) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        let key = instance.spec.key.clone();
        let Some(handover) = instance.handover.as_mut() else {
            return;
        };
        let migration_id = handover.migration_id.clone();
        let held = std::mem::take(&mut handover.held);
        if held.is_empty() {
            return;
        }
        let record = Box::new(handover.clone());
        out.persist.push(Record::Handover {
            start_id: start_id.clone(),
            handover: record,
        });
        for signal in held {
            self.report_signal(&key, start_id, &migration_id, signal, out);
        }
    }

    /// After a restart of the worker: nobody is connected yet (SOCK-12, SOCK-19).
    pub(super) fn resume_migration(&mut self, start_id: &StartId, out: &mut Effects) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        if let Some(handover) = instance.handover.as_mut() {
            let before = handover.clone();
            let mut outputs = Vec::new();
            handover.resume(&mut outputs);
            self.follow(start_id, &before, outputs, out);
        }
    }

    /// The migration that an instance is in, as its welcome tells.
    pub(crate) fn migration_of(&self, start_id: &StartId) -> Option<MigrationId> {
        let current = self.migration(start_id)?;
        current.is_under_way().then(|| current.migration_id.clone())
    }

    pub(super) fn drive(&mut self, start_id: &StartId, input: Input, out: &mut Effects) {
        let term = self.settings.migration_step;
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        if let Some(handover) = instance.handover.as_mut() {
            let before = handover.clone();
            let mut outputs = Vec::new();
            handover.handle(term, input, &mut outputs);
            self.follow(start_id, &before, outputs, out);
        }
    }

    /// Makes records, acts and reports of what a side put out.
    fn follow(
        &mut self,
        start_id: &StartId,
        before: &Handover,
        outputs: Vec<Output>,
        out: &mut Effects,
    ) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        let runs = matches!(instance.phase, Phase::Running | Phase::Stopping { .. });
        let key = instance.spec.key.clone();
        let Some(handover) = instance.handover.as_mut() else {
            return;
        };
        let migration_id = handover.migration_id.clone();
        let mut signals = Vec::new();
        let mut acts = Vec::new();
        for output in outputs {
            acts.push(match output {
                Output::Tell(signal) if runs => {
                    signals.push(signal);
                    continue;
                }
                Output::Tell(signal) => {
                    handover.held.push(signal);
                    continue;
                }
                Output::Ask { number, request } => Act::Job(
                    start_id.clone(),
                    ToJob::Ask {
                        number,
                        migration_id: migration_id.clone(),
                        request,
                    },
                ),
                Output::Refuse { at, code, expected } => {
                    Act::Job(start_id.clone(), ToJob::Refuse { at, code, expected })
                }
                Output::Alarm(alarm, after) => {
                    let (start_id, migration_id) = (start_id.clone(), migration_id.clone());
                    let reminder = Reminder::Handover {
                        start_id,
                        migration_id,
                        alarm,
                    };
                    Act::Remind(reminder, after)
                }
            });
        }
        if !handover.remembers(before) {
            out.persist.push(Record::Handover {
                start_id: start_id.clone(),
                handover: Box::new(handover.clone()),
            });
        }
        if handover.is_under_way() != before.is_under_way() {
            let current = handover.is_under_way().then(|| migration_id.clone());
            if current.is_none() {
                // It has served, and is not kept longer than it must be (MGR-05).
                Arc::make_mut(&mut instance.spec).migration_state = None;
            }
            acts.push(Act::Job(start_id.clone(), ToJob::In(current)));
        }
        out.act.append(&mut acts);
        for signal in signals {
            self.report_signal(&key, start_id, &migration_id, signal, out);
        }
    }

    /// A new migration takes this instance for its source; one before it binds it no more.
    fn begin_source(&mut self, start_id: &StartId, migration_id: &MigrationId, out: &mut Effects) {
        if self.migration(start_id).is_some_and(Handover::is_under_way) {
            let over = Step::Abort("another migration has begun".to_owned());
            self.drive(start_id, Input::Step(over), out);
        }
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        let asked = instance.handover.as_ref().map_or(0, Handover::asked);
        let new = Handover::source(migration_id.clone(), asked, instance.speaker);
        instance.handover = Some(new);
        let current = ToJob::In(Some(migration_id.clone()));
        out.act.push(Act::Job(start_id.clone(), current));
    }

    fn migration(&self, start_id: &StartId) -> Option<&Handover> {
        self.instances.get(start_id)?.handover.as_ref()
    }

    fn report_signal(
        &mut self,
        key: &InstanceKey,
        start_id: &StartId,
        migration_id: &MigrationId,
        signal: MigrationSignal,
        out: &mut Effects,
    ) {
        if let Some(oldest) = self.outbox.crowded(start_id, migration_id) {
            self.forget_report(oldest, out);
        }
        let said = Said::Migration {
            migration_id: migration_id.clone(),
            signal,
        };
        self.say(key, start_id, said, out);
        let report = self.outbox.next_id() - 1;
        let reminder = Reminder::Forget { report };
        out.act.push(Act::Remind(reminder, SIGNAL_KEPT));
    }

    fn forget_report(&mut self, id: u64, out: &mut Effects) {
        if self.outbox.forget(id) {
            out.persist.push(Record::Forgotten { id });
        }
    }
}

#[cfg(test)]
mod tests;
