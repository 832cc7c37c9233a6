//! `greenroom reload`: the Manager reads its overrides file anew (OVR-02).

use clap::Args;
use serde_json::json;

use super::connect::Manager;
use crate::failure::Outcome;

/// Have the Manager put its overrides file in force as it stands, and say what changed.
#[derive(Debug, Args)]
pub(crate) struct Reload {
    /// Change nothing; say how the file stands.
    #[arg(long)]
    status: bool,
    #[command(flatten)]
    manager: Manager,
}

// === impl Reload ===

impl Reload {
    pub(crate) async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let output = self.manager.output();
        if self.status {
            let overrides = client.get_store_info().await?.overrides;
            return output.either(&json!({"overrides": overrides}), || overrides.clone());
        }
        let changes = client.reload_external_config().await?;
        output.either(&json!({"changes": changes}), || match changes.len() {
            0 => "nothing changed".to_owned(),
            _ => changes.join("\n"),
        })
    }
}
