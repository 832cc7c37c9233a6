//! Taking the seat, renewing it, giving it back: the rules of [`super`] performed at a Manager.

use std::sync::Arc;
use std::time::Duration;

use greenroom_sdk::{Access, Client, Error, Retry, Settings as SdkSettings};
use greenroom_types::Millis;
use greenroom_types::kv::{KvCommit, KvEntry, KvWrite};

use super::{Gate, Holder, KEY, LOOK, NAMESPACE, RENEW, SeatSettings, Watched};
use crate::clock::Clock;

/// A call about the seat that takes longer is no use any more.
const PATIENCE: Duration = Duration::from_millis(900);
/// A renewal that failed is tried again after this.
const AGAIN: Millis = Millis(200);

/// One control plane's way to the seat.
pub(crate) struct Contender {
    clock: Arc<dyn Clock>,
    /// The Manager's url.
    manager: String,
    /// How it is recognised, and who this one is.
    access: Access,
    me: Holder,
    client: Option<Client>,
    /// The key's revision as this one wrote it last; nobody else took the seat while it stands there.
    mine: Option<u64>,
}

/// A turn that was taken.
pub(crate) struct Turn {
    pub(crate) gate: Gate,
    pub(crate) number: u64,
    revision: u64,
}

// === impl Contender ===

