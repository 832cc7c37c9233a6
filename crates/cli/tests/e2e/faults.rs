//! What can be in the way, and what is said about it: exit codes and messages of the operating
//! reference.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;

use crate::harness::{Daemon, Ran, Up, finish, greenroom, processes_on, run, sleeping, temp};

fn manager(folder: &Path, listen: &str, more: &[&str]) -> std::process::Command {
    let mut command = greenroom();
    command.args(["manager", "--json", "--listen", listen, "--data-dir"]);
    command.arg(folder).args(more);
    command
}

/// Runs a Manager on a folder until it serves, and ends it.
fn serve_once(folder: &Path, more: &[&str]) {
    let mut daemon = Daemon::spawn(&mut manager(folder, "127.0.0.1:0", more));
    assert_eq!(daemon.line()["event"], "listening");
    daemon.signal(Signal::TERM);
    daemon.ended().ok();
}

// spec: API-01
#[test]
fn a_taken_address_is_code_3_and_nothing_is_made() {
    let folder = temp();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let data = folder.path().join("data");
    let words = [
        address.as_str(),
        "Address already in use",
        "another address",
    ];
    finish(&mut manager(&data, &address, &[])).refused(3, &words);
    for key in ["--listen", "--control-listen"] {
        let mut up = Up::command(folder.path(), &[]);
        // The last of two wins nothing: each may be given once.
        let mut args: Vec<_> = up.get_args().map(|arg| arg.to_owned()).collect();
        let at = args.iter().position(|arg| arg == key).unwrap();
        args[at + 1] = address.clone().into();
        up = greenroom();
        finish(up.args(args)).refused(3, &words);
    }
    assert!(!data.exists());
    // With both taken, both flags are told at once.
    let mut up = Up::command(folder.path(), &[]);
    let args: Vec<_> = up.get_args().map(|arg| arg.to_owned()).collect();
    let both = args.iter().map(|arg| match arg.to_str() {
        Some("127.0.0.1:0") => address.clone().into(),
        _ => arg.clone(),
    });
    up = greenroom();
    let words = [
        &format!("cannot serve the Manager at {address}"),
        "another address with --listen",
        &format!("cannot serve the control plane at {address}"),
        "another address with --control-listen",
    ];
    finish(up.args(both)).refused(3, &words);
    assert_eq!(processes_on(folder.path()), []);
}

#[test]
fn mixed_up_addresses_are_told_as_such() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let manager = up.told["manager"].as_str().unwrap();
    let control = up.told["control"].as_str().unwrap();
    let to_manager: [&[&str]; 4] = [
        &["get", "jobs"],
        &["logs", "x"],
        &["delete", "x"],
        &["ctl", "ListNodes"],
    ];
    for args in to_manager {
        let words = [control, "what answers there is no Manager", "--control"];
        up.run(&[args, &["--manager", control]].concat())
            .refused(1, &words);
    }
    let to_control: [&[&str]; 3] = [&["why", "x"], &["pending"], &["cordon", "x"]];
    for args in to_control {
        let words = ["what answers there is no control plane", "--manager"];
        up.run(&[args, &["--control", manager]].concat())
            .refused(1, &words);
    }
    up.end();
}

#[test]
fn of_two_starts_at_the_same_moment_one_is_told_of_the_other() {
    let folder = temp();
    let start = || Daemon::spawn(&mut Up::command(folder.path(), &["--workers", "1"]));
    let mut both = [start(), start()];
    let first = both.iter_mut().map(Daemon::line).collect::<Vec<_>>();
    let is_up = |told: &serde_json::Value| told["event"] == "up";
    let up = first.iter().position(is_up).expect("one of them is up");
    let id = both[up].id();
    // Before the one has told who it is, the other knows only that somebody starts there.
    let running = format!("running already: process {id}");
    let error = &first[1 - up]["error"];
    assert_eq!(error["reason"], "running_already", "{first:?}");
    let ran = both[1 - up].ended();
    assert_eq!(ran.code, 3, "{ran:#?}");
    let starting = "is being started by another process";
    let is_told = ran.stderr.contains(&running) || ran.stderr.contains(starting);
    assert!(is_told, "{ran:#?}");
    both[up].signal(Signal::INT);
    both[up].ended().ok();
}

