//! The SDK's streamable HTTP over `hyper`, which is here already: plain HTTP, one connection a request. No TLS, no
//! redirects, no authorization.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream::{BoxStream, StreamExt as _};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};
use tokio::net::TcpStream;

use super::MESSAGE_BYTES;

/// How much of an answer that is an error is told.
const ERROR_CHARS: usize = 300;

type Headers = HashMap<HeaderName, HeaderValue>;
type Events = BoxStream<'static, Result<Sse, sse_stream::Error>>;
type Answer<T> = Result<T, StreamableHttpError<HttpError>>;

/// Why a request failed, in words.
#[derive(Debug)]
pub struct HttpError(String);

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HttpError {}

fn failed(why: impl fmt::Display) -> StreamableHttpError<HttpError> {
    StreamableHttpError::Client(HttpError(why.to_string()))
}

/// A server at an address.
#[derive(Debug, Clone)]
pub struct HttpClient {
    host: Arc<str>,
    port: u16,
    path: Arc<str>,
}

impl HttpClient {
    /// For a name or an address (IPv6 without brackets) and a path, which may be empty.
    pub fn new(host: &str, port: u16, path: &str) -> Self {
        let path = if path.is_empty() { "/" } else { path };
        Self { host: host.into(), port, path: path.into() }
    }

    async fn send(&self, method: Method, headers: Headers, body: Bytes) -> Answer<Response<Incoming>> {
        let Self { host, port, path } = self;
        let stream = TcpStream::connect((&**host, *port)).await.map_err(failed)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        tokio::spawn(connection);
        let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut request = Request::builder().method(method).uri(&**path).header(HOST, name);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).map_err(failed)?;
        sender.send_request(request).await.map_err(failed)
    }
}

/// The headers of a request.
fn headers(accept: &str, session: Option<&str>, mut own: Headers) -> Answer<Headers> {
    own.insert(ACCEPT, HeaderValue::from_str(accept).map_err(failed)?);
    if let Some(session) = session {
        own.insert(header(HEADER_SESSION_ID)?, HeaderValue::from_str(session).map_err(failed)?);
    }
    Ok(own)
}

fn header(name: &str) -> Answer<HeaderName> {
    name.parse().map_err(failed)
}

/// The kind of an answer, without its parameters.
fn kind(response: &Response<Incoming>) -> Option<String> {
    let value = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

/// A body, whole.
async fn whole(response: Response<Incoming>) -> Answer<Bytes> {
    let body = Limited::new(response.into_body(), MESSAGE_BYTES).collect().await;
    let too_large = |e: &(dyn std::error::Error + 'static)| e.is::<http_body_util::LengthLimitError>();
    body.map(|body| body.to_bytes()).map_err(|e| match too_large(&*e) {
        true => StreamableHttpError::ResponseBodyTooLarge { max_size: MESSAGE_BYTES },
        false => failed(e),
    })
}

/// How long the event is that is being read.
struct Bound {
    event: usize,
    /// The byte before; at the beginning it is as after a line's end.
    before: u8,
}

impl Bound {
    fn new() -> Self {
        Self { event: 0, before: b'\n' }
    }

    /// Takes bytes into account; whether they may be passed on. An event ends at an empty line, and lines end with LF,
    /// CR or both.
    fn take(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            self.event = match (self.before, byte) {
                (b'\n', b'\n' | b'\r') | (b'\r', b'\r') => 0,
                _ => self.event.saturating_add(1),
            };
            if self.event > MESSAGE_BYTES {
                return false;
            }
            self.before = *byte;
        }
        true
    }
}

/// The events of an answer, each of them bounded.
fn events(response: Response<Incoming>) -> Events {
    let mut bound = Bound::new();
    let pieces = response.into_body().into_data_stream().map(move |piece| {
        let piece = piece.map_err(failed)?;
        if !bound.take(&piece) {
            return Err(failed(format!("it sent an event of more than {MESSAGE_BYTES} bytes")));
        }
        Ok(piece)
    });
    SseStream::from_bytes_stream(pieces).boxed()
}

/// The beginning of an answer, to tell of it.
fn beginning(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(ERROR_CHARS).collect()
}

/// What an answer that is no success says.
async fn refused<T>(response: Response<Incoming>) -> Answer<T> {
    let status = response.status();
    let remedy = if status.is_redirection() {
        "; loopd follows no redirects: give the address that it redirects to as `url`"
    } else if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        "; loopd cannot authorize itself: give as `url` the address of a proxy that does"
    } else {
        ""
    };
    let body = whole(response).await.unwrap_or_default();
    let why = format!("HTTP {status}{remedy}: {}", beginning(&body));
    Err(StreamableHttpError::UnexpectedServerResponse(Cow::Owned(why)))
}

impl StreamableHttpClient for HttpClient {
    type Error = HttpError;

