//! Every command of docs/tutorial.md, in order, in a real shell, with a real daemon and model.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::path::Path;
use std::process::Command;

use support::daemon::{Ran, socket_in};
use support::rig::Rig;

/// The blocks of a page that are for a shell.
fn blocks(page: &str) -> Vec<&str> {
    page.split("```sh\n").skip(1).map(|rest| rest.split_once("```").expect("a block has an end").0).collect()
}

#[test]
fn every_command_of_the_tutorial_works() {
    let page = include_str!("../docs/tutorial.md");
    let blocks = blocks(page);
    assert!(blocks.len() >= 10, "the blocks are not found");
    assert_eq!(page.matches("```").count(), 2 * blocks.len(), "a block that no test runs");
    let Some(rig) = Rig::start("completion_tokens = 300") else { return };
    let bin = Path::new(env!("CARGO_BIN_EXE_bxctl")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let desk = tempfile::tempdir().unwrap();
    let mut told = String::new();
    for block in &blocks {
        let mut shell = Command::new("sh");
        shell.args(["-euc", block]).current_dir(desk.path()).env("PATH", &path);
        shell.env("HOME", desk.path()).env("BXCTL_SOCKET", socket_in(rig.dir())).env_remove("XDG_STATE_HOME");
        shell.stdin(std::process::Stdio::null());
        shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let ran = Ran::new(shell, None);
        assert_eq!(ran.code, 0, "{block}\n{ran:?}");
        told.push_str(&ran.out);
        told.push_str(&ran.err);
        if block.contains("--html") {
            for name in ["france.txt", "dogs.md", "dogs.html", "dogs.json"] {
                let text = std::fs::read_to_string(desk.path().join(name)).unwrap();
                assert!(name == "france.txt" || text.contains("Karlchen"), "{name}: {text}");
            }
        }
        if block.contains("usage italy") {
            let rows = rig.usage("italy");
            assert_eq!(rows.len(), 2, "{rows:#?}");
            assert!(rows[1]["cache_n"].as_u64() > Some(0) && rows[1]["lost_n"] == 0, "{rows:#?}");
        }
    }
    for said in
        ["model server  ready", "TITLE", "you: My dog is called Karlchen", "from cache", "no new epoch"]
    {
        assert!(told.contains(said), "{said:?} is not in\n{told}");
    }
    assert_eq!(rig.ctl(&["sessions", "--json"]).json(), serde_json::json!([]));
    assert_eq!(
        std::fs::read_dir(desk.path())
            .unwrap()
            .filter(|e| !e.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'))
            .count(),
        0
    );
}
