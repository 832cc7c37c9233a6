//! One connection to one member: dialling, Hello, and the sign that it broke.
//!
//! The status channel that brings the Hello stays open: its end is how a link learns that its member
//! went away, also while no call is under way. The log lines that come over it are dropped.

use std::time::Duration;

use greenroom_proto::convert::call::{PROTOCOL_MAJOR, PROTOCOL_METADATA};
use greenroom_proto::manager;
use greenroom_proto::manager::manager_client::ManagerClient;
use greenroom_proto::manager::norsk_status_event::Message;
use tonic::Code;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use crate::access::{Bearer, Ready};
use crate::error::UrlFailure;
use crate::version::{HelloInfo, Protocol};

/// The generated client, announcing this SDK's protocol with each call (SDK-02, HELLO-02).
///
/// ```no_run
/// use greenroom_sdk::RawClient;
/// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
/// let raw: RawClient = client.raw()?;
/// # Ok(())
/// # }
/// ```
pub type RawClient = ManagerClient<InterceptedService<Channel, Announce>>;

/// Where a client's connection stands (SDK-07).
///
/// ```no_run
/// # fn example(client: &greenroom_sdk::Client) -> bool {
/// client.state() == greenroom_sdk::ConnectionState::Ready
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Not begun.
    Idle,
    /// A member is being dialled.
    Connecting,
    /// A Hello was had.
    Ready,
    /// The connection broke, or no member answered; it is tried again.
    TransientFailure,
    /// Closed for good.
    Shutdown,
}

/// Adds `greenroom-protocol` and the caller's token to each request; a part of [`RawClient`]'s name.
///
/// ```no_run
/// use greenroom_sdk::{Announce, RawClient};
/// # fn example(_: Announce, raw: RawClient) {}
/// ```
#[derive(Clone, Debug)]
pub struct Announce {
    protocol: MetadataValue<tonic::metadata::Ascii>,
    bearer: Option<Bearer>,
}

/// Largest answer taken: a page of 500 nodes with inventories, or a job with 10 000 entries of
/// history, is far above tonic's default of 4 MiB.
pub(crate) const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A live connection.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// Grows with each connection of the client.
    pub(crate) number: u64,
    /// Which of the urls.
    pub(crate) url: usize,
    pub(crate) hello: HelloInfo,
    pub(crate) channel: Channel,
    bearer: Option<Bearer>,
}

/// How the cause of a url's failure begins when the member answered and refused the caller.
pub(crate) const REFUSED: &str = "refused: ";

/// The open status channel of a link.
pub(crate) type Pulse = tonic::Streaming<manager::NorskStatusEvent>;

// === impl Announce ===

impl Announce {
    pub(crate) fn ours(bearer: Option<Bearer>) -> Self {
        let text = Protocol::OURS.to_string();
        // Digits and a dot are always a header value.
        let protocol =
            MetadataValue::try_from(text).unwrap_or_else(|_| MetadataValue::from_static("1.0"));
        Self { protocol, bearer }
    }
}

impl Interceptor for Announce {
    fn call(
        &mut self,
        mut request: tonic::Request<()>,
    ) -> Result<tonic::Request<()>, tonic::Status> {
        request
            .metadata_mut()
            .insert(PROTOCOL_METADATA, self.protocol.clone());
        if let Some(bearer) = &self.bearer {
            request
                .metadata_mut()
                .insert("authorization", bearer.value());
        }
        Ok(request)
    }
}

// === impl Link ===

