//! From a launch to what the engine is asked to create: names, ports, volumes, limits, hardening.
//!
//! Pure: it asks the engine nothing.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, DeviceRequest, EndpointSettings, HealthConfig, HostConfig,
    HostConfigLogConfig, Mount, MountType, NetworkingConfig, PortBinding, RestartPolicy,
    RestartPolicyNameEnum, VolumeCreateRequest,
};
use bollard::query_parameters::CreateContainerOptions;
use greenroom_types::job::{Protocol, VolumeMount};
use greenroom_types::node::RejectionCode;

use super::labels::{Marks, of_instance, of_service};
use crate::launch::{HOST_ALIAS, Launch, LaunchService, name_prefix};
use crate::order::Refusal;
use crate::runtime::Trouble;
use crate::socket::MOUNTED_AT;
use crate::spec::is_volume_name;

/// End of the name of a volume that goes with its job (WORK-17).
const EPHEMERAL: &str = ":ephemeral";
/// Shared memory where the job names none (WORK-16).
const SHARED_MEMORY_DEFAULT: u64 = 64 << 20;
/// What the engine itself keeps of a container's output; the worker's own files are the record.
const ENGINE_LOG: [(&str, &str); 2] = [("max-size", "10m"), ("max-file", "2")];

/// Name of the instance's network.
pub(super) fn network_name(launch: &Launch) -> String {
    format!("{}-net", name_prefix(&launch.key, &launch.start_id))
}

/// The instance's network interface on the host bears our mark, so that a rule of the firewall can
/// mean all of ours and no other (WORK-51). Fifteen bytes is as long as such a name may be.
pub(super) fn bridge(launch: &Launch) -> HashMap<String, String> {
    let name = name_prefix(&launch.key, &launch.start_id);
    HashMap::from([("com.docker.network.bridge.name".to_owned(), name)])
}

/// The volumes the instance needs; making one that is there already changes nothing.
pub(super) fn volumes(marks: &Marks, launch: &Launch) -> Result<Vec<VolumeCreateRequest>, Trouble> {
    let mut volumes: Vec<VolumeCreateRequest> = Vec::new();
    let mounts = launch
        .services
        .iter()
        .flat_map(|service| &service.volume_mounts);
    for mount in mounts.filter(|mount| is_volume_name(&mount.volume_name)) {
        let name = volume_name(launch, &mount.volume_name)?;
        if volumes
            .iter()
            .any(|volume| volume.name.as_ref() == Some(&name))
        {
            continue;
        }
        let ephemeral = mount.volume_name.ends_with(EPHEMERAL);
        let labels = if ephemeral {
            of_instance(marks, launch)
        } else {
            marks.labels()
        };
        let labels = Some(labels);
        volumes.push(VolumeCreateRequest {
            name: Some(name),
            labels,
            ..Default::default()
        });
    }
    Ok(volumes)
}

