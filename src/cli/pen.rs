//! Where a turn is written to: the answer, the reasoning, notes, and one line of progress that is
//! written over again and again.
//!
//! Invariants: everything passes through the sanitiser, except answers that go to a program or a file;
//! colours and progress only on a terminal; colours never with `NO_COLOR`.

use std::io::{self, IsTerminal, Write};

use super::layout::{Layout, Style};
use super::markdown::Markdown;
use super::text::{self, Sanitiser};

/// Columns to assume where nothing tells them.
pub const DEFAULT_COLUMNS: usize = 80;

/// What takes a line that is not ended away again.
pub const TAKE_BACK: &str = "\r\x1b[K";

/// What a place to write to can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ability {
    /// Whether it is a terminal.
    pub terminal: bool,
    /// Whether colours are wanted.
    pub colour: bool,
    /// Whether what was written can be taken back.
    pub moves: bool,
}

impl Ability {
    /// What `stream` can do, by its kind and by `NO_COLOR` and `TERM`.
    pub fn of(stream: &impl IsTerminal) -> Self {
        let terminal = stream.is_terminal();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = is_dumb();
        Self { terminal, colour: terminal && !plain && !dumb, moves: terminal && !dumb }
    }
}

/// Whether the terminal only takes lines: no moves of its cursor, no colours.
#[must_use]
pub fn is_dumb() -> bool {
    // the same that the line editor of a chat goes by
    let without = ["dumb", "cons25", "emacs"];
    std::env::var("TERM").is_ok_and(|term| without.iter().any(|name| term.eq_ignore_ascii_case(name)))
}

/// The columns of a row on a terminal that takes moves, where rows are broken between words. One column stays free:
/// the cursor behind a full row is in no place that all terminals agree on.
#[must_use]
pub fn row(can: Ability) -> Option<usize> {
    can.moves.then(|| fitting(columns()))
}

/// The columns to write in, of so many.
fn fitting(columns: Option<usize>) -> usize {
    columns.unwrap_or(DEFAULT_COLUMNS).saturating_sub(1).max(1)
}

