//! The families that write calls as tags: Qwen-Coder and GLM. Their values have no types: an object or a
//! list is taken as the JSON that it is, everything else as a text.

use serde_json::Value;

use super::calls::ParsedCall;

/// `<function=name><parameter=key>value</parameter>…</function>`, perhaps several times.
pub(super) fn qwen_coder(open: &str, body: &str, closed: bool) -> Vec<ParsedCall> {
    let bare = open == "<function=";
    let mut calls = Vec::new();
    let mut rest = if bare { Some(body) } else { body.split_once("<function=").map(|(_, rest)| rest) };
    while let Some(function) = rest {
        let (function, ended, next) = match function.split_once("</function>") {
            Some((function, next)) => (function, true, next),
            None => (function, bare && closed, ""),
        };
        calls.push(qwen_function(function, ended));
        rest = next.split_once("<function=").map(|(_, rest)| rest);
    }
    if calls.is_empty() {
        let why = "the call has no <function=NAME>".to_owned();
        calls.push(ParsedCall::bad(None, body, why));
    }
    calls
}

fn qwen_function(function: &str, ended: bool) -> ParsedCall {
    let Some((name, mut rest)) = function.split_once('>') else {
        return ParsedCall::bad(None, function, "the call is cut off inside its name".to_owned());
    };
    let name = name.trim().to_owned();
    if !ended {
        let why = "the call is cut off: </function> is missing".to_owned();
        return ParsedCall::bad(Some(name), rest, why);
    }
    let whole = rest;
    let mut arguments = Arguments::default();
    while let Some((_, parameter)) = rest.split_once("<parameter=") {
        let Some((key, value)) = parameter.split_once('>') else {
            return ParsedCall::bad(Some(name), whole, "a parameter's name is cut off".to_owned());
        };
        // A forgotten closing tag is mended by the next parameter.
        let end = value.find("</parameter>").or_else(|| value.find("<parameter=")).unwrap_or(value.len());
        let (value, next) = value.split_at_checked(end).unwrap_or((value, ""));
        arguments.add(key.trim(), one_line_less(value));
        rest = next;
    }
    arguments.call(name)
}

/// `name<arg_key>key</arg_key><arg_value>value</arg_value>…`.
pub(super) fn glm(body: &str, closed: bool) -> ParsedCall {
    let (name, mut rest) = match body.find("<arg_key>").and_then(|at| body.split_at_checked(at)) {
        Some(found) => found,
        None => (body, ""),
    };
    let name = name.trim().to_owned();
    if !closed {
        let why = "the call is cut off: </tool_call> is missing".to_owned();
        return ParsedCall::bad(Some(name), rest, why);
    }
    let whole = rest;
    let mut arguments = Arguments::default();
    while let Some((_, pair)) = rest.split_once("<arg_key>") {
        let read = pair.split_once("</arg_key>").and_then(|(key, value)| {
            let (_, value) = value.split_once("<arg_value>")?;
            let (value, next) = value.split_once("</arg_value>")?;
            Some((key, value, next))
        });
        let Some((key, value, next)) = read else {
            let why = "an argument is not <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>".to_owned();
            return ParsedCall::bad(Some(name), whole, why);
        };
        arguments.add(key.trim(), value);
        rest = next;
    }
    arguments.call(name)
}

/// A value stands on lines of its own.
fn one_line_less(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

/// A JSON object in the order in which it was written.
#[derive(Default)]
struct Arguments {
    json: String,
    keys: Vec<String>,
    twice: Option<String>,
}

impl Arguments {
    fn add(&mut self, key: &str, value: &str) {
        if self.keys.iter().any(|known| known == key) {
            self.twice = Some(key.to_owned());
        }
        self.keys.push(key.to_owned());
        if !self.json.is_empty() {
            self.json.push_str(", ");
        }
        self.json.push_str(&Value::from(key).to_string());
        self.json.push_str(": ");
        match serde_json::from_str::<Value>(value) {
            Ok(Value::Object(_) | Value::Array(_)) => self.json.push_str(value.trim()),
            _ => self.json.push_str(&Value::from(value).to_string()),
        }
    }

    fn call(self, name: String) -> ParsedCall {
        let json = format!("{{{}}}", self.json);
        match self.twice {
            Some(key) => ParsedCall::bad(Some(name), &json, format!("the argument {key:?} is given twice")),
            None => ParsedCall::checked(name, &json),
        }
    }
}
