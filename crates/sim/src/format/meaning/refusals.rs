//! Codes with which the product refuses what an operator does.

use greenroom_policy::migration::MigrationRefusal;
use greenroom_policy::settings::FaultCode;
use greenroom_types::tree;

use crate::served::leaf::words;

/// Codes of the policy, but for those of migrations and settings, and that of `startFails`.
const POLICY: [&str; 13] = [
    "closed",
    "exclusiveWithoutReservedFor",
    "noCapacityInAnyPool",
    "nodeNotRunning",
    "notASpare",
    "notKept",
    "onAir",
    "pastPointOfNoReturn",
    "start_failed",
    "timedOut",
    "unavailable",
    "unknownBundle",
    "unknownNode",
];

/// Codes of the Manager (manager.md) for calls that an operator's act stands for.
const MANAGER: [&str; 45] = [
    "already_on_node",
    "already_running",
    "auto_placement",
    "bad_architecture",
    "bad_bundle",
    "bad_image_ref",
    "bad_job",
    "bad_job_id",
    "bad_lease",
    "bad_node_id",
    "bad_overrides",
    "bad_role",
    "bad_spare_spec",
    "bad_tag",
    "bad_timestamp",
    "bad_window",
    "bundle_exists",
    "deleting",
    "duplicate_instance",
    "job_dormant",
    "job_exists",
    "job_of_bundle",
    "job_terminal",
    "lease_held",
    "leases_paused",
    "missing_field",
    "no_instance",
    "node_cordoned",
    "node_not_running",
    "node_stopping",
    "node_unreachable",
    "not_cooperative",
    "not_elastic",
    "not_prepared",
    "provider_error",
    "provider_not_configured",
    "reserved_tag",
    "revision_mismatch",
    "too_large",
    "too_many_bundles",
    "too_many_jobs",
    "unknown_bundle",
    "unknown_bundle_job",
    "unknown_job",
    "unknown_node",
];

/// Whether the product has such a code. Why a migration came to nothing is told in words.
pub(super) fn known(code: &str, is_migration: bool) -> Result<(), String> {
    let is_prose = code.contains(' ') && !code.chars().any(char::is_control);
    if is_prose && is_migration {
        return Ok(());
    }
    let mut all = words::<MigrationRefusal>();
    all.extend(words::<FaultCode>());
    all.extend(POLICY);
    all.extend(MANAGER);
    if all.contains(&code) {
        return Ok(());
    }
    Err(tree::unknown_word(code, &all))
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SCEN-07
    #[test]
    fn the_codes_of_the_manager_are_those_of_its_specification() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/spec/manager.md");
        let text = std::fs::read_to_string(file).expect("the specification is text");
        let missing: Vec<&str> = MANAGER
            .into_iter()
            .filter(|code| !text.contains(&format!("`{code}`")))
            .collect();
        assert!(missing.is_empty(), "{missing:?} stand nowhere");
        assert!(known("foo", false).is_err());
        assert!(known("the target could not be started", false).is_err());
        assert_eq!(known("the target could not be started", true), Ok(()));
    }
}
