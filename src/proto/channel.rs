//! The messages between a client and the daemon: one JSON object a line.
//!
//! A client sends requests, each with an `id`; the daemon answers each with exactly one `ok` or `error`
//! of that `id`, and sends events, which have no `id`, of the sessions that the client is attached to.
//!
//! ```text
//! → {"id":1,"request":"hello","version":1,"client":"bxctl 0.1.0"}
//! ← {"id":1,"ok":{"reply":"hello","version":1,"daemon":"loopd 0.1.0","run":"k3…"}}
//! → {"id":2,"request":"send","session":"k3v…","text":"Hello"}
//! ← {"id":2,"ok":{"reply":"turn","session":"k3v…","turn":1}}
//! ← {"event":"text","session":"k3v…","turn":1,"seq":7,"text":"Hi"}
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CallId, Finish, LogRecord, SessionId, Timestamp, ToolOutcome, TurnId, TurnOutcome, TurnUsage};

/// The version of these messages; a client and a daemon must agree on it.
pub const PROTOCOL_VERSION: u32 = 1;

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
        let mut value: serde_json::Value =
            serde_json::from_str(text).map_err(|e| bad(None, format!("not JSON: {e}")))?;
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
    /// The first message: which version the client speaks. Answer: [`Reply::Hello`].
    Hello {
        /// [`PROTOCOL_VERSION`] of the client.
        version: u32,
        /// The client's name and version, for the journal.
        client: String,
    },
    /// A new session. Answer: [`Reply::Session`].
    Create {
        /// Its id; generated when absent. On the wire `session`: `id` is the request's own.
        #[serde(rename = "session", default, skip_serializing_if = "Option::is_none")]
        id: Option<SessionId>,
        /// Its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Opens a session and tells its state. Answer: [`Reply::Session`].
    Open {
        /// Which.
        session: SessionId,
    },
    /// Every session, newest first. Answer: [`Reply::Sessions`].
    List {},
    /// The session that an id, a prefix of one, or a name means. Answer: [`Reply::Session`].
    Resolve {
        /// What the person typed.
        text: String,
    },
    /// The session with the newest record. Answer: [`Reply::Session`].
    Latest {},
    /// Begins a turn: answered when the message is durable. Answer: [`Reply::Turn`].
    Send {
        /// To which session.
        session: SessionId,
        /// What the user says.
        text: String,
    },
    /// Asks again, without a new message, where the newest turn has no answer. Answer: [`Reply::Turn`].
    Retry {
        /// Which session.
        session: SessionId,
    },
    /// Ends the running or waiting turn. Answer: [`Reply::Done`] when it has ended durably.
    Cancel {
        /// Of which session.
        session: SessionId,
    },
    /// Sends this client the session's events from now on, and those after a position if they are
    /// still held; else a snapshot. Answer: [`Reply::Attached`], before the first event.
    Attach {
        /// Which session.
        session: SessionId,
        /// The last event that the client has seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Position>,
    },
    /// No more events of this session. Answer: [`Reply::Done`].
    Detach {
        /// Which session.
        session: SessionId,
    },
    /// Names a session. Answer: [`Reply::Done`] when durable.
    Rename {
        /// Which session.
        session: SessionId,
        /// Its new name.
        name: String,
    },
    /// Really deletes a session's files. Answer: [`Reply::Done`] when durable.
    Delete {
        /// Which session.
        session: SessionId,
    },
    /// The records of a session, page by page. Answer: [`Reply::Records`].
    Export {
        /// Which session.
        session: SessionId,
        /// The first record, counted from 0 over all epochs.
        #[serde(default)]
        from: u64,
    },
    /// What each turn cost. Answer: [`Reply::Usage`].
    Usage {
        /// Which session.
        session: SessionId,
    },
    /// The daemon's state. Answer: [`Reply::Status`].
    Status {},
    /// Counters in Prometheus' text format. Answer: [`Reply::Metrics`].
    Metrics {},
    /// Ends the daemon in order. Answer: [`Reply::Done`], before it ends.
    Shutdown {},
}

impl Request {
    /// The names of all requests.
    pub const NAMES: &[&str] = &[
        "hello", "create", "open", "list", "resolve", "latest", "send", "retry", "cancel", "attach",
        "detach", "rename", "delete", "export", "usage", "status", "metrics", "shutdown",
    ];
}

/// A place in a session's stream of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The daemon's run, from [`Reply::Hello`]: numbers begin anew with each.
    pub run: String,
    /// The event's number.
    pub seq: u64,
}

/// What the daemon sends, as one line: an answer or an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Outgoing {
    /// The answer to a request that went well.
    Ok(u64, Box<Reply>),
    /// The answer to a request that did not; no id when the request's could not be read.
    Error(Option<u64>, ErrorBody),
    /// An event.
    Event(Event),
}

#[derive(Serialize)]
struct OkFrame<'a> {
    id: u64,
    ok: &'a Reply,
}

#[derive(Serialize)]
struct ErrorFrame<'a> {
    id: Option<u64>,
    error: &'a ErrorBody,
}

