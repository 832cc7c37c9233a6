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
        /// Files, or folders whose `.yaml` and `.yml` files are played.
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
        /// How many minutes, 1 to 60; at least the time since the last calm moment before.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
        minutes: u64,
        /// Name of the scenario; one line of text.
        #[arg(long, value_parser = name, default_value = "incident")]
        name: String,
        /// Where to write it; default: stdout.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        control: Control,
    },
    /// Read files without playing them.
    Check {
        /// Files, or folders whose `.yaml` and `.yml` files are read.
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
    let progress: Box<dyn Observer> = Box::new(Progress::of(&name));
    let parts = greenroom_sim::Recording {
        name,
        start: recording.start,
        settings: recording.settings,
        nodes: recording.nodes,
        bundles: recording.bundles,
        jobs: recording.jobs,
        node_ids: recording.node_ids,
        steps: recording.steps,
        left_out: recording.left_out,
    };
    let recorded = greenroom_sim::recorded(parts, Some(progress))
        .map_err(|problem| Failure::failed(format!("the recording cannot be played: {problem}")))?;
    match file {
        None => Output { json: false }.text(recorded.text.trim_end())?,
        Some(path) => crate::file::write(path, recorded.text.as_bytes()).map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", path.display()))
        })?,
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

/// A name that a scenario may have.
fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("a scenario has a name of some letters".to_owned());
    }
    greenroom_sim::fault_of_name(text).map_or_else(|| Ok(text.to_owned()), Err)
}

/// Milliseconds of a minute and of an hour.
const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;

/// Says on stderr how far a long run has come (SCEN-16), also where a single moment of it takes long.
#[derive(Debug)]
struct Progress {
    far: Arc<Mutex<Far>>,
    /// Dropped with this, which ends the words.
    _ends: mpsc::Sender<()>,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
enum Far {
    /// It is read and checked.
    Read,
    /// So much of its virtual time has passed, and so many steps of it were taken out.
    Played { at: Mono, end: Mono, out: usize },
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

    /// How far it is now, by its end and what was taken out so far.
    fn update(&self, now: impl FnOnce(Mono, usize) -> Far) {
        let mut far = self.far.lock().unwrap_or_else(PoisonError::into_inner);
        let (end, out) = match *far {
            Far::Read => (Mono(0), 0),
            Far::Played { end, out, .. } => (end, out),
        };
        *far = now(end, out);
    }
}

impl Far {
    fn words(self, name: &str) -> String {
        let Self::Played { at, end, out } = self else {
            return format!("{name}: it is read and checked");
        };
        let (unit, ms) = if end.0 < HOUR {
            ("minutes", MINUTE)
        } else {
            ("hours", HOUR)
        };
        let far = match end.0 < MINUTE {
            true => "it is played; all of it lasts less than one virtual minute".to_owned(),
            false => format!("{} of {} virtual {unit} played", at.0 / ms, end.0 / ms),
        };
        let out = match out {
            0 => String::new(),
            1 => ", 1 step left out".to_owned(),
            out => format!(", {out} steps left out"),
        };
        format!("{name}: {far}{out}")
    }
}

impl Observer for Progress {
    fn begins(&mut self, end: Mono) {
        self.update(|_, out| Far::Played {
            at: Mono(0),
            end,
            out,
        });
    }

    fn passed(&mut self, at: Mono) {
        self.update(|end, out| Far::Played { at, end, out });
    }

    fn taken_out(&mut self, out: usize) {
        let mut far = self.far.lock().unwrap_or_else(PoisonError::into_inner);
        if let Far::Played { out: told, .. } = &mut *far {
            *told = out;
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
        (_, 0) => Failure::failed(format!("{} fell short", out_of(failed, total))),
        (_, _) => Failure::bad_input(format!("{} cannot be played", out_of(unreadable, total))),
    };
    Err(if json { failure.told() } else { failure })
}

fn out_of(count: usize, total: usize) -> String {
    let s = if total == 1 { "" } else { "s" };
    format!("{count} of {total} scenario{s}")
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
                let text = format!("{}: there is no .yaml or .yml file in it", file.display());
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
        progress.begins(Mono(MINUTE - 1));
        assert!(told(&progress).ends_with("less than one virtual minute"));
        progress.begins(Mono(HOUR - 1));
        progress.passed(Mono(2 * MINUTE));
        assert_eq!(told(&progress), "x.yaml: 2 of 59 virtual minutes played");
        progress.begins(hour(30));
        assert_eq!(told(&progress), "x.yaml: 0 of 30 virtual hours played");
        progress.passed(hour(7));
        assert_eq!(told(&progress), "x.yaml: 7 of 30 virtual hours played");
        progress.taken_out(2);
        progress.begins(hour(30));
        assert_eq!(
            told(&progress),
            "x.yaml: 0 of 30 virtual hours played, 2 steps left out"
        );
    }

    // spec: SCEN-12, SCEN-15
    #[test]
    fn a_name_that_no_scenario_may_have_is_refused() {
        assert_eq!(name("night shift"), Ok("night shift".to_owned()));
        for (text, words) in [
            ("", "some letters"),
            ("  ", "some letters"),
            ("two\nlines", "one line"),
            (&"x".repeat(201), "at most 200"),
        ] {
            let told = name(text).unwrap_err();
            assert!(told.contains(words), "{text:?}: {told}");
        }
        assert_eq!(out_of(1, 1), "1 of 1 scenario");
        assert_eq!(out_of(1, 2), "1 of 2 scenarios");
    }
}
