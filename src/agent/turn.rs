//! The turn loop: completions and tools, from a durable message to a durable end.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::{Limit, Limits};
use crate::proto::{
    BaselineContent, Certainty, Epoch, ErrorCode, EventKind, LogRecord, ModelIdentity, Timestamp, ToolCall,
    TurnEnd, TurnId, TurnOutcome, count,
};

use super::answer::Answered;
use super::broken::answers;
use super::cancel::Cancel;
use super::conversation::Reservation;
use super::end::{End, reached};
use super::queue::Ticket;
use super::request::{Asked, Room};
use super::{Agent, AgentError, Conversation, Counters};

/// A call that the model made, recorded and without a result yet.
pub(super) struct Pending {
    pub(super) call: ToolCall,
    /// What is wrong with how it was written: it is answered with this, and not run.
    pub(super) problem: Option<String>,
}

/// A turn on its way.
pub(super) struct Turn {
    pub(super) agent: Rc<Agent>,
    pub(super) conversation: Rc<Conversation>,
    pub(super) baseline: Rc<BaselineContent>,
    /// The model as the server told at the newest request; before the first, the session's own.
    pub(super) served: ModelIdentity,
    /// Whether the slot is known to be the session's, so that nothing is asked before the next request: its
    /// first event tells if that was wrong.
    pub(super) trusting: bool,
    pub(super) limits: Rc<Limits>,
    pub(super) turn: TurnId,
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    /// The turn's place in the slot's queue; absent while it waits for a person.
    pub(super) ticket: Option<Ticket>,
    pub(super) requests: u64,
    pub(super) generated: u64,
    pub(super) calls: u64,
    pub(super) last_call: Option<(String, String)>,
    pub(super) repeats: u64,
    /// The epoch that its records go to.
    pub(super) epoch: Epoch,
    /// How often it has begun a new epoch.
    pub(super) rebases: u64,
    /// Whether nothing is kept free for a summary, because a new epoch would make no room.
    pub(super) cramped: bool,
    /// It is no turn, but a new epoch that somebody wants; events then name no turn.
    pub(super) by_hand: bool,
    /// While a summary is written: how many tokens of it there are, and the most. What is written is no answer.
    pub(super) summing: Cell<Option<(u64, u64)>>,
}

pub(super) fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

/// Runs a turn whose message is durable, to its durable end.
pub(super) async fn run(agent: Rc<Agent>, reservation: Reservation, turn: TurnId) {
    let mut turn = Turn::new(agent, &reservation, turn).await;
    if let Err(error) = turn.drive(&reservation.running.cancel).await {
        turn.fail(error).await;
    }
    // only now may the next turn begin, and whoever cancelled this one be answered
    drop(reservation);
}

impl Turn {
    pub(super) async fn new(agent: Rc<Agent>, reservation: &Reservation, turn: TurnId) -> Self {
        let conversation = Rc::clone(&reservation.conversation);
        let (baseline, epoch) =
            conversation.read(|s| (Rc::new(s.baseline().content().clone()), s.epoch())).await;
        let limits = agent.limits();
        let began = Instant::now();
        let seconds = Duration::from_secs(limits.turn_seconds);
        Self {
            agent,
            conversation,
            served: baseline.model.clone(),
            trusting: false,
            baseline,
            limits,
            turn,
            began,
            deadline: began.checked_add(seconds).unwrap_or(began),
            ticket: None,
            requests: 0,
            generated: 0,
            calls: 0,
            last_call: None,
            repeats: 0,
            epoch,
            rebases: 0,
            cramped: false,
            by_hand: false,
            summing: Cell::new(None),
        }
    }

    pub(super) fn publish(&self, kind: EventKind) {
        let kind = match (self.summing.get(), kind) {
            (Some((done, most)), EventKind::Text { .. } | EventKind::Reasoning { .. }) => {
                let done = done.saturating_add(1).min(most);
                self.summing.set(Some((done, most)));
                EventKind::Summary { done, most }
            }
            (_, kind) => kind,
        };
        let turn = (!self.by_hand).then_some(self.turn);
        self.agent.events.publish(self.conversation.id(), turn, kind);
    }

