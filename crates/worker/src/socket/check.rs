//! Plays a worker for a job's own program and says where the program departs from the job socket
//! (SOCK-20).
//!
//! The program is started twice: as the source of a handover and as its target. The migration goes the
//! whole way, with both connections cut on it, and is taken back at the last moment; then both are
//! stopped. Nothing of a real worker takes part but its reader of lines.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use greenroom_types::{PAYLOAD_MAX, Payload};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout_at};

use super::SOCKET;
use super::line::{LINE_MAX, Message};

const MIGRATION: &str = "3f9c1e2a-5b0d-4c7e-9f00-00c0ffee0001";
/// A job says hello within this, and is back within this (SOCK-05, SOCK-12).
const HELLO: Duration = Duration::from_secs(5);

/// How long the program gets.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// To start and connect.
    pub start: Duration,
    /// For a step (SOCK-10).
    pub step: Duration,
    /// Between the signal and the kill.
    pub grace: Duration,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The requirement, as `SOCK-05`.
    pub spec: &'static str,
    /// Which copy of the program: `source` or `target`.
    pub side: &'static str,
    /// What it has to do.
    pub rule: &'static str,
    /// How it departs from that; absent when it does not.
    pub departure: Option<String>,
}

/// A running copy of the program.
struct Candidate {
    side: &'static str,
    child: Child,
    listener: UnixListener,
    line: Option<Line>,
    connected_before: bool,
    /// Where its socket is; removed with it.
    dir: PathBuf,
}

struct Line {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    said: u64,
    heard: u64,
}

/// Runs the program and tells each finding as it is made. Ends early when the rest makes no sense.
///
/// # Errors
/// When the program or its socket cannot be made.
pub async fn check_job(
    command: &[String],
    patience: Patience,
    mut tell: impl FnMut(&Finding) + Send,
) -> io::Result<Vec<Finding>> {
    let mut script = Script {
        findings: Vec::new(),
        tell: &mut tell,
        patience,
    };
    let mut source = Candidate::start("source", "primary", command)?;
    let mut target = None;
    script.play(command, &mut source, &mut target).await?;
    for copy in [Some(&mut source), target.as_mut()].into_iter().flatten() {
        script.stop(copy).await;
    }
    Ok(script.findings)
}

struct Script<'a> {
    findings: Vec<Finding>,
    tell: &'a mut (dyn FnMut(&Finding) + Send),
    patience: Patience,
}

// === impl Script ===

