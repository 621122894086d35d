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
use std::path::{Path, PathBuf};

mod environment;
mod error;
mod known;
mod limits;
mod model;
mod places;
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
pub use model::{DEFAULT_SYSTEM_PROMPT, KvAtShutdown, ModelConfig};
pub use schema::{MAX_SCHEMA_BYTES, ToolSchema};
pub use secret::{ApiKey, MAX_API_KEY_BYTES, Secret};
pub use tools::{
    CommandTool, MAX_DESCRIPTION_BYTES, McpServer, McpTransport, Policy, Reach, ToolsConfig, Unattended,
};
pub use url::{MAX_SOCKET_PATH_BYTES, ModelUrl, UrlError};

use places::{Places, Resolved};
use read::{Choice, Source, Table};

/// The longest configuration file, in bytes.
pub const MAX_FILE_BYTES: u64 = 1_048_576;

/// The highest number that `[daemon] slot` can have.
pub const MAX_SLOT: u32 = 1_023;

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
        let daemon = root.table("daemon", known::DAEMON);
        let model = root.table("model", known::MODEL);
        let limits = Limits::read(&root.table("limits", limits::KEYS));
        let tools = ToolsConfig::read(&root.table("tools", known::TOOLS));
        let slot = daemon.whole_u32("slot", 0..=MAX_SLOT).unwrap_or(0);
        let log_level = daemon.choice("log_level").unwrap_or(LogLevel::Info);
        let torn_tail = daemon.choice("torn_tail").unwrap_or(TornTail::Refuse);
        let places = Places::read(&daemon, &model);
        let model = ModelConfig::read(&model, origin, &limits);
        if !source.is_sound() {
            return Err(ConfigError::Invalid(source.into_problems()));
        }
        let Resolved { home, socket, slot, url } = places.resolve(slot, overrides, environment)?;
        Ok(Self {
            daemon: DaemonConfig { home, socket, slot, log_level, torn_tail },
            model: model(url),
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

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => ConfigError::Missing(path.to_owned()),
        _ => ConfigError::Io(path.to_owned(), error),
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_FILE_BYTES.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if crate::proto::count(bytes.len()) > MAX_FILE_BYTES {
        return Err(ConfigError::TooLarge(path.to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let lines = error.as_bytes().iter().take(good).filter(|b| **b == b'\n').count();
        ConfigError::NotUtf8(path.to_owned(), lines.saturating_add(1))
    })
}
