//! The model server: what it tells, what it does when it is tried out, and whether this home can use it.

use std::path::Path;

use crate::agent;
use crate::channel::HomeLock;
use crate::config::Config;
use crate::model::{Look, ModelError, Probed, Server};
use crate::proto::{Finding, ToolResultsBy, ToolsBy};
use crate::store::SlotFiles;
use crate::tool::Registry;

use super::flags;

/// What is said of the server.
pub(super) async fn findings(config: &Config, server: &Server, look: Look) -> Vec<Finding> {
    let (mut findings, answered) = server.check(look).await;
    let Some((props, probed)) = answered else { return findings };
    let slot_dir = config.model.slot_dir.as_deref();
    findings.extend(started_with(server, props.total_slots, slot_dir).await);
    if let (Some(probed), Some(folder)) = (probed, slot_dir) {
        findings.extend(restored(server, folder, &probed).await.unwrap_or_else(|e| Some(failed(&e))));
    }
    findings.push(template(config, server).await);
    findings.extend(sessions(config, server).await);
    findings
}

/// What is said of the server's command line.
async fn started_with(server: &Server, slots: u64, slot_dir: Option<&Path>) -> Vec<Finding> {
    let unseen = || {
        vec![Finding::ok(
            "not visible from here: --no-kv-unified --cache-ram 0 --no-context-shift --cache-reuse 0 \
             (docs/model-server.md says why each is needed)",
        )]
    };
    let Some(process) = server.process().await else { return unseen() };
    let slot_dir = slot_dir.map(ToOwned::to_owned);
    // the folders of slots are looked up, and may be on a disk that hangs
    let judged = tokio::task::spawn_blocking(move || {
        Some(flags::judge(&flags::command_line(process)?, slots, slot_dir.as_deref()))
    });
    match judged.await {
        Ok(judged) => judged.unwrap_or_else(unseen),
        Err(e) => vec![Finding::bad(format!("its flags cannot be looked at: {e}"), "")],
    }
}

/// How far `loopd check` may go: a daemon that serves the home may begin a turn at any moment.
pub(super) fn how_far(home: &Path) -> (Look, Option<HomeLock>) {
    if !home.is_dir() {
        return (Look::Try, None);
    }
    match HomeLock::take(home) {
        Ok(lock) => (Look::Try, Some(lock)),
        // held; or this user may not know
        Err(_) => (Look::Ask, None),
    }
}

fn failed(error: &ModelError) -> Finding {
    Finding::bad(format!("a saved slot could not be tried out: {error}"), "")
}

/// Saves what the tiny requests have left in the slot, empties it, and restores it.
async fn restored(server: &Server, folder: &Path, probed: &Probed) -> Result<Option<Finding>, ModelError> {
    // a name that is swept away, should this end before it is removed
    let name = format!("check-{}.kv", std::process::id());
    match server.save_slot(&name).await {
        // that is told already
        Err(ModelError::Unsupported { .. }) => return Ok(None),
        saved => saved?,
    };
    let files = SlotFiles::new(folder.to_owned());
    if let Err(e) = files.read_ids(&name).await {
        server.erase_slot().await?;
        let what =
            format!("the server saved its slot as {name}, and that cannot be read in [model] slot_dir: {e}");
        let remedy = "set [model] slot_dir to the server's --slot-save-path, and give both users its group";
        return Ok(Some(Finding::bad(what, remedy)));
    }
    server.erase_slot().await?;
    let restored = server.restore_slot(&name).await;
    let finding = match restored {
        Ok(_) => server.check_restored(probed).await,
        Err(e) => Err(e),
    };
    let removed = files.remove(&name).await;
    server.erase_slot().await?;
    if let Err(e) = removed {
        return Ok(Some(Finding::bad(format!("what the server saved cannot be removed: {e}"), "")));
    }
    finding.map(Some)
}

/// Whether the chat template can be used, as a new session would.
async fn template(config: &Config, server: &Server) -> Finding {
    let model = &config.model;
    match server.compile_framing(&model.system_prompt, Registry::shown(), &model.reasoning).await {
        Err(e @ ModelError::Template { .. }) => Finding::bad(e.to_string(), ""),
        Err(e) => Finding::bad(format!("its chat template could not be tried out: {e}"), ""),
        Ok(framing) => {
            let tools = match framing.tools_by {
                ToolsBy::Template => "shows the tools",
                ToolsBy::SystemPrompt => "shows no tools, so the system prompt does",
            };
            let results = match framing.tool_results_by {
                ToolResultsBy::Template => "as the template has them",
                ToolResultsBy::UserMessage => "as user messages",
            };
            Finding::ok(format!("its chat template can be used: it {tools}; tools' results go {results}"))
        }
    }
}

/// Whether the newest session can go on with the model that is served.
async fn sessions(config: &Config, server: &Server) -> Option<Finding> {
    let catalog = super::super::serve::catalog(config);
    let newest = catalog.latest().await.ok()??;
    let made_for = catalog.baseline(&newest).await.ok()?.model;
    let served = server.identity().await.ok()?;
    let why = agent::other_model(&made_for, &served)?;
    let remedy = "serve its model again; or take it over to this one: bxctl rebase";
    Some(Finding::warn(format!("the newest session, {newest}, cannot go on: {why}"), remedy))
}
