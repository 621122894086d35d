//! From the configuration to installed tools.

use std::rc::Rc;

use crate::config::ToolsConfig;
use crate::tool::{Installed, Policy, Registry, RegistryError, Time};

/// The built-in tools and the configured ones.
pub(super) fn registry(config: &ToolsConfig) -> Result<Registry, RegistryError> {
    let installed = vec![Installed { tool: Rc::new(Time), policy: Policy::Allow }];
    for name in config.mcp.keys() {
        log::warn!("[tools.mcp.{name}] is set, but this version of loopd cannot run MCP servers; its tools are not there");
    }
    Registry::new(installed)
}

