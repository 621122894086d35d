//! The daemon is killed, in every phase of a turn.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::time::{Duration, Instant};

use boxmaker::proto::{EventKind, Request, SessionState, ToolOutcome};
use support::bench::{Bench, HELLO, STAND_IN, next};
use support::scripted_server::{Script, find_call, installed_call};
use support::slow_tool::{SLOW, begun, runs};
use support::talk::told;
use support::wait_until;

const PATIENCE: Duration = Duration::from_secs(10);

fn prefill(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Prefill { .. })
}

#[test]
fn killed_while_a_tool_runs_it_is_never_run_again() {
    let (mut bench, mut talk, id) = begun("");
    bench.server.push(Script::say(SLOW));
    talk.send(&id, "Hello");
    wait_until(PATIENCE, "the tool runs", || runs(&bench) == 1);
    bench.kill_daemon();
    assert_eq!(bench.log(&id)[4..], ["tool_start 1 slow"], "started in the log before it was started");

    bench.start_daemon();
    let mut talk = bench.talk();
    let info = talk.info(&id);
    assert_eq!(info.state, SessionState::Interrupted);
    assert!(info.reason.is_some());
    // looking changes nothing
    assert_eq!(bench.log(&id).len(), 5);
    talk.attach(&id, None);
    talk.turn(&id, "What happened?");
    assert_eq!(
        bench.log(&id)[4..],
        [
            "tool_start 1 slow",
            "tool_result 1 slow interrupted",
            "turn_end 1 failed",
            "user 2: What happened?",
            "assistant 2 stop: ok",
            "usage 2",
            "turn_end 2 done"
        ]
    );
    let (outcome, content) = bench.results(&id).remove(0);
    assert_eq!(outcome, ToolOutcome::Interrupted);
    assert!(content.contains("outcome is unknown") && content.contains("not run again"), "{content}");
    let asked = format!(
        "{HELLO}{SLOW}<|im_end|>\n<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n"
    );
    assert_eq!(bench.prompts(&id).last(), Some(&next(&asked, STAND_IN, "What happened?")));
    assert_eq!(runs(&bench), 1);
}

#[test]
fn killed_while_a_tool_runs_retry_tells_the_model_that_nothing_is_known() {
    let (mut bench, mut talk, id) = begun("");
    let said = format!("{SLOW}\n{SLOW}");
    bench.server.push(Script::say(&said));
    talk.send(&id, "Hello");
    wait_until(PATIENCE, "the tool runs", || runs(&bench) == 1);
    bench.kill_daemon();
    bench.start_daemon();
    let mut talk = bench.talk();
    talk.attach(&id, None);
    let events = talk.retry(&id);
    assert_eq!(told(&events), ["turn_start retry", "prefill", "text ok", "usage stop", "turn_end done"]);
    assert_eq!(
        bench.log(&id)[4..],
        [
            "tool_start 1 slow",
            "tool_result 1 slow interrupted",
            "tool_result 2 slow error",
            "turn_end 1 failed",
            "assistant 1 stop: ok",
            "usage 1",
            "turn_end 1 done"
        ]
    );
    let results = bench.results(&id);
    assert!(results[1].1.starts_with("Not run"), "{results:?}");
    assert_eq!(runs(&bench), 1);
}

#[test]
fn killed_while_the_second_tool_runs_the_first_has_its_result() {
    let (mut bench, mut talk, id) = begun("");
    let said = format!("{}\n{SLOW}", find_call("slow"));
    bench.server.push(Script::say(&format!("{}\n{said}", installed_call("time", "{}"))));
    talk.send(&id, "Hello");
    wait_until(PATIENCE, "the tool runs", || runs(&bench) == 1);
    bench.kill_daemon();
    assert_eq!(
        bench.log(&id)[4..],
        [
            "tool_start 1 call_tool",
            "tool_result 1 call_tool ok",
            "tool_start 2 find_tool",
            "tool_result 2 find_tool ok",
            "tool_start 3 slow"
        ]
    );
    assert_eq!(bench.appends(&id).last().unwrap().len(), 4, "all that was final went into one append");
    bench.start_daemon();
    let mut talk = bench.talk();
    talk.attach(&id, None);
    let events = talk.retry(&id);
    assert_eq!(told(&events), ["turn_start retry", "prefill", "text ok", "usage stop", "turn_end done"]);
    assert_eq!(bench.log(&id)[9..11], ["tool_result 3 slow interrupted", "turn_end 1 failed"]);
    assert_eq!(runs(&bench), 1);
}

