//! The process of a server that is started, and what is known of its end.

use std::cell::RefCell;
use std::os::unix::process::ExitStatusExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;

use super::super::confine::denies_generated_code;
use super::super::excerpt::Capture;
use super::super::process::{Pipes, Process, Start};
use super::super::report::failure;
use super::reader::{self, Notes};

/// How much of a server's standard error is kept, to tell why it ended.
const STDERR_BYTES: usize = 600;
/// How long an end that is under way is waited for, to tell of it.
const END_GRACE: Duration = Duration::from_millis(500);

/// A server's process, and what is known of it.
pub struct Child {
    process: Process,
    notes: Notes,
    stderr: Rc<RefCell<Capture>>,
    reading: JoinHandle<()>,
}

impl Drop for Child {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Child {
    /// Starts it.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start(start: &Start<'_>) -> Result<(Self, Pipes), String> {
        let (process, mut pipes) = start.start()?;
        let stderr = Rc::new(RefCell::new(Capture::end(STDERR_BYTES)));
        let reading = tokio::task::spawn_local(complaints(pipes.stderr.take(), Rc::clone(&stderr)));
        Ok((Self { process, notes: Notes::default(), stderr, reading }, pipes))
    }

    /// Where what is read from it is noted.
    pub fn notes(&self) -> Notes {
        Arc::clone(&self.notes)
    }

    /// Returns when the process has ended.
    pub async fn exited(&self) {
        self.process.exited().await;
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// Returns when the process has ended, a moment later: an end is noticed even when something else holds its pipes,
    /// and what it said last is read before.
    pub async fn ended(&self) {
        self.process.exited().await;
        tokio::time::sleep(END_GRACE).await;
    }

    /// What its end by a signal means where it may not compile.
    pub fn hint(&self) -> &'static str {
        let by_signal = self.process.status().is_some_and(|status| status.signal().is_some());
        if by_signal && denies_generated_code() {
            "; it may not compile while it runs here (MemoryDenyWriteExecute of loopd's unit): if it is Node.js, put \
             \"--jitless\" first into its `args`; else give it a unit of its own, and its address as `url`"
        } else {
            ""
        }
    }

    /// Forgets what it said.
    pub fn forget(&self) {
        self.stderr.replace(Capture::end(STDERR_BYTES));
        reader::forget(&self.notes);
    }

    /// How it ended, if it has, and what it said, if that is for whoever asks.
    pub async fn remains(&self, said: bool) -> String {
        let mut words = String::new();
        if tokio::time::timeout(END_GRACE, self.process.exited()).await.is_ok() {
            let how = self.process.status().map_or_else(|| "ended".to_owned(), failure);
            words.push_str(&format!("; it {how}"));
            // what it said last may still be in the pipe
            tokio::task::yield_now().await;
        }
        if !said {
            return words;
        }
        words.push_str(&reader::words(&self.notes));
        let stderr = self.stderr.borrow().excerpt(STDERR_BYTES).text;
        if !stderr.trim().is_empty() {
            words.push_str(&format!("; on standard error: {}", stderr.trim()));
        }
        words
    }
}

/// Reads what a server complains of, so that it is never held up by it.
async fn complaints(pipe: Option<ChildStderr>, into: Rc<RefCell<Capture>>) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        into.borrow_mut().push(buffer.get(..count).unwrap_or_default());
    }
}
