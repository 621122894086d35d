//! The daemon's own end, in every phase of a turn, and the disk's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use boxmaker::proto::{ErrorCode, EventKind, Incoming, Reply, Request, SessionId, SessionState, ToolOutcome};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::bench::{Bench, STAND_IN};
use support::scripted_server::{Health, Script};
use support::talk::{Talk, told, why};
use support::{skip, wait_until};

const HELLO: &str = "Hello<|im_end|>\n<|im_start|>assistant\n";
const PATIENCE: Duration = Duration::from_secs(10);

fn next(before: &str, said: &str, message: &str) -> String {
    format!("{before}{said}<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n")
}

/// A tool that notes that it began, and then takes its time.
fn slow(dir: &Path) -> String {
    format!(
        "[tools.command.slow]\nprogram = \"/bin/sh\"\nargs = [\"-c\", \"echo begun >> {}; sleep 60; echo ended\"]\n\
         description = \"Takes its time.\"\npolicy = \"allow\"\n",
        dir.join("notes").display()
    )
}

const SLOW: &str = "<tool_call>\n{\"name\": \"slow\", \"arguments\": {}}\n</tool_call>";

fn begun(limits: &str) -> (Bench, Talk, SessionId) {
    let bench = Bench::start_with(limits, slow);
    let mut talk = bench.talk();
    let id = talk.create();
    (bench, talk, id)
}

/// How often the tool was started.
fn runs(bench: &Bench) -> usize {
    fs::read_to_string(bench.dir().join("notes")).unwrap_or_default().lines().count()
}

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
            let asked = || bench.server.requests().iter().filter(|r| r.path == path).count();
            let before = asked();
            talk.send(&id, "Hello");
            wait_until(PATIENCE, "the server is asked", || asked() > before);
        }
        terminated(&mut bench, &id);
        bench.server.set(|b| b.mute = None);
        goes_on(&mut bench, &id, HELLO, if later { "a\u{1f98a}" } else { STAND_IN });
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
    wait_until(PATIENCE, "it ends", || !support::daemon::socket_in(bench.dir()).exists());
    bench.daemon = None;
}

#[test]
fn killed_while_a_tool_runs_it_is_never_run_again() {
    let (mut bench, mut talk, id) = begun("");
    bench.server.push(Script::say(SLOW));
    talk.send(&id, "Hello");
    wait_until(PATIENCE, "the tool runs", || runs(&bench) == 1);
    bench.kill_daemon();
    assert_eq!(bench.log(&id)[4..], ["tool_start 1 slow"], "started in the log before it was started");

    bench.start_daemon();
    let mut talk = bench.talk();
    let info = talk.info(&id);
    assert_eq!(info.state, SessionState::Interrupted);
    assert!(info.reason.is_some());
    // looking changes nothing
    assert_eq!(bench.log(&id).len(), 5);
    talk.attach(&id, None);
    talk.turn(&id, "What happened?");
    assert_eq!(
        bench.log(&id)[4..],
        [
            "tool_start 1 slow",
            "tool_result 1 slow interrupted",
            "turn_end 1 failed",
            "user 2: What happened?",
            "assistant 2 stop: ok",
            "usage 2",
            "turn_end 2 done"
        ]
    );
    let (outcome, content) = bench.results(&id).remove(0);
    assert_eq!(outcome, ToolOutcome::Interrupted);
    assert!(content.contains("outcome is unknown") && content.contains("not run again"), "{content}");
    let asked = format!(
        "{HELLO}{SLOW}<|im_end|>\n<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n"
    );
    assert_eq!(bench.prompts(&id).last(), Some(&next(&asked, STAND_IN, "What happened?")));
    assert_eq!(runs(&bench), 1);
}

#[test]
fn killed_while_a_tool_runs_retry_tells_the_model_that_nothing_is_known() {
    let (mut bench, mut talk, id) = begun("");
    let said = format!("{SLOW}\n{SLOW}");
    bench.server.push(Script::say(&said));
    talk.send(&id, "Hello");
    wait_until(PATIENCE, "the tool runs", || runs(&bench) == 1);
    bench.kill_daemon();
    bench.start_daemon();
    let mut talk = bench.talk();
    talk.attach(&id, None);
    let events = talk.retry(&id);
    assert_eq!(told(&events), ["turn_start retry", "prefill", "text ok", "usage stop", "turn_end done"]);
    assert_eq!(
        bench.log(&id)[4..],
        [
            "tool_start 1 slow",
            "tool_result 1 slow interrupted",
            "tool_result 2 slow error",
            "turn_end 1 failed",
            "assistant 1 stop: ok",
            "usage 1",
            "turn_end 1 done"
        ]
    );
    let results = bench.results(&id);
    assert!(results[1].1.starts_with("Not run"), "{results:?}");
    assert_eq!(runs(&bench), 1);
}