impl Script<'_> {
    async fn play(
        &mut self,
        command: &[String],
        source: &mut Candidate,
        target: &mut Option<Candidate>,
    ) -> io::Result<()> {
        if !self.greet(source, None, self.patience.start).await {
            return Ok(());
        }
        // What a newer worker may say must not end the connection: the answers that follow show it.
        source
            .say("x-check", json!({ "unheard": [1, null] }))
            .await?;
        let ping = source.say("ping", json!({})).await?;
        let pong = source.answer(ping, &["pong"], self.patience.step).await;
        self.note(
            "SOCK-17",
            source.side,
            "answers ping by pong",
            pong.map(|_| ()),
        );

        let of = json!({ "migrationId": MIGRATION });
        let asked = source.say("getState", of.clone()).await?;
        let told = source
            .answer(asked, &["state", "refuse"], self.patience.step)
            .await;
        let told = told.and_then(|message| {
            payload_of(&message)?;
            Ok(message)
        });
        let rule = "answers getState by state or refuse";
        let Some(state) = self.take("SOCK-07", source.side, rule, told) else {
            return Ok(());
        };
        if state.kind == "refuse" {
            let why = state.text("reason").unwrap_or_default().to_owned();
            let refuses = Err(format!(
                "it refuses ({why:?}), so that nothing more can be looked at"
            ));
            self.note("SOCK-07", source.side, "can hand over", refuses);
            return Ok(());
        }

        let target = target.insert(Candidate::start("target", "primary@3f9c1e2a", command)?);
        if !self.greet(target, Some(&of), self.patience.start).await {
            return Ok(());
        }
        let mut fields = of.clone();
        fields["payload"] = base64_of(&state).into();
        target.say("sourceState", fields).await?;
        let ready = target.unasked("ready", self.patience.step).await;
        let ready = ready.and_then(|message| {
            if message.text("migrationId") != Some(MIGRATION) {
                return Err(format!("it names {:?}", message.text("migrationId")));
            }
            payload_of(&message)?;
            Ok(message)
        });
        let rule = "says ready, for the migration of its welcome";
        let Some(ready) = self.take("SOCK-08", target.side, rule, ready) else {
            return Ok(());
        };

        let mut stop = of.clone();
        stop["at"] = base64_of(&ready).into();
        let Some(stopped) = self
            .step(source, "stopOutput", &stop, "stoppedOutput")
            .await?
        else {
            return Ok(());
        };
        let mut begin = of.clone();
        begin["at"] = base64_of(&stopped).into();
        if self
            .step(target, "begin", &begin, "applied")
            .await?
            .is_none()
        {
            return Ok(());
        }
        let mut abort = of;
        abort["reason"] = "taken back by the check".into();
        for (copy, answer) in [(target, "dropped"), (source, "resumed")] {
            let asked = copy.say("abort", abort.clone()).await?;
            let told = copy.answer(asked, &[answer], self.patience.step).await;
            let rule = "goes back when the migration is aborted";
            self.note("SOCK-13", copy.side, rule, told.map(|_| ()));
        }
        Ok(())
    }

    /// A step; then the connection is cut, and the step repeated to whoever comes back.
    async fn step(
        &mut self,
        copy: &mut Candidate,
        kind: &'static str,
        fields: &Value,
        answer: &'static str,
    ) -> io::Result<Option<Message>> {
        let asked = copy.say(kind, fields.clone()).await?;
        let told = copy.answer(asked, &[answer], self.patience.step).await;
        let told = told.and_then(|message| {
            payload_of(&message)?;
            Ok(message)
        });
        let rule = "does the step and answers it";
        let Some(first) = self.take("SOCK-07", copy.side, rule, told) else {
            return Ok(None);
        };
        copy.line = None;
        let of = json!({ "migrationId": MIGRATION });
        if !self.greet(copy, Some(&of), HELLO).await {
            return Ok(None);
        }
        let asked = copy.say(kind, fields.clone()).await?;
        let told = copy.answer(asked, &[answer], self.patience.step).await;
        let told = told.and_then(|again| {
            let (first, again) = (payload_of(&first)?, payload_of(&again)?);
            match first == again {
                true => Ok(()),
                false => Err(format!("it answers otherwise: {again:?} after {first:?}")),
            }
        });
        let rule = "gives the same answer to a step that is repeated";
        self.note("SOCK-12", copy.side, rule, told);
        Ok(Some(first))
    }

    /// Takes a connection and welcomes it. One that was connected before must name its migration.
    async fn greet(
        &mut self,
        copy: &mut Candidate,
        migration: Option<&Value>,
        within: Duration,
    ) -> bool {
        let returns = copy.connected_before;
        let came = match copy.connect(within).await {
            Ok(hello) => check_hello(&hello, returns).map(|()| hello),
            Err(why) => Err(why),
        };
        let (spec, rule) = match returns {
            true => ("SOCK-12", "comes back within 5 s and names its migration"),
            false => ("SOCK-05", "connects and says hello first"),
        };
        let Some(hello) = self.take(spec, copy.side, rule, came) else {
            return false;
        };
        let mut welcome = json!({
            "re": hello.id, "version": 1, "jobId": "check", "role": copy.role(),
            "runtimeRole": "primary", "startId": "00112233445566778899aabbccddeeff",
            "prepared": false, "config": { "configuration": "", "services": {} },
        });
        if let Some(migration) = migration {
            welcome["migrationId"] = migration["migrationId"].clone();
        }
        let said = copy.say("welcome", welcome).await.map(|_| ());
        let said = said.map_err(|error| format!("the connection is gone: {error}"));
        said.is_ok() || {
            self.note(spec, copy.side, "listens after its hello", said);
            false
        }
    }

    async fn stop(&mut self, copy: &mut Candidate) {
        let grace = self.patience.grace;
        let fields = json!({ "graceMs": grace.as_millis() as u64, "reason": "USER" });
        // One that is gone already is found so below.
        let _ = copy.say("stopping", fields).await;
        let ended = copy.end(grace).await;
        self.note(
            "SOCK-14",
            copy.side,
            "ends within its grace once signalled",
            ended,
        );
    }

    fn note(
        &mut self,
        spec: &'static str,
        side: &'static str,
        rule: &'static str,
        how: Result<(), String>,
    ) {
        let finding = Finding {
            spec,
            side,
            rule,
            departure: how.err(),
        };
        (self.tell)(&finding);
        self.findings.push(finding);
    }

    fn take<T>(
        &mut self,
        spec: &'static str,
        side: &'static str,
        rule: &'static str,
        how: Result<T, String>,
    ) -> Option<T> {
        let (value, how) = match how {
            Ok(value) => (Some(value), Ok(())),
            Err(why) => (None, Err(why)),
        };
        self.note(spec, side, rule, how);
        value
    }
}

