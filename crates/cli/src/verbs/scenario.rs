//! `greenroom scenario`: a policy that can be tested like code.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use clap::{Args, Subcommand};
use greenroom_sdk::types::Mono;
use greenroom_sim::{Keep, Observer, Options, Outcome as Played, check_file, run_observed};

use super::control::{Control, lost};
use crate::failure::{Failure, Outcome, heard_or_not};
use crate::output::{Output, say};

/// Play, check or record scenario files.
#[derive(Debug, Args)]
pub(crate) struct Scenario {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Play files in virtual time against the real policy and the real state machine.
    Run {
        /// Files, or folders whose `.yaml` files are played.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print every transition.
        #[arg(long)]
        trace: bool,
        /// Print the whole run as JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Write the last minutes of a running control plane as a scenario, so that an incident becomes
    /// a test. Of jobs it has names and needs, not what they run.
    Record {
        /// How many minutes; at least the time since the last calm moment before.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
        minutes: u64,
        /// Name of the scenario.
        #[arg(long, default_value = "incident")]
        name: String,
        /// Where to write it; default: stdout.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        control: Control,
    },
    /// Read files without playing them.
    Check {
        /// Files, or folders whose `.yaml` files are read.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

// === impl Scenario ===

impl Scenario {
    pub(crate) async fn run(self) -> Outcome {
        match self.action {
            Action::Record {
                minutes,
                name,
                output,
                control,
            } => record(minutes, name, output.as_deref(), &control).await,
            Action::Run { files, trace, json } => play(&files, trace, json),
            Action::Check { files, json } => check(&files, Output { json }),
        }
    }
}

async fn record(minutes: u64, name: String, file: Option<&Path>, control: &Control) -> Outcome {
    let recording = control.client().recording(minutes).await;
    let recording = recording.map_err(|error| lost(&error))?;
    let recorded = greenroom_sim::recorded(greenroom_sim::Recording {
        name,
        start: recording.start,
        settings: recording.settings,
        nodes: recording.nodes,
        bundles: recording.bundles,
        jobs: recording.jobs,
        node_ids: recording.node_ids,
        steps: recording.steps,
        left_out: recording.left_out,
    })
    .map_err(|problem| Failure::failed(format!("the recording cannot be played: {problem}")))?;
    match file {
        None => Output { json: false }.text(recorded.text.trim_end())?,
        Some(path) => {
            crate::file::write(path, recorded.text.as_bytes(), 0o644).map_err(|error| {
                Failure::failed(format!("cannot write {}: {error}", path.display()))
            })?
        }
    }
    say(&format!(
        "{} steps from {} on, {} of them decisions",
        recorded.steps, recording.start, recorded.decisions
    ));
    if !recorded.left_out.is_empty() {
        say(&format!(
            "{} left out; the file says which and why",
            recorded.left_out.len()
        ));
    }
    Ok(())
}

/// Says on stderr how far a long run has come (SCEN-16), also where a single moment of it takes long.
#[derive(Debug)]
struct Progress {
    far: Arc<Mutex<Far>>,
    /// Dropped with this, which ends the words.
    _ends: mpsc::Sender<()>,
}

/// Milliseconds of an hour.
const HOUR: u64 = 3_600_000;

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
enum Far {
    /// It is read and checked.
    Read,
    /// So much of its virtual time has passed.
    Played { at: Mono, end: Mono },
}

// === impl Progress, Far ===

impl Progress {
    fn of(name: &str) -> Self {
        let seconds = if std::io::stderr().is_terminal() {
            2
        } else {
            10
        };
        let far = Arc::new(Mutex::new(Far::Read));
        let (ends, ended) = mpsc::channel::<()>();
        let (name, seen) = (name.to_owned(), Arc::clone(&far));
        std::thread::spawn(move || {
            let every = Duration::from_secs(seconds);
            while ended.recv_timeout(every) == Err(mpsc::RecvTimeoutError::Timeout) {
                let far = *seen.lock().unwrap_or_else(PoisonError::into_inner);
                say(&far.words(&name));
            }
        });
        Self { far, _ends: ends }
    }

    fn is_at(&self, far: Far) {
        *self.far.lock().unwrap_or_else(PoisonError::into_inner) = far;
    }
}

impl Far {
    fn words(self, name: &str) -> String {
        match self {
            Self::Read => format!("{name}: it is read and checked"),
            Self::Played { end, .. } if end.0 < HOUR => {
                format!("{name}: it is played; all of it lasts less than one virtual hour")
            }
            Self::Played { at, end } => {
                let hours = |at: Mono| at.0 / HOUR;
                let (at, end) = (hours(at), hours(end));
                format!("{name}: {at} of {end} virtual hours played")
            }
        }
    }
}

impl Observer for Progress {
    fn begins(&mut self, end: Mono) {
        self.is_at(Far::Played { at: Mono(0), end });
    }

    fn passed(&mut self, at: Mono) {
        let far = *self.far.lock().unwrap_or_else(PoisonError::into_inner);
        if let Far::Played { end, .. } = far {
            self.is_at(Far::Played { at, end });
        }
    }
}

/// Exit 0 when all hold, 1 when one falls short, 2 when one cannot be read.
fn play(files: &[PathBuf], trace: bool, json: bool) -> Outcome {
    let output = Output { json };
    let keep = match (json, trace) {
        (true, _) => Keep::Json,
        (false, true) => Keep::Lines,
        (false, false) => Keep::Last,
    };
    let (mut failed, mut unreadable, mut total) = (0, 0, 0);
    for (name, text) in read_all(files)? {
        total += 1;
        let progress = (!json).then(|| Progress::of(&name));
        let observer = progress.map(|progress| Box::new(progress) as Box<dyn Observer>);
        let run = run_observed(&name, &text, Options { keep }, observer);
        match &run.outcome {
            Played::Ok => {}
            Played::Fail(_) => failed += 1,
            Played::Unreadable(_) => unreadable += 1,
        }
        if trace || json {
            for line in &run.lines {
                heard_or_not(output.text(line))?;
            }
        }
        if json {
            let told = serde_json::json!({
                "scenario": run.name, "spec": run.spec, "exit": run.exit_code(), "report": run.report(),
            });
            heard_or_not(output.line(&told))?;
            continue;
        }
        heard_or_not(output.text(run.report().trim_end()))?;
    }
    let failure = match (failed, unreadable) {
        (0, 0) => return Ok(()),
        (_, 0) => Failure::failed(format!("{failed} of {total} scenarios fell short")),
        (_, _) => Failure::bad_input(format!(
            "{unreadable} of {total} scenarios cannot be played"
        )),
    };
    Err(if json { failure.told() } else { failure })
}

fn check(files: &[PathBuf], output: Output) -> Outcome {
    let mut problems = Vec::new();
    for (name, text) in read_all(files)? {
        match check_file(&name, &text) {
            Ok(_) => {
                let told = serde_json::json!({"file": name, "ok": true});
                heard_or_not(output.either(&told, || format!("ok {name}")))?;
            }
            Err(found) => {
                if output.json {
                    let told: Vec<String> = found.0.iter().map(ToString::to_string).collect();
                    let told = serde_json::json!({"file": name, "ok": false, "problems": told});
                    heard_or_not(output.line(&told))?;
                }
                problems.push(found.to_string());
            }
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        let failure = Failure::lines(crate::failure::Exit::BadInput, &problems.join("\n"));
        Err(if output.json { failure.told() } else { failure })
    }
}

fn read_all(files: &[PathBuf]) -> Result<Vec<(String, String)>, Failure> {
    let mut paths = Vec::new();
    for file in files {
        if file.is_dir() {
            let before = paths.len();
            folder(file, &mut paths)?;
            if paths.len() == before {
                let text = format!("{}: there is no .yaml file in it", file.display());
                return Err(Failure::bad_input(text));
            }
        } else {
            paths.push(file.clone());
        }
    }
    paths
        .into_iter()
        .map(|path| Ok((path.display().to_string(), read(&path)?)))
        .collect()
}

fn folder(dir: &Path, paths: &mut Vec<PathBuf>) -> Outcome {
    let unread = |error| Failure::bad_input(format!("{}: cannot be read: {error}", dir.display()));
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir)
        .and_then(|entries| {
            entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect()
        })
        .map_err(unread)?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            folder(&path, paths)?;
        } else if path
            .extension()
            .is_some_and(|ext| ext == "yaml" || ext == "yml")
        {
            paths.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, Failure> {
    greenroom_tls::read_text_file(path)
        .map_err(|error| Failure::bad_input(format!("{}: cannot be read: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SCEN-16
    #[test]
    fn how_far_a_run_has_come_is_told_from_its_reading_on() {
        let mut progress = Progress::of("x.yaml");
        let told = |progress: &Progress| progress.far.lock().unwrap().words("x.yaml");
        assert_eq!(told(&progress), "x.yaml: it is read and checked");
        let hour = |hours: u64| Mono(hours * HOUR);
        progress.begins(Mono(HOUR - 1));
        assert!(told(&progress).ends_with("less than one virtual hour"));
        progress.begins(hour(30));
        assert_eq!(told(&progress), "x.yaml: 0 of 30 virtual hours played");
        progress.passed(hour(7));
        assert_eq!(told(&progress), "x.yaml: 7 of 30 virtual hours played");
    }
}
