//! Random calls, every one among them.

use greenroom_types::{
    call::{Call, CreateAwsNode, CreateOciNode, StartJob},
    discovery::{DiscoveryFleet, Hidden, RotationPhase, RotationStep},
    kv::{KvCommit, KvWrite},
    pool::RootVolume,
    replica::AccessReplica,
};
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::*;

fn job_call() -> impl Strategy<Value = Call> {
    let grace = || option::of(any::<u64>().prop_map(Millis));
    let start = (
        (key(), node_id()),
        any::<bool>(),
        text(),
        option::of(0..8_u32),
        option::of((migration_id(), option::of(vec(any::<u8>(), 0..8)))),
    )
        .prop_map(
            |((key, node_id), defer_start, runtime_role, gpu_index, migration)| StartJob {
                job_id: key.job_id,
                role: key.role,
                node_id,
                defer_start,
                runtime_role,
                gpu_index,
                migration_id: migration.as_ref().map(|(id, _)| id.clone()),
                migration_state: migration.and_then(|(_, state)| state.map(Payload::from)),
            },
        );
    prop_oneof![
        job().prop_map(|job| Call::CreateJob(Box::new(job))),
        (job(), any::<i64>()).prop_map(|(job, hash)| Call::UpdateJob(Box::new(job), hash)),
        job_id().prop_map(Call::DeleteJob),
        job_id().prop_map(Call::CompleteJob),
        start.prop_map(Call::StartJob),
        (key(), node_id()).prop_map(|(key, node_id)| Call::StartPreparedJob { key, node_id }),
        (key(), node_id(), grace()).prop_map(|(key, node_id, grace_ms)| Call::StopJob {
            key,
            node_id,
            grace_ms
        }),
        (job_id(), text()).prop_map(|(job_id, reason)| Call::MarkJobFailed { job_id, reason }),
    ]
}

fn bundle_call() -> impl Strategy<Value = Call> {
    let id = || name().prop_map(BundleId::new);
    let grace = option::of(any::<u64>().prop_map(Millis));
    prop_oneof![
        bundle().prop_map(|bundle| Call::CreateBundle(Box::new(bundle))),
        (bundle(), id(), any::<(bool, bool)>()).prop_map(|(bundle, bundle_id, flags)| {
            Call::UpdateBundle {
                bundle: Box::new(Bundle {
                    bundle_id,
                    ..bundle
                }),
                dry_run: flags.0,
                clear_stop_time: flags.1,
            }
        }),
        id().prop_map(Call::DeleteBundle),
        (id(), any::<u32>(), name()).prop_map(|(bundle_id, replica_index, job_name)| {
            Call::StartBundleJob {
                bundle_id,
                replica_index,
                job_name: JobName::new(job_name),
            }
        }),
        (id(), any::<u32>(), name(), grace).prop_map(
            |(bundle_id, replica_index, job_name, grace_ms)| Call::StopBundleJob {
                bundle_id,
                replica_index,
                job_name: JobName::new(job_name),
                grace_ms,
            }
        ),
        (id(), option::of(wall()))
            .prop_map(|(bundle_id, stop_at)| Call::SetBundleStopTime { bundle_id, stop_at }),
    ]
}

fn node_call() -> impl Strategy<Value = Call> {
    let volume = (text(), any::<(u32, u32, u32)>()).prop_map(
        |(volume_type, (size_gb, iops, throughput))| RootVolume {
            size_gb,
            volume_type,
            iops,
            throughput,
        },
    );
    let aws = (
        node_id(),
        tags(),
        (text(), text()),
        launch_mode(),
        option::of(volume),
    )
        .prop_map(
            |(node_id, tags, texts, launch_mode, root_volume)| CreateAwsNode {
                node_id,
                tags,
                region: texts.0,
                instance_type: texts.1,
                launch_mode,
                root_volume,
            },
        );
    // 0 on the wire is "as the shape says".
    let size = || option::of(share().prop_filter("not 0", |share| *share != 0.0));
    let oci = (
        (node_id(), tags()),
        (text(), text(), text(), text()),
        (size(), size()),
        launch_mode(),
    )
        .prop_map(|(head, texts, sizes, launch_mode)| CreateOciNode {
            node_id: head.0,
            tags: head.1,
            availability_domain: texts.0,
            architecture: texts.1,
            shape: texts.2,
            subnet: texts.3,
            ocpus: sizes.0,
            memory_gb: sizes.1,
            launch_mode,
        });
    prop_oneof![
        aws.prop_map(|node| Call::CreateAwsNode(Box::new(node))),
        oci.prop_map(|node| Call::CreateOciNode(Box::new(node))),
        node_id().prop_map(Call::TerminateNode),
        (node_id(), text()).prop_map(|(node_id, daemon_version)| Call::UpdatePhysicalNode {
            node_id,
            daemon_version,
        }),
        (node_id(), tags(), texts(), any::<Option<u64>>()).prop_map(
            |(node_id, tags, remove, expected_revision)| Call::SetNodeTags {
                node_id,
                tags,
                remove,
                expected_revision,
            }
        ),
        (text(), text()).prop_map(|(node_name, pool)| Call::RegisterClusterNode {
            node_name,
            pool: PoolName::new(pool),
        }),
        node_id().prop_map(Call::DeregisterClusterNode),
        node_id().prop_map(Call::RotateClusterNodeToken),
        (node_id(), text()).prop_map(|(node_id, pool)| Call::SetClusterNodePool {
            node_id,
            pool: PoolName::new(pool),
        }),
        (node_id(), any::<u64>()).prop_map(|(node_id, expiry)| Call::SetNodeIdleExpiry {
            node_id,
            idle_expiry_ms: Millis(expiry),
        }),
        (node_id(), texts()).prop_map(|(node_id, image_refs)| Call::PrefetchImages {
            node_id,
            image_refs
        }),
    ]
}

