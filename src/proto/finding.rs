//! What was looked at, and whether it breaks the promise.

use serde::{Deserialize, Serialize};

/// How good or bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, but something is lost or cannot be known.
    Warn,
    /// Breaks the promise.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How good or bad it is.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What mends it; empty where nothing needs to be mended, or the words say it.
    pub remedy: String,
}

impl Finding {
    /// Something as it should be.
    #[must_use]
    pub fn ok(what: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), remedy: String::new() }
    }

    /// Something that loses or hides something.
    #[must_use]
    pub fn warn(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warn, what: what.into(), remedy: remedy.into() }
    }

    /// Something that breaks the promise.
    #[must_use]
    pub fn bad(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Bad, what: what.into(), remedy: remedy.into() }
    }
}
