//! Reads what a model wrote: reasoning, text, and calls of tools, from the raw text as it streams in.
//!
//! However the text is cut into pieces, the result is the same: a piece's end that may be the beginning
//! of a tag is held back until it is known.

mod calls;
mod json;
mod scan;
mod xml;

use crate::proto::{ReasoningTags, ToolFamily};
use scan::{Found, find};

pub use calls::ParsedCall;

/// What the model is made to say when its reasoning reaches the cap; so the cap can be recognised.
pub const CAP_MESSAGE: &str = "\n\n(Enough thought: I answer now.)";

/// What closes reasoning that has reached the cap: for the parser, as [`super::Server::cap_ids`] for the
/// model.
#[must_use]
pub fn cap_text(tags: &ReasoningTags) -> String {
    format!("{CAP_MESSAGE}\n{}\n\n", tags.close)
}

/// The marks that this module reads. Where they are control tokens, the server must be asked to write
/// them out.
pub(super) const MARKERS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<seed:think>",
    "</seed:think>",
    "<mm:think>",
    "</mm:think>",
    "<think:opensource>",
    "</think:opensource>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|inner_prefix|>",
    "<|inner_suffix|>",
    "<|channel>",
    "<channel|>",
];

/// A piece of what a model writes, for people to see at once. Whitespace around the whole is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Of the answer.
    Text(String),
    /// Of the reasoning.
    Reasoning(String),
}

/// A whole reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    /// The answer, without reasoning and calls: all [`Part::Text`] together.
    pub text: String,
    /// The reasoning, without its tags: all [`Part::Reasoning`] together.
    pub reasoning: Option<String>,
    /// Calls of tools. Run none of them when the completion ended by a limit or was cancelled, and none
    /// that has a problem.
    pub calls: Vec<ParsedCall>,
    /// Whether the reasoning was not closed.
    pub reasoning_open: bool,
    /// Whether the reasoning was closed by the cap.
    pub capped: bool,
}

/// Reads one reply.
#[derive(Debug)]
pub struct ReplyParser {
    family: ToolFamily,
    tags: Option<(String, String)>,
    state: State,
    /// Text that came and is not yet understood.
    held: String,
    text: Stream,
    reasoning: Stream,
    calls: Vec<ParsedCall>,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    Reasoning,
    /// Inside a call, begun by the tag of this number in [`openings`].
    Call(usize),
    /// The reply begins with `{`: it may be a call as a whole.
    BareJson,
}

/// Text without whitespace at its ends, however it comes.
#[derive(Debug, Default)]
struct Stream {
    all: String,
    /// Whitespace that counts only if something follows.
    gap: String,
    /// Whether something else stood between `all` and what comes next.
    broken: bool,
}

impl Stream {
    /// Adds a piece, and returns what can be shown now.
    fn add(&mut self, piece: &str) -> String {
        let body = if self.all.is_empty() { piece.trim_start() } else { piece };
        let solid = body.trim_end();
        if solid.is_empty() {
            if !self.all.is_empty() {
                self.gap.push_str(body);
            }
            return String::new();
        }
        let trailing = body.get(solid.len()..).unwrap_or_default();
        let mut shown = std::mem::take(&mut self.gap);
        let leading = solid.chars().next().is_some_and(char::is_whitespace);
        if self.broken && shown.is_empty() && !leading && !self.all.is_empty() {
            shown.push('\n');
        }
        self.broken = false;
        shown.push_str(solid);
        self.gap.push_str(trailing);
        self.all.push_str(&shown);
        shown
    }
}

/// How a family's calls begin, and how each ends; without an end they reach to the reply's end.
fn openings(family: ToolFamily) -> &'static [(&'static str, Option<&'static str>)] {
    match family {
        ToolFamily::Hermes | ToolFamily::Glm => &[("<tool_call>", Some("</tool_call>"))],
        // Some write the function without the call around it.
        ToolFamily::QwenCoder => {
            &[("<tool_call>", Some("</tool_call>")), ("<function=", Some("</function>"))]
        }
        ToolFamily::Mistral => &[("[TOOL_CALLS]", None)],
        ToolFamily::Llama => &[("<|python_tag|>", None)],
    }
}

