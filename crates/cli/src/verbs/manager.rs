//! `greenroom manager`: the Manager as a daemon.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use greenroom_auth::Role;
use greenroom_manager::{
    AuthSettings, CertificateRole, License, ListenSettings, MetricsSettings, OVERRIDES_FILE,
    Running, Settings, SignedSettings, StartError, StatusLog, TlsFiles,
};
use greenroom_manifest::manager::{Asks, ManagerFile, Nodes, RoleName, Within};
use greenroom_sdk::types::Millis;
use greenroom_store::{FatalError, OpenError, ProposeError};

use super::files::{as_json, read_text, refuse};
use super::media::chain;
use crate::failure::{Exit, FULL_HINT, Failure, Outcome};
use crate::output::Output;
use crate::signals::Signals;

/// Run a Manager, which keeps the record of bundles, jobs and nodes, and speaks with workers.
#[derive(Debug, Args)]
pub(crate) struct Manager {
    /// Its settings, YAML or JSON; `greenroom init` writes some. Flags go before them.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Read these settings, tell what is wrong with them, and end.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    check: Option<PathBuf>,
    /// Folder of its store; greenroom-data/manager unless the settings say another.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where the API is served, in the clear; 127.0.0.1:6789 unless the settings say more.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Make a new store although the folder holds other files.
    #[arg(long)]
    create: bool,
    /// Name of this member.
    #[arg(long)]
    name: Option<String>,
    /// Print one JSON line when the API is served.
    #[arg(long)]
    json: bool,
}

// === impl Manager ===

impl Manager {
    pub(crate) async fn run(self, status_log: StatusLog) -> Outcome {
        if let Some(file) = &self.check {
            return self.check(file);
        }
        let mut settings = match &self.config {
            Some(file) => read_settings(file)?,
            None => Settings {
                metrics: Some(MetricsSettings::default()),
                ..Settings::new(DATA_DIR, DEFAULT_LISTEN)
            },
        };
        if let Some(folder) = self.data_dir {
            settings.data_dir = folder;
        }
        if let Some(address) = self.listen {
            settings.listen = vec![ListenSettings::at(address)];
        }
        if let Some(name) = self.name {
            settings.member_name = name;
        }
        settings.create = self.create;
        settings.overrides_file = overrides_file(|name| std::env::var_os(name));
        let signals = Signals::install()?;
        let running = start(settings, status_log).await?;
        let address = running.address().to_string();
        let addresses = running.addresses();
        let output = Output { json: self.json };
        let told = serde_json::json!({
            "event": "listening", "address": address, "addresses": addresses,
        });
        output.either(&told, || {
            let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            format!("Manager serves at {}", all.join(", "))
        })?;
        serve(running, signals).await
    }
}

impl Manager {
    /// Tells everything that is wrong with settings and overrides, and starts nothing (API-20).
    fn check(&self, file: &Path) -> Outcome {
        let mut told: Vec<String> = Vec::new();
        let (name, text) = read_text(file).map_err(|problem| refuse(&[problem]))?;
        let problems = greenroom_manifest::every_problem::<ManagerFile>(&name, &text);
        let at = problems.iter().map(as_json).collect();
        told.extend(problems.iter().map(ToString::to_string));
        // What the settings mean is only known once all of them can be read.
        if problems.is_empty() {
            let settings = read_settings(file)?;
            let found = greenroom_manager::check(&settings);
            told.extend(
                found
                    .iter()
                    .map(|error| format!("{name}: {}", chain(error))),
            );
        }
        let overrides = overrides_file(|name| std::env::var_os(name));
        told.extend(greenroom_manager::overrides_problems(&overrides));
        if !told.is_empty() {
            return Err(Failure::lines(Exit::BadInput, &told.join("\n")).at(at));
        }
        let told = serde_json::json!({"file": file, "overrides": overrides, "ok": true});
        Output { json: self.json }.either(&told, || {
            let overrides = match overrides.exists() {
                true => format!(", and so is {}", overrides.display()),
                false => String::new(),
            };
            format!("{} is good{overrides}", file.display())
        })
    }
}