#[test]
fn a_folder_in_use_is_code_4() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let data = folder.path().join("data");
    let words = ["in use by process"];
    finish(&mut manager(&data.join("manager"), "127.0.0.1:0", &[])).refused(4, &words);
    // A whole second installation is told which one runs, how to reach and how to stop it.
    let second = finish(&mut Up::command(folder.path(), &["--workers", "1"]));
    let since = format!("running already: process {}, since 20", up.daemon.id());
    let stop = format!("kill -INT {}", up.daemon.id());
    let manager = up.told["manager"].as_str().unwrap();
    let control = up.told["control"].as_str().unwrap();
    second.refused(3, &[&since, &stop, manager, control]);
    let state = data.join("worker-1");
    let state = state.to_str().unwrap();
    run(&["worker", "--listen", "127.0.0.1:0", "--state-dir", state])
        .refused(4, &["another worker runs on", state]);
    // The first is none the worse for it.
    up.file("tale.yaml", sleeping("tale", &["a"]));
    up.run(&["apply", "-f", "tale.yaml", "--wait"]).ok();
    up.end();
}

// spec: STORE-08
#[test]
fn a_folder_of_other_files_is_code_7_unless_a_store_is_asked_for() {
    let folder = temp();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("holiday.jpg"), "x").unwrap();
    finish(&mut manager(&data, "127.0.0.1:0", &[])).refused(7, &["holds no store", "--create"]);
    let files = std::fs::read_dir(&data).unwrap();
    assert!(files.count() <= 2, "at most a lock is added");
    serve_once(&data, &["--create"]);
    serve_once(&data, &[]);
    assert!(data.join("holiday.jpg").exists());
}

#[test]
fn a_damaged_store_without_a_backup_is_code_8_and_stays_as_it_is() {
    let folder = temp();
    let data = folder.path().join("data");
    serve_once(&data, &[]);
    let garbage = vec![b'x'; 64 * 1024];
    for file in ["log.db", "state.db"] {
        std::fs::write(data.join(file), &garbage).unwrap();
        for rest in ["wal", "shm"] {
            let _ = std::fs::remove_file(data.join(format!("{file}-{rest}")));
        }
    }
    assert!(
        !data.join("backups").exists()
            || std::fs::read_dir(data.join("backups")).unwrap().count() == 0
    );
    let folder_name = data.to_str().unwrap().to_owned();
    finish(&mut manager(&data, "127.0.0.1:0", &[])).refused(8, &[&folder_name, "backup"]);
    for file in ["log.db", "state.db"] {
        assert_eq!(std::fs::read(data.join(file)).unwrap(), garbage, "{file}");
    }
}

#[test]
fn addresses_beyond_this_machine_are_refused() {
    let folder = temp();
    let data = folder.path().join("data");
    let words = ["0.0.0.0:0", "no loopback address", "127.0.0.1"];
    finish(&mut manager(&data, "0.0.0.0:0", &[])).refused(2, &words);
    for key in ["--listen", "--control-listen"] {
        let mut args: Vec<_> = Up::command(folder.path(), &[])
            .get_args()
            .map(|arg| arg.to_owned())
            .collect();
        let at = args.iter().position(|arg| arg == key).unwrap();
        args[at + 1] = "0.0.0.0:0".into();
        finish(greenroom().args(args)).refused(2, &words);
    }
    std::fs::write(folder.path().join("settings.yaml"), "url: 127.0.0.1:1\n").unwrap();
    let settings = folder.path().join("settings.yaml");
    let settings = settings.to_str().unwrap();
    run(&["control", "-c", settings, "--listen", "0.0.0.0:0"]).refused(2, &words);
    assert!(!data.exists());
}

#[test]
fn who_is_not_there_is_told_with_what_to_do() {
    // A port that was just given up: nobody listens there.
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("http://{gone}");
    let to_manager: [&[&str]; 6] = [
        &["get", "jobs"],
        &["describe", "job", "x"],
        &["events"],
        &["logs", "x"],
        &["delete", "x"],
        &["node", "register", "x"],
    ];
    let words = [
        "cannot reach the Manager at ",
        &url,
        "Connection refused",
        "hint: ",
        "greenroom up",
    ];
    for args in to_manager {
        run(&[args, &["--manager", &url]].concat()).refused(1, &words);
    }
    let folder = temp();
    let file = folder.path().join("x.yaml");
    std::fs::write(&file, sleeping("x", &["a"])).unwrap();
    let file = file.to_str().unwrap();
    let to_control: [&[&str]; 14] = [
        &["why", "x"],
        &["place", "--dry-run", "-f", file],
        &["validate", "-f", file],
        &["apply", "-f", file],
        &["admit", "-f", file],
        &["placements"],
        &["pending"],
        &["metrics"],
        &["cordon", "x"],
        &["drain", "x"],
        &["migrate", "x"],
        &["abort-migration", "x"],
        &["spares", "list"],
        &["templates", "set", "x"],
    ];
    let address = gone.to_string();
    let words = [
        "cannot reach the control plane at ",
        &address,
        "Connection refused",
        "hint: ",
    ];
    for args in to_control {
        run(&[args, &["--control", &url]].concat()).refused(1, &words);
    }
    run(&["get", "jobs", "--manager", "bogus"])
        .refused(2, &["--manager", "bogus", "http://HOST:PORT"]);
}

