//! The overrides file.
#![no_main]

use greenroom_types::overrides::Overrides;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Overrides::read(text) {
        Ok(overrides) => {
            let _ = overrides.regions("aws");
            assert!(overrides.changes_from(&overrides).is_empty());
            let written = serde_json::to_string(&overrides).expect("it can be written");
            let again: Overrides = serde_json::from_str(&written).expect("and read again");
            assert_eq!(again, overrides);
        }
        Err(faults) => assert!(!faults.is_empty()),
    }
});
