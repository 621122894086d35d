//! Renders messages through the server's `/apply-template` and cuts the result at sentinels.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::model::error::ModelError;
use crate::model::server::Server;

/// Stands for the last text of an assistant.
pub(super) const SAID: &str = "QZXSAIDQZX";
/// Stands for a user's text or a first tool result.
pub(super) const MARK: &str = "QZXMARKQZX";
/// Stands for a second tool result.
pub(super) const MARK_2: &str = "QZXNEXTQZX";

/// Why a rendering is of no use, in words.
pub(super) type Refusal = String;

/// Renders with one set of tools and one setting for reasoning.
pub(super) struct Renderer<'a> {
    pub(super) server: &'a Server,
    pub(super) tools: &'a RawValue,
    pub(super) thinking: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    messages: &'a [Value],
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    add_generation_prompt: bool,
    chat_template_kwargs: Value,
}

impl Renderer<'_> {
    /// The prompt of these messages. The outer error is the server's, the inner one the template's.
    pub(super) async fn render(
        &self,
        messages: &[Value],
        with_tools: bool,
    ) -> Result<Result<String, Refusal>, ModelError> {
        #[derive(serde::Deserialize)]
        struct Answer {
            prompt: String,
        }
        let body = Body {
            messages,
            tools: with_tools.then_some(self.tools),
            add_generation_prompt: true,
            // Templates differ in the name; one that they do not know is ignored.
            chat_template_kwargs: json!({"enable_thinking": self.thinking, "thinking": self.thinking}),
        };
        match self.server.post::<_, Answer>("/apply-template", &body, self.server.silence).await {
            Ok(answer) => Ok(Ok(answer.prompt)),
            Err(ModelError::Status { code: 400 | 500, body, .. }) => Ok(Err(body)),
            Err(e) => Err(e),
        }
    }
}

pub(super) fn system(content: &str) -> Value {
    json!({"role": "system", "content": content})
}

pub(super) fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

pub(super) fn assistant(content: &str) -> Value {
    json!({"role": "assistant", "content": content})
}

/// An assistant's message that calls tools; `calls` are ids, names and arguments.
pub(super) fn calling(calls: &[(&str, &str, &str)]) -> Value {
    let calls: Vec<Value> = calls
        .iter()
        .map(|(id, name, arguments)| {
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    json!({"role": "assistant", "content": "", "tool_calls": calls})
}

pub(super) fn result(id: &str, name: &str, content: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "name": name, "content": content})
}

/// The two sides of a mark that must stand in the text exactly once.
pub(super) fn around<'t>(text: &'t str, mark: &str) -> Result<(&'t str, &'t str), Refusal> {
    let Some((before, after)) = text.split_once(mark) else {
        return Err("a message's text does not appear in its output".to_owned());
    };
    if after.contains(mark) {
        return Err("a message's text appears twice in its output".to_owned());
    }
    Ok((before, after))
}

/// What follows the last appearance of a mark.
pub(super) fn after_last<'t>(text: &'t str, mark: &str) -> Result<&'t str, Refusal> {
    text.rsplit_once(mark)
        .map(|(_, after)| after)
        .ok_or_else(|| "an assistant's text does not appear in its output".to_owned())
}

/// The part of `text` from where it first says how an assistant's turn ends: with the longest beginning
/// of `user_open` that it contains at all.
pub(super) fn from_turn_end<'t>(text: &'t str, user_open: &str) -> Result<&'t str, Refusal> {
    let mut ends = user_open.char_indices().map(|(at, c)| at.saturating_add(c.len_utf8())).rev();
    let found = ends.find_map(|end| {
        let beginning = user_open.get(..end).filter(|b| !b.trim().is_empty())?;
        text.find(beginning)
    });
    found
        .and_then(|at| text.get(at..))
        .ok_or_else(|| "a tool call's end is not that of another message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_must_stand_exactly_once() {
        assert_eq!(around("aMb", "M"), Ok(("a", "b")));
        assert!(around("ab", "M").is_err());
        assert!(around("aMbM", "M").is_err());
    }

    #[test]
    fn the_end_of_a_turn_is_found_in_every_kind_of_template() {
        let chatml = "\"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n";
        assert_eq!(
            from_turn_end(chatml, "<|im_end|>\n<|im_start|>user\n"),
            Ok("<|im_end|>\n<|im_start|>user\n<tool_response>\n")
        );
        let llama = "\"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n\"";
        assert_eq!(
            from_turn_end(llama, "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"),
            Ok("<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n\"")
        );
        let glm = "</arg_value>\n</tool_call><|observation|>\n<tool_response>\n";
        assert_eq!(from_turn_end(glm, "<|user|>\n"), Ok("<|observation|>\n<tool_response>\n"));
        assert!(from_turn_end("nothing", "\n<|user|>\n").is_err());
    }
}
