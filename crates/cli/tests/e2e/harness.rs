//! Running the binary: one command to its end, or a whole installation.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use greenroom_sdk::{Client, EventSettings, Settings};
use greenroom_testkit::{BOUND, Watch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A daemon that says in one JSON line that it is up.
pub(crate) struct Daemon {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: Arc<Said>,
    listener: Option<JoinHandle<()>>,
}

/// What was said so far, and that it is all.
#[derive(Default)]
struct Said {
    text: Mutex<(String, bool)>,
    more: Condvar,
}

/// `greenroom up` on a folder of its own.
pub(crate) struct Up {
    pub(crate) daemon: Daemon,
    pub(crate) told: Value,
    pub(crate) folder: PathBuf,
}

/// The binary, without settings from the environment of the test.
pub(crate) fn greenroom() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_greenroom"));
    for (name, _) in std::env::vars_os() {
        if name == "NO_COLOR" || name.to_string_lossy().starts_with("GREENROOM_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs the binary to its end.
pub(crate) fn run(args: &[&str]) -> Ran {
    finish(greenroom().args(args))
}

pub(crate) fn finish(command: &mut Command) -> Ran {
    let output = command.output().expect("the binary runs");
    Ran {
        code: code_of(output.status),
        stdout: String::from_utf8(output.stdout).expect("stdout is text"),
        stderr: String::from_utf8(output.stderr).expect("stderr is text"),
    }
}

/// Exit code; a signal counts as a shell shows it.
fn code_of(status: ExitStatus) -> i32 {
    let signal = || {
        128 + status
            .signal()
            .expect("a process ends with a code or a signal")
    };
    status.code().unwrap_or_else(signal)
}

// === impl Ran ===

impl Ran {
    /// The command did what it was to do.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:#?}");
        self
    }

    /// The command ended with that code, and said these words on stderr and no data on stdout.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        // Where JSON was asked for, the failure is told as data as well, in the same words.
        if !self.stdout.is_empty() {
            let error = &self.json()["error"];
            assert_eq!(error["exit"], code, "{self:#?}");
            assert!(
                error["reason"].as_str().is_some_and(|it| !it.is_empty()),
                "{self:#?}"
            );
            let message = error["message"].as_str().unwrap_or_default();
            assert!(self.stderr.contains(message), "{self:#?}");
        }
        self.says(words)
    }

    /// Stderr holds these words, and no trace of a panic.
    #[track_caller]
    pub(crate) fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {self:#?}");
        }
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }

    /// Stdout as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        parsed.unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Stdout as JSON lines.
    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let parse = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
        };
        self.stdout.lines().map(parse).collect()
    }
}

// === impl Daemon ===

