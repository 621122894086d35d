//! Compiles a chat template, once, into fragments of token ids that do not depend on the history.
//!
//! Sentinels are rendered through the server's own template engine, each fragment with two different
//! histories; only what agrees is used. Where tool messages do not agree, results go as user messages;
//! where the template shows no tools, we show them; where even user messages do not agree, the template
//! is refused.

mod detect;
mod render;

use serde_json::Value;
use serde_json::value::RawValue;

use super::error::ModelError;
use super::props::Props;
use super::server::{Server, Special, template_digest};
use crate::proto::{
    Framing, ReasoningSettings, ReasoningTags, TokenId, TokenIds, ToolFamily, ToolResultsBy, ToolsBy,
};
use detect::{RESULT_AS_USER, opens_reasoning, reasoning_tags, tool_family, tools_paragraph};
use render::{
    MARK, MARK_2, Refusal, Renderer, SAID, after_last, around, assistant, calling, from_turn_end, result,
    system, user,
};

/// What stands where the assistant said nothing.
const STAND_IN: &str = "(no answer)";

/// How the instructions reach the model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Instructions {
    AsSystem,
    /// For templates without system messages: before the first user's text.
    AsUser,
}

/// The beginning of every prompt, up to the first user's text, and what follows that text.
struct Head {
    instructions: Instructions,
    text: String,
    close: String,
}

/// Fragments as text.
struct ToolTexts {
    open: String,
    between: String,
    close: String,
}

struct Compiler<'a> {
    renderer: Renderer<'a>,
    names: (String, String),
}

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

    let (tools_by, family, mut head) = compiler.head(&props, system_prompt, tools).await?.map_err(refuse)?;
    let (user_open, later_close) = compiler.later_user(system_prompt, &head).await?.map_err(refuse)?;
    if later_close != head.close {
        return Err(refuse("it ends the first user message in another way than a later one".to_owned()));
    }

    let template =
        format!("{}{}", props.chat_template, props.chat_template_tool_use.as_deref().unwrap_or(""));
    let tags = reasoning_tags(&template).or_else(|| reasoning_tags(&head.close));
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

