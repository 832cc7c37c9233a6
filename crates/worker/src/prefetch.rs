//! Pulls images ahead of jobs: a few at a time, with room to spare, each for a bounded time
//! (PREF-03, PREF-04).
//!
//! A batch always ends with one result for each of its references. How an image is pulled and kept is
//! the business of its [`ImageSource`]; that two who want the same image share one pull, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use greenroom_types::stream::PrefetchResult;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::node::Input;

/// A pull may take so long.
const PULL_MAX: Duration = Duration::from_secs(15 * 60);
/// Time between two looks at the disk while something is pulled onto it.
const LOOK_AT_DISK: Duration = Duration::from_secs(2);

/// Where images come from and where they are kept.
#[async_trait]
pub(crate) trait ImageSource: Send + Sync {
    /// It is complete on disk.
    async fn holds(&self, reference: &str) -> bool;
    /// Makes it local; joins a pull of it that is under way. Given up, it leaves nothing half-made.
    async fn pull(&self, reference: &str) -> Result<(), PullError>;
    /// Whether the disk has room for more, or in words why not.
    fn room(&self) -> Result<(), String>;
    /// A job will want it, and has not come yet.
    fn prefetched(&self, reference: &str);
    /// Returns when no start waits for a pull: those come first.
    async fn quiet(&self);
    /// Makes room on a short disk by what is of no use, never by what is wanted; true when something
    /// went (WORK-56).
    async fn tidy(&self, wanted: &watch::Receiver<BTreeSet<String>>) -> bool;
}

/// Why an image is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PullError {
    /// Stable token.
    pub(crate) token: &'static str,
    pub(crate) text: String,
}

/// Pulls the images of batches.
pub(crate) struct Prefetcher {
    /// None where the runtime keeps no images.
    source: Option<Arc<dyn ImageSource>>,
    slots: Arc<Semaphore>,
    done: mpsc::Sender<Input>,
    /// Rung when images may have come.
    arrived: Arc<Notify>,
}

// === impl Prefetcher ===

impl Prefetcher {
    pub(crate) fn new(
        source: Option<Arc<dyn ImageSource>>,
        done: mpsc::Sender<Input>,
        arrived: Arc<Notify>,
        parallel: usize,
    ) -> Self {
        Self {
            source,
            slots: Arc::new(Semaphore::new(parallel.max(1))),
            done,
            arrived,
        }
    }

    /// Begins a batch; its results come as an input, then the images as another.
    pub(crate) fn begin(&self, batch_id: String, image_refs: Vec<String>) {
        let (source, slots) = (self.source.clone(), self.slots.clone());
        let (done, arrived) = (self.done.clone(), self.arrived.clone());
        tokio::spawn(async move {
            let results = batch(source.as_deref(), &slots, &image_refs).await;
            let input = Input::Prefetched { batch_id, results };
            let _ = done.send(input).await;
            arrived.notify_one();
        });
    }
}

async fn batch(
    source: Option<&dyn ImageSource>,
    slots: &Semaphore,
    image_refs: &[String],
) -> Vec<PrefetchResult> {
    let distinct: BTreeSet<&str> = image_refs.iter().map(String::as_str).collect();
    let outcomes: BTreeMap<&str, Result<(), PullError>> = match source {
        Some(source) => {
            let pull = async |one| {
                let pulled = prefetch(source, slots, one).await;
                if pulled.is_ok() {
                    source.prefetched(one);
                }
                (one, pulled)
            };
            join_all(distinct.into_iter().map(pull))
                .await
                .into_iter()
                .collect()
        }
        None => {
            let unsupported = PullError {
                token: "unsupported_ref",
                text: "this node runs jobs as processes and keeps no container images".to_owned(),
            };
            let fail = |one| (one, Err(unsupported.clone()));
            distinct.into_iter().map(fail).collect()
        }
    };
    let results = image_refs.iter().map(|image_ref| {
        let error = match outcomes.get(image_ref.as_str()) {
            Some(Err(error)) => Some(error),
            _ => None,
        };
        PrefetchResult {
            image_ref: image_ref.clone(),
            ok: error.is_none(),
            error: error.map(|e| e.token.to_owned()).unwrap_or_default(),
            text: error.map(|e| e.text.clone()).unwrap_or_default(),
        }
    });
    results.collect()
}

async fn prefetch(
    source: &dyn ImageSource,
    slots: &Semaphore,
    reference: &str,
) -> Result<(), PullError> {
    if source.holds(reference).await {
        return Ok(());
    }
    let Ok(_slot) = slots.acquire().await else {
        return Err(PullError {
            token: "pull_failed",
            text: "the worker is ending".to_owned(),
        });
    };
    // It may have come while this one waited.
    if source.holds(reference).await {
        return Ok(());
    }
    let disk_full = |text| PullError {
        token: "disk_full",
        text,
    };
    source.quiet().await;
    source.room().map_err(disk_full)?;
    tokio::select! {
        pulled = source.pull(reference) => pulled,
        text = room_is_lost(source) => Err(disk_full(text)),
        () = tokio::time::sleep(PULL_MAX) => Err(PullError {
            token: "timeout",
            text: format!("it was not there after {} min", PULL_MAX.as_secs() / 60),
        }),
    }
}

