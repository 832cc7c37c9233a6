//! A job's history in plain words.

use greenroom_sdk::types::job::{At, HistoryEntry, HistoryKind, StopReason};
use greenroom_sdk::types::stream::LeaseStatus;
use greenroom_sdk::types::{Millis, StartId};

/// What is known of the right to run of starts whose node was lost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Right<'a> {
    /// The job is not protected: whatever is there may run.
    Free,
    /// It is lease-protected, and how its leases stand was not asked.
    Protected,
    /// It is lease-protected; these are all leases that are not over.
    Leased(&'a LeaseStatus),
}

/// The entry at `index` in plain words. What came before it says what an end means.
pub(crate) fn line(history: &[HistoryEntry], index: usize, right: Right<'_>) -> String {
    let Some(entry) = history.get(index) else {
        return String::new();
    };
    let place = |at: &At| format!("{} on {}", at.role, at.node.node_id);
    match &entry.kind {
        HistoryKind::Created => "created".to_owned(),
        HistoryKind::Updated { .. } => "updated".to_owned(),
        HistoryKind::Provisioned(at) => format!("starting {}", place(at)),
        HistoryKind::Prepared(at) => format!("prepared {}", place(at)),
        HistoryKind::Running { at, .. } => format!("running {}", place(at)),
        // The Manager gives this reason where nobody told it of an end.
        HistoryKind::Stopping {
            at,
            reason: StopReason::NodeStopped,
            detail,
        } if detail.is_empty() => format!(
            "given up {} (node lost: its worker is not heard; {})",
            place(at),
            right.fate(entry.start_id.as_ref())
        ),
        HistoryKind::Stopping { at, reason, detail } => {
            let detail = if detail.is_empty() {
                String::new()
            } else {
                format!(": {detail}")
            };
            format!("stopping {} ({reason:?}){detail}", place(at))
        }
        HistoryKind::Stopped(at) if is_replaced(history, index, at) => match right {
            Right::Free => format!(
                "replaced {} (node lost: what ran there may still run until its worker is heard)",
                place(at)
            ),
            _ => format!(
                "replaced {} (node lost: its lease is over, so what ran there may run no more)",
                place(at)
            ),
        },
        HistoryKind::Stopped(at) => format!("stopped {}", place(at)),
        HistoryKind::Completed => "completed".to_owned(),
        HistoryKind::Failed { reason, by } => format!("failed for good, by {by}: {reason}"),
        HistoryKind::Rejected { at, detail, .. } => format!("rejected {}: {detail}", place(at)),
    }
}

/// The newest entry in plain words.
pub(crate) fn newest(history: &[HistoryEntry], right: Right<'_>) -> String {
    line(history, history.len().saturating_sub(1), right)
}

// === impl Right ===

impl Right<'_> {
    /// What is known of a start whose worker is not heard.
    fn fate(self, start_id: Option<&StartId>) -> String {
        let status = match self {
            Self::Free => return "it may still run".to_owned(),
            Self::Protected => return "it may run on only until its lease ends".to_owned(),
            Self::Leased(status) => status,
        };
        let lease = status
            .leases
            .iter()
            .find(|lease| Some(&lease.start_id) == start_id);
        match lease.map(|lease| (lease.state.as_str(), lease)) {
            None => "its lease is over, so it may run no more".to_owned(),
            Some(("paused_kept", _)) => "leases are paused, so it may run on".to_owned(),
            Some(("lost_waiting", lease)) => format!(
                "it may still run under its lease, fence {}, for {} at the most",
                lease.fence,
                Millis(lease.remaining_ms)
            ),
            Some(_) => "it is back, and has its lease".to_owned(),
        }
    }
}

/// An instance of a lost node counts as over once its key is started elsewhere (MNODE-12); that it
/// ended nobody has said. Both are recorded at the same moment, the end first.
fn is_replaced(history: &[HistoryEntry], index: usize, at: &At) -> bool {
    let over = &history[index];
    let next = history.get(index + 1);
    let by_a_start = next.is_some_and(|next| {
        next.at == over.at
            && matches!(&next.kind, HistoryKind::Provisioned(there) if there.role == at.role)
    });
    let was_lost = || {
        let of_it = history[..index].iter().rev().find(|entry| {
            entry.start_id == over.start_id && matches!(entry.kind, HistoryKind::Stopping { .. })
        });
        of_it.is_some_and(|entry| {
            matches!(
                entry.kind,
                HistoryKind::Stopping {
                    reason: StopReason::NodeStopped,
                    ..
                }
            )
        })
    };
    by_a_start && was_lost()
}

