//! Man pages and completions cover what the command line understands.

use std::{fs, path::Path, process::Command};

fn lockgate(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the first words of the lines of a section of `help`.
fn entries(help: &str, section: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != section).skip(1);
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with(' '));
    // The meaning of a word may have lines of its own, with a larger indent.
    let lines = lines.filter(|line| line.len() - line.trim_start().len() < 8);
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Returns the page as a reader sees it, without the marks for bold text.
fn page(directory: &Path, name: &str) -> String {
    let text = fs::read_to_string(directory.join("man").join(name)).unwrap();
    text.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
}

#[test]
fn each_command_and_option_has_its_place_in_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("made");
    lockgate(&["manual", directory.to_str().unwrap()]);
    let help = lockgate(&["--help"]);
    let commands = entries(&help, "Commands:");
    assert!(commands.iter().any(|command| command == "doctor"), "{help}");
    let main = page(&directory, "lockgate.1");
    let schema = fs::read_to_string(directory.join("lockgate.schema.json")).unwrap();
    assert_eq!(schema, lockgate(&["manual", "--schema"]));
    for heading in [".SH NAME", ".SH FILES", ".SH ENVIRONMENT", ".SH SIGNALS"] {
        assert!(main.contains(heading), "{heading} is missing:\n{main}");
    }
    let pages = commands.iter().filter(|command| *command != "help");
    for command in pages.clone() {
        assert!(main.contains(&format!("lockgate-{command}(1)")), "{command} is not in lockgate.1");
    }
    for command in [""].into_iter().chain(pages.map(String::as_str)) {
        let (help, name) = match command {
            "" => (help.clone(), "lockgate.1".to_owned()),
            command => (lockgate(&[command, "--help"]), format!("lockgate-{command}.1")),
        };
        let options = entries(&help, "Options:");
        let options = options.iter().filter(|option| option.starts_with("--"));
        assert!(help.contains("--help"), "{help}");
        let page = page(&directory, &name);
        for option in options {
            assert!(page.contains(option.as_str()), "{option} is not in {name}:\n{page}");
        }
    }
}

#[test]
fn a_shell_completes_commands_and_options() {
    let directory = tempfile::tempdir().unwrap();
    lockgate(&["manual", directory.path().to_str().unwrap()]);
    let completions = directory.path().join("completions");
    assert!(completions.join("_lockgate").exists() && completions.join("lockgate.fish").exists());
    let complete = |words: &str| {
        let script = format!(
            "source '{}'; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _lockgate lockgate \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
             echo \"${{COMPREPLY[@]}}\"",
            completions.join("lockgate.bash").display()
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(complete("lockgate doc"), "doctor");
    assert_eq!(complete("lockgate doctor --js"), "--json");
}
