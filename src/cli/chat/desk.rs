//! The prompt and the messages that wait, while a turn runs and between turns.

use std::io;

use super::commands::{Meaning, help, meaning};
use super::input::{Input, Typed};
use super::outbox::Outbox;
use super::screen::Screen;
use crate::cli::asking;
use crate::cli::error::CliError;
use crate::cli::follow::{Aside, Wish};
use crate::cli::pen::{Pen, is_dumb};
use crate::cli::text;

/// Waiting messages that are shown at the prompt.
const SHOWN: usize = 5;

/// What the user has before them.
pub struct Desk {
    pub input: Input,
    pub screen: Screen,
    pub outbox: Outbox,
    /// The first message is on its way: it need not be shown as waiting for the moment until it is taken.
    pub sending: bool,
    /// What stands at the next prompt already.
    pub initial: String,
    /// Whether the terminal can show more than one thing at a time.
    pub moves: bool,
    /// A question stands; and the line that is being typed was begun before it did: that is no answer.
    question: bool,
    typed_before: bool,
}

impl Desk {
    /// The keyboard and the screen.
    ///
    /// # Errors
    /// When the terminal cannot be used.
    pub fn start(outbox: Outbox) -> Result<Self, CliError> {
        let input = Input::start()?;
        let moves = !is_dumb();
        let screen = Screen::new(input.line(), moves);
        Ok(Self {
            input,
            screen,
            outbox,
            sending: false,
            initial: String::new(),
            moves,
            question: false,
            typed_before: false,
        })
    }

    /// Shows the prompt between turns.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn stand(&mut self) -> io::Result<()> {
        self.show_waiting()?;
        self.input.prompt(&mut self.initial);
        Ok(())
    }

    /// Shows the prompt while a turn runs: where it can stand apart from the answer.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn stand_aside(&mut self) -> io::Result<()> {
        if self.moves { self.stand() } else { Ok(()) }
    }

    /// Shows which messages wait.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn show_waiting(&self) -> io::Result<()> {
        let waiting = self.outbox.all().get(usize::from(self.sending)..).unwrap_or_default();
        let mut rows: Vec<String> = (1..)
            .zip(waiting)
            .take(SHOWN)
            .map(|(n, message)| format!("  {n} waits: {}", text::line(&message.text)))
            .collect();
        let more = waiting.len().saturating_sub(SHOWN);
        if more > 0 {
            rows.push(format!("  and {more} more"));
        }
        self.screen.waiting(rows)
    }

    /// `/drop`: takes one of the waiting messages away, the last when no number is given.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn drop_waiting(&mut self, number: Option<usize>, pen: &mut Pen) -> io::Result<()> {
        let at = number.unwrap_or(self.outbox.all().len()).checked_sub(1);
        match at.map_or(Ok(None), |at| self.outbox.remove(at)) {
            // that it is gone is seen
            Ok(Some(_)) => {}
            Ok(None) => pen.warn("no such message waits")?,
            Err(e) => pen.warn(&format!("it still waits, for this cannot be saved: {e}"))?,
        }
        self.show_waiting()
    }

    /// Lets a message wait.
    ///
    /// # Errors
    /// When the output cannot be written.
    fn wait(&mut self, message: &str, pen: &mut Pen) -> io::Result<()> {
        if let Err(e) = self.outbox.add(message, false) {
            message.clone_into(&mut self.initial);
            pen.warn(&format!("the message cannot be saved, and waits at the prompt: {e}"))?;
        }
        self.show_waiting()
    }

    fn line(&mut self, line: &str, pen: &mut Pen) -> io::Result<Wish> {
        let answers = self.question && !std::mem::take(&mut self.typed_before);
        match meaning(line) {
            Meaning::Decide(decision) if self.question => return Ok(Wish::Answer(Some(decision))),
            Meaning::Decide(_) => pen.warn("no call waits for a decision")?,
            Meaning::Message(message) if answers && let Some(decision) = asking::answer(message) => {
                return Ok(Wish::Answer(Some(decision)));
            }
            Meaning::Empty => {}
            Meaning::Message(message) => self.wait(message, pen)?,
            Meaning::Drop(number) => self.drop_waiting(number, pen)?,
            Meaning::Help => help(pen)?,
            Meaning::Quit => return Ok(Wish::Detach),
            Meaning::Wrong(why) => pen.warn(why)?,
            _ => {
                line.clone_into(&mut self.initial);
                pen.warn("the model is at work: the command stays at the prompt, for Enter when the answer is there; Ctrl-C stops it, and /drop, /help and /quit go now")?;
            }
        }
        // what was written took the question's place
        Ok(if self.question { Wish::Answer(None) } else { Wish::Nothing })
    }
}

impl Aside for Desk {
    type Input = Typed;

    async fn next(&mut self) -> Typed {
        self.input.next().await
    }

    fn take(&mut self, typed: Typed, pen: &mut Pen) -> Result<Wish, CliError> {
        let wish = match typed {
            Typed::Line(line) => self.line(&line, pen)?,
            Typed::Interrupt(begun) => {
                // it stops the turn, not what is being written
                self.initial = begun;
                Wish::Press
            }
            Typed::End => Wish::Detach,
        };
        if wish != Wish::Detach {
            self.stand_aside()?;
        }
        Ok(wish)
    }

    fn asks(&mut self, stands: bool) -> bool {
        self.question = stands && self.moves;
        self.typed_before = self.question && self.input.is_begun();
        self.question
    }
}
