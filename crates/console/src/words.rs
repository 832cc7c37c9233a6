//! An answer in plain words: what was decided, what decided it, why every other node was left out,
//! or what the job waits for. The words for reasons and values are those of the placement engine, so
//! that all tools say the same; this file puts them into sentences.

use std::fmt::Write as _;

use greenroom_placement::{Attempt, Decision, Degraded, Domain, Key, Outcome, Reason, Trace};
use greenroom_policy::Report;
use greenroom_policy::drain::{DrainJob, DrainStatus};
use greenroom_policy::effect::{PlacementInfo, PlacementKind};
use greenroom_policy::job::{BindingState, Cause, Standing};
use greenroom_policy::migration::{MigrationPhase, MigrationState, Strategy};
use greenroom_types::pool::{LaunchMode, PackingStrategy};

/// Nodes of other pools and tiers are counted; of the others so many are named per tier.
const NAMED_MAX: usize = 50;

/// Why a job is where it is, or what it waits for.
#[must_use]
pub fn of_report(report: &Report) -> String {
    let mut text = String::new();
    headline(&mut text, report);
    if let Some((at, words)) = &report.progress {
        sentence(&mut text, &format!("Its worker said at {at}: {words}"));
    }
    if let Some(restarts) = &report.service_restarts {
        let (count, service, at) = (restarts.count, &restarts.service, restarts.at);
        let times = if count == 1 { "time" } else { "times" };
        let ended = match restarts.ended.as_str() {
            "" => String::new(),
            ended => format!(", which had ended with {ended}"),
        };
        line(
            &mut text,
            format_args!(
                "Its worker started its services again {count} {times}, last {service} at {at}{ended}."
            ),
        );
    }
    for (at, words) in &report.happened {
        sentence(&mut text, &format!("At {at} {words}"));
    }
    if let Some(lease) = &report.lease {
        sentence(&mut text, &format!("Its start {lease}"));
    }
    if let Some(migration) = &report.migration {
        of_migration(&mut text, migration);
        // The entry of a drain says it too.
        if report.drain.is_none() {
            of_shares(&mut text, &migration.shares);
        }
    }
    if let Some(drain) = &report.drain {
        of_drain(&mut text, drain);
    }
    for trouble in &report.purchases {
        sentence(&mut text, &trouble.to_string());
    }
    for domain in &report.shares {
        let domain = domain.word();
        line(
            &mut text,
            format_args!(
                "It shares the {domain} with the other copy now, which was to be avoided."
            ),
        );
    }
    if let Some(left) = report.waits_for {
        line(&mut text, format_args!("It is tried again in {left}."));
    }
    if report.restarts > 0 {
        let limit = match report.restart_limit {
            Some(limit) => format!(", and {limit} are allowed"),
            None => String::new(),
        };
        let restarts = report.restarts;
        line(
            &mut text,
            format_args!("Restarts within the last hour: {restarts}{limit}."),
        );
    }
    if let Some(last) = &report.last_failure {
        sentence(&mut text, &format!("Last {last}"));
    }
    for (node_id, left) in &report.excluded {
        line(
            &mut text,
            format_args!("Node {node_id} is left out for this job for another {left}."),
        );
    }
    if let Some(trial) = &report.trial {
        line(&mut text, format_args!("What the engine says now:"));
        of_decision(&mut text, &trial.decision);
        of_trace(&mut text, &trial.trace);
    }
    if let Some(record) = &report.record {
        of_record(&mut text, record, report.trial.is_some());
    }
    text
}

/// What a dry run found.
#[must_use]
pub fn of_dry_run(decision: &Decision, trace: &Trace) -> String {
    let mut text = String::new();
    of_decision(&mut text, decision);
    of_trace(&mut text, trace);
    text
}

