//! Rules about deadlines: the keeper and the ledger together, in virtual time.

use crate::common::*;
use greenroom_ledger::{Keeper, KeeperSettings, Line, Link, Order, Report, Wakeup};
use greenroom_types::call::Call;
use greenroom_types::node::{InstanceState, NodeState};
use greenroom_types::{Millis, Mono, Now, StartId, Wall};

/// World and keeper on one clock; the wall clock can be set apart.
pub(crate) struct Kept {
    pub(crate) w: World,
    keeper: Keeper,
    mono: u64,
    pub(crate) wall: i64,
    /// What was sent again.
    resent: Vec<String>,
}

impl Kept {
    pub(crate) fn new(w: World) -> Self {
        let start = Now {
            mono: Mono(0),
            wall: ZERO,
        };
        let keeper = Keeper::new(KeeperSettings::default(), start, &w.ledger);
        let mut kept = Self {
            w,
            keeper,
            mono: 0,
            wall: 0,
            resent: Vec::new(),
        };
        kept.settle();
        kept
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            mono: Mono(self.mono),
            wall: ZERO.plus(self.wall),
        }
    }

    /// Lets the keeper see the last apply.
    pub(crate) fn seen(&mut self) {
        let touched = self.w.last.touched.clone();
        self.keeper.observe(self.now(), &self.w.ledger, &touched);
    }

    /// Does what is due now, to the end.
    pub(crate) fn settle(&mut self) {
        loop {
            let Wakeup { commands, orders } = self.keeper.due(self.now(), &self.w.ledger);
            self.resent.extend(orders.iter().map(order_word));
            if commands.is_empty() {
                return;
            }
            self.w.now = self.now().wall;
            for command in commands {
                self.w.apply(command).unwrap();
                self.seen();
            }
        }
    }

    /// Passes from deadline to deadline.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.mono + ms;
        while let Some(Mono(due)) = self.keeper.next_deadline().filter(|due| due.0 <= end) {
            let step = due.saturating_sub(self.mono);
            self.mono += step;
            self.wall += i64::try_from(step).unwrap();
            self.settle();
        }
        self.wall += i64::try_from(end - self.mono).unwrap();
        self.mono = end;
        self.settle();
    }

    pub(crate) fn call(&mut self, call: Call) {
        self.w.now = self.now().wall;
        self.w.call(call).unwrap();
        self.seen();
    }

    pub(crate) fn link(&mut self, node: &str, link: Link) {
        self.w.link(node, link);
        self.seen();
    }

    pub(crate) fn node_state(&self, node: &str) -> Option<NodeState> {
        Some(self.w.ledger.node(&node.into())?.state)
    }

    pub(crate) fn start(&mut self, id: &str, node: &str) -> StartId {
        let start = self.w.start(id, node);
        self.seen();
        start
    }
}

/// A node that said hello to this keeper, with a running job.
fn on_air() -> (Kept, StartId) {
    let mut k = Kept::new(World::new());
    k.w.slot("n1");
    k.w.dial_in("n1", "m").unwrap();
    k.seen();
    k.w.hello("n1", Vec::new());
    k.seen();
    k.w.create("a");
    let start = k.start("a", "n1");
    k.w.started("n1", "a", &start);
    k.seen();
    (k, start)
}

// spec: MNODE-11, MNODE-12
#[test]
fn three_seconds_of_patience_and_thirty_more() {
    let (mut k, start) = on_air();
    assert_eq!(k.keeper.next_deadline(), None);
    k.link("n1", Link::Dropped);
    k.pass(2_999);
    assert_eq!(k.node_state("n1"), Some(NodeState::Unreachable));
    k.pass(1);
    assert_eq!(k.node_state("n1"), Some(NodeState::Stopping));
    assert_eq!(k.w.instance_state(&start), Some(InstanceState::Lost));
    k.pass(29_999);
    assert_eq!(k.node_state("n1"), Some(NodeState::Stopping));
    k.pass(1);
    assert_eq!(k.node_state("n1"), Some(NodeState::Stopped));
}

// spec: MNODE-11
#[test]
fn every_drop_has_its_own_grace() {
    let (mut k, start) = on_air();
    for _ in 0..3 {
        k.link("n1", Link::Dropped);
        k.pass(2_000);
        k.w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
        k.seen();
        k.pass(1_500);
        assert_eq!(k.node_state("n1"), Some(NodeState::Running));
    }
}

