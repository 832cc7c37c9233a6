//! The reports that the Manager does not hold yet, in order (WORK-60).
//!
//! It numbers reports and forgets them once acknowledged. It sends nothing and writes nothing.

use std::collections::VecDeque;

use greenroom_types::node::InstanceKey;
use greenroom_types::{MigrationId, StartId};

use crate::order::{Report, Said};

/// Reports kept without acknowledgement; beyond it the oldest is given up (WORK-60).
pub(crate) const REPORTS_MAX: usize = 10_000;

/// Signals of one migration that are kept without acknowledgement (MGR-11).
pub(crate) const SIGNALS_MAX: usize = 16;

/// Reports waiting for their acknowledgement.
#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    next: u64,
    waiting: VecDeque<Report>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            next: 1,
            waiting: VecDeque::new(),
        }
    }
}

// === impl Outbox ===

impl Outbox {
    /// Makes a report.
    pub(crate) fn push(&mut self, key: &InstanceKey, start_id: &StartId, said: Said) -> Report {
        let report = Report {
            id: self.next,
            key: key.clone(),
            start_id: start_id.clone(),
            said,
        };
        self.restore(report.clone());
        report
    }

    /// Takes a report in that was made before a restart.
    pub(crate) fn restore(&mut self, report: Report) {
        self.next = self.next.max(report.id + 1);
        self.waiting.push_back(report);
        if self.waiting.len() > REPORTS_MAX {
            self.waiting.pop_front();
        }
    }

    /// The Manager holds everything up to this one.
    pub(crate) fn ack(&mut self, id: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|report| report.id > id);
        self.waiting.len() != before
    }

    /// What this report says is worth nothing any more.
    pub(crate) fn forget(&mut self, id: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|report| report.id != id);
        self.waiting.len() != before
    }

    /// The oldest of a migration's signals, when as many wait as may (MGR-11).
    pub(crate) fn crowded(&self, start_id: &StartId, migration_id: &MigrationId) -> Option<u64> {
        let mut of_it = self.waiting.iter().filter(|report| {
            matches!(&report.said, Said::Migration { migration_id: id, .. } if id == migration_id)
                && report.start_id == *start_id
        });
        let oldest = of_it.next()?.id;
        (of_it.count() + 1 >= SIGNALS_MAX).then_some(oldest)
    }

    /// Ids below this one have been given out, also those of reports no longer kept.
    pub(crate) fn raise_next(&mut self, id: u64) {
        self.next = self.next.max(id);
    }

    pub(crate) const fn next_id(&self) -> u64 {
        self.next
    }

    /// What is to be sent again after a hello, oldest first.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Report> {
        self.waiting.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(outbox: &mut Outbox) -> u64 {
        let key = InstanceKey::default();
        outbox.push(&key, &StartId::default(), Said::Accepted).id
    }

    fn ids(outbox: &Outbox) -> Vec<u64> {
        outbox.waiting().map(|report| report.id).collect()
    }

    // spec: WORK-60
    #[test]
    fn reports_wait_in_order_until_they_are_acknowledged() {
        let mut outbox = Outbox::default();
        for id in 1..=4 {
            assert_eq!(push(&mut outbox), id);
        }
        assert!(outbox.ack(2));
        assert_eq!(ids(&outbox), [3, 4]);
        assert!(!outbox.ack(2));
        assert!(outbox.ack(4));
        assert_eq!(push(&mut outbox), 5);
    }

    // spec: WORK-60
    #[test]
    fn at_most_ten_thousand_are_kept_the_newest() {
        let mut outbox = Outbox::default();
        for _ in 0..REPORTS_MAX + 5 {
            push(&mut outbox);
        }
        let ids = ids(&outbox);
        assert_eq!((ids.len(), ids[0]), (REPORTS_MAX, 6));
    }
}