fn headline(text: &mut String, report: &Report) {
    let job_id = &report.job_id;
    let node = report.node_id.as_ref().map_or("a node", |id| id.as_str());
    match (&report.standing, report.binding) {
        (Some(Standing::Bound), Some(state)) => {
            let how = match state {
                BindingState::Placing => "belongs on {}; the Manager has not taken its start yet",
                BindingState::Placed => "is starting on {}",
                BindingState::Running => "runs on {}",
            };
            let after = match report.cause {
                // What it was recovered from is told below.
                Cause::Recovery if !report.happened.is_empty() => ", where it was recovered",
                Cause::Recovery => ", where it was recovered after a failure",
                Cause::Launch => "",
            };
            let how = how.replace("{}", node);
            line(text, format_args!("Job {job_id} {how}{after}."));
        }
        (Some(standing), _) => sentence(text, &format!("Job {job_id}: {standing}")),
        (None, _) => line(text, format_args!("Job {job_id} is not known.")),
    }
}

/// What a drain of its node makes of it.
fn of_migration(text: &mut String, migration: &MigrationState) {
    let there = match &migration.target_node_id {
        Some(node_id) => format!("node {node_id}"),
        None => "another node".to_owned(),
    };
    let (at, words) = match migration.phase {
        MigrationPhase::Proposing => (None, "it is asked for its state"),
        MigrationPhase::Launching => (None, "its successor is being started there"),
        MigrationPhase::AwaitingTargetReady => (None, "its successor gets ready there"),
        MigrationPhase::AwaitingSourceStop => (None, "it was told to stop here"),
        MigrationPhase::Applying => (None, "its successor takes over there"),
        MigrationPhase::StartingTarget => (None, "it has stopped here and starts there"),
        MigrationPhase::StoppingSource => (None, "its successor runs and it stops here"),
        MigrationPhase::Done => return,
        MigrationPhase::Aborted => {
            let why = migration
                .abort_reason
                .as_deref()
                .unwrap_or("no reason is known");
            (migration.phase_history.last().map(|entry| entry.at), why)
        }
    };
    let id = &migration.migration_id;
    match at {
        Some(at) => sentence(
            text,
            &format!("At {at} its migration {id} to {there} came to nothing: {words}"),
        ),
        None => sentence(
            text,
            &format!("It is moving to {there} (migration {id}): {words}"),
        ),
    }
}

fn of_drain(text: &mut String, job: &DrainJob) {
    let by = match job.strategy {
        Some(Strategy::StopThenStart) => "it is stopped here and started there",
        Some(Strategy::Overlap) => "it runs there before it is stopped here",
        Some(Strategy::Handover) => "it hands over",
        None => "how it changes over is not decided yet",
    };
    let how = match job.status {
        DrainStatus::Migrating => format!("it is on the move: {by}"),
        DrainStatus::Stuck => match &job.reason {
            Some(reason) => format!("it is stuck: {reason}"),
            None => "it is stuck".to_owned(),
        },
        DrainStatus::Migrated | DrainStatus::Moved => "it has left".to_owned(),
        DrainStatus::Terminated => "it goes down with the node".to_owned(),
    };
    sentence(text, &format!("Its node is being drained, and {how}"));
    if job.instead_of == Some(Strategy::Overlap) {
        line(
            text,
            format_args!(
                "Overlap was asked for, but it is lease-protected: no two instances of it run."
            ),
        );
    }
    of_shares(text, &job.shares);
}

/// What a job shares with its other copy where it is taken.
fn of_shares(text: &mut String, shares: &[Domain]) {
    for domain in shares {
        let domain = domain.word();
        line(
            text,
            format_args!(
                "Where it goes it shares the {domain} with the other copy, which was to be avoided."
            ),
        );
    }
}

