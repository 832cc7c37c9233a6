//! The meter: receives a stream and reports what a viewer would notice (MEDIA-04, -05).
//!
//! [`run`] is the whole command with its output on writers of the caller; [`start`] gives a handle
//! for other programs, which can wait for events ("on air again") and take the report at the end.
//! The rules are in [`analyser`], which is pure; one thread drives the socket.
//!
//! It does not decode anything and sends nothing.

pub mod analyser;
mod drops;
mod event;
mod numbers;
mod receiver;
mod report;
mod space;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch as latest};

use self::analyser::{Analyser, Settings};
pub use self::event::{Event, Kind, Missing, OnAir, Overlap, Run, Sender, Silence};
use self::receiver::Receiver;
pub use self::report::{Check, Ended, Expectations, Live, Report, Verdict};
use crate::{NetError, net};

/// Events that may wait for a reader. Findings of a bad stream are merged into a few a second, so
/// this is many minutes of nobody reading; the report has everything either way.
const EVENTS_WAITING_MAX: usize = 65_536;

/// How often the live status changes, and how often the kernel is asked for its drops.
const LIVE_EVERY_US: u64 = 100_000;
const DROPS_EVERY_US: u64 = 1_000_000;

/// Largest UDP payload.
const DATAGRAM_MAX: usize = 65_535;

/// What to watch and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Address to receive on, `HOST:PORT`; a multicast group is joined.
    pub listen: String,
    /// Interface for multicast, named by one of its addresses.
    pub interface: Option<IpAddr>,
    /// Only the test signal of this channel counts.
    pub channel: Option<String>,
    /// Longest time between packets that is no silence.
    pub gap: Duration,
    /// Longest delay that is not late.
    pub late: Duration,
    /// Ends after so long without a packet, once something came. The silence at the end is then the
    /// stream's end and no fault.
    pub idle: Option<Duration>,
    /// Ends after so long in any case.
    pub duration: Option<Duration>,
}

/// How [`run`] shows what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// A table at the end, for people.
    #[default]
    Table,
    /// One JSON object per finding as it is found, and one of type `summary` at the end.
    Json,
}

/// Where [`run`] writes.
pub struct Console<'a> {
    /// Findings and report.
    pub data: &'a mut (dyn Write + Send),
    /// How.
    pub format: Format,
    /// A terminal for the status line, rewritten in place; `None` if there is none.
    pub live: Option<&'a mut (dyn Write + Send)>,
}

/// Why a watch cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket cannot be had.
    #[error("cannot listen on `{listen}`")]
    Listen {
        /// The address as given.
        listen: String,
        /// Why.
        #[source]
        source: NetError,
    },
    /// The socket cannot be set up or read.
    #[error("cannot receive on {address}")]
    Receive {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("cannot write the findings")]
    Write(#[source] io::Error),
    /// The receiving thread cannot be started.
    #[error("cannot start the receiving thread")]
    Thread(#[source] io::Error),
    /// The receiving thread ended without a report.
    #[error("the receiving thread died")]
    ThreadDied,
}

/// A running watch. Dropping it ends the watch.
#[derive(Debug)]
pub struct ProbeHandle {
    address: SocketAddr,
    stop: Arc<StopFlag>,
    events: mpsc::Receiver<Event>,
    live: latest::Receiver<Live>,
    report: oneshot::Receiver<Result<Report, Error>>,
}

/// Set when the thread is to end.
#[derive(Debug, Default)]
struct StopFlag(AtomicBool);

/// The receiving thread's part.
#[derive(Debug)]
struct Watch {
    receiver: Receiver,
    address: SocketAddr,
    started_wall_us: u64,
    config: Config,
    stop: Arc<StopFlag>,
    events: mpsc::Sender<Event>,
    live: latest::Sender<Live>,
}

/// The last line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "summary", rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(flatten)]
    report: &'a Report,
    verdict: &'a Verdict,
}

/// Watches until `stop` resolves or the configuration says so, and writes to the console.
pub async fn run(
    config: Config,
    expectations: &Expectations,
    console: Console<'_>,
    stop: impl Future<Output = ()>,
) -> Result<(Report, Verdict), Error> {
    watch(start(config).await?, expectations, console, stop).await
}

