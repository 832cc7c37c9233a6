//! Everything in a bundle that the Manager would refuse whatever its state, told at once and by the
//! keys that a manifest uses, so that a tool can show each at its line before anything is sent.

use greenroom_types::bundle::Bundle;
use greenroom_types::call::{Detail, Refusal};
use greenroom_types::inventory::Capability;

use crate::bundle::check::check_bundle;
use crate::bundle::expand::expand_job;

/// Something wrong in a bundle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BundleFault {
    /// Key as in a manifest, e.g. `jobs[0].launch.services[1].name`; empty for the whole.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// Every fault of form, in the order of the bundle; none for one that `CreateBundle` may refuse only
/// for what is there already. Besides the Manager's rules, a job must have something to run.
pub fn bundle_faults(bundle: &Bundle) -> Vec<BundleFault> {
    let mut faults = Vec::new();
    if let Err(refusal) = check_bundle(bundle) {
        add(&mut faults, "", &refusal);
    }
    for (index, job) in bundle.jobs.iter().enumerate() {
        let path = format!("jobs[{index}]");
        if job.launch.services.is_empty() && job.launch.template.is_none() {
            faults.push(BundleFault {
                path: format!("{path}.launch.services"),
                message: "there is nothing to run: name at least one service".to_owned(),
            });
        }
        for copy in 0..bundle.copies() {
            if let Err(refusal) = expand_job(bundle, copy, index, job) {
                add(&mut faults, &path, &refusal);
            }
        }
        numbers(&path, job, &mut faults);
    }
    faults.sort();
    faults.dedup();
    faults
}

/// Numbers that no machine has: they would only be told later, as needs that nothing meets.
fn numbers(path: &str, job: &greenroom_types::bundle::BundleJob, faults: &mut Vec<BundleFault>) {
    const MOST: f64 = 1_000_000.0;
    let needs = &job.requirements;
    let amounts = [
        ("requiredCapacity", needs.required_capacity),
        ("requiredGpuCapacity", needs.required_gpu_capacity),
    ];
    for (key, amount) in amounts {
        // Less than 0 and no number at all are told by the Manager's own rules.
        if amount > MOST {
            faults.push(BundleFault {
                path: format!("{path}.requirements.{key}"),
                message: "it must be at most a million".to_owned(),
            });
        }
    }
    let unnamed = |capability: &Capability| capability.name.is_empty();
    if needs.required_capabilities.iter().any(unnamed) {
        faults.push(BundleFault {
            path: format!("{path}.requirements.requiredCapabilities"),
            message: "a capability needs a name".to_owned(),
        });
    }
}

fn add(faults: &mut Vec<BundleFault>, job: &str, refusal: &Refusal) {
    let told = match refusal.details.get("problems") {
        Some(Detail::List(list)) => list
            .iter()
            .filter_map(|one| match one {
                Detail::Text(text) => text.split_once(": "),
                _ => None,
            })
            .map(|(path, message)| (path.to_owned(), message.to_owned()))
            .collect(),
        _ => {
            let path = match refusal.details.get("path") {
                Some(Detail::Text(path)) => path.clone(),
                _ => String::new(),
            };
            vec![(path, refusal.message.clone())]
        }
    };
    for (path, message) in told {
        let message = match message.strip_prefix(&path) {
            Some(rest) if !path.is_empty() => rest.trim_start_matches([':', ' ']).to_owned(),
            _ => message,
        };
        faults.push(BundleFault {
            path: manifest_path(job, &path),
            message,
        });
    }
}

/// The wire's spelling of a path in a manifest's.
fn manifest_path(job: &str, path: &str) -> String {
    if path == "bundle" {
        return String::new();
    }
    let inner = if job.is_empty() || path.starts_with("jobs[") {
        path
    } else {
        &format!("{job}.{path}")
    };
    let mut keys: Vec<String> = Vec::new();
    for part in inner.split('.') {
        let (name, index) = match part.find('[') {
            Some(at) => part.split_at(at),
            None => (part, ""),
        };
        let launched = [
            "services",
            "volumes",
            "manager_configuration",
            "norsk_service_parameters",
        ];
        if keys.len() == 1 && launched.contains(&name) {
            keys.push("launch".to_owned());
        }
        let name = match name {
            "norsk_service_parameters" => "media_parameters",
            "environment_variables" => "environment",
            other => other,
        };
        keys.push(format!("{}{index}", camel(name)));
    }
    keys.retain(|key| !key.is_empty());
    keys.join(".")
}

fn camel(snake: &str) -> String {
    let mut words = snake.split('_');
    let mut text = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        text.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        text.push_str(letters.as_str());
    }
    text
}

#[cfg(test)]
mod tests {
    use greenroom_types::bundle::{BundleJob, Resilience};
    use greenroom_types::job::Service;

    use super::*;

    fn bundle(adjust: impl FnOnce(&mut Bundle)) -> Vec<(String, String)> {
        let service = Service {
            name: "main".into(),
            command: "run --to {{PORT}}".into(),
            ..Service::default()
        };
        let mut job = BundleJob {
            job_name: "e".into(),
            ..BundleJob::default()
        };
        job.launch.services = vec![service];
        job.launch.parameters.insert("PORT".into(), "5000".into());
        let mut bundle = Bundle {
            bundle_id: "b".into(),
            pool: "p".into(),
            jobs: vec![job],
            resilience_policy: Some(Resilience::default()),
            ..Bundle::default()
        };
        adjust(&mut bundle);
        bundle_faults(&bundle)
            .into_iter()
            .map(|fault| (fault.path, fault.message))
            .collect()
    }

    fn paths(adjust: impl FnOnce(&mut Bundle)) -> Vec<String> {
        bundle(adjust).into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn a_good_bundle_has_no_faults() {
        assert_eq!(bundle(|_| {}), []);
    }

    #[test]
    fn faults_of_jobs_are_told_once_and_by_the_manifests_keys() {
        let twice = paths(|bundle| {
            let service = bundle.jobs[0].launch.services[0].clone();
            bundle.jobs[0].launch.services.push(service);
        });
        assert_eq!(twice, ["jobs[0].launch.services[1].name"]);
        let missing = bundle(|bundle| bundle.jobs[0].launch.parameters.clear());
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert_eq!(missing[0].0, "jobs[0].launch.services[0].command");
        assert!(missing[0].1.contains("PORT"), "{missing:?}");
        let ports = paths(|bundle| {
            bundle.jobs[0].requirements.required_host_ports = vec!["70000/udp".into()];
        });
        assert_eq!(ports, ["jobs[0].requirements.requiredHostPorts[0]"]);
        let upper = paths(|bundle| {
            bundle.jobs[0].requirements.required_host_ports = vec!["80/TCP".into()];
        });
        assert_eq!(
            upper,
            Vec::<String>::new(),
            "protocols are compared without case"
        );
    }

    #[test]
    fn a_job_with_nothing_to_run_and_numbers_that_are_none_are_faults() {
        assert_eq!(
            paths(|bundle| bundle.jobs[0].launch.services.clear()),
            ["jobs[0].launch.services"]
        );
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 1e308] {
            let told = paths(|bundle| bundle.jobs[0].requirements.required_capacity = wrong);
            assert!(
                told.contains(&"jobs[0].requirements.requiredCapacity".to_owned()),
                "{wrong}: {told:?}"
            );
        }
    }

    // spec: BDL-15
    #[test]
    fn a_bundle_that_is_too_large_is_a_fault_of_the_whole() {
        let told = bundle(|bundle| bundle.description = "x".repeat(2 * 1024 * 1024));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].1.contains("1048576"), "{told:?}");
    }
}
