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
    args: &'a [String],
    reach: &'a Reach,
}

fn started(config: &Config) -> Vec<Started<'_>> {
    let commands = config.tools.command.iter().map(|(name, tool)| Started {
        kind: "command",
        name,
        program: &tool.program,
        args: &tool.args,
        reach: &tool.reach,
    });
    let servers = config.tools.mcp.iter().filter_map(|(name, server)| match &server.transport {
        McpTransport::Stdio { command, args, reach, .. } => {
            Some(Started { kind: "mcp", name, program: command, args, reach })
        }
        McpTransport::Http { .. } => None,
    });
    commands.chain(servers).collect()
}

/// What is said of the tools.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let all = started(config);
    let mut findings = reach(&all);
    findings.extend(all.iter().filter_map(compiles));
    for Started { kind, name, program, .. } in all {
        if access(program, AccessFlags::X_OK).is_err() {
            let what = format!("[tools.{kind}.{name}]: {} is not there, or is no program", program.display());
            findings.push(Finding::bad(what, "correct the path"));
        }
    }
    findings
}

/// Programs that compile while they run, and whose answer to being forbidden it is to die.
const COMPILING: [&str; 8] = ["bun", "deno", "dotnet", "java", "luajit", "node", "nodejs", "npx"];

/// What loopd's own unit does to a program that compiles while it runs. Whether loopd runs in that unit is not known here.
fn compiles(tool: &Started<'_>) -> Option<Finding> {
    let Started { kind, name, program, args, .. } = tool;
    let file = program.file_name()?.to_str()?;
    if !COMPILING.contains(&file) || args.iter().any(|arg| arg == "--jitless") {
        return None;
    }
    let remedy = match file {
        "node" | "nodejs" => {
            "put \"--jitless\" first into its `args`; a server that uses fetch or WebAssembly needs a unit of its own, and `url`"
        }
        "npx" => "start `node` itself, with \"--jitless\" first in its `args`",
        _ => "give it a unit of its own and reach it by `url`, or set MemoryDenyWriteExecute=no in loopd's",
    };
    let what = format!(
        "[tools.{kind}.{name}]: {file} compiles while it runs, and dies in loopd's systemd unit, which forbids it (MemoryDenyWriteExecute)"
    );
    Some(Finding::warn(what, remedy))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_compiles_is_told_unless_it_is_kept_from_it() {
        let told = |program: &str, args: &[&str]| {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            let reach = Reach::default();
            let tool =
                Started { kind: "mcp", name: "x", program: Path::new(program), args: &args, reach: &reach };
            compiles(&tool).map(|finding| format!("{finding:?}"))
        };
        let node = told("/usr/bin/node", &["server.js"]).unwrap();
        assert!(node.contains("[tools.mcp.x]: node compiles") && node.contains("--jitless"), "{node}");
        assert!(told("/usr/bin/java", &["-jar", "x"]).unwrap().contains("MemoryDenyWriteExecute=no"));
        assert_eq!(told("/usr/bin/node", &["--jitless", "server.js"]), None);
        assert_eq!(told("/usr/bin/python3", &["server.py"]), None);
    }
}
