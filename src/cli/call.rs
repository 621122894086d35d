//! Tool calls as people know them: by the tool's own name, not by the two tools that the model is shown.

use serde_json::Value;

use super::text;
use crate::proto::{CallId, Decision, ToolOutcome};

/// The tool's own name and arguments. What the model wrote otherwise is given back as it is.
#[must_use]
pub fn shown(name: &str, arguments: &str) -> (String, String) {
    own(name, arguments).unwrap_or_else(|| (name.to_owned(), arguments.to_owned()))
}

fn own(name: &str, arguments: &str) -> Option<(String, String)> {
    if name != "call_tool" {
        return None;
    }
    let outer: Value = serde_json::from_str(arguments).ok()?;
    let name = outer.get("name")?.as_str()?;
    let arguments = match outer.get("arguments") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    Some((name.to_owned(), arguments))
}

/// The word for a tool's outcome, the same as in JSON.
#[must_use]
pub fn outcome_name(outcome: ToolOutcome) -> &'static str {
    match outcome {
        ToolOutcome::Ok => "ok",
        ToolOutcome::Error => "error",
        ToolOutcome::Denied => "denied",
        ToolOutcome::TimedOut => "timed_out",
        ToolOutcome::Interrupted => "interrupted",
    }
}

/// Who has decided about a call, as one line.
#[must_use]
pub fn decided_line(call: CallId, decision: Decision, by: &str) -> String {
    let decision = if decision == Decision::Allow { "allowed" } else { "denied" };
    format!("⚙ call {call} {decision} by {}", text::line(by))
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn the_tools_own_name_is_shown() {
        let of = |name: &str, arguments: &str| {
            let (name, arguments) = shown(name, arguments);
            format!("{name} {arguments}")
        };
        assert_eq!(
            of("call_tool", r#"{"name":"clock","arguments":{"zone":"UTC"}}"#),
            r#"clock {"zone":"UTC"}"#
        );
        assert_eq!(of("call_tool", r#"{"name":"clock","arguments":"{\"a\":1}"}"#), r#"clock {"a":1}"#);
        assert_eq!(of("call_tool", r#"{"name":"clock"}"#), "clock ");
        assert_eq!(of("call_tool", "{broken"), "call_tool {broken");
        assert_eq!(of("find_tool", r#"{"name":"x"}"#), r#"find_tool {"name":"x"}"#);
    }
}
