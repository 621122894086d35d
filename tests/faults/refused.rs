//! A kernel that gives the daemon no io_uring: it says so, and ends in the way that a unit does not restart.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use boxmaker::proto::EventKind;
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};

use crate::support::bench::Bench;
use crate::support::daemon::Daemon;
use crate::support::skip;
use crate::support::talk::{told, why};

/// From here on `io_uring_setup` fails with EPERM in this process, as under `SystemCallFilter=~@aio`.
fn refuse_io_uring() -> io::Result<()> {
    let statement =
        |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap_or(0), jt, jf, k };
    let number = u32::try_from(libc::SYS_io_uring_setup).unwrap_or(0);
    let errno = u32::try_from(libc::EPERM).unwrap_or(0);
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: both calls read their arguments only, and the program lives until they return
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a daemon that cannot run says; its exit status must be 78.
fn says(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(78), "{:?}: {said}", output.status);
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn io_uring_refused_by_a_filter() {
    let bench = Bench::prepare("", |_| String::new());
    let mut command = Daemon::command(Path::new(env!("CARGO_BIN_EXE_loopd")), bench.dir());
    // SAFETY: it makes two system calls and allocates nothing
    unsafe { command.pre_exec(refuse_io_uring) };
    let said = says(command);
    for word in ["io_uring", "SystemCallFilter", "os error 1"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
}

#[test]
fn no_memory_may_be_locked() {
    let bench = Bench::prepare("", |_| String::new());
    let plain = Daemon::command(Path::new(env!("CARGO_BIN_EXE_loopd")), bench.dir());
    // root's capabilities would lift the limit
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-all", "--bounding-set=-all"]).arg(plain.get_program()).args(plain.get_args());
    if Command::new("setpriv").args(["--bounding-set=-all", "true"]).status().is_ok_and(|s| !s.success()) {
        return skip("capabilities cannot be dropped here");
    }
    // SAFETY: one system call
    unsafe { command.pre_exec(|| setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0).map_err(io::Error::from)) };
    let said = says(command);
    for word in ["io_uring", "LimitMEMLOCK", "os error 12"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
}

#[test]
fn a_socket_that_may_not_be_opened_for_a_moment() {
    if Command::new("setpriv").args(["--bounding-set=-all", "true"]).status().is_ok_and(|s| !s.success()) {
        return skip("capabilities cannot be dropped here");
    }
    let mut bench = Bench::prepare("", |_| String::new());
    // root's capabilities would open any socket
    let program = bench.dir().join("loopd-without-capabilities");
    let loopd = env!("CARGO_BIN_EXE_loopd");
    let script = format!("#!/bin/sh\nexec setpriv --inh-caps=-all --bounding-set=-all {loopd} \"$@\"\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    bench.daemon = Some(Daemon::start(&program, bench.dir()));
    let mut talk = bench.talk();
    let id = talk.create();
    talk.turn(&id, "Hello");
    let socket = bench.server.dir().join("llama.sock");
    let allow = |mode| fs::set_permissions(&socket, fs::Permissions::from_mode(mode)).unwrap();
    allow(0);
    talk.send(&id, "More");
    let waits = |kind: &EventKind| matches!(kind, EventKind::Waiting { why } if why.contains("may not"));
    talk.until(&id, "it waits, and says why", waits);
    allow(0o700);
    assert_eq!(told(&talk.until_end(&id)).last().unwrap(), "turn_end done");
    // for good, that is an error
    allow(0);
    let events = talk.turn(&id, "And more");
    assert_eq!(told(&events).last().unwrap(), "turn_end failed");
    assert!(why(&events).contains("could not be opened by this user for 10 s"), "{}", why(&events));
    allow(0o700);
    assert_eq!(told(&talk.retry(&id)).last().unwrap(), "turn_end done");
}
