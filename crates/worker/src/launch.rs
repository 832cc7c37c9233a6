//! An accepted order with everything resolved: what a runtime needs to run an instance, and no more.
//!
//! The process runtime writes it beside the instance for the supervisor; the Docker runtime turns it
//! into containers. Building it decides nothing about room or form, which were checked before.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use greenroom_types::job::{Container, HealthCheck, ServiceParameters, VolumeMount};
use greenroom_types::node::InstanceKey;
use greenroom_types::{NodeId, StartId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::access::{DISCOVERY_FILE, REPLICA_FILE, discovery_dir, replica_dir};
use crate::capacity::Reservation;
use crate::lifecycle::ServiceRule;
use crate::order::{StartSpec, variable};
use crate::ports::Mapped;
use crate::restart::RestartRule;
use crate::socket::{MOUNTED_AT, SOCKET, socket_dir};
use crate::spec::RuntimeKind;

/// The host's name for containers that reach a node service of it (WORK-43).
pub(crate) const HOST_ALIAS: &str = "host.docker.internal";
/// Variable that tells a job where its socket is (SOCK-01).
const SOCKET_VARIABLE: &str = "GREENROOM_JOB_SOCKET";
/// Variables that tell a service where the files are that it asked for.
const DISCOVERY_VARIABLE: &str = "GREENROOM_DISCOVERY_FILE";
/// See [`DISCOVERY_VARIABLE`].
const REPLICA_VARIABLE: &str = "GREENROOM_ACCESS_REPLICA_FILE";
/// Where containers find them.
const OFFERED_AT: &str = "/run/greenroom-access";
/// Time between two health checks where the job says 0, in milliseconds.
const HEALTH_INTERVAL_DEFAULT: u64 = 1_000;

/// How job logs are kept (WORK-24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLimits {
    /// Bytes in one file before the next is begun.
    pub file_bytes: u64,
    /// Files kept for each service.
    pub files: u32,
}

/// An instance, ready to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Launch {
    pub(crate) deployment_id: String,
    pub(crate) node_id: NodeId,
    pub(crate) key: InstanceKey,
    pub(crate) start_id: StartId,
    pub(crate) services: Vec<LaunchService>,
    pub(crate) gpu_index: Option<u32>,
    pub(crate) logs: LogLimits,
    /// Where the directory of the job's socket is, for a job that has one.
    #[serde(default)]
    pub(crate) socket_dir: Option<PathBuf>,
    /// Its containers must know the host by name.
    #[serde(default)]
    pub(crate) reaches_host: bool,
}

/// A service, ready to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LaunchService {
    pub(crate) rule: ServiceRule,
    /// Empty on the process runtime.
    pub(crate) image: String,
    /// Which image that name meant when it was made local.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) pinned: Option<Pinned>,
    /// Program and arguments; empty for the image's own.
    pub(crate) command: Vec<String>,
    /// Working directory; empty for the default of the runtime.
    pub(crate) directory: String,
    /// In order; a later one of the same name wins.
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) ports: Vec<Mapped>,
    pub(crate) host_network: bool,
    /// CPUs to pin to; empty for none.
    pub(crate) cpus: Vec<u32>,
    pub(crate) shared_memory_size: Option<u64>,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) volume_mounts: Vec<VolumeMount>,
    pub(crate) gpu: bool,
    /// Where the files are that the service asks for, to be mounted.
    #[serde(default)]
    pub(crate) offers: Vec<Offer>,
    pub(crate) health: Option<HealthCheck>,
}

/// A directory with a file that the worker replaces, and how a service finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Offer {
    /// On this machine.
    pub(crate) dir: PathBuf,
    /// In a container.
    pub(crate) mounted_at: String,
}

/// One image and no other, whatever its name comes to mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pinned {
    /// The engine's id of it.
    pub(crate) id: String,
    /// Its digest at its registry; the id for one that came from none.
    pub(crate) digest: String,
}

/// Who the worker is, as its instances are told.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) deployment_id: String,
    pub(crate) node_id: NodeId,
}

impl Default for LogLimits {
    /// 10 MiB in each of 5 files.
    fn default() -> Self {
        Self {
            file_bytes: 10 << 20,
            files: 5,
        }
    }
}

// === impl Launch ===

