//! The socket of a probe: datagrams with the time at which they *arrived*.
//!
//! On Linux that is the kernel's receive time stamp, so that a probe which is not scheduled for a
//! while reports no silence that the viewer did not have. Elsewhere it is the time of reading.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::drops::DropCounter;

/// How long one call waits for a datagram; bounds how late a silence is noticed.
const WAIT: Duration = Duration::from_millis(10);

/// An age beyond this is a wall clock that was set between arrival and reading.
const AGE_MAX: Duration = Duration::from_secs(10);

/// Two clocks read closer together than this are read at one instant.
const READ_APART_MAX: Duration = Duration::from_micros(50);

/// How often to try for that.
const READ_TRIES: u32 = 5;

/// A socket and the beginning of the watch, from which times are counted.
#[derive(Debug)]
pub(super) struct Receiver {
    socket: UdpSocket,
    began: Instant,
    /// Latest arrival given out: arrivals never go back.
    latest_us: u64,
    drops: Option<DropCounter>,
}

/// One datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) len: usize,
    pub(super) from: SocketAddr,
    pub(super) at_us: u64,
}

// === impl Receiver ===

impl Receiver {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        socket.set_read_timeout(Some(WAIT))?;
        stamp::enable(&socket)?;
        let drops = DropCounter::new(&socket);
        Ok(Self {
            socket,
            began: Instant::now(),
            latest_us: 0,
            drops,
        })
    }

    /// The next datagram, or `None` if there is none and none comes within [`WAIT`].
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        let (len, from, arrived_wall) = match stamp::receive(&self.socket, buffer) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let arrived = match arrived_wall {
            Some(arrived_wall) => self.since_began(arrived_wall),
            None => self.began.elapsed(),
        };
        let at_us = self.forward(arrived);
        Ok(Some(Received { len, from, at_us }))
    }

    /// The time now. Everything that [`Self::receive`] has not given out when it next answers
    /// `None` arrived later.
    pub(super) fn now_us(&self) -> u64 {
        micros(self.began.elapsed())
    }

    /// Datagrams dropped at this socket so far, if the machine tells.
    pub(super) fn drops(&self) -> Option<u64> {
        self.drops.and_then(|counter| counter.read())
    }

    /// A wall time of a moment ago as time since the beginning.
    fn since_began(&self, past_wall: Duration) -> Duration {
        let (mut now, mut now_wall);
        let mut tries = 0;
        // Both clocks at one instant; being interrupted between them would shift the result.
        loop {
            now = self.began.elapsed();
            now_wall = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            tries += 1;
            if tries == READ_TRIES || self.began.elapsed() - now < READ_APART_MAX {
                break;
            }
        }
        let age = now_wall.saturating_sub(past_wall);
        if age < AGE_MAX {
            now.saturating_sub(age)
        } else {
            now
        }
    }

    fn forward(&mut self, arrived: Duration) -> u64 {
        self.latest_us = self.latest_us.max(micros(arrived));
        self.latest_us
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Receiving with the wall time at which the kernel took the datagram from the network.
#[cfg(target_os = "linux")]
mod stamp {
    use std::io::{self, IoSliceMut};
    use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use nix::sys::socket::{
        ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
    };
    use nix::sys::time::TimeSpec;

    pub(super) fn enable(socket: &UdpSocket) -> io::Result<()> {
        setsockopt(socket, sockopt::ReceiveTimestampns, &true).map_err(io::Error::from)
    }

    pub(super) fn receive(
        socket: &UdpSocket,
        buffer: &mut [u8],
    ) -> io::Result<(usize, SocketAddr, Option<Duration>)> {
        let mut parts = [IoSliceMut::new(buffer)];
        let mut control = nix::cmsg_space!(TimeSpec);
        let message = recvmsg::<SockaddrStorage>(
            socket.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::empty(),
        )?;
        let arrived = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
            _ => None,
        });
        let from = message.address.as_ref().and_then(address);
        let from = from.ok_or_else(|| io::Error::other("a datagram without a source address"))?;
        Ok((message.bytes, from, arrived))
    }

    fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
        if let Some(v4) = storage.as_sockaddr_in() {
            return Some(SocketAddrV4::from(*v4).into());
        }
        storage
            .as_sockaddr_in6()
            .map(|v6| SocketAddrV6::from(*v6).into())
    }
}

#[cfg(not(target_os = "linux"))]
mod stamp {
    use std::io;
    use std::net::{SocketAddr, UdpSocket};
    use std::time::Duration;

    pub(super) fn enable(_: &UdpSocket) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn receive(
        socket: &UdpSocket,
        buffer: &mut [u8],
    ) -> io::Result<(usize, SocketAddr, Option<Duration>)> {
        let (len, from) = socket.recv_from(buffer)?;
        Ok((len, from, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a probe that reads late does not move arrivals. Method: datagrams that are read 2 ms
    // after they were sent; one of them must get a time before the reading began. The first few
    // need not: the kernel begins to stamp a moment after a socket asks for it.
    // spec: MEDIA-04
    #[cfg(target_os = "linux")]
    #[test]
    fn times_are_of_arrival_and_not_of_reading() {
        let mut receiver = Receiver::new(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let to = receiver.socket.local_addr().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let stamped = (0..1_000).any(|_| {
            sender.send_to(b"one", to).unwrap();
            let read_at = Instant::now() + Duration::from_millis(2);
            while Instant::now() < read_at {
                std::hint::spin_loop();
            }
            let reading_us = receiver.now_us();
            let received = receiver.receive(&mut [0; 100]).unwrap().unwrap();
            assert_eq!(
                (received.len, received.from),
                (3, sender.local_addr().unwrap())
            );
            received.at_us < reading_us
        });
        assert!(stamped, "every datagram got the time of reading");
    }
}
