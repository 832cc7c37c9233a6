//! `greenroom audit`: the audit log as a file, and whether such a file is whole (AUDIT-10).

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use greenroom_ledger::{AuditChain, Broken};
use greenroom_sdk::AuditQuery;
use greenroom_sdk::types::call::{AuditCheckpoint, AuditEntry};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::connect::Manager;
use crate::failure::{Failure, Outcome};
use crate::output::Output;

/// Entries asked for at once.
const PAGE: u32 = 1_000;
/// Longest line of an export: a payload, twice escaped, and the rest.
const LINE_MAX: u64 = 1024 * 1024;

/// Export the Manager's audit log, or verify an export.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Export(Export),
    Verify(Verify),
}

/// Print every kept entry as a line of JSON, oldest first, after what stands for pruned ones.
#[derive(Debug, Args)]
struct Export {
    #[command(flatten)]
    manager: Manager,
}

/// Say whether the chain of an export is whole; exit 1 with the first bad entry if not.
#[derive(Debug, Args)]
struct Verify {
    /// The export; `-` for stdin.
    file: PathBuf,
    /// Begin after the checkpoint that the export holds, instead of at entry 1.
    #[arg(long)]
    from_checkpoint: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One line of an export.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Line {
    Checkpoint(AuditCheckpoint),
    Entry(AuditEntry),
}

// === impl Audit ===

impl Audit {
    pub(crate) async fn run(self) -> Outcome {
        match self.verb {
            Verb::Export(export) => export.run().await,
            Verb::Verify(verify) => verify.run(),
        }
    }
}

// === impl Export ===

impl Export {
    async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let mut entries: Vec<AuditEntry> = Vec::new();
        let checkpoint = loop {
            let query = AuditQuery {
                limit: PAGE,
                before_seq: entries.last().map_or(0, |last| last.seq),
                ..AuditQuery::default()
            };
            let page = client.get_audit_log(query).await?;
            if page.entries.is_empty() {
                // That of the last page: meanwhile more may have been pruned.
                break page.checkpoint;
            }
            entries.extend(page.entries);
        };
        let output = Output { json: true };
        let pruned = checkpoint.as_ref().map_or(0, |it| it.seq);
        if let Some(checkpoint) = checkpoint {
            output.line(&Line::Checkpoint(checkpoint))?;
        }
        let kept = entries.into_iter().rev().filter(|it| it.seq > pruned);
        for entry in kept {
            output.line(&Line::Entry(entry))?;
        }
        Ok(())
    }
}

// === impl Verify ===

impl Verify {
    fn run(self) -> Outcome {
        let name = match self.is_stdin() {
            true => "<stdin>".to_owned(),
            false => self.file.display().to_string(),
        };
        let unreadable =
            |error: std::io::Error| Failure::bad_input(format!("{name}: cannot be read: {error}"));
        let mut file: Box<dyn BufRead> = match self.is_stdin() {
            true => Box::new(std::io::stdin().lock()),
            false => Box::new(BufReader::new(File::open(&self.file).map_err(unreadable)?)),
        };
        let mut checkpoint = None;
        let mut chain = None;
        let mut entries = 0_u64;
        let mut text = Vec::new();
        // A line at a time: an export may be larger than memory.
        for number in 1_u64.. {
            text.clear();
            let mut line = (&mut file).take(LINE_MAX);
            if line.read_until(b'\n', &mut text).map_err(unreadable)? == 0 {
                break;
            }
            match serde_json::from_slice(&text) {
                Ok(Line::Checkpoint(it)) if number == 1 => checkpoint = Some(it),
                Ok(Line::Checkpoint(_)) => {
                    let text = format!("{name}:{number}: a checkpoint stands only in line 1");
                    return Err(Failure::bad_input(text));
                }
                Ok(Line::Entry(entry)) => {
                    let chain = match &mut chain {
                        Some(chain) => chain,
                        None => chain.insert(self.begin(&name, checkpoint.as_ref())?),
                    };
                    if let Err(Broken { seq }) = chain.follow(&entry) {
                        return Err(self.broken(&name, seq, entries == 0 && checkpoint.is_some()));
                    }
                    entries += 1;
                }
                Err(error) => {
                    let text = format!("{name}:{number}: it is no line of an export: {error}");
                    return Err(Failure::bad_input(text));
                }
            }
        }
        if chain.is_none() {
            self.begin(&name, checkpoint.as_ref())?;
        }
        let output = Output { json: self.json };
        output.either(&json!({"ok": true, "entries": entries}), || {
            format!("{entries} entries, their chain is whole")
        })
    }

    fn is_stdin(&self) -> bool {
        self.file == Path::new("-")
    }

    fn begin(
        &self,
        name: &str,
        checkpoint: Option<&AuditCheckpoint>,
    ) -> Result<AuditChain, Failure> {
        if self.from_checkpoint && checkpoint.is_none() {
            let text = format!("{name}: it holds no checkpoint");
            return Err(Failure::bad_input(text).hint("leave --from-checkpoint out"));
        }
        Ok(AuditChain::after(
            checkpoint.filter(|_| self.from_checkpoint),
        ))
    }

    fn broken(&self, name: &str, seq: u64, is_behind_checkpoint: bool) -> Failure {
        let failure = Failure::failed(format!("{name}: the chain is broken at entry {seq}"));
        match is_behind_checkpoint && !self.from_checkpoint {
            true => failure.hint(
                "earlier entries were pruned: --from-checkpoint begins behind them, at the \
                 checkpoint that the export holds",
            ),
            false => failure,
        }
    }
}
