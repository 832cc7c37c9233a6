use greenroom_types::{
    Tags, Wall,
    call::{Call, Reply, Status},
    discovery::{DiscoveryFleet, RotationPhase},
    job::{Job, Service, ServiceParameters},
};

use super::*;

fn path_of(request: Request) -> (&'static str, String) {
    let error = Call::try_from(request).unwrap_err();
    (error.reason, error.path)
}

fn create(job: &Job) -> Request {
    Request::from(&Call::CreateJob(Box::new(job.clone())))
}

fn job() -> Job {
    Job {
        job_id: "chan-1".into(),
        services: vec![Service {
            name: "enc".to_owned(),
            ..Service::default()
        }],
        ..Job::default()
    }
}

// spec: LIM-02, API-09
#[test]
fn text_holds_no_control_characters_but_in_a_configuration() {
    let mut it = job();
    it.description = "line\n\ttabbed".to_owned();
    it.services[0].configuration = "\u{1b}[1m opaque \r\n".to_owned();
    assert!(Call::try_from(create(&it)).is_ok());

    it.services[0].parameters = ServiceParameters {
        environment: vec![
            ("A".to_owned(), "fine".to_owned()),
            ("KEY".to_owned(), "hunter2\u{7}".to_owned()),
        ],
        ..ServiceParameters::default()
    };
    let error = Call::try_from(create(&it)).unwrap_err();
    assert_eq!(
        (error.reason, error.path.as_str()),
        (
            "bad_text",
            "services[0].parameters.environment_variables[1].value"
        )
    );
    assert!(!error.to_string().contains("hunter2"), "{error}");

    let mut it = job();
    it.services[0].configuration = "a\0b".to_owned();
    assert_eq!(
        path_of(create(&it)),
        ("bad_text", "services[0].configuration".to_owned())
    );
    let mut it = job();
    it.tags.insert("k".to_owned(), "a\u{85}b".to_owned());
    assert_eq!(path_of(create(&it)), ("bad_text", "tags[k]".to_owned()));
}

// spec: LIM-03
#[test]
fn maps_and_lists_have_their_limits_and_numbers_are_finite() {
    let tags = |count: usize| -> Tags {
        (0..count)
            .map(|at| (format!("k{at}"), String::new()))
            .collect()
    };
    let set = |tags: Tags, remove: usize| {
        Request::from(&Call::SetNodeTags {
            node_id: "n".into(),
            tags,
            remove: vec!["x".to_owned(); remove],
            expected_revision: None,
        })
    };
    assert!(Call::try_from(set(tags(256), 1024)).is_ok());
    assert_eq!(path_of(set(tags(257), 0)), ("bad_value", "tags".to_owned()));
    assert_eq!(
        path_of(set(tags(0), 1025)),
        ("bad_value", "remove".to_owned())
    );

    let cpus = |count| {
        let mut it = job();
        it.services[0].parameters.cpu_set = vec![300; count];
        create(&it)
    };
    assert!(Call::try_from(cpus(1024)).is_ok());
    assert_eq!(
        path_of(cpus(1025)),
        ("bad_value", "services[0].parameters.cpu_set".to_owned()),
        "packed numbers are counted one by one"
    );

    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let request = Request::CreateOciNode(manager::CreateOciNodeRequest {
            node_id: Some(wire::NodeId {
                node_id: "n".to_owned(),
            }),
            memory_gb: number,
            ..Default::default()
        });
        assert_eq!(path_of(request), ("bad_value", "memory_gb".to_owned()));
    }
}

