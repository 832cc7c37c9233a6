//! The analyser's rules, one by one, on a clock that the test moves.

use std::net::SocketAddr;

use super::analyser::{Analyser, Settings};
use super::event::{Event, Kind};
use super::report::{Ended, Report};
use crate::packet::TestPacket;
use crate::rate::Rate;

const MS: u64 = 1_000;
const TICK: u64 = 20 * MS;
const A: Who = Who {
    ssrc: 0xa,
    port: 1,
    role: "primary",
    fence: Some(1),
};
const B: Who = Who {
    ssrc: 0xb,
    port: 2,
    role: "backup",
    fence: Some(2),
};

/// Number that is due at time 0 of the tests.
const BASE: u64 = 85_000_000_000;

#[derive(Debug, Clone, Copy)]
struct Who {
    ssrc: u32,
    port: u16,
    role: &'static str,
    fence: Option<u64>,
}

struct Bench {
    analyser: Analyser,
    events: Vec<Event>,
}

impl Who {
    fn from(self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }
}

impl Bench {
    fn new() -> Self {
        Self::with(None)
    }

    fn with(channel: Option<&str>) -> Self {
        let channel = channel.map(str::to_owned);
        let settings = Settings {
            channel,
            gap_us: 60 * MS,
            late_us: 60 * MS,
        };
        Self {
            analyser: Analyser::new(settings),
            events: Vec::new(),
        }
    }

    /// The packet with this number counted from [`BASE`], sent on time, arriving when due and a
    /// constant 5 ms later.
    fn on_time(&mut self, who: Who, number: u64) {
        self.arrive(who, "one", number, number * TICK, number * TICK + 5 * MS);
    }

    fn arrive(&mut self, who: Who, channel: &str, number: u64, sent_us: u64, at_us: u64) {
        let rate = Rate::default();
        let packet = TestPacket {
            ssrc: who.ssrc,
            number: BASE + number,
            rtp_time: rate.rtp_time(BASE + number),
            wall_us: rate.due_ns(BASE) / 1_000 + sent_us,
            channel,
            role: who.role,
            fence: who.fence,
        };
        let mut datagram = Vec::new();
        packet.encode(200, &mut datagram).unwrap();
        self.analyser
            .handle_datagram(at_us, who.from(), &datagram, &mut self.events);
    }

    fn raw(&mut self, who: Who, at_us: u64, datagram: &[u8]) {
        self.analyser
            .handle_datagram(at_us, who.from(), datagram, &mut self.events);
    }

    fn rtp(&mut self, who: Who, at_us: u64, sequence: u16) {
        let mut datagram = vec![0x80, 33];
        datagram.extend(sequence.to_be_bytes());
        datagram.extend([0; 4]);
        datagram.extend(who.ssrc.to_be_bytes());
        self.raw(who, at_us, &datagram);
    }

    fn tick(&mut self, now_us: u64) {
        self.analyser.tick(now_us, &mut self.events);
    }

    fn finish(mut self, now_us: u64, ended: Ended) -> (Report, Vec<Event>) {
        let report = self.analyser.finish(now_us, ended, &mut self.events);
        (report, self.events)
    }
}

/// Missing, repeated, reordered, late, silences, most senders at once.
fn counts(report: &Report) -> (u64, u64, u64, u64, usize, u32) {
    (
        report.missing,
        report.repeated,
        report.reordered,
        report.late,
        report.silences.len(),
        report.senders_at_once,
    )
}

