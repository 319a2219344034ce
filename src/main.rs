//! Command line → configuration → runtime; nothing else.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};
use lockgate::{
    config::{Config, ConfigErrors},
    server::{self, Control, Listeners, logging},
    tools::{
        change_nodes::{self, NodesStep},
        dev, doctor, exec, init, manual,
        say::{complain, say},
        time_argument, top,
    },
};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};
use tracing::warn;

/// The environment variable that names the configuration file.
const CONFIG_VARIABLE: &str = "LOCKGATE_CONFIG";
/// The port of an admin address that names none.
const ADMIN_PORT: u16 = 9380;

/// A Redis-protocol proxy that makes locks hold.
///
/// Without a configuration file it listens on 127.0.0.1:6380 before a Redis on
/// 127.0.0.1:6379, which is data node and only lock node at once.
#[derive(Parser)]
#[command(version = env!("LOCKGATE_VERSION"), args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    source: ConfigSource,
    /// Takes the place of the proxy that runs with the same upgrade_socket, without a
    /// client noticing.
    #[arg(long)]
    upgrade: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Where the configuration is; every command takes it in the same way.
#[derive(Args)]
struct ConfigSource {
    /// The configuration file; without it, the one that LOCKGATE_CONFIG names, or the
    /// defaults.
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The configuration file, in place of the argument.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigSource {
    /// Returns the file, if there is one.
    fn path(self) -> Option<PathBuf> {
        self.file.or(self.config).or_else(file_of_environment)
    }

    fn load(self) -> anyhow::Result<Config> {
        Ok(self.path().map_or_else(|| Ok(Config::default()), |file| Config::load(&file))?)
    }
}

#[derive(Subcommand)]
enum Command {
    /// Says all that is wrong with a configuration file, and with LOCKGATE_LOG.
    Check {
        #[command(flatten)]
        source: ConfigSource,
    },
    /// Looks at every Redis that a configuration file names, and says what is wrong
    /// with it and what to do about it. Fails if one is not fit for its part.
    Doctor {
        /// Tells it for programs.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        source: ConfigSource,
    },
    /// Says that the lock nodes of a configuration file are a new deployment: nobody holds a
    /// lock there, so they vote at once. Without it they wait as if they had been restarted.
    Init {
        /// Ends well, and writes nothing, where a node is set up already.
        #[arg(long)]
        if_new: bool,
        #[command(flatten)]
        source: ConfigSource,
    },
    /// Shows which lock nodes vote while locks.next_nodes are to take the place of locks.nodes, and
    /// makes that change while proxies run.
    Nodes {
        /// Makes the change: copies the locks, and has locks.next_nodes vote. May be repeated
        /// until it is done. All proxies must have read the file before.
        #[arg(long, conflicts_with = "back_out")]
        change: bool,
        /// For how long nobody may be granted a lock at most, as 30s or 500ms: longer copying is
        /// not begun, or is taken back. Half of locks.default_ttl without it; with more, session
        /// locks may be lost.
        #[arg(long, value_name = "TIME", requires = "change", value_parser = time_argument)]
        at_most: Option<Duration>,
        /// Takes a change back that has not come to its end.
        #[arg(long)]
        back_out: bool,
        #[command(flatten)]
        source: ConfigSource,
    },
    /// Runs a whole deployment on this machine, for trying things out.
    Dev(dev::Options),
    /// Asks a running proxy whether it is healthy, at the admin address of its
    /// configuration; for a container's HEALTHCHECK.
    Health {
        /// Its configuration file, or its admin address; without it, the file that
        /// LOCKGATE_CONFIG names, or 127.0.0.1:9380.
        #[arg(value_name = "FILE|ADDRESS", conflicts_with = "config")]
        at: Option<String>,
        /// Its configuration file.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Shows running proxies in the terminal, all in one: how each is, the lock nodes as they see
    /// them, and the locks that clients wait for, with who holds them. `?` says what each key does.
    Top {
        /// Where the proxies are: http://host:9380, host:9380, or the configuration file of one,
        /// for its admin address; without any, the file that LOCKGATE_CONFIG names, or
        /// 127.0.0.1:9380.
        #[arg(value_name = "URL|FILE")]
        at: Vec<String>,
        #[command(flatten)]
        options: top::TopOptions,
    },
    /// Runs a command under a lock, as flock(1) does, for many machines. Ends with the command's exit
    /// status; with 1 if another client holds the lock, 124 if it was lost, 125 if exec itself
    /// fails.
    Exec(exec::ExecOptions),
    /// Becomes the command of exec.
    #[command(hide = true)]
    ExecStep(exec::ExecStep),
    /// Writes the man pages, the completions for bash, fish and zsh and the configuration's JSON Schema into a
    /// directory.
    Manual {
        /// The directory; it is made where it is missing.
        #[arg(value_name = "DIRECTORY", required_unless_present = "schema")]
        directory: Option<PathBuf>,
        /// Prints the JSON Schema of the configuration, for editors, and nothing else.
        #[arg(long, conflicts_with = "directory")]
        schema: bool,
    },
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return match error.use_stderr() && is_exec() {
                true => ExitCode::from(exec::FAILED),
                false => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX)),
            };
        }
    };
    let result = match arguments.command {
        Some(Command::Check { source }) => check(source.path().as_deref()),
        Some(Command::Doctor { json, source }) => {
            let config = source.load();
            if let (true, Err(error)) = (json, &config)
                && let Some(errors) = error.downcast_ref()
            {
                doctor::tell_unusable(errors);
            }
            config.and_then(|config| doctor::run(&config, json))
        }
        Some(Command::Init { if_new, source }) => init::run(source.path().as_deref(), if_new),
        Some(Command::Nodes { change, at_most, back_out, source }) => {
            let step = match (change, back_out) {
                (true, _) => NodesStep::Change { at_most },
                (_, true) => NodesStep::BackOut,
                _ => NodesStep::Show,
            };
            source.load().and_then(|config| change_nodes::run(&config, step))
        }
        Some(Command::Dev(options)) => dev::run(&options),
        Some(Command::Health { at, config }) => health(at, config),
        Some(Command::Top { at, options }) => show(at, &options),
        Some(Command::Exec(options)) => return exec::run(&options),
        Some(Command::ExecStep(step)) => return exec::become_command(&step),
        Some(Command::Manual { directory, .. }) => {
            manual::run(Arguments::command(), directory.as_deref())
        }
        None => run(arguments.source.path(), arguments.upgrade),
    };
    logging::flush();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match error.downcast_ref::<ConfigErrors>() {
                // Each line begins with a place, as editors expect.
                Some(errors) => complain(errors),
                None => complain(format_args!("lockgate: {error:#}")),
            }
            ExitCode::FAILURE
        }
    }
}