/// Takes what it is asked and goes away.
fn hangs_up() -> String {
    use std::io::Read;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut head = [0; 1];
            let _ = stream.read_exact(&mut head);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    format!("http://{address}")
}

#[test]
fn who_goes_away_under_an_order_is_told_as_not_known() {
    let url = hangs_up();
    for (args, known) in [
        (&["migrate", "x"][..], false),
        (&["templates", "set", "x", "y"], false),
        (&["cordon", "x", "y"], false),
        (&["pending"], true),
        (&["metrics"], true),
    ] {
        let told = run(&[args, &["--control", &url]].concat());
        let words: &[&str] = if known {
            &["went away before it had answered: ", "hint: ask again"]
        } else {
            &[
                "whether it was done is not known",
                "hint: see how it stands",
            ]
        };
        told.refused(1, words);
    }
}

#[test]
fn names_of_nothing_are_told_with_where_to_look() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let cases: [(&[&str], &str); 14] = [
        (&["describe", "bundle", "nix"], "get bundles"),
        (&["describe", "job", "nix"], "get jobs"),
        (&["describe", "node", "nix"], "get nodes"),
        (&["delete", "nix"], "get bundles"),
        (&["delete", "nix", "--wait"], "get bundles"),
        (&["logs", "nix"], "get jobs"),
        (&["why", "nix"], "get jobs"),
        (&["node", "deregister", "nix"], "get nodes"),
        (&["cordon", "nix"], "get nodes"),
        (&["uncordon", "nix"], "get nodes"),
        (&["evict", "nix"], "get nodes"),
        (&["terminate", "nix"], "get nodes"),
        (&["drain", "nix"], "get nodes"),
        (&["migrate", "nix"], "get jobs"),
    ];
    for (args, where_to_look) in cases {
        up.run(args).refused(1, &["nix", where_to_look]);
        let ran = up.run(&[args, &["--json"]].concat());
        let error = &ran.json()["error"];
        let reason = error["reason"].as_str().unwrap();
        assert!(reason.starts_with("unknown_"), "{args:?}: {error}");
        assert!(
            error["hint"].as_str().unwrap().contains(where_to_look),
            "{error}"
        );
    }
    up.end();
}

#[test]
fn a_reader_that_goes_away_is_no_fault_to_speak_of() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let lists: [&[&str]; 5] = [
        &["get", "jobs"],
        &["get", "nodes", "--json"],
        &["describe", "node", "worker-1"],
        &["events"],
        &["metrics"],
    ];
    for args in lists {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran: Ran = finish_to(up.tool(args), writer.into());
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
    }
    let alone: [&[&str]; 3] = [
        &["schema", "manifest"],
        &["ctl", "list"],
        &["schema", "settings"],
    ];
    for args in alone {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = greenroom();
        command.args(args);
        let ran = finish_to(command, writer.into());
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
    }
    up.end();
    // One that starts something ends it again.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ran = finish_to(
        Up::command(folder.path(), &["--workers", "1"]),
        writer.into(),
    );
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(!ran.stderr.contains("panicked"), "{ran:#?}");
    assert_eq!(processes_on(folder.path()), []);
}

// spec: SCEN-11
#[test]
fn what_a_scenario_shows_is_found_also_where_nobody_reads_it() {
    let folder = temp();
    let file = |name: &str, steps: &str| {
        let path = folder.path().join(name);
        let settings = "settings: {placementPools: [{name: p, tiers: [{name: t, kind: local-servers, scaleOut: fixed}]}]}";
        let text = format!("scenario: 1\nname: {name}\n{settings}\nsteps: [{steps}]\n");
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let good = file("good.yaml", "{expect: {invariants: ok}}");
    let wrong = file("wrong.yaml", "{expect: {nodeCount: {n: 7}}}");
    let unreadable = file("unreadable.yaml", "{expct: 1}");
    for (args, code) in [
        (["run", &good, &good], 0),
        (["run", &wrong, &good], 1),
        (["run", &good, &wrong], 1),
        (["run", &good, &unreadable], 2),
        (["check", &good, &unreadable], 2),
        (["check", &good, &wrong], 0),
    ] {
        for json in [&[][..], &["--json"]] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = greenroom();
            command.arg("scenario").args(args).args(json);
            let ran = finish_to(command, writer.into());
            assert_eq!(ran.code, code, "{args:?} {json:?}: {ran:#?}");
        }
    }
}

