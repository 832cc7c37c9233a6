//! Buying nodes for jobs: the request, the prospective node, what happens when it does not come, and
//! the back-off of tiers that do not deliver (PROV).

use std::sync::Arc;

use greenroom_placement::TierGate;
use greenroom_types::call::{Call, CreateAwsNode, CreateOciNode, Detail, Status};
use greenroom_types::node::{NodeMetadata, NodeStoppingReason, ProviderMetadata};
use greenroom_types::pool::{CandidateInstanceType, Tier, TierKind};
use greenroom_types::{JobId, MigrationId, Millis, Mono, NodeId, PoolName, Role, Tags, TierName};

use crate::calls::Purpose;
use crate::effect::{Effects, ErrorInfo, MirrorState};
use crate::event::CallFailure;
use crate::node::{Ended, NodeRecord};
use crate::policy::Policy;
use crate::purchases::Trouble;
use crate::settings::{TIER_BACKOFF_MAX, TIER_BACKOFF_MIN};
use crate::timer::{Due, Timer};

/// Longest node id that the Manager takes (MNODE-02).
const NODE_ID_MAX: usize = 200;

/// A node that was asked for and has not started.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) pool: PoolName,
    pub(crate) tier: TierName,
    pub(crate) wanted: Wanted,
    /// The Manager accepted the request, or has told of the node.
    pub(crate) accepted: bool,
}

/// What a node was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The job whose decision it was.
    Job(JobId),
    /// The migration whose target it is for.
    Target(MigrationId),
    /// The reserve of its pool.
    Spare,
    /// Whatever a predecessor wanted; the Manager shows the node.
    Shown,
    /// Whatever a predecessor wanted; the Manager shows no such node (HYDR-09).
    Unknown,
}

/// How a tier delivers (PROV-12).
#[derive(Clone, Debug, Default)]
pub(crate) struct TierRecord {
    pub(crate) state: TierState,
    /// A failure that no time can cure was told; not again until the tier delivers.
    pub(crate) told: bool,
    /// Purchases that brought no node, and why the last one did not (PROV-15).
    pub(crate) failed: u64,
    pub(crate) trouble: Option<Trouble>,
    /// The present back-off; the next one is twice as long, up to a limit.
    pub(crate) backoff: Millis,
}

/// Whether a tier may be asked for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TierState {
    /// It may.
    #[default]
    Open,
    /// Not before the end of its back-off.
    BackingOff { until: Mono },
    /// For one node, and when that one has started for more.
    HalfOpen { probe: Option<NodeId> },
}

// === impl Policy: asking ===

