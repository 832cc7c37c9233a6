//! The calls that only read. They are tried again up to five times (SDK-05) and come back whole: pages
//! are fetched and joined here.

use greenroom_proto::convert::WireError;
use greenroom_proto::convert::call::{FoundJob, JobSearch};
use greenroom_proto::manager;
use greenroom_types::BundleId;
use greenroom_types::bundle::BundleStatus;
use greenroom_types::call::ClusterNode;
use greenroom_types::job::JobWithHistory;
use greenroom_types::node::NodeInfo;
use tokio::time::Instant;

use crate::client::{Client, Tries};
use crate::error::Error;
use crate::link::RawClient;

/// How often a list is begun anew because its revision is no longer held (API-23).
const LISTS_BEGUN_MAX: u32 = 4;

impl Client {
    /// Performs a reading call with its repeats (SDK-05).
    pub(crate) async fn read<M, T, F, Fut>(
        &self,
        method: &'static str,
        message: M,
        send: F,
    ) -> Result<T, Error>
    where
        M: Clone,
        F: Fn(RawClient, tonic::Request<M>) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        self.inner
            .perform(self.reading(method), message, send)
            .await
    }

    /// Every node in any state, by node id (API-12).
    ///
    /// # Errors
    /// As for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// for node in client.list_nodes().await? {
    ///     println!("{} {:?} {}", node.metadata.node_id, node.state, node.reason);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list_nodes(&self) -> Result<Vec<NodeInfo>, Error> {
        const METHOD: &str = "ListNodes";
        let page = |page_token: String| async move {
            let request = manager::ListNodesRequest {
                page_size: 0,
                page_token,
            };
            let answer = self
                .read(METHOD, request, |mut raw, request| async move {
                    raw.list_nodes(request).await
                })
                .await?;
            Ok((answer.nodes, answer.next_page_token))
        };
        read_all(METHOD, "nodes", pages(page).await?)
    }

    /// Every bundle in any state, with its runtime jobs (BDL-21).
    ///
    /// # Errors
    /// As for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// for status in client.list_bundles().await? {
    ///     println!("{} revision {}", status.bundle.bundle_id, status.bundle.revision);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list_bundles(&self) -> Result<Vec<BundleStatus>, Error> {
        const METHOD: &str = "ListBundles";
        let page = |page_token: String| async move {
            let request = manager::ListBundlesRequest {
                page_size: 0,
                page_token,
            };
            let answer = self
                .read(METHOD, request, |mut raw, request| async move {
                    raw.list_bundles(request).await
                })
                .await?;
            Ok((answer.bundles, answer.next_page_token))
        };
        read_all(METHOD, "bundles", pages(page).await?)
    }

    /// One bundle (BDL-21).
    ///
    /// # Errors
    /// [`Error::NotFound`] `unknown_bundle`, and as for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let status = client.get_bundle("chan-1").await?;
    /// println!("{} jobs", status.jobs.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_bundle(&self, bundle_id: impl Into<BundleId>) -> Result<BundleStatus, Error> {
        const METHOD: &str = "GetBundle";
        let request = manager::GetBundleRequest {
            bundle_id: bundle_id.into().to_string(),
        };
        let answer = self
            .read(METHOD, request, |mut raw, request| async move {
                raw.get_bundle(request).await
            })
            .await?;
        let status = answer.status.ok_or_else(|| WireError::missing("status"));
        status
            .and_then(|status| {
                status
                    .try_into()
                    .map_err(|error: WireError| error.under("status"))
            })
            .map_err(|error| bad_answer(METHOD, error))
    }

    /// The slots for owned servers; tokens are `***` for viewers (LOCAL-04).
    ///
    /// # Errors
    /// As for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// for slot in client.list_cluster_nodes().await? {
    ///     println!("{} {}", slot.node_name, if slot.active { slot.address } else { "-".into() });
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list_cluster_nodes(&self) -> Result<Vec<ClusterNode>, Error> {
        const METHOD: &str = "ListClusterNodes";
        let request = manager::ListClusterNodesRequest {};
        let answer = self
            .read(METHOD, request, |mut raw, request| async move {
                raw.list_cluster_nodes(request).await
            })
            .await?;
        read_all(METHOD, "nodes", answer.nodes)
    }

    /// The jobs that all filters match, by job id, from one consistent revision (JOB-28, SDK-09).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] `bad_regex`, and as for any reading call.
    ///
    /// ```no_run
    /// use greenroom_sdk::{JobFilter, JobSearch, TagMatch};
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let of_bundle = JobFilter::Tag {
    ///     name: "bundleId".to_owned(),
    ///     is: TagMatch::Is("chan-1".to_owned()),
    /// };
    /// let search = JobSearch { filters: vec![of_bundle], include_history: true };
    /// for found in client.job_search(search).await? {
    ///     println!("{}: {} instances", found.job.job.job_id, found.instances.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn job_search(&self, search: JobSearch) -> Result<Vec<FoundJob>, Error> {
        const METHOD: &str = "JobSearch";
        let request = manager::JobSearchRequest::from(&search);
        let found = self
            .read(METHOD, request, |mut raw, request| async move {
                let mut jobs = Vec::new();
                let mut stream = raw.job_search(request).await?.into_inner();
                while let Some(job) = stream.message().await? {
                    jobs.push(job);
                }
                Ok(tonic::Response::new(jobs))
            })
            .await?;
        read_all(METHOD, "jobs", found)
    }

    /// One job with its instances, or none (SDK-09).
    ///
    /// # Errors
    /// As for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// match client.job_by_id("chan-1.0.encode").await? {
    ///     Some(found) => println!("{:?}", found.job.state),
    ///     None => println!("no such job"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn job_by_id(&self, job_id: impl Into<String>) -> Result<Option<FoundJob>, Error> {
        let mut found = self.job_search(JobSearch::by_id(job_id)).await?;
        Ok(found.pop())
    }

    /// One job with its history, or none.
    ///
    /// # Errors
    /// As for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// if let Some(job) = client.job_history("chan-1.0.encode").await? {
    ///     for entry in &job.history {
    ///         println!("{} {:?}", entry.at, entry.kind);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn job_history(
        &self,
        job_id: impl Into<String>,
    ) -> Result<Option<JobWithHistory>, Error> {
        let search = JobSearch {
            include_history: true,
            ..JobSearch::by_id(job_id)
        };
        Ok(self.job_search(search).await?.pop().map(|found| found.job))
    }

    /// Tries of a reading call.
    pub(crate) fn reading(&self, method: &'static str) -> Tries {
        Tries {
            method,
            request_id: None,
            deadline: Instant::now() + self.inner.settings.call_timeout,
            stop: self.stop.clone(),
        }
    }
}

