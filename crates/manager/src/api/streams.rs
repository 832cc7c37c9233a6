//! `CreateStatusChannel`, `JobSearch` and `EventStream`.

use std::sync::Arc;

use greenroom_ledger::{DateComparison, JobFilter, TextComparison, Wish};
use greenroom_proto::common::{Log, Version, log::Level};
use greenroom_proto::convert::call::search::{self, DateMatch, IdMatch, TagMatch};
use greenroom_proto::convert::call::{FoundJob, PROTOCOL_MAJOR, PROTOCOL_MINOR, refuse};
use greenroom_proto::convert::common::write_time;
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::convert::stream::{Encoded, Form};
use greenroom_proto::manager::norsk_status_event::Message as StatusMessage;
use greenroom_proto::manager::{
    CurrentJob, EventStreamRequest, Hello, JobSearchRequest, NorskStatusEvent,
};
use greenroom_types::node::InstanceState;
use tokio::sync::broadcast::error::RecvError;
use tonic::{Request, Status};

use super::ManagerApi;
use crate::clock::wall;
use crate::engine::shutting_down;
use crate::status_log::{Line, Severity};
use crate::subscription::{Resume, Subscription};

pub(super) use tonic::codegen::BoxStream as Streaming;

/// What a client may look for, sorted (HELLO-01).
const FEATURES: [&str; 5] = ["bundles", "idle-expiry", "inventory", "kv", "resume"];

/// Version, commit and target of this program. The commit is that of whoever built it, by
/// `GREENROOM_COMMIT`.
fn build() -> String {
    let commit = option_env!("GREENROOM_COMMIT").unwrap_or("unknown");
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    format!("{} {commit} {arch}-{os}", env!("CARGO_PKG_VERSION"))
}

impl ManagerApi {
    pub(super) fn hello(&self) -> Hello {
        let part = |text: &str| text.parse().unwrap_or_default();
        Hello {
            version: Some(Version {
                major_version: part(env!("CARGO_PKG_VERSION_MAJOR")),
                minor_version: part(env!("CARGO_PKG_VERSION_MINOR")),
                build_number: part(env!("CARGO_PKG_VERSION_PATCH")),
                branch_name: String::new(),
                label: "greenroom".to_owned(),
            }),
            protocol_major: PROTOCOL_MAJOR,
            protocol_minor: PROTOCOL_MINOR,
            build: build(),
            member: self.engine().member().to_owned(),
            features: FEATURES.map(str::to_owned).to_vec(),
            server_time: Some(write_time(wall())),
        }
    }

    pub(super) fn status_channel(&self) -> Streaming<NorskStatusEvent> {
        let hello = self.hello();
        let mut lines = self.engine().status_log().subscribe();
        let mut stopping = self.engine().stopping();
        Box::pin(async_stream::stream! {
            yield Ok(NorskStatusEvent { message: Some(StatusMessage::Hello(hello)) });
            loop {
                let line = tokio::select! {
                    line = lines.recv() => line,
                    () = async { let _ = stopping.wait_for(|stopping| *stopping).await; } => {
                        yield Err(write_refusal(&shutting_down()));
                        return;
                    }
                };
                let log = match line {
                    Ok(line) => write_line(line),
                    Err(RecvError::Lagged(lost)) => write_line(Line {
                        severity: Severity::Notice,
                        at: wall(),
                        text: format!("{lost} lines were lost to this channel: it read too slowly"),
                        fields: String::new(),
                    }),
                    Err(RecvError::Closed) => return,
                };
                yield Ok(NorskStatusEvent { message: Some(StatusMessage::LogEvent(log)) });
            }
        })
    }

