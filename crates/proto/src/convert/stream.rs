//! The event stream as bytes: which client is sent what, encoded once for all that are sent the same.
//!
//! What a subscriber is sent depends on the protocol it announced and on how much history it wants; both make its
//! [`Form`]. A Manager encodes what an event says once per [`Form::shared`] of it ([`encode_body`]) and hands the same
//! bytes to every subscriber of that form, each with its own place in its own stream ([`Places`]): the encoding of a
//! message is that of its fields, one after the other, in any number of parts. Published clients get what the published package knows (EVT-06, HIST-01): no added kind of
//! event, of history entry, of stop reason, of provider health or of job info.
//!
//! A reader works on the bytes as well, since the number of a kind that this build does not know is only there.
//! Messages and domain values are converted next door, in [`super::event`].

mod codec;

pub use codec::{ClientCodec, Raw, ServerCodec};

use greenroom_types::{
    Wall,
    job::JobInfoKind,
    job::JobWithHistory,
    stream::{ProviderHealth, Stamped, StreamEvent},
};
use prost::Message as _;
use prost::bytes::Bytes;

use super::{
    WireError,
    call::{PROTOCOL_MINOR, check::field_numbers},
    common::write_time,
    event::write_kind,
    job::write_job_shown,
};
use crate::manager::{
    self, event_stream_event::Event, job_history_entry::HistoryEntry as WireEntry,
    job_history_job_stopping::Reason,
};

/// What one subscriber is sent of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Form {
    /// Minor protocol that it announced, 0 for a published client.
    pub minor: u32,
    /// Newest history entries per job, 0 for all that are held (EVT-08).
    pub history_limit: u32,
}

/// An encoded event in its two parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// What it says, as all who are sent it in one form are told it.
    pub body: Bytes,
    /// Where it stands in the stream of one subscriber.
    pub place: Bytes,
}

/// Encodes the places of one stream's events.
#[derive(Clone, Debug)]
pub struct Places(manager::EventStreamEvent);

/// An event as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The sequence it belongs to; empty from a Manager that does not number its events.
    pub epoch: String,
    /// The event with its place.
    pub stamped: Stamped,
}

/// Newest history entries per job where the request names no limit (EVT-08).
pub const HISTORY_LIMIT_DEFAULT: u32 = 100;

/// Fields of an EventStreamEvent beside the kind itself.
const PLACE_FIELDS: [u32; 3] = [100, 101, 102];

// === who is sent what ===

/// The least minor of a client that is sent the event (EVT-06, EVT-07); 0 for all.
pub const fn minor_of_event(event: &StreamEvent) -> u32 {
    match event {
        StreamEvent::NodeRunning { .. }
        | StreamEvent::JobActive(_)
        | StreamEvent::JobPending(_)
        | StreamEvent::JobUpdated(_)
        | StreamEvent::JobDeleted(_)
        | StreamEvent::JobOutOfWindow(_)
        | StreamEvent::NodeStarting { .. }
        | StreamEvent::NodeStarted { .. }
        | StreamEvent::NodeStopping { .. }
        | StreamEvent::NodeStopped { .. }
        | StreamEvent::InitialDataComplete(_) => 0,
        // Members of these that the published package does not have are additions themselves (EVT-03).
        StreamEvent::ProviderHealthChange(health) => match health {
            ProviderHealth::Aws(_) | ProviderHealth::Oci(_) => 0,
            ProviderHealth::Local(_) | ProviderHealth::CloudHypervisor(_) => 1,
        },
        StreamEvent::JobInfo(info) => match info.kind {
            JobInfoKind::Status { .. } => 1,
            _ => 0,
        },
        StreamEvent::BundleActive(_)
        | StreamEvent::BundleUpdated(_)
        | StreamEvent::BundleDeleted(_)
        | StreamEvent::NodeInventorySnapshot { .. }
        | StreamEvent::NodeInventoryUpdated { .. }
        | StreamEvent::NodeReachabilityChanged { .. }
        | StreamEvent::NodeTagsUpdated { .. }
        | StreamEvent::NodeInterruptionNotice { .. }
        | StreamEvent::JobRejected { .. }
        | StreamEvent::JobPrepared { .. }
        | StreamEvent::Heartbeat { .. }
        | StreamEvent::EventsLost { .. }
        | StreamEvent::StreamResumed { .. } => 1,
        StreamEvent::Migration { .. } => 3,
        StreamEvent::AuditAppended(_) => 5,
        StreamEvent::LeaseChanged(_) | StreamEvent::LeasesPaused { .. } => 6,
        StreamEvent::ImagesPrefetched { .. } => 9,
        StreamEvent::Unknown { .. } => u32::MAX,
    }
}

