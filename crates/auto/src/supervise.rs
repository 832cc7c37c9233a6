//! Running an instance again after it ended by itself, for a process that is the control plane.
//!
//! An instance never reconnects (LIFE-07), for its mirror is of one stream. The loop here runs a
//! fresh one, which hydrates anew, with pauses from 200 ms up to 5 s while the Manager is away. It
//! keeps nothing from one instance to the next.

use std::time::Duration;

use greenroom_policy::Settings as PolicySettings;
use greenroom_policy::settings::AutoSettingsValidationError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::handle::AutoManager;
use crate::settings::Settings;

const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The loop that runs fresh instances; dropping it ends the loop and the instance.
#[derive(Debug)]
pub struct Supervisor {
    current: Current,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

/// The instance of a [`Supervisor`] at any time. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Current(watch::Receiver<State>);

#[derive(Clone, Debug, Default)]
struct State {
    instance: Option<AutoManager>,
    /// Why there is none, or why there was none last.
    problem: Option<String>,
}

/// Runs an instance with these settings, and a fresh one each time it ends by itself. It stops when
/// the signal of the settings fires, when somebody closes the instance, or by [`Supervisor::stop`].
///
/// # Errors
/// All faults in the settings; then nothing runs.
pub fn supervise(mut settings: Settings) -> Result<Supervisor, AutoSettingsValidationError> {
    PolicySettings::parse(&settings.tree)?;
    let stop = settings.signal.child_token();
    settings.signal = stop.clone();
    let (states, current) = watch::channel(State::default());
    let task = tokio::spawn(run(settings, states));
    Ok(Supervisor {
        current: Current(current),
        stop,
        task: Some(task),
    })
}

async fn run(settings: Settings, states: watch::Sender<State>) {
    let mut pause = PAUSE_MIN;
    loop {
        let problem = match AutoManager::run(settings.clone()).await {
            Ok((instance, ended)) => {
                states.send_replace(State {
                    instance: Some(instance.clone()),
                    problem: None,
                });
                let (was_live, end) = tokio::join!(instance.live(), ended);
                if was_live {
                    pause = PAUSE_MIN;
                }
                match end {
                    // Closed on request: nobody wants another one.
                    Ok(()) => break,
                    Err(error) => error.to_string(),
                }
            }
            Err(error) => error.to_string(),
        };
        if settings.signal.is_cancelled() {
            break;
        }
        tracing::warn!(
            problem,
            pause_ms = pause.as_millis(),
            "a fresh instance is run"
        );
        states.send_replace(State {
            instance: None,
            problem: Some(problem),
        });
        tokio::select! {
            () = settings.signal.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
    states.send_replace(State::default());
}

// === impl Supervisor ===

impl Supervisor {
    /// Tells which instance runs, now and later.
    #[must_use]
    pub fn current(&self) -> Current {
        self.current.clone()
    }

    /// Closes the instance and ends the loop; resolves when both are over.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the supervising loop broke");
        }
    }

    /// Resolves when the loop is over.
    pub async fn stopped(&mut self) {
        if let Some(task) = &mut self.task {
            if let Err(error) = task.await {
                tracing::error!(%error, "the supervising loop broke");
            }
            self.task = None;
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

// === impl Current ===

impl Current {
    /// The instance that runs now; none between two.
    #[must_use]
    pub fn instance(&self) -> Option<AutoManager> {
        self.0.borrow().instance.clone()
    }

    /// Why there is no instance, in words; none while there is one or before the first.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.0.borrow().problem.clone()
    }

    /// Waits for an instance other than `not` that is in service; none when the loop is over.
    pub async fn next_live(&mut self, not: Option<&AutoManager>) -> Option<AutoManager> {
        loop {
            let instance = self.0.borrow_and_update().instance.clone();
            if let Some(instance) = instance
                && !not.is_some_and(|old| old.is_same(&instance))
                && instance.live().await
            {
                return Some(instance);
            }
            self.0.changed().await.ok()?;
        }
    }
}
