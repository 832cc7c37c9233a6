//! Names in a scenario: jobs as `BUNDLE/REPLICA/JOB`, nodes by id or, where the policy bought them,
//! by what they were bought for.

use std::fmt;
use std::str::FromStr;

use greenroom_types::{BundleId, JobId, JobName, NodeId, PoolName, Role, TierName, tree};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// A job of a bundle: `chan-1/0/encode`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobPath {
    /// The bundle.
    pub bundle_id: BundleId,
    /// The copy.
    pub replica_index: u32,
    /// The job within the bundle.
    pub job_name: JobName,
}

/// A node: its id, or what the policy bought it for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeRef {
    /// By its id.
    Id(NodeId),
    /// `@BUNDLE/REPLICA/JOB`: the node to which that job is bound now.
    OfJob(JobPath),
    /// `@spare/POOL/N`: the N-th spare asked for in the pool, from 1.
    Spare(PoolName, usize),
    /// `@tier/POOL/TIER/N`: the N-th node asked for in the tier, from 1.
    Tier(PoolName, TierName, usize),
}

/// One instance of a job: that of the binding, or `{job, node}`: the one on that node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRef {
    /// The job.
    pub job: JobPath,
    /// The node, if it is not that of the binding.
    pub node: Option<NodeRef>,
}

/// A node or a job, for the modifier `only`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A job.
    Job(JobPath),
    /// A node.
    Node(NodeRef),
}

/// A text that names nothing of the kind wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {kind}: write it as {form}")]
pub struct NameError {
    text: String,
    kind: &'static str,
    form: &'static str,
}

const JOB_FORM: &str = "BUNDLE/REPLICA/JOB, e.g. chan-1/0/encode";
const NODE_FORM: &str = "a node id, @BUNDLE/REPLICA/JOB, @spare/POOL/N or @tier/POOL/TIER/N";

fn wrong(text: &str, kind: &'static str, form: &'static str) -> NameError {
    let text = text.to_owned();
    NameError { text, kind, form }
}

// === impl JobPath ===

impl JobPath {
    /// The id that the Manager gives to this job (BDL-03).
    pub fn job_id(&self) -> JobId {
        JobId::new(format!(
            "{}.{}.{}",
            self.bundle_id, self.replica_index, self.job_name
        ))
    }

    /// The job with this id, if it has the form of a bundle job's.
    pub fn of_job_id(job_id: &str) -> Option<Self> {
        let (rest, job_name) = job_id.rsplit_once('.')?;
        let (bundle_id, replica) = rest.rsplit_once('.')?;
        let path = Self {
            bundle_id: bundle_id.parse().ok()?,
            replica_index: match replica {
                "0" => 0,
                "1" => 1,
                _ => return None,
            },
            job_name: job_name.parse().ok()?,
        };
        Some(path)
    }

    /// The role in which this copy starts (BIND-03).
    pub fn role(&self) -> Role {
        Role::of_replica(self.replica_index)
    }
}

impl FromStr for JobPath {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let fault = || wrong(text, "job", JOB_FORM);
        let mut parts = text.split('/');
        let (Some(bundle), Some(replica), Some(job), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(fault());
        };
        Ok(Self {
            bundle_id: bundle.parse().map_err(|_| fault())?,
            replica_index: match replica {
                "0" => 0,
                "1" => 1,
                _ => return Err(fault()),
            },
            job_name: job.parse().map_err(|_| fault())?,
        })
    }
}

impl fmt::Display for JobPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}/{}",
            self.bundle_id, self.replica_index, self.job_name
        )
    }
}

// === impl InstanceRef ===

impl<'de> Deserialize<'de> for InstanceRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            job: JobPath,
            #[serde(default)]
            node: Option<NodeRef>,
        }
        match Value::deserialize(deserializer)? {
            job @ Value::String(_) => Ok(Self {
                job: tree::nested(&job)?,
                node: None,
            }),
            other => {
                let Written { job, node } = tree::nested(&other)?;
                Ok(Self { job, node })
            }
        }
    }
}

// === impl NodeRef ===

impl FromStr for NodeRef {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let fault = || wrong(text, "node", NODE_FORM);
        let Some(rest) = text.strip_prefix('@') else {
            return text.parse().map(Self::Id).map_err(|_| fault());
        };
        // In one way only: 1 and 01 would be two keys of one mapping that say two things of one node.
        let number = |text: &str| match text.parse::<usize>() {
            Ok(number) if text.starts_with(|first: char| matches!(first, '1'..='9')) => Ok(number),
            _ => Err(fault()),
        };
        let parts: Vec<&str> = rest.split('/').collect();
        match parts[..] {
            ["tier", pool, tier, n] => Ok(Self::Tier(pool.into(), tier.into(), number(n)?)),
            // `@spare/0/x` names the job x of a bundle called spare: no number stands last.
            ["spare", pool, n] if n.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ok(Self::Spare(pool.into(), number(n)?))
            }
            [_, _, _] => rest.parse().map(Self::OfJob).map_err(|_| fault()),
            _ => Err(fault()),
        }
    }
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::OfJob(path) => write!(f, "@{path}"),
            Self::Spare(pool, n) => write!(f, "@spare/{pool}/{n}"),
            Self::Tier(pool, tier, n) => write!(f, "@tier/{pool}/{tier}/{n}"),
        }
    }
}

// === impl Subject ===

impl FromStr for Subject {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        if let Ok(path) = text.parse() {
            return Ok(Self::Job(path));
        }
        text.parse()
            .map(Self::Node)
            .map_err(|_| wrong(text, "job or node", NODE_FORM))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(path) => path.fmt(f),
            Self::Node(node) => node.fmt(f),
        }
    }
}

macro_rules! from_text {
    ($($name:ident),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

from_text!(JobPath, NodeRef, Subject);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_by_bundle_copy_and_name() {
        let path: JobPath = "chan.1/0/encode".parse().unwrap();
        assert_eq!(path.job_id().as_str(), "chan.1.0.encode");
        assert_eq!(JobPath::of_job_id("chan.1.0.encode"), Some(path.clone()));
        assert_eq!(path.to_string(), "chan.1/0/encode");
        for bad in [
            "chan",
            "chan/0",
            "chan/2/e",
            "chan/0/e/f",
            "Chan/0/e",
            "c/0/",
        ] {
            assert!(bad.parse::<JobPath>().is_err(), "{bad}");
        }
        assert_eq!(JobPath::of_job_id("plain-job"), None);
    }

    // spec: SCEN-15
    #[test]
    fn bought_nodes_are_named_by_what_they_were_bought_for() {
        for text in ["n1", "@a/0/e", "@spare/live/1", "@tier/live/cloud/2"] {
            assert_eq!(text.parse::<NodeRef>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "a b",
            "@a",
            "@tier/live/cloud/0",
            "@tier/live/cloud/01",
            "@tier/live/cloud/+1",
            "@spare/live/01",
            "@tier/live/1",
            "@spare/live/x/1",
        ] {
            assert!(bad.parse::<NodeRef>().is_err(), "{bad}");
        }
    }
}
