//! What stands at the prompt, so that lines can be put above it while somebody types.
//!
//! The line editor tells every change and every move of the cursor; with that, the prompt can be taken
//! away, lines written, and the prompt put back as the editor believes it to be. (The editor's own
//! printer is of no use: with it, keys that arrive in one piece wait for the next key.)

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustyline::completion::Completer;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use unicode_width::UnicodeWidthChar;

use crate::cli::text;

/// The prompt.
pub const PROMPT: &str = "> ";

/// What stands at the prompt; shared by the editor's thread and the conversation.
#[derive(Clone, Default)]
pub struct PromptLine(Arc<Mutex<Option<State>>>);

/// The text, and the bytes before the cursor.
#[derive(Debug, Clone, Default)]
struct State {
    line: String,
    before: usize,
}

impl PromptLine {
    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The prompt has gone.
    pub fn gone(&self) {
        *self.state() = None;
    }

    /// Has `write` write what puts `lines` above the prompt, or the lines alone where none stands. The
    /// editor waits meanwhile.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn put_above<E>(
        &self,
        lines: &str,
        columns: usize,
        write: impl FnOnce(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let state = self.state();
        match &*state {
            Some(state) => write(&state.put_above(lines, columns)),
            None => write(lines),
        }
    }
}

impl State {
    fn put_above(&self, lines: &str, columns: usize) -> String {
        let (before, after) = self.line.split_at_checked(self.before).unwrap_or((&self.line, ""));
        let cursor = position((0, text::width(PROMPT)), before, columns);
        let end = position(cursor, after, columns);
        let mut out = String::new();
        let up = |out: &mut String, rows: usize| {
            if rows > 0 {
                // writing to a String cannot fail
                let _ = write!(out, "\x1b[{rows}A");
            }
        };
        up(&mut out, cursor.0);
        out.push_str("\r\x1b[J");
        out.push_str(lines);
        if !lines.ends_with('\n') {
            out.push('\n');
        }
        out.push_str(PROMPT);
        out.push_str(&text::block(&self.line));
        if end.1 == 0 && end.0 > 0 && !self.line.ends_with('\n') {
            out.push('\n');
        }
        up(&mut out, end.0.saturating_sub(cursor.0));
        out.push('\r');
        if cursor.1 > 0 {
            let _ = write!(out, "\x1b[{}C", cursor.1);
        }
        out
    }
}

/// Row and column after `text`, from `start` on, as the editor counts them.
fn position(start: (usize, usize), text: &str, columns: usize) -> (usize, usize) {
    let (mut row, mut column) = start;
    for c in text.chars() {
        if c == '\n' {
            (row, column) = (row.saturating_add(1), 0);
            continue;
        }
        let width = c.width().unwrap_or(0);
        column = column.saturating_add(width);
        if column > columns {
            (row, column) = (row.saturating_add(1), width);
        }
    }
    if column == columns { (row.saturating_add(1), 0) } else { (row, column) }
}

impl Highlighter for PromptLine {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        // a paste may bring anything
        Cow::Owned(text::block(line))
    }

    fn highlight_char(&self, line: &str, before: usize, _: CmdKind) -> bool {
        *self.state() = Some(State { line: line.to_owned(), before });
        false
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
mod tests {
    use super::*;

    /// A screen with the prompt on it, then lines put above, as a terminal shows it.
    fn screen(typed: &str, before: usize) -> (String, (u16, u16)) {
        let mut screen = vt100::Parser::new(12, 20, 0);
        let state = State { line: typed.to_owned(), before };
        // where the editor leaves the cursor is where an empty message leaves it
        screen.process(format!("{PROMPT}{typed}").replace('\n', "\r\n").as_bytes());
        let (before, after) = typed.split_at(before);
        let cursor = position((0, 2), before, 20);
        let end = position(cursor, after, 20);
        for _ in 0..end.0 - cursor.0 {
            screen.process(b"\x1b[A");
        }
        screen.process(format!("\x1b[{}G", cursor.1 + 1).as_bytes());
        screen.process(state.put_above("news\nmore\n", 20).replace('\n', "\r\n").as_bytes());
        (screen.screen().contents(), screen.screen().cursor_position())
    }

    #[test]
    fn the_prompt_is_put_back_as_it_was() {
        assert_eq!(screen("abc", 1), ("news\nmore\n> abc".to_owned(), (2, 3)));
        assert_eq!(screen("", 0), ("news\nmore\n> ".to_owned(), (2, 2)));
        let long = "0123456789012345678901234";
        assert_eq!(screen(long, 25), (format!("news\nmore\n> {long}"), (3, 7)));
        assert_eq!(screen(long, 3), (format!("news\nmore\n> {long}"), (2, 5)));
        assert_eq!(screen("one\ntwo", 7), ("news\nmore\n> one\ntwo".to_owned(), (3, 3)));
        assert_eq!(screen("one\ntwo", 1), ("news\nmore\n> one\ntwo".to_owned(), (2, 3)));
    }
}
