//! What can go wrong with a session, by who can act on it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nix::libc;

use super::storage::Misplaced;
use crate::proto::{Digest, ErrorCode, SessionId, TurnId, Violation};

/// The store's result.
pub type Result<T, E = SessionError> = std::result::Result<T, E>;

/// What went wrong with a session.
#[derive(Debug)]
pub enum SessionError {
    /// A session of this id exists already.
    Exists(SessionId),
    /// There is no session of this id: no directory, or no log in it.
    NotFound(SessionId),
    /// No session's id, name or beginning of an id is this text.
    NoMatch(String),
    /// The session has no such turn, or none, that has ended.
    NoTurn(SessionId, Option<TurnId>),
    /// Another opener, in this process or another, holds the session.
    Locked(SessionId),
    /// Several sessions match.
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// What matches.
        candidates: Vec<SessionId>,
    },
    /// The session's creation was cut off; nobody was told that it exists.
    HalfCreated {
        /// Its directory.
        path: PathBuf,
        /// What is missing, and the way out.
        why: String,
    },
    /// The disk refused. Nothing of the append stays in the log, unless [`SessionError::unknown`].
    Io(PathBuf, io::Error),
    /// The log is damaged.
    Torn {
        /// The log.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it, whether it is the tail, and the way out.
        why: String,
    },
    /// An earlier sync of this log failed: only opening it anew tells what is on the disk.
    Poisoned(PathBuf),
    /// The baseline is damaged or cannot be made.
    Baseline(BaselineError),
    /// A record that cannot be written as a line.
    Encode(serde_json::Error),
    /// A record that cannot follow the log's records.
    Sequence(PathBuf, Violation),
    /// A record, or the session with it, would be larger than its limit. Nothing was written.
    TooLarge {
        /// The log.
        path: PathBuf,
        /// What it would come to, in bytes.
        bytes: u64,
        /// The limit's name in `[limits]`: `record_bytes` or `session_bytes`.
        limit: &'static str,
        /// The limit, in bytes.
        max: u64,
    },
}

impl SessionError {
    /// An I/O error of `path`.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |error| Self::Io(path, error)
    }

    /// Whether nobody knows if the records of the refused append are on the disk. Otherwise they
    /// certainly are not in the log.
    #[must_use]
    pub fn unknown(&self) -> bool {
        match self {
            Self::Poisoned(_) => true,
            Self::Io(_, e) => e.get_ref().is_some_and(|inner| inner.is::<Unknown>()),
            _ => false,
        }
    }

    /// What a client is told about the kind of error.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Exists(_) => ErrorCode::Exists,
            Self::NotFound(_) | Self::NoMatch(_) | Self::NoTurn(..) => ErrorCode::NotFound,
            Self::Locked(_) => ErrorCode::Locked,
            Self::Ambiguous { .. } => ErrorCode::Ambiguous,
            Self::HalfCreated { .. } | Self::Torn { .. } => ErrorCode::Damaged,
            Self::Io(_, e) | Self::Baseline(BaselineError::Io(_, e)) if Misplaced::is(e) => {
                ErrorCode::Damaged
            }
            Self::Baseline(BaselineError::Io(..)) => ErrorCode::Disk,
            Self::Baseline(BaselineError::Freeze(_)) => ErrorCode::Internal,
            Self::Baseline(_) => ErrorCode::Damaged,
            Self::Io(..) => ErrorCode::Disk,
            Self::Poisoned(_) => ErrorCode::Poisoned,
            Self::Encode(_) | Self::Sequence(..) => ErrorCode::Internal,
            Self::TooLarge { .. } => ErrorCode::Limit,
        }
    }
}

