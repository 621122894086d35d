//! Arguments as models write them: raw text, read strictly.
//!
//! The text itself is kept and passed on; what is read here only decides whether it may be.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::proto::strict_json;

/// How long arguments may be, in bytes.
pub const ARGUMENT_BYTES: usize = 1024 * 1024;

/// Reads `text` as one JSON object without duplicate keys.
///
/// # Errors
/// What is wrong, in words for the model that wrote it.
pub fn object(text: &str) -> Result<Map<String, Value>, String> {
    if text.len() > ARGUMENT_BYTES {
        return Err(format!("are {} bytes long; at most {ARGUMENT_BYTES} are allowed", text.len()));
    }
    if text.trim().is_empty() {
        return Err("are empty; write {} when there are none".to_owned());
    }
    match strict_json(text).map_err(|e| format!("are not valid JSON: {e}"))? {
        Value::Object(map) => Ok(map),
        other => Err(format!("are {}; a JSON object like {{\"key\": \"value\"}} is allowed", kind(&other))),
    }
}

/// What kind of value this is, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The arguments of `call_tool`, read.
#[derive(Debug, PartialEq)]
pub struct InnerCall {
    /// Which tool.
    pub name: String,
    /// The tool's own arguments, as the model wrote them …
    pub arguments: String,
    /// … and read.
    pub object: Map<String, Value>,
}

/// Reads the arguments of `call_tool`. The tool's own may be an object or, as small models like it, a string
/// that holds one; absent and null stand for none.
///
/// # Errors
/// What is wrong, in words for the model that wrote it.
pub fn inner_call(text: &str) -> Result<InnerCall, String> {
    let outer = object(text).map_err(|why| format!("the arguments of call_tool {why}"))?;
    if let Some(other) = outer.keys().find(|key| !matches!(key.as_str(), "name" | "arguments")) {
        return Err(format!(
            "call_tool has no {other:?}; it takes \"name\" and \"arguments\", and the tool's own go into \"arguments\""
        ));
    }
    let name = match outer.get("name") {
        Some(Value::String(name)) => name.clone(),
        Some(other) => {
            return Err(format!("\"name\" is {}; a tool's name as a string is allowed", kind(other)));
        }
        None => return Err("\"name\" is missing; give the name of the tool to call".to_owned()),
    };
    let about = |why: String| format!("the \"arguments\" for {name:?} {why}");
    let arguments = match outer.get("arguments") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(_) => raw_member(text, "arguments").ok_or_else(|| about("could not be read".to_owned()))?,
    };
    let object = object(&arguments).map_err(about)?;
    Ok(InnerCall { name, arguments, object })
}

/// The text of one member of an object, as it was written.
fn raw_member(text: &str, key: &str) -> Option<String> {
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    members.remove(key).map(|raw| raw.get().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_not_one_object_and_says_why() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(64), "]".repeat(64));
        let deeper_than_the_parser = format!("{{\"a\":{}{}}}", "[".repeat(2000), "]".repeat(2000));
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(ARGUMENT_BYTES));
        for (text, says) in [
            ("", "are empty"),
            (" \n", "are empty"),
            ("{", "EOF"),
            ("[]", "are an array"),
            ("null", "are null"),
            ("\"x\"", "are a string"),
            ("{}{}", "trailing characters"),
            ("{\"a\":1,}", "trailing comma"),
            ("{'a':1}", "key must be a string"),
            ("{\"a\":1,\"a\":2}", "the key \"a\" stands twice"),
            ("{\"b\":{\"a\":1,\"\\u0061\":2}}", "the key \"a\" stands twice"),
            ("{\"a\":1e400}", "number out of range"),
            ("{\"a\":\"\\ud800\"}", "escape"),
            ("\u{feff}{}", "expected value"),
            (deep.as_str(), "nested deeper than 64"),
            (deeper_than_the_parser.as_str(), "nested deeper than 64"),
            (long.as_str(), "bytes long"),
        ] {
            let why = object(text).unwrap_err();
            assert!(why.contains(says), "{:.40}: {why}", text);
        }
    }

    #[test]
    fn the_inner_arguments_stay_as_they_were_written() {
        let call = inner_call("{\"arguments\": {\"b\": 1.10,  \"a\":\"\\u0000\"}, \"name\": \"x\"}").unwrap();
        assert_eq!(call.name, "x");
        assert_eq!(call.arguments, "{\"b\": 1.10,  \"a\":\"\\u0000\"}");
        let call = inner_call(r#"{"name":"x","arguments":"{\"a\": 1}"}"#).unwrap();
        assert_eq!(call.arguments, "{\"a\": 1}");
        assert_eq!(call.object.get("a"), Some(&Value::from(1)));
        for none in [r#"{"name":"x"}"#, r#"{"name":"x","arguments":null}"#] {
            assert_eq!(inner_call(none).unwrap().arguments, "{}");
        }
    }

    #[test]
    fn a_wrong_call_of_call_tool_is_told_in_words() {
        for (text, says) in [
            (r#"{"arguments":{}}"#, "\"name\" is missing"),
            (r#"{"name":7}"#, "\"name\" is a number"),
            (r#"{"name":"x","arguments":[1]}"#, "the \"arguments\" for \"x\" are an array"),
            (r#"{"name":"x","arguments":"hello"}"#, "the \"arguments\" for \"x\" are not valid JSON"),
            (r#"{"name":"x","city":"Rome"}"#, "call_tool has no \"city\""),
            (r#"{"name":"x","arguments":"{\"a\":1,\"a\":1}"}"#, "stands twice"),
        ] {
            let why = inner_call(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
