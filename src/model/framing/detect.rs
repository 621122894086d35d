//! What a template's text says about the model: its words for tools and for reasoning.

use crate::proto::ToolFamily;

/// Pairs of reasoning tags, the commonest last: an earlier pair that a template has is more telling.
const REASONING_TAGS: &[(&str, &str)] = &[
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("<think>", "</think>"),
];

/// The words in which the model of this template calls tools; `None` when they are none that we read.
pub(super) fn tool_family(template: &str) -> Option<ToolFamily> {
    let has = |words: &str| template.contains(words);
    if has("[TOOL_CALLS]") {
        Some(ToolFamily::Mistral)
    } else if has("<arg_key>") {
        Some(ToolFamily::Glm)
    } else if has("<function=") && has("<parameter=") {
        Some(ToolFamily::QwenCoder)
    } else if has("<tool_call>") {
        Some(ToolFamily::Hermes)
    } else if has("\"parameters\": ") && (has("ipython") || has("<|python_tag|>")) {
        Some(ToolFamily::Llama)
    } else {
        None
    }
}

/// The reasoning tags of the model of this template, if it has any.
pub(super) fn reasoning_tags(template: &str) -> Option<(&'static str, &'static str)> {
    REASONING_TAGS.iter().copied().find(|(open, close)| template.contains(open) || template.contains(close))
}

/// Whether a prompt that ends so has begun reasoning and not closed it.
pub(super) fn opens_reasoning(prompt_end: &str, (open, close): (&str, &str)) -> bool {
    match (prompt_end.rfind(open), prompt_end.rfind(close)) {
        (Some(open), Some(close)) => open > close,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// The tools as a paragraph of the system prompt, for templates that do not show them: Hermes' words,
/// cut to the bone for small contexts.
pub(super) fn tools_paragraph(tools: &str) -> String {
    format!(
        "You can call these tools:\n<tools>\n{tools}\n</tools>\nTo call one, write:\n<tool_call>\n\
         {{\"name\": \"NAME\", \"arguments\": {{…}}}}\n</tool_call>\nIts result follows in \
         <tool_response></tool_response>."
    )
}

/// A tool result as a user's message: before it, between two, after it.
pub(super) const RESULT_AS_USER: (&str, &str, &str) =
    ("<tool_response>\n", "\n</tool_response>\n<tool_response>\n", "\n</tool_response>");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_told_apart() {
        let cases = [
            ("{{ '<tool_call>\\n' }}{{ tool | tojson }}", Some(ToolFamily::Hermes)),
            ("<tool_call>\\n<function=a>\\n<parameter=b>", Some(ToolFamily::QwenCoder)),
            ("<tool_call>{{ n }}<arg_key>", Some(ToolFamily::Glm)),
            ("[AVAILABLE_TOOLS] [TOOL_CALLS]", Some(ToolFamily::Mistral)),
            ("Environment: ipython {\"name\": x, \"parameters\": y}", Some(ToolFamily::Llama)),
            ("<|im_start|>", None),
        ];
        for (template, family) in cases {
            assert_eq!(tool_family(template), family, "{template}");
        }
    }

    #[test]
    fn reasoning_is_seen_where_it_is_open() {
        let think = ("<think>", "</think>");
        assert_eq!(reasoning_tags("a <think> b"), Some(think));
        assert_eq!(reasoning_tags("content.split('</think>')"), Some(think));
        assert_eq!(reasoning_tags("plain"), None);
        assert!(opens_reasoning("<|im_start|>assistant\n<think>\n", think));
        assert!(!opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n", think));
        assert!(!opens_reasoning("<|im_start|>assistant\n", think));
    }
}
