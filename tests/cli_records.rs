//! The real `bxctl` against a scripted daemon: showing, exporting and looking after sessions.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod cli_fake;

use std::io::BufReader;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use boxmaker::proto::{
    AssistantMessage, ErrorBody, ErrorCode, Finish, LogRecord, Reply, Request, TokenIds, TurnEnd, TurnId,
    TurnOutcome,
};
use cli_fake::{
    Act, Fake, PATIENCE, end, events, interrupt, stderr, stdout, text, time, user_message, usual, whole_turn,
};
use expectrl::{Expect as _, Session};

/// A daemon whose sessions have five turns, given two records a page.
fn with_records() -> Fake {
    let time = time();
    let records: Vec<LogRecord> = (1..=5)
        .map(TurnId)
        .flat_map(|turn| {
            let answer = AssistantMessage {
                time,
                turn,
                text: format!("answer {turn}\u{9b}"),
                reasoning: None,
                tool_calls: vec![],
                finish: Finish::Stop,
                prompt_ids: TokenIds(vec![1, 300]),
                ids: TokenIds(vec![70_000, 2]),
            };
            let end = TurnEnd { time, turn, outcome: TurnOutcome::Done, detail: None, millis: Some(1) };
            let message = user_message(turn, &format!("question {turn}\x1b[1m"));
            [message, LogRecord::AssistantMessage(answer), LogRecord::TurnEnd(end)]
        })
        .collect();
    Fake::start(move |request| match request {
        Request::Export { from, .. } => {
            let from = usize::try_from(*from).unwrap();
            let page: Vec<LogRecord> = records.iter().skip(from).take(2).cloned().collect();
            let next = (from + 2 < records.len()).then_some(from as u64 + 2);
            Act::Reply(Reply::Records { records: page, next })
        }
        other => usual(other).unwrap(),
    })
}