impl Launch {
    pub(crate) fn new(
        spec: &StartSpec,
        held: &Reservation,
        identity: &Identity,
        runtime: RuntimeKind,
        logs: LogLimits,
        state_dir: &Path,
        provided: &BTreeMap<String, String>,
    ) -> Self {
        let socket_dir = spec
            .job_socket
            .then(|| socket_dir(state_dir, &spec.start_id));
        let socket = socket_dir.as_deref().map(|dir| match runtime {
            RuntimeKind::Docker => Path::new(MOUNTED_AT).join(SOCKET),
            RuntimeKind::Process => dir.join(SOCKET),
        });
        let services = spec
            .all_services()
            .into_iter()
            .map(|service| {
                let mut environment = environment(spec, held, identity, runtime, &service);
                for (name, address) in provided {
                    let name = variable("CAP", name);
                    environment.retain(|(other, _)| *other != name);
                    environment.push((name, address.clone()));
                }
                if let Some(socket) = &socket {
                    environment.retain(|(name, _)| name != SOCKET_VARIABLE);
                    let path = socket.display().to_string();
                    environment.push((SOCKET_VARIABLE.to_owned(), path));
                }
                let offers = offers(&service.parameters, runtime, state_dir, &mut environment);
                let ports: Vec<Mapped> = held.ports.of_service(&service.name).cloned().collect();
                let words = shlex::split(&service.command).unwrap_or_default();
                let (image, command, directory) = match service.container {
                    Container::Docker(image) => (image, words, String::new()),
                    Container::Process { command, directory } => {
                        (String::new(), command, directory)
                    }
                    Container::None => (String::new(), words, String::new()),
                };
                let ServiceParameters {
                    cpu_set,
                    shared_memory_size,
                    volume_mounts,
                    host_network,
                    memory_limit,
                    ..
                } = service.parameters;
                let health = service
                    .parameters
                    .health_check
                    .filter(|check| !check.command.is_empty())
                    .map(|check| HealthCheck {
                        interval_ms: match check.interval_ms {
                            0 => HEALTH_INTERVAL_DEFAULT,
                            ms => ms,
                        },
                        ..check
                    });
                LaunchService {
                    rule: ServiceRule {
                        name: service.name,
                        depends_on: service.depends_on,
                        restart: RestartRule {
                            when: service.restart,
                            count: service.restart_count,
                            period: service.restart_period,
                        },
                        has_health: health.is_some(),
                    },
                    image,
                    pinned: None,
                    command,
                    directory,
                    environment,
                    ports,
                    host_network,
                    cpus: if cpu_set.is_empty() {
                        held.cpus.clone()
                    } else {
                        cpu_set
                    },
                    shared_memory_size,
                    memory_limit,
                    volume_mounts,
                    offers,
                    gpu: service.parameters.gpu && held.gpu_index.is_some(),
                    health,
                }
            })
            .collect();
        Self {
            deployment_id: identity.deployment_id.clone(),
            node_id: identity.node_id.clone(),
            key: spec.key.clone(),
            start_id: spec.start_id.clone(),
            services,
            gpu_index: held.gpu_index,
            logs,
            socket_dir,
            reaches_host: provided.values().any(|it| it.starts_with(HOST_ALIAS)),
        }
    }

    pub(crate) fn rules(&self) -> Vec<ServiceRule> {
        self.services
            .iter()
            .map(|service| service.rule.clone())
            .collect()
    }
}

/// The files that a service asks for (WORK-57, WORK-58), told to it by name. They need not be there
/// yet.
fn offers(
    parameters: &ServiceParameters,
    runtime: RuntimeKind,
    state_dir: &Path,
    environment: &mut Vec<(String, String)>,
) -> Vec<Offer> {
    let asked = [
        (
            parameters.discovery_access,
            DISCOVERY_VARIABLE,
            discovery_dir(state_dir),
            "discovery",
            DISCOVERY_FILE,
        ),
        (
            parameters.access_replica,
            REPLICA_VARIABLE,
            replica_dir(state_dir),
            "replica",
            REPLICA_FILE,
        ),
    ];
    let mut offers = Vec::new();
    for (is_asked, variable, dir, name, file) in asked {
        if !is_asked {
            continue;
        }
        let mounted_at = format!("{OFFERED_AT}/{name}");
        let path = match runtime {
            RuntimeKind::Docker => format!("{mounted_at}/{file}"),
            RuntimeKind::Process => dir.join(file).display().to_string(),
        };
        environment.retain(|(other, _)| other != variable);
        environment.push((variable.to_owned(), path));
        offers.push(Offer { dir, mounted_at });
    }
    offers
}

