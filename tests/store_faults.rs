//! Faults of a real kernel: a full disk, a file size limit, a second process, a failing io_uring_enter, a
//! kill in the middle.
//!
//! Those that need a process of its own run this program again, with one of the ignored tests below.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/mounted.rs"]
mod mounted;
#[allow(dead_code, reason = "only skip is used here")]
#[path = "support/parts.rs"]
mod parts;
mod store_support;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use boxmaker::daemon::maintenance;
use boxmaker::proto::*;
use boxmaker::store::*;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use mounted::Mounted;
use parts::skip;
use store_support::*;

/// Where a child finds its home.
const HOME: &str = "BOXMAKER_TEST_HOME";

/// This program again, to run one ignored test in `home`, under `wrapper`.
fn child(wrapper: &[&str], test: &str, home: &Path) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut words: Vec<std::ffi::OsString> = wrapper.iter().map(Into::into).collect();
    words.push(exe.into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["--ignored", "--exact", test, "--nocapture"]).env(HOME, home);
    // so that it can be ended together with what it started
    command.process_group(0);
    command
}

fn child_home() -> PathBuf {
    std::env::var_os(HOME).expect("a child's test; its parent sets the home").into()
}

/// Waits for a child, but not for ever.
fn finish(mut child: Child, limit: Duration) -> (bool, String) {
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if begun.elapsed() > limit => {
                let group = Pid::from_raw(i32::try_from(child.id()).unwrap());
                nix::sys::signal::killpg(group, Signal::SIGKILL).unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let mut output = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut output).unwrap();
    }
    (status.is_some_and(|status| status.success()), output)
}

#[test]
fn a_full_disk_is_an_error_and_room_ends_it() {
    let home = home();
    let _tmpfs = match Mounted::tmpfs("size=64k", home.path()) {
        Ok(mounted) => mounted,
        Err(why) => return skip(&format!("no tmpfs can be mounted here: {why}")),
    };
    uring(async {
        let mut session = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap();
        let log = session.dir().join("0.jsonl");
        let filler = home.path().join("filler");
        session.append(user(1, "kept")).await.unwrap();
        // the rest of the disk but a little, so that a write is short
        let _ = std::fs::write(&filler, vec![0u8; 44 * 1024]);
        let mut appended = 0;
        let error = loop {
            let before = std::fs::read(&log).unwrap();
            match session.append(named(&"n".repeat(3000))).await {
                Ok(()) => appended += 1,
                Err(e) => {
                    assert_eq!(std::fs::read(&log).unwrap(), before, "cut back");
                    break e;
                }
            }
        };
        assert!(matches!(&error, SessionError::Io(path, _) if *path == log), "{error}");
        assert!(!error.unknown() && !session.is_poisoned(), "{error}");
        assert!(matches!(session.append(named(&"n".repeat(9000))).await, Err(SessionError::Io(..))));
        let created = Session::create(home.path(), id("b"), baseline(), 0).await;
        assert!(created.is_err(), "there is no room for another session");
        std::fs::remove_file(&filler).unwrap();
        session.append(named(&"n".repeat(3000))).await.unwrap();
        let records = session.records().to_vec();
        assert_eq!(records.len(), 3 + appended);
        session.close().await.unwrap();
        assert_eq!(Session::open(home.path(), &id("a")).await.unwrap().records(), records);
        Session::create(home.path(), id("b"), baseline(), 0).await.unwrap();
    });
}

