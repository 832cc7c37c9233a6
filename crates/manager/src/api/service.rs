//! The service itself: one short method per RPC, but for EventStream, which is served beside it
//! ([`super::routed`]). Calls that are not here answer UNIMPLEMENTED.

use greenroom_proto::common::{JobId, NodeId};
use greenroom_proto::convert::call::answer::Answer;
use greenroom_proto::convert::call::{Request as Wire, refuse};
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::manager::manager_server::Manager;
use greenroom_proto::manager::{self as pb};
use greenroom_types::call::{Call, Refusal, Reply};
use tonic::{Request, Response, Status};

use super::ManagerApi;
use super::fleet::answered;
use super::streams::Streaming;

impl ManagerApi {
    /// Passes a step of a migration on at once: it changes nothing, and its payload must stand in no
    /// log (MGR-05). None for every other call.
    fn relay(&self, call: &Call) -> Option<Result<(u64, Reply), Refusal>> {
        let (revision, relayed) = self
            .engine()
            .read_at(|ledger, revision| (revision, ledger.relay(call)));
        let (outcome, orders) = relayed?;
        if let Err(refusal) = self.engine().refuse_stopping() {
            return Some(Err(refusal));
        }
        for order in orders {
            self.0.links.order(revision, order);
        }
        Some(outcome.map(|reply| (revision, reply)))
    }

