//! Where control planes are, as each member was told by the one beside it (CTRL). This is no part of
//! the replicated state: it must work without a quorum. Members of a cluster tell each other; a member
//! alone knows of its own.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use greenroom_types::{Millis, Mono, Now, Wall};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::files;

const FILE: &str = "control-planes.json";

/// Announcements, those of earlier runs included.
#[derive(Debug)]
pub(crate) struct Planes {
    member: String,
    path: PathBuf,
    known: Mutex<BTreeMap<String, Known>>,
    told: watch::Sender<Arc<Told>>,
    /// One change of the file at a time.
    writing: tokio::sync::Mutex<()>,
}

/// One announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    url: String,
    interval_ms: Option<u64>,
    announced_at: Wall,
    /// When it was last heard in this run; none for one of an earlier run (CTRL-05).
    heard: Option<Mono>,
}

/// What workers are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Grows with every change, over restarts.
    pub(crate) version: u64,
    /// The active member first.
    pub(crate) planes: Vec<Plane>,
}

/// The control plane beside one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plane {
    pub(crate) member: String,
    pub(crate) url: String,
    pub(crate) announced_at: Wall,
    pub(crate) interval_ms: u64,
    pub(crate) stale: bool,
    /// Its member is the primary.
    pub(crate) active: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Kept {
    version: u64,
    planes: BTreeMap<String, KeptPlane>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptPlane {
    url: String,
    interval_ms: Option<u64>,
    announced_at: Wall,
}

// === impl Planes ===

impl Planes {
    /// Reads what an earlier run kept. A file that cannot be read is told of and begun anew: whoever
    /// announces does so again.
    pub(crate) fn open(data_dir: &Path, member: &str) -> Self {
        let path = data_dir.join(FILE);
        let kept = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "announced control planes cannot be read and are forgotten");
                Kept::default()
            }),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "announced control planes cannot be read");
                }
                Kept::default()
            }
        };
        let known: BTreeMap<String, Known> = kept
            .planes
            .into_iter()
            .map(|(member, plane)| {
                let known = Known {
                    url: plane.url,
                    interval_ms: plane.interval_ms,
                    announced_at: plane.announced_at,
                    heard: None,
                };
                (member, known)
            })
            .collect();
        let told = told(kept.version, &known, member);
        Self {
            member: member.to_owned(),
            path,
            known: Mutex::new(known),
            told: watch::Sender::new(Arc::new(told)),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Records what the control plane beside this member says; an empty url withdraws it. True when
    /// that is news (CTRL-03).
    ///
    /// # Errors
    /// News could not be kept; nothing changed then.
    pub(crate) async fn announce(
        &self,
        now: Now,
        url: &str,
        interval: Option<Millis>,
    ) -> io::Result<bool> {
        let _turn = self.writing.lock().await;
        let announced = (!url.is_empty()).then(|| Known {
            url: url.to_owned(),
            interval_ms: interval.map(|interval| interval.0),
            announced_at: now.wall,
            heard: Some(now.mono),
        });
        let mut next = self.lock().clone();
        let former = match announced {
            Some(known) => next.insert(self.member.clone(), known),
            None => next.remove(&self.member),
        };
        let is_news = match (&former, next.get(&self.member)) {
            (Some(old), Some(new)) => (&old.url, old.interval_ms) != (&new.url, new.interval_ms),
            (None, None) => false,
            _ => true,
        };
        if !is_news {
            *self.lock() = next;
            return Ok(false);
        }
        let version = self.told.borrow().version + 1;
        let kept = Kept {
            version,
            planes: next
                .iter()
                .map(|(member, known)| {
                    let plane = KeptPlane {
                        url: known.url.clone(),
                        interval_ms: known.interval_ms,
                        announced_at: known.announced_at,
                    };
                    (member.clone(), plane)
                })
                .collect(),
        };
        let (path, bytes) = (self.path.clone(), serde_json::to_vec(&kept)?);
        tokio::task::spawn_blocking(move || files::replace(&path, &bytes))
            .await
            .map_err(io::Error::other)??;
        self.told
            .send_replace(Arc::new(told(version, &next, &self.member)));
        *self.lock() = next;
        Ok(true)
    }

    /// Everything that is known, as it stands now (CTRL-04).
    pub(crate) fn all(&self, now: Mono) -> Vec<Plane> {
        planes(&self.lock(), &self.member, |known| is_stale(known, now))
    }

    /// What workers are told, and its changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Told>> {
        self.told.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Workers are not told what is stale: renewing sends them nothing that could take it back.
fn told(version: u64, known: &BTreeMap<String, Known>, active: &str) -> Told {
    Told {
        version,
        planes: planes(known, active, |_| false),
    }
}

fn planes(
    known: &BTreeMap<String, Known>,
    active: &str,
    stale: impl Fn(&Known) -> bool,
) -> Vec<Plane> {
    let mut planes: Vec<Plane> = known
        .iter()
        .map(|(member, known)| Plane {
            member: member.clone(),
            url: known.url.clone(),
            announced_at: known.announced_at,
            interval_ms: known.interval_ms.unwrap_or_default(),
            stale: stale(known),
            active: member == active,
        })
        .collect();
    planes.sort_by_key(|plane| !plane.active);
    planes
}

fn is_stale(known: &Known, now: Mono) -> bool {
    match (known.heard, known.interval_ms) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(heard), Some(interval)) => (now - heard).0 >= interval.saturating_mul(3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Now {
        Now {
            mono: Mono(ms),
            wall: Wall(ms as i64),
        }
    }

    const URL: &str = "https://control.example:7000";

    // spec: CTRL-03, CTRL-04, CTRL-05
    #[tokio::test]
    async fn an_announcement_is_renewed_grows_stale_and_outlives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let planes = Planes::open(dir.path(), "m1");
        assert!(planes.all(Mono(0)).is_empty());
        let every = Some(Millis(1_000));
        assert!(planes.announce(at(10), URL, every).await.unwrap());
        assert!(
            !planes.announce(at(500), URL, every).await.unwrap(),
            "renewed"
        );
        assert_eq!(planes.subscribe().borrow().version, 1);
        let stale = |planes: &Planes, at| planes.all(Mono(at))[0].stale;
        assert!(!stale(&planes, 3_499));
        assert!(stale(&planes, 3_500), "three intervals");
        assert!(!planes.announce(at(4_000), URL, every).await.unwrap());
        assert!(!stale(&planes, 4_001));
        assert!(planes.announce(at(5_000), URL, None).await.unwrap());
        assert!(!stale(&planes, u64::MAX), "without an interval it never is");

        drop(planes);
        let planes = Planes::open(dir.path(), "m1");
        assert!(stale(&planes, 0), "until it is renewed");
        let kept = Arc::clone(&planes.subscribe().borrow());
        assert_eq!((kept.version, kept.planes[0].url.as_str()), (2, URL));
        assert!(kept.planes[0].active && !kept.planes[0].stale);
        assert!(
            !planes.announce(at(1), URL, None).await.unwrap(),
            "equal: no news"
        );
        assert!(!stale(&planes, 1));
        assert!(planes.announce(at(2), "", None).await.unwrap(), "withdrawn");
        assert!(!planes.announce(at(3), "", None).await.unwrap());
        drop(planes);
        let planes = Planes::open(dir.path(), "m1");
        assert!(planes.all(Mono(0)).is_empty());
        assert_eq!(planes.subscribe().borrow().version, 3);
    }

    #[tokio::test]
    async fn the_active_member_comes_first_and_others_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        Planes::open(dir.path(), "a")
            .announce(at(1), URL, None)
            .await
            .unwrap();
        let planes = Planes::open(dir.path(), "b");
        planes.announce(at(2), URL, None).await.unwrap();
        let members: Vec<String> = planes
            .all(Mono(2))
            .into_iter()
            .map(|it| it.member)
            .collect();
        assert_eq!(members, ["b", "a"]);
    }
}
