//! A full context in the middle of things, and everything that can go wrong with a new epoch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::time::Duration;

use boxmaker::proto::{Carried, CarriedEnd, EventKind, LogRecord, Reply, Request, SessionId, TurnId};
use support::bench::{Bench, SUMMARISE, SYSTEM};
use support::scripted_server::{Script, find_call, installed_call, text_of};
use support::talk::{Talk, told, why};
use support::wait_until;

/// Room for some messages behind the head, whose tokens are bytes here.
const LIMITS: &str =
    "context_reserve_tokens = 100\nsummary_tokens = 100\nkept_tokens = 300\ncompletion_tokens = 400";

/// A bench whose context has room for `free` tokens behind the head.
fn begun(limits: &str, free: usize) -> (Bench, Talk, SessionId) {
    let bench = Bench::start(limits);
    let mut talk = bench.talk();
    // the first session tells how long the head is
    let first = talk.create();
    let head = bench.baseline(&first).framing.head.len();
    bench.server.set(|b| b.n_ctx = u64::try_from(head + free).unwrap());
    let id = talk.create();
    (bench, talk, id)
}

fn carried(bench: &Bench, id: &SessionId, epoch: u32) -> Carried {
    match bench.epoch_records(id, epoch).into_iter().nth(1) {
        Some(LogRecord::Carried(carried)) => carried,
        other => panic!("{other:?}"),
    }
}

/// What an epoch's first prompt has behind its head.
fn first_prompt(bench: &Bench, id: &SessionId, epoch: u32) -> String {
    let head = bench.epoch_baseline(id, epoch).framing.head.len();
    text_of(&bench.epoch_prompts(id, epoch)[0][head..])
}

fn rebase(talk: &mut Talk, id: &SessionId) -> Vec<boxmaker::proto::Event> {
    assert_eq!(talk.ask(Request::Rebase { session: id.clone() }), Ok(Reply::Done {}));
    talk.until(id, "the end of the rebase", |kind| matches!(kind, EventKind::Rebased { .. }))
}

#[test]
fn a_message_that_does_not_fit_any_more_goes_on_in_a_new_epoch() {
    let (bench, mut talk, id) = begun(LIMITS, 1400);
    bench.server.push(Script::say(&format!("first {}", "a".repeat(300))));
    talk.turn(&id, "I am Ada");
    bench.server.push(Script::say("second answer"));
    talk.turn(&id, "Second question");
    bench.server.push(Script::say("She is Ada."));
    bench.server.push(Script::say("third answer"));
    let events = talk.turn(&id, &format!("Third question {}", "q".repeat(560)));
    let kinds = told(&events);
    assert_eq!(kinds[..3], ["turn_start", "notice rebase", "prefill"], "{kinds:?}");
    assert_eq!(kinds[kinds.len() - 3..], ["text third answer", "usage stop", "turn_end done"]);
    assert!(!kinds.iter().any(|kind| kind == "text She is Ada."), "a summary is no answer: {kinds:?}");

    assert_eq!(bench.epochs(&id), 2);
    let carried = carried(&bench, &id, 1);
    assert_eq!((carried.turn, carried.ends), (Some(TurnId(3)), CarriedEnd::Asked));
    let summary = carried.summary.clone().unwrap();
    assert_eq!((summary.text.as_str(), summary.through), ("She is Ada.", TurnId(2)));
    let prompt = first_prompt(&bench, &id, 1);
    assert!(prompt.contains("She is Ada.") && prompt.contains("Third question qqq"), "{prompt}");
    assert!(!prompt.contains("second answer"), "{prompt}");
    // asked behind the same prompt, without the message that waits
    let asked = bench.epoch_prompts(&id, 0).pop().unwrap();
    assert!(text_of(&asked).contains(SUMMARISE) && !text_of(&asked).contains("Third question"));
    let cost = summary.cost.unwrap();
    assert!(cost.usage.prompt_n <= cost.new_n + 1 && cost.lost_n == 0, "{cost:?}");
    assert_eq!(bench.log(&id).last().unwrap(), "turn_end 3 done");
    let rows = talk.usage(&id);
    assert_eq!(rows.iter().map(|row| row.epoch.is_some()).collect::<Vec<_>>(), [false, false, false, true]);
}

