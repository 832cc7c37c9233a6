//! The loop: takes one input, gives it to the policy, performs what comes back (TIME-01).
//!
//! It decides nothing. All sources write into one bounded channel, so that there is one order of
//! arrival; a timer that is due waits for what arrived before it (TIME-06). The policy is locked for
//! the length of one input and never while a callback runs, so getters answer in callbacks too.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures::FutureExt;
use greenroom_policy::event::ConnectionState;
use greenroom_policy::settings::CLOSE_ABORT_GRACE;
use greenroom_policy::{
    ApiCall, ApiId, ApiResult, CallFailure, CallId, Callback, Effect, Effects, Event, Policy,
};
use greenroom_types::call::Reply;
use greenroom_types::stream::StreamEvent;
use greenroom_types::{Mono, NodeId, Now};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::absent;
use crate::acts::{self, Keeper, Unkept};
use crate::callbacks::{CallbackResult, Callbacks, callback_name};
use crate::checks::{self, Checks};
use crate::clock::Clock;
use crate::error::{EndError, RunError};
use crate::handle::{AutoManager, InstancePhase};
use crate::line::Line;
use crate::listen;
use crate::outbox::Outbox;
use crate::record::Recorder;
use crate::run::{End, lock};
use crate::said::Said;
use crate::unconfigured::Unconfigured;

/// Inputs that wait to be handled. A full channel holds the feeds back; API calls are refused.
pub(crate) const INPUTS: usize = 4096;

/// What reaches the loop.
#[derive(Debug)]
pub(crate) enum Input {
    State(ConnectionState),
    Stream(StreamEvent),
    /// The stream is over, and why.
    StreamEnded(String),
    Reply {
        call_id: CallId,
        result: Result<Reply, CallFailure>,
    },
    /// How a write of what operators decided ended (ACTS-02).
    Kept(Result<u64, CallFailure>),
    /// Such a write failed a while ago.
    KeepAgain,
    Api {
        call: ApiCall,
        answer: oneshot::Sender<ApiResult>,
    },
    /// Which of the nodes that a call names and the policy does not know have a place at the Manager.
    Registered {
        call: ApiCall,
        answer: oneshot::Sender<ApiResult>,
        found: Result<BTreeSet<NodeId>, CallFailure>,
    },
}

/// What the loop shares with the handles.
pub(crate) struct Shared {
    /// Written by the loop alone.
    pub(crate) policy: RwLock<Policy>,
    pub(crate) clock: Arc<dyn Clock>,
    /// What the policy found wrong with itself (METR-08).
    pub(crate) checks: Mutex<Checks>,
    /// What happened lately (SCEN-12).
    pub(crate) recorder: Mutex<Recorder>,
}

/// What the loop is made of, besides the policy.
pub(crate) struct Parts<L> {
    pub(crate) policy: Policy,
    pub(crate) line: L,
    pub(crate) callbacks: Arc<dyn Callbacks>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) signal: CancellationToken,
    /// The tree from which the policy's settings were read.
    pub(crate) settings: serde_json::Value,
}

pub(crate) struct Driver<L> {
    pub(crate) line: L,
    /// Writes the inputs; ended with the channel (LIFE-02).
    pub(crate) feeds: JoinSet<()>,
    shared: Arc<Shared>,
    inputs: mpsc::Receiver<Input>,
    sender: mpsc::Sender<Input>,
    callbacks: Arc<dyn Callbacks>,
    listeners: broadcast::Sender<Arc<Callback>>,
    signal: CancellationToken,
    /// Inputs of the loop's own making, which come before what arrives later.
    own: VecDeque<Event>,
    outbox: Outbox,
    calls: JoinSet<()>,
    callers: BTreeMap<ApiId, oneshot::Sender<ApiResult>>,
    next_api: u64,
    /// What operators decided, as it stands at the Manager.
    pub(crate) keeper: Keeper,
    /// Where it is left what could not be kept (ACTS-07).
    pub(crate) unkept: Arc<Mutex<Option<Unkept>>>,
    /// Calls that are answered when what they did is kept.
    keeping: BTreeSet<ApiId>,
    said: Said,
    unconfigured: Unconfigured,
    /// Inputs that arrived before the timer that is due, still to be handled.
    before_timer: Option<usize>,
    closing: Option<Closing>,
    phase: watch::Sender<InstancePhase>,
    end: watch::Sender<Option<End>>,
}

