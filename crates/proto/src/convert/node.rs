//! Nodes as the Manager shows them.
//!
//! The wire names the machine's id by provider, the domain has one field for it: writing takes the provider from
//! the node's metadata. Left out on reading: `fault_domain` of Oracle's machines, what a `test` provider was asked
//! for, the `unrecorded` instances of a NodeInfo; the domain has no place for them.

use std::sync::Arc;

use greenroom_types::{
    StartId,
    node::{NodeInfo, NodeMetadata, ProviderMetadata, RunningJob, RunningNodeMetadata, StartPhase},
};

use super::{
    WireError,
    common::{
        read_enum, read_node_id, read_time_optional, read_time_or_zero, write_enum, write_time,
    },
    read_list, read_optional, read_required, write_list,
};
use crate::{common as wire, manager};

impl TryFrom<wire::ProviderMetadata> for ProviderMetadata {
    type Error = WireError;
    fn try_from(provider: wire::ProviderMetadata) -> Result<Self, WireError> {
        use wire::provider_metadata::Metadata;
        let architecture = |number, kind| {
            read_enum::<wire::Architecture, _>(number, "architecture")
                .map_err(|error| error.under(kind))
        };
        Ok(match provider.metadata {
            None | Some(Metadata::Test(_)) => Self::Unknown,
            Some(Metadata::Aws(aws)) => Self::Aws {
                instance_type: aws.instance_type,
                region: aws.region,
                architecture: architecture(aws.architecture, "aws")?,
                availability_zone: aws.availability_zone,
                launch_mode: read_enum::<wire::LaunchMode, _>(aws.launch_mode, "aws.launch_mode")?,
            },
            Some(Metadata::Oci(oci)) => Self::Oci {
                availability_domain: oci.availability_domain,
                shape: oci.shape,
                architecture: architecture(oci.architecture, "oci")?,
                ocpus: oci.ocpus,
            },
            Some(Metadata::Local(local)) => Self::Local {
                node_name: local.node_name,
                machine_id: local.machine_id,
                architecture: architecture(local.architecture, "local")?,
            },
            Some(Metadata::CloudHypervisor(vm)) => Self::CloudHypervisor {
                host: vm.host,
                shape: vm.shape,
                architecture: architecture(vm.architecture, "cloud_hypervisor")?,
            },
        })
    }
}

/// Writes the provider; none where it is not known.
pub fn write_provider(provider: &ProviderMetadata) -> Option<wire::ProviderMetadata> {
    use wire::provider_metadata::Metadata;
    let metadata = match provider {
        ProviderMetadata::Unknown => return None,
        ProviderMetadata::Aws {
            instance_type,
            region,
            architecture,
            availability_zone,
            launch_mode,
        } => Metadata::Aws(wire::AwsMetadata {
            instance_type: instance_type.clone(),
            region: region.clone(),
            architecture: write_enum::<wire::Architecture>(*architecture),
            availability_zone: availability_zone.clone(),
            launch_mode: write_enum::<wire::LaunchMode>(*launch_mode),
        }),
        ProviderMetadata::Oci {
            availability_domain,
            shape,
            architecture,
            ocpus,
        } => Metadata::Oci(wire::OciMetadata {
            availability_domain: availability_domain.clone(),
            shape: shape.clone(),
            architecture: write_enum::<wire::Architecture>(*architecture),
            ocpus: *ocpus,
        }),
        ProviderMetadata::Local {
            node_name,
            machine_id,
            architecture,
        } => Metadata::Local(wire::LocalMetadata {
            node_name: node_name.clone(),
            machine_id: machine_id.clone(),
            architecture: write_enum::<wire::Architecture>(*architecture),
        }),
        ProviderMetadata::CloudHypervisor {
            host,
            shape,
            architecture,
        } => Metadata::CloudHypervisor(wire::CloudHypervisorMetadata {
            host: host.clone(),
            shape: shape.clone(),
            architecture: write_enum::<wire::Architecture>(*architecture),
        }),
    };
    Some(wire::ProviderMetadata {
        metadata: Some(metadata),
    })
}

impl TryFrom<wire::NodeMetadata> for NodeMetadata {
    type Error = WireError;
    fn try_from(node: wire::NodeMetadata) -> Result<Self, WireError> {
        Ok(Self {
            node_id: read_node_id(node.node_id, "node_id")?,
            tags: node.tags,
            created_at: read_time_or_zero(node.created_at, "created_at")?,
            provider: read_optional(node.provider_metadata, "provider_metadata")?
                .unwrap_or_default(),
        })
    }
}

impl From<&NodeMetadata> for wire::NodeMetadata {
    fn from(node: &NodeMetadata) -> Self {
        Self {
            node_id: Some((&node.node_id).into()),
            tags: node.tags.clone(),
            created_at: Some(write_time(node.created_at)),
            provider_metadata: write_provider(&node.provider),
        }
    }
}

impl From<wire::RunningNodeMetadata> for RunningNodeMetadata {
    fn from(running: wire::RunningNodeMetadata) -> Self {
        use wire::running_node_provider_metadata::Instance;
        Self {
            public_dns_name: running.public_dns_name,
            private_dns_name: running.private_dns_name,
            private_ip_address: running.private_ip_address,
            public_ip_address: running.public_ip_address,
            provider_id: match running
                .provider_metadata
                .and_then(|provider| provider.instance)
            {
                None => String::new(),
                Some(Instance::Aws(aws) | Instance::Test(aws)) => aws.instance_id,
                Some(Instance::Oci(oci)) => oci.instance_id,
                Some(Instance::Local(local)) => local.machine_id,
                Some(Instance::CloudHypervisor(vm)) => vm.vm_id,
            },
        }
    }
}

