//! Why a job is where it is, or what it waits for.

use std::fmt;

use greenroom_placement::{Domain, Request, place_traced};
use greenroom_types::job::{JobInfo, JobInfoKind};
use greenroom_types::node::ServiceRestarts;
use greenroom_types::{JobId, Millis, NodeId, Wall};
use serde::{Deserialize, Serialize};

use crate::drain::{DrainJob, DrainStatus};
use crate::effect::PlacementInfo;
use crate::getters::DryRun;
use crate::job::{BindingState, Cause, Standing};
use crate::lease_wait::LeaseWait;
use crate::migration::{MigrationPhase, MigrationState};
use crate::policy::Policy;
use crate::purchases::TierTrouble;
use crate::timer::{Due, Timer};

/// Everything that explains a job's place, or the lack of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The job.
    pub job_id: JobId,
    /// Where it stands; none for a job that is not in the mirror.
    pub standing: Option<Standing>,
    /// Its node.
    pub node_id: Option<NodeId>,
    /// How far it has come there.
    pub binding: Option<BindingState>,
    /// What its worker said last of a start that is under way, and when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<(Wall, String)>,
    /// How often its worker started its services again where it is now (EVT-09).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_restarts: Option<ServiceRestarts>,
    /// How it is placed next, or was placed.
    pub cause: Cause,
    /// The decision that put it there, with what was looked at.
    pub record: Option<PlacementInfo>,
    /// What the engine says now of a job that found no place.
    pub trial: Option<DryRun>,
    /// Time until its own timer tries it again.
    pub waits_for: Option<Millis>,
    /// The lease that its start waits for (LAUNCH-13).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseWait>,
    /// What a drain of its node makes of it (DRAIN-04).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainJob>,
    /// What became of it with nodes that were drained or ended, oldest first (DRAIN-26).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub happened: Vec<(Wall, String)>,
    /// Its migration: the one under way, else the last that came to nothing here (MIGR-33).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<MigrationState>,
    /// Tiers of its pool whose last purchase failed, while it has no place (PROV-15).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub purchases: Vec<TierTrouble>,
    /// Forbidden domains that it shares with its other copy now (RESIL-03).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<Domain>,
    /// Counted restarts within the trailing hour.
    pub restarts: usize,
    /// Its ceiling; none for `drop`.
    pub restart_limit: Option<u32>,
    /// What its newest failure or rejection said, and on which node.
    pub last_failure: Option<String>,
    /// Nodes left out for this job alone, and for how long.
    pub excluded: Vec<(NodeId, Millis)>,
}

// === impl Policy ===

impl Policy {
    /// Why this job is where it is, or what it waits for. Changes and counts nothing.
    pub fn explain(&self, job_id: &JobId) -> Report {
        let now = self.now.mono;
        let mut report = Report {
            job_id: job_id.clone(),
            standing: None,
            node_id: None,
            binding: None,
            progress: None,
            service_restarts: None,
            cause: Cause::Launch,
            record: None,
            trial: None,
            waits_for: None,
            lease: None,
            drain: None,
            happened: Vec::new(),
            migration: None,
            purchases: Vec::new(),
            shares: Vec::new(),
            restarts: 0,
            restart_limit: None,
            last_failure: None,
            excluded: Vec::new(),
        };
        let Some(job) = self.jobs.get(job_id) else {
            return report;
        };
        let standing = self.standing(job);
        if standing == Standing::Pending {
            report.trial = self.trial(job_id);
        }
        report.standing = Some(standing);
        report.cause = job.cause;
        if let Some(binding) = &job.binding {
            report.node_id = Some(binding.node_id.clone());
            report.binding = Some(binding.state);
            report.cause = binding.cause;
            let restarts = &job.service_restarts;
            report.service_restarts = (restarts.count > 0).then(|| restarts.clone());
            if binding.state < BindingState::Running {
                report.progress = job.news.as_deref().and_then(progress);
            }
        }
        report.record = job.record.as_deref().cloned();
        report.waits_for = [
            Timer::StartRetry(job_id.clone()),
            Timer::LeaseWait(job_id.clone()),
            Timer::RecoverySpacing(job_id.clone()),
            Timer::LaunchGate(job_id.clone()),
        ]
        .iter()
        .find_map(|timer| match self.timers.due(timer)? {
            Due::Mono(at) => Some(at - now),
            Due::Wall(_) => None,
        });
        report.lease = self.lease_wait(job_id);
        report.drain = self.drain_entry(job_id).cloned();
        report.happened = self.happened(job_id);
        report.migration = self.migration_told(job_id, report.node_id.as_ref());
        let stuck = report.drain.as_ref();
        let stuck = stuck.is_some_and(|entry| entry.status == DrainStatus::Stuck);
        if report.trial.is_some() || stuck {
            report.purchases = self.troubles_of(job_id);
        }
        report.shares = report
            .node_id
            .as_ref()
            .map_or_else(Vec::new, |node_id| self.shares_at(job_id, node_id));
        report.restarts = job.restarts_at(now);
        report.restart_limit = self
            .spec(job_id)
            .and_then(|spec| self.settings.ceilings.limit(&spec.requirements));
        report.last_failure = crate::history::last_failure(&job.seen);
        report.excluded = job
            .excluded
            .iter()
            .filter(|(_, until)| **until > now)
            .map(|(node_id, until)| (node_id.clone(), *until - now))
            .collect();
        report
    }

