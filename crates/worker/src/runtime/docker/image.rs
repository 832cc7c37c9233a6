//! Making an image local, and what it means when that cannot be (WORK-34).

use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as Engine;
use greenroom_types::StartId;
use greenroom_types::job::{JobInfoKind, Stage};
use greenroom_types::node::RejectionCode;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pulls::Pulls;
use crate::agent::RuntimeEvent;
use crate::launch::Pinned;
use crate::order::Refusal;
use crate::runtime::{News, Trouble};

/// Wait before the second try; it doubles up to the bound below.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// Bytes of the engine's words that are told of a failed try.
const WORDS_MAX: usize = 1 << 10;

/// What a failed pull means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The registry says that there is none, or not for us.
    NotToBeHad,
    /// There is one, for no architecture of this node.
    OtherArchitecture,
    /// There is no room for it; what was there of it is removed again.
    DiskFull,
    /// It may go better next time.
    Trouble,
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Local {
    /// By which the engine knows this one and no other, whatever its name means later.
    pub(super) id: String,
    /// By which registries know it; the id for one that came from none.
    pub(super) digest: String,
    /// It defines a health check.
    pub(super) has_check: bool,
}

/// Pulls an image unless it is there, for so long where there is trouble (WORK-34). Each try that
/// fails is told at once (WORK-37).
pub(super) async fn make_local(
    docker: &Docker,
    pulls: &Pulls,
    reference: &str,
    (news, start_id): (&News, &StartId),
    tries: Duration,
    cancel: &CancellationToken,
) -> Result<Local, Trouble> {
    let give_up = Instant::now() + tries;
    let mut wait = AGAIN_FIRST;
    loop {
        let inspected = match docker.inspect_image(reference).await {
            Ok(image) => {
                pulls.used(reference);
                let check = image.config.and_then(|config| config.healthcheck);
                let test = check.and_then(|check| check.test).unwrap_or_default();
                let id = image.id.unwrap_or_default();
                let digests = image.repo_digests.unwrap_or_default();
                let digest = digests.first().and_then(|text| text.split_once('@'));
                return Ok(Local {
                    digest: digest.map_or_else(|| id.clone(), |(_, digest)| digest.to_owned()),
                    id,
                    has_check: test.first().is_some_and(|kind| kind != "NONE"),
                });
            }
            Err(Engine::DockerResponseServerError {
                status_code: 404, ..
            }) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        let urgent = pulls.urgent();
        let pulled = tokio::select! {
            pulled = pulls.begin(reference) => inspected.and(pulled),
            () = cancel.cancelled() => return Err(Trouble::Cancelled),
        };
        drop(urgent);
        let Err(text) = pulled else {
            pulls.pulled(reference);
            continue;
        };
        let refuse = |code| {
            Err(Trouble::Refused(Refusal::new(
                code,
                format!("image {reference}: {text}"),
            )))
        };
        match meaning(&text) {
            Meaning::NotToBeHad => return refuse(RejectionCode::Image),
            // The order names no architecture, so this node fits it (WORK-34).
            Meaning::OtherArchitecture => return refuse(RejectionCode::InvalidSpec),
            Meaning::DiskFull => return refuse(RejectionCode::Disk),
            Meaning::Trouble if Instant::now() + wait > give_up => {
                return refuse(RejectionCode::Image);
            }
            Meaning::Trouble => {}
        }
        tracing::warn!(reference, error = text, "an image cannot be pulled yet");
        let text = tried(reference, &text, wait, give_up - Instant::now());
        let stage = Stage::Build;
        let told = RuntimeEvent::Info(JobInfoKind::Stage { stage, text });
        news.tell(start_id, told).await;
        tokio::select! {
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(AGAIN_MAX),
            () = cancel.cancelled() => return Err(Trouble::Cancelled),
        }
    }
}

impl From<Local> for Pinned {
    fn from(local: Local) -> Self {
        Self {
            id: local.id,
            digest: local.digest,
        }
    }
}

/// What a failed try is told as. What the engine says may be long; what follows must not be lost.
fn tried(reference: &str, text: &str, wait: Duration, left: Duration) -> String {
    let cut = text.floor_char_boundary(WORDS_MAX);
    format!(
        "image {reference} cannot be pulled: {}; tried again in {} s, given up in {} s",
        text[..cut].trim_end(),
        wait.as_secs(),
        left.as_secs()
    )
}

pub(super) fn meaning(text: &str) -> Meaning {
    let text = text.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&[
        "no matching manifest",
        "does not match the specified platform",
    ]) {
        Meaning::OtherArchitecture
    } else if says(&[
        "manifest unknown",
        "manifest not found",
        "name unknown",
        "repository does not exist",
        "access denied",
        "access to the resource is denied",
        "unauthorized",
        "no basic auth credentials",
        "not found: manifest",
        "invalid reference",
    ]) {
        Meaning::NotToBeHad
    } else if says(&["no space left on device", "disk quota exceeded"]) {
        Meaning::DiskFull
    } else {
        Meaning::Trouble
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: WORK-37
    #[test]
    fn a_failed_try_is_told_with_its_cause_and_the_next_try() {
        let told = |text: &str| {
            let (wait, left) = (Duration::from_secs(2), Duration::from_secs(297));
            tried("reg.example.com/x:1", text, wait, left)
        };
        assert_eq!(
            told("dial tcp: lookup reg.example.com: no such host"),
            "image reg.example.com/x:1 cannot be pulled: dial tcp: lookup reg.example.com: no such \
             host; tried again in 2 s, given up in 297 s"
        );
        let long = told(&"ä".repeat(2_000));
        assert!(long.len() < 1_200 && long.ends_with("given up in 297 s"));
    }

    // spec: WORK-34
    #[test]
    fn words_of_engines_have_their_meaning() {
        for (text, expected) in [
            (
                "manifest for x:1 not found: manifest unknown: manifest unknown",
                Meaning::NotToBeHad,
            ),
            (
                "pull access denied for x, repository does not exist or may require 'docker login'",
                Meaning::NotToBeHad,
            ),
            (
                "no matching manifest for linux/amd64 in the manifest list entries",
                Meaning::OtherArchitecture,
            ),
            (
                "dial tcp: lookup reg.example.com: no such host",
                Meaning::Trouble,
            ),
            ("net/http: TLS handshake timeout", Meaning::Trouble),
            (
                "failed to register layer: write /lib/x.so: no space left on device",
                Meaning::DiskFull,
            ),
            (
                "received unexpected HTTP status: 503 Service Unavailable",
                Meaning::Trouble,
            ),
        ] {
            assert_eq!(meaning(text), expected, "{text}");
        }
    }
}
