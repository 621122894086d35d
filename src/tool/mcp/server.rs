//! A server: connected when first needed, again after its end, later and later when it keeps failing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use rmcp::service::ServiceError;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::super::command::Stream;
use super::super::excerpt::{Capture, one_line};
use super::super::report::text_reply;
use super::super::spill::Spill;
use super::super::{
    CallContext, Installed, Policy, Tool, ToolDescription, ToolFuture, ToolLimits, ToolReply,
};
use super::connection::{Connection, Listed, McpTransport, chain, short};
use super::content;
use crate::proto::ToolOutcome;

/// The pause before the second start in a row; each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A pause of up to this length is waited for by a call; a longer one is told.
const WAITED: Duration = Duration::from_secs(3);
/// How long a server whose call took too long may take to show that it still answers.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// A server, as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct McpSpec {
    /// Its name, which stands before its tools' names.
    pub name: String,
    /// How it is reached.
    pub transport: McpTransport,
    /// Which of its tools run.
    pub policies: McpPolicies,
    /// How long its start and handshake may take, in seconds.
    pub start_seconds: u64,
    /// How long a call may take, in seconds; the caller's when absent.
    pub seconds: Option<u64>,
    /// How many bytes of output the model is shown; the caller's when absent.
    pub output_bytes: Option<u64>,
}

/// Which tools of a server run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpPolicies {
    /// All that are not named.
    pub all: Policy,
    /// Those that are, by the server's own name for them.
    pub named: BTreeMap<String, Policy>,
}

impl McpPolicies {
    fn of(&self, tool: &str) -> Policy {
        self.named.get(tool).copied().unwrap_or(self.all)
    }
}

/// A server and its tools.
#[derive(Debug)]
pub struct McpServer {
    spec: McpSpec,
    state: RefCell<State>,
    /// One start at a time.
    starting: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Rc<Connection>>,
    tools: Vec<Listed>,
    /// Counts up when the list is another.
    version: u64,
    problem: Option<String>,
    /// Failures in a row.
    failures: u32,
    not_before: Option<Instant>,
}

impl McpServer {
    /// A server; nothing is started.
    #[must_use]
    pub fn new(spec: McpSpec) -> Rc<Self> {
        Rc::new(Self { spec, state: RefCell::default(), starting: Mutex::new(()) })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The number of its list of tools: another when the list is another.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state.borrow().version
    }

