//! Clients come and go; the turn does not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use boxmaker::proto::{
    ErrorCode, Event, EventKind, Incoming, Phase, Reply, Request, SessionId, SessionState, Snapshot,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use support::bench::{Bench, begun};
use support::daemon::{Watched, bxctl, socket_in};
use support::scripted_server::Script;
use support::talk::{Talk, text, told};
use support::wait_until;

const PATIENCE: Duration = Duration::from_secs(10);

fn ended(bench: &Bench, talk: &mut Talk, id: &SessionId) {
    wait_until(PATIENCE, "the turn ends", || talk.info(id).state == SessionState::Ok);
    assert_eq!(bench.log(id).last().unwrap(), "turn_end 1 done");
}

/// A client that writes what it likes.
struct Raw {
    lines: std::io::Lines<BufReader<UnixStream>>,
    stream: UnixStream,
}

impl Raw {
    fn connect(bench: &Bench) -> Self {
        let stream = UnixStream::connect(socket_in(bench.dir())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut raw = Self { lines, stream };
        let hello = raw.ask(&json!({"id": 1, "request": "hello", "version": 1, "client": "raw"}));
        assert_eq!(hello["ok"]["reply"], "hello", "{hello}");
        raw
    }

    fn ask(&mut self, request: &Value) -> Value {
        writeln!(self.stream, "{request}").unwrap();
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }
}

/// All below a folder, with the size of each file.
fn tree(dir: &std::path::Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            all.extend(tree(&path));
        } else if entry.file_type().unwrap().is_file() {
            all.push(format!("{} {}", path.display(), entry.metadata().unwrap().len()));
        }
        all.push(path.display().to_string());
    }
    all.sort();
    all
}

#[test]
fn what_is_no_session_id_reaches_no_file() {
    let (bench, mut talk, id) = begun("");
    talk.turn(&id, "Hello");
    fs::create_dir(bench.home().join("victim")).unwrap();
    fs::write(bench.home().join("victim/0.jsonl"), "precious").unwrap();
    let before = tree(bench.home());
    let long = "a".repeat(300);
    let bad = [
        "../../x",
        "../victim",
        "/etc/passwd",
        "/",
        ".",
        "..",
        "",
        "a/b",
        "A",
        "a\u{0}b",
        "-x",
        "a b",
        "a\n",
        "é",
        "*",
        "%",
        long.as_str(),
    ];
    let mut raw = Raw::connect(&bench);
    for name in bad {
        for request in [
            json!({"request": "create", "session": name}),
            json!({"request": "open", "session": name}),
            json!({"request": "send", "session": name, "text": "x"}),
            json!({"request": "retry", "session": name}),
            json!({"request": "cancel", "session": name}),
            json!({"request": "attach", "session": name}),
            json!({"request": "rename", "session": name, "name": "x"}),
            json!({"request": "delete", "session": name}),
            json!({"request": "export", "session": name, "from": 0}),
            json!({"request": "usage", "session": name}),
        ] {
            let mut request = request;
            request["id"] = json!(2);
            let answer = raw.ask(&request);
            assert_eq!(answer["error"]["code"], "bad_request", "{request}: {answer}");
            assert!(!answer["error"]["message"].as_str().unwrap().is_empty());
        }
        // a name that a person typed may be anything; it finds nothing
        let answer = raw.ask(&json!({"id": 3, "request": "resolve", "text": name}));
        assert!(
            answer["error"]["code"] == "not_found" || answer["error"]["code"] == "bad_request",
            "{name:?}: {answer}"
        );
        // none of it is a way for bxctl either
        if !name.contains('\0') {
            let ran = bench.ctl(&["delete", "--", name]);
            assert_ne!(ran.code, 0, "{name:?}: {ran:?}");
        }
    }
    assert_eq!(tree(bench.home()), before);
    talk.turn(&id, "Still there?");
}

#[test]
fn a_session_that_is_a_link_out_of_the_home_is_not_followed() {
    let (bench, mut talk, id) = begun("");
    talk.turn(&id, "Hello");
    let sessions = bench.home().join("sessions");
    let elsewhere = bench.dir().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for file in ["0.jsonl", "0.baseline.json"] {
        fs::copy(sessions.join(id.as_str()).join(file), elsewhere.join(file)).unwrap();
    }
    std::os::unix::fs::symlink(&elsewhere, sessions.join("linked")).unwrap();
    let before = tree(&elsewhere);
    let mut raw = Raw::connect(&bench);
    for request in ["open", "usage", "delete", "retry"] {
        let answer = raw.ask(&json!({"id": 2, "request": request, "session": "linked"}));
        assert!(answer["error"]["code"].is_string(), "{request}: {answer}");
    }
    let answer = raw.ask(&json!({"id": 2, "request": "send", "session": "linked", "text": "x"}));
    assert!(answer["error"]["code"].is_string(), "{answer}");
    assert_eq!(tree(&elsewhere), before);
    fs::remove_file(sessions.join("linked")).unwrap();
}

#[test]
fn a_client_that_is_killed_in_mid_turn_ends_nothing() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::new().progress().text("Once ").gate("go").text("upon a time").eog());
    let send = bxctl(&socket_in(bench.dir()), &["send", "--session", id.as_str(), "--json", "Hello"]);
    let mut watched = Watched::new(send);
    watched.until("text", 4);
    drop(watched);
    assert_eq!(talk.info(&id).state, SessionState::Running);
    bench.server.open("go");
    ended(&bench, &mut talk, &id);
    assert_eq!(bench.log(&id)[2], "assistant 1 stop: Once upon a time");
    assert_eq!(bench.server.hangups(), 0);
}

