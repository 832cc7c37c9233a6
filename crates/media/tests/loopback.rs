//! Test card and probe against each other over real UDP on loopback.
//!
//! Everything waits for packets or events, never for time. On a busy machine a test card may skip
//! numbers; it says how many, and the probe must find exactly these.

use std::future::pending;
use std::net::IpAddr;
use std::time::Duration;

use greenroom_media::probe::{self, Console, Ended, Event, Expectations, Format, ProbeHandle};
use greenroom_media::testcard::{self, State, Testcard};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LOOPBACK: &str = "127.0.0.1:0";

async fn probe_with(change: impl FnOnce(&mut probe::Config)) -> ProbeHandle {
    let mut config = probe::Config::new(LOOPBACK);
    // Other processes may keep a test off the processor; only what is asserted must be strict.
    config.gap = Duration::from_millis(300);
    change(&mut config);
    probe::start(config).await.unwrap()
}

async fn testcard_to(
    probes: &[&ProbeHandle],
    change: impl FnOnce(&mut testcard::Config),
) -> Testcard {
    let to = probes
        .iter()
        .map(|probe| probe.local_address().to_string())
        .collect();
    let mut config = testcard::Config::new(to, "one");
    change(&mut config);
    testcard::start(config).await.unwrap()
}

async fn next_event<T>(probe: &mut ProbeHandle, wanted: impl Fn(&Event) -> Option<T>) -> T {
    loop {
        let event = probe
            .next_event()
            .await
            .expect("the probe ended before the event came");
        if let Some(found) = wanted(&event) {
            return found;
        }
    }
}

