//! Does the server keep the promise?
/// How good or bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, but not always.
    Warn,
    /// Breaks the promise.
    Bad,
}
/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What mends it; empty when nothing needs to be.
    pub remedy: String,
}
/// Whether tiny requests may be sent, which replace what the slot's cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// No.
    Never,
    /// Only when the cache is empty.
    IfEmpty,
    /// In any case.
    Always,
}
