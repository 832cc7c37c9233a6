//! Leases in virtual time.

use greenroom_types::inventory::NodeInventory;
use greenroom_types::node::InstanceState;

use super::*;
use crate::agent::tests::{Play, key, short, spec};
use crate::agent::{Event, FoundState, RuntimeEvent};
use crate::order::Order;

const TTL: u64 = 10_000;

fn leased(job: &str, start_id: &str) -> StartSpec {
    StartSpec {
        leased: true,
        lease_ttl: Millis(TTL),
        fence: 7,
        ..spec(job, start_id)
    }
}

fn item(start_id: &str) -> LeaseItem {
    LeaseItem {
        start_id: start_id.into(),
        fence: 7,
        ttl: Millis(TTL),
        superseded: false,
    }
}

fn times(start_id: &str, since: u64) -> Times {
    Times::from([(start_id.into(), Mono(since))])
}

impl Play {
    fn guarded() -> Self {
        let mut play = Self::new();
        play.guard(GuardNews::Up);
        play
    }
    fn guard(&mut self, news: GuardNews) -> Vec<String> {
        short(&self.tell(Event::Guard(news)))
    }
    fn held(&mut self, start_id: &str, until: Mono) -> Vec<String> {
        self.guard(GuardNews::Held {
            start_id: start_id.into(),
            until,
        })
    }
    fn answer(&mut self, nonce: u64, items: Vec<LeaseItem>) -> Vec<String> {
        short(&self.tell(Event::LeaseAnswer { nonce, items }))
    }
    fn pause(&mut self, paused: bool) -> Vec<String> {
        short(&self.tell(Event::LeasesPaused(paused)))
    }
    fn news(&mut self, start_id: &str, event: RuntimeEvent) -> Vec<String> {
        short(&self.runtime(start_id, event))
    }
    /// One leased instance that runs, provisioned at 1 000 with the refresh of number 1 answered.
    fn running() -> Self {
        let mut play = Self::guarded();
        play.at(1_000);
        play.provision(&leased("j", "s1"));
        play.news("s1", RuntimeEvent::Prepared);
        play.answer(1, vec![item("s1")]);
        play.held("s1", Mono(9_500));
        play.news("s1", RuntimeEvent::Running);
        assert_eq!(play.state("s1"), Some(InstanceState::Running));
        play
    }
}

// spec: LEASE-17, WORK-42
#[test]
fn a_provision_alone_starts_nothing_and_an_answer_does_once_a_guard_holds_it() {
    let mut play = Play::guarded();
    play.at(1_000);
    let acts = short(&play.provision(&leased("j", "s1")));
    assert_eq!(acts, ["say s1 accepted", "refresh 1: s1#7", "prepare s1"]);
    assert_eq!(play.news("s1", RuntimeEvent::Prepared), [""; 0]);
    play.at(1_200);
    assert_eq!(play.answer(1, vec![item("s1")]), ["hold s1 9500", "save"]);
    assert_eq!(play.state("s1"), Some(InstanceState::Prepared));
    assert_eq!(play.held("s1", Mono(9_500)), ["start s1"]);
}

// spec: LEASE-17
#[test]
fn an_answer_that_comes_before_everything_is_made_is_kept() {
    let mut play = Play::guarded();
    play.provision(&leased("j", "s1"));
    assert_eq!(play.answer(1, vec![item("s1")]), ["save"]);
    let made = RuntimeEvent::Made(vec!["c1".to_owned()]);
    assert_eq!(play.news("s1", made), ["contain s1 c1"]);
    assert_eq!(play.news("s1", RuntimeEvent::Prepared), ["hold s1 8500"]);
    assert_eq!(play.held("s1", Mono(8_500)), ["start s1"]);
}

