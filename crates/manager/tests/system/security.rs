//! A door with TLS and credentials, beside the one on loopback that asks for nothing (SEC-01 to
//! SEC-04, SEC-07, SEC-09).

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use greenroom_auth::{AccessToken, Role, SecretsKey};
use greenroom_manager::{CertificateRole, License, ListenSettings, StartError, TlsFiles};
use greenroom_proto::health::HealthCheckRequest;
use greenroom_proto::health::health_client::HealthClient;
use greenroom_proto::manager::ListNodesRequest;
use greenroom_sdk::types::Wall;
use greenroom_sdk::types::call::Detail;
use greenroom_sdk::types::discovery::RotationStep;
use greenroom_sdk::types::job::HistoryKind;
use greenroom_sdk::{
    Access, Client, Error, EventSettings, Settings, StreamItem, Token, TokenSource,
};
use greenroom_testkit::{TestManager, job, within};
use greenroom_tls::mint::{self, Minted, Purpose};
use greenroom_tls::{ClientTls, Identity, Trust, authorities};
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Request};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

const LASTS: Duration = Duration::from_secs(86_400);
const NEVER: Option<Wall> = None;
const LONG_AGO: Option<Wall> = Some(Wall(1_000_000_000_000));

/// A Manager with a second door, and everything that opens it.
pub(super) struct Guarded {
    pub(super) manager: TestManager,
    folder: TempDir,
    ca: Minted,
    pub(super) viewer: AccessToken,
    pub(super) operator: AccessToken,
    ended: AccessToken,
}

// === impl Guarded ===

