//! `greenroom demo`: a story with real processes on loopback and a probe that watches.

mod moves;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use greenroom_auto::{AutoManager, Heard};
use greenroom_manager::StatusLog;
use greenroom_media::probe::{self, Event, ProbeHandle};
use greenroom_policy::effect::{Callback, PlacementContext};
use greenroom_policy::migration::Strategy;
use greenroom_sdk::types::bundle::Bundle;
use greenroom_sdk::types::{JobId, NodeId};
use serde::Serialize;

use super::media::chain;
use super::worker::Runtime;
use crate::failure::{Exit, Failure, Outcome};
use crate::local::{Plan, System};
use crate::output::Output;
use crate::signals::Signals;

/// The manifest that is shown, with its ports replaced by free ones.
const EXAMPLE: &str = include_str!("../../../../examples/primary-backup.yaml");
/// How long the production is watched before something breaks.
const CALM: Duration = Duration::from_secs(3);
/// How long it is watched after it came back.
const AFTER: Duration = Duration::from_secs(2);
/// What is waited for must happen within this.
const STEP_LIMIT: Duration = Duration::from_secs(45);
/// The whole story ends within this.
const LIMIT: Duration = Duration::from_secs(180);

/// Show what Greenroom does, with real processes on this machine.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(subcommand)]
    story: Story,
}

#[derive(Debug, Subcommand)]
enum Story {
    /// A primary and a backup are on air; the primary's machine dies; the production comes back.
    Failover {
        /// Print one JSON object per step and a summary at the end.
        #[arg(long)]
        json: bool,
    },
    /// A channel moves between two workers and hands over at a number: no packet is lost or repeated.
    Handover(moves::Moves),
    /// A channel moves and is sent by both workers for a moment: no packet is lost.
    Overlap(moves::Moves),
    /// A channel is stopped on one worker and started, prepared, on the other: how long is the gap?
    StopThenStart(moves::Moves),
}

/// How a demonstration is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demo {
    output: Output,
}

struct Timeline {
    begun: Instant,
    output: Output,
    /// The step that was told last.
    last: RefCell<String>,
}

/// How a failover went, as a viewer and an operator saw it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    came_back: bool,
    on_air_ms: u64,
    declared_lost_ms: u64,
    on_air_again_ms: u64,
    primary_gap_ms: u64,
    backup_gap_ms: u64,
    viewer_gap_ms: u64,
    from: NodeId,
    to: NodeId,
}

/// What a viewer of one port sees.
struct Port {
    probe: ProbeHandle,
    port: u16,
}

// === impl DemoArgs ===

impl DemoArgs {
    pub(crate) async fn run(self, status_log: StatusLog) -> Outcome {
        match self.story {
            Story::Failover { json } => failover(Demo::new(json), status_log).await,
            Story::Handover(moves) => moves.run(Strategy::Handover, status_log).await,
            Story::Overlap(moves) => moves.run(Strategy::Overlap, status_log).await,
            Story::StopThenStart(moves) => moves.run(Strategy::StopThenStart, status_log).await,
        }
    }
}

// === impl Demo ===

impl Demo {
    pub(crate) const fn new(json: bool) -> Self {
        Self {
            output: Output { json },
        }
    }
}

// === impl Timeline ===

impl Timeline {
    fn ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// One step of the story.
    fn tell(&self, step: &str, text: &str) -> Outcome {
        let ms = self.ms();
        self.last.replace(format!("{step} {text}"));
        let told = serde_json::json!({"atMs": ms, "step": step, "text": text});
        let seconds = Duration::from_millis(ms).as_secs_f64();
        self.output
            .either(&told, || format!("{seconds:7.2} s  {step:<14} {text}"))
    }
}

// === impl Port ===

impl Port {
    async fn open() -> Result<Self, Failure> {
        let probe = probe::start(probe::Config::new("127.0.0.1:0"))
            .await
            .map_err(|error| Failure::failed(chain(&error)))?;
        let port = probe.local_address().port();
        Ok(Self { probe, port })
    }

    /// Waits for the first packet, or for the first after a silence.
    async fn on_air(&mut self) -> Result<(), Failure> {
        while let Some(event) = self.probe.next_event().await {
            if matches!(event, Event::OnAir { .. }) {
                return Ok(());
            }
        }
        Err(Failure::failed("the probe ended"))
    }

