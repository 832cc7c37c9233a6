//! One worker with the process runtime and the Manager that it talks to.

use std::path::Path;

use super::{FakeManager, Stream, WorkerProcess};

pub(crate) struct Scene {
    pub(crate) manager: FakeManager,
    pub(crate) worker: WorkerProcess,
    pub(crate) stream: Stream,
    /// Last, so that it is there while everything else ends.
    pub(crate) dir: tempfile::TempDir,
}

pub(crate) async fn scene() -> Scene {
    scene_in("state").await
}

/// Its state is kept in a folder of this name.
pub(crate) async fn scene_in(state: &str) -> Scene {
    let spawn = |dir: &Path, manager: &FakeManager| {
        WorkerProcess::spawn(&dir.join(state), manager, "process", "2")
    };
    scene_with(tempfile::tempdir().unwrap(), spawn).await
}

/// The worker is started by the caller.
pub(crate) async fn scene_with(
    dir: tempfile::TempDir,
    spawn: impl FnOnce(&Path, &FakeManager) -> WorkerProcess,
) -> Scene {
    let mut manager = FakeManager::start().await;
    let worker = spawn(dir.path(), &manager);
    let stream = manager.meet(1, 0).await;
    Scene {
        manager,
        worker,
        stream,
        dir,
    }
}
