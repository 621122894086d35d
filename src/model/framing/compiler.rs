//! Finds each fragment of a template by rendering histories that must agree.

use serde_json::Value;

use super::detect::{reasoning_tags, tool_family, tools_paragraph};
use super::render::{
    MARK, MARK_2, Refusal, Renderer, SAID, after_last, around, assistant, calling, from_turn_end, result,
    system, user,
};
use crate::model::error::ModelError;
use crate::model::props::Props;
use crate::model::reply::ReplyParser;
use crate::proto::{ToolFamily, ToolsBy};

const FAMILIES: [ToolFamily; 5] =
    [ToolFamily::Mistral, ToolFamily::Glm, ToolFamily::QwenCoder, ToolFamily::Hermes, ToolFamily::Llama];

type Tags = (&'static str, &'static str);

/// How the instructions reach the model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Instructions {
    AsSystem,
    /// For templates without system messages: before the first user's text.
    AsUser,
}

/// The beginning of every prompt, up to the first user's text, and what follows that text.
pub(super) struct Head {
    pub(super) instructions: Instructions,
    pub(super) text: String,
    pub(super) close: String,
}

/// What every framing needs.
pub(super) struct Plan {
    pub(super) tools_by: ToolsBy,
    pub(super) family: ToolFamily,
    pub(super) head: Head,
    pub(super) user_open: String,
}

/// Fragments as text.
pub(super) struct ToolTexts {
    pub(super) open: String,
    pub(super) between: String,
    pub(super) close: String,
}

pub(super) struct Compiler<'a> {
    pub(super) renderer: Renderer<'a>,
    pub(super) names: (String, String),
}

/// The reasoning tags that the template or the prompt's end names.
pub(super) fn tags_of(template: &str, head: &Head) -> Option<Tags> {
    reasoning_tags(template).or_else(|| reasoning_tags(&head.close))
}

/// A text without reasoning tags and whitespace.
fn bare(text: &str, tags: Option<Tags>) -> String {
    let (open, close) = tags.unwrap_or(("\n", "\n"));
    text.replace(open, "").replace(close, "").split_whitespace().collect()
}

/// Whether a family's parser finds the call that was rendered.
fn reads_call(family: ToolFamily, written: &str, name: &str) -> bool {
    let mut parser = ReplyParser::new(family, None);
    parser.feed(written);
    let (_, reply) = parser.finish();
    reply
        .calls
        .first()
        .is_some_and(|call| call.problem.is_none() && call.name == name && call.arguments.contains(SAID))
}

impl Compiler<'_> {
    /// Finds who shows the tools, and all that every framing needs.
    pub(super) async fn plan(
        &self,
        props: &Props,
        template: &str,
        system_prompt: &str,
        tools: &str,
    ) -> Result<Result<Plan, Refusal>, ModelError> {
        if props.supports_tools != Some(false)
            && let Ok(plan) = self.by_template(template, system_prompt).await?
        {
            return Ok(Ok(plan));
        }
        let instructions = format!("{system_prompt}\n\n{}", tools_paragraph(tools));
        let head = match self.head(instructions.trim_start(), false).await? {
            Ok(head) => head,
            Err(why) => return Ok(Err(why)),
        };
        let user_open = self.user_open(template, system_prompt, &head).await?;
        let (tools_by, family) = (ToolsBy::SystemPrompt, ToolFamily::Hermes);
        Ok(user_open.map(|user_open| Plan { tools_by, family, head, user_open }))
    }

    /// The plan for a template that shows tools and writes calls as we read them.
    async fn by_template(
        &self,
        template: &str,
        system_prompt: &str,
    ) -> Result<Result<Plan, Refusal>, ModelError> {
        let head = match self.head(system_prompt, true).await? {
            Ok(head) if self.shows_tools(&head.text, system_prompt) => head,
            Ok(_) => return Ok(Err("it does not show the tools".to_owned())),
            Err(why) => return Ok(Err(why)),
        };
        let user_open = match self.user_open(template, system_prompt, &head).await? {
            Ok(user_open) => user_open,
            Err(why) => return Ok(Err(why)),
        };
        let family = self.family(template, &head, &user_open).await?;
        let tools_by = ToolsBy::Template;
        Ok(family.map(|family| Plan { tools_by, family, head, user_open }))
    }

    /// Whether the tools appear; a system prompt that names them does not count.
    fn shows_tools(&self, head: &str, system_prompt: &str) -> bool {
        let said = system_prompt.trim();
        let rest = if said.is_empty() { head.to_owned() } else { head.replacen(said, "", 1) };
        rest.contains(&self.names.0) && rest.contains(&self.names.1)
    }

    /// The family in whose words the template itself writes a call: the one whose parser reads it back.
    async fn family(
        &self,
        template: &str,
        head: &Head,
        user_open: &str,
    ) -> Result<Result<ToolFamily, Refusal>, ModelError> {
        let name = self.names.0.as_str();
        let call = calling(&[("call00001", name, &format!("{{\"query\": \"{SAID}\"}}"))]);
        let history = [user(MARK), call, result("call00001", name, MARK_2)];
        let rendered = self.renderer.render(&history, true).await?;
        let written = rendered.and_then(|prompt| {
            let (_, rest) = around(&prompt, MARK)?;
            let (turn, _) = around(rest, MARK_2)?;
            let turn = turn.strip_prefix(&head.close).unwrap_or(turn);
            let end = from_turn_end(after_last(turn, SAID)?, user_open)?.len();
            Ok(turn.get(..turn.len().saturating_sub(end)).unwrap_or_default().to_owned())
        });
        Ok(written.and_then(|written| {
            let reads = |family: &ToolFamily| reads_call(*family, &written, name);
            let known = tool_family(template).into_iter().chain(FAMILIES);
            known.into_iter().find(reads).ok_or_else(|| "it writes tool calls in unknown words".to_owned())
        }))
    }

    /// What stands between an assistant's text and a later user's, if all messages are framed as this
    /// module assumes.
    async fn user_open(
        &self,
        template: &str,
        system_prompt: &str,
        head: &Head,
    ) -> Result<Result<String, Refusal>, ModelError> {
        let (open, close) = match self.later_user(system_prompt, head).await? {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        if close != head.close {
            return Ok(Err("it ends the first user message in another way than a later one".to_owned()));
        }
        let history = [user(MARK), assistant(SAID), user("q")];
        let rendered = self.renderer.render(&history, false).await?;
        let tags = tags_of(template, head);
        Ok(rendered.and_then(|prompt| {
            let (before, _) = around(around(&prompt, MARK)?.1, SAID)?;
            let extra = bare(before, tags);
            if bare(&close, tags).starts_with(&extra) {
                return Ok(open);
            }
            Err(format!("an assistant's text has a structure that is not understood ({:?})", before.trim()))
        }))
    }

    async fn head(&self, said: &str, with_tools: bool) -> Result<Result<Head, Refusal>, ModelError> {
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
    pub(super) async fn tool_results(
        &self,
        user_open: &str,
    ) -> Result<Result<ToolTexts, Refusal>, ModelError> {
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
