//! One connection to a server: from its start and handshake to its end.

use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest, Implementation,
    JsonObject, PaginatedRequestParams, PingRequest,
};
use rmcp::service::{ClientInitializeError, NotificationContext, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient, serve_client};
use serde_json::Value;

use super::super::confine::Reach;
use super::super::excerpt::beginning;
use super::super::name::usable;
use super::super::process::{Rlimits, Start};
use super::child::Child;
use super::http::HttpClient;
use super::paced::Paced;
use super::reader::Bounded;
use super::{MESSAGE_BYTES, content};

/// How many tools of a server are taken, and how many bytes their descriptions and schemas may have together.
const TOOLS: usize = 10_000;
const LIST_BYTES: usize = 16 * 1024 * 1024;
/// How many bytes the schema of one tool may have, and how many its description.
const SCHEMA_BYTES: usize = 64 * 1024;
const DESCRIPTION_BYTES: usize = 2 * 1024;
/// How many characters of an error of the SDK or the server are told.
const ERROR_CHARS: usize = 600;
/// How long a server gets at each step of its end: its input closed, TERM, KILL.
const CLOSE_GRACE: Duration = Duration::from_millis(700);

/// How a server is reached.
#[derive(Debug, Clone, PartialEq)]
pub enum McpTransport {
    /// A program that is started, over its standard input and output.
    Stdio {
        /// The program, an absolute path.
        program: PathBuf,
        /// Its arguments.
        args: Vec<String>,
        /// Where it runs, an absolute path, and its `HOME`.
        directory: PathBuf,
        /// Names of the daemon's environment variables that it gets.
        environment: Vec<String>,
        /// The kernel's limits for each of its processes.
        rlimits: Rlimits,
        /// What it can reach.
        reach: Reach,
    },
    /// Streamable HTTP, without TLS.
    Http {
        /// A name or an address; an IPv6 address without its brackets.
        host: String,
        /// The port.
        port: u16,
        /// The path, empty when there is none.
        path: String,
    },
}

/// A tool, as its server lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The server's own name for it.
    pub name: String,
    /// What it does.
    pub text: String,
    /// The schema of its arguments.
    pub schema: Value,
}

/// What a server asks of its client: nothing is offered but to hear of changes.
#[derive(Debug, Clone, Default)]
struct Client {
    changed: Arc<AtomicBool>,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let implementation = Implementation::new("boxmaker", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), implementation)
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.store(true, Ordering::Relaxed);
    }
}

/// A server that has shaken hands. Dropping it ends its process.
pub struct Connection {
    service: RunningService<RoleClient, Client>,
    changed: Arc<AtomicBool>,
    child: Option<Child>,
    calls: Calls,
}

/// Which calls were made, to tell nobody what a server said in the call of another.
#[derive(Debug, Default)]
struct Calls {
    made: Cell<bool>,
    running: Cell<u32>,
    /// Since the last time that none ran, more than one did at once.
    mixed: Cell<bool>,
}

/// A call that runs, until it is dropped.
struct Running<'a>(&'a Calls);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get().saturating_sub(1));
    }
}

