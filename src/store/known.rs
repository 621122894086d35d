//! What was read of sessions, as long as their files stay the same: so that a list, and the next page of records, read only
//! what is new.
//!
//! It is in memory alone, is worth nothing to anybody who opens a session, and is gone with the process. What was
//! verified once is not read again while the file is the same one and has at most grown; what it has grown by is
//! verified as the continuation of the chain. A disk that loses or changes bytes behind the file system's back is
//! found by `open` and `verify`, which always read everything.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

use super::inspect::Tally;
use super::scan::{Expected, Found, Mark, scan_from};
use super::storage::{Access, Stamp, Storage};
use super::walk::{Start, Step, Walked, log_path};
use crate::proto::{Digest, Epoch, Sequence, SessionId, SessionInfo};

/// How many sessions' pages are remembered at once. Without its bookmark a page is found from the session's beginning.
const BOOKMARKS: usize = 32;

/// Sessions that were read whole and found whole.
#[derive(Debug, Clone, Default)]
pub(super) struct Known(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    sessions: RefCell<HashMap<SessionId, Seen>>,
    pages: RefCell<HashMap<SessionId, Bookmark>>,
    /// How often something was forgotten: what was read before that may be of the time before it.
    forgotten: Cell<u64>,
}

/// Where a page of a session's records has ended.
#[derive(Debug, Clone)]
pub(super) struct Bookmark {
    /// The session's files, looked at before they were read.
    pub stamps: Vec<Stamp>,
    /// The number of the next record.
    pub number: u64,
    /// The records from that on which were read with the page: of one append.
    pub rest: Vec<Found>,
    /// Where reading goes on behind them.
    pub at: Start,
}

/// Whether files are the same but for one epoch's log, which has grown, and has so many bytes at least.
fn only_grown(old: &[Stamp], new: &[Stamp], epoch: Epoch, bytes: u64) -> bool {
    let log = format!("{epoch}.jsonl");
    let grown = |old: &Stamp, new: &Stamp| {
        let same = (&old.name, old.file) == (&new.name, new.file);
        same && old.name == log && new.len > old.len && new.len >= bytes
    };
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| old == new || grown(old, new))
}

/// A session, read to its end.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Its files, looked at before they were read.
    stamps: Vec<Stamp>,
    tally: Tally,
    epoch: Epoch,
    baseline: Digest,
    /// How far the newest log was read.
    end: Mark,
}

impl Seen {
    /// What a walk has seen; nothing where the beginning of an epoch has left something, which the walk alone tells.
    pub(super) fn new(stamps: Vec<Stamp>, tally: Tally, walked: &Walked) -> Option<Self> {
        let Walked { epoch, baseline, end, remains, .. } = walked;
        let (epoch, baseline, end) = (*epoch, baseline.hash(), end.clone());
        remains.is_empty().then_some(Self { stamps, tally, epoch, baseline, end })
    }

    /// The session's state.
    pub(super) fn info(&self) -> SessionInfo {
        self.tally.settled(&self.end.sequence)
    }

    /// Whether the files are the same but for the newest log, which has grown.
    fn precedes(&self, stamps: &[Stamp]) -> bool {
        only_grown(&self.stamps, stamps, self.epoch, self.end.bytes)
    }

    /// Reads what the newest log has grown by; nothing when that is not whole.
    pub(super) async fn go_on<S: Storage>(
        mut self,
        storage: &S,
        dir: &Path,
        id: &SessionId,
        stamps: Vec<Stamp>,
    ) -> Option<Self> {
        let file = storage.open(&log_path(dir, self.epoch), Access::Read).await.ok()?;
        let Self { tally, epoch, baseline, end, .. } = &mut self;
        // only a first line is compared with these two, and it was read
        let (previous, sequence) = (None, Sequence::default());
        let expected =
            Expected { session: id.clone(), epoch: *epoch, baseline: *baseline, previous, sequence };
        let mut take = |found| {
            tally.take(Step::Record(found));
            ControlFlow::Continue(())
        };
        let scanned = scan_from(&file, &expected, end.clone(), &mut take).await.ok()?;
        (self.end, self.stamps) = (scanned.good, stamps);
        scanned.damage.is_none().then_some(self)
    }
}

impl Known {
    /// What is known of a session, if its files are the same; else what is known of the time before they grew.
    pub(super) fn get(&self, id: &SessionId, stamps: &[Stamp]) -> (Option<SessionInfo>, Option<Seen>) {
        let sessions = self.0.sessions.borrow();
        match sessions.get(id) {
            Some(seen) if seen.stamps == stamps => (Some(seen.info()), None),
            Some(seen) if seen.precedes(stamps) => (None, Some(seen.clone())),
            _ => (None, None),
        }
    }

    /// Takes away where the last page of a session's records has ended, if its files are the same still and have at
    /// most grown.
    pub(super) fn bookmark(&self, id: &SessionId, stamps: &[Stamp]) -> Option<Bookmark> {
        let bookmark = self.0.pages.borrow_mut().remove(id)?;
        let Start { epoch, end } = &bookmark.at;
        only_grown(&bookmark.stamps, stamps, *epoch, end.bytes).then_some(bookmark)
    }

    /// Remembers where a page has ended that was read since [`forgotten`](Self::forgotten) gave this number; that it was
    /// the last page, when nothing is given.
    pub(super) fn mark(&self, id: &SessionId, bookmark: Option<Bookmark>, since: u64) {
        if let Some(bookmark) = bookmark.filter(|_| since == self.forgotten()) {
            let mut pages = self.0.pages.borrow_mut();
            // whoever did not go on to the end may never come back
            if pages.len() >= BOOKMARKS {
                pages.clear();
            }
            pages.insert(id.clone(), bookmark);
        }
    }

    /// How often something was forgotten so far.
    pub(super) fn forgotten(&self) -> u64 {
        self.0.forgotten.get()
    }

    /// Remembers what was read since [`forgotten`](Self::forgotten) gave this number.
    pub(super) fn remember(&self, id: &SessionId, seen: Option<Seen>, since: u64) {
        let mut sessions = self.0.sessions.borrow_mut();
        match seen.filter(|_| since == self.forgotten()) {
            Some(seen) => drop(sessions.insert(id.clone(), seen)),
            None => drop(sessions.remove(id)),
        }
    }

    /// Forgets a session: what the disk holds of it is about to be read anew, or changed.
    pub(super) fn forget(&self, id: &SessionId) {
        self.0.forgotten.set(self.forgotten().wrapping_add(1));
        self.0.sessions.borrow_mut().remove(id);
        self.0.pages.borrow_mut().remove(id);
    }

    /// Forgets all but these, which are in order.
    pub(super) fn keep(&self, ids: &[SessionId]) {
        self.0.sessions.borrow_mut().retain(|id, _| ids.binary_search(id).is_ok());
        self.0.pages.borrow_mut().retain(|id, _| ids.binary_search(id).is_ok());
    }
}
