//! An engine of a test's own, that may be killed or have a disk of its own, while the machine's goes
//! on undisturbed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::IMAGE;

/// Engines that were started here.
static COUNT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Engine {
    /// A bridge of its own. An engine that is told to have none takes the machine's `docker0` away.
    bridge: String,
    data: PathBuf,
    /// What is not data: sockets and process numbers.
    run: PathBuf,
    pool: String,
    /// What runs the containers goes on when the engine is killed.
    containerd: Child,
    child: Option<Child>,
}

impl Engine {
    /// Starts one on these folders and brings the test image there. It makes networks of its own
    /// range and leaves the firewall alone.
    pub(crate) fn start(data: &Path, run: &Path) -> Self {
        std::fs::create_dir_all(run).unwrap();
        let config = run.join("containerd.toml");
        std::fs::write(
            &config,
            "disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n",
        )
        .unwrap();
        let containerd = Command::new("containerd")
            .arg("--config")
            .arg(&config)
            .arg("--root")
            .arg(data.join("containerd"))
            .arg("--state")
            .arg(run.join("containerd"))
            .arg("--address")
            .arg(run.join("containerd.sock"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("containerd is there");
        let number = std::process::id();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let bridge = format!("grt{number}x{count}");
        let address = format!("10.213.{}.1/24", (number + count * 37) % 256);
        ip(&["link", "add", &bridge, "type", "bridge"]);
        ip(&["address", "add", &address, "dev", &bridge]);
        ip(&["link", "set", &bridge, "up"]);
        let mut engine = Self {
            bridge,
            data: data.to_owned(),
            run: run.to_owned(),
            pool: format!("10.{}.{}.0/20", 214 + number / 16 % 16, number % 16 * 16),
            containerd,
            child: None,
        };
        engine.start_again();
        let line = format!("docker save {IMAGE} | docker --host {} load", engine.host());
        let loaded = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(loaded.status.success(), "{loaded:?}");
        engine
    }

    pub(crate) fn start_again(&mut self) {
        let log = self.try_start();
        assert!(log.is_none(), "{log:?}");
    }

    /// Returns when it answers, or with its last words.
    fn try_start(&mut self) -> Option<String> {
        let log = std::fs::File::create(self.run.join("log")).unwrap();
        let child = Command::new("dockerd")
            .arg("--data-root")
            .arg(&self.data)
            .arg("--exec-root")
            .arg(self.run.join("exec"))
            .arg("--pidfile")
            .arg(self.run.join("pid"))
            .arg("--containerd")
            .arg(self.run.join("containerd.sock"))
            .args(["--host", &self.host(), "--bridge", &self.bridge])
            .args(["--iptables=false", "--ip6tables=false", "--live-restore"])
            .args(["--default-address-pool"])
            .arg(format!("base={},size=24", self.pool))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("dockerd is there");
        let child = self.child.insert(child);
        loop {
            let ended = child.try_wait().is_ok_and(|ended| ended.is_some());
            if ended {
                return Some(std::fs::read_to_string(self.run.join("log")).unwrap_or_default());
            }
            if answers(&self.run) {
                return None;
            }
        }
    }

    pub(crate) fn host(&self) -> String {
        socket(&self.run)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(["--host", &self.host()]).args(args);
        command
    }

    pub(crate) fn docker(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn ids(&self) -> String {
        let output = self.command(&["ps", "--all", "--quiet"]).output();
        output.map_or_else(
            |_| String::new(),
            |it| String::from_utf8_lossy(&it.stdout).into_owned(),
        )
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().expect("ip is there");
    assert!(output.status.success(), "{args:?}: {output:?}");
}

fn socket(run: &Path) -> String {
    format!("unix://{}", run.join("sock").display())
}

fn answers(run: &Path) -> bool {
    let asked = Command::new("docker")
        .args(["--host", &socket(run), "version"])
        .output();
    asked.is_ok_and(|it| it.status.success())
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Of a test that failed while it was down, containers run on.
        if self.child.is_none() {
            let _ = self.try_start();
        }
        if let Some(mut child) = self.child.take() {
            for id in self.ids().lines() {
                let _ = self.command(&["rm", "--force", id]).output();
            }
            let number = i32::try_from(child.id()).unwrap();
            let pid = rustix::process::Pid::from_raw(number).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = child.wait();
        }
        let _ = self.containerd.kill();
        let _ = self.containerd.wait();
        // One that keeps containers over its own end leaves the mounts of their networks behind.
        for dir in [&self.run, &self.data] {
            let line = format!(
                "cut -d ' ' -f 2 /proc/self/mounts | grep '^{}' | sort -r | xargs -r umount --lazy",
                dir.display()
            );
            let _ = Command::new("sh").args(["-c", &line]).status();
        }
        let _ = Command::new("ip")
            .args(["link", "delete", &self.bridge])
            .status();
    }
}
