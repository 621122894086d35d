//! `[tools]`: which tools there are, and who decides whether one runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::known;
use super::limits::{Limit, LimitInfo};
use super::read::{Choice, Table, absolute, quoted};
use super::schema::{ALLOWED_SCHEMA, ToolSchema};
use super::url::ModelUrl;

/// The longest description of a tool, in bytes.
pub const MAX_DESCRIPTION_BYTES: usize = 2_048;

/// Whether a tool runs when the model calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// At once.
    Allow,
    /// When a person agrees.
    Ask,
    /// Never.
    Deny,
}

impl Choice for Policy {
    const ALL: &'static [(&'static str, Self)] =
        &[("allow", Self::Allow), ("ask", Self::Ask), ("deny", Self::Deny)];
}

/// What happens to a call that somebody must allow when nobody is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unattended {
    /// It waits, up to `[limits] approval_seconds`.
    Wait,
    /// It is denied.
    Deny,
}

impl Choice for Unattended {
    const ALL: &'static [(&'static str, Self)] = &[("wait", Self::Wait), ("deny", Self::Deny)];
}

/// `[tools]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolsConfig {
    /// What `ask` means when no client is attached.
    pub unattended: Unattended,
    /// `[tools.command.<name>]`, by name.
    pub command: BTreeMap<String, CommandTool>,
    /// `[tools.mcp.<name>]`, by name.
    pub mcp: BTreeMap<String, McpServer>,
}

/// What a tool may reach of what the daemon's user may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// What it may read and run; absolute paths. Files are not limited when this and `write` are absent.
    pub read: Option<Vec<PathBuf>>,
    /// What it may write too; absolute paths.
    pub write: Option<Vec<PathBuf>>,
    /// Whether it may have sockets.
    pub network: bool,
}

impl Default for Reach {
    fn default() -> Self {
        Self { read: None, write: None, network: true }
    }
}

impl Reach {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    fn read(table: &Table<'_, '_>) -> Self {
        let paths = |key| {
            table.list(key, "allowed are absolute paths", |text| {
                absolute(Path::new(text)).map_err(|why| format!("found {}: {why}", quoted(text)))
            })
        };
        Self { read: paths("read"), write: paths("write"), network: table.flag("network").unwrap_or(true) }
    }
}

/// A program that is a tool: arguments as JSON on standard input, the result on standard output.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandTool {
    /// The program, by its absolute path.
    pub program: PathBuf,
    /// Its arguments, the same for each call.
    pub args: Vec<String>,
    /// What the model is told of it; not empty.
    pub description: String,
    /// What the model's arguments must look like.
    pub schema: ToolSchema,
    /// Whether it runs.
    pub policy: Policy,
    /// How long a call may run; `[limits] tool_seconds` when absent.
    pub seconds: Option<u64>,
    /// How much of its output the model is shown; `[limits] tool_output_bytes` when absent.
    pub output_bytes: Option<u64>,
    /// Where it runs, an absolute path; a directory of the daemon's choice when absent.
    pub directory: Option<PathBuf>,
    /// The names of the daemon's environment variables that it gets; all others are kept from it.
    pub environment: Vec<String>,
    /// What it may reach.
    pub reach: Reach,
}

/// A server of the Model Context Protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServer {
    /// How it is reached.
    pub transport: McpTransport,
    /// Whether those of its tools run that are not named below.
    pub policy: Policy,
    /// What is decided for single tools, by the server's own name for them.
    pub tools: BTreeMap<String, Policy>,
    /// How long a call may run; `[limits] tool_seconds` when absent.
    pub seconds: Option<u64>,
    /// How much of a call's output the model is shown; `[limits] tool_output_bytes` when absent.
    pub output_bytes: Option<u64>,
}

/// How an MCP server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpTransport {
    /// A program that is started, over its standard input and output.
    Stdio {
        /// The program, by its absolute path.
        command: PathBuf,
        /// Its arguments.
        args: Vec<String>,
        /// The names of the daemon's environment variables that it gets.
        environment: Vec<String>,
        /// Where it runs, an absolute path; a directory of the daemon's choice when absent.
        directory: Option<PathBuf>,
        /// What it may reach.
        reach: Reach,
    },
    /// HTTP.
    Http {
        /// A name or an address; an IPv6 address without its brackets.
        host: String,
        /// The port.
        port: u16,
        /// The path, empty when there is none.
        path: String,
    },
}

impl ToolsConfig {
    pub(super) fn read(table: &Table<'_, '_>) -> Self {
        let commands = table.named("command", known::COMMAND);
        let servers = table.named("mcp", known::MCP);
        Self {
            unattended: table.choice("unattended").unwrap_or(Unattended::Wait),
            command: commands.into_iter().filter_map(|(n, t)| Some((n, read_command(&t)?))).collect(),
            mcp: servers.into_iter().filter_map(|(n, t)| Some((n, read_mcp(&t)?))).collect(),
        }
    }
}

