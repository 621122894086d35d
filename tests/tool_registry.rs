//! The registry: what the model is shown, what its calls come to, and what a broken tool can do.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::string_slice,
    clippy::indexing_slicing
)]

use std::cell::Cell;
use std::rc::Rc;

use boxmaker::proto::ToolOutcome;
use boxmaker::tool::{
    CallContext, Cancel, Installed, Policy, Prepared, Registry, RegistryError, Run, Time, Tool,
    ToolDescription, ToolFuture, ToolReply,
};
use serde_json::{Value, json};

type Behaviour = fn(&str) -> ToolReply;

/// A tool that counts its runs.
struct Fake {
    name: String,
    schema: Value,
    behaviour: Behaviour,
    runs: Rc<Cell<u32>>,
}

impl Tool for Fake {
    fn name(&self) -> &str {
        &self.name
    }
    fn describe(&self) -> ToolDescription {
        ToolDescription { text: format!("The fake {}.", self.name), schema: self.schema.clone() }
    }
    fn call<'a>(&'a self, arguments: &'a str, _context: CallContext) -> ToolFuture<'a> {
        self.runs.set(self.runs.get() + 1);
        Box::pin(async move { (self.behaviour)(arguments) })
    }
}

fn context() -> CallContext {
    CallContext { seconds: 5, output_bytes: 1000, spill: None, cancel: Cancel::new(), earlier: None }
}

fn fake(name: &str, policy: Policy, behaviour: Behaviour) -> (Installed, Rc<Cell<u32>>) {
    let runs = Rc::new(Cell::new(0));
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let tool = Fake { name: name.to_owned(), schema, behaviour, runs: Rc::clone(&runs) };
    (Installed { tool: Rc::new(tool), policy }, runs)
}

fn echo(arguments: &str) -> ToolReply {
    ToolReply::ok(arguments)
}

fn registry() -> (Registry, Rc<Cell<u32>>) {
    let (weather, runs) = fake("weather", Policy::Ask, echo);
    let (secret, _) = fake("secret", Policy::Deny, echo);
    let time = Installed { tool: Rc::new(Time), policy: Policy::Allow };
    (Registry::new(vec![weather, secret, time]).unwrap(), runs)
}

fn answer(registry: &Registry, name: &str, arguments: &str) -> ToolReply {
    match registry.prepare(name, arguments) {
        Prepared::Answer(reply) => reply,
        Prepared::Run(run) => panic!("{name} {arguments} would run {}", run.tool()),
    }
}

fn run(registry: &Registry, name: &str, arguments: &str) -> Run {
    match registry.prepare(name, arguments) {
        Prepared::Answer(reply) => panic!("{name} {arguments} was answered: {}", reply.content),
        Prepared::Run(run) => run,
    }
}

#[test]
fn the_shown_bytes_are_these_and_no_others() {
    let expected = r#"[{"type":"function","function":{"name":"find_tool","description":"Search the installed tools by words; returns their names and arguments.","parameters":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}},{"type":"function","function":{"name":"call_tool","description":"Run a tool that find_tool returned.","parameters":{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object"}},"required":["name","arguments"]}}}]"#;
    assert_eq!(Registry::shown(), expected);
    let value: Value = serde_json::from_str(expected).unwrap();
    assert_eq!(value.as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "current_thread")]
async fn a_call_runs_once_with_the_arguments_as_they_were_written() {
    let (registry, runs) = registry();
    let raw = "{\"city\":  \"Ro\\u006de\", \"n\": 1.10}";
    for (name, arguments) in [
        ("call_tool", format!("{{\"name\":\"weather\",\"arguments\":{raw}}}")),
        ("call_tool", format!("{{\"name\":\"weather\",\"arguments\":{}}}", Value::from(raw))),
        ("weather", raw.to_owned()),
    ] {
        let run = run(&registry, name, &arguments);
        assert_eq!((run.tool(), run.policy(), run.arguments()), ("weather", Policy::Ask, raw));
        let before = runs.get();
        let reply = run.run(context()).await;
        assert_eq!((reply.outcome, reply.content.as_str()), (ToolOutcome::Ok, raw));
        assert_eq!(runs.get(), before + 1);
    }
}

