//! Which host ports an instance gets (WORK-15).
//!
//! A resolution either gives every mapping a port that nobody has and that can really be bound, or
//! refuses the whole. Whether a port can be bound is asked of a [`PortProbe`]; what other instances
//! hold is passed in. It reserves nothing: the caller keeps the claims.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};

use greenroom_types::job::{
    HostPort, PortMapping, PortMappings, Protocol, ResolvedPortMapping, Service,
};
use greenroom_types::node::RejectionCode;
use serde::{Deserialize, Serialize};

use crate::order::Refusal;

/// How many numbers the kernel may propose before a group of them counts as not to be had.
const EPHEMERAL_TRIES: usize = 64;
/// All addresses of the machine.
const ANYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Asks the machine about ports.
pub(crate) trait PortProbe: Send {
    /// True when nobody is bound there.
    fn is_free(&mut self, address: IpAddr, port: u16, protocol: Protocol) -> bool;
    /// A free number of the kernel's choice.
    fn ephemeral(&mut self, address: IpAddr, protocol: Protocol) -> Option<u16>;
}

/// Asks by binding.
#[derive(Debug, Default)]
pub(crate) struct BindProbe;

/// A host port that an instance holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Claim {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
}

/// A mapping with its host port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mapped {
    pub(crate) service: String,
    pub(crate) container_port: u16,
    /// The address as the job gave it, empty for all.
    pub(crate) host_address: String,
    pub(crate) claim: Claim,
}

/// Every host port of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Ports {
    pub(crate) mapped: Vec<Mapped>,
    /// Declared by the job's requirements and bound by the job itself.
    pub(crate) declared: Vec<Claim>,
}

// === impl Claim ===

impl Claim {
    fn clashes(&self, other: &Self) -> bool {
        let same_address = self.address == other.address
            || self.address.is_unspecified()
            || other.address.is_unspecified();
        let same_protocol = self.protocol == other.protocol
            || self.protocol == Protocol::Any
            || other.protocol == Protocol::Any;
        self.port == other.port && same_address && same_protocol
    }

    /// As `PORT/proto`, one for each transport.
    fn tokens(&self) -> impl Iterator<Item = String> {
        let protocols: &[&str] = match self.protocol {
            Protocol::Any => &["tcp", "udp"],
            Protocol::Tcp => &["tcp"],
            Protocol::Udp => &["udp"],
        };
        let port = self.port;
        protocols
            .iter()
            .map(move |protocol| format!("{port}/{protocol}"))
    }
}

impl std::fmt::Display for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let protocol = match self.protocol {
            Protocol::Any => "tcp and udp",
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        write!(f, "{} ({protocol})", self.port)
    }
}

// === impl Ports ===

impl Ports {
    pub(crate) fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.mapped
            .iter()
            .map(|mapped| &mapped.claim)
            .chain(&self.declared)
    }

    /// For the inventory: every port held, as `PORT/proto`, each once.
    pub(crate) fn tokens(&self) -> Vec<String> {
        let mut tokens: Vec<String> = self.claims().flat_map(Claim::tokens).collect();
        tokens.sort();
        tokens.dedup();
        tokens
    }

    /// For the reports.
    pub(crate) fn mappings(&self) -> PortMappings {
        let mut by_service = PortMappings::new();
        for mapped in &self.mapped {
            by_service
                .entry(mapped.service.clone())
                .or_default()
                .push(ResolvedPortMapping {
                    url: mapped.claim.address.to_string(),
                    target: u32::from(mapped.container_port),
                    published: u32::from(mapped.claim.port),
                    protocol: mapped.claim.protocol,
                });
        }
        by_service
    }

    pub(crate) fn of_service<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Mapped> {
        self.mapped
            .iter()
            .filter(move |mapped| mapped.service == name)
    }
}

