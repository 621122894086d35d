//! A session's records, page by page: each page goes on where the one before has ended.

use super::catalog::Catalog;
use super::error::Result;
use super::known::Bookmark;
use super::scan::{Flow, Found};
use super::storage::Storage;
use super::walk::{Start, Step};
use crate::proto::{LogRecord, SessionId, TurnId};

/// A page of records, as it fills.
#[derive(Clone)]
struct Page {
    /// What it takes: records from this number on, of this turn, as many as make so many bytes of lines.
    from: u64,
    turn: Option<TurnId>,
    max_bytes: u64,
    records: Vec<LogRecord>,
    bytes: u64,
    /// The next record's number.
    number: u64,
    /// When it is full: the first record that it has not, and all that were appended with that one and stand behind it.
    rest: Vec<Found>,
}

impl Page {
    fn take(&mut self, found: Found) -> Flow<()> {
        if !self.rest.is_empty() {
            self.rest.push(found);
            return Flow::Break(());
        }
        if self.number >= self.from && self.turn.is_none_or(|turn| found.record.turn() == Some(turn)) {
            let bytes = self.bytes.saturating_add(found.bytes);
            if bytes > self.max_bytes && !self.records.is_empty() {
                self.rest.push(found);
                return Flow::Break(());
            }
            self.bytes = bytes;
            self.records.push(found.record);
        }
        self.number = self.number.saturating_add(1);
        Flow::Continue(())
    }
}

impl<S: Storage> Catalog<S> {
    /// A page of a session's records, or of one turn's, counted from 0 over all epochs: from `from` on, as many as
    /// make `max_bytes` of lines but at least one; and where the next page begins, if there is one. Takes no
    /// lock. What an earlier page has read is not read again while its files are the same and have at most grown.
    ///
    /// # Errors
    /// Damage at or before the page's end, and the disk's.
    pub async fn records(
        &self,
        id: &SessionId,
        from: u64,
        turn: Option<TurnId>,
        max_bytes: u64,
    ) -> Result<(Vec<LogRecord>, Option<u64>)> {
        let since = self.known().forgotten();
        let stamps = self.storage().stamps(vec![self.dir(id)]).await.pop().unwrap_or_default();
        let bookmark = self.known().bookmark(id, &stamps).filter(|bookmark| bookmark.number <= from);
        let mut page =
            Page { from, turn, max_bytes, records: Vec::new(), bytes: 0, number: 0, rest: Vec::new() };
        let mut start = None;
        if let Some(Bookmark { number, rest, at, .. }) = bookmark {
            page.number = number;
            for found in rest {
                let _ = page.take(found);
            }
            start = Some(at);
        }
        if page.rest.is_empty() {
            let begin = || page.clone();
            let take = |page: &mut Page, step: Step<'_>| match step {
                Step::Epoch(..) => Flow::Continue(()),
                Step::Record(found) => page.take(found),
            };
            let (read, walked) = self.settled(id, start.as_ref(), begin, take).await?;
            page = read;
            start = Some(Start { epoch: walked.epoch, end: walked.end });
        }
        let Page { records, number, rest, .. } = page;
        let next = (!rest.is_empty()).then_some(number);
        let bookmark = next.and(start).map(|at| Bookmark { stamps, number, rest, at });
        self.known().mark(id, bookmark, since);
        Ok((records, next))
    }
}
