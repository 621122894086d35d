//! `bxctl chat`: a conversation in the terminal.

mod commands;
mod input;
mod lines;
mod prompt;
mod screen;

use std::io::IsTerminal as _;

use super::asking::{self, Said};
use super::error::{CliError, status};
use super::follow::{Ending, Interrupts, Output, Press, follow};
use super::keys::{Keys, Restore};
use super::link::{Arrival, Link, unexpected};
use super::lists::{usage_lines, usage_of};
use super::pen::{Ability, Pen};
use super::text;
use super::{args, rebase};
use crate::proto::{CallId, Decision, EventKind, Reply, Request, SessionInfo, SessionState};
use commands::{HELP, Meaning, meaning};
use input::{Input, Typed};
use screen::Screen;

/// `bxctl chat`; gives the exit status.
///
/// # Errors
/// See [`CliError`].
pub async fn chat(link: &mut Link, options: args::Chat) -> Result<u8, CliError> {
    let info = choose(link, &options).await?;
    let (info, differs) = link.open(&info.id).await?;
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if terminal {
        link.approves();
    }
    let running = link.watch(&info.id).await?;
    if !terminal {
        return lines::run(link, &info).await;
    }
    let _restore = Restore::new()?;
    let mut chat = Chat::start(link, info)?;
    chat.greet(&differs)?;
    if running {
        chat.pen.note("a turn is running; this is it so far")?;
        if let Some(code) = chat.turn(None).await? {
            return Ok(code);
        }
    }
    let code = chat.run().await;
    // the prompt may still stand when the daemon does not come back
    chat.screen.at_prompt(false)?;
    if code.is_err() {
        chat.pen.say("")?;
    }
    code
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

struct Chat<'a> {
    link: &'a mut Link,
    info: SessionInfo,
    pen: Pen,
    screen: Screen,
    input: Input,
    output: Output,
    interrupts: Interrupts,
    // what stands at the next prompt already
    initial: String,
    // a turn that another client began, and its call that waits for a decision
    others_turn: bool,
    question: Option<CallId>,
}

/// The exit status, when the chat is over.
type Over = Option<u8>;

impl<'a> Chat<'a> {
    fn start(link: &'a mut Link, info: SessionInfo) -> Result<Self, CliError> {
        let can = Ability::of(&std::io::stdout());
        let input = Input::start()?;
        let screen = Screen::new(input.line());
        Ok(Self {
            link,
            info,
            pen: Pen::single(Box::new(screen.clone()), can),
            screen,
            input,
            output: Output::new(false),
            interrupts: Interrupts::new()?,
            initial: String::new(),
            others_turn: false,
            question: None,
        })
    }

    fn greet(&mut self, differs: &[String]) -> Result<(), CliError> {
        let info = &self.info;
        let mut parts = vec![format!("session {}", info.id)];
        parts.extend(info.name.as_ref().map(|name| format!("\"{}\"", text::line(name))));
        if info.turns > 0 {
            let turns = if info.turns == 1 { "turn" } else { "turns" };
            parts.push(format!("{} {turns}, {} tokens of context", info.turns, info.context_n));
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
            self.pen.warn("its newest turn was interrupted; /retry asks again")?;
        }
        Ok(self.pen.note("/help lists the commands; Ctrl-D detaches")?)
    }

    async fn run(&mut self) -> Result<u8, CliError> {
        loop {
            let over = match self.prompt().await? {
                Typed::Line(line) => self.line(&line).await?,
                Typed::Interrupt => match self.interrupts.pressed() {
                    Press::Quit => Some(status::CANCELLED),
                    Press::Cancel => {
                        self.pen.note("Ctrl-C again quits; Ctrl-D detaches")?;
                        None
                    }
                },
                Typed::End => Some(self.leave()?),
            };
            if let Some(code) = over {
                return Ok(code);
            }
        }
    }

    /// Waits at the prompt; what happens meanwhile in the session is shown above it.
    async fn prompt(&mut self) -> Result<Typed, CliError> {
        self.pen.end_line()?;
        self.input.prompt(std::mem::take(&mut self.initial));
        self.screen.at_prompt(true)?;
        self.pen.allow_progress(false);
        let typed = loop {
            let arrival = tokio::select! {
                typed = self.input.next() => break typed,
                // not a key: from another process
                press = self.interrupts.next() => match press {
                    Press::Quit => return Err(CliError::Interrupted),
                    Press::Cancel => continue,
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
                    self.output.event(&mut self.pen, &event)?;
                    match asking::said(&event.kind) {
                        Said::Asked(wanted) => {
                            self.question = Some(wanted.call);
                            self.pen.note("/allow lets it run, /deny does not")?;
                        }
                        Said::Over => self.question = None,
                        Said::Nothing => {}
                    }
                }
                Arrival::Back { running, .. } => self.others_turn = running,
            }
        };
        self.screen.at_prompt(false)?;
        self.pen.allow_progress(true);
        Ok(typed)
    }

