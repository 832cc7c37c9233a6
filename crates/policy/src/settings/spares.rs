//! What is kept ready: hot spares (CONF-13) and the images of templates.

use std::collections::BTreeMap;

use greenroom_types::id::{PoolName, TemplateName};
use greenroom_types::pool::{Pool, Tier};
use serde_json::Value;

use super::read::{Faults, Node, wanted};
use super::words;
use super::{AutoSettingsValidationError, FaultCode, HotSpare, HotSpareSpec};

/// Most spares that the pool can have, where that is bounded: they are bought in its first elastic tier
/// (SPARE-07), and servers of a fixed one may be marked, as many as there are.
fn spares_max(pool: &Pool) -> Option<u64> {
    let has_fixed = pool.tiers.iter().any(|tier| !tier.is_elastic());
    let buys = pool.tiers.iter().find(|tier| tier.is_elastic())?;
    buys.max_nodes.filter(|_| !has_fixed).map(u64::from)
}

/// A list of spare entries by itself (SPARE-20).
pub(super) fn hot_spare_list(
    list: &Value,
    pools: &[Pool],
) -> Result<Vec<HotSpare>, AutoSettingsValidationError> {
    let mut faults = Faults::default();
    let tree = serde_json::json!({ "hotSpares": list });
    let mut root = Node::new(Some(&tree), "", &mut faults);
    let entries = root.list("hotSpares", &mut faults);
    let spares = hot_spares(&entries, pools, &mut faults);
    if faults.0.is_empty() {
        Ok(spares)
    } else {
        Err(AutoSettingsValidationError { faults: faults.0 })
    }
}

pub(super) fn hot_spares(
    entries: &[(&Value, String)],
    pools: &[Pool],
    f: &mut Faults,
) -> Vec<HotSpare> {
    let mut spares: Vec<HotSpare> = Vec::new();
    for (entry, path) in entries {
        let mut node = Node::new(Some(entry), path, f);
        let pool_name = PoolName::new(node.text("pool", f).unwrap_or_default());
        let pool = pools.iter().find(|pool| pool.name == pool_name);
        if pool.is_none() || pool_name.is_empty() {
            f.add(
                FaultCode::UnknownHotSparePool,
                &node.path_of("pool"),
                format!("no placement pool is called {pool_name:?}"),
            );
        } else if spares.iter().any(|other| other.pool == pool_name) {
            f.add(
                FaultCode::DuplicateHotSpare,
                &node.path_of("pool"),
                format!("pool {pool_name:?} has a spare entry already"),
            );
        }
        let target = node.raw("targetCount");
        let target_count = match target.map(|value| (value, value.as_u64())) {
            None => 0,
            Some((_, Some(count))) if count <= 100_000 => u32::try_from(count).unwrap_or(0),
            Some((value, _)) => {
                f.add(
                    FaultCode::InvalidTargetCount,
                    &node.path_of("targetCount"),
                    wanted("a whole number from 0 to 100000", value),
                );
                0
            }
        };
        if let Some(most) = pool.and_then(spares_max)
            && u64::from(target_count) > most
        {
            f.add(
                FaultCode::TargetAboveMaxNodes,
                &node.path_of("targetCount"),
                format!(
                    "{target_count} spares are wanted, and maxNodes of the tier that buys them for pool \
                     {pool_name:?} allows {most}"
                ),
            );
        }
        let mut spec_node = node.child("spec", f);
        let spec = HotSpareSpec {
            instance_type: spec_node.line("instanceType", f).unwrap_or_default(),
            region: spec_node.line("region", f).unwrap_or_default(),
            az: spec_node.line("az", f).unwrap_or_default(),
        };
        if target_count > 0
            && spec.instance_type.is_empty()
            && pool.is_some_and(|pool| pool.tiers.iter().any(Tier::is_elastic))
        {
            f.add(
                FaultCode::SpareInstanceTypeMissing,
                &spec_node.path_of("instanceType"),
                format!("spares of pool {pool_name:?} are bought; say which shape"),
            );
        }
        // Spares are bought in the first elastic tier (SPARE-07).
        let tier = pool.and_then(|pool| pool.tiers.iter().find(|tier| tier.is_elastic()));
        if let Some(tier) = tier.filter(|_| target_count > 0 && !spec.instance_type.is_empty()) {
            let shapes = tier.candidate_instance_types.iter();
            let shapes = shapes.map(|shape| shape.instance_type.as_str());
            let shapes: Vec<&str> = shapes.filter(|shape| !shape.trim().is_empty()).collect();
            // A tier that lists none has a fault of its own.
            if !shapes.is_empty() && !shapes.contains(&spec.instance_type.as_str()) {
                f.add(
                    FaultCode::SpareInstanceTypeNotListed,
                    &spec_node.path_of("instanceType"),
                    format!(
                        "tier {:?}, where spares of pool {pool_name:?} are bought, lists no shape {:?}; \
                         it lists {}",
                        tier.name,
                        spec.instance_type,
                        shapes.join(", ")
                    ),
                );
            }
        }
        spec_node.finish(f);
        let spare = HotSpare {
            pool: pool_name,
            target_count,
            spec,
            warm_for: node.templates("warmFor", f),
            reserved_for: node.templates("reservedFor", f),
            exclusive: node.flag("exclusive", f).unwrap_or_default(),
        };
        if spare.exclusive && spare.reserved_for.is_empty() {
            f.add(
                FaultCode::ExclusiveWithoutReservedFor,
                &node.path_of("exclusive"),
                "exclusive needs a reservedFor with at least one template",
            );
        }
        node.finish(f);
        spares.push(spare);
    }
    spares
}

/// The images of each template.
pub(super) fn template_images(
    root: &mut Node<'_>,
    f: &mut Faults,
) -> BTreeMap<TemplateName, Vec<String>> {
    let mut images = BTreeMap::new();
    let path = root.path_of("templateImages");
    match root.get("templateImages") {
        None => {}
        Some(Value::Object(map)) => {
            for (template, refs) in map {
                let path = format!("{path}.{template}");
                let fault = match serde_json::from_value::<Vec<String>>(refs.clone()) {
                    Ok(refs) => match words::fault_of_images(template, &refs) {
                        None => {
                            images.insert(TemplateName::from(template.as_str()), refs);
                            continue;
                        }
                        Some(fault) => fault,
                    },
                    Err(_) => wanted("a list of image references", refs),
                };
                f.add(FaultCode::UnknownValue, &path, fault);
            }
        }
        Some(other) => f.add(
            FaultCode::UnknownValue,
            &path,
            wanted("a mapping of template to images", other),
        ),
    }
    images
}
