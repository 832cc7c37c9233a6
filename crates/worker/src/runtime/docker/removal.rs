//! Taking away everything that was made for one instance: containers, networks, volumes of its own.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{
    ListContainersOptions, ListNetworksOptions, ListVolumesOptions, RemoveContainerOptions,
    RemoveVolumeOptions,
};
use greenroom_types::StartId;

use super::{error, gone};
use crate::runtime::RuntimeError;

/// For so long after its start a worker looks again for what it removed: an engine that is slow
/// finishes what the worker before it asked for, though nobody waits for it any more.
pub(super) const EARLY: Duration = Duration::from_secs(120);
/// The pauses before it looks again.
const AGAIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// What the engine is asked for: everything with the marks of one instance.
type Filter = HashMap<String, Vec<String>>;

/// Takes all of it away, also what runs.
pub(super) async fn remove(docker: &Docker, filter: &Filter) -> Result<(), RuntimeError> {
    let options = ListContainersOptions {
        all: true,
        filters: Some(filter.clone()),
        ..ListContainersOptions::default()
    };
    let containers = docker.list_containers(Some(options)).await;
    for id in containers
        .map_err(error)?
        .into_iter()
        .filter_map(|it| it.id)
    {
        let options = RemoveContainerOptions {
            force: true,
            v: true,
            link: false,
        };
        gone(docker.remove_container(&id, Some(options)).await)?;
    }
    let options = ListNetworksOptions {
        filters: Some(filter.clone()),
    };
    let networks = docker.list_networks(Some(options)).await;
    for id in networks.map_err(error)?.into_iter().filter_map(|it| it.id) {
        gone(docker.remove_network(&id).await)?;
    }
    // Only volumes of this one instance carry its start id.
    let options = ListVolumesOptions {
        filters: Some(filter.clone()),
    };
    let volumes = docker.list_volumes(Some(options)).await.map_err(error)?;
    for volume in volumes.volumes.unwrap_or_default() {
        let removed = docker.remove_volume(&volume.name, None::<RemoveVolumeOptions>);
        gone(removed.await)?;
    }
    Ok(())
}

/// Looks again, for what comes late. Its start id is never used again, so nothing else is hit.
pub(super) async fn remove_again(docker: Docker, filter: Filter, start_id: StartId) {
    for pause in AGAIN {
        tokio::time::sleep(pause).await;
        if let Err(problem) = remove(&docker, &filter).await {
            tracing::warn!(%start_id, %problem, "what a removed instance may have left was not looked for");
        }
    }
}
