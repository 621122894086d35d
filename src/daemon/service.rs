//! What each request of a client comes to: a call to the store or to the agent, and its answer.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::agent::{self, Agent, AgentError, Conversation, Settings, StopReason};
use crate::channel::{Hub, Peer, Service};
use crate::config::Config;
use crate::model::Server;
use crate::proto::{
    ApprovalWanted, BaselineContent, ErrorBody, ErrorCode, LogRecord, Named, Reply, Request, ServerState,
    SessionId, SessionInfo, SessionState, Timestamp, TurnId,
};
use crate::store::{Baseline, SessionError};
use crate::tool::Registry;

use super::errors::{of_agent, of_store};
use super::names;
use super::sessions::Sessions;

/// How long the model server may take to tell who it is, when a session is opened.
const KNOWN: Duration = Duration::from_secs(2);

/// Passages that one search answers with at most.
const SEARCH_MOST: u64 = 1000;

/// What new sessions and epochs are frozen with, as the configuration says.
pub(super) fn settings(config: &Config) -> Settings {
    Settings {
        system_prompt: config.model.system_prompt.clone(),
        tools: Registry::shown().to_owned(),
        sampling: config.model.sampling.clone(),
        reasoning: config.model.reasoning.clone(),
    }
}

/// The daemon, as the channel sees it.
pub(super) struct Daemon {
    pub(super) agent: Rc<Agent>,
    pub(super) tools: Rc<Registry>,
    pub(super) server: Rc<Server>,
    pub(super) sessions: Sessions,
    pub(super) hub: Rc<Hub>,
    pub(super) config: RefCell<Config>,
    pub(super) about: About,
    pub(super) stop: tokio::sync::Notify,
}

/// What does not change while the daemon runs.
pub(super) struct About {
    pub(super) home: String,
    pub(super) slot: u32,
    pub(super) url: String,
    pub(super) export_bytes: u64,
    pub(super) name_bytes: usize,
    pub(super) began: Instant,
}

impl Service for Daemon {
    async fn request(self: Rc<Self>, peer: Peer, request: Request) -> Result<Reply, ErrorBody> {
        self.answer(&peer, request).await
    }

    /// A tool with the network could approve its own calls, and read what its walls keep from it.
    fn admit(&self, pid: i32, uid: u32) -> Result<(), ErrorBody> {
        if crate::tool::is_a_tools(pid, uid) {
            let why = format!("process {pid} was started by a tool, and loopd does not talk to its tools");
            return Err(ErrorBody::new(ErrorCode::NotAllowed, why));
        }
        Ok(())
    }

    async fn attach(&self, session: &SessionId) -> Result<bool, ErrorBody> {
        let info = self.sessions.catalog().info(session).await.map_err(|e| of_store(&e))?;
        Ok(self.overlay(info).state == SessionState::Running)
    }
}

