//! Random values of the domain, every variant and every field among them.
//!
//! Only what the wire can carry is made: ids that must be there are there, running data has its provider.

mod calls;
mod events;

use std::sync::Arc;

use greenroom_types::{
    BundleId, JobId, JobName, MigrationId, Millis, NodeId, Payload, PoolName, Role, StartId, Tags,
    TemplateName, Wall, bundle::*, inventory::*, job::*, node::*, pool::LaunchMode,
    stream::MigrationSignal,
};
use proptest::{collection::vec, option, prelude::*};

use crate::convert::worker::{
    InterruptionNotice, MigrationNews, Rejection, StartOrder, WorkerInstance,
};

pub(super) use self::{calls::call, events::stamped};

// === plain values ===

fn text() -> impl Strategy<Value = String> {
    "[a-zä /]{0,6}"
}

fn name() -> impl Strategy<Value = String> {
    "[a-z]{1,6}"
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..3)
}

fn tags() -> impl Strategy<Value = Tags> {
    // Upper case keeps clear of the tag in which a template's name travels.
    proptest::collection::btree_map("[A-Z]{1,4}", text(), 0..4)
}

fn share() -> impl Strategy<Value = f64> {
    any::<i32>().prop_map(|eighths| f64::from(eighths) / 8.0)
}

fn wall() -> impl Strategy<Value = Wall> {
    (0..=Wall::MAX.0).prop_map(Wall)
}

fn job_id() -> impl Strategy<Value = JobId> {
    name().prop_map(JobId::new)
}

fn role() -> impl Strategy<Value = Role> {
    name().prop_map(Role::new)
}

fn node_id() -> impl Strategy<Value = NodeId> {
    name().prop_map(NodeId::new)
}

fn start_id() -> impl Strategy<Value = StartId> {
    "[0-9a-f]{4}".prop_map(StartId::new)
}

fn migration_id() -> impl Strategy<Value = MigrationId> {
    name().prop_map(MigrationId::new)
}

fn key() -> impl Strategy<Value = InstanceKey> {
    (job_id(), role()).prop_map(|(job_id, role)| InstanceKey::new(job_id, role))
}

fn one_of<T: Clone + std::fmt::Debug + 'static>(values: &[T]) -> impl Strategy<Value = T> + use<T> {
    proptest::sample::select(values.to_vec())
}

fn protocol() -> impl Strategy<Value = Protocol> {
    one_of(&[Protocol::Any, Protocol::Udp, Protocol::Tcp])
}

fn architecture() -> impl Strategy<Value = Architecture> {
    one_of(&[Architecture::X86_64, Architecture::Aarch64])
}

fn rejection_code() -> impl Strategy<Value = RejectionCode> {
    use RejectionCode::*;
    one_of(&[
        Unspecified,
        Capacity,
        Cores,
        Gpu,
        Capability,
        HostPort,
        Disk,
        Cordoned,
        Image,
        InvalidSpec,
        Duplicate,
        Runtime,
        Lease,
    ])
}

// === services ===

fn port() -> impl Strategy<Value = PortMapping> {
    let host_port = prop_oneof![
        Just(HostPort::Ephemeral),
        any::<(u32, u32)>().prop_map(|(min, max)| HostPort::Range { min, max }),
        any::<u32>().prop_map(HostPort::Specific),
    ];
    (any::<u32>(), protocol(), host_port, text(), text()).prop_map(
        |(container_port, protocol, host_port, host_address, group)| PortMapping {
            container_port,
            protocol,
            host_port,
            host_address,
            group,
        },
    )
}

fn ports() -> impl Strategy<Value = PortMappings> {
    let port = (text(), any::<(u32, u32)>(), protocol()).prop_map(
        |(url, (target, published), protocol)| ResolvedPortMapping {
            url,
            target,
            published,
            protocol,
        },
    );
    proptest::collection::btree_map(name(), vec(port, 0..3), 0..3)
}

