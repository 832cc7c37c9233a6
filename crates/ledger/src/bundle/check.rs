//! The form of a bundle (BDL-02, BDL-06, BDL-15). What it means is the policy's to judge.

use std::collections::BTreeSet;

use greenroom_types::BundleId;
use greenroom_types::bundle::{Bundle, BundleJob};
use greenroom_types::call::Refusal;

use crate::job::check::{check_lease, check_reserved, check_tags};
use crate::refuse::{Problem, invalid, problems};

/// Most jobs of a bundle.
const JOBS: usize = 64;
/// Largest bundle, encoded.
const BUNDLE_BYTES: usize = 1024 * 1024;

pub(crate) fn check_bundle(bundle: &Bundle) -> Result<(), Refusal> {
    let mut found = Vec::new();
    if let Err(error) = bundle.bundle_id.as_str().parse::<BundleId>() {
        found.push(Problem::new("bundle_id", error.to_string()));
    }
    if bundle.jobs.is_empty() || bundle.jobs.len() > JOBS {
        found.push(Problem::new(
            "jobs",
            format!("there are {} jobs: give 1 to {JOBS}", bundle.jobs.len()),
        ));
    }
    let mut names = BTreeSet::new();
    for (index, job) in bundle.jobs.iter().enumerate() {
        let path = format!("jobs[{index}]");
        match job.job_name.as_str().parse::<greenroom_types::JobName>() {
            Err(error) => found.push(Problem::new(format!("{path}.job_name"), error.to_string())),
            Ok(name) if !names.insert(name.clone()) => found.push(Problem::new(
                format!("{path}.job_name"),
                format!("job name {name:?} is used twice"),
            )),
            Ok(_) => {}
        }
        check_neighbours(bundle, job, &path, &mut found);
        check_requirements(job, &path, &mut found);
    }
    problems(
        "bad_bundle",
        &format!("bundle {:?} is not valid", cut_id(&bundle.bundle_id)),
        found,
    )?;
    check_reserved(&bundle.tags, false)?;
    check_tags(&bundle.tags)?;
    for job in &bundle.jobs {
        check_reserved(&job.tags, false)?;
        check_tags(&job.tags)?;
        check_lease(job.lease.as_ref())?;
    }
    let bytes = serde_json::to_vec(bundle).map_or(usize::MAX, |encoded| encoded.len());
    if bytes > BUNDLE_BYTES {
        return Err(too_large("bundle", bytes, BUNDLE_BYTES));
    }
    Ok(())
}

pub(crate) fn too_large(path: &str, bytes: usize, limit: usize) -> Refusal {
    invalid(
        "too_large",
        format!("{path} has {bytes} bytes: at most {limit}"),
    )
    .with("path", path)
    .with("expected", limit as u64)
    .with("actual", bytes as u64)
}

fn cut_id(id: &BundleId) -> String {
    crate::refuse::cut(id.as_str(), 200)
}

fn check_neighbours(bundle: &Bundle, job: &BundleJob, path: &str, found: &mut Vec<Problem>) {
    let lists = [
        ("co_locate_with", &job.co_locate_with),
        ("separate_from", &job.separate_from),
    ];
    for (list, names) in lists {
        for name in names {
            let text = if *name == job.job_name {
                "a job cannot name itself".to_owned()
            } else if bundle.job(name.as_str()).is_none() {
                format!("job {name:?} is not in this bundle")
            } else {
                continue;
            };
            found.push(Problem::new(format!("{path}.{list}"), text));
        }
    }
    for name in &job.co_locate_with {
        if job.separate_from.contains(name) {
            found.push(Problem::new(
                format!("{path}.separate_from"),
                format!("job {name:?} is in co_locate_with, too"),
            ));
        }
    }
}

/// BDL-06: the form only.
fn check_requirements(job: &BundleJob, path: &str, found: &mut Vec<Problem>) {
    let needs = &job.requirements;
    let amounts = [
        ("required_capacity", needs.required_capacity),
        ("required_gpu_capacity", needs.required_gpu_capacity),
    ];
    for (name, amount) in amounts {
        if !amount.is_finite() || amount < 0.0 {
            found.push(Problem::new(
                format!("{path}.requirements.{name}"),
                "it must be a number of at least 0",
            ));
        }
    }
    for (index, port) in needs.required_host_ports.iter().enumerate() {
        let formed = port.split_once('/').is_some_and(|(number, protocol)| {
            number.parse::<u16>().is_ok_and(|n| n > 0)
                && (protocol.eq_ignore_ascii_case("tcp") || protocol.eq_ignore_ascii_case("udp"))
        });
        if !formed {
            found.push(Problem::new(
                format!("{path}.requirements.required_host_ports[{index}]"),
                format!("host port {port:?} must be written as PORT/tcp or PORT/udp"),
            ));
        }
    }
}
