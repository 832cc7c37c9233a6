//! `greenroom testcard` and `greenroom probe`: the test signal and the meter.

use std::io::{self, IsTerminal};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::Args;
use greenroom_media::env::JobEnv;
use greenroom_media::probe::{self, Console, Expectations, Format};
use greenroom_media::rate::Rate;
use greenroom_media::stop::StopSignals;
use greenroom_media::testcard::{self, Fault};

use crate::failure::{Failure, Outcome};

/// Send a live signal that needs no codec: numbered packets that go on at the number that is due.
#[derive(Debug, Args)]
pub(crate) struct Testcard {
    /// Where to send, HOST:PORT, several separated by commas; multicast works.
    #[arg(long, value_delimiter = ',', required = true, value_name = "HOST:PORT")]
    to: Vec<String>,
    /// Packets a second, e.g. 50, 59.94 or 60000/1001.
    #[arg(long, default_value = "50")]
    rate: Rate,
    /// Name of the channel; two copies of one channel have the same.
    #[arg(long, default_value = "testcard")]
    channel: String,
    /// Bytes of each packet behind its RTP header.
    #[arg(long, default_value_t = 188 * 7)]
    size: usize,
    /// Synchronisation source; default: from the start id.
    #[arg(long)]
    ssrc: Option<u32>,
    /// Time to live of multicast packets.
    #[arg(long, default_value_t = 1)]
    ttl: u8,
    /// Interface for multicast, named by one of its addresses.
    #[arg(long)]
    interface: Option<IpAddr>,
    /// Serve a status page here.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<SocketAddr>,
    /// Misbehave for a test: black@10s, late:80ms@20s, crash@30s, hang@30s, refuse-handover,
    /// slow-handover:5s.
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<Fault>,
    /// A sender that is late by no more than this sends one by one what was due, instead of leaving it
    /// out.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    catch_up: u64,
    /// Go on sending for so long once told to end, so that an overlap has no gap.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    linger: u64,
}

/// Receive a live signal and report what a viewer would notice.
#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// Where to receive, HOST:PORT; a multicast group is joined.
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// Interface for multicast, named by one of its addresses.
    #[arg(long)]
    interface: Option<IpAddr>,
    /// Count only the test signal of this channel.
    #[arg(long)]
    channel: Option<String>,
    /// A longer time without packets is a silence.
    #[arg(long, default_value_t = 60, value_name = "MS")]
    gap_ms: u64,
    /// A packet that comes later than this is late.
    #[arg(long, value_name = "MS")]
    late_ms: Option<u64>,
    /// End after so long without a packet, once something came, e.g. 5s.
    #[arg(long, value_parser = duration)]
    idle: Option<Duration>,
    /// End after so long in any case, e.g. 30s.
    #[arg(long, value_parser = duration)]
    duration: Option<Duration>,
    /// Fail when more numbers are missing.
    #[arg(long, value_name = "N")]
    expect_missing: Option<u64>,
    /// Fail when more numbers come twice.
    #[arg(long, value_name = "N")]
    expect_repeated: Option<u64>,
    /// Fail when a silence is this long or longer.
    #[arg(long, value_name = "MS")]
    expect_silence_below: Option<u64>,
    /// Fail when more senders are on air at once.
    #[arg(long, value_name = "N")]
    expect_senders_at_once: Option<u32>,
    /// Print one JSON object per finding, and a summary at the end.
    #[arg(long)]
    json: bool,
}

/// A time with its unit, as in 80ms, 10s or 5m.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    greenroom_media::duration::parse(text).map_err(|error| error.to_string())
}

// === impl Testcard ===

impl Testcard {
    pub(crate) async fn run(self) -> Outcome {
        let env = JobEnv::from_process().map_err(|error| Failure::bad_input(error.to_string()))?;
        let mut config = testcard::Config::new(self.to, self.channel);
        config.rate = self.rate;
        config.size = self.size;
        config.ssrc = self.ssrc;
        config.ttl = self.ttl;
        config.interface = self.interface;
        config.http = self.http.map(|address| env.mapped(address));
        config.faults = self.faults;
        config.catch_up = Duration::from_millis(self.catch_up);
        config.linger = Duration::from_millis(self.linger);
        testcard::run(config.with_env(&env))
            .await
            .map(|_| ())
            .map_err(|error| Failure::failed(chain(&error)))
    }
}

// === impl Probe ===

impl Probe {
    pub(crate) async fn run(self) -> Outcome {
        let mut config = probe::Config::new(self.listen);
        config.interface = self.interface;
        config.channel = self.channel;
        config.gap = Duration::from_millis(self.gap_ms);
        if let Some(late) = self.late_ms {
            config.late = Duration::from_millis(late);
        }
        config.idle = self.idle;
        config.duration = self.duration;
        let expectations = Expectations {
            missing: self.expect_missing,
            repeated: self.expect_repeated,
            silence_below: self.expect_silence_below.map(Duration::from_millis),
            senders_at_once: self.expect_senders_at_once,
        };
        let mut stop = StopSignals::install()?;
        let mut data = io::stdout();
        let mut terminal = io::stderr();
        let live = !self.json && terminal.is_terminal();
        let console = Console {
            data: &mut data,
            format: if self.json {
                Format::Json
            } else {
                Format::Table
            },
            live: if live { Some(&mut terminal) } else { None },
        };
        let (_, verdict) = probe::run(config, &expectations, console, async move {
            stop.received().await;
        })
        .await
        .map_err(|error| Failure::failed(chain(&error)))?;
        if verdict.exit_code() == 0 {
            Ok(())
        } else {
            Err(Failure::failed(
                "an expectation was not met; the table says which",
            ))
        }
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = inner.source();
    }
    text
}
