//! A program with the AutoManager inside: it runs against a Manager on this machine, says what
//! happens, creates one bundle if it is given a file, and closes on Ctrl-C.
//!
//! ```text
//! cargo run -p greenroom-auto --example embed -- 127.0.0.1:6789 bundle.json
//! ```

#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::error::Error;

use greenroom_auto::policy::effect::{ErrorInfo, PlacementInfo};
use greenroom_auto::types::JobId;
use greenroom_auto::types::bundle::Bundle;
use greenroom_auto::{AutoManager, CallbackResult, Callbacks, Settings};

/// Says what the policy decides.
struct Talk;

impl Callbacks for Talk {
    fn on_placement_decision(&self, decision: &PlacementInfo) -> CallbackResult {
        match &decision.node_id {
            Some(node_id) => println!("{} goes to {node_id}", decision.job_id),
            None => println!("{} finds no place: {}", decision.job_id, decision.reason),
        }
        Ok(())
    }

    fn on_job_dropped(&self, job_id: &JobId) -> CallbackResult {
        println!("{job_id} is not started again");
        Ok(())
    }

    fn on_error(&self, error: &ErrorInfo) -> CallbackResult {
        println!("{}: {}", error.code, error.message);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:6789".to_owned());
    let settings = serde_json::json!({
        "url": url,
        "placementPools": [{
            "name": "studio",
            "tiers": [{ "name": "own", "kind": "local-servers", "scaleOut": "fixed" }],
        }],
    });
    let (instance, ended) = AutoManager::run(Settings::new(settings).with_callbacks(Talk)).await?;
    if instance.live().await {
        println!("{} nodes", instance.nodes().len());
    }

    if let Some(file) = arguments.next() {
        let bundle: Bundle = serde_json::from_slice(&tokio::fs::read(file).await?)?;
        for fault in instance.validate_bundle(&bundle).errors {
            println!("{}: {}", fault.path, fault.message);
        }
        let created = instance.create_bundle(bundle).await?;
        println!("bundle {} created", created.bundle_id);
    }

    tokio::select! {
        end = ended => end?,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            instance.close().await;
        }
    }
    Ok(())
}
