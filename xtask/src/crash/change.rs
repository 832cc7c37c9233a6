//! Changes of what each client has one of, and which calls the harness makes at all.

use std::collections::BTreeSet;

use greenroom_sdk::types::call::Call;
use greenroom_sdk::types::discovery::DiscoveryFleet;
use greenroom_sdk::types::job::Job;

use super::client::{Object, State};
use super::fleet;
use super::found::{FAILED, STAGES, TAG};

/// Calls that change something and that no client makes, with the reason.
#[cfg(test)]
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "CreateAwsNode",
        "no provider runs here; its saga is killed in each phase in crates/manager",
    ),
    (
        "CreateOciNode",
        "no provider runs here; its saga is killed in each phase in crates/manager",
    ),
    (
        "TerminateNode",
        "a slot's worker stays away until a person resumes it (LOCAL-16)",
    ),
    (
        "SetNodeIdleExpiry",
        "for nodes of a provider only (IDLE-02)",
    ),
    (
        "PrefetchImages",
        "an order to a worker; nothing of it is kept",
    ),
    (
        "StartPreparedJob",
        "what is seen of it is what a worker reports; a hello without it is told again (MNODE-13)",
    ),
    (
        "NotifyMigrationGetState",
        "a message between two running instances; `xtask air` hands over under faults",
    ),
    (
        "NotifyMigrationCutoverReady",
        "a message between two running instances; `xtask air` hands over under faults",
    ),
    (
        "NotifyMigrationCutoverApply",
        "a message between two running instances; `xtask air` hands over under faults",
    ),
    (
        "AbortMigration",
        "a message between two running instances; `xtask air` hands over under faults",
    ),
    (
        "RotateClusterNodeToken",
        "what it makes is known from its answer alone, and this harness cuts answers off",
    ),
    (
        "RotateDiscoveryTierSecret",
        "its answer waits for nodes; the fleet it changes is published here (DISC-06)",
    ),
    (
        "PublishAccessReplica",
        "signed by an issuer, which the Managers of this harness have none of",
    ),
    (
        "PruneAuditLog",
        "it takes the entries away that the clients look for; killed in the middle in HARDM-34\'s test",
    ),
    (
        "ReloadExternalConfig",
        "reads a file; nothing of it is kept",
    ),
    ("AdoptInstance", "after a restore alone (STORE-11)"),
    (
        "ClusterMemberRegister",
        "made by the workers of the harness as they call in",
    ),
    (
        "AnnounceControlPlane",
        "held in memory and said again before it is stale (ACTIVE)",
    ),
];

/// Calls that change nothing.
#[cfg(test)]
const READS: &[&str] = &[
    "CreateStatusChannel",
    "EventStream",
    "GetAuditLog",
    "GetBundle",
    "GetClusterEvents",
    "GetClusterStatus",
    "GetDiscoveryFleet",
    "GetLeaseStatus",
    "GetNodeIdleExpiry",
    "GetStoreInfo",
    "JobSearch",
    "KvGet",
    "KvList",
    "ListBundles",
    "ListClusterNodes",
    "ListNodes",
];

/// The calls that clients make.
const MADE: &[&str] = &[
    "AppendAuditEntry",
    "CompleteJob",
    "CreateBundle",
    "CreateJob",
    "DeleteBundle",
    "DeleteJob",
    "DeregisterClusterNode",
    "KvCommit",
    "MarkJobFailed",
    "PauseLeases",
    "PublishDiscoveryFleet",
    "RegisterClusterNode",
    "RenewBundleLease",
    "ResumeLeases",
    "SetBundleStopTime",
    "SetClusterNodePool",
    "SetNodeTags",
    "StartBundleJob",
    "StartJob",
    "StopBundleJob",
    "StopJob",
    "UpdateBundle",
    "UpdateJob",
    "UpdatePhysicalNode",
];

/// Those that were never acknowledged: what the harness says of them it did not see.
pub(super) fn unseen(seen: &BTreeSet<&str>) -> Vec<&'static str> {
    let unseen = MADE.iter().filter(|name| !seen.contains(*name));
    unseen.copied().collect()
}

/// The next change of an object that a client has one of, and its state after it.
pub(super) fn of_single(
    client: usize,
    object: &Object,
    state: State,
    content: u64,
    remove: bool,
) -> (Call, State) {
    let node_id = fleet::tagged(client);
    match object {
        Object::Ends(job_id) => match state {
            None => {
                let description = format!("content {content}");
                let job = Job {
                    description,
                    ..greenroom_testkit::job(job_id.as_str())
                };
                (Call::CreateJob(Box::new(job)), Some(content * STAGES))
            }
            Some(before) if before % STAGES != 0 => (Call::DeleteJob(job_id.clone()), None),
            Some(before) if content.is_multiple_of(2) => {
                (Call::CompleteJob(job_id.clone()), Some(before + 1))
            }
            Some(before) => {
                let fail = Call::MarkJobFailed {
                    job_id: job_id.clone(),
                    reason: format!("{FAILED}{content}"),
                };
                (fail, Some(before + 2))
            }
        },
        Object::Wanted(_) => {
            let update = Call::UpdatePhysicalNode {
                node_id,
                daemon_version: content.to_string(),
            };
            (update, Some(content))
        }
        Object::Pool(node_id) => {
            let set = Call::SetClusterNodePool {
                node_id: node_id.clone(),
                pool: fleet::pool_name(content),
            };
            (set, Some(content))
        }
        Object::Awake(number) => {
            let (bundle_id, job_name) = (fleet::sleeper(*number), fleet::SLEEPS.into());
            match state {
                None => {
                    let start = Call::StartBundleJob {
                        bundle_id,
                        replica_index: 0,
                        job_name,
                    };
                    (start, Some(0))
                }
                Some(_) => {
                    let stop = Call::StopBundleJob {
                        bundle_id,
                        replica_index: 0,
                        job_name,
                        grace_ms: None,
                    };
                    (stop, None)
                }
            }
        }
        Object::Fleet => {
            let publish = Call::PublishDiscoveryFleet {
                replace_leaf_token: false,
                fleet: DiscoveryFleet {
                    addresses: vec![format!("d{content}:1")],
                    leaf_token: "l".repeat(32),
                    tier_secret: "t".repeat(64),
                    ..DiscoveryFleet::default()
                },
                by: String::new(),
            };
            (publish, Some(content))
        }
        // The tag of a node; whatever else has no place here.
        _ => {
            let tag = format!("{TAG}{client}");
            let set = Call::SetNodeTags {
                node_id,
                tags: match remove {
                    true => [].into(),
                    false => [(tag.clone(), content.to_string())].into(),
                },
                remove: remove.then_some(tag).into_iter().collect(),
                expected_revision: None,
            };
            (set, (!remove).then_some(content))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: API-05, STORE-02
    #[test]
    fn every_call_that_changes_something_is_made_or_left_out_for_a_reason() {
        let all: Vec<&str> = greenroom_proto::convert::call::calls()
            .map(|(name, _)| name)
            .collect();
        let left_out: Vec<&str> = LEFT_OUT.iter().map(|(name, _)| *name).collect();
        let told = || MADE.iter().chain(READS).chain(&left_out).copied();
        let known: BTreeSet<&str> = told().collect();
        assert_eq!(known, all.iter().copied().collect());
        assert_eq!(known.len(), told().count(), "each once");
        assert!(LEFT_OUT.iter().all(|(_, reason)| reason.len() > 20));
    }
}
