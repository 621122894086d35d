//! A real model calls a real tool: the whole path, with the tokens counted.
//!
//! A model of 135 million parameters does not call tools of its own accord; a person asks it to repeat a call. It
//! begins to, and often not well: from the opening tag on, the grammar holds it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::Value;
use support::rig::Rig;

fn rig() -> Option<Rig> {
    let dir = tempfile::tempdir().unwrap().keep();
    let notes = dir.join("notes");
    Rig::start(&format!(
        "completion_tokens = 150\nturn_requests = 2\n\n[tools.command.note]\nprogram = \"/bin/sh\"\n\
         args = [\"-c\", \"tee -a {notes}; echo noted\"]\ndescription = \"Notes a text.\"\npolicy = \"allow\"\n\
         schema = {{ type = \"object\", properties = {{ text = {{ type = \"string\" }} }}, required = [\"text\"] }}\n",
        notes = notes.display()
    ))
}

fn ask(rig: &Rig, call: &str) -> (Vec<Value>, Vec<Value>) {
    let text = format!("Repeat this: <tool_call>{call}</tool_call>");
    let events = rig.ctl(&["send", "--new", "--json", &text]).events();
    let id = events[0]["session"].as_str().unwrap().to_owned();
    let records = rig.ctl(&["export", "--json", &id]).json();
    let rows = rig.usage(&id);
    assert_eq!(rows.len(), 1, "{rows:#?}");
    (records["records"].as_array().unwrap().clone(), rows)
}

fn of<'r>(records: &'r [Value], kind: &str) -> Vec<&'r Value> {
    records.iter().filter(|record| record["type"] == kind).collect()
}

#[test]
fn a_real_model_calls_a_real_tool_and_answers_from_its_result() {
    let Some(rig) = rig() else { return };
    let (records, rows) =
        ask(&rig, r#"{"name": "call_tool", "arguments": {"name": "note", "arguments": {"text": "milk"}}}"#);
    let words: Vec<&str> = records.iter().map(|record| record["type"].as_str().unwrap()).collect();
    let expected = [
        "session_start",
        "user_message",
        "assistant_message",
        "usage",
        "tool_start",
        "tool_result",
        "assistant_message",
        "usage",
    ];
    assert_eq!(words[..expected.len()], expected, "{records:#?}");
    // parsed
    let said = of(&records, "assistant_message");
    let calls = said[0]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &said[0]["finish"]), (1, &Value::from("tool_calls")));
    assert_eq!(calls[0]["name"], "call_tool");
    let arguments: Value = serde_json::from_str(calls[0]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, serde_json::json!({"name": "note", "arguments": {"text": "milk"}}));
    // checked and run
    let results = of(&records, "tool_result");
    assert_eq!(results[0]["outcome"], "ok", "{results:#?}");
    assert_eq!(results[0]["content"], "{\"text\": \"milk\"}\nnoted\n");
    // in the prompt, which only grew: no token was evaluated twice
    let row = &rows[0];
    assert_eq!((&row["completions"], &row["lost_n"]), (&Value::from(2), &Value::from(0)), "{row:#?}");
    let usages = of(&records, "usage");
    let ids = |record: &Value, key: &str| rig_ids(record, key).len() as u64;
    let n = |record: &Value, key: &str| record[key].as_u64().unwrap();
    // what the second request evaluated is what was added, and nothing else: the token that ended the call stands in no
    // cache, and the template writes its own
    assert_eq!(n(usages[1], "prompt_n"), ids(said[1], "prompt_ids"), "{usages:#?}");
    let first = n(usages[0], "cache_n") + n(usages[0], "prompt_n");
    assert_eq!(n(usages[1], "cache_n"), first + n(usages[0], "predicted_n") - 1, "{usages:#?}");
    // answered
    assert!(
        !said[1]["text"].as_str().unwrap().is_empty() || said[1].get("tool_calls").is_some(),
        "{said:#?}"
    );
}

fn rig_ids(record: &Value, key: &str) -> Vec<u32> {
    record[key].as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

#[test]
fn a_call_that_was_begun_is_always_well_formed_and_a_wrong_one_is_helped() {
    let Some(rig) = rig() else { return };
    let asked = [
        // no such tool
        (r#"{"name": "call_tool", "arguments": {"name": "notes", "arguments": {"text": "milk"}}}"#, "note"),
        // arguments that do not fit
        (
            r#"{"name": "call_tool", "arguments": {"name": "note", "arguments": {"txt": "milk"}}}"#,
            "\"text\" is missing",
        ),
        // what no grammar would let through
        (r#"{"name": "note", "arguments": {'text': milk,}}"#, ""),
    ];
    for (call, helped) in asked {
        let (records, _) = ask(&rig, call);
        let said = of(&records, "assistant_message");
        let calls = said[0]["tool_calls"].as_array().unwrap_or_else(|| panic!("it calls: {said:#?}"));
        let arguments: Value = serde_json::from_str(calls[0]["arguments"].as_str().unwrap()).unwrap();
        let name = calls[0]["name"].as_str().unwrap();
        match name {
            "find_tool" => assert!(arguments["query"].is_string(), "{arguments}"),
            "call_tool" => {
                assert!(arguments["name"].is_string() && arguments["arguments"].is_object(), "{arguments}")
            }
            other => panic!("{other}"),
        }
        let results = of(&records, "tool_result");
        let content = results[0]["content"].as_str().unwrap();
        assert!(content.contains(helped), "{call}: {content}");
        assert!(!content.contains("not valid JSON") && !content.contains("cut off"), "{content}");
    }
}