    /// The same within a time; else the failure says what the control plane and the job's worker know.
    async fn on_air_with(&mut self, auto: &AutoManager, job_id: &JobId, what: &str) -> Outcome {
        match tokio::time::timeout(STEP_LIMIT, self.on_air()).await {
            Ok(on_air) => on_air,
            Err(_) => Err(not_happened(what, STEP_LIMIT, auto, job_id)),
        }
    }

    async fn longest_gap_ms(self) -> Result<u64, Failure> {
        let report = self
            .probe
            .finish()
            .await
            .map_err(|error| Failure::failed(chain(&error)))?;
        Ok(report.longest_gap_us / 1_000)
    }
}

/// What did not happen in time, and what is known of the job that it hangs on.
fn not_happened(what: &str, limit: Duration, auto: &AutoManager, job_id: &JobId) -> Failure {
    let report = auto.explain(job_id);
    let why = report.map_or_else(
        || format!("job {job_id} is not known to the control plane"),
        |report| greenroom_console::words::of_report(&report),
    );
    let text = format!("{what}: not within {} s\n{why}", limit.as_secs());
    Failure::lines(Exit::Failed, &text)
}

/// Stages the failover; fails unless the production came back.
pub(crate) async fn failover(demo: Demo, status_log: StatusLog) -> Outcome {
    let story = async |time: &Timeline, system: &mut System| tell_failover(time, system).await;
    stage(demo, 3, Runtime::Process, LIMIT, status_log, story).await
}

/// Starts an installation of so many workers, tells a story on it within a time, and ends it without
/// a trace.
async fn stage(
    demo: Demo,
    workers: u32,
    runtime: Runtime,
    limit: Duration,
    status_log: StatusLog,
    story: impl AsyncFnOnce(&Timeline, &mut System) -> Outcome,
) -> Outcome {
    let folder = std::env::temp_dir().join(format!("greenroom-demo-{}", std::process::id()));
    let time = Timeline {
        begun: Instant::now(),
        output: demo.output,
        last: RefCell::default(),
    };
    let starting = format!("Manager, control plane and {workers} workers on this machine");
    time.tell("starting", &starting)?;
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let plan = Plan {
        data: folder.clone(),
        listen: any,
        control: any,
        workers,
        runtime,
        keep: false,
        settings: None,
    };
    let mut signals = Signals::install()?;
    let removed = || {
        std::fs::remove_dir_all(&folder).map_err(|error| {
            Failure::failed(format!("cannot remove {}: {error}", folder.display()))
        })
    };
    let mut system = match System::start(plan, status_log, signals.recv()).await {
        Ok(system) => system,
        Err(failure) => {
            // The failure is what matters; nothing may have been made yet.
            let _ = removed();
            return Err(failure);
        }
    };
    let told = tokio::select! {
        told = tokio::time::timeout(limit, story(&time, &mut system)) => told.unwrap_or_else(|_| {
            let (limit, step) = (limit.as_secs(), time.last.take());
            let text = format!("the story has not ended after {limit} s; it hangs after: {step}");
            Err(Failure::failed(text))
        }),
        () = signals.recv() => Err(Failure::failed("interrupted")),
    };
    let stopped = system.stop().await;
    told.and(stopped).and(removed())
}

