//! What each event of the Manager's stream means, and the mirror of jobs (CALLB-05, CALLB-08, CALLB-16).

use std::collections::BTreeSet;
use std::sync::Arc;

use greenroom_types::job::{HistoryKind, JobInfo, JobState, JobWithHistory};
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::{LeasePause, StreamEvent};
use greenroom_types::{JobId, NodeId, Wall};

use crate::effect::{Callback, Effect, Effects};
use crate::health::Rejection;
use crate::job::{BindingState, Cause, JobRecord, spot_of};
use crate::policy::{Phase, Policy};
use crate::timer::Timer;

// === impl Policy ===

impl Policy {
    pub(crate) fn apply_stream(&mut self, event: StreamEvent, out: &mut Effects) {
        if self.is_closed() {
            return;
        }
        self.opened.get_or_insert(self.now);
        if matches!(self.phase, Phase::Snapshot { .. }) {
            self.collect(event, out);
        } else {
            self.apply_change(event, out);
        }
    }

    fn apply_change(&mut self, event: StreamEvent, out: &mut Effects) {
        match event {
            StreamEvent::JobUpdated(job)
            | StreamEvent::JobPending(job)
            | StreamEvent::JobActive(job) => self.job_updated(&job, out),
            StreamEvent::JobDeleted(job_id) => self.job_deleted(&job_id, out),
            StreamEvent::JobOutOfWindow(job) => self.job_deleted(&job.job.job_id, out),
            StreamEvent::NodeStarting { metadata, phase } => {
                self.node_starting(&metadata, phase, out);
            }
            StreamEvent::NodeStarted { metadata, running }
            | StreamEvent::NodeRunning {
                metadata, running, ..
            } => {
                self.node_started(&metadata, &running, out);
            }
            StreamEvent::NodeStopping {
                node_id,
                reason,
                detail,
                provider_code,
            } => {
                self.node_stopping(&node_id, reason, &provider_code, &detail, out);
            }
            StreamEvent::NodeStopped { node_id } => self.node_stopped(&node_id, out),
            StreamEvent::BundleUpdated(status) | StreamEvent::BundleActive(status) => {
                self.bundle_updated(&status, out);
            }
            StreamEvent::BundleDeleted(bundle_id) => self.bundle_deleted(&bundle_id, out),
            StreamEvent::NodeInventoryUpdated { node_id, inventory }
            | StreamEvent::NodeInventorySnapshot { node_id, inventory } => {
                self.node_inventory(&node_id, &inventory);
            }
            StreamEvent::NodeReachabilityChanged { node_id, reachable } => {
                self.node_reachability(&node_id, reachable);
            }
            StreamEvent::NodeTagsUpdated { metadata, .. } => self.node_tags(&metadata),
            StreamEvent::JobRejected {
                node_id,
                key,
                start_id,
                code,
                reason,
                inventory,
            } => {
                let rejection = Rejection {
                    node_id,
                    key,
                    start_id,
                    code,
                    reason,
                    inventory,
                };
                self.job_rejected(rejection, out);
            }
            StreamEvent::NodeInterruptionNotice {
                node_id,
                kind,
                deadline,
                ..
            } => self.interruption_noticed(&node_id, kind, deadline, out),
            StreamEvent::JobPrepared { key, node_id, .. } => self.job_prepared(&key, &node_id, out),
            StreamEvent::Migration {
                key,
                migration_id,
                signal,
            } => self.migration_signal(&key, &migration_id, signal, out),
            StreamEvent::ImagesPrefetched {
                node_id,
                batch_id,
                results,
            } => self.images_prefetched(&node_id, &batch_id, results, out),
            StreamEvent::JobInfo(info) => {
                self.note_news(&info);
                out.callback(Callback::OnJobInfo(info));
            }
            StreamEvent::AuditAppended(entry) => out.callback(Callback::OnAuditAppended(entry)),
            StreamEvent::LeaseChanged(lease) => self.lease_changed(&lease, out),
            StreamEvent::LeasesPaused { paused: false, .. } => {
                self.note_pause(None);
                self.leases_resumed(out);
            }
            StreamEvent::LeasesPaused {
                reason, by, since, ..
            } => self.note_pause(pause(reason, by, since.unwrap_or(self.now.wall))),
            StreamEvent::Heartbeat { .. } => {}
            other => log_skipped(&other, out),
        }
    }
}

