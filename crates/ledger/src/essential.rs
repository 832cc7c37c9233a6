//! What a disk that is nearly full must not hold up (STORE-09).
//!
//! Whatever is known already goes on: what workers say, what the Manager finds out about nodes, what
//! ends or removes something, and the start of a job that exists, so that recovery works. Refused is what makes something new, or more of it: that would take the
//! room that the rest needs.

use greenroom_types::call::Call;

use crate::command::Command;
use crate::ledger::Ledger;

/// Namespace in which control planes agree on who acts (ACTIVE). Without one that acts nobody would
/// make room.
const CONTROL_PLANE: &str = "control-plane";

// === impl Ledger ===

impl Ledger {
    /// True for a command that is to wait until the disk has room again; false for one that is
    /// recorded whatever the disk says, as long as it takes a byte (STORE-09).
    #[must_use]
    pub fn needs_room(&self, command: &Command) -> bool {
        match command {
            Command::Open(_)
            | Command::Link { .. }
            | Command::Report { .. }
            | Command::Provider { .. }
            | Command::Tick(_)
            | Command::Overrides(_)
            | Command::Note { .. } => false,
            // A worker that was here before must come back to its jobs, also to end them. A token
            // that opens nothing makes nothing either; it is refused for what it is.
            Command::Register(register) => self
                .tokens
                .get(&register.token)
                .and_then(|node_id| self.slots.get(node_id))
                .is_some_and(|slot| !slot.token_used),
            Command::Call(called) => call_needs_room(&called.call),
        }
    }
}

/// Every call is named, so that a new one cannot be forgotten here.
fn call_needs_room(call: &Call) -> bool {
    match call {
        Call::StopJob { .. }
        | Call::StopBundleJob { .. }
        | Call::CompleteJob(_)
        | Call::MarkJobFailed { .. }
        | Call::DeleteJob(_)
        | Call::DeleteBundle(_)
        | Call::TerminateNode(_)
        | Call::DeregisterClusterNode(_)
        | Call::AbortMigration { .. }
        | Call::PruneAuditLog { .. }
        | Call::PauseLeases { .. }
        | Call::ResumeLeases { .. }
        // One that is refused would have its bundle deleted.
        | Call::RenewBundleLease { .. }
        // What is on the air must be able to go on elsewhere: a start takes a few hundred bytes.
        | Call::StartJob(_)
        | Call::StartPreparedJob { .. }
        | Call::AdoptInstance { .. } => false,
        Call::KvCommit(commit) => commit.namespace != CONTROL_PLANE,
        // A secret that leaked cannot wait, and without a fresh attestation jobs admit nobody.
        Call::RotateDiscoveryTierSecret { .. } => false,
        Call::PublishAccessReplica(replica) => !replica.snapshot.is_empty(),
        Call::CreateJob(_)
        | Call::UpdateJob(..)
        | Call::CreateBundle(_)
        | Call::UpdateBundle { .. }
        | Call::StartBundleJob { .. }
        | Call::SetBundleStopTime { .. }
        | Call::CreateAwsNode(_)
        | Call::CreateOciNode(_)
        | Call::UpdatePhysicalNode { .. }
        | Call::SetNodeTags { .. }
        | Call::RegisterClusterNode { .. }
        | Call::PrefetchImages { .. }
        | Call::NotifyMigrationGetState { .. }
        | Call::NotifyMigrationCutoverReady { .. }
        | Call::NotifyMigrationCutoverApply { .. }
        | Call::SetNodeIdleExpiry { .. }
        | Call::SetClusterNodePool { .. }
        | Call::RotateClusterNodeToken(_)
        | Call::AppendAuditEntry { .. }
        | Call::PublishDiscoveryFleet { .. }
        | Call::ReloadExternalConfig => true,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_types::Wall;
    use greenroom_types::kv::KvCommit;

    use super::*;
    use crate::command::{Called, Due, Fresh, Link, Open, Register};
    use crate::report::Report;

    fn call(call: Call) -> Command {
        Command::Call(Box::new(Called {
            call,
            actor: String::new(),
            request_id: None,
            fresh: Fresh {
                id: "0123456789abcdef0123456789abcdef".to_owned(),
                token: "token-1".to_owned(),
                ..Fresh::default()
            },
        }))
    }

    fn calls_in(token: &str) -> Command {
        Command::Register(Register {
            token: token.to_owned(),
            address: "127.0.0.1:7000".to_owned(),
            machine_id: "m".to_owned(),
            public_key: "p".to_owned(),
            key: "k".to_owned(),
            hardware: None,
        })
    }

    fn commit(namespace: &str) -> Command {
        call(Call::KvCommit(KvCommit {
            namespace: namespace.to_owned(),
            ..KvCommit::default()
        }))
    }

    // spec: STORE-09, HARDM-48
    #[test]
    fn what_ends_things_or_says_how_they_are_needs_no_room_and_what_makes_things_does() {
        let ledger = Ledger::default();
        let essential = [
            Command::Open(Open {
                epoch: "e".to_owned(),
                renew: false,
                config: None,
                generation: 1,
            }),
            Command::Link {
                node_id: "n".into(),
                link: Link::GraceOver,
            },
            Command::Report {
                node_id: "n".into(),
                report_id: 1,
                report: Box::new(Report::Goodbye {
                    reason: String::new(),
                }),
            },
            Command::Tick(Due::ForgetNode("n".into())),
            call(Call::StopJob {
                key: greenroom_types::node::InstanceKey::new("j".into(), "r".into()),
                node_id: "n".into(),
                grace_ms: None,
            }),
            call(Call::CompleteJob("j".into())),
            call(Call::StartPreparedJob {
                key: greenroom_types::node::InstanceKey::new("j".into(), "r".into()),
                node_id: "n".into(),
            }),
            call(Call::DeleteJob("j".into())),
            call(Call::DeleteBundle("b".into())),
            call(Call::TerminateNode("n".into())),
            call(Call::DeregisterClusterNode("n".into())),
            commit("control-plane"),
        ];
        for command in essential {
            assert!(!ledger.needs_room(&command), "{command:?}");
        }
        let refused = [
            call(Call::CreateBundle(Box::default())),
            call(Call::RegisterClusterNode {
                node_name: "n".to_owned(),
                pool: "p".into(),
            }),
            call(Call::RotateClusterNodeToken("n".into())),
            commit("team"),
        ];
        for command in refused {
            assert!(ledger.needs_room(&command), "{command:?}");
        }
    }

    // spec: STORE-09
    #[test]
    fn a_worker_that_was_here_before_comes_back_on_a_full_disk_and_a_new_one_does_not() {
        let mut ledger = Ledger::default();
        let register = call(Call::RegisterClusterNode {
            node_name: "n".to_owned(),
            pool: "p".into(),
        });
        ledger.apply(Wall(1), register).outcome.unwrap();
        assert!(ledger.needs_room(&calls_in("token-1")), "its first use");
        assert!(!ledger.needs_room(&calls_in("other")), "it opens nothing");
        ledger.apply(Wall(2), calls_in("token-1")).outcome.unwrap();
        assert!(!ledger.needs_room(&calls_in("token-1")));
    }
}