/// The channel closes when all calls are answered, at `until` at the latest (LIFE-05).
struct Closing {
    error: Option<String>,
    until: Mono,
}

/// What happens next.
enum Next {
    Input(Input),
    Wake,
    Signal,
    GraceOver,
}

// === impl Driver ===

impl<L: Line> Driver<L> {
    pub(crate) fn new(parts: Parts<L>) -> (Self, AutoManager, watch::Receiver<Option<End>>) {
        let (sender, inputs) = mpsc::channel(INPUTS);
        let (listeners, _) = broadcast::channel(listen::BUFFER);
        let (phase, phases) = watch::channel(InstancePhase::Hydrating);
        let (end, ended) = watch::channel(None);
        let unconfigured = Unconfigured::of(&parts.settings);
        let shared = Arc::new(Shared {
            policy: RwLock::new(parts.policy),
            clock: parts.clock,
            checks: Mutex::default(),
            recorder: Mutex::new(Recorder::new(parts.settings)),
        });
        let instance = AutoManager::new(
            Arc::clone(&shared),
            sender.clone(),
            listeners.downgrade(),
            phases,
            ended.clone(),
            parts.signal.clone(),
        );
        let driver = Self {
            line: parts.line,
            feeds: JoinSet::new(),
            shared,
            inputs,
            sender,
            callbacks: parts.callbacks,
            listeners,
            signal: parts.signal,
            own: VecDeque::new(),
            outbox: Outbox::default(),
            calls: JoinSet::new(),
            callers: BTreeMap::new(),
            next_api: 0,
            keeper: Keeper::default(),
            unkept: Arc::default(),
            keeping: BTreeSet::new(),
            said: Said::default(),
            unconfigured,
            before_timer: None,
            closing: None,
            phase,
            end,
        };
        (driver, instance, ended)
    }

    /// Writes inputs, for the feeds.
    pub(crate) fn sender(&self) -> mpsc::Sender<Input> {
        self.sender.clone()
    }

    /// Introduces the instance to the callbacks.
    pub(crate) fn begin(&mut self, instance: &AutoManager) {
        let callbacks = Arc::clone(&self.callbacks);
        if let Err(error) = guarded(|| callbacks.begin(instance)) {
            self.own.push_back(Event::CallbackFailed {
                callback: "begin".to_owned(),
                error,
            });
        }
    }

    /// Ends an instance whose connection never stood.
    pub(crate) fn abandon(mut self, why: &RunError) {
        self.step(Event::ConnectionState(ConnectionState::Shutdown));
        let end = EndError::NotStarted(why.to_string());
        self.end.send_replace(Some(Err(end)));
    }

    /// Runs until the channel is closed, then settles the handle.
    pub(crate) async fn run(mut self) {
        self.feeds.spawn(checks::run(Arc::clone(&self.shared)));
        loop {
            while let Some(event) = self.own.pop_front() {
                self.step(event);
            }
            let quiet = self.outbox.is_empty() && !self.keeper.is_writing();
            if self.closing.is_some() && quiet {
                break;
            }
            match self.next().await {
                Next::Input(input) => self.take(input),
                Next::Wake => self.step(Event::Wake),
                Next::Signal => self.step_api(ApiCall::Close, None),
                Next::GraceOver => {
                    tracing::warn!("some calls were not answered in the time a close waits");
                    break;
                }
            }
        }
        self.finish();
    }