/// The way out for a baseline that is lost: sessions of one configuration have the same one.
const RESTORE: &str = "restore it from a backup, or copy another session's that has the same SHA-256";
/// Names the place in the handbook for damage.
const RUNBOOK: &str = "see docs/runbook.md#session-log-damaged";

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(id) => write!(f, "session {id} exists already"),
            Self::NotFound(id) => write!(
                f,
                "no session {id}: it has no directory or no log; `bxctl sessions` lists what there is"
            ),
            Self::NoMatch(text) if text.is_empty() => {
                f.write_str("which session? give an id, the beginning of one, or a name")
            }
            Self::NoMatch(text) => write!(
                f,
                "no session has the id, the name or the beginning of an id {text:?}; `bxctl sessions` lists what there is"
            ),
            Self::NoTurn(id, Some(turn)) => write!(
                f,
                "session {id} has no turn {turn} that has ended; `bxctl usage {id}` lists its turns"
            ),
            Self::NoTurn(id, None) => write!(f, "session {id} has no turn that has ended yet"),
            Self::Locked(id) => write!(f, "session {id} is in use by another process or another opener"),
            Self::Ambiguous { prefix, candidates } => {
                write!(f, "{prefix:?} can mean {} sessions:", candidates.len())?;
                candidates.iter().try_for_each(|id| write!(f, " {id}"))?;
                f.write_str("; give more of the id")
            }
            Self::HalfCreated { path, why } => write!(f, "{}: {why}; {RUNBOOK}", path.display()),
            Self::Io(path, error) => of_disk(f, path, error),
            Self::Torn { path, line, why } => write!(f, "{}:{line}: {why}; {RUNBOOK}", path.display()),
            Self::Poisoned(path) => write!(
                f,
                "{}: an earlier sync of this log failed, so what the disk holds is unknown; nothing more is \
                 written until the session is opened anew",
                path.display()
            ),
            Self::Baseline(error) => error.fmt(f),
            Self::Encode(error) => write!(f, "a record cannot be written: {error}"),
            Self::Sequence(path, violation) => {
                write!(f, "{}: a record out of order was refused: {violation}", path.display())
            }
            Self::TooLarge { path, bytes, limit, max } => {
                let what = if *limit == "record_bytes" { "a record" } else { "the session" };
                write!(
                    f,
                    "{}: {what} would be {bytes} bytes; limits.{limit} allows {max}; nothing was written",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for SessionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, error) => Some(error),
            Self::Baseline(error) => Some(error),
            Self::Encode(error) => Some(error),
            Self::Sequence(_, violation) => Some(violation),
            _ => None,
        }
    }
}

impl From<BaselineError> for SessionError {
    fn from(error: BaselineError) -> Self {
        Self::Baseline(error)
    }
}

/// What went wrong with a baseline.
#[derive(Debug)]
pub enum BaselineError {
    /// It cannot be read or written.
    Io(PathBuf, io::Error),
    /// It is not there, although the session has a log.
    Missing {
        /// Where it should be.
        path: PathBuf,
        /// What its SHA-256 is, as the log's first line says.
        named: Option<Digest>,
    },
    /// Its bytes are not those that the log names.
    Digest {
        /// The file.
        path: PathBuf,
        /// What the log's first line says.
        named: Digest,
        /// What the file's bytes give.
        found: Digest,
    },
    /// Not a whole baseline, or one with bytes behind it.
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
    /// The content cannot be written so that it reads back the same, or holds what may not be stored.
    Freeze(String),
}

impl fmt::Display for BaselineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => of_disk(f, path, error),
            Self::Missing { path, named } => {
                write!(f, "{}: the baseline is missing; {RESTORE}", path.display())?;
                if let Some(named) = named {
                    write!(f, " (its SHA-256 is {named})")?;
                }
                write!(f, "; {RUNBOOK}")
            }
            Self::Digest { path, named, found } => write!(
                f,
                "{}: its SHA-256 is {found}, but the log's first line names {named}: the file was changed or \
                 damaged; {RESTORE}; {RUNBOOK}",
                path.display()
            ),
            Self::Content { path, why } => {
                write!(f, "{}: not a whole baseline: {why}; {RUNBOOK}", path.display())
            }
            Self::Freeze(why) => write!(f, "a baseline cannot be made: {why}"),
        }
    }
}

impl std::error::Error for BaselineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, error) => Some(error),
            _ => None,
        }
    }
}

/// Inside the `io::Error` of an append whose outcome nobody knows.
#[derive(Debug)]
pub(crate) struct Unknown {
    doing: &'static str,
    source: io::Error,
}

impl Unknown {
    pub(crate) fn wrap(doing: &'static str, source: io::Error) -> io::Error {
        io::Error::new(source.kind(), Self { doing, source })
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { doing, source } = self;
        write!(
            f,
            "{doing} failed: {source}; whether the last record is on the disk is unknown until the session is opened anew"
        )
    }
}

impl std::error::Error for Unknown {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// An error of the disk with its path, and for a file system that is read-only, what that means.
fn of_disk(f: &mut fmt::Formatter<'_>, path: &Path, error: &io::Error) -> fmt::Result {
    write!(f, "{}: {error}", path.display())?;
    match error.raw_os_error() {
        Some(libc::EROFS) => f.write_str(
            ", so nothing was written; the kernel's log (dmesg) tells whether the disk failed or was mounted so",
        ),
        _ => Ok(()),
    }
}

/// Names a file's directory; of a file at the root, the root.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}