/// What a job wrote, below the line that tells of it: nobody takes it for the product's own words.
pub(crate) fn indented(text: &str, by: &str) -> String {
    text.replace('\n', &format!("\n{by}| "))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use greenroom_sdk::types::Wall;
    use greenroom_sdk::types::node::{InstanceKey, NodeMetadata};
    use greenroom_sdk::types::stream::JobLeaseInfo;

    use super::*;

    fn at(node: &str) -> At {
        At {
            role: "primary".into(),
            node: Arc::new(NodeMetadata {
                node_id: node.into(),
                ..NodeMetadata::default()
            }),
            running: None,
        }
    }

    fn entry(ms: i64, start_id: &str, kind: HistoryKind) -> HistoryEntry {
        HistoryEntry {
            at: Wall(ms),
            seq: 0,
            start_id: Some(start_id.into()),
            kind,
        }
    }

    fn stopping(reason: StopReason) -> HistoryKind {
        HistoryKind::Stopping {
            at: at("w3"),
            reason,
            detail: String::new(),
        }
    }

    #[test]
    fn what_a_lost_node_carried_is_never_called_stopped_on_a_guess() {
        let history = [
            entry(1, "a", HistoryKind::Provisioned(at("w3"))),
            entry(2, "a", stopping(StopReason::NodeStopped)),
            entry(3, "a", HistoryKind::Stopped(at("w3"))),
            entry(3, "b", HistoryKind::Provisioned(at("w1"))),
        ];
        let lines: Vec<String> = (0..4)
            .map(|index| line(&history, index, Right::Free))
            .collect();
        assert_eq!(
            lines,
            [
                "starting primary on w3",
                "given up primary on w3 (node lost: its worker is not heard; it may still run)",
                "replaced primary on w3 (node lost: what ran there may still run until its worker is heard)",
                "starting primary on w1",
            ]
        );
        // Its worker came back without it, or its machine is gone: then it is over.
        assert_eq!(newest(&history[..3], Right::Free), "stopped primary on w3");
        let mut asked = history.clone();
        asked[1] = entry(2, "a", stopping(StopReason::UserRequested));
        assert_eq!(line(&asked, 2, Right::Free), "stopped primary on w3");
        assert_eq!(newest(&[], Right::Free), "");
    }

    #[test]
    fn of_a_protected_job_it_is_told_whether_it_may_still_run() {
        let history = [
            entry(1, "a", HistoryKind::Provisioned(at("w3"))),
            entry(2, "a", stopping(StopReason::NodeStopped)),
            entry(3, "a", HistoryKind::Stopped(at("w3"))),
            entry(3, "b", HistoryKind::Provisioned(at("w1"))),
        ];
        let given_up = |right| line(&history, 1, right);
        let leased = |state: &str| LeaseStatus {
            leases: vec![JobLeaseInfo {
                key: InstanceKey::new("j".into(), "primary".into()),
                start_id: "a".into(),
                node_id: "w3".into(),
                fence: 7,
                ttl_ms: 10_000,
                state: state.to_owned(),
                remaining_ms: 12_000,
                refreshed_at: None,
            }],
            ..LeaseStatus::default()
        };
        let over = LeaseStatus::default();
        assert_eq!(
            given_up(Right::Leased(&over)),
            "given up primary on w3 (node lost: its worker is not heard; its lease is over, so it may run no more)"
        );
        let status = leased("lost_waiting");
        let waits = given_up(Right::Leased(&status));
        assert!(
            waits.contains("under its lease, fence 7, for 12s at the most"),
            "{waits}"
        );
        let status = leased("paused_kept");
        let paused = given_up(Right::Leased(&status));
        assert!(
            paused.contains("leases are paused, so it may run on"),
            "{paused}"
        );
        let unasked = given_up(Right::Protected);
        assert!(unasked.contains("only until its lease ends"), "{unasked}");
        assert_eq!(
            line(&history, 2, Right::Protected),
            "replaced primary on w3 (node lost: its lease is over, so what ran there may run no more)"
        );
    }

    #[test]
    fn what_a_job_wrote_stands_below_and_indented() {
        assert_eq!(
            indented("exit code 3\noops\n", "  "),
            "exit code 3\n  | oops\n  | "
        );
        assert_eq!(indented("one line", "  "), "one line");
    }
}