    /// Waits for whatever comes first; what arrived before a due timer comes before it.
    async fn next(&mut self) -> Next {
        loop {
            let due = match &self.closing {
                Some(closing) => Some(closing.until),
                None => self.lock_read(|policy| policy.next_deadline().map(|next| next.at)),
            };
            let is_due = due.is_some_and(|at| at <= self.now().mono);
            if is_due {
                let left = self.before_timer.get_or_insert(self.inputs.len());
                match left
                    .checked_sub(1)
                    .map(|less| (less, self.inputs.try_recv()))
                {
                    Some((less, Ok(input))) => {
                        *left = less;
                        return Next::Input(input);
                    }
                    Some((_, Err(_))) | None => {
                        self.before_timer = None;
                        return if self.closing.is_some() {
                            Next::GraceOver
                        } else {
                            Next::Wake
                        };
                    }
                }
            }
            self.before_timer = None;
            let listens = self.closing.is_none();
            let timer = async {
                match due {
                    Some(at) => self.shared.clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.signal.cancelled(), if listens => return Next::Signal,
                // The loop holds a sender itself, so the channel stays open.
                Some(input) = self.inputs.recv() => return Next::Input(input),
                () = timer => {}
            }
        }
    }

    fn take(&mut self, input: Input) {
        let closing = self.closing.is_some();
        match input {
            Input::Api { call, answer } => self.step_or_look_up(call, answer),
            Input::Reply { call_id, result } => {
                self.outbox.done(call_id);
                self.send_ready();
                if !closing {
                    self.step(Event::Reply { call_id, result });
                }
            }
            Input::Kept(result) => {
                let again = self.keeper.written(result);
                match (again, closing) {
                    (false, _) => self.keep(),
                    (true, false) => self.keep_later(),
                    // The next instance tries it (ACTS-07).
                    (true, true) => {}
                }
            }
            // After a close no further event is handled (LIFE-02).
            _ if closing => {}
            Input::KeepAgain => self.keep(),
            Input::Registered {
                call,
                answer,
                found,
            } => match found {
                Ok(found) => match absent::is_off(&call, &found) {
                    None => self.step_api(absent::with_registered(call, found), Some(answer)),
                    Some(refused) => {
                        // Nothing was asked of the policy, so nothing of it is in a recording.
                        let _ = answer.send(Err(refused));
                    }
                },
                Err(failure) => {
                    // A caller that went away does not want its answer.
                    let _ = answer.send(Err(failure.into()));
                }
            },
            Input::State(state) => self.step(Event::ConnectionState(state)),
            Input::Stream(event) => self.step(Event::Stream(event)),
            Input::StreamEnded(why) => self.step(Event::Closed { error: Some(why) }),
        }
    }

    /// An acting call; one that names nodes that the policy does not know comes back as an input when
    /// the Manager has said which of them it has a place for (CORDON-07).
    fn step_or_look_up(&mut self, call: ApiCall, answer: oneshot::Sender<ApiResult>) {
        let strangers = self.lock_read(|policy| absent::strangers(&call, policy));
        if strangers.is_empty() {
            self.step_api(absent::with_registered(call, BTreeSet::new()), Some(answer));
            return;
        }
        let slots = self.line.slots();
        let inputs = self.sender.clone();
        self.calls.spawn(async move {
            let found = slots.await.map(|slots| {
                let registered = strangers.into_iter().filter(|id| slots.contains(id));
                registered.collect()
            });
            let looked_up = Input::Registered {
                call,
                answer,
                found,
            };
            let _ = inputs.send(looked_up).await;
        });
    }

    fn step_api(&mut self, call: ApiCall, answer: Option<oneshot::Sender<ApiResult>>) {
        let id = ApiId(self.next_api);
        self.next_api += 1;
        if let Some(answer) = answer {
            self.callers.insert(id, answer);
            if call.is_kept() {
                self.keeping.insert(id);
            }
        }
        self.step(Event::Api { id, call });
    }

    /// One input, and all that follows from it, in order.
    pub(crate) fn step(&mut self, event: Event) {
        tracing::trace!(?event);
        let now = self.now();
        let mut effects = Effects::new();
        let (phase, acts) = {
            let mut policy = self
                .shared
                .policy
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            let recorder = self.shared.recorder.lock();
            let mut recorder = recorder.unwrap_or_else(PoisonError::into_inner);
            let one_by_one = absent::one_by_one(&event);
            for event in &one_by_one {
                recorder.before(now, event, &policy);
            }
            if one_by_one.is_empty() {
                recorder.before(now, &event, &policy);
            }
            policy.handle(now, event, &mut effects);
            for effect in effects.as_slice() {
                recorder.after(now, effect, &policy);
            }
            (InstancePhase::of(&policy), policy.acts_to_keep())
        };
        // Ahead of the answers of this input, which wait for it.
        if let Some(acts) = acts {
            self.keeper.want(acts);
        }
        self.phase.send_if_modified(|current| {
            let changes = *current != phase;
            *current = phase;
            changes
        });
        for effect in effects.drain() {
            self.perform(now, effect);
        }
        self.keep();
    }

    /// Writes what operators decided, where that is not kept yet (ACTS-02).
    fn keep(&mut self) {
        let Some(write) = self.keeper.next() else {
            return;
        };
        let kept = self.line.keep(write);
        let inputs = self.sender.clone();
        self.calls.spawn(async move {
            let _ = inputs.send(Input::Kept(kept.await)).await;
        });
    }

    fn keep_later(&mut self) {
        let wake = self.shared.clock.sleep_until(self.now().mono + acts::AGAIN);
        let inputs = self.sender.clone();
        self.calls.spawn(async move {
            wake.await;
            let _ = inputs.send(Input::KeepAgain).await;
        });
    }

    fn perform(&mut self, now: Now, effect: Effect) {
        match effect {
            Effect::Call { call_id, call } => {
                self.outbox.push(call_id, call);
                self.send_ready();
            }
            Effect::Callback(callback) => self.call_back(callback),
            Effect::ApiReply { id, result } => {
                let is_kept = self.keeping.remove(&id);
                if let Some(answer) = self.callers.remove(&id) {
                    if is_kept && result.is_ok() && !self.keeper.is_settled() {
                        self.keeper.hold(answer, result);
                        return;
                    }
                    // A caller that went away does not want its answer.
                    let _ = answer.send(result);
                }
            }
            Effect::Log { text } => tracing::info!("{text}"),
            Effect::CloseChannel { error } => {
                self.feeds.abort_all();
                self.closing = Some(Closing {
                    error,
                    until: now.mono + CLOSE_ABORT_GRACE,
                });
            }
        }
    }

    /// Sends what may be sent now; replies come back as inputs (TIME-02).
    fn send_ready(&mut self) {
        while self.calls.try_join_next().is_some() {}
        while let Some((call_id, call)) = self.outbox.pop() {
            tracing::debug!(call = call.name(), call_id = call_id.0, "sent");
            let reply = AssertUnwindSafe(self.line.call(call)).catch_unwind();
            let inputs = self.sender.clone();
            self.calls.spawn(async move {
                let result = reply.await.unwrap_or_else(|panic| {
                    let text = panic_text(panic.as_ref());
                    Err(CallFailure::Unavailable(format!("the call broke: {text}")))
                });
                let _ = inputs.send(Input::Reply { call_id, result }).await;
            });
        }
    }

    /// Calls back on the loop's own sequence (CALLB-01), then tells the listeners.
    fn call_back(&mut self, callback: Callback) {
        let name = callback_name(&callback);
        tracing::debug!(callback = name);
        if let Callback::OnError(error) = &callback {
            let now = self.now().mono;
            self.said.warn(now, error);
        }
        self.unconfigured.look(&callback);
        let callbacks = Arc::clone(&self.callbacks);
        let result = guarded(|| callbacks.on_callback(&callback));
        let is_on_error = matches!(callback, Callback::OnError(_));
        if self.listeners.receiver_count() > 0 {
            // Fails only when the last listener has just gone.
            let _ = self.listeners.send(Arc::new(callback));
        }
        match result {
            Ok(()) => {}
            Err(error) if is_on_error => tracing::warn!(error, "onError failed"),
            Err(error) => self.own.push_back(Event::CallbackFailed {
                callback: name.to_owned(),
                error,
            }),
        }
    }

    /// Closes the channel and settles the handle (LIFE-02).
    fn finish(mut self) {
        self.line.close();
        self.step(Event::ConnectionState(ConnectionState::Shutdown));
        let end = match self.closing.take().and_then(|closing| closing.error) {
            None => Ok(()),
            Some(why) => Err(EndError::Stream(why)),
        };
        *lock(&self.unkept) = self.keeper.unkept();
        self.inputs.close();
        self.end.send_replace(Some(end));
    }

    fn now(&self) -> Now {
        self.shared.clock.now()
    }

    fn lock_read<T>(&self, look: impl FnOnce(&Policy) -> T) -> T {
        look(
            &self
                .shared
                .policy
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

// === helpers ===

/// Runs a callback; an error and a panic are the same to the loop (CALLB-01).
fn guarded(callback: impl FnOnce() -> CallbackResult) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(callback)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => Err(format!("it panicked: {}", panic_text(panic.as_ref()))),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without words")
}

#[cfg(test)]
mod tests;
