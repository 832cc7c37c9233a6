//! Whether the cloud is about to take this machine: asked of its metadata service (WORK-50, WORK-52).
//!
//! On EC2 two documents are looked at with a session token, again and again: the action that a spot
//! machine faces, and the advice to move. On OCI it is the machine's own document, which says when its
//! end has begun. What is not there is no notice, and neither is a service that fails. What is seen is
//! told each time; whether it is news is for `agent.rs` to say.

mod document;

use std::fmt::Display;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use greenroom_types::Wall;
use greenroom_types::node::InterruptionKind;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use self::document::{Action, Instance};
use crate::config::{Cloud, Config, Error};
use crate::node::{Input, now};

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The service is on this machine's own link: what takes longer has failed.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Its documents are a few lines.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Where every machine of either cloud has it.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// How long a token may be used, in seconds; the longest there is.
const TOKEN_SECONDS: &str = "21600";
const TOKEN_PATH: &str = "/latest/api/token";
const TOKEN_LIFE: &str = "x-aws-ec2-metadata-token-ttl-seconds";
const TOKEN: &str = "x-aws-ec2-metadata-token";
/// The action that a spot machine faces.
const ACTION_PATH: &str = "/latest/meta-data/spot/instance-action";
/// The advice to move before that.
const REBALANCE_PATH: &str = "/latest/meta-data/events/recommendations/rebalance";
/// What OCI says of the machine.
const INSTANCE_PATH: &str = "/opc/v2/instance/";
/// The header without which it says nothing; no secret.
const BEARER: (&str, &str) = ("authorization", "Bearer Oracle");

/// The provider takes this node, or advises to leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) kind: InterruptionKind,
    /// When the node goes, if known.
    pub(crate) deadline: Option<Wall>,
    pub(crate) seen_at: Wall,
}

/// The metadata service of a machine.
pub(crate) struct Metadata {
    address: Ipv4Addr,
    port: u16,
    provider: Provider,
}

/// Whose it is.
enum Provider {
    /// With the session token that is in use.
    Ec2(Option<String>),
    Oci,
}

/// The metadata service of the cloud that the settings name, or that the machine is found in.
pub(crate) fn find(config: &Config) -> Result<Option<Metadata>, Error> {
    let provider = match config.cloud {
        Cloud::None => None,
        Cloud::Ec2 => Some(Provider::Ec2(None)),
        Cloud::Oci => Some(Provider::Oci),
        Cloud::Auto => provider_of(Path::new("/sys/class/dmi/id"))
            .or_else(|| config.metadata_url.as_ref().map(|_| Provider::Ec2(None))),
    };
    let Some(provider) = provider else {
        return Ok(None);
    };
    let (address, port) = match &config.metadata_url {
        None => (ADDRESS, 80),
        Some(url) => authority(url).ok_or_else(|| Error::Metadata(url.clone()))?,
    };
    Ok(Some(Metadata {
        address,
        port,
        provider,
    }))
}

/// Address and port of `http://IPV4[:PORT]`.
fn authority(url: &str) -> Option<(Ipv4Addr, u16)> {
    let rest = url.strip_prefix("http://")?.trim_end_matches('/');
    let (host, port) = rest.split_once(':').unwrap_or((rest, "80"));
    Some((host.parse().ok()?, port.parse().ok()?))
}

/// Whose machine this is by what its firmware says.
fn provider_of(dmi: &Path) -> Option<Provider> {
    let says = |file: &str, word: &str| {
        std::fs::read_to_string(dmi.join(file))
            .is_ok_and(|text| text.to_ascii_lowercase().contains(word))
    };
    if says("sys_vendor", "amazon ec2") || says("bios_version", "amazon") {
        return Some(Provider::Ec2(None));
    }
    says("chassis_asset_tag", "oraclecloud.com").then_some(Provider::Oci)
}

/// Asks again and again, and tells what it sees.
pub(crate) async fn watch(mut service: Metadata, inputs: mpsc::Sender<Input>) {
    let mut ticks = tokio::time::interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut failed = false;
    loop {
        ticks.tick().await;
        match service.ask().await {
            Ok(seen) => {
                failed = false;
                if let Some(notice) = seen
                    && inputs.send(Input::Notice(notice)).await.is_err()
                {
                    return;
                }
            }
            Err(why) if !failed => {
                failed = true;
                let address = service.address;
                tracing::warn!(%address, why, "the metadata service does not tell of interruptions");
            }
            Err(_) => {}
        }
    }
}

// === impl Metadata ===

impl Metadata {
    /// Where no job may come (WORK-51).
    pub(crate) const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The gravest notice there is.
    async fn ask(&mut self) -> Result<Option<Notice>, String> {
        match self.provider {
            Provider::Ec2(_) => self.ask_ec2().await,
            Provider::Oci => self.ask_oci().await,
        }
    }

