//! What a durable change costs where many make one at the same time, counted in flushes: the times
//! themselves are what `bench manager` prints.

mod common;

use common::{add, open};

const CALLERS: u64 = 64;
const ROUNDS: u64 = 20;

/// One thread runs callers and store, so that all of a round are asked for before the first is
/// written, on a machine of any speed.
// spec: PERF-10
#[tokio::test(flavor = "current_thread")]
async fn sixty_four_callers_share_their_flushes_ten_to_one() {
    let dir = tempfile::tempdir().expect("folder");
    let (store, _outputs, _) = open(dir.path()).await;
    let before = store.info().expect("info").log_flushes;
    for _ in 0..ROUNDS {
        let round = (0..CALLERS).map(|caller| store.propose(add(&format!("c{caller}"), 1)));
        for done in futures::future::join_all(round).await {
            done.expect("it is committed");
        }
    }
    let flushes = store.info().expect("info").log_flushes - before;
    let commands = CALLERS * ROUNDS;
    assert!(
        flushes >= ROUNDS,
        "{flushes} flushes: a round was acknowledged without one"
    );
    assert!(
        flushes * 10 <= commands,
        "{flushes} flushes for {commands} changes"
    );
    store.shutdown().await.expect("shutdown");
}