fn parameters() -> impl Strategy<Value = ServiceParameters> {
    let mount =
        (text(), text(), any::<bool>()).prop_map(|(volume_name, container_path, read_only)| {
            VolumeMount {
                volume_name,
                container_path,
                read_only,
            }
        });
    let check =
        (texts(), any::<u64>(), any::<u32>()).prop_map(|(command, interval_ms, retries)| {
            HealthCheck {
                command,
                interval_ms,
                retries,
            }
        });
    (
        vec(port(), 0..3),
        vec((text(), text()), 0..3),
        any::<(Option<u64>, Option<u64>, bool, bool, bool, bool)>(),
        vec(any::<u32>(), 0..3),
        vec(mount, 0..3),
        option::of(check),
    )
        .prop_map(
            |(port_mappings, environment, plain, cpu_set, volume_mounts, health_check)| {
                let (shared_memory_size, memory_limit, host_network, gpu, discovery, replica) =
                    plain;
                ServiceParameters {
                    port_mappings,
                    environment,
                    shared_memory_size,
                    cpu_set,
                    volume_mounts,
                    host_network,
                    health_check,
                    memory_limit,
                    gpu,
                    discovery_access: discovery,
                    access_replica: replica,
                }
            },
        )
}

fn service() -> impl Strategy<Value = Service> {
    let container = prop_oneof![
        Just(Container::None),
        text().prop_map(Container::Docker),
        (texts(), text())
            .prop_map(|(command, directory)| Container::Process { command, directory }),
    ];
    let restart = one_of(&[
        ServiceRestart::Never,
        ServiceRestart::OnFailure,
        ServiceRestart::Always,
    ]);
    (
        (text(), text(), text()),
        container,
        restart,
        texts(),
        any::<(u32, u32)>(),
        parameters(),
    )
        .prop_map(
            |(texts, container, restart, depends_on, numbers, parameters)| Service {
                name: texts.0,
                container,
                restart,
                depends_on,
                configuration: texts.1,
                restart_count: numbers.0,
                restart_period: numbers.1,
                command: texts.2,
                parameters,
            },
        )
}

// === inventory ===

fn capability() -> impl Strategy<Value = Capability> {
    (text(), any::<u32>(), tags()).prop_map(|(name, count, attributes)| Capability {
        name,
        count,
        attributes,
    })
}

fn capabilities() -> impl Strategy<Value = Vec<Capability>> {
    vec(capability(), 0..3)
}

fn inventory() -> impl Strategy<Value = NodeInventory> {
    let gpu = (
        any::<(u32, u64, i32)>(),
        (text(), text(), text()),
        (share(), share()),
    )
        .prop_map(
            |(
                (index, memory_bytes, numa),
                (uuid, model, driver),
                (capacity, reserved_capacity),
            )| Gpu {
                index,
                uuid,
                model,
                memory_bytes,
                capacity,
                reserved_capacity,
                driver,
                numa,
            },
        );
    let nic = (text(), texts(), text(), any::<(u64, u32)>()).prop_map(
        |(name, addresses, ptp_clock, (speed_mbps, sriov_free))| Nic {
            name,
            speed_mbps,
            addresses,
            ptp_clock,
            sriov_free,
        },
    );
    let image = (text(), text()).prop_map(|(reference, digest)| HeldImage { reference, digest });
    let assigned = (
        key(),
        start_id(),
        (share(), share()),
        any::<u32>(),
        option::of(0..8_u32),
        texts(),
    )
        .prop_map(
            |(key, start_id, (capacity, gpu_capacity), cores, gpu_index, host_ports)| AssignedJob {
                job_id: key.job_id,
                role: key.role,
                start_id,
                capacity,
                cores,
                gpu_index,
                gpu_capacity,
                host_ports,
            },
        );
    let disk =
        (text(), any::<(u64, u64)>()).prop_map(|(path, (total, free))| Disk { path, total, free });
    let cpu = any::<(u32, u32, u32, u32)>().prop_map(|(id, core, numa, sibling_of)| Cpu {
        id,
        core,
        numa,
        sibling_of,
    });
    (
        (share(), share(), share()),
        any::<(u32, u32, bool, bool, u64, bool)>(),
        (capabilities(), capabilities(), capabilities()),
        (
            vec(gpu, 0..3),
            vec(nic, 0..3),
            vec(image, 0..3),
            vec(assigned, 0..3),
        ),
        (vec(disk, 0..3), vec(cpu, 0..3)),
        (architecture(), text(), text()),
    )
        .prop_map(
            |(shares, numbers, capabilities, lists, more, (architecture, az, runtime))| {
                NodeInventory {
                    total_capacity: shares.0,
                    total_cores: numbers.0,
                    utilization_cap: shares.1,
                    reserved_capacity: shares.2,
                    reserved_cores: numbers.1,
                    capabilities: capabilities.0,
                    reserved_capabilities: capabilities.1,
                    gpus: lists.0,
                    nics: lists.1,
                    held_images: lists.2,
                    assigned_jobs: lists.3,
                    cordoned: numbers.2,
                    reachable: numbers.3,
                    memory_bytes: numbers.4,
                    disks: more.0,
                    disk_low: numbers.5,
                    architecture,
                    az,
                    runtime,
                    cpus: more.1,
                    provided: capabilities.2,
                }
            },
        )
}

