//! The client: one connection kept to one of several members, and the tries of a call over it.
//!
//! A task of its own keeps the connection: it notices a break, dials the urls in turn and has a new
//! Hello before calls go on. Calls never dial; a call that finds no connection waits for the task
//! as it waits after a failure. So every call of a client runs against a member whose protocol is
//! known.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use greenroom_proto::convert::call::REQUEST_ID_METADATA;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Uri};

use crate::access::Ready;
use crate::backoff::{Backoff, Dice};
use crate::error::{Error, Refused, UrlFailure, Verdict};
use crate::link::{Announce, ConnectionState, Link, Pulse, RawClient, until_silent};
use crate::settings::Settings;
use crate::version::{HelloInfo, VersionInfo};

/// A client of the Manager. Clones share one connection; the last one dropped closes it.
///
/// ```no_run
/// use greenroom_sdk::{Client, Settings};
/// # async fn example() -> Result<(), greenroom_sdk::Error> {
/// let client = Client::connect(Settings::new(["http://127.0.0.1:6789"])).await?;
/// println!("{}", client.version());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    /// Ends the calls of this handle.
    pub(crate) stop: CancellationToken,
    _closes: Arc<DropGuard>,
}

/// Yields the connection states of a client as they change; states that pass faster than they are
/// asked for may be skipped, the last one never.
///
/// ```no_run
/// # async fn example(client: greenroom_sdk::Client) {
/// let mut states = client.states();
/// while let Some(state) = states.next().await {
///     println!("{state:?}");
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct ConnectionStates {
    states: watch::Receiver<ConnectionState>,
    ended: bool,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    access: Ready,
    pub(crate) dice: Dice,
    pub(crate) closed: CancellationToken,
    link: watch::Sender<Option<Arc<Link>>>,
    state: watch::Sender<ConnectionState>,
    /// Numbers of links that a call found useless.
    leave: mpsc::Sender<u64>,
    hello: Mutex<HelloInfo>,
    /// Why there is no link.
    failure: Mutex<String>,
}

/// How a call is repeated.
#[derive(Clone, Debug)]
pub(crate) struct Tries {
    pub(crate) method: &'static str,
    /// Present on calls that change something.
    pub(crate) request_id: Option<MetadataValue<Ascii>>,
    pub(crate) deadline: Instant,
    /// Given by the caller.
    pub(crate) stop: CancellationToken,
}

// === impl Client ===

