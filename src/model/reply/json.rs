//! The families that write calls as JSON: Hermes, Llama, Mistral.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::calls::ParsedCall;

/// Models mix up the two words for arguments.
#[derive(Deserialize)]
struct Call<'a> {
    name: String,
    #[serde(borrow, default, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

impl Call<'_> {
    fn parsed(self) -> ParsedCall {
        ParsedCall::checked(self.name, self.arguments.map_or("{}", RawValue::get))
    }
}

/// `{"name": …, "arguments": …}`; several in a row, or a list of them, are several calls.
pub(super) fn hermes(body: &str, closed: bool) -> Vec<ParsedCall> {
    let (mut calls, problem) = objects(body, ';');
    if let Some(problem) = problem {
        let problem = if closed { problem } else { format!("the call is cut off: {problem}") };
        calls.push(ParsedCall::bad(name_in(body), body, problem));
    }
    calls
}

/// The same, after `<|python_tag|>`; separated by semicolons. Code for an interpreter is not a call.
pub(super) fn llama(body: &str) -> Vec<ParsedCall> {
    hermes(body, true)
}

/// A whole reply that begins with `{`: calls if it looks like one, else `None`.
pub(super) fn bare_calls(reply: &str) -> Option<Vec<ParsedCall>> {
    let (mut calls, problem) = objects(reply, ';');
    match problem {
        None if !calls.is_empty() => Some(calls),
        Some(problem) if reply.contains("\"name\"") && reply.contains("\"parameters\"") => {
            calls.push(ParsedCall::bad(name_in(reply), reply, problem));
            Some(calls)
        }
        _ => None,
    }
}

/// `[TOOL_CALLS]` with a list of calls, or with `name[ARGS]{…}`, and again.
pub(super) fn mistral(body: &str) -> Vec<ParsedCall> {
    let body = body.trim();
    if body.is_empty() || body.starts_with('[') || body.starts_with('{') {
        return hermes(body, true);
    }
    body.split("[TOOL_CALLS]").filter(|call| !call.trim().is_empty()).map(mistral_named).collect()
}

fn mistral_named(call: &str) -> ParsedCall {
    let (name, arguments) = match call.split_once("[ARGS]") {
        Some(found) => found,
        // Without the mark, the arguments begin where the JSON does.
        None => match call.find('{').and_then(|at| call.split_at_checked(at)) {
            Some(found) => found,
            None => return ParsedCall::bad(None, call, "the call has no arguments".to_owned()),
        },
    };
    let name = name.split("[CALL_ID]").next().unwrap_or(name).trim();
    ParsedCall::checked(name.to_owned(), arguments)
}

/// All the calls in a text, and what is wrong with what follows them.
fn objects(body: &str, separator: char) -> (Vec<ParsedCall>, Option<String>) {
    let not_json = |e: &dyn std::fmt::Display| Some(format!("the call is not valid JSON: {e}"));
    let mut rest = body.trim();
    if rest.starts_with('[') {
        return match serde_json::from_str::<Vec<Call<'_>>>(rest) {
            Ok(calls) => (calls.into_iter().map(Call::parsed).collect(), None),
            Err(e) => (Vec::new(), not_json(&e)),
        };
    }
    let mut calls = Vec::new();
    if rest.is_empty() {
        return (calls, Some("the call is empty".to_owned()));
    }
    while !rest.is_empty() {
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Call<'_>>();
        match stream.next() {
            Some(Ok(call)) => calls.push(call.parsed()),
            Some(Err(e)) => return (calls, not_json(&e)),
            None => break,
        }
        let after = rest.get(stream.byte_offset()..).unwrap_or_default();
        rest = after.trim_start().trim_start_matches(separator).trim_start();
    }
    (calls, None)
}

/// The name in JSON that cannot be read as a whole.
fn name_in(body: &str) -> Option<String> {
    let (_, rest) = body.split_once("\"name\"")?;
    let value = rest.trim_start().strip_prefix(':')?.trim_start();
    let mut texts = serde_json::Deserializer::from_str(value).into_iter::<String>();
    texts.next()?.ok()
}
