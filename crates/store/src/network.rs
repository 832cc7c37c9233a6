//! The way to other members: there are none yet.
//!
//! A store with one voter never calls these. They answer "unreachable", which is
//! what the consensus expects of a member that cannot be reached, so a membership
//! with more voters would simply have no quorum.

use std::future::Future;

use openraft::RaftNetworkFactory;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::network::v2::RaftNetworkV2;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};

use crate::raft::{Peer, Snapshot, Types, Vote};
use crate::state::SnapshotFile;

pub(crate) struct NoPeers;

pub(crate) struct NoPeer {
    target: u64,
}

impl NoPeer {
    fn unreachable(&self) -> Unreachable<Types> {
        Unreachable::from_string(format!("member {} has no connection", self.target))
    }
}

impl RaftNetworkFactory<Types> for NoPeers {
    type Network = NoPeer;

    async fn new_client(&mut self, target: u64, _node: &Peer) -> NoPeer {
        NoPeer { target }
    }
}

impl RaftNetworkV2<Types> for NoPeer {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(StreamingError::Unreachable(self.unreachable()))
    }
}
