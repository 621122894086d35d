//! A real server that compiles while it runs, where that is forbidden, as in loopd's systemd unit.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::string_slice,
    clippy::indexing_slicing
)]

mod support;
mod tool_support;

use std::collections::BTreeMap;
use std::path::Path;

use boxmaker::proto::ToolOutcome;
use boxmaker::tool::{
    McpPolicies, McpServer, McpSpec, McpTransport, Policy, Prepared, Reach, Registry, Rlimits,
};
use nix::libc;
use tool_support::Place;

/// For all of this process and what it starts, for ever; `false` on a kernel that can't (older than 6.3).
fn forbid_generated_code() -> bool {
    const SET: libc::c_int = 65;
    // SAFETY: a system call on numbers
    unsafe { libc::prctl(SET, 1, 0, 0, 0) == 0 }
}

fn everything(place: &Place, servers: &Path, flags: &[&str]) -> Registry {
    let script = servers.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let flags = flags.iter().map(|flag| (*flag).to_owned());
    let transport = McpTransport::Stdio {
        program: servers.join("node/node"),
        args: flags.chain([script.to_str().unwrap().to_owned(), "stdio".to_owned()]).collect(),
        directory: place.path("work"),
        environment: Vec::new(),
        rlimits: Rlimits::default(),
        reach: Reach::default(),
    };
    let spec = McpSpec {
        name: "every".to_owned(),
        transport,
        policies: McpPolicies { all: Policy::Allow, named: BTreeMap::new() },
        start_seconds: 30,
        seconds: None,
        output_bytes: None,
    };
    Registry::with_servers(Vec::new(), vec![McpServer::new(spec)]).unwrap()
}

#[test]
fn node_runs_without_its_compiler_and_says_what_to_do_with_it() {
    let Some(servers) = support::parts::mcp_servers() else { return };
    if !forbid_generated_code() {
        return support::skip_everywhere("this kernel cannot forbid generated code to a process");
    }
    tokio_uring::start(async {
        let place = Place::new();
        let registry = everything(&place, &servers, &["--jitless"]);
        let arguments = r#"{"message":"hello"}"#;
        registry.refresh("every/echo", arguments).await;
        let Prepared::Run(run) = registry.prepare("every/echo", arguments) else {
            panic!("{:?}", registry.problems());
        };
        let reply = run.run(place.context(20)).await;
        assert_eq!(reply.outcome, ToolOutcome::Ok, "{}", reply.content);
        assert!(reply.content.contains("hello"), "{}", reply.content);
        registry.close().await;

        let registry = everything(&place, &servers, &[]);
        registry.refresh("find_tool", "{}").await;
        let problem = registry.problems().join("");
        assert!(problem.contains("put \"--jitless\" first"), "{problem}");
    });
}
