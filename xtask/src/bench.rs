//! The benchmarks, built for speed. They are a program of their own, so that other chores are not
//! built for it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// What is handed on.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Names and options of the benchmarks, as `docs/develop/benchmarks.md` lists them.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        default_value = "all",
        value_name = "ARGS"
    )]
    args: Vec<String>,
}

/// Runs them; fails as they do.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    // These run whole installations of the binary, and have nothing to be built for speed themselves.
    if let Some(name @ ("failover" | "worker")) = args.args.first().map(String::as_str) {
        return crate::failover::run(name, &args.args[1..]);
    }
    let mut command = command(root, &args.args);
    let status = command.status().context("cargo cannot be run")?;
    if !status.success() {
        bail!("the benchmarks ended with {status}");
    }
    Ok(())
}

fn command(root: &Path, args: &[String]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(["run", "--release", "-p", "greenroom-bench", "--"])
        .args(args);
    command
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: Args,
    }

    #[test]
    fn what_is_written_behind_it_is_handed_on() {
        let read = |words: &[&str]| {
            let line = Line::parse_from([&["bench"], words].concat());
            let command = command(Path::new("."), &line.bench.args);
            let args = command.get_args().skip(5);
            args.map(|arg| arg.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(read(&[]), ["all"]);
        assert_eq!(
            read(&["place", "--scale", "10"]),
            ["place", "--scale", "10"]
        );
        assert_eq!(read(&["all", "--json"]), ["all", "--json"]);
    }
}
