//! The tools: whether their programs are there, and what keeps them within their walls.

use std::path::Path;

use nix::unistd::{AccessFlags, access};

use crate::config::{Config, McpTransport, Reach};
use crate::proto::Finding;

/// What loopd starts for a tool or a server of tools.
struct Started<'a> {
    /// `command` or `mcp`.
    kind: &'static str,
    name: &'a str,
    program: &'a Path,
    reach: &'a Reach,
}

fn started(config: &Config) -> Vec<Started<'_>> {
    let commands = config.tools.command.iter().map(|(name, tool)| Started {
        kind: "command",
        name,
        program: &tool.program,
        reach: &tool.reach,
    });
    let servers = config.tools.mcp.iter().filter_map(|(name, server)| match &server.transport {
        McpTransport::Stdio { command, reach, .. } => {
            Some(Started { kind: "mcp", name, program: command, reach })
        }
        McpTransport::Http { .. } => None,
    });
    commands.chain(servers).collect()
}

/// What is said of the tools.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let all = started(config);
    let mut findings = reach(&all);
    for Started { kind, name, program, .. } in all {
        if access(program, AccessFlags::X_OK).is_err() {
            let what = format!("[tools.{kind}.{name}]: {} is not there, or is no program", program.display());
            findings.push(Finding::bad(what, "correct the path"));
        }
    }
    findings
}

/// Whether the kernel keeps the tools within their walls, and which have none.
fn reach(all: &[Started<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let walled = all.iter().any(|tool| tool.reach.read.is_some() || tool.reach.write.is_some());
    match crate::tool::landlock_version() {
        0 if walled => findings.push(Finding::bad(
            "this kernel has no Landlock, so tools with `read` or `write` do not start",
            "use a kernel with Landlock (5.13 or newer, landlock among lsm=), or take both keys away",
        )),
        version if walled => findings.push(Finding::ok(format!(
            "the kernel keeps tools within `read` and `write` (Landlock {version})"
        ))),
        _ => {}
    }
    let open: Vec<&str> = all.iter().filter(|tool| tool.reach.is_all()).map(|tool| tool.name).collect();
    if !open.is_empty() {
        findings.push(Finding::warn(
            format!("tools that reach all that loopd's user reaches, sessions included: {}", open.join(", ")),
            "set `read`, `write` and `network` in their tables; docs/security.md says what they keep out",
        ));
    }
    findings
}