impl Client {
    /// Connects to the first url that answers with a Hello (SDK-01).
    ///
    /// # Errors
    /// [`Error::Connect`] with the cause for each url, or [`Error::Settings`].
    ///
    /// ```no_run
    /// use greenroom_sdk::{Client, Settings};
    /// # async fn example() -> Result<(), greenroom_sdk::Error> {
    /// let urls = ["http://10.0.0.1:6789", "http://10.0.0.2:6789"];
    /// let client = Client::connect(Settings::new(urls)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(settings: Settings) -> Result<Self, Error> {
        check(&settings)?;
        let access = settings.access.ready()?;
        let dice = Dice::seed().map_err(|error| Error::Settings {
            key: "urls",
            problem: format!("the system gives no random numbers for request ids: {error}"),
        })?;
        let (leave, left) = mpsc::channel(16);
        let inner = Arc::new(Inner {
            settings,
            access,
            dice,
            closed: CancellationToken::new(),
            link: watch::Sender::new(None),
            state: watch::Sender::new(ConnectionState::Idle),
            leave,
            hello: Mutex::default(),
            failure: Mutex::default(),
        });
        inner.set_state(ConnectionState::Connecting);
        let (link, pulse) = inner.dial_any(1, 0).await.map_err(Error::Connect)?;
        inner.publish(link);
        tokio::spawn(keep(Arc::clone(&inner), pulse, left));
        let closes = Arc::new(inner.closed.clone().drop_guard());
        Ok(Self {
            inner,
            stop: CancellationToken::new(),
            _closes: closes,
        })
    }

    /// The same client with a handle whose calls end once `stop` is cancelled: the cancel is sent to
    /// the Manager, and the call ends [`Error::Cancelled`], which says whether it may have taken
    /// effect (SDK-11). Other handles and event streams go on. It replaces a token given before.
    ///
    /// ```no_run
    /// use tokio_util::sync::CancellationToken;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let stop = CancellationToken::new();
    /// let listing = client.until(stop.clone());
    /// let nodes = listing.list_nodes().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn until(&self, stop: CancellationToken) -> Self {
        Self {
            stop,
            ..self.clone()
        }
    }

    /// Version of the member's build, as of the last Hello (SDK-03).
    ///
    /// ```no_run
    /// # fn example(client: &greenroom_sdk::Client) {
    /// println!("Manager {}", client.version());
    /// # }
    /// ```
    pub fn version(&self) -> VersionInfo {
        self.inner.hello().version
    }

    /// The last Hello: protocol, build, member, features; its [`HelloInfo::skew`] says how the
    /// server stands to this SDK (SDK-03).
    ///
    /// ```no_run
    /// # fn example(client: &greenroom_sdk::Client) {
    /// let hello = client.hello();
    /// println!("{} at {}: {:?}", hello.member, hello.protocol, hello.skew());
    /// # }
    /// ```
    pub fn hello(&self) -> HelloInfo {
        self.inner.hello()
    }

    /// Where the connection stands now.
    ///
    /// ```no_run
    /// # fn example(client: &greenroom_sdk::Client) {
    /// println!("{:?}", client.state());
    /// # }
    /// ```
    pub fn state(&self) -> ConnectionState {
        *self.inner.state.borrow()
    }

    /// The states from now on, the present one first.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) {
    /// let mut states = client.states();
    /// println!("{:?}", states.next().await);
    /// # }
    /// ```
    pub fn states(&self) -> ConnectionStates {
        let mut states = self.inner.state.subscribe();
        states.mark_changed();
        ConnectionStates {
            states,
            ended: false,
        }
    }

    /// The generated client on the present connection, for what the SDK has no type for (SDK-02). Its
    /// calls are not repeated.
    ///
    /// # Errors
    /// [`Error::ConnectionLost`] while there is no connection.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let request = greenroom_sdk::proto::manager::GetStoreInfoRequest {};
    /// let answer = client.raw()?.get_store_info(request).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn raw(&self) -> Result<RawClient, Error> {
        Ok(self.inner.link("raw")?.raw())
    }

    /// The present connection, for services other than the Manager's own, and what adds the caller's
    /// token to their calls (SDK-02).
    ///
    /// # Errors
    /// [`Error::ConnectionLost`] while there is no connection.
    ///
    /// ```no_run
    /// use greenroom_sdk::proto::logs::logs_client::LogsClient;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let (channel, announce) = client.channel()?;
    /// let logs = LogsClient::with_interceptor(channel, announce);
    /// # Ok(())
    /// # }
    /// ```
    pub fn channel(&self) -> Result<(Channel, Announce), Error> {
        let link = self.inner.link("channel")?;
        Ok((link.channel.clone(), link.announce()))
    }

    /// Ends streams and the connection; pending calls end [`Error::Cancelled`] (SDK-10). Closing
    /// twice is fine, and dropping the last clone does the same.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) {
    /// client.close();
    /// # }
    /// ```
    pub fn close(&self) {
        self.inner.closed.cancel();
        self.inner.set_state(ConnectionState::Shutdown);
    }
}

// === impl ConnectionStates ===

impl ConnectionStates {
    /// The next state; none after [`ConnectionState::Shutdown`].
    ///
    /// ```no_run
    /// # async fn example(mut states: greenroom_sdk::ConnectionStates) {
    /// while states.next().await != Some(greenroom_sdk::ConnectionState::Ready) {}
    /// # }
    /// ```
    pub async fn next(&mut self) -> Option<ConnectionState> {
        if self.ended {
            return None;
        }
        self.states.changed().await.ok()?;
        let state = *self.states.borrow_and_update();
        self.ended = state == ConnectionState::Shutdown;
        Some(state)
    }
}

// === impl Inner ===

impl Inner {
    /// The present link.
    pub(crate) fn link(&self, method: &'static str) -> Result<Arc<Link>, Error> {
        if self.closed.is_cancelled() {
            return Err(Error::Cancelled {
                method,
                outcome_unknown: false,
            });
        }
        let link = self.link.borrow().clone();
        link.ok_or_else(|| Error::ConnectionLost {
            method,
            outcome_unknown: false,
            cause: lock(&self.failure).clone(),
        })
    }