#[test]
fn killed_between_a_result_and_the_next_completion() {
    let (mut bench, mut talk, id) = begun("");
    let find = "<tool_call>\n{\"name\": \"find_tool\", \"arguments\": {\"query\": \"slow\"}}\n</tool_call>";
    bench.server.push(Script::say(find));
    bench.server.push(Script::new().gate("never"));
    talk.send(&id, "Hello");
    wait_until(PATIENCE, "the second request", || bench.server.completions().len() == 2);
    bench.kill_daemon();
    let before = bench.log(&id);
    assert_eq!(before[4..], ["tool_start 1 find_tool", "tool_result 1 find_tool ok"]);
    bench.start_daemon();
    let mut talk = bench.talk();
    assert_eq!(talk.info(&id).state, SessionState::Interrupted);
    talk.attach(&id, None);
    talk.retry(&id);
    let bodies = bench.server.completions();
    assert_eq!(bodies[1], bodies[2], "the very same request");
    assert_eq!(
        bench.log(&id)[6..],
        ["turn_end 1 failed", "assistant 1 stop: ok", "usage 1", "turn_end 1 done"]
    );
}

#[test]
fn killed_in_prefill_and_in_mid_stream_the_next_message_closes_the_turn() {
    for script in [Script::new().progress().gate("never"), Script::new().progress().text("abc").gate("never")]
    {
        let (mut bench, mut talk, id) = begun("");
        bench.server.push(script);
        talk.send(&id, "Hello");
        talk.until(&id, "prefill", prefill);
        bench.kill_daemon();
        assert_eq!(bench.log(&id), ["session_start", "user 1: Hello"]);
        bench.start_daemon();
        let mut talk = bench.talk();
        assert_eq!(talk.info(&id).state, SessionState::Interrupted);
        assert_eq!(bench.server.completions().len(), 1, "nothing goes on by itself");
        talk.attach(&id, None);
        talk.turn(&id, "Again");
        assert_eq!(bench.log(&id)[2..4], ["turn_end 1 failed", "user 2: Again"]);
        assert_eq!(bench.prompts(&id)[1], next(HELLO, STAND_IN, "Again"));
        assert_eq!(talk.info(&id).state, SessionState::Ok);
    }
}

