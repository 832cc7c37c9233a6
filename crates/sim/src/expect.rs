//! Whether what a step expects holds (SCEN-10), and if not, where in the file and with which two
//! values (SCEN-11).
//!
//! This file walks through the keys; matching of nested values stands in [`value`], calls and
//! callbacks in [`happened`], decisions and answers in [`decided`].

mod decided;
mod happened;
mod value;

use greenroom_policy::Policy;
use greenroom_policy::effect::{MirrorState, NodeView};
use greenroom_policy::job::{BindingState, Standing};
use greenroom_types::job::JobState;
use greenroom_types::pool::TierKind;
use greenroom_types::{NodeId, Wall};
use serde_json::Value;

use crate::format::code;
use crate::format::expect::{
    DrainExpect, Expect, JobExpect, JobStanding, MigrationExpect, NodeCount, NodeExpect,
    NodeStanding,
};
use crate::format::names::{JobPath, NodeRef};
use crate::log;
use crate::world::World;

/// One thing that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Path in the file.
    pub path: String,
    /// What was expected there.
    pub expected: String,
    /// What was found instead.
    pub found: String,
}

/// Collects what does not hold.
#[derive(Debug, Default)]
struct Findings {
    list: Vec<Mismatch>,
}

/// Everything of `expect` that does not hold now. Calls and callbacks that were looked at are
/// forgotten.
pub(crate) fn check(world: &mut World, expect: &Expect, path: &str) -> Vec<Mismatch> {
    let mut findings = Findings::default();
    if world.policy.is_none() {
        findings.add(path, "a policy".into(), "none was ever connected".into());
        return findings.list;
    }
    for (job, wanted) in &expect.jobs {
        check_job(
            world,
            job,
            wanted,
            &format!("{path}.jobs.{job}"),
            &mut findings,
        );
    }
    check_pairs(world, expect, path, &mut findings);
    for (node, wanted) in &expect.nodes {
        check_node(
            world,
            node,
            wanted,
            &format!("{path}.nodes.{node}"),
            &mut findings,
        );
    }
    for (index, wanted) in expect.node_count.iter().enumerate() {
        let path = match expect.is_list_of_counts {
            false => format!("{path}.nodeCount"),
            true => format!("{path}.nodeCount[{index}]"),
        };
        let found = count_nodes(world, wanted);
        findings.compare(
            &format!("{path}.n"),
            Some(wanted.n),
            found,
            usize::to_string,
        );
    }
    if let Some(wanted) = &expect.calls {
        happened::calls(world, wanted, &format!("{path}.calls"), &mut findings);
    }
    if let Some(wanted) = &expect.callbacks {
        happened::callbacks(world, wanted, &format!("{path}.callbacks"), &mut findings);
    }
    if !expect.metrics.is_empty() {
        check_metrics(world, expect, &format!("{path}.metrics"), &mut findings);
    }
    if let Some(wanted) = &expect.drain {
        check_drain(world, wanted, &format!("{path}.drain"), &mut findings);
    }
    if let Some(wanted) = &expect.migration {
        check_migration(world, wanted, &format!("{path}.migration"), &mut findings);
    }
    if let Some(wanted) = &expect.trace {
        decided::trace(world, wanted, &format!("{path}.trace"), &mut findings);
    }
    if let Some(wanted) = &expect.dry_run {
        decided::dry_run(world, wanted, &format!("{path}.dryRun"), &mut findings);
    }
    if let Some(wanted) = &expect.admission {
        decided::admission(world, wanted, &format!("{path}.admission"), &mut findings);
    }
    check_pending(world, expect, path, &mut findings);
    check_spares(world, expect, &format!("{path}.spares"), &mut findings);
    if let (Some(wanted), Some(policy)) = (&expect.bundle, &world.policy) {
        let path = format!("{path}.bundle");
        if policy.bundle_by_id(&wanted.id).is_some() {
            let broken = policy.is_bundle_broken(&wanted.id);
            let path = format!("{path}.broken");
            findings.compare(&path, Some(wanted.broken), broken, bool::to_string);
        } else {
            findings.add(&path, format!("the bundle {}", wanted.id), "gone".into());
        }
    }
    if expect.invariants.is_some() {
        world.look_at_everything();
        let found = world.watch.found();
        if !found.is_empty() {
            findings.add(&format!("{path}.invariants"), "ok".into(), found.join("; "));
        }
    }
    findings.list
}

// === impl Findings ===

impl Findings {
    fn add(&mut self, path: &str, expected: String, found: String) {
        self.list.push(Mismatch {
            path: path.to_owned(),
            expected,
            found,
        });
    }

    /// Compares what is wanted, if anything, with what was found.
    fn compare<T: PartialEq>(
        &mut self,
        path: &str,
        wanted: Option<T>,
        found: T,
        show: impl Fn(&T) -> String,
    ) {
        if let Some(wanted) = wanted
            && wanted != found
        {
            self.add(path, show(&wanted), show(&found));
        }
    }