impl Link {
    /// Dials a url and waits for its Hello, both within `timeout`.
    pub(crate) async fn dial(
        number: u64,
        urls: &[String],
        url: usize,
        access: &Ready,
        timeout: Duration,
    ) -> Result<(Self, Pulse), UrlFailure> {
        let text = &urls[url];
        let dialled = tokio::time::timeout(timeout, Self::hello(text, access, timeout)).await;
        let failure = |cause: String| UrlFailure {
            url: text.clone(),
            cause,
        };
        let (channel, hello, pulse) = match dialled {
            Ok(result) => result.map_err(failure)?,
            Err(_) => {
                return Err(failure(format!(
                    "no Hello within {} ms",
                    timeout.as_millis()
                )));
            }
        };
        if hello.protocol.major != PROTOCOL_MAJOR {
            return Err(failure(format!(
                "the server speaks protocol {}, this client {}: the majors differ",
                hello.protocol,
                Protocol::OURS
            )));
        }
        let link = Self {
            number,
            url,
            hello,
            channel,
            bearer: access.bearer.clone(),
        };
        Ok((link, pulse))
    }

    async fn hello(
        url: &str,
        access: &Ready,
        timeout: Duration,
    ) -> Result<(Channel, HelloInfo, Pulse), String> {
        let channel = connect(url, access, timeout).await?;
        let mut pulse = raw(channel.clone(), access.bearer.clone())
            .create_status_channel(())
            .await
            .map_err(|status| {
                let cause = plain_cause(&status);
                match status.code() {
                    // Dialling again changes nothing about it.
                    Code::Unauthenticated | Code::PermissionDenied | Code::ResourceExhausted
                        if !cause.contains(NO_MANAGER) =>
                    {
                        format!("{REFUSED}{}", status.message())
                    }
                    _ => cause,
                }
            })?
            .into_inner();
        match pulse.message().await {
            Ok(Some(manager::NorskStatusEvent {
                message: Some(Message::Hello(hello)),
            })) => Ok((channel, HelloInfo::read(hello), pulse)),
            Ok(Some(_)) => Err("the status channel did not begin with a Hello".to_owned()),
            Ok(None) => Err("the status channel ended before a Hello".to_owned()),
            Err(status) => Err(format!("no Hello: {}", plain_cause(&status))),
        }
    }

    pub(crate) fn announce(&self) -> Announce {
        Announce::ours(self.bearer.clone())
    }

    pub(crate) fn raw(&self) -> RawClient {
        raw(self.channel.clone(), self.bearer.clone())
    }
}

/// Reads a status channel until it ends.
pub(crate) async fn until_silent(mut pulse: Pulse) {
    while let Ok(Some(_)) = pulse.message().await {}
}

/// A channel to a member, with TLS where the url says so.
pub(crate) async fn connect(
    url: &str,
    access: &Ready,
    timeout: Duration,
) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|error| plain_cause(&error))?
        .connect_timeout(timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    let connected = match &access.tls {
        Some(tls) if url.starts_with("https://") => {
            let connector = greenroom_tls::connector(tls.clone());
            endpoint.connect_with_connector(connector).await
        }
        _ => endpoint.connect().await,
    };
    connected.map_err(|error| plain_cause(&error))
}

fn raw(channel: Channel, bearer: Option<Bearer>) -> RawClient {
    ManagerClient::with_interceptor(channel, Announce::ours(bearer))
        .max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// Words of a cause (see [`plain_cause`]) where a server answers that is no Manager.
pub const NO_MANAGER: &str = "no Manager";

/// Why a connection failed, in the words of the innermost cause: those around it only repeat which
/// part of the transport passed it on. A server that does not speak the Manager's protocol at all is
/// told as such.
///
/// ```
/// let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
/// assert_eq!(greenroom_sdk::plain_cause(&refused), "connection refused");
/// let status = tonic::Status::unavailable("no space left");
/// assert_eq!(greenroom_sdk::plain_cause(&status), "no space left");
/// ```
pub fn plain_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    let text = match innermost.downcast_ref::<tonic::Status>() {
        Some(status) => status.message().to_owned(),
        None => innermost.to_string(),
    };
    // tonic's words for an answer that is none of gRPC's: without its status, or of another form.
    let code = [
        "mapped from HTTP status code ",
        "receiving response with status: ",
    ]
    .iter()
    .find_map(|words| text.split_once(words));
    match code {
        Some((_, code)) => format!("what answers there is {NO_MANAGER} (HTTP status {code})"),
        None => text,
    }
}