/// `gr-<12 hex of key and start id>`, the beginning of every name that the worker gives (WORK-13).
pub(crate) fn name_prefix(key: &InstanceKey, start_id: &StartId) -> String {
    let mut hash = Sha256::new();
    for part in [key.job_id.as_str(), key.role.as_str(), start_id.as_str()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("gr-{}", greenroom_auth::hex(&hash.finalize()[..6]))
}

/// Where the files of an instance are kept.
pub(crate) fn instance_dir(state_dir: &std::path::Path, start_id: &StartId) -> PathBuf {
    state_dir.join("instances").join(safe_name(start_id))
}

/// A start id as the name of a file. It is the Manager's word and must not lead out of a directory.
pub(crate) fn safe_name(start_id: &StartId) -> String {
    let safe = start_id.as_str().bytes().all(|b| b.is_ascii_alphanumeric());
    if safe && !start_id.is_empty() {
        return start_id.as_str().to_owned();
    }
    let hash = Sha256::digest(start_id.as_str());
    format!("x{}", greenroom_auth::hex(&hash[..16]))
}

/// The variables of WORK-12: the job's own win, except over those.
fn environment(
    spec: &StartSpec,
    held: &Reservation,
    identity: &Identity,
    runtime: RuntimeKind,
    service: &greenroom_types::job::Service,
) -> Vec<(String, String)> {
    let mut all = service.parameters.environment.clone();
    let mut set = |name: &str, value: &str| {
        all.retain(|(other, _)| other != name);
        all.push((name.to_owned(), value.to_owned()));
    };
    set("NORSK_RUNTIME_ROLE", spec.told_role());
    set("GREENROOM_JOB_ID", spec.key.job_id.as_str());
    set("GREENROOM_ROLE", spec.key.role.as_str());
    set("GREENROOM_NODE_ID", identity.node_id.as_str());
    set("GREENROOM_START_ID", spec.start_id.as_str());
    set("GREENROOM_SERVICE", &service.name);
    if spec.fence > 0 {
        set("GREENROOM_FENCE", &spec.fence.to_string());
    }
    for (name, value) in spec.exported_tags() {
        set(&name, &value);
    }
    if runtime == RuntimeKind::Process {
        for mapped in held.ports.of_service(&service.name) {
            let name = format!("GREENROOM_PORT_{}", mapped.container_port);
            set(&name, &mapped.claim.port.to_string());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use greenroom_types::Tags;
    use greenroom_types::job::{HostPort, PortMapping, Protocol, Service};

    use super::*;
    use crate::ports::tests::FakeProbe;
    use crate::ports::{Ports, resolve};

    fn spec() -> StartSpec {
        let mut service = Service {
            name: "play".to_owned(),
            command: "tool --name 'two words' $HOME".to_owned(),
            ..Service::default()
        };
        service.parameters.environment = vec![
            ("MODE".to_owned(), "live".to_owned()),
            ("GREENROOM_JOB_ID".to_owned(), "forged".to_owned()),
        ];
        service.parameters.port_mappings = vec![PortMapping {
            container_port: 5004,
            protocol: Protocol::Udp,
            host_port: HostPort::Specific(6004),
            ..PortMapping::default()
        }];
        StartSpec {
            key: InstanceKey::new("chan-0.encode".into(), "primary@3f9c1e2a".into()),
            start_id: "0123456789abcdef0123456789abcdef".into(),
            services: vec![service],
            fence: 7,
            tags: Tags::from([
                ("show".to_owned(), "evening".to_owned()),
                ("private".to_owned(), "x".to_owned()),
            ]),
            export_tags: vec!["show".to_owned(), "absent".to_owned()],
            ..StartSpec::default()
        }
    }

    fn launch(spec: &StartSpec, runtime: RuntimeKind) -> Launch {
        let ports: Ports =
            resolve(&spec.services, &[], &[], &[], &mut FakeProbe::default()).unwrap();
        let held = Reservation {
            ports,
            ..Reservation::default()
        };
        let identity = Identity {
            deployment_id: "d".to_owned(),
            node_id: "n1".into(),
        };
        Launch::new(
            spec,
            &held,
            &identity,
            runtime,
            LogLimits::default(),
            Path::new("/state"),
            &BTreeMap::new(),
        )
    }

    fn variables(launch: &Launch) -> BTreeMap<String, String> {
        launch.services[0].environment.iter().cloned().collect()
    }

    // spec: WORK-12
    #[test]
    fn services_are_told_who_they_are_and_cannot_be_told_otherwise() {
        let told = variables(&launch(&spec(), RuntimeKind::Process));
        let expected = [
            ("GREENROOM_FENCE", "7"),
            ("GREENROOM_JOB_ID", "chan-0.encode"),
            ("GREENROOM_NODE_ID", "n1"),
            ("GREENROOM_PORT_5004", "6004"),
            ("GREENROOM_ROLE", "primary@3f9c1e2a"),
            ("GREENROOM_SERVICE", "play"),
            ("GREENROOM_START_ID", "0123456789abcdef0123456789abcdef"),
            ("GREENROOM_TAG_SHOW", "evening"),
            ("MODE", "live"),
            ("NORSK_RUNTIME_ROLE", "primary"),
        ];
        let told: Vec<(&str, &str)> = told.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(told, expected);
        let mapped = variables(&launch(&spec(), RuntimeKind::Docker));
        assert!(!mapped.contains_key("GREENROOM_PORT_5004"));
        let mut named = spec();
        named.runtime_role = "backup".to_owned();
        named.fence = 0;
        let told = variables(&launch(&named, RuntimeKind::Process));
        assert_eq!(told["NORSK_RUNTIME_ROLE"], "backup");
        assert!(!told.contains_key("GREENROOM_FENCE"));
    }

    // spec: WORK-12, SOCK-01
    #[test]
    fn a_job_with_a_socket_is_told_where_it_is() {
        let with = StartSpec {
            job_socket: true,
            ..spec()
        };
        let name = "GREENROOM_JOB_SOCKET";
        let told = |runtime| variables(&launch(&with, runtime))[name].clone();
        assert_eq!(told(RuntimeKind::Docker), "/run/greenroom/job.sock");
        let id = with.start_id.as_str();
        let path = format!("/state/sockets/{id}/job.sock");
        assert_eq!(told(RuntimeKind::Process), path);
        assert!(!variables(&launch(&spec(), RuntimeKind::Docker)).contains_key(name));
    }

    // spec: WORK-57, WORK-58
    #[test]
    fn a_service_that_asks_for_a_file_is_told_where_it_is_and_others_are_not() {
        let mut asking = spec();
        asking.services[0].parameters.discovery_access = true;
        let name = "GREENROOM_DISCOVERY_FILE";
        let docker = launch(&asking, RuntimeKind::Docker);
        let path = "/run/greenroom-access/discovery/access.json";
        assert_eq!(variables(&docker)[name], path);
        let offer = Offer {
            dir: "/state/access/offered/discovery".into(),
            mounted_at: "/run/greenroom-access/discovery".to_owned(),
        };
        assert_eq!(docker.services[0].offers, [offer]);
        assert!(!variables(&docker).contains_key("GREENROOM_ACCESS_REPLICA_FILE"));
        asking.services[0].parameters.access_replica = true;
        let told = variables(&launch(&asking, RuntimeKind::Process));
        assert_eq!(told[name], "/state/access/offered/discovery/access.json");
        let path = "/state/access/offered/replica/replica.json";
        assert_eq!(told["GREENROOM_ACCESS_REPLICA_FILE"], path);
        let plain = launch(&spec(), RuntimeKind::Docker);
        assert!(plain.services[0].offers.is_empty());
        assert!(!variables(&plain).contains_key(name));
    }

    // spec: JOB-05
    #[test]
    fn a_command_is_split_by_quotes_without_a_shell() {
        let launch = launch(&spec(), RuntimeKind::Process);
        assert_eq!(
            launch.services[0].command,
            ["tool", "--name", "two words", "$HOME"]
        );
    }

    // spec: WORK-13
    #[test]
    fn names_are_made_of_key_and_start_id() {
        let key = |job: &str| InstanceKey::new(job.into(), "primary".into());
        let name = name_prefix(&key("a"), &"1".into());
        assert_eq!(name.len(), 15);
        assert!(
            name.strip_prefix("gr-")
                .unwrap()
                .bytes()
                .all(|b| b.is_ascii_hexdigit())
        );
        assert_ne!(name, name_prefix(&key("a"), &"2".into()));
        assert_ne!(name, name_prefix(&key("b"), &"1".into()));
    }

    #[test]
    fn no_start_id_leads_out_of_the_state_directory() {
        let dir = std::path::Path::new("/state");
        for id in ["../../etc", "", "/root", "a/b"] {
            let path = instance_dir(dir, &id.into());
            assert_eq!(
                path.parent(),
                Some(std::path::Path::new("/state/instances")),
                "{id}"
            );
            assert!(path.file_name().is_some_and(|name| name.len() == 33));
        }
    }

    #[test]
    fn the_media_runtime_is_a_service_of_its_own() {
        let mut with_media = spec();
        with_media.media_image = "media:1".to_owned();
        let launch = launch(&with_media, RuntimeKind::Docker);
        let names: Vec<&str> = launch
            .services
            .iter()
            .map(|s| s.rule.name.as_str())
            .collect();
        assert_eq!(names, ["play", "media"]);
        assert_eq!(launch.services[1].image, "media:1");
    }
}