#[test]
fn a_client_that_goes_before_its_answer_has_its_message_taken_all_the_same() {
    let (bench, mut talk, id) = begun("");
    let mut raw = Raw::connect(&bench);
    writeln!(raw.stream, "{}", json!({"id": 2, "request": "send", "session": id, "text": "Hello"})).unwrap();
    drop(raw);
    wait_until(PATIENCE, "the message is saved", || bench.log(&id).len() > 1);
    ended(&bench, &mut talk, &id);
}

#[test]
fn two_clients_see_the_same_events() {
    let (bench, mut talk, id) = begun("");
    let mut other = bench.talk();
    other.attach(&id, None);
    bench.server.push(Script::new().progress().text("Once upon a time").eog());
    let mine = talk.turn(&id, "Hello");
    let theirs = other.until_end(&id);
    assert_eq!(mine, theirs);
    assert_eq!(
        told(&mine),
        ["turn_start", "prefill", "text Once upon a time", "usage stop", "turn_end done"]
    );
    let numbers: Vec<u64> = mine.iter().map(|event| event.seq).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    // one may cancel what the other began
    bench.server.push(Script::new().progress().text("abc").gate("never"));
    talk.send(&id, "More");
    talk.until_text(&id, "abc");
    other.cancel(&id);
    assert_eq!(told(&talk.until_end(&id)), ["usage cancelled", "turn_end cancelled"]);
}

#[test]
fn a_client_that_comes_back_gets_what_it_missed() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::new().progress().text("abc").gate("more").text("def").gate("end").eog());
    talk.send(&id, "Hello");
    let first = talk.until_text(&id, "abc");
    let last = first.last().unwrap().seq;
    let position = talk.position(last);
    drop(talk);
    bench.server.open("more");
    let mut watcher = bench.talk();
    watcher.attach(&id, None);
    let snapshot = watcher.next("a snapshot of the running turn");
    let EventKind::Snapshot { snapshot } = &snapshot.kind else { panic!("{snapshot:?}") };
    assert!(snapshot.phase == Phase::Generating && snapshot.user_text == "Hello", "{snapshot:?}");
    let mut shown = snapshot.text.clone();
    while shown != "abcdef" {
        if let EventKind::Text { text } = watcher.next("the rest").kind {
            shown.push_str(&text);
        }
    }
    let mut back = bench.talk();
    let (seq, running) = back.attach(&id, Some(position));
    assert!(running && seq == last + 3, "{seq} after {last}");
    bench.server.open("end");
    let rest = back.until_end(&id);
    assert_eq!(told(&rest), ["text def", "usage stop", "turn_end done"]);
    assert_eq!(rest[0].seq, last + 1, "nothing is missed and nothing is told twice");
    // after the end, from the same place once more
    let mut late = bench.talk();
    let position = late.position(last);
    late.attach(&id, Some(position));
    assert_eq!(late.until_end(&id), rest);
}

#[test]
fn a_client_from_before_the_daemon_was_started_again_gets_a_snapshot() {
    let (mut bench, mut talk, id) = begun("");
    let events = talk.turn(&id, "Hello");
    let position = talk.position(events.last().unwrap().seq);
    bench.kill_daemon();
    assert_eq!(talk.incoming("the end of the connection"), None);
    bench.start_daemon();
    let mut talk = bench.talk();
    talk.attach(&id, Some(position));
    let event = talk.next("a snapshot");
    assert_eq!(event.kind, EventKind::Snapshot { snapshot: Snapshot::default() });
}

#[test]
fn a_stopped_client_holds_up_nobody() {
    let (bench, mut talk, id) = begun("queued_events = 16\ncompletion_tokens = 50000\nturn_tokens = 50000");
    let long = "0123456789".repeat(3000);
    bench.server.push(Script::new().progress().text("go").gate("go").text(&long).eog());
    let mut stopped = bxctl(&socket_in(bench.dir()), &["attach", id.as_str()]).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(stopped.id()).unwrap());
    talk.send(&id, "Hello");
    talk.until_text(&id, "go");
    kill(pid, Signal::SIGSTOP).unwrap();
    let before = bench.daemon().rss_kb();
    bench.server.open("go");
    let begin = Instant::now();
    let mut all = String::new();
    loop {
        match talk.incoming("the turn's end") {
            Some(Incoming::Event(Event { kind: EventKind::TurnEnd { .. }, .. })) => break,
            Some(Incoming::Event(event)) => all.push_str(&text(std::slice::from_ref(&event))),
            other => panic!("{other:?}"),
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    assert_eq!(bench.log(&id)[2], format!("assistant 1 stop: go{long}"));
    let grown = bench.daemon().rss_kb().saturating_sub(before);
    assert!(grown < 20_000, "{grown} kB for a client that does not read");
    kill(pid, Signal::SIGKILL).unwrap();
    stopped.wait().unwrap();
}

#[test]
fn a_session_can_be_given_its_id_and_only_once() {
    let (bench, mut talk, _) = begun("");
    let id: SessionId = "my-own.id_1".parse().unwrap();
    let create = || Request::Create { id: Some(id.clone()), name: Some("mine".to_owned()) };
    let reply = talk.ask(create());
    assert!(matches!(&reply, Ok(Reply::Session { info, .. }) if info.id == id), "{reply:?}");
    assert_eq!(talk.ask(create()).unwrap_err().code, ErrorCode::Exists);
    talk.attach(&id, None);
    assert_eq!(told(&talk.turn(&id, "Hello")).last().unwrap(), "turn_end done");
    assert_eq!(bench.log(&id)[..2], ["session_start", "named"]);
}
