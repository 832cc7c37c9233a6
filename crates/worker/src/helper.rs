//! Programs of the worker's own that run beside it and outlive it: the supervisor of an instance, the
//! lease guard. Each says in its first line that it is there.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::supervise::INHERITED;

/// The program on its folder, with nothing of this worker's environment but what helpers need.
pub(crate) fn command(program: &OsString, arguments: &[OsString], dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg("--dir").arg(dir).env_clear();
    for name in INHERITED {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Starts it and waits for its first line; an empty one where it ended without.
pub(crate) async fn start(mut command: Command) -> io::Result<String> {
    let mut child = command.spawn()?;
    let output = child.stdout.take();
    // Reaped here while this worker lives, by init afterwards.
    tokio::spawn(async move { child.wait().await });
    let mut line = String::new();
    if let Some(output) = output {
        BufReader::new(output).read_line(&mut line).await?;
    }
    Ok(line)
}
