//! From the configuration to installed tools.

use std::rc::Rc;

use crate::config::{self, ToolsConfig};
use crate::tool::{CommandSpec, CommandTool, Installed, Policy, Registry, RegistryError, Time};

/// The built-in tools and the configured ones.
pub(super) fn registry(config: &ToolsConfig) -> Result<Registry, RegistryError> {
    let mut installed = vec![Installed { tool: Rc::new(Time), policy: Policy::Allow }];
    for (name, tool) in &config.command {
        let spec = CommandSpec {
            name: name.clone(),
            program: tool.program.clone(),
            args: tool.args.clone(),
            description: tool.description.clone(),
            schema: tool.schema.value().clone(),
            seconds: tool.seconds,
            output_bytes: tool.output_bytes,
            directory: tool.directory.clone(),
            environment: tool.environment.clone(),
        };
        installed.push(Installed { tool: Rc::new(CommandTool::new(spec)), policy: policy(tool.policy) });
    }
    for name in config.mcp.keys() {
        log::warn!("[tools.mcp.{name}] is set, but this version of loopd cannot run MCP servers; its tools are not there");
    }
    Registry::new(installed)
}

fn policy(policy: config::Policy) -> Policy {
    match policy {
        config::Policy::Allow => Policy::Allow,
        config::Policy::Ask => Policy::Ask,
        config::Policy::Deny => Policy::Deny,
    }
}