impl Daemon {
    async fn answer(&self, peer: &Peer, request: Request) -> Result<Reply, ErrorBody> {
        match request {
            Request::Hello { .. } | Request::Attach { .. } | Request::Detach { .. } => {
                Err(ErrorBody::new(ErrorCode::Internal, "this request is the channel's own"))
            }
            Request::Create { id, name } => self.create(id, name).await,
            Request::Open { session } => {
                let conversation = self.conversation(&session).await?;
                self.describe(&conversation).await
            }
            Request::List {} => {
                let sessions = self.sessions.catalog().list().await.map_err(|e| of_store(&e))?;
                Ok(Reply::Sessions {
                    sessions: sessions.into_iter().map(|info| self.overlay(info)).collect(),
                })
            }
            Request::Resolve { text } => {
                let id = self.sessions.catalog().resolve(&text).await.map_err(|e| of_store(&e))?;
                self.info(&id).await
            }
            Request::Latest {} => match self.sessions.catalog().latest().await.map_err(|e| of_store(&e))? {
                Some(id) => self.info(&id).await,
                None => Err(ErrorBody::new(
                    ErrorCode::NotFound,
                    "there is no session yet; begin one with: bxctl chat --new",
                )),
            },
            Request::Send { session, text } => {
                let conversation = self.conversation(&session).await?;
                let turn = self.agent.send(&conversation, text).await.map_err(|e| of_agent(&e))?;
                log::debug!(SESSION:% = session, TURN:% = turn; "client {} ({}) sent turn {turn}", peer.client, peer.name);
                Ok(Reply::Turn { session, turn })
            }
            Request::Retry { session } => {
                let conversation = self.conversation(&session).await?;
                let turn = self.agent.retry(&conversation).await.map_err(|e| of_agent(&e))?;
                Ok(Reply::Turn { session, turn })
            }
            Request::Rebase { session } => {
                let conversation = self.conversation(&session).await?;
                self.agent.rebase(&conversation).await.map_err(|e| of_agent(&e))?;
                Ok(Reply::Done {})
            }
            Request::Cancel { session } => {
                let conversation = self.conversation(&session).await?;
                conversation.stop(StopReason::Cancelled).await.map_err(|e| of_agent(&e))?;
                Ok(Reply::Done {})
            }
            Request::Approve { session, call, decision } => {
                let conversation = self.conversation(&session).await?;
                let by = format!("uid {} ({})", peer.uid, peer.name);
                conversation.decide(call, decision, by).await.map_err(|e| of_agent(&e))?;
                Ok(Reply::Done {})
            }
            Request::Rename { session, name } => self.rename(&session, name).await,
            Request::Delete { session } => self.delete(&session).await,
            Request::Export { session, from, turn } => {
                let page =
                    { self.sessions.catalog().records(&session, from, turn, self.about.export_bytes).await };
                let (records, next) = page.map_err(|e| of_store(&e))?;
                Ok(Reply::Records { records, next })
            }
            Request::Search { text, session, most } => self.search(&text, session.as_ref(), most).await,
            Request::Fork { session, turn, name } => self.fork(&session, turn, name).await,
            Request::Usage { session } => {
                let turns = self.sessions.catalog().usage(&session).await.map_err(|e| of_store(&e))?;
                Ok(Reply::Usage { turns })
            }
            Request::Status {} => Ok(Reply::Status { status: Box::new(self.status().await) }),
            Request::Doctor {} => Ok(Reply::Findings { findings: self.doctor().await }),
            Request::Metrics {} => Ok(Reply::Metrics { text: self.metrics() }),
            Request::Shutdown {} => {
                log::info!("client {} ({}, uid {}) asked loopd to end", peer.client, peer.name, peer.uid);
                // from its answer on, not only from when the daemon has got round to it
                self.agent.stop_accepting();
                self.stop.notify_one();
                Ok(Reply::Done {})
            }
        }
    }

    async fn conversation(&self, id: &SessionId) -> Result<Rc<Conversation>, ErrorBody> {
        self.sessions.get(id).await.map_err(|e| of_store(&e))
    }

    async fn info(&self, id: &SessionId) -> Result<Reply, ErrorBody> {
        let info = self.sessions.catalog().info(id).await.map_err(|e| of_store(&e))?;
        Ok(Reply::Session { info: self.overlay(info), differs: Vec::new() })
    }

    /// A session's state, and how its baseline differs from today's configuration.
    async fn describe(&self, conversation: &Conversation) -> Result<Reply, ErrorBody> {
        // a server that is away, or slow, is no reason to keep anybody waiting
        let served = tokio::time::timeout(KNOWN, self.server.identity()).await.ok().and_then(Result::ok);
        let settings = self.agent.settings();
        let differs = conversation
            .read(|s| agent::differences(s.baseline().content(), &settings, served.as_ref()))
            .await;
        let info = self.sessions.catalog().info(conversation.id()).await.map_err(|e| of_store(&e))?;
        Ok(Reply::Session { info: self.overlay(info), differs })
    }

    /// What the disk cannot know: whether a turn runs, and why one has no end.
    fn overlay(&self, mut info: SessionInfo) -> SessionInfo {
        let Some(conversation) = self.sessions.peek(&info.id) else { return info };
        if conversation.running().is_some() {
            info.state = SessionState::Running;
            info.reason = conversation.question().map(|wanted| {
                let ApprovalWanted { call, name, .. } = wanted;
                format!("call {call} ({name}) waits for an approval: bxctl approve {} {call} yes|no", info.id)
            });
        } else if info.state == SessionState::Interrupted
            && let Some((turn, why)) = conversation.unended()
        {
            info.reason = Some(format!("turn {turn} has no end: {why}"));
        }
        info
    }

