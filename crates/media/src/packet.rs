//! Datagrams as bytes: the test packet's encoding and what a probe can recognise (MEDIA-01, -05).
//!
//! A test packet is RTP (version 2, payload type 96, no CSRC, no extension) whose payload is:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `GRTC` |
//! | 1 | version, 1 |
//! | 8 | number of the packet |
//! | 8 | sender's wall time in microseconds since the Unix epoch |
//! | 1 + n | length and UTF-8 text of the channel name |
//! | 1 + n | length and UTF-8 text of the role |
//! | 1, or 1 + 8 | 0, or 1 and the fence number |
//! | rest | zeros up to the payload size |
//!
//! Numbers are big-endian. Pure functions: no sockets, no clock.

/// Length of an RTP header without CSRC and extension.
pub const RTP_HEADER_LEN: usize = 12;
/// Payload type of a test packet, the first of the dynamic ones.
pub const PAYLOAD_TYPE: u8 = 96;
/// First bytes of a test packet's payload.
pub const MAGIC: [u8; 4] = *b"GRTC";
/// Version of the payload.
pub const VERSION: u8 = 1;
/// Default payload size: seven transport stream packets, what real encoders send.
pub const DEFAULT_SIZE: usize = 188 * 7;
/// Largest payload: what fits into one IPv4 datagram behind the RTP header.
pub const SIZE_MAX: usize = 65_507 - RTP_HEADER_LEN;
/// Length of one MPEG transport stream packet.
pub const TS_PACKET_LEN: usize = 188;

const TS_SYNC: u8 = 0x47;

/// One packet of the test signal; texts borrow from the datagram or from the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestPacket<'a> {
    /// Synchronisation source: one instance of a sender.
    pub ssrc: u32,
    /// Epoch-locked number; its low 16 bits are the RTP sequence.
    pub number: u64,
    /// Media time of the number, 90 kHz, modulo 2^32.
    pub rtp_time: u32,
    /// Sender's wall time at sending, microseconds since the Unix epoch.
    pub wall_us: u64,
    /// Channel name, up to 255 bytes.
    pub channel: &'a str,
    /// Role of the instance, up to 255 bytes; empty if none.
    pub role: &'a str,
    /// Fencing number, if leased.
    pub fence: Option<u64>,
}

/// The part of an RTP header that a meter looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtpHeader {
    /// Payload type, 7 bits.
    pub payload_type: u8,
    /// Sequence number.
    pub sequence: u16,
    /// Media time in units that depend on the payload type.
    pub timestamp: u32,
    /// Synchronisation source.
    pub ssrc: u32,
}

/// The part of a transport stream packet that a meter looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TsHeader {
    /// Packet identifier, 13 bits.
    pub pid: u16,
    /// Continuity counter, 4 bits.
    pub continuity: u8,
    /// Whether the packet has a payload; only then the counter moves on.
    pub has_payload: bool,
    /// Whether the sender announces that the counter jumps here.
    pub discontinuity: bool,
}

/// What a datagram was recognised as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// Our test signal.
    Test(TestPacket<'a>),
    /// Any other RTP, also a test signal of another version.
    Rtp(RtpHeader),
    /// Whole transport stream packets without RTP; see [`ts_headers`].
    Ts(&'a [u8]),
    /// Nothing that carries a number.
    Unreadable,
}

/// Why a packet cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Channel or role is longer than its length byte can say.
    #[error("{what} `{value}` has {} bytes; at most 255 fit into a packet", value.len())]
    TextTooLong {
        /// `channel` or `role`.
        what: &'static str,
        /// The text.
        value: String,
    },
    /// The payload does not hold the fields, or does not fit into a datagram.
    #[error(
        "payload size {size} is out of range: this channel and role need {min} to {SIZE_MAX} bytes"
    )]
    Size {
        /// The size asked for.
        size: usize,
        /// The least that holds the fields.
        min: usize,
    },
}

// === impl TestPacket ===

impl TestPacket<'_> {
    /// Writes the datagram into `out` (cleared first): RTP header and a payload of `size` bytes.
    pub fn encode(&self, size: usize, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        for (what, value) in [("channel", self.channel), ("role", self.role)] {
            if value.len() > usize::from(u8::MAX) {
                return Err(EncodeError::TextTooLong {
                    what,
                    value: value.to_owned(),
                });
            }
        }
        let min = self.payload_len();
        if size < min || size > SIZE_MAX {
            return Err(EncodeError::Size { size, min });
        }
        out.clear();
        out.extend([0x80, PAYLOAD_TYPE]);
        out.extend((self.number as u16).to_be_bytes());
        out.extend(self.rtp_time.to_be_bytes());
        out.extend(self.ssrc.to_be_bytes());
        out.extend(MAGIC);
        out.push(VERSION);
        out.extend(self.number.to_be_bytes());
        out.extend(self.wall_us.to_be_bytes());
        for text in [self.channel, self.role] {
            out.push(text.len() as u8);
            out.extend(text.as_bytes());
        }
        match self.fence {
            None => out.push(0),
            Some(fence) => {
                out.push(1);
                out.extend(fence.to_be_bytes());
            }
        }
        out.resize(RTP_HEADER_LEN + size, 0);
        Ok(())
    }

    fn payload_len(&self) -> usize {
        let fence_len = if self.fence.is_some() { 9 } else { 1 };
        MAGIC.len() + 1 + 8 + 8 + 1 + self.channel.len() + 1 + self.role.len() + fence_len
    }
}

