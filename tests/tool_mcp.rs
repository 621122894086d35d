//! MCP servers that mean no good: each is a real process. Whatever it does, the answer comes in time, in words that a
//! model can act on, and nothing of it is left.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::string_slice,
    clippy::indexing_slicing
)]

mod tool_support;

use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;
use std::time::{Duration, Instant};

use boxmaker::proto::ToolOutcome;
use boxmaker::tool::{
    CallContext, McpPolicies, McpServer, McpSpec, McpTransport, Policy, Prepared, Reach, Registry, Rlimits,
    ToolReply,
};
use tool_support::{Place, gone, memory, runs};

impl Place {
    fn spec(&self, mode: &str) -> McpSpec {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp_hostile.py");
        McpSpec {
            name: "srv".to_owned(),
            transport: McpTransport::Stdio {
                program: "/usr/bin/env".into(),
                args: ["python3", script, mode].map(str::to_owned).to_vec(),
                directory: self.path("work"),
                // python3 may be found by its own path only
                environment: vec!["PATH".to_owned()],
                rlimits: Rlimits::default(),
                reach: Reach::default(),
            },
            policies: McpPolicies { all: Policy::Allow, named: BTreeMap::new() },
            start_seconds: 20,
            seconds: None,
            output_bytes: None,
        }
    }

    fn server(&self, mode: &str) -> Registry {
        registry(self.spec(mode))
    }

    fn starts(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.path("work/starts")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }
}

fn registry(spec: McpSpec) -> Registry {
    Registry::with_servers(Vec::new(), vec![McpServer::new(spec)]).unwrap()
}

async fn call(registry: &Registry, name: &str, arguments: &str, context: CallContext) -> ToolReply {
    registry.refresh(name, arguments).await;
    match registry.prepare(name, arguments) {
        Prepared::Answer(reply) => reply,
        Prepared::Run(run) => run.run(context).await,
    }
}

async fn find(registry: &Registry, query: &str) -> String {
    let arguments = serde_json::json!({ "query": query }).to_string();
    registry.refresh("find_tool", &arguments).await;
    match registry.prepare("find_tool", &arguments) {
        Prepared::Answer(reply) => reply.content,
        Prepared::Run(_) => panic!("find_tool runs nothing"),
    }
}

#[test]
fn a_server_is_started_when_it_is_needed_and_its_tools_are_found_and_called() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("good");
        assert_eq!(place.starts().len(), 0);
        let found = find(&registry, "says what it is told").await;
        assert!(found.starts_with("srv/echo: Says what it is told.\narguments: {"), "{found}");
        assert!(!found.contains("no good"), "{found}");
        let reply = call(&registry, "srv/echo", r#"{"text": "hé\nllo"}"#, place.context(10)).await;
        assert_eq!((reply.outcome, reply.content.as_str()), (ToolOutcome::Ok, "hé\nllo"));
        let arguments = r#"{"name": "srv/fail", "arguments": {}}"#;
        let reply = call(&registry, "call_tool", arguments, place.context(10)).await;
        assert_eq!((reply.outcome, reply.content.as_str()), (ToolOutcome::Error, "no such city"));
        let reply = call(&registry, "srv/odd", "{}", place.context(10)).await;
        assert_eq!(reply.content, "[an image, image/png, about 3 bytes, which cannot be shown]");
        // wrong arguments never reach it, and a wrong name is helped
        let reply = call(&registry, "srv/echo", r#"{"text": 7}"#, place.context(10)).await;
        assert!(reply.content.contains("do not fit srv/echo"), "{}", reply.content);
        let reply = call(&registry, "echo", r#"{"text": "x"}"#, place.context(10)).await;
        assert!(reply.content.contains("Similar tools: srv/echo"), "{}", reply.content);
        let reply = call(&registry, "srv/broken", "{}", place.context(10)).await;
        assert_eq!(reply.outcome, ToolOutcome::Error);
        let long = call(&registry, "srv/long", "{}", place.context(10)).await;
        assert_eq!((long.outcome, long.truncated_bytes), (ToolOutcome::Ok, 95_904));
        assert!(
            long.content.len() < 5000 && long.content.contains("all are in "),
            "{}",
            &long.content[4000..]
        );
        assert_eq!(fs::read(place.path("spill/call-1.out")).unwrap(), vec![b'y'; 100_000]);
        assert_eq!(place.starts().len(), 1, "one process for all calls");
        registry.close().await;
        gone(place.starts()[0]).await;
    });
}

