//! The end of a course: faults stop, and it must come to rest.
//!
//! Lines are mended, what was held is released, a policy is connected, and machines that their
//! provider was ending are gone. Then nothing may move for an hour (FIELD-67); whatever can run runs
//! where the policy says, nothing else does, and policy, Manager and fleet agree.

use std::collections::BTreeSet;

use greenroom_placement::Decision;
use greenroom_policy::drain::DrainPhase;
use greenroom_policy::effect::MirrorState;
use greenroom_policy::job::{BindingState, Standing};
use greenroom_types::bundle::{Bundle, SameAz};
use greenroom_types::call::Call;
use greenroom_types::job::JobState;
use greenroom_types::node::NodeState;
use greenroom_types::{JobId, Mono, NodeId};
use serde_json::{Value, json};

use super::play::{Fault, Stage};
use crate::format::names::JobPath;
use crate::format::span::Span;
use crate::view;

const MINUTE: u64 = 60_000;

/// Looks are this far apart.
const STRIDE: u64 = 10 * MINUTE;

/// Strides without a call after which it is at rest: an hour.
const QUIET: u32 = 6;

/// Strides before rest is looked for: back-offs, windows, schedules and stop times have passed.
const FIRST: u32 = 8;

/// Strides after which it should have come to rest: nothing in a course takes so long.
const LAST: u32 = 40;

// === impl Stage ===

