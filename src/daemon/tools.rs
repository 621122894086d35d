//! From the configuration to installed tools.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::rc::Rc;

use crate::config::{self, ToolsConfig};
use crate::tool::{CommandSpec, CommandTool, Installed, Policy, ReadSession, Registry, Rlimits, Time, Tool};

/// The built-in tools and the configured ones. A command without a directory of its own works in one below
/// `work`.
pub(super) fn registry(config: &ToolsConfig, work: &Path) -> Result<Registry, Box<dyn std::error::Error>> {
    if !config.command.is_empty() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(work)
            .map_err(|e| format!("{}: {e}", work.display()))?;
    }
    let built_in: [Rc<dyn Tool>; 2] = [Rc::new(Time), Rc::new(ReadSession)];
    let mut installed: Vec<Installed> =
        built_in.into_iter().map(|tool| Installed { tool, policy: Policy::Allow }).collect();
    for (name, tool) in &config.command {
        let spec = CommandSpec {
            name: name.clone(),
            program: tool.program.clone(),
            args: tool.args.clone(),
            description: tool.description.clone(),
            schema: tool.schema.value().clone(),
            seconds: tool.seconds,
            output_bytes: tool.output_bytes,
            spill_bytes: None,
            directory: tool.directory.clone().unwrap_or_else(|| work.join(name)),
            environment: tool.environment.clone(),
            rlimits: Rlimits::default(),
        };
        installed.push(Installed { tool: Rc::new(CommandTool::new(spec)), policy: policy(tool.policy) });
    }
    for warning in warnings(config) {
        log::warn!("{warning}");
    }
    Ok(Registry::new(installed)?)
}

/// What is configured, but does not do in this version what its words say.
pub(super) fn warnings(config: &ToolsConfig) -> Vec<String> {
    let servers = config.mcp.keys().map(|name| {
        format!("[tools.mcp.{name}]: this version cannot run MCP servers, so its tools are not there")
    });
    servers.collect()
}

fn policy(policy: config::Policy) -> Policy {
    match policy {
        config::Policy::Allow => Policy::Allow,
        config::Policy::Ask => Policy::Ask,
        config::Policy::Deny => Policy::Deny,
    }
}
