//! The turn against a model server that fails in every way it can.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::time::{Duration, Instant};

use boxmaker::proto::{ErrorCode, Reply, Request, SessionId};
use support::bench::{Bench, COMPLETION_TOKENS, HELLO, STAND_IN, begun};
use support::scripted_server::{Health, Script};
use support::talk::{Talk, told, why};
use support::wait_until;

/// After "Hello" failed in whatever way: retry asks the very same, and brings the answer.
fn retry_brings_the_answer(bench: &Bench, talk: &mut Talk, id: &SessionId) {
    let before = bench.server.completions();
    let events = talk.retry(id);
    assert_eq!(told(&events), ["turn_start retry", "prefill", "text ok", "usage stop", "turn_end done"]);
    let after = bench.server.completions();
    assert_eq!(after.len(), before.len() + 1);
    assert_eq!(after.last(), Some(&bench.body(id, HELLO, COMPLETION_TOKENS)));
    assert_eq!(
        bench.log(id),
        [
            "session_start",
            "user 1: Hello",
            "turn_end 1 failed",
            "assistant 1 stop: ok",
            "usage 1",
            "turn_end 1 done"
        ]
    );
    talk.turn(id, "More");
    let more = format!("{HELLO}ok<|im_end|>\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(bench.prompts(id).last(), Some(&more));
}

/// Sends "Hello", which must fail for this reason and leave nothing but that in the log.
fn hello_fails(bench: &Bench, talk: &mut Talk, id: &SessionId, reason: &str) -> Vec<String> {
    let events = talk.turn(id, "Hello");
    assert!(why(&events).contains(reason), "{reason:?} is not the cause in {:?}", why(&events));
    assert_eq!(bench.log(id), ["session_start", "user 1: Hello", "turn_end 1 failed"]);
    assert_eq!(bench.last_end(id), why(&events));
    told(&events)
}

#[test]
fn a_cut_stream_leaves_nothing_but_its_failure_and_retry_sends_the_same_prompt() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::new().progress().text("abc").cut());
    let told = hello_fails(&bench, &mut talk, &id, "cut off after 3 tokens");
    assert_eq!(told, ["turn_start", "prefill", "text abc", "error model", "turn_end failed"]);
    assert_eq!(
        bench.server.completions(),
        [bench.body(&id, HELLO, COMPLETION_TOKENS)],
        "no second try by itself"
    );
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn after_a_failed_turn_the_next_message_closes_it_with_the_stand_in() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::new().progress().text("abc").cut());
    hello_fails(&bench, &mut talk, &id, "cut off");
    let events = talk.turn(&id, "Again");
    assert_eq!(told(&events), ["turn_start", "prefill", "text ok", "usage stop", "turn_end done"]);
    let again =
        format!("{HELLO}{STAND_IN}<|im_end|>\n<|im_start|>user\nAgain<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(bench.server.completions()[1], bench.body(&id, &again, COMPLETION_TOKENS));
    assert_eq!(bench.log(&id)[3..], ["user 2: Again", "assistant 2 stop: ok", "usage 2", "turn_end 2 done"]);
}

