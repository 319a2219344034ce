//! Lays out tables on a screen of any width: columns that matter less give way, and what does not fit is cut with
//! a mark.

use unicode_width::UnicodeWidthStr as _;

/// The number of blanks between two columns.
const GAP: u16 = 2;

/// How a text is meant. The text says so too; the colour only emphasises it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Good,
    Warning,
    Bad,
    /// A heading.
    Head,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableColumn {
    pub(super) title: &'static str,
    /// Its least width.
    pub(super) least: u16,
    /// Its greatest width.
    pub(super) most: u16,
    /// How dispensable the column is. Where there is no room, those with the largest number go first.
    pub(super) dispensable: u8,
    /// Whether it has numbers, which are aligned right.
    pub(super) numbers: bool,
}

/// A row of a table: a cell for each column, and perhaps lines below them.
#[derive(Debug, Default)]
pub(super) struct TableRow {
    pub(super) cells: Vec<String>,
    /// The index of the cell with the state, and its tone.
    pub(super) tone: (usize, Tone),
    pub(super) below: Vec<(String, Tone)>,
    pub(super) marked: bool,
}

impl TableRow {
    /// The number of lines that the row takes.
    pub(super) fn height(&self) -> usize {
        1 + self.below.len()
    }
}

/// A line of a screen: its parts with their tones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SheetLine {
    pub(super) parts: Vec<(String, Tone)>,
    pub(super) marked: bool,
}

/// A screen that is filled line by line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sheet {
    width: u16,
    height: usize,
    lines: Vec<SheetLine>,
}

impl Sheet {
    pub(super) fn new(width: u16, height: u16) -> Sheet {
        Sheet { width, height: height.into(), lines: Vec::new() }
    }

    pub(super) fn width(&self) -> usize {
        self.width.into()
    }

    /// The number of lines left.
    pub(super) fn room(&self) -> usize {
        self.height - self.lines.len()
    }

    /// Skips lines until only this many are left.
    pub(super) fn skip_to_last(&mut self, lines: usize) {
        let least = self.height.saturating_sub(lines);
        self.lines.resize_with(least.max(self.lines.len()), SheetLine::default);
    }

    /// Writes a line, if there is room.
    pub(super) fn line(&mut self, text: &str, tone: Tone) {
        let text = fit(text, self.width());
        self.push(SheetLine { parts: vec![(text, tone)], marked: false });
    }

    fn push(&mut self, line: SheetLine) {
        if self.room() > 0 {
            self.lines.push(line);
        }
    }

    /// The lines written so far.
    pub(super) fn lines(&self) -> &[SheetLine] {
        &self.lines
    }

    /// The screen's text.
    pub(super) fn text(&self) -> Vec<String> {
        let text = |line: &SheetLine| {
            let parts: String = line.parts.iter().map(|(part, _)| part.as_str()).collect();
            parts.trim_end().to_owned()
        };
        self.lines.iter().map(text).collect()
    }

    /// Writes a heading and as many of the rows as fit into `room` lines.
    pub(super) fn table(&mut self, columns: &[TableColumn], rows: &[TableRow], room: usize) {
        let widths = widths(columns, rows, self.width);
        let heading = widths.iter().map(|(place, width)| {
            let column = &columns[*place];
            aligned(column.title, *width, column.numbers)
        });
        let heading = heading.collect::<Vec<_>>().join(&" ".repeat(GAP.into()));
        let room = room.min(self.room());
        if room == 0 {
            return;
        }
        self.line(&heading, Tone::Head);
        let mut left = room - 1;
        for (place, row) in rows.iter().enumerate() {
            let rest: usize = rows[place..].iter().map(TableRow::height).sum();
            if rest > left && row.height() >= left {
                if left > 0 {
                    self.line(&format!("  … {} more", rows.len() - place), Tone::Plain);
                }
                return;
            }
            self.row(&widths, columns, row);
            left -= row.height();
        }
    }

    fn row(&mut self, widths: &[(usize, u16)], columns: &[TableColumn], row: &TableRow) {
        let mut parts = Vec::with_capacity(2 * widths.len());
        for (place, width) in widths {
            if !parts.is_empty() {
                parts.push((" ".repeat(GAP.into()), Tone::Plain));
            }
            let cell = row.cells.get(*place).map_or("", String::as_str);
            let tone = if row.tone.0 == *place { row.tone.1 } else { Tone::Plain };
            parts.push((aligned(cell, *width, columns[*place].numbers), tone));
        }
        self.push(SheetLine { parts, marked: row.marked });
        for (below, tone) in &row.below {
            self.line(&format!("    {below}"), *tone);
        }
    }
}