    /// An advice is not told beside an action, which says more.
    async fn ask_ec2(&mut self) -> Result<Option<Notice>, String> {
        let seen_at = now();
        if let Some(text) = self.document(ACTION_PATH).await? {
            let action = Action::read(&text)
                .map_err(|error| format!("{ACTION_PATH} cannot be read: {error}"))?;
            tracing::info!(action = action.action, "the provider takes this node");
            return Ok(Some(Notice {
                kind: InterruptionKind::SpotInterruption,
                deadline: action.deadline(),
                seen_at,
            }));
        }
        let advice = self.document(REBALANCE_PATH).await?;
        Ok(advice.map(|_| Notice {
            kind: InterruptionKind::Rebalance,
            deadline: None,
            seen_at,
        }))
    }

    /// The machine's end has begun, and nobody says until when it lasts.
    async fn ask_oci(&self) -> Result<Option<Notice>, String> {
        let seen_at = now();
        let text = match self.request(Method::GET, INSTANCE_PATH, BEARER).await? {
            (StatusCode::OK, text) => text,
            (StatusCode::NOT_FOUND, _) => return Ok(None),
            (status, _) => return Err(format!("{INSTANCE_PATH}: {status}")),
        };
        let instance = Instance::read(&text)
            .map_err(|error| format!("{INSTANCE_PATH} cannot be read: {error}"))?;
        if !instance.is_ending() {
            return Ok(None);
        }
        tracing::info!(state = instance.state, "the provider takes this node");
        Ok(Some(Notice {
            kind: InterruptionKind::SpotInterruption,
            deadline: None,
            seen_at,
        }))
    }

    /// A document of EC2, or none where the service has none. A token that ran out is replaced once.
    async fn document(&mut self, path: &str) -> Result<Option<String>, String> {
        for _ in 0..2 {
            let token = match &self.provider {
                Provider::Ec2(Some(token)) => token.clone(),
                _ => {
                    let life = (TOKEN_LIFE, TOKEN_SECONDS);
                    match self.request(Method::PUT, TOKEN_PATH, life).await? {
                        (StatusCode::OK, token) => {
                            self.provider = Provider::Ec2(Some(token.clone()));
                            token
                        }
                        (status, _) => return Err(format!("{TOKEN_PATH}: {status}")),
                    }
                }
            };
            match self.request(Method::GET, path, (TOKEN, &token)).await? {
                (StatusCode::OK, text) => return Ok(Some(text)),
                (StatusCode::NOT_FOUND, _) => return Ok(None),
                (StatusCode::UNAUTHORIZED, _) => self.provider = Provider::Ec2(None),
                (status, _) => return Err(format!("{path}: {status}")),
            }
        }
        Err(format!("{path}: {}", StatusCode::UNAUTHORIZED))
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        (name, value): (&str, &str),
    ) -> Result<(StatusCode, String), String> {
        let host = format!("{}:{}", self.address, self.port);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &host)
            .header(name, value)
            .body(Empty::<Bytes>::new())
            .map_err(words)?;
        let asked = async {
            let stream = TcpStream::connect(&host).await.map_err(words)?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .map_err(words)?;
            let _driver = AbortOnDropHandle::new(tokio::spawn(connection));
            let answer = sender.send_request(request).await.map_err(words)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
            let bytes = body.collect().await.map_err(words)?.to_bytes();
            let text = String::from_utf8(bytes.to_vec()).map_err(words)?;
            Ok((status, text))
        };
        match tokio::time::timeout(ANSWER_MAX, asked).await {
            Ok(answered) => answered,
            Err(_) => Err(format!(
                "{path}: no answer within {} s",
                ANSWER_MAX.as_secs()
            )),
        }
    }
}

