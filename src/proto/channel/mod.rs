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

mod event;
mod reply;
mod request;
mod state;

use serde::{Deserialize, Serialize};

pub use event::{ApprovalWanted, Certainty, Event, EventKind, Phase, Snapshot};
pub use reply::{ErrorBody, ErrorCode, Hit, Reply, Speaker};
pub use request::{Position, Request, RequestFrame};
pub use state::{ServerState, SessionInfo, SessionState, Status};

/// The version of these messages; a client and a daemon must agree on it.
pub const PROTOCOL_VERSION: u32 = 1;

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