/// Recognises a datagram. Never fails: what carries no number is [`Datagram::Unreadable`].
pub fn recognise(datagram: &[u8]) -> Datagram<'_> {
    if let Some((header, payload)) = parse_rtp(datagram) {
        return match parse_test(&header, payload) {
            Some(packet) => Datagram::Test(packet),
            None => Datagram::Rtp(header),
        };
    }
    let whole = !datagram.is_empty() && datagram.len().is_multiple_of(TS_PACKET_LEN);
    if whole
        && datagram
            .chunks_exact(TS_PACKET_LEN)
            .all(|packet| packet[0] == TS_SYNC)
    {
        return Datagram::Ts(datagram);
    }
    Datagram::Unreadable
}

/// The headers of the transport stream packets in a datagram, null packets left out.
pub fn ts_headers(datagram: &[u8]) -> impl Iterator<Item = TsHeader> {
    const NULL_PID: u16 = 0x1fff;
    datagram.chunks_exact(TS_PACKET_LEN).filter_map(|packet| {
        let pid = u16::from_be_bytes([packet[1], packet[2]]) & 0x1fff;
        let has_adaptation = packet[3] & 0x20 != 0;
        let header = TsHeader {
            pid,
            continuity: packet[3] & 0x0f,
            has_payload: packet[3] & 0x10 != 0,
            discontinuity: has_adaptation && packet[4] > 0 && packet[5] & 0x80 != 0,
        };
        (pid != NULL_PID).then_some(header)
    })
}

/// RTP header and payload; `None` for anything else, RTCP on the same port included.
fn parse_rtp(datagram: &[u8]) -> Option<(RtpHeader, &[u8])> {
    let fixed: &[u8; RTP_HEADER_LEN] = datagram.first_chunk()?;
    let is_rtcp = (192..=223).contains(&fixed[1]);
    if fixed[0] >> 6 != 2 || is_rtcp {
        return None;
    }
    let header = RtpHeader {
        payload_type: fixed[1] & 0x7f,
        sequence: u16::from_be_bytes([fixed[2], fixed[3]]),
        timestamp: u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
        ssrc: u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]),
    };
    let csrc_len = usize::from(fixed[0] & 0x0f) * 4;
    let mut payload = datagram.get(RTP_HEADER_LEN + csrc_len..)?;
    if fixed[0] & 0x10 != 0 {
        let words = u16::from_be_bytes([*payload.get(2)?, *payload.get(3)?]);
        payload = payload.get(4 + usize::from(words) * 4..)?;
    }
    Some((header, payload))
}

