//! The calls on the Manager: requests, answers, and what announces a client.
//!
//! A [`Request`] is a call with its message as it travels. A client writes one from a [`Call`]; a server reads the
//! [`Call`] back, which is where a request is refused for what it says by itself: a missing identifier first
//! (API-15), then text and values that no request may hold (LIM-02, LIM-03), then enums and times (API-04, API-24).
//! What needs the Manager's state or the form of an id is not judged here. A field of a node's creation that is set
//! and has no place in the domain yet is refused `field_not_served`, never dropped.
//!
//! [`Call`]: greenroom_types::call::Call

pub mod answer;
pub mod check;
mod read;
pub mod search;
mod write;

use greenroom_types::call::{Refusal, Status};

pub use answer::{Answer, FoundJob};
pub use search::{DateMatch, IdMatch, JobFilter, JobSearch, TagMatch};

use super::WireError;
use crate::{common as wire, manager};

/// Major of the protocol of this build (HELLO-01).
pub const PROTOCOL_MAJOR: u32 = 1;

/// Minor of the protocol of this build (HELLO-01).
pub const PROTOCOL_MINOR: u32 = 10;

/// Request metadata in which a client tells its protocol as `1.N` (HELLO-02).
pub const PROTOCOL_METADATA: &str = "greenroom-protocol";

/// Request metadata that makes a mutating call repeatable (API-07).
pub const REQUEST_ID_METADATA: &str = "greenroom-request-id";

/// A mutating call as it travels: one variant per RPC, named like it.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "each variant is the RPC of its name with its request"
)]
pub enum Request {
    CreateJob(manager::Job),
    UpdateJob(manager::Job),
    DeleteJob(wire::JobId),
    CompleteJob(wire::JobId),
    StartJob(manager::StartJobRequest),
    StartPreparedJob(manager::StartPreparedJobRequest),
    StopJob(manager::StopJobRequest),
    MarkJobFailed(manager::MarkJobFailedRequest),
    CreateBundle(manager::CreateBundleRequest),
    UpdateBundle(manager::UpdateBundleRequest),
    DeleteBundle(manager::DeleteBundleRequest),
    StartBundleJob(manager::StartBundleJobRequest),
    StopBundleJob(manager::StopBundleJobRequest),
    SetBundleStopTime(manager::SetBundleStopTimeRequest),
    CreateAwsNode(manager::CreateAwsNodeRequest),
    CreateOciNode(manager::CreateOciNodeRequest),
    TerminateNode(wire::NodeId),
    UpdatePhysicalNode(manager::UpdatePhysicalNodeRequest),
    SetNodeTags(manager::SetNodeTagsRequest),
    RegisterClusterNode(manager::RegisterClusterNodeRequest),
    DeregisterClusterNode(manager::DeregisterClusterNodeRequest),
    PrefetchImages(manager::PrefetchImagesRequest),
    NotifyMigrationGetState(manager::NotifyMigrationGetStateRequest),
    NotifyMigrationCutoverReady(manager::NotifyMigrationCutoverReadyRequest),
    NotifyMigrationCutoverApply(manager::NotifyMigrationCutoverApplyRequest),
    KvCommit(manager::KvCommitRequest),
    SetNodeIdleExpiry(manager::SetNodeIdleExpiryRequest),
    SetClusterNodePool(manager::SetClusterNodePoolRequest),
    RotateClusterNodeToken(manager::RotateClusterNodeTokenRequest),
    AppendAuditEntry(manager::AppendAuditEntryRequest),
    PruneAuditLog(manager::PruneAuditLogRequest),
    AbortMigration(manager::AbortMigrationRequest),
    PublishDiscoveryFleet(manager::PublishDiscoveryFleetRequest),
    RotateDiscoveryTierSecret(manager::RotateDiscoveryTierSecretRequest),
    PublishAccessReplica(manager::PublishAccessReplicaRequest),
    ReloadExternalConfig(manager::ReloadExternalConfigRequest),
    AdoptInstance(manager::AdoptInstanceRequest),
    RenewBundleLease(manager::RenewBundleLeaseRequest),
    PauseLeases(manager::PauseLeasesRequest),
    ResumeLeases(manager::ResumeLeasesRequest),
}

