//! Two ends of a line: who gets in, and what both know of each other.

use std::fmt::Debug;
use std::io;
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use greenroom_tls::mint::{self, Minted, Purpose};
use greenroom_tls::{
    Binding, ClientTls, Door, Identity, Incoming, Peer, ServerTls, Trust, authorities, incoming,
};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::transport::server::Connected as _;

/// How a connection of HTTP/2 begins.
const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const LASTS: Duration = Duration::from_secs(3_600);

fn sign(ca: &Minted, names: &[&str], purpose: Purpose, now: SystemTime) -> Identity {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let minted = mint::signed(ca, "it", &names, purpose, now, LASTS).unwrap();
    minted.identity().unwrap()
}

fn trust(ca: &Minted) -> Trust {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, &ca.certificate).unwrap();
    Trust::Authorities(authorities(&file).unwrap())
}

/// A door with this certificate.
async fn open(identity: &Identity, clients: Option<&Minted>, max: usize) -> (Incoming, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let clients = match clients.map(trust) {
        Some(Trust::Authorities(clients)) => clients,
        _ => Vec::new(),
    };
    let tls = ServerTls::new(identity, &clients).unwrap();
    let door = Door {
        listener,
        tls: Some(watch::channel(tls).1),
        connections_max: max,
    };
    (incoming(vec![door]), port)
}

/// A worker's door with so many places, its port, and its key as who comes to it knows it.
async fn worker_door(max: usize) -> (Incoming, u16, Trust) {
    let worker = mint::from_seed("worker", &[7; 32], SystemTime::now()).unwrap();
    let (door, port) = open(&worker, None, max).await;
    (door, port, Trust::Pins(vec![worker.pin().unwrap()]))
}

/// Comes to a door and says a word; gives the binding and what the door knows, or why not.
async fn visit(
    door: &mut Incoming,
    port: u16,
    name: &str,
    trust: &Trust,
    shown: Option<&Identity>,
) -> Result<(Binding, Peer), String> {
    let tls = ClientTls::new(trust, shown).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut stream, binding) = tls
        .shake(stream, name)
        .await
        .map_err(|error| error.to_string())?;
    stream.write_all(b"x").await.unwrap();
    let mut io = door.next().await.unwrap().unwrap();
    let mut word = [0];
    io.read_exact(&mut word).await.unwrap();
    assert_eq!(word, *b"x");
    Ok((binding, io.connect_info()))
}

/// Comes to a worker's door and stays.
async fn come(port: u16, pinned: &Trust) -> io::Result<impl AsyncWrite + Debug + Unpin> {
    let tls = ClientTls::new(pinned, None).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (stream, _) = tls.shake(stream, "w").await?;
    Ok(stream)
}

