//! The sessions that are open: opened when first needed, closed again when too many are.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::Instant;

use crate::agent::{Conversation, Events};
use crate::proto::{EventKind, SessionId};
use crate::store::{Catalog, Session, SessionError};

/// Open sessions, by id; the least recently used ones are closed beyond a limit. Closing loses nothing:
/// the log is the state.
pub(super) struct Sessions {
    catalog: Catalog,
    open: RefCell<HashMap<SessionId, Entry>>,
    /// One opening at a time, so that nobody meets a session that is half open.
    opening: Mutex<()>,
    most: usize,
    /// Told when there may be more than that.
    crowded: Notify,
    events: Rc<dyn Events>,
}

struct Entry {
    conversation: Rc<Conversation>,
    /// When it was last asked for, or seen in use.
    used: Instant,
}

impl Entry {
    /// Whether a turn or a request has it.
    fn in_use(&self) -> bool {
        Rc::strong_count(&self.conversation) > 1
    }
}

/// How often sessions that are too many, or idle, are looked for at most.
const MOST_OFTEN: Duration = Duration::from_secs(5);

impl Sessions {
    /// No session is open yet; at most `most` without a running turn stay so.
    pub(super) fn new(catalog: Catalog, most: usize, events: Rc<dyn Events>) -> Self {
        Self {
            catalog,
            open: RefCell::default(),
            opening: Mutex::new(()),
            most,
            crowded: Notify::new(),
            events,
        }
    }

    /// The sessions on disk.
    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The conversation of a session, opened from disk if it is not open.
    pub(super) async fn get(&self, id: &SessionId) -> Result<Rc<Conversation>, SessionError> {
        if let Some(conversation) = self.usable(id).await {
            return Ok(conversation);
        }
        let _one = self.opening.lock().await;
        if let Some(conversation) = self.usable(id).await {
            return Ok(conversation);
        }
        // one whose sync failed is let go of first, and with it its lock
        let unended = self.open.borrow_mut().remove(id).and_then(|entry| entry.conversation.unended());
        let (session, cut) = match self.catalog.open(id).await {
            Ok(opened) => opened,
            Err(error @ SessionError::NotFound(_)) => {
                return Err(self.half_created(id).await.unwrap_or(error));
            }
            Err(error) => return Err(error),
        };
        let remains = session.remains().join(", ");
        if !remains.is_empty() {
            let message = format!(
                "the beginning of its next epoch was cut off, and the session goes on as it was; nothing reads what is \
                 left of it ({remains}), and the next new epoch moves it away"
            );
            log::warn!(SESSION:% = id, EVENT = "epoch_cut_off"; "session {id}: {message}");
            self.events.publish(id, None, EventKind::Notice { code: "epoch_cut_off".to_owned(), message });
        }
        let conversation = self.adopt(session);
        conversation.set_unended(unended);
        if let Some(cut) = cut {
            let message = format!(
                "the torn end of {} was cut away as [daemon] torn_tail says: {} bytes from line {} on ({}), kept in {}",
                cut.log.display(),
                cut.bytes,
                cut.line,
                cut.why,
                cut.saved.display()
            );
            log::warn!(SESSION:% = id, EVENT = "tail_cut"; "session {id}: {message}");
            self.events.publish(id, None, EventKind::Notice { code: "tail_cut".to_owned(), message });
        }
        Ok(conversation)
    }

    /// What is left of a session's creation that was cut off, with its way out.
    async fn half_created(&self, id: &SessionId) -> Option<SessionError> {
        self.catalog.inspect(id).await.ok()?.error
    }

    /// An open session, unless a sync of it failed: then only a fresh open tells what the disk holds.
    async fn usable(&self, id: &SessionId) -> Option<Rc<Conversation>> {
        let conversation = self.find(id)?;
        let poisoned = conversation.running().is_none() && conversation.read(|s| s.is_poisoned()).await;
        (!poisoned).then_some(conversation)
    }

    /// The conversation of a session that is open already.
    pub(super) fn find(&self, id: &SessionId) -> Option<Rc<Conversation>> {
        self.open.borrow_mut().get_mut(id).map(|entry| {
            entry.used = Instant::now();
            Rc::clone(&entry.conversation)
        })
    }

    /// As [`find`](Self::find), without counting as use.
    pub(super) fn peek(&self, id: &SessionId) -> Option<Rc<Conversation>> {
        self.open.borrow().get(id).map(|entry| Rc::clone(&entry.conversation))
    }

    /// Takes an open session in.
    pub(super) fn adopt(&self, session: Session) -> Rc<Conversation> {
        let conversation = Rc::new(Conversation::new(session));
        let entry = Entry { conversation: Rc::clone(&conversation), used: Instant::now() };
        self.open.borrow_mut().insert(conversation.id().clone(), entry);
        if self.too_many() > 0 {
            self.crowded.notify_one();
        }
        conversation
    }

