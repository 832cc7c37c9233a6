//! How a worker of an owned server comes to its node: it calls in, the Manager dials back.
//!
//! Two halves: [`CallIn`], pure, says when to call and whom; [`call`] makes one call. The credential
//! that an answer brings is in `credential.rs`.

use std::time::Duration;

use greenroom_auth::Secret;
use greenroom_proto::manager::manager_client::ManagerClient;
use greenroom_proto::manager::{ClusterMemberRegisterRequest, ClusterMemberRegisterResponse};
use greenroom_tls::ClientTls;
use greenroom_types::{Millis, Mono};
use tonic::codegen::http::Uri;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use crate::config::{Config, Error};

/// No dial within this after a good answer: call in again (WORK-06).
const DIAL_WITHIN: Millis = Millis(60_000);
/// No stream for this long: call in again (WORK-06).
const STREAM_WITHIN: Millis = Millis(300_000);
/// First wait after a failed call; it doubles with each further one (WORK-06).
const AGAIN_FIRST: Millis = Millis(1_000);
/// No wait after a failed call is longer (WORK-06).
const AGAIN_MAX: Millis = Millis(60_000);
/// A refused credential is tried again this often (WORK-06).
const REFUSED_AGAIN: Millis = Millis(60_000);
/// Refusals are logged this often (WORK-06).
const REFUSED_LOG: Millis = Millis(600_000);
/// A call takes no longer.
const CALL_MAX: Duration = Duration::from_secs(10);

/// When to call in, and which of the Managers.
#[derive(Clone, Debug)]
pub(crate) struct CallIn {
    urls: usize,
    turn: usize,
    failures: u32,
    due: Option<Mono>,
    /// A Manager controls the worker, or it is to stay quiet: an answer then leads to no other call.
    settled: bool,
    refusal_logged: Option<Mono>,
    /// Since when no Manager takes the credential.
    refused_since: Option<Mono>,
    /// A worker that nobody takes for so long stops what it runs (LOCAL-13).
    orphan: Millis,
}

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Good,
    /// UNAUTHENTICATED: the token or the machine is not the slot's.
    Refused,
    Failed,
}

/// What one call says.
pub(crate) struct Call {
    pub(crate) url: String,
    pub(crate) token: Secret,
    pub(crate) listen_address: String,
    pub(crate) listen_port: u16,
    pub(crate) machine_id: String,
    pub(crate) public_key: Vec<u8>,
    pub(crate) hardware: greenroom_proto::common::NodeInventory,
}

// === impl CallIn ===

impl CallIn {
    /// Calls at once: a worker that starts tells where it is (WORK-05).
    pub(crate) const fn new(now: Mono, urls: usize, orphan: Millis) -> Self {
        Self {
            urls,
            turn: 0,
            failures: 0,
            due: Some(now),
            settled: false,
            refusal_logged: None,
            refused_since: None,
            orphan,
        }
    }

    /// When the next call is due, and to which url.
    pub(crate) const fn next(&self) -> Option<(Mono, usize)> {
        match self.due {
            Some(due) => Some((due, self.turn)),
            None => None,
        }
    }

    /// Takes the outcome of a call; true when it is worth a line in the log.
    pub(crate) fn handle_answer(&mut self, now: Mono, answered: &Answered) -> bool {
        let wait = match answered {
            Answered::Good => {
                self.failures = 0;
                self.refused_since = None;
                self.due = (!self.settled).then(|| now + DIAL_WITHIN);
                return true;
            }
            Answered::Refused => {
                let since = *self.refused_since.get_or_insert(now);
                match (since + self.orphan) - now {
                    Millis(0) => REFUSED_AGAIN,
                    // Jobs are not stopped for one refusal: it is asked again when the time is over.
                    rest => rest.min(REFUSED_AGAIN),
                }
            }
            Answered::Failed => {
                let doubled = AGAIN_FIRST.0 << self.failures.min(6);
                self.failures += 1;
                Millis(doubled.min(AGAIN_MAX.0))
            }
        };
        self.turn = (self.turn + 1) % self.urls.max(1);
        self.due = (!self.settled).then(|| now + wait);
        let refused = matches!(answered, Answered::Refused);
        let quiet = self.refusal_logged.is_some_and(|at| now - at < REFUSED_LOG);
        if refused && !quiet {
            self.refusal_logged = Some(now);
        }
        !(refused && quiet)
    }

