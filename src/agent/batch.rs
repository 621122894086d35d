//! What has become final and goes into the next append, and what is told of it once that is durable.
//!
//! Whatever begins in the world (a tool, a question to a person, a request to a server) and whatever is told waits for
//! the append of all that became final before; between two of them one append is enough.

use crate::proto::{Certainty, EventKind, LogRecord};

use super::AgentError;
use super::end::End;
use super::turn::Turn;

type Telling = Box<dyn FnOnce(&Turn)>;

/// Records that wait for an append, and what follows it. Dropping it forgets both: nobody has heard of any of it.
#[derive(Default)]
pub(super) struct Batch {
    records: Vec<LogRecord>,
    telling: Vec<Telling>,
}

impl Batch {
    /// A record that is final.
    pub(super) fn add(&mut self, record: LogRecord) {
        self.records.push(record);
    }

    /// What is done, in this order, once all records up to here are durable.
    pub(super) fn then(&mut self, tell: impl FnOnce(&Turn) + 'static) {
        self.telling.push(Box::new(tell));
    }

    /// An event that is published then.
    pub(super) fn tell(&mut self, kind: EventKind) {
        self.then(|turn| turn.publish(kind));
    }

    /// Tells what waited for the append.
    pub(super) fn told(self, turn: &Turn) {
        self.telling.into_iter().for_each(|tell| tell(turn));
    }
}

impl Turn {
    /// Makes a batch durable, in one append; what follows that waits still.
    pub(super) async fn append(&self, batch: &mut Batch) -> Result<(), AgentError> {
        let records = std::mem::take(&mut batch.records);
        Ok(self.conversation.session.lock().await.append_all(records).await?)
    }

    /// Makes a batch durable, in one append, and then tells of it.
    pub(super) async fn commit(&self, mut batch: Batch) -> Result<(), AgentError> {
        self.append(&mut batch).await?;
        batch.told(self);
        Ok(())
    }

    /// Adds the turn's end, which is told when it is durable.
    pub(super) fn end(&self, end: End, batch: &mut Batch) {
        batch.add(self.end_record(&end));
        batch.then(|turn| turn.ended(end, Certainty::Durable));
    }
}
