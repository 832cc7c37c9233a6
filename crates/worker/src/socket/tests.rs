//! The socket as a job sees it.

use greenroom_types::job::Service;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::*;
use crate::handover::{Answer, Request};

/// A test that waits longer than this for a message is broken.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    sockets: Sockets,
    news: mpsc::Receiver<(StartId, RuntimeEvent)>,
    spec: Arc<StartSpec>,
    dir: tempfile::TempDir,
}

impl World {
    fn with(waits: Waits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (news, receiver) = News::channel();
        let mut sockets = Sockets::new(dir.path(), news);
        sockets.waits = waits;
        let service = |name: &str, configuration: &str| Service {
            name: name.to_owned(),
            configuration: configuration.to_owned(),
            ..Service::default()
        };
        let spec = Arc::new(StartSpec {
            key: greenroom_types::node::InstanceKey::new("j".into(), "primary@1a2b3c4d".into()),
            start_id: "s1".into(),
            services: vec![service("a", "one"), service("b", "two")],
            fence: 7,
            job_socket: true,
            ..StartSpec::default()
        });
        sockets.open(&spec, true, None).unwrap();
        Self {
            sockets,
            news: receiver,
            spec,
            dir,
        }
    }

    fn new() -> Self {
        Self::with(Waits::default())
    }

    async fn connect(&self) -> Job {
        let path = socket_dir(self.dir.path(), &self.spec.start_id).join(SOCKET);
        let (reader, writer) = UnixStream::connect(path).await.unwrap().into_split();
        Job {
            reader: BufReader::new(reader),
            writer,
            next: 1,
        }
    }

    /// A job that has said hello and was welcomed.
    async fn greeted(&self, service: &str, wants: &[&str]) -> Job {
        let mut job = self.connect().await;
        job.hello(service, wants).await;
        assert_eq!(job.next().await["type"], "welcome");
        assert_eq!(job.next().await["type"], "fence");
        job
    }

    async fn told(&mut self) -> JobInfoKind {
        let news = tokio::time::timeout(PATIENCE, self.news.recv()).await;
        match news.unwrap().unwrap() {
            (start_id, RuntimeEvent::Info(kind)) if start_id == self.spec.start_id => kind,
            other => panic!("{other:?}"),
        }
    }
}

impl World {
    /// What the core hears of the job's words.
    async fn heard(&mut self) -> JobSaid {
        let news = tokio::time::timeout(PATIENCE, self.news.recv()).await;
        match news.unwrap().unwrap() {
            (start_id, RuntimeEvent::Job(said)) if start_id == self.spec.start_id => said,
            other => panic!("{other:?}"),
        }
    }
}

struct Job {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    next: u64,
}

impl Job {
    async fn raw(&mut self, line: &[u8]) {
        self.writer.write_all(line).await.unwrap();
    }

    async fn say(&mut self, mut message: Value) {
        message["id"] = self.next.into();
        self.next += 1;
        self.raw(format!("{message}\n").as_bytes()).await;
    }

    async fn hello(&mut self, service: &str, wants: &[&str]) {
        let hello =
            json!({"type": "hello", "versions": [1, 9], "service": service, "wants": wants});
        self.say(hello).await;
    }

    /// The next message; null when the worker has closed.
    async fn next(&mut self) -> Value {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.reader.read_line(&mut line)).await;
        match read.unwrap() {
            Ok(1..) => serde_json::from_str(&line).unwrap(),
            _ => Value::Null,
        }
    }

    /// The code of the error that comes next, and that nothing comes after it.
    async fn closed_with(&mut self) -> String {
        let error = self.next().await;
        assert_eq!(error["type"], "error", "{error}");
        assert!(error["text"].is_string());
        assert_eq!(self.next().await, Value::Null);
        error["code"].as_str().unwrap().to_owned()
    }

    async fn code(&mut self) -> String {
        let error = self.next().await;
        assert_eq!(
            (&error["type"], &error["re"]),
            (&"error".into(), &(self.next - 1).into())
        );
        error["code"].as_str().unwrap().to_owned()
    }
}

// spec: SOCK-01, SOCK-02
#[tokio::test]
async fn the_socket_is_for_everybody_in_a_directory_that_cannot_be_listed() {
    let mut world = World::new();
    let dir = socket_dir(world.dir.path(), &world.spec.start_id);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(&dir.join(SOCKET))), (0o711, 0o666));
    world.sockets.close(&world.spec.start_id.clone());
    assert!(!dir.exists());
    let without = Arc::new(StartSpec {
        job_socket: false,
        ..(*world.spec).clone()
    });
    world.sockets.open(&without, false, None).unwrap();
    assert!(!dir.exists());
}

