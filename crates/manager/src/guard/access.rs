//! Which role each call needs (SEC-03). What is not here is not served: a call that is added to the
//! surface and forgotten here fails a test, and every caller.

use greenroom_auth::Role;

use super::shares::Kind;

/// What a call asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Nothing: health, and the call that a slot's own token opens.
    Open,
    /// A credential of this role or one that contains it.
    Role(Role),
}

const OPEN: Access = Access::Open;
const VIEWER: Access = Access::Role(Role::Viewer);
const OPERATOR: Access = Access::Role(Role::Operator);
const CONTROL: Access = Access::Role(Role::ControlPlane);
const ADMIN: Access = Access::Role(Role::Admin);

/// Calls of `norsk.api.manager.Manager`.
const MANAGER: &[(&str, Access)] = &[
    ("AbortMigration", OPERATOR),
    ("AddClusterMember", ADMIN),
    ("AdoptInstance", OPERATOR),
    ("AnnounceControlPlane", CONTROL),
    ("AppendAuditEntry", CONTROL),
    ("ClusterMemberRegister", OPEN),
    ("CompleteJob", OPERATOR),
    ("CreateAwsNode", OPERATOR),
    ("CreateBundle", OPERATOR),
    ("CreateCloudHypervisorNode", OPERATOR),
    ("CreateJob", OPERATOR),
    ("CreateMockNode", OPERATOR),
    ("CreateOciNode", OPERATOR),
    ("CreateStatusChannel", VIEWER),
    ("DeleteBundle", OPERATOR),
    ("DeleteJob", OPERATOR),
    ("DeregisterClusterNode", OPERATOR),
    ("DescribeInstanceType", VIEWER),
    ("EventStream", VIEWER),
    ("ForceStandalone", ADMIN),
    ("GetAuditLog", OPERATOR),
    ("GetBundle", VIEWER),
    ("GetClusterEvents", VIEWER),
    ("GetClusterStatus", VIEWER),
    ("GetDiscoveryFleet", CONTROL),
    ("GetLeaseStatus", VIEWER),
    ("GetNodeIdleExpiry", VIEWER),
    ("GetStoreInfo", VIEWER),
    ("JobSearch", VIEWER),
    ("KvCommit", OPERATOR),
    ("KvGet", OPERATOR),
    ("KvList", OPERATOR),
    ("LeaveQuorum", ADMIN),
    ("ListBundles", VIEWER),
    ("ListClusterNodes", VIEWER),
    ("ListInstanceTypes", VIEWER),
    ("ListNodes", VIEWER),
    ("ListWorkerSecurityGroups", VIEWER),
    ("MarkJobFailed", OPERATOR),
    ("NotifyMigrationCutoverApply", OPERATOR),
    ("NotifyMigrationCutoverReady", OPERATOR),
    ("NotifyMigrationGetState", OPERATOR),
    ("PauseLeases", CONTROL),
    ("PrefetchImages", OPERATOR),
    ("PruneAuditLog", ADMIN),
    ("PublishAccessReplica", CONTROL),
    ("PublishDiscoveryFleet", CONTROL),
    ("RegisterClusterNode", OPERATOR),
    ("ReloadExternalConfig", ADMIN),
    ("RemoveClusterMember", ADMIN),
    ("RenewBundleLease", OPERATOR),
    ("ResumeLeases", CONTROL),
    ("RotateClusterNodeToken", OPERATOR),
    ("RotateDiscoveryTierSecret", ADMIN),
    ("SetBundleStopTime", OPERATOR),
    ("SetClusterNodePool", OPERATOR),
    ("SetNodeIdleExpiry", OPERATOR),
    ("SetNodeTags", OPERATOR),
    ("StartBundleJob", OPERATOR),
    ("StartJob", OPERATOR),
    ("StartPreparedJob", OPERATOR),
    ("StopBundleJob", OPERATOR),
    ("StopJob", OPERATOR),
    ("TerminateNode", OPERATOR),
    ("UpdateBundle", OPERATOR),
    ("UpdateJob", OPERATOR),
    ("UpdatePhysicalNode", OPERATOR),
];

/// Every service of the Manager with its calls.
const SERVICES: &[(&str, &[(&str, Access)])] = &[
    ("greenroom.logs.Logs", &[("Read", VIEWER)]),
    ("grpc.health.v1.Health", &[("Check", OPEN), ("Watch", OPEN)]),
    (
        "grpc.reflection.v1.ServerReflection",
        &[("ServerReflectionInfo", VIEWER)],
    ),
    (
        "grpc.reflection.v1alpha.ServerReflection",
        &[("ServerReflectionInfo", VIEWER)],
    ),
    ("norsk.api.manager.Manager", MANAGER),
];

/// Names of the services.
pub(super) fn services() -> impl Iterator<Item = &'static str> {
    SERVICES.iter().map(|(name, _)| *name)
}

