//! The lines of jobs, asked of a worker as a Manager asks for them.

mod common;

use common::scene::{Scene, scene};
use common::{Node, Pipe, id, job, lines, read_logs, shell};
use greenroom_proto::logs::ReadRequest;
use greenroom_proto::status::Refusal;
use tonic::Code;

impl Scene {
    async fn read(
        &self,
        request: ReadRequest,
    ) -> Result<tonic::Streaming<greenroom_proto::logs::ReadResponse>, tonic::Status> {
        read_logs(&self.stream.address, Some(&self.manager.node), request).await
    }

    async fn refused(&self, request: ReadRequest) -> (Code, String) {
        let status = self.read(request).await.unwrap_err();
        let reason = Refusal::read(&status).unwrap().reason.into_owned();
        (status.code(), reason)
    }
}

fn of(job: &str) -> ReadRequest {
    ReadRequest {
        job_id: job.to_owned(),
        ..Default::default()
    }
}

// spec: LOG-02
#[tokio::test]
async fn a_caller_without_proof_learns_nothing_and_what_is_not_kept_has_its_reason() {
    let scene = scene().await;
    let other = Node {
        key: greenroom_auth::NodeKey::generate(),
        ..scene.manager.node.clone()
    };
    for caller in [None, Some(&other)] {
        for job in ["", "nothing"] {
            let refused = read_logs(&scene.stream.address, caller, of(job)).await;
            assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
        }
    }
    let no_logs = (Code::NotFound, "no_logs".to_owned());
    assert_eq!(scene.refused(of("nothing")).await, no_logs);
    let missing = (Code::InvalidArgument, "missing_field".to_owned());
    assert_eq!(scene.refused(of("")).await, missing);
}

// spec: LOG-01
#[tokio::test]
async fn lines_come_with_their_stream_and_time_and_are_followed_to_the_end() {
    let mut scene = scene().await;
    let mut pipe = Pipe::new(scene.dir.path());
    let gate = scene.dir.path().join("gate");
    let line = format!(
        "echo one; echo two >&2; mkfifo {gate}; echo ready > {out}; read go < {gate}; echo $go; exec sleep 1000",
        gate = gate.display(),
        out = pipe.path.display()
    );
    let quiet = shell("b", "exec sleep 1000");
    let services = vec![shell("a", &line), quiet];
    scene.stream.provision(job("j", "s1", services)).await;
    scene.stream.reports("s1", "started").await;
    assert_eq!(pipe.line().await, "ready");
    let mut all = scene
        .read(ReadRequest {
            follow: true,
            ..of("j")
        })
        .await
        .unwrap();
    let mut newest = scene
        .read(ReadRequest {
            tail: Some(0),
            follow: true,
            service: "a".to_owned(),
            ..of("j")
        })
        .await
        .unwrap();
    let mut first = lines(&mut all, 2).await;
    first.sort();
    assert_eq!(first, ["a stderr two", "a stdout one"]);
    std::fs::write(&gate, "three\n").unwrap();
    assert_eq!(lines(&mut newest, 1).await, ["a stdout three"]);
    assert_eq!(lines(&mut all, 1).await, ["a stdout three"]);
    scene.stream.stop("j", "s1", 1_000).await;
    // The end of the instance ends them.
    assert!(lines(&mut all, 1).await.is_empty());
    assert!(lines(&mut newest, 1).await.is_empty());
    scene.stream.reports("s1", "stopped").await;
    // They are kept, with their times.
    let mut kept = scene.read(of("j")).await.unwrap();
    let answer = kept.message().await.unwrap().unwrap();
    assert_eq!(answer.start_id, id("s1"));
    let times: Vec<_> = answer.lines.iter().map(|line| line.at.unwrap()).collect();
    assert_eq!(times.len(), 3);
    assert!(times.is_sorted_by_key(|at| (at.seconds, at.nanos)));
    for service in ["c", "../a"] {
        let request = ReadRequest {
            service: service.to_owned(),
            ..of("j")
        };
        assert_eq!(scene.refused(request).await.1, "no_logs");
    }
}

// spec: LOG-01
#[tokio::test]
async fn the_newest_run_is_told_unless_another_is_asked_for() {
    let mut scene = scene().await;
    for run in ["s1", "s2"] {
        let service = shell("a", &format!("echo {run}"));
        scene.stream.provision(job("j", run, vec![service])).await;
        scene.stream.reports(run, "completed").await;
    }
    let told = async |request| lines(&mut scene.read(request).await.unwrap(), usize::MAX).await;
    assert_eq!(told(of("j")).await, ["a stdout s2"]);
    let first = ReadRequest {
        start_id: id("s1"),
        ..of("j")
    };
    assert_eq!(told(first.clone()).await, ["a stdout s1"]);
    // What is over ends a follower at once.
    let follow = ReadRequest {
        follow: true,
        ..first.clone()
    };
    assert_eq!(told(follow).await, ["a stdout s1"]);
    // A start id opens the lines of its own job only.
    let foreign = ReadRequest {
        job_id: "k".to_owned(),
        ..first.clone()
    };
    assert_eq!(scene.refused(foreign).await.1, "no_logs");
    let other_role = ReadRequest {
        role: "backup".to_owned(),
        ..first
    };
    assert_eq!(scene.refused(other_role).await.1, "no_logs");
}

// spec: LOG-01
#[tokio::test]
async fn many_lines_come_whole_and_in_order_to_a_caller_that_takes_its_time() {
    let mut scene = scene().await;
    let service = shell("a", "seq 1 100000");
    scene.stream.provision(job("j", "s1", vec![service])).await;
    scene.stream.reports("s1", "completed").await;
    let mut answers = scene.read(of("j")).await.unwrap();
    let mut waiting = scene.read(of("j")).await.unwrap();
    let expected: Vec<String> = (1..=100_000).map(|n| format!("a stdout {n}")).collect();
    assert_eq!(lines(&mut answers, usize::MAX).await, expected);
    // The one that was not read meanwhile misses nothing.
    assert_eq!(lines(&mut waiting, usize::MAX).await, expected);
    let tail = ReadRequest {
        tail: Some(3),
        ..of("j")
    };
    let mut tail = scene.read(tail).await.unwrap();
    assert_eq!(lines(&mut tail, usize::MAX).await, expected[99_997..]);
}
