//! What can go wrong between us and the model server.

use std::fmt;
use std::io;

/// A failure of the model server, or of the way to it. The text says what happened, where, and what to
/// do about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum ModelError {
    /// Nobody answers at the address.
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        error: io::Error,
    },
    /// The server's socket could not be opened for so long that this is more than its being started again.
    Forbidden {
        /// Where.
        url: String,
        /// Why.
        error: io::Error,
        /// For how long, in seconds.
        seconds: u64,
    },
    /// The connection ended before an answer began.
    Dropped {
        /// Where.
        url: String,
        /// What was asked.
        path: String,
        /// How it ended.
        why: String,
    },
    /// The server still loads its model.
    Loading {
        /// Where.
        url: String,
        /// The server's words.
        message: String,
    },
    /// The server could not load its model.
    LoadFailed {
        /// Where.
        url: String,
        /// The server's words.
        message: String,
    },
    /// The server wants a key, or another one.
    Unauthorized {
        /// Where.
        url: String,
        /// Whether we sent one.
        key_sent: bool,
    },
    /// The server does not know the path: not a llama-server, or a wrong base path.
    NotFound {
        /// Where.
        url: String,
        /// What was asked.
        path: String,
    },
    /// The server has fewer slots than ours needs; it would silently use another one.
    WrongSlot {
        /// Where.
        url: String,
        /// Our slot.
        slot: u32,
        /// How many there are.
        total: u64,
    },
    /// The server was started without a feature that we need.
    Unsupported {
        /// Where.
        url: String,
        /// What was asked.
        path: String,
        /// The server's words.
        message: String,
    },
    /// Any other status than 200.
    Status {
        /// Where.
        url: String,
        /// What was asked.
        path: String,
        /// The HTTP status.
        code: u16,
        /// The beginning of the answer.
        body: String,
    },
    /// The prompt does not fit into the slot's context.
    ContextExceeded {
        /// Where.
        url: String,
        /// The prompt's length, in tokens.
        n_prompt_tokens: u64,
        /// The slot's context, in tokens.
        n_ctx: u64,
    },
    /// The server reported an error in the middle of a stream.
    StreamError {
        /// Where.
        url: String,
        /// The server's code, when it gave one.
        code: Option<u64>,
        /// The server's words.
        message: String,
    },
    /// The stream ended before its last event.
    StreamCut {
        /// Where.
        url: String,
        /// How many tokens had come.
        tokens: u64,
        /// How it ended.
        why: String,
    },
    /// The server sent nothing for longer than allowed.
    Silent {
        /// Where.
        url: String,
        /// What was asked.
        path: String,
        /// For how long, in seconds.
        seconds: u64,
    },
    /// The server's answer makes no sense to us.
    Garbage {
        /// Where.
        url: String,
        /// What was asked.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The model's chat template cannot be compiled to fragments that do not depend on the history.
    Template {
        /// SHA-256 of the template's text.
        digest: String,
        /// What failed.
        what: String,
    },
}

