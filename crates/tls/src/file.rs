//! Reading files that settings and callers name, which may be anything, and replacing files of one's own.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// A pipe that nobody writes into is given up after this long.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any certificate, key or list of tokens.
const FILE_MAX: usize = 16 * 1024 * 1024;

/// Reads a whole file of settings, keys or tokens. A pipe is read as well, as shells make them for
/// `<(command)`; one that nobody writes into is given up after 10 s, and nothing endless is read.
///
/// # Errors
/// What the system says, or that it is too long or not to be had in time.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = read_file_upto(path, FILE_MAX)?;
    if bytes.len() > FILE_MAX {
        let text = format!("it is longer than {} MiB", FILE_MAX / 1024 / 1024);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// As [`read_file`], and that it is no UTF-8.
pub fn read_text_file(path: &Path) -> io::Result<String> {
    String::from_utf8(read_file(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// A file up to another length. One byte more is read of what is longer, and no error made of it.
///
/// # Errors
/// What the system says, or that it is not to be had in time.
pub fn read_file_upto(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    read_within(path, most, PATIENCE)
}

fn read_within(path: &Path, most: usize, patience: Duration) -> io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.is_file() {
        return read(path, most);
    }
    // Opening alone may take for ever. What is left behind then ends with the program.
    let (done, read_done) = mpsc::channel();
    let path = path.to_owned();
    std::thread::Builder::new()
        .name("read a pipe".to_owned())
        .spawn(move || {
            // Nobody waits for it any more when the time is over.
            let _ = done.send(read(&path, most));
        })?;
    read_done.recv_timeout(patience).unwrap_or_else(|_| {
        let text = format!(
            "nothing came out of it for {} s: it is a pipe that nobody writes into",
            patience.as_secs_f32()
        );
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    })
}

fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a file of one's own, by way of one beside it with the ending `new`: what was there before stays
/// whole until it is replaced. It is flushed, its place in the folder is not. The mode is as given, whatever
/// the umask says.
///
/// # Errors
/// What the system says.
pub fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    // One that was left behind may be of a mode that nobody can write.
    let _ = std::fs::remove_file(&new);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&new)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_pipe_is_read_and_one_that_nobody_writes_into_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let given_up = read_within(&pipe, 10, Duration::from_millis(20)).unwrap_err();
        assert_eq!(given_up.kind(), io::ErrorKind::TimedOut, "{given_up}");

        let other = folder.path().join("other");
        assert!(
            Command::new("mkfifo")
                .arg(&other)
                .status()
                .unwrap()
                .success()
        );
        let path = other.clone();
        let writing = std::thread::spawn(move || std::fs::write(path, "said"));
        assert_eq!(
            read_within(&other, 10, Duration::from_secs(60)).unwrap(),
            b"said"
        );
        writing.join().unwrap().unwrap();
        // What never ends is read up to the length that was asked for.
        let zeros = read_within(Path::new("/dev/zero"), 10, Duration::from_secs(60));
        assert_eq!(zeros.unwrap().len(), 11);
    }

    #[test]
    fn a_file_is_read_whole_and_one_that_is_too_long_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert_eq!(
            read_file(&path).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        std::fs::write(&path, "text").unwrap();
        assert_eq!(read_file(&path).unwrap(), b"text");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(FILE_MAX as u64 + 1)
            .unwrap();
        assert_eq!(
            read_file(&path).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        assert!(read_file(folder.path()).is_err(), "a folder");
    }

    #[test]
    fn a_file_is_replaced_whole_with_the_mode_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        for (text, mode) in [("first", 0o444), ("second", 0o600), ("third", 0o666)] {
            replace_file(&path, text.as_bytes(), mode).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            let found = path.metadata().unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode);
        }
        // Where it cannot be written what is there stays.
        std::fs::create_dir(folder.path().join("key.new")).unwrap();
        replace_file(&path, b"fourth", 0o600).unwrap_err();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "third");
    }
}
