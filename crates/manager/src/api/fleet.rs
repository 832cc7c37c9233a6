//! Calls about the fleet as a whole: discovery and the rotation of its secret, access roles, the
//! overrides file. What they need besides the state (secrets opened, signatures checked, a file, the
//! workers' word) is found out here.

use greenroom_auth::{KeySet, ReplicaParts, follow_keys, read_replica};
use greenroom_ledger::{Found, Ledger, ReplicaFacts, key_mark};
use greenroom_proto::convert::call::{Request as Wire, refuse};
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::manager::{
    GetDiscoveryFleetResponse, PublishAccessReplicaRequest, PublishAccessReplicaResponse,
    ReloadExternalConfigRequest, ReloadExternalConfigResponse, RotateDiscoveryTierSecretRequest,
    RotateDiscoveryTierSecretResponse,
};
use greenroom_types::NodeId;
use greenroom_types::call::{Call, Refusal, Reply, Status};
use greenroom_types::discovery::RotationStep;
use greenroom_types::replica::AccessReplica;
use tonic::{Request, Response};

use super::ManagerApi;

impl ManagerApi {
    /// The fleet with its secrets; the guard lets nobody below the control plane ask (DISC-04).
    pub(super) fn discovery_fleet(&self) -> Result<GetDiscoveryFleetResponse, tonic::Status> {
        let fleet = self.engine().read(Ledger::discovery_fleet);
        let fleet = fleet
            .map(|fleet| self.engine().opened(fleet))
            .transpose()
            .map_err(|refusal| write_refusal(&refusal))?;
        Ok(GetDiscoveryFleetResponse {
            fleet: fleet.as_ref().map(Into::into),
        })
    }

    /// A step of the rotation; a flip tells which workers have their new token (DISC-06).
    pub(super) async fn rotate(
        &self,
        request: Request<RotateDiscoveryTierSecretRequest>,
    ) -> Result<Response<RotateDiscoveryTierSecretResponse>, tonic::Status> {
        let caller = self.caller(&request)?;
        let call = read(Wire::RotateDiscoveryTierSecret(request.into_inner()))?;
        let is_flip = matches!(
            call,
            Call::RotateDiscoveryTierSecret {
                step: RotationStep::Flip,
                ..
            }
        );
        let mut rotated = self.engine().call(caller, call).await;
        if let Ok((
            _,
            Reply::Rotated {
                version,
                acknowledged,
                not_acknowledged,
                ..
            },
        )) = &mut rotated
            && is_flip
        {
            *acknowledged = self.acknowledged(not_acknowledged, *version).await;
        }
        answered(rotated)
    }

    /// Waits for the workers that are heard, takes those that have the version from the list, and
    /// counts them.
    async fn acknowledged(&self, nodes: &mut Vec<NodeId>, version: u64) -> u32 {
        let engine = self.engine();
        let is_heard = |node_id: &NodeId| {
            engine.read(|ledger| ledger.node(node_id).is_some_and(|node| node.is_running()))
        };
        let heard: Vec<NodeId> = nodes.iter().filter(|id| is_heard(id)).cloned().collect();
        engine
            .acks()
            .wait(&heard, version, self.0.acknowledge)
            .await;
        let all = nodes.len();
        nodes.retain(|node_id| !engine.acks().holds(node_id, version));
        u32::try_from(all - nodes.len()).unwrap_or(u32::MAX)
    }

