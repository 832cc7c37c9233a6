//! Warm images: pulling on spares what the templates they are kept warm for will need (PREFETCH).
//!
//! A node is looked at when something about it, or about the templates, changed. What it lacks then
//! waits in one line for all nodes, so that a registry serves a few nodes at a time, and is pulled in
//! batches, one per node at a time. What came of a pull is told and otherwise left alone: warmth is
//! what the node reports (PREFETCH-07), and a reference that failed waits for the next look.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_types::call::{Call, Reply};
use greenroom_types::stream::PrefetchResult;
use greenroom_types::{NodeId, PoolName, TemplateName};

use crate::calls::Purpose;
use crate::effect::{Callback, Effects, ErrorInfo, MirrorState};
use crate::event::CallFailure;
use crate::policy::Policy;

/// Most references that the Manager takes in one call (PREF-02).
const BATCH_MAX: usize = 64;

/// Nodes to look at, what waits for its turn, what is under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefetch {
    /// A pass runs at the end of this input.
    due: bool,
    /// Nodes to be looked at as soon as they may pull (PREFETCH-02, PREFETCH-08).
    looks: BTreeSet<NodeId>,
    /// Nodes that came back and have sent no picture since: the one in the fleet is old.
    stale: BTreeSet<NodeId>,
    pulls: BTreeMap<NodeId, Pull>,
    line: BTreeSet<Place>,
    next_seq: u64,
}

/// What one node pulls, and will pull.
#[derive(Clone, Debug, Default)]
struct Pull {
    /// The next batch, perhaps more than one takes.
    next: Vec<String>,
    place: Option<Place>,
    running: Option<Batch>,
}

/// A batch under way.
#[derive(Clone, Debug)]
struct Batch {
    seq: u64,
    refs: Vec<String>,
    /// The Manager's number of it, once its answer is here.
    id: Option<String>,
}

/// Place in line: a node's next batch goes behind all that wait, else by pool and node (PREFETCH-09).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    turn: u64,
    pool: Option<PoolName>,
    node_id: NodeId,
}

/// Whether a node may pull.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readiness {
    Now,
    /// Not as it stands, but it may come to it.
    Later,
    /// It is no spare any more.
    Never,
}

// === impl Prefetch ===

impl Prefetch {
    /// The node is to be looked at (PREFETCH-02).
    pub(crate) fn look_at(&mut self, node_id: &NodeId) {
        self.looks.insert(node_id.clone());
        self.due = true;
    }

    /// Whatever the fleet holds of the node's picture is from before its present start.
    pub(crate) fn await_picture(&mut self, node_id: &NodeId) {
        self.stale.insert(node_id.clone());
        self.look_at(node_id);
    }

    pub(crate) fn note_picture(&mut self, node_id: &NodeId) {
        self.due |= self.stale.remove(node_id);
    }

    /// A node that may be waiting changed its standing.
    pub(crate) fn touch(&mut self, node_id: &NodeId) {
        let waits = |pull: &Pull| pull.place.is_some();
        self.due |= self.looks.contains(node_id) || self.pulls.get(node_id).is_some_and(waits);
    }

    /// Nothing more is pulled on the node; a batch under way goes on.
    pub(crate) fn leave_alone(&mut self, node_id: &NodeId) {
        self.looks.remove(node_id);
        self.set_next(node_id, Vec::new(), None);
    }

    /// The node is gone, and its batch with it.
    pub(crate) fn forget(&mut self, node_id: &NodeId) {
        self.leave_alone(node_id);
        self.stale.remove(node_id);
        self.due |= self.pulls.remove(node_id).is_some();
    }

    /// Replaces what a node pulls next.
    fn set_next(&mut self, node_id: &NodeId, refs: Vec<String>, pool: Option<PoolName>) {
        if refs.is_empty() && !self.pulls.contains_key(node_id) {
            return;
        }
        let first_turn = self.line.first().map_or(0, |place| place.turn);
        let pull = self.pulls.entry(node_id.clone()).or_default();
        pull.next = refs;
        if pull.next.is_empty() {
            if let Some(place) = pull.place.take() {
                self.line.remove(&place);
            }
            if pull.running.is_none() {
                self.pulls.remove(node_id);
            }
        } else if pull.place.is_none() && pull.running.is_none() {
            let place = Place {
                turn: first_turn,
                pool,
                node_id: node_id.clone(),
            };
            self.line.insert(place.clone());
            pull.place = Some(place);
        }
    }

