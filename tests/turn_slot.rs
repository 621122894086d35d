//! The one slot: turns wait for it in order, what its cache lost is told, and what it holds is exact.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::time::Duration;

use boxmaker::proto::{ErrorCode, EventKind, Reply, Request, SessionId, SessionState};
use support::bench::{Bench, COMPLETION_TOKENS, HELLO, STAND_IN, begun, next};
use support::scripted_server::Script;
use support::talk::told;
use support::wait_until;

#[test]
fn turns_of_several_sessions_wait_for_the_slot_in_order_and_are_told_their_place() {
    let (mut bench, mut talk, first) = begun("");
    bench.loses_cache = true;
    let (second, third) = (talk.create(), talk.create());
    bench.server.push(Script::new().progress().text("a").gate("go").text("b").eog());
    talk.send(&first, "I am the first");
    talk.until_text(&first, "a");
    talk.send(&second, "I am the second");
    talk.until(&second, "queued", |kind| *kind == EventKind::Queued { place: 1 });
    talk.send(&third, "I am the third");
    talk.until(&third, "queued", |kind| *kind == EventKind::Queued { place: 2 });
    assert_eq!(talk.info(&second).state, SessionState::Running);
    let Ok(Reply::Status { status }) = talk.ask(Request::Status {}) else { panic!("no status") };
    assert_eq!((status.running.as_ref(), status.waiting), (Some(&first), 2));
    // both are durable already, and a second message is refused
    assert_eq!(bench.log(&third), ["session_start", "user 1: I am the third"]);
    let error = talk.ask(Request::Send { session: second.clone(), text: "x".to_owned() }).unwrap_err();
    assert_eq!(error.code, ErrorCode::Busy, "{error}");

    bench.server.open("go");
    assert_eq!(told(&talk.until_end(&third))[0], "queued 1", "it moves up");
    let order: Vec<_> = bench.server.prompts();
    let owners = [&first, &second, &third].map(|id| bench.prompt_ids(id));
    assert_eq!(order, owners.concat());
    for id in [&first, &second, &third] {
        assert_eq!(bench.log(id).last().unwrap(), "turn_end 1 done");
    }
}

#[test]
fn a_cancel_in_the_queue_gives_the_place_up() {
    let (mut bench, mut talk, first) = begun("");
    bench.loses_cache = true;
    let (second, third) = (talk.create(), talk.create());
    bench.server.push(Script::new().progress().text("a").gate("go").text("b").eog());
    talk.send(&first, "I am the first");
    talk.until_text(&first, "a");
    talk.send(&second, "I am the second");
    talk.send(&third, "I am the third");
    talk.until(&third, "queued", |kind| *kind == EventKind::Queued { place: 2 });
    let mut other = bench.talk();
    other.attach(&second, None);
    assert_eq!(told(&other.cancel(&second)).last().unwrap(), "turn_end cancelled");
    talk.until(&third, "it moves up", |kind| *kind == EventKind::Queued { place: 1 });
    assert_eq!(bench.log(&second), ["session_start", "user 1: I am the second", "turn_end 1 cancelled"]);
    bench.server.open("go");
    talk.until_end(&third);
    assert_eq!(bench.server.completions().len(), 2);
    talk.turn(&second, "Now");
    let asked = "I am the second<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(bench.prompts(&second), [next(asked, STAND_IN, "Now")]);
}

