//! A stand-in for `channel::Client` while that is being built.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::proto::{ErrorBody, Event, Incoming, PROTOCOL_VERSION, Reply, Request, RequestFrame};

/// Why it failed.
#[derive(Debug)]
pub enum ClientError {
    /// Cannot connect.
    Connect(io::Error),
    /// The connection ended.
    Lost(String),
    /// Refused.
    Refused(ErrorBody),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(e) => e.fmt(f),
            Self::Lost(e) => e.fmt(f),
            Self::Refused(e) => e.fmt(f),
        }
    }
}

/// A connection.
pub struct Client {
    stream: UnixStream,
    buffer: Vec<u8>,
    events: VecDeque<Event>,
    next_id: u64,
    run: String,
}

impl Client {
    /// Connects and says hello.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path).await.map_err(ClientError::Connect)?;
        let mut client =
            Self { stream, buffer: Vec::new(), events: VecDeque::new(), next_id: 1, run: String::new() };
        let client_name = concat!("bxctl ", env!("CARGO_PKG_VERSION")).to_owned();
        match client.request(Request::Hello { version: PROTOCOL_VERSION, client: client_name }).await? {
            Reply::Hello { run, .. } => client.run = run,
            _ => return Err(ClientError::Lost("no hello".to_owned())),
        }
        Ok(client)
    }

    /// The daemon's run.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Asks.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn request(&mut self, request: Request) -> Result<Reply, ClientError> {
        let id = self.next_id;
        self.next_id = id.saturating_add(1);
        let lost = |e: io::Error| ClientError::Lost(e.to_string());
        let mut line =
            RequestFrame { id, request }.to_json().map_err(|e| ClientError::Lost(e.to_string()))?;
        line.push('\n');
        self.stream.write_all(line.as_bytes()).await.map_err(lost)?;
        loop {
            match self.incoming().await? {
                Incoming::Event(event) => self.events.push_back(event),
                Incoming::Answer(got, answer) if got == Some(id) || got.is_none() => {
                    return answer.map(|reply| *reply).map_err(ClientError::Refused);
                }
                Incoming::Answer(..) => {}
            }
        }
    }

    /// The next event. Can be dropped and called again.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next_event(&mut self) -> Result<Event, ClientError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Incoming::Event(event) = self.incoming().await? {
                return Ok(event);
            }
        }
    }

    async fn incoming(&mut self) -> Result<Incoming, ClientError> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer) {
                let rest = self.buffer.split_off(end.saturating_add(1));
                let line = std::mem::replace(&mut self.buffer, rest);
                return Incoming::from_json(&line).map_err(|e| ClientError::Lost(e.to_string()));
            }
            let read = self.stream.read_buf(&mut self.buffer).await;
            if read.map_err(|e| ClientError::Lost(e.to_string()))? == 0 {
                return Err(ClientError::Lost("the daemon closed the connection".to_owned()));
            }
        }
    }
}
