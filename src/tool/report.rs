//! What a command tool's end is told as.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

use super::ToolReply;
use super::excerpt::{Capture, Excerpt};
use super::spill::Spilled;
use crate::proto::ToolOutcome;

/// Why a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The direct child ended by itself.
    Exit,
    /// Its time was over.
    TimeLimit,
    /// Somebody cancelled it.
    Cancelled,
}

/// A stream of output that has ended.
pub struct Ended {
    /// What is kept of it in memory.
    pub capture: Capture,
    /// What is kept of it in a file.
    pub spilled: Spilled,
}

/// A call that has ended.
pub struct Report<'a> {
    /// The tool's name.
    pub name: &'a str,
    /// Why it ended.
    pub end: End,
    /// Its status; absent when it could not be had.
    pub status: Option<ExitStatus>,
    /// Its time limit.
    pub seconds: u64,
    /// How many bytes of output are shown.
    pub limit: usize,
}

/// A text that is the whole reply, cut to `limit` bytes.
pub fn text_reply(outcome: ToolOutcome, text: &Ended, limit: usize) -> ToolReply {
    let mut words = Words::default();
    words.stream("", &Stream { name: "output", ended: text }, limit);
    words.reply(outcome)
}

impl Report<'_> {
    /// The reply: on success standard output alone, otherwise what went wrong, the end of standard error, and
    /// standard output.
    pub fn reply(&self, out: &Ended, err: &Ended) -> ToolReply {
        let out = Stream { name: "output", ended: out };
        let err = Stream { name: "standard error", ended: err };
        let (outcome, wrong) = self.outcome();
        let mut words = Words::default();
        match wrong {
            None if !out.is_empty() => words.stream("", &out, self.limit),
            None if !err.is_empty() => words.stream("No output; on standard error:", &err, self.limit),
            None => words.line("No output."),
            Some(wrong) => {
                words.line(&wrong);
                let half = if out.is_empty() { self.limit } else { self.limit / 2 };
                if !err.is_empty() {
                    words.stream("Standard error:", &err, half);
                }
                if !out.is_empty() {
                    words.stream("Output:", &out, self.limit.saturating_sub(words.shown));
                }
            }
        }
        words.reply(outcome)
    }

    /// How it went, and what to say when it did not go well.
    fn outcome(&self) -> (ToolOutcome, Option<String>) {
        let Self { name, seconds, .. } = self;
        let alive = if self.status.is_none() { " It could not be killed." } else { "" };
        match (self.end, self.status) {
            (End::TimeLimit, _) => (
                ToolOutcome::TimedOut,
                Some(format!("{name} was ended: it ran for more than {seconds} seconds.{alive}")),
            ),
            (End::Cancelled, _) => (
                ToolOutcome::Interrupted,
                Some(format!("{name} was cancelled; what it did until then is unknown.{alive}")),
            ),
            (End::Exit, Some(status)) if status.success() => (ToolOutcome::Ok, None),
            (End::Exit, Some(status)) => (ToolOutcome::Error, Some(format!("{name} {}.", failure(status)))),
            (End::Exit, None) => (ToolOutcome::Error, Some(format!("{name} ended, nobody knows how."))),
        }
    }
}

/// A call's end that was no success, as what a program did.
pub fn failure(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "ended".to_owned(),
        (Some(code), _) => format!("failed with exit status {code}"),
        (None, Some(signal)) => match Signal::try_from(signal) {
            Ok(named) => format!("was ended by signal {signal} ({named})"),
            Err(_) => format!("was ended by signal {signal}"),
        },
        (None, None) => format!("ended oddly ({status})"),
    }
}

struct Stream<'a> {
    name: &'static str,
    ended: &'a Ended,
}

impl Stream<'_> {
    fn is_empty(&self) -> bool {
        self.ended.capture.total() == 0
    }

    /// What the model must know of it besides its text.
    fn notes(&self, excerpt: &Excerpt) -> Vec<String> {
        let Self { name, ended: Ended { capture, spilled: Spilled { path, bytes, failed } } } = self;
        let Excerpt { left_out, invalid, nul, .. } = *excerpt;
        let total = capture.total();
        let mut notes = Vec::new();
        if left_out > 0 {
            let kept = match (path, failed) {
                (Some(path), _) if *bytes == total => format!("all are in {}", path.display()),
                (Some(path), None) => format!("the first {bytes} are in {}", path.display()),
                (Some(path), Some(why)) => {
                    format!("the first {bytes} are in {}, then: {why}", path.display())
                }
                (None, Some(why)) => format!("they are not kept: {why}"),
                (None, None) => "they are not kept".to_owned(),
            };
            notes.push(format!("{left_out} of {total} bytes left out; {kept}"));
        }
        if invalid > 0 {
            notes.push(format!("{invalid} bytes are not UTF-8 and shown as \u{fffd}"));
        }
        if nul > 0 {
            notes.push(format!("{nul} NUL bytes are shown as \u{2400}"));
        }
        notes.into_iter().map(|note| format!("[{name}: {note}]")).collect()
    }
}

/// A reply's content, as it grows.
#[derive(Default)]
struct Words {
    content: String,
    notes: Vec<String>,
    shown: usize,
    left_out: u64,
}

impl Words {
    /// A line of its own.
    fn line(&mut self, line: impl fmt::Display) {
        self.end_line();
        self.content.push_str(&format!("{line}"));
    }

    fn end_line(&mut self) {
        if !self.content.is_empty() && !self.content.ends_with('\n') {
            self.content.push('\n');
        }
    }

    fn stream(&mut self, title: &str, stream: &Stream<'_>, limit: usize) {
        let excerpt = stream.ended.capture.excerpt(limit);
        self.line(title);
        self.end_line();
        self.content.push_str(&excerpt.text);
        self.notes.extend(stream.notes(&excerpt));
        self.shown += excerpt.text.len();
        self.left_out += excerpt.left_out;
    }

    fn reply(mut self, outcome: ToolOutcome) -> ToolReply {
        for note in std::mem::take(&mut self.notes) {
            self.line(note);
        }
        ToolReply { outcome, content: self.content, truncated_bytes: self.left_out, millis: 0 }
    }
}
