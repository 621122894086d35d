//! Following a turn to its end, with Ctrl-C at hand.

use std::io::Write as _;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::asking::{self, Asking};
use super::error::{CliError, status};
use super::keys::Pressed;
use super::link::{Arrival, Link};
use super::pen::Pen;
use super::text;
use super::view::View;
use crate::proto::{
    Certainty, Decision, ErrorCode, Event, EventKind, Phase, Request, SessionId, TurnId, TurnOutcome,
};

/// Within this time a second Ctrl-C quits.
pub const QUIT_WITHIN: Duration = Duration::from_secs(2);

/// How long the events of a turn that has ended may be under way.
const END_TIME: Duration = Duration::from_secs(1);

/// Ctrl-C, once and twice.
pub struct Interrupts {
    signal: Signal,
    last: Option<Instant>,
}

/// What a Ctrl-C means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Press {
    /// Cancel what runs.
    Cancel,
    /// The second in a short time: quit.
    Quit,
}

impl Interrupts {
    /// From now on Ctrl-C no longer ends the process.
    ///
    /// # Errors
    /// When the handler cannot be installed.
    pub fn new() -> Result<Self, CliError> {
        let signal = signal(SignalKind::interrupt())
            .map_err(|e| CliError::Failed(format!("cannot catch Ctrl-C: {e}")))?;
        Ok(Self { signal, last: None })
    }

    /// Waits for a Ctrl-C. Can be dropped and called again.
    pub async fn next(&mut self) -> Press {
        self.signal.recv().await;
        self.pressed()
    }

    /// Takes a Ctrl-C into account that came as a key.
    pub fn pressed(&mut self) -> Press {
        let now = Instant::now();
        let twice = self.last.is_some_and(|last| now.duration_since(last) <= QUIT_WITHIN);
        self.last = Some(now);
        if twice { Press::Quit } else { Press::Cancel }
    }
}

/// How following a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The turn ended.
    Ended(TurnOutcome, Certainty),
    /// The turn ended, and this client did not get all of it.
    Missed,
    /// The daemon was started anew in the middle of the turn.
    Interrupted,
    /// The user wants to quit.
    Quit,
    /// The user goes away, and the turn goes on.
    Detached,
}

impl Ending {
    /// The exit status for it.
    #[must_use]
    pub fn status(self) -> u8 {
        match self {
            Self::Ended(TurnOutcome::Done, Certainty::Durable) | Self::Detached => status::OK,
            Self::Ended(TurnOutcome::Cancelled, _) | Self::Quit => status::CANCELLED,
            Self::Ended(..) | Self::Missed | Self::Interrupted => status::FAILED,
        }
    }
}

/// Where events go.
pub enum Output {
    /// To a person.
    View(Box<View>),
    /// As they are, one JSON object a line, on the standard output.
    Json,
}

impl Output {
    /// For `--json` or for people.
    #[must_use]
    pub fn new(json: bool) -> Self {
        if json { Self::Json } else { Self::View(Box::default()) }
    }

    /// Says which turn is this client's own.
    pub fn own_turn(&mut self, turn: TurnId) {
        if let Self::View(view) = self {
            view.own_turn(turn);
        }
    }

    /// Shows an event.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn event(&mut self, pen: &mut Pen, event: &Event) -> Result<(), CliError> {
        match self {
            Self::View(view) => Ok(view.event(pen, event)?),
            Self::Json => json_line(event),
        }
    }
}

/// Prints a value as one line of JSON.
///
/// # Errors
/// When the output cannot be written.
pub fn json_line(value: &impl serde::Serialize) -> Result<(), CliError> {
    let json =
        serde_json::to_string(value).map_err(|e| CliError::Failed(format!("cannot write JSON: {e}")))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", text::json_safe(&json))?;
    Ok(out.flush()?)
}

/// What goes on beside a turn that is followed: somebody types, or nobody does.
pub trait Aside {
    /// What is typed.
    type Input;

    /// The next of it. Can be dropped and called again.
    async fn next(&mut self) -> Self::Input;

    /// Deals with it.
    ///
    /// # Errors
    /// When the output cannot be written.
    fn take(&mut self, input: Self::Input, pen: &mut Pen) -> Result<Wish, CliError>;

    /// A question stands from now on, or none does any more; whether its answer is to come from here.
    fn asks(&mut self, stands: bool) -> bool;
}

/// What the user wishes about the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    Nothing,
    /// As Ctrl-C.
    Press,
    /// To go away, while the turn goes on.
    Detach,
    /// To answer the question that stands; without a decision it is asked again.
    Answer(Option<Decision>),
}

/// Nobody types.
pub struct Nobody;

impl Aside for Nobody {
    type Input = std::convert::Infallible;

    async fn next(&mut self) -> Self::Input {
        std::future::pending().await
    }

    fn take(&mut self, input: Self::Input, _: &mut Pen) -> Result<Wish, CliError> {
        match input {}
    }

    fn asks(&mut self, _: bool) -> bool {
        false
    }
}

