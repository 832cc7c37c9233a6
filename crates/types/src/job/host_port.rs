//! Which port a mapping takes on its host, as people write it.

use std::fmt;

use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Which host port a mapping takes (WORK-15). A bare number is that very port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum HostPort {
    /// The kernel's choice.
    #[default]
    Ephemeral,
    /// The lowest free one of a range, both ends included.
    Range {
        /// First port.
        min: u32,
        /// Last port.
        max: u32,
    },
    /// Exactly this one.
    Specific(u32),
}

impl<'de> Deserialize<'de> for HostPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HostPortReader)
    }
}

struct HostPortReader;

impl<'de> Visitor<'de> for HostPortReader {
    type Value = HostPort;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a port number, ephemeral, specific, or range with min and max")
    }

    fn visit_u64<E: de::Error>(self, port: u64) -> Result<HostPort, E> {
        u32::try_from(port)
            .map(HostPort::Specific)
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(port), &self))
    }

    fn visit_i64<E: de::Error>(self, port: i64) -> Result<HostPort, E> {
        u64::try_from(port)
            .map_err(|_| E::invalid_value(Unexpected::Signed(port), &self))
            .and_then(|port| self.visit_u64(port))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<HostPort, E> {
        match text {
            "ephemeral" => Ok(HostPort::Ephemeral),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HostPort, A::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        enum Key {
            Specific,
            Range,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Ends {
            min: u32,
            max: u32,
        }
        let port = match map.next_key()? {
            Some(Key::Specific) => HostPort::Specific(map.next_value()?),
            Some(Key::Range) => {
                let Ends { min, max } = map.next_value()?;
                HostPort::Range { min, max }
            }
            None => return Err(de::Error::invalid_value(Unexpected::Map, &self)),
        };
        match map.next_key::<String>()? {
            None => Ok(port),
            Some(_) => Err(de::Error::custom(
                "write either specific or range, and not both",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: WORK-15
    #[test]
    fn a_host_port_is_a_bare_number_or_says_how_it_is_chosen() {
        let read = |tree: serde_json::Value| crate::tree::read::<HostPort>(&tree);
        assert_eq!(read(serde_json::json!(80)), Ok(HostPort::Specific(80)));
        for port in [
            HostPort::Ephemeral,
            HostPort::Specific(80),
            HostPort::Range { min: 1, max: 9 },
        ] {
            assert_eq!(read(serde_json::to_value(port).unwrap()), Ok(port));
        }
        for (tree, words) in [
            (serde_json::json!("80"), "found text \"80\""),
            (serde_json::json!(-1), "expected a port number"),
            (
                serde_json::json!({"range": {"min": 1}}),
                "range: the key max is missing",
            ),
            (
                serde_json::json!({"port": 1}),
                "port: expected one of specific, range",
            ),
            (
                serde_json::json!({"specific": 1, "range": {"min": 1, "max": 2}}),
                "not both",
            ),
            (serde_json::json!({}), "expected a port number"),
        ] {
            let told = read(tree).unwrap_err().to_string();
            assert!(told.contains(words), "{words:?} is not in {told:?}");
        }
    }
}
