//! The ranking key: components compared from top to bottom, the smaller key wins (PLACE-14). There
//! are no weights, so whoever reads this file knows why a node was chosen.

use std::cmp::{Ordering, Reverse};

use greenroom_types::NodeId;
use greenroom_types::pool::PackingStrategy;
use serde::{Deserialize, Serialize};

/// Everything by which nodes are ranked but their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rank {
    /// 1. Forbidden domains shared with the other copy; fewer wins (PLACE-15).
    pub resilience_violations: u8,
    /// 2. Still to boot; a booted node wins (PLACE-16).
    pub prospective: bool,
    /// 3. A spare where the rule in force says avoid; others win (PLACE-17).
    pub avoided_spare: bool,
    /// 4. Template images held; more wins (PLACE-18).
    pub warmth: Reverse<u32>,
    /// 5. A spare reserved for this template wins (PLACE-19).
    pub reservation_match: Reverse<bool>,
    /// 6. A spare wins, in a recovery that prefers one (PLACE-20).
    pub preferred_spare: Reverse<bool>,
    /// 7. How full the node is (PLACE-21).
    pub packing: Packing,
    /// 8. In a zone of its copy; that wins (PLACE-22).
    pub same_az: Reverse<bool>,
}

/// The full key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// Components 1 to 8.
    #[serde(flatten)]
    pub rank: Rank,
    /// 9. Smallest in byte order (PLACE-23).
    pub node: NodeId,
}

/// Used fraction of a node, ordered by the strategy of its tier. Counted in billionths, so that two
/// sums of the same shares in another order are the same fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Packing {
    /// Strategy of the tier.
    pub strategy: PackingStrategy,
    /// Used fraction in billionths.
    pub used_billionths: i64,
}

// === impl Packing ===

impl Packing {
    /// The fraction that `used` is of `whole`. A node that offers nothing counts as full.
    pub fn new(strategy: PackingStrategy, used: f64, whole: f64) -> Self {
        Self {
            strategy,
            used_billionths: billionths(used, whole),
        }
    }
}

/// `used / whole` in billionths; full when there is nothing to use.
pub(crate) fn billionths(used: f64, whole: f64) -> i64 {
    const ONE: f64 = 1e9;
    if whole > 0.0 {
        // Saturates; NaN cannot occur with a positive whole and a sane amount.
        (used / whole * ONE).round() as i64
    } else {
        ONE as i64
    }
}

impl PartialOrd for Packing {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Packing {
    /// The better one is the smaller. Both stand in one tier and so have one strategy; the
    /// comparison of strategies only makes the order total.
    fn cmp(&self, other: &Self) -> Ordering {
        self.strategy
            .cmp(&other.strategy)
            .then_with(|| match self.strategy {
                PackingStrategy::Binpack => other.used_billionths.cmp(&self.used_billionths),
                PackingStrategy::Spread => self.used_billionths.cmp(&other.used_billionths),
            })
    }
}