fn finish_to(mut command: std::process::Command, stdout: Stdio) -> Ran {
    let child = command
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command holds the writing end as well.
    drop(command);
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::new(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_worker_needs_a_token_that_is_one() {
    let folder = temp();
    let state = folder.path().join("state");
    let state = state.to_str().unwrap();
    let worker = [
        "worker",
        "--listen",
        "127.0.0.1:0",
        "--runtime",
        "process",
        "--state-dir",
        state,
    ];
    run(&worker).refused(2, &["no token", "hint: ", "node register", "--token-file"]);
    let token = folder.path().join("token");
    let with_token = [&worker[..], &["--token-file", token.to_str().unwrap()]].concat();
    run(&with_token).refused(2, &["cannot read", "token"]);
    std::fs::write(&token, "grt_not-a-token\n").unwrap();
    run(&with_token).refused(2, &[token.to_str().unwrap(), "token"]);
    run(&[&worker[..], &["--listen", "0.0.0.0:0"]].concat()).refused(2, &["--listen"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_token_is_refused_once_in_words_and_asked_again() {
    let folder = temp();
    let up = Up::start(&folder, &["--workers", "1"]);
    let register = ["node", "register", "studio", "--out", "token", "--json"];
    assert_eq!(up.run(&register).ok().json()["nodeId"], "studio");
    up.run(&["node", "register", "studio"])
        .refused(1, &["slot", "studio", "already"]);
    let mut watch = up.watch().await;
    let worker = |state: &str| {
        let mut command = up.tool(&["worker", "--json", "--listen", "127.0.0.1:0", "--leave"]);
        command.args([
            "--runtime",
            "process",
            "--token-file",
            "token",
            "--state-dir",
            state,
        ]);
        Daemon::spawn(&mut command)
    };
    let mut first = worker("first");
    assert_eq!(first.line()["event"], "listening");
    watch
        .until_node("studio", greenroom_sdk::types::node::NodeState::Running)
        .await;

    let mut second = worker("second");
    second.line();
    let refused = "the token opens no slot";
    second.until_said(refused);
    assert!(second.is_running());
    second.signal(Signal::TERM);
    let said = second.ended().ok().stderr;
    assert_eq!(said.matches(refused).count(), 1, "{said}");

    // Its slot is given up while its worker runs: the worker asks on, and a new token makes it new.
    let removed = up
        .run(&["node", "deregister", "studio", "--json"])
        .ok()
        .json();
    assert_eq!(
        removed,
        serde_json::json!({"nodeId": "studio", "stopped": []})
    );
    first.signal(Signal::TERM);
    first.ended().ok();
    up.end();
}

#[test]
fn docker_that_is_asked_for_and_is_not_there_stops_the_start() {
    let folder = temp();
    let socket = folder.path().join("docker.sock");
    let mut up = Up::command(folder.path(), &["--workers", "1"]);
    let args: Vec<std::ffi::OsString> = up
        .get_args()
        .map(|arg| match arg.to_str() {
            Some("process") => "docker".into(),
            _ => arg.to_owned(),
        })
        .collect();
    up = greenroom();
    up.args(args)
        .env("DOCKER_HOST", format!("unix://{}", socket.display()));
    finish(&mut up).refused(
        1,
        &["worker-1 did not start", "Docker at unix://", "its log is "],
    );
    assert_eq!(processes_on(folder.path()), []);
}

// spec: MNODE-09
#[test]
fn waits_for_nodes_are_read_and_a_silence_of_less_than_three_messages_is_refused() {
    let folder = temp();
    let file = folder.path().join("manager.yaml");
    let name = file.to_str().unwrap();
    std::fs::write(&file, "nodes: {silenceMs: 3000, dropGraceMs: 500}\n").unwrap();
    run(&["manager", "--check", name]).ok();
    std::fs::write(&file, "nodes: {silenceMs: 2999}\n").unwrap();
    let words = ["nodes.silenceMs", "2999", "3000"];
    run(&["manager", "--check", name]).refused(2, &words);
}
