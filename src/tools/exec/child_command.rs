//! The command of `lockgate exec`: how it starts, gets signals, and ends.
//!
//! On Linux it gets TERM when exec is killed: a step between sets that and then becomes the command
//! ([`become_command`]). exec adopts orphans among its descendants, so that it finds all of them when they must end.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::Path,
    pin::Pin,
    process::{ExitCode, ExitStatus},
    task::Poll,
    time::Duration,
};

use clap::Args;
use rustix::process::{Pid, Signal, getpgrp, getpid, getppid, kill_process};
use tokio::{
    process::{Child, Command},
    signal::unix::{self, SignalKind},
    time::{Instant, sleep},
};

use super::super::say::complain;

/// This program.
const OURSELVES: &str = "/proc/self/exe";
/// How often descendants that were killed are looked for again.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Exit statuses of a shell for a command that cannot be run, and for one that is not there.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The command that becomes another.
#[derive(Debug, Args)]
pub struct ExecStep {
    /// The process that has started this one.
    parent: i32,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the command, which gets TERM when its parent ends. Returns only if it cannot.
pub fn become_command(step: &ExecStep) -> ExitCode {
    #[cfg(target_os = "linux")]
    {
        let told = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
        // The parent may have ended before.
        let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
        if told.is_err() || parent != Some(step.parent) {
            return ExitCode::from(super::FAILED);
        }
    }
    let Some((program, arguments)) = step.command.split_first() else {
        return ExitCode::from(super::FAILED);
    };
    let error = std::process::Command::new(program).args(arguments).exec();
    complain(format_args!("lockgate exec: {}: {error}", program.to_string_lossy()));
    ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_RUN,
    })
}

/// A command that runs.
pub(super) struct ChildCommand {
    child: Child,
}

impl ChildCommand {
    /// Starts the command with these variables in its environment.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn start(
        words: &[OsString],
        environment: &[(&'static str, Vec<u8>)],
    ) -> io::Result<ChildCommand> {
        let mut command = match words.split_first() {
            _ if Path::new(OURSELVES).exists() => {
                let mut command = Command::new(OURSELVES);
                let own = getpid().as_raw_nonzero().to_string();
                command.arg("exec-step").arg(own).arg("--").args(words);
                command
            }
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            None => return Err(io::ErrorKind::InvalidInput.into()),
        };
        for (name, value) in environment {
            command.env(name, OsStr::from_bytes(value));
        }
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid()))?;
        Ok(ChildCommand { child: command.spawn()? })
    }

    /// Waits for the command's end. Returns its exit status as a shell has it.
    pub(super) async fn wait(&mut self) -> io::Result<u8> {
        self.child.wait().await.map(status)
    }

    /// Passes a signal on to the command.
    pub(super) fn pass_on(&self, signal: Signal) {
        if let Some(pid) = self.child.id().and_then(pid) {
            // It may have ended.
            let _ = kill_process(pid, signal);
        }
    }

    /// Asks the command and all its descendants to end.
    pub(super) fn terminate(&self) {
        for pid in descendants() {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Ends the command and all its descendants.
    pub(super) async fn kill(&self) {
        // One that is just being made may be missed.
        loop {
            let found = descendants();
            for pid in &found {
                let _ = kill_process(*pid, Signal::KILL);
            }
            sleep(LOOK_EVERY).await;
            if found.is_empty() {
                return;
            }
        }
    }

    /// Waits until all descendants of a command that has ended are gone too, and ends them at `kill_at`.
    pub(super) async fn end_descendants(&self, kill_at: Instant) {
        while !descendants().is_empty() {
            match Instant::now() < kill_at {
                true => sleep(LOOK_EVERY).await,
                false => self.kill().await,
            }
        }
    }
}

/// Returns a command's exit status as a shell has it.
fn status(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(super::FAILED)
}

fn pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

/// Returns all processes below this one that have not ended.
fn descendants() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all: Vec<(i32, i32)> = entries
        .filter_map(|entry| {
            let id: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // Behind the program's name, which may have brackets: the state, and the parent.
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
            let state = fields.next()?;
            let parent = fields.next()?.parse().ok()?;
            (!matches!(state, "Z" | "X")).then_some((id, parent))
        })
        .collect();
    let mut family = vec![getpid().as_raw_nonzero().get()];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(all.iter().filter(|(_, of)| *of == parent).map(|(id, _)| *id));
        at += 1;
    }
    family.drain(1..).filter_map(Pid::from_raw).collect()
}

/// The signals that exec passes on.
pub(super) struct Signals {
    all: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Listens to the signals that this process does not ignore.
    pub(super) fn listen() -> Signals {
        let ignored = ignored();
        let all =
            [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
        let listening = all
            .into_iter()
            .filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0)
            .filter_map(|signal| {
                Some((signal, unix::signal(SignalKind::from_raw(signal.as_raw())).ok()?))
            });
        Signals { all: listening.collect() }
    }

    /// Waits for the next signal that the command must be sent.
    pub(super) async fn next(&mut self) -> Signal {
        loop {
            let signal = std::future::poll_fn(|cx| {
                for (signal, coming) in &mut self.all {
                    if let Poll::Ready(Some(())) = Pin::new(coming).poll_recv(cx) {
                        return Poll::Ready(*signal);
                    }
                }
                Poll::Pending
            })
            .await;
            // The terminal has sent it to the command as well.
            if !(matches!(signal, Signal::INT | Signal::QUIT) && is_in_foreground()) {
                return signal;
            }
        }
    }
}

/// Whether keys of the terminal send signals to this process and its command.
fn is_in_foreground() -> bool {
    let Ok(terminal) = fs::File::open("/dev/tty") else { return false };
    rustix::termios::tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}

/// Returns the signals that this process ignores, a bit each, as nohup makes it ignore HUP.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
