//! Tools that a person must allow: asked, decided, recorded; never run without a yes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use boxmaker::proto::{
    Decision, ErrorCode, EventKind, LogRecord, Phase, Reply, SessionId, SessionState, ToolOutcome,
};
use support::bench::{Bench, HELLO, begun_with};
use support::scripted_server::{Script, installed_call};
use support::talk::{Talk, told, why};
use support::wait_until;

/// The arguments of each call.
const CALLED: &str = "{\"n\": 1}";

/// A tool that writes a line into a file each time it runs, and must be allowed.
fn note(dir: &Path, unattended: &str) -> String {
    format!(
        "[tools]\nunattended = \"{unattended}\"\n[tools.command.note]\nprogram = \"/bin/sh\"\n\
         args = [\"-c\", \"read -r line; echo \\\"$line\\\" >> {}; printf noted\"]\ndescription = \"Notes.\"\n\
         policy = \"ask\"\nschema = {{ type = \"object\" }}\n",
        dir.join("notes").display()
    )
}

fn begun(limits: &str, unattended: &str) -> (Bench, Talk, SessionId) {
    let begun = begun_with(limits, |dir| note(dir, unattended));
    begun.0.server.push(Script::say(&installed_call("note", CALLED)));
    begun
}

fn runs(bench: &Bench) -> usize {
    fs::read_to_string(bench.dir().join("notes")).unwrap_or_default().lines().count()
}

fn denial(bench: &Bench, id: &SessionId) -> String {
    let results = bench.results(id);
    assert_eq!(results[0].0, ToolOutcome::Denied, "{results:?}");
    results[0].1.clone()
}

/// Who decided what, as recorded.
fn decisions(bench: &Bench, id: &SessionId) -> Vec<(Decision, String)> {
    let records = bench.records(id).into_iter();
    let decisions = records.filter_map(|record| match record {
        LogRecord::Approval(approval) => Some((approval.decision, approval.by)),
        _ => None,
    });
    decisions.collect()
}