    /// The same where what was found may be nothing.
    fn compare_found<T: PartialEq>(
        &mut self,
        path: &str,
        wanted: Option<T>,
        found: Option<T>,
        show: impl Fn(&T) -> String,
    ) {
        if wanted.is_some() && wanted != found {
            let shown = |value: Option<T>| value.map_or_else(|| "none".to_owned(), |v| show(&v));
            self.add(path, shown(wanted), shown(found));
        }
    }

    /// Compares a named node with a found one.
    fn compare_node(
        &mut self,
        world: &World,
        path: &str,
        wanted: Option<&NodeRef>,
        found: Option<&NodeId>,
    ) {
        let Some(wanted) = wanted else { return };
        let id = world.resolve(wanted);
        if id.is_none() || id.as_ref() != found {
            let expected = match id {
                None => format!("{wanted} (which stands for no node now)"),
                Some(_) => wanted.to_string(),
            };
            let found = found.map_or_else(|| "none".to_owned(), |id| world.purchases.name(id));
            self.add(path, expected, found);
        }
    }
}

fn policy(world: &World) -> Option<&Policy> {
    world.policy.as_ref()
}

fn view(world: &World, node_id: &NodeId) -> Option<NodeView> {
    policy(world)?
        .nodes()
        .into_iter()
        .find(|view| view.node_id == *node_id)
}

fn node_of<'a>(world: &'a World, job: &JobPath) -> Option<&'a NodeId> {
    policy(world)?.node_for_job(&job.job_id())
}

// === jobs ===

fn check_job(
    world: &World,
    job: &JobPath,
    wanted: &JobExpect,
    path: &str,
    findings: &mut Findings,
) {
    let node_id = node_of(world, job);
    let found = standing(world, job);
    // What is not there has no restarts and no node, and that would say nothing.
    if wanted.state.is_none() && found == Ok(JobStanding::Gone) {
        return findings.add(path, "a job".into(), "gone".into());
    }
    if let Some(state) = wanted.state
        && found.as_ref() != Ok(&state)
    {
        let found = match found {
            Ok(found) => found.name().to_owned(),
            Err(other) => other,
        };
        findings.add(&format!("{path}.state"), state.name().to_owned(), found);
    }
    findings.compare_node(
        world,
        &format!("{path}.node"),
        wanted.node.as_ref(),
        node_id,
    );
    let view = node_id.and_then(|node_id| view(world, node_id));
    let (tier, pool) = view.map_or((None, None), |view| (view.tier, view.pool));
    findings.compare_found(
        &format!("{path}.tier"),
        wanted.tier.clone(),
        tier,
        ToString::to_string,
    );
    findings.compare_found(
        &format!("{path}.pool"),
        wanted.pool.clone(),
        pool,
        ToString::to_string,
    );
    let Some(policy) = policy(world) else { return };
    let gpu = policy
        .placement_for_job(&job.job_id())
        .and_then(|record| record.gpu_index);
    findings.compare_found(&format!("{path}.gpu"), wanted.gpu, gpu, u32::to_string);
    let restarts = policy.restart_count(world.now(), &job.job_id());
    let restarts = u32::try_from(restarts).unwrap_or(u32::MAX);
    findings.compare(
        &format!("{path}.restarts"),
        wanted.restarts,
        restarts,
        u32::to_string,
    );
}

/// Where a job stands; in words where no state of the format fits.
fn standing(world: &World, job: &JobPath) -> Result<JobStanding, String> {
    let job_id = job.job_id();
    let Some(policy) = policy(world) else {
        return Ok(JobStanding::Gone);
    };
    let report = policy.explain(&job_id);
    let Some(standing) = &report.standing else {
        return Ok(JobStanding::Gone);
    };
    match report.binding {
        Some(BindingState::Running) => return Ok(JobStanding::Running),
        Some(BindingState::Placing | BindingState::Placed) => return Ok(JobStanding::Placed),
        None => {}
    }
    match standing {
        Standing::Terminal { .. } => Ok(JobStanding::Dropped),
        Standing::BundleBroken { .. } => Ok(JobStanding::Broken),
        Standing::Dormant => Ok(JobStanding::Dormant),
        Standing::Pending
        | Standing::Scheduled { .. }
        | Standing::StartRetry
        | Standing::RecoverySpacing => Ok(JobStanding::Unplaced),
        Standing::Over => {
            let completed = policy
                .jobs()
                .any(|seen| seen.job.job_id == job_id && seen.state == JobState::Post);
            let what = if completed { "completed" } else { "over" };
            Err(what.to_owned())
        }
        other => Err(other.to_string()),
    }
}

// === pairs ===

