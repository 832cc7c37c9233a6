//! From when each lease runs, for a worker that starts again (LEASE-05).
//!
//! A file beside the journal, replaced at every answered refresh and never flushed: it must outlive
//! the worker, not the machine, since nothing that runs outlives that either. What cannot be written
//! makes a restarted worker believe in less than it has, never in more.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use greenroom_types::{Mono, StartId};
use serde::{Deserialize, Serialize};

const FILE: &str = "lease-times.json";

/// When the newest answered refresh of each lease had been sent.
pub(crate) type Times = BTreeMap<StartId, Mono>;

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    /// The clock counts from this boot.
    boot_id: String,
    since: Times,
}

/// The times of this boot; none where there is no file of it.
pub(crate) fn load(dir: &Path, boot_id: &str) -> Times {
    let bytes = fs::read(dir.join(FILE)).unwrap_or_default();
    let file: File = serde_json::from_slice(&bytes).unwrap_or_default();
    if file.boot_id == boot_id {
        file.since
    } else {
        Times::new()
    }
}

pub(crate) fn save(dir: &Path, boot_id: &str, since: Times) -> io::Result<()> {
    let boot_id = boot_id.to_owned();
    let bytes = serde_json::to_vec(&File { boot_id, since })?;
    let temporary = dir.join("lease-times.new");
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, dir.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: LEASE-05
    #[test]
    fn times_are_of_one_boot_and_a_torn_file_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let times = Times::from([("s1".into(), Mono(7))]);
        save(dir.path(), "boot-1", times.clone()).unwrap();
        assert_eq!(load(dir.path(), "boot-1"), times);
        assert_eq!(load(dir.path(), "boot-2"), Times::new());
        fs::write(dir.path().join(FILE), b"{\"bootId\":\"boot-1\",\"si").unwrap();
        assert_eq!(load(dir.path(), "boot-1"), Times::new());
    }
}
