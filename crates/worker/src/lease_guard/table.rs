//! The leases that a guard holds: a table of a fixed size, made once.

use std::os::fd::OwnedFd;

use greenroom_types::Mono;

use super::frame::{CONTAINER_ID, Request, Taken};
use crate::lease::{CONTAINERS_MAX, LEASES_MAX, NEVER, START_ID_MAX};

/// One lease.
#[derive(Debug)]
pub(super) struct Entry {
    len: usize,
    start_id: [u8; START_ID_MAX],
    pub(super) until: Mono,
    /// Its deadline has come: whatever there is of it is killed.
    pub(super) expired: bool,
    /// Something of it was killed or stopped, so that no deadline can be set for it again.
    pub(super) touched: bool,
    /// A worker has named it since it began.
    named: bool,
    count: usize,
    containers: [[u8; CONTAINER_ID]; CONTAINERS_MAX],
    /// Its supervisor, stopped, so that it starts nothing anew while the rest is killed.
    pub(super) supervisor: Option<(i32, OwnedFd)>,
    /// Processes of it that the last pass found, the supervisor aside.
    pub(super) found: usize,
}

/// All leases.
#[derive(Debug)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    spare: Vec<Entry>,
}

// === impl Entry ===

impl Entry {
    const fn blank() -> Self {
        Self {
            len: 0,
            start_id: [0; START_ID_MAX],
            until: Mono(0),
            expired: false,
            touched: false,
            named: false,
            count: 0,
            containers: [[0; CONTAINER_ID]; CONTAINERS_MAX],
            supervisor: None,
            found: 0,
        }
    }

    pub(super) fn start_id(&self) -> &[u8] {
        &self.start_id[..self.len]
    }

    pub(super) fn containers(&self) -> &[[u8; CONTAINER_ID]] {
        &self.containers[..self.count]
    }
}

// === impl Table ===

