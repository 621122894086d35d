//! boxmaker: an always-on agent for a small Linux board with a local language model.
//!
//! `loopd`, the daemon, keeps every conversation in an append-only log and drives the board's own
//! `llama-server` through one pinned slot; `bxctl` is the terminal client. Pull the plug at any instant:
//! nothing that anyone was told is saved is lost, and the model evaluates no token of the conversation
//! twice.
//!
//! ```text
//! bxctl ──► channel ──► agent (one turn at a time a session) ──► model   (llama-server, one pinned slot)
//!                         │                         └──────────► tool    (find_tool, call_tool)
//!                         └──► store  (sessions on disk; io_uring: ordered write, fdatasync)
//! ```
//!
//! | module | its one job | its invariant |
//! |---|---|---|
//! | [`proto`] | the types that are written down | no I/O at all |
//! | [`config`] | the four tables of the configuration file | knows only `proto` |
//! | [`store`] | sessions on disk | a record is on disk, synced, before it is in memory; never touches a socket |
//! | [`model`] | all that speaks HTTP to the model server | the prompt it is given is sent as it is; never touches a file |
//! | [`tool`] | the port, the registry, the tools | never touches the log |
//! | [`agent`] | replay and the turn loop | the prompt only ever grows; knows no socket, HTTP or path |
//! | [`channel`] | the socket: framing, server, client | a slow client holds up nobody; does not know what a turn means |
//! | [`daemon`] | `loopd`: wiring, signals, readiness | takes no decision of another module |
//! | [`cli`] | `bxctl` | asks the daemon, never the store |
//! | `manual` | the man pages of both programs | knows no command |

pub mod agent;
pub mod channel;
pub mod cli;
pub mod config;
pub mod daemon;
mod manual;
pub mod model;
pub mod proto;
pub mod store;
pub mod tool;