/// Returns the places of the columns that there is room for, and their widths.
fn widths(columns: &[TableColumn], rows: &[TableRow], room: u16) -> Vec<(usize, u16)> {
    let mut shown: Vec<(usize, u16)> =
        columns.iter().enumerate().map(|(place, column)| (place, column.least)).collect();
    // A gap follows each column, including the last.
    let room_and_gap = room.saturating_add(GAP);
    let taken = |shown: &[(usize, u16)]| shown.iter().map(|(_, width)| width + GAP).sum::<u16>();
    while taken(&shown) > room_and_gap && shown.len() > 1 {
        let dispensable = |(_, (place, _)): &(usize, &(usize, u16))| columns[*place].dispensable;
        if let Some((at, _)) = shown.iter().enumerate().max_by_key(dispensable) {
            shown.remove(at);
        }
    }
    // Columns that want more get what is left.
    let mut left = room_and_gap.saturating_sub(taken(&shown));
    for (place, width) in &mut shown {
        let cells = rows.iter().filter_map(|row| row.cells.get(*place));
        let widest = cells.map(|cell| text_width(cell)).max().unwrap_or(0);
        let wanted = u16::try_from(widest).unwrap_or(u16::MAX).min(columns[*place].most);
        let more = wanted.saturating_sub(*width).min(left);
        left -= more;
        *width = (*width + more).min(room);
    }
    shown
}

/// Pads or cuts the text to exactly this width.
fn aligned(text: &str, width: u16, right: bool) -> String {
    let text = fit(text, width.into());
    let padding = " ".repeat(usize::from(width).saturating_sub(text_width(&text)));
    if right { padding + &text } else { text + &padding }
}

/// Cuts the text to at most this width, with a mark where something is missing.
pub(super) fn fit(text: &str, width: usize) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut taken = 1;
    for c in text.chars() {
        taken += text_width(c.encode_utf8(&mut [0; 4]));
        if taken > width {
            break;
        }
        kept.push(c);
    }
    if width > 0 {
        kept.push('…');
    }
    kept
}

fn text_width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.width() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [TableColumn; 3] = [
        TableColumn { title: "KEY", least: 6, most: 40, dispensable: 0, numbers: false },
        TableColumn { title: "PROXY", least: 5, most: 20, dispensable: 2, numbers: false },
        TableColumn { title: "WAIT", least: 4, most: 4, dispensable: 1, numbers: true },
    ];

    fn drawn(width: u16, height: u16, rows: &[TableRow]) -> Vec<String> {
        let mut sheet = Sheet::new(width, height);
        sheet.table(&COLUMNS, rows, height.into());
        let text = sheet.text();
        let wide = text.iter().find(|line| text_width(line) > width.into());
        assert_eq!(wide, None, "{width}");
        text
    }

    fn row(cells: [&str; 3], below: Option<&str>) -> TableRow {
        let cells = cells.map(str::to_owned).to_vec();
        let below = below.into_iter().map(|below| (below.to_owned(), Tone::Plain)).collect();
        TableRow { cells, below, ..TableRow::default() }
    }

    #[test]
    fn what_matters_less_gives_way_and_what_is_cut_is_marked() {
        let rows = [row(["job:作業:1", "here", "12"], None)];
        assert_eq!(drawn(30, 2, &rows), ["KEY         PROXY  WAIT", "job:作業:1  here     12"]);
        assert_eq!(drawn(20, 2, &rows)[1], "job:作…  here     12");
        assert_eq!(drawn(18, 2, &rows), ["KEY         WAIT", "job:作業:1    12"]);
        assert_eq!(drawn(6, 2, &rows), ["KEY", "job:…"]);
        assert_eq!(drawn(3, 2, &rows), ["KEY", "jo…"]);
        assert_eq!(drawn(1, 1, &rows), ["…"]);
    }

    #[test]
    fn rows_that_do_not_fit_are_counted() {
        let rows =
            [row(["a", "", ""], Some("why")), row(["b", "", ""], None), row(["c", "", ""], None)];
        let first = |height| -> Vec<String> {
            let lines = drawn(30, height, &rows).into_iter().skip(1);
            lines.map(|line| line.trim().to_owned()).collect()
        };
        assert_eq!(first(5), ["a", "why", "b", "c"]);
        assert_eq!(first(4), ["a", "why", "… 2 more"]);
        assert_eq!(first(3), ["… 3 more"]);
        assert_eq!(first(1), [""; 0]);
    }
}
