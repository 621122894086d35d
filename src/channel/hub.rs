//! The hub: numbers each session's events, keeps the newest, and hands them to the clients that watch.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use super::ChannelLimits;
use super::outbox::{EventLine, Outbox};
use crate::proto::{Event, EventKind, Outgoing, Phase, SessionId, Snapshot, TurnId};

/// Stands at the beginning of a snapshot's text that was shortened.
const LEFT_OUT: &str = "[the beginning is left out] ";

/// Where the events of all sessions go through.
///
/// `publish` never waits, whatever the clients do: each has its own bounded queue. A session that has
/// neither a running turn nor a client costs nothing, apart from the newest few.
pub struct Hub {
    streams: RefCell<HashMap<SessionId, Stream>>,
    /// Sessions without a turn and clients whose streams are still kept, oldest first.
    idle: RefCell<VecDeque<SessionId>>,
    /// The highest number of any stream that was dropped: a session's next stream begins after it, so
    /// that its numbers only ever grow.
    floor: Cell<u64>,
    clients: Cell<usize>,
    limits: ChannelLimits,
}

/// One session's events.
struct Stream {
    id: Rc<SessionId>,
    /// The last event's.
    seq: u64,
    turn: Option<TurnId>,
    snapshot: Snapshot,
    /// The newest events, the last of them with the number `seq`.
    recent: VecDeque<EventLine>,
    recent_bytes: usize,
    watchers: BTreeMap<u64, Watcher>,
}

/// A client that is attached.
struct Watcher {
    outbox: Rc<Outbox>,
    approves: bool,
}

/// Which events a client has seen already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It doesn't say: it is told where a running turn stands, and goes on from now.
    Unsaid,
    /// All up to this number, of this run.
    Upto(u64),
    /// Those of another run: it needs a snapshot.
    OtherRun,
}

impl Hub {
    /// A hub without sessions.
    #[must_use]
    pub fn new(limits: ChannelLimits) -> Rc<Self> {
        Rc::new(Self {
            streams: RefCell::default(),
            idle: RefCell::default(),
            floor: Cell::new(0),
            clients: Cell::new(0),
            limits,
        })
    }

    /// Gives an event the session's next number and hands it to all who are attached. Never waits.
    pub fn publish(&self, session: &SessionId, turn: Option<TurnId>, kind: EventKind) {
        self.with_stream(session, |stream| {
            stream.snapshot.apply(&kind);
            shorten(&mut stream.snapshot.text, self.limits.snapshot_bytes);
            shorten(&mut stream.snapshot.reasoning, self.limits.snapshot_bytes);
            // a notice may belong to no turn; the snapshot is still that of the newest one
            stream.turn = turn.or(stream.turn);
            stream.seq = stream.seq.saturating_add(1);
            let event = Event { session: session.clone(), turn, seq: stream.seq, kind };
            let Some(line) = line_of(event) else {
                // the number is used up: whoever watches sees the gap closed by a snapshot
                stream.recent.clear();
                stream.recent_bytes = 0;
                stream.watchers.values().for_each(|watcher| watcher.outbox.catch_up(&stream.id));
                return;
            };
            for Watcher { outbox, .. } in stream.watchers.values() {
                outbox.event(&stream.id, &line);
            }
            stream.keep(line, &self.limits);
        });
        self.settle(session);
    }

    /// How many clients are attached to a session.
    #[must_use]
    pub fn attached(&self, session: &SessionId) -> usize {
        self.streams.borrow().get(session).map_or(0, |stream| stream.watchers.len())
    }

    /// How many of them say that they ask a person about approvals.
    #[must_use]
    pub fn approvers(&self, session: &SessionId) -> usize {
        let count = |stream: &Stream| stream.watchers.values().filter(|watcher| watcher.approves).count();
        self.streams.borrow().get(session).map_or(0, count)
    }

