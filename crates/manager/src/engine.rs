//! What every part of the Manager shares: the store with the ledger in it, the hub, the clock, and
//! the one way to propose a command.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_auth::Role;
use greenroom_ledger::{Called, Command, Found, Fresh, Ledger, check_payload};
use greenroom_metrics::Histogram;
use greenroom_store::{ProposeError, Room, Store};
use greenroom_types::call::{Call, Refusal, Reply, Status};
use greenroom_types::discovery::DiscoveryFleet;
use tokio::sync::watch;

use crate::acks::Acks;
use crate::clock::SystemClock;
use crate::guard::role_required;
use crate::hub::Hub;
use crate::leases::{self, Leases};
use crate::machine::{Answer, Recorded};
use crate::payloads::Payloads;
use crate::planes::Planes;
use crate::settings::License;
use crate::status_log::StatusLog;
use crate::vault::Vault;

/// Shared by all parts.
#[derive(Clone)]
pub(crate) struct Engine(Arc<Parts>);

struct Parts {
    store: Store<Recorded>,
    hub: Arc<Hub>,
    clock: SystemClock,
    status_log: StatusLog,
    vault: Vault,
    fixed: Fixed,
    payloads: Payloads,
    commit_times: Histogram,
    acks: Acks,
    planes: Planes,
    leases: Leases,
    stopping: watch::Sender<bool>,
}

/// What stays as the settings said it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fixed {
    /// Name of this member.
    pub(crate) member: String,
    /// Namespaces of the key/value store that take an admin (KV-09).
    pub(crate) kv_admin_namespaces: BTreeSet<String>,
    /// For the workers (SEC-08).
    pub(crate) license: License,
    /// A pause of leases that lasts longer is told (LEASE-13).
    pub(crate) lease_pause_max: Duration,
}

/// Who calls.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// What the credential proves (SEC-17).
    pub(crate) actor: String,
    /// What it may do (SEC-03).
    pub(crate) role: Role,
    /// Minor number of the caller's protocol; 0 for a published client (HELLO-02).
    pub(crate) protocol_minor: u32,
    /// Id under which the call may be repeated (API-07).
    pub(crate) request_id: Option<String>,
}

// === impl Engine ===

impl Engine {
    pub(crate) fn new(
        store: Store<Recorded>,
        hub: Arc<Hub>,
        clock: SystemClock,
        status_log: StatusLog,
        vault: Vault,
        fixed: Fixed,
        planes: Planes,
    ) -> Self {
        let pause_max = fixed.lease_pause_max;
        let leases =
            store.read(|recorded: &Recorded| leases::begin(pause_max, clock.now(), &recorded.0));
        let stopping = watch::Sender::new(false);
        Self(Arc::new(Parts {
            store,
            hub,
            clock,
            status_log,
            vault,
            fixed,
            payloads: Payloads::default(),
            commit_times: Histogram::default(),
            acks: Acks::default(),
            planes,
            leases: Leases::new(leases),
            stopping,
        }))
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.0.hub
    }

    pub(crate) fn clock(&self) -> SystemClock {
        self.0.clock
    }

    pub(crate) fn status_log(&self) -> &StatusLog {
        &self.0.status_log
    }

    pub(crate) fn vault(&self) -> &Vault {
        &self.0.vault
    }

    pub(crate) fn member(&self) -> &str {
        &self.0.fixed.member
    }

    pub(crate) fn license(&self) -> &License {
        &self.0.fixed.license
    }

    /// Some namespaces take an admin to read and to write (KV-09).
    pub(crate) fn refuse_namespace(&self, caller: &Caller, namespace: &str) -> Result<(), Refusal> {
        let is_kept = self.0.fixed.kv_admin_namespaces.contains(namespace);
        if !is_kept || caller.role.covers(Role::Admin) {
            return Ok(());
        }
        let what = format!("the namespace {namespace:?}");
        let Caller { actor, role, .. } = caller;
        Err(role_required(&what, Role::Admin, actor, *role))
    }

    pub(crate) fn payloads(&self) -> &Payloads {
        &self.0.payloads
    }

    /// How long commands took to become durable (API-21).
    pub(crate) fn commit_times(&self) -> &Histogram {
        &self.0.commit_times
    }

