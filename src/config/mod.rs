//! The four tables of the configuration file, checked, with defaults.
//!
//! Invariants:
//! - Every value that is here was checked: a path is absolute and UTF-8, a number is in its range, a
//!   socket's path fits a socket.
//! - All that is wrong in a file is told at once, each with file, line, key, what was found and what is
//!   allowed.
//! - No secret is ever part of a [`Config`] or of a message: the API key is in a file of its own.
//! - [`Config::to_toml`] loads back to an equal [`Config`].
//!
//! Reading blocks: it is for the start of a program, and for SIGHUP.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::proto::{ReasoningSettings, Sampling};

mod environment;
mod error;
mod known;
mod limits;
mod read;
mod reload;
mod schema;
mod secret;
mod tools;
mod url;
mod write;

pub use environment::{Environment, default_socket};
pub use error::{ConfigError, Problem};
pub use known::keys;
pub use limits::{Limit, LimitInfo, Limits};
pub use schema::{MAX_SCHEMA_BYTES, ToolSchema};
pub use secret::{ApiKey, MAX_API_KEY_BYTES, Secret};
pub use tools::{
    CommandTool, MAX_DESCRIPTION_BYTES, McpServer, McpTransport, Policy, ToolsConfig, Unattended,
};
pub use url::{MAX_SOCKET_PATH_BYTES, ModelUrl, UrlError};

use read::{Choice, Source, Table, absolute, quoted};

/// The longest configuration file, in bytes.
pub const MAX_FILE_BYTES: u64 = 1_048_576;

/// The highest number that `[daemon] slot` can have.
pub const MAX_SLOT: u32 = 1_023;

/// What the model is told when `[model]` does not say otherwise. Short, for small models; nothing in it
/// changes by itself, since it is the head of every prompt.
pub const DEFAULT_SYSTEM_PROMPT: &str = "\
You are a helpful assistant on a small computer. Answer in the user's language, briefly and plainly. \
If you do not know something, say so. When a task needs a tool, look for one with find_tool, then run it \
with call_tool. Never make up what a tool returned.";

/// The whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `[daemon]`.
    pub daemon: DaemonConfig,
    /// `[model]`.
    pub model: ModelConfig,
    /// `[limits]`.
    pub limits: Limits,
    /// `[tools]`.
    pub tools: ToolsConfig,
}

/// What the command line sets in place of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--home`; a relative path counts from the working directory.
    pub home: Option<PathBuf>,
    /// `--slot`.
    pub slot: Option<u32>,
    /// `--model-url`.
    pub model_url: Option<String>,
    /// `--socket`; a relative path counts from the working directory.
    pub socket: Option<PathBuf>,
}

/// `[daemon]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Where the sessions are; absolute.
    pub home: PathBuf,
    /// Where clients connect; absolute, and short enough for a socket.
    pub socket: PathBuf,
    /// The model server's slot that is ours, from 0.
    pub slot: u32,
    /// What is logged.
    pub log_level: LogLevel,
    /// What happens to a log that ends in half a record.
    pub torn_tail: TornTail,
}

/// The least important messages that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Only what failed.
    Error,
    /// And what may be wrong.
    Warn,
    /// And what happened.
    Info,
    /// And details for whoever looks for a fault.
    Debug,
    /// And everything.
    Trace,
}

impl Choice for LogLevel {
    const ALL: &'static [(&'static str, Self)] = &[
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];
}

impl From<LogLevel> for log::LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::Error,
            LogLevel::Warn => Self::Warn,
            LogLevel::Info => Self::Info,
            LogLevel::Debug => Self::Debug,
            LogLevel::Trace => Self::Trace,
        }
    }
}

/// What opening a session does when its log ends in half a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TornTail {
    /// It is refused; `loopd repair` is the way out.
    Refuse,
    /// The half record is saved beside the log and cut off, with a warning.
    Quarantine,
}

impl Choice for TornTail {
    const ALL: &'static [(&'static str, Self)] =
        &[("refuse", Self::Refuse), ("quarantine", Self::Quarantine)];
}

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