    /// Why its tools cannot be called now, in words.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.state.borrow().problem.clone()
    }

    /// Its tools, as last listed.
    #[must_use]
    pub fn tools(self: &Rc<Self>) -> Vec<Installed> {
        let install = |listed: &Listed| {
            let name = format!("{}/{}", self.spec.name, listed.name);
            let policy = self.spec.policies.of(&listed.name);
            let tool = McpTool { server: Rc::clone(self), name, listed: listed.clone() };
            Installed { tool: Rc::new(tool), policy }
        };
        self.state.borrow().tools.iter().map(install).collect()
    }

    fn is_denied(&self) -> bool {
        let policies = &self.spec.policies;
        policies.all == Policy::Deny && policies.named.values().all(|policy| *policy == Policy::Deny)
    }

    /// Whether its list of tools is up to date, so that [`McpServer::refresh`] has nothing to do.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let starting = self.starting.try_lock().is_err();
        let state = self.state.borrow();
        let usable = |connection: &Rc<Connection>| connection.alive() && !connection.has_changed();
        self.is_denied() || (!starting && state.connection.as_ref().is_some_and(usable))
    }

    /// Brings its list of tools up to date, starting it if need be. What goes wrong is its [`McpServer::problem`].
    pub async fn refresh(&self) {
        if self.is_denied() {
            return;
        }
        if let Ok(connection) = self.connection().await
            && connection.take_changed()
        {
            let limit = Duration::from_secs(self.spec.start_seconds);
            let why = match tokio::time::timeout(limit, connection.list(&self.spec.name)).await {
                Ok(Ok(listed)) => return self.take(listed),
                Ok(Err(e)) => format!("its tools cannot be listed: {}", short(&e.to_string())),
                Err(_) => "it did not list its tools in time".to_owned(),
            };
            self.lost(&connection, &why).await;
        }
    }

    /// Ends it, if it runs.
    pub async fn close(&self) {
        let connection = self.state.borrow_mut().connection.take();
        if let Some(connection) = connection.and_then(Rc::into_inner) {
            connection.close().await;
        }
    }

    fn take(&self, (tools, left_out): (Vec<Listed>, usize)) {
        let name = &self.spec.name;
        if left_out > 0 {
            log::warn!(EVENT = "mcp_tools_left_out", SERVER = name.as_str(); "{left_out} tools of the MCP server {name} are left out: too many, too large, named twice, or without a usable schema");
        }
        let mut state = self.state.borrow_mut();
        if state.tools != tools {
            state.tools = tools;
            state.version = state.version.saturating_add(1);
        }
        state.problem = None;
    }

    /// The living connection, made if there is none.
    async fn connection(&self) -> Result<Rc<Connection>, String> {
        let _one = self.starting.lock().await;
        let there = self.state.borrow().connection.clone();
        if let Some(connection) = there {
            if connection.alive() {
                return Ok(connection);
            }
            self.lost(&connection, "it ended by itself").await;
        }
        let not_before = self.state.borrow().not_before;
        let pause = not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        if pause > WAITED {
            let why = self.problem().unwrap_or_default();
            return Err(format!("{why}. It is started again in {} seconds", pause.as_secs()));
        }
        tokio::time::sleep(pause).await;
        match self.start().await {
            Ok(connection) => {
                self.state.borrow_mut().connection = Some(Rc::clone(&connection));
                Ok(connection)
            }
            Err(why) => {
                self.failed(&why);
                Err(why)
            }
        }
    }

    async fn start(&self) -> Result<Rc<Connection>, String> {
        let McpSpec { name, transport, start_seconds, .. } = &self.spec;
        let (began, limit) = (Instant::now(), Duration::from_secs(*start_seconds));
        let connection = match Connection::open(transport, limit).await {
            Ok(connection) => connection,
            Err(failed) => {
                return Err(format!("the MCP server {name} cannot be used: {}", failed.words().await));
            }
        };
        let listing = tokio::time::timeout(limit.saturating_sub(began.elapsed()), connection.list(name));
        let listed = match listing.await {
            Ok(Ok(listed)) => listed,
            listing => {
                let why = match listing {
                    Ok(Err(e)) => short(&chain(&e)),
                    _ => format!("they did not come within {start_seconds} seconds of its start"),
                };
                let remains = connection.remains().await;
                return Err(format!("the tools of the MCP server {name} cannot be listed: {why}{remains}"));
            }
        };
        let (count, millis) = (listed.0.len(), began.elapsed().as_millis());
        log::info!(EVENT = "mcp_started", SERVER = name.as_str(); "the MCP server {name} is there with {count} tools after {millis} ms");
        self.take(listed);
        Ok(Rc::new(connection))
    }

    /// Remembers a failure, and when the next try may be.
    fn failed(&self, why: &str) {
        let (name, why) = (&self.spec.name, one_line(why));
        log::warn!(EVENT = "mcp_failed", SERVER = name.as_str(); "{why}");
        let mut state = self.state.borrow_mut();
        state.problem = Some(why);
        let pause = FIRST_PAUSE.saturating_mul(1 << state.failures.min(10)).min(LONGEST_PAUSE);
        state.failures = state.failures.saturating_add(1);
        state.not_before = Instant::now().checked_add(pause);
    }

    /// Lets go of a connection that is of no use any more, unless that was done already: several calls may find it so,
    /// some of them when there is another one. `why` is for all to hear, in every session and the journal.
    async fn lost(&self, connection: &Rc<Connection>, why: &str) {
        let why = format!("the MCP server {}: {why}{}", self.spec.name, connection.remains().await);
        let current = self.state.borrow().connection.as_ref().is_some_and(|now| Rc::ptr_eq(now, connection));
        if current {
            self.state.borrow_mut().connection = None;
            self.failed(&why);
        }
    }

    async fn call(&self, tool: &str, arguments: &str, context: &CallContext) -> ToolReply {
        let began = Instant::now();
        let limit = Duration::from_secs(context.seconds);
        let Ok(Value::Object(arguments)) = serde_json::from_str(arguments) else {
            return ToolReply::error("Nothing was run: the arguments are not a JSON object.");
        };
        let name = &self.spec.name;
        let connected = tokio::select! {
            biased;
            () = context.cancel.cancelled() => None,
            () = tokio::time::sleep(limit) => None,
            connection = self.connection() => Some(connection),
        };
        let connection = match connected {
            Some(Ok(connection)) => connection,
            Some(Err(why)) => {
                return ToolReply::error(format!("Nothing was run: {}.", why.trim_end_matches('.')));
            }
            None => {
                return ToolReply::error(format!(
                    "Nothing was run: the MCP server {name} was not there in time."
                ));
            }
        };
        let left = limit.saturating_sub(began.elapsed());
        let (outcome, words) = tokio::select! {
            biased;
            () = context.cancel.cancelled() => (ToolOutcome::Interrupted, "was cancelled; what it did until then is unknown".to_owned()),
            () = tokio::time::sleep(left) => (ToolOutcome::TimedOut, format!("was given up: it took more than {} seconds", context.seconds)),
            answer = connection.call(tool, arguments) => match answer {
                Ok(result) => {
                    self.state.borrow_mut().failures = 0;
                    let outcome = if result.is_error == Some(true) { ToolOutcome::Error } else { ToolOutcome::Ok };
                    return reply(outcome, &content::text(&result), context).await;
                }
                Err(ServiceError::McpError(e)) => {
                    let words = format!("The tool {name}/{tool} failed: {} (code {})", e.message, e.code.0);
                    return reply(ToolOutcome::Error, &words, context).await;
                }
                Err(ServiceError::UnexpectedResponse) => {
                    return ToolReply::error(format!(
                        "The tool {name}/{tool} answered with what loopd cannot use: it may want a person's input, \
                         or give its result later."
                    ));
                }
                Err(e) => {
                    let why = if connection.alive() { chain(&e) } else { "it ended in the middle of the call".to_owned() };
                    let why = format!("{}{}", short(&why), connection.remains_of_call().await);
                    self.lost(&connection, "it was lost in the middle of a call").await;
                    return ToolReply::error(format!(
                        "The tool {name}/{tool} failed: the MCP server {name} is gone: {why}. What it did until then is \
                         unknown. It is started again when it is called again."
                    ));
                }
            },
        };
        let mut words = format!("{name}/{tool} {words}.");
        if !connection.answers(SIGN_OF_LIFE).await {
            self.lost(&connection, "it hangs").await;
            words.push_str(" The MCP server does not answer any more; it was ended, and is started again when it is called again.");
        }
        ToolReply::new(outcome, words)
    }
}

