//! Pulls from registries. Those who want the same image at the same time share one pull, which ends
//! when nobody waits for it any more (PREF-05).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error as Engine;
use bollard::query_parameters::{CreateImageOptions, RemoveImageOptions};
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use tokio::sync::{RwLock, watch};

use super::image::{Meaning, meaning};
use super::keep::Kept;
use super::lock;
use crate::capacity::check_disk;
use crate::inventory::{disk, room};
use crate::prefetch::{ImageSource, PullError};

/// Ends with the engine's words where it fails.
type Pull = BoxFuture<'static, Result<(), String>>;

/// Images removed at one look at the disk, at most.
const REMOVED_MAX: usize = 32;

/// The pulls under way, and what was pulled.
pub(crate) struct Pulls {
    docker: Docker,
    state_dir: PathBuf,
    kept: Kept,
    /// Held while an image is removed, so that a start which was accepted before is known to it.
    removing: RwLock<()>,
    /// Pulls that starts of jobs wait for.
    urgent: watch::Sender<usize>,
    running: Mutex<BTreeMap<String, WeakShared<Pull>>>,
}

// === impl Pulls ===

impl Pulls {
    pub(super) fn new(docker: Docker, state_dir: PathBuf) -> Self {
        Self {
            docker,
            kept: Kept::open(&state_dir),
            state_dir,
            removing: RwLock::default(),
            urgent: watch::Sender::new(0),
            running: Mutex::default(),
        }
    }

    /// Returns when no removal is under way that was judged before now.
    pub(super) async fn settled(&self) {
        drop(self.removing.read().await);
    }

    /// How much is free of the disk that the engine keeps images on, or of our own where that one
    /// cannot be seen from here.
    async fn free(&self) -> Option<f64> {
        let told = self.docker.info().await.ok()?.docker_root_dir;
        let root = told.map(PathBuf::from).filter(|root| root.exists());
        let path = root.as_ref().unwrap_or(&self.state_dir);
        let room = room(path).ok()?;
        Some(room.free as f64 / room.total.max(1) as f64)
    }

    /// A start needs this image.
    pub(super) fn used(&self, reference: &str) {
        self.kept.used(&with_tag(reference));
    }

    /// A start waits for a pull as long as this lives.
    pub(super) fn urgent(&self) -> Urgent<'_> {
        self.urgent.send_modify(|waiting| *waiting += 1);
        Urgent(&self.urgent)
    }

    /// It is there by a pull of ours.
    pub(super) fn pulled(&self, reference: &str) {
        self.kept.pulled(&with_tag(reference));
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

/// A start that waits for a pull.
pub(super) struct Urgent<'a>(&'a watch::Sender<usize>);

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
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
                Meaning::DiskFull => "disk_full",
                Meaning::Trouble => "pull_failed",
            },
            text,
        })?;
        self.pulled(reference);
        Ok(())
    }

    fn prefetched(&self, reference: &str) {
        self.kept.prefetched(&with_tag(reference));
    }

    async fn quiet(&self) {
        // The sender is ours and lives.
        let _ = self
            .urgent
            .subscribe()
            .wait_for(|waiting| *waiting == 0)
            .await;
    }

    async fn tidy(&self, wanted: &watch::Receiver<BTreeSet<String>>) -> bool {
        let mut removed = false;
        for _ in 0..REMOVED_MAX {
            let Some(free) = self.free().await else {
                break;
            };
            let _removing = self.removing.write().await;
            let wanted: BTreeSet<String> = wanted.borrow().iter().map(|it| with_tag(it)).collect();
            let Some(reference) = self.kept.next_to_go(free, &wanted) else {
                break;
            };
            let options = None::<RemoveImageOptions>;
            match self.docker.remove_image(&reference, options, None).await {
                Ok(_) => {
                    tracing::info!(
                        reference,
                        free,
                        "the disk is short: an unused image is removed"
                    );
                    removed = true;
                    self.kept.gone(&reference);
                }
                Err(Engine::DockerResponseServerError {
                    status_code: 404, ..
                }) => self.kept.gone(&reference),
                // Somebody's container is made of it: it is of use.
                Err(Engine::DockerResponseServerError {
                    status_code: 409, ..
                }) => self.kept.used(&reference),
                Err(error) => {
                    tracing::warn!(reference, %error, "an unused image cannot be removed");
                    break;
                }
            }
        }
        removed
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