/// Gives every mapping of the services a host port.
///
/// `taken` is what other instances hold. `inherited` is what an instance holds that will be gone
/// before this one starts: it may be taken over and cannot be tested by binding.
pub(crate) fn resolve(
    services: &[Service],
    declared: &[String],
    taken: &[Claim],
    inherited: &[Claim],
    probe: &mut dyn PortProbe,
) -> Result<Ports, Refusal> {
    let mut wanted = Vec::new();
    for service in services {
        for mapping in &service.parameters.port_mappings {
            wanted.push(Wanted::read(service, mapping)?);
        }
    }
    let mut finder = Finder {
        taken,
        inherited,
        own: Vec::new(),
        probe,
    };
    let mut found: Vec<Option<Claim>> = vec![None; wanted.len()];

    // The least flexible first, so that a range never takes what a specific one needs.
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut units: Vec<Vec<usize>> = Vec::new();
    for (at, want) in wanted.iter().enumerate() {
        if want.group.is_empty() {
            units.push(vec![at]);
        } else {
            groups.entry(want.group).or_default().push(at);
        }
    }
    units.extend(groups.into_values());
    units.sort_by_key(|unit| match wanted[unit[0]].host_port {
        HostPort::Specific(_) => 0,
        HostPort::Range { .. } => 1,
        HostPort::Ephemeral => 2,
    });
    for unit in units {
        let members: Vec<&Wanted<'_>> = unit.iter().map(|at| &wanted[*at]).collect();
        for (at, claim) in unit.iter().zip(finder.find(&members)?) {
            found[*at] = Some(claim);
        }
    }

    let mapped: Vec<Mapped> = wanted
        .iter()
        .zip(found)
        .filter_map(|(want, claim)| {
            Some(Mapped {
                service: want.service.to_owned(),
                container_port: want.container_port,
                host_address: want.host_address.to_owned(),
                claim: claim?,
            })
        })
        .collect();
    let declared = finder.declare(declared)?;
    Ok(Ports { mapped, declared })
}

struct Wanted<'a> {
    service: &'a str,
    container_port: u16,
    protocol: Protocol,
    host_port: HostPort,
    host_address: &'a str,
    address: IpAddr,
    group: &'a str,
}

impl<'a> Wanted<'a> {
    fn read(service: &'a Service, mapping: &'a PortMapping) -> Result<Self, Refusal> {
        let invalid = |what: String| {
            let detail = format!("service {}: {what}", service.name);
            Refusal::new(RejectionCode::InvalidSpec, detail)
        };
        let container_port = port_number(mapping.container_port).ok_or_else(|| {
            invalid(format!(
                "container port {} is not 1 to 65535",
                mapping.container_port
            ))
        })?;
        let address = match mapping.host_address.as_str() {
            "" => ANYWHERE,
            text => text
                .parse()
                .map_err(|_| invalid(format!("host address {text:?} is not an IP address")))?,
        };
        // On the host's network nothing is mapped: the port is the one the service binds.
        let host_port = if service.parameters.host_network {
            HostPort::Specific(mapping.container_port)
        } else {
            mapping.host_port
        };
        match host_port {
            HostPort::Specific(port) if port_number(port).is_none() => {
                return Err(invalid(format!("host port {port} is not 1 to 65535")));
            }
            HostPort::Range { min, max }
                if port_number(min).is_none() || port_number(max).is_none() || min > max =>
            {
                return Err(invalid(format!("{min} to {max} is not a range of ports")));
            }
            _ => {}
        }
        Ok(Self {
            service: &service.name,
            container_port,
            protocol: mapping.protocol,
            host_port,
            host_address: &mapping.host_address,
            address,
            group: &mapping.group,
        })
    }
}

struct Finder<'a> {
    taken: &'a [Claim],
    inherited: &'a [Claim],
    own: Vec<Claim>,
    probe: &'a mut dyn PortProbe,
}

impl Finder<'_> {
    /// Consecutive ports for the members of one group, or one port for a mapping of its own.
    fn find(&mut self, members: &[&Wanted<'_>]) -> Result<Vec<Claim>, Refusal> {
        let first = members[0];
        let place = |base: u16| -> Option<Vec<Claim>> {
            (0..)
                .zip(members)
                .map(|(step, want)| {
                    let port = base.checked_add(step)?;
                    Some(Claim {
                        address: want.address,
                        port,
                        protocol: want.protocol,
                    })
                })
                .collect()
        };
        let detail = match first.host_port {
            HostPort::Specific(port) => {
                let base = port_number(port).unwrap_or_default();
                if let Some(claims) = self.admit(place(base)) {
                    return Ok(claims);
                }
                match members {
                    [_] => format!("host port {port} of service {} is taken", first.service),
                    _ => format!(
                        "the {} ports from {port} on are not all free",
                        members.len()
                    ),
                }
            }
            HostPort::Range { min, max } => {
                let last = max.saturating_sub(members.len() as u32 - 1);
                for base in (min..=last).filter_map(port_number) {
                    if let Some(claims) = self.admit(place(base)) {
                        return Ok(claims);
                    }
                }
                format!(
                    "no host port from {min} to {max} is free for service {}",
                    first.service
                )
            }
            HostPort::Ephemeral => {
                for _ in 0..EPHEMERAL_TRIES {
                    let base = self.probe.ephemeral(first.address, first.protocol);
                    if let Some(claims) = base.and_then(|base| self.admit(place(base))) {
                        return Ok(claims);
                    }
                }
                format!(
                    "the kernel has no free host port for service {}",
                    first.service
                )
            }
        };
        Err(Refusal::new(RejectionCode::HostPort, detail))
    }

    fn admit(&mut self, claims: Option<Vec<Claim>>) -> Option<Vec<Claim>> {
        let claims = claims?;
        let free = claims.iter().all(|claim| self.is_free(claim));
        free.then(|| {
            self.own.extend(claims.iter().cloned());
            claims
        })
    }

    fn is_free(&mut self, claim: &Claim) -> bool {
        if self
            .taken
            .iter()
            .chain(&self.own)
            .any(|other| other.clashes(claim))
        {
            return false;
        }
        self.inherited.iter().any(|old| old.clashes(claim))
            || self
                .probe
                .is_free(claim.address, claim.port, claim.protocol)
    }

    fn declare(&mut self, tokens: &[String]) -> Result<Vec<Claim>, Refusal> {
        let mut declared: Vec<Claim> = Vec::new();
        for token in tokens {
            let claim = parse_token(token).ok_or_else(|| {
                let detail = format!("required host port {token:?} is not PORT/tcp or PORT/udp");
                Refusal::new(RejectionCode::InvalidSpec, detail)
            })?;
            // A mapping of the job itself is what the declaration is about.
            if self
                .own
                .iter()
                .chain(&declared)
                .any(|own| own.clashes(&claim))
            {
                continue;
            }
            if !self.is_free(&claim) {
                let detail = format!("host port {claim} is taken");
                return Err(Refusal::new(RejectionCode::HostPort, detail));
            }
            declared.push(claim);
        }
        Ok(declared)
    }
}

