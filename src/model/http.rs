//! One HTTP/1.1 request on one connection of its own.
//!
//! No pool: the server closes idle connections after 5 s, and a request that races with that would be
//! lost. The connection is driven by whoever waits for the answer, so dropping the answer closes the
//! socket at once: that is how a generation is cancelled.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::rt::{Read, Write};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::error::ModelError;
use crate::config::ModelUrl;

/// How long a connection may take to be made.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer that is not a stream, in bytes.
pub const MAX_ANSWER_BYTES: usize = 32 << 20;

/// How much of an unexpected answer an error shows, in characters.
const SHOWN_CHARACTERS: usize = 300;

type Driver = Pin<Box<dyn Future<Output = Result<(), hyper::Error>>>>;

/// An address and what is needed to ask there.
pub(super) struct Endpoint {
    pub(super) url: ModelUrl,
    pub(super) shown: String,
    pub(super) api_key: Option<String>,
}

/// A connection with its one request. Dropping it closes the socket.
struct Connection {
    /// Kept, because without it hyper may end the connection early.
    sender: SendRequest<Full<Bytes>>,
    driver: Option<Driver>,
}

impl Connection {
    /// Waits for `work`, which needs the connection to make progress.
    async fn drive<F: Future>(&mut self, work: F) -> F::Output {
        drive(&mut self.driver, work).await
    }
}

async fn drive<F: Future>(driver: &mut Option<Driver>, work: F) -> F::Output {
    let mut work = pin!(work);
    poll_fn(|cx: &mut Context<'_>| {
        if let Poll::Ready(out) = work.as_mut().poll(cx) {
            return Poll::Ready(out);
        }
        if let Some(running) = driver {
            // Its error reaches `work` too, as the end of the body or of the answer.
            if running.as_mut().poll(cx).is_ready() {
                *driver = None;
            }
        }
        work.as_mut().poll(cx)
    })
    .await
}

/// An answer whose status and headers are there, and whose body is to be read.
pub(super) struct Answer {
    connection: Connection,
    body: Incoming,
    pub(super) status: u16,
    pub(super) is_event_stream: bool,
}

/// The next piece of a body.
pub(super) enum Piece {
    Data(Bytes),
    End,
    /// The connection ended inside the body.
    Broken(String),
    Silence,
}

impl Answer {
    /// Waits for the next bytes, at most `silence` long.
    pub(super) async fn piece(&mut self, silence: Duration) -> Piece {
        loop {
            let Self { connection, body, .. } = self;
            match timeout(silence, connection.drive(body.frame())).await {
                Err(_) => return Piece::Silence,
                Ok(None) => return Piece::End,
                Ok(Some(Err(e))) => return Piece::Broken(causes(&e)),
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Piece::Data(data),
                    Err(_trailers) => {}
                },
            }
        }
    }
}

