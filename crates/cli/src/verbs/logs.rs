//! `greenroom logs`: what a job's services wrote.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use greenroom_sdk::proto::convert::refusal::read_refusal;
use greenroom_sdk::proto::logs::logs_client::LogsClient;
use greenroom_sdk::proto::logs::{Line, ReadRequest};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use super::connect::{Manager, not_reached};
use crate::failure::{Failure, Outcome};
use crate::output::say;

/// Pause between two tries to reach a Manager that went away; it doubles up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// A Manager that has just come back has its workers again within this time.
const WORKERS_BACK: Duration = Duration::from_secs(60);

/// Print what a job's services wrote.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The job, by id.
    job: String,
    /// Go on with new lines until the instance is over, also when the Manager goes away and comes
    /// back.
    #[arg(short, long)]
    follow: bool,
    /// Only this service.
    #[arg(long, default_value = "")]
    service: String,
    /// Only the newest lines of each service.
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Only the instance in this role, e.g. backup.
    #[arg(long, default_value = "")]
    role: String,
    #[command(flatten)]
    manager: Manager,
}

/// When a line was written: seconds and nanoseconds since 1970.
type At = (i64, i32);

/// How far the lines were printed, so that none comes twice after a break.
#[derive(Debug, Default)]
struct Printed {
    /// By service and stream: the time of the last line, and how many lines of that time there were.
    last: BTreeMap<(String, String), (At, usize)>,
    /// After a break: lines of that time that were passed by.
    passed: BTreeMap<(String, String), usize>,
    /// Lines of a service that had none yet are new if they are later than this.
    begun: At,
    again: bool,
}

type Lines = LogsClient<InterceptedService<Channel, greenroom_sdk::Announce>>;

/// Why lines end before the instance is over.
enum Break {
    /// Whoever passes them on went away, and may come back.
    Gone(String),
    Refused(Failure),
}

// === impl Logs ===

impl Logs {
    pub(crate) async fn run(self) -> Outcome {
        let mut client = self.client().await?;
        let mut request = ReadRequest {
            job_id: self.job.clone(),
            role: self.role.clone(),
            start_id: String::new(),
            service: self.service.clone(),
            tail: self.tail,
            follow: self.follow,
        };
        let mut printed = Printed::new(self.tail.is_some());
        loop {
            let cause = match self.print(&mut client, &mut request, &mut printed).await {
                Ok(()) => return Ok(()),
                Err(Break::Refused(failure)) => return Err(failure),
                Err(Break::Gone(cause)) => cause,
            };
            if !self.follow {
                let text = format!("the lines ended: {cause}");
                return Err(Failure::failed(text).because("connection_lost"));
            }
            say(&format!(
                "the lines are interrupted: {cause}; they go on when the Manager is back"
            ));
            client = self.back(&request).await?;
            say("the lines go on");
            request.tail = None;
            printed.begin_again();
        }
    }

    /// With the caller's credential, over a connection of its own.
    async fn client(&self) -> Result<Lines, Failure> {
        let connected = self.manager.connect().await?;
        let (channel, announce) = connected.channel()?;
        Ok(LogsClient::with_interceptor(channel, announce))
    }

    /// Prints lines until there are no more.
    async fn print(
        &self,
        client: &mut Lines,
        request: &mut ReadRequest,
        printed: &mut Printed,
    ) -> Result<(), Break> {
        let broke = |status: tonic::Status| self.broke(&status);
        let answer = client.read(request.clone()).await.map_err(broke)?;
        let mut lines = answer.into_inner();
        let output = self.manager.output();
        while let Some(some) = lines.message().await.map_err(broke)? {
            // What follows is of this very instance, also after a break.
            request.start_id.clone_from(&some.start_id);
            for line in some.lines.iter().filter(|line| printed.is_new(line)) {
                let told = serde_json::json!({
                    "nodeId": some.node_id, "startId": some.start_id,
                    "service": line.service, "stream": line.stream, "text": line.text,
                });
                output
                    .either(&told, || format!("{}: {}", line.service, line.text))
                    .map_err(Break::Refused)?;
            }
        }
        Ok(())
    }