/// Follows a turn of the session that `link` watches to its end: a certain one, or the one that runs.
///
/// # Errors
/// The daemon does not come back, or the output cannot be written.
pub async fn follow(
    link: &mut Link,
    pen: &mut Pen,
    output: &mut Output,
    interrupts: &mut Interrupts,
    aside: &mut impl Aside,
    (session, mut turn): (&SessionId, Option<TurnId>),
) -> Result<Ending, CliError> {
    let mut nothing_runs = false;
    let mut asking = Asking::new(session);
    loop {
        let next = tokio::select! {
            arrival = link.next(pen) => Next::Arrived(arrival?),
            press = interrupts.next() => Next::Pressed(press),
            input = aside.next() => match aside.take(input, pen)? {
                Wish::Nothing => continue,
                Wish::Press => Next::Pressed(interrupts.pressed()),
                Wish::Detach => return Ok(Ending::Detached),
                Wish::Answer(decision) => Next::Answered(decision),
            },
            pressed = asking.pressed() => match pressed {
                Pressed::Detach => return Ok(Ending::Detached),
                Pressed::Part(typed) => {
                    asking::prompt(pen, &typed)?;
                    continue;
                }
                Pressed::Answer(line) => Next::Answered(asking::answer(&line)),
            },
            // its end is under way; if it does not come, it came before anybody looked
            () = sleep(END_TIME), if nothing_runs => return told_missed(pen, session),
        };
        let arrival = match next {
            Next::Arrived(arrival) => arrival,
            Next::Answered(decision) => {
                asking.answered(link, pen, decision).await?;
                continue;
            }
            Next::Pressed(Press::Quit) => return Ok(Ending::Quit),
            Next::Pressed(Press::Cancel) => {
                match cancel(link, pen, interrupts, aside, session).await? {
                    Cancel::Quit => return Ok(Ending::Quit),
                    Cancel::Detach => return Ok(Ending::Detached),
                    Cancel::Nothing => nothing_runs = true,
                    Cancel::Asked => {}
                }
                continue;
            }
        };
        let event = match arrival {
            Arrival::Event(event) => event,
            Arrival::Back { restarted: false, running } => {
                nothing_runs = !running;
                continue;
            }
            Arrival::Back { restarted: true, .. } => {
                pen.end_answer()?;
                pen.warn(INTERRUPTED)?;
                return Ok(Ending::Interrupted);
            }
        };
        let idle = is_idle(&event.kind);
        if turn.is_none() && !idle {
            turn = event.turn;
        }
        if event.turn == turn && turn.is_some() && !idle {
            output.event(pen, &event)?;
            asking.event(link, pen, aside, &event.kind)?;
            if let EventKind::TurnEnd { outcome, certainty, .. } = event.kind {
                return Ok(Ending::Ended(outcome, certainty));
            }
        } else if matches!(event.kind, EventKind::Snapshot { .. }) {
            // an idle session, or another turn that runs: ours may have ended unseen
            if has_ended(link, session, turn).await? {
                return told_missed(pen, session);
            }
        } else if event.turn.is_none() && matches!(output, Output::View(_)) {
            // about the session, not about a turn
            output.event(pen, &event)?;
        }
    }
}

/// What happens next to a turn that is followed.
enum Next {
    Arrived(Arrival),
    Pressed(Press),
    Answered(Option<Decision>),
}

/// Whether an event says that nothing runs in its session.
pub(super) fn is_idle(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Snapshot { snapshot } if snapshot.phase == Phase::Idle)
}

/// What to say when the daemon was started anew in the middle of a turn.
pub const INTERRUPTED: &str = "the daemon was started again in the middle of the turn; its message is saved: \
     `bxctl retry`, or /retry in a chat, asks again";

fn told_missed(pen: &mut Pen, session: &SessionId) -> Result<Ending, CliError> {
    pen.end_answer()?;
    pen.warn(&format!("a part of the turn was missed; `bxctl show {session}` prints all of it"))?;
    Ok(Ending::Missed)
}

/// What came of a wish to cancel.
pub(super) enum Cancel {
    /// The turn has ended, or its daemon went away: its events tell.
    Asked,
    /// There was no turn.
    Nothing,
    /// The user does not wait for it.
    Quit,
    /// The user goes away.
    Detach,
}

/// Asks for the turn's end. Can be left by a second Ctrl-C.
///
/// # Errors
/// The daemon refused, or the output cannot be written.
pub(super) async fn cancel(
    link: &mut Link,
    pen: &mut Pen,
    interrupts: &mut Interrupts,
    aside: &mut impl Aside,
    session: &SessionId,
) -> Result<Cancel, CliError> {
    pen.progress("cancelling … (Ctrl-C again quits)")?;
    let request = link.ask(Request::Cancel { session: session.clone() });
    tokio::pin!(request);
    loop {
        tokio::select! {
            // the request first: it must have gone out before a second press ends this
            biased;
            answer = &mut request => return match answer {
                // a daemon that went away is dealt with by whoever waits for its events
                Ok(_) | Err(CliError::NoDaemon(_)) => Ok(Cancel::Asked),
                Err(CliError::Refused(body)) if body.code == ErrorCode::Nothing => Ok(Cancel::Nothing),
                Err(e) => Err(e),
            },
            press = interrupts.next() => if press == Press::Quit {
                return Ok(Cancel::Quit);
            },
            input = aside.next() => match aside.take(input, pen)? {
                Wish::Nothing | Wish::Answer(_) => {}
                Wish::Press => if interrupts.pressed() == Press::Quit {
                    return Ok(Cancel::Quit);
                },
                Wish::Detach => return Ok(Cancel::Detach),
            },
        }
    }
}

/// Whether the turn has an end in the log; of no turn in particular: it has.
async fn has_ended(link: &mut Link, session: &SessionId, turn: Option<TurnId>) -> Result<bool, CliError> {
    let Some(turn) = turn else { return Ok(true) };
    match link.usage(session).await {
        Ok(turns) => Ok(turns.iter().any(|row| row.turn == turn && row.outcome.is_some())),
        Err(CliError::NoDaemon(_)) => Ok(false),
        Err(e) => Err(e),
    }
}
