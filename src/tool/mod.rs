//! Tools: the port that each of them implements, the registry behind the only two that the model sees, and
//! the tools themselves.
//!
//! ```text
//! the model's call ──► Registry::prepare ──► Answer            find_tool, or a call that cannot be made: nothing ran
//!                                        └─► Run (policy, …) ──► Run::run ──► ToolReply
//! ```
//!
//! Invariants:
//! - [`Registry::shown`] is a constant: installing, removing or reordering tools never changes the prompt.
//! - `prepare` starts nothing. Only [`Run::run`] does, it takes the run by value, and so a prepared call
//!   runs at most once.
//! - Whatever a tool does (hangs, floods, dies, panics), `run` returns a [`ToolReply`] within its time limit and
//!   a few seconds, and holds no more of the output than the limit and a constant.
//! - Never touches the log; the only files written are spill files, where the caller says.

mod adopted;
mod arguments;
mod cancel;
mod command;
mod confine;
mod cost;
mod excerpt;
mod find;
mod mcp;
mod name;
mod port;
mod process;
mod read_session;
mod registry;
mod report;
mod run;
mod schema;
mod spill;
mod sweep;
mod time;

pub use adopted::{is_a_tools, reap_for_ever};
pub use cancel::Cancel;
pub use command::{CommandSpec, CommandTool};
pub use confine::{ConfineError, Reach, landlock_version};
pub use mcp::{MESSAGE_BYTES, McpPolicies, McpServer, McpSpec, McpTransport};
pub use port::{
    CallContext, Earlier, EarlierFuture, Passage, Policy, SpillTarget, Tool, ToolDescription, ToolFuture,
    ToolLimits, ToolReply,
};
pub use process::Rlimits;
pub use read_session::ReadSession;
pub use registry::{Installed, Prepared, Registry, RegistryError};
pub use run::Run;
pub use time::Time;
