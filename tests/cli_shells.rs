//! What shells and `man` get from `bxctl`: completions with the sessions that there are, and pages that can be read.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod cli_fake;
#[path = "support/parts.rs"]
#[allow(dead_code, missing_docs)]
mod parts;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use boxmaker::proto::{Reply, Request, SessionInfo};
use cli_fake::{Act, Fake, bxctl, info, stderr, stdout, usual};

/// A daemon with sessions of which some can be named by one word.
fn with_sessions() -> Fake {
    Fake::start(|request| match request {
        Request::List {} => {
            let named = |id: &str, name: &str| SessionInfo { name: Some(name.to_owned()), ..info(id) };
            let sessions = vec![
                named("aa11", "dogs"),
                named("ab22", "dogs"),
                named("ac33", "two $(words)"),
                named("ad44", "garden"),
                SessionInfo { name: None, title: Some("A title\x1b[2J".to_owned()), ..info("ae55") },
            ];
            Act::Reply(Reply::Sessions { sessions })
        }
        other => usual(other).unwrap(),
    })
}

#[test]
fn sessions_are_named_by_one_word_that_means_no_other() {
    let output = with_sessions().run(&["sessions", "--complete"]);
    assert_eq!(
        stdout(&output),
        "aa11\tdogs\nab22\tdogs\nac33\ttwo $(words)\ngarden\tad44\nae55\tA title␛[2J\n"
    );
}

/// Runs a shell with the completions for it in `script`, and `bxctl` in its path; nothing where the test is skipped.
fn shell(fake: &Fake, name: &str, script: &str) -> Option<Output> {
    let completions = fake.dir.path().join(format!("bxctl.{name}"));
    let output = bxctl().args(["completions", name]).output().unwrap();
    std::fs::write(&completions, output.stdout).unwrap();
    let folder = Path::new(env!("CARGO_BIN_EXE_bxctl")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(name);
    command.env("PATH", path).env("BXCTL_SOCKET", &fake.socket).env("HOME", fake.dir.path());
    command
        .stdin(Stdio::null())
        .args(["-c", &script.replace("COMPLETIONS", &completions.display().to_string())]);
    match command.output() {
        Ok(output) => Some(output),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            parts::skip(&format!("{name} is not installed (Debian: apt-get install {name})"));
            None
        }
        Err(e) => panic!("{name}: {e}"),
    }
}

#[test]
fn bash_completes_commands_options_and_sessions() {
    let script = r#"
        complete() { :; }
        . COMPLETIONS
        try() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _bxctl_all bxctl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            echo "${COMPREPLY[*]}"
        }
        try bxctl ren
        try bxctl export --ht
        try bxctl export --format ""
        try bxctl show ""
        try bxctl export --html a
        try bxctl export -o file g
        try bxctl chat --session g
        try bxctl rename garden ""
        try bxctl show garden ""
    "#;
    let output = shell(&with_sessions(), "bash", script).unwrap();
    assert_eq!(
        stdout(&output).lines().map(|line| line.split(" -").next().unwrap()).collect::<Vec<_>>(),
        [
            "rename",
            "--html",
            "md json html",
            "aa11 ab22 ac33 garden ae55",
            "aa11 ab22 ac33 ae55",
            "garden",
            "garden",
            // what comes behind is a new name, or nothing
            "-h",
            "-h",
        ],
        "{}",
        stderr(&output)
    );
}

#[test]
fn fish_completes_sessions_with_their_titles() {
    let script = r#"
        source COMPLETIONS
        complete -C "bxctl show a"
        complete -C "bxctl chat --session g"
        complete -C "bxctl ren"
    "#;
    let Some(output) = shell(&with_sessions(), "fish", script) else { return };
    let lines: Vec<&str> = stdout(&output).lines().collect();
    assert_eq!(
        lines,
        [
            "aa11\tdogs",
            "ab22\tdogs",
            "ac33\ttwo $(words)",
            "ae55\tA title␛[2J",
            "garden\tad44",
            "rename\tGive a session a name"
        ]
    );
}

#[test]
fn zsh_completes_each_session_by_those_that_there_are() {
    let output = bxctl().args(["completions", "zsh"]).output().unwrap();
    let script = stdout(&output);
    assert_eq!(script.matches("_bxctl_sessions() {").count(), 1);
    let places = |of: &str| script.lines().filter(|line| line.contains(of)).count();
    assert_eq!(places("session -- Which session:_bxctl_sessions'"), places("session -- Which session:"));
    assert_eq!(places(":SESSION:_bxctl_sessions'"), places(":SESSION:"));
    assert!(places(":SESSION:") > 3 && places("session -- Which session:") > 8);
}

#[test]
fn zsh_takes_the_completions() {
    let checked = "emulate zsh; . COMPLETIONS 2>/dev/null; functions _bxctl_sessions | head -1";
    if let Some(output) = shell(&with_sessions(), "zsh", checked) {
        assert_eq!(stdout(&output), "_bxctl_sessions () {\n");
    }
}

#[test]
fn there_is_a_page_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    for (program, page, title) in [
        (env!("CARGO_BIN_EXE_bxctl"), "bxctl-approve.1", "BXCTL-APPROVE"),
        (env!("CARGO_BIN_EXE_loopd"), "loopd-serve.1", "LOOPD-SERVE"),
    ] {
        let output = Command::new(program)
            .arg("man")
            .arg(dir.path())
            .env("SOURCE_DATE_EPOCH", "86400")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        assert!(
            text.contains(&format!(".TH {title} 1 1970-01-02 \"boxmaker {version}\" boxmaker\n")),
            "{text}"
        );
        // an empty line between breaks is no break, and mandoc warns of it
        assert!(!text.contains(".br\n\n"), "{text}");
    }
    let pages: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    for page in ["bxctl.1", "bxctl-chat.1", "loopd.1", "loopd-check.1"] {
        assert!(pages.iter().any(|name| name == page), "{pages:?}");
    }
    assert!(!pages.iter().any(|name| name == "bxctl-man.1" || name == "bxctl-help.1"), "{pages:?}");
    let lint = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .args(pages.iter().map(|page| dir.path().join(page)))
        .output();
    match lint {
        Ok(lint) => assert!(lint.status.success(), "{}{}", stdout(&lint), stderr(&lint)),
        Err(_) => parts::skip("mandoc is not installed (Debian: apt-get install mandoc)"),
    }
}
