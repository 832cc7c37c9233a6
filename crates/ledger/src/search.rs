//! JobSearch: filters over all jobs, in the order of job ids, from one state (JOB-28, JOB-29).

use greenroom_types::Wall;
use greenroom_types::call::{Refusal, Status};
use greenroom_types::job::Job;
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::read::CurrentJob;

/// Longest regular expression, in bytes.
const REGEX_BYTES: usize = 1024;

/// One filter; all filters of a search must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JobFilter {
    /// On a tag's value.
    Tag {
        /// The tag.
        name: String,
        /// How it is compared; none is refused.
        comparison: Option<TextComparison>,
    },
    /// On the job id.
    Id(Option<TextComparison>),
    /// On `start_date_time`; a job without one matches none.
    Start(Option<DateComparison>),
}

/// How a text is compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TextComparison {
    /// Equal.
    Eq(String),
    /// Unequal; an absent tag is unequal to every text.
    Neq(String),
    /// A regular expression that matches anywhere.
    Re(String),
    /// The tag is there, or is not. On an id: every id is there.
    Exists(bool),
}

/// How an instant is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DateComparison {
    /// At.
    Eq(Wall),
    /// Before.
    Lt(Wall),
    /// At or before.
    Lte(Wall),
    /// After.
    Gt(Wall),
    /// At or after.
    Gte(Wall),
    /// Between, both ends included.
    Within(Wall, Wall),
}

enum Test {
    Eq(String),
    Neq(String),
    Re(Regex),
    Exists(bool),
}

enum Filter {
    Tag(String, Test),
    Id(Test),
    Start(DateComparison),
}

// === impl Ledger ===

impl Ledger {
    /// Every job that all filters match, in the order of ids, with its live instances.
    pub fn search(&self, filters: &[JobFilter]) -> Result<Vec<CurrentJob>, Refusal> {
        let filters = filters
            .iter()
            .enumerate()
            .map(|(index, filter)| compile(index, filter))
            .collect::<Result<Vec<_>, _>>()?;
        let exact = filters.iter().find_map(|filter| match filter {
            Filter::Id(Test::Eq(id)) => Some(id.as_str()),
            _ => None,
        });
        let matches = |job: &Job| filters.iter().all(|filter| filter.matches(job));
        if let Some(id) = exact {
            return Ok(self
                .jobs
                .get(id)
                .filter(|record| matches(&record.view.job))
                .and_then(|record| self.current_job(&record.view.job.job_id))
                .into_iter()
                .collect());
        }
        Ok(self
            .jobs
            .iter()
            .filter(|(_, record)| matches(&record.view.job))
            .filter_map(|(id, _)| self.current_job(id))
            .collect())
    }
}

fn compile(index: usize, filter: &JobFilter) -> Result<Filter, Refusal> {
    let empty = || {
        Refusal::new(
            Status::InvalidArgument,
            "empty_filter",
            format!("job_filter[{index}] names no comparison: give one, e.g. eq"),
        )
        .with("path", format!("job_filter[{index}]"))
    };
    let test = |comparison: &Option<TextComparison>| -> Result<Test, Refusal> {
        Ok(match comparison.as_ref().ok_or_else(empty)? {
            TextComparison::Eq(text) => Test::Eq(text.clone()),
            TextComparison::Neq(text) => Test::Neq(text.clone()),
            TextComparison::Exists(there) => Test::Exists(*there),
            TextComparison::Re(text) => Test::Re(regex(index, text)?),
        })
    };
    Ok(match filter {
        JobFilter::Tag { name, comparison } => Filter::Tag(name.clone(), test(comparison)?),
        JobFilter::Id(comparison) => Filter::Id(test(comparison)?),
        JobFilter::Start(comparison) => Filter::Start(comparison.ok_or_else(empty)?),
    })
}

fn regex(index: usize, text: &str) -> Result<Regex, Refusal> {
    let bad = |position: usize, what: &str| {
        Refusal::new(
            Status::InvalidArgument,
            "bad_regex",
            format!("job_filter[{index}].re is no regular expression: {what}"),
        )
        .with("path", format!("job_filter[{index}].re"))
        .with("position", position as u64)
    };
    if text.len() > REGEX_BYTES {
        return Err(bad(REGEX_BYTES, "it is longer than 1024 bytes"));
    }
    match regex_syntax::parse(text) {
        Err(regex_syntax::Error::Parse(error)) => {
            return Err(bad(error.span().start.offset, &error.kind().to_string()));
        }
        Err(regex_syntax::Error::Translate(error)) => {
            return Err(bad(error.span().start.offset, &error.kind().to_string()));
        }
        Err(_) | Ok(_) => {}
    }
    Regex::new(text).map_err(|_| bad(0, "it needs too much memory"))
}

// === impl Filter ===

impl Filter {
    fn matches(&self, job: &Job) -> bool {
        match self {
            Self::Tag(name, test) => test.matches(job.tag(name)),
            Self::Id(test) => test.matches(Some(job.job_id.as_str())),
            Self::Start(comparison) => job.start_date_time.is_some_and(|at| match *comparison {
                DateComparison::Eq(wall) => at == wall,
                DateComparison::Lt(wall) => at < wall,
                DateComparison::Lte(wall) => at <= wall,
                DateComparison::Gt(wall) => at > wall,
                DateComparison::Gte(wall) => at >= wall,
                DateComparison::Within(from, to) => (from..=to).contains(&at),
            }),
        }
    }
}

// === impl Test ===

impl Test {
    fn matches(&self, value: Option<&str>) -> bool {
        match self {
            Self::Eq(text) => value == Some(text),
            Self::Neq(text) => value != Some(text),
            Self::Re(regex) => value.is_some_and(|value| regex.is_match(value)),
            Self::Exists(there) => value.is_some() == *there,
        }
    }
}