/// Where the overrides file is (OVR-01).
fn overrides_file(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> PathBuf {
    let named = crate::env::OVERRIDES.iter().find_map(|name| variable(name));
    named.map_or_else(|| OVERRIDES_FILE.into(), PathBuf::from)
}

/// Folder of the store when nothing names one.
pub(super) const DATA_DIR: &str = "greenroom-data/manager";
/// Where the API is served when nothing says so.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6789);

/// Reads a settings file; relative paths in it are seen from its folder.
fn read_settings(file: &Path) -> Result<Settings, Failure> {
    let (name, text) = read_text(file).map_err(|problem| refuse(&[problem]))?;
    let found = greenroom_manifest::read::<ManagerFile>(&name, &text);
    let mut found = found.map_err(|problem| refuse(&[problem]))?;
    let (Some(written), true) = (found.pop(), found.is_empty()) else {
        let text = format!("{name} must hold one document with settings");
        return Err(Failure::bad_input(text));
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    let from_here = |path: &PathBuf| folder.join(path);
    let data_dir = written.data_dir.as_ref().map(from_here);
    let mut settings = Settings::new(data_dir.unwrap_or_else(|| DATA_DIR.into()), DEFAULT_LISTEN);
    if let Some(member) = written.member {
        settings.member_name = member.name;
    }
    let listen = written.listen.iter().map(|listen| {
        let default = ListenSettings::at(listen.address);
        ListenSettings {
            tls: listen.tls.as_ref().map(|tls| TlsFiles {
                certificate: from_here(&tls.cert),
                key: from_here(&tls.key),
                client_ca: tls.client_ca.as_ref().map(from_here),
            }),
            asks: match listen.auth {
                Some(Asks::Required) => true,
                Some(Asks::None) => false,
                None => default.asks,
            },
            allow_insecure: listen.allow_insecure,
            ..default
        }
    });
    if !written.listen.is_empty() {
        settings.listen = listen.collect();
    }
    settings.advertise = written.advertise;
    settings.auth = AuthSettings {
        tokens_file: written.auth.tokens_file.as_ref().map(from_here),
        signed: written.auth.signed.map(|signed| SignedSettings {
            issuer: signed.issuer,
            keys: signed.keys.iter().map(from_here).collect(),
        }),
        certificates: written
            .auth
            .certificates
            .into_iter()
            .map(|rule| CertificateRole {
                subject: rule.subject,
                role: role(rule.role),
            })
            .collect(),
    };
    settings.metrics = match written.metrics {
        None => Some(MetricsSettings::default()),
        Some(metrics) => metrics.listen.map(|listen| MetricsSettings {
            listen,
            is_default: false,
        }),
    };
    settings.kv_admin_namespaces = written.kv.admin_namespaces;
    settings.links.allow_published = written.workers.allow_published;
    settings.license = License {
        text: written.workers.license,
        signature: written.workers.signature,
    };
    settings.secrets_key_file = written.secrets_key_file.as_ref().map(from_here);
    put_waits(&mut settings, &written.nodes);
    if let Some(mib) = written.store.min_free_mb {
        settings.min_free_bytes = mib.get() << 20;
    }
    if let Some(ms) = written.store.unrecorded_ms {
        settings.waits.unrecorded_ms = Millis(ms.get());
    }
    if let Some(ms) = written.backup.every_ms {
        settings.backup_every = Duration::from_millis(ms.get());
    }
    if let Some(keep) = written.backup.keep {
        settings.backup_keep = usize::try_from(keep.get()).unwrap_or(usize::MAX);
    }
    if let Some(entries) = written.history.max_entries {
        let entries = usize::try_from(entries.get()).unwrap_or(usize::MAX);
        settings.ledger.history_max_entries = entries;
    }
    if let Some(leases) = written.leases {
        settings.lease_pause_max = Duration::from_millis(leases.max_pause_ms);
    }
    Ok(settings)
}

/// What the file says of waits for nodes; the rest stays as it is.
fn put_waits(settings: &mut Settings, nodes: &Nodes) {
    fn put<const LEAST: u64, const MOST: u64>(
        wait: &mut Millis,
        written: Option<Within<LEAST, MOST>>,
    ) {
        if let Some(written) = written {
            *wait = Millis(written.get());
        }
    }
    let waits = &mut settings.waits;
    put(&mut waits.drop_grace_ms, nodes.drop_grace_ms);
    put(&mut waits.keepalive_ms, nodes.keepalive_ms);
    put(&mut waits.pending_ms, nodes.pending_ms);
    put(&mut waits.startup_ms, nodes.startup_ms);
    put(&mut waits.hello_ms, nodes.hello_ms);
    put(&mut waits.duplicate_ms, nodes.duplicate_ms);
    put(&mut settings.ledger.idle_expiry_ms, nodes.idle_expiry_ms);
    if let Some(silence) = nodes.silence_ms {
        settings.links.silence = Duration::from_millis(silence.get());
    }
    // An open stream is closed later than the keeper ends a node whose first hello does not come.
    let hello = Duration::from_millis(settings.waits.hello_ms.0) + Duration::from_secs(10);
    settings.links.hello = hello;
}

/// The role that a file names.
pub(super) const fn role(name: RoleName) -> Role {
    match name {
        RoleName::Viewer => Role::Viewer,
        RoleName::Operator => Role::Operator,
        RoleName::ControlPlane => Role::ControlPlane,
        RoleName::Admin => Role::Admin,
    }
}

/// Starts a Manager, with the exit code that its refusal to start means.
pub(crate) async fn start(settings: Settings, status_log: StatusLog) -> Result<Running, Failure> {
    greenroom_manager::start(settings, status_log)
        .await
        .map_err(|error| refused(&error))
}

fn refused(error: &StartError) -> Failure {
    let exit = match error {
        StartError::Listen { .. } => Exit::AddressTaken,
        StartError::Insecure { .. }
        | StartError::MetricsOpen { .. }
        | StartError::Namespace(_)
        | StartError::Tls(_)
        | StartError::Auth(_) => Exit::BadInput,
        StartError::SecretsKey(_) => Exit::WrongKey,
        StartError::Open(ProposeError::Fatal(_)) => Exit::DiskFailed,
        StartError::Open(_) | StartError::Descriptions(_) => Exit::Failed,
        StartError::Store(error) => unopened(error),
    };
    let failure = Failure::new(exit, chain(error));
    match exit {
        Exit::DiskFailed if is_full(error) => failure.hint(FULL_HINT),
        Exit::AddressTaken => failure.hint("--listen HOST:PORT chooses another address"),
        _ => failure,
    }
}

/// The exit code of a store that is not opened.
pub(super) const fn unopened(error: &OpenError) -> Exit {
    match error {
        OpenError::Locked { .. } => Exit::Locked,
        OpenError::NewerSchema { .. } => Exit::TooNew,
        OpenError::Migration { .. } => Exit::NotMigrated,
        OpenError::StoreMissing { .. } => Exit::StoreMissing,
        OpenError::Unreadable { .. } => Exit::Unreadable,
        _ => Exit::DiskFailed,
    }
}

fn is_full(error: &StartError) -> bool {
    match error {
        StartError::Store(OpenError::DiskFull { .. }) => true,
        StartError::Store(OpenError::Stopped(cause))
        | StartError::Open(ProposeError::Fatal(cause)) => cause.disk_full,
        _ => false,
    }
}

const RUN_ON: &str = "workers and jobs run on, and the next start takes them over";

/// That the store cannot go on, and what to do about it.
pub(crate) fn store_failed(error: &FatalError) -> Failure {
    let failure = Failure::new(Exit::DiskFailed, chain(error));
    if error.disk_full {
        return failure.hint(format!("{RUN_ON}; {FULL_HINT}"));
    }
    failure.hint(RUN_ON)
}

/// Runs until a signal or until the store fails.
async fn serve(running: Running, mut signals: Signals) -> Outcome {
    let fatal = running.fatal();
    tokio::select! {
        () = signals.recv() => {}
        error = fatal => return Err(store_failed(&error)),
    }
    // A second signal ends the process at once; nothing durable is lost by that (API-19).
    tokio::select! {
        closed = running.shutdown() => closed.map_err(|error| {
            store_failed(&error)
        }),
        () = signals.recv() => Err(Failure::failed("ended at once by a second signal")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: MNODE-06, MNODE-09, MNODE-11, MNODE-12, MNODE-16, STORE-05, STORE-09, STORE-11, HIST-05
    #[test]
    fn every_number_of_the_file_comes_into_force() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("manager.yaml");
        let text = "\
nodes:
  {silenceMs: 5001, dropGraceMs: 3001, keepaliveMs: 3002, pendingMs: 3003, startupMs: 3004,
   helloMs: 50000, idleExpiryMs: 3006, duplicateMs: 30007}
store: {minFreeMb: 3, unrecordedMs: 3008}
backup: {everyMs: 60001, keep: 5}
history: {maxEntries: 101}
";
        std::fs::write(&file, text).unwrap();
        let read = read_settings(&file).unwrap_or_else(|failure| panic!("{failure:?}"));
        let waits = &read.waits;
        let told = [
            waits.drop_grace_ms,
            waits.keepalive_ms,
            waits.pending_ms,
            waits.startup_ms,
            waits.hello_ms,
            read.ledger.idle_expiry_ms,
            waits.duplicate_ms,
            waits.unrecorded_ms,
        ];
        let expected = [3_001, 3_002, 3_003, 3_004, 50_000, 3_006, 30_007, 3_008];
        assert_eq!(told.map(|it| it.0), expected);
        assert_eq!(read.links.silence, Duration::from_millis(5_001));
        assert_eq!(read.links.hello, Duration::from_secs(60));
        assert_eq!((read.min_free_bytes, read.backup_keep), (3 << 20, 5));
        assert_eq!(read.backup_every, Duration::from_millis(60_001));
        assert_eq!(read.ledger.history_max_entries, 101);
        std::fs::write(&file, "{}").unwrap();
        let plain = read_settings(&file).unwrap_or_else(|failure| panic!("{failure:?}"));
        let default = Settings::new(DATA_DIR, DEFAULT_LISTEN);
        assert_eq!(plain.waits, default.waits);
        assert_eq!(plain.links.silence, default.links.silence);
        assert_eq!(plain.links.hello, default.links.hello);
    }

    // spec: OVR-01
    #[test]
    fn the_overrides_file_is_where_the_first_variable_says() {
        let of = |set: &[(&str, &str)]| {
            overrides_file(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).into())
            })
        };
        let ours = ("GREENROOM_MANAGER_OVERRIDES_FILE", "/a");
        let published = ("NORSK_MANAGER_OVERRIDES_FILE", "/b");
        assert_eq!(of(&[]), Path::new("/var/data/manager-overrides.json"));
        assert_eq!(of(&[published]), Path::new("/b"));
        assert_eq!(of(&[published, ours]), Path::new("/a"));
    }
}
