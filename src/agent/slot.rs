//! Whose tokens the slot's cache holds, and how they outlive a switch of sessions and the server itself.
//!
//! Everything here only saves time. When a save or a restore fails, the turn goes on, and what is evaluated
//! again is told by the first event of the next completion, which alone counts.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::model::Server;
use crate::proto::{Epoch, ModelIdentity, SessionId, TokenId, count};
use crate::store::{Kept, SlotFiles, common, new_name};

/// The pinned slot.
pub struct Slot {
    server: Rc<Server>,
    files: Option<SlotFiles>,
    held: RefCell<Option<Held>>,
    /// Told when the slot holds more than was saved.
    grown: Notify,
    /// The session that was deleted last, should a save of it be under way.
    deleted: RefCell<Option<SessionId>>,
}

/// What the slot's cache holds, as far as this run of the daemon knows.
#[derive(Debug, Clone)]
struct Held {
    session: SessionId,
    epoch: Epoch,
    /// The session's list after its newest completion: the cache holds it, or all but its last token. Not
    /// known of what an earlier run of the daemon left there.
    list: Option<Vec<TokenId>>,
    model: ModelIdentity,
    /// Whether a kept slot holds as much.
    saved: bool,
    /// Whether nothing since spoke against it.
    sure: bool,
}

/// What is known about the cache before a request.
#[derive(Debug, Default)]
pub struct Claim {
    /// The session's kept slot, should the cache turn out to hold less.
    pub kept: Option<Kept>,
    /// Why the cache was, or will be, found lacking, in words.
    pub why: Option<String>,
    /// How many tokens a request that was cut off found in the cache, which has not been restored since.
    pub found: Option<u64>,
}

impl Claim {
    /// Adds why the cache could not be restored.
    fn because(&mut self, why: &str) {
        let before = self.why.take().unwrap_or_else(|| "the cache holds less than it should".to_owned());
        self.why = Some(format!("{before}, and it could not be restored: {why}"));
    }
}

/// Why a cache can hold only so many tokens of what it should, in words.
pub fn why_lacking(found: u64) -> &'static str {
    if found == 0 {
        "the model server was restarted, or another client used its slot"
    } else {
        "another client used the slot, or the model server went back to an earlier token by itself, as it does for a \
         model with a sliding window without --swa-full"
    }
}

impl Slot {
    /// A slot; `files` is the folder that the server saves to, if it is known.
    pub fn new(server: Rc<Server>, files: Option<SlotFiles>) -> Self {
        Self { server, files, held: RefCell::new(None), grown: Notify::new(), deleted: RefCell::default() }
    }

    /// The folder that the server saves to.
    pub fn files(&self) -> Option<&SlotFiles> {
        self.files.as_ref()
    }

    /// The session whose tokens the slot holds.
    pub fn holder(&self) -> Option<SessionId> {
        self.held.borrow().as_ref().map(|held| held.session.clone())
    }

    /// A completion of `session` has left `list` in the cache.
    pub async fn holds(
        &self,
        (session, epoch): (&SessionId, Epoch),
        list: Vec<TokenId>,
        model: &ModelIdentity,
    ) {
        let held = Held {
            session: session.clone(),
            epoch,
            list: Some(list),
            model: model.clone(),
            saved: false,
            sure: true,
        };
        let before = self.held.replace(Some(held)).map(|held| (held.session, held.epoch));
        if let Some(files) = &self.files
            && before.as_ref() != Some(&(session.clone(), epoch))
            && let Err(e) = files.remember(self.server.slot(), session, epoch).await
        {
            log::warn!(SESSION:% = session, EVENT = "slot_unreadable"; "whose the slot is cannot be written down: {e}");
        }
        self.grown.notify_one();
    }

    /// A session has begun a new epoch: what the slot holds of the one before, and what was kept of it, is of no
    /// use to anybody any more.
    pub async fn begun(&self, session: &SessionId) {
        self.let_go(session).await;
    }

    /// The model whose cache in the slot is what this run of the daemon left there for `session`, as far as
    /// can be known without asking: then the first event of a request tells whether that is so.
    pub fn surely_holds(&self, (session, epoch): (&SessionId, Epoch)) -> Option<ModelIdentity> {
        let held = self.held.borrow();
        let sure = held.as_ref().filter(|held| held.sure && held.session == *session && held.epoch == epoch);
        sure.map(|held| held.model.clone())
    }

