//! One connection of a job: lines in, lines out, within bounds on both sides (SOCK-03, SOCK-17,
//! SOCK-18).
//!
//! What is said to a job waits in a bounded queue; whoever does not read it loses the connection, and
//! nobody ever waits for a job.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Seen;
use super::line::{LINE_MAX, Message};

/// Messages and bytes that may wait for a job to read them.
const UNREAD_MAX: usize = 64;
const UNREAD_BYTES: usize = 4 << 20;
/// What is left to say at the end is said within this.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Messages of a job that are read in one second.
const RATE_MAX: u32 = 200;

/// The worker's end of a connection.
pub(super) struct Conn {
    lines: mpsc::Sender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    last: Option<oneshot::Sender<Vec<u8>>>,
    /// Tells by its drop that nothing more will be said.
    _end: oneshot::Sender<()>,
    next_id: u64,
    /// The service that said hello, once it has.
    pub(super) service: Option<String>,
    pub(super) wants_handover: bool,
    /// It wants to hear until when it may output.
    pub(super) wants_lease: bool,
    /// Pings without answer.
    pub(super) unanswered: u32,
    /// A `config` that waits for its answer: its id, and until when.
    pub(super) configuring: Option<(u64, Instant)>,
    /// The id of the last message heard.
    pub(super) heard: u64,
}

// === impl Conn ===

impl Conn {
    /// Takes a connection on; what it says comes as [`Seen`] under this number.
    pub(super) fn open(number: u64, stream: UnixStream, seen: mpsc::Sender<Seen>) -> Self {
        let (reader, writer) = stream.into_split();
        let (lines, receiver) = mpsc::channel(UNREAD_MAX);
        let (last, at_last) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = waiting.clone();
        let reading = tokio::spawn(read(number, reader, seen.clone()));
        tokio::spawn(async move {
            write(writer, receiver, at_last, ended, &written).await;
            reading.abort();
            let _ = seen.send(Seen::Closed(number)).await;
        });
        Self {
            lines,
            waiting,
            last: Some(last),
            _end: end,
            next_id: 1,
            service: None,
            wants_handover: false,
            wants_lease: false,
            unanswered: 0,
            configuring: None,
            heard: 0,
        }
    }

    /// Says something and gives its id; none when the job does not read.
    pub(super) fn say(&mut self, kind: &str, re: Option<u64>, fields: Value) -> Option<u64> {
        let (id, line) = self.line(kind, re, fields);
        let len = line.len();
        if self.waiting.load(Ordering::Relaxed) + len > UNREAD_BYTES {
            return None;
        }
        self.waiting.fetch_add(len, Ordering::Relaxed);
        self.lines.try_send(line).is_ok().then_some(id)
    }

    pub(super) fn error(&mut self, re: Option<u64>, code: &str, fields: Value) -> bool {
        self.say("error", re, coded(code, fields)).is_some()
    }

    /// Says an error after all that waits, and closes.
    pub(super) fn close(&mut self, re: Option<u64>, code: &str, fields: Value) {
        let (_, line) = self.line("error", re, coded(code, fields));
        if let Some(last) = self.last.take() {
            let _ = last.send(line);
        }
    }

    /// Everything said so far was given to the system.
    pub(super) fn is_flushed(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    fn line(&mut self, kind: &str, re: Option<u64>, fields: Value) -> (u64, Vec<u8>) {
        let id = self.next_id;
        self.next_id += 1;
        let mut message = match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        message.insert("type".to_owned(), kind.into());
        message.insert("id".to_owned(), id.into());
        if let Some(re) = re {
            message.insert("re".to_owned(), re.into());
        }
        let mut line = Value::Object(message).to_string().into_bytes();
        line.push(b'\n');
        (id, line)
    }
}

fn coded(code: &str, mut fields: Value) -> Value {
    fields["code"] = code.into();
    fields
}

async fn read(number: u64, reader: impl AsyncRead + Unpin, seen: mpsc::Sender<Seen>) {
    let mut reader = BufReader::new(reader);
    let (mut second, mut read) = (Instant::now(), 0);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut reader).take(LINE_MAX as u64);
        if !matches!(bounded.read_until(b'\n', &mut line).await, Ok(1..)) {
            let _ = seen.send(Seen::Closed(number)).await;
            return;
        }
        let heard = match line.strip_suffix(b"\n") {
            Some(b"" | b"\r") => continue,
            Some(line) => Message::parse(line),
            None => Err(format!("a line ends within {LINE_MAX} bytes")),
        };
        let is_bad = heard.is_err();
        if seen.send(Seen::Said(number, heard)).await.is_err() || is_bad {
            return;
        }
        read += 1;
        if read == RATE_MAX {
            tokio::time::sleep_until(second + Duration::from_secs(1)).await;
            (second, read) = (Instant::now(), 0);
        } else if second.elapsed() >= Duration::from_secs(1) {
            (second, read) = (Instant::now(), 0);
        }
    }
}

/// Writes what is said, and at the end the last words, if there are any.
async fn write(
    mut writer: OwnedWriteHalf,
    mut lines: mpsc::Receiver<Vec<u8>>,
    last: oneshot::Receiver<Vec<u8>>,
    ended: oneshot::Receiver<()>,
    waiting: &AtomicUsize,
) {
    let carry = async {
        while let Some(line) = lines.recv().await {
            if writer.write_all(&line).await.is_err() {
                return;
            }
            waiting.fetch_sub(line.len(), Ordering::Relaxed);
        }
        if let Ok(last) = last.await {
            let _ = writer.write_all(&last).await;
        }
    };
    let limit = async {
        // It ends by being dropped.
        let _ = ended.await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        () = carry => {}
        () = limit => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SOCK-18
    #[tokio::test(start_paused = true)]
    async fn a_job_that_says_too_much_is_read_more_slowly() {
        let (mut job, worker) = tokio::io::duplex(1 << 20);
        let (sender, mut seen) = mpsc::channel(1_000);
        for id in 1..=450 {
            let line = format!("{{\"type\":\"status\",\"id\":{id}}}\n\n");
            job.write_all(line.as_bytes()).await.unwrap();
        }
        let began = Instant::now();
        tokio::spawn(read(1, worker, sender));
        let mut at = Vec::new();
        for _ in 0..450 {
            assert!(matches!(seen.recv().await, Some(Seen::Said(1, Ok(_)))));
            at.push(began.elapsed().as_secs());
        }
        assert_eq!(
            (at[199], at[200], at[399], at[400], at[449]),
            (0, 1, 1, 2, 2)
        );
    }
}
