//! What concerns a whole process: its umask, its descriptors, its environment. One at a time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod channel_support;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use boxmaker::channel::{ChannelLimits, HomeLock, Listener};
use channel_support::{Daemon, HELLO, run};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    let _alone = alone();
    for mask in [0, 0o002, 0o022, 0o077, 0o177] {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let before = umask(Mode::from_bits_truncate(mask));
        let lock = HomeLock::take(&home);
        let listener = lock.as_ref().map(|lock| Listener::bind(&home.join("loopd.sock"), lock));
        umask(before);
        if mask & 0o100 != 0 {
            // a home that its owner cannot enter: an error, not a panic
            assert!(lock.is_ok() || lock.unwrap_err().to_string().contains("home"));
            continue;
        }
        let _listener = listener.unwrap().unwrap();
        let found = (mode(&home), mode(&home.join("loopd.lock")), mode(&home.join("loopd.sock")));
        assert_eq!(found, (0o700, 0o600, 0o660), "under umask {mask:03o}");
    }
}

#[test]
fn the_socket_never_has_a_wider_mode() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let lock = HomeLock::take(dir.path()).unwrap();
    let path = dir.path().join("loopd.sock");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut widest, mut seen) = (0, 0);
            while !done.load(Ordering::Relaxed) {
                if let Ok(there) = fs::symlink_metadata(&path) {
                    widest |= there.permissions().mode() & 0o777;
                    seen += 1;
                }
            }
            (widest, seen)
        });
        let before = umask(Mode::empty());
        for _ in 0..3000 {
            drop(Listener::bind(&path, &lock).unwrap());
        }
        umask(before);
        done.store(true, Ordering::Relaxed);
        let (widest, seen) = watcher.join().unwrap();
        assert_eq!(widest, 0o660, "{widest:03o} in {seen} looks");
    });
}

#[test]
fn accepting_survives_the_end_of_descriptors() {
    let _alone = alone();
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut first = daemon.greeted().await;
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // the lowest number that is free, by taking it
        let free = fs::File::open("/dev/null").unwrap().as_raw_fd();
        // one more for a client's side, none for the daemon's
        setrlimit(Resource::RLIMIT_NOFILE, u64::try_from(free).unwrap() + 1, hard).unwrap();
        let mut waiting = daemon.raw().await;
        waiting.say(HELLO).await;
        waiting.hear_nothing().await;
        first.check_alive().await;
        drop(first);
        let hello = waiting.hear().await.unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        assert_eq!(hello["ok"]["reply"], "hello");
        waiting.check_alive().await;
    });
}

/// Not a test by itself: the process that is handed a socket below.
#[test]
fn helper_activated() {
    let Some(expected) = std::env::var_os("BOXMAKER_TEST_ACTIVATED") else { return };
    let _alone = alone();
    let handed = Listener::from_systemd();
    match expected.to_str().unwrap() {
        "socket" => assert!(handed.unwrap().expect("a socket").path().is_none()),
        "nothing" => assert!(handed.unwrap().is_none()),
        says => {
            let refused = handed.unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }
}

#[test]
fn a_socket_of_systemd_is_taken_and_left_to_it() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("handed.sock");
    let socket = UnixListener::bind(&path).unwrap();
    let null = fs::File::open("/dev/null").unwrap();
    let helper = |handed: i32, environment: &str, expected: &str| {
        let script = format!("{environment} exec \"$0\" helper_activated --exact 3<&{handed}");
        let output = Command::new("sh")
            .args(["-c", &script])
            .arg(std::env::current_exe().unwrap())
            .env("BOXMAKER_TEST_ACTIVATED", expected)
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stdout));
    };
    for fd in [socket.as_raw_fd(), null.as_raw_fd()] {
        // SAFETY: both are open until the end of this test.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    }
    let ours = "LISTEN_PID=$$ LISTEN_FDS=1";
    helper(socket.as_raw_fd(), ours, "socket");
    assert!(path.exists());
    helper(socket.as_raw_fd(), "LISTEN_PID=1 LISTEN_FDS=1", "nothing");
    helper(socket.as_raw_fd(), "LISTEN_PID=$$ LISTEN_FDS=x", "cannot be used");
    helper(null.as_raw_fd(), ours, "not a socket");
}
