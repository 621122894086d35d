//! The line editor, in a thread of its own: it waits for keys while the conversation goes on.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::termios::{
    _POSIX_VDISABLE, InputFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{
    Cmd, ColorMode, ConditionalEventHandler, Config, Editor, Event, EventContext, EventHandler, KeyCode,
    KeyEvent, Modifiers, RepeatCount,
};
use tokio::sync::mpsc as tokio_mpsc;

use super::prompt::{PROMPT, PromptLine};
use super::screen::columns;
use super::state::{self, private};
use crate::cli::error::CliError;
use crate::cli::keys::{key_by_key, set_special};
use crate::cli::pen::{Ability, is_dumb};

/// Lines that are remembered.
const HISTORY_LINES: usize = 1000;

/// What came from the keyboard.
#[derive(Debug, PartialEq, Eq)]
pub enum Typed {
    /// A message, maybe of several lines.
    Line(String),
    /// Ctrl-C, and what stood at the prompt.
    Interrupt(String),
    /// Ctrl-D, or the terminal has gone.
    End,
}

/// The line editor.
pub struct Input {
    // the text that is to stand at the prompt already
    ask: mpsc::Sender<String>,
    typed: tokio_mpsc::UnboundedReceiver<Typed>,
    line: PromptLine,
    asked: bool,
}

impl Input {
    /// Starts it.
    ///
    /// # Errors
    /// When the terminal cannot be used.
    pub fn start() -> Result<Self, CliError> {
        let failed = |e: &dyn std::fmt::Display| CliError::Failed(format!("cannot use the terminal: {e}"));
        let line = PromptLine::new(Ability::of(&io::stdout()).colour);
        let continuations = Continuations { line: line.clone(), ..Continuations::default() };
        let editor = editor(&continuations).map_err(|e| failed(&e))?;
        let (ask, asked) = mpsc::channel();
        let (typed_in, typed) = tokio_mpsc::unbounded_channel();
        std::thread::Builder::new()
            .name("input".to_owned())
            .spawn(move || edit(editor, &continuations, &asked, &typed_in))
            .map_err(|e| failed(&e))?;
        interrupts_come_here(false).map_err(|e| failed(&e))?;
        Ok(Self { ask, typed, line, asked: false })
    }

    /// Shows the prompt, with a text that is there already, if it does not stand yet.
    pub fn prompt(&mut self, initial: &mut String) {
        if !std::mem::replace(&mut self.asked, true) {
            // a thread that has ended shows in `next`
            let _ = self.ask.send(std::mem::take(initial));
        }
    }

    /// Whether something was typed already that has not come out of [`Input::next`].
    pub fn is_begun(&self) -> bool {
        !self.typed.is_empty() || self.line.is_begun()
    }

    /// What is typed at the prompt. Can be dropped and called again.
    pub async fn next(&mut self) -> Typed {
        if !self.asked {
            return std::future::pending().await;
        }
        let typed = self.typed.recv().await.unwrap_or(Typed::End);
        self.asked = false;
        typed
    }

    /// What stands at the prompt.
    #[must_use]
    pub fn line(&self) -> PromptLine {
        self.line.clone()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        let _ = interrupts_come_here(true);
    }
}

/// Whether SIGINT may meet this thread. While the editor reads, it has a handler of its own, which tells it only in
/// its own thread: a Ctrl-C that comes just before the prompt stands would otherwise be lost.
fn interrupts_come_here(may: bool) -> nix::Result<()> {
    let mut interrupt = SigSet::empty();
    interrupt.add(Signal::SIGINT);
    if may { interrupt.thread_unblock() } else { interrupt.thread_block() }
}

type LineEditor = Editor<PromptLine, FileHistory>;

fn editor(continuations: &Continuations) -> rustyline::Result<LineEditor> {
    let config = Config::builder()
        .max_history_size(HISTORY_LINES)?
        .history_ignore_dups(true)?
        // so that the editor tells what stands at the prompt, even where nothing is coloured (with NO_COLOR, too)
        .color_mode(ColorMode::Forced)
        .bracketed_paste(true)
        .build();
    let line = &continuations.line;
    let mut editor = LineEditor::with_config(config)?;
    editor.set_helper(Some(line.clone()));
    editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), EventHandler::Simple(Cmd::Newline));
    editor.bind_sequence(
        KeyEvent(KeyCode::Enter, Modifiers::NONE),
        EventHandler::Conditional(Box::new(continuations.clone())),
    );
    if let Ok(before) = tcgetattr(io::stdin()) {
        if !is_dumb() {
            quiet(before.clone())?;
        }
        editor.bind_sequence(
            KeyEvent::ctrl('Z'),
            EventHandler::Conditional(Box::new(Suspend { line: line.clone(), before: Mutex::new(before) })),
        );
    }
    Ok(editor)
}

