//! The client's side, for `bxctl` and for tests. Works in any tokio runtime.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, sleep, timeout};

use super::frame::{Lines, Next};
use super::{ChannelError, MAX_PATH_BYTES};
use crate::proto::{
    ErrorBody, ErrorCode, Event, Incoming, PROTOCOL_VERSION, Position, Reply, Request, RequestFrame,
};

/// How long a daemon may take to say hello, when the caller doesn't say.
const HELLO: Duration = Duration::from_secs(10);
/// How long to try on while the daemon's queue of connections is full, and how often.
const QUEUE_FULL: Duration = Duration::from_secs(5);
const QUEUE_RETRY: Duration = Duration::from_millis(20);
/// Bytes of a line that a client takes from the daemon: pages of records are large.
const LINE_BYTES: usize = 256 << 20;

/// Why talking to the daemon failed.
#[derive(Debug)]
pub enum ClientError {
    /// Nobody answers at the socket: its path, and why, with what to do.
    NoDaemon(PathBuf, String),
    /// The daemon speaks another version of the protocol.
    Version {
        /// What this client speaks.
        client: u32,
        /// What the daemon says to that.
        message: String,
    },
    /// The daemon closed the connection: it has ended, or been stopped.
    Closed,
    /// The connection failed.
    Failed(io::Error),
    /// The daemon does not answer, although it holds the socket.
    Silent(PathBuf, Duration),
    /// The daemon sent something that this client does not understand.
    NotUnderstood(String),
    /// The daemon refused the request.
    Refused(ErrorBody),
}

impl ClientError {
    /// What kind of refusal it is, if it is one.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(error) => Some(error.code),
            Self::Version { .. } => Some(ErrorCode::Version),
            _ => None,
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDaemon(path, why) => write!(f, "{}: no daemon: {why}", path.display()),
            Self::Version { client, message } => {
                write!(f, "this client speaks version {client} of the protocol; the daemon says: {message}")
            }
            Self::Closed => f.write_str(
                "the daemon closed the connection; see its journal (journalctl -u loopd). What it had \
                 acknowledged is on disk",
            ),
            Self::Failed(e) => write!(f, "the connection to the daemon failed: {e}"),
            Self::Silent(path, waited) => write!(
                f,
                "{}: the daemon has not answered for {waited:?}; is it stopped or stuck? (journalctl -u loopd)",
                path.display()
            ),
            Self::NotUnderstood(why) => write!(
                f,
                "the daemon sent something that this client does not understand: {why}; use a client and a \
                 daemon of the same release"
            ),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(e) => Some(e),
            _ => None,
        }
    }
}

