//! What is asked of the model: the prompt, what its cache should hold, and how the request goes.

use std::rc::Rc;

use tokio::time::Instant;

use crate::config::Limit;
use crate::model::{CompletionRequest, ModelError, ReplyParser, ThinkingCap};
use crate::proto::{EventKind, ReasoningTags, Timestamp, TokenId, count};

use super::answer::Answered;
use super::cancel::{Cancel, Patience};
use super::completion::{Ended, Look, Streamed, stream};
use super::end::{End, reached};
use super::opening::other_model;
use super::replay::OwnedPrompt;
use super::room::{Shares, tokenize};
use super::slot::{Claim, why_lacking};
use super::turn::Turn;
use super::{AgentError, Counters};

/// What is known of the prompt before a request.
pub(super) struct Asked {
    /// The whole prompt.
    pub(super) prompt: Vec<TokenId>,
    /// How much of it is new.
    pub(super) new: usize,
    /// How much of it an earlier completion left in the cache.
    pub(super) expected: u64,
    /// Whether the answer begins inside the model's reasoning: because the prompt opened it, or because an
    /// answer that was cut off there goes on.
    pub(super) thinking: bool,
    /// How many tokens may be generated …
    pub(super) max_tokens: u64,
    /// … and which limit that is; none where the context leaves no more.
    pub(super) bound: Option<Limit>,
}

/// Whether the next request has room in the context.
pub(super) enum Room {
    /// It has.
    Asked(Asked),
    /// It has not: why, in words.
    Full(String),
    /// The turn is over before.
    Ended(End),
}

impl Asked {
    /// What is not new.
    fn list(&self) -> &[TokenId] {
        self.prompt.get(..self.prompt.len().saturating_sub(self.new)).unwrap_or_default()
    }

    /// What is new.
    pub(super) fn new_ids(&self) -> Vec<TokenId> {
        self.prompt.iter().skip(self.list().len()).copied().collect()
    }
}

impl Turn {
    /// Waits for the model server, as long as it takes, and checks that it has the session's model.
    pub(super) async fn ready(&mut self, cancel: &Cancel) -> Result<Option<End>, AgentError> {
        if let Some(end) = self.served(cancel).await? {
            return Ok(Some(end));
        }
        match other_model(&self.baseline.model, &self.served) {
            Some(why) => Err(AgentError::OtherModel(why)),
            None => Ok(None),
        }
    }

    /// Waits for the model server, as long as it takes, and learns who it is.
    pub(super) async fn served(&mut self, cancel: &Cancel) -> Result<Option<End>, AgentError> {
        let server = &self.agent.server;
        let ready = async {
            server.wait_ready(|why| self.publish(EventKind::Waiting { why: why.to_owned() })).await?;
            // a tool may have run for long: who answers is known each time
            server.identity().await
        };
        let waited = Instant::now();
        let served = tokio::select! {
            biased;
            reason = cancel.stopped() => return Ok(Some(End::stopped(reason))),
            served = ready => served?,
        };
        // nor is waiting for the server the turn's own time
        self.deadline = self.deadline.checked_add(waited.elapsed()).unwrap_or(self.deadline);
        self.agent.n_ctx.set(Some(served.n_ctx));
        self.served = served;
        Ok(None)
    }

    /// Makes the prompt, and refuses one that cannot fit.
    pub(super) async fn ask(&self, cancel: &Cancel) -> Result<Room, AgentError> {
        let framing = &self.baseline.framing;
        let replayed = self.conversation.read(|session| {
            self.conversation
                .heard(session, |heard| OwnedPrompt::from(heard.prompt(framing, session.records())))
        });
        // nobody else waits for the session while the server counts
        let OwnedPrompt { list: mut prompt, new: pieces, thinking, expected } = replayed.await;
        let n_ctx = self.n_ctx();
        let counting = async {
            let new = tokenize(&self.agent.server, &pieces).await?;
            let kept_free = if self.cramped { 0 } else { self.summary_room(n_ctx).await? };
            Ok::<_, ModelError>((new, kept_free))
        };
        let (new, kept_free) = match cancel.unless(counting).await {
            Ok(counted) => counted?,
            Err(reason) => return Ok(Room::Ended(End::stopped(reason))),
        };
        prompt.extend_from_slice(&new);
        let room = n_ctx.saturating_sub(count(prompt.len())).saturating_sub(1).saturating_sub(kept_free);
        let reserve = Shares::of(&self.limits, n_ctx, framing.head.len()).reserve;
        if room < reserve {
            let why = format!(
                "the context is full: the prompt has {} of {n_ctx} tokens, and {reserve} are kept free for the answer \
                 ([limits] context_reserve_tokens)",
                prompt.len()
            );
            return Ok(Room::Full(why));
        }
        let left = self.limits.turn_tokens.saturating_sub(self.generated);
        if left == 0 {
            return Ok(Room::Ended(End::limit(reached(&self.limits, Limit::TurnTokens))));
        }
        let bounds = [
            (room, None),
            (left, Some(Limit::TurnTokens)),
            (self.limits.completion_tokens, Some(Limit::CompletionTokens)),
        ];
        let (max_tokens, bound) = bounds.into_iter().min_by_key(|(n, _)| *n).unwrap_or_default();
        Ok(Room::Asked(Asked { prompt, new: new.len(), expected, thinking, max_tokens, bound }))
    }

