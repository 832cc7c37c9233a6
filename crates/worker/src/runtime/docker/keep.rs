//! Which images go when the disk gets short (WORK-56).
//!
//! Only what this worker pulled is ever removed: an image that was there before, or that somebody
//! else pulled, is not its to take. When each was last of use is kept in the state directory; without
//! that file nothing is known, and nothing removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use greenroom_types::Wall;
use serde::{Deserialize, Serialize};

use super::lock;
use crate::node::now;

const FILE: &str = "images.json";
/// Below this part of the disk, unused images go.
const SHORT: f64 = 0.20;
/// Below this part, those prefetched lately go too.
const VERY_SHORT: f64 = 0.10;
/// How long a prefetched image is waited for by its job, in milliseconds.
const PREFETCHED_FOR: i64 = 24 * 3_600_000;

/// When an image was of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Use {
    last: Wall,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    prefetched: Option<Wall>,
}

/// The images that this worker pulled.
pub(super) struct Kept {
    path: PathBuf,
    images: Mutex<BTreeMap<String, Use>>,
}

// === impl Kept ===

impl Kept {
    pub(super) fn open(state_dir: &std::path::Path) -> Self {
        let path = state_dir.join(FILE);
        let bytes = std::fs::read(&path).unwrap_or_default();
        let images = serde_json::from_slice(&bytes).unwrap_or_default();
        Self {
            path,
            images: Mutex::new(images),
        }
    }

    pub(super) fn pulled(&self, reference: &str) {
        let fresh = Use {
            last: now(),
            prefetched: None,
        };
        let mut images = lock(&self.images);
        let old = images.insert(reference.to_owned(), fresh);
        if let (Some(old), Some(image)) = (old, images.get_mut(reference)) {
            image.prefetched = old.prefetched;
        }
        self.save(&images);
    }

    /// A start needs it. One that is not ours stays nobody's.
    pub(super) fn used(&self, reference: &str) {
        self.change(reference, |image| image.last = now());
    }

    pub(super) fn prefetched(&self, reference: &str) {
        self.change(reference, |image| {
            image.last = now();
            image.prefetched = Some(image.last);
        });
    }

    pub(super) fn gone(&self, reference: &str) {
        let mut images = lock(&self.images);
        if images.remove(reference).is_some() {
            self.save(&images);
        }
    }

    /// The next to go while so much of the disk is free.
    pub(super) fn next_to_go(&self, free: f64, wanted: &BTreeSet<String>) -> Option<String> {
        next_to_go(now(), free, &lock(&self.images), wanted)
    }

    fn change(&self, reference: &str, change: impl FnOnce(&mut Use)) {
        let mut images = lock(&self.images);
        if let Some(image) = images.get_mut(reference) {
            change(image);
            self.save(&images);
        }
    }

    /// What is not written is forgotten at the next start, and then kept rather than removed.
    fn save(&self, images: &BTreeMap<String, Use>) {
        let written = || -> io::Result<()> {
            let temporary = self.path.with_extension("new");
            std::fs::write(&temporary, serde_json::to_vec(images)?)?;
            std::fs::rename(&temporary, &self.path)
        };
        if let Err(error) = written() {
            tracing::warn!(%error, "which images were pulled cannot be kept");
        }
    }
}

fn next_to_go(
    now: Wall,
    free: f64,
    images: &BTreeMap<String, Use>,
    wanted: &BTreeSet<String>,
) -> Option<String> {
    if free >= SHORT {
        return None;
    }
    let waited_for = |image: &Use| {
        let lately = |at: Wall| now.since(at) < PREFETCHED_FOR;
        free >= VERY_SHORT && image.prefetched.is_some_and(lately)
    };
    images
        .iter()
        .filter(|(reference, image)| !wanted.contains(*reference) && !waited_for(image))
        .min_by_key(|(_, image)| image.last)
        .map(|(reference, _)| reference.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = PREFETCHED_FOR;

    fn image(last: i64, prefetched: Option<i64>) -> Use {
        Use {
            last: Wall(last),
            prefetched: prefetched.map(Wall),
        }
    }

    // spec: WORK-56
    #[test]
    fn the_oldest_goes_first_and_what_is_wanted_or_waited_for_stays() {
        let images: BTreeMap<String, Use> = [
            ("young", image(3, None)),
            ("old", image(1, None)),
            ("live", image(0, None)),
            ("soon", image(2, Some(2))),
        ]
        .map(|(name, image)| (name.to_owned(), image))
        .into();
        let wanted = BTreeSet::from(["live".to_owned()]);
        let order = |now: i64, free: f64| {
            let (mut left, mut order) = (images.clone(), Vec::new());
            while let Some(next) = next_to_go(Wall(now), free, &left, &wanted) {
                left.remove(&next);
                order.push(next);
            }
            order
        };
        assert_eq!(order(10, 0.20), [""; 0]);
        assert_eq!(order(10, 0.19), ["old", "young"]);
        // A prefetched one is waited for a day, unless the disk is very short.
        assert_eq!(order(2 + DAY - 1, 0.19), ["old", "young"]);
        assert_eq!(order(2 + DAY, 0.19), ["old", "soon", "young"]);
        assert_eq!(order(10, 0.09), ["old", "soon", "young"]);
    }

    // spec: WORK-56
    #[test]
    fn what_was_pulled_is_remembered_and_nothing_else_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::open(dir.path());
        kept.used("foreign:1");
        kept.prefetched("foreign:1");
        assert_eq!(kept.next_to_go(0.0, &BTreeSet::new()), None);
        kept.pulled("ours:1");
        kept.prefetched("ours:1");
        kept.pulled("ours:1");
        let again = Kept::open(dir.path());
        assert_eq!(again.next_to_go(0.15, &BTreeSet::new()), None);
        let ours = Some("ours:1".to_owned());
        assert_eq!(again.next_to_go(0.05, &BTreeSet::new()), ours);
        again.gone("ours:1");
        let left = Kept::open(dir.path()).next_to_go(0.0, &BTreeSet::new());
        assert_eq!(left, None);
        // A file that cannot be read is no ground to remove anything.
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        let left = Kept::open(dir.path()).next_to_go(0.0, &BTreeSet::new());
        assert_eq!(left, None);
    }
}
