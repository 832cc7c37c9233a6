//! A test server for users of the SDK: a real Manager on a free port, and mock nodes (SDK-14).

use std::sync::Mutex;

use greenroom_sdk::types::node::NodeState;
use greenroom_sdk::types::{NodeId, Tags};
use greenroom_sdk::{Client, EditTags, Error, Refused};

use crate::manager::TestManager;
use crate::worker::FakeWorker;

/// So many mock nodes a server has, unless it is told another number.
const POOL: usize = 8;

/// A Manager in this process that behaves as in production, with its own folder, which goes with it;
/// and a number of mock nodes whose workers take every order and run nothing.
///
/// ```
/// # let runtime = tokio::runtime::Runtime::new().unwrap();
/// # runtime.block_on(async {
/// use greenroom_sdk::types::job::JobState;
/// use greenroom_testkit::{TestServer, job, start};
///
/// let server = TestServer::start().await;
/// server.create_mock_node("studio-1", [("rack".to_owned(), "7".to_owned())]).await?;
///
/// let client = server.client().await;
/// client.create_job(job("news")).await?;
/// client.start_job(start("news", "studio-1")).await?;
/// let news = client.job_history("news").await?.expect("it was created");
/// assert_eq!(news.state, JobState::Active);
/// # Ok::<(), greenroom_sdk::Error>(())
/// # }).unwrap();
/// ```
pub struct TestServer {
    manager: TestManager,
    /// Mock workers that are left.
    left: Mutex<usize>,
    workers: Mutex<Vec<FakeWorker>>,
}

// === impl TestServer ===

impl TestServer {
    /// A server with 8 mock nodes to be made.
    pub async fn start() -> Self {
        Self::with_mock_nodes(POOL).await
    }

    /// A server with another number of them.
    pub async fn with_mock_nodes(count: usize) -> Self {
        Self::around(TestManager::start().await, count)
    }

    /// A server around a Manager with settings of the test's choice.
    pub const fn around(manager: TestManager, mock_nodes: usize) -> Self {
        Self {
            manager,
            left: Mutex::new(mock_nodes),
            workers: Mutex::new(Vec::new()),
        }
    }

    /// Where clients reach it.
    pub fn url(&self) -> String {
        self.manager.url()
    }

    /// A client on a connection of its own.
    pub async fn client(&self) -> Client {
        self.manager.client().await
    }

    /// The Manager.
    pub const fn manager(&self) -> &TestManager {
        &self.manager
    }

    /// The Manager, to be ended, killed and started again.
    pub const fn manager_mut(&mut self) -> &mut TestManager {
        &mut self.manager
    }

    /// Makes a node of that id, which runs once this is answered.
    ///
    /// # Errors
    /// [`Error::ResourceExhausted`] `mock_pool_empty` when all mock nodes are made; and what the Manager
    /// refuses, as a name that is taken.
    pub async fn create_mock_node(
        &self,
        node_id: impl Into<NodeId>,
        tags: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), Error> {
        self.take_one()?;
        let node_id = node_id.into();
        let client = self.client().await;
        let slot = match client.register_cluster_node(node_id.as_str(), "").await {
            Ok(slot) => slot,
            Err(error) => {
                self.give_back();
                return Err(error);
            }
        };
        let worker = FakeWorker::with_token(slot.token, &format!("machine of {node_id}")).await;
        worker
            .call_in(&client)
            .await
            .expect("a token that was just made opens its slot");
        worker.wait_greeted(1).await;
        lock(&self.workers).push(worker);
        let set: Tags = tags.into_iter().collect();
        if !set.is_empty() {
            let edit = EditTags {
                set,
                ..EditTags::default()
            };
            client.set_node_tags(node_id.clone(), edit).await?;
        }
        let nodes = client.list_nodes().await?;
        let runs = nodes
            .iter()
            .any(|node| node.metadata.node_id == node_id && node.state == NodeState::Running);
        assert!(runs, "a node whose hello was answered runs");
        Ok(())
    }

    fn take_one(&self) -> Result<(), Error> {
        let mut left = lock(&self.left);
        let Some(rest) = left.checked_sub(1) else {
            return Err(Error::ResourceExhausted(Refused {
                method: "CreateMockNode",
                reason: "mock_pool_empty".to_owned(),
                message: "all mock nodes of this server are made: start it with more".to_owned(),
                details: Default::default(),
            }));
        };
        *left = rest;
        Ok(())
    }

    fn give_back(&self) {
        *lock(&self.left) += 1;
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
