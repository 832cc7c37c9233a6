//! How a command ends when it does not end well: one message on stderr and an exit code that means
//! something.

use std::fmt;

/// Exit codes of the binary. 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
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
    /// The Docker Engine may not be used by this user.
    RuntimeDenied = 11,
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
}

/// How every command ends.
pub(crate) type Outcome = Result<(), Failure>;

// === impl Failure ===

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            hint: None,
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

impl From<std::io::Error> for Failure {
    /// For writes to stdout. A reader that went away, as `head` does, is told nothing.
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::failed(String::new());
        }
        Self::failed(format!("cannot write the output: {error}"))
    }
}
