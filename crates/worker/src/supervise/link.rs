//! The supervisor's line to a worker: one connection at a time, JSON lines both ways.
//!
//! A new connection replaces the old one, since only one worker runs per state directory (WORK-07).
//! What nobody listens to is lost; the status is told again to whoever connects.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

use super::{Command, SOCKET, Word};

#[derive(Default)]
pub(super) struct Link {
    listener: Option<UnixListener>,
    reader: Option<Lines<BufReader<OwnedReadHalf>>>,
    writer: Option<OwnedWriteHalf>,
    /// Written as far as the socket takes it, so that a slow worker never stops a supervisor.
    pending: Vec<u8>,
}

/// Words that a worker has not read yet are bounded by this many bytes.
const PENDING_MAX: usize = 1 << 20;

// === impl Link ===

impl Link {
    pub(super) fn listen(&mut self, dir: &Path) -> io::Result<()> {
        let _ = std::fs::remove_file(dir.join(SOCKET));
        self.listener = Some(with_short_path(dir, SOCKET, |path| {
            UnixListener::bind(path)
        })?);
        Ok(())
    }

    /// The next command; none when a worker has connected. Safe to drop and call again.
    pub(super) async fn next(&mut self) -> Option<Command> {
        loop {
            let Some(listener) = &self.listener else {
                return std::future::pending().await;
            };
            let Some(reader) = &mut self.reader else {
                if let Ok((stream, _)) = listener.accept().await {
                    self.take(stream);
                    return None;
                }
                continue;
            };
            let writable = async {
                match &self.writer {
                    Some(writer) if !self.pending.is_empty() => writer.writable().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                accepted = listener.accept() => {
                    if let Ok((stream, _)) = accepted {
                        self.take(stream);
                        return None;
                    }
                }
                line = reader.next_line() => match line {
                    Ok(Some(line)) => {
                        if let Ok(command) = serde_json::from_str(&line) {
                            return Some(command);
                        }
                    }
                    Ok(None) | Err(_) => (self.reader, self.writer) = (None, None),
                },
                _ = writable => self.write_pending(),
            }
        }
    }

    pub(super) fn say(&mut self, word: &Word) {
        let Ok(mut line) = serde_json::to_vec(word) else {
            return;
        };
        if self.writer.is_none() || self.pending.len() + line.len() > PENDING_MAX {
            return;
        }
        line.push(b'\n');
        self.pending.extend(line);
        self.write_pending();
    }

    /// Sends what is left before the end.
    pub(super) async fn flush(&mut self) {
        if let Some(writer) = &mut self.writer {
            let _ = writer.write_all(&self.pending).await;
            let _ = writer.shutdown().await;
        }
    }

    fn take(&mut self, stream: UnixStream) {
        let (reader, writer) = stream.into_split();
        self.reader = Some(BufReader::new(reader).lines());
        self.writer = Some(writer);
        self.pending.clear();
    }

    fn write_pending(&mut self) {
        let Some(writer) = &self.writer else { return };
        while !self.pending.is_empty() {
            match writer.try_write(&self.pending) {
                Ok(n) => drop(self.pending.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    (self.reader, self.writer) = (None, None);
                    self.pending.clear();
                    return;
                }
            }
        }
    }
}

/// Does something with the path of a socket in a directory. The address of a socket holds some hundred bytes and state
/// directories may be deeper, so the path leads through an open descriptor of the directory.
pub(crate) fn with_short_path<T>(
    dir: &Path,
    name: &str,
    act: impl FnOnce(PathBuf) -> io::Result<T>,
) -> io::Result<T> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(dir, flags, Mode::empty())?;
    act(PathBuf::from(format!(
        "/proc/self/fd/{}/{name}",
        open.as_raw_fd()
    )))
}
