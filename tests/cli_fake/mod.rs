//! A scripted daemon for the tests of `bxctl`: it answers as a real one would, from a script, and keeps
//! what it was asked.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod terminal;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use boxmaker::proto::{
    Certainty, ErrorBody, ErrorCode, Event, EventKind, Finish, LogRecord, Outgoing, PROTOCOL_VERSION, Reply,
    Request, RequestFrame, SessionId, SessionInfo, SessionState, Snapshot, Timestamp, TurnId, TurnOutcome,
    Usage, UserMessage,
};

/// How long anything may take: machines are slow at times.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What a scripted daemon does with a request.
pub enum Act {
    /// Answers.
    Reply(Reply),
    /// Answers, then sends events.
    Then(Reply, Vec<Event>),
    /// Sends events, then answers.
    Before(Vec<Event>, Reply),
    /// Refuses.
    Refuse(ErrorBody),
    /// Sends these bytes as they are.
    Raw(Vec<u8>),
    /// Answers, sends events, and hangs up.
    Hangup(Reply, Vec<Event>),
    /// Hangs up without an answer.
    Gone,
    /// Says nothing.
    Silence,
}

type Script = dyn FnMut(&Request) -> Act + Send;

/// A scripted daemon.
pub struct Fake {
    pub dir: tempfile::TempDir,
    pub socket: PathBuf,
    pub asked: Arc<Mutex<Vec<Request>>>,
    streams: Arc<Mutex<Vec<UnixStream>>>,
}

impl Fake {
    /// Listens, and answers by `script` (all but `hello`, `attach` and `detach`).
    pub fn start(script: impl FnMut(&Request) -> Act + Send + 'static) -> Self {
        Self::with_run("run1", script)
    }

    pub fn with_run(run: &str, script: impl FnMut(&Request) -> Act + Send + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("loopd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let script: Arc<Mutex<Box<Script>>> = Arc::new(Mutex::new(Box::new(script)));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (log, all, run) = (Arc::clone(&asked), Arc::clone(&streams), run.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                all.lock().unwrap().push(stream.try_clone().unwrap());
                let (log, script, run) = (Arc::clone(&log), Arc::clone(&script), run.clone());
                std::thread::spawn(move || serve(&stream, &run, &log, &script));
            }
        });
        Self { dir, socket, asked, streams }
    }

    /// `bxctl` with the daemon's socket, in an environment of its own.
    pub fn command(&self) -> Command {
        let mut command = bxctl();
        command.env("BXCTL_SOCKET", &self.socket).env("HOME", self.dir.path());
        command
    }

    /// Runs `bxctl` with nothing on its standard input.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs `bxctl` with this standard input.
    pub fn run_with(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command()
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Sends events to the newest client, unasked.
    pub fn push(&self, events: Vec<Event>) {
        let streams = self.streams.lock().unwrap();
        for event in events {
            streams.last().unwrap().write_all(&Outgoing::Event(event).to_line().unwrap()).unwrap();
        }
    }

    /// Hangs up on all clients; `gone` also takes the socket away, so that nobody can come back.
    pub fn hang_up(&self, gone: bool) {
        if gone {
            std::fs::remove_file(&self.socket).unwrap();
        }
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    pub fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }

    /// Waits until this many of what the daemon was asked is of this kind.
    pub fn wait_asked(&self, times: usize, kind: impl Fn(&Request) -> bool) {
        let until = Instant::now() + PATIENCE;
        while self.asked().iter().filter(|request| kind(request)).count() < times {
            assert!(Instant::now() < until, "not asked for; it was asked {:#?}", self.asked());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The texts that were sent.
    pub fn sent(&self) -> Vec<String> {
        let text = |r: Request| if let Request::Send { text, .. } = r { Some(text) } else { None };
        self.asked().into_iter().filter_map(text).collect()
    }
}

/// `bxctl` without anything from the tests' own environment.
pub fn bxctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bxctl"));
    for name in ["BXCTL_SOCKET", "XDG_STATE_HOME", "NO_COLOR", "COLUMNS"] {
        command.env_remove(name);
    }
    command.env("TERM", "xterm-256color").env("TZ", "UTC");
    command
}

/// Ctrl-C, as the terminal of `child` sends it.
pub fn interrupt(child: &Child) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
}

