//! A bare worker and supervisor for tests that kill and restart them as real processes.
//!
//! `greenroom-worker-testbin supervise --dir DIR`, `greenroom-worker-testbin lease-guard --dir DIR`, or
//! `greenroom-worker-testbin STATE_DIR MANAGER_URL TOKEN [process|docker] [VCPUS]`.
//!
//! The environment may say more: `TESTBIN_METADATA_URL`, `TESTBIN_CLOUD`, `TESTBIN_ALLOW_METADATA`,
//! `TESTBIN_PULL_TRIES_MS`, `TESTBIN_LOG_BYTES`, and `TESTBIN_KILL_AT`, the step of the journal at which it is killed.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use greenroom_worker::{Cloud, Config, Ending, RuntimeChoice, Worker, lease_guard, supervise};
use tokio::signal::unix::{SignalKind, signal};

/// Steps of the journal so far: one before and one after each write.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// At which of them the program is killed, 0 for never.
static KILL_AT: AtomicU64 = AtomicU64::new(0);

fn step() {
    let step = STEPS.fetch_add(1, Ordering::Relaxed) + 1;
    if step == KILL_AT.load(Ordering::Relaxed) {
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    if args.next_if(|word| word == "supervise").is_some() {
        return supervise::main(args);
    }
    if args.next_if(|word| word == "lease-guard").is_some() {
        return lease_guard::main(args);
    }
    let args: Vec<String> = args.filter_map(|word| word.into_string().ok()).collect();
    let [state_dir, url, token, runtime, vcpus] = &args[..] else {
        return ExitCode::from(2);
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing::Level::WARN)
        .init();
    let mut config = Config::new(state_dir);
    config.manager_urls = vec![url.clone()];
    config.token = Some(greenroom_auth::Secret::new(token));
    // A test that takes this program away has a worker that cannot start another guard.
    if let Some(program) = std::env::var_os("TESTBIN_GUARD") {
        config.guard = vec![program, "lease-guard".into()];
    }
    config.vcpus = vcpus.parse().ok();
    config.runtime = match runtime.as_str() {
        "docker" => RuntimeChoice::Docker(None),
        _ => RuntimeChoice::Process,
    };
    config.metadata_url = std::env::var("TESTBIN_METADATA_URL").ok();
    config.cloud = match std::env::var("TESTBIN_CLOUD").as_deref() {
        Ok("oci") => Cloud::Oci,
        Ok("ec2") => Cloud::Ec2,
        _ => Cloud::Auto,
    };
    config.allow_metadata = std::env::var_os("TESTBIN_ALLOW_METADATA").is_some();
    if let Some(tries) = number("TESTBIN_PULL_TRIES_MS") {
        config.pull_tries = greenroom_types::Millis(tries);
    }
    if let Some(bytes) = number("TESTBIN_LOG_BYTES") {
        config.logs.file_bytes = bytes;
    }
    KILL_AT.store(number("TESTBIN_KILL_AT").unwrap_or(0), Ordering::Relaxed);
    config.on_journal = Some(step);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let worker = match Worker::build(config).await {
            Ok(worker) => worker,
            Err(error) => {
                tracing::error!(%error, "the worker does not start");
                return ExitCode::from(error.exit_code());
            }
        };
        let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM");
        let mut leave = signal(SignalKind::user_defined1()).expect("SIGUSR1");
        let ending = async move {
            tokio::select! {
                _ = terminate.recv() => Ending::Keep,
                _ = leave.recv() => Ending::Leave,
            }
        };
        match worker.run(ending).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => ExitCode::from(error.exit_code()),
        }
    })
}