impl Outgoing {
    /// The line, newline included.
    ///
    /// # Errors
    /// Never in practice: every message can be written.
    pub fn to_line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = match self {
            Self::Ok(id, reply) => serde_json::to_vec(&OkFrame { id: *id, ok: reply }),
            Self::Error(id, error) => serde_json::to_vec(&ErrorFrame { id: *id, error }),
            Self::Event(event) => serde_json::to_vec(event),
        }?;
        line.push(b'\n');
        Ok(line)
    }
}

/// What a client receives: [`Outgoing`], read.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// An answer to the request of this id.
    Answer(Option<u64>, Result<Box<Reply>, ErrorBody>),
    /// An event.
    Event(Event),
}

impl Incoming {
    /// Reads a line, with or without its newline.
    ///
    /// # Errors
    /// Where it is not what a daemon of this version sends.
    pub fn from_json(line: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Answer {
            id: Option<u64>,
            ok: Option<Reply>,
            error: Option<ErrorBody>,
        }
        let value: serde_json::Value = serde_json::from_slice(line)?;
        if value.get("event").is_some() {
            return Ok(Self::Event(serde_json::from_value(value)?));
        }
        let answer: Answer = serde_json::from_value(value)?;
        match (answer.ok, answer.error) {
            (Some(reply), None) => Ok(Self::Answer(answer.id, Ok(Box::new(reply)))),
            (None, Some(error)) => Ok(Self::Answer(answer.id, Err(error))),
            _ => Err(serde::de::Error::custom("neither \"ok\" nor \"error\" nor \"event\"")),
        }
    }
}

/// Answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The versions agree.
    Hello {
        /// The daemon's [`PROTOCOL_VERSION`].
        version: u32,
        /// Its name and version.
        daemon: String,
        /// This run of it; see [`Position`].
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
    /// Counters.
    Metrics {
        /// Prometheus' text format.
        text: String,
    },
    /// It is done.
    Done {},
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
    /// A limit of `[limits]`.
    Limit,
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
        usage: super::Usage,
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
        /// Whether the end is on disk; [`Certainty::Unknown`] when the disk failed.
        certainty: Certainty,
    },
    /// Something that people should know: a changed baseline, a lost cache.
    Notice {
        /// What kind, for programs: `cache_lost`, `baseline_differs`, `ids_replaced`, `tail_cut`, …
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
            // what was written so far is durable now, and read with `export`
            EventKind::Usage { .. } => {
                self.text.clear();
                self.reasoning.clear();
            }
            EventKind::TurnEnd { .. } => *self = Self::default(),
            EventKind::ToolResult { .. }
            | EventKind::Notice { .. }
            | EventKind::Error { .. }
            | EventKind::Snapshot { .. } => {}
        }
    }
}

/// One session, as lists show it. All of it is derived from the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// Its name, when it has one.
    pub name: Option<String>,
    /// Whether it opens, and whether it is busy.
    pub state: SessionState,
    /// When it began; absent when not even that can be read.
    pub started: Option<Timestamp>,
    /// When its last record was written.
    pub last: Option<Timestamp>,
    /// User and assistant messages.
    pub messages: u64,
    /// Turns.
    pub turns: u64,
    /// Tokens of context in use.
    pub context_n: u64,
    /// The model's name.
    pub model: Option<String>,
    /// Why it is damaged or interrupted.
    pub reason: Option<String>,
}

/// A session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// It opens, and its newest turn has ended.
    Ok,
    /// A turn runs or waits.
    Running,
    /// Its newest turn has no end: the daemon stopped in the middle of it.
    Interrupted,
    /// It does not open.
    Damaged,
}

/// What the model server does, as far as the daemon knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// It answers.
    Ready,
    /// It loads its model.
    Loading,
    /// Nobody answers.
    Unreachable,
    /// It answers with an error.
    Failing,
}

/// The daemon's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Name and version.
    pub daemon: String,
    /// Its process.
    pub pid: u32,
    /// Since when it runs, in seconds.
    pub uptime_s: u64,
    /// Where the sessions are.
    pub home: String,
    /// The pinned slot.
    pub slot: u32,
    /// The model server's address, without credentials.
    pub url: String,
    /// What the server does.
    pub server: ServerState,
    /// In words, when it is not ready.
    pub server_detail: Option<String>,
    /// The model's name.
    pub model: Option<String>,
    /// The slot's context.
    pub n_ctx: Option<u64>,
    /// The session whose tokens are in the slot.
    pub slot_session: Option<SessionId>,
    /// The session whose turn runs.
    pub running: Option<SessionId>,
    /// Turns that wait for the slot.
    pub waiting: u64,
    /// Sessions held in memory.
    pub open_sessions: u64,
    /// Clients connected.
    pub clients: u64,
    /// How long the oldest unfinished write or sync has been under way, in milliseconds.
    pub oldest_sync_ms: u64,
    /// Tokens evaluated again since the daemon started.
    pub lost_n: u64,
    /// The last loss of the cache, in words.
    pub last_loss: Option<String>,
}