impl Endpoint {
    /// Sends a request and waits for the answer's head, at most `silence` long.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        silence: Duration,
    ) -> Result<Answer, ModelError> {
        let mut connection = self.connect().await?;
        let request = self.request(method, path, body)?;
        let sent = connection.sender.send_request(request);
        let answered = timeout(silence, drive(&mut connection.driver, sent)).await;
        let dropped = |why| ModelError::Dropped { url: self.shown.clone(), path: path.to_owned(), why };
        let response: Response<Incoming> = match answered {
            Err(_) => return Err(self.silent(path, silence)),
            Ok(Err(e)) if e.is_parse() => {
                return Err(self.garbage(path, format!("not an HTTP answer: {}", causes(&e))));
            }
            Ok(Err(e)) => return Err(dropped(causes(&e))),
            Ok(Ok(response)) => response,
        };
        let status = response.status().as_u16();
        let kind = response.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let is_event_stream = kind.starts_with(b"text/event-stream");
        Ok(Answer { connection, body: response.into_body(), status, is_event_stream })
    }

    /// Sends a request and reads the whole answer; any status but 200 is an error.
    pub(super) async fn fetch(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        silence: Duration,
    ) -> Result<Vec<u8>, ModelError> {
        let answer = self.ask(method, path, body, silence).await?;
        let status = answer.status;
        let text = self.read_all(answer, path, silence).await?;
        if status == 200 { Ok(text) } else { Err(self.refused(path, status, &text)) }
    }

    /// Reads a body to its end.
    pub(super) async fn read_all(
        &self,
        mut answer: Answer,
        path: &str,
        silence: Duration,
    ) -> Result<Vec<u8>, ModelError> {
        let mut text = Vec::new();
        loop {
            match answer.piece(silence).await {
                Piece::End => return Ok(text),
                Piece::Silence => return Err(self.silent(path, silence)),
                Piece::Broken(why) => {
                    return Err(ModelError::Dropped { url: self.shown.clone(), path: path.to_owned(), why });
                }
                Piece::Data(data) => {
                    if text.len().saturating_add(data.len()) > MAX_ANSWER_BYTES {
                        return Err(self.garbage(path, format!("it is longer than {MAX_ANSWER_BYTES} bytes")));
                    }
                    text.extend_from_slice(&data);
                }
            }
        }
    }

    /// What a status other than 200 means.
    pub(super) fn refused(&self, path: &str, status: u16, body: &[u8]) -> ModelError {
        let url = self.shown.clone();
        let error = ErrorBody::read(body);
        let message = error.message.clone().unwrap_or_else(|| beginning(body));
        match (status, error.kind.as_deref()) {
            (401 | 403, _) => ModelError::Unauthorized { url, key_sent: self.api_key.is_some() },
            (404, _) => ModelError::NotFound { url, path: path.to_owned() },
            (501, _) => ModelError::Unsupported { url, path: path.to_owned(), message },
            (503, _) => ModelError::Loading { url, message },
            (_, Some("exceed_context_size_error")) => ModelError::ContextExceeded {
                url,
                n_prompt_tokens: error.n_prompt_tokens.unwrap_or(0),
                n_ctx: error.n_ctx.unwrap_or(0),
            },
            (500, _) if message.to_lowercase().contains("failed to load") => {
                ModelError::LoadFailed { url, message }
            }
            (code, _) => ModelError::Status { url, path: path.to_owned(), code, body: message },
        }
    }

    pub(super) fn silent(&self, path: &str, silence: Duration) -> ModelError {
        ModelError::Silent { url: self.shown.clone(), path: path.to_owned(), seconds: silence.as_secs() }
    }

    pub(super) fn garbage(&self, path: &str, why: String) -> ModelError {
        ModelError::Garbage { url: self.shown.clone(), path: path.to_owned(), why }
    }

    fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Request<Full<Bytes>>, ModelError> {
        let (base, host) = match &self.url {
            ModelUrl::Unix(_) => ("", "localhost".to_owned()),
            ModelUrl::Http { host, port, path } if host.contains(':') => {
                (path.as_str(), format!("[{host}]:{port}"))
            }
            ModelUrl::Http { host, port, path } => (path.as_str(), format!("{host}:{port}")),
        };
        let mut builder = Request::builder()
            .method(method)
            .uri(format!("{base}{path}"))
            .header(HOST, host)
            .header(ACCEPT, "*/*")
            .header(CONNECTION, "close")
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.api_key {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
                self.garbage(
                    path,
                    "the key in `model.api_key_file` has a character no header may hold".into(),
                )
            })?;
            value.set_sensitive(true);
            builder = builder.header(AUTHORIZATION, value);
        }
        builder
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| self.garbage(path, format!("the request cannot be made: {e}")))
    }

    /// The process at the other end of the Unix socket; `None` where there is none that this process can see.
    pub(super) async fn peer(&self) -> Option<u32> {
        let ModelUrl::Unix(path) = &self.url else { return None };
        let stream = timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await.ok()?.ok()?;
        u32::try_from(stream.peer_cred().ok()?.pid()?).ok().filter(|pid| *pid > 0)
    }

    async fn connect(&self) -> Result<Connection, ModelError> {
        let unreachable = |error| ModelError::Unreachable { url: self.shown.clone(), error };
        let late = |_| unreachable(io::ErrorKind::TimedOut.into());
        match &self.url {
            ModelUrl::Unix(path) => {
                let stream = timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await.map_err(late)?;
                self.handshake(TokioIo::new(stream.map_err(unreachable)?)).await
            }
            ModelUrl::Http { host, port, .. } => {
                let connect = TcpStream::connect((host.as_str(), *port));
                let stream = timeout(CONNECT_TIMEOUT, connect).await.map_err(late)?.map_err(unreachable)?;
                // Small requests should not wait for Nagle; a failure costs nothing but time.
                let _ = stream.set_nodelay(true);
                self.handshake(TokioIo::new(stream)).await
            }
        }
    }

    async fn handshake<T: Read + Write + Unpin + 'static>(&self, io: T) -> Result<Connection, ModelError> {
        let (sender, connection) = http1::handshake(io).await.map_err(|e| ModelError::Dropped {
            url: self.shown.clone(),
            path: "a new connection".to_owned(),
            why: causes(&e),
        })?;
        Ok(Connection { sender, driver: Some(Box::pin(connection)) })
    }
}

/// `{"error":{…}}`, as llama-server writes it.
#[derive(Default, serde::Deserialize)]
pub(super) struct ErrorBody {
    #[serde(default)]
    pub(super) code: Option<u64>,
    #[serde(default)]
    pub(super) message: Option<String>,
    #[serde(default, rename = "type")]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) n_prompt_tokens: Option<u64>,
    #[serde(default)]
    pub(super) n_ctx: Option<u64>,
}

impl ErrorBody {
    fn read(body: &[u8]) -> Self {
        #[derive(serde::Deserialize)]
        struct Outer {
            error: ErrorBody,
        }
        serde_json::from_slice::<Outer>(body).map(|outer| outer.error).unwrap_or_default()
    }
}

/// The beginning of an answer, for an error message.
pub(super) fn beginning(body: &[u8]) -> String {
    if body.is_empty() {
        return "an empty answer".to_owned();
    }
    let head = body.get(..SHOWN_CHARACTERS.saturating_mul(4)).unwrap_or(body);
    String::from_utf8_lossy(head).chars().take(SHOWN_CHARACTERS).collect()
}

/// An error with all its causes: hyper's own text alone says little.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
