//! The types that are written down: ids, log records, the baseline, usage, channel messages.
//!
//! Invariants:
//! - No I/O at all, and no clock but [`Timestamp::now`].
//! - What is written can be read back: every type here either round-trips or refuses to be written.
//! - A field or a kind that this version does not know is an error, never skipped.

mod baseline;
mod carried;
mod channel;
mod finding;
mod ids;
mod line;
mod record;
mod sequence;
mod slot;
mod strict;
mod text;
mod tokens;
mod usage;
mod written;

pub use baseline::{
    BASELINE_FORMAT, BaselineContent, Framing, ModelIdentity, ReasoningSettings, ReasoningTags, Sampling,
    ToolFamily, ToolResultsBy, ToolsBy,
};
pub use carried::{Carried, CarriedEnd, Exchange, Summary, SummaryCost};
pub use channel::{
    ApprovalWanted, Certainty, ErrorBody, ErrorCode, Event, EventKind, Hit, Incoming, Outgoing,
    PROTOCOL_VERSION, Phase, Position, Reply, Request, RequestFrame, ServerState, SessionInfo, SessionState,
    Snapshot, Speaker, Status,
};
pub use finding::{Finding, Level};
pub use ids::{CallId, Digest, Epoch, IdError, SessionId, Timestamp, TurnId};
pub use line::{Line, LineError, Place, encode_line};
pub use record::{
    Approval, AssistantMessage, Decision, Finish, LogRecord, Named, Origin, SessionStart, ToolCall,
    ToolOutcome, ToolResult, ToolStart, TurnEnd, TurnOutcome, UsageRecord, UserMessage,
};
pub use sequence::{Sequence, Violation};
pub use slot::SlotManifest;
pub use strict::{JSON_DEPTH, strict_json};
pub use text::is_unseen;
pub use tokens::{TokenId, TokenIds};
pub use usage::{TurnUsage, Usage, UsageTable, cached_after, count};
