//! `sessions`, `usage` and `status`: what the daemon knows, as tables or JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::args::Sessions;
use super::completions;
use super::error::{CliError, status};
use super::follow::json_line;
use super::link::{Link, unexpected};
use super::pen;
use super::table::{Column, layout};
use super::time::minute;
use super::{plot, text};
use crate::proto::{
    Finding, Level, Reply, Request, ServerState, SessionId, SessionInfo, SessionState, Status, Timestamp,
    TurnOutcome, TurnUsage,
};

/// `bxctl sessions`.
///
/// # Errors
/// [`Link::ask`]'s, or when the output cannot be written.
pub async fn sessions(link: &mut Link, options: &Sessions) -> Result<(), CliError> {
    let sessions = link.sessions().await?;
    if options.complete {
        return print(&completions::choices(&sessions));
    }
    if options.json {
        return json_line(&sessions.iter().map(SessionRow::from).collect::<Vec<_>>());
    }
    if sessions.is_empty() {
        return print(&["no sessions yet; `bxctl chat` begins one".to_owned()]);
    }
    print(&session_lines(&sessions, pen::columns()))
}

/// A session in `bxctl sessions --json`: these keys and no others.
#[derive(Serialize)]
struct SessionRow<'a> {
    id: &'a SessionId,
    name: Option<&'a str>,
    title: Option<&'a str>,
    state: SessionState,
    started: Option<Timestamp>,
    last: Option<Timestamp>,
    messages: u64,
    turns: u64,
    context_n: u64,
    reason: Option<&'a str>,
}

impl<'a> From<&'a SessionInfo> for SessionRow<'a> {
    fn from(info: &'a SessionInfo) -> Self {
        Self {
            id: &info.id,
            name: info.name.as_deref(),
            title: info.title.as_deref(),
            state: info.state,
            started: info.started,
            last: info.last,
            messages: info.messages,
            turns: info.turns,
            context_n: info.context_n,
            reason: info.reason.as_deref(),
        }
    }
}

/// The word for a state, the same as in JSON.
#[must_use]
pub fn state_word(state: SessionState) -> &'static str {
    match state {
        SessionState::Ok => "ok",
        SessionState::Running => "running",
        SessionState::Interrupted => "interrupted",
        SessionState::Damaged => "damaged",
    }
}

