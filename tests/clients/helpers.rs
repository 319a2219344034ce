//! The helper packages in `clients/`, built and installed as their users install them. The tests of each are programs
//! in its own language, in `tests/clients/helpers/`, which start their servers themselves.

use std::{process::Output, sync::PoisonError};

use super::{MACHINE, file, run_within};

/// The longest time for all tests of a package, in seconds: they wait for servers more than they work.
const LIMIT: &str = "400";

/// Builds, installs and tests the helper for a language, by a program in `tests/clients/helpers/`.
fn helper_works(program: &str, arguments: &[&str]) -> Output {
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    run_within(LIMIT, program, &[arguments, &[env!("CARGO_BIN_EXE_lockgate")]].concat(), b"")
}

#[test]
fn the_python_helper_works() {
    let program = file("helpers/python/run.sh");
    let said = helper_works(program.to_str().unwrap(), &[]).stdout;
    assert!(said.ends_with(b" tests ok\n"), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn the_node_helper_works() {
    let script = file("helpers/node/run.mjs");
    let said = helper_works("node", &[script.to_str().unwrap()]).stdout;
    let text = String::from_utf8_lossy(&said);
    assert!(text.contains("pass ") && text.contains("fail 0"), "{text}");
}

#[test]
fn the_examples_work() {
    let script = file("helpers/examples.py");
    let python = file(".venv/bin/python");
    let said = helper_works(python.to_str().unwrap(), &[script.to_str().unwrap()]).stdout;
    assert_eq!(String::from_utf8_lossy(&said), "examples ok\n");
}
