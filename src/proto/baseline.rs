//! What a baseline file holds: everything before the first message.

use serde::{Deserialize, Serialize};

use super::{Digest, TokenIds};

/// The version of the baseline's and the log's format that this program writes and reads.
pub const BASELINE_FORMAT: u32 = 1;

/// The content of `N.baseline.json`. Never holds a key, a password or a token of access.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaselineContent {
    /// [`BASELINE_FORMAT`] of the program that wrote it.
    pub format: u32,
    /// The system prompt, as configured.
    pub system_prompt: String,
    /// The two tools, as the bytes that the model is shown (a JSON array).
    pub tools: String,
    /// How tokens are sampled.
    pub sampling: Sampling,
    /// Whether and how long the model may think.
    pub reasoning: ReasoningSettings,
    /// The template, compiled to token ids.
    pub framing: Framing,
    /// The model and its server.
    pub model: ModelIdentity,
}

/// Sampling parameters, sent with each request as they stand here; what is absent is the server's
/// own default at the time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Randomness; 0 always takes the likeliest token.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub temperature: Option<f64>,
    /// Nucleus: only the likeliest tokens that together reach this probability.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub top_p: Option<f64>,
    /// Only the so many likeliest tokens; 0 for all.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub top_k: Option<u32>,
    /// Only tokens at least this likely, relative to the likeliest.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub min_p: Option<f64>,
    /// Penalty for repeating a token; 1 for none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repeat_penalty: Option<f64>,
    /// A fixed seed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seed: Option<u32>,
}

/// Whether the model may think before it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReasoningSettings {
    /// False asks the template for its form without thinking.
    pub enabled: bool,
}

/// In which words a model calls a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolFamily {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>` (Hermes, Qwen 2.5 and 3, and our own words
    /// for templates without tools).
    Hermes,
    /// `<tool_call><function=name><parameter=key>…` (Qwen-Coder, Qwen 3.5).
    QwenCoder,
    /// `{"name": …, "parameters": …}` as the whole message (Llama 3).
    Llama,
    /// `[TOOL_CALLS]` (Mistral).
    Mistral,
    /// `<tool_call>name<arg_key>…</arg_key><arg_value>…` (GLM).
    Glm,
}

/// Who puts the two tools into the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolsBy {
    /// The model's own template.
    Template,
    /// We, as a paragraph after the system prompt.
    SystemPrompt,
}

/// In which kind of message a tool's result reaches the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolResultsBy {
    /// The template's own tool message.
    Template,
    /// A user message, for templates that cannot render tool messages apart from their history.
    UserMessage,
}

/// The chat template, compiled once to fragments of token ids that do not depend on the history.
///
/// The prompt is `head`, then for the first user message its text and `user_close`; for a later one
/// `user_open`, text, `user_close`; for the results of an assistant's calls `tool_open`, text,
/// (`tool_between`, text)…, `tool_close`. `user_open` and `tool_open` begin with what ends an assistant
/// turn; `user_close` and `tool_close` end with what asks the assistant to speak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Framing {
    /// How tool calls are read.
    pub tool_family: ToolFamily,
    /// Who shows the tools.
    pub tools_by: ToolsBy,
    /// How tool results are shown.
    pub tool_results_by: ToolResultsBy,
    /// All before the first user message's text.
    pub head: TokenIds,
    /// Between an assistant's last token and a user's text.
    pub user_open: TokenIds,
    /// Between a user's text and the assistant's first token.
    pub user_close: TokenIds,
    /// Between an assistant's last token and the first tool result.
    pub tool_open: TokenIds,
    /// Between two tool results of one assistant message.
    pub tool_between: TokenIds,
    /// Between the last tool result and the assistant's first token.
    pub tool_close: TokenIds,
    /// What stands where the assistant said nothing (a failed turn, an empty answer), as text …
    pub stand_in: String,
    /// … and as ids.
    pub stand_in_ids: TokenIds,
    /// The reasoning tags; absent for a model that does not think.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reasoning: Option<ReasoningTags>,
}

/// The tags around a model's reasoning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReasoningTags {
    /// For example `<think>`.
    pub open: String,
    /// For example `</think>`.
    pub close: String,
    /// Whether `user_close` already opened it.
    pub opened_by_prompt: bool,
    /// What closes reasoning that was cut off, as ids (the closing tag and a line's end around it).
    pub close_ids: TokenIds,
}

/// Which model answered, and what served it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIdentity {
    /// The kind of interface: `llama-server /completion`.
    pub api: String,
    /// Where, without credentials.
    pub url: String,
    /// The server's name for the model.
    pub alias: String,
    /// The model file's name, without its folder.
    pub file: String,
    /// The model's size in bytes, as the server tells it; 0 when it does not.
    pub size: u64,
    /// SHA-256 of the chat template's text.
    pub template_digest: Digest,
    /// The slot's context, in tokens.
    pub n_ctx: u64,
    /// The vocabulary's size; 0 when the server does not tell.
    pub n_vocab: u64,
    /// The server's build.
    pub build: String,
}
