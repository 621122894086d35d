//! An open session and the turn that it runs, if any.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::{Mutex, Notify};

use crate::proto::{Epoch, Framing, LogRecord, SessionId, Timestamp, TurnId};
use crate::store::Session;

use super::approval::Question;
use super::broken::closing_records;
use super::cancel::{Cancel, StopReason};
use super::error::AgentError;
use super::replay::Heard;
use super::summary::KeptFree;

/// An open session, with room for one turn at a time.
pub struct Conversation {
    id: SessionId,
    pub(super) session: Mutex<Session>,
    running: RefCell<Option<Rc<Running>>>,
    /// What the model has heard of an epoch, once that was made from its records.
    heard: RefCell<Option<(Epoch, Heard)>>,
    /// What its prompts keep free for a summary, once that is known.
    pub(super) kept_free: RefCell<Option<KeptFree>>,
    /// Why the newest turn has no end in the log, when this daemon knows.
    unended: RefCell<Option<(TurnId, String)>>,
}

/// A turn that runs or waits.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) turn: Cell<TurnId>,
    pub(super) cancel: Cancel,
    pub(super) question: RefCell<Option<Question>>,
    over: Cell<bool>,
    ended: Notify,
}

/// Holds the session's room for a turn; dropping it frees the room.
pub(super) struct Reservation {
    pub(super) conversation: Rc<Conversation>,
    pub(super) running: Rc<Running>,
}

impl Conversation {
    /// Wraps an open session.
    #[must_use]
    pub fn new(session: Session) -> Self {
        Self {
            id: session.id().clone(),
            session: Mutex::new(session),
            running: RefCell::new(None),
            heard: RefCell::new(None),
            kept_free: RefCell::new(None),
            unended: RefCell::default(),
        }
    }

    /// Closes the session: waits for what is under way, and gives back what it has of the disk and does not need.
    pub async fn close(self) {
        if let Err(e) = self.session.into_inner().close().await {
            log::warn!(SESSION:% = self.id; "{e}");
        }
    }

    /// The session's id.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The turn that runs or waits.
    #[must_use]
    pub fn running(&self) -> Option<TurnId> {
        self.running.borrow().as_ref().map(|running| running.turn.get())
    }

    pub(super) fn running_turn(&self) -> Option<Rc<Running>> {
        self.running.borrow().clone()
    }

    /// Why a turn has no end in the log: the error that ended it, when its end could not be saved.
    #[must_use]
    pub fn unended(&self) -> Option<(TurnId, String)> {
        self.unended.borrow().clone()
    }

    /// Takes over what an earlier opening of the session knew of [`unended`](Self::unended).
    pub fn set_unended(&self, unended: Option<(TurnId, String)>) {
        *self.unended.borrow_mut() = unended;
    }

    /// The records that close a turn without an end, with the reason where it is known; none when no turn is
    /// open.
    pub(super) fn closing(&self, session: &Session, now: Timestamp) -> Vec<LogRecord> {
        let open = session.sequence().open_turn();
        let why = self.unended().filter(|(turn, _)| Some(*turn) == open).map(|(_, why)| why);
        closing_records(session.sequence(), session.records(), now, why)
    }

    /// Closes a turn without an end, durably.
    pub(super) async fn close_turn(&self, session: &mut Session) -> Result<(), AgentError> {
        let closing = self.closing(session, Timestamp::now());
        if !closing.is_empty() {
            session.append_all(closing).await?;
        }
        Ok(())
    }

    /// Reads the session, between two of its appends.
    pub async fn read<T>(&self, look: impl FnOnce(&Session) -> T) -> T {
        look(&*self.session.lock().await)
    }

    /// What the model has heard of the session's epoch, for a prompt of the records that there are now.
    pub(super) fn heard<T>(&self, session: &Session, make: impl FnOnce(&mut Heard) -> T) -> T {
        let mut kept = self.heard.borrow_mut();
        let kept = kept.get_or_insert_with(|| (session.epoch(), Heard::new(framing(session))));
        if kept.0 != session.epoch() {
            *kept = (session.epoch(), Heard::new(framing(session)));
        }
        make(&mut kept.1)
    }

    /// Appends one record outside the turn, such as a name.
    ///
    /// # Errors
    /// As [`Session::append`].
    pub async fn append(&self, record: LogRecord) -> Result<(), AgentError> {
        Ok(self.session.lock().await.append(record).await?)
    }

    pub(super) fn reserve(self: &Rc<Self>) -> Result<Reservation, AgentError> {
        let mut place = self.running.borrow_mut();
        if let Some(running) = place.as_ref() {
            return Err(AgentError::Busy(self.id.clone(), running.turn.get()));
        }
        let running = Rc::new(Running {
            turn: Cell::default(),
            cancel: Cancel::default(),
            question: RefCell::default(),
            over: Cell::new(false),
            ended: Notify::new(),
        });
        *place = Some(Rc::clone(&running));
        Ok(Reservation { conversation: Rc::clone(self), running })
    }

    /// Asks the running turn to stop and returns when it has ended durably.
    ///
    /// # Errors
    /// When no turn runs.
    pub async fn stop(&self, reason: StopReason) -> Result<(), AgentError> {
        let Some(running) = self.running.borrow().clone() else {
            return Err(AgentError::Nothing(
                self.id.clone(),
                "no turn is running, so there is nothing to cancel",
            ));
        };
        running.cancel.stop(reason);
        loop {
            let ended = running.ended.notified();
            if running.over.get() {
                return Ok(());
            }
            ended.await;
        }
    }
}

fn framing(session: &Session) -> &Framing {
    &session.baseline().content().framing
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.conversation.running.borrow_mut().take();
        self.running.over.set(true);
        self.running.ended.notify_waiters();
    }
}
