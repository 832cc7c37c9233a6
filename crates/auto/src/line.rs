//! The line to the Manager: calls through the SDK, its event stream and its connection states as
//! inputs. The only file that knows the SDK's types.

use std::collections::BTreeSet;

use greenroom_policy::CallFailure;
use greenroom_policy::event::ConnectionState;
use greenroom_sdk::{
    Client, ConnectionState as SdkState, ConnectionStates, Error, EventGroup, EventSettings,
    StreamItem,
};
use greenroom_types::NodeId;
use greenroom_types::call::{Call, Reply};
use greenroom_types::kv::{KvCommit, KvWrite};
use tokio::sync::mpsc;

use crate::acts::{self, Write};
use crate::driver::Input;
use crate::seat::{Gate, NAMESPACE};

/// What the loop needs of a Manager. A trait, so that the loop is tested without one.
pub(crate) trait Line: Send + 'static {
    /// Makes a call.
    fn call(&self, call: Call)
    -> impl Future<Output = Result<Reply, CallFailure>> + Send + 'static;

    /// Writes what operators decided; gives the key's revision (ACTS-02).
    fn keep(&self, write: Write)
    -> impl Future<Output = Result<u64, CallFailure>> + Send + 'static;

    /// Nodes for which the Manager has a place, there or not (LOCAL-04).
    fn slots(&self)
    -> impl Future<Output = Result<BTreeSet<NodeId>, CallFailure>> + Send + 'static;

    /// Closes the channel.
    fn close(&mut self);
}

/// The SDK's connection; none until it stands.
#[derive(Debug, Default)]
pub(crate) struct ManagerLine {
    pub(crate) client: Option<Client>,
    /// Nothing is sent once it is closed (ACTIVE-04).
    pub(crate) gate: Option<Gate>,
}

// === impl ManagerLine ===

impl Line for ManagerLine {
    fn call(
        &self,
        call: Call,
    ) -> impl Future<Output = Result<Reply, CallFailure>> + Send + 'static {
        let (client, gate) = (self.client.clone(), self.gate.clone());
        async move {
            let Some(client) = client else {
                return unsent("not connected yet");
            };
            let call = async { client.call(call).await.map_err(failure) };
            while_open(gate.as_ref(), call).await
        }
    }

    fn keep(
        &self,
        write: Write,
    ) -> impl Future<Output = Result<u64, CallFailure>> + Send + 'static {
        let (client, gate) = (self.client.clone(), self.gate.clone());
        async move {
            let Some(client) = client else {
                return unsent("not connected yet");
            };
            while_open(gate.as_ref(), keep(&client, write)).await
        }
    }

    fn slots(
        &self,
    ) -> impl Future<Output = Result<BTreeSet<NodeId>, CallFailure>> + Send + 'static {
        let (client, gate) = (self.client.clone(), self.gate.clone());
        async move {
            let Some(client) = client else {
                return unsent("not connected yet");
            };
            let list = async { client.list_cluster_nodes().await.map_err(failure) };
            let slots = while_open(gate.as_ref(), list).await?;
            Ok(slots.into_iter().map(|slot| slot.node_id).collect())
        }
    }

    fn close(&mut self) {
        if let Some(client) = self.client.take() {
            client.close();
        }
    }
}

fn unsent<T>(why: &str) -> Result<T, CallFailure> {
    Err(CallFailure::Unavailable(why.to_owned()))
}

/// Does it while this control plane may act (ACTIVE-04).
async fn while_open<T>(
    gate: Option<&Gate>,
    what: impl Future<Output = Result<T, CallFailure>>,
) -> Result<T, CallFailure> {
    let Some(gate) = gate else {
        return what.await;
    };
    if !gate.is_open() {
        return unsent("another control plane may be active: nothing was sent");
    }
    tokio::select! {
        biased;
        () = gate.closed() => unsent("another control plane may be active"),
        done = what => done,
    }
}