/// What the call at this path, `/SERVICE/METHOD`, asks for; none for what is no call of the Manager.
pub(super) fn of(path: &str) -> Option<Access> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let (_, calls) = SERVICES.iter().find(|(name, _)| *name == service)?;
    let (_, access) = calls.iter().find(|(name, _)| *name == method)?;
    Some(*access)
}

/// Calls that are answered by a stream.
const STREAMS: &[&str] = &[
    "CreateStatusChannel",
    "EventStream",
    "JobSearch",
    "Read",
    "ServerReflectionInfo",
    "Watch",
];
/// Calls by which people and programs stop what must not go on; nothing else may hold them up.
const STOPS: &[&str] = &[
    "AbortMigration",
    "CompleteJob",
    "DeleteBundle",
    "DeleteJob",
    "StopBundleJob",
    "StopJob",
    "TerminateNode",
];

/// What share of its caller's the call at this path takes (LIM-05).
pub(super) fn kind(path: &str) -> Kind {
    let method = path.rsplit('/').next().unwrap_or_default();
    if STREAMS.contains(&method) {
        Kind::Stream
    } else if STOPS.contains(&method) {
        Kind::Stop
    } else {
        Kind::Call
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;
    use prost_types::{FileDescriptorProto, FileDescriptorSet};

    use super::*;

    /// Served by workers, whose callers prove themselves otherwise (SEC-05).
    const ELSEWHERE: [&str; 1] = ["/norsk.api.worker.Worker/NodeControllerStream"];

    /// Of every service that the Manager serves.
    fn files() -> Vec<FileDescriptorProto> {
        let sets = [
            greenroom_proto::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let decoded = sets.map(|set| FileDescriptorSet::decode(set).unwrap());
        decoded.into_iter().flat_map(|set| set.file).collect()
    }

    // spec: SEC-03
    #[test]
    fn every_call_of_the_surface_has_a_role_and_nothing_else_is_served() {
        let files = files();
        let surface: BTreeSet<String> = files
            .iter()
            .flat_map(|file| {
                file.service.iter().flat_map(move |service| {
                    let path = format!("/{}.{}", file.package(), service.name());
                    let names = service.method.iter();
                    names.map(move |method| format!("{path}/{}", method.name()))
                })
            })
            .filter(|path| !ELSEWHERE.contains(&path.as_str()))
            .collect();
        assert!(surface.len() > 60, "{surface:?}");
        let table: BTreeSet<String> = SERVICES
            .iter()
            .flat_map(|(service, calls)| {
                calls
                    .iter()
                    .map(move |(call, _)| format!("/{service}/{call}"))
            })
            .collect();
        let missing: Vec<_> = surface.difference(&table).collect();
        assert!(missing.is_empty(), "calls without a role: {missing:?}");
        let unknown: Vec<_> = table.difference(&surface).collect();
        assert!(unknown.is_empty(), "roles without a call: {unknown:?}");
        for path in &surface {
            assert!(of(path).is_some(), "{path}");
        }
        for path in [
            "",
            "/",
            "/norsk.api.manager.Manager",
            "/norsk.api.manager.Manager/",
            "/norsk.api.manager.Manager/createJob",
            "//norsk.api.manager.Manager/CreateJob",
            ELSEWHERE[0],
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    // spec: LIM-05, LIM-06
    #[test]
    fn exactly_the_calls_that_are_answered_by_a_stream_are_taken_for_streams() {
        let files = files();
        let services = files.iter().flat_map(|file| &file.service);
        let streams: BTreeSet<&str> = services
            .filter(|service| service.name() != "Worker")
            .flat_map(|service| &service.method)
            .filter(|method| method.server_streaming())
            .map(|method| method.name())
            .collect();
        assert_eq!(streams, STREAMS.iter().copied().collect());
        for call in STOPS {
            let path = format!("/norsk.api.manager.Manager/{call}");
            assert!(of(&path).is_some(), "{call}");
        }
    }

    // spec: SEC-03
    #[test]
    fn the_manual_shows_the_table_as_it_is() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/operate/security.md"
        );
        let manual = std::fs::read_to_string(path).unwrap();
        let mut rows = Vec::new();
        for (needed, name) in [
            (OPEN, "no credential"),
            (VIEWER, "viewer"),
            (OPERATOR, "operator"),
            (CONTROL, "control-plane"),
            (ADMIN, "admin"),
        ] {
            let mut calls: Vec<&str> = SERVICES
                .iter()
                .flat_map(|(_, calls)| calls.iter())
                .filter(|(_, access)| *access == needed)
                .map(|(call, _)| *call)
                .collect();
            calls.dedup();
            rows.push(format!("| {name} | {} |", calls.join(", ")));
        }
        for row in rows {
            assert!(
                manual.contains(&row),
                "docs/operate/security.md lacks\n{row}"
            );
        }
    }
}