impl Guarded {
    pub(super) async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    pub(super) async fn start_with(adjust: impl FnOnce(&mut greenroom_manager::Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ca = mint::authority("test CA", SystemTime::now()).unwrap();
        let tokens = [(); 3].map(|()| AccessToken::generate());
        let [viewer, operator, ended] = tokens;
        let mut guarded = Self {
            manager: TestManager::start_with(|settings| {
                let path = |name: &str| folder.path().join(name);
                let server = server(&ca);
                for (name, text) in [
                    ("ca.pem", &ca.certificate),
                    ("cert.pem", &server.certificate),
                    ("key.pem", &server.key),
                ] {
                    std::fs::write(path(name), text).unwrap();
                }
                let lines = [
                    viewer.line(Role::Viewer, NEVER, "vera"),
                    operator.line(Role::Operator, NEVER, "otto"),
                    ended.line(Role::Admin, LONG_AGO, "erna"),
                ];
                std::fs::write(path("tokens"), lines.concat()).unwrap();
                settings.listen.push(ListenSettings {
                    tls: Some(TlsFiles {
                        certificate: path("cert.pem"),
                        key: path("key.pem"),
                        client_ca: Some(path("ca.pem")),
                    }),
                    asks: true,
                    ..ListenSettings::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
                });
                settings.auth.tokens_file = Some(path("tokens"));
                settings.auth.certificates = vec![CertificateRole {
                    subject: "CN=control".to_owned(),
                    role: Role::ControlPlane,
                }];
                adjust(settings);
            })
            .await,
            folder,
            ca,
            viewer,
            operator,
            ended,
        };
        // Started again, it is to be found at the same address.
        let address = guarded.address();
        guarded.manager.settings().listen[1].address = address;
        guarded
    }

    fn address(&self) -> SocketAddr {
        self.manager.running().addresses()[1]
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn access(&self, token: Option<&AccessToken>) -> Access {
        Access {
            ca: Some(self.path("ca.pem")),
            token: token.map(|token| TokenSource::Text(Token::new(token.expose()))),
            ..Access::default()
        }
    }

    async fn connect(&self, access: Access) -> Result<Client, Error> {
        self.connect_to("127.0.0.1", access).await
    }

    async fn connect_to(&self, host: &str, access: Access) -> Result<Client, Error> {
        let url = format!("https://{host}:{}", self.address().port());
        let settings = Settings {
            access,
            ..Settings::new([url])
        };
        within("an answer", Client::connect(settings)).await
    }

    pub(super) async fn with(&self, token: &AccessToken) -> Client {
        self.connect(self.access(Some(token))).await.unwrap()
    }

    /// Why a connection is refused.
    async fn refused(&self, access: Access) -> String {
        self.connect(access).await.unwrap_err().to_string()
    }

    fn write_tokens(&self, lines: &[String]) {
        let new = self.path("tokens.new");
        std::fs::write(&new, lines.concat()).unwrap();
        std::fs::rename(new, self.path("tokens")).unwrap();
    }

    /// A connection without anything but TLS.
    async fn channel(&self) -> Channel {
        let trust = Trust::Authorities(authorities(&self.path("ca.pem")).unwrap());
        let tls = ClientTls::new(&trust, None).unwrap();
        let url = format!("https://{}", self.address());
        let endpoint = Channel::from_shared(url).unwrap();
        let connector = greenroom_tls::connector(tls);
        endpoint.connect_with_connector(connector).await.unwrap()
    }
}

fn server(ca: &Minted) -> Minted {
    let names = ["127.0.0.1".to_owned()];
    let now = SystemTime::now();
    mint::signed(ca, "manager", &names, Purpose::Server, now, LASTS).unwrap()
}

// spec: API-22
#[tokio::test]
async fn reflection_is_for_those_who_may_read() {
    let guarded = Guarded::start().await;
    let channel = guarded.channel().await;
    let ask = async |token: Option<&AccessToken>| {
        let mut client = ServerReflectionClient::new(channel.clone());
        let question = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut request = Request::new(tokio_stream::iter([question]));
        if let Some(token) = token {
            let bearer = format!("Bearer {}", token.expose());
            request
                .metadata_mut()
                .insert("authorization", bearer.parse().unwrap());
        }
        let answers = client.server_reflection_info(request).await?;
        answers.into_inner().message().await
    };
    let refused = ask(None).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let answer = ask(Some(&guarded.viewer)).await.unwrap();
    assert!(answer.expect("an answer").message_response.is_some());
}

// spec: SEC-02, SEC-03
#[tokio::test]
async fn a_credential_opens_what_its_role_may_do_and_nothing_else() {
    let guarded = Guarded::start().await;
    let none = guarded.refused(guarded.access(None)).await;
    assert!(none.contains("asks for a credential"), "{none}");
    let stranger = AccessToken::generate();
    let unknown = guarded.refused(guarded.access(Some(&stranger))).await;
    assert!(unknown.contains("does not hold"), "{unknown}");
    let ended = guarded.refused(guarded.access(Some(&guarded.ended))).await;
    assert!(ended.contains("has ended"), "{ended}");

    let (viewer, operator) = (
        guarded.with(&guarded.viewer).await,
        guarded.with(&guarded.operator).await,
    );
    viewer.list_nodes().await.unwrap();
    let Err(Error::PermissionDenied(refused)) = viewer.create_job(job("a")).await else {
        panic!("a viewer changes nothing");
    };
    assert_eq!(refused.reason, "role_required");
    assert_eq!(refused.details["role"], Detail::Text("operator".to_owned()));
    operator.create_job(job("a")).await.unwrap();

    // A certificate is as good as a token.
    let control = mint::signed(
        &guarded.ca,
        "control",
        &[],
        Purpose::Client,
        SystemTime::now(),
        LASTS,
    )
    .unwrap();
    let files = (guarded.path("control.pem"), guarded.path("control-key.pem"));
    std::fs::write(&files.0, &control.certificate).unwrap();
    std::fs::write(&files.1, &control.key).unwrap();
    let shown = Access {
        certificate: Some(files),
        ..guarded.access(None)
    };
    let client = guarded.connect(shown).await.unwrap();
    client.create_job(job("b")).await.unwrap();

    // The fleet's secrets are for the control plane, and rotating them for admins (DISC-03, DISC-04).
    assert_eq!(client.get_discovery_fleet().await.unwrap(), None);
    let flip = RotationStep::Flip;
    let refused = client.rotate_discovery_tier_secret(flip, None, "").await;
    assert_eq!(refused.unwrap_err().reason(), "role_required");
    for token in [&guarded.viewer, &guarded.operator] {
        let lesser = guarded.with(token).await;
        let refused = lesser.get_discovery_fleet().await.unwrap_err();
        assert_eq!(refused.reason(), "role_required");
    }

    // The door on loopback asks for nothing.
    let local = guarded.manager.client().await;
    assert_eq!(local.list_nodes().await.unwrap(), []);
}

// spec: SEC-03
#[tokio::test]
async fn a_call_that_is_none_is_told_to_nobody_without_a_credential() {
    let guarded = Guarded::start().await;
    let call = async |token: Option<&AccessToken>| {
        let mut client = tonic::client::Grpc::new(guarded.channel().await);
        client.ready().await.unwrap();
        let mut request = tonic::Request::new(ListNodesRequest::default());
        if let Some(token) = token {
            let value = format!("Bearer {}", token.expose()).parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        let path = "/norsk.api.manager.Manager/Reboot".parse().unwrap();
        let codec = tonic_prost::ProstCodec::<ListNodesRequest, ListNodesRequest>::default();
        client.unary(request, path, codec).await.unwrap_err().code()
    };
    assert_eq!(call(None).await, Code::Unauthenticated);
    assert_eq!(call(Some(&guarded.viewer)).await, Code::Unimplemented);

    // Health needs none (API-10).
    let mut health = HealthClient::new(guarded.channel().await);
    let asked = HealthCheckRequest::default();
    health.check(asked).await.unwrap();
}

// spec: SEC-07
#[tokio::test]
async fn the_manager_is_known_by_its_ca_and_name_or_by_its_pin() {
    let guarded = Guarded::start().await;
    let token = Some(&guarded.viewer);
    let other = mint::authority("other CA", SystemTime::now()).unwrap();
    std::fs::write(guarded.path("other.pem"), &other.certificate).unwrap();
    let wrong = Access {
        ca: Some(guarded.path("other.pem")),
        ..guarded.access(token)
    };
    let refused = guarded.refused(wrong.clone()).await;
    assert!(refused.contains("not signed by the CA"), "{refused}");
    let named = guarded.connect_to("localhost", guarded.access(token)).await;
    let refused = named.unwrap_err().to_string();
    assert!(refused.contains("other names"), "{refused}");

    let pin = |certificate: &str| {
        let identity = Identity::load(&guarded.path(certificate), &guarded.path("key.pem"));
        identity.unwrap().pin().unwrap().to_string()
    };
    let pinned = Access {
        pins: vec![pin("cert.pem")],
        ..wrong.clone()
    };
    let client = guarded.connect_to("localhost", pinned).await.unwrap();
    client.list_nodes().await.unwrap();
    let mispinned = Access {
        pins: vec![pin("ca.pem")],
        ..guarded.access(token)
    };
    let refused = guarded.refused(mispinned).await;
    assert!(refused.contains("another key"), "{refused}");

    // In the clear nothing is heard there, and TLS is not spoken at the other door.
    let clear = Settings::new([format!("http://{}", guarded.address())]);
    within("an answer", Client::connect(clear))
        .await
        .unwrap_err();
    let url = guarded.manager.url().replace("http://", "https://");
    let settings = Settings {
        access: guarded.access(None),
        ..Settings::new([url])
    };
    let refused = within("an answer", Client::connect(settings)).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("does not speak TLS"), "{refused}");
}

// spec: LOCAL-04
#[tokio::test]
async fn slot_tokens_are_shown_to_operators_and_not_to_viewers() {
    let guarded = Guarded::start().await;
    let operator = guarded.with(&guarded.operator).await;
    let slot = operator.register_cluster_node("n1", "").await.unwrap();
    let shown = async |client: &Client| {
        let slots = client.list_cluster_nodes().await.unwrap();
        slots[0].token.clone()
    };
    assert_eq!(shown(&operator).await, slot.token.reveal());
    let viewer = guarded.with(&guarded.viewer).await;
    assert_eq!(shown(&viewer).await, "***");
}

// spec: SEC-04
#[tokio::test]
async fn tokens_that_are_taken_away_end_streams_and_new_ones_are_taken() {
    let guarded = Guarded::start().await;
    let viewer = guarded.with(&guarded.viewer).await;
    let settings = EventSettings {
        auto_resume: false,
        ..EventSettings::default()
    };
    let (_, mut gone) = viewer.event_stream(settings.clone()).await.unwrap();
    let operator = guarded.with(&guarded.operator).await;
    let (_, mut stays) = operator.event_stream(settings).await.unwrap();

    let newcomer = AccessToken::generate();
    guarded.write_tokens(&[
        guarded.operator.line(Role::Operator, NEVER, "otto"),
        newcomer.line(Role::Viewer, NEVER, "nina"),
    ]);
    let cause = loop {
        match within("the end of the stream", gone.next()).await {
            Some(StreamItem::Closed(cause)) => break cause,
            Some(_) => {}
            None => panic!("it ends with a cause"),
        }
    };
    assert!(matches!(cause, Error::Unauthenticated(_)), "{cause}");
    viewer.close();
    let refused = guarded.refused(guarded.access(Some(&guarded.viewer))).await;
    assert!(refused.contains("does not hold"), "{refused}");
    guarded.with(&newcomer).await.list_nodes().await.unwrap();
    operator.create_job(job("a")).await.unwrap();
    loop {
        match within("an event", stays.next()).await {
            Some(StreamItem::Event(_)) => break,
            Some(StreamItem::Resnapshot(_)) => {}
            other => panic!("{other:?}"),
        }
    }

    // A file that cannot be read changes nothing.
    guarded.write_tokens(&["nonsense\n".to_owned()]);
    let renewed = server(&guarded.ca);
    std::fs::write(guarded.path("key.pem"), &renewed.key).unwrap();
    std::fs::write(guarded.path("cert.pem"), &renewed.certificate).unwrap();
    let pin = renewed.identity().unwrap().pin().unwrap().to_string();
    let pinned = Access {
        pins: vec![pin],
        ..guarded.access(Some(&newcomer))
    };
    let taken = async { while guarded.connect(pinned.clone()).await.is_err() {} };
    within("the new certificate", taken).await;
    assert_eq!(operator.list_nodes().await.unwrap(), []);
}

// spec: SEC-09
#[tokio::test]
async fn who_guesses_is_slowed_down_and_who_is_known_is_not() {
    let guarded = Guarded::start().await;
    let operator = guarded.with(&guarded.operator).await;
    let mut answers = Vec::new();
    for _ in 0..11 {
        let stranger = AccessToken::generate();
        answers.push(guarded.refused(guarded.access(Some(&stranger))).await);
    }
    let told = answers.last().unwrap();
    assert!(told.contains("wait a minute"), "{told}");
    assert!(answers[..9].iter().all(|it| it.contains("does not hold")));
    operator.list_nodes().await.unwrap();
    // One that was not seen yet could be another guess.
    let unseen = guarded.refused(guarded.access(Some(&guarded.viewer))).await;
    assert!(unseen.contains("wait a minute"), "{unseen}");
}

/// Every file below a folder with its bytes, but for the backups' own folders.
fn stored(folder: &std::path::Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            stored(&path, found);
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
}

// spec: SEC-11
#[tokio::test]
async fn slot_secrets_are_sealed_on_disk_and_another_key_changes_nothing() {
    let mut manager = TestManager::start().await;
    let worker = manager.worker("n1").await;
    manager.end().await;
    let all = |manager: &TestManager| {
        let mut found = Vec::new();
        stored(manager.data_dir(), &mut found);
        found.sort();
        found
    };
    let before = all(&manager);
    let token = worker.token().reveal().as_bytes();
    for (path, bytes) in &before {
        let holds = bytes.windows(token.len()).any(|part| part == token);
        assert!(!holds, "the token stands in {}", path.display());
    }
    let key = manager.data_dir().join("secrets.key");
    let old = std::fs::read(&key).unwrap();
    let other = SecretsKey::generate().to_text();
    for text in [Some(other.expose()), Some("nonsense"), None] {
        match text {
            Some(text) => std::fs::write(&key, text).unwrap(),
            None => std::fs::remove_file(&key).unwrap(),
        }
        let refused = manager.try_run().await;
        assert!(
            matches!(refused, Err(StartError::SecretsKey(_))),
            "{text:?}"
        );
    }
    std::fs::write(&key, old).unwrap();
    assert!(all(&manager) == before, "nothing was written");
    // With its key it knows its worker again.
    manager.run().await;
    worker.wait_greeted(2).await;
}

// spec: HIST-06
#[tokio::test]
async fn what_a_job_was_before_a_change_is_told_without_history_and_secrets() {
    let guarded = Guarded::start().await;
    let client = guarded.with(&guarded.operator).await;
    let mut changed = job("news");
    changed.secret_env = vec!["KEY".to_owned()];
    changed.services[0].parameters.environment = vec![
        ("KEY".to_owned(), "hunter2".to_owned()),
        ("PORT".to_owned(), "1".to_owned()),
    ];
    let hash = client.create_job(changed.clone()).await.unwrap();
    changed.services[0].parameters.environment[1].1 = "2".to_owned();
    client.update_job(changed, hash).await.unwrap();

    for token in [&guarded.viewer, &guarded.operator] {
        let reader = guarded.with(token).await;
        let (state, _events) = reader.event_stream(EventSettings::default()).await.unwrap();
        let told = &state.active_jobs[0].job;
        let Some(HistoryKind::Updated { previous }) = told.history.last().map(|it| &it.kind) else {
            panic!("{told:?}")
        };
        let variables = &previous.services[0].parameters.environment;
        assert_eq!(variables[0], ("KEY".to_owned(), "***".to_owned()));
        assert_eq!(variables[1], ("PORT".to_owned(), "1".to_owned()));
        assert!(!format!("{state:?}").contains("hunter2"));
    }
}

// spec: SEC-08
#[tokio::test]
async fn a_licence_is_passed_on_to_workers_as_it_is() {
    let manager = TestManager::start_with(|settings| {
        settings.license = License {
            text: "media; until 2030".to_owned(),
            signature: "c2lnbmVk".to_owned(),
        };
    })
    .await;
    let worker = manager.worker("n1").await;
    worker.wait_greeted(1).await;
    let licence = r#"license: "media; until 2030", signature: "c2lnbmVk""#;
    assert!(worker.heard().contains(licence), "{}", worker.heard());

    let without = TestManager::start().await;
    let worker = without.worker("n1").await;
    worker.wait_greeted(1).await;
    let none = r#"license: "", signature: """#;
    assert!(worker.heard().contains(none), "{}", worker.heard());
}