    pub(super) fn search(
        &self,
        request: Request<JobSearchRequest>,
    ) -> Result<Streaming<CurrentJob>, Status> {
        let minor = self.caller(&request)?.protocol_minor;
        let request = request.into_inner();
        // A filter without a comparison is refused by name before its form is read (JOB-29).
        let search = match search::JobSearch::try_from(request) {
            Ok(search) => search,
            Err(error) => return Err(write_refusal(&refuse(error))),
        };
        let include_history = search.include_history;
        let filters: Vec<JobFilter> = search.filters.into_iter().map(filter).collect();
        let found = self
            .engine()
            .read(|ledger| ledger.search(&filters))
            .map_err(|refusal| write_refusal(&refusal))?;
        let hub = Arc::clone(self.engine().hub());
        Ok(Box::pin(async_stream::stream! {
            for one in found {
                let mut job = (*one.job).clone();
                if !include_history {
                    job.history.clear();
                }
                let starting = one.instances.iter().rev();
                let last_info = starting
                    .filter(|it| it.state == InstanceState::Provisioned)
                    .find_map(|it| hub.last_info(&it.start_id))
                    .map(|info| (*info).clone());
                let newest = one.instances.last();
                let restarts = newest.and_then(|it| hub.restarts(&it.start_id));
                let found = FoundJob { job, instances: one.instances, last_info, restarts };
                yield Ok(found.write(minor));
            }
        }))
    }

    pub(super) async fn events(
        &self,
        request: Request<EventStreamRequest>,
    ) -> Result<Streaming<Encoded>, Status> {
        self.caller(&request)?;
        let request = request.into_inner();
        let form = Form::asked(&request);
        let wish = Wish {
            pending_window_s: i64::from(request.pending_window_s),
            client_protocol: request.client_protocol,
            include: request.include,
            history_limit: request.history_limit,
        };
        let resume = request.resume.map(|resume| Resume {
            epoch: resume.epoch,
            after_seq: resume.after_seq,
        });
        let engine = self.engine().clone();
        // Making a snapshot of a large state keeps a processor busy.
        let begun =
            tokio::task::spawn_blocking(move || Subscription::begin(&engine, form, wish, resume));
        let begun = begun
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        let mut subscription = begun.map_err(|refusal| write_refusal(&refusal))?;
        Ok(Box::pin(async_stream::stream! {
            loop {
                match subscription.next().await {
                    Ok(event) => yield Ok(event),
                    Err(refusal) => {
                        yield Err(write_refusal(&refusal));
                        return;
                    }
                }
            }
        }))
    }
}

fn write_line(line: Line) -> Log {
    let level = match line.severity {
        Severity::Error => Level::Error,
        Severity::Warning => Level::Warning,
        Severity::Notice => Level::Notice,
    };
    Log {
        level: level.into(),
        timestamp: u64::try_from(line.at.0).unwrap_or_default(),
        msg: line.text,
        metadata: line.fields,
    }
}

fn filter(filter: search::JobFilter) -> JobFilter {
    match filter {
        search::JobFilter::Tag { name, is } => JobFilter::Tag {
            name,
            comparison: Some(match is {
                TagMatch::Is(text) => TextComparison::Eq(text),
                TagMatch::IsNot(text) => TextComparison::Neq(text),
                TagMatch::Matches(text) => TextComparison::Re(text),
                TagMatch::Exists(there) => TextComparison::Exists(there),
            }),
        },
        search::JobFilter::Id(is) => JobFilter::Id(Some(match is {
            IdMatch::Is(text) => TextComparison::Eq(text),
            IdMatch::IsNot(text) => TextComparison::Neq(text),
            IdMatch::Matches(text) => TextComparison::Re(text),
        })),
        search::JobFilter::Start(is) => JobFilter::Start(Some(match is {
            DateMatch::At(at) => DateComparison::Eq(at),
            DateMatch::Before(at) => DateComparison::Lt(at),
            DateMatch::NotAfter(at) => DateComparison::Lte(at),
            DateMatch::After(at) => DateComparison::Gt(at),
            DateMatch::NotBefore(at) => DateComparison::Gte(at),
            DateMatch::Within(from, to) => DateComparison::Within(from, to),
        })),
    }
}
