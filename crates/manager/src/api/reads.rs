//! Lists and look-ups.

use greenroom_auth::Role;
use greenroom_proto::convert::WireError;
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::manager::{
    GetBundleRequest, GetBundleResponse, GetNodeIdleExpiryRequest, GetNodeIdleExpiryResponse,
    ListBundlesRequest, ListBundlesResponse, ListClusterNodesResponse, ListNodesRequest,
    ListNodesResponse,
};
use greenroom_types::call::{Refusal, Status};
use greenroom_types::job::HIDDEN;
use greenroom_types::{BundleId, Millis, NodeId};

use super::ManagerApi;
use crate::engine::Caller;

impl ManagerApi {
    pub(super) fn nodes(
        &self,
        request: &ListNodesRequest,
    ) -> Result<ListNodesResponse, tonic::Status> {
        let all = || {
            self.engine().read(|ledger| {
                ledger
                    .nodes()
                    .filter_map(|node| ledger.node_info(&node.metadata.node_id))
                    .collect()
            })
        };
        let (nodes, next_page_token) = self
            .0
            .node_pages
            .page(request.page_size, &request.page_token, all)
            .map_err(|refusal| write_refusal(&refusal))?;
        Ok(ListNodesResponse {
            nodes: nodes.iter().map(Into::into).collect(),
            next_page_token,
        })
    }

    pub(super) fn bundles(
        &self,
        request: &ListBundlesRequest,
    ) -> Result<ListBundlesResponse, tonic::Status> {
        let all = || self.engine().read(|ledger| ledger.bundles().collect());
        let (bundles, next_page_token) = self
            .0
            .bundle_pages
            .page(request.page_size, &request.page_token, all)
            .map_err(|refusal| write_refusal(&refusal))?;
        Ok(ListBundlesResponse {
            bundles: bundles.iter().map(Into::into).collect(),
            next_page_token,
        })
    }

    pub(super) fn bundle(
        &self,
        request: GetBundleRequest,
    ) -> Result<GetBundleResponse, tonic::Status> {
        if request.bundle_id.is_empty() {
            return Err(WireError::missing("bundle_id").into());
        }
        let bundle_id = BundleId::new(request.bundle_id);
        let found = self
            .engine()
            .read(|ledger| ledger.bundle(&bundle_id))
            .ok_or_else(|| {
                write_refusal(&Refusal::new(
                    Status::NotFound,
                    "unknown_bundle",
                    format!("there is no bundle {bundle_id:?}; ListBundles tells which there are"),
                ))
            })?;
        Ok(GetBundleResponse {
            status: Some((&found).into()),
        })
    }

    pub(super) fn idle_expiry(
        &self,
        request: GetNodeIdleExpiryRequest,
    ) -> Result<GetNodeIdleExpiryResponse, tonic::Status> {
        let node_id = NodeId::new(request.node_id.unwrap_or_default().node_id);
        if node_id.is_empty() {
            return Err(WireError::missing("node_id").into());
        }
        let millis = |expiry: Option<Millis>| expiry.map_or(0, |expiry| expiry.0);
        self.engine()
            .read(|ledger| {
                let node = ledger.node(&node_id)?;
                Some(GetNodeIdleExpiryResponse {
                    idle_expiry_ms: millis(node.idle_expiry_ms),
                    effective_idle_expiry_ms: millis(ledger.idle_expiry(node)),
                })
            })
            .ok_or_else(|| {
                write_refusal(&Refusal::new(
                    Status::NotFound,
                    "unknown_node",
                    format!("there is no node {node_id:?}; ListNodes tells which there are"),
                ))
            })
    }

    /// The slots; their tokens are for those who may hand them out (LOCAL-04).
    pub(super) fn slots(&self, caller: &Caller) -> ListClusterNodesResponse {
        let mut slots: Vec<_> = self.engine().read(|ledger| ledger.slots().collect());
        let vault = self.engine().vault();
        let may_see = caller.role.covers(Role::Operator);
        for slot in &mut slots {
            let opened = may_see.then(|| vault.open_token(&slot.token)).flatten();
            slot.token = opened.map_or_else(|| HIDDEN.to_owned(), |it| it.expose().to_owned());
        }
        ListClusterNodesResponse {
            nodes: slots.iter().map(Into::into).collect(),
        }
    }
}
