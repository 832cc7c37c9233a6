//! Bundle manifests: one YAML document per bundle.

use std::collections::BTreeMap;

use greenroom_types::BundleId;
use greenroom_types::bundle::Bundle;

use crate::{Locations, Problem, read};

/// A bundle with the place it was read from.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// File, or `<stdin>`.
    pub file: String,
    /// Number of the document in the file, from 0.
    pub document: usize,
    /// The bundle.
    pub bundle: Bundle,
    locations: Locations,
}

// === impl Manifest ===

impl Manifest {
    /// A problem found at a key of this bundle, shown at its line.
    pub fn problem(&self, path: &str, message: impl Into<String>) -> Problem {
        Problem {
            file: self.file.clone(),
            position: self.locations.position(self.document, path),
            path: path.to_owned(),
            message: message.into(),
        }
    }
}

/// Reads the bundles of a file and checks what can be known from the text alone: everything that the
/// Manager would refuse whatever its state, and that no bundle stands twice. All faults are told, not
/// only the first.
///
/// # Errors
/// One problem per fault.
pub fn read_bundles(file: &str, text: &str) -> Result<Vec<Manifest>, Vec<Problem>> {
    let bundles: Vec<Bundle> = read(file, text).map_err(|problem| vec![problem])?;
    let locations = Locations::of(text).unwrap_or_default();
    let manifests: Vec<Manifest> = bundles
        .into_iter()
        .enumerate()
        .map(|(document, bundle)| Manifest {
            file: file.to_owned(),
            document,
            bundle,
            locations: locations.clone(),
        })
        .collect();
    let mut problems = Vec::new();
    if manifests.is_empty() {
        problems.push(Problem {
            file: file.to_owned(),
            position: None,
            path: String::new(),
            message: "there is no bundle in it; a bundle has bundleId, pool and jobs".to_owned(),
        });
    }
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for manifest in &manifests {
        check_form(manifest, &mut problems);
        let id = manifest.bundle.bundle_id.as_str();
        if let Some(first) = seen.insert(id, manifest.document)
            && !id.is_empty()
        {
            problems.push(manifest.problem(
                "bundleId",
                format!(
                    "bundle {id:?} stands twice in this file, first as document {}",
                    first + 1
                ),
            ));
        }
    }
    if problems.is_empty() {
        Ok(manifests)
    } else {
        Err(problems)
    }
}

fn check_form(manifest: &Manifest, problems: &mut Vec<Problem>) {
    let bundle = &manifest.bundle;
    if bundle.bundle_id.is_empty() {
        problems.push(manifest.problem("bundleId", "a manifest needs a bundleId"));
    } else if let Err(error) = bundle.bundle_id.as_str().parse::<BundleId>() {
        problems.push(manifest.problem("bundleId", error.to_string()));
    }
    for fault in greenroom_ledger::bundle_faults(bundle) {
        if fault.path != "bundleId" {
            problems.push(manifest.problem(&fault.path, fault.message));
        }
    }
}

#[cfg(test)]
mod tests {
    use greenroom_types::job::LeasePolicy;

    use super::*;

