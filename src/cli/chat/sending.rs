//! How messages get from the prompt into the session: each once, whatever goes away meanwhile.

use super::outbox::Waiting;
use super::prompt::PROMPT;
use super::{Chat, Over, unless_quit};
use crate::cli::error::{CliError, status};
use crate::cli::follow::{Ending, INTERRUPTED, follow};
use crate::cli::show::each_record;
use crate::proto::{ErrorCode, LogRecord, Request, TurnId, TurnOutcome};

impl Chat<'_> {
    /// Takes note of a turn's number.
    pub(super) fn seen(&mut self, turn: Option<TurnId>) {
        self.last_turn = self.last_turn.max(turn.map_or(0, |turn| turn.0));
    }

    /// Sends what was typed at the prompt, before what waits.
    pub(super) async fn send(&mut self, text: &str) -> Result<Over, CliError> {
        if let Err(e) = self.desk.outbox.add(text, true) {
            self.pen.warn(&format!("what is typed ahead is only in memory now: it cannot be saved: {e}"))?;
            self.desk.outbox.keep_no_more(text);
        }
        self.send_first(false).await
    }

    /// `/send`
    pub(super) fn send_waiting(&mut self) -> Result<Over, CliError> {
        self.flows = self.desk.outbox.first().is_some();
        if !self.flows {
            self.pen.note("no message waits")?;
        }
        Ok(None)
    }

    /// Sends the first message that waits, and follows its turn.
    pub(super) async fn send_first(&mut self, announce: bool) -> Result<Over, CliError> {
        let Some(Waiting { text, .. }) = self.desk.outbox.first().cloned() else { return Ok(None) };
        if announce {
            self.pen.message(PROMPT, &text)?;
        }
        self.desk.sending = true;
        self.saved(|chat| chat.desk.outbox.mark(Some(chat.last_turn)))?;
        let request = Request::Send { session: self.info.id.clone(), text: text.clone() };
        let begun = self.begin(request).await;
        self.desk.sending = false;
        match begun {
            Ok(turn) => {
                self.flows = true;
                self.saved(|chat| chat.desk.outbox.remove(0).map(drop))?;
                self.begun(turn).await
            }
            Err(CliError::Refused(body)) if body.code == ErrorCode::Busy => {
                // goes when that turn has ended
                self.flows = true;
                self.others_turn = true;
                self.saved(|chat| chat.desk.outbox.mark(None))?;
                self.pen.note("another turn runs in this session: the message waits for it")?;
                Ok(None)
            }
            Err(e @ CliError::Refused(_)) => {
                self.flows = false;
                self.saved(|chat| chat.desk.outbox.remove(0).map(drop))?;
                // nothing that was written gets lost
                self.desk.initial = text;
                Err(e)
            }
            // it stays marked, and when the daemon is back the log tells
            Err(CliError::NoDaemon(_)) => {
                self.flows = true;
                self.pen.warn("the daemon went away; whether the message arrived is seen when it is back")?;
                self.desk.show_waiting()?;
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Whether a message that was under way when the daemon, or an earlier chat, ended has arrived: the log tells.
    pub(super) async fn arrived(&mut self, interrupted: bool) -> Result<(), CliError> {
        let Some(Waiting { text, after: Some(after) }) = self.desk.outbox.first().cloned() else {
            return Ok(());
        };
        let turn = TurnId(after.saturating_add(1));
        let mut said = None;
        each_record(self.link, &self.info.id, Some(turn), |record| {
            if let LogRecord::UserMessage(message) = record {
                said = Some(message.text.clone());
            }
            Ok(())
        })
        .await?;
        if said.as_ref() == Some(&text) {
            self.seen(Some(turn));
            self.saved(|chat| chat.desk.outbox.remove(0).map(drop))?;
            self.pen.note(&format!("the message had arrived: it is turn {turn}"))?;
            if interrupted {
                self.flows = false;
                self.pen.warn(INTERRUPTED)?;
            }
        } else {
            self.saved(|chat| chat.desk.outbox.mark(None))?;
        }
        Ok(self.desk.show_waiting()?)
    }

    /// `/retry`
    pub(super) async fn retry(&mut self) -> Result<Over, CliError> {
        let turn = self.begin(Request::Retry { session: self.info.id.clone() }).await?;
        self.begun(turn).await
    }

    /// Asks for a turn; a second Ctrl-C ends the waiting.
    async fn begin(&mut self, request: Request) -> Result<TurnId, CliError> {
        unless_quit(&mut self.interrupts, self.link.begin(request)).await
    }

    async fn begun(&mut self, turn: TurnId) -> Result<Over, CliError> {
        self.seen(Some(turn));
        self.output.own_turn(turn);
        self.turn(Some(turn)).await
    }

    /// Follows a turn, while messages can be typed ahead.
    pub(super) async fn turn(&mut self, turn: Option<TurnId>) -> Result<Over, CliError> {
        self.desk.stand_aside()?;
        let target = (&self.info.id, turn);
        let (pen, output, interrupts) = (&mut self.pen, &mut self.output, &mut self.interrupts);
        let ending = follow(self.link, pen, output, interrupts, &mut self.desk, target).await;
        self.pen.end_line()?;
        self.others_turn = false;
        self.flows = false;
        match ending? {
            Ending::Detached => return Ok(Some(self.detached()?)),
            Ending::Quit => return Ok(Some(status::CANCELLED)),
            Ending::Ended(TurnOutcome::Done | TurnOutcome::Limit, _) => self.flows = true,
            Ending::Ended(..) | Ending::Missed | Ending::Interrupted => {
                if self.desk.outbox.first().is_some() {
                    self.pen
                        .note("what waits is not sent by itself now: /send sends it, /drop takes it away")?;
                }
            }
        }
        Ok(None)
    }

    /// Changes what waits; that it cannot be saved is told.
    fn saved(&mut self, change: impl FnOnce(&mut Self) -> std::io::Result<()>) -> Result<(), CliError> {
        if let Err(e) = change(self) {
            self.pen.warn(&format!("what waits cannot be saved: {e}"))?;
        }
        Ok(self.desk.show_waiting()?)
    }
}
