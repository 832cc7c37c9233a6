//! Images that simulated workers pull: batch by batch, one image after the other (PREF-01, PREF-03).

use std::collections::BTreeMap;

use greenroom_ledger::Report;
use greenroom_types::stream::PrefetchResult;
use greenroom_types::{Millis, NodeId};

use super::World;
use super::hold::Pending;

/// A batch that a worker pulls.
#[derive(Clone, Debug)]
pub(super) struct Pull {
    batch_id: String,
    references: Vec<String>,
    settled: BTreeMap<String, bool>,
}

// === impl Pull ===

impl Pull {
    fn is_settled(&self) -> bool {
        self.references
            .iter()
            .all(|reference| self.settled.contains_key(reference))
    }

    /// Those that are neither there nor given up.
    pub(super) fn open(&self) -> Vec<String> {
        let open = self.references.iter();
        open.filter(|reference| !self.settled.contains_key(*reference))
            .cloned()
            .collect()
    }

    fn report(self) -> Report {
        let result = |reference: &String| {
            let ok = self.settled.get(reference).copied().unwrap_or_default();
            let why = |text: &str| if ok { String::new() } else { text.to_owned() };
            PrefetchResult {
                image_ref: reference.clone(),
                ok,
                error: why("pull_failed"),
                text: why("the scenario lets this pull fail"),
            }
        };
        Report::ImagesPrefetched {
            results: self.references.iter().map(result).collect(),
            batch_id: self.batch_id,
        }
    }
}

// === impl World ===

impl World {
    /// A worker begins a batch. What it holds is there at once; the rest comes one by one.
    pub(super) fn pull(&mut self, node_id: &NodeId, batch_id: String, references: Vec<String>) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        let held = |reference: &String| worker.machine.held_images.contains(reference);
        let (there, missing): (Vec<_>, Vec<_>) = references.iter().cloned().partition(held);
        worker.pulls.push(Pull {
            batch_id,
            references,
            settled: there
                .into_iter()
                .map(|reference| (reference, true))
                .collect(),
        });
        let each = self.spec.pull_time.0;
        let mut delay = 0;
        for reference in missing {
            delay += each;
            let due = Pending::Pulled(node_id.clone(), reference, true);
            self.after(Millis(delay), due);
        }
        self.settle_pulls(node_id);
    }

    /// One image is there, or cannot be had. A pull that was settled before stays as it was.
    pub(super) fn pulled(&mut self, node_id: &NodeId, reference: &str, ok: bool) {
        let Some(worker) = self.workers.get_mut(node_id).filter(|worker| worker.up) else {
            return;
        };
        let mut news = false;
        for pull in &mut worker.pulls {
            let open = pull.references.iter().any(|wanted| wanted == reference)
                && !pull.settled.contains_key(reference);
            if open {
                pull.settled.insert(reference.to_owned(), ok);
                news = true;
            }
        }
        if news && ok {
            worker.machine.held_images.insert(reference.to_owned());
        }
        if news {
            self.settle_pulls(node_id);
            self.inventory_follows(node_id);
        }
    }

    /// True while a worker waits for this image.
    pub(super) fn pulls(&self, node_id: &NodeId, reference: &str) -> bool {
        self.workers.get(node_id).is_some_and(|worker| {
            worker.pulls.iter().any(|pull| {
                pull.references.iter().any(|wanted| wanted == reference)
                    && !pull.settled.contains_key(reference)
            })
        })
    }

    fn settle_pulls(&mut self, node_id: &NodeId) {
        let Some(worker) = self.workers.get_mut(node_id) else {
            return;
        };
        let pulls = std::mem::take(&mut worker.pulls);
        let (settled, open) = pulls.into_iter().partition(Pull::is_settled);
        worker.pulls = open;
        let settled: Vec<Pull> = settled;
        for pull in settled {
            self.report(node_id, pull.report());
        }
    }
}

#[cfg(test)]
mod tests {
    use greenroom_types::Mono;
    use greenroom_types::call::Call;

    use super::*;
    use crate::format::action::HoldKind;
    use crate::format::{Scenario, SettingsCase};
    use crate::log::{Keep, Log};
    use crate::world::Memory;

    const FLEET: &str = "
scenario: 1
settings:
  placementPools: [{name: own, tiers: [{name: own, kind: local-servers, scaleOut: fixed}]}]
nodes: [{id: n, pool: own, capacity: 2, heldImages: [reg/old:1]}]
steps: [{expect: {invariants: ok}}]
";

    fn world() -> World {
        let scenario = Scenario::read("fleet.yaml", FLEET).unwrap();
        let SettingsCase::Valid(settings) = &scenario.settings else {
            panic!("the settings are valid");
        };
        let log = Log::new(Keep::Lines);
        let mut world = World::new(&scenario, settings, Memory::default(), log).unwrap();
        world.connect().unwrap();
        world
    }

    fn prefetch(world: &mut World) {
        let refs = ["reg/old:1", "reg/a:1", "reg/b:1"].map(str::to_owned);
        let node_id = "n".into();
        let image_refs = refs.to_vec();
        let call = Call::PrefetchImages {
            node_id,
            image_refs,
        };
        world.call_aside(call).unwrap();
    }

    fn told(world: World) -> Vec<String> {
        world
            .log
            .into_lines()
            .into_iter()
            .filter(|line| line.contains("imagesPrefetched") || line.contains("nodeInventoryU"))
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    // spec: SCEN-03
    #[test]
    fn images_come_one_after_the_other_and_show_in_the_inventory() {
        let mut world = world();
        prefetch(&mut world);
        world.advance(Mono(60_000)).unwrap();
        assert!(world.workers["n"].machine.held_images.contains("reg/b:1"));
        assert_eq!(
            told(world),
            [
                "0:00:05.100 event nodeInventoryUpdated n []",
                "0:00:10.000 event imagesPrefetched n reg/old:1 ok, reg/a:1 ok, reg/b:1 ok",
                "0:00:10.100 event nodeInventoryUpdated n []",
            ]
        );
    }

    // spec: SCEN-09
    #[test]
    fn a_held_pull_can_be_settled_by_hand_and_a_failed_one_fails_no_other() {
        let mut world = world();
        world.hold(&[HoldKind::ImagePulls], None);
        prefetch(&mut world);
        world.advance(Mono(20_000)).unwrap();
        assert!(world.pulls(&"n".into(), "reg/a:1"));
        world.pulled(&"n".into(), "reg/a:1", false);
        world.release(&[HoldKind::ImagePulls], None);
        world.advance(Mono(21_000)).unwrap();
        assert!(!world.workers["n"].machine.held_images.contains("reg/a:1"));
        assert_eq!(
            told(world),
            [
                "0:00:20.000 event imagesPrefetched n reg/old:1 ok, reg/a:1 failed, reg/b:1 ok",
                "0:00:20.100 event nodeInventoryUpdated n []",
            ]
        );
    }
}