#[test]
fn the_last_turns_stay_as_they_were() {
    let (bench, mut talk, id) = begun(LIMITS, 1500);
    bench.server.push(Script::say(&"a".repeat(390)));
    talk.turn(&id, "I am Ada");
    for n in 2..5 {
        bench.server.push(Script::say(&format!("answer {n} {}", "b".repeat(60))));
        talk.turn(&id, &format!("Question {n}"));
    }
    bench.server.push(Script::say("In short."));
    assert_eq!(told(&rebase(&mut talk, &id)).last().unwrap(), "\"rebased\"");
    let carried = carried(&bench, &id, 1);
    assert_eq!((carried.turn, carried.ends), (None, CarriedEnd::Said));
    let turns: Vec<u64> = carried.exchanges.iter().map(|exchange| exchange.turn.0).collect();
    assert!(turns.ends_with(&[4]) && !turns.contains(&1), "{turns:?}");
    talk.turn(&id, "And now?");
    let prompt = first_prompt(&bench, &id, 1);
    let tail = format!(
        "Question 4<|im_end|>\n<|im_start|>assistant\nanswer 4 {}<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n",
        "b".repeat(60)
    );
    assert!(prompt.ends_with(&tail), "{prompt}");
    assert!(
        prompt.starts_with("This conversation began earlier.") && prompt.contains("\nIn short.\n\n"),
        "{prompt}"
    );
    // numbers go on
    assert_eq!(bench.log(&id).last().unwrap(), "turn_end 5 done");
}

#[test]
fn tools_that_fill_the_context_in_mid_turn_do_not_end_the_turn() {
    let (bench, mut talk, id) = begun(LIMITS, 1500);
    for n in 0..9 {
        bench.server.push(Script::say(&find_call(&format!("tool number {n} {}", "z".repeat(40)))));
    }
    // whatever is asked meanwhile: a summary is written in the words of a call, too, and then it is none
    bench.server.push(Script::say("done"));
    let events = talk.turn(&id, "Find tools");
    let kinds = told(&events);
    assert!(kinds.contains(&"notice rebase".to_owned()), "{kinds:?}");
    assert_eq!(kinds.last().unwrap(), "turn_end done", "{kinds:?} {}", why(&events));
    assert!(bench.epochs(&id) > 1);
    let carried = carried(&bench, &id, 1);
    assert_eq!(carried.turn, Some(TurnId(1)));
    let prompt = first_prompt(&bench, &id, 1);
    assert!(prompt.contains("Find tools<|im_end|>"), "{prompt}");
    assert!(prompt.contains("<tool_call>"), "its last call, with its result: {prompt}");
    assert!(!prompt.contains("tool number 0"), "{prompt}");
    assert_eq!(bench.log(&id).last().unwrap(), "turn_end 1 done");
}

#[test]
fn an_answer_that_fills_the_context_goes_on_in_the_next_epoch() {
    let limits = LIMITS.replace("completion_tokens = 400", "completion_tokens = 4000");
    let (bench, mut talk, id) = begun(&limits, 1400);
    bench.server.push(Script::say("one"));
    talk.turn(&id, "I am Ada");
    bench.server.push(Script::say(&"long ".repeat(400)));
    bench.server.push(Script::say("In short."));
    bench.server.push(Script::say("and ends"));
    let events = talk.turn(&id, "Talk");
    let kinds = told(&events);
    assert!(kinds.contains(&"usage length".to_owned()), "{kinds:?}");
    assert_eq!(kinds.last().unwrap(), "turn_end done", "{kinds:?}");
    assert_eq!(bench.epochs(&id), 2);
    let carried = carried(&bench, &id, 1);
    assert_eq!((carried.turn, carried.ends), (Some(TurnId(2)), CarriedEnd::Said));
    let said = bench.epoch_records(&id, 0).into_iter().rev().find_map(|record| match record {
        LogRecord::AssistantMessage(message) => Some(message.text),
        _ => None,
    });
    let said = said.unwrap();
    let prompt = first_prompt(&bench, &id, 1);
    let (_, end) = said.split_at(said.len() - 50);
    assert!(prompt.ends_with(end) && !prompt.contains(&said), "it goes on where it was: {prompt}");
    // no request was ever longer than the context
    let n_ctx = talk.ask(Request::Status {});
    let Ok(Reply::Status { status }) = n_ctx else { panic!() };
    for body in bench.server.completions() {
        let prompt = u64::try_from(body["prompt"].as_array().unwrap().len()).unwrap();
        assert!(prompt + body["n_predict"].as_u64().unwrap() < status.n_ctx.unwrap(), "{body}");
    }
}

