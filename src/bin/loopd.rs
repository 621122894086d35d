//! The daemon.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    boxmaker::daemon::run(&boxmaker::daemon::Cli::parse())
}
