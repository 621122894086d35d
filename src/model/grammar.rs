//! Grammars that keep a call of a tool well formed once the model has begun it. The server applies one from the call's
//! opening tag on and leaves everything before free. No part of the prompt: it can change without a new epoch.

use serde::Serialize;

use crate::proto::ToolFamily;

/// One call a message, of one of the two tools, with arguments nested up to three levels. One call: a small model that
/// may write nothing else after it writes the same again, and it would run twice. Three levels: a small model does not
/// find out of deeper ones.
const HERMES: &str = r#"
root ::= "<tool_call>" s "{" s "\"name\":" s (find | run) s "}" s "</tool_call>"
find ::= "\"find_tool\"" s "," s "\"arguments\":" s "{" s "\"query\":" s string s "}"
run ::= "\"call_tool\"" s "," s "\"arguments\":" s "{" s "\"name\":" s string s "," s "\"arguments\":" s o1 s "}"
o1 ::= "{" s (string s ":" s v1 s ("," s string s ":" s v1 s)*)? "}"
v1 ::= plain | o2 | "[" s (v2 s ("," s v2 s)*)? "]"
o2 ::= "{" s (string s ":" s v2 s ("," s string s ":" s v2 s)*)? "}"
v2 ::= plain | o3 | "[" s (v3 s ("," s v3 s)*)? "]"
o3 ::= "{" s (string s ":" s v3 s ("," s string s ":" s v3 s)*)? "}"
v3 ::= plain | "[" s (plain s ("," s plain s)*)? "]"
plain ::= string | number | "true" | "false" | "null"
string ::= "\"" ([^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?
s ::= | " " | "\n" [ \t]{0,8}
"#;

/// The server's number for a trigger that is a text.
const TEXT: u8 = 1;

/// A grammar, as the server takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct GrammarBody {
    grammar: &'static str,
    grammar_lazy: bool,
    grammar_triggers: [Trigger; 1],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Trigger {
    #[serde(rename = "type")]
    kind: u8,
    value: &'static str,
}

/// The grammar of a family's calls. None for families whose calls have no opening tag, or are not JSON: they are
/// only parsed.
pub(super) fn of(family: ToolFamily) -> Option<GrammarBody> {
    match family {
        ToolFamily::Hermes => Some(GrammarBody {
            grammar: HERMES,
            grammar_lazy: true,
            grammar_triggers: [Trigger { kind: TEXT, value: "<tool_call>" }],
        }),
        ToolFamily::QwenCoder | ToolFamily::Llama | ToolFamily::Mistral | ToolFamily::Glm => None,
    }
}