    pub(super) fn end_record(&self, end: &End) -> LogRecord {
        LogRecord::TurnEnd(TurnEnd {
            time: Timestamp::now(),
            turn: self.turn,
            outcome: end.outcome,
            detail: end.detail.clone(),
            millis: Some(millis(self.began.elapsed())),
        })
    }

    /// Tells everyone how the turn ended.
    pub(super) fn ended(&self, end: End, certainty: Certainty) {
        let index = match end.outcome {
            TurnOutcome::Done => 0,
            TurnOutcome::Cancelled => 1,
            TurnOutcome::Failed => 2,
            TurnOutcome::Limit => 3,
        };
        if let Some(counter) = self.agent.counters.turns.get(index) {
            Counters::add(counter, 1);
        }
        let session = self.conversation.id();
        let turn = self.turn;
        let why = end.detail.as_deref().map(|d| format!(": {d}")).unwrap_or_default();
        let outcome = format!("{:?}", end.outcome).to_lowercase();
        if end.outcome == TurnOutcome::Failed {
            log::warn!(SESSION:% = session, TURN:% = turn, EVENT = "turn_end", OUTCOME = outcome.as_str(); "turn {turn} of {session} {outcome}{why}");
        } else {
            log::info!(SESSION:% = session, TURN:% = turn, EVENT = "turn_end", OUTCOME = outcome.as_str(); "turn {turn} of {session} {outcome}{why}");
        }
        self.publish(EventKind::TurnEnd { outcome: end.outcome, detail: end.detail, certainty });
    }

    /// Ends the turn durably.
    pub(super) async fn finish(&self, end: End) -> Result<(), AgentError> {
        let mut session = self.conversation.session.lock().await;
        // a retry that came to nothing leaves the turn with the end that it has
        if session.sequence().open_turn().is_some() {
            let why = "what came of this tool could not be saved";
            let mut records = answers(session.sequence(), self.turn, Timestamp::now(), why);
            records.push(self.end_record(&end));
            session.append_all(records).await?;
        }
        drop(session);
        self.ended(end, Certainty::Durable);
        Ok(())
    }

    /// Ends the turn after an error, durably if the disk lets it.
    async fn fail(&self, error: AgentError) {
        let detail = error.to_string();
        let end = End { outcome: TurnOutcome::Failed, detail: Some(detail.clone()) };
        match &error {
            AgentError::Store(e) => self.publish(EventKind::Error { code: e.code(), message: detail }),
            _ => self.publish(EventKind::Error { code: ErrorCode::Model, message: detail }),
        }
        if self.finish(end.clone()).await.is_err() {
            self.conversation.set_unended(end.detail.clone().map(|why| (self.turn, why)));
            self.ended(end, Certainty::Unknown);
        }
    }

    async fn drive(&mut self, cancel: &Cancel) -> Result<(), AgentError> {
        loop {
            if let Err(end) = self.queue(cancel).await {
                return self.finish(end).await;
            }
            let (asked, answered) = match self.request(cancel).await {
                Ok(Ok(answered)) => answered,
                Ok(Err(end)) => return self.finish(end).await,
                // the server went away, or loads again, before it said anything
                Err(AgentError::Model(e)) if e.is_wait() || e.is_forbidden() => {
                    self.publish(EventKind::Waiting { why: e.to_string() });
                    self.agent.slot.doubt();
                    if let Err(end) = self.pause(cancel).await {
                        return self.finish(end).await;
                    }
                    continue;
                }
                Err(e) => return Err(e),
            };
            let Some(calls) = self.record(asked, answered, cancel).await? else {
                return Ok(());
            };
            if !self.run_tools(calls, cancel).await? {
                return Ok(());
            }
        }
    }

