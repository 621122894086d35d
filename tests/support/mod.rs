//! Helpers for tests that run the real programs against a real model server.
//!
//! A test that cannot run on this machine calls [`skip`] and returns. It then counts as skipped, with its
//! reason, not as passed: `tests/tools/run-tests` reads the reasons from the file in `$BOXMAKER_SKIPS`.

#![allow(dead_code, reason = "each test crate uses its own part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod bench;
pub mod daemon;
pub mod real_server;
pub mod rig;
#[allow(missing_docs)]
pub mod scripted_server;
pub mod talk;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Says that the running test cannot run here, and why. The caller returns.
///
/// # Panics
/// In CI, where every test must be able to run, and when the reason cannot be kept.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let name = std::env::var("NEXTEST_TEST_NAME").ok();
    let name = name.as_deref().or(thread.name()).unwrap_or("a test");
    let name = match std::env::var("NEXTEST_BINARY_ID") {
        Ok(binary) => format!("{binary} {name}"),
        Err(_) => name.to_owned(),
    };
    assert!(std::env::var_os("CI").is_none(), "{name} cannot run, and in CI every test must: {reason}");
    eprintln!("skipped: {name}: {reason}");
    if let Some(path) = std::env::var_os("BOXMAKER_SKIPS") {
        let line = format!("{name}\t{}\n", reason.replace('\n', " "));
        let mut file =
            OpenOptions::new().append(true).create(true).open(&path).expect("open $BOXMAKER_SKIPS");
        file.write_all(line.as_bytes()).expect("write $BOXMAKER_SKIPS");
    }
}

/// Waits until `what` holds, by asking again and again.
///
/// # Panics
/// When it does not within `limit`.
pub fn wait_until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < limit, "waited {limit:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
