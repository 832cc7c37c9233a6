//! Cordons of servers that the stream does not show (CORDON-07).

use super::*;

fn registered(bench: &Bench, found: Result<&[&str], CallFailure>) {
    let found = found.map(|names| names.iter().map(|name| NodeId::new(*name)).collect());
    *bench.slots.lock().unwrap() = found;
}

fn refusal<T: std::fmt::Debug>(result: Result<T, CallError>) -> ApiError {
    match result {
        Err(CallError::Api(refused)) => refused,
        other => panic!("{other:?}"),
    }
}

// spec: CORDON-07, ACTS-02
#[tokio::test]
async fn a_server_that_only_the_manager_knows_is_cordoned_and_a_slip_is_not() {
    let mut bench = Bench::silent();
    bench.start();
    bench.hydrate().await;
    assert!(bench.instance.live().await);
    registered(&bench, Ok(&["off", "n1"]));

    bench.instance.cordon_node("off").await.unwrap();
    let kept = bench.kept.try_recv().unwrap();
    assert!(kept.nodes[&NodeId::new("off")].cordoned, "{kept:?}");
    let refused = refusal(bench.instance.cordon_node("of").await);
    assert_eq!(refused.code(), "unknownNode");
    let both = vec!["n1".into(), "off".into()];
    let waiting = bench.instance.uncordon_nodes(both.clone()).await.unwrap();
    assert_eq!(waiting, [NodeId::new("off")]);
    assert!(bench.kept.try_recv().unwrap().nodes.is_empty());

    // What is off cannot be ended, which is another thing than not to be there.
    for (named, code) in [("off", "nodeNotRunning"), ("of", "unknownNode")] {
        let node_id = || NodeId::new(named);
        for call in [
            ApiCall::EvictNode { node_id: node_id() },
            ApiCall::TerminateNode { node_id: node_id() },
            ApiCall::DrainNode {
                node_id: node_id(),
                options: Default::default(),
            },
        ] {
            let refused = refusal(bench.instance.call(call.clone()).await);
            assert_eq!(refused.code(), code, "{call:?}");
        }
    }
    assert!(bench.kept.try_recv().is_err());

    // The Manager is asked, whatever a caller says of it.
    let said = ApiCall::CordonNodes {
        node_ids: vec!["n1".into(), "of".into()],
        registered: [NodeId::new("of")].into(),
    };
    let refused = refusal(bench.instance.call(said).await);
    assert_eq!(refused.code(), "unknownNode");

    // While it cannot be asked nobody is called unknown, and what the policy knows needs no question.
    registered(&bench, Err(CallFailure::TimedOut));
    let refused = refusal(bench.instance.cordon_nodes(both).await);
    assert_eq!(refused.code(), "timedOut");
    assert!(bench.kept.try_recv().is_err());
    bench.instance.cordon_node("n1").await.unwrap();
    bench.instance.close().await;
}

// spec: SCEN-12
#[tokio::test]
async fn a_recording_has_a_cordon_of_several_nodes_one_by_one() {
    let mut bench = Bench::silent();
    bench.start();
    bench.hydrate().await;
    assert!(bench.instance.live().await);
    bench
        .instance
        .cordon_nodes(vec!["n1".into()])
        .await
        .unwrap();
    registered(&bench, Ok(&[]));
    refusal(
        bench
            .instance
            .cordon_nodes(vec!["n1".into(), "nix".into()])
            .await,
    );
    let recording = bench.instance.recording(10).expect("a recording");
    let cordons = recording
        .steps
        .iter()
        .filter(|it| it.get("cordon").is_some());
    let named: Vec<_> = cordons.map(|it| &it["cordon"]).collect();
    assert_eq!(named, ["n1"], "{recording:#?}");
}