/// The terminal's width, or that of `COLUMNS`, if any tells.
#[must_use]
pub fn columns() -> Option<usize> {
    let asked = terminal_size::terminal_size().map(|(w, _)| usize::from(w.0));
    let told = || std::env::var("COLUMNS").ok()?.parse().ok();
    asked.or_else(told).filter(|n| *n > 0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Answer,
    Reasoning,
}

/// Writes a turn.
pub struct Pen {
    out: Box<dyn Write>,
    // None: notes go where answers go
    err: Option<Box<dyn Write>>,
    out_can: Ability,
    err_can: Ability,
    clean: Sanitiser,
    clean_reasoning: Sanitiser,
    markdown: Markdown,
    rows: Layout,
    rows_of_reasoning: Layout,
    open: Option<Kind>,
    answer_open: bool,
    progress: bool,
    width: Option<usize>,
    /// How often somebody else has ended the rows so far.
    settled: Box<dyn Fn() -> u64>,
}

impl Pen {
    /// Answers on `stdout`, all else on `stderr`.
    #[must_use]
    pub fn split() -> Self {
        let (out_can, err_can) = (Ability::of(&io::stdout()), Ability::of(&io::stderr()));
        Self::new(Box::new(io::stdout()), Some(Box::new(io::stderr())), out_can, err_can, None)
    }

    /// Everything on `out`, a terminal; `settled` counts how often somebody else has ended the row that was written to.
    #[must_use]
    pub fn single(out: Box<dyn Write>, can: Ability, settled: impl Fn() -> u64 + 'static) -> Self {
        Self { settled: Box::new(settled), ..Self::new(out, None, can, can, None) }
    }

    fn new(
        out: Box<dyn Write>,
        err: Option<Box<dyn Write>>,
        out_can: Ability,
        err_can: Ability,
        width: Option<usize>,
    ) -> Self {
        Self {
            out,
            err,
            out_can,
            err_can,
            clean: Sanitiser::default(),
            clean_reasoning: Sanitiser::default(),
            markdown: Markdown::default(),
            rows: Layout::new(out_can.colour),
            rows_of_reasoning: Layout::new(err_can.colour),
            open: None,
            answer_open: false,
            progress: false,
            width,
            settled: Box::new(|| 0),
        }
    }

    /// The columns to fit notes into; one stays free, as in [`row`].
    #[must_use]
    pub fn width(&self) -> usize {
        fitting(self.width.or_else(columns))
    }

    /// The columns in which rows are broken: only where what was written can be taken back.
    fn row_in(&self, can: Ability) -> Option<usize> {
        can.moves.then(|| self.width())
    }

    /// Whether notes come where a line can be taken back.
    #[must_use]
    pub fn takes_back(&self) -> bool {
        self.err_can.moves
    }

    /// Writes to where notes go. If nobody reads the standard error any more, notes go nowhere: a turn
    /// is not given up for that.
    fn write_notes(&mut self, text: &str) -> io::Result<()> {
        let Some(err) = &mut self.err else {
            self.out.write_all(text.as_bytes())?;
            return self.out.flush();
        };
        match err.write_all(text.as_bytes()).and_then(|()| err.flush()) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                *err = Box::new(io::sink());
                Ok(())
            }
            result => result,
        }
    }

    /// More of the answer.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn answer(&mut self, piece: &str) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        self.clear_progress()?;
        if self.open == Some(Kind::Reasoning) {
            self.end_line()?;
        }
        let safe;
        let piece = if self.err.is_none() || self.out_can.terminal {
            safe = self.clean.push(piece);
            &safe
        } else {
            piece
        };
        if self.out_can.terminal {
            self.rows.fit(self.row_in(self.out_can), (self.settled)());
            self.markdown.push(piece, &mut |c, style| self.rows.put(c, style));
            self.out.write_all(self.rows.take().as_bytes())?;
        } else {
            self.out.write_all(piece.as_bytes())?;
        }
        self.out.flush()?;
        if let Some(last) = piece.chars().next_back() {
            self.answer_open = last != '\n';
            self.open = self.answer_open.then_some(Kind::Answer);
        }
        Ok(())
    }

    /// More of the reasoning, dimmed.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn reasoning(&mut self, piece: &str) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        self.clear_progress()?;
        if self.open == Some(Kind::Answer) {
            self.end_line()?;
        }
        let safe = self.clean_reasoning.push(piece);
        self.rows_of_reasoning.fit(self.row_in(self.err_can), (self.settled)());
        safe.chars().for_each(|c| self.rows_of_reasoning.put(c, Style::Dim));
        let styled = self.rows_of_reasoning.take();
        self.write_notes(&styled)?;
        if let Some(last) = safe.chars().next_back() {
            self.open = (last != '\n').then_some(Kind::Reasoning);
        }
        Ok(())
    }

    /// A line of its own, dimmed.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn note(&mut self, note: &str) -> io::Result<()> {
        self.write_note(note, Style::Dim)
    }

    /// A line of its own that should be seen.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn warn(&mut self, note: &str) -> io::Result<()> {
        self.write_note(note, Style::Warning)
    }

    /// What a person wrote, behind a mark.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn message(&mut self, mark: &str, text: &str) -> io::Result<()> {
        self.write_behind(mark, text, Style::Bold)
    }

    /// A text beside its name.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn entry(&mut self, name: &str, text: &str) -> io::Result<()> {
        self.write_behind(name, text, Style::Plain)
    }

    fn write_behind(&mut self, mark: &str, text: &str, style: Style) -> io::Result<()> {
        self.end_line()?;
        let place = (self.err_can.colour, self.row_in(self.err_can));
        self.write_notes(&Layout::behind(mark, &text::block(text), style, place))
    }

    /// A line of its own in plain style.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn say(&mut self, note: &str) -> io::Result<()> {
        self.write_note(note, Style::Plain)
    }

    /// Whole lines that are safe, and styled if they are to be.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn ready(&mut self, lines: &str) -> io::Result<()> {
        self.end_line()?;
        self.write_notes(lines)
    }

    fn write_note(&mut self, note: &str, style: Style) -> io::Result<()> {
        self.end_line()?;
        let styled = Layout::whole(&text::block(note), style, self.err_can.colour, self.row_in(self.err_can));
        self.write_notes(&format!("{styled}\n"))
    }

    /// A line that the next thing written takes the place of. On a terminal only.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn progress(&mut self, note: &str) -> io::Result<()> {
        self.rewrite(note, Style::Dim)
    }

    /// As [`Pen::progress`], but it waits for somebody.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn question(&mut self, note: &str) -> io::Result<()> {
        self.rewrite(note, Style::Bold)
    }

    fn rewrite(&mut self, note: &str, style: Style) -> io::Result<()> {
        if !self.err_can.moves {
            return Ok(());
        }
        if !self.progress {
            self.end_line()?;
        }
        // a full line would wrap, and could not be taken back
        let cut = text::cut(&text::line(note), self.width());
        let styled = Layout::whole(&cut, style, self.err_can.colour, None);
        self.progress = true;
        self.write_notes(&format!("{TAKE_BACK}{styled}"))
    }

    fn clear_progress(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.progress) {
            self.write_notes(TAKE_BACK)?;
        }
        Ok(())
    }

    /// Ends a line that is not ended, so that the next thing begins a new one. A line of the answer
    /// is only ended here where notes come out on the same screen.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn end_line(&mut self) -> io::Result<()> {
        self.clear_progress()?;
        match self.open.take() {
            Some(Kind::Answer) if self.err.is_none() || (self.out_can.terminal && self.err_can.terminal) => {
                self.end_answer()
            }
            Some(Kind::Reasoning) => {
                let rest = self.clean_reasoning.finish();
                self.rows_of_reasoning.end_row();
                self.write_notes(&format!("{rest}\n"))
            }
            _ => Ok(()),
        }
    }

    /// Ends the answer's last line, if it is not ended.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn end_answer(&mut self) -> io::Result<()> {
        self.clear_progress()?;
        self.markdown.finish(&mut |c, style| self.rows.put(c, style));
        let rest = format!("{}{}", self.rows.take(), self.clean.finish());
        self.rows.end_row();
        if std::mem::take(&mut self.answer_open) {
            self.open = None;
            self.out.write_all(format!("{rest}\n").as_bytes())?;
            self.out.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "pen_tests.rs"]
pub(crate) mod tests;
