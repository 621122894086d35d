//! Models that think: a thought is capped, cut off, taken up again, and never taken for an answer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use boxmaker::proto::{EventKind, LogRecord, Request, SessionId};
use support::bench::{Bench, HELLO, STAND_IN, next};
use support::scripted_server::Script;
use support::talk::{Talk, told};

/// A bench whose model thinks; with `opened` the prompt begins its thought.
fn thinking(limits: &str, opened: bool) -> (Bench, Talk, SessionId) {
    let bench = Bench::start(limits);
    bench.server.set(|b| {
        b.template.push_str("{# <think> </think> #}");
        if opened {
            b.generation_prompt.push_str("<think>\n");
        }
    });
    let mut talk = bench.talk();
    let id = talk.create();
    let tags = bench.baseline(&id).framing.reasoning.unwrap();
    assert_eq!(tags.opened_by_prompt, opened);
    (bench, talk, id)
}

/// The reasoning and the text of each assistant message.
fn thoughts(bench: &Bench, id: &SessionId) -> Vec<(Option<String>, String)> {
    let records = bench.records(id).into_iter().filter_map(|record| match record {
        LogRecord::AssistantMessage(message) => Some((message.reasoning, message.text)),
        _ => None,
    });
    records.collect()
}

#[test]
fn a_thought_that_was_cut_off_goes_on_as_a_thought() {
    let (bench, mut talk, id) = thinking("completion_tokens = 12", false);
    bench.server.push(Script::say("<think>a1 and more"));
    let events = talk.turn(&id, "Hello");
    assert_eq!(told(&events)[2..], ["reasoning a1 an", "usage length", "turn_end limit"]);
    bench.server.push(Script::say("b2</think>cdef"));
    let events = talk.retry(&id);
    assert_eq!(told(&events)[2..], ["reasoning b2", "text cd", "usage length", "turn_end limit"]);
    bench.server.push(Script::say("ef"));
    let events = talk.retry(&id);
    assert_eq!(told(&events)[2..], ["text ef", "usage stop", "turn_end done"]);
    talk.turn(&id, "More");
    let said = "<think>a1 anb2</think>cdef";
    assert_eq!(bench.prompts(&id).last(), Some(&next(HELLO, said, "More")));
}

#[test]
fn a_thought_that_was_cut_off_is_closed_before_the_user_speaks_again() {
    let (bench, mut talk, id) = thinking("completion_tokens = 9", false);
    bench.server.push(Script::say("<think>a1 and more"));
    talk.turn(&id, "Hello");
    // going on without a word leaves it as it is
    bench.server.push(Script::new().progress().gate("never"));
    let reply = talk.ask(Request::Retry { session: id.clone() });
    assert!(reply.is_ok(), "{reply:?}");
    talk.until(&id, "prefill", |kind| matches!(kind, EventKind::Prefill { .. }));
    talk.cancel(&id);
    talk.turn(&id, "More");
    let said = format!("<think>a1\n</think>\n\n{STAND_IN}");
    assert_eq!(bench.prompts(&id).last(), Some(&next(HELLO, &said, "More")));
}

#[test]
fn an_answer_that_was_cut_off_does_not_go_on_as_a_thought() {
    let (bench, mut talk, id) = thinking("completion_tokens = 14", true);
    bench.server.push(Script::say("a1</think>text and more"));
    let events = talk.turn(&id, "Hello");
    assert_eq!(told(&events)[2..], ["reasoning a1", "text text", "usage length", "turn_end limit"]);
    bench.server.push(Script::say(" and more"));
    let events = talk.retry(&id);
    assert_eq!(told(&events)[2..], ["text and more", "usage stop", "turn_end done"]);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(thoughts(&bench, &id), [(some("a1"), "text".to_owned()), (None, "and more".to_owned())]);
}

#[test]
fn a_thought_that_the_prompt_began_is_closed_at_its_cap_and_the_answer_goes_on() {
    let (mut bench, mut talk, id) = thinking("thinking_tokens = 8", true);
    // what is recorded was sampled in two parts, with the words of the cap between them
    bench.replaces_ids = true;
    bench.server.push(Script::say("abcdefghijkl"));
    bench.server.push(Script::say("The answer."));
    let events = talk.turn(&id, "Hello");
    let told = told(&events);
    assert_eq!(told[told.len() - 3..], ["text The answer.", "usage stop", "turn_end done"], "{told:?}");
    let prompts = bench.prompts(&id);
    assert_eq!(prompts.len(), 2);
    assert!(prompts[1].starts_with(&format!("{}abcdefgh", prompts[0])), "{prompts:?}");
    assert!(prompts[1].ends_with("</think>\n\n"), "{prompts:?}");
    assert_eq!(bench.server.completions()[0]["n_predict"], 8);
    let row = talk.usage(&id).remove(0);
    assert!(row.thinking_capped && row.lost_n == 0, "{row:?}");
    talk.turn(&id, "More");
    let said = format!("{}The answer.", prompts[1]);
    let more = "<|im_end|>\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n<think>\n";
    assert_eq!(bench.prompts(&id).last(), Some(&format!("{said}{more}")));
}

#[test]
fn an_answer_that_was_shown_is_not_asked_again_by_itself() {
    for broken in [Script::status(503, "unavailable_error", "Loading model"), Script::new().progress().cut()]
    {
        let (mut bench, mut talk, id) = thinking("thinking_tokens = 30", true);
        bench.drops_half = true;
        bench.server.push(Script::say(&"hm ".repeat(20)));
        bench.server.push(broken);
        let events = talk.turn(&id, "Hello");
        assert_eq!(told(&events).last().unwrap(), "turn_end failed", "{:?}", told(&events));
        assert_eq!(bench.log(&id), ["session_start", "user 1: Hello", "turn_end 1 failed"]);
        bench.server.push(Script::say("abc</think>Better."));
        let events = talk.retry(&id);
        assert_eq!(told(&events).last().unwrap(), "turn_end done", "{:?}", told(&events));
        let prompts = bench.prompt_ids(&id);
        assert_eq!(prompts.first(), prompts.last(), "the very same request");
        assert_eq!(bench.log(&id)[3], "assistant 1 stop: Better.");
    }
}
