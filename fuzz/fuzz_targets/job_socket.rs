//! Frames of the job socket, as a worker reads them from a job.
#![no_main]

#[allow(
    dead_code,
    reason = "the target parses; what follows is for the worker"
)]
#[path = "../../crates/worker/src/socket/line.rs"]
mod line;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    for bytes in input.split(|byte| *byte == b'\n') {
        if let Ok(message) = line::Message::parse(bytes) {
            assert!(message.id > 0);
            // Whatever passes is what JSON says it is, and can be written again.
            let value: serde_json::Value = serde_json::from_slice(bytes).expect("it is JSON");
            assert_eq!(value["type"].as_str(), Some(message.kind.as_str()));
            assert!(serde_json::to_vec(&message.fields).is_ok());
            let _ = message.text("text");
        }
    }
});
