//! Plays a random course: step after step with everything looked at after each, then an end in which
//! all faults are taken back, and the question whether it has come to rest as it should.
//!
//! Everything that was done is written down as steps of a scenario, so that a course that failed can
//! be played again, shortened, and kept.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use greenroom_types::node::{NodeState, NodeStoppingReason};
use greenroom_types::{Mono, PoolName, TierName, Wall};
use serde_json::{Value, json};

use super::deed::Chooser;
use super::fleet::Head;
use crate::format::{Deed, Scenario, SettingsCase, Step};
use crate::log::{Keep, Log};
use crate::world::{Memory, World};

/// Calls within one stretch of a course, above which a core is taken to go round in circles: courses
/// make some hundreds.
const CALLS_MAX: usize = 3_000;

/// Where the steps come from.
#[derive(Clone, Debug)]
pub(super) enum Steps<'a> {
    /// Drawn as it goes on.
    Drawn(Box<Chooser>),
    /// Written down; those that are not possible any more are left out.
    Given(std::slice::Iter<'a, Value>),
}

/// What must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// What sort of fault, without names and numbers: a shortened course must show the same.
    pub(super) kind: String,
    /// In full.
    pub(super) text: String,
    /// Steps that show it to a plain run of the scenario; none where the invariants do.
    pub(super) proof: Vec<Value>,
}

/// A course that was played.
#[derive(Clone, Debug, Default)]
pub(super) struct Played {
    /// Steps that were possible, with the refusals that they met.
    pub(super) steps: Vec<Value>,
    /// Steps of the end.
    pub(super) end: Vec<Value>,
    pub(super) fault: Option<Fault>,
    /// The last transitions.
    pub(super) last: Vec<String>,
    /// All transitions, if they were asked for.
    pub(super) lines: Vec<String>,
}

/// A world in which a course is played.
pub(super) struct Stage<'a> {
    pub(super) world: World,
    start: Wall,
    record: &'a mut Played,
    ending: bool,
    /// Most nodes that a tier may have.
    caps: BTreeMap<(PoolName, TierName), usize>,
}

/// Plays a course. `strong` adds room for everything at its end.
pub(super) fn play(head: &Head, steps: Steps<'_>, strong: bool, keep: Keep) -> Played {
    let mut record = Played::default();
    let played = catch_unwind(AssertUnwindSafe(|| {
        perform(head, steps, strong, keep, &mut record)
    }));
    record.fault = match played {
        Ok(Ok(())) => None,
        Ok(Err(fault)) => Some(fault),
        Err(panic) => Some(Fault::panicked(&*panic)),
    };
    record
}

fn perform(
    head: &Head,
    mut steps: Steps<'_>,
    strong: bool,
    keep: Keep,
    record: &mut Played,
) -> Result<(), Fault> {
    let mut stage = Stage::set(head, keep, record)?;
    let ran = stage.run(&mut steps, strong);
    let log = std::mem::take(&mut stage.world.log);
    record.last = log.last();
    record.lines = log.into_lines();
    ran
}

// === impl Fault ===

impl Fault {
    pub(super) fn new(kind: &str, text: impl Into<String>) -> Self {
        Self {
            kind: kind.to_owned(),
            text: text.into(),
            proof: Vec::new(),
        }
    }

    pub(super) fn shown_by(mut self, proof: impl IntoIterator<Item = Value>) -> Self {
        self.proof.extend(proof);
        self
    }

    /// A violation as the world writes it down: its sort is what is left without names and numbers.
    fn violation(text: &str) -> Self {
        let words = text.split_whitespace().skip(1);
        let kept: Vec<&str> = words
            .filter(|word| {
                word.chars()
                    .all(|c| c.is_ascii_alphabetic() || matches!(c, '_' | ':' | ',' | '(' | ')'))
            })
            .take(6)
            .collect();
        Self::new(&kept.join(" "), text)
    }

    fn panicked(panic: &(dyn std::any::Any + Send)) -> Self {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("without words");
        Self::new("panic", format!("panic: {text}"))
    }
}

// === impl Stage ===

impl<'a> Stage<'a> {
    fn set(head: &Head, keep: Keep, record: &'a mut Played) -> Result<Self, Fault> {
        let tree = json!({
            "scenario": 1,
            "settings": head.settings,
            "world": head.world,
            "nodes": head.nodes,
            "bundles": head.bundles,
            "steps": [],
        });
        let drawn = |text: String| Fault::new("drawn badly", text);
        let scenario = Scenario::of_tree(&tree).map_err(drawn)?;
        let SettingsCase::Valid(settings) = &scenario.settings else {
            return Err(drawn("the settings are faulty".to_owned()));
        };
        let memory = Memory {
            calls: true,
            ..Memory::default()
        };
        let caps = settings.placement_pools.iter().flat_map(|pool| {
            pool.tiers.iter().filter_map(|tier| {
                let most = tier.max_nodes? as usize;
                Some(((pool.name.clone(), tier.name.clone()), most))
            })
        });
        let caps = caps.collect();
        let mut world = World::new(&scenario, settings, memory, Log::new(keep))
            .map_err(|stuck| drawn(stuck.to_string()))?;
        world
            .connect()
            .map_err(|stuck| Fault::new("cannot connect", stuck.to_string()))?;
        Ok(Self {
            start: scenario.world.start,
            world,
            record,
            ending: false,
            caps,
        })
    }