    /// The server went away, or its cache was found lacking: it is asked before the next request.
    pub fn doubt(&self) {
        if let Some(held) = self.held.borrow_mut().as_mut() {
            held.sure = false;
        }
    }

    /// Returns when the slot has held the same for `quiet`, and no kept slot has as much.
    pub async fn quiet(&self, quiet: Duration) {
        loop {
            self.grown.notified().await;
            while tokio::time::timeout(quiet, self.grown.notified()).await.is_ok() {}
            if self.held.borrow().as_ref().is_some_and(|held| !held.saved) {
                return;
            }
        }
    }

    /// Makes the slot the session's own before a request whose prompt begins with `list`, of which
    /// `expected` tokens should be cached: saves what another session has there, and restores. A request that
    /// was cut off may have `found` fewer.
    pub async fn claim(
        &self,
        (session, epoch): (&SessionId, Epoch),
        list: &[TokenId],
        (expected, found): (u64, Option<u64>),
        model: &ModelIdentity,
    ) -> Claim {
        let mut claim = Claim { found, ..Claim::default() };
        if let Some(found) = found {
            claim.kept = self.find((session, epoch), (list, expected)).await;
            claim.why = Some(why_lacking(found).to_owned());
            self.give_back(&mut claim, list, found, model).await;
            return claim;
        }
        self.recall(session, model).await;
        let holder = self.holder();
        let mut shared = false;
        if let Some(other) = holder.as_ref().filter(|holder| *holder != session) {
            claim.why = Some(format!("session {other} used the slot in between"));
            self.save().await;
            // one that this was forked from, or that was forked from this
            let theirs = self.held.replace(None).and_then(|held| held.list).unwrap_or_default();
            shared = count(common(&theirs, list)) >= expected;
        }
        if expected == 0 {
            return claim;
        }
        claim.kept = self.find((session, epoch), (list, expected)).await;
        let told = self.server.slot_tokens().await.ok().flatten();
        let own = holder.as_ref().is_none_or(|holder| holder == session);
        if told.is_none() && holder.as_ref() == Some(session) {
            // A server that hides its slots: what is there is newer than what was kept, unless the first event
            // says that it is gone.
            return claim;
        }
        if (own || shared) && told.unwrap_or(0) >= expected {
            return claim;
        }
        if own {
            claim.why = Some(why_lacking(0).to_owned());
        }
        if self.files.is_none() {
            return claim;
        }
        // what is there is another's, or nothing: nobody knows how much of it this session can use, but what was
        // kept begins with all of that
        self.give_back(&mut claim, list, 0, model).await;
        claim
    }

    /// Gives the server the kept slot back, if that holds more than the `cached` tokens that are there; the claim
    /// then knows why not.
    pub async fn give_back(&self, claim: &mut Claim, list: &[TokenId], cached: u64, model: &ModelIdentity) {
        match self.restore(claim, list, cached, model).await {
            Ok(()) => claim.found = None,
            Err(why) => {
                claim.because(&why);
                claim.kept = None;
            }
        }
    }

    /// After a start of the daemon: another session's tokens may still be in the slot.
    async fn recall(&self, session: &SessionId, model: &ModelIdentity) {
        let Some(files) = self.files.as_ref().filter(|_| self.held.borrow().is_none()) else {
            return;
        };
        let there = self.server.slot_tokens().await.ok().flatten().unwrap_or(0);
        if let Some((other, epoch)) =
            files.remembered(self.server.slot()).await.filter(|(other, _)| there > 0 && other != session)
        {
            let held =
                Held { session: other, epoch, list: None, model: model.clone(), saved: false, sure: false };
            self.held.replace(Some(held));
        }
    }

    /// # Errors
    /// Why not, in words; the slot may be empty then.
    async fn restore(
        &self,
        claim: &Claim,
        list: &[TokenId],
        cached: u64,
        model: &ModelIdentity,
    ) -> Result<(), String> {
        let (Some(files), Some(kept)) = (&self.files, &claim.kept) else {
            return Err("it was never saved".to_owned());
        };
        if let Some(why) = kept.manifest.differs(model) {
            return Err(why);
        }
        let useful = files.verify(kept, list).await.map_err(|e| e.to_string())??;
        if useful <= cached {
            return Err(format!("what was saved of it holds {useful} tokens, no more than is there"));
        }
        let restored = self.server.restore_slot(&kept.file()).await.map_err(|e| e.to_string())?;
        let (saved_of, tokens) = (&kept.manifest.session, kept.manifest.tokens);
        if restored != tokens {
            return Err(format!("the server restored {restored} tokens of {tokens}"));
        }
        log::info!(SESSION:% = saved_of, EVENT = "slot_restored", TOKENS = tokens; "the cache of {saved_of} was restored: {tokens} tokens");
        Ok(())
    }

