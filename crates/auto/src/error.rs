//! What can go wrong around an instance: it does not start, it ends by itself, a call is refused.

use greenroom_policy::settings::AutoSettingsValidationError;
use greenroom_policy::{ApiAnswer, ApiError};

/// Why an instance did not start (LIFE-01). Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings have faults; all are listed, and no connection was tried (CONF-01).
    #[error(transparent)]
    Settings(#[from] AutoSettingsValidationError),
    /// The signal fired before the connection stood.
    #[error("the signal fired before the connection to the Manager stood")]
    Aborted,
    /// The Manager was not reached.
    #[error("{url}: {source}; is the Manager running there?")]
    Connect {
        /// The `url` setting.
        url: String,
        /// What went wrong.
        #[source]
        source: Box<greenroom_sdk::Error>,
    },
    /// What was kept of operators' decisions cannot be read (ACTS-06). Without it a node that was
    /// cordoned would take work again, so nothing runs.
    #[error(
        "what operators decided before cannot be read from the Manager (namespace {:?}, key {:?}): {why}; \
         run the control plane that wrote it, or delete the key with `greenroom ctl KvCommit` and say \
         cordons and drains again",
        crate::seat::NAMESPACE,
        crate::acts::KEY
    )]
    Acts {
        /// What is wrong with it.
        why: String,
    },
    /// The system gives no random numbers for ids.
    #[error("the system gives no random numbers for node ids: {0}")]
    Randomness(getrandom::Error),
}

/// Why an instance ended by itself (LIFE-07).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndError {
    /// The Manager's stream ended or failed.
    #[error("the Manager's stream ended: {0}")]
    Stream(String),
    /// The connection never stood; `run` failed with the same.
    #[error("it did not start: {0}")]
    NotStarted(String),
    /// A fault of this program: the loop broke. What the Manager holds is untouched.
    #[error("the loop of this instance broke on a fault of its own; see the log")]
    Broken,
}

/// Why an acting call brought no success.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The policy or the Manager refused it.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Too many inputs wait to be handled. Nothing was done; try again.
    #[error("{0} inputs wait already; nothing was done, try again")]
    Busy(usize),
    /// The answer is not of the kind that the call has.
    #[error("{call} was answered with {answer:?}")]
    Answer {
        /// The call.
        call: &'static str,
        /// Its answer.
        answer: Box<ApiAnswer>,
    },
}

// === impl CallError ===

impl CallError {
    /// Stable name of the refusal: those of [`ApiError::code`], `busy` and `badAnswer`.
    pub fn code(&self) -> &str {
        match self {
            Self::Api(error) => error.code(),
            Self::Busy(_) => "busy",
            Self::Answer { .. } => "badAnswer",
        }
    }
}
