//! `loopd check` and `bxctl doctor`: each setting of the model server, the home and the machine that breaks the
//! promise is found, with what mends it, before it has cost anything.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::daemon::{Daemon, Ran, loopd};
use support::real_server::Kind;
use support::rig::Rig;

const SHORT: &str = "completion_tokens = 16\nthinking_tokens = 8\nslot_quiet_seconds = 0";
/// The smallest model, for what does not depend on the model.
const TINY: Kind = Kind { model: Some("BOXMAKER_HYBRID_MODEL"), template: None, flags: &[] };

/// What `loopd check` says, as lines with their level.
fn check(command: Command) -> Vec<String> {
    let ran = Ran::new(command, None);
    assert!(ran.code == 0 || ran.code == 1, "{ran:?}");
    let lines: Vec<String> =
        ran.out.lines().filter_map(|line| line.strip_prefix("# ")).map(str::to_owned).collect();
    let bad = lines.iter().any(|line| line.starts_with("BAD "));
    assert_eq!(ran.code, i32::from(bad), "its exit status: {ran:?}");
    lines
}

/// The findings about this rig, with no daemon running.
fn findings(rig: &mut Rig) -> Vec<String> {
    if let Some(daemon) = rig.daemon.take() {
        daemon.kill();
    }
    check(loopd(rig.dir(), "check", &[]))
}

#[track_caller]
fn assert_found(lines: &[String], level: &str, words: &str, remedy: &str) {
    let at = lines.iter().position(|line| line.starts_with(level) && line.contains(words));
    let at = at.unwrap_or_else(|| panic!("no {level} with {words:?} in {lines:#?}"));
    if !remedy.is_empty() {
        let next = lines.get(at + 1).map_or("", String::as_str);
        assert!(next.contains("remedy: ") && next.contains(remedy), "no remedy {remedy:?} in {lines:#?}");
    }
}

/// The lines about the server that are no praise; the disk of the machine that runs the tests is its own affair.
fn complaints(lines: &[String]) -> Vec<&String> {
    let complaint = |line: &&String| line.starts_with("BAD ") || line.starts_with("warn");
    lines.iter().filter(complaint).filter(|line| !line.contains("home ")).collect()
}

#[test]
fn a_good_server_is_tried_out_and_left_as_it_was() {
    let Some(mut rig) = Rig::start(SHORT) else { return };
    let lines = findings(&mut rig);
    assert_eq!(complaints(&lines), Vec::<&String>::new(), "{lines:#?}");
    for words in [
        "a second request found all",
        "saved and restored was of use",
        "flags on its command line keep",
        "its chat template can be used",
        "io_uring works",
    ] {
        assert_found(&lines, "ok  ", words, "");
    }
    let left: Vec<_> = fs::read_dir(rig.server.slots()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "loopd.lock"), "{left:?}");
    // once more: the slot is as empty as before
    assert_found(&findings(&mut rig), "ok  ", "a second request found all", "");
    // a conversation is not thrown away, nor is a daemon that serves disturbed
    rig.start_daemon();
    let (id, _) = rig.first_turn("Hello.");
    assert_found(&check(loopd(rig.dir(), "check", &[])), "ok  ", "was not tried out", "");
    assert_found(&findings(&mut rig), "ok  ", "tokens of a conversation, so it was not tried out", "");
    rig.start_daemon();
    rig.turn(&id, "Thank you.");
    rig.assert_nothing_evaluated_twice(&id, 2);
}

#[test]
fn flags_that_break_the_promise_are_found() {
    let cases: [(&'static [&'static str], &str, &str, &str); 7] = [
        (&["--cache-ram", "64"], "BAD ", "not started with --cache-ram 0", "--cache-ram 0"),
        (&["--context-shift"], "BAD ", "--context-shift: ", "--no-context-shift"),
        (&["--cache-reuse", "64"], "BAD ", "--cache-reuse 64", "--cache-reuse 0"),
        (&["--sleep-idle-seconds", "600"], "BAD ", "--sleep-idle-seconds 600", "leave out"),
        (&["--prefill-assistant"], "warn", "chat template renders", "--no-prefill-assistant"),
        (&["--no-slots"], "warn", "does not tell about its slots", "--slots"),
        (&["-c", "1024"], "warn", "context is only 1024", "-c 2048"),
    ];
    for (flags, level, words, remedy) in cases {
        let Some(mut rig) = Rig::start_kind(SHORT, Kind { flags, ..TINY }) else { return };
        assert_found(&findings(&mut rig), level, words, remedy);
    }
}