fn migration_call() -> impl Strategy<Value = Call> {
    let payload = || vec(any::<u8>(), 0..8).prop_map(Payload::from);
    prop_oneof![
        (key(), migration_id())
            .prop_map(|(key, migration_id)| Call::NotifyMigrationGetState { key, migration_id }),
        (key(), migration_id(), payload()).prop_map(|(key, migration_id, payload)| {
            Call::NotifyMigrationCutoverReady {
                key,
                migration_id,
                payload,
            }
        }),
        (key(), migration_id(), payload()).prop_map(|(key, migration_id, payload)| {
            Call::NotifyMigrationCutoverApply {
                key,
                migration_id,
                payload,
            }
        }),
        (job_id(), role(), role(), text(), migration_id()).prop_map(
            |(job_id, source_role, target_role, reason, migration_id)| Call::AbortMigration {
                job_id,
                source_role,
                target_role,
                reason,
                migration_id,
            }
        ),
    ]
}

fn audit_call() -> impl Strategy<Value = Call> {
    prop_oneof![
        (text(), text(), text()).prop_map(|(source, kind, payload)| Call::AppendAuditEntry {
            source,
            kind,
            payload,
        }),
        (0..i64::MAX).prop_map(|before| Call::PruneAuditLog {
            before: greenroom_types::Wall(before),
        }),
    ]
}

fn lease_call() -> impl Strategy<Value = Call> {
    prop_oneof![
        (name().prop_map(BundleId::new), any::<u64>()).prop_map(|(bundle_id, ttl_ms)| {
            Call::RenewBundleLease {
                bundle_id,
                ttl_ms: Millis(ttl_ms),
            }
        }),
        (node_id(), key(), option::of(start_id())).prop_map(|(node_id, key, start_id)| {
            Call::AdoptInstance {
                node_id,
                key,
                start_id,
            }
        }),
        // A blank reason is refused (LEASE-10).
        (name(), text()).prop_map(|(reason, by)| Call::PauseLeases { reason, by }),
        text().prop_map(|by| Call::ResumeLeases { by }),
    ]
}

fn kv_call() -> impl Strategy<Value = Call> {
    let value = || option::of(vec(any::<u8>(), 0..8).prop_map(std::sync::Arc::from));
    let write =
        (text(), value(), any::<Option<u64>>()).prop_map(|(key, value, expected_revision)| {
            KvWrite {
                key,
                value,
                expected_revision,
            }
        });
    let commit = (
        text(),
        vec(write, 0..4),
        any::<Option<u64>>(),
        any::<Option<u64>>(),
    );
    commit.prop_map(
        |(namespace, writes, expected_schema_version, set_schema_version)| {
            Call::KvCommit(KvCommit {
                namespace,
                writes,
                expected_schema_version,
                set_schema_version,
            })
        },
    )
}

fn fleet_call() -> impl Strategy<Value = Call> {
    let phases = [
        RotationPhase::None,
        RotationPhase::Staged,
        RotationPhase::Flipped,
    ];
    let fleet = (
        texts(),
        text(),
        text(),
        text(),
        text(),
        select(phases.to_vec()),
    )
        .prop_map(
            |(addresses, address, leaf_token, tier_secret, tier_secret_alt, rotation_phase)| {
                DiscoveryFleet {
                    addresses,
                    address,
                    leaf_token,
                    tier_secret,
                    tier_secret_alt,
                    rotation_phase,
                }
            },
        );
    let steps = [
        RotationStep::Stage,
        RotationStep::Flip,
        RotationStep::Finish,
    ];
    let bytes = || vec(any::<u8>(), 0..8).prop_map(Payload::from);
    let replica = (
        any::<u64>(),
        bytes(),
        text(),
        any::<u64>(),
        text(),
        vec(bytes(), 0..3),
    )
        .prop_map(
            |(version, snapshot, delta, base_version, attestation, keys)| AccessReplica {
                version,
                snapshot,
                delta,
                base_version,
                attestation,
                keys,
            },
        );
    prop_oneof![
        (fleet, text(), any::<bool>()).prop_map(|(fleet, by, replace_leaf_token)| {
            Call::PublishDiscoveryFleet {
                replace_leaf_token,
                fleet,
                by,
            }
        }),
        (select(steps.to_vec()), text(), text()).prop_map(|(step, secret, by)| {
            Call::RotateDiscoveryTierSecret {
                step,
                new_tier_secret: Hidden(secret),
                by,
            }
        }),
        replica.prop_map(|replica| Call::PublishAccessReplica(Box::new(replica))),
        Just(Call::ReloadExternalConfig),
    ]
}

pub(in crate::convert::tests) fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        job_call(),
        bundle_call(),
        node_call(),
        migration_call(),
        kv_call(),
        lease_call(),
        audit_call(),
        fleet_call()
    ]
}
