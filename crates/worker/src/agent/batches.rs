//! Prefetch batches: each is begun once and answered once.
//!
//! Batches are not in the journal. The Manager repeats an open one after a hello, and one that was
//! answered is known by the report that waits for its acknowledgement.

use greenroom_types::StartId;
use greenroom_types::node::InstanceKey;
use greenroom_types::stream::PrefetchResult;

use super::{Act, Agent, Effects};
use crate::order::Said;

// === impl Agent ===

impl Agent {
    pub(super) fn apply_prefetch(
        &mut self,
        batch_id: String,
        image_refs: Vec<String>,
        out: &mut Effects,
    ) {
        let answered = self.outbox.waiting().any(
            |report| matches!(&report.said, Said::Prefetched { batch_id: b, .. } if *b == batch_id),
        );
        if !answered && self.batches.insert(batch_id.clone()) {
            out.act.push(Act::Prefetch {
                batch_id,
                image_refs,
            });
        }
    }

    pub(super) fn apply_prefetched(
        &mut self,
        batch_id: String,
        results: Vec<PrefetchResult>,
        out: &mut Effects,
    ) {
        if self.batches.remove(&batch_id) {
            let said = Said::Prefetched { batch_id, results };
            self.say(&InstanceKey::default(), &StartId::default(), said, out);
        }
    }
}