/// Fetches page after page. A list whose revision went away in the middle is begun anew, since its parts would not
/// belong together.
pub(crate) async fn pages<W, F, Fut>(page: F) -> Result<Vec<W>, Error>
where
    F: Fn(String) -> Fut,
    Fut: Future<Output = Result<(Vec<W>, String), Error>>,
{
    let mut begun = 1;
    let mut all = Vec::new();
    let mut token = String::new();
    loop {
        match page(token).await {
            Ok((more, next)) => {
                all.extend(more);
                if next.is_empty() {
                    return Ok(all);
                }
                token = next;
            }
            Err(error) if error.reason() == "page_expired" && begun < LISTS_BEGUN_MAX => {
                begun += 1;
                all.clear();
                token = String::new();
            }
            Err(error) => return Err(error),
        }
    }
}

pub(crate) fn read_all<W, T>(
    method: &'static str,
    field: &str,
    messages: Vec<W>,
) -> Result<Vec<T>, Error>
where
    T: TryFrom<W, Error = WireError>,
{
    messages
        .into_iter()
        .enumerate()
        .map(|(at, message)| T::try_from(message).map_err(|error| error.under_element(field, at)))
        .collect::<Result<_, _>>()
        .map_err(|error| bad_answer(method, error))
}

/// An answer that the protocol does not allow (SDK-12).
pub(crate) fn bad_answer(method: &'static str, error: WireError) -> Error {
    Error::Protocol {
        method,
        field: error.path,
        problem: error.message,
    }
}