    /// Performs a mutating call: form, commit, answer.
    async fn perform<T, A: Answer>(
        &self,
        request: Request<T>,
        wire: fn(T) -> Wire,
    ) -> Result<Response<A>, Status> {
        let caller = self.caller(&request)?;
        let wire = wire(request.into_inner());
        let call = Call::try_from(wire).map_err(|error| write_refusal(&refuse(error)))?;
        answered(match self.relay(&call) {
            Some(relayed) => relayed,
            None => self.engine().call(caller, call).await,
        })
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($request:ty) -> $answer:ty = $wire:ident;)*) => {
        #[tonic::async_trait]
        impl Manager for ManagerApi {
            $($(#[$doc])*
            async fn $name(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$answer>, Status> {
                self.perform(request, Wire::$wire).await
            })*

            async fn create_status_channel(
                &self,
                _request: Request<()>,
            ) -> Result<Response<Streaming<pb::NorskStatusEvent>>, Status> {
                self.engine()
                    .refuse_stopping()
                    .map_err(|refusal| write_refusal(&refusal))?;
                Ok(Response::new(self.status_channel()))
            }

            async fn job_search(
                &self,
                request: Request<pb::JobSearchRequest>,
            ) -> Result<Response<Streaming<pb::CurrentJob>>, Status> {
                self.search(request).map(Response::new)
            }

            async fn list_nodes(
                &self,
                request: Request<pb::ListNodesRequest>,
            ) -> Result<Response<pb::ListNodesResponse>, Status> {
                self.caller(&request)?;
                self.nodes(request.get_ref()).map(Response::new)
            }

            async fn list_bundles(
                &self,
                request: Request<pb::ListBundlesRequest>,
            ) -> Result<Response<pb::ListBundlesResponse>, Status> {
                self.caller(&request)?;
                self.bundles(request.get_ref()).map(Response::new)
            }

            async fn get_bundle(
                &self,
                request: Request<pb::GetBundleRequest>,
            ) -> Result<Response<pb::GetBundleResponse>, Status> {
                self.caller(&request)?;
                self.bundle(request.into_inner()).map(Response::new)
            }

            async fn list_cluster_nodes(
                &self,
                request: Request<pb::ListClusterNodesRequest>,
            ) -> Result<Response<pb::ListClusterNodesResponse>, Status> {
                let caller = self.caller(&request)?;
                Ok(Response::new(self.slots(&caller)))
            }

            async fn get_audit_log(
                &self,
                request: Request<pb::GetAuditLogRequest>,
            ) -> Result<Response<pb::GetAuditLogResponse>, Status> {
                self.caller(&request)?;
                self.audit_log(request.into_inner()).await.map(Response::new)
            }

            async fn get_node_idle_expiry(
                &self,
                request: Request<pb::GetNodeIdleExpiryRequest>,
            ) -> Result<Response<pb::GetNodeIdleExpiryResponse>, Status> {
                self.caller(&request)?;
                self.idle_expiry(request.into_inner()).map(Response::new)
            }

            async fn pause_leases(
                &self,
                request: Request<pb::PauseLeasesRequest>,
            ) -> Result<Response<pb::PauseLeasesResponse>, Status> {
                let caller = self.caller(&request)?;
                self.pause(caller, request.into_inner()).await
            }

            async fn resume_leases(
                &self,
                request: Request<pb::ResumeLeasesRequest>,
            ) -> Result<Response<pb::ResumeLeasesResponse>, Status> {
                let caller = self.caller(&request)?;
                self.resume(caller, request.into_inner()).await
            }

            async fn get_lease_status(
                &self,
                request: Request<pb::GetLeaseStatusRequest>,
            ) -> Result<Response<pb::GetLeaseStatusResponse>, Status> {
                self.caller(&request)?;
                self.lease_status().map(Response::new)
            }

            async fn kv_get(
                &self,
                request: Request<pb::KvGetRequest>,
            ) -> Result<Response<pb::KvGetResponse>, Status> {
                let caller = self.caller(&request)?;
                self.get_key(&caller, request.get_ref()).map(Response::new)
            }

            async fn kv_list(
                &self,
                request: Request<pb::KvListRequest>,
            ) -> Result<Response<pb::KvListResponse>, Status> {
                let caller = self.caller(&request)?;
                self.list_keys(&caller, request.get_ref()).map(Response::new)
            }

            async fn get_discovery_fleet(
                &self,
                request: Request<pb::GetDiscoveryFleetRequest>,
            ) -> Result<Response<pb::GetDiscoveryFleetResponse>, Status> {
                self.caller(&request)?;
                self.discovery_fleet().map(Response::new)
            }

            async fn rotate_discovery_tier_secret(
                &self,
                request: Request<pb::RotateDiscoveryTierSecretRequest>,
            ) -> Result<Response<pb::RotateDiscoveryTierSecretResponse>, Status> {
                self.rotate(request).await
            }

            async fn publish_access_replica(
                &self,
                request: Request<pb::PublishAccessReplicaRequest>,
            ) -> Result<Response<pb::PublishAccessReplicaResponse>, Status> {
                self.publish_replica(request).await
            }

            async fn reload_external_config(
                &self,
                request: Request<pb::ReloadExternalConfigRequest>,
            ) -> Result<Response<pb::ReloadExternalConfigResponse>, Status> {
                self.reload(request).await
            }

            async fn announce_control_plane(
                &self,
                request: Request<pb::AnnounceControlPlaneRequest>,
            ) -> Result<Response<pb::AnnounceControlPlaneResponse>, Status> {
                self.announce(request).await
            }

            async fn get_cluster_status(
                &self,
                request: Request<pb::GetClusterStatusRequest>,
            ) -> Result<Response<pb::ClusterStatus>, Status> {
                self.caller(&request)?;
                self.cluster_status().map(Response::new)
            }

            async fn get_cluster_events(
                &self,
                request: Request<pb::GetClusterEventsRequest>,
            ) -> Result<Response<pb::GetClusterEventsResponse>, Status> {
                self.caller(&request)?;
                self.cluster_events(request.into_inner()).map(Response::new)
            }

            async fn force_standalone(
                &self,
                request: Request<pb::ForceStandaloneRequest>,
            ) -> Result<Response<pb::ForceStandaloneResponse>, Status> {
                self.caller(&request)?;
                Err(self.no_forcing(&request.into_inner().by))
            }

            async fn leave_quorum(
                &self,
                request: Request<pb::LeaveQuorumRequest>,
            ) -> Result<Response<()>, Status> {
                self.caller(&request)?;
                Err(self.no_leaving(&request.into_inner().by))
            }

            async fn get_store_info(
                &self,
                request: Request<pb::GetStoreInfoRequest>,
            ) -> Result<Response<pb::GetStoreInfoResponse>, Status> {
                self.caller(&request)?;
                self.store_info().map(Response::new)
            }

            async fn cluster_member_register(
                &self,
                request: Request<pb::ClusterMemberRegisterRequest>,
            ) -> Result<Response<pb::ClusterMemberRegisterResponse>, Status> {
                self.register(request).await
            }
        }
    };
}

calls! {
    create_job(pb::Job) -> pb::JobHash = CreateJob;
    update_job(pb::Job) -> pb::JobHash = UpdateJob;
    delete_job(JobId) -> () = DeleteJob;
    complete_job(JobId) -> () = CompleteJob;
    start_job(pb::StartJobRequest) -> () = StartJob;
    start_prepared_job(pb::StartPreparedJobRequest) -> () = StartPreparedJob;
    stop_job(pb::StopJobRequest) -> () = StopJob;
    mark_job_failed(pb::MarkJobFailedRequest) -> () = MarkJobFailed;
    create_bundle(pb::CreateBundleRequest) -> pb::CreateBundleResponse = CreateBundle;
    update_bundle(pb::UpdateBundleRequest) -> pb::UpdateBundleResponse = UpdateBundle;
    delete_bundle(pb::DeleteBundleRequest) -> () = DeleteBundle;
    start_bundle_job(pb::StartBundleJobRequest) -> pb::StartBundleJobResponse = StartBundleJob;
    stop_bundle_job(pb::StopBundleJobRequest) -> pb::StopBundleJobResponse = StopBundleJob;
    set_bundle_stop_time(pb::SetBundleStopTimeRequest) -> () = SetBundleStopTime;
    create_aws_node(pb::CreateAwsNodeRequest) -> () = CreateAwsNode;
    create_oci_node(pb::CreateOciNodeRequest) -> () = CreateOciNode;
    terminate_node(NodeId) -> () = TerminateNode;
    update_physical_node(pb::UpdatePhysicalNodeRequest) -> () = UpdatePhysicalNode;
    set_node_tags(pb::SetNodeTagsRequest) -> pb::SetNodeTagsResponse = SetNodeTags;
    register_cluster_node(pb::RegisterClusterNodeRequest) -> pb::RegisterClusterNodeResponse = RegisterClusterNode;
    deregister_cluster_node(pb::DeregisterClusterNodeRequest) -> pb::DeregisterClusterNodeResponse = DeregisterClusterNode;
    prefetch_images(pb::PrefetchImagesRequest) -> pb::PrefetchImagesResponse = PrefetchImages;
    notify_migration_get_state(pb::NotifyMigrationGetStateRequest) -> () = NotifyMigrationGetState;
    notify_migration_cutover_ready(pb::NotifyMigrationCutoverReadyRequest) -> () = NotifyMigrationCutoverReady;
    notify_migration_cutover_apply(pb::NotifyMigrationCutoverApplyRequest) -> () = NotifyMigrationCutoverApply;
    kv_commit(pb::KvCommitRequest) -> pb::KvCommitResponse = KvCommit;
    set_node_idle_expiry(pb::SetNodeIdleExpiryRequest) -> () = SetNodeIdleExpiry;
    set_cluster_node_pool(pb::SetClusterNodePoolRequest) -> pb::SetClusterNodePoolResponse = SetClusterNodePool;
    rotate_cluster_node_token(pb::RotateClusterNodeTokenRequest) -> pb::RotateClusterNodeTokenResponse = RotateClusterNodeToken;
    append_audit_entry(pb::AppendAuditEntryRequest) -> pb::AppendAuditEntryResponse = AppendAuditEntry;
    prune_audit_log(pb::PruneAuditLogRequest) -> pb::PruneAuditLogResponse = PruneAuditLog;
    publish_discovery_fleet(pb::PublishDiscoveryFleetRequest) -> pb::PublishDiscoveryFleetResponse = PublishDiscoveryFleet;
    adopt_instance(pb::AdoptInstanceRequest) -> () = AdoptInstance;
    renew_bundle_lease(pb::RenewBundleLeaseRequest) -> pb::RenewBundleLeaseResponse = RenewBundleLease;
    abort_migration(pb::AbortMigrationRequest) -> pb::AbortMigrationResponse = AbortMigration;
}
