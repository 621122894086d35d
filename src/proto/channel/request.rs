//! What clients ask.

use serde::{Deserialize, Serialize};

use super::{ErrorBody, ErrorCode};
use crate::proto::{CallId, Decision, SessionId, TurnId, strict_json};

/// A request with its id, as one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFrame {
    /// Chosen by the client; the answer carries it.
    pub id: u64,
    /// What is asked.
    pub request: Request,
}

impl RequestFrame {
    /// The line, without its newline.
    ///
    /// # Errors
    /// Never in practice: every request can be written.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut value = serde_json::to_value(&self.request)?;
        if let Some(map) = value.as_object_mut() {
            map.insert("id".to_owned(), self.id.into());
        }
        serde_json::to_string(&value)
    }

    /// Reads a line. The id is given back when it could be read, so that even a bad request gets an
    /// answer of its own.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn from_json(line: &[u8]) -> Result<Self, (Option<u64>, ErrorBody)> {
        let bad = |id, why: String| (id, ErrorBody::new(ErrorCode::BadRequest, why));
        let text = std::str::from_utf8(line)
            .map_err(|e| bad(None, format!("not UTF-8: the byte at {} is wrong", e.valid_up_to())))?;
        let mut value = strict_json(text).map_err(|e| {
            let what = if e.is_data() { "JSON that is not taken" } else { "not JSON" };
            bad(None, format!("{what}: {e}"))
        })?;
        let Some(map) = value.as_object_mut() else {
            return Err(bad(None, "not a JSON object".to_owned()));
        };
        let id = match map.remove("id") {
            Some(id) => id.as_u64().ok_or_else(|| bad(None, "\"id\" is not a whole number".to_owned()))?,
            None => return Err(bad(None, "\"id\" is missing".to_owned())),
        };
        let name = map.get("request").and_then(|r| r.as_str()).unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(bad(Some(id), "\"request\" is missing or not a text".to_owned()));
        }
        if !Request::NAMES.contains(&name.as_str()) {
            let why = format!("unknown request {name:?}; known are {}", Request::NAMES.join(", "));
            return Err((Some(id), ErrorBody::new(ErrorCode::UnknownRequest, why)));
        }
        match serde_json::from_value(value) {
            Ok(request) => Ok(Self { id, request }),
            Err(e) => Err(bad(Some(id), format!("request {name:?}: {e}"))),
        }
    }
}

