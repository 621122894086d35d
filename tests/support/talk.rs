//! A client of the daemon for tests that are not asynchronous themselves.

use std::path::Path;
use std::time::Duration;

use boxmaker::channel::{Client, ClientError};
use boxmaker::proto::{
    CallId, Certainty, Decision, ErrorBody, Event, EventKind, Incoming, Position, Reply, Request, SessionId,
    SessionInfo, TurnId, TurnUsage,
};
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};

/// How long the daemon may take for anything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to the daemon.
pub struct Talk {
    runtime: Runtime,
    client: Client,
}

impl Talk {
    /// Connects.
    pub fn connect(socket: &Path) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = runtime.block_on(Client::connect(socket)).expect("connect to loopd");
        Self { runtime, client }
    }

    fn wait<T>(&mut self, work: impl AsyncFnOnce(&mut Client) -> T, what: impl FnOnce() -> String) -> T {
        let Self { runtime, client } = self;
        let bounded = async { tokio::time::timeout(PATIENCE, work(client)).await };
        runtime.block_on(bounded).unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain: {}", what()))
    }

    /// Asks, and gives the answer or the refusal.
    pub fn ask(&mut self, request: Request) -> Result<Reply, ErrorBody> {
        let what = format!("an answer to {request:?}");
        match self.wait(async |client| client.request(request).await, || what.clone()) {
            Ok(reply) => Ok(reply),
            Err(ClientError::Refused(error)) => Err(error),
            Err(e) => panic!("{what}: {e}"),
        }
    }

    /// Asks without waiting for the answer.
    pub fn begin(&mut self, request: Request) -> u64 {
        self.wait(async |client| client.ask(request).await, || "a request is written".to_owned())
            .expect("write")
    }

    /// A new session, to which this client is attached.
    pub fn create(&mut self) -> SessionId {
        match self.ask(Request::Create { id: None, name: None }).expect("create a session") {
            Reply::Session { info, .. } => {
                self.attach(&info.id, None);
                info.id
            }
            other => panic!("{other:?}"),
        }
    }

    /// Attaches as a client that asks a person about approvals.
    pub fn attach_to_approve(&mut self, session: &SessionId) {
        let request = Request::Attach { session: session.clone(), after: None, approves: true };
        assert!(matches!(self.ask(request), Ok(Reply::Attached { .. })));
    }

    /// Decides about a call.
    pub fn approve(
        &mut self,
        session: &SessionId,
        call: u64,
        decision: Decision,
    ) -> Result<Reply, ErrorBody> {
        self.ask(Request::Approve { session: session.clone(), call: CallId(call), decision })
    }

    /// The events until a call waits for a decision.
    pub fn until_asked(&mut self, session: &SessionId) -> Vec<Event> {
        self.until(session, "a question", |kind| matches!(kind, EventKind::ApprovalWanted { .. }))
    }

    /// Attaches; gives the number of the last event, and whether a turn runs.
    pub fn attach(&mut self, session: &SessionId, after: Option<Position>) -> (u64, bool) {
        match self.ask(Request::Attach { session: session.clone(), after, approves: false }).expect("attach")
        {
            Reply::Attached { seq, running } => (seq, running),
            other => panic!("{other:?}"),
        }
    }

    /// A place among this daemon's events.
    pub fn position(&self, seq: u64) -> Position {
        self.client.position(seq)
    }

    /// Sends a message; it must be taken.
    pub fn send(&mut self, session: &SessionId, text: &str) -> TurnId {
        let request = Request::Send { session: session.clone(), text: text.to_owned() };
        match self.ask(request).unwrap_or_else(|e| panic!("{text:?} was refused: {e}")) {
            Reply::Turn { turn, .. } => turn,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a message and follows the turn to its end.
    pub fn turn(&mut self, session: &SessionId, text: &str) -> Vec<Event> {
        self.send(session, text);
        self.until_end(session)
    }

    /// Asks again and follows the turn to its end.
    pub fn retry(&mut self, session: &SessionId) -> Vec<Event> {
        let reply = self.ask(Request::Retry { session: session.clone() });
        assert!(matches!(reply, Ok(Reply::Turn { .. })), "{reply:?}");
        self.until_end(session)
    }

    /// Cancels the running turn; gives the events up to its end, which is durable.
    pub fn cancel(&mut self, session: &SessionId) -> Vec<Event> {
        let reply = self.ask(Request::Cancel { session: session.clone() });
        assert_eq!(reply, Ok(Reply::Done {}));
        self.until_end(session)
    }

    /// The next event.
    pub fn next(&mut self, what: &str) -> Event {
        self.next_after(what, &[])
    }

    fn next_after(&mut self, what: &str, seen: &[Event]) -> Event {
        let so_far = || {
            let mut told = told(seen);
            told.iter_mut().for_each(|word| word.truncate(word.floor_char_boundary(200)));
            format!("{what}, after {told:#?}")
        };
        let event = self.wait(async |client| client.next_event().await, so_far);
        event.unwrap_or_else(|e| panic!("{e}: {}", so_far()))
    }

    /// Whatever comes next; none when the daemon has closed the connection.
    pub fn incoming(&mut self, what: &str) -> Option<Incoming> {
        match self.wait(async |client| client.next().await, || what.to_owned()) {
            Ok(incoming) => Some(incoming),
            Err(ClientError::Closed) => None,
            Err(e) => panic!("{what}: {e}"),
        }
    }

    /// The events up to one for which `found` says so.
    pub fn until(
        &mut self,
        session: &SessionId,
        what: &str,
        mut found: impl FnMut(&EventKind) -> bool,
    ) -> Vec<Event> {
        let mut seen = Vec::new();
        loop {
            let event = self.next_after(what, &seen);
            if event.session != *session {
                continue;
            }
            let done = found(&event.kind);
            seen.push(event);
            if done {
                return seen;
            }
        }
    }

    /// The events up to the turn's end.
    pub fn until_end(&mut self, session: &SessionId) -> Vec<Event> {
        self.until(session, "the turn's end", |kind| matches!(kind, EventKind::TurnEnd { .. }))
    }

    /// The events until the model has written this much.
    pub fn until_text(&mut self, session: &SessionId, text: &str) -> Vec<Event> {
        let mut all = String::new();
        self.until(session, "the text", |kind| {
            if let EventKind::Text { text } = kind {
                all.push_str(text);
            }
            all == text
        })
    }

    /// The session's state, as `resolve` tells it: it opens nothing.
    pub fn info(&mut self, session: &SessionId) -> SessionInfo {
        match self.ask(Request::Resolve { text: session.to_string() }).expect("resolve") {
            Reply::Session { info, .. } => info,
            other => panic!("{other:?}"),
        }
    }

    /// The rows of `usage`.
    pub fn usage(&mut self, session: &SessionId) -> Vec<TurnUsage> {
        match self.ask(Request::Usage { session: session.clone() }).expect("usage") {
            Reply::Usage { turns } => turns,
            other => panic!("{other:?}"),
        }
    }

    /// A counter or gauge, with its labels.
    pub fn metric(&mut self, name: &str) -> u64 {
        let Ok(Reply::Metrics { text }) = self.ask(Request::Metrics {}) else { panic!("no metrics") };
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
    }
}

/// Events in short words, one a line; text in one piece.
pub fn told(events: &[Event]) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for event in events {
        let word = match &event.kind {
            EventKind::Text { text } | EventKind::Reasoning { text } => {
                let thought = matches!(event.kind, EventKind::Reasoning { .. });
                let begin = if thought { "reasoning " } else { "text " };
                match told.last_mut() {
                    Some(last) if last.starts_with(begin) => last.push_str(text),
                    _ => told.push(format!("{begin}{text}")),
                }
                continue;
            }
            EventKind::TurnStart { retry: false, .. } => "turn_start".to_owned(),
            EventKind::TurnStart { retry: true, .. } => "turn_start retry".to_owned(),
            EventKind::Queued { place } => format!("queued {place}"),
            EventKind::Waiting { .. } => "waiting".to_owned(),
            EventKind::Prefill { .. } => "prefill".to_owned(),
            EventKind::ToolCall { call, name, arguments } => format!("tool_call {call} {name} {arguments}"),
            EventKind::ApprovalWanted { wanted } => {
                format!("approval_wanted {} {} {}", wanted.call, wanted.name, wanted.arguments)
            }
            EventKind::Approval { call, decision, .. } => format!("approval {call} {}", word(decision)),
            EventKind::ToolResult { call, name, outcome, .. } => {
                format!("tool_result {call} {name} {}", word(outcome))
            }
            EventKind::Usage { finish, .. } => format!("usage {}", word(finish)),
            EventKind::Notice { code, .. } => format!("notice {code}"),
            EventKind::Error { code, .. } => format!("error {}", word(code)),
            EventKind::Snapshot { .. } => "snapshot".to_owned(),
            EventKind::TurnEnd { outcome, certainty: Certainty::Durable, .. } => {
                format!("turn_end {}", word(outcome))
            }
            EventKind::TurnEnd { outcome, certainty: Certainty::Unknown, .. } => {
                format!("turn_end {} unknown", word(outcome))
            }
            #[allow(unreachable_patterns, reason = "kinds that are added later")]
            other => serde_json::to_value(other).expect("JSON")["event"].to_string(),
        };
        told.push(word);
    }
    told
}

/// Why the turn ended as it did, from its last event.
pub fn why(events: &[Event]) -> String {
    match events.last().map(|event| &event.kind) {
        Some(EventKind::TurnEnd { detail, .. }) => detail.clone().unwrap_or_default(),
        other => panic!("no turn_end, but {other:?}"),
    }
}

/// The text of the events.
pub fn text(events: &[Event]) -> String {
    let texts = events.iter().filter_map(|event| match &event.kind {
        EventKind::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).expect("JSON").as_str().expect("a word").to_owned()
}
