//! A job's history: one way in, in order, bounded (HIST).

use std::sync::Arc;

use greenroom_types::job::{HistoryEntry, HistoryKind};
use greenroom_types::{JobId, StartId};

use crate::ledger::Ledger;
use crate::out::Out;
use crate::state::JobRecord;

impl Ledger {
    /// Appends an entry and tells of the job. Its time is never before the entry ahead of it
    /// (HIST-02). Beyond the limit the oldest entry goes that is neither the creation nor of an
    /// instance that is still there (HIST-05).
    pub(crate) fn append(
        &mut self,
        out: &mut Out,
        job_id: &JobId,
        start_id: Option<&StartId>,
        kind: HistoryKind,
    ) {
        let max = self.config.history_max_entries.clamp(100, 10_000);
        let Some(record) = self.jobs.get_mut(job_id) else {
            return;
        };
        let JobRecord {
            view,
            next_entry,
            instances,
            ..
        } = record;
        let view = Arc::make_mut(view);
        let at = view
            .history
            .last()
            .map_or(out.at, |last| last.at.max(out.at));
        view.history.push(HistoryEntry {
            at,
            seq: *next_entry,
            start_id: start_id.cloned(),
            kind,
        });
        out.entries.insert((job_id.clone(), *next_entry));
        *next_entry += 1;
        while view.history.len() > max {
            let oldest = view.history.iter().position(|entry| {
                !matches!(entry.kind, HistoryKind::Created)
                    && !entry
                        .start_id
                        .as_ref()
                        .is_some_and(|id| instances.contains(id))
            });
            let Some(oldest) = oldest else { break };
            let gone = view.history.remove(oldest);
            view.dropped_entries += 1;
            out.entries.insert((job_id.clone(), gone.seq));
        }
        out.job(job_id);
    }
}
