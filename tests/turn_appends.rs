//! What of a turn with tools is made durable together: one append wherever nothing is told, started or asked between.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::path::Path;

use boxmaker::proto::{Decision, Reply, SessionId};
use support::bench::{Bench, begun_with};
use support::scripted_server::{Script, find_call, installed_call};
use support::talk::{Talk, told, why};

/// Tools that write a line into a file each time they run: one that may, one that must be allowed, one that may not;
/// one that says much; and a server of tools.
fn tools(dir: &Path) -> String {
    let of = |name: &str, policy: &str, does: &str| {
        format!(
            "[tools.command.{name}]\nprogram = \"/bin/sh\"\nargs = [\"-c\", \"echo {name} >> {}; {does}\"]\n\
             description = \"Notes.\"\npolicy = \"{policy}\"\nschema = {{ type = \"object\" }}\n\n",
            dir.join("notes").display()
        )
    };
    let server = format!(
        "[tools.mcp.srv]\ncommand = \"/usr/bin/env\"\nargs = [\"python3\", {:?}, \"good\"]\n\
         environment = [\"PATH\"]\npolicy = \"allow\"\n",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp_hostile.py")
    );
    let flood = "head -c 100000 /dev/zero | tr '\\\\000' x";
    [
        of("may", "allow", ":"),
        of("must", "ask", ":"),
        of("never", "deny", ":"),
        of("flood", "allow", flood),
        server,
    ]
    .concat()
}

fn begun(limits: &str) -> (Bench, Talk, SessionId) {
    begun_with(limits, tools)
}

/// What ran.
fn ran(bench: &Bench) -> Vec<String> {
    let text = fs::read_to_string(bench.dir().join("notes")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn calls(names: &[&str]) -> String {
    let calls: Vec<_> =
        names.iter().enumerate().map(|(n, name)| installed_call(name, &format!("{{\"n\": {n}}}"))).collect();
    calls.join("\n")
}

/// The appends behind the session's first, each as its records' kinds.
fn appends(bench: &Bench, id: &SessionId) -> Vec<String> {
    bench.appends(id)[1..].iter().map(|kinds| kinds.join(" ")).collect()
}

#[test]
fn a_turn_with_one_tool_is_four_appends() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::say(&calls(&["may"])));
    let events = talk.turn(&id, "Hello");
    assert_eq!(why(&events), "");
    assert_eq!(
        appends(&bench, &id),
        [
            "user_message",
            "assistant_message usage tool_start",
            "tool_result",
            "assistant_message usage turn_end"
        ]
    );
    assert_eq!(ran(&bench), ["may"]);
}

#[test]
fn a_result_and_the_next_start_are_one_append() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::say(&calls(&["may", "may", "may"])));
    let events = talk.turn(&id, "Hello");
    assert_eq!(
        appends(&bench, &id)[1..],
        [
            "assistant_message usage tool_start",
            "tool_result tool_start",
            "tool_result tool_start",
            "tool_result",
            "assistant_message usage turn_end"
        ]
    );
    assert_eq!(ran(&bench).len(), 3);
    let told = told(&events);
    let told: Vec<_> = told.iter().filter_map(|told| told.split(' ').next()).collect();
    assert_eq!(
        told[..8],
        [
            "turn_start",
            "prefill",
            "usage",
            "tool_call",
            "tool_call",
            "tool_call",
            "tool_result",
            "tool_result"
        ],
        "what was told, and in this order"
    );
}

#[test]
fn what_needs_nothing_but_the_log_is_appended_with_what_asked_for_it() {
    let (bench, mut talk, id) = begun("");
    let said = [calls(&["never", "nope"]), calls(&["may"]), calls(&["never"])].join("\n");
    bench.server.push(Script::say(&said));
    bench.server.push(Script::say(&calls(&["never"])));
    let events = talk.turn(&id, "Hello");
    assert_eq!(why(&events), "");
    // the name that nobody knows may be a server's tool, so the servers are asked before it is answered
    assert_eq!(
        appends(&bench, &id)[1..],
        [
            "assistant_message usage tool_result",
            "tool_result tool_start",
            "tool_result tool_result",
            "assistant_message usage tool_result",
            "assistant_message usage turn_end"
        ]
    );
    assert_eq!(ran(&bench), ["may"]);
}