// === impl Policy ===

impl Policy {
    /// Keeps the last news of a start that is under way, for those who ask why it does not run, and
    /// counts what its worker starts again.
    fn note_news(&mut self, info: &JobInfo) {
        let Some(job) = self.jobs.get_mut(&info.key.job_id) else {
            return;
        };
        let Some(binding) = job.binding.as_ref().filter(|it| it.role == info.key.role) else {
            return;
        };
        if binding.state < BindingState::Running {
            job.news = Some(Box::new(info.clone()));
        }
        job.service_restarts.note(info.at, &info.kind);
    }
}

/// A pause of all leases.
pub(crate) const fn pause(reason: String, by: String, since: Wall) -> Option<LeasePause> {
    Some(LeasePause { reason, by, since })
}

/// Events without a role here are logged and skipped (CALLB-16).
pub(crate) fn log_skipped(event: &StreamEvent, out: &mut Effects) {
    let text = match event {
        StreamEvent::Unknown { number } => {
            format!("skipped an event of a kind this version does not know (field {number})")
        }
        StreamEvent::ProviderHealthChange(health) => {
            format!("skipped a change of a provider's health: {health:?}")
        }
        other => format!("skipped an event without a role here: {}", kind_of(other)),
    };
    out.push(Effect::Log { text });
}

/// Name of an event's kind, without its content.
fn kind_of(event: &StreamEvent) -> String {
    let text = format!("{event:?}");
    text.split([' ', '(', '{'])
        .next()
        .unwrap_or_default()
        .to_owned()
}

// === impl Policy: jobs ===

impl Policy {
    /// Takes a job into the mirror and files it under its bundle.
    pub(crate) fn mirror_job(&mut self, seen: &Arc<JobWithHistory>) {
        let job_id = seen.job.job_id.clone();
        let spot = spot_of(seen);
        let old_spot = self.jobs.get(&job_id).and_then(|job| job.spot.clone());
        if old_spot != spot
            && let Some(old) = &old_spot
        {
            self.detach(&job_id, old);
        }
        if let Some(job) = self.jobs.get_mut(&job_id) {
            let redefined = job.seen.current_hash != seen.current_hash;
            let woken = job.seen.job.is_dormant() && !seen.job.is_dormant();
            let anew = seen.state == JobState::Pre;
            if redefined || woken || anew {
                job.resting = false;
            }
            // What was never lost, or is not to run for now, is launched when its time comes.
            if job.binding.is_none() && (anew || seen.job.is_dormant()) {
                job.cause = Cause::Launch;
            }
            if let Some(verdict) = &mut job.verdict {
                verdict.echoed |= seen.terminal_state.is_some();
                // Cleared at the Manager by hand (FAIL-03).
                if verdict.echoed && seen.terminal_state.is_none() {
                    job.verdict = None;
                }
            }
            job.seen = Arc::clone(seen);
            job.spot.clone_from(&spot);
        } else {
            let order = self.order();
            self.jobs.insert(
                job_id.clone(),
                Box::new(JobRecord::new(Arc::clone(seen), order)),
            );
        }
        self.note_remains(&job_id);
        if let Some(spot) = &spot {
            self.attach(&job_id, spot);
            let terminal = self
                .jobs
                .get(&job_id)
                .is_some_and(|job| job.terminal().is_some());
            self.fleet.set_released(spot, terminal);
        }
    }

