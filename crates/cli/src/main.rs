//! The `greenroom` binary: Manager, control plane, worker, and the tools that people use.

mod env;
mod failure;
mod file;
mod local;
mod logging;
mod output;
mod signals;
mod verbs;

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::failure::{Exit, Outcome};

/// Greenroom keeps live productions on the air.
#[derive(Debug, Parser)]
#[command(name = "greenroom", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Up(verbs::up::Up),
    Init(verbs::init::Init),
    Token(verbs::token::Token),
    Demo(verbs::demo::DemoArgs),
    Apply(verbs::apply::Apply),
    Delete(verbs::apply::Delete),
    Start(verbs::by_hand::Start),
    Stop(verbs::by_hand::Stop),
    Get(verbs::get::Get),
    Describe(verbs::describe::Describe),
    Events(verbs::events::Events),
    Logs(verbs::logs::Logs),
    Why(verbs::control::Why),
    Validate(verbs::apply::Validate),
    Place(verbs::control::Place),
    Admit(verbs::lists::Admit),
    Placements(verbs::lists::Placements),
    Pending(verbs::lists::Pending),
    Metrics(verbs::lists::ShowMetrics),
    Cordon(verbs::acting::Cordon),
    Uncordon(verbs::acting::Uncordon),
    Drain(verbs::drain::Drain),
    Evict(verbs::acting::Evict),
    Terminate(verbs::acting::Terminate),
    Migrate(verbs::migrate::Migrate),
    AbortMigration(verbs::migrate::AbortMigration),
    Migrations(verbs::migrate::Migrations),
    Spares(verbs::spares::Spares),
    Templates(verbs::spares::Templates),
    Leases(verbs::leases::Leases),
    Node(verbs::node::Node),
    Ctl(verbs::ctl::Ctl),
    JobSocket(verbs::job_socket::JobSocket),
    Audit(verbs::audit::Audit),
    Store(verbs::store::Store),
    Discovery(verbs::discovery::Discovery),
    Reload(verbs::reload::Reload),
    Scenario(verbs::scenario::Scenario),
    Schema(verbs::schema::Schema),
    Testcard(verbs::media::Testcard),
    Probe(verbs::media::Probe),
    Manager(verbs::manager::Manager),
    Control(verbs::control::Run),
    Worker(Box<verbs::worker::Worker>),
}

// The consensus library tells each failure of the store dozens of times in its own words; the store
// says it once. GREENROOM_LOG=openraft=debug shows them.

/// Log filter of the daemons.
const DAEMON_LOG: &str = "greenroom=info,openraft=off,warn";
/// Log filter of what runs in front of a person, who is told what matters in other ways.
const FRONT_LOG: &str = "greenroom=error,openraft=off,error";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    // The supervisor of one instance's processes: a worker starts it, people do not.
    if args.next_if(|word| word == "supervise").is_some() {
        return greenroom_worker::supervise::main(args);
    }
    // Kills leased instances at their deadlines: a worker starts it, or the machine's init does.
    if args.next_if(|word| word == "lease-guard").is_some() {
        return greenroom_worker::lease_guard::main(args);
    }
    let mut matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return misread(&error),
    };
    let json = wants_json(&matches);
    let cli = match Cli::from_arg_matches_mut(&mut matches) {
        Ok(cli) => cli,
        Err(error) => return misread(&error.format(&mut Cli::command())),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            output::say(&format!("greenroom: cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli.verb)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                output::say(&format!("greenroom: {failure}"));
            }
            if json && let Some(told) = failure.as_json() {
                // Nobody is left to tell when stdout is gone.
                let _ = output::Output { json }.line(&told);
            }
            ExitCode::from(failure.exit.code())
        }
    }
}

/// Tells why the command line cannot be taken, or what was asked about it. What it repeats of a word of
/// the command line steers no terminal; then it comes without colours.
fn misread(error: &clap::Error) -> ExitCode {
    let steers = |word: std::ffi::OsString| word.to_string_lossy().contains(char::is_control);
    if error.use_stderr() && std::env::args_os().any(steers) {
        output::say(error.render().to_string().trim_end());
    } else {
        // Nobody is left to tell when the stream is gone.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::BadInput.code()))
}

/// Whether the verb was asked for JSON.
fn wants_json(matches: &ArgMatches) -> bool {
    // `ctl` takes its request by that name, which is no wish for a form.
    let flag = matches!(matches.try_get_one::<bool>("json"), Ok(Some(true)));
    let form = matches!(
        matches.try_get_one::<verbs::get::Form>("output"),
        Ok(Some(verbs::get::Form::Json))
    );
    let below = matches
        .subcommand()
        .is_some_and(|(_, below)| wants_json(below));
    flag || form || below
}

async fn run(verb: Verb) -> Outcome {
    match verb {
        Verb::Up(up) => up.run(logging::install(FRONT_LOG)).await,
        Verb::Init(init) => init.run(),
        Verb::Token(token) => token.run(),
        Verb::Demo(demo) => demo.run(logging::install(FRONT_LOG)).await,
        Verb::Apply(apply) => apply.run().await,
        Verb::Delete(delete) => delete.run().await,
        Verb::Start(start) => start.run().await,
        Verb::Stop(stop) => stop.run().await,
        Verb::Get(get) => get.run().await,
        Verb::Describe(describe) => describe.run().await,
        Verb::Events(events) => events.run().await,
        Verb::Logs(logs) => logs.run().await,
        Verb::Why(why) => why.run().await,
        Verb::Validate(validate) => validate.run().await,
        Verb::Place(place) => place.run().await,
        Verb::Admit(admit) => admit.run().await,
        Verb::Placements(placements) => placements.run().await,
        Verb::Pending(pending) => pending.run().await,
        Verb::Metrics(metrics) => metrics.run().await,
        Verb::Cordon(cordon) => cordon.run().await,
        Verb::Uncordon(uncordon) => uncordon.run().await,
        Verb::Drain(drain) => drain.run().await,
        Verb::Evict(evict) => evict.run().await,
        Verb::Terminate(terminate) => terminate.run().await,
        Verb::Migrate(migrate) => migrate.run().await,
        Verb::AbortMigration(abort) => abort.run().await,
        Verb::Migrations(migrations) => migrations.run().await,
        Verb::Spares(spares) => spares.run().await,
        Verb::Templates(templates) => templates.run().await,
        Verb::Leases(leases) => leases.run().await,
        Verb::Node(node) => node.run().await,
        Verb::Ctl(ctl) => ctl.run().await,
        Verb::JobSocket(job_socket) => job_socket.run().await,
        Verb::Audit(audit) => audit.run().await,
        Verb::Store(store) => store.run(),
        Verb::Discovery(discovery) => discovery.run().await,
        Verb::Reload(reload) => reload.run().await,
        Verb::Scenario(scenario) => scenario.run().await,
        Verb::Schema(schema) => schema.run(),
        Verb::Testcard(testcard) => testcard.run().await,
        Verb::Probe(probe) => probe.run().await,
        Verb::Manager(manager) => manager.run(logging::install(DAEMON_LOG)).await,
        Verb::Control(control) => {
            logging::install(DAEMON_LOG);
            control.run().await
        }
        Verb::Worker(worker) => {
            logging::install(DAEMON_LOG);
            worker.run().await
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    /// Two flags of one name in one verb are found when it is used, or here.
    #[test]
    fn the_command_line_is_of_one_piece() {
        super::Cli::command().debug_assert();
    }
}
