//! A home belongs to a slot and a machine: another one is refused with words, until it is adopted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// `loopd COMMAND` for the home in `dir`, with `slot`.
fn loopd(dir: &Path, command: &str, slot: &str) -> Command {
    let mut loopd = Command::new(env!("CARGO_BIN_EXE_loopd"));
    loopd.args([command, "--slot", slot, "--config", "/dev/null"]);
    loopd.arg("--home").arg(dir.join("home")).arg("--socket").arg(dir.join("s"));
    loopd.arg("--model-url").arg(format!("unix:{}", dir.join("m").display()));
    for variable in ["NOTIFY_SOCKET", "LISTEN_FDS", "RUST_LOG"] {
        loopd.env_remove(variable);
    }
    loopd.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    loopd
}

/// Serves until it takes connections, then ends it.
fn serve_once(dir: &Path, slot: &str) {
    let mut child = loopd(dir, "serve", slot).spawn().unwrap();
    let begin = Instant::now();
    while std::os::unix::net::UnixStream::connect(dir.join("s")).is_err() {
        if child.try_wait().unwrap().is_some() || begin.elapsed() > Duration::from_secs(20) {
            panic!("loopd does not serve: {}", words(&end(child)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    end(child);
}

fn end(mut child: Child) -> Output {
    child.kill().unwrap();
    child.wait_with_output().unwrap()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn another_slot_is_refused_until_the_home_is_adopted() {
    let dir = tempfile::tempdir().unwrap();
    serve_once(dir.path(), "0");
    let file = dir.path().join("home/home.toml");
    let made = fs::read_to_string(&file).unwrap();

    let refused = loopd(dir.path(), "serve", "1").output().unwrap();
    assert_eq!(refused.status.code(), Some(78), "{}", words(&refused));
    assert!(words(&refused).contains("was made for slot 0, and slot 1 is configured"), "{}", words(&refused));
    assert!(words(&refused).contains("loopd adopt"), "{}", words(&refused));
    assert_eq!(fs::read_to_string(&file).unwrap(), made, "a refusal changes nothing");

    let adopted = loopd(dir.path(), "adopt", "1").output().unwrap();
    assert!(adopted.status.success(), "{}", words(&adopted));
    assert!(words(&adopted).contains("is now for slot 1"), "{}", words(&adopted));
    serve_once(dir.path(), "1");
    assert_eq!(loopd(dir.path(), "serve", "0").output().unwrap().status.code(), Some(78));
}

#[test]
fn a_home_of_another_machine_is_refused_until_it_is_adopted() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("home")).unwrap();
    let file = dir.path().join("home/home.toml");
    fs::write(&file, format!("format = 1\nslot = 0\nmachine = \"{}\"\n", "0".repeat(64))).unwrap();
    if !fs::read_to_string("/etc/machine-id").is_ok_and(|id| id.trim().len() == 32) {
        // a machine without an id cannot tell: then it serves
        serve_once(dir.path(), "0");
        return;
    }
    let refused = loopd(dir.path(), "serve", "0").output().unwrap();
    assert_eq!(refused.status.code(), Some(78), "{}", words(&refused));
    assert!(words(&refused).contains("was made on another machine"), "{}", words(&refused));

    assert!(loopd(dir.path(), "adopt", "0").output().unwrap().status.success());
    serve_once(dir.path(), "0");
}

#[test]
fn a_home_that_is_served_or_absent_is_not_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let absent = loopd(dir.path(), "adopt", "0").output().unwrap();
    assert_eq!(absent.status.code(), Some(1), "{}", words(&absent));
    assert!(!dir.path().join("home").exists(), "adopting must not make a home");

    serve_once(dir.path(), "0");
    let mut serving = loopd(dir.path(), "serve", "0").spawn().unwrap();
    let begin = Instant::now();
    while std::os::unix::net::UnixStream::connect(dir.path().join("s")).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20) && serving.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    let held = loopd(dir.path(), "adopt", "1").output().unwrap();
    assert_eq!(held.status.code(), Some(1), "{}", words(&held));
    assert!(words(&held).contains(&serving.id().to_string()), "it names the holder: {}", words(&held));
    end(serving);
}

/// A home whose `name` is something else than a regular file is refused in words, at once.
fn refused_with(name: &str, put: impl Fn(&Path)) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    serve_once(dir.path(), "0");
    let file = dir.path().join("home").join(name);
    fs::remove_file(&file).unwrap();
    put(&file);
    let mut child = loopd(dir.path(), "serve", "0").spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(20), "loopd waits, or serves: {}", words(&end(child)));
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), words(&output))
}

#[test]
fn something_else_in_the_place_of_the_homes_own_files_is_refused_in_words() {
    let pipe = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let link = |path: &Path| std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    let directory = |path: &Path| fs::create_dir(path).unwrap();
    for (name, status) in [("loopd.lock", 1), ("home.toml", 78)] {
        for (kind, put) in [("pipe", &pipe as &dyn Fn(&Path)), ("symlink", &link), ("directory", &directory)]
        {
            let (code, told) = refused_with(name, put);
            assert_eq!(code, Some(status), "{kind}: {told}");
            assert!(told.contains(name) && told.contains("no regular file"), "{kind}: {told}");
        }
    }
}
