//! An installation that `greenroom init` made: Manager, control plane, worker and tools over TLS,
//! each with its own credential, and no secret in anything that can be read.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Daemon, Ran, finish, greenroom, processes_on, sweep, temp};

/// What the daemons say at their most talkative.
const EVERYTHING: &str = "greenroom=trace,warn";

/// The node may not have come yet.
const APPLY: [&str; 6] = [
    "apply",
    "-f",
    "tale.yaml",
    "--allow-unmet",
    "--wait",
    "--json",
];

/// A folder with an installation, and what runs of it.
struct Installation {
    folder: TempDir,
    url: String,
    daemons: BTreeMap<&'static str, Daemon>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

// === impl Installation ===

impl Installation {
    fn init() -> Self {
        let folder = temp();
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let mut command = greenroom();
        command.args(["init", "--json", "--name", "127.0.0.1", "--pool", "local"]);
        let told = finish(
            command
                .args(["--listen", &listen])
                .arg(folder.path().join("g")),
        )
        .ok();
        let url = format!("https://{listen}");
        assert_eq!(told.json()["manager"], url);
        Self {
            folder,
            url,
            daemons: BTreeMap::new(),
        }
    }

    /// A file that `init` made.
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("g").join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).expect("it can be read")
    }

    fn spawn(&mut self, name: &'static str, command: &mut Command) {
        command.env("GREENROOM_LOG", EVERYTHING).arg("--json");
        let mut daemon = Daemon::spawn(command.current_dir(self.folder.path()));
        let told = daemon.line();
        assert_eq!(told["event"], "listening", "{told}");
        self.daemons.insert(name, daemon);
    }

    fn start_manager(&mut self) {
        let mut command = greenroom();
        command
            .arg("manager")
            .arg("-c")
            .arg(self.file("manager.yaml"));
        self.spawn("manager", &mut command);
    }

    /// Returns where the control plane is served.
    fn start_control(&mut self) -> String {
        let mut command = greenroom();
        let port = free_port();
        command
            .arg("control")
            .arg("-c")
            .arg(self.file("control.yaml"))
            .arg("--context")
            .arg(self.file("control-context.yaml"))
            .args(["--listen", &format!("127.0.0.1:{port}")]);
        self.spawn("control", &mut command);
        format!("http://127.0.0.1:{port}")
    }

    /// Makes a slot and runs its worker.
    fn start_worker(&mut self) {
        let token = self.folder.path().join("slot.token");
        let path = token.to_str().expect("a name");
        let register = ["node", "register", "w1", "--pool", "local", "--out", path];
        self.run("operator", &register).ok();
        let mut command = greenroom();
        command
            .args(["worker", "--manager-url", &self.url, "--runtime", "process"])
            .args(["--listen", "127.0.0.1:0"])
            .arg("--ca")
            .arg(self.file("ca.pem"))
            .arg("--token-file")
            .arg(&token)
            .arg("--state-dir")
            .arg(self.folder.path().join("worker"));
        self.spawn("worker", &mut command);
    }

    /// A tool, with the context of a role.
    fn tool(&self, role: &str, args: &[&str]) -> Command {
        let mut command = greenroom();
        command
            .env("GREENROOM_CONTEXT", self.file(&format!("{role}.yaml")))
            .current_dir(self.folder.path())
            .args(args);
        command
    }

    fn run(&self, role: &str, args: &[&str]) -> Ran {
        finish(&mut self.tool(role, args))
    }

    /// Ends everything in order; gives what each daemon said.
    fn end(mut self) -> Vec<String> {
        let mut said = Vec::new();
        for name in ["control", "worker", "manager"] {
            let mut daemon = self.daemons.remove(name).expect("it runs");
            daemon.signal(Signal::TERM);
            let ran = daemon.ended().ok();
            said.push(format!("{name}:\n{}{}", ran.stdout, ran.stderr));
        }
        said
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        self.daemons.clear();
        sweep(self.folder.path());
    }
}

/// A bundle whose job has a secret, and tells its length.
fn with_secret(secret: &str) -> String {
    format!(
        "bundleId: tale\npool: local\njobs:\n  - jobName: a\n    secretEnv: [PASSWORD]\n    \
         requirements:\n      requiredCapacity: 0.1\n    launch:\n      services:\n        - name: main\n          \
         command: sh -c 'echo its length is ${{#PASSWORD}}; sleep 1000'\n          parameters:\n            \
         environment:\n              PASSWORD: {secret}\n"
    )
}

