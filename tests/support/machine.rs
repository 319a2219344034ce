//! Checks for what some tests need of the machine. Where it is missing, they fail with a line that says so.

use std::process::Command;

/// Fails unless a process can have mounts of its own.
pub fn has_own_mounts() {
    works("root, and a root directory that is a mount", &["unshare", "--mount", "true"]);
}

/// Fails unless a process can have a host name of its own.
pub fn has_own_host_names() {
    works("root, and namespaces of host names", &["unshare", "--uts", "true"]);
}

/// Fails unless there are pseudo-terminals.
pub fn has_terminals() {
    let script = ["script", "--quiet", "--return", "--command", "true", "/dev/null"];
    works("pseudo-terminals: /dev/pts mounted, and /dev/ptmx", &script);
}

fn works(needed: &str, command: &[&str]) {
    let output = Command::new(command[0]).args(&command[1..]).output();
    let told = match output {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    panic!("this test needs {needed} ({}: {told})", command.join(" "));
}
