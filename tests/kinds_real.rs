//! Models of other kinds than full attention: one with a sliding window, and one with recurrent layers. The same
//! promise, or the reason why not, told before the first turn.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use support::real_server::Kind;
use support::rig::{Rig, finished, ids, of_kind};

/// Saved only at a switch of sessions and at the end.
const LATE: &str = "completion_tokens = 24\nslot_quiet_seconds = 0";

/// Gemma's own template, since this model is a base model and comes without one.
const GEMMA: Kind =
    Kind { model: Some("BOXMAKER_SLIDING_MODEL"), template: Some("google-gemma-2-2b-it.jinja"), flags: &[] };
const GEMMA_FULL: Kind = Kind { flags: &["--swa-full"], ..GEMMA };
const HYBRID: Kind = Kind { model: Some("BOXMAKER_HYBRID_MODEL"), template: None, flags: &[] };

/// Some hundred tokens, so that the window has to slide.
fn long(question: &str) -> String {
    let story = "The quick brown fox jumps over the lazy dog, and the dog does not mind. ".repeat(12);
    format!("{story}{question}")
}

/// Two sessions in turn, the server started again between two turns, the board rebooted, and the daemon killed.
fn lives_through_everything(kind: Kind) {
    let Some(mut rig) = Rig::start_kind(LATE, kind) else { return };
    let (a, _) = rig.first_turn(&long("My name is Ada. Who are you?"));
    rig.turn(&a, "What is two plus two?");
    let (b, _) = rig.first_turn(&long("My name is Bob. Who are you?"));
    rig.turn(&a, &long("And three plus three?"));
    rig.turn(&b, "What is two plus two?");
    assert!(rig.daemon.take().unwrap().terminate().success());
    rig.replace_server();
    rig.start_daemon();
    rig.turn(&b, "And three plus three?");
    rig.replace_daemon();
    rig.turn(&a, "Thank you.");
    rig.turn(&b, "Thank you.");
    rig.assert_nothing_evaluated_twice(&a, 4);
    rig.assert_nothing_evaluated_twice(&b, 4);
    assert!(rig.session(&a)["context_n"].as_u64().unwrap() > 700, "longer than the window of 512");
}

#[test]
fn a_sliding_window_that_is_kept_whole_keeps_the_promise() {
    lives_through_everything(GEMMA_FULL);
}

/// This build of the server goes back to a checkpoint while a conversation is shorter than the window, as if the
/// window had slid already: `loopd check` says so before the first turn (see check_real.rs).
#[test]
fn a_sliding_window_that_is_not_kept_whole_costs_answers_while_they_are_few_and_says_so() {
    let Some(mut rig) = Rig::start_kind(LATE, GEMMA) else { return };
    let (id, _) = rig.first_turn("My name is Ada. Who are you?");
    let events = finished(&rig.ctl(&["send", "--session", &id, "--json", "What is two plus two?"]));
    let told = events.iter().find(|e| e["event"] == "notice" && e["code"] == "cache_lost").unwrap();
    assert!(told["message"].as_str().unwrap().contains("--swa-full"), "{told:#}");
    let row = &rig.usage(&id)[1];
    let n = |key: &str| row[key].as_u64().unwrap();
    assert!((1..=32).contains(&n("lost_n")), "the last answer, no more: {row:#}");
    assert_eq!(n("prompt_n"), n("new_n") + 1 + n("lost_n"), "and all of it is accounted for: {row:#}");
    // beyond the window nothing is lost, nor with the server
    rig.turn(&id, &long(&long("And three plus three?")));
    let before = rig.usage(&id).len();
    rig.turn(&id, "Thank you.");
    assert!(rig.daemon.take().unwrap().terminate().success());
    rig.replace_server();
    rig.start_daemon();
    rig.turn(&id, "Good bye.");
    for row in &rig.usage(&id)[before..] {
        assert_eq!(row["lost_n"], 0, "{row:#}");
    }
}

#[test]
fn recurrent_layers_keep_the_promise() {
    lives_through_everything(HYBRID);
}

#[test]
fn a_tokenizer_that_adds_a_bos_token_adds_it_once() {
    let Some(rig) = Rig::start_kind(LATE, GEMMA) else { return };
    let (id, _) = rig.first_turn("Hello.");
    let head = ids(&rig.baseline(&id)["framing"]["head"]);
    let (bos, start_of_turn) = (2, rig.server.tokenize("<start_of_turn>", true));
    assert_eq!(head[..2], [bos, start_of_turn[0]], "{head:?}");
    assert_eq!(start_of_turn.len(), 1);
    rig.turn(&id, "Thank you.");
    let baseline = rig.baseline(&id);
    let mut sent = head;
    for message in of_kind(&rig.log(&id), "assistant_message") {
        sent.extend(ids(&message["prompt_ids"]));
    }
    for fragment in ["user_open", "user_close", "tool_open", "tool_between", "tool_close"] {
        sent.extend(ids(&baseline["framing"][fragment]));
    }
    assert_eq!(sent.iter().filter(|id| **id == bos).count(), 1, "{sent:?}");
}
