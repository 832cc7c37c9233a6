//! Expectations that contradict themselves, or say the same twice. The first kind could only fail, and
//! the second would hold where two things were meant: two calls alike that one call meets.

use std::collections::BTreeSet;

use greenroom_policy::effect::PlacementKind;
use greenroom_policy::migration::MigrationPhase;

use super::Found;
use super::lists::twice;
use crate::format::expect::{
    AdmissionExpect, AdmissionKind, AttemptExpect, DryRunExpect, Happened, JobExpect, JobStanding,
    MigrationExpect, NodeCount, NodeExpect, NodeStanding, TraceExpect,
};
use crate::format::names::JobPath;

/// Only a bound job has a node.
pub(super) fn of_job(wanted: &JobExpect, path: &str, found: &mut Found<'_>) {
    let Some(state) = wanted.state else { return };
    if matches!(state, JobStanding::Placed | JobStanding::Running) {
        return;
    }
    let is_gone = state == JobStanding::Gone;
    for (key, is_there) in [
        ("node", wanted.node.is_some()),
        ("tier", wanted.tier.is_some()),
        ("pool", wanted.pool.is_some()),
        ("gpu", wanted.gpu.is_some()),
        ("restarts", wanted.restarts.is_some() && is_gone),
    ] {
        if is_there {
            let message = format!("a job that is {} has no {key}", state.name());
            found.add(format!("{path}.{key}"), message);
        }
    }
}

pub(super) fn of_node(wanted: &NodeExpect, path: &str, found: &mut Found<'_>) {
    if let Some(jobs) = &wanted.jobs {
        twice(jobs, &format!("{path}.jobs"), found);
    }
    if wanted.state != Some(NodeStanding::Gone) {
        return;
    }
    for (key, is_there) in [
        ("cordoned", wanted.cordoned.is_some()),
        ("spare", wanted.spare.is_some()),
        ("jobs", wanted.jobs.is_some()),
        ("tags", !wanted.tags.is_empty()),
    ] {
        if is_there {
            let message = format!("a node that is gone has no {key}");
            found.add(format!("{path}.{key}"), message);
        }
    }
}

/// The pairs of one key; `apart` are those that must not be together.
pub(super) fn of_pairs(
    list: &[(JobPath, JobPath)],
    path: &str,
    apart: Option<&[(JobPath, JobPath)]>,
    found: &mut Found<'_>,
) {
    let pairs: Vec<String> = list.iter().map(either_way).collect();
    twice(&pairs, path, found);
    let apart: BTreeSet<String> = apart.into_iter().flatten().map(either_way).collect();
    for (at, pair) in pairs.iter().enumerate() {
        if apart.contains(pair) {
            let message = format!("{pair} cannot be on one node and on two");
            found.add(format!("{path}[{at}]"), message);
        }
    }
}

fn either_way((a, b): &(JobPath, JobPath)) -> String {
    let (first, second) = if a <= b { (a, b) } else { (b, a) };
    format!("the pair {first} and {second}")
}

/// Counts of the same nodes.
pub(super) fn of_counts(list: &[NodeCount], path: &str, found: &mut Found<'_>) {
    let kinds: Vec<String> = list
        .iter()
        .map(
            |NodeCount {
                 pool,
                 tier,
                 spare,
                 n: _,
             }| {
                let mut words = Vec::new();
                words.extend(pool.iter().map(|pool| format!("pool {pool}")));
                words.extend(tier.iter().map(|tier| format!("tier {tier}")));
                words.extend(spare.iter().map(|spare| format!("spare {spare}")));
                match words.len() {
                    0 => "the count of all nodes".to_owned(),
                    _ => format!("the count of {}", words.join(", ")),
                }
            },
        )
        .collect();
    twice(&kinds, path, found);
}

