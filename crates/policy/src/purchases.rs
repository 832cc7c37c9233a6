//! What became of the purchases of each tier, for people: how many failed, and why the last one did
//! (PROV-15). What the policy makes of a failure stands in `provision.rs`.

use std::fmt;

use greenroom_types::{JobId, Millis, PoolName, TierName, Wall};
use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::provision::TierState;

/// Longest part of a provider's words that is kept.
const WORDS_MAX: usize = 400;

/// Why a tier buys nothing at the moment: its last purchase failed, and none has come up since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TierTrouble {
    /// The pool.
    pub pool: PoolName,
    /// The tier.
    pub tier: TierName,
    /// When the last one failed.
    pub at: Wall,
    /// Why, in the provider's words.
    pub reason: String,
    /// How many have failed since one came up.
    pub in_a_row: u64,
    /// Time until it is asked again; none where it may be asked now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_in: Option<Millis>,
}

/// Counts of one elastic tier (METR-10).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TierMetrics {
    /// The pool.
    pub pool_name: PoolName,
    /// The tier.
    pub tier_name: TierName,
    /// Purchases that brought no node, for whatever reason.
    pub purchases_failed: u64,
    /// It is asked for nothing at the moment, because the last one failed.
    pub backs_off: bool,
}

/// The last failure of a tier.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    at: Wall,
    reason: String,
    in_a_row: u64,
}

// === impl Policy ===

impl Policy {
    /// A purchase of a tier brought no node.
    pub(crate) fn note_purchase_failed(&mut self, key: &(PoolName, TierName), words: &str) {
        let at = self.now.wall;
        let record = self.tiers.entry(key.clone()).or_default();
        record.failed += 1;
        let in_a_row = record.trouble.as_ref().map_or(0, |it| it.in_a_row) + 1;
        let reason = match words.char_indices().nth(WORDS_MAX) {
            Some((end, _)) => format!("{}...", &words[..end]),
            None => words.to_owned(),
        };
        record.trouble = Some(Trouble {
            at,
            reason,
            in_a_row,
        });
    }

    /// A node of the tier came up.
    pub(crate) fn note_tier_delivers(&mut self, key: &(PoolName, TierName)) {
        if let Some(record) = self.tiers.get_mut(key) {
            record.trouble = None;
        }
    }

    /// Tiers of the pool of this job whose last purchase failed, in the order of the walk. Empty for a
    /// job that is not known.
    pub fn troubles_of(&self, job_id: &JobId) -> Vec<TierTrouble> {
        let spot = self.jobs.get(job_id).and_then(|job| job.spot.as_ref());
        let pool = spot.and_then(|spot| {
            let bundle = self.bundle(&spot.bundle_id)?;
            self.settings
                .pool(bundle.pool_of(spot.replica_index).as_str())
        });
        let Some(pool) = pool else { return Vec::new() };
        let told = pool.tiers.iter().filter_map(|tier| {
            let record = self.tiers.get(&(pool.name.clone(), tier.name.clone()))?;
            let trouble = record.trouble.as_ref()?;
            let again_in = match record.state {
                TierState::BackingOff { until } => Some(until - self.now.mono),
                TierState::Open | TierState::HalfOpen { .. } => None,
            };
            Some(TierTrouble {
                pool: pool.name.clone(),
                tier: tier.name.clone(),
                at: trouble.at,
                reason: trouble.reason.clone(),
                in_a_row: trouble.in_a_row,
                again_in,
            })
        });
        told.collect()
    }

    /// Counts by elastic tier, in the order of the settings (METR-10).
    pub(crate) fn tier_metrics(&self) -> Vec<TierMetrics> {
        let pools = self.settings.placement_pools.iter();
        pools
            .flat_map(|pool| pool.tiers.iter().map(move |tier| (pool, tier)))
            .filter(|(_, tier)| tier.is_elastic())
            .map(|(pool, tier)| {
                let record = self.tiers.get(&(pool.name.clone(), tier.name.clone()));
                TierMetrics {
                    pool_name: pool.name.clone(),
                    tier_name: tier.name.clone(),
                    purchases_failed: record.map_or(0, |record| record.failed),
                    backs_off: record
                        .is_some_and(|record| matches!(record.state, TierState::BackingOff { .. })),
                }
            })
            .collect()
    }
}

// === impl TierTrouble ===

impl fmt::Display for TierTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pool,
            tier,
            at,
            reason,
            in_a_row,
            ..
        } = self;
        write!(f, "pool {pool}, tier {tier} could not buy a node at {at}")?;
        if *in_a_row > 1 {
            write!(f, " ({in_a_row} in a row)")?;
        }
        write!(f, ": {reason}")?;
        if let Some(left) = self.again_in {
            write!(f, "; asked again in {left}")?;
        }
        Ok(())
    }
}
