//! Checks of a bundle before it is submitted (VALID-01 to VALID-09). Pure: the fleet is only read,
//! and all findings are reported, not the first alone.
//!
//! Values outside an enumeration and cores that are not whole cannot occur in a typed bundle; reading
//! a manifest refuses them (VALID-02). Whether there is room now is not asked here: that is a dry run
//! (VALID-10).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_types::bundle::{Bundle, Rule};
use greenroom_types::pool::TierKind;
use greenroom_types::{JobName, PoolName};
use serde::{Deserialize, Serialize};

use crate::fleet::Fleet;
use crate::groups::BundlePlan;
use crate::needs::Needs;
use crate::port::Port;

mod profiles;

use profiles::Profiles;

/// All that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Findings {
    /// The bundle must not be submitted.
    pub errors: Vec<Finding>,
    /// The bundle may not turn out as meant.
    pub warnings: Vec<Finding>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What kind of fault.
    pub code: Code,
    /// Path to the field, e.g. `jobs[0].requirements.requiredCores`.
    pub path: String,
    /// The fault in words, with the value and what would be right.
    pub message: String,
}

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Code {
    /// The bundle has no id.
    EmptyBundleId,
    /// The bundle has no jobs.
    NoJobs,
    /// A job has no name.
    EmptyJobName,
    /// Two jobs have one name.
    DuplicateJobName,
    /// The pool is not configured.
    UnknownPool,
    /// A need is negative or no finite number.
    InvalidNumber,
    /// A rule names a job that the bundle does not have.
    UnknownPlacementPeer,
    /// A rule names the job itself.
    SelfReference,
    /// Two jobs are to share a node and not to share it.
    ContradictoryPlacement,
    /// `singleUse` without `exclusive`.
    SingleUseNeedsExclusive,
    /// Members of a group differ in `exclusive` or `singleUse`.
    MixedExclusiveGroup,
    /// Nothing in the pool is large enough.
    CapacityUnsatisfiable,
    /// Nothing in the pool that is large enough has the cores.
    CoresUnsatisfiable,
    /// Nothing in the pool that is large enough has the capabilities.
    CapabilityUnsatisfiable,
    /// Nothing in the pool that is large enough has the GPU share.
    GpuUnsatisfiable,
    /// Nothing in the pool holds the group together.
    GroupUnsatisfiable,
    /// The copies cannot be kept apart as asked for.
    ResilienceUnsatisfiable,
    /// Nothing in the pool that is large enough has the runtime.
    RuntimeUnsatisfiable,
    /// Services of one node name images and others none.
    MixedRuntimes,
    /// The disks of all nodes that the pool has are nearly full.
    DiskNearlyFull,
    /// A token that is no host port.
    InvalidHostPort,
    /// Two members of a group claim one host port.
    HostPortClash,
    /// A node service has the host port on every node.
    HostPortOfService,
    /// Overrides for a backup that does not exist.
    OverridesWithoutBackup,
}

/// Checks a bundle against the pools and what is known of their nodes.
pub fn validate(bundle: &Bundle, fleet: &Fleet) -> Findings {
    let mut check = Check {
        bundle,
        fleet,
        plan: BundlePlan::new(&Arc::new(bundle.clone())),
        findings: Findings::default(),
    };
    check.shape();
    check.rules();
    check.runtimes();
    check.ports();
    let pools = check.pools();
    for pool in &pools {
        check.feasibility(pool);
        check.service_ports(pool);
        check.disks(pool);
    }
    check.resilience(&pools);
    check.findings
}

/// No node whatever runs it, which is reported as such.
const fn is_mixed(needs: &Needs) -> bool {
    needs.containers && needs.processes
}

struct Check<'a> {
    bundle: &'a Bundle,
    fleet: &'a Fleet,
    plan: BundlePlan,
    findings: Findings,
}

// === impl Findings ===

impl Findings {
    /// True when nothing stands against submitting.
    pub const fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }
}

// === impl Code ===

