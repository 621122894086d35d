//! The daemon is told to end, in every phase of a turn.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use boxmaker::proto::{ErrorCode, EventKind, Incoming, Reply, Request, SessionId, SessionState};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::bench::{Bench, HELLO, STAND_IN, next};
use support::daemon::{Daemon, socket_in};
use support::scripted_server::{Health, Script};
use support::slow_tool::{SLOW, begun, runs};
use support::talk::told;
use support::wait_until;

const PATIENCE: Duration = Duration::from_secs(10);

fn prefill(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Prefill { .. })
}

/// Ends the daemon as systemd does, while a turn is in some phase; it must end in time and in order.
fn terminated(bench: &mut Bench, id: &SessionId) {
    let begin = Instant::now();
    let status = bench.daemon.take().unwrap().terminate();
    let took = begin.elapsed();
    assert_eq!(status.code(), Some(0), "{status:?}");
    assert!(took < Duration::from_secs(4), "it took {took:?} of shutdown_seconds = 4");
    let log = bench.log(id);
    assert_eq!(log.last().unwrap(), "turn_end 1 cancelled", "{log:#?}");
    assert_eq!(bench.last_end(id), "loopd was told to end");
}

/// Starts it again: the session is whole, and goes on after this much of the first answer.
fn goes_on(bench: &mut Bench, id: &SessionId, asked: &str, said: &str) {
    bench.server.clear();
    bench.start_daemon();
    let mut talk = bench.talk();
    assert_eq!(talk.info(id).state, SessionState::Ok);
    talk.attach(id, None);
    assert_eq!(told(&talk.turn(id, "More")).last().unwrap(), "turn_end done");
    assert_eq!(bench.prompts(id).last(), Some(&next(asked, said, "More")));
}

#[test]
fn told_to_end_in_prefill() {
    let (mut bench, mut talk, id) = begun("shutdown_seconds = 4");
    bench.server.push(Script::new().progress().gate("never"));
    talk.send(&id, "Hello");
    talk.until(&id, "prefill", prefill);
    terminated(&mut bench, &id);
    assert_eq!(told(&talk.until_end(&id)), ["turn_end cancelled"], "its clients are told");
    assert_eq!(bench.log(&id).len(), 3);
    goes_on(&mut bench, &id, HELLO, STAND_IN);
}

#[test]
fn told_to_end_in_mid_stream() {
    let (mut bench, mut talk, id) = begun("shutdown_seconds = 4");
    bench.server.push(Script::new().progress().text("Once").gate("never"));
    talk.send(&id, "Hello");
    talk.until_text(&id, "Once");
    terminated(&mut bench, &id);
    assert_eq!(bench.log(&id)[2], "assistant 1 cancelled: Once");
    goes_on(&mut bench, &id, HELLO, "Once");
}

#[test]
fn told_to_end_while_a_tool_runs() {
    let (mut bench, mut talk, id) = begun("shutdown_seconds = 4");
    bench.server.push(Script::say(SLOW));
    talk.send(&id, "Hello");
    wait_until(PATIENCE, "the tool runs", || runs(&bench) == 1);
    terminated(&mut bench, &id);
    assert_eq!(bench.log(&id)[4..6], ["tool_start 1 slow", "tool_result 1 slow interrupted"]);
    let result = &bench.results(&id)[0].1;
    let asked = format!(
        "{HELLO}{SLOW}<|im_end|>\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n"
    );
    goes_on(&mut bench, &id, &asked, STAND_IN);
    assert_eq!(runs(&bench), 1);
}

#[test]
fn told_to_end_while_the_server_is_waited_for() {
    let (mut bench, mut talk, id) = begun("shutdown_seconds = 4");
    bench.server.set(|b| b.health = Health::Loading);
    talk.send(&id, "Hello");
    talk.until(&id, "waiting", |kind| matches!(kind, EventKind::Waiting { .. }));
    terminated(&mut bench, &id);
    bench.server.set(|b| b.health = Health::Ready);
    goes_on(&mut bench, &id, HELLO, STAND_IN);
}

#[test]
fn told_to_end_while_turns_wait_for_the_slot() {
    let (mut bench, mut talk, first) = begun("shutdown_seconds = 4");
    let second = talk.create();
    bench.server.push(Script::new().progress().text("a").gate("never"));
    talk.send(&first, "Hello");
    talk.until_text(&first, "a");
    talk.send(&second, "Hello too");
    talk.until(&second, "queued", |kind| matches!(kind, EventKind::Queued { .. }));
    terminated(&mut bench, &first);
    assert_eq!(bench.log(&second), ["session_start", "user 1: Hello too", "turn_end 1 cancelled"]);
    goes_on(&mut bench, &first, HELLO, "a");
}

#[test]
fn told_to_end_while_the_server_hangs_wherever_it_is_asked() {
    for path in ["/tokenize", "/slots", "/slots/0?action=save", "/props", "/health", "/completion"] {
        let (mut bench, mut talk, id) = begun("shutdown_seconds = 4");
        (bench.replaces_ids, bench.loses_cache) = (true, true);
        // a character of several tokens, whose ids must be read back
        bench.server.push(Script::new().progress().text("a\u{1f98a}").gate("never"));
        let later = path.starts_with("/slots");
        let hang = |bench: &Bench| bench.server.set(|b| b.mute = Some(path.to_owned()));
        if later {
            talk.send(&id, "Hello");
            talk.until_text(&id, "a\u{1f98a}");
            hang(&bench);
        } else {
            hang(&bench);
            let before = bench.server.asked(path);
            talk.send(&id, "Hello");
            wait_until(PATIENCE, "the server is asked", || bench.server.asked(path) > before);
        }
        terminated(&mut bench, &id);
        bench.server.set(|b| b.mute = None);
        goes_on(&mut bench, &id, HELLO, if later { "a\u{1f98a}" } else { STAND_IN });
    }
}

