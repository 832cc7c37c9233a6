//! A worker that is killed at a step of its journal, and what a Manager does about it.

use greenroom_proto::manager::InstanceState;
use greenroom_proto::worker::WorkerJob;
use greenroom_proto::worker::worker_message::Message as Said;
use rustix::process::Signal;

use super::{FakeManager, Stream, WorkerProcess, id, word};

/// What was heard of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    Started,
    Ended,
}

/// How one life went.
#[derive(Debug)]
pub(crate) struct Life {
    /// The worker was killed; otherwise it has no step of that number.
    pub(crate) killed: bool,
    /// What was reported, in order; what came again after the kill is there again.
    pub(crate) words: Vec<String>,
}

/// Runs a start to its running and a stop to its end, with a worker that is killed at this step of
/// its journal and started again. The Manager repeats what a new hello does not show.
pub(crate) async fn live(
    manager: &mut FakeManager,
    worker: &mut WorkerProcess,
    order: &WorkerJob,
    job: &str,
    start: &str,
) -> Life {
    let mut life = Life {
        killed: false,
        words: Vec::new(),
    };
    let mut stream = manager.meet(1, 0).await;
    let mut heard = Heard::Nothing;
    // A worker that is killed takes its stream along, whatever was being said.
    stream.try_provision(order.clone()).await;
    let mut stopping = false;
    while heard != Heard::Ended {
        match next(&mut stream, start, &mut life.words).await {
            Some(now) => heard = now,
            None => {
                assert!(!life.killed, "it was killed once: {:?}", life.words);
                life.killed = true;
                assert_eq!(worker.wait_signal(), Some(Signal::KILL.as_raw()));
                worker.start_again_with(&[]);
                stream = manager.meet(2, 0).await;
                let mut instances = stream.hello.instances.iter();
                let found = instances.find(|it| it.start_id == id(start));
                let runs = found.map(|it| it.state()) == Some(InstanceState::Running);
                if stopping {
                    stream.try_stop(job, start).await;
                } else if found.is_none() {
                    stream.try_provision(order.clone()).await;
                } else if runs && heard == Heard::Nothing {
                    heard = Heard::Started;
                }
            }
        }
        if heard == Heard::Started && !stopping {
            stopping = true;
            stream.try_stop(job, start).await;
        }
    }
    life
}

/// What the next report of the start says; none when the worker is gone.
async fn next(stream: &mut Stream, start: &str, words: &mut Vec<String>) -> Option<Heard> {
    let start_id = id(start);
    loop {
        let message = stream.next().await.ok()?;
        if message.start_id != start_id {
            continue;
        }
        let Some(word) = word(&message) else { continue };
        words.push(word);
        match &message.message {
            Some(Said::JobStarted(_)) => return Some(Heard::Started),
            Some(Said::JobStopped(_) | Said::JobRejected(_)) => return Some(Heard::Ended),
            _ => {}
        }
    }
}