/// The table of sessions.
#[must_use]
pub fn session_lines(sessions: &[SessionInfo], width: Option<usize>) -> Vec<String> {
    let columns = [
        Column::left("ID", 0),
        Column::left("TITLE", 0).at_least(12).rather(30),
        Column::left("STATE", 0),
        Column::left("LAST", 2),
        Column::right("TURNS", 3),
        Column::right("MESSAGES", 6),
        Column::right("CONTEXT", 4),
        Column::left("STARTED", 7),
        Column::left("MODEL", 5).at_least(8),
    ];
    let rows: Vec<Vec<String>> = sessions
        .iter()
        .map(|s| {
            let time = |t: Option<Timestamp>| t.map(minute).unwrap_or_default();
            vec![
                s.id.to_string(),
                s.name_or_title().unwrap_or_default().to_owned(),
                state_word(s.state).to_owned(),
                time(s.last),
                s.turns.to_string(),
                s.messages.to_string(),
                s.context_n.to_string(),
                time(s.started),
                s.model.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let mut lines = layout(&columns, &rows, width);
    for s in sessions {
        if let Some(reason) = &s.reason {
            let line = format!("{}: {}: {}", s.id, state_word(s.state), text::line(reason));
            lines.push(String::new());
            match width {
                Some(width) => lines.extend(text::wrap(&line, width)),
                None => lines.push(line),
            }
        }
    }
    lines
}

/// `bxctl usage`.
///
/// # Errors
/// [`Link::ask`]'s, or when the output cannot be written.
pub async fn usage(link: &mut Link, session: Option<&str>, json: bool) -> Result<(), CliError> {
    let info = link.choose(session).await?;
    let turns = link.usage(&info.id).await?;
    if json { json_line(&turns) } else { print(&usage_lines(&info, &turns, pen::columns())) }
}

/// `bxctl metrics`.
///
/// # Errors
/// [`Link::ask`]'s, or when the output cannot be written.
pub async fn metrics(link: &mut Link) -> Result<(), CliError> {
    match link.ask(Request::Metrics {}).await? {
        Reply::Metrics { text } => {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes())?;
            Ok(out.flush()?)
        }
        reply => Err(unexpected(&reply)),
    }
}

/// The table and the plot of `bxctl usage`.
#[must_use]
pub fn usage_lines(info: &SessionInfo, turns: &[TurnUsage], width: Option<usize>) -> Vec<String> {
    let name = info.name.as_ref().map(|name| format!(" \"{}\"", text::line(name))).unwrap_or_default();
    if turns.is_empty() {
        return vec![format!("session {}{name} has no turns yet", info.id)];
    }
    let columns = [
        Column::right("TURN", 0),
        Column::right("CACHED", 0),
        Column::right("EVALUATED", 0),
        Column::right("NEW", 3),
        Column::right("AGAIN", 1),
        Column::right("GENERATED", 2),
        Column::right("SECONDS", 4),
        Column::left("OUTCOME", 5),
    ];
    let cells = |t: &TurnUsage| {
        vec![
            row_name(t),
            t.cache_n.to_string(),
            t.prompt_n.to_string(),
            t.new_n.to_string(),
            t.lost_n.to_string(),
            t.predicted_n.to_string(),
            format!("{:.1}", t.seconds),
            if t.epoch.is_some() { "summary" } else { outcome_word(t.outcome) }.to_owned(),
        ]
    };
    let mut rows: Vec<Vec<String>> = turns.iter().map(cells).collect();
    if turns.len() > 1 {
        rows.push(sum(turns));
    }
    let mut lines = vec![text::cut(&format!("session {}{name}", info.id), width.unwrap_or(usize::MAX))];
    lines.extend(layout(&columns, &rows, width));
    let width = width.unwrap_or(pen::DEFAULT_COLUMNS);
    lines.extend(legend(width));
    lines.push(String::new());
    lines.extend(plot::bars(turns, width));
    lines
}

/// What the columns mean.
fn legend(width: usize) -> Vec<String> {
    text::wrap(
        "tokens: CACHED came from the model server's cache; EVALUATED were read by the model: the NEW ones, and \
         AGAIN those that the cache had lost; GENERATED were written by it",
        width,
    )
}

/// A turn's number; of a summary, the epoch that began with it.
#[must_use]
pub fn row_name(row: &TurnUsage) -> String {
    row.epoch.map_or_else(|| row.turn.to_string(), |epoch| format!("E{epoch}"))
}

fn sum(turns: &[TurnUsage]) -> Vec<String> {
    let of = |count: fn(&TurnUsage) -> u64| turns.iter().map(count).fold(0, u64::saturating_add).to_string();
    vec![
        "all".to_owned(),
        of(|t| t.cache_n),
        of(|t| t.prompt_n),
        of(|t| t.new_n),
        of(|t| t.lost_n),
        of(|t| t.predicted_n),
        format!("{:.1}", turns.iter().map(|t| t.seconds).sum::<f64>()),
        String::new(),
    ]
}

/// The word for an outcome; a turn without one runs, or was interrupted.
#[must_use]
pub fn outcome_word(outcome: Option<TurnOutcome>) -> &'static str {
    match outcome {
        Some(TurnOutcome::Done) => "done",
        Some(TurnOutcome::Cancelled) => "cancelled",
        Some(TurnOutcome::Failed) => "failed",
        Some(TurnOutcome::Limit) => "limit",
        None => "open",
    }
}

/// `bxctl status`.
///
/// # Errors
/// [`Link::ask`]'s, or when the output cannot be written.
pub async fn status(link: &mut Link, json: bool) -> Result<(), CliError> {
    let status = match link.ask(Request::Status {}).await? {
        Reply::Status { status } => status,
        reply => return Err(unexpected(&reply)),
    };
    if json { json_line(&status) } else { print(&status_lines(&status, pen::columns())) }
}

/// `bxctl doctor`; its exit status.
///
/// # Errors
/// [`Link::ask`]'s, or when the output cannot be written.
pub async fn doctor(link: &mut Link, json: bool) -> Result<u8, CliError> {
    let findings = match link.ask(Request::Doctor {}).await? {
        Reply::Findings { findings } => findings,
        reply => return Err(unexpected(&reply)),
    };
    let reasons: Vec<&Finding> = findings.iter().filter(|f| f.level != Level::Ok).collect();
    if json {
        json_line(&findings)?;
    } else if reasons.is_empty() {
        print(&[format!(
            "no reason found why the promise would not hold here ({} looked at)",
            findings.len()
        )])?;
    } else {
        print(
            &reasons.iter().flat_map(|finding| finding_lines(finding, pen::columns())).collect::<Vec<_>>(),
        )?;
    }
    Ok(if reasons.is_empty() { status::OK } else { status::FAILED })
}

fn finding_lines(finding: &Finding, width: Option<usize>) -> Vec<String> {
    let mark = if finding.level == Level::Bad { "problem" } else { "risk" };
    let mut lines = titled(("  remedy".len(), mark), &finding.what, width);
    if !finding.remedy.is_empty() {
        lines.extend(titled(("  remedy".len(), "  remedy"), &finding.remedy, width));
    }
    lines
}

/// A value behind its title, which has so many columns; broken, where it is too long, beside the title.
fn titled((columns, title): (usize, &str), value: &str, width: Option<usize>) -> Vec<String> {
    let value = text::line(value);
    let pieces = match width {
        Some(width) => text::wrap(&value, width.saturating_sub(columns.saturating_add(2)).max(10)),
        None => vec![value],
    };
    let titles = std::iter::once(title).chain(std::iter::repeat(""));
    titles.zip(pieces).map(|(title, piece)| format!("{title:columns$}  {piece}")).collect()
}

fn status_lines(s: &Status, width: Option<usize>) -> Vec<String> {
    let server = match s.server {
        ServerState::Ready => "ready",
        ServerState::Loading => "loading its model",
        ServerState::Unreachable => "not reachable",
        ServerState::Failing => "failing",
    };
    let detail = s.server_detail.as_ref().map(|d| format!(": {d}")).unwrap_or_default();
    let session = |id: &Option<SessionId>| id.as_ref().map_or("none".to_owned(), SessionId::to_string);
    let context = s.n_ctx.map_or("unknown".to_owned(), |n| format!("{n} tokens"));
    let lost = match &s.last_loss {
        Some(last) => format!("{} tokens evaluated again since the start; last: {last}", s.lost_n),
        None => format!("{} tokens evaluated again since the start", s.lost_n),
    };
    let mut rows = vec![
        ("daemon", format!("{}, process {}, up {}", s.daemon, s.pid, duration(s.uptime_s))),
        ("home", s.home.clone()),
        ("model server", format!("{server}{detail}")),
        ("address", s.url.clone()),
        ("model", s.model.clone().unwrap_or_else(|| "unknown".to_owned())),
        ("context", context),
        ("slot", format!("{}, holding session {}", s.slot, session(&s.slot_session))),
        ("running", session(&s.running)),
        ("waiting", text::counted(s.waiting, "turn")),
        (
            "open",
            format!("{}, {}", text::counted(s.open_sessions, "session"), text::counted(s.clients, "client")),
        ),
        ("cache", lost),
    ];
    if s.oldest_sync_ms > 0 {
        rows.push(("disk", format!("a write has been under way for {} ms", s.oldest_sync_ms)));
    }
    let columns = rows.iter().map(|(title, _)| title.len()).max().unwrap_or(0);
    rows.iter().flat_map(|(title, value)| titled((columns, title), value, width)).collect()
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, m) => format!("{m} min"),
        (0, h, m) => format!("{h} h {m} min"),
        (d, h, _) => format!("{d} d {h} h"),
    }
}

/// Prints lines that are safe already.
///
/// # Errors
/// When the output cannot be written.
pub fn print(lines: &[String]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
#[path = "lists_tests.rs"]
mod tests;
