//! What the server tells about itself: `/props`, `/slots`, `/v1/models`.

use serde::Deserialize;

/// The properties of a model server, from `GET /props`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Props {
    /// The context of one slot, in tokens; the real limit of a conversation.
    pub n_ctx: u64,
    /// How many slots there are.
    pub total_slots: u64,
    /// The server's name for the model.
    pub model_alias: String,
    /// The model file's path on the server's machine.
    pub model_path: String,
    /// The chat template's text.
    pub chat_template: String,
    /// The text of the template that is used when there are tools, where it is another one.
    pub chat_template_tool_use: Option<String>,
    /// Whether the template shows tools, as far as the server knows.
    pub supports_tools: Option<bool>,
    /// The text of the token that begins a prompt; may be empty.
    pub bos_token: String,
    /// The text of the token that ends a turn; may be empty.
    pub eos_token: String,
    /// The server's build.
    pub build_info: String,
    /// Whether the server has unloaded its model, and with it the cache, for lack of work.
    pub is_sleeping: bool,
    /// Whether `/slots` is there; absent when the server does not tell.
    pub endpoint_slots: Option<bool>,
    /// Whether `/metrics` is there; absent when the server does not tell.
    pub endpoint_metrics: Option<bool>,
}

#[derive(Deserialize)]
struct RawProps {
    default_generation_settings: RawSettings,
    total_slots: u64,
    #[serde(default)]
    model_alias: Option<String>,
    #[serde(default)]
    model_path: Option<String>,
    #[serde(default)]
    chat_template: Option<String>,
    #[serde(default)]
    chat_template_tool_use: Option<String>,
    #[serde(default)]
    chat_template_caps: Option<RawCaps>,
    #[serde(default)]
    bos_token: Option<String>,
    #[serde(default)]
    eos_token: Option<String>,
    #[serde(default)]
    build_info: Option<String>,
    #[serde(default)]
    is_sleeping: Option<bool>,
    #[serde(default)]
    endpoint_slots: Option<bool>,
    #[serde(default)]
    endpoint_metrics: Option<bool>,
}

#[derive(Deserialize)]
struct RawSettings {
    n_ctx: u64,
}

#[derive(Deserialize)]
struct RawCaps {
    #[serde(default)]
    supports_tools: Option<bool>,
}

impl Props {
    /// Reads the answer of `/props`.
    pub(super) fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        let raw: RawProps = serde_json::from_slice(body)?;
        Ok(Self {
            n_ctx: raw.default_generation_settings.n_ctx,
            total_slots: raw.total_slots,
            model_alias: raw.model_alias.unwrap_or_default(),
            model_path: raw.model_path.unwrap_or_default(),
            chat_template: raw.chat_template.unwrap_or_default(),
            chat_template_tool_use: raw.chat_template_tool_use,
            supports_tools: raw.chat_template_caps.and_then(|caps| caps.supports_tools),
            bos_token: raw.bos_token.unwrap_or_default(),
            eos_token: raw.eos_token.unwrap_or_default(),
            build_info: raw.build_info.unwrap_or_default(),
            is_sleeping: raw.is_sleeping.unwrap_or(false),
            endpoint_slots: raw.endpoint_slots,
            endpoint_metrics: raw.endpoint_metrics,
        })
    }

    /// The model file's name, without its folder.
    #[must_use]
    pub fn model_file(&self) -> &str {
        self.model_path.rsplit(['/', '\\']).next().unwrap_or(&self.model_path)
    }
}

/// One slot, from `GET /slots`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct SlotState {
    pub(super) id: u64,
    #[serde(default)]
    pub(super) is_processing: bool,
    /// Tokens in the slot's cache; missing before the slot's first request.
    #[serde(default)]
    pub(super) n_prompt_tokens: Option<u64>,
}

/// `GET /v1/models`.
#[derive(Debug, Deserialize)]
pub(super) struct Models {
    #[serde(default)]
    pub(super) data: Vec<Model>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Model {
    #[serde(default)]
    pub(super) meta: Option<ModelMeta>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ModelMeta {
    #[serde(default)]
    pub(super) n_vocab: Option<u64>,
    #[serde(default)]
    pub(super) size: Option<u64>,
}
