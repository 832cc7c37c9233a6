//! Calls on leases that are more than a commit.

use greenroom_ledger::Order;
use greenroom_proto::convert::call::{Request as Wire, refuse};
use greenroom_proto::convert::lease::write_lease_status;
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::manager::{GetLeaseStatusResponse, PauseLeasesRequest, PauseLeasesResponse};
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
        answered(self.pause_and_wait(caller, call).await)
    }

    async fn pause_and_wait(&self, caller: Caller, call: Call) -> Result<(u64, Reply), Refusal> {
        let engine = self.engine();
        let leases = engine.leases();
        let paused_before = engine.read(|ledger| ledger.lease_pause().is_some());
        if !paused_before {
            leases.forget_all();
        }
        let (revision, reply) = engine.call(caller, call).await?;
        let Reply::LeasesPaused { since, .. } = reply else {
            return Ok((revision, reply));
        };
        let audience = engine.pause_audience();
        if paused_before {
            // The commit changed nothing and told nobody; who missed the first word is told again.
            let order = engine.read(|ledger| ledger.pause_order());
            for node_id in leases.unconfirmed(&audience) {
                let message = order.clone();
                self.0
                    .links
                    .order(revision, Order::Worker { node_id, message });
            }
        }
        let not_acknowledged = leases.await_confirmed(&audience).await;
        let reply = Reply::LeasesPaused {
            since,
            not_acknowledged,
        };
        Ok((revision, reply))
    }

    /// GetLeaseStatus (LEASE-14).
    pub(super) fn lease_status(&self) -> Result<GetLeaseStatusResponse, tonic::Status> {
        let status = self.engine().lease_status();
        write_lease_status(&status).map_err(Into::into)
    }
}