async fn tell_failover(time: &Timeline, system: &mut System) -> Outcome {
    let (mut primary, mut backup, viewer) = (
        Port::open().await?,
        Port::open().await?,
        Port::open().await?,
    );
    let auto = system.auto().await?;
    let mut callbacks = auto.callbacks();
    let bundle = example(primary.port, backup.port, viewer.port)?;
    let ids: Vec<JobId> = (0..2)
        .map(|copy| bundle.job_id(copy, &bundle.jobs[0].job_name))
        .collect();
    let name = bundle.bundle_id.clone();
    system.client.create_bundle(bundle).await?;
    time.tell(
        "submitted",
        &format!("bundle {name}: a channel with a backup"),
    )?;
    let first = "the first packet of the primary";
    primary.on_air_with(&auto, &ids[0], first).await?;
    let first = "the first packet of the backup";
    backup.on_air_with(&auto, &ids[1], first).await?;
    let on_air_ms = time.ms();
    let from = node_of(&auto, &ids[0])?;
    let other = node_of(&auto, &ids[1])?;
    time.tell("on air", &format!("primary on {from}, backup on {other}"))?;
    tokio::time::sleep(CALM).await;

    let worker = system
        .workers
        .iter_mut()
        .find(|worker| worker.node_id == from);
    let worker = worker.ok_or_else(|| Failure::failed(format!("{from} is none of our workers")))?;
    worker.break_down();
    let broken_ms = time.ms();
    time.tell(
        "broken",
        &format!("kill -9 of {from} and of everything that runs on it"),
    )?;

    let mut declared_lost_ms = 0;
    let by = tokio::time::Instant::now() + STEP_LIMIT;
    let to = loop {
        let Ok(heard) = tokio::time::timeout_at(by, callbacks.next()).await else {
            let what = match declared_lost_ms {
                0 => format!("the loss of {from}"),
                _ => "a new place for the primary".to_owned(),
            };
            return Err(not_happened(&what, STEP_LIMIT, &auto, &ids[0]));
        };
        match heard {
            Some(Heard::Callback(callback)) => match &*callback {
                Callback::OnNodeStopping { node_id } if *node_id == from => {
                    declared_lost_ms = time.ms() - broken_ms;
                    time.tell(
                        "declared lost",
                        &format!("{from}, silent for {declared_lost_ms} ms"),
                    )?;
                }
                Callback::OnPlacementDecision(decision)
                    if decision.job_id == ids[0]
                        && decision.context == PlacementContext::Recovery =>
                {
                    if let Some(node_id) = &decision.node_id {
                        break node_id.clone();
                    }
                }
                _ => {}
            },
            Some(Heard::Lagged(_)) => {}
            None => return Err(Failure::failed("the control plane ended")),
        }
    };
    let why = auto
        .explain(&ids[0])
        .map(|report| greenroom_console::words::of_report(&report));
    time.tell("re-placed", &format!("primary on {to}"))?;
    for line in why.unwrap_or_default().lines().skip(2) {
        time.tell("why", line.trim())?;
    }
    let again = "the first packet of the primary on its new node";
    primary.on_air_with(&auto, &ids[0], again).await?;
    let on_air_again_ms = time.ms() - broken_ms;
    time.tell(
        "on air again",
        &format!("primary on {to}, {on_air_again_ms} ms after the break"),
    )?;
    tokio::time::sleep(AFTER).await;

    let summary = Summary {
        came_back: true,
        on_air_ms,
        declared_lost_ms,
        on_air_again_ms,
        primary_gap_ms: primary.longest_gap_ms().await?,
        backup_gap_ms: backup.longest_gap_ms().await?,
        viewer_gap_ms: viewer.longest_gap_ms().await?,
        from,
        to,
    };
    time.output.either(&serde_json::json!({"summary": summary}), || {
        format!(
            "\nlongest gap seen  primary alone {} ms, backup alone {} ms, a viewer who takes either {} ms\n\
             the production came back",
            summary.primary_gap_ms, summary.backup_gap_ms, summary.viewer_gap_ms
        )
    })
}

fn node_of(auto: &AutoManager, job_id: &JobId) -> Result<NodeId, Failure> {
    auto.node_for_job(job_id)
        .ok_or_else(|| Failure::failed(format!("{job_id} is on no node")))
}

/// The example's bundle, sending to the probes' ports. A third port stands for a viewer who takes
/// whichever copy is there.
fn example(primary: u16, backup: u16, viewer: u16) -> Result<Bundle, Failure> {
    let mut manifests =
        greenroom_manifest::read_bundles("examples/primary-backup.yaml", EXAMPLE)
            .map_err(|problems| Failure::failed(format!("the example is wrong: {problems:?}")))?;
    let mut bundle = manifests.remove(0).bundle;
    let own = |port: u16| format!("{port},127.0.0.1:{viewer}");
    bundle
        .backup_parameter_overrides
        .insert("PORT".to_owned(), own(backup));
    bundle.jobs[0]
        .launch
        .parameters
        .insert("PORT".to_owned(), own(primary));
    Ok(bundle)
}
