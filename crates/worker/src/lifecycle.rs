//! The life of one instance's services: start in dependency order, restart, stop in reverse order.
//!
//! A pure state machine that both runtimes play: the supervisor of the process runtime with real
//! processes, the Docker runtime with containers. It takes what happened and the time, and adds the
//! steps that follow to a list. It deliberately starts, signals and reads nothing itself.

use std::collections::BTreeMap;

use greenroom_types::{Millis, Mono};
use serde::{Deserialize, Serialize};

use crate::restart::{Exit, RestartRule, Restarts, Verdict};

/// A dependency with a health check has this long from its first start to become healthy (WORK-19).
const HEALTHY_WITHIN: Millis = Millis(60_000);
/// Time the other services get when one of them fails the instance (DECM-23).
pub(crate) const FAILURE_GRACE: Millis = Millis(10_000);
/// A kill that is not carried out after this is repeated (WORK-23).
const KILL_PATIENCE: Millis = Millis(10_000);
/// Time between repeated kills (WORK-23).
const KILL_AGAIN: Millis = Millis(5_000);

/// What the machine must know of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceRule {
    pub(crate) name: String,
    pub(crate) depends_on: Vec<String>,
    pub(crate) restart: RestartRule,
    /// Dependents wait until it says that it is healthy.
    pub(crate) has_health: bool,
}

/// Where the instance stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Phase {
    Created,
    Starting,
    Running,
    Stopping,
    Ended,
}

/// How an instance ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Outcome {
    /// Every service ended with exit 0 and none is to be started again.
    Completed,
    /// It was told to stop.
    Stopped,
    /// A service failed it.
    Failed(Failure),
}

