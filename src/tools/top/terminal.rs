//! Shows the screen on a terminal, and then gives the terminal back as it was.

use std::{
    io::{self, Write as _},
    panic, thread,
};

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    execute, queue,
    style::{Attribute, Color, Print, SetAttribute, SetForegroundColor},
    terminal::{self, BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate},
};

use super::layout::{Sheet, SheetLine, Tone};

/// A terminal in raw mode and on its alternate screen, until this is dropped.
pub(super) struct Terminal {
    colours: bool,
    /// The terminal's columns and lines, and what it shows.
    shown: ((u16, u16), Sheet),
}

impl Terminal {
    /// Takes the terminal that this process writes to.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn take(colours: bool) -> io::Result<Terminal> {
        let told_before = panic::take_hook();
        // The message of a panic must not go to the alternate screen.
        panic::set_hook(Box::new(move |panicked| {
            give_back();
            told_before(panicked);
        }));
        terminal::enable_raw_mode()?;
        let terminal = Terminal { colours, shown: ((0, 0), Sheet::default()) };
        execute!(io::stdout(), terminal::EnterAlternateScreen, Hide)?;
        Ok(terminal)
    }

    /// Shows what `draw` makes for the present width and height. Writes only lines that have changed.
    ///
    /// # Errors
    /// If the terminal cannot be written to.
    pub(super) fn show(&mut self, draw: impl FnOnce(u16, u16) -> Sheet) -> io::Result<()> {
        let size = terminal::size()?;
        let sheet = draw(size.0, size.1);
        let (size_before, before) = &self.shown;
        let is_new = *size_before != size;
        let nothing = SheetLine::default();
        let mut written = Vec::new();
        queue!(written, BeginSynchronizedUpdate)?;
        if is_new {
            queue!(written, Clear(ClearType::All))?;
        }
        for row in 0..size.1 {
            let place = usize::from(row);
            let line = sheet.lines().get(place).unwrap_or(&nothing);
            let had = before.lines().get(place).filter(|_| !is_new).unwrap_or(&nothing);
            if line != had {
                // A line of full width would lose its last letter if the rest were cleared behind it.
                queue!(written, MoveTo(0, row), Clear(ClearType::CurrentLine))?;
                write(&mut written, line, self.colours)?;
            }
        }
        queue!(written, EndSynchronizedUpdate)?;
        let mut out = io::stdout();
        out.write_all(&written)?;
        out.flush()?;
        self.shown = (size, sheet);
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A panic has done this before its message, which a second time would overwrite.
        if !thread::panicking() {
            give_back();
        }
    }
}

fn give_back() {
    // If the terminal is gone, nothing is left to do.
    let _ = execute!(io::stdout(), Show, terminal::LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

fn write(to: &mut Vec<u8>, line: &SheetLine, colours: bool) -> io::Result<()> {
    if line.marked {
        queue!(to, SetAttribute(Attribute::Reverse))?;
    }
    for (text, tone) in &line.parts {
        let colour = match tone {
            Tone::Good => Some(Color::DarkGreen),
            Tone::Warning => Some(Color::DarkYellow),
            Tone::Bad => Some(Color::DarkRed),
            Tone::Plain | Tone::Head => None,
        };
        if *tone == Tone::Head {
            queue!(to, SetAttribute(Attribute::Bold))?;
        }
        match colour.filter(|_| colours) {
            Some(colour) => queue!(
                to,
                SetForegroundColor(colour),
                Print(text),
                SetForegroundColor(Color::Reset)
            )?,
            None => queue!(to, Print(text))?,
        }
    }
    queue!(to, SetAttribute(Attribute::Reset))
}
