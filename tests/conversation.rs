//! The main job, end to end: a conversation that outlives whatever ends, with every token of its prompt
//! evaluated once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use boxmaker::proto::BaselineContent;
use serde_json::Value;

use support::daemon::{Daemon, Ran, Watched};
use support::rig::{Rig, answer, finished, ids, of_kind};
use support::{skip, wait_until};

/// Answers short enough to keep the tests quick.
const SHORT: &str = "completion_tokens = 48";
/// Answers long enough to be interrupted: a hundred tokens take a second or more.
const LONG: &str = "completion_tokens = 600\nshutdown_seconds = 2";
const STORY: &str = "Tell me a very long story about a fox who walks through the whole world.";

/// A turn of a new session, watched until the model has written some of its answer.
fn interrupted_story(rig: &Rig, session: &str) -> (Watched, Vec<Value>) {
    let mut watched = rig.watch(&["send", "--session", session, "--json", STORY]);
    let events = watched.until("text", 5);
    assert!(!events.iter().any(|e| e["event"] == "turn_end"), "the turn was over too soon: {events:#?}");
    (watched, events)
}

#[test]
fn four_turns_outlive_a_daemon_that_is_killed_between_them() {
    let Some(mut rig) = Rig::start(SHORT) else { return };
    let texts = ["Hello! Who are you?", "What is the capital of France?", "And of Spain?", "Thank you."];
    let (id, _) = rig.first_turn(texts[0]);
    for text in &texts[1..] {
        let (log, records) = (rig.log_bytes(&id), rig.records(&id));
        rig.replace_daemon();
        rig.assert_log_begins_with(&id, &log);
        assert_eq!(rig.records(&id), records, "the new daemon tells other records");
        rig.turn(&id, text);
        rig.assert_log_begins_with(&id, &log);
    }
    rig.assert_nothing_evaluated_twice(&id, 4);
    let records = rig.log(&id);
    let said: Vec<_> = of_kind(&records, "user_message").iter().map(|r| r["text"].clone()).collect();
    assert_eq!(said, texts);

    // the model server counted for itself
    let sum = |key: &str| rig.usage(&id).iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>();
    let evaluated = rig.server.prompt_tokens_total();
    assert_eq!(evaluated, sum("prompt_n"), "the server evaluated more than the log says");
    assert!(evaluated <= sum("new_n") + sum("completions"));

    let info = rig.session(&id);
    assert_eq!((&info["state"], &info["turns"]), (&"ok".into(), &4.into()), "{info:#}");
    assert_eq!(info["messages"].as_u64(), Some(4 + sum("completions")), "{info:#}");
    assert_eq!(info["context_n"].as_u64(), Some(tokens_in_context(&rig, &id)), "{info:#}");
}

/// The tokens of the prompt and of the answers that belong to it, counted from the files.
fn tokens_in_context(rig: &Rig, id: &str) -> u64 {
    let mut count = ids(&rig.baseline(id)["framing"]["head"]).len();
    for message in of_kind(&rig.log(id), "assistant_message") {
        let sampled = ids(&message["ids"]).len();
        let ended = message["finish"] == "stop" || message["finish"] == "tool_calls";
        count += ids(&message["prompt_ids"]).len() + sampled - usize::from(ended);
    }
    u64::try_from(count).unwrap()
}

/// A session whose second turn was killed with the daemon, and its log then; the daemon runs again.
fn killed_in_mid_stream() -> Option<(Rig, String, Vec<u8>)> {
    let mut rig = Rig::start(LONG)?;
    let (id, _) = rig.first_turn("Say hello.");
    let (watched, _) = interrupted_story(&rig, &id);
    rig.kill_daemon();
    drop(watched);
    let log = rig.log_bytes(&id);
    rig.start_daemon();
    Some((rig, id, log))
}

#[test]
fn a_turn_killed_in_mid_stream_is_asked_again() {
    let Some((rig, id, log)) = killed_in_mid_stream() else { return };

    assert_eq!(rig.session(&id)["state"], "interrupted");
    let said: Vec<_> = of_kind(&rig.log(&id), "user_message").iter().map(|r| r["text"].clone()).collect();
    assert_eq!(said, ["Say hello.", STORY], "the message was acknowledged");

    let events = finished(&rig.ctl(&["retry", &id, "--json"]));
    assert!(!answer(&events).is_empty(), "{events:#?}");
    rig.assert_log_begins_with(&id, &log);
    rig.assert_nothing_evaluated_twice(&id, 2);
    assert_eq!(of_kind(&rig.log(&id), "user_message").len(), 2, "a retry adds no message");
    // the prompt was evaluated before the daemon was killed, so asking again costs one token
    assert_eq!(rig.usage(&id)[1]["prompt_n"], 1, "{:#?}", rig.usage(&id));
    rig.turn(&id, "Thank you.");
    rig.assert_nothing_evaluated_twice(&id, 3);
    assert_eq!(rig.session(&id)["state"], "ok");
}

