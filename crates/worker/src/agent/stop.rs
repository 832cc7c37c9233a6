//! Stops: of one instance, or of all when the worker is to end.

use greenroom_types::node::InstanceKey;
use greenroom_types::{Millis, StartId};

use super::{Act, Agent, Effects, Phase};
use crate::order::{Said, StopCause};

// === impl Agent ===

impl Agent {
    pub(super) fn apply_stop(
        &mut self,
        key: &InstanceKey,
        start_id: Option<StartId>,
        grace: Millis,
        cause: StopCause,
        out: &mut Effects,
    ) {
        let start_id = start_id.or_else(|| self.live(key)).unwrap_or_default();
        if self.instances.contains_key(&start_id) {
            self.stop(&start_id, grace, cause, out);
        } else {
            // It is not here: that is what the Manager wants to hear.
            self.say(key, &start_id, Said::Stopped { completed: false }, out);
        }
    }

    pub(super) fn stop(
        &mut self,
        start_id: &StartId,
        grace: Millis,
        cause: StopCause,
        out: &mut Effects,
    ) {
        let Some(instance) = self.instances.get_mut(start_id) else {
            return;
        };
        let stopped = Said::Stopped { completed: false };
        // Whatever it was in, it is out of it by somebody's will.
        instance.handover = None;
        match &instance.phase {
            Phase::Waiting => {
                self.end(start_id, stopped, grace, true, out);
                self.apply_removed(start_id, out);
            }
            Phase::Preparing | Phase::Prepared => {
                self.end(start_id, stopped, grace, true, out);
                self.remove(start_id, out);
            }
            Phase::Starting | Phase::Running => {
                self.end(start_id, stopped, grace, true, out);
                out.act.push(Act::Stop(start_id.clone(), grace, cause));
            }
            // The runtime takes the shorter of two graces (JOB-23).
            Phase::Stopping {
                removing: false, ..
            } => out.act.push(Act::Stop(start_id.clone(), grace, cause)),
            Phase::Stopping { removing: true, .. } => {}
        }
    }

    pub(super) fn apply_shutdown(&mut self, grace: Millis, park: bool, out: &mut Effects) {
        // Who was told to leave does not stay because a Manager that has not heard of it says so.
        let stays = self.leaving != Some(false);
        self.leaving = Some(park && stays);
        let all: Vec<StartId> = self.instances.keys().cloned().collect();
        for start_id in all {
            self.stop(&start_id, grace, StopCause::Node, out);
        }
        self.ensure_left(out);
    }

    /// LOCAL-13: the slot is gone; the worker stays and asks on, for an operator may register it anew.
    pub(super) fn apply_orphaned(&mut self, grace: Millis, out: &mut Effects) {
        let all: Vec<StartId> = self.instances.keys().cloned().collect();
        for start_id in all {
            self.stop(&start_id, grace, StopCause::Node, out);
        }
    }

    pub(super) fn ensure_left(&mut self, out: &mut Effects) {
        if let Some(park) = self.leaving
            && self.instances.is_empty()
        {
            out.act.push(Act::Leave { park });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::super::tests::{Play, spec};
    use super::*;
    use greenroom_types::node::InstanceState;

    // spec: LOCAL-13
    #[test]
    fn an_orphan_stops_what_it_runs_and_stays() {
        let mut play = Play::new();
        for name in ["one", "two"] {
            play.provision(&spec(name, name));
        }
        let mut out = Effects::default();
        play.agent.handle(Event::Orphaned(Millis(5_000)), &mut out);
        let states: Vec<_> = play.agent.instances().map(|it| it.state).collect();
        assert_eq!(states, [InstanceState::Stopping; 2]);
        let leaves = |it: &Act| matches!(it, Act::Leave { .. });
        assert!(!out.act.iter().any(leaves), "{:?}", out.act);
        // Told again it has nothing left to do, and what comes later runs.
        let mut again = Effects::default();
        play.agent
            .handle(Event::Orphaned(Millis(5_000)), &mut again);
        assert!(again.persist.is_empty());
    }
}
