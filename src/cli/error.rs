//! What can go wrong in `bxctl`, and the exit status of each.

use std::fmt;
use std::io;

use crate::proto::{ErrorBody, ErrorCode, SessionInfo};

/// Exit statuses, as the manual names them.
pub mod status {
    /// All went well.
    pub const OK: u8 = 0;
    /// It was tried and failed.
    pub const FAILED: u8 = 1;
    /// The command line makes no sense.
    pub const USAGE: u8 = 2;
    /// No daemon answers.
    pub const NO_DAEMON: u8 = 3;
    /// The daemon refused, or the session is damaged.
    pub const REFUSED: u8 = 4;
    /// Cancelled by the user.
    pub const CANCELLED: u8 = 130;
}

/// Why a command ended early. Its text is one line: what, where, what to do.
#[derive(Debug)]
pub enum CliError {
    /// The command line or the input makes no sense.
    Usage(String),
    /// No daemon answers, or it went away.
    NoDaemon(String),
    /// The daemon answered with an error.
    Refused(ErrorBody),
    /// A text can mean several sessions: what to do, and these.
    Ambiguous(String, Vec<SessionInfo>),
    /// Anything else that failed.
    Failed(String),
    /// The user ended it; nothing more to say.
    Interrupted,
    /// Whoever read the output has gone: end without a word.
    OutputClosed,
}

impl CliError {
    /// The exit status for it.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => status::USAGE,
            Self::NoDaemon(_) => status::NO_DAEMON,
            Self::Refused(body) => match body.code {
                ErrorCode::Disk
                | ErrorCode::Poisoned
                | ErrorCode::Model
                | ErrorCode::Waiting
                | ErrorCode::Internal => status::FAILED,
                _ => status::REFUSED,
            },
            Self::Ambiguous(..) => status::REFUSED,
            Self::Failed(_) => status::FAILED,
            Self::Interrupted => status::CANCELLED,
            Self::OutputClosed => status::OK,
        }
    }

    /// Whether there is something to print.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::Interrupted | Self::OutputClosed)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::NoDaemon(text) | Self::Failed(text) | Self::Ambiguous(text, _) => {
                f.write_str(text)
            }
            Self::Refused(body) => f.write_str(&body.message),
            Self::Interrupted => f.write_str("interrupted"),
            Self::OutputClosed => f.write_str("the output was closed"),
        }
    }
}

impl std::error::Error for CliError {}

impl From<io::Error> for CliError {
    /// Of an error while writing output; reading and connecting have errors of their own.
    fn from(e: io::Error) -> Self {
        if e.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::Failed(format!("cannot write the output: {e}"))
        }
    }
}