#[test]
#[ignore = "a child of a_file_size_limit_is_an_error"]
fn child_with_a_file_size_limit() {
    let home = child_home();
    ignore_sigxfsz().unwrap();
    uring(async {
        let mut session = Session::create(&home, id("a"), baseline(), 0).await.unwrap();
        session.append(user(1, "kept")).await.unwrap();
        let log = session.dir().join("0.jsonl");
        let before = std::fs::read(&log).unwrap();
        let limit = before.len() as u64 + 1000;
        setrlimit(Resource::RLIMIT_FSIZE, limit, limit).unwrap();
        // short at first, and then not one byte
        for _ in 0..2 {
            let error = session.append(assistant(1, &"x".repeat(5000))).await.unwrap_err();
            assert!(matches!(error, SessionError::Io(..)) && !error.unknown(), "{error}");
            assert_eq!(std::fs::read(&log).unwrap(), before);
        }
        // the sync is linked to the write: a short write cancels it
        let file = Uring.open(&log, Access::Write).await.unwrap();
        let appended = file.append(limit - 10, vec![b'x'; 100]).await;
        assert_eq!(appended.written.unwrap(), 10);
        assert_eq!(appended.synced.unwrap_err().raw_os_error(), Some(nix::libc::ECANCELED));
        file.truncate(before.len() as u64).await.unwrap();
        // a plain write would end the process if the signal were not ignored
        assert!(std::fs::write(home.join("plain"), vec![0; 10_000]).is_err());
        session.append(assistant(1, "short enough")).await.unwrap();
    });
    println!("all of it was done");
}

#[test]
fn a_file_size_limit_is_an_error() {
    let home = home();
    let mut command = child(&[], "child_with_a_file_size_limit", home.path());
    let (ok, output) = finish(command.stdout(Stdio::piped()).spawn().unwrap(), Duration::from_secs(60));
    assert!(ok && output.contains("all of it was done"), "{output}");
    uring(async {
        assert_eq!(Session::open(home.path(), &id("a")).await.unwrap().records().len(), 3);
    });
}

#[test]
#[ignore = "a child of a_second_process_does_not_open_a_session"]
fn child_that_opens() {
    let home = child_home();
    uring(async {
        let error = Session::open(&home, &id("a")).await.unwrap_err();
        assert!(matches!(error, SessionError::Locked(_)), "{error}");
    });
    // a repair takes the lock, too
    assert_eq!(maintenance::repair(&home, "a", true), 4);
    println!("locked");
}

#[test]
fn a_second_process_does_not_open_a_session() {
    let home = home();
    uring(async {
        let mut session = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap();
        // through another path, too
        let link = home.path().join("link");
        std::os::unix::fs::symlink(home.path(), &link).unwrap();
        for path in [home.path(), &link] {
            let mut command = child(&[], "child_that_opens", path);
            let (ok, output) =
                finish(command.stdout(Stdio::piped()).spawn().unwrap(), Duration::from_secs(60));
            assert!(ok && output.contains("locked"), "{output}");
        }
        session.append(user(1, "still mine")).await.unwrap();
    });
}

#[test]
#[ignore = "a child of tests that inject faults into it or kill it"]
fn child_that_appends() {
    let home = child_home();
    uring(async {
        let mut session = Session::open(&home, &id("a")).await.unwrap();
        for _ in 0..300 {
            let turn = session.next_turn().0;
            for append in super_turn(turn) {
                session.append_all(append).await.unwrap();
            }
            println!("acknowledged {turn}");
        }
    });
    println!("all of it was done");
}

fn super_turn(n: u64) -> Vec<Vec<LogRecord>> {
    turn(n, &"x".repeat(usize::try_from(n * 997 % 20_000).unwrap()))
}

#[test]
fn a_failing_io_uring_enter_does_not_hang() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("no strace, which injects the failures (Debian: apt-get install strace)");
    }
    // now and then; and many in a row, where one more try is not enough
    let when = |when: &'static str| ["EAGAIN", "EINTR", "EBUSY", "ENOMEM"].map(|errno| (errno, when));
    for (errno, when) in when("20+7").into_iter().chain(when("30..45")) {
        let home = home();
        uring(async { drop(Session::create(home.path(), id("a"), baseline(), 0).await.unwrap()) });
        let inject = format!("inject=io_uring_enter:error={errno}:when={when}");
        let trace = home.path().join("trace");
        let wrapper = [
            "strace",
            "-f",
            "-q",
            "-o",
            trace.to_str().unwrap(),
            "-e",
            "trace=io_uring_enter",
            "-e",
            &inject,
        ];
        let mut command = child(&wrapper, "child_that_appends", home.path());
        let (ok, output) = finish(command.stdout(Stdio::piped()).spawn().unwrap(), Duration::from_secs(40));
        let trace = std::fs::read_to_string(&trace).unwrap_or_default();
        if !trace.contains("INJECTED") && !ok {
            return skip(&format!("strace cannot trace here: {trace}"));
        }
        let injected = trace.matches("INJECTED").count();
        assert!(ok && output.contains("all of it was done"), "{errno}: hung or failed\n{output}");
        assert!(injected >= 16, "{errno}: {injected} injections");
        // write and sync go to the kernel together
        let pairs = trace.lines().filter(|line| line.contains(", 2, 0,") && line.ends_with("= 2")).count();
        assert!(pairs >= 500, "{errno}: {pairs} submissions of two");
        uring(async {
            let session = Session::open(home.path(), &id("a")).await.unwrap();
            assert_eq!(session.next_turn(), TurnId(301));
        });
    }
}

