//! Processes of a worker, found by what they were started with. Nothing else on the machine is ever
//! taken for one, least of all what another installation runs.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// Every process that was started for the worker on this folder: the worker itself, its supervisors,
/// and what they run.
pub(crate) fn of_worker(state_dir: &Path) -> Vec<Pid> {
    let starts: Vec<Vec<u8>> = std::fs::read_dir(state_dir.join("instances"))
        .map(|entries| {
            entries
                .filter_map(|entry| Some(entry.ok()?.file_name()))
                .map(|start_id| {
                    let mut variable = b"GREENROOM_START_ID=".to_vec();
                    variable.extend_from_slice(start_id.as_encoded_bytes());
                    variable
                })
                .collect()
        })
        .unwrap_or_default();
    let is_ours = |pid: u32| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        words(&read("cmdline")).any(|word| is_within(word, state_dir))
            || words(&read("environ")).any(|word| starts.iter().any(|start| start == word))
    };
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id() && is_ours(*pid))
        .filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        .collect()
}

/// The worker that runs on this folder, if one does.
pub(crate) fn worker_on(state_dir: &Path) -> Option<u32> {
    of_worker(state_dir)
        .into_iter()
        .map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
        .find(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words(&line).nth(1) == Some(b"worker")
        })
}

/// True while the process exists.
pub(crate) fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// The words of a command line or an environment.
fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == 0)
}

/// True for the folder itself and for what lies in it.
fn is_within(word: &[u8], folder: &Path) -> bool {
    let rest = word.strip_prefix(folder.as_os_str().as_encoded_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
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
    send(pid, Signal::TERM);
}

pub(crate) fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

/// Tells a worker to end and to leave its jobs running.
pub(crate) fn hang_up(pid: u32) {
    send(pid, Signal::HUP);
}

fn send(pid: u32, signal: Signal) {
    // Zero would mean every process of this group.
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may be gone already.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_whose_name_only_begins_alike_is_another() {
        let folder = Path::new("/data/worker-1");
        assert!(is_within(b"/data/worker-1", folder));
        assert!(is_within(b"/data/worker-1/instances/x", folder));
        assert!(!is_within(b"/data/worker-10", folder));
        assert!(!is_within(b"/data", folder));
    }
}