    /// A version of the access roles, or a fresh attestation (REPL-01).
    pub(super) async fn publish_replica(
        &self,
        request: Request<PublishAccessReplicaRequest>,
    ) -> Result<Response<PublishAccessReplicaResponse>, tonic::Status> {
        let caller = self.caller(&request)?;
        let call = read(Wire::PublishAccessReplica(request.into_inner()))?;
        let engine = self.engine().clone();
        let Call::PublishAccessReplica(replica) = call else {
            return Err(tonic::Status::internal("another call was read"));
        };
        // Unzipping and checking signatures keeps a processor busy.
        let checked = tokio::task::spawn_blocking(move || {
            let held = engine.read(|ledger| ledger.replica_keys().to_vec());
            check(&held, &replica).map(|facts| (replica, facts))
        });
        let checked = checked
            .await
            .map_err(|error| tonic::Status::internal(error.to_string()))?;
        let (replica, facts) = checked.map_err(|refusal| write_refusal(&refusal))?;
        let call = Call::PublishAccessReplica(replica);
        let found = Found::Replica(facts);
        answered(self.engine().call_with(caller, call, found).await)
    }

    /// Reads the overrides file anew (OVR-02).
    pub(super) async fn reload(
        &self,
        request: Request<ReloadExternalConfigRequest>,
    ) -> Result<Response<ReloadExternalConfigResponse>, tonic::Status> {
        let caller = self.caller(&request)?;
        answered(self.0.overrides.reload(self.engine(), caller).await)
    }
}

fn read(request: Wire) -> Result<Call, tonic::Status> {
    Call::try_from(request).map_err(|error| write_refusal(&refuse(error)))
}

/// Answers a call, with the revision that it made.
pub(super) fn answered<A: greenroom_proto::convert::call::Answer>(
    outcome: Result<(u64, Reply), Refusal>,
) -> Result<Response<A>, tonic::Status> {
    let answer = outcome.and_then(|(revision, reply)| Ok((revision, A::write(reply)?)));
    let (revision, answer) = answer.map_err(|refusal| write_refusal(&refusal))?;
    let mut response = Response::new(answer);
    response
        .metadata_mut()
        .insert(super::REVISION_TRAILER, revision.into());
    Ok(response)
}

/// REPL-03: form, signatures, and that the keys follow from those held.
fn check(
    held: &[greenroom_types::Payload],
    replica: &AccessReplica,
) -> Result<ReplicaFacts, Refusal> {
    let bad = |path: &str, text: String| {
        Refusal::new(
            Status::InvalidArgument,
            "bad_replica",
            format!("{path}: {text}"),
        )
        .with("path", path)
    };
    let bytes = |sets: &[greenroom_types::Payload]| -> Vec<Vec<u8>> {
        sets.iter().map(|set| set.bytes().to_vec()).collect()
    };
    let in_force: Option<KeySet> = match held {
        [] => None,
        // What is held was judged when it came.
        held => Some(
            follow_keys(None, &bytes(held))
                .map_err(|error| bad("keys", format!("those held cannot be used: {error}")))?
                .0,
        ),
    };
    let (keys, known) = follow_keys(in_force.as_ref(), &bytes(&replica.keys))
        .map_err(|error| bad("keys", error.to_string()))?;
    let parts = ReplicaParts {
        snapshot: replica.snapshot.bytes(),
        delta: &replica.delta,
        attestation: &replica.attestation,
    };
    let found = read_replica(&keys, parts).map_err(|error| bad("replica", error.to_string()))?;
    if let Some(version) = found.snapshot_version
        && version != replica.version
    {
        let text = format!("is of version {version}, the call of {}", replica.version);
        return Err(bad("snapshot_jws_gz", text));
    }
    if let Some((from, to)) = found.delta
        && (from, to) != (replica.base_version, replica.version)
    {
        let text = format!(
            "leads from {from} to {to}, the call says from {} to {}",
            replica.base_version, replica.version
        );
        return Err(bad("delta_jws", text));
    }
    if found.delta.is_some() && found.snapshot_version.is_none() {
        let text = "comes without a snapshot, which workers at other versions need";
        return Err(bad("delta_jws", text.to_owned()));
    }
    Ok(ReplicaFacts {
        attested_version: found.attested_version,
        attested_at: found.attested_at,
        keys_seen: key_mark(held),
        new_keys: replica.keys[known..].to_vec(),
    })
}
