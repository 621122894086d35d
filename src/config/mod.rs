//! Being built: only the model server's address, so that `model` can be built on it.

use std::fmt;
use std::path::PathBuf;

/// Where the model server listens. Never holds credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelUrl {
    /// TCP.
    Http {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
        /// The base path, without a slash at its end; "" for none.
        path: String,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for ModelUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { host, port, path } if host.contains(':') => {
                write!(f, "http://[{host}]:{port}{path}")
            }
            Self::Http { host, port, path } => write!(f, "http://{host}:{port}{path}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