// spec: SEC-01, SEC-02, SEC-03, SEC-04
#[tokio::test(flavor = "multi_thread")]
async fn init_makes_an_installation_that_runs_and_opens_for_nobody_else() {
    let mut it = Installation::init();
    // Nothing is written over, and secrets are for their owner alone.
    let folder = it.file("");
    let again = finish(greenroom().arg("init").arg(&folder));
    again.refused(2, &["nothing is written over"]);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let secret = [
        "ca-key.pem",
        "manager-key.pem",
        "control-key.pem",
        "secrets.key",
        "tokens",
        "admin.token",
        "operator.token",
        "viewer.token",
        "control-plane.token",
    ];
    for name in secret {
        assert_eq!(mode(&it.file(name)), 0o600, "{name}");
    }
    finish(
        greenroom()
            .arg("manager")
            .arg("--check")
            .arg(it.file("manager.yaml")),
    )
    .ok();

    it.start_manager();
    let control = it.start_control();
    it.start_worker();
    std::fs::write(
        it.folder.path().join("tale.yaml"),
        with_secret("hunter2hunter2"),
    )
    .unwrap();
    let mut apply = it.tool("operator", &APPLY);
    finish(apply.env("GREENROOM_CONTROL", &control)).ok();
    let jobs = it.run("viewer", &["get", "jobs", "--json"]).ok().json();
    assert_eq!(jobs[0]["instance"], "running");
    let mut logs = it.tool("viewer", &["logs", "tale.0.a", "--follow", "--json"]);
    let mut logs = Daemon::spawn(&mut logs);
    assert_eq!(
        logs.line()["text"],
        "its length is 14",
        "the job has the secret"
    );
    drop(logs);
    let why = finish(
        it.tool("viewer", &["why", "tale.0.a"])
            .env("GREENROOM_CONTROL", &control),
    );
    assert!(why.ok().stdout.contains("w1"));

    // Who has the wrong role, credential or authority is told so and changes nothing.
    let refused = it.run("viewer", &["delete", "tale"]);
    refused.refused(1, &["needs the role operator", "role_required"]);
    let (url, ca) = (it.url.clone(), it.file("ca.pem"));
    let nobody = |ca: &Path, token: Option<&Path>| {
        let mut command = greenroom();
        command.args(["get", "nodes", "--manager", &url]);
        command.arg("--ca").arg(ca);
        if let Some(token) = token {
            command.arg("--token-file").arg(token);
        }
        finish(&mut command)
    };
    nobody(&ca, None).refused(1, &["asks for a credential", "--token-file"]);
    let stranger = greenroom_auth::AccessToken::generate();
    let strange = it.folder.path().join("stranger.token");
    std::fs::write(&strange, stranger.expose()).unwrap();
    nobody(&ca, Some(&strange)).refused(1, &["does not hold"]);
    let other = Installation::init();
    let admin = it.file("admin.token");
    let wrong = nobody(&other.file("ca.pem"), Some(&admin));
    wrong.refused(1, &["not signed by the CA"]);
    let mut clear = greenroom();
    clear.args(["get", "nodes", "--manager", &url.replace("https", "http")]);
    assert_eq!(finish(&mut clear).code, 1);
    nobody(&ca, Some(&admin)).ok();

    // A token whose time is over, and a new one.
    let tokens = it.text("tokens");
    let lines = tokens.lines().map(|line| {
        let ends = line.contains(" viewer ");
        let line = if ends {
            line.replacen(" never ", " 2020-01-01T00:00:00Z ", 1)
        } else {
            line.to_owned()
        };
        format!("{line}\n")
    });
    std::fs::write(it.file("tokens"), lines.collect::<String>()).unwrap();
    it.daemons["manager"].until_said("credentials were read again");
    let over = it.run("viewer", &["get", "nodes"]);
    over.refused(1, &["has ended"]);
    let path = |name: &str| it.file(name).to_str().expect("a name").to_owned();
    let (tokens, anna) = (path("tokens"), path("anna.token"));
    let make = [
        "token", "anna", "--role", "viewer", "--tokens", &tokens, "--out", &anna,
    ];
    it.run("admin", &make).ok();
    it.daemons["manager"].until_said("tokens=5");
    nobody(&ca, Some(Path::new(&anna))).ok();

    // New certificates are taken while everything runs.
    let folder = folder.to_str().expect("a name");
    let renew = ["init", folder, "--renew", "--name", "127.0.0.1"];
    it.run("admin", &renew).ok();
    it.daemons["manager"].until_said("a certificate was read again");
    nobody(&ca, Some(&admin)).ok();
    it.run("operator", &["delete", "tale", "--wait"]).ok();
    it.end();
}

