//! What happens in a session, as clients hear of it.

use serde::{Deserialize, Serialize};

use super::ErrorCode;
use crate::proto::{CallId, Decision, Epoch, Finish, SessionId, ToolOutcome, TurnId, TurnOutcome, Usage};

/// Something that happened in a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Where.
    pub session: SessionId,
    /// In which turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Counts up by one in a session and a run of the daemon; a gap means that this client was too slow
    /// and a snapshot follows.
    pub seq: u64,
    /// What.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A turn has begun; its message is durable. Also sent when a turn is taken up again.
    TurnStart {
        /// What the user said.
        text: String,
        /// Whether it is a retry.
        retry: bool,
    },
    /// The turn waits for the slot.
    Queued {
        /// How many turns are ahead, the running one included.
        place: u64,
    },
    /// The turn waits for the model server.
    Waiting {
        /// What for, in words.
        why: String,
    },
    /// The prompt is being evaluated.
    Prefill {
        /// Tokens of the prompt that are done, cached ones included.
        done: u64,
        /// Tokens of the prompt.
        total: u64,
        /// Of these, taken from the cache.
        cached: u64,
    },
    /// More of the answer.
    Text {
        /// What is new.
        text: String,
    },
    /// More of the reasoning.
    Reasoning {
        /// What is new.
        text: String,
    },
    /// The model calls a tool.
    ToolCall {
        /// Our number.
        call: CallId,
        /// The tool.
        name: String,
        /// As the model wrote them.
        arguments: String,
    },
    /// A call waits for a person's decision.
    ApprovalWanted {
        /// Which.
        #[serde(flatten)]
        wanted: ApprovalWanted,
    },
    /// Whether the call may run was decided, durably.
    Approval {
        /// Our number.
        call: CallId,
        /// What was decided.
        decision: Decision,
        /// By whom.
        by: String,
    },
    /// A tool has ended.
    ToolResult {
        /// Our number.
        call: CallId,
        /// The tool.
        name: String,
        /// How.
        outcome: ToolOutcome,
        /// What the model is shown.
        content: String,
    },
    /// A completion is final and durable.
    Usage {
        /// What it cost.
        #[serde(flatten)]
        usage: Usage,
        /// What was added to the prompt.
        new_n: u64,
        /// Evaluated again.
        lost_n: u64,
        /// Tokens of context in use.
        context_n: u64,
        /// The context's size.
        n_ctx: u64,
        /// Why the completion ended.
        finish: Finish,
        /// From the request to its end.
        millis: u64,
    },
    /// The turn has ended, durably.
    TurnEnd {
        /// How.
        outcome: TurnOutcome,
        /// Why.
        detail: Option<String>,
        /// Whether the end is on disk; [`Certainty::Unknown`](super::Certainty::Unknown) when the disk failed.
        certainty: Certainty,
    },
    /// The conversation is being summarised, so that it can go on in a new epoch.
    Summary {
        /// Tokens of it that are written.
        done: u64,
        /// The most that it may have.
        most: u64,
    },
    /// A new epoch has begun, durably, or could not begin; then the session is as it was.
    Rebased {
        /// Whether it has begun, or why not.
        outcome: TurnOutcome,
        /// The session's newest epoch now.
        epoch: Epoch,
        /// In words: what came of it.
        detail: String,
    },
    /// Something that people should know: a changed baseline, a lost cache.
    Notice {
        /// What kind, for programs: `cache_lost`, `baseline_differs`, `ids_replaced`, `tail_cut`, `rebase`, …
        code: String,
        /// In words.
        message: String,
    },
    /// Something went wrong outside a request of this client.
    Error {
        /// What kind.
        code: ErrorCode,
        /// In words.
        message: String,
    },
    /// The session as it is now, for a client that missed events.
    Snapshot {
        /// The state.
        #[serde(flatten)]
        snapshot: Snapshot,
    },
}

/// Whether something is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// It is.
    Durable,
    /// Nobody knows until the session is opened anew: the disk failed.
    Unknown,
}

/// What a running turn does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No turn.
    #[default]
    Idle,
    /// It waits for the slot.
    Queued,
    /// It waits for the model server.
    Waiting,
    /// The prompt is evaluated.
    Prefill,
    /// The model writes.
    Generating,
    /// A tool runs.
    Tool,
    /// The conversation is summarised for a new epoch.
    Summary,
    /// A call waits for a person's decision.
    Approval,
}

/// A call that waits for a person's decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalWanted {
    /// Our number.
    pub call: CallId,
    /// The tool that would run.
    pub name: String,
    /// Its arguments, as the model wrote them.
    pub arguments: String,
}

/// The state of a session's running turn. What is durable is read with `export`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// What it does.
    pub phase: Phase,
    /// The running turn's message.
    pub user_text: String,
    /// What the running completion has written so far.
    pub text: String,
    /// What it has thought so far.
    pub reasoning: String,
    /// The call that waits for a person's decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalWanted>,
}

impl Snapshot {
    /// Takes an event into account.
    pub fn apply(&mut self, event: &EventKind) {
        match event {
            EventKind::TurnStart { text, .. } => {
                *self = Self { phase: Phase::Waiting, user_text: text.clone(), ..Self::default() };
            }
            EventKind::Queued { .. } => self.phase = Phase::Queued,
            EventKind::Waiting { .. } => self.phase = Phase::Waiting,
            EventKind::Prefill { .. } => self.phase = Phase::Prefill,
            EventKind::Text { text } => {
                self.phase = Phase::Generating;
                self.text.push_str(text);
            }
            EventKind::Reasoning { text } => {
                self.phase = Phase::Generating;
                self.reasoning.push_str(text);
            }
            EventKind::ToolCall { .. } => self.phase = Phase::Tool,
            EventKind::ApprovalWanted { wanted } => {
                self.phase = Phase::Approval;
                self.approval = Some(wanted.clone());
            }
            EventKind::Approval { .. } => {
                self.phase = Phase::Tool;
                self.approval = None;
            }
            // what was written so far is durable now, and read with `export`
            EventKind::Usage { .. } => {
                self.text.clear();
                self.reasoning.clear();
            }
            EventKind::Summary { .. } => self.phase = Phase::Summary,
            EventKind::TurnEnd { .. } => *self = Self::default(),
            // by hand there is no turn that goes on
            EventKind::Rebased { .. } if self.user_text.is_empty() => *self = Self::default(),
            EventKind::ToolResult { .. }
            | EventKind::Rebased { .. }
            | EventKind::Notice { .. }
            | EventKind::Error { .. }
            | EventKind::Snapshot { .. } => {}
        }
    }
}
