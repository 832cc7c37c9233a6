//! Decisions with their traces, dry runs and admissions.

use std::collections::BTreeMap;

use greenroom_placement::{Attempt, Code, Decision};
use greenroom_policy::effect::PlacementKind;
use greenroom_policy::getters::{Admission, Unplaceable};
use greenroom_types::NodeId;

use super::{Findings, listed};
use crate::format::code;
use crate::format::expect::{
    AdmissionExpect, AdmissionKind, AttemptExpect, DryRunExpect, TraceExpect,
};
use crate::format::names::JobPath;
use crate::world::{Answer, World};

pub(super) fn trace(world: &World, wanted: &TraceExpect, path: &str, findings: &mut Findings) {
    let Some(decision) = world.decisions.get(&wanted.job.job_id()) else {
        findings.add(
            path,
            format!("a decision about {}", wanted.job),
            "none was made".into(),
        );
        return;
    };
    findings.compare(&format!("{path}.kind"), wanted.kind, decision.kind, code);
    findings.compare(
        &format!("{path}.reason"),
        wanted.reason.clone(),
        decision.reason.clone(),
        Clone::clone,
    );
    let chosen = format!("{path}.chosen");
    findings.compare_node(
        world,
        &chosen,
        wanted.chosen.as_ref(),
        decision.node_id.as_ref(),
    );
    let Some(attempts) = &wanted.attempts else {
        return;
    };
    let found = decision
        .trace
        .as_ref()
        .map_or(&[][..], |trace| &trace.attempts[..]);
    if attempts.len() != found.len() {
        let tiers: Vec<String> = found
            .iter()
            .map(|attempt| {
                let tier = attempt.tier.as_ref().map_or("none", |tier| tier.as_str());
                format!("{tier} {}", code(&attempt.outcome))
            })
            .collect();
        findings.add(
            &format!("{path}.attempts"),
            format!("{} attempts", attempts.len()),
            format!("{}: {}", found.len(), tiers.join(", ")),
        );
        return;
    }
    for (index, (wanted, found)) in attempts.iter().zip(found).enumerate() {
        let path = format!("{path}.attempts[{index}]");
        check_attempt(world, wanted, found, &path, findings);
    }
}

fn check_attempt(
    world: &World,
    wanted: &AttemptExpect,
    found: &Attempt,
    path: &str,
    findings: &mut Findings,
) {
    findings.compare_found(
        &format!("{path}.tier"),
        wanted.tier.clone(),
        found.tier.clone(),
        ToString::to_string,
    );
    findings.compare(
        &format!("{path}.outcome"),
        wanted.outcome,
        found.outcome,
        code,
    );
    if wanted.filtered.as_ref().is_some_and(BTreeMap::is_empty) && !found.filtered.is_empty() {
        let found = found.filtered.iter();
        let found =
            found.map(|it| format!("{}: {}", world.purchases.name(&it.node), it.reason.name()));
        let found: Vec<String> = found.collect();
        let path = format!("{path}.filtered");
        findings.add(&path, "{}".to_owned(), format!("{{{}}}", found.join(", ")));
    }
    for (node, reason) in wanted.filtered.iter().flatten() {
        let path = format!("{path}.filtered.{node}");
        let reason = reason.name().to_owned();
        let Some(node_id) = world.resolve(node) else {
            findings.add(&path, reason, format!("{node} stands for no node now"));
            continue;
        };
        let why = found
            .filtered
            .iter()
            .find(|filtered| filtered.node == node_id)
            .map(|filtered| filtered.reason.name().to_owned());
        let survived = found.survivors.iter().any(|it| it.key.node == node_id);
        let found = match why {
            Some(why) => why,
            None if survived => "not filtered: it would do".to_owned(),
            None => "not looked at".to_owned(),
        };
        findings.compare(&path, Some(reason), found, Clone::clone);
    }
    let Some(survivors) = &wanted.survivors else {
        return;
    };
    let best: Vec<NodeId> = found
        .survivors
        .iter()
        .map(|survivor| survivor.key.node.clone())
        .collect();
    let first: Vec<Option<NodeId>> = survivors.iter().map(|node| world.resolve(node)).collect();
    // The first ones; none at all says that there is none.
    let fits = first.len() <= best.len()
        && (!first.is_empty() || best.is_empty())
        && first
            .iter()
            .zip(&best)
            .all(|(wanted, found)| wanted.as_ref() == Some(found));
    if !fits {
        let found = best.iter().map(|id| world.purchases.name(id));
        let path = format!("{path}.survivors");
        findings.add(&path, listed(survivors), listed(found));
    }
}