#[test]
fn whatever_ends_a_summary_leaves_the_session_as_it_was() {
    let (mut bench, mut talk, id) = begun(LIMITS, 1500);
    bench.loses_cache = true;
    bench.server.push(Script::say(&"a".repeat(380)));
    talk.turn(&id, "I am Ada");
    let log = bench.log(&id);
    let outcome = |events: &[boxmaker::proto::Event]| match &events.last().unwrap().kind {
        EventKind::Rebased { outcome, epoch, detail } => format!("{outcome:?} {epoch} {detail}"),
        other => panic!("{other:?}"),
    };
    // the server fails in the middle of it
    bench.server.push(Script::new().progress().text("In sho").cut());
    assert!(outcome(&rebase(&mut talk, &id)).starts_with("Failed 0 "));
    // it is cancelled
    bench.server.push(Script::new().progress().text("In sho").gate("never"));
    assert_eq!(talk.ask(Request::Rebase { session: id.clone() }), Ok(Reply::Done {}));
    talk.until(&id, "a summary", |kind| matches!(kind, EventKind::Summary { done, .. } if *done > 3));
    let busy = talk.ask(Request::Send { session: id.clone(), text: "x".to_owned() }).unwrap_err();
    assert!(busy.message.contains("busy"), "{busy}");
    assert_eq!(talk.ask(Request::Cancel { session: id.clone() }), Ok(Reply::Done {}));
    let events = talk.until(&id, "its end", |kind| matches!(kind, EventKind::Rebased { .. }));
    assert_eq!(outcome(&events), "Cancelled 0 it was cancelled");
    assert_eq!((bench.epochs(&id), bench.log(&id)), (1, log));
    // the daemon is killed
    bench.server.push(Script::new().progress().text("In sho").gate("never"));
    assert_eq!(talk.ask(Request::Rebase { session: id.clone() }), Ok(Reply::Done {}));
    talk.until(&id, "a summary", |kind| matches!(kind, EventKind::Summary { .. }));
    bench.kill_daemon();
    bench.start_daemon();
    let mut talk = bench.talk();
    talk.attach(&id, None);
    assert_eq!(told(&talk.turn(&id, "Go on")).last().unwrap(), "turn_end done");
    assert_eq!(bench.epochs(&id), 1);
    // a turn that needs room fails with the summary, and asks for it anew
    bench.server.push(Script::new().progress().text("In sho").cut());
    let events = talk.turn(&id, &"q".repeat(600));
    assert_eq!(told(&events).last().unwrap(), "turn_end failed", "{:?}", told(&events));
    assert_eq!(bench.epochs(&id), 1);
    bench.server.push(Script::say("In short."));
    bench.server.push(Script::say("So."));
    let events = talk.retry(&id);
    assert_eq!(told(&events).last().unwrap(), "turn_end done", "{:?}", told(&events));
    assert_eq!(bench.epochs(&id), 2);
    assert!(first_prompt(&bench, &id, 1).contains(&"q".repeat(600)));
}

