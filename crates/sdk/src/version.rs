//! Versions on both sides and what their difference means (HELLO-01 to HELLO-05, SDK-03).

use std::fmt;

use greenroom_proto::convert::call::{PROTOCOL_MAJOR, PROTOCOL_MINOR};
use greenroom_proto::manager;
use greenroom_types::Wall;

/// A protocol version.
///
/// ```
/// assert_eq!(greenroom_sdk::Protocol::OURS.to_string(), "1.10");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Protocol {
    /// Differs where the sides cannot talk.
    pub major: u32,
    /// Grows with each addition.
    pub minor: u32,
}

/// How the server's protocol stands to this SDK's (HELLO-03).
///
/// ```
/// use greenroom_sdk::{Protocol, Skew};
/// let theirs = Protocol { major: 1, minor: 4 };
/// assert_eq!(Skew::of(theirs), Skew::ServerOlder { ours: Protocol::OURS, theirs });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// Equal.
    Same,
    /// The server knows more than this SDK.
    ServerNewer {
        /// This SDK's.
        ours: Protocol,
        /// The server's.
        theirs: Protocol,
    },
    /// The server lacks calls that this SDK has; they end [`crate::Error::NeedsProtocol`].
    ServerOlder {
        /// This SDK's.
        ours: Protocol,
        /// The server's.
        theirs: Protocol,
    },
}

/// The published version of the server's build.
///
/// ```
/// let version = greenroom_sdk::VersionInfo { major: 1, minor: 2, build: 3, ..Default::default() };
/// assert_eq!(version.to_string(), "1.2.3");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionInfo {
    /// Major.
    pub major: i32,
    /// Minor.
    pub minor: i32,
    /// Number of the build.
    pub build: i32,
    /// Branch it was built from, may be empty.
    pub branch: String,
    /// Label of the release, may be empty.
    pub label: String,
}

/// What a member said in its Hello.
///
/// ```
/// let hello = greenroom_sdk::HelloInfo {
///     protocol: greenroom_sdk::Protocol::OURS,
///     ..greenroom_sdk::HelloInfo::default()
/// };
/// assert_eq!(hello.skew(), greenroom_sdk::Skew::Same);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HelloInfo {
    /// Version of the build.
    pub version: VersionInfo,
    /// Protocol; 1.0 from a server that does not tell.
    pub protocol: Protocol,
    /// Version, commit and target of the build.
    pub build: String,
    /// Name of the member.
    pub member: String,
    /// What it offers, sorted.
    pub features: Vec<String>,
    /// Its wall clock when it said hello.
    pub server_time: Option<Wall>,
}

// === impl Protocol ===

impl Protocol {
    /// The protocol of this SDK.
    pub const OURS: Self = Self {
        major: PROTOCOL_MAJOR,
        minor: PROTOCOL_MINOR,
    };
    /// The protocol of the published surface.
    pub const PUBLISHED: Self = Self { major: 1, minor: 0 };
}

impl Default for Protocol {
    fn default() -> Self {
        Self::PUBLISHED
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

// === impl Skew ===

impl Skew {
    /// How a server of that protocol stands to this SDK.
    pub fn of(theirs: Protocol) -> Self {
        let ours = Protocol::OURS;
        match theirs.cmp(&ours) {
            std::cmp::Ordering::Equal => Self::Same,
            std::cmp::Ordering::Greater => Self::ServerNewer { ours, theirs },
            std::cmp::Ordering::Less => Self::ServerOlder { ours, theirs },
        }
    }
}

// === impl VersionInfo ===

impl fmt::Display for VersionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.build)?;
        if !self.label.is_empty() {
            write!(f, "-{}", self.label)?;
        }
        Ok(())
    }
}

// === impl HelloInfo ===

impl HelloInfo {
    /// How the member's protocol stands to this SDK's.
    pub fn skew(&self) -> Skew {
        Skew::of(self.protocol)
    }

    pub(crate) fn read(hello: manager::Hello) -> Self {
        let version = hello.version.unwrap_or_default();
        let protocol = if hello.protocol_major == 0 {
            Protocol::PUBLISHED
        } else {
            Protocol {
                major: hello.protocol_major,
                minor: hello.protocol_minor,
            }
        };
        Self {
            version: VersionInfo {
                major: version.major_version,
                minor: version.minor_version,
                build: version.build_number,
                branch: version.branch_name,
                label: version.label,
            },
            protocol,
            build: hello.build,
            member: hello.member,
            features: hello.features,
            server_time: hello.server_time.map(|time| {
                Wall(
                    time.seconds
                        .saturating_mul(1000)
                        .saturating_add(i64::from(time.nanos) / 1_000_000),
                )
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: HELLO-03
    #[test]
    fn skew_is_told_with_both_numbers() {
        let ours = Protocol::OURS;
        let newer = Protocol {
            minor: ours.minor + 1,
            ..ours
        };
        let older = Protocol {
            minor: ours.minor - 1,
            ..ours
        };
        assert_eq!(Skew::of(ours), Skew::Same);
        assert_eq!(
            Skew::of(newer),
            Skew::ServerNewer {
                ours,
                theirs: newer
            }
        );
        assert_eq!(
            Skew::of(older),
            Skew::ServerOlder {
                ours,
                theirs: older
            }
        );
    }

    #[test]
    fn a_server_that_tells_no_protocol_is_a_published_one() {
        let hello = HelloInfo::read(manager::Hello::default());
        assert_eq!(hello.protocol, Protocol::PUBLISHED);
    }
}