/// A text as a reply: cut as its limit says, and kept whole beside the session.
async fn reply(outcome: ToolOutcome, text: &str, context: &CallContext) -> ToolReply {
    let limit = usize::try_from(context.output_bytes).unwrap_or(usize::MAX);
    let left = Cell::new(context.spill.as_ref().map_or(0, |spill| spill.max_bytes));
    let mut stream = Stream::new(Capture::halves(limit), Spill::new(context.spill.as_ref(), &left, ".out"));
    stream.read(Some(text.as_bytes())).await;
    text_reply(outcome, &stream.finish().await, limit)
}

/// One tool of a server.
struct McpTool {
    server: Rc<McpServer>,
    name: String,
    listed: Listed,
}

impl Tool for McpTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn describe(&self) -> ToolDescription {
        ToolDescription { text: self.listed.text.clone(), schema: self.listed.schema.clone() }
    }

    fn limits(&self) -> ToolLimits {
        let McpSpec { seconds, output_bytes, .. } = self.server.spec;
        ToolLimits { seconds, output_bytes, spill_bytes: None }
    }

    fn call<'a>(&'a self, arguments: &'a str, context: CallContext) -> ToolFuture<'a> {
        Box::pin(async move { self.server.call(&self.listed.name, arguments, &context).await })
    }
}
