//! What happens next in a world, drawn by chance from what can happen in it now.
//!
//! A draw names real objects: a node that is up dies, a job that runs fails. Which kinds of deeds are
//! drawn at all, and how often, is part of the seed, so that some runs are all partitions and others
//! all migrations. A deed may still turn out impossible; it is then left out by whoever plays it.

use greenroom_types::bundle::Bundle;
use greenroom_types::node::NodeState;
use serde_json::{Map, Value, json};

use super::bundle::{self, Market};
use super::dice::Dice;
use super::fleet;
use crate::format::names::JobPath;
use crate::format::span::Span;
use crate::world::{Seen, World};

/// Furthest that the wall clock is set back altogether, in minutes.
const BACK_MAX: u64 = 20;
/// Purchases that fail in a course: each may put off the next by ten minutes, and it must come to rest.
const FAILING_MAX: u64 = 12;

/// Every kind of deed, with its weight among the others.
const KINDS: [(Kind, u64); 41] = [
    (Kind::CreateBundle, 14),
    (Kind::UpdateBundle, 6),
    (Kind::DeleteBundle, 3),
    (Kind::StartBundleJob, 4),
    (Kind::StopBundleJob, 3),
    (Kind::SetBundleStopTime, 2),
    (Kind::Cordon, 3),
    (Kind::Uncordon, 3),
    (Kind::Drain, 5),
    (Kind::Evict, 2),
    (Kind::Terminate, 2),
    (Kind::Interrupt, 3),
    (Kind::Migrate, 10),
    (Kind::AbortMigration, 3),
    (Kind::UpdateHotSpares, 4),
    (Kind::UpdateHotSpareNode, 2),
    (Kind::SetTemplateImages, 2),
    (Kind::DryRun, 1),
    (Kind::Admit, 1),
    (Kind::Restart, 3),
    (Kind::Close, 1),
    (Kind::NodeJoins, 4),
    (Kind::NodeReturns, 6),
    (Kind::NodeStopping, 3),
    (Kind::NodeStopped, 4),
    (Kind::NodeDies, 7),
    (Kind::Inventory, 5),
    (Kind::SetTags, 3),
    (Kind::Notice, 3),
    (Kind::JobFails, 9),
    (Kind::JobRejected, 5),
    (Kind::JobRunning, 2),
    (Kind::JobCompletes, 2),
    (Kind::Duplicate, 5),
    (Kind::ImagePulled, 2),
    (Kind::Signal, 3),
    (Kind::CreateFails, 4),
    (Kind::StartFails, 3),
    (Kind::Clock, 2),
    (Kind::Line, 7),
    (Kind::Holding, 6),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    CreateBundle,
    UpdateBundle,
    DeleteBundle,
    StartBundleJob,
    StopBundleJob,
    SetBundleStopTime,
    Cordon,
    Uncordon,
    Drain,
    Evict,
    Terminate,
    Interrupt,
    Migrate,
    AbortMigration,
    UpdateHotSpares,
    UpdateHotSpareNode,
    SetTemplateImages,
    DryRun,
    Admit,
    Restart,
    Close,
    NodeJoins,
    NodeReturns,
    NodeStopping,
    NodeStopped,
    NodeDies,
    Inventory,
    SetTags,
    Notice,
    JobFails,
    JobRejected,
    JobRunning,
    JobCompletes,
    Duplicate,
    ImagePulled,
    Signal,
    CreateFails,
    StartFails,
    Clock,
    /// Disconnect and connect, partition and heal.
    Line,
    /// Hold and release.
    Holding,
}

/// Draws one deed after the other.
#[derive(Clone, Debug)]
pub(super) struct Chooser {
    dice: Dice,
    kinds: Vec<(Kind, u64)>,
    market: Market,
    /// Deeds that are left.
    left: u64,
    /// How long it waits between two, as a rule.
    pace: u64,
    bundles: u64,
    nodes: u64,
    back: u64,
    failing: u64,
    held: bool,
}