// spec: API-15
#[test]
fn a_missing_identifier_is_told_before_any_other_fault() {
    let bad = "\u{1}";
    let table = [
        (
            Request::CreateJob(manager::Job {
                description: bad.to_owned(),
                ..Default::default()
            }),
            "job_id.job_id",
        ),
        (
            Request::StartJob(manager::StartJobRequest {
                runtime_role: bad.to_owned(),
                ..Default::default()
            }),
            "job_id.job_id",
        ),
        (
            Request::StopJob(manager::StopJobRequest {
                job_id: Some(wire::JobId {
                    job_id: bad.to_owned(),
                }),
                ..Default::default()
            }),
            "role",
        ),
        (
            Request::UpdateBundle(manager::UpdateBundleRequest {
                bundle: Some(manager::Bundle {
                    pool: bad.to_owned(),
                    state: 77,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            "bundle.bundle_id",
        ),
        (
            Request::SetNodeTags(manager::SetNodeTagsRequest {
                remove: vec![bad.to_owned()],
                ..Default::default()
            }),
            "node_id.node_id",
        ),
        (
            Request::AbortMigration(manager::AbortMigrationRequest {
                job_id: Some(wire::JobId {
                    job_id: "j".to_owned(),
                }),
                source_role: "primary".to_owned(),
                reason: bad.to_owned(),
                ..Default::default()
            }),
            "target_role",
        ),
    ];
    for (request, path) in table {
        assert_eq!(
            path_of(request.clone()),
            ("missing_field", path.to_owned()),
            "{request:?}"
        );
    }
}

// spec: API-04, API-24
#[test]
fn enums_and_times_are_refused_by_path() {
    let mut node = manager::CreateAwsNodeRequest {
        node_id: Some(wire::NodeId {
            node_id: "n".to_owned(),
        }),
        ..Default::default()
    };
    node.launch_mode = 9;
    assert_eq!(
        path_of(Request::CreateAwsNode(node)),
        ("unknown_enum", "launch_mode".to_owned())
    );
    let stop = manager::SetBundleStopTimeRequest {
        bundle_id: "b".to_owned(),
        stop_at: Some(prost_types::Timestamp {
            seconds: -1,
            nanos: 0,
        }),
    };
    assert_eq!(
        path_of(Request::SetBundleStopTime(stop)),
        ("bad_timestamp", "stop_at".to_owned())
    );
}

// spec: API-03
#[test]
fn a_node_is_created_without_added_fields_and_never_with_some_of_them_dropped() {
    let published = manager::CreateAwsNodeRequest {
        node_id: Some(wire::NodeId {
            node_id: "n".to_owned(),
        }),
        region: "eu-west-1".to_owned(),
        instance_type: "m7i.large".to_owned(),
        ..Default::default()
    };
    let call = Call::try_from(Request::CreateAwsNode(published.clone())).unwrap();
    let Call::CreateAwsNode(node) = &call else {
        panic!("{call:?}");
    };
    assert_eq!(
        node.launch_mode,
        greenroom_types::pool::LaunchMode::OnDemand
    );
    assert_eq!(node.root_volume, None);
    assert_eq!(
        Request::from(&call),
        Request::CreateAwsNode(published.clone())
    );

    let with = manager::CreateAwsNodeRequest {
        subnet_id: "subnet-1".to_owned(),
        ..published
    };
    assert_eq!(
        path_of(Request::CreateAwsNode(with)),
        ("field_not_served", "subnet_id".to_owned())
    );
}

#[test]
fn replies_come_back_the_same_and_fit_their_call_only() {
    fn there_and_back<A: Answer>(reply: Reply) {
        assert_eq!(A::write(reply.clone()).unwrap().read().unwrap(), reply);
    }
    let ids = vec!["a".into(), "b".into()];
    there_and_back::<()>(Reply::Done);
    there_and_back::<manager::JobHash>(Reply::JobHash(7));
    there_and_back::<manager::CreateBundleResponse>(Reply::BundleCreated {
        bundle_id: "b".into(),
        revision: 1,
        job_ids: ids.clone(),
    });
    there_and_back::<manager::UpdateBundleResponse>(Reply::BundleUpdated {
        revision: 2,
        created: ids.clone(),
        changed: vec!["c".into()],
        updated: vec!["d".into()],
        removed: vec!["e".into()],
        untouched: vec!["f".into()],
    });
    there_and_back::<manager::StartBundleJobResponse>(Reply::BundleJob("j".into()));
    there_and_back::<manager::StopBundleJobResponse>(Reply::BundleJob("j".into()));
    there_and_back::<manager::SetNodeTagsResponse>(Reply::Tags {
        tags: [("k".to_owned(), "v".to_owned())].into(),
        revision: 3,
    });
    there_and_back::<manager::RegisterClusterNodeResponse>(Reply::Slot {
        node_id: "n".into(),
        token: "grt_x".to_owned(),
    });
    there_and_back::<manager::DeregisterClusterNodeResponse>(Reply::StoppedJobs(ids));
    there_and_back::<manager::PrefetchImagesResponse>(Reply::Batch("b1".to_owned()));
    there_and_back::<manager::AbortMigrationResponse>(Reply::Notified(vec!["primary".to_owned()]));
    there_and_back::<manager::SetClusterNodePoolResponse>(Reply::RunningJobs(vec!["a".into()]));
    there_and_back::<manager::RotateClusterNodeTokenResponse>(Reply::Token("grt_x".to_owned()));
    there_and_back::<manager::AppendAuditEntryResponse>(Reply::AuditSeq(7));
    there_and_back::<manager::PruneAuditLogResponse>(Reply::AuditPruned {
        removed: 3,
        checkpoint_seq: 9,
    });
    there_and_back::<manager::KvCommitResponse>(Reply::KvRevision(7));
    let fleet = DiscoveryFleet {
        addresses: vec!["a:1".to_owned()],
        address: "a:1".to_owned(),
        leaf_token: "leaf".to_owned(),
        tier_secret: "new".to_owned(),
        tier_secret_alt: "old".to_owned(),
        rotation_phase: RotationPhase::Flipped,
    };
    there_and_back::<manager::PublishDiscoveryFleetResponse>(Reply::Discovery {
        fleet: fleet.clone(),
        secrets_kept: true,
    });
    there_and_back::<manager::RotateDiscoveryTierSecretResponse>(Reply::Rotated {
        fleet,
        version: 0,
        acknowledged: 3,
        not_acknowledged: vec!["n1".into()],
    });
    there_and_back::<manager::PublishAccessReplicaResponse>(Reply::ReplicaVersion(7));
    there_and_back::<manager::ReloadExternalConfigResponse>(Reply::Reloaded(vec!["a".to_owned()]));
    there_and_back::<manager::RenewBundleLeaseResponse>(Reply::BundleLease(Some(Wall(7_000))));
    there_and_back::<manager::RenewBundleLeaseResponse>(Reply::BundleLease(None));
    there_and_back::<manager::PauseLeasesResponse>(Reply::LeasesPaused {
        since: Wall(8_000),
        not_acknowledged: vec!["n".into()],
    });
    there_and_back::<manager::ResumeLeasesResponse>(Reply::LeasesResumed {
        leases: 3,
        not_acknowledged: vec!["n".into()],
    });

    let refusal = manager::JobHash::write(Reply::Done).unwrap_err();
    assert_eq!(
        (refusal.status, refusal.reason.as_str()),
        (Status::Internal, "internal")
    );
    let empty = manager::CreateBundleResponse::default().read().unwrap_err();
    assert_eq!(
        (empty.reason, empty.path.as_str()),
        ("missing_field", "bundle_id")
    );
}

#[test]
fn searches_come_back_the_same_and_empty_filters_are_refused() {
    let (early, late) = (Wall(1_000), Wall(2_000));
    let text = || "x".to_owned();
    let tag = |is| JobFilter::Tag {
        name: "k".to_owned(),
        is,
    };
    let search = JobSearch {
        filters: vec![
            tag(TagMatch::Is(text())),
            tag(TagMatch::IsNot(text())),
            tag(TagMatch::Matches(text())),
            tag(TagMatch::Exists(true)),
            JobFilter::Id(IdMatch::Is(text())),
            JobFilter::Id(IdMatch::IsNot(text())),
            JobFilter::Id(IdMatch::Matches(text())),
            JobFilter::Start(DateMatch::At(early)),
            JobFilter::Start(DateMatch::Before(early)),
            JobFilter::Start(DateMatch::NotAfter(early)),
            JobFilter::Start(DateMatch::After(early)),
            JobFilter::Start(DateMatch::NotBefore(early)),
            JobFilter::Start(DateMatch::Within(early, late)),
        ],
        include_history: true,
    };
    let sent = manager::JobSearchRequest::from(&search);
    assert_eq!(JobSearch::try_from(sent).unwrap(), search);

    let date = manager::JobFilter {
        job_filter: Some(manager::job_filter::JobFilter::DateFilter(
            manager::DateFilter::default(),
        )),
    };
    let request = manager::JobSearchRequest {
        job_filter: vec![(&search.filters[0]).into(), date],
        include_history: false,
    };
    let error = JobSearch::try_from(request).unwrap_err();
    assert_eq!(
        (error.reason, error.path.as_str()),
        ("empty_filter", "job_filter[1].date_filter")
    );
}

// spec: HELLO-02
#[test]
fn a_client_announces_its_protocol_or_is_a_published_one() {
    let mut metadata = tonic::metadata::MetadataMap::new();
    assert_eq!(read_protocol(&metadata).unwrap(), (1, 0));
    metadata.insert(PROTOCOL_METADATA, "1.7".parse().unwrap());
    assert_eq!(read_protocol(&metadata).unwrap(), (1, 7));
    metadata.insert(PROTOCOL_METADATA, "seven".parse().unwrap());
    assert_eq!(
        read_protocol(&metadata).unwrap_err().path,
        PROTOCOL_METADATA
    );
}

// spec: HELLO-05
#[test]
fn every_call_has_the_minor_of_its_group() {
    for (call, minor) in [
        ("StartJob", 0),
        ("CreateBundle", 1),
        ("RegisterClusterNode", 2),
        ("AbortMigration", 3),
        ("PrefetchImages", 9),
    ] {
        assert_eq!(minor_of_call(call), Some(minor), "{call}");
    }
    assert_eq!(minor_of_call("NoSuchCall"), None);
}

#[test]
fn equal_requests_have_equal_bodies_and_others_do_not() {
    let one = create(&job());
    assert_eq!(one.body(), create(&job()).body());
    let mut other = job();
    other.description = "changed".to_owned();
    assert_ne!(one.body(), create(&other).body());
}