async fn get(testcard: &Testcard, request: &str) -> String {
    let mut stream = TcpStream::connect(testcard.http_address().unwrap())
        .await
        .unwrap();
    let request = format!("{request} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

// spec: MEDIA-01, MEDIA-04
#[tokio::test]
async fn what_is_sent_is_received_and_nothing_is_missing() {
    let mut probe = probe_with(|config| config.channel = Some("one".to_owned())).await;
    let testcard = testcard_to(&[&probe], |config| {
        config.ssrc = Some(0x1234_5678);
        config.runtime_role = Some("primary".to_owned());
        config.fence = Some(7);
    })
    .await;
    probe.wait_until(|live| live.packets >= 20).await.unwrap();
    let sent = testcard.stop().await.unwrap();
    probe
        .wait_until(|live| live.packets == sent.packets)
        .await
        .unwrap();
    let report = probe.finish().await.unwrap();

    assert_eq!((sent.state, sent.send_errors), (State::Stopped, 0));
    assert_eq!(report.missing, sent.skipped);
    assert_eq!(
        (report.repeated, report.reordered, report.senders_at_once),
        (0, 0, 1)
    );
    let [sender] = &report.senders[..] else {
        panic!("one sender: {:?}", report.senders)
    };
    assert_eq!(sender.ssrc, Some(0x1234_5678));
    assert_eq!(sender.role.as_deref(), Some("primary"));
    assert_eq!(
        (sender.channel.as_deref(), sender.fence),
        (Some("one"), Some(7))
    );
    assert_eq!(
        report.on_air.last().unwrap().last_number,
        sent.last_number.unwrap()
    );
    assert_eq!(report.bytes, sent.packets * (12 + 188 * 7));
    let expectations = Expectations {
        missing: Some(sent.skipped),
        repeated: Some(0),
        silence_below: Some(Duration::from_secs(3600)),
        senders_at_once: Some(1),
    };
    assert_eq!(report.verdict(&expectations).exit_code(), 0);
}

// spec: MEDIA-02
#[tokio::test]
async fn the_number_belongs_to_the_wall_clock() {
    let mut probe = probe_with(|_| ()).await;
    let testcard = testcard_to(&[&probe], |_| ()).await;
    probe.wait_until(|live| live.packets >= 3).await.unwrap();
    let sent = testcard.stop().await.unwrap();
    // The packet's own wall time, read just after its number was chosen.
    let (number, wall_us) = (sent.last_number.unwrap(), sent.last_wall_us.unwrap());
    assert!(
        number * 20_000 <= wall_us,
        "{number} was sent before it was due, at {wall_us}"
    );
}

// spec: MEDIA-02, MEDIA-04
#[tokio::test]
async fn two_copies_send_the_same_numbers_and_are_found_out() {
    let mut probe = probe_with(|_| ()).await;
    let first = testcard_to(&[&probe], |config| config.fence = Some(1)).await;
    probe.wait_until(|live| live.packets >= 3).await.unwrap();
    let second = testcard_to(&[&probe], |config| config.fence = Some(2)).await;
    let fences = next_event(&mut probe, |event| match event {
        Event::TwoSenders { first, second, .. } => Some((first.fence, second.fence)),
        _ => None,
    })
    .await;
    assert_eq!(fences, (Some(1), Some(2)));
    probe.wait_until(|live| live.repeated >= 5).await.unwrap();
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    let report = probe.finish().await.unwrap();
    assert_eq!(report.senders_at_once, 2);
    assert!(!report.overlaps.is_empty());
    let expectations = Expectations {
        senders_at_once: Some(1),
        ..Expectations::default()
    };
    assert_eq!(report.verdict(&expectations).exit_code(), 1);
}

// spec: MEDIA-02, MEDIA-04
#[tokio::test]
async fn a_replacement_goes_on_at_the_number_that_is_due() {
    let mut probe = probe_with(|config| config.gap = Duration::from_millis(100)).await;
    let first = testcard_to(&[&probe], |config| config.fence = Some(1)).await;
    probe.wait_until(|live| live.packets >= 5).await.unwrap();
    let first_sent = first.stop().await.unwrap();
    let last_number = first_sent.last_number.unwrap();
    // The silence after the last packet; an earlier one would be the machine's.
    next_event(&mut probe, |event| match event {
        Event::SilenceBegan {
            last_number: number,
            ..
        } => (*number == last_number).then_some(()),
        _ => None,
    })
    .await;
    let second = testcard_to(&[&probe], |config| config.fence = Some(2)).await;
    let (number, silence_us) = next_event(&mut probe, |event| match event {
        Event::OnAir {
            number,
            silence_us,
            sender,
            ..
        } if sender.fence == Some(2) => Some((*number, silence_us.unwrap())),
        _ => None,
    })
    .await;
    let gap_us = next_event(&mut probe, |event| match event {
        Event::SenderChanged {
            from, to, gap_us, ..
        } => {
            assert_eq!((from.fence, to.fence), (Some(1), Some(2)));
            Some(*gap_us)
        }
        _ => None,
    })
    .await;
    assert_eq!(gap_us, silence_us);
    let second_sent = second.stop().await.unwrap();
    let all = first_sent.packets + second_sent.packets;
    probe.wait_until(|live| live.packets == all).await.unwrap();
    let report = probe.finish().await.unwrap();
    // The gap is seen in packets as it is in time: what was due meanwhile is missing.
    let left_out = number - last_number - 1;
    assert!(
        left_out >= 4,
        "100 ms of silence are at least 4 packets, not {left_out}"
    );
    assert_eq!(
        report.missing,
        left_out + first_sent.skipped + second_sent.skipped
    );
    assert!(
        report
            .silences
            .iter()
            .any(|silence| silence.length_us() == silence_us)
    );
}

// spec: MEDIA-01
#[tokio::test]
async fn every_target_gets_every_packet() {
    let mut one = probe_with(|_| ()).await;
    let mut other = probe_with(|_| ()).await;
    let testcard = testcard_to(&[&one, &other], |_| ()).await;
    one.wait_until(|live| live.packets >= 5).await.unwrap();
    let sent = testcard.stop().await.unwrap();
    for probe in [&mut one, &mut other] {
        let live = probe
            .wait_until(|live| live.packets == sent.packets)
            .await
            .unwrap();
        assert_eq!(live.last_number, sent.last_number);
    }
}

// spec: MEDIA-01, MEDIA-04
#[tokio::test]
async fn multicast_goes_through_the_interface_that_was_named() {
    let loopback: IpAddr = "127.0.0.1".parse().unwrap();
    let mut probe = probe_with(|config| {
        config.listen = "239.255.71.33:0".to_owned();
        config.interface = Some(loopback);
    })
    .await;
    let testcard = testcard_to(&[&probe], |config| {
        config.ttl = 0;
        config.interface = Some(loopback);
    })
    .await;
    probe.wait_until(|live| live.packets >= 3).await.unwrap();
    assert_eq!(testcard.stop().await.unwrap().send_errors, 0);
    let report = probe.finish().await.unwrap();
    assert_eq!(report.senders[0].from.ip(), loopback);
}

// Goal: a stream that never pauses does not keep the probe from ending.
#[tokio::test]
async fn a_fast_stream_is_watched_and_left() {
    let mut probe = probe_with(|_| ()).await;
    let testcard = testcard_to(&[&probe], |config| config.rate = "2000".parse().unwrap()).await;
    probe
        .wait_until(|live| live.packets >= 1_000)
        .await
        .unwrap();
    let report = probe.finish().await.unwrap();
    assert_eq!(report.ended, Ended::Asked);
    let sent = testcard.stop().await.unwrap();
    let explained = sent.skipped + report.own_drops.unwrap_or(0);
    assert!(
        report.missing <= explained,
        "{} of {explained}",
        report.missing
    );
}

// spec: MEDIA-04
#[tokio::test]
async fn the_command_writes_findings_a_summary_and_a_status_line() {
    let probe = probe_with(|config| config.idle = Some(Duration::from_millis(500))).await;
    let testcard = testcard_to(&[&probe], |config| config.fence = Some(3)).await;
    let (mut data, mut live) = (Vec::new(), Vec::new());
    let console = Console {
        data: &mut data,
        format: Format::Json,
        live: Some(&mut live),
    };
    let expectations = Expectations {
        missing: Some(0),
        ..Expectations::default()
    };
    let stopping = async {
        let mut testcard = testcard;
        testcard.wait_for_packets(5).await.unwrap();
        testcard.stop().await.unwrap()
    };
    let watching = probe::watch(probe, &expectations, console, pending());
    let (sent, watched) = tokio::join!(stopping, watching);
    let (report, verdict) = watched.unwrap();
    assert_eq!((report.ended, report.packets), (Ended::Idle, sent.packets));
    assert_eq!(verdict.met, sent.skipped == 0);

    let lines: Vec<serde_json::Value> = String::from_utf8(data)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["type"], "onAir");
    assert_eq!(lines[0]["sender"]["fence"], 3);
    let (summary, findings) = lines.split_last().unwrap();
    assert!(findings.iter().any(|line| line["type"] == "senderOff"));
    assert_eq!(summary["type"], "summary");
    assert_eq!(summary["packets"], sent.packets);
    assert_eq!(summary["verdict"]["met"], verdict.met);
    let live = String::from_utf8(live).unwrap();
    assert!(
        live.starts_with('\r') && live.contains("on air: one"),
        "{live:?}"
    );
}

// spec: MEDIA-04
#[tokio::test]
async fn the_command_writes_a_table_for_people() {
    let mut probe = probe_with(|_| ()).await;
    let testcard = testcard_to(&[&probe], |config| config.role = Some("spare".to_owned())).await;
    probe.wait_until(|live| live.packets >= 5).await.unwrap();
    let mut data = Vec::new();
    let console = Console {
        data: &mut data,
        format: Format::Table,
        live: None,
    };
    let expectations = Expectations {
        repeated: Some(0),
        ..Expectations::default()
    };
    let watched = probe::watch(probe, &expectations, console, async {})
        .await
        .unwrap();
    drop(testcard);
    assert_eq!(watched.0.ended, Ended::Asked);
    let table = String::from_utf8(data).unwrap();
    assert!(
        table.contains("\nOn air\n") && table.contains("one spare ("),
        "{table}"
    );
    assert!(
        table.ends_with("met: repeated expected at most 0, was 0\n"),
        "{table}"
    );
}

// spec: MEDIA-04
#[tokio::test]
async fn a_watch_ends_when_its_time_is_over() {
    let mut probe = probe_with(|config| config.duration = Some(Duration::from_millis(30))).await;
    assert_eq!(probe.next_event().await, None);
    let report = probe.finish().await.unwrap();
    assert_eq!((report.ended, report.packets), (Ended::Duration, 0));
    assert!(report.duration_us >= 30_000);
}

#[tokio::test]
async fn the_status_page_says_what_is_sent_to_whom_since_when() {
    let mut probe = probe_with(|_| ()).await;
    let testcard = testcard_to(&[&probe], |config| {
        config.channel = "<news> & more".to_owned();
        config.http = Some(LOOPBACK.parse().unwrap());
        config.fence = Some(11);
    })
    .await;
    probe.wait_until(|live| live.packets >= 1).await.unwrap();
    let page = get(&testcard, "GET /").await;
    assert!(
        page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("text/html"),
        "{page}"
    );
    assert!(
        page.contains("&lt;news&gt; &amp; more") && !page.contains("<news>"),
        "{page}"
    );
    assert!(page.contains(&probe.local_address().to_string()), "{page}");

    let answer = get(&testcard, "GET /status.json").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("application/json"), "{head}");
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["state"], "sending");
    assert_eq!(status["channel"], "<news> & more");
    assert_eq!(status["targets"][0], probe.local_address().to_string());
    assert_eq!(status["fence"], 11);
    assert_eq!(status["startedAt"], testcard.status().started_at);
    assert!(get(&testcard, "POST /").await.starts_with("HTTP/1.1 405 "));
    assert!(
        get(&testcard, "GET /other")
            .await
            .starts_with("HTTP/1.1 404 ")
    );
}