// === impl Chooser ===

impl Chooser {
    pub(super) fn new(seed: u64, settings: &Value) -> Self {
        let mut dice = Dice::new(seed, 4);
        let mut kinds = KINDS.to_vec();
        for (_, weight) in &mut kinds {
            *weight *= dice.of([0, 1, 1, 1, 3]);
        }
        let left = dice.within(4, 40);
        let pace = dice.of([50, 1_000, 5_000, 30_000]);
        Self {
            dice,
            kinds,
            market: Market::of(settings),
            left,
            pace,
            bundles: 0,
            nodes: 0,
            back: 0,
            failing: 0,
            held: false,
        }
    }

    /// The next step of the world; none when it is over.
    pub(super) fn next(&mut self, world: &World) -> Option<Value> {
        self.left = self.left.checked_sub(1)?;
        let wait = match self.dice.below(10) {
            0..=2 => 0,
            3 => self.dice.below(40),
            4..=6 => self.dice.below(self.pace),
            7 | 8 => self.dice.below(4 * self.pace),
            _ => self.dice.below(90_000),
        };
        let at = Span(world.mono().0 + wait).to_string();
        for _ in 0..12 {
            if let Some(mut deed) = self.draw(world) {
                deed.insert("at".to_owned(), at.into());
                return Some(Value::Object(deed));
            }
        }
        Some(json!({"at": at, "hold": []}))
    }

    fn draw(&mut self, world: &World) -> Option<Map<String, Value>> {
        let kind = if world.is_connected() {
            self.dice.weighted(&self.kinds)?
        } else if self.dice.chance(30) {
            return deed(self.dice.of(["connect", "restart"]), true);
        } else {
            let kind = self.dice.weighted(&self.kinds)?;
            if !happens_alone(kind) {
                return None;
            }
            kind
        };
        let nodes = world.seen();
        match kind {
            Kind::CreateBundle
            | Kind::UpdateBundle
            | Kind::DeleteBundle
            | Kind::SetBundleStopTime
            | Kind::Admit => self.about_bundles(kind, world),
            Kind::StartBundleJob
            | Kind::StopBundleJob
            | Kind::Migrate
            | Kind::AbortMigration
            | Kind::DryRun
            | Kind::JobFails
            | Kind::JobRejected
            | Kind::JobRunning
            | Kind::JobCompletes
            | Kind::Duplicate
            | Kind::Signal => self.about_jobs(kind, world, &nodes),
            Kind::NodeJoins => self.joins(),
            Kind::UpdateHotSpares | Kind::SetTemplateImages => self.settings(kind),
            Kind::CreateFails => self.no_stock(),
            Kind::Restart => deed("restart", true),
            Kind::Close => deed("close", true),
            Kind::Clock => self.clock(),
            Kind::Line => self.line(world, &nodes),
            Kind::Holding => self.holding(),
            _ => self.about_nodes(kind, world, &nodes),
        }
    }

    fn about_bundles(&mut self, kind: Kind, world: &World) -> Option<Map<String, Value>> {
        let all: Vec<Bundle> = world.ledger.bundles().map(|status| status.bundle).collect();
        match kind {
            Kind::CreateBundle => {
                if all.len() > 6 {
                    return None;
                }
                let id = format!("c{}", self.bundles);
                self.bundles += 1;
                let drawn = bundle::draw(&mut self.dice, &id, &self.market);
                deed("createBundle", drawn)
            }
            Kind::Admit => {
                let drawn = bundle::draw(&mut self.dice, "asked", &self.market);
                deed("admit", drawn)
            }
            Kind::UpdateBundle => {
                let id = self.dice.one(&all)?.bundle_id.clone();
                let drawn = bundle::draw(&mut self.dice, id.as_str(), &self.market);
                deed("updateBundle", drawn)
            }
            Kind::DeleteBundle => deed("deleteBundle", self.dice.one(&all)?.bundle_id.as_str()),
            _ => {
                let id = self.dice.one(&all)?.bundle_id.to_string();
                let mut stop = json!({"bundle": id});
                if self.dice.chance(70) {
                    stop["stopAt"] = bundle::ahead(&mut self.dice);
                }
                deed("setBundleStopTime", stop)
            }
        }
    }

