//! What completions bring, as a test wants it.

use std::time::Duration;

use serde_json::{Value, json};

use super::vocabulary::EOG;

/// What one completion does, step by step.
#[derive(Debug, Clone, Default)]
pub struct Script {
    pub(super) steps: Vec<Step>,
    pub(super) claimed_cache: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Progress,
    Text(String),
    Id(String, u32),
    Lose(u64),
    Raw(String),
    Stall(Duration),
    /// Waits until the gate of this name is opened.
    Gate(&'static str),
    Status(u16, Value),
    /// The connection closes before an answer begins.
    Hangup,
    Final(&'static str),
    /// The connection closes in the middle of the body.
    Cut,
    /// The body ends as it should, whatever came before.
    EndBody,
}

/// The words in which a model calls a tool; `arguments` stand there as they are.
pub fn tool_call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// The same for an installed tool, which is called by way of `call_tool`.
pub fn installed_call(name: &str, arguments: &str) -> String {
    tool_call("call_tool", &format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}"))
}

/// The same for `find_tool`.
pub fn find_call(query: &str) -> String {
    tool_call("find_tool", &format!("{{\"query\": \"{query}\"}}"))
}

impl Script {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A whole answer, ended by the model.
    pub fn say(text: &str) -> Self {
        Self::new().progress().text(text).eog()
    }

    /// An HTTP error instead of a stream.
    pub fn status(code: u16, kind: &str, message: &str) -> Self {
        let body = json!({"error": {"code": code, "message": message, "type": kind}});
        Self::new().step(Step::Status(code, body))
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Says that the prompt is evaluated.
    pub fn progress(self) -> Self {
        self.step(Step::Progress)
    }

    /// Claims so many cached tokens, whatever the cache really holds.
    pub fn cache(mut self, tokens: u64) -> Self {
        self.claimed_cache = Some(tokens);
        self
    }

    /// Generates a text, an event for each character; of a character of several tokens only the last id
    /// is sent.
    pub fn text(self, text: &str) -> Self {
        self.step(Step::Text(text.to_owned()))
    }

    /// Generates one token with this text and id.
    pub fn token(self, text: &str, id: u32) -> Self {
        self.step(Step::Id(text.to_owned(), id))
    }

    /// Generates tokens of which no event tells.
    pub fn lose(self, tokens: u64) -> Self {
        self.step(Step::Lose(tokens))
    }

    /// The model ends its turn.
    pub fn eog(self) -> Self {
        self.step(Step::Id(String::new(), EOG)).step(Step::Final("eos"))
    }

    /// The last event, with another reason: `limit`, `word`, `none`.
    pub fn stop(self, kind: &'static str) -> Self {
        self.step(Step::Final(kind))
    }

    /// A sign of life without meaning.
    pub fn comment(self) -> Self {
        self.raw(":\n\n")
    }

    /// An error inside the stream.
    pub fn error(self, code: u16, message: &str) -> Self {
        let error = json!({"error": {"code": code, "message": message, "type": "server_error"}});
        self.raw(&format!("data: {error}\n\n")).step(Step::EndBody)
    }

    /// Bytes of the body, as they are.
    pub fn raw(self, bytes: &str) -> Self {
        self.step(Step::Raw(bytes.to_owned()))
    }

    /// Sends nothing for a while.
    pub fn stall(self, time: Duration) -> Self {
        self.step(Step::Stall(time))
    }

    /// Sends nothing until [`ScriptedServer::open`] opens this gate, or the client goes.
    pub fn gate(self, name: &'static str) -> Self {
        self.step(Step::Gate(name))
    }

    /// Closes the connection before an answer begins; only as the first step.
    pub fn hang_up() -> Self {
        Self::new().step(Step::Hangup)
    }

    /// Closes the connection.
    pub fn cut(self) -> Self {
        self.step(Step::Cut)
    }

    /// Ends the body in order, without a last event.
    pub fn end_body(self) -> Self {
        self.step(Step::EndBody)
    }
}
