//! What of an epoch goes on in the next one: the last turns, as many as may, and the turn that has no answer yet.

use crate::model::{ModelError, Server, Special};
use crate::proto::{
    AssistantMessage, BaselineContent, CarriedEnd, Exchange, Framing, LogRecord, Summary, TokenId, TurnId,
    count,
};

use super::replay::{OwnedPiece, Rendering};

/// An epoch, as turns.
pub(super) struct Past<'a> {
    /// The summary that the epoch itself began with.
    pub(super) summary: Option<&'a Summary>,
    /// Its turns, those that it took over first.
    turns: Vec<Turn<'a>>,
    /// Whether the last turn has no whole answer, and goes on.
    goes_on: bool,
    /// Whether the epoch took something over, and whether the assistant has spoken in it.
    took_over: bool,
    spoke: bool,
    /// Whether thoughts were left out of it.
    #[cfg(test)]
    pub(super) drops_a_thought: bool,
}

/// A turn, with its tools.
struct Turn<'a> {
    turn: TurnId,
    user: &'a str,
    steps: Vec<Step<'a>>,
}

/// An answer, or a part of one, with what its tools gave.
#[derive(Default)]
struct Step<'a> {
    /// Of a turn that was taken over: what was said.
    said: Option<&'a str>,
    /// Else: the messages, of which each goes on where the one before was cut off.
    messages: Vec<&'a AssistantMessage>,
    results: Vec<&'a str>,
}

impl Step<'_> {
    fn text(&self) -> String {
        self.said.into_iter().chain(self.messages.iter().map(|m| m.text.as_str())).collect()
    }

    /// The newest tokens of what was written, `most` at most.
    fn newest(&self, most: usize) -> &[TokenId] {
        let ids = self.messages.last().map(|message| message.kept_ids()).unwrap_or_default();
        ids.get(ids.len().saturating_sub(most)..).unwrap_or_default()
    }
}

impl Turn<'_> {
    /// Leaves out what was only thought since something was last said or called: the answer that goes on thinks
    /// anew. Tells whether there was any.
    fn drop_thoughts(&mut self) -> bool {
        let mut dropped = false;
        let Some(step) = self.steps.last_mut().filter(|step| step.results.is_empty()) else {
            return dropped;
        };
        while step.messages.pop_if(|m| m.text.trim().is_empty() && m.tool_calls.is_empty()).is_some() {
            dropped = true;
        }
        if step.messages.is_empty() && step.said.is_none() {
            self.steps.pop();
        }
        dropped
    }
}

/// Which of an epoch's turns go on word for word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    /// The first turn, by its place.
    from: usize,
    /// Of the turn that goes on: the first step.
    steps_from: usize,
    /// Of an answer in it that was cut off and is too long: the newest tokens; else all.
    tail: Option<usize>,
}

/// How assistants' messages are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum As {
    /// By their ids, with their tools.
    Ids,
    /// By what was said: the ids are another model's.
    Text,
}

impl<'a> Past<'a> {
    /// Takes an epoch's records apart; `goes_on` is the turn without a whole answer.
    pub(super) fn of(records: &'a [LogRecord], goes_on: Option<TurnId>) -> Self {
        let mut past = Self {
            summary: None,
            turns: Vec::new(),
            goes_on: goes_on.is_some(),
            took_over: false,
            spoke: false,
            #[cfg(test)]
            drops_a_thought: false,
        };
        for record in records {
            match record {
                LogRecord::Carried(carried) => {
                    past.summary = carried.summary.as_ref();
                    past.took_over = true;
                    past.turns.extend(carried.exchanges.iter().map(|exchange| {
                        let said = Some(exchange.assistant.as_str()).filter(|said| !said.is_empty());
                        let step = said.map(|said| Step { said: Some(said), ..Step::default() });
                        Turn { turn: exchange.turn, user: &exchange.user, steps: step.into_iter().collect() }
                    }));
                }
                LogRecord::UserMessage(m) => {
                    past.turns.push(Turn { turn: m.turn, user: &m.text, steps: Vec::new() });
                }
                LogRecord::AssistantMessage(message) => {
                    past.spoke = true;
                    let Some(turn) = past.turns.last_mut() else { continue };
                    match turn.steps.last_mut().filter(|step| step.results.is_empty()) {
                        Some(step) => step.messages.push(message),
                        None => turn.steps.push(Step { messages: vec![message], ..Step::default() }),
                    }
                }
                LogRecord::ToolResult(result) => {
                    if let Some(step) = past.turns.last_mut().and_then(|turn| turn.steps.last_mut()) {
                        step.results.push(&result.content);
                    }
                }
                _ => {}
            }
        }
        if let Some(turn) = past.turns.last_mut().filter(|_| goes_on.is_some()) {
            let _dropped = turn.drop_thoughts();
            #[cfg(test)]
            (past.drops_a_thought = _dropped);
        }
        past
    }

