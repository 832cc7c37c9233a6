//! The job socket: what a job and its worker tell each other (SOCK-).
//!
//! Each instance that asks for it has a directory with a socket, served by a task of its own from the
//! instance's preparation to its removal, and again after a restart of the worker. The worker never
//! waits for a job. What a job says about migrations goes to the core, which says what it is to be
//! asked; this end knows messages and connections, not their order.

pub(crate) mod check;
mod conn;
pub(crate) mod line;
mod migration;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use greenroom_types::job::JobInfoKind;
use greenroom_types::{MigrationId, Millis, Mono, StartId};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::conn::Conn;
use self::line::Message;
use self::migration::Asked;
use crate::agent::{JobSaid, RuntimeEvent, ToJob};
use crate::deadline;
use crate::handover::At;
use crate::launch::safe_name;
use crate::lease::NEVER;
use crate::order::{StartSpec, StopCause};
use crate::runtime::News;
use crate::supervise::with_short_path;

/// Name of the socket in its directory.
pub(crate) const SOCKET: &str = "job.sock";
/// Where containers find the directory.
pub(crate) const MOUNTED_AT: &str = "/run/greenroom";
/// The version of the protocol that is spoken.
const VERSION: u64 = 1;
/// Connections of one instance.
const CONNECTIONS_MAX: usize = 4;
/// Pings that may stay without answer.
const PINGS_MAX: u32 = 3;
/// A status is cut to this many bytes (WORK-11).
const TEXT_MAX: usize = 4 << 10;
/// A stop waits no longer than this for the news of it to be written.
const STOPPING_MAX: Duration = Duration::from_millis(200);

/// Time between two looks whether that is so.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long is waited for a job.
#[derive(Clone, Copy, Debug)]
struct Waits {
    hello: Duration,
    ping: Duration,
    config: Duration,
}

/// The sockets of all instances that have one.
pub(crate) struct Sockets {
    root: PathBuf,
    news: News,
    waits: Waits,
    open: BTreeMap<StartId, mpsc::Sender<Command>>,
    /// Until when leased jobs may output.
    leases: BTreeMap<StartId, Mono>,
}

enum Command {
    Prepared(bool),
    Stopping(Millis, StopCause, oneshot::Sender<()>),
    Configure(Arc<StartSpec>),
    Fence(Arc<StartSpec>),
    Lease(Mono),
    LeaseWarning(Millis),
    Migration(ToJob),
}

/// What connections bring.
enum Seen {
    Said(u64, Result<Message, String>),
    Closed(u64),
}

/// The task of one instance's socket.
struct Desk {
    spec: Arc<StartSpec>,
    prepared: bool,
    news: News,
    waits: Waits,
    conns: BTreeMap<u64, Conn>,
    /// Connections that have not said hello, and until when they may.
    silent: BTreeMap<u64, Instant>,
    speaker: Option<u64>,
    /// What the speaker was asked.
    asked: Asked,
    /// The speaker went, and the core has not heard it.
    silenced: bool,
    /// The migration that the instance is in.
    migration: Option<MigrationId>,
    /// Until when a leased job may output.
    lease: Option<Mono>,
    next: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(5),
            ping: Duration::from_secs(10),
            config: Duration::from_secs(10),
        }
    }
}

/// The directory of an instance's socket.
pub(crate) fn socket_dir(state_dir: &Path, start_id: &StartId) -> PathBuf {
    let dir = state_dir.join("sockets").join(safe_name(start_id));
    std::path::absolute(&dir).unwrap_or(dir)
}

// === impl Sockets ===

impl Sockets {
    pub(crate) fn new(state_dir: &Path, news: News) -> Self {
        Self {
            root: state_dir.to_owned(),
            news,
            waits: Waits::default(),
            open: BTreeMap::new(),
            leases: BTreeMap::new(),
        }
    }