/// Between two prompts, too, keys are not shown, and Enter, Ctrl-D and Ctrl-Z are what they are at the prompt: keys that
/// wait for it.
fn quiet(mut modes: Termios) -> io::Result<()> {
    key_by_key(&mut modes);
    modes.input_flags.remove(InputFlags::ICRNL);
    set_special(&mut modes, SpecialCharacterIndices::VSUSP, _POSIX_VDISABLE);
    Ok(tcsetattr(io::stdin(), SetArg::TCSANOW, &modes)?)
}

/// Enter after a backslash at the end begins a new line. The backslash is taken out when the message is
/// done: only one that was typed so, never one that was pasted. Each entry is the text up to, and with,
/// such a backslash.
#[derive(Clone, Default)]
struct Continuations {
    all: Arc<Mutex<Vec<String>>>,
    // is told when a line is taken
    line: PromptLine,
}

impl Continuations {
    fn all(&self) -> MutexGuard<'_, Vec<String>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message without those backslashes.
    fn join(&self, mut line: String) -> String {
        let mut all = std::mem::take(&mut *self.all());
        all.sort_by_key(|begin| std::cmp::Reverse(begin.len()));
        all.dedup();
        for begin in all {
            let at = begin.len().saturating_sub(1);
            if line.strip_prefix(begin.as_str()).is_some_and(|rest| rest.starts_with('\n')) {
                line.replace_range(at..begin.len(), "");
            }
        }
        line
    }
}

impl ConditionalEventHandler for Continuations {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        let (line, at) = (context.line(), context.pos());
        if !(line.ends_with('\\') && at == line.len()) {
            self.line.closing();
            return None;
        }
        self.all().push(line.to_owned());
        Some(Cmd::Newline)
    }
}

/// Ctrl-Z. The editor's own way would set the terminal's modes again before the process has stopped, for another
/// thread may be the one that the signal meets.
struct Suspend {
    line: PromptLine,
    before: Mutex<Termios>,
}

impl ConditionalEventHandler for Suspend {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext) -> Option<Cmd> {
        // without modes there is no terminal, and nothing to stop for
        let editing = tcgetattr(io::stdin()).ok()?;
        let set = |modes: &Termios, paste: &str| {
            let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, modes);
            let _ = io::stdout().write_all(paste.as_bytes()).and_then(|()| io::stdout().flush());
        };
        self.line.stopped();
        set(&self.before.lock().unwrap_or_else(PoisonError::into_inner), "\x1b[?2004l");
        // to this thread: it goes on when the process does
        let _ = raise(Signal::SIGTSTP);
        set(&editing, "\x1b[?2004h");
        // that it cannot be written shows where the conversation writes
        let _ = self.line.resumed(columns(), &mut io::stdout());
        Some(Cmd::Repaint)
    }
}

fn edit(
    mut editor: LineEditor,
    continuations: &Continuations,
    asked: &mpsc::Receiver<String>,
    typed: &tokio_mpsc::UnboundedSender<Typed>,
) {
    let line = &continuations.line;
    // without a file, what was typed is remembered as long as the conversation
    let history = history_file().ok();
    if let Some(path) = &history {
        let _ = editor.load_history(path);
    }
    while let Ok(initial) = asked.recv() {
        let read = editor.readline_with_initial(PROMPT, (&initial, ""));
        let begun = line.begun();
        if !is_dumb() {
            // that it cannot be written shows where the conversation writes
            let _ = line.gone(read.is_ok(), columns(), &mut io::stdout());
        }
        let answer = match read {
            Ok(line) => {
                let line = continuations.join(line);
                remember(&mut editor, history.as_ref(), &line);
                Typed::Line(line)
            }
            Err(ReadlineError::Interrupted) => Typed::Interrupt(begun),
            Err(_) => Typed::End,
        };
        if typed.send(answer).is_err() {
            return;
        }
    }
}

fn remember(editor: &mut LineEditor, history: Option<&PathBuf>, line: &str) {
    if line.trim().is_empty() {
        return;
    }
    // a history that cannot be written is no reason to stop a conversation
    let _ = editor.add_history_entry(line);
    if let Some(path) = history {
        let _ = editor.append_history(path);
    }
}

/// The file of what was typed, readable by its owner alone.
fn history_file() -> io::Result<PathBuf> {
    let path = private(state::dir().join("bxctl"))?.join("history");
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_typed_backslashes_are_taken_out() {
        let join = |begins: &[&str], line: &str| {
            let continuations = Continuations::default();
            continuations.all().extend(begins.iter().map(|begin| (*begin).to_owned()));
            let joined = continuations.join(line.to_owned());
            assert!(continuations.all().is_empty());
            joined
        };
        assert_eq!(join(&["a\\", "a\\\nb\\"], "a\\\nb\\\nc"), "a\nb\nc");
        assert_eq!(join(&[], "pasted \\\nline"), "pasted \\\nline");
        // changed afterwards: then it is what the user wants
        assert_eq!(join(&["a\\"], "x\\\nb"), "x\\\nb");
        assert_eq!(join(&["a\\", "a\\"], "a\\\n"), "a\n");
    }
}
