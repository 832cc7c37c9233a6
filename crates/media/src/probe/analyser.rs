//! The rules of the meter: datagrams with arrival times in, findings out (MEDIA-04, -05). Pure.
//!
//! Everything that arrives is one programme, as it is for a viewer who tuned in to this address:
//! silences and who is on air are judged over all senders together. Numbers are judged per space:
//! the test signal's numbers are locked to the wall clock and so belong to the channel, whoever
//! sends them; a foreign RTP sequence belongs to its sender, a continuity counter to its sender
//! and packet identifier.
//!
//! Times are microseconds on any clock that does not go back; calls must not go back either.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::event::{Event, Kind, Missing, OnAir, Overlap, Run, Sender, Silence};
use super::numbers::{Seen, Unwrapped, Unwrapper};
use super::report::{Ended, Live, Report};
use super::space::{RUN_MERGE_US, Space, Transit, extend};
use crate::packet::{self, Datagram, TestPacket};

/// Most senders told apart; more are a flood of random sources and not a programme.
pub const SENDERS_MAX: usize = 1_024;

/// Most entries in each list of a report; counters go on beyond it.
pub const LIST_MAX: usize = 10_000;

/// What counts as what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Only the test signal of this channel counts; everything else is ignored.
    pub channel: Option<String>,
    /// Longest time between packets that is no silence.
    pub gap_us: u64,
    /// Longest delay of a test packet that is not late: the sender's own delay (by the wall time in
    /// the packet against the number's media time) plus how much longer it was under way than the
    /// fastest packet of the last seconds. Needs no synchronised clocks.
    pub late_us: u64,
}

/// The meter's memory.
#[derive(Debug)]
pub struct Analyser {
    settings: Settings,
    report: Report,
    senders: Vec<SenderState>,
    sender_index: BTreeMap<(SocketAddr, Option<u32>), usize>,
    spaces: Vec<Space>,
    space_index: BTreeMap<SpaceKey, usize>,
    /// Indexes of the senders with an open session.
    on_air: Vec<usize>,
    /// Open overlaps by the pair of senders, lower index first.
    overlaps: BTreeMap<(usize, usize), Overlap>,
    last: Option<Last>,
    silent: bool,
}

/// The last packet of all.
#[derive(Debug, Clone, Copy)]
struct Last {
    at_us: u64,
    sender: usize,
    number: u64,
}

#[derive(Debug)]
struct SenderState {
    label: Sender,
    space: Option<usize>,
    unwrapper: Unwrapper,
    transit: Transit,
    session: Option<OnAir>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SpaceKey {
    Channel(String),
    Sender(usize),
    Pid(usize, u16),
}

/// A datagram that counts.
#[derive(Debug, Clone, Copy)]
struct Arrival<'a> {
    at_us: u64,
    from: SocketAddr,
    datagram: Datagram<'a>,
}

// === impl Analyser ===

