//! Which engine a worker uses: what its settings say, or what it finds at its first start.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::docker::{DockerRuntime, Unreachable};
use super::guard::Guard;
use super::process::ProcessRuntime;
use super::{News, SharedRuntime};
use crate::Identities;
use crate::config::{Config, Error, RuntimeChoice};
use crate::logs::LogStore;

/// Keeps which engine `RuntimeChoice::Auto` found.
const RUNTIME_FILE: &str = "runtime";

/// The engine of the settings. A choice made once for `Auto` stays, so that a worker whose engine is
/// away for a moment does not forget what it runs there.
pub(crate) async fn choose(
    config: &Config,
    logs: &LogStore,
    identities: &Identities,
    news: &News,
    arrived: Arc<Notify>,
    guard: Option<Guard>,
) -> Result<SharedRuntime, Error> {
    let docker = async |host: Option<String>| {
        let dir = config.state_dir.clone();
        let (logs, news, identities) = (logs.clone(), news.clone(), identities.clone());
        let arrived = arrived.clone();
        let runtime =
            DockerRuntime::connect(host, dir, logs, config.logs, news, identities, arrived).await?;
        Ok(runtime
            .guarded(guard)
            .trying_for(Duration::from_millis(config.pull_tries.0)))
    };
    let refused = |why: Unreachable| Error::Docker {
        host: why.host().to_owned(),
        why: why.to_string(),
    };
    let state = |source| Error::State {
        path: config.state_dir.clone(),
        source,
    };
    let kept = config.state_dir.join(RUNTIME_FILE);
    let before = std::fs::read_to_string(&kept).unwrap_or_default();
    let wanted = match &config.runtime {
        RuntimeChoice::Auto if before == "docker" => RuntimeChoice::Docker(None),
        RuntimeChoice::Auto if before == "process" => RuntimeChoice::Process,
        other => other.clone(),
    };
    match wanted {
        RuntimeChoice::Docker(host) => return Ok(Arc::new(docker(host).await.map_err(refused)?)),
        RuntimeChoice::Auto => {
            let found = docker(None).await;
            let name = if found.is_ok() { "docker" } else { "process" };
            std::fs::write(&kept, name).map_err(state)?;
            match found {
                Ok(runtime) => return Ok(Arc::new(runtime)),
                Err(why @ Unreachable::NotPermitted { .. }) => tracing::warn!(
                    socket = why.host(),
                    "there is a Docker engine and this user may not open its socket, so jobs run as \
                     processes, now and after a restart; to use Docker, make the user a member of the \
                     group that owns the socket and start the worker with the runtime set to docker"
                ),
                Err(why) => tracing::info!(
                    host = why.host(),
                    "no Docker engine answers ({why}), so jobs run as processes"
                ),
            }
        }
        RuntimeChoice::Process => {}
    }
    let supervisor = if config.supervisor.is_empty() {
        let own = std::env::current_exe().map_err(|source| Error::State {
            path: config.state_dir.clone(),
            source,
        })?;
        vec![own.into_os_string(), OsString::from("supervise")]
    } else {
        config.supervisor.clone()
    };
    let state_dir = config.state_dir.clone();
    Ok(Arc::new(ProcessRuntime::new(
        state_dir,
        logs.clone(),
        supervisor,
        news.clone(),
    )))
}
