//! The kinds of line in a log.

use serde::{Deserialize, Serialize};

use super::{CallId, Carried, Digest, Epoch, SessionId, Timestamp, TokenId, TokenIds, TurnId, Usage};

/// One record of a session's log. On disk the tag is `type`, in snake case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LogRecord {
    /// The first line of an epoch.
    SessionStart(SessionStart),
    /// What an epoch after the first begins with.
    Carried(Carried),
    /// What the user said; begins a turn.
    UserMessage(UserMessage),
    /// A completion, as the model wrote it.
    AssistantMessage(AssistantMessage),
    /// A tool is about to be started.
    ToolStart(ToolStart),
    /// What became of a tool call.
    ToolResult(ToolResult),
    /// Someone allowed or denied a tool call.
    Approval(Approval),
    /// The session's name from here on.
    Named(Named),
    /// What a completion cost.
    Usage(UsageRecord),
    /// A turn's end.
    TurnEnd(TurnEnd),
}

impl LogRecord {
    /// The turn that it belongs to, if it belongs to one.
    #[must_use]
    pub fn turn(&self) -> Option<TurnId> {
        match self {
            Self::SessionStart(_) | Self::Carried(_) | Self::Named(_) => None,
            Self::UserMessage(r) => Some(r.turn),
            Self::AssistantMessage(r) => Some(r.turn),
            Self::ToolStart(r) => Some(r.turn),
            Self::ToolResult(r) => Some(r.turn),
            Self::Approval(r) => Some(r.turn),
            Self::Usage(r) => Some(r.turn),
            Self::TurnEnd(r) => Some(r.turn),
        }
    }

    /// The record's tag on disk.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::SessionStart(_) => "session_start",
            Self::Carried(_) => "carried",
            Self::UserMessage(_) => "user_message",
            Self::AssistantMessage(_) => "assistant_message",
            Self::ToolStart(_) => "tool_start",
            Self::ToolResult(_) => "tool_result",
            Self::Approval(_) => "approval",
            Self::Named(_) => "named",
            Self::Usage(_) => "usage",
            Self::TurnEnd(_) => "turn_end",
        }
    }

    /// When it was written.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        match self {
            Self::SessionStart(r) => r.time,
            Self::Carried(r) => r.time,
            Self::UserMessage(r) => r.time,
            Self::AssistantMessage(r) => r.time,
            Self::ToolStart(r) => r.time,
            Self::ToolResult(r) => r.time,
            Self::Approval(r) => r.time,
            Self::Named(r) => r.time,
            Self::Usage(r) => r.time,
            Self::TurnEnd(r) => r.time,
        }
    }
}

/// Begins an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionStart {
    /// When.
    pub time: Timestamp,
    /// Which session; the directory's name.
    pub session: SessionId,
    /// Which epoch; the files' number.
    pub epoch: Epoch,
    /// The model server's slot.
    pub slot: u32,
    /// The SHA-256 of `N.baseline.json`.
    pub baseline: Digest,
    /// From epoch 1 on: the SHA-256 of the previous epoch's last line, newline included.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub previous: Option<Digest>,
    /// Of a fork or a recovery: where the records came from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub origin: Option<Origin>,
}

/// Where copied records came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The session.
    pub session: SessionId,
    /// The epoch.
    pub epoch: Epoch,
    /// The last line that was copied, from 1.
    pub line: u64,
}

/// What the user said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserMessage {
    /// When.
    pub time: Timestamp,
    /// The turn it begins.
    pub turn: TurnId,
    /// The text, as given.
    pub text: String,
}

/// A completion, as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssistantMessage {
    /// When it became final.
    pub time: Timestamp,
    /// The turn.
    pub turn: TurnId,
    /// The answer, without reasoning and tool calls.
    pub text: String,
    /// The reasoning, without its tags.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reasoning: Option<String>,
    /// The tools that the model called.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub tool_calls: Vec<ToolCall>,
    /// Why it ended.
    pub finish: Finish,
    /// What was added to the prompt for this completion, framing included.
    pub prompt_ids: TokenIds,
    /// What was sampled, the end-of-generation token included.
    pub ids: TokenIds,
}