    pub(crate) fn hello(&self) -> HelloInfo {
        lock(&self.hello).clone()
    }

    /// Tells the keeping task that a link is no good. Told often enough elsewhere when it is full.
    pub(crate) fn leave(&self, link: &Link) {
        let _ = self.leave.try_send(link.number);
    }

    /// Leaves a link whose member cannot serve, where there is another member to try.
    pub(crate) fn leave_busy(&self, link: &Link) {
        if self.settings.urls.len() > 1 {
            self.leave(link);
        }
    }

    /// Waits out a pause, or less where another link than `failed` comes up.
    pub(crate) async fn pause(&self, pause: Duration, failed: u64) {
        let mut links = self.link.subscribe();
        let other = links.wait_for(|link| link.as_ref().is_some_and(|link| link.number > failed));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = other => {}
        }
    }

    /// Performs a call with its repeats (SDK-05).
    pub(crate) async fn perform<M, T, F, Fut>(
        &self,
        tries: Tries,
        message: M,
        send: F,
    ) -> Result<T, Error>
    where
        M: Clone,
        F: Fn(RawClient, tonic::Request<M>) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let method = tries.method;
        let mutating = tries.request_id.is_some();
        let mut backoff = Backoff::new(self.settings.retry);
        let mut failures = 0;
        // A try may have arrived though its answer did not.
        let mut maybe_done = false;
        if tries.stop.is_cancelled() {
            return Err(Error::Cancelled {
                method,
                outcome_unknown: false,
            });
        }
        loop {
            let (failed, last) = match self.link(method) {
                Err(Error::ConnectionLost { cause, .. }) => (0, Last::Lost(cause)),
                Err(error) => return Err(error),
                Ok(link) => {
                    let mut request = tonic::Request::new(message.clone());
                    if let Some(id) = &tries.request_id {
                        request
                            .metadata_mut()
                            .insert(REQUEST_ID_METADATA, id.clone());
                    }
                    request.set_timeout(tries.deadline.saturating_duration_since(Instant::now()));
                    let sent = tokio::select! {
                        biased;
                        () = self.ended(&tries.stop) => {
                            return Err(Error::Cancelled { method, outcome_unknown: mutating });
                        }
                        answer = send(link.raw(), request) => answer,
                        () = tokio::time::sleep_until(tries.deadline) => {
                            return Err(Error::DeadlineExceeded { method, outcome_unknown: mutating });
                        }
                    };
                    let status = match sent {
                        Ok(answer) => return Ok(answer.into_inner()),
                        Err(status) => status,
                    };
                    let last = match Verdict::of(method, &status, link.hello.protocol) {
                        Verdict::Final(error) => return Err(error),
                        Verdict::TimedOut => {
                            return Err(Error::DeadlineExceeded {
                                method,
                                outcome_unknown: mutating,
                            });
                        }
                        Verdict::Busy(refused) => {
                            self.leave_busy(&link);
                            Last::Busy(refused)
                        }
                        Verdict::Lost(cause) => {
                            self.leave(&link);
                            maybe_done |= mutating;
                            Last::Lost(cause)
                        }
                    };
                    (link.number, last)
                }
            };
            failures += 1;
            if !mutating && failures > self.settings.retry.reads {
                return Err(last.error(method, maybe_done));
            }
            tokio::select! {
                biased;
                () = self.ended(&tries.stop) => {
                    return Err(Error::Cancelled { method, outcome_unknown: maybe_done });
                }
                () = tokio::time::sleep_until(tries.deadline) => {
                    return Err(last.error(method, maybe_done));
                }
                () = self.pause(backoff.pause(&self.dice), failed) => {}
            }
        }
    }

    /// Resolves when the client is closed or the caller's token is cancelled.
    async fn ended(&self, stop: &CancellationToken) {
        tokio::select! {
            () = self.closed.cancelled() => {}
            () = stop.cancelled() => {}
        }
    }

    fn set_state(&self, state: ConnectionState) {
        self.state.send_if_modified(|current| {
            let changes = *current != state && *current != ConnectionState::Shutdown;
            if changes {
                *current = state;
            }
            changes
        });
    }

    fn publish(&self, link: Link) {
        *lock(&self.hello) = link.hello.clone();
        self.link.send_replace(Some(Arc::new(link)));
        self.set_state(ConnectionState::Ready);
    }

    fn withdraw(&self, cause: String) {
        *lock(&self.failure) = cause;
        self.link.send_replace(None);
        self.set_state(ConnectionState::TransientFailure);
    }

    /// Tries each url once, beginning at `first`.
    async fn dial_any(&self, number: u64, first: usize) -> Result<(Link, Pulse), Vec<UrlFailure>> {
        let urls = &self.settings.urls;
        let mut failures = Vec::new();
        for url in (0..urls.len()).map(|step| (first + step) % urls.len()) {
            match Link::dial(
                number,
                urls,
                url,
                &self.access,
                self.settings.connect_timeout,
            )
            .await
            {
                Ok(dialled) => return Ok(dialled),
                Err(failure) => failures.push(failure),
            }
        }
        Err(failures)
    }
}

