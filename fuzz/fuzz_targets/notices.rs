//! Documents of a cloud's metadata service, as a worker reads them.
#![no_main]

#[allow(
    dead_code,
    reason = "the target parses; what follows is for the worker"
)]
#[path = "../../crates/worker/src/notice/document.rs"]
mod document;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(action) = document::Action::read(text) {
        let value: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
        assert_eq!(value["action"].as_str(), Some(action.action.as_str()));
        // A deadline is one that the document names.
        assert!(action.deadline().is_none() || value["time"].is_string());
    }
    if let Ok(instance) = document::Instance::read(text) {
        let _ = instance.is_ending();
    }
});