// === nodes ===

fn launch_mode() -> impl Strategy<Value = LaunchMode> {
    one_of(&[LaunchMode::OnDemand, LaunchMode::Spot, LaunchMode::Reserved])
}

fn provider() -> impl Strategy<Value = ProviderMetadata> {
    prop_oneof![
        Just(ProviderMetadata::Unknown),
        (text(), text(), architecture(), text(), launch_mode()).prop_map(
            |(instance_type, region, architecture, availability_zone, launch_mode)| {
                ProviderMetadata::Aws {
                    instance_type,
                    region,
                    architecture,
                    availability_zone,
                    launch_mode,
                }
            }
        ),
        (text(), text(), architecture(), share()).prop_map(
            |(availability_domain, shape, architecture, ocpus)| ProviderMetadata::Oci {
                availability_domain,
                shape,
                architecture,
                ocpus,
            }
        ),
        (text(), text(), architecture()).prop_map(|(node_name, machine_id, architecture)| {
            ProviderMetadata::Local {
                node_name,
                machine_id,
                architecture,
            }
        }),
        (text(), text(), architecture()).prop_map(|(host, shape, architecture)| {
            ProviderMetadata::CloudHypervisor {
                host,
                shape,
                architecture,
            }
        }),
    ]
}

fn node_metadata() -> impl Strategy<Value = NodeMetadata> {
    (node_id(), tags(), wall(), provider()).prop_map(|(node_id, tags, created_at, provider)| {
        NodeMetadata {
            node_id,
            tags,
            created_at,
            provider,
        }
    })
}

fn running() -> impl Strategy<Value = RunningNodeMetadata> {
    (text(), text(), text(), text(), text()).prop_map(
        |(
            public_dns_name,
            private_dns_name,
            private_ip_address,
            public_ip_address,
            provider_id,
        )| {
            RunningNodeMetadata {
                public_dns_name,
                private_dns_name,
                private_ip_address,
                public_ip_address,
                provider_id,
            }
        },
    )
}

fn instance_state() -> impl Strategy<Value = InstanceState> {
    use InstanceState::*;
    one_of(&[Provisioned, Prepared, Running, Stopping, Lost])
}

fn running_job() -> impl Strategy<Value = RunningJob> {
    (key(), node_id(), start_id(), instance_state()).prop_map(|(key, node_id, start_id, state)| {
        RunningJob {
            key,
            node_id,
            start_id,
            state,
        }
    })
}

pub(super) fn node_info() -> impl Strategy<Value = NodeInfo> {
    use NodeState::*;
    let state = one_of(&[Starting, Running, Unreachable, Stopping, Stopped]);
    (
        node_metadata(),
        running(),
        (state, text(), text()),
        (vec(running_job(), 0..3), vec(key(), 0..3)),
        option::of(inventory()),
        any::<(u64, u32)>(),
        option::of(wall()),
    )
        .prop_map(
            |(metadata, running, texts, instances, inventory, numbers, last_seen)| NodeInfo {
                metadata,
                running,
                state: texts.0,
                reason: texts.1,
                instances: instances.0,
                unrecorded: instances.1,
                inventory: inventory.map(Arc::new),
                idle_expiry_ms: numbers.0,
                last_seen,
                terminate_attempts: numbers.1,
                last_error: texts.2,
            },
        )
}