impl AssistantMessage {
    /// The sampled ids that stay in the prompt: all but the end-of-generation token, which the model
    /// server never evaluates, and in whose place the template's own end of turn comes.
    #[must_use]
    pub fn kept_ids(&self) -> &[TokenId] {
        match (self.finish, self.ids.as_ref()) {
            (Finish::Stop | Finish::ToolCalls, [kept @ .., _eog]) => kept,
            (_, ids) => ids,
        }
    }
}

impl AsRef<[TokenId]> for TokenIds {
    fn as_ref(&self) -> &[TokenId] {
        &self.0
    }
}

/// A tool call, as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// Our own number for it.
    pub call: CallId,
    /// The tool's name.
    pub name: String,
    /// The arguments' text, exactly.
    pub arguments: String,
}

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended its turn.
    Stop,
    /// The model ended its turn with calls of tools.
    ToolCalls,
    /// A limit of tokens was reached.
    Length,
    /// Somebody cancelled it.
    Cancelled,
}

/// A tool is about to be started: durable before it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolStart {
    /// When.
    pub time: Timestamp,
    /// The turn.
    pub turn: TurnId,
    /// The call.
    pub call: CallId,
    /// The tool's name.
    pub name: String,
}

/// What became of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolResult {
    /// When.
    pub time: Timestamp,
    /// The turn.
    pub turn: TurnId,
    /// The call.
    pub call: CallId,
    /// The tool's name.
    pub name: String,
    /// How it went.
    pub outcome: ToolOutcome,
    /// What the model is shown.
    pub content: String,
    /// Bytes of output that `content` leaves out.
    pub truncated_bytes: u64,
    /// How long it ran.
    pub millis: u64,
}

/// How a tool call went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    /// It did what it does.
    Ok,
    /// It failed, or was called wrongly.
    Error,
    /// Policy or a person said no.
    Denied,
    /// It was ended at its time limit.
    TimedOut,
    /// The daemon ended while it ran: its effect is unknown, and it is not run again.
    Interrupted,
}

/// Someone allowed or denied a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// When.
    pub time: Timestamp,
    /// The turn.
    pub turn: TurnId,
    /// The call.
    pub call: CallId,
    /// What was decided.
    pub decision: Decision,
    /// By whom: a user of the socket, or the configured policy.
    pub by: String,
}

/// A decision about a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It may run.
    Allow,
    /// It may not.
    Deny,
}

/// Gives the session a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// When.
    pub time: Timestamp,
    /// The name.
    pub name: String,
}

/// What a completion cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsageRecord {
    /// When.
    pub time: Timestamp,
    /// The turn.
    pub turn: TurnId,
    /// See [`Usage::cache_n`].
    pub cache_n: u64,
    /// See [`Usage::prompt_n`].
    pub prompt_n: u64,
    /// See [`Usage::predicted_n`].
    pub predicted_n: u64,
    /// See [`Usage::reasoning_tokens`].
    pub reasoning_tokens: u64,
    /// See [`Usage::thinking_capped`].
    pub thinking_capped: bool,
    /// From the request to its end, by a clock that cannot jump.
    pub millis: u64,
}

impl UsageRecord {
    /// A record of `usage`.
    #[must_use]
    pub fn new(time: Timestamp, turn: TurnId, usage: Usage, millis: u64) -> Self {
        let Usage { cache_n, prompt_n, predicted_n, reasoning_tokens, thinking_capped } = usage;
        Self { time, turn, cache_n, prompt_n, predicted_n, reasoning_tokens, thinking_capped, millis }
    }

    /// The counts alone.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let Self { cache_n, prompt_n, predicted_n, reasoning_tokens, thinking_capped, .. } = *self;
        Usage { cache_n, prompt_n, predicted_n, reasoning_tokens, thinking_capped }
    }
}

/// A turn's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnEnd {
    /// When.
    pub time: Timestamp,
    /// The turn.
    pub turn: TurnId,
    /// How.
    pub outcome: TurnOutcome,
    /// The cause of a failure, or which limit, its value and how to raise it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// How long the turn took; absent where the daemon that began it did not end it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub millis: Option<u64>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnOutcome {
    /// The model had nothing more to do.
    Done,
    /// Somebody cancelled it.
    Cancelled,
    /// The model server failed, or the daemon ended.
    Failed,
    /// A limit was reached.
    Limit,
}
