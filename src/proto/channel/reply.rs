//! What the daemon answers.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{SessionInfo, Status};
use crate::proto::{Finding, LogRecord, SessionId, Timestamp, TurnId, TurnUsage};

/// Answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The versions agree.
    Hello {
        /// The daemon's [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION).
        version: u32,
        /// Its name and version.
        daemon: String,
        /// This run of it; see [`Position`](super::Position).
        run: String,
    },
    /// One session.
    Session {
        /// Its state.
        info: SessionInfo,
        /// Where its baseline differs from today's configuration, in words.
        differs: Vec<String>,
    },
    /// Several sessions.
    Sessions {
        /// Newest first.
        sessions: Vec<SessionInfo>,
    },
    /// A turn has begun: its message is on disk.
    Turn {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: TurnId,
    },
    /// It is attached.
    Attached {
        /// The number of the session's last event.
        seq: u64,
        /// Whether a turn runs or waits.
        running: bool,
    },
    /// A page of records.
    Records {
        /// The records.
        records: Vec<LogRecord>,
        /// Where the next page begins; absent on the last.
        next: Option<u64>,
    },
    /// Passages, the newest session's first, in the order in which they were said.
    Found {
        /// The passages.
        hits: Vec<Hit>,
        /// Whether there are more than were asked for.
        more: bool,
        /// Sessions that could not be read.
        unread: Vec<SessionId>,
    },
    /// What each turn cost, oldest first.
    Usage {
        /// The rows.
        turns: Vec<TurnUsage>,
    },
    /// The daemon's state.
    Status {
        /// The state.
        status: Box<Status>,
    },
    /// What was looked at, and what is wrong with it.
    Findings {
        /// In the order in which it was looked at.
        findings: Vec<Finding>,
    },
    /// Counters.
    Metrics {
        /// Prometheus' text format.
        text: String,
    },
    /// It is done.
    Done {},
}

/// A passage that a search found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    /// In which session.
    pub session: SessionId,
    /// Its name, when it has one.
    pub name: Option<String>,
    /// In which turn.
    pub turn: TurnId,
    /// When it was written down.
    pub time: Timestamp,
    /// Who said it.
    pub who: Speaker,
    /// The words around the first one that was looked for, in one line.
    pub passage: String,
}

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool.
    Tool,
}

/// What kind of error: programs decide by this, people read the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Not a request, or one with wrong fields.
    BadRequest,
    /// A request that this daemon does not know.
    UnknownRequest,
    /// The versions do not agree.
    Version,
    /// `hello` did not come first.
    HelloFirst,
    /// A line or a message that is too long.
    TooLong,
    /// No such session.
    NotFound,
    /// Several sessions match.
    Ambiguous,
    /// A session of that id exists.
    Exists,
    /// Another process has the session open.
    Locked,
    /// The session's files are damaged; the message names the way out.
    Damaged,
    /// The session already has a running or waiting turn.
    Busy,
    /// There is nothing to retry or to cancel.
    Nothing,
    /// The disk refused: full, or failing.
    Disk,
    /// A sync failed: the session must be opened anew.
    Poisoned,
    /// The model server refused or cannot be reached.
    Model,
    /// What was asked needs the model server, which is away or loading: nothing was done; ask again in a
    /// moment.
    Waiting,
    /// A limit of `[limits]`.
    Limit,
    /// A client that the daemon does not talk to.
    NotAllowed,
    /// The daemon is ending.
    ShuttingDown,
    /// A defect of the daemon.
    Internal,
}

/// An error, as the client gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What kind.
    pub code: ErrorCode,
    /// What happened, where, and what to do.
    pub message: String,
    /// For [`ErrorCode::Ambiguous`]: what matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<SessionId>,
}

impl ErrorBody {
    /// An error without candidates.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), candidates: Vec::new() }
    }
}

impl fmt::Display for ErrorBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ErrorBody {}