/// What a client can ask. `session` is always a whole id: ask `resolve` for prefixes and names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The first message: which version the client speaks. Answer: [`Reply::Hello`](super::Reply::Hello).
    Hello {
        /// [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION) of the client.
        version: u32,
        /// The client's name and version, for the journal.
        client: String,
    },
    /// A new session. Answer: [`Reply::Session`](super::Reply::Session).
    Create {
        /// Its id; generated when absent. On the wire `session`: `id` is the request's own.
        #[serde(rename = "session", default, skip_serializing_if = "Option::is_none")]
        id: Option<SessionId>,
        /// Its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Opens a session and tells its state. Answer: [`Reply::Session`](super::Reply::Session).
    Open {
        /// Which.
        session: SessionId,
    },
    /// Every session, newest first. Answer: [`Reply::Sessions`](super::Reply::Sessions).
    List {},
    /// The session that an id, a prefix of one, or a name means. Answer: [`Reply::Session`](super::Reply::Session).
    Resolve {
        /// What the person typed.
        text: String,
    },
    /// The session with the newest record. Answer: [`Reply::Session`](super::Reply::Session).
    Latest {},
    /// Begins a turn: answered when the message is durable. Answer: [`Reply::Turn`](super::Reply::Turn).
    Send {
        /// To which session.
        session: SessionId,
        /// What the user says.
        text: String,
    },
    /// Asks again, without a new message, where the newest turn has no answer. Answer: [`Reply::Turn`](super::Reply::Turn).
    Retry {
        /// Which session.
        session: SessionId,
    },
    /// Begins a new epoch with today's configuration and model: answered when that has begun, and told to its
    /// end by events. Answer: [`Reply::Done`](super::Reply::Done).
    Rebase {
        /// Which session.
        session: SessionId,
    },
    /// Ends the running or waiting turn, or a new epoch's beginning. Answer: [`Reply::Done`](super::Reply::Done) when it has ended durably.
    Cancel {
        /// Of which session.
        session: SessionId,
    },
    /// Sends this client the session's events from now on, and those after a position if they are
    /// still held; else a snapshot. Answer: [`Reply::Attached`](super::Reply::Attached), before the first event.
    Attach {
        /// Which session.
        session: SessionId,
        /// The last event that the client has seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Position>,
        /// Whether this client asks a person about calls that need an approval, and sends `approve`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        approves: bool,
    },
    /// No more events of this session. Answer: [`Reply::Done`](super::Reply::Done).
    Detach {
        /// Which session.
        session: SessionId,
    },
    /// Answers an [`EventKind::ApprovalWanted`](super::EventKind::ApprovalWanted): this call may run, or not. The
    /// first answer counts. Answer: [`Reply::Done`](super::Reply::Done) when it is durable.
    Approve {
        /// Of which session.
        session: SessionId,
        /// Which call.
        call: CallId,
        /// What was decided.
        decision: Decision,
    },
    /// Names a session. Answer: [`Reply::Done`](super::Reply::Done) when durable.
    Rename {
        /// Which session.
        session: SessionId,
        /// Its new name.
        name: String,
    },
    /// Really deletes a session's files. Answer: [`Reply::Done`](super::Reply::Done) when durable.
    Delete {
        /// Which session.
        session: SessionId,
    },
    /// The records of a session, page by page. Answer: [`Reply::Records`](super::Reply::Records).
    Export {
        /// Which session.
        session: SessionId,
        /// The first record, counted from 0 over all epochs.
        #[serde(default)]
        from: u64,
        /// Only what belongs to this turn; `from` counts all records all the same.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
    },
    /// What was said somewhere, in any session that can be read. Answer: [`Reply::Found`](super::Reply::Found).
    Search {
        /// Every word of it must be in one message; upper and lower case are the same.
        text: String,
        /// In this session only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<SessionId>,
        /// The most passages to answer with.
        most: u64,
    },
    /// A new session that begins with the turns of another, up to one of them, and costs the model nothing: its
    /// prompt is a prefix of the other's. Answer: [`Reply::Session`](super::Reply::Session) when durable.
    Fork {
        /// Of which session.
        session: SessionId,
        /// The last turn to take over; the newest that has ended when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        /// The new session's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// What each turn cost. Answer: [`Reply::Usage`](super::Reply::Usage).
    Usage {
        /// Which session.
        session: SessionId,
    },
    /// The daemon's state. Answer: [`Reply::Status`](super::Reply::Status).
    Status {},
    /// Every reason why the promise might not hold here. Answer: [`Reply::Findings`](super::Reply::Findings).
    Doctor {},
    /// Counters in Prometheus' text format. Answer: [`Reply::Metrics`](super::Reply::Metrics).
    Metrics {},
    /// Ends the daemon in order. Answer: [`Reply::Done`](super::Reply::Done), before it ends.
    Shutdown {},
}

impl Request {
    /// The names of all requests.
    pub const NAMES: &[&str] = &[
        "hello", "create", "open", "list", "resolve", "latest", "send", "retry", "rebase", "cancel",
        "attach", "detach", "approve", "rename", "delete", "export", "search", "fork", "usage", "status",
        "doctor", "metrics", "shutdown",
    ];
}

/// A place in a session's stream of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The daemon's run, from [`Reply::Hello`](super::Reply::Hello): numbers begin anew with each.
    pub run: String,
    /// The event's number.
    pub seq: u64,
}
