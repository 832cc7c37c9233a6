//! The discovery fleet: where jobs find each other, and the secrets that admit nodes to it (DISC).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Servers of the discovery fleet with its secrets (DISC-01). Whoever prints one for debugging sees
/// no secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiscoveryFleet {
    /// The servers, as `HOST:PORT`.
    pub addresses: Vec<String>,
    /// One server, the form of protocol 1.4; the first one in what is answered.
    pub address: String,
    /// What every node shows to any server. Secret.
    pub leaf_token: String,
    /// Key of the node tokens. Secret, and never sent to a node.
    pub tier_secret: String,
    /// During a rotation the other key: first the next one, then the one before. Secret.
    pub tier_secret_alt: String,
    /// How far a rotation has come.
    pub rotation_phase: RotationPhase,
}

/// How far the rotation of the tier secret has come (DISC-05 to DISC-07).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RotationPhase {
    /// None is under way.
    #[default]
    None,
    /// The next secret is there and in use nowhere.
    Staged,
    /// The next secret is in force; the one before is still taken.
    Flipped,
}

/// A step of the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RotationStep {
    /// Bring the next secret (DISC-05).
    Stage,
    /// Put it in force (DISC-06).
    Flip,
    /// Forget the one before (DISC-07).
    Finish,
}

/// A secret text on its way, which prints as `***` (SEC-12).
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(crate::job::HIDDEN)
    }
}

// === impl DiscoveryFleet ===

impl DiscoveryFleet {
    /// The same with `***` in place of every secret that is there.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mask = |secret: &str| match secret {
            "" => String::new(),
            _ => crate::job::HIDDEN.to_owned(),
        };
        Self {
            addresses: self.addresses.clone(),
            address: self.address.clone(),
            leaf_token: mask(&self.leaf_token),
            tier_secret: mask(&self.tier_secret),
            tier_secret_alt: mask(&self.tier_secret_alt),
            rotation_phase: self.rotation_phase,
        }
    }
}

impl fmt::Debug for DiscoveryFleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.masked();
        f.debug_struct("DiscoveryFleet")
            .field("addresses", &shown.addresses)
            .field("address", &shown.address)
            .field("leaf_token", &shown.leaf_token)
            .field("tier_secret", &shown.tier_secret)
            .field("tier_secret_alt", &shown.tier_secret_alt)
            .field("rotation_phase", &shown.rotation_phase)
            .finish()
    }
}

// === impl RotationPhase ===

impl RotationPhase {
    /// As the wire spells it; empty when no rotation is under way.
    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Staged => "staged",
            Self::Flipped => "flipped",
        }
    }

    /// The phase of that word.
    pub fn of_word(word: &str) -> Option<Self> {
        let all = [Self::None, Self::Staged, Self::Flipped];
        all.into_iter().find(|phase| phase.word() == word)
    }
}

// === impl RotationStep ===

impl RotationStep {
    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Flip => "flip",
            Self::Finish => "finish",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SEC-12
    #[test]
    fn a_fleet_shows_no_secret_in_any_form_for_people() {
        let fleet = DiscoveryFleet {
            addresses: vec!["a:1".to_owned()],
            leaf_token: "leaf-hunter2".to_owned(),
            tier_secret: "tier-hunter2".to_owned(),
            ..DiscoveryFleet::default()
        };
        assert!(!format!("{fleet:?}").contains("hunter2"));
        let masked = fleet.masked();
        assert_eq!(masked.tier_secret, "***");
        assert_eq!(
            masked.tier_secret_alt, "",
            "what is not there is not hidden"
        );
        assert_eq!(masked.addresses, fleet.addresses);
    }

    #[test]
    fn phases_read_back_from_their_words() {
        for phase in [
            RotationPhase::None,
            RotationPhase::Staged,
            RotationPhase::Flipped,
        ] {
            assert_eq!(RotationPhase::of_word(phase.word()), Some(phase));
        }
        assert_eq!(RotationPhase::of_word("over"), None);
    }
}