fn of_record(text: &mut String, record: &PlacementInfo, is_old: bool) {
    let at = record.at;
    let last = if is_old {
        "Its last placement, "
    } else {
        "Decided "
    };
    if record.pool.is_empty() {
        line(
            text,
            format_args!("{last}{at}, by an earlier instance; what was looked at is not known."),
        );
        return;
    }
    let (pool, tier) = (&record.pool, &record.tier);
    let what = match (record.kind, &record.node_id) {
        (PlacementKind::Provision, Some(node_id)) => format!(
            "a new {} node ({}) was asked for as {node_id}",
            record.instance_type,
            paid(record.launch_mode)
        ),
        (_, Some(node_id)) => format!("node {node_id} was chosen"),
        (_, None) => "no node".to_owned(),
    };
    line(
        text,
        format_args!("{last}{at}: {what}, in pool {pool}, tier {tier}."),
    );
    if let Some(index) = record.gpu_index {
        line(text, format_args!("Its GPU share is on device {index}."));
    }
    if record.degraded {
        line(
            text,
            format_args!("The two copies are less independent than asked for."),
        );
    }
    // The trial of a job without a place says how things are now; the old trace would only confuse.
    if !is_old {
        match &record.trace {
            Some(trace) => of_trace(text, trace),
            None => line(text, format_args!("What was looked at was not kept.")),
        }
    }
}

fn of_decision(text: &mut String, decision: &Decision) {
    match decision {
        Decision::Place {
            node, pool, tier, ..
        } => line(
            text,
            format_args!("Node {node} is chosen, in pool {pool}, tier {tier}."),
        ),
        Decision::Provision {
            pool,
            tier,
            shape,
            launch_mode,
            ..
        } => line(
            text,
            format_args!(
                "A new {} node ({}) is bought, in pool {pool}, tier {tier}.",
                shape.instance_type,
                paid(*launch_mode)
            ),
        ),
        Decision::Failure {
            reason,
            tried_pools,
        } => {
            let pools: Vec<&str> = tried_pools.iter().map(|pool| pool.as_str()).collect();
            line(
                text,
                format_args!(
                    "No place is found ({}); pools tried: {}.",
                    reason.code(),
                    if pools.is_empty() {
                        "none".to_owned()
                    } else {
                        pools.join(", ")
                    }
                ),
            );
        }
    }
    if let Some(index) = decision.gpu_index() {
        line(text, format_args!("Its GPU share is on device {index}."));
    }
    if let Some(Degraded {
        violated,
        interruptible_primary,
    }) = decision.degraded()
    {
        for domain in violated {
            let domain = domain.word();
            line(
                text,
                format_args!(
                    "It shares the {domain} with the other copy, which was to be avoided."
                ),
            );
        }
        if *interruptible_primary {
            line(
                text,
                format_args!("Both copies sit on nodes that the provider may take back."),
            );
        }
    }
}

fn of_trace(text: &mut String, trace: &Trace) {
    for attempt in &trace.attempts {
        of_attempt(text, attempt);
    }
}

fn of_attempt(text: &mut String, attempt: &Attempt) {
    let tier = match &attempt.tier {
        Some(tier) => format!(", tier {tier}"),
        None => String::new(),
    };
    let apart = if attempt.compliant_only {
        ", apart from the other copy"
    } else {
        ""
    };
    let note = match &attempt.note {
        Some(note) => format!(" ({note})"),
        None => String::new(),
    };
    line(
        text,
        format_args!(
            "Pool {}{tier}{apart}: {}{note}; {} node(s) looked at.",
            attempt.pool,
            attempt.outcome.words(),
            attempt.candidates
        ),
    );
    let taken = attempt.outcome == Outcome::Placed;
    for (at, survivor) in attempt.survivors.iter().take(NAMED_MAX).enumerate() {
        let word = if at == 0 && taken {
            "chosen"
        } else {
            "would do"
        };
        let node = &survivor.key.node;
        line(
            text,
            format_args!("  {node}: {word}; {}", of_key(&survivor.key)),
        );
    }
    if taken && let [first, second, ..] = attempt.survivors.as_slice() {
        line(
            text,
            format_args!("  Decided by: {}.", deciding(&first.key, &second.key)),
        );
    }
    more(text, attempt.survivors.len(), "would do");

    let elsewhere = |reason: Reason| matches!(reason, Reason::WrongPool | Reason::WrongTier);
    let (away, here): (Vec<_>, Vec<_>) = attempt
        .filtered
        .iter()
        .partition(|node| elsewhere(node.reason));
    for node in here.iter().take(NAMED_MAX) {
        line(text, format_args!("  {node}"));
    }
    more(text, here.len(), "will not do");
    if !away.is_empty() {
        line(
            text,
            format_args!("  {} node(s) in other pools or tiers", away.len()),
        );
    }
}