#[test]
fn show_prints_all_pages_safely() {
    let fake = with_records();
    let output = fake.run(&["show", "s1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let out = stdout(&output);
    for n in 1..=5 {
        assert!(out.contains(&format!("» question {n}␛[1m\nanswer {n}‹U+009B›\n")), "{out}");
    }
    assert!(out.chars().all(|c| c == '\n' || !c.is_control()));
    assert!(stdout(&fake.run(&["show", "--ids"])).contains("sampled ids (2): 70000 2"));
}

#[test]
fn show_and_export_as_json() {
    let fake = with_records();
    let output = fake.run(&["show", "--json"]);
    let records: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(records.as_array().unwrap().len(), 15);
    assert_eq!(records[13]["text"], "answer 5\u{9b}");
    assert!(records[13].get("ids").is_none());
    assert!(!stdout(&output).contains('\u{9b}'), "written as an escape");
    let output = fake.run(&["show", "--json", "--ids"]);
    let records: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(records[1]["ids"], serde_json::json!([70_000, 2]));
    for arguments in [&["export", "--format", "json"][..], &["export", "--json", "s1"]] {
        let export: serde_json::Value = serde_json::from_str(stdout(&fake.run(arguments))).unwrap();
        assert_eq!(export["session"]["id"], "s1");
        assert_eq!(export["records"][1]["prompt_ids"], serde_json::json!([1, 300]));
    }
}

#[test]
fn export_writes_a_private_file_once() {
    let fake = with_records();
    let path = fake.dir.path().join("talk.md");
    let output = fake.run(&["export", "s1", "-o", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written.contains("answer 5\u{9b}"), "exact in a file");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let output = fake.run(&["export", "s1", "-o", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("talk.md: the file is there already"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), written);
}

#[test]
fn a_half_export_does_not_stay() {
    let fake = Fake::start(|request| match request {
        Request::Export { from: 0, .. } => {
            Act::Reply(Reply::Records { records: vec![user_message(TurnId(1), "x")], next: Some(1) })
        }
        Request::Export { .. } => Act::Refuse(ErrorBody::new(ErrorCode::Damaged, "0.jsonl:2: no record")),
        other => usual(other).unwrap(),
    });
    let path = fake.dir.path().join("talk.md");
    let output = fake.run(&["export", "s1", "-o", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(stderr(&output), "bxctl: 0.jsonl:2: no record\n");
    assert!(!path.exists());
}

#[test]
fn cancel_and_rename() {
    let fake = Fake::start(|request| match request {
        Request::Cancel { session } if session.as_str() == "s9" => {
            Act::Refuse(ErrorBody::new(ErrorCode::Nothing, "session s9 has no turn to cancel"))
        }
        other => usual(other).unwrap(),
    });
    assert_eq!(fake.run(&["cancel"]).status.code(), Some(0));
    let output = fake.run(&["cancel", "s9"]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(stderr(&output), "bxctl: session s9 has no turn to cancel\n");
    assert_eq!(fake.run(&["rename", "s1", "new name"]).status.code(), Some(0));
    let renames = |request: &Request| matches!(request, Request::Rename { name, .. } if name == "new name");
    assert!(fake.asked().iter().any(renames));
}

#[test]
fn a_second_ctrl_c_leaves_a_rebase() {
    let fake = Fake::start(|request| match request {
        Request::Rebase { .. } => Act::Reply(Reply::Done {}),
        // the daemon is stuck
        Request::Cancel { .. } => Act::Silence,
        other => usual(other).unwrap(),
    });
    let mut child = fake.command().args(["rebase", "s1"]).stderr(Stdio::null()).spawn().unwrap();
    fake.wait_asked(1, |request| matches!(request, Request::Rebase { .. }));
    interrupt(&child);
    fake.wait_asked(1, |request| matches!(request, Request::Cancel { .. }));
    interrupt(&child);
    let until = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().unwrap() {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            None => break child.kill().map(|()| None).unwrap(),
            Some(status) => break status.code(),
        }
    };
    assert_eq!(status, Some(130));
}

#[test]
fn delete_asks_first() {
    let fake = Fake::start(|request| usual(request).unwrap());
    let deleted = || fake.asked().iter().filter(|r| matches!(r, Request::Delete { .. })).count();
    let output = fake.run(&["delete", "s1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--yes"), "{}", stderr(&output));
    assert_eq!(deleted(), 0);
    for (answer, expected, count) in [("n", "not deleted", 0), ("", "not deleted", 0), ("y", "is deleted", 1)]
    {
        let mut command = fake.command();
        command.args(["delete", "s1"]);
        let mut session = Session::spawn(command).unwrap();
        session.expect("for ever? [y/N] ").unwrap();
        session.send_line(answer).unwrap();
        session.expect(expected).unwrap();
        assert_eq!(deleted(), count);
    }
    assert_eq!(fake.run(&["delete", "s1", "--yes"]).status.code(), Some(0));
    assert_eq!(deleted(), 2);
}

#[test]
fn attach_watches() {
    let fake = Fake::start(|request| usual(request).unwrap());
    let mut command = fake.command();
    let mut child =
        command.args(["attach", "s1"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let next = |from: &mut dyn std::io::BufRead| {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        line
    };
    assert!(next(&mut err).contains("no turn is running"));
    let session = "s1".parse().unwrap();
    fake.push(whole_turn(&session, 2, 20, "a question", &["an ", "answer"]));
    assert_eq!(next(&mut out), "an answer\n");
    fake.push(events(&session, 3, 30, vec![text("another\n"), end(TurnOutcome::Failed, Some("no power"))]));
    assert_eq!(next(&mut out), "another\n");
    let mut rest = Vec::new();
    while rest.last().is_none_or(|line| line != "failed: no power\n") {
        rest.push(next(&mut err));
        assert!(rest.last().is_some_and(|line| !line.is_empty()), "{rest:?}");
    }
    assert!(rest.contains(&"» a question\n".to_owned()), "{rest:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}