// === impl Candidate ===

impl Candidate {
    fn start(side: &'static str, role: &str, command: &[String]) -> io::Result<Self> {
        let random = greenroom_auth::hex(&greenroom_auth::random::<6>());
        let dir = std::env::temp_dir().join(format!("greenroom-check-{random}"));
        std::fs::create_dir(&dir)?;
        let path = dir.join(SOCKET);
        let listener = UnixListener::bind(&path)?;
        let [program, args @ ..] = command else {
            return Err(io::Error::other("no program to check"));
        };
        let child = Command::new(program)
            .args(args)
            .env("GREENROOM_JOB_SOCKET", &path)
            .env("GREENROOM_JOB_ID", "check")
            .env("GREENROOM_ROLE", role)
            .env("NORSK_RUNTIME_ROLE", "primary")
            .env("GREENROOM_SERVICE", "check")
            .env("GREENROOM_NODE_ID", side)
            .env("GREENROOM_START_ID", "00112233445566778899aabbccddeeff")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        match child {
            Ok(child) => Ok(Self {
                side,
                child,
                listener,
                line: None,
                connected_before: false,
                dir,
            }),
            Err(error) => {
                let _ = std::fs::remove_dir_all(&dir);
                Err(error)
            }
        }
    }

    fn role(&self) -> &'static str {
        match self.side {
            "source" => "primary",
            _ => "primary@3f9c1e2a",
        }
    }

    async fn connect(&mut self, within: Duration) -> Result<Message, String> {
        let until = Instant::now() + within;
        let stream = tokio::select! {
            accepted = timeout_at(until, self.listener.accept()) => match accepted {
                Ok(Ok((stream, _))) => stream,
                Ok(Err(error)) => return Err(format!("the socket broke: {error}")),
                Err(_) => return Err(format!("no connection came within {} s", within.as_secs())),
            },
            ended = self.child.wait() => {
                let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                return Err(format!("the program ended ({how})"));
            }
        };
        self.connected_before = true;
        let (reader, writer) = stream.into_split();
        self.line = Some(Line {
            reader: BufReader::new(reader),
            writer,
            said: 0,
            heard: 0,
        });
        self.next(Instant::now() + HELLO).await
    }

    async fn say(&mut self, kind: &str, mut fields: Value) -> io::Result<u64> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let line = self.line.as_mut().ok_or_else(gone)?;
        line.said += 1;
        (fields["type"], fields["id"]) = (kind.into(), line.said.into());
        line.writer
            .write_all(format!("{fields}\n").as_bytes())
            .await?;
        Ok(line.said)
    }

    /// The answer of one of these types to the message of this id. `working` extends the time once.
    async fn answer(&mut self, re: u64, kinds: &[&str], term: Duration) -> Result<Message, String> {
        let mut until = Instant::now() + term;
        let mut extended = false;
        loop {
            let message = self.next(until).await?;
            match message.kind.as_str() {
                "working" if message.re == Some(re) => {
                    if !std::mem::replace(&mut extended, true) {
                        until += term;
                    }
                }
                kind if kinds.contains(&kind) => match message.re == Some(re) {
                    true => return Ok(message),
                    false => return Err(format!("{kind} answers {:?} and not {re}", message.re)),
                },
                _ => expect_other(&message, &kinds.join(" or "))?,
            }
        }
    }

    async fn unasked(&mut self, kind: &str, term: Duration) -> Result<Message, String> {
        let until = Instant::now() + term;
        loop {
            let message = self.next(until).await?;
            if message.kind == kind {
                return Ok(message);
            }
            expect_other(&message, kind)?;
        }
    }

    /// The next message, of the form that SOCK-03 and SOCK-04 ask for.
    async fn next(&mut self, until: Instant) -> Result<Message, String> {
        let line = self.line.as_mut().ok_or("it is not connected")?;
        loop {
            let mut bytes = Vec::new();
            let mut bounded = (&mut line.reader).take(LINE_MAX as u64);
            let read = timeout_at(until, bounded.read_until(b'\n', &mut bytes)).await;
            match read {
                Err(_) => return Err("nothing came in time".to_owned()),
                Ok(Err(error)) => return Err(format!("the connection broke: {error}")),
                Ok(Ok(0)) => return Err("it closed the connection".to_owned()),
                Ok(Ok(_)) => {}
            }
            let Some(text) = bytes.strip_suffix(b"\n") else {
                return Err(format!("a line is longer than {LINE_MAX} bytes"));
            };
            if text.is_empty() {
                continue;
            }
            let message = Message::parse(text)
                .map_err(|why| format!("a line is no message: {why} (SOCK-03, SOCK-04)"))?;
            if message.id <= line.heard {
                let last = line.heard;
                return Err(format!(
                    "id {} does not grow after {last} (SOCK-04)",
                    message.id
                ));
            }
            line.heard = message.id;
            return Ok(message);
        }
    }

    async fn end(&mut self, grace: Duration) -> Result<(), String> {
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let Some(pid) = pid else {
            return Err("it had ended by itself".to_owned());
        };
        kill_process(pid, Signal::TERM).map_err(|error| error.to_string())?;
        let ended = tokio::time::timeout(grace, self.child.wait()).await;
        if ended.is_err() {
            let _ = self.child.kill().await;
            return Err(format!("it had to be killed after {} s", grace.as_secs()));
        }
        Ok(())
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn check_hello(hello: &Message, returns: bool) -> Result<(), String> {
    let list = |name: &str| hello.fields.get(name).and_then(Value::as_array);
    let has = |name: &str, value: Value| list(name).is_some_and(|list| list.contains(&value));
    if hello.kind != "hello" {
        return Err(format!("it begins with {:?}", hello.kind));
    }
    if !has("versions", 1.into()) {
        return Err("its hello does not list version 1 in versions".to_owned());
    }
    if hello.text("service").is_none() {
        return Err("its hello names no service".to_owned());
    }
    if !has("wants", "handover".into()) {
        return Err("its hello does not list handover in wants".to_owned());
    }
    if returns && hello.text("migrationId") != Some(MIGRATION) {
        return Err(format!("its hello names {:?}", hello.text("migrationId")));
    }
    Ok(())
}

/// What a job may say at any time; anything else stands in the place of what is waited for.
fn expect_other(message: &Message, awaited: &str) -> Result<(), String> {
    match message.kind.as_str() {
        "status" | "fenceSeen" | "pong" | "configApplied" | "configRefused" => Ok(()),
        "error" if message.text("code") == Some("unknown_type") => Ok(()),
        "failed" => {
            let reason = message.text("reason").unwrap_or_default();
            Err(format!("it gives up: {reason:?}"))
        }
        other => Err(format!("it says {other} where {awaited} is waited for")),
    }
}

fn base64_of(message: &Message) -> &str {
    message.text("payload").unwrap_or_default()
}

fn payload_of(message: &Message) -> Result<Payload, String> {
    let text = match message.fields.get("payload") {
        None | Some(Value::Null) => "",
        Some(Value::String(text)) => text,
        Some(_) => return Err("its payload is no string (SOCK-09)".to_owned()),
    };
    let payload = Payload::from_base64(text)
        .map_err(|error| format!("its payload is no base64: {error} (SOCK-09)"))?;
    if payload.len() > PAYLOAD_MAX {
        return Err(format!("its payload has {} bytes (SOCK-09)", payload.len()));
    }
    Ok(payload)
}
