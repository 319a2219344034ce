//! `lockgate top`: several proxies, their lock nodes and their locks in a terminal, from the JSON of their admin
//! addresses. It changes nothing.
//!
//! - `fetch`: asks one proxy again and again; `documents`: what it answers; `wanted`: what it is asked; `plain`: names
//!   of clients and locks, made fit for a terminal.
//! - `merge`: the reports of several proxies in one.
//! - `choices`: what the user has chosen, and what each key changes; `draw`: the screen; `layout`: rows on a screen of
//!   any width; `terminal`: the screen on a terminal.

mod choices;
mod documents;
mod draw;
mod fetch;
mod layout;
mod merge;
mod plain;
mod terminal;
mod wanted;

use std::{
    io::{self, IsTerminal, Write},
    thread,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use clap::Args;
use crossterm::event::{self, Event, KeyEventKind};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use self::{
    choices::{Onward, View},
    draw::Board,
    fetch::HeardRound,
    merge::{LockRow, NodeRow, WaiterRow, WatchedProxy},
    terminal::Terminal,
    wanted::WantedLists,
};

/// How often the screen is redrawn without new reports, as the times on it go on.
const REDRAW: Duration = Duration::from_secs(1);
/// The columns of a screen that goes into a file, if COLUMNS is not set.
const COLUMNS_ONCE: u16 = 160;
/// Most columns, as each takes memory.
const MOST_COLUMNS: u16 = 1000;

/// How the screen is to be.
#[derive(Debug, Clone, Args)]
pub struct TopOptions {
    /// How often each proxy is asked.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = every)]
    interval: Duration,
    /// Asks twice, writes one screen as plain text, and ends; so it does anyway where the output is
    /// no terminal. Fails if no proxy can be reached.
    #[arg(long)]
    once: bool,
}

/// Reads the interval.
fn every(text: &str) -> Result<Duration, String> {
    let time = crate::config::duration(text).ok_or("a time has a unit: 500ms, 2s, 1m")?;
    let allowed = Duration::from_millis(500)..=Duration::from_secs(3600);
    if allowed.contains(&time) { Ok(time) } else { Err("from 500ms to 1h".into()) }
}

/// Shows the proxies at these admin addresses until the user ends it.
///
/// # Errors
/// If an address is malformed, no proxy can be reached (`--once`), or the terminal cannot be used.
pub fn run(addresses: Vec<String>, options: &TopOptions) -> anyhow::Result<()> {
    for address in &addresses {
        if address.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            bail!("{address} is no admin address: host:port");
        }
        // It becomes part of each request.
        if address.contains(|c: char| c.is_control() || c.is_whitespace() || c == '/') {
            bail!("{address:?} is no admin address: host:port");
        }
    }
    let screen = Screen {
        proxies: addresses.iter().map(|address| WatchedProxy::new(address)).collect(),
        every: options.interval,
        colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        ..Screen::default()
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let result = match options.once || !io::stdout().is_terminal() {
        true => runtime.block_on(screen.tell_once(&addresses)),
        false => runtime.block_on(screen.show(&addresses)),
    };
    // Does not wait for a name look-up that is never answered.
    runtime.shutdown_background();
    result
}

/// What was heard, merged, and what the user has chosen to see.
#[derive(Default)]
struct Screen {
    proxies: Vec<WatchedProxy>,
    nodes: Vec<NodeRow>,
    locks: Vec<LockRow>,
    line: Vec<WaiterRow>,
    view: View,
    every: Duration,
    colours: bool,
}

impl Screen {
    fn board(&self) -> Board<'_> {
        Board {
            proxies: &self.proxies,
            nodes: &self.nodes,
            locks: &self.locks,
            line: &self.line,
            view: &self.view,
            now: SystemTime::now(),
            every: self.every,
        }
    }

    fn hear(&mut self, (place, heard): HeardRound) {
        if let Some(proxy) = self.proxies.get_mut(place) {
            proxy.hear(heard, SystemTime::now());
        }
    }

    fn merge(&mut self) {
        merge::find_same(&mut self.proxies);
        self.nodes = merge::nodes(&self.proxies);
        self.locks = merge::locks(&self.proxies, self.view.sort, self.view.pattern().as_deref());
        self.line = merge::line(&self.proxies);
        self.view.follow(&self.locks);
    }

    /// The last place of the open lock's line, behind the permits if it is a family.
    fn last_place(&self) -> usize {
        let open = self.locks.iter().find(|lock| Some(&lock.name.0) == self.view.open.as_ref());
        let permits = open.and_then(|lock| Some(lock.family.as_ref()?.permits.len()));
        (permits.unwrap_or(0) + self.line.len()).saturating_sub(1)
    }

    /// Writes one screen as text. Asks twice, as a rate needs two samples.
    async fn tell_once(mut self, addresses: &[String]) -> anyhow::Result<()> {
        for is_last in [false, true] {
            let mut asked = JoinSet::new();
            for (place, address) in addresses.iter().cloned().enumerate() {
                asked.spawn(
                    async move { (place, fetch::ask(&address, &WantedLists::default()).await) },
                );
            }
            while let Some(heard) = asked.join_next().await {
                self.hear(heard?);
            }
            if !is_last {
                sleep(self.every).await;
            }
        }
        self.merge();
        let mut text = self.board().text(columns()).join("\n");
        text.push('\n');
        match io::stdout().write_all(text.as_bytes()) {
            // The reader has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
        if self.proxies.iter().all(|proxy| proxy.round.is_none()) {
            bail!("no proxy can be reached");
        }
        Ok(())
    }

    /// Shows the screen until the user or a signal ends it.
    async fn show(mut self, addresses: &[String]) -> anyhow::Result<()> {
        // Installed before the terminal is taken, as a signal must give it back.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let (wants, wanted) = watch::channel(WantedLists::default());
        let (tell, mut told) = mpsc::channel(addresses.len().max(1));
        let mut asking = JoinSet::new();
        for (place, address) in addresses.iter().cloned().enumerate() {
            let at = (place, address);
            asking.spawn(fetch::keep_asking(at, self.every, wanted.clone(), tell.clone()));
        }
        let mut terminal = Terminal::take(self.colours).context("the terminal cannot be used")?;
        let mut events = read_terminal();
        let mut ticks = interval(REDRAW);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if let Err(error) = terminal.show(|width, height| self.board().draw(width, height)) {
                break Err(error.into());
            }
            tokio::select! {
                heard = told.recv() => {
                    let Some(heard) = heard else { break Ok(()) };
                    // A report that was on its way when the pause began is not shown either.
                    if !self.view.paused {
                        self.hear(heard);
                        self.merge();
                    }
                }
                event = events.recv() => match event {
                    Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                        if self.view.press(key, &self.locks) == Onward::Quit {
                            break Ok(());
                        }
                        // Otherwise each key press beyond the end would need one more on the way back.
                        self.view.scrolled = self.view.scrolled.min(self.last_place());
                        let now_wanted = self.view.wanted();
                        let is_new = wants.send_if_modified(|wanted| {
                            let is_new = *wanted != now_wanted;
                            *wanted = now_wanted;
                            is_new
                        });
                        if is_new {
                            self.merge();
                        }
                    }
                    // A new size, say: drawing asks for it.
                    Some(_) => {}
                    // The terminal is gone.
                    None => break Ok(()),
                },
                _ = ticks.tick() => {}
                _ = terminate.recv() => break Ok(()),
                _ = interrupt.recv() => break Ok(()),
                _ = hang_up.recv() => break Ok(()),
            }
        }
    }
}

/// Returns the terminal's events. The thread that reads them ends with the process, as nothing else ends its
/// reading.
fn read_terminal() -> mpsc::Receiver<Event> {
    let (tell, told) = mpsc::channel(64);
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if tell.blocking_send(event).is_err() {
                return;
            }
        }
    });
    told
}

/// The width of a screen of text.
fn columns() -> u16 {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let of_terminal = || {
        let is_one = io::stdout().is_terminal();
        is_one.then(crossterm::terminal::size).and_then(Result::ok).map(|(columns, _)| columns)
    };
    told.or_else(of_terminal).unwrap_or(COLUMNS_ONCE).clamp(1, MOST_COLUMNS)
}