pub(super) fn dry_run(world: &World, wanted: &DryRunExpect, path: &str, findings: &mut Findings) {
    let Some(Answer::DryRun(answer)) = &world.last_dry_run else {
        findings.add(path, "a dry run".into(), "none was made".into());
        return;
    };
    let Some(run) = answer else {
        findings.add(path, code(&wanted.kind), "no such job".into());
        return;
    };
    let (kind, node, tier, shape) = match &run.decision {
        Decision::Place { node, tier, .. } => (PlacementKind::Place, Some(node), Some(tier), None),
        Decision::Provision { tier, shape, .. } => (
            PlacementKind::Provision,
            None,
            Some(tier),
            Some(shape.instance_type.clone()),
        ),
        Decision::Failure { .. } => (PlacementKind::Failure, None, None, None),
    };
    findings.compare(&format!("{path}.kind"), Some(wanted.kind), kind, code);
    findings.compare_node(world, &format!("{path}.node"), wanted.node.as_ref(), node);
    let tier = tier.cloned();
    findings.compare_found(
        &format!("{path}.tier"),
        wanted.tier.clone(),
        tier,
        ToString::to_string,
    );
    let path = format!("{path}.instanceType");
    findings.compare_found(&path, wanted.instance_type.clone(), shape, Clone::clone);
}

pub(super) fn admission(
    world: &World,
    wanted: &AdmissionExpect,
    path: &str,
    findings: &mut Findings,
) {
    let Some(Answer::Admission(bundle_id, answer)) = &world.last_admission else {
        findings.add(path, "an admission".into(), "none was asked for".into());
        return;
    };
    let (kind, found, unplaceable) = match &**answer {
        Admission::Ok { findings } => (AdmissionKind::Ok, findings, &[][..]),
        Admission::ValidationErrors { findings } => {
            (AdmissionKind::ValidationErrors, findings, &[][..])
        }
        Admission::NoCapacity {
            unplaceable,
            findings,
        } => (AdmissionKind::NoCapacity, findings, &unplaceable[..]),
    };
    findings.compare(&format!("{path}.kind"), Some(wanted.kind), kind, code);
    let place = |job: &Unplaceable| JobPath {
        bundle_id: bundle_id.clone(),
        replica_index: job.replica_index,
        job_name: job.job_name.clone(),
    };
    let places: Vec<String> = unplaceable
        .iter()
        .map(|job| place(job).to_string())
        .collect();
    let names = |list: &[JobPath]| list.iter().map(ToString::to_string).collect();
    let unplaceable = wanted.unplaceable.as_deref().map(names);
    any_order(
        &format!("{path}.unplaceable"),
        unplaceable,
        places,
        findings,
    );
    let found_codes = |list: &[greenroom_placement::Finding]| -> Vec<String> {
        list.iter().map(|finding| code(&finding.code)).collect()
    };
    let codes = |list: &[Code]| list.iter().map(code).collect();
    any_order(
        &format!("{path}.errors"),
        wanted.errors.as_deref().map(codes),
        found_codes(&found.errors),
        findings,
    );
    any_order(
        &format!("{path}.warnings"),
        wanted.warnings.as_deref().map(codes),
        found_codes(&found.warnings),
        findings,
    );
}

fn any_order(
    path: &str,
    wanted: Option<Vec<String>>,
    mut found: Vec<String>,
    findings: &mut Findings,
) {
    let Some(mut wanted) = wanted else { return };
    wanted.sort();
    found.sort();
    let show = |list: &Vec<String>| listed(list);
    findings.compare(path, Some(wanted), found, show);
}
