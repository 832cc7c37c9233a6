//! What operators decided is kept at the Manager (ACTS): one key beside the seat's, with everything that
//! the policy wants kept. Written before the operator is answered, read before the first decision.
//!
//! This file is the rules without input or output: what stands in the key, what is written next, who is
//! answered when. The driver performs it.
//!
//! One key and not one for each node: it is small, rarely written, and always whole. Every write expects
//! the revision that was seen last, and a control plane that takes over writes the key at once, so that
//! what its predecessor sent and what comes too late is refused.

use greenroom_policy::acts::Acts;
use greenroom_policy::{ApiError, ApiResult, CallFailure};
use greenroom_types::Millis;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// The key, in the namespace of the seat.
pub(crate) const KEY: &str = "acts";
/// What this program writes, and all that it reads.
const VERSION: u64 = 1;
/// Longest value; the Manager takes no longer one (KV-06). Some ten thousand cordons.
const BYTES_MAX: usize = 1024 * 1024;
/// A write that failed is tried again after this.
pub(crate) const AGAIN: Millis = Millis(5_000);

/// What is kept, what is to be, and who waits for it.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// Who writes: random, the same in all that this process hands on.
    by: String,
    kept: Acts,
    /// The key's revision, 0 where it is not there.
    revision: u64,
    wanted: Acts,
    /// Grows with everything that is wanted; so many are kept.
    news: u64,
    kept_news: u64,
    /// What is being written, and how new it is.
    under_way: Option<(Acts, u64)>,
    /// It is written even if nothing in it is new.
    claim: bool,
    /// Something was sent and not answered as done since: it may stand there.
    in_doubt: bool,
    /// What an instance before wanted and could not have kept, until the policy says anew what it wants.
    handed_on: Option<Unkept>,
    waiting: Vec<Waiting>,
}

/// What an instance wanted kept when it ended, where that is not known to be kept: the next one of this
/// process takes it up (ACTS-07).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unkept {
    pub(crate) wanted: Acts,
    /// The key's revision that was seen last.
    revision: u64,
    /// Who sent what may stand there since, without an answer.
    pub(crate) by: String,
}

// === impl Unkept ===

impl Unkept {
    /// What counts, where this is read at the Manager: what was wanted here, unless somebody else wrote
    /// there meanwhile. What it says is no sign of that: another one may have come back to the same.
    pub(crate) fn over(&self, read: Acts, revision: u64, by: &str) -> Acts {
        if revision == self.revision || by == self.by {
            return self.wanted.clone();
        }
        tracing::warn!(
            "what operators decided last here was not kept, and another control plane decided since; \
             what it decided counts"
        );
        read
    }
}

#[derive(Debug)]
struct Waiting {
    news: u64,
    answer: oneshot::Sender<ApiResult>,
    result: ApiResult,
}

/// A write of the key.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) value: Vec<u8>,
    /// The revision that is expected to stand there.
    pub(crate) expected: u64,
}

// === impl Keeper ===

impl Keeper {
    /// Begins with what was read. With `claim` it is written once at once, so that a predecessor's
    /// write that comes later finds another revision.
    pub(crate) fn new(by: String, kept: Acts, revision: u64, claim: bool) -> Self {
        Self {
            by,
            wanted: kept.clone(),
            kept,
            revision,
            claim,
            ..Self::default()
        }
    }

    /// With what an instance before could not have kept.
    pub(crate) fn after(mut self, handed_on: Option<Unkept>) -> Self {
        self.handed_on = handed_on;
        self
    }

    /// What is to be handed on at the end: nothing where everything is kept.
    pub(crate) fn unkept(&self) -> Option<Unkept> {
        if let Some(handed_on) = &self.handed_on {
            return Some(handed_on.clone());
        }
        if self.is_settled() || self.wanted == self.kept && !self.in_doubt {
            return None;
        }
        Some(Unkept {
            wanted: self.wanted.clone(),
            revision: self.revision,
            by: self.by.clone(),
        })
    }

    /// The policy wants this kept.
    pub(crate) fn want(&mut self, acts: Acts) {
        self.handed_on = None;
        if acts != self.wanted || self.claim {
            self.wanted = acts;
            self.news += 1;
        }
    }

    /// True when everything that is wanted is kept.
    pub(crate) const fn is_settled(&self) -> bool {
        self.news == self.kept_news
    }

    /// True while a write is under way.
    pub(crate) const fn is_writing(&self) -> bool {
        self.under_way.is_some()
    }

