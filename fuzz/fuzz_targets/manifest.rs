//! Manifests of bundles, as people write them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match greenroom_manifest::read_bundles("input.yaml", text) {
        Ok(manifests) => {
            for manifest in manifests {
                let _ = greenroom_ledger::bundle_faults(&manifest.bundle);
            }
        }
        Err(problems) => assert!(!problems.is_empty()),
    }
});
