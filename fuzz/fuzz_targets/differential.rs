//! See `differential` in tests/fuzzing/properties.
#![no_main]

#[path = "../../tests/fuzzing/properties/mod.rs"]
mod properties;

use std::cell::RefCell;

use properties::differential::Twins;

thread_local! {
    /// Of the thread that calls the target, which is one for the whole run.
    static TWINS: RefCell<Twins> = RefCell::new(Twins::start());
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| TWINS.with_borrow_mut(|twins| twins.check(input)));