/// One container. The network goes by its id, since the engine lets names repeat.
pub(super) fn container(
    marks: &Marks,
    launch: &Launch,
    service: &LaunchService,
    network_id: &str,
) -> Result<(CreateContainerOptions, ContainerCreateBody), Trouble> {
    let name = format!(
        "{}-{}",
        name_prefix(&launch.key, &launch.start_id),
        service.rule.name
    );
    let network = network_id.to_owned();
    let endpoint = EndpointSettings {
        aliases: Some(vec![service.rule.name.clone()]),
        ..Default::default()
    };
    let (exposed, bindings) = ports(service);
    let mounts = service
        .volume_mounts
        .iter()
        .map(|mount| self::mount(launch, mount))
        .chain(launch.socket_dir.as_deref().map(|dir| Ok(socket(dir))))
        .chain(
            service
                .offers
                .iter()
                .map(|offer| Ok(bound(&offer.dir, &offer.mounted_at))),
        );
    let host_config = HostConfig {
        network_mode: Some(if service.host_network {
            "host".to_owned()
        } else {
            network.clone()
        }),
        port_bindings: (!service.host_network).then_some(bindings),
        mounts: Some(mounts.collect::<Result<_, _>>()?),
        cpuset_cpus: (!service.cpus.is_empty()).then(|| list(&service.cpus)),
        shm_size: Some(size(
            service.shared_memory_size.unwrap_or(SHARED_MEMORY_DEFAULT),
        )),
        memory: service.memory_limit.map(size),
        device_requests: service
            .gpu
            .then(|| gpu(launch))
            .flatten()
            .map(|gpu| vec![gpu]),
        // Restarts are the worker's (WORK-18); after a reboot nothing starts by itself (WORK-62).
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(ENGINE_LOG.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
        }),
        // SEC-13.
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
        ipc_mode: Some("private".to_owned()),
        extra_hosts: launch
            .reaches_host
            .then(|| vec![format!("{HOST_ALIAS}:host-gateway")]),
        ..Default::default()
    };
    let nanoseconds = |ms: u64| size(ms.saturating_mul(1_000_000));
    let body = ContainerCreateBody {
        // By its id: the name may mean another one by now.
        image: Some(
            service
                .pinned
                .as_ref()
                .map_or_else(|| service.image.clone(), |pinned| pinned.id.clone()),
        ),
        cmd: (!service.command.is_empty()).then(|| service.command.clone()),
        env: Some(
            service
                .environment
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
        ),
        labels: Some(of_service(marks, launch, service)),
        exposed_ports: (!service.host_network).then_some(exposed),
        healthcheck: service.health.as_ref().map(|health| HealthConfig {
            test: Some([&["CMD".to_owned()], &health.command[..]].concat()),
            interval: Some(nanoseconds(health.interval_ms)),
            retries: (health.retries > 0).then(|| i64::from(health.retries)),
            ..Default::default()
        }),
        networking_config: (!service.host_network).then(|| NetworkingConfig {
            endpoints_config: Some(HashMap::from([(network, endpoint)])),
        }),
        host_config: Some(host_config),
        ..Default::default()
    };
    Ok((
        CreateContainerOptions {
            name: Some(name),
            platform: String::new(),
        },
        body,
    ))
}

type Bindings = HashMap<String, Option<Vec<PortBinding>>>;

fn ports(service: &LaunchService) -> (Vec<String>, Bindings) {
    let mut bindings = Bindings::new();
    for mapped in &service.ports {
        let protocols: &[&str] = match mapped.claim.protocol {
            Protocol::Any => &["tcp", "udp"],
            Protocol::Tcp => &["tcp"],
            Protocol::Udp => &["udp"],
        };
        for protocol in protocols {
            let binding = PortBinding {
                host_ip: Some(mapped.host_address.clone()).filter(|address| !address.is_empty()),
                host_port: Some(mapped.claim.port.to_string()),
            };
            let port = format!("{}/{protocol}", mapped.container_port);
            bindings
                .entry(port)
                .or_default()
                .get_or_insert_default()
                .push(binding);
        }
    }
    (bindings.keys().cloned().collect(), bindings)
}

/// The directory of the job's socket. It is mounted and not the socket, which is another one after a
/// restart of the worker (SOCK-01); nothing in it is the job's to change.
fn socket(dir: &std::path::Path) -> Mount {
    bound(dir, MOUNTED_AT)
}

/// A directory of the worker's, for reading. What is replaced in it is seen.
fn bound(dir: &std::path::Path, target: &str) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(dir.display().to_string()),
        target: Some(target.to_owned()),
        read_only: Some(true),
        ..Default::default()
    }
}

fn mount(launch: &Launch, mount: &VolumeMount) -> Result<Mount, Trouble> {
    let (typ, source) = if is_volume_name(&mount.volume_name) {
        (MountType::VOLUME, volume_name(launch, &mount.volume_name)?)
    } else {
        // Resolved again, so that the engine mounts what was checked.
        let real = std::path::Path::new(&mount.volume_name).canonicalize();
        let real = real.map_err(|error| Trouble::Broken(error.to_string()))?;
        (MountType::BIND, real.display().to_string())
    };
    Ok(Mount {
        typ: Some(typ),
        source: Some(source),
        target: Some(mount.container_path.clone()),
        read_only: Some(mount.read_only),
        ..Default::default()
    })
}

