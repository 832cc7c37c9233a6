//! What a probe notices while it watches, one enum: each variant is a finding line of `--json`.
//!
//! Times are microseconds since the probe began, of packets' arrival; see [`super::Report`] for
//! the wall time of that beginning.

use std::fmt;
use std::net::SocketAddr;

use serde::{Serialize, Serializer};

/// Something a viewer, or an operator, would want to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Event {
    /// The first packet of all, or the first after a silence.
    OnAir {
        /// When it came.
        at_us: u64,
        /// Who sent it.
        sender: Sender,
        /// Its number.
        number: u64,
        /// How long nothing had come; absent for the first packet of all.
        silence_us: Option<u64>,
    },
    /// Nothing has come for longer than the gap allowed.
    SilenceBegan {
        /// Arrival of the last packet.
        since_us: u64,
        /// When it was noticed.
        noticed_us: u64,
        /// Who sent the last packet.
        sender: Sender,
        /// Its number.
        last_number: u64,
    },
    /// A sender came on air, and the last packet before was another one's.
    SenderChanged {
        /// Arrival of its first packet.
        at_us: u64,
        /// Who sent the packet before.
        from: Sender,
        /// Who came.
        to: Sender,
        /// Number of the first packet.
        number: u64,
        /// Time between these two packets: the gap that the viewer saw.
        gap_us: u64,
    },
    /// A sender has sent nothing for longer than the gap allowed.
    SenderOff(OnAir),
    /// Two senders send at once.
    TwoSenders {
        /// Since when.
        from_us: u64,
        /// The one that was there before.
        first: Sender,
        /// The one that came.
        second: Sender,
    },
    /// They do not any more.
    TwoSendersEnded(Overlap),
    /// Numbers that nobody brought.
    Missing(Missing),
    /// Numbers that came again.
    Repeated(Run),
    /// Numbers that came after a higher one.
    Reordered(Run),
    /// Packets that came too long after they were due.
    Late(Run),
    /// A foreign sender began a new numbering, so how much was lost there is unknown.
    Restarted {
        /// When.
        at_us: u64,
        /// Who.
        sender: Sender,
    },
    /// This machine dropped packets before the probe could read them.
    OwnDrops {
        /// When it was noticed.
        at_us: u64,
        /// How many so far.
        total: u64,
    },
}

/// What a sender sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Our test signal.
    Test,
    /// Foreign RTP.
    Rtp,
    /// MPEG transport stream in UDP.
    Ts,
}

/// One sender: an SSRC at a source address, with what its packets say about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sender {
    /// Order of appearance, from 1.
    pub id: usize,
    /// What it sends.
    pub kind: Kind,
    /// Source address.
    pub from: SocketAddr,
    /// Synchronisation source; absent for transport streams.
    #[serde(serialize_with = "hexadecimal")]
    pub ssrc: Option<u32>,
    /// Channel, if it is a test signal.
    pub channel: Option<String>,
    /// Role, if it is a test signal.
    pub role: Option<String>,
    /// Fencing number, if it says one.
    pub fence: Option<u64>,
}

/// One stretch of time in which a sender sent without a silence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OnAir {
    /// Who.
    pub sender: Sender,
    /// Arrival of its first packet.
    pub from_us: u64,
    /// Arrival of its last packet.
    pub until_us: u64,
    /// Number of the first packet.
    pub first_number: u64,
    /// Number of the last packet.
    pub last_number: u64,
    /// Datagrams.
    pub packets: u64,
}

/// One stretch of time in which nothing came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Silence {
    /// Arrival of the last packet before.
    pub from_us: u64,
    /// Arrival of the first packet after, or the end of the watch.
    pub until_us: u64,
    /// Who sent the last packet before.
    pub before: Sender,
    /// Who sent the first packet after; absent if the watch ended first.
    pub after: Option<Sender>,
}

/// One stretch of time in which two senders sent at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overlap {
    /// The one that was there before.
    pub first: Sender,
    /// The one that came.
    pub second: Sender,
    /// First packet of the second one.
    pub from_us: u64,
    /// Last packet of the one that stopped first.
    pub until_us: u64,
}

/// Consecutive numbers that nobody brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Missing {
    /// Whose numbers.
    pub numbers_of: String,
    /// First of them.
    pub first: u64,
    /// Last of them.
    pub last: u64,
    /// How many.
    pub count: u64,
    /// Arrival of the packet behind them.
    pub found_us: u64,
}

/// Several like findings in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Whose numbers.
    pub numbers_of: String,
    /// First number.
    pub first: u64,
    /// Last number.
    pub last: u64,
    /// How many packets.
    pub count: u64,
    /// Arrival of the first.
    pub from_us: u64,
    /// Arrival of the last.
    pub until_us: u64,
    /// For late packets, the worst of them.
    pub worst_us: Option<u64>,
}

// === impl Sender ===

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Test => f.write_str(self.channel.as_deref().unwrap_or_default())?,
            Kind::Rtp => f.write_str("RTP")?,
            Kind::Ts => f.write_str("TS")?,
        }
        if let Some(role) = self.role.as_deref().filter(|role| !role.is_empty()) {
            write!(f, " {role}")?;
        }
        if let Some(fence) = self.fence {
            write!(f, " fence {fence}")?;
        }
        match self.ssrc {
            Some(ssrc) => write!(f, " ({ssrc:08x} from {})", self.from),
            None => write!(f, " (from {})", self.from),
        }
    }
}

// === impl Overlap, Silence ===

impl Silence {
    /// How long it was.
    pub fn length_us(&self) -> u64 {
        self.until_us.saturating_sub(self.from_us)
    }
}

impl Overlap {
    /// How long it was.
    pub fn length_us(&self) -> u64 {
        self.until_us.saturating_sub(self.from_us)
    }
}

fn hexadecimal<S: Serializer>(ssrc: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    match ssrc {
        Some(ssrc) => serializer.collect_str(&format_args!("{ssrc:#010x}")),
        None => serializer.serialize_none(),
    }
}
