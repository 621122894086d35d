//! A new epoch: a baseline of today, a summary of what was said, and the last turns as they were.
//!
//! Until the new epoch is durable, nothing of this is written: whatever ends it before leaves the session
//! where it was.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::ModelError;
use crate::proto::{
    BaselineContent, Carried, EventKind, Exchange, LogRecord, Summary, Timestamp, TurnId, TurnOutcome, count,
};
use crate::store::{Baseline, SessionError};

use super::cancel::{Cancel, StopReason};
use super::carry::{Past, same_ids};
use super::conversation::Reservation;
use super::end::End;
use super::opening::{Settings, differences, freeze};
use super::room::{Shares, tokenize};
use super::summary::{new_room, opening};
use super::turn::Turn;
use super::{Agent, AgentError, Conversation};

/// What the next epoch begins with.
struct Next {
    content: BaselineContent,
    carried: Option<Carried>,
    /// In words.
    told: String,
}

/// Why no epoch begins.
enum Stopped {
    /// It would be as full as this one, or the same.
    Nothing(End),
    /// Anything else.
    End(End),
}

impl From<StopReason> for Stopped {
    fn from(reason: StopReason) -> Self {
        Self::End(End::stopped(reason))
    }
}

impl From<Stopped> for End {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Nothing(end) | Stopped::End(end) => end,
        }
    }
}

impl Agent {
    /// Begins a new epoch by hand: returns when that has begun; what comes of it is told by events.
    ///
    /// The future must not be dropped before its end.
    ///
    /// # Errors
    /// A turn runs, the daemon ends, or the disk refused.
    pub async fn rebase(self: &Rc<Self>, conversation: &Rc<Conversation>) -> Result<(), AgentError> {
        self.accepting()?;
        let reservation = conversation.reserve()?;
        let mut session = conversation.session.lock().await;
        conversation.close_turn(&mut session).await?;
        let turn = TurnId(session.next_turn().0.saturating_sub(1));
        drop(session);
        tokio::task::spawn_local(by_hand(Rc::clone(self), reservation, turn));
        Ok(())
    }
}

async fn by_hand(agent: Rc<Agent>, reservation: Reservation, turn: TurnId) {
    let mut turn = Turn::new(agent, &reservation, turn).await;
    turn.by_hand = true;
    let cancel = &reservation.running.cancel;
    let end = match turn.wait_and_rebase(cancel).await {
        Ok(Ok(())) => None,
        Ok(Err(end)) => Some(end),
        Err(e) => Some(End { outcome: TurnOutcome::Failed, detail: Some(e.to_string()) }),
    };
    if let Some(End { outcome, detail }) = end {
        let detail = detail.unwrap_or_else(|| "it was cancelled".to_owned());
        let session = turn.conversation.id();
        log::warn!(SESSION:% = session, EVENT = "rebase_failed"; "session {session} begins no new epoch: {detail}");
        turn.rebased(outcome, detail).await;
    }
    drop(reservation);
}

impl Turn {
    async fn rebased(&self, outcome: TurnOutcome, detail: String) {
        let epoch = self.conversation.read(|session| session.epoch()).await;
        self.publish(EventKind::Rebased { outcome, epoch, detail });
    }

    /// By hand: takes the slot, waits for the server as long as it takes, and begins the epoch.
    async fn wait_and_rebase(&mut self, cancel: &Cancel) -> Result<Result<(), End>, AgentError> {
        let ticket = self.agent.queue.join(Some(self.conversation.id().clone()));
        let queued = ticket.granted(|place| self.publish(EventKind::Queued { place: count(place) }));
        tokio::select! {
            biased;
            reason = cancel.stopped() => return Ok(Err(End::stopped(reason))),
            () = queued => {}
        }
        self.deadline = Instant::now()
            .checked_add(Duration::from_secs(self.limits.turn_seconds))
            .unwrap_or(self.deadline);
        loop {
            if let Some(end) = self.served(cancel).await? {
                return Ok(Err(end));
            }
            match self.rebase(None, cancel).await {
                Err(AgentError::Model(e)) if e.is_wait() || e.is_forbidden() => {
                    self.publish(EventKind::Waiting { why: e.to_string() });
                    if let Err(end) = self.pause(cancel).await {
                        return Ok(Err(end));
                    }
                }
                done => return done.map(|done| done.map_err(End::from)),
            }
        }
    }

    /// Whether the context may make room by itself, once more in this turn.
    pub(super) fn may_rebase(&self) -> bool {
        self.rebases < self.limits.turn_rebases
    }

    /// Begins the next epoch where the context is full, in the middle of a turn or before it. Where that would
    /// make no room, what is kept free for a summary is given up.
    pub(super) async fn make_room(
        &mut self,
        why: String,
        cancel: &Cancel,
    ) -> Result<Result<(), End>, AgentError> {
        match self.rebase(Some(why), cancel).await? {
            Err(Stopped::Nothing(_)) if !self.cramped => {
                self.cramped = true;
                Ok(Ok(()))
            }
            Err(Stopped::Nothing(end) | Stopped::End(end)) => Ok(Err(end)),
            Ok(()) => {
                self.rebases = self.rebases.saturating_add(1);
                self.cramped = false;
                Ok(Ok(()))
            }
        }
    }

