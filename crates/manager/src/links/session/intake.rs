//! What a worker says, taken in: leases at once, everything else in its order, one commit at a time.

use futures::future::BoxFuture;
use greenroom_ledger::{Command, Report};
use greenroom_proto::worker::WorkerMessage;

use super::{Ended, Session};
use crate::links::published;
use crate::links::wire::{self, Said};

/// Messages that wait for the report before them to be recorded; beyond, nothing more is read (LIM-08).
pub(super) const WAITING_MAX: usize = 64;

// === impl Session ===

impl Session<'_> {
    /// Takes one message. What is not of leases waits for the reports before it.
    pub(super) async fn hear(&mut self, message: WorkerMessage) -> Result<(), Ended> {
        match wire::read_message(message) {
            Ok(Said::Health) => Ok(()),
            // Nothing is committed for it, so that it waits for no disk (LEASE-03).
            Ok(Said::Refresh { nonce, leases }) => {
                let engine = &self.dialler.engine;
                let node_id = &self.dialler.node_id;
                let answers: Vec<_> = leases
                    .into_iter()
                    .map(|held| {
                        let answer = engine.refresh_lease(node_id, &held);
                        (held, answer)
                    })
                    .collect();
                self.send(wire::write_lease_answer(nonce, &answers)).await
            }
            Ok(said) => {
                self.waiting.push_back(said);
                self.take_in().await
            }
            Err(error) => {
                let node_id = &self.dialler.node_id;
                tracing::warn!(%node_id, %error, "a worker's message cannot be read and is left out");
                Ok(())
            }
        }
    }

    /// Takes in what waits, up to a report. Its commit is waited for, so that reports are recorded in
    /// the order in which they were sent and a flood is slowed by flow control (LIM-08).
    pub(super) async fn take_in(&mut self) -> Result<(), Ended> {
        while self.recording.is_none()
            && let Some(said) = self.waiting.pop_front()
        {
            let node_id = &self.dialler.node_id;
            match said {
                Said::Health | Said::Refresh { .. } => {}
                Said::Confirmed { paused } => {
                    self.dialler.engine.leases().confirm(node_id, paused);
                }
                Said::Unserved => {
                    tracing::debug!(%node_id, "a message of a part of the protocol that is not served");
                }
                Said::Info(info) => self.pass_on(info),
                Said::Access {
                    replica_version,
                    discovery_version,
                } => self.hear_access(replica_version, discovery_version).await?,
                Said::Report {
                    report_id,
                    mut report,
                } => {
                    let engine = &self.dialler.engine;
                    engine
                        .payloads()
                        .deposit_report(engine.clock().mono(), &mut report);
                    if self.is_published {
                        engine.read(|ledger| published::complete(ledger, node_id, &mut report));
                    }
                    self.recording = Some(Box::pin(self.record(report_id, report)));
                }
            }
        }
        Ok(())
    }

    /// Records a report; the future is of no session, so that others can go on meanwhile.
    pub(super) fn record(
        &self,
        report_id: u64,
        report: Box<Report>,
    ) -> impl Future<Output = Result<(), Ended>> + use<> {
        let engine = self.dialler.engine.clone();
        let node_id = self.dialler.node_id.clone();
        let command = Command::Report {
            node_id: node_id.clone(),
            report_id,
            report,
        };
        async move {
            match engine.propose(command).await {
                Ok((_, answer)) => {
                    if let Err(refusal) = answer.result {
                        tracing::debug!(%node_id, %refusal, "a worker's report was refused");
                    }
                    Ok(())
                }
                Err(error) => {
                    tracing::warn!(%node_id, %error, "a worker's report could not be recorded");
                    Err(Ended::Dropped)
                }
            }
        }
    }
}

/// How a commit ended; never without one.
pub(super) async fn recorded(
    recording: &mut Option<BoxFuture<'static, Result<(), Ended>>>,
) -> Result<(), Ended> {
    match recording {
        Some(recording) => recording.await,
        None => std::future::pending().await,
    }
}