    fn faults(text: &str) -> Vec<String> {
        read_bundles("chan.yaml", text)
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn what_is_too_deep_or_repeats_itself_without_end_is_told_plainly_and_once() {
        let deep_json = format!("{}{}", "[".repeat(300), "]".repeat(300));
        let deep_yaml: String = (0..300)
            .map(|at| format!("{}a:\n", " ".repeat(at)))
            .collect();
        let bomb = {
            let nine = |name: &str| vec![format!("*{name}"); 9].join(",");
            let mut text = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
            for (name, of) in [("b", "a"), ("c", "b"), ("d", "c"), ("e", "d"), ("f", "e")] {
                text.push_str(&format!("{name}: &{name} [{}]\n", nine(of)));
            }
            text
        };
        for text in [deep_json, deep_yaml, bomb] {
            // With the stack of a program's main thread, which this thread of a test lacks.
            let reader = std::thread::Builder::new().stack_size(8 << 20);
            let read = reader.spawn(move || faults(&text).join("\n"));
            let told = read.unwrap().join().unwrap();
            assert!(told.starts_with("chan.yaml:"), "{told}");
            for words in [" at line ", "column", "unknown field", "one of `"] {
                assert!(!told.contains(words), "{words:?} is in {told}");
            }
            assert_eq!(told.lines().count(), 1, "{told}");
        }
    }

    #[test]
    fn an_unknown_key_names_line_and_key() {
        assert_eq!(
            faults("bundleId: a\npool: p\njobs:\n  - jobName: e\n    requirement: {}\n"),
            [
                "chan.yaml:5:5: jobs[0].requirement: unknown key \"requirement\"; did you mean requirements? known here: jobName, description, requirements, coLocateWith, separateFrom, exclusive, singleUse, startMode, startDateTime, handover, jobSocket, lease, tags, secretEnv, exportTags, provides, launch"
            ]
        );
    }

    #[test]
    fn a_wrong_unit_names_line_and_key() {
        let text = "bundleId: a\npool: p\njobs:\n  - jobName: e\n    requirements:\n      requiredCapacity: 2GB\n";
        assert_eq!(
            faults(text),
            [
                "chan.yaml:6:25: jobs[0].requirements.requiredCapacity: expected a number, found text \"2GB\""
            ]
        );
    }

    /// One key of a job, or of what stands in it, and what is said when it holds this.
    fn told_of(key: &str, value: &str) -> String {
        let text = format!("bundleId: a\npool: p\njobs:\n  - jobName: e\n    {key}: {value}\n");
        let told = faults(&text);
        assert_eq!(told.len(), 1, "{told:#?}");
        let fault = told[0].strip_prefix("chan.yaml:5:").expect("its line");
        let (_, fault) = fault.split_once(": ").expect("its column");
        fault.to_owned()
    }

    #[test]
    fn every_wrong_type_is_told_in_plain_words_with_line_and_key() {
        let ports = "{services: [{name: s, command: x, parameters: {portMappings: [{containerPort: 80, hostPort: PORT}]}}]}";
        let port = "jobs[0].launch.services[0].parameters.portMappings[0].hostPort";
        for (key, value, words) in [
            ("exclusive", "maybe", "jobs[0].exclusive: expected true or false, found text \"maybe\"".to_owned()),
            ("requirements", "{requiredCores: two}", "jobs[0].requirements.requiredCores: expected a whole number, found text \"two\"".to_owned()),
            ("requirements", "{requiredCores: -1}", "jobs[0].requirements.requiredCores: expected a whole number from 0 to 4294967295, found -1".to_owned()),
            ("requirements", "{requiredCores: 1.5}", "jobs[0].requirements.requiredCores: expected a whole number, found 1.5".to_owned()),
            ("requirements", "3", "jobs[0].requirements: expected a mapping of keys, found 3".to_owned()),
            ("requirements", "{onRuntimeFailure: explode}", "jobs[0].requirements.onRuntimeFailure: expected one of avoidSpare, preferSpare, drop, found text \"explode\"".to_owned()),
            ("coLocateWith", "b", "jobs[0].coLocateWith: expected a list, found text \"b\"".to_owned()),
            ("tags", "[a]", "jobs[0].tags: expected a mapping of keys, found a list".to_owned()),
            ("tags", "{a: {b: c}}", "jobs[0].tags.a: expected text, found a mapping".to_owned()),
            ("description", "[a]", "jobs[0].description: expected text, found a list".to_owned()),
            ("startDateTime", "tomorrow", "jobs[0].startDateTime: \"tomorrow\" is not an instant: write it as RFC 3339, e.g. 2026-11-29T20:00:00Z".to_owned()),
            ("requirements", "{requiredCapabilities: [{count: 1}]}", "jobs[0].requirements.requiredCapabilities[0]: the key name is missing".to_owned()),
            ("launch", &ports.replace("PORT", "high"), format!("{port}: expected a port number, ephemeral, specific, or range with min and max, found text \"high\"")),
            ("launch", &ports.replace("PORT", "{range: {min: a, max: 2}}"), format!("{port}.range.min: expected a whole number, found text \"a\"")),
            ("launch", "{services: [{name: s, container: docker}]}", "jobs[0].launch.services[0].container: docker needs a value: write docker: ...".to_owned()),
        ] {
            assert_eq!(told_of(key, value), words);
        }
    }

    #[test]
    fn a_fault_of_form_is_told_without_the_words_of_the_reader() {
        for (text, words) in [
            (
                "bundleId: a\nbundleId: b\n",
                "the key \"bundleId\" stands twice",
            ),
            ("bundleId: *x\n", "names no anchor"),
            ("tags: {[a]: 2}\n", "expected text"),
            ("bundleId: x\n[: ]\n", "a key must be followed by ':'"),
            (
                &format!("tags: {}{}\n", "[".repeat(3_000), "]".repeat(3_000)),
                "nested deeper",
            ),
            ("- 1\n", "expected a mapping of keys, found a list"),
            (
                "hello\n",
                "expected a mapping of keys, found text \"hello\"",
            ),
            ("bundleId: a\njobs: []\n", "the key pool is missing"),
            (
                "bundleId: a\npool: p\njobs:\n  e: 1\n",
                "expected a list, found a mapping",
            ),
        ] {
            let told = faults(text);
            assert!(told[0].contains(words), "{words:?} is not in {told:?}");
            assert!(told[0].starts_with("chan.yaml:"), "{told:?}");
        }
    }

    // spec: WORK-15
    #[test]
    fn a_host_port_may_be_a_bare_number() {
        let text = "bundleId: a\npool: p\njobs:\n  - jobName: e\n    launch:\n      services:\n        - name: s\n          command: run\n          parameters:\n            portMappings:\n              - {containerPort: 80, hostPort: 8080}\n              - {containerPort: 81, hostPort: ephemeral}\n              - {containerPort: 82, hostPort: {specific: 82}}\n              - {containerPort: 83, hostPort: {range: {min: 1000, max: 1009}}}\n";
        let manifest = &read_bundles("chan.yaml", text).unwrap()[0];
        let ports = &manifest.bundle.jobs[0].launch.services[0]
            .parameters
            .port_mappings;
        let read: Vec<_> = ports.iter().map(|port| port.host_port).collect();
        use greenroom_types::job::HostPort;
        assert_eq!(
            read,
            [
                HostPort::Specific(8080),
                HostPort::Ephemeral,
                HostPort::Specific(82),
                HostPort::Range {
                    min: 1000,
                    max: 1009
                }
            ]
        );
    }

    // spec: LEASE-01
    #[test]
    fn a_key_that_protects_does_so_with_nothing_behind_it() {
        let read = |text: &str| read_bundles("chan.yaml", text).unwrap().remove(0).bundle;
        let job = "jobs:\n  - jobName: e\n    launch: {services: [{name: s, command: run}]}\n";
        let plain = read(&format!("bundleId: a\npool: p\n{job}"));
        assert_eq!((plain.copies(), plain.jobs[0].lease), (1, None));
        let text = format!(
            "bundleId: a\npool: p\nresiliencePolicy:\n{job}    lease:\n      # ttlMs: 5000\n"
        );
        let protected = read(&text);
        assert_eq!(protected.copies(), 2);
        assert_eq!(protected.jobs[0].lease, Some(LeasePolicy::default()));
    }

    /// A job that has something to run, as one line.
    const JOB: &str = "{jobName: e, launch: {services: [{name: s, command: run}]}}";

    #[test]
    fn ids_and_repeats_are_told_all_at_once() {
        let text = format!(
            "bundleId: A b\npool: p\njobs:\n  - {JOB}\n  - {JOB}\n---\n\
             bundleId: x\npool: p\njobs: [{JOB}]\n---\nbundleId: x\npool: p\njobs: [{JOB}]\n"
        );
        let told = faults(&text);
        assert_eq!(told.len(), 3, "{told:#?}");
        assert!(told[0].starts_with("chan.yaml:1:1: bundleId: bundle id \"A b\" is not valid"));
        assert!(
            told[1].starts_with("chan.yaml:5:6: jobs[1].jobName: "),
            "{told:#?}"
        );
        assert!(
            told[2].contains("chan.yaml:11:1: bundleId: bundle \"x\" stands twice"),
            "{told:#?}"
        );
    }

    #[test]
    fn what_the_manager_would_refuse_is_told_at_its_line() {
        let text = "bundleId: a\npool: p\njobs:\n  - jobName: e\n    requirements:\n      requiredCapacity: .nan\n    launch:\n      services:\n        - name: s\n          command: run --to {{PORT}}\n        - name: s\n          command: run\n";
        let told = faults(text);
        for place in [
            "chan.yaml:6:7: jobs[0].requirements.requiredCapacity: ",
            "chan.yaml:10:11: jobs[0].launch.services[0].command: ",
        ] {
            assert!(
                told.iter().any(|line| line.starts_with(place)),
                "{place} in {told:#?}"
            );
        }
        let none = faults("bundleId: a\npool: p\njobs:\n  - jobName: e\n");
        assert_eq!(none.len(), 1);
        assert!(
            none[0].contains("jobs[0].launch.services: there is nothing to run"),
            "{none:#?}"
        );
    }

    #[test]
    fn json_is_read_and_an_empty_text_is_told() {
        let json = r#"{"bundleId": "a", "pool": "p", "jobs": [{"jobName": "e", "launch": {"services": [{"name": "s", "command": "run"}]}}]}"#;
        assert_eq!(
            read_bundles("a.json", json).unwrap()[0].bundle.jobs.len(),
            1
        );
        assert!(faults("")[0].contains("there is no bundle in it"));
        assert!(faults("pool: [")[0].starts_with("chan.yaml:"));
    }

    #[test]
    fn short_words_are_text_and_not_booleans() {
        let text = format!(
            "bundleId: y\npool: n\ntags: {{a: on, b: off, c: no, d: yes}}\njobs: [{JOB}]\n"
        );
        let bundle = &read_bundles("chan.yaml", &text).unwrap()[0].bundle;
        assert_eq!(
            (bundle.bundle_id.as_str(), bundle.pool.as_str()),
            ("y", "n")
        );
        assert_eq!(
            bundle.tags.values().collect::<Vec<_>>(),
            ["on", "off", "no", "yes"]
        );
        let tree: Vec<serde_json::Value> = read("s.yaml", "a: n\nb: true\n").unwrap();
        assert_eq!(tree[0], serde_json::json!({"a": "n", "b": true}));
    }

    #[test]
    fn aliases_that_multiply_are_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let below = format!("*a{}", level - 1);
            text.push_str(&format!(
                "a{level}: &a{level} [{}]\n",
                vec![below; 9].join(", ")
            ));
        }
        let problem = read::<serde_json::Value>("bomb.yaml", &text).unwrap_err();
        assert!(problem.position.is_some(), "{problem}");
    }

    #[test]
    fn a_fault_found_later_is_shown_at_its_key_or_the_nearest_around_it() {
        let text = "bundleId: a\npool: p\njobs:\n  - jobName: e\n    requirements: {}\n    launch: {services: [{name: s, command: run}]}\n";
        let manifest = &read_bundles("chan.yaml", text).unwrap()[0];
        let place = |path: &str| manifest.problem(path, "x").position.map(|at| at.line);
        assert_eq!(place("jobs[0].requirements"), Some(5));
        assert_eq!(place("jobs[0].requirements.requiredCores"), Some(5));
        assert_eq!(place("jobs[0].separateFrom[0]"), Some(4));
    }
}
