//! Regular backups (STORE-05).

use std::time::Duration;

use greenroom_store::Room;

use crate::engine::Engine;

/// Makes a backup each time `every` has passed, until the Manager ends. One that fails is told and
/// made anew at the next turn: the Manager serves on without.
pub(crate) async fn regularly(engine: Engine, every: Duration) {
    let mut stopping = engine.stopping();
    loop {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        // A copy would take the room that is kept for stops and deletes (STORE-09).
        if engine.store().room() == Room::Low {
            tracing::warn!("the disk is nearly full: this backup is left out");
            continue;
        }
        match engine.store().backup_now().await {
            Ok(made) => tracing::info!(
                path = %made.path.display(),
                revision = made.revision,
                bytes = made.bytes,
                "backup made"
            ),
            Err(error) => tracing::error!(%error, "a regular backup could not be made"),
        }
    }
}
