//! The test signal: one numbered RTP packet per tick, locked to the wall clock (MEDIA-01..-03).
//!
//! [`run`] is the whole command: it sends until SIGTERM or SIGINT and then ends after the packet
//! in hand. [`start`] gives the same as a handle inside another program.
//!
//! Where it has a job socket it takes part in cooperative handovers ([`handover`]).

mod fault;
mod handover;
mod http;
mod pacer;
mod sender;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{oneshot, watch};

pub use self::fault::{Fault, FaultError, FaultKind};
use self::handover::{Desk, Mood, Parts};
use self::sender::{Command, Progress, Sender};
use crate::env::JobEnv;
use crate::packet::{self, EncodeError, TestPacket};
use crate::rate::Rate;
use crate::stop::StopSignals;
use crate::{NetError, net};

/// What is sent, as whom and to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Targets as `HOST:PORT`, unicast or multicast; each packet goes to all of them.
    pub to: Vec<String>,
    /// Packets per second.
    pub rate: Rate,
    /// Channel name, up to 255 bytes; two copies of one channel have the same.
    pub channel: String,
    /// Bytes behind the RTP header.
    pub size: usize,
    /// Synchronisation source; without it, derived from the start id.
    pub ssrc: Option<u32>,
    /// TTL or hop limit of multicast packets.
    pub ttl: u8,
    /// Interface for multicast, named by one of its addresses.
    pub interface: Option<IpAddr>,
    /// Where to serve the status page; a port of 0 takes a free one.
    pub http: Option<SocketAddr>,
    /// What is to go wrong.
    pub faults: Vec<Fault>,
    /// How late it may be and still send every number; beyond it leaves out what was due.
    pub catch_up: Duration,
    /// How long it goes on sending once it is told to end.
    pub linger: Duration,
    /// Job this is an instance of.
    pub job_id: Option<String>,
    /// Role in the instance's key.
    pub role: Option<String>,
    /// Slot role; the packets carry it, or `role` without one.
    pub runtime_role: Option<String>,
    /// Service within the job.
    pub service: Option<String>,
    /// Node it runs on.
    pub node_id: Option<String>,
    /// Start id of the instance.
    pub start_id: Option<String>,
    /// Fencing number, if leased.
    pub fence: Option<u64>,
    /// Path of the job socket, if it has one.
    pub job_socket: Option<PathBuf>,
}

/// What a test card is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// One packet per tick, on time.
    Sending,
    /// In a handover: the other side sends.
    Holding,
    /// Its lease is over, as far as it knows: another one may send by now.
    Lapsed,
    /// Fault: packets go out later than due.
    Late,
    /// Fault: nothing is sent.
    Black,
    /// Fault: stands still.
    Hung,
    /// Has ended.
    Stopped,
}

/// What a test card says about itself; `/status.json` is this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// What it is doing.
    pub state: State,
    /// Channel name.
    pub channel: String,
    /// Resolved targets.
    pub targets: Vec<SocketAddr>,
    /// When it began, RFC 3339.
    pub started_at: String,
    /// Packets per second, perhaps a fraction.
    pub rate: String,
    /// Bytes behind the RTP header.
    pub size_bytes: usize,
    /// Synchronisation source, hexadecimal.
    pub ssrc: String,
    /// Number of the last packet sent.
    pub last_number: Option<u64>,
    /// Wall time in that packet, microseconds since the Unix epoch.
    pub last_wall_us: Option<u64>,
    /// Packets sent, counted once however many targets.
    pub packets: u64,
    /// Numbers left out because the sender came too late for them.
    pub skipped: u64,
    /// Sends that the kernel refused, counted per target.
    pub send_errors: u64,
    /// The latest reason for one.
    pub last_error: Option<String>,
    /// Job.
    pub job_id: Option<String>,
    /// Role in the instance's key.
    pub role: Option<String>,
    /// Slot role.
    pub runtime_role: Option<String>,
    /// Service.
    pub service: Option<String>,
    /// Node.
    pub node_id: Option<String>,
    /// Start id.
    pub start_id: Option<String>,
    /// Fencing number.
    pub fence: Option<u64>,
    /// Faults it was told to have.
    pub faults: Vec<String>,
}