#[test]
fn a_cache_that_falls_short_is_told_counted_and_logged() {
    let (mut bench, mut talk, id) = begun("");
    bench.loses_cache = true;
    talk.turn(&id, "Hello");
    bench.server.push(Script::new().cache(7).progress().text("ok").eog());
    let events = talk.turn(&id, "More");
    assert_eq!(
        told(&events),
        ["turn_start", "notice cache_lost", "prefill", "text ok", "usage stop", "turn_end done"]
    );
    let held = u64::try_from(bench.prompt_ids(&id)[0].len()).unwrap() + 2;
    let lost = held - 7;
    let notice = events.iter().find_map(|event| match &event.kind {
        EventKind::Notice { message, .. } => Some(message.clone()),
        _ => None,
    });
    assert!(notice.unwrap().starts_with(&format!("{lost} tokens of this conversation are evaluated again")));
    let rows = bench.ctl(&["usage", id.as_str(), "--json"]).json();
    assert_eq!((rows[0]["lost_n"].as_u64(), rows[1]["lost_n"].as_u64()), (Some(0), Some(lost)));
    assert_eq!(rows[1]["cache_n"], 7);
    assert_eq!(talk.metric("boxmaker_lost_tokens_total"), lost);
    let Ok(Reply::Status { status }) = talk.ask(Request::Status {}) else { panic!("no status") };
    assert_eq!(status.lost_n, lost);
    assert!(status.last_loss.is_some_and(|loss| loss.contains(id.as_str())));
    assert!(
        bench
            .daemon()
            .log()
            .lines()
            .any(|line| line.contains("EVENT=cache_lost") && line.contains(&format!("LOST_N={lost}"))),
        "{}",
        bench.daemon().log()
    );
}

