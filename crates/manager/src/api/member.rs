//! Calls about this very member: the control plane beside it, how it stands, its store. They ask no
//! quorum.

use greenroom_proto::convert::call::refuse;
use greenroom_proto::convert::common::{read_time_optional, write_time};
use greenroom_proto::convert::refusal::write_refusal;
use greenroom_proto::manager as pb;
use greenroom_store::{BootOutcome, StoreInfo};
use greenroom_types::call::{Refusal, Status};
use greenroom_types::{Millis, Wall};
use tonic::{Request, Response};

use super::ManagerApi;
use crate::cluster_log::{Entry, Query};
use crate::planes::Plane;

/// Entries of an answer where none are asked for, and most (CLUST-24).
const EVENTS_DEFAULT: usize = 100;
const EVENTS_MAX: usize = 1_000;
/// Longest url (CTRL-01).
const URL_MAX: usize = 512;
/// Times between two announcements (CTRL-01).
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 1_000..=3_600_000;

impl ManagerApi {
    /// Where the control plane beside this member is (CTRL-01).
    pub(super) async fn announce(
        &self,
        request: Request<pb::AnnounceControlPlaneRequest>,
    ) -> Result<Response<pb::AnnounceControlPlaneResponse>, tonic::Status> {
        let caller = self.caller(&request)?;
        let pb::AnnounceControlPlaneRequest { url, interval_ms } = request.into_inner();
        check(&url, interval_ms).map_err(|refusal| write_refusal(&refusal))?;
        let engine = self.engine();
        let now = engine.clock().now();
        let announced = engine
            .planes()
            .announce(now, &url, interval_ms.map(Millis))
            .await;
        let is_news = announced.map_err(|error| {
            tracing::error!(%error, "an announced control plane could not be kept");
            write_refusal(&Refusal::new(
                Status::Unavailable,
                "store_failed",
                "the announcement could not be kept; see the Manager's log",
            ))
        })?;
        if is_news {
            let member = engine.member().to_owned();
            tracing::info!(member, url, "control plane announced");
            let payload = serde_json::json!({"member": member, "url": url, "by": caller.actor});
            // It is in force without: a quorum may be lost, and then no entry can be made.
            let engine = engine.clone();
            tokio::spawn(async move { engine.note("announce_control_plane", payload).await });
        }
        Ok(Response::new(pb::AnnounceControlPlaneResponse {
            members: self.planes(),
        }))
    }

    fn planes(&self) -> Vec<pb::ControlPlane> {
        let engine = self.engine();
        let planes = engine.planes().all(engine.clock().mono());
        planes.iter().map(write_plane).collect()
    }

    /// How the cluster stands, as this member sees it (CLUST-10).
    pub(super) fn cluster_status(&self) -> Result<pb::ClusterStatus, tonic::Status> {
        let engine = self.engine();
        let info = self.store_now()?;
        let member = engine.member().to_owned();
        let mut planes = self.planes().into_iter();
        let own = pb::ClusterMember {
            name: member.clone(),
            kind: "full".to_owned(),
            state: "primary".to_owned(),
            voting: true,
            lag_ms: 0,
            last_contact: Some(write_time(engine.clock().now().wall)),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            control_plane: planes.find(|plane| plane.member == member),
        };
        Ok(pb::ClusterStatus {
            member: member.clone(),
            role: "primary".to_owned(),
            generation: info.identity.generation,
            term: info.term,
            index: info.revision,
            primary: member,
            primary_since: Some(write_time(self.0.since)),
            members: vec![own],
            quorum_needed: 1,
            quorum_present: 1,
            fault_tolerance: 0,
            warnings: Vec::new(),
        })
    }

    /// Why this member is not made a cluster of its own: it is one, and its primary is itself
    /// (CLUST-19).
    pub(super) fn no_forcing(&self, by: &str) -> tonic::Status {
        let member = self.engine().member();
        let refusal = named(by).err().unwrap_or_else(|| {
            let text = format!(
                "{member:?} is the primary and alone in its cluster: nothing is to be forced"
            );
            Refusal::new(Status::FailedPrecondition, "primary_reachable", text)
                .with("primary", member)
        });
        write_refusal(&refusal)
    }

    /// Why this member's copy is not given up: there is no other (CLUST-21).
    pub(super) fn no_leaving(&self, by: &str) -> tonic::Status {
        let member = self.engine().member();
        let refusal = named(by).err().unwrap_or_else(|| {
            let text =
                format!("{member:?} is the only member of its cluster: its copy is the only one");
            Refusal::new(Status::FailedPrecondition, "only_member", text).with("member", member)
        });
        write_refusal(&refusal)
    }

    /// This member's own log, newest first (CLUST-24).
    pub(super) fn cluster_events(
        &self,
        request: pb::GetClusterEventsRequest,
    ) -> Result<pb::GetClusterEventsResponse, tonic::Status> {
        let since = read_time_optional(request.since, "since")
            .map_err(|error| write_refusal(&refuse(error)))?;
        let query = Query {
            limit: match request.limit as usize {
                0 => EVENTS_DEFAULT,
                limit => limit.min(EVENTS_MAX),
            },
            before_seq: (request.before_seq > 0).then_some(request.before_seq),
            since,
            kinds: request.kinds,
        };
        let member = self.engine().member();
        let events = self.0.cluster_log.find(&query).into_iter();
        Ok(pb::GetClusterEventsResponse {
            member: member.to_owned(),
            events: events.map(|entry| write_event(member, entry)).collect(),
        })
    }