impl Policy {
    /// Id of a node bought for a job: `<uuid>.<jobId>.<role>` (NODE-04), cut in the middle where the
    /// Manager would refuse it as too long.
    pub(crate) fn new_node_id(&mut self, job_id: &JobId, role: &Role) -> NodeId {
        let uuid = self.ids.node_uuid();
        let room = NODE_ID_MAX.saturating_sub(uuid.len() + role.as_str().len() + 2);
        let job: String = job_id
            .as_str()
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || "._@-".contains(*c))
            .take(room)
            .collect();
        NodeId::new(format!("{uuid}.{job}.{role}"))
    }

    /// Records a prospective node (PROV-01): the mirror shows it and, where its shape is known,
    /// placement counts on it.
    pub(crate) fn request_node(
        &mut self,
        node_id: &NodeId,
        asked: Asked,
        tags: Tags,
        shape: Option<&CandidateInstanceType>,
    ) {
        let metadata = Arc::new(NodeMetadata {
            node_id: node_id.clone(),
            tags,
            created_at: self.now.wall,
            provider: ProviderMetadata::Unknown,
        });
        let key = (asked.pool.clone(), asked.tier.clone());
        self.mirror_node(&metadata, MirrorState::Starting);
        if let Some(record) = self.nodes.get_mut(node_id) {
            record.asked = Some(asked);
        }
        if let Some(shape) = shape {
            self.fleet.set_prospective(node_id, shape);
        }
        if let Some(tier) = self.tiers.get_mut(&key)
            && let TierState::HalfOpen { probe } = &mut tier.state
        {
            *probe = Some(node_id.clone());
            self.set_gate(&key);
        }
    }

    /// True unless the tier backs off or waits for its probe (PROV-12).
    pub(crate) fn may_provision(&self, pool: &PoolName, tier: &TierName) -> bool {
        let record = self.tiers.get(&(pool.clone(), tier.clone()));
        record.is_none_or(|record| {
            matches!(
                record.state,
                TierState::Open | TierState::HalfOpen { probe: None }
            )
        })
    }

    /// Sends the create call and starts the clock on it (PROV-01, PROV-06).
    pub(crate) fn send_create(
        &mut self,
        node_id: &NodeId,
        tier: &Tier,
        shape: &CandidateInstanceType,
        region: &str,
        out: &mut Effects,
    ) {
        let Some(record) = self.nodes.get(node_id) else {
            return;
        };
        let Some(asked) = &record.asked else { return };
        let purpose = Purpose::Create {
            node_id: node_id.clone(),
            wanted: asked.wanted.clone(),
        };
        let call = create_call(node_id, tier, shape, region, record.metadata.tags.clone());
        self.send(call, purpose, out);
        let due = Due::Mono(self.now.mono + tier.provision_timeout());
        self.timers
            .set(Timer::ProvisionTimeout(node_id.clone()), due);
    }

    /// Tags of a node bought for a job (NODE-02).
    pub(crate) fn tags_for(&self, job_id: &JobId, pool: &PoolName, tier: &Tier) -> Tags {
        let mut tags = Tags::new();
        let mut tag = |key: &str, value: &str| tags.insert(key.to_owned(), value.to_owned());
        tag("auto-manager", "true");
        tag("jobId", job_id.as_str());
        tag("pool", pool.as_str());
        tag("tier", tier.name.as_str());
        tag("reliability", tier.reliability().as_tag());
        if let Some(job) = self.jobs.get(job_id) {
            tag("role", job.slot().as_str());
            if let Some(spot) = &job.spot {
                tag("bundleId", spot.bundle_id.as_str());
                tag("replicaIndex", &spot.replica_index.to_string());
                tag("jobName", spot.job_name.as_str());
            }
        }
        tags
    }
}

fn create_call(
    node_id: &NodeId,
    tier: &Tier,
    shape: &CandidateInstanceType,
    region: &str,
    tags: Tags,
) -> Call {
    let region = region.to_owned();
    match tier.kind {
        TierKind::Oci => Call::CreateOciNode(Box::new(CreateOciNode {
            node_id: node_id.clone(),
            tags,
            availability_domain: region,
            architecture: "x86_64".to_owned(),
            shape: shape.instance_type.clone(),
            subnet: String::new(),
            ocpus: shape.ocpus,
            memory_gb: shape.memory_gb,
            launch_mode: tier.launch_mode,
        })),
        // Tiers of local servers buy nothing (CONF-12).
        TierKind::Aws | TierKind::LocalServers => Call::CreateAwsNode(Box::new(CreateAwsNode {
            node_id: node_id.clone(),
            tags,
            region,
            instance_type: shape.instance_type.clone(),
            launch_mode: tier.launch_mode,
            root_volume: tier.root_volume.clone(),
        })),
    }
}

// === impl Policy: outcomes ===

impl Policy {
    pub(crate) fn create_replied(
        &mut self,
        node_id: &NodeId,
        wanted: &Wanted,
        result: Result<(), CallFailure>,
        out: &mut Effects,
    ) {
        let asked = self
            .nodes
            .get_mut(node_id)
            .and_then(|record| record.asked.as_mut());
        // The reply is lost, but the Manager has told of the node: it was accepted.
        let told = asked.as_ref().is_none_or(|asked| asked.accepted);
        let failure = match result {
            Err(CallFailure::Unavailable(_) | CallFailure::TimedOut) if told => None,
            result => result.err(),
        };
        if let Some(failure) = failure {
            if matches!(wanted, Wanted::Job(_) | Wanted::Target(_)) {
                self.counters.placements_dispatch_failed += 1;
            }
            if let Wanted::Target(id) = wanted {
                // The first call failed: nothing was started (MIGR-06).
                self.note_place_lost(id);
                self.end_without_target(id, &failure.to_string(), out);
            }
            let code = provider_code(&failure);
            let class = class_of(failure.refusal().map(|refusal| refusal.status), &code);
            self.fail_request(node_id, class, &failure.to_string(), &code, out);
            return;
        }
        if let Some(asked) = asked {
            asked.accepted = true;
        }
        if let Wanted::Target(id) = wanted {
            self.counters.placements_succeeded += 1;
            let target = self
                .migrations
                .active
                .get(id)
                .map(|migration| migration.state.source_job_id.clone())
                .and_then(|job_id| self.jobs.get_mut(&job_id)?.target.as_mut());
            if let Some(target) = target {
                target.counted = true;
            }
            self.answer_caller(id, out);
        }
        if let Wanted::Job(job_id) = wanted {
            self.counters.placements_succeeded += 1;
            // It was the first call of the job's decision: the start counts no more (LAUNCH-07).
            let binding = self
                .jobs
                .get_mut(job_id)
                .and_then(|job| job.binding.as_mut());
            if let Some(binding) = binding
                && binding.node_id == *node_id
            {
                binding.counted = true;
            }
        }
    }

