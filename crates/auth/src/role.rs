//! What a caller may do (SEC-03), and who it is.

use std::fmt;
use std::str::FromStr;

use greenroom_types::Wall;

/// Roles. The first four contain each other in this order; the others stand apart, so that nobody
/// who runs an installation is taken for one of its machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Reads everything but secrets, and follows events.
    Viewer,
    /// Works with jobs, bundles, nodes, slots, images, keys and values, migrations.
    Operator,
    /// What the control plane needs besides: leases, announcements, discovery, audit entries.
    ControlPlane,
    /// Everything: the cluster, pruning, rotation, reload.
    Admin,
    /// A node's worker.
    Worker,
    /// Another member of the Manager's cluster.
    Peer,
    /// An agent on a hypervisor host.
    Host,
}

/// A caller whose credential holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// What the credential proves, for audit (SEC-17).
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// When the credential ends; none: never.
    pub ends_at: Option<Wall>,
}

const NAMES: [(Role, &str); 7] = [
    (Role::Viewer, "viewer"),
    (Role::Operator, "operator"),
    (Role::ControlPlane, "control-plane"),
    (Role::Admin, "admin"),
    (Role::Worker, "worker"),
    (Role::Peer, "peer"),
    (Role::Host, "host"),
];

// === impl Role ===

impl Role {
    /// Whether this role may do what asks for `needed`.
    pub fn covers(self, needed: Self) -> bool {
        let nested = |role| role <= Self::Admin;
        self == needed || (nested(self) && nested(needed) && self >= needed)
    }

    /// Its name, as files and messages write it.
    pub fn as_str(self) -> &'static str {
        let found = NAMES.iter().find(|(role, _)| *role == self);
        found.map_or("unknown", |(_, name)| name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(role, _)| *role).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(_, name)| *name).collect();
            format!("{text:?} is no role; roles are {}", names.join(", "))
        })
    }
}

// === impl Principal ===

impl Principal {
    /// Whether its credential has ended.
    pub fn has_ended(&self, now: Wall) -> bool {
        self.ends_at.is_some_and(|end| end <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SEC-03
    #[test]
    fn roles_of_people_contain_each_other_and_those_of_machines_stand_apart() {
        let table: Vec<String> = NAMES
            .iter()
            .map(|(role, name)| {
                let may = NAMES.iter().filter(|(needed, _)| role.covers(*needed));
                let may: Vec<&str> = may.map(|(_, name)| *name).collect();
                format!("{name}: {}", may.join(" "))
            })
            .collect();
        assert_eq!(
            table,
            [
                "viewer: viewer",
                "operator: viewer operator",
                "control-plane: viewer operator control-plane",
                "admin: viewer operator control-plane admin",
                "worker: worker",
                "peer: peer",
                "host: host",
            ]
        );
        for (role, name) in NAMES {
            assert_eq!(name.parse(), Ok(role));
        }
        assert!("root".parse::<Role>().is_err());
    }
}