#[test]
#[ignore = "a child of a_refused_ring_is_reported"]
fn child_without_a_ring() {
    let error = Uring::runtime().err().expect("io_uring is refused");
    println!("said: {error}");
    println!("status: {}", maintenance::verify(&child_home(), None));
}

#[test]
fn a_refused_ring_is_reported() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("no strace, which refuses the ring (Debian: apt-get install strace)");
    }
    for (errno, says) in [
        ("EPERM", "io_uring_setup"),
        ("ENOSYS", "io_uring"),
        ("ENOMEM", "LimitMEMLOCK"),
        ("EMFILE", "LimitNOFILE"),
    ] {
        let home = home();
        let inject = format!("inject=io_uring_setup:error={errno}");
        let wrapper = ["strace", "-f", "-q", "-o", "/dev/null", "-e", "trace=io_uring_setup", "-e", &inject];
        let mut command = child(&wrapper, "child_without_a_ring", home.path());
        let (ok, output) = finish(command.stdout(Stdio::piped()).spawn().unwrap(), Duration::from_secs(40));
        assert!(ok && output.contains(says) && output.contains("os error"), "{errno}: {output}");
        assert!(output.contains("status: 78"), "{errno}: {output}");
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let home = home();
    uring(async { drop(Session::create(home.path(), id("a"), baseline(), 0).await.unwrap()) });
    let mut acknowledged = 0;
    for round in 0..15u64 {
        let mut command = child(&[], "child_that_appends", home.path());
        let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(30 + round * 37 % 90));
        running.kill().unwrap();
        let (_, output) = finish(running, Duration::from_secs(10));
        let told = output.lines().filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<u64>().ok());
        acknowledged = told.max().unwrap_or(acknowledged).max(acknowledged);
        uring(async {
            let options = OpenOptions { torn_tail: TornTail::Quarantine, ..OpenOptions::default() };
            let (mut session, _) = Session::open_with(Uring, home.path(), &id("a"), options).await.unwrap();
            let turns = session.sequence().next_turn().0 - 1;
            let open = u64::from(session.sequence().open_turn().is_some());
            assert!(turns - open >= acknowledged, "{turns} turns, {open} open, {acknowledged} acknowledged");
            if open == 1 {
                session.append(failed(turns)).await.unwrap();
            }
        });
    }
    println!("{acknowledged} turns acknowledged");
    assert!(acknowledged > 15);
}

#[test]
#[ignore = "a child of modes_are_right_whatever_the_umask"]
fn child_with_a_umask() {
    let home = child_home();
    let umask: u32 = std::env::var("BOXMAKER_TEST_UMASK").unwrap().parse().unwrap();
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(umask));
    uring(async {
        Session::create(&home, id("a"), baseline(), 0).await.unwrap().close().await.unwrap();
        let log = home.join("sessions/a/0.jsonl");
        let torn = [std::fs::read(&log).unwrap(), b"{".to_vec()].concat();
        std::fs::write(&log, torn).unwrap();
        let catalog = Catalog::new(home.clone(), OpenOptions::default());
        catalog.repair(&id("a")).await.unwrap();
    });
}