impl Analyser {
    /// Nothing seen yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            report: Report::default(),
            senders: Vec::new(),
            sender_index: BTreeMap::new(),
            spaces: Vec::new(),
            space_index: BTreeMap::new(),
            on_air: Vec::new(),
            overlaps: BTreeMap::new(),
            last: None,
            silent: false,
        }
    }

    /// Takes a datagram that arrived.
    pub fn handle_datagram(
        &mut self,
        at_us: u64,
        from: SocketAddr,
        bytes: &[u8],
        events: &mut Vec<Event>,
    ) {
        self.tick(at_us, events);
        let datagram = packet::recognise(bytes);
        if !self.is_wanted(&datagram) {
            return;
        }
        let arrival = Arrival {
            at_us,
            from,
            datagram,
        };
        let Some(sender) = self.ensure_sender(&arrival) else {
            self.report.ignored += 1;
            return;
        };
        self.note_label(sender, &arrival, events);
        let number = self.count_numbers(sender, &arrival, events);
        self.follow_silence(sender, at_us, number, events);
        self.follow_sender(sender, at_us, number, events);
        self.find_overlaps(sender, at_us, number, events);
        self.last = Some(Last {
            at_us,
            sender,
            number,
        });
        self.report.packets += 1;
        self.report.bytes += bytes.len() as u64;
    }

    /// Notices what shows only by nothing coming. Every packet that arrived before `now_us` must
    /// have been handled.
    pub fn tick(&mut self, now_us: u64, events: &mut Vec<Event>) {
        let gap_us = self.settings.gap_us;
        if let Some(last) = self.last
            && !self.silent
            && now_us.saturating_sub(last.at_us) > gap_us
        {
            self.silent = true;
            events.push(Event::SilenceBegan {
                since_us: last.at_us,
                noticed_us: now_us,
                sender: self.senders[last.sender].label.clone(),
                last_number: last.number,
            });
        }
        let gone: Vec<usize> = self
            .on_air
            .iter()
            .copied()
            .filter(|&index| {
                let session = self.senders[index].session.as_ref();
                session.is_some_and(|session| now_us.saturating_sub(session.until_us) > gap_us)
            })
            .collect();
        for index in gone {
            self.close_session(index, events);
        }
        self.settle_spaces(Some(now_us), events);
    }

    /// Takes the kernel's count of datagrams that this machine dropped at the probe's own socket.
    pub fn note_own_drops(&mut self, at_us: u64, total: u64, events: &mut Vec<Event>) {
        if total > self.report.own_drops.unwrap_or(0) {
            events.push(Event::OwnDrops { at_us, total });
        }
        self.report.own_drops = Some(total);
    }

    /// How it stands.
    pub fn live(&self, now_us: u64) -> Live {
        let open: u64 = self
            .spaces
            .iter()
            .map(|space| space.numbers.open_count())
            .sum();
        Live {
            at_us: now_us,
            packets: self.report.packets,
            on_air: self
                .on_air
                .iter()
                .map(|&index| self.senders[index].label.clone())
                .collect(),
            last_number: self.last.map(|last| last.number),
            silent_us: self.last.map(|last| now_us.saturating_sub(last.at_us)),
            is_silent: self.silent,
            missing: self.report.missing + open,
            repeated: self.report.repeated,
            reordered: self.report.reordered,
            late: self.report.late,
            longest_gap_us: self.report.longest_gap_us,
        }
    }

    /// Arrival of the last packet that counted.
    pub fn last_arrival_us(&self) -> Option<u64> {
        self.last.map(|last| last.at_us)
    }

    /// Ends the watch. A silence that lasts until then counts, unless the watch ended because
    /// waiting for the stream's end was what it was told to do ([`Ended::Idle`]).
    pub fn finish(mut self, now_us: u64, ended: Ended, events: &mut Vec<Event>) -> Report {
        self.tick(now_us, events);
        for index in self.on_air.clone() {
            self.close_session(index, events);
        }
        self.settle_spaces(None, events);
        if let Some(last) = self.last
            && ended != Ended::Idle
        {
            self.note_gap(last, now_us, None);
        }
        self.report.ended = ended;
        self.report.duration_us = now_us;
        self.report.last_arrival_us = self.last_arrival_us();
        self.report.senders = self
            .senders
            .iter()
            .map(|sender| sender.label.clone())
            .collect();
        self.report
    }

    fn is_wanted(&mut self, datagram: &Datagram<'_>) -> bool {
        match (datagram, &self.settings.channel) {
            (Datagram::Unreadable, _) => {
                self.report.unreadable += 1;
                false
            }
            (_, None) => true,
            (Datagram::Test(test), Some(channel)) if test.channel == channel => true,
            (_, Some(_)) => {
                self.report.ignored += 1;
                false
            }
        }
    }

    /// The sender's index; `None` if there are too many.
    fn ensure_sender(&mut self, arrival: &Arrival<'_>) -> Option<usize> {
        let (kind, ssrc) = match &arrival.datagram {
            Datagram::Test(test) => (Kind::Test, Some(test.ssrc)),
            Datagram::Rtp(header) => (Kind::Rtp, Some(header.ssrc)),
            Datagram::Ts(_) | Datagram::Unreadable => (Kind::Ts, None),
        };
        let key = (arrival.from, ssrc);
        if let Some(&index) = self.sender_index.get(&key) {
            return Some(index);
        }
        if self.senders.len() == SENDERS_MAX {
            return None;
        }
        let index = self.senders.len();
        let id = index + 1;
        let (channel, role, fence) = (None, None, None);
        self.senders.push(SenderState {
            label: Sender {
                id,
                kind,
                from: arrival.from,
                ssrc,
                channel,
                role,
                fence,
            },
            space: None,
            unwrapper: Unwrapper::default(),
            transit: Transit::default(),
            session: None,
        });
        self.sender_index.insert(key, index);
        Some(index)
    }

    /// Keeps what a test packet says about its sender; a new role, fence number or channel ends the
    /// session.
    fn note_label(&mut self, index: usize, arrival: &Arrival<'_>, events: &mut Vec<Event>) {
        let Datagram::Test(test) = &arrival.datagram else {
            return;
        };
        if self.senders[index].says(test) {
            return;
        }
        self.close_session(index, events);
        let state = &mut self.senders[index];
        state.label.channel = Some(test.channel.to_owned());
        state.label.role = Some(test.role.to_owned());
        state.label.fence = test.fence;
        state.space = None;
    }

    /// Takes the datagram's number or numbers; returns the one to show for it.
    fn count_numbers(
        &mut self,
        sender: usize,
        arrival: &Arrival<'_>,
        events: &mut Vec<Event>,
    ) -> u64 {
        let at_us = arrival.at_us;
        match &arrival.datagram {
            Datagram::Test(test) => {
                let space = match self.senders[sender].space {
                    Some(space) => space,
                    None => {
                        let name = format!("channel {}", test.channel);
                        self.ensure_space(SpaceKey::Channel(test.channel.to_owned()), name)
                    }
                };
                self.senders[sender].space = Some(space);
                self.count(space, test.number, at_us);
                let delay_us = self.senders[sender].transit.delay_us(at_us, test);
                if delay_us > self.settings.late_us {
                    self.report.late += 1;
                    self.report.latest_us = self.report.latest_us.max(delay_us);
                    let found = (test.number, at_us, Some(delay_us));
                    extend(&mut self.spaces[space], |space| &mut space.late, found);
                }
                test.number
            }
            Datagram::Rtp(header) => {
                let name = format!("RTP {:08x} from {}", header.ssrc, arrival.from);
                let space = self.ensure_space(SpaceKey::Sender(sender), name);
                self.senders[sender].space = Some(space);
                match self.senders[sender].unwrapper.accept(header.sequence) {
                    Unwrapped::Number(number) => self.count(space, number, at_us),
                    Unwrapped::Restart(number) => {
                        self.settle_space(space, None, events);
                        self.spaces[space].numbers.restart();
                        self.count(space, number, at_us);
                        self.report.restarts += 1;
                        let sender = self.senders[sender].label.clone();
                        events.push(Event::Restarted { at_us, sender });
                    }
                    Unwrapped::Nothing => {}
                }
                u64::from(header.sequence)
            }
            Datagram::Ts(packets) => {
                for header in packet::ts_headers(packets) {
                    let name = format!("PID {} from {}", header.pid, arrival.from);
                    let space = self.ensure_space(SpaceKey::Pid(sender, header.pid), name);
                    let (payload, jump) = (header.has_payload, header.discontinuity);
                    let counter = &mut self.spaces[space].continuity;
                    if let Unwrapped::Number(number) =
                        counter.accept(header.continuity, payload, jump)
                    {
                        self.count(space, number, at_us);
                    }
                }
                self.report.packets
            }
            Datagram::Unreadable => self.report.packets,
        }
    }

    fn ensure_space(&mut self, key: SpaceKey, name: String) -> usize {
        let next = self.spaces.len();
        let index = *self.space_index.entry(key).or_insert(next);
        if index == next {
            self.spaces.push(Space::new(name));
        }
        index
    }

    fn count(&mut self, space: usize, number: u64, at_us: u64) {
        let space = &mut self.spaces[space];
        match space.numbers.accept(number, at_us) {
            Seen::New => {}
            Seen::Repeated => {
                self.report.repeated += 1;
                extend(space, |space| &mut space.repeated, (number, at_us, None));
            }
            Seen::Reordered => {
                self.report.reordered += 1;
                extend(space, |space| &mut space.reordered, (number, at_us, None));
            }
        }
    }

    fn follow_silence(&mut self, sender: usize, at_us: u64, number: u64, events: &mut Vec<Event>) {
        let silence_us = match self.last {
            None => None,
            Some(last) => {
                self.note_gap(last, at_us, Some(sender));
                if !self.silent {
                    return;
                }
                Some(at_us.saturating_sub(last.at_us))
            }
        };
        self.silent = false;
        let sender = self.senders[sender].label.clone();
        events.push(Event::OnAir {
            at_us,
            sender,
            number,
            silence_us,
        });
    }

    fn note_gap(&mut self, last: Last, until_us: u64, after: Option<usize>) {
        let gap_us = until_us.saturating_sub(last.at_us);
        self.report.longest_gap_us = self.report.longest_gap_us.max(gap_us);
        if gap_us <= self.settings.gap_us {
            return;
        }
        let silence = Silence {
            from_us: last.at_us,
            until_us,
            before: self.senders[last.sender].label.clone(),
            after: after.map(|index| self.senders[index].label.clone()),
        };
        list(
            &mut self.report.silences,
            silence,
            &mut self.report.left_out,
        );
    }

    /// Keeps the sender's session.
    fn follow_sender(&mut self, index: usize, at_us: u64, number: u64, events: &mut Vec<Event>) {
        let state = &mut self.senders[index];
        if let Some(session) = &mut state.session {
            session.last_number = number;
            session.packets += 1;
            return;
        }
        let label = state.label.clone();
        state.session = Some(OnAir {
            sender: label.clone(),
            from_us: at_us,
            until_us: at_us,
            first_number: number,
            last_number: number,
            packets: 1,
        });
        self.on_air.push(index);
        if let Some(last) = self.last
            && last.sender != index
        {
            let from = self.senders[last.sender].label.clone();
            let gap_us = at_us.saturating_sub(last.at_us);
            events.push(Event::SenderChanged {
                at_us,
                from,
                to: label,
                number,
                gap_us,
            });
        }
    }

    /// Two senders are on air at once if one's packet came between two of the other's. A packet of
    /// the test signal that is older than everything of the other one shows nothing: it only took
    /// longer.
    fn find_overlaps(&mut self, index: usize, at_us: u64, number: u64, events: &mut Vec<Event>) {
        let Some(session) = &mut self.senders[index].session else {
            return;
        };
        let before_us = std::mem::replace(&mut session.until_us, at_us);
        let (from_us, first_number) = (session.from_us, session.first_number);
        let goes_on = session.packets > 1;
        let mut at_once = 1;
        if goes_on {
            for &other in self.on_air.iter().filter(|&&other| other != index) {
                let Some(theirs) = &self.senders[other].session else {
                    continue;
                };
                // The second half tells the order of packets that arrived in one microsecond.
                let between = theirs.until_us > before_us
                    || self.last.is_some_and(|last| last.sender == other);
                let comparable = self.senders[index].space.is_some()
                    && self.senders[index].space == self.senders[other].space;
                let straggler = comparable
                    && (number < theirs.first_number || theirs.last_number < first_number);
                if !between || straggler {
                    continue;
                }
                at_once += 1;
                let pair = (index.min(other), index.max(other));
                if let Some(open) = self.overlaps.get_mut(&pair) {
                    open.until_us = theirs.until_us;
                    continue;
                }
                let mine_first = from_us <= theirs.from_us;
                let (first, second) = if mine_first {
                    (index, other)
                } else {
                    (other, index)
                };
                let overlap = Overlap {
                    first: self.senders[first].label.clone(),
                    second: self.senders[second].label.clone(),
                    from_us: from_us.max(theirs.from_us),
                    until_us: theirs.until_us,
                };
                events.push(Event::TwoSenders {
                    from_us: overlap.from_us,
                    first: overlap.first.clone(),
                    second: overlap.second.clone(),
                });
                self.overlaps.insert(pair, overlap);
            }
        }
        self.report.senders_at_once = self.report.senders_at_once.max(at_once);
    }

    fn close_session(&mut self, index: usize, events: &mut Vec<Event>) {
        let Some(session) = self.senders[index].session.take() else {
            return;
        };
        self.on_air.retain(|&other| other != index);
        let ended = self
            .overlaps
            .extract_if(.., |pair, _| pair.0 == index || pair.1 == index);
        for (_, overlap) in ended {
            list(
                &mut self.report.overlaps,
                overlap.clone(),
                &mut self.report.left_out,
            );
            events.push(Event::TwoSendersEnded(overlap));
        }
        list(
            &mut self.report.on_air,
            session.clone(),
            &mut self.report.left_out,
        );
        events.push(Event::SenderOff(session));
    }

    fn settle_spaces(&mut self, now_us: Option<u64>, events: &mut Vec<Event>) {
        for space in 0..self.spaces.len() {
            self.settle_space(space, now_us, events);
        }
    }

    /// Gives up old holes and ends runs that do not go on; all of them without a time.
    fn settle_space(&mut self, space: usize, now_us: Option<u64>, events: &mut Vec<Event>) {
        let (space, report) = (&mut self.spaces[space], &mut self.report);
        space.numbers.give_up(now_us, |hole| {
            let missing = Missing {
                numbers_of: space.name.clone(),
                first: hole.first,
                last: hole.last,
                count: hole.count(),
                found_us: hole.found_us,
            };
            report.missing += missing.count;
            list(
                &mut report.missing_list,
                missing.clone(),
                &mut report.left_out,
            );
            events.push(Event::Missing(missing));
        });
        let over = |run: &mut Run| now_us.is_none_or(|now| now > run.until_us + RUN_MERGE_US);
        if let Some(run) = space.repeated.take_if(over) {
            list(&mut report.repeated_list, run.clone(), &mut report.left_out);
            events.push(Event::Repeated(run));
        }
        if let Some(run) = space.reordered.take_if(over) {
            list(
                &mut report.reordered_list,
                run.clone(),
                &mut report.left_out,
            );
            events.push(Event::Reordered(run));
        }
        if let Some(run) = space.late.take_if(over) {
            list(&mut report.late_list, run.clone(), &mut report.left_out);
            events.push(Event::Late(run));
        }
    }
}

// === impl SenderState ===

impl SenderState {
    fn says(&self, test: &TestPacket<'_>) -> bool {
        self.label.channel.as_deref() == Some(test.channel)
            && self.label.role.as_deref() == Some(test.role)
            && self.label.fence == test.fence
    }
}

fn list<T>(items: &mut Vec<T>, item: T, left_out: &mut u64) {
    if items.len() < LIST_MAX {
        items.push(item);
    } else {
        *left_out += 1;
    }
}
