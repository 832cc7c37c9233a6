//! Random ids from one seed, a separate stream for each kind (TIME-05), so that one more node of
//! one kind changes no id of another and recorded runs stay comparable.
//!
//! The driver takes the seed from the system's randomness; a simulation from its own seed. These
//! ids must be unique, not secret.

use std::collections::VecDeque;

use greenroom_types::MigrationId;

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
struct Stream(u64);

// === impl IdSource ===

impl IdSource {
    /// All streams from one seed.
    pub fn seeded(seed: u64) -> Self {
        let mut root = Stream(seed);
        Self {
            given: VecDeque::new(),
            node: Stream(root.next()),
            migration: Stream(root.next()),
            service: Stream(root.next()),
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
        self.service.next() as u32
    }

    /// Id of a migration (MIGR-01).
    pub fn migration_id(&mut self) -> MigrationId {
        MigrationId::new(self.migration.uuid())
    }
}

// === impl Stream ===

impl Stream {
    /// SplitMix64: a counter and a mixing function, every output of 2^64 inputs distinct.
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uuid(&mut self) -> String {
        let high = self.next() & !0xf000 | 0x4000;
        let low = self.next() & !(0xc << 60) | (0x8 << 60);
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
