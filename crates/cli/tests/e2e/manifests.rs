//! Mistakes in manifests: each is told with its place, and nothing changes.

use crate::harness::{Ran, Up, sleeping, temp};

/// A pool of owned servers, to which one may be added any time, and one that can only be bought.
const SETTINGS: &str = "\
placementPools:
  - name: local
    tiers:
      - {name: own, kind: local-servers, scaleOut: fixed}
  - name: cloud
    tiers:
      - name: bought
        kind: aws
        region: eu-west-1
        scaleOut: elastic
        candidateInstanceTypes: [{instanceType: c.large, totalCapacity: 4, totalCores: 4}]
";

fn everything(up: &Up) -> [String; 2] {
    ["bundles", "jobs"].map(|kind| up.run(&["get", kind, "--json"]).ok().stdout)
}

#[test]
fn every_fault_is_told_with_its_place_and_changes_nothing() {
    let folder = temp();
    let settings = folder.path().join("settings.yaml");
    std::fs::write(&settings, SETTINGS).unwrap();
    let settings = settings.to_str().unwrap();
    let up = Up::start(&folder, &["--workers", "1", "--settings", settings]);
    up.file("good.yaml", sleeping("good", &["a"]));
    up.run(&["apply", "-f", "good.yaml", "--wait"]).ok();
    let before = everything(&up);

    let good = sleeping("other", &["a", "b"]);
    let change = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replace(from, to)
    };
    let first = |from: &str, to: &str| good.replacen(from, to, 1);
    let capacity = "requiredCapacity: 0.1";
    let port = "requiredCapacity: 0.1\n      requiredHostPorts: [7001/udp]";
    let apart = "  - jobName: b\n    coLocateWith: [a]";
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        (
            "malformed.yaml",
            b"bundleId: x\njobs: [\n".to_vec(),
            &["malformed.yaml:"],
        ),
        (
            "unknown-key.yaml",
            first("requirements:", "requirement:").into(),
            &[
                "unknown-key.yaml:5:5: jobs[0].requirement: ",
                "requirements",
            ],
        ),
        (
            "unit.yaml",
            first(capacity, "requiredCapacity: 2GB").into(),
            &["unit.yaml:6:25: jobs[0].requirements.requiredCapacity: "],
        ),
        (
            "clash.yaml",
            change(capacity, port)
                .replace("  - jobName: b", apart)
                .into(),
            &["clash.yaml:", "jobs[1]", "7001"],
        ),
        (
            "impossible.yaml",
            first(capacity, "requiredCapabilities: [{name: teleport}]")
                .replace("pool: local", "pool: cloud")
                .into(),
            &[
                "impossible.yaml:6:",
                "jobs[0].requirements.requiredCapabilities",
                "teleport",
            ],
        ),
        (
            "twice.yaml",
            format!("{good}---\n{good}").into(),
            &["twice.yaml:19:1: bundleId: ", "\"other\" stands twice"],
        ),
        (
            "empty.yaml",
            Vec::new(),
            &["empty.yaml: ", "there is no bundle in it"],
        ),
        (
            "latin1.yaml",
            b"bundleId: caf\xe9\n".to_vec(),
            &["latin1.yaml:1:14: ", "not UTF-8", "0xe9"],
        ),
        (
            "huge.yaml",
            vec![b'#'; 17 * 1024 * 1024],
            &["huge.yaml: ", "larger than 16 MiB"],
        ),
    ];
    let verbs: [&[&str]; 3] = [&["apply"], &["validate"], &["delete"]];
    for (name, text, words) in &cases {
        up.file(name, text);
        for verb in verbs {
            // What is impossible is no fault of form, and may be deleted.
            let of_needs = [
                "clash.yaml",
                "impossible.yaml",
                "negative.yaml",
                "apart.yaml",
            ]
            .contains(name);
            if of_needs && verb == ["delete"] {
                continue;
            }
            up.run(&[verb, &["-f", name]].concat()).refused(2, words);
        }
    }
    up.file("other.yaml", &good);
    up.file("copy.yaml", &good);
    up.run(&["apply", "-f", "other.yaml", "-f", "copy.yaml"])
        .refused(2, &["copy.yaml:1:1: bundleId: ", "first in other.yaml"]);
    up.run(&["apply", "-f", "nowhere.yaml"])
        .refused(2, &["nowhere.yaml: cannot be read: No such file"]);
    up.run(&["apply", "-f", "."])
        .refused(2, &[".: cannot be read: "]);

    // Where a server may be added yet, what none offers is no more than a warning.
    let wish = first(capacity, "requiredCapabilities: [{name: teleport}]");
    up.file("wish.yaml", &wish);
    let ran = up.run(&["validate", "-f", "wish.yaml"]).ok();
    ran.says(&[
        "warning: wish.yaml:6:",
        "teleport",
        "capabilityUnsatisfiable",
    ]);
    // It is not submitted unawares, though: nothing would run.
    let ran = up.run(&["apply", "-f", "wish.yaml"]).refused(
        2,
        &["wish.yaml:6:", "capabilityUnsatisfiable", "--allow-unmet"],
    );
    let times = ran.stderr.matches("teleport").count();
    assert_eq!(times, 1, "told once, and not as a warning too: {ran:#?}");
    // Nor does anything have a place for it, which has a code of its own; and words as `why` has.
    let ran = up.run(&["place", "--dry-run", "-f", "wish.yaml"]);
    assert_eq!(ran.code, 5, "{ran:#?}");
    assert!(
        ran.stdout.starts_with("Job other.0.a:\nNo place is found"),
        "{ran:#?}"
    );
    let ran = ran.says(&["no place now for other.0.a"]);
    assert!(!ran.stderr.contains("other.0.b"), "{ran:#?}");
    let ran = up.run(&["place", "--dry-run", "--json", "-f", "wish.yaml"]);
    assert_eq!(ran.code, 5, "{ran:#?}");
    let placed = ran.json_lines();
    assert_eq!(placed[0]["jobId"], "other.0.a");
    assert_eq!(placed[0]["decision"]["kind"], "failure");
    assert_eq!(placed[1]["decision"]["kind"], "place");
    let ran = up.run(&["admit", "-f", "wish.yaml"]);
    assert_eq!(ran.code, 5, "{ran:#?}");
    up.run(&["place", "--dry-run", "-f", "other.yaml"]).ok();
    // What no server could mend is a fault of the file, as elsewhere.
    up.file(
        "nowhere.yaml",
        sleeping("nowhere", &["a"]).replace("pool: local", "pool: nix"),
    );
    up.run(&["place", "--dry-run", "-f", "nowhere.yaml"])
        .refused(2, &["nowhere.yaml:2:", "unknownPool"]);

    // One bad file among good ones keeps all from being submitted, and all faults are told.
    let ran = up.run(&[
        "apply",
        "-f",
        "other.yaml",
        "-f",
        "unit.yaml",
        "-f",
        "latin1.yaml",
    ]);
    ran.refused(2, &["unit.yaml:6:25", "latin1.yaml:1:14"]);
    assert_eq!(everything(&up), before);
    up.end();
}