/// Whether the command is exec, whose own statuses must not be taken for those of what it runs.
fn is_exec() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == "exec")
}

fn check(file: Option<&Path>) -> anyhow::Result<()> {
    let config = file.map_or_else(|| Ok(Config::default()), Config::load)?;
    logging::check()?;
    let nodes = config.locks.nodes.len();
    let nodes = if nodes == 1 { "1 lock node".into() } else { format!("{nodes} lock nodes") };
    let name =
        file.map_or_else(|| "no file, the defaults".into(), |file| file.display().to_string());
    say(format_args!("{name}: ok, data node {}, {nodes}", config.data));
    let certificates = config.certificate_troubles().into_iter().map(|trouble| trouble.what);
    let files = config.exposed_files(file);
    for note in config.notes().into_iter().chain(certificates).chain(files) {
        say(format_args!("note: {note}"));
    }
    Ok(())
}

/// Checks the health of the proxy at an address, or of the one that runs with a file.
fn health(at: Option<String>, config: Option<PathBuf>) -> anyhow::Result<()> {
    server::health_check(&admin_address(at, config)?)
}

/// Shows the proxies at these addresses, or those that run with these files.
fn show(at: Vec<String>, options: &top::TopOptions) -> anyhow::Result<()> {
    let addresses = match at.is_empty() {
        true => vec![admin_address(None, None)?],
        false => {
            at.into_iter().map(|at| admin_address(Some(at), None)).collect::<Result<_, _>>()?
        }
    };
    top::run(addresses, options)
}

/// Returns the given admin address, or that of a configuration file.
fn admin_address(at: Option<String>, config: Option<PathBuf>) -> anyhow::Result<String> {
    let file = match at {
        Some(at) if at.starts_with("https://") => {
            bail!("{at}: an admin address speaks plain HTTP: http://host:port");
        }
        Some(at) if at.starts_with("http://") => {
            return Ok(with_port(at.trim_start_matches("http://").trim_end_matches('/')));
        }
        // A name with a colon is an address, unless it is an existing file.
        Some(at) if at.contains(':') && !Path::new(&at).exists() => return Ok(with_port(&at)),
        at => at.map(PathBuf::from),
    };
    let admin = ConfigSource { file, config }.load()?.admin.listen;
    Ok(admin.context("admin is off: there is no address to ask")?.to_string())
}

/// Adds the default port to an admin address that has none.
fn with_port(address: &str) -> String {
    // An IPv6 address has colons too, but in brackets.
    let behind = address.rsplit_once(']').map_or(address, |(_, behind)| behind);
    match behind.contains(':') {
        true => address.to_owned(),
        false => format!("{address}:{ADMIN_PORT}"),
    }
}

/// Returns the file that the environment names. An empty variable names none: compose files pass on an unset one like
/// that.
fn file_of_environment() -> Option<PathBuf> {
    std::env::var_os(CONFIG_VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from)
}

fn run(file: Option<PathBuf>, take_over: bool) -> anyhow::Result<()> {
    // Before there are threads: this changes the environment.
    let listeners = Listeners::of_environment();
    if let Some(word) = file.as_ref().filter(|file| !file.exists()).and_then(|file| file.to_str())
        && !word.contains(['.', '/'])
    {
        bail!("{word} is no file, and no command: see lockgate --help");
    }
    let config = match &file {
        Some(file) => Config::load(file)?,
        None => Config::default(),
    };
    let log = logging::start(&config.log.level, &config.log.format)?;
    for note in config.notes().into_iter().chain(config.exposed_files(file.as_deref())) {
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
    // Does not wait for a name look-up that is never answered.
    runtime.shutdown_background();
    result
}