// spec: SOCK-05
#[tokio::test]
async fn a_hello_is_welcomed_with_everything_the_job_is() {
    let world = World::new();
    let mut job = world.connect().await;
    job.raw(b"\n").await;
    job.hello("b", &[]).await;
    let expected = json!({
        "type": "welcome", "id": 1, "re": 1, "version": 1, "jobId": "j",
        "role": "primary@1a2b3c4d", "runtimeRole": "primary", "startId": "s1", "fence": 7,
        "prepared": true,
        "config": {"configuration": "two", "services": {"a": "one", "b": "two"}},
    });
    assert_eq!(job.next().await, expected);
    world.sockets.started(&world.spec.start_id);
    // Commands are taken in order, so a stop that was told comes after it.
    let stopping = world
        .sockets
        .stopping(&world.spec.start_id, Millis(1), StopCause::User);
    stopping.await;
    let mut job = world.connect().await;
    job.hello("b", &[]).await;
    assert_eq!(job.next().await["prepared"], false);
}

// spec: SOCK-05
#[tokio::test]
async fn whoever_begins_otherwise_is_told_why_and_closed() {
    let world = World::with(Waits {
        hello: Duration::from_millis(50),
        ..Waits::default()
    });
    let mut job = world.connect().await;
    job.say(json!({"type": "status", "text": "x"})).await;
    assert_eq!(job.closed_with().await, "hello_first");
    let mut silent = world.connect().await;
    assert_eq!(silent.closed_with().await, "hello_first");
    let mut newer = world.connect().await;
    newer
        .say(json!({"type": "hello", "versions": [2], "service": "a", "wants": []}))
        .await;
    let error = newer.next().await;
    assert_eq!(
        (&error["code"], &error["versions"]),
        (&"no_common_version".into(), &json!([1]))
    );
    assert_eq!(newer.next().await, Value::Null);
}

// spec: SOCK-06
#[tokio::test]
async fn the_newest_that_wants_the_handover_speaks_and_a_fifth_is_turned_away() {
    let world = World::new();
    let mut first = world.greeted("a", &["handover"]).await;
    let mut listener = world.greeted("b", &[]).await;
    let second = world.greeted("a", &["handover", "more"]).await;
    assert_eq!(first.next().await["type"], "replaced");
    let fourth = world.greeted("a", &[]).await;
    assert_eq!(world.connect().await.closed_with().await, "too_many");
    // The former one stays as a listener, and nobody else was told anything.
    let stopping = world
        .sockets
        .stopping(&world.spec.start_id, Millis(1), StopCause::User);
    stopping.await;
    assert_eq!(first.next().await["type"], "stopping");
    assert_eq!(listener.next().await["type"], "stopping");
    // One that leaves makes room.
    drop((second, fourth, first));
    loop {
        let mut again = world.connect().await;
        again.hello("a", &[]).await;
        match again.next().await["type"].as_str() {
            Some("welcome") => break,
            other => assert_eq!(other, Some("error")),
        }
    }
}

// spec: SOCK-04, SOCK-18
#[tokio::test]
async fn unknown_types_are_answered_and_bad_lines_end_the_connection() {
    let world = World::new();
    let mut job = world.greeted("a", &[]).await;
    job.say(json!({"type": "sing", "other": 1})).await;
    assert_eq!(job.code().await, "unknown_type");
    job.raw(b"{\"type\":\"status\",\"id\":1}\n").await;
    assert_eq!(job.closed_with().await, "bad_line");
    for bad in [
        b"{\n".to_vec(),
        b"{\"type\":\"hello\",\"id\":2,\"id\":3}\n".to_vec(),
        [vec![b' '; super::line::LINE_MAX + 1], b"\n".to_vec()].concat(),
    ] {
        let mut job = world.greeted("a", &[]).await;
        job.raw(&bad).await;
        let error = job.next().await;
        assert_eq!(error["code"], "bad_line", "{error}");
    }
}