impl Table {
    /// Makes room for everything that there may ever be.
    pub(super) fn new() -> Self {
        Self {
            entries: (0..LEASES_MAX).map(|_| None).collect(),
            spare: (0..LEASES_MAX).map(|_| Entry::blank()).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spare.len() == LEASES_MAX
    }

    pub(super) fn take(&mut self, request: &Request<'_>, now: Mono) -> Taken {
        match request {
            Request::Begin => {
                self.all().for_each(|entry| entry.named = false);
                Taken::Done
            }
            Request::Hold { start_id, until } => match self.ensure(start_id) {
                None => Taken::Full,
                Some(entry) => {
                    entry.named = true;
                    if entry.expired && (entry.touched || *until <= now) {
                        return Taken::Late;
                    }
                    (entry.until, entry.expired) = (*until, false);
                    Taken::Done
                }
            },
            Request::Contain {
                start_id,
                container,
            } => match self.ensure(start_id) {
                Some(entry) if entry.containers().iter().any(|known| known == container) => {
                    Taken::Done
                }
                Some(entry) if entry.count < CONTAINERS_MAX => {
                    entry.named = true;
                    entry.containers[entry.count].copy_from_slice(container);
                    entry.count += 1;
                    Taken::Done
                }
                _ => Taken::Full,
            },
            Request::Release { start_id } => {
                self.release(|entry| entry.start_id() == *start_id);
                Taken::Done
            }
            Request::Settle => {
                self.release(|entry| !entry.named);
                Taken::Done
            }
            Request::Ping => Taken::Done,
        }
    }

    /// Marks what has run out; true when there is any that has.
    pub(super) fn expire(&mut self, now: Mono) -> bool {
        let mut any = false;
        for entry in self.all() {
            entry.expired |= entry.until <= now;
            any |= entry.expired;
        }
        any
    }

    /// The next deadline to come.
    pub(super) fn next(&self) -> Option<Mono> {
        let held = self.entries.iter().flatten();
        held.filter(|entry| !entry.expired && entry.until < NEVER)
            .map(|entry| entry.until)
            .min()
    }

    pub(super) fn expired(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.all().filter(|entry| entry.expired)
    }

    /// The number of an expired lease, for [`Table::at`]; good until the table changes.
    pub(super) fn find_expired(&self, is_it: impl Fn(&Entry) -> bool) -> Option<usize> {
        self.entries.iter().position(|slot| {
            slot.as_ref()
                .is_some_and(|entry| entry.expired && is_it(entry))
        })
    }

    pub(super) fn at(&mut self, number: usize) -> Option<&mut Entry> {
        self.entries.get_mut(number)?.as_mut()
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut().flatten()
    }

    /// The lease of this start; a new one never comes to its end by itself before it is held.
    fn ensure(&mut self, start_id: &[u8]) -> Option<&mut Entry> {
        let known = |entry: &Option<Entry>| {
            entry
                .as_ref()
                .is_some_and(|entry| entry.start_id() == start_id)
        };
        let at = match self.entries.iter().position(known) {
            Some(at) => at,
            None => {
                let at = self.entries.iter().position(Option::is_none)?;
                let mut entry = self.spare.pop()?;
                entry.len = start_id.len();
                entry.start_id[..start_id.len()].copy_from_slice(start_id);
                (entry.until, entry.named) = (NEVER, true);
                self.entries[at] = Some(entry);
                at
            }
        };
        self.entries[at].as_mut()
    }

    fn release(&mut self, over: impl Fn(&Entry) -> bool) {
        for slot in &mut self.entries {
            if slot.as_ref().is_some_and(&over) {
                *slot = None;
                // Within what was made at the beginning.
                self.spare.push(Entry::blank());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(table: &mut Table, start_id: &str, until: u64, now: u64) -> Taken {
        let start_id = start_id.as_bytes();
        let until = Mono(until);
        table.take(&Request::Hold { start_id, until }, Mono(now))
    }

    fn expired(table: &mut Table) -> Vec<String> {
        let ids = table.expired();
        ids.map(|entry| String::from_utf8(entry.start_id().to_vec()).unwrap())
            .collect()
    }

    // spec: WORK-42
    #[test]
    fn what_is_not_held_anew_runs_out_at_its_deadline() {
        let mut table = Table::new();
        assert_eq!(hold(&mut table, "s1", 100, 0), Taken::Done);
        assert_eq!(hold(&mut table, "s2", 200, 0), Taken::Done);
        assert_eq!(table.next(), Some(Mono(100)));
        assert!(!table.expire(Mono(99)));
        assert_eq!(hold(&mut table, "s1", 300, 99), Taken::Done);
        assert!(!table.expire(Mono(199)));
        assert!(table.expire(Mono(200)));
        assert_eq!(expired(&mut table), ["s2"]);
        assert_eq!(table.next(), Some(Mono(300)));
        // What is kept without end has no deadline.
        hold(&mut table, "s1", u64::MAX, 200);
        assert_eq!(table.next(), None);
    }

    // spec: WORK-42
    #[test]
    fn what_is_being_killed_cannot_be_held_again() {
        let mut table = Table::new();
        hold(&mut table, "s1", 100, 0);
        table.expire(Mono(100));
        assert_eq!(hold(&mut table, "s1", 90, 100), Taken::Late);
        // Nothing of it was there: it may be held again for a start to come.
        assert_eq!(hold(&mut table, "s1", 200, 150), Taken::Done);
        table.expire(Mono(200));
        table.expired().for_each(|entry| entry.touched = true);
        assert_eq!(hold(&mut table, "s1", 400, 300), Taken::Late);
        assert_eq!(expired(&mut table), ["s1"]);
    }

    // spec: WORK-42
    #[test]
    fn a_worker_that_begins_anew_releases_what_it_does_not_name() {
        let mut table = Table::new();
        hold(&mut table, "s1", 100, 0);
        hold(&mut table, "s2", 100, 0);
        table.take(&Request::Begin, Mono(0));
        hold(&mut table, "s2", 200, 0);
        table.take(&Request::Settle, Mono(0));
        table.expire(Mono(500));
        assert_eq!(expired(&mut table), ["s2"]);
        table.take(&Request::Release { start_id: b"s2" }, Mono(0));
        assert!(table.is_empty());
    }

    // spec: WORK-42
    #[test]
    fn there_is_room_for_so_many_and_room_is_used_again() {
        let mut table = Table::new();
        for round in 0..3 {
            for n in 0..LEASES_MAX {
                assert_eq!(hold(&mut table, &format!("{round}-{n}"), 1, 0), Taken::Done);
            }
            assert_eq!(hold(&mut table, "more", 1, 0), Taken::Full);
            table.take(&Request::Begin, Mono(0));
            table.take(&Request::Settle, Mono(0));
            assert!(table.is_empty());
        }
        let contain = |table: &mut Table, letter: u8| {
            let container = &[letter; CONTAINER_ID];
            let start_id = b"s1";
            table.take(
                &Request::Contain {
                    start_id,
                    container,
                },
                Mono(0),
            )
        };
        for n in 0..CONTAINERS_MAX {
            let letter = b'a' + u8::try_from(n).unwrap();
            assert_eq!(contain(&mut table, letter), Taken::Done);
        }
        assert_eq!(contain(&mut table, b'a'), Taken::Done);
        assert_eq!(contain(&mut table, b'z'), Taken::Full);
        // A start of which only containers are known has no deadline.
        assert!(!table.expire(Mono(u64::MAX - 1)));
    }
}
