//! All that speaks HTTP to the model server, llama.cpp's `llama-server`: is it there, what is it, its
//! tokens, its chat template, its completions and its slot.
//!
//! Invariants:
//! - The prompt it is given is sent as it is, token by token, on one pinned slot.
//! - Dropping a [`Completion`] closes its connection: that cancels it.
//! - It never touches a file, and never hides a failure: each kind has a [`ModelError`] of its own.
//!
//! The facts about the server that this is built on are in `docs/model-server.md`.

mod check;
mod completion;
mod encoded;
mod error;
mod framing;
mod grammar;
mod http;
mod props;
mod reply;
mod server;
mod slots;
mod sse;

pub use check::{Look, Probed};
pub use completion::{Chunk, Completion, CompletionRequest, Final, Stop, ThinkingCap};
pub use error::ModelError;
pub use http::{CONNECT_TIMEOUT, MAX_ANSWER_BYTES};
pub use props::Props;
pub use reply::{CAP_MESSAGE, ParsedCall, Part, Reply, ReplyParser, cap_text};
pub use server::{HEALTH_SILENCE, LONGEST_PAUSE, Server, Special, WAIT_NOTICE};
pub use slots::{SLOT_FILE_SILENCE, SavedSlot};
pub use sse::MAX_EVENT_BYTES;
