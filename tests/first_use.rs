//! The first minutes with the box: nothing is there yet, or something is broken. Each time one clear screen, and the
//! exit status of the manual.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use support::bench::Bench;
use support::daemon::{Daemon, Ran, bxctl, socket_in};
use support::rig::finished;
use support::scripted_server::Script;
use support::wait_until;

fn ctl(dir: &Path, arguments: &[&str]) -> Ran {
    Ran::new(bxctl(&socket_in(dir), arguments), None)
}

/// A daemon whose model server is away.
fn without_model(dir: &Path) -> Daemon {
    let text = format!(
        "[daemon]\nhome = {:?}\nsocket = {:?}\n[model]\nurl = \"http://127.0.0.1:9\"\n",
        dir.join("home"),
        socket_in(dir)
    );
    fs::write(dir.join("loopd.toml"), text).unwrap();
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_loopd")), dir)
}

#[test]
fn without_a_daemon_one_line_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in
        [&["status"][..], &["chat"], &["send", "hello"], &["sessions"], &["acp"], &["search", "x"]]
    {
        let ran = ctl(dir.path(), arguments);
        assert_eq!((ran.code, ran.out.as_str()), (3, ""), "{arguments:?}: {ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        assert!(ran.err.contains("no daemon") && ran.err.contains("loopd serve"), "{ran:?}");
    }
}

#[test]
fn in_an_empty_home_every_command_says_how_to_begin() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = without_model(dir.path());
    let ran = ctl(dir.path(), &["sessions"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "no sessions yet; `bxctl chat` begins one\n"));
    assert_eq!(ctl(dir.path(), &["sessions", "--json"]).json(), serde_json::json!([]));
    for arguments in
        [&["show"][..], &["usage"], &["retry"], &["export"], &["fork"], &["rebase"], &["chat", "--last"]]
    {
        let ran = ctl(dir.path(), arguments);
        assert_eq!(ran.code, 4, "{arguments:?}: {ran:?}");
        assert!(ran.err.contains("bxctl chat"), "{arguments:?}: {ran:?}");
    }
    assert_eq!(ctl(dir.path(), &["search", "anything"]).code, 1);
}

#[test]
fn a_model_server_that_is_away_or_loads_is_waited_for_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = without_model(dir.path());
    let ran = ctl(dir.path(), &["status"]);
    assert!(ran.out.contains("not reachable") && ran.out.contains("start llama-server there"), "{ran:?}");
    let mut sending = bxctl(&socket_in(dir.path()), &["send", "hello"]);
    let log = dir.path().join("waiting");
    let mut child = sending.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    wait_until(Duration::from_secs(20), "it says that it waits", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("waiting to begin a session; nothing is saved yet, Ctrl-C leaves")
    });
    child.kill().unwrap();
    child.wait().unwrap();
    drop(daemon);

    let bench = Bench::start("");
    bench.server.push(Script::status(503, "unavailable_error", "Loading model"));
    bench.server.push(Script::say("Here I am."));
    let ran = bench.ctl(&["send", "--new", "hello"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "Here I am.\n"), "{ran:?}");
    assert!(ran.err.contains("waiting: ") && ran.err.to_lowercase().contains("load"), "{ran:?}");
}

#[test]
fn a_damaged_session_is_named_with_its_way_out_and_hides_no_other() {
    let bench = Bench::start("");
    bench.server.push(Script::say("one"));
    bench.server.push(Script::say("two"));
    let first = finished(&bench.ctl(&["send", "--new", "--json", "first"]));
    let good = bench.ctl(&["send", "--new", "second"]);
    assert_eq!(good.code, 0, "{good:?}");
    let id = first[0]["session"].as_str().unwrap();
    let log = bench.log_path(&id.parse().unwrap());
    let whole = fs::read(&log).unwrap();
    let mut bytes = whole.clone();
    bytes[300] ^= 1;
    fs::write(&log, bytes).unwrap();
    let ran = bench.ctl(&["sessions"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.out.contains("damaged") && ran.out.contains("0.jsonl:") && ran.out.contains("loopd re"),
        "{ran:?}"
    );
    assert!(ran.out.contains("second"), "{ran:?}");
    for arguments in [&["show", id][..], &["export", id], &["usage", id], &["fork", id]] {
        let ran = bench.ctl(arguments);
        assert_eq!(ran.code, 4, "{arguments:?}: {ran:?}");
        assert!(ran.err.contains("0.jsonl:") && ran.err.contains("loopd re"), "{arguments:?}: {ran:?}");
    }
    let found = bench.ctl(&["search", "second"]);
    assert!(found.code == 0 && found.err.contains(&format!("session {id} cannot be read")), "{found:?}");
    fs::write(&log, whole).unwrap();
}
