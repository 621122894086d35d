//! A turn's stream: when its first token is there, and what each token costs the daemon.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use boxmaker::config::ModelUrl;
use boxmaker::proto::{EventKind, Request, SessionId};
use serde_json::Value;

use crate::measure::{Pair, Times, in_turns, median};
use crate::place::{Daemon, Place};
use crate::report::Row;
use crate::rest::fill;
use crate::scripted_server::Script;
use crate::talk::Talk;

const ROUNDS: usize = 101;
/// Between two tokens.
const PACE: Duration = Duration::from_millis(1);
/// Long answers of each session.
const COST_ROUNDS: usize = 7;
/// Tokens of a long answer.
const TOKENS: usize = 500;

/// First token and cost per token, in a new session and in one whose context is full.
pub fn rows() -> Vec<Row> {
    let place = Place::new("");
    let (daemon, _) = place.start();
    let mut talk = place.talk();
    let new = talk.create();
    talk.turn(&new, "Hello");
    // nobody else follows the one that `bxctl` talks to
    let scripted = talk.create();
    talk.turn(&scripted, "Hello");
    talk.ask(Request::Detach { session: scripted.clone() }).expect("it lets go");
    let mut rows = vec![first_token(&place, &scripted)];
    let long = fill(&place, &mut talk, 30_000);
    rows.push(first_token_of_program(&place, &mut talk, &new, "of a new session"));
    rows.push(first_token_of_program(&place, &mut talk, &long, "of a session of 30,000 tokens"));
    let ([early, late], ratio) = costs(&place, &daemon, &mut talk, [&new, &long]);
    let row = |what: &str, cost: f64| {
        Row::new(format!("processor time a streamed token, {what}"), format!("{cost:.1} µs"))
    };
    rows.push(row("new session", early).goal("< 60 µs", early < 60.0));
    rows.push(
        row("session of 30,000 tokens", late)
            .beside(format!("new session: {early:.1} µs"), format!("{ratio:.2}"))
            .goal("no growth: ≤ 1.1", ratio <= 1.1),
    );
    daemon.end();
    rows
}

/// From the start of `bxctl send` to its first text, beside curl with the same request straight to the server.
fn first_token(place: &Place, id: &SessionId) -> Row {
    let mut pair = Pair::default();
    let mut more = Vec::new();
    for _ in 0..ROUNDS {
        // the reference asks what was asked before
        let (ours, reference) = (send(place, id), curl(place));
        pair.push(ours, reference);
        more.push((ours.as_secs_f64() - reference.as_secs_f64()) * 1e3);
    }
    let more = median(more);
    Row::new("first token, from the start of `bxctl send`", pair.ours.shown())
        .beside(format!("curl, the same request: {}", pair.reference.shown()), format!("{more:+.2} ms"))
        .goal("+ 2 ms at most", more <= 2.0)
}

/// The same between two programs that run already: what the daemon adds.
fn first_token_of_program(place: &Place, talk: &mut Talk, id: &SessionId, whose: &str) -> Row {
    let (mut ours, mut raw, mut more) = (Times::default(), Times::default(), Vec::new());
    talk.turn(id, "Once, so that the slot is the session's");
    for _ in 0..ROUNDS {
        let (took, reference) = (first_text(talk, id), straight(place));
        ours.push(took);
        raw.push(reference);
        more.push((took.as_secs_f64() - reference.as_secs_f64()) * 1e3);
    }
    let more = median(more);
    Row::new(format!("first token {whose}, for a client that is connected"), ours.shown()).beside(
        format!("the same request, by a program that runs: {}", raw.shown()),
        format!("{more:+.2} ms"),
    )
}

/// An answer whose tokens come one at a time, as a model gives them: each wakes the daemon and its client anew.
pub fn one_by_one(tokens: usize) -> Script {
    let script = (0..tokens).fold(Script::new().progress(), |script, _| script.text("a").stall(PACE));
    script.eog()
}

/// What a token costs the daemon in each of two sessions, in microseconds, and the median of the rounds' ratios.
fn costs(place: &Place, daemon: &Daemon, talk: &mut Talk, ids: [&SessionId; 2]) -> ([f64; 2], f64) {
    let mut costs = [const { Vec::new() }; 2];
    for round in 0..COST_ROUNDS {
        for which in in_turns(ids.len(), round) {
            talk.turn(ids[which], "Once, so that the slot is the session's");
            place.server.push(one_by_one(TOKENS));
            let before = daemon.cpu();
            talk.turn(ids[which], "Tell me a long story");
            costs[which].push((daemon.cpu() - before).as_secs_f64() * 1e6 / TOKENS as f64);
            place.server.forget();
        }
    }
    let [early, late] = &costs;
    let ratio = median(early.iter().zip(late).map(|(early, late)| late / early).collect());
    (costs.map(median), ratio)
}

/// Runs a program until its output has a line that tells of a token.
fn until_token(mut command: Command, tells: impl Fn(&Value) -> bool) -> Duration {
    let began = Instant::now();
    let mut child = command.stdout(Stdio::piped()).spawn().expect("start it");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let took = loop {
        let line = lines.next().expect("a token comes").expect("a line");
        let json = line.strip_prefix("data: ").unwrap_or(&line);
        if serde_json::from_str(json).is_ok_and(|event| tells(&event)) {
            break began.elapsed();
        }
    };
    lines.for_each(drop);
    assert!(child.wait().expect("its end").success(), "{command:?}");
    took
}

fn send(place: &Place, id: &SessionId) -> Duration {
    place.server.forget();
    let mut command = place.bxctl(&["send", "--json", "--session", id.as_str(), "Say ok"]);
    command.stderr(Stdio::null());
    until_token(command, |event| event["event"] == "text")
}

fn socket(place: &Place) -> PathBuf {
    match place.server.url() {
        ModelUrl::Unix(path) => path,
        other => panic!("{other:?}"),
    }
}

/// The request that the server was sent last.
fn request(place: &Place) -> String {
    place.server.completions().last().expect("a completion").to_string()
}

fn curl(place: &Place) -> Duration {
    let body = place.server.dir().join("request.json");
    std::fs::write(&body, request(place)).expect("write the request");
    let mut command = Command::new("curl");
    command
        .arg("-sN")
        .arg("--unix-socket")
        .arg(socket(place))
        .arg("-H")
        .arg("Content-Type: application/json");
    command.arg("--data-binary").arg(format!("@{}", body.display())).arg("http://localhost/completion");
    until_token(command, |event| event["content"].as_str().is_some_and(|text| !text.is_empty()))
}

/// From a message to its first text, for a client that is connected.
pub fn first_text(talk: &mut Talk, id: &SessionId) -> Duration {
    let began = Instant::now();
    talk.send(id, "Say ok");
    talk.until(id, "its first text", |kind| matches!(kind, EventKind::Text { .. }));
    let took = began.elapsed();
    talk.until_end(id);
    took
}

/// The newest request, made once more over a connection of its own, to its first token.
pub fn straight(place: &Place) -> Duration {
    let body = request(place);
    place.server.forget();
    let began = Instant::now();
    let mut stream = UnixStream::connect(socket(place)).expect("connect to the server");
    let head = format!(
        "POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("ask");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    let took = loop {
        line.clear();
        assert!(stream.read_line(&mut line).expect("a line") > 0, "no token came");
        let event = line.strip_prefix("data: ").and_then(|json| serde_json::from_str::<Value>(json).ok());
        if event.is_some_and(|event| event["content"].as_str().is_some_and(|text| !text.is_empty())) {
            break began.elapsed();
        }
    };
    stream.read_to_end(&mut Vec::new()).expect("the rest");
    took
}
