//! The control plane as a program of its own, and its settings.

use rustix::process::Signal;

use crate::harness::{Daemon, Up, greenroom, run, sleeping, temp};

const FAULTY: &str = "\
url: 127.0.0.1:1
maxRestartPerHour: 3
placementPools:
  - name: live
    tiers:
      - {name: own, kind: local-servers, scaleOut: fixed}
      - name: own
        kind: aws
        scaleOut: elastic
        candidateInstanceTypes: [{instanceType: c.large, totalCapacity: 4, totalCores: 4}]
hotSpares:
  - {pool: lvie, targetCount: 0, spec: {instanceType: c.large}}
nodeServices:
  - serviceId: probe
    pools: [live]
    lifecycle: lazy
    jobSpec: {jobName: probe}
";

// spec: HARD-113, CONF-01
#[test]
fn all_faults_of_the_settings_are_told_at_their_places() {
    let folder = temp();
    let file = folder.path().join("settings.yaml");
    std::fs::write(&file, FAULTY).unwrap();
    let name = file.to_str().unwrap();
    let ran = run(&["control", "-c", name, "--listen", "127.0.0.1:0"]);
    let ran = ran.refused(2, &["greenroom: "]);
    let text = ran.stderr.trim_start_matches("greenroom: ");
    let mut lines: Vec<&str> = text.lines().collect();
    let mut at = |place: &str, code: &str| {
        let wanted = format!("{name}:{place}: ");
        let found = lines
            .iter()
            .position(|line| line.starts_with(&wanted) && line.ends_with(&format!("({code})")));
        match found {
            Some(found) => drop(lines.remove(found)),
            None => panic!("no {code} at {place} in {text}"),
        }
    };
    let line = |told: &str| -> u64 {
        let rest = told.trim_start_matches(name).trim_start_matches(':');
        rest.split(':').next().unwrap().parse().expect(told)
    };
    let order: Vec<u64> = text.lines().map(line).collect();
    assert!(order.is_sorted(), "{text}");
    at("2:1: maxRestartPerHour", "unknownKey");
    at("7:9: placementPools[0].tiers[1].name", "duplicateTier");
    at("7:9: placementPools[0].tiers[1].region", "regionMissing");
    at("12:6: hotSpares[0].pool", "unknownHotSparePool");
    at("13:1: nodeServices", "experimentalNotEnabled");
    at("16:5: nodeServices[0].lifecycle", "unsupportedLifecycle");
    assert!(lines.is_empty(), "{lines:?}");
    let up = Up::command(folder.path(), &["--settings", name]);
    let mut args: Vec<_> = up.get_args().collect();
    args.dedup();
    let ran = crate::harness::finish(greenroom().args(args));
    ran.refused(2, &["duplicateTier", "unknownHotSparePool"]);
    assert!(!folder.path().join("data").exists());
}

#[test]
fn settings_that_are_none_are_refused() {
    let folder = temp();
    let file = folder.path().join("settings.yaml");
    let name = file.to_str().unwrap();
    let cases: [(&[u8], &str); 7] = [
        (b"", "holds 0"),
        (b"- 1\n", "keys with values"),
        (b"hello\n", "keys with values"),
        (b"url: 127.0.0.1:1\n---\nurl: 127.0.0.1:1\n", "holds 2"),
        (b"url: [\n", "settings.yaml:"),
        (b"pendingWindow: 60\n", "url"),
        (b"url: \xff\n", "settings.yaml:1:6: it is not UTF-8"),
    ];
    for (text, words) in cases {
        std::fs::write(&file, text).unwrap();
        run(&["control", "-c", name]).refused(2, &[words]);
    }
    // All faults are told, whatever stands ahead of them, and nothing is connected.
    let faulty = "url: 'a b:99999'\npendingWindow: .nan\nmaxRestartsPerHour: -3\n\
        prefetchParallelNodes: .inf\nremoveStoppedNodesAfter: 0\n";
    std::fs::write(&file, faulty).unwrap();
    let lines = [
        "settings.yaml:1:1: url: ",
        "settings.yaml:2:1: pendingWindow: ",
        "settings.yaml:3:1: maxRestartsPerHour: ",
        "settings.yaml:4:1: prefetchParallelNodes: ",
        "settings.yaml:5:1: removeStoppedNodesAfter: ",
    ];
    run(&["control", "-c", name]).refused(2, &lines);
    // An address from elsewhere hides no fault of the one in the file.
    std::fs::write(&file, "url: 7\n").unwrap();
    let elsewhere = ["control", "-c", name, "--manager", "127.0.0.1:1"];
    run(&elsewhere).refused(2, &["settings.yaml:1:1: url: "]);
    // What is told of a value of any length can be read.
    let long = "y".repeat(1_000_000);
    let text = format!("url: a:1\nhotSpares: [{{pool: {long}}}]\n");
    std::fs::write(&file, text).unwrap();
    let ran = run(&["control", "-c", name]);
    let ran = ran.refused(2, &["letters left out", "(unknownHotSparePool)"]);
    assert!(ran.stderr.len() < 5_000, "{}", ran.stderr.len());
    run(&["control", "-c", "nowhere.yaml"]).refused(2, &["nowhere.yaml: cannot be read"]);
}

