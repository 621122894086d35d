//! The real `bxctl` against a scripted daemon: what it prints, what it asks, how it exits.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod cli_fake;

use std::process::Stdio;

use boxmaker::proto::{
    ErrorBody, ErrorCode, Reply, Request, ServerState, SessionInfo, SessionState, Status, TurnId,
    TurnOutcome, TurnUsage,
};
use cli_fake::terminal::Terminal;
use cli_fake::{Act, Fake, bxctl, info, stderr, stdout, usual};

#[test]
fn an_ambiguous_session_lists_the_candidates() {
    let fake = two_of_a_name();
    let output = fake.run(&["usage", "dogs"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(4), ""));
    insta::assert_snapshot!(stderr(&output), @r#"
    bxctl: "dogs" can mean 2 sessions; give an id, or more of it
    ID  TITLE  STATE  LAST              TURNS  MESSAGES  CONTEXT  STARTED           MODEL
    s2  dogs   ok     2026-01-31 23:59      1         2      340  2026-01-30 08:00  tiny
    s1  dogs   ok     2026-01-31 23:59      1         2      340  2026-01-30 08:00  tiny
    "#);
}

/// A daemon with two sessions that are called dogs.
fn two_of_a_name() -> Fake {
    Fake::start(|request| match request {
        Request::Resolve { text } if text == "dogs" => Act::Refuse(ErrorBody {
            code: ErrorCode::Ambiguous,
            message: "the daemon's own words".into(),
            candidates: vec!["s2".parse().unwrap(), "s1".parse().unwrap()],
        }),
        Request::List {} => {
            let named = |id: &str, name: &str| SessionInfo { name: Some(name.to_owned()), ..info(id) };
            let sessions = vec![named("s2", "dogs"), named("s3", "cats"), named("s1", "dogs")];
            Act::Reply(Reply::Sessions { sessions })
        }
        Request::Fork { name, .. } => {
            let info = SessionInfo { name: name.clone(), ..info("s2") };
            Act::Reply(Reply::Session { info, differs: vec![] })
        }
        other => usual(other).unwrap(),
    })
}

#[test]
fn a_name_that_is_there_already_is_said() {
    let fake = two_of_a_name();
    for arguments in [&["rename", "s1", "dogs"][..], &["fork", "s1", "--name", "dogs"]] {
        let output = fake.run(arguments);
        assert_eq!(output.status.code(), Some(0));
        let said = stderr(&output);
        assert!(said.contains("2 sessions are called \"dogs\" now: name them by their ids"), "{said}");
        let said = stderr(&fake.run(&["rename", "s1", "s9"])).to_owned();
        assert!(!said.contains("are called"), "{said}");
    }
    let mut terminal = Terminal::start(&fake, &["chat", "--session", "s1"], 80, 24);
    terminal.prompt();
    terminal.keys("/rename dogs\r");
    terminal.wait_for("2 sessions are called \"dogs\" now");
    terminal.prompt();
    terminal.keys("/switch dogs\r");
    terminal.wait_for("can mean 2 sessions");
    let contents = terminal.wait_for("ID  TITLE");
    assert!(contents.contains("give an id, or more of it\nID  TITLE"), "{contents}");
}

#[test]
fn refused_and_failed_are_told_apart() {
    for (code, status) in [
        (ErrorCode::Damaged, 4),
        (ErrorCode::Busy, 4),
        (ErrorCode::TooLong, 4),
        (ErrorCode::Disk, 1),
        (ErrorCode::Internal, 1),
    ] {
        let fake = Fake::start(move |request| match request {
            Request::Send { .. } => Act::Refuse(ErrorBody::new(code, "no\x1b[2J\nway")),
            other => usual(other).unwrap(),
        });
        let output = fake.run(&["send", "x"]);
        assert_eq!(output.status.code(), Some(status), "{code:?}");
        assert_eq!(stderr(&output), "bxctl: no␛[2J␊way\n");
    }
}

#[test]
fn without_a_daemon_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none.sock");
    let output = bxctl().args(["--socket", socket.to_str().unwrap(), "status"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let err = stderr(&output);
    assert!(err.starts_with("bxctl: /") && err.contains("none.sock: no daemon: "), "{err}");
    assert!(err.contains("--socket") && err.lines().count() == 1, "{err}");
    // the option comes before the environment
    let fake = Fake::start(|_| Act::Reply(Reply::Sessions { sessions: vec![] }));
    let output = fake.command().args(["sessions", "--socket"]).arg(&socket).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn sessions_are_listed() {
    let fake = Fake::start(|_| {
        let damaged = SessionInfo {
            state: SessionState::Damaged,
            reason: Some("0.jsonl:5: no record\x1b[1m".into()),
            name: None,
            ..info("s2")
        };
        Act::Reply(Reply::Sessions { sessions: vec![info("s1"), damaged] })
    });
    let output = fake.run(&["sessions"]);
    assert_eq!(output.status.code(), Some(0));
    let out = stdout(&output);
    assert!(out.starts_with("ID") && out.contains("s1") && out.contains("damaged"), "{out}");
    assert!(out.contains("s2: damaged: 0.jsonl:5: no record␛[1m"), "{out}");
    let output = fake.run(&["sessions", "--json"]);
    let value: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(value[0]["id"], "s1");
    assert_eq!(value[1]["state"], "damaged");
    assert_eq!(value[1]["name"], serde_json::Value::Null);
    assert_eq!(value[0].as_object().unwrap().len(), 10);
}

#[test]
fn usage_is_printed() {
    let fake = Fake::start(|request| match request {
        Request::Usage { .. } => Act::Reply(Reply::Usage {
            turns: vec![TurnUsage {
                turn: TurnId(1),
                epoch: None,
                cache_n: 300,
                prompt_n: 12,
                predicted_n: 5,
                new_n: 11,
                lost_n: 0,
                reasoning_tokens: 0,
                thinking_capped: false,
                completions: 1,
                seconds: 1.5,
                outcome: Some(TurnOutcome::Done),
            }],
        }),
        other => usual(other).unwrap(),
    });
    let output = fake.run(&["usage", "s1", "--json"]);
    let value: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    for (key, number) in [
        ("turn", 1.0),
        ("cache_n", 300.0),
        ("prompt_n", 12.0),
        ("predicted_n", 5.0),
        ("new_n", 11.0),
        ("lost_n", 0.0),
        ("seconds", 1.5),
    ] {
        assert_eq!(value[0][key].as_f64(), Some(number), "{key}");
    }
    let output = fake.run(&["usage"]);
    assert!(stdout(&output).contains("░ from cache") && stdout(&output).contains("done"));
}

#[test]
fn status_is_printed() {
    let fake = Fake::start(|_| {
        Act::Reply(Reply::Status {
            status: Box::new(Status {
                daemon: "loopd 0.1.0".into(),
                pid: 1,
                uptime_s: 5,
                home: "/x".into(),
                slot: 0,
                url: "unix:/x/llama.sock".into(),
                server: ServerState::Ready,
                server_detail: None,
                model: Some("tiny".into()),
                n_ctx: Some(2048),
                slot_session: None,
                running: None,
                waiting: 0,
                open_sessions: 0,
                clients: 1,
                oldest_sync_ms: 0,
                lost_n: 0,
                last_loss: None,
            }),
        })
    });
    let output = fake.run(&["status"]);
    assert!(stdout(&output).contains("model server  ready\n"), "{}", stdout(&output));
    let value: serde_json::Value = serde_json::from_str(stdout(&fake.run(&["status", "--json"]))).unwrap();
    assert_eq!((&value["server"], &value["n_ctx"]), (&"ready".into(), &2048.into()));
}

#[test]
fn help_completions_and_wrong_usage() {
    let output = bxctl().stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).is_empty() && stderr(&output).contains("Usage: bxctl"));
    let output = bxctl().arg("--help").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("sessions"));
    let output = bxctl().args(["send", "--no\x1b[31m"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--no") && !stderr(&output).contains('\x1b'));
    for shell in ["bash", "zsh", "fish"] {
        let output = bxctl().args(["completions", shell]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("sessions"));
    }
}
