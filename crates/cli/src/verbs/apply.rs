//! `greenroom apply`, `delete` and `validate`: bundles from manifests to the Manager.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use greenroom_console::client::ClientError;
use greenroom_manifest::{Manifest, Problem};
use greenroom_placement::{Code, Finding};
use greenroom_sdk::types::bundle::{Bundle, BundleState};
use greenroom_sdk::types::stream::StreamEvent;
use greenroom_sdk::types::{BundleId, JobId};
use greenroom_sdk::{BundleChanges, Client, Error, EventSettings, StreamItem, UpdateBundle};
use serde::Serialize;

use super::awaited::{Awaited, now};
use super::connect::Manager;
use super::control::{Control, lost};
use super::files::{as_json, read_all, refuse};
use super::media::duration;
use super::wait::until_running;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::say;

/// Looks at a bundle that others create and delete meanwhile, before that is told.
const TRIES: usize = 20;

/// Submit bundles: create those that are new, update those that are there.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// Manifests, YAML or JSON; `-` for stdin.
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Wait until every job runs, and has stayed up for two seconds. Jobs that start by hand or after
    /// this wait are named and not waited for.
    #[arg(long)]
    wait: bool,
    /// How long to wait at most, e.g. 90s or 5m.
    #[arg(long, value_parser = duration, default_value = "2m", value_name = "TIME")]
    timeout: Duration,
    /// Submit without asking the control plane whether the needs can be met.
    #[arg(long)]
    skip_validation: bool,
    /// Submit what no node can run yet: a server that can may still join a fixed pool.
    #[arg(long)]
    allow_unmet: bool,
    #[command(flatten)]
    manager: Manager,
    #[command(flatten)]
    control: Control,
}

/// Stop and delete bundles.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Bundles by id.
    #[arg(value_name = "BUNDLE", required_unless_present = "files")]
    bundles: Vec<BundleId>,
    /// Manifests whose bundles are deleted.
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Wait until they are gone.
    #[arg(long)]
    wait: bool,
    /// How long the whole may take, with --wait or without, e.g. 90s or 5m.
    #[arg(long, value_parser = duration, default_value = "2m", value_name = "TIME")]
    timeout: Duration,
    #[command(flatten)]
    manager: Manager,
}

/// Check manifests: their form, and with a control plane whether their needs can be met. Changes
/// nothing.
#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// Manifests, YAML or JSON; `-` for stdin.
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Check the form alone, without a control plane.
    #[arg(long)]
    offline: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control: Control,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Applied<'a> {
    bundle_id: &'a BundleId,
    action: &'static str,
    revision: u64,
    jobs: Vec<JobId>,
}

/// What the control plane says about bundles.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) errors: Vec<Problem>,
    warnings: Vec<Warning>,
}

/// One warning.
#[derive(Debug)]
struct Warning {
    problem: Problem,
    /// It says that no node can run a job.
    is_unmet: bool,
}

// === impl Findings ===

impl Findings {
    /// Tells the warnings that are wanted.
    fn warn(&self, wanted: impl Fn(&Warning) -> bool) {
        for warning in self.warnings.iter().filter(|warning| wanted(warning)) {
            say(&format!("warning: {}", warning.problem));
        }
    }
}

/// True for a need that nothing offers.
const fn is_unmet(code: Code) -> bool {
    matches!(
        code,
        Code::CapacityUnsatisfiable
            | Code::CoresUnsatisfiable
            | Code::CapabilityUnsatisfiable
            | Code::GpuUnsatisfiable
            | Code::GroupUnsatisfiable
            | Code::RuntimeUnsatisfiable
    )
}

/// Asks the control plane whether the bundles can be placed. `without` says how to go on when there
/// is none.
pub(super) async fn check_needs(
    control: &Control,
    manifests: &[Manifest],
    without: &str,
) -> Result<Findings, Failure> {
    let mut found = Findings::default();
    for manifest in manifests {
        let findings = control
            .client()
            .validate(manifest.bundle.clone())
            .await
            .map_err(|error| {
                let failure = lost(&error);
                match error {
                    ClientError::Connection { .. } => failure.hint(format!(
                        "start one with `greenroom up`, name it with --control URL, or {without}"
                    )),
                    _ => failure,
                }
            })?;
        let at = |finding: &Finding| -> Problem {
            manifest.problem(
                &finding.path,
                format!("{} ({})", finding.message, finding.code.name()),
            )
        };
        found.errors.extend(findings.errors.iter().map(at));
        let warnings = findings.warnings.iter().map(|finding| Warning {
            problem: at(finding),
            is_unmet: is_unmet(finding.code),
        });
        found.warnings.extend(warnings);
    }
    Ok(found)
}

