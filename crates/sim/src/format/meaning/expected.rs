//! Expectations: every name that they have.
//!
//! An expectation about what is nowhere would hold or fail whatever the policy does. The list of keys
//! here is that of [`Expect`], taken apart so that a new one cannot be forgotten. What contradicts itself
//! is looked at in [`contradictions`].

use std::collections::BTreeMap;

use greenroom_placement::FailureReason;
use greenroom_types::bundle::Bundle;
use greenroom_types::{PoolName, TierName, tree};
use serde_json::{Map, Value};

use super::{Found, contradictions};
use crate::format::expect::{
    AdmissionExpect, AttemptExpect, DrainExpect, DryRunExpect, Expect, Happened, JobExpect,
    MigrationExpect, NodeCount, NodeExpect, TraceExpect,
};
use crate::format::known::{Known, job_in};
use crate::format::names::JobPath;
use crate::served::leaf::words;
use crate::served::{self, Names};

/// What was asked by the steps before.
pub(super) struct Answers<'a> {
    /// The bundle of the last admission.
    pub(super) admitted: Option<&'a Bundle>,
    /// There was a dry run.
    pub(super) dry_run: bool,
}

/// All that an expectation names and the scenario has not.
pub(super) fn faults(
    expect: &Expect,
    path: &str,
    known: &Known<'_>,
    answers: &Answers<'_>,
    found: &mut Found<'_>,
) {
    let Expect {
        jobs,
        same_node,
        different_node,
        different_az,
        different_cloud,
        nodes,
        node_count,
        is_list_of_counts,
        calls,
        callbacks,
        metrics,
        drain,
        migration,
        trace,
        dry_run,
        admission,
        pending,
        spares,
        bundle,
        invariants: _,
    } = expect;
    for (job, wanted) in jobs {
        of_job(job, wanted, &format!("{path}.jobs.{job}"), known, found);
    }
    for (key, list) in [
        ("sameNode", same_node),
        ("differentNode", different_node),
        ("differentAz", different_az),
        ("differentCloud", different_cloud),
    ] {
        let path = format!("{path}.{key}");
        of_pairs(list, &path, known, found);
        let apart = (key == "sameNode").then_some(&different_node[..]);
        contradictions::of_pairs(list, &path, apart, found);
    }
    for (node, wanted) in nodes {
        let path = format!("{path}.nodes.{node}");
        found.look(&path, known.node(node));
        of_node(wanted, &path, known, found);
    }
    contradictions::of_counts(node_count, &format!("{path}.nodeCount"), found);
    for (at, wanted) in node_count.iter().enumerate() {
        let path = match is_list_of_counts {
            false => format!("{path}.nodeCount"),
            true => format!("{path}.nodeCount[{at}]"),
        };
        of_count(wanted, &path, known, found);
    }
    if let Some(wanted) = calls {
        of_happened(
            wanted,
            served::calls(),
            &format!("{path}.calls"),
            known,
            found,
        );
    }
    if let Some(wanted) = callbacks {
        let path = format!("{path}.callbacks");
        of_happened(wanted, served::callbacks(), &path, known, found);
    }
    of_metrics(metrics, &format!("{path}.metrics"), known, found);
    if let Some(wanted) = drain {
        of_drain(wanted, &format!("{path}.drain"), known, found);
    }
    if let Some(wanted) = migration {
        of_migration(wanted, &format!("{path}.migration"), known, found);
    }
    if let Some(wanted) = trace {
        of_trace(wanted, &format!("{path}.trace"), known, found);
    }
    if let Some(wanted) = dry_run {
        of_dry_run(wanted, &format!("{path}.dryRun"), known, answers, found);
    }
    if let Some(wanted) = admission {
        of_admission(wanted, &format!("{path}.admission"), answers, found);
    }
    for job in pending.keys() {
        found.look(format!("{path}.pending.{job}"), known.job(job));
    }
    if let Some(wanted) = spares {
        let path = format!("{path}.spares.pool");
        found.look(path, known.settings_pool(&wanted.pool));
    }
    if let Some(wanted) = bundle {
        found.look(format!("{path}.bundle.id"), known.bundle(&wanted.id));
    }
}

fn of_job(job: &JobPath, wanted: &JobExpect, path: &str, known: &Known<'_>, found: &mut Found<'_>) {
    let JobExpect {
        state: _,
        node,
        tier,
        pool,
        gpu: _,
        restarts: _,
    } = wanted;
    found.look(path, known.job(job));
    if let Some(node) = node {
        found.look(format!("{path}.node"), known.node(node));
    }
    of_place(pool.as_ref(), tier.as_ref(), path, known, found);
    contradictions::of_job(wanted, path, found);
}

/// A pool, a tier, or a tier of a pool.
fn of_place(
    pool: Option<&PoolName>,
    tier: Option<&TierName>,
    path: &str,
    known: &Known<'_>,
    found: &mut Found<'_>,
) {
    let is_pool = pool.map_or(Ok(()), |pool| known.pool(pool));
    let tier_of = pool.filter(|_| is_pool.is_ok());
    found.look(format!("{path}.pool"), is_pool);
    if let Some(tier) = tier {
        let is_tier = known.tier(tier).and_then(|()| known.tier_in(tier, tier_of));
        found.look(format!("{path}.tier"), is_tier);
    }
}

fn of_pairs(list: &[(JobPath, JobPath)], path: &str, known: &Known<'_>, found: &mut Found<'_>) {
    for (at, (a, b)) in list.iter().enumerate() {
        found.look(format!("{path}[{at}][0]"), known.job(a));
        found.look(format!("{path}[{at}][1]"), known.job(b));
        if a == b {
            found.add(
                format!("{path}[{at}]"),
                format!("{a} is compared with itself"),
            );
        }
    }
}

