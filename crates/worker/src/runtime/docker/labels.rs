//! The labels by which a worker knows its own (WORK-13).

use std::collections::HashMap;

use greenroom_types::{NodeId, StartId};
use sha2::{Digest, Sha256};

use crate::launch::{Identity, Launch, LaunchService};
use crate::lifecycle::ServiceRule;

const DEPLOYMENT: &str = "greenroom.deployment";
const NODE: &str = "greenroom.node";
const JOB: &str = "greenroom.job";
const ROLE: &str = "greenroom.role";
const START: &str = "greenroom.start-id";
const SERVICE: &str = "greenroom.service";
const SPEC_HASH: &str = "greenroom.spec-hash";
/// How many services the instance has, so that one made in part is known as such.
const SERVICES: &str = "greenroom.services";
/// Dependencies and restart policy, so that a restarted worker goes on with them.
const RULE: &str = "greenroom.rule";
/// The image as the job names it, and the one that this meant.
const IMAGE: &str = "greenroom.image";
const DIGEST: &str = "greenroom.image-digest";

/// Labels of the engine's API.
pub(super) type Labels = HashMap<String, String>;

/// What every label of this worker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    deployment: String,
    node: NodeId,
}

// === impl Marks ===

impl Marks {
    pub(super) fn of(identity: &Identity) -> Self {
        Self {
            deployment: identity.deployment_id.clone(),
            node: identity.node_id.clone(),
        }
    }

    /// Of things that outlive one instance.
    pub(super) fn labels(&self) -> Labels {
        let pairs = [
            (DEPLOYMENT, self.deployment.as_str()),
            (NODE, self.node.as_str()),
        ];
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    /// The engine's filter for what is ours, of one instance or of all.
    pub(super) fn filter(&self, start_id: Option<&StartId>) -> HashMap<String, Vec<String>> {
        let mut labels: Vec<String> = self
            .labels()
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        labels.push(match start_id {
            Some(start_id) => format!("{START}={start_id}"),
            None => START.to_owned(),
        });
        HashMap::from([("label".to_owned(), labels)])
    }
}

/// Of what belongs to an instance as a whole.
pub(super) fn of_instance(marks: &Marks, launch: &Launch) -> Labels {
    let mut labels = marks.labels();
    labels.insert(JOB.to_owned(), launch.key.job_id.to_string());
    labels.insert(ROLE.to_owned(), launch.key.role.to_string());
    labels.insert(START.to_owned(), launch.start_id.to_string());
    labels
}

/// Of a container.
pub(super) fn of_service(marks: &Marks, launch: &Launch, service: &LaunchService) -> Labels {
    let mut labels = of_instance(marks, launch);
    let rule = serde_json::to_string(&service.rule).unwrap_or_default();
    let spec = serde_json::to_vec(service).unwrap_or_default();
    labels.insert(SERVICE.to_owned(), service.rule.name.clone());
    labels.insert(SERVICES.to_owned(), launch.services.len().to_string());
    labels.insert(
        SPEC_HASH.to_owned(),
        greenroom_auth::hex(&Sha256::digest(spec)),
    );
    labels.insert(RULE.to_owned(), rule);
    labels.insert(IMAGE.to_owned(), service.image.clone());
    if let Some(pinned) = &service.pinned {
        labels.insert(DIGEST.to_owned(), pinned.digest.clone());
    }
    labels
}

pub(super) fn start_of(labels: &Labels) -> Option<StartId> {
    labels.get(START).map(StartId::new)
}

pub(super) fn rule_of(labels: &Labels) -> Option<ServiceRule> {
    serde_json::from_str(labels.get(RULE)?).ok()
}

pub(super) fn services_of(labels: &Labels) -> usize {
    labels
        .get(SERVICES)
        .and_then(|count| count.parse().ok())
        .unwrap_or_default()
}
