//! The terminal client.

use std::process::ExitCode;

fn main() -> ExitCode {
    boxmaker::cli::run(std::env::args_os())
}
