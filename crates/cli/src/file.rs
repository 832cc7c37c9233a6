//! Files that are written whole or not at all: a disk that is full leaves no half of one, and what was
//! there before stays until it is replaced.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Writes a file in the place of what is there, if anything. A device or a pipe is written to as it is.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let is_none_or_file = |path: &Path| path.metadata().map_or(true, |it| it.is_file());
    if !is_none_or_file(path) {
        return OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    // What a link leads to is replaced, not the link.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    replace(&path, mode, |file| file.write_all(bytes))
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
    use std::os::unix::fs::PermissionsExt as _;

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
        let told = write(Path::new("/dev/full"), b"text", 0o644).expect_err("it is full");
        assert_eq!(told.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_file_is_replaced_whole_and_a_link_leads_on_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "before").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        write(&link, b"after", 0o600).expect("written");
        assert_eq!(std::fs::read_to_string(&file).expect("a text"), "after");
        let mode = file.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(link.symlink_metadata().expect("there").is_symlink());
        write_new(&file, b"again", 0o600).expect_err("it is there");
        assert_eq!(names(folder.path()), ["file", "link"]);
    }
}
