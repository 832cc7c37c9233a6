//! `greenroom token`: a further token for an installation.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use greenroom_auth::{AccessToken, Role, TokenFile};
use greenroom_sdk::types::Wall;

use crate::failure::{Failure, Outcome};
use crate::output::Output;

/// Make a token for a person or program and add it to a Manager's file of tokens.
#[derive(Debug, Args)]
pub(crate) struct Token {
    /// Who holds it, as audit names them.
    name: String,
    /// What it allows: viewer, operator, control-plane or admin.
    #[arg(long)]
    role: Role,
    /// The Manager's file of tokens; a running Manager reads it again.
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Write the token to this new file, readable by its owner alone.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// It ends after so many days; without, never.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

// === impl Token ===

impl Token {
    pub(crate) fn run(self) -> Outcome {
        if self.role > Role::Admin {
            let text = format!("--role: no token may have the role {}", self.role);
            return Err(Failure::bad_input(text));
        }
        let old = std::fs::read_to_string(&self.tokens);
        let old = old.map_err(|error| cannot("read", &self.tokens, &error))?;
        let ends_at = self.days.map(|days| {
            let end = SystemTime::now() + Duration::from_secs(days * 86_400);
            let end = end.duration_since(UNIX_EPOCH).unwrap_or_default();
            Wall(i64::try_from(end.as_millis()).unwrap_or(i64::MAX))
        });
        let token = AccessToken::generate();
        let gap = if old.is_empty() || old.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        let line = format!("{gap}{}", token.line(self.role, ends_at, &self.name));
        let all = TokenFile::read(&format!("{old}{line}"));
        all.map_err(|error| {
            Failure::bad_input(format!(
                "{} with the new token: {error}",
                self.tokens.display()
            ))
        })?;
        write_new(&self.out, format!("{}\n", token.expose()).as_bytes(), 0o600)?;
        let appended = std::fs::OpenOptions::new()
            .append(true)
            .open(&self.tokens)
            .and_then(|mut open| open.write_all(line.as_bytes()));
        appended.map_err(|error| cannot("write", &self.tokens, &error))?;
        let told = serde_json::json!({
            "name": self.name, "role": self.role.as_str(), "out": self.out,
        });
        Output { json: self.json }.either(&told, || {
            format!(
                "the token of {} is in {}; it allows what the role {} may do",
                self.name,
                self.out.display(),
                self.role
            )
        })
    }
}

/// Writes a file that was not there.
pub(super) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Outcome {
    let written = crate::file::write_new(path, bytes, mode);
    written.map_err(|error| cannot("make", path, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::bad_input(format!("cannot {what} {}: {error}", path.display()))
}
