//! `loopd check`: the effective configuration, and all that breaks the promise here, with its remedy.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::statfs::{self, statfs};

use crate::config::{Config, Environment, McpTransport};
use crate::model::{Finding, Level, Server};
use crate::store;

use super::args::Common;
use super::{EXIT_CONFIG, fail};

/// Prints the configuration and the findings. Exit status: 0 when nothing breaks the promise, 1 when
/// something does, 78 when the configuration is wrong.
pub(super) fn check(common: &Common, offline: bool) -> ExitCode {
    let config = match Config::load(common.config.as_deref(), &common.overrides()) {
        Ok(config) => config,
        Err(e) => return fail(EXIT_CONFIG, &e),
    };
    print!("{}", config.to_toml());
    let mut findings: Vec<Finding> =
        config.warnings().into_iter().map(|what| finding(Level::Warn, what, "")).collect();
    if offline {
        return report(&findings);
    }
    findings.extend(reach(&config));
    let programs = config.tools.command.iter().map(|(name, tool)| (format!("command.{name}"), &tool.program));
    let servers = config.tools.mcp.iter().filter_map(|(name, server)| match &server.transport {
        McpTransport::Stdio { command, .. } => Some((format!("mcp.{name}"), command)),
        McpTransport::Http { .. } => None,
    });
    for (name, program) in programs.chain(servers) {
        if nix::unistd::access(program, nix::unistd::AccessFlags::X_OK).is_err() {
            let what = format!("[tools.{name}]: {} is not there, or is no program", program.display());
            findings.push(finding(Level::Bad, what, "correct the path"));
        }
    }
    findings.extend(home(&config.daemon.home));
    match store::Uring::runtime() {
        Err(e) => findings.push(finding(Level::Bad, e.to_string(), "")),
        Ok(runtime) => {
            findings.push(finding(Level::Ok, "io_uring works", ""));
            findings.extend(runtime.block_on(server(&config)));
        }
    }
    report(&findings)
}

fn finding(level: Level, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { level, what: what.into(), remedy: remedy.into() }
}

fn report(findings: &[Finding]) -> ExitCode {
    println!();
    for Finding { level, what, remedy } in findings {
        let mark = match level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Bad => "BAD ",
        };
        println!("# {mark} {what}");
        if !remedy.is_empty() {
            println!("#      remedy: {remedy}");
        }
    }
    let bad = findings.iter().any(|finding| finding.level == Level::Bad);
    if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

async fn server(config: &Config) -> Vec<Finding> {
    let key = match config.model.read_api_key(&Environment::of_process()) {
        Ok(key) => key.map(|key| key.key.expose().to_owned()),
        Err(e) => return vec![finding(Level::Bad, e.to_string(), "")],
    };
    let silence = Duration::from_secs(config.limits.server_silence_seconds);
    let server = Server::new(config.model.url.clone(), key, config.daemon.slot, silence);
    let mut findings = server.check().await;
    if config.model.slot_dir.is_none() {
        let what = "[model] slot_dir is not set: the cache is lost when the model server is restarted or another \
                    session takes the slot, and where the model writes a character of several tokens";
        findings.push(finding(
            Level::Warn,
            what,
            "set [model] slot_dir to the folder that the server was given with --slot-save-path",
        ));
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
        0 if walled => findings.push(finding(
            Level::Bad,
            "this kernel has no Landlock, so tools with `read` or `write` do not start",
            "use a kernel with Landlock (5.13 or newer, landlock among lsm=), or take both keys away",
        )),
        version if walled => findings.push(finding(
            Level::Ok,
            format!("the kernel keeps tools within `read` and `write` (Landlock {version})"),
            "",
        )),
        _ => {}
    }
    let open: Vec<&str> =
        all.iter().filter(|(_, reach)| reach.is_all()).map(|(name, _)| name.as_str()).collect();
    if !open.is_empty() {
        findings.push(finding(
            Level::Warn,
            format!("tools that reach all that loopd's user reaches, sessions included: {}", open.join(", ")),
            "set `read`, `write` and `network` in their tables; docs/security.md says what they keep out",
        ));
    }
    findings
}

/// Whether what the home's file system says it has written stays written.
fn home(home: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    // the nearest folder that is there already tells which file system it will be
    let Some(there) = home.ancestors().find(|path| path.is_dir()) else {
        return vec![finding(
            Level::Bad,
            format!("{} cannot be made: no part of its path is a folder", home.display()),
            "",
        )];
    };
    match statfs(there) {
        Err(e) => findings.push(finding(Level::Bad, format!("{}: {e}", there.display()), "")),
        Ok(stat) => {
            let known = [
                (statfs::EXT4_SUPER_MAGIC, Level::Ok, "ext4", ""),
                (statfs::XFS_SUPER_MAGIC, Level::Ok, "XFS", ""),
                (statfs::BTRFS_SUPER_MAGIC, Level::Ok, "btrfs", ""),
                (
                    statfs::TMPFS_MAGIC,
                    Level::Bad,
                    "tmpfs, which a power cut empties",
                    "put [daemon] home on a disk",
                ),
                (
                    statfs::NFS_SUPER_MAGIC,
                    Level::Warn,
                    "NFS, which was not tested",
                    "put [daemon] home on a local disk",
                ),
                (
                    statfs::FUSE_SUPER_MAGIC,
                    Level::Warn,
                    "a FUSE file system, which was not tested",
                    "put [daemon] home on a local disk",
                ),
                (
                    statfs::OVERLAYFS_SUPER_MAGIC,
                    Level::Warn,
                    "an overlay, whose upper folder decides what a power cut leaves",
                    "put [daemon] home on a disk of its own",
                ),
            ];
            let kind = stat.filesystem_type();
            let (level, name, remedy) = known.into_iter().find(|(magic, ..)| *magic == kind).map_or(
                (Level::Warn, "a file system that was not tested", "put [daemon] home on ext4 or XFS"),
                |(_, level, name, remedy)| (level, name, remedy),
            );
            findings.push(finding(level, format!("home {} is on {name}", home.display()), remedy));
        }
    }
    findings
}