    /// Waits for the slot, unless the turn has it; that is not the turn's own time.
    async fn queue(&mut self, cancel: &Cancel) -> Result<(), End> {
        if self.ticket.is_some() {
            return Ok(());
        }
        let began = Instant::now();
        let ticket = self.agent.queue.join(Some(self.conversation.id().clone()));
        tokio::select! {
            biased;
            reason = cancel.stopped() => return Err(End::stopped(reason)),
            () = ticket.granted(|place| self.publish(EventKind::Queued { place: count(place) })) => {}
        }
        self.ticket = Some(ticket);
        self.deadline = self.deadline.checked_add(began.elapsed()).unwrap_or(self.deadline);
        Ok(())
    }

    /// Asks the model, when it can be asked, and follows its answer to the end.
    async fn request(&mut self, cancel: &Cancel) -> Result<Result<(Asked, Answered), End>, AgentError> {
        if self.requests >= self.limits.turn_requests {
            return Ok(Err(End::limit(reached(&self.limits, Limit::TurnRequests))));
        }
        let trusted = self.ask_trusting(cancel).await?;
        if trusted.is_none()
            && let Some(end) = self.ready(cancel).await?
        {
            return Ok(Err(end));
        }
        let asked = match trusted {
            Some(asked) => asked,
            None => match self.ask_or_make_room(cancel).await? {
                Ok(asked) => asked,
                Err(end) => return Ok(Err(end)),
            },
        };
        let answered = match self.complete(&asked, cancel).await? {
            Ok(answered) => answered,
            Err(end) => return Ok(Err(end)),
        };
        self.requests = self.requests.saturating_add(1);
        Ok(Ok((asked, answered)))
    }

    /// Makes the prompt without asking the server how it is, where that is known; `None` when it has to be
    /// asked.
    async fn ask_trusting(&mut self, cancel: &Cancel) -> Result<Option<Asked>, AgentError> {
        self.trusting = false;
        let Some(known) = self.agent.slot.surely_holds((self.conversation.id(), self.epoch)) else {
            return Ok(None);
        };
        self.served = known;
        // asked beside the counting of what is new, it takes no time; an answer that is wrong is seen by the first
        // event, but then a batch has been evaluated
        let (asked, there) = tokio::join!(self.ask(cancel), self.agent.server.slot_tokens());
        match asked {
            Ok(Room::Asked(asked)) if there.is_ok_and(|there| there.is_none_or(|n| n >= asked.expected)) => {
                self.trusting = true;
                Ok(Some(asked))
            }
            Ok(Room::Asked(_)) => {
                self.agent.slot.doubt();
                Ok(None)
            }
            // it went away since; and a context that is full may have been given more room
            Err(AgentError::Model(_)) | Ok(_) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes the prompt, and room for it where there is none.
    async fn ask_or_make_room(&mut self, cancel: &Cancel) -> Result<Result<Asked, End>, AgentError> {
        loop {
            match self.ask(cancel).await? {
                Room::Asked(asked) => return Ok(Ok(asked)),
                Room::Ended(end) => return Ok(Err(end)),
                Room::Full(why) if self.may_rebase() => {
                    if let Err(end) = self.make_room(why, cancel).await? {
                        return Ok(Err(end));
                    }
                }
                Room::Full(why) => return Ok(Err(End::limit(self.full(&why)))),
            }
        }
    }

    /// Lets a server that is not there a moment's time, which is not the turn's own.
    pub(super) async fn pause(&mut self, cancel: &Cancel) -> Result<(), End> {
        const PAUSE: Duration = Duration::from_millis(500);
        self.deadline = self.deadline.checked_add(PAUSE).unwrap_or(self.deadline);
        tokio::select! {
            biased;
            reason = cancel.stopped() => Err(End::stopped(reason)),
            () = tokio::time::sleep(PAUSE) => Ok(()),
        }
    }
}
