//! Reading the key/value store (KV-01). Writing is an ordinary call.

use greenroom_ledger::KvSpace;
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::manager::{KvGetRequest, KvGetResponse, KvListRequest, KvListResponse};
use greenroom_types::call::{Refusal, Status};
use greenroom_types::kv::KvEntry;

use super::ManagerApi;
use crate::engine::Caller;

/// An entry with the schema version of the state it was read from, so that all pages of one listing
/// tell the same one.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    entry: KvEntry,
    schema_version: u64,
}

// === impl Listed ===

impl Listed {
    /// What it adds to a page.
    pub(super) fn bytes(&self) -> usize {
        self.entry.key.len() + self.entry.value.len()
    }
}

// === impl ManagerApi ===

impl ManagerApi {
    pub(super) fn get_key(
        &self,
        caller: &Caller,
        request: &KvGetRequest,
    ) -> Result<KvGetResponse, tonic::Status> {
        self.open_namespace(caller, &request.namespace)?;
        if request.key.is_empty() {
            let refusal = Refusal::new(Status::InvalidArgument, "bad_kv", "key is empty");
            return Err(write_refusal(&refusal.with("path", "key")));
        }
        let entry = self.engine().read(|ledger| {
            let space = ledger.kv_space(&request.namespace)?;
            Ok(space.and_then(|space| space.get(&request.key)))
        });
        let entry = entry.map_err(|refusal: Refusal| write_refusal(&refusal))?;
        Ok(KvGetResponse {
            entry: entry.as_ref().map(Into::into),
        })
    }

    pub(super) fn list_keys(
        &self,
        caller: &Caller,
        request: &KvListRequest,
    ) -> Result<KvListResponse, tonic::Status> {
        self.open_namespace(caller, &request.namespace)?;
        let (found, schema_version) = self
            .engine()
            .read(|ledger| {
                let space = ledger.kv_space(&request.namespace)?;
                let schema_version = space.map_or(0, KvSpace::schema_version);
                let entries = match space {
                    // A later page is cut from what is held.
                    Some(space) if request.page_token.is_empty() => {
                        space.list(&request.key_prefix).collect()
                    }
                    _ => Vec::new(),
                };
                Ok((entries, schema_version))
            })
            .map_err(|refusal: Refusal| write_refusal(&refusal))?;
        let all = || {
            let listed = |entry| Listed {
                entry,
                schema_version,
            };
            found.into_iter().map(listed).collect()
        };
        let (listed, next_page_token) = self
            .0
            .kv_pages
            .page(request.page_size, &request.page_token, all)
            .map_err(|refusal| write_refusal(&refusal))?;
        Ok(KvListResponse {
            schema_version: listed
                .first()
                .map_or(schema_version, |it| it.schema_version),
            entries: listed.iter().map(|it| (&it.entry).into()).collect(),
            next_page_token,
        })
    }

    fn open_namespace(&self, caller: &Caller, namespace: &str) -> Result<(), tonic::Status> {
        let opened = self.engine().refuse_namespace(caller, namespace);
        opened.map_err(|refusal| write_refusal(&refusal))
    }
}
