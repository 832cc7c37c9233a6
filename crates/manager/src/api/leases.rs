//! Calls on leases that are more than a commit.

use greenroom_ledger::Order;
use greenroom_proto::convert::call::{Request as Wire, refuse};
use greenroom_proto::convert::lease::write_lease_status;
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::manager::{
    GetLeaseStatusResponse, PauseLeasesRequest, PauseLeasesResponse, ResumeLeasesRequest,
    ResumeLeasesResponse,
};
use greenroom_types::call::{Call, Refusal, Reply};
use tonic::Response;

use super::ManagerApi;
use super::fleet::answered;
use crate::engine::Caller;

impl ManagerApi {
    /// PauseLeases: the commit, and then what the workers say to it (LEASE-10).
    pub(super) async fn pause(
        &self,
        caller: Caller,
        request: PauseLeasesRequest,
    ) -> Result<Response<PauseLeasesResponse>, tonic::Status> {
        let call = Call::try_from(Wire::PauseLeases(request))
            .map_err(|error| write_refusal(&refuse(error)))?;
        answered(self.turn_and_wait(caller, call, true).await)
    }

    /// ResumeLeases, likewise (LEASE-12).
    pub(super) async fn resume(
        &self,
        caller: Caller,
        request: ResumeLeasesRequest,
    ) -> Result<Response<ResumeLeasesResponse>, tonic::Status> {
        let call = Call::try_from(Wire::ResumeLeases(request))
            .map_err(|error| write_refusal(&refuse(error)))?;
        answered(self.turn_and_wait(caller, call, false).await)
    }

    async fn turn_and_wait(
        &self,
        caller: Caller,
        call: Call,
        pauses: bool,
    ) -> Result<(u64, Reply), Refusal> {
        let engine = self.engine();
        let leases = engine.leases();
        let stood = engine.read(|ledger| ledger.lease_pause().is_some()) == pauses;
        if !stood {
            leases.forget_all();
        }
        let (revision, reply) = engine.call(caller, call).await?;
        let audience = engine.pause_audience();
        if stood {
            // The commit changed nothing and told nobody; who missed the first word is told again.
            let order = engine.read(|ledger| ledger.pause_order());
            for node_id in leases.unconfirmed(&audience, pauses) {
                let message = order.clone();
                self.0
                    .links
                    .order(revision, Order::Worker { node_id, message });
            }
        }
        let not_acknowledged = leases.await_confirmed(&audience, pauses).await;
        let reply = match reply {
            Reply::LeasesPaused { since, .. } => Reply::LeasesPaused {
                since,
                not_acknowledged,
            },
            Reply::LeasesResumed { leases, .. } => Reply::LeasesResumed {
                leases,
                not_acknowledged,
            },
            other => other,
        };
        Ok((revision, reply))
    }

    /// GetLeaseStatus (LEASE-14).
    pub(super) fn lease_status(&self) -> Result<GetLeaseStatusResponse, tonic::Status> {
        let status = self.engine().lease_status();
        write_lease_status(&status).map_err(Into::into)
    }
}