// spec: MEDIA-04
#[test]
fn numbers_are_judged_as_a_viewer_would() {
    // Who sends which number, in order of arrival, one each 10 ms.
    type Case<'a> = (&'a str, &'a [(Who, u64)], (u64, u64, u64, u64, usize, u32));
    let cases: &[Case<'_>] = &[
        (
            "clean",
            &[(A, 0), (A, 1), (A, 2), (A, 3)],
            (0, 0, 0, 0, 0, 1),
        ),
        ("one lost", &[(A, 0), (A, 1), (A, 3)], (1, 0, 0, 0, 0, 1)),
        (
            "two swapped",
            &[(A, 0), (A, 2), (A, 1), (A, 3)],
            (0, 0, 1, 0, 0, 1),
        ),
        (
            "sent again",
            &[(A, 0), (A, 1), (A, 1), (A, 2)],
            (0, 1, 0, 0, 0, 1),
        ),
        (
            "handed over",
            &[(A, 0), (A, 1), (B, 2), (B, 3)],
            (0, 0, 0, 0, 0, 1),
        ),
        (
            "handed over with a hole",
            &[(A, 0), (A, 1), (B, 4), (B, 5)],
            (2, 0, 0, 0, 0, 1),
        ),
        (
            "swapped at the handover",
            &[(A, 0), (B, 2), (A, 1), (B, 3)],
            (0, 0, 1, 0, 0, 1),
        ),
        (
            "both",
            &[(A, 0), (B, 0), (A, 1), (B, 1), (A, 2)],
            (0, 2, 0, 0, 0, 2),
        ),
        (
            "the old one goes on",
            &[(A, 0), (B, 1), (A, 2), (B, 3)],
            (0, 0, 0, 0, 0, 2),
        ),
    ];
    for (name, arrivals, expected) in cases {
        let mut bench = Bench::new();
        for (index, (who, number)) in arrivals.iter().enumerate() {
            let at_us = index as u64 * 10 * MS;
            // Sent when it arrives: these cases are not about the way.
            bench.arrive(*who, "one", *number, at_us, at_us);
        }
        let end_us = arrivals.len() as u64 * 10 * MS;
        let (report, _) = bench.finish(end_us, Ended::Asked);
        assert_eq!(counts(&report), *expected, "{name}");
    }
}

// spec: MEDIA-04
#[test]
fn silences_are_those_above_the_gap() {
    let mut bench = Bench::new();
    bench.on_time(A, 0);
    bench.on_time(A, 3); // 60 ms: not above
    bench.on_time(A, 7); // 80 ms
    let (report, events) = bench.finish(7 * TICK + 5 * MS + 60 * MS, Ended::Asked);
    assert_eq!(report.silences.len(), 1);
    let silence = &report.silences[0];
    assert_eq!((silence.from_us, silence.until_us), (65 * MS, 145 * MS));
    assert_eq!(silence.after.as_ref(), Some(&silence.before));
    assert_eq!(report.longest_gap_us, 80 * MS);
    let on_air: Vec<Option<u64>> = events
        .iter()
        .filter_map(|event| match event {
            Event::OnAir { silence_us, .. } => Some(*silence_us),
            _ => None,
        })
        .collect();
    assert_eq!(
        on_air,
        [None, Some(80 * MS)],
        "the first packet, and the end of the silence"
    );
}

// spec: MEDIA-04
#[test]
fn a_silence_is_told_while_it_lasts() {
    let mut bench = Bench::new();
    bench.on_time(A, 0);
    bench.tick(65 * MS);
    assert!(
        !bench
            .events
            .iter()
            .any(|event| matches!(event, Event::SilenceBegan { .. }))
    );
    bench.tick(65 * MS + 1);
    bench.tick(90 * MS);
    let began: Vec<&Event> = bench
        .events
        .iter()
        .filter(|e| matches!(e, Event::SilenceBegan { .. }))
        .collect();
    let [
        Event::SilenceBegan {
            since_us,
            noticed_us,
            last_number,
            ..
        },
    ] = began[..]
    else {
        panic!("one silence, once: {began:?}")
    };
    assert_eq!(
        (*since_us, *noticed_us, *last_number),
        (5 * MS, 65 * MS + 1, BASE)
    );
    let live = bench.analyser.live(90 * MS);
    assert!(live.is_silent && live.on_air.is_empty());
    assert_eq!(live.silent_us, Some(85 * MS));
}

// spec: MEDIA-04
#[test]
fn a_stream_that_never_comes_back_is_silent_until_the_end() {
    for (ended, silences, longest_us) in [
        (Ended::Asked, 1, 995 * MS),
        (Ended::Duration, 1, 995 * MS),
        (Ended::Idle, 0, 0),
    ] {
        let mut bench = Bench::new();
        bench.on_time(A, 0);
        let (report, _) = bench.finish(1_000 * MS, ended);
        assert_eq!(
            (report.silences.len(), report.longest_gap_us),
            (silences, longest_us)
        );
        assert!(
            report
                .silences
                .iter()
                .all(|silence| silence.after.is_none())
        );
    }
}

