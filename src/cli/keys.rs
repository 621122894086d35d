//! The keyboard while a question stands and no prompt does: a word and Enter answer it, and Ctrl-D detaches.
//!
//! Invariant: the terminal is as it was before when [`Keys`] is dropped.

use std::io;

use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices as Special, Termios, tcgetattr, tcsetattr,
};
use tokio::net::unix::pipe;

/// What is typed is kept up to so many bytes.
const TYPED_BYTES: usize = 64 * 1024;

const CTRL_D: u8 = 4;
const CTRL_U: u8 = 21;
const ESCAPE: u8 = 27;
const BACKSPACE: [u8; 2] = [8, 127];

/// The terminal's modes, put back when this is dropped.
pub struct Restore(Termios);

impl Restore {
    /// Keeps the modes of the terminal at the standard input.
    ///
    /// # Errors
    /// When it is none.
    pub fn new() -> io::Result<Self> {
        Ok(Self(tcgetattr(io::stdin())?))
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        // nothing can be done about a terminal that has gone
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
    }
}

/// Lets keys come one by one, and not be shown.
pub fn key_by_key(modes: &mut Termios) {
    modes.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
    set_special(modes, Special::VMIN, 1);
    set_special(modes, Special::VTIME, 0);
}

/// Sets a special key, or how many keys are waited for.
pub fn set_special(modes: &mut Termios, which: Special, value: u8) {
    if let Some(place) = modes.control_chars.get_mut(which as usize) {
        *place = value;
    }
}

/// The keyboard, read key by key and without echo. Ctrl-C and Ctrl-Z still are signals.
pub struct Keys {
    // a terminal opened anew: it can be made non-blocking without doing so to the standard input
    terminal: pipe::Receiver,
    _restore: Restore,
    typed: Typed,
}

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub enum Pressed {
    /// Ctrl-D, or the terminal has gone.
    Detach,
    /// A part of the answer to the question.
    Part(String),
    /// The answer, without Enter.
    Answer(String),
}

impl Keys {
    /// Takes the keyboard.
    ///
    /// # Errors
    /// When the standard input is no terminal, or one that cannot be opened.
    pub fn start() -> io::Result<Self> {
        let restore = Restore::new()?;
        let path = nix::unistd::ttyname(io::stdin()).unwrap_or_else(|_| "/dev/tty".into());
        let terminal = pipe::OpenOptions::new().unchecked(true).open_receiver(path)?;
        let mut modes = restore.0.clone();
        key_by_key(&mut modes);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &modes)?;
        Ok(Self { terminal, _restore: restore, typed: Typed::default() })
    }

    /// Waits for what is typed. Can be dropped and called again.
    pub async fn next(&mut self) -> Pressed {
        loop {
            // several lines may have come at once
            if let Some(line) = self.typed.line() {
                return Pressed::Answer(line);
            }
            let mut buffer = [0; 1024];
            if self.terminal.readable().await.is_err() {
                return Pressed::Detach;
            }
            match self.terminal.try_read(&mut buffer) {
                Ok(n) if n > 0 => {
                    if self.typed.push(buffer.get(..n).unwrap_or_default()) {
                        return Pressed::Detach;
                    }
                    if !self.typed.bytes.contains(&b'\n') {
                        return Pressed::Part(self.typed.so_far());
                    }
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                _ => return Pressed::Detach,
            }
        }
    }
}

/// Text typed without an editor.
#[derive(Default)]
struct Typed {
    bytes: Vec<u8>,
    // inside an escape sequence, such as of an arrow key
    escape: Option<u8>,
}

impl Typed {
    /// Takes keys; whether one of them was Ctrl-D.
    fn push(&mut self, keys: &[u8]) -> bool {
        for key in keys {
            match (self.escape, *key) {
                (Some(ESCAPE), b'[' | b'O') => self.escape = Some(*key),
                (Some(b'['), 0x20..=0x3f) => {}
                (Some(_), _) => self.escape = None,
                (None, ESCAPE) => self.escape = Some(ESCAPE),
                (None, CTRL_D) => return true,
                (None, CTRL_U) => self.bytes.clear(),
                (None, key) if BACKSPACE.contains(&key) => {
                    // back to the beginning of a character
                    while self.bytes.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
                }
                (None, b'\r') => self.bytes.push(b'\n'),
                (None, b'\n' | b'\t' | 0x20..) if self.bytes.len() < TYPED_BYTES => self.bytes.push(*key),
                (None, _) => {}
            }
        }
        false
    }

    /// Takes the first line out, if Enter was pressed.
    fn line(&mut self) -> Option<String> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned())
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &[u8]) -> String {
        let mut typed = Typed::default();
        for key in keys.chunks(1) {
            assert!(!typed.push(key));
        }
        typed.so_far()
    }

    #[test]
    fn lines_are_taken_one_by_one() {
        assert_eq!(typed("grü\x7f\x7fün\x1b[A\x1b[1;5D\x1bOP!".as_bytes()), "gün!");
        assert_eq!(typed(b"wrong\x15right"), "right");
        assert!(Typed::default().push(b"ab\x04"));
        let mut lines = Typed::default();
        lines.push(b"yeah\rn\rrest");
        assert_eq!((lines.line(), lines.line(), lines.line()), (Some("yeah".into()), Some("n".into()), None));
        assert_eq!(lines.so_far(), "rest");
    }
}
