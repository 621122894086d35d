//! What a changed file can change while the daemon runs.

use std::collections::BTreeSet;

use super::write::Entry;
use super::{Config, Limit};

impl Config {
    /// The keys in which `new` differs from `old`: first those that take effect at once (of `[model]`, in
    /// new sessions and epochs), then those that need a restart. Each as `[limits] turn_seconds`; a tool
    /// as `[tools.command.<name>]`.
    #[must_use]
    pub fn reloadable_diff(old: &Self, new: &Self) -> (Vec<String>, Vec<String>) {
        let (before, after) = (old.entries(), new.entries());
        let mut seen = BTreeSet::new();
        let (mut applied, mut restart) = (Vec::new(), Vec::new());
        let changed = before
            .iter()
            .filter(|entry| !after.contains(entry))
            .chain(after.iter().filter(|entry| !before.contains(entry)));
        for entry in changed {
            let name = name(entry);
            if seen.insert(name.clone()) {
                if is_reloadable(entry) { applied.push(name) } else { restart.push(name) }
            }
        }
        (applied, restart)
    }

    /// What is in force after SIGHUP: `new`, but all that needs a restart as in `self`.
    #[must_use]
    pub fn reloaded(&self, new: &Self) -> Self {
        let mut config = self.clone();
        config.daemon.log_level = new.daemon.log_level;
        config.model.sampling = new.model.sampling.clone();
        config.model.reasoning = new.model.reasoning.clone();
        config.model.system_prompt = new.model.system_prompt.clone();
        config.model.at_shutdown = new.model.at_shutdown;
        for limit in Limit::ALL.iter().filter(|limit| limit.info().reloadable) {
            config.limits.set(*limit, new.limits.get(*limit));
        }
        config.tools.unattended = new.tools.unattended;
        config
    }
}

fn name(entry: &Entry) -> String {
    let tool = entry.table.starts_with("tools.");
    if tool { format!("[{}]", entry.table) } else { format!("[{}] {}", entry.table, entry.key) }
}

/// Agrees with [`Config::reloaded`]; a test holds the two together.
fn is_reloadable(entry: &Entry) -> bool {
    match (entry.table.as_str(), entry.key) {
        ("daemon", key) => key == "log_level",
        ("model", key) => matches!(key, "reasoning" | "system_prompt" | "at_shutdown"),
        ("model.sampling", _) | ("tools", "unattended") => true,
        ("limits", key) => Limit::by_key(key).is_some_and(|limit| limit.info().reloadable),
        _ => false,
    }
}
