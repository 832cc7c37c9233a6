//! Which jobs of a bundle `apply --wait` waits for, and why not for the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use greenroom_sdk::types::bundle::{Bundle, StartMode};
use greenroom_sdk::types::{JobId, Wall};

/// Jobs that are named in one line; of more the number is told.
const NAMED_MAX: usize = 10;

/// Why a job is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unawaited {
    /// The stop time of its bundle is over.
    Over(Wall),
    /// The stop time comes ahead of the start.
    StopsFirst(Wall, Wall),
    /// Somebody starts it by hand.
    ByHand,
    /// Somebody stopped it by hand.
    Stopped,
    /// It starts later than the wait lasts.
    Later(Wall),
}

/// Jobs that were submitted, told apart.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    pub(crate) jobs: Vec<JobId>,
    pub(crate) others: BTreeMap<Unawaited, Vec<JobId>>,
}

// === impl Unawaited ===

impl Unawaited {
    /// True where the job does not run, now or later.
    pub(crate) const fn is_never(self) -> bool {
        matches!(self, Self::Over(_) | Self::StopsFirst(..))
    }
}

impl fmt::Display for Unawaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over(stop) => write!(f, "the stop time {stop} is over, so it does not run"),
            Self::StopsFirst(stop, start) => {
                write!(
                    f,
                    "it stops at {stop}, ahead of its start at {start}, so it does not run"
                )
            }
            Self::ByHand => f.write_str("it is started by hand, with `greenroom start`"),
            Self::Stopped => {
                f.write_str("it was stopped by hand, and is started again with `greenroom start`")
            }
            Self::Later(start) => write!(f, "it starts at {start}, which is beyond this wait"),
        }
    }
}

// === impl Awaited ===

impl Awaited {
    /// Takes the jobs of one bundle, of which those are at rest that `dormant` names.
    pub(crate) fn add(
        &mut self,
        bundle: &Bundle,
        jobs: &[JobId],
        dormant: &BTreeSet<JobId>,
        now: Wall,
        limit: Duration,
    ) {
        let end = now.plus(i64::try_from(limit.as_millis()).unwrap_or(i64::MAX));
        for job_id in jobs {
            match why_not(bundle, job_id, dormant.contains(job_id), now, end) {
                None => self.jobs.push(job_id.clone()),
                Some(why) => self.others.entry(why).or_default().push(job_id.clone()),
            }
        }
    }

    /// A line for each reason, `never` for those that make a wait fall short.
    pub(crate) fn lines(&self, never: bool) -> Vec<String> {
        let others = self
            .others
            .iter()
            .filter(|(why, _)| why.is_never() == never);
        others
            .map(|(why, jobs)| format!("not waited for: {}: {why}", names(jobs)))
            .collect()
    }
}

fn names(jobs: &[JobId]) -> String {
    let first: Vec<&str> = jobs.iter().take(NAMED_MAX).map(JobId::as_str).collect();
    let first = first.join(", ");
    match jobs.len().saturating_sub(NAMED_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Why a job is not waited for until `end`; none where it is.
pub(crate) fn why_not(
    bundle: &Bundle,
    job_id: &JobId,
    is_dormant: bool,
    now: Wall,
    end: Wall,
) -> Option<Unawaited> {
    let job = (0..bundle.copies())
        .flat_map(|copy| bundle.jobs.iter().map(move |job| (copy, job)))
        .find(|(copy, job)| bundle.job_id(*copy, &job.job_name) == *job_id)
        .map(|(_, job)| job)?;
    let start = job.start_date_time.or(bundle.start_date_time);
    if let Some(stop) = bundle.stop_at {
        if stop <= now {
            return Some(Unawaited::Over(stop));
        }
        if let Some(start) = start.filter(|start| stop <= *start) {
            return Some(Unawaited::StopsFirst(stop, start));
        }
    }
    if is_dormant {
        return Some(match job.start_mode {
            StartMode::Manual => Unawaited::ByHand,
            StartMode::Auto => Unawaited::Stopped,
        });
    }
    start.filter(|start| *start > end).map(Unawaited::Later)
}

/// The time by this machine's clock.
pub(crate) fn now() -> Wall {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since.unwrap_or_default().as_millis();
    Wall(i64::try_from(ms).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(text: &str) -> Bundle {
        let text = format!("bundleId: b\npool: p\n{text}");
        greenroom_manifest::read_bundles("b.yaml", &text)
            .unwrap()
            .remove(0)
            .bundle
    }

    fn why(text: &str) -> Option<String> {
        told(text, &[])
    }

    fn told(text: &str, dormant: &[&str]) -> Option<String> {
        let job =
            "jobs: [{jobName: e, requirements: {}, launch: {services: [{name: s, command: x}]}}]\n";
        let bundle = bundle(&format!("{text}{job}"));
        let now: Wall = "2026-11-30T00:00:00Z".parse().unwrap();
        let mut awaited = Awaited::default();
        let dormant = dormant.iter().map(|id| (*id).into()).collect();
        let jobs = ["b.0.e".into()];
        awaited.add(&bundle, &jobs, &dormant, now, Duration::from_secs(120));
        assert_eq!(awaited.jobs.len() + awaited.others.len(), 1);
        let never = awaited.lines(true);
        never.into_iter().chain(awaited.lines(false)).next()
    }

    #[test]
    fn what_rests_by_somebodys_hand_is_not_waited_for() {
        let stopped = told("", &["b.0.e"]).unwrap();
        assert!(
            stopped.contains("stopped by hand") && stopped.contains("`greenroom start`"),
            "{stopped}"
        );
        let over = "stopAt: 2021-01-01T00:00:00Z\n";
        let over = told(over, &["b.0.e"]).unwrap();
        assert!(over.contains("is over"), "{over}");
    }

    #[test]
    fn what_is_not_waited_for_is_told_with_its_reason() {
        assert_eq!(why(""), None);
        assert_eq!(
            why("startDateTime: 2020-01-01T00:00:00Z\n"),
            None,
            "it runs now"
        );
        assert_eq!(
            why("startDateTime: 2026-11-30T00:01:00Z\n"),
            None,
            "within the wait"
        );
        for (text, wanted) in [
            ("startDateTime: 2026-11-30T00:03:00Z\n", "beyond this wait"),
            (
                "startDateTime: 2020-01-01T00:00:00Z\nstopAt: 2021-01-01T00:00:00Z\n",
                "the stop time 2021-01-01T00:00:00",
            ),
            (
                "startDateTime: 2030-01-01T00:00:00Z\nstopAt: 2029-01-01T00:00:00Z\n",
                "ahead of its start at 2030",
            ),
        ] {
            let told = why(text).unwrap_or_default();
            assert!(told.starts_with("not waited for: b.0.e: "), "{told}");
            assert!(told.contains(wanted), "{told}");
        }
    }
}
