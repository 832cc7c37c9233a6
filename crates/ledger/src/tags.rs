//! A node's tags: what it was created with, what the Manager adds, and edits that win over both
//! (TAG).

use std::sync::Arc;

use greenroom_types::call::{CallResult, Refusal, Reply};
use greenroom_types::node::{NodeMetadata, NodeState};
use greenroom_types::stream::StreamEvent;
use greenroom_types::{NodeId, Tags};

use crate::ledger::Ledger;
use crate::order::{Order, ProviderTask, WorkerOrder};
use crate::out::Out;
use crate::refuse::{failed, invalid, required, unknown_node};
use crate::state::{Instance, Node};

/// Most tags of a node, longest value in bytes (TAG-04).
const TAGS: usize = 40;
const KEY_BYTES: usize = 128;
const VALUE_BYTES: usize = 256;

/// Marks a node that is kept free (TAG-05).
pub(crate) const SPARE: &str = "spare";
/// What goes with the mark, and goes when it does.
const SPARE_SPEC: [&str; 3] = ["warmFor", "reservedFor", "exclusive"];
/// Tag of an interruption notice (MNODE-19).
pub(crate) const INTERRUPTION: &str = "interruption";
/// What tags of provided capabilities begin with (WORK-43).
pub(crate) const PROVIDES: &str = "provides.";
/// Tags that only the Manager sets (TAG-07), besides those.
const OWN: [&str; 4] = [INTERRUPTION, "az", "workerLimits", "wantedDaemonVersion"];

// === impl Node ===

impl Node {
    /// The tags in force: those of creation and provider, then the Manager's own, then the edits.
    fn effective_tags(&self) -> Tags {
        let mut tags = self.base_tags.clone();
        tags.extend(self.own_tags.clone());
        for (key, value) in &self.edits {
            match value {
                Some(value) => tags.insert(key.clone(), value.clone()),
                None => tags.remove(key),
            };
        }
        tags
    }

    /// Brings the shown tags up to date; true when that changed them.
    pub(crate) fn compose_tags(&mut self) -> bool {
        let tags = self.effective_tags();
        if tags == self.metadata.tags {
            return false;
        }
        self.metadata = Arc::new(NodeMetadata {
            tags,
            ..(*self.metadata).clone()
        });
        self.tags_revision += 1;
        true
    }
}

// === impl Ledger ===

impl Ledger {
    pub(crate) fn set_node_tags(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        tags: Tags,
        remove: &[String],
        expected_revision: Option<u64>,
    ) -> CallResult {
        required("node_id", node_id.as_str())?;
        let node = self
            .nodes
            .get(node_id)
            .ok_or_else(|| unknown_node(node_id))?;
        if node.state == NodeState::Stopped {
            return Err(
                failed("node_not_running", format!("node {node_id:?} is stopped"))
                    .with("node", node_id.as_str()),
            );
        }
        check_forms(&tags, remove)?;
        check_own(&tags, remove)?;
        self.check_spare(node, &tags, remove)?;
        if let Some(expected) = expected_revision
            && expected != node.tags_revision
        {
            return Err(failed(
                "revision_mismatch",
                format!("the tags of node {node_id:?} were edited by somebody else"),
            )
            .with("expected", expected)
            .with("actual", node.tags_revision));
        }
        let mut edited = node.clone();
        edit(&mut edited, tags, remove);
        if edited.compose_tags() && edited.metadata.tags.len() > TAGS {
            return Err(invalid(
                "bad_tag",
                format!("node {node_id:?} would have more than {TAGS} tags"),
            )
            .with("path", "tags"));
        }
        let changed = edited.tags_revision != node.tags_revision;
        let reply = Reply::Tags {
            tags: edited.metadata.tags.clone(),
            revision: edited.tags_revision,
        };
        if edited != *node {
            out.nodes.insert(node_id.clone());
            self.nodes.insert(node_id.clone(), edited);
        }
        if changed {
            self.tell_tags(out, node_id);
            self.idle_anew(out, node_id);
        }
        Ok(reply)
    }

    pub(crate) fn update_physical_node(
        &mut self,
        out: &mut Out,
        node_id: &NodeId,
        daemon_version: String,
    ) -> CallResult {
        required("id", node_id.as_str())?;
        let node = self
            .nodes
            .get_mut(node_id)
            .ok_or_else(|| unknown_node(node_id))?;
        node.own_tags
            .insert("wantedDaemonVersion".to_owned(), daemon_version);
        out.nodes.insert(node_id.clone());
        self.announce_tags(out, node_id);
        Ok(Reply::Done)
    }

