//! A worker of an owned server calls in with its slot's token (LOCAL-05 to LOCAL-08).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use greenroom_auth::NodeKey;
use greenroom_ledger::{Command, Register, Registered};
use greenroom_proto::convert::WireError;
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::manager::{ClusterMemberRegisterRequest, ClusterMemberRegisterResponse};
use greenroom_types::call::{Refusal, Status};
use greenroom_types::inventory::NodeInventory;
use tonic::{Request, Response};

use super::ManagerApi;
use crate::engine::{unavailable, unopened};
use crate::guard;

/// A refused token is answered this long after it came, plus up to 100 at random, so that the
/// answer's time tells nothing (LOCAL-07).
const REFUSAL_DELAY_MS: u64 = 300;

impl ManagerApi {
    pub(super) async fn register(
        &self,
        request: Request<ClusterMemberRegisterRequest>,
    ) -> Result<Response<ClusterMemberRegisterResponse>, tonic::Status> {
        let came_at = tokio::time::Instant::now();
        self.caller(&request)?;
        let peer = guard::address(request.extensions());
        self.0
            .doorkeeper
            .refuse_closed(peer, Instant::now())
            .map_err(|refusal| write_refusal(&refusal))?;
        let request = request.into_inner();
        for (field, text) in [
            ("token", &request.token),
            ("machine_id", &request.machine_id),
        ] {
            if text.is_empty() {
                return Err(WireError::missing(field).into());
            }
        }
        // A worker of the published protocol has none (WORK-04).
        if request.public_key.is_empty() && !self.0.allow_published {
            return Err(WireError::missing("public_key").into());
        }
        let address = dial_address(&request.listen_address, request.listen_port)
            .map_err(|refusal| write_refusal(&refusal))?;
        let hardware = request
            .hardware
            .map(|picture| {
                NodeInventory::try_from(picture).map_err(|error| error.under("hardware"))
            })
            .transpose()?;
        let vault = self.engine().vault();
        let command = Command::Register(Register {
            token: vault.seal_token(&request.token),
            address,
            machine_id: request.machine_id,
            public_key: greenroom_auth::hex(&request.public_key),
            key: vault.seal_key(&NodeKey::generate()),
            hardware: hardware.map(Box::new),
        });
        let (_, answer) = self
            .engine()
            .propose(command)
            .await
            .map_err(|error| write_refusal(&unavailable(error)))?;
        match (answer.result, answer.registered) {
            (Ok(_), Some(registered)) => self.welcome(registered),
            (Ok(_), None) => Err(write_refusal(&Refusal::new(
                Status::Internal,
                "internal",
                "the slot was taken but nothing about it was answered",
            ))),
            (Err(refusal), _) => {
                if refusal.status == Status::Unauthenticated {
                    self.0.doorkeeper.note_failure(peer, Instant::now());
                    tracing::warn!(%peer, "a worker called in with a token that opens nothing");
                    let payload = serde_json::json!({"address": peer.to_string()});
                    self.engine().note("bad_token", payload).await;
                    let jitter = u64::from(greenroom_auth::random::<1>()[0]) * 100 / 255;
                    let answer_after = Duration::from_millis(REFUSAL_DELAY_MS + jitter);
                    tokio::time::sleep_until(came_at + answer_after).await;
                }
                Err(write_refusal(&refusal))
            }
        }
    }

    fn welcome(
        &self,
        registered: Registered,
    ) -> Result<Response<ClusterMemberRegisterResponse>, tonic::Status> {
        let key = self
            .engine()
            .vault()
            .open_key(&registered.key)
            .ok_or_else(|| {
                tracing::error!(node_id = %registered.node_id, "the key in the slot's record cannot be opened");
                write_refusal(&unopened())
            })?;
        Ok(Response::new(ClusterMemberRegisterResponse {
            node_id: registered.node_id.to_string(),
            deployment_id: self.engine().store().identity().cluster.clone(),
            key_share: key.expose().to_vec(),
            manager_urls: self.0.urls.clone(),
        }))
    }
}

/// Where a worker is dialled. This Manager listens on loopback only, so loopback is allowed
/// (LOCAL-10).
fn dial_address(address: &str, port: u32) -> Result<String, Refusal> {
    let bad = |why: &str| {
        Refusal::new(
            Status::InvalidArgument,
            "bad_listen_address",
            format!("the worker cannot be dialled at {address:?} port {port}: {why}"),
        )
        .with("path", "listen_address")
    };
    let ip: IpAddr = address
        .parse()
        .map_err(|_| bad("it must be an IP address"))?;
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(bad("it must be the address of one machine"));
    }
    match u16::try_from(port) {
        Ok(port) if port > 0 => Ok(std::net::SocketAddr::new(ip, port).to_string()),
        _ => Err(bad("the port must be 1 to 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: LOCAL-10
    #[test]
    fn only_the_address_of_one_machine_is_dialled() {
        assert_eq!(dial_address("127.0.0.1", 6791).unwrap(), "127.0.0.1:6791");
        assert_eq!(dial_address("::1", 6791).unwrap(), "[::1]:6791");
        for (address, port) in [
            ("0.0.0.0", 1),
            ("224.0.0.1", 1),
            ("host", 1),
            ("", 1),
            ("10.0.0.1", 0),
            ("10.0.0.1", 65_536),
        ] {
            let refusal = dial_address(address, port).unwrap_err();
            assert_eq!(refusal.reason, "bad_listen_address", "{address}:{port}");
        }
    }
}
