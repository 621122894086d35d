//! The summary with which a new epoch begins: the model is asked for it behind the same prompt as ever, so
//! that the cache serves all but the question.

use std::rc::Rc;

use crate::config::{Limit, Limits};
use crate::model::{Final, ModelError, Server, Special, Stop};
use crate::proto::{BaselineContent, Epoch, EventKind, Framing, Summary, SummaryCost, count};

use super::AgentError;
use super::answer::Answered;
use super::cancel::Cancel;
use super::carry::{As, Kept, Past};
use super::completion::Ended;
use super::end::{End, reached};
use super::replay::{OwnedPiece, OwnedPrompt};
use super::request::Asked;
use super::room::{Shares, tokenize};
use super::turn::{Turn, millis};

/// The fewest tokens that are worth asking for.
const LEAST: u64 = 16;

/// What the model is asked for.
fn instruction(tokens: u64) -> String {
    // a word has more than one token, in most languages
    let words = tokens.saturating_mul(6) / 10;
    format!(
        "Summarise our conversation so far, so that you can go on from the summary alone: what I told you and asked \
         for, names, numbers, decisions, what was done and what is still open. Write only the summary, in at most \
         {words} words."
    )
}

/// What stands before the first message of an epoch that has a summary.
pub(super) fn opening(summary: &str) -> String {
    format!(
        "This conversation began earlier. The summary of its earlier part (the tool read_session looks up what was \
         said in it):\n{summary}\n\nFrom here on it is as it was said.\n\n"
    )
}

/// Stands where the model wrote none; all that was said is in the log, and found by `read_session`.
const NONE: &str = "(no summary)";

/// What is kept free for a summary, and in which circumstances.
#[derive(Debug, Clone)]
pub(super) struct KeptFree {
    epoch: Epoch,
    n_ctx: u64,
    limits: Rc<Limits>,
    room: u64,
}

/// How much may be generated for a summary of `most` tokens: a model that thinks may think as much.
fn written(framing: &Framing, limits: &Limits, most: u64) -> u64 {
    let thinks = framing.reasoning.is_some();
    if thinks { most.saturating_add(most.min(limits.thinking_tokens)) } else { most }
}

/// Tokens that are kept free, so that a summary can be asked for when the context is full; none where that is
/// not to happen by itself.
async fn question_room(
    server: &Server,
    framing: &Framing,
    limits: &Limits,
    n_ctx: u64,
) -> Result<u64, ModelError> {
    if limits.turn_rebases == 0 {
        return Ok(0);
    }
    let most = Shares::of(limits, n_ctx, framing.head.len()).summary;
    let text = server.tokenize(&instruction(most), Special::Plain).await?.len();
    let close = framing.reasoning.as_ref().map_or(0, |tags| tags.close_ids.len());
    let frame = [framing.user_open.len(), framing.user_close.len(), framing.stand_in_ids.len(), close];
    let asked = frame.into_iter().fold(text, usize::saturating_add);
    Ok(count(asked).saturating_add(written(framing, limits, most)))
}

/// Tokens that a new epoch has for turns, beside its head, a summary, and what is kept free.
pub(super) async fn new_room(
    server: &Server,
    framing: &Framing,
    limits: &Limits,
    n_ctx: u64,
) -> Result<u64, ModelError> {
    // the text of a summary may have some tokens more than were generated for it
    const SLACK: u64 = 8;
    let shares = Shares::of(limits, n_ctx, framing.head.len());
    let before = server.tokenize(&opening(""), Special::Plain).await?.len();
    let question = question_room(server, framing, limits, n_ctx).await?;
    let taken = [count(framing.head.len()), shares.reserve, shares.summary, count(before), question, SLACK];
    Ok(taken.into_iter().fold(n_ctx, u64::saturating_sub))
}

impl Turn {
    /// As [`question_room`], for this turn's prompts; the server counts once, not before each first token.
    pub(super) async fn summary_room(&self, n_ctx: u64) -> Result<u64, ModelError> {
        let known = self.conversation.kept_free.borrow().clone();
        if let Some(known) = known
            .filter(|known| (known.epoch, known.n_ctx) == (self.epoch, n_ctx) && known.limits == self.limits)
        {
            return Ok(known.room);
        }
        let framing = &self.baseline.framing;
        let room = question_room(&self.agent.server, framing, &self.limits, n_ctx).await?;
        let limits = Rc::clone(&self.limits);
        self.conversation.kept_free.replace(Some(KeptFree { epoch: self.epoch, n_ctx, limits, room }));
        Ok(room)
    }

