//! A cluster of one: how it stands, and what its only member tells of itself.

use greenroom_proto::convert::refusal::read_refusal;
use greenroom_proto::manager::{ForceStandaloneRequest, LeaveQuorumRequest};
use greenroom_sdk::ClusterEventQuery;
use greenroom_testkit::{TestManager, job};

fn of_kind(kind: &str) -> ClusterEventQuery {
    ClusterEventQuery {
        kinds: vec![kind.to_owned()],
        ..ClusterEventQuery::default()
    }
}

// spec: CLUST-24, CLUST-25
#[tokio::test]
async fn a_member_tells_of_its_starts_and_ends_over_all_of_them_and_of_its_disk() {
    let mut manager = TestManager::start().await;
    manager.end().await;
    // No disk has as much free as is asked for now.
    manager.settings().min_free_bytes = u64::MAX;
    manager.run().await;
    manager.kill().await;
    manager.run().await;
    let client = manager.client().await;
    let told = client.get_cluster_events(of_kind("role")).await.unwrap();
    // What was killed could not say that it stops. Each start has a term of its own, and none is another's repeat.
    let short: Vec<_> = told
        .iter()
        .map(|it| (it.text.as_str(), it.repeated))
        .collect();
    let (begun, ended) = ("this member is primary", "this member stops");
    assert_eq!(short, [(begun, 0), (begun, 0), (ended, 0), (begun, 0)]);
    assert!(told.is_sorted_by(|newer, older| newer.seq > older.seq && newer.at >= older.at));
    assert_eq!(told[0].details["cause"], "started");
    let status = client.get_cluster_status().await.unwrap();
    assert_eq!(
        (&told[0].member, told[0].term),
        (&status.member, status.term)
    );

    // Each of the two later starts looked at the disk before it served.
    let told_of_disk = client.get_cluster_events(of_kind("disk")).await.unwrap();
    let texts: Vec<_> = told_of_disk.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts, ["the disk is nearly full"; 2]);
    let older = ClusterEventQuery {
        limit: 1,
        before_seq: Some(told[0].seq),
        ..of_kind("role")
    };
    let older = client.get_cluster_events(older).await.unwrap();
    assert_eq!(older, told[1..2]);
    let later = ClusterEventQuery {
        since: Some(greenroom_sdk::types::Wall(told[0].at.0 + 3_600_000)),
        ..ClusterEventQuery::default()
    };
    assert_eq!(client.get_cluster_events(later).await.unwrap(), []);
}

// spec: API-23, CLUST-24
#[tokio::test]
async fn a_members_log_is_read_on_by_number_and_what_comes_meanwhile_moves_nothing() {
    let mut manager = TestManager::start().await;
    for _ in 0..3 {
        manager.restart().await;
    }
    let client = manager.client().await;
    let whole = client.get_cluster_events(ClusterEventQuery::default());
    let whole = whole.await.unwrap();
    assert!(whole.len() >= 7, "{whole:?}");

    let (mut read, mut before_seq) = (Vec::new(), None);
    loop {
        let query = ClusterEventQuery {
            limit: 2,
            before_seq,
            ..ClusterEventQuery::default()
        };
        let client = manager.client().await;
        let page = client.get_cluster_events(query).await.unwrap();
        assert!(page.len() <= 2);
        let Some(last) = page.last() else { break };
        before_seq = Some(last.seq);
        read.extend(page);
        // Two entries more, and another process answers.
        manager.restart().await;
    }
    assert_eq!(read, whole);
}

// spec: CLUST-10
#[tokio::test]
async fn a_member_alone_is_primary_of_itself_and_can_spare_nobody() {
    let mut manager = TestManager::start().await;
    let client = manager.client().await;
    let before = client.get_cluster_status().await.unwrap();
    client.create_job(job("a")).await.unwrap();
    client
        .announce_control_plane("https://control.example:7000", None)
        .await
        .unwrap();
    let status = client.get_cluster_status().await.unwrap();
    assert_eq!(
        (status.role.as_str(), &status.primary),
        ("primary", &status.member)
    );
    assert_eq!((status.generation, status.term), (1, before.term));
    assert!(status.index > before.index, "{before:?} {status:?}");
    let votes = (status.quorum_needed, status.quorum_present);
    assert_eq!((votes, status.fault_tolerance), ((1, 1), 0));
    assert_eq!(status.warnings, [""; 0]);
    let [own] = &status.members[..] else {
        panic!("{status:?}")
    };
    assert_eq!(
        (&own.name, own.kind.as_str(), own.state.as_str(), own.voting),
        (&status.member, "full", "primary", true)
    );
    let plane = own.control_plane.as_ref().expect("the one announced");
    assert_eq!(
        (plane.url.as_str(), plane.stale),
        ("https://control.example:7000", false)
    );

    manager.restart().await;
    let client = manager.client().await;
    let after = client.get_cluster_status().await.unwrap();
    assert!(
        after.term > status.term && after.generation == 1,
        "{after:?}"
    );
    let plane = after.members[0].control_plane.as_ref();
    assert!(
        plane.is_some_and(|plane| plane.stale),
        "not heard in this run: {plane:?}"
    );
}

/// What clusters of several members may do, one of one refuses (CLUST-19, CLUST-21).
#[tokio::test]
async fn a_member_alone_neither_forces_nor_leaves() {
    let manager = TestManager::start().await;
    let client = manager.client().await;
    let before = client.get_cluster_status().await.unwrap();
    let mut raw = client.raw().unwrap();
    for (by, force, leave) in [
        ("", "missing_field", "missing_field"),
        ("ana", "primary_reachable", "only_member"),
    ] {
        let by = by.to_owned();
        let request = ForceStandaloneRequest { by: by.clone() };
        let refused = raw.force_standalone(request).await.unwrap_err();
        assert_eq!(read_refusal(&refused).unwrap().reason, force);
        let refused = raw
            .leave_quorum(LeaveQuorumRequest { by })
            .await
            .unwrap_err();
        assert_eq!(read_refusal(&refused).unwrap().reason, leave);
    }
    let after = client.get_cluster_status().await.unwrap();
    assert_eq!(
        (after.generation, after.index),
        (before.generation, before.index)
    );
}