/// Calls and the minor with which each arrived (HELLO-05): 0 for the published ones.
const CALLS: &[(&str, u32)] = &[
    ("CreateStatusChannel", 0),
    ("CreateJob", 0),
    ("UpdateJob", 0),
    ("DeleteJob", 0),
    ("JobSearch", 0),
    ("CreateAwsNode", 0),
    ("CreateOciNode", 0),
    ("UpdatePhysicalNode", 0),
    ("TerminateNode", 0),
    ("StartJob", 0),
    ("StopJob", 0),
    ("CompleteJob", 0),
    ("EventStream", 0),
    ("ListNodes", 1),
    ("StartPreparedJob", 1),
    ("MarkJobFailed", 1),
    ("CreateBundle", 1),
    ("UpdateBundle", 1),
    ("DeleteBundle", 1),
    ("GetBundle", 1),
    ("ListBundles", 1),
    ("StartBundleJob", 1),
    ("StopBundleJob", 1),
    ("SetBundleStopTime", 1),
    ("SetNodeTags", 1),
    ("RegisterClusterNode", 2),
    ("DeregisterClusterNode", 2),
    ("ListClusterNodes", 2),
    ("SetClusterNodePool", 2),
    ("RotateClusterNodeToken", 2),
    ("ClusterMemberRegister", 2),
    ("AbortMigration", 3),
    ("NotifyMigrationGetState", 3),
    ("NotifyMigrationCutoverReady", 3),
    ("NotifyMigrationCutoverApply", 3),
    ("KvGet", 5),
    ("KvList", 5),
    ("KvCommit", 5),
    ("AppendAuditEntry", 5),
    ("GetAuditLog", 5),
    ("PruneAuditLog", 5),
    ("RenewBundleLease", 6),
    ("PauseLeases", 6),
    ("ResumeLeases", 6),
    ("GetLeaseStatus", 6),
    ("PublishDiscoveryFleet", 4),
    ("GetClusterStatus", 5),
    ("GetClusterEvents", 5),
    ("GetDiscoveryFleet", 7),
    ("RotateDiscoveryTierSecret", 7),
    ("PublishAccessReplica", 8),
    ("AnnounceControlPlane", 8),
    ("PrefetchImages", 9),
    ("SetNodeIdleExpiry", 9),
    ("GetNodeIdleExpiry", 9),
    ("GetStoreInfo", 9),
    ("AdoptInstance", 9),
    ("ReloadExternalConfig", 9),
];

/// Every call of the interface that is served, and the minor with which it arrived.
pub fn calls() -> impl Iterator<Item = (&'static str, u32)> {
    CALLS.iter().copied()
}

/// The minor with which a call arrived (HELLO-05); none for a name that is no call.
pub fn minor_of_call(name: &str) -> Option<u32> {
    let found = calls().find(|(known, _)| *known == name);
    found.map(|(_, minor)| minor)
}

/// Reads what a client says in [`PROTOCOL_METADATA`]: its major and minor. Absent means the published 1.0
/// (HELLO-02).
pub fn read_protocol(metadata: &tonic::metadata::MetadataMap) -> Result<(u32, u32), WireError> {
    let Some(value) = metadata.get(PROTOCOL_METADATA) else {
        return Ok((1, 0));
    };
    let text = value.to_str().unwrap_or_default();
    text.split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| {
            let message = format!("is {text:?}, it must be MAJOR.MINOR, as 1.{PROTOCOL_MINOR}");
            WireError::new("bad_value", PROTOCOL_METADATA, message)
        })
}

/// The refusal that a faulty message ends its call with.
pub fn refuse(error: WireError) -> Refusal {
    let message = error.to_string();
    Refusal::new(Status::InvalidArgument, error.reason, message).with("path", error.path)
}

// === impl Request ===

