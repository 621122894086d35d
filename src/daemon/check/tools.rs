//! The tools: whether their programs are there, and what keeps them within their walls.

use nix::unistd::{AccessFlags, access};

use crate::config::{Config, McpTransport};
use crate::proto::Finding;

/// What is said of the tools.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = reach(config);
    let programs = config.tools.command.iter().map(|(name, tool)| (format!("command.{name}"), &tool.program));
    let servers = config.tools.mcp.iter().filter_map(|(name, server)| match &server.transport {
        McpTransport::Stdio { command, .. } => Some((format!("mcp.{name}"), command)),
        McpTransport::Http { .. } => None,
    });
    for (name, program) in programs.chain(servers) {
        if access(program, AccessFlags::X_OK).is_err() {
            let what = format!("[tools.{name}]: {} is not there, or is no program", program.display());
            findings.push(Finding::bad(what, "correct the path"));
        }
    }
    findings
}

/// Whether the kernel keeps the tools within their walls, and which have none.
fn reach(config: &Config) -> Vec<Finding> {
    let commands = config.tools.command.iter().map(|(name, tool)| (name, &tool.reach));
    let servers = config.tools.mcp.iter().filter_map(|(name, server)| match &server.transport {
        McpTransport::Stdio { reach, .. } => Some((name, reach)),
        McpTransport::Http { .. } => None,
    });
    let all: Vec<_> = commands.chain(servers).collect();
    let mut findings = Vec::new();
    let walled = all.iter().any(|(_, reach)| reach.read.is_some() || reach.write.is_some());
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
    let open: Vec<&str> =
        all.iter().filter(|(_, reach)| reach.is_all()).map(|(name, _)| name.as_str()).collect();
    if !open.is_empty() {
        findings.push(Finding::warn(
            format!("tools that reach all that loopd's user reaches, sessions included: {}", open.join(", ")),
            "set `read`, `write` and `network` in their tables; docs/security.md says what they keep out",
        ));
    }
    findings
}