impl Code {
    /// The name that people grep for.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EmptyBundleId => "emptyBundleId",
            Self::NoJobs => "noJobs",
            Self::EmptyJobName => "emptyJobName",
            Self::DuplicateJobName => "duplicateJobName",
            Self::UnknownPool => "unknownPool",
            Self::InvalidNumber => "invalidNumber",
            Self::UnknownPlacementPeer => "unknownPlacementPeer",
            Self::SelfReference => "selfReference",
            Self::ContradictoryPlacement => "contradictoryPlacement",
            Self::SingleUseNeedsExclusive => "singleUseNeedsExclusive",
            Self::MixedExclusiveGroup => "mixedExclusiveGroup",
            Self::CapacityUnsatisfiable => "capacityUnsatisfiable",
            Self::CoresUnsatisfiable => "coresUnsatisfiable",
            Self::CapabilityUnsatisfiable => "capabilityUnsatisfiable",
            Self::GpuUnsatisfiable => "gpuUnsatisfiable",
            Self::GroupUnsatisfiable => "groupUnsatisfiable",
            Self::ResilienceUnsatisfiable => "resilienceUnsatisfiable",
            Self::RuntimeUnsatisfiable => "runtimeUnsatisfiable",
            Self::MixedRuntimes => "mixedRuntimes",
            Self::DiskNearlyFull => "diskNearlyFull",
            Self::InvalidHostPort => "invalidHostPort",
            Self::HostPortClash => "hostPortClash",
            Self::HostPortOfService => "hostPortOfService",
            Self::OverridesWithoutBackup => "overridesWithoutBackup",
        }
    }
}

// === impl Check ===

impl<'a> Check<'a> {
    fn error(&mut self, code: Code, path: impl Into<String>, message: impl Into<String>) {
        self.findings.errors.push(Finding {
            code,
            path: path.into(),
            message: message.into(),
        });
    }

    fn warning(&mut self, code: Code, path: impl Into<String>, message: impl Into<String>) {
        self.findings.warnings.push(Finding {
            code,
            path: path.into(),
            message: message.into(),
        });
    }

    /// VALID-02, and what belongs to one field alone.
    fn shape(&mut self) {
        let bundle = self.bundle;
        if bundle.bundle_id.is_empty() {
            self.error(Code::EmptyBundleId, "bundleId", "the bundle needs an id");
        }
        if bundle.jobs.is_empty() {
            self.error(Code::NoJobs, "jobs", "the bundle needs at least one job");
        }
        let mut names: BTreeMap<&JobName, usize> = BTreeMap::new();
        for (at, job) in bundle.jobs.iter().enumerate() {
            let name = &job.job_name;
            let path = format!("jobs[{at}].jobName");
            if name.is_empty() {
                self.error(Code::EmptyJobName, path, "the job needs a name");
            } else if let Some(first) = names.insert(name, at) {
                names.insert(name, first);
                let message = format!("{name:?} is the name of jobs[{first}] already");
                self.error(Code::DuplicateJobName, path, message);
            }
            let needs = &job.requirements;
            for (field, value) in [
                ("requiredCapacity", needs.required_capacity),
                ("requiredGpuCapacity", needs.required_gpu_capacity),
            ] {
                if !(value.is_finite() && value >= 0.0) {
                    self.error(
                        Code::InvalidNumber,
                        format!("jobs[{at}].requirements.{field}"),
                        format!("job {name}: {value} is not a finite number from 0 up"),
                    );
                }
            }
            if job.single_use && !job.exclusive {
                self.error(
                    Code::SingleUseNeedsExclusive,
                    format!("jobs[{at}].singleUse"),
                    format!("job {name}: singleUse needs exclusive: true as well"),
                );
            }
        }
        if bundle.resilience_policy.is_none() && !bundle.backup_parameter_overrides.is_empty() {
            self.warning(
                Code::OverridesWithoutBackup,
                "backupParameterOverrides",
                "there is no backup to override: add a resiliencePolicy or drop the overrides",
            );
        }
    }