    /// Begins the next epoch. The slot is the session's, and the server has told who it is.
    async fn rebase(
        &mut self,
        why: Option<String>,
        cancel: &Cancel,
    ) -> Result<Result<(), Stopped>, AgentError> {
        let next = match self.next_epoch(why, cancel).await? {
            Ok(next) => next,
            Err(stopped) => return Ok(Err(stopped)),
        };
        if let Some(reason) = cancel.reason() {
            return Ok(Err(Stopped::End(End::stopped(reason))));
        }
        let Next { content, carried, told } = next;
        let baseline = Baseline::freeze(content.clone()).map_err(SessionError::Baseline)?;
        let records = carried.map(LogRecord::Carried).into_iter().collect();
        let mut session = self.conversation.session.lock().await;
        session.begin_epoch(baseline, records).await?;
        let epoch = session.epoch();
        drop(session);
        (self.baseline, self.epoch) = (Rc::new(content), epoch);
        let id = self.conversation.id();
        self.agent.slot.begun(id).await;
        log::info!(SESSION:% = id, EVENT = "epoch", EPOCH:% = epoch; "session {id} begins epoch {epoch}: {told}");
        self.rebased(TurnOutcome::Done, told).await;
        Ok(Ok(()))
    }

    /// All that the next epoch begins with; nothing is written yet.
    async fn next_epoch(
        &mut self,
        why: Option<String>,
        cancel: &Cancel,
    ) -> Result<Result<Next, Stopped>, AgentError> {
        let old = Rc::clone(&self.baseline);
        let settings = self.agent.settings();
        let differs = differences(&old, &settings, Some(&self.served));
        let content = match cancel.unless(self.new_baseline(&settings, &differs)).await {
            Ok(content) => content?,
            Err(reason) => return Ok(Err(reason.into())),
        };
        let (records, goes_on) =
            self.conversation.read(|s| (s.records().to_vec(), s.sequence().retriable_turn())).await;
        let past = Past::of(&records, goes_on);
        let head = content.framing.head.len();
        if past.is_empty() {
            let told = words(&differs, &[], count(head), &content);
            return Ok(Ok(Next { content, carried: None, told }));
        }
        let how = same_ids(&old, &content);
        let (server, n_ctx) = (&self.agent.server, content.model.n_ctx);
        let shares = Shares::of(&self.limits, n_ctx, head);
        let choosing = async {
            let room = new_room(server, &content.framing, &self.limits, n_ctx).await?;
            let most = room.min(shares.kept);
            Ok::<_, ModelError>((past.choose(server, &content.framing, how, most).await?, most))
        };
        let (kept, most) = match cancel.unless(choosing).await {
            Ok(chosen) => chosen?,
            Err(reason) => return Ok(Err(reason.into())),
        };
        let summary = if !past.is_all(kept) {
            if let Some(why) = why {
                let message = format!("{why}: the conversation goes on in a new epoch, from a summary");
                self.publish(EventKind::Notice { code: "rebase".to_owned(), message });
            }
            match self.summary((&past, kept), (how, &content), cancel).await? {
                Ok(summary) => Some(summary),
                Err(end) => return Ok(Err(Stopped::End(end))),
            }
        } else if self.by_hand && !differs.is_empty() {
            past.summary.map(|summary| Summary { cost: None, ..summary.clone() })
        } else {
            return Ok(Err(Stopped::Nothing(self.nothing_to_do(most))));
        };
        let before = summary.as_ref().map(|summary| opening(&summary.text)).unwrap_or_default();
        let rendered = past.render(&content.framing, how, kept, &before);
        let ids = match cancel.unless(tokenize(&self.agent.server, &rendered.pieces)).await {
            Ok(ids) => ids?,
            Err(reason) => return Ok(Err(reason.into())),
        };
        let tokens = count(head.saturating_add(ids.len()));
        if tokens.saturating_add(shares.reserve) >= n_ctx {
            return Ok(Err(Stopped::End(End::limit(format!(
                "the newest turn alone is too long for the context: with it, a new epoch's prompt would have {tokens} of \
                 {n_ctx} tokens; give the model server a larger context (-c), or begin a new session"
            )))));
        }
        let exchanges = past.exchanges(kept);
        let told = words(&differs, &exchanges, tokens, &content);
        let carried = Carried {
            time: Timestamp::now(),
            turn: past.goes_on(),
            summary,
            exchanges,
            ends: rendered.ends,
            prompt_ids: ids.into(),
        };
        Ok(Ok(Next { content, carried: Some(carried), told }))
    }

    /// Today's configuration and model. Where nothing of it is new, nor is the framing.
    async fn new_baseline(
        &self,
        settings: &Settings,
        differs: &[String],
    ) -> Result<BaselineContent, ModelError> {
        if differs.is_empty() {
            return Ok(BaselineContent {
                model: self.served.clone(),
                ..BaselineContent::clone(&self.baseline)
            });
        }
        freeze(&self.agent.server, settings).await
    }

    /// A new epoch would be as full as this one, or no other.
    fn nothing_to_do(&self, most: u64) -> End {
        if self.by_hand {
            return End::failed(format!(
                "nothing has changed, and the whole conversation is within the {most} tokens that a new epoch keeps word \
                 for word ([limits] kept_tokens): the new one would be the same"
            ));
        }
        End::limit(format!(
            "the context is full, and nothing of this conversation is left to summarise: its newest turns, of {most} \
             tokens at most, are kept word for word; give the model server a larger context (-c), or begin a new session"
        ))
    }
}

/// What the new epoch is, in words.
fn words(differs: &[String], kept: &[Exchange], tokens: u64, content: &BaselineContent) -> String {
    let mut words = match (kept.first(), kept.last()) {
        (Some(first), Some(last)) if first.turn == last.turn => {
            format!("turn {} stays as it was, ", first.turn)
        }
        (Some(first), Some(last)) => format!("turns {} to {} stay as they were, ", first.turn, last.turn),
        _ => String::new(),
    };
    words.push_str(&format!("{tokens} of {} tokens of context are in use", content.model.n_ctx));
    if !differs.is_empty() {
        words.push_str(&format!("; new in it: {}", differs.join(", ")));
    }
    words
}