/// Why a test card cannot start or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody to send to.
    #[error("a test card needs at least one target, as HOST:PORT")]
    NoTarget,
    /// Channel, role and size do not make a packet.
    #[error("the packets cannot be made")]
    Packet(#[source] EncodeError),
    /// A target's socket.
    #[error("target `{target}` cannot be used")]
    Target {
        /// The target as given.
        target: String,
        /// Why.
        #[source]
        source: NetError,
    },
    /// The status page.
    #[error("cannot serve the status page on {address}")]
    Http {
        /// The address as given.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// SIGTERM cannot be caught or the sending thread cannot be started.
    #[error("cannot set up the process")]
    Process(#[source] io::Error),
    /// Whether it may send is not known without it.
    #[error("the job socket {} cannot be used", path.display())]
    JobSocket {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: greenroom_job::Error,
    },
    /// The sending thread ended without being asked.
    #[error("the sending thread died")]
    SenderDied,
}

/// A running test card. Dropping it ends the sending too, without waiting.
#[derive(Debug)]
pub struct Testcard {
    source: StatusSource,
    commands: mpsc::Sender<Command>,
    ended: oneshot::Receiver<()>,
    http: Option<http::Server>,
}

/// The fixed and the moving part of the status, for the HTTP server and the handle.
#[derive(Debug, Clone)]
struct StatusSource {
    fixed: Arc<Status>,
    progress: watch::Receiver<Progress>,
}

/// Sends until SIGTERM or SIGINT, lingers as it was told, and ends after the packet in hand.
pub async fn run(config: Config) -> Result<Status, Error> {
    let mut signals = StopSignals::install().map_err(Error::Process)?;
    let linger = config.linger;
    let mut testcard = start(config).await?;
    tokio::select! {
        () = signals.received() => {
            tokio::time::sleep(linger).await;
            testcard.stop().await
        }
        _ = &mut testcard.ended => Err(Error::SenderDied),
    }
}

/// Resolves the targets, opens the sockets, begins to send and returns.
pub async fn start(config: Config) -> Result<Testcard, Error> {
    if config.to.is_empty() {
        return Err(Error::NoTarget);
    }
    let role = config
        .runtime_role
        .clone()
        .or_else(|| config.role.clone())
        .unwrap_or_default();
    let started_ns = sender::wall_ns();
    let ssrc = config.ssrc.unwrap_or_else(|| match &config.start_id {
        Some(start_id) => ssrc_of(start_id),
        None => ssrc_of(&format!("{}:{started_ns}", std::process::id())),
    });
    check_packet(&config, &role)?;
    let mut targets = Vec::new();
    for target in &config.to {
        let at = |source| Error::Target {
            target: target.clone(),
            source,
        };
        let address = net::resolve(target).await.map_err(at)?;
        let socket = net::open_sender(address, config.ttl, config.interface).map_err(at)?;
        targets.push((address, socket));
    }
    let (progress, progress_seen) = watch::channel(Progress::new(config.fence));
    let addresses = targets.iter().map(|(address, _)| *address).collect();
    let fixed = Arc::new(fixed_status(&config, addresses, ssrc, started_ns));
    let source = StatusSource {
        fixed,
        progress: progress_seen,
    };
    let http = match config.http {
        None => None,
        Some(address) => {
            let server = http::Server::start(address, source.clone()).await;
            Some(server.map_err(|source| Error::Http { address, source })?)
        }
    };
    let desk = match &config.job_socket {
        None => None,
        Some(path) => Some(open_desk(path.clone(), config.service.clone()).await?),
    };
    let (commands, told) = mpsc::channel();
    let (ended, ended_seen) = oneshot::channel();
    let sender = Sender {
        rate: config.rate,
        size: config.size,
        ssrc,
        channel: config.channel,
        role,
        fence: config.fence,
        targets,
        faults: config.faults,
        catch_up: config.catch_up,
        progress,
        holds: desk.as_ref().is_some_and(Desk::is_target),
        until_ms: desk.as_ref().and_then(Desk::lease_until_ms),
        commands: told,
        ended,
    };
    if let Some(desk) = desk {
        let parts = Parts {
            channel: sender.channel.clone(),
            rate: sender.rate,
            mood: mood(&sender.faults),
            commands: commands.clone(),
            progress: source.progress.clone(),
        };
        std::thread::Builder::new()
            .name("testcard-socket".to_owned())
            .spawn(move || desk.run(parts))
            .map_err(Error::Process)?;
    }
    std::thread::Builder::new()
        .name("testcard".to_owned())
        .spawn(move || sender.run())
        .map_err(Error::Process)?;
    Ok(Testcard {
        source,
        commands,
        ended: ended_seen,
        http,
    })
}

async fn open_desk(path: PathBuf, service: Option<String>) -> Result<Desk, Error> {
    let service = service.unwrap_or_default();
    let told = path.clone();
    let connected = tokio::task::spawn_blocking(move || Desk::connect(&told, &service)).await;
    match connected {
        Ok(desk) => desk.map_err(|source| Error::JobSocket { path, source }),
        Err(error) => Err(Error::Process(io::Error::other(error))),
    }
}

fn mood(faults: &[Fault]) -> Mood {
    let mut mood = Mood::default();
    for fault in faults {
        match fault.kind {
            FaultKind::RefuseHandover => mood.refuses = true,
            FaultKind::SlowHandover(slow) => mood.slow = Some(slow),
            _ => {}
        }
    }
    mood
}

/// The SSRC of an instance: 32-bit FNV-1a over the start id's text.
pub fn ssrc_of(start_id: &str) -> u32 {
    start_id.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

// === impl Config ===

impl Config {
    /// A channel to some targets, everything else at its default.
    pub fn new(to: Vec<String>, channel: impl Into<String>) -> Self {
        Self {
            to,
            rate: Rate::default(),
            channel: channel.into(),
            size: packet::DEFAULT_SIZE,
            ssrc: None,
            ttl: 1,
            interface: None,
            http: None,
            faults: Vec::new(),
            catch_up: Duration::ZERO,
            linger: Duration::ZERO,
            job_id: None,
            role: None,
            runtime_role: None,
            service: None,
            node_id: None,
            start_id: None,
            fence: None,
            job_socket: None,
        }
    }

    /// Takes from a worker's environment what is not set already, and binds the status page to the
    /// host port if its port names a container port (`GREENROOM_PORT_<port>`, process runtime).
    pub fn with_env(mut self, env: &JobEnv) -> Self {
        fn fill(field: &mut Option<String>, value: &Option<String>) {
            if field.is_none() {
                field.clone_from(value);
            }
        }
        // A role given by hand must reach the packets, so it keeps the environment's slot role out.
        if self.role.is_none() {
            fill(&mut self.runtime_role, &env.runtime_role);
        }
        fill(&mut self.role, &env.role);
        fill(&mut self.job_id, &env.job_id);
        fill(&mut self.service, &env.service);
        fill(&mut self.node_id, &env.node_id);
        fill(&mut self.start_id, &env.start_id);
        self.fence = self.fence.or(env.fence);
        if self.job_socket.is_none() {
            self.job_socket.clone_from(&env.job_socket);
        }
        self.http = self.http.map(|address| env.mapped(address));
        self
    }
}

// === impl State ===

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sending => "sending",
            Self::Holding => "holding",
            Self::Lapsed => "lapsed",
            Self::Late => "late",
            Self::Black => "black",
            Self::Hung => "hung",
            Self::Stopped => "stopped",
        })
    }
}