/// `None` only after something was reported.
fn read_command(table: &Table<'_, '_>) -> Option<CommandTool> {
    let program = program(table, "program");
    let description = table.parsed("description", "allowed is a text for the model", |text| {
        if text.trim().is_empty() {
            return Err("found an empty text".to_owned());
        }
        if text.len() > MAX_DESCRIPTION_BYTES {
            return Err(format!("found {} bytes, {MAX_DESCRIPTION_BYTES} are allowed", text.len()));
        }
        Ok(text.to_owned())
    });
    if !table.has("description") {
        table.refuse("description", "is missing", "say in a sentence what the tool does");
    }
    let schema = match table.get("schema").map(|value| ToolSchema::from_toml(value.get_ref())) {
        None => Some(ToolSchema::default()),
        Some(Ok(schema)) => Some(schema),
        Some(Err(why)) => {
            table.refuse("schema", why, ALLOWED_SCHEMA);
            None
        }
    };
    let (seconds, output_bytes) = own_limits(table);
    Some(CommandTool {
        args: arguments(table),
        policy: table.choice("policy").unwrap_or(Policy::Ask),
        seconds,
        output_bytes,
        directory: table.path("directory"),
        environment: variables(table),
        reach: Reach::read(table),
        program: program?,
        description: description?,
        schema: schema?,
    })
}

fn read_mcp(table: &Table<'_, '_>) -> Option<McpServer> {
    let policy = table.choice("policy").unwrap_or(Policy::Ask);
    let transport = if table.has("url") {
        for key in ["command", "args", "environment", "directory", "read", "write", "network"] {
            if table.has(key) {
                table.refuse(
                    key,
                    "excludes url",
                    "a server is either started with command or reached by url",
                );
            }
        }
        table.parsed("url", "allowed is http://host:port[/path]", |text| match text.parse() {
            Ok(ModelUrl::Http { host, port, path }) => Ok(McpTransport::Http { host, port, path }),
            Ok(ModelUrl::Unix(_)) => Err(format!("found {}", quoted(text))),
            Err(why) => Err(why.to_string()),
        })
    } else {
        let (args, environment, directory) = (arguments(table), variables(table), table.path("directory"));
        let reach = Reach::read(table);
        program(table, "command").map(|command| McpTransport::Stdio {
            command,
            args,
            environment,
            directory,
            reach,
        })
    };
    let (seconds, output_bytes) = own_limits(table);
    Some(McpServer { transport: transport?, policy, tools: named_policies(table), seconds, output_bytes })
}

/// `seconds` and `output_bytes`, which go before those of `[limits]`.
fn own_limits(table: &Table<'_, '_>) -> (Option<u64>, Option<u64>) {
    let limit = |key, limit: Limit| {
        let LimitInfo { least, most, unit, .. } = limit.info();
        table.whole(key, least..=most, unit)
    };
    (limit("seconds", Limit::ToolSeconds), limit("output_bytes", Limit::ToolOutputBytes))
}

/// The lists `allow`, `ask` and `deny`. A tool that stands in two of them is an error.
fn named_policies(table: &Table<'_, '_>) -> BTreeMap<String, Policy> {
    let mut policies = BTreeMap::new();
    for (key, policy) in Policy::ALL {
        let names = table.list(key, "allowed are names of the server's tools", |name| match name.trim() {
            "" => Err("found an empty name".to_owned()),
            _ => Ok(name.to_owned()),
        });
        for name in names.unwrap_or_default() {
            if let Some(other) = policies.insert(name.clone(), *policy)
                && other != *policy
            {
                table.refuse(
                    key,
                    format!("found {}, which {} has too", quoted(&name), other.word()),
                    "name it once",
                );
            }
        }
    }
    policies
}

fn program(table: &Table<'_, '_>, key: &str) -> Option<PathBuf> {
    if !table.has(key) {
        table.refuse(key, "is missing", "name a program by its absolute path");
    }
    table.parsed(key, "allowed is the absolute path of a program", |text| {
        let path = absolute(Path::new(text)).map_err(|why| format!("found {}: {why}", quoted(text)))?;
        if path.file_name().is_none() || text.ends_with('/') {
            return Err(format!("found {}: it does not name a file", quoted(text)));
        }
        Ok(path)
    })
}

fn arguments(table: &Table<'_, '_>) -> Vec<String> {
    let check = |text: &str| {
        if text.contains('\0') { Err("found a NUL".to_owned()) } else { Ok(text.to_owned()) }
    };
    table.list("args", "allowed are strings", check).unwrap_or_default()
}

fn variables(table: &Table<'_, '_>) -> Vec<String> {
    let check = |text: &str| {
        let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        if first && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Ok(text.to_owned());
        }
        // A value behind the name may be a secret: only the name is repeated.
        let name = text.split('=').next().unwrap_or_default();
        Err(format!("found {}, not the name of a variable", quoted(name)))
    };
    let allowed = "allowed are names of environment variables, without values (A-Z a-z 0-9 _)";
    table.list("environment", allowed, check).unwrap_or_default()
}