/// The same for a watch that has begun, whose address is known.
pub async fn watch(
    mut probe: ProbeHandle,
    expectations: &Expectations,
    mut console: Console<'_>,
    stop: impl Future<Output = ()>,
) -> Result<(Report, Verdict), Error> {
    let mut live = probe.live.clone();
    let mut stop = std::pin::pin!(stop);
    let mut stopping = false;
    loop {
        tokio::select! {
            event = probe.next_event() => match event {
                Some(event) => console.write_event(&event).map_err(Error::Write)?,
                None => break,
            },
            () = &mut stop, if !stopping => {
                stopping = true;
                probe.stop();
            }
            Ok(()) = live.changed() => {
                let line = live.borrow_and_update().to_string();
                console.write_live(&line).map_err(Error::Write)?;
            }
        }
    }
    let report = probe.finish().await?;
    let verdict = report.verdict(expectations);
    console.write_end(&report, &verdict).map_err(Error::Write)?;
    Ok((report, verdict))
}

/// Opens the socket and begins to watch.
pub async fn start(config: Config) -> Result<ProbeHandle, Error> {
    let at = |source| Error::Listen {
        listen: config.listen.clone(),
        source,
    };
    let wanted = net::resolve(&config.listen).await.map_err(at)?;
    let socket = net::open_receiver(wanted, config.interface).map_err(at)?;
    let refused = |source| Error::Receive {
        address: wanted,
        source,
    };
    let address = socket.local_addr().map_err(refused)?;
    let receiver = Receiver::new(socket).map_err(refused)?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let stop = Arc::new(StopFlag::default());
    let (events, events_seen) = mpsc::channel(EVENTS_WAITING_MAX);
    let (live, live_seen) = latest::channel(Live::default());
    let (report, report_seen) = oneshot::channel();
    let watch = Watch {
        receiver,
        address,
        started_wall_us: u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
        config,
        stop: Arc::clone(&stop),
        events,
        live,
    };
    std::thread::Builder::new()
        .name("probe".to_owned())
        .spawn(move || {
            // Nobody waits for it if the handle was dropped.
            let _ = report.send(watch.run());
        })
        .map_err(Error::Thread)?;
    Ok(ProbeHandle {
        address,
        stop,
        events: events_seen,
        live: live_seen,
        report: report_seen,
    })
}

// === impl Config ===

impl Config {
    /// Watches one address with the default limits, until asked to end.
    pub fn new(listen: impl Into<String>) -> Self {
        Self {
            listen: listen.into(),
            interface: None,
            channel: None,
            gap: Duration::from_millis(60),
            late: Duration::from_millis(60),
            idle: None,
            duration: None,
        }
    }
}

// === impl ProbeHandle ===

impl ProbeHandle {
    /// Where it listens; tells the port if it was asked for port 0.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// The next thing noticed; `None` once the watch has ended and all were taken.
    pub async fn next_event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// How it stands.
    pub fn live(&self) -> Live {
        self.live.borrow().clone()
    }

    /// Waits until how it stands satisfies a condition; `None` if the watch ends before it does.
    /// The status changes ten times a second.
    pub async fn wait_until(&mut self, condition: impl FnMut(&Live) -> bool) -> Option<Live> {
        self.live
            .wait_for(condition)
            .await
            .ok()
            .map(|live| live.clone())
    }

    /// Asks it to end; [`Self::next_event`] then gives the last findings and `None`.
    pub fn stop(&self) {
        self.stop.0.store(true, Ordering::Relaxed);
    }

    /// Ends the watch and gives the report.
    pub async fn finish(mut self) -> Result<Report, Error> {
        self.stop();
        (&mut self.report).await.map_err(|_| Error::ThreadDied)?
    }
}

impl Drop for ProbeHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

// === impl Watch ===