fn parse_test<'a>(header: &RtpHeader, payload: &'a [u8]) -> Option<TestPacket<'a>> {
    let mut rest = payload.strip_prefix(&MAGIC)?.strip_prefix(&[VERSION])?;
    let number = u64::from_be_bytes(take(&mut rest)?);
    let wall_us = u64::from_be_bytes(take(&mut rest)?);
    let channel = take_text(&mut rest)?;
    let role = take_text(&mut rest)?;
    let fence = match take::<1>(&mut rest)? {
        [0] => None,
        [1] => Some(u64::from_be_bytes(take(&mut rest)?)),
        _ => return None,
    };
    let (ssrc, rtp_time) = (header.ssrc, header.timestamp);
    let honest = header.payload_type == PAYLOAD_TYPE && header.sequence == number as u16;
    honest.then_some(TestPacket {
        ssrc,
        number,
        rtp_time,
        wall_us,
        channel,
        role,
        fence,
    })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let [len] = take(rest)?;
    let (text, tail) = rest.split_at_checked(usize::from(len))?;
    *rest = tail;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet() -> TestPacket<'static> {
        TestPacket {
            ssrc: 0xdead_beef,
            number: 0x0102_0304_0506_0708,
            rtp_time: 0x1122_3344,
            wall_us: 0x2122_2324_2526_2728,
            channel: "one",
            role: "ab",
            fence: Some(7),
        }
    }

    // spec: MEDIA-01
    #[test]
    fn the_bytes_are_as_documented() {
        let mut bytes = Vec::new();
        packet().encode(64, &mut bytes).unwrap();
        let mut expected = vec![0x80, 96, 0x07, 0x08, 0x11, 0x22, 0x33, 0x44];
        expected.extend([0xde, 0xad, 0xbe, 0xef]);
        expected.extend(b"GRTC\x01\x01\x02\x03\x04\x05\x06\x07\x08");
        expected.extend(b"\x21\x22\x23\x24\x25\x26\x27\x28\x03one\x02ab");
        expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 7]);
        expected.resize(12 + 64, 0);
        assert_eq!(bytes, expected);

        let not_leased = TestPacket {
            fence: None,
            ..packet()
        };
        not_leased.encode(DEFAULT_SIZE, &mut bytes).unwrap();
        assert_eq!(bytes.len(), 12 + 188 * 7);
        assert_eq!(recognise(&bytes), Datagram::Test(not_leased));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut bytes = Vec::new();
        let min = packet().payload_len();
        assert_eq!(packet().encode(min, &mut bytes), Ok(()));
        for size in [min - 1, SIZE_MAX + 1] {
            let error = packet().encode(size, &mut bytes);
            assert_eq!(error, Err(EncodeError::Size { size, min }));
        }
        let long = "x".repeat(256);
        let error = TestPacket {
            role: &long,
            ..packet()
        }
        .encode(1316, &mut bytes)
        .unwrap_err();
        assert!(error.to_string().contains("256 bytes"), "{error}");
    }

    // spec: MEDIA-05
    #[test]
    fn foreign_datagrams_are_told_apart() {
        let mut rtp = vec![0x92, 0x80 | 33, 0xab, 0xcd, 0, 0, 0, 9, 0, 0, 0, 5];
        rtp.extend([0; 8]); // two CSRC
        rtp.extend([0xbe, 0xde, 0, 1, 1, 2, 3, 4]); // extension of one word
        let header = RtpHeader {
            payload_type: 33,
            sequence: 0xabcd,
            timestamp: 9,
            ssrc: 5,
        };
        assert_eq!(recognise(&rtp), Datagram::Rtp(header));
        assert_eq!(
            recognise(&rtp[..21]),
            Datagram::Unreadable,
            "cut in the extension"
        );

        let mut other_version = Vec::new();
        packet().encode(64, &mut other_version).unwrap();
        other_version[16] = 2;
        assert!(matches!(recognise(&other_version), Datagram::Rtp(_)));

        let rtcp = [0x80, 200, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(recognise(&rtcp), Datagram::Unreadable);
        assert_eq!(recognise(b""), Datagram::Unreadable);
        assert_eq!(recognise(&[0x47; 187]), Datagram::Unreadable);

        let mut ts = vec![0_u8; 188 * 3];
        ts[..4].copy_from_slice(&[0x47, 0x41, 0x00, 0x1e]);
        ts[188..194].copy_from_slice(&[0x47, 0x01, 0x01, 0x23, 7, 0x80]);
        ts[376..380].copy_from_slice(&[0x47, 0x1f, 0xff, 0x10]);
        assert_eq!(recognise(&ts), Datagram::Ts(&ts));
        let headers: Vec<TsHeader> = ts_headers(&ts).collect();
        let plain = TsHeader {
            pid: 0x100,
            continuity: 14,
            has_payload: true,
            discontinuity: false,
        };
        let jump = TsHeader {
            pid: 0x101,
            continuity: 3,
            has_payload: false,
            discontinuity: true,
        };
        assert_eq!(headers, [plain, jump]);
    }

    proptest! {
        // spec: MEDIA-01, MEDIA-02
        #[test]
        fn what_is_written_is_read(
            ssrc: u32, number: u64, rtp_time: u32, wall_us: u64, fence: Option<u64>,
            channel in "\\PC{0,40}", role in "[a-z@0-9]{0,20}", spare in 0_usize..1400,
        ) {
            let (channel, role) = (channel.as_str(), role.as_str());
            let packet = TestPacket { ssrc, number, rtp_time, wall_us, channel, role, fence };
            let mut bytes = Vec::new();
            packet.encode(packet.payload_len() + spare, &mut bytes).unwrap();
            prop_assert_eq!(recognise(&bytes), Datagram::Test(packet));
            prop_assert_eq!(&bytes[2..4], &(number as u16).to_be_bytes()[..]);
        }

        #[test]
        fn no_bytes_break_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Datagram::Ts(packets) = recognise(&bytes) {
                prop_assert!(ts_headers(packets).count() <= packets.len() / 188);
            }
        }

        // A datagram cut short anywhere is never taken for a whole test packet.
        // spec: MEDIA-01
        #[test]
        fn a_cut_packet_is_no_test_packet(cut in 0_usize..52) {
            let mut bytes = Vec::new();
            packet().encode(packet().payload_len(), &mut bytes).unwrap();
            prop_assume!(cut < bytes.len());
            prop_assert!(!matches!(recognise(&bytes[..cut]), Datagram::Test(_)));
        }
    }
}
