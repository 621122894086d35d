//! One completion: from the request's first event to what is recorded of it.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Chunk, CompletionRequest, Final, ModelError, Part, ReplyParser, Server};
use crate::proto::{EventKind, TokenId, count};

use super::cancel::{Cancel, Patience, StopReason};

/// Why a stream is over.
#[derive(Debug, Clone)]
pub enum Ended {
    /// The server said so.
    Final(Final),
    /// Somebody asked to stop.
    Stopped(StopReason),
    /// The turn's time was up.
    TimeUp,
    /// So many tokens were in the cache, which was too few.
    Cut(u64),
    /// Reasoning has reached its cap, and the answer goes on with another request.
    ThinkingLimit(Final),
}

/// What is done about the first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The request goes on.
    Go,
    /// It is closed at once, before anything is evaluated.
    Cut,
}

/// A place in the sampled ids where the server's stream left some out: it sends no event for a token that
/// ends inside a UTF-8 character, and then only the last id of the character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The index of the first id of the event that had fewer ids than tokens.
    pub at: usize,
    /// How many were left out before it.
    pub lost: usize,
    /// How many it had.
    pub had: usize,
    /// The event's text.
    pub text: String,
}

/// What a request brought.
#[derive(Debug)]
pub struct Streamed {
    /// Why it is over.
    pub ended: Ended,
    /// The sampled ids; `None` where the stream left one out.
    pub ids: Vec<Option<TokenId>>,
    /// Where.
    pub gaps: Vec<Gap>,
    /// Tokens taken from the cache, as the first event said; absent when the request ended before it.
    pub cached: Option<u64>,
    /// Tokens sampled inside reasoning, its tags excluded.
    pub reasoning_tokens: u64,
    /// From the request to its end.
    pub took: Duration,
}

impl Streamed {
    /// A request before this one had `found` only so many tokens in the cache, and evaluated the rest of what
    /// this one found there before it was cut off: that was paid for too.
    pub fn credit(&mut self, found: Option<u64>) {
        let Some(found) = found else { return };
        if let Some(cached) = &mut self.cached {
            *cached = found.min(*cached);
        }
        if let Ended::Final(last) | Ended::ThinkingLimit(last) = &mut self.ended {
            let before = last.cache_n.saturating_sub(found);
            last.cache_n = last.cache_n.saturating_sub(before);
            last.prompt_n = last.prompt_n.saturating_add(before);
        }
    }
}