fn words(error: impl Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    // spec: WORK-50, WORK-52
    #[test]
    fn the_maker_of_a_machine_is_known_by_its_firmware() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        let found = || match provider_of(dir.path()) {
            None => "none",
            Some(Provider::Ec2(_)) => "ec2",
            Some(Provider::Oci) => "oci",
        };
        assert_eq!(found(), "none");
        write("sys_vendor", "QEMU\n");
        assert_eq!(found(), "none");
        write("chassis_asset_tag", "OracleCloud.com\n");
        assert_eq!(found(), "oci");
        write("sys_vendor", "Amazon EC2\n");
        write("chassis_asset_tag", "Amazon EC2\n");
        assert_eq!(found(), "ec2");
        // Older machines name it elsewhere.
        write("sys_vendor", "Xen\n");
        assert_eq!(found(), "none");
        write("bios_version", "4.11.amazon\n");
        assert_eq!(found(), "ec2");
    }

    // spec: WORK-50
    #[test]
    fn the_service_is_at_the_cloud_s_address_unless_the_settings_say_where() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        let at = |config: &Config| find(config).unwrap().map(|it| (it.address, it.port));
        config.cloud = Cloud::None;
        config.metadata_url = Some("http://127.0.0.1:1".to_owned());
        assert_eq!(at(&config), None);
        config.cloud = Cloud::Auto;
        assert_eq!(at(&config), Some((Ipv4Addr::LOCALHOST, 1)));
        config.metadata_url = None;
        for cloud in [Cloud::Ec2, Cloud::Oci] {
            config.cloud = cloud;
            assert_eq!(at(&config), Some((ADDRESS, 80)));
        }
        for url in [
            "https://127.0.0.1",
            "http://imds",
            "127.0.0.1:80",
            "http://127.0.0.1:x",
        ] {
            config.metadata_url = Some(url.to_owned());
            assert!(matches!(find(&config), Err(Error::Metadata(it)) if it == url));
        }
    }

    /// A service that gives these answers, one after the other, and what it was asked.
    async fn service(
        provider: Provider,
        answers: &'static [(&str, &str)],
    ) -> (Metadata, mpsc::Receiver<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, asked) = mpsc::channel(64);
        tokio::spawn(async move {
            for (status, body) in answers {
                let (mut socket, _) = listener.accept().await.unwrap();
                let (mut request, mut buffer) = (Vec::new(), [0; 1_024]);
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    let n = socket.read(&mut buffer).await.unwrap();
                    request.extend_from_slice(&buffer[..n]);
                }
                let request = String::from_utf8(request).unwrap();
                sender.send(request.to_ascii_lowercase()).await.unwrap();
                let length = body.len();
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
                socket.write_all((head + body).as_bytes()).await.unwrap();
            }
        });
        let service = Metadata {
            address: Ipv4Addr::LOCALHOST,
            port,
            provider,
        };
        (service, asked)
    }

    // spec: WORK-50
    #[tokio::test]
    async fn what_is_not_there_is_no_notice_and_neither_is_a_service_that_fails() {
        let (mut none, mut asked) = service(
            Provider::Ec2(None),
            &[
                ("200 OK", "t1"),
                ("404 Not Found", ""),
                ("404 Not Found", "x"),
            ],
        )
        .await;
        assert_eq!(none.ask().await, Ok(None));
        let token = asked.recv().await.unwrap();
        assert!(token.starts_with("put /latest/api/token "), "{token}");
        assert!(
            token.contains("x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n"),
            "{token}"
        );
        for path in [ACTION_PATH, REBALANCE_PATH] {
            let asked = asked.recv().await.unwrap();
            assert!(asked.starts_with(&format!("get {path} ")), "{asked}");
            assert!(
                asked.contains("x-aws-ec2-metadata-token: t1\r\n"),
                "{asked}"
            );
        }
        for answers in [
            &[("503 Service Unavailable", "")][..],
            &[("200 OK", "t1"), ("503 Service Unavailable", "")],
            // A page of something else that answers there.
            &[("200 OK", "t1"), ("200 OK", "<html>hello</html>")],
            &[("200 OK", "t1"), ("404 Not Found", ""), ("500 Oops", "")],
            // Nobody answers any more.
            &[],
        ] {
            assert!(
                service(Provider::Ec2(None), answers)
                    .await
                    .0
                    .ask()
                    .await
                    .is_err(),
                "{answers:?}"
            );
        }
    }

    // spec: WORK-50
    #[tokio::test]
    async fn a_token_that_ran_out_is_replaced_once() {
        let (mut service, mut asked) = service(
            Provider::Ec2(None),
            &[
                ("200 OK", "t1"),
                ("401 Unauthorized", ""),
                ("200 OK", "t2"),
                ("200 OK", r#"{"action":"stop"}"#),
                ("200 OK", r#"{"action":"stop"}"#),
            ],
        )
        .await;
        let notice = service.ask().await.unwrap().unwrap();
        // An action without a time takes the node all the same.
        let kind = InterruptionKind::SpotInterruption;
        assert_eq!((notice.kind, notice.deadline), (kind, None));
        service.ask().await.unwrap().unwrap();
        let mut tokens = Vec::new();
        for _ in 0..5 {
            let asked = asked.recv().await.unwrap();
            let line = asked
                .lines()
                .find_map(|line| Some(line.strip_prefix("x-aws-ec2-metadata-token: ")?.to_owned()));
            tokens.push(line.unwrap_or_default());
        }
        assert_eq!(tokens, ["", "t1", "", "t2", "t2"]);
    }

    // spec: WORK-52
    #[tokio::test]
    async fn a_machine_of_oci_says_itself_that_its_end_has_begun() {
        let (mut service, mut asked) = service(
            Provider::Oci,
            &[
                ("200 OK", r#"{"id": "ocid1", "state": "Running"}"#),
                ("404 Not Found", ""),
                ("503 Service Unavailable", ""),
                ("200 OK", "<html>hello</html>"),
                ("200 OK", r#"{"state": "Terminating", "shape": "VM.E5"}"#),
            ],
        )
        .await;
        assert_eq!(service.ask().await, Ok(None));
        let first = asked.recv().await.unwrap();
        assert!(first.starts_with("get /opc/v2/instance/ "), "{first}");
        assert!(
            first.contains("authorization: bearer oracle\r\n"),
            "{first}"
        );
        assert_eq!(service.ask().await, Ok(None));
        assert!(service.ask().await.is_err());
        assert!(service.ask().await.is_err());
        let notice = service.ask().await.unwrap().unwrap();
        let kind = InterruptionKind::SpotInterruption;
        assert_eq!((notice.kind, notice.deadline), (kind, None));
    }
}
