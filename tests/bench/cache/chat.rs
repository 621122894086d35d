//! The same conversation by way of the chat endpoint: a client that keeps messages and sends all of them again.
//!
//! The endpoint takes no grammar beside tools, so its two steps are asked for one by one: the template is rendered
//! with `/apply-template`, and completed with `/completion`, with a grammar that makes the model say what it said
//! before. That is what the endpoint does inside.

use boxmaker::proto::{AssistantMessage, LogRecord};
use boxmaker::tool::Registry;
use serde_json::{Value, json};

use crate::support::real_server::ModelServer;

/// Says it all again, with restarts of the server after the same turns. Gives the tokens evaluated, and how many of
/// them in the first requests after restarts.
pub fn replay(
    server: &mut ModelServer,
    records: &[LogRecord],
    turns: usize,
    restarts: &[usize],
) -> (u64, u64) {
    server.kill();
    server.run();
    let system = boxmaker::config::DEFAULT_SYSTEM_PROMPT;
    let mut messages = vec![json!({"role": "system", "content": system})];
    let (mut evaluated, mut afresh, mut restarted, mut seen) = (0, 0, false, 0);
    for record in records {
        match record {
            LogRecord::UserMessage(message) => {
                messages.push(json!({"role": "user", "content": message.text}));
            }
            LogRecord::ToolResult(result) => {
                let id = format!("call{:05}", result.call.0);
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": result.content}));
            }
            LogRecord::AssistantMessage(message) => {
                let before = server.prompt_tokens_total();
                say(server, &messages, message);
                if std::mem::take(&mut restarted) {
                    afresh += server.prompt_tokens_total() - before;
                }
                messages.push(spoken(message));
            }
            LogRecord::TurnEnd(_) => {
                if restarts.contains(&seen) {
                    evaluated += server.prompt_tokens_total();
                    server.kill();
                    server.run();
                    restarted = true;
                }
                seen += 1;
            }
            _ => {}
        }
    }
    assert_eq!(seen, turns, "each turn ended");
    (evaluated + server.prompt_tokens_total(), afresh)
}

fn say(server: &ModelServer, messages: &[Value], message: &AssistantMessage) {
    let tools: Value = serde_json::from_str(Registry::shown()).unwrap();
    let rendered = json!({"messages": messages, "tools": tools, "add_generation_prompt": true});
    let prompt = server.post("/apply-template", &rendered)["prompt"].clone();
    let said = server.detokenize(message.kept_ids());
    let grammar = format!("root ::= {}", Value::String(said));
    let n_predict = message.ids.len() + 4;
    let body = json!({
        "prompt": prompt, "grammar": grammar, "n_predict": n_predict, "temperature": 0.0, "id_slot": 0, "cache_prompt": true,
    });
    server.post("/completion", &body);
}

/// The message as a client of the chat endpoint keeps it.
fn spoken(message: &AssistantMessage) -> Value {
    let mut value = json!({"role": "assistant", "content": message.text});
    if let Some(reasoning) = &message.reasoning {
        value["reasoning_content"] = json!(reasoning);
    }
    let calls = message.tool_calls.iter().map(|call| {
        let id = format!("call{:05}", call.call.0);
        json!({"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
    });
    let calls: Vec<Value> = calls.collect();
    if !calls.is_empty() {
        value["tool_calls"] = json!(calls);
    }
    value
}
