//! What a new session is frozen with, and how an old one differs from it.

use crate::model::{ModelError, Server};
use crate::proto::{BASELINE_FORMAT, BaselineContent, ModelIdentity, ReasoningSettings, Sampling};

/// What the configuration says about new sessions.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The system prompt.
    pub system_prompt: String,
    /// The two tools, as shown.
    pub tools: String,
    /// Sampling.
    pub sampling: Sampling,
    /// Reasoning.
    pub reasoning: ReasoningSettings,
}

/// Compiles the server's template and freezes all that comes before the first message.
///
/// # Errors
/// The server is away, or its template cannot be compiled.
pub async fn freeze(server: &Server, settings: &Settings) -> Result<BaselineContent, ModelError> {
    let model = server.identity().await?;
    let Settings { system_prompt, tools, sampling, reasoning } = settings.clone();
    let framing = server.compile_framing(&system_prompt, &tools, &reasoning).await?;
    Ok(BaselineContent { format: BASELINE_FORMAT, system_prompt, tools, sampling, reasoning, framing, model })
}

/// Where a session's baseline differs from the configuration of today, and from the model that is served if that
/// is known, in words; its own counts until it begins a new epoch.
#[must_use]
pub fn differences(
    baseline: &BaselineContent,
    settings: &Settings,
    served: Option<&ModelIdentity>,
) -> Vec<String> {
    let mut differences = Vec::new();
    if baseline.system_prompt != settings.system_prompt {
        differences.push("the system prompt is another one now".to_owned());
    }
    if baseline.tools != settings.tools {
        differences.push("the two tools are described in other words now".to_owned());
    }
    if baseline.sampling != settings.sampling {
        differences.push("sampling is set otherwise now".to_owned());
    }
    if baseline.reasoning != settings.reasoning {
        differences.push("reasoning is set otherwise now".to_owned());
    }
    differences.extend(served.and_then(|served| other_model(&baseline.model, served)));
    differences
}

/// Why the model that is served now cannot go on with a session of `made_for`.
#[must_use]
pub fn other_model(made_for: &ModelIdentity, served: &ModelIdentity) -> Option<String> {
    if made_for.file != served.file || made_for.size != served.size || made_for.n_vocab != served.n_vocab {
        return Some(format!(
            "this epoch of the session was made for the model {} ({} bytes), but the server has {} ({} bytes)",
            made_for.file, made_for.size, served.file, served.size
        ));
    }
    if made_for.template_digest != served.template_digest {
        return Some(format!(
            "the chat template of {} is another than when this epoch of the session began (it was {}, it is {})",
            made_for.file, made_for.template_digest, served.template_digest
        ));
    }
    None
}
