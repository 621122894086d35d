//! How sessions are opened, and what they may come to.

/// What a session may come to. From `[limits]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// The longest line of a log, in bytes.
    pub record_bytes: u64,
    /// All logs of a session together, in bytes. What ends a turn may still be written beyond it.
    pub session_bytes: u64,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self { record_bytes: 16 * 1024 * 1024, session_bytes: 512 * 1024 * 1024 }
    }
}

/// The greatest `record_bytes` that can be set: longer lines are not read.
pub const MAX_RECORD_BYTES: u64 = 64 * 1024 * 1024;

/// What to do at open with a log whose last append was cut off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TornTail {
    /// Refuse, and name the way out.
    #[default]
    Refuse,
    /// Do what `loopd repair` does, and tell.
    Quarantine,
}

/// How sessions are opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// What they may come to.
    pub limits: StoreLimits,
    /// What to do with a torn tail.
    pub torn_tail: TornTail,
}
