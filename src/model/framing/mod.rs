//! Compiles a chat template, once, into fragments of token ids that do not depend on the history.
//!
//! Sentinels are rendered through the server's own template engine, each fragment with two different
//! histories; only what agrees is used. Where tool messages do not agree, results go as user messages;
//! where the template shows no tools, we show them; where even user messages do not agree, the template
//! is refused.

mod compiler;
mod detect;
mod render;

use serde_json::Value;
use serde_json::value::RawValue;

use super::error::ModelError;
use super::server::{Server, Special, template_digest};
use crate::proto::{Framing, ReasoningSettings, ReasoningTags, TokenId, TokenIds, ToolResultsBy, ToolsBy};
use compiler::{Compiler, Plan, ToolTexts, tags_of};
use detect::{RESULT_AS_USER, opens_reasoning};
use render::{Refusal, Renderer};

/// What stands where the assistant said nothing.
const STAND_IN: &str = "(no answer)";

pub(super) async fn compile(
    server: &Server,
    system_prompt: &str,
    tools: &str,
    reasoning: &ReasoningSettings,
) -> Result<Framing, ModelError> {
    let props = server.props().await?;
    let refuse = |what: String| ModelError::Template { digest: template_digest(&props).to_string(), what };
    let (raw, names) = read_tools(tools).map_err(refuse)?;
    let renderer = Renderer { server, tools: raw, thinking: reasoning.enabled };
    let compiler = Compiler { renderer, names };

    let template =
        format!("{}{}", props.chat_template, props.chat_template_tool_use.as_deref().unwrap_or(""));
    let Plan { tools_by, family, mut head, user_open } =
        compiler.plan(&props, &template, system_prompt, tools).await?.map_err(refuse)?;
    let tags = tags_of(&template, &head);
    let mut opened = tags.is_some_and(|tags| opens_reasoning(&head.close, tags));
    if let Some((_, close)) = tags
        && opened
        && !reasoning.enabled
    {
        // The template has no form without thinking: close it ourselves.
        head.close.push_str(&closing(close));
        opened = false;
    }

    let by_template = match tools_by {
        ToolsBy::Template => compiler.tool_results(&user_open).await?.ok(),
        ToolsBy::SystemPrompt => None,
    };
    // A tool result must leave the assistant where a user's message leaves it.
    let by_template =
        by_template.filter(|t| tags.is_none_or(|tags| opens_reasoning(&t.close, tags) == opened));
    let tool_results_by =
        if by_template.is_some() { ToolResultsBy::Template } else { ToolResultsBy::UserMessage };
    let tool = by_template.unwrap_or_else(|| as_user_message(&user_open, &head.close));

    let ids = async |text: &str| server.tokenize(text, Special::Parse).await.map(TokenIds);
    Ok(Framing {
        tool_family: family,
        tools_by,
        tool_results_by,
        head: TokenIds(head_ids(server, &head.text).await?),
        user_open: ids(&user_open).await?,
        user_close: ids(&head.close).await?,
        tool_open: ids(&tool.open).await?,
        tool_between: ids(&tool.between).await?,
        tool_close: ids(&tool.close).await?,
        stand_in: STAND_IN.to_owned(),
        stand_in_ids: TokenIds(server.tokenize(STAND_IN, Special::Plain).await?),
        reasoning: match tags {
            None => None,
            Some((open, close)) => Some(ReasoningTags {
                open: open.to_owned(),
                close: close.to_owned(),
                opened_by_prompt: opened,
                close_ids: ids(&closing(close)).await?,
            }),
        },
    })
}

/// What closes reasoning, as most templates write it.
fn closing(tag: &str) -> String {
    format!("\n{tag}\n\n")
}

fn as_user_message(user_open: &str, user_close: &str) -> ToolTexts {
    let (before, between, after) = RESULT_AS_USER;
    ToolTexts {
        open: format!("{user_open}{before}"),
        between: between.to_owned(),
        close: format!("{after}{user_close}"),
    }
}

/// The tools as they stand, and the names of the first two.
fn read_tools(tools: &str) -> Result<(&RawValue, (String, String)), Refusal> {
    let bad = |e: &dyn std::fmt::Display| format!("the tools are not a JSON array of functions: {e}");
    let raw: &RawValue = serde_json::from_str(tools).map_err(|e| bad(&e))?;
    let list: Vec<Value> = serde_json::from_str(tools).map_err(|e| bad(&e))?;
    let name = |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str).map(str::to_owned);
    let names: Option<Vec<String>> = list.iter().map(name).collect();
    match names.as_deref() {
        Some([first, .., last]) => Ok((raw, (first.clone(), last.clone()))),
        Some([only]) => Ok((raw, (only.clone(), only.clone()))),
        _ => Err(bad(&"at least one, each with a name")),
    }
}

/// The head's ids, with what the tokenizer puts before every text (as a BOS token), but not twice: some
/// templates write it themselves, and some servers then take it away.
async fn head_ids(server: &Server, text: &str) -> Result<Vec<TokenId>, ModelError> {
    let plain = server.tokens(text, Special::Parse, false).await?;
    let full = server.tokens(text, Special::Parse, true).await?;
    Ok(with_prefix(plain, &full))
}

/// `plain`, after what `full` has before it, unless `plain` begins with that already. What `full` has
/// after it (as an EOS token) is not part of a prompt.
fn with_prefix(plain: Vec<TokenId>, full: &[TokenId]) -> Vec<TokenId> {
    let Some(at) = full.windows(plain.len().max(1)).position(|window| window == plain) else {
        // Nothing to compare: what the server itself would send.
        return full.to_vec();
    };
    let prefix = full.get(..at).unwrap_or_default();
    if plain.starts_with(prefix) { plain } else { [prefix, &plain].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bos_token_comes_once() {
        assert_eq!(with_prefix(vec![5, 6], &[5, 6]), [5, 6], "the tokenizer adds none");
        assert_eq!(with_prefix(vec![5, 6], &[1, 5, 6]), [1, 5, 6], "the server took it from the text");
        assert_eq!(with_prefix(vec![1, 5, 6], &[1, 1, 5, 6]), [1, 5, 6], "the template wrote it");
        assert_eq!(with_prefix(vec![5, 6], &[1, 5, 6, 2]), [1, 5, 6], "an EOS is not wanted");
        assert_eq!(with_prefix(vec![], &[1]), [1], "an empty head");
    }

    #[test]
    fn tools_must_be_functions_with_names() {
        let (_, names) = read_tools(r#"[{"function":{"name":"a"}},{"function":{"name":"b"}}]"#).unwrap();
        assert_eq!(names, ("a".to_owned(), "b".to_owned()));
        for bad in ["", "{}", "[]", "[1]", r#"[{"function":{}}]"#] {
            assert!(read_tools(bad).is_err(), "{bad}");
        }
    }
}
