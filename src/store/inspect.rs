//! Looking at a session without opening it: for lists, and for `loopd verify`.

use std::ops::ControlFlow;
use std::path::Path;

use super::error::{Result, SessionError};
use super::search;
use super::storage::Storage;
use super::walk::{Broken, Step, Walked, walk_settled};
use crate::proto::{CallId, Epoch, LogRecord, Sequence, SessionId, SessionInfo, SessionState, count};

/// Characters of a title.
const TITLE_CHARS: usize = 80;
/// How many characters of a call's name, which the model wrote, are told.
const CALL_NAME_CHARS: usize = 64;

/// A session, looked at.
#[derive(Debug)]
pub struct Inspected {
    /// Its state.
    pub info: SessionInfo,
    /// Epochs that were read.
    pub epochs: u64,
    /// Whole records that were read.
    pub records: u64,
    /// Bytes of whole records that were read.
    pub bytes: u64,
    /// Names of files that the beginning of an epoch has left behind when it was cut off; nothing reads them.
    pub remains: Vec<String>,
    /// Why it does not open.
    pub error: Option<SessionError>,
}

/// Reads a session. Damage is part of the answer.
pub(crate) async fn inspect<S: Storage>(storage: &S, dir: &Path, id: &SessionId) -> Result<Inspected> {
    let (tally, walked) = look(storage, dir, id).await?;
    Ok(tally.finish(walked))
}

/// Reads a session that is there; gives what its whole records come to, and how the reading ended.
pub(super) async fn look<S: Storage>(
    storage: &S,
    dir: &Path,
    id: &SessionId,
) -> Result<(Tally, std::result::Result<Walked, Broken>)> {
    let take = |tally: &mut Tally, step: Step<'_>| {
        tally.take(step);
        ControlFlow::Continue(())
    };
    match walk_settled(storage, dir, id, None, unfinished, || Tally::new(id), take).await {
        (_, Err(Broken { error: error @ SessionError::NotFound(_), .. })) => Err(error),
        looked => Ok(looked),
    }
}

/// Whether it may be in the middle of an append, or of the session's creation.
fn unfinished(broken: &Broken) -> bool {
    matches!(broken.error, SessionError::HalfCreated { .. })
        || broken.damage.as_ref().is_some_and(|d| d.is_tail() || d.is_only_begun())
}

/// What the records come to.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    info: SessionInfo,
    epochs: u64,
    records: u64,
    bytes: u64,
    /// Of the newest epoch: tokens of its head, and tokens that its messages added.
    head: u64,
    added: u64,
}

impl Tally {
    pub(crate) fn new(id: &SessionId) -> Self {
        let info = SessionInfo {
            id: id.clone(),
            name: None,
            title: None,
            state: SessionState::Ok,
            started: None,
            last: None,
            messages: 0,
            turns: 0,
            context_n: 0,
            epoch: Epoch(0),
            model: None,
            reason: None,
        };
        Self { info, epochs: 0, records: 0, bytes: 0, head: 0, added: 0 }
    }

    /// What is known so far.
    pub(crate) fn info(&self) -> &SessionInfo {
        &self.info
    }

    pub(crate) fn take(&mut self, step: Step<'_>) {
        let found = match step {
            Step::Epoch(epoch, baseline) => {
                self.info.epoch = epoch;
                self.epochs = self.epochs.saturating_add(1);
                self.head = count(baseline.content().framing.head.len());
                self.added = 0;
                self.info.model = Some(baseline.content().model.alias.clone());
                return;
            }
            Step::Record(found) => found,
        };
        self.records = self.records.saturating_add(1);
        self.bytes = self.bytes.saturating_add(found.bytes);
        let time = found.record.time();
        self.info.last = Some(time);
        match found.record {
            LogRecord::SessionStart(start) if start.epoch == Epoch(0) => self.info.started = Some(time),
            LogRecord::UserMessage(message) => {
                if self.info.title.is_none() {
                    self.info.title = Some(search::beginning(&message.text, TITLE_CHARS));
                }
                self.info.messages = self.info.messages.saturating_add(1);
                self.info.turns = self.info.turns.saturating_add(1);
            }
            LogRecord::AssistantMessage(message) => {
                self.info.messages = self.info.messages.saturating_add(1);
                let ids = message.prompt_ids.len().saturating_add(message.kept_ids().len());
                self.added = self.added.saturating_add(count(ids));
            }
            LogRecord::Carried(carried) => {
                self.added = self.added.saturating_add(count(carried.prompt_ids.len()));
            }
            LogRecord::Named(named) => self.info.name = Some(named.name),
            _ => {}
        }
    }

    /// The session's state after its last record, all of them being whole.
    pub(super) fn settled(&self, sequence: &Sequence) -> SessionInfo {
        let mut info = self.counted();
        if let Some(turn) = sequence.open_turn() {
            info.state = SessionState::Interrupted;
            let call = sequence.unanswered().into_iter().next();
            let call = call.map(|call| unanswered(&call)).unwrap_or_default();
            let why = format!(
                "turn {turn} has no end: the daemon stopped, or the disk refused, in the middle of it{call}"
            );
            info.reason = Some(why);
        }
        info
    }

    fn counted(&self) -> SessionInfo {
        let context_n = if self.added == 0 { 0 } else { self.added.saturating_add(self.head) };
        SessionInfo { context_n, ..self.info.clone() }
    }

    pub(super) fn finish(self, walked: std::result::Result<Walked, Broken>) -> Inspected {
        let (info, remains, error) = match walked {
            Ok(walked) => (self.settled(&walked.end.sequence), walked.remains, None),
            Err(Broken { error, .. }) => {
                let (state, reason) = (SessionState::Damaged, Some(error.to_string()));
                (SessionInfo { state, reason, ..self.counted() }, Vec::new(), Some(error))
            }
        };
        let Self { epochs, records, bytes, .. } = self;
        Inspected { info, epochs, records, bytes, remains, error }
    }
}

/// What became of the call that an interrupted turn had come to.
fn unanswered((call, name, started): &(CallId, String, bool)) -> String {
    let name: String = name.escape_debug().take(CALL_NAME_CHARS).collect();
    if *started {
        format!("; call {call} ({name}) ran, and what it did is unknown")
    } else {
        format!(
            "; call {call} ({name}) had not started and will not: if it waited for an approval, nobody is asked any more"
        )
    }
}