    /// Lets go of a session, as it is; gives it back when a turn or a request has it. No session is opened until the guard is
    /// dropped.
    pub(super) async fn shut(&self, id: &SessionId) -> Result<MutexGuard<'_, ()>, Rc<Conversation>> {
        let one = self.opening.lock().await;
        let mut open = self.open.borrow_mut();
        if let Some(entry) = open.get(id).filter(|entry| entry.in_use()) {
            return Err(Rc::clone(&entry.conversation));
        }
        open.remove(id);
        Ok(one)
    }

    /// Closes the sessions that are too many as soon as they are, and every now and then those that nobody has used for
    /// `idle`; none because of its age when that is zero. Never ends.
    pub(super) async fn close_idle(&self, idle: Duration) {
        let every = (idle / 4).max(MOST_OFTEN);
        loop {
            // one in use may have kept them too many
            let _ = tokio::time::timeout(every, self.crowded.notified()).await;
            self.shed().await;
            if !idle.is_zero() {
                self.close_unused(idle).await;
            }
        }
    }

    /// Closes all that are not in use.
    pub(super) async fn close_all(&self) {
        self.close_where(|_| true).await;
    }

    async fn close_unused(&self, idle: Duration) {
        let unused = |entry: &mut Entry| {
            if entry.in_use() {
                entry.used = Instant::now();
            }
            entry.used.elapsed() >= idle
        };
        self.close_where(unused).await;
    }

    /// Closes those that are not in use and of which `wanted` says so. Who asks for one meanwhile waits, and opens it anew.
    async fn close_where(&self, mut wanted: impl FnMut(&mut Entry) -> bool) {
        let _one = self.opening.lock().await;
        let gone = |_: &SessionId, entry: &mut Entry| wanted(entry) && !entry.in_use();
        let gone: Vec<_> = self.open.borrow_mut().extract_if(gone).map(|(_, entry)| entry).collect();
        for conversation in gone.into_iter().filter_map(|entry| Rc::into_inner(entry.conversation)) {
            conversation.close().await;
        }
    }

    /// Those with a turn that runs or waits.
    pub(super) fn running(&self) -> Vec<Rc<Conversation>> {
        let open = self.open.borrow();
        open.values().map(|e| &e.conversation).filter(|c| c.running().is_some()).cloned().collect()
    }

    /// How many are open.
    pub(super) fn count(&self) -> usize {
        self.open.borrow().len()
    }

    fn too_many(&self) -> usize {
        self.count().saturating_sub(self.most.max(1))
    }

    /// Closes the least recently used of those that are too many; one that is in use stays.
    async fn shed(&self) {
        let mut unused: Vec<_> =
            self.open.borrow().values().filter(|entry| !entry.in_use()).map(|entry| entry.used).collect();
        unused.sort_unstable();
        if let Some(newest) = unused.into_iter().take(self.too_many()).next_back() {
            self.close_where(|entry| entry.used <= newest).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{BaselineContent, TokenIds, TurnId};
    use crate::store::{Baseline, OpenOptions, Uring};

    struct Nobody;

    impl Events for Nobody {
        fn publish(&self, _session: &SessionId, _turn: Option<TurnId>, _kind: EventKind) {}

        fn approvers(&self, _session: &SessionId) -> usize {
            0
        }
    }

    fn baseline() -> Baseline {
        let ids = TokenIds(vec![1]);
        let content: BaselineContent = serde_json::from_value(serde_json::json!({
            "format": 1, "system_prompt": "", "tools": "[]", "sampling": {}, "reasoning": {"enabled": true},
            "framing": {
                "tool_family": "hermes", "tools_by": "template", "tool_results_by": "template", "head": ids,
                "user_open": ids, "user_close": ids, "tool_open": ids, "tool_between": ids, "tool_close": ids,
                "stand_in": "", "stand_in_ids": ids, "reasoning": null
            },
            "model": {
                "api": "", "url": "", "alias": "", "file": "", "size": 1, "template_digest": "0".repeat(64),
                "n_ctx": 1, "n_vocab": 1, "build": ""
            }
        }))
        .unwrap();
        Baseline::freeze(content).unwrap()
    }

    #[test]
    fn a_session_is_idle_from_the_end_of_its_last_use_on() {
        const IDLE: Duration = Duration::from_millis(300);
        let home = tempfile::tempdir().unwrap();
        Uring::runtime().unwrap().block_on(async {
            let catalog = Catalog::new(home.path().to_owned(), OpenOptions::default());
            let sessions = Sessions::new(catalog, 10, Rc::new(Nobody));
            let session = sessions.catalog().create(None, baseline(), 0, None).await.unwrap();
            let turn = sessions.adopt(session);
            tokio::time::sleep(IDLE).await;
            sessions.close_unused(IDLE).await;
            drop(turn);
            sessions.close_unused(IDLE).await;
            assert_eq!(sessions.count(), 1, "it was in use until now");
            tokio::time::sleep(IDLE).await;
            sessions.close_unused(IDLE).await;
            assert_eq!(sessions.count(), 0);
        });
    }

    #[test]
    fn a_session_in_use_is_neither_shut_nor_closed() {
        let home = tempfile::tempdir().unwrap();
        Uring::runtime().unwrap().block_on(async {
            let catalog = Catalog::new(home.path().to_owned(), OpenOptions::default());
            let sessions = Sessions::new(catalog, 1, Rc::new(Nobody));
            let session = sessions.catalog().create(None, baseline(), 0, None).await.unwrap();
            let id = session.id().clone();
            let used = sessions.adopt(session);
            // whoever deletes waits for an opening, and a turn may begin meanwhile
            let opening = sessions.opening.lock().await;
            let shut = sessions.shut(&id);
            let begins = async {
                tokio::task::yield_now().await;
                drop(opening);
            };
            assert!(tokio::join!(shut, begins).0.is_err());
            sessions.close_all().await;
            assert_eq!(sessions.count(), 1);
            drop(used);
            assert!(sessions.shut(&id).await.is_ok());
            assert_eq!(sessions.count(), 0);
        });
    }
}