// spec: MNODE-11
#[test]
fn after_a_restart_every_grace_begins_anew() {
    let (mut k, _) = on_air();
    k.link("n1", Link::Dropped);
    k.pass(2_900);
    let mut k = Kept::new(k.w);
    k.pass(2_900);
    assert_eq!(k.node_state("n1"), Some(NodeState::Unreachable));
    k.pass(100);
    assert_eq!(k.node_state("n1"), Some(NodeState::Stopping));
    // A running node has no stream yet: it is unreachable, and in its grace.
    let (k, start) = on_air();
    let mut k = Kept::new(k.w);
    assert_eq!(k.node_state("n1"), Some(NodeState::Unreachable));
    assert_eq!(k.resent, ["n1: dial"]);
    k.pass(2_999);
    k.w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    k.seen();
    k.pass(60_000);
    assert_eq!(k.node_state("n1"), Some(NodeState::Running));
}

// spec: MNODE-09, FIELD-37
#[test]
fn a_stall_of_the_manager_itself_gives_nobody_up() {
    let (mut k, start) = on_air();
    k.link("n1", Link::Dropped);
    // Nobody asked the keeper for 41 s.
    k.mono += 41_000;
    k.wall += 41_000;
    k.settle();
    assert_eq!(k.node_state("n1"), Some(NodeState::Unreachable));
    k.w.hello("n1", vec![there("a", &start, InstanceState::Running)]);
    k.seen();
    assert_eq!(k.node_state("n1"), Some(NodeState::Running));
}

// spec: LOCAL-09, MNODE-06
#[test]
fn a_slot_is_dialled_for_a_minute_and_then_has_half_for_its_hello() {
    let mut k = Kept::new(World::new());
    k.w.slot("n1");
    k.w.dial_in("n1", "m").unwrap();
    k.seen();
    k.pass(59_999);
    assert_eq!(k.node_state("n1"), Some(NodeState::Starting));
    let now = k.now();
    k.keeper.line(now, &k.w.ledger, &"n1".into(), Line::Opened);
    k.pass(29_999);
    assert_eq!(k.node_state("n1"), Some(NodeState::Starting));
    k.pass(1);
    assert_eq!(k.node_state("n1"), Some(NodeState::Stopped));
    let words: Vec<_> = k.w.events.iter().map(event_word).collect();
    assert!(
        words.contains(&"stopping n1 InitialisationHealthPingTimeExceeded".to_owned()),
        "{words:?}"
    );
}

// spec: MNODE-06
#[test]
fn a_machine_has_five_minutes_for_each_step() {
    let mut k = Kept::new(World::new());
    k.call(crate::nodes::aws("c1"));
    k.call(crate::nodes::aws("c2"));
    k.pass(299_999);
    k.w.finding("c2", crate::nodes::runs(""));
    k.seen();
    k.pass(1);
    assert_eq!(k.node_state("c1"), Some(NodeState::Stopping));
    k.pass(299_998);
    assert_eq!(k.node_state("c2"), Some(NodeState::Starting));
    k.pass(1);
    assert_eq!(k.node_state("c2"), Some(NodeState::Stopping));
    let words: Vec<_> = k.w.events.iter().map(event_word).collect();
    assert!(words.contains(&"stopping c1 PendingTimeExceeded".to_owned()));
    assert!(words.contains(&"stopping c2 StartupTimeExceeded".to_owned()));
}

#[test]
fn what_was_proposed_in_vain_is_proposed_again() {
    let (mut k, _) = on_air();
    k.call(Call::CreateBundle(Box::new(bundle("b", &["e"], 1))));
    k.call(Call::SetBundleStopTime {
        bundle_id: "b".into(),
        stop_at: Some(ZERO.plus(3_000)),
    });
    k.link("n1", Link::Dropped);
    for _ in 0..3 {
        let Some(Mono(due)) = k.keeper.next_deadline() else {
            panic!("nothing is waited for");
        };
        k.wall += i64::try_from(due - k.mono).unwrap();
        k.mono = due;
        let proposed = k.keeper.due(k.now(), &k.w.ledger).commands;
        assert_eq!(proposed.len(), 2, "{proposed:?}");
        // Nothing comes of the proposals: they are lost with their primary.
    }
}

// spec: MNODE-18
#[test]
fn a_stopped_node_is_forgotten_after_an_hour() {
    let (mut k, _) = on_air();
    k.w.report(
        "n1",
        Report::Goodbye {
            reason: String::new(),
        },
    )
    .unwrap();
    k.link("n1", Link::Dropped);
    k.seen();
    k.pass(3_599_999);
    assert_eq!(k.node_state("n1"), Some(NodeState::Stopped));
    k.pass(1);
    assert_eq!(k.node_state("n1"), None);
}

// spec: JOB-19
#[test]
fn a_provision_is_repeated_three_times_and_then_given_up() {
    let (mut k, _) = on_air();
    k.w.create("b");
    let start = k.start("b", "n1");
    k.pass(15_000);
    assert_eq!(k.resent, vec!["n1: provision b/primary"; 3]);
    assert_eq!(k.w.instance_state(&start), Some(InstanceState::Provisioned));
    k.pass(5_000);
    assert_eq!(k.w.instance_state(&start), None);
    assert_eq!(k.w.history("b")[2..], ["stopping", "stopped"]);
    assert!(matches!(
        k.w.orders.last(),
        Some(Order::Close { redial: true, .. })
    ));
    // An acknowledged one is not repeated.
    k.resent.clear();
    let start = k.start("b", "n1");
    k.w.report("n1", Report::Accepted(instance("b", "primary", &start)))
        .unwrap();
    k.seen();
    k.pass(600_000);
    assert!(k.resent.is_empty());
}

