//! Waiting until jobs run and stay up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greenroom_sdk::types::job::{HistoryKind, JobInfo, JobState, JobWithHistory};
use greenroom_sdk::types::node::ServiceRestarts;
use greenroom_sdk::types::stream::StreamEvent;
use greenroom_sdk::types::{JobId, NodeId, StartId};
use greenroom_sdk::{Client, EventSettings, JobSearch, StreamItem};

use crate::failure::{Exit, Failure, Outcome};
use crate::output::say;

/// A job runs once it has stayed up for this time without a restart by its worker: a service that
/// ends within milliseconds looks as if it ran, again and again.
const SETTLED: Duration = Duration::from_secs(2);

/// Jobs that are waited for.
struct Waiting {
    jobs: BTreeMap<JobId, Standing>,
    total: usize,
    failed: Option<String>,
}

/// How one of them stands.
#[derive(Default)]
struct Standing {
    /// Its instance that runs.
    on: Option<(NodeId, Option<StartId>)>,
    /// Since when it has been up, as far as was seen from here.
    up_since: Option<Instant>,
    /// The start of which restarts are counted.
    start_id: Option<StartId>,
    restarts: ServiceRestarts,
}

/// Waits until every job has a running instance that stays up, telling progress.
pub(crate) async fn until_running(client: &Client, jobs: Vec<JobId>, limit: Duration) -> Outcome {
    let mut waiting = Waiting::new(jobs);
    let watch = waiting.watch(client);
    match tokio::time::timeout(limit, watch).await {
        Ok(ended) => ended,
        Err(_) => {
            let text = format!("not running after {limit:?}: {}", waiting.names());
            Err(Failure::new(Exit::Failed, text)
                .because("not_running")
                .hint("`greenroom why JOB` says what it waits for"))
        }
    }
}

// === impl Waiting ===

impl Waiting {
    fn new(jobs: Vec<JobId>) -> Self {
        let jobs: BTreeMap<JobId, Standing> = jobs
            .into_iter()
            .map(|job_id| (job_id, Standing::default()))
            .collect();
        Self {
            total: jobs.len(),
            jobs,
            failed: None,
        }
    }

    async fn watch(&mut self, client: &Client) -> Outcome {
        let (state, mut events) = client.event_stream(EventSettings::default()).await?;
        // What was told before is not told again; the Manager counts it.
        for found in client.job_search(JobSearch::default()).await? {
            let newest = found.instances.last();
            if let (Some(standing), Some(newest)) =
                (self.jobs.get_mut(&found.job.job.job_id), newest)
            {
                standing.start_id = Some(newest.start_id.clone());
                standing.restarts = found.restarts.unwrap_or_default();
            }
        }
        for job in &state.active_jobs {
            self.heed(Instant::now(), &job.job);
        }
        while !self.jobs.is_empty() && self.failed.is_none() {
            let due = self.due();
            let item = tokio::select! {
                item = events.next() => item,
                () = async {
                    match due {
                        Some(due) => tokio::time::sleep_until(due.into()).await,
                        None => std::future::pending().await,
                    }
                } => {
                    self.settle(Instant::now());
                    continue;
                }
            };
            let now = Instant::now();
            match item {
                Some(StreamItem::Event(stamped)) => match &stamped.event {
                    StreamEvent::JobUpdated(job) | StreamEvent::JobActive(job) => {
                        self.heed(now, job);
                    }
                    StreamEvent::JobInfo(info) => self.note(now, info),
                    StreamEvent::JobDeleted(job_id) if self.jobs.contains_key(job_id) => {
                        self.failed = Some(format!("job {job_id} was deleted meanwhile"));
                    }
                    _ => {}
                },
                Some(StreamItem::Resnapshot(state)) => {
                    for job in &state.active_jobs {
                        self.heed(now, &job.job);
                    }
                }
                Some(StreamItem::Closed(error)) => return Err(error.into()),
                None => return Err(Failure::failed("the event stream ended")),
            }
        }
        match self.failed.take() {
            Some(text) => Err(Failure::failed(text).because("job_failed")),
            None => Ok(()),
        }
    }

    /// Takes note of a job's history.
    fn heed(&mut self, now: Instant, job: &JobWithHistory) {
        let job_id = &job.job.job_id;
        let Some(standing) = self.jobs.get_mut(job_id) else {
            return;
        };
        // The last three entries of a refused start: rejected, stopping, stopped.
        let last = job.history.last().map(|entry| &entry.kind);
        if let Some(HistoryKind::Stopped(_)) = last
            && let Some(HistoryKind::Rejected { at, detail, .. }) =
                job.history.iter().rev().nth(2).map(|entry| &entry.kind)
        {
            let node_id = &at.node.node_id;
            say(&format!("{job_id} was refused by {node_id}: {detail}"));
        }
        let on = running_on(job);
        if on != standing.on {
            standing.up_since = on.is_some().then_some(now);
            standing.on = on;
        }
        match (job.state, &job.terminal_state) {
            (JobState::Post, Some(verdict)) => {
                self.failed = Some(format!("job {job_id} failed: {}", verdict.reason));
            }
            (JobState::Post, None) => self.done(job_id, "is completed"),
            (JobState::Pre | JobState::Active, _) => {}
        }
    }