#[test]
fn a_call_that_is_allowed_runs_after_the_decision_is_recorded() {
    let (bench, mut talk, id) = begun("", "wait");
    talk.send(&id, "Hello");
    let asked = told(&talk.until_asked(&id));
    assert_eq!(asked.last().unwrap(), r#"approval_wanted 1 note {"n": 1}"#);
    assert_eq!(runs(&bench), 0);
    assert!(!bench.log(&id).iter().any(|r| r.starts_with("tool_start")), "{:#?}", bench.log(&id));
    // a call that does not wait cannot be decided
    assert_eq!(talk.approve(&id, 7, Decision::Allow).unwrap_err().code, ErrorCode::Nothing);
    assert_eq!(talk.approve(&id, 1, Decision::Allow), Ok(Reply::Done {}));
    assert!(bench.log(&id).contains(&"approval".to_owned()), "durable before whoever decided is told");
    let events = talk.until_end(&id);
    assert_eq!(told(&events)[..2], ["approval 1 allow", "tool_result 1 call_tool ok"]);
    assert_eq!(bench.log(&id)[4..7], ["approval", "tool_start 1 call_tool", "tool_result 1 call_tool ok"]);
    assert_eq!(bench.appends(&id)[3..5], [vec!["approval", "tool_start"], vec!["tool_result"]]);
    assert_eq!(runs(&bench), 1);
    let uid = nix::unistd::getuid();
    let decisions = decisions(&bench, &id);
    assert_eq!(decisions.len(), 1);
    assert!(decisions[0].1.starts_with(&format!("uid {uid} (")), "{decisions:?}");
    // decided once, and not again
    assert_eq!(talk.approve(&id, 1, Decision::Deny).unwrap_err().code, ErrorCode::Nothing);
}

#[test]
fn a_call_that_is_denied_does_not_run_and_the_model_hears_of_it() {
    let (bench, mut talk, id) = begun("", "wait");
    talk.send(&id, "Hello");
    talk.until_asked(&id);
    assert_eq!(talk.approve(&id, 1, Decision::Deny), Ok(Reply::Done {}));
    let events = talk.until_end(&id);
    assert_eq!(why(&events), "", "{:#?}", told(&events));
    assert_eq!(denial(&bench, &id), "The call of note was denied by the user. Nothing was run.");
    assert_eq!(bench.log(&id)[4..6], ["approval", "tool_result 1 call_tool denied"]);
    assert_eq!(runs(&bench), 0);
    assert!(bench.prompts(&id)[1].starts_with(HELLO) && bench.prompts(&id)[1].contains("denied by the user"));
}

#[test]
fn a_client_that_comes_later_is_asked_and_one_that_goes_changes_nothing() {
    let (bench, mut talk, id) = begun("", "wait");
    talk.send(&id, "Hello");
    talk.until_asked(&id);
    drop(talk);
    let mut later = bench.talk();
    let info = later.info(&id);
    assert_eq!(info.state, SessionState::Running);
    let expected = format!("call 1 (note) waits for an approval: bxctl approve {id} 1 yes|no");
    assert_eq!(info.reason, Some(expected));
    later.attach(&id, None);
    let EventKind::Snapshot { snapshot } = later.next("a snapshot").kind else { panic!() };
    assert_eq!(snapshot.phase, Phase::Approval);
    let wanted = snapshot.approval.unwrap();
    assert_eq!((wanted.call.0, wanted.name.as_str(), wanted.arguments.as_str()), (1, "note", r#"{"n": 1}"#));
    let ran = bench.ctl(&["approve", id.as_str(), "1", "yes"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    later.until_end(&id);
    assert_eq!(runs(&bench), 1);
    assert!(decisions(&bench, &id)[0].1.contains("bxctl"), "{:?}", decisions(&bench, &id));
    assert_eq!(later.info(&id).reason, None);
    let again = bench.ctl(&["approve", id.as_str(), "1", "no"]);
    assert_eq!(again.code, 4, "{again:?}");
    assert!(again.err.contains("does not wait for an approval"), "{again:?}");
}

#[test]
fn with_nobody_there_it_is_denied_where_the_configuration_says_so() {
    let (bench, mut talk, id) = begun("", "deny");
    let begin = Instant::now();
    let events = talk.turn(&id, "Hello");
    assert_eq!(why(&events), "");
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(denial(&bench, &id).contains("[tools] unattended"), "{}", denial(&bench, &id));
    assert_eq!(decisions(&bench, &id)[0].0, Decision::Deny);
    // a client that asks a person is somebody
    bench.server.push(Script::say(&installed_call("note", CALLED)));
    talk.attach_to_approve(&id);
    talk.send(&id, "Again");
    talk.until_asked(&id);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(talk.approve(&id, 2, Decision::Allow), Ok(Reply::Done {}));
    talk.until_end(&id);
    assert_eq!(runs(&bench), 1);
    // and when it goes away, nobody is there after a while
    bench.server.push(Script::say(&installed_call("note", CALLED)));
    talk.send(&id, "And again");
    talk.until_asked(&id);
    drop(talk);
    wait_until(Duration::from_secs(20), "it is denied", || {
        bench.log(&id).last().is_some_and(|record| record == "turn_end 3 done")
    });
    assert_eq!(runs(&bench), 1);
}

#[test]
fn nobody_answers_for_too_long() {
    let (bench, mut talk, id) = begun("approval_seconds = 1", "wait");
    let events = talk.turn(&id, "Hello");
    assert_eq!(why(&events), "");
    let denial = denial(&bench, &id);
    assert!(denial.contains("raise [limits] approval_seconds (now 1)"), "{denial}");
    assert_eq!(runs(&bench), 0);
}

#[test]
fn a_persons_thinking_is_not_the_turns_time_and_the_slot_is_free_meanwhile() {
    let (bench, mut talk, id) = begun("turn_seconds = 2", "wait");
    talk.send(&id, "Hello");
    talk.until_asked(&id);
    let mut other = bench.talk();
    let second = other.create();
    let events = other.turn(&second, "Meanwhile");
    assert_eq!(told(&events).last().unwrap(), "turn_end done", "{:#?}", told(&events));
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(talk.approve(&id, 1, Decision::Allow), Ok(Reply::Done {}));
    let events = talk.until_end(&id);
    assert_eq!(told(&events).last().unwrap(), "turn_end done", "{:#?}", told(&events));
    assert_eq!(runs(&bench), 1);
}

#[test]
fn a_turn_that_is_cancelled_while_it_asks_ends_and_nothing_runs() {
    let (bench, mut talk, id) = begun("", "wait");
    talk.send(&id, "Hello");
    talk.until_asked(&id);
    talk.cancel(&id);
    assert_eq!(bench.log(&id)[4..], ["tool_result 1 call_tool error", "turn_end 1 cancelled"]);
    assert!(bench.results(&id)[0].1.contains("waited for an approval"), "{:?}", bench.results(&id));
    assert_eq!(talk.approve(&id, 1, Decision::Allow).unwrap_err().code, ErrorCode::Nothing);
    assert_eq!(runs(&bench), 0);
    let events = talk.turn(&id, "Again");
    assert_eq!(told(&events).last().unwrap(), "turn_end done");
}

#[test]
fn a_daemon_that_ends_or_is_killed_while_it_asks_never_runs_it() {
    let (mut bench, mut talk, id) = begun("", "wait");
    talk.send(&id, "Hello");
    talk.until_asked(&id);
    assert!(bench.daemon.take().unwrap().terminate().success());
    assert_eq!(bench.log(&id)[4..], ["tool_result 1 call_tool error", "turn_end 1 cancelled"]);
    assert!(bench.results(&id)[0].1.contains("waited for an approval"), "{:?}", bench.results(&id));
    bench.start_daemon();
    let mut talk = bench.talk();
    talk.attach(&id, None);
    bench.server.push(Script::say(&installed_call("note", CALLED)));
    talk.send(&id, "Again");
    talk.until_asked(&id);
    bench.kill_daemon();
    bench.start_daemon();
    let mut talk = bench.talk();
    let info = talk.info(&id);
    assert_eq!(info.state, SessionState::Interrupted);
    let why = info.reason.unwrap();
    assert!(why.contains("call 2 (call_tool) had not started and will not"), "{why}");
    assert!(why.contains("if it waited for an approval, nobody is asked any more"), "{why}");
    let listed = bench.ctl(&["sessions"]);
    assert!(listed.out.contains("call 2 (call_tool) had not started"), "{listed:?}");
    assert_eq!(talk.approve(&id, 2, Decision::Allow).unwrap_err().code, ErrorCode::Nothing);
    talk.attach(&id, None);
    talk.retry(&id);
    let results = bench.results(&id);
    assert_eq!(results.len(), 2);
    assert!(results[1].1.starts_with("Not run"), "{results:?}");
    assert_eq!(runs(&bench), 0);
}

#[test]
fn a_client_that_cannot_ask_says_where_the_question_can_be_answered() {
    let (bench, _talk, id) = begun("", "wait");
    let bench = std::rc::Rc::new(bench);
    let socket = support::daemon::socket_in(bench.dir());
    let command = support::daemon::bxctl(&socket, &["send", "--session", id.as_str(), "Hello"]);
    let waiting = std::thread::spawn(move || support::daemon::Ran::new(command, None));
    let mut other = bench.talk();
    wait_until(Duration::from_secs(10), "it waits", || other.info(&id).reason.is_some());
    assert_eq!(other.approve(&id, 1, Decision::Allow), Ok(Reply::Done {}));
    let ran = waiting.join().unwrap();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains(&format!("bxctl approve {id} 1 yes|no")), "{ran:?}");
    assert!(ran.err.contains(r#"⚙ call 1 wants to run note: {"n": 1}"#), "{ran:?}");
    assert!(ran.err.contains("⚙ call 1 allowed by uid"), "{ran:?}");
    assert_eq!(ran.out, "ok\n");
}