    /// A create that was accepted ends in CREATE_FAILED (PROV-08).
    pub(crate) fn create_failed_later(
        &mut self,
        node_id: &NodeId,
        code: &str,
        detail: &str,
        out: &mut Effects,
    ) {
        self.counters.provisions_failed += 1;
        self.fail_request(node_id, class_of(None, code), detail, code, out);
    }

    /// No phantom stays; the tier backs off; the jobs are placed again at once (PROV-08). A failure
    /// that no time can cure is told once (PROV-12).
    fn fail_request(
        &mut self,
        node_id: &NodeId,
        class: Class,
        words: &str,
        code: &str,
        out: &mut Effects,
    ) {
        let tier = self
            .fleet
            .tier_of(node_id)
            .map(|(p, t)| (p.name.clone(), t.name.clone()));
        let incurable = class != Class::Passing;
        let told = tier.as_ref().is_some_and(|key| {
            let record = self.tiers.entry(key.clone()).or_default();
            incurable && std::mem::replace(&mut record.told, incurable)
        });
        if !told {
            let mut message = format!("creating node {node_id:?} failed: {words}");
            if !code.is_empty() {
                message.push_str(&format!(", provider code {code}"));
            }
            match class {
                Class::Passing => {}
                Class::BadRequest => message.push_str("; bad request, time will not cure it"),
                Class::Permission => {
                    message.push_str("; missing permission, time will not cure it")
                }
            }
            let mut error = ErrorInfo::new("createFailed", message).node(node_id);
            if let Some((pool, tier)) = &tier {
                error = error.tier(pool, tier);
            }
            self.report(error, out);
        }
        self.note_spare_failed(node_id);
        if let Some(key) = &tier {
            let code = match code {
                "" => String::new(),
                code => format!(" ({code})"),
            };
            self.note_purchase_failed(key, &format!("{words}{code}"));
        }
        self.targets_lose_node(node_id, out);
        let displaced = self.displace(node_id, out);
        if let Some(key) = tier {
            self.tier_failed(&key, node_id);
        }
        self.forget_node(node_id);
        self.place_again(displaced, out);
        self.pending.wake();
    }

    /// The node did not start in the time of its tier (PROV-06).
    pub(crate) fn end_provision_timeout(&mut self, node_id: &NodeId, out: &mut Effects) {
        let Some(record) = self.nodes.get_mut(node_id) else {
            return;
        };
        if record.state != MirrorState::Starting {
            return;
        }
        let Some(asked) = record.asked.take() else {
            return;
        };
        let error = ErrorInfo::new(
            "provisionTimeout",
            format!(
                "node {node_id:?} of tier {} did not start in time",
                asked.tier
            ),
        );
        let error = error.node(node_id).tier(&asked.pool, &asked.tier);
        self.report(error, out);
        self.note_spare_failed(node_id);
        self.targets_lose_node(node_id, out);
        let displaced = self.displace(node_id, out);
        let key = (asked.pool, asked.tier);
        self.note_purchase_failed(&key, "the node did not start in time");
        self.tier_failed(&key, node_id);
        if asked.wanted == Wanted::Unknown {
            self.forget_node(node_id);
        } else {
            self.terminate(node_id, None, out);
        }
        self.place_again(displaced, out);
        self.pending.wake();
    }