fn parse_token(token: &str) -> Option<Claim> {
    let (port, protocol) = token.split_once('/')?;
    let protocol = match protocol.to_ascii_lowercase().as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return None,
    };
    let port = port.parse().ok().and_then(port_number)?;
    Some(Claim {
        address: ANYWHERE,
        port,
        protocol,
    })
}

fn port_number(port: u32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

// === impl BindProbe ===

impl PortProbe for BindProbe {
    fn is_free(&mut self, address: IpAddr, port: u16, protocol: Protocol) -> bool {
        let tcp = || TcpListener::bind((address, port)).is_ok();
        let udp = || UdpSocket::bind((address, port)).is_ok();
        match protocol {
            Protocol::Tcp => tcp(),
            Protocol::Udp => udp(),
            Protocol::Any => tcp() && udp(),
        }
    }

    fn ephemeral(&mut self, address: IpAddr, protocol: Protocol) -> Option<u16> {
        let bound = match protocol {
            Protocol::Udp => UdpSocket::bind((address, 0)).and_then(|socket| socket.local_addr()),
            Protocol::Tcp | Protocol::Any => {
                TcpListener::bind((address, 0)).and_then(|socket| socket.local_addr())
            }
        };
        bound.ok().map(|bound| bound.port())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use greenroom_types::job::ServiceParameters;

    use super::*;

    /// A machine on which some ports are bound; ephemeral ones come from 40000 on.
    #[derive(Debug, Default)]
    pub(crate) struct FakeProbe {
        pub(crate) bound: BTreeSet<u16>,
        proposed: u16,
    }

    impl FakeProbe {
        pub(crate) fn bound(ports: &[u16]) -> Self {
            Self {
                bound: ports.iter().copied().collect(),
                proposed: 0,
            }
        }
    }

    impl PortProbe for FakeProbe {
        fn is_free(&mut self, _: IpAddr, port: u16, _: Protocol) -> bool {
            !self.bound.contains(&port)
        }
        fn ephemeral(&mut self, _: IpAddr, _: Protocol) -> Option<u16> {
            self.proposed += 1;
            Some(39_999 + self.proposed)
        }
    }

    fn mapping(container_port: u32, host_port: HostPort) -> PortMapping {
        PortMapping {
            container_port,
            host_port,
            ..PortMapping::default()
        }
    }

    fn service(name: &str, port_mappings: Vec<PortMapping>) -> Service {
        let parameters = ServiceParameters {
            port_mappings,
            ..ServiceParameters::default()
        };
        Service {
            name: name.to_owned(),
            parameters,
            ..Service::default()
        }
    }

    fn published(result: Result<Ports, Refusal>) -> Vec<u16> {
        result
            .unwrap()
            .mapped
            .iter()
            .map(|mapped| mapped.claim.port)
            .collect()
    }

    fn claim(port: u16, protocol: Protocol) -> Claim {
        Claim {
            address: ANYWHERE,
            port,
            protocol,
        }
    }

    // spec: WORK-15
    #[test]
    fn specific_range_and_ephemeral_ports_are_resolved_in_that_order() {
        let range = HostPort::Range {
            min: 5000,
            max: 5003,
        };
        let services = [service(
            "a",
            vec![
                mapping(1, HostPort::Ephemeral),
                mapping(2, range),
                mapping(3, range),
                mapping(4, HostPort::Specific(5001)),
            ],
        )];
        let mut probe = FakeProbe::bound(&[5000]);
        let result = resolve(
            &services,
            &[],
            &[claim(40_000, Protocol::Tcp)],
            &[],
            &mut probe,
        );
        // 5000 is bound, 5001 is asked for by name, 40000 belongs to another instance.
        assert_eq!(published(result), [40_001, 5002, 5003, 5001]);
    }

    // spec: WORK-15
    #[test]
    fn a_group_takes_consecutive_ports() {
        let grouped = |container_port, host_port| PortMapping {
            group: "rtp".to_owned(),
            ..mapping(container_port, host_port)
        };
        let range = HostPort::Range {
            min: 6000,
            max: 6005,
        };
        let services = [
            service("a", vec![grouped(1, range), grouped(2, range)]),
            service("b", vec![grouped(3, range)]),
        ];
        let mut probe = FakeProbe::bound(&[6001]);
        assert_eq!(
            published(resolve(&services, &[], &[], &[], &mut probe)),
            [6002, 6003, 6004]
        );
        let mut probe = FakeProbe::bound(&[6001, 6004]);
        let refusal = resolve(&services, &[], &[], &[], &mut probe).unwrap_err();
        assert_eq!(refusal.code, RejectionCode::HostPort);
    }

    // spec: WORK-15
    #[test]
    fn any_means_tcp_and_udp_on_one_number() {
        let services = [service(
            "a",
            vec![mapping(
                1,
                HostPort::Range {
                    min: 7000,
                    max: 7001,
                },
            )],
        )];
        let taken = [claim(7000, Protocol::Udp)];
        let ports = resolve(&services, &[], &taken, &[], &mut FakeProbe::default()).unwrap();
        assert_eq!(ports.tokens(), ["7001/tcp", "7001/udp"]);
        assert_eq!(ports.mappings()["a"][0].protocol, Protocol::Any);
        assert_eq!(ports.mappings()["a"][0].target, 1);
    }

    // spec: WORK-15
    #[test]
    fn the_kernel_is_asked_by_binding() {
        let holder = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = holder.local_addr().unwrap().port();
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(!BindProbe.is_free(local, port, Protocol::Tcp));
        assert!(!BindProbe.is_free(local, port, Protocol::Any));
        assert!(
            BindProbe
                .ephemeral(local, Protocol::Any)
                .is_some_and(|other| other != port)
        );
    }

    // spec: WORK-30, WORK-33
    #[test]
    fn a_taken_port_is_named() {
        let services = [service("web", vec![mapping(80, HostPort::Specific(8080))])];
        let detail = |taken: &[Claim], probe: &mut FakeProbe| {
            let refusal = resolve(&services, &[], taken, &[], probe).unwrap_err();
            assert_eq!(refusal.code, RejectionCode::HostPort);
            refusal.detail
        };
        let wanted = "host port 8080 of service web is taken";
        assert_eq!(
            detail(&[claim(8080, Protocol::Tcp)], &mut FakeProbe::default()),
            wanted
        );
        assert_eq!(detail(&[], &mut FakeProbe::bound(&[8080])), wanted);
    }

    // spec: WORK-30
    #[test]
    fn declared_ports_are_claimed_unless_a_mapping_of_the_job_is_meant() {
        let services = [service("a", vec![mapping(80, HostPort::Specific(8080))])];
        let tokens = ["8080/TCP".to_owned(), "9000/udp".to_owned()];
        let mut probe = FakeProbe::default();
        let ports = resolve(&services, &tokens, &[], &[], &mut probe).unwrap();
        assert_eq!(ports.declared, [claim(9000, Protocol::Udp)]);
        let taken = [claim(9000, Protocol::Udp)];
        let refusal = resolve(&services, &tokens, &taken, &[], &mut probe).unwrap_err();
        assert_eq!(refusal.code, RejectionCode::HostPort);
        let bad = ["9000".to_owned()];
        let refusal = resolve(&services, &bad, &[], &[], &mut probe).unwrap_err();
        assert_eq!(refusal.code, RejectionCode::InvalidSpec);
    }

    // spec: WORK-20
    #[test]
    fn a_successor_takes_over_the_ports_of_what_is_being_removed() {
        let services = [service("a", vec![mapping(80, HostPort::Specific(8080))])];
        let old = [claim(8080, Protocol::Any)];
        let mut probe = FakeProbe::bound(&[8080]);
        assert!(resolve(&services, &[], &[], &old, &mut probe).is_ok());
    }
}
