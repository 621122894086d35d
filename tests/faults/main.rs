//! Faults of a real machine under the real daemon: what a client sees, what the log holds, and what works
//! afterwards without a restart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs, reason = "tests")]

mod disk;
mod heals;
mod kill;
mod refused;
#[path = "../store_support/mod.rs"]
mod store_support;
#[path = "../support/mod.rs"]
mod support;