#[test]
fn told_to_end_from_the_moment_that_its_socket_is_there() {
    // installing these takes a while between the socket and the first client
    let tables = |_: &Path| {
        let table = |n| {
            format!(
                "[tools.command.t{n}]\nprogram = \"/bin/true\"\ndescription = \"x\"\npolicy = \"allow\"\n\
                 schema = {{ type = \"object\", properties = {{ a = {{ type = \"string\" }} }} }}\n"
            )
        };
        (0..40).map(table).collect()
    };
    let bench = Bench::prepare("", tables);
    let socket = socket_in(bench.dir());
    for signals in [&[Signal::SIGTERM][..], &[Signal::SIGINT], &[Signal::SIGHUP, Signal::SIGTERM]].repeat(3) {
        let mut command = Daemon::command(Path::new(env!("CARGO_BIN_EXE_loopd")), bench.dir());
        let mut loopd = command.stderr(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(begin.elapsed() < PATIENCE && loopd.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_micros(200));
        }
        for signal in signals {
            kill(Pid::from_raw(i32::try_from(loopd.id()).unwrap()), *signal).unwrap();
        }
        let status = loopd.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{signals:?}");
        assert!(!socket.exists(), "{signals:?}");
    }
}

#[test]
fn a_daemon_that_ends_takes_no_new_turns() {
    let (mut bench, mut talk, id) = begun("shutdown_seconds = 4");
    let other = talk.create();
    bench.server.push(Script::say(SLOW));
    talk.send(&id, "Hello");
    wait_until(PATIENCE, "the tool runs", || runs(&bench) == 1);
    talk.begin(Request::Shutdown {});
    let error = talk.ask(Request::Send { session: other.clone(), text: "Hello too".to_owned() }).unwrap_err();
    assert_eq!(error.code, ErrorCode::ShuttingDown, "{error}");
    let error = talk.ask(Request::Retry { session: other.clone() }).unwrap_err();
    assert_eq!(error.code, ErrorCode::ShuttingDown, "{error}");
    talk.until_end(&id);
    assert_eq!(bench.log(&other), ["session_start"], "refused, and not saved");
    wait_until(PATIENCE, "it ends", || !socket_in(bench.dir()).exists());
    bench.daemon = None;
}

#[test]
fn a_tool_that_does_not_end_does_not_hold_up_the_daemon_for_longer_than_is_set_now() {
    let stubborn = |dir: &Path| {
        format!(
            "[tools.command.slow]\nprogram = \"/bin/sh\"\n\
             args = [\"-c\", \"trap '' TERM; echo begun >> {}; while :; do sleep 1; done\"]\n\
             description = \"Does not end.\"\npolicy = \"allow\"\n",
            dir.join("notes").display()
        )
    };
    let mut bench = Bench::start_with("shutdown_seconds = 60", stubborn);
    let mut talk = bench.talk();
    let id = talk.create();
    let path = bench.dir().join("loopd.toml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replace("shutdown_seconds = 60", "shutdown_seconds = 1")).unwrap();
    kill(Pid::from_raw(i32::try_from(bench.daemon().pid()).unwrap()), Signal::SIGHUP).unwrap();
    wait_until(PATIENCE, "it reads its configuration anew", || {
        bench.daemon().log().contains("EVENT=reloaded")
    });

    bench.server.push(Script::say(SLOW));
    talk.send(&id, "Hello");
    wait_until(PATIENCE, "the tool runs", || runs(&bench) == 1);
    let begin = Instant::now();
    let status = bench.daemon.take().unwrap().terminate();
    assert_eq!(status.code(), Some(0), "{status:?}");
    // the clients get a moment more for their last answers
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    assert_eq!(bench.log(&id).last().unwrap(), "tool_start 1 slow");
    bench.start_daemon();
    let mut talk = bench.talk();
    assert_eq!(talk.info(&id).state, SessionState::Interrupted);
    talk.attach(&id, None);
    talk.turn(&id, "More");
    assert_eq!(bench.log(&id)[5..7], ["tool_result 1 slow interrupted", "turn_end 1 failed"]);
    assert_eq!(runs(&bench), 1);
}

#[test]
fn a_message_that_is_being_counted_can_be_cancelled_and_is_not_saved() {
    for shutdown in [false, true] {
        let mut bench = Bench::prepare("shutdown_seconds = 4", |_| String::new());
        bench.server.set(|b| b.n_ctx = 4096);
        bench.start_daemon();
        let mut talk = bench.talk();
        let id = talk.create();
        bench.server.set(|b| b.mute = Some("/tokenize".to_owned()));
        let before = bench.server.asked("/tokenize");
        // it may fit, if its tokens are long
        let waiting = talk.begin(Request::Send { session: id.clone(), text: "x".repeat(8000) });
        wait_until(PATIENCE, "the server is asked to count", || bench.server.asked("/tokenize") > before);
        let begin = Instant::now();
        if shutdown {
            assert_eq!(bench.daemon.take().unwrap().terminate().code(), Some(0));
        } else {
            let mut other = bench.talk();
            assert_eq!(other.ask(Request::Cancel { session: id.clone() }), Ok(Reply::Done {}));
        }
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
        let answer = talk.incoming("the answer");
        let Some(Incoming::Answer(Some(answered), Err(error))) = answer else { panic!("{answer:?}") };
        let code = if shutdown { ErrorCode::ShuttingDown } else { ErrorCode::Nothing };
        assert_eq!((answered, error.code), (waiting, code), "{error}");
        assert_eq!(bench.log(&id), ["session_start"]);
    }
}