impl Connection {
    /// Starts or reaches a server, and shakes hands within `limit`. Dropping the future ends what was started.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub async fn open(transport: &McpTransport, limit: Duration) -> Result<Self, Box<Failed>> {
        let client = Client::default();
        let changed = Arc::clone(&client.changed);
        let late = || format!("it did not finish its handshake within {} seconds", limit.as_secs());
        let (shaken, child) = match transport {
            McpTransport::Stdio { program, args, directory, environment, rlimits, reach } => {
                let start = Start { program, args, directory, environment, rlimits: *rlimits, reach };
                let (child, pipes) = Child::start(&start).map_err(Failed::plain)?;
                let (Some(stdout), Some(stdin)) = (pipes.stdout, pipes.stdin) else {
                    return Err(Failed::plain("it has no pipes".to_owned()));
                };
                let output = Bounded::new(stdout, MESSAGE_BYTES, child.notes());
                let transport = AsyncRwTransport::new_client(output, stdin);
                let transport = transport.with_max_line_length(MESSAGE_BYTES.saturating_add(1));
                let shaken = tokio::select! {
                    biased;
                    shaken = serve_client(client, Paced::new(transport)) => shaken.map_err(|e| unshaken(&e)),
                    () = child.ended() => Err("it ended at its start".to_owned()),
                    () = tokio::time::sleep(limit) => Err(late()),
                };
                (shaken, Some(child))
            }
            McpTransport::Http { host, port, path } => {
                let uri = format!("http://{host}:{port}{path}");
                // the limits among its settings are for the SDK's own clients; ours has its own
                let config = StreamableHttpClientTransportConfig::with_uri(uri);
                let http = HttpClient::new(host, *port, path);
                let transport = StreamableHttpClientTransport::with_client(http, config);
                let shaken = tokio::time::timeout(limit, serve_client(client, Paced::new(transport))).await;
                (shaken.map_err(|_| late()).and_then(|shaken| shaken.map_err(|e| unshaken(&e))), None)
            }
        };
        match shaken {
            Ok(service) => Ok(Self { service, changed, child, calls: Calls::default() }),
            Err(why) => Err(Box::new(Failed { why: short(&why), child })),
        }
    }

    /// Whether it can still be spoken to.
    pub fn alive(&self) -> bool {
        !self.service.is_closed() && !self.service.peer().is_transport_closed()
    }

    /// Whether the server said that its list of tools is another, since [`Connection::take_changed`].
    pub fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// The same, and from now on it has not.
    pub fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    /// The tools that the server of this name offers now, and how many were left out because they cannot be taken.
    ///
    /// # Errors
    /// The server's or the SDK's.
    pub async fn list(&self, server: &str) -> Result<(Vec<Listed>, usize), ServiceError> {
        let (mut tools, mut bytes, mut left_out): (Vec<Listed>, usize, usize) = (Vec::new(), 0, 0);
        let mut cursor: Option<String> = None;
        loop {
            let params = PaginatedRequestParams::default().with_cursor(cursor.clone());
            let page = self.service.peer().list_tools(Some(params)).await?;
            let empty = page.tools.is_empty();
            for tool in page.tools {
                let text = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
                let text =
                    text.get(..text.floor_char_boundary(DESCRIPTION_BYTES)).unwrap_or_default().to_owned();
                let schema = content::schema((*tool.input_schema).clone());
                let size = schema.as_ref().map_or(0, |schema| schema.to_string().len());
                bytes = bytes.saturating_add(size).saturating_add(text.len()).saturating_add(tool.name.len());
                let fits = tools.len() < TOOLS && bytes <= LIST_BYTES && size <= SCHEMA_BYTES;
                match schema {
                    Ok(schema) if fits && usable(&format!("{server}/{}", tool.name)) => {
                        tools.push(Listed { name: tool.name.into_owned(), text, schema });
                    }
                    _ => left_out = left_out.saturating_add(1),
                }
            }
            // a server may give the same cursor for ever
            let next = page.next_cursor.filter(|next| Some(next) != cursor.as_ref() && !empty);
            if next.is_none() || tools.len() >= TOOLS || left_out >= TOOLS || bytes > LIST_BYTES {
                break;
            }
            cursor = next;
        }
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let all = tools.len();
        tools.dedup_by(|b, a| a.name == b.name);
        left_out = left_out.saturating_add(all.saturating_sub(tools.len()));
        Ok((tools, left_out))
    }

    /// Calls a tool. Dropping the future tells the server that the call is no longer wanted.
    ///
    /// # Errors
    /// The server's or the SDK's.
    pub async fn call(&self, tool: &str, arguments: JsonObject) -> Result<CallToolResult, ServiceError> {
        let _running = self.begin_call();
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let call = self.service.peer().call_tool(params);
        let Some(child) = &self.child else { return call.await };
        tokio::select! {
            biased;
            result = call => result,
            () = child.ended() => Err(ServiceError::TransportClosed),
        }
    }

    /// Whether it answers within `limit`.
    pub async fn answers(&self, limit: Duration) -> bool {
        let ping = ClientRequest::PingRequest(PingRequest::default());
        let answer = tokio::time::timeout(limit, self.service.peer().send_request(ping)).await;
        matches!(answer, Ok(Ok(_) | Err(ServiceError::McpError(_))))
    }

    /// From now on what it says belongs to this call, unless another one runs.
    fn begin_call(&self) -> Running<'_> {
        let Calls { made, running, mixed } = &self.calls;
        made.set(true);
        mixed.set(running.get() > 0);
        if let (0, Some(child)) = (running.get(), &self.child) {
            child.forget();
        }
        running.set(running.get().saturating_add(1));
        Running(&self.calls)
    }

    /// What is known of why it ended, or does not answer; begins with a colon, or is empty. For all to hear: of what it
    /// said only what it said before it was first called.
    pub async fn remains(&self) -> String {
        match &self.child {
            Some(child) => child.remains(!self.calls.made.get()).await,
            None => String::new(),
        }
    }

    /// The same for the call that has just failed: with what the server said meanwhile, unless other calls ran too.
    pub async fn remains_of_call(&self) -> String {
        match &self.child {
            Some(child) => child.remains(!self.calls.mixed.get()).await,
            None => String::new(),
        }
    }

    /// Ends it in order: its input is closed, and it is asked to end before it is made to.
    pub async fn close(self) {
        let Self { service, child, .. } = self;
        let _late = tokio::time::timeout(CLOSE_GRACE, service.cancel()).await;
        let Some(child) = child else { return };
        if tokio::time::timeout(CLOSE_GRACE, child.exited()).await.is_err() {
            child.terminate();
            let _late = tokio::time::timeout(CLOSE_GRACE, child.exited()).await;
        }
    }
}

/// Why a connection could not be made; what was started ends when this is dropped.
pub struct Failed {
    why: String,
    child: Option<Child>,
}

impl Failed {
    fn plain(why: String) -> Box<Self> {
        Box::new(Self { why, child: None })
    }

    /// In words, with what the server itself said.
    pub async fn words(&self) -> String {
        match &self.child {
            Some(child) => {
                let remains = child.remains(true).await;
                format!("{}{}{remains}", self.why, child.hint())
            }
            None => self.why.clone(),
        }
    }
}

/// Why there was no handshake, without the SDK's names for its own parts.
fn unshaken(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => chain(&*error.error),
        other => chain(other),
    }
}

/// An error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.contains(&text) {
            words.push_str(&format!(": {text}"));
        }
        cause = error.source();
    }
    words
}

/// The beginning of words that somebody else wrote.
pub fn short(words: &str) -> String {
    beginning(words, ERROR_CHARS)
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("alive", &self.alive()).finish_non_exhaustive()
    }
}