#[test]
fn a_person_is_asked_when_all_before_is_durable() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::say(&calls(&["may", "must", "must", "may"])));
    talk.send(&id, "Hello");
    talk.until_asked(&id);
    let first = ["user_message", "assistant_message usage tool_start", "tool_result"];
    assert_eq!(appends(&bench, &id), first);
    assert_eq!(talk.approve(&id, 2, Decision::Allow), Ok(Reply::Done {}));
    talk.until_asked(&id);
    let allowed = ["approval tool_start", "tool_result"];
    assert_eq!(appends(&bench, &id)[3..], allowed);
    assert_eq!(talk.approve(&id, 3, Decision::Deny), Ok(Reply::Done {}));
    // told when it is durable, and with it all that follows from it at once
    assert_eq!(appends(&bench, &id)[5], "approval tool_result tool_start");
    let events = talk.until_end(&id);
    assert_eq!(
        told(&events)[..3],
        ["approval 3 deny", "tool_result 3 call_tool denied", "tool_result 4 call_tool ok"]
    );
    assert_eq!(appends(&bench, &id)[6..], ["tool_result", "assistant_message usage turn_end"]);
    assert_eq!(ran(&bench), ["may", "must", "may"]);
}

#[test]
fn a_server_of_tools_is_started_when_what_needs_it_is_durable() {
    let (bench, mut talk, id) = begun("");
    bench.server.push(Script::say(&installed_call("srv/echo", r#"{"text": "a"}"#)));
    bench.server.push(Script::say(&installed_call("srv/echo", r#"{"text": "b"}"#)));
    bench.server.push(Script::say(&installed_call("srv/change", "{}")));
    bench.server.push(Script::say(&find_call("fresh")));
    bench.server.push(Script::say(&find_call("fresh")));
    let events = talk.turn(&id, "Hello");
    assert_eq!(why(&events), "", "{:#?}", told(&events));
    let results = bench.results(&id);
    assert!(results[0].1 == "a" && results[1].1 == "b", "{results:?}");
    assert!(results[3].1.contains("srv/fresh"), "{results:?}");
    assert_eq!(
        appends(&bench, &id)[1..],
        [
            // it has to be started
            "assistant_message usage",
            "tool_start",
            "tool_result",
            // it is there
            "assistant_message usage tool_start",
            "tool_result",
            "assistant_message usage tool_start",
            "tool_result",
            // it has said that its list is another, so it is asked
            "assistant_message usage",
            "tool_start tool_result",
            "assistant_message usage tool_start tool_result",
            "assistant_message usage turn_end"
        ]
    );
}

#[test]
fn a_tool_whose_start_cannot_be_appended_does_not_run() {
    let limits = "record_bytes = 65536\ntool_output_bytes = 200000";
    // with the answer that asked for it
    let (bench, mut talk, id) = begun(limits);
    let long = Script::new().progress().token(&"y".repeat(100_000), 3 + 0x79).text(&calls(&["may"])).eog();
    bench.server.push(long);
    let events = talk.turn(&id, "Hello");
    assert!(why(&events).contains("record_bytes"), "{}", why(&events));
    assert_eq!(appends(&bench, &id), ["user_message", "turn_end"]);
    assert!(!told(&events).iter().any(|told| told.starts_with("tool_call")), "{:#?}", told(&events));
    // with the result before
    bench.server.push(Script::say(&calls(&["flood", "may"])));
    let events = talk.turn(&id, "Again");
    assert!(why(&events).contains("record_bytes"), "{}", why(&events));
    assert_eq!(
        appends(&bench, &id)[2..],
        ["user_message", "assistant_message usage tool_start", "tool_result tool_result turn_end"]
    );
    let log = bench.log(&id);
    assert_eq!(
        log[log.len() - 3..],
        ["tool_result 1 call_tool interrupted", "tool_result 2 call_tool error", "turn_end 2 failed"]
    );
    assert_eq!(ran(&bench), ["flood"]);
}

#[test]
fn a_turn_that_a_limit_ends_has_its_end_with_its_last_results() {
    let (bench, mut talk, id) = begun("turn_tool_calls = 1");
    bench.server.push(Script::say(&calls(&["may", "may", "may"])));
    let events = talk.turn(&id, "Hello");
    assert_eq!(told(&events).last().unwrap(), "turn_end limit");
    assert_eq!(
        appends(&bench, &id)[1..],
        ["assistant_message usage tool_start", "tool_result tool_result tool_result turn_end"]
    );
    assert_eq!(ran(&bench), ["may"]);
}
