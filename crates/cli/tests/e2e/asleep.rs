//! A machine that stands still as a whole, past its lease and past the start elsewhere, and wakes in
//! the worst order: the job first.

use greenroom_testkit::within;
use rustix::process::{Signal, kill_process};

use crate::air::{Viewer, fence, lease, leased_card, under, until};
use crate::harness::{Up, pid, processes_on, temp};

/// How often the sending thread of a test card has gone to sleep.
fn naps(card: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{card}/task")).expect("it is there");
    let sender = threads
        .flatten()
        .map(|thread| thread.path())
        .find(|thread| {
            std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == "testcard\n")
        });
    let status = sender.expect("it has a sender").join("status");
    let status = std::fs::read_to_string(status).expect("it is there");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("a line").trim().parse().expect("a number")
}

// Goal: a holder that wakes after its successor began is not heard. Method: worker, guard, supervisor
// and job are stopped together; continued alone, the job knows by itself that its lease is over. Stopped
// between its look at the clock and the packet, it may send that one, and its number tells it.
// spec: LEASE-05, LEASE-06, SOCK-16, MEDIA-03
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_slept_with_its_whole_machine_sends_nothing_when_it_wakes() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "2"]);
    let mut viewer = Viewer::open().await;
    up.file("air.yaml", leased_card("air", viewer.port(), ""));
    up.run(&["apply", "-f", "air.yaml", "--wait"]).ok();
    viewer.until_fence_above(0).await;
    let first = lease(&up);
    let old = fence(&first);
    let node = first["nodeId"].as_str().expect("a node");
    let [card] = under(folder.path(), "testcard", old)[..] else {
        panic!("one card runs");
    };

    let machine = processes_on(&folder.path().join("data").join(node));
    assert!(
        machine.len() >= 4,
        "worker, guard, supervisor, card: {machine:?}"
    );
    let signal = |signal| {
        for (number, _) in &machine {
            // Once awake, some end each other.
            let _ = kill_process(pid(*number), signal);
        }
    };
    signal(Signal::STOP);
    viewer.until_fence_above(old).await;
    let slept = naps(card);
    kill_process(pid(card), Signal::CONT).expect("it is there");
    until("a sender that came by many times", || {
        naps(card) > slept + 10
    })
    .await;
    signal(Signal::CONT);
    until("the end of the old holder", || {
        under(folder.path(), "testcard", old).is_empty()
    })
    .await;
    let mut watch = up.watch().await;
    within(
        "the node is heard",
        watch.until_node(node, greenroom_sdk::types::node::NodeState::Running),
    )
    .await;
    viewer.until_more(10).await;

    let report = viewer.end().await;
    let begun = report.on_air.iter().find(|it| it.sender.fence > Some(old));
    let begun = begun.expect("the successor sent").from_us;
    let late = report
        .on_air
        .iter()
        .filter(|it| it.sender.fence == Some(old) && it.until_us > begun);
    let late: u64 = late.map(|it| it.packets).sum();
    assert!(
        late <= 1,
        "{late} packets of the old holder after the newer one began: {report:#?}"
    );
    assert_eq!(report.senders.len(), 2, "{report:#?}");
    up.end();
}