/// Which service failed the instance, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Failure {
    pub(crate) service: String,
    pub(crate) why: String,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) enum Input<'a> {
    /// The instance is to run.
    Start,
    /// It is to stop, politely for this long.
    Stop(Millis),
    /// A service runs.
    Launched(&'a str),
    /// A service could not be started at all.
    NotLaunched(&'a str, String),
    /// A service's health check succeeded.
    Healthy(&'a str),
    /// A service ended.
    Exited(&'a str, Exit),
    /// Time passed.
    Tick,
}

/// Something to do or to tell, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Start the service.
    Launch(String),
    /// Ask the service to stop.
    Terminate(String),
    /// End the service.
    Kill(String),
    /// Tell: the service runs.
    ServiceStarted(String),
    /// Tell: the service will be started again.
    ServiceRestarting(String, Exit),
    /// Tell: a kill was not carried out.
    Stuck(String),
    /// Tell: every service runs.
    Running,
    /// Tell: every service runs and is healthy where it has a check; or is so no more.
    Ready(bool),
    /// Tell: a service failed the instance and the rest is being stopped.
    Failing(Failure),
    /// Tell: nothing of it runs any more.
    Ended(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// Told to start, or running.
    Live {
        launched: bool,
        healthy: bool,
    },
    BackOff {
        until: Mono,
    },
    Done,
}

#[derive(Clone, Debug)]
struct Slot {
    rule: ServiceRule,
    state: State,
    restarts: Restarts,
    /// When it was first told to start; bounds the wait for its health.
    first_launch: Option<Mono>,
    signalled: bool,
}

/// The machine.
#[derive(Clone, Debug)]
pub(crate) struct Lifecycle {
    services: BTreeMap<String, Slot>,
    phase: Phase,
    failure: Option<Failure>,
    /// When polite stopping is over.
    stop_by: Option<Mono>,
    /// When the next kill is due.
    kill_at: Option<Mono>,
    /// What was last told of its readiness.
    ready: bool,
}

// === impl Lifecycle ===

impl Lifecycle {
    /// An instance whose services are all created and not started.
    pub(crate) fn new(rules: impl IntoIterator<Item = ServiceRule>) -> Self {
        let services = rules
            .into_iter()
            .map(|rule| {
                let slot = Slot {
                    state: State::Waiting,
                    restarts: Restarts::default(),
                    first_launch: None,
                    signalled: false,
                    rule,
                };
                (slot.rule.name.clone(), slot)
            })
            .collect();
        Self {
            services,
            phase: Phase::Created,
            failure: None,
            stop_by: None,
            kill_at: None,
            ready: false,
        }
    }

    /// An instance found running; services that ended meanwhile are told by [`Input::Exited`].
    pub(crate) fn resume(rules: impl IntoIterator<Item = ServiceRule>) -> Self {
        let mut machine = Self::new(rules);
        machine.phase = Phase::Running;
        for slot in machine.services.values_mut() {
            slot.state = State::Live {
                launched: true,
                healthy: !slot.rule.has_health,
            };
        }
        machine
    }

    pub(crate) const fn phase(&self) -> Phase {
        self.phase
    }

    /// The earliest moment at which time alone changes something.
    pub(crate) fn next_deadline(&self) -> Option<Mono> {
        let waits = self.services.values().filter_map(|slot| match slot.state {
            State::BackOff { until } => Some(until),
            State::Live { healthy: false, .. } if self.phase == Phase::Starting => {
                slot.health_deadline()
            }
            _ => None,
        });
        waits.chain(self.kill_at).min()
    }

    /// Takes one input and adds what follows from it to `out`.
    pub(crate) fn handle(&mut self, now: Mono, input: Input<'_>, out: &mut Vec<Step>) {
        if self.phase == Phase::Ended {
            return;
        }
        match input {
            Input::Start if self.phase == Phase::Created => self.phase = Phase::Starting,
            Input::Start | Input::Tick => {}
            Input::Stop(grace) => self.apply_stop(now, grace),
            Input::Launched(name) => self.apply_launched(name, out),
            Input::NotLaunched(name, why) => {
                self.set(name, State::Done);
                self.fail(now, name, why, out);
            }
            Input::Healthy(name) => {
                if let Some(Slot {
                    state: State::Live { healthy, .. },
                    ..
                }) = self.services.get_mut(name)
                {
                    *healthy = true;
                }
            }
            Input::Exited(name, exit) => self.apply_exit(now, name, exit, out),
        }
        self.ensure_started(now, out);
        self.ensure_stopped(now, out);
        self.ensure_told(out);
    }

    fn apply_stop(&mut self, now: Mono, grace: Millis) {
        let by = now + grace;
        if self.phase != Phase::Stopping {
            self.phase = Phase::Stopping;
            self.stop_by = Some(by);
            self.kill_at = Some(by);
        } else if self.stop_by.is_some_and(|so_far| by < so_far) {
            // A shorter grace shortens, a longer one changes nothing (JOB-23).
            self.stop_by = Some(by);
            self.kill_at = self.kill_at.map(|at| at.min(by));
        }
    }

    fn apply_launched(&mut self, name: &str, out: &mut Vec<Step>) {
        let Some(slot) = self.services.get_mut(name) else {
            return;
        };
        if let State::Live { launched, healthy } = &mut slot.state {
            *launched = true;
            *healthy |= !slot.rule.has_health;
            out.push(Step::ServiceStarted(name.to_owned()));
        }
    }

    fn apply_exit(&mut self, now: Mono, name: &str, exit: Exit, out: &mut Vec<Step>) {
        let stopping = self.phase == Phase::Stopping;
        let Some(slot) = self.services.get_mut(name) else {
            return;
        };
        let State::Live { healthy, .. } = slot.state else {
            return;
        };
        if stopping {
            slot.state = State::Done;
            return;
        }
        match slot.restarts.after_exit(now, slot.rule.restart, exit) {
            Verdict::Restart(after) => {
                slot.state = State::BackOff { until: now + after };
                out.push(Step::ServiceRestarting(name.to_owned(), exit));
            }
            Verdict::Finished => {
                slot.state = State::Done;
                if !healthy && self.somebody_waits_for(name) {
                    self.fail(now, name, "it ended before it was healthy".to_owned(), out);
                }
            }
            Verdict::Failed => {
                slot.state = State::Done;
                self.fail(now, name, exit.to_string(), out);
            }
        }
    }

    fn fail(&mut self, now: Mono, service: &str, why: String, out: &mut Vec<Step>) {
        if self.phase == Phase::Stopping {
            return;
        }
        let failure = Failure {
            service: service.to_owned(),
            why,
        };
        out.push(Step::Failing(failure.clone()));
        self.failure = Some(failure);
        self.apply_stop(now, FAILURE_GRACE);
    }

    /// Starts whatever may start, ends the wait for what does not become healthy.
    fn ensure_started(&mut self, now: Mono, out: &mut Vec<Step>) {
        if !matches!(self.phase, Phase::Starting | Phase::Running) {
            return;
        }
        let late = self.services.values().find(|slot| {
            matches!(slot.state, State::Live { healthy: false, .. })
                && slot.health_deadline().is_some_and(|by| by <= now)
                && self.somebody_waits_for(&slot.rule.name)
        });
        if let Some(name) = late.map(|slot| slot.rule.name.clone()) {
            let why = format!("it was not healthy within {HEALTHY_WITHIN}");
            return self.fail(now, &name, why, out);
        }
        let due: Vec<String> = self
            .services
            .values()
            .filter(|slot| match slot.state {
                State::Waiting => slot.rule.depends_on.iter().all(|on| self.is_ready(on)),
                State::BackOff { until } => until <= now,
                State::Live { .. } | State::Done => false,
            })
            .map(|slot| slot.rule.name.clone())
            .collect();
        for name in due {
            if let Some(slot) = self.services.get_mut(&name) {
                slot.state = State::Live {
                    launched: false,
                    healthy: false,
                };
                slot.first_launch.get_or_insert(now);
            }
            out.push(Step::Launch(name));
        }
        let all = |check: fn(&State) -> bool| self.services.values().all(|slot| check(&slot.state));
        if all(|state| *state == State::Done) {
            self.phase = Phase::Ended;
            out.push(Step::Ended(Outcome::Completed));
        } else if self.phase == Phase::Starting
            && all(|state| matches!(state, State::Live { launched: true, .. } | State::Done))
        {
            self.phase = Phase::Running;
            out.push(Step::Running);
        }
    }

    /// Stops dependents first; kills when the grace is over; ends when nothing is left.
    fn ensure_stopped(&mut self, now: Mono, out: &mut Vec<Step>) {
        if self.phase != Phase::Stopping {
            return;
        }
        for slot in self.services.values_mut() {
            if matches!(slot.state, State::Waiting | State::BackOff { .. }) {
                slot.state = State::Done;
            }
        }
        let live: Vec<String> = self
            .services
            .values()
            .filter(|slot| matches!(slot.state, State::Live { .. }))
            .map(|slot| slot.rule.name.clone())
            .collect();
        if live.is_empty() {
            self.phase = Phase::Ended;
            let outcome = self
                .failure
                .take()
                .map_or(Outcome::Stopped, Outcome::Failed);
            out.push(Step::Ended(outcome));
            return;
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            let again = self.stop_by.is_some_and(|by| now - by >= KILL_PATIENCE);
            self.kill_at = Some(now + if again { KILL_AGAIN } else { KILL_PATIENCE });
            for name in live {
                if let Some(slot) = self.services.get_mut(&name) {
                    slot.signalled = true;
                }
                if again {
                    out.push(Step::Stuck(name.clone()));
                }
                out.push(Step::Kill(name));
            }
            return;
        }
        for name in live {
            if self.has_live_dependent(&name, self.services.len()) {
                continue;
            }
            if let Some(slot) = self.services.get_mut(&name)
                && !std::mem::replace(&mut slot.signalled, true)
            {
                out.push(Step::Terminate(name));
            }
        }
    }

    /// Tells when it becomes ready and when it is no more. One whose services all ended is over.
    fn ensure_told(&mut self, out: &mut Vec<Step>) {
        let stands = |slot: &Slot| match slot.state {
            State::Live { launched, healthy } => launched && healthy,
            State::Done => true,
            State::Waiting | State::BackOff { .. } => false,
        };
        let ready = self.phase == Phase::Running && self.services.values().all(stands);
        if std::mem::replace(&mut self.ready, ready) != ready {
            out.push(Step::Ready(ready));
        }
    }

    fn set(&mut self, name: &str, state: State) {
        if let Some(slot) = self.services.get_mut(name) {
            slot.state = state;
        }
    }

    fn is_ready(&self, name: &str) -> bool {
        match self.services.get(name).map(|slot| slot.state) {
            Some(State::Live { launched, healthy }) => launched && healthy,
            Some(State::Done) => true,
            Some(State::Waiting | State::BackOff { .. }) | None => false,
        }
    }

    fn somebody_waits_for(&self, name: &str) -> bool {
        self.services.values().any(|slot| {
            slot.state == State::Waiting && slot.rule.depends_on.iter().any(|on| on == name)
        })
    }

    /// Also through dependents that are over; `depth` ends a cycle that nothing let in.
    fn has_live_dependent(&self, name: &str, depth: usize) -> bool {
        depth > 0
            && self
                .services
                .values()
                .filter(|slot| slot.rule.depends_on.iter().any(|on| on == name))
                .any(|slot| {
                    matches!(slot.state, State::Live { .. })
                        || self.has_live_dependent(&slot.rule.name, depth - 1)
                })
    }
}

// === impl Slot ===

impl Slot {
    fn health_deadline(&self) -> Option<Mono> {
        self.first_launch
            .filter(|_| self.rule.has_health)
            .map(|at| at + HEALTHY_WITHIN)
    }
}

#[cfg(test)]
mod tests;
