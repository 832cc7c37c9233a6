//! The Manager dies in each phase of a job's life (FIELD-39).

use greenroom_sdk::types::StartId;
use greenroom_sdk::types::call::Call;
use greenroom_testkit::{FakeWorker, TestManager, Watch, job, start, within};

use super::{history, stops};

/// Steps of a life, each seen to its end before the next.
const STEPS: usize = 6;

async fn step(
    number: usize,
    manager: &TestManager,
    watch: &mut Watch,
    worker: &FakeWorker,
    start_id: &mut StartId,
) {
    let client = manager.client().await;
    match number {
        0 => {
            client.create_job(job("on-air")).await.unwrap();
        }
        1 => {
            client.start_job(start("on-air", "n1")).await.unwrap();
            *start_id = worker.wait_provision("on-air").await;
        }
        2 => {
            worker.accepted(start_id);
            worker.wait_acknowledged().await;
        }
        3 => {
            worker.started(start_id);
            watch.until_last("on-air", "running").await;
        }
        4 => {
            client.call(Call::DeleteJob("on-air".into())).await.unwrap();
            assert_eq!(worker.wait_stop("on-air").await, *start_id);
        }
        _ => {
            worker.stopped(start_id);
            worker.wait_acknowledged().await;
            within("the job is gone", async {
                while client.job_history("on-air").await.unwrap().is_some() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
    }
}

// spec: FIELD-39
#[tokio::test]
async fn a_manager_that_dies_in_any_phase_is_followed_by_one_that_goes_on_with_it() {
    for dies_after in 0..STEPS {
        let mut manager = TestManager::start_with(TestManager::patient).await;
        let worker = manager.worker("n1").await;
        worker.hold();
        let mut watch = manager.watch().await;
        let mut start_id = StartId::default();
        for number in 0..STEPS {
            step(number, &manager, &mut watch, &worker, &mut start_id).await;
            if number == dies_after {
                let greeted = worker.greeted();
                manager.crash().await;
                worker.wait_greeted(greeted + 1).await;
            }
            if number == 3 {
                // One start, however often its order had to be said.
                let told = history(&manager.client().await, "on-air").await;
                let starts = told.history.iter().filter_map(|it| it.start_id.clone());
                assert!(starts.into_iter().all(|it| it == start_id), "{told:?}");
            }
        }
        assert!(stops(&worker, "on-air") >= 1);
    }
}