#[test]
fn a_server_that_does_not_even_count_does_not_hold_up_a_cancel() {
    let (bench, mut talk, id) = begun(LIMITS, 1500);
    bench.server.push(Script::say(&"a".repeat(380)));
    talk.turn(&id, "I am Ada");
    bench.server.set(|b| b.mute = Some("/tokenize".to_owned()));
    let before = bench.server.asked("/tokenize");
    assert_eq!(talk.ask(Request::Rebase { session: id.clone() }), Ok(Reply::Done {}));
    wait_until(Duration::from_secs(10), "the server is asked to count", || {
        bench.server.asked("/tokenize") > before
    });
    assert_eq!(talk.ask(Request::Cancel { session: id.clone() }), Ok(Reply::Done {}));
    talk.until(&id, "its end", |kind| matches!(kind, EventKind::Rebased { .. }));
    assert_eq!(bench.epochs(&id), 1);
}

#[test]
fn a_summary_without_a_word_is_told_and_a_long_one_is_cut() {
    let (bench, mut talk, id) = begun(LIMITS, 1500);
    bench.server.push(Script::say(&"a".repeat(380)));
    talk.turn(&id, "I am Ada");
    bench.server.push(Script::new().progress().eog());
    let events = rebase(&mut talk, &id);
    assert!(told(&events).contains(&"notice no_summary".to_owned()), "{:?}", told(&events));
    bench.server.push(Script::say(&"b".repeat(380)));
    talk.turn(&id, "Go on");
    bench.server.push(Script::say(&"s".repeat(500)));
    rebase(&mut talk, &id);
    assert_eq!(carried(&bench, &id, 2).summary.unwrap().text, format!("{} …", "s".repeat(100)));
}

#[test]
fn a_turn_that_cannot_fit_ends_in_order_and_says_why() {
    let (bench, mut talk, id) = begun(LIMITS, 1400);
    let error = talk.ask(Request::Send { session: id.clone(), text: "x".repeat(1350) }).unwrap_err();
    assert!(error.message.contains("only"), "{error}");
    assert_eq!(bench.log(&id), ["session_start"], "nothing was saved");
    // by hand only: the turn ends and names the way out
    let (bench, mut talk, id) = begun(&format!("{LIMITS}\nturn_rebases = 0"), 1000);
    bench.server.push(Script::say(&"a".repeat(390)));
    talk.turn(&id, "I am Ada");
    let error = talk.ask(Request::Send { session: id.clone(), text: "x".repeat(500) }).unwrap_err();
    assert!(error.message.contains("bxctl rebase"), "{error}");
    bench.server.push(Script::say("In short."));
    let ran = bench.ctl(&["rebase", id.as_str()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let events = talk.turn(&id, &"x".repeat(500));
    assert_eq!(told(&events).last().unwrap(), "turn_end done", "{:?}", told(&events));
}

#[test]
fn another_model_takes_over_what_was_said_as_text() {
    let (mut bench, mut talk, id) = begun(LIMITS, 1500);
    bench.loses_cache = true;
    bench.server.push(Script::say(&find_call("names")));
    bench.server.push(Script::say("Hello Ada."));
    talk.turn(&id, "I am Ada");
    bench.server.set(|b| b.model_path = "/models/other.gguf".to_owned());
    bench.server.lose_cache();
    let events = talk.turn(&id, "Who am I?");
    assert!(why(&events).contains("bxctl rebase"), "{}", why(&events));
    let Ok(Reply::Session { differs, .. }) = talk.ask(Request::Open { session: id.clone() }) else {
        panic!()
    };
    assert!(differs.iter().any(|what| what.contains("other.gguf")), "{differs:?}");
    rebase(&mut talk, &id);
    assert_eq!(bench.epoch_baseline(&id, 1).model.file, "other.gguf");
    let events = talk.retry(&id);
    assert_eq!(told(&events).last().unwrap(), "turn_end done", "{:?}", told(&events));
    let prompt = first_prompt(&bench, &id, 1);
    assert!(
        prompt.starts_with("I am Ada<|im_end|>\n<|im_start|>assistant\nHello Ada.<|im_end|>"),
        "{prompt}"
    );
    assert!(prompt.ends_with("Who am I?<|im_end|>\n<|im_start|>assistant\n"), "{prompt}");
    let Ok(Reply::Session { differs, info }) = talk.ask(Request::Open { session: id.clone() }) else {
        panic!()
    };
    assert_eq!((differs, info.epoch.0), (Vec::<String>::new(), 1));
}

#[test]
fn a_kept_slot_of_the_epoch_before_is_not_given_back() {
    let limits = format!("{LIMITS}\nslot_quiet_seconds = 0");
    let (mut bench, mut talk, id) = begun(&limits, 1500);
    bench.loses_cache = true;
    bench.server.push(Script::say(&"a".repeat(380)));
    talk.turn(&id, "I am Ada");
    // another session takes the slot, so that this one's is kept
    let other = talk.create();
    talk.turn(&other, "I am Bob");
    let slots = bench.dir().join("slots");
    let kept = |id: &SessionId| {
        let begin = format!("{id}.");
        let files = fs::read_dir(&slots).unwrap().map(|entry| entry.unwrap().path());
        files
            .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&begin))
            .collect::<Vec<_>>()
    };
    let files: Vec<_> = kept(&id).into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    assert_eq!(files.len(), 2);
    bench.server.push(Script::say("In short."));
    rebase(&mut talk, &id);
    assert!(kept(&id).is_empty(), "it is of no use any more");
    talk.turn(&id, "Go on");
    // as if it had been left behind
    for (bytes, path) in files {
        fs::write(path, bytes).unwrap();
    }
    bench.server.lose_cache();
    let restored = bench.daemon().log().matches("EVENT=slot_restored").count();
    talk.turn(&id, "And on");
    assert_eq!(bench.daemon().log().matches("EVENT=slot_restored").count(), restored);
    assert!(talk.usage(&id).pop().unwrap().lost_n > 0, "the loss is told");
}

