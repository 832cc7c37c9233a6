//! A further call for a node that is being drained (DRAIN-09): it makes the drain stricter and tries what
//! is stuck once more. What it asks for and does not get is told in its answer, never passed over.

use std::collections::BTreeMap;

use greenroom_types::{JobId, Millis, NodeId};

use crate::drain::{DrainOptions, DrainPhase, DrainState, DrainStatus};
use crate::effect::Effects;
use crate::migration::Strategy;
use crate::policy::Policy;

/// Jobs that an answer names one by one; of more it gives the number.
pub(crate) const NAMED_MAX: usize = 20;

// === impl Policy ===

impl Policy {
    /// Takes of the options what can be taken, and gives the drain as it is then.
    pub(crate) fn amend_drain(
        &mut self,
        node_id: &NodeId,
        options: DrainOptions,
        out: &mut Effects,
    ) -> Option<DrainState> {
        let ends = self.drains.get(node_id)?.ends;
        let open = self.drains.get(node_id)?.state.phase.is_open();
        let not_taken = if open {
            self.options_left_out(node_id, &options)
        } else if options == DrainOptions::default() {
            Vec::new()
        } else {
            vec!["all of it: the node is being ended already".to_owned()]
        };
        if open {
            self.acts.changed = true;
            let drain = self.drains.get_mut(node_id)?;
            drain.options.strategy = options.strategy.or(drain.options.strategy);
            drain.options.strategies.extend(options.strategies);
            let stricter = options.force && !drain.state.force;
            let timeout = match options.timeout_ms {
                Some(timeout) => timeout,
                None => ends - self.now.mono,
            };
            self.retry_stuck(node_id, options.force, out);
            if stricter {
                self.tell_drain(node_id, out);
            }
            self.tighten(node_id, timeout, options.force, out);
        }
        let drain = self.drains.get(node_id)?;
        Some(DrainState {
            not_taken,
            ..drain.state.clone()
        })
    }

    /// What of the options the drain under way cannot take, in plain words.
    fn options_left_out(&self, node_id: &NodeId, options: &DrainOptions) -> Vec<String> {
        let Some(drain) = self.drains.get(node_id) else {
            return Vec::new();
        };
        let mut left_out = Vec::new();
        let now = self.now.mono;
        if let Some(timeout) = options.timeout_ms
            && now + timeout > drain.ends
        {
            let left: Millis = drain.ends - now;
            left_out.push(format!(
                "timeoutMs: the drain ends in {left}, and only ever sooner than that; for more time \
                 uncordon the node and drain it anew"
            ));
        }
        if options.for_upgrade && !drain.options.for_upgrade {
            left_out.push(
                "forUpgrade: the drain began without it; uncordon the node and drain it anew"
                    .to_owned(),
            );
        }
        let moving: BTreeMap<&JobId, Strategy> = drain
            .state
            .jobs
            .iter()
            .filter(|job| job.status == DrainStatus::Migrating)
            .filter_map(|job| Some((&job.job_id, self.migration_for_job(&job.job_id)?.strategy)))
            .collect();
        let kept: Vec<String> = moving
            .into_iter()
            .filter(|(job_id, strategy)| {
                let own = options.strategies.get(*job_id).copied();
                own.or(options.strategy).is_some_and(|it| it != *strategy)
            })
            .map(|(job_id, _)| job_id.to_string())
            .collect();
        if !kept.is_empty() {
            left_out.push(format!(
                "strategy: {} already on the move, and stay with theirs",
                named(&kept, "is", "are")
            ));
        }
        left_out
    }

    /// Somebody asks once more: what is stuck is tried again, whatever held it up.
    fn retry_stuck(&mut self, node_id: &NodeId, force: bool, out: &mut Effects) {
        let Some(drain) = self.drains.get_mut(node_id) else {
            return;
        };
        drain.state.force |= force;
        let listed = drain.state.jobs.clone();
        for job in listed {
            if job.status == DrainStatus::Stuck {
                self.take_up(node_id, &job.job_id, out);
                self.tell_if_changed(node_id, &job, out);
            }
        }
    }

    /// The end only ever comes earlier (INTR-04, DRAIN-09).
    pub(crate) fn tighten(
        &mut self,
        node_id: &NodeId,
        timeout: Millis,
        force: bool,
        out: &mut Effects,
    ) {
        let now = self.now.mono;
        let Some(drain) = self.drains.get_mut(node_id) else {
            return;
        };
        self.acts.changed = true;
        // What only waits to be kept apart goes now (DRAIN-23).
        drain.stirred |= force && !drain.state.force;
        drain.state.force |= force;
        let ends = drain.ends.min(now + timeout);
        if ends < drain.ends {
            drain.ends = ends;
            drain.state.timeout_ms = (ends - drain.began).0;
            self.set_drain_timer(node_id, ends);
        }
        if ends <= now {
            self.end_drain_time(node_id, out);
        }
    }
}

/// The first of these names and how many more there are, with the verb that fits.
pub(crate) fn named(names: &[String], one: &str, many: &str) -> String {
    let verb = if names.len() == 1 { one } else { many };
    let first = names[..names.len().min(NAMED_MAX)].join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => format!("{first} {verb}"),
        more => format!("{first} and {more} more {verb}"),
    }
}

// === impl DrainPhase ===

impl DrainPhase {
    /// True when nothing more comes of it.
    pub(crate) const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Partial | Self::Failed)
    }
}