    async fn create(&self, id: Option<SessionId>, name: Option<String>) -> Result<Reply, ErrorBody> {
        let name = name.map(|name| self.checked_name(&name)).transpose()?;
        let content = self.baseline().await?;
        let baseline = Baseline::freeze(content).map_err(|e| of_store(&SessionError::Baseline(e)))?;
        let created = self.sessions.catalog().create(id, baseline, self.about.slot, name).await;
        let conversation = self.sessions.adopt(created.map_err(|e| of_store(&e))?);
        log::info!(SESSION:% = conversation.id(), EVENT = "session_start"; "session {} begins", conversation.id());
        // it was frozen with today's configuration, so there is nothing that differs
        self.info(conversation.id()).await
    }

    async fn search(&self, text: &str, session: Option<&SessionId>, most: u64) -> Result<Reply, ErrorBody> {
        if text.trim().is_empty() {
            return Err(ErrorBody::new(ErrorCode::BadRequest, "there is no word to look for"));
        }
        let most = usize::try_from(most.min(SEARCH_MOST)).unwrap_or(usize::MAX);
        let found = self.sessions.catalog().search(text, session, most).await.map_err(|e| of_store(&e))?;
        Ok(Reply::Found { hits: found.hits, more: found.more, unread: found.unread })
    }

    async fn fork(
        &self,
        session: &SessionId,
        turn: Option<TurnId>,
        name: Option<String>,
    ) -> Result<Reply, ErrorBody> {
        let name = name.map(|name| self.checked_name(&name)).transpose()?;
        let forked = self.sessions.catalog().fork(session, turn, name).await.map_err(|e| of_store(&e))?;
        let conversation = self.sessions.adopt(forked);
        log::info!(SESSION:% = conversation.id(), EVENT = "session_start"; "session {} begins as a fork of {session}", conversation.id());
        self.describe(&conversation).await
    }

    /// A baseline for a new session. While the model server is away, that of the newest session serves, if it
    /// was made with today's configuration: the first turn checks that the model is still the same.
    async fn baseline(&self) -> Result<BaselineContent, ErrorBody> {
        if self.server.state().await.0 != ServerState::Ready
            && let Some(content) = self.newest_baseline().await
        {
            return Ok(content);
        }
        agent::freeze(&self.server, &self.agent.settings()).await.map_err(|e| {
            // whoever asks waits, and can stop waiting: a session that nobody waits for any more is not made
            let code = if e.is_wait() { ErrorCode::Waiting } else { ErrorCode::Model };
            ErrorBody::new(code, e.to_string())
        })
    }

    async fn newest_baseline(&self) -> Option<BaselineContent> {
        let id = self.sessions.catalog().latest().await.ok()??;
        let conversation = self.sessions.get(&id).await.ok()?;
        let content = conversation.read(|s| s.baseline().content().clone()).await;
        (agent::differences(&content, &self.agent.settings(), None).is_empty()
            && content.model.url == self.about.url)
            .then_some(content)
    }

    fn checked_name(&self, name: &str) -> Result<String, ErrorBody> {
        names::checked(name, self.about.name_bytes).map_err(|why| ErrorBody::new(ErrorCode::BadRequest, why))
    }

    async fn rename(&self, session: &SessionId, name: String) -> Result<Reply, ErrorBody> {
        let name = self.checked_name(&name)?;
        let conversation = self.conversation(session).await?;
        let record = LogRecord::Named(Named { time: Timestamp::now(), name });
        conversation.append(record).await.map_err(|e| of_agent(&e))?;
        Ok(Reply::Done {})
    }

    async fn delete(&self, session: &SessionId) -> Result<Reply, ErrorBody> {
        let nobody_opens_it = self.sessions.shut(session).await.map_err(|used| match used.running() {
            Some(turn) => of_agent(&AgentError::Busy(session.clone(), turn)),
            None => of_store(&SessionError::Locked(session.clone())),
        })?;
        self.sessions.catalog().delete(session).await.map_err(|e| of_store(&e))?;
        drop(nobody_opens_it);
        self.hub.forget(session);
        self.agent.forget_slot(session).await;
        log::info!(SESSION:% = session, EVENT = "session_deleted"; "session {session} was deleted");
        Ok(Reply::Done {})
    }
}
