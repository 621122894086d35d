//! Asking people whether a tool may run.
//!
//! A decision is durable before the tool starts, and before whoever decided is told that it counts.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::config::{Limit, Unattended};
use crate::proto::{
    Approval, ApprovalWanted, CallId, Decision, EventKind, LogRecord, Timestamp, ToolCall, ToolOutcome,
};
use crate::tool::{Run, ToolReply};

use super::AgentError;
use super::batch::Batch;
use super::cancel::Cancel;
use super::conversation::{Conversation, Running};
use super::tools::Next;
use super::turn::Turn;

/// How long nobody may be there before that counts, once somebody was: a client may be coming back.
const AWAY: Duration = Duration::from_secs(10);
/// How often is looked whether somebody is there.
const LOOK: Duration = Duration::from_millis(250);

/// A call that waits for a decision.
#[derive(Debug)]
pub(super) struct Question {
    wanted: ApprovalWanted,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
struct Answer {
    decision: Decision,
    by: String,
    /// Of a person: told when the decision is on disk; dropped when it cannot be.
    durable: Option<oneshot::Sender<()>>,
}

/// Takes the question away, however the wait for its answer ends.
struct Asked<'a>(&'a Running);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.question.borrow_mut().take();
    }
}

impl Conversation {
    /// The call that waits for a person's decision.
    #[must_use]
    pub fn question(&self) -> Option<ApprovalWanted> {
        let running = self.running_turn()?;
        running.question.borrow().as_ref().map(|question| question.wanted.clone())
    }

    /// Decides about the call that waits for it, and returns when the decision is durable. `by` is recorded.
    ///
    /// # Errors
    /// That call does not wait, or no longer: it was decided, or its turn has ended. Or the disk refused.
    pub async fn decide(&self, call: CallId, decision: Decision, by: String) -> Result<(), AgentError> {
        let nothing = || AgentError::NotAsked(self.id().clone(), call);
        let running = self.running_turn().ok_or_else(nothing)?;
        let (durable, saved) = oneshot::channel();
        let asked = running.question.borrow_mut().take_if(|question| question.wanted.call == call);
        let Question { answer, .. } = asked.ok_or_else(nothing)?;
        answer.send(Answer { decision, by, durable: Some(durable) }).map_err(|_| nothing())?;
        saved.await.map_err(|_| nothing())
    }
}

impl Turn {
    /// Asks whether a call may run. The decision goes into the batch, with the call's start where it allows it and with its
    /// result where not, and whoever decided is told when that is durable. The time it takes is not the turn's, and the
    /// slot is free for other sessions meanwhile.
    pub(super) async fn approve(
        &mut self,
        call: ToolCall,
        run: Run,
        batch: &mut Batch,
        cancel: &Cancel,
    ) -> Option<Next> {
        let began = Instant::now();
        let decided = self.decided(call.call, &run, cancel).await;
        self.deadline = self.deadline.checked_add(began.elapsed()).unwrap_or(self.deadline);
        let Some(Answer { decision, by, durable }) = decided else {
            return self.result(call, not_decided(), batch);
        };
        let whom = if durable.is_some() { "the user".to_owned() } else { by.clone() };
        let (time, turn, number, name) = (Timestamp::now(), self.turn, call.call, run.tool().to_owned());
        batch.add(LogRecord::Approval(Approval { time, turn, call: number, decision, by: by.clone() }));
        batch.then(move |of| {
            let _gone = durable.map(|durable| durable.send(()));
            let what = if decision == Decision::Allow { "allowed" } else { "denied" };
            let (session, turn) = (of.conversation.id(), of.turn);
            log::info!(SESSION:% = session, TURN:% = turn, EVENT = "approval", DECISION = what; "turn {turn} of {session}: call {number} ({name}) was {what} by {by}");
            of.publish(EventKind::Approval { call: number, decision, by });
        });
        if decision == Decision::Allow {
            self.start(&call, batch);
            return Some(Next::Run(call, run));
        }
        let reply = ToolReply::denied(run.tool(), &whom);
        self.result(call, reply, batch)
    }

    /// The decision about a call; none when the turn was stopped meanwhile.
    async fn decided(&mut self, call: CallId, run: &Run, cancel: &Cancel) -> Option<Answer> {
        let (sender, answer) = oneshot::channel();
        let (name, arguments) = (run.tool().to_owned(), run.arguments().to_owned());
        let wanted = ApprovalWanted { call, name: name.clone(), arguments };
        let running = self.conversation.running_turn()?;
        running.question.replace(Some(Question { wanted: wanted.clone(), answer: sender }));
        let _asked = Asked(&running);
        self.ticket = None;
        let (session, turn) = (self.conversation.id().clone(), self.turn);
        log::info!(SESSION:% = session, TURN:% = turn, EVENT = "approval_wanted", TOOL = name.as_str(); "turn {turn} of {session} waits for an approval of call {call} ({name})");
        self.publish(EventKind::ApprovalWanted { wanted });
        let limit = self.limits.approval_seconds;
        tokio::select! {
            biased;
            _ = cancel.stopped() => None,
            Ok(answer) = answer => Some(answer),
            why = self.nobody() => Some(unasked(why)),
            () = tokio::time::sleep(Duration::from_secs(limit)) => {
                let raise = self.limits.hint(Limit::ApprovalSeconds);
                Some(unasked(format!("loopd: nobody answered within {limit} seconds ({raise})")))
            }
        }
    }

    /// Returns, with the reason for a denial, when nobody is there who could answer and the configuration denies
    /// then.
    async fn nobody(&self) -> String {
        let session = self.conversation.id();
        let mut since = None;
        loop {
            if self.agent.events.approvers(session) > 0 {
                since = Some(Instant::now());
            }
            let away = since.is_none_or(|seen: Instant| seen.elapsed() >= AWAY);
            if away && self.agent.unattended.get() == Unattended::Deny {
                return "loopd: nobody is there to approve it ([tools] unattended = \"deny\")".to_owned();
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A denial by nobody.
fn unasked(by: String) -> Answer {
    Answer { decision: Decision::Deny, by, durable: None }
}

/// The result of a call whose turn ended before it ran.
pub(super) fn not_run() -> ToolReply {
    ToolReply::new(ToolOutcome::Error, "Not run: the turn was ended before this call.")
}

/// The result of a call whose turn ended before anybody had decided about it.
pub(super) fn not_decided() -> ToolReply {
    let why = "Not run: the turn was ended while the call waited for an approval; nobody is asked any more.";
    ToolReply::new(ToolOutcome::Error, why)
}
