//! `[model]`: the server, how tokens are sampled, and the system prompt.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::limits::{Limit, Limits};
use super::read::{Choice, Table, absolute, quoted};
use super::{ModelUrl, known};
use crate::proto::{ReasoningSettings, Sampling};

/// What the model is told when `[model]` does not say otherwise. Short, for small models; nothing in it
/// changes by itself, since it is the head of every prompt.
pub const DEFAULT_SYSTEM_PROMPT: &str = "\
You are a helpful assistant on a small computer. Answer in the user's language, briefly and plainly. \
If you do not know something, say so. When a task needs a tool, look for one with find_tool, then run it \
with call_tool. Never make up what a tool returned.";

/// What happens to the slot's KV cache when the daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvAtShutdown {
    /// It is left in the server.
    Keep,
    /// It is saved to the server's `--slot-save-path`.
    Save,
}

impl Choice for KvAtShutdown {
    const ALL: &'static [(&'static str, Self)] = &[("keep", Self::Keep), ("save", Self::Save)];
}

/// `[model]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Where the model server is.
    pub url: ModelUrl,
    /// Where its API key is: an absolute path, or the name of one of systemd's credentials. Read with
    /// [`ModelConfig::read_api_key`].
    pub api_key_file: Option<PathBuf>,
    /// The server's `--slot-save-path`, absolute.
    pub slot_dir: Option<PathBuf>,
    /// How tokens are sampled, in new sessions.
    pub sampling: Sampling,
    /// Whether the model may think, in new sessions.
    pub reasoning: ReasoningSettings,
    /// The system prompt of new sessions; may be empty.
    pub system_prompt: String,
    /// What happens to the KV cache when the daemon ends.
    pub at_shutdown: KvAtShutdown,
}

impl ModelConfig {
    /// Reads all but the address, which may be the command line's, and waits for that.
    pub(super) fn read(
        table: &Table<'_, '_>,
        origin: &Path,
        limits: &Limits,
    ) -> impl FnOnce(ModelUrl) -> Self + use<> {
        let api_key_file = table.parsed("api_key_file", ALLOWED_KEY_FILE, api_key_file);
        let slot_dir = table.path("slot_dir");
        let sampling = read_sampling(&table.table("sampling", known::SAMPLING));
        let reasoning = ReasoningSettings { enabled: table.flag("reasoning").unwrap_or(true) };
        let system_prompt = read_system_prompt(table, origin, limits);
        let at_shutdown = table.choice("at_shutdown").unwrap_or(KvAtShutdown::Save);
        move |url| Self { url, api_key_file, slot_dir, sampling, reasoning, system_prompt, at_shutdown }
    }
}

const ALLOWED_KEY_FILE: &str = "allowed is an absolute path, or the name of one of systemd's credentials";

fn api_key_file(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if path.is_absolute() {
        return absolute(path).map_err(|why| format!("found {}: {why}", quoted(text)));
    }
    // What is neither is not repeated: it may be the key itself.
    let name =
        !text.is_empty() && text.len() <= 255 && !text.contains(['/', '\0']) && !text.starts_with(['.', '~']);
    if name { Ok(path.to_owned()) } else { Err("found neither".to_owned()) }
}

fn read_sampling(table: &Table<'_, '_>) -> Sampling {
    Sampling {
        temperature: table.number("temperature", 0.0..=10.0),
        top_p: table.number("top_p", 0.0..=1.0),
        top_k: table.whole_u32("top_k", 0..=1_000_000),
        min_p: table.number("min_p", 0.0..=1.0),
        repeat_penalty: table.number("repeat_penalty", 0.01..=10.0),
        // The server takes the highest number of 32 bits for "a random one".
        seed: table.whole_u32("seed", 0..=u32::MAX - 1),
    }
}

fn read_system_prompt(model: &Table<'_, '_>, origin: &Path, limits: &Limits) -> String {
    let long = |bytes: u64| {
        (bytes > limits.system_prompt_bytes)
            .then(|| format!("found {bytes} bytes; {}", limits.hint(Limit::SystemPromptBytes)))
    };
    let check = |text: &str| match long(crate::proto::count(text.len())) {
        Some(found) => Err(found),
        None if text.contains('\0') => Err("found a NUL".to_owned()),
        None => Ok(text.to_owned()),
    };
    if model.has("system_prompt") && model.has("system_prompt_file") {
        model.refuse("system_prompt_file", "excludes system_prompt", "allowed is one of the two");
        return String::new();
    }
    let from_file = |name: &str| {
        let path = origin.parent().unwrap_or(Path::new("")).join(name);
        let file = path.display().to_string();
        let text =
            read_prompt_file(&path, limits.system_prompt_bytes).map_err(|why| format!("{file}: {why}"))?;
        check(&text).map_err(|why| format!("{file}: {why}"))
    };
    let written = model.parsed("system_prompt", "allowed is a text", check);
    let filed = model.parsed("system_prompt_file", "allowed is the path of a text file", from_file);
    written.or(filed).unwrap_or_else(|| DEFAULT_SYSTEM_PROMPT.to_owned())
}

fn read_prompt_file(path: &Path, limit: u64) -> Result<String, String> {
    // Not blocking, so that a pipe put in the file's place cannot hold up the daemon at SIGHUP.
    let file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
        .map_err(|e| format!("cannot be opened: {e}"))?;
    if !file.metadata().map_err(|e| format!("cannot be examined: {e}"))?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    // More than the limit by a byte-order mark, a line's end, and one byte that shows there is more.
    file.take(limit.saturating_add(6)).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if crate::proto::count(text.len()) > limit {
        return Err(format!("is longer than {limit} bytes; raise [limits] system_prompt_bytes"));
    }
    std::str::from_utf8(text).map(str::to_owned).map_err(|_| "is not UTF-8".to_owned())
}
