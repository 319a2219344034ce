//! See `bodies` in tests/fuzzing/properties.
#![no_main]

#[path = "../../tests/fuzzing/properties/mod.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::bodies::check(input));