#[test]
fn ids_that_the_stream_leaves_out_are_read_back_from_the_slot() {
    let (bench, mut talk, id) = begun("");
    // each of these characters is several tokens, and the stream tells only the last of each
    let said = "\u{1f98a} naïve \u{2192}\u{1f469}\u{200d}\u{1f680}";
    bench.server.push(Script::say(said));
    let events = talk.turn(&id, "Hello");
    assert_eq!(told(&events)[2..], [&format!("text {said}"), "usage stop", "turn_end done"]);
    talk.turn(&id, "More");
    assert_eq!(bench.prompts(&id)[1], next(HELLO, said, "More"));
    let files = std::fs::read_dir(bench.dir().join("slots")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut files: Vec<_> = files.collect();
    files.sort();
    assert_eq!(files, ["loopd.lock", "slot-0.holder"], "the slot's file is not left behind");
    // cut in the middle of a character, by a cancel: what was sampled is kept or left out, never guessed
    bench.server.push(Script::new().progress().text("x\u{1f98a}").lose(2).gate("never"));
    talk.send(&id, "Once more");
    talk.until_text(&id, "x\u{1f98a}");
    talk.cancel(&id);
    talk.turn(&id, "And more");
}

#[test]
fn ids_that_cannot_be_read_back_are_replaced_and_told() {
    let (mut bench, mut talk, id) = begun("");
    (bench.replaces_ids, bench.loses_cache) = (true, true);
    bench.server.set(|b| b.slot_dir = None);
    // an id of the vocabulary that no text has, of which no event tells
    bench.server.push(Script::new().progress().text("ab").lose(2).text("c").eog());
    let events = talk.turn(&id, "Hello");
    assert_eq!(told(&events)[2..], ["text abc", "notice ids_replaced", "usage stop", "turn_end done"]);
    let events = talk.turn(&id, "More");
    assert_eq!(bench.prompts(&id)[1], next(HELLO, "abc", "More"), "the text is right");
    assert!(told(&events).contains(&"notice cache_lost".to_owned()), "{:?}", told(&events));
}

#[test]
fn sessions_that_are_dropped_from_memory_go_on_as_if_nothing_was() {
    let (bench, mut talk, _) = begun("open_sessions = 2");
    let ids: Vec<SessionId> = (0..5).map(|_| talk.create()).collect();
    for round in 0..3 {
        for (n, id) in ids.iter().enumerate() {
            bench.server.push(Script::say(&format!("{n} answers {round}")));
            let events = talk.turn(id, &format!("{n} asks {round}"));
            assert_eq!(told(&events).last().unwrap(), "turn_end done");
        }
        assert_eq!(talk.metric("boxmaker_open_sessions"), 2);
    }
    for (n, id) in ids.iter().enumerate() {
        let mut expected = format!("{n} asks 0<|im_end|>\n<|im_start|>assistant\n");
        expected = next(&expected, &format!("{n} answers 0"), &format!("{n} asks 1"));
        expected = next(&expected, &format!("{n} answers 1"), &format!("{n} asks 2"));
        assert_eq!(bench.prompts(id).last(), Some(&expected));
        assert_eq!(talk.usage(id).len(), 3);
    }
}

#[test]
fn a_running_session_is_not_dropped_from_memory() {
    let (mut bench, mut talk, first) = begun("open_sessions = 1");
    bench.loses_cache = true;
    bench.server.push(Script::new().progress().text("a").gate("go").text("b").eog());
    talk.send(&first, "I am the first");
    talk.until_text(&first, "a");
    for _ in 0..3 {
        talk.create();
    }
    assert_eq!(talk.info(&first).state, SessionState::Running);
    bench.server.open("go");
    let events = talk.until_end(&first);
    assert_eq!(told(&events), ["text b", "usage stop", "turn_end done"]);
    assert_eq!(bench.log(&first)[2], "assistant 1 stop: ab");
    let other = talk.create();
    wait_until(Duration::from_secs(5), "only one is open", || talk.metric("boxmaker_open_sessions") == 1);
    talk.turn(&other, "I am another");
    assert_eq!(bench.server.completions()[0]["n_predict"], COMPLETION_TOKENS);
}

#[test]
fn a_server_that_hides_its_slots_is_not_given_back_an_older_cache() {
    let mut bench = Bench::start_with("", |_| String::new());
    bench.server.set(|b| b.slots = false);
    let mut talk = bench.talk();
    let (first, second) = (talk.create(), talk.create());
    talk.turn(&first, "I am the first");
    // takes the slot, so that the first's is kept
    talk.turn(&second, "I am the second");
    for text in ["Again", "And again", "And once more"] {
        let events = talk.turn(&first, text);
        assert_eq!(told(&events), ["turn_start", "prefill", "text ok", "usage stop", "turn_end done"]);
    }
    // and when the server has really lost it, it gets back what was kept
    bench.server.lose_cache();
    bench.loses_cache = true;
    let kept = talk.usage(&first)[0].clone();
    talk.turn(&first, "What now?");
    let row = talk.usage(&first).pop().unwrap();
    assert!(row.cache_n > kept.new_n && row.lost_n > 0, "{row:?}");
}

#[test]
fn a_turn_asks_the_server_nothing_but_what_it_needs() {
    let (bench, mut talk, id) = begun("");
    talk.turn(&id, "Hello");
    let paths = |from: usize| -> Vec<String> {
        let mut paths: Vec<String> =
            bench.server.requests().into_iter().skip(from).map(|request| request.path).collect();
        paths.sort();
        paths
    };
    let before = bench.server.requests().len();
    talk.turn(&id, "More");
    assert_eq!(paths(before), ["/completion", "/slots", "/tokenize"]);
    // once the cache is found lacking, everything is asked before it is paid for
    let mut bench = bench;
    bench.loses_cache = true;
    bench.server.lose_cache();
    let before = bench.server.requests().len();
    let events = talk.turn(&id, "And more");
    assert!(told(&events).contains(&"notice cache_lost".to_owned()), "{:?}", told(&events));
    let asked = bench.server.requests().into_iter().skip(before).map(|request| request.path);
    let asked: Vec<String> = asked.collect();
    for path in ["/health", "/props", "/v1/models"] {
        assert!(asked.iter().any(|p| p == path), "{path}: {asked:?}");
    }
    assert_eq!(
        asked.iter().filter(|path| *path == "/completion").count(),
        1,
        "seen before it was asked: {asked:?}"
    );
}

#[test]
fn another_model_behind_the_same_address_is_refused_before_it_is_asked_for_anything() {
    let (mut bench, mut talk, id) = begun("");
    talk.turn(&id, "Hello");
    bench.server.set(|b| b.model_path = "/models/another.gguf".to_owned());
    bench.server.lose_cache();
    bench.loses_cache = true;
    let records = bench.log(&id).len();
    let events = talk.turn(&id, "More");
    assert_eq!(told(&events).last().unwrap(), "turn_end failed", "{:?}", told(&events));
    assert!(bench.log(&id).iter().skip(records).all(|line| !line.starts_with("assistant")));
}
