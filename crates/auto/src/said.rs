//! Failed purchases in the log: why, and not again and again. A tier that has nothing to sell is asked
//! by every job that waits, and at the end of every back-off.

use std::collections::BTreeMap;

use greenroom_policy::effect::ErrorInfo;
use greenroom_types::{Millis, Mono};

/// The same reason of the same tier is told once in this time.
const AGAIN: Millis = Millis(600_000);

/// Reasons that are remembered; beyond it the one told first is forgotten, and told again.
const KEPT: usize = 256;

/// What was told, and what came since then.
#[derive(Debug, Default)]
pub(crate) struct Said(BTreeMap<(String, String), Told>);

#[derive(Debug)]
struct Told {
    at: Mono,
    /// The same, not told.
    since: u64,
}

// === impl Said ===

impl Said {
    /// Tells why nothing could be bought.
    pub(crate) fn warn(&mut self, now: Mono, error: &ErrorInfo) {
        let Some(tier) = &error.tier else {
            return;
        };
        let Some(silent) = self.take(now, tier, &reason(error)) else {
            tracing::debug!(tier, "{}", error.message);
            return;
        };
        let since = (silent > 0).then_some(silent);
        tracing::warn!(
            code = %error.code,
            tier,
            node_id = error.node_id.as_ref().map(tracing::field::display),
            same_and_not_told = since,
            "{}", error.message
        );
    }

    /// How often it came without being told, where it is to be told now.
    fn take(&mut self, now: Mono, tier: &str, reason: &str) -> Option<u64> {
        let key = (tier.to_owned(), reason.to_owned());
        if let Some(told) = self.0.get_mut(&key) {
            if now - told.at < AGAIN {
                told.since += 1;
                return None;
            }
            let silent = told.since;
            *told = Told { at: now, since: 0 };
            return Some(silent);
        }
        if self.0.len() >= KEPT {
            let first = self.0.iter().min_by_key(|(_, told)| told.at);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                self.0.remove(&first);
            }
        }
        self.0.insert(key, Told { at: now, since: 0 });
        Some(0)
    }
}

/// The words without the node, which is another one each time.
fn reason(error: &ErrorInfo) -> String {
    match &error.node_id {
        Some(node_id) => error.message.replace(node_id.as_str(), ""),
        None => error.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(node: &str, tier: &str, why: &str) -> ErrorInfo {
        ErrorInfo {
            code: "createFailed".to_owned(),
            message: format!("creating node {node:?} failed: {why}"),
            node_id: Some(node.into()),
            tier: Some(tier.to_owned()),
            ..ErrorInfo::default()
        }
    }

    // spec: PROV-14
    #[test]
    fn a_reason_is_told_once_in_ten_minutes_for_each_tier() {
        let mut said = Said::default();
        let mut take = |at: u64, node: &str, tier: &str, why: &str| {
            let error = failed(node, tier, why);
            said.take(Mono(at), tier, &reason(&error))
        };
        assert_eq!(take(0, "n1", "p/t", "no stock"), Some(0));
        assert_eq!(take(1, "n2", "p/t", "no stock"), None);
        assert_eq!(take(2, "n3", "p/u", "no stock"), Some(0), "another tier");
        assert_eq!(take(3, "n4", "p/t", "no quota"), Some(0), "another reason");
        assert_eq!(take(599_999, "n5", "p/t", "no stock"), None);
        assert_eq!(take(600_000, "n6", "p/t", "no stock"), Some(2));
        for at in 0..1_000 {
            take(600_001 + at, "n", "p/t", &at.to_string());
        }
        assert_eq!(said.0.len(), KEPT);
    }
}