    fn about_jobs(
        &mut self,
        kind: Kind,
        world: &World,
        nodes: &[Seen],
    ) -> Option<Map<String, Value>> {
        let all = world.job_paths();
        let live: Vec<&JobPath> = all.iter().filter(|job| world.is_at_worker(job)).collect();
        let any = self.dice.one(&all)?.to_string();
        let there = self.dice.one(&live).map(ToString::to_string);
        match kind {
            Kind::StartBundleJob => deed("startBundleJob", any),
            Kind::StopBundleJob => deed("stopBundleJob", any),
            Kind::DryRun => deed("dryRun", any),
            Kind::Duplicate => deed("duplicate", any),
            Kind::JobFails => deed("jobFails", json!({"job": there?, "reason": "crashed"})),
            Kind::JobCompletes => deed("jobCompletes", there?),
            Kind::JobRunning => deed("jobRunning", there?),
            Kind::JobRejected => {
                // A worker refuses a start, not what it is asked to hand over.
                let job: JobPath = there.as_ref()?.parse().ok()?;
                let policy = world.policy.as_ref()?;
                if policy.migration_for_job(&job.job_id()).is_some() {
                    return None;
                }
                let mut rejected = json!({"job": there?, "reason": "no"});
                if self.dice.chance(12) {
                    rejected["invalidSpec"] = true.into();
                }
                deed("jobRejected", rejected)
            }
            Kind::Migrate => {
                let mut migrate = json!({
                    "job": there?,
                    "strategy": self.dice.of(["stopThenStart", "overlap", "handover"]),
                });
                if self.dice.chance(25) {
                    migrate["target"] = self.dice.one(nodes)?.name.clone().into();
                }
                if self.dice.chance(10) {
                    migrate["overrideReservation"] = true.into();
                }
                deed("migrate", migrate)
            }
            _ => {
                let policy = world.policy.as_ref()?;
                let moving = policy.migrations();
                let moving = self.dice.one(&moving)?;
                let job = JobPath::of_job_id(moving.source_job_id.as_str())?.to_string();
                if kind == Kind::AbortMigration {
                    return deed("abortMigration", json!({"job": job, "reason": "asked"}));
                }
                let side = self.dice.of(["source", "target"]);
                let kinds = [
                    "state",
                    "refuse",
                    "ready",
                    "stoppedOutput",
                    "applied",
                    "aborted",
                ];
                let kind = self.dice.of(kinds);
                let signal = json!({"job": job, "side": side, "kind": kind, "payload": "p"});
                deed("signal", signal)
            }
        }
    }