#[tokio::test]
async fn a_late_test_card_is_seen_as_late() {
    let mut probe = probe_with(|_| ()).await;
    let testcard = testcard_to(&[&probe], |config| {
        config.faults = vec!["late:80ms@0s".parse().unwrap()];
    })
    .await;
    probe.wait_until(|live| live.late >= 5).await.unwrap();
    assert_eq!(testcard.status().state, State::Late);
    let report = probe.finish().await.unwrap();
    assert_eq!(report.late, report.packets);
    assert!(report.latest_us >= 80_000, "{}", report.latest_us);
}

#[tokio::test]
async fn a_black_test_card_sends_nothing_and_says_so() {
    let probe = probe_with(|_| ()).await;
    let mut testcard = testcard_to(&[&probe], |config| {
        config.faults = vec!["black@0s".parse().unwrap()];
        config.http = Some(LOOPBACK.parse().unwrap());
    })
    .await;
    testcard.wait_for(State::Black).await.unwrap();
    assert!(
        get(&testcard, "GET /status.json")
            .await
            .contains(r#""state":"black""#)
    );
    assert_eq!(testcard.stop().await.unwrap().packets, 0);
    assert_eq!(probe.finish().await.unwrap().packets, 0);
}

// A hung one can be told from a slow one only by waiting; the waits here are what must not end.
#[tokio::test]
async fn a_hung_test_card_neither_answers_nor_ends() {
    const LONG_ENOUGH: Duration = Duration::from_millis(200);
    let probe = probe_with(|_| ()).await;
    let mut testcard = testcard_to(&[&probe], |config| {
        config.faults = vec!["hang@0s".parse().unwrap()];
        config.http = Some(LOOPBACK.parse().unwrap());
    })
    .await;
    testcard.wait_for(State::Hung).await.unwrap();
    assert!(
        tokio::time::timeout(LONG_ENOUGH, get(&testcard, "GET /"))
            .await
            .is_err()
    );
    assert!(
        tokio::time::timeout(LONG_ENOUGH, testcard.stop())
            .await
            .is_err()
    );
}

// spec: LEASE-06, MEDIA-04
#[tokio::test]
async fn a_fencing_number_that_grows_is_seen_by_whoever_receives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let mut probe = probe_with(|_| ()).await;
    let worker = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tokio::io::BufReader::new(stream);
        let mut hello = String::new();
        stream.read_line(&mut hello).await.unwrap();
        assert!(hello.contains("hello"), "{hello}");
        let said = "{\"type\":\"welcome\",\"id\":1,\"re\":1,\"version\":1}\n\
                    {\"type\":\"fence\",\"id\":2,\"value\":7}\n";
        stream.write_all(said.as_bytes()).await.unwrap();
        stream
    };
    let probes = [&probe];
    let testcard = testcard_to(&probes, |config| {
        config.fence = Some(7);
        config.job_socket = Some(path.clone());
    });
    let (mut stream, mut testcard) = tokio::join!(worker, testcard);
    testcard.wait_for_packets(3).await.unwrap();
    let said = "{\"type\":\"fence\",\"id\":3,\"value\":9}\n\
                {\"type\":\"fence\",\"id\":4,\"value\":8}\n\
                {\"type\":\"ping\",\"id\":5}\n";
    stream.write_all(said.as_bytes()).await.unwrap();
    // What is answered last was taken in before.
    let mut line = String::new();
    while !line.contains("pong") {
        line.clear();
        stream.read_line(&mut line).await.unwrap();
    }
    let packets = testcard.status().packets;
    testcard.wait_for_packets(packets + 3).await.unwrap();
    let sent = testcard.stop().await.unwrap();
    assert_eq!(sent.fence, Some(9));
    probe
        .wait_until(|live| live.packets == sent.packets)
        .await
        .unwrap();
    let report = probe.finish().await.unwrap();
    let fences: Vec<_> = report
        .on_air
        .iter()
        .map(|on_air| on_air.sender.fence)
        .collect();
    assert_eq!(fences, [Some(7), Some(9)]);
}
