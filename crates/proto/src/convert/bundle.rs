//! Bundles.
//!
//! On the wire a bundle job carries its definition as a template job, the domain has it in parts. The name of the
//! launch template travels as the template job's tag `template`. Left out on reading, as the domain has no place for
//! them: `template_id` of a bundle, `target_node` of its jobs, and the fields of the template job that belong to a
//! running job or are used by nothing (id, state, shape, subnet and so on).

use greenroom_types::{
    BundleId, JobId, JobName, PoolName, TemplateName,
    bundle::{Bundle, BundleJob, BundleJobStatus, BundleStatus, IntraReplica, Launch, Resilience},
    job::{Job, TAG_TEMPLATE},
};

use super::{
    WireError,
    common::{read_enum, read_time_optional, write_enum, write_time},
    job::read_definition,
    read_list, read_optional, read_required, write_list,
};
use crate::manager;

impl TryFrom<manager::Resilience> for Resilience {
    type Error = WireError;
    fn try_from(policy: manager::Resilience) -> Result<Self, WireError> {
        Ok(Self {
            pool: (!policy.pool.is_empty()).then(|| PoolName::new(policy.pool)),
            same_node: read_enum::<manager::Rule, _>(policy.same_node, "same_node")?,
            same_az: read_enum::<manager::Rule, _>(policy.same_az, "same_az")?,
            same_cloud: read_enum::<manager::Rule, _>(policy.same_cloud, "same_cloud")?,
        })
    }
}

impl From<&Resilience> for manager::Resilience {
    fn from(policy: &Resilience) -> Self {
        Self {
            pool: policy
                .pool
                .as_ref()
                .map(|pool| pool.as_str().to_owned())
                .unwrap_or_default(),
            same_node: write_enum::<manager::Rule>(policy.same_node),
            same_az: write_enum::<manager::Rule>(policy.same_az),
            same_cloud: write_enum::<manager::Rule>(policy.same_cloud),
        }
    }
}

impl TryFrom<manager::IntraReplica> for IntraReplica {
    type Error = WireError;
    fn try_from(rules: manager::IntraReplica) -> Result<Self, WireError> {
        Ok(Self {
            same_node_default: rules.same_node_default,
            same_az: read_enum::<manager::SameAz, _>(rules.same_az, "same_az")?,
        })
    }
}

impl From<&IntraReplica> for manager::IntraReplica {
    fn from(rules: &IntraReplica) -> Self {
        Self {
            same_node_default: rules.same_node_default,
            same_az: write_enum::<manager::SameAz>(rules.same_az),
        }
    }
}

impl TryFrom<manager::BundleJob> for BundleJob {
    type Error = WireError;
    fn try_from(job: manager::BundleJob) -> Result<Self, WireError> {
        let template = job.template.unwrap_or_default();
        let mut template: Job =
            read_definition(template).map_err(|error| error.under("template"))?;
        Ok(Self {
            job_name: JobName::new(job.job_name),
            description: template.description,
            requirements: read_optional(job.requirements, "requirements")?.unwrap_or_default(),
            co_locate_with: names(job.co_locate_with),
            separate_from: names(job.separate_from),
            exclusive: job.exclusive,
            single_use: job.single_use,
            start_mode: read_enum::<manager::StartMode, _>(job.start_mode, "start_mode")?,
            start_date_time: template.start_date_time,
            handover: template.handover,
            job_socket: template.job_socket,
            lease: job.lease.map(Into::into).or(template.lease),
            launch: Launch {
                template: template.tags.remove(TAG_TEMPLATE).map(TemplateName::new),
                parameters: job.parameters,
                services: template.services,
                media_version: template.media_version,
                media_parameters: template.media_parameters,
                volumes: template.volumes,
                manager_configuration: template.manager_configuration,
            },
            tags: template.tags,
            secret_env: template.secret_env,
            export_tags: template.export_tags,
            provides: template.provides,
        })
    }
}

