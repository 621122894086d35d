//! How a turn begins: with a message, or with a failed one's second try.

use std::rc::Rc;

use crate::proto::{EventKind, LogRecord, Timestamp, TurnId, UserMessage};

use super::cancel::{Cancel, StopReason};
use super::conversation::Reservation;
use super::{Agent, AgentError, Conversation, room, turn};

impl Agent {
    /// Begins a turn: returns when the message is durable, while the turn goes on by itself.
    ///
    /// The future must not be dropped before its end.
    ///
    /// # Errors
    /// The message is empty or cannot fit, a turn runs already, or the disk refused; nothing is saved then.
    pub async fn send(
        self: &Rc<Self>,
        conversation: &Rc<Conversation>,
        text: String,
    ) -> Result<TurnId, AgentError> {
        self.accepting()?;
        if text.trim().is_empty() {
            return Err(AgentError::EmptyMessage);
        }
        let reservation = conversation.reserve()?;
        self.check_room(conversation, &reservation.running.cancel, &text).await?;
        let mut session = conversation.session.lock().await;
        let now = Timestamp::now();
        let mut records = conversation.closing(&session, now);
        let turn = session.next_turn();
        reservation.running.turn.set(turn);
        records.push(LogRecord::UserMessage(UserMessage { time: now, turn, text: text.clone() }));
        session.append_all(records).await?;
        drop(session);
        self.begin(reservation, turn, text, false);
        Ok(turn)
    }

    /// Asks again, with the same prompt and no new message, where the newest turn has no whole answer.
    ///
    /// The future must not be dropped before its end.
    ///
    /// # Errors
    /// There is nothing to ask again, a turn runs already, or the disk refused.
    pub async fn retry(self: &Rc<Self>, conversation: &Rc<Conversation>) -> Result<TurnId, AgentError> {
        self.accepting()?;
        let reservation = conversation.reserve()?;
        let mut session = conversation.session.lock().await;
        conversation.close_turn(&mut session).await?;
        let Some(turn) = session.sequence().retriable_turn() else {
            let why = "the newest turn has its answer, so there is nothing to ask again";
            return Err(AgentError::Nothing(conversation.id().clone(), why));
        };
        let text = session.records().iter().rev().find_map(|record| match record {
            LogRecord::UserMessage(message) if message.turn == turn => Some(message.text.clone()),
            LogRecord::Carried(carried) => carried.exchanges.last().map(|exchange| exchange.user.clone()),
            _ => None,
        });
        drop(session);
        reservation.running.turn.set(turn);
        self.begin(reservation, turn, text.unwrap_or_default(), true);
        Ok(turn)
    }

    /// Refuses a message that cannot fit. Only reads the session, so that nobody waits for it while the model
    /// server counts.
    async fn check_room(
        &self,
        conversation: &Conversation,
        cancel: &Cancel,
        text: &str,
    ) -> Result<(), AgentError> {
        let (taken, baseline) = conversation
            .read(|session| {
                let baseline = session.baseline().content();
                let framing = &baseline.framing;
                let taken = conversation.heard(session, |heard| {
                    room::Taken::of(framing, heard.prompt(framing, session.records()))
                });
                (taken, baseline.clone())
            })
            .await;
        let (limits, n_ctx) = (self.limits(), self.n_ctx.get().unwrap_or(baseline.model.n_ctx));
        tokio::select! {
            biased;
            reason = cancel.stopped() => Err(match reason {
                StopReason::Shutdown => AgentError::ShuttingDown,
                StopReason::Cancelled => {
                    let why = "the message was cancelled before it was saved";
                    AgentError::Nothing(conversation.id().clone(), why)
                }
            }),
            checked = room::check_message(&self.server, text, &taken, &baseline, (&limits, n_ctx)) => checked,
        }
    }

    pub(super) fn accepting(&self) -> Result<(), AgentError> {
        if self.stopping.get() { Err(AgentError::ShuttingDown) } else { Ok(()) }
    }

    fn begin(self: &Rc<Self>, reservation: Reservation, turn: TurnId, text: String, retry: bool) {
        let session = reservation.conversation.id().clone();
        log::info!(SESSION:% = session, TURN:% = turn, EVENT = "turn_start"; "turn {turn} of {session} begins");
        self.events.publish(&session, Some(turn), EventKind::TurnStart { text, retry });
        tokio::task::spawn_local(turn::run(Rc::clone(self), reservation, turn));
    }
}