// === impl Testcard ===

impl Testcard {
    /// What it is doing.
    pub fn status(&self) -> Status {
        self.source.status()
    }

    /// Where the status page is, if it is served.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|server| server.address)
    }

    /// Waits until the state is the given one; fails if the sender ends first.
    pub async fn wait_for(&mut self, state: State) -> Result<(), Error> {
        let reached = self
            .source
            .progress
            .wait_for(|progress| progress.state == state)
            .await;
        reached.map(|_| ()).map_err(|_| Error::SenderDied)
    }

    /// Waits until so many packets were sent; fails if the sender ends first.
    pub async fn wait_for_packets(&mut self, packets: u64) -> Result<(), Error> {
        let reached = self
            .source
            .progress
            .wait_for(|progress| progress.packets >= packets)
            .await;
        reached.map(|_| ()).map_err(|_| Error::SenderDied)
    }

    /// Ends after the packet in hand and says what was sent. Never comes back from a hung one.
    pub async fn stop(mut self) -> Result<Status, Error> {
        // The thread may be gone already; then the next line says so.
        let _ = self.commands.send(Command::Stop);
        (&mut self.ended).await.map_err(|_| Error::SenderDied)?;
        Ok(self.status())
    }
}

impl Drop for Testcard {
    fn drop(&mut self) {
        // The desk's thread can tell it something as long as it lives, so it must be told.
        let _ = self.commands.send(Command::Stop);
    }
}

