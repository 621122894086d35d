//! Replay and the turn loop.
//!
//! Invariants:
//! - A user message is durable before the model is asked, a completion before anyone is told that it is
//!   final, a tool's start before the tool.
//! - The prompt of a request is the recorded list plus what is new; nothing earlier is rendered again.
//! - A session runs one turn at a time, and the slot one request at a time.
//! - No socket, no HTTP, no path: events go out through [`Events`], the model through
//!   [`crate::model::Server`], records through [`crate::store::Session`].

mod answer;
mod approval;
mod batch;
mod broken;
mod cancel;
mod carry;
mod completion;
mod conversation;
mod earlier;
mod end;
mod error;
mod ids;
mod opening;
#[cfg(test)]
mod properties;
mod queue;
mod rebase;
mod record;
mod replay;
mod request;
mod room;
mod send;
mod slot;
mod summary;
mod tools;
mod turn;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::config::{Limits, Unattended};
use crate::model::Server;
use crate::proto::{EventKind, SessionId, TurnId};
use crate::store::SlotFiles;
use crate::tool::Registry;

pub use cancel::StopReason;
pub use conversation::Conversation;
pub use error::AgentError;
pub use opening::{Settings, differences, freeze, other_model};
pub use queue::{SlotQueue, Ticket};
pub use replay::{Heard, Piece, Prompt};
use slot::Slot;

/// Where events go. Never blocks.
pub trait Events {
    /// Something happened in a session.
    fn publish(&self, session: &SessionId, turn: Option<TurnId>, kind: EventKind);
    /// How many clients watch a session whose people can be asked.
    fn approvers(&self, session: &SessionId) -> usize;
}

/// What the agent has counted since the daemon started.
#[derive(Debug, Default)]
pub struct Counters {
    /// Turns by how they ended: done, cancelled, failed, limit.
    pub turns: [Cell<u64>; 4],
    /// Tokens taken from the cache.
    pub cached: Cell<u64>,
    /// Tokens evaluated.
    pub evaluated: Cell<u64>,
    /// Tokens generated.
    pub generated: Cell<u64>,
    /// Tokens evaluated again.
    pub lost: Cell<u64>,
    /// The last loss of the cache, in words.
    pub last_loss: RefCell<Option<String>>,
}

impl Counters {
    fn add(counter: &Cell<u64>, n: u64) {
        counter.set(counter.get().saturating_add(n));
    }
}

/// Runs turns.
pub struct Agent {
    server: Rc<Server>,
    tools: Rc<Registry>,
    slot: Slot,
    limits: RefCell<Rc<Limits>>,
    settings: RefCell<Settings>,
    unattended: Cell<Unattended>,
    events: Rc<dyn Events>,
    queue: Rc<SlotQueue>,
    counters: Counters,
    stopping: Cell<bool>,
    /// The slot's context when the server was last asked.
    n_ctx: Cell<Option<u64>>,
}

impl Agent {
    /// An agent on one slot of one server.
    #[must_use]
    pub fn new(
        server: Rc<Server>,
        tools: Rc<Registry>,
        slot_files: Option<SlotFiles>,
        (limits, settings, unattended): (Limits, Settings, Unattended),
        events: Rc<dyn Events>,
    ) -> Rc<Self> {
        Rc::new(Self {
            slot: Slot::new(Rc::clone(&server), slot_files),
            server,
            tools,
            limits: RefCell::new(Rc::new(limits)),
            settings: RefCell::new(settings),
            unattended: Cell::new(unattended),
            events,
            queue: Rc::default(),
            counters: Counters::default(),
            stopping: Cell::new(false),
            n_ctx: Cell::new(None),
        })
    }

    /// The queue for the slot.
    #[must_use]
    pub fn queue(&self) -> &SlotQueue {
        &self.queue
    }

    /// The session whose tokens the slot holds, as far as this run of the daemon knows.
    #[must_use]
    pub fn slot_session(&self) -> Option<SessionId> {
        self.slot.holder()
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The limits from the next turn on, what new sessions and epochs are frozen with, and what happens to a call that
    /// somebody must allow when nobody is there.
    pub fn configure(&self, limits: Limits, settings: Settings, unattended: Unattended) {
        self.limits.replace(Rc::new(limits));
        self.settings.replace(settings);
        self.unattended.set(unattended);
    }

    /// What new sessions and epochs are frozen with.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings.borrow().clone()
    }

    /// Takes no more turns.
    pub fn stop_accepting(&self) {
        self.stopping.set(true);
    }

    /// Saves the slot's cache whenever no turn has used it for a while; never ends.
    pub async fn save_when_quiet(&self) {
        loop {
            let seconds = self.limits().slot_quiet_seconds;
            if seconds == 0 {
                tokio::time::sleep(Duration::from_secs(60)).await;
                continue;
            }
            self.slot.quiet(Duration::from_secs(seconds)).await;
            self.save_slot().await;
        }
    }

    /// Saves the slot's cache, when no turn has it, and keeps all saved ones within their budget.
    pub async fn save_slot(&self) {
        let Some(session) = self.slot.holder() else { return };
        let ticket = self.queue.join(Some(session));
        ticket.granted(|_| {}).await;
        self.slot.save().await;
        self.slot.evict(self.limits().slot_files_bytes).await;
    }

    /// The slot, if no turn has it or waits for it; turns wait until the ticket is dropped.
    #[must_use]
    pub fn idle_slot(&self) -> Option<Ticket> {
        self.queue.is_empty().then(|| self.queue.join(None))
    }

    /// Removes what was saved of a deleted session's cache.
    pub async fn forget_slot(&self, session: &SessionId) {
        self.slot.forget(session).await;
    }

    fn limits(&self) -> Rc<Limits> {
        Rc::clone(&self.limits.borrow())
    }
}