    fn migration_told(&self, job_id: &JobId, node_id: Option<&NodeId>) -> Option<MigrationState> {
        let last = || {
            let mut ended = self.migrations.ended.iter();
            ended.rfind(|it| it.source_job_id == *job_id).filter(|it| {
                it.phase == MigrationPhase::Aborted && node_id == Some(&it.source_node_id)
            })
        };
        self.migration_for_job(job_id).or_else(last).cloned()
    }

    /// Time within which a node that has not started will have, or is given up and its jobs placed
    /// elsewhere (NODE-07, PROV-06); none for any other node.
    pub fn node_due_within(&self, node_id: &NodeId) -> Option<Millis> {
        let timers = [
            Timer::StartupGrace(node_id.clone()),
            Timer::ProvisionTimeout(node_id.clone()),
        ];
        timers
            .iter()
            .filter_map(|timer| match self.timers.due(timer)? {
                Due::Mono(at) => Some(at - self.now.mono),
                Due::Wall(_) => None,
            })
            .min()
    }

    /// The engine's answer for a pending job, in its own context.
    fn trial(&self, job_id: &JobId) -> Option<DryRun> {
        let spot = self.jobs.get(job_id)?.spot.as_ref()?;
        let bundle = self.bundle(&spot.bundle_id)?;
        let excluded = self.excluded_for(job_id);
        let request = Request::new(&bundle, spot.replica_index, &spot.job_name)?
            .of_job(job_id)
            .in_context(self.context_of(job_id, &bundle))
            .without(&excluded);
        let (decision, trace) = place_traced(&self.fleet, &request);
        Some(DryRun { decision, trace })
    }
}

/// News in words; none where it has no words.
fn progress(info: &JobInfo) -> Option<(Wall, String)> {
    let text = match &info.kind {
        JobInfoKind::ServiceStarted(service) => format!("service {service} started"),
        JobInfoKind::ServiceRestarting(service) => format!("service {service} restarts"),
        JobInfoKind::ContainerEvent { service, text } => format!("service {service}: {text}"),
        JobInfoKind::Stage { text, .. } | JobInfoKind::Status { text, .. } => text.clone(),
    };
    (!text.is_empty()).then_some((info.at, text))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(standing) = &self.standing else {
            return write!(f, "{}: not known", self.job_id);
        };
        write!(f, "{}: {standing}", self.job_id)?;
        if let Some(node_id) = &self.node_id {
            write!(f, " to {node_id}")?;
        }
        if let Some(lease) = &self.lease {
            write!(f, ", {lease}")?;
        }
        if let Some(left) = self.waits_for {
            write!(f, ", tried again in {left}")?;
        }
        for trouble in &self.purchases {
            write!(f, ", {trouble}")?;
        }
        if self.restarts > 0 {
            write!(f, ", {} restarts within the hour", self.restarts)?;
            if let Some(limit) = self.restart_limit {
                write!(f, " of {limit}")?;
            }
        }
        let trace = self
            .trial
            .as_ref()
            .map(|trial| &trial.trace)
            .or_else(|| self.record.as_ref()?.trace.as_deref());
        if let Some(trace) = trace {
            write!(f, "\n{trace}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bound => f.write_str("bound"),
            Self::NotPlacedByPolicy => f.write_str("not placed by the policy (no bundle job)"),
            Self::Over => f.write_str("over"),
            Self::Terminal { reason } => write!(f, "at its end: {reason}"),
            Self::Dormant => f.write_str("dormant, waits for startBundleJob"),
            Self::StoppedByRequest => f.write_str("stopped by request"),
            Self::BundleUnknown => f.write_str("waits for its bundle to be announced"),
            Self::SpecUnknown => f.write_str("its bundle has no such job"),
            Self::BundleNotLive => f.write_str("its bundle is being deleted"),
            Self::BundleBroken { reason } => write!(f, "its bundle is broken: {reason}"),
            Self::Scheduled { at } => write!(f, "scheduled, placed at {at}"),
            Self::StartRetry => f.write_str("waits after a failed start"),
            Self::RecoverySpacing => f.write_str("waits, recoveries keep their distance"),
            Self::Pending => f.write_str("found no place, waits for room"),
        }
    }
}