    /// The batch of a node is over; what came up meanwhile goes to the end of the line.
    fn settle(&mut self, node_id: &NodeId, pool: Option<PoolName>) {
        let last_turn = self.line.last().map_or(0, |place| place.turn);
        let Some(pull) = self.pulls.get_mut(node_id) else {
            return;
        };
        pull.running = None;
        self.due = true;
        if pull.next.is_empty() {
            self.pulls.remove(node_id);
            return;
        }
        let place = Place {
            turn: last_turn + 1,
            pool,
            node_id: node_id.clone(),
        };
        self.line.insert(place.clone());
        pull.place = Some(place);
    }

    /// How many nodes pull from each registry now.
    fn taken(&self) -> BTreeMap<String, usize> {
        let mut taken = BTreeMap::new();
        for batch in self.pulls.values().filter_map(|pull| pull.running.as_ref()) {
            for host in hosts_of(&batch.refs) {
                *taken.entry(host).or_default() += 1;
            }
        }
        taken
    }
}

// === impl Batch ===

impl Batch {
    /// True when these results are its own. An event may be here before the answer to the call.
    fn is(&self, batch_id: &str, results: &[PrefetchResult]) -> bool {
        match &self.id {
            Some(id) if !batch_id.is_empty() => id == batch_id,
            _ => self
                .refs
                .iter()
                .eq(results.iter().map(|result| &result.image_ref)),
        }
    }
}

// === impl Policy ===

impl Policy {
    /// The images of a template changed (PREFETCH-02).
    pub(crate) fn look_at_template(&mut self, template: &TemplateName) {
        for node_id in self.spares_warm_for(template) {
            self.prefetch.look_at(&node_id);
        }
    }

    /// Looks at the nodes that are to be looked at, then starts what may start (PREFETCH-09).
    pub(crate) fn run_prefetch(&mut self, out: &mut Effects) {
        if !std::mem::take(&mut self.prefetch.due) {
            return;
        }
        for node_id in self.prefetch.looks.clone() {
            match self.may_pull(&node_id) {
                Readiness::Now => {
                    self.prefetch.looks.remove(&node_id);
                    let refs = self.lacking(&node_id);
                    let pool = self.pool_of_node(&node_id);
                    self.prefetch.set_next(&node_id, refs, pool);
                }
                Readiness::Later => {}
                Readiness::Never => self.prefetch.leave_alone(&node_id),
            }
        }
        let mut taken = self.prefetch.taken();
        let limit = self.settings.prefetch_parallel_nodes as usize;
        for place in self.prefetch.line.clone() {
            let node_id = &place.node_id;
            match self.may_pull(node_id) {
                Readiness::Now => {}
                Readiness::Later => continue,
                Readiness::Never => {
                    self.prefetch.leave_alone(node_id);
                    continue;
                }
            }
            let refs = self.first_of_next(node_id);
            let hosts = hosts_of(&refs);
            let free = hosts
                .iter()
                .all(|host| taken.get(host).is_none_or(|count| *count < limit));
            // One that waits keeps its place at each of its registries, or others would overtake it
            // for ever.
            for host in hosts {
                *taken.entry(host).or_default() += 1;
            }
            if free && !refs.is_empty() {
                self.pull(node_id, refs, out);
            }
        }
        self.prefetch.due = false;
    }

    /// A spare that carries nothing, is heard, and is neither cordoned nor being ended (PREFETCH-08).
    fn may_pull(&self, node_id: &NodeId) -> Readiness {
        let state = self.nodes.get(node_id).map(|record| record.state);
        let tagged = self.is_hot_spare_node(node_id);
        let free = self.fleet.unconsumed_spare(node_id).is_some();
        // One that was bought stays ordinary once it has carried a job; a registered one does not.
        let comes_back = free || !self.is_bought(node_id);
        match state {
            Some(MirrorState::Starting) if tagged && comes_back => Readiness::Later,
            Some(MirrorState::Running) if tagged && comes_back => {
                let ready = free
                    && self.fleet.inventory(node_id).is_some()
                    && !self.prefetch.stale.contains(node_id)
                    && self.fleet.is_reachable(node_id)
                    && !self.fleet.is_cordoned(node_id);
                if ready {
                    Readiness::Now
                } else {
                    Readiness::Later
                }
            }
            _ => Readiness::Never,
        }
    }

    /// Images that a spare is to hold, does not, and is not pulling: each once, in order of template
    /// then list (PREFETCH-01).
    fn lacking(&self, node_id: &NodeId) -> Vec<String> {
        let running = self
            .prefetch
            .pulls
            .get(node_id)
            .and_then(|pull| pull.running.as_ref());
        let mut lacking: Vec<String> = Vec::new();
        for template in self
            .spare_spec(node_id)
            .map_or(&[][..], |spare| &spare.warm_for)
        {
            for image in self.fleet.template_images(template) {
                let under_way = running.is_some_and(|batch| batch.refs.contains(image));
                if !under_way && !self.holds(node_id, image) && !lacking.contains(image) {
                    lacking.push(image.clone());
                }
            }
        }
        lacking
    }