// === impl Apply ===

impl Apply {
    pub(crate) async fn run(self) -> Outcome {
        let manifests = read_all(&self.files).map_err(|problems| refuse(&problems))?;
        if !self.skip_validation {
            let without = "submit with --skip-validation";
            let found = check_needs(&self.control, &manifests, without).await?;
            // What is refused below is told there, and not twice.
            found.warn(|warning| self.allow_unmet || !warning.is_unmet);
            if !found.errors.is_empty() {
                return Err(refuse(&found.errors));
            }
            let unmet = found.warnings.into_iter().filter(|it| it.is_unmet);
            let unmet: Vec<Problem> = unmet.map(|it| it.problem).collect();
            if !unmet.is_empty() && !self.allow_unmet {
                return Err(refuse(&unmet)
                    .hint("submit with --allow-unmet if a server that can run it will join"));
            }
        }
        let client = self.manager.connect().await?;
        let output = self.manager.output();
        let mut awaited = Awaited::default();
        for manifest in &manifests {
            let bundle = &manifest.bundle;
            let submitted = submit(&client, bundle).await.map_err(|mut failure| {
                if failure.exit == Exit::BadInput {
                    let problem = manifest.problem("bundleId", failure.message);
                    failure.message = problem.to_string();
                    failure = failure.at(vec![as_json(&problem)]);
                }
                failure
            })?;
            let Submitted {
                action,
                revision,
                jobs: ids,
            } = submitted;
            let bundle_id = &bundle.bundle_id;
            let applied = Applied {
                bundle_id,
                action,
                revision,
                jobs: ids.clone(),
            };
            output.either(&applied, || {
                format!("bundle {bundle_id} {action} (revision {revision})")
            })?;
            if self.wait {
                let dormant = dormant(&client, bundle_id).await?;
                awaited.add(bundle, &ids, &dormant, now(), self.timeout);
            }
        }
        if self.wait {
            wait_for(&client, awaited, self.timeout).await
        } else {
            Ok(())
        }
    }
}

/// Jobs of a bundle that start by hand alone, or were stopped so.
async fn dormant(client: &Client, bundle_id: &BundleId) -> Result<BTreeSet<JobId>, Failure> {
    let known = match client.get_bundle(bundle_id.clone()).await {
        // One whose stop time is over is gone as soon as it was made.
        Err(error) if error.reason() == "unknown_bundle" => return Ok(BTreeSet::new()),
        known => known?,
    };
    let dormant = known.jobs.into_iter().filter(|job| job.dormant);
    Ok(dormant.map(|job| job.job_id).collect())
}

/// Waits for what starts by itself in the time of the wait, and says what that leaves out.
pub(crate) async fn wait_for(client: &Client, awaited: Awaited, limit: Duration) -> Outcome {
    let never = awaited.lines(true);
    for line in awaited.lines(false).iter().chain(&never) {
        say(line);
    }
    until_running(client, awaited.jobs, limit).await?;
    if never.is_empty() {
        return Ok(());
    }
    let text = "some jobs do not run and will not, see above";
    Err(Failure::failed(text)
        .because("not_running")
        .hint("change startDateTime or stopAt in the manifest and apply it again"))
}

/// What became of a bundle.
struct Submitted {
    action: &'static str,
    revision: u64,
    jobs: Vec<JobId>,
}

/// Makes what is not there, and changes what is there and differs. Whoever creates and deletes the
/// same bundle meanwhile is met by looking again.
async fn submit(client: &Client, bundle: &Bundle) -> Result<Submitted, Failure> {
    let bundle_id = &bundle.bundle_id;
    for _ in 0..TRIES {
        match client.create_bundle(bundle.clone()).await {
            Ok(created) => {
                return Ok(Submitted {
                    action: "created",
                    revision: created.revision,
                    jobs: created.job_ids,
                });
            }
            Err(Error::AlreadyExists(refused)) if refused.reason == "bundle_exists" => {}
            Err(error) => return Err(error.into()),
        }
        match change(client, bundle).await {
            Ok(submitted) => return Ok(submitted),
            // It was there a moment ago, and its deletion is done now.
            Err(error) if error.reason() == "unknown_bundle" => {}
            Err(error) => return Err(error.into()),
        }
    }
    let text = format!(
        "bundle {bundle_id} is created and deleted by others all the time: {TRIES} tries met it gone"
    );
    Err(Failure::failed(text).because("unknown_bundle"))
}

