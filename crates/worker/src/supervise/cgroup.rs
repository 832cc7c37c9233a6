//! The memory limit of a service, kept by a control group of its own.
//!
//! Where the supervisor may make groups below its own it does: in the memory hierarchy of version 1,
//! or in version 2 where its own group hands memory on. There a group with processes hands nothing on,
//! so that a service manager must give the worker a group below the one that is handed over
//! ([`AGENT`]); ours are made beside it. Elsewhere the limit is not enforced, and that
//! is told. A service is born in its group: the supervisor enters it, starts the service and leaves
//! again, so that nothing of the service is ever outside.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where the system mounts the groups.
const ROOT: &str = "/sys/fs/cgroup";
/// What the names of our groups begin with.
const PREFIX: &str = "greenroom-";
/// Name of the worker's own group within one that was handed over to it; systemd's `DelegateSubgroup`.
const AGENT: &str = "agent";
/// File in an instance's directory with the groups made for it, one a line.
const LIST: &str = "groups";

/// Groups below which a process may make others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Base {
    /// Where this process is.
    home: PathBuf,
    /// Where others are made.
    dir: PathBuf,
    unified: bool,
}

/// The group of one service.
#[derive(Clone, Debug)]
pub(super) struct Group {
    base: Base,
    dir: PathBuf,
    /// Kills for want of memory before the service was started.
    kills_before: u64,
}

// === impl Base ===

impl Base {
    /// That of a process with these lines in `/proc/self/cgroup`.
    fn of(lines: &str, root: &Path) -> Option<Self> {
        let mut unified = None;
        for line in lines.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
            if controllers.split(',').any(|it| it == "memory") {
                let dir = root.join("memory").join(path);
                return Some(Self {
                    home: dir.clone(),
                    dir,
                    unified: false,
                });
            }
            if controllers.is_empty() {
                unified = Some(root.join(path));
            }
        }
        let home = unified?;
        let dir = match home.parent() {
            Some(above) if home.ends_with(AGENT) => above.to_owned(),
            _ => home.clone(),
        };
        let offered = fs::read_to_string(dir.join("cgroup.controllers")).ok()?;
        let memory = offered.split_ascii_whitespace().any(|it| it == "memory");
        memory.then_some(Self {
            home,
            dir,
            unified: true,
        })
    }
}

// === impl Group ===

impl Group {
    /// Makes the group of a service with so many bytes, for an instance whose files are in `instance`.
    pub(super) fn make(instance: &Path, service: &str, limit: u64) -> io::Result<Self> {
        let lines = fs::read_to_string("/proc/self/cgroup")?;
        let base = Base::of(&lines, Path::new(ROOT)).ok_or_else(|| {
            io::Error::other(
                "the system hands no control of memory on to this process (systemd: Delegate=memory)",
            )
        })?;
        let name = instance.file_name().unwrap_or_default().to_string_lossy();
        Self::make_below(base, instance, &format!("{PREFIX}{name}-{service}"), limit)
    }

    fn make_below(base: Base, instance: &Path, name: &str, limit: u64) -> io::Result<Self> {
        let dir = base.dir.join(name);
        let mut list = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(instance.join(LIST))?;
        // Written first: what was made can be found after any crash.
        writeln!(list, "{}", dir.display())?;
        if base.unified {
            fs::write(base.dir.join("cgroup.subtree_control"), "+memory").map_err(|error| {
                let dir = base.dir.display();
                io::Error::other(format!(
                    "{dir} does not hand memory on ({error}); systemd does so with Delegate=memory and \
                     DelegateSubgroup={AGENT}"
                ))
            })?;
        }
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let limit = limit.to_string();
        let set = |file: &str| fs::write(dir.join(file), &limit);
        if base.unified {
            set("memory.max")?;
            // Not every kernel counts swap.
            let _ = fs::write(dir.join("memory.swap.max"), "0");
        } else {
            set("memory.limit_in_bytes")?;
            let _ = set("memory.memsw.limit_in_bytes");
        }
        let mut group = Self {
            base,
            dir,
            kills_before: 0,
        };
        group.kills_before = group.kills();
        Ok(group)
    }

