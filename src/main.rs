//! Command line → configuration → runtime; nothing else.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use lockgate::{
    config::{Config, ConfigErrors},
    server::{self, Control, Listeners, logging},
    tools::{dev, doctor, init},
};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};
use tracing::warn;

/// The environment variable that names the configuration file.
const CONFIG_VARIABLE: &str = "LOCKGATE_CONFIG";

/// A Redis-protocol proxy that makes locks hold.
///
/// Without a configuration file it listens on 127.0.0.1:6380 before a Redis on
/// 127.0.0.1:6379, which is data node and only lock node at once.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// The configuration file; without it, the one that LOCKGATE_CONFIG names.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Takes the place of the proxy that runs with the same upgrade_socket, without a
    /// client noticing.
    #[arg(long)]
    upgrade: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Says all that is wrong with a configuration file.
    Check {
        /// The configuration file.
        file: PathBuf,
    },
    /// Looks at every Redis that a configuration file names, and says what is wrong
    /// with it and what to do about it.
    Doctor {
        /// The configuration file.
        file: PathBuf,
    },
    /// Says that the lock nodes of a configuration file are a new deployment: nobody holds a
    /// lock there, so they vote at once. Without it they wait as if they had been restarted.
    Init {
        /// Ends well, and writes nothing, where a node is set up already.
        #[arg(long)]
        if_new: bool,
        /// The configuration file; without it, the one that LOCKGATE_CONFIG names, or the
        /// defaults.
        file: Option<PathBuf>,
    },
    /// Runs a whole deployment on this machine, for trying things out.
    Dev(dev::Options),
    /// Asks a running proxy whether it is healthy; for a container's HEALTHCHECK.
    Health {
        /// Its admin address.
        #[arg(default_value = "127.0.0.1:9380")]
        admin: String,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Some(Command::Check { file }) => check(&file),
        Some(Command::Doctor { file }) => doctor::run(&file),
        Some(Command::Init { if_new, file }) => {
            init::run(file.or_else(file_of_environment).as_deref(), if_new)
        }
        Some(Command::Dev(options)) => dev::run(&options),
        Some(Command::Health { admin }) => server::health_check(&admin),
        None => run(arguments.config, arguments.upgrade),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match error.downcast_ref::<ConfigErrors>() {
                // Each line begins with a place, where editors look for it.
                Some(errors) => eprintln!("{errors}"),
                None => eprintln!("lockgate: {error:#}"),
            }
            ExitCode::FAILURE
        }
    }
}

fn check(file: &std::path::Path) -> anyhow::Result<()> {
    let config = Config::load(file)?;
    let nodes = config.locks.nodes.len();
    let nodes = if nodes == 1 { "1 lock node".into() } else { format!("{nodes} lock nodes") };
    println!("{}: ok, data node {}, {nodes}", file.display(), config.data);
    for note in config.notes() {
        println!("note: {note}");
    }
    Ok(())
}

/// The file that the environment names. An empty variable names none: compose files pass on an
/// unset one like that.
fn file_of_environment() -> Option<PathBuf> {
    std::env::var_os(CONFIG_VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from)
}

fn run(file: Option<PathBuf>, take_over: bool) -> anyhow::Result<()> {
    // Before there are threads: this changes the environment.
    let listeners = Listeners::of_environment();
    let file = file.or_else(file_of_environment);
    let config = match &file {
        Some(file) => Config::load(file)?,
        None => Config::default(),
    };
    let log = logging::start(&config.log.level, &config.log.format)?;
    for note in config.notes() {
        warn!("{note}");
    }
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let control = Control { file, log: Some(log), listeners, take_over, ..Control::default() };
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let mut user = signal(SignalKind::user_defined2())?;
        let shutdown = control.shutdown.clone();
        let (reload, upgrade) = (control.reload.clone(), control.upgrade.clone());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => shutdown.cancel(),
                    _ = interrupt.recv() => shutdown.cancel(),
                    _ = hang_up.recv() => reload.notify_one(),
                    _ = user.recv() => upgrade.notify_one(),
                }
            }
        });
        server::run(config, control).await
    });
    // Nobody waits for a name look-up that is never answered.
    runtime.shutdown_background();
    result
}
