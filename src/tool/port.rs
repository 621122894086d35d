//! The port: what a tool is to the rest of the daemon.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;

use serde_json::Value;

use super::Cancel;
use crate::proto::{ToolOutcome, TurnId};

/// A call under way. Dropping it ends the call and what it started.
pub type ToolFuture<'a> = Pin<Box<dyn Future<Output = ToolReply> + 'a>>;

/// Something that the model can call.
pub trait Tool {
    /// The name that `call_tool` takes; unique in a registry, and the same for the tool's whole life.
    fn name(&self) -> &str;

    /// What it does and what it takes, as `find_tool` shows it.
    fn describe(&self) -> ToolDescription;

    /// Whether a test of ours has shown that its schema compiles, so that this can wait for the first call:
    /// a daemon without other tools then never loads what compiles schemas.
    fn schema_is_proven(&self) -> bool {
        false
    }

    /// Limits of its own, which go before those of the [`CallContext`] it would get.
    fn limits(&self) -> ToolLimits {
        ToolLimits::default()
    }

    /// Does it. `arguments` is the text of a JSON object that fits the schema, as the model wrote it.
    /// Must keep to the context's limits; a panic is caught by the caller.
    fn call<'a>(&'a self, arguments: &'a str, context: CallContext) -> ToolFuture<'a>;
}

/// What a tool does and takes.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDescription {
    /// In words, for the model.
    pub text: String,
    /// The JSON Schema of its arguments.
    pub schema: Value,
}

/// A tool's own limits; what is absent is as the caller says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToolLimits {
    /// How long a call may take, in seconds.
    pub seconds: Option<u64>,
    /// How many bytes of output the model is shown.
    pub output_bytes: Option<u64>,
    /// How many bytes of output a spill file may hold.
    pub spill_bytes: Option<u64>,
}

impl ToolLimits {
    /// `context` with these limits in it.
    #[must_use]
    pub fn apply(self, mut context: CallContext) -> CallContext {
        context.seconds = self.seconds.unwrap_or(context.seconds);
        context.output_bytes = self.output_bytes.unwrap_or(context.output_bytes);
        if let (Some(bytes), Some(spill)) = (self.spill_bytes, context.spill.as_mut()) {
            spill.max_bytes = bytes;
        }
        context
    }
}

/// A look through a conversation; tells whether it has an earlier part at all.
pub type EarlierFuture<'a> = Pin<Box<dyn Future<Output = Result<bool, String>> + 'a>>;

/// What was said in a conversation before the context that the model sees.
pub trait Earlier: fmt::Debug {
    /// Shows all of it, from the first word on.
    fn each<'a>(&'a self, visit: &'a mut dyn FnMut(Passage<'_>)) -> EarlierFuture<'a>;
}

/// Something that was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage<'a> {
    /// In which turn.
    pub turn: TurnId,
    /// Who said it, in words.
    pub who: &'a str,
    /// What.
    pub text: &'a str,
}

/// What one call may use.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// Seconds until it is ended, by a clock that cannot jump.
    pub seconds: u64,
    /// Bytes of output that the model is shown; a few words about what is left out come on top.
    pub output_bytes: u64,
    /// Where longer output is kept whole; nowhere when absent.
    pub spill: Option<SpillTarget>,
    /// Ends it early.
    pub cancel: Cancel,
    /// The conversation that it is called in.
    pub earlier: Option<Rc<dyn Earlier>>,
}

/// Where output that is too long for the model is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillTarget {
    /// The folder; made (mode 0700) when only it itself is missing.
    pub dir: PathBuf,
    /// The file's name without its ending; a file that is there is never written again.
    pub stem: String,
    /// How many bytes are kept at most, all files of the call together.
    pub max_bytes: u64,
}

/// What became of a call, as it is recorded and as the model is shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolReply {
    /// How it went.
    pub outcome: ToolOutcome,
    /// What the model is shown.
    pub content: String,
    /// Bytes of output that `content` leaves out.
    pub truncated_bytes: u64,
    /// How long it took.
    pub millis: u64,
}

impl ToolReply {
    /// A whole reply that took no time worth telling.
    #[must_use]
    pub fn new(outcome: ToolOutcome, content: impl Into<String>) -> Self {
        Self { outcome, content: content.into(), truncated_bytes: 0, millis: 0 }
    }

    /// It did what it does.
    #[must_use]
    pub fn ok(content: impl Into<String>) -> Self {
        Self::new(ToolOutcome::Ok, content)
    }

    /// It failed, or could not be called.
    #[must_use]
    pub fn error(content: impl Into<String>) -> Self {
        Self::new(ToolOutcome::Error, content)
    }

    /// Somebody, or the configuration, said no.
    #[must_use]
    pub fn denied(tool: &str, by: &str) -> Self {
        Self::new(ToolOutcome::Denied, format!("The call of {tool} was denied by {by}. Nothing was run."))
    }
}

/// Whether a tool may be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// It may.
    Allow,
    /// Only when a person says so, each time.
    Ask,
    /// It may not; it isn't shown either.
    Deny,
}