/// Writes the key as it is expected to stand; where it stands otherwise, over what stands there: the
/// answer of an earlier write may have been lost, and nobody else may write it now.
async fn keep(client: &Client, write: Write) -> Result<u64, CallFailure> {
    let commit = |expected: u64| {
        client.kv_commit(KvCommit {
            namespace: NAMESPACE.to_owned(),
            writes: vec![KvWrite::set(acts::KEY, write.value.clone()).expecting(expected)],
            ..KvCommit::default()
        })
    };
    match commit(write.expected).await {
        Err(error) if error.reason() == "revision_mismatch" => {}
        done => return done.map_err(failure),
    }
    let stands = client.kv_get(NAMESPACE, acts::KEY).await.map_err(failure)?;
    match stands {
        Some(entry) if *entry.value == *write.value => Ok(entry.revision),
        other => {
            let revision = other.map_or(0, |entry| entry.revision);
            commit(revision).await.map_err(failure)
        }
    }
}

// === feeds ===

/// Hands on the connection's states until it is closed.
pub(crate) async fn feed_states(mut states: ConnectionStates, inputs: mpsc::Sender<Input>) {
    while let Some(state) = states.next().await {
        let state = match state {
            SdkState::Idle => ConnectionState::Idle,
            SdkState::Connecting => ConnectionState::Connecting,
            SdkState::Ready => ConnectionState::Ready,
            SdkState::TransientFailure => ConnectionState::TransientFailure,
            // The loop itself tells of the end, when it closes the channel.
            SdkState::Shutdown => return,
        };
        if inputs.send(Input::State(state)).await.is_err() {
            return;
        }
    }
}

/// Opens the event stream and hands on its snapshot and its events, then its end. It is not resumed:
/// an instance never reconnects (LIFE-07).
pub(crate) async fn feed_events(client: Client, window_s: u32, inputs: mpsc::Sender<Input>) {
    let end = read_events(client, window_s, &inputs).await;
    let _ = inputs.send(Input::StreamEnded(end)).await;
}

async fn read_events(client: Client, window_s: u32, inputs: &mpsc::Sender<Input>) -> String {
    let settings = EventSettings {
        pending_window_s: window_s,
        client_label: "auto-manager".to_owned(),
        auto_resume: false,
        // Audit entries too, which are sent only to those who name them (CALLB-06).
        include: EventGroup::ALL.to_vec(),
        ..EventSettings::default()
    };
    let (state, mut events) = match client.event_stream(settings).await {
        Ok(opened) => opened,
        Err(error) => return error.to_string(),
    };
    for event in state.events() {
        if inputs.send(Input::Stream(event)).await.is_err() {
            return String::new();
        }
    }
    drop(state);
    loop {
        let event = match events.next().await {
            Some(StreamItem::Event(stamped)) => stamped.event,
            Some(StreamItem::Resnapshot(_)) => {
                return "the stream began anew with another snapshot".to_owned();
            }
            Some(StreamItem::Closed(error)) => return error.to_string(),
            None => return "the stream ended".to_owned(),
        };
        if inputs.send(Input::Stream(event)).await.is_err() {
            return String::new();
        }
    }
}

/// A failed call as the policy reads it: refused means that nothing changed, all else that nobody
/// knows (TIME-02).
fn failure(error: Error) -> CallFailure {
    match error {
        Error::DeadlineExceeded { .. } => CallFailure::TimedOut,
        Error::NeedsProtocol { .. } => CallFailure::Refused(error.into_refusal()),
        _ if error.refused().is_some() => CallFailure::Refused(error.into_refusal()),
        _ => CallFailure::Unavailable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_sdk::Refused;

    #[test]
    fn only_a_refusal_says_that_nothing_changed() {
        let refused = Refused {
            method: "StartJob",
            reason: "unknown_job".to_owned(),
            ..Refused::default()
        };
        let CallFailure::Refused(refusal) = failure(Error::NotFound(refused)) else {
            panic!("a refusal");
        };
        assert_eq!(refusal.reason, "unknown_job");
        let lost = Error::ConnectionLost {
            method: "StartJob",
            outcome_unknown: true,
            cause: "reset".to_owned(),
        };
        assert!(matches!(failure(lost), CallFailure::Unavailable(_)));
        let late = Error::DeadlineExceeded {
            method: "StartJob",
            outcome_unknown: true,
        };
        assert_eq!(failure(late), CallFailure::TimedOut);
    }
}
