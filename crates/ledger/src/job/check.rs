//! What a job's definition must be before it is stored (JOB-05, JOB-32, LEASE-01, LIM-04).

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::call::Refusal;
use greenroom_types::job::{
    Container, HostPort, Job, LeasePolicy, Protocol, Service, ServiceParameters, TAG_BUNDLE_ID,
    TAG_JOB_NAME, TAG_REPLICA_INDEX, TAG_START_MODE,
};
use greenroom_types::{Millis, Tags};

use crate::refuse::{Problem, exhausted, invalid, problems};

/// Most tags of a job, longest key and value in bytes (JOB-32).
const TAGS: usize = 128;
const TAG_KEY: usize = 128;
const TAG_VALUE: usize = 4096;

/// The whole definition but for its id. `path` leads to it.
pub(crate) fn check_job(job: &Job) -> Result<(), Refusal> {
    check_sizes(job)?;
    let mut found = Vec::new();
    check_services(&job.services, "services", &mut found);
    if let Some(parameters) = &job.media_parameters {
        check_parameters(parameters, "norsk_service_parameters", &mut found);
    }
    check_host_ports(job, &mut found);
    problems(
        "bad_job",
        &format!("job {:?} is not valid", job.job_id),
        found,
    )?;
    check_lease(job.lease.as_ref())
}

/// LEASE-01.
pub(crate) fn check_lease(lease: Option<&LeasePolicy>) -> Result<(), Refusal> {
    let Some(lease) = lease else { return Ok(()) };
    let within = |value: Millis, low, high, path: &str| {
        if (low..=high).contains(&value.0) {
            return Ok(());
        }
        Err(invalid(
            "bad_lease",
            format!("{path} is {} ms: it must be {low} to {high}", value.0),
        )
        .with("path", path))
    };
    within(lease.ttl_ms, 2_000, 300_000, "lease.ttl_ms")?;
    within(lease.grace_ms, 1_000, 300_000, "lease.grace_ms")
}

/// JOB-32: number and lengths.
pub(crate) fn check_tags(tags: &Tags) -> Result<(), Refusal> {
    let bad = |text: String| Err(invalid("bad_tag", text).with("path", "tags"));
    if tags.len() > TAGS {
        return bad(format!("there are {} tags: at most {TAGS}", tags.len()));
    }
    for (key, value) in tags {
        if key.is_empty() || key.len() > TAG_KEY {
            return bad(format!(
                "tag key {:?} is not 1 to {TAG_KEY} bytes long",
                crate::refuse::cut(key, 200)
            ));
        }
        if value.len() > TAG_VALUE {
            return bad(format!(
                "the value of tag {key:?} is longer than {TAG_VALUE} bytes"
            ));
        }
    }
    Ok(())
}

/// JOB-32: keys that only the Manager sets. `start_mode` says whether the start mode may be set.
pub(crate) fn check_reserved(tags: &Tags, start_mode: bool) -> Result<(), Refusal> {
    let reserved = [TAG_BUNDLE_ID, TAG_REPLICA_INDEX, TAG_JOB_NAME];
    let found = reserved
        .into_iter()
        .chain((!start_mode).then_some(TAG_START_MODE))
        .find(|key| tags.contains_key(*key));
    match found {
        Some(key) => Err(invalid(
            "reserved_tag",
            format!("tag {key:?} is set by the Manager on bundle jobs and by nobody else"),
        )
        .with("path", format!("tags.{key}"))),
        None => Ok(()),
    }
}

fn check_sizes(job: &Job) -> Result<(), Refusal> {
    let parameters: Vec<_> = job
        .services
        .iter()
        .map(|service| &service.parameters)
        .chain(&job.media_parameters)
        .collect();
    let sum = |count: fn(&ServiceParameters) -> usize| -> usize {
        parameters.iter().map(|p| count(p)).sum()
    };
    let longest = job
        .services
        .iter()
        .map(|service| service.configuration.len());
    let counts = [
        ("services", job.services.len(), 64),
        ("ports", sum(|p| p.port_mappings.len()), 256),
        ("environment", sum(|p| p.environment.len()), 512),
        (
            "volumes",
            job.volumes.len().max(sum(|p| p.volume_mounts.len())),
            64,
        ),
        (
            "configuration_bytes",
            longest
                .max()
                .unwrap_or(0)
                .max(job.manager_configuration.len()),
            128 * 1024,
        ),
    ];
    for (what, count, limit) in counts {
        if count > limit {
            return Err(exhausted(
                &format!("too_many_{what}"),
                format!("job {:?} has {count} {what}: at most {limit}", job.job_id),
            )
            .with("expected", limit as u64)
            .with("actual", count as u64));
        }
    }
    Ok(())
}