#[test]
fn policies_are_those_of_single_tools_and_a_denied_server_is_never_started() {
    tokio_uring::start(async {
        let place = Place::new();
        let named = BTreeMap::from([("echo".to_owned(), Policy::Deny), ("fail".to_owned(), Policy::Ask)]);
        let policies = McpPolicies { all: Policy::Allow, named };
        let tools = registry(McpSpec { policies, ..place.spec("good") });
        assert!(!find(&tools, "echo says").await.contains("srv/echo"));
        let listed: BTreeMap<_, _> = tools.list().into_iter().collect();
        assert_eq!(
            (listed["srv/echo"], listed["srv/fail"], listed["srv/odd"]),
            (Policy::Deny, Policy::Ask, Policy::Allow)
        );
        let reply = call(&tools, "srv/echo", r#"{"text": "x"}"#, place.context(10)).await;
        assert_eq!(reply.outcome, ToolOutcome::Denied);
        let place = Place::new();
        let policies = McpPolicies { all: Policy::Deny, named: BTreeMap::new() };
        let tools = registry(McpSpec { policies, ..place.spec("good") });
        find(&tools, "").await;
        assert_eq!(place.starts().len(), 0);
    });
}

#[test]
fn a_server_that_crashes_in_the_middle_of_a_call_is_told_and_started_again() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("good");
        let reply = call(&registry, "srv/crash", "{}", place.context(10)).await;
        assert_eq!(reply.outcome, ToolOutcome::Error);
        for part in ["ended in the middle of the call", "exit status 7", "out of cheese", "started again"] {
            assert!(reply.content.contains(part), "{part}: {}", reply.content);
        }
        let begin = Instant::now();
        let reply = call(&registry, "srv/echo", r#"{"text": "back"}"#, place.context(10)).await;
        assert_eq!((reply.outcome, reply.content.as_str()), (ToolOutcome::Ok, "back"));
        assert!(begin.elapsed() >= Duration::from_millis(900), "not at once: {:?}", begin.elapsed());
        // one that keeps crashing is started later and later, and that is told
        for _ in 0..3 {
            call(&registry, "srv/crash", "{}", place.context(10)).await;
        }
        let reply = call(&registry, "srv/crash", "{}", place.context(10)).await;
        assert!(reply.content.contains("started again in "), "{}", reply.content);
        assert!(place.starts().len() <= 5, "{:?}", place.starts());
    });
}

#[test]
fn a_server_that_hangs_at_its_handshake_costs_its_time_limit_and_no_more() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = registry(McpSpec { start_seconds: 1, ..place.spec("hang") });
        let begin = Instant::now();
        let found = find(&registry, "anything").await;
        assert!(begin.elapsed() < Duration::from_secs(4));
        assert!(
            found.contains("Missing now: the MCP server srv cannot be used: it did not finish its handshake within 1 seconds"),
            "{found}"
        );
        let reply = call(&registry, "srv/echo", r#"{"text": "x"}"#, place.context(10)).await;
        assert!(reply.content.contains("\"srv/echo\" cannot be called now"), "{}", reply.content);
    });
}

#[test]
fn a_server_that_dies_at_its_start_is_told_with_its_own_words() {
    tokio_uring::start(async {
        let place = Place::new();
        let found = find(&place.server("die"), "anything").await;
        assert!(found.contains("exit status 3") && found.contains("no database"), "{found}");
        let mut spec = place.spec("good");
        if let McpTransport::Stdio { program, .. } = &mut spec.transport {
            *program = "/nowhere/at/all".into();
        }
        let found = find(&registry(spec), "anything").await;
        assert!(found.contains("/nowhere/at/all: No such file"), "{found}");
    });
}