#[test]
fn killed_between_a_result_and_the_next_completion() {
    let (mut bench, mut talk, id) = begun("");
    bench.server.push(Script::say(&find_call("slow")));
    bench.server.push(Script::new().gate("never"));
    talk.send(&id, "Hello");
    wait_until(PATIENCE, "the second request", || bench.server.completions().len() == 2);
    bench.kill_daemon();
    let before = bench.log(&id);
    assert_eq!(before[4..], ["tool_start 1 find_tool", "tool_result 1 find_tool ok"]);
    bench.start_daemon();
    let mut talk = bench.talk();
    assert_eq!(talk.info(&id).state, SessionState::Interrupted);
    talk.attach(&id, None);
    talk.retry(&id);
    let bodies = bench.server.completions();
    assert_eq!(bodies[1], bodies[2], "the very same request");
    assert_eq!(
        bench.log(&id)[6..],
        ["turn_end 1 failed", "assistant 1 stop: ok", "usage 1", "turn_end 1 done"]
    );
}

#[test]
fn killed_in_prefill_and_in_mid_stream_the_next_message_closes_the_turn() {
    for script in [Script::new().progress().gate("never"), Script::new().progress().text("abc").gate("never")]
    {
        let (mut bench, mut talk, id) = begun("");
        bench.server.push(script);
        talk.send(&id, "Hello");
        talk.until(&id, "prefill", prefill);
        bench.kill_daemon();
        assert_eq!(bench.log(&id), ["session_start", "user 1: Hello"]);
        bench.start_daemon();
        let mut talk = bench.talk();
        assert_eq!(talk.info(&id).state, SessionState::Interrupted);
        assert_eq!(bench.server.completions().len(), 1, "nothing goes on by itself");
        talk.attach(&id, None);
        talk.turn(&id, "Again");
        assert_eq!(bench.log(&id)[2..4], ["turn_end 1 failed", "user 2: Again"]);
        assert_eq!(bench.prompts(&id)[1], next(HELLO, STAND_IN, "Again"));
        assert_eq!(talk.info(&id).state, SessionState::Ok);
    }
}

#[test]
fn killed_again_and_again_the_turn_is_closed_once() {
    let (mut bench, mut talk, id) = begun("");
    for _ in 0..3 {
        bench.server.push(Script::new().progress().gate("never"));
    }
    talk.send(&id, "Hello");
    talk.until(&id, "prefill", prefill);
    for _ in 0..2 {
        bench.kill_daemon();
        bench.start_daemon();
        let mut talk = bench.talk();
        talk.attach(&id, None);
        talk.begin(Request::Retry { session: id.clone() });
        talk.until(&id, "prefill", prefill);
    }
    assert_eq!(bench.log(&id), ["session_start", "user 1: Hello", "turn_end 1 failed"]);
    let bodies = bench.server.completions();
    assert!(bodies.len() == 3 && bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
}

#[test]
fn killed_at_any_moment_the_log_is_a_beginning_of_the_whole_one() {
    let mut bench = Bench::start("");
    bench.loses_cache = true;
    let called = [installed_call("time", "{}"), installed_call("time", "{ }")].join("\n");
    let whole = [
        "session_start",
        "user 1",
        "assistant 1 tool_calls",
        "usage 1",
        "tool_start 1",
        "tool_result 1",
        "tool_start 2",
        "tool_result 2",
        "assistant 1 stop",
        "usage 1",
        "turn_end 1 done",
    ];
    let mut lengths = std::collections::BTreeSet::new();
    for round in 0..22 {
        let mut talk = bench.talk();
        let id = talk.create();
        bench.server.clear();
        bench.server.push(Script::say(&called));
        let text = format!("Hello, for the time number {round}");
        talk.begin(Request::Send { session: id.clone(), text });
        let begin = Instant::now();
        // once the log has so many lines: between two appends, or in the middle of one
        while bench.log_bytes(&id).iter().filter(|byte| **byte == b'\n').count() < 1 + round / 2 {
            assert!(begin.elapsed() < PATIENCE, "{:#?}", bench.log(&id));
        }
        bench.kill_daemon();
        let log = bench.log(&id);
        assert!(log.iter().zip(whole).all(|(record, begin)| record.starts_with(begin)), "{log:#?}");
        // an append is whole or not there
        assert!([1, 2, 5, 7, 8, 11].contains(&log.len()), "{log:#?}");
        lengths.insert(log.len());
        bench.start_daemon();
        bench.server.clear();
        let mut talk = bench.talk();
        talk.attach(&id, None);
        let open = log.len() > 1 && log.len() < whole.len();
        assert_eq!(talk.info(&id).state, if open { SessionState::Interrupted } else { SessionState::Ok });
        let events = if open && round % 2 == 0 {
            talk.retry(&id)
        } else {
            talk.turn(&id, &format!("Next, after number {round}"))
        };
        assert_eq!(told(&events).last().unwrap(), "turn_end done", "{log:#?}");
        assert!(bench.log(&id).starts_with(&log));
    }
    assert!(lengths.len() > 3, "all were killed at the same point: {lengths:?}");
}