// spec: ACTIVE-06
#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_of_its_own_places_jobs() {
    let folder = temp();
    let mut manager = greenroom();
    manager.args(["manager", "--json", "--listen", "127.0.0.1:0", "--data-dir"]);
    manager.arg(folder.path().join("store"));
    let mut manager = Daemon::spawn(&mut manager);
    let address = manager.line()["address"].as_str().unwrap().to_owned();
    let url = format!("http://{address}");
    let token = folder.path().join("token");
    let token = token.to_str().unwrap();
    let register = [
        "node", "register", "studio", "--pool", "live", "--out", token,
    ];
    let nowhere = ["--control", "http://127.0.0.1:1"];
    run(&[&register[..], &["--manager", &url], &nowhere].concat()).ok();
    let mut worker = greenroom();
    worker.args([
        "worker",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--leave",
        "--runtime",
        "process",
    ]);
    worker.args(["--manager-url", &url, "--token-file", token, "--state-dir"]);
    worker.arg(folder.path().join("state"));
    let mut worker = Daemon::spawn(&mut worker);
    worker.line();

    let settings = folder.path().join("settings.yaml");
    std::fs::write(
        &settings,
        "placementPools:\n  - name: live\n    tiers:\n      - {name: own, kind: local-servers, scaleOut: fixed}\n",
    )
    .unwrap();
    // Whoever runs this test may have it ignored.
    let plain = greenroom();
    let mut control = std::process::Command::new("env");
    for (name, _) in plain.get_envs() {
        control.env_remove(name);
    }
    control.arg("--default-signal=HUP").arg(plain.get_program());
    control.args([
        "control",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--manager",
        &address,
        "-c",
    ]);
    control.arg(&settings);
    let mut control = Daemon::spawn(&mut control);
    let control_url = format!("http://{}", control.line()["address"].as_str().unwrap());

    let bundle = folder.path().join("tale.yaml");
    std::fs::write(
        &bundle,
        sleeping("tale", &["a"]).replace("pool: local", "pool: live"),
    )
    .unwrap();
    let mut apply = greenroom();
    apply
        .args([
            "apply",
            "--skip-validation",
            "--wait",
            "--manager",
            &url,
            "-f",
        ])
        .arg(&bundle);
    crate::harness::finish(&mut apply)
        .ok()
        .says(&["1/1 running: tale.0.a on studio"]);
    let why = run(&["why", "tale.0.a", "--control", &control_url])
        .ok()
        .stdout;
    assert!(why.contains("studio"), "{why}");
    let status = ["control", "status", "--control", &control_url];
    let told = run(&status).ok().stdout;
    assert_eq!(told.trim(), "active, live, turn 1");
    let told = run(&[&status[..], &["--json"]].concat()).ok().json();
    assert_eq!(
        told["seat"],
        serde_json::json!({"role": "active", "turn": 1})
    );
    // What is in a pool that the settings lack is told, once.
    for (id, words) in [("older", "bundle older"), ("oldest", "bundle oldest")] {
        std::fs::write(
            &bundle,
            sleeping(id, &["a"]).replace("pool: local", &format!("pool: of-{id}")),
        )
        .unwrap();
        for job in ["a", "b"] {
            let text = std::fs::read_to_string(&bundle).unwrap();
            std::fs::write(
                &bundle,
                text.replace("jobName: a", &format!("jobName: {job}")),
            )
            .unwrap();
            let file = bundle.to_str().unwrap();
            run(&["apply", "--skip-validation", "--manager", &url, "-f", file]).ok();
        }
        control.until_said(words);
    }
    let said = control.said();
    let told = said.matches("is in pool \"of-older\", which the settings do not have");
    assert_eq!(told.count(), 1, "{said}");
    // A terminal that is closed ends it in order: nobody has to wait for its seat.
    control.signal(Signal::HUP);
    control.ended().ok();
    let seat = r#"{"namespace":"control-plane","key":"active"}"#;
    let seat = run(&["ctl", "KvGet", "--json", seat, "--manager", &url]);
    assert!(seat.ok().json()["entry"].is_null());
    worker.signal(Signal::INT);
    worker.ended().ok();
    manager.signal(Signal::INT);
    manager.ended().ok();
    crate::harness::sweep(folder.path());
}

#[test]
fn the_workers_of_up_serve_in_a_pool_of_the_settings() {
    let folder = temp();
    let settings = |name: &str, kind: &str| {
        let path = folder.path().join(format!("{name}.yaml"));
        let tier = format!("{{name: t, kind: {kind}}}");
        std::fs::write(
            &path,
            format!("placementPools: [{{name: {name}, tiers: [{tier}]}}]\n"),
        )
        .unwrap();
        path.display().to_string()
    };
    let own = "local-servers, scaleOut: fixed";
    let runs_in = |pool: &str| {
        let up = Up::start(
            &folder,
            &["--workers", "1", "--settings", &settings(pool, own)],
        );
        let text = sleeping(pool, &["j"]).replace("pool: local", &format!("pool: {pool}"));
        up.file("bundle.yaml", text);
        let file = folder.path().join("bundle.yaml");
        up.run(&["apply", "-f", file.to_str().unwrap(), "--wait"])
            .ok();
        up.run(&["delete", pool]).ok();
        up.end();
    };
    runs_in("studio");
    // The same worker under other settings.
    runs_in("annex");
    let elastic = "aws, region: eu-west-1, scaleOut: elastic, \
                   candidateInstanceTypes: [{instanceType: c.large, totalCapacity: 4, totalCores: 4}]";
    let cloud = settings("cloud", elastic);
    let mut up = Up::command(folder.path(), &["--settings", &cloud]);
    crate::harness::finish(&mut up).refused(2, &["no pool with a tier of kind local-servers"]);
}