impl Stage<'_> {
    /// Takes all faults back and sees that everything comes to rest as it should.
    pub(super) fn come_to_rest(&mut self, strong: bool) -> Result<(), Fault> {
        self.mend()?;
        if strong {
            self.make_room()?;
        }
        self.wait_for_rest()?;
        self.judge(strong)
    }

    fn now(&self) -> Value {
        Span(self.world.mono().0).to_string().into()
    }

    fn mend(&mut self) -> Result<(), Fault> {
        if !self.world.is_connected() {
            self.apply(json!({"at": self.now(), "restart": true}))?;
        }
        let kinds = [
            "nodeBooting",
            "nodeStarted",
            "inventory",
            "jobRunning",
            "jobStopped",
            "prepared",
            "migrationSignals",
            "imagePulls",
            "createOutcome",
        ];
        self.apply(json!({"at": self.now(), "release": kinds}))?;
        for seen in self.world.seen().into_iter().filter(|seen| seen.cut) {
            self.apply(json!({"at": self.now(), "heal": seen.name}))?;
        }
        Ok(())
    }

    /// As many large servers in each pool with a fixed tier as there are jobs.
    fn make_room(&mut self) -> Result<(), Fault> {
        let jobs = self.world.job_paths().len();
        let pools: Vec<String> = self
            .world
            .settings
            .placement_pools
            .iter()
            .filter(|pool| pool.tiers.iter().any(|tier| !tier.is_elastic()))
            .map(|pool| pool.name.to_string())
            .collect();
        for pool in pools {
            for n in 1..=jobs {
                let node = json!({
                    "id": format!("big-{pool}-{n}"), "pool": pool, "capacity": 64, "cores": 64,
                    "capabilities": [{"name": "sdi", "count": 16}],
                    "gpus": [
                        {"index": 0, "model": "l4", "capacity": 4},
                        {"index": 1, "model": "l4", "capacity": 4}
                    ],
                });
                self.apply(json!({"at": self.now(), "nodeJoins": node}))?;
            }
        }
        Ok(())
    }

    fn wait_for_rest(&mut self) -> Result<(), Fault> {
        let mut quiet = 0;
        let mut ending: BTreeSet<NodeId> = BTreeSet::new();
        let mut moved = Vec::new();
        for stride in 0..LAST {
            self.world.calls.clear();
            let from = self.world.mono();
            self.advance(Mono(from.0 + STRIDE))?;
            // What a provider has begun to end is gone some time.
            let stopping = self.stopping();
            for seen in stopping.iter().filter(|node_id| ending.contains(*node_id)) {
                let name = self.world.purchases.name(seen);
                self.apply(json!({"at": self.now(), "nodeStopped": name}))?;
            }
            ending = stopping.into_iter().collect();
            let calls = self.calls_that_move();
            quiet = if calls.is_empty() { quiet + 1 } else { 0 };
            if !calls.is_empty() {
                moved = calls;
            }
            if stride >= FIRST && quiet >= QUIET {
                return Ok(());
            }
        }
        let from = self.world.mono().0.saturating_sub(60 * MINUTE);
        let proof = json!({"calls": moved.iter().map(|name| json!({name: {}, "times": 0})).collect::<Vec<_>>()});
        let text = format!("no rest hours after the last input: {}", moved.join(", "));
        let fault = Fault::new(&format!("no rest: {}", moved.join(", ")), text);
        Err(fault.shown_by([
            json!({"at": Span(from).to_string(), "expect": {"calls": []}}),
            json!({"at": self.now(), "expect": proof}),
        ]))
    }

    /// Bought nodes that are stopping.
    fn stopping(&self) -> Vec<NodeId> {
        let seen = self.world.seen().into_iter();
        seen.filter(|seen| seen.elastic && seen.state == Some(NodeState::Stopping))
            .map(|seen| seen.id)
            .collect()
    }

    /// Names of the calls since the last look. Sweeping what is stopped moves nothing.
    fn calls_that_move(&self) -> Vec<String> {
        let moves = |call: &&Call| match call {
            Call::TerminateNode(node_id) => {
                let node = self.world.ledger.node(node_id);
                node.is_some_and(|node| node.state != NodeState::Stopped)
            }
            _ => true,
        };
        let names: BTreeSet<String> = self
            .world
            .calls
            .iter()
            .filter(moves)
            .map(|call| view::of_call(call).0)
            .collect();
        names.into_iter().collect()
    }

    /// At rest: does everything stand where it should?
    fn judge(&self, strong: bool) -> Result<(), Fault> {
        let Some(policy) = &self.world.policy else {
            return Err(Fault::new("no policy", "there is no policy at the end"));
        };
        if !policy.is_live() {
            return Err(Fault::new("not live", "the policy has not hydrated"));
        }
        for path in self.world.job_paths() {
            self.judge_job(&path, strong)?;
        }
        for (node_id, job_id) in self.world.running() {
            let bundled = self
                .world
                .ledger
                .job(&job_id)
                .is_none_or(|record| record.view.job.bundle_place().is_some());
            if bundled && policy.node_for_job(&job_id) != Some(&node_id) {
                let node = self.world.purchases.name(&node_id);
                let text = format!("{job_id} runs on {node}, where it does not belong");
                return Err(Fault::new("stray at rest", text));
            }
        }
        if let Some(active) = policy
            .migrations()
            .iter()
            .find(|migration| policy.migration_for_job(&migration.source_job_id).is_some())
        {
            let text = format!("the migration of {} never ends", active.source_job_id);
            return Err(Fault::new("endless migration", text));
        }
        self.judge_nodes()?;
        self.judge_spares()
    }

    fn judge_job(&self, path: &JobPath, strong: bool) -> Result<(), Fault> {
        let Some(policy) = &self.world.policy else {
            return Ok(());
        };
        let job_id = path.job_id();
        let report = policy.explain(&job_id);
        let running =
            json!({"at": self.now(), "expect": {"jobs": {path.to_string(): {"state": "running"}}}});
        let fault = |kind: &str, text: String| Fault::new(kind, text).shown_by([running.clone()]);
        match report.standing {
            Some(Standing::Bound) => {
                let node = report.node_id.clone().unwrap_or_default();
                let there = self.world.runs_there(&job_id, &node);
                if report.binding != Some(BindingState::Running) || !there {
                    let text = format!(
                        "{path} is bound to {} as {:?} and {} there",
                        self.world.purchases.name(&node),
                        report.binding,
                        if there { "runs" } else { "does not run" }
                    );
                    return Err(fault("bound and not running", text));
                }
                Ok(())
            }
            Some(Standing::Pending) => {
                let decision = report.trial.as_ref().map(|trial| &trial.decision);
                match decision {
                    Some(Decision::Place { .. } | Decision::Provision { .. }) => {
                        let text = format!("{path} waits although there is a place: {decision:?}");
                        Err(fault("left waiting", text))
                    }
                    _ if strong && self.is_free(path) => {
                        let text = format!("{path} waits although there is room for all");
                        Err(fault("no place in plenty", text))
                    }
                    _ => Ok(()),
                }
            }
            Some(
                Standing::Over
                | Standing::Terminal { .. }
                | Standing::Dormant
                | Standing::StoppedByRequest
                | Standing::BundleBroken { .. },
            ) => Ok(()),
            // What has ended is in no snapshot (CEIL-14).
            None if self.is_ended(&job_id) => Ok(()),
            other => {
                let text = format!("{path} stands {other:?} at rest");
                let kind = match other {
                    None => "unknown job".to_owned(),
                    Some(other) => format!("stands for ever: {}", name_of(&other)),
                };
                Err(fault(&kind, text))
            }
        }
    }

    /// The Manager has it as ended.
    fn is_ended(&self, job_id: &JobId) -> bool {
        let record = self.world.ledger.job(job_id);
        record.is_some_and(|record| {
            record.view.state == JobState::Post || record.view.terminal_state.is_some()
        })
    }

    /// No rule of its copy ties it to a node or zone, and its pool has room.
    fn is_free(&self, path: &JobPath) -> bool {
        let Some(bundle) = self.world.ledger.bundle(&path.bundle_id) else {
            return false;
        };
        let bundle: Bundle = bundle.bundle;
        let tied = bundle.intra_replica_placement.same_node_default
            || bundle.intra_replica_placement.same_az == SameAz::Hard
            || bundle
                .jobs
                .iter()
                .any(|job| !job.co_locate_with.is_empty() || !job.separate_from.is_empty());
        let pool = bundle.pool_of(path.replica_index);
        let room = self
            .world
            .settings
            .pool(pool.as_str())
            .is_some_and(|pool| pool.tiers.iter().any(|tier| !tier.is_elastic()));
        room && !tied
    }

    fn judge_nodes(&self) -> Result<(), Fault> {
        let Some(policy) = &self.world.policy else {
            return Ok(());
        };
        let mirror = policy.nodes();
        for node in self.world.ledger.nodes() {
            let node_id = &node.metadata.node_id;
            let name = self.world.purchases.name(node_id);
            let shown = mirror.iter().find(|view| view.node_id == *node_id);
            let shown = shown.map(|view| view.state);
            match (node.state, shown) {
                (NodeState::Running, Some(MirrorState::Running))
                | (NodeState::Stopped, Some(MirrorState::Stopped) | None) => {}
                (NodeState::Starting, Some(MirrorState::Starting)) if !node.is_elastic() => {}
                (state, shown) => {
                    let text = format!("{name} is {state:?}, the policy has it as {shown:?}");
                    return Err(Fault::new("node at rest", text));
                }
            }
            let drain = policy.drain_status(node_id);
            let open = drain.is_some_and(|drain| {
                !matches!(
                    drain.phase,
                    DrainPhase::Done | DrainPhase::Partial | DrainPhase::Failed
                )
            });
            if open {
                let text = format!("the drain of {name} never ends: {drain:?}");
                let proof =
                    json!({"at": self.now(), "expect": {"drain": {"node": name, "phase": "done"}}});
                return Err(Fault::new("endless drain", text).shown_by([proof]));
            }
        }
        Ok(())
    }

    fn judge_spares(&self) -> Result<(), Fault> {
        let Some(policy) = &self.world.policy else {
            return Ok(());
        };
        let mirror = policy.nodes();
        for entry in &policy.settings().hot_spares {
            let count = policy.spare_count(&entry.pool);
            let target = entry.target_count as usize;
            let pool = policy.settings().pool(entry.pool.as_str());
            let tier = pool.and_then(|pool| pool.tiers.iter().find(|tier| tier.is_elastic()));
            let proof = json!({
                "at": self.now(),
                "expect": {"spares": {"pool": entry.pool, "live": target, "target": target}},
            });
            let text = format!("{} has {count:?}, {target} wanted", entry.pool);
            if let Some(tier) = tier {
                let size = mirror.iter().filter(|view| {
                    view.pool.as_ref() == Some(&entry.pool)
                        && view.tier.as_ref() == Some(&tier.name)
                        && view.state != MirrorState::Stopped
                        && !self.is_of_no_use(&view.node_id)
                });
                let full = tier
                    .max_nodes
                    .is_some_and(|max| size.count() >= max as usize);
                if count.live < target && !full {
                    return Err(Fault::new("spares missing", text).shown_by([proof]));
                }
            }
            let bought = mirror.iter().filter(|view| {
                view.pool.as_ref() == Some(&entry.pool)
                    && view.state == MirrorState::Running
                    && policy.is_unconsumed_spare(&view.node_id)
                    && self.is_bought(&view.node_id)
                    && !policy.is_cordoned(&view.node_id)
                    && policy.inventory(&view.node_id).is_some_and(|picture| {
                        let takes_jobs = !picture.disk_low && !picture.is_runtime_down();
                        picture.reachable && !picture.cordoned && takes_jobs
                    })
            });
            if count.live > target && bought.count() > target {
                return Err(Fault::new("spares in excess", text).shown_by([proof]));
            }
        }
        Ok(())
    }

    /// A spare that says of itself that it takes no start, with nothing on it: it makes room for another one
    /// (SPARE-26).
    fn is_of_no_use(&self, node_id: &NodeId) -> bool {
        let Some(policy) = &self.world.policy else {
            return false;
        };
        let takes_nothing = policy.inventory(node_id).is_some_and(|picture| {
            picture.reachable
                && picture.assigned_jobs.is_empty()
                && (picture.disk_low || picture.is_runtime_down())
        });
        takes_nothing && self.is_bought(node_id) && policy.is_unconsumed_spare(node_id)
    }

    fn is_bought(&self, node_id: &NodeId) -> bool {
        let node = self.world.ledger.node(node_id);
        node.is_some_and(greenroom_ledger::Node::is_elastic)
    }
}

fn name_of(standing: &Standing) -> String {
    let shown = format!("{standing:?}");
    let end = shown.find(|c: char| !c.is_alphanumeric());
    shown[..end.unwrap_or(shown.len())].to_owned()
}