#[test]
fn killed_again_and_again_the_turn_is_closed_once() {
    let (mut bench, mut talk, id) = begun("");
    for _ in 0..3 {
        bench.server.push(Script::new().progress().gate("never"));
    }
    talk.send(&id, "Hello");
    talk.until(&id, "prefill", prefill);
    for _ in 0..2 {
        bench.kill_daemon();
        bench.start_daemon();
        let mut talk = bench.talk();
        talk.attach(&id, None);
        talk.begin(Request::Retry { session: id.clone() });
        talk.until(&id, "prefill", prefill);
    }
    assert_eq!(bench.log(&id), ["session_start", "user 1: Hello", "turn_end 1 failed"]);
    let bodies = bench.server.completions();
    assert!(bodies.len() == 3 && bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
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
        let asked = || bench.server.requests().iter().filter(|r| r.path == "/tokenize").count();
        let before = asked();
        // it may fit, if its tokens are long
        let waiting = talk.begin(Request::Send { session: id.clone(), text: "x".repeat(8000) });
        wait_until(PATIENCE, "the server is asked to count", || asked() > before);
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

#[test]
fn killed_at_any_moment_the_log_is_a_beginning_of_the_whole_one() {
    let mut bench = Bench::start("");
    bench.loses_cache = true;
    let find = "<tool_call>\n{\"name\": \"find_tool\", \"arguments\": {\"query\": \"x\"}}\n</tool_call>";
    let whole = [
        "session_start",
        "user 1",
        "assistant 1 tool_calls",
        "usage 1",
        "tool_start 1",
        "tool_result 1",
        "assistant 1 stop",
        "usage 1",
        "turn_end 1 done",
    ];
    let mut lengths = std::collections::BTreeSet::new();
    for round in 0..18 {
        let mut talk = bench.talk();
        let id = talk.create();
        bench.server.clear();
        bench.server.push(Script::say(find));
        let text = format!("Hello, for the time number {round}");
        talk.begin(Request::Send { session: id.clone(), text });
        let begin = Instant::now();
        // once the log has so many lines: between two appends, or in the middle of one
        while log_bytes(&bench, &id).iter().filter(|byte| **byte == b'\n').count() < 1 + round / 2 {
            assert!(begin.elapsed() < PATIENCE, "{:#?}", bench.log(&id));
        }
        bench.kill_daemon();
        let log = bench.log(&id);
        assert!(log.iter().zip(whole).all(|(record, begin)| record.starts_with(begin)), "{log:#?}");
        assert_ne!(log.last().unwrap(), "assistant 1 stop: ok", "an append is whole or not there");
        lengths.insert(log.len());
        bench.start_daemon();
        bench.server.clear();
        let mut talk = bench.talk();
        talk.attach(&id, None);
        let open = log.len() > 1 && log.len() < whole.len();
        assert_eq!(talk.info(&id).state, if open { SessionState::Interrupted } else { SessionState::Ok });
        let events = if open && round % 2 == 0 {
            talk.retry(&id)
        } else {
            talk.turn(&id, &format!("Next, after number {round}"))
        };
        assert_eq!(told(&events).last().unwrap(), "turn_end done", "{log:#?}");
        assert!(bench.log(&id).starts_with(&log));
    }
    assert!(lengths.len() > 3, "all were killed at the same point: {lengths:?}");
}

/// Sets how large a file of the daemon may grow: beyond it a write fails as on a full disk.
fn limit_files(bench: &Bench, bytes: Option<u64>) {
    let pid = bench.daemon().pid().to_string();
    let size = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
    // the soft limit alone, so that it can be raised again
    let status = Command::new("prlimit").arg(format!("--pid={pid}")).arg(format!("--fsize={size}:")).status();
    assert!(status.expect("run prlimit").success());
}

fn log_bytes(bench: &Bench, id: &SessionId) -> Vec<u8> {
    fs::read(bench.home().join("sessions").join(id.as_str()).join("0.jsonl")).unwrap()
}

/// What a full disk must come to, in whatever way it is made full.
fn survives_a_full_disk(bench: &Bench, mut fill: impl FnMut(&Bench), mut free: impl FnMut(&Bench)) {
    let mut talk = bench.talk();
    let id = talk.create();
    talk.turn(&id, "Hello");
    let before = log_bytes(bench, &id);

    // a message: refused, not saved, and the model is not asked
    fill(bench);
    let text = "More ".repeat(4000);
    let error = talk.ask(Request::Send { session: id.clone(), text }).unwrap_err();
    assert_eq!(error.code, ErrorCode::Disk, "{error}");
    assert!(error.message.contains("0.jsonl"), "the file is not named: {error}");
    assert_eq!(log_bytes(bench, &id), before, "what was there before is there, and nothing else");
    assert_eq!(bench.server.completions().len(), 1);
    assert_eq!(talk.usage(&id).len(), 1, "it can be read");
    assert_eq!(talk.info(&id).state, SessionState::Ok);
    free(bench);
    assert_eq!(told(&talk.turn(&id, "More")).last().unwrap(), "turn_end done");

    // an answer: told as failed, not recorded, and closed when there is room again
    // one token with much text
    bench.server.push(Script::new().progress().token(&"y".repeat(20_000), 3 + 0x79).gate("full").eog());
    talk.send(&id, "Much");
    talk.until_text(&id, &"y".repeat(20_000));
    fill(bench);
    bench.server.open("full");
    let events = talk.until_end(&id);
    assert_eq!(told(&events)[0], "error disk");
    assert!(told(&events)[1].starts_with("turn_end failed"), "{:?}", told(&events));
    assert!(why(&events).contains("0.jsonl"), "{}", why(&events));
    assert!(!bench.log(&id).iter().any(|record| record.starts_with("assistant 3")));
    free(bench);
    let events = talk.turn(&id, "And now?");
    assert_eq!(told(&events).last().unwrap(), "turn_end done");
    let log = bench.log(&id);
    assert_eq!(log[log.len() - 6..log.len() - 3], ["user 3: Much", "turn_end 3 failed", "user 4: And now?"]);
    assert!(log_bytes(bench, &id).starts_with(&before));
}

#[test]
fn a_disk_that_takes_no_more_is_survived_without_a_restart() {
    let bench = Bench::start("");
    let log = |bench: &Bench| {
        let id = &bench.sessions()[0];
        u64::try_from(log_bytes(bench, id).len()).unwrap()
    };
    survives_a_full_disk(
        &bench,
        |bench| limit_files(bench, Some(log(bench) + 100)),
        |bench| limit_files(bench, None),
    );
}

/// A file system that is unmounted with the value.
struct Tiny<'a>(&'a Path);

impl Drop for Tiny<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_file_system_is_survived_without_a_restart() {
    let mut bench = Bench::prepare("", |_| String::new());
    let home = bench.home().to_owned();
    fs::create_dir(&home).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k,mode=0700", "none"]).arg(&home).output();
    match mounted {
        Ok(output) if output.status.success() => {}
        other => return skip(&format!("no file system can be mounted here: {other:?}")),
    }
    let _tiny = Tiny(&home);
    bench.start_daemon();
    let ballast = home.join("ballast");
    survives_a_full_disk(
        &bench,
        |_| {
            let full = fs::write(&ballast, vec![0; 1 << 20]).unwrap_err();
            assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        },
        |_| fs::remove_file(&ballast).unwrap(),
    );
    // its home goes with the file system
    bench.check();
    bench.kill_daemon();
    bench.gone = true;
}