// spec: LEASE-17, HARDM-55
#[test]
fn an_order_that_comes_late_starts_nothing() {
    let superseded = || LeaseItem {
        superseded: true,
        ..item("s1")
    };
    let lost = "say s1 failed LEASE_LOST: another start holds the lease";
    let mut play = Play::guarded();
    play.provision(&leased("j", "s1"));
    let acts = play.answer(1, vec![superseded()]);
    assert_eq!(acts, [lost, "remove s1", "hold s1 0", "save"]);
    assert_eq!(play.news("s1", RuntimeEvent::Prepared), [""; 0]);
    let gone = play.news("s1", RuntimeEvent::Removed);
    assert_eq!(gone, ["unhold s1", "say s1 stopped"]);
    // It is stopped as well when it runs, and a later answer brings nothing back.
    let mut play = Play::running();
    play.at(4_333);
    let acts = play.answer(2, vec![superseded()]);
    assert_eq!(acts, [lost, "stop s1 0s", "hold s1 4333", "save"]);
    play.at(8_000);
    assert_eq!(play.answer(3, vec![item("s1")]), [""; 0]);
}

// spec: LEASE-04
#[test]
fn it_is_refreshed_at_a_third_warned_of_at_two_thirds_and_stopped_before_the_end() {
    let mut play = Play::running();
    assert_eq!(play.agent.next_deadline(), Some(Mono(4_333)));
    assert_eq!(short(&play.at(4_332)), [""; 0]);
    assert_eq!(short(&play.at(4_333)), ["refresh 2: s1#7"]);
    // Answered late: the time of the sending counts.
    play.at(6_000);
    assert_eq!(play.answer(2, vec![item("s1")]), ["hold s1 12833", "save"]);
    assert_eq!(short(&play.at(7_666)), ["refresh 3: s1#7"]);
    assert_eq!(short(&play.at(10_998)), [""; 0]);
    assert_eq!(play.agent.next_deadline(), Some(Mono(10_999)));
    assert_eq!(short(&play.at(10_999)), ["warn s1 1334", "refresh 4: s1#7"]);
    assert_eq!(short(&play.at(12_332)), [""; 0]);
    let lost = "say s1 failed LEASE_LOST: its lease was not refreshed in time";
    assert_eq!(short(&play.at(12_333)), [lost, "stop s1 0s"]);
    // No answer brings it back, and nothing of it is refreshed.
    assert_eq!(play.answer(4, vec![item("s1")]), ["save"]);
    assert_eq!(short(&play.at(20_000)), [""; 0]);
    assert_eq!(play.agent.next_deadline(), None);
    let ended = RuntimeEvent::Ended(crate::lifecycle::Outcome::Stopped);
    assert_eq!(play.news("s1", ended), ["remove s1"]);
    let gone = play.news("s1", RuntimeEvent::Removed);
    assert_eq!(gone, ["unhold s1", "say s1 stopped"]);
}

// spec: LEASE-04
#[test]
fn a_warning_is_given_again_only_after_an_answer() {
    let mut play = Play::running();
    assert_eq!(short(&play.at(7_666)), ["warn s1 1334", "refresh 2: s1#7"]);
    assert_eq!(short(&play.at(8_000)), [""; 0]);
    play.answer(2, vec![item("s1")]);
    assert_eq!(short(&play.at(14_331)), ["refresh 3: s1#7"]);
    assert_eq!(short(&play.at(14_332)), ["warn s1 1334"]);
}

// spec: LEASE-05, HARDM-28
#[test]
fn after_a_gap_what_ran_out_is_stopped_before_anything_else() {
    let mut play = Play::running();
    play.provision(&spec("free", "s2"));
    let acts = short(&play.at(121_000));
    let lost = "say s1 failed LEASE_LOST: its lease was not refreshed in time";
    assert_eq!(acts, [lost, "stop s1 0s"]);
    // An answer that was on its way all the time changes nothing, nor does the guard's deed.
    assert_eq!(play.answer(1, vec![item("s1")]), [""; 0]);
    let why = crate::lifecycle::Failure {
        service: "supervisor".to_owned(),
        why: "it was killed".to_owned(),
    };
    let ended = RuntimeEvent::Ended(crate::lifecycle::Outcome::Failed(why));
    assert_eq!(play.news("s1", ended), ["remove s1"]);
    // What is not leased runs on.
    assert_eq!(play.state("s2"), Some(InstanceState::Provisioned));
}

