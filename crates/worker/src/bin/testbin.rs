//! A bare worker and supervisor for tests that kill and restart them as real processes.
//!
//! `greenroom-worker-testbin supervise --dir DIR`, `greenroom-worker-testbin lease-guard --dir DIR`, or
//! `greenroom-worker-testbin STATE_DIR MANAGER_URL TOKEN [process|docker] [VCPUS]`.

use std::process::ExitCode;

use greenroom_worker::{Config, Ending, RuntimeChoice, Worker, lease_guard, supervise};
use tokio::signal::unix::{SignalKind, signal};

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
