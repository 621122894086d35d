//! The names that the file may have, and what to say of others.

use super::limits;

/// The four tables.
pub(super) const DOCUMENT: &[&str] = &["daemon", "model", "limits", "tools"];
pub(super) const DAEMON: &[&str] = &["home", "socket", "slot", "log_level", "torn_tail"];
pub(super) const MODEL: &[&str] = &[
    "url",
    "api_key_file",
    "slot_dir",
    "reasoning",
    "system_prompt",
    "system_prompt_file",
    "at_shutdown",
    "sampling",
];
pub(super) const SAMPLING: &[&str] = &["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed"];
pub(super) const TOOLS: &[&str] = &["unattended", "command", "mcp"];
pub(super) const COMMAND: &[&str] = &[
    "program",
    "args",
    "description",
    "schema",
    "policy",
    "seconds",
    "output_bytes",
    "directory",
    "environment",
    "read",
    "write",
    "network",
];
pub(super) const MCP: &[&str] = &[
    "command",
    "args",
    "environment",
    "directory",
    "read",
    "write",
    "network",
    "url",
    "policy",
    "allow",
    "ask",
    "deny",
    "seconds",
    "output_bytes",
];

/// Every table's name with its keys.
const TABLES: &[(&str, &[&str])] = &[
    ("daemon", DAEMON),
    ("model", MODEL),
    ("model.sampling", SAMPLING),
    ("limits", limits::KEYS),
    ("tools", TOOLS),
    ("tools.command.<name>", COMMAND),
    ("tools.mcp.<name>", MCP),
];

/// All keys of the file that hold a value, as pairs of table and key, in the order of the
/// documentation; `<name>` stands for a tool's name.
#[must_use]
pub fn keys() -> Vec<(&'static str, &'static str)> {
    let is_table =
        |table: &str, key: &str| matches!((table, key), ("model", "sampling") | ("tools", "command" | "mcp"));
    TABLES
        .iter()
        .flat_map(|(table, keys)| keys.iter().map(move |key| (*table, *key)))
        .filter(|(table, key)| !is_table(table, key))
        .collect()
}

/// What to say of a key that `table` does not have.
pub(super) fn advice(table: &str, key: &str, keys: &[&str]) -> String {
    if let Some(near) = nearest(key, keys) {
        return format!("did you mean {near}?");
    }
    if matches!(key, "api_key" | "key" | "token" | "password") {
        return "a key is never in this file: put it in a file of its own and name that in [model] api_key_file"
            .to_owned();
    }
    if let Some((other, _)) = TABLES.iter().find(|(name, keys)| *name != table && keys.contains(&key)) {
        return format!("it belongs in [{other}]");
    }
    let kind = if table.is_empty() { "tables" } else { "keys" };
    format!("known {kind} are {}", keys.join(", "))
}

fn nearest<'k>(key: &str, keys: &[&'k str]) -> Option<&'k str> {
    let length = key.chars().count();
    // Longer than any key by far: nothing is near it.
    if length > 64 {
        return None;
    }
    let allowed = (length / 3).max(1);
    let plain = key.to_ascii_lowercase().replace('-', "_");
    keys.iter()
        .map(|known| (distance(&plain, known), *known))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Levenshtein's distance: how many characters must be put in, taken out or replaced.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (n, from) in a.chars().enumerate() {
        let (mut diagonal, mut left) = (n, n.saturating_add(1));
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, to) in row.iter_mut().skip(1).zip(b.chars()) {
            let replaced = diagonal.saturating_add(usize::from(from != to));
            diagonal = *cell;
            left = replaced.min(diagonal.saturating_add(1)).min(left.saturating_add(1));
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

/// What [`tool_name`] accepts, for messages.
pub(super) const ALLOWED_NAME: &str = "allowed are 1 to 64 of a-z 0-9 _ -, a letter or digit first";

/// Names that the daemon's own tools have.
const RESERVED: &[&str] = &["find_tool", "call_tool", "time", "read_session"];

/// Whether a tool can have this name; if not, why.
pub(super) fn tool_name(name: &str) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let sound = name.len() <= 64
        && name.bytes().next().is_some_and(plain)
        && name.bytes().all(|b| plain(b) || b == b'_' || b == b'-');
    if !sound {
        return Err(format!("{} cannot be a tool's name", super::read::quoted(name)));
    }
    if RESERVED.contains(&name) {
        return Err(format!("{name} is the name of a tool that loopd brings itself"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        for (a, b, d) in [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2)]
        {
            assert_eq!(distance(a, b), d, "{a} {b}");
        }
    }

    #[test]
    fn a_key_is_matched_by_nearness_then_by_its_table() {
        assert_eq!(advice("limits", "turn_secnds", limits::KEYS), "did you mean turn_seconds?");
        assert_eq!(advice("daemon", "log-level", DAEMON), "did you mean log_level?");
        assert_eq!(advice("model", "slot", MODEL), "it belongs in [daemon]");
        assert!(advice("", "frobnicate", DOCUMENT).contains("known tables are daemon, model"));
        assert!(advice("model", "api_key", MODEL).contains("api_key_file"));
    }
}