impl Request {
    /// Name of the RPC.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::CreateJob(_) => "CreateJob",
            Self::UpdateJob(_) => "UpdateJob",
            Self::DeleteJob(_) => "DeleteJob",
            Self::CompleteJob(_) => "CompleteJob",
            Self::StartJob(_) => "StartJob",
            Self::StartPreparedJob(_) => "StartPreparedJob",
            Self::StopJob(_) => "StopJob",
            Self::MarkJobFailed(_) => "MarkJobFailed",
            Self::CreateBundle(_) => "CreateBundle",
            Self::UpdateBundle(_) => "UpdateBundle",
            Self::DeleteBundle(_) => "DeleteBundle",
            Self::StartBundleJob(_) => "StartBundleJob",
            Self::StopBundleJob(_) => "StopBundleJob",
            Self::SetBundleStopTime(_) => "SetBundleStopTime",
            Self::CreateAwsNode(_) => "CreateAwsNode",
            Self::CreateOciNode(_) => "CreateOciNode",
            Self::TerminateNode(_) => "TerminateNode",
            Self::UpdatePhysicalNode(_) => "UpdatePhysicalNode",
            Self::SetNodeTags(_) => "SetNodeTags",
            Self::RegisterClusterNode(_) => "RegisterClusterNode",
            Self::DeregisterClusterNode(_) => "DeregisterClusterNode",
            Self::PrefetchImages(_) => "PrefetchImages",
            Self::NotifyMigrationGetState(_) => "NotifyMigrationGetState",
            Self::NotifyMigrationCutoverReady(_) => "NotifyMigrationCutoverReady",
            Self::NotifyMigrationCutoverApply(_) => "NotifyMigrationCutoverApply",
            Self::KvCommit(_) => "KvCommit",
            Self::SetNodeIdleExpiry(_) => "SetNodeIdleExpiry",
            Self::SetClusterNodePool(_) => "SetClusterNodePool",
            Self::RotateClusterNodeToken(_) => "RotateClusterNodeToken",
            Self::AppendAuditEntry(_) => "AppendAuditEntry",
            Self::PruneAuditLog(_) => "PruneAuditLog",
            Self::AbortMigration(_) => "AbortMigration",
            Self::PublishDiscoveryFleet(_) => "PublishDiscoveryFleet",
            Self::RotateDiscoveryTierSecret(_) => "RotateDiscoveryTierSecret",
            Self::PublishAccessReplica(_) => "PublishAccessReplica",
            Self::ReloadExternalConfig(_) => "ReloadExternalConfig",
            Self::AdoptInstance(_) => "AdoptInstance",
            Self::RenewBundleLease(_) => "RenewBundleLease",
            Self::PauseLeases(_) => "PauseLeases",
            Self::ResumeLeases(_) => "ResumeLeases",
        }
    }

    /// The encoded message, without the fields that the Manager does not know: two requests that mean the same to it
    /// have the same bytes, which a repeat under one request id is held against (API-07).
    pub fn body(&self) -> Vec<u8> {
        use prost::Message;
        match self {
            Self::CreateJob(it) | Self::UpdateJob(it) => it.encode_to_vec(),
            Self::DeleteJob(it) | Self::CompleteJob(it) => it.encode_to_vec(),
            Self::StartJob(it) => it.encode_to_vec(),
            Self::StartPreparedJob(it) => it.encode_to_vec(),
            Self::StopJob(it) => it.encode_to_vec(),
            Self::MarkJobFailed(it) => it.encode_to_vec(),
            Self::CreateBundle(it) => it.encode_to_vec(),
            Self::UpdateBundle(it) => it.encode_to_vec(),
            Self::DeleteBundle(it) => it.encode_to_vec(),
            Self::StartBundleJob(it) => it.encode_to_vec(),
            Self::StopBundleJob(it) => it.encode_to_vec(),
            Self::SetBundleStopTime(it) => it.encode_to_vec(),
            Self::CreateAwsNode(it) => it.encode_to_vec(),
            Self::CreateOciNode(it) => it.encode_to_vec(),
            Self::TerminateNode(it) => it.encode_to_vec(),
            Self::UpdatePhysicalNode(it) => it.encode_to_vec(),
            Self::SetNodeTags(it) => it.encode_to_vec(),
            Self::RegisterClusterNode(it) => it.encode_to_vec(),
            Self::DeregisterClusterNode(it) => it.encode_to_vec(),
            Self::PrefetchImages(it) => it.encode_to_vec(),
            Self::NotifyMigrationGetState(it) => it.encode_to_vec(),
            Self::NotifyMigrationCutoverReady(it) => it.encode_to_vec(),
            Self::NotifyMigrationCutoverApply(it) => it.encode_to_vec(),
            Self::KvCommit(it) => it.encode_to_vec(),
            Self::SetNodeIdleExpiry(it) => it.encode_to_vec(),
            Self::SetClusterNodePool(it) => it.encode_to_vec(),
            Self::RotateClusterNodeToken(it) => it.encode_to_vec(),
            Self::AppendAuditEntry(it) => it.encode_to_vec(),
            Self::PruneAuditLog(it) => it.encode_to_vec(),
            Self::AbortMigration(it) => it.encode_to_vec(),
            Self::PublishDiscoveryFleet(it) => it.encode_to_vec(),
            Self::RotateDiscoveryTierSecret(it) => it.encode_to_vec(),
            Self::PublishAccessReplica(it) => it.encode_to_vec(),
            Self::ReloadExternalConfig(it) => it.encode_to_vec(),
            Self::AdoptInstance(it) => it.encode_to_vec(),
            Self::RenewBundleLease(it) => it.encode_to_vec(),
            Self::PauseLeases(it) => it.encode_to_vec(),
            Self::ResumeLeases(it) => it.encode_to_vec(),
        }
    }

    /// Name of the message that the RPC takes, with its package.
    const fn message(&self) -> &'static str {
        match self {
            Self::CreateJob(_) | Self::UpdateJob(_) => "norsk.api.manager.Job",
            Self::DeleteJob(_) | Self::CompleteJob(_) => "norsk.api.common.JobId",
            Self::StartJob(_) => "norsk.api.manager.StartJobRequest",
            Self::StartPreparedJob(_) => "norsk.api.manager.StartPreparedJobRequest",
            Self::StopJob(_) => "norsk.api.manager.StopJobRequest",
            Self::MarkJobFailed(_) => "norsk.api.manager.MarkJobFailedRequest",
            Self::CreateBundle(_) => "norsk.api.manager.CreateBundleRequest",
            Self::UpdateBundle(_) => "norsk.api.manager.UpdateBundleRequest",
            Self::DeleteBundle(_) => "norsk.api.manager.DeleteBundleRequest",
            Self::StartBundleJob(_) => "norsk.api.manager.StartBundleJobRequest",
            Self::StopBundleJob(_) => "norsk.api.manager.StopBundleJobRequest",
            Self::SetBundleStopTime(_) => "norsk.api.manager.SetBundleStopTimeRequest",
            Self::CreateAwsNode(_) => "norsk.api.manager.CreateAwsNodeRequest",
            Self::CreateOciNode(_) => "norsk.api.manager.CreateOciNodeRequest",
            Self::TerminateNode(_) => "norsk.api.common.NodeId",
            Self::UpdatePhysicalNode(_) => "norsk.api.manager.UpdatePhysicalNodeRequest",
            Self::SetNodeTags(_) => "norsk.api.manager.SetNodeTagsRequest",
            Self::RegisterClusterNode(_) => "norsk.api.manager.RegisterClusterNodeRequest",
            Self::DeregisterClusterNode(_) => "norsk.api.manager.DeregisterClusterNodeRequest",
            Self::PrefetchImages(_) => "norsk.api.manager.PrefetchImagesRequest",
            Self::NotifyMigrationGetState(_) => "norsk.api.manager.NotifyMigrationGetStateRequest",
            Self::NotifyMigrationCutoverReady(_) => {
                "norsk.api.manager.NotifyMigrationCutoverReadyRequest"
            }
            Self::NotifyMigrationCutoverApply(_) => {
                "norsk.api.manager.NotifyMigrationCutoverApplyRequest"
            }
            Self::KvCommit(_) => "norsk.api.manager.KvCommitRequest",
            Self::SetNodeIdleExpiry(_) => "norsk.api.manager.SetNodeIdleExpiryRequest",
            Self::SetClusterNodePool(_) => "norsk.api.manager.SetClusterNodePoolRequest",
            Self::RotateClusterNodeToken(_) => "norsk.api.manager.RotateClusterNodeTokenRequest",
            Self::AppendAuditEntry(_) => "norsk.api.manager.AppendAuditEntryRequest",
            Self::PruneAuditLog(_) => "norsk.api.manager.PruneAuditLogRequest",
            Self::AbortMigration(_) => "norsk.api.manager.AbortMigrationRequest",
            Self::PublishDiscoveryFleet(_) => "norsk.api.manager.PublishDiscoveryFleetRequest",
            Self::RotateDiscoveryTierSecret(_) => {
                "norsk.api.manager.RotateDiscoveryTierSecretRequest"
            }
            Self::PublishAccessReplica(_) => "norsk.api.manager.PublishAccessReplicaRequest",
            Self::ReloadExternalConfig(_) => "norsk.api.manager.ReloadExternalConfigRequest",
            Self::AdoptInstance(_) => "norsk.api.manager.AdoptInstanceRequest",
            Self::RenewBundleLease(_) => "norsk.api.manager.RenewBundleLeaseRequest",
            Self::PauseLeases(_) => "norsk.api.manager.PauseLeasesRequest",
            Self::ResumeLeases(_) => "norsk.api.manager.ResumeLeasesRequest",
        }
    }

    /// Checks text and values of the whole message (LIM-02, LIM-03).
    fn check(&self) -> Result<(), WireError> {
        check::check(self.message(), &self.body())
    }
}

#[cfg(test)]
mod tests;
