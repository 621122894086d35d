//! Looking after sessions: `attach`, `cancel`, `approve`, `rename`, `fork`, `delete`.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use super::args::{Approve, Attach, Delete, Fork, Rename, YesNo};
use super::asking::{self, Said};
use super::error::CliError;
use super::follow::{INTERRUPTED, Output, json_line};
use super::link::{Arrival, Link};
use super::lists::print;
use super::pen::Pen;
use super::text;
use crate::proto::{CallId, Decision, Request, SessionInfo, TurnId};

/// `bxctl attach`: shows what happens in a session until the user ends it.
///
/// # Errors
/// The daemon does not come back, or the output cannot be written.
pub async fn attach(link: &mut Link, options: Attach) -> Result<(), CliError> {
    let info = link.choose(options.session.as_deref()).await?;
    let mut pen = Pen::split();
    let mut running = link.watch(&info.id).await?;
    let state = if running { "a turn is running" } else { "no turn is running; waiting for the next" };
    pen.note(&format!("session {}: {state} (Ctrl-C goes away, and cancels nothing)", called(&info)))?;
    let mut output = Output::new(options.json);
    loop {
        match link.next(&mut pen).await? {
            Arrival::Event(event) => {
                output.event(&mut pen, &event)?;
                if let Said::Asked(wanted) = asking::said(&event.kind) {
                    pen.note(&asking::hint(&info.id, wanted.call))?;
                }
            }
            Arrival::Back { running: now, restarted } => {
                if restarted && running {
                    pen.end_answer()?;
                    pen.warn(INTERRUPTED)?;
                    output = Output::new(options.json);
                }
                running = now;
            }
        }
    }
}

/// `bxctl cancel`.
///
/// # Errors
/// [`Link::ask`]'s: there may be nothing to cancel.
pub async fn cancel(link: &mut Link, session: Option<&str>) -> Result<(), CliError> {
    let info = link.choose(session).await?;
    link.ask(Request::Cancel { session: info.id.clone() }).await?;
    Ok(Pen::split().note(&format!("session {}: the turn is cancelled", called(&info)))?)
}

/// `bxctl approve`.
///
/// # Errors
/// [`Link::ask`]'s: the call may not wait for an answer.
pub async fn approve(link: &mut Link, options: Approve) -> Result<(), CliError> {
    let info = link.resolve(&options.session).await?;
    let (decision, what) = match options.answer {
        YesNo::Yes => (Decision::Allow, "allowed"),
        YesNo::No => (Decision::Deny, "denied"),
    };
    let call = CallId(options.call);
    link.ask(Request::Approve { session: info.id.clone(), call, decision }).await?;
    Ok(Pen::split().note(&format!("session {}: call {call} is {what}", called(&info)))?)
}

/// `bxctl rename`.
///
/// # Errors
/// [`Link::ask`]'s.
pub async fn rename(link: &mut Link, options: Rename) -> Result<(), CliError> {
    let info = link.resolve(&options.session).await?;
    link.ask(Request::Rename { session: info.id.clone(), name: options.name.clone() }).await?;
    let mut pen = Pen::split();
    pen.note(&format!("session {} is \"{}\" now", info.id, text::line(&options.name)))?;
    warn_if_shared(link, &mut pen, Some(&options.name)).await
}

/// Says that a name that was just given is not the only one of its kind.
///
/// # Errors
/// The daemon went away, or the output cannot be written.
pub async fn warn_if_shared(link: &mut Link, pen: &mut Pen, name: Option<&str>) -> Result<(), CliError> {
    match name {
        Some(name) => Ok(link.shared(name).await?.map_or(Ok(()), |why| pen.warn(&why))?),
        None => Ok(()),
    }
}

/// `bxctl fork`: the new session's id goes to the standard output.
///
/// # Errors
/// [`Link::ask`]'s: there may be no such turn.
pub async fn fork(link: &mut Link, options: Fork) -> Result<(), CliError> {
    let info = link.choose(options.session.as_deref()).await?;
    let (forked, _) = link.fork(&info.id, options.turn.map(TurnId), options.name.clone()).await?;
    let first = match forked.turns {
        1 => "first turn".to_owned(),
        turns => format!("first {turns} turns"),
    };
    let mut pen = Pen::split();
    pen.note(&format!("a new session with the {first} of {}:", called(&info)))?;
    warn_if_shared(link, &mut pen, options.name.as_deref()).await?;
    if options.json { json_line(&forked) } else { print(&[forked.id.to_string()]) }
}

/// `bxctl delete`.
///
/// # Errors
/// [`Link::ask`]'s; the user says no; or nobody can be asked.
pub async fn delete(link: &mut Link, options: Delete) -> Result<(), CliError> {
    let info = link.resolve(&options.session).await?;
    if !options.yes {
        confirm(&info)?;
    }
    link.ask(Request::Delete { session: info.id.clone() }).await?;
    Ok(Pen::split().note(&format!("session {} is deleted", called(&info)))?)
}

fn confirm(info: &SessionInfo) -> Result<(), CliError> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        let why = "delete asks on a terminal, and this is none; --yes deletes without asking";
        return Err(CliError::Usage(why.to_owned()));
    }
    let mut err = io::stderr().lock();
    let messages = text::counted(info.messages, "message");
    write!(err, "delete session {} with its {messages} for ever? [y/N] ", called(info))?;
    err.flush()?;
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|e| CliError::Failed(format!("cannot read the answer: {e}")))?;
    if asking::answer(&answer) == Some(Decision::Allow) {
        Ok(())
    } else {
        Err(CliError::Failed("not deleted".to_owned()))
    }
}

/// Columns of a title behind an id.
pub const TITLE_COLUMNS: usize = 40;

/// A session's id, and its name or title if it has one; safe.
pub fn called(info: &SessionInfo) -> String {
    match &info.name {
        Some(name) => format!("{} \"{}\"", info.id, text::line(name)),
        None => match &info.title {
            Some(title) => format!("{} ({})", info.id, text::cut(&text::line(title), TITLE_COLUMNS)),
            None => info.id.to_string(),
        },
    }
}
