//! What a worker tells a job in its environment (WORK-12), as far as the test card uses it.
//!
//! Each variable is named here once. A variable that is set and cannot be read is an error: a
//! test signal with the wrong fence number would prove the wrong thing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Slot role of the instance.
pub const RUNTIME_ROLE: &str = "NORSK_RUNTIME_ROLE";
/// Id of the job.
pub const JOB_ID: &str = "GREENROOM_JOB_ID";
/// Role in the instance's key; differs from the slot role during an overlap.
pub const ROLE: &str = "GREENROOM_ROLE";
/// Node the instance runs on.
pub const NODE_ID: &str = "GREENROOM_NODE_ID";
/// Start id of the instance.
pub const START_ID: &str = "GREENROOM_START_ID";
/// Fencing number, if the job is leased.
pub const FENCE: &str = "GREENROOM_FENCE";
/// Service within the job.
pub const SERVICE: &str = "GREENROOM_SERVICE";
/// Path of the job socket, if the job has one.
pub const JOB_SOCKET: &str = "GREENROOM_JOB_SOCKET";
/// Prefix; followed by a container port, its value is the host port to bind instead.
pub const PORT_PREFIX: &str = "GREENROOM_PORT_";

/// The environment of one instance; everything is absent outside a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobEnv {
    /// [`JOB_ID`].
    pub job_id: Option<String>,
    /// [`ROLE`].
    pub role: Option<String>,
    /// [`RUNTIME_ROLE`].
    pub runtime_role: Option<String>,
    /// [`NODE_ID`].
    pub node_id: Option<String>,
    /// [`START_ID`].
    pub start_id: Option<String>,
    /// [`FENCE`].
    pub fence: Option<u64>,
    /// [`SERVICE`].
    pub service: Option<String>,
    /// [`JOB_SOCKET`].
    pub job_socket: Option<PathBuf>,
    /// Host port by container port, from [`PORT_PREFIX`].
    pub ports: BTreeMap<u16, u16>,
}

/// A variable that is set to something that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {name} is `{value}`; it must be {expected}")]
pub struct EnvError {
    /// The variable.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What would be right.
    pub expected: &'static str,
}

// === impl JobEnv ===

impl JobEnv {
    /// Reads this process's environment.
    pub fn from_process() -> Result<Self, EnvError> {
        let text = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self::from_vars(text)
    }

    /// Reads any list of variables; empty values count as unset.
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, EnvError> {
        let mut env = Self::default();
        for (name, value) in vars {
            if value.is_empty() {
                continue;
            }
            match name.as_str() {
                RUNTIME_ROLE => env.runtime_role = Some(value),
                JOB_ID => env.job_id = Some(value),
                ROLE => env.role = Some(value),
                NODE_ID => env.node_id = Some(value),
                START_ID => env.start_id = Some(value),
                SERVICE => env.service = Some(value),
                JOB_SOCKET => env.job_socket = Some(value.into()),
                FENCE => env.fence = Some(number(&name, &value, "a whole number")?),
                _ => {
                    let container_port = name.strip_prefix(PORT_PREFIX).map(str::parse::<u16>);
                    if let Some(Ok(container_port)) = container_port {
                        let host_port = number(&name, &value, "a port number")?;
                        env.ports.insert(container_port, host_port);
                    }
                }
            }
        }
        Ok(env)
    }

    /// The address to bind: if its port names a container port that the worker has mapped, the
    /// host port takes its place; else the address as it is.
    pub fn mapped(&self, address: SocketAddr) -> SocketAddr {
        let port = self
            .ports
            .get(&address.port())
            .copied()
            .unwrap_or(address.port());
        SocketAddr::new(address.ip(), port)
    }
}

fn number<T: std::str::FromStr>(
    name: &str,
    value: &str,
    expected: &'static str,
) -> Result<T, EnvError> {
    value.parse().map_err(|_| EnvError {
        name: name.to_owned(),
        value: value.to_owned(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<JobEnv, EnvError> {
        JobEnv::from_vars(vars.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())))
    }

    #[test]
    fn the_workers_variables_are_read() {
        let env = read(&[
            ("NORSK_RUNTIME_ROLE", "primary"),
            ("GREENROOM_ROLE", "primary@2"),
            ("GREENROOM_FENCE", "4294967303"),
            ("GREENROOM_PORT_8080", "31000"),
            ("GREENROOM_PORT_SPARE", "ignored"),
            ("GREENROOM_SERVICE", ""),
            ("GREENROOM_JOB_SOCKET", "/run/greenroom/job.sock"),
            ("HOME", "/root"),
        ])
        .unwrap();
        assert_eq!(env.runtime_role.as_deref(), Some("primary"));
        assert_eq!(env.role.as_deref(), Some("primary@2"));
        assert_eq!(env.fence, Some(4_294_967_303));
        assert_eq!(env.service, None);
        assert_eq!(env.job_socket, Some("/run/greenroom/job.sock".into()));
        assert_eq!(
            env.mapped("0.0.0.0:8080".parse().unwrap()),
            "0.0.0.0:31000".parse().unwrap()
        );
        assert_eq!(
            env.mapped("0.0.0.0:9090".parse().unwrap()),
            "0.0.0.0:9090".parse().unwrap()
        );
    }

    #[test]
    fn a_value_that_cannot_be_meant_is_an_error() {
        for (name, value) in [("GREENROOM_FENCE", "seven"), ("GREENROOM_PORT_80", "70000")] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.to_string().contains(name) && error.to_string().contains(value));
        }
    }
}
