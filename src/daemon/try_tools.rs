//! `loopd tools`: lists, describes and tries the configured tools from the shell, without the daemon.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::cli::text;
use crate::config::Config;
use crate::proto::ToolOutcome;
use crate::tool::{CallContext, Cancel, Policy, Prepared, Registry, ToolDescription};

use super::args::Common;
use super::{EXIT_CONFIG, fail};

/// What is wanted.
pub(super) struct Wanted<'a> {
    /// One tool; all when absent.
    pub(super) name: Option<&'a str>,
    /// Arguments to call it with.
    pub(super) arguments: Option<&'a str>,
    /// JSON instead of words.
    pub(super) json: bool,
}

/// Lists, describes or tries tools. Exit status: 0; 1 when the tool is not there, fails or cannot be tried; 78 when the
/// configuration is wrong.
pub(super) fn tools(common: &Common, wanted: &Wanted<'_>) -> ExitCode {
    let config = match Config::load(common.config.as_deref(), &common.overrides()) {
        Ok(config) => config,
        Err(e) => return fail(EXIT_CONFIG, &e),
    };
    let (configured, home) = (&config.tools, &config.daemon.home);
    if !(home.is_dir() || configured.command.is_empty() && configured.mcp.is_empty()) {
        let why =
            format!("{} is not there; tools work in folders below it: start the daemon once", home.display());
        return fail(1, &why);
    }
    let registry = match super::tools::registry(&config) {
        Ok(registry) => registry,
        Err(e) => return fail(EXIT_CONFIG, &e),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return fail(1, &e),
    };
    let done = tokio::task::LocalSet::new().block_on(&runtime, async {
        registry.refresh(wanted.name.unwrap_or("find_tool"), "{}").await;
        let done = show(&registry, &config, wanted).await;
        registry.close().await;
        done
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => fail(1, &e),
    }
}

async fn show(registry: &Registry, config: &Config, wanted: &Wanted<'_>) -> io::Result<bool> {
    let Some(name) = wanted.name else {
        list(registry, wanted.json)?;
        problems(registry);
        return Ok(registry.problems().is_empty());
    };
    let policies = registry.list();
    let policy = policies.iter().find(|(known, _)| known == name).map(|(_, policy)| *policy);
    let (Some(tool), Some(policy)) = (registry.tool(name), policy) else {
        problems(registry);
        eprintln!("loopd: there is no tool {name:?}; `loopd tools` lists them");
        return Ok(false);
    };
    let Some(arguments) = wanted.arguments else {
        let ToolDescription { text, schema } = tool.describe();
        if wanted.json {
            print(
                &json!({"name": name, "policy": word(policy), "description": text, "schema": schema})
                    .to_string(),
            )?;
        } else {
            print(&format!("{name}: {text}\npolicy: {}\narguments: {schema:#}", explained(policy)))?;
        }
        return Ok(true);
    };
    eprintln!("policy: {}", explained(policy));
    attempt(registry, config, name, arguments, wanted.json).await
}

fn list(registry: &Registry, as_json: bool) -> io::Result<()> {
    let description = |name: &str| registry.tool(name).map(|tool| tool.describe().text).unwrap_or_default();
    let tools = registry.list();
    if as_json {
        let row = |(name, policy): &(String, Policy)| json!({"name": name, "policy": word(*policy), "description": description(name)});
        return print(&Value::Array(tools.iter().map(row).collect()).to_string());
    }
    let width = tools.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, policy) in &tools {
        let text = description(name);
        print(&format!(
            "{name:width$}  {:5}  {}",
            word(*policy),
            text::line(text.lines().next().unwrap_or_default())
        ))?;
    }
    Ok(())
}

fn problems(registry: &Registry) {
    for problem in registry.problems() {
        eprintln!("loopd: {}", text::line(&problem));
    }
}

/// Calls it, as the model would: the same checks, limits and walls. What is asked for at the shell is allowed, unless
/// the tool is denied.
async fn attempt(
    registry: &Registry,
    config: &Config,
    name: &str,
    arguments: &str,
    as_json: bool,
) -> io::Result<bool> {
    let reply = match registry.prepare(name, arguments) {
        Prepared::Answer(reply) => reply,
        Prepared::Run(run) => {
            let context = CallContext {
                seconds: config.limits.tool_seconds,
                output_bytes: config.limits.tool_output_bytes,
                spill: None,
                cancel: Cancel::new(),
                earlier: None,
            };
            run.run(context).await
        }
    };
    let outcome = serde_json::to_value(reply.outcome)?;
    if as_json {
        let (left_out, millis) = (reply.truncated_bytes, reply.millis);
        print(&json!({"outcome": outcome, "content": reply.content, "truncated_bytes": left_out, "millis": millis}).to_string())?;
    } else {
        eprintln!("outcome: {}, {} ms", outcome.as_str().unwrap_or_default(), reply.millis);
        print(&reply.content)?;
    }
    Ok(reply.outcome == ToolOutcome::Ok)
}

/// Prints what came from outside: exact for a program, harmless on a terminal.
fn print(what: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let safe = if out.is_terminal() { text::block(what) } else { what.to_owned() };
    writeln!(out, "{}", safe.trim_end_matches('\n'))
}

fn word(policy: Policy) -> &'static str {
    match policy {
        Policy::Allow => "allow",
        Policy::Ask => "ask",
        Policy::Deny => "deny",
    }
}

fn explained(policy: Policy) -> &'static str {
    match policy {
        Policy::Allow => "allow (it runs when the model calls it)",
        Policy::Ask => "ask (a call of the model waits for a person)",
        Policy::Deny => "deny (it never runs, and is not shown to the model)",
    }
}