    /// Asks for a summary of what is not `kept`.
    pub(super) async fn summary(
        &mut self,
        (past, kept): (&Past<'_>, Kept),
        (how, content): (As, &BaselineContent),
        cancel: &Cancel,
    ) -> Result<Result<Summary, End>, AgentError> {
        let n_ctx = content.model.n_ctx;
        let most = Shares::of(&self.limits, n_ctx, content.framing.head.len()).summary;
        let asking = async {
            let same = match how {
                As::Ids => self.ask_aside(most, n_ctx).await?,
                As::Text => None,
            };
            match same {
                Some(asked) => Ok((Some(asked), false)),
                None => Ok::<_, ModelError>((self.ask_anew(past, (how, content), most).await?, true)),
            }
        };
        let (asked, anew) = match cancel.unless(asking).await {
            Ok(asked) => asked?,
            Err(reason) => return Ok(Err(End::stopped(reason))),
        };
        let Some(asked) = asked else {
            return Ok(Err(End::limit("the newest turn alone is too long for the context".to_owned())));
        };
        let before = (Rc::clone(&self.baseline), Rc::clone(&self.limits));
        if anew {
            self.baseline = Rc::new(content.clone());
        }
        let thinking_tokens = before.1.thinking_tokens.min(most);
        self.limits = Rc::new(Limits { thinking_tokens, ..Limits::clone(&before.1) });
        self.summing.set(Some((0, asked.max_tokens)));
        let answered = self.complete(&asked, cancel).await;
        self.summing.set(None);
        (self.baseline, self.limits) = before;
        Ok(answered?.and_then(|answered| self.summed(&asked, answered, past, kept)))
    }

    fn summed(&self, asked: &Asked, answered: Answered, past: &Past<'_>, kept: Kept) -> Result<Summary, End> {
        let Answered { ended, reply, usage, took, .. } = answered;
        let cut = match ended {
            Ended::Stopped(reason) => return Err(End::stopped(reason)),
            Ended::TimeUp => return Err(End::limit(reached(&self.limits, Limit::TurnSeconds))),
            Ended::Final(Final { stop, .. }) => stop == Stop::Limit,
            Ended::Cut(_) | Ended::ThinkingLimit(_) => true,
        };
        self.spent(&usage);
        let text = match reply.text.trim() {
            "" => {
                let message =
                    "the model wrote no summary; what is left out is in the log, and read_session finds it";
                self.publish(EventKind::Notice {
                    code: "no_summary".to_owned(),
                    message: message.to_owned(),
                });
                NONE.to_owned()
            }
            text if cut => format!("{text} …"),
            text => text.to_owned(),
        };
        let cost = SummaryCost {
            new_n: if asked.expected == 0 { count(asked.prompt.len()) } else { count(asked.new) },
            lost_n: asked.expected.saturating_sub(usage.cache_n),
            usage,
            millis: millis(took),
        };
        Ok(Summary { text, through: past.through(kept), cost: Some(cost) })
    }

    /// The question behind the epoch's own prompt, if there is room for it.
    async fn ask_aside(&self, most: u64, n_ctx: u64) -> Result<Option<Asked>, ModelError> {
        let text = instruction(most);
        let framing = &self.baseline.framing;
        let replayed = self.conversation.read(|session| {
            self.conversation
                .heard(session, |heard| OwnedPrompt::from(heard.aside(framing, session.records(), &text)))
        });
        let OwnedPrompt { list, new, thinking, expected } = replayed.await;
        self.question(list, &new, (most, n_ctx), (expected, thinking)).await
    }

    /// The question behind as many of the last turns as fit, under the new baseline: where the model, or its
    /// context, is another one.
    async fn ask_anew(
        &self,
        past: &Past<'_>,
        (how, content): (As, &BaselineContent),
        most: u64,
    ) -> Result<Option<Asked>, ModelError> {
        let (server, framing, n_ctx) = (&self.agent.server, &content.framing, content.model.n_ctx);
        let text = instruction(most);
        let before = past.summary.map(|summary| opening(&summary.text)).unwrap_or_default();
        let mut taken = count(framing.head.len())
            .saturating_add(written(framing, &self.limits, most))
            .saturating_add(LEAST);
        for said in [&text, &before] {
            taken = taken.saturating_add(count(server.tokenize(said, Special::Plain).await?.len()));
        }
        let kept = past.choose(server, framing, how, n_ctx.saturating_sub(taken)).await?;
        let new = past.render_aside(framing, how, kept, (&before, &text));
        let thinking = framing.reasoning.as_ref().is_some_and(|tags| tags.opened_by_prompt);
        self.question(framing.head.to_vec(), &new, (most, n_ctx), (0, thinking)).await
    }

    async fn question(
        &self,
        mut prompt: Vec<u32>,
        new: &[OwnedPiece],
        (most, n_ctx): (u64, u64),
        (expected, thinking): (u64, bool),
    ) -> Result<Option<Asked>, ModelError> {
        let new = tokenize(&self.agent.server, new).await?;
        prompt.extend_from_slice(&new);
        let room = n_ctx.saturating_sub(count(prompt.len())).saturating_sub(1);
        let max_tokens = room.min(written(&self.baseline.framing, &self.limits, most));
        let asked = Asked { prompt, new: new.len(), expected, thinking, max_tokens, bound: None };
        Ok((max_tokens >= LEAST).then_some(asked))
    }
}
