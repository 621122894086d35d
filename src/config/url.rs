//! Where the model server is: `http://host:port[/path]` or `unix:/path`.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest path of a Unix socket, in bytes: `sun_path` less its closing NUL.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// What [`ModelUrl`] accepts, for messages.
pub(super) const ALLOWED_URL: &str = "allowed are http://host:port[/path] and unix:/path/to/socket";

/// The address of a server. Has no place for a user name or a password, so it can be shown and logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelUrl {
    /// HTTP over TCP.
    Http {
        /// A name or an address; an IPv6 address without its brackets.
        host: String,
        /// The port.
        port: u16,
        /// The base path without a closing slash; empty when there is none.
        path: String,
    },
    /// HTTP over a Unix socket, by its absolute path.
    Unix(PathBuf),
}

/// Why a text is not a [`ModelUrl`]. The words never repeat a text that could hold a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UrlError {
    /// Neither `http:` nor `unix:`.
    Scheme,
    /// `https:`.
    Https,
    /// A user name or a password.
    UserInfo,
    /// No port.
    NoPort,
    /// Not a port.
    Port(String),
    /// Not a host.
    Host(String),
    /// A path with a query, a fragment, or characters that a path cannot have.
    Path,
    /// `/v1`, which other clients want.
    V1,
    /// The path of a Unix socket cannot be one; why.
    Socket(String),
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme => f.write_str("it begins with neither http:// nor unix:"),
            Self::Https => f.write_str(
                "https is not supported: the server is meant to be on the same machine; for another machine \
                 put a tunnel between",
            ),
            Self::UserInfo => f.write_str(
                "it has a user name or a password, which would end up in logs; for a key use [model] api_key_file",
            ),
            Self::NoPort => f.write_str("it has no port; write http://host:port"),
            Self::Port(text) => write!(f, "{} is not a port (1 to 65535)", super::read::quoted(text)),
            Self::Host(text) => write!(f, "{} is not a host name or address", super::read::quoted(text)),
            Self::Path => f.write_str("its path has a query, a fragment or a character that must be escaped"),
            Self::V1 => f.write_str("leave /v1 out: loopd uses the server's own interface, not the one below /v1"),
            Self::Socket(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for UrlError {}

impl FromStr for ModelUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(if text.contains('@') { UrlError::UserInfo } else { UrlError::Scheme });
        };
        match scheme.to_ascii_lowercase().as_str() {
            "unix" => unix(rest),
            "http" => http(rest.strip_prefix("//").ok_or(UrlError::Scheme)?),
            "https" => Err(if rest.contains('@') { UrlError::UserInfo } else { UrlError::Https }),
            _ if text.contains('@') => Err(UrlError::UserInfo),
            _ => Err(UrlError::Scheme),
        }
    }
}

fn unix(rest: &str) -> Result<ModelUrl, UrlError> {
    // `unix:///path` means the same as `unix:/path`; `unix://name/…` would name a host.
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return Err(UrlError::Socket("unix://name/… names a host; write unix:/path".to_owned())),
        None => rest,
    };
    if !path.starts_with('/') {
        return Err(UrlError::Socket("the path after unix: is not absolute".to_owned()));
    }
    check_socket_path(Path::new(path)).map_err(UrlError::Socket)?;
    Ok(ModelUrl::Unix(PathBuf::from(path)))
}

fn http(rest: &str) -> Result<ModelUrl, UrlError> {
    if rest.contains('@') {
        return Err(UrlError::UserInfo);
    }
    let (authority, path) = match rest.find(['/', '?', '#']).and_then(|at| rest.split_at_checked(at)) {
        Some((authority, path)) => (authority, path.trim_end_matches('/')),
        None => (rest, ""),
    };
    let (host, port) = match authority.strip_prefix('[') {
        Some(inner) => {
            let (host, after) = inner.split_once(']').ok_or_else(|| UrlError::Host(authority.to_owned()))?;
            host.parse::<Ipv6Addr>().map_err(|_| UrlError::Host(host.to_owned()))?;
            if after.is_empty() {
                return Err(UrlError::NoPort);
            }
            (host, after.strip_prefix(':').ok_or_else(|| UrlError::Port(after.to_owned()))?)
        }
        None => {
            let (host, port) = authority.rsplit_once(':').ok_or(UrlError::NoPort)?;
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b".-_".contains(&b);
            if host.is_empty() || !host.bytes().all(allowed) {
                return Err(UrlError::Host(host.to_owned()));
            }
            (host, port)
        }
    };
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port = match port.parse::<u16>() {
        Ok(port) if digits && port > 0 => port,
        _ => return Err(UrlError::Port(port.to_owned())),
    };
    let plain = |b: u8| b.is_ascii_graphic() && !b"?#\"<>\\^`{|}".contains(&b);
    if !path.bytes().all(plain) {
        return Err(UrlError::Path);
    }
    if path == "/v1" {
        return Err(UrlError::V1);
    }
    Ok(ModelUrl::Http { host: host.to_owned(), port, path: path.to_owned() })
}

/// Whether a Unix socket can have this path; if not, why.
pub(super) fn check_socket_path(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().len();
    if bytes > MAX_SOCKET_PATH_BYTES {
        return Err(format!(
            "the path has {bytes} bytes and that of a Unix socket has at most {MAX_SOCKET_PATH_BYTES}"
        ));
    }
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err("the path has a NUL".to_owned());
    }
    if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err("the path does not name a file".to_owned());
    }
    Ok(())
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