#[test]
fn garbage_is_survived_in_a_call_and_told_at_the_handshake() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("good");
        let reply = call(&registry, "srv/noise", "{}", place.context(10)).await;
        assert_eq!((reply.outcome, reply.content.as_str()), (ToolOutcome::Ok, "done"));
        let registry = self::registry(McpSpec { start_seconds: 2, ..place.spec("garbage") });
        let found = find(&registry, "anything").await;
        assert!(found.contains("Welcome to the server!"), "{found}");
    });
}

#[test]
fn a_call_that_never_ends_is_given_up_and_a_server_that_hangs_is_ended() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("good");
        find(&registry, "").await;
        let begin = Instant::now();
        let reply = call(&registry, "srv/hang", "{}", place.context(1)).await;
        assert_eq!(reply.outcome, ToolOutcome::TimedOut, "{}", reply.content);
        assert!(begin.elapsed() < Duration::from_secs(6));
        assert!(reply.content.contains("does not answer any more"), "{}", reply.content);
        gone(place.starts()[0]).await;
        let context = place.context(60);
        let cancel = context.cancel.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            cancel.cancel();
        });
        let reply = call(&registry, "srv/hang", "{}", context).await;
        assert_eq!(reply.outcome, ToolOutcome::Interrupted, "{}", reply.content);
    });
}

#[test]
fn the_end_of_a_connection_is_told_once_and_is_not_that_of_the_next_one() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("good");
        find(&registry, "").await;
        // both find out that the server hangs, the second when it has been started again
        let (first, (), ()) = tokio::join!(
            call(&registry, "srv/hang", "{}", place.context(1)),
            async {
                let late = call(&registry, "srv/hang", "{}", place.context(4)).await;
                assert!(late.content.contains("does not answer any more"), "{}", late.content);
                assert_eq!(registry.problems(), [""; 0], "of the one that runs now");
                assert_eq!(place.starts().len(), 2);
            },
            async {
                tokio::time::sleep(Duration::from_millis(3700)).await;
                let reply = call(&registry, "srv/echo", r#"{"text": "back"}"#, place.context(10)).await;
                assert_eq!(reply.content, "back");
            }
        );
        assert_eq!(first.outcome, ToolOutcome::TimedOut);
    });
}

#[test]
fn a_line_of_30_megabytes_ends_the_server_and_is_not_held_in_memory() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("good");
        find(&registry, "").await;
        let before = memory("VmRSS");
        let reply = call(&registry, "srv/flood", "{}", place.context(30)).await;
        assert_eq!(reply.outcome, ToolOutcome::Error);
        assert!(reply.content.contains("a message of more than 8388608 bytes"), "{}", reply.content);
        let grown = memory("VmRSS").saturating_sub(before);
        assert!(grown < 40_000 * 1024, "{grown} bytes more");
        let reply = call(&registry, "srv/echo", r#"{"text": "back"}"#, place.context(10)).await;
        assert_eq!(reply.content, "back");
    });
}

#[test]
fn two_thousand_tools_are_found_in_bounded_answers() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("many");
        let begin = Instant::now();
        let found = find(&registry, "number 1234").await;
        assert!(found.contains("srv/tool_1234") && found.len() < 4200, "{found}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(registry.list().len(), 2000);
        let all = find(&registry, "").await;
        assert!(all.len() < 4200 && all.contains("more; give words"), "{all}");
        let reply = call(&registry, "srv/tool_0007", r#"{"text": "x"}"#, place.context(10)).await;
        assert_eq!(reply.outcome, ToolOutcome::Ok);
    });
}

#[test]
fn a_list_without_an_end_is_cut() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("endless");
        find(&registry, "").await;
        assert!(registry.list().len() <= 10_000);
        assert!(registry.list().len() > 100 || registry.problems()[0].contains("handshake"));
    });
}

