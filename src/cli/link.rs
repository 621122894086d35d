//! The line to the daemon: requests, the events of the session that is watched, and taking both up again
//! after the daemon was away.
//!
//! Invariants: an event is given out once, and none is left out in silence (a gap is followed by a
//! snapshot); a request is never sent a second time by itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::error::CliError;
use super::pen::Pen;
use super::text;
use crate::channel::{Client, ClientError};
use crate::proto::{
    ErrorBody, ErrorCode, Event, EventKind, Position, Reply, Request, SessionId, SessionInfo, TurnId,
    TurnUsage,
};

/// How long a lost daemon is waited for.
const RECONNECT_TIME: Duration = Duration::from_secs(10);
/// How often it is tried meanwhile.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// After how long what needs the model server is asked again.
pub const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What comes over the line while a session is watched.
#[derive(Debug)]
pub enum Arrival {
    /// An event.
    Event(Event),
    /// The daemon was away and is back.
    Back {
        /// Whether a turn runs or waits.
        running: bool,
        /// Whether it is another run of the daemon: what ran before has been interrupted.
        restarted: bool,
    },
}

/// What came of a wish for a new session.
#[derive(Debug)]
pub enum Created {
    /// It is there; and where its baseline differs from today's configuration.
    Made(SessionInfo, Vec<String>),
    /// Nothing is made, for the model server is away or loading: why. To be asked again after [`ASK_AGAIN`].
    Waiting(String),
}

struct Watch {
    session: SessionId,
    run: String,
    seq: u64,
}

/// The line to the daemon.
pub struct Link {
    path: PathBuf,
    client: Option<Client>,
    watch: Option<Watch>,
    lost_since: Option<Instant>,
    approves: bool,
}

impl Link {
    /// Connects.
    ///
    /// # Errors
    /// [`CliError::NoDaemon`], or what the daemon says to this version.
    pub async fn connect(path: PathBuf) -> Result<Self, CliError> {
        let client = connect(&path).await?;
        Ok(Self { path, client: Some(client), watch: None, lost_since: None, approves: false })
    }

    /// From the next [`Link::watch`] on, the daemon knows that a person can be asked here.
    pub fn approves(&mut self) {
        self.approves = true;
    }

    /// Whether a person can be asked here.
    #[must_use]
    pub fn can_approve(&self) -> bool {
        self.approves
    }

