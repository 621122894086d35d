//! The real `bxctl send` against a scripted daemon: what it prints, what it asks, how it exits, and what it does when the
//! daemon goes away.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod cli_fake;

use std::io::Read as _;
use std::process::Stdio;

use boxmaker::proto::{ErrorBody, ErrorCode, EventKind, Reply, Request, TurnId, TurnOutcome, TurnUsage};
use cli_fake::{
    Act, Fake, end, events, info, interrupt, stderr, stdout, text, turn_reply, usage, usual, whole_turn,
};

/// A daemon whose every turn has these events after its start, and ends so.
fn answering(kinds: Vec<EventKind>) -> Fake {
    Fake::start(move |request| match request {
        Request::Send { session, text } => {
            let mut all = vec![EventKind::TurnStart { text: text.clone(), retry: false }];
            all.extend(kinds.clone());
            Act::Then(turn_reply(session, 2), events(session, 2, 11, all))
        }
        Request::Retry { session } => {
            Act::Then(turn_reply(session, 2), events(session, 2, 11, kinds.clone()))
        }
        other => usual(other).unwrap(),
    })
}

#[test]
fn send_prints_the_answer_and_nothing_else() {
    let fake = answering(vec![
        EventKind::Prefill { done: 5, total: 10, cached: 0 },
        EventKind::Reasoning { text: "hm".into() },
        text("Hel"),
        text("lo\x1b[31m"),
        usage(0),
        end(TurnOutcome::Done, None),
    ]);
    let output = fake.run(&["send", "Good", "day"]);
    assert_eq!(stdout(&output), "Hello\x1b[31m\n", "exact, as it goes to a program");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(fake.sent(), ["Good day"]);
    let err = stderr(&output);
    assert!(err.contains("session s1 \"first\", turn 2") && err.contains("300 from cache"), "{err}");
    // attached before it was sent: no event can be missed
    let asked = fake.asked();
    let at = |f: fn(&Request) -> bool| asked.iter().position(f).unwrap();
    assert!(at(|r| matches!(r, Request::Attach { .. })) < at(|r| matches!(r, Request::Send { .. })));
}

#[test]
fn send_reads_the_whole_input() {
    let fake = answering(vec![text("ok"), end(TurnOutcome::Done, None)]);
    for (given, sent) in [
        ("one\ntwo\n".as_bytes(), "one\ntwo"),
        ("<|im_end|> 🙂\u{2028}\0".as_bytes(), "<|im_end|> 🙂\u{2028}\0"),
        ("".as_bytes(), ""),
    ] {
        let output = fake.run_with(&["send"], given);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(fake.sent().last().unwrap(), sent);
    }
    let long = "x".repeat(100_000);
    assert_eq!(fake.run_with(&["send"], long.as_bytes()).status.code(), Some(0));
    assert_eq!(fake.sent().last().unwrap(), &long);
    let output = fake.run_with(&["send"], b"ab\xff");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr(&output),
        "bxctl: the message on the standard input is not UTF-8: the byte at 2 is wrong\n"
    );
    assert_eq!(fake.sent().len(), 4);
}

#[test]
fn the_exit_status_tells_the_outcome() {
    for (outcome, code, said) in [
        (TurnOutcome::Done, 0, ""),
        (TurnOutcome::Failed, 1, "failed: the server stopped\n"),
        (TurnOutcome::Limit, 1, "stopped at a limit: the server stopped\n"),
        (TurnOutcome::Cancelled, 130, "cancelled: the server stopped\n"),
    ] {
        let fake = answering(vec![text("part"), end(outcome, Some("the server stopped"))]);
        for command in [&["send", "x"][..], &["retry"], &["retry", "s7"]] {
            let output = fake.run(command);
            assert_eq!(output.status.code(), Some(code), "{outcome:?}");
            assert_eq!(stdout(&output), "part\n");
            assert!(stderr(&output).ends_with(said), "{:?}", stderr(&output));
        }
    }
}

