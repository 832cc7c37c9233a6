//! The walk over the tiers of a pool (PLACE-25 to PLACE-30). Two walks where failure domains are
//! forbidden (PLACE-29): the first admits only what keeps the copies apart.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use greenroom_types::bundle::Bundle;
use greenroom_types::pool::{Pool, Tier};
use greenroom_types::{NodeId, PoolName};

use crate::decision::{Decision, Domain, FailureReason};
use crate::filter::{Case, DOMAINS, Fit, count};
use crate::fleet::{Fleet, KnownAz};
use crate::groups::BundlePlan;
use crate::key::Key;
use crate::node::{Node, TierGate};
use crate::request::Request;
use crate::trace::{Attempt, Filtered, Outcome, Reason, Survivor, Trace};

/// Where the job goes. Changes nothing.
pub fn place(fleet: &Fleet, request: &Request<'_>) -> Decision {
    decide(fleet, request, None, false, &Cell::default())
}

/// The same decision, with the number of nodes that were looked at for it: what it costs without a clock.
#[doc(hidden)]
pub fn place_counted(fleet: &Fleet, request: &Request<'_>) -> (Decision, usize) {
    let looked_at = Cell::default();
    let decision = decide(fleet, request, None, false, &looked_at);
    (decision, looked_at.get())
}

/// The same decision, found by looking at every node: what the index is measured against.
#[doc(hidden)]
pub fn place_by_scan(fleet: &Fleet, request: &Request<'_>) -> Decision {
    decide(fleet, request, None, true, &Cell::default())
}

/// The same decision, with the reason for every node looked at (PLACE-31).
pub fn place_traced(fleet: &Fleet, request: &Request<'_>) -> (Decision, Trace) {
    let mut trace = Trace::default();
    let decision = decide(fleet, request, Some(&mut trace), true, &Cell::default());
    (decision, trace)
}

/// Forbidden domains that a job on this node shares with the other copy as things stand: a job that was
/// placed apart may be so no longer, because the other copy has moved.
pub fn shared_domains(fleet: &Fleet, request: &Request<'_>, node: &NodeId) -> Vec<Domain> {
    let plan = plan_of(fleet, request);
    let is_known = matches!(plan, Cow::Borrowed(_));
    let case = Case::new(fleet, request, &plan, is_known);
    let violations = fleet.node(node).map(|node| case.violations(node));
    DOMAINS
        .into_iter()
        .zip(violations.unwrap_or_default())
        .filter_map(|(domain, violated)| violated.then_some(domain))
        .collect()
}

fn decide(
    fleet: &Fleet,
    request: &Request<'_>,
    mut trace: Option<&mut Trace>,
    scans: bool,
    looked_at: &Cell<usize>,
) -> Decision {
    let plan = plan_of(fleet, request);
    let is_known = matches!(plan, Cow::Borrowed(_));
    let case = Case::new(fleet, request, &plan, is_known);
    let name = request.bundle.pool_of(request.replica_index);
    let Some(index) = fleet.pool_index(name) else {
        if let Some(trace) = trace {
            trace.attempts.push(Attempt {
                pool: name.clone(),
                tier: None,
                compliant_only: false,
                candidates: fleet.considered().count(),
                filtered: Vec::new(),
                survivors: Vec::new(),
                outcome: Outcome::PoolNotConfigured,
                note: None,
            });
        }
        return failure(name.clone());
    };
    let walk = Walk {
        case: &case,
        pool: &fleet.pools()[index],
        index,
        compliant_only: true,
        scans,
        looked_at,
    };
    // With nothing of the other copy placed the first walk is the second.
    let two_walks = case.forbids() && (case.has_other_copy() || trace.is_some());
    let first = two_walks
        .then(|| walk.over_tiers(trace.as_deref_mut()))
        .flatten();
    first
        .or_else(|| {
            let walk = Walk {
                compliant_only: false,
                ..walk
            };
            walk.over_tiers(trace)
        })
        .unwrap_or_else(|| failure(name.clone()))
}

