//! `greenroom schema`: JSON Schemas for editors.

use clap::{Args, ValueEnum};

use crate::failure::{Failure, Outcome};
use crate::output::Output;

/// Print a JSON Schema, with which an editor completes keys and marks slips.
#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// Of what.
    of: Of,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    /// Bundle manifests.
    #[value(alias = "bundle")]
    Manifest,
    /// Settings of the control plane.
    Settings,
    /// Scenario files.
    Scenario,
}

// === impl Schema ===

impl Schema {
    pub(crate) fn run(self) -> Outcome {
        let schema = match self.of {
            Of::Manifest => greenroom_manifest::schema::bundle(),
            Of::Settings => greenroom_manifest::schema::settings(),
            Of::Scenario => greenroom_sim::schema(),
        };
        let text = serde_json::to_string_pretty(&schema)
            .map_err(|error| Failure::failed(error.to_string()))?;
        Output { json: true }.text(&text)
    }
}