    /// The caller is answered when what he asked for is kept.
    pub(crate) fn hold(&mut self, answer: oneshot::Sender<ApiResult>, result: ApiResult) {
        self.waiting.push(Waiting {
            news: self.news,
            answer,
            result,
        });
    }

    /// What is to be written now; one write at a time.
    pub(crate) fn next(&mut self) -> Option<Write> {
        if self.under_way.is_some() || self.is_settled() {
            return None;
        }
        // What was sent without an answer may stand there all the same.
        if self.wanted == self.kept && !self.claim && !self.in_doubt {
            self.settle(self.news);
            return None;
        }
        let value = write(&self.wanted, &self.by);
        if value.len() > BYTES_MAX {
            let why = format!(
                "cordons, drains, spares and templates that were set by hand take {} bytes together, and \
                 the Manager keeps {BYTES_MAX}",
                value.len()
            );
            self.refuse(&why);
            return None;
        }
        self.in_doubt = true;
        self.under_way = Some((self.wanted.clone(), self.news));
        Some(Write {
            value,
            expected: self.revision,
        })
    }

    /// How the write ended. True when it is to be tried again.
    pub(crate) fn written(&mut self, result: Result<u64, CallFailure>) -> bool {
        let Some((acts, news)) = self.under_way.take() else {
            return false;
        };
        match result {
            Ok(revision) => {
                self.kept = acts;
                self.in_doubt = false;
                self.revision = revision;
                self.claim = false;
                self.settle(news);
                false
            }
            Err(failure) => {
                self.refuse(&failure.to_string());
                true
            }
        }
    }

    fn settle(&mut self, news: u64) {
        self.kept_news = news;
        let (done, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|it| it.news <= news);
        self.waiting = waiting;
        for it in done {
            // A caller that went away does not want his answer.
            let _ = it.answer.send(it.result);
        }
    }

    /// Nobody is told of success for what is not kept.
    fn refuse(&mut self, why: &str) {
        tracing::warn!(
            why,
            "what operators decided is not kept; it would end with this control plane"
        );
        for it in std::mem::take(&mut self.waiting) {
            let why = why.to_owned();
            let _ = it.answer.send(Err(ApiError::NotKept { why }));
        }
    }
}

// === the key's value ===

fn write(acts: &Acts, by: &str) -> Vec<u8> {
    json!({"version": VERSION, "acts": acts, "by": by})
        .to_string()
        .into_bytes()
}

/// Reads the key; the error says what is wrong with it.
pub(crate) fn read(value: &[u8]) -> Result<Acts, String> {
    let tree: Value =
        serde_json::from_slice(value).map_err(|error| format!("it is no JSON: {error}"))?;
    match tree["version"].as_u64() {
        Some(VERSION) => {}
        Some(other) => {
            return Err(format!(
                "it is of version {other}, and this control plane reads version {VERSION}"
            ));
        }
        None => return Err("it has no version".to_owned()),
    }
    serde_json::from_value(tree["acts"].clone()).map_err(|error| error.to_string())
}