    fn broke(&self, status: &tonic::Status) -> Break {
        let job = &self.job;
        match read_refusal(status) {
            Some(refusal) if refusal.reason == "shutting_down" => {
                Break::Gone("the Manager is shutting down".to_owned())
            }
            Some(refusal) if refusal.reason == "unknown_job" => Break::Refused(
                Failure::failed(format!("there is no job {job}"))
                    .because(&refusal.reason)
                    .hint("`greenroom get jobs` lists them"),
            ),
            Some(refusal) => {
                let failure = Failure::failed(refusal.to_string());
                Break::Refused(failure.because(&refusal.reason))
            }
            None => {
                let cause = greenroom_sdk::plain_cause(status);
                if cause.contains(greenroom_sdk::NO_MANAGER) {
                    let url = self.manager.reach.url();
                    return Break::Refused(not_reached(&url, status));
                }
                Break::Gone(match std::error::Error::source(status) {
                    Some(_) => "the Manager went away".to_owned(),
                    // The Manager passed on that its line to the worker broke.
                    None => "the worker went away".to_owned(),
                })
            }
        }
    }

    /// Waits until the Manager is back, and has the lines to pass on.
    async fn back(&self, request: &ReadRequest) -> Result<Lines, Failure> {
        let (mut pause, longest) = PAUSES;
        let mut back_since: Option<Instant> = None;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
            let Ok(mut client) = self.client().await else {
                back_since = None;
                continue;
            };
            let since = *back_since.get_or_insert_with(Instant::now);
            // A look that ends at once: no line of it is printed.
            let look = ReadRequest {
                tail: Some(0),
                follow: false,
                ..request.clone()
            };
            match client.read(look).await {
                Ok(_) => return Ok(client),
                Err(status) => match self.broke(&status) {
                    Break::Gone(_) => {}
                    Break::Refused(failure) if !failure.is_because("node_unreachable") => {
                        return Err(failure);
                    }
                    Break::Refused(failure) if since.elapsed() > WORKERS_BACK => {
                        return Err(failure);
                    }
                    Break::Refused(_) => {}
                },
            }
        }
    }
}

// === impl Printed ===

impl Printed {
    /// `from_now`: older lines are not wanted.
    fn new(from_now: bool) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let nanos = i32::try_from(now.subsec_nanos()).unwrap_or_default();
        Self {
            begun: if from_now { (seconds, nanos) } else { (0, 0) },
            ..Self::default()
        }
    }

    /// All lines that are kept come once more.
    fn begin_again(&mut self) {
        self.again = true;
        self.passed.clear();
    }

    /// Whether a line is to be printed, which is then taken note of.
    fn is_new(&mut self, line: &Line) -> bool {
        let Some(at) = line.at.as_ref().map(|at| (at.seconds, at.nanos)) else {
            // Nobody knows whether it was printed; before a break it was not.
            return !self.again;
        };
        let of = (line.service.clone(), line.stream.clone());
        if self.again {
            match self.last.get(&of) {
                None if at < self.begun => return false,
                Some((last, _)) if at < *last => return false,
                Some((last, count)) if at == *last => {
                    let passed = self.passed.entry(of.clone()).or_default();
                    if *passed < *count {
                        *passed += 1;
                        return false;
                    }
                }
                None | Some(_) => {}
            }
        }
        match self.last.get_mut(&of) {
            Some((last, count)) if *last == at => {
                *count += 1;
                // It was passed by as well as printed.
                *self.passed.entry(of).or_default() += 1;
            }
            _ => {
                self.passed.insert(of.clone(), 1);
                self.last.insert(of, (at, 1));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use greenroom_sdk::proto::convert::common::write_time;
    use greenroom_sdk::types::Wall;

    use super::*;

    fn line(service: &str, at: i64, text: &str) -> Line {
        Line {
            service: service.to_owned(),
            stream: "stdout".to_owned(),
            at: Some(write_time(Wall(at * 1_000))),
            text: text.to_owned(),
        }
    }

    #[test]
    fn after_a_break_no_line_comes_twice_and_none_is_left_out() {
        let written = [
            line("a", 1, "one"),
            line("b", 1, "other"),
            line("a", 2, "two"),
            line("a", 2, "also two"),
            line("a", 2, "two again"),
            line("a", 3, "three"),
        ];
        for broken_after in 0..=written.len() {
            let mut printed = Printed::new(false);
            let mut shown: Vec<&Line> = Vec::new();
            shown.extend(
                written[..broken_after]
                    .iter()
                    .filter(|it| printed.is_new(it)),
            );
            for _ in 0..2 {
                printed.begin_again();
                shown.extend(written.iter().filter(|it| printed.is_new(it)));
            }
            assert_eq!(shown.len(), written.len(), "{broken_after}: {shown:?}");
        }
    }

    #[test]
    fn with_a_tail_old_lines_stay_unprinted_after_a_break() {
        let mut printed = Printed::new(true);
        printed.begin_again();
        assert!(!printed.is_new(&line("a", 5, "long ago")));
        assert!(printed.is_new(&line("a", 4_000_000_000, "new")));
    }
}
