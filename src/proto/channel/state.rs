//! How sessions, the daemon and the model server are.

use serde::{Deserialize, Serialize};

use crate::proto::{Epoch, SessionId, Timestamp};

/// One session, as lists show it. All of it is derived from the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// Its name, when it has one.
    pub name: Option<String>,
    /// The beginning of its first message, in one line.
    #[serde(default)]
    pub title: Option<String>,
    /// Whether it opens, and whether it is busy.
    pub state: SessionState,
    /// When it began; absent when not even that can be read.
    pub started: Option<Timestamp>,
    /// When its last record was written.
    pub last: Option<Timestamp>,
    /// User and assistant messages.
    pub messages: u64,
    /// Turns.
    pub turns: u64,
    /// Tokens of context in use.
    pub context_n: u64,
    /// The newest epoch.
    pub epoch: Epoch,
    /// The model's name.
    pub model: Option<String>,
    /// Why it is damaged or interrupted, or what its running turn waits for.
    pub reason: Option<String>,
}

impl SessionInfo {
    /// What people know it by: its name, else its title.
    #[must_use]
    pub fn name_or_title(&self) -> Option<&str> {
        self.name.as_deref().or(self.title.as_deref())
    }
}

/// A session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// It opens, and its newest turn has ended.
    Ok,
    /// A turn runs or waits.
    Running,
    /// Its newest turn has no end: the daemon stopped, or the disk refused, in the middle of it.
    Interrupted,
    /// It does not open.
    Damaged,
}

/// What the model server does, as far as the daemon knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// It answers.
    Ready,
    /// It loads its model.
    Loading,
    /// Nobody answers.
    Unreachable,
    /// It answers with an error.
    Failing,
}

/// The daemon's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Name and version.
    pub daemon: String,
    /// Its process.
    pub pid: u32,
    /// Since when it runs, in seconds.
    pub uptime_s: u64,
    /// Where the sessions are.
    pub home: String,
    /// The pinned slot.
    pub slot: u32,
    /// The model server's address, without credentials.
    pub url: String,
    /// What the server does.
    pub server: ServerState,
    /// In words, when it is not ready.
    pub server_detail: Option<String>,
    /// The model's name.
    pub model: Option<String>,
    /// The slot's context.
    pub n_ctx: Option<u64>,
    /// The session whose tokens are in the slot.
    pub slot_session: Option<SessionId>,
    /// The session whose turn runs.
    pub running: Option<SessionId>,
    /// Turns that wait for the slot.
    pub waiting: u64,
    /// Sessions held in memory.
    pub open_sessions: u64,
    /// Clients connected.
    pub clients: u64,
    /// How long the oldest unfinished write or sync has been under way, in milliseconds.
    pub oldest_sync_ms: u64,
    /// Tokens evaluated again since the daemon started.
    pub lost_n: u64,
    /// The last loss of the cache, in words.
    pub last_loss: Option<String>,
}