    /// The session's kept slot; or another's that holds all that this one should have in the cache, as that of the
    /// session from which it was forked does.
    async fn find(
        &self,
        (session, epoch): (&SessionId, Epoch),
        (list, expected): (&[TokenId], u64),
    ) -> Option<Kept> {
        let files = self.files.as_ref()?;
        let found = async {
            match files.find(session, epoch).await? {
                Some(own) => Ok(Some(own)),
                None => files.find_holding(list, expected).await,
            }
        };
        match found.await {
            Ok(kept) => kept,
            Err(e) => {
                log::warn!(SESSION:% = session, EVENT = "slot_unreadable"; "saved slots cannot be looked at: {e}");
                None
            }
        }
    }

    /// Saves the cache, if it holds what no kept slot has. The slot must be idle.
    pub async fn save(&self) {
        let (Some(files), Some(held)) = (&self.files, self.held.borrow().clone()) else {
            return;
        };
        if held.saved {
            return;
        }
        let session = &held.session;
        self.deleted.replace(None);
        let saved = self.save_to(files, &held).await;
        if self.deleted.borrow().as_ref() == Some(session) {
            self.drop_files(session).await;
            return;
        }
        match saved {
            Ok(kept) => {
                let (tokens, bytes) = (kept.manifest.tokens, kept.manifest.bytes);
                log::info!(SESSION:% = session, EVENT = "slot_saved", TOKENS = tokens, BYTES = bytes; "the cache of {session} was saved: {tokens} tokens, {bytes} bytes");
                if let Some(now) = self.held.borrow_mut().as_mut()
                    && now.session == held.session
                    && now.list == held.list
                {
                    now.saved = true;
                }
            }
            Err(why) => {
                log::warn!(SESSION:% = session, EVENT = "slot_not_saved"; "the cache of {session} was not saved: {why}");
            }
        }
    }

    async fn save_to(&self, files: &SlotFiles, held: &Held) -> Result<Kept, String> {
        let name = new_name(&held.session);
        let saved = self.server.save_slot(&name).await.map_err(|e| e.to_string())?;
        let whose = (self.server.slot(), &held.model);
        let kept =
            files.keep((&held.session, held.epoch), saved.n_written, held.list.as_deref(), whose).await;
        if kept.is_err() {
            // it may be large, and is of no use
            let _ = files.remove(&name).await;
        }
        kept.map_err(|e| e.to_string())
    }

    /// Keeps the saved slots within `budget` bytes; the one in the slot goes last.
    pub async fn evict(&self, budget: u64) {
        let Some(files) = &self.files else { return };
        let holder = self.holder();
        match files.evict(budget, holder.as_ref()).await {
            Ok(evicted) => {
                for session in evicted {
                    log::info!(SESSION:% = session, EVENT = "slot_evicted"; "the saved cache of {session} was removed to stay within {budget} bytes");
                }
            }
            Err(e) => {
                log::warn!(EVENT = "slot_unreadable"; "saved slots cannot be kept within their budget: {e}")
            }
        }
    }

    /// Removes a deleted session's kept slot, and the one that is being saved.
    pub async fn forget(&self, session: &SessionId) {
        self.deleted.replace(Some(session.clone()));
        self.let_go(session).await;
    }

    /// What the slot holds of a session, and what was kept of it, is nobody's any more.
    async fn let_go(&self, session: &SessionId) {
        if self.holder().as_ref() == Some(session) {
            self.held.replace(None);
        }
        self.drop_files(session).await;
    }

    async fn drop_files(&self, session: &SessionId) {
        if let Some(files) = &self.files
            && let Err(e) = files.forget(session).await
        {
            log::warn!(SESSION:% = session; "the saved cache of {session} is of no use any more, and stays: {e}");
        }
    }
}