fn of_node(wanted: &NodeExpect, path: &str, known: &Known<'_>, found: &mut Found<'_>) {
    let NodeExpect {
        state: _,
        cordoned: _,
        spare: _,
        jobs,
        tags,
    } = wanted;
    contradictions::of_node(wanted, path, found);
    for (key, value) in tags {
        let is_known = match value {
            Some(value) => known.tag(key, value),
            None => known.tag_name(key),
        };
        found.look(format!("{path}.tags.{key}"), is_known);
    }
    for (at, job) in jobs.iter().flatten().enumerate() {
        found.look(format!("{path}.jobs[{at}]"), known.job(job));
    }
}

fn of_count(wanted: &NodeCount, path: &str, known: &Known<'_>, found: &mut Found<'_>) {
    let (pool, tier) = (wanted.pool.as_ref(), wanted.tier.as_ref());
    of_place(pool, tier, path, known, found);
}

fn of_happened(
    wanted: &Happened,
    names: &Names,
    path: &str,
    known: &Known<'_>,
    found: &mut Found<'_>,
) {
    let list = if wanted.below_list { ".list" } else { "" };
    contradictions::of_happened(wanted, path, found);
    let look = |kind: &str, name: &str| known.field(kind, name);
    for (index, item) in wanted.list.iter().enumerate() {
        for (below, message) in names.faults(&item.name, &item.fields, &look) {
            found.add(format!("{path}{list}[{index}]{below}"), message);
        }
    }
}

fn of_metrics(
    wanted: &BTreeMap<String, Value>,
    path: &str,
    known: &Known<'_>,
    found: &mut Found<'_>,
) {
    if wanted.is_empty() {
        return;
    }
    let look = |kind: &str, name: &str| known.field(kind, name);
    let wanted: Map<String, Value> = wanted.clone().into_iter().collect();
    for (below, message) in served::metric_faults(&Value::Object(wanted), &look) {
        found.add(format!("{path}{below}"), message);
    }
}

fn of_drain(wanted: &DrainExpect, path: &str, known: &Known<'_>, found: &mut Found<'_>) {
    found.look(format!("{path}.node"), known.node(&wanted.node));
    for job in wanted.jobs.iter().flat_map(BTreeMap::keys) {
        found.look(format!("{path}.jobs.{job}"), known.job(job));
    }
}

fn of_migration(wanted: &MigrationExpect, path: &str, known: &Known<'_>, found: &mut Found<'_>) {
    found.look(format!("{path}.job"), known.job(&wanted.job));
    contradictions::of_migration(wanted, path, found);
    if let Some(target) = &wanted.target {
        found.look(format!("{path}.target"), known.node(target));
    }
}

fn of_trace(wanted: &TraceExpect, path: &str, known: &Known<'_>, found: &mut Found<'_>) {
    found.look(format!("{path}.job"), known.job(&wanted.job));
    contradictions::of_trace(wanted, path, found);
    if let Some(reason) = &wanted.reason {
        let reasons = words::<FailureReason>();
        if !reasons.contains(&reason.as_str()) {
            let message = tree::unknown_word(reason, &reasons);
            found.add(format!("{path}.reason"), message);
        }
    }
    if let Some(node) = &wanted.chosen {
        found.look(format!("{path}.chosen"), known.node(node));
    }
    for (at, attempt) in wanted.attempts.iter().flatten().enumerate() {
        let path = format!("{path}.attempts[{at}]");
        let AttemptExpect {
            tier,
            outcome: _,
            filtered,
            survivors,
        } = attempt;
        if let Some(tier) = tier {
            found.look(format!("{path}.tier"), known.tier(tier));
        }
        for node in filtered.iter().flat_map(BTreeMap::keys) {
            found.look(format!("{path}.filtered.{node}"), known.node(node));
        }
        for (at, node) in survivors.iter().flatten().enumerate() {
            found.look(format!("{path}.survivors[{at}]"), known.node(node));
        }
    }
}

fn of_dry_run(
    wanted: &DryRunExpect,
    path: &str,
    known: &Known<'_>,
    answers: &Answers<'_>,
    found: &mut Found<'_>,
) {
    if !answers.dry_run {
        found.add(path, "no step before asks for a dry run");
    }
    contradictions::of_dry_run(wanted, path, found);
    if let Some(node) = &wanted.node {
        found.look(format!("{path}.node"), known.node(node));
    }
    if let Some(tier) = &wanted.tier {
        found.look(format!("{path}.tier"), known.tier(tier));
    }
    if let Some(name) = &wanted.instance_type {
        found.look(format!("{path}.instanceType"), known.instance_type(name));
    }
}

fn of_admission(
    wanted: &AdmissionExpect,
    path: &str,
    answers: &Answers<'_>,
    found: &mut Found<'_>,
) {
    let Some(bundle) = answers.admitted else {
        found.add(path, "no step before asks for an admission");
        return;
    };
    contradictions::of_admission(wanted, path, found);
    for (at, job) in wanted.unplaceable.iter().flatten().enumerate() {
        let path = format!("{path}.unplaceable[{at}]");
        if job.bundle_id != bundle.bundle_id {
            let message = format!(
                "the last admission is of bundle {:?}, not of {:?}",
                bundle.bundle_id, job.bundle_id
            );
            found.add(path, message);
        } else {
            found.look(path, job_in(job, std::iter::once(bundle)));
        }
    }
}