    fn run(&mut self, steps: &mut Steps<'_>, strong: bool) -> Result<(), Fault> {
        self.look()?;
        loop {
            let step = match steps {
                Steps::Drawn(chooser) => chooser.next(&self.world),
                Steps::Given(list) => list.next().cloned(),
            };
            let Some(step) = step else { break };
            self.apply(step)?;
        }
        self.ending = true;
        self.come_to_rest(strong)
    }

    /// Plays one step; false if it is not possible now.
    pub(super) fn apply(&mut self, mut value: Value) -> Result<bool, Fault> {
        if let Some(keys) = value.as_object_mut() {
            keys.remove("refused");
        }
        let step = Step::of_tree(&value, self.world.mono().0, self.start)
            .map_err(|text| Fault::new("drawn badly", format!("{value}: {text}")))?;
        let Deed::Act(action) = &step.deed else {
            return Err(Fault::new("drawn badly", format!("{value} is no deed")));
        };
        self.advance(Mono(step.at))?;
        let list = if self.ending {
            &mut self.record.end
        } else {
            &mut self.record.steps
        };
        list.push(value);
        let at = list.len() - 1;
        self.world.log.step(at, &step.title);
        let acted = self.world.act(&step, action);
        self.look()?;
        let list = if self.ending {
            &mut self.record.end
        } else {
            &mut self.record.steps
        };
        match acted {
            Ok(None) => Ok(true),
            Ok(Some(refused)) => {
                list[at]["refused"] = refused.code.into();
                Ok(true)
            }
            Err(_) => {
                list.pop();
                Ok(false)
            }
        }
    }

    /// Lets time pass, with all that it brings.
    pub(super) fn advance(&mut self, to: Mono) -> Result<(), Fault> {
        let stuck = self.world.advance(to).err();
        self.look()?;
        match stuck {
            Some(stuck) => Err(Fault::new("stuck", stuck.to_string())),
            None => Ok(()),
        }
    }

    /// Everything that must hold at any moment.
    fn look(&mut self) -> Result<(), Fault> {
        if let Some(first) = self.world.watch.found().first() {
            return Err(Fault::violation(first));
        }
        if self.world.calls.len() > CALLS_MAX {
            let text = format!(
                "more than {CALLS_MAX} calls, the last {:?}",
                self.world.calls.last()
            );
            return Err(Fault::new("busy without end", text));
        }
        self.invariant_no_tier_is_overfull()?;
        self.invariant_no_ceiling_is_passed_by()
    }

    /// TIER-08, counted at the Manager.
    fn invariant_no_tier_is_overfull(&self) -> Result<(), Fault> {
        for ((pool, tier), most) in &self.caps {
            let here = self.world.ledger.nodes().filter(|node| {
                let tags = &node.metadata.tags;
                let tag = |key: &str| tags.get(key).map(String::as_str);
                let failed = node
                    .stop
                    .as_ref()
                    .is_some_and(|stop| stop.reason == NodeStoppingReason::CreateFailed);
                node.state != NodeState::Stopped
                    && !failed
                    && tag("pool") == Some(pool.as_str())
                    && tag("tier") == Some(tier.as_str())
            });
            let count = here.count();
            if count > *most {
                let text = format!("{count} nodes in {pool}/{tier}, which may have {most}");
                let proof = json!({
                    "at": crate::format::span::Span(self.world.mono().0).to_string(),
                    "expect": {"nodeCount": {"pool": pool, "tier": tier, "n": most}},
                });
                return Err(Fault::new("tier is overfull", text).shown_by([proof]));
            }
        }
        Ok(())
    }

    /// A job whose restarts exceed its ceiling has its verdict (CEIL-02, CEIL-12). What a policy read out
    /// of histories judges nobody: a history does not tell which losses counted, a migration that was
    /// lost with a reclaimed node among them (MIGR-27, HYDR-10). It is judged with the next failure.
    fn invariant_no_ceiling_is_passed_by(&self) -> Result<(), Fault> {
        let Some(policy) = self.world.policy.as_ref().filter(|policy| policy.is_live()) else {
            return Ok(());
        };
        for job in policy.jobs() {
            let job_id = &job.job.job_id;
            let restarts = policy.restart_count(self.world.now(), job_id);
            let rebuilt = self.world.rebuilt.get(job_id).copied().unwrap_or(0);
            if restarts <= rebuilt || self.world.revived.contains(job_id) {
                continue;
            }
            let report = policy.explain(job_id);
            let judged = matches!(
                report.standing,
                Some(
                    greenroom_policy::job::Standing::Terminal { .. }
                        | greenroom_policy::job::Standing::BundleBroken { .. }
                )
            );
            if report
                .restart_limit
                .is_some_and(|limit| restarts > limit as usize)
                && !judged
            {
                let text = format!(
                    "{job_id} has {restarts} restarts of {:?} and stands {:?}",
                    report.restart_limit, report.standing
                );
                return Err(Fault::new("ceiling passed by", text));
            }
        }
        Ok(())
    }
}
