//! The output of all cards: every packet in the order in which it was sent, whoever sent it.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use greenroom_media::packet::{Datagram, recognise};

/// What was seen of one channel.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) packets: u64,
    /// The greatest fencing number so far.
    newest: u64,
    newest_at: Option<Instant>,
    last: Option<Instant>,
    /// Times when a greater number than before came.
    pub(crate) changes: u64,
    /// Packets of a smaller number than one before.
    pub(crate) late: u64,
    /// The longest time after the newer one's first packet at which one came.
    pub(crate) worst: Duration,
    pub(crate) unfenced: u64,
    /// The sender of the newest packet, and when its first came.
    pub(crate) sender: Option<(u32, Instant)>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<BTreeMap<String, Seen>>,
    more: Condvar,
}

/// A receiver of everything.
pub(crate) struct Air {
    port: u16,
    shared: Arc<Shared>,
}

// === impl Seen ===

impl Seen {
    fn hear(&mut self, ssrc: u32, now: Instant) {
        if self.sender.is_none_or(|(known, _)| known != ssrc) {
            self.sender = Some((ssrc, now));
        }
    }

    /// Packets of one socket come in the order in which they were sent, whoever sent them.
    fn take(&mut self, fence: Option<u64>, now: Instant) {
        self.packets += 1;
        let Some(fence) = fence else {
            self.unfenced += 1;
            return;
        };
        if fence > self.newest {
            self.changes += u64::from(self.newest > 0);
            (self.newest, self.newest_at) = (fence, Some(now));
        } else if fence < self.newest {
            self.late += 1;
            if let Some(at) = self.newest_at {
                self.worst = self.worst.max(now - at);
            }
            return;
        }
        self.last = Some(now);
    }
}

// === impl Air ===

impl Air {
    pub(crate) fn listen() -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let port = socket.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let into = shared.clone();
        // It ends with the program.
        std::thread::spawn(move || {
            let mut buffer = [0; 2_048];
            while let Ok(len) = socket.recv(&mut buffer) {
                if let Datagram::Test(test) = recognise(&buffer[..len]) {
                    let mut seen = into.seen.lock().unwrap_or_else(PoisonError::into_inner);
                    let channel = seen.entry(test.channel.to_owned()).or_default();
                    let now = Instant::now();
                    channel.hear(test.ssrc, now);
                    channel.take(test.fence, now);
                    into.more.notify_all();
                }
            }
        });
        Ok(Self { port, shared })
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Waits for a packet of the newest holder that came after an instant.
    pub(crate) fn until_heard(&self, channel: &str, after: Instant, max: Duration) -> Result<()> {
        let seen = self
            .shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let silent = |seen: &mut BTreeMap<String, Seen>| {
            let last = seen.get(channel).and_then(|seen| seen.last);
            last.is_none_or(|last| last <= after)
        };
        let waited = self.shared.more.wait_timeout_while(seen, max, silent);
        let (_seen, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            bail!("{channel} has sent nothing for {} s", max.as_secs());
        }
        Ok(())
    }

    /// Waits for another sender than this; gives it and when its first packet came.
    pub(crate) fn until_other(
        &self,
        channel: &str,
        than: Option<u32>,
        max: Duration,
    ) -> Result<(u32, Instant)> {
        let seen = self
            .shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let other = |seen: &BTreeMap<String, Seen>| {
            let sender = seen.get(channel).and_then(|seen| seen.sender);
            sender.filter(|(ssrc, _)| Some(*ssrc) != than)
        };
        let waited = self
            .shared
            .more
            .wait_timeout_while(seen, max, |seen| other(seen).is_none());
        let (seen, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match other(&seen) {
            Some(found) => Ok(found),
            None => bail!("{channel} has no new sender after {} s", max.as_secs()),
        }
    }

    /// What was seen of a channel.
    pub(crate) fn take(&self, channel: &str) -> Seen {
        let seen = self
            .shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        seen.get(channel).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_holder_after_a_newer_one_is_found() {
        let now = Instant::now();
        let mut seen = Seen::default();
        for (fence, ms) in [(1, 0), (1, 20), (2, 40), (2, 60)] {
            seen.take(Some(fence), now + Duration::from_millis(ms));
        }
        assert_eq!((seen.packets, seen.changes, seen.late), (4, 1, 0));
        seen.take(Some(1), now + Duration::from_millis(70));
        seen.take(None, now);
        assert_eq!(
            (seen.late, seen.worst.as_millis(), seen.unfenced),
            (1, 30, 1)
        );
        assert_eq!(seen.last, Some(now + Duration::from_millis(60)));
    }
}
