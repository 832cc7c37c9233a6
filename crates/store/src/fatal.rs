//! The one-way switch that says: this process must end (STORE-12).
//!
//! The first cause wins and stays. Nobody retries a failed write: what a second
//! attempt would do after a failed flush is not known, so memory could get ahead
//! of the disk.

use std::sync::Arc;

use tokio::sync::watch;

use crate::room;

/// Why the store cannot go on. The process ends with exit code 9.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{attempt}: {cause}")]
pub struct FatalError {
    /// What was attempted, with the file's name.
    pub attempt: String,
    /// What the disk, the database or the machine answered.
    pub cause: String,
    /// The disk is full, rather than broken.
    pub disk_full: bool,
}

#[derive(Clone)]
pub(crate) struct FatalCell {
    cell: Arc<watch::Sender<Option<FatalError>>>,
}

impl FatalCell {
    pub(crate) fn new() -> Self {
        Self {
            cell: Arc::new(watch::Sender::new(None)),
        }
    }

    /// Records the cause unless there is one already.
    pub(crate) fn raise(&self, attempt: impl Into<String>, cause: impl ToString) -> FatalError {
        let cause = cause.to_string();
        let error = FatalError {
            attempt: attempt.into(),
            disk_full: room::says_full(&cause),
            cause,
        };
        let raised = self.cell.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(error.clone());
            }
            first
        });
        if raised {
            tracing::error!(attempt = %error.attempt, cause = %error.cause, "the store cannot go on");
        }
        self.get().unwrap_or(error)
    }

    pub(crate) fn get(&self) -> Option<FatalError> {
        self.cell.borrow().clone()
    }

    /// Resolves once a cause was recorded, and never otherwise.
    pub(crate) async fn raised(&self) -> FatalError {
        let mut watch = self.cell.subscribe();
        loop {
            if let Some(error) = watch.borrow_and_update().clone() {
                return error;
            }
            // The sender lives in `self`, so `changed` cannot end with an error here.
            if watch.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