fn check_pairs(world: &World, expect: &Expect, path: &str, findings: &mut Findings) {
    let az = |job: &JobPath| {
        let view = view(world, node_of(world, job)?)?;
        view.tags.get("az").filter(|az| !az.is_empty()).cloned()
    };
    let cloud = |job: &JobPath| -> Option<TierKind> {
        let view = view(world, node_of(world, job)?)?;
        let pool = world.settings.pool(view.pool?.as_str())?;
        Some(pool.tier(view.tier?.as_str())?.kind)
    };
    let node = |job: &JobPath| node_of(world, job).cloned();
    pairs(
        &expect.same_node,
        &format!("{path}.sameNode"),
        "one node",
        findings,
        |a, b| {
            let (a, b) = (node(a), node(b));
            (a.is_some() && a == b, names(world, a, b))
        },
    );
    let key = format!("{path}.differentNode");
    pairs(
        &expect.different_node,
        &key,
        "two nodes",
        findings,
        |a, b| {
            let (a, b) = (node(a), node(b));
            (a.is_some() && b.is_some() && a != b, names(world, a, b))
        },
    );
    let key = format!("{path}.differentAz");
    pairs(&expect.different_az, &key, "two zones", findings, |a, b| {
        let (a, b) = (az(a), az(b));
        (
            a.is_some() && b.is_some() && a != b,
            format!("{} and {}", or_none(a), or_none(b)),
        )
    });
    let key = format!("{path}.differentCloud");
    pairs(
        &expect.different_cloud,
        &key,
        "two clouds",
        findings,
        |a, b| {
            let (a, b) = (cloud(a), cloud(b));
            let shown = |kind: Option<TierKind>| or_none(kind.map(|kind| code(&kind)));
            (
                a.is_some() && b.is_some() && a != b,
                format!("{} and {}", shown(a), shown(b)),
            )
        },
    );
}

fn pairs(
    list: &[(JobPath, JobPath)],
    path: &str,
    what: &str,
    findings: &mut Findings,
    holds: impl Fn(&JobPath, &JobPath) -> (bool, String),
) {
    for (index, (a, b)) in list.iter().enumerate() {
        let (ok, found) = holds(a, b);
        if !ok {
            let expected = format!("{what} for {a} and {b}");
            findings.add(&format!("{path}[{index}]"), expected, found);
        }
    }
}

fn or_none(value: Option<String>) -> String {
    value.unwrap_or_else(|| "none".to_owned())
}

fn names(world: &World, a: Option<NodeId>, b: Option<NodeId>) -> String {
    let name = |id: Option<NodeId>| or_none(id.map(|id| world.purchases.name(&id)));
    format!("{} and {}", name(a), name(b))
}

// === nodes ===

fn check_node(
    world: &World,
    node: &NodeRef,
    wanted: &NodeExpect,
    path: &str,
    findings: &mut Findings,
) {
    let Some(node_id) = world.resolve(node) else {
        if wanted.state != Some(NodeStanding::Gone) {
            findings.add(
                path,
                "a node".into(),
                format!("{node} stands for no node now"),
            );
        }
        return;
    };
    let view = view(world, &node_id);
    let state = view
        .as_ref()
        .map_or(NodeStanding::Gone, |view| view.state.into());
    // What is not there is not cordoned and has no jobs, and that would say nothing.
    if wanted.state.is_none() && state == NodeStanding::Gone {
        return findings.add(path, "a node".into(), state.name().into());
    }
    let show = |state: &NodeStanding| state.name().to_owned();
    findings.compare(&format!("{path}.state"), wanted.state, state, show);
    let Some(policy) = policy(world) else { return };
    let cordoned = policy.is_cordoned(&node_id)
        || policy
            .inventory(&node_id)
            .is_some_and(|inventory| inventory.cordoned);
    findings.compare(
        &format!("{path}.cordoned"),
        wanted.cordoned,
        cordoned,
        bool::to_string,
    );
    let spare = policy.is_unconsumed_spare(&node_id);
    findings.compare(
        &format!("{path}.spare"),
        wanted.spare,
        spare,
        bool::to_string,
    );
    if let Some(jobs) = &wanted.jobs {
        let mut wanted: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        let mut found: Vec<String> = view
            .iter()
            .flat_map(|view| &view.jobs)
            .map(log::job)
            .collect();
        wanted.sort();
        found.sort();
        let show = |list: &Vec<String>| listed(list);
        findings.compare(&format!("{path}.jobs"), Some(wanted), found, show);
    }
    for (key, value) in &wanted.tags {
        let found = view.as_ref().and_then(|view| view.tags.get(key)).cloned();
        let show = |value: &Option<String>| or_none(value.clone());
        findings.compare(
            &format!("{path}.tags.{key}"),
            Some(value.clone()),
            found,
            show,
        );
    }
}