#[test]
fn read_session_finds_what_earlier_epochs_said() {
    let (bench, mut talk, id) = begun(LIMITS, 2400);
    bench.server.push(Script::say(&format!("Noted: Ottilie. {}", "a".repeat(340))));
    talk.turn(&id, "My sister is called Ottilie");
    let look = |words: &str| installed_call("read_session", &format!("{{\"words\": \"{words}\"}}"));
    bench.server.push(Script::say(&look("sister")));
    bench.server.push(Script::say(&"b".repeat(380)));
    talk.turn(&id, "What is her name?");
    assert!(bench.results(&id)[0].1.contains("no earlier part"), "{:?}", bench.results(&id));
    bench.server.push(Script::say("They talked."));
    rebase(&mut talk, &id);
    bench.server.push(Script::say(&look("sister called")));
    bench.server.push(Script::say("Ottilie"));
    talk.turn(&id, "And now?");
    let found = bench.results(&id)[1].1.clone();
    assert!(found.starts_with("turn 1, user: My sister is called Ottilie"), "{found}");
}

#[test]
fn what_a_beginning_that_was_cut_off_has_left_is_told_and_moved_away() {
    let (mut bench, mut talk, id) = begun(LIMITS, 1500);
    bench.server.push(Script::say(&"a".repeat(380)));
    talk.turn(&id, "I am Ada");
    bench.kill_daemon();
    let dir = bench.home().join("sessions").join(id.as_str());
    fs::copy(dir.join("0.baseline.json"), dir.join("1.baseline.json")).unwrap();
    fs::write(dir.join("1.jsonl.tmp"), "{\"prev\":\"").unwrap();
    bench.start_daemon();
    let mut talk = bench.talk();
    talk.attach(&id, None);
    assert_eq!(told(&talk.turn(&id, "Go on")).last().unwrap(), "turn_end done");
    assert!(bench.daemon().log().contains("EVENT=epoch_cut_off"), "{}", bench.daemon().log());
    bench.server.push(Script::say("In short."));
    rebase(&mut talk, &id);
    assert_eq!(bench.epochs(&id), 2);
    assert_eq!(bench.epoch_baseline(&id, 1).system_prompt, SYSTEM);
    let names = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains(".half-created-")).count(), 2);
    talk.turn(&id, "Go on");
}