    /// A spare that never came is a failed provision of its pool (SPARE-11), unless jobs had taken it.
    pub(crate) fn note_spare_failed(&mut self, node_id: &NodeId) {
        if self.fleet.unconsumed_spare(node_id).is_some()
            && self.nodes.get(node_id).is_some_and(NodeRecord::is_auto)
            && let Some(pool) = self
                .fleet
                .facts(node_id)
                .and_then(|facts| facts.pool.clone())
        {
            self.spare_failed(&pool);
        }
    }

    /// A node stops; what it never ran is placed again, what it ran is recovered (NODE-08, PROV-09).
    pub(crate) fn jobs_lose_node(
        &mut self,
        node_id: &NodeId,
        ended: Ended,
        reason: Option<NodeStoppingReason>,
        out: &mut Effects,
    ) {
        if ended.never_started {
            self.note_spare_failed(node_id);
        }
        self.targets_lose_node(node_id, out);
        let lost = self.displace(node_id, out);
        if !ended.never_started {
            self.recover_all(lost, out);
            return;
        }
        let tier = self
            .fleet
            .tier_of(node_id)
            .map(|(p, t)| (p.name.clone(), t.name.clone()));
        let tier = ended.asked.map(|asked| (asked.pool, asked.tier)).or(tier);
        if let Some(tier) = tier {
            let slow = matches!(
                reason,
                Some(
                    NodeStoppingReason::PendingTimeExceeded
                        | NodeStoppingReason::StartupTimeExceeded
                )
            );
            if slow {
                self.note_purchase_failed(&tier, "the node did not start in time");
                self.tier_failed(&tier, node_id);
            } else {
                self.probe_gone(&tier, node_id);
            }
        }
        self.place_again(lost, out);
    }

    /// A node that has started: its request is fulfilled, its tier delivers (PROV-12).
    pub(crate) fn node_has_started(&mut self, node_id: &NodeId) {
        if let Some(record) = self.nodes.get_mut(node_id) {
            record.asked = None;
        }
        let tier = self
            .fleet
            .tier_of(node_id)
            .map(|(p, t)| (p.name.clone(), t.name.clone()));
        if let Some(key) = &tier {
            self.note_tier_delivers(key);
        }
        if let Some(key) = tier
            && let Some(record) = self.tiers.get_mut(&key)
            && record.state
                == (TierState::HalfOpen {
                    probe: Some(node_id.clone()),
                })
        {
            record.state = TierState::Open;
            record.backoff = Millis(0);
            record.told = false;
            self.set_gate(&key);
        }
    }

    /// Takes over a starting node that a predecessor asked for: its job waits for it instead of
    /// buying another (HYDR-16). Its shape, if the tier still lists it, counts as declared.
    pub(crate) fn adopt_starting(&mut self, node_id: &NodeId) {
        let Some(record) = self.nodes.get(node_id) else {
            return;
        };
        if !record.is_auto() || record.state != MirrorState::Starting {
            return;
        }
        let Some(job_id) = record.tag("jobId").map(JobId::from) else {
            return;
        };
        if self
            .jobs
            .get(&job_id)
            .is_none_or(|job| job.pending.is_none() && job.wait.is_none())
        {
            return;
        }
        self.expect_node(node_id, self.now.wall);
        self.bind_adopted(&job_id, node_id, None);
    }

    /// A starting node of a predecessor is awaited as long as one of this policy's own would be,
    /// counted from the time of its request.
    pub(crate) fn expect_node(&mut self, node_id: &NodeId, asked_at: greenroom_types::Wall) {
        let Some(record) = self.nodes.get_mut(node_id) else {
            return;
        };
        let known = self.fleet.tier_of(node_id);
        let tier = known.map(|(_, tier)| tier.clone());
        let timeout = tier
            .as_ref()
            .map_or(Millis(600_000), Tier::provision_timeout);
        let (pool, name) = known
            .map(|(pool, tier)| (pool.name.clone(), tier.name.clone()))
            .unwrap_or_default();
        let shape = tier.and_then(|tier| shape_of(&record.metadata, &tier));
        record.asked = Some(Asked {
            pool,
            tier: name,
            wanted: Wanted::Shown,
            accepted: true,
        });
        if let Some(shape) = shape {
            self.fleet.set_prospective(node_id, &shape);
        }
        let gone = u64::try_from(self.now.wall.since(asked_at)).unwrap_or(0);
        let left = Millis(timeout.0.saturating_sub(gone));
        let due = Due::Mono(self.now.mono + left);
        self.timers
            .set(Timer::ProvisionTimeout(node_id.clone()), due);
    }
}