#[test]
fn a_retry_that_fails_again_adds_nothing_and_is_told_as_durable() {
    let (bench, mut talk, id) = begun("");
    for _ in 0..3 {
        bench.server.push(Script::new().progress().text("abc").cut());
    }
    hello_fails(&bench, &mut talk, &id, "cut off");
    for _ in 0..2 {
        let events = talk.retry(&id);
        assert_eq!(
            told(&events),
            ["turn_start retry", "prefill", "text abc", "error model", "turn_end failed"]
        );
        assert_eq!(bench.log(&id), ["session_start", "user 1: Hello", "turn_end 1 failed"]);
    }
    assert_eq!(talk.metric("boxmaker_turns_total{outcome=\"failed\"}"), 3);
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn an_error_inside_a_stream_fails_the_turn() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::new().progress().text("ab").error(500, "Compute error."));
    let told = hello_fails(&bench, &mut talk, &id, "Compute error.");
    assert_eq!(told, ["turn_start", "prefill", "text ab", "error model", "turn_end failed"]);
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn a_stream_that_ends_in_order_but_without_an_end_fails_the_turn() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::new().progress().text("ab").end_body());
    hello_fails(&bench, &mut talk, &id, "no last event came");
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn a_connection_closed_before_an_answer_fails_the_turn() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::hang_up());
    let told = hello_fails(&bench, &mut talk, &id, "closed the connection before it answered");
    assert_eq!(told, ["turn_start", "error model", "turn_end failed"]);
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn an_empty_stream_and_an_answer_that_is_no_stream_fail_the_turn() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::new().end_body());
    hello_fails(&bench, &mut talk, &id, "no last event came");
    bench.server.push(Script::new().raw("data: {\"what\n\n").end_body());
    let events = talk.retry(&id);
    assert!(why(&events).contains("not what was expected"), "{}", why(&events));
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn an_endless_line_fails_the_turn_and_does_not_fill_the_memory() {
    let (bench, mut talk, id) = begun("");
    let endless = format!("data: {}", "x".repeat(34 << 20));
    bench.server.push(Script::new().progress().raw(&endless).gate("never"));
    hello_fails(&bench, &mut talk, &id, "longer than");
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn a_server_that_falls_silent_fails_the_turn_in_the_set_time() {
    let (bench, mut talk, id) = begun("server_silence_seconds = 5");
    bench.server.push(Script::new().progress().text("ab").gate("never"));
    let begin = Instant::now();
    let told = hello_fails(&bench, &mut talk, &id, "sent nothing for 5 s");
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(8), "{took:?}");
    assert_eq!(told, ["turn_start", "prefill", "text ab", "error model", "turn_end failed"]);
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn a_server_that_loads_its_model_is_waited_for_and_the_turn_goes_on() {
    let (bench, mut talk, id) = begun("");
    bench.server.set(|b| b.health = Health::Loading);
    talk.send(&id, "Hello");
    talk.until(&id, "waiting", |kind| told_of_waiting(kind, "Loading model"));
    // durable before the server can be asked anything
    assert_eq!(bench.log(&id), ["session_start", "user 1: Hello"]);
    bench.server.set(|b| b.health = Health::Ready);
    let events = talk.until_end(&id);
    assert_eq!(told(&events), ["prefill", "text ok", "usage stop", "turn_end done"]);
    assert_eq!(bench.server.completions(), [bench.body(&id, HELLO, COMPLETION_TOKENS)]);
}

fn told_of_waiting(kind: &boxmaker::proto::EventKind, reason: &str) -> bool {
    match kind {
        boxmaker::proto::EventKind::Waiting { why } => {
            assert!(why.contains(reason), "{why}");
            true
        }
        _ => false,
    }
}

#[test]
fn a_turn_that_waits_for_the_server_can_be_cancelled() {
    let (bench, mut talk, id) = begun("");
    bench.server.set(|b| b.health = Health::Loading);
    talk.send(&id, "Hello");
    talk.until(&id, "waiting", |kind| told_of_waiting(kind, "Loading model"));
    assert_eq!(told(&talk.cancel(&id)), ["turn_end cancelled"]);
    assert_eq!(bench.log(&id), ["session_start", "user 1: Hello", "turn_end 1 cancelled"]);
    assert_eq!(bench.server.completions().len(), 0);
    bench.server.set(|b| b.health = Health::Ready);
    talk.turn(&id, "Again");
    let again =
        format!("{HELLO}{STAND_IN}<|im_end|>\n<|im_start|>user\nAgain<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(bench.prompts(&id), [again]);
}

#[test]
fn a_server_that_is_away_is_waited_for_and_the_turn_goes_on() {
    let (mut bench, mut talk, id) = begun("");
    bench.server.go_down();
    talk.send(&id, "Hello");
    talk.until(&id, "waiting", |kind| told_of_waiting(kind, "does not answer yet"));
    bench.server.come_back();
    assert_eq!(told(&talk.until_end(&id)), ["prefill", "text ok", "usage stop", "turn_end done"]);
    assert_eq!(bench.server.completions(), [bench.body(&id, HELLO, COMPLETION_TOKENS)]);
}

#[test]
fn a_server_that_goes_down_between_the_look_and_the_question_is_waited_for() {
    let (bench, mut talk, id) = begun("");
    // healthy, and then the completion itself is told that the model loads: nothing was shown yet
    bench.server.push(Script::status(503, "unavailable_error", "Loading model"));
    let events = talk.turn(&id, "Hello");
    assert_eq!(told(&events), ["turn_start", "waiting", "prefill", "text ok", "usage stop", "turn_end done"]);
    let body = bench.body(&id, HELLO, COMPLETION_TOKENS);
    assert_eq!(bench.server.completions(), [body.clone(), body]);
    assert_eq!(
        bench.log(&id),
        ["session_start", "user 1: Hello", "assistant 1 stop: ok", "usage 1", "turn_end 1 done"]
    );
}

#[test]
fn a_server_that_is_restarted_in_mid_stream_fails_the_turn_and_the_loss_is_told_once() {
    let (mut bench, mut talk, id) = begun("");
    bench.loses_cache = true;
    talk.turn(&id, "Hello");
    bench.server.push(Script::new().progress().text("abc").gate("never"));
    talk.send(&id, "More");
    talk.until_text(&id, "abc");
    bench.server.go_down();
    let events = talk.until_end(&id);
    assert_eq!(told(&events), ["error model", "turn_end failed"]);
    assert!(why(&events).contains("cut off after 3 tokens"), "{}", why(&events));
    bench.server.come_back();
    let events = talk.retry(&id);
    assert_eq!(
        told(&events),
        ["turn_start retry", "notice cache_lost", "prefill", "text ok", "usage stop", "turn_end done"]
    );
    let bodies = bench.server.completions();
    assert_eq!(bodies[1], bodies[2], "the very same request");
    let rows = talk.usage(&id);
    let prompt = u64::try_from(bench.prompt_ids(&id)[0].len()).unwrap();
    // the prompt and "ok" of the first turn were in the cache, and are not any more
    assert_eq!((rows[0].lost_n, rows[1].lost_n), (0, prompt + 2));
    assert_eq!(rows[1].cache_n, 0);
}

#[test]
fn a_wrong_key_fails_the_turn_and_says_what_to_do() {
    let (bench, mut talk, id) = begun("");
    bench.server.set(|b| b.api_key = Some("secret".to_owned()));
    let told = hello_fails(&bench, &mut talk, &id, "model.api_key_file");
    assert_eq!(told, ["turn_start", "error model", "turn_end failed"]);
    bench.server.set(|b| b.api_key = None);
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn a_model_that_fails_to_load_fails_the_turn_and_is_not_waited_for() {
    let (bench, mut talk, id) = begun("");
    bench.server.set(|b| b.health = Health::Error(500, "failed to load model".to_owned()));
    let told = hello_fails(&bench, &mut talk, &id, "could not load its model");
    assert_eq!(told, ["turn_start", "error model", "turn_end failed"]);
    bench.server.set(|b| b.health = Health::Ready);
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn another_model_fails_the_turn_and_says_so() {
    let (bench, mut talk, id) = begun("");
    bench.server.set(|b| b.model_path = "/models/other.gguf".to_owned());
    hello_fails(&bench, &mut talk, &id, "other.gguf");
    assert_eq!(bench.server.completions().len(), 0, "another model is not asked");
    bench.server.set(|b| b.model_path = "/models/scripted.gguf".to_owned());
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn what_is_no_http_fails_the_turn() {
    let (bench, mut talk, id) = begun("");
    bench.server.set(|b| b.health = Health::Garbage(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()));
    hello_fails(&bench, &mut talk, &id, "not an HTTP answer");
    bench.server.set(|b| b.health = Health::Ready);
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn a_prompt_that_the_server_finds_too_long_fails_the_turn_once() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::status(400, "exceed_context_size_error", "too long"));
    hello_fails(&bench, &mut talk, &id, "begin a new");
    bench.server.push(Script::status(400, "exceed_context_size_error", "too long"));
    talk.retry(&id);
    assert_eq!(bench.log(&id).len(), 3, "a retry adds no record");
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn a_message_that_cannot_fit_is_refused_before_it_is_saved() {
    let bench = Bench::start("");
    bench.server.set(|b| b.n_ctx = 2048);
    let mut talk = bench.talk();
    let id = talk.create();
    let request = Request::Send { session: id.clone(), text: "x".repeat(5000) };
    let error = talk.ask(request).unwrap_err();
    assert_eq!(error.code, ErrorCode::Limit, "{error}");
    assert!(error.message.contains("5000 tokens") && error.message.contains("2048"), "{error}");
    assert_eq!((bench.log(&id).len(), bench.server.completions().len()), (1, 0));
    talk.turn(&id, "Hello");
    assert_eq!(bench.log(&id)[1], "user 1: Hello");
}

#[test]
fn a_shifted_context_is_not_taken_for_an_answer() {
    let (bench, mut talk, id) = begun("");
    let last = "data: {\"content\":\"\",\"tokens\":[],\"stop\":true,\"stop_type\":\"eos\",\"truncated\":true,\
                \"tokens_predicted\":2,\"tokens_evaluated\":1,\"tokens_cached\":1}\n\n";
    bench.server.push(Script::new().progress().text("ab").raw(last).end_body());
    hello_fails(&bench, &mut talk, &id, "--no-context-shift");
    retry_brings_the_answer(&bench, &mut talk, &id);
}

#[test]
fn a_hung_server_holds_up_neither_status_nor_cancel() {
    let (bench, mut talk, id) = begun("");
    bench.server.set(|b| b.mute = Some("/tokenize".to_owned()));
    let before = bench.server.asked("/tokenize");
    talk.send(&id, "Hello");
    wait_until(Duration::from_secs(10), "the server is asked for tokens", || {
        bench.server.asked("/tokenize") > before
    });
    let begin = Instant::now();
    // reads of the session do not wait for the server either
    assert_eq!(talk.usage(&id).len(), 1);
    talk.cancel(&id);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert_eq!(bench.log(&id), ["session_start", "user 1: Hello", "turn_end 1 cancelled"]);

    bench.server.set(|b| (b.mute, b.health) = (None, Health::Mute));
    let begin = Instant::now();
    let Ok(Reply::Status { status }) = talk.ask(Request::Status {}) else { panic!("no status") };
    assert!(begin.elapsed() < Duration::from_secs(12), "{:?}", begin.elapsed());
    assert_eq!((status.model, status.n_ctx), (None, None));
    bench.server.set(|b| b.health = Health::Ready);
}

#[test]
fn a_server_that_hangs_after_a_cancel_does_not_hold_up_its_end() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::new().progress().text("abc").gate("never"));
    talk.send(&id, "Hello");
    talk.until_text(&id, "abc");
    bench.server.set(|b| b.mute = Some("/slots".to_owned()));
    assert_eq!(told(&talk.cancel(&id)), ["usage cancelled", "turn_end cancelled"]);
    assert_eq!(bench.log(&id)[2], "assistant 1 cancelled: abc");
    bench.server.set(|b| b.mute = None);
    talk.turn(&id, "Go on");
}

#[test]
fn a_first_session_waits_for_the_server_and_leaves_nothing_of_a_wait_that_was_given_up() {
    let mut bench = Bench::start("");
    bench.server.go_down();
    let mut talk = bench.talk();
    let create = Request::Create { id: None, name: None };
    let error = talk.ask(create.clone()).unwrap_err();
    assert_eq!(error.code, ErrorCode::Waiting, "{error}");
    bench.server.come_back();
    assert_eq!(talk.ask(Request::List {}).unwrap(), Reply::Sessions { sessions: Vec::new() });
    let id = talk.create();
    // from then on a session begins, and a message is saved, with the server away
    bench.server.go_down();
    let second = talk.create();
    assert_ne!(second, id);
    talk.send(&second, "Hello");
    assert_eq!(bench.log(&second).last().unwrap(), "user 1: Hello");
    bench.server.come_back();
    talk.until_end(&second);
}
