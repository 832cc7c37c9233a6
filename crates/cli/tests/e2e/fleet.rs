//! `greenroom discovery`, `reload`, `control announce` and `manager --check` against files and a
//! Manager.

use rustix::process::Signal;

use crate::harness::{Daemon, finish, greenroom, run, temp};

const OVERRIDES: &str = "GREENROOM_MANAGER_OVERRIDES_FILE";

// spec: DISC-03, DISC-04
#[test]
fn secrets_are_shown_to_who_asks_for_them_alone() {
    let folder = temp();
    let file = folder.path().join("overrides.json");
    let mut manager = greenroom();
    manager.args(["manager", "--json", "--listen", "127.0.0.1:0", "--data-dir"]);
    manager
        .arg(folder.path().join("store"))
        .env(OVERRIDES, &file);
    let mut manager = Daemon::spawn(&mut manager);
    let url = format!("http://{}", manager.line()["address"].as_str().unwrap());
    let tool = |args: &[&str]| run(&[args, &["--manager", &url]].concat());

    let none = tool(&["discovery", "get"]).ok();
    assert!(
        none.stdout.contains("no discovery fleet"),
        "{}",
        none.stdout
    );
    tool(&["discovery", "rotate", "stage"]).refused(1, &["no_fleet"]);
    tool(&["discovery", "publish", "nowhere"]).refused(2, &["bad_address"]);
    let leaf = folder.path().join("leaf");
    std::fs::write(&leaf, "leaf-hunter2\n").unwrap();
    let leaf = leaf.display().to_string();
    let published = tool(&[
        "discovery",
        "publish",
        "a:1",
        "b:2",
        "--leaf-token-file",
        &leaf,
        "--json",
    ]);
    let published = published.ok().json();
    assert_eq!(published["leafToken"], "***");
    assert_eq!(published["addresses"], serde_json::json!(["a:1", "b:2"]));
    let shown = tool(&["discovery", "get", "--show-secrets", "--json"])
        .ok()
        .json();
    assert_eq!(shown["leafToken"], "leaf-hunter2");
    let made = shown["tierSecret"].as_str().unwrap().to_owned();
    assert_eq!(made.len(), 64);
    // Who moves a server need not know a secret.
    let moved = tool(&["discovery", "publish", "c:3", "--json"]).ok().json();
    assert_eq!(moved["secretsKept"], false);
    for step in ["stage", "flip", "finish"] {
        let text = tool(&["discovery", "rotate", step]).ok().stdout;
        assert!(!text.contains(&made) && text.contains("***"), "{text}");
    }
    let rotated = tool(&["discovery", "get", "--show-secrets", "--json"])
        .ok()
        .json();
    assert_ne!(rotated["tierSecret"], made.as_str());
    assert_eq!(rotated["rotationPhase"], "");

    assert!(tool(&["reload"]).ok().stdout.contains("nothing changed"));
    std::fs::write(&file, "{\"local\": {\"zone\": 1}}").unwrap();
    let told = tool(&["reload"]);
    told.refused(
        2,
        &[
            "overrides.json:1:12: local.zone: unknown key",
            "bad_overrides",
        ],
    );
    let status = tool(&["reload", "--status"]).ok().stdout;
    assert!(status.starts_with("none"), "{status}");

    let planes = tool(&[
        "control",
        "announce",
        "https://control:7000",
        "--every",
        "10",
        "--json",
    ]);
    assert_eq!(planes.ok().json()[0]["intervalMs"], 10_000);
    tool(&["control", "announce", "control:7000"]).refused(2, &["bad_url"]);
    let gone = tool(&["control", "announce", "--withdraw"]).ok().stdout;
    assert!(gone.contains("no control plane"), "{gone}");
    manager.signal(Signal::INT);
    manager.ended().ok();
}

// spec: API-20
#[test]
fn a_check_tells_every_fault_of_settings_and_overrides_and_makes_nothing() {
    let folder = temp();
    let (settings, overrides) = (folder.path().join("m.yaml"), folder.path().join("o.json"));
    let check = || {
        let mut command = greenroom();
        command.arg("manager").arg("--check").arg(&settings);
        finish(command.env(OVERRIDES, &overrides))
    };
    std::fs::write(
        &settings,
        "dataDir: store\nlisten:\n  - address: 127.0.0.1:6789\n",
    )
    .unwrap();
    check().ok();
    std::fs::write(&overrides, "{}").unwrap();
    assert!(check().ok().stdout.contains("o.json"));

    let text = "dataDir: store\nmember: {nmae: a}\nlisten:\n  - {address: here, auth: maybe}\n";
    std::fs::write(&settings, text).unwrap();
    let text = "{\n  \"aws\": {\"zones\": [], \"instanceTypes\": {\"a\": -1}},\n  \"gcp\": {}\n}";
    std::fs::write(&overrides, text).unwrap();
    check().refused(
        2,
        &[
            "m.yaml:2:",
            "member.nmae: unknown key",
            "m.yaml:4:",
            "listen[0].address: ",
            "listen[0].auth: ",
            "o.json:2:11: aws.zones: unknown key",
            "o.json:2:47: aws.instanceTypes.a: ",
            "o.json:3:3: gcp: unknown key",
        ],
    );
    // A fault of what the settings mean, and one of form in the overrides.
    std::fs::write(
        &settings,
        "dataDir: store\nlisten:\n  - address: 0.0.0.0:6789\n",
    )
    .unwrap();
    std::fs::write(&overrides, "{\"aws\": {},}").unwrap();
    check().refused(2, &["without TLS", "o.json:1:12: a comma stands behind"]);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
