//! Writes the first inputs of each target into `corpus/`: what is well formed, for the fuzzer to bend.

use std::fs;
use std::path::Path;

use greenroom_fuzz::{call_piece, piece};
use greenroom_proto::worker::worker_message::Message;
use greenroom_proto::worker::{Health, WorkerJobStarted, WorkerMessage};
use greenroom_types::call::Call;
use greenroom_types::discovery::DiscoveryFleet;
use greenroom_types::kv::{KvCommit, KvWrite};
use greenroom_types::node::InstanceKey;
use prost::Message as _;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let put = |target: &str, name: &str, bytes: &[u8]| {
        let folder = root.join("corpus").join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)
    };
    for (name, call) in calls() {
        put("calls", &name, &call_piece(&call))?;
        put("rpc", &name, &call_piece(&call))?;
    }
    for (name, message) in said() {
        put("worker_stream", name, &piece(0, &message.encode_to_vec()))?;
    }
    for example in fs::read_dir(root.join("../examples"))?.flatten() {
        let path = example.path();
        if path.extension().is_some_and(|end| end == "yaml") {
            let name = example.file_name().to_string_lossy().into_owned();
            put("manifest", &name, &fs::read(&path)?)?;
        }
    }
    let settings = "dataDir: d\nlisten: [{address: '127.0.0.1:1', auth: required}]\n\
                    nodes: {silenceMs: 5000}\nkv: {adminNamespaces: [a]}\n";
    put("settings", "manager.yaml", settings.as_bytes())?;
    put(
        "settings",
        "context.yaml",
        b"manager: ['https://m:1']\npins: [a]\n",
    )?;
    put(
        "overrides",
        "plain.json",
        br#"{"regions":{"aws":["eu-west-1"]},"mediaVersions":{}}"#,
    )?;
    put(
        "notices",
        "ec2",
        br#"{"action":"terminate","time":"2026-12-01T08:22:00Z"}"#,
    )?;
    put("notices", "oci", br#"{"id":"i","state":"TERMINATING"}"#)?;
    put("scenario", "plain.yaml", b"name: x\nfleet: {}\nsteps: []\n")?;
    put("job_socket", "hello", b"{\"type\":\"hello\",\"id\":1,\"wants\":[\"status\"]}\n{\"type\":\"status\",\"id\":2,\"text\":\"on air\",\"progress\":0.5}")?;
    let keys = br#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let mut signed = piece(0, keys);
    signed.extend(piece(1, b"eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.e30.AAAA"));
    put("signatures", "set", &signed)?;
    put(
        "tokens",
        "file",
        b"# name role hash\nana admin 0123456789abcdef\n",
    )?;
    put("tokens", "node", b"gd1.n.1767225600.AAAA")?;
    put(
        "tokens",
        "proof",
        b"v1 n 00000000000000000000000000000000 1767225600000 AAAA",
    )?;
    put(
        "tokens",
        "signed",
        b"eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJpc3N1ZXIifQ.AAAA",
    )?;
    put("events", "health", &piece(0, &[]))
}

fn calls() -> Vec<(String, Call)> {
    let key = || InstanceKey::new("j".into(), "primary".into());
    let calls = [
        Call::CreateJob(Box::new(greenroom_testkit::job("k"))),
        Call::UpdateJob(Box::new(greenroom_testkit::job("j")), 0),
        Call::DeleteJob("j".into()),
        Call::StartJob(greenroom_testkit::start("k", "n")),
        Call::StopJob {
            key: key(),
            node_id: "n".into(),
            grace_ms: None,
        },
        Call::AdoptInstance {
            node_id: "n".into(),
            key: InstanceKey::new("j".into(), "backup".into()),
            start_id: None,
        },
        Call::CreateBundle(Box::new(greenroom_testkit::bundle("c", &["a"]))),
        Call::UpdateBundle {
            bundle: Box::new(greenroom_testkit::bundle("b", &["a"])),
            dry_run: false,
            clear_stop_time: false,
        },
        Call::DeleteBundle("b".into()),
        Call::TerminateNode("n".into()),
        Call::SetNodeTags {
            node_id: "n".into(),
            tags: [("a".to_owned(), "b".to_owned())].into(),
            remove: vec!["c".to_owned()],
            expected_revision: None,
        },
        Call::RegisterClusterNode {
            node_name: "m".to_owned(),
            pool: "own".into(),
        },
        Call::KvCommit(KvCommit {
            namespace: "a".to_owned(),
            writes: vec![KvWrite::set("k", *b"v")],
            expected_schema_version: None,
            set_schema_version: Some(1),
        }),
        Call::PublishDiscoveryFleet {
            replace_leaf_token: true,
            fleet: DiscoveryFleet {
                addresses: vec!["a:1".to_owned()],
                leaf_token: "l".to_owned(),
                tier_secret: "t".to_owned(),
                ..DiscoveryFleet::default()
            },
            by: String::new(),
        },
        Call::PauseLeases {
            reason: "r".to_owned(),
            by: String::new(),
        },
    ];
    let named = calls.into_iter().enumerate();
    named
        .map(|(number, call)| (format!("{number:02}-{}", call.name()), call))
        .collect()
}

fn said() -> Vec<(&'static str, WorkerMessage)> {
    let key = InstanceKey::new("j".into(), "primary".into());
    let message = |message| WorkerMessage {
        start_id: "f".repeat(32),
        report_id: 1,
        message: Some(message),
        ..WorkerMessage::default()
    };
    vec![
        ("health", message(Message::Health(Health::default()))),
        ("accepted", message(Message::JobAccepted((&key).into()))),
        ("stopped", message(Message::JobStopped((&key).into()))),
        (
            "started",
            message(Message::JobStarted(WorkerJobStarted {
                job_key: Some((&key).into()),
                ..WorkerJobStarted::default()
            })),
        ),
    ]
}
