//! Turns that last: a tool that takes its time, for tests of what ends a turn early.

use std::fs;
use std::path::Path;

use boxmaker::proto::SessionId;

use super::bench::{Bench, begun_with};
use super::talk::Talk;

/// A tool that notes that it began, and then takes its time.
pub fn slow(dir: &Path) -> String {
    format!(
        "[tools.command.slow]\nprogram = \"/bin/sh\"\nargs = [\"-c\", \"echo begun >> {}; sleep 60; echo ended\"]\n\
         description = \"Takes its time.\"\npolicy = \"allow\"\n",
        dir.join("notes").display()
    )
}

/// What a model writes that calls it.
pub const SLOW: &str = "<tool_call>\n{\"name\": \"slow\", \"arguments\": {}}\n</tool_call>";

/// A bench with that tool, a client and a session; `limits` are lines for `[limits]`.
pub fn begun(limits: &str) -> (Bench, Talk, SessionId) {
    begun_with(limits, slow)
}

/// How often the tool was started.
pub fn runs(bench: &Bench) -> usize {
    fs::read_to_string(bench.dir().join("notes")).unwrap_or_default().lines().count()
}
