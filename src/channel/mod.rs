//! The channel: a Unix socket, one JSON object a line, split at 0x0A only. `docs/channel.md` is its
//! description for people who write clients; the messages are in [`proto`](crate::proto).
//!
//! ```text
//!             ┌ connection ── requests ──► Service (the daemon)
//! Listener ─► │     ▲                         │
//!             │   Outbox ◄── events ── Hub ◄──┘ publish
//!             └────────────── one each client
//! ```
//!
//! Invariants:
//! - Nothing a client does or doesn't do holds up [`Hub::publish`], a request of another client, or the
//!   accepting of clients; and it makes no memory grow beyond [`ChannelLimits`].
//! - Each request gets exactly one answer, in whatever way it ends.
//! - A request that has begun is never dropped because its client went away.
//! - The numbers of a session's events only grow; a client sees no gap that isn't closed by a snapshot.
//! - This module does not know what a turn means: it hands requests to a [`Service`].

mod client;
mod connection;
mod error;
mod frame;
mod hub;
mod limits;
mod listener;
mod lock;
mod outbox;
mod server;

pub use client::{Client, ClientError};
pub use error::{ChannelError, MAX_PATH_BYTES};
pub use hub::Hub;
pub use limits::ChannelLimits;
pub use listener::{Listener, SOCKET_MODE};
pub use lock::{Holder, HomeLock, LOCK_FILE, SlotsLock};
pub use server::{Peer, Service, serve};