fn serve(stream: &UnixStream, run: &str, log: &Mutex<Vec<Request>>, script: &Mutex<Box<Script>>) {
    let send = |outgoing: Outgoing| (&*stream).write_all(&outgoing.to_line().unwrap()).is_ok();
    for line in BufReader::new(stream).split(b'\n') {
        let Ok(line) = line else { return };
        let RequestFrame { id, request } = RequestFrame::from_json(&line).unwrap();
        log.lock().unwrap().push(request.clone());
        if let Request::Hello { .. } = request {
            let hello =
                Reply::Hello { version: PROTOCOL_VERSION, daemon: "fake".into(), run: run.to_owned() };
            send(Outgoing::Ok(id, Box::new(hello)));
            continue;
        }
        let act = script.lock().unwrap()(&request);
        let ok = |reply: Reply| Outgoing::Ok(id, Box::new(reply));
        let events = |events: Vec<Event>| events.into_iter().all(|event| send(Outgoing::Event(event)));
        match act {
            Act::Reply(reply) => {
                send(ok(reply));
            }
            Act::Then(reply, list) => {
                send(ok(reply));
                events(list);
            }
            Act::Before(list, reply) => {
                events(list);
                send(ok(reply));
            }
            Act::Refuse(body) => {
                send(Outgoing::Error(Some(id), body));
            }
            Act::Raw(bytes) => {
                let _ = (&*stream).write_all(&bytes);
            }
            Act::Hangup(reply, list) => {
                send(ok(reply));
                events(list);
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
            Act::Gone => {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
            Act::Silence => {}
        }
    }
}

/// Answers that a well-behaved daemon with the session `s1` gives; `None` for `send` and the like.
pub fn usual(request: &Request) -> Option<Act> {
    let reply = match request {
        Request::Latest {} => Reply::Session { info: info("s1"), differs: vec![] },
        Request::Open { session } => Reply::Session { info: info(session.as_str()), differs: vec![] },
        Request::Create { name, .. } => {
            Reply::Session { info: SessionInfo { name: name.clone(), ..info("s2") }, differs: vec![] }
        }
        Request::Resolve { text } => match text.parse::<SessionId>() {
            Ok(id) if id.as_str().starts_with('s') => {
                Reply::Session { info: info(id.as_str()), differs: vec![] }
            }
            _ => return Some(Act::Refuse(ErrorBody::new(ErrorCode::NotFound, format!("no session {text}")))),
        },
        Request::Export { .. } => Reply::Records { records: vec![], next: None },
        Request::List {} => Reply::Sessions { sessions: vec![info("s1"), info("s2")] },
        Request::Attach { .. } => Reply::Attached { seq: 10, running: false },
        Request::Detach { .. } | Request::Cancel { .. } | Request::Rename { .. } | Request::Delete { .. } => {
            Reply::Done {}
        }
        _ => return None,
    };
    Some(Act::Reply(reply))
}

pub fn info(id: &str) -> SessionInfo {
    SessionInfo {
        id: id.parse().unwrap(),
        name: Some("first".to_owned()),
        title: None,
        state: SessionState::Ok,
        started: Some("2026-01-30T08:00:00.000Z".parse::<Timestamp>().unwrap()),
        last: Some(time()),
        messages: 2,
        turns: 1,
        context_n: 340,
        epoch: boxmaker::proto::Epoch(0),
        model: Some("tiny".to_owned()),
        reason: None,
    }
}

/// When everything in the records of scripted daemons was.
pub fn time() -> Timestamp {
    "2026-01-31T23:59:59.999Z".parse().unwrap()
}

/// The record of a message of the user.
pub fn user_message(turn: TurnId, text: &str) -> LogRecord {
    LogRecord::UserMessage(UserMessage { time: time(), turn, text: text.to_owned() })
}

pub fn turn_reply(session: &SessionId, turn: u64) -> Reply {
    Reply::Turn { session: session.clone(), turn: TurnId(turn) }
}

pub fn text(text: &str) -> EventKind {
    EventKind::Text { text: text.to_owned() }
}

pub fn usage(lost_n: u64) -> EventKind {
    EventKind::Usage {
        usage: Usage { cache_n: 300, prompt_n: 12, predicted_n: 5, ..Usage::default() },
        new_n: 11,
        lost_n,
        context_n: 317,
        n_ctx: 2048,
        finish: Finish::Stop,
        millis: 1500,
    }
}

pub fn end(outcome: TurnOutcome, detail: Option<&str>) -> EventKind {
    EventKind::TurnEnd { outcome, detail: detail.map(str::to_owned), certainty: Certainty::Durable }
}

pub fn snapshot(snapshot: Snapshot) -> EventKind {
    EventKind::Snapshot { snapshot }
}

/// Events of one turn, numbered from `seq`.
pub fn events(session: &SessionId, turn: u64, seq: u64, kinds: Vec<EventKind>) -> Vec<Event> {
    kinds
        .into_iter()
        .zip(seq..)
        .map(|(kind, seq)| Event { session: session.clone(), turn: Some(TurnId(turn)), seq, kind })
        .collect()
}

/// A whole turn that answers with `pieces`.
pub fn whole_turn(session: &SessionId, turn: u64, seq: u64, user: &str, pieces: &[&str]) -> Vec<Event> {
    let mut kinds = vec![EventKind::TurnStart { text: user.to_owned(), retry: false }];
    kinds.extend(pieces.iter().map(|piece| text(piece)));
    kinds.push(usage(0));
    kinds.push(end(TurnOutcome::Done, None));
    events(session, turn, seq, kinds)
}

pub fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}
