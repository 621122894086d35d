//! An answer: one request, or two where reasoning that the prompt opened is capped; its ids, and what it cost.

use std::time::Duration;

use crate::model::{CompletionRequest, Final, ModelError, Reply, ReplyParser, Stop, cap_text};
use crate::proto::{EventKind, TokenId, Usage, count};

use super::AgentError;
use super::cancel::Cancel;
use super::completion::{Ended, Streamed, show};
use super::ids::{Ids, ReadBack, resolve};
use super::request::Asked;
use super::slot::Claim;
use super::turn::Turn;

/// What came back.
pub(super) struct Answered {
    /// Why it is over.
    pub(super) ended: Ended,
    /// What the model wrote, parsed.
    pub(super) reply: Reply,
    /// What was sampled.
    pub(super) ids: Vec<TokenId>,
    /// What it cost.
    pub(super) usage: Usage,
    /// From the request to its end.
    pub(super) took: Duration,
}

/// One request of an answer, which has two where reasoning that the prompt opened is capped.
struct Part {
    streamed: Streamed,
    ids: Vec<TokenId>,
}

impl Part {
    /// Tokens from the cache, evaluated, generated.
    fn cost(&self, prompt: usize) -> (u64, u64, u64) {
        match &self.streamed.ended {
            Ended::Final(last) | Ended::ThinkingLimit(last) => {
                (last.cache_n, last.prompt_n, last.predicted_n)
            }
            _ => match self.streamed.cached {
                Some(cached) => (cached, count(prompt).saturating_sub(cached), count(self.ids.len())),
                None => (0, 0, 0),
            },
        }
    }
}

impl Turn {
    /// What came back, when the request has run to its end.
    pub(super) async fn answer(
        &self,
        asked: &Asked,
        streamed: Streamed,
        parser: ReplyParser,
        cancel: &Cancel,
    ) -> Result<Answered, AgentError> {
        let first = self.part(&asked.prompt, streamed, cancel).await?;
        if let Ended::ThinkingLimit(last) = first.streamed.ended {
            return self.after_thinking(asked, first, last, parser, cancel).await;
        }
        Ok(self.answered(asked, first, None, parser))
    }

    /// The second request of an answer: reasoning has reached its cap, and is closed if it is still open.
    async fn after_thinking(
        &self,
        asked: &Asked,
        mut first: Part,
        last: Final,
        mut parser: ReplyParser,
        cancel: &Cancel,
    ) -> Result<Answered, AgentError> {
        let mut prompt = asked.prompt.clone();
        prompt.extend_from_slice(&first.ids);
        let expected = count(prompt.len()).saturating_sub(1);
        let mut forced = Vec::new();
        if parser.in_reasoning()
            && let Some(tags) = &self.baseline.framing.reasoning
        {
            let ids = cancel.bound(self.patience(), self.agent.server.cap_ids(tags)).await;
            forced =
                ids.unwrap_or_else(|| Err(self.agent.server.stream_cut())).map_err(|e| self.cut_off(e))?;
            show(parser.feed(&cap_text(tags)), &mut |event| self.publish(event));
        }
        prompt.extend_from_slice(&forced);
        let used = count(first.ids.len().saturating_add(forced.len()));
        let max_tokens = asked.max_tokens.saturating_sub(used);
        if max_tokens == 0 {
            first.streamed.ended = Ended::Final(Final { stop: Stop::Limit, ..last });
            return Ok(self.answered(asked, first, None, parser));
        }
        let sampling = &self.baseline.sampling;
        let request =
            CompletionRequest { prompt: &prompt, max_tokens, sampling, thinking: None, calls: None };
        let look = |cached| self.look(expected, cached, &Claim::default(), false);
        let streamed = self.stream((&request, true), &mut parser, cancel, look).await;
        let streamed = streamed.map_err(|e| match e {
            AgentError::Model(e) => self.cut_off(e),
            e => e,
        })?;
        let second = self.part(&prompt, streamed, cancel).await?;
        Ok(self.answered(asked, first, Some((forced, second)), parser))
    }

    /// Between two requests of one answer, a server that went away has cut it off: what was shown is not asked
    /// for again by itself.
    fn cut_off(&self, error: ModelError) -> AgentError {
        AgentError::Model(if error.is_wait() { self.agent.server.stream_cut() } else { error })
    }

    async fn part(
        &self,
        prompt: &[TokenId],
        streamed: Streamed,
        cancel: &Cancel,
    ) -> Result<Part, AgentError> {
        // of a summary only the text counts
        if self.summing.get().is_some() {
            let ids = streamed.ids.iter().copied().map(Option::unwrap_or_default).collect();
            return Ok(Part { streamed, ids });
        }
        let ids = self.exact_ids(prompt, &streamed, cancel).await?;
        Ok(Part { streamed, ids })
    }

    fn answered(
        &self,
        asked: &Asked,
        first: Part,
        second: Option<(Vec<TokenId>, Part)>,
        parser: ReplyParser,
    ) -> Answered {
        let (held_back, reply) = parser.finish();
        show(held_back, &mut |event| self.publish(event));
        let (cache_n, mut prompt_n, mut predicted_n) = first.cost(asked.prompt.len());
        let Part { streamed: Streamed { mut ended, mut reasoning_tokens, mut took, .. }, mut ids } = first;
        if let Some((forced, second)) = second {
            let prompt = asked.prompt.len().saturating_add(ids.len()).saturating_add(forced.len());
            let (_, evaluated, generated) = second.cost(prompt);
            // what was forced counts as generated, as where the server forces it itself; beside it, only the
            // token that was sampled last has to be evaluated
            prompt_n =
                prompt_n.saturating_add(evaluated.saturating_sub(count(forced.len())).saturating_sub(1));
            predicted_n = predicted_n.saturating_add(count(forced.len())).saturating_add(generated);
            reasoning_tokens = reasoning_tokens.saturating_add(second.streamed.reasoning_tokens);
            took = took.saturating_add(second.streamed.took);
            ended = second.streamed.ended;
            ids.extend(forced);
            ids.extend(second.ids);
        }
        let usage = Usage { cache_n, prompt_n, predicted_n, reasoning_tokens, thinking_capped: reply.capped };
        Answered { ended, reply, ids, usage, took }
    }

    async fn exact_ids(
        &self,
        prompt: &[TokenId],
        streamed: &Streamed,
        cancel: &Cancel,
    ) -> Result<Vec<TokenId>, AgentError> {
        let session = self.conversation.id();
        let name = format!("ids-{session}.bin");
        let files = self.agent.slot.files();
        let slot = ReadBack { server: &self.agent.server, files, name: &name };
        let stop = (cancel, self.patience());
        let ids = resolve(slot, prompt, streamed.ids.clone(), &streamed.gaps, stop).await?;
        if let Ids::Replaced(_, why) = &ids {
            let message = format!(
                "the ids of some characters could not be read back ({why}); \
                 the text is right, but some tokens of it will be evaluated again"
            );
            log::warn!(SESSION:% = session, EVENT = "ids_replaced"; "session {session}: {message}");
            self.publish(EventKind::Notice { code: "ids_replaced".to_owned(), message });
        }
        Ok(ids.into_ids())
    }
}
