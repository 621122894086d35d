//! Calls of tools, as each family writes them.

use crate::proto::ToolFamily;

use super::{json, xml};

/// What a call is named whose own name cannot be read.
const UNNAMED: &str = "unreadable_call";

/// A call of a tool, as far as it can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedCall {
    /// The tool's name.
    pub name: String,
    /// A JSON object, exactly as the model wrote it; for the XML families (Qwen-Coder, GLM), put together
    /// from what the model wrote. With a problem: what can be read of it, as it stands.
    pub arguments: String,
    /// Why the call must not be run, in words for the model.
    pub problem: Option<String>,
}

impl ParsedCall {
    /// A call with something wrong.
    pub(super) fn bad(name: Option<String>, raw: &str, problem: String) -> Self {
        let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| UNNAMED.to_owned());
        Self { name, arguments: raw.trim().to_owned(), problem: Some(problem) }
    }

    /// A call whose arguments are a JSON value; it must be an object that can be read again.
    pub(super) fn checked(name: String, arguments: &str) -> Self {
        let arguments = arguments.trim();
        if name.trim().is_empty() {
            return Self::bad(None, arguments, "the call has no name".to_owned());
        }
        match serde_json::from_str::<serde_json::Value>(arguments) {
            Ok(serde_json::Value::Object(_)) => Self { name, arguments: arguments.to_owned(), problem: None },
            Ok(_) => {
                Self::bad(Some(name), arguments, "the call's arguments are not a JSON object".to_owned())
            }
            Err(e) => {
                let why = format!("the call's arguments are not valid JSON: {e}");
                Self::bad(Some(name), arguments, why)
            }
        }
    }
}

/// The calls in what stands after `open`, up to the closing tag or, when not `closed`, the reply's end.
pub(super) fn read(family: ToolFamily, open: &str, body: &str, closed: bool) -> Vec<ParsedCall> {
    match family {
        ToolFamily::Hermes => json::hermes(body, closed),
        ToolFamily::Llama => json::llama(body),
        ToolFamily::Mistral => json::mistral(body),
        ToolFamily::Glm => vec![xml::glm(body, closed)],
        ToolFamily::QwenCoder => xml::qwen_coder(open, body, closed),
    }
}