    fn about_nodes(
        &mut self,
        kind: Kind,
        world: &World,
        nodes: &[Seen],
    ) -> Option<Map<String, Value>> {
        let fits = |seen: &&Seen| match kind {
            Kind::NodeDies | Kind::Inventory | Kind::Notice => seen.up,
            Kind::NodeStopping => seen.up && seen.state == Some(NodeState::Running),
            Kind::NodeReturns => {
                let ended = seen.elastic && seen.state == Some(NodeState::Stopped);
                !seen.up && !ended && seen.state != Some(NodeState::Starting)
            }
            Kind::NodeStopped => seen.state == Some(NodeState::Stopping),
            Kind::ImagePulled => !seen.pulls.is_empty(),
            _ => seen.state.is_some(),
        };
        let fit: Vec<&Seen> = nodes.iter().filter(fits).collect();
        let seen = *self.dice.one(&fit)?;
        let name = seen.name.as_str();
        match kind {
            Kind::Cordon => deed("cordon", name),
            Kind::Uncordon => deed("uncordon", name),
            Kind::Evict => deed("evict", name),
            Kind::Terminate => deed("terminate", name),
            Kind::NodeDies => deed("nodeDies", name),
            Kind::NodeStopped => deed("nodeStopped", name),
            Kind::Drain => {
                let mut drain = json!({"node": name});
                if self.dice.chance(60) {
                    drain["timeout"] = self.dice.of(["0s", "2s", "30s", "5m"]).into();
                }
                drain["force"] = self.dice.chance(40).into();
                drain["strategy"] = self
                    .dice
                    .of(["stopThenStart", "overlap", "handover"])
                    .into();
                if self.dice.chance(25) {
                    drain["forUpgrade"] = true.into();
                }
                deed("drain", drain)
            }
            Kind::Interrupt | Kind::Notice => {
                let kind_of = self.dice.of(["spot-interruption", "rebalance"]);
                let mut notice = json!({"node": name, "kind": kind_of});
                if self.dice.chance(60) {
                    let ahead = world.mono().0 + self.dice.of([0, 20_000, 120_000]);
                    notice["deadline"] = format!("+{}", Span(ahead)).into();
                }
                let key = if kind == Kind::Notice {
                    "notice"
                } else {
                    "interrupt"
                };
                deed(key, notice)
            }
            Kind::UpdateHotSpareNode => {
                let mut change = json!({"node": name});
                match self.dice.below(3) {
                    0 => change["warmFor"] = json!([self.dice.of(["x", "y"])]),
                    1 => change["reservedFor"] = json!([self.dice.of(["x", "y"])]),
                    _ => change["exclusive"] = self.dice.chance(50).into(),
                }
                deed("updateHotSpareNode", change)
            }
            Kind::NodeReturns => {
                let mut jobs = Vec::new();
                for job in &seen.past {
                    let job = job.to_string();
                    if self.dice.chance(60) && !jobs.contains(&job) {
                        jobs.push(job);
                    }
                }
                deed("nodeReturns", json!({"node": name, "jobs": jobs}))
            }
            Kind::NodeStopping => {
                let reasons: &[&str] = if seen.elastic {
                    &[
                        "PROVIDER_STOP",
                        "PROVIDER_TERMINATE",
                        "USER_REQUESTED",
                        "UNKNOWN_NODE",
                    ]
                } else {
                    &[
                        "PROVIDER_STOP",
                        "USER_REQUESTED",
                        "HEALTH_PING_TIME_EXCEEDED",
                    ]
                };
                let reason = self.dice.one(reasons)?;
                deed("nodeStopping", json!({"node": name, "reason": reason}))
            }
            Kind::ImagePulled => {
                let reference = self.dice.one(&seen.pulls)?;
                let ok = self.dice.chance(50);
                deed(
                    "imagePulled",
                    json!({"node": name, "ref": reference, "ok": ok}),
                )
            }
            Kind::StartFails => {
                let next = self.dice.within(1, 3);
                deed("startFails", json!({"node": name, "next": next}))
            }
            Kind::SetTags => {
                let (key, value) = self
                    .dice
                    .of([
                        ("spare", json!("true")),
                        ("spare", json!("false")),
                        ("spare", Value::Null),
                        ("reservedFor", json!("x")),
                        ("exclusive", json!("true")),
                        ("rack", json!("7")),
                    ]
                    .each_ref())
                    .clone();
                deed("setTags", json!({"node": name, "tags": {key: value}}))
            }
            _ => self.picture(name),
        }
    }

    fn picture(&mut self, name: &str) -> Option<Map<String, Value>> {
        let mut picture = json!({"node": name});
        match self.dice.below(8) {
            0 | 1 => {
                let vcpus = self.dice.of([1, 2, 4, 8, 16]);
                picture["capacity"] = vcpus.into();
                picture["cores"] = vcpus.into();
            }
            2 => picture["cordoned"] = self.dice.chance(50).into(),
            3 => picture["az"] = self.dice.of(["az-a", "az-b"]).into(),
            4 => picture["heldImages"] = json!(["reg/x:1"]),
            5 => picture["disks"] = fleet::disks(&mut self.dice),
            6 => picture["runtime"] = self.dice.of(fleet::RUNTIMES).into(),
            _ => {
                picture["utilizationCap"] =
                    self.dice.of([json!(0.5), json!(1.0)].each_ref()).clone()
            }
        }
        deed("inventory", picture)
    }