#[test]
fn after_a_turn_killed_in_mid_stream_the_conversation_goes_on() {
    let Some((rig, id, log)) = killed_in_mid_stream() else { return };
    rig.turn(&id, "Never mind. Say goodbye.");
    rig.assert_log_begins_with(&id, &log);
    rig.assert_nothing_evaluated_twice(&id, 3);
    let records = rig.log(&id);
    let ends: Vec<_> = of_kind(&records, "turn_end").iter().map(|r| r["turn"].as_u64().unwrap()).collect();
    assert_eq!(ends, [1, 2, 3], "the interrupted turn was closed, durably");
}

#[test]
fn a_cancelled_turn_keeps_what_was_shown() {
    let Some(rig) = Rig::start(LONG) else { return };
    let (id, _) = rig.first_turn("Say hello.");
    let (mut watched, mut events) = interrupted_story(&rig, &id);
    let ran = rig.ctl(&["cancel", &id]);
    assert_eq!(ran.code, 0, "{ran:?}");
    events.extend(watched.until("turn_end", 1));
    assert_eq!(events.last().unwrap()["outcome"], "cancelled");
    let records = rig.log(&id);
    let message = *of_kind(&records, "assistant_message").last().unwrap();
    assert_eq!(
        (message["finish"].as_str(), message["text"].as_str()),
        (Some("cancelled"), Some(answer(&events).as_str()))
    );
    rig.turn(&id, "And now say goodbye.");
    rig.assert_nothing_evaluated_twice(&id, 3);
}

#[test]
fn a_turn_belongs_to_the_daemon_and_not_to_its_client() {
    let Some(rig) = Rig::start("completion_tokens = 100") else { return };
    let (id, _) = rig.first_turn("Say hello.");
    let (watched, _) = interrupted_story(&rig, &id);
    assert_eq!(rig.session(&id)["state"], "running");
    drop(watched);
    wait_until(Duration::from_secs(60), "the turn ends", || rig.session(&id)["state"] == "ok");
    let records = rig.log(&id);
    let end = *of_kind(&records, "turn_end").last().unwrap();
    assert!(end["outcome"] == "done" || end["outcome"] == "limit", "{end:#}");
    rig.assert_nothing_evaluated_twice(&id, 2);
}

#[test]
fn a_daemon_that_is_stopped_in_mid_turn_ends_the_turn_durably() {
    let Some(mut rig) = Rig::start(LONG) else { return };
    let (id, _) = rig.first_turn("Say hello.");
    let (watched, events) = interrupted_story(&rig, &id);
    let status = rig.daemon.take().unwrap().terminate();
    assert_eq!(status.code(), Some(0), "{status:?}");
    drop(watched);
    let records = rig.log(&id);
    assert_eq!(records.last().unwrap()["type"], "turn_end", "{records:#?}");
    let message = *of_kind(&records, "assistant_message").last().unwrap();
    let text = message["text"].as_str().unwrap();
    assert!(text.starts_with(&answer(&events)), "what was shown was not kept: {text:?}");
    assert!(!support::daemon::socket_in(rig.dir()).exists(), "its socket is left behind");

    rig.start_daemon();
    assert_eq!(rig.session(&id)["state"], "ok");
    rig.turn(&id, "Say goodbye.");
    rig.assert_nothing_evaluated_twice(&id, 3);
}

#[test]
fn a_model_server_that_is_started_again_costs_its_cache_and_nothing_else() {
    let Some(mut rig) = Rig::start(SHORT) else { return };
    let (id, _) = rig.first_turn("Say hello.");
    let log = rig.log_bytes(&id);

    // while nobody answers, the turn waits and says so
    rig.server.kill();
    let mut watched = rig.watch(&["send", "--session", &id, "--json", "What is two plus two?"]);
    watched.until("waiting", 1);
    rig.server.run();
    let events = watched.until("turn_end", 1);
    let end = events.last().unwrap();
    assert!(end["outcome"] == "done" || end["outcome"] == "limit", "{events:#?}");
    assert!(events.iter().any(|e| e["event"] == "notice" && e["code"] == "cache_lost"), "{events:#?}");
    let row = &rig.usage(&id)[1];
    assert!(row["lost_n"].as_u64().unwrap() > 0 && row["cache_n"] == 0, "the loss is not told: {row:#}");

    // both at once
    rig.server.kill();
    rig.kill_daemon();
    rig.start_daemon();
    rig.server.run();
    rig.turn(&id, "And three plus three?");
    rig.assert_log_begins_with(&id, &log);

    // from here on it is in the cache again
    rig.turn(&id, "Thank you.");
    let rows = rig.usage(&id);
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[3]["lost_n"], 0, "{rows:#?}");
}