// === jobs ===

fn requirements() -> impl Strategy<Value = Requirements> {
    use OnRuntimeFailure::*;
    (
        (share(), share()),
        any::<(u32, bool, Option<u32>, u64)>(),
        capabilities(),
        (texts(), text()),
        one_of(&[AvoidSpare, PreferSpare, Drop]),
    )
        .prop_map(
            |(shares, numbers, required_capabilities, texts, on_runtime_failure)| Requirements {
                required_capacity: shares.0,
                required_cores: numbers.0,
                required_capabilities,
                required_host_ports: texts.0,
                required_gpu_capacity: shares.1,
                required_gpu_model: texts.1,
                on_runtime_failure,
                essential: numbers.1,
                max_restarts_per_hour: numbers.2,
                memory_bytes: numbers.3,
            },
        )
}

fn lease() -> impl Strategy<Value = LeasePolicy> {
    (1..u64::MAX, 1..u64::MAX).prop_map(|(ttl_ms, grace_ms)| LeasePolicy {
        ttl_ms: Millis(ttl_ms),
        grace_ms: Millis(grace_ms),
    })
}

fn verdict() -> impl Strategy<Value = TerminalState> {
    (text(), text(), wall()).prop_map(|(reason, by, at)| TerminalState { reason, by, at })
}

fn media_version() -> impl Strategy<Value = MediaVersion> {
    use MediaVersion::*;
    one_of(&[Recommended, Latest, PreviousRecommended, Lts])
}

pub(super) fn job() -> impl Strategy<Value = Job> {
    let placement = (name(), any::<u32>(), name(), requirements()).prop_map(
        |(bundle_id, replica_index, job_name, requirements)| AutoPlacement {
            bundle_id: BundleId::new(bundle_id),
            replica_index,
            job_name: JobName::new(job_name),
            requirements,
        },
    );
    (
        (job_id(), tags(), option::of(wall()), media_version()),
        (text(), text(), text(), text(), text(), text()),
        vec(service(), 0..3),
        option::of(parameters()),
        (texts(), texts(), texts()),
        (option::of(placement), option::of(lease())),
        any::<(bool, bool)>(),
        capabilities(),
    )
        .prop_map(
            |(head, plain, services, media_parameters, lists, options, flags, provides)| Job {
                job_id: head.0,
                description: plain.0,
                tags: head.1,
                start_date_time: head.2,
                manager_configuration: plain.1,
                services,
                media_version: head.3,
                media_parameters,
                volumes: lists.0,
                shape: plain.2,
                architecture: plain.3,
                subnet: plain.4,
                availability_domain: plain.5,
                auto_placement: options.0,
                lease: options.1,
                handover: flags.0,
                job_socket: flags.1,
                provides,
                secret_env: lists.1,
                export_tags: lists.2,
            },
        )
}

fn place() -> impl Strategy<Value = At> {
    (role(), node_metadata(), option::of(running())).prop_map(|(role, node, running)| At {
        role,
        node: Arc::new(node),
        running: running.map(Arc::new),
    })
}

fn stop_reason() -> impl Strategy<Value = StopReason> {
    use StopReason::*;
    one_of(&[
        NodeStopped,
        NodeTerminated,
        UserRequested,
        UnknownJob,
        JobFailed,
        LeaseLost,
        Migration,
        BundleChanged,
    ])
}

fn history_kind() -> impl Strategy<Value = HistoryKind> {
    prop_oneof![
        Just(HistoryKind::Created),
        job().prop_map(|previous| HistoryKind::Updated {
            previous: Box::new(previous)
        }),
        place().prop_map(HistoryKind::Provisioned),
        place().prop_map(HistoryKind::Prepared),
        (place(), ports()).prop_map(|(at, ports)| HistoryKind::Running { at, ports }),
        (place(), stop_reason(), text()).prop_map(|(at, reason, detail)| HistoryKind::Stopping {
            at,
            reason,
            detail
        }),
        place().prop_map(HistoryKind::Stopped),
        Just(HistoryKind::Completed),
        (text(), text()).prop_map(|(reason, by)| HistoryKind::Failed { reason, by }),
        // The wire has no running data in this entry.
        (place(), rejection_code(), text()).prop_map(|(at, code, detail)| HistoryKind::Rejected {
            at: At {
                running: None,
                ..at
            },
            code,
            detail,
        }),
    ]
}

