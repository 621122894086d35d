//! From the configuration to installed tools.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::rc::Rc;

use crate::config::{self, Config};
use crate::tool::{
    CommandSpec, CommandTool, Installed, McpPolicies, McpServer, McpSpec, McpTransport, Policy, Reach,
    ReadSession, Registry, Rlimits, Time, Tool,
};

/// The built-in tools and the configured ones. What has no directory of its own works in one below the home.
pub(super) fn registry(config: &Config) -> Result<Registry, Box<dyn std::error::Error>> {
    let (tools, work) = (&config.tools, config.daemon.home.join("tools"));
    if !(tools.command.is_empty() && tools.mcp.is_empty()) {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&work)
            .map_err(|e| format!("{}: {e}", work.display()))?;
    }
    let built_in: [Rc<dyn Tool>; 2] = [Rc::new(Time), Rc::new(ReadSession)];
    let mut installed: Vec<Installed> =
        built_in.into_iter().map(|tool| Installed { tool, policy: Policy::Allow }).collect();
    for (name, tool) in &tools.command {
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
            reach: reach(&tool.reach),
        };
        installed.push(Installed { tool: Rc::new(CommandTool::new(spec)), policy: policy(tool.policy) });
    }
    let start_seconds = config.limits.mcp_start_seconds;
    let servers =
        tools.mcp.iter().map(|(name, server)| McpServer::new(spec(name, server, &work, start_seconds)));
    Ok(Registry::with_servers(installed, servers.collect())?)
}

fn spec(name: &str, server: &config::McpServer, work: &Path, start_seconds: u64) -> McpSpec {
    let transport = match &server.transport {
        config::McpTransport::Stdio { command, args, environment, directory, reach: of } => {
            McpTransport::Stdio {
                program: command.clone(),
                args: args.clone(),
                directory: directory.clone().unwrap_or_else(|| work.join(name)),
                environment: environment.clone(),
                rlimits: Rlimits::default(),
                reach: reach(of),
            }
        }
        config::McpTransport::Http { host, port, path } => {
            McpTransport::Http { host: host.clone(), port: *port, path: path.clone() }
        }
    };
    let named = server.tools.iter().map(|(name, of)| (name.clone(), policy(*of))).collect();
    McpSpec {
        name: name.to_owned(),
        transport,
        policies: McpPolicies { all: policy(server.policy), named },
        start_seconds,
        seconds: server.seconds,
        output_bytes: server.output_bytes,
    }
}

fn reach(of: &config::Reach) -> Reach {
    Reach { read: of.read.clone(), write: of.write.clone(), network: of.network }
}

fn policy(policy: config::Policy) -> Policy {
    match policy {
        config::Policy::Allow => Policy::Allow,
        config::Policy::Ask => Policy::Ask,
        config::Policy::Deny => Policy::Deny,
    }
}