// spec: WORK-64
#[test]
fn days_without_a_manager_end_leased_instances_only_and_not_those_that_a_pause_keeps() {
    let days = 7 * 24 * 3_600_000;
    let mut play = Play::running();
    play.run(&spec("free", "s2"));
    play.at(days);
    assert_eq!(play.state("s1"), Some(InstanceState::Stopping));
    assert_eq!(play.state("s2"), Some(InstanceState::Running));
    let mut play = Play::running();
    play.pause(true);
    play.at(days);
    assert_eq!(play.state("s1"), Some(InstanceState::Running));
}

// spec: LEASE-04
#[test]
fn an_instance_being_stopped_politely_is_killed_when_its_lease_ends() {
    let mut play = Play::running();
    assert_eq!(short(&play.stop("j", "s1", 60_000)), ["stop s1 60s"]);
    assert_eq!(short(&play.at(4_333)), ["refresh 2: s1#7"]);
    play.answer(2, vec![item("s1")]);
    assert_eq!(short(&play.at(12_332)), ["warn s1 1", "refresh 3: s1#7"]);
    assert_eq!(short(&play.at(12_333)), ["stop s1 0s"]);
}

// spec: LEASE-10
#[test]
fn a_pause_is_acknowledged_once_it_is_kept_and_the_guard_kills_no_more() {
    let mut play = Play::running();
    assert_eq!(play.pause(true), ["hold s1 on"]);
    assert_eq!(play.held("s1", NEVER), ["ack paused=true"]);
    assert!(play.agent.leases_paused());
    // Told again, it says so again.
    assert_eq!(play.pause(true), ["ack paused=true"]);
    // Refreshes go on and nothing hangs on their answers.
    assert_eq!(short(&play.at(500_000)), ["refresh 2: s1#7"]);
    // Over a restart, without a file of times.
    let found = [("s1", FoundState::Running)];
    let (mut play, acts) = play.restart_at(600_000, &Times::new(), &found);
    let acts = short(&acts);
    assert_eq!(acts, ["hold s1 on", "refresh 1: s1#7", "attach s1"]);
    assert!(play.agent.leases_paused());
    play.at(900_000);
    assert_eq!(play.state("s1"), Some(InstanceState::Running));
}

// spec: LEASE-10
#[test]
fn a_pause_that_the_journal_did_not_take_is_not_acknowledged() {
    let mut play = Play::running();
    play.pause(true);
    play.agent.forget_pause_ack();
    assert_eq!(play.held("s1", NEVER), [""; 0]);
    // The journal is compacted with it.
    assert!(
        play.agent
            .snapshot()
            .contains(&Record::LeasesPaused { paused: true })
    );
}

// spec: LEASE-12
#[test]
fn at_resume_every_lease_begins_anew_and_is_refreshed_at_once() {
    let mut play = Play::running();
    play.pause(true);
    play.at(500_000);
    let acts = play.pause(false);
    assert_eq!(
        acts,
        [
            "save",
            "refresh 3: s1#7",
            "hold s1 508500",
            "ack paused=false"
        ]
    );
    assert_eq!(short(&play.at(507_999))[0], "warn s1 1");
    assert_eq!(short(&play.at(508_000))[1], "stop s1 0s");
}

// spec: LEASE-12
#[test]
fn one_that_was_not_reached_by_the_resume_keeps_its_job_until_it_hears_of_it() {
    let mut play = Play::running();
    play.pause(true);
    play.at(500_000);
    assert_eq!(short(&play.tell(Event::Connected)), ["refresh 3: s1#7"]);
    let superseded = LeaseItem {
        superseded: true,
        ..item("s1")
    };
    let acts = play.answer(3, vec![superseded]);
    let lost = "say s1 failed LEASE_LOST: another start holds the lease";
    assert_eq!(acts[..2], [lost, "stop s1 0s"]);
}

