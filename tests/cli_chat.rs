//! `bxctl chat` in a real pseudo-terminal against a scripted daemon: keys in, screen contents out.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod cli_fake;

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use boxmaker::proto::{
    ApprovalWanted, CallId, Decision, EventKind, Phase, Reply, Request, SessionId, SessionInfo, SessionState,
    Snapshot, TurnOutcome,
};
use cli_fake::terminal::{Terminal, echo, waiting};
use cli_fake::{
    Act, Fake, end, events, info, snapshot, stderr, stdout, text, turn_reply, usage, usual, whole_turn,
};

#[test]
fn several_lines_are_one_message() {
    let fake = echo();
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    let all = [
        ("one\\\rtwo\r", "one\ntwo"),
        ("three\x1b\rfour\r", "three\nfour"),
        ("\x1b[200~paste \\\rmore\x1b[201~\r", "paste \\\nmore"),
        ("//quit\r", "/quit"),
    ];
    terminal.prompt();
    for (number, (keys, sent)) in (1..).zip(all) {
        terminal.keys(keys);
        terminal.wait(|now| now.matches("from cache").count() == number && now.ends_with("\n>"));
        assert_eq!(fake.sent().last().unwrap(), sent);
    }
    let history = fake.dir.path().join(".local/state/bxctl/history");
    let mode = std::fs::metadata(&history).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(std::fs::read_to_string(&history).unwrap().contains("paste"));
    // the newest comes back with the arrow key
    terminal.keys("\x1b[A");
    terminal.wait(|contents| contents.ends_with("> //quit"));
}

#[test]
fn ctrl_c_cancels_and_twice_quits() {
    let mut cancels = 0;
    let mut turn = 1;
    let fake = Fake::start(move |request| match request {
        Request::Send { session, .. } => {
            turn += 1;
            let kinds = vec![text("a long answer to "), text(&turn.to_string())];
            Act::Then(turn_reply(session, turn), events(session, turn, turn * 100, kinds))
        }
        Request::Cancel { session } => {
            cancels += 1;
            if cancels > 1 {
                return Act::Silence;
            }
            Act::Before(
                events(session, turn, turn * 100 + 2, vec![usage(0), end(TurnOutcome::Cancelled, None)]),
                Reply::Done {},
            )
        }
        other => usual(other).unwrap(),
    });
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("go\r");
    terminal.wait_for("a long answer to 2");
    terminal.keys("\x03");
    terminal.wait_for("cancelled");
    terminal.prompt();
    // the first one's time has passed: this is a first one again
    std::thread::sleep(Duration::from_millis(2100));
    terminal.keys("\x03");
    terminal.wait_for("Ctrl-C again quits");
    terminal.prompt();
    std::thread::sleep(Duration::from_millis(2100));
    terminal.keys("again\r");
    terminal.wait_for("a long answer to 3");
    terminal.keys("\x03");
    terminal.wait_for("cancelling");
    terminal.keys("\x03");
    assert_eq!(terminal.exit(), 130);
    // the second turn is asked to end as well
    fake.wait_asked(2, |request| matches!(request, Request::Cancel { .. }));
}

#[test]
fn ctrl_d_detaches_and_cancels_nothing() {
    let fake = waiting(vec![text("working on it")]);
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("go\r");
    terminal.wait_for("working on it");
    terminal.keys("\x04");
    terminal.wait_for("detached; the turn goes on: `bxctl chat --session s1`");
    assert_eq!(terminal.exit(), 0);
    assert!(!fake.asked().iter().any(|r| matches!(r, Request::Cancel { .. })));
}

#[test]
fn a_running_turn_is_joined() {
    let fake = Fake::start(|request| match request {
        Request::Open { .. } => {
            let info = SessionInfo { state: SessionState::Running, ..info("s1") };
            Act::Reply(Reply::Session { info, differs: vec!["temperature 0.2, now 0.7".into()] })
        }
        Request::Attach { session, .. } => {
            let so_far = Snapshot {
                phase: Phase::Generating,
                user_text: "tell me a story".into(),
                text: "Once upon".into(),
                ..Snapshot::default()
            };
            Act::Then(
                Reply::Attached { seq: 10, running: true },
                events(session, 2, 10, vec![snapshot(so_far), text(" a time")]),
            )
        }
        other => usual(other).unwrap(),
    });
    let mut terminal = Terminal::start(&fake, &["chat", "--last"], 80, 24);
    let contents = terminal.wait_for("Once upon a time");
    let words = contents.replace('\n', " ");
    assert!(words.contains("» tell me a story") && words.contains("temperature 0.2, now 0.7"), "{contents}");
    fake.push(events(&"s1".parse().unwrap(), 2, 20, vec![usage(0), end(TurnOutcome::Done, None)]));
    let contents = terminal.prompt();
    assert_eq!(contents.matches("Once upon").count(), 1, "{contents}");
}