impl ReplyParser {
    /// A parser for a model that calls tools in this family's words, and thinks between these tags.
    #[must_use]
    pub fn new(family: ToolFamily, tags: Option<&ReasoningTags>) -> Self {
        let opened = tags.is_some_and(|tags| tags.opened_by_prompt);
        Self {
            family,
            tags: tags.map(|tags| (tags.open.clone(), tags.close.clone())),
            state: if opened { State::Reasoning } else { State::Text },
            held: String::new(),
            text: Stream::default(),
            reasoning: Stream::default(),
            calls: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Whether the model is inside its reasoning.
    #[must_use]
    pub fn in_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Whether the text that came last may be the beginning of a tag.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        !self.held.is_empty()
    }

    /// Adds a piece of the reply, and returns what can be shown of it.
    pub fn feed(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        while self.step() {}
        std::mem::take(&mut self.parts)
    }

    /// Ends the reply: the parts that were held back until now, and the whole.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Part>, Reply) {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Text => self.show_text(&rest),
            State::Reasoning => self.show_reasoning(&rest),
            State::Call(opening) => self.end_call(opening, &rest, false),
            State::BareJson => match json::bare_calls(&rest) {
                Some(calls) => self.calls.extend(calls),
                None => self.show_text(&rest),
            },
        }
        let all = self.reasoning.all;
        let reply = Reply {
            text: self.text.all,
            capped: all.ends_with(CAP_MESSAGE.trim_start()),
            reasoning: (!all.is_empty()).then_some(all),
            calls: self.calls,
            reasoning_open: self.state == State::Reasoning,
        };
        (self.parts, reply)
    }

    /// Understands a bit more of what is held; false when more must come first.
    fn step(&mut self) -> bool {
        match self.state {
            State::Text => self.step_text(),
            State::Reasoning => self.step_reasoning(),
            State::Call(opening) => self.step_call(opening),
            State::BareJson => false,
        }
    }

    fn step_text(&mut self) -> bool {
        let begins = self.text.all.is_empty() && self.calls.is_empty();
        if begins && self.family == ToolFamily::Llama && self.held.trim_start().starts_with('{') {
            self.state = State::BareJson;
            return false;
        }
        let openings = openings(self.family);
        let mut tags: Vec<&str> = openings.iter().map(|(open, _)| *open).collect();
        // Only a reply's beginning can be reasoning: later on the tag is text about the tag.
        if begins && let Some((open, _)) = &self.tags {
            tags.push(open);
        }
        match find(&self.held, &tags) {
            Found::Tag { index, before, after } => {
                let text = self.take_held(before, after);
                let solid = !text.trim().is_empty();
                self.show_text(&text);
                if index < openings.len() {
                    self.state = State::Call(index);
                } else if solid {
                    // The text before the tag and the tag came in one piece.
                    let open = self.tags.as_ref().map(|(open, _)| open.clone()).unwrap_or_default();
                    self.show_text(&open);
                } else {
                    self.state = State::Reasoning;
                }
                true
            }
            Found::Nothing { known } => {
                let text = self.take_held(known, known);
                self.show_text(&text);
                false
            }
        }
    }

    fn step_reasoning(&mut self) -> bool {
        let Some((_, close)) = &self.tags else {
            self.state = State::Text;
            return true;
        };
        match find(&self.held, &[close]) {
            Found::Tag { before, after, .. } => {
                let text = self.take_held(before, after);
                self.show_reasoning(&text);
                self.reasoning.broken = true;
                self.state = State::Text;
                true
            }
            Found::Nothing { known } => {
                let text = self.take_held(known, known);
                self.show_reasoning(&text);
                false
            }
        }
    }

    fn step_call(&mut self, opening: usize) -> bool {
        let Some((_, Some(close))) = openings(self.family).get(opening) else {
            return false;
        };
        let quoted = self.family == ToolFamily::Hermes;
        let Some((before, after)) = scan::call_end(&self.held, close, quoted) else {
            return false;
        };
        let body = self.take_held(before, after);
        self.end_call(opening, &body, true);
        self.text.broken = true;
        self.state = State::Text;
        true
    }

    fn end_call(&mut self, opening: usize, body: &str, closed: bool) {
        let open = openings(self.family).get(opening).map_or("", |(open, _)| *open);
        self.calls.extend(calls::read(self.family, open, body, closed));
    }

    /// Takes the held text up to `end`, and forgets it up to `next`.
    fn take_held(&mut self, end: usize, next: usize) -> String {
        let taken = self.held.get(..end).unwrap_or_default().to_owned();
        self.held = self.held.get(next..).unwrap_or_default().to_owned();
        taken
    }

    fn show_text(&mut self, text: &str) {
        let shown = self.text.add(text);
        if !shown.is_empty() {
            self.parts.push(Part::Text(shown));
        }
    }

    fn show_reasoning(&mut self, text: &str) {
        let shown = self.reasoning.add(text);
        if !shown.is_empty() {
            self.parts.push(Part::Reasoning(shown));
        }
    }
}

#[cfg(test)]
mod tests;
