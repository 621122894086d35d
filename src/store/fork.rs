//! A new session from the earlier turns of another.

use std::io;
use std::ops::ControlFlow;

use super::catalog::{Catalog, generate};
use super::copy::{self, Copy};
use super::error::{Result, SessionError};
use super::session::Session;
use super::storage::Storage;
use crate::proto::{LogRecord, Named, SessionId, Timestamp, TurnId, count};

impl<S: Storage> Catalog<S> {
    /// A new session with the records of `id` up to the end of `turn`, or of the newest turn that has ended; its
    /// name goes to the new one only if it is given. `id` is left as it is, and may be in use. The copying goes
    /// on when its future is dropped.
    ///
    /// # Errors
    /// [`SessionError::NoTurn`], damage of `id`, or the disk's.
    pub async fn fork(
        &self,
        id: &SessionId,
        turn: Option<TurnId>,
        name: Option<String>,
    ) -> Result<Session<S>> {
        let (mut copies, _) = self
            .settled(id, None, Vec::new, |copies, step| {
                copy::take(copies, step);
                ControlFlow::Continue(())
            })
            .await?;
        if !cut(&mut copies, turn) {
            return Err(SessionError::NoTurn(id.clone(), turn));
        }
        let named = name.map(|name| LogRecord::Named(Named { time: Timestamp::now(), name }));
        let new = generate(self.home())?;
        let (this, id) = (self.clone(), id.clone());
        let sessions = self.sessions();
        let task = tokio::task::spawn_local(async move {
            let more = named.into_iter().collect();
            copy::write(this.storage(), &this.sessions(), (&id, &new), copies, more).await?;
            Ok(this.open(&new).await?.0)
        });
        task.await.map_err(|e| SessionError::Io(sessions, io::Error::other(e)))?
    }
}

/// Cuts everything behind the end of a turn away, and what the session was called; whether there is such an end.
fn cut(copies: &mut Vec<Copy>, turn: Option<TurnId>) -> bool {
    let ends = |record: &LogRecord| matches!(record, LogRecord::TurnEnd(end) if turn.is_none_or(|turn| end.turn == turn));
    while let Some(newest) = copies.last_mut() {
        // a turn that was asked again has several ends; the last one counts
        if let Some(last) = newest.records.iter().rposition(ends) {
            newest.records.truncate(last.saturating_add(1));
            newest.lines = count(newest.records.len());
            for copy in copies {
                copy.records.retain(|record| !matches!(record, LogRecord::Named(_)));
            }
            return true;
        }
        copies.pop();
    }
    false
}