// spec: SOCK-14
#[tokio::test]
async fn a_stop_is_told_to_every_connection_before_it_goes_on() {
    let world = World::new();
    let job = world.greeted("a", &[]).await;
    let cause = StopCause::of("BUNDLE");
    world
        .sockets
        .stopping(&world.spec.start_id, Millis(5_000), cause)
        .await;
    // It is on its way already: it can be read without waiting.
    let mut bytes = [0; 512];
    let n = job.reader.get_ref().try_read(&mut bytes).unwrap();
    let told: Value = serde_json::from_slice(&bytes[..n]).unwrap();
    let expected = ("stopping".into(), 5_000.into(), "BUNDLE".into());
    assert_eq!(
        (&told["type"], &told["graceMs"], &told["reason"]),
        (&expected.0, &expected.1, &expected.2)
    );
    // Where nobody listens nothing is waited for.
    world
        .sockets
        .stopping(&"other".into(), Millis(1), cause)
        .await;
}

// spec: SOCK-15
#[tokio::test]
async fn a_new_configuration_is_handed_over_and_its_answer_told() {
    let mut world = World::with(Waits {
        config: Duration::from_millis(50),
        ..Waits::default()
    });
    let mut job = world.greeted("a", &[]).await;
    let mut spec = (*world.spec).clone();
    spec.services[0].configuration = "three".to_owned();
    let spec = Arc::new(spec);
    let start_id = world.spec.start_id.clone();
    let mut texts = Vec::new();
    for answer in [
        Some(json!({"type": "configApplied"})),
        Some(json!({"type": "configRefused", "reason": "not now"})),
        None,
    ] {
        world.sockets.configure(&start_id, spec.clone());
        let config = job.next().await;
        assert_eq!(config["type"], "config");
        assert_eq!(config["configuration"], "three");
        assert_eq!(config["services"], json!({"a": "three", "b": "two"}));
        if let Some(mut answer) = answer {
            // An answer to something else is none.
            answer["re"] = 99.into();
            job.say(answer.clone()).await;
            answer["re"] = config["id"].clone();
            job.say(answer).await;
        }
        let JobInfoKind::ContainerEvent { service, text } = world.told().await else {
            panic!();
        };
        assert_eq!(service, "a");
        texts.push(text);
    }
    assert_eq!(
        texts[..2],
        ["configuration applied", "configuration refused: not now"]
    );
    assert!(texts[2].contains("did not say"), "{}", texts[2]);
}

#[tokio::test]
async fn a_status_becomes_news_of_the_job() {
    let mut world = World::new();
    let mut job = world.greeted("a", &[]).await;
    for (progress, expected) in [
        (json!(0.5), Some(0.5)),
        (json!(7), None),
        (json!("x"), None),
    ] {
        job.say(json!({"type": "status", "text": "warming", "progress": progress}))
            .await;
        let text = "warming".to_owned();
        let progress = expected;
        assert_eq!(world.told().await, JobInfoKind::Status { text, progress });
    }
}

// spec: SOCK-17
#[tokio::test]
async fn who_answers_no_ping_or_reads_nothing_is_closed() {
    let world = World::with(Waits {
        ping: Duration::from_millis(20),
        ..Waits::default()
    });
    let mut alive = world.greeted("a", &[]).await;
    let mut deaf = world.greeted("a", &[]).await;
    let mut pings = 0;
    let code = loop {
        tokio::select! {
            message = alive.next() => {
                assert_eq!(message["type"], "ping");
                alive.say(json!({"type": "pong", "re": message["id"]})).await;
            }
            message = deaf.next() => match message["type"].as_str() {
                Some("ping") => pings += 1,
                _ => break message["code"].clone(),
            }
        }
    };
    assert_eq!((pings, code), (3, "no_pong".into()));
    // One that pongs goes on being asked.
    for _ in 0..5 {
        let ping = alive.next().await;
        assert_eq!(ping["type"], "ping");
        alive.say(json!({"type": "pong", "re": ping["id"]})).await;
    }
}

