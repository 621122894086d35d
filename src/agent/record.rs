//! What a completion leaves: one durable append of all that becomes final with it, and what is told and counted.

use super::answer::Answered;
use super::batch::Batch;
use super::cancel::{Cancel, StopReason};
use super::completion::Ended;
use super::end::{End, reached};
use super::request::Asked;
use super::tools::Calls;
use super::turn::{Pending, Turn, millis};
use super::{AgentError, Counters};
use crate::config::Limit;
use crate::model::{Final, ParsedCall, Stop};
use crate::proto::{
    AssistantMessage, CallId, EventKind, Finish, LogRecord, Timestamp, ToolCall, TurnOutcome, Usage,
    UsageRecord, count,
};
use crate::store::Session;

impl Turn {
    /// Makes a completion final: one durable append of all that became final with it, up to the first call that
    /// waits for more than that. Gives the calls, or none when the turn has ended.
    pub(super) async fn record(
        &mut self,
        asked: Asked,
        answered: Answered,
        cancel: &Cancel,
    ) -> Result<Option<Calls>, AgentError> {
        if matches!(&answered.ended, Ended::Final(last) if last.truncated && last.stop != Stop::Limit) {
            return Err(AgentError::Shifted);
        }
        let (finish, end) = self.judge(&asked, &answered);
        if answered.ids.is_empty() && finish == Finish::Cancelled {
            // nothing was said, so there is nothing to keep but the end
            self.finish(end.unwrap_or_else(|| End::stopped(StopReason::Cancelled))).await?;
            return Ok(None);
        }
        let Answered { reply, mut ids, usage, took, .. } = answered;
        if finish == Finish::Cancelled && ids.last() == self.baseline.framing.user_open.first() {
            // the model ended its turn just before it was stopped: that token is the template's to write
            ids.pop();
        }
        let took = millis(took);
        let first = self.conversation.read(Session::next_call).await;
        let calls = if finish == Finish::ToolCalls { number(first, reply.calls) } else { Vec::new() };
        let silent = finish == Finish::Stop && reply.text.is_empty();
        let now = Timestamp::now();
        let message = AssistantMessage {
            time: now,
            turn: self.turn,
            text: reply.text,
            reasoning: reply.reasoning,
            tool_calls: calls.iter().map(|pending| pending.call.clone()).collect(),
            finish,
            prompt_ids: asked.new_ids().into(),
            ids: ids.into(),
        };
        // of an epoch's first prompt all is new
        let new_n = count(if asked.expected == 0 { asked.prompt.len() } else { asked.new });
        let mut list = asked.prompt;
        list.extend_from_slice(message.kept_ids());
        let context_n = count(list.len());
        let lost_n = asked.expected.saturating_sub(usage.cache_n);
        let mut batch = Batch::default();
        batch.add(LogRecord::AssistantMessage(message));
        batch.add(LogRecord::Usage(UsageRecord::new(now, self.turn, usage, took)));
        batch.then(move |turn| turn.account(usage, lost_n, took));
        let n_ctx = self.n_ctx();
        batch.tell(EventKind::Usage { usage, new_n, lost_n, context_n, n_ctx, finish, millis: took });
        for ToolCall { call, name, arguments } in calls.iter().map(|pending| pending.call.clone()) {
            batch.tell(EventKind::ToolCall { call, name, arguments });
        }
        if silent {
            let message = "the model ended its turn without a word".to_owned();
            batch.tell(EventKind::Notice { code: "no_answer".to_owned(), message });
        }
        let goes_on = match end {
            Some(end) => {
                self.end(end, &mut batch);
                None
            }
            None => Some(self.take_up(calls, &mut batch, cancel)),
        };
        self.append(&mut batch).await?;
        self.generated = self.generated.saturating_add(usage.predicted_n);
        self.agent.slot.holds((self.conversation.id(), self.epoch), list, &self.served).await;
        batch.told(self);
        Ok(goes_on)
    }

    /// How the completion finished, and how the turn ends with it, unless it goes on with tools.
    fn judge(&self, asked: &Asked, answered: &Answered) -> (Finish, Option<End>) {
        match &answered.ended {
            Ended::Stopped(reason) => (Finish::Cancelled, Some(End::stopped(*reason))),
            Ended::TimeUp => (Finish::Cancelled, Some(End::limit(reached(&self.limits, Limit::TurnSeconds)))),
            // the last two are followed by another request, whose end this is
            Ended::Final(Final { stop: Stop::Limit, .. }) | Ended::Cut(_) | Ended::ThinkingLimit(_) => {
                (Finish::Length, self.bounded(asked))
            }
            Ended::Final(_) if answered.reply.calls.is_empty() => {
                (Finish::Stop, Some(End { outcome: TurnOutcome::Done, detail: None }))
            }
            Ended::Final(_) => (Finish::ToolCalls, None),
        }
    }

    /// How the turn ends with an answer that met a limit; one that filled the context goes on in a new epoch.
    fn bounded(&self, asked: &Asked) -> Option<End> {
        match asked.bound {
            None if self.may_rebase() => None,
            None => Some(End::limit(self.full(&format!("the context of {} tokens is full", self.n_ctx())))),
            Some(limit) => Some(End::limit(reached(&self.limits, limit))),
        }
    }

    /// Counts what a completion cost.
    pub(super) fn spent(&self, usage: &Usage) {
        let counters = &self.agent.counters;
        Counters::add(&counters.cached, usage.cache_n);
        Counters::add(&counters.evaluated, usage.prompt_n);
        Counters::add(&counters.generated, usage.predicted_n);
    }

    /// Counts what a completion cost, and says so in the journal.
    fn account(&self, usage: Usage, lost_n: u64, millis: u64) {
        self.spent(&usage);
        let (session, turn) = (self.conversation.id(), self.turn);
        log::info!(
            SESSION:% = session, TURN:% = turn, EVENT = "completion", CACHE_N = usage.cache_n,
            PROMPT_N = usage.prompt_n, PREDICTED_N = usage.predicted_n, LOST_N = lost_n, MILLIS = millis;
            "turn {turn} of {session}: {} tokens from cache, {} evaluated, {} generated, {lost_n} evaluated again, {millis} ms",
            usage.cache_n, usage.prompt_n, usage.predicted_n
        );
    }
}

fn number(first: CallId, calls: Vec<ParsedCall>) -> Vec<Pending> {
    let mut next = first;
    let mut numbered = Vec::with_capacity(calls.len());
    for ParsedCall { name, arguments, problem, .. } in calls {
        numbered.push(Pending { call: ToolCall { call: next, name, arguments }, problem });
        next = next.next();
    }
    numbered
}
