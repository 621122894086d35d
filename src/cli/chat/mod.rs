//! `bxctl chat`: a conversation in the terminal.

mod actions;
mod commands;
mod desk;
mod input;
mod lines;
mod outbox;
mod prompt;
mod screen;
mod sending;
mod state;

use std::io::{self, IsTerminal as _};

use super::args;
use super::asking::{self, Said};
use super::error::{CliError, status};
use super::follow::{Interrupts, Output, Press};
use super::keys::Restore;
use super::link::{Arrival, Link};
use super::lists::session_lines;
use super::pen::{Ability, Pen};
use super::text;
use crate::proto::{CallId, EventKind, SessionInfo, SessionState};
use commands::{Meaning, help, meaning};
use desk::Desk;
use input::Typed;
use outbox::Outbox;
use prompt::PROMPT;

/// `bxctl chat`; gives the exit status.
///
/// # Errors
/// See [`CliError`].
pub async fn chat(link: &mut Link, options: args::Chat) -> Result<u8, CliError> {
    let info = choose(link, &options).await?;
    let (info, differs) = link.open(&info.id).await?;
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if terminal {
        link.approves();
    }
    let running = link.watch(&info.id).await?;
    if !terminal {
        return lines::run(link, &info).await;
    }
    // the line editor may be in the middle of its work at the end
    let _restore = Restore::new()
        .map_err(|e| CliError::Failed(format!("cannot use the terminal: its modes cannot be read: {e}")))?;
    let (outbox, why) = Outbox::open(&state::dir(), &info.id);
    let mut chat = Chat::start(link, info, outbox)?;
    let code = match chat.arrive(&differs, running, why).await {
        Ok(None) => chat.run().await,
        Ok(Some(code)) => Ok(code),
        Err(e) => Err(e),
    };
    chat.end(code)
}

async fn choose(link: &mut Link, options: &args::Chat) -> Result<SessionInfo, CliError> {
    if let Some(name) = &options.new {
        return link.create(name.clone()).await;
    }
    if options.last || options.session.is_some() {
        return link.choose(options.session.as_deref()).await;
    }
    match link.latest().await? {
        Some(info) => Ok(info),
        None => link.create(None).await,
    }
}

/// What a Ctrl-C says where nothing runs.
const AGAIN_QUITS: &str = "Ctrl-C again quits; Ctrl-D leaves";

struct Chat<'a> {
    link: &'a mut Link,
    info: SessionInfo,
    pen: Pen,
    desk: Desk,
    output: Output,
    interrupts: Interrupts,
    // the newest turn that is known of
    last_turn: u64,
    // a turn that another client began, or that this one found, and its call that waits for a decision
    others_turn: bool,
    question: Option<CallId>,
    // messages that wait are sent by themselves, one after the other
    flows: bool,
}

/// Waits for an answer; a second Ctrl-C ends the waiting.
async fn unless_quit<T>(
    interrupts: &mut Interrupts,
    answer: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    tokio::pin!(answer);
    loop {
        tokio::select! {
            answer = &mut answer => return answer,
            press = interrupts.next() => if press == Press::Quit {
                return Err(CliError::Interrupted);
            },
        }
    }
}

/// The exit status, when the chat is over.
type Over = Option<u8>;

impl<'a> Chat<'a> {
    fn start(link: &'a mut Link, info: SessionInfo, outbox: Outbox) -> Result<Self, CliError> {
        let can = Ability::of(&io::stdout());
        let desk = Desk::start(outbox)?;
        let line = desk.input.line();
        let settled = move || line.settled();
        Ok(Self {
            link,
            last_turn: info.turns,
            info,
            pen: Pen::single(Box::new(desk.screen.clone()), can, settled),
            desk,
            output: Output::new(false),
            interrupts: Interrupts::new()?,
            others_turn: false,
            question: None,
            flows: false,
        })
    }

    async fn run(&mut self) -> Result<u8, CliError> {
        loop {
            let over = if self.goes_on() {
                let sent = self.send_first(true).await;
                self.told(sent)?
            } else if let Some(typed) = self.prompt().await? {
                self.typed(typed).await?
            } else {
                None
            };
            if let Some(code) = over {
                return Ok(code);
            }
        }
    }

    /// Deals with what was typed at the prompt.
    async fn typed(&mut self, typed: Typed) -> Result<Over, CliError> {
        match typed {
            Typed::Line(line) => {
                // where the prompt stays, the line is there already
                if self.desk.moves && !line.trim().is_empty() {
                    self.pen.message(PROMPT, &line)?;
                }
                self.line(&line).await
            }
            Typed::Interrupt(_) => match self.interrupts.pressed() {
                Press::Quit => Ok(Some(status::CANCELLED)),
                Press::Cancel => Ok(self.pen.note(AGAIN_QUITS).map(|()| None)?),
            },
            Typed::End => self.leave().map(Some),
        }
    }

    /// Whether a message that waits is to be sent now.
    fn goes_on(&self) -> bool {
        let free = !self.others_turn && self.link.is_connected();
        self.flows && free && self.desk.outbox.first().is_some()
    }