/// Who wrote it; nobody where it does not say.
pub(crate) fn writer(value: &[u8]) -> String {
    let tree: Value = serde_json::from_slice(value).unwrap_or_default();
    tree["by"].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use greenroom_policy::ApiAnswer;
    use greenroom_policy::acts::NodeAct;

    use super::*;

    fn cordoned(nodes: &[&str]) -> Acts {
        let act = NodeAct {
            cordoned: true,
            ..NodeAct::default()
        };
        Acts {
            nodes: nodes.iter().map(|id| ((*id).into(), act.clone())).collect(),
            ..Acts::default()
        }
    }

    fn keeper_of(kept: &[&str], revision: u64, claim: bool) -> Keeper {
        Keeper::new("me".to_owned(), cordoned(kept), revision, claim)
    }

    fn asked(keeper: &mut Keeper) -> oneshot::Receiver<ApiResult> {
        let (answer, told) = oneshot::channel();
        keeper.hold(answer, Ok(ApiAnswer::Done));
        told
    }

    // spec: ACTS-02
    #[test]
    fn nobody_is_answered_before_what_he_asked_for_is_kept() {
        let mut keeper = keeper_of(&[], 0, false);
        assert!(keeper.is_settled());
        keeper.want(cordoned(&["a"]));
        let mut first = asked(&mut keeper);
        let write = keeper.next().unwrap();
        assert_eq!(write.expected, 0);
        assert_eq!(read(&write.value).unwrap(), cordoned(&["a"]));
        // One write at a time; what came meanwhile goes with the next.
        keeper.want(cordoned(&["a", "b"]));
        let mut second = asked(&mut keeper);
        assert!(keeper.next().is_none());
        assert!(first.try_recv().is_err());
        assert!(!keeper.written(Ok(7)));
        assert_eq!(first.try_recv().unwrap(), Ok(ApiAnswer::Done));
        assert!(second.try_recv().is_err());
        let write = keeper.next().unwrap();
        assert_eq!(write.expected, 7);
        assert!(!keeper.written(Ok(8)));
        assert_eq!(second.try_recv().unwrap(), Ok(ApiAnswer::Done));
        assert!(keeper.is_settled() && keeper.next().is_none());
        // Wanted and taken back before it was written: nothing is written.
        keeper.want(cordoned(&["b"]));
        keeper.want(cordoned(&["a", "b"]));
        let mut third = asked(&mut keeper);
        assert!(keeper.next().is_none());
        assert_eq!(third.try_recv().unwrap(), Ok(ApiAnswer::Done));
    }

    // spec: ACTS-02
    #[test]
    fn a_write_that_failed_is_told_and_tried_again() {
        let mut keeper = keeper_of(&[], 3, false);
        keeper.want(cordoned(&["a"]));
        let mut told = asked(&mut keeper);
        keeper.next().unwrap();
        assert!(keeper.written(Err(CallFailure::TimedOut)));
        let refused = told.try_recv().unwrap().unwrap_err();
        assert_eq!(refused.code(), "notKept");
        assert!(!keeper.is_settled());
        let again = keeper.next().unwrap();
        assert_eq!(read(&again.value).unwrap(), cordoned(&["a"]));
    }

    // spec: ACTS-07
    #[test]
    fn what_was_not_kept_is_handed_on_unless_somebody_else_decided() {
        let mut keeper = keeper_of(&["a"], 3, false);
        assert_eq!(keeper.unkept(), None);
        keeper.want(cordoned(&["a", "b"]));
        keeper.next().unwrap();
        keeper.want(cordoned(&["a", "b", "c"]));
        let unkept = keeper.unkept().unwrap();
        let wanted = cordoned(&["a", "b", "c"]);
        // It stands as before, or as sent from here; anything else is another's, whatever it says.
        for (read, revision, by, ours) in [
            (&["a"][..], 3, "", true),
            (&["a", "b"], 4, "me", true),
            (&["a"], 5, "other", false),
            (&["a", "b"], 5, "other", false),
            (&["a"], 5, "", false),
        ] {
            let read = cordoned(read);
            let expected = if ours { &wanted } else { &read };
            assert_eq!(unkept.over(read.clone(), revision, by), *expected);
        }
        // One that ends before its policy says anything hands on what it was handed.
        let next = keeper_of(&["a"], 3, false).after(Some(unkept.clone()));
        assert_eq!(next.unkept(), Some(unkept.clone()));
        let mut next = next;
        next.want(wanted.clone());
        let write = next.next().unwrap();
        assert_eq!(read(&write.value).unwrap(), wanted);
        assert_eq!(writer(&write.value), "me");
        assert!(!next.written(Ok(4)));
        assert_eq!(next.unkept(), None);
    }

    // spec: ACTS-06
    #[test]
    fn what_is_too_much_is_refused_and_not_cut() {
        let mut keeper = keeper_of(&[], 0, false);
        let many: Vec<String> = (0..30_000)
            .map(|at| format!("node-of-a-name-{at}"))
            .collect();
        let names: Vec<&str> = many.iter().map(String::as_str).collect();
        keeper.want(cordoned(&names));
        let mut told = asked(&mut keeper);
        assert!(keeper.next().is_none());
        let refused = told.try_recv().unwrap().unwrap_err().to_string();
        assert!(refused.contains("1048576"), "{refused}");
    }

    // spec: ACTS-03
    #[test]
    fn one_that_takes_over_writes_the_key_at_once() {
        let mut keeper = keeper_of(&["a"], 3, true);
        keeper.want(cordoned(&["a"]));
        assert_eq!(keeper.next().unwrap().expected, 3);
        keeper.written(Ok(4));
        keeper.want(cordoned(&["a"]));
        assert!(keeper.next().is_none());
    }

    // spec: ACTS-06
    #[test]
    fn what_cannot_be_read_is_an_error_that_says_why() {
        for (value, wanted) in [
            (&b"\xffrubbish"[..], "no JSON"),
            (b"{}", "no version"),
            (b"{\"version\": 2}", "version 2"),
            (
                b"{\"version\": 1, \"acts\": {\"nodes\": 7}}",
                "invalid type",
            ),
            (b"{\"version\": 1, \"acts\": {\"later\": 7}}", "later"),
        ] {
            let error = read(value).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