/// Updates a bundle that is there. One that asks for nothing new is not sent: each update is a
/// revision (BDL-08).
async fn change(client: &Client, bundle: &Bundle) -> Result<Submitted, Error> {
    let bundle_id = &bundle.bundle_id;
    let known = client.get_bundle(bundle_id.clone()).await?;
    let is_ending = known.bundle.state == BundleState::Deleting;
    if is_ending {
        say(&format!(
            "bundle {bundle_id} is being deleted; that is taken back"
        ));
    } else if asks_for_nothing_new(&known.bundle, bundle) {
        let dry = UpdateBundle {
            dry_run: true,
            ..UpdateBundle::default()
        };
        let would = client.update_bundle(bundle.clone(), dry).await?;
        if is_untouched(&would) {
            return Ok(Submitted {
                action: "unchanged",
                revision: known.bundle.revision,
                jobs: would.untouched,
            });
        }
    }
    let changes = client
        .update_bundle(bundle.clone(), UpdateBundle::default())
        .await?;
    let still = [
        changes.created,
        changes.changed,
        changes.updated,
        changes.untouched,
    ];
    Ok(Submitted {
        action: "updated",
        revision: changes.revision,
        jobs: still.concat(),
    })
}

fn is_untouched(changes: &BundleChanges) -> bool {
    let some = [
        &changes.created,
        &changes.changed,
        &changes.updated,
        &changes.removed,
    ];
    some.iter().all(|jobs| jobs.is_empty())
}

/// Whether a bundle, as the Manager would have it, is the one that it has. A stop time stays when
/// none is given (BSTOP-05), and a revision that is given is for the Manager to check.
fn asks_for_nothing_new(known: &Bundle, wanted: &Bundle) -> bool {
    if wanted.revision != 0 {
        return false;
    }
    let sent = greenroom_sdk::proto::manager::Bundle::from(wanted);
    let Ok(mut sent) = Bundle::try_from(sent) else {
        return false;
    };
    sent.revision = known.revision;
    sent.state = known.state;
    sent.stop_at = sent.stop_at.or(known.stop_at);
    sent == *known
}

// === impl Delete ===

impl Delete {
    pub(crate) async fn run(self) -> Outcome {
        let mut bundles = self.bundles;
        let manifests = read_all(&self.files).map_err(|problems| refuse(&problems))?;
        bundles.extend(
            manifests
                .iter()
                .map(|manifest| manifest.bundle.bundle_id.clone()),
        );
        let (limit, count) = (self.timeout, bundles.len());
        let asked = Cell::new(0);
        let deleted = delete(self.manager, bundles, self.wait, &asked);
        match tokio::time::timeout(limit, deleted).await {
            Ok(ended) => ended,
            Err(_) => Err(late(limit, asked.get(), count)),
        }
    }
}

/// That the time is over, and what is known: of `count` deletes, `asked` were taken.
fn late(limit: Duration, asked: usize, count: usize) -> Failure {
    let text = if asked < count {
        format!("no answer within {limit:?}: {asked} of {count} deletes are known to be taken")
    } else {
        format!("still being deleted after {limit:?}")
    };
    Failure::failed(text).hint("`greenroom get bundles` says what is there")
}