    /// The store, what this start did to it, and how the overrides file stands (STORE-07, OVR-03).
    pub(super) fn store_info(&self) -> Result<pb::GetStoreInfoResponse, tonic::Status> {
        let info = self.store_now()?;
        let last_backup_at = info.last_backup.and_then(|it| it.wall_ms);
        let last_backup_at = last_backup_at.map(|ms| write_time(Wall(ms)));
        let stores = info.files.into_iter().map(|file| pb::StoreInfo {
            name: file.name,
            schema_version: file.schema,
            size_bytes: file.bytes,
            last_backup_at,
        });
        let shown = |path: &Option<std::path::PathBuf>| {
            path.as_ref().map(|path| path.display().to_string())
        };
        let (action, backup, damaged) = match &self.0.boot.outcome {
            BootOutcome::Opened => ("nothing", None, None),
            BootOutcome::Created => ("created", None, None),
            BootOutcome::Migrated { backup, .. } => ("migrated", shown(backup), None),
            BootOutcome::Restored {
                from,
                damaged_kept_as,
                ..
            } => ("restored", shown(from), shown(damaged_kept_as)),
        };
        let (from_version, to_version) = match &self.0.boot.outcome {
            BootOutcome::Migrated { from, to, .. } => (*from, *to),
            _ => (0, 0),
        };
        Ok(pb::GetStoreInfoResponse {
            stores: stores.collect(),
            boot: Some(pb::BootReport {
                action: action.to_owned(),
                from_version,
                to_version,
                backup: backup.unwrap_or_default(),
                damaged_kept_as: damaged.unwrap_or_default(),
                ..pb::BootReport::default()
            }),
            overrides: self.0.overrides.status(),
        })
    }

    fn store_now(&self) -> Result<StoreInfo, tonic::Status> {
        self.engine().store().info().map_err(|error| {
            tracing::error!(%error, "the store's folder cannot be read");
            write_refusal(&Refusal::new(
                Status::Unavailable,
                "store_failed",
                "the store's folder cannot be read; see the Manager's log",
            ))
        })
    }
}

fn write_event(member: &str, entry: Entry) -> pb::ClusterEvent {
    pb::ClusterEvent {
        member: member.to_owned(),
        seq: entry.seq,
        at: Some(write_time(entry.at)),
        term: entry.term,
        kind: entry.kind,
        text: entry.text,
        details: entry.details.into_iter().collect(),
        repeated: entry.repeated,
    }
}

fn write_plane(plane: &Plane) -> pb::ControlPlane {
    pb::ControlPlane {
        member: plane.member.clone(),
        url: plane.url.clone(),
        announced_at: Some(write_time(plane.announced_at)),
        interval_ms: plane.interval_ms,
        stale: plane.stale,
        active: plane.active,
    }
}

/// Who gives the order; it cannot be taken back, so it has a name.
fn named(by: &str) -> Result<(), Refusal> {
    if by.is_empty() {
        let text = "by is empty: it is required";
        return Err(Refusal::new(Status::InvalidArgument, "missing_field", text).with("path", "by"));
    }
    Ok(())
}

fn check(url: &str, interval_ms: Option<u64>) -> Result<(), Refusal> {
    let refuse = |reason, path: &str, text: String| {
        let text = format!("{path}: {text}");
        Err(Refusal::new(Status::InvalidArgument, reason, text).with("path", path))
    };
    if !url.is_empty() && !is_url(url) {
        let text = format!(
            "must be https:// or http:// with a host, and a port of 1 to 65535 if any, of at most {URL_MAX} bytes"
        );
        return refuse("bad_url", "url", text);
    }
    match interval_ms {
        Some(ms) if !INTERVAL_MS.contains(&ms) => {
            let (least, most) = (INTERVAL_MS.start(), INTERVAL_MS.end());
            refuse(
                "bad_value",
                "interval_ms",
                format!("is {ms}, it must be {least} to {most}"),
            )
        }
        _ => Ok(()),
    }
}

/// A name and password in it would be a secret that every worker keeps.
fn is_url(text: &str) -> bool {
    let Ok(uri) = text.parse::<http::Uri>() else {
        return false;
    };
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    let plain = uri.authority().is_some_and(|it| !it.as_str().contains('@'));
    let host = uri.host().is_some_and(|host| !host.is_empty());
    // An authority with a port that is no port parses all the same; what follows the host must be one.
    let port = uri.authority().is_some_and(|it| {
        let rest = it.as_str().strip_prefix(it.host()).unwrap_or("?");
        match rest.strip_prefix(':') {
            Some(digits) => digits.parse::<u16>().is_ok_and(|port| port > 0),
            None => rest.is_empty(),
        }
    });
    text.len() <= URL_MAX && is_web && plain && host && port
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: CTRL-01
    #[test]
    fn a_url_is_of_the_web_and_an_interval_is_bounded() {
        let reason = |url: &str, interval| check(url, interval).map_err(|it| it.reason);
        let long = format!("https://a/{}", "x".repeat(URL_MAX));
        let most = &long[..URL_MAX];
        for good in ["https://control:7000", "http://[::1]:1/x", "", most] {
            assert_eq!(reason(good, None), Ok(()), "{good}");
        }
        for bad in [
            "control:7000",
            "/x",
            "ftp://a",
            "https://",
            "https:///x",
            "https://u:p@a",
            "http://h:99999",
            "http://h:0",
            "http://h:",
            "http://[::1]:65536",
            &long,
        ] {
            assert_eq!(reason(bad, None), Err("bad_url".to_owned()), "{bad}");
        }
        for (interval, good) in [
            (999, false),
            (1_000, true),
            (3_600_000, true),
            (3_600_001, false),
        ] {
            assert_eq!(
                reason("https://a", Some(interval)).is_ok(),
                good,
                "{interval}"
            );
        }
    }
}
