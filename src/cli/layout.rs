//! Text in rows: it comes in pieces and goes out at once, broken between words, in runs of one style each.
//!
//! A word that does not fit any more is taken back from the end of its row and written on the next; nothing else
//! that was written is ever touched. What must stay as it is, code and tables, is left to the terminal to break,
//! as is a word that is longer than a row: copied from the screen, it is one piece.
//!
//! Invariant: each piece that comes out ends without a style, so that anything can be written between two pieces.

use unicode_width::UnicodeWidthChar;

use super::text;

/// The longest row of running text, in columns: longer ones are hard to read.
pub const MEASURE: usize = 100;

/// Columns between two stops of the tabulator.
const TAB: usize = 8;

/// How a character looks. No colour is used that cannot be read on a light or on a dark ground.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Style {
    /// As it is.
    #[default]
    Plain,
    /// Headings, bold words, what was typed.
    Bold,
    /// A piece of code among words.
    Code,
    /// A code block, which is not broken.
    Block,
    /// What begins and ends a code block.
    Fence,
    /// Reasoning and notes.
    Dim,
    /// What should be seen.
    Warning,
}

impl Style {
    /// The number of its sequence, if it has one.
    const fn number(self) -> &'static str {
        match self {
            Self::Plain | Self::Block => "",
            Self::Bold => "1",
            Self::Code => "35",
            Self::Fence | Self::Dim => "2",
            Self::Warning => "1;35",
        }
    }
}

/// Text in runs of one style each.
#[derive(Debug, Default)]
struct Runs {
    out: String,
    colour: bool,
    style: &'static str,
}

impl Runs {
    fn push(&mut self, c: char, style: Style) {
        let style = if c == '\n' || !self.colour { "" } else { style.number() };
        if style != self.style {
            self.end();
            if !style.is_empty() {
                self.out.push_str("\x1b[");
                self.out.push_str(style);
                self.out.push('m');
            }
            self.style = style;
        }
        self.out.push(c);
    }

    fn end(&mut self) {
        if !self.style.is_empty() {
            self.out.push_str("\x1b[0m");
            self.style = "";
        }
    }
}

/// Breaks a text, which must be safe already, into rows.
#[derive(Debug, Default)]
pub struct Layout {
    runs: Runs,
    /// The columns of a row; none where rows are not broken.
    columns: Option<usize>,
    /// How often somebody else has ended rows.
    settled: u64,
    /// What stands in the row.
    row: Vec<(char, Style)>,
    column: usize,
    /// Where the row may be broken; and that place in what is not taken yet, with the style there.
    opening: usize,
    untaken: Option<(usize, &'static str)>,
    /// The row goes on with a line that was broken, behind what all rows of that line begin with.
    hang: Option<String>,
    /// The row has ended at a space, if more of its line comes.
    full: bool,
    /// The line is one that is not broken.
    verbatim: bool,
}

impl Layout {
    /// For a terminal with or without colours.
    #[must_use]
    pub fn new(colour: bool) -> Self {
        Self { runs: Runs { colour, ..Runs::default() }, ..Self::default() }
    }

    /// A whole text at once.
    #[must_use]
    pub fn whole(text: &str, style: Style, colour: bool, columns: Option<usize>) -> String {
        let mut layout = Self::new(colour);
        layout.fit(columns, 0);
        text.chars().for_each(|c| layout.put(c, style));
        layout.take()
    }

    /// A text behind a mark; its further rows stand under the first.
    #[must_use]
    pub fn behind(mark: &str, text: &str, style: Style, (colour, columns): (bool, Option<usize>)) -> String {
        let mut layout = Self::new(colour);
        layout.fit(columns, 0);
        let begin = std::iter::once(mark.to_owned()).chain(std::iter::repeat(" ".repeat(text::width(mark))));
        for (line, begin) in text.split('\n').zip(begin) {
            layout.hang(text::width(mark));
            begin.chars().chain(line.chars()).for_each(|c| layout.put(c, style));
            layout.put('\n', Style::Plain);
        }
        layout.take()
    }

    /// Says how long rows may be now, if they are to be broken, and how often somebody else has ended one so far. Of a
    /// row that a change caught nobody knows where it is: it stays.
    pub fn fit(&mut self, columns: Option<usize>, settled: u64) {
        if (self.columns, self.settled) != (columns, settled) {
            (self.columns, self.settled) = (columns, settled);
            self.forget();
        }
    }

    /// The line's further rows begin with so many spaces; so many columns of its first one are its mark.
    pub fn hang(&mut self, columns: usize) {
        self.hang = Some(" ".repeat(columns));
    }

    /// Somebody else has ended the row.
    pub fn end_row(&mut self) {
        self.forget();
        self.hang = None;
        self.verbatim = false;
    }