// === impl Form ===

impl Form {
    /// The form that a request asks for.
    pub fn asked(request: &manager::EventStreamRequest) -> Self {
        Self {
            minor: request.client_protocol,
            history_limit: request.history_limit.unwrap_or(HISTORY_LIMIT_DEFAULT),
        }
    }

    /// Whether a subscriber of this form is sent the event.
    pub const fn takes(self, event: &StreamEvent) -> bool {
        self.minor >= minor_of_event(event)
    }

    /// The form under which every form with the same bytes for this event is kept.
    #[must_use]
    pub fn shared(self, event: &StreamEvent) -> Self {
        let job = job_of(event);
        let differs = job.is_some() || matches!(event, StreamEvent::InitialDataComplete(_));
        Self {
            // Every minor from 1 on is written alike; minors only decide whether.
            minor: if differs && self.minor == 0 {
                0
            } else {
                PROTOCOL_MINOR
            },
            history_limit: match job {
                Some(job) if job.history.len() > self.entries_max() => self.history_limit,
                // A limit that takes nothing away is as good as none.
                _ => 0,
            },
        }
    }

    /// Entries of a history that are sent at most.
    fn entries_max(self) -> usize {
        match self.history_limit {
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        }
    }
}

// === impl Places ===

impl Places {
    /// The places of a stream with that epoch.
    #[must_use]
    pub const fn new(epoch: String) -> Self {
        Self(manager::EventStreamEvent {
            epoch,
            seq: 0,
            at: None,
            event: None,
        })
    }

    /// The place of an event.
    #[must_use]
    pub fn encode(&mut self, seq: u64, at: Wall) -> Bytes {
        self.0.seq = seq;
        self.0.at = Some(write_time(at));
        self.0.encode_to_vec().into()
    }
}

// === writing ===

/// Encodes an event that the form [takes](Form::takes), with the epoch of its stream.
///
/// Refused are the few values that the wire has no place for, as [`super::event::write_event`] says.
pub fn encode(epoch: &str, stamped: &Stamped, form: Form) -> Result<Bytes, WireError> {
    write(epoch, stamped, form).map(|event| event.encode_to_vec().into())
}

/// Encodes what an event says, without its place: with one from [`Places`] in front or behind it is what [`encode`]
/// gives. `seq` is needed for a heartbeat only, which repeats it.
///
/// Refused is what [`encode`] refuses.
pub fn encode_body(event: &StreamEvent, seq: u64, form: Form) -> Result<Bytes, WireError> {
    let event = write_shown(event, seq, form)?;
    let mut bytes = Vec::with_capacity(event.encoded_len());
    event.encode(&mut bytes);
    Ok(bytes.into())
}

/// The same as [`encode`], as a message.
pub fn write(
    epoch: &str,
    stamped: &Stamped,
    form: Form,
) -> Result<manager::EventStreamEvent, WireError> {
    Ok(manager::EventStreamEvent {
        epoch: epoch.to_owned(),
        seq: stamped.seq,
        at: Some(write_time(stamped.at)),
        event: Some(write_shown(&stamped.event, stamped.seq, form)?),
    })
}

