//! The test card as a process of its own: what only an exit status or a signal can show.
//!
//! The child is this test program, told by environment variables to run one test, which is the
//! test card; without them that test has nothing to do.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use greenroom_media::env::JobEnv;
use greenroom_media::packet::{Datagram, recognise};
use greenroom_media::testcard;

const TARGETS: &str = "MEDIA_TEST_TARGETS";
const FAULTS: &str = "MEDIA_TEST_FAULTS";

/// Bounds a test that waits for a packet that never comes.
const NEVER: Duration = Duration::from_secs(30);

#[test]
fn child_process_runs_a_test_card() {
    let Ok(targets) = std::env::var(TARGETS) else {
        return;
    };
    let to = targets.split(',').map(str::to_owned).collect();
    let mut config = testcard::Config::new(to, "one").with_env(&JobEnv::from_process().unwrap());
    let faults = std::env::var(FAULTS).unwrap_or_default();
    config.faults = faults
        .split_terminator(',')
        .map(|fault| fault.parse().unwrap())
        .collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(testcard::run(config)).unwrap();
}

fn spawn(sockets: &[&UdpSocket], env: &[(&str, &str)]) -> Child {
    let targets: Vec<String> = sockets
        .iter()
        .map(|socket| socket.local_addr().unwrap().to_string())
        .collect();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process_runs_a_test_card"])
        .env(TARGETS, targets.join(","))
        .envs(env.iter().copied().collect::<BTreeMap<_, _>>())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(NEVER)).unwrap();
    socket
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// The numbers that wait in a socket.
fn drain(socket: &UdpSocket) -> Vec<u64> {
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 2_000];
    let mut numbers = Vec::new();
    while let Ok(len) = socket.recv(&mut buffer) {
        let Datagram::Test(packet) = recognise(&buffer[..len]) else {
            panic!("a test packet")
        };
        numbers.push(packet.number);
    }
    numbers
}

// Goal: SIGTERM ends it in an orderly way, with the packet in hand sent to all targets. Method:
// what waits in two sockets after the end is the same.
// spec: MEDIA-01
#[test]
fn sigterm_ends_it_after_the_packet_in_hand() {
    let sockets = [socket(), socket()];
    let start_id = "00112233445566778899aabbccddeeff";
    let mut child = spawn(
        &[&sockets[0], &sockets[1]],
        &[
            ("NORSK_RUNTIME_ROLE", "primary"),
            ("GREENROOM_FENCE", "12"),
            ("GREENROOM_START_ID", start_id),
        ],
    );
    let mut buffer = [0; 2_000];
    let mut seen = Vec::new();
    for _ in 0..3 {
        let len = sockets[0].recv(&mut buffer).unwrap();
        let Datagram::Test(packet) = recognise(&buffer[..len]) else {
            panic!("a test packet")
        };
        assert_eq!(
            (packet.channel, packet.role, packet.fence),
            ("one", "primary", Some(12))
        );
        assert_eq!(packet.ssrc, testcard::ssrc_of(start_id));
        seen.push(packet.number);
    }
    signal(&child, rustix::process::Signal::TERM);
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{status}");
    seen.extend(drain(&sockets[0]));
    assert_eq!(seen, drain(&sockets[1]));
}

#[test]
fn a_crash_ends_the_process_without_ado() {
    let socket = socket();
    let mut child = spawn(&[&socket], &[(FAULTS, "crash@200ms")]);
    let status = child.wait().unwrap();
    assert_eq!(
        status.signal(),
        Some(rustix::process::Signal::ABORT.as_raw()),
        "{status}"
    );
}