#[test]
fn faults_are_told_as_data_on_request() {
    let folder = temp();
    std::fs::write(
        folder.path().join("x.yaml"),
        "bundleId: x\npool: p\njobs: 3\n",
    )
    .unwrap();
    let file = folder.path().join("x.yaml");
    let file = file.to_str().unwrap();
    let ran: Ran = crate::harness::run(&["validate", "--offline", "--json", "-f", file]);
    assert_eq!(ran.code, 2, "{ran:#?}");
    let told = ran.json();
    assert_eq!(told["ok"], false);
    let fault = &told["errors"][0];
    assert_eq!(fault["file"], file);
    assert_eq!((&fault["line"], &fault["column"]), (&3.into(), &7.into()));
    assert_eq!(fault["path"], "jobs");
}

#[test]
fn a_manifest_may_come_from_stdin() {
    let folder = temp();
    let file = folder.path().join("x.yaml");
    std::fs::write(&file, sleeping("x", &["a"])).unwrap();
    let from = |path: &std::path::Path| {
        let stdin = std::fs::File::open(path).unwrap();
        crate::harness::finish(
            crate::harness::greenroom()
                .args(["validate", "--offline", "-f", "-"])
                .stdin(stdin),
        )
    };
    assert_eq!(from(&file).ok().stdout, "1 bundle is valid\n");
    std::fs::write(&file, "bundleId: [x]\n").unwrap();
    from(&file).refused(2, &["<stdin>:1:11: bundleId: "]);
}

/// What the README shows is what the product says.
#[test]
fn the_readme_shows_the_message_that_is_printed() {
    let folder = temp();
    let file = folder.path().join("channel.yaml");
    let lots =
        sleeping("news", &["encode"]).replace("requiredCapacity: 0.1", "requiredCapacity: lots");
    std::fs::write(&file, lots).unwrap();
    let ran = crate::harness::finish(
        crate::harness::greenroom()
            .args(["validate", "--offline", "-f", "channel.yaml"])
            .current_dir(folder.path()),
    );
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, example) = readme
        .split_once("$ greenroom validate -f channel.yaml\n")
        .unwrap();
    let shown = example.lines().next().unwrap().trim();
    ran.refused(2, &[shown]);
}