// spec: SOCK-17
#[tokio::test]
async fn who_does_not_read_loses_the_connection_and_holds_nobody_up() {
    let world = World::new();
    let mut slow = world.greeted("a", &[]).await;
    // Answers that it asks for and does not read, until the worker takes nothing more from it.
    let line = |id: u64| format!("{{\"type\":\"{}\",\"id\":{id}}}\n", "x".repeat(60));
    let mut spec = (*world.spec).clone();
    spec.services[0].configuration = "c".repeat(64 << 10);
    let spec = Arc::new(spec);
    slow.raw(line(2).as_bytes()).await;
    for _ in 0..100 {
        world.sockets.configure(&world.spec.start_id, spec.clone());
        // It is taken before the next is given.
        world
            .sockets
            .stopping(&"other".into(), Millis(1), StopCause::User)
            .await;
        tokio::task::yield_now().await;
    }
    let mut other = world.greeted("b", &[]).await;
    other.say(json!({"type": "sing"})).await;
    assert_eq!(other.code().await, "unknown_type");
    let mut last = slow.next().await;
    loop {
        match slow.next().await {
            Value::Null => break,
            message => last = message,
        }
    }
    assert_eq!(last["code"], "slow");
}

// spec: SOCK-19
#[tokio::test]
async fn after_a_restart_the_same_directory_is_served_again() {
    let mut world = World::new();
    let dir = socket_dir(world.dir.path(), &world.spec.start_id);
    let number = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let before = number(&dir);
    let mut job = world.greeted("a", &[]).await;
    // As by an end of the worker: nothing is tidied up.
    world.sockets.open.clear();
    assert_eq!(job.next().await, Value::Null);
    let spec = world.spec.clone();
    world.sockets.open(&spec, false, None).unwrap();
    assert_eq!(number(&dir), before);
    let mut job = world.connect().await;
    job.hello("a", &[]).await;
    assert_eq!(job.next().await["prepared"], false);
}

fn ask(number: u64, request: Request) -> ToJob {
    ToJob::Ask {
        number,
        migration_id: "m".into(),
        request,
    }
}

// spec: SOCK-06, SOCK-07, SOCK-09
#[tokio::test]
async fn the_speaker_is_asked_and_its_answers_find_their_requests() {
    let mut world = World::new();
    let start_id = world.spec.start_id.clone();
    let mut listener = world.greeted("b", &[]).await;
    let mut job = world.greeted("a", &["handover"]).await;
    assert_eq!(world.heard().await, JobSaid::Speaker(None));
    let request = Request::StopOutput(b"\x00\xff".into());
    world.sockets.migration(&start_id, ask(5, request));
    let asked = job.next().await;
    assert_eq!(
        (&asked["type"], &asked["migrationId"], &asked["at"]),
        (&json!("stopOutput"), &json!("m"), &json!("AP8="))
    );
    // Only who was asked may answer.
    let answer = json!({"type": "stoppedOutput", "re": asked["id"], "payload": "/w=="});
    listener.say(answer.clone()).await;
    assert_eq!(listener.code().await, "not_speaker");
    job.say(answer.clone()).await;
    let JobSaid::Answer {
        to, answer: told, ..
    } = world.heard().await
    else {
        panic!();
    };
    assert_eq!(to, Some(5));
    assert_eq!(told, Answer::StoppedOutput(b"\xff".into()));
    // What answers nothing that was asked is told to the core as that, and refused where it was said.
    let mut stray = answer.clone();
    stray["re"] = 99.into();
    job.say(stray).await;
    let JobSaid::Answer { to: None, at, .. } = world.heard().await else {
        panic!();
    };
    let refusal = ToJob::Refuse {
        at,
        code: "wrong_step",
        expected: "ready",
    };
    world.sockets.migration(&start_id, refusal);
    let error = job.next().await;
    assert_eq!(
        (&error["code"], &error["re"], &error["expected"]),
        (
            &json!("wrong_step"),
            &(job.next - 1).into(),
            &json!("ready")
        )
    );
    let mut bad = answer;
    bad["payload"] = "not base64".into();
    job.say(bad).await;
    assert_eq!(job.code().await, "bad_payload");
}

// spec: SOCK-05, SOCK-12
#[tokio::test]
async fn a_speaker_that_comes_back_names_its_migration_and_its_absence_is_told() {
    let mut world = World::new();
    let start_id = world.spec.start_id.clone();
    let job = world.greeted("a", &["handover"]).await;
    assert_eq!(world.heard().await, JobSaid::Speaker(None));
    world
        .sockets
        .migration(&start_id, ToJob::In(Some("m".into())));
    world
        .sockets
        .migration(&start_id, ask(1, Request::GetState));
    drop(job);
    assert_eq!(world.heard().await, JobSaid::Silent);
    let mut job = world.connect().await;
    job.say(json!({
        "type": "hello", "versions": [1], "service": "a", "wants": ["handover"], "migrationId": "m",
    }))
    .await;
    assert_eq!(job.next().await["migrationId"], "m");
    assert_eq!(world.heard().await, JobSaid::Speaker(Some("m".into())));
    // One that takes its place is told of, without a silence between the two.
    let _next = world.greeted("a", &["handover"]).await;
    assert_eq!(world.heard().await, JobSaid::Speaker(None));
}

