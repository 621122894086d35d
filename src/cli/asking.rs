//! A tool call that waits for a person, asked in place.

use super::error::CliError;
use super::follow::Aside;
use super::keys::{Keys, Pressed};
use super::link::Link;
use super::pen::Pen;
use super::text;
use crate::proto::{ApprovalWanted, CallId, Decision, ErrorCode, EventKind, Request, SessionId};

/// How many characters of a call's arguments are shown with the question.
const SHOWN_CHARS: usize = 2_000;

/// What an event says about a question.
pub enum Said<'a> {
    /// A call waits.
    Asked(&'a ApprovalWanted),
    /// None does any more.
    Over,
    /// Nothing.
    Nothing,
}

/// What an event says about a question.
#[must_use]
pub fn said(kind: &EventKind) -> Said<'_> {
    match kind {
        EventKind::ApprovalWanted { wanted } => Said::Asked(wanted),
        EventKind::Snapshot { snapshot } => snapshot.approval.as_ref().map_or(Said::Over, Said::Asked),
        EventKind::Approval { .. } | EventKind::TurnEnd { .. } => Said::Over,
        _ => Said::Nothing,
    }
}

/// What would run, in lines.
#[must_use]
pub fn question(wanted: &ApprovalWanted) -> Vec<String> {
    let ApprovalWanted { call, name, arguments } = wanted;
    let cut = arguments.char_indices().nth(SHOWN_CHARS).map_or(arguments.len(), |(at, _)| at);
    let shown = text::line(arguments.get(..cut).unwrap_or_default());
    let mut lines = vec![format!("⚙ call {call} wants to run {}: {shown}", text::line(name))];
    if cut < arguments.len() {
        lines.push(format!("… and {} bytes more of arguments, not shown", arguments.len() - cut));
    }
    lines
}

/// How to answer where nobody can be asked.
#[must_use]
pub fn hint(session: &SessionId, call: CallId) -> String {
    format!("it waits for an approval: bxctl approve {session} {call} yes|no")
}

/// The question that stands, while a turn is followed.
pub struct Asking<'a> {
    session: &'a SessionId,
    stands: Option<CallId>,
    /// The keyboard, where nobody else has it.
    own: Option<Keys>,
}

impl<'a> Asking<'a> {
    /// No question stands.
    pub fn new(session: &'a SessionId) -> Self {
        Self { session, stands: None, own: None }
    }

    /// Takes an event into account: asks, or stops asking.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn event(
        &mut self,
        link: &Link,
        pen: &mut Pen,
        aside: &mut impl Aside,
        kind: &EventKind,
    ) -> Result<(), CliError> {
        let stands = match said(kind) {
            Said::Nothing => return Ok(()),
            Said::Over => None,
            Said::Asked(wanted) => Some(wanted.call),
        };
        if stands == self.stands {
            return Ok(());
        }
        self.stands = stands;
        self.own = None;
        if stands.is_none() || !link.can_approve() {
            aside.asks(false);
            return match stands {
                Some(call) => Ok(pen.note(&hint(self.session, call))?),
                None => Ok(()),
            };
        }
        if !aside.asks(true) {
            self.own = Keys::start().ok();
        }
        prompt(pen, "")
    }

    /// Waits for what is typed.
    pub async fn pressed(&mut self) -> Pressed {
        match &mut self.own {
            Some(keys) => keys.next().await,
            None => std::future::pending().await,
        }
    }

    /// Sends the answer; where what was typed is none, asks again.
    ///
    /// # Errors
    /// As [`decide`].
    pub async fn answered(
        &mut self,
        link: &mut Link,
        pen: &mut Pen,
        decision: Option<Decision>,
    ) -> Result<(), CliError> {
        match (decision, self.stands) {
            (Some(decision), Some(call)) => decide(link, pen, self.session, call, decision).await,
            (None, Some(_)) => prompt(pen, ""),
            (_, None) => Ok(()),
        }
    }
}

/// The decision that a line is, if it is one: a whole word.
#[must_use]
pub fn answer(line: &str) -> Option<Decision> {
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Some(Decision::Allow),
        "n" | "no" => Some(Decision::Deny),
        _ => None,
    }
}

/// Shows that an answer is wanted, and what is typed of it.
///
/// # Errors
/// When the output cannot be written.
pub fn prompt(pen: &mut Pen, typed: &str) -> Result<(), CliError> {
    Ok(pen.question(&format!("allow it? y or n, then Enter: {}", text::line(typed)))?)
}

/// Sends a decision. That another one was faster is told, and is no error.
///
/// # Errors
/// The daemon refused, or the output cannot be written.
pub async fn decide(
    link: &mut Link,
    pen: &mut Pen,
    session: &SessionId,
    call: CallId,
    decision: Decision,
) -> Result<(), CliError> {
    let request = Request::Approve { session: session.clone(), call, decision };
    match link.ask(request).await {
        // a daemon that went away is dealt with by whoever waits for its events
        Ok(_) | Err(CliError::NoDaemon(_)) => Ok(()),
        Err(CliError::Refused(body)) if body.code == ErrorCode::Nothing => {
            Ok(pen.warn(&text::line(&body.message))?)
        }
        Err(e) => Err(e),
    }
}
