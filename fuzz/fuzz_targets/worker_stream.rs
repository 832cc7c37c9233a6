//! Whatever a worker may say over its stream to a real Manager: nothing may panic, and the next hello
//! is answered.
#![no_main]

use std::sync::{LazyLock, Mutex};

use greenroom_fuzz::{decode, pieces, runtime};
use greenroom_proto::worker::WorkerMessage;
use greenroom_proto::worker::worker_message::Message;
use greenroom_testkit::{FakeWorker, TestManager, job, start};
use libfuzzer_sys::fuzz_target;

const INPUTS: u32 = 5_000;

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(runtime);
static SCENE: Mutex<Option<Scene>> = Mutex::new(None);

struct Scene {
    manager: TestManager,
    worker: FakeWorker,
    inputs: u32,
}

async fn begin() -> Scene {
    let manager = TestManager::start_with(TestManager::patient).await;
    let worker = manager.worker("n").await;
    worker.hold();
    let client = manager.client().await;
    client.create_job(job("j")).await.expect("a job");
    client.start_job(start("j", "n")).await.expect("a start");
    worker.wait_provision("j").await;
    Scene {
        manager,
        worker,
        inputs: 0,
    }
}

fuzz_target!(|input: &[u8]| {
    let mut scene = SCENE.lock().expect("no input panicked");
    RUNTIME.block_on(async {
        if scene.as_ref().is_none_or(|it| it.inputs >= INPUTS) {
            *scene = None;
            *scene = Some(begin().await);
        }
        let Some(now) = scene.as_mut() else { return };
        now.inputs += 1;
        for (_, bytes) in pieces(input) {
            if let Some(message) = decode::<WorkerMessage>(bytes) {
                // Whoever says goodbye is not called back.
                if !matches!(message.message, Some(Message::Goodbye(_))) {
                    now.worker.say_raw(message);
                }
            }
        }
        // All of it was taken once a message behind it is answered, on this stream or on the next.
        now.worker.wait_heard().await;
        let _ = &now.manager;
    });
});
