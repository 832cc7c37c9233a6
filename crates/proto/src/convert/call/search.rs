//! What JobSearch may be asked (JOB-28).
//!
//! The form alone: whether an expression is a good one is judged where it is compiled (JOB-29).

use greenroom_types::Wall;

use super::super::{
    WireError,
    common::{read_time, write_time},
};
use crate::manager;

/// A search for jobs: all filters must hold, none means every job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSearch {
    /// The filters.
    pub filters: Vec<JobFilter>,
    /// Tell the history of each job, too.
    pub include_history: bool,
}

/// One condition on a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobFilter {
    /// On a tag.
    Tag {
        /// Its key.
        name: String,
        /// What must hold of its value.
        is: TagMatch,
    },
    /// On the job id.
    Id(IdMatch),
    /// On the start time; a job without one matches none.
    Start(DateMatch),
}

/// A condition on a tag's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagMatch {
    /// Equal.
    Is(String),
    /// Not equal, or not there.
    IsNot(String),
    /// Matches a linear-time regular expression somewhere.
    Matches(String),
    /// Is there, or is not.
    Exists(bool),
}

/// A condition on a job id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdMatch {
    /// Equal.
    Is(String),
    /// Not equal.
    IsNot(String),
    /// Matches a linear-time regular expression somewhere.
    Matches(String),
}

/// A condition on an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DateMatch {
    /// Equal.
    At(Wall),
    /// Earlier.
    Before(Wall),
    /// Earlier or equal.
    NotAfter(Wall),
    /// Later.
    After(Wall),
    /// Later or equal.
    NotBefore(Wall),
    /// Between two, both included.
    Within(Wall, Wall),
}

// === impl JobSearch ===

impl JobSearch {
    /// The search for one job.
    pub fn by_id(job_id: impl Into<String>) -> Self {
        Self {
            filters: vec![JobFilter::Id(IdMatch::Is(job_id.into()))],
            include_history: false,
        }
    }
}

impl TryFrom<manager::JobSearchRequest> for JobSearch {
    type Error = WireError;
    fn try_from(request: manager::JobSearchRequest) -> Result<Self, WireError> {
        Ok(Self {
            filters: super::super::read_list(request.job_filter, "job_filter")?,
            include_history: request.include_history,
        })
    }
}

impl From<&JobSearch> for manager::JobSearchRequest {
    fn from(search: &JobSearch) -> Self {
        Self {
            job_filter: super::super::write_list(&search.filters),
            include_history: search.include_history,
        }
    }
}

// === impl JobFilter ===

/// A filter that compares with nothing (JOB-29).
fn empty(path: &str) -> WireError {
    WireError::new("empty_filter", path, "has no comparison")
}

impl TryFrom<manager::JobFilter> for JobFilter {
    type Error = WireError;
    fn try_from(filter: manager::JobFilter) -> Result<Self, WireError> {
        use manager::job_filter::JobFilter as Wire;
        match filter.job_filter {
            None => Err(empty("")),
            Some(Wire::TagFilter(tag)) => Ok(Self::Tag {
                name: tag.tag_name,
                is: match tag.comparison.ok_or_else(|| empty("tag_filter"))? {
                    manager::tag_filter::Comparison::Eq(text) => TagMatch::Is(text),
                    manager::tag_filter::Comparison::Neq(text) => TagMatch::IsNot(text),
                    manager::tag_filter::Comparison::Re(text) => TagMatch::Matches(text),
                    manager::tag_filter::Comparison::Exists(exists) => TagMatch::Exists(exists),
                },
            }),
            Some(Wire::IdFilter(id)) => Ok(Self::Id(
                match id.comparison.ok_or_else(|| empty("id_filter"))? {
                    manager::id_filter::Comparison::Eq(text) => IdMatch::Is(text),
                    manager::id_filter::Comparison::Neq(text) => IdMatch::IsNot(text),
                    manager::id_filter::Comparison::Re(text) => IdMatch::Matches(text),
                },
            )),
            Some(Wire::DateFilter(date)) => {
                use manager::date_filter::Comparison;
                let comparison = date.comparison.ok_or_else(|| empty("date_filter"))?;
                let read = |time, field: &str| read_time(time, &format!("date_filter.{field}"));
                Ok(Self::Start(match comparison {
                    Comparison::Eq(time) => DateMatch::At(read(time, "eq")?),
                    Comparison::Lt(time) => DateMatch::Before(read(time, "lt")?),
                    Comparison::Lte(time) => DateMatch::NotAfter(read(time, "lte")?),
                    Comparison::Gt(time) => DateMatch::After(read(time, "gt")?),
                    Comparison::Gte(time) => DateMatch::NotBefore(read(time, "gte")?),
                    Comparison::Within(within) => {
                        let ends = within.start_date.zip(within.end_date);
                        let (start, end) = ends.ok_or_else(|| empty("date_filter.within"))?;
                        DateMatch::Within(
                            read(start, "within.start_date")?,
                            read(end, "within.end_date")?,
                        )
                    }
                }))
            }
        }
    }
}

impl From<&JobFilter> for manager::JobFilter {
    fn from(filter: &JobFilter) -> Self {
        use manager::job_filter::JobFilter as Wire;
        let filter = match filter {
            JobFilter::Tag { name, is } => {
                use manager::tag_filter::Comparison;
                Wire::TagFilter(manager::TagFilter {
                    tag_name: name.clone(),
                    comparison: Some(match is {
                        TagMatch::Is(text) => Comparison::Eq(text.clone()),
                        TagMatch::IsNot(text) => Comparison::Neq(text.clone()),
                        TagMatch::Matches(text) => Comparison::Re(text.clone()),
                        TagMatch::Exists(exists) => Comparison::Exists(*exists),
                    }),
                })
            }
            JobFilter::Id(is) => {
                use manager::id_filter::Comparison;
                Wire::IdFilter(manager::IdFilter {
                    comparison: Some(match is {
                        IdMatch::Is(text) => Comparison::Eq(text.clone()),
                        IdMatch::IsNot(text) => Comparison::Neq(text.clone()),
                        IdMatch::Matches(text) => Comparison::Re(text.clone()),
                    }),
                })
            }
            JobFilter::Start(is) => {
                use manager::date_filter::{Comparison, Within};
                Wire::DateFilter(manager::DateFilter {
                    comparison: Some(match *is {
                        DateMatch::At(time) => Comparison::Eq(write_time(time)),
                        DateMatch::Before(time) => Comparison::Lt(write_time(time)),
                        DateMatch::NotAfter(time) => Comparison::Lte(write_time(time)),
                        DateMatch::After(time) => Comparison::Gt(write_time(time)),
                        DateMatch::NotBefore(time) => Comparison::Gte(write_time(time)),
                        DateMatch::Within(start, end) => Comparison::Within(Within {
                            start_date: Some(write_time(start)),
                            end_date: Some(write_time(end)),
                        }),
                    }),
                })
            }
        };
        Self {
            job_filter: Some(filter),
        }
    }
}
