//! The model server as a whole: is it there, what is it, its tokens and its slot.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use hyper::Method;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::completion::{Completion, CompletionRequest};
use super::encoded::Encoded;
use super::error::ModelError;
use super::http::Endpoint;
use super::props::{ModelMeta, Models, Props};
use crate::config::ModelUrl;
use crate::proto::{Digest, Framing, ModelIdentity, ReasoningSettings, ReasoningTags, ServerState, TokenId};

/// How long `/health` may take to answer.
pub const HEALTH_SILENCE: Duration = Duration::from_secs(5);

/// The longest pause between two looks at a server that is not ready, or a slot that is not idle.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often someone who waits is told so, when the reason does not change.
pub const WAIT_NOTICE: Duration = Duration::from_secs(5);

/// How long a socket that may not be opened is waited for: whoever starts the server again makes its socket first,
/// and gives it to its group then.
pub const PERMISSION_PATIENCE: Duration = Duration::from_secs(10);

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Whether the text of special tokens means those tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// `<|im_end|>` is that token: for the template's own text.
    Parse,
    /// `<|im_end|>` is ten characters: for what users and tools say.
    Plain,
}

/// A llama-server and our slot of it. Every request has a connection of its own, which is closed when the
/// answer is dropped.
pub struct Server {
    pub(super) endpoint: Endpoint,
    pub(super) slot: u32,
    pub(super) silence: Duration,
    /// The newest prompt that was sent.
    encoded: RefCell<Encoded>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, slot, silence, .. } = self;
        f.debug_struct("Server")
            .field("url", &endpoint.shown)
            .field("slot", slot)
            .field("silence", silence)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// The server at `url`; connects only when asked something. `silence` is how long it may send
    /// nothing at all while we wait for it (comments in a stream count as life).
    #[must_use]
    pub fn new(url: ModelUrl, api_key: Option<String>, slot: u32, silence: Duration) -> Rc<Self> {
        let shown = url.to_string();
        let endpoint = Endpoint { url, shown, api_key };
        Rc::new(Self { endpoint, slot, silence, encoded: RefCell::default() })
    }

    /// Its address, without credentials.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.endpoint.shown
    }

    /// Our slot.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// How the server is, and if it is not ready, why. Answers within seconds.
    pub async fn state(&self) -> (ServerState, Option<String>) {
        match self.health().await {
            Ok(()) => (ServerState::Ready, None),
            Err(e @ ModelError::Loading { .. }) => (ServerState::Loading, Some(e.to_string())),
            Err(e @ (ModelError::Unreachable { .. } | ModelError::Dropped { .. })) => {
                (ServerState::Unreachable, Some(e.to_string()))
            }
            Err(e) => (ServerState::Failing, Some(e.to_string())),
        }
    }

    /// Waits until the server can answer, as long as it takes; drop the future to give up. `on_wait` is
    /// called with words for people when the reason to wait changes, and every [`WAIT_NOTICE`].
    ///
    /// # Errors
    /// What waiting cannot mend: a wrong key, a model that fails to load, a slot that does not exist,
    /// something that is no llama-server.
    pub async fn wait_ready(&self, mut on_wait: impl FnMut(&str)) -> Result<(), ModelError> {
        let begun = Instant::now();
        let mut told: Option<(String, Instant)> = None;
        let mut pause = FIRST_PAUSE;
        let mut forbidden: Option<Instant> = None;
        loop {
            let error = match self.ready().await {
                Ok(()) => return Ok(()),
                Err(e) => e,
            };
            forbidden = error.is_forbidden().then(|| forbidden.unwrap_or_else(Instant::now));
            let error = match error {
                ModelError::Unreachable { url, error }
                    if forbidden.is_some_and(|since| since.elapsed() >= PERMISSION_PATIENCE) =>
                {
                    let seconds = PERMISSION_PATIENCE.as_secs();
                    return Err(ModelError::Forbidden { url, error, seconds });
                }
                error => error,
            };
            let Some(reason) = reason_to_wait(&error) else {
                return Err(error);
            };
            let due = told.as_ref().is_none_or(|(r, at)| *r != reason || at.elapsed() >= WAIT_NOTICE);
            if due {
                let (url, seconds) = (self.url(), begun.elapsed().as_secs());
                on_wait(&format!("the model server at {url} {reason}; waiting for it ({seconds} s)"));
                told = Some((reason, Instant::now()));
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    async fn ready(&self) -> Result<(), ModelError> {
        self.health().await?;
        // `/health` needs no key; this does.
        let props = self.props().await?;
        self.check_slot(&props)
    }

    async fn health(&self) -> Result<(), ModelError> {
        let silence = HEALTH_SILENCE.min(self.silence);
        self.endpoint.fetch(Method::GET, "/health", Vec::new(), silence).await.map(drop)
    }

    /// The server takes a slot that it does not have modulo their number, without a word.
    pub(super) fn check_slot(&self, props: &Props) -> Result<(), ModelError> {
        let (url, slot, total) = (self.endpoint.shown.clone(), self.slot, props.total_slots);
        if u64::from(slot) < total { Ok(()) } else { Err(ModelError::WrongSlot { url, slot, total }) }
    }

    /// What the server tells about itself.
    ///
    /// # Errors
    /// The server cannot be asked, or answers nonsense.
    pub async fn props(&self) -> Result<Props, ModelError> {
        let body = self.endpoint.fetch(Method::GET, "/props", Vec::new(), self.silence).await?;
        Props::read(&body).map_err(|e| self.endpoint.garbage("/props", e.to_string()))
    }

    /// Which model answers there.
    ///
    /// # Errors
    /// The server cannot be asked, or answers nonsense.
    pub async fn identity(&self) -> Result<ModelIdentity, ModelError> {
        let props = self.props().await?;
        let meta = self.model_meta().await?;
        Ok(ModelIdentity {
            api: "llama-server /completion".to_owned(),
            url: self.endpoint.shown.clone(),
            // a server without --alias gives the model's whole path, which tells nobody anything
            alias: props.model_alias.rsplit('/').next().unwrap_or_default().to_owned(),
            file: props.model_file().to_owned(),
            size: meta.size.unwrap_or(0),
            template_digest: template_digest(&props),
            n_ctx: props.n_ctx,
            n_vocab: meta.n_vocab.unwrap_or(0),
            build: props.build_info,
        })
    }

    /// Size and vocabulary are good to know, but no reason to refuse a server that does not tell.
    async fn model_meta(&self) -> Result<ModelMeta, ModelError> {
        match self.endpoint.fetch(Method::GET, "/v1/models", Vec::new(), self.silence).await {
            Ok(body) => {
                let models = serde_json::from_slice::<Models>(&body).ok();
                let first = models.and_then(|models| models.data.into_iter().next());
                Ok(first.and_then(|model| model.meta).unwrap_or_default())
            }
            Err(ModelError::NotFound { .. } | ModelError::Unsupported { .. }) => Ok(ModelMeta::default()),
            Err(e) => Err(e),
        }
    }

    /// The ids of a text, with nothing added before or after it.
    ///
    /// # Errors
    /// The server cannot be asked, or answers nonsense.
    pub async fn tokenize(&self, text: &str, special: Special) -> Result<Vec<TokenId>, ModelError> {
        self.tokens(text, special, false).await
    }

    pub(super) async fn tokens(
        &self,
        content: &str,
        special: Special,
        add_special: bool,
    ) -> Result<Vec<TokenId>, ModelError> {
        #[derive(Serialize)]
        struct Body<'a> {
            content: &'a str,
            add_special: bool,
            parse_special: bool,
        }
        #[derive(Deserialize)]
        struct Tokens {
            tokens: Vec<TokenId>,
        }
        if content.is_empty() && !add_special {
            return Ok(Vec::new());
        }
        let body = Body { content, add_special, parse_special: special == Special::Parse };
        let answer: Tokens = self.post("/tokenize", &body, self.silence).await?;
        Ok(answer.tokens)
    }

    /// The ids of [`super::cap_text`], which close reasoning after [`super::Chunk::ThinkingLimit`].
    ///
    /// # Errors
    /// The server cannot be asked, or answers nonsense.
    pub async fn cap_ids(&self, tags: &ReasoningTags) -> Result<Vec<TokenId>, ModelError> {
        self.tokenize(&super::cap_text(tags), Special::Parse).await
    }

    /// Compiles the model's chat template into the fragments of a baseline. `tools` is a JSON array, as
    /// the model shall see it.
    ///
    /// # Errors
    /// [`ModelError::Template`] when the template depends on the history; or the server cannot be asked.
    pub async fn compile_framing(
        &self,
        system_prompt: &str,
        tools: &str,
        reasoning: &ReasoningSettings,
    ) -> Result<Framing, ModelError> {
        super::framing::compile(self, system_prompt, tools, reasoning).await
    }

    /// Begins a completion of exactly these tokens on our slot. Dropping what is returned, or this
    /// future, closes the connection, and the server stops within a token or two.
    ///
    /// # Errors
    /// The server cannot be asked, has no such slot, or refuses the request.
    pub async fn complete(&self, request: &CompletionRequest<'_>) -> Result<Completion, ModelError> {
        super::completion::check(self, request).await?;
        super::completion::begin(self, request).await
    }

    /// As [`Server::complete`], without asking first whether the slot is there: for who knows what its cache
    /// holds, and looks at the first event.
    ///
    /// # Errors
    /// As [`Server::complete`].
    pub async fn go_on(&self, request: &CompletionRequest<'_>) -> Result<Completion, ModelError> {
        super::completion::begin(self, request).await
    }

    /// The error for a stream that ended without its last chunk.
    #[must_use]
    pub fn stream_cut(&self) -> ModelError {
        let (url, why) = (self.endpoint.shown.clone(), "no last event came".to_owned());
        ModelError::StreamCut { url, tokens: 0, why }
    }

    /// The server's process, where it is on this machine and can be seen: behind a Unix socket.
    pub async fn process(&self) -> Option<u32> {
        self.endpoint.peer().await
    }

    pub(super) async fn post<B: Serialize, A: for<'de> Deserialize<'de>>(
        &self,
        path: &str,
        body: &B,
        silence: Duration,
    ) -> Result<A, ModelError> {
        let body = self.encode(path, body)?;
        let answer = self.endpoint.fetch(Method::POST, path, body, silence).await?;
        serde_json::from_slice(&answer).map_err(|e| self.endpoint.garbage(path, e.to_string()))
    }

    fn encode<B: Serialize>(&self, path: &str, body: &B) -> Result<Vec<u8>, ModelError> {
        serde_json::to_vec(body).map_err(|e| self.unwritable(path, &e))
    }

    /// As [`Server::encode`], with a prompt as one member more.
    pub(super) fn with_prompt<B: Serialize>(
        &self,
        path: &str,
        prompt: &[TokenId],
        body: &B,
    ) -> Result<Vec<u8>, ModelError> {
        let rest = self.encode(path, body)?;
        self.encoded.borrow_mut().body(prompt, &rest).map_err(|e| self.unwritable(path, &e))
    }

    fn unwritable(&self, path: &str, error: &serde_json::Error) -> ModelError {
        self.endpoint.garbage(path, format!("the request cannot be written as JSON: {error}"))
    }
}

/// SHA-256 of the text of the server's chat template.
pub(super) fn template_digest(props: &Props) -> Digest {
    let tool_use = props.chat_template_tool_use.as_deref().unwrap_or_default();
    Digest::of(format!("{}{tool_use}", props.chat_template).as_bytes())
}

/// Why it is worth waiting, in words that follow the server's name; `None` when it is not.
fn reason_to_wait(error: &ModelError) -> Option<String> {
    match error {
        ModelError::Unreachable { error: why, .. } => {
            // llama-server leaves its socket behind when it ends, and does not start while one is there
            let hint = match why.kind() {
                std::io::ErrorKind::ConnectionRefused => {
                    "; a socket that an ended server left must be removed before it starts again"
                }
                std::io::ErrorKind::PermissionDenied => "; this user may not open its socket yet",
                _ => "",
            };
            Some(format!("does not answer yet ({why}{hint})"))
        }
        ModelError::Loading { message, .. } => Some(format!("is not ready yet ({message})")),
        ModelError::Dropped { why, .. } => Some(format!("closed the connection ({why})")),
        ModelError::Silent { path, .. } => Some(format!("does not answer {path}")),
        ModelError::Status { code: code @ (502 | 504), .. } => {
            Some(format!("is not reached by the proxy before it (status {code})"))
        }
        _ => None,
    }
}