    /// What is to be written, which is safe with the styles in it.
    #[must_use]
    pub fn take(&mut self) -> String {
        self.runs.end();
        self.untaken = None;
        std::mem::take(&mut self.runs.out)
    }

    /// The next character.
    pub fn put(&mut self, c: char, style: Style) {
        let Some(columns) = self.columns else { return self.runs.push(c, style) };
        let measure = columns.clamp(1, MEASURE);
        if c == '\n' {
            self.runs.push(c, style);
            return self.end_row();
        }
        let begins = self.hang.is_none() && self.row.iter().all(|(c, _)| *c == ' ');
        self.verbatim |= style == Style::Block || style == Style::Fence || (begins && c == '|');
        if self.verbatim {
            return self.runs.push(c, style);
        }
        let width = width_at(c, self.column);
        let fits = self.column.saturating_add(width) <= measure;
        if c == ' ' || c == '\t' {
            if self.full || !fits {
                self.full = true;
                return;
            }
        } else if self.full {
            let at = self.row.len();
            self.break_row(at, measure);
        } else if self.opens_before(c, width) {
            self.open();
        }
        if !self.full && self.column.saturating_add(width) > measure && self.opening > self.lead() {
            self.break_row(self.opening, measure);
        }
        self.write(c, style, width);
        if c == ' ' || c == '\t' {
            self.open();
        }
    }

    fn open(&mut self) {
        self.opening = self.row.len();
        self.untaken = Some((self.runs.out.len(), self.runs.style));
    }

    fn write(&mut self, c: char, style: Style, width: usize) {
        self.runs.push(c, style);
        self.row.push((c, style));
        self.column = self.column.saturating_add(width);
    }

    /// Takes back what stands in the row from `at` on, and goes on with it on the next row.
    fn break_row(&mut self, at: usize, measure: usize) {
        let moved = self.row.split_off(at.min(self.row.len()));
        let back: usize = moved.iter().map(|(c, _)| c.width().unwrap_or(0)).sum();
        let untaken = self.untaken.take();
        let hang = self.hang.take().unwrap_or_else(|| hanging(&self.row, measure));
        self.forget();
        match untaken {
            _ if back == 0 => {}
            Some((out, style)) => {
                self.runs.out.truncate(out);
                self.runs.style = style;
            }
            None => {
                self.runs.end();
                self.runs.out.push_str(&format!("\x1b[{back}D\x1b[K"));
            }
        }
        self.runs.push('\n', Style::Plain);
        for c in hang.chars() {
            self.write(c, Style::Plain, c.width().unwrap_or(0));
        }
        self.hang = Some(hang);
        self.opening = self.lead();
        for (c, style) in moved {
            self.write(c, style, c.width().unwrap_or(0));
        }
    }

    /// The characters at the row's beginning behind which it is not broken.
    fn lead(&self) -> usize {
        match &self.hang {
            Some(hang) => hang.chars().count(),
            None => lead(&self.row),
        }
    }

    /// Whether the row may be broken before `c`, in a script without spaces.
    fn opens_before(&self, c: char, width: usize) -> bool {
        let Some((last, _)) = self.row.last() else { return false };
        let wide = width > 1 || last.width().unwrap_or(0) > 1;
        // what closes something stays with it, and what joins characters stays between them
        wide && width > 0 && !"、。，．・：；？！）」』】〕〉》…ー,.;:?!)]}\"'".contains(c)
    }

    fn forget(&mut self) {
        self.row.clear();
        (self.column, self.opening, self.full) = (0, 0, false);
        self.untaken = None;
    }
}

/// Columns that a character takes which begins in this column.
#[must_use]
pub fn width_at(c: char, column: usize) -> usize {
    match c {
        '\t' => TAB.saturating_sub(column.checked_rem(TAB).unwrap_or(0)),
        c => c.width().unwrap_or(0),
    }
}

/// The characters of the mark that a line begins with: spaces, quotation marks, and the mark of a list's item.
fn lead(row: &[(char, Style)]) -> usize {
    let line: String = row.iter().map(|(c, _)| *c).collect();
    let quoted = line.trim_start_matches([' ', '>']);
    let item = quoted.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = quoted.len() != item.len();
    let marks: &[&str] = if numbered { &[". ", ") "] } else { &["- ", "* ", "+ ", "• "] };
    let rest = marks.iter().find_map(|mark| item.strip_prefix(mark)).unwrap_or(quoted);
    line.chars().count().saturating_sub(rest.trim_start().chars().count())
}

/// What the further rows of a line begin with.
fn hanging(row: &[(char, Style)], measure: usize) -> String {
    let mark = row.get(..lead(row)).unwrap_or_default();
    let hang: String = mark.iter().map(|(c, _)| if *c == '>' { '>' } else { ' ' }).collect();
    if text::width(&hang) > measure / 2 { String::new() } else { hang }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