pub(super) fn of_happened(wanted: &Happened, path: &str, found: &mut Found<'_>) {
    let list = if wanted.below_list { ".list" } else { "" };
    for (at, item) in wanted.list.iter().enumerate() {
        let path = format!("{path}{list}[{at}]");
        if wanted.in_order {
            if item.times == 0 {
                let message = "none in an order holds whatever happens: write it in a list without";
                found.add(format!("{path}.times"), message);
            }
            continue;
        }
        let mut before = wanted.list[..at].iter();
        if before.any(|it| it.name == item.name && it.fields == item.fields) {
            let message = format!(
                "the same {} stands twice and one meets both: write it once, with times",
                item.name
            );
            found.add(path, message);
        }
    }
}

pub(super) fn of_migration(wanted: &MigrationExpect, path: &str, found: &mut Found<'_>) {
    let is_other = |phase| phase != MigrationPhase::Aborted;
    if wanted.abort_reason.is_some() && wanted.phase.is_some_and(is_other) {
        let message = "only a migration that is aborted has a reason";
        found.add(format!("{path}.abortReason"), message);
    }
}

pub(super) fn of_trace(wanted: &TraceExpect, path: &str, found: &mut Found<'_>) {
    let is_failure = wanted.kind.map(|kind| kind == PlacementKind::Failure);
    if wanted.reason.is_some() && (is_failure == Some(false) || wanted.chosen.is_some()) {
        let message = "only a decision that found no place has a reason";
        found.add(format!("{path}.reason"), message);
    }
    if wanted.chosen.is_some() && is_failure == Some(true) {
        let message = "a decision that found no place has chosen none";
        found.add(format!("{path}.chosen"), message);
    }
    for (at, attempt) in wanted.attempts.iter().flatten().enumerate() {
        of_attempt(attempt, &format!("{path}.attempts[{at}]"), found);
    }
}

fn of_attempt(wanted: &AttemptExpect, path: &str, found: &mut Found<'_>) {
    let survivors = wanted.survivors.as_deref().unwrap_or_default();
    twice(survivors, &format!("{path}.survivors"), found);
    for (at, node) in survivors.iter().enumerate() {
        if wanted
            .filtered
            .as_ref()
            .is_some_and(|it| it.contains_key(node))
        {
            let message = format!("{node} is among those left out");
            found.add(format!("{path}.survivors[{at}]"), message);
        }
    }
}

pub(super) fn of_dry_run(wanted: &DryRunExpect, path: &str, found: &mut Found<'_>) {
    let kind = wanted.kind;
    for (key, is_there, fits) in [
        ("node", wanted.node.is_some(), kind == PlacementKind::Place),
        (
            "tier",
            wanted.tier.is_some(),
            kind != PlacementKind::Failure,
        ),
        (
            "instanceType",
            wanted.instance_type.is_some(),
            kind == PlacementKind::Provision,
        ),
    ] {
        if is_there && !fits {
            let message = format!("the answer {} has no {key}", crate::format::code(&kind));
            found.add(format!("{path}.{key}"), message);
        }
    }
}

pub(super) fn of_admission(wanted: &AdmissionExpect, path: &str, found: &mut Found<'_>) {
    let kind = wanted.kind;
    for (key, count, fits) in [
        (
            "unplaceable",
            wanted.unplaceable.as_ref().map(Vec::len),
            kind == AdmissionKind::NoCapacity,
        ),
        (
            "errors",
            wanted.errors.as_ref().map(Vec::len),
            kind == AdmissionKind::ValidationErrors,
        ),
    ] {
        let message = match (count, fits) {
            (Some(0), true) => "that has some",
            (Some(1..), false) => "that has none",
            _ => continue,
        };
        let message = format!(
            "the answer is {}, and {message}",
            crate::format::code(&kind)
        );
        found.add(format!("{path}.{key}"), message);
    }
    let unplaceable = wanted.unplaceable.as_deref().unwrap_or_default();
    twice(unplaceable, &format!("{path}.unplaceable"), found);
}
