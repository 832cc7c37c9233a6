//! Waiting until jobs run and stay up, or until it is known that one will not.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greenroom_sdk::types::bundle::{BundleState, BundleStatus};
use greenroom_sdk::types::job::{HistoryKind, JobInfo, JobState, JobWithHistory, StopReason};
use greenroom_sdk::types::node::ServiceRestarts;
use greenroom_sdk::types::stream::StreamEvent;
use greenroom_sdk::types::{JobId, NodeId, StartId, Wall};
use greenroom_sdk::{Client, EventSettings, InitialState, JobSearch, StreamItem};

use super::awaited::{now, why_not};
use super::get::BundleRow;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::say;

/// A job runs once it has stayed up for this time without a restart by its worker: a service that
/// ends within milliseconds looks as if it ran, again and again.
const SETTLED: Duration = Duration::from_secs(2);

/// Jobs that are waited for.
struct Waiting {
    jobs: BTreeMap<JobId, Standing>,
    total: usize,
    /// Until when.
    end: Wall,
    /// Why it is in vain: a token, and words.
    failed: Option<(&'static str, String)>,
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
    /// The newest entry of its history when it was first looked at.
    seen: Option<u64>,
}

/// Waits until every job has a running instance that stays up, telling progress.
pub(crate) async fn until_running(client: &Client, jobs: Vec<JobId>, limit: Duration) -> Outcome {
    let ms = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
    let mut waiting = Waiting::new(jobs, now().plus(ms));
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
    fn new(jobs: Vec<JobId>, end: Wall) -> Self {
        let jobs: BTreeMap<JobId, Standing> = jobs
            .into_iter()
            .map(|job_id| (job_id, Standing::default()))
            .collect();
        Self {
            total: jobs.len(),
            jobs,
            end,
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
        self.heed_all(Instant::now(), &state);
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
                    StreamEvent::JobUpdated(job)
                    | StreamEvent::JobActive(job)
                    | StreamEvent::JobPending(job) => self.heed(now, job),
                    StreamEvent::BundleUpdated(status) => self.heed_bundle(status),
                    StreamEvent::JobInfo(info) => self.note(now, info),
                    StreamEvent::JobDeleted(job_id) if self.jobs.contains_key(job_id) => {
                        self.fail("job_deleted", format!("job {job_id} was deleted meanwhile"));
                    }
                    _ => {}
                },
                Some(StreamItem::Resnapshot(state)) => self.heed_all(now, &state),
                Some(StreamItem::Closed(error)) => return Err(error.into()),
                None => return Err(Failure::failed("the event stream ended")),
            }
        }
        match self.failed.take() {
            Some((reason, text)) => Err(Failure::failed(text).because(reason)),
            None => Ok(()),
        }
    }

    fn fail(&mut self, reason: &'static str, text: String) {
        self.failed.get_or_insert((reason, text));
    }

    fn heed_all(&mut self, now: Instant, state: &InitialState) {
        for job in &state.active_jobs {
            self.heed(now, &job.job);
        }
        for status in &state.bundles {
            self.heed_bundle(status);
        }
    }

    /// Takes note of a bundle, which may say that a job that is waited for does not come to run.
    fn heed_bundle(&mut self, status: &BundleStatus) {
        let bundle = &status.bundle;
        let broken = BundleRow::of(status).cause;
        let mut waited = status.jobs.iter().filter(|job| {
            let standing = self.jobs.get(&job.job_id);
            standing.is_some_and(|standing| standing.on.is_none())
        });
        let found = waited.find_map(|job| {
            let job_id = &job.job_id;
            let why = match why_not(bundle, job_id, job.dormant, now(), self.end) {
                _ if bundle.state == BundleState::Deleting => {
                    "its bundle is being deleted".to_owned()
                }
                Some(why) => why.to_string(),
                None => format!("its bundle is broken: {}", broken.as_ref()?),
            };
            Some(format!("job {job_id} is not waited for any longer: {why}"))
        });
        if let Some(text) = found {
            self.fail("not_running", text);
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
        let newest = job.history.last().map_or(0, |entry| entry.seq);
        let seen = *standing.seen.get_or_insert(newest);
        let stopped = stopped_by_request(job).is_some_and(|seq| seq > seen);
        match (job.state, &job.terminal_state) {
            (JobState::Post, Some(verdict)) => {
                let text = format!("job {job_id} failed: {}", verdict.reason);
                self.fail("job_failed", text);
            }
            (JobState::Post, None) => self.done(job_id, "is completed"),
            (JobState::Pre | JobState::Active, _) if job.job.is_dormant() || stopped => {
                // One that rests for a call of StopJob is awake already.
                let again = match job.job.is_dormant() {
                    true => format!("`greenroom start {job_id}` starts it again"),
                    false => format!(
                        "`greenroom stop {job_id}` and then `greenroom start {job_id}` start it again"
                    ),
                };
                let text = format!("job {job_id} was stopped by hand meanwhile; {again}");
                self.fail("job_stopped", text);
            }
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

/// The entry that ended the newest run by request, where nothing runs since.
fn stopped_by_request(job: &JobWithHistory) -> Option<u64> {
    let mut last = BTreeMap::new();
    for entry in job.history.iter().filter(|it| it.kind.at().is_some()) {
        last.insert(&entry.start_id, &entry.kind);
    }
    let is_over = |kind: &&HistoryKind| matches!(kind, HistoryKind::Stopped(_));
    let entries = || job.history.iter().rev();
    let newest = entries().find(|it| matches!(it.kind, HistoryKind::Provisioned(_)))?;
    let mut ends = entries().filter(|it| it.start_id == newest.start_id);
    let end = ends.find(|it| matches!(it.kind, HistoryKind::Stopping { .. }))?;
    let by_request = matches!(
        end.kind,
        HistoryKind::Stopping {
            reason: StopReason::UserRequested,
            ..
        }
    );
    (by_request && last.values().all(is_over)).then_some(end.seq)
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
    use greenroom_sdk::types::bundle::{Bundle, BundleJob, BundleJobStatus};
    use greenroom_sdk::types::job::{At, HistoryEntry, Job, JobInfoKind, TerminalState};
    use greenroom_sdk::types::node::InstanceKey;

    use greenroom_sdk::types::job::{MANUAL, TAG_START_MODE};
    use greenroom_sdk::types::node::NodeMetadata;

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
        let mut waiting = Waiting::new(vec!["j".into()], Wall(i64::MAX));
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
        let mut waiting = Waiting::new(vec!["j".into()], Wall(i64::MAX));
        let mut over = running();
        over.state = JobState::Post;
        waiting.heed(Instant::now(), &over);
        assert!(waiting.jobs.is_empty() && waiting.failed.is_none());
    }

    fn entry(seq: u64, start_id: &str, kind: HistoryKind) -> HistoryEntry {
        HistoryEntry {
            at: Wall(0),
            seq,
            start_id: Some(start_id.into()),
            kind,
        }
    }

    fn at(node_id: &str) -> At {
        let node = NodeMetadata {
            node_id: node_id.into(),
            ..NodeMetadata::default()
        };
        At {
            role: "primary".into(),
            node: std::sync::Arc::new(node),
            running: None,
        }
    }

    fn ends(seq: u64, start_id: &str, reason: StopReason) -> [HistoryEntry; 2] {
        let stopping = HistoryKind::Stopping {
            at: at("n"),
            reason,
            detail: String::new(),
        };
        [
            entry(seq, start_id, stopping),
            entry(seq + 1, start_id, HistoryKind::Stopped(at("n"))),
        ]
    }

    #[test]
    fn a_job_that_somebody_stops_meanwhile_is_waited_for_no_longer() {
        let mut job = running();
        job.history = vec![entry(1, "s", HistoryKind::Provisioned(at("n")))];
        job.history.extend(ends(2, "s", StopReason::UserRequested));
        let told = |waiting: &Waiting| waiting.failed.clone().map(|(reason, _)| reason);
        // It was stopped before, and that is why it is started now.
        let mut waiting = Waiting::new(vec!["j".into()], Wall(i64::MAX));
        waiting.heed(Instant::now(), &job);
        assert_eq!(told(&waiting), None);
        job.history
            .push(entry(4, "t", HistoryKind::Provisioned(at("n"))));
        waiting.heed(Instant::now(), &job);
        assert_eq!(told(&waiting), None);
        // By `greenroom stop`, whether it ran already or not.
        let mut dormant = job.clone();
        let tag = (TAG_START_MODE.to_owned(), MANUAL.to_owned());
        dormant.job.tags.extend([tag]);
        waiting.heed(Instant::now(), &dormant);
        assert_eq!(told(&waiting), Some("job_stopped"));
        // By a call to the Manager; not where it fails, is moved or its bundle changed.
        for (reason, expected) in [
            (StopReason::UserRequested, Some("job_stopped")),
            (StopReason::JobFailed, None),
            (StopReason::Migration, None),
            (StopReason::BundleChanged, None),
        ] {
            let mut waiting = Waiting::new(vec!["j".into()], Wall(i64::MAX));
            waiting.heed(Instant::now(), &job);
            let mut job = job.clone();
            job.history.extend(ends(5, "t", reason));
            waiting.heed(Instant::now(), &job);
            assert_eq!(told(&waiting), expected, "{reason:?}");
        }
    }

    #[test]
    fn a_job_whose_bundle_says_that_it_does_not_run_is_waited_for_no_longer() {
        let status = BundleStatus {
            bundle: Bundle {
                bundle_id: "b".into(),
                jobs: ["e", "f"]
                    .map(|name| BundleJob {
                        job_name: name.into(),
                        ..BundleJob::default()
                    })
                    .into(),
                ..Bundle::default()
            },
            jobs: ["e", "f"]
                .map(|name| BundleJobStatus {
                    job_id: format!("b.0.{name}").as_str().into(),
                    replica_index: 0,
                    job_name: name.into(),
                    dormant: false,
                    terminal_state: None,
                })
                .into(),
            lease_expires_at: None,
        };
        let told = |change: &dyn Fn(&mut BundleStatus)| {
            let end = now().plus(120_000);
            let mut waiting = Waiting::new(vec!["b.0.e".into()], end);
            let mut status = status.clone();
            change(&mut status);
            waiting.heed_bundle(&status);
            waiting.failed.map(|(_, text)| text).unwrap_or_default()
        };
        assert_eq!(told(&|_| {}), "");
        let broken = told(&|status| {
            status.jobs[1].terminal_state = Some(TerminalState {
                reason: "it failed 7 times".to_owned(),
                by: String::new(),
                at: Wall(0),
            });
        });
        assert!(
            broken.contains("b.0.e") && broken.contains("is broken: job b.0.f: it failed 7"),
            "{broken}"
        );
        let deleted = told(&|status| status.bundle.state = BundleState::Deleting);
        assert!(deleted.contains("is being deleted"), "{deleted}");
        let later = told(&|status| status.bundle.start_date_time = Some(now().plus(3_600_000)));
        assert!(later.contains("beyond this wait"), "{later}");
    }
}