fn count_nodes(world: &World, wanted: &NodeCount) -> usize {
    let Some(policy) = policy(world) else {
        return 0;
    };
    policy
        .nodes()
        .iter()
        .filter(|view| view.state != MirrorState::Stopped)
        .filter(|view| wanted.pool.is_none() || view.pool == wanted.pool)
        .filter(|view| wanted.tier.is_none() || view.tier == wanted.tier)
        .filter(|view| {
            wanted
                .spare
                .is_none_or(|spare| policy.is_unconsumed_spare(&view.node_id) == spare)
        })
        .count()
}

// === the rest ===

fn check_metrics(world: &World, expect: &Expect, path: &str, findings: &mut Findings) {
    let Some(policy) = policy(world) else { return };
    let metrics = serde_json::to_value(policy.metrics(world.now())).unwrap_or_default();
    for (name, wanted) in &expect.metrics {
        let path = format!("{path}.{name}");
        match metrics.get(name) {
            None => {
                let known = metrics.as_object().map_or_else(String::new, |known| {
                    known.keys().cloned().collect::<Vec<_>>().join(", ")
                });
                let found = format!("no metric of that name; there are {known}");
                findings.add(&path, wanted.to_string(), found);
            }
            Some(found) => {
                if let Err((below, expected, found)) = value::subset(world, wanted, found) {
                    findings.add(&format!("{path}{below}"), expected, found);
                }
            }
        }
    }
}

fn check_drain(world: &World, wanted: &DrainExpect, path: &str, findings: &mut Findings) {
    let node_id = world.resolve(&wanted.node);
    let found = node_id.and_then(|node_id| policy(world)?.drain_status(&node_id));
    let Some(found) = found else {
        return findings.add(path, format!("a drain of {}", wanted.node), "none".into());
    };
    findings.compare(&format!("{path}.phase"), wanted.phase, found.phase, code);
    let Some(jobs) = &wanted.jobs else { return };
    if jobs.is_empty() && !found.jobs.is_empty() {
        let found = found.jobs.iter().map(|drained| log::job(&drained.job_id));
        findings.add(&format!("{path}.jobs"), "none".into(), listed(found));
    }
    for (job, status) in jobs {
        let found = found
            .jobs
            .iter()
            .find(|drained| drained.job_id == job.job_id())
            .map(|drained| drained.status);
        let path = format!("{path}.jobs.{job}");
        findings.compare_found(&path, Some(*status), found, code);
    }
}

fn check_migration(world: &World, wanted: &MigrationExpect, path: &str, findings: &mut Findings) {
    let found = match world.migration(&wanted.job) {
        Ok(found) => found,
        Err(none) => {
            return findings.add(
                path,
                format!("a migration of {}", wanted.job),
                none.to_string(),
            );
        }
    };
    findings.compare(&format!("{path}.phase"), wanted.phase, found.phase, code);
    let target = found.target_node_id.as_ref();
    findings.compare_node(
        world,
        &format!("{path}.target"),
        wanted.target.as_ref(),
        target,
    );
    if let Some(reason) = &wanted.abort_reason {
        let found = found.abort_reason;
        if !found.as_ref().is_some_and(|found| found.contains(reason)) {
            let expected = format!("a reason with {reason:?}");
            findings.add(&format!("{path}.abortReason"), expected, or_none(found));
        }
    }
}

fn check_spares(world: &World, expect: &Expect, path: &str, findings: &mut Findings) {
    let (Some(wanted), Some(policy)) = (&expect.spares, policy(world)) else {
        return;
    };
    let count = policy.spare_count(&wanted.pool);
    let target = policy
        .settings()
        .hot_spares
        .iter()
        .find(|entry| entry.pool == wanted.pool)
        .map_or(0, |entry| entry.target_count as usize);
    for (key, wanted, found) in [
        ("live", wanted.live, count.live),
        ("pending", wanted.pending, count.pending),
        ("target", wanted.target, target),
    ] {
        findings.compare(&format!("{path}.{key}"), wanted, found, usize::to_string);
    }
}

fn check_pending(world: &World, expect: &Expect, path: &str, findings: &mut Findings) {
    let Some(policy) = policy(world) else { return };
    if expect.pending.is_empty() {
        return;
    }
    let waiting = policy.pending_placements();
    for (job, instant) in &expect.pending {
        let wanted = instant.resolve(world.spec.start);
        let found = waiting
            .iter()
            .find(|waiting| waiting.job_id == job.job_id())
            .map(|waiting| waiting.scheduled_for);
        let path = format!("{path}.pending.{job}");
        findings.compare_found(&path, Some(wanted), found, Wall::to_string);
    }
}

/// A list as a file would write it.
fn listed<T: ToString>(list: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = list.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(", "))
}

/// A value as a file would write it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