    async fn post_message(
        &self,
        _uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _authorization: Option<String>,
        own: Headers,
    ) -> Answer<StreamableHttpPostResponse> {
        let accept = format!("{EVENT_STREAM_MIME_TYPE}, {JSON_MIME_TYPE}");
        let mut headers = headers(&accept, session.as_deref(), own)?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON_MIME_TYPE));
        // by the writer that the SDK uses for pipes: all its types by another one are 40 kB of program text
        let mut body = BytesMut::new();
        serde_json::to_writer((&mut body).writer(), &message)?;
        let response = self.send(Method::POST, headers, body.freeze()).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let json = kind(&response).as_deref() == Some(JSON_MIME_TYPE);
        if !status.is_success() && !json {
            return refused(response).await;
        }
        let asks = matches!(message, ClientJsonRpcMessage::Request(_));
        let empty = response.headers().get(CONTENT_LENGTH).is_some_and(|length| length == "0");
        if status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT || (empty && !asks) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let session = response.headers().get(HEADER_SESSION_ID).and_then(|value| value.to_str().ok());
        let session = session.map(str::to_owned);
        match kind(&response).as_deref() {
            Some(EVENT_STREAM_MIME_TYPE) => Ok(StreamableHttpPostResponse::Sse(events(response), session)),
            Some(JSON_MIME_TYPE) => {
                let body = whole(response).await?;
                match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
                    Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
                    Err(_) if !asks && status.is_success() => Ok(StreamableHttpPostResponse::Accepted),
                    Err(e) => {
                        let text = beginning(&body);
                        let why = format!("HTTP {status}, and no message of the protocol ({e}): {text}");
                        Err(StreamableHttpError::UnexpectedServerResponse(Cow::Owned(why)))
                    }
                }
            }
            _ if !asks => Ok(StreamableHttpPostResponse::Accepted),
            other => Err(StreamableHttpError::UnexpectedContentType(other.map(str::to_owned))),
        }
    }

    async fn delete_session(
        &self,
        _uri: Arc<str>,
        session: Arc<str>,
        _authorization: Option<String>,
        own: Headers,
    ) -> Answer<()> {
        let headers = headers(JSON_MIME_TYPE, Some(&session), own)?;
        let response = self.send(Method::DELETE, headers, Bytes::new()).await?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Ok(()),
            status if status.is_success() => Ok(()),
            _ => refused(response).await,
        }
    }

    async fn get_stream(
        &self,
        _uri: Arc<str>,
        session: Option<Arc<str>>,
        after: Option<String>,
        _authorization: Option<String>,
        own: Headers,
    ) -> Answer<Events> {
        let mut headers = headers(EVENT_STREAM_MIME_TYPE, session.as_deref(), own)?;
        if let Some(after) = after {
            headers.insert(header(HEADER_LAST_EVENT_ID)?, HeaderValue::from_str(&after).map_err(failed)?);
        }
        let response = self.send(Method::GET, headers, Bytes::new()).await?;
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if !response.status().is_success() {
            return refused(response).await;
        }
        match kind(&response).as_deref() {
            Some(EVENT_STREAM_MIME_TYPE) => Ok(events(response)),
            other => Err(StreamableHttpError::UnexpectedContentType(other.map(str::to_owned))),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// The data of the events of a server that answers with these bytes, piece by piece, or why they end.
    async fn answered(body: Vec<u8>, piece: usize) -> Result<Vec<usize>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _asked = stream.read(&mut [0; 4096]).await.unwrap();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {EVENT_STREAM_MIME_TYPE}\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            for piece in body.chunks(piece) {
                if stream.write_all(piece).await.is_err() {
                    return;
                }
            }
        });
        let client = HttpClient::new("127.0.0.1", port, "");
        let events = client.get_stream("".into(), None, None, None, Headers::new()).await.unwrap();
        let events: Vec<Sse> = events.try_collect().await.map_err(|e| format!("{e:?}"))?;
        Ok(events.into_iter().map(|event| event.data.unwrap_or_default().len()).collect())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn each_event_is_bounded_and_not_all_of_them_together_however_lines_end() {
        const EVENT: usize = 3 * 1024 * 1024;
        for end in ["\n", "\r\n", "\r"] {
            let line = format!("data: {}{end}", "x".repeat(EVENT));
            let four = format!("{line}{end}").repeat(4).into_bytes();
            for piece in [1000, 65_536] {
                assert_eq!(answered(four.clone(), piece).await, Ok(vec![EVENT; 4]), "{end:?}, {piece}");
            }
            let one = format!("{}{end}", line.repeat(4)).into_bytes();
            let refused = answered(one, 65_536).await.unwrap_err();
            assert!(refused.contains("an event of more than 8388608 bytes"), "{end:?}: {refused}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_not_supported_is_told_with_what_to_do() {
        for (status, says) in
            [("307 Temporary Redirect", "redirects to"), ("401 Unauthorized", "a proxy that does")]
        {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _asked = stream.read(&mut [0; 4096]).await.unwrap();
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nlocation: /x\r\n\r\nno");
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
            let client = HttpClient::new("127.0.0.1", port, "");
            let refused = client.get_stream("".into(), None, None, None, Headers::new()).await;
            let why = refused.err().unwrap().to_string();
            assert!(why.contains(says) && why.contains(status), "{why}");
        }
    }

    #[test]
    fn an_event_ends_at_an_empty_line_wherever_the_pieces_do() {
        for end in ["\n", "\r\n", "\r"] {
            let text = format!("event: a{end}data: b{end}{end}data: c{end}");
            for cut in 0..=text.len() {
                let mut bound = Bound::new();
                let (a, b) = text.as_bytes().split_at(cut);
                assert!(bound.take(a) && bound.take(b));
                // the second byte of a line's end counts for what comes after it
                let rest = format!("data: c{end}").len() + end.len() - 1;
                assert_eq!(bound.event, rest, "{end:?} {cut}");
            }
        }
    }
}