impl Watch {
    fn run(mut self) -> Result<Report, Error> {
        let mut analyser = Analyser::new(Settings {
            channel: self.config.channel.clone(),
            gap_us: micros(self.config.gap),
            late_us: micros(self.config.late),
        });
        let mut buffer = vec![0; DATAGRAM_MAX];
        let mut events = Vec::new();
        let (mut live_at_us, mut drops_at_us) = (0, 0);
        let mut ending: Option<(Ended, u64)> = None;
        let (ended, end_us) = loop {
            // Read before receiving: what `receive` does not give out arrived after it.
            let now_us = self.receiver.now_us();
            let received = self.receiver.receive(&mut buffer);
            let received = received.map_err(|source| Error::Receive {
                address: self.address,
                source,
            })?;
            match (received, ending) {
                // What arrived before the end still counts, though it is read after it.
                (Some(received), Some(ending)) if received.at_us >= ending.1 => break ending,
                (None, Some(ending)) => break ending,
                (Some(received), _) => {
                    let datagram = &buffer[..received.len];
                    analyser.handle_datagram(received.at_us, received.from, datagram, &mut events);
                }
                (None, None) => analyser.tick(now_us, &mut events),
            }
            if now_us >= drops_at_us {
                self.note_drops(&mut analyser, now_us, &mut events);
                drops_at_us = now_us + DROPS_EVERY_US;
            }
            self.pass_on(&mut events);
            if now_us >= live_at_us {
                self.live.send_replace(analyser.live(now_us));
                live_at_us = now_us + LIVE_EVERY_US;
            }
            if ending.is_none() {
                let drained = received.is_none();
                ending = self
                    .is_over(&analyser, now_us, drained)
                    .map(|ended| (ended, now_us));
            }
        };
        self.note_drops(&mut analyser, end_us, &mut events);
        self.live.send_replace(analyser.live(end_us));
        let mut report = analyser.finish(end_us, ended, &mut events);
        report.started_wall_us = self.started_wall_us;
        report.started_at = crate::duration::wall_text(self.started_wall_us);
        self.pass_on(&mut events);
        Ok(report)
    }

    /// Whether the watch is over. Idle it is only if everything that arrived was read (`drained`).
    fn is_over(&self, analyser: &Analyser, now_us: u64, drained: bool) -> Option<Ended> {
        let past = |limit: Option<Duration>, since_us: u64| {
            limit.is_some_and(|limit| now_us.saturating_sub(since_us) >= micros(limit))
        };
        if self.stop.0.load(Ordering::Relaxed) {
            return Some(Ended::Asked);
        }
        if past(self.config.duration, 0) {
            return Some(Ended::Duration);
        }
        let idle = |last_us| drained && past(self.config.idle, last_us);
        analyser
            .last_arrival_us()
            .is_some_and(idle)
            .then_some(Ended::Idle)
    }

    fn note_drops(&self, analyser: &mut Analyser, now_us: u64, events: &mut Vec<Event>) {
        if let Some(total) = self.receiver.drops() {
            analyser.note_own_drops(now_us, total, events);
        }
    }

    fn pass_on(&self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) {
                tracing::warn!(
                    ?event,
                    "nobody reads the events; this one is in the report only"
                );
            }
        }
    }
}

// === impl Console ===

impl Console<'_> {
    fn write_event(&mut self, event: &Event) -> io::Result<()> {
        if self.format == Format::Json {
            serde_json::to_writer(&mut self.data, event)?;
            writeln!(self.data)?;
            self.data.flush()?;
        }
        Ok(())
    }

    fn write_live(&mut self, line: &str) -> io::Result<()> {
        if let Some(live) = &mut self.live {
            // Back to the beginning of the line, and clear what a longer one before left there.
            write!(live, "\r{line}\x1b[K")?;
            live.flush()?;
        }
        Ok(())
    }

    fn write_end(&mut self, report: &Report, verdict: &Verdict) -> io::Result<()> {
        if let Some(live) = &mut self.live {
            write!(live, "\r\x1b[K")?;
            live.flush()?;
        }
        match self.format {
            Format::Table => {
                report.write_table(self.data)?;
                write!(self.data, "{verdict}")?;
            }
            Format::Json => {
                serde_json::to_writer(&mut self.data, &Summary { report, verdict })?;
                writeln!(self.data)?;
            }
        }
        self.data.flush()
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