    /// Serves an instance's socket if it asks for one. The directory stays the same over restarts of
    /// the worker, since containers have it mounted.
    pub(crate) fn open(
        &mut self,
        spec: &Arc<StartSpec>,
        prepared: bool,
        migration: Option<MigrationId>,
    ) -> io::Result<()> {
        if !spec.job_socket {
            return Ok(());
        }
        let spec = spec.clone();
        let dir = socket_dir(&self.root, &spec.start_id);
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o711))?;
        let _ = fs::remove_file(dir.join(SOCKET));
        let listener = with_short_path(&dir, SOCKET, |path| UnixListener::bind(path))?;
        fs::set_permissions(dir.join(SOCKET), fs::Permissions::from_mode(0o666))?;
        let (commands, receiver) = mpsc::channel(64);
        self.open.insert(spec.start_id.clone(), commands);
        let desk = Desk {
            lease: self.leases.get(&spec.start_id).copied(),
            spec,
            prepared,
            news: self.news.clone(),
            waits: self.waits,
            conns: BTreeMap::new(),
            silent: BTreeMap::new(),
            speaker: None,
            asked: Asked::default(),
            silenced: false,
            migration,
            next: 1,
        };
        tokio::spawn(desk.run(listener, receiver));
        Ok(())
    }

    /// Ends an instance's socket for good.
    pub(crate) fn close(&mut self, start_id: &StartId) {
        self.open.remove(start_id);
        self.leases.remove(start_id);
        let _ = fs::remove_dir_all(socket_dir(&self.root, start_id));
    }

    /// The instance is being started.
    pub(crate) fn started(&self, start_id: &StartId) {
        self.tell(start_id, Command::Prepared(false));
    }

    /// Hands a changed configuration to the job.
    pub(crate) fn configure(&self, start_id: &StartId, spec: Arc<StartSpec>) {
        self.tell(start_id, Command::Configure(spec));
    }

    /// Tells the job its fencing number, which has grown (SOCK-16).
    pub(crate) fn fence(&self, start_id: &StartId, spec: Arc<StartSpec>) {
        self.tell(start_id, Command::Fence(spec));
    }

    /// Tells the job until when it may output, as far as is known now (SOCK-16).
    pub(crate) fn lease(&mut self, start_id: &StartId, until: Mono) {
        self.leases.insert(start_id.clone(), until);
        self.tell(start_id, Command::Lease(until));
    }

    /// Tells the job that it is stopped after so long unless its lease is answered.
    pub(crate) fn lease_warning(&self, start_id: &StartId, remaining: Millis) {
        self.tell(start_id, Command::LeaseWarning(remaining));
    }

    /// Tells the job something about a migration.
    pub(crate) fn migration(&self, start_id: &StartId, told: ToJob) {
        self.tell(start_id, Command::Migration(told));
    }

    /// Tells the job that it is about to be stopped; done when that was written, or at once where
    /// nobody listens.
    pub(crate) fn stopping(
        &self,
        start_id: &StartId,
        grace: Millis,
        cause: StopCause,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (done, written) = oneshot::channel();
        self.tell(start_id, Command::Stopping(grace, cause, done));
        async move {
            let _ = tokio::time::timeout(STOPPING_MAX, written).await;
        }
    }

    fn tell(&self, start_id: &StartId, command: Command) {
        if let Some(desk) = self.open.get(start_id) {
            let _ = desk.try_send(command);
        }
    }
}

// === impl Desk ===

