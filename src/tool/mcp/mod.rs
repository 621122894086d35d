//! Tools of servers of the Model Context Protocol, by the protocol's own SDK.
//!
//! ```text
//! Server (started when first needed) ──► Connection (process or HTTP, one handshake) ──► the SDK
//!    └──► McpTool, one a tool that it lists, named `<server>/<tool>`
//! ```
//!
//! Invariants: whatever a server does (hangs, floods, dies, writes what is no JSON), a call of its tools comes back
//! within its limits, with words that a small model can act on; no message of it is held that is longer than
//! [`MESSAGE_BYTES`]; what it said in the call of one session is told to no other; a server that is dropped leaves no
//! process behind.

mod child;
mod connection;
mod content;
mod http;
mod paced;
mod reader;
mod server;

pub use connection::McpTransport;
pub use server::{McpPolicies, McpServer, McpSpec};

/// How long one message of a server may be, in bytes.
pub const MESSAGE_BYTES: usize = 8 * 1024 * 1024;