    fn joins(&mut self) -> Option<Map<String, Value>> {
        if self.nodes > 5 {
            return None;
        }
        let pool = self.dice.one(&self.market.pools)?.clone();
        let tiers = pool["tiers"].as_array()?;
        // A cap is the policy's to keep: nobody else adds to a tier that has one.
        let open: Vec<&Value> = tiers
            .iter()
            .filter(|tier| tier["maxNodes"].is_null())
            .collect();
        let tier = (*self.dice.one(&open)?).clone();
        self.nodes += 1;
        let id = format!("m{}", self.nodes);
        let node = fleet::node(&mut self.dice, &id, &pool, &tier);
        deed("nodeJoins", node)
    }

    fn settings(&mut self, kind: Kind) -> Option<Map<String, Value>> {
        if kind == Kind::SetTemplateImages {
            let images = self
                .dice
                .of([json!([]), json!(["reg/x:2"]), json!(["reg/x:1", "reg/x:2"])].each_ref())
                .clone();
            return deed("setTemplateImages", json!({"x": images}));
        }
        let list = fleet::spares(&mut self.dice, &self.market.pools);
        deed("updateHotSpares", list)
    }

    fn no_stock(&mut self) -> Option<Map<String, Value>> {
        let pool = self.dice.one(&self.market.pools)?;
        let tiers = pool["tiers"].as_array()?;
        let tier = self.dice.one(tiers)?["name"].clone();
        let next = self.dice.within(1, 3);
        let when = self.dice.of(["call", "later"]);
        self.failing += next;
        if self.failing > FAILING_MAX {
            return None;
        }
        deed(
            "createFails",
            json!({"tier": tier, "next": next, "when": when}),
        )
    }

    fn clock(&mut self) -> Option<Map<String, Value>> {
        let minutes = self.dice.within(1, 10);
        if self.dice.chance(50) {
            return deed("clock", json!({"wallJump": format!("+{minutes}m")}));
        }
        self.back += minutes;
        if self.back > BACK_MAX {
            return None;
        }
        deed("clock", json!({"wallJump": format!("-{minutes}m")}))
    }

    fn line(&mut self, world: &World, nodes: &[Seen]) -> Option<Map<String, Value>> {
        if world.is_connected() && self.dice.chance(15) {
            return deed("disconnect", true);
        }
        let fit: Vec<&Seen> = nodes.iter().filter(|seen| seen.up).collect();
        let seen = self.dice.one(&fit)?;
        deed(
            if seen.cut { "heal" } else { "partition" },
            seen.name.as_str(),
        )
    }

    fn holding(&mut self) -> Option<Map<String, Value>> {
        let kind = self.dice.of([
            "nodeBooting",
            "nodeStarted",
            "inventory",
            "jobRunning",
            "jobStopped",
            "prepared",
            "migrationSignals",
            "imagePulls",
            "createOutcome",
        ]);
        self.held = !self.held || self.dice.chance(30);
        deed(if self.held { "hold" } else { "release" }, json!([kind]))
    }
}

/// It can happen while no policy looks.
const fn happens_alone(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::NodeJoins
            | Kind::NodeReturns
            | Kind::NodeStopping
            | Kind::NodeStopped
            | Kind::NodeDies
            | Kind::Inventory
            | Kind::SetTags
            | Kind::Notice
            | Kind::JobRunning
            | Kind::JobCompletes
            | Kind::JobFails
            | Kind::Clock
            | Kind::Line
            | Kind::Holding
    )
}

fn deed(key: &str, value: impl Into<Value>) -> Option<Map<String, Value>> {
    Some(Map::from_iter([(key.to_owned(), value.into())]))
}
