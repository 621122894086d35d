//! Records to prompt.
//!
//! The prompt is the baseline's head, then for each completion what was added for it and what the model
//! generated, as recorded, then what is new. For any records `r` and any further record `x`,
//! the prompt of `r` is a prefix of that of `r + x`: nothing here looks ahead, at a clock, or at anything but
//! the records and the framing.

use crate::proto::{
    AssistantMessage, Carried, CarriedEnd, Finish, Framing, LogRecord, TokenId, cached_after, count,
};

/// A part of what is new in the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A fragment of the framing.
    Ids(&'a [TokenId]),
    /// Somebody's text, to be tokenised with special tokens off.
    Text(&'a str),
}

/// A [`Piece`] that outlives the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedPiece {
    /// A fragment of the framing.
    Ids(Vec<TokenId>),
    /// Somebody's text.
    Text(String),
}

impl From<Piece<'_>> for OwnedPiece {
    fn from(piece: Piece<'_>) -> Self {
        match piece {
            Piece::Ids(ids) => Self::Ids(ids.to_vec()),
            Piece::Text(text) => Self::Text(text.to_owned()),
        }
    }
}

/// The prompt that an epoch's records make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt<'a> {
    /// The head and all recorded ids: what the model has seen or said.
    pub list: &'a [TokenId],
    /// What comes after it, not yet shown to the model.
    pub new: Vec<Piece<'a>>,
    /// Whether what the model says next begins inside its reasoning.
    pub thinking: bool,
    /// How many tokens of the list the slot's cache holds after the newest answer; 0 before an epoch's first.
    pub expected: u64,
}

/// A [`Prompt`] that outlives the records.
pub(super) struct OwnedPrompt {
    /// As in [`Prompt`], with room for what is usually added to it.
    pub list: Vec<TokenId>,
    pub new: Vec<OwnedPiece>,
    pub thinking: bool,
    pub expected: u64,
}

impl From<Prompt<'_>> for OwnedPrompt {
    fn from(Prompt { list, new, thinking, expected }: Prompt<'_>) -> Self {
        const ROOM: usize = 1024;
        let mut own = Vec::with_capacity(list.len().saturating_add(ROOM));
        own.extend_from_slice(list);
        Self { list: own, new: new.into_iter().map(OwnedPiece::from).collect(), thinking, expected }
    }
}

/// What the prompt ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The head.
    Head,
    /// The framing that asks the assistant to speak, without a word from it yet.
    Asked,
    /// An assistant's message, or several of which each goes on where the one before was cut off.
    Spoke {
        /// How many calls the last of them has.
        calls: usize,
        /// It ends inside the model's reasoning.
        thinking: bool,
        /// Nothing was said but reasoning.
        silent: bool,
    },
    /// An answer of an earlier epoch, which was carried over closed.
    Said,
    /// Some of the results of an assistant's calls.
    Results { left: usize },
}

/// An epoch's records as far as the model has heard or written them: what nothing that comes later changes, so
/// that a prompt is made from what is new alone, however long the epoch is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// How many records that is.
    records: usize,
    list: Vec<TokenId>,
    last: Last,
    /// How the newest answer finished.
    finish: Option<Finish>,
}

impl Heard {
    /// Nothing of an epoch with this framing.
    #[must_use]
    pub fn new(framing: &Framing) -> Self {
        Self { records: 0, list: framing.head.to_vec(), last: Last::Head, finish: None }
    }

    /// The prompt of the epoch's records, which must have passed [`crate::proto::Sequence`], and begin with those of the
    /// call before.
    pub fn prompt<'a>(&'a mut self, framing: &'a Framing, records: &'a [LogRecord]) -> Prompt<'a> {
        let replay = self.replay(framing, records);
        self.with(replay)
    }

    /// The prompt that asks for something beside the conversation: the list up to the newest answer, and a user
    /// message behind it that is recorded nowhere. What waits to be shown to the model is left out.
    pub(super) fn aside<'a>(
        &'a mut self,
        framing: &'a Framing,
        records: &'a [LogRecord],
        text: &'a str,
    ) -> Prompt<'a> {
        self.replay(framing, records);
        let mut replay = Replay { framing, new: Vec::new(), last: self.last };
        replay.user(text);
        self.with(replay)
    }

    fn with<'a>(&'a self, Replay { framing, new, last }: Replay<'a>) -> Prompt<'a> {
        let expected = self.finish.map_or(0, |finish| cached_after(count(self.list.len()), finish));
        Prompt { list: &self.list, new, thinking: open(framing, last).0, expected }
    }

    /// Takes in what the model has heard or written since; gives what comes after.
    fn replay<'a>(&mut self, framing: &'a Framing, records: &'a [LogRecord]) -> Replay<'a> {
        let mut replay = Replay { framing, new: Vec::new(), last: self.last };
        for (n, record) in records.iter().enumerate().skip(self.records) {
            let heard: [&[TokenId]; 2] = match record {
                LogRecord::Carried(carried) => {
                    replay.carried(carried);
                    [&carried.prompt_ids, &[]]
                }
                LogRecord::AssistantMessage(message) => {
                    replay.spoke(message);
                    self.finish = Some(message.finish);
                    [&message.prompt_ids, message.kept_ids()]
                }
                LogRecord::UserMessage(message) => {
                    replay.user(&message.text);
                    continue;
                }
                LogRecord::ToolResult(result) => {
                    replay.result(&result.content);
                    continue;
                }
                // these are for people: the model never sees them
                LogRecord::SessionStart(_)
                | LogRecord::ToolStart(_)
                | LogRecord::Approval(_)
                | LogRecord::Named(_)
                | LogRecord::Usage(_)
                | LogRecord::TurnEnd(_) => continue,
            };
            // `prompt_ids` is what was pending here, tokenised when it was sent
            replay.new.clear();
            heard.into_iter().for_each(|ids| self.list.extend_from_slice(ids));
            (self.records, self.last) = (n.saturating_add(1), replay.last);
        }
        replay
    }
}

