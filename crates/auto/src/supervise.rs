//! Running an instance again after it ended by itself, for a process that is the control plane.
//!
//! An instance never reconnects (LIFE-07), for its mirror is of one stream. The loop here runs a
//! fresh one, which hydrates anew, with pauses from 200 ms up to 5 s while the Manager is away. It
//! keeps nothing from one instance to the next.
//!
//! Where several control planes run, [`supervise_seated`] does this only while it holds the seat
//! (ACTIVE). A standby keeps no mirror: it would hydrate at its takeover all the same, since bindings
//! and deadlines come from a whole snapshot, and a mirror that nobody uses is one more thing to be
//! wrong.

use std::time::Duration;

use greenroom_policy::Settings as PolicySettings;
use greenroom_policy::settings::AutoSettingsValidationError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::error::{EndError, RunError};
use crate::handle::AutoManager;
use crate::run::address;
use crate::seat::hold::Contender;
use crate::seat::{Holder, Seat, SeatSettings};
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

#[derive(Clone, Debug)]
struct State {
    instance: Option<AutoManager>,
    /// Why there is none, or why there was none last.
    problem: Option<String>,
    seat: Seat,
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
    let (states, current) = watch::channel(State::new(Seat::Alone));
    let task = tokio::spawn(async move {
        run(&settings, &states).await;
        states.send_replace(State::new(Seat::Alone));
    });
    Ok(Supervisor {
        current: Current(current),
        stop,
        task: Some(task),
    })
}

/// As [`supervise`], for one of several control planes: an instance runs only while this one holds the
/// seat at the Manager, and what it decides is sent only while that is certain (ACTIVE).
///
/// # Errors
/// All faults in the settings, or no randomness; then nothing runs.
pub fn supervise_seated(
    mut settings: Settings,
    seat: SeatSettings,
) -> Result<Supervisor, RunError> {
    let checked = PolicySettings::parse(&settings.tree)?;
    let id = format!("{:016x}", getrandom::u64().map_err(RunError::Randomness)?);
    let stop = settings.signal.child_token();
    settings.signal = stop.clone();
    let clock = std::sync::Arc::clone(&settings.clock);
    let access = settings.access.clone();
    let contender = Contender::new(clock, address(&checked.url), access, seat, id);
    let (states, current) = watch::channel(State::new(Seat::Standby(None)));
    let task = tokio::spawn(run_seated(settings, contender, states));
    Ok(Supervisor {
        current: Current(current),
        stop,
        task: Some(task),
    })
}

async fn run_seated(settings: Settings, mut contender: Contender, states: watch::Sender<State>) {
    loop {
        let mut turn = tokio::select! {
            () = settings.signal.cancelled() => break,
            turn = contender.take(|seen| stand_by(&states, seen)) => turn,
        };
        tracing::info!(turn = turn.number, "this control plane is active");
        let seat = Seat::Active { turn: turn.number };
        states.send_replace(State::new(seat));
        let mut acting = settings.clone();
        acting.gate = Some(turn.gate.clone());
        acting.signal = settings.signal.child_token();
        let stand_down = acting.signal.clone();
        let running = run(&acting, &states);
        tokio::pin!(running);
        let lost = tokio::select! {
            () = &mut running => None,
            why = contender.keep(&mut turn) => Some(why),
        };
        let Some(why) = lost else {
            // Closed on request, with the seat still held, so that the wind-down was heard.
            turn.gate.close();
            break;
        };
        tracing::warn!(turn = turn.number, why, "this control plane acts no more");
        stand_down.cancel();
        running.await;
        states.send_replace(State::new(Seat::Standby(None)));
    }
    contender.give_back().await;
    contender.close();
    states.send_replace(State::new(Seat::Standby(None)));
}

/// Shows what a standby saw of the seat, and logs it when that is news.
fn stand_by(states: &watch::Sender<State>, seen: Result<Option<Holder>, String>) {
    states.send_if_modified(|state| {
        let is_heard = seen.is_ok();
        let (seat, problem) = match seen {
            Ok(holder) => {
                let problem = holder.as_ref().map_or_else(
                    || "it stands by, and nobody is active".to_owned(),
                    |it| format!("it stands by; {:?} at {} is active", it.name, it.url),
                );
                (Seat::Standby(holder), problem)
            }
            Err(error) => (state.seat.clone(), format!("it stands by; {error}")),
        };
        let is_news = state.problem.as_ref() != Some(&problem);
        if is_news && is_heard {
            tracing::info!(state = problem, "this control plane does not act");
        } else if is_news {
            tracing::warn!(state = problem, "this control plane does not act");
        }
        let changes = is_news || state.seat != seat;
        state.seat = seat;
        state.problem = Some(problem);
        changes
    });
}

/// Runs one instance after the other, until the signal or somebody closes one.
async fn run(settings: &Settings, states: &watch::Sender<State>) {
    let mut pause = PAUSE_MIN;
    loop {
        let problem = match AutoManager::run(settings.clone()).await {
            Ok((instance, ended)) => {
                states.send_modify(|state| {
                    state.instance = Some(instance.clone());
                    state.problem = None;
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
        states.send_modify(|state| {
            state.instance = None;
            state.problem = Some(problem);
        });
        tokio::select! {
            () = settings.signal.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

// === impl State ===

impl State {
    const fn new(seat: Seat) -> Self {
        Self {
            instance: None,
            problem: None,
            seat,
        }
    }
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
    ///
    /// # Errors
    /// [`EndError::Broken`] where it broke on a fault of its own: nothing decides any more, and a seat is
    /// left to run out. Whoever runs this process should end it, so that another is started.
    pub async fn stopped(&mut self) -> Result<(), EndError> {
        let Some(task) = &mut self.task else {
            return Ok(());
        };
        let ended = task.await;
        self.task = None;
        ended.map_err(|error| {
            tracing::error!(%error, "the supervising loop broke");
            EndError::Broken
        })
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

    /// Whether this control plane acts (ACTIVE).
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.0.borrow().seat.clone()
    }

    /// Waits until the seat is as wanted; false when the loop is over.
    pub async fn until_seat(&mut self, wanted: impl Fn(&Seat) -> bool) -> bool {
        self.0.wait_for(|state| wanted(&state.seat)).await.is_ok()
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
