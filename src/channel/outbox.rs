//! What waits to be written to one client: bounded, in order, and never in anybody's way.
//!
//! Answers always get in: each holds one of the client's few permits until it is written. Events get in
//! while there is room. When there is none, the session's waiting events are thrown away and one mark is
//! left in their place, the *catch-up*; later events of that session are not queued at all. When the
//! client has read everything before the mark, the mark becomes a snapshot of that very moment, and the
//! events go on from there.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::ChannelLimits;
use crate::proto::SessionId;

/// Lines are written together up to so many bytes.
const BATCH_BYTES: usize = 32 << 10;

/// An event as its line, shared by all who wait for it.
pub(super) type EventLine = Rc<[u8]>;

enum Item {
    Answer(Vec<u8>, OwnedSemaphorePermit),
    Event(Rc<SessionId>, EventLine),
    CatchUp(Rc<SessionId>),
}

impl Item {
    fn is_of(&self, of: &SessionId) -> bool {
        matches!(self, Self::Event(session, _) | Self::CatchUp(session) if **session == *of)
    }
}

#[derive(Default)]
struct Waiting {
    items: VecDeque<Item>,
    /// Of the items that are events: how many, and their bytes.
    events: usize,
    bytes: usize,
    /// Sessions with a catch-up among the items.
    lagging: HashSet<Rc<SessionId>>,
}

/// Lines to write at once, with the permits of the answers among them.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) permits: Vec<OwnedSemaphorePermit>,
}

/// The queue of one client.
pub(super) struct Outbox {
    waiting: RefCell<Waiting>,
    more: Notify,
    /// Nothing more will come; end when empty.
    finished: Cell<bool>,
    /// The client is gone; take nothing.
    closed: Cell<bool>,
    max_events: usize,
    max_bytes: usize,
}

impl Outbox {
    pub(super) fn new(limits: &ChannelLimits) -> Self {
        Self {
            waiting: RefCell::default(),
            more: Notify::new(),
            finished: Cell::new(false),
            closed: Cell::new(false),
            max_events: limits.queued_events,
            max_bytes: limits.queued_bytes,
        }
    }

    pub(super) fn answer(&self, line: Vec<u8>, permit: OwnedSemaphorePermit) {
        if !self.closed.get() {
            self.waiting.borrow_mut().items.push_back(Item::Answer(line, permit));
            self.more.notify_one();
        }
    }

    pub(super) fn event(&self, session: &Rc<SessionId>, line: &EventLine) {
        let mut waiting = self.waiting.borrow_mut();
        if self.closed.get() || waiting.lagging.contains(session) {
            return;
        }
        let bytes = waiting.bytes.saturating_add(line.len());
        if waiting.events == 0 || (waiting.events < self.max_events && bytes <= self.max_bytes) {
            waiting.events = waiting.events.saturating_add(1);
            waiting.bytes = bytes;
            waiting.items.push_back(Item::Event(Rc::clone(session), Rc::clone(line)));
        } else {
            waiting.catch_up(session);
        }
        drop(waiting);
        self.more.notify_one();
    }

    /// A snapshot instead of the events that wait, when its turn comes.
    pub(super) fn catch_up(&self, session: &Rc<SessionId>) {
        if !self.closed.get() {
            self.waiting.borrow_mut().catch_up(session);
            self.more.notify_one();
        }
    }

    /// Forgets all that waits of a session.
    pub(super) fn purge(&self, session: &SessionId) {
        self.waiting.borrow_mut().purge(session);
    }

    /// What to write next; nothing once it is finished and empty. `snapshot` gives the line of a
    /// session's snapshot at this moment. Dropping the future loses nothing.
    pub(super) async fn next(&self, snapshot: impl Fn(&SessionId) -> Option<EventLine>) -> Option<Batch> {
        loop {
            let batch = self.waiting.borrow_mut().take(&snapshot);
            if !batch.bytes.is_empty() {
                return Some(batch);
            }
            if self.finished.get() || self.closed.get() {
                return None;
            }
            self.more.notified().await;
        }
    }

    /// Nothing more will come.
    pub(super) fn finish(&self) {
        self.finished.set(true);
        self.more.notify_one();
    }

    /// The client is gone: forgets everything, and takes nothing more.
    pub(super) fn close(&self) {
        self.closed.set(true);
        *self.waiting.borrow_mut() = Waiting::default();
        self.more.notify_one();
    }

    /// Events that wait, and their bytes.
    #[cfg(test)]
    pub(super) fn waiting_events(&self) -> (usize, usize) {
        let waiting = self.waiting.borrow();
        (waiting.events, waiting.bytes)
    }
}

impl Waiting {
    fn catch_up(&mut self, session: &Rc<SessionId>) {
        self.purge(session);
        self.lagging.insert(Rc::clone(session));
        self.items.push_back(Item::CatchUp(Rc::clone(session)));
    }

