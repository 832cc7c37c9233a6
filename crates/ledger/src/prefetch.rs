//! PrefetchImages (PREF-01, PREF-02).

use greenroom_types::NodeId;
use greenroom_types::call::{CallResult, Refusal, Reply, Status};
use greenroom_types::node::NodeState;

use crate::command::Fresh;
use crate::ledger::Ledger;
use crate::order::WorkerOrder;
use crate::out::Out;
use crate::refuse::{failed, invalid, required, unknown_node};

/// Most references of a batch, longest reference in bytes.
const REFS: usize = 64;
const REF_BYTES: usize = 512;

// === impl Ledger ===

impl Ledger {
    pub(crate) fn prefetch_images(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        image_refs: Vec<String>,
        fresh: &Fresh,
    ) -> CallResult {
        required("node_id", node_id.as_str())?;
        if image_refs.is_empty() || image_refs.len() > REFS {
            return Err(invalid(
                "bad_image_ref",
                format!(
                    "there are {} image_refs: give 1 to {REFS}",
                    image_refs.len()
                ),
            )
            .with("path", "image_refs"));
        }
        if let Some(index) = image_refs.iter().position(|text| !is_reference(text)) {
            return Err(invalid(
                "bad_image_ref",
                format!(
                    "image_refs[{index}] {:?} is not an image reference",
                    crate::refuse::cut(&image_refs[index], 200)
                ),
            )
            .with("path", format!("image_refs[{index}]")));
        }
        self.check_knows_more(node_id, "images ahead of a job")?;
        let node = self
            .nodes
            .get_mut(node_id)
            .ok_or_else(|| unknown_node(node_id))?;
        match node.state {
            NodeState::Running => {}
            NodeState::Unreachable => {
                return Err(Refusal::new(
                    Status::Unavailable,
                    "node_unreachable",
                    format!("node {node_id:?} is not heard at the moment"),
                )
                .with("node", node_id.as_str()));
            }
            _ => {
                return Err(
                    failed("node_not_running", format!("node {node_id:?} does not run"))
                        .with("node", node_id.as_str()),
                );
            }
        }
        let batch_id = fresh.id.clone();
        node.batches.insert(batch_id.clone(), image_refs.clone());
        out.nodes.insert(node_id.clone());
        out.order(
            node_id,
            WorkerOrder::PrefetchImages {
                batch_id: batch_id.clone(),
                image_refs,
            },
        );
        Ok(Reply::Batch(batch_id))
    }

    /// A worker that says hello hears of its open batches again: it may never have heard of one, or
    /// have forgotten it. What it knows already it goes on with (PREF-06).
    pub(crate) fn repeat_batches(&self, out: &mut Out, node_id: &NodeId) {
        let open = self.nodes.get(node_id).map(|node| &node.batches);
        for (batch_id, image_refs) in open.into_iter().flatten() {
            let (batch_id, image_refs) = (batch_id.clone(), image_refs.clone());
            out.order(
                node_id,
                WorkerOrder::PrefetchImages {
                    batch_id,
                    image_refs,
                },
            );
        }
    }
}

/// What could be a reference of an image or of a bundle of files; the worker judges the rest.
fn is_reference(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-/:@+%?=&~#".contains(&b);
    (1..=REF_BYTES).contains(&text.len())
        && text.bytes().all(allowed)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !text.ends_with(['/', ':', '@'])
}
