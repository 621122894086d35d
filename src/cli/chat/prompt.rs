//! What stands at the bottom of the screen: the line that is being written to, the messages that wait, and the
//! prompt, so that the conversation can go on above while somebody types.
//!
//! The line editor tells every change and every move of the cursor; with that, the bottom can be taken away, text
//! written, and the bottom put back as the editor believes it to be. (The editor's own printer is of no use:
//! with it, keys that arrive in one piece wait for the next key, and it knows whole lines only.)
//!
//! Invariant: between two writes the cursor is where the editor put it, or, without a prompt, at the beginning of
//! the row where the prompt would stand.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustyline::completion::Completer;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use unicode_width::UnicodeWidthChar;

use crate::cli::layout::{Layout, Style, width_at};
use crate::cli::pen::TAKE_BACK;
use crate::cli::text;

/// The prompt.
pub const PROMPT: &str = "> ";

/// The bottom of the screen; shared by the editor's thread and the conversation.
#[derive(Clone, Default)]
pub struct PromptLine(Arc<Mutex<Bottom>>);

#[derive(Default)]
struct Bottom {
    colour: bool,
    /// The end of what was written: a line without its newline.
    tail: String,
    /// The messages that wait; each is cut to one row.
    waiting: Vec<String>,
    /// The rows of them that are drawn.
    drawn: usize,
    /// The terminal's width when that was drawn.
    columns: usize,
    /// How often the process went on after it was stopped.
    settled: u64,
    /// What the editor shows.
    standing: Option<State>,
    /// The line is being taken: what is written now waits for that.
    closing: bool,
    held: String,
}

/// The text, and the bytes before the cursor.
#[derive(Debug, Clone, Default)]
struct State {
    line: String,
    before: usize,
}

impl PromptLine {
    /// With or without colours.
    pub fn new(colour: bool) -> Self {
        Self(Arc::new(Mutex::new(Bottom { colour, ..Bottom::default() })))
    }

    /// What stands at the prompt.
    pub fn begun(&self) -> String {
        self.bottom().standing.as_ref().map(|state| state.line.clone()).unwrap_or_default()
    }

    fn bottom(&self) -> MutexGuard<'_, Bottom> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something stands at the prompt.
    pub fn is_begun(&self) -> bool {
        let bottom = self.bottom();
        bottom.closing || bottom.standing.as_ref().is_some_and(|state| !state.line.is_empty())
    }

    /// The line is about to be taken by the editor.
    pub fn closing(&self) {
        self.bottom().closing = true;
    }

    /// The editor has ended, behind the line's end if it was `taken`, else where the cursor was: takes the prompt away.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn gone(&self, taken: bool, columns: usize, out: &mut impl Write) -> io::Result<()> {
        let mut bottom = self.bottom();
        bottom.closing = false;
        let mut all = bottom.take_away(taken, columns);
        let held = std::mem::take(&mut bottom.held);
        if !held.is_empty() {
            all.push_str(&bottom.place(&held, columns));
        }
        out.write_all(all.as_bytes())?;
        out.flush()
    }

    /// Writes text, which may end in the middle of a line, above the prompt. The editor waits meanwhile.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn write(&self, text: &str, columns: usize, out: &mut impl Write) -> io::Result<()> {
        let mut bottom = self.bottom();
        if bottom.closing {
            bottom.held.push_str(text);
            return Ok(());
        }
        let all = bottom.place(text, columns);
        out.write_all(all.as_bytes())?;
        out.flush()
    }

    /// Shows these messages as waiting, one row each.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn waiting(&self, rows: Vec<String>, columns: usize, out: &mut impl Write) -> io::Result<()> {
        self.bottom().waiting = rows;
        self.write("", columns, out)
    }

    /// The process is about to be stopped, and others write to the terminal: what is written waits until it goes on.
    pub fn stopped(&self) {
        self.bottom().closing = true;
    }

    /// The process goes on: what was written before stays as it is, and the editor is about to paint its prompt anew.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn resumed(&self, columns: usize, out: &mut impl Write) -> io::Result<()> {
        let mut bottom = self.bottom();
        bottom.closing = false;
        bottom.settle();
        bottom.settled = bottom.settled.saturating_add(1);
        // it clears away from where the prompt would begin
        let above = bottom.standing.as_ref().map_or(0, |state| state.rows(columns).0);
        let mut all = "\n".repeat(above);
        let held = std::mem::take(&mut bottom.held);
        all.push_str(&bottom.place(&held, columns));
        out.write_all(all.as_bytes())?;
        out.flush()
    }

    /// How often it went on: nothing can be taken back from before.
    pub fn settled(&self) -> u64 {
        self.bottom().settled
    }

    /// The conversation is over: takes all of the bottom away but the written line.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn leave(&self, columns: usize, out: &mut impl Write) -> io::Result<()> {
        let mut bottom = self.bottom();
        let pasting = if bottom.standing.is_some() { "\x1b[?2004l" } else { "" };
        bottom.waiting.clear();
        let mut all = bottom.place("", columns);
        bottom.closing = false;
        if let Some(state) = bottom.standing.take() {
            all.push_str(&up(state.rows(columns).0));
            all.push_str("\r\x1b[J");
        }
        out.write_all(all.as_bytes())?;
        out.write_all(pasting.as_bytes())?;
        out.flush()
    }
}

/// What is typed, safe, for a paste may bring anything; it stands out from the answers.
fn typed(text: &str, colour: bool) -> String {
    Layout::whole(&text::block(text), Style::Bold, colour, None)
}