impl Contender {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        manager: String,
        access: Access,
        settings: SeatSettings,
        id: String,
    ) -> Self {
        Self {
            clock,
            manager,
            access,
            me: Holder {
                name: settings.name,
                url: settings.url,
                turn: 0,
                id,
            },
            client: None,
            mine: None,
        }
    }

    /// Stands by until the seat is taken. Tells who holds it whenever that was looked at.
    pub(crate) async fn take(
        &mut self,
        mut told: impl FnMut(Result<Option<Holder>, String>),
    ) -> Turn {
        let mut watched = Watched::default();
        loop {
            match self.look().await {
                Ok(entry) => {
                    let holder = entry.as_ref().map(|entry| Holder::read(&entry.value));
                    let revision = entry.as_ref().map(|entry| entry.revision);
                    let free = watched.look(self.clock.now().mono, revision);
                    // What stands there as this one left it was taken by nobody meanwhile.
                    let mine = revision.filter(|revision| self.mine == Some(*revision));
                    let last = holder.as_ref().map_or(0, |holder| holder.turn);
                    told(Ok(holder));
                    if let Some(expected) = free.or(mine)
                        && let Some(turn) = self.claim(expected, last + 1).await
                    {
                        return turn;
                    }
                }
                Err(error) => told(Err(error)),
            }
            let next = self.clock.now().mono + LOOK;
            self.clock.sleep_until(next).await;
        }
    }

    async fn claim(&mut self, expected: u64, number: u64) -> Option<Turn> {
        self.me.turn = number;
        let sent = self.clock.now();
        match self.write(expected).await {
            Ok(revision) => {
                self.mine = Some(revision);
                let gate = Gate::new(Arc::clone(&self.clock), sent);
                // An answer that took too long is none.
                gate.is_open().then_some(Turn {
                    gate,
                    number,
                    revision,
                })
            }
            Err(error) => {
                tracing::debug!(%error, "the seat was not taken");
                None
            }
        }
    }

    /// Renews the seat until that fails for too long or somebody else has it; the gate is closed then.
    pub(crate) async fn keep(&mut self, turn: &mut Turn) -> String {
        let mut next = self.clock.now().mono + RENEW;
        loop {
            let closes_at = turn.gate.closes_at();
            tokio::select! {
                () = turn.gate.closed() => return "it could not be renewed in time".to_owned(),
                () = self.clock.sleep_until(closes_at.min(next)) => {}
            }
            if !turn.gate.is_open() {
                continue;
            }
            let sent = self.clock.now();
            let closes = self.clock.sleep_until(closes_at);
            let renewed = tokio::select! {
                renewed = self.renew(turn) => renewed,
                // Calls under way are cut off as soon as the time is over (ACTIVE-04).
                () = closes => {
                    turn.gate.is_open();
                    continue;
                }
            };
            match renewed {
                Ok(()) if turn.gate.extend(sent) => next = sent.mono + RENEW,
                Ok(()) => {}
                Err(Lost::Taken(by)) => {
                    turn.gate.close();
                    return format!("{by:?} took it");
                }
                Err(Lost::Unknown(error)) => {
                    tracing::warn!(error, "the seat of the control plane could not be renewed");
                    next = self.clock.now().mono + AGAIN;
                }
            }
        }
    }

    async fn renew(&mut self, turn: &mut Turn) -> Result<(), Lost> {
        let patience = tokio::time::timeout(PATIENCE, self.write(turn.revision));
        let unknown = |error: String| Err(Lost::Unknown(error));
        match patience.await {
            Ok(Ok(revision)) => {
                turn.revision = revision;
                self.mine = Some(revision);
                Ok(())
            }
            // The answer of an earlier renewal may have been lost, so the key says who has the seat.
            Ok(Err(error)) if error.reason() == "revision_mismatch" => match self.look().await {
                Ok(Some(entry)) if Holder::read(&entry.value) == self.me => {
                    turn.revision = entry.revision;
                    unknown("the answer of the last renewal was lost".to_owned())
                }
                Ok(entry) => {
                    let holder = entry.map(|entry| Holder::read(&entry.value));
                    Err(Lost::Taken(holder.unwrap_or_default().name))
                }
                Err(error) => unknown(error),
            },
            Ok(Err(error)) => unknown(error.to_string()),
            Err(_) => unknown("no answer in time".to_owned()),
        }
    }

    /// Gives the seat back, so that a standby need not wait (ACTIVE-06).
    pub(crate) async fn give_back(&mut self, turn: &Turn) {
        turn.gate.close();
        let commit = KvCommit {
            namespace: NAMESPACE.to_owned(),
            writes: vec![KvWrite::delete(KEY).expecting(turn.revision)],
            ..KvCommit::default()
        };
        if let Err(error) = self.commit(commit).await {
            tracing::debug!(%error, "the seat was not given back; it runs out");
        }
        self.mine = None;
    }

    /// Lets the connection go.
    pub(crate) fn close(&mut self) {
        if let Some(client) = self.client.take() {
            client.close();
        }
    }

    async fn look(&mut self) -> Result<Option<KvEntry>, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        let look = tokio::time::timeout(PATIENCE, client.kv_get(NAMESPACE, KEY));
        match look.await {
            Ok(entry) => entry.map_err(|error| error.to_string()),
            Err(_) => Err("the Manager did not answer in time".to_owned()),
        }
    }

    async fn write(&mut self, expected: u64) -> Result<u64, Error> {
        let commit = KvCommit {
            namespace: NAMESPACE.to_owned(),
            writes: vec![KvWrite::set(KEY, self.me.write()).expecting(expected)],
            ..KvCommit::default()
        };
        self.commit(commit).await
    }

    async fn commit(&mut self, commit: KvCommit) -> Result<u64, Error> {
        self.client().await?.kv_commit(commit).await
    }

    async fn client(&mut self) -> Result<Client, Error> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let settings = SdkSettings {
            access: self.access.clone(),
            connect_timeout: PATIENCE,
            call_timeout: PATIENCE,
            retry: Retry {
                first_pause: Duration::from_millis(50),
                longest_pause: Duration::from_millis(200),
                ..Retry::default()
            },
            ..SdkSettings::new([self.manager.as_str()])
        };
        let client = Client::connect(settings).await?;
        self.client = Some(client.clone());
        Ok(client)
    }
}

/// Why a renewal brought nothing.
enum Lost {
    /// Another control plane has the seat.
    Taken(String),
    /// It may still be this one's.
    Unknown(String),
}
