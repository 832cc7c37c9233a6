//! A Manager whose disk stands still for longer than a lease, with a leased job on the air (FIELD-35).
//!
//! The disk is a file system of its own, frozen as a storage that hangs would have it: whoever writes
//! waits, and cannot even be killed. Mounting and freezing need root and a loop device; `GREENROOM_NO_LOOP`
//! says that this machine has none.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use greenroom_sdk::types::Wall;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::air::{Viewer, fence, fences, lease, leased_card, under, until};
use crate::harness::{Daemon, Up, finish, pid, processes_on, sleeping, temp};

/// A small file system on a folder.
struct Disk {
    at: PathBuf,
}

/// Holds a disk still, and lets go of it with this process, however that ends.
struct Frozen {
    holder: Child,
}

// === impl Disk ===

impl Disk {
    fn mount(at: PathBuf) -> Self {
        std::fs::create_dir_all(&at).expect("a folder can be made");
        let image = at.with_extension("image");
        let file = std::fs::File::create(&image).expect("a file can be made");
        // Empty as it is, it takes next to no room.
        file.set_len(2 << 30).expect("a file can be made longer");
        command(
            Command::new("mkfs.ext4")
                .args(["-q", "-N", "1024"])
                .arg(&image),
        );
        command(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(&at),
        );
        std::fs::remove_dir(at.join("lost+found")).expect("it is there");
        Self { at }
    }

    fn freeze(&self) -> Frozen {
        let script =
            "fsfreeze --freeze \"$0\" && echo frozen && read _; fsfreeze --unfreeze \"$0\"";
        let mut holder = Command::new("sh")
            .args(["-c", script])
            .arg(&self.at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell runs");
        let said = holder.stdout.take().expect("stdout is piped");
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line)
            .expect("it is read");
        assert_eq!(line, "frozen\n");
        Frozen { holder }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

// === impl Frozen ===

impl Frozen {
    fn thaw(mut self) {
        self.let_go();
    }

    fn let_go(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.let_go();
    }
}

#[track_caller]
fn command(command: &mut Command) {
    let ran = finish(command);
    assert_eq!(
        ran.code, 0,
        "mounting needs root and a loop device: {command:?} {ran:#?}"
    );
}

/// Whether a thread of a process waits in the kernel and cannot be woken: for its disk.
fn waits_for_its_disk(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it is there");
    let mut states = threads.flatten().filter_map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    });
    states.any(|state| state == 'D')
}

/// Starts a call that has to be recorded, and waits until the Manager waits for its disk.
async fn record_something(up: &Up) -> Daemon {
    let call = [
        "node",
        "register",
        "while-frozen",
        "--pool",
        "local",
        "--json",
    ];
    let calling = Daemon::spawn(&mut up.tool(&call));
    until("a write that waits", || waits_for_its_disk(up.daemon.id())).await;
    calling
}

// Goal: refreshes are answered from memory, so that a disk that hangs takes no channel off the air, a
// report that waits to be recorded on the same stream notwithstanding. Method: the job outlives by far
// what would free its lease.
// spec: FIELD-35, LEASE-03
#[tokio::test(flavor = "multi_thread")]
async fn a_leased_job_stays_on_the_air_while_its_managers_disk_stands_still() {
    if std::env::var_os("GREENROOM_NO_LOOP").is_some() {
        return;
    }
    let folder = temp();
    let disk = Disk::mount(folder.path().join("data/manager"));
    let up = Up::start(&folder, &["--workers", "1"]);
    let mut viewer = Viewer::open().await;
    up.file("air.yaml", leased_card("air", viewer.port(), ""));
    up.file("tale.yaml", sleeping("tale", &["a"]));
    up.run(&["apply", "-f", "air.yaml", "-f", "tale.yaml", "--wait"])
        .ok();
    viewer.until_fence_above(0).await;
    let before = lease(&up);
    up.run(&["node", "register", "before", "--pool", "local", "--json"])
        .ok();

    let frozen = disk.freeze();
    let mut calling = record_something(&up).await;
    let all = processes_on(folder.path());
    let (tale, _) = all
        .iter()
        .find(|(_, line)| line.starts_with("sleep 1000"))
        .expect("it runs");
    kill_process(pid(*tale), Signal::KILL).expect("it is there");
    let at = |lease: &Value| {
        let text = lease["refreshedAt"].as_str().expect("a time");
        text.parse::<Wall>().expect("a time").0
    };
    let guarded = 2_000 * 11 / 10 + 1_000;
    let begun = at(&lease(&up));
    until("refreshes over more than a lease", || {
        at(&lease(&up)) > begun + 2 * guarded
    })
    .await;
    assert!(
        calling.is_running(),
        "nothing is acknowledged that is not on the disk"
    );
    viewer.until_more(50).await;
    frozen.thaw();

    calling.ended().ok();
    let after = lease(&up);
    assert_eq!(
        (&after["startId"], &after["fence"], &after["state"]),
        (&before["startId"], &before["fence"], &before["state"])
    );
    assert_eq!(up.job("air.0.card")["starts"], 1);
    let nodes = up.run(&["get", "nodes", "--json"]).ok().stdout;
    assert!(
        nodes.contains("\"before\"") && nodes.contains("\"while-frozen\""),
        "{nodes}"
    );
    // What had waited to be recorded is, and is acted on.
    until("the other job runs again", || {
        let tale = up.job("tale.0.a");
        tale["starts"] == 2 && tale["instance"] == "running"
    })
    .await;
    let report = viewer.end().await;
    assert_eq!(fences(&report), [fence(&before)]);
    up.end();
}

// Goal: where nobody answers, the holder ends at its own deadline, and nobody runs a second one before.
// Method: the Manager is killed while its disk stands still, so that none can start in its place.
// spec: FIELD-35, LEASE-02, LEASE-04, LEASE-09
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_dies_with_its_disk_leaves_a_job_that_ends_by_itself_and_is_on_the_air_once_after()
 {
    if std::env::var_os("GREENROOM_NO_LOOP").is_some() {
        return;
    }
    let folder = temp();
    let disk = Disk::mount(folder.path().join("data/manager"));
    let up = Up::start(&folder, &["--workers", "2"]);
    let mut viewer = Viewer::open().await;
    up.file("air.yaml", leased_card("air", viewer.port(), ""));
    up.run(&["apply", "-f", "air.yaml", "--wait"]).ok();
    viewer.until_fence_above(0).await;
    let old = fence(&lease(&up));
    up.run(&["node", "register", "before", "--pool", "local", "--json"])
        .ok();

    let frozen = disk.freeze();
    let mut calling = record_something(&up).await;
    up.daemon.signal(Signal::KILL);
    until("the end of the holder", || {
        under(folder.path(), "testcard", old).is_empty()
    })
    .await;
    viewer.until_silent().await;
    frozen.thaw();
    up.killed();
    calling.signal(Signal::KILL);
    calling.ended();

    let up = Up::start(&folder, &["--workers", "2"]);
    viewer.until_fence_above(old).await;
    let mut watch = up.watch().await;
    watch.until_last("air.0.card", "running").await;
    let new = fence(&lease(&up));
    assert!(new > old, "{new} after {old}");
    assert_eq!(under(folder.path(), "testcard", new).len(), 1);
    let nodes = up.run(&["get", "nodes", "--json"]).ok().stdout;
    assert!(nodes.contains("\"before\""), "{nodes}");
    let report = viewer.end().await;
    assert_eq!(fences(&report), [old, new]);
    assert_eq!(report.overlaps, []);
    up.end();
}