#[test]
fn the_defaults_of_a_server_with_several_slots_are_found_by_trying() {
    let flags = &["-np", "4", "-kvu", "--cache-ram", "512"];
    let Some(mut rig) = Rig::start_kind(SHORT, Kind { flags, ..TINY }) else { return };
    let lines = findings(&mut rig);
    assert_found(&lines, "warn", "it has 4 slots", "-np 1");
    assert_found(&lines, "BAD ", "--kv-unified: ", "--no-kv-unified");
    assert_found(&lines, "BAD ", "a second request, after one on another slot, found 0", "-np 1");
}

#[test]
fn models_of_other_kinds_are_tried_out() {
    let gemma = Kind {
        model: Some("BOXMAKER_SLIDING_MODEL"),
        template: Some("google-gemma-2-2b-it.jinja"),
        flags: &[],
    };
    let Some(mut rig) = Rig::start_kind(SHORT, gemma) else { return };
    assert_found(&findings(&mut rig), "BAD ", "each turn evaluates tokens again", "--swa-full");
    let whole = Kind { flags: &["--swa-full"], ..gemma };
    for kind in [whole, TINY] {
        let Some(mut rig) = Rig::start_kind(SHORT, kind) else { return };
        let lines = findings(&mut rig);
        assert_eq!(complaints(&lines), Vec::<&String>::new(), "{lines:#?}");
        assert_found(&lines, "ok  ", "saved and restored was of use", "");
    }
}

#[test]
fn a_template_that_cannot_be_used_is_found_before_the_first_turn() {
    let kind = Kind { template: Some("openai-gpt-oss-120b.jinja"), ..TINY };
    let Some(mut rig) = Rig::start_kind(SHORT, kind) else { return };
    assert_found(&findings(&mut rig), "BAD ", "has a structure that is not understood", "");
}

#[test]
fn another_model_than_the_newest_session_s_is_found() {
    let Some(mut rig) = Rig::start(SHORT) else { return };
    rig.first_turn("Hello.");
    rig.server.kill();
    let dir = rig.dir().to_owned();
    rig.server = support::real_server::ModelServer::start_kind(&dir, support::rig::CONTEXT, TINY).unwrap();
    assert_found(
        &findings(&mut rig),
        "warn",
        "cannot go on: this epoch of the session was made for the model",
        "bxctl rebase",
    );
}

#[test]
fn a_folder_of_slots_that_is_not_the_server_s_is_found() {
    let Some(mut rig) = Rig::start_kind(SHORT, TINY) else { return };
    let file = rig.dir().join("loopd.toml");
    let config = fs::read_to_string(&file).unwrap();
    let slots = rig.server.slots().display().to_string();
    let other = rig.dir().join("other");
    fs::write(&file, config.replace(&slots, other.to_str().unwrap())).unwrap();
    assert_found(&findings(&mut rig), "BAD ", "is not there, or is no folder", "--slot-save-path");
    fs::create_dir(&other).unwrap();
    let lines = findings(&mut rig);
    assert_found(&lines, "BAD ", "it saves its slots to", "the same folder");
    assert_found(&lines, "BAD ", "cannot be read in [model] slot_dir", "--slot-save-path");
    fs::write(&file, config.replace(&format!("slot_dir = {slots:?}"), "")).unwrap();
    assert_found(&findings(&mut rig), "warn", "slot_dir is not set", "--slot-save-path");
}