/// Sends a request and follows it to its end. `look` is told the first event's cached tokens before
/// anything is evaluated, and decides. With `known` the server is not asked first whether it has the slot.
///
/// # Errors
/// Whatever makes the request fail; what was shown until then is then not recorded.
pub async fn stream(
    server: &Server,
    (request, known): (&CompletionRequest<'_>, bool),
    parser: &mut ReplyParser,
    (cancel, patience): (&Cancel, Patience),
    deadline: Instant,
    mut look: impl FnMut(u64) -> Look,
    mut on_event: impl FnMut(EventKind),
) -> Result<Streamed, ModelError> {
    let began = Instant::now();
    let mut streamed = Partial::default();
    let mut completion = None;
    let ended = loop {
        let step = async {
            match &mut completion {
                None => {
                    let begun =
                        if known { server.go_on(request).await } else { server.complete(request).await };
                    completion = Some(begun?);
                    Ok(None)
                }
                Some(completion) => completion.next().await.map(Some),
            }
        };
        let chunk = tokio::select! {
            biased;
            reason = cancel.stopped() => break Ended::Stopped(reason),
            () = tokio::time::sleep_until(deadline) => break Ended::TimeUp,
            chunk = step => chunk?,
        };
        match chunk {
            // the request has only just been accepted; a stream without a last chunk is an error already
            None | Some(None) => {}
            Some(Some(Chunk::Progress { total, cache, processed })) => {
                if streamed.cached.is_none() {
                    streamed.cached = Some(cache);
                    if look(cache) == Look::Cut {
                        break Ended::Cut(cache);
                    }
                }
                on_event(EventKind::Prefill { done: processed, total, cached: cache });
            }
            Some(Some(Chunk::Delta { text, ids, lost })) => {
                streamed.delta(parser, text, ids, lost, &mut on_event);
            }
            Some(Some(Chunk::Final(last))) => break Ended::Final(last),
            Some(Some(Chunk::ThinkingLimit(last))) => break Ended::ThinkingLimit(last),
        }
    };
    // a connection still open here is one to cancel: closing it stops the server
    drop(completion);
    if !matches!(ended, Ended::Final(_) | Ended::ThinkingLimit(_)) {
        // A server that has gone away meanwhile does nothing either; one that hangs must not hold up the end.
        // The next request then waits in the server.
        let wait = patience.after(StopReason::Cancelled);
        let _ = cancel.bound(patience, tokio::time::timeout(wait, server.wait_idle())).await;
    }
    let Partial { ids, gaps, cached, reasoning_tokens, undecided_tokens } = streamed;
    // what may have become a tag, had it gone on, is none
    let reasoning_tokens = reasoning_tokens.saturating_add(undecided_tokens);
    Ok(Streamed { ended, ids, gaps, cached, reasoning_tokens, took: began.elapsed() })
}

#[derive(Debug, Default)]
struct Partial {
    ids: Vec<Option<TokenId>>,
    gaps: Vec<Gap>,
    cached: Option<u64>,
    reasoning_tokens: u64,
    /// Tokens inside reasoning that may be the beginning of its closing tag.
    undecided_tokens: u64,
}

impl Partial {
    fn delta(
        &mut self,
        parser: &mut ReplyParser,
        text: String,
        ids: Vec<TokenId>,
        lost: u64,
        on_event: &mut impl FnMut(EventKind),
    ) {
        let tokens = lost.saturating_add(count(ids.len()));
        let lost = usize::try_from(lost).unwrap_or(usize::MAX);
        if lost > 0 {
            self.gaps.push(Gap { at: self.ids.len(), lost, had: ids.len(), text: text.clone() });
            self.ids.extend(std::iter::repeat_n(None, lost));
        }
        self.ids.extend(ids.into_iter().map(Some));
        let thinking = parser.in_reasoning();
        let parts = parser.feed(&text);
        self.count_reasoning(thinking && parser.in_reasoning(), parser.is_undecided(), tokens);
        show(parts, on_event);
    }

    /// A token that opens or closes reasoning is not inside; of a tag of several tokens that is known at its end.
    fn count_reasoning(&mut self, inside: bool, undecided: bool, tokens: u64) {
        if !inside {
            self.undecided_tokens = 0;
        } else if undecided {
            self.undecided_tokens = self.undecided_tokens.saturating_add(tokens);
        } else {
            let before = std::mem::take(&mut self.undecided_tokens);
            self.reasoning_tokens = self.reasoning_tokens.saturating_add(before).saturating_add(tokens);
        }
    }
}

/// Passes on what can be shown.
pub fn show(parts: Vec<Part>, on_event: &mut impl FnMut(EventKind)) {
    for part in parts {
        on_event(match part {
            Part::Text(text) => EventKind::Text { text },
            Part::Reasoning(text) => EventKind::Reasoning { text },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{ReasoningTags, TokenIds, ToolFamily};

    /// The tokens inside reasoning, of a reply whose tokens are these.
    fn inside(tokens: &[&str]) -> u64 {
        let (open, close) = ("<think>".to_owned(), "</think>".to_owned());
        let tags = ReasoningTags { open, close, opened_by_prompt: false, close_ids: TokenIds::default() };
        let mut parser = ReplyParser::new(ToolFamily::Hermes, Some(&tags));
        let mut partial = Partial::default();
        for text in tokens {
            partial.delta(&mut parser, (*text).to_owned(), vec![1], 0, &mut |_| {});
        }
        partial.reasoning_tokens + partial.undecided_tokens
    }

    #[test]
    fn tokens_inside_reasoning_are_counted_one_by_one() {
        assert_eq!(inside(&["<think>", "a", "b", "</think>", "c"]), 2, "tags of one token");
        assert_eq!(inside(&["<", "think", ">", "a", "b", "</", "think", ">", "c"]), 2, "tags of several");
        assert_eq!(inside(&["<think>", "a", "</", "thin", "gs", "</think>"]), 4, "what is no tag after all");
        assert_eq!(inside(&["<think>", "a", "</", "th"]), 3, "cut off in what may have been a tag");
        assert_eq!(inside(&["a", "<think>", "b", "</think>"]), 0, "a tag that is talked about");
    }
}