// spec: LEASE-10, LEASE-17
#[test]
fn a_first_start_in_a_pause_needs_an_answer_as_well() {
    let mut play = Play::guarded();
    assert_eq!(play.pause(true), ["ack paused=true"]);
    play.provision(&leased("j", "s1"));
    assert_eq!(play.news("s1", RuntimeEvent::Prepared), [""; 0]);
    assert_eq!(play.answer(1, vec![item("s1")]), ["hold s1 on", "save"]);
    assert_eq!(play.held("s1", NEVER), ["start s1"]);
}

// spec: LEASE-05
#[test]
fn a_worker_that_is_back_in_time_takes_its_lease_on_and_one_that_is_late_ends_it() {
    let found = [("s1", FoundState::Running)];
    let (mut play, acts) = Play::running().restart_at(8_999, &times("s1", 1_000), &found);
    assert_eq!(
        short(&acts),
        ["hold s1 9500", "warn s1 1", "refresh 1: s1#7", "attach s1"]
    );
    play.guard(GuardNews::Up);
    play.held("s1", Mono(9_500));
    assert_eq!(play.answer(1, vec![item("s1")]), ["hold s1 17499", "save"]);
    assert_eq!(play.state("s1"), Some(InstanceState::Running));
    let lost = "say s1 failed LEASE_LOST: its lease was not refreshed in time";
    for (now, since) in [(9_000, times("s1", 1_000)), (2_000, Times::new())] {
        let (play, acts) = Play::running().restart_at(now, &since, &found);
        let acts = short(&acts);
        assert_eq!(acts[1..3], [lost, "stop s1 0s"], "{acts:?}");
        assert_eq!(play.state("s1"), Some(InstanceState::Stopping));
    }
}

// spec: WORK-42
#[test]
fn a_new_worker_waits_for_news_of_the_guard_before_it_stops_for_want_of_one() {
    let found = [("s1", FoundState::Running)];
    let (mut play, _) = Play::running().restart_at(2_000, &times("s1", 1_000), &found);
    assert_eq!(short(&play.at(6_000)), ["refresh 2: s1#7"]);
    play.guard(GuardNews::Down("it ended at its start".to_owned()));
    assert_eq!(short(&play.at(6_999)), [""; 0]);
    let lost = "say s1 failed LEASE_LOST: no guard holds it";
    assert_eq!(short(&play.at(7_000)), [lost, "stop s1 0s"]);
}

// spec: LEASE-17
#[test]
fn a_start_that_waits_for_its_lease_waits_over_a_restart_too() {
    let mut play = Play::guarded();
    let deferred = StartSpec {
        defer_start: true,
        ..leased("j", "s1")
    };
    play.provision(&deferred);
    assert_eq!(play.news("s1", RuntimeEvent::Prepared), ["say s1 prepared"]);
    let order = Order::StartPrepared {
        key: key("j"),
        start_id: Some("s1".into()),
    };
    assert_eq!(short(&play.tell(Event::Order(order))), [""; 0]);
    let found = [("s1", FoundState::Prepared)];
    let (mut play, _) = play.restart_at(50, &Times::new(), &found);
    // Nothing of it runs, so that the time alone ends nothing.
    play.at(90_000);
    assert_eq!(play.state("s1"), Some(InstanceState::Prepared));
    play.guard(GuardNews::Up);
    assert_eq!(play.answer(2, vec![item("s1")]), ["hold s1 98500", "save"]);
    assert_eq!(play.held("s1", Mono(98_500)), ["start s1"]);
}

