//! How a verb reaches the Manager, and as whom.

use std::path::{Path, PathBuf};

use clap::Args;
use greenroom_manifest::manager::Context;
use greenroom_sdk::{Access, Client, Error, Settings, TokenSource};

use super::files::{read_text, refuse};
use crate::env;
use crate::failure::{Exit, Failure};

/// Where a Manager is when nothing says so.
const HERE: &str = "http://127.0.0.1:6789";

/// Where the Manager is, and in what form answers are printed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Manager {
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the Manager is, how it is recognised, and who calls.
#[derive(Clone, Debug, Args)]
pub(crate) struct Reach {
    /// The Manager's address, http://127.0.0.1:6789 unless a context says another; several members
    /// separated by commas.
    #[arg(long, env = env::MANAGER, value_delimiter = ',', value_name = "URL")]
    pub(crate) manager: Vec<String>,
    /// File that says where the Manager is and who calls; `greenroom init` writes some.
    #[arg(long, env = env::CONTEXT, value_name = "FILE")]
    context: Option<PathBuf>,
    /// File of the authorities that sign the Manager's certificate, in PEM.
    #[arg(long, env = env::CA, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Pin of the Manager's key, sha256:HEX, instead of an authority.
    #[arg(long = "pin", env = env::PIN, value_delimiter = ',', value_name = "PIN")]
    pins: Vec<String>,
    /// File of the caller's token.
    #[arg(long, env = env::TOKEN_FILE, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The caller's certificate, instead of a token.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The certificate's private key.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

// === impl Reach ===

impl Reach {
    /// The context file, its paths as seen from here; an empty one when none is named.
    pub(crate) fn context(&self) -> Result<Context, Failure> {
        match &self.context {
            Some(file) => read_context(file),
            None => Ok(Context::default()),
        }
    }

    /// What is said here goes before what the context says.
    pub(crate) fn access(&self, context: &Context) -> Access {
        let token_file = self.token_file.as_ref();
        let given = self.cert.clone().zip(self.key.clone());
        // A credential that is given replaces the context's, of whatever kind that is.
        let (token_file, certificate) = match (token_file, given) {
            (None, None) => (
                context.token_file.as_ref(),
                context.certificate.clone().zip(context.key.clone()),
            ),
            given => given,
        };
        let trusts = self.ca.is_some() || !self.pins.is_empty();
        let (ca, pins) = if trusts {
            (&self.ca, &self.pins)
        } else {
            (&context.ca, &context.pins)
        };
        Access {
            ca: ca.clone(),
            pins: pins.clone(),
            certificate,
            token: token_file.map(|file| TokenSource::File(file.clone())),
        }
    }

    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        Client::connect(self.settings()?)
            .await
            .map_err(|error| match error {
                Error::Settings { key, problem } => {
                    Failure::bad_input(format!("{}: {problem}", flag(key)))
                }
                Error::Connect(failures) => {
                    let told: Vec<String> = failures
                        .iter()
                        .map(|failure| match failure.refused() {
                            Some(why) => format!("the Manager at {} refuses: {why}", failure.url),
                            None => unreached(&failure.url, &failure.cause),
                        })
                        .collect();
                    let refused = failures.iter().any(|failure| failure.refused().is_some());
                    let stranger = failures.iter().find(|it| is_stranger(&it.cause));
                    let cause = stranger.map_or("", |it| it.cause.as_str());
                    let (reason, hint) = if refused {
                        ("bad_credentials", HINT_REFUSED)
                    } else {
                        ("unreachable", hint(cause))
                    };
                    Failure::lines(Exit::Failed, &told.join("\n"))
                        .because(reason)
                        .hint(hint)
                }
                other => other.into(),
            })
    }

    /// The first address at which the Manager is looked for, for messages.
    pub(crate) fn url(&self) -> String {
        let urls = self.context().map(|context| self.urls(&context));
        let first = urls.ok().and_then(|urls| urls.into_iter().next());
        first.unwrap_or_else(|| HERE.to_owned())
    }

    fn urls(&self, context: &Context) -> Vec<String> {
        let here = [HERE.to_owned()];
        let urls = [&self.manager[..], &context.manager[..], &here[..]];
        let urls = urls.into_iter().find(|urls| !urls.is_empty());
        urls.unwrap_or_default().to_vec()
    }

    fn settings(&self) -> Result<Settings, Failure> {
        let context = self.context()?;
        let urls = self.urls(&context);
        let mut settings = Settings::new(urls.iter().map(String::as_str));
        settings.access = self.access(&context);
        Ok(settings)
    }
}

/// Reads a context file; relative paths in it are seen from its folder.
fn read_context(file: &Path) -> Result<Context, Failure> {
    let (name, text) = read_text(file).map_err(|problem| refuse(&[problem]))?;
    let found = greenroom_manifest::read::<Context>(&name, &text);
    let mut found = found.map_err(|problem| refuse(&[problem]))?;
    let (Some(mut context), true) = (found.pop(), found.is_empty()) else {
        let text = format!("{name} must hold one context");
        return Err(Failure::bad_input(text));
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    let paths = [
        &mut context.ca,
        &mut context.token_file,
        &mut context.certificate,
        &mut context.key,
    ];
    for path in paths.into_iter().flatten() {
        *path = folder.join(&*path);
    }
    Ok(context)
}

// === impl Manager ===

impl Manager {
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        self.reach.connect().await
    }

    pub(crate) const fn output(&self) -> crate::output::Output {
        crate::output::Output { json: self.json }
    }
}

/// The flag that sets what the SDK calls by a key.
fn flag(key: &str) -> &'static str {
    match key {
        "ca" => "--ca",
        "pins" => "--pin",
        "token" => "--token-file",
        "certificate" => "--cert",
        _ => "--manager",
    }
}

/// What to do when no Manager is reached.
const HINT: &str = "start one with `greenroom up`, or name it with --manager URL";

/// What to do when it does not take the caller.
const HINT_REFUSED: &str = "name a token with --token-file FILE, or a context with --context FILE";

/// What to do where something else answers: most likely two addresses were mixed up.
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
