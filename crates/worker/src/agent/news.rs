//! What follows from the runtime's news, to the removal of what ended.

use greenroom_types::job::JobInfoKind;
use greenroom_types::{Millis, StartId};

use super::{Act, Agent, ENDED_MAX, Effects, Instance, Phase, REASON_MAX, RuntimeEvent};
use crate::handover::Input;
use crate::journal::{Record, StepRecord};
use crate::lifecycle::{FAILURE_GRACE, Outcome};
use crate::order::{Info, Said};

/// News of any length is told in bounded words (WORK-11).
fn bounded(mut kind: JobInfoKind) -> JobInfoKind {
    match &mut kind {
        JobInfoKind::ContainerEvent { text, .. }
        | JobInfoKind::Stage { text, .. }
        | JobInfoKind::Status { text, .. } => text.truncate(text.floor_char_boundary(REASON_MAX)),
        JobInfoKind::ServiceStarted(_) | JobInfoKind::ServiceRestarting(_) => {}
    }
    kind
}

// === impl Agent ===

impl Agent {
    pub(super) fn remember_end(&mut self, start_id: &StartId, said: Said) {
        self.ended.push_back((start_id.clone(), said));
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    pub(super) fn apply_runtime(
        &mut self,
        start_id: &StartId,
        event: RuntimeEvent,
        out: &mut Effects,
    ) {
        let Some(instance) = self.instances.get(start_id) else {
            return;
        };
        let (spec, stopping) = (
            instance.spec.clone(),
            matches!(instance.phase, Phase::Stopping { .. }),
        );
        match event {
            RuntimeEvent::Info(kind) => {
                let (key, start_id) = (spec.key.clone(), start_id.clone());
                let kind = bounded(kind);
                out.act.push(Act::Info(Info {
                    key,
                    start_id,
                    kind,
                }));
            }
            RuntimeEvent::Made(containers) => self.apply_made(start_id, containers, out),
            RuntimeEvent::Prepared if instance.phase == Phase::Preparing => {
                self.step(start_id, Phase::Prepared, StepRecord::Prepared, out);
                if spec.defer_start {
                    let ports = self.ports(start_id);
                    self.say(&spec.key, start_id, Said::Prepared { ports }, out);
                } else {
                    self.start(start_id, out);
                }
            }
            RuntimeEvent::Running if instance.phase == Phase::Starting => {
                self.step(start_id, Phase::Running, StepRecord::Running, out);
                let ports = self.ports(start_id);
                self.say(&spec.key, start_id, Said::Started { ports }, out);
                self.release_signals(start_id, out);
            }
            RuntimeEvent::Ready(ready) => {
                if let Some(instance) = self.instances.get_mut(start_id) {
                    instance.ready = ready;
                }
            }
            RuntimeEvent::Refused(refusal) if !stopping => {
                let last = Said::Rejected {
                    code: refusal.code,
                    detail: refusal.detail,
                };
                self.end(start_id, last, Millis(0), true, out);
                self.remove(start_id, out);
            }
            RuntimeEvent::Broken(reason) if !stopping => {
                self.fail(start_id, reason, out);
                self.remove(start_id, out);
            }
            RuntimeEvent::Failing(reason) if !stopping => self.fail(start_id, reason, out),
            RuntimeEvent::Ended(outcome) => {
                match outcome {
                    _ if stopping => {}
                    Outcome::Completed => {
                        self.drive(start_id, Input::Died, out);
                        let last = Said::Stopped { completed: true };
                        self.end(start_id, last, Millis(0), true, out);
                    }
                    Outcome::Failed(failure) => {
                        let reason = format!("service {}: {}", failure.service, failure.why);
                        self.fail(start_id, reason, out);
                    }
                    Outcome::Stopped => {
                        self.fail(start_id, "it was stopped by somebody else".to_owned(), out);
                    }
                }
                self.remove(start_id, out);
            }
            RuntimeEvent::Removed if stopping => self.apply_removed(start_id, out),
            RuntimeEvent::Prepared
            | RuntimeEvent::Running
            | RuntimeEvent::Refused(_)
            | RuntimeEvent::Broken(_)
            | RuntimeEvent::Failing(_)
            | RuntimeEvent::Job(_)
            | RuntimeEvent::Removed => {}
        }
    }

    /// Reports a failure at once; that nothing is left is reported when it is so (JOB-21).
    pub(super) fn fail(&mut self, start_id: &StartId, mut reason: String, out: &mut Effects) {
        reason.truncate(reason.floor_char_boundary(REASON_MAX));
        self.drive(start_id, Input::Died, out);
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        instance.failed = Some(reason.clone());
        let key = instance.spec.key.clone();
        self.end(
            start_id,
            Said::Stopped { completed: false },
            FAILURE_GRACE,
            true,
            out,
        );
        self.say(&key, start_id, Said::Failed { reason }, out);
    }

    pub(super) fn remove(&mut self, start_id: &StartId, out: &mut Effects) {
        if let Some(Instance {
            phase: Phase::Stopping { removing, .. },
            ..
        }) = self.instances.get_mut(start_id)
            && !std::mem::replace(removing, true)
        {
            out.act.push(Act::Remove(start_id.clone()));
        }
    }

    pub(super) fn apply_removed(&mut self, start_id: &StartId, out: &mut Effects) {
        let Some(Instance {
            spec,
            phase: Phase::Stopping { last, told, .. },
            ..
        }) = self.instances.remove(start_id)
        else {
            return;
        };
        self.room.release(start_id);
        if spec.leased {
            out.act.push(Act::Unhold(start_id.clone()));
        }
        self.remember_end(start_id, last.clone());
        out.persist.push(Record::Removed {
            start_id: start_id.clone(),
            last: last.clone(),
        });
        if told {
            self.say(&spec.key, start_id, last, out);
        }
        let same_key = || {
            self.instances
                .iter()
                .filter(|(_, other)| other.spec.key == spec.key)
        };
        let waiting = same_key().find(|(_, other)| other.phase == Phase::Waiting);
        if let Some(next) = waiting.map(|(next, _)| next.clone())
            && same_key().count() == 1
        {
            self.prepare(&next, out);
        }
        self.ensure_left(out);
    }
}

#[cfg(test)]
mod tests {
    use greenroom_types::job::Stage;

    use super::*;
    use crate::agent::tests::{Play, spec};

    // spec: WORK-11
    #[test]
    fn news_of_any_length_is_told_in_bounded_words() {
        let mut play = Play::new();
        play.provision(&spec("j", "s1"));
        let text = "ä".repeat(5_000);
        let stage = JobInfoKind::Stage {
            stage: Stage::Build,
            text: text.clone(),
        };
        let acts = play.runtime("s1", RuntimeEvent::Info(stage));
        let [
            Act::Info(Info {
                kind: JobInfoKind::Stage { text: told, .. },
                ..
            }),
        ] = &acts[..]
        else {
            panic!("{acts:?}");
        };
        assert_eq!(told.len(), 4 << 10);
        assert!(text.starts_with(told.as_str()));
    }
}
