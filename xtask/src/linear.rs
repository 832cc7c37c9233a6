//! Some order explains everything: callers change the same keys, tags and job at the same time, the
//! Manager is killed in between and started again, and for each history an order of its operations is
//! looked for that gives every answer that was given.
//!
//! The callers' clients repeat what went unanswered under the same request id, so a change that took
//! effect twice, or an answer that is not the recorded one, has no such order.

mod check;
mod objects;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use greenroom_sdk::{Client, Settings};
use greenroom_testkit::{FakeWorker, job};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::crash::build;
use crate::crash::daemon::{Daemon, PATIENCE};
use check::{Model, OPERATIONS_MAX, Operation, Seen, explains};
use objects::{NodeTags, Space, SpaceState, Start, TagAnswer, TagState};

/// Settings of the check.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Histories.
    #[arg(long, default_value_t = 20)]
    histories: u32,
    /// Callers at once.
    #[arg(long, default_value_t = 4)]
    callers: usize,
    /// Calls of each caller in one history.
    #[arg(long, default_value_t = 16)]
    calls: usize,
    /// Of ten histories, how many have a kill in them.
    #[arg(long, default_value_t = 5)]
    kills: u32,
    /// Seed of the random calls and moments; printed.
    #[arg(long)]
    seed: Option<u64>,
    /// The built binary; built here when absent.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// The operations of one history, by object.
#[derive(Default)]
struct History {
    space: Vec<Of<Space>>,
    tags: Vec<Of<NodeTags>>,
    start: Vec<Of<Start>>,
}

type Of<M> = Operation<<M as Model>::Asked, <M as Model>::Answer>;

/// What the callers of one history share.
struct Scene {
    name: String,
    node: String,
    /// Revision of the node's tags at the beginning.
    near: u64,
    clock: AtomicU64,
    content: AtomicU64,
    calls: usize,
}

/// Looks at so many histories; fails at the first that no order explains.
pub(crate) fn run(root: &Path, args: Args) -> Result<()> {
    ensure!(
        args.callers * args.calls <= OPERATIONS_MAX,
        "callers times calls must be at most {OPERATIONS_MAX}"
    );
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => build(root)?,
    };
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(histories(&binary, &args))
}

#[allow(clippy::print_stdout, reason = "the check reports to whoever runs it")]
async fn histories(binary: &Path, args: &Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| rand::rng().random());
    println!("linear: seed {seed}, {} histories", args.histories);
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir()?;
    let data_dir = folder.path().join("manager");
    let mut daemon = Daemon::start(binary, &data_dir).await?;
    let address = daemon.address.clone();
    let clients = clients(&address, args.callers).await?;
    let (mut worker, mut node) = worker(&clients[0], 0).await?;
    let (mut operations, mut unanswered, mut killed) = (0, 0, 0);
    for number in 1..=args.histories {
        // A node takes as many jobs as its tags and history stay small for.
        if number % 100 == 0 {
            (worker, node) = self::worker(&clients[0], number).await?;
        }
        let (scene, tags) = scene(&clients[0], &node, number, args.calls).await?;
        let scene = Arc::new(scene);
        let calling: Vec<_> = clients
            .iter()
            .map(|client| {
                let random = StdRng::seed_from_u64(random.random());
                tokio::spawn(call(client.clone(), Arc::clone(&scene), random))
            })
            .collect();
        if random.random_ratio(args.kills.min(10), 10) {
            tokio::time::sleep(Duration::from_millis(random.random_range(0..60))).await;
            daemon.kill().await?;
            killed += 1;
            daemon = Daemon::start_at(binary, &data_dir, &address).await?;
        }
        let mut history = History::default();
        for caller in calling {
            let part = caller.await?;
            history.space.extend(part.space);
            history.tags.extend(part.tags);
            history.start.extend(part.start);
        }
        let told = || format!("history {number}, seed {seed}");
        operations += look::<Space>(&SpaceState::default(), &history.space, &mut unanswered)
            .with_context(told)?;
        operations += look::<NodeTags>(&tags, &history.tags, &mut unanswered).with_context(told)?;
        operations += look::<Start>(&false, &history.start, &mut unanswered).with_context(told)?;
    }
    drop(worker);
    daemon.kill().await?;
    println!(
        "linear: {} histories, {operations} operations, {unanswered} without an answer, {killed} kills: all explained",
        args.histories
    );
    Ok(())
}

