//! Goal: of two calls about one thing the later never overtakes the earlier, and calls about
//! different things do not wait for each other. Method: calls go in by hand, replies in any order,
//! and a naive check looks at every pair that was ever under way at once.

use greenroom_types::call::StartJob;
use greenroom_types::node::InstanceKey;

use super::*;

fn start(job: &str, node: &str) -> Call {
    Call::StartJob(StartJob {
        job_id: job.into(),
        role: "primary".into(),
        node_id: node.into(),
        defer_start: false,
        runtime_role: String::new(),
        gpu_index: None,
        migration_id: None,
        migration_state: None,
    })
}

fn stop(job: &str, node: &str) -> Call {
    Call::StopJob {
        key: InstanceKey::new(job.into(), "primary".into()),
        node_id: node.into(),
        grace_ms: None,
    }
}

fn terminate(node: &str) -> Call {
    Call::TerminateNode(node.into())
}

fn filled(calls: Vec<Call>) -> Outbox {
    let mut outbox = Outbox::default();
    for (n, call) in calls.into_iter().enumerate() {
        outbox.push(CallId(n as u64), call);
    }
    outbox
}

fn sent(outbox: &mut Outbox) -> Vec<u64> {
    std::iter::from_fn(|| outbox.pop().map(|(call_id, _)| call_id.0)).collect()
}

#[test]
fn a_stop_waits_for_the_answer_to_its_start() {
    let mut outbox = filled(vec![start("a", "n"), stop("a", "n"), start("a", "m")]);
    assert_eq!(sent(&mut outbox), [0]);
    outbox.done(CallId(0));
    assert_eq!(sent(&mut outbox), [1]);
    outbox.done(CallId(1));
    assert_eq!(sent(&mut outbox), [2]);
    assert!(!outbox.is_empty());
    outbox.done(CallId(2));
    assert!(outbox.is_empty());
}

// spec: TIME-02
#[test]
fn calls_about_different_things_go_out_together_in_the_order_decided() {
    let mut outbox = filled(vec![
        start("a", "n"),
        start("b", "n"),
        start("c", "m"),
        Call::DeleteBundle("x".into()),
    ]);
    assert_eq!(sent(&mut outbox), [0, 1, 2, 3]);
}

#[test]
fn a_terminate_follows_what_was_decided_for_its_node_and_precedes_the_rest() {
    let mut outbox = filled(vec![
        stop("a", "n"),
        stop("b", "n"),
        terminate("n"),
        start("c", "n"),
        start("d", "n"),
        terminate("m"),
    ]);
    assert_eq!(sent(&mut outbox), [0, 1, 5]);
    outbox.done(CallId(1));
    assert_eq!(sent(&mut outbox), [0; 0]);
    outbox.done(CallId(0));
    assert_eq!(sent(&mut outbox), [2]);
    outbox.done(CallId(2));
    assert_eq!(sent(&mut outbox), [3, 4]);
}

#[test]
fn a_reply_to_an_unknown_call_changes_nothing() {
    let mut outbox = filled(vec![terminate("n")]);
    outbox.done(CallId(9));
    assert_eq!(sent(&mut outbox), [0]);
    outbox.done(CallId(0));
    outbox.done(CallId(0));
    assert!(outbox.is_empty());
}

#[test]
fn no_more_than_the_limit_is_under_way() {
    let mut outbox = Outbox::default();
    let count = UNDER_WAY_MAX as u64 + 2;
    for n in 0..count {
        outbox.push(CallId(n), start(&format!("j{n}"), "n"));
    }
    assert_eq!(sent(&mut outbox).len(), UNDER_WAY_MAX);
    outbox.done(CallId(7));
    assert_eq!(sent(&mut outbox), [UNDER_WAY_MAX as u64]);
}

/// Every mix of calls over few things, answered in a scrambled order: all are sent, each one only
/// when every earlier call that it conflicts with was answered.
#[test]
fn nothing_overtakes_and_nothing_is_stuck() {
    let mut dice = 1_u64;
    let mut roll = move |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 33) % sides
    };
    for _ in 0..200 {
        let calls: Vec<Call> = (0..40)
            .map(|_| {
                let job = format!("j{}", roll(4));
                let node = format!("n{}", roll(3));
                match roll(4) {
                    0 => terminate(&node),
                    1 => stop(&job, &node),
                    2 => Call::DeleteJob(job.as_str().into()),
                    _ => start(&job, &node),
                }
            })
            .collect();
        let mut outbox = filled(calls.clone());
        let mut answered = BTreeSet::new();
        let mut under_way: Vec<usize> = Vec::new();
        while !outbox.is_empty() {
            for n in sent(&mut outbox) {
                let n = n as usize;
                for earlier in (0..n).filter(|it| !answered.contains(it)) {
                    assert!(!conflict(&calls[earlier], &calls[n]), "{earlier} and {n}");
                }
                under_way.push(n);
            }
            assert!(!under_way.is_empty(), "stuck");
            let n = under_way.swap_remove(roll(under_way.len() as u64) as usize);
            answered.insert(n);
            outbox.done(CallId(n as u64));
        }
        assert_eq!(answered.len(), calls.len());
    }
}

/// The rule said once more: one job, or one node unless both only use it.
fn conflict(a: &Call, b: &Call) -> bool {
    let job = |call: &Call| match call {
        Call::StartJob(start) => Some(start.job_id.clone()),
        Call::StopJob { key, .. } => Some(key.job_id.clone()),
        Call::DeleteJob(job_id) => Some(job_id.clone()),
        _ => None,
    };
    let node = |call: &Call| match call {
        Call::StartJob(start) => Some((start.node_id.clone(), false)),
        Call::StopJob { node_id, .. } => Some((node_id.clone(), false)),
        Call::TerminateNode(node_id) => Some((node_id.clone(), true)),
        _ => None,
    };
    let same_job = job(a).is_some() && job(a) == job(b);
    let same_node = match (node(a), node(b)) {
        (Some((a, a_alone)), Some((b, b_alone))) => a == b && (a_alone || b_alone),
        _ => false,
    };
    same_job || same_node
}
