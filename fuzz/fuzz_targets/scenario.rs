//! Scenario files.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = greenroom_sim::Scenario::read("input.yaml", text);
});