async fn clients(address: &str, count: usize) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let settings = Settings {
            connect_timeout: PATIENCE,
            call_timeout: PATIENCE,
            ..Settings::new([address])
        };
        clients.push(Client::connect(settings).await?);
    }
    Ok(clients)
}

/// A worker that keeps what it is given and says nothing of it.
async fn worker(client: &Client, number: u32) -> Result<(FakeWorker, String)> {
    let worker = FakeWorker::register(client, &format!("n{number}")).await;
    worker.hold();
    let node = worker.call_in(client).await?;
    worker.wait_greeted(1).await;
    Ok((worker, node.to_string()))
}

/// New objects for a history, and the node's tags as they stand.
async fn scene(
    client: &Client,
    node: &str,
    number: u32,
    calls: usize,
) -> Result<(Scene, TagState)> {
    let name = format!("h{number}");
    client.create_job(job(&name)).await?;
    let Seen::Answered(TagAnswer::Now(tags)) = NodeTags::ask(client, node, &NodeTags::look()).await
    else {
        bail!("the tags of {node} cannot be read");
    };
    let scene = Scene {
        name,
        node: node.to_owned(),
        near: tags.1,
        clock: AtomicU64::new(0),
        content: AtomicU64::new(1),
        calls,
    };
    Ok((scene, tags))
}

/// One caller: call after call, and when each began and ended.
async fn call(client: Client, scene: Arc<Scene>, mut random: StdRng) -> History {
    let mut history = History::default();
    for _ in 0..scene.calls {
        let content = scene.content.fetch_add(1, Ordering::SeqCst) as u32;
        match random.random_range(0..20) {
            0..10 => {
                let asked = Space::invent(&mut random, content);
                let (called, seen, ended) =
                    scene.timed(Space::ask(&client, &scene.name, &asked)).await;
                history.space.push(Operation {
                    called,
                    ended,
                    asked,
                    seen,
                });
            }
            10..19 => {
                let asked = NodeTags::invent(&mut random, content, scene.near);
                let (called, seen, ended) = scene
                    .timed(NodeTags::ask(&client, &scene.node, &asked))
                    .await;
                history.tags.push(Operation {
                    called,
                    ended,
                    asked,
                    seen,
                });
            }
            _ => {
                let asked = Start::ask(&client, &scene.name, &scene.node);
                let (called, seen, ended) = scene.timed(asked).await;
                history.start.push(Operation {
                    called,
                    ended,
                    asked: (),
                    seen,
                });
            }
        }
    }
    history
}

// === impl Scene ===

impl Scene {
    async fn timed<A>(&self, asked: impl Future<Output = Seen<A>>) -> (u64, Seen<A>, u64) {
        let called = self.clock.fetch_add(1, Ordering::SeqCst);
        let seen = asked.await;
        (called, seen, self.clock.fetch_add(1, Ordering::SeqCst))
    }
}

/// Looks for an order; answers how many operations there were.
fn look<M: Model>(first: &M::State, history: &[Of<M>], unanswered: &mut usize) -> Result<usize>
where
    M::State: Debug,
    M::Asked: Debug,
    M::Answer: Debug,
{
    let lost = |operation: &&Of<M>| matches!(operation.seen, Seen::Unknown);
    *unanswered += history.iter().filter(lost).count();
    if explains::<M>(first, history) {
        return Ok(history.len());
    }
    let mut told: Vec<_> = history.iter().collect();
    told.sort_by_key(|operation| operation.called);
    let lines: Vec<String> = told.iter().map(|it| format!("{it:?}")).collect();
    bail!("no order explains, from {first:?}:\n{}", lines.join("\n"))
}