async fn delete(
    manager: Manager,
    bundles: Vec<BundleId>,
    wait: bool,
    asked: &Cell<usize>,
) -> Outcome {
    let client = manager.connect().await?;
    let (state, mut events) = client.event_stream(EventSettings::default()).await?;
    let known = |id: &BundleId| {
        state
            .bundles
            .iter()
            .any(|known| known.bundle.bundle_id == *id)
    };
    if let Some(unknown) = bundles.iter().find(|id| !known(id)) {
        return Err(
            Failure::failed(format!("there is no bundle {unknown}; nothing was deleted"))
                .because("unknown_bundle")
                .hint("`greenroom get bundles` lists them"),
        );
    }
    for bundle_id in &bundles {
        let (action, words) = match client.delete_bundle(bundle_id.clone()).await {
            Ok(_) => ("deleting", "is being deleted"),
            // Somebody else's deletion was done between the look and the call.
            Err(error) if error.reason() == "unknown_bundle" => ("gone", "is gone already"),
            Err(error) => return Err(error.into()),
        };
        let text = || format!("bundle {bundle_id} {words}");
        let told = serde_json::json!({"bundleId": bundle_id, "action": action});
        manager.output().either(&told, text)?;
        asked.set(asked.get() + 1);
    }
    if !wait {
        return Ok(());
    }
    let mut waiting: BTreeSet<BundleId> = bundles.into_iter().collect();
    let mut ending: BTreeSet<BundleId> = BTreeSet::new();
    while !waiting.is_empty() {
        match events.next().await {
            Some(StreamItem::Event(stamped)) => match &stamped.event {
                StreamEvent::BundleDeleted(bundle_id) if waiting.remove(bundle_id) => {
                    say(&format!("bundle {bundle_id} is gone"));
                }
                StreamEvent::BundleUpdated(status) => {
                    let bundle = &status.bundle;
                    let bundle_id = &bundle.bundle_id;
                    match bundle.state {
                        BundleState::Deleting => {
                            ending.insert(bundle_id.clone());
                        }
                        BundleState::Live
                            if waiting.contains(bundle_id) && ending.contains(bundle_id) =>
                        {
                            let text = format!(
                                "bundle {bundle_id} was applied again meanwhile, which takes its \
                                 deletion back"
                            );
                            return Err(Failure::failed(text).because("bundle_live"));
                        }
                        BundleState::Live => {}
                    }
                }
                _ => {}
            },
            Some(StreamItem::Resnapshot(state)) => waiting.retain(|id| {
                state
                    .bundles
                    .iter()
                    .any(|known| known.bundle.bundle_id == *id)
            }),
            Some(StreamItem::Closed(error)) => return Err(Failure::from(error)),
            None => return Err(Failure::failed("the event stream ended")),
        }
    }
    Ok(())
}

// === impl Validate ===

impl Validate {
    pub(crate) async fn run(self) -> Outcome {
        let mut found = Findings::default();
        let mut count = 0;
        match read_all(&self.files) {
            Ok(manifests) => {
                count = manifests.len();
                if !self.offline {
                    let without = "check the form alone with --offline";
                    found = check_needs(&self.control, &manifests, without).await?;
                    found.warn(|_| true);
                }
            }
            Err(problems) => found.errors = problems,
        }
        let is_ok = found.errors.is_empty();
        let output = crate::output::Output { json: self.json };
        if self.json {
            output.line(&serde_json::json!({
                "ok": is_ok,
                "bundles": count,
                "errors": found.errors.iter().map(as_json).collect::<Vec<_>>(),
                "warnings": found.warnings.iter().map(|it| as_json(&it.problem)).collect::<Vec<_>>(),
            }))?;
        } else if is_ok {
            let are = if count == 1 { " is" } else { "s are" };
            output.text(&format!("{count} bundle{are} valid"))?;
        }
        if is_ok {
            Ok(())
        } else {
            let failure = refuse(&found.errors);
            Err(if self.json { failure.told() } else { failure })
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        delete: Delete,
    }

    #[tokio::test]
    async fn a_delete_that_nobody_answers_ends_in_its_time_without_waiting_for_the_end() {
        // It takes connections and says nothing, as a Manager does whose store is dead.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let words = ["delete", "news", "--timeout", "1s", "--manager", &url];
        let line = Line::try_parse_from(words).unwrap();
        let begun = std::time::Instant::now();
        let failure = line.delete.run().await.unwrap_err();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        let told = failure.to_string();
        assert!(
            told.contains("0 of 1 deletes are known to be taken"),
            "{told}"
        );
    }

    #[test]
    fn a_time_that_is_over_says_what_is_known() {
        let told = |asked| late(Duration::from_secs(5), asked, 2).message;
        assert!(told(1).contains("1 of 2"), "{}", told(1));
        assert_eq!(told(2), "still being deleted after 5s");
    }
}