fn more(text: &mut String, count: usize, what: &str) {
    if count > NAMED_MAX {
        line(
            text,
            format_args!("  and {} more that {what}", count - NAMED_MAX),
        );
    }
}

/// The components of a key that say something, from the first to the last.
fn of_key(key: &Key) -> String {
    let rank = &key.rank;
    let mut parts = Vec::new();
    if rank.resilience_violations > 0 {
        parts.push(format!(
            "shares {} domain(s) with the other copy",
            rank.resilience_violations
        ));
    }
    parts.push(if rank.prospective {
        "still to boot".to_owned()
    } else {
        "booted".to_owned()
    });
    if rank.avoided_spare {
        parts.push("a spare, which is avoided".to_owned());
    }
    if rank.warmth.0 > 0 {
        parts.push(format!("holds {} of its images", rank.warmth.0));
    }
    if rank.reservation_match.0 {
        parts.push("reserved for its template".to_owned());
    }
    if rank.preferred_spare.0 {
        parts.push("a spare, which is preferred".to_owned());
    }
    // Billionths of a whole fit a double exactly enough for one decimal.
    let percent = rank.packing.used_billionths as f64 / 1e7;
    let strategy = match rank.packing.strategy {
        PackingStrategy::Binpack => "fullest first",
        PackingStrategy::Spread => "emptiest first",
    };
    parts.push(format!("{percent:.1}% used ({strategy})"));
    if rank.same_az.0 {
        parts.push("in the zone of its copy".to_owned());
    }
    parts.join(", ")
}

/// The first component in which two keys differ.
fn deciding(a: &Key, b: &Key) -> &'static str {
    let (x, y) = (&a.rank, &b.rank);
    if x.resilience_violations != y.resilience_violations {
        "fewer domains shared with the other copy"
    } else if x.prospective != y.prospective {
        "a booted node before one that is still to boot"
    } else if x.avoided_spare != y.avoided_spare {
        "an ordinary node before a spare"
    } else if x.warmth != y.warmth {
        "more of its images are there"
    } else if x.reservation_match != y.reservation_match {
        "a spare reserved for its template"
    } else if x.preferred_spare != y.preferred_spare {
        "a spare is preferred after a failure"
    } else if x.packing != y.packing {
        match x.packing.strategy {
            PackingStrategy::Binpack => "the fuller node",
            PackingStrategy::Spread => "the emptier node",
        }
    } else if x.same_az != y.same_az {
        "the zone of its copy"
    } else {
        "the smaller node id, all else being equal"
    }
}

const fn paid(mode: LaunchMode) -> &'static str {
    match mode {
        LaunchMode::OnDemand => "on demand",
        LaunchMode::Spot => "spot",
        LaunchMode::Reserved => "reserved",
    }
}

/// A sentence with words of a job or a worker in it. What a job wrote stands below it, indented and
/// as it is.
fn sentence(text: &mut String, words: &str) {
    let mut lines = words.trim_end().lines();
    let first = lines.next().unwrap_or_default();
    let end = if first.ends_with(['.', ':']) { "" } else { "." };
    line(text, format_args!("{first}{end}"));
    for written in lines {
        line(text, format_args!("    | {written}"));
    }
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    if !text.is_empty() {
        text.push('\n');
    }
    // Writing to a string does not fail.
    let _ = text.write_fmt(words);
}

#[cfg(test)]
mod tests;
