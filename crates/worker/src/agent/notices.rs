//! Notices of the cloud: each is told once, and kept until the Manager holds it (WORK-50).

use greenroom_types::StartId;
use greenroom_types::node::InstanceKey;

use super::{Agent, Effects};
use crate::journal::Record;
use crate::notice::Notice;
use crate::order::Said;

// === impl Agent ===

impl Agent {
    pub(super) fn apply_notice(&mut self, notice: Notice, out: &mut Effects) {
        let Notice {
            kind,
            deadline,
            seen_at,
        } = notice;
        if self.notices.insert(kind, deadline) == Some(deadline) {
            return;
        }
        let said = Said::Interrupted {
            what: kind,
            deadline,
            seen_at,
        };
        self.say(&InstanceKey::default(), &StartId::default(), said, out);
    }

    /// A machine that boots was stopped, not taken: what was said of it before is worth nothing.
    pub(super) fn forget_notices(&mut self, out: &mut Effects) {
        self.notices.clear();
        let waiting = self.outbox.waiting();
        let old: Vec<u64> = waiting
            .filter(|report| matches!(report.said, Said::Interrupted { .. }))
            .map(|report| report.id)
            .collect();
        for id in old {
            self.outbox.forget(id);
            out.persist.push(Record::Forgotten { id });
        }
    }
}

#[cfg(test)]
mod tests {
    use greenroom_types::Wall;
    use greenroom_types::node::InterruptionKind::{Rebalance, SpotInterruption};

    use super::*;
    use crate::agent::tests::{Play, short};
    use crate::agent::{Act, Event};

    fn notice(play: &mut Play, deadline: i64) -> Vec<Act> {
        let notice = Notice {
            kind: SpotInterruption,
            deadline: Some(Wall(deadline)),
            seen_at: Wall(1),
        };
        play.tell(Event::Notice(notice))
    }

    // spec: WORK-50
    #[test]
    fn each_deadline_of_a_kind_is_told_once() {
        let mut play = Play::new();
        let advice = Notice {
            kind: Rebalance,
            deadline: None,
            seen_at: Wall(0),
        };
        assert_eq!(short(&play.tell(Event::Notice(advice))), ["say Rebalance"]);
        assert_eq!(short(&notice(&mut play, 9)), ["say SpotInterruption"]);
        assert_eq!(notice(&mut play, 9), []);
        assert_eq!(play.tell(Event::Notice(advice)), []);
        assert_eq!(short(&notice(&mut play, 5)), ["say SpotInterruption"]);
        assert_eq!(play.agent.outbox().waiting().count(), 3);
        play.tell(Event::Acked(2));
        assert_eq!(play.agent.outbox().waiting().count(), 1);
    }

    // spec: WORK-50
    #[test]
    fn a_notice_outlives_the_worker_and_not_the_boot() {
        let mut play = Play::new();
        notice(&mut play, 9);
        let (mut play, _) = play.restart("boot-1", &[]);
        assert_eq!(notice(&mut play, 9), []);
        assert_eq!(play.agent.outbox().waiting().count(), 1);
        let (mut play, _) = play.restart("boot-2", &[]);
        assert_eq!(play.agent.outbox().waiting().count(), 0);
        assert_eq!(short(&notice(&mut play, 9)), ["say SpotInterruption"]);
        // What was forgotten stays forgotten, and no number comes twice.
        let (play, _) = play.restart("boot-2", &[]);
        let waiting: Vec<u64> = play.agent.outbox().waiting().map(|it| it.id).collect();
        assert_eq!(waiting, [2]);
    }
}
