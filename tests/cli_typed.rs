//! What is typed in a chat while the model answers, in a real pseudo-terminal: it waits, seen and saved, and is
//! sent once, whatever goes away meanwhile.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod cli_fake;

use std::time::Duration;

use boxmaker::proto::{ErrorBody, ErrorCode, Reply, Request, TurnId};
use cli_fake::terminal::{Terminal, echo, finish, session, slow};
use cli_fake::{Act, Fake, turn_reply, user_message, usual, whole_turn};

#[test]
fn each_line_waits_by_itself_is_shown_and_can_be_taken_away() {
    for columns in [40, 200] {
        let fake = slow();
        let mut terminal = Terminal::start(&fake, &[], columns, 30);
        terminal.prompt();
        terminal.keys("first\r");
        terminal.wait_for("answer 2 to first,");
        for line in ["second", "third", "fourth\\\rof two lines"] {
            terminal.keys(&format!("{line}\r"));
            let begin = line.split('\\').next().unwrap();
            terminal.wait_for(&format!("waits: {begin}"));
        }
        terminal.keys("/drop 2\r");
        let contents = terminal.wait(|now| !now.contains("waits: third") && now.ends_with("\n>"));
        assert!(contents.contains("  1 waits: second\n  2 waits: fourth␊of two lines\n>"), "{contents}");
        assert_eq!(fake.sent(), ["first"], "not before the turn has ended");
        terminal.keys("half a li");
        terminal.wait(|now| now.ends_with("> half a li"));

        finish(&fake, 2);
        terminal.wait_for("answer 3 to second,");
        let contents = terminal.wait(|now| now.ends_with("> half a li"));
        assert!(contents.contains("  1 waits: fourth␊of two lines\n> half a li"), "{contents}");
        // what was streamed before and after stands in one piece
        assert!(contents.contains("answer 2 to first, and done.\n"), "{contents}");
        assert!(contents.contains("\n> second\nanswer 3 to second,"), "{contents}");
        finish(&fake, 3);
        terminal.wait_for("answer 4 to fourth");
        finish(&fake, 4);
        terminal.wait(|now| now.matches("and done.").count() == 3 && now.ends_with("> half a li"));
        terminal.keys("ne\r");
        terminal.wait_for("answer 5 to half a line,");
        assert_eq!(fake.sent(), ["first", "second", "fourth\nof two lines", "half a line"]);
    }
}

#[test]
fn what_waits_outlives_a_killed_chat() {
    let fake = slow();
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("go\r");
    terminal.wait_for("answer 2");
    terminal.keys("wait for me\r");
    terminal.wait_for("1 waits: wait for me");
    // leaving says what is kept, and where
    terminal.keys("\x04");
    assert_eq!(terminal.exit(), 0);
    let contents = terminal.contents();
    assert!(contents.contains("detached; the turn goes on"), "{contents}");
    let kept =
        "1 message is kept, not sent: `bxctl chat --session s1` shows it again, and /send there sends it";
    assert!(contents.replace('\n', " ").contains(kept), "{contents}");
    assert!(!contents.contains("1 waits"), "the rows of the prompt are taken away: {contents}");
    // it is saved when it is shown: a kill changes nothing
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.wait_for("1 waits: wait for me");
    drop(terminal);
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    let contents = terminal.wait_for("1 waits: wait for me");
    assert!(contents.contains("not sent yet, from an earlier time"), "{contents}");
    assert_eq!(fake.sent(), ["go"]);
    terminal.keys("/send\r");
    terminal.wait_for("answer 3 to wait for me");
    finish(&fake, 3);
    terminal.wait_for("and done.");
    terminal.prompt();
    terminal.keys("\x04");
    assert_eq!(terminal.exit(), 0);
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    let contents = terminal.prompt();
    assert!(!contents.contains("waits"), "{contents}");
}

#[test]
fn after_a_cancelled_turn_nothing_goes_by_itself() {
    let fake = slow();
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("go\r");
    terminal.wait_for("answer 2");
    terminal.keys("next\r");
    terminal.wait_for("1 waits: next");
    // what is being written stays
    terminal.keys("half a li");
    terminal.wait(|now| now.ends_with("> half a li"));
    terminal.keys("\x03");
    terminal.wait_for("cancelled");
    terminal.wait_for("/send sends it");
    terminal.wait(|now| now.ends_with("> half a li"));
    terminal.keys("\x15");
    terminal.prompt();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(fake.sent(), ["go"]);
    // a message at the prompt goes before what waits, which then goes on
    terminal.keys("now\r");
    terminal.wait_for("answer 3 to now");
    finish(&fake, 3);
    terminal.wait_for("answer 4 to next");
    assert_eq!(fake.sent(), ["go", "now", "next"]);
}

#[test]
fn commands_wait_for_the_model_or_go_at_once() {
    let fake = slow();
    let mut terminal = Terminal::start(&fake, &[], 80, 40);
    terminal.prompt();
    terminal.keys("go\r");
    terminal.wait_for("answer 2");
    terminal.keys("/help\r");
    terminal.wait_for("/drop [NUMBER]");
    terminal.keys("/usage\r");
    terminal.wait_for("the model is at work");
    terminal.wait(|now| now.ends_with("> /usage"));
    terminal.keys("\x15/quit\r");
    terminal.wait_for("detached; the turn goes on");
    assert_eq!(terminal.exit(), 0);
}

