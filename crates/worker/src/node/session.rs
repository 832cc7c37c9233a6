//! The stream of the Manager that controls this worker: who may have it, what is heard over it, and
//! what is told.

use std::time::Instant;

use greenroom_proto::status::Refusal;
use greenroom_proto::worker as wire;
use greenroom_types::NodeId;
use greenroom_types::node::{InstanceState, NodeMetadata, ProviderMetadata};
use tonic::{Code, Status};

use super::{Contact, INVENTORY_PAUSE, Next, Node, Outgoing, SILENT, Session};
use crate::agent::Event;
use crate::inventory::load;
use crate::wire::{
    Heard, read, write_goodbye, write_inventory, write_load, write_report, write_running,
};
use crate::{PROTOCOL_MAJOR, PROTOCOL_MINOR};

impl Node {
    pub(super) fn hello(&self, shared_secret: String) -> wire::WorkerHello {
        let identity = self.identity.borrow().clone();
        let node_id = identity.map_or_else(NodeId::default, |identity| identity.node_id.clone());
        let picture = self.agent.picture();
        let metadata = NodeMetadata {
            tags: self.agent.node_tags().cloned().unwrap_or_default(),
            provider: ProviderMetadata::Local {
                node_name: node_id.to_string(),
                machine_id: self.about.machine_id.clone(),
                architecture: picture.architecture,
            },
            node_id,
            ..NodeMetadata::default()
        };
        let running = self
            .agent
            .instances()
            .filter(|view| view.state == InstanceState::Running);
        wire::WorkerHello {
            node_metadata: Some((&metadata).into()),
            measured_load: Some(write_load(load())),
            shared_secret,
            running_jobs: running
                .filter_map(|view| {
                    Some(write_running(
                        &self.agent.order_of(&view.start_id)?.0,
                        &view.ports,
                    ))
                })
                .collect(),
            token: Some(wire::WorkerAuthenticationToken {
                instance_id: self.about.machine_id.clone(),
                ..Default::default()
            }),
            protocol_major: PROTOCOL_MAJOR,
            protocol_minor: PROTOCOL_MINOR,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: self.about.boot_id.clone(),
            machine_id: self.about.machine_id.clone(),
            inventory: Some((&picture).into()),
            instances: self
                .agent
                .instances()
                .map(|view| {
                    let instance = greenroom_proto::convert::worker::WorkerInstance {
                        key: view.key,
                        start_id: view.start_id,
                        state: view.state,
                        fence: view.fence,
                        ports: view.ports,
                    };
                    (&instance).into()
                })
                .collect(),
            last_report_id: self.agent.outbox().next_id() - 1,
            replica_version: self.held.replica_version,
            control_plane_version: self.held.planes_version,
            leases_paused: self.agent.leases_paused(),
        }
    }

    /// One controlling stream at a time (WORK-01).
    pub(super) fn control(
        &mut self,
        response: &wire::WorkerHelloResponse,
        outgoing: Outgoing,
    ) -> Result<u64, Status> {
        let rank = (response.generation, response.term);
        let silent = |session: &Session| session.heard.elapsed() >= SILENT;
        let yields = self
            .session
            .as_ref()
            .is_none_or(|old| rank > self.seen || silent(old));
        if rank < self.seen || !yields {
            let message = format!(
                "another Manager controls this worker, of generation {} and term {}",
                self.seen.0, self.seen.1
            );
            return Err(Refusal::new(Code::AlreadyExists, "controlled", message).into());
        }
        self.seen = rank;
        let id = self.next_session;
        self.next_session += 1;
        self.session = Some(Session {
            id,
            outgoing,
            heard: Instant::now(),
            // A Manager may remember more than a worker that lost its memory.
            sent: response.report_acked.min(self.agent.outbox().next_id() - 1),
            // The hello carried it, a moment ago.
            told: None,
            told_at: None,
            goodbye: false,
        });
        self.contact.send_replace(Contact::Connected);
        self.handle(Event::Acked(response.report_acked));
        self.handle(Event::Connected);
        tracing::info!(
            generation = rank.0,
            term = rank.1,
            member = response.member,
            "controlled"
        );
        Ok(id)
    }

    pub(super) fn hear(&mut self, id: u64, message: wire::NodeControllerMessage) -> Next {
        let Some(session) = self.session.as_mut().filter(|session| session.id == id) else {
            return Next::Go;
        };
        session.heard = Instant::now();
        let rank = (message.generation, message.term);
        if rank != (0, 0) && rank < self.seen {
            tracing::warn!(
                generation = rank.0,
                term = rank.1,
                "an order of an earlier Manager"
            );
            return Next::Go;
        }
        match read(message) {
            Heard::Order(order) => self.handle(Event::Order(order)),
            Heard::Acked(id) => self.handle(Event::Acked(id)),
            Heard::Access(given) => {
                self.access.give(given);
                Next::Go
            }
            Heard::LeaseAnswer { nonce, items } => self.handle(Event::LeaseAnswer { nonce, items }),
            Heard::LeasesPaused(paused) => self.handle(Event::LeasesPaused(paused)),
            Heard::Unsupported(what) => {
                tracing::warn!(what, "an order that this worker does not carry out");
                Next::Go
            }
            Heard::Faulty(error) => {
                tracing::warn!(%error, "an order that cannot be read");
                Next::Go
            }
        }
    }

    pub(super) fn end_session(&mut self) {
        self.session = None;
        self.contact.send_if_modified(|contact| {
            let was = *contact == Contact::Connected;
            if was {
                *contact = Contact::Alone;
            }
            was
        });
    }

    /// Sends what the Manager must know and does not: that the worker leaves, reports in order, then
    /// the inventory.
    pub(super) fn tell(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        let picture = self.agent.picture();
        // Before the stops that follow from it, so that these are not taken for failures.
        if self.leaving && !session.goodbye {
            let goodbye = write_goodbye("told to leave");
            if session.outgoing.try_send(Ok(goodbye)).is_err() {
                return;
            }
            session.goodbye = true;
        }
        for report in self.agent.outbox().waiting() {
            if report.id <= session.sent {
                continue;
            }
            if session
                .outgoing
                .try_send(Ok(write_report(report, &picture)))
                .is_err()
            {
                return;
            }
            session.sent = report.id;
        }
        let due = session
            .told_at
            .is_none_or(|at| at.elapsed() >= INVENTORY_PAUSE);
        if due
            && session.told.as_ref() != Some(&picture)
            && session
                .outgoing
                .try_send(Ok(write_inventory(&picture)))
                .is_ok()
        {
            session.told = Some(picture);
            session.told_at = Some(Instant::now());
        }
    }

    /// When a changed inventory that had to wait may be sent.
    pub(super) fn inventory_due(&self) -> Option<Instant> {
        let session = self.session.as_ref()?;
        let at = session.told_at? + INVENTORY_PAUSE;
        (at > Instant::now() && session.told.as_ref() != Some(&self.agent.picture())).then_some(at)
    }

    /// Sends what may be lost.
    pub(super) fn send(&self, message: wire::WorkerMessage) {
        if let Some(session) = &self.session {
            let _ = session.outgoing.try_send(Ok(message));
        }
    }
}