// spec: SEC-07
#[tokio::test]
async fn a_certificate_is_checked_by_authority_name_time_and_purpose() {
    let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
    let (ca, other) = (
        mint::authority("ca", now).unwrap(),
        mint::authority("other", now).unwrap(),
    );
    let good = sign(
        &ca,
        &["manager.example", "127.0.0.1", "::1"],
        Purpose::Server,
        now,
    );
    let (mut door, port) = open(&good, None, 16).await;
    for name in ["manager.example", "127.0.0.1", "[::1]"] {
        let visited = visit(&mut door, port, name, &trust(&ca), None).await;
        visited.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    let why = visit(&mut door, port, "127.0.0.1", &trust(&other), None).await;
    assert_eq!(
        why.unwrap_err(),
        "the certificate is not signed by the CA that was given"
    );
    // One of the same name is told in the same words.
    let namesake = mint::authority("ca", now).unwrap();
    let why = visit(&mut door, port, "127.0.0.1", &trust(&namesake), None).await;
    assert!(why.unwrap_err().contains("not signed by the CA"));
    let why = visit(&mut door, port, "localhost", &trust(&ca), None).await;
    assert_eq!(why.unwrap_err(), "the certificate is for other names");

    for (identity, part) in [
        (
            sign(&ca, &["a"], Purpose::Server, now - 10 * day),
            "expired",
        ),
        (
            sign(&ca, &["a"], Purpose::Server, now + 10 * day),
            "not valid yet",
        ),
        (sign(&ca, &["a"], Purpose::Client, now), "ertificate"),
    ] {
        let (mut door, port) = open(&identity, None, 16).await;
        let why = visit(&mut door, port, "a", &trust(&ca), None).await;
        let why = why.unwrap_err();
        assert!(why.contains(part), "{why}");
    }
}

#[tokio::test]
async fn a_pinned_key_is_taken_whatever_its_certificate_says_and_no_other() {
    let now = SystemTime::now();
    let worker = mint::from_seed("worker", &[7; 32], now).unwrap();
    let (mut door, port) = open(&worker, None, 16).await;
    let pin = worker.pin().unwrap();
    let pinned = Trust::Pins(vec![pin]);
    visit(&mut door, port, "any.name", &pinned, None)
        .await
        .unwrap();
    // The same secret makes the same key in another certificate.
    let again = mint::from_seed("worker", &[7; 32], now + LASTS).unwrap();
    assert_eq!(again.pin().unwrap(), pin);
    let stranger = mint::from_seed("worker", &[8; 32], now).unwrap();
    let other = Trust::Pins(vec![stranger.pin().unwrap()]);
    let why = visit(&mut door, port, "any.name", &other, None).await;
    assert!(why.unwrap_err().contains("another key"));
}

// spec: SEC-05
#[tokio::test]
async fn both_ends_know_the_session_and_two_sessions_differ() {
    let (mut door, port, pinned) = worker_door(16).await;
    let (here, peer) = visit(&mut door, port, "w", &pinned, None).await.unwrap();
    assert_eq!(peer.tls.unwrap().binding, here);
    let (there, _) = visit(&mut door, port, "w", &pinned, None).await.unwrap();
    assert_ne!(there, here);
}

// spec: SEC-02
#[tokio::test]
async fn a_client_certificate_is_known_by_its_subject_and_a_foreign_one_is_refused() {
    let now = SystemTime::now();
    let (ca, other) = (
        mint::authority("ca", now).unwrap(),
        mint::authority("other", now).unwrap(),
    );
    let server = sign(&ca, &["m"], Purpose::Server, now);
    let (mut door, port) = open(&server, Some(&ca), 16).await;
    let trust = trust(&ca);
    let (_, peer) = visit(&mut door, port, "m", &trust, None).await.unwrap();
    assert_eq!(peer.tls.unwrap().subject, None);
    let shown = sign(&ca, &[], Purpose::Client, now);
    let (_, peer) = visit(&mut door, port, "m", &trust, Some(&shown))
        .await
        .unwrap();
    let tls = peer.tls.unwrap();
    assert_eq!(tls.subject.as_deref(), Some("CN=it"));
    assert!(tls.ends_at.is_some());

    // The server says so only once the client has finished its part.
    let foreign = sign(&other, &[], Purpose::Client, now);
    let tls = ClientTls::new(&trust, Some(&foreign)).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    if let Ok((mut stream, _)) = tls.shake(stream, "m").await {
        let read = stream.read(&mut [0]).await;
        assert!(!matches!(read, Ok(1..)), "{read:?}");
    }
}

// spec: LIM-05
#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_taken_again_when_there_is_room() {
    let (mut door, port, pinned) = worker_door(1).await;
    let _first = come(port, &pinned).await.unwrap();
    let held = door.next().await.unwrap().unwrap();
    let call = held.connect_info().begin_use();
    come(port, &pinned).await.unwrap_err();
    drop((call, held));
    // The place is free when the connection is gone.
    come(port, &pinned).await.unwrap();
}

// spec: LIM-05
#[tokio::test]
async fn a_connection_that_nobody_uses_gives_way_and_is_told_before_it_is_cut_off() {
    let (mut door, port, pinned) = worker_door(1).await;
    // One that does not even begin to shake hands.
    let mut silent = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut first = come(port, &pinned).await.unwrap();
    first.write_all(BEGINNING).await.unwrap();
    let read = silent.read(&mut [0]).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");

    let mut held = door.next().await.unwrap().unwrap();
    held.read_exact(&mut [0; BEGINNING.len()]).await.unwrap();
    let leaving = held.leaving();
    let _second = come(port, &pinned).await.unwrap();
    leaving.await;
    let newer = door.next().await.unwrap().unwrap();
    let _call = newer.connect_info().begin_use();
    come(port, &pinned).await.unwrap_err();
    // Ten seconds to end in order are over at once here.
    tokio::time::pause();
    let error = held.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    let error = held.write(&[0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
}

// spec: LIM-05, LIM-09
#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_begin_in_time_loses_its_place() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let door = Door {
        listener,
        tls: None,
        connections_max: 1,
    };
    let mut door = incoming(vec![door]);
    // Nothing, and less than the beginning; in the test's time nothing lasts.
    for said in ["", "PRI * HTTP/2.0\r\n"] {
        let mut slow = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        slow.write_all(said.as_bytes()).await.unwrap();
        let mut held = door.next().await.unwrap().unwrap();
        let mut all = Vec::new();
        let error = held.read_to_end(&mut all).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(all, said.as_bytes());
    }
    // Whoever began may be silent for as long as it likes.
    let mut good = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    good.write_all(BEGINNING).await.unwrap();
    let mut held = door.next().await.unwrap().unwrap();
    held.read_exact(&mut [0; BEGINNING.len()]).await.unwrap();
    let silent = tokio::time::timeout(LASTS, held.read(&mut [0])).await;
    assert!(silent.is_err(), "{silent:?}");
}

#[test]
fn keys_are_printed_nowhere() {
    let now = SystemTime::now();
    let ca = mint::authority("ca", now).unwrap();
    let identity = sign(&ca, &["m"], Purpose::Server, now);
    assert_eq!(format!("{ca:?} {identity:?}"), "Minted(***) Identity(***)");
}