    /// Takes note of what a worker says.
    fn note(&mut self, now: Instant, info: &JobInfo) {
        let job_id = &info.key.job_id;
        let Some(standing) = self.jobs.get_mut(job_id) else {
            return;
        };
        if standing.start_id.as_ref() != Some(&info.start_id) {
            standing.start_id = Some(info.start_id.clone());
            standing.restarts = ServiceRestarts::default();
        }
        let (before, was_pending) = (standing.restarts.count, standing.restarts.pending);
        standing.restarts.note(info.at, &info.kind);
        let restarts = &standing.restarts;
        if restarts.count > before {
            let service = &restarts.service;
            let ended = match restarts.ended.as_str() {
                "" => String::new(),
                ended => format!(" ended with {ended}"),
            };
            say(&format!("{job_id} is restarting: service {service}{ended}"));
        }
        if restarts.count > before || was_pending {
            standing.up_since = Some(now);
        }
    }

    /// When the next job will have stayed up long enough.
    fn due(&self) -> Option<Instant> {
        self.jobs.values().filter_map(Standing::due).min()
    }

    fn settle(&mut self, now: Instant) {
        let settled: Vec<(JobId, String)> = self
            .jobs
            .iter()
            .filter(|(_, standing)| standing.due().is_some_and(|due| due <= now))
            .filter_map(|(job_id, standing)| {
                let (node_id, _) = standing.on.as_ref()?;
                Some((job_id.clone(), format!("on {node_id}")))
            })
            .collect();
        for (job_id, how) in settled {
            self.done(&job_id, &how);
        }
    }

    fn done(&mut self, job_id: &JobId, how: &str) {
        self.jobs.remove(job_id);
        let (done, total) = (self.total - self.jobs.len(), self.total);
        say(&format!("{done}/{total} running: {job_id} {how}"));
    }

    /// Those that are waited for, with what keeps them from staying up.
    fn names(&self) -> String {
        let names: Vec<String> = self
            .jobs
            .iter()
            .map(|(job_id, standing)| match standing.restarts.count {
                0 => job_id.to_string(),
                _ => format!("{job_id} ({})", standing.restarts.words()),
            })
            .collect();
        names.join(", ")
    }
}

// === impl Standing ===

impl Standing {
    fn due(&self) -> Option<Instant> {
        self.on.as_ref()?;
        let up_since = self.up_since.filter(|_| !self.restarts.pending)?;
        Some(up_since + SETTLED)
    }
}

/// The node and start of an instance that runs. Entries of several instances may be mixed, as where
/// one stops while the next one runs already.
fn running_on(job: &JobWithHistory) -> Option<(NodeId, Option<StartId>)> {
    let mut newest = BTreeMap::new();
    for entry in &job.history {
        if let Some(at) = entry.kind.at() {
            let is_running = matches!(entry.kind, HistoryKind::Running { .. });
            let place = (at.role.clone(), at.node.node_id.clone());
            newest.insert(place, (is_running, entry.start_id.clone()));
        }
    }
    let running = newest.into_iter().find(|(_, (is_running, _))| *is_running);
    running.map(|((_, node_id), (_, start_id))| (node_id, start_id))
}

#[cfg(test)]
mod tests {
    use greenroom_sdk::types::Wall;
    use greenroom_sdk::types::job::{At, HistoryEntry, Job, JobInfoKind};
    use greenroom_sdk::types::node::InstanceKey;

    use super::*;

    fn running() -> JobWithHistory {
        let at = At {
            role: "primary".into(),
            node: std::sync::Arc::default(),
            running: None,
        };
        JobWithHistory {
            job: Job {
                job_id: "j".into(),
                ..Job::default()
            },
            state: JobState::Active,
            history: vec![HistoryEntry {
                at: Wall(0),
                seq: 1,
                start_id: Some("s".into()),
                kind: HistoryKind::Running {
                    at,
                    ports: Default::default(),
                },
            }],
            ..JobWithHistory::default()
        }
    }

    fn news(kind: JobInfoKind) -> JobInfo {
        JobInfo {
            key: InstanceKey::new("j".into(), "primary".into()),
            start_id: "s".into(),
            at: Wall(0),
            kind,
        }
    }

    #[test]
    fn a_job_runs_when_it_has_stayed_up_and_not_while_its_worker_restarts_it() {
        let mut waiting = Waiting::new(vec!["j".into()]);
        let begun = Instant::now();
        let later = |ms| begun + Duration::from_millis(ms);
        assert_eq!(waiting.due(), None);
        waiting.heed(begun, &running());
        assert_eq!(waiting.due(), Some(later(2_000)));
        let service = || "main".to_owned();
        let text = "ended with exit code 3".to_owned();
        let ended = JobInfoKind::ContainerEvent {
            service: service(),
            text,
        };
        waiting.note(later(100), &news(ended));
        waiting.note(later(100), &news(JobInfoKind::ServiceRestarting(service())));
        assert_eq!(waiting.due(), None, "nobody knows when it is up again");
        assert_eq!(waiting.names(), "j (restarted 1x, last exit code 3)");
        waiting.heed(later(150), &running());
        assert_eq!(waiting.due(), None, "the history says nothing of restarts");
        waiting.note(later(1_100), &news(JobInfoKind::ServiceStarted(service())));
        assert_eq!(waiting.due(), Some(later(3_100)));
        waiting.settle(later(3_000));
        assert_eq!(waiting.jobs.len(), 1);
        waiting.settle(later(3_100));
        assert!(waiting.jobs.is_empty() && waiting.failed.is_none());
    }

    #[test]
    fn a_job_that_did_what_it_was_to_do_is_waited_for_no_longer() {
        let mut waiting = Waiting::new(vec!["j".into()]);
        let mut over = running();
        over.state = JobState::Post;
        waiting.heed(Instant::now(), &over);
        assert!(waiting.jobs.is_empty() && waiting.failed.is_none());
    }
}
