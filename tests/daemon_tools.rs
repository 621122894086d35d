//! `loopd tools`, beside a running daemon and without one; and the prompt, whatever tools there are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;

use serde_json::{Value, json};
use support::bench::Bench;
use support::daemon::{Ran, loopd};
use support::scripted_server::{Script, find_call};

fn hostile() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp_hostile.py")
}

fn tables() -> String {
    format!(
        "[tools.command.shout]\nprogram = \"/bin/sh\"\nargs = [\"-c\", \"tr a-z A-Z; printf '\\\\033[2J'\"]\n\
         description = \"Says it loudly.\"\npolicy = \"ask\"\n\
         schema = {{ type = \"object\", properties = {{ text = {{ type = \"string\" }} }}, required = [\"text\"] }}\n\n\
         [tools.command.never]\nprogram = \"/bin/true\"\ndescription = \"Is not run.\"\npolicy = \"deny\"\n\n\
         [tools.mcp.srv]\ncommand = \"/usr/bin/env\"\nargs = [\"python3\", {script:?}, \"good\"]\n\
         environment = [\"PATH\"]\npolicy = \"allow\"\nask = [\"fail\"]\n",
        script = hostile(),
    )
}

/// `loopd tools` with the bench's configuration.
fn tools(bench: &Bench, arguments: &[&str]) -> Ran {
    Ran::new(loopd(bench.dir(), "tools", arguments), None)
}

fn check(bench: &Bench) {
    let all = tools(bench, &["--json"]).json();
    let of = |name: &str| {
        let all = all.as_array().unwrap();
        all.iter().find(|tool| tool["name"] == name).cloned().unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!(of("shout"), json!({"name": "shout", "policy": "ask", "description": "Says it loudly."}));
    assert_eq!((&of("never")["policy"], &of("time")["policy"]), (&json!("deny"), &json!("allow")));
    assert_eq!((&of("srv/echo")["policy"], &of("srv/fail")["policy"]), (&json!("allow"), &json!("ask")));
    let list = tools(bench, &[]);
    assert!(list.out.contains("srv/echo") && list.out.contains("  ask    Says it loudly."), "{list:?}");

    let one = tools(bench, &["srv/echo"]);
    assert_eq!(one.code, 0, "{one:?}");
    assert!(
        one.out.starts_with("srv/echo: Says what it is told.\npolicy: allow") && one.out.contains("\"text\""),
        "{one:?}"
    );

    let tried = tools(bench, &["shout", r#"{"text": "hé"}"#]);
    assert_eq!((tried.code, tried.out.as_str()), (0, "{\"TEXT\": \"Hé\"}\n\u{1b}[2J\n"), "{tried:?}");
    assert!(tried.err.contains("policy: ask (a call of the model waits for a person)"), "{tried:?}");
    let tried = tools(bench, &["srv/echo", r#"{"text": "hé"}"#, "--json"]).json();
    assert_eq!((&tried["outcome"], &tried["content"]), (&json!("ok"), &json!("hé")));
    let failed = tools(bench, &["srv/fail", "{}"]);
    assert_eq!((failed.code, failed.out.as_str()), (1, "no such city\n"), "{failed:?}");
    let wrong = tools(bench, &["srv/echo", r#"{"text": 7}"#]);
    assert!(wrong.code == 1 && wrong.out.contains("do not fit srv/echo"), "{wrong:?}");
    let denied = tools(bench, &["never", "{}"]);
    assert!(denied.code == 1 && denied.out.contains("denied by the configuration"), "{denied:?}");
    let unknown = tools(bench, &["nope"]);
    assert!(unknown.code == 1 && unknown.err.contains("there is no tool \"nope\""), "{unknown:?}");
}

#[test]
fn tools_are_listed_described_and_tried_with_a_daemon_and_without() {
    let mut bench = Bench::start_with("", |_| tables());
    check(&bench);
    bench.kill_daemon();
    check(&bench);
}

#[test]
fn a_server_that_cannot_be_used_is_told() {
    let bench = Bench::start_with("", |_| {
        "[tools.mcp.gone]\ncommand = \"/no/such/server\"\npolicy = \"allow\"\n".to_owned()
    });
    let list = tools(&bench, &[]);
    assert!(
        list.code == 1 && list.out.contains("\ntime ") && list.err.contains("/no/such/server"),
        "{list:?}"
    );
}

/// Tools by number, so that each run of the daemon has others, in another order.
fn some_tools(run: usize) -> String {
    let mut tables: Vec<String> = (0..6)
        .filter(|n| !(run * 7 + n * 3).is_multiple_of(5))
        .map(|n| {
            format!(
                "[tools.command.tool{n}]\nprogram = \"/bin/true\"\ndescription = \"Number {n} of run {run}.\"\n\
                 policy = \"{}\"\n",
                ["allow", "ask", "deny"][(run + n) % 3]
            )
        })
        .collect();
    tables.rotate_left(run % 4);
    if run % 3 == 1 {
        tables.push(format!(
            "[tools.mcp.srv]\ncommand = \"/usr/bin/env\"\nargs = [\"python3\", {:?}, \"good\"]\n\
             environment = [\"PATH\"]\npolicy = \"allow\"\n",
            hostile()
        ));
    }
    tables.join("\n")
}

/// The prompt of each request begins with the whole prompt before it, and its head is the same in a new session: the
/// bench checks the first for every session when it goes; here both are looked at byte by byte.
#[test]
fn the_prompt_is_the_same_over_20_restarts_with_other_tools_each_time() {
    let mut bench = Bench::start_with("", |_| String::new());
    let config = bench.dir().join("loopd.toml");
    let plain = fs::read_to_string(&config).unwrap();
    let id = bench.talk().create();
    let mut heads: Vec<Value> = Vec::new();
    for run in 0..20 {
        bench.kill_daemon();
        fs::write(&config, format!("{plain}\n{}", some_tools(run))).unwrap();
        bench.start_daemon();
        let mut talk = bench.talk();
        talk.attach(&id, None);
        if run % 3 == 1 {
            // with the servers' tools looked at
            bench.server.push(Script::say(&find_call("says")));
        }
        let differs = match talk.ask(boxmaker::proto::Request::Open { session: id.clone() }).unwrap() {
            boxmaker::proto::Reply::Session { differs, .. } => differs,
            other => panic!("{other:?}"),
        };
        assert_eq!(differs, Vec::<String>::new(), "tools are no part of what a session is frozen with");
        talk.turn(&id, &format!("Turn {run}"));
        let fresh = talk.create();
        talk.turn(&fresh, &format!("Fresh {run}"));
        heads.push(json!(bench.baseline(&fresh).framing.head.0));
    }
    assert!(bench.results(&id).iter().any(|(_, content)| content.contains("srv/echo")));
    let own = json!(bench.baseline(&id).framing.head.0);
    assert!(heads.iter().all(|head| *head == own), "the head is a constant");
    let prompts = bench.prompt_ids(&id);
    assert_eq!(prompts.len(), 20 + 7);
    for pair in prompts.windows(2) {
        assert!(pair[1].starts_with(&pair[0]));
    }
}
