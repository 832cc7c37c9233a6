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
                    let stranger = failures.iter().find(|it| is_stranger(&it.cause));
                    let cause = stranger.map_or("", |it| it.cause.as_str());
                    Failure::failed(told.join("\n"))
                        .because("unreachable")
                        .hint(hint(cause))
                }
                other => other.into(),
            })
    }

    pub(crate) const fn output(&self) -> crate::output::Output {
        crate::output::Output { json: self.json }
    }
}

/// What to do when no Manager is reached.
const HINT: &str = "start one with `greenroom up`, or name it with --manager URL";

/// The same where something else answers: most likely two addresses were mixed up.
const MIXED_UP: &str = "--manager takes the Manager's address, by default http://127.0.0.1:6789; the \
                        control plane's is for --control";

/// True for the cause that the SDK gives where a server answers that is no Manager.
fn is_stranger(cause: &str) -> bool {
    cause.contains(greenroom_sdk::NO_MANAGER)
}

fn hint(cause: &str) -> &'static str {
    if is_stranger(cause) { MIXED_UP } else { HINT }
}

fn unreached(url: &str, cause: &str) -> String {
    format!("cannot reach the Manager at {url}: {cause}")
}

/// That a Manager is not reached, for verbs that speak to it without the SDK's client.
pub(crate) fn not_reached(url: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
    let cause = greenroom_sdk::plain_cause(error);
    Failure::failed(unreached(url, &cause))
        .because("unreachable")
        .hint(hint(&cause))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match &error {
            Error::InvalidArgument(_) => Exit::BadInput,
            _ => Exit::Failed,
        };
        // People know verbs, not the names of calls.
        match error.refused() {
            Some(refused) if refused.reason.is_empty() => Self::new(exit, &refused.message),
            Some(refused) => Self::new(exit, format!("{} ({})", refused.message, refused.reason))
                .because(&refused.reason),
            None => Self::new(exit, words(&error)).because(match &error {
                Error::ConnectionLost { .. } => "connection_lost",
                Error::DeadlineExceeded { .. } => "deadline",
                Error::NeedsProtocol { .. } => "needs_protocol",
                _ => "",
            }),
        }
    }
}

/// What ended a call, without the name of the call.
fn words(error: &Error) -> String {
    let unknown = if error.outcome_unknown() {
        "; whether it took effect is not known"
    } else {
        ""
    };
    match error {
        Error::ConnectionLost { cause, .. } => {
            format!("the connection to the Manager was lost: {cause}{unknown}")
        }
        Error::DeadlineExceeded { .. } => format!("the Manager did not answer in time{unknown}"),
        other => other.to_string(),
    }
}
