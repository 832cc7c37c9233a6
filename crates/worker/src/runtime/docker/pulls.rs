//! Pulls from registries. Those who want the same image at the same time share one pull, which ends
//! when nobody waits for it any more (PREF-05).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error as Engine;
use bollard::query_parameters::CreateImageOptions;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};

use super::image::{Meaning, meaning};
use super::lock;
use crate::capacity::check_disk;
use crate::inventory::disk;
use crate::prefetch::{ImageSource, PullError};

/// Ends with the engine's words where it fails.
type Pull = BoxFuture<'static, Result<(), String>>;

/// The pulls under way.
pub(crate) struct Pulls {
    docker: Docker,
    state_dir: PathBuf,
    running: Mutex<BTreeMap<String, WeakShared<Pull>>>,
}

// === impl Pulls ===

impl Pulls {
    pub(super) fn new(docker: Docker, state_dir: PathBuf) -> Self {
        Self {
            docker,
            state_dir,
            running: Mutex::default(),
        }
    }

    /// Pulls an image, alone or together with whoever pulls it already.
    pub(super) fn begin(&self, reference: &str) -> Shared<Pull> {
        let reference = with_tag(reference);
        let mut running = lock(&self.running);
        running.retain(|_, pull| pull.upgrade().is_some_and(|pull| pull.peek().is_none()));
        if let Some(pull) = running.get(&reference).and_then(WeakShared::upgrade) {
            return pull;
        }
        let pull = pull(self.docker.clone(), reference.clone())
            .boxed()
            .shared();
        if let Some(weak) = pull.downgrade() {
            running.insert(reference, weak);
        }
        pull
    }
}

#[async_trait]
impl ImageSource for Pulls {
    async fn holds(&self, reference: &str) -> bool {
        self.docker.inspect_image(reference).await.is_ok()
    }

    async fn pull(&self, reference: &str) -> Result<(), PullError> {
        self.begin(reference).await.map_err(|text| PullError {
            token: match meaning(&text) {
                Meaning::NotToBeHad => "not_found",
                Meaning::OtherArchitecture => "wrong_architecture",
                Meaning::Trouble => "pull_failed",
            },
            text,
        })
    }

    fn room(&self) -> Result<(), String> {
        let disk = disk(&self.state_dir).map_err(|error| error.to_string())?;
        check_disk(&disk, false).map_err(|refusal| refusal.detail)
    }
}

async fn pull(docker: Docker, reference: String) -> Result<(), String> {
    let options = CreateImageOptions {
        from_image: Some(reference),
        ..CreateImageOptions::default()
    };
    let mut progress = docker.create_image(Some(options), None, None);
    while let Some(step) = progress.next().await {
        step.map_err(|error: Engine| error.to_string())?;
    }
    Ok(())
}

/// Without a tag the engine would pull every tag there is.
fn with_tag(reference: &str) -> String {
    let name = reference.rsplit('/').next().unwrap_or(reference);
    if name.contains([':', '@']) {
        reference.to_owned()
    } else {
        format!("{reference}:latest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_without_a_tag_means_latest() {
        assert_eq!(with_tag("localhost:5001/x"), "localhost:5001/x:latest");
        assert_eq!(with_tag("a/x:1"), "a/x:1");
        assert_eq!(with_tag("x@sha256:00"), "x@sha256:00");
    }
}
