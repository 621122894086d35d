//! Why the agent refuses or fails.

use std::fmt;

use crate::model::ModelError;
use crate::proto::{CallId, SessionId, TurnId};
use crate::store::SessionError;

/// Why a request to the agent was refused, or a turn failed.
#[derive(Debug)]
pub enum AgentError {
    /// A message without a word in it.
    EmptyMessage,
    /// A turn of this session already runs or waits.
    Busy(SessionId, TurnId),
    /// There is no turn to ask again, or none to cancel; the text says which.
    Nothing(SessionId, &'static str),
    /// That call does not wait for a decision.
    NotAsked(SessionId, CallId),
    /// The message cannot fit into the context.
    DoesNotFit {
        /// Tokens of the message.
        tokens: u64,
        /// Tokens that are left for it.
        left: u64,
        /// The slot's context.
        n_ctx: u64,
        /// Whether it would fit into a new epoch.
        rebase: bool,
    },
    /// The message may not fit, and the model server, which could count its tokens, is away.
    CannotCount {
        /// Bytes of the message.
        bytes: usize,
        /// Tokens that are left for it.
        left: u64,
        /// Why the server does not answer.
        why: String,
    },
    /// The server has another model than the session was made for.
    OtherModel(String),
    /// The server dropped the beginning of the conversation to make room.
    Shifted,
    /// The daemon is ending.
    ShuttingDown,
    /// The store refused.
    Store(SessionError),
    /// The model server refused, failed or went away.
    Model(ModelError),
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyMessage => f.write_str("the message is empty; nothing was sent"),
            Self::Busy(session, TurnId(0)) => {
                write!(f, "session {session} is busy: a message is just being saved, or a new epoch begins; try again in a moment, or cancel it (bxctl cancel {session})")
            }
            Self::Busy(session, turn) => write!(
                f,
                "session {session} is busy with turn {turn}; wait for its end, or cancel it (bxctl cancel {session})"
            ),
            Self::Nothing(session, what) => write!(f, "session {session}: {what}"),
            Self::NotAsked(session, call) => write!(
                f,
                "session {session}: call {call} does not wait for an approval: it was decided already, or its turn has ended"
            ),
            Self::DoesNotFit { tokens, left, n_ctx, rebase } => {
                let way = if *rebase { "begin a new epoch from a summary (bxctl rebase)" } else { "shorten it" };
                write!(
                    f,
                    "the message has {tokens} tokens, but only {left} of the context's {n_ctx} are left for it; \
                     nothing was saved: {way}, begin a new session, or give the model server a larger context (-c)"
                )
            }
            Self::CannotCount { bytes, left, why } => write!(
                f,
                "a message of {bytes} bytes may not fit into the {left} tokens that are left, and the model server, \
                 which could count its tokens, is away ({why}); nothing was saved: send it again when the server is back"
            ),
            Self::OtherModel(why) => {
                write!(f, "{why}; start the model server with the session's model, or go on with this one in a new epoch (bxctl rebase)")
            }
            Self::Shifted => f.write_str(
                "the model server dropped the beginning of the conversation to make room for its answer, so the \
                 answer is not kept; start it with --no-context-shift, then `retry`",
            ),
            Self::ShuttingDown => {
                f.write_str("loopd is ending and takes no new turns; try again when it is back")
            }
            Self::Store(e) => e.fmt(f),
            Self::Model(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for AgentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(e) => Some(e),
            Self::Model(e) => Some(e),
            _ => None,
        }
    }
}

impl From<SessionError> for AgentError {
    fn from(e: SessionError) -> Self {
        Self::Store(e)
    }
}

impl From<ModelError> for AgentError {
    fn from(e: ModelError) -> Self {
        Self::Model(e)
    }
}