    /// Whether what the worker runs is to be stopped, as the last answer was a refusal and so was every
    /// one for long enough (LOCAL-13).
    pub(crate) fn is_orphan(&self, now: Mono, answered: Answered) -> bool {
        answered == Answered::Refused
            && self
                .refused_since
                .is_some_and(|since| now - since >= self.orphan)
    }

    /// A Manager controls the worker.
    pub(crate) const fn handle_connected(&mut self) {
        self.settled = true;
        self.due = None;
        self.failures = 0;
        self.refused_since = None;
    }

    /// Nobody controls the worker any more.
    pub(crate) fn handle_alone(&mut self, now: Mono) {
        self.settled = false;
        self.due = Some(now + STREAM_WITHIN);
    }

    /// The machine has another address: the Manager must come to know.
    pub(crate) const fn handle_moved(&mut self, now: Mono) {
        self.due = Some(now);
    }

    /// It is to stay and not to call (LOCAL-16).
    pub(crate) const fn handle_parked(&mut self) {
        self.settled = true;
        self.due = None;
    }
}

/// How Managers are called.
#[derive(Clone, Debug)]
pub(crate) struct Calling {
    tls: Option<ClientTls>,
    allow_insecure: bool,
}

// === impl Calling ===

impl Calling {
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let tls = match &config.trust {
            Some(trust) => Some(ClientTls::new(trust, None)?),
            None => None,
        };
        let calling = Self {
            tls,
            allow_insecure: config.allow_insecure,
        };
        for url in &config.manager_urls {
            calling.check(url).map_err(|problem| Error::Manager {
                url: url.clone(),
                problem,
            })?;
        }
        Ok(calling)
    }

    /// The answer to a call holds the node's key, so it is asked for only where nobody else hears it.
    fn check(&self, url: &str) -> Result<(), &'static str> {
        let uri = url.parse::<Uri>().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        match uri.as_ref().and_then(Uri::scheme_str) {
            Some("https") if self.tls.is_none() => Err("say whom to trust: a CA, or a pin"),
            Some("https") => Ok(()),
            Some("http") if self.allow_insecure || is_this_machine(host) => Ok(()),
            Some("http") => {
                Err("in the clear others would read the token and the node's key; use https")
            }
            _ => Err("it must be https://HOST:PORT or http://HOST:PORT"),
        }
    }
}

fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: std::net::IpAddr| address.is_loopback();
    bare == "localhost" || bare.parse().is_ok_and(is_loopback)
}

/// Makes one call.
pub(crate) async fn call(
    calling: &Calling,
    call: Call,
) -> Result<ClusterMemberRegisterResponse, Status> {
    calling.check(&call.url).map_err(Status::invalid_argument)?;
    let endpoint = Endpoint::from_shared(call.url.clone())
        .map_err(|error| Status::invalid_argument(format!("{:?}: {error}", call.url)))?
        .connect_timeout(CALL_MAX)
        .timeout(CALL_MAX);
    let connected = match &calling.tls {
        Some(tls) if call.url.starts_with("https://") => {
            let connector = greenroom_tls::connector(tls.clone());
            endpoint.connect_with_connector(connector).await
        }
        _ => endpoint.connect().await,
    };
    let channel = connected.map_err(|error| {
        // What went wrong stands at the end of the chain.
        let mut cause: &dyn std::error::Error = &error;
        while let Some(next) = cause.source() {
            cause = next;
        }
        Status::unavailable(format!("{}: {cause}", call.url))
    })?;
    let request = ClusterMemberRegisterRequest {
        token: call.token.expose().to_owned(),
        listen_address: call.listen_address,
        listen_port: u32::from(call.listen_port),
        hardware: Some(call.hardware),
        worker_protocol: crate::PROTOCOL_MINOR,
        machine_id: call.machine_id,
        public_key: call.public_key,
    };
    let response = ManagerClient::new(channel)
        .cluster_member_register(request)
        .await?;
    Ok(response.into_inner())
}

