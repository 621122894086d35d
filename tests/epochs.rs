//! A conversation that is longer than the context: foreseen, summarised, and gone on with.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::rig::{Rig, finished, ids, of_kind};

/// Answers and summaries are short, so that a small context fills after some turns.
const SHORT: &str = "completion_tokens = 40\nsummary_tokens = 60\nslot_quiet_seconds = 0";
const CONTEXT: u32 = 768;

const QUESTIONS: [&str; 6] = [
    "My name is Ada, and I live in Zurich. Please remember that while we talk about my garden this year.",
    "What can I plant in March in a small garden that has shade in the morning and sun in the afternoon?",
    "And in April, when the nights are still cold but the days are already warm and rather long?",
    "How often should I water tomatoes that stand in pots on a balcony on the fourth floor of a house?",
    "Which herbs grow well beside each other, and which of them do better in a pot of their own?",
    "What should I do with all the leaves that lie in the garden at the end of the autumn?",
];

fn n(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {row:#}"))
}

/// What must be true of the rows of a session of several epochs: each request cost what was new in it.
fn assert_fair(rows: &[Value]) {
    for row in rows {
        assert_eq!(n(row, "lost_n"), 0, "tokens were evaluated again: {rows:#?}");
        assert!(
            n(row, "prompt_n") <= n(row, "new_n") + n(row, "completions"),
            "more than what is new: {row:#}"
        );
    }
}

/// The summaries among the rows.
fn summaries(rows: &[Value]) -> Vec<&Value> {
    rows.iter().filter(|row| row["epoch"].is_u64()).collect()
}

fn records_of(rig: &Rig, id: &str, epoch: u32) -> Vec<Value> {
    let path = rig.home().join("sessions").join(id).join(format!("{epoch}.jsonl"));
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn baseline_of(rig: &Rig, id: &str, epoch: u32) -> Value {
    let path = rig.home().join("sessions").join(id).join(format!("{epoch}.baseline.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Talks until the session has so many epochs; gives how many turns that took.
fn talk_until(rig: &Rig, id: &str, epochs: u32, mut turn: usize) -> usize {
    while rig.epochs(id) < epochs {
        assert!(turn < 60, "no epoch begins");
        rig.turn(id, QUESTIONS[turn % QUESTIONS.len()]);
        turn += 1;
    }
    turn
}

fn verified(rig: &Rig, id: &str) -> String {
    let mut loopd = std::process::Command::new(Path::new(env!("CARGO_BIN_EXE_loopd")));
    let output = loopd.arg("verify").arg(id).arg("--home").arg(rig.home()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_conversation_overflows_its_context_again_and_again_and_goes_on() {
    let Some(rig) = Rig::start_small(CONTEXT, SHORT) else { return };
    let (id, _) = rig.first_turn(QUESTIONS[0]);
    let turns = talk_until(&rig, &id, 4, 1);
    rig.turn(&id, "Thank you.");

    let rows = rig.usage(&id);
    assert_fair(&rows);
    let begun = summaries(&rows);
    assert_eq!(begun.iter().map(|row| n(row, "epoch")).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(rows.len(), turns + 1 + begun.len(), "a row for each turn and each summary");
    for row in &begun {
        // the question for the summary is all that was new, and what was said came from the cache
        assert!(n(row, "prompt_n") <= n(row, "new_n") + 1 && n(row, "new_n") < 120, "{row:#}");
        assert!(n(row, "cache_n") > 300, "{row:#}");
    }
    for epoch in 1..4 {
        let records = records_of(&rig, &id, epoch);
        assert_eq!(records[1]["type"], "carried", "{records:#?}");
        let head = ids(&baseline_of(&rig, &id, epoch)["framing"]["head"]).len();
        let carried = ids(&records[1]["prompt_ids"]).len();
        let first = of_kind(&records, "assistant_message")[0].clone();
        let usage = of_kind(&records, "usage")[0];
        let all = u64::try_from(head + carried + ids(&first["prompt_ids"]).len()).unwrap();
        assert_eq!(
            n(usage, "cache_n") + n(usage, "prompt_n"),
            all,
            "its prompt is head, summary and kept turns"
        );
        assert!(carried < 330, "{carried} tokens are carried over");
        let text = rig.server.detokenize(&ids(&records[1]["prompt_ids"]));
        assert!(text.contains("This conversation began earlier."), "{text}");
        assert!(text.contains(records[1]["summary"]["text"].as_str().unwrap()), "{text}");
    }
    // every turn is there, in one chain, over all epochs
    let all = rig.records(&id);
    let said: Vec<u64> = of_kind(&all, "user_message").iter().map(|m| n(m, "turn")).collect();
    assert_eq!(said, (1..=u64::try_from(turns).unwrap() + 1).collect::<Vec<_>>());
    assert!(verified(&rig, &id).contains("4 epochs"));
    assert_eq!(rig.session(&id)["state"], "ok");
    let shown = rig.ctl(&["show", &id]);
    assert!(shown.out.contains("epoch 3") && shown.out.contains("summary of the turns up to"), "{shown:?}");
    let page = rig.ctl(&["export", &id]).out;
    assert!(page.contains("## Epoch 3") && page.contains(QUESTIONS[0]), "{page}");
    let exported = rig.ctl(&["export", &id, "--json"]).json();
    assert_eq!(exported["records"].as_array().unwrap().len(), all.len());
    let table = rig.ctl(&["usage", &id]).out;
    assert!(table.contains("E3") && table.contains("summary"), "{table}");
}

#[test]
fn a_rebase_by_hand_takes_up_a_changed_configuration() {
    let Some(mut rig) = Rig::start(SHORT) else { return };
    let (id, _) = rig.first_turn("My favourite fruit is the cherry.");
    rig.turn(&id, "Say hello.");
    let log = rig.log_bytes(&id);
    let refused = rig.ctl(&["rebase", &id]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("nothing has changed"), "{refused:?}");

    rig.reconfigure("[model]\n", "[model]\nsystem_prompt = \"Answer like a pirate.\"\n");
    assert!(rig.daemon.take().unwrap().terminate().success());
    rig.start_daemon();
    rig.turn(&id, "Say it again.");
    assert_eq!(rig.epochs(&id), 1, "it goes on with its own baseline until it is asked to");
    let ran = rig.ctl(&["rebase", "--session", &id]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.err.contains("epoch 1") && ran.err.contains("the system prompt is another one now"),
        "{ran:?}"
    );
    assert_eq!(baseline_of(&rig, &id, 1)["system_prompt"], "Answer like a pirate.");
    rig.assert_log_begins_with(&id, &log);

    // all of it was short enough to stay as it was, so no summary was asked for
    let carried = records_of(&rig, &id, 1)[1].clone();
    assert!(carried["summary"].is_null(), "{carried:#}");
    rig.turn(&id, "Which fruit do I like?");
    let first = of_kind(&records_of(&rig, &id, 1), "assistant_message")[0].clone();
    let mut prompt = ids(&baseline_of(&rig, &id, 1)["framing"]["head"]);
    prompt.extend(ids(&carried["prompt_ids"]));
    prompt.extend(ids(&first["prompt_ids"]));
    let prompt = rig.server.detokenize(&prompt);
    assert!(prompt.contains("pirate") && prompt.contains("My favourite fruit is the cherry."), "{prompt}");
    assert_eq!(prompt.matches("Say it again.").count(), 1, "{prompt}");
    assert_fair(&rig.usage(&id));
    rig.replace_daemon();
    rig.turn(&id, "Thank you.");
    assert_fair(&rig.usage(&id));
}

#[test]
fn a_daemon_that_is_killed_in_mid_rebase_goes_on() {
    // a long summary, so that there is time to be killed while it is written
    let limits = "completion_tokens = 40\nsummary_tokens = 200\nkept_tokens = 0";
    let Some(mut rig) = Rig::start(limits) else { return };
    let (id, _) = rig.first_turn(QUESTIONS[0]);
    for question in &QUESTIONS[1..4] {
        rig.turn(&id, question);
    }
    let log = rig.log_bytes(&id);
    let mut watched = rig.watch(&["rebase", &id, "--json"]);
    watched.until("summary", 3);
    rig.replace_daemon();
    drop(watched);
    assert_eq!((rig.epochs(&id), rig.session(&id)["state"].as_str()), (1, Some("ok")));
    assert_eq!(rig.log_bytes(&id), log);
    rig.turn(&id, "Say hello.");
    // what was half written of the summary is not part of the conversation
    rig.assert_nothing_evaluated_twice(&id, 5);

    // cancelled, it is as it was, too
    let log = rig.log_bytes(&id);
    let mut watched = rig.watch(&["rebase", &id, "--json"]);
    watched.until("summary", 3);
    assert_eq!(rig.ctl(&["cancel", &id]).code, 0);
    let events = watched.until("rebased", 1);
    assert_eq!(events.last().unwrap()["outcome"], "cancelled", "{events:#?}");
    assert_eq!((rig.epochs(&id), rig.log_bytes(&id)), (1, log));

    let ran = rig.ctl(&["rebase", &id]);
    assert_eq!(ran.code, 0, "{ran:?}");
    rig.turn(&id, "Say hello.");
    let rows = rig.usage(&id);
    assert_fair(&rows);
    assert_eq!(summaries(&rows).len(), 1);
    assert!(n(summaries(&rows)[0], "cache_n") > 300);
    assert!(verified(&rig, &id).contains("2 epochs"));
}

#[test]
fn saved_slots_belong_to_one_epoch() {
    let limits = "completion_tokens = 40\nsummary_tokens = 60\nslot_quiet_seconds = 0\nkept_tokens = 0";
    let Some(mut rig) = Rig::start(limits) else { return };
    let (id, _) = rig.first_turn(QUESTIONS[0]);
    rig.turn(&id, QUESTIONS[1]);
    assert_eq!(rig.ctl(&["rebase", &id]).code, 0);
    rig.turn(&id, QUESTIONS[2]);
    assert!(rig.daemon.take().unwrap().terminate().success());
    let manifests: Vec<Value> = fs::read_dir(rig.server.slots())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
        .collect();
    assert_eq!(manifests.len(), 1, "{manifests:#?}");
    assert_eq!(manifests[0]["epoch"], 1);
    rig.replace_server();
    rig.start_daemon();
    rig.turn(&id, QUESTIONS[3]);
    assert_fair(&rig.usage(&id));
}

#[test]
fn events_tell_of_a_full_context_and_of_what_came_of_it() {
    let Some(rig) = Rig::start_small(CONTEXT, SHORT) else { return };
    let (id, _) = rig.first_turn(QUESTIONS[0]);
    let mut turn = 1;
    let events = loop {
        assert!(turn < 30, "no epoch begins");
        let events = finished(&rig.ctl(&["send", "--session", &id, "--json", QUESTIONS[turn % 6]]));
        if rig.epochs(&id) > 1 {
            break events;
        }
        turn += 1;
    };
    let kinds: Vec<&str> = events.iter().filter_map(|e| e["event"].as_str()).collect();
    let place =
        |kind: &str| kinds.iter().position(|k| *k == kind).unwrap_or_else(|| panic!("{kind}: {kinds:?}"));
    assert!(place("notice") < place("summary") && place("summary") < place("rebased"), "{kinds:?}");
    let rebased = events.iter().find(|e| e["event"] == "rebased").unwrap();
    assert_eq!((&rebased["outcome"], n(rebased, "epoch")), (&Value::from("done"), 1), "{rebased:#}");
    assert_eq!(n(rebased, "turn"), n(&events[0], "turn"));
}