impl Desk {
    async fn run(mut self, listener: UnixListener, mut commands: mpsc::Receiver<Command>) {
        let (sender, mut seen) = mpsc::channel(64);
        let mut pings = tokio::time::interval(self.waits.ping);
        pings.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        pings.tick().await;
        loop {
            let deadline = self.next_deadline();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.obey(command).await,
                    None => return,
                },
                Ok((stream, _)) = listener.accept() => {
                    let number = self.next;
                    self.next += 1;
                    let mut conn = Conn::open(number, stream, sender.clone());
                    if self.conns.len() >= CONNECTIONS_MAX {
                        let text = format!("at most {CONNECTIONS_MAX} connections of one instance");
                        conn.close(None, "too_many", json!({ "text": text }));
                        continue;
                    }
                    self.conns.insert(number, conn);
                    self.silent.insert(number, Instant::now() + self.waits.hello);
                }
                Some(seen) = seen.recv() => match seen {
                    Seen::Closed(number) => self.forget(number),
                    Seen::Said(number, Ok(message)) => self.hear(number, &message).await,
                    Seen::Said(number, Err(text)) => {
                        self.close(number, None, "bad_line", &text);
                    }
                },
                _ = pings.tick() => self.ping(),
                () = deadline::reached(deadline) => self.pass_time().await,
            }
            self.tell_silence().await;
        }
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Prepared(prepared) => self.prepared = prepared,
            Command::Stopping(grace, cause, done) => {
                let fields = json!({ "graceMs": grace.0, "reason": cause.word() });
                self.say_to_all("stopping", &fields);
                while !self.conns.values().all(Conn::is_flushed) && !done.is_closed() {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                let _ = done.send(());
            }
            Command::Fence(spec) => {
                self.spec = spec;
                self.say_to_all("fence", &json!({ "value": self.spec.fence }));
            }
            Command::Lease(until) => {
                self.lease = Some(until);
                let conns = self.conns.iter();
                let wanting = conns.filter(|(_, conn)| conn.wants_lease);
                for number in wanting.map(|(number, _)| *number).collect::<Vec<_>>() {
                    self.say(number, "lease", None, json!({ "untilMs": until_ms(until) }));
                }
            }
            Command::LeaseWarning(remaining) => {
                self.say_to_all("leaseWarning", &json!({ "remainingMs": remaining.0 }));
            }
            Command::Migration(told) => self.tell_migration(told),
            Command::Configure(spec) => {
                self.spec = spec;
                let until = Instant::now() + self.waits.config;
                for (number, service) in self.greeted() {
                    let fields = self.configuration(&service);
                    let id = self.say(number, "config", None, fields);
                    if let (Some(id), Some(conn)) = (id, self.conns.get_mut(&number)) {
                        conn.configuring = Some((id, until));
                    }
                }
            }
        }
    }

    async fn hear(&mut self, number: u64, message: &Message) {
        let Some(conn) = self.conns.get_mut(&number) else {
            return;
        };
        if message.id <= conn.heard {
            let text = format!(
                "id {} does not grow: the last was {}",
                message.id, conn.heard
            );
            return self.close(number, Some(message.id), "bad_line", &text);
        }
        conn.heard = message.id;
        let Some(service) = conn.service.clone() else {
            return self.greet(number, message).await;
        };
        let at = At {
            connection: number,
            id: message.id,
        };
        match migration::read(message, at, &self.asked) {
            Some(Ok(JobSaid::Answer { .. })) if self.speaker != Some(number) => {
                let text = "another connection speaks for the job";
                return self.error(number, message.id, "not_speaker", text);
            }
            Some(Ok(said)) => return self.pass_on(said).await,
            Some(Err(fault)) => return self.error(number, message.id, fault.code, &fault.text),
            None => {}
        }
        match message.kind.as_str() {
            "pong" => conn.unanswered = 0,
            "status" => {
                let mut text = message.text("text").unwrap_or_default().to_owned();
                text.truncate(text.floor_char_boundary(TEXT_MAX));
                let progress = message.fields.get("progress").and_then(Value::as_f64);
                let progress = progress.filter(|progress| (0.0..=1.0).contains(progress));
                self.inform(JobInfoKind::Status { text, progress }).await;
            }
            "configApplied" | "configRefused" => {
                let awaited = conn
                    .configuring
                    .is_some_and(|(id, _)| message.re == Some(id));
                if awaited {
                    conn.configuring = None;
                    let text = match (message.kind.as_str(), message.text("reason")) {
                        ("configApplied", _) => "configuration applied".to_owned(),
                        (_, reason) => {
                            format!("configuration refused: {}", reason.unwrap_or_default())
                        }
                    };
                    self.inform(JobInfoKind::ContainerEvent { service, text })
                        .await;
                }
            }
            "fenceSeen" => {}
            "hello" => self.error(number, message.id, "wrong_step", "hello was said already"),
            // It is no answer to be answered, or the two would go on for ever.
            "error" => {
                tracing::warn!(start_id = %self.spec.start_id, "a job answers with an error")
            }
            other => {
                let text = format!("{:?} is no type of message", cut(other));
                self.error(number, message.id, "unknown_type", &text);
            }
        }
    }

    /// The first message of a connection (SOCK-05).
    async fn greet(&mut self, number: u64, message: &Message) {
        if message.kind != "hello" {
            return self.close(number, Some(message.id), "hello_first", "hello comes first");
        }
        let list = |name: &str| message.fields.get(name).and_then(Value::as_array);
        let knows =
            |list: Option<&Vec<Value>>, value: Value| list.is_some_and(|l| l.contains(&value));
        if !knows(list("versions"), VERSION.into()) {
            let fields = json!({ "versions": [VERSION], "text": "no version in common" });
            return self.close_with(number, Some(message.id), "no_common_version", fields);
        }
        let speaks = knows(list("wants"), "handover".into());
        let wants_lease = knows(list("wants"), "lease".into());
        let service = message.text("service").unwrap_or_default().to_owned();
        let welcome = self.welcome(&service);
        if let Some(conn) = self.conns.get_mut(&number) {
            conn.service = Some(service);
            conn.wants_handover = speaks;
            conn.wants_lease = wants_lease;
        }
        self.silent.remove(&number);
        self.say(number, "welcome", Some(message.id), welcome);
        if self.spec.fence > 0 {
            let fence = json!({ "value": self.spec.fence });
            self.say(number, "fence", None, fence);
        }
        if !speaks {
            return;
        }
        if let Some(former) = self.speaker.replace(number) {
            self.say(former, "replaced", None, json!({}));
        }
        self.asked.clear();
        self.tell_state(number);
        let named = message.text("migrationId").map(MigrationId::from);
        self.pass_on(JobSaid::Speaker(named)).await;
    }

    /// The source's state, for the target of a handover that has not begun (SOCK-07).
    fn tell_state(&mut self, number: u64) {
        let spec = self.spec.clone();
        if let Some(state) = &spec.migration_state
            && let Some(migration_id) = &spec.migration_id
            && self.migration.as_ref() == Some(migration_id)
        {
            let fields = json!({ "migrationId": migration_id, "payload": state.to_base64() });
            self.say(number, "sourceState", None, fields);
        }
    }

    /// Asks the speaker, or answers what was said out of order.
    fn tell_migration(&mut self, told: ToJob) {
        match told {
            ToJob::In(migration) => self.migration = migration,
            ToJob::Ask {
                number,
                migration_id,
                request,
            } => {
                let (kind, fields) = migration::write(&migration_id, &request);
                // Where nobody speaks any more, that is on its way to the core.
                if let Some(speaker) = self.speaker
                    && let Some(id) = self.say(speaker, kind, None, fields)
                {
                    self.asked.note(id, number);
                }
            }
            ToJob::Refuse { at, code, expected } => {
                let fields = migration::refusal(code, expected);
                self.refuse(at.connection, at.id, code, fields);
            }
        }
    }

    /// Nobody speaks for the job any more: the core is told once.
    async fn tell_silence(&mut self) {
        if std::mem::take(&mut self.silenced) {
            self.pass_on(JobSaid::Silent).await;
        }
    }

    async fn pass_on(&self, said: JobSaid) {
        self.news
            .tell(&self.spec.start_id, RuntimeEvent::Job(said))
            .await;
    }

    fn welcome(&self, service: &str) -> Value {
        let spec = &self.spec;
        let mut welcome = json!({
            "version": VERSION,
            "jobId": spec.key.job_id.as_str(),
            "role": spec.key.role.as_str(),
            "runtimeRole": spec.told_role(),
            "startId": spec.start_id.as_str(),
            "prepared": self.prepared,
            "config": self.configuration(service),
        });
        if spec.fence > 0 {
            welcome["fence"] = spec.fence.into();
        }
        if let Some(until) = self.lease {
            welcome["leaseUntilMs"] = until_ms(until).into();
        }
        if let Some(migration_id) = &self.migration {
            welcome["migrationId"] = migration_id.as_str().into();
        }
        welcome
    }

    /// The configuration of the service that is spoken to, and of all.
    fn configuration(&self, service: &str) -> Value {
        let services = self.spec.services.iter();
        let all: BTreeMap<&str, &str> = services
            .map(|service| (service.name.as_str(), service.configuration.as_str()))
            .collect();
        json!({ "configuration": all.get(service).unwrap_or(&""), "services": all })
    }

    fn ping(&mut self) {
        for (number, _) in self.greeted() {
            let Some(conn) = self.conns.get_mut(&number) else {
                continue;
            };
            if conn.unanswered >= PINGS_MAX {
                let text = format!("{PINGS_MAX} pings were not answered");
                self.close(number, None, "no_pong", &text);
                continue;
            }
            conn.unanswered += 1;
            self.say(number, "ping", None, json!({}));
        }
    }

    async fn pass_time(&mut self) {
        let now = Instant::now();
        let late: Vec<u64> = self
            .silent
            .iter()
            .filter(|(_, until)| **until <= now)
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            self.close(number, None, "hello_first", "no hello came");
        }
        let unanswered: Vec<String> = self
            .conns
            .values_mut()
            .filter(|conn| conn.configuring.is_some_and(|(_, until)| until <= now))
            .map(|conn| {
                conn.configuring = None;
                conn.service.clone().unwrap_or_default()
            })
            .collect();
        for service in unanswered {
            let text = "the job did not say whether it applied its configuration".to_owned();
            self.inform(JobInfoKind::ContainerEvent { service, text })
                .await;
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let configuring = self.conns.values().filter_map(|conn| conn.configuring);
        let configuring = configuring.map(|(_, until)| until);
        self.silent.values().copied().chain(configuring).min()
    }

    fn greeted(&self) -> Vec<(u64, String)> {
        let conns = self.conns.iter();
        conns
            .filter_map(|(number, conn)| Some((*number, conn.service.clone()?)))
            .collect()
    }

    fn say_to_all(&mut self, kind: &str, fields: &Value) {
        for (number, _) in self.greeted() {
            self.say(number, kind, None, fields.clone());
        }
    }

    /// Says something; whoever does not read what is said is closed (SOCK-17).
    fn say(&mut self, number: u64, kind: &str, re: Option<u64>, fields: Value) -> Option<u64> {
        let said = self.conns.get_mut(&number)?.say(kind, re, fields);
        if said.is_none() {
            self.close(number, None, "slow", "too much was not read");
        }
        said
    }

    fn error(&mut self, number: u64, re: u64, code: &str, text: &str) {
        self.refuse(number, re, code, json!({ "text": text }));
    }

    fn refuse(&mut self, number: u64, re: u64, code: &str, fields: Value) {
        let said = self
            .conns
            .get_mut(&number)
            .map(|conn| conn.error(Some(re), code, fields));
        if said == Some(false) {
            self.close(number, None, "slow", "too much was not read");
        }
    }

    fn close(&mut self, number: u64, re: Option<u64>, code: &str, text: &str) {
        self.close_with(number, re, code, json!({ "text": text }));
    }

    fn close_with(&mut self, number: u64, re: Option<u64>, code: &str, fields: Value) {
        if let Some(conn) = self.conns.get_mut(&number) {
            conn.close(re, code, fields);
        }
        self.forget(number);
    }

    fn forget(&mut self, number: u64) {
        self.conns.remove(&number);
        self.silent.remove(&number);
        if self.speaker == Some(number) {
            self.speaker = None;
            self.asked.clear();
            self.silenced = true;
        }
    }

    async fn inform(&self, kind: JobInfoKind) {
        let info = RuntimeEvent::Info(kind);
        self.news.tell(&self.spec.start_id, info).await;
    }
}

/// An instant as a job reads it off the same clock; none for a lease that is kept by a pause.
fn until_ms(until: Mono) -> Option<u64> {
    (until != NEVER).then_some(until.0)
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

#[cfg(test)]
mod tests;