impl ModelError {
    /// Whether waiting may mend it by itself: the server is not there yet, or still loads.
    #[must_use]
    pub fn is_wait(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Loading { .. }) && !self.is_forbidden()
    }

    /// Whether the server's socket may not be opened: for a moment, while the server is started again, or for
    /// ever, which only waiting tells.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Unreachable { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { url, error } if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(f, "the model server's address {url} may not be opened by this user: {error}; {ALLOW}")
            }
            Self::Forbidden { url, error, seconds } => write!(
                f,
                "the model server's address {url} could not be opened by this user for {seconds} s: {error}; {ALLOW}"
            ),
            Self::Unreachable { url, error }
                if error.kind() == io::ErrorKind::ConnectionRefused && url.starts_with("unix:") =>
            {
                write!(
                    f,
                    "no model server answers at {url}, but its socket is there ({error}): if the server has ended, \
                     remove the socket and start it again, since llama-server does not replace one"
                )
            }
            Self::Unreachable { url, error } => write!(
                f,
                "no model server answers at {url}: {error}; start llama-server there, or correct `model.url`"
            ),
            Self::Dropped { url, path, why } => write!(
                f,
                "the model server at {url} closed the connection before it answered {path} ({why}); \
                 it may have crashed: look into its journal, then `retry`"
            ),
            Self::Loading { url, message } => {
                write!(f, "the model server at {url} still loads its model ({message}); wait for it")
            }
            Self::LoadFailed { url, message } => write!(
                f,
                "the model server at {url} could not load its model: {message}; \
                 correct its model file or its memory settings and restart it"
            ),
            Self::Unauthorized { url, key_sent: false } => {
                write!(f, "the model server at {url} wants a key; name its file in `model.api_key_file`")
            }
            Self::Unauthorized { url, key_sent: true } => write!(
                f,
                "the model server at {url} refuses our key; put the one of its --api-key-file \
                 into `model.api_key_file`"
            ),
            Self::NotFound { url, path } => write!(
                f,
                "the server at {url} does not know {path}: it is not a llama-server of a usable version, \
                 or `model.url` lacks its base path"
            ),
            Self::WrongSlot { url, slot, total } => write!(
                f,
                "slot {slot} does not exist: the model server at {url} has {total}, counted from 0, and \
                 would silently use another; start it with -np {}, or lower `daemon.slot`",
                u64::from(*slot).saturating_add(1)
            ),
            Self::Unsupported { url, path, message } => {
                let flag = flag_for(path);
                write!(
                    f,
                    "the model server at {url} was started without what {path} needs: {message}; {flag}"
                )
            }
            Self::Status { url, path, code, body } => {
                write!(f, "the model server at {url} answered {path} with status {code}: {body}")
            }
            Self::ContextExceeded { url, n_prompt_tokens, n_ctx } => write!(
                f,
                "the conversation has {n_prompt_tokens} tokens, and the slot of the model server at {url} \
                 holds {n_ctx}; begin a new epoch or session, or start the server with a larger -c"
            ),
            Self::StreamError { url, code, message } => {
                write!(f, "the model server at {url} gave up in the middle of its answer: {message}")?;
                if let Some(code) = code {
                    write!(f, " (code {code})")?;
                }
                f.write_str("; `retry` asks again")
            }
            Self::StreamCut { url, tokens, why } => write!(
                f,
                "the answer of the model server at {url} was cut off after {tokens} tokens ({why}); \
                 it may have been restarted: `retry` asks again"
            ),
            Self::Silent { url, path, seconds } => write!(
                f,
                "the model server at {url} sent nothing for {seconds} s in answer to {path}; it hangs or is \
                 overloaded: look into its journal, or raise `limits.server_silence_seconds`"
            ),
            Self::Garbage { url, path, why } => write!(
                f,
                "the answer of {url} to {path} cannot be read: {why}; check that `model.url` is a \
                 llama-server of a supported version"
            ),
            Self::Template { digest, what } => write!(
                f,
                "the model's chat template (SHA-256 {digest}) cannot be used: {what}; \
                 give llama-server another one with --chat-template-file"
            ),
        }
    }
}

/// What mends a socket that may not be opened.
const ALLOW: &str = "give the daemon's user the socket's group, or use another `model.url`";

/// The flag of llama-server that mends a 501 for this path.
fn flag_for(path: &str) -> &'static str {
    if path.contains("action=") {
        "start it with --slot-save-path DIR"
    } else if path.starts_with("/slots") {
        "start it with --slots"
    } else if path.starts_with("/metrics") {
        "start it with --metrics"
    } else {
        "use a build and flags that have it"
    }
}

impl std::error::Error for ModelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable { error, .. } | Self::Forbidden { error, .. } => Some(error),
            _ => None,
        }
    }
}
