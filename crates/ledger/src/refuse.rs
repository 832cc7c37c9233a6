//! Refusals in their stable words, so that one situation reads alike everywhere.

use greenroom_types::call::{Detail, Refusal, Status};
use greenroom_types::{JobId, NodeId};

/// Something wrong in a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) path: String,
    pub(crate) text: String,
}

// === impl Problem ===

impl Problem {
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
        }
    }
}

pub(crate) fn invalid(reason: &str, message: impl Into<String>) -> Refusal {
    Refusal::new(Status::InvalidArgument, reason, message)
}

pub(crate) fn failed(reason: &str, message: impl Into<String>) -> Refusal {
    Refusal::new(Status::FailedPrecondition, reason, message)
}

pub(crate) fn not_found(reason: &str, message: impl Into<String>) -> Refusal {
    Refusal::new(Status::NotFound, reason, message)
}

pub(crate) fn exists(reason: &str, message: impl Into<String>) -> Refusal {
    Refusal::new(Status::AlreadyExists, reason, message)
}

pub(crate) fn exhausted(reason: &str, message: impl Into<String>) -> Refusal {
    Refusal::new(Status::ResourceExhausted, reason, message)
}

/// API-15: a required identifier is empty. Comes before any check of form.
pub(crate) fn required(path: &str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() {
        return Err(
            invalid("missing_field", format!("{path} is empty: it is required")).with("path", path),
        );
    }
    Ok(())
}

/// One refusal for all problems, each with its path.
pub(crate) fn problems(reason: &str, what: &str, found: Vec<Problem>) -> Result<(), Refusal> {
    let Some(first) = found.first() else {
        return Ok(());
    };
    let more = match found.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    let refusal = invalid(
        reason,
        format!("{what}: {}: {}{more}", first.path, first.text),
    )
    .with("path", first.path.as_str());
    let mut refusal = refusal;
    refusal.details.insert(
        "problems".to_owned(),
        Detail::List(
            found
                .iter()
                .map(|problem| Detail::Text(format!("{}: {}", problem.path, problem.text)))
                .collect(),
        ),
    );
    Err(refusal)
}

pub(crate) fn unknown_job(job_id: &JobId) -> Refusal {
    not_found("unknown_job", format!("there is no job {job_id:?}"))
}

pub(crate) fn unknown_node(node_id: &NodeId) -> Refusal {
    not_found("unknown_node", format!("there is no node {node_id:?}"))
}

/// JOB-02.
pub(crate) fn job_id(job_id: &JobId) -> Result<(), Refusal> {
    required("job_id", job_id.as_str())?;
    match job_id.as_str().parse::<JobId>() {
        Ok(_) => Ok(()),
        Err(error) => Err(invalid("bad_job_id", error.to_string()).with("path", "job_id")),
    }
}

/// JOB-02.
pub(crate) fn role(path: &str, role: &greenroom_types::Role) -> Result<(), Refusal> {
    required(path, role.as_str())?;
    match role.as_str().parse::<greenroom_types::Role>() {
        Ok(_) => Ok(()),
        Err(error) => Err(invalid("bad_role", error.to_string()).with("path", path)),
    }
}

/// At most `max` bytes of a text, cut at a character.
pub(crate) fn cut(text: &str, max: usize) -> String {
    text[..text.floor_char_boundary(max)].to_owned()
}