// === impl StatusSource ===

impl StatusSource {
    fn status(&self) -> Status {
        let progress = self.progress.borrow().clone();
        Status {
            state: progress.state,
            last_number: progress.last_number,
            last_wall_us: progress.last_wall_us,
            packets: progress.packets,
            skipped: progress.skipped,
            send_errors: progress.send_errors,
            last_error: progress.last_error,
            fence: progress.fence,
            ..(*self.fixed).clone()
        }
    }
}

fn check_packet(config: &Config, role: &str) -> Result<(), Error> {
    let packet = TestPacket {
        ssrc: 0,
        number: 0,
        rtp_time: 0,
        wall_us: 0,
        channel: &config.channel,
        role,
        fence: config.fence,
    };
    packet
        .encode(config.size, &mut Vec::new())
        .map_err(Error::Packet)
}

fn fixed_status(config: &Config, targets: Vec<SocketAddr>, ssrc: u32, started_ns: u64) -> Status {
    Status {
        state: State::Sending,
        channel: config.channel.clone(),
        targets,
        started_at: crate::duration::wall_text(started_ns / 1_000),
        rate: config.rate.to_string(),
        size_bytes: config.size,
        ssrc: format!("{ssrc:#010x}"),
        last_number: None,
        last_wall_us: None,
        packets: 0,
        skipped: 0,
        send_errors: 0,
        last_error: None,
        job_id: config.job_id.clone(),
        role: config.role.clone(),
        runtime_role: config.runtime_role.clone(),
        service: config.service.clone(),
        node_id: config.node_id.clone(),
        start_id: config.start_id.clone(),
        fence: config.fence,
        faults: config.faults.iter().map(ToString::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: MEDIA-01
    #[test]
    fn the_ssrc_comes_from_the_start_id() {
        // Known values of FNV-1a.
        assert_eq!(ssrc_of(""), 0x811c_9dc5);
        assert_eq!(ssrc_of("a"), 0xe40c_292c);
        assert_eq!(ssrc_of("foobar"), 0xbf9c_f968);
    }

    #[test]
    fn the_environment_fills_what_is_not_given() {
        let vars = [
            ("NORSK_RUNTIME_ROLE", "primary"),
            ("GREENROOM_START_ID", "00112233445566778899aabbccddeeff"),
            ("GREENROOM_FENCE", "9"),
            ("GREENROOM_PORT_8080", "31000"),
        ];
        let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = JobEnv::from_vars(vars).unwrap();
        let mut config = Config::new(vec!["127.0.0.1:1".to_owned()], "one");
        config.http = Some("127.0.0.1:8080".parse().unwrap());
        let filled = config.clone().with_env(&env);
        assert_eq!(filled.runtime_role.as_deref(), Some("primary"));
        assert_eq!(filled.fence, Some(9));
        assert_eq!(filled.http, Some("127.0.0.1:31000".parse().unwrap()));

        config.role = Some("by hand".to_owned());
        config.fence = Some(3);
        let filled = config.with_env(&env);
        assert_eq!(
            (filled.role.as_deref(), filled.runtime_role),
            (Some("by hand"), None)
        );
        assert_eq!(filled.fence, Some(3));
    }
}