    /// Whether this member takes part in commits: it serves, and its store works.
    pub(crate) fn commits(&self) -> bool {
        !*self.0.stopping.borrow() && self.0.store.failure().is_none()
    }

    /// What workers hold of the discovery fleet.
    pub(crate) fn acks(&self) -> &Acks {
        &self.0.acks
    }

    /// Where control planes are.
    pub(crate) fn planes(&self) -> &Planes {
        &self.0.planes
    }

    pub(crate) fn leases(&self) -> &Leases {
        &self.0.leases
    }

    pub(crate) fn store(&self) -> &Store<Recorded> {
        &self.0.store
    }

    /// Looks at the state as it stands.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&Ledger) -> R) -> R {
        self.0.store.read(|recorded| look(&recorded.0))
    }

    /// Looks at the state and its revision.
    pub(crate) fn read_at<R>(&self, look: impl FnOnce(&Ledger, u64) -> R) -> R {
        self.0
            .store
            .read_at(|recorded, revision| look(&recorded.0, revision))
    }

    /// From now on calls are refused (API-19). Streams go on until [`Engine::end_streams`].
    pub(crate) fn begin_stopping(&self) {
        self.0.stopping.send_replace(true);
    }

    /// Ends the event streams once they were given everything that is committed, so that whoever
    /// comes back after a restart has missed nothing.
    pub(crate) async fn end_streams(&self, patience: Duration) {
        let seq = self.read(Ledger::seq);
        let mut published = self.0.hub.published();
        let level = published.wait_for(|published| *published >= seq);
        if tokio::time::timeout(patience, level).await.is_err() {
            tracing::warn!(
                seq,
                "the last changes did not reach the subscribers in time"
            );
        }
        self.0.hub.end();
    }

    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.0.stopping.subscribe()
    }

    /// No new call is taken once the Manager ends (API-19).
    pub(crate) fn refuse_stopping(&self) -> Result<(), Refusal> {
        if *self.0.stopping.borrow() {
            return Err(shutting_down());
        }
        Ok(())
    }

    /// What makes something new waits until the disk has room (STORE-09).
    fn refuse_full_disk(&self, command: &Command) -> Result<(), Refusal> {
        if !self.read(|ledger| ledger.needs_room(command)) || self.0.store.room() == Room::Plenty {
            return Ok(());
        }
        Err(Refusal::new(
            Status::ResourceExhausted,
            "disk_full",
            "the disk that holds the Manager's data is nearly full: only stops, deletes and \
             terminations are taken until there is room again",
        ))
    }

    /// Makes a command durable and applied. The work goes on when the caller goes away, so that a
    /// cancelled call is never half done (API-06).
    pub(crate) async fn propose(&self, command: Command) -> Result<(u64, Answer), ProposeError> {
        // What no log can hold (a number that is none) never reaches one, nor does what the disk has
        // no room for.
        let checked = command
            .checked()
            .and_then(|command| self.refuse_full_disk(&command).map(|()| command));
        let command = match checked {
            Ok(command) => command,
            Err(refusal) => {
                let answer = Answer {
                    result: Err(refusal),
                    registered: None,
                };
                return Ok((self.read_at(|_, revision| revision), answer));
            }
        };
        let parts = Arc::clone(&self.0);
        let proposed = async move {
            let begun = Instant::now();
            let committed = parts.store.propose(command).await;
            if committed.is_ok() {
                parts.commit_times.note(begun.elapsed());
            }
            committed
        };
        tokio::spawn(proposed)
            .await
            .unwrap_or(Err(ProposeError::Stopped))
    }

    /// A slot's token, for the one answer that hands it out.
    fn shown_token(&self, sealed: &str) -> Result<String, Refusal> {
        let token = self.vault().open_token(sealed).ok_or_else(unopened)?;
        Ok(token.expose().to_owned())
    }

    /// The discovery fleet with its secrets, for those who may have them (DISC-04).
    pub(crate) fn opened(&self, fleet: DiscoveryFleet) -> Result<DiscoveryFleet, Refusal> {
        self.vault().open_fleet(fleet).ok_or_else(|| {
            Refusal::new(
                Status::Internal,
                "internal",
                "the fleet's secrets cannot be opened with this store's key",
            )
        })
    }

    /// Writes to the audit log what changes nothing else. What cannot be written is in the log at least.
    pub(crate) async fn note(&self, kind: &str, payload: serde_json::Value) {
        let command = Command::Note {
            kind: kind.to_owned(),
            payload,
        };
        if let Err(error) = self.propose(command).await {
            tracing::warn!(kind, %error, "an audit entry could not be recorded");
        }
    }

    /// Performs a mutating call; answers with its revision once it is durable (API-05).
    pub(crate) async fn call(&self, caller: Caller, call: Call) -> Result<(u64, Reply), Refusal> {
        self.call_with(caller, call, Found::Nothing).await
    }

    /// The same, with what was found out for the call.
    pub(crate) async fn call_with(
        &self,
        caller: Caller,
        mut call: Call,
        found: Found,
    ) -> Result<(u64, Reply), Refusal> {
        self.refuse_stopping()?;
        if let Call::KvCommit(commit) = &call {
            self.refuse_namespace(&caller, &commit.namespace)?;
        }
        if let Call::StartJob(start) = &mut call
            && let Some(state) = start.migration_state.take()
        {
            check_payload(&state)?;
            let now = self.clock().mono();
            start.migration_state = Some(self.payloads().deposit(now, state));
        }
        let vault = self.vault();
        let call = self.read(|ledger| vault.seal_call(call, ledger))?;
        let token = match call {
            Call::RegisterClusterNode { .. } | Call::RotateClusterNodeToken(_) => {
                let token = greenroom_auth::SlotToken::from_random(greenroom_auth::random());
                vault.seal_token(token.expose())
            }
            Call::RotateDiscoveryTierSecret { .. } => vault.new_tier_secret(),
            _ => String::new(),
        };
        let fresh = Fresh {
            id: greenroom_auth::hex(&greenroom_auth::random::<16>()),
            token,
            found,
        };
        let Caller {
            actor, request_id, ..
        } = caller;
        let command = Command::Call(Box::new(Called {
            call,
            actor,
            request_id,
            fresh,
        }));
        let (revision, answer) = self.propose(command).await.map_err(unavailable)?;
        let result = answer
            .result
            .map_err(|refusal| self.leases().clock().complete(self.clock().now(), refusal));
        let reply = match result? {
            // It is sealed in the record of the call as well (API-07).
            Reply::Slot { node_id, token } => Reply::Slot {
                node_id,
                token: self.shown_token(&token)?,
            },
            Reply::Token(token) => Reply::Token(self.shown_token(&token)?),
            Reply::Discovery {
                fleet,
                secrets_kept,
            } => Reply::Discovery {
                fleet: self.opened(fleet)?,
                secrets_kept,
            },
            Reply::Rotated {
                fleet,
                version,
                acknowledged,
                not_acknowledged,
            } => Reply::Rotated {
                fleet: self.opened(fleet)?,
                version,
                acknowledged,
                not_acknowledged,
            },
            other => other,
        };
        Ok((revision, reply))
    }
}

/// A secret of the store that its own key does not open.
pub(crate) fn unopened() -> Refusal {
    Refusal::new(
        Status::Internal,
        "internal",
        "the slot's secrets cannot be opened; deregister the slot and register it anew",
    )
}

pub(crate) fn shutting_down() -> Refusal {
    Refusal::new(
        Status::Unavailable,
        "shutting_down",
        "this Manager is ending; call another or later",
    )
}

pub(crate) fn unavailable(error: ProposeError) -> Refusal {
    match error {
        ProposeError::Stopped => shutting_down(),
        ProposeError::NotPrimary { .. } => Refusal::new(
            Status::Unavailable,
            "not_primary",
            "this member does not take writes now",
        ),
        ProposeError::Encode(cause) => {
            tracing::error!(%cause, "a command could not be encoded");
            Refusal::new(
                Status::Internal,
                "internal",
                "the call could not be recorded; see the log",
            )
        }
        ProposeError::Fatal(cause) => {
            // The store said so once, as it failed; every call since then would say it again.
            tracing::debug!(%cause, "the store failed");
            Refusal::new(
                Status::Unavailable,
                "store_failed",
                "the store failed while the call was being recorded; whether it took effect is unknown",
            )
        }
    }
}