    fn job_updated(&mut self, seen: &Arc<JobWithHistory>, out: &mut Effects) {
        let job_id = seen.job.job_id.clone();
        let known = self.jobs.get(&job_id);
        let since = known
            .and_then(|job| job.seen.history.last())
            .map_or(0, |entry| entry.seq);
        let told = known.is_some_and(|job| job.seen.terminal_state.is_some());
        self.mirror_job(seen);
        out.callback(Callback::OnJobUpdated {
            job_id: job_id.clone(),
            job: Arc::clone(seen),
        });
        match &seen.terminal_state {
            Some(state) if !told => self.verdict_told(&job_id, &state.reason, out),
            None if told => self.verdict_lifted(&job_id),
            _ => {}
        }
        // What new entries show as over is no longer where it was (RESV-07).
        let entries = seen.history.iter().rev();
        for entry in entries.take_while(|entry| entry.seq > since) {
            if let HistoryKind::Stopped(at) = &entry.kind {
                self.note_over(&at.node.node_id, entry.start_id.as_ref());
            }
        }
        self.note_tagged_stop(&job_id, out);
        self.review_migration(&job_id, out);
        let migration = self.jobs.get(&job_id).and_then(|job| job.migration.clone());
        if let Some(id) = migration {
            // Both keys are the migration's until its end (MIGR-07).
            self.follow_migration(&job_id, &id, out);
            // What is on neither key was the migration's to leave alone, and is no longer.
            if self.migration_for_job(&job_id).is_none() {
                self.stop_strays(&job_id, out);
            }
        } else {
            self.prefer_running(&job_id, out);
            self.leave_held_back(&job_id, out);
            self.follow_binding(&job_id, out);
            self.leave_if_unstarted(&job_id, out);
            self.adopt(&job_id, out);
            self.stop_strays(&job_id, out);
        }
        self.follow_service(&job_id, out);
        self.refresh(&job_id);
    }

    /// A deferred instance is ready: the target of the job's migration, if it is that (MIGR-10).
    fn job_prepared(&mut self, key: &InstanceKey, node_id: &NodeId, out: &mut Effects) {
        let Some(job) = self.jobs.get(&key.job_id) else {
            return;
        };
        let mine = job
            .target
            .as_ref()
            .is_some_and(|target| target.role == key.role && target.node_id == *node_id);
        if let (Some(id), true) = (job.migration.clone(), mine) {
            self.target_prepared(&id, out);
        }
    }
    fn job_deleted(&mut self, job_id: &JobId, out: &mut Effects) {
        self.service_job_deleted(job_id);
        if !self.jobs.contains_key(job_id) {
            return;
        }
        self.migration_of_deleted(job_id, out);
        let binding = self.unbind(job_id);
        self.forget_job(job_id, out);
        out.callback(Callback::OnJobDeleted {
            job_id: job_id.clone(),
        });
        if let Some(binding) = binding {
            self.release_single_use(&binding, out);
        }
        self.pending.wake();
    }

    /// Ends everything that was kept for a job.
    fn forget_job(&mut self, job_id: &JobId, out: &mut Effects) {
        for timer in [
            Timer::ScheduledStart(job_id.clone()),
            Timer::StartRetry(job_id.clone()),
            Timer::LeaseWait(job_id.clone()),
            Timer::RecoverySpacing(job_id.clone()),
            Timer::LaunchGate(job_id.clone()),
            Timer::VerdictRetry(job_id.clone()),
            Timer::StrayStop(job_id.clone()),
        ] {
            self.timers.stop(&timer);
        }
        self.orphan_remains(job_id);
        let Some(job) = self.jobs.remove(job_id) else {
            return;
        };
        self.move_remains(job_id, &job.remains, &BTreeSet::new());
        for node_id in job.excluded.into_keys() {
            self.timers
                .stop(&Timer::JobExclusion(job_id.clone(), node_id));
        }
        if let Some(entry) = job.pending {
            self.pending.remove(&entry);
        }
        let Some(spot) = job.spot else { return };
        // A job that is deleted wants its room no more (INTRA-05).
        let known = self
            .bundles
            .get(&spot.bundle_id)
            .is_some_and(|b| b.status.is_some());
        self.fleet.set_released(&spot, known);
        let decided = self
            .bundles
            .get(&spot.bundle_id)
            .and_then(|bundle| bundle.tagged_stop.as_ref())
            .is_some_and(|stop| stop.job_id == *job_id);
        self.detach(job_id, &spot);
        if decided {
            self.next_tagged_stop(&spot.bundle_id, out);
        }
    }

    /// The job whose tag decided the stop time is gone: the next one that has it decides.
    fn next_tagged_stop(&mut self, bundle_id: &greenroom_types::BundleId, out: &mut Effects) {
        if let Some(bundle) = self.bundles.get_mut(bundle_id) {
            bundle.tagged_stop = None;
        }
        let mut jobs = self.jobs_of(bundle_id);
        jobs.sort_by_key(|job_id| self.jobs.get(job_id).map(|job| job.order));
        for job_id in jobs {
            self.note_tagged_stop(&job_id, out);
        }
        self.review_stop_time(bundle_id, out);
    }
}
