//! `greenroom leases`: who holds which lease, and the pause of all of them (LEASE-10 to LEASE-14).

use clap::{Args, Subcommand};
use greenroom_sdk::types::stream::LeaseStatus;
use greenroom_sdk::{PausedLeases, ResumedLeases};
use serde_json::json;

use super::connect::Manager;
use crate::failure::Outcome;
use crate::output::{Output, Table, words};

/// Leases of protected jobs and of bundles: show them, pause them all, resume them.
#[derive(Debug, Args)]
pub(crate) struct Leases {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Status(Status),
    Pause(Pause),
    Resume(Resume),
}

/// Show who holds which lease and how long it lasts, and whether leases are paused.
#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    manager: Manager,
}

/// Let no lease run out until they are resumed, for works on the network or on the Manager. Meanwhile
/// workers keep their protected jobs although they are not heard, and no lost one is replaced.
#[derive(Debug, Args)]
struct Pause {
    /// Why; everybody who looks is told.
    #[arg(long, value_parser = words)]
    reason: String,
    /// Who; without it whoever the credential names.
    #[arg(long, value_parser = words, default_value = "")]
    by: String,
    #[command(flatten)]
    manager: Manager,
}

/// End the pause: every lease begins anew.
#[derive(Debug, Args)]
struct Resume {
    /// Who; without it whoever the credential names.
    #[arg(long, value_parser = words, default_value = "")]
    by: String,
    #[command(flatten)]
    manager: Manager,
}

// === impl Leases ===

impl Leases {
    pub(crate) async fn run(self) -> Outcome {
        match self.verb {
            Verb::Status(status) => status.run().await,
            Verb::Pause(pause) => pause.run().await,
            Verb::Resume(resume) => resume.run().await,
        }
    }
}

impl Status {
    async fn run(self) -> Outcome {
        let status = self.manager.connect().await?.get_lease_status().await?;
        let output = Output {
            json: self.manager.json,
        };
        output.either(&status, || in_words(&status))
    }
}

impl Pause {
    async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let paused = client.pause_leases(self.reason, self.by).await?;
        let told = json!({
            "pausedSince": paused.since,
            "notAcknowledged": paused.not_acknowledged,
        });
        let output = Output {
            json: self.manager.json,
        };
        output.either(&told, || pause_in_words(&paused))
    }
}

impl Resume {
    async fn run(self) -> Outcome {
        let client = self.manager.connect().await?;
        let resumed = client.resume_leases(self.by).await?;
        let told = json!({
            "leases": resumed.leases,
            "notAcknowledged": resumed.not_acknowledged,
        });
        let output = Output {
            json: self.manager.json,
        };
        output.either(&told, || resume_in_words(&resumed))
    }
}

fn resume_in_words(resumed: &ResumedLeases) -> String {
    let mut text = match resumed.leases {
        1 => "leases run again; 1 is held".to_owned(),
        n => format!("leases run again; {n} are held"),
    };
    for node_id in &resumed.not_acknowledged {
        text.push_str(&format!(
            "\nnode {node_id} has not confirmed: what is leased there runs on until it is heard, and may \
             meanwhile be started elsewhere"
        ));
    }
    text
}

fn pause_in_words(paused: &PausedLeases) -> String {
    let mut text = format!("leases are paused since {}", paused.since);
    for node_id in &paused.not_acknowledged {
        text.push_str(&format!(
            "\nnode {node_id} has not confirmed: what is leased there ends when it is not heard"
        ));
    }
    text
}

fn in_words(status: &LeaseStatus) -> String {
    let mut parts = Vec::new();
    if let Some(pause) = &status.paused {
        parts.push(format!(
            "leases are paused since {} by {}: {}\n",
            pause.since, pause.by, pause.reason
        ));
    }
    if !status.leases.is_empty() {
        let mut table = Table::new(&["JOB", "NODE", "STATE", "LEFT", "FENCE"]);
        for lease in &status.leases {
            table.row(vec![
                lease.key.to_string(),
                lease.node_id.to_string(),
                lease.state.replace('_', " "),
                seconds(lease.remaining_ms),
                lease.fence.to_string(),
            ]);
        }
        parts.push(table.render());
    }
    if !status.bundle_leases.is_empty() {
        let mut table = Table::new(&["BUNDLE", "LEASE", "DELETED UNLESS RENEWED BY"]);
        for lease in &status.bundle_leases {
            table.row(vec![
                lease.bundle_id.to_string(),
                seconds(lease.ttl_ms),
                lease.expires_at.to_string(),
            ]);
        }
        parts.push(table.render());
    }
    if parts.is_empty() {
        return "nothing is leased".to_owned();
    }
    parts.join("\n")
}

fn seconds(ms: u64) -> String {
    format!("{}.{}s", ms / 1_000, ms % 1_000 / 100)
}

#[cfg(test)]
mod tests {
    use greenroom_sdk::types::Wall;
    use greenroom_sdk::types::node::InstanceKey;
    use greenroom_sdk::types::stream::{BundleLeaseInfo, JobLeaseInfo, LeasePause};

    use super::*;

    // spec: LEASE-14
    #[test]
    fn the_status_reads_as_a_person_needs_it() {
        assert_eq!(in_words(&LeaseStatus::default()), "nothing is leased");
        let lease = JobLeaseInfo {
            key: InstanceKey::new("news.0.encode".into(), "primary".into()),
            start_id: "s".into(),
            node_id: "studio-1".into(),
            fence: 7,
            ttl_ms: 10_000,
            state: "lost_waiting".to_owned(),
            remaining_ms: 8_250,
            refreshed_at: None,
        };
        let status = LeaseStatus {
            paused: Some(LeasePause {
                reason: "switch".to_owned(),
                by: "ana".to_owned(),
                since: Wall(0),
            }),
            leases: vec![lease],
            bundle_leases: vec![BundleLeaseInfo {
                bundle_id: "b".into(),
                ttl_ms: 60_000,
                expires_at: Wall(60_000),
            }],
        };
        let text = in_words(&status);
        for part in [
            "leases are paused since 1970-01-01T00:00:00Z by ana: switch",
            "news.0.encode/primary  studio-1  lost waiting  8.2s",
            "60.0s  1970-01-01T00:01:00Z",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    // spec: LEASE-10, LEASE-12
    #[test]
    fn nodes_that_did_not_confirm_are_named() {
        let paused = PausedLeases {
            since: Wall(0),
            not_acknowledged: vec!["studio-2".into()],
        };
        assert!(pause_in_words(&paused).contains("node studio-2 has not confirmed"));
        let resumed = ResumedLeases {
            leases: 2,
            not_acknowledged: vec!["studio-2".into()],
        };
        let text = resume_in_words(&resumed);
        assert!(text.starts_with("leases run again; 2 are held\nnode studio-2 has not confirmed"));
    }
}