#[test]
fn two_daemons_cannot_share_a_folder_of_slots() {
    let Some(rig) = Rig::start_kind(SHORT, TINY) else { return };
    let first = rig.daemon.as_ref().unwrap().pid().to_string();
    let config = fs::read_to_string(rig.dir().join("loopd.toml")).unwrap();
    let second = tempfile::tempdir().unwrap();
    let here = rig.dir().to_str().unwrap();
    let there = second.path().to_str().unwrap();
    let own = ["home", "loopd.sock"].iter().fold(config, |config, name| {
        config.replace(&format!("{here}/{name}\""), &format!("{there}/{name}\""))
    });
    fs::write(second.path().join("loopd.toml"), own).unwrap();
    let command = Daemon::command(Path::new(env!("CARGO_BIN_EXE_loopd")), second.path());
    // one that is not refused would serve for ever
    let plain =
        (command.get_program().to_owned(), command.get_args().map(ToOwned::to_owned).collect::<Vec<_>>());
    let mut bounded = Command::new("timeout");
    bounded
        .arg("20")
        .arg(plain.0)
        .args(plain.1)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ran = Ran::new(bounded, None);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("another loopd has this folder of saved slots"), "{ran:?}");
    assert!(ran.err.contains(&first) && ran.err.contains("a slot_dir of its own"), "{ran:?}");
    // the first one's end frees it
    drop(rig.daemon);
    let mut daemon = Daemon::command(Path::new(env!("CARGO_BIN_EXE_loopd")), second.path());
    daemon.stderr(Stdio::null());
    let mut child = daemon.spawn().unwrap();
    support::wait_until(std::time::Duration::from_secs(20), "the second serves", || {
        std::os::unix::net::UnixStream::connect(second.path().join("loopd.sock")).is_ok()
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_home_that_others_can_read_or_that_is_another_s_is_found() {
    let Some(mut rig) = Rig::start_kind(SHORT, TINY) else { return };
    let home = rig.home();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
    assert_found(&findings(&mut rig), "BAD ", "has mode 755", "chmod 700");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(!findings(&mut rig).iter().any(|line| line.contains("has mode")));
    if std::os::unix::fs::chown(&home, Some(12345), None).is_ok() {
        assert_found(&findings(&mut rig), "BAD ", "belongs to user 12345", "chown");
    } else {
        support::skip("only root can give a folder to another user");
    }
}

#[test]
fn a_home_in_memory_is_found() {
    let Some(mut rig) = Rig::start_kind(SHORT, TINY) else { return };
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = rig.dir().join("loopd.toml");
    let config = fs::read_to_string(&file).unwrap();
    let home = rig.home().display().to_string();
    fs::write(&file, config.replace(&home, memory.path().join("home").to_str().unwrap())).unwrap();
    assert_found(&findings(&mut rig), "BAD ", "tmpfs, which a power cut empties", "ext4 or XFS");
}

#[test]
fn small_limits_of_the_kernel_are_found() {
    let Some(mut rig) = Rig::start_kind(SHORT, TINY) else { return };
    rig.daemon.take().unwrap().kill();
    let plain = loopd(rig.dir(), "check", &[]);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n 64; ulimit -f 1000; exec \"$@\"", "sh"])
        .arg(plain.get_program())
        .args(plain.get_args());
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let lines = check(limited);
    assert_found(&lines, "warn", "may open 64 files", "LimitNOFILE=");
    assert_found(&lines, "warn", "may write files of", "LimitFSIZE=");
}

#[test]
fn the_doctor_asks_the_daemon_and_tells_only_reasons() {
    let Some(mut rig) = Rig::start(SHORT) else { return };
    let told = |rig: &Rig| -> Vec<Value> {
        let ran = rig.ctl(&["doctor", "--json"]);
        let findings: Vec<Value> = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
        let reasons = findings.iter().filter(|finding| finding["level"] != "ok").count();
        assert_eq!(ran.code, i32::from(reasons > 0), "{ran:?}");
        findings
    };
    let has = |findings: &[Value], words: &str| {
        findings.iter().any(|f| f["what"].as_str().unwrap().contains(words))
    };
    let findings = told(&rig);
    assert!(
        has(&findings, "a second request found all") && has(&findings, "restored was of use"),
        "{findings:#?}"
    );
    let (id, _) = rig.first_turn("Hello.");
    assert!(has(&told(&rig), "was not tried out"));
    rig.turn(&id, "Thank you.");
    rig.assert_nothing_evaluated_twice(&id, 2);
    // what was lost since it started is a reason
    rig.replace_server();
    rig.turn(&id, "And now?");
    let findings = told(&rig);
    assert!(has(&findings, "tokens were evaluated again since loopd started"), "{findings:#?}");
    let words = rig.ctl(&["doctor"]);
    assert_eq!(words.code, 1, "{words:?}");
    assert!(words.out.contains("evaluated again") && words.out.contains("remedy"), "{words:?}");
    assert!(!words.out.contains("io_uring works") && !words.out.contains("keep the promise"), "{words:?}");
}