/// A daemon whose turns have a call that waits for a decision; and the event that says so.
fn asking(id: &SessionId) -> (Fake, EventKind) {
    let wanted =
        ApprovalWanted { call: CallId(3), name: "mail".into(), arguments: "{\"to\":\"a\u{1b}[2J\"}".into() };
    let asks = EventKind::ApprovalWanted { wanted };
    let start = EventKind::TurnStart { text: "x".into(), retry: false };
    let fake = Fake::start({
        let (id, asks, mut seq) = (id.clone(), asks.clone(), 0);
        move |request| match request {
            Request::Send { session, .. } => {
                Act::Then(turn_reply(session, 2), events(session, 2, 20, vec![start.clone(), asks.clone()]))
            }
            Request::Approve { call: CallId(3), decision, .. } => {
                seq += 30;
                let said = EventKind::Approval { call: CallId(3), decision: *decision, by: "uid 7".into() };
                Act::Then(
                    Reply::Done {},
                    events(&id, 2, seq, vec![said, text("so be it"), usage(0), end(TurnOutcome::Done, None)]),
                )
            }
            other => usual(other).unwrap(),
        }
    });
    (fake, asks)
}

#[test]
fn a_call_that_needs_an_approval_is_asked_in_place() {
    let id: SessionId = "s1".parse().unwrap();
    let (fake, asks) = asking(&id);
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("send it\r");
    let contents = terminal.wait_for("allow it? y or n");
    assert!(contents.contains("⚙ call 3 wants to run mail: {\"to\":\"a␛[2J\"}"), "{contents}");
    // only a whole word is an answer; all else waits as what is typed ahead does, and the question stands
    terminal.keys("yeah\r");
    terminal.wait(|contents| contents.ends_with("then Enter:\n  1 waits: yeah\n>"));
    terminal.keys("/drop\r");
    terminal.wait(|contents| contents.ends_with("then Enter:\n>"));
    assert!(!fake.asked().iter().any(|r| matches!(r, Request::Approve { .. })));
    terminal.keys("n\r");
    let contents = terminal.wait_for("so be it");
    assert!(contents.contains("⚙ call 3 denied by uid 7"), "{contents}");
    let asked = fake.asked();
    assert!(asked.iter().any(|r| matches!(r, Request::Approve { decision: Decision::Deny, .. })));
    assert!(asked.iter().any(|r| matches!(r, Request::Attach { approves: true, .. })));
    // a question of a turn that another client began is answered at the prompt
    terminal.prompt();
    fake.push(events(&id, 2, 40, vec![EventKind::TurnStart { text: "y".into(), retry: false }, asks]));
    terminal.wait_for("/allow lets it run");
    terminal.keys("/allow\r");
    terminal.wait_for("call 3 allowed by uid 7");
}

#[test]
fn a_decision_about_a_followed_turn_is_a_command_too() {
    let (fake, _) = asking(&"s1".parse().unwrap());
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("send it\r");
    terminal.wait_for("allow it? y or n");
    terminal.keys("/allow\r");
    let contents = terminal.wait_for("so be it");
    assert!(contents.contains("⚙ call 3 allowed by uid 7"), "{contents}");
}

#[test]
fn one_turn_on_a_terminal_asks_by_itself() {
    let (fake, _) = asking(&"s1".parse().unwrap());
    let mut terminal = Terminal::start(&fake, &["send", "hello"], 80, 24);
    terminal.wait_for("allow it? y or n");
    // each key is there at once, and what is no answer is taken away again
    terminal.keys("ye");
    terminal.wait(|contents| contents.ends_with("then Enter: ye"));
    terminal.keys("ah\r");
    terminal.wait(|contents| contents.ends_with("then Enter:"));
    assert!(!fake.asked().iter().any(|r| matches!(r, Request::Approve { .. })));
    terminal.keys("y\r");
    let contents = terminal.wait_for("so be it");
    assert!(contents.contains("⚙ call 3 allowed by uid 7"), "{contents}");
}

#[test]
fn the_turns_of_others_are_shown_above_the_prompt() {
    let fake = echo();
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("half a li");
    terminal.wait(|contents| contents.ends_with("> half a li"));
    fake.push(whole_turn(&"s1".parse().unwrap(), 9, 50, "somebody asks", &["the ans", "wer\nof two lines"]));
    let contents =
        terminal.wait(|contents| contents.contains("300 from cache") && contents.ends_with("> half a li"));
    assert!(contents.contains("» somebody asks\nthe answer\nof two lines\n"), "{contents}");
    terminal.keys("ne\r");
    terminal.wait_for("You said: half a line");
}