// spec: MEDIA-04
#[test]
fn who_was_on_air_when_is_listed_with_role_and_fence() {
    let mut bench = Bench::new();
    for number in 0..10 {
        bench.on_time(A, number);
    }
    for number in 15..20 {
        bench.on_time(B, number);
    }
    let (report, events) = bench.finish(20 * TICK, Ended::Asked);
    let sessions: Vec<_> = report
        .on_air
        .iter()
        .map(|s| {
            (
                s.sender.role.as_deref(),
                s.sender.fence,
                s.from_us,
                s.until_us,
                s.packets,
            )
        })
        .collect();
    assert_eq!(
        sessions,
        [
            (Some("primary"), Some(1), 5 * MS, 9 * TICK + 5 * MS, 10),
            (
                Some("backup"),
                Some(2),
                15 * TICK + 5 * MS,
                19 * TICK + 5 * MS,
                5
            ),
        ]
    );
    assert_eq!(report.missing, 5);
    let changed = events.iter().find_map(|event| match event {
        Event::SenderChanged {
            from,
            to,
            gap_us,
            number,
            ..
        } => Some((from.ssrc, to.ssrc, *gap_us, *number)),
        _ => None,
    });
    assert_eq!(changed, Some((Some(0xa), Some(0xb), 6 * TICK, BASE + 15)));
}

// spec: MEDIA-04
#[test]
fn one_sender_with_a_new_fence_is_a_new_entry() {
    let mut bench = Bench::new();
    bench.on_time(A, 0);
    bench.on_time(A, 1);
    bench.on_time(
        Who {
            fence: Some(9),
            ..A
        },
        2,
    );
    let (report, _) = bench.finish(3 * TICK, Ended::Asked);
    let fences: Vec<_> = report
        .on_air
        .iter()
        .map(|s| (s.sender.id, s.sender.fence))
        .collect();
    assert_eq!(fences, [(1, Some(1)), (1, Some(9))]);
    assert_eq!(counts(&report), (0, 0, 0, 0, 0, 1));
}

// spec: MEDIA-04
#[test]
fn an_overlap_lasts_from_the_newcomer_to_the_last_packet_of_the_other() {
    let mut bench = Bench::new();
    for number in 0..20 {
        if number >= 5 {
            bench.arrive(B, "one", number, number * TICK, number * TICK + 2 * MS);
        }
        if number < 10 {
            bench.on_time(A, number);
        }
    }
    let (report, events) = bench.finish(20 * TICK, Ended::Asked);
    let [overlap] = &report.overlaps[..] else {
        panic!("one overlap: {:?}", report.overlaps)
    };
    assert_eq!(
        (overlap.first.fence, overlap.second.fence),
        (Some(1), Some(2))
    );
    assert_eq!(
        (overlap.from_us, overlap.until_us),
        (5 * TICK + 2 * MS, 9 * TICK + 5 * MS)
    );
    assert_eq!((report.repeated, report.senders_at_once), (5, 2));
    let run = events.iter().find_map(|event| match event {
        Event::Repeated(run) => Some((run.first, run.last, run.count)),
        _ => None,
    });
    assert_eq!(
        run,
        Some((BASE + 5, BASE + 9, 5)),
        "one line for all of them"
    );
}

// spec: MEDIA-04
#[test]
fn late_is_what_the_sender_or_the_way_held_back() {
    let mut bench = Bench::new();
    for number in 0..10 {
        bench.on_time(A, number);
    }
    let sent_late = |number: u64| number * TICK + 80 * MS;
    bench.arrive(A, "one", 10, sent_late(10), sent_late(10) + 5 * MS);
    bench.arrive(A, "one", 11, sent_late(11), sent_late(11) + 5 * MS);
    // Sent on time, 50 ms longer under way than the others: not late yet; then 61 ms: late.
    bench.arrive(A, "one", 16, 16 * TICK, 16 * TICK + 55 * MS);
    bench.arrive(A, "one", 17, 17 * TICK, 17 * TICK + 66 * MS);
    let (report, events) = bench.finish(20 * TICK, Ended::Asked);
    assert_eq!((report.late, report.latest_us), (3, 80 * MS));
    let run = events.iter().find_map(|event| match event {
        Event::Late(run) => Some((run.first, run.last, run.count, run.worst_us)),
        _ => None,
    });
    assert_eq!(run, Some((BASE + 10, BASE + 17, 3, Some(80 * MS))));
}

// spec: MEDIA-04
#[test]
fn another_clock_at_the_sender_is_not_late() {
    let mut bench = Bench::new();
    // Arrives a constant minute "after" it was sent, and the clocks drift by 100 ppm.
    for number in 0..20_000 {
        let due_us = number * TICK;
        let minute_us = 60_000 * MS;
        bench.arrive(
            A,
            "one",
            number,
            due_us,
            minute_us + due_us + due_us / 10_000,
        );
    }
    let (report, _) = bench.finish(60_000 * MS + 20_000 * TICK, Ended::Asked);
    assert_eq!(report.late, 0);
}