#[test]
fn a_changed_list_is_taken_up() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("good");
        let reply = call(&registry, "srv/fresh", "{}", place.context(10)).await;
        assert!(reply.content.contains("there is no tool"), "{}", reply.content);
        call(&registry, "srv/change", "{}", place.context(10)).await;
        let found = find(&registry, "fresh new").await;
        assert!(found.contains("srv/fresh: Is new."), "{found}");
        let reply = call(&registry, "srv/fresh", "{}", place.context(10)).await;
        assert_eq!((reply.outcome, reply.content.as_str()), (ToolOutcome::Ok, "done"));
    });
}

#[test]
fn a_server_leaves_nothing_behind_when_it_is_dropped() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = Rc::new(place.server("good"));
        find(&registry, "").await;
        let pid = place.starts()[0];
        assert!(runs(pid));
        drop(registry);
        gone(pid).await;
    });
}

#[test]
fn a_server_that_asks_and_reads_no_answer_fills_no_memory() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("usual");
        find(&registry, "echo").await;
        let before = memory("VmRSS");
        let asked = call(&registry, "srv/ask", "{}", place.context(4)).await;
        assert_eq!(asked.outcome, ToolOutcome::TimedOut, "{}", asked.content);
        assert!(asked.content.contains("does not answer any more"), "{}", asked.content);
        let grown = memory("VmRSS").saturating_sub(before);
        assert!(grown < 64 << 20, "{grown} bytes");
        let again = call(&registry, "srv/echo", r#"{"text":"hello"}"#, place.context(10)).await;
        assert_eq!(again.content, "hello");
    });
}

#[test]
fn what_a_server_says_in_the_call_of_one_session_is_told_to_no_other() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("usual");
        let secret = r#"{"text":"my secret"}"#;
        call(&registry, "srv/mutter", secret, place.context(10)).await;
        let other = call(&registry, "srv/crash", "{}", place.context(10)).await;
        assert!(other.content.contains("out of cheese"), "{}", other.content);
        assert!(!other.content.contains("secret"), "{}", other.content);

        // one that fails is told what was said in it, and the others only that it failed
        tokio::time::sleep(Duration::from_secs(2)).await;
        call(&registry, "srv/mutter", secret, place.context(10)).await;
        let (hung, crashed) = tokio::join!(
            call(&registry, "srv/hang", "{}", place.context(1)),
            call(&registry, "srv/mutter", secret, place.context(1))
        );
        let told = [hung.content, crashed.content, find(&registry, "").await, registry.problems().join("")];
        assert!(!told.join("").contains("secret"), "{told:?}");
    });
}

#[test]
fn the_crash_of_one_session_is_told_to_others_without_its_words() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("usual");
        let crashed = call(&registry, "srv/crash", "{}", place.context(10)).await;
        assert!(crashed.content.contains("out of cheese"), "{}", crashed.content);
        let problem = registry.problems().join("");
        assert!(problem.contains("exit status 7") && !problem.contains("cheese"), "{problem}");
    });
}

#[test]
fn names_that_cannot_be_used_are_left_out_and_counted_and_long_lists_end() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("names");
        assert_eq!(find(&registry, "").await, "No tools are installed.");
        let place = Place::new();
        let registry = place.server("large");
        let before = memory("VmRSS");
        assert_eq!(find(&registry, "").await, "No tools are installed.");
        let grown = memory("VmRSS").saturating_sub(before);
        assert!(grown < 100 << 20, "{grown} bytes");
        assert!(registry.problems().is_empty(), "{:?}", registry.problems());
    });
}

#[test]
fn what_a_server_says_of_itself_controls_no_terminal() {
    tokio_uring::start(async {
        let place = Place::new();
        let registry = place.server("die");
        find(&registry, "").await;
        let problem = registry.problems().join("");
        assert!(problem.contains("no database\\u{1b}]52"), "{problem:?}");
        assert!(!problem.chars().any(char::is_control), "{problem:?}");
    });
}
