//! `bxctl acp` against a scripted daemon: what an editor is told where events were missed, or the daemon is odd.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod cli_fake;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc;

use boxmaker::proto::{
    ApprovalWanted, CallId, Decision, ErrorBody, ErrorCode, EventKind, Outgoing, Phase, Reply, Request,
    RequestFrame, Snapshot, TurnId, TurnOutcome,
};
use cli_fake::terminal::session;
use cli_fake::{Act, Fake, PATIENCE, bxctl, end, events, snapshot, stderr, turn_reply, user_message, usual};
use serde_json::{Value, json};

/// An editor, line by line.
struct Editor {
    child: Child,
    stdin: ChildStdin,
    lines: mpsc::Receiver<Value>,
}

impl Editor {
    fn start(fake: &Fake) -> Self {
        let mut command = fake.command();
        let mut child = command.arg("acp").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (got, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let _ = got.send(serde_json::from_str(&line.unwrap()).unwrap());
            }
        });
        let mut editor = Self { child, stdin, lines };
        editor.ask(1, "initialize", json!({"protocolVersion": 1}));
        editor.answer(1);
        editor
    }

    fn send(&mut self, mut message: Value) {
        message["jsonrpc"] = "2.0".into();
        writeln!(self.stdin, "{message}").unwrap();
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is written in place")]
    fn ask(&mut self, id: u64, method: &str, params: Value) {
        self.send(json!({"id": id, "method": method, "params": params}));
    }

    fn prompt(&mut self, id: u64) {
        let params = json!({"sessionId": "s1", "prompt": [{"type": "text", "text": "go"}]});
        self.ask(id, "session/prompt", params);
    }

    /// The next message that is so.
    fn wait(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.lines.recv_timeout(PATIENCE).unwrap();
            if wanted(&message) {
                return message;
            }
        }
    }

    fn answer(&self, id: u64) -> Value {
        self.wait(|message| message["id"] == id && message.get("method").is_none())
    }

    /// The next question, and the call that it is about.
    fn question(&self) -> (Value, String) {
        let asked = self.wait(|message| message["method"] == "session/request_permission");
        (asked["id"].clone(), asked["params"]["toolCall"]["toolCallId"].as_str().unwrap().to_owned())
    }

    fn allow(&mut self, question: &Value) {
        self.send(
            json!({"id": question, "result": {"outcome": {"outcome": "selected", "optionId": "allow"}}}),
        );
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wanted(call: u64) -> ApprovalWanted {
    ApprovalWanted { call: CallId(call), name: "note".into(), arguments: "{}".into() }
}

/// What stands after a gap.
fn after_a_gap(approval: Option<ApprovalWanted>) -> EventKind {
    let phase = if approval.is_some() { Phase::Approval } else { Phase::Tool };
    snapshot(Snapshot { phase, approval, ..Snapshot::default() })
}

/// A daemon whose turn begins with these events.
fn asking(kinds: Vec<EventKind>) -> Fake {
    Fake::start(move |request| match request {
        Request::Send { session, .. } => {
            Act::Then(turn_reply(session, 2), events(session, 2, 11, kinds.clone()))
        }
        Request::Approve { .. } => Act::Reply(Reply::Done {}),
        other => usual(other).unwrap(),
    })
}

fn decided(fake: &Fake) -> Vec<(u64, Decision)> {
    let decision = |request: Request| match request {
        Request::Approve { call, decision, .. } => Some((call.0, decision)),
        _ => None,
    };
    fake.asked().into_iter().filter_map(decision).collect()
}

#[test]
fn a_question_that_came_in_a_gap_is_asked_instead_of_the_one_before() {
    let first = EventKind::ApprovalWanted { wanted: wanted(1) };
    // somebody decided about the first, and the second waits: both events were missed
    let fake = asking(vec![first, after_a_gap(Some(wanted(2))), after_a_gap(Some(wanted(2)))]);
    let mut editor = Editor::start(&fake);
    editor.prompt(2);
    let (old, call) = editor.question();
    assert_eq!(call, "call-1");
    let (new, call) = editor.question();
    assert_eq!(call, "call-2");
    // the answer to the question that is over decides nothing
    editor.allow(&old);
    editor.allow(&new);
    fake.wait_asked(1, |request| matches!(request, Request::Approve { .. }));
    // a picture of the turn from before the answer asks nothing again
    let rest = vec![after_a_gap(Some(wanted(2))), end(TurnOutcome::Done, None)];
    fake.push(events(&session(), 2, 20, rest));
    let last = editor.wait(|message| message["id"] == 2 || message["method"] == "session/request_permission");
    assert_eq!(last["result"]["stopReason"], "end_turn", "{last}");
    assert_eq!(decided(&fake), [(2, Decision::Allow)]);
}

#[test]
fn a_question_that_was_over_in_a_gap_is_not_answered() {
    let first = EventKind::ApprovalWanted { wanted: wanted(1) };
    let fake = asking(vec![first, after_a_gap(None), EventKind::Text { text: "seen".into() }]);
    let mut editor = Editor::start(&fake);
    editor.prompt(2);
    let (old, _) = editor.question();
    editor.wait(|message| message["params"]["update"]["content"]["text"] == "seen");
    editor.allow(&old);
    // answered when what came before it was taken in
    editor.ask(3, "no/such", json!({}));
    editor.answer(3);
    fake.push(events(&session(), 2, 20, vec![end(TurnOutcome::Done, None)]));
    assert_eq!(editor.answer(2)["result"]["stopReason"], "end_turn");
    assert_eq!(decided(&fake), []);
}

#[test]
fn after_a_gap_only_what_is_new_is_told() {
    let thought = |text: &str| EventKind::Reasoning { text: text.into() };
    let said = |text: &str| EventKind::Text { text: text.into() };
    let now = Snapshot {
        phase: Phase::Generating,
        reasoning: "think hard".into(),
        text: "One two".into(),
        ..Snapshot::default()
    };
    let kinds =
        vec![thought("think"), said("One"), snapshot(now), said(" three"), end(TurnOutcome::Done, None)];
    let fake = asking(kinds);
    let mut editor = Editor::start(&fake);
    editor.prompt(2);
    let told = std::cell::RefCell::new(Vec::new());
    editor.wait(|message| {
        let update = &message["params"]["update"];
        if let (Some(kind), Some(text)) =
            (update["sessionUpdate"].as_str(), update["content"]["text"].as_str())
        {
            told.borrow_mut().push(format!("{kind}: {text}"));
        }
        message["id"] == 2
    });
    let (thoughts, answer) = ("agent_thought_chunk", "agent_message_chunk");
    let expected =
        [(thoughts, "think"), (answer, "One"), (thoughts, " hard"), (answer, " two"), (answer, " three")];
    assert_eq!(told.into_inner(), expected.map(|(kind, text)| format!("{kind}: {text}")));
}

#[test]
fn half_a_session_is_not_loaded_as_if_it_were_all() {
    let fake = Fake::start(|request| match request {
        Request::Export { .. } => {
            Act::Reply(Reply::Records { records: vec![user_message(TurnId(1), "again")], next: Some(5) })
        }
        other => usual(other).unwrap(),
    });
    let mut editor = Editor::start(&fake);
    editor.ask(2, "session/load", json!({"sessionId": "s1", "cwd": "/", "mcpServers": []}));
    let answer = editor.answer(2);
    assert!(answer["error"].to_string().contains("the same page"), "{answer}");
}

#[test]
fn a_daemon_of_another_version_is_no_missing_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("loopd.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = Vec::new();
            BufReader::new(&stream).read_until(b'\n', &mut line).unwrap();
            let id = RequestFrame::from_json(line.trim_ascii_end()).unwrap().id;
            let body = ErrorBody::new(ErrorCode::Version, "loopd speaks version 99");
            stream.write_all(&Outgoing::Error(Some(id), body).to_line().unwrap()).unwrap();
        }
    });
    for command in ["status", "acp"] {
        let output = bxctl().arg("--socket").arg(&socket).arg(command).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{command}: {}", stderr(&output));
        assert!(stderr(&output).contains("loopd speaks version 99"), "{}", stderr(&output));
    }
}