#[test]
fn two_sessions_in_turn_keep_apart() {
    let Some(rig) = Rig::start(SHORT) else { return };
    let (apple, _) = rig.first_turn("My favourite fruit is the apple.");
    let (cherry, _) = rig.first_turn("My favourite fruit is the cherry.");
    assert_ne!(apple, cherry);
    let mut told = Vec::new();
    for _ in 0..2 {
        for id in [&apple, &cherry] {
            told.extend(finished(&rig.ctl(&["send", "--session", id, "--json", "Which fruit do I like?"])));
        }
    }
    for (id, own, other) in [(&apple, "apple", "cherry"), (&cherry, "cherry", "apple")] {
        let records = rig.log(id);
        let text = of_kind(&records, "user_message")[0]["text"].as_str().unwrap().to_owned();
        assert!(text.contains(own) && !text.contains(other), "{text}");
        let mut prompt = ids(&rig.baseline(id)["framing"]["head"]);
        for message in of_kind(&records, "assistant_message") {
            prompt.extend(ids(&message["prompt_ids"]));
        }
        let prompt = rig.server.detokenize(&prompt);
        assert!(prompt.contains(own) && !prompt.contains(other), "{prompt}");
        // what the other session pushed out of the slot is evaluated again, and no more than that
        let rows = rig.usage(id);
        assert_eq!(rows.len(), 3);
        for row in &rows {
            let n = |key: &str| row[key].as_u64().unwrap();
            assert!(n("prompt_n") - n("lost_n") <= n("new_n") + n("completions"), "{rows:#?}");
        }
        let lost = rows.iter().any(|row| row["lost_n"].as_u64().unwrap() > 0);
        let notice =
            |e: &Value| e["event"] == "notice" && e["code"] == "cache_lost" && e["session"] == id.as_str();
        assert_eq!(lost, told.iter().any(notice), "a loss and its notice: {rows:#?}");
    }
}

#[test]
fn a_second_daemon_on_the_same_home_names_the_first() {
    let Some(rig) = Rig::start(SHORT) else { return };
    let first = rig.daemon.as_ref().unwrap().pid();
    let mut second = Daemon::command(Path::new(env!("CARGO_BIN_EXE_loopd")), rig.dir());
    second.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ran = Ran::new(second, None);
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains(&first.to_string()), "the pid {first} is not named: {ran:?}");
    assert_eq!(rig.ctl(&["sessions", "--json"]).json(), Value::Array(Vec::new()), "the first one goes on");
}

#[test]
fn the_default_head_of_the_prompt_is_short() {
    let Some(rig) = Rig::start(SHORT) else { return };
    let (id, _) = rig.first_turn("Say hello.");
    let baseline: BaselineContent = serde_json::from_value(rig.baseline(&id)).unwrap();
    let head = baseline.framing.head.len();
    let text = rig.server.detokenize(&baseline.framing.head);
    assert!(text.contains("find_tool") && text.contains("call_tool"), "{text}");
    assert!(head <= 350, "{head} tokens: {text}");
}

#[test]
fn an_idle_daemon_is_small() {
    let Some(program) = std::env::var_os("BOXMAKER_RELEASE_LOOPD") else {
        skip("the size of a release build counts: `make test` builds one and sets BOXMAKER_RELEASE_LOOPD");
        return;
    };
    let program = fs::canonicalize(program).unwrap();
    let Some(rig) = Rig::start_program(&program, SHORT) else { return };
    let rss = || rig.daemon.as_ref().unwrap().rss_kb();
    let started = rss();
    let (id, _) = rig.first_turn("Say hello.");
    rig.turn(&id, "Say goodbye.");
    let after = rss();
    println!("a loopd that has started: {started} kB; after two turns: {after} kB");
    assert!(started < 7_500, "{started} kB in memory");
    // of which 7 MB are program text: what a turn runs, and what lies beside it
    assert!(after < 9_000, "{after} kB in memory after two turns");
    wait_until(Duration::from_secs(30), "it is small again", || rss() < 4_000);
}
