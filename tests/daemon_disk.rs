//! The disk is full, and free again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::process::Command;
use std::time::Duration;

use boxmaker::proto::{Digest, ErrorCode, LogRecord, Request, SessionId, SessionState, TurnId};
use support::bench::Bench;
use support::daemon::loopd;
use support::mounted::Mounted;
use support::scripted_server::Script;
use support::talk::{told, why};
use support::{skip, wait_until};

/// Sets how large a file of the daemon may grow: beyond it a write fails as on a full disk.
fn limit_files(bench: &Bench, bytes: Option<u64>) {
    let pid = bench.daemon().pid().to_string();
    let size = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
    // the soft limit alone, so that it can be raised again
    let status = Command::new("prlimit").arg(format!("--pid={pid}")).arg(format!("--fsize={size}:")).status();
    assert!(status.expect("run prlimit").success());
}

/// What a full disk must come to, in whatever way it is made full.
fn survives_a_full_disk(bench: &Bench, mut fill: impl FnMut(&Bench), mut free: impl FnMut(&Bench)) {
    let mut talk = bench.talk();
    let id = talk.create();
    talk.turn(&id, "Hello");
    let before = bench.log_bytes(&id);

    // a message: refused, not saved, and the model is not asked
    fill(bench);
    let text = "More ".repeat(4000);
    let error = talk.ask(Request::Send { session: id.clone(), text }).unwrap_err();
    assert_eq!(error.code, ErrorCode::Disk, "{error}");
    assert!(error.message.contains("0.jsonl"), "the file is not named: {error}");
    assert_eq!(bench.log_bytes(&id), before, "what was there before is there, and nothing else");
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
    let listed = talk.info(&id);
    // there may be room for the end, if not for the answer
    let ended = listed.state == SessionState::Ok;
    if !ended {
        assert_eq!(listed.state, SessionState::Interrupted);
        let reason = listed.reason.unwrap();
        assert!(reason.starts_with("turn 3 has no end: ") && reason.contains("0.jsonl"), "{reason}");
    }
    free(bench);
    let events = talk.turn(&id, "And now?");
    assert_eq!(told(&events).last().unwrap(), "turn_end done");
    let log = bench.log(&id);
    assert_eq!(log[log.len() - 6..log.len() - 3], ["user 3: Much", "turn_end 3 failed", "user 4: And now?"]);
    let detail = bench.records(&id).into_iter().find_map(|record| match record {
        LogRecord::TurnEnd(end) if end.turn == TurnId(3) => end.detail,
        _ => None,
    });
    let detail = detail.unwrap();
    assert!((ended || detail.starts_with("interrupted: ")) && detail.contains("0.jsonl"), "{detail}");
    assert!(bench.log_bytes(&id).starts_with(&before));
}

#[test]
fn a_disk_that_takes_no_more_is_survived_without_a_restart() {
    let bench = Bench::start("");
    let log = |bench: &Bench| {
        let id = &bench.sessions()[0];
        u64::try_from(bench.log_bytes(id).len()).unwrap()
    };
    survives_a_full_disk(
        &bench,
        |bench| limit_files(bench, Some(log(bench) + 100)),
        |bench| limit_files(bench, None),
    );
}

#[test]
fn a_full_file_system_is_survived_without_a_restart() {
    let mut bench = Bench::prepare("", |_| String::new());
    let home = bench.home().to_owned();
    let tiny = match Mounted::tmpfs("size=512k,mode=0700", &home) {
        Ok(mounted) => mounted,
        Err(why) => return skip(&format!("no file system can be mounted here: {why}")),
    };
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
    drop(tiny);
}

#[test]
fn a_file_system_mounted_read_only_is_a_definite_refusal() {
    let mut bench = Bench::start("");
    let mut talk = bench.talk();
    let id = talk.create();
    talk.turn(&id, "Hello");
    drop(talk);
    bench.kill_daemon();
    let sessions = bench.home().join("sessions");
    let mounted = match Mounted::bind(&sessions, &sessions) {
        Ok(mounted) => mounted,
        Err(why) => return skip(&format!("no folder can be mounted here: {why}")),
    };
    mounted.remount("bind,ro").unwrap();
    let before = bench.log_bytes(&id);
    bench.start_daemon();
    let mut talk = bench.talk();
    let requests = [
        Request::Send { session: id.clone(), text: "More".to_owned() },
        Request::Rename { session: id.clone(), name: "n".to_owned() },
        Request::Create { id: None, name: None },
    ];
    for request in requests {
        let error = talk.ask(request).unwrap_err();
        assert_eq!(error.code, ErrorCode::Disk, "{error}");
        assert!(error.message.contains("read-only") || error.message.contains("Read-only"), "{error}");
        assert!(error.message.contains("nothing was written"), "{error}");
        assert!(!error.message.contains("unknown"), "it is known: {error}");
    }
    assert_eq!(talk.info(&id).state, SessionState::Ok);
    assert_eq!(bench.log_bytes(&id), before);
    // without a restart
    mounted.remount("bind,rw").unwrap();
    talk.attach(&id, None);
    assert_eq!(told(&talk.turn(&id, "More")).last().unwrap(), "turn_end done");
    drop(talk);
    bench.check();
    bench.kill_daemon();
    bench.gone = true;
    drop(mounted);
}

