//! Starting an instance (LIFE-01) and the handle that settles when it is over.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use greenroom_policy::acts::Acts;
use greenroom_policy::event::ConnectionState;
use greenroom_policy::{Event, IdSource, Policy, Settings as PolicySettings};
use greenroom_sdk::{Client, Settings as SdkSettings};
use tokio::sync::watch;

use crate::acts::{self, Keeper};
use crate::driver::{Driver, Parts};
use crate::error::{EndError, RunError};
use crate::handle::AutoManager;
use crate::line::{ManagerLine, feed_events, feed_states};
use crate::seat::NAMESPACE;
use crate::settings::Settings;

/// How an instance ended: closed on request, or by itself.
pub(crate) type End = Result<(), EndError>;

/// Settles when the loop of an instance has ended (LIFE-02, LIFE-07): with `Ok` after a close, with
/// the error when the Manager's stream ended by itself. Dropping it changes nothing.
pub struct RunHandle {
    end: Pin<Box<dyn Future<Output = End> + Send>>,
}

// === impl RunHandle ===

impl RunHandle {
    pub(crate) fn new(ended: watch::Receiver<Option<End>>) -> Self {
        Self {
            end: Box::pin(settled(ended)),
        }
    }
}

impl Future for RunHandle {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<End> {
        self.end.as_mut().poll(context)
    }
}

impl std::fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunHandle").finish_non_exhaustive()
    }
}

/// Waits for the end. A loop that broke drops its side without saying how it ended.
pub(crate) async fn settled(mut ended: watch::Receiver<Option<End>>) -> End {
    match ended.wait_for(Option::is_some).await {
        Ok(end) => end.clone().unwrap_or(Err(EndError::Broken)),
        Err(_) => Err(EndError::Broken),
    }
}

// === impl AutoManager ===

impl AutoManager {
    /// Checks the settings, connects, and starts the instance (LIFE-01). It hydrates after this
    /// returns; acting calls made before wait for that, and [`AutoManager::live`] tells when.
    ///
    /// # Errors
    /// [`RunError::Settings`] with all faults before anything is connected, [`RunError::Aborted`],
    /// [`RunError::Connect`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use greenroom_auto::{AutoManager, Settings};
    /// let tree = serde_json::json!({ "url": "127.0.0.1:6789" });
    /// let (instance, ended) = AutoManager::run(Settings::new(tree)).await?;
    /// instance.live().await;
    /// println!("{} nodes", instance.nodes().len());
    /// ended.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run(settings: Settings) -> Result<(Self, RunHandle), RunError> {
        let checked = PolicySettings::parse(&settings.tree)?;
        if settings.signal.is_cancelled() {
            return Err(RunError::Aborted);
        }
        let seed = match settings.seed {
            Some(seed) => seed,
            None => getrandom::u64().map_err(RunError::Randomness)?,
        };
        let fresh = format!("{:016x}", getrandom::u64().map_err(RunError::Randomness)?);
        let url = checked.url.clone();
        let mut connection = SdkSettings::new([address(&url)]);
        connection.access = settings.access;
        let window_s = checked.pending_window_sent_s();
        let seated = settings.gate.is_some();
        let policy = Policy::new(checked, settings.clock.now(), IdSource::seeded(seed));
        let (mut driver, instance, ended) = Driver::new(Parts {
            policy: if settings.traces {
                policy
            } else {
                policy.without_traces()
            },
            line: ManagerLine {
                client: None,
                gate: settings.gate,
            },
            callbacks: settings.callbacks,
            clock: settings.clock,
            signal: settings.signal.child_token(),
            settings: settings.tree.clone(),
        });
        driver.begin(&instance);
        driver.step(Event::ConnectionState(ConnectionState::Connecting));

        let connected = tokio::select! {
            biased;
            () = settings.signal.cancelled() => Err(RunError::Aborted),
            begun = begin(connection, url) => begun,
        };
        let (client, found) = match connected {
            Ok(begun) => begun,
            Err(error) => {
                driver.abandon(&error);
                return Err(error);
            }
        };
        let Found { acts, revision, by } = found;
        let handed_on = lock(&settings.unkept).take();
        let me = handed_on.as_ref().map_or(fresh, |unkept| unkept.by.clone());
        driver.keeper = Keeper::new(me, acts.clone(), revision, seated).after(handed_on.clone());
        driver.unkept = Arc::clone(&settings.unkept);
        let acts = match handed_on {
            Some(unkept) => unkept.over(acts, revision, &by),
            None => acts,
        };
        tell_of(&acts);
        driver.step(Event::Acts(Box::new(acts)));
        let inputs = driver.sender();
        driver
            .feeds
            .spawn(feed_states(client.states(), inputs.clone()));
        driver
            .feeds
            .spawn(feed_events(client.clone(), window_s, inputs));
        driver.line.client = Some(client);
        tokio::spawn(driver.run());
        Ok((instance, RunHandle::new(ended)))
    }
}

/// What stands in it; one that broke while it held the lock left it whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What operators decided before (ACTS-03), as it stands at the Manager.
#[derive(Default)]
struct Found {
    acts: Acts,
    revision: u64,
    /// Who wrote it.
    by: String,
}

/// Connects, and reads what operators decided before.
async fn begin(connection: SdkSettings, url: String) -> Result<(Client, Found), RunError> {
    let failed = |source| RunError::Connect {
        url: url.clone(),
        source: Box::new(source),
    };
    let client = Client::connect(connection).await.map_err(failed)?;
    let entry = client.kv_get(NAMESPACE, acts::KEY).await.map_err(failed)?;
    let Some(entry) = entry else {
        return Ok((client, Found::default()));
    };
    let acts = acts::read(&entry.value).map_err(|why| RunError::Acts { why })?;
    let found = Found {
        acts,
        revision: entry.revision,
        by: acts::writer(&entry.value),
    };
    Ok((client, found))
}

/// An operator who reads the settings must be able to see why they do not count.
fn tell_of(acts: &Acts) {
    if !acts.nodes.is_empty() {
        tracing::info!(
            nodes = acts.nodes.len(),
            "cordons and drains of before hold on"
        );
    }
    if acts.hot_spares.is_some() {
        tracing::warn!(
            "`greenroom spares set` was used: that list counts, and not hotSpares of the settings, until \
             it is set to the same list again"
        );
    }
    for template in acts.templates.keys() {
        tracing::warn!(
            template = template.as_str(),
            "`greenroom templates set` was used: its images count, and not those of the settings, until \
             they are set to the same again"
        );
    }
}

/// The `url` setting is `host:port` (CONF-02); the SDK wants a url.
pub(crate) fn address(url: &str) -> String {
    if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    }
}
