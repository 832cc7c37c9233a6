//! Settings of the Manager, contexts of its callers, and settings of the control plane.
#![no_main]

use greenroom_manifest::manager::{Context, ManagerFile};
use libfuzzer_sys::fuzz_target;

fn read<T: serde::de::DeserializeOwned + serde::Serialize>(text: &str) {
    let told = greenroom_manifest::every_problem::<T>("input.yaml", text);
    let read = greenroom_manifest::read::<T>("input.yaml", text);
    assert_eq!(told.is_empty(), read.is_ok(), "{told:?}");
    for settings in read.into_iter().flatten() {
        assert!(serde_json::to_string(&settings).is_ok());
    }
}

fuzz_target!(|text: &str| {
    read::<ManagerFile>(text);
    read::<Context>(text);
    let _ = greenroom_manifest::read::<greenroom_policy::Settings>("input.yaml", text);
});