    /// Does something inside: what it starts is born there.
    pub(super) fn inside<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let own = std::process::id().to_string();
        fs::write(self.dir.join("cgroup.procs"), &own)?;
        let done = act();
        fs::write(self.base.home.join("cgroup.procs"), &own)?;
        done
    }

    /// The kernel took something of the service for want of memory.
    pub(super) fn ran_out(&self) -> bool {
        self.kills() > self.kills_before
    }

    fn kills(&self) -> u64 {
        let file = match self.base.unified {
            true => "memory.events",
            false => "memory.oom_control",
        };
        let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok())
            .unwrap_or_default()
    }
}

/// Removes the groups that were made for an instance, once nothing of it runs.
pub(crate) fn remove_listed(instance: &Path) {
    let list = fs::read_to_string(instance.join(LIST)).unwrap_or_default();
    for dir in list.lines().map(Path::new) {
        let ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(PREFIX);
        if dir.file_name().is_some_and(ours) {
            // It may never have been made, or be gone already.
            let _ = fs::remove_dir(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_found_by_what_the_kernel_says() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let v1 = "9:name=systemd:/\n4:cpu,memory:/work/one\n0::/x\n";
        let found = Base::of(v1, root).unwrap();
        let dir = root.join("memory/work/one");
        let (home, unified) = (dir.clone(), false);
        assert_eq!(found, Base { home, dir, unified });
        // Version 2 counts where memory is handed on to the group.
        let v2 = "0::/system.slice/greenroom.service\n";
        assert_eq!(Base::of(v2, root), None);
        let dir = root.join("system.slice/greenroom.service");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cgroup.controllers"), "cpu pids\n").unwrap();
        assert_eq!(Base::of(v2, root), None);
        fs::write(dir.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let (home, unified) = (dir.clone(), true);
        assert_eq!(Base::of(v2, root), Some(Base { home, dir, unified }));
        // Where the service manager gave the worker a group of its own within, ours stand beside it.
        let v2 = "0::/system.slice/greenroom.service/agent\n";
        let found = Base::of(v2, root).unwrap();
        assert_eq!(found.dir, root.join("system.slice/greenroom.service"));
        assert_eq!(found.home, found.dir.join(AGENT));
        assert_eq!(Base::of("", root), None);
    }

    #[test]
    fn groups_are_written_down_before_they_are_made_and_nothing_else_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let (dir, instance) = (root.path().join("base"), root.path().join("i"));
        fs::create_dir_all(&dir).unwrap();
        fs::create_dir_all(&instance).unwrap();
        let (home, unified) = (dir.join(AGENT), true);
        let base = Base { home, dir, unified };
        let name = "greenroom-i-a";
        let group = Group::make_below(base.clone(), &instance, name, 4_096).unwrap();
        let read = |file: &str| fs::read_to_string(base.dir.join(file)).unwrap();
        assert_eq!(read("cgroup.subtree_control"), "+memory");
        assert_eq!(read("greenroom-i-a/memory.max"), "4096");
        let events = base.dir.join(name).join("memory.events");
        fs::write(&events, "oom 1\noom_kill 1\n").unwrap();
        assert!(group.ran_out());
        // What was counted before a restart counts no more.
        let again = Group::make_below(base.clone(), &instance, name, 4_096).unwrap();
        assert!(!again.ran_out());

        for entry in fs::read_dir(base.dir.join(name)).unwrap().flatten() {
            fs::remove_file(entry.path()).unwrap();
        }
        let foreign = root.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        let mut list = fs::OpenOptions::new();
        let mut list = list.append(true).open(instance.join(LIST)).unwrap();
        writeln!(list, "{}", foreign.display()).unwrap();
        remove_listed(&instance);
        assert!(!base.dir.join(name).exists() && foreign.exists());
    }
}
