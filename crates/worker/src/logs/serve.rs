//! Tells the Manager the lines of a job, from the files (LOG-01, LOG-02).
//!
//! The caller proves itself as on the controlling stream. Files are read on threads that may block, a
//! batch at a time and no further ahead than the caller reads. Nothing here knows which jobs run: an
//! instance is over when its logs say so.

use std::sync::Arc;
use std::time::Duration;

use greenroom_proto::convert::WireError;
use greenroom_proto::convert::common::write_time;
use greenroom_proto::logs::logs_server::Logs;
use greenroom_proto::logs::{Line, ReadRequest, ReadResponse};
use greenroom_proto::status::Refusal;
use greenroom_tls::Peer;
use greenroom_types::{JobId, Role, StartId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Code, Request, Response, Status};

use super::LogStore;
use super::read::{Batch, Reader};
use crate::gate::Gate;

/// Time between two looks for new lines.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Batches that are read ahead of the caller.
const AHEAD_MAX: usize = 2;
/// Readers at once: each holds a file per service and two batches.
const READERS_MAX: usize = 64;

/// The service that the Manager asks.
pub(crate) struct LogsService {
    gate: Arc<Gate>,
    store: LogStore,
    readers: Arc<Semaphore>,
    ending: CancellationToken,
}

type Answers = mpsc::Sender<Result<ReadResponse, Status>>;

// === impl LogsService ===

impl LogsService {
    pub(crate) fn new(gate: Arc<Gate>, store: LogStore, ending: CancellationToken) -> Self {
        let readers = Arc::new(Semaphore::new(READERS_MAX));
        Self {
            gate,
            store,
            readers,
            ending,
        }
    }
}

#[tonic::async_trait]
impl Logs for LogsService {
    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<BoxStream<ReadResponse>>, Status> {
        self.gate
            .check(request.metadata(), request.extensions())
            .await?;
        let in_use = request.extensions().get().and_then(Peer::begin_use);
        let request = request.into_inner();
        if request.job_id.is_empty() {
            return Err(WireError::missing("job_id").into());
        }
        let permit = self.readers.clone().try_acquire_owned().map_err(|_| {
            let text =
                format!("{READERS_MAX} readers of logs are connected to this worker already");
            Status::from(Refusal::new(
                Code::ResourceExhausted,
                "too_many_readers",
                text,
            ))
        })?;
        let store = self.store.clone();
        let opened = blocking(move || open(&store, &request)).await?;
        let (start_id, reader) = opened?;
        let (answers, receiver) = mpsc::channel(AHEAD_MAX);
        let ending = self.ending.clone();
        tokio::spawn(async move {
            let _in_use = in_use;
            tokio::select! {
                () = tell(start_id, reader, &answers, permit) => {}
                () = ending.cancelled() => {
                    let over = Refusal::new(Code::Unavailable, "shutting_down", "the worker is ending");
                    let _ = answers.send(Err(over.into())).await;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

fn open(store: &LogStore, request: &ReadRequest) -> Result<(StartId, Reader), Status> {
    let (job_id, role) = (JobId::new(&request.job_id), Role::new(&request.role));
    let start_id = StartId::new(&request.start_id);
    let picked = store.pick(&job_id, &role, &start_id).map_err(unread)?;
    let (start_id, dir) = picked.ok_or_else(|| none_kept(request))?;
    let reader = Reader::open(&dir, &request.service, request.tail, request.follow);
    let reader = reader.map_err(unread)?;
    // Whoever follows may be earlier than the first line.
    if reader.is_empty() && (!request.follow || reader.is_over()) {
        return Err(none_kept(request));
    }
    Ok((start_id, reader))
}

/// Sends batches until nothing more can come or nobody listens.
async fn tell(
    start_id: StartId,
    mut reader: Reader,
    answers: &Answers,
    _permit: OwnedSemaphorePermit,
) {
    loop {
        let read = blocking(move || {
            let batch = reader.next_batch();
            (reader, batch)
        });
        let batch = match read.await {
            Ok((again, Ok(batch))) => {
                reader = again;
                batch
            }
            Ok((_, Err(error))) => {
                let _ = answers.send(Err(unread(error))).await;
                return;
            }
            Err(status) => {
                let _ = answers.send(Err(status)).await;
                return;
            }
        };
        let (is_last, is_empty) = (batch.is_last, batch.lines.is_empty());
        if !is_empty && answers.send(Ok(answer(&start_id, batch))).await.is_err() {
            return;
        }
        if is_last {
            return;
        }
        if is_empty {
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                () = answers.closed() => return,
            }
        }
    }
}

fn answer(start_id: &StartId, batch: Batch) -> ReadResponse {
    let lines = batch.lines.into_iter().map(|(service, line)| Line {
        service,
        stream: line
            .output
            .map(|output| output.name().to_owned())
            .unwrap_or_default(),
        at: line.wall().map(write_time),
        text: line.text,
    });
    ReadResponse {
        node_id: String::new(),
        start_id: start_id.to_string(),
        lines: lines.collect(),
    }
}

fn none_kept(request: &ReadRequest) -> Status {
    let service = match request.service.as_str() {
        "" => String::new(),
        service => format!(" of its service {service:?}"),
    };
    let text = format!(
        "this node keeps no lines of job {:?}{service}",
        request.job_id
    );
    let refusal =
        Refusal::new(Code::NotFound, "no_logs", text).with("job", request.job_id.as_str());
    refusal.into()
}

fn unread(error: std::io::Error) -> Status {
    tracing::warn!(%error, "a job's lines cannot be read");
    Status::internal("the worker cannot read the job's lines")
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(act).await;
    done.map_err(|_| Status::internal("reading the job's lines was broken off"))
}