fn up(rows: usize) -> String {
    if rows == 0 { String::new() } else { format!("\x1b[{rows}A") }
}

impl Bottom {
    fn settle(&mut self) {
        self.tail.clear();
        self.drawn = 0;
    }

    fn take_away(&mut self, taken: bool, columns: usize) -> String {
        let Some(state) = self.standing.take() else { return String::new() };
        let (cursor, end) = state.rows(columns);
        let rows = if taken { end } else { cursor };
        format!("{}\r\x1b[J", up(rows.saturating_add(1)))
    }

    fn place(&mut self, text: &str, columns: usize) -> String {
        if self.columns != columns {
            // nobody knows how the terminal has broken the rows anew
            self.settle();
            self.columns = columns;
        }
        let mut out = String::new();
        let cursor = self.standing.as_ref().map_or(0, |state| state.rows(columns).0);
        out.push_str(&up(cursor.saturating_add(self.drawn)));
        out.push('\r');
        out.push_str(&self.to_its_end(columns));
        out.push_str(text);
        self.take_in(text);
        if !visible(&self.tail).is_empty() {
            out.push('\n');
        }
        for row in &self.waiting {
            // a full row would be two
            out.push_str(&text::cut(row, columns.saturating_sub(1)));
            out.push('\n');
        }
        self.drawn = self.waiting.len();
        if let Some(state) = &self.standing {
            out.push_str(&state.drawn(columns, self.colour));
        }
        out
    }

    /// From the beginning of the row below to the end of what was written; what is behind it is cleared away.
    fn to_its_end(&self, columns: usize) -> String {
        let (row, column) = position((0, 0), &visible(&self.tail), columns);
        if column > 0 {
            return format!("\x1b[A\x1b[{column}C\x1b[J");
        }
        let Some((last, style)) = last_of(&self.tail).filter(|_| row > 0) else {
            return "\x1b[J".to_owned();
        };
        // It ends where the row does. The last character once more, and the terminal breaks the line by itself: what
        // is copied from the screen is then one line.
        let before = columns.saturating_sub(last.width().unwrap_or(0));
        format!("\x1b[J\x1b[A\x1b[{before}C{style}{last}\x1b[0m")
    }

    /// What is written, as far as it is not ended.
    fn take_in(&mut self, text: &str) {
        self.tail.push_str(text);
        for end in ["\n", TAKE_BACK] {
            if let Some((_, rest)) = self.tail.rsplit_once(end) {
                self.tail = rest.to_owned();
            }
        }
    }
}

impl State {
    /// The rows between the prompt's beginning and the cursor, and the end.
    fn rows(&self, columns: usize) -> (usize, usize) {
        let (cursor, end) = self.places(columns);
        (cursor.0, end.0)
    }

    fn places(&self, columns: usize) -> ((usize, usize), (usize, usize)) {
        let (before, after) = self.line.split_at_checked(self.before).unwrap_or((&self.line, ""));
        let cursor = position((0, text::width(PROMPT)), before, columns);
        (cursor, position(cursor, after, columns))
    }

    /// The prompt, from the beginning of its row on.
    fn drawn(&self, columns: usize, colour: bool) -> String {
        let (cursor, end) = self.places(columns);
        let mut out = typed(PROMPT, colour) + &typed(&self.line, colour);
        if end.1 == 0 && end.0 > 0 && !self.line.ends_with('\n') {
            out.push('\n');
        }
        out.push_str(&up(end.0.saturating_sub(cursor.0)));
        out.push('\r');
        if cursor.1 > 0 {
            let _ = write!(out, "\x1b[{}C", cursor.1);
        }
        out
    }
}

/// The last character of a text, and the sequence that styles it.
fn last_of(text: &str) -> Option<(char, &str)> {
    let text = text.strip_suffix("\x1b[0m").unwrap_or(text);
    let last = text.chars().next_back()?;
    let style = text.rfind("\x1b[").and_then(|at| text.get(at..)).unwrap_or_default();
    let end = style.find('m').map_or(0, |end| end.saturating_add(1));
    Some((last, style.get(..end).unwrap_or_default()))
}

/// Text without the sequences that style it.
fn visible(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        out.push_str(before);
        rest = after.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, rest)| rest);
    }
    out.push_str(rest);
    out
}

/// Row and column after `text`, from `start` on, as the editor and terminals count them.
fn position(start: (usize, usize), text: &str, columns: usize) -> (usize, usize) {
    let (mut row, mut column) = start;
    for c in text.chars() {
        if c == '\n' {
            (row, column) = (row.saturating_add(1), 0);
            continue;
        }
        let width = width_at(c, column);
        column = column.saturating_add(width);
        if column > columns {
            (row, column) = (row.saturating_add(1), width);
        }
    }
    if column == columns { (row.saturating_add(1), 0) } else { (row, column) }
}

impl Highlighter for PromptLine {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        Cow::Owned(typed(line, self.bottom().colour))
    }

    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        Cow::Owned(typed(prompt, self.bottom().colour))
    }

    fn highlight_char(&self, line: &str, before: usize, _: CmdKind) -> bool {
        self.bottom().standing = Some(State { line: line.to_owned(), before });
        // the whole line anew, each time: a single character could come twice, where a write came in between
        true
    }
}

impl Completer for PromptLine {
    type Candidate = String;
}

impl Hinter for PromptLine {
    type Hint = String;
}

impl Validator for PromptLine {}

impl rustyline::Helper for PromptLine {}

#[cfg(test)]
#[path = "prompt_tests.rs"]
mod tests;