impl Config {
    /// Loads the file at `path`, or the first that exists of [`Environment::config_files`], or, where none
    /// does, the defaults.
    ///
    /// # Errors
    /// The file at `path` is missing, a file cannot be read, or something in it is wrong.
    pub fn load(path: Option<&Path>, overrides: &Overrides) -> Result<Self, ConfigError> {
        Self::load_in(path, overrides, &Environment::of_process())
    }

    /// [`Config::load`] in a given environment.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_in(
        path: Option<&Path>,
        overrides: &Overrides,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        let missing = |error: &ConfigError| matches!(error, ConfigError::Missing(_));
        if let Some(path) = path {
            return Self::from_toml_in(&read_file(path)?, path, overrides, environment);
        }
        for path in environment.config_files() {
            match read_file(&path) {
                Ok(text) => return Self::from_toml_in(&text, &path, overrides, environment),
                Err(error) if missing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Self::from_toml_in("", Path::new("defaults"), overrides, environment)
    }

    /// Reads a configuration from text. `origin` is named in messages, and a relative
    /// `system_prompt_file` is beside it.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn from_toml(text: &str, origin: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        Self::from_toml_in(text, origin, overrides, &Environment::of_process())
    }

    /// [`Config::from_toml`] in a given environment.
    ///
    /// # Errors
    /// As [`Config::from_toml`].
    pub fn from_toml_in(
        text: &str,
        origin: &Path,
        overrides: &Overrides,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        let source = Source::new(origin, text);
        let document = source.parse();
        if !source.is_sound() {
            return Err(ConfigError::Invalid(source.into_problems()));
        }
        let root = Table::document(&source, &document);
        let limits = Limits::read(&root.table("limits", limits::KEYS));
        let tools = ToolsConfig::read(&root.table("tools", known::TOOLS));
        let daemon = root.table("daemon", known::DAEMON);
        let model = root.table("model", known::MODEL);
        let places = Places {
            home: daemon.path("home"),
            socket: daemon.parsed("socket", "allowed is the absolute path of a socket", socket),
            url: model.parsed("url", url::ALLOWED_URL, |text| {
                text.parse().map_err(|why: UrlError| why.to_string())
            }),
        };
        let slot = daemon.whole_u32("slot", 0..=MAX_SLOT).unwrap_or(0);
        let log_level = daemon.choice("log_level").unwrap_or(LogLevel::Info);
        let torn_tail = daemon.choice("torn_tail").unwrap_or(TornTail::Refuse);
        let api_key_file = model.parsed("api_key_file", ALLOWED_KEY_FILE, api_key_file);
        let slot_dir = model.path("slot_dir");
        let sampling = read_sampling(&model.table("sampling", known::SAMPLING));
        let reasoning = ReasoningSettings { enabled: model.flag("reasoning").unwrap_or(true) };
        let system_prompt = read_system_prompt(&model, origin, &limits);
        let at_shutdown = model.choice("at_shutdown").unwrap_or(KvAtShutdown::Keep);
        if !source.is_sound() {
            return Err(ConfigError::Invalid(source.into_problems()));
        }
        let (home, socket, url) = places.resolve(overrides, environment)?;
        let slot = overridden_slot(overrides)?.unwrap_or(slot);
        Ok(Self {
            daemon: DaemonConfig { home, socket, slot, log_level, torn_tail },
            model: ModelConfig {
                url,
                api_key_file,
                slot_dir,
                sampling,
                reasoning,
                system_prompt,
                at_shutdown,
            },
            limits,
            tools,
        })
    }