#[test]
fn modes_are_right_whatever_the_umask() {
    for umask in [0, 0o002, 0o277, 0o777] {
        let home = home();
        let mut command = child(&[], "child_with_a_umask", home.path());
        command.env("BOXMAKER_TEST_UMASK", umask.to_string()).stdout(Stdio::piped());
        let (ok, output) = finish(command.spawn().unwrap(), Duration::from_secs(60));
        assert!(ok, "{output}");
        let sessions = home.path().join("sessions");
        assert_eq!((mode(&sessions), mode(&sessions.join("a"))), (0o700, 0o700), "umask {umask:o}");
        let files: Vec<_> =
            std::fs::read_dir(sessions.join("a")).unwrap().map(|f| f.unwrap().path()).collect();
        assert_eq!(files.len(), 3);
        for file in files {
            assert_eq!(mode(&file), 0o600, "{}, umask {umask:o}", file.display());
        }
    }
}

#[test]
#[ignore = "a child of the_age_of_a_sync_under_way_is_known"]
fn child_that_appends_once() {
    let home = child_home();
    uring(async {
        let mut session = Session::open(&home, &id("a")).await.unwrap();
        assert_eq!(oldest_sync_age(), None);
        let (result, age) = tokio::join!(session.append(user(1, "x")), async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            oldest_sync_age()
        });
        result.unwrap();
        assert!(age.is_some(), "an append was under way");
        assert_eq!(oldest_sync_age(), None);
    });
    println!("done");
}

#[test]
fn the_age_of_a_sync_under_way_is_known() {
    let home = home();
    uring(async { drop(Session::create(home.path(), id("a"), baseline(), 0).await.unwrap()) });
    let mut command = child(&[], "child_that_appends_once", home.path());
    let (ok, output) = finish(command.stdout(Stdio::piped()).spawn().unwrap(), Duration::from_secs(60));
    assert!(ok && output.contains("done"), "{output}");
}

#[test]
fn verify_repair_and_recover_tell_by_their_exit_status() {
    let home = home();
    uring(async {
        for name in ["a", "b"] {
            let mut session = Session::create(home.path(), id(name), baseline(), 0).await.unwrap();
            session.append(user(1, "x")).await.unwrap();
        }
    });
    let log = home.path().join("sessions/a/0.jsonl");
    let whole = std::fs::read(&log).unwrap();
    assert_eq!(maintenance::verify(home.path(), None), 0);
    assert_eq!(maintenance::repair(home.path(), "a", true), 0, "nothing to do");
    assert_eq!(maintenance::verify(home.path(), Some("zz")), 1);
    assert_eq!(maintenance::verify(home.path(), Some("")), 2);
    std::fs::write(&log, [&whole[..], b"{\"prev"].concat()).unwrap();
    assert_eq!(maintenance::verify(home.path(), None), 4);
    assert_eq!(maintenance::verify(home.path(), Some("b")), 0);
    assert_eq!(maintenance::repair(home.path(), "a", false), 0);
    assert_ne!(std::fs::read(&log).unwrap(), whole, "without --yes nothing is changed");
    assert_eq!(maintenance::repair(home.path(), "a", true), 0);
    assert_eq!(std::fs::read(&log).unwrap(), whole);
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    std::fs::write(&log, &damaged).unwrap();
    assert_eq!(maintenance::repair(home.path(), "a", true), 4, "damage in the middle");
    assert_eq!(maintenance::recover(home.path(), "a", Some("new")), 4, "not one record is good");
    damaged = whole.clone();
    let last = whole.len() - 50;
    damaged[last] ^= 1;
    std::fs::write(&log, &damaged).unwrap();
    assert_eq!(maintenance::recover(home.path(), "a", Some("NEW")), 2);
    assert_eq!(maintenance::recover(home.path(), "a", Some("new")), 0);
    assert_eq!(maintenance::verify(home.path(), Some("new")), 0);
    assert_eq!(std::fs::read(&log).unwrap(), damaged, "left as it is");
}

#[test]
fn a_folder_that_is_no_home_is_not_called_whole() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(maintenance::verify(folder.path(), None), 1);
    assert_eq!(maintenance::verify(&folder.path().join("not there"), None), 1);
    // loopd was here, and nobody has talked to it yet
    let new = tempfile::tempdir().unwrap();
    std::fs::write(new.path().join("home.toml"), "").unwrap();
    assert_eq!(maintenance::verify(new.path(), None), 0);
    std::fs::create_dir(folder.path().join("sessions")).unwrap();
    assert_eq!(maintenance::verify(folder.path(), None), 0);
}
