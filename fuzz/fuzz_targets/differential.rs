//! See `differential` in tests/fuzzing/properties.
#![no_main]

#[path = "../../tests/fuzzing/properties/mod.rs"]
mod properties;

use std::cell::RefCell;

use properties::differential::Twins;

thread_local! {
    /// The twins of the thread that calls the target; a run has one such thread.
    static TWINS: RefCell<Twins> = RefCell::new(Twins::start());
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| TWINS.with_borrow_mut(|twins| twins.check(input)));