#[test]
fn a_lost_daemon_is_noticed_at_the_prompt() {
    let fake = echo();
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    fake.hang_up(false);
    terminal.wait_for("the daemon has gone");
    terminal.wait_for("the daemon is back");
    terminal.prompt();
    terminal.keys("still there?\r");
    terminal.wait_for("You said: still there?");
    terminal.prompt();
    fake.hang_up(true);
    terminal.wait(|contents| contents.matches("the daemon has gone").count() == 2);
    assert_eq!(terminal.exit(), 3);
    assert!(terminal.contents().contains("no daemon"), "{}", terminal.contents());
}

#[test]
fn a_turn_goes_on_after_the_daemon_was_away() {
    let mut attached = 0;
    let fake = Fake::start(move |request| match request {
        Request::Attach { session, after, .. } => {
            attached += 1;
            if attached == 1 {
                return usual(request).unwrap();
            }
            assert_eq!(after.as_ref().unwrap().seq, 12);
            let rest = vec![text("three "), text("four"), end(TurnOutcome::Done, None)];
            Act::Then(Reply::Attached { seq: 15, running: true }, events(session, 2, 13, rest))
        }
        Request::Send { session, .. } => {
            Act::Hangup(turn_reply(session, 2), events(session, 2, 11, vec![text("one "), text("two ")]))
        }
        other => usual(other).unwrap(),
    });
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("count\r");
    terminal.wait_for("three four");
    let contents = terminal.prompt();
    let said = contents.split("> count\n").nth(1).unwrap();
    let expected =
        "one two\nthe daemon has gone; waiting for it to come back …\nthe daemon is back\nthree four\n>";
    assert_eq!(said, expected);
}

#[test]
fn commands_of_the_conversation() {
    let fake = Fake::start(|request| match request {
        Request::Retry { session } => {
            Act::Then(turn_reply(session, 2), whole_turn(session, 2, 30, "x", &["at last"]))
        }
        Request::Usage { .. } => Act::Reply(Reply::Usage { turns: vec![] }),
        other => usual(other).unwrap(),
    });
    let mut terminal = Terminal::start(&fake, &["chat", "--session", "s1"], 80, 40);
    for (keys, shown) in [
        ("/help\r", "what each turn cost"),
        ("/usage\r", "has no turns yet"),
        ("/rename shopping list\r", "this session is \"shopping list\" now"),
        ("/nope\r", "no such command"),
        ("/retry\r", "at last"),
        ("/new other\r", "session s2 · \"other\""),
    ] {
        terminal.prompt();
        terminal.keys(keys);
        terminal.wait_for(shown);
    }
    terminal.prompt();
    terminal.keys("/quit\r");
    assert_eq!(terminal.exit(), 0);
    let asked = fake.asked();
    assert!(asked.iter().any(|r| matches!(r, Request::Rename { name, .. } if name == "shopping list")));
    assert!(asked.iter().any(|r| matches!(r, Request::Attach { session, .. } if session.as_str() == "s2")));
}

#[test]
fn without_a_terminal_each_line_is_a_turn() {
    let fake = echo();
    let output = fake.run_with(&["chat"], "one\n\ntwo\nthree".as_bytes());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "You said: one\nYou said: two\nYou said: three\n");
    assert_eq!(fake.sent(), ["one", "two", "three"]);
    assert!(stderr(&output).contains("300 from cache"));
}

#[test]
fn the_worst_outcome_of_the_lines_counts() {
    let mut turn = 1;
    let fake = Fake::start(move |request| match request {
        Request::Send { session, text: said } => {
            turn += 1;
            let outcome = match said.as_str() {
                "bad" => TurnOutcome::Failed,
                "stop" => TurnOutcome::Cancelled,
                _ => TurnOutcome::Done,
            };
            let kinds = vec![text(said), end(outcome, None)];
            Act::Then(turn_reply(session, turn), events(session, turn, turn * 100, kinds))
        }
        other => usual(other).unwrap(),
    });
    for (input, code) in [("a\nb\n", 0), ("a\nstop\nb\n", 130), ("bad\nstop\nb\n", 1), ("a\n\u{ff}\n", 0)] {
        assert_eq!(fake.run_with(&["chat"], input.as_bytes()).status.code(), Some(code), "{input:?}");
    }
    let output = fake.run_with(&["chat"], b"a\n\xff\nb\n");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "a\nb\n");
    assert!(stderr(&output).contains("line 2 of the input is not UTF-8: the byte at 0 is wrong"));
}
