//! Many clients and many sessions on one daemon: its memory stays flat, turns come in order, nothing is lost.
//!
//! Short here. `BOXMAKER_LOAD_SECONDS=600` keeps the clients on for ten minutes, `BOXMAKER_LOAD_SESSIONS=1000`
//! and `BOXMAKER_LOAD_TURNS=50` make many and long sessions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use boxmaker::proto::{EventKind, LogRecord, Request, SessionId, Timestamp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::bench::Bench;
use support::daemon::{bxctl, socket_in};
use support::random::number;
use support::talk::{Talk, told};
use support::wait_until;

/// Clients that send, of the 64.
const SENDERS: usize = 40;
/// Clients that follow somebody's session and are stopped.
const STOPPED: usize = 12;
/// Clients that follow and read slowly, a byte at a time.
const SLOW: usize = 12;

/// A client that follows a session for ever.
struct Follower(Child);

impl Follower {
    fn new(socket: &Path, session: &SessionId, stdout: Stdio) -> Self {
        let mut command: Command = bxctl(socket, &["attach", session.as_str(), "--json"]);
        command.stdout(stdout).stderr(Stdio::null());
        Self(command.spawn().expect("start bxctl"))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the senders share.
struct Load {
    /// Who came first would have more turns than the last.
    all_there: Barrier,
    length: Duration,
    /// Turns of each.
    sent: Mutex<Vec<u64>>,
}

/// One sender's work: how many turns of its it saw to the end.
fn send(socket: PathBuf, session: SessionId, load: &Load, sender: usize) {
    let Load { all_there, length, sent } = load;
    let mut talk = Talk::connect(&socket);
    talk.attach(&session, None);
    all_there.wait();
    let until = Instant::now() + *length;
    while Instant::now() < until {
        let n = sent.lock().unwrap()[sender];
        let text = format!("Message {n} of {session}. {}", "z".repeat(200));
        let events = talk.turn(&session, &text);
        assert_eq!(told(&events).last().unwrap(), "turn_end done");
        sent.lock().unwrap()[sender] += 1;
    }
}

/// A session's turns: when each one's message was saved, and when it ended.
fn turns(records: &[LogRecord]) -> Vec<(Timestamp, Timestamp)> {
    let saved = records.iter().filter_map(|record| match record {
        LogRecord::UserMessage(message) => Some(message.time),
        _ => None,
    });
    let ended = records.iter().filter_map(|record| match record {
        LogRecord::TurnEnd(end) => Some(end.time),
        _ => None,
    });
    saved.zip(ended).collect()
}

/// How many turns of one session were taken before a turn that was there earlier. One may be: messages that are being saved
/// at the same time come in any order.
fn overtaken(&(saved, ended): &(Timestamp, Timestamp), by: &[(Timestamp, Timestamp)]) -> usize {
    by.iter().filter(|(later, earlier)| *later > saved && *earlier < ended).count()
}

/// What some time of load came to.
struct Spell {
    ids: Vec<SessionId>,
    /// Turns of each session.
    sent: Vec<u64>,
    /// The daemon's memory at the end, and after its sessions were dropped from it, in kB.
    memory: (u64, u64),
}

/// Sixty-four clients on new sessions, for so long; then all of them go, and the daemon forgets the sessions.
fn spell(bench: &Bench, length: Duration) -> Spell {
    let socket = socket_in(bench.dir());
    let mut talk = bench.talk();
    let ids: Vec<SessionId> = (0..SENDERS)
        .map(|_| match talk.ask(Request::Create { id: None, name: None }).unwrap() {
            boxmaker::proto::Reply::Session { info, .. } => info.id,
            other => panic!("{other:?}"),
        })
        .collect();
    let stopped: Vec<Follower> =
        (0..STOPPED).map(|n| Follower::new(&socket, &ids[n], Stdio::null())).collect();
    // a pipe that nobody empties: the client is held up where it writes
    let slow: Vec<Follower> = (0..SLOW).map(|n| Follower::new(&socket, &ids[n], Stdio::piped())).collect();
    wait_until(Duration::from_secs(60), "all clients are connected", || {
        talk.metric("boxmaker_clients") > (STOPPED + SLOW) as u64
    });
    for follower in &stopped {
        kill(Pid::from_raw(i32::try_from(follower.0.id()).unwrap()), Signal::SIGSTOP).unwrap();
    }
    let load = Load { all_there: Barrier::new(SENDERS), length, sent: Mutex::new(vec![0; SENDERS]) };
    std::thread::scope(|scope| {
        for (sender, id) in ids.iter().enumerate() {
            let (socket, id, load) = (socket.clone(), id.clone(), &load);
            scope.spawn(move || send(socket, id, load, sender));
        }
    });
    let loaded = bench.daemon().rss_kb();
    for follower in &stopped {
        kill(Pid::from_raw(i32::try_from(follower.0.id()).unwrap()), Signal::SIGCONT).unwrap();
    }
    drop((stopped, slow));
    wait_until(Duration::from_secs(60), "idle sessions are dropped", || {
        talk.metric("boxmaker_open_sessions") == 0
    });
    Spell { ids, sent: load.sent.into_inner().unwrap(), memory: (loaded, bench.daemon().rss_kb()) }
}

/// What a turn leaves in an open session's memory is some kilobytes, as long as it is open: `session_bytes` and
/// `open_sessions` bound that. So the memory is flat over spells of new sessions, or something else grows.
#[test]
fn sixty_four_clients_slow_and_stopped_ones_among_them() {
    const SPELLS: u32 = 3;
    let seconds = number("BOXMAKER_LOAD_SECONDS", 15);
    let mut bench = Bench::start("clients = 80\nidle_session_seconds = 1");
    // the server's single cache goes from session to session
    (bench.loses_cache, bench.gone) = (true, true);
    let length = Duration::from_secs(seconds) / SPELLS;
    let spells: Vec<Spell> = (0..SPELLS).map(|_| spell(&bench, length)).collect();
    for Spell { sent, memory: (loaded, dropped), .. } in &spells {
        let total: u64 = sent.iter().sum();
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        println!(
            "64 clients, {length:?}: {total} turns, {least} to {most} a session; memory {loaded} kB at the end, \
             {dropped} kB when the sessions were dropped"
        );
        assert!(total >= SENDERS as u64, "{sent:?}");
        assert!(*least > 0, "somebody never had a turn: {sent:?}");
    }
    // the first spell is the one in which the daemon grows to what it needs
    let (before, last) = (spells[1].memory.0, spells[2].memory.0);
    assert!(last < before + 4_000 + before / 10, "memory grows: {before} kB, then {last} kB");
    bench.kill_daemon();
    for Spell { ids, sent, .. } in &spells {
        let logs: Vec<_> = ids.iter().map(|id| bench.records(id)).collect();
        let sessions: Vec<_> = logs.iter().map(|records| turns(records)).collect();
        let pairs = sessions.iter().flatten().flat_map(|turn| sessions.iter().map(move |by| (turn, by)));
        let most = pairs.map(|(turn, by)| overtaken(turn, by)).max().unwrap();
        assert!(most <= 1, "one session had {most} turns while another one's message waited for its first");
        for ((id, sent), records) in ids.iter().zip(sent).zip(&logs) {
            let texts = records.iter().filter_map(|record| match record {
                LogRecord::UserMessage(message) => Some(message.text.split('.').next().unwrap().to_owned()),
                _ => None,
            });
            let expected: Vec<String> = (0..*sent).map(|n| format!("Message {n} of {id}")).collect();
            assert_eq!(texts.collect::<Vec<_>>(), expected, "a message is lost, or there twice");
        }
    }
}

#[test]
fn many_sessions_in_bounded_memory() {
    let (sessions, turns) = (number("BOXMAKER_LOAD_SESSIONS", 100), number("BOXMAKER_LOAD_TURNS", 10));
    let mut bench = Bench::start("");
    (bench.loses_cache, bench.gone) = (true, true);
    let mut talk = bench.talk();
    let (begin, mut memory) = (Instant::now(), Vec::new());
    let mut ids = Vec::new();
    for n in 0..sessions {
        let id = talk.create();
        for turn in 0..turns {
            talk.send(&id, &format!("Turn {turn} of session {n}"));
            talk.until(&id, "the turn's end", |kind| matches!(kind, EventKind::TurnEnd { .. }));
        }
        talk.ask(Request::Detach { session: id.clone() }).unwrap();
        ids.push(id);
        if n % (sessions / 10).max(1) == 0 {
            memory.push(bench.daemon().rss_kb());
        }
    }
    let (early, last) = (memory[memory.len() / 2], *memory.last().unwrap());
    println!(
        "{sessions} sessions of {turns} turns in {:.0} s: memory {memory:?} kB",
        begin.elapsed().as_secs_f64()
    );
    assert!(last < early + 10_000 + early / 4, "memory grows with the sessions: {memory:?} kB");
    // each is there, and goes on
    let listed = talk.ask(Request::List {}).unwrap();
    let boxmaker::proto::Reply::Sessions { sessions: listed, .. } = listed else { panic!("{listed:?}") };
    assert_eq!(listed.len(), ids.len());
    assert!(listed.iter().all(|info| info.turns == turns), "a turn is lost");
    talk.attach(&ids[0], None);
    assert_eq!(told(&talk.turn(&ids[0], "You first")).last().unwrap(), "turn_end done");
    drop(talk);
    bench.kill_daemon();
}