    fn holds(&self, node_id: &NodeId, image: &String) -> bool {
        self.fleet.held_count(node_id, std::slice::from_ref(image)) > 0
    }

    /// The batch that a node would pull now; images that it has come to hold are passed over.
    fn first_of_next(&mut self, node_id: &NodeId) -> Vec<String> {
        let next = self
            .prefetch
            .pulls
            .get(node_id)
            .map(|pull| pull.next.clone())
            .unwrap_or_default();
        let missing: Vec<String> = next
            .into_iter()
            .filter(|image| !self.holds(node_id, image))
            .collect();
        let batch = missing.iter().take(BATCH_MAX).cloned().collect();
        self.prefetch.set_next(node_id, missing, None);
        batch
    }

    fn pull(&mut self, node_id: &NodeId, refs: Vec<String>, out: &mut Effects) {
        self.prefetch.next_seq += 1;
        let seq = self.prefetch.next_seq;
        if let Some(pull) = self.prefetch.pulls.get_mut(node_id) {
            pull.next.drain(..refs.len());
            if let Some(place) = pull.place.take() {
                self.prefetch.line.remove(&place);
            }
            pull.running = Some(Batch {
                seq,
                refs: refs.clone(),
                id: None,
            });
        }
        let call = Call::PrefetchImages {
            node_id: node_id.clone(),
            image_refs: refs,
        };
        let node_id = node_id.clone();
        self.send(call, Purpose::Prefetch { node_id, seq }, out);
    }

    /// The worker was told, or could not be: then the batch failed as a whole (PREFETCH-08).
    pub(crate) fn prefetch_replied(
        &mut self,
        node_id: &NodeId,
        seq: u64,
        result: Result<Reply, CallFailure>,
        out: &mut Effects,
    ) {
        let running = self
            .prefetch
            .pulls
            .get_mut(node_id)
            .and_then(|pull| pull.running.as_mut())
            .filter(|batch| batch.seq == seq);
        match (result, running) {
            (Ok(Reply::Batch(id)), Some(batch)) => batch.id = Some(id),
            (Ok(_), _) => {}
            (Err(failure), running) => {
                let current = running.is_some();
                let message = format!("pulling images on node {node_id:?} failed: {failure}");
                let error = ErrorInfo::new("prefetchFailed", message).node(node_id);
                self.report(error, out);
                if current {
                    let pool = self.pool_of_node(node_id);
                    self.prefetch.settle(node_id, pool);
                }
            }
        }
    }

    /// A batch settled, one of this policy's or another's (PREFETCH-04).
    pub(crate) fn images_prefetched(
        &mut self,
        node_id: &NodeId,
        batch_id: &str,
        results: Vec<PrefetchResult>,
        out: &mut Effects,
    ) {
        let mine = self
            .prefetch
            .pulls
            .get(node_id)
            .and_then(|pull| pull.running.as_ref())
            .is_some_and(|batch| batch.is(batch_id, &results));
        if mine {
            let pool = self.pool_of_node(node_id);
            self.prefetch.settle(node_id, pool);
        }
        out.callback(Callback::OnImagesPrefetched {
            node_id: node_id.clone(),
            results,
        });
    }

    fn pool_of_node(&self, node_id: &NodeId) -> Option<PoolName> {
        self.fleet.facts(node_id)?.pool.clone()
    }
}

fn hosts_of(refs: &[String]) -> BTreeSet<String> {
    refs.iter()
        .filter_map(|image| registry_host(image))
        .map(str::to_owned)
        .collect()
}

/// Where an image comes from: the host of an address, the registry of a reference (the public one
/// where none is named); none for a file.
fn registry_host(image: &str) -> Option<&str> {
    if image.starts_with("file:") {
        return None;
    }
    let rest = image
        .strip_prefix("https://")
        .or_else(|| image.strip_prefix("http://"));
    if let Some(rest) = rest {
        return rest.split('/').next();
    }
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => Some(host),
        _ => Some("docker.io"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: PREFETCH-09
    #[test]
    fn the_registry_of_a_reference() {
        let hosts = [
            ("ubuntu:22.04", Some("docker.io")),
            ("library/ubuntu", Some("docker.io")),
            ("ghcr.io/a/b:1", Some("ghcr.io")),
            ("localhost/a", Some("localhost")),
            ("reg:5000/a@sha256:ff", Some("reg:5000")),
            (
                "https://files.example.org/a.tar#sha256=0",
                Some("files.example.org"),
            ),
            ("file:/srv/a.tar", None),
        ];
        for (image, host) in hosts {
            assert_eq!(registry_host(image), host, "{image}");
        }
    }
}
