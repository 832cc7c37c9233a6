//! Tools that need no installation, and the help texts.

use std::path::Path;

use crate::harness::{run, temp};

fn scenario(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/scenarios")
        .join(name);
    path.to_str().expect("the path is text").to_owned()
}

#[test]
fn scenarios_are_played_and_checked() {
    let good = scenario("cordon-and-uncordon.yaml");
    let played = run(&["scenario", "run", &good]).ok();
    assert!(played.stdout.contains("ok"), "{played:#?}");
    let told = run(&["scenario", "run", "--json", &good]).ok().json_lines();
    assert_eq!(told.last().expect("a line")["exit"], 0);
    let told = run(&["scenario", "check", "--json", &good]).ok().json();
    assert_eq!(told["ok"], true);

    let folder = temp();
    let bad = folder.path().join("bad.yaml");
    std::fs::write(&bad, "scenario: 1\nname: x\nstpes: []\n").unwrap();
    let bad = bad.to_str().unwrap();
    run(&["scenario", "check", bad]).refused(2, &["bad.yaml:3:", "stpes"]);
    let ran = run(&["scenario", "run", bad]);
    assert_eq!(ran.code, 2, "{ran:#?}");
    run(&[
        "scenario",
        "run",
        folder.path().join("none.yaml").to_str().unwrap(),
    ])
    .refused(2, &["none.yaml: cannot be read"]);
}

// spec: SCEN-13
#[test]
fn the_examples_do_what_they_say() {
    let example = |name: &str| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        folder.join(name).display().to_string()
    };
    let played = run(&["scenario", "run", &example("scenarios/server-dies.yaml")]).ok();
    assert_eq!(played.stdout, "ok a channel outlives a server\n");
    // Settings without a fault: it serves, though its Manager is not there.
    let folder = temp();
    let settings = folder.path().join("settings.yaml");
    let text = std::fs::read_to_string(example("control/settings.yaml")).unwrap();
    let nowhere = text.replace("127.0.0.1:6789", "127.0.0.1:1");
    assert_ne!(nowhere, text);
    std::fs::write(&settings, nowhere).unwrap();
    let mut control = crate::harness::greenroom();
    control.args(["control", "--json", "--listen", "127.0.0.1:0", "-c"]);
    let mut control = crate::harness::Daemon::spawn(control.arg(&settings));
    control.line();
    control.signal(rustix::process::Signal::INT);
    control.ended().ok();
}

#[test]
fn schemas_are_printed_and_refuse_unknown_keys() {
    for (name, key) in [
        ("manifest", "bundleId"),
        ("bundle", "bundleId"),
        ("settings", "placementPools"),
        ("scenario", "steps"),
    ] {
        let schema = run(&["schema", name]).ok().json();
        assert_eq!(schema["additionalProperties"], false, "{name}");
        assert!(schema["properties"][key].is_object(), "{name}");
        assert!(schema["$schema"].is_string(), "{name}");
    }
    assert_eq!(run(&["schema", "cheese"]).code, 2);
}

/// A log that goes to a pipe is plain text, whatever the environment says of the terminal.
#[test]
fn a_log_that_is_piped_has_no_colours() {
    let folder = temp();
    let mut control = crate::harness::greenroom();
    let file = folder.path().join("settings.yaml");
    std::fs::write(&file, "url: 127.0.0.1:1\n").unwrap();
    control
        .args(["control", "--json", "--listen", "127.0.0.1:0", "-c"])
        .arg(&file);
    control
        .env("TERM", "xterm-256color")
        .env("CLICOLOR_FORCE", "1");
    let mut control = crate::harness::Daemon::spawn(&mut control);
    control.line();
    control.until_said("this control plane does not act");
    control.signal(rustix::process::Signal::INT);
    let ran = control.ended().ok();
    assert!(!ran.stderr.contains('\u{1b}'), "{ran:#?}");
}

#[test]
fn every_verb_explains_itself_and_its_arguments() {
    let help = run(&["--help"]).ok().stdout;
    let commands = help.split("Commands:").nth(1).expect("commands");
    let verbs: Vec<&str> = commands
        .lines()
        .take_while(|line| !line.starts_with("Options"))
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(verbs.len() > 25, "{verbs:?}");
    for verb in verbs {
        let told = run(&["help", verb]).ok().stdout;
        let words = told.lines().next().unwrap_or_default();
        assert!(words.len() > 15 && words.contains(' '), "{verb}: {told}");
        assert!(!told.contains("[default: ]"), "{verb}: {told}");
    }
    for wrong in [
        &["nix"][..],
        &["get"],
        &["get", "cheese"],
        &["up", "--workers", "0"],
    ] {
        let ran = run(wrong);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (2, ""),
            "{wrong:?}: {ran:#?}"
        );
    }
}