/// The rules of the bundle: those that the fleet has worked out, when it is the same bundle.
fn plan_of<'a>(fleet: &'a Fleet, request: &Request<'_>) -> Cow<'a, BundlePlan> {
    let known = fleet
        .plan(&request.bundle.bundle_id)
        .filter(|plan| std::ptr::eq::<Bundle>(&**plan.bundle(), request.bundle));
    match known {
        Some(plan) => Cow::Borrowed(plan.as_ref()),
        None => Cow::Owned(BundlePlan::new(&Arc::new(request.bundle.clone()))),
    }
}

fn failure(pool: PoolName) -> Decision {
    Decision::Failure {
        reason: FailureReason::NoCapacityInAnyPool,
        tried_pools: vec![pool],
    }
}

/// One walk.
pub(crate) struct Walk<'a> {
    pub(crate) case: &'a Case<'a>,
    pool: &'a Pool,
    /// Of the pool.
    pub(crate) index: usize,
    pub(crate) compliant_only: bool,
    /// Looks at all nodes.
    scans: bool,
    /// How many nodes were looked at so far.
    looked_at: &'a Cell<usize>,
}

/// How a tier's attempt to buy ended when nothing is bought.
struct NotBought(Outcome, Option<String>);

// === impl Walk ===

impl<'a> Walk<'a> {
    fn over_tiers(&self, mut trace: Option<&mut Trace>) -> Option<Decision> {
        self.pool
            .tiers
            .iter()
            .enumerate()
            .find_map(|(at, tier)| match trace.as_deref_mut() {
                None => {
                    let best = if self.scans {
                        self.scan(at, tier)
                    } else {
                        self.best_of(at, tier)
                    };
                    best.map(|(node, fit)| self.placed(tier, node, fit))
                        .or_else(|| self.buy(at, tier).ok())
                }
                Some(trace) => {
                    let (attempt, decision) = self.traced(at, tier);
                    trace.attempts.push(attempt);
                    decision
                }
            })
    }

