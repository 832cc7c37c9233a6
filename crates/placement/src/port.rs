//! Host ports as jobs ask for them: `PORT/proto` (PORT-01). Which port a container really gets is
//! the worker's business and not here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Transport of a claimed host port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A claimed host port. The same number with the other transport is another port (PORT-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Port {
    /// 1 to 65535.
    pub number: u16,
    /// Transport.
    pub protocol: PortProtocol,
}

/// A token that is no port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host port: write PORT/tcp or PORT/udp with a port from 1 to 65535")]
pub struct PortError(String);

impl FromStr for Port {
    type Err = PortError;
    fn from_str(token: &str) -> Result<Self, PortError> {
        let wrong = || PortError(token.chars().take(64).collect());
        let (number, protocol) = token.split_once('/').ok_or_else(wrong)?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let number: u16 = number.parse().map_err(|_| wrong())?;
        let protocol = if protocol.eq_ignore_ascii_case("tcp") {
            PortProtocol::Tcp
        } else if protocol.eq_ignore_ascii_case("udp") {
            PortProtocol::Udp
        } else {
            return Err(wrong());
        };
        if number == 0 {
            return Err(wrong());
        }
        Ok(Self { number, protocol })
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            PortProtocol::Tcp => "tcp",
            PortProtocol::Udp => "udp",
        };
        write!(f, "{}/{protocol}", self.number)
    }
}

impl TryFrom<String> for Port {
    type Error = PortError;
    fn try_from(token: String) -> Result<Self, PortError> {
        token.parse()
    }
}

impl From<Port> for String {
    fn from(port: Port) -> Self {
        port.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: PORT-01
    #[test]
    fn tokens_are_compared_without_case_and_apart_by_transport() {
        let port = |token: &str| token.parse::<Port>();
        assert_eq!(port("80/TCP"), port("80/tcp"));
        assert_ne!(port("80/udp"), port("80/tcp"));
        let high = port("65535/Udp").unwrap();
        assert_eq!(high.to_string(), "65535/udp");
        assert_eq!(String::from(high), "65535/udp");
        for wrong in [
            "",
            "80",
            "0/tcp",
            "65536/tcp",
            "+80/tcp",
            "80/sctp",
            "a/udp",
            "/tcp",
        ] {
            assert!(port(wrong).is_err(), "{wrong}");
        }
    }
}