impl From<&BundleJob> for manager::BundleJob {
    fn from(job: &BundleJob) -> Self {
        let mut tags = job.tags.clone();
        if let Some(template) = &job.launch.template {
            tags.insert(TAG_TEMPLATE.to_owned(), template.as_str().to_owned());
        }
        let template = Job {
            description: job.description.clone(),
            tags,
            start_date_time: job.start_date_time,
            manager_configuration: job.launch.manager_configuration.clone(),
            services: job.launch.services.clone(),
            media_version: job.launch.media_version,
            media_parameters: job.launch.media_parameters.clone(),
            volumes: job.launch.volumes.clone(),
            handover: job.handover,
            job_socket: job.job_socket,
            provides: job.provides.clone(),
            secret_env: job.secret_env.clone(),
            export_tags: job.export_tags.clone(),
            ..Job::default()
        };
        Self {
            job_name: job.job_name.as_str().to_owned(),
            template: Some((&template).into()),
            requirements: Some((&job.requirements).into()),
            co_locate_with: job.co_locate_with.iter().map(ToString::to_string).collect(),
            separate_from: job.separate_from.iter().map(ToString::to_string).collect(),
            exclusive: job.exclusive,
            single_use: job.single_use,
            start_mode: write_enum::<manager::StartMode>(job.start_mode),
            target_node: String::new(),
            parameters: job.launch.parameters.clone(),
            lease: job.lease.as_ref().map(Into::into),
        }
    }
}

fn names(names: Vec<String>) -> Vec<JobName> {
    names.into_iter().map(JobName::new).collect()
}

impl TryFrom<manager::Bundle> for Bundle {
    type Error = WireError;
    fn try_from(bundle: manager::Bundle) -> Result<Self, WireError> {
        Ok(Self {
            bundle_id: BundleId::new(bundle.bundle_id),
            description: bundle.description,
            pool: PoolName::new(bundle.pool),
            jobs: read_list(bundle.jobs, "jobs")?,
            resilience_policy: read_optional(bundle.resilience_policy, "resilience_policy")?,
            intra_replica_placement: read_optional(bundle.intra_replica, "intra_replica")?
                .unwrap_or_default(),
            on_launch: read_enum::<manager::OnLaunch, _>(bundle.on_launch, "on_launch")?,
            override_reservation: bundle.override_reservation,
            backup_parameter_overrides: bundle.backup_parameter_overrides,
            tags: bundle.tags,
            start_date_time: read_time_optional(bundle.start_date_time, "start_date_time")?,
            stop_at: read_time_optional(bundle.stop_at, "stop_at")?,
            state: read_enum::<manager::BundleState, _>(bundle.state, "state")?,
            revision: bundle.revision,
        })
    }
}

impl From<&Bundle> for manager::Bundle {
    fn from(bundle: &Bundle) -> Self {
        Self {
            bundle_id: bundle.bundle_id.as_str().to_owned(),
            pool: bundle.pool.as_str().to_owned(),
            jobs: write_list(&bundle.jobs),
            resilience_policy: bundle.resilience_policy.as_ref().map(Into::into),
            intra_replica: Some((&bundle.intra_replica_placement).into()),
            on_launch: write_enum::<manager::OnLaunch>(bundle.on_launch),
            override_reservation: bundle.override_reservation,
            state: write_enum::<manager::BundleState>(bundle.state),
            tags: bundle.tags.clone(),
            start_date_time: bundle.start_date_time.map(write_time),
            stop_at: bundle.stop_at.map(write_time),
            backup_parameter_overrides: bundle.backup_parameter_overrides.clone(),
            revision: bundle.revision,
            template_id: String::new(),
            description: bundle.description.clone(),
        }
    }
}

impl TryFrom<manager::BundleJobStatus> for BundleJobStatus {
    type Error = WireError;
    fn try_from(job: manager::BundleJobStatus) -> Result<Self, WireError> {
        Ok(Self {
            job_id: JobId::new(job.job_id),
            replica_index: job.replica_index,
            job_name: JobName::new(job.job_name),
            dormant: job.dormant,
            terminal_state: read_optional(job.terminal_state, "terminal_state")?,
        })
    }
}

impl From<&BundleJobStatus> for manager::BundleJobStatus {
    fn from(job: &BundleJobStatus) -> Self {
        Self {
            job_id: job.job_id.as_str().to_owned(),
            replica_index: job.replica_index,
            job_name: job.job_name.as_str().to_owned(),
            dormant: job.dormant,
            terminal_state: job.terminal_state.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<manager::BundleStatus> for BundleStatus {
    type Error = WireError;
    fn try_from(status: manager::BundleStatus) -> Result<Self, WireError> {
        Ok(Self {
            bundle: read_required(status.bundle, "bundle")?,
            jobs: read_list(status.jobs, "jobs")?,
            lease_expires_at: read_time_optional(status.lease_expires_at, "lease_expires_at")?,
        })
    }
}

impl From<&BundleStatus> for manager::BundleStatus {
    fn from(status: &BundleStatus) -> Self {
        Self {
            bundle: Some((&status.bundle).into()),
            jobs: write_list(&status.jobs),
            lease_expires_at: status.lease_expires_at.map(write_time),
        }
    }
}