// spec: WORK-42
#[test]
fn without_a_guard_new_ones_are_rejected_and_running_ones_stop_within_one_allowance() {
    let mut play = Play::new();
    assert_eq!(
        short(&play.provision(&leased("j", "s0"))),
        ["say s0 rejected Lease"]
    );
    let mut play = Play::running();
    play.run(&spec("free", "s2"));
    play.at(2_000);
    let down = || GuardNews::Down("it has ended".to_owned());
    play.guard(down());
    assert_eq!(
        short(&play.provision(&leased("k", "s3"))),
        ["say s3 rejected Lease"]
    );
    assert_eq!(play.agent.next_deadline(), Some(Mono(3_000)));
    // Another one that holds it in time.
    play.guard(GuardNews::Up);
    play.at(2_500);
    play.held("s1", Mono(9_500));
    assert_eq!(short(&play.at(4_000)), [""; 0]);
    // And none, however often that is said.
    play.guard(down());
    assert_eq!(short(&play.at(4_999)), ["refresh 2: s1#7"]);
    play.guard(down());
    let lost = "say s1 failed LEASE_LOST: no guard holds it";
    assert_eq!(short(&play.at(5_000)), [lost, "stop s1 0s"]);
    assert_eq!(play.state("s2"), Some(InstanceState::Running));
}

// spec: WORK-42
#[test]
fn a_leased_start_that_no_guard_has_room_for_is_rejected() {
    let rejects = |spec: &StartSpec| {
        let acts = short(&Play::guarded().provision(spec));
        acts[0].ends_with("rejected Lease")
    };
    let mut wide = leased("j", "s1");
    let service = wide.services.remove(0);
    for n in 0..=CONTAINERS_MAX {
        let mut service = service.clone();
        service.name = format!("a{n}");
        wide.services.push(service);
    }
    assert!(rejects(&wide));
    wide.services.pop();
    assert!(!rejects(&wide));
    let long = "s".repeat(START_ID_MAX + 1);
    assert!(rejects(&leased("j", &long)));
    let mut play = Play::guarded();
    let machine = NodeInventory {
        total_capacity: 4.0,
        disks: play.agent.picture().disks,
        ..NodeInventory::default()
    };
    play.tell(Event::Machine(Box::new(machine)));
    for n in 0..=LEASES_MAX {
        let mut spec = leased(&format!("j{n}"), &format!("s{n}"));
        spec.services[0].parameters.port_mappings.clear();
        let acts = short(&play.provision(&spec));
        assert_eq!(acts[0].ends_with("rejected Lease"), n == LEASES_MAX, "{n}");
    }
}

// spec: LEASE-06, SOCK-16
#[test]
fn a_fencing_number_that_has_grown_is_kept_and_told_and_one_that_has_not_is_not() {
    let mut play = Play::running();
    play.at(4_333);
    let with = |fence| LeaseItem {
        fence,
        ..item("s1")
    };
    let acts = play.answer(2, vec![with(1 << 33)]);
    assert_eq!(acts, ["fence s1", "hold s1 12833", "save"]);
    let expected = format!("refresh 3: s1#{}", 1u64 << 33);
    assert_eq!(short(&play.at(7_666)), [expected]);
    assert_eq!(play.answer(3, vec![with(9)]), ["hold s1 16166", "save"]);
    let found = [("s1", FoundState::Running)];
    let (play, _) = play.restart_at(8_000, &times("s1", 7_666), &found);
    assert_eq!(play.agent.instances().next().unwrap().fence, 1 << 33);
}

// spec: LEASE-04
#[test]
fn what_was_sent_on_a_stream_that_ended_is_not_answered_by_the_next() {
    let mut play = Play::running();
    play.at(4_333);
    assert_eq!(short(&play.tell(Event::Connected)), ["refresh 3: s1#7"]);
    assert_eq!(play.answer(2, vec![item("s1")]), [""; 0]);
    assert_eq!(play.answer(99, vec![item("s1")]), [""; 0]);
    // One that answers nothing renews nothing.
    let silent = LeaseItem {
        ttl: Millis(0),
        ..item("s1")
    };
    assert_eq!(play.answer(3, vec![silent]), ["save"]);
    assert_eq!(short(&play.at(8_999))[0], "warn s1 1");
}