    /// How many clients are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.get()
    }

    /// The number of a session's last event; those of a session only ever grow while the daemon runs.
    #[must_use]
    pub fn seq(&self, session: &SessionId) -> u64 {
        self.streams.borrow().get(session).map_or(self.floor.get(), |stream| stream.seq)
    }

    /// Drops a deleted session's events, and detaches all its clients.
    pub fn forget(&self, session: &SessionId) {
        self.idle.borrow_mut().retain(|other| other != session);
        if let Some(stream) = self.streams.borrow_mut().remove(session) {
            self.raise_floor(stream.seq);
        }
    }

    /// Whether that client is attached to a session.
    pub(super) fn watches(&self, session: &SessionId, client: u64) -> bool {
        self.streams.borrow().get(session).is_some_and(|stream| stream.watchers.contains_key(&client))
    }

    /// Counts a client in; refused beyond the limit.
    pub(super) fn enter(self: &Rc<Self>, limit: usize) -> Option<Place> {
        let clients = self.clients.get();
        if clients >= limit {
            return None;
        }
        self.clients.set(clients.saturating_add(1));
        Some(Place(Rc::clone(self)))
    }

    /// Attaches a client's queue. `answer` puts the answer into the queue, before the first event; it is
    /// told the number of the last event.
    pub(super) fn attach(
        &self,
        session: &SessionId,
        client: u64,
        outbox: &Rc<Outbox>,
        seen: Seen,
        approves: bool,
        answer: impl FnOnce(u64),
    ) {
        self.with_stream(session, |stream| {
            outbox.purge(session);
            answer(stream.seq);
            match stream.since(seen) {
                Some(missed) => missed.iter().for_each(|line| outbox.event(&stream.id, line)),
                None => outbox.catch_up(&stream.id),
            }
            stream.watchers.insert(client, Watcher { outbox: Rc::clone(outbox), approves });
        });
        self.settle(session);
    }

    /// Detaches a client's queue; what waits in it of this session is thrown away.
    pub(super) fn detach(&self, session: &SessionId, client: u64) {
        if let Some(stream) = self.streams.borrow_mut().get_mut(session)
            && let Some(watcher) = stream.watchers.remove(&client)
        {
            watcher.outbox.purge(session);
        }
        self.settle(session);
    }

    /// The line of a snapshot event as of now.
    pub(super) fn snapshot_line(&self, session: &SessionId) -> Option<EventLine> {
        let streams = self.streams.borrow();
        let stream = streams.get(session)?;
        let kind = EventKind::Snapshot { snapshot: stream.snapshot.clone() };
        line_of(Event { session: session.clone(), turn: stream.turn, seq: stream.seq, kind })
    }

    fn with_stream(&self, session: &SessionId, f: impl FnOnce(&mut Stream)) {
        let mut streams = self.streams.borrow_mut();
        if let Some(stream) = streams.get_mut(session) {
            return f(stream);
        }
        let mut stream = Stream {
            id: Rc::new(session.clone()),
            seq: self.floor.get(),
            turn: None,
            snapshot: Snapshot::default(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            watchers: BTreeMap::new(),
        };
        f(&mut stream);
        streams.insert(session.clone(), stream);
    }

    /// Keeps the list of idle streams up to date after a change, and drops the oldest beyond the limit.
    fn settle(&self, session: &SessionId) {
        let mut streams = self.streams.borrow_mut();
        let mut idle = self.idle.borrow_mut();
        idle.retain(|other| other != session);
        if streams.get(session).is_some_and(Stream::is_idle) {
            idle.push_back(session.clone());
        }
        while idle.len() > self.limits.idle_sessions {
            if let Some(stream) = idle.pop_front().and_then(|oldest| streams.remove(&oldest)) {
                self.raise_floor(stream.seq);
            }
        }
    }

    fn raise_floor(&self, seq: u64) {
        self.floor.set(self.floor.get().max(seq));
    }
}

impl Stream {
    fn is_idle(&self) -> bool {
        self.watchers.is_empty() && self.snapshot.phase == Phase::Idle
    }

    fn keep(&mut self, line: EventLine, limits: &ChannelLimits) {
        self.recent_bytes = self.recent_bytes.saturating_add(line.len());
        self.recent.push_back(line);
        while self.recent.len() > limits.recent_events || self.recent_bytes > limits.recent_bytes {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.recent_bytes = self.recent_bytes.saturating_sub(oldest.len());
        }
    }

    /// The events that a client misses; none when a snapshot must stand in for them.
    fn since(&self, seen: Seen) -> Option<Vec<EventLine>> {
        let missed = match seen {
            Seen::Unsaid if self.snapshot.phase == Phase::Idle => 0,
            Seen::Unsaid | Seen::OtherRun => return None,
            Seen::Upto(seq) => usize::try_from(self.seq.checked_sub(seq)?).ok()?,
        };
        let skipped = self.recent.len().checked_sub(missed)?;
        Some(self.recent.iter().skip(skipped).cloned().collect())
    }
}

/// A client's place under the limit, free again when dropped.
pub(super) struct Place(Rc<Hub>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.clients.set(self.0.clients.get().saturating_sub(1));
    }
}

fn line_of(event: Event) -> Option<EventLine> {
    match Outgoing::Event(event).to_line() {
        Ok(line) => Some(line.into()),
        Err(e) => {
            log::error!("an event cannot be written: {e}");
            None
        }
    }
}