pub(super) fn job_with_history() -> impl Strategy<Value = JobWithHistory> {
    let entry = (wall(), any::<u64>(), option::of(start_id()), history_kind()).prop_map(
        |(at, seq, start_id, kind)| HistoryEntry {
            at,
            seq,
            start_id,
            kind,
        },
    );
    (
        job(),
        one_of(&[JobState::Pre, JobState::Active, JobState::Post]),
        any::<(i64, u32)>(),
        option::of(verdict()),
        texts(),
        vec(entry, 0..4),
    )
        .prop_map(
            |(job, state, numbers, terminal_state, pending_restart, history)| JobWithHistory {
                job,
                state,
                current_hash: numbers.0,
                terminal_state,
                pending_restart,
                history,
                dropped_entries: numbers.1,
            },
        )
}

pub(super) fn job_info() -> impl Strategy<Value = JobInfo> {
    use Stage::*;
    let kind = prop_oneof![
        text().prop_map(JobInfoKind::ServiceStarted),
        text().prop_map(JobInfoKind::ServiceRestarting),
        (text(), text()).prop_map(|(service, text)| JobInfoKind::ContainerEvent { service, text }),
        (one_of(&[Build, Create, Start, Stop, Down]), text())
            .prop_map(|(stage, text)| JobInfoKind::Stage { stage, text }),
        (text(), option::of(share()))
            .prop_map(|(text, progress)| JobInfoKind::Status { text, progress }),
    ];
    (key(), start_id(), wall(), kind).prop_map(|(key, start_id, at, kind)| JobInfo {
        key,
        start_id,
        at,
        kind,
    })
}

// === bundles ===

fn bundle_job() -> impl Strategy<Value = BundleJob> {
    let names = || vec(name().prop_map(JobName::new), 0..3);
    let launch = (
        option::of(name().prop_map(TemplateName::new)),
        tags(),
        vec(service(), 0..3),
        media_version(),
        option::of(parameters()),
        (texts(), text()),
    )
        .prop_map(
            |(template, parameters, services, media_version, media_parameters, texts)| Launch {
                template,
                parameters,
                services,
                media_version,
                media_parameters,
                volumes: texts.0,
                manager_configuration: texts.1,
            },
        );
    (
        (name(), text(), texts(), texts(), tags()),
        requirements(),
        (names(), names()),
        any::<(bool, bool, bool, bool)>(),
        one_of(&[StartMode::Auto, StartMode::Manual]),
        (option::of(wall()), option::of(lease())),
        capabilities(),
        launch,
    )
        .prop_map(
            |(texts, requirements, names, flags, start_mode, options, provides, launch)| {
                BundleJob {
                    job_name: JobName::new(texts.0),
                    description: texts.1,
                    requirements,
                    co_locate_with: names.0,
                    separate_from: names.1,
                    exclusive: flags.0,
                    single_use: flags.1,
                    start_mode,
                    start_date_time: options.0,
                    handover: flags.2,
                    job_socket: flags.3,
                    lease: options.1,
                    tags: texts.4,
                    secret_env: texts.2,
                    export_tags: texts.3,
                    provides,
                    launch,
                }
            },
        )
}

