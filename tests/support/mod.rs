//! Helpers for tests that run the real programs against a real model server.

#![allow(dead_code, reason = "each test crate uses its own part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod bench;
mod checks;
pub mod daemon;
#[allow(clippy::duplicate_mod, reason = "tests of tools have it by itself")]
pub mod memory;
pub mod mounted;
pub mod parts;
#[allow(missing_docs, clippy::duplicate_mod)]
pub mod random;
pub mod real_server;
pub mod rig;
#[allow(missing_docs)]
pub mod scripted_server;
pub mod slow_tool;
pub mod talk;

use std::time::{Duration, Instant};

#[allow(unused_imports, reason = "each test crate uses its own part of this")]
pub use parts::{skip, skip_everywhere};

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
