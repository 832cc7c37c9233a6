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

/// Tries to give the seat back: a write that was cut off may come in between.
const GIVE_BACK: u32 = 2;

/// One control plane's way to the seat.
pub(crate) struct Contender {
    clock: Arc<dyn Clock>,
    /// The Manager's url.
    manager: String,
    /// How it is recognised, and who this one is.
    access: Access,
    me: Holder,
    client: Option<Client>,
    /// The key may be this one's: it was sent there, and nobody else was seen in it since.
    claimed: bool,
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
            claimed: false,
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
                    // What this one wrote was taken by nobody meanwhile, also where it was not told that
                    // it is written.
                    let mine = revision.filter(|_| self.is_mine(holder.as_ref()));
                    let last = holder.as_ref().map_or(0, |holder| holder.turn);
                    told(Ok(holder));
                    if let Some(expected) = free.or(mine)
                        && let Some(turn) = self.claim(expected, last.saturating_add(1)).await
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
        self.claimed = true;
        let sent = self.clock.now();
        match self.write(expected).await {
            Ok(revision) => {
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
                    self.claimed = false;
                    turn.gate.close();
                    return format!("{by:?} took it");
                }
                Err(Lost::Gone) => {
                    self.claimed = false;
                    turn.gate.close();
                    return "its key was deleted".to_owned();
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
                Ok(())
            }
            // The answer of an earlier renewal may have been lost, so the key says who has the seat.
            Ok(Err(error)) if error.reason() == "revision_mismatch" => match self.look().await {
                Ok(Some(entry)) if Holder::read(&entry.value) == self.me => {
                    turn.revision = entry.revision;
                    unknown("the answer of the last renewal was lost".to_owned())
                }
                Ok(Some(entry)) => Err(Lost::Taken(Holder::read(&entry.value).name)),
                Ok(None) => Err(Lost::Gone),
                Err(error) => unknown(error),
            },
            Ok(Err(error)) => unknown(error.to_string()),
            Err(_) => unknown("no answer in time".to_owned()),
        }
    }

    /// Gives the seat back where it is this one's, so that a standby need not wait (ACTIVE-06). The last
    /// write may have been cut off before it was answered, so the key says how it stands.
    pub(crate) async fn give_back(&mut self) {
        for _ in 0..GIVE_BACK {
            if !self.claimed {
                return;
            }
            if let Err(error) = self.try_give_back().await {
                tracing::debug!(error, "the seat was not given back; it runs out");
            }
        }
    }

    async fn try_give_back(&mut self) -> Result<(), String> {
        let entry = self.look().await?;
        let holder = entry.as_ref().map(|entry| Holder::read(&entry.value));
        if let Some(entry) = entry.filter(|_| self.is_mine(holder.as_ref())) {
            let commit = KvCommit {
                namespace: NAMESPACE.to_owned(),
                writes: vec![KvWrite::delete(KEY).expecting(entry.revision)],
                ..KvCommit::default()
            };
            let deleted = tokio::time::timeout(PATIENCE, self.commit(commit)).await;
            let deleted = deleted.map_err(|_| "the Manager did not answer in time".to_owned())?;
            deleted.map_err(|error| error.to_string())?;
        }
        self.claimed = false;
        Ok(())
    }

    fn is_mine(&self, holder: Option<&Holder>) -> bool {
        holder.is_some_and(|holder| holder.id == self.me.id)
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
    /// Nobody has it any more.
    Gone,
    /// It may still be this one's.
    Unknown(String),
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use greenroom_testkit::{TestManager, within};
    use greenroom_types::{Mono, Now, Wall};

    use super::*;

    /// No time passes. Whoever waits for the time of a renewal waits no longer, anybody else for ever.
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Now {
            Now {
                mono: Mono(0),
                wall: Wall(0),
            }
        }

        fn sleep_until(&self, at: Mono) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            if at == Mono(0) + RENEW {
                return Box::pin(std::future::ready(()));
            }
            Box::pin(std::future::pending())
        }
    }

    fn contender(manager: &TestManager, id: &str) -> Contender {
        let settings = SeatSettings {
            name: "studio".to_owned(),
            url: format!("http://{id}"),
        };
        let access = Access::default();
        Contender::new(
            Arc::new(Still),
            manager.url(),
            access,
            settings,
            id.to_owned(),
        )
    }

    /// Writes the key as a contender of this id would, and is told of it in its stead.
    async fn write(client: &Client, id: &str, turn: u64) -> u64 {
        let holder = Holder {
            name: "studio".to_owned(),
            url: format!("http://{id}"),
            turn,
            id: id.to_owned(),
        };
        let commit = KvCommit {
            namespace: NAMESPACE.to_owned(),
            writes: vec![KvWrite::set(KEY, holder.write())],
            ..KvCommit::default()
        };
        client.kv_commit(commit).await.unwrap()
    }

    // spec: ACTIVE-05
    #[tokio::test]
    async fn a_taking_whose_answer_was_lost_is_gone_on_with_at_once() {
        let manager = TestManager::start().await;
        let client = manager.client().await;
        write(&client, "one", 4).await;
        let mut one = contender(&manager, "one");
        let turn = within("the seat", one.take(|_| {})).await;
        assert_eq!(turn.number, 5);
        // Of the same name is not the same.
        let mut two = contender(&manager, "two");
        let (told, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let standing_by = two.take(|holder| told.send(holder).unwrap());
        tokio::select! {
            _ = standing_by => panic!("it has the seat of another"),
            holder = seen.recv() => assert_eq!(holder.unwrap().unwrap().unwrap().id, "one"),
        }
    }

    // spec: ACTIVE-01
    #[tokio::test]
    async fn a_turn_has_no_end() {
        let manager = TestManager::start().await;
        let client = manager.client().await;
        write(&client, "one", u64::MAX).await;
        let turn = within("the seat", contender(&manager, "one").take(|_| {})).await;
        assert_eq!(turn.number, u64::MAX);
    }

    // spec: ACTIVE-04
    #[tokio::test]
    async fn one_whose_seat_is_another_s_or_nobody_s_acts_no_more_and_says_why() {
        let manager = TestManager::start().await;
        let client = manager.client().await;
        let mut one = contender(&manager, "one");
        let mut turn = within("the seat", one.take(|_| {})).await;
        write(&client, "two", 2).await;
        let why = within("the end of a turn", one.keep(&mut turn)).await;
        assert_eq!(why, "\"studio\" took it");
        assert!(!turn.gate.is_open());

        let delete = KvCommit {
            namespace: NAMESPACE.to_owned(),
            writes: vec![KvWrite::delete(KEY)],
            ..KvCommit::default()
        };
        client.kv_commit(delete.clone()).await.unwrap();
        let mut turn = within("the seat", one.take(|_| {})).await;
        client.kv_commit(delete).await.unwrap();
        let why = within("the end of a turn", one.keep(&mut turn)).await;
        assert_eq!(why, "its key was deleted");
        assert!(!turn.gate.is_open());
    }

    // spec: ACTIVE-06
    #[tokio::test]
    async fn a_seat_is_given_back_though_the_last_write_was_cut_off() {
        let manager = TestManager::start().await;
        let client = manager.client().await;
        let mut one = contender(&manager, "one");
        let turn = within("the seat", one.take(|_| {})).await;
        // A renewal that nobody waited for.
        assert!(write(&client, "one", turn.number).await > turn.revision);
        one.give_back().await;
        assert_eq!(client.kv_get(NAMESPACE, KEY).await.unwrap(), None);

        // A taking that nobody waited for.
        one.claimed = true;
        write(&client, "one", 1).await;
        one.give_back().await;
        assert_eq!(client.kv_get(NAMESPACE, KEY).await.unwrap(), None);

        // What is another's stays.
        one.claimed = true;
        write(&client, "two", 1).await;
        one.give_back().await;
        assert!(client.kv_get(NAMESPACE, KEY).await.unwrap().is_some());
    }
}