#[test]
fn only_a_home_that_is_read_only_itself_is_said_to_be() {
    let bench = Bench::start("");
    let said = || {
        let found = loopd(bench.dir(), "check", &[]).output().unwrap();
        let found = String::from_utf8(found.stdout).unwrap();
        assert!(found.contains(&format!("home {} is on ", bench.home().display())), "{found}");
        found.contains("mounted read-only")
    };
    // the same disk, at another place
    let elsewhere = bench.dir().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let other = match Mounted::bind(&elsewhere, &elsewhere) {
        Ok(mounted) => mounted,
        Err(why) => return skip(&format!("no folder can be mounted here: {why}")),
    };
    other.remount("bind,ro").unwrap();
    assert!(!said());
    let home = Mounted::bind(bench.home(), bench.home()).unwrap();
    home.remount("bind,ro").unwrap();
    assert!(said());
}

#[test]
fn what_is_left_of_a_creation_names_the_way_out() {
    let bench = Bench::start("");
    let mut talk = bench.talk();
    let id = talk.create();
    let half: SessionId = "half".parse().unwrap();
    fs::create_dir(bench.home().join("sessions/half")).unwrap();
    let requests = [
        Request::Send { session: half.clone(), text: "Hello?".to_owned() },
        Request::Open { session: half.clone() },
        Request::Usage { session: half.clone() },
        Request::Export { session: half.clone(), from: 0, turn: None },
        Request::Create { id: Some(half.clone()), name: None },
    ];
    for request in requests {
        let error = talk.ask(request.clone()).unwrap_err();
        assert_eq!(error.code, ErrorCode::Damaged, "{request:?}: {error}");
        assert!(error.message.contains("loopd repair half"), "{request:?}: {error}");
    }
    bench.repair(&half);
    let error = talk.ask(Request::Usage { session: half.clone() }).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotFound, "{error}");
    assert_eq!(told(&talk.turn(&id, "You are not touched")).last().unwrap(), "turn_end done");
}

#[test]
fn a_lost_baseline_names_the_way_out_and_can_be_had_from_another_session() {
    let mut bench = Bench::start("");
    let mut talk = bench.talk();
    let (id, other) = (talk.create(), talk.create());
    talk.turn(&id, "Hello");
    talk.turn(&other, "Hello there");
    drop(talk);
    bench.kill_daemon();
    let baseline = |id: &SessionId| bench.home().join("sessions").join(id.as_str()).join("0.baseline.json");
    let (lost, same) = (baseline(&id), baseline(&other));
    let digest = Digest::of(&fs::read(&lost).unwrap()).to_string();
    fs::remove_file(&lost).unwrap();
    bench.start_daemon();
    let mut talk = bench.talk();
    let error = talk.ask(Request::Send { session: id.clone(), text: "More".to_owned() }).unwrap_err();
    assert_eq!(error.code, ErrorCode::Damaged, "{error}");
    for word in ["0.baseline.json", "missing", "another session's", digest.as_str()] {
        assert!(error.message.contains(word), "{word}: {error}");
    }
    fs::copy(&same, &lost).unwrap();
    talk.attach(&id, None);
    assert_eq!(told(&talk.turn(&id, "More")).last().unwrap(), "turn_end done");
}

#[test]
fn a_session_that_nobody_uses_is_dropped_from_memory_and_goes_on_when_asked() {
    let bench = Bench::start("idle_session_seconds = 1\nopen_sessions = 2");
    let mut talk = bench.talk();
    let ids: Vec<SessionId> = (0..4).map(|_| talk.create()).collect();
    talk.turn(&ids[0], "Hello");
    assert!(talk.metric("boxmaker_open_sessions") <= 2, "open_sessions is the limit");
    wait_until(Duration::from_secs(30), "idle sessions are dropped", || {
        bench.talk().metric("boxmaker_open_sessions") == 0
    });
    talk.attach(&ids[0], None);
    assert_eq!(told(&talk.turn(&ids[0], "Still there?")).last().unwrap(), "turn_end done");
}
