//! A bundle's runtime jobs, as its specification makes them (BDL-03, BDL-05, BDL-07, BDL-23).

use std::collections::BTreeMap;

use greenroom_types::bundle::{Bundle, BundleJob, StartMode};
use greenroom_types::call::Refusal;
use greenroom_types::job::{
    AutoPlacement, Job, MANUAL, TAG_BUNDLE_ID, TAG_JOB_NAME, TAG_REPLICA_INDEX, TAG_START_MODE,
    TAG_TEMPLATE,
};

use super::check::too_large;
use super::template;
use crate::job::check::{check_job, check_tags};
use crate::refuse::invalid;

/// Largest runtime job, encoded (BDL-15).
const JOB_BYTES: usize = 256 * 1024;

/// All runtime jobs, by copy and then in the order of the specification, checked.
pub(crate) fn expand(bundle: &Bundle) -> Result<Vec<Job>, Refusal> {
    let mut jobs = Vec::with_capacity(bundle.jobs.len() * 2);
    for replica_index in 0..bundle.copies() {
        for (index, spec) in bundle.jobs.iter().enumerate() {
            jobs.push(expand_job(bundle, replica_index, index, spec)?);
        }
    }
    Ok(jobs)
}

/// One runtime job, checked.
pub(crate) fn expand_job(
    bundle: &Bundle,
    replica_index: u32,
    index: usize,
    spec: &BundleJob,
) -> Result<Job, Refusal> {
    let job = runtime_job(bundle, replica_index, index, spec)?;
    check_job(&job)?;
    check_tags(&job.tags)?;
    let bytes = serde_json::to_vec(&job).map_or(usize::MAX, |encoded| encoded.len());
    if bytes > JOB_BYTES {
        return Err(too_large(&format!("jobs[{index}]"), bytes, JOB_BYTES));
    }
    Ok(job)
}

fn runtime_job(
    bundle: &Bundle,
    replica_index: u32,
    index: usize,
    spec: &BundleJob,
) -> Result<Job, Refusal> {
    let launch = &spec.launch;
    let mut tags = bundle.tags.clone();
    tags.extend(spec.tags.clone());
    if let Some(name) = &launch.template {
        tags.insert(TAG_TEMPLATE.to_owned(), name.to_string());
    }
    if spec.start_mode == StartMode::Manual {
        tags.insert(TAG_START_MODE.to_owned(), MANUAL.to_owned());
    }
    tags.insert(TAG_BUNDLE_ID.to_owned(), bundle.bundle_id.to_string());
    tags.insert(TAG_REPLICA_INDEX.to_owned(), replica_index.to_string());
    tags.insert(TAG_JOB_NAME.to_owned(), spec.job_name.to_string());
    let mut job = Job {
        job_id: bundle.job_id(replica_index, &spec.job_name),
        description: spec.description.clone(),
        tags,
        start_date_time: spec.start_date_time.or(bundle.start_date_time),
        manager_configuration: launch.manager_configuration.clone(),
        services: launch.services.clone(),
        media_version: launch.media_version,
        media_parameters: launch.media_parameters.clone(),
        volumes: launch.volumes.clone(),
        auto_placement: Some(AutoPlacement {
            bundle_id: bundle.bundle_id.clone(),
            replica_index,
            job_name: spec.job_name.clone(),
            requirements: spec.requirements.clone(),
        }),
        lease: spec.lease,
        handover: spec.handover,
        job_socket: spec.job_socket,
        provides: spec.provides.clone(),
        secret_env: spec.secret_env.clone(),
        export_tags: spec.export_tags.clone(),
        ..Job::default()
    };
    let mut values: BTreeMap<String, String> = launch.parameters.clone();
    if replica_index == 1 {
        values.extend(bundle.backup_parameter_overrides.clone());
    }
    template::fill(&mut job, &values).map_err(|unknown| {
        let path = format!("jobs[{index}].{}", unknown.path);
        invalid(
            "unknown_parameter",
            format!(
                "{path} names the parameter {:?}, which job {:?} does not have: set it, or write \
                 {{{{{{{{ for two braces",
                unknown.name, spec.job_name
            ),
        )
        .with("path", path)
        .with("parameter", unknown.name)
    })?;
    Ok(job)
}

/// True when what is started differs, so that a running instance has to be replaced (BDL-09).
pub(crate) fn launches_differently(old: &Job, new: &Job) -> bool {
    let needs = |job: &Job| {
        let requirements = job
            .auto_placement
            .as_ref()
            .map(|placement| placement.requirements.clone())
            .unwrap_or_default();
        (
            requirements.required_gpu_capacity,
            requirements.required_gpu_model,
            requirements.required_cores,
            requirements.required_host_ports,
        )
    };
    old.services != new.services
        || old.media_version != new.media_version
        || old.media_parameters != new.media_parameters
        || old.volumes != new.volumes
        || old.lease != new.lease
        || needs(old) != needs(new)
}
