//! The configuration as a list of keys, and as TOML that loads back to the same.

use std::path::{Path, PathBuf};

use toml::Value;

use super::read::Choice as _;
use super::tools::{CommandTool, McpServer, McpTransport};
use super::{Config, Limit, ModelUrl, Policy, Reach};

/// One key that is set.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    /// The table's name without brackets.
    pub(super) table: String,
    pub(super) key: &'static str,
    pub(super) value: Value,
}

struct Entries {
    all: Vec<Entry>,
    table: String,
}

impl Entries {
    fn table(&mut self, name: impl Into<String>) {
        self.table = name.into();
    }

    fn add(&mut self, key: &'static str, value: impl Into<Value>) {
        self.all.push(Entry { table: self.table.clone(), key, value: value.into() });
    }

    fn add_if<T: Into<Value>>(&mut self, key: &'static str, value: Option<T>) {
        if let Some(value) = value {
            self.add(key, value);
        }
    }
}

/// Every path here was UTF-8 when it was read.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Every number here was read from TOML, which has no more than `i64`.
fn number(n: u64) -> Value {
    Value::Integer(i64::try_from(n).unwrap_or(i64::MAX))
}

impl Config {
    /// All keys that are set, in the order of the documentation.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let mut to = Entries { all: Vec::new(), table: "daemon".to_owned() };
        let daemon = &self.daemon;
        to.add("home", text(&daemon.home));
        to.add("socket", text(&daemon.socket));
        to.add("slot", i64::from(daemon.slot));
        to.add("log_level", daemon.log_level.word());
        to.add("torn_tail", daemon.torn_tail.word());
        self.add_model(&mut to);
        to.table("limits");
        for limit in Limit::ALL {
            to.add(limit.info().key, number(self.limits.get(*limit)));
        }
        to.table("tools");
        to.add("unattended", self.tools.unattended.word());
        for (name, tool) in &self.tools.command {
            to.table(format!("tools.command.{name}"));
            add_command(&mut to, tool);
        }
        for (name, server) in &self.tools.mcp {
            to.table(format!("tools.mcp.{name}"));
            add_mcp(&mut to, server);
        }
        to.all
    }

    fn add_model(&self, to: &mut Entries) {
        let model = &self.model;
        to.table("model");
        to.add("url", model.url.to_string());
        to.add_if("api_key_file", model.api_key_file.as_deref().map(text));
        to.add_if("slot_dir", model.slot_dir.as_deref().map(text));
        to.add("reasoning", model.reasoning.enabled);
        to.add("system_prompt", model.system_prompt.as_str());
        to.add("at_shutdown", model.at_shutdown.word());
        to.table("model.sampling");
        let sampling = &model.sampling;
        to.add_if("temperature", sampling.temperature);
        to.add_if("top_p", sampling.top_p);
        to.add_if("top_k", sampling.top_k.map(i64::from));
        to.add_if("min_p", sampling.min_p);
        to.add_if("repeat_penalty", sampling.repeat_penalty);
        to.add_if("seed", sampling.seed.map(i64::from));
    }

    /// The effective configuration as TOML, every key that has a value. Loads back to an equal
    /// configuration, wherever it is loaded. Has no secrets, since a configuration has none.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut toml = String::new();
        let mut table = String::new();
        for entry in self.entries() {
            if entry.table != table {
                if !toml.is_empty() {
                    toml.push('\n');
                }
                toml.push_str(&format!("[{}]\n", entry.table));
                table = entry.table;
            }
            toml.push_str(&format!("{} = {}\n", entry.key, entry.value));
        }
        toml
    }
}

fn add_command(to: &mut Entries, tool: &CommandTool) {
    to.add("program", text(&tool.program));
    to.add("args", tool.args.clone());
    to.add("description", tool.description.as_str());
    to.add("schema", tool.schema.as_json());
    to.add("policy", tool.policy.word());
    to.add_if("seconds", tool.seconds.map(number));
    to.add_if("output_bytes", tool.output_bytes.map(number));
    to.add_if("directory", tool.directory.as_deref().map(text));
    to.add("environment", tool.environment.clone());
    add_reach(to, &tool.reach);
}

fn add_reach(to: &mut Entries, reach: &Reach) {
    let texts = |paths: &Vec<PathBuf>| paths.iter().map(|path| text(path)).collect::<Vec<_>>();
    to.add_if("read", reach.read.as_ref().map(texts));
    to.add_if("write", reach.write.as_ref().map(texts));
    to.add("network", reach.network);
}

fn add_mcp(to: &mut Entries, server: &McpServer) {
    match &server.transport {
        McpTransport::Stdio { command, args, environment, directory, reach } => {
            to.add("command", text(command));
            to.add("args", args.clone());
            to.add("environment", environment.clone());
            to.add_if("directory", directory.as_deref().map(text));
            add_reach(to, reach);
        }
        McpTransport::Http { host, port, path } => {
            let url = ModelUrl::Http { host: host.clone(), port: *port, path: path.clone() };
            to.add("url", url.to_string());
        }
    }
    to.add("policy", server.policy.word());
    for (key, policy) in Policy::ALL {
        let named = server.tools.iter().filter(|(_, of)| *of == policy);
        let names: Vec<String> = named.map(|(name, _)| name.clone()).collect();
        to.add_if(key, (!names.is_empty()).then_some(names));
    }
    to.add_if("seconds", server.seconds.map(number));
    to.add_if("output_bytes", server.output_bytes.map(number));
}