// spec: MEDIA-04
#[test]
fn only_the_channel_asked_for_counts() {
    let mut bench = Bench::with(Some("one"));
    bench.arrive(A, "one", 0, 0, 5 * MS);
    bench.arrive(B, "two", 900, 0, 6 * MS);
    bench.rtp(B, 7 * MS, 5);
    bench.raw(B, 8 * MS, b"what is this");
    bench.arrive(A, "one", 1, TICK, TICK + 5 * MS);
    let (report, _) = bench.finish(2 * TICK, Ended::Asked);
    assert_eq!(
        (report.packets, report.ignored, report.unreadable),
        (2, 2, 1)
    );
    assert_eq!(counts(&report), (0, 0, 0, 0, 0, 1));
}

// spec: MEDIA-05
#[test]
fn foreign_rtp_is_counted_by_its_sequence() {
    let mut bench = Bench::new();
    for (step, sequence) in [65_533, 65_534, 65_535, 1, 0, 2, 2, 5]
        .into_iter()
        .enumerate()
    {
        bench.rtp(A, step as u64 * MS, sequence);
    }
    // Another encoder begins where it likes: its numbers are its own.
    bench.rtp(B, 20 * MS, 40_000);
    bench.rtp(B, 21 * MS, 40_001);
    let (report, _) = bench.finish(30 * MS, Ended::Asked);
    assert_eq!(counts(&report), (2, 1, 1, 0, 0, 1));
    assert_eq!(
        (report.senders.len(), report.senders[0].kind),
        (2, Kind::Rtp)
    );
    assert_eq!(report.on_air[0].packets, 8);
    assert_eq!(
        (report.missing_list[0].first, report.missing_list[0].last),
        (131_075, 131_076)
    );
}

// spec: MEDIA-05
#[test]
fn a_foreign_sender_that_begins_anew_is_no_loss_of_thousands() {
    let mut bench = Bench::new();
    for (step, sequence) in [100, 101, 30_000, 30_001].into_iter().enumerate() {
        bench.rtp(A, step as u64 * MS, sequence);
    }
    let (report, events) = bench.finish(10 * MS, Ended::Asked);
    assert_eq!((report.missing, report.restarts), (0, 1));
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Restarted { .. }))
    );
}

// spec: MEDIA-05
#[test]
fn a_transport_stream_is_counted_by_its_continuity_counters() {
    let mut bench = Bench::new();
    let packet = |pid: u16, continuity: u8| {
        let mut packet = vec![0x47, (pid >> 8) as u8, pid as u8, 0x10 | continuity];
        packet.resize(188, 0xff);
        packet
    };
    let datagrams = [
        [packet(256, 14), packet(257, 3), packet(0x1fff, 0)].concat(),
        [packet(256, 15), packet(257, 4), packet(256, 0)].concat(),
        [packet(256, 3), packet(257, 5), packet(257, 6)].concat(),
    ];
    for (step, datagram) in datagrams.iter().enumerate() {
        bench.raw(A, step as u64 * 10 * MS, datagram);
    }
    let (report, _) = bench.finish(30 * MS, Ended::Asked);
    assert_eq!(counts(&report), (2, 0, 0, 0, 0, 1), "256 jumps from 0 to 3");
    assert_eq!(
        report.missing_list[0].numbers_of,
        "PID 256 from 127.0.0.1:1"
    );
    assert_eq!(report.senders[0].kind, Kind::Ts);
}

// spec: MEDIA-04
#[test]
fn own_drops_are_told_apart() {
    let mut bench = Bench::new();
    bench.on_time(A, 0);
    for (at_us, total) in [(10 * MS, 0), (20 * MS, 3), (30 * MS, 3)] {
        bench
            .analyser
            .note_own_drops(at_us, total, &mut bench.events);
    }
    let (report, events) = bench.finish(40 * MS, Ended::Asked);
    assert_eq!(report.own_drops, Some(3));
    let told = events
        .iter()
        .filter(|event| matches!(event, Event::OwnDrops { total: 3, .. }));
    assert_eq!(told.count(), 1);
}

// Goal: counting is bounded work and memory. Method: more senders than are told apart.
#[test]
fn a_flood_of_senders_is_cut_off() {
    let mut bench = Bench::new();
    for ssrc in 0..2_000 {
        bench.rtp(Who { ssrc, ..A }, u64::from(ssrc), 0);
    }
    let (report, _) = bench.finish(60 * MS, Ended::Asked);
    assert_eq!((report.senders.len(), report.ignored), (1_024, 976));
}
