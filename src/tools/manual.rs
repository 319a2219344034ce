//! `lockgate manual`: man pages, shell completions and the configuration's JSON Schema. They are made from the
//! definition of the command line and the table of keys, so that they match this binary.

use std::{fs, io, path::Path};

use super::say::say;
use crate::config;
use anyhow::Context as _;
use clap::Command;
use clap_complete::{
    Generator,
    shells::{Bash, Fish, Zsh},
};
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

/// Sections that follow those of clap: headings, each with names and their meanings.
const SECTIONS: &[(&str, &[(&str, &str)])] = &[
    (
        "FILES",
        &[
            (
                "/etc/lockgate/lockgate.yaml",
                "The configuration that the packages' service reads. Each key stands in it with its default and \
                 when to touch it.",
            ),
            (
                "/etc/lockgate/environment",
                "What ${NAME} in that configuration stands for, as NAME=value, where the file is there.",
            ),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            ("LOCKGATE_CONFIG", "The configuration file, where the command line names none."),
            ("LOCKGATE_URL", "The proxy that lockgate exec asks, where --server names none."),
            ("LOCKGATE_LOG", "What is logged: a level, which takes the place of log.level."),
        ],
    ),
    (
        "SIGNALS",
        &[
            ("SIGTERM, SIGINT", "Ends the proxy, after commands under way are answered."),
            ("SIGHUP", "Has the configuration read again."),
            ("SIGUSR2", "Starts the program anew, which takes over (upgrade_socket)."),
        ],
    ),
];

/// Writes `man/*.1`, `completions/*` and the schema into `directory`, which is made if it is missing; without one it
/// prints the schema.
///
/// # Errors
/// If a file cannot be written.
pub fn run(command: Command, directory: Option<&Path>) -> anyhow::Result<()> {
    let Some(directory) = directory else {
        say(schema()?.trim_end());
        return Ok(());
    };
    let written = write(command, directory);
    written.with_context(|| format!("cannot write to {}", directory.display()))
}

fn write(mut command: Command, directory: &Path) -> io::Result<()> {
    let (pages, completions) = (directory.join("man"), directory.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    // First, as making the completions adds help commands, which would get pages too.
    clap_mangen::generate_to(command.clone(), &pages)?;
    let mut page = Vec::new();
    Man::new(command.clone().disable_help_subcommand(true)).render(&mut page)?;
    page.extend(sections().to_roff().into_bytes());
    fs::write(pages.join("lockgate.1"), page)?;
    fs::write(directory.join("lockgate.schema.json"), schema()?)?;
    complete(Bash, &mut command, &completions)?;
    complete(Fish, &mut command, &completions)?;
    complete(Zsh, &mut command, &completions)
}

fn schema() -> serde_json::Result<String> {
    serde_json::to_string_pretty(&config::schema()).map(|text| text + "\n")
}

fn complete(shell: impl Generator, command: &mut Command, directory: &Path) -> io::Result<()> {
    clap_complete::generate_to(shell, command, "lockgate", directory).map(drop)
}

fn sections() -> Roff {
    let mut page = Roff::new();
    for (heading, entries) in SECTIONS {
        page.control("SH", [*heading]);
        for (name, meaning) in *entries {
            page.control("TP", []);
            page.text([bold(*name)]);
            page.text([roman(*meaning)]);
        }
    }
    page
}