async fn room_is_lost(source: &dyn ImageSource) -> String {
    loop {
        tokio::time::sleep(LOOK_AT_DISK).await;
        if let Err(text) = source.room() {
            return text;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Pulls begin, and end when the test lets them.
    #[derive(Default)]
    struct Fake {
        held: Mutex<BTreeSet<String>>,
        full: AtomicBool,
        began: Mutex<Vec<String>>,
        waited_for: Mutex<Vec<String>>,
        /// Starts that wait for a pull.
        urgent: watch::Sender<usize>,
        go: Notify,
    }

    /// As many as by default.
    const PULLS_MAX: usize = 2;

    #[async_trait]
    impl ImageSource for Fake {
        async fn holds(&self, reference: &str) -> bool {
            self.held.lock().unwrap().contains(reference)
        }
        async fn pull(&self, reference: &str) -> Result<(), PullError> {
            self.began.lock().unwrap().push(reference.to_owned());
            if reference.starts_with("stuck") {
                std::future::pending::<()>().await;
            }
            self.go.notified().await;
            if reference.starts_with("missing") {
                return Err(PullError {
                    token: "not_found",
                    text: "no such image".to_owned(),
                });
            }
            self.held.lock().unwrap().insert(reference.to_owned());
            Ok(())
        }
        fn prefetched(&self, reference: &str) {
            self.waited_for.lock().unwrap().push(reference.to_owned());
        }
        async fn quiet(&self) {
            let mut urgent = self.urgent.subscribe();
            urgent.wait_for(|waiting| *waiting == 0).await.unwrap();
        }
        async fn tidy(&self, _: &watch::Receiver<BTreeSet<String>>) -> bool {
            false
        }
        fn room(&self) -> Result<(), String> {
            if self.full.load(Ordering::Relaxed) {
                return Err("no room".to_owned());
            }
            Ok(())
        }
    }

    async fn run(fake: &Fake, slots: &Semaphore, refs: &[&str]) -> Vec<(String, String)> {
        let refs: Vec<String> = refs.iter().map(|r| (*r).to_owned()).collect();
        let results = batch(Some(fake), slots, &refs).await;
        let told = results.into_iter().map(|r| {
            assert_eq!(r.ok, r.error.is_empty());
            (r.image_ref, r.error)
        });
        told.collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
        expected.iter().map(owned).collect()
    }

    // spec: PREF-01, PREF-03
    #[tokio::test]
    async fn results_are_in_order_one_failure_stays_alone_and_duplicates_are_pulled_once() {
        let (fake, slots) = (Fake::default(), Semaphore::new(PULLS_MAX));
        fake.held.lock().unwrap().insert("held".to_owned());
        let refs = ["b", "held", "missing", "a", "b"];
        let pulled = run(&fake, &slots, &refs);
        let release = async {
            for _ in 0..3 {
                fake.go.notify_one();
                tokio::task::yield_now().await;
            }
        };
        let (results, ()) = tokio::join!(pulled, release);
        let missing = ("missing", "not_found");
        let expected = [("b", ""), ("held", ""), missing, ("a", ""), ("b", "")];
        assert_eq!(results, pairs(&expected));
        let mut began = fake.began.lock().unwrap().clone();
        began.sort();
        assert_eq!(began, ["a", "b", "missing"]);
        let mut waited_for = fake.waited_for.lock().unwrap().clone();
        waited_for.sort();
        assert_eq!(waited_for, ["a", "b", "held"]);
    }

    // spec: PREF-04
    #[tokio::test]
    async fn a_start_that_waits_for_its_image_goes_first() {
        let (fake, slots) = (Fake::default(), Semaphore::new(PULLS_MAX));
        fake.urgent.send_replace(1);
        let watch = async {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            assert_eq!(fake.began.lock().unwrap().len(), 0);
            fake.urgent.send_replace(0);
            fake.go.notify_one();
        };
        let (results, ()) = tokio::join!(run(&fake, &slots, &["a"]), watch);
        assert_eq!(results, pairs(&[("a", "")]));
    }

    // spec: PREF-04
    #[tokio::test]
    async fn two_are_pulled_at_a_time() {
        let (fake, slots) = (Fake::default(), Semaphore::new(PULLS_MAX));
        let (left, right) = (["a", "b"], ["c", "d"]);
        let two = async { tokio::join!(run(&fake, &slots, &left), run(&fake, &slots, &right)) };
        let watch = async {
            for most in [2, 3, 4, 4] {
                // Everybody has come as far as he can.
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(fake.began.lock().unwrap().len(), most);
                fake.go.notify_one();
            }
        };
        tokio::join!(two, watch);
    }

    // spec: PREF-04
    #[tokio::test(start_paused = true)]
    async fn a_pull_ends_after_its_time_and_when_the_disk_is_full() {
        let (fake, slots) = (Fake::default(), Semaphore::new(PULLS_MAX));
        let began = tokio::time::Instant::now();
        let results = run(&fake, &slots, &["stuck"]).await;
        assert_eq!(results, pairs(&[("stuck", "timeout")]));
        assert_eq!(began.elapsed(), PULL_MAX);
        // The disk fills up while one is pulled; the next is not begun.
        let filling = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            fake.full.store(true, Ordering::Relaxed);
        };
        let (results, ()) = tokio::join!(run(&fake, &slots, &["stuck2"]), filling);
        assert_eq!(results, pairs(&[("stuck2", "disk_full")]));
        let results = run(&fake, &slots, &["a"]).await;
        assert_eq!(results, pairs(&[("a", "disk_full")]));
        assert!(!fake.began.lock().unwrap().contains(&"a".to_owned()));
    }

    // spec: PREF-07
    #[tokio::test]
    async fn without_images_every_reference_is_unsupported() {
        let refs = ["a".to_owned(), "b".to_owned()];
        let results = batch(None, &Semaphore::new(PULLS_MAX), &refs).await;
        let errors: Vec<&str> = results.iter().map(|r| r.error.as_str()).collect();
        assert_eq!(errors, ["unsupported_ref", "unsupported_ref"]);
    }
}