#[test]
fn a_call_that_cannot_be_made_is_an_error_that_can_be_mended_and_runs_nothing() {
    let (registry, runs) = registry();
    for (name, arguments, says) in [
        ("wether", "{}", "there is no tool \"wether\". Installed tools (2): time, weather. Use find_tool"),
        ("call_tool", r#"{"name":"weather report"}"#, "Similar tools: weather."),
        ("call_tool", r#"{"name":"call_tool"}"#, "there is no tool \"call_tool\""),
        ("call_tool", "{", "the arguments of call_tool are not valid JSON"),
        ("call_tool", r#"{"name":"weather"}"#, "the arguments: \"city\" is missing"),
        (
            "call_tool",
            r#"{"name":"weather","arguments":{"city":7}}"#,
            "/city: found 7 (a number); allowed: string",
        ),
        ("call_tool", r#"{"name":"weather","city":"Rome"}"#, "the tool's own go into \"arguments\""),
        ("weather", "", "are empty"),
        ("find_tool", r#"{"query":7}"#, "\"query\" is a number"),
        ("find_tool", r#"{"words":"x"}"#, "find_tool has no \"words\""),
        ("find_tool", "x", "the arguments of find_tool are not valid JSON"),
        ("time", r#"{"zone":"x"}"#, "the arguments: \"zone\" not allowed here"),
        ("", "{}", "there is no tool \"\""),
        ("../../etc/passwd\0", "{}", "there is no tool \"../../etc/passwd\\0\""),
    ] {
        let reply = answer(&registry, name, arguments);
        assert_eq!(reply.outcome, ToolOutcome::Error);
        assert!(reply.content.starts_with("Nothing was run: "), "{}", reply.content);
        assert!(reply.content.contains(says), "{name} {arguments}: {}", reply.content);
    }
    // the schema comes with the error, so that the next try can be right
    let reply = answer(&registry, "weather", "{}");
    assert!(reply.content.contains(r#""required":["city"]"#), "{}", reply.content);
    assert_eq!(runs.get(), 0);
    assert!(answer(&registry, &"x".repeat(1_000_000), "{}").content.len() < 1000);
}

#[tokio::test(flavor = "current_thread")]
async fn a_denied_tool_is_neither_shown_nor_run() {
    let (secret, runs) = fake("secret", Policy::Deny, echo);
    let registry = Registry::new(vec![secret]).unwrap();
    assert_eq!(answer(&registry, "find_tool", r#"{"query":"secret"}"#).content, "No tools are installed.");
    let run = run(&registry, "call_tool", r#"{"name":"secret","arguments":{"city":"x"}}"#);
    assert_eq!(run.policy(), Policy::Deny);
    assert_eq!(run.run(context()).await.outcome, ToolOutcome::Denied);
    assert_eq!(runs.get(), 0);
}

#[tokio::test(flavor = "current_thread")]
async fn a_panicking_tool_is_an_error_of_that_tool() {
    let (bad, _) = fake("bad", Policy::Allow, |_| panic!("oh {}", "no"));
    let registry = Registry::new(vec![bad]).unwrap();
    for _ in 0..2 {
        let reply = run(&registry, "bad", r#"{"city":"x"}"#).run(context()).await;
        assert_eq!(reply.outcome, ToolOutcome::Error);
        assert_eq!(reply.content, "The tool bad failed: it panicked: oh no");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn time_tells_the_time() {
    let (registry, _) = registry();
    let reply = run(&registry, "call_tool", r#"{"name":"time","arguments":{}}"#).run(context()).await;
    let today = boxmaker::proto::Timestamp::now().to_string();
    assert!(reply.content.contains(&today[..10]), "{} {today}", reply.content);
}

#[test]
fn a_tool_that_cannot_be_installed_is_named() {
    let install = |names: &[&str]| {
        Registry::new(names.iter().map(|name| fake(name, Policy::Allow, echo).0).collect()).err()
    };
    for name in ["", "find_tool", "call_tool", "a b", "é", "a\n", &"x".repeat(129)] {
        assert_eq!(install(&[name]), Some(RegistryError::Name(name.to_owned())));
    }
    assert_eq!(install(&["a", "b", "a"]), Some(RegistryError::Duplicate("a".to_owned())));
    let (mut broken, _) = fake("broken", Policy::Allow, echo);
    broken.tool = Rc::new(Fake {
        name: "broken".to_owned(),
        schema: json!({"$ref": "http://127.0.0.1/schema"}),
        behaviour: echo,
        runs: Rc::default(),
    });
    let error = Registry::new(vec![broken]).err().unwrap().to_string();
    assert!(error.contains("\"broken\""), "{error}");
}

#[test]
fn a_schema_that_would_hang_the_daemon_or_end_its_stack_is_an_error_of_that_tool() {
    let reference = |n: usize| json!({"$ref": format!("#/$defs/d{n}")});
    let doubled = |how: &str, end: Value| {
        let next = |n: usize| (format!("d{n}"), json!({how: [reference(n + 1), reference(n + 1)]}));
        let mut places: serde_json::Map<String, Value> = (0..40).map(next).collect();
        places.insert("d40".to_owned(), end);
        json!({"$ref": "#/$defs/d0", "$defs": places})
    };
    let deep: serde_json::Map<String, Value> = (0..300)
        .map(|n| (format!("d{n}"), json!({"allOf": [reference(n + 1)]})))
        .chain([("d300".to_owned(), json!({"properties": {"a": reference(0)}}))])
        .collect();
    let nested = format!("{}{{}}{}", "{\"a\":".repeat(60), "}".repeat(60));
    for (schema, arguments) in [
        (doubled("allOf", json!({"type": "object"})), "{}"),
        (doubled("anyOf", json!(false)), "{}"),
        (doubled("oneOf", json!({"required": ["x"]})), "{}"),
        (json!({"$ref": "#/$defs/d0", "$defs": deep}), nested.as_str()),
    ] {
        let runs = Rc::new(Cell::new(0));
        let tool = Fake { name: "bomb".to_owned(), schema, behaviour: echo, runs: Rc::clone(&runs) };
        let registry = Registry::new(vec![Installed { tool: Rc::new(tool), policy: Policy::Allow }]).unwrap();
        let reply = answer(&registry, "bomb", arguments);
        assert_eq!((reply.outcome, runs.get()), (ToolOutcome::Error, 0));
        assert!(reply.content.contains("refers to itself too often"), "{}", reply.content);
    }
}
