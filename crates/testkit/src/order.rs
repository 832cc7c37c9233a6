//! Orders as a worker receives them.

use greenroom_proto::convert::WireError;
use greenroom_proto::convert::worker::StartOrder;
use greenroom_proto::worker::node_controller_message::Message;
use greenroom_proto::worker::{
    AccessReplica, ControlPlanes, DiscoveryAccess, NodeControllerMessage,
};
use greenroom_types::StartId;
use greenroom_types::Tags;
use greenroom_types::node::InstanceKey;

/// One order. Answers to hellos and acknowledgements of reports are none.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// Create an instance, and run it unless it is deferred.
    Provision(Box<StartOrder>),
    /// A definition changed.
    Update(Box<StartOrder>),
    /// Run a prepared instance.
    StartPrepared {
        /// The instance.
        key: InstanceKey,
        /// Its start.
        start_id: StartId,
    },
    /// Stop an instance.
    Stop {
        /// The instance.
        key: InstanceKey,
        /// Its start.
        start_id: StartId,
        /// Time between signal and kill.
        grace_ms: u64,
        /// Why, in the words of SOCK-14.
        reason: String,
    },
    /// Stop everything and end.
    Shutdown {
        /// Time for the containers.
        grace_ms: u64,
        /// Stay, without calling in again by itself.
        park: bool,
    },
    /// The node's tags.
    Tags(Tags),
    /// Pull images.
    Prefetch {
        /// The batch.
        batch_id: String,
        /// References.
        image_refs: Vec<String>,
    },
    /// Access to the discovery fleet.
    Discovery(DiscoveryAccess),
    /// Access roles.
    Replica(AccessReplica),
    /// Where control planes are.
    Planes(ControlPlanes),
    /// Leases stand still, or run again.
    LeasesPaused {
        /// True when they stand still.
        paused: bool,
        /// Why.
        reason: String,
    },
    /// The answer to a refresh of leases.
    LeaseAnswer {
        /// Number of the refresh.
        nonce: u64,
        /// Each start with its ttl in milliseconds; none for one that is superseded.
        leases: Vec<(StartId, Option<u64>)>,
    },
    /// Another one, by the name of its message.
    Other(String),
}

// === impl Received ===

impl Received {
    /// The start it is about.
    pub const fn start_id(&self) -> Option<&StartId> {
        match self {
            Self::Provision(order) | Self::Update(order) => Some(&order.start_id),
            Self::StartPrepared { start_id, .. } | Self::Stop { start_id, .. } => Some(start_id),
            _ => None,
        }
    }

    /// The start, if it is an order to create an instance of the job.
    pub fn provision_of(&self, job_id: &str) -> Option<StartId> {
        match self {
            Self::Provision(order) if order.job_id.as_str() == job_id => {
                Some(order.start_id.clone())
            }
            _ => None,
        }
    }

    /// The start, if it is an order to stop an instance of the job.
    pub fn stop_of(&self, job_id: &str) -> Option<StartId> {
        match self {
            Self::Stop { key, start_id, .. } if key.job_id.as_str() == job_id => {
                Some(start_id.clone())
            }
            _ => None,
        }
    }

    pub(crate) fn read(message: NodeControllerMessage) -> Result<Option<Self>, WireError> {
        let start_id = StartId::new(message.start_id);
        let grace_ms = message.grace_ms.unwrap_or_default();
        let Some(order) = message.message else {
            return Err(WireError::missing("message"));
        };
        Ok(Some(match order {
            Message::HelloResponse(_) | Message::ReportAck(_) => return Ok(None),
            Message::ProvisionJob(job) => Self::Provision(Box::new(job.try_into()?)),
            Message::UpdateJob(job) => Self::Update(Box::new(job.try_into()?)),
            Message::StartPreparedJob(key) => Self::StartPrepared {
                key: key.try_into()?,
                start_id,
            },
            Message::StopJob(key) => Self::Stop {
                key: key.try_into()?,
                start_id,
                grace_ms,
                reason: message.reason,
            },
            Message::Shutdown(shutdown) => Self::Shutdown {
                grace_ms: shutdown.grace_ms,
                park: shutdown.park,
            },
            Message::Tags(tags) => Self::Tags(tags.tags),
            Message::PrefetchImages(prefetch) => Self::Prefetch {
                batch_id: prefetch.batch_id,
                image_refs: prefetch.image_refs,
            },
            Message::DiscoveryAccess(access) => Self::Discovery(access),
            Message::AccessReplica(replica) => Self::Replica(replica),
            Message::ControlPlanes(planes) => Self::Planes(planes),
            Message::LeasesPaused(it) => Self::LeasesPaused {
                paused: it.paused,
                reason: it.reason,
            },
            Message::LeaseAnswer(answer) => Self::LeaseAnswer {
                nonce: answer.sent_nonce,
                leases: answer
                    .leases
                    .into_iter()
                    .map(|item| {
                        let ttl = (!item.superseded).then_some(item.ttl_ms);
                        (StartId::new(item.start_id), ttl)
                    })
                    .collect(),
            },
            other => {
                let text = format!("{other:?}");
                let name = text.split('(').next().unwrap_or_default();
                Self::Other(name.to_owned())
            }
        }))
    }
}
