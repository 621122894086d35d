//! Where a turn is written to: the answer, the reasoning, notes, and one line of progress that is
//! written over again and again.
//!
//! Invariants: everything passes through the sanitiser, except answers that go to a program or a file;
//! colours and progress only on a terminal; colours never with `NO_COLOR`.

use std::io::{self, IsTerminal, Write};

use super::markdown::Markdown;
use super::text::{self, Sanitiser};

/// Columns to assume where nothing tells them.
pub const DEFAULT_COLUMNS: usize = 80;

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

const DIM: &str = "2";
const YELLOW: &str = "33";

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
    open: Option<Kind>,
    answer_open: bool,
    progress: bool,
    width: Option<usize>,
}

impl Pen {
    /// Answers on `stdout`, all else on `stderr`.
    #[must_use]
    pub fn split() -> Self {
        let (out_can, err_can) = (Ability::of(&io::stdout()), Ability::of(&io::stderr()));
        Self::new(Box::new(io::stdout()), Some(Box::new(io::stderr())), out_can, err_can, None)
    }

    /// Everything on `out`, a terminal.
    #[must_use]
    pub fn single(out: Box<dyn Write>, can: Ability) -> Self {
        Self::new(out, None, can, can, None)
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
            open: None,
            answer_open: false,
            progress: false,
            width,
        }
    }

    /// The columns to fit notes into.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width.or_else(columns).unwrap_or(DEFAULT_COLUMNS)
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
        if self.out_can.colour {
            let styled = self.markdown.push(piece);
            self.out.write_all(styled.as_bytes())?;
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
        let styled = paint(&safe, DIM, self.err_can.colour);
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
        self.write_note(note, DIM)
    }

    /// A line of its own that should be seen.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn warn(&mut self, note: &str) -> io::Result<()> {
        self.write_note(note, YELLOW)
    }

    /// A line of its own in plain style.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn say(&mut self, note: &str) -> io::Result<()> {
        self.write_note(note, "")
    }

    /// Whole lines that are safe, and styled if they are to be.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn ready(&mut self, lines: &str) -> io::Result<()> {
        self.end_line()?;
        self.write_notes(lines)
    }

    fn write_note(&mut self, note: &str, style: &str) -> io::Result<()> {
        self.end_line()?;
        let styled = paint(&text::block(note), style, self.err_can.colour);
        self.write_notes(&format!("{styled}\n"))
    }

    /// A line that the next thing written takes the place of. On a terminal only.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn progress(&mut self, note: &str) -> io::Result<()> {
        if !self.err_can.moves {
            return Ok(());
        }
        if !self.progress {
            self.end_line()?;
        }
        // one column stays free: a full line would wrap, and could not be taken back
        let cut = text::cut(&text::line(note), self.width().saturating_sub(1));
        let styled = paint(&cut, DIM, self.err_can.colour);
        self.progress = true;
        self.write_notes(&format!("\r\x1b[K{styled}"))
    }

    fn clear_progress(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.progress) {
            self.write_notes("\r\x1b[K")?;
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
        let rest = format!("{}{}", self.markdown.finish(), self.clean.finish());
        if std::mem::take(&mut self.answer_open) {
            self.open = None;
            self.out.write_all(format!("{rest}\n").as_bytes())?;
            self.out.flush()?;
        }
        Ok(())
    }
}

/// `text` in a style (the number of an SGR sequence), line by line, so that no style outlives a line.
fn paint(text: &str, style: &str, colour: bool) -> String {
    if !colour || style.is_empty() {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len().saturating_add(16));
    for piece in text.split_inclusive('\n') {
        let (body, end) = piece.strip_suffix('\n').map_or((piece, ""), |body| (body, "\n"));
        if !body.is_empty() {
            out.push_str("\x1b[");
            out.push_str(style);
            out.push('m');
            out.push_str(body);
            out.push_str("\x1b[0m");
        }
        out.push_str(end);
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// What was written, for tests to look at.
    #[derive(Clone, Default)]
    pub(crate) struct Paper(Rc<RefCell<Vec<u8>>>);

    impl Paper {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.borrow().clone()).unwrap()
        }
    }

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    pub(crate) const PLAIN: Ability = Ability { terminal: false, colour: false, moves: false };
    pub(crate) const SCREEN: Ability = Ability { terminal: true, colour: true, moves: true };

    pub(crate) fn pen(out_can: Ability, err_can: Ability) -> (Pen, Paper, Paper) {
        let (out, err) = (Paper::default(), Paper::default());
        let pen = Pen::new(Box::new(out.clone()), Some(Box::new(err.clone())), out_can, err_can, Some(40));
        (pen, out, err)
    }

    pub(crate) fn single() -> (Pen, Paper) {
        let out = Paper::default();
        (Pen::new(Box::new(out.clone()), None, SCREEN, SCREEN, Some(40)), out)
    }

    #[test]
    fn a_program_gets_the_exact_answer() {
        let (mut pen, out, err) = pen(PLAIN, PLAIN);
        pen.reasoning("hm\x1b[1m").unwrap();
        pen.answer("a\x1b[31m\r\n").unwrap();
        pen.answer("b").unwrap();
        pen.note("a note\x07").unwrap();
        pen.progress("10 %").unwrap();
        pen.end_answer().unwrap();
        assert_eq!(out.text(), "a\x1b[31m\r\nb\n");
        assert_eq!(err.text(), "hm␛[1m\na note␇\n");
    }

    #[test]
    fn a_terminal_gets_only_our_own_sequences() {
        let (mut pen, out) = single();
        pen.progress("evaluating\x1b[2J 1 of 2, and a line that is far too long for it").unwrap();
        pen.reasoning("let me\nsee\x1b[8m").unwrap();
        pen.answer("red: \x1b[31").unwrap();
        pen.answer("m\u{9b}1m").unwrap();
        pen.warn("lost").unwrap();
        let text = out.text();
        let ours = ["\r\x1b[K", "\x1b[2m", "\x1b[33m", "\x1b[0m"];
        let rest = ours.iter().fold(text.clone(), |text, seq| text.replace(seq, ""));
        assert!(rest.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        insta::assert_snapshot!(text.replace('\x1b', "ESC").replace('\r', "CR"), @r"
        CRESC[KESC[2mevaluating␛[2J 1 of 2, and a line that…ESC[0mCRESC[KESC[2mlet meESC[0m
        ESC[2msee␛[8mESC[0m
        red: ␛[31m‹U+009B›1m
        ESC[33mlostESC[0m
        ");
    }

    #[test]
    fn without_colour_there_is_no_style() {
        let can = Ability { terminal: true, colour: false, moves: true };
        let (mut pen, out, err) = pen(can, can);
        pen.reasoning("hm").unwrap();
        pen.answer("yes").unwrap();
        pen.warn("careful").unwrap();
        assert_eq!((out.text().as_str(), err.text().as_str()), ("yes\n", "hm\ncareful\n"));
    }
}
