//! Thousands of workers that run nothing, in processes of their own: each takes two file descriptors, and what
//! they cost is none of the Manager's.
//!
//! A process of workers is this program again. It reads one word a line and answers each with one line; it
//! ends with its input.

use std::io::{BufRead as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use greenroom_sdk::{Client, Settings};
use greenroom_testkit::FakeWorker;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

/// The option under which this program is such a process.
pub(crate) const OPTION: &str = "as-workers";
/// Workers of one process.
const WORKERS_MAX: usize = 2_500;
/// Workers that call in at once.
const CALLING: usize = 16;
/// A worker says this often that it lives, as the real one does.
const HEALTH: Duration = Duration::from_secs(1);
/// Time between two looks at who is back.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// All workers.
pub(super) struct Workers(Vec<Process>);

struct Process {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

// === impl Workers ===

impl Workers {
    /// Starts processes for so many workers and connects all of them.
    pub(super) async fn connect(url: &str, nodes: usize) -> Result<Self> {
        let mut all = Self(Vec::new());
        for from in (0..nodes).step_by(WORKERS_MAX) {
            let count = WORKERS_MAX.min(nodes - from);
            let mut child = Command::new(std::env::current_exe()?)
                .args(["manager", &format!("--{OPTION}"), url])
                .args([from.to_string(), count.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .context("workers cannot be started")?;
            let input = child.stdin.take().context("stdin is piped")?;
            let output = BufReader::new(child.stdout.take().context("stdout is piped")?);
            all.0.push(Process {
                _child: child,
                input,
                output,
            });
        }
        let connected = all.ask("connect").await?;
        ensure!(connected == nodes, "{connected} of {nodes} are connected");
        Ok(all)
    }

    /// How many hellos were answered so far, of all of them.
    pub(super) async fn greeted(&mut self) -> Result<usize> {
        self.ask("greeted").await
    }

    /// What [`Self::again`] counts from.
    pub(super) async fn mark(&mut self) -> Result<()> {
        self.ask("mark").await.map(drop)
    }

    /// Waits until each was greeted since the mark.
    pub(super) async fn again(&mut self) -> Result<()> {
        self.ask("again").await.map(drop)
    }

    /// Says a word to all, and adds up what they answer.
    async fn ask(&mut self, word: &str) -> Result<usize> {
        for process in &mut self.0 {
            process
                .input
                .write_all(format!("{word}\n").as_bytes())
                .await?;
        }
        let mut sum = 0;
        for process in &mut self.0 {
            let mut line = String::new();
            process.output.read_line(&mut line).await?;
            let number = line.trim().parse::<usize>();
            sum += number.with_context(|| format!("workers answered {line:?} to {word:?}"))?;
        }
        Ok(sum)
    }
}

/// Is a process of workers, as [`OPTION`] says: the Manager's url, the number of the first worker, and how
/// many.
pub(crate) fn serve(words: &[String]) -> Result<()> {
    let [url, from, count] = words else {
        bail!("--{OPTION} takes a url and two numbers");
    };
    let (from, count): (usize, usize) = (from.parse()?, count.parse()?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    greenroom_tls::raise_descriptor_limit();
    let (mut workers, mut marked) = (Vec::new(), Vec::new());
    for line in std::io::stdin().lock().lines() {
        let answer = match line?.as_str() {
            "connect" => {
                workers = runtime.block_on(connect(url, from, count))?;
                workers.len()
            }
            "greeted" => workers.iter().map(FakeWorker::greeted).sum(),
            "mark" => {
                marked = workers.iter().map(FakeWorker::greeted).collect();
                0
            }
            "again" => {
                runtime.block_on(again(&workers, &marked));
                0
            }
            other => bail!("{other:?} is no word for workers"),
        };
        let mut output = std::io::stdout().lock();
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}

/// The name of a worker's node.
pub(super) fn node(number: usize) -> String {
    format!("n{number}")
}

async fn connect(url: &str, from: usize, count: usize) -> Result<Vec<FakeWorker>> {
    let client = Client::connect(Settings::new([url.to_owned()])).await?;
    let mut connecting = JoinSet::new();
    let mut workers = Vec::with_capacity(count);
    for number in from..from + count {
        while connecting.len() >= CALLING {
            workers.push(connecting.join_next().await.context("one of them")???);
        }
        let client = client.clone();
        connecting.spawn(async move {
            let worker = FakeWorker::register(&client, &node(number)).await;
            worker.forget();
            worker.live_every(HEALTH);
            worker.call_in(&client).await?;
            worker.wait_greeted(1).await;
            Ok::<_, anyhow::Error>(worker)
        });
    }
    while let Some(done) = connecting.join_next().await {
        workers.push(done??);
    }
    Ok(workers)
}

async fn again(workers: &[FakeWorker], marked: &[usize]) {
    let is_back = |(worker, marked): (&FakeWorker, &usize)| worker.greeted() > *marked;
    while !workers.iter().zip(marked).all(is_back) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
