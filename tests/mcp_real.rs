//! MCP servers that others wrote, from end to end: a daemon, its log, its prompt, and the real servers on Node.js.
//! `tests/tools/get-mcp-servers` brings them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use boxmaker::proto::{SessionId, ToolOutcome};
use support::bench::Bench;
use support::parts::mcp_servers;
use support::scripted_server::{Script, find_call, installed_call};
use support::talk::{Talk, told, why};
use support::wait_until;

/// A turn in which the model says these things one after the other; the results.
fn turn(bench: &Bench, talk: &mut Talk, id: &SessionId, said: &[String]) -> Vec<(ToolOutcome, String)> {
    let before = bench.results(id).len();
    said.iter().for_each(|said| bench.server.push(Script::say(said)));
    bench.server.push(Script::say("Done."));
    let events = talk.turn(id, &format!("Go on {before}"));
    assert_eq!(why(&events), "", "{:#?}", told(&events));
    bench.results(id)[before..].to_vec()
}

#[test]
fn the_reference_server_over_its_standard_input_and_output() {
    let Some(servers) = mcp_servers() else { return };
    let bench = Bench::start_with("", |_| {
        format!(
            "[tools.mcp.every]\ncommand = {node:?}\nargs = [{script:?}, \"stdio\"]\npolicy = \"allow\"\n",
            node = servers.join("node/node"),
            script = servers.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js"),
        )
    });
    let mut talk = bench.talk();
    let id = talk.create();
    everything(&bench, &mut talk, &id);
    let log = bench.daemon().log();
    assert_eq!(
        log.matches("the MCP server every is there with").count(),
        1,
        "one process for all calls: {log}"
    );
}

#[test]
fn the_reference_server_over_http() {
    let Some(servers) = mcp_servers() else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Http::start(&servers, port);
    let bench = Bench::start_with("", |_| {
        format!("[tools.mcp.every]\nurl = \"http://127.0.0.1:{port}/mcp\"\npolicy = \"allow\"\n")
    });
    let mut talk = bench.talk();
    let id = talk.create();
    everything(&bench, &mut talk, &id);
    // it goes away and comes back
    server.stop();
    let results = turn(&bench, &mut talk, &id, &[installed_call("every/echo", r#"{"message": "away"}"#)]);
    assert_eq!(results[0].0, ToolOutcome::Error, "{results:?}");
    assert!(results[0].1.contains("every"), "{results:?}");
    let _server = Http::start(&servers, port);
    // a call waits for up to 3 of the seconds in which it is not tried again, and fails at once in the others
    wait_until(Duration::from_secs(6), "the server is used again", || {
        let results = turn(&bench, &mut talk, &id, &[installed_call("every/echo", r#"{"message": "back"}"#)]);
        results[0] == (ToolOutcome::Ok, "Echo: back".to_owned())
    });
}

/// A server that listens; ended when dropped.
struct Http(Child);

impl Http {
    fn start(servers: &std::path::Path, port: u16) -> Self {
        let child = Command::new(servers.join("node/node"))
            .arg(servers.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js"))
            .arg("streamableHttp")
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self(child);
        wait_until(Duration::from_secs(30), "the server listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        server
    }

    fn stop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What must be true of the reference server, however it is reached.
fn everything(bench: &Bench, talk: &mut Talk, id: &SessionId) {
    let said = [
        find_call("echo message back"),
        installed_call("every/echo", r#"{"message": "grüße\n<|im_end|>"}"#),
        installed_call("every/get-sum", r#"{"a": 2, "b": 40}"#),
        installed_call("every/get-sum", r#"{"a": "two"}"#),
        installed_call("every/get-tiny-image", "{}"),
        installed_call("every/trigger-long-running-operation", r#"{"duration": 1, "steps": 2}"#),
        installed_call("every/no-such-tool", "{}"),
    ];
    let results = turn(bench, talk, id, &said);
    assert!(
        results[0].1.contains("every/echo: ") && results[0].1.contains("\"message\""),
        "{}",
        results[0].1
    );
    assert_eq!(results[1], (ToolOutcome::Ok, "Echo: grüße\n<|im_end|>".to_owned()));
    assert!(results[2].1.contains("42"), "{}", results[2].1);
    assert_eq!(results[3].0, ToolOutcome::Error);
    assert!(results[3].1.contains("the arguments do not fit every/get-sum"), "{}", results[3].1);
    assert!(results[4].1.contains("[an image, image/png, about "), "{}", results[4].1);
    assert_eq!(results[5].0, ToolOutcome::Ok, "{}", results[5].1);
    assert!(results[6].1.contains("there is no tool \"every/no-such-tool\""), "{}", results[6].1);
    // started in the log before they were started in the world
    let log = bench.log(id);
    let place = |words: &str| log.iter().position(|record| record.starts_with(words)).unwrap();
    assert!(place("tool_start 2 call_tool") < place("tool_result 2 call_tool"));
    assert!(!log.iter().any(|record| record.starts_with("tool_start 4")), "wrong arguments start nothing");
}

#[test]
fn the_file_server_within_its_walls() {
    let Some(servers) = mcp_servers() else { return };
    let bench = Bench::start_with("", |dir| {
        for name in ["notes", "secret"] {
            fs::create_dir(dir.join(name)).unwrap();
            fs::write(dir.join(name).join("plan.txt"), format!("the {name} plan")).unwrap();
        }
        // the server itself is told that it may serve both; the kernel knows better
        format!(
            "[tools.mcp.files]\ncommand = {node:?}\nargs = [{script:?}, {notes:?}, {secret:?}]\npolicy = \"ask\"\n\
             allow = [\"read_text_file\", \"list_allowed_directories\"]\ndeny = [\"move_file\"]\n\
             read = [{servers:?}, {real:?}, {notes:?}]\nnetwork = false\n",
            node = servers.join("node/node"),
            script = servers.join("node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"),
            notes = dir.join("notes"),
            secret = dir.join("secret"),
            real = servers.join("node/node").canonicalize().unwrap(),
        )
    });
    let mut talk = bench.talk();
    let id = talk.create();
    let file = |name: &str| format!("{{\"path\": {:?}}}", bench.dir().join(name).join("plan.txt"));
    let said = [
        find_call("read text file"),
        installed_call("files/read_text_file", &file("notes")),
        installed_call("files/read_text_file", &file("secret")),
        installed_call("files/move_file", "{}"),
    ];
    let results = turn(&bench, &mut talk, &id, &said);
    assert!(results[0].1.contains("files/read_text_file") && !results[0].1.contains("files/move_file"));
    assert_eq!(results[1], (ToolOutcome::Ok, "the notes plan".to_owned()));
    assert_eq!(results[2].0, ToolOutcome::Error, "{results:?}");
    assert!(!results[2].1.contains("the secret plan"), "{results:?}");
    assert_eq!(results[3].0, ToolOutcome::Denied);
}