/// Writes what is known of a running node, whose provider says where the machine's id goes. With an unknown
/// provider it goes where test nodes have it, so that it is not lost.
pub fn write_running(
    running: &RunningNodeMetadata,
    provider: &ProviderMetadata,
) -> wire::RunningNodeMetadata {
    use wire::running_node_provider_metadata::Instance;
    let id = running.provider_id.clone();
    let instance = match provider {
        ProviderMetadata::Unknown if id.is_empty() => None,
        ProviderMetadata::Unknown => {
            Some(Instance::Test(wire::RunningAwsMetadata { instance_id: id }))
        }
        ProviderMetadata::Aws { .. } => {
            Some(Instance::Aws(wire::RunningAwsMetadata { instance_id: id }))
        }
        ProviderMetadata::Oci { .. } => Some(Instance::Oci(wire::RunningOciMetadata {
            instance_id: id,
            fault_domain: String::new(),
        })),
        ProviderMetadata::Local { .. } => Some(Instance::Local(wire::RunningLocalMetadata {
            machine_id: id,
        })),
        ProviderMetadata::CloudHypervisor { host, .. } => Some(Instance::CloudHypervisor(
            wire::RunningCloudHypervisorMetadata {
                host: host.clone(),
                vm_id: id,
            },
        )),
    };
    wire::RunningNodeMetadata {
        public_dns_name: running.public_dns_name.clone(),
        private_dns_name: running.private_dns_name.clone(),
        private_ip_address: running.private_ip_address.clone(),
        provider_metadata: instance.map(|instance| wire::RunningNodeProviderMetadata {
            instance: Some(instance),
        }),
        public_ip_address: running.public_ip_address.clone(),
    }
}

/// Reads how far a starting node has come; none where the Manager does not tell.
pub fn read_phase(number: i32, field: &str) -> Result<Option<StartPhase>, WireError> {
    struct Phase(Option<StartPhase>);
    impl From<manager::StartPhase> for Phase {
        fn from(phase: manager::StartPhase) -> Self {
            Self(match phase {
                manager::StartPhase::Unspecified => None,
                manager::StartPhase::Requested => Some(StartPhase::Requested),
                manager::StartPhase::Booting => Some(StartPhase::Booting),
            })
        }
    }
    read_enum::<manager::StartPhase, Phase>(number, field).map(|phase| phase.0)
}

/// Writes how far a starting node has come.
pub fn write_phase(phase: Option<StartPhase>) -> i32 {
    let phase = match phase {
        None => manager::StartPhase::Unspecified,
        Some(StartPhase::Requested) => manager::StartPhase::Requested,
        Some(StartPhase::Booting) => manager::StartPhase::Booting,
    };
    phase.into()
}

impl TryFrom<manager::RunningJob> for RunningJob {
    type Error = WireError;
    fn try_from(job: manager::RunningJob) -> Result<Self, WireError> {
        Ok(Self {
            key: read_required(job.job_key, "job_key")?,
            node_id: read_node_id(job.node_id, "node_id")?,
            start_id: StartId::new(job.start_id),
            state: read_enum::<manager::InstanceState, _>(job.state, "state")?,
        })
    }
}

impl From<&RunningJob> for manager::RunningJob {
    fn from(job: &RunningJob) -> Self {
        Self {
            job_key: Some((&job.key).into()),
            node_id: Some((&job.node_id).into()),
            start_id: job.start_id.as_str().to_owned(),
            state: write_enum::<manager::InstanceState>(job.state),
        }
    }
}

impl TryFrom<manager::NodeInfo> for NodeInfo {
    type Error = WireError;
    fn try_from(node: manager::NodeInfo) -> Result<Self, WireError> {
        Ok(Self {
            metadata: read_required(node.metadata, "metadata")?,
            running: node.running.map(Into::into).unwrap_or_default(),
            state: read_enum::<manager::NodeState, _>(node.state, "state")?,
            reason: node.reason,
            instances: read_list(node.instances, "instances")?,
            inventory: read_optional(node.inventory, "inventory")?.map(Arc::new),
            idle_expiry_ms: node.idle_expiry_ms,
            last_seen: read_time_optional(node.last_seen, "last_seen")?,
            terminate_attempts: node.terminate_attempts,
            last_error: node.last_error,
            unrecorded: read_list(node.unrecorded, "unrecorded")?,
        })
    }
}

impl From<&NodeInfo> for manager::NodeInfo {
    fn from(node: &NodeInfo) -> Self {
        Self {
            metadata: Some((&node.metadata).into()),
            running: (node.running != RunningNodeMetadata::default())
                .then(|| write_running(&node.running, &node.metadata.provider)),
            state: write_enum::<manager::NodeState>(node.state),
            reason: node.reason.clone(),
            instances: write_list(&node.instances),
            inventory: node.inventory.as_deref().map(Into::into),
            idle_expiry_ms: node.idle_expiry_ms,
            last_seen: node.last_seen.map(write_time),
            terminate_attempts: node.terminate_attempts,
            last_error: node.last_error.clone(),
            unrecorded: node.unrecorded.iter().map(Into::into).collect(),
        }
    }
}