/// Whether the assistant is inside its reasoning there, and has said nothing else.
fn open(framing: &Framing, last: Last) -> (bool, bool) {
    match last {
        Last::Spoke { thinking, silent, .. } => (thinking, silent),
        Last::Said => (false, false),
        _ => (framing.reasoning.as_ref().is_some_and(|tags| tags.opened_by_prompt), true),
    }
}

/// The rules by which what the model has not heard yet is rendered.
struct Replay<'a> {
    framing: &'a Framing,
    new: Vec<Piece<'a>>,
    last: Last,
}

impl<'a> Replay<'a> {
    fn ids(&mut self, ids: &'a [TokenId]) {
        if !ids.is_empty() {
            self.new.push(Piece::Ids(ids));
        }
    }

    fn text(&mut self, text: &'a str) {
        if !text.is_empty() {
            self.new.push(Piece::Text(text));
        }
    }

    fn carried(&mut self, carried: &Carried) {
        self.last = match carried.ends {
            CarriedEnd::Open => Last::Head,
            CarriedEnd::Asked => Last::Asked,
            CarriedEnd::Said => Last::Said,
        };
    }

    fn user(&mut self, text: &'a str) {
        let framing = self.framing;
        if self.last != Last::Head {
            self.close_assistant();
            self.ids(&framing.user_open);
        }
        self.text(text);
        self.ids(&framing.user_close);
        self.last = Last::Asked;
    }

    fn spoke(&mut self, message: &AssistantMessage) {
        let (thinking, silent) = open(self.framing, self.last);
        // what was said in the part before stays said, and a thought goes on until something is said
        let nothing = message.text.trim().is_empty() && message.tool_calls.is_empty();
        let thinks = self.framing.reasoning.is_some() && (thinking || message.reasoning.is_some());
        let calls = message.tool_calls.len();
        self.last = Last::Spoke { calls, thinking: nothing && thinks, silent: nothing && silent };
    }

    fn result(&mut self, content: &'a str) {
        let framing = self.framing;
        let left = match self.last {
            Last::Spoke { calls, .. } => {
                self.ids(&framing.tool_open);
                calls.saturating_sub(1)
            }
            Last::Results { left } => {
                self.ids(&framing.tool_between);
                left.saturating_sub(1)
            }
            // no log has this: a result follows its call
            Last::Head | Last::Asked | Last::Said => return,
        };
        self.text(content);
        if left == 0 {
            self.ids(&framing.tool_close);
            self.last = Last::Asked;
        } else {
            self.last = Last::Results { left };
        }
    }

    /// Before a user speaks again, the assistant's turn gets an end that a strict template accepts:
    /// reasoning is closed, and where nothing was said stands the stand-in.
    fn close_assistant(&mut self) {
        let framing = self.framing;
        let (thinking, silent) = open(framing, self.last);
        if thinking && let Some(tags) = &framing.reasoning {
            self.ids(&tags.close_ids);
        }
        if silent {
            self.ids(&framing.stand_in_ids);
        }
    }
}

/// What a new epoch takes over, rendered by the same rules as everything else.
pub(super) struct Rendering<'a>(Replay<'a>);

impl<'a> Rendering<'a> {
    /// Behind the head; `opening` stands before the text of the first user message.
    pub(super) fn new(framing: &'a Framing, opening: &'a str) -> Self {
        let mut rendering = Self(Replay { framing, new: Vec::new(), last: Last::Head });
        rendering.0.text(opening);
        rendering
    }

    /// A user message.
    pub(super) fn user(&mut self, text: &'a str) {
        self.0.user(text);
    }

    /// What an assistant wrote, by its ids.
    pub(super) fn answered(&mut self, message: &'a AssistantMessage) {
        self.0.ids(message.kept_ids());
        self.0.spoke(message);
    }

    /// The end of an answer that was cut off: it goes on from there.
    pub(super) fn goes_on(&mut self, ids: &'a [TokenId]) {
        self.0.ids(ids);
        self.0.last = Last::Said;
    }

    /// What an assistant said, as text; nothing where it said nothing.
    pub(super) fn said(&mut self, text: &'a str) {
        if !text.trim().is_empty() {
            self.0.text(text);
            self.0.last = Last::Said;
        }
    }

    /// What a tool gave.
    pub(super) fn result(&mut self, content: &'a str) {
        self.0.result(content);
    }

    /// The pieces, and where the prompt stands after them. An assistant's turn that does not go on is closed;
    /// `any` tells whether there is one.
    pub(super) fn finish(mut self, any: bool, goes_on: bool) -> (Vec<OwnedPiece>, CarriedEnd) {
        let asked = matches!(self.0.last, Last::Asked);
        if any && !goes_on {
            self.0.close_assistant();
        }
        let ends = match (any, goes_on && asked) {
            (false, _) => CarriedEnd::Open,
            (true, true) => CarriedEnd::Asked,
            (true, false) => CarriedEnd::Said,
        };
        (self.0.new.into_iter().map(OwnedPiece::from).collect(), ends)
    }
}