    /// The newest turns, whatever they cost; a turn with an answer whole.
    #[cfg(test)]
    pub(super) fn newest(&self, turns: usize, steps: usize) -> Kept {
        let least = usize::from(self.goes_on);
        let from = self.turns.len().saturating_sub(turns.max(least));
        let last = self.turns.last().filter(|_| self.goes_on && from + 1 == self.turns.len());
        let steps_from = last.map_or(0, |turn| turn.steps.len().saturating_sub(steps));
        Kept { from, steps_from, tail: None }
    }

    /// Whether nothing was said.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.summary.is_none()
    }

    /// The turn that goes on.
    pub(super) fn goes_on(&self) -> Option<TurnId> {
        self.turns.last().filter(|_| self.goes_on).map(|turn| turn.turn)
    }

    /// Whether all goes on word for word. Where more was said since the epoch began with what it took over, that
    /// stands in its prompt in more words than are known of it here.
    pub(super) fn is_all(&self, kept: Kept) -> bool {
        kept == Kept { from: 0, steps_from: 0, tail: None } && !(self.took_over && self.spoke)
    }

    /// The last turn of which something is left out.
    pub(super) fn through(&self, kept: Kept) -> TurnId {
        let last_out = if kept.steps_from > 0 { kept.from } else { kept.from.saturating_sub(1) };
        self.turns.get(last_out).map(|turn| turn.turn).unwrap_or_default()
    }

    /// As many turns as have at most `most` tokens together, the newest first; of the turn that goes on at
    /// least its message and its last step.
    pub(super) async fn choose(
        &self,
        server: &Server,
        framing: &Framing,
        how: As,
        most: u64,
    ) -> Result<Kept, ModelError> {
        let cost = Cost { server, framing, how };
        let mut left = most;
        let mut kept = Kept { from: self.turns.len(), steps_from: 0, tail: None };
        for (place, turn) in self.turns.iter().enumerate().rev() {
            let last = self.goes_on && place.saturating_add(1) == self.turns.len();
            let mut price = cost.user(turn.user).await?;
            if !last && price > left {
                break;
            }
            let mut steps_from = turn.steps.len();
            let mut tail = None;
            for (at, step) in turn.steps.iter().enumerate().rev() {
                let more = price.saturating_add(cost.step(step).await?);
                let must = last && at.saturating_add(1) == turn.steps.len();
                if more > left && must && step.results.is_empty() {
                    // of an answer that was cut off, what it goes on from is enough
                    let room = left.saturating_sub(price);
                    if how == As::Ids && room > 0 {
                        (steps_from, tail) = (at, usize::try_from(room).ok());
                    }
                    price = left;
                    break;
                }
                if more > left && !must {
                    break;
                }
                (price, steps_from) = (more, at);
            }
            // a turn with an answer is kept whole or not at all
            if !last && steps_from > 0 {
                break;
            }
            left = left.saturating_sub(price);
            kept = Kept { from: place, steps_from, tail };
            if steps_from > 0 || tail.is_some() {
                break;
            }
        }
        Ok(kept)
    }

    /// The prompt behind the head: what stands before the first message, and the turns that are kept.
    pub(super) fn render<'b>(
        &'b self,
        framing: &'b Framing,
        how: As,
        kept: Kept,
        opening: &'b str,
    ) -> Rendered {
        let mut rendering = Rendering::new(framing, opening);
        self.fill(&mut rendering, how, kept);
        let (pieces, ends) = rendering.finish(kept.from < self.turns.len(), self.goes_on);
        Rendered { pieces, ends }
    }

    /// The same with a message behind it that is recorded nowhere.
    pub(super) fn render_aside<'b>(
        &'b self,
        framing: &'b Framing,
        how: As,
        kept: Kept,
        (opening, text): (&'b str, &'b str),
    ) -> Vec<OwnedPiece> {
        let mut rendering = Rendering::new(framing, opening);
        self.fill(&mut rendering, how, kept);
        rendering.user(text);
        rendering.finish(true, true).0
    }

    fn fill<'b>(&'b self, rendering: &mut Rendering<'b>, how: As, kept: Kept) {
        for (place, turn) in self.turns.iter().enumerate().skip(kept.from) {
            rendering.user(turn.user);
            let skip = if place == kept.from { kept.steps_from } else { 0 };
            for step in turn.steps.iter().skip(skip) {
                if let Some(tail) = kept.tail.filter(|_| place == kept.from) {
                    rendering.goes_on(step.newest(tail));
                    continue;
                }
                step.said.iter().for_each(|said| rendering.said(said));
                for message in &step.messages {
                    match how {
                        As::Ids => rendering.answered(message),
                        As::Text => rendering.said(&message.text),
                    }
                }
                if how == As::Ids {
                    step.results.iter().for_each(|result| rendering.result(result));
                }
            }
        }
    }

    /// The kept turns, for people and other models.
    pub(super) fn exchanges(&self, kept: Kept) -> Vec<Exchange> {
        let exchange = |turn: &Turn<'_>| Exchange {
            turn: turn.turn,
            user: turn.user.to_owned(),
            assistant: turn
                .steps
                .iter()
                .map(Step::text)
                .filter(|text| !text.is_empty())
                .collect::<Vec<_>>()
                .join("\n\n"),
        };
        self.turns.iter().skip(kept.from).map(exchange).collect()
    }
}

