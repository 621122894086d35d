//! `bxctl`, the terminal client.
//!
//! Invariants:
//! - It asks the daemon and never touches the store: a session's state is what the daemon says.
//! - What comes from the model, a tool, a user or the daemon is made safe ([`text`]) before it reaches a
//!   terminal. Answers of `send` and exports are exact where they go to a program or a file.
//! - Data goes to the standard output, everything else to the standard error; the exit status
//!   ([`error::status`]) tells the outcome; an output that nobody reads any more ends it in silence.

mod acp;
pub mod args;
mod asking;
mod call;
mod care;
mod chart;
mod chat;
mod completions;
pub mod error;
mod follow;
mod html;
mod keys;
mod layout;
mod link;
mod lists;
mod markdown;
mod pen;
mod plot;
mod rebase;
mod search;
mod send;
mod show;
mod table;
pub mod text;
mod time;
mod transcript;
mod view;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Cli, Command};
use error::{CliError, status};
use layout::{Layout, Style};
use link::Link;
use pen::Ability;

/// Runs `bxctl` with these arguments, the program's name first, and gives its exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let code = match parse(arguments) {
        Ok(cli) => report(start(cli)),
        Err(code) => code,
    };
    ExitCode::from(code)
}

/// Prints the error, if there is one, and gives the exit status.
fn report(result: Result<u8, CliError>) -> u8 {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    if !error.is_silent() {
        let width = pen::row(Ability::of(&std::io::stderr()));
        let line = format!("bxctl: {}\n", text::line(&error.to_string()));
        let mut lines = Layout::whole(&line, Style::Plain, false, width);
        if let CliError::Ambiguous(_, sessions) = &error {
            let table = lists::session_lines(sessions, width);
            lines.extend(table.iter().flat_map(|line| [line, "\n"]));
        }
        // where even the standard error is closed, the exit status must do
        let _ = std::io::stderr().write_all(lines.as_bytes());
    }
    error.status()
}

/// The command line, or the exit status after help or an error was printed.
fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, u8> {
    let error = match Cli::try_parse_from(arguments) {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    if error.use_stderr() {
        let shown = text::block(&error.render().to_string());
        let _ = std::io::stderr().write_all(shown.as_bytes());
        return Err(status::USAGE);
    }
    match error.print() {
        Ok(()) => Err(status::OK),
        Err(e) => Err(report(Err(e.into()))),
    }
}

fn start(cli: Cli) -> Result<u8, CliError> {
    let command = match cli.command {
        Some(command) => command,
        None if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() => {
            Command::Chat(args::Chat::default())
        }
        None => {
            let help = Cli::command().render_long_help().to_string();
            let _ = std::io::stderr().write_all(help.as_bytes());
            return Ok(status::USAGE);
        }
    };
    if let Command::Completions { shell } = command {
        let mut out = std::io::stdout().lock();
        out.write_all(completions::script(shell).as_bytes())?;
        out.flush()?;
        return Ok(status::OK);
    }
    if let Command::Man { folder } = command {
        crate::manual::write(Cli::command(), &folder)?;
        return Ok(status::OK);
    }
    let socket = match cli.socket {
        Some(path) => path,
        None => crate::config::default_socket().map_err(|e| CliError::Failed(e.to_string()))?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| CliError::Failed(format!("cannot start: {e}")))?;
    let result = tokio::task::LocalSet::new().block_on(&runtime, async {
        if matches!(command, Command::Acp) {
            return acp::acp(socket).await;
        }
        let mut link = Link::connect(socket).await?;
        dispatch(&mut link, command).await
    });
    // a thread that waits for input must not hold up the end
    runtime.shutdown_background();
    result
}

async fn dispatch(link: &mut Link, command: Command) -> Result<u8, CliError> {
    match command {
        Command::Chat(options) => return chat::chat(link, options).await,
        Command::Send(options) => return send::send(link, options).await,
        Command::Rebase(options) => return rebase::rebase(link, options).await,
        Command::Retry(options) => return send::retry(link, options).await,
        Command::Doctor(options) => return lists::doctor(link, options.json).await,
        Command::Search(options) => return search::search(link, options).await,
        Command::Fork(options) => care::fork(link, options).await?,
        Command::Metrics => lists::metrics(link).await?,
        Command::Sessions(options) => lists::sessions(link, &options).await?,
        Command::Usage(options) => lists::usage(link, options.session.as_deref(), options.json).await?,
        Command::Status(options) => lists::status(link, options.json).await?,
        Command::Acp | Command::Completions { .. } | Command::Man { .. } => {}
        Command::Show(options) => show::show(link, options).await?,
        Command::Export(options) => show::export(link, options).await?,
        Command::Attach(options) => care::attach(link, options).await?,
        Command::Cancel(options) => care::cancel(link, options.session.as_deref()).await?,
        Command::Approve(options) => care::approve(link, options).await?,
        Command::Rename(options) => care::rename(link, options).await?,
        Command::Delete(options) => care::delete(link, options).await?,
    }
    Ok(status::OK)
}
