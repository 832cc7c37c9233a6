//! A channel that moves back and forth between two workers while a viewer watches.
//!
//! The same story for each way to change over; what is promised differs. A handover leaves no packet
//! out and sends none twice, an overlap leaves none out, stop-then-start has a gap, which is told.

use std::time::{Duration, Instant};

use clap::Args;
use greenroom_auto::{AutoManager, CallbackStream, Heard};
use greenroom_media::probe::{Event, Report};
use greenroom_policy::effect::Callback;
use greenroom_policy::migration::{MigrateOptions, MigrationPhase, MigrationState, Strategy};
use greenroom_sdk::types::bundle::Bundle;
use greenroom_sdk::types::job::Container;
use greenroom_sdk::types::{JobId, MigrationId, NodeId};
use serde::Serialize;

use super::{Demo, Port, Runtime, Timeline, node_of, not_happened};
use crate::failure::{Failure, Outcome};
use crate::local::System;
use crate::verbs::media::chain;

/// The channel that moves, with its port replaced by a free one.
const EXAMPLE: &str = include_str!("../../../../../examples/handover.yaml");
/// One move takes no longer than this.
const MOVE_LIMIT: Duration = Duration::from_secs(60);
/// How long the channel is watched before the first and after the last move.
const CALM: Duration = Duration::from_secs(1);
/// In an overlap the source goes on for so long: its target is taken for running when its process is
/// there, and needs a moment to its first packet.
const LINGER_MS: u64 = 2_000;
/// People are told of this many moves at most.
const TOLD_MAX: u32 = 20;

/// How often, and how it is shown.
#[derive(Clone, Debug, Args)]
pub(super) struct Moves {
    /// How many times the channel moves.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Run the channel in containers of this image, which holds the binary (`scripts/testcard-image`).
    #[arg(long)]
    image: Option<String>,
    /// Print one JSON object per step and a summary at the end.
    #[arg(long)]
    pub(super) json: bool,
}

/// How it went, as a viewer saw it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    strategy: Strategy,
    times: u32,
    /// Moves that came to nothing, each with why.
    aborted: Vec<String>,
    packets: u64,
    missing: u64,
    repeated: u64,
    /// Packets that this machine dropped before the probe could read them.
    own_drops: Option<u64>,
    /// Time from the last packet of the one side to the first of the other.
    gap_ms: Spread,
    /// Time from the call to the job's life on its new node.
    move_ms: Spread,
    /// Longest time without a packet over all.
    longest_gap_ms: u64,
    /// What is promised of the strategy held.
    kept: bool,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spread {
    median: u64,
    p99: u64,
    max: u64,
}

// === impl Moves ===

impl Moves {
    /// Stages the story; fails unless what is promised held.
    pub(super) async fn run(
        self,
        strategy: Strategy,
        status_log: greenroom_manager::StatusLog,
    ) -> Outcome {
        let demo = Demo::new(self.json);
        let limit = MOVE_LIMIT * (self.times + 1);
        let story =
            async |time: &Timeline, system: &mut System| self.tell(strategy, time, system).await;
        let runtime = match self.image {
            Some(_) => Runtime::Docker,
            None => Runtime::Process,
        };
        super::stage(demo, 2, runtime, limit, status_log, story).await
    }

    async fn tell(&self, strategy: Strategy, time: &Timeline, system: &mut System) -> Outcome {
        let mut port = Port::open().await?;
        let auto = system.auto().await?;
        let bundle = example(port.port, strategy, self.image.as_deref())?;
        let job_id = bundle.job_id(0, &bundle.jobs[0].job_name);
        system.client.create_bundle(bundle).await?;
        let first = "the first packet of the channel";
        port.on_air_with(&auto, &job_id, first).await?;
        let mut at = node_of(&auto, &job_id)?;
        time.tell("on air", &format!("{job_id} on {at}"))?;
        tokio::time::sleep(CALM).await;
        let nodes: Vec<NodeId> = system.workers.iter().map(|it| it.node_id.clone()).collect();
        let (mut aborted, mut took) = (Vec::new(), Vec::new());
        for number in 1..=self.times {
            let to = nodes
                .iter()
                .find(|node| **node != at)
                .unwrap_or(&at)
                .clone();
            let began = Instant::now();
            let ended = move_once(&auto, &job_id, strategy, &to).await?;
            let ms = millis(began.elapsed());
            let tells = self.json || number % self.times.div_ceil(TOLD_MAX) == 0;
            match ended.abort_reason {
                None => {
                    took.push(ms);
                    if tells {
                        time.tell("moved", &format!("{number}: {at} to {to}, {ms} ms"))?;
                    }
                    at = to;
                }
                Some(reason) => {
                    time.tell("aborted", &format!("{number}: {reason}; it stays on {at}"))?;
                    aborted.push(reason);
                }
            }
        }
        tokio::time::sleep(CALM).await;
        let (report, gaps) = watched(port).await?;
        let summary = Summary::new(strategy, self.times, aborted, took, gaps, &report);
        time.output
            .either(&serde_json::json!({ "summary": summary }), || {
                summary.text()
            })?;
        if summary.kept {
            return Ok(());
        }
        Err(Failure::failed(
            "what is promised of this strategy did not hold",
        ))
    }
}