/// Every secret of an installation by a name.
fn secrets(it: &Installation, of_job: &str) -> Vec<(String, String)> {
    let mut found = vec![("the job's variable".to_owned(), of_job.to_owned())];
    for name in ["admin", "operator", "viewer", "control-plane"] {
        let token = it.text(&format!("{name}.token")).trim().to_owned();
        found.push((format!("{name}'s token"), token));
    }
    for name in ["ca-key.pem", "manager-key.pem", "control-key.pem"] {
        let text = it.text(name);
        let line = text.lines().nth(1).expect("a line of the key");
        found.push((name.to_owned(), line.to_owned()));
    }
    let key = it.text("secrets.key").trim().to_owned();
    found.push(("secrets.key".to_owned(), key));
    let slot = std::fs::read_to_string(it.folder.path().join("slot.token")).unwrap();
    found.push(("the slot's token".to_owned(), slot.trim().to_owned()));
    let credential = std::fs::read(it.folder.path().join("worker/credential.json")).unwrap();
    let credential: Value = serde_json::from_slice(&credential).unwrap();
    let key = credential["nodeKey"].as_str().expect("a key").to_owned();
    found.push(("the node's key".to_owned(), key));
    found
}

/// Every file below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("it can be read") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.is_file() {
            found.push(path);
        }
    }
}

// spec: SEC-11, SEC-12, SEC-16
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_stands_in_a_log_an_event_a_trace_an_argument_or_the_store() {
    let mut it = Installation::init();
    it.start_manager();
    let control = it.start_control();
    it.start_worker();
    let of_job = "correct-horse-battery-staple";
    let manifest = |secret: &str| {
        std::fs::write(it.folder.path().join("tale.yaml"), with_secret(secret)).unwrap();
        let mut apply = it.tool("operator", &APPLY);
        finish(apply.env("GREENROOM_CONTROL", &control)).ok()
    };
    let mut told = vec![manifest(of_job).stdout];
    let secrets = secrets(&it, of_job);

    // Every way in which people and programs look at it.
    for args in [
        &["get", "jobs", "-o", "json"][..],
        &["get", "bundles", "-o", "json"],
        &["get", "nodes", "-o", "json"],
        &["describe", "job", "tale.0.a", "--json"],
        &["describe", "bundle", "tale", "--json"],
        &["describe", "bundle", "tale"],
        &["describe", "node", "w1", "--json"],
        &["events", "--json"],
        &["why", "tale.0.a", "--json"],
        &["placements", "--json"],
        &["metrics", "--json"],
    ] {
        let ran = finish(it.tool("admin", args).env("GREENROOM_CONTROL", &control)).ok();
        told.push(format!("{args:?}:\n{}{}", ran.stdout, ran.stderr));
    }
    assert!(
        told.iter().any(|text| text.contains("***")),
        "it is shown as stars"
    );
    // What it is given back as keeps it, and an unchanged job runs on.
    let kept = manifest("'***'");
    assert_eq!(kept.json()["action"], "unchanged");

    let arguments: Vec<String> = processes_on(it.folder.path())
        .into_iter()
        .map(|(_, line)| line)
        .collect();
    assert!(arguments.iter().any(|line| line.contains("sleep 1000")));
    told.push(arguments.join("\n"));
    it.run("operator", &["delete", "tale", "--wait"]).ok();
    let folder = it.folder.path().to_owned();
    let data = it.file("data");
    told.push(it.text("tokens"));
    // The folder is needed after its daemons.
    let keep = std::mem::replace(&mut it.folder, temp());
    told.extend(it.end());

    for (name, secret) in &secrets {
        for text in &told {
            assert!(!text.contains(secret.as_str()), "{name} stands in {text}");
        }
    }
    let mut stored = Vec::new();
    files(&data, &mut stored);
    files(&folder.join("worker"), &mut stored);
    assert!(stored.len() > 5, "{stored:?}");
    for path in stored {
        let bytes = std::fs::read(&path).expect("it can be read");
        let is_journal = ["journal.jsonl", "instance.json"]
            .iter()
            .any(|name| path.ends_with(name));
        for (name, secret) in &secrets {
            // The worker's own secrets, and what a job is given must outlive the worker.
            let is_kept = path.ends_with("worker/credential.json")
                || (is_journal && name == "the job's variable");
            let holds = bytes
                .windows(secret.len())
                .any(|part| part == secret.as_bytes());
            assert!(!holds || is_kept, "{name} stands in {}", path.display());
            let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert!(!holds || mode == 0o600, "{} has {mode:o}", path.display());
        }
    }
    drop(keep);
}
