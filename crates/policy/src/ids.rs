//! Random ids from one seed, a separate stream for each kind (TIME-05), so that one more node of
//! one kind changes no id of another and recorded runs stay comparable.
//!
//! The driver takes the seed from the system's randomness; a simulation from its own seed. These
//! ids must be unique, not secret.

use std::collections::VecDeque;

use greenroom_types::{MigrationId, SplitMix64};

/// Source of ids.
#[derive(Clone, Debug)]
pub struct IdSource {
    /// Given out ahead of those drawn.
    given: VecDeque<String>,
    node: Stream,
    migration: Stream,
    service: Stream,
}

#[derive(Clone, Debug)]
struct Stream(SplitMix64);

// === impl IdSource ===

impl IdSource {
    /// All streams from one seed.
    pub fn seeded(seed: u64) -> Self {
        let mut root = SplitMix64::new(seed);
        let mut stream = || Stream(SplitMix64::new(root.draw()));
        Self {
            given: VecDeque::new(),
            node: stream(),
            migration: stream(),
            service: stream(),
        }
    }

    /// The first nodes get these: a course that is played again breaks ties as it did.
    #[must_use]
    pub fn giving_nodes(mut self, uuids: impl IntoIterator<Item = String>) -> Self {
        self.given.extend(uuids);
        self
    }

    /// The uuid in a node id (NODE-04).
    pub(crate) fn node_uuid(&mut self) -> String {
        self.given.pop_front().unwrap_or_else(|| self.node.uuid())
    }

    /// The eight hexadecimal digits in the job id of a node service (NSVC-04).
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) const fn service_suffix(&mut self) -> u32 {
        self.service.0.draw() as u32
    }

    /// Id of a migration (MIGR-01).
    pub fn migration_id(&mut self) -> MigrationId {
        MigrationId::new(self.migration.uuid())
    }
}

// === impl Stream ===

impl Stream {
    fn uuid(&mut self) -> String {
        let high = self.0.draw() & !0xf000 | 0x4000;
        let low = self.0.draw() & !(0xc << 60) | (0x8 << 60);
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: TIME-05
    #[test]
    fn one_seed_gives_one_sequence_and_kinds_do_not_disturb_each_other() {
        let (mut a, mut b) = (IdSource::seeded(7), IdSource::seeded(7));
        b.migration_id();
        let first = a.node_uuid();
        assert_eq!(first, b.node_uuid());
        assert_ne!(first, a.node_uuid());
        assert_ne!(first, IdSource::seeded(8).node_uuid());
        let shape: Vec<usize> = first.split('-').map(str::len).collect();
        assert_eq!(shape, [8, 4, 4, 4, 12]);
        assert_eq!(first.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&first.as_bytes()[19]));
    }
}