/// What an error of a call means for the next.
pub(crate) fn answered(status: &Status) -> Answered {
    match status.code() {
        Code::Unauthenticated => Answered::Refused,
        _ => Answered::Failed,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_tls::Trust;

    use super::*;

    fn due(call_in: &CallIn) -> Option<(u64, usize)> {
        call_in.next().map(|(at, url)| (at.0, url))
    }

    // spec: WORK-06
    #[test]
    fn failed_calls_go_to_each_url_in_turn_from_one_second_to_sixty() {
        let mut call_in = CallIn::new(Mono(0), 3, Millis(60_000));
        assert_eq!(due(&call_in), Some((0, 0)));
        let mut waits = Vec::new();
        let mut turns = Vec::new();
        for _ in 0..9 {
            assert!(call_in.handle_answer(Mono(0), &Answered::Failed));
            let (at, url) = due(&call_in).unwrap();
            waits.push(at / 1_000);
            turns.push(url);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(turns, [1, 2, 0, 1, 2, 0, 1, 2, 0]);
    }

    // spec: WORK-06
    #[test]
    fn a_good_answer_without_a_dial_and_a_lost_stream_are_followed_by_another_call() {
        let mut call_in = CallIn::new(Mono(0), 1, Millis(60_000));
        call_in.handle_answer(Mono(5), &Answered::Good);
        assert_eq!(due(&call_in), Some((60_005, 0)));
        call_in.handle_connected();
        assert_eq!(due(&call_in), None);
        // The dial may come before the answer to the call that led to it.
        call_in.handle_answer(Mono(10), &Answered::Good);
        assert_eq!(due(&call_in), None);
        call_in.handle_alone(Mono(100_000));
        assert_eq!(due(&call_in), Some((400_000, 0)));
    }

    // spec: WORK-06
    #[test]
    fn a_refused_credential_is_tried_each_minute_and_logged_each_ten() {
        let mut call_in = CallIn::new(Mono(0), 1, Millis(60_000));
        let mut logged = Vec::new();
        for minute in 0..21 {
            let now = Mono(minute * 60_000);
            if call_in.handle_answer(now, &Answered::Refused) {
                logged.push(minute);
            }
            assert_eq!(due(&call_in), Some(((minute + 1) * 60_000, 0)));
        }
        assert_eq!(logged, [0, 10, 20]);
    }

    // spec: LOCAL-13
    #[test]
    fn only_refusals_for_the_whole_time_make_an_orphan() {
        let minute = |count: u64| Mono(count * 60_000);
        let mut call_in = CallIn::new(Mono(0), 1, Millis(90_000));
        let mut answer = |at: Mono, answered: Answered| {
            call_in.handle_answer(at, &answered);
            (call_in.is_orphan(at, answered), due(&call_in).unwrap().0)
        };
        assert_eq!(answer(minute(0), Answered::Refused), (false, 60_000));
        // Asked again when the time is over, not up to a minute later.
        assert_eq!(answer(minute(1), Answered::Refused), (false, 90_000));
        assert!(!answer(Mono(90_000), Answered::Failed).0, "nobody said no");
        assert_eq!(answer(Mono(91_000), Answered::Refused), (true, 151_000));
        assert!(
            answer(Mono(151_000), Answered::Refused).0,
            "it keeps asking"
        );
        assert!(!answer(Mono(152_000), Answered::Good).0);
        assert!(
            !answer(Mono(153_000), Answered::Refused).0,
            "from the beginning"
        );
    }

    // spec: WORK-05
    #[test]
    fn a_changed_address_is_told_at_once() {
        let mut call_in = CallIn::new(Mono(0), 1, Millis(60_000));
        call_in.handle_connected();
        call_in.handle_moved(Mono(7));
        assert_eq!(due(&call_in), Some((7, 0)));
    }

    // spec: SEC-06
    #[test]
    fn the_node_key_is_asked_for_only_where_nobody_else_hears_the_answer() {
        let with = |trusts: bool, allow_insecure: bool| {
            let mut config = Config::new("");
            config.trust = trusts.then(|| Trust::Pins(Vec::new()));
            config.allow_insecure = allow_insecure;
            Calling::new(&config).unwrap()
        };
        let is_called = |calling: &Calling, url: &str| calling.check(url).is_ok();
        for url in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"] {
            assert!(is_called(&with(false, false), url), "{url}");
        }
        for url in ["http://10.0.0.1:1", "http://manager:1"] {
            assert!(!is_called(&with(true, false), url), "{url}");
            assert!(is_called(&with(false, true), url), "{url}");
        }
        assert!(is_called(&with(true, false), "https://manager:1"));
        for url in ["https://manager:1", "ftp://manager:1", "manager:1", ""] {
            assert!(!is_called(&with(false, true), url), "{url}");
        }
    }

    // spec: LOCAL-16
    #[test]
    fn a_parked_worker_does_not_call() {
        let mut call_in = CallIn::new(Mono(0), 1, Millis(60_000));
        call_in.handle_parked();
        assert_eq!(due(&call_in), None);
    }
}