/// A daemon that goes away in the middle of `send`, with or without having saved the message.
fn vanishing(arrives: bool) -> Fake {
    let mut sends = 0;
    Fake::start(move |request| match request {
        Request::Send { session, text: said } => {
            sends += 1;
            if sends == 1 {
                return Act::Gone;
            }
            Act::Then(turn_reply(session, 3), whole_turn(session, 3, 300, said, &["the answer"]))
        }
        Request::Export { turn: Some(TurnId(2)), .. } if arrives => {
            let message = user_message(TurnId(2), "once only");
            Act::Reply(Reply::Records { records: vec![message], next: None })
        }
        other => usual(other).unwrap(),
    })
}

#[test]
fn a_message_is_neither_lost_nor_doubled_when_the_daemon_goes_away() {
    for arrives in [true, false] {
        let fake = vanishing(arrives);
        let mut terminal = Terminal::start(&fake, &[], 80, 24);
        terminal.prompt();
        terminal.keys("once only\r");
        terminal.wait_for("the daemon went away; whether the message arrived is seen when it is back");
        if arrives {
            terminal.wait_for("the message had arrived: it is turn 2");
        } else {
            terminal.wait_for("the answer");
        }
        let contents = terminal.prompt();
        assert!(!contents.contains("waits"), "{contents}");
        assert_eq!(fake.sent().len(), if arrives { 1 } else { 2 });
    }
}

#[test]
fn a_message_that_is_sent_at_once_is_never_shown_as_waiting() {
    // the daemon takes its time
    let fake = Fake::start(|request| match request {
        Request::Send { .. } => Act::Silence,
        other => usual(other).unwrap(),
    });
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("hello\r");
    terminal.wait_for("> hello");
    terminal.wait(|_| !fake.sent().is_empty());
    for _ in 0..40 {
        terminal.look();
        assert!(!terminal.contents().contains("waits"), "{}", terminal.contents());
    }
}

#[test]
fn a_busy_session_is_waited_for() {
    let mut sends = 0;
    let fake = Fake::start(move |request| match request {
        Request::Send { session, text: said } => {
            sends += 1;
            if sends == 1 {
                return Act::Refuse(ErrorBody::new(ErrorCode::Busy, "turn 2 runs"));
            }
            Act::Then(turn_reply(session, 3), whole_turn(session, 3, 300, said, &["my answer"]))
        }
        other => usual(other).unwrap(),
    });
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("me too\r");
    terminal.wait_for("another turn runs in this session: the message waits for it");
    terminal.wait_for("1 waits: me too");
    assert_eq!(fake.sent().len(), 1);
    fake.push(whole_turn(&session(), 2, 200, "somebody", &["theirs"]));
    terminal.wait_for("my answer");
    let contents = terminal.prompt();
    assert!(contents.contains("» somebody\ntheirs"), "{contents}");
}

#[test]
fn the_last_exchange_is_there_again() {
    let fake = Fake::start(|request| match request {
        Request::Export { turn: Some(TurnId(1)), .. } => {
            let message = user_message(TurnId(1), "what was it?\x1b[2J");
            Act::Reply(Reply::Records { records: vec![message], next: None })
        }
        other => usual(other).unwrap(),
    });
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    let contents = terminal.prompt();
    assert!(contents.contains("» what was it?␛[2J\n>"), "{contents}");
}

#[test]
fn other_sessions_are_a_command_away() {
    let fake = echo();
    let mut terminal = Terminal::start(&fake, &[], 100, 40);
    terminal.prompt();
    terminal.keys("/sessions\r");
    terminal.wait_for("TITLE");
    terminal.keys("/switch s2\r");
    terminal.wait_for("session s2 · \"first\"");
    terminal.keys("hello\r");
    terminal.wait_for("You said: hello");
    // while the turn runs, such a command would only stay at the prompt
    terminal.wait(|now| now.contains("5 generated") && now.ends_with("\n>"));
    assert!(
        fake.asked().iter().any(|r| matches!(r, Request::Send { session, .. } if session.as_str() == "s2"))
    );
    terminal.keys("/switch nowhere\r");
    terminal.wait_for("no session nowhere");
    terminal.prompt();
}

#[test]
fn a_search_says_what_it_could_not_read() {
    let fake = Fake::start(|request| match request {
        Request::Search { .. } => {
            let unread = vec!["s9".parse().unwrap()];
            Act::Reply(Reply::Found { hits: vec![], more: true, unread })
        }
        other => usual(other).unwrap(),
    });
    let mut terminal = Terminal::start(&fake, &[], 100, 40);
    terminal.prompt();
    terminal.keys("/search beans\r");
    let contents = terminal.wait_for("session s9 cannot be read, and was left out");
    assert!(contents.contains("nothing was found: every word must be in one message"), "{contents}");
    assert!(contents.contains("there is more: `bxctl search` finds all of it"), "{contents}");
}
