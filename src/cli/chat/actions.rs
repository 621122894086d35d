//! What the commands of a chat do.

use super::outbox::Outbox;
use super::{Chat, Over, state, unless_quit};
use crate::cli::care::warn_if_shared;
use crate::cli::error::CliError;
use crate::cli::follow::Output;
use crate::cli::link::{ASK_AGAIN, Created};
use crate::cli::lists::{session_lines, usage_lines};
use crate::cli::pen::Ability;
use crate::cli::search::{find, lines};
use crate::cli::show::each_record;
use crate::cli::transcript::Transcript;
use crate::cli::{asking, rebase, text};
use crate::proto::{Decision, Request, SessionInfo, TurnId};

/// Passages that a search in a chat shows.
const FOUND: u64 = 20;
/// Lines of the last exchange that are shown where a conversation goes on.
const LAST_LINES: usize = 24;

impl Chat<'_> {
    /// Begins in a session: greets, shows what was said last and what waits, and joins a turn that runs.
    pub(super) async fn arrive(
        &mut self,
        differs: &[String],
        running: bool,
        not_kept: Option<String>,
    ) -> Result<Over, CliError> {
        self.greet(differs)?;
        if let Some(why) = not_kept {
            self.pen.note(&format!("what is typed ahead is only in memory: {}", text::line(&why)))?;
        }
        if !running && self.info.turns > 0 {
            let last = self.transcript(Some(TurnId(self.info.turns))).await?;
            let all: Vec<&str> = last.lines().collect();
            let from = all.len().saturating_sub(LAST_LINES);
            let mut shown = all.get(from..).unwrap_or_default().join("\n");
            if from > 0 {
                shown.insert_str(0, "… (/show shows all of it)\n");
            }
            if !shown.is_empty() {
                self.pen.ready(&format!("{shown}\n"))?;
            }
        }
        self.arrived(false).await?;
        if self.desk.outbox.first().is_some() {
            self.pen.note("not sent yet, from an earlier time: /send sends it, /drop takes it away")?;
        }
        if !running {
            return Ok(None);
        }
        self.pen.note("a turn is running; this is it so far")?;
        self.turn(None).await
    }

    /// Goes on in another session.
    async fn enter(&mut self, info: SessionInfo, differs: &[String]) -> Result<Over, CliError> {
        let running = self.link.watch(&info.id).await?;
        let (outbox, not_kept) = Outbox::open(&state::dir(), &info.id);
        self.desk.outbox = outbox;
        self.desk.show_waiting()?;
        self.last_turn = info.turns;
        self.info = info;
        self.output = Output::new(false);
        self.others_turn = false;
        self.question = None;
        self.flows = false;
        self.arrive(differs, running, not_kept).await
    }

    async fn transcript(&mut self, turn: Option<TurnId>) -> Result<String, CliError> {
        let mut transcript = Transcript::new(Ability::of(&std::io::stdout()), false);
        let mut out = String::new();
        each_record(self.link, &self.info.id, turn, |record| {
            out.push_str(&transcript.record(record));
            Ok(())
        })
        .await?;
        Ok(out)
    }

    pub(super) async fn show(&mut self, turn: Option<u64>) -> Result<Over, CliError> {
        let out = self.transcript(turn.map(TurnId)).await?;
        if out.is_empty() {
            self.pen.note("nothing was said there")?;
        } else {
            self.pen.ready(&out)?;
        }
        Ok(None)
    }

    pub(super) async fn sessions(&mut self) -> Result<Over, CliError> {
        let sessions = unless_quit(&mut self.interrupts, self.link.sessions()).await?;
        self.lines(&session_lines(&sessions, Some(self.pen.width())))
    }

    pub(super) async fn search(&mut self, words: &str) -> Result<Over, CliError> {
        let found = find(self.link, words, None, FOUND).await?;
        let can = Ability::of(&std::io::stdout());
        self.lines(&lines(&found.hits, words, can))?;
        found.tell_if_nothing(&mut self.pen)?;
        found.tell_what_is_left_out(&mut self.pen, "there is more: `bxctl search` finds all of it")?;
        Ok(None)
    }

    pub(super) async fn switch(&mut self, session: &str) -> Result<Over, CliError> {
        let info = self.link.resolve(session).await?;
        if info.id == self.info.id {
            self.pen.note("this is that session")?;
            return Ok(None);
        }
        let (info, differs) = self.link.open(&info.id).await?;
        self.enter(info, &differs).await
    }

    pub(super) async fn fork(&mut self, turn: Option<u64>) -> Result<Over, CliError> {
        let forked = self.link.fork(&self.info.id, turn.map(TurnId), None);
        let (info, differs) = unless_quit(&mut self.interrupts, forked).await?;
        self.enter(info, &differs).await
    }

    /// While the model server is away it is asked again, until Ctrl-C: nothing is made before.
    pub(super) async fn new_session(&mut self, name: Option<String>) -> Result<Over, CliError> {
        loop {
            match unless_quit(&mut self.interrupts, self.link.try_create(name.clone())).await? {
                Created::Made(info, differs) => {
                    warn_if_shared(self.link, &mut self.pen, name.as_deref()).await?;
                    return self.enter(info, &differs).await;
                }
                Created::Waiting(why) => {
                    self.pen.progress(&format!("waiting (Ctrl-C stops): {}", text::line(&why)))?;
                    tokio::select! {
                        () = tokio::time::sleep(ASK_AGAIN) => {}
                        _ = self.interrupts.next() => {
                            self.pen.note("no new session was begun")?;
                            return Ok(None);
                        }
                    }
                }
            }
        }
    }

    pub(super) async fn rebase(&mut self) -> Result<Over, CliError> {
        let target = (&self.info.id, self.info.epoch);
        rebase::begin(self.link, &mut self.pen, &mut self.output, &mut self.interrupts, target).await?;
        self.info = self.link.open(&self.info.id).await?.0;
        Ok(None)
    }

    /// `/allow` and `/deny`, of a turn that is not followed
    pub(super) async fn decide(&mut self, decision: Decision) -> Result<Over, CliError> {
        match self.question.take() {
            Some(call) => {
                asking::decide(self.link, &mut self.pen, &self.info.id, call, decision).await?;
            }
            None => self.pen.warn("no call waits for a decision")?,
        }
        Ok(None)
    }

    pub(super) async fn usage(&mut self) -> Result<Over, CliError> {
        let turns = self.link.usage(&self.info.id).await?;
        let lines = usage_lines(&self.info, &turns, Some(self.pen.width()));
        self.lines(&lines)
    }

    pub(super) async fn rename(&mut self, name: &str) -> Result<Over, CliError> {
        let request = Request::Rename { session: self.info.id.clone(), name: name.to_owned() };
        unless_quit(&mut self.interrupts, self.link.ask(request)).await?;
        self.info.name = Some(name.to_owned());
        self.pen.note(&format!("this session is \"{}\" now", text::line(name)))?;
        warn_if_shared(self.link, &mut self.pen, Some(name)).await?;
        Ok(None)
    }
}