fn check_services(services: &[Service], path: &str, found: &mut Vec<Problem>) {
    let mut names = BTreeSet::new();
    for (index, service) in services.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let name = &service.name;
        let formed = (1..=63).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !formed {
            found.push(Problem::new(
                format!("{path}.name"),
                format!("service name {name:?} must be 1 to 63 of a-z 0-9 -"),
            ));
        } else if !names.insert(name.as_str()) {
            found.push(Problem::new(
                format!("{path}.name"),
                format!("service name {name:?} is used twice"),
            ));
        }
        let runs = match &service.container {
            Container::Docker(image) => !image.is_empty(),
            Container::Process { command, .. } => !command.is_empty(),
            Container::None => false,
        };
        if !runs && service.command.trim().is_empty() {
            found.push(Problem::new(
                path.clone(),
                format!("service {name:?} names no container and has no command"),
            ));
        }
        check_parameters(&service.parameters, &format!("{path}.parameters"), found);
    }
    check_dependencies(services, path, found);
}

fn check_dependencies(services: &[Service], path: &str, found: &mut Vec<Problem>) {
    let by_name: BTreeMap<&str, &Service> = services
        .iter()
        .map(|service| (service.name.as_str(), service))
        .collect();
    for (index, service) in services.iter().enumerate() {
        for wanted in &service.depends_on {
            if !by_name.contains_key(wanted.as_str()) {
                found.push(Problem::new(
                    format!("{path}[{index}].dependsOn"),
                    format!("service {wanted:?} is not in this job"),
                ));
            }
        }
    }
    // Whatever can be started once everything it depends on was: the rest is a cycle.
    let mut started: BTreeSet<&str> = BTreeSet::new();
    loop {
        let before = started.len();
        for (name, service) in &by_name {
            let ready = service
                .depends_on
                .iter()
                .all(|d| started.contains(d.as_str()) || !by_name.contains_key(d.as_str()));
            if ready {
                started.insert(name);
            }
        }
        if started.len() == before {
            break;
        }
    }
    if let Some(index) = services
        .iter()
        .position(|service| !started.contains(service.name.as_str()))
    {
        found.push(Problem::new(
            format!("{path}[{index}].dependsOn"),
            format!(
                "service {:?} depends on itself through others",
                services[index].name
            ),
        ));
    }
}

fn check_parameters(parameters: &ServiceParameters, path: &str, found: &mut Vec<Problem>) {
    for (index, mapping) in parameters.port_mappings.iter().enumerate() {
        let path = format!("{path}.port_mappings[{index}]");
        let mut port = |value: u32, name: &str| {
            if !(1..=65_535).contains(&value) {
                found.push(Problem::new(
                    format!("{path}.{name}"),
                    format!("port {value} is not 1 to 65535"),
                ));
            }
        };
        port(mapping.container_port, "container_port");
        match mapping.host_port {
            HostPort::Ephemeral => {}
            HostPort::Specific(value) => port(value, "specific"),
            HostPort::Range { min, max } => {
                port(min, "range.min_port");
                port(max, "range.max_port");
                if min > max {
                    found.push(Problem::new(
                        format!("{path}.range"),
                        format!("min_port {min} is above max_port {max}"),
                    ));
                }
            }
        }
    }
}

/// A specific host port occurs once per (address, protocol); ANY takes both protocols.
fn check_host_ports(job: &Job, found: &mut Vec<Problem>) {
    let mut taken: BTreeMap<(String, Protocol, u32), String> = BTreeMap::new();
    let services = job
        .services
        .iter()
        .enumerate()
        .map(|(index, service)| (format!("services[{index}].parameters"), &service.parameters));
    let media = job
        .media_parameters
        .iter()
        .map(|parameters| ("norsk_service_parameters".to_owned(), parameters));
    for (path, parameters) in services.chain(media) {
        for (index, mapping) in parameters.port_mappings.iter().enumerate() {
            let HostPort::Specific(port) = mapping.host_port else {
                continue;
            };
            let here = format!("{path}.port_mappings[{index}]");
            let protocols: &[Protocol] = match mapping.protocol {
                Protocol::Any => &[Protocol::Tcp, Protocol::Udp],
                Protocol::Tcp => &[Protocol::Tcp],
                Protocol::Udp => &[Protocol::Udp],
            };
            let clash = protocols
                .iter()
                .find_map(|protocol| taken.get(&(mapping.host_address.clone(), *protocol, port)));
            if let Some(first) = clash {
                found.push(Problem::new(
                    here.clone(),
                    format!("host port {port} is taken by {first}"),
                ));
            }
            for protocol in protocols {
                taken
                    .entry((mapping.host_address.clone(), *protocol, port))
                    .or_insert_with(|| here.clone());
            }
        }
    }
}
