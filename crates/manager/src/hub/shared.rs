//! A piece of news as all subscribers share it, with what it is on the wire: encoded by the first stream that
//! shows it, for all that show it alike (PERF-11).
//!
//! It lives for as long as it waits in a queue or is looked at. What is held for a resume is held without
//! it: a stream that begins or resumes encodes for itself.

use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use greenroom_ledger::{Change, Subscriber, What, audit_weight};
use greenroom_proto::convert::stream::{Form, encode_body};
use greenroom_types::Now;
use greenroom_types::call::AuditEntry;
use greenroom_types::job::JobInfo;
use greenroom_types::stream::StreamEvent;

use super::Hub;

/// Encodings kept of one piece of news. A job is pending, updated, or out of the window, told to published
/// clients or to others, which makes six; two more are for limits of history. What is asked for beyond these
/// is encoded for its stream alone, so that no choice of limits makes what waits for a slow subscriber
/// larger than so many times itself.
const BODIES_MAX: usize = 8;
/// Rough size of a piece of news of an instance.
const INFO_BYTES: usize = 500;

/// A piece of news, the same for all subscribers.
#[derive(Debug)]
pub(crate) struct Shared {
    change: Arc<Change>,
    /// Roughly how many bytes it keeps alive.
    weight: usize,
    bodies: Mutex<Vec<Body>>,
}

/// What is sent of a piece of news to all that are told it as that kind and in that form.
#[derive(Debug)]
struct Body {
    kind: Discriminant<StreamEvent>,
    form: Form,
    /// None for what the wire has no place for, which is left out.
    bytes: Option<Bytes>,
}

// === impl Shared ===

impl Shared {
    pub(super) fn of_change(change: Change) -> Self {
        let weight = weight(&change);
        Self::new(change, weight)
    }

    /// News of an instance; where and when it stands in a stream is for each stream to say.
    pub(super) fn of_info(info: JobInfo) -> Self {
        let change = Change {
            seq: 0,
            at: info.at,
            what: What::Event(StreamEvent::JobInfo(info)),
        };
        Self::new(change, INFO_BYTES)
    }

    /// An audit entry, which has a number of its own; where it stands is for each stream to say.
    pub(super) fn of_audit(entry: AuditEntry) -> Self {
        let weight = audit_weight(&entry);
        let change = Change {
            seq: 0,
            at: entry.at,
            what: What::Event(StreamEvent::AuditAppended(entry)),
        };
        Self::new(change, weight)
    }

    fn new(change: Change, weight: usize) -> Self {
        Self {
            change: Arc::new(change),
            weight,
            bodies: Mutex::default(),
        }
    }

    pub(crate) const fn change(&self) -> &Arc<Change> {
        &self.change
    }

    pub(super) const fn weight(&self) -> usize {
        self.weight
    }

    /// What a subscriber is sent of it now, if anything.
    pub(crate) fn tell(
        &self,
        view: &mut Subscriber,
        now: Now,
        form: Form,
        hub: &Hub,
    ) -> Option<Bytes> {
        let event = view.sees(now, &self.change)?;
        if !form.takes(&event) {
            return None;
        }
        let (kind, shared) = (discriminant(&*event), form.shared(&event));
        // Whoever comes meanwhile waits for the few microseconds and finds it done.
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        let known = bodies
            .iter()
            .find(|body| body.kind == kind && body.form == shared);
        if let Some(known) = known {
            return known.bytes.clone();
        }
        hub.count_encoded();
        let bytes = self.encode(&view.as_asked(event), form);
        if bodies.len() < BODIES_MAX {
            bodies.push(Body {
                kind,
                form: shared,
                bytes: bytes.clone(),
            });
        }
        bytes
    }

    fn encode(&self, event: &StreamEvent, form: Form) -> Option<Bytes> {
        let seq = self.change.seq;
        encode_body(event, seq, form)
            .inspect_err(|error| tracing::debug!(%error, seq, "an event is left out"))
            .ok()
    }
}

/// Roughly how many bytes a change keeps alive, for the bounds on what waits and what is held.
fn weight(change: &Change) -> usize {
    const ENTRY: usize = 200;
    match &change.what {
        What::Job(view) => {
            let texts: usize = view
                .job
                .services
                .iter()
                .map(|service| 500 + service.configuration.len())
                .sum();
            let job = &view.job;
            1_000 + texts + job.manager_configuration.len() + view.history.len() * ENTRY
        }
        What::JobDeleted(_) => ENTRY,
        What::Event(StreamEvent::BundleUpdated(bundle)) => 500 + bundle.bundle.jobs.len() * 1_000,
        What::Event(StreamEvent::NodeInventoryUpdated { inventory, .. }) => {
            1_000 + (inventory.assigned_jobs.len() + inventory.held_images.len()) * ENTRY
        }
        What::Event(_) => 500,
    }
}

#[cfg(test)]
mod tests;