/// What is carried over, not yet as ids.
pub(super) struct Rendered {
    pub(super) pieces: Vec<OwnedPiece>,
    pub(super) ends: CarriedEnd,
}

/// What parts of a turn cost in tokens, their framing included.
struct Cost<'a> {
    server: &'a Server,
    framing: &'a Framing,
    how: As,
}

impl Cost<'_> {
    async fn text(&self, text: &str) -> Result<u64, ModelError> {
        Ok(count(self.server.tokenize(text, Special::Plain).await?.len()))
    }

    async fn user(&self, text: &str) -> Result<u64, ModelError> {
        let Framing { user_open, user_close, stand_in_ids, .. } = self.framing;
        let frame = user_open.len().saturating_add(user_close.len()).saturating_add(stand_in_ids.len());
        Ok(self.text(text).await?.saturating_add(count(frame)))
    }

    async fn step(&self, step: &Step<'_>) -> Result<u64, ModelError> {
        let mut price = 0u64;
        let ids = step.messages.iter().map(|message| message.kept_ids().len());
        match (self.how, step.said) {
            (As::Ids, None) => price = ids.map(count).fold(price, u64::saturating_add),
            _ => price = price.saturating_add(self.text(&step.text()).await?),
        }
        if self.how == As::Ids {
            let Framing { tool_open, tool_between, tool_close, .. } = self.framing;
            for result in &step.results {
                let frame =
                    tool_open.len().saturating_add(tool_between.len()).saturating_add(tool_close.len());
                price = price.saturating_add(self.text(result).await?).saturating_add(count(frame));
            }
        }
        Ok(price)
    }
}

/// Whether the ids of one baseline's epoch mean the same under another.
pub(super) fn same_ids(old: &BaselineContent, new: &BaselineContent) -> As {
    let same = (&old.model.file, old.model.size, old.model.n_vocab, old.model.template_digest)
        == (&new.model.file, new.model.size, new.model.n_vocab, new.model.template_digest);
    if same { As::Ids } else { As::Text }
}