// === impl Summary ===

impl Summary {
    fn new(
        strategy: Strategy,
        times: u32,
        aborted: Vec<String>,
        took: Vec<u64>,
        gaps: Vec<u64>,
        report: &Report,
    ) -> Self {
        // What this machine itself lost on the way to the probe, no sender left out.
        let lost_here = report.own_drops.unwrap_or(0);
        let whole = report.missing <= lost_here;
        let kept = aborted.is_empty()
            && match strategy {
                Strategy::Handover => whole && report.repeated == 0,
                Strategy::Overlap => whole,
                Strategy::StopThenStart => report.repeated == 0,
            };
        Self {
            strategy,
            times,
            aborted,
            packets: report.packets,
            missing: report.missing,
            repeated: report.repeated,
            own_drops: report.own_drops,
            gap_ms: Spread::of(gaps),
            move_ms: Spread::of(took),
            longest_gap_ms: report.longest_gap_us / 1_000,
            kept,
        }
    }

    fn text(&self) -> String {
        let Self {
            times,
            packets,
            missing,
            repeated,
            gap_ms,
            move_ms,
            longest_gap_ms,
            ..
        } = self;
        format!(
            "\n{times} moves, {} aborted; {packets} packets, {missing} missing, {repeated} repeated\n\
             gap at a move     median {} ms, 99th {} ms, longest {} ms (longest of all {longest_gap_ms} ms)\n\
             time of a move    median {} ms, 99th {} ms, longest {} ms\n\
             {}",
            self.aborted.len(),
            gap_ms.median,
            gap_ms.p99,
            gap_ms.max,
            move_ms.median,
            move_ms.p99,
            move_ms.max,
            if self.kept {
                "what is promised held"
            } else {
                "WHAT IS PROMISED DID NOT HOLD"
            },
        )
    }
}

// === impl Spread ===

impl Spread {
    fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let at = |part: usize| {
            let last = values.len().saturating_sub(1);
            values.get(last * part / 100).copied().unwrap_or_default()
        };
        Self {
            median: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

/// Moves the job and waits until that has ended, one way or the other.
async fn move_once(
    auto: &AutoManager,
    job_id: &JobId,
    strategy: Strategy,
    to: &NodeId,
) -> Result<MigrationState, Failure> {
    let mut callbacks = auto.callbacks();
    let options = MigrateOptions {
        strategy,
        target_node_id: Some(to.clone()),
        override_reservation: false,
    };
    let ended = async {
        let id = auto
            .migrate_job(job_id.clone(), options)
            .await
            .map_err(|error| Failure::failed(format!("{job_id} cannot be moved: {error}")))?;
        until_ended(auto, &mut callbacks, &id).await
    };
    tokio::time::timeout(MOVE_LIMIT, ended)
        .await
        .unwrap_or_else(|_| {
            let what = format!("the end of the move to {to}");
            Err(not_happened(&what, MOVE_LIMIT, auto, job_id))
        })
}

async fn until_ended(
    auto: &AutoManager,
    callbacks: &mut CallbackStream,
    id: &MigrationId,
) -> Result<MigrationState, Failure> {
    let ended = |state: &MigrationState| {
        matches!(state.phase, MigrationPhase::Done | MigrationPhase::Aborted)
    };
    loop {
        if let Some(state) = auto.migration_by_id(id).filter(ended) {
            return Ok(state);
        }
        match callbacks.next().await {
            Some(Heard::Callback(callback)) => match &*callback {
                Callback::OnMigrationPhase(state) if state.migration_id == *id && ended(state) => {
                    return Ok((**state).clone());
                }
                _ => {}
            },
            Some(Heard::Lagged(_)) => {}
            None => return Err(Failure::failed("the control plane ended")),
        }
    }
}

/// Ends the watch: what was seen over all, and the gap at each change of the sender, in milliseconds.
async fn watched(mut port: Port) -> Result<(Report, Vec<u64>), Failure> {
    port.probe.stop();
    let mut gaps = Vec::new();
    while let Some(event) = port.probe.next_event().await {
        if let Event::SenderChanged { gap_us, .. } = event {
            gaps.push(gap_us / 1_000);
        }
    }
    let report = port.probe.finish().await;
    let report = report.map_err(|error| Failure::failed(chain(&error)))?;
    Ok((report, gaps))
}

fn example(port: u16, strategy: Strategy, image: Option<&str>) -> Result<Bundle, Failure> {
    let mut manifests = greenroom_manifest::read_bundles("examples/handover.yaml", EXAMPLE)
        .map_err(|problems| Failure::failed(format!("the example is wrong: {problems:?}")))?;
    let mut bundle = manifests.remove(0).bundle;
    let parameters = &mut bundle.jobs[0].launch.parameters;
    parameters.insert("PORT".to_owned(), port.to_string());
    if strategy == Strategy::Overlap {
        parameters.insert("LINGER".to_owned(), LINGER_MS.to_string());
    }
    if let Some(image) = image {
        for service in &mut bundle.jobs[0].launch.services {
            service.container = Container::Docker(image.to_owned());
            // The probe is on this machine's own address.
            service.parameters.host_network = true;
        }
    }
    Ok(bundle)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