/// A kept volume is the node's, by its name; one that goes with its job is the instance's.
fn volume_name(launch: &Launch, name: &str) -> Result<String, Trouble> {
    let (prefix, own) = match name.strip_suffix(EPHEMERAL) {
        Some(own) => (name_prefix(&launch.key, &launch.start_id), own),
        None => ("gr".to_owned(), name),
    };
    let form = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    if own.is_empty() || !own.bytes().all(form) {
        let detail = format!("{name:?} is no name of a volume");
        return Err(Trouble::Refused(Refusal::new(
            RejectionCode::InvalidSpec,
            detail,
        )));
    }
    Ok(format!("{prefix}-{own}"))
}

fn gpu(launch: &Launch) -> Option<DeviceRequest> {
    Some(DeviceRequest {
        device_ids: Some(vec![launch.gpu_index?.to_string()]),
        capabilities: Some(vec![vec!["gpu".to_owned()]]),
        ..Default::default()
    })
}

fn list(cpus: &[u32]) -> String {
    cpus.iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

fn size(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use greenroom_types::job::{Container, HostPort, PortMapping, Service, ServiceParameters};
    use greenroom_types::node::InstanceKey;

    use super::*;
    use crate::capacity::Reservation;
    use crate::launch::{Identity, LogLimits};
    use crate::order::StartSpec;
    use crate::ports::{Ports, resolve, tests::FakeProbe};
    use crate::spec::RuntimeKind;

    fn identity() -> Identity {
        Identity {
            deployment_id: "dep".to_owned(),
            node_id: "n1".into(),
        }
    }

    fn launch(parameters: ServiceParameters) -> Launch {
        let service = Service {
            name: "play".to_owned(),
            container: Container::Docker("img:1".to_owned()),
            parameters,
            ..Service::default()
        };
        let spec = StartSpec {
            key: InstanceKey::new("j".into(), "primary".into()),
            start_id: "s1".into(),
            services: vec![service],
            ..StartSpec::default()
        };
        let mut probe = FakeProbe::default();
        let ports: Ports = resolve(&spec.services, &[], &[], &[], &mut probe).unwrap();
        let held = Reservation {
            ports,
            cpus: vec![2, 3],
            gpu_index: Some(1),
            ..Reservation::default()
        };
        Launch::new(
            &spec,
            &held,
            &identity(),
            RuntimeKind::Docker,
            LogLimits::default(),
            std::path::Path::new("/state"),
            &std::collections::BTreeMap::new(),
        )
    }

    fn create(parameters: ServiceParameters) -> (CreateContainerOptions, ContainerCreateBody) {
        let launch = launch(parameters);
        container(&Marks::of(&identity()), &launch, &launch.services[0], "net").unwrap()
    }

    // spec: WORK-13
    #[test]
    fn containers_are_named_and_labelled_as_ours() {
        let (options, body) = create(ServiceParameters::default());
        let name = options.name.unwrap();
        assert!(name.starts_with("gr-") && name.ends_with("-play"), "{name}");
        let labels = body.labels.unwrap();
        for (label, value) in [
            ("greenroom.deployment", "dep"),
            ("greenroom.node", "n1"),
            ("greenroom.job", "j"),
            ("greenroom.role", "primary"),
            ("greenroom.start-id", "s1"),
            ("greenroom.service", "play"),
        ] {
            assert_eq!(labels[label], value);
        }
        assert_eq!(labels["greenroom.spec-hash"].len(), 64);
    }

    // spec: WORK-57, WORK-58
    #[test]
    fn files_that_are_asked_for_are_mounted_for_reading() {
        let parameters = ServiceParameters {
            discovery_access: true,
            access_replica: true,
            ..ServiceParameters::default()
        };
        let mounts = create(parameters).1.host_config.unwrap().mounts.unwrap();
        let targets: Vec<&str> = mounts
            .iter()
            .filter_map(|it| it.target.as_deref())
            .collect();
        let wanted = [
            "/run/greenroom-access/discovery",
            "/run/greenroom-access/replica",
        ];
        assert_eq!(targets, wanted);
        assert!(mounts.iter().all(|mount| mount.read_only == Some(true)));
    }

    // spec: SEC-13
    #[test]
    fn containers_are_hardened() {
        let host = create(ServiceParameters::default()).1.host_config.unwrap();
        assert_eq!(host.privileged, Some(false));
        assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
        assert_eq!(host.security_opt.unwrap(), ["no-new-privileges:true"]);
        assert_eq!(host.pid_mode, None);
        assert_eq!(
            host.restart_policy.unwrap().name,
            Some(RestartPolicyNameEnum::NO)
        );
    }

    // spec: WORK-16
    #[test]
    fn cpus_shared_memory_and_one_gpu_are_asked_for() {
        let host = create(ServiceParameters::default()).1.host_config.unwrap();
        assert_eq!(host.cpuset_cpus.as_deref(), Some("2,3"));
        assert_eq!(host.shm_size, Some(64 << 20));
        assert_eq!(host.device_requests, None);
        let host = create(ServiceParameters {
            cpu_set: vec![5],
            shared_memory_size: Some(1 << 20),
            memory_limit: Some(2 << 20),
            gpu: true,
            ..ServiceParameters::default()
        });
        let host = host.1.host_config.unwrap();
        assert_eq!(host.cpuset_cpus.as_deref(), Some("5"));
        assert_eq!((host.shm_size, host.memory), (Some(1 << 20), Some(2 << 20)));
        let gpu = &host.device_requests.unwrap()[0];
        assert_eq!(gpu.device_ids.as_deref(), Some(&["1".to_owned()][..]));
    }

    // spec: WORK-14, WORK-15
    #[test]
    fn ports_are_mapped_for_each_transport_and_not_on_the_hosts_network() {
        let mapping = PortMapping {
            container_port: 80,
            host_port: HostPort::Specific(8080),
            host_address: "127.0.0.1".to_owned(),
            ..PortMapping::default()
        };
        let parameters = ServiceParameters {
            port_mappings: vec![mapping],
            ..ServiceParameters::default()
        };
        let body = create(parameters.clone()).1;
        let bindings = body.host_config.unwrap().port_bindings.unwrap();
        for port in ["80/tcp", "80/udp"] {
            let binding = &bindings[port].as_ref().unwrap()[0];
            assert_eq!(binding.host_port.as_deref(), Some("8080"));
            assert_eq!(binding.host_ip.as_deref(), Some("127.0.0.1"));
        }
        let network = body.networking_config.unwrap().endpoints_config.unwrap();
        let aliases = network["net"].aliases.clone();
        assert_eq!(aliases, Some(vec!["play".to_owned()]));
        let body = create(ServiceParameters {
            host_network: true,
            ..parameters
        })
        .1;
        let host = body.host_config.unwrap();
        assert_eq!(host.network_mode.as_deref(), Some("host"));
        assert_eq!((host.port_bindings, body.networking_config), (None, None));
    }

    // spec: WORK-17
    #[test]
    fn kept_volumes_are_the_nodes_and_ephemeral_ones_the_instances() {
        let mount = |name: &str| VolumeMount {
            volume_name: name.to_owned(),
            container_path: "/data".to_owned(),
            read_only: true,
        };
        let volume_mounts = vec![mount("media"), mount("scratch:ephemeral")];
        let launch = launch(ServiceParameters {
            volume_mounts,
            ..ServiceParameters::default()
        });
        let marks = Marks::of(&identity());
        let made = volumes(&marks, &launch).unwrap();
        assert_eq!(made[0].name.as_deref(), Some("gr-media"));
        assert!(
            !made[0]
                .labels
                .as_ref()
                .unwrap()
                .contains_key("greenroom.start-id")
        );
        let prefix = name_prefix(&launch.key, &launch.start_id);
        assert_eq!(made[1].name, Some(format!("{prefix}-scratch")));
        assert!(
            made[1]
                .labels
                .as_ref()
                .unwrap()
                .contains_key("greenroom.start-id")
        );
        let body = container(&marks, &launch, &launch.services[0], "net")
            .unwrap()
            .1;
        let mounts = body.host_config.unwrap().mounts.unwrap();
        assert!(mounts.iter().all(|mount| mount.read_only == Some(true)));
    }
}
