//! How a command ends when it does not end well: one message on stderr and an exit code that means
//! something.

use std::fmt;

use serde_json::{Value, json};

use crate::output::{one_line, shortened};

/// Exit codes of the binary. 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Whoever read the output went away, as `head` does: there is nobody to tell, and no fault.
    ReaderGone = 0,
    /// The call was refused, an expectation was not met, or the other side could not be reached.
    Failed = 1,
    /// The command line or a file is wrong; nothing was changed.
    BadInput = 2,
    /// The address to listen on is taken (API-01), or `up` runs already on this folder.
    AddressTaken = 3,
    /// Another process holds the folder (STORE-01, WORK-07).
    Locked = 4,
    /// A dry run found no place for a job.
    NoPlace = 5,
    /// The store or journal is of a newer version (STORE-06, WORK-66).
    TooNew = 6,
    /// The folder has other files and no store (STORE-08).
    StoreMissing = 7,
    /// The store cannot be read and no backup is usable (STORE-10).
    Unreadable = 8,
    /// The disk failed or is full (STORE-09, STORE-12).
    DiskFailed = 9,
    /// The key that seals secrets on disk is not the store's (SEC-11).
    WrongKey = 10,
    /// The Docker Engine may not be used by this user.
    RuntimeDenied = 11,
    /// The store has an older schema and could not be migrated (STORE-06).
    NotMigrated = 12,
}

// === impl Exit ===

impl Exit {
    /// The number with which the process ends. A store that could not be migrated shares its with a dry
    /// run that found no place: no command can end with both.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::NotMigrated => Self::NoPlace as u8,
            other => other as u8,
        }
    }
}

/// What to do about a full disk. What is in the data folder is needed: nothing of it is offered.
pub(crate) const FULL_HINT: &str = "the data is whole: give that file system more room, or move what is not \
     Greenroom's off it, and start again";

/// A command that did not end well.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// Empty when there is nobody to tell.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
    /// Stable token for programs; empty for that of the exit code.
    reason: String,
    /// Places in files, as data.
    at: Vec<Value>,
    /// A program that asked for JSON was told already.
    told: bool,
}

/// How every command ends.
pub(crate) type Outcome = Result<(), Failure>;

// === impl Failure ===

impl Failure {
    /// With a message of one line: what it repeats from elsewhere may be of any length, and of any
    /// letters, of which none breaks the line or steers the terminal.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        let message = shortened(one_line(&message.into()).into_owned());
        Self {
            exit,
            message,
            hint: None,
            reason: String::new(),
            at: Vec::new(),
            told: false,
        }
    }

    /// With a message of several lines, each as of [`Failure::new`].
    pub(crate) fn lines(exit: Exit, message: &str) -> Self {
        let lines = message
            .split('\n')
            .map(|line| Self::new(exit, line).message);
        let message = lines.collect::<Vec<_>>().join("\n");
        Self {
            message,
            ..Self::new(exit, String::new())
        }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub(crate) fn bad_input(message: impl Into<String>) -> Self {
        Self::new(Exit::BadInput, message)
    }

    /// A failure of the file system; a full disk has its own exit code.
    pub(crate) fn io(message: impl Into<String>, error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::new(Exit::DiskFailed, message).hint(FULL_HINT)
            }
            _ => Self::failed(message),
        }
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The token of a refusal; in the same form wherever it comes from.
    #[must_use]
    pub(crate) fn because(mut self, reason: &str) -> Self {
        self.reason = snake(reason);
        self
    }

    /// True for the refusal of that token.
    pub(crate) fn is_because(&self, reason: &str) -> bool {
        self.reason == reason
    }

    #[must_use]
    pub(crate) fn at(mut self, places: Vec<Value>) -> Self {
        self.at = places;
        self
    }

    /// What stdout holds says it already.
    #[must_use]
    pub(crate) fn told(mut self) -> Self {
        self.told = true;
        self
    }

    /// The failure for programs; none where they were told, or where nobody reads.
    pub(crate) fn as_json(&self) -> Option<Value> {
        if self.told || self.message.is_empty() {
            return None;
        }
        let reason = match self.reason.as_str() {
            "" => self.exit.reason(),
            reason => reason,
        };
        let mut error = json!({
            "reason": reason,
            "exit": self.exit.code(),
            "message": self.message,
        });
        if let Some(hint) = &self.hint {
            error["hint"] = hint.as_str().into();
        }
        if !self.at.is_empty() {
            error["at"] = self.at.clone().into();
        }
        Some(json!({"error": error}))
    }
}

impl Exit {
    /// What a code means, in one word.
    const fn reason(self) -> &'static str {
        match self {
            Self::ReaderGone => "reader_gone",
            Self::Failed => "failed",
            Self::BadInput => "bad_input",
            Self::AddressTaken => "address_taken",
            Self::Locked => "locked",
            Self::NoPlace => "no_place",
            Self::NotMigrated => "not_migrated",
            Self::TooNew => "too_new",
            Self::StoreMissing => "store_missing",
            Self::Unreadable => "unreadable",
            Self::DiskFailed => "disk_failed",
            Self::WrongKey => "wrong_key",
            Self::RuntimeDenied => "runtime_denied",
        }
    }
}

/// `unknownJob` as `unknown_job`: the control plane's tokens are written in another form than the
/// Manager's.
fn snake(token: &str) -> String {
    let mut text = String::with_capacity(token.len() + 4);
    for letter in token.chars() {
        if letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// What was written by a verb whose exit code is a verdict: that is found all the same where the reader
/// went away.
pub(crate) fn heard_or_not(written: Outcome) -> Outcome {
    match written {
        Err(failure) if failure.exit == Exit::ReaderGone => Ok(()),
        other => other,
    }
}

impl From<std::io::Error> for Failure {
    /// For writes to stdout. A reader that went away, as `head` does, is told nothing.
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::new(Exit::ReaderGone, String::new());
        }
        Self::failed(format!("cannot write the output: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_to_programs_with_reason_hint_and_places() {
        let failure = Failure::bad_input("x.yaml:3:7: jobs: expected a list")
            .hint("look there")
            .at(vec![json!({"line": 3})]);
        assert_eq!(
            failure.as_json().unwrap(),
            json!({"error": {
                "reason": "bad_input", "exit": 2, "hint": "look there",
                "message": "x.yaml:3:7: jobs: expected a list", "at": [{"line": 3}],
            }})
        );
        let long = format!("a\n{}", "x".repeat(1_000_000));
        let long = Failure::lines(Exit::Failed, &long);
        assert!(long.message.starts_with("a\nxxx") && long.message.len() < 1_100);
        let outside = Failure::failed("there is no node w1\nw2\u{1b}[31m");
        assert_eq!(outside.message, "there is no node w1\\nw2\\u{1b}[31m");
        let failure = Failure::failed("there is no job x").because("unknownJob");
        assert_eq!(failure.as_json().unwrap()["error"]["reason"], "unknown_job");
        assert_eq!(failure.told().as_json(), None);
        let gone = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!((gone.exit.code(), gone.as_json()), (0, None));
    }
}
