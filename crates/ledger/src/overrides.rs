//! The overrides file's content in force (OVR): regions and tables laid over the settings.

use std::collections::BTreeSet;

use greenroom_types::NodeId;
use greenroom_types::call::{CallResult, Detail, Reply};
use greenroom_types::node::{NodeState, ProviderMetadata};
use greenroom_types::overrides::{LOCAL_REGION, Overrides};

use crate::command::{Found, Fresh};
use crate::config::Provider;
use crate::ledger::Ledger;
use crate::out::Out;
use crate::refuse::{failed, invalid};
use crate::state::Node;

/// Nodes named in a refusal.
const NAMED: usize = 100;

// === impl Ledger ===

impl Ledger {
    /// What of the overrides file is in force: the last good copy of it (OVR-03).
    pub const fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    pub(crate) fn reload(&mut self, out: &mut Out, fresh: &Fresh) -> CallResult {
        let Found::Overrides(overrides) = &fresh.found else {
            return Err(invalid("bad_overrides", "no overrides were read"));
        };
        self.put_overrides(out, overrides)
    }

    /// Puts overrides in force, unless that would take a region away under nodes (OVR-05).
    pub(crate) fn put_overrides(&mut self, out: &mut Out, overrides: &Overrides) -> CallResult {
        let changes = overrides.changes_from(&self.overrides);
        if changes.is_empty() {
            return Ok(Reply::Reloaded(changes));
        }
        for provider in [Provider::Aws, Provider::Oci] {
            let before = self.regions(provider, &self.overrides);
            let after = self.regions(provider, overrides);
            if after.is_empty() {
                continue;
            }
            let is_lost = |region: &str| {
                !after.contains(region) && (before.is_empty() || before.contains(region))
            };
            let here = self.nodes.values().filter(|node| {
                node.state != NodeState::Stopped && node.provider_name() == provider.name()
            });
            let held: Vec<(&str, &NodeId)> = here
                .map(|node| (node.region(), &node.metadata.node_id))
                .filter(|(region, _)| is_lost(region))
                .collect();
            if let Some((region, _)) = held.first() {
                let name = provider.name();
                let ids = held.iter().take(NAMED);
                let ids: Vec<String> = ids.map(|(_, node_id)| node_id.to_string()).collect();
                let refusal = failed(
                    "region_in_use",
                    format!(
                        "{} nodes run in regions of {name:?} that the overrides take away ({region} \
                         among them): end them first",
                        held.len()
                    ),
                );
                let ids = ids.into_iter().map(Detail::Text).collect();
                let mut refusal = refusal.with("region", *region).with("provider", name);
                refusal
                    .details
                    .insert("nodes".to_owned(), Detail::List(ids));
                return Err(refusal);
            }
        }
        self.overrides = overrides.clone();
        out.overrides = true;
        Ok(Reply::Reloaded(changes))
    }

    /// Regions of a provider in force; empty where any may be named.
    pub(crate) fn regions_in_force(&self, provider: Provider) -> BTreeSet<&str> {
        self.regions(provider, &self.overrides)
    }

    fn regions<'a>(&'a self, provider: Provider, overrides: &'a Overrides) -> BTreeSet<&'a str> {
        if let Some(regions) = overrides.regions(provider.name()) {
            return regions;
        }
        let regions = self.config.providers.get(&provider);
        regions.into_iter().flatten().map(String::as_str).collect()
    }
}

// === impl Node ===

impl Node {
    /// Its region, as the overrides call it: a domain at Oracle's, a host of microVMs.
    pub(crate) fn region(&self) -> &str {
        match &self.metadata.provider {
            ProviderMetadata::Aws { region, .. } => region,
            ProviderMetadata::Oci {
                availability_domain,
                ..
            } => availability_domain,
            ProviderMetadata::CloudHypervisor { host, .. } => host,
            ProviderMetadata::Local { .. } => LOCAL_REGION,
            ProviderMetadata::Unknown => "",
        }
    }
}