/// A connection to the daemon, past its hello.
///
/// Dropping the future of any method loses nothing that has arrived and tears no line that was begun:
/// the methods may stand in a `select!`.
pub struct Client {
    lines: Lines<OwnedReadHalf>,
    outgoing: OwnedWriteHalf,
    /// Written but for these bytes.
    unwritten: BytesMut,
    next_id: u64,
    /// Arrived while something else was waited for.
    arrived: VecDeque<Incoming>,
    daemon: String,
    run: String,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("daemon", &self.daemon).field("run", &self.run).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects and says hello.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`] with what to do, [`ClientError::Version`], [`ClientError::Silent`],
    /// [`ClientError::Refused`] when the daemon has too many clients.
    pub async fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_as(path, concat!("bxctl ", env!("CARGO_PKG_VERSION")), HELLO).await
    }

    /// Like [`Client::connect`], with a name of its own for the daemon's journal, and the time that the
    /// daemon may take to answer.
    ///
    /// # Errors
    /// As there.
    pub async fn connect_as(path: &Path, name: &str, within: Duration) -> Result<Self, ClientError> {
        let (incoming, outgoing) = reach(path).await?.into_split();
        let mut client = Self {
            lines: Lines::new(incoming, LINE_BYTES),
            outgoing,
            unwritten: BytesMut::new(),
            next_id: 1,
            arrived: VecDeque::new(),
            daemon: String::new(),
            run: String::new(),
        };
        let hello = Request::Hello { version: PROTOCOL_VERSION, client: name.to_owned() };
        let Ok(answer) = timeout(within, client.request(hello)).await else {
            return Err(ClientError::Silent(path.to_owned(), within));
        };
        let version = |message| ClientError::Version { client: PROTOCOL_VERSION, message };
        match answer {
            Ok(Reply::Hello { version: PROTOCOL_VERSION, daemon, run }) => Ok(Self { daemon, run, ..client }),
            Ok(Reply::Hello { version: theirs, daemon, .. }) => {
                Err(version(format!("{daemon} speaks version {theirs}")))
            }
            Ok(other) => {
                Err(ClientError::NotUnderstood(format!("an answer to hello that is none: {other:?}")))
            }
            Err(ClientError::Refused(error)) if error.code == ErrorCode::Version => {
                Err(version(error.message))
            }
            Err(e) => Err(e),
        }
    }

    /// The daemon's name and version.
    #[must_use]
    pub fn daemon(&self) -> &str {
        &self.daemon
    }

    /// The daemon's run: numbers of events are valid within it.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Where a client that has seen the event of that number stands; for [`Request::Attach`].
    #[must_use]
    pub fn position(&self, seq: u64) -> Position {
        Position { run: self.run.clone(), seq }
    }

    /// Asks and waits for the answer; events that arrive before it are kept for [`Client::next_event`].
    ///
    /// # Errors
    /// [`ClientError::Refused`] as the daemon says; else the connection has failed.
    pub async fn request(&mut self, request: Request) -> Result<Reply, ClientError> {
        let id = self.queue(request)?;
        let answer = loop {
            match self.receive().await {
                Ok(Incoming::Answer(Some(answered), result)) if answered == id => break result,
                // without an id: about the connection, and the last that it brings
                Ok(Incoming::Answer(None, Err(error))) => break Err(error),
                Ok(message) => self.arrived.push_back(message),
                Err(e) => return Err(e),
            }
        };
        answer.map(|reply| *reply).map_err(ClientError::Refused)
    }

    /// Asks, without waiting for the answer: [`Client::next`] brings it, with the id that is given back.
    ///
    /// # Errors
    /// The connection has failed.
    pub async fn ask(&mut self, request: Request) -> Result<u64, ClientError> {
        let id = self.queue(request)?;
        match self.write().await {
            Ok(()) => Ok(id),
            Err(e) if is_closed(&e) => Err(ClientError::Closed),
            Err(e) => Err(ClientError::Failed(e)),
        }
    }

    /// The next event, in the order of arrival; answers to [`Client::ask`] are kept for [`Client::next`].
    ///
    /// # Errors
    /// [`ClientError::Closed`] when the daemon has ended; [`ClientError::Failed`].
    pub async fn next_event(&mut self) -> Result<Event, ClientError> {
        let kept = self.arrived.iter().position(|message| matches!(message, Incoming::Event(_)));
        if let Some(Incoming::Event(event)) = kept.and_then(|at| self.arrived.remove(at)) {
            return Ok(event);
        }
        loop {
            match self.receive().await? {
                Incoming::Event(event) => return Ok(event),
                Incoming::Answer(None, Err(error)) => return Err(ClientError::Refused(error)),
                answer => self.arrived.push_back(answer),
            }
        }
    }

    /// Whatever comes next: an event, or the answer to something asked with [`Client::ask`].
    ///
    /// # Errors
    /// [`ClientError::Closed`] when the daemon has ended; [`ClientError::Failed`].
    pub async fn next(&mut self) -> Result<Incoming, ClientError> {
        match self.arrived.pop_front() {
            Some(message) => Ok(message),
            None => self.receive().await,
        }
    }

    fn queue(&mut self, request: Request) -> Result<u64, ClientError> {
        let id = self.next_id;
        self.next_id = id.saturating_add(1);
        let line = RequestFrame { id, request }
            .to_json()
            .map_err(|e| ClientError::NotUnderstood(format!("a request cannot be written: {e}")))?;
        self.unwritten.extend_from_slice(line.as_bytes());
        self.unwritten.extend_from_slice(b"\n");
        Ok(id)
    }

    async fn write(&mut self) -> io::Result<()> {
        while !self.unwritten.is_empty() {
            self.outgoing.write_buf(&mut self.unwritten).await?;
        }
        Ok(())
    }

    /// Writes what is to be written, and reads the next message.
    async fn receive(&mut self) -> Result<Incoming, ClientError> {
        // A daemon that closed may have said why before: read on when nothing can be written.
        let unwritten = self.write().await.err();
        if unwritten.is_some() {
            self.unwritten.clear();
        }
        match self.lines.next().await {
            Ok(Next::Line(line)) => {
                Incoming::from_json(&line).map_err(|e| ClientError::NotUnderstood(e.to_string()))
            }
            Ok(Next::TooLong) => {
                Err(ClientError::NotUnderstood(format!("a line of more than {LINE_BYTES} bytes")))
            }
            Ok(Next::End(_)) => Err(ClientError::Closed),
            Err(e) if is_closed(&e) => Err(ClientError::Closed),
            Err(e) => Err(ClientError::Failed(unwritten.unwrap_or(e))),
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// A connection to the socket, or why there is none.
async fn reach(path: &Path) -> Result<UnixStream, ClientError> {
    let none = |why: String| ClientError::NoDaemon(path.to_owned(), why);
    let bytes = path.as_os_str().as_bytes().len();
    if bytes > MAX_PATH_BYTES {
        return Err(none(ChannelError::PathTooLong { path: path.to_owned(), bytes }.to_string()));
    }
    let give_up = Instant::now() + QUEUE_FULL;
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            // the daemon's queue of connections is full, for a moment
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < give_up => {
                sleep(QUEUE_RETRY).await;
            }
            Err(e) => return Err(none(no_daemon(&e))),
        }
    }
}

/// Why nobody answers, and what to do.
fn no_daemon(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "there is no such socket; start it with `systemctl start loopd` or `loopd serve`, or name its socket \
             with --socket"
        }
        io::ErrorKind::ConnectionRefused => {
            "nobody listens on the socket, so the daemon has been killed; start it with `systemctl start loopd` or \
             `loopd serve`"
        }
        io::ErrorKind::PermissionDenied => {
            "this user may not open the socket; become a member of the group it belongs to"
        }
        io::ErrorKind::WouldBlock => "the daemon accepts no connections; is it stopped or stuck?",
        _ => return format!("the socket cannot be opened: {error}"),
    }
    .to_owned()
}
