//! Opening UDP sockets for unicast and multicast, by address.
//!
//! Interfaces are named by one of their addresses, as the rest of the product does. IPv6 wants an
//! index instead; it is looked up in `/proc/net/if_inet6`, which exists on Linux only.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::net::{AddressFamily, SocketType, sockopt};

/// Room for about 3000 packets of 1328 bytes with their bookkeeping, so that a receiver that is
/// not scheduled for a while loses nothing. The kernel gives less if its limit is lower.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// Why a socket could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text has no `HOST:PORT` form, or the name has no address.
    #[error("address `{address}` cannot be resolved; it must be HOST:PORT")]
    Resolve {
        /// The address as given.
        address: String,
        /// What the resolver said.
        #[source]
        source: io::Error,
    },
    /// The name has no address at all.
    #[error("name `{address}` has no address")]
    NoAddress {
        /// The address as given.
        address: String,
    },
    /// A socket call was refused.
    #[error("cannot {action} for {address}")]
    Socket {
        /// What was tried.
        action: &'static str,
        /// The peer or the address to bind.
        address: SocketAddr,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The interface address is of the other IP version.
    #[error("interface {interface} and group {group} are not of the same IP version")]
    InterfaceFamily {
        /// The interface.
        interface: IpAddr,
        /// The multicast address.
        group: SocketAddr,
    },
    /// No interface has the address.
    #[error("no interface of this machine has the address {interface}")]
    NoInterface {
        /// The interface.
        interface: IpAddr,
    },
}

/// The first address of `HOST:PORT`.
pub(crate) async fn resolve(address: &str) -> Result<SocketAddr, Error> {
    let address = address.trim();
    let mut found = tokio::net::lookup_host(address)
        .await
        .map_err(|source| Error::Resolve {
            address: address.to_owned(),
            source,
        })?;
    found.next().ok_or_else(|| Error::NoAddress {
        address: address.to_owned(),
    })
}

/// A socket to send to one target; `ttl` and `interface` count for multicast targets.
pub(crate) fn open_sender(
    target: SocketAddr,
    ttl: u8,
    interface: Option<IpAddr>,
) -> Result<UdpSocket, Error> {
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let at = |action| {
        move |source| Error::Socket {
            action,
            address: target,
            source,
        }
    };
    let socket = UdpSocket::bind(any).map_err(at("open a socket"))?;
    if !target.ip().is_multicast() {
        return Ok(socket);
    }
    let set = |result: rustix::io::Result<()>, action| {
        result.map_err(|errno| at(action)(io::Error::from(errno)))
    };
    match target.ip() {
        IpAddr::V4(_) => {
            set(
                sockopt::set_ip_multicast_ttl(&socket, u32::from(ttl)),
                "set the multicast TTL",
            )?;
            if let Some(interface) = interface {
                let IpAddr::V4(address) = interface else {
                    return Err(Error::InterfaceFamily {
                        interface,
                        group: target,
                    });
                };
                set(
                    sockopt::set_ip_multicast_if(&socket, &address),
                    "choose the interface",
                )?;
            }
        }
        IpAddr::V6(_) => {
            set(
                sockopt::set_ipv6_multicast_hops(&socket, u32::from(ttl)),
                "set the hop limit",
            )?;
            if let Some(interface) = interface {
                let index = interface_index(interface, target)?;
                set(
                    sockopt::set_ipv6_multicast_if(&socket, index),
                    "choose the interface",
                )?;
            }
        }
    }
    Ok(socket)
}

/// A socket bound to an address; for a multicast group, a member of it.
pub(crate) fn open_receiver(
    address: SocketAddr,
    interface: Option<IpAddr>,
) -> Result<UdpSocket, Error> {
    let at = |action| {
        move |errno: rustix::io::Errno| Error::Socket {
            action,
            address,
            source: errno.into(),
        }
    };
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket =
        rustix::net::socket(family, SocketType::DGRAM, None).map_err(at("open a socket"))?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(at("open a socket"))?;
    sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)
        .map_err(at("size the receive buffer"))?;
    if address.ip().is_multicast() {
        // Several meters may watch one group on one machine.
        sockopt::set_socket_reuseaddr(&socket, true).map_err(at("share the address"))?;
    }
    rustix::net::bind(&socket, &address).map_err(at("bind"))?;
    match address.ip() {
        IpAddr::V4(group) if group.is_multicast() => {
            let interface = match interface {
                None => Ipv4Addr::UNSPECIFIED,
                Some(IpAddr::V4(interface)) => interface,
                Some(interface) => {
                    return Err(Error::InterfaceFamily {
                        interface,
                        group: address,
                    });
                }
            };
            sockopt::set_ip_add_membership(&socket, &group, &interface)
                .map_err(at("join the group"))?;
        }
        IpAddr::V6(group) if group.is_multicast() => {
            let index = interface.map_or(Ok(0), |interface| interface_index(interface, address))?;
            sockopt::set_ipv6_add_membership(&socket, &group, index)
                .map_err(at("join the group"))?;
        }
        _ => {}
    }
    Ok(UdpSocket::from(socket))
}

fn interface_index(interface: IpAddr, group: SocketAddr) -> Result<u32, Error> {
    let IpAddr::V6(address) = interface else {
        return Err(Error::InterfaceFamily { interface, group });
    };
    std::fs::read_to_string("/proc/net/if_inet6")
        .ok()
        .and_then(|table| index_in(&table, address))
        .ok_or(Error::NoInterface { interface })
}

/// Finds an address in the kernel's table: lines of address, index, prefix, scope, flags, name.
fn index_in(table: &str, address: Ipv6Addr) -> Option<u32> {
    let wanted = format!("{:032x}", u128::from(address));
    let line = table
        .lines()
        .find(|line| line.split_whitespace().next() == Some(&wanted))?;
    u32::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_interface_is_found_by_address() {
        let table = "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n\
                     00000000000000000000000000000001 1f 80 10 80       lo\n";
        assert_eq!(index_in(table, Ipv6Addr::LOCALHOST), Some(31));
        assert_eq!(
            index_in(table, "fe80::fc:ff:fe00:1".parse().unwrap()),
            Some(4)
        );
        assert_eq!(index_in(table, "fe80::1".parse().unwrap()), None);
    }

    #[test]
    fn an_interface_of_the_other_ip_version_is_refused() {
        let group: SocketAddr = "239.255.7.7:5000".parse().unwrap();
        let error = open_sender(group, 1, Some("::1".parse().unwrap())).unwrap_err();
        assert!(matches!(error, Error::InterfaceFamily { .. }), "{error}");
    }
}