// spec: SOCK-07
#[tokio::test]
async fn the_target_of_a_handover_is_given_the_state_of_its_source() {
    let mut world = World::new();
    let spec = Arc::new(StartSpec {
        start_id: "s2".into(),
        migration_id: Some("m".into()),
        migration_state: Some(b"state".into()),
        ..(*world.spec).clone()
    });
    world.sockets.open(&spec, false, Some("m".into())).unwrap();
    world.spec = spec;
    let mut job = world.connect().await;
    job.hello("a", &["handover"]).await;
    assert_eq!(job.next().await["migrationId"], "m");
    assert_eq!(job.next().await["type"], "fence");
    let state = job.next().await;
    assert_eq!(
        (&state["type"], &state["migrationId"], &state["payload"]),
        (&json!("sourceState"), &json!("m"), &json!("c3RhdGU="))
    );
    // Once it is over there is nothing to take over from.
    let start_id = world.spec.start_id.clone();
    world.sockets.migration(&start_id, ToJob::In(None));
    let mut listener = world.connect().await;
    listener.hello("b", &[]).await;
    let welcome = listener.next().await;
    assert!(welcome["migrationId"].is_null(), "{welcome}");
}

// spec: SOCK-16
#[tokio::test]
async fn the_fencing_number_is_told_at_hello() {
    let world = World::new();
    let mut job = world.connect().await;
    job.hello("a", &[]).await;
    assert_eq!(job.next().await["fence"], 7);
    let fence = job.next().await;
    assert_eq!(
        (&fence["type"], &fence["value"]),
        (&json!("fence"), &json!(7))
    );
}

// spec: SOCK-16, LEASE-06
#[tokio::test]
async fn a_fencing_number_that_grows_and_a_lease_in_danger_are_told_and_need_no_answer() {
    let mut world = World::new();
    let mut jobs = [world.greeted("a", &[]).await, world.greeted("b", &[]).await];
    let start_id = world.spec.start_id.clone();
    let grown = Arc::new(StartSpec {
        fence: 1 << 33,
        ..(*world.spec).clone()
    });
    world.sockets.fence(&start_id, grown);
    world.sockets.lease_warning(&start_id, Millis(1_334));
    for job in &mut jobs {
        let fence = job.next().await;
        assert_eq!(
            (&fence["type"], &fence["value"]),
            (&json!("fence"), &json!(1u64 << 33))
        );
        let warning = job.next().await;
        assert_eq!(
            (&warning["type"], &warning["remainingMs"]),
            (&json!("leaseWarning"), &json!(1_334))
        );
        // The job says nothing and nothing is held against it.
        job.say(json!({"type": "status", "text": "on"})).await;
        world.told().await;
    }
    // Who comes later is told the new number.
    let mut late = world.connect().await;
    late.hello("c", &[]).await;
    assert_eq!(late.next().await["fence"], 1u64 << 33);
}

// spec: SOCK-16, LEASE-05
#[tokio::test]
async fn until_when_it_may_output_is_told_in_the_welcome_and_to_those_who_want_it() {
    let mut world = World::new();
    let start_id = world.spec.start_id.clone();
    // A socket knows from its beginning what was known before.
    world.sockets.lease(&start_id, Mono(4_000));
    let spec = world.spec.clone();
    world.sockets.open(&spec, false, None).unwrap();
    let mut wants = world.connect().await;
    wants.hello("a", &["lease"]).await;
    assert_eq!(wants.next().await["leaseUntilMs"], 4_000);
    assert_eq!(wants.next().await["type"], "fence");
    let mut other = world.greeted("b", &[]).await;
    for (until, told) in [(Mono(5_000), json!(5_000)), (NEVER, Value::Null)] {
        world.sockets.lease(&start_id, until);
        let lease = wants.next().await;
        assert_eq!(
            (&lease["type"], &lease["untilMs"]),
            (&json!("lease"), &told)
        );
    }
    // The other one hears of nothing in between.
    world.sockets.lease_warning(&start_id, Millis(1));
    assert_eq!(other.next().await["type"], "leaseWarning");
}