impl Daemon {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let stderr = Arc::new(Said::default());
        let said = Arc::clone(&stderr);
        let listener = std::thread::spawn(move || {
            loop {
                let mut line = String::new();
                let is_over = lines.read_line(&mut line).is_ok_and(|length| length == 0);
                let mut text = said.text.lock().expect("nobody panics with it");
                text.0.push_str(&line);
                text.1 = is_over;
                said.more.notify_all();
                if is_over {
                    return;
                }
            }
        });
        Self {
            child,
            stdout: BufReader::new(stdout),
            stderr,
            listener: Some(listener),
        }
    }

    /// The next line of its stdout as JSON.
    #[track_caller]
    pub(crate) fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("stdout is read");
        serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("{error} in {line:?}; it said:\n{}", self.said()))
    }

    /// What it said on stderr so far.
    pub(crate) fn said(&self) -> String {
        let text = self.stderr.text.lock().expect("nobody panics with it");
        text.0.clone()
    }

    /// Waits until stderr holds these words.
    #[track_caller]
    pub(crate) fn until_said(&self, words: &str) {
        let text = self.stderr.text.lock().expect("nobody panics with it");
        let (text, waited) = self
            .stderr
            .more
            .wait_timeout_while(text, BOUND, |text| !text.0.contains(words) && !text.1)
            .expect("nobody panics with it");
        assert!(!waited.timed_out(), "{words:?} is still not in {}", text.0);
        assert!(text.0.contains(words), "{words:?} is not in {}", text.0);
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it can be asked").is_none()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.child.id()), signal).expect("it is there");
    }

    /// Waits for its end and takes what is left of its stdout.
    pub(crate) fn ended(&mut self) -> Ran {
        let mut stdout = String::new();
        self.stdout
            .read_to_string(&mut stdout)
            .expect("stdout is text");
        let status = self.child.wait().expect("it can be waited for");
        if let Some(listener) = self.listener.take() {
            listener.join().expect("it only reads");
        }
        Ran {
            code: code_of(status),
            stdout,
            stderr: self.said(),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended in order.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === impl Up ===

impl Up {
    /// Starts it on a folder with further arguments, and waits until it is up.
    pub(crate) fn start(folder: &TempDir, args: &[&str]) -> Self {
        let folder = folder.path();
        let mut daemon = Daemon::spawn(&mut Self::command(folder, args));
        let told = daemon.line();
        assert_eq!(told["event"], "up", "{told}");
        Self {
            daemon,
            told,
            folder: folder.to_owned(),
        }
    }

    pub(crate) fn command(folder: &Path, args: &[&str]) -> Command {
        let mut command = greenroom();
        command.args(["up", "--json", "--runtime", "process"]);
        command.args(["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]);
        command.arg("--data").arg(folder.join("data")).args(args);
        command
    }

    fn url(&self, key: &str) -> &str {
        self.told[key].as_str().expect("it is told")
    }

    /// Runs a tool against this installation.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        finish(&mut self.tool(args))
    }

    pub(crate) fn tool(&self, args: &[&str]) -> Command {
        let mut command = greenroom();
        command
            .env("GREENROOM_MANAGER", self.url("manager"))
            .env("GREENROOM_CONTROL", self.url("control"))
            .current_dir(&self.folder)
            .args(args);
        command
    }

    /// Follows the Manager's event stream.
    pub(crate) async fn watch(&self) -> Watch {
        let client = Client::connect(Settings::new([self.url("manager")]))
            .await
            .expect("the Manager is reached");
        Watch::begin(client, EventSettings::default()).await
    }

    /// Writes a file into its folder.
    pub(crate) fn file(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.folder.join(name), text).expect("a file can be written");
    }

    /// Its row of `get jobs`.
    #[track_caller]
    pub(crate) fn job(&self, job_id: &str) -> Value {
        let jobs = self.run(&["get", "jobs", "--json"]).ok().json();
        let rows = jobs.as_array().expect("a list");
        let row = rows.iter().find(|row| row["jobId"] == job_id);
        row.unwrap_or_else(|| panic!("no {job_id} in {jobs}"))
            .clone()
    }

    /// Ctrl-C, and the end in order.
    #[track_caller]
    pub(crate) fn end(mut self) {
        self.daemon.signal(Signal::INT);
        self.daemon.ended().ok();
        // What it left, if it was to leave anything, is the test's.
        self.folder = PathBuf::new();
    }

    /// kill -9.
    pub(crate) fn kill(self) {
        self.daemon.signal(Signal::KILL);
        self.killed();
    }

    /// Waits for its end after kill -9.
    pub(crate) fn killed(mut self) {
        assert_eq!(self.daemon.ended().code, 128 + 9);
        // What it started is left for the next one.
        self.folder = PathBuf::new();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        sweep(&self.folder);
    }
}

/// Kills what a failed test left on a folder.
pub(crate) fn sweep(folder: &Path) {
    if folder.as_os_str().is_empty() {
        return;
    }
    for (found, _) in processes_on(folder) {
        let _ = kill_process(pid(found), Signal::KILL);
    }
}

/// Every process that has to do with a folder: in its arguments, its environment, or as the place
/// where it runs. With its arguments.
pub(crate) fn processes_on(folder: &Path) -> Vec<(u32, String)> {
    let name = folder.to_str().expect("the folder's name is text");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc is there") {
        let Some(number) = entry
            .ok()
            .and_then(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        else {
            continue;
        };
        let read = |file: &str| {
            let bytes = std::fs::read(format!("/proc/{number}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let line = read("cmdline");
        let at = std::fs::read_link(format!("/proc/{number}/cwd")).unwrap_or_default();
        let is_here =
            line.contains(name) || read("environ").contains(name) || at.starts_with(folder);
        if is_here && !line.is_empty() && number != std::process::id() {
            found.push((number, line));
        }
    }
    found
}

pub(crate) fn pid(number: u32) -> Pid {
    let number = i32::try_from(number).expect("a process number");
    Pid::from_raw(number).expect("a process number")
}

/// A folder in memory where there is one: on a disk that is nearly full, workers refuse jobs.
pub(crate) fn temp() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = match memory.is_dir() {
        true => memory.to_owned(),
        false => std::env::temp_dir(),
    };
    tempfile::Builder::new()
        .prefix("greenroom-e2e-")
        .tempdir_in(parent)
        .expect("a folder can be made")
}

/// A UDP port that nobody has at this moment.
pub(crate) fn free_udp_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    socket.local_addr().expect("it is bound").port()
}

/// One of the examples, with its ports replaced by free ones.
pub(crate) fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(name);
    let mut text = std::fs::read_to_string(path).expect("the example is there");
    for port in ["5000", "5001", "5002", "5010"] {
        text = text.replace(port, &free_udp_port().to_string());
    }
    text
}

/// A bundle of one copy with jobs that only sleep.
pub(crate) fn sleeping(bundle_id: &str, jobs: &[&str]) -> String {
    let mut text = format!("bundleId: {bundle_id}\npool: local\njobs:\n");
    for job in jobs {
        text.push_str(&format!(
            "  - jobName: {job}\n    requirements:\n      requiredCapacity: 0.1\n    launch:\n      \
             services:\n        - name: main\n          command: sleep 1000\n"
        ));
    }
    text
}
