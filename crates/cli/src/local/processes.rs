//! Processes of a worker, found by what they were started with.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// Every process whose command line names this folder, or whose environment says that it runs on
/// this node.
pub(crate) fn of_worker(state_dir: &Path, node_id: &str) -> Vec<Pid> {
    let dir = state_dir.as_os_str().as_encoded_bytes();
    let node = format!("GREENROOM_NODE_ID={node_id}\0");
    let on_node =
        |environment: &[u8]| !node_id.is_empty() && contains(environment, node.as_bytes());
    let names = |pid: u32| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        contains(&read("cmdline"), dir) || on_node(&read("environ"))
    };
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id() && names(*pid))
        .filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        .collect()
}

/// The worker that runs on this folder, if one does.
pub(crate) fn worker_on(state_dir: &Path) -> Option<Pid> {
    of_worker(state_dir, "").into_iter().find(|pid| {
        let words =
            std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(b"worker")
    })
}

/// True while the process exists.
pub(crate) fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// kill -9, until none is left: a supervisor may be starting a process at this very moment.
pub(crate) fn kill_all(mut find: impl FnMut() -> Vec<Pid>) {
    loop {
        let pids = find();
        if pids.is_empty() {
            return;
        }
        for pid in pids {
            // It may be gone already.
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::yield_now();
    }
}

pub(crate) fn terminate(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
}

pub(crate) fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}