impl Compiler<'_> {
    /// Finds who shows the tools, and renders the head.
    async fn head(
        &self,
        props: &Props,
        system_prompt: &str,
        tools: &str,
    ) -> Result<Result<(ToolsBy, ToolFamily, Head), Refusal>, ModelError> {
        let template = props.chat_template_tool_use.as_deref().unwrap_or(&props.chat_template);
        if props.supports_tools != Some(false)
            && let Some(family) = tool_family(template)
            && let Ok(head) = self.head_with(system_prompt, true).await?
            && head.text.contains(&self.names.0)
            && head.text.contains(&self.names.1)
        {
            return Ok(Ok((ToolsBy::Template, family, head)));
        }
        let instructions = format!("{system_prompt}\n\n{}", tools_paragraph(tools));
        let head = self.head_with(instructions.trim_start(), false).await?;
        Ok(head.map(|head| (ToolsBy::SystemPrompt, ToolFamily::Hermes, head)))
    }

    async fn head_with(&self, said: &str, with_tools: bool) -> Result<Result<Head, Refusal>, ModelError> {
        let as_user = if said.is_empty() { MARK.to_owned() } else { format!("{said}\n\n{MARK}") };
        let mut ways = vec![(Instructions::AsUser, vec![user(&as_user)])];
        if !said.is_empty() {
            ways.insert(0, (Instructions::AsSystem, vec![system(said), user(MARK)]));
        }
        let mut refusal = Refusal::new();
        for (instructions, messages) in ways {
            let rendered = self.renderer.render(&messages, with_tools).await?;
            let head = rendered.and_then(|prompt| {
                let (text, close) = around(&prompt, MARK)?;
                if !text.contains(said.trim()) {
                    return Err("the system prompt does not appear in its output as it is".to_owned());
                }
                Ok(Head { instructions, text: text.to_owned(), close: close.to_owned() })
            });
            match head {
                Ok(head) => return Ok(Ok(head)),
                Err(why) => refusal = format!("it does not render a first user message: {why}"),
            }
        }
        Ok(Err(refusal))
    }

    /// What surrounds a user's text after an assistant's. Some templates repeat the tools or the system
    /// prompt before the newest message; without them they do not.
    async fn later_user(
        &self,
        system_prompt: &str,
        head: &Head,
    ) -> Result<Result<(String, String), Refusal>, ModelError> {
        let as_system = head.instructions == Instructions::AsSystem && !system_prompt.trim().is_empty();
        let mut refusal = Refusal::new();
        for (with_system, with_tools) in [(as_system, true), (as_system, false), (false, false)] {
            let before: &[Value] = if with_system { &[system(system_prompt)] } else { &[] };
            let histories = [
                [before, &[user("q"), assistant(SAID), user(MARK)]].concat(),
                [before, &[user("why"), assistant("so"), user("then"), assistant(SAID), user(MARK)]].concat(),
            ];
            let found = self.agree(&histories, with_tools, |prompt| {
                let (open, close) = around(after_last(prompt, SAID)?, MARK)?;
                Ok((open.to_owned(), close.to_owned()))
            });
            match found.await? {
                Ok((open, _)) if self.repeats(&open, system_prompt) => {
                    refusal = "it repeats the tools or the system prompt before each user message".to_owned();
                }
                Ok((open, _)) if open.trim().is_empty() => {
                    refusal = "it does not mark where an assistant's message ends".to_owned();
                }
                Ok(found) => return Ok(Ok(found)),
                Err(why) => refusal = format!("it does not render later user messages alike: {why}"),
            }
        }
        Ok(Err(refusal))
    }

    fn repeats(&self, fragment: &str, system_prompt: &str) -> bool {
        let said = system_prompt.trim();
        (!said.is_empty() && fragment.contains(said))
            || fragment.contains(&self.names.0)
            || fragment.contains(&self.names.1)
    }

    /// What surrounds the results of an assistant's calls: as one result and as two, of different tools,
    /// ids, arguments and histories.
    async fn tool_results(&self, user_open: &str) -> Result<Result<ToolTexts, Refusal>, ModelError> {
        let (one, two) = (self.names.0.as_str(), self.names.1.as_str());
        let said = format!("{{\"query\": \"{SAID}\"}}");
        let other = format!("{{\"name\": \"x\", \"arguments\": {{\"query\": \"{SAID}\"}}}}");
        let single = [
            vec![user("q"), calling(&[("call00001", one, &said)]), result("call00001", one, MARK)],
            vec![
                user("why"),
                calling(&[("call00007", one, "{\"query\": \"y\"}")]),
                result("call00007", one, "z"),
                calling(&[("call00008", two, &other)]),
                result("call00008", two, MARK),
            ],
        ];
        let cut = |prompt: &str| -> Result<(String, String), Refusal> {
            let (open, close) = around(after_last(prompt, SAID)?, MARK)?;
            Ok((from_turn_end(open, user_open)?.to_owned(), close.to_owned()))
        };
        let (open, close) = match self.agree(&single, true, cut).await? {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        let results = [result("call00001", one, MARK), result("call00002", two, MARK_2)];
        // Templates that allow one call a message still take two results.
        let both = calling(&[("call00001", one, "{\"query\": \"y\"}"), ("call00002", two, &other)]);
        let alone = calling(&[("call00001", one, &said)]);
        for call in [both, alone] {
            let history = [[&[user("q"), call], &results[..]].concat()];
            let found = self.agree(&history, true, |prompt| {
                let (first, rest) = around(after_last(prompt, SAID)?, MARK)?;
                let (between, last) = around(rest, MARK_2)?;
                if from_turn_end(first, user_open)? != open || last != close {
                    return Err("two tool results are surrounded in another way than one".to_owned());
                }
                Ok(between.to_owned())
            });
            if let Ok(between) = found.await? {
                return Ok(Ok(ToolTexts { open, between, close }));
            }
        }
        Ok(Err("it does not render two tool results as it renders one".to_owned()))
    }

    /// What `cut` finds in each history, if it is the same in all.
    async fn agree<T: PartialEq>(
        &self,
        histories: &[Vec<Value>],
        with_tools: bool,
        cut: impl Fn(&str) -> Result<T, Refusal>,
    ) -> Result<Result<T, Refusal>, ModelError> {
        let mut agreed: Option<T> = None;
        for history in histories {
            let rendered = self.renderer.render(history, with_tools).await?;
            let found = match rendered.and_then(|prompt| cut(&prompt)) {
                Ok(found) => found,
                Err(why) => return Ok(Err(why)),
            };
            match &agreed {
                Some(first) if *first != found => {
                    return Ok(Err("its output depends on earlier messages".to_owned()));
                }
                _ => agreed = Some(found),
            }
        }
        Ok(agreed.ok_or_else(|| "nothing was rendered".to_owned()))
    }
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