    /// Brings the shown tags up to date and tells of them when that changed them.
    pub(crate) fn announce_tags(&mut self, out: &mut Out, node_id: &NodeId) {
        let Some(node) = self.nodes.get_mut(node_id) else {
            return;
        };
        if node.compose_tags() {
            out.nodes.insert(node_id.clone());
            self.tell_tags(out, node_id);
        }
    }

    fn tell_tags(&self, out: &mut Out, node_id: &NodeId) {
        let Some(node) = self.nodes.get(node_id) else {
            return;
        };
        out.event(StreamEvent::NodeTagsUpdated {
            metadata: node.metadata.clone(),
            revision: node.tags_revision,
        });
        if node.is_running() {
            out.order(node_id, WorkerOrder::Tags(node.metadata.tags.clone()));
        }
        if node.is_elastic() && !node.machine_gone {
            out.orders.push(Order::Provider {
                node_id: node_id.clone(),
                task: ProviderTask::PushTags(node.metadata.tags.clone()),
            });
        }
    }

    /// TAG-05.
    fn check_spare(&self, node: &Node, tags: &Tags, remove: &[String]) -> Result<(), Refusal> {
        let set = tags.get(SPARE);
        let touched = set.is_some() || remove.iter().any(|key| key == SPARE);
        if touched && node.is_elastic() {
            return Err(failed(
                "spare_is_reconciled",
                "the spares of elastic tiers are kept by the policy: set their number there",
            ));
        }
        if set.map(String::as_str) == Some("true") {
            let node_id = &node.metadata.node_id;
            if let Some(held) = self.instances_on(node_id).find(|i| Instance::is_live(i)) {
                return Err(failed(
                    "node_holds_job",
                    format!("node {node_id:?} holds {}", held.key),
                )
                .with("job_id", held.key.job_id.as_str()));
            }
        }
        let bad = |key: &str, rule: &str| {
            Err(invalid("bad_spare_spec", format!("{key} must be {rule}"))
                .with("path", format!("tags.{key}")))
        };
        for key in ["warmFor", "reservedFor"] {
            let ids = tags.get(key).map(String::as_str).unwrap_or_default();
            let formed =
                |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_graphic() && b != b',');
            if !ids.is_empty() && !ids.split(',').all(|id| formed(id.trim())) {
                return bad(key, "ids separated by commas");
            }
        }
        match tags.get("exclusive").map(String::as_str) {
            None | Some("true" | "false") => Ok(()),
            Some(_) => bad("exclusive", "true or false"),
        }
    }
}

fn edit(node: &mut Node, tags: Tags, remove: &[String]) {
    let unmarked = match tags.get(SPARE) {
        Some(value) => value != "true",
        None => remove.iter().any(|key| key == SPARE),
    };
    for (key, value) in tags {
        node.edits.insert(key, Some(value));
    }
    for key in remove {
        if key == INTERRUPTION {
            node.own_tags.remove(INTERRUPTION);
        } else {
            node.edits.insert(key.clone(), None);
        }
    }
    if unmarked {
        for key in SPARE_SPEC.into_iter().chain([SPARE]) {
            node.edits.insert(key.to_owned(), None);
        }
    }
}

/// TAG-04.
fn check_forms(tags: &Tags, remove: &[String]) -> Result<(), Refusal> {
    let bad = |text: String| Err(invalid("bad_tag", text).with("path", "tags"));
    let keys = tags.keys().chain(remove);
    for key in keys {
        let formed = (1..=KEY_BYTES).contains(&key.len())
            && key
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._:/@-".contains(&b));
        if !formed || key.starts_with("aws:") || key.starts_with("greenroom:") {
            return bad(format!(
                "tag key {:?} must be 1 to {KEY_BYTES} of A-Z a-z 0-9 . _ : / @ - and not begin \
                 with aws: or greenroom:",
                crate::refuse::cut(key, 200)
            ));
        }
    }
    for (key, value) in tags {
        if value.len() > VALUE_BYTES {
            return bad(format!(
                "the value of tag {key:?} is longer than {VALUE_BYTES} bytes"
            ));
        }
    }
    Ok(())
}

/// TAG-07.
fn check_own(tags: &Tags, remove: &[String]) -> Result<(), Refusal> {
    let own = |key: &str| OWN.contains(&key) || key.starts_with(PROVIDES);
    let set = tags.keys().find(|key| own(key));
    let removed = remove.iter().find(|key| own(key) && *key != INTERRUPTION);
    match set.or(removed) {
        Some(key) => Err(invalid(
            "reserved_tag",
            format!("tag {key:?} is set by the Manager and by nobody else"),
        )
        .with("path", format!("tags.{key}"))),
        None => Ok(()),
    }
}