/// The shape that a node was asked for with, if its tier lists it.
fn shape_of(metadata: &NodeMetadata, tier: &Tier) -> Option<CandidateInstanceType> {
    let name = match &metadata.provider {
        ProviderMetadata::Aws { instance_type, .. } => instance_type,
        ProviderMetadata::Oci { shape, .. } => shape,
        _ => return None,
    };
    tier.candidate_instance_types
        .iter()
        .find(|shape| shape.instance_type == *name)
        .cloned()
}

/// What kind of failure a create ended in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Stock, quota, throttling, an unreachable provider: time may cure it.
    Passing,
    /// The request itself is wrong.
    BadRequest,
    /// The caller may not.
    Permission,
}

/// Told by the Manager's status, or by the provider's code of a create that failed later.
fn class_of(status: Option<Status>, code: &str) -> Class {
    match status {
        Some(Status::InvalidArgument | Status::Unimplemented) => return Class::BadRequest,
        Some(Status::PermissionDenied | Status::Unauthenticated) => return Class::Permission,
        _ => {}
    }
    let starts = |words: &[&str]| words.iter().any(|word| code.starts_with(word));
    if starts(&[
        "Unauthorized",
        "AuthFailure",
        "NotAuthorized",
        "NotAuthenticated",
        "AccessDenied",
    ]) {
        Class::Permission
    } else if starts(&["Invalid", "MissingParameter", "UnsupportedOperation"]) {
        Class::BadRequest
    } else {
        Class::Passing
    }
}

fn provider_code(failure: &CallFailure) -> String {
    let detail = failure
        .refusal()
        .and_then(|refusal| refusal.details.get("provider_code"));
    match detail {
        Some(Detail::Text(code)) => code.clone(),
        _ => String::new(),
    }
}

// === impl Policy: back-off of tiers ===

impl Policy {
    /// A request of the tier failed. Those that were under way already say nothing new (PROV-12).
    fn tier_failed(&mut self, key: &(PoolName, TierName), node_id: &NodeId) {
        let record = self.tiers.entry(key.clone()).or_default();
        record.backoff = match &record.state {
            TierState::Open => TIER_BACKOFF_MIN,
            TierState::HalfOpen { probe } if probe.as_ref() == Some(node_id) => {
                Millis(record.backoff.0 * 2).min(TIER_BACKOFF_MAX)
            }
            TierState::BackingOff { .. } | TierState::HalfOpen { .. } => return,
        };
        let until = self.now.mono + record.backoff;
        record.state = TierState::BackingOff { until };
        let (pool, tier) = key.clone();
        self.timers
            .set(Timer::TierBackoff(pool, tier), Due::Mono(until));
        self.set_gate(key);
    }

    /// The tier's probe went for a reason that says nothing of the tier: it may ask for another.
    fn probe_gone(&mut self, key: &(PoolName, TierName), node_id: &NodeId) {
        if let Some(record) = self.tiers.get_mut(key)
            && record.state
                == (TierState::HalfOpen {
                    probe: Some(node_id.clone()),
                })
        {
            record.state = TierState::HalfOpen { probe: None };
            self.set_gate(key);
            self.pending.wake();
        }
    }

    pub(crate) fn end_tier_backoff(&mut self, pool: &PoolName, tier: &TierName) {
        let key = (pool.clone(), tier.clone());
        if let Some(record) = self.tiers.get_mut(&key)
            && matches!(record.state, TierState::BackingOff { .. })
        {
            record.state = TierState::HalfOpen { probe: None };
            self.set_gate(&key);
            self.pending.wake();
        }
    }

    fn set_gate(&mut self, key: &(PoolName, TierName)) {
        // Spares are bound by it as well, so they are looked at (SPARE-06).
        self.spares.due = true;
        let gate = match self.tiers.get(key).map(|record| &record.state) {
            None | Some(TierState::Open | TierState::HalfOpen { probe: None }) => TierGate::Open,
            Some(TierState::BackingOff { .. }) => TierGate::BackOff,
            Some(TierState::HalfOpen { probe: Some(_) }) => TierGate::HalfOpenBusy,
        };
        self.fleet.set_tier_gate(&key.0, key.1.as_str(), gate);
    }
}