#[test]
fn json_events_are_those_of_the_turn_only() {
    let fake = Fake::start(|request| match request {
        Request::Send { session, .. } => {
            let mut list = events(session, 1, 11, vec![text("old"), end(TurnOutcome::Failed, None)]);
            list.extend(whole_turn(session, 2, 13, "x", &["a\u{9b}1m", "b"]));
            list.extend(events(session, 3, 18, vec![text("later")]));
            // the first events overtake the answer
            let rest = list.split_off(3);
            let mut raw: Vec<u8> = Vec::new();
            let mut line = |o: boxmaker::proto::Outgoing| raw.extend(o.to_line().unwrap());
            list.into_iter().for_each(|e| line(boxmaker::proto::Outgoing::Event(e)));
            line(boxmaker::proto::Outgoing::Ok(4, Box::new(turn_reply(session, 2))));
            rest.into_iter().for_each(|e| line(boxmaker::proto::Outgoing::Event(e)));
            Act::Raw(raw)
        }
        other => usual(other).unwrap(),
    });
    let output = fake.run(&["send", "--json", "x"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let values: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = values.iter().map(|v| v["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["turn_start", "text", "text", "usage", "turn_end"]);
    assert!(values.iter().all(|v| v["turn"] == 2 && v["session"] == "s1" && v["seq"].is_u64()));
    assert_eq!(values[1]["text"], "a\u{9b}1m");
    assert!(!stdout(&output).contains('\u{9b}'), "written as an escape");
}

#[test]
fn send_chooses_its_session() {
    let fake = Fake::start(|request| match request {
        Request::Latest {} => Act::Refuse(ErrorBody::new(ErrorCode::NotFound, "no session yet")),
        Request::Send { session, .. } => {
            Act::Then(turn_reply(session, 1), whole_turn(session, 1, 11, "x", &["ok"]))
        }
        other => usual(other).unwrap(),
    });
    for (arguments, code, session) in [
        (&["send", "x"][..], 0, "s2"),
        (&["send", "--new", "x"], 0, "s2"),
        (&["send", "--session", "s5", "x"], 0, "s5"),
        (&["send", "--last", "x"], 4, ""),
        (&["send", "--session", "", "x"], 4, ""),
        (&["send", "--session", "nobody", "x"], 4, ""),
        (&["send", "--session", "s5", "--new", "x"], 2, ""),
    ] {
        let before = fake.sent().len();
        let output = fake.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert_eq!(fake.sent().len(), before + usize::from(code == 0));
        if code == 0 {
            assert!(stderr(&output).starts_with(&format!("session {session}")), "{}", stderr(&output));
        }
    }
}

#[test]
fn a_lost_daemon_ends_a_turn_with_an_error() {
    let fake = answering(vec![text("part\n")]);
    let child = in_the_middle(&fake);
    // the socket's file goes too: nobody can come back
    fake.hang_up(true);
    let started = std::time::Instant::now();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("the daemon has gone"), "{}", stderr(&output));
    assert!(started.elapsed().as_secs() < 20);
}

#[test]
fn a_daemon_that_is_back_goes_on_where_it_was() {
    let mut attached = 0;
    let fake = Fake::start(move |request| match request {
        Request::Send { session, .. } => {
            Act::Hangup(turn_reply(session, 2), events(session, 2, 11, vec![text("a"), text("b")]))
        }
        Request::Attach { session, after, .. } => {
            attached += 1;
            let reply = Reply::Attached { seq: 15, running: true };
            if attached == 1 {
                return Act::Reply(Reply::Attached { seq: 10, running: false });
            }
            let after = after.as_ref().unwrap();
            assert_eq!((after.run.as_str(), after.seq), ("run1", 12));
            // one event too many: it must not be shown twice
            let rest = vec![text("b"), text("c"), usage(0), end(TurnOutcome::Done, None)];
            Act::Then(reply, events(session, 2, 12, rest))
        }
        other => usual(other).unwrap(),
    });
    let output = fake.run(&["send", "x"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "abc\n");
    assert!(stderr(&output).contains("the daemon is back"));
}

#[test]
fn an_output_that_nobody_reads_ends_it_in_silence() {
    let fake = Fake::start(|request| match request {
        Request::List {} => {
            Act::Reply(Reply::Sessions { sessions: (0..5000).map(|n| info(&format!("s{n}"))).collect() })
        }
        other => usual(other).unwrap(),
    });
    for arguments in [&["sessions"][..], &["sessions", "--json"]] {
        let mut child = fake
            .command()
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    }
}

#[test]
fn ctrl_c_cancels_the_turn_that_was_sent() {
    let fake = Fake::start(|request| match request {
        Request::Send { session, .. } => {
            Act::Then(turn_reply(session, 2), events(session, 2, 11, vec![text("part\n")]))
        }
        Request::Cancel { session } => {
            Act::Before(events(session, 2, 12, vec![end(TurnOutcome::Cancelled, None)]), Reply::Done {})
        }
        other => usual(other).unwrap(),
    });
    let child = in_the_middle(&fake);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(matches!(fake.asked().last().unwrap(), Request::Cancel { .. }));
    assert!(stderr(&output).ends_with("cancelled\n"));
}

#[test]
fn a_turn_whose_end_nobody_saw_is_not_waited_for() {
    let fake = Fake::start(|request| match request {
        Request::Send { session, .. } => {
            Act::Then(turn_reply(session, 2), events(session, 2, 11, vec![text("part\n")]))
        }
        Request::Cancel { .. } => Act::Refuse(ErrorBody::new(ErrorCode::Nothing, "no turn runs")),
        other => usual(other).unwrap(),
    });
    let child = in_the_middle(&fake);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("a part of the turn was missed"), "{}", stderr(&output));
}

#[test]
fn a_closed_standard_error_gives_up_no_turn() {
    let fake = answering(vec![
        EventKind::Reasoning { text: "hm".into() },
        text("whole "),
        EventKind::Notice { code: "x".into(), message: "y".into() },
        text("answer"),
        end(TurnOutcome::Done, None),
    ]);
    let mut child =
        fake.command().args(["send", "x"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "whole answer\n"));
}

#[test]
fn a_client_that_missed_the_end_says_so() {
    let mut ended = false;
    let fake = Fake::start(move |request| match request {
        Request::Send { session, .. } => {
            let idle = cli_fake::snapshot(boxmaker::proto::Snapshot::default());
            // an old snapshot before the turn is no end of it; the second one is
            let mut list = events(session, 1, 10, vec![idle.clone()]);
            list.extend(events(session, 2, 11, vec![text("be"), idle]));
            Act::Then(turn_reply(session, 2), list)
        }
        Request::Usage { .. } => {
            let outcome = std::mem::replace(&mut ended, true).then_some(TurnOutcome::Done);
            let row = TurnUsage {
                turn: TurnId(2),
                epoch: None,
                cache_n: 0,
                prompt_n: 0,
                predicted_n: 0,
                new_n: 0,
                lost_n: 0,
                reasoning_tokens: 0,
                thinking_capped: false,
                completions: 0,
                seconds: 0.0,
                outcome,
            };
            Act::Reply(Reply::Usage { turns: vec![row] })
        }
        other => usual(other).unwrap(),
    });
    let output = fake.run(&["send", "x"]);
    assert_eq!(output.status.code(), Some(1), "not whole, so not well");
    assert_eq!(stdout(&output), "be\n");
    assert!(stderr(&output).contains("`bxctl show s1` prints all of it"), "{}", stderr(&output));
}

/// `bxctl send` in the middle of its turn.
fn in_the_middle(fake: &Fake) -> std::process::Child {
    let mut child =
        fake.command().args(["send", "x"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut part = [0; 5];
    child.stdout.as_mut().unwrap().read_exact(&mut part).unwrap();
    child
}

#[test]
fn a_daemon_that_was_started_again_has_interrupted_the_turn() {
    let old = answering(vec![text("part\n")]);
    let child = in_the_middle(&old);
    old.hang_up(true);
    let new = Fake::with_run("run2", |request| usual(request).unwrap());
    std::fs::rename(&new.socket, &old.socket).unwrap();
    let output = child.wait_with_output().unwrap();
    let err = stderr(&output);
    assert!(err.ends_with("`bxctl retry`, or /retry in a chat, asks again\n"), "{err}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_turn_that_ended_while_the_connection_was_lost_is_not_waited_for() {
    let fake = answering(vec![text("part\n")]);
    let child = in_the_middle(&fake);
    // when it is back, nothing runs, and no event comes
    fake.hang_up(false);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("a part of the turn was missed"), "{}", stderr(&output));
}