    /// Settings that are allowed each, but do not go well together; for `loopd check` and the journal.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let limits = &self.limits;
        let pairs = [
            (
                Limit::ThinkingTokens,
                Limit::CompletionTokens,
                self.model.reasoning.enabled && limits.thinking_tokens >= limits.completion_tokens,
                "thinking can use up the whole completion, with no answer left",
            ),
            (
                Limit::CompletionTokens,
                Limit::TurnTokens,
                limits.completion_tokens > limits.turn_tokens,
                "a completion can never be that long",
            ),
            (
                Limit::MessageBytes,
                Limit::RecordBytes,
                limits.message_bytes > limits.record_bytes,
                "a message can be received that is too long to be kept",
            ),
            (
                Limit::RecordBytes,
                Limit::SessionBytes,
                limits.record_bytes > limits.session_bytes,
                "a record can be longer than a whole session",
            ),
        ];
        let words = |(a, b, applies, why): (Limit, Limit, bool, &str)| {
            let (low, high) = (a.info().key, b.info().key);
            let text =
                format!("[limits] {low} ({}) against {high} ({}): {why}", limits.get(a), limits.get(b));
            applies.then_some(text)
        };
        pairs.into_iter().filter_map(words).collect()
    }
}

/// The places that the file names; the rest follows from the command line and the environment.
struct Places {
    home: Option<PathBuf>,
    socket: Option<PathBuf>,
    url: Option<ModelUrl>,
}

impl Places {
    fn resolve(
        self,
        overrides: &Overrides,
        environment: &Environment,
    ) -> Result<(PathBuf, PathBuf, ModelUrl), ConfigError> {
        let home = match overrides.home.as_deref().map(|path| overridden_path("--home", path)).transpose()? {
            Some(home) => home,
            None => self.home.map_or_else(|| environment.default_home(), Ok)?,
        };
        let socket = match overrides.socket.as_deref() {
            Some(path) => {
                let path = overridden_path("--socket", path)?;
                url::check_socket_path(&path).map_err(|why| ConfigError::Override {
                    flag: "--socket",
                    found: format!("found {}: {why}", quoted(&path.to_string_lossy())),
                    allowed: "allowed is the path of a socket".to_owned(),
                })?;
                path
            }
            None => self.socket.map_or_else(|| environment.socket_for(&home), Ok)?,
        };
        let url = match overrides.model_url.as_deref() {
            Some(text) => text.parse().map_err(|why: UrlError| ConfigError::Override {
                flag: "--model-url",
                found: why.to_string(),
                allowed: url::ALLOWED_URL.to_owned(),
            })?,
            None => self.url.map_or_else(|| environment.model_url_for(&home), Ok)?,
        };
        Ok((home, socket, url))
    }
}

fn overridden_path(flag: &'static str, path: &Path) -> Result<PathBuf, ConfigError> {
    let refuse = |why: String| ConfigError::Override {
        flag,
        found: format!("found {}: {why}", quoted(&path.to_string_lossy())),
        allowed: "allowed is a path".to_owned(),
    };
    let path = std::path::absolute(path).map_err(|e| refuse(e.to_string()))?;
    absolute(&path).map_err(refuse)
}

fn overridden_slot(overrides: &Overrides) -> Result<Option<u32>, ConfigError> {
    match overrides.slot {
        Some(slot) if slot > MAX_SLOT => Err(ConfigError::Override {
            flag: "--slot",
            found: format!("found {slot}"),
            allowed: format!("allowed is a whole number from 0 to {MAX_SLOT}"),
        }),
        slot => Ok(slot),
    }
}

fn socket(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let checked = absolute(path).and_then(|path| url::check_socket_path(&path).map(|()| path));
    checked.map_err(|why| format!("found {}: {why}", quoted(text)))
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
    let check = |text: &str| match long(u64::try_from(text.len()).unwrap_or(u64::MAX)) {
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
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > limit {
        return Err(format!("is longer than {limit} bytes; raise [limits] system_prompt_bytes"));
    }
    std::str::from_utf8(text).map(str::to_owned).map_err(|_| "is not UTF-8".to_owned())
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => ConfigError::Missing(path.to_owned()),
        _ => ConfigError::Io(path.to_owned(), error),
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_FILE_BYTES.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
        return Err(ConfigError::TooLarge(path.to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let lines = error.as_bytes().iter().take(good).filter(|b| **b == b'\n').count();
        ConfigError::NotUtf8(path.to_owned(), lines.saturating_add(1))
    })
}