/// Cuts the beginning off a text over `max` bytes; half is left, so that this is rare.
fn shorten(text: &mut String, max: usize) {
    if text.len() > max {
        let keep = max / 2;
        let cut = text.ceil_char_boundary(text.len().saturating_sub(keep));
        text.replace_range(..cut, LEFT_OUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> SessionId {
        text.parse().unwrap()
    }

    fn start(hub: &Hub, session: &str) {
        let kind = EventKind::TurnStart { text: "hi".to_owned(), retry: false };
        hub.publish(&id(session), Some(TurnId(1)), kind);
    }

    fn say(hub: &Hub, session: &str, text: &str) {
        hub.publish(&id(session), Some(TurnId(1)), EventKind::Text { text: text.to_owned() });
    }

    fn end(hub: &Hub, session: &str) {
        let kind = EventKind::TurnEnd {
            outcome: crate::proto::TurnOutcome::Done,
            detail: None,
            certainty: crate::proto::Certainty::Durable,
        };
        hub.publish(&id(session), Some(TurnId(1)), kind);
    }

    /// What a client gets: `seq`s of events, and `=seq text` of snapshots.
    async fn attach(hub: &Hub, session: &str, seen: Seen) -> Vec<String> {
        let outbox = Rc::new(Outbox::new(&hub.limits));
        hub.attach(&id(session), 1, &outbox, seen, false, |_| {});
        outbox.finish();
        let mut all = Vec::new();
        while let Some(batch) = outbox.next(|session| hub.snapshot_line(session)).await {
            all.extend(batch.bytes);
        }
        hub.detach(&id(session), 1);
        let events = all.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        events.map(|line| summary(&serde_json::from_slice(line).unwrap())).collect()
    }

    fn summary(event: &Event) -> String {
        match &event.kind {
            EventKind::Snapshot { snapshot } => format!("={} {}", event.seq, snapshot.text),
            _ => event.seq.to_string(),
        }
    }

    #[tokio::test]
    async fn what_was_missed_is_sent_again_or_replaced_by_a_snapshot() {
        let limits = ChannelLimits { recent_events: 3, ..ChannelLimits::default() };
        let hub = Hub::new(limits);
        start(&hub, "s");
        for text in ["a", "b", "c", "d"] {
            say(&hub, "s", text);
        }
        assert_eq!(hub.seq(&id("s")), 5);
        assert_eq!(attach(&hub, "s", Seen::Upto(5)).await, Vec::<String>::new());
        assert_eq!(attach(&hub, "s", Seen::Upto(3)).await, ["4", "5"]);
        assert_eq!(attach(&hub, "s", Seen::Upto(2)).await, ["3", "4", "5"]);
        assert_eq!(attach(&hub, "s", Seen::Upto(1)).await, ["=5 abcd"]);
        assert_eq!(attach(&hub, "s", Seen::Upto(6)).await, ["=5 abcd"]);
        assert_eq!(attach(&hub, "s", Seen::OtherRun).await, ["=5 abcd"]);
        assert_eq!(attach(&hub, "s", Seen::Unsaid).await, ["=5 abcd"]);
        end(&hub, "s");
        assert_eq!(attach(&hub, "s", Seen::Unsaid).await, Vec::<String>::new());
        assert_eq!(attach(&hub, "s", Seen::Upto(5)).await, ["6"]);
        assert_eq!(attach(&hub, "s", Seen::OtherRun).await, ["=6 "]);
    }

    #[tokio::test]
    async fn recent_events_are_bounded_by_bytes() {
        let hub = Hub::new(ChannelLimits { recent_bytes: 1000, ..ChannelLimits::default() });
        start(&hub, "s");
        for _ in 0..100 {
            say(&hub, "s", "0123456789");
        }
        say(&hub, "s", &"long".repeat(1000));
        let kept = |stream: &Stream| (stream.recent.len(), stream.recent_bytes);
        assert_eq!(hub.streams.borrow().get(&id("s")).map(kept), Some((0, 0)));
        assert!(attach(&hub, "s", Seen::Upto(101)).await[0].starts_with("=102 "));
    }

    #[tokio::test]
    async fn idle_sessions_cost_nothing_and_numbers_only_grow() {
        let hub = Hub::new(ChannelLimits { idle_sessions: 2, ..ChannelLimits::default() });
        start(&hub, "running");
        for n in 0..1000 {
            let name = format!("s{n}");
            start(&hub, &name);
            end(&hub, &name);
        }
        assert_eq!(hub.streams.borrow().len(), 3);
        assert_eq!(hub.idle.borrow().len(), 2);
        let before = hub.seq(&id("s0"));
        assert!(before >= 2);
        start(&hub, "s0");
        assert_eq!(hub.seq(&id("s0")), before + 1);
        // a client from before the events were dropped
        assert_eq!(attach(&hub, "s0", Seen::Upto(1)).await.len(), 1);
        hub.forget(&id("s0"));
        start(&hub, "s0");
        assert!(hub.seq(&id("s0")) > before + 1);
        end(&hub, "running");
        assert_eq!(hub.streams.borrow().len(), 3, "the running one is idle now, and one of the others went");
    }

    #[test]
    fn a_long_text_is_shortened_at_a_character() {
        let hub = Hub::new(ChannelLimits { snapshot_bytes: 1000, ..ChannelLimits::default() });
        start(&hub, "s");
        for _ in 0..5000 {
            say(&hub, "s", "é→🦀");
        }
        let streams = hub.streams.borrow();
        let text = &streams[&id("s")].snapshot.text;
        assert!(text.len() <= 1000 && text.starts_with(LEFT_OUT) && text.ends_with("🦀"), "{text}");
    }
}