    async fn line(&mut self, line: &str) -> Result<Over, CliError> {
        let result = match meaning(line) {
            Meaning::Empty => Ok(None),
            Meaning::Message(text) => self.send(text).await,
            Meaning::Retry => self.begin(Request::Retry { session: self.info.id.clone() }).await,
            Meaning::Decide(decision) => self.decide(decision).await,
            Meaning::Quit => Ok(Some(self.leave()?)),
            Meaning::Help => self.say(HELP.iter().map(|line| (*line).to_owned())),
            Meaning::Rebase => self.rebase().await,
            Meaning::Usage => self.usage().await,
            Meaning::New(name) => self.new_session(name.map(str::to_owned)).await,
            Meaning::Rename(name) => self.rename(name).await,
            Meaning::Wrong(why) => {
                self.pen.warn(why)?;
                Ok(None)
            }
        };
        match result {
            // told, and the conversation goes on; at the prompt a lost daemon is waited for
            Err(e @ (CliError::Refused(_) | CliError::NoDaemon(_))) => {
                self.pen.warn(&text::line(&e.to_string()))?;
                Ok(None)
            }
            other => other,
        }
    }

    /// Asks; a second Ctrl-C ends the waiting.
    async fn ask(&mut self, request: Request) -> Result<Reply, CliError> {
        let answer = self.link.ask(request);
        tokio::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return answer,
                press = self.interrupts.next() => if press == Press::Quit {
                    return Err(CliError::Interrupted);
                },
            }
        }
    }

    async fn send(&mut self, text: &str) -> Result<Over, CliError> {
        let request = Request::Send { session: self.info.id.clone(), text: text.to_owned() };
        let result = self.begin(request).await;
        if matches!(result, Err(CliError::Refused(_) | CliError::NoDaemon(_))) {
            // nothing that was written gets lost
            text.clone_into(&mut self.initial);
        }
        result
    }

    async fn begin(&mut self, request: Request) -> Result<Over, CliError> {
        let turn = match self.ask(request).await? {
            Reply::Turn { turn, .. } => turn,
            reply => return Err(unexpected(&reply)),
        };
        self.output.own_turn(turn);
        self.turn(Some(turn)).await
    }

    /// Follows a turn, and those that are typed ahead.
    async fn turn(&mut self, turn: Option<crate::proto::TurnId>) -> Result<Over, CliError> {
        // a terminal whose keys cannot be read has no Ctrl-D during a turn; all else works
        let mut keys = Keys::start().ok();
        let target = (&self.info.id, turn);
        let followed =
            follow(self.link, &mut self.pen, &mut self.output, &mut self.interrupts, keys.as_mut(), target);
        let ending = followed.await;
        let typed_ahead = keys.map_or(Err(String::new()), Keys::typed_ahead);
        self.pen.end_line()?;
        match ending? {
            Ending::Detached => return Ok(Some(self.detached()?)),
            Ending::Quit => return Ok(Some(status::CANCELLED)),
            Ending::Ended(..) | Ending::Missed | Ending::Interrupted => {}
        }
        match typed_ahead {
            Err(rest) => {
                self.initial = rest;
                Ok(None)
            }
            Ok(line) => {
                self.input.remember(&line);
                self.pen.say(&format!("> {line}"))?;
                Box::pin(self.line(&line)).await
            }
        }
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

    fn say(&mut self, lines: impl IntoIterator<Item = String>) -> Result<Over, CliError> {
        for line in lines {
            self.pen.say(&line)?;
        }
        Ok(None)
    }

    async fn rebase(&mut self) -> Result<Over, CliError> {
        let target = (&self.info.id, self.info.epoch);
        rebase::begin(self.link, &mut self.pen, &mut self.output, &mut self.interrupts, target).await?;
        self.info = self.link.open(&self.info.id).await?.0;
        Ok(None)
    }

    async fn decide(&mut self, decision: Decision) -> Result<Over, CliError> {
        match self.question.take() {
            Some(call) => {
                asking::decide(self.link, &mut self.pen, &self.info.id, call, decision).await?;
            }
            None => self.pen.warn("no call waits for a decision")?,
        }
        Ok(None)
    }

    async fn usage(&mut self) -> Result<Over, CliError> {
        let turns = usage_of(self.link, &self.info.id).await?;
        let lines = usage_lines(&self.info, &turns, Some(self.pen.width()));
        self.say(lines)
    }

    async fn new_session(&mut self, name: Option<String>) -> Result<Over, CliError> {
        let info = self.link.create(name).await?;
        self.link.watch(&info.id).await?;
        self.info = info;
        self.output = Output::new(false);
        self.others_turn = false;
        self.question = None;
        self.greet(&[])?;
        Ok(None)
    }

    async fn rename(&mut self, name: &str) -> Result<Over, CliError> {
        self.ask(Request::Rename { session: self.info.id.clone(), name: name.to_owned() }).await?;
        self.info.name = Some(name.to_owned());
        self.pen.note(&format!("this session is \"{}\" now", text::line(name)))?;
        Ok(None)
    }
}
