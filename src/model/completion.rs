//! One generation: tokens in, a stream of chunks out.

use hyper::Method;
use serde::{Deserialize, Serialize};

use super::error::ModelError;
use super::grammar::{self, GrammarBody};
use super::http::{Answer, ErrorBody, Piece, beginning};
use super::reply::{CAP_MESSAGE, MARKERS};
use super::server::Server;
use super::sse::{EventReader, MAX_EVENT_BYTES};
use crate::proto::{ReasoningTags, Sampling, TokenId, ToolFamily, count};

const PATH: &str = "/completion";

/// What to generate from.
#[derive(Debug, Clone, Copy)]
pub struct CompletionRequest<'a> {
    /// The whole prompt.
    pub prompt: &'a [TokenId],
    /// The most tokens to generate, reasoning included.
    pub max_tokens: u64,
    /// How tokens are sampled.
    pub sampling: &'a Sampling,
    /// After how many tokens reasoning is closed; `None` for no cap.
    pub thinking: Option<ThinkingCap<'a>>,
    /// Whose calls of tools a grammar keeps well formed; `None` where the model may reason, which can name a call
    /// without making it.
    pub calls: Option<ToolFamily>,
}

/// A cap on reasoning.
///
/// Where the model opens its reasoning itself, the server forces [`CAP_MESSAGE`] and the closing tag after
/// so many tokens. Where the prompt has opened it the server cannot know (newer ones do not let us say so),
/// and the request ends after so many tokens, with [`Chunk::ThinkingLimit`].
#[derive(Debug, Clone, Copy)]
pub struct ThinkingCap<'a> {
    /// The most tokens inside the tags.
    pub tokens: u64,
    /// The tags.
    pub tags: &'a ReasoningTags,
}

/// What a completion brings, in this order: progress, deltas, and one last chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// The prompt is being evaluated. The first one comes before anything is evaluated.
    Progress {
        /// The prompt's tokens.
        total: u64,
        /// How many of them the cache held.
        cache: u64,
        /// How many are done, those of the cache included.
        processed: u64,
    },
    /// Generated tokens.
    Delta {
        /// Their text; empty for a token without one, as the one that ends a turn.
        text: String,
        /// Their ids, as far as the server sent them. The id that ends a turn is among them.
        ids: Vec<TokenId>,
        /// How many ids the server swallowed before `ids`: those inside a character of several tokens.
        lost: u64,
    },
    /// The end.
    Final(Final),
    /// The end of this request, but not of the reply: the number of tokens was reached after which
    /// reasoning that the prompt opened is to be closed. Ask again with the prompt, all ids that were
    /// sampled (the cache holds all but the last), and, if the reasoning is still open,
    /// [`Server::cap_ids`], whose text is [`cap_text`](super::cap_text); without a cap, and with as many
    /// tokens less.
    ThinkingLimit(Final),
}

/// How a generation ended, and what it cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Final {
    /// Why it ended.
    pub stop: Stop,
    /// Whether the context was full.
    pub truncated: bool,
    /// Tokens in the slot's cache now.
    pub tokens_cached: u64,
    /// The prompt's tokens.
    pub tokens_evaluated: u64,
    /// Tokens generated, the one that ends the turn included.
    pub tokens_predicted: u64,
    /// Prompt tokens taken from the cache.
    pub cache_n: u64,
    /// Prompt tokens evaluated.
    pub prompt_n: u64,
    /// Tokens generated.
    pub predicted_n: u64,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// The model ended its turn.
    Eos,
    /// `max_tokens`, or the context was full.
    Limit,
    /// A stop word; we send none.
    Word,
    /// The server gives no reason.
    None,
}

/// A running generation. Dropping it closes the connection, which cancels it.
pub struct Completion {
    url: String,
    silence: std::time::Duration,
    answer: Option<Answer>,
    events: EventReader,
    /// A chunk that came in one event with another.
    waiting: Option<Chunk>,
    /// Generated tokens that chunks have told of, the lost ones included.
    accounted: u64,
    /// From the first progress: what the cache held.
    cache: u64,
    /// The tokens after which the request ends without being the reply's end.
    split: Option<u64>,
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { url, accounted, .. } = self;
        f.debug_struct("Completion").field("url", url).field("tokens", accounted).finish_non_exhaustive()
    }
}

