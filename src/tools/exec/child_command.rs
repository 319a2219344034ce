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
use rustix::process::{
    Pid, Signal, WaitOptions, getpgrp, getpid, getppid, kill_process, wait, waitpid,
};
use tokio::{
    process::{Child, Command},
    signal::unix::{self, SignalKind},
    time::{Instant, sleep},
};

use super::super::say::complain;
use crate::log_text::plain_line;

/// This program.
const OURSELVES: &str = "/proc/self/exe";
/// How often descendants that were killed are looked for again.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The signals that the command gets too.
const PASSED_ON: [Signal; 7] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::ALARM,
    Signal::USR1,
    Signal::USR2,
];
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
    let program = program.to_string_lossy();
    complain(format_args!("lockgate exec: {}: {error}", plain_line(&program)));
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
        signal_all(Signal::TERM);
    }

    /// Ends the command and those of its descendants that can be seen now; [`ChildCommand::end_descendants`] ends the
    /// others.
    pub(super) fn kill(&self) {
        signal_all(Signal::KILL);
    }

    /// Reaps orphans that have ended, which were adopted from the command.
    pub(super) fn reap_orphans(&self) {
        let own = self.child.id().and_then(pid);
        for process in processes().filter(|process| process.is_ended && process.parent == getpid())
        {
            if Some(process.pid) != own {
                // It is not reaped twice: only this thread does.
                let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
            }
        }
    }

    /// Waits until all descendants of a command that has ended and was waited for are gone too, and ends them from
    /// `kill_at` on. Each of them that is not a child of another is one of this process, so none is left once this
    /// process has no child: a list of processes may miss one that was just made.
    pub(super) async fn end_descendants(self, kill_at: Instant) {
        while has_children() {
            if Instant::now() >= kill_at {
                signal_all(Signal::KILL);
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Reaps all children that have ended. Returns whether any is left.
fn has_children() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Sends a signal to all processes below this one that can be seen now.
fn signal_all(signal: Signal) {
    for pid in descendants() {
        // It may have ended.
        let _ = kill_process(pid, signal);
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

/// A process, as /proc has it.
struct Process {
    pid: Pid,
    parent: Pid,
    /// It has ended, and its parent has not waited for it yet.
    is_ended: bool,
}

/// Returns all processes.
fn processes() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // Behind the program's name, which may have brackets: the state, and the parent.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let is_ended = matches!(fields.next()?, "Z" | "X");
        let parent = Pid::from_raw(fields.next()?.parse().ok()?)?;
        Some(Process { pid, parent, is_ended })
    })
}

/// Returns all processes below this one that have not ended.
fn descendants() -> Vec<Pid> {
    let all: Vec<Process> = processes().filter(|process| !process.is_ended).collect();
    let mut family = vec![getpid()];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        let children = all.iter().filter(|process| process.parent == parent);
        family.extend(children.map(|process| process.pid));
        at += 1;
    }
    family.split_off(1)
}

/// The signals that exec passes on.
pub(super) struct Signals {
    all: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Listens to the signals that this process does not ignore.
    pub(super) fn listen() -> Signals {
        let ignored = ignored();
        let listening = PASSED_ON
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
