//! Adds the commit to the version of a release build, unless that commit is the release itself, so that `--version`
//! tells the two apart.
//!
//! Other builds leave it out: each new commit would rebuild them.

use std::{env, path::Path, process::Command};

/// Runs git and returns its one line of output. `None`: there is no git, or no repository, as in a source package.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}

/// Returns the version to show for a build of `commit`, which has these tags.
fn told(version: &str, commit: Option<&str>, tags: &str) -> String {
    match commit {
        Some(commit) if !tags.lines().any(|tag| tag.strip_prefix('v') == Some(version)) => {
            format!("{version} (commit {commit})")
        }
        _ => version.to_owned(),
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let mut commit = None;
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        commit = git(&["rev-parse", "--short=10", "HEAD"]);
        let branch = git(&["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_default();
        for name in ["HEAD", "packed-refs", &branch] {
            // If one of these files did not exist, Cargo would run this script each time.
            let path = git(&["rev-parse", "--git-path", name]);
            if let Some(path) = path.filter(|path| Path::new(path).is_file()) {
                println!("cargo::rerun-if-changed={path}");
            }
        }
    }
    let tags = git(&["tag", "--points-at", "HEAD"]).unwrap_or_default();
    println!("cargo::rustc-env=LOCKGATE_VERSION={}", told(&version, commit.as_deref(), &tags));
}

#[cfg(test)]
mod tests {
    use super::told;

    #[test]
    fn a_build_of_another_commit_than_the_release_names_it() {
        assert_eq!(told("0.1.0", Some("1a2b3c4d5e"), ""), "0.1.0 (commit 1a2b3c4d5e)");
        assert_eq!(
            told("0.1.0", Some("1a2b3c4d5e"), "v0.0.9\nlatest"),
            "0.1.0 (commit 1a2b3c4d5e)"
        );
        assert_eq!(told("0.1.0", Some("1a2b3c4d5e"), "latest\nv0.1.0"), "0.1.0");
        assert_eq!(told("0.1.0", None, ""), "0.1.0", "a source package");
    }
}
