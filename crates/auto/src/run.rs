//! Starting an instance (LIFE-01) and the handle that settles when it is over.

use std::pin::Pin;
use std::task::{Context, Poll};

use greenroom_policy::event::ConnectionState;
use greenroom_policy::{Event, IdSource, Policy, Settings as PolicySettings};
use greenroom_sdk::{Client, Settings as SdkSettings};
use tokio::sync::watch;

use crate::driver::{Driver, Parts};
use crate::error::{EndError, RunError};
use crate::handle::AutoManager;
use crate::line::{ManagerLine, feed_events, feed_states};
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
        let url = checked.url.clone();
        let mut connection = SdkSettings::new([address(&url)]);
        connection.access = settings.access;
        let window_s = checked.pending_window_sent_s();
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
            client = Client::connect(connection) => {
                client.map_err(|source| RunError::Connect { url, source: Box::new(source) })
            }
        };
        let client = match connected {
            Ok(client) => client,
            Err(error) => {
                driver.abandon(&error);
                return Err(error);
            }
        };
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

/// The `url` setting is `host:port` (CONF-02); the SDK wants a url.
pub(crate) fn address(url: &str) -> String {
    if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    }
}