    /// VALID-03.
    fn rules(&mut self) {
        let bundle = self.bundle;
        let mut contradictions: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (at, job) in bundle.jobs.iter().enumerate() {
            let name = &job.job_name;
            for (field, peers) in [
                ("coLocateWith", &job.co_locate_with),
                ("separateFrom", &job.separate_from),
            ] {
                for (nth, peer) in peers.iter().enumerate() {
                    let path = format!("jobs[{at}].{field}[{nth}]");
                    let Some(other) = self.plan.job_index(peer) else {
                        self.error(
                            Code::UnknownPlacementPeer,
                            path,
                            format!("job {name} names {peer:?}, which is no job of this bundle"),
                        );
                        continue;
                    };
                    if peer == name {
                        self.error(
                            Code::SelfReference,
                            path,
                            format!("job {name} names itself"),
                        );
                    } else if field == "separateFrom"
                        && self.plan.together(name, peer)
                        && contradictions.insert((at.min(other), at.max(other)))
                    {
                        self.error(
                            Code::ContradictoryPlacement,
                            path,
                            format!("jobs {name} and {peer} are to share a node and not to"),
                        );
                    }
                }
            }
        }
        let mut mixed = Vec::new();
        for group in self.plan.groups() {
            let first = &bundle.jobs[group.members[0]];
            for &at in &group.members[1..] {
                let job = &bundle.jobs[at];
                let field = if job.exclusive != first.exclusive {
                    "exclusive"
                } else if job.single_use != first.single_use {
                    "singleUse"
                } else {
                    continue;
                };
                mixed.push((at, field, job.job_name.clone(), first.job_name.clone()));
            }
        }
        for (at, field, job, first) in mixed {
            self.error(
                Code::MixedExclusiveGroup,
                format!("jobs[{at}].{field}"),
                format!("jobs {first} and {job} share a node, so {field} must be the same in both"),
            );
        }
    }

    /// One node runs containers or processes, never both (PLACE-35).
    fn runtimes(&mut self) {
        let mut faults = Vec::new();
        for (at, job) in self.plan.jobs().iter().enumerate() {
            if job.needs.containers && job.needs.processes {
                let text = format!(
                    "job {}: some of its services name an image and some do not; one node runs \
                     either containers or processes",
                    job.name
                );
                faults.push((at, text));
            }
        }
        for group in self.plan.groups() {
            let of = |kind: fn(&Needs) -> bool| {
                let mut members = group.members.iter();
                let mine = |&&at: &&usize| kind(&self.plan.jobs()[at].needs);
                members.find(mine).copied()
            };
            if let (Some(a), Some(b)) = (of(|it| it.containers), of(|it| it.processes))
                && a != b
            {
                let name = |at: usize| &self.plan.jobs()[at].name;
                let text = format!(
                    "jobs {} and {} share a node, but {0} names an image and {1} a program; one \
                     node runs either containers or processes",
                    name(a),
                    name(b)
                );
                faults.push((a.max(b), text));
            }
        }
        for (at, text) in faults {
            let path = format!("jobs[{at}].launch.services");
            self.error(Code::MixedRuntimes, path, text);
        }
    }

    /// VALID-08 without node services.
    fn ports(&mut self) {
        let bundle = self.bundle;
        let mut owners: BTreeMap<(usize, Port), &JobName> = BTreeMap::new();
        for (at, job) in bundle.jobs.iter().enumerate() {
            let group = self.plan.jobs()[at].group;
            let mut own: BTreeSet<Port> = BTreeSet::new();
            for (nth, token) in job.requirements.required_host_ports.iter().enumerate() {
                let path = format!("jobs[{at}].requirements.requiredHostPorts[{nth}]");
                let port = match token.parse::<Port>() {
                    Ok(port) => port,
                    Err(fault) => {
                        let message = format!("job {}: {fault}", job.job_name);
                        self.error(Code::InvalidHostPort, path, message);
                        continue;
                    }
                };
                if !own.insert(port) {
                    continue;
                }
                if let Some(owner) = owners.insert((group, port), &job.job_name) {
                    self.error(
                        Code::HostPortClash,
                        path,
                        format!(
                            "jobs {owner} and {} share a node and both claim {port}",
                            job.job_name
                        ),
                    );
                }
            }
        }
    }

    /// The pools of the copies, each once (VALID-06); reports those that are not configured.
    fn pools(&mut self) -> Vec<Profiles<'a>> {
        let bundle = self.bundle;
        let mut named: Vec<(&'static str, &PoolName)> = vec![("pool", &bundle.pool)];
        let backup = bundle
            .resilience_policy
            .as_ref()
            .and_then(|policy| policy.pool.as_ref());
        named.extend(
            backup
                .filter(|pool| **pool != bundle.pool)
                .map(|pool| ("resiliencePolicy.pool", pool)),
        );
        let mut pools = Vec::new();
        for (path, name) in named {
            match self.fleet.pool(name) {
                Some(pool) => pools.push(Profiles::of(self.fleet, pool)),
                None => {
                    let known: Vec<&str> = self
                        .fleet
                        .pools()
                        .iter()
                        .map(|pool| pool.name.as_str())
                        .collect();
                    let message = format!(
                        "{name:?} is no configured pool; there are: {}",
                        if known.is_empty() {
                            "none".to_owned()
                        } else {
                            known.join(", ")
                        }
                    );
                    self.error(Code::UnknownPool, path, message);
                }
            }
        }
        pools
    }

