//! What a viewer sees of a job that moves (PERF-09), with real processes: the demonstrations of the
//! binary, each with a probe of its own.
//!
//! The baseline is the signal itself: a packet each 20 ms. What is claimed is counts, and gaps as
//! multiples of that.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::table::Table;

/// Time between two packets of the demonstrations.
const INTERVAL_MS: f64 = 20.0;

/// Moves a channel so many times by each way to change over.
pub(crate) fn moves(binary: &Path, times: usize, image: Option<&str>) -> anyhow::Result<Table> {
    let runtime = image.map_or("processes", |_| "containers");
    let title = format!("A channel moves {times} times between two workers, {runtime} (PERF-09)");
    let columns = [
        "strategy",
        "aborted",
        "missing",
        "repeated",
        "gap median",
        "gap 99th",
        "gap longest",
        "longest in intervals",
        "move median",
    ];
    let mut table = Table::new(title, &columns);
    for strategy in ["handover", "overlap", "stop-then-start"] {
        let times = times.to_string();
        let ran = Command::new(binary)
            .args(["demo", strategy, "--json", "--times", &times])
            .args(image.into_iter().flat_map(|image| ["--image", image]))
            .output()
            .with_context(|| format!("{} cannot be run", binary.display()))?;
        let text = String::from_utf8_lossy(&ran.stdout);
        let last = text.lines().last().unwrap_or_default();
        let told: Value = serde_json::from_str(last).unwrap_or_default();
        let summary = &told["summary"];
        ensure!(
            summary.is_object(),
            "`demo {strategy}` ended without a summary: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        let count = |name: &str| summary[name].as_u64().unwrap_or_default();
        let ms = |spread: &str, part: &str| summary[spread][part].as_u64().unwrap_or_default();
        let longest = ms("gapMs", "max");
        table.row(vec![
            strategy.to_owned(),
            summary["aborted"]
                .as_array()
                .map_or(0, Vec::len)
                .to_string(),
            count("missing").to_string(),
            count("repeated").to_string(),
            format!("{} ms", ms("gapMs", "median")),
            format!("{} ms", ms("gapMs", "p99")),
            format!("{longest} ms"),
            format!("{:.1} x", longest as f64 / INTERVAL_MS),
            format!("{} ms", ms("moveMs", "median")),
        ]);
    }
    Ok(table)
}
