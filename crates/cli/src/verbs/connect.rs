//! How a verb reaches the Manager.

use clap::Args;
use greenroom_sdk::{Client, Error, Settings};

use crate::failure::{Exit, Failure};

/// Where the Manager is, and in what form answers are printed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Manager {
    /// The Manager's address; several members separated by commas.
    #[arg(
        long,
        env = "GREENROOM_MANAGER",
        default_value = "http://127.0.0.1:6789",
        value_delimiter = ',',
        value_name = "URL"
    )]
    pub(crate) manager: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

// === impl Manager ===

impl Manager {
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        let settings = Settings::new(self.manager.iter().map(String::as_str));
        Client::connect(settings)
            .await
            .map_err(|error| match error {
                Error::Settings { problem, .. } => {
                    Failure::bad_input(format!("--manager: {problem}"))
                }
                Error::Connect(failures) => {
                    let told: Vec<String> = failures
                        .iter()
                        .map(|failure| unreached(&failure.url, &failure.cause))
                        .collect();
                    Failure::failed(told.join("\n")).hint(HINT)
                }
                other => other.into(),
            })
    }

    pub(crate) const fn output(&self) -> crate::output::Output {
        crate::output::Output { json: self.json }
    }
}

/// What to do when no Manager is reached.
pub(crate) const HINT: &str = "start one with `greenroom up`, or name it with --manager URL";

/// That a Manager is not reached; of the causes within causes the innermost says why.
pub(crate) fn unreached(url: &str, cause: &str) -> String {
    let cause = cause.rsplit(": ").next().unwrap_or(cause);
    format!("cannot reach the Manager at {url}: {cause}")
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match &error {
            Error::InvalidArgument(_) => Exit::BadInput,
            _ => Exit::Failed,
        };
        // People know verbs, not the names of calls.
        match error.refused() {
            Some(refused) => Self::new(exit, format!("{} ({})", refused.message, refused.reason)),
            None => Self::new(exit, error.to_string()),
        }
    }
}
