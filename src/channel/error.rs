//! What can go wrong before a channel is open.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::lock::Holder;

/// Why a home cannot be locked, or a socket not be opened.
#[derive(Debug)]
pub enum ChannelError {
    /// Another daemon holds the home.
    HomeHeld {
        /// The lock file.
        lock: PathBuf,
        /// Who holds it, when the file tells.
        holder: Option<Holder>,
    },
    /// Another daemon holds the folder of saved slots.
    SlotsHeld {
        /// The lock file.
        lock: PathBuf,
        /// Who holds it, when the file tells.
        holder: Option<Holder>,
    },
    /// The lock file cannot be made, locked or written.
    Lock {
        /// The lock file, or the home.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// The kernel takes no socket path of more than 107 bytes.
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        bytes: usize,
    },
    /// Something that is no socket is in the socket's place; it is left alone.
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A process that answers on the socket.
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The socket cannot be opened.
    Bind {
        /// The socket.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// The service manager handed over something that is not one listening Unix stream socket.
    Handover(String),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HomeHeld { lock, holder } => {
                held(f, "home", lock, holder.as_ref())?;
                f.write_str(", or give this one another home with --home")
            }
            Self::SlotsHeld { lock, holder } => {
                held(f, "folder of saved slots", lock, holder.as_ref())?;
                f.write_str(", or give this one a slot_dir of its own, with a model server of its own")
            }
            Self::Lock { path, step, source } => write!(f, "{}: cannot {step}: {source}", path.display()),
            Self::PathTooLong { path, bytes } => write!(
                f,
                "{}: a socket's path has at most {MAX_PATH_BYTES} bytes, this one has {bytes}; set daemon.socket \
                 (or --socket) to a shorter one",
                path.display()
            ),
            Self::NotASocket { path, what } => write!(
                f,
                "{}: there is {what}, not a socket, and it is left alone; move it away or set daemon.socket (or \
                 --socket) to another path",
                path.display()
            ),
            Self::InUse { path } => write!(
                f,
                "{}: another process answers on this socket; stop it, or set daemon.socket (or --socket) to \
                 another path",
                path.display()
            ),
            Self::Bind { path, step: "bind", source } if source.kind() == io::ErrorKind::NotFound => write!(
                f,
                "{}: the socket's directory is not there; make it, or set daemon.socket (or --socket) to another \
                 path",
                path.display()
            ),
            Self::Bind { path, step, source } => {
                write!(f, "{}: cannot {step} the socket: {source}", path.display())
            }
            Self::Handover(why) => write!(
                f,
                "socket activation: {why}; the socket unit must have exactly one ListenStream= with a file path"
            ),
        }
    }
}

fn held(f: &mut fmt::Formatter<'_>, what: &str, lock: &Path, holder: Option<&Holder>) -> fmt::Result {
    let folder = lock.parent().unwrap_or(lock);
    write!(f, "{}: another loopd has this {what}", folder.display())?;
    match holder {
        Some(holder) => write!(f, " (pid {}, since {}); stop it first", holder.pid, holder.started),
        None => write!(f, "; `fuser {}` tells which process", lock.display()),
    }
}

impl std::error::Error for ChannelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Lock { source, .. } | Self::Bind { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The longest path of a Unix socket, in bytes: `sun_path` has 108, the last for a NUL.
pub const MAX_PATH_BYTES: usize = 107;