/// All of a request but its prompt.
#[derive(Serialize)]
struct Body<'a> {
    // A number: as a text the server would ignore it.
    id_slot: u32,
    cache_prompt: bool,
    return_tokens: bool,
    stream: bool,
    return_progress: bool,
    n_predict: u64,
    // Else the text of control tokens such as `[TOOL_CALLS]` would not come.
    preserved_tokens: &'a [&'a str],
    #[serde(flatten)]
    sampling: &'a Sampling,
    #[serde(flatten)]
    thinking: Option<ThinkingBody<'a>>,
    #[serde(flatten)]
    grammar: Option<GrammarBody>,
}

/// The server needs all of these: without one it caps nothing, silently.
#[derive(Serialize)]
struct ThinkingBody<'a> {
    reasoning_budget_tokens: u64,
    reasoning_budget_start_tag: &'a str,
    reasoning_budget_end_tags: [&'a str; 1],
    reasoning_budget_message: &'a str,
}

impl<'a> ThinkingBody<'a> {
    fn new(cap: ThinkingCap<'a>) -> Self {
        Self {
            reasoning_budget_tokens: cap.tokens,
            reasoning_budget_start_tag: &cap.tags.open,
            reasoning_budget_end_tags: [&cap.tags.close],
            reasoning_budget_message: CAP_MESSAGE,
        }
    }
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    content: String,
    #[serde(default)]
    tokens: Vec<TokenId>,
    #[serde(default)]
    stop: bool,
    #[serde(default)]
    tokens_predicted: u64,
    #[serde(default)]
    tokens_evaluated: u64,
    #[serde(default)]
    tokens_cached: u64,
    #[serde(default)]
    truncated: bool,
    #[serde(default)]
    stop_type: Option<Stop>,
    #[serde(default)]
    timings: Option<Timings>,
    #[serde(default)]
    prompt_progress: Option<ProgressEvent>,
    #[serde(default)]
    error: Option<ErrorBody>,
}

#[derive(Deserialize)]
struct Timings {
    cache_n: u64,
    prompt_n: u64,
    predicted_n: u64,
}

#[derive(Deserialize)]
struct ProgressEvent {
    total: u64,
    #[serde(default)]
    cache: u64,
    processed: u64,
}

/// Whether our slot is there, and the prompt fits into it.
pub(super) async fn check(server: &Server, request: &CompletionRequest<'_>) -> Result<(), ModelError> {
    let props = server.props().await?;
    server.check_slot(&props)?;
    let n_prompt_tokens = count(request.prompt.len());
    if n_prompt_tokens >= props.n_ctx {
        let (url, n_ctx) = (server.endpoint.shown.clone(), props.n_ctx);
        return Err(ModelError::ContextExceeded { url, n_prompt_tokens, n_ctx });
    }
    Ok(())
}

pub(super) async fn begin(
    server: &Server,
    request: &CompletionRequest<'_>,
) -> Result<Completion, ModelError> {
    let endpoint = &server.endpoint;
    let (forced, split) = match request.thinking {
        Some(cap) if !cap.tags.opened_by_prompt => (Some(ThinkingBody::new(cap)), None),
        Some(cap) if cap.tokens < request.max_tokens => (None, Some(cap.tokens)),
        _ => (None, None),
    };
    let body = Body {
        id_slot: server.slot,
        cache_prompt: true,
        return_tokens: true,
        stream: true,
        return_progress: true,
        n_predict: split.unwrap_or(request.max_tokens),
        preserved_tokens: MARKERS,
        sampling: request.sampling,
        thinking: forced,
        grammar: request.calls.and_then(grammar::of),
    };
    let body = server.with_prompt(PATH, request.prompt, &body)?;
    let answer = endpoint.ask(Method::POST, PATH, body, server.silence).await?;
    if answer.status != 200 {
        let status = answer.status;
        let text = endpoint.read_all(answer, PATH, server.silence).await?;
        return Err(endpoint.refused(PATH, status, &text));
    }
    if !answer.is_event_stream {
        let text = endpoint.read_all(answer, PATH, server.silence).await?;
        return Err(endpoint.garbage(PATH, format!("not a stream of events, but: {}", beginning(&text))));
    }
    Ok(Completion {
        url: endpoint.shown.clone(),
        silence: server.silence,
        answer: Some(answer),
        events: EventReader::default(),
        waiting: None,
        accounted: 0,
        cache: 0,
        split,
    })
}

