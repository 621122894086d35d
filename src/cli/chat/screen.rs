//! The terminal of a chat, which the line editor and the conversation share.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use super::prompt::PromptLine;
use crate::cli::pen;

/// Writes to the terminal, or, while the prompt stands, whole lines above it.
#[derive(Clone)]
pub struct Screen(Rc<RefCell<Inner>>);

struct Inner {
    line: PromptLine,
    at_prompt: bool,
    // a line that is not whole yet, while the prompt stands
    held: Vec<u8>,
}

impl Screen {
    /// A screen whose prompt is `line`.
    #[must_use]
    pub fn new(line: PromptLine) -> Self {
        Self(Rc::new(RefCell::new(Inner { line, at_prompt: false, held: Vec::new() })))
    }

    /// Says whether the prompt stands from now on.
    ///
    /// # Errors
    /// When what was held back cannot be written.
    pub fn at_prompt(&self, at_prompt: bool) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        inner.at_prompt = at_prompt;
        let held = std::mem::take(&mut inner.held);
        io::stdout().write_all(&held)?;
        io::stdout().flush()
    }
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.borrow_mut();
        if !inner.at_prompt {
            return io::stdout().write(bytes);
        }
        inner.held.extend_from_slice(bytes);
        if let Some(end) = memchr::memrchr(b'\n', &inner.held) {
            let rest = inner.held.split_off(end.saturating_add(1));
            let lines = std::mem::replace(&mut inner.held, rest);
            let columns = pen::columns().unwrap_or(pen::DEFAULT_COLUMNS);
            inner.line.put_above(&String::from_utf8_lossy(&lines), columns, |all| {
                io::stdout().write_all(all.as_bytes())?;
                io::stdout().flush()
            })?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