fn write_shown(event: &StreamEvent, seq: u64, form: Form) -> Result<Event, WireError> {
    if !form.takes(event) {
        let message = format!("is not sent to clients of protocol 1.{}", form.minor);
        return Err(WireError::new("unknown_event", "event", message));
    }
    if let Some(job) = job_of(event) {
        let job_with_history = Some(write_job(job, form));
        return Ok(match event {
            StreamEvent::JobActive(_) => Event::JobActive(manager::JobActive { job_with_history }),
            StreamEvent::JobPending(_) => {
                Event::JobPending(manager::JobPending { job_with_history })
            }
            StreamEvent::JobOutOfWindow(_) => {
                Event::JobOutOfWindow(manager::JobOutOfWindow { job_with_history })
            }
            _ => Event::JobUpdated(manager::JobUpdated { job_with_history }),
        });
    }
    let mut written = write_kind(event, seq)?;
    if form.minor == 0
        && let Event::InitialDataComplete(complete) = &mut written
    {
        use manager::provider_health::Health;
        complete
            .health
            .retain(|provider| matches!(provider.health, Some(Health::Aws(_) | Health::Oci(_))));
    }
    Ok(written)
}

const fn job_of(event: &StreamEvent) -> Option<&std::sync::Arc<JobWithHistory>> {
    match event {
        StreamEvent::JobActive(job)
        | StreamEvent::JobPending(job)
        | StreamEvent::JobUpdated(job)
        | StreamEvent::JobOutOfWindow(job) => Some(job),
        _ => None,
    }
}

/// Writes a job with the newest entries of its history, as the form has them. The count of dropped entries stays that
/// of entries no longer held (HIST-05).
pub fn write_job(job: &JobWithHistory, form: Form) -> manager::JobWithHistory {
    let mut entries: Vec<manager::JobHistoryEntry> = super::write_list(&job.history);
    if form.minor == 0 {
        published_history(&mut entries);
    }
    let limit = form.entries_max();
    if entries.len() > limit {
        entries.drain(..entries.len() - limit);
    }
    manager::JobWithHistory {
        job: Some(write_job_shown(job)),
        history_entry: entries,
        dropped_entries: job.dropped_entries,
    }
}

/// Leaves of a history what a published client knows: the published kinds (HIST-01), with added stop reasons told as
/// the published ones nearest to them.
pub fn published_history(entries: &mut Vec<manager::JobHistoryEntry>) {
    entries.retain_mut(|entry| match &mut entry.history_entry {
        Some(WireEntry::JobStopping(stopping)) => {
            stopping.reason = published_reason(stopping.reason);
            true
        }
        Some(
            WireEntry::JobCreated(_)
            | WireEntry::JobUpdated(_)
            | WireEntry::JobProvisioned(_)
            | WireEntry::JobRunning(_)
            | WireEntry::JobStopped(_)
            | WireEntry::JobCompleted(_),
        ) => true,
        Some(WireEntry::JobFailed(_) | WireEntry::JobPrepared(_) | WireEntry::JobRejected(_))
        | None => false,
    });
}

fn published_reason(reason: i32) -> i32 {
    let published = match Reason::try_from(reason) {
        Ok(Reason::JobStoppedLeaseLost) => Reason::JobStoppedNodeStopped,
        Ok(Reason::JobStoppedMigration | Reason::JobStoppedBundleChanged) => {
            Reason::JobStoppedUserRequested
        }
        _ => return reason,
    };
    published.into()
}

// === reading ===

/// Reads an encoded event. A kind that this build does not know is [`StreamEvent::Unknown`] with its number (SDK-08);
/// a message without any kind is refused `missing_field`.
pub fn decode(bytes: &[u8]) -> Result<Decoded, WireError> {
    let event = manager::EventStreamEvent::decode(bytes).map_err(|error| {
        WireError::new("bad_value", "", format!("is not an encoded event: {error}"))
    })?;
    let is_known = event.event.is_some();
    let epoch = event.epoch.clone();
    let mut stamped = Stamped::try_from(event)?;
    if !is_known {
        let number = field_numbers(bytes)
            .into_iter()
            .rfind(|number| !PLACE_FIELDS.contains(number))
            .ok_or_else(|| WireError::missing("event"))?;
        stamped.event = StreamEvent::Unknown { number };
    }
    Ok(Decoded { epoch, stamped })
}

#[cfg(test)]
mod tests;