    /// The best node of a tier by looking at each (PLACE-25).
    pub(crate) fn scan(&self, at: usize, tier: &Tier) -> Option<(&'a Node, Fit)> {
        let fleet = self.case.fleet;
        let mut best: Option<(&'a Node, Fit)> = None;
        for node in fleet.tier_members(self.index, at) {
            self.count_look();
            if !node.is_considered() || self.case.belongs(node, self.index, at).is_err() {
                continue;
            }
            let Ok(fit) = self.look_at(node, tier) else {
                continue;
            };
            let better = best
                .as_ref()
                .is_none_or(|(leader, so_far)| (fit.rank, &node.id) < (so_far.rank, &leader.id));
            if better {
                best = Some((node, fit));
            }
        }
        best
    }

    /// Counts a node that is looked at, be it only to pass it over.
    pub(crate) fn count_look(&self) {
        self.looked_at.set(self.looked_at.get() + 1);
    }

    pub(crate) fn look_at(&self, node: &Node, tier: &Tier) -> Result<Fit, Reason> {
        let fit = self.case.look_at(node, tier)?;
        if self.compliant_only && count(fit.violations) > 0 {
            return Err(Reason::ForbiddenDomain);
        }
        Ok(fit)
    }

    fn placed(&self, tier: &Tier, node: &Node, fit: Fit) -> Decision {
        let reliability = self.case.fleet.node_reliability(node);
        Decision::Place {
            node: node.id.clone(),
            pool: self.pool.name.clone(),
            tier: tier.name.clone(),
            gpu_index: fit.gpu_index,
            degraded: self.case.degraded(fit.violations, reliability),
        }
    }

    /// What the tier would buy (PLACE-26, PLACE-27).
    fn buy(&self, at: usize, tier: &Tier) -> Result<Decision, NotBought> {
        let case = self.case;
        let no = |outcome| Err(NotBought(outcome, None));
        let because = |outcome, note: &str| Err(NotBought(outcome, Some(note.to_owned())));
        if case.request.pin.is_some() {
            return no(Outcome::PinnedNoProvision);
        }
        if !tier.is_elastic() {
            return no(Outcome::Exhausted);
        }
        if case.is_tied() {
            return because(Outcome::Exhausted, "its group is on a node already");
        }
        let violations = case.violations_of_tier(tier);
        if self.compliant_only && count(violations) > 0 {
            return because(
                Outcome::Exhausted,
                "a new node would be too close to the other copy",
            );
        }
        let shapes = case.fleet.shapes(self.index, at);
        let fitting =
            shapes
                .iter()
                .zip(&tier.candidate_instance_types)
                .find_map(|(offer, shape)| {
                    let gpu_index = case.fits_shape(offer, self.index, tier.packing_strategy)?;
                    Some((shape, gpu_index))
                });
        let Some((shape, gpu_index)) = fitting else {
            return no(Outcome::NoInstanceTypeFits);
        };
        if let Some(max) = tier.max_nodes
            && case.fleet.tier_count(self.index, at) >= max as usize
        {
            return no(Outcome::AtMaxNodes);
        }
        match case.fleet.gate(self.index, at) {
            TierGate::Open => {}
            TierGate::BackOff => return no(Outcome::ProvisionBackoff),
            TierGate::HalfOpenBusy => {
                return because(
                    Outcome::ProvisionBackoff,
                    "its one probe has not started yet",
                );
            }
        }
        if !case.is_in_zone(tier.known_az()) {
            return no(Outcome::AzUnknown);
        }
        Ok(Decision::Provision {
            pool: self.pool.name.clone(),
            tier: tier.name.clone(),
            shape: Box::new(shape.clone()),
            launch_mode: tier.launch_mode,
            gpu_index,
            degraded: case.degraded(violations, Some(tier.reliability())),
        })
    }

    /// One tier with everything written down.
    fn traced(&self, at: usize, tier: &Tier) -> (Attempt, Option<Decision>) {
        let case = self.case;
        let mut attempt = Attempt {
            pool: self.pool.name.clone(),
            tier: Some(tier.name.clone()),
            compliant_only: self.compliant_only,
            candidates: 0,
            filtered: Vec::new(),
            survivors: Vec::new(),
            outcome: Outcome::Exhausted,
            note: None,
        };
        let mut best: Option<(Key, &Node, Fit)> = None;
        for node in case.fleet.considered() {
            attempt.candidates += 1;
            let fit = case
                .belongs(node, self.index, at)
                .and_then(|()| self.look_at(node, tier));
            match fit {
                Err(reason) => attempt.filtered.push(Filtered {
                    node: node.id.clone(),
                    reason,
                    detail: case.detail(node, reason),
                }),
                Ok(fit) => {
                    let key = Key {
                        rank: fit.rank,
                        node: node.id.clone(),
                    };
                    attempt.survivors.push(Survivor {
                        key: key.clone(),
                        gpu_index: fit.gpu_index,
                    });
                    if best.as_ref().is_none_or(|(leader, ..)| key < *leader) {
                        best = Some((key, node, fit));
                    }
                }
            }
        }
        attempt.survivors.sort_by(|a, b| a.key.cmp(&b.key));
        if let Some((_, node, fit)) = best {
            attempt.outcome = Outcome::Placed;
            return (attempt, Some(self.placed(tier, node, fit)));
        }
        match self.buy(at, tier) {
            Ok(decision) => {
                attempt.outcome = Outcome::Provisioned;
                (attempt, Some(decision))
            }
            Err(NotBought(outcome, note)) => {
                attempt.outcome = outcome;
                attempt.note = note;
                (attempt, None)
            }
        }
    }
}
