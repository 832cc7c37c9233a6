//! What is held and released: whether the kinds go with the node or job to which they are confined, and
//! whether there is anything to release (SCEN-09).

use super::Found;
use super::lists::twice;
use crate::format::action::{Action, HoldKind};
use crate::format::code;
use crate::format::names::{NodeRef, Subject};
use crate::format::{Deed, Step};

/// What the steps before hold.
#[derive(Debug, Default)]
pub(super) struct Held<'a> {
    rules: Vec<(HoldKind, Option<&'a Subject>)>,
}

/// Whom an answer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// A machine that the policy bought.
    Bought,
    /// Any node.
    Node,
    /// An instance of a job, and so its node too.
    Job,
}

const fn about(kind: HoldKind) -> About {
    match kind {
        HoldKind::NodeBooting | HoldKind::NodeStarted | HoldKind::CreateOutcome => About::Bought,
        HoldKind::NodeStopped | HoldKind::Inventory | HoldKind::ImagePulls => About::Node,
        HoldKind::JobRunning
        | HoldKind::JobStopped
        | HoldKind::Prepared
        | HoldKind::MigrationSignals => About::Job,
    }
}

/// What a step says of it by itself.
pub(super) fn alone(step: &Step, path: &str, found: &mut Found<'_>) {
    let Deed::Act(Action::Hold(kinds) | Action::Release(kinds)) = &step.deed else {
        return;
    };
    let key = match &step.deed {
        Deed::Act(Action::Hold(_)) => "hold",
        _ => "release",
    };
    if kinds.is_empty() {
        found.add(format!("{path}.{key}"), "name at least one kind");
    }
    let words: Vec<String> = kinds.iter().map(code).collect();
    twice(&words, &format!("{path}.{key}"), found);
    for (at, kind) in kinds.iter().enumerate() {
        let message = match (&step.only, about(*kind)) {
            (Some(Subject::Job(job)), About::Bought | About::Node) => format!(
                "{} is about a node, and only names a job; the node of that job is '@{job}'",
                words[at]
            ),
            (Some(Subject::Node(NodeRef::Id(id))), About::Bought) => format!(
                "{} is about machines that the policy buys; node {id} is none: write \
                 @BUNDLE/REPLICA/JOB, @spare/POOL/N or @tier/POOL/TIER/N",
                words[at]
            ),
            _ => continue,
        };
        found.add(format!("{path}.{key}[{at}]"), message);
    }
}

// === impl Held ===

impl<'a> Held<'a> {
    pub(super) fn hold(&mut self, kinds: &[HoldKind], only: Option<&'a Subject>) {
        self.rules.extend(kinds.iter().map(|kind| (*kind, only)));
    }

    /// Takes down what is released and not held. After a release of all nothing of the kind is held;
    /// one of a single node or job leaves the rest.
    pub(super) fn release(
        &mut self,
        kinds: &[HoldKind],
        only: Option<&'a Subject>,
        path: &str,
        found: &mut Found<'_>,
    ) {
        for (at, kind) in kinds.iter().enumerate() {
            let mut held = self.rules.iter().filter(|(it, _)| it == kind);
            if !held.any(|(_, other)| may_meet(*other, only)) {
                let word = code(kind);
                let message = match only {
                    None => format!("no step before holds {word}"),
                    Some(only) => format!("no step before holds {word} of {only}"),
                };
                found.add(format!("{path}.release[{at}]"), message);
            }
            if only.is_none() {
                self.rules.retain(|(it, _)| it != kind);
            }
        }
    }
}

/// Whether something may be about both. Only two jobs, or two nodes by their ids, are apart for certain.
fn may_meet(a: Option<&Subject>, b: Option<&Subject>) -> bool {
    match (a, b) {
        (Some(Subject::Job(a)), Some(Subject::Job(b))) => a == b,
        (Some(Subject::Node(NodeRef::Id(a))), Some(Subject::Node(NodeRef::Id(b)))) => a == b,
        _ => true,
    }
}
