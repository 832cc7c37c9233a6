//! Reading files that settings and callers name, which may be anything.

use std::fs::File;
use std::io::{self, Read as _};
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
}
