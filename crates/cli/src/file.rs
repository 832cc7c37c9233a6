//! Files that are written whole or not at all: a disk that is full leaves no half of one, and what was
//! there before stays until it is replaced.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Writes a file in the place of what is there, if anything; who may read that may go on to. A device or
/// a pipe is written to as it is.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match path.metadata().ok().filter(Metadata::is_file) {
        None => put(path, 0o644, |file| file.write_all(bytes)),
        Some(there) => put(path, 0o600, |file| {
            file.set_permissions(there.permissions())?;
            file.write_all(bytes)
        }),
    }
}

/// The same for its owner alone, whoever may read what is there.
pub(crate) fn write_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, 0o600, |file| file.write_all(bytes))
}

fn put(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let is_none_or_file = |path: &Path| path.metadata().map_or(true, |it| it.is_file());
    if !is_none_or_file(path) {
        return write(&mut OpenOptions::new().write(true).open(path)?);
    }
    // What a link leads to is replaced, not the link.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    replace(&path, mode, write)
}

/// Writes a file that was not there.
pub(crate) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    make(path, mode, |file| file.write_all(bytes))
}

fn replace(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let beside = beside(path)?;
    make(&beside, mode, write)?;
    std::fs::rename(&beside, path).inspect_err(|_| remove(&beside))
}

fn make(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut open = OpenOptions::new();
    let mut file = open.write(true).create_new(true).mode(mode).open(path)?;
    let written = write(&mut file).and_then(|()| file.sync_all());
    written.inspect_err(|_| remove(path))
}

/// What went wrong is told already.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// A name of this process beside a file.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it names no file"))?;
    let mut beside = name.to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    Ok(path.with_file_name(beside))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = names.map(|it| it.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn full(file: &mut File) -> io::Result<()> {
        file.write_all(b"half")?;
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }

    // spec: SCEN-12
    #[test]
    fn a_disk_that_is_full_leaves_what_was_there_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        std::fs::write(&old, "before").expect("a file");
        for path in [&old, &new] {
            let told = replace(path, 0o644, full).expect_err("it is full");
            assert_eq!(told.kind(), io::ErrorKind::StorageFull);
        }
        make(&new, 0o600, full).expect_err("it is full");
        assert_eq!(std::fs::read_to_string(&old).expect("a text"), "before");
        assert_eq!(names(folder.path()), ["old"]);
        let told = write(Path::new("/dev/full"), b"text").expect_err("it is full");
        assert_eq!(told.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_file_is_replaced_whole_and_a_link_leads_on_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "before").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        write(&link, b"after").expect("written");
        assert_eq!(std::fs::read_to_string(&file).expect("a text"), "after");
        assert!(link.symlink_metadata().expect("there").is_symlink());
        write_new(&file, b"again", 0o600).expect_err("it is there");
        assert_eq!(names(folder.path()), ["file", "link"]);
    }

    // spec: SCEN-12
    #[test]
    fn who_may_read_a_file_may_read_what_takes_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        let mode = || file.metadata().expect("it is there").mode() & 0o777;
        for kept in [0o600, 0o640, 0o664] {
            std::fs::write(&file, "before").expect("a file");
            std::fs::set_permissions(&file, Permissions::from_mode(kept)).expect("it is mine");
            write(&file, b"after").expect("written");
            assert_eq!(mode(), kept);
        }
        write_secret(&file, b"secret").expect("written");
        assert_eq!(mode(), 0o600, "a secret is its owner's");
        write(&file, b"after").expect("written");
        assert_eq!(mode(), 0o600);
    }
}