    /// Waits at the prompt; what happens meanwhile in the session is shown above it. Nothing comes back when what
    /// waits may go on.
    async fn prompt(&mut self) -> Result<Option<Typed>, CliError> {
        self.pen.end_line()?;
        self.desk.stand()?;
        loop {
            let arrival = tokio::select! {
                typed = self.desk.input.next() => return Ok(Some(typed)),
                // pressed between two prompts, or from another process
                press = self.interrupts.next() => match press {
                    Press::Quit => return Err(CliError::Interrupted),
                    Press::Cancel => {
                        self.pen.note(AGAIN_QUITS)?;
                        continue;
                    }
                },
                arrival = self.link.next(&mut self.pen) => arrival?,
            };
            match arrival {
                Arrival::Event(event) => {
                    match event.kind {
                        EventKind::TurnStart { .. } => self.others_turn = true,
                        EventKind::TurnEnd { .. } => self.others_turn = false,
                        _ => {}
                    }
                    self.seen(event.turn);
                    self.output.event(&mut self.pen, &event)?;
                    match asking::said(&event.kind) {
                        Said::Asked(wanted) => {
                            self.question = Some(wanted.call);
                            self.pen.note("/allow lets it run, /deny does not")?;
                        }
                        Said::Over => self.question = None,
                        Said::Nothing => {}
                    }
                    if self.goes_on() {
                        return Ok(None);
                    }
                }
                Arrival::Back { running, restarted } => {
                    self.others_turn = running;
                    self.arrived(restarted && !running).await?;
                    return Ok(None);
                }
            }
        }
    }

    async fn line(&mut self, line: &str) -> Result<Over, CliError> {
        let result = match meaning(line) {
            Meaning::Empty => Ok(None),
            Meaning::Message(text) => self.send(text).await,
            Meaning::Decide(decision) => self.decide(decision).await,
            Meaning::Retry => self.retry().await,
            Meaning::Quit => Ok(Some(self.leave()?)),
            Meaning::Help => Ok(help(&mut self.pen).map(|()| None)?),
            Meaning::Rebase => self.rebase().await,
            Meaning::Usage => self.usage().await,
            Meaning::Sessions => self.sessions().await,
            Meaning::Show(turn) => self.show(turn).await,
            Meaning::Search(words) => self.search(words).await,
            Meaning::Switch(session) => self.switch(session).await,
            Meaning::Fork(turn) => self.fork(turn).await,
            Meaning::New(name) => self.new_session(name.map(str::to_owned)).await,
            Meaning::Rename(name) => self.rename(name).await,
            Meaning::Send => self.send_waiting(),
            Meaning::Drop(number) => {
                self.desk.drop_waiting(number, &mut self.pen)?;
                Ok(None)
            }
            Meaning::Wrong(why) => {
                self.pen.warn(why)?;
                Ok(None)
            }
        };
        self.told(result)
    }

    /// What was refused is told, and the conversation goes on; at the prompt a lost daemon is waited for.
    fn told(&mut self, result: Result<Over, CliError>) -> Result<Over, CliError> {
        match result {
            Err(e @ (CliError::Refused(_) | CliError::NoDaemon(_))) => {
                self.pen.warn(&text::line(&e.to_string()))?;
                Ok(None)
            }
            Err(CliError::Ambiguous(message, sessions)) => {
                self.pen.warn(&text::line(&message))?;
                self.lines(&session_lines(&sessions, Some(self.pen.width())))
            }
            other => other,
        }
    }

    fn greet(&mut self, differs: &[String]) -> Result<(), CliError> {
        let info = &self.info;
        let mut parts = vec![format!("session {}", info.id)];
        parts.extend(info.name.as_ref().map(|name| format!("\"{}\"", text::line(name))));
        if info.turns > 0 {
            let turns = text::counted(info.turns, "turn");
            parts.push(format!("{turns}, {} tokens of context", info.context_n));
        }
        parts.extend(info.model.as_ref().map(|model| text::line(model)));
        self.pen.note(&parts.join(" · "))?;
        for what in differs {
            let what = text::line(what);
            self.pen
                .warn(&format!("today's configuration differs, and this session keeps its own: {what}"))?;
        }
        if !differs.is_empty() {
            self.pen.note("/rebase goes on with today's, in a new epoch")?;
        }
        if self.info.state == SessionState::Interrupted {
            let why = info.reason.as_deref().map(|why| format!(": {}", text::line(why))).unwrap_or_default();
            self.pen.warn(&format!("its newest turn was interrupted{why}; /retry asks again"))?;
        }
        Ok(self.pen.note("/help lists the commands; Ctrl-D leaves")?)
    }

    /// Shows lines that are safe, and fit.
    fn lines(&mut self, lines: &[String]) -> Result<Over, CliError> {
        let lines: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
        Ok(self.pen.ready(&lines).map(|()| None)?)
    }

    fn leave(&mut self) -> Result<u8, CliError> {
        if self.others_turn { self.detached() } else { Ok(status::OK) }
    }

    fn detached(&mut self) -> Result<u8, CliError> {
        let id = &self.info.id;
        self.pen
            .note(&format!("detached; the turn goes on: `bxctl chat --session {id}` comes back to it"))?;
        Ok(status::OK)
    }

    /// Leaves the terminal as it should be, and says what still waits.
    fn end(mut self, code: Result<u8, CliError>) -> Result<u8, CliError> {
        self.pen.end_line()?;
        self.desk.screen.leave()?;
        let waiting = u64::try_from(self.desk.outbox.all().len()).unwrap_or(u64::MAX);
        if waiting > 0 {
            let id = &self.info.id;
            let (count, it) = match waiting {
                1 => ("1 message is".to_owned(), "it"),
                n => (format!("{n} messages are"), "them"),
            };
            let note = if self.desk.outbox.is_kept() {
                format!(
                    "{count} kept, not sent: `bxctl chat --session {id}` shows {it} again, and /send there sends {it}"
                )
            } else {
                format!("{count} not sent, and kept nowhere")
            };
            self.pen.warn(&note)?;
            self.desk.screen.leave()?;
        }
        code
    }
}
