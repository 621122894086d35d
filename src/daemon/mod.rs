//! `loopd`: wiring, signals, readiness, watchdog, shutdown.
//!
//! Invariants:
//! - One thread does all the work; what pings the watchdog is what serves the clients.
//! - Nothing of another module is decided here.
//! - No message text and no tool output of a conversation is ever logged.

mod args;
mod check;
mod errors;
mod footprint;
mod journal;
pub mod maintenance;
mod names;
mod pin;
mod serve;
mod service;
mod sessions;
mod status;
mod tools;
mod try_tools;

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::config::Config;

pub use args::{Cli, Command, Common};

/// The exit status of a daemon that cannot ever run as it is configured here (`EX_CONFIG`); the unit does
/// not restart on it.
pub const EXIT_CONFIG: u8 = 78;

/// Does what the command line says.
#[must_use]
pub fn run(cli: &Cli) -> ExitCode {
    match &cli.command {
        Command::Serve(common) => serve::serve(common),
        Command::Check { common, offline } => check::check(common, *offline),
        Command::Verify { common, id, .. } => {
            with_home(common, |home| maintenance::verify(home, id.as_deref()))
        }
        Command::Repair { common, id, yes } => with_home(common, |home| maintenance::repair(home, id, *yes)),
        Command::Recover { common, id, new_id } => {
            with_home(common, |home| maintenance::recover(home, id, new_id.as_deref()))
        }
        Command::Adopt(common) => adopt(common),
        Command::Tools { common, name, arguments, json } => {
            let (name, arguments) = (name.as_deref(), arguments.as_deref());
            try_tools::tools(common, &try_tools::Wanted { name, arguments, json: *json })
        }
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Cli::command(), "loopd", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        Command::Man { folder } => match crate::manual::write(Cli::command(), folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => fail(1, &format!("{}: the man pages cannot be written: {e}", folder.display())),
        },
    }
}

fn fail(status: u8, why: &dyn Display) -> ExitCode {
    eprintln!("loopd: {why}");
    ExitCode::from(status)
}

fn adopt(common: &Common) -> ExitCode {
    let config = match Config::load(common.config.as_deref(), &common.overrides()) {
        Ok(config) => config,
        Err(e) => return fail(EXIT_CONFIG, &e),
    };
    match pin::adopt(&config.daemon) {
        Ok(done) => {
            println!("{done}");
            ExitCode::SUCCESS
        }
        Err(e) => fail(e.status(), &e),
    }
}

fn with_home(common: &Common, work: impl FnOnce(&Path) -> u8) -> ExitCode {
    match Config::load(common.config.as_deref(), &common.overrides()) {
        Ok(config) => ExitCode::from(work(&config.daemon.home)),
        Err(e) => fail(EXIT_CONFIG, &e),
    }
}