    /// Whether the daemon is there, as far as is known.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.is_some()
    }

    /// Asks once.
    ///
    /// # Errors
    /// What the daemon answers, or that it went away.
    pub async fn ask(&mut self, request: Request) -> Result<Reply, CliError> {
        let Some(client) = &mut self.client else {
            return Err(CliError::NoDaemon(format!("{}: the daemon is away", self.path.display())));
        };
        match client.request(request).await {
            Ok(reply) => Ok(reply),
            Err(ClientError::Refused(body)) => Err(CliError::Refused(body)),
            Err(ClientError::NotUnderstood(why)) => Err(CliError::Failed(not_understood(&why))),
            Err(_) => {
                self.client = None;
                let path = self.path.display();
                Err(CliError::NoDaemon(format!(
                    "{path}: the daemon went away before it answered; whether it did what was asked is unknown"
                )))
            }
        }
    }

    /// The session that an id, the beginning of one, or a name means.
    ///
    /// # Errors
    /// None or several match, or [`Link::ask`]'s.
    pub async fn resolve(&mut self, text: &str) -> Result<SessionInfo, CliError> {
        if text.is_empty() {
            let why = "an empty text names no session: give an id, the beginning of one, or a name";
            return Err(CliError::Refused(ErrorBody::new(ErrorCode::NotFound, why)));
        }
        match self.ask(Request::Resolve { text: text.to_owned() }).await {
            Err(CliError::Refused(body)) if !body.candidates.is_empty() => {
                let mut sessions = self.sessions().await?;
                sessions.retain(|info| body.candidates.contains(&info.id));
                let why = format!("{text:?} can mean {} sessions; give an id, or more of it", sessions.len());
                Err(CliError::Ambiguous(why, sessions))
            }
            reply => session(reply?).map(|(info, _)| info),
        }
    }

    /// Every session, newest first.
    ///
    /// # Errors
    /// [`Link::ask`]'s.
    pub async fn sessions(&mut self) -> Result<Vec<SessionInfo>, CliError> {
        match self.ask(Request::List {}).await? {
            Reply::Sessions { sessions } => Ok(sessions),
            reply => Err(unexpected(&reply)),
        }
    }

    /// What to say where other sessions have a name that was just given: it means none of them any more.
    ///
    /// # Errors
    /// [`Link::ask`]'s.
    pub async fn shared(&mut self, name: &str) -> Result<Option<String>, CliError> {
        match self.resolve(name).await {
            Err(CliError::Ambiguous(_, sessions)) => Ok(Some(format!(
                "{} sessions are called \"{}\" now: name them by their ids",
                sessions.len(),
                text::line(name)
            ))),
            Err(e @ CliError::NoDaemon(_)) => Err(e),
            _ => Ok(None),
        }
    }

    /// The latest session, if there is any.
    ///
    /// # Errors
    /// [`Link::ask`]'s.
    pub async fn latest(&mut self) -> Result<Option<SessionInfo>, CliError> {
        match self.ask(Request::Latest {}).await {
            Ok(reply) => session(reply).map(|(info, _)| Some(info)),
            Err(CliError::Refused(body)) if body.code == ErrorCode::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The session that `text` means, else the latest.
    ///
    /// # Errors
    /// There is none, or [`Link::ask`]'s.
    pub async fn choose(&mut self, text: Option<&str>) -> Result<SessionInfo, CliError> {
        if let Some(text) = text {
            return self.resolve(text).await;
        }
        self.latest().await?.ok_or_else(|| {
            let why = "there is no session yet; `bxctl chat` or `bxctl send TEXT` begins one";
            CliError::Refused(ErrorBody::new(ErrorCode::NotFound, why))
        })
    }

    /// A new session. While the model server is away or loading, it says so and asks again, until it is
    /// interrupted: nothing is made, and nothing saved, before.
    ///
    /// # Errors
    /// [`Link::ask`]'s.
    pub async fn create(&mut self, name: Option<String>) -> Result<SessionInfo, CliError> {
        let mut told = String::new();
        loop {
            match self.try_create(name.clone()).await? {
                Created::Made(info, _) => return Ok(info),
                Created::Waiting(why) => {
                    if told != why {
                        let shown = text::line(&why);
                        eprintln!("waiting to begin a session; nothing is saved yet, Ctrl-C leaves: {shown}");
                        told = why;
                    }
                    sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    /// Asks once for a new session.
    ///
    /// # Errors
    /// [`Link::ask`]'s.
    pub async fn try_create(&mut self, name: Option<String>) -> Result<Created, CliError> {
        match self.ask(Request::Create { id: None, name }).await {
            Err(CliError::Refused(body)) if body.code == ErrorCode::Waiting => {
                Ok(Created::Waiting(body.message))
            }
            reply => session(reply?).map(|(info, differs)| Created::Made(info, differs)),
        }
    }

    /// Opens a session; gives its state, and where its baseline differs from today's configuration.
    ///
    /// # Errors
    /// [`Link::ask`]'s.
    pub async fn open(&mut self, id: &SessionId) -> Result<(SessionInfo, Vec<String>), CliError> {
        session(self.ask(Request::Open { session: id.clone() }).await?)
    }

    /// A new session from the turns of another up to `turn`, else up to the newest that has ended; as [`Link::open`].
    ///
    /// # Errors
    /// [`Link::ask`]'s.
    pub async fn fork(
        &mut self,
        id: &SessionId,
        turn: Option<TurnId>,
        name: Option<String>,
    ) -> Result<(SessionInfo, Vec<String>), CliError> {
        session(self.ask(Request::Fork { session: id.clone(), turn, name }).await?)
    }

    /// Asks for a turn, by a message or without one.
    ///
    /// # Errors
    /// [`Link::ask`]'s.
    pub async fn begin(&mut self, request: Request) -> Result<TurnId, CliError> {
        match self.ask(request).await? {
            Reply::Turn { turn, .. } => Ok(turn),
            reply => Err(unexpected(&reply)),
        }
    }

    /// What each turn of a session cost, oldest first.
    ///
    /// # Errors
    /// [`Link::ask`]'s.
    pub async fn usage(&mut self, id: &SessionId) -> Result<Vec<TurnUsage>, CliError> {
        match self.ask(Request::Usage { session: id.clone() }).await? {
            Reply::Usage { turns } => Ok(turns),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Watches a session from now on, instead of the one watched before; tells whether a turn runs.
    ///
    /// # Errors
    /// [`Link::ask`]'s.
    pub async fn watch(&mut self, session: &SessionId) -> Result<bool, CliError> {
        if let Some(watch) = self.watch.take().filter(|watch| watch.session != *session) {
            self.ask(Request::Detach { session: watch.session }).await?;
        }
        let reply = self
            .ask(Request::Attach { session: session.clone(), after: None, approves: self.approves })
            .await?;
        let Reply::Attached { seq, running } = reply else {
            return Err(unexpected(&reply));
        };
        let run = self.client.as_ref().map(|client| client.run().to_owned()).unwrap_or_default();
        self.watch = Some(Watch { session: session.clone(), run, seq });
        Ok(running)
    }

    /// What comes next of the watched session. Waits for a lost daemon for some seconds, and says so.
    /// Can be dropped and called again at any time: nothing is lost.
    ///
    /// # Errors
    /// [`CliError::NoDaemon`] when the daemon does not come back.
    pub async fn next(&mut self, pen: &mut Pen) -> Result<Arrival, CliError> {
        loop {
            let Some(client) = &mut self.client else {
                return self.reconnect(pen).await;
            };
            let event = match client.next_event().await {
                Ok(event) => event,
                Err(ClientError::Refused(body)) => return Err(CliError::Refused(body)),
                Err(ClientError::NotUnderstood(why)) => return Err(CliError::Failed(not_understood(&why))),
                Err(_) => {
                    self.client = None;
                    self.lost_since = Some(Instant::now());
                    pen.warn("the daemon has gone; waiting for it to come back …")?;
                    continue;
                }
            };
            let Some(watch) = self.watch.as_mut().filter(|watch| watch.session == event.session) else {
                continue;
            };
            if event.seq <= watch.seq && !matches!(event.kind, EventKind::Snapshot { .. }) {
                continue;
            }
            watch.seq = watch.seq.max(event.seq);
            return Ok(Arrival::Event(event));
        }
    }

    async fn reconnect(&mut self, pen: &mut Pen) -> Result<Arrival, CliError> {
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        loop {
            match self.try_again().await {
                Ok(arrival) => {
                    self.lost_since = None;
                    pen.note("the daemon is back")?;
                    return Ok(arrival);
                }
                Err(CliError::NoDaemon(_)) if since.elapsed() < RECONNECT_TIME => {
                    sleep(RECONNECT_PAUSE).await
                }
                Err(e) => return Err(e),
            }
        }
    }

    async fn try_again(&mut self) -> Result<Arrival, CliError> {
        let mut client = connect(&self.path).await?;
        let Some(watch) = &mut self.watch else {
            self.client = Some(client);
            return Ok(Arrival::Back { running: false, restarted: false });
        };
        let restarted = client.run() != watch.run;
        let after = Position { run: watch.run.clone(), seq: watch.seq };
        let (session, approves) = (watch.session.clone(), self.approves);
        let attach = Request::Attach { session, after: Some(after), approves };
        let reply = client.request(attach).await.map_err(|e| from_client(&self.path, e))?;
        let Reply::Attached { seq, running } = reply else {
            return Err(unexpected(&reply));
        };
        if restarted {
            watch.seq = seq;
            client.run().clone_into(&mut watch.run);
        }
        self.client = Some(client);
        Ok(Arrival::Back { running, restarted })
    }
}

async fn connect(path: &Path) -> Result<Client, CliError> {
    Client::connect(path).await.map_err(|e| from_client(path, e))
}

fn from_client(path: &Path, error: ClientError) -> CliError {
    match error {
        ClientError::Refused(body) => CliError::Refused(body),
        ClientError::Version { .. } => {
            CliError::Refused(ErrorBody::new(ErrorCode::Version, error.to_string()))
        }
        ClientError::NotUnderstood(why) => CliError::Failed(not_understood(&why)),
        ClientError::NoDaemon(..) | ClientError::Silent(..) => CliError::NoDaemon(error.to_string()),
        ClientError::Closed | ClientError::Failed(_) => {
            CliError::NoDaemon(format!("{}: {error}", path.display()))
        }
    }
}

fn not_understood(why: &str) -> String {
    format!("the daemon sent what does not fit ({why}); use bxctl and loopd of one version")
}

fn session(reply: Reply) -> Result<(SessionInfo, Vec<String>), CliError> {
    match reply {
        Reply::Session { info, differs } => Ok((info, differs)),
        reply => Err(unexpected(&reply)),
    }
}

/// An answer of the wrong kind.
#[must_use]
pub fn unexpected(reply: &Reply) -> CliError {
    let kind = serde_json::to_value(reply).ok();
    let kind = kind.as_ref().and_then(|v| v.get("reply")).and_then(|v| v.as_str()).unwrap_or("?");
    CliError::Failed(not_understood(&format!("the answer \"{kind}\"")))
}