fn bundle() -> impl Strategy<Value = Bundle> {
    let rule = || one_of(&[Rule::Allow, Rule::Forbid]);
    let policy = (
        option::of(name().prop_map(PoolName::new)),
        rule(),
        rule(),
        rule(),
    )
        .prop_map(|(pool, same_node, same_az, same_cloud)| Resilience {
            pool,
            same_node,
            same_az,
            same_cloud,
        });
    let intra = (
        any::<bool>(),
        one_of(&[SameAz::Soft, SameAz::Hard, SameAz::Off]),
    )
        .prop_map(|(same_node_default, same_az)| IntraReplica {
            same_node_default,
            same_az,
        });
    (
        (text(), text(), text()),
        vec(bundle_job(), 0..3),
        (option::of(policy), intra),
        one_of(&[OnLaunch::AvoidSpare, OnLaunch::AllowSpare]),
        any::<(bool, u64)>(),
        (tags(), tags()),
        (option::of(wall()), option::of(wall())),
        one_of(&[BundleState::Live, BundleState::Deleting]),
    )
        .prop_map(
            |(texts, jobs, rules, on_launch, plain, tags, times, state)| Bundle {
                bundle_id: BundleId::new(texts.0),
                description: texts.1,
                pool: PoolName::new(texts.2),
                jobs,
                resilience_policy: rules.0,
                intra_replica_placement: rules.1,
                on_launch,
                override_reservation: plain.0,
                backup_parameter_overrides: tags.0,
                tags: tags.1,
                start_date_time: times.0,
                stop_at: times.1,
                state,
                revision: plain.1,
            },
        )
}

pub(super) fn bundle_status() -> impl Strategy<Value = BundleStatus> {
    let job = (
        job_id(),
        any::<(u32, bool)>(),
        name(),
        option::of(verdict()),
    )
        .prop_map(
            |(job_id, (replica_index, dormant), job_name, terminal_state)| BundleJobStatus {
                job_id,
                replica_index,
                job_name: JobName::new(job_name),
                dormant,
                terminal_state,
            },
        );
    (bundle(), vec(job, 0..3), option::of(wall())).prop_map(|(bundle, jobs, lease_expires_at)| {
        BundleStatus {
            bundle,
            jobs,
            lease_expires_at,
        }
    })
}

// === workers ===

pub(super) fn start_order() -> impl Strategy<Value = StartOrder> {
    (
        (job(), role(), start_id()),
        (text(), text(), text()),
        any::<(bool, bool, u64)>(),
        option::of(0..8_u32),
        option::of(migration_id()),
        (option::of(vec(any::<u8>(), 0..8)), any::<bool>()),
    )
        .prop_map(
            |((job, role, start_id), texts, plain, gpu_index, migration_id, state)| StartOrder {
                media_version: texts.0,
                media_image: texts.1,
                runtime_role: texts.2,
                defer_start: plain.0,
                target_is_migration: plain.1,
                fence: plain.2,
                gpu_index,
                migration_id,
                migration_state: state.0.map(Payload::from),
                migration_state_lost: state.1,
                ..StartOrder::of(&job, role, start_id)
            },
        )
}

pub(super) fn worker_instance() -> impl Strategy<Value = WorkerInstance> {
    (key(), start_id(), instance_state(), any::<u64>(), ports()).prop_map(
        |(key, start_id, state, fence, ports)| WorkerInstance {
            key,
            start_id,
            state,
            fence,
            ports,
        },
    )
}

pub(super) fn rejection() -> impl Strategy<Value = Rejection> {
    (key(), rejection_code(), text(), option::of(inventory())).prop_map(
        |(key, code, detail, inventory)| Rejection::new(key, code, detail, inventory.map(Arc::new)),
    )
}

pub(super) fn interruption() -> impl Strategy<Value = InterruptionNotice> {
    let kind = one_of(&[
        InterruptionKind::SpotInterruption,
        InterruptionKind::Rebalance,
    ]);
    (kind, option::of(wall()), wall()).prop_map(|(kind, deadline, seen_at)| InterruptionNotice {
        kind,
        deadline,
        seen_at,
    })
}

pub(super) fn migration_news() -> impl Strategy<Value = MigrationNews> {
    let payload = || vec(any::<u8>(), 0..8).prop_map(Payload::from);
    let signal = prop_oneof![
        payload().prop_map(MigrationSignal::State),
        text().prop_map(MigrationSignal::Refused),
        payload().prop_map(MigrationSignal::TargetReady),
        payload().prop_map(MigrationSignal::SourceStoppedOutput),
        payload().prop_map(MigrationSignal::TargetApplied),
        (text(), text()).prop_map(|(side, reason)| MigrationSignal::Aborted { side, reason }),
    ];
    (key(), migration_id(), signal).prop_map(|(key, migration_id, signal)| MigrationNews {
        key,
        migration_id,
        signal,
    })
}
