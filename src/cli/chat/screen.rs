//! The terminal of a chat, which the line editor and the conversation share.

use std::io::{self, Write};

use super::prompt::PromptLine;
use crate::cli::pen;

/// Writes above the prompt; on a terminal that cannot move its cursor, just writes.
#[derive(Clone)]
pub struct Screen {
    line: Option<PromptLine>,
}

impl Screen {
    /// A screen whose prompt is `line`, if its cursor can be moved.
    #[must_use]
    pub fn new(line: PromptLine, moves: bool) -> Self {
        Self { line: moves.then_some(line) }
    }

    /// Shows these messages as waiting, one row each.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn waiting(&self, rows: Vec<String>) -> io::Result<()> {
        match &self.line {
            Some(line) => line.waiting(rows, columns(), &mut io::stdout()),
            None => Ok(()),
        }
    }

    /// Takes the prompt away, at the end.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn leave(&self) -> io::Result<()> {
        match &self.line {
            Some(line) => line.leave(columns(), &mut io::stdout()),
            None => Ok(()),
        }
    }
}

/// The terminal's width.
pub fn columns() -> usize {
    pen::columns().unwrap_or(pen::DEFAULT_COLUMNS)
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.line {
            Some(line) => {
                line.write(&String::from_utf8_lossy(bytes), columns(), &mut io::stdout())?;
                Ok(bytes.len())
            }
            None => io::stdout().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
