//! `send` and `retry`: one turn, for scripts.

use std::io::{IsTerminal as _, Read as _};

use super::args::{Retry, Send};
use super::care::called;
use super::error::CliError;
use super::follow::{Interrupts, Nobody, Output, follow};
use super::link::Link;
use super::pen::Pen;
use crate::proto::{Request, SessionInfo};

/// The longest message read from the standard input, in bytes; the daemon's own limit is lower.
const STDIN_BYTES: u64 = 64 << 20;

/// `bxctl send`; gives the exit status.
///
/// # Errors
/// See [`CliError`].
pub async fn send(link: &mut Link, options: Send) -> Result<u8, CliError> {
    let text = if options.text.is_empty() { read_stdin()? } else { options.text.join(" ") };
    let info = target(link, &options).await?;
    let request = Request::Send { session: info.id.clone(), text };
    one_turn(link, &info, request, options.json).await
}

/// `bxctl retry`; gives the exit status.
///
/// # Errors
/// See [`CliError`].
pub async fn retry(link: &mut Link, options: Retry) -> Result<u8, CliError> {
    let info = link.choose(options.session.as_deref()).await?;
    let request = Request::Retry { session: info.id.clone() };
    one_turn(link, &info, request, options.json).await
}

async fn target(link: &mut Link, options: &Send) -> Result<SessionInfo, CliError> {
    if options.new {
        return link.create(None).await;
    }
    if options.last || options.session.is_some() {
        return link.choose(options.session.as_deref()).await;
    }
    match link.latest().await? {
        Some(info) => Ok(info),
        None => link.create(None).await,
    }
}

async fn one_turn(link: &mut Link, info: &SessionInfo, request: Request, json: bool) -> Result<u8, CliError> {
    let mut pen = Pen::split();
    if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
        link.approves();
    }
    // first attach, then ask: so no event of the turn is missed
    link.watch(&info.id).await?;
    let turn = link.begin(request).await?;
    pen.note(&format!("session {}, turn {turn}", called(info)))?;
    // from here on Ctrl-C cancels the turn
    let mut interrupts = Interrupts::new()?;
    let mut output = Output::new(json);
    output.own_turn(turn);
    let ending =
        follow(link, &mut pen, &mut output, &mut interrupts, &mut Nobody, (&info.id, Some(turn))).await?;
    pen.end_line()?;
    Ok(ending.status())
}

fn read_stdin() -> Result<String, CliError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        let mut pen = Pen::split();
        pen.note("type the message; Ctrl-D on an empty line sends it")?;
    }
    let mut bytes = Vec::new();
    stdin
        .lock()
        .take(STDIN_BYTES.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|e| CliError::Failed(format!("cannot read the standard input: {e}")))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > STDIN_BYTES {
        let mib = STDIN_BYTES >> 20;
        return Err(CliError::Usage(format!("the message on the standard input is longer than {mib} MiB")));
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        CliError::Usage(format!("the message on the standard input is not UTF-8: the byte at {at} is wrong"))
    })
}