    fn purge(&mut self, session: &SessionId) {
        self.items.retain(|item| !item.is_of(session));
        self.lagging.remove(session);
        let sizes = self.items.iter().filter_map(|item| match item {
            Item::Event(_, line) => Some(line.len()),
            _ => None,
        });
        (self.events, self.bytes) = sizes
            .fold((0, 0), |(n, sum): (usize, usize), size| (n.saturating_add(1), sum.saturating_add(size)));
    }

    fn take(&mut self, snapshot: impl Fn(&SessionId) -> Option<EventLine>) -> Batch {
        let mut batch = Batch::default();
        while batch.bytes.len() < BATCH_BYTES {
            match self.items.pop_front() {
                None => break,
                Some(Item::Answer(line, permit)) => {
                    batch.permits.push(permit);
                    if batch.bytes.is_empty() {
                        batch.bytes = line;
                    } else {
                        batch.bytes.extend_from_slice(&line);
                    }
                }
                Some(Item::Event(_, line)) => {
                    self.events = self.events.saturating_sub(1);
                    self.bytes = self.bytes.saturating_sub(line.len());
                    batch.bytes.extend_from_slice(&line);
                }
                // from here on the session's events are queued again, so nothing is missing between
                // the snapshot and the next of them
                Some(Item::CatchUp(session)) => {
                    self.lagging.remove(&session);
                    if let Some(line) = snapshot(&session) {
                        batch.bytes.extend_from_slice(&line);
                    }
                }
            }
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    fn session(id: &str) -> Rc<SessionId> {
        Rc::new(id.parse().unwrap())
    }

    fn outbox(events: usize, bytes: usize) -> Outbox {
        Outbox::new(&ChannelLimits { queued_events: events, queued_bytes: bytes, ..ChannelLimits::default() })
    }

    fn line(text: &str) -> EventLine {
        Rc::from(format!("{text}\n").into_bytes())
    }

    /// All that waits, as text; a snapshot is `=session`.
    async fn written(outbox: &Outbox) -> String {
        outbox.finish();
        let mut all = Vec::new();
        while let Some(batch) = outbox.next(|session| Some(line(&format!("={session}")))).await {
            all.extend(batch.bytes);
        }
        outbox.finished.set(false);
        String::from_utf8(all).unwrap()
    }

    async fn permit() -> OwnedSemaphorePermit {
        Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap()
    }

    #[tokio::test]
    async fn order_is_kept() {
        let outbox = outbox(10, 1000);
        let a = session("a");
        outbox.event(&a, &line("a1"));
        outbox.answer(b"answer\n".to_vec(), permit().await);
        outbox.event(&a, &line("a2"));
        assert_eq!(written(&outbox).await, "a1\nanswer\na2\n");
    }

    #[tokio::test]
    async fn too_many_events_become_a_snapshot_and_others_keep_theirs() {
        let outbox = outbox(3, 1000);
        let (a, b) = (session("a"), session("b"));
        outbox.event(&b, &line("b1"));
        for _ in 0..100 {
            outbox.event(&a, &line("a"));
        }
        outbox.answer(b"answer\n".to_vec(), permit().await);
        outbox.event(&b, &line("b2"));
        assert_eq!(outbox.waiting_events(), (2, 6));
        assert_eq!(written(&outbox).await, "b1\n=a\nanswer\nb2\n");
        outbox.event(&a, &line("a101"));
        assert_eq!(written(&outbox).await, "a101\n");
        assert_eq!(outbox.waiting_events(), (0, 0));
    }

    #[tokio::test]
    async fn too_many_bytes_become_a_snapshot_but_one_long_event_passes() {
        let outbox = outbox(100, 10);
        let a = session("a");
        let long = "long".repeat(100);
        outbox.event(&a, &line(&long));
        assert_eq!(outbox.waiting_events(), (1, 401));
        assert_eq!(written(&outbox).await, format!("{long}\n"));
        outbox.event(&a, &line("12345"));
        outbox.event(&a, &line("123"));
        assert_eq!(outbox.waiting_events(), (2, 10));
        outbox.event(&a, &line(""));
        assert_eq!(outbox.waiting_events(), (0, 0));
        assert_eq!(written(&outbox).await, "=a\n");
    }

    #[tokio::test]
    async fn purged_and_closed_leave_nothing() {
        let outbox = outbox(2, 1000);
        let (a, b) = (session("a"), session("b"));
        outbox.catch_up(&a);
        outbox.event(&b, &line("b1"));
        outbox.purge(&a);
        assert_eq!(written(&outbox).await, "b1\n");
        outbox.event(&a, &line("a1"));
        outbox.close();
        outbox.event(&a, &line("a2"));
        outbox.answer(b"answer\n".to_vec(), permit().await);
        outbox.catch_up(&a);
        assert_eq!(written(&outbox).await, "");
        assert!(outbox.waiting.borrow().items.is_empty());
    }

    #[tokio::test]
    async fn a_permit_is_held_until_its_answer_is_written() {
        let outbox = outbox(2, 1000);
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
        outbox.answer(b"answer\n".to_vec(), permit);
        let batch = outbox.next(|_| None).await.unwrap();
        assert_eq!(permits.available_permits(), 0);
        drop(batch);
        assert_eq!(permits.available_permits(), 1);
    }
}