    /// The ways out of a full context.
    pub(super) fn full(&self, why: &str) -> String {
        let by_itself = match self.limits.turn_rebases {
            0 => "[limits] turn_rebases lets that happen by itself".to_owned(),
            most => format!("this turn has begun {most} by itself; {}", self.limits.hint(Limit::TurnRebases)),
        };
        format!(
            "{why}; `bxctl rebase` goes on from a summary in a new epoch ({by_itself}), or give the model server a larger \
             context (-c)"
        )
    }

    /// The slot's context, as the server said last.
    pub(super) fn n_ctx(&self) -> u64 {
        self.agent.n_ctx.get().unwrap_or(self.served.n_ctx)
    }

    pub(super) fn patience(&self) -> Patience {
        Patience::new(self.limits.shutdown_seconds)
    }

    /// Asks the model, and follows it to the end. Where the first event shows that the cache holds less than it
    /// should, the request is cut off before the loss is paid, the slot restored from what was saved, and the
    /// request sent again. While the slot is known to be the session's, that event is the only look at it.
    pub(super) async fn complete(
        &mut self,
        asked: &Asked,
        cancel: &Cancel,
    ) -> Result<Result<Answered, End>, AgentError> {
        let baseline = Rc::clone(&self.baseline);
        let framing = &baseline.framing;
        let tags = framing.reasoning.clone();
        let tags = tags.map(|tags| ReasoningTags { opened_by_prompt: asked.thinking, ..tags });
        let mut parser = ReplyParser::new(framing.tool_family, tags.as_ref());
        let thinking = tags.as_ref().map(|tags| ThinkingCap { tags, tokens: self.limits.thinking_tokens });
        let request = CompletionRequest {
            prompt: &asked.prompt,
            max_tokens: asked.max_tokens,
            sampling: &baseline.sampling,
            thinking,
            calls: tags.is_none().then_some(framing.tool_family),
        };
        let mut found = None;
        if std::mem::take(&mut self.trusting) {
            let look = |cached| if cached < asked.expected { Look::Cut } else { Look::Go };
            let streamed = self.stream((&request, true), &mut parser, cancel, look).await?;
            let Ended::Cut(cached) = streamed.ended else {
                return self.answer(asked, streamed, parser, cancel).await.map(Ok);
            };
            found = Some(cached);
            self.agent.slot.doubt();
            // another model may answer there now
            if let Some(end) = self.ready(cancel).await? {
                return Ok(Err(end));
            }
        }
        let (session, slot) = ((self.conversation.id(), self.epoch), &self.agent.slot);
        let claiming = slot.claim(session, asked.list(), (asked.expected, found), &self.served);
        let mut claim = cancel.bound(self.patience(), claiming).await.unwrap_or_default();
        let look = |cached| self.look(asked.expected, cached, &claim, true);
        let mut streamed = self.stream((&request, false), &mut parser, cancel, look).await?;
        if let Ended::Cut(cached) = streamed.ended {
            let restoring = slot.give_back(&mut claim, asked.list(), cached, &self.served);
            let _in_time = cancel.bound(self.patience(), restoring).await;
            let look = |cached| self.look(asked.expected, cached, &claim, false);
            streamed = self.stream((&request, false), &mut parser, cancel, look).await?;
        }
        streamed.credit(claim.found);
        self.answer(asked, streamed, parser, cancel).await.map(Ok)
    }

    pub(super) async fn stream(
        &self,
        request: (&CompletionRequest<'_>, bool),
        parser: &mut ReplyParser,
        cancel: &Cancel,
        look: impl FnMut(u64) -> Look,
    ) -> Result<Streamed, AgentError> {
        let stop = (cancel, self.patience());
        let server = &self.agent.server;
        Ok(stream(server, request, parser, stop, self.deadline, look, |event| self.publish(event)).await?)
    }

    /// Compares what the first event says is cached with what must be, before anything is evaluated. Tells of
    /// a loss, unless it can still be averted.
    pub(super) fn look(&self, expected: u64, cached: u64, claim: &Claim, may_cut: bool) -> Look {
        let cached = claim.found.map_or(cached, |found| found.min(cached));
        let lost = expected.saturating_sub(cached);
        if lost == 0 {
            return Look::Go;
        }
        if may_cut && claim.kept.as_ref().is_some_and(|kept| kept.manifest.tokens > cached) {
            return Look::Cut;
        }
        let session = self.conversation.id();
        let why = claim.why.as_deref().unwrap_or(why_lacking(cached));
        let message = format!("{lost} tokens of this conversation are evaluated again: {why}");
        let turn = self.turn;
        log::warn!(SESSION:% = session, TURN:% = turn, EVENT = "cache_lost", LOST_N = lost, CACHE_N = cached; "session {session}: {message}");
        Counters::add(&self.agent.counters.lost, lost);
        *self.agent.counters.last_loss.borrow_mut() =
            Some(format!("{} session {session}: {message}", Timestamp::now()));
        self.publish(EventKind::Notice { code: "cache_lost".to_owned(), message });
        Look::Go
    }
}