// === the keeping task ===

/// Keeps the connection until the client is closed.
async fn keep(inner: Arc<Inner>, first: Pulse, mut left: mpsc::Receiver<u64>) {
    let mut pulse = first;
    loop {
        let Some(link) = inner.link.borrow().clone() else {
            break;
        };
        let broke = until_silent(pulse);
        let told = async {
            while let Some(number) = left.recv().await {
                if number == link.number {
                    return;
                }
            }
        };
        let cause = tokio::select! {
            () = inner.closed.cancelled() => break,
            () = broke => "the member went away",
            () = told => "a call found the member useless",
        };
        inner.withdraw(format!("{}: {cause}", inner.settings.urls[link.url]));
        match again(&inner, &link).await {
            Some((link, next)) => {
                pulse = next;
                inner.publish(link);
            }
            None => break,
        }
    }
    inner.set_state(ConnectionState::Shutdown);
    inner.link.send_replace(None);
}

/// Dials until a member answers; none when the client was closed meanwhile.
async fn again(inner: &Inner, lost: &Link) -> Option<(Link, Pulse)> {
    let mut backoff = Backoff::new(inner.settings.retry);
    loop {
        inner.set_state(ConnectionState::Connecting);
        let failures = tokio::select! {
            () = inner.closed.cancelled() => return None,
            dialled = inner.dial_any(lost.number + 1, lost.url + 1) => match dialled {
                Ok(dialled) => return Some(dialled),
                Err(failures) => failures,
            },
        };
        inner.withdraw(Error::Connect(failures).to_string());
        tokio::select! {
            () = inner.closed.cancelled() => return None,
            () = tokio::time::sleep(backoff.pause(&inner.dice)) => {}
        }
    }
}

// === helpers ===

/// The last failure of a row of tries.
enum Last {
    Busy(Refused),
    Lost(String),
}

impl Last {
    fn error(self, method: &'static str, maybe_done: bool) -> Error {
        match self {
            // "Nothing changed" is only true of this try.
            Self::Busy(refused) if maybe_done => Error::ConnectionLost {
                method,
                outcome_unknown: true,
                cause: refused.message,
            },
            Self::Busy(refused) => Error::Unavailable(refused),
            Self::Lost(cause) => Error::ConnectionLost {
                method,
                outcome_unknown: maybe_done,
                cause,
            },
        }
    }
}

fn check(settings: &Settings) -> Result<(), Error> {
    let problem = |problem: String| {
        Err(Error::Settings {
            key: "urls",
            problem,
        })
    };
    if settings.urls.is_empty() {
        return problem("empty; at least one https://HOST:PORT is needed".to_owned());
    }
    let access = &settings.access;
    for url in &settings.urls {
        let uri = url.parse::<Uri>().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        let scheme = uri.as_ref().and_then(Uri::scheme_str).unwrap_or_default();
        let why = match scheme {
            "https" if access.ca.is_none() && access.pins.is_empty() => {
                "asks for TLS, and neither ca nor pins say whom to trust"
            }
            "http" if access.token.is_some() && !is_this_machine(host) => {
                "is in the clear, and a token is sent over a network in TLS only; use https"
            }
            "http" | "https" if !host.is_empty() => continue,
            _ => "cannot be used; it must be https://HOST:PORT or http://HOST:PORT",
        };
        return problem(format!("{url:?} {why}"));
    }
    Ok(())
}

fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: std::net::IpAddr| address.is_loopback();
    bare == "localhost" || bare.parse().is_ok_and(is_loopback)
}

/// Nothing panics while one of these locks is held, and their values are whole at any moment.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