// spec: JOB-26
#[test]
fn a_stop_without_report_is_repeated_and_never_taken_as_done() {
    let (mut k, start) = on_air();
    k.call(Call::StopJob {
        key: key("a", "primary"),
        node_id: "n1".into(),
        grace_ms: Some(Millis(5_000)),
    });
    k.pass(34_999);
    assert!(k.resent.is_empty());
    k.pass(1);
    assert_eq!(k.resent, ["n1: stop a/primary 0 UserRequested"]);
    assert_eq!(k.keeper.stuck_stops().count(), 0);
    k.pass(60_000);
    assert_eq!(k.keeper.stuck_stops().collect::<Vec<_>>(), [&start]);
    k.pass(600_000);
    assert_eq!(k.resent.len(), 12);
    assert_eq!(k.w.instance_state(&start), Some(InstanceState::Stopping));
    k.w.stopped("n1", "a", &start);
    k.seen();
    assert_eq!(k.keeper.stuck_stops().count(), 0);
    assert_eq!(k.keeper.next_deadline(), None);
}

// spec: BDL-19, HARDM-20
#[test]
fn a_delete_waits_a_minute_for_what_is_away() {
    let (mut k, start) = on_air();
    k.link("n1", Link::Dropped);
    k.pass(10_000);
    k.call(Call::DeleteJob("a".into()));
    k.pass(59_999);
    assert!(k.w.ledger.job(&"a".into()).is_some());
    k.pass(1);
    assert!(k.w.ledger.job(&"a".into()).is_none());
    assert!(k.w.ledger.is_buried(&start));
}

fn with_stop(at: Wall) -> Kept {
    let mut k = Kept::new(World::new());
    k.call(Call::CreateBundle(Box::new(bundle("b", &["e"], 1))));
    k.call(Call::SetBundleStopTime {
        bundle_id: "b".into(),
        stop_at: Some(at),
    });
    k
}

fn there_is_b(k: &Kept) -> bool {
    k.w.ledger.bundle(&"b".into()).is_some()
}

// spec: BSTOP-02, BSTOP-03
#[test]
fn a_bundle_stops_when_the_wall_clock_says_so() {
    let mut k = with_stop(ZERO.plus(10_000));
    assert_eq!(k.keeper.next_deadline(), Some(Mono(10_000)));
    k.pass(9_999);
    assert!(there_is_b(&k));
    k.pass(1);
    assert!(!there_is_b(&k));
    // A time already past begins it at once; one missed while nobody served is acted on later.
    let mut k = with_stop(ZERO.plus(-1));
    k.settle();
    assert!(!there_is_b(&k));
    let mut w = World::new();
    w.call(Call::CreateBundle(Box::new(bundle("b", &["e"], 1))))
        .unwrap();
    w.call(Call::SetBundleStopTime {
        bundle_id: "b".into(),
        stop_at: Some(ZERO.plus(-5)),
    })
    .unwrap();
    assert!(!there_is_b(&Kept::new(w)));
}

// spec: BSTOP-03, HARDM-26
#[test]
fn a_long_step_forward_is_believed_only_after_a_while() {
    let mut k = with_stop(ZERO.plus(1_800_000));
    k.pass(1_000);
    k.wall += 3_600_000;
    k.pass(29_000);
    assert!(there_is_b(&k), "doubted");
    k.wall -= 3_600_000;
    k.pass(60_000);
    assert!(there_is_b(&k), "the clock took it back");
    k.wall += 3_600_000;
    k.settle();
    k.pass(29_999);
    assert!(there_is_b(&k));
    k.pass(1);
    assert!(!there_is_b(&k), "still says so");
    // A short step is honoured at once.
    let mut k = with_stop(ZERO.plus(50_000));
    k.wall += 55_000;
    k.settle();
    assert!(!there_is_b(&k));
}

// spec: MNODE-22
#[test]
fn machines_that_are_to_be_ended_are_ordered_again_after_a_restart() {
    let mut k = Kept::new(World::new());
    k.call(crate::nodes::aws("c1"));
    k.call(Call::TerminateNode("c1".into()));
    k.pass(7_200_000);
    assert_eq!(
        k.node_state("c1"),
        Some(NodeState::Stopping),
        "never forgotten"
    );
    let k = Kept::new(k.w);
    assert_eq!(k.resent, ["c1: TerminateMachine"]);
}
