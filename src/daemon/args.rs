//! `loopd`'s command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::Overrides;

/// The boxmaker daemon: keeps conversations in an append-only log and drives a local llama-server.
#[derive(Debug, Parser)]
#[command(name = "loopd", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `loopd` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon in the foreground, until SIGTERM
    Serve(Common),
    /// Print the effective configuration, and all that breaks the promise here, with its remedy
    Check {
        /// Where the configuration comes from.
        #[command(flatten)]
        common: Common,
        /// Check the configuration file alone, without asking the model server
        #[arg(long)]
        offline: bool,
    },
    /// Read sessions from the first byte to the last and say whether each is whole
    Verify {
        /// Where the configuration comes from.
        #[command(flatten)]
        common: Common,
        /// The session, by id, beginning of an id, or name; without it, or with --all, every session
        id: Option<String>,
        /// Every session
        #[arg(long, conflicts_with = "id")]
        all: bool,
    },
    /// Cut a torn tail off a session's log; shows what it would do, and does it with --yes
    Repair {
        /// Where the configuration comes from.
        #[command(flatten)]
        common: Common,
        /// The session, by id, beginning of an id, or name
        id: String,
        /// Do it: the cut bytes are kept beside the log
        #[arg(long)]
        yes: bool,
    },
    /// Copy the good records before a damage into a new session; the damaged one stays as it is
    Recover {
        /// Where the configuration comes from.
        #[command(flatten)]
        common: Common,
        /// The damaged session, by id, beginning of an id, or name
        id: String,
        /// The new session's id; generated when absent
        #[arg(long = "as", value_name = "NEW_ID")]
        new_id: Option<String>,
    },
    /// Give a home that was made for another slot or machine to this one; no daemon may be serving it
    Adopt(Common),
    /// List the tools, describe one, or try one with arguments
    ///
    /// Works beside a running daemon, and without one. MCP servers are started for it and ended again.
    Tools {
        /// Where the configuration comes from.
        #[command(flatten)]
        common: Common,
        /// The tool; without it, all are listed
        name: Option<String>,
        /// Call it with these arguments, a JSON object
        #[arg(requires = "name")]
        arguments: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print completions for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder
        folder: PathBuf,
    },
}

/// Where the configuration comes from, and what overrides it.
#[derive(Debug, Args)]
pub struct Common {
    /// The configuration file [default: ~/.config/boxmaker/loopd.toml, else /etc/boxmaker/loopd.toml, if there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The folder that holds the sessions, instead of `daemon.home`
    #[arg(long, value_name = "DIR")]
    pub home: Option<PathBuf>,
    /// The model server's slot, instead of `daemon.slot`
    #[arg(long, value_name = "N")]
    pub slot: Option<u32>,
    /// Where the model server listens (http://HOST:PORT or unix:/PATH), instead of `model.url`
    #[arg(long, value_name = "URL")]
    pub model_url: Option<String>,
    /// Where clients connect, instead of `daemon.socket`
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl Common {
    /// What the command line sets.
    #[must_use]
    pub fn overrides(&self) -> Overrides {
        Overrides {
            home: self.home.clone(),
            slot: self.slot,
            model_url: self.model_url.clone(),
            socket: self.socket.clone(),
        }
    }
}