impl Completion {
    /// The next chunk; `None` after [`Chunk::Final`] or [`Chunk::ThinkingLimit`], and after an error.
    ///
    /// # Errors
    /// The stream was cut, reports an error, is silent for too long, or makes no sense. What came before
    /// is not to be recorded as an answer.
    pub async fn next(&mut self) -> Result<Option<Chunk>, ModelError> {
        let next = self.advance().await;
        if matches!(next, Err(_) | Ok(Some(Chunk::Final(_) | Chunk::ThinkingLimit(_)))) {
            self.answer = None;
        }
        next
    }

    async fn advance(&mut self) -> Result<Option<Chunk>, ModelError> {
        if let Some(chunk) = self.waiting.take() {
            return Ok(Some(chunk));
        }
        loop {
            let Some(answer) = &mut self.answer else {
                return Ok(None);
            };
            match self.events.next_event() {
                Err(_) => {
                    return Err(self.garbage(format!("an event is longer than {MAX_EVENT_BYTES} bytes")));
                }
                Ok(Some(data)) => {
                    if let Some(chunk) = self.read(&data)? {
                        return Ok(Some(chunk));
                    }
                    continue;
                }
                Ok(None) => {}
            }
            match answer.piece(self.silence).await {
                Piece::Data(bytes) => self.events.push(&bytes),
                Piece::End if self.events.inside_event() => return Err(self.cut("inside an event")),
                Piece::End => return Err(self.cut("no last event came")),
                Piece::Broken(why) => return Err(self.cut(&why)),
                Piece::Silence => {
                    let (url, seconds) = (self.url.clone(), self.silence.as_secs());
                    return Err(ModelError::Silent { url, path: PATH.to_owned(), seconds });
                }
            }
        }
    }

    fn read(&mut self, data: &[u8]) -> Result<Option<Chunk>, ModelError> {
        let event: Event = serde_json::from_slice(data).map_err(|e| {
            self.garbage(format!("an event is not what was expected ({e}): {}", beginning(data)))
        })?;
        if let Some(error) = event.error {
            return Err(self.failed(error));
        }
        if let Some(ProgressEvent { total, cache, processed }) = event.prompt_progress {
            // Such an event carries a meaningless token 0.
            self.cache = cache;
            return Ok(Some(Chunk::Progress { total, cache, processed }));
        }
        let sent = count(event.tokens.len());
        let lost = event.tokens_predicted.saturating_sub(self.accounted).saturating_sub(sent);
        self.accounted = self.accounted.saturating_add(lost).saturating_add(sent);
        let delta = (lost > 0 || sent > 0 || !event.content.is_empty()).then_some(Chunk::Delta {
            text: event.content,
            ids: event.tokens,
            lost,
        });
        if !event.stop {
            return Ok(delta);
        }
        let Some(stop) = event.stop_type else {
            return Err(self.garbage("the last event has no stop_type".to_owned()));
        };
        let timings = event.timings.unwrap_or_else(|| Timings {
            cache_n: self.cache,
            prompt_n: event.tokens_evaluated.saturating_sub(self.cache),
            predicted_n: event.tokens_predicted,
        });
        let last = Final {
            stop,
            truncated: event.truncated,
            tokens_cached: event.tokens_cached,
            tokens_evaluated: event.tokens_evaluated,
            tokens_predicted: event.tokens_predicted,
            cache_n: timings.cache_n,
            prompt_n: timings.prompt_n,
            predicted_n: timings.predicted_n,
        };
        let split =
            stop == Stop::Limit && !last.truncated && self.split.is_some_and(|at| self.accounted >= at);
        let last = if split { Chunk::ThinkingLimit(last) } else { Chunk::Final(last) };
        match delta {
            None => Ok(Some(last)),
            Some(delta) => {
                self.waiting = Some(last);
                Ok(Some(delta))
            }
        }
    }

    fn failed(&self, error: ErrorBody) -> ModelError {
        let url = self.url.clone();
        if error.kind.as_deref() == Some("exceed_context_size_error") {
            let (n_prompt_tokens, n_ctx) = (error.n_prompt_tokens.unwrap_or(0), error.n_ctx.unwrap_or(0));
            return ModelError::ContextExceeded { url, n_prompt_tokens, n_ctx };
        }
        let message = error.message.unwrap_or_else(|| "an error without a message".to_owned());
        ModelError::StreamError { url, code: error.code, message }
    }

    fn cut(&self, why: &str) -> ModelError {
        ModelError::StreamCut { url: self.url.clone(), tokens: self.accounted, why: why.to_owned() }
    }

    fn garbage(&self, why: String) -> ModelError {
        ModelError::Garbage { url: self.url.clone(), path: PATH.to_owned(), why }
    }
}