    /// VALID-04, VALID-05.
    fn feasibility(&mut self, profiles: &Profiles<'_>) {
        let mut misses = Vec::new();
        for (at, job) in self.plan.jobs().iter().enumerate() {
            if is_mixed(&job.needs) {
                continue;
            }
            if let Some((code, field, needed)) = profiles.miss(&job.needs) {
                misses.push((
                    code,
                    format!("jobs[{at}].{field}"),
                    format!(
                        "job {}: {needed}; {}",
                        job.name,
                        profiles.describe(code, &job.needs)
                    ),
                ));
            }
        }
        for group in self.plan.groups().iter().filter(|group| group.is_shared()) {
            if !is_mixed(&group.needs) && profiles.miss(&group.needs).is_some() {
                let names: Vec<&str> = group
                    .members
                    .iter()
                    .map(|&member| self.plan.jobs()[member].name.as_str())
                    .collect();
                misses.push((
                    Code::GroupUnsatisfiable,
                    format!("jobs[{}]", group.members[0]),
                    format!(
                        "jobs {} share a node and together need {} vCPU, {} cores and {} GPU \
                         shares; no node of pool {} offers all of what they need",
                        names.join(", "),
                        group.needs.capacity,
                        group.needs.cores,
                        group.needs.gpus.len(),
                        profiles.pool.name
                    ),
                ));
            }
        }
        let elastic = profiles.is_elastic();
        for (code, path, message) in misses {
            if elastic {
                self.error(code, path, message);
            } else {
                self.warning(code, path, message);
            }
        }
    }

    /// PLACE-34: what is submitted now would wait. Disks come free, so this is never an error.
    fn disks(&mut self, profiles: &Profiles<'_>) {
        if let Some(low) = profiles.all_disks_low() {
            let field = if profiles.pool.name == self.bundle.pool {
                "pool"
            } else {
                "resiliencePolicy.pool"
            };
            self.warning(
                Code::DiskNearlyFull,
                field,
                format!(
                    "every node of pool {} has its disk nearly full, so nothing starts there: {low}",
                    profiles.pool.name
                ),
            );
        }
    }

    /// PORT-06.
    fn service_ports(&mut self, profiles: &Profiles<'_>) {
        let bundle = self.bundle;
        let pool = &profiles.pool.name;
        let fleet = self.fleet;
        for service in fleet.service_ports() {
            if !service.pools.contains(pool) || !profiles.all_offer(&service.consumes) {
                continue;
            }
            for (at, job) in bundle.jobs.iter().enumerate() {
                for (nth, token) in job.requirements.required_host_ports.iter().enumerate() {
                    if token
                        .parse()
                        .is_ok_and(|port| service.ports.contains(&port))
                    {
                        self.error(
                            Code::HostPortOfService,
                            format!("jobs[{at}].requirements.requiredHostPorts[{nth}]"),
                            format!(
                                "job {} wants {token}, which node service {} takes on every node \
                                 of pool {pool}",
                                job.job_name, service.service_id
                            ),
                        );
                    }
                }
            }
        }
    }

    /// VALID-07.
    fn resilience(&mut self, pools: &[Profiles<'_>]) {
        let Some(policy) = &self.bundle.resilience_policy else {
            return;
        };
        if policy.same_cloud == Rule::Forbid {
            let clouds: BTreeSet<TierKind> = pools
                .iter()
                .flat_map(|profiles| profiles.pool.tiers.iter().map(|tier| tier.kind))
                .collect();
            if clouds.len() == 1 {
                self.warning(
                    Code::ResilienceUnsatisfiable,
                    "resiliencePolicy.sameCloud",
                    "all tiers of the copies' pools are in one cloud, so both copies will be",
                );
            }
        }
        if policy.same_node == Rule::Forbid
            && let [only] = pools
            && policy
                .pool
                .as_ref()
                .is_none_or(|pool| *pool == only.pool.name)
            && only.most_nodes() == Some(1)
        {
            self.warning(
                Code::ResilienceUnsatisfiable,
                "resiliencePolicy.sameNode",
                format!(
                    "pool {} can have but one node, so both copies will share it",
                    only.pool.name
                ),
            );
        }
    }
}
